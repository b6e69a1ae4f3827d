// How a reader's number with its unit is read and written, in the decks and on the site.
window.courseNumbers = (function () {
  "use strict";
  const PREFIXES = { n: 1e-9, u: 1e-6, "µ": 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30 };
  const NO_PREFIX = ["", "x", "×", "times"];
  const BASE = /^(s|B|B\/s|FLOP|FLOP\/s|MAC\/s|Hz)$/; // units that take a prefix

  // NaN where the text is no number, or where a word follows that is neither the unit nor a prefix of it.
  const numberOf = (text, unit) => {
    const [, digits, rest] = text.trim().match(/^([\d.]+(?:e[+-]?\d+)?)\s*(.*)$/i) ?? [];
    const prefix = rest?.replace(unit, "").trim();
    return Number(digits) * (NO_PREFIX.includes(prefix) ? 1 : PREFIXES[prefix] ?? NaN);
  };
  const textOf = (value, unit) => {
    if (unit === "x" || unit === "%") return `${value.toLocaleString("en")} ${unit === "x" ? "×" : unit}`;
    if (!BASE.test(unit)) return value.toLocaleString("en", { maximumFractionDigits: 6 });
    const [name, factor] = Object.entries(PREFIXES).filter(([name]) => "nµmkMGTP".includes(name))
      .concat([["", 1]]).sort((a, b) => b[1] - a[1]).find(([, factor]) => value >= factor * 0.999) ?? ["n", 1e-9];
    return `${Number((value / factor).toPrecision(3))} ${name}${unit}`;
  };
  // With the unit, as the notebooks write it.
  const quantityOf = (value, unit) => {
    if (BASE.test(unit)) return textOf(value, unit);
    return `${value.toLocaleString("en", { maximumFractionDigits: 6 })}${["x", "%", ""].includes(unit) ? "" : " "}${unit}`;
  };
  return { numberOf, textOf, quantityOf };
})();
