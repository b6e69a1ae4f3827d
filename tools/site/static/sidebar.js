// Of the lists at the side those of lessons are open, one for each act. The others are folded, but for the one that has
// the page.
// Without this script all are open.
document.addEventListener("DOMContentLoaded", () => {
  const folded = ["Appendices", "Exercises", "To look up"];
  for (const caption of document.querySelectorAll(".bd-docs-nav p.caption")) {
    if (!folded.includes(caption.textContent.trim())) continue;
    const list = caption.nextElementSibling;
    const fold = document.createElement("details");
    const summary = document.createElement("summary");
    caption.before(fold);
    summary.append(caption);
    fold.append(summary, list);
    fold.open = Boolean(list.querySelector(".current"));
  }
});
