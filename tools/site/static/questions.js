// A question's answer stays folded until its reader has typed a number. The browser keeps the number, and it is shown
// beside the model and the answer. Without this script the answers are plain folds.
document.addEventListener("DOMContentLoaded", () => {
  const { numberOf, quantityOf } = window.courseNumbers;
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
    const tables = answers.flatMap((cell) => [...cell.querySelectorAll(".cell_output table")]).filter(isAnswer);
    ask(form, input, said, unit, key, () => lock(false), tables);
    lock(!input.value);
  }

  // The bet of the first page: its answer is a fold below it.
  for (const answer of document.querySelectorAll("details.bet")) {
    const { form, input, said } = guess("Your prediction:", answer.dataset.unit);
    answer.before(form);
    ask(form, input, said, answer.dataset.unit, `prediction ${page} bet`, () => (answer.open = true), [tableOf(answer)]);
  }

  // Show the number that is kept, and keep each that is typed. ``open`` opens the answer, which has the ``tables``.
  function ask(form, input, said, unit, key, open, tables) {
    const take = (text) => {
      const value = read(text, unit);
      if (Number.isFinite(value)) tables.forEach((table) => showBeside(table, value, unit));
      return Number.isFinite(value);
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!take(input.value)) {
        said.textContent = "that is not a number";
        return;
      }
      keep(key, input.value.trim());
      said.textContent = "predicted; the answer is open below";
      open();
    });
    const text = kept(key);
    if (text && take(text)) {
      input.value = text;
      open();
    }
  }

  // A browser may keep nothing, as in a private window: then a number lasts as long as the page.
  function keep(key, text) {
    try { localStorage.setItem(key, text); } catch { /* nothing is kept */ }
  }

  function kept(key) {
    try { return localStorage.getItem(key); } catch { return null; }
  }

  function read(text, unit) {
    return numberOf(text.replaceAll(",", ""), unit);
  }

  function isAnswer(table) {
    return table.rows[0]?.cells[0].textContent === "predicted";
  }

  // An answer's table has a row for each number: its label, the number, a bar, and how it compares with the answer.
  function showBeside(table, value, unit) {
    const [predicted, ...others] = [...table.rows];
    table.hidden = false;
    table.classList.add("guessed");
    predicted.cells[1].textContent = quantityOf(value, unit);
    const values = others.map((row) => read(row.cells[1].textContent, unit));
    const largest = Math.max(value, ...values.filter(Number.isFinite)) || 1;
    [predicted, ...others].forEach((row, index) => {
      const number = index ? values[index - 1] : value;
      if (!row.cells[2].firstElementChild) row.cells[2].append(document.createElement("span"));
      row.cells[2].firstElementChild.classList.add("bar", index ? row.cells[0].textContent : "predicted");
      row.cells[2].firstElementChild.style.width = `${(12 * number) / largest}em`;
    });
    const [label, answer] = [others.at(-1)?.cells[0].textContent, values.at(-1)];
    const ratio = Number((value / answer).toPrecision(3));
    predicted.cells[3].textContent = answer > 0 ? (ratio === 1 ? `as ${label}` : `${ratio.toLocaleString("en")} times what was ${label}`) : "";
  }

  // The table of the first page's bet, whose answer begins like "49 times as long (measured)".
  function tableOf(answer) {
    const [, number, label] = answer.querySelector("p").textContent.match(/^([\d.,]+)[^(]*\((\w+)\)/);
    const table = document.createElement("table");
    for (const [name, text] of [["predicted", ""], [label, `${number} ${answer.dataset.unit}`]]) {
      const row = table.insertRow();
      row.append(Object.assign(document.createElement("th"), { scope: "row", textContent: name }));
      for (const content of [text, "", ""]) row.insertCell().textContent = content;
    }
    answer.querySelector("summary").after(table);
    table.hidden = true;
    return table;
  }

  function guess(question, unit) {
    const form = document.createElement("form");
    form.className = "guess";
    const label = document.createElement("label");
    label.append(Object.assign(document.createElement("span"), { className: "question", textContent: question }), " ");
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
