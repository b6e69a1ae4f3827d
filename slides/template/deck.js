// The slides are filled and laid out after the maths is set, so that a printed page has its final size.
// The root element's data-ready tells a test or the PDF export that the deck is complete.
(function () {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // What of a slide grows until it fills it: a selector, and the sizes of its text in pixels.
  const SIZES = [
    [".statement .text, .question .text, .close .text", 28, 56],
    [".table .html, .beside .html", 20, 54],
    [".table .text", 28, 42],
    [".code .part.code pre, .beside pre", 20, 34],
    [".beside .text", 28, 34],
    [".printed .output > pre", 20, 38],
    [".number b", 44, 116],
    [".numbers .html", 20, 30],
  ];
  const overflows = (body) => body.scrollHeight > body.clientHeight + 1;
  const fill = (sheet) => {
    const grown = SIZES.flatMap(([selector, least, most]) => all(selector, sheet).map((part) => ({ part, least, most })));
    const body = sheet.querySelector(".body");
    if (grown.length === 0) return;
    const fits = () => !overflows(body) && grown.every(({ part }) => part.scrollWidth <= part.clientWidth + 1
        && part.getBoundingClientRect().bottom <= body.getBoundingClientRect().bottom + 1);
    grown.forEach(({ part }) => { if (part.localName === "pre") part.style.whiteSpace = "pre"; });
    for (let share = 1; share >= 0; share -= 0.1) {
      grown.forEach(({ part, least, most }) => part.style.setProperty("--fit", `${least + share * (most - least)}px`));
      if (fits()) return;
    }
    grown.forEach(({ part, least }) => {
      part.style.setProperty("--fit", `${least}px`);
      part.style.setProperty("--wrap", "normal");
      part.style.whiteSpace = "";
    });
  };

  // The axis of a question. The room's guesses are what the lecturer types on its slide; they stay on this page.
  const { numberOf, textOf } = window.courseNumbers;
  const room = new Map();
  const draw = (guess) => {
    const { question, unit, low, high, marks } = guess.dataset;
    const [from, to] = [Number(low), Number(high)];
    const logarithmic = from > 0 && to / from >= 20;
    const scale = logarithmic ? Math.log : (value) => value;
    const place = (value) => 100 * Math.min(1, Math.max(0, (scale(value) - scale(from)) / (scale(to) - scale(from))));
    const ticks = [];
    if (logarithmic) {
      for (let tick = from; tick <= to * 1.001; tick *= 10) ticks.push(tick);
      if (100 - place(ticks.at(-1)) >= 12) ticks.push(to); // an end between two powers of ten, where it has room
    } else {
      const step = to - from <= 12 && Number.isInteger(to - from) ? 1 : (to - from) / 4;
      for (let tick = from; tick <= to * 1.001; tick += step) ticks.push(tick);
    }
    const add = (kind, value, text) => {
      const element = document.createElement("span");
      element.className = kind;
      element.style.left = `${place(value)}%`;
      element.textContent = text;
      guess.append(element);
      return element;
    };
    all(".axis, .tick, .mark, .room, .said", guess).forEach((element) => element.remove());
    guess.insertAdjacentHTML("afterbegin", '<span class="axis"></span>');
    ticks.forEach((tick) => add("tick", tick, textOf(Number(tick.toPrecision(12)), unit)));
    JSON.parse(marks).forEach(([name, value], index, given) => {
      const near = index > 0 && Math.abs(place(value) - place(given[index - 1][1])) < 18;
      add(`mark ${name === "modelled" ? "modelled" : "found"}${near ? " lifted" : ""}`, value, name);
    });
    const guesses = room.get(question) ?? [];
    guesses.forEach((value) => add("room", value, ""));
    if (guesses.length) guess.insertAdjacentHTML("beforeend", '<span class="said"></span>');
    if (guesses.length) guess.lastChild.textContent = `The room: ${guesses.map((value) => textOf(value, unit)).join(", ")}`;
  };
  const readGuesses = (event) => {
    const { question, unit } = event.target.closest(".guess").dataset;
    room.set(question, event.target.value.split(/[,;]\s*|\s{2,}/).map((text) => numberOf(text, unit)).filter((value) => value > 0));
    all(".guess").filter((guess) => guess.dataset.question === question).forEach(draw);
  };

  // A remote sends PageDown or an arrow, and who has typed presses Enter: the slide turns, and the line gives the keys back.
  // The arrows to the sides turn it from the ends of the line alone, because inside they move the cursor.
  const TURNS = { Enter: "next", PageDown: "next", ArrowDown: "next", PageUp: "prev", ArrowUp: "prev" };
  const leaveLine = (event) => {
    const { key, target } = event;
    const isAt = (place) => target.selectionStart === place && target.selectionEnd === place;
    const turn = TURNS[key] ?? (key === "ArrowRight" && isAt(target.value.length) ? "next" : undefined)
      ?? (key === "ArrowLeft" && isAt(0) ? "prev" : undefined);
    if (turn === undefined && key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    target.blur();
    if (turn) window.Reveal[turn]();
  };
  const enterLine = () => window.Reveal.getCurrentSlide().querySelector(".guess input")?.focus();

  const startDeck = () => {
    all(".guess").forEach(draw);
    all(".guess input").forEach((input) => {
      input.addEventListener("input", readGuesses);
      input.addEventListener("keydown", leaveLine);
    });
    root.classList.add("measuring");
    all(".sheet").forEach(fill);
    // The axis of an answer that has little room is low, and where it has none the room's guesses stand there in words.
    for (const form of ["low", "in-words"]) {
      all(".guess:not(:has(input))").filter((guess) => overflows(guess.closest(".body"))).forEach((guess) => guess.classList.add(form));
    }
    root.classList.remove("measuring");
    return window.Reveal.initialize({
      width: 1280,
      height: 720,
      margin: 0,
      minScale: 0.1,
      maxScale: 6,
      center: false,
      controls: false,
      progress: true,
      hash: true,
      transition: "none",
      backgroundTransition: "none",
      scrollActivationWidth: null,
      pdfMaxPagesPerSlide: 1,
      pdfSeparateFragments: false,
      plugins: [window.RevealNotes],
    });
  };
  window.MathJax = {
    // Without noundefined a macro that does not exist is an error, which slides.check reports, and no red text.
    tex: { packages: { "[-]": ["noundefined"] }, inlineMath: [["$", "$"], ["\\(", "\\)"]], processEscapes: true },
    svg: { fontCache: "local" },
    options: { enableMenu: false },
    startup: {
      pageReady: () => window.MathJax.startup.defaultPageReady()
        .then(startDeck)
        .then(() => {
          window.Reveal.addKeyBinding({ keyCode: 84, key: "T", description: "Light or dark" }, window.switchTheme);
          window.Reveal.addKeyBinding({ keyCode: 82, key: "R", description: "Type the room's guesses" }, enterLine);
          root.dataset.ready = "yes";
        }),
    },
  };
})();
