// Light or dark, before the first paint: ?theme=, else light on paper, else what the system prefers.
(function () {
  "use strict";
  const query = new URLSearchParams(window.location.search);
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const asked = query.get("theme") || (query.has("print-pdf") ? "light" : null);
  const show = (theme) => { document.documentElement.dataset.theme = theme; };
  const follow = () => show(system.matches ? "dark" : "light");
  if (asked === "light" || asked === "dark") {
    show(asked);
  } else {
    follow();
    system.addEventListener("change", follow);
  }
  window.switchTheme = () => {
    system.removeEventListener("change", follow);
    show(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  };
})();
