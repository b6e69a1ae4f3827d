// Starts the figures of plotting.explore that this page has and that do not run yet. A figure lives in a shadow tree of
// its own: it shares no id, style or key with the page. What stands in the page itself, the picture of the start, is shown
// where no script runs and on paper.
(() => {
  const STYLE = EXPLORER_STYLE; // explorer.css
  const SVG = "http://www.w3.org/2000/svg";
  const FUNCTIONS = ["min", "max", "log2", "sqrt", "ceil", "floor", "abs"];
  const NARROW_PX = 560;
  const WIDEST_PX = 830;

  const short = (value) =>
    Math.abs(value) >= 1000
      ? Math.round(value).toLocaleString("en")
      : Number(value.toPrecision(3)).toFixed(10).replace(/\.?0+$/, "");

  const element = (name, attributes, text = "") => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  };

  // Each formula is a function of the inputs and of the formulas above it, in this order.
  const compile = (inputs, formulas) => {
    const names = [...FUNCTIONS, ...inputs.map(({ name }) => name)];
    const bodies = [];
    for (const [name, formula] of Object.entries(formulas)) {
      bodies.push([name, new Function(...names, `"use strict"; return Number(${formula});`)]);
      names.push(name);
    }
    const functions = FUNCTIONS.map((name) => Math[name]);
    return (setting) => {
      const values = {};
      for (const [name, body] of bodies) values[name] = body(...functions, ...Object.values(setting), ...Object.values(values));
      return values;
    };
  };

  const keyOf = (rows) => {
    const key = document.createElement("div");
    key.className = "key";
    for (const { colour, label, value } of rows) {
      const item = document.createElement("span");
      item.innerHTML = `<i></i><span></span> <b></b>`;
      item.children[0].style.background = colour;
      item.children[1].textContent = label;
      item.children[2].textContent = value;
      key.append(item);
    }
    return key;
  };

  const bars = ({ parts, limits, unit, verdict, total: name }, values, width) => {
    const total = parts.reduce((sum, part) => sum + values[part.name], 0);
    const rows = Object.entries(limits);
    const most = Math.max(total, ...rows.map(([, limit]) => limit));
    const left = width < NARROW_PX ? 92 : 120;
    const scale = (value) => left + (value / most) * (width - left - 92);
    const height = 50 + 24 * rows.length;
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    let from = 0;
    for (const { name: part, colour } of parts) {
      const to = from + values[part];
      svg.append(element("rect", { x: scale(from), y: 4, width: scale(to) - scale(from), height: 32, fill: colour }));
      from = to;
    }
    svg.append(
      element("text", { x: left - 8, y: 25, class: "name" }, name),
      element("text", { x: scale(total) + 6, y: 25, class: "sum" }, `${short(total)} ${unit}`),
    );
    rows.forEach(([label, limit], row) => {
      const y = 46 + 24 * row;
      const kind = limit >= total ? "holds" : "fails";
      svg.append(
        element("rect", { x: left, y, width: scale(limit) - left, height: 16, class: kind }),
        element("text", { x: left - 8, y: y + 13, class: "name" }, label),
        element("text", { x: scale(limit) + 6, y: y + 13 }, `${short(limit)} ${unit}`),
      );
    });
    svg.append(element("line", { x1: scale(total), x2: scale(total), y1: 4, y2: height - 6, class: "edge" }));
    const key = parts.map((part) => ({ ...part, value: `${short(values[part.name])} ${unit}` }));
    const holding = rows.filter(([, limit]) => limit >= total).map(([label]) => label);
    const end = rows.length ? ` It ${verdict} ${holding.length ? holding.join(", ") : "none of these"}.` : "";
    return { svg, key, sentence: `${short(total)} ${unit} ${name}.${end}` };
  };

  const ticks = (low, high, isLog) => {
    const found = [];
    if (isLog) {
      const first = Math.ceil(Math.log10(low) - 1e-9);
      const last = Math.floor(Math.log10(high) + 1e-9);
      const every = Math.max(1, Math.ceil((last - first + 1) / 7));
      for (let power = first; power <= last; power += every) found.push(10 ** power);
      if (found.length < 2) for (let power = Math.ceil(Math.log2(low)); 2 ** power <= high; power += 1) found.push(2 ** power);
      return [...new Set(found)];
    }
    const raw = (high - low) / 5;
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= raw);
    for (let tick = Math.ceil(low / step) * step; tick <= high + step / 1e6; tick += step) found.push(tick);
    return found;
  };

  const axis = (low, high, from, to, isLog) => {
    const place = isLog ? Math.log10 : (value) => value;
    const [first, last] = [place(low), place(high)];
    return (value) => from + ((place(value) - first) / (last - first || 1)) * (to - from);
  };

  const curves = ({ along, lines, xlabel, ylabel, log_x, log_y }, points, place, width) => {
    const height = width < NARROW_PX ? 260 : 330;
    const [left, right, top, bottom] = [64, width - 14, 12, height - 44];
    const xs = points.map(({ at }) => at);
    const all = lines.flatMap(({ name }) => points.map(({ values }) => values[name])).filter((y) => !log_y || y > 0);
    let [low, high] = [Math.min(...all), Math.max(...all)];
    if (log_y) [low, high] = [low / 1.2, high * 1.2];
    else [low, high] = [Math.min(0, low), high + 0.06 * (high - low) || 1];
    const x = axis(xs[0], xs.at(-1), left, right, log_x);
    const y = axis(low, high, bottom, top, log_y);
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    for (const tick of ticks(low, high, log_y))
      svg.append(
        element("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "grid" }),
        element("text", { x: left - 6, y: y(tick) + 4, class: "name" }, short(tick)),
      );
    for (const tick of ticks(xs[0], xs.at(-1), log_x))
      svg.append(
        element("line", { x1: x(tick), x2: x(tick), y1: top, y2: bottom, class: "grid" }),
        element("text", { x: x(tick), y: bottom + 16, class: "middle" }, short(tick)),
      );
    svg.append(
      element("path", { d: `M${left},${top}V${bottom}H${right}`, class: "axis" }),
      element("text", { x: (left + right) / 2, y: height - 8, class: "middle" }, xlabel),
      element("text", { x: 12, y: (top + bottom) / 2, class: "middle", transform: `rotate(-90 12 ${(top + bottom) / 2})` }, ylabel),
    );
    const now = points[place];
    svg.append(element("line", { x1: x(now.at), x2: x(now.at), y1: top, y2: bottom, class: "edge" }));
    for (const { name, colour } of lines) {
      const drawn = points.filter(({ values }) => !log_y || values[name] > 0);
      const path = drawn.map(({ at, values }, index) => `${index ? "L" : "M"}${x(at).toFixed(2)},${y(values[name]).toFixed(2)}`);
      svg.append(element("path", { d: path.join(""), class: "line", stroke: colour }));
      if (!log_y || now.values[name] > 0)
        svg.append(element("circle", { cx: x(now.at), cy: y(now.values[name]), r: 5, fill: colour }));
    }
    const key = lines.map((line) => ({ ...line, value: short(now.values[line.name]) }));
    const said = lines.map(({ name, label }) => `${label} ${short(now.values[name])}`).join(", ");
    return { svg, key, sentence: `${xlabel} ${short(now.at)}: ${said} (${ylabel}).`, x };
  };

  const start = (host) => {
    const figure = JSON.parse(host.querySelector("script").textContent);
    const { title, alt, inputs, formulas, kind, along } = figure;
    const root = host.attachShadow({ mode: "open" });
    host.dataset.lmSuppressShortcuts = ""; // JupyterLab leaves the keys to the figure while it has the focus
    host.dataset.preventSwipe = ""; // and reveal.js its touches
    root.innerHTML = `<style>${STYLE}</style><slot></slot><div class="explorer" role="group"><p class="title"></p>
      <div class="inputs"></div><div class="stage" role="img"></div><p class="sentence" aria-live="polite"></p></div>`;
    const [box, heading, form, stage, sentence] = [".explorer", ".title", ".inputs", ".stage", ".sentence"].map((name) =>
      root.querySelector(name),
    );
    heading.textContent = title;
    box.setAttribute("aria-label", title);
    stage.setAttribute("aria-label", alt);
    box.addEventListener("keydown", (event) => event.stopPropagation());

    const evaluate = compile(inputs, formulas);
    const controls = {};
    for (const { name, label, options, values, place } of inputs) {
      const row = document.createElement("label");
      row.innerHTML = options
        ? "<span></span><select></select>"
        : `<span></span><input type="range" min="0" step="1"><output></output>`;
      row.children[0].textContent = label;
      const control = row.children[1];
      if (options) for (const text of Object.keys(options)) control.add(new Option(text));
      else control.max = values.length - 1;
      if (options) control.selectedIndex = place;
      else control.value = place;
      control.addEventListener("input", () => draw());
      controls[name] = control;
      form.append(row);
    }
    const place = (name) => (controls[name].localName === "select" ? controls[name].selectedIndex : Number(controls[name].value));
    const value = ({ name, options, values }) => (options ? Object.values(options)[place(name)] : values[place(name)]);

    const draw = () => {
      const setting = Object.fromEntries(inputs.map((input) => [input.name, value(input)]));
      for (const input of inputs.filter(({ values }) => values)) {
        const text = short(setting[input.name]);
        controls[input.name].nextElementSibling.textContent = text;
        controls[input.name].setAttribute("aria-valuetext", text);
      }
      const width = Math.max(300, Math.min(WIDEST_PX, box.clientWidth - 28));
      let made;
      if (kind === "bars") made = bars(figure, evaluate(setting), width);
      else {
        const slider = inputs.find(({ name }) => name === along);
        const points = slider.values.map((at) => ({ at, values: evaluate({ ...setting, [along]: at }) }));
        made = curves(figure, points, place(along), width);
        const nearest = (event) => {
          if (event.type === "pointermove" && !event.buttons) return;
          const at = event.clientX - made.svg.getBoundingClientRect().left;
          const distances = slider.values.map((each) => Math.abs(made.x(each) - at));
          controls[along].value = distances.indexOf(Math.min(...distances));
          draw();
        };
        stage.onpointerdown = nearest;
        stage.onpointermove = nearest;
      }
      stage.replaceChildren(made.svg, keyOf(made.key));
      sentence.textContent = made.sentence;
    };
    let width = -1;
    new ResizeObserver(() => {
      if (host.clientWidth !== width) requestAnimationFrame(draw);
      width = host.clientWidth;
    }).observe(host);
    draw();
  };

  for (const host of document.querySelectorAll(".course-explorer")) if (!host.shadowRoot) start(host);
})();
