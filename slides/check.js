// Looks at one slide on show, in the deck's own page: returns what is wrong with it and what was seen on it.
([index, limits]) => {
  const section = window.Reveal.getSlides()[index];
  const slide = section.querySelector(".sheet");
  const seen = { problems: [], formulas: 0, figures: 0, texts: 0, lowest: Infinity, smallest: Infinity };
  const problem = (kind, detail) => seen.problems.push([kind, detail]);
  const hidden = "mjx-assistive-mml, script, style, template";
  const quote = (text) => `"${text.trim().replace(/\s+/g, " ").slice(0, 40)}"`;

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colours = new Map(); // to read a pixel takes longer than all else here
  const rgba = (colour) => {
    if (!colours.has(colour)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
      colours.set(colour, { channels: [red, green, blue], alpha: alpha / 255 });
    }
    return colours.get(colour);
  };
  const over = (top, bottom) => top.channels.map((value, i) => value * top.alpha + bottom[i] * (1 - top.alpha));
  const luminance = (channels) => {
    const [red, green, blue] = channels.map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  // The colour behind an element, or null where a picture stands there.
  const behind = (element) => {
    const layers = [];
    for (let node = element; node; node = node.parentElement) {
      const style = getComputedStyle(node);
      if (style.backgroundImage !== "none") return null;
      layers.push(rgba(style.backgroundColor));
      if (layers.at(-1).alpha === 1) break;
    }
    return layers.reduceRight((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const contrast = (element) => {
    const below = behind(element);
    if (below === null) return null;
    const style = getComputedStyle(element);
    const ink = { ...rgba(style.color) };
    for (let node = element; node; node = node.parentElement) {
      if (!node.matches(".fragment")) ink.alpha *= Number(getComputedStyle(node).opacity); // a step comes in its turn
    }
    const [light, dark] = [luminance(over(ink, below)), luminance(below)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };

  const examineText = (element, text) => {
    seen.texts += 1;
    const ratio = contrast(element);
    if (ratio === null) problem("contrast", `${quote(text)} stands on a picture`);
    else if (ratio < limits.contrast) problem("contrast", `${quote(text)} has ${ratio.toFixed(2)}`);
    seen.lowest = Math.min(seen.lowest, ratio ?? seen.lowest);
    const size = parseFloat(getComputedStyle(element).fontSize);
    const least = element.closest("footer") ? limits.footer
      : element.closest("pre, code, table, .html, .guess, sup, sub") ? limits.code : limits.text;
    if (size < least - 0.01) problem("font size", `${quote(text)} has ${size} px, needs ${least} px`);
    if (!element.closest("footer")) seen.smallest = Math.min(seen.smallest, size);
  };

  // Where content may stand: inside the padding, above the footer.
  const outer = slide.getBoundingClientRect();
  const style = getComputedStyle(slide);
  const area = {
    left: outer.left + parseFloat(style.paddingLeft), right: outer.right - parseFloat(style.paddingRight),
    top: outer.top + parseFloat(style.paddingTop), bottom: outer.bottom - parseFloat(style.paddingBottom),
  };
  let widest = { excess: 1.5, what: null };
  const examinePlace = (rectangle, box, what) => {
    if (rectangle.width === 0 || rectangle.height === 0) return;
    const excess = Math.max(box.left - rectangle.left, rectangle.right - box.right,
      box.top - rectangle.top, rectangle.bottom - box.bottom);
    if (excess > widest.excess) widest = { excess, what };
  };

  // How much of the slide is filled: of a grid over its area the share that lies in text, a picture, a table, a panel or an axis.
  const cells = new Set();
  const [across, down] = [64, 36];
  const cover = (rectangle) => {
    const column = (x) => Math.round(((x - area.left) / (area.right - area.left)) * across);
    const row = (y) => Math.round(((y - area.top) / (area.bottom - area.top)) * down);
    for (let x = Math.max(0, column(rectangle.left)); x < Math.min(across, column(rectangle.right)); x += 1) {
      for (let y = Math.max(0, row(rectangle.top)); y < Math.min(down, row(rectangle.bottom)); y += 1) cells.add(y * across + x);
    }
  };

  const walker = document.createTreeWalker(slide, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest(`${hidden}, svg`)) continue;
    examineText(element, node.data);
    const part = element.closest(".part");
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = element.closest("footer") ? outer : part ? part.getBoundingClientRect() : area;
    for (const rectangle of range.getClientRects()) {
      examinePlace(rectangle, box, quote(node.data));
      const leading = 0.1 * rectangle.height;
      if (!element.closest("footer")) {
        cover({ left: rectangle.left, right: rectangle.right, top: rectangle.top - leading, bottom: rectangle.bottom + leading });
      }
    }
  }
  for (const element of slide.querySelectorAll("*")) {
    if (element.closest(`${hidden}, footer, svg`) || element.matches(".body")) continue;
    examinePlace(element.getBoundingClientRect(), area, `<${element.localName}> ${quote(element.innerText ?? "")}`);
  }

  if (widest.what !== null) {
    problem("overflow", `${widest.what} stands ${Math.round(widest.excess)} px outside its area`);
  }

  for (const formula of slide.querySelectorAll("mjx-container")) {
    seen.formulas += 1;
    examineText(formula, "formula");
    const drawn = formula.querySelector("svg")?.getBoundingClientRect();
    if (!drawn || drawn.width < 2 || drawn.height < 2) problem("maths", "a formula is not drawn");
    const fault = formula.querySelector("[data-mml-node=merror]");
    if (fault) problem("maths", `MathJax says: ${fault.getAttribute("data-mjx-error") ?? fault.textContent}`);
  }
  const shown = slide.cloneNode(true);
  shown.querySelectorAll(`${hidden}, pre, code, mjx-container`).forEach((element) => element.remove());
  if (/\$[^$]*\\[a-zA-Z]|\$\$|\\\(|\\\[/.test(shown.textContent)) problem("maths", "a formula's source is on show");

  for (const image of slide.querySelectorAll("img")) {
    seen.figures += 1;
    if (!image.complete || image.naturalWidth === 0) problem("figure", "a figure is not loaded");
    if (!image.alt.trim() || /^no description has been provided for this image/i.test(image.alt.trim())) problem("figure", "a figure has no alt text");
    if (image.parentElement.shadowRoot) continue; // a player stands in its place
    const box = image.getBoundingClientRect();
    const drawn = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
    const [width, height] = [drawn * image.naturalWidth, drawn * image.naturalHeight];
    const large = Math.max(width / limits.figureWidth, height / limits.figureHeight) >= 1;
    if (image.closest("figure") && (!large || Math.min(width, height) < limits.figureSide)) {
      problem("figure", `a figure is squeezed to ${Math.round(width)} x ${Math.round(height)} px`);
    }
    const around = getComputedStyle(image);
    const across = image.clientWidth - parseFloat(around.paddingLeft) - parseFloat(around.paddingRight);
    const down = image.clientHeight - parseFloat(around.paddingTop) - parseFloat(around.paddingBottom);
    const scale = Math.min(across / image.naturalWidth, down / image.naturalHeight);
    if (scale < limits.figureScale) problem("figure", `a figure and its text are drawn at ${Math.round(100 * scale)} % of their size`);
  }

  const solid = "figure, table, pre, .number, .guess, .machine, .course-player, .frame, mjx-container";
  for (const element of slide.querySelectorAll(solid)) cover(element.getBoundingClientRect());
  seen.filled = cells.size / (across * down);
  if (seen.filled < limits.filled && !slide.matches(".title")) problem("empty", `${Math.round(100 * seen.filled)} % of the slide is filled`);
  const evidence = slide.querySelector("figure, table, .part.code, .number, .guess, .course-player, .frame");
  if (slide.querySelector(".output > pre") && !evidence) problem("bare output", "printed lines stand alone; show numbers, a table, a figure");
  for (const code of slide.querySelectorAll(".part.code pre")) {
    const lines = code.innerText.trimEnd().split("\n").length;
    if (lines > limits.lines) problem("code", `${lines} lines of code, at most ${limits.lines}`);
  }
  const drawnTexts = [...slide.querySelectorAll(".frame svg text")].filter((text) => text.getClientRects().length)
    .map((text) => [parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b), text]);
  const [size, text] = drawnTexts.sort(([one], [other]) => one - other)[0] ?? [Infinity];
  if (size < limits.drawn) problem("font size", `${quote(text.textContent)} is drawn at ${size.toFixed(1)} px`);
  const notes = section.querySelector("aside.notes")?.textContent ?? "";
  if (!/^\d+ (seconds|slides)/.test(notes.trim())) problem("notes", "no seconds in the notes");
  seen.title = slide.querySelector("h1, h2").textContent.trim();
  seen.layout = [...slide.classList].at(-1);
  return seen;
}
