// Of the lists at the side the lessons are open. The others are folded, but for the one that has the page.
// Without this script all are open.
document.addEventListener("DOMContentLoaded", () => {
  for (const caption of [...document.querySelectorAll(".bd-docs-nav p.caption")].slice(1)) {
    const list = caption.nextElementSibling;
    const fold = document.createElement("details");
    const summary = document.createElement("summary");
    caption.before(fold);
    summary.append(caption);
    fold.append(summary, list);
    fold.open = Boolean(list.querySelector(".current"));
  }
});
