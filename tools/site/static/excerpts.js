// Sphinx's search fetches each page that it lists, to show the sentences around a word. No page can be fetched from a
// file, so this page carries the texts of all pages (texts.js) and hands them out in the pages' place.
window.fetch = async (address) => {
  const root = new URL(document.documentElement.dataset.content_root, location.href).href;
  const page = new URL(address, location.href).href.slice(root.length).replace(/\.html$/, "");
  return new Response(`<div role="main">${window.pageTexts[page] ?? ""}</div>`);
};
