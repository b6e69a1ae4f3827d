// The text below a question stays hidden until its reader has typed a number, or has asked to see it without one: from
// the question's form to the end of its part or to the next question, because texts and charts give the answer away too.
// An answer in a later part is hidden there with the text below it. The browser keeps the number, and it is shown beside
// the model and the answer. Without this script, and on paper, all is there.
document.addEventListener("DOMContentLoaded", () => {
  const { numberOf, quantityOf } = window.courseNumbers;
  const page = location.pathname.split("/").slice(-2).join("/");
  const questions = [...document.querySelectorAll(".cell[class*='tag_asks-']")].map(questionOf).filter(Boolean);
  for (const question of questions) question.start = startOf(question);
  for (const question of questions) question.hidden = following(question);
  for (const question of questions) {
    const { asked, name, answers, shown } = question;
    const [text, unit = ""] = shown.textContent.trim().split("\n")[0].split(/ \[(.*)\]$/);
    const { form, input, said } = guess(text, unit);
    form.id = `predict-${name}`;
    shown.replaceChildren(form);
    for (const cell of answers) {
      for (const prompt of cell.querySelectorAll(".above-input > summary p")) prompt.textContent = "The code";
      for (const details of cell.querySelectorAll("details.below-input")) details.open = true;
    }
    question.note = noteOf(question, form.id);
    question.start.before(question.note);
    question.note.querySelector("button").addEventListener("click", () => lock(question, false));
    lock(question, true);
    const tables = answers.flatMap((cell) => [...cell.querySelectorAll(".cell_output table")]).filter(isAnswer);
    ask(form, input, said, unit, `prediction ${page} ${name}`, () => lock(question, false), tables);
  }
  window.addEventListener("hashchange", openTarget);
  openTarget();

  function questionOf(asked) {
    const name = [...asked.classList].find((one) => one.startsWith("tag_asks-")).slice("tag_asks-".length);
    const answers = [...document.querySelectorAll(`.cell.tag_answers-${CSS.escape(name)}`)];
    const shown = asked.querySelector(".cell_output");
    return shown && answers.length ? { asked, name, answers, shown, locked: false } : null;
  }

  // The first element that waits for a number: the one below the form, or the answer's first cell where the answer is
  // in another part or another question comes between.
  function startOf({ asked, answers }) {
    const [answer] = answers;
    const between = (one) => isBefore(asked, one) && isBefore(one, answer);
    const parted = questions.some((other) => between(other.asked) || between(other.answers[0]));
    return asked.parentElement === answer.parentElement && !parted ? asked.nextElementSibling : answer;
  }

  function following({ start }) {
    const stops = new Set(questions.flatMap((other) => [other.asked, other.start]).filter((one) => one !== start));
    const found = [];
    for (let one = start; one && one.tagName !== "SECTION" && !stops.has(one); one = one.nextElementSibling) {
      found.push(one);
    }
    return found;
  }

  function isBefore(one, other) {
    return Boolean(one.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING);
  }

  function lock(question, locked) {
    question.locked = locked;
    question.note.hidden = !locked;
    const waiting = new Set(questions.flatMap((one) => (one.locked ? one.hidden : [])));
    for (const one of question.hidden) one.classList.toggle("until-guessed", waiting.has(one));
  }

  // A link, as one of the search, may lead into what is hidden.
  function openTarget() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const around = questions.filter(({ locked, hidden }) => locked && hidden.some((one) => one.contains(target)));
    if (!target || !around.length) return;
    around.forEach((question) => lock(question, false));
    target.scrollIntoView();
  }

  function noteOf({ asked, start }, form) {
    const note = document.createElement("p");
    note.className = "guess-note";
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: "Show the answer without a number" });
    const link = Object.assign(document.createElement("a"), { href: `#${form}`, textContent: "an earlier question" });
    const where = start === asked.nextElementSibling ? [] : [" for ", link];
    const hidden = "The text below is hidden until you have written a number";
    note.append(hidden, ...where, ", because it gives the answer away. ", button);
    return note;
  }

  // The bet of the first page: its answer is a fold below it, and a lesson begins with the same bet and number.
  for (const answer of document.querySelectorAll("details.bet")) {
    const { form, input, said } = guess("Your prediction:", answer.dataset.unit);
    answer.before(form);
    const key = `prediction ${page.replace(/[^/]*$/, answer.dataset.page)} bet`;
    ask(form, input, said, answer.dataset.unit, key, () => (answer.open = true), [tableOf(answer)]);
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
});
