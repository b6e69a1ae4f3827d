// A question's answer stays folded until its reader has typed a number, which the browser keeps.
// Without this script the answers are plain folds.
document.addEventListener("DOMContentLoaded", () => {
  const page = location.pathname.split("/").slice(-2).join("/");
  for (const asked of document.querySelectorAll(".cell[class*='tag_asks-']")) {
    const name = [...asked.classList].find((one) => one.startsWith("tag_asks-")).slice("tag_asks-".length);
    const answers = [...document.querySelectorAll(`.cell.tag_answers-${CSS.escape(name)}`)];
    const shown = asked.querySelector(".cell_output");
    if (!shown || !answers.length) continue;
    const [question, unit = ""] = shown.textContent.trim().split("\n")[0].split(/ \[(.*)\]$/);
    const { form, input, said } = guess(question, unit);
    shown.replaceChildren(form);
    const explained = after(answers.at(-1));
    const key = `prediction ${page} ${name}`;

    const lock = (locked) => {
      for (const cell of answers) {
        cell.classList.toggle("until-guessed", locked);
        for (const details of cell.querySelectorAll("details.below-input")) details.open = !locked;
      }
      if (explained) explained.hidden = locked;
    };
    for (const cell of answers) {
      for (const prompt of cell.querySelectorAll(".above-input > summary p")) prompt.textContent = "The code";
      cell.addEventListener("click", (event) => {
        if (!cell.classList.contains("until-guessed") || !event.target.closest("summary")) return;
        event.preventDefault();
        said.textContent = "type a number first";
        input.focus();
      });
    }
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!isNumber(input.value)) {
        said.textContent = "that is not a number";
        return;
      }
      localStorage.setItem(key, input.value.trim());
      said.textContent = "predicted; the answer is open below";
      lock(false);
    });
    input.value = localStorage.getItem(key) ?? "";
    lock(!input.value);
  }

  // The bet of the first page: its answer is a fold below it.
  for (const answer of document.querySelectorAll("details.bet")) {
    const { form, input, said } = guess("Your prediction:", answer.dataset.unit);
    answer.before(form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const valid = isNumber(input.value);
      said.textContent = valid ? "predicted; the answer is open below" : "that is not a number";
      if (valid) answer.open = true;
    });
  }

  function isNumber(text) {
    return text.trim() !== "" && Number.isFinite(Number(text.replaceAll(",", "")));
  }

  function guess(question, unit) {
    const form = document.createElement("form");
    form.className = "guess";
    const label = document.createElement("label");
    label.append(`${question} `);
    const input = Object.assign(document.createElement("input"), { type: "text", inputMode: "decimal", required: true });
    label.append(input, ` ${unit}`);
    const button = Object.assign(document.createElement("button"), { type: "submit", textContent: "Keep my prediction" });
    const said = document.createElement("output");
    form.append(label, button, said);
    return { form, input, said };
  }

  // What explains an answer stands between it and the next cell or heading.
  function after(answer) {
    const box = document.createElement("div");
    box.className = "after-guess";
    let next = answer.nextElementSibling;
    while (next && !next.matches(".cell, section, h2, h3")) {
      const following = next.nextElementSibling;
      box.append(next);
      next = following;
    }
    if (!box.children.length) return null;
    answer.after(box);
    return box;
  }
});
