// Starts the players of plotting.play that this page has and that do not run yet. A player lives in a shadow tree of its
// own: it shares no id, style or key with the page or another player. What stands in the page itself, the picture of
// three frames, is shown where no script runs and on paper.
(() => {
  const STYLE = PLAYER_STYLE; // player.css
  const PERIOD_MS = 1500;
  const FADE_MS = 200;
  const icon = (path) => `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${path}"/></svg>`;
  const ICONS = {
    play: icon("M3 1.5v13l11-6.5z"),
    pause: icon("M3 2h3.5v12H3zM9.5 2H13v12H9.5z"),
    back: icon("M12 2v12L4.5 8zM2 2h2v12H2z"),
    forward: icon("M4 2v12l7.5-6zM12 2h2v12h-2z"),
  };

  const start = (host) => {
    const { title, alt, frames, captions } = JSON.parse(host.querySelector("script").textContent);
    const calm = matchMedia("(prefers-reduced-motion: reduce)");
    const root = host.attachShadow({ mode: "open" });
    host.dataset.lmSuppressShortcuts = ""; // JupyterLab leaves the keys to the player while it has the focus
    host.dataset.preventSwipe = ""; // and reveal.js its touches
    root.innerHTML = `<style>${STYLE}</style><slot></slot>
      <div class="player" role="group" tabindex="0">
        <p class="title"></p><div class="stage" role="img"></div>
        <div class="controls">
          <button class="play" type="button"></button>
          <button class="back" type="button" aria-label="One step back">${ICONS.back}</button>
          <button class="forward" type="button" aria-label="One step forward">${ICONS.forward}</button>
          <input type="range" min="1" step="1" aria-label="Step"><span class="count"></span>
        </div>
        <p class="caption" aria-live="polite"></p>
      </div>`;
    const [player, heading, stage, play, back, forward, slider, count, caption] = [
      ".player", ".title", ".stage", ".play", ".back", ".forward", "input", ".count", ".caption",
    ].map((name) => root.querySelector(name));
    player.style.setProperty("--natural", `${host.dataset.width}px`);
    player.setAttribute("aria-label", title);
    heading.textContent = title;
    stage.setAttribute("aria-label", alt);
    slider.max = frames.length;

    const last = frames.length - 1;
    let place = 0;
    let timer = null;

    const label = () => {
      play.innerHTML = timer === null ? ICONS.play : ICONS.pause;
      play.setAttribute("aria-label", timer === null ? "Play" : "Pause");
    };
    const pause = () => {
      clearTimeout(timer);
      timer = null;
      label();
    };
    const draw = () => {
      const before = [...stage.children];
      stage.insertAdjacentHTML("beforeend", frames[place]);
      const clear = () => before.forEach((frame) => frame.remove());
      if (before.length === 0 || calm.matches) clear();
      else stage.lastElementChild.animate({ opacity: [0, 1] }, FADE_MS).finished.then(clear, clear);
      slider.value = place + 1;
      slider.setAttribute("aria-valuetext", `step ${place + 1} of ${frames.length}`);
      count.textContent = `${place + 1} / ${frames.length}`;
      caption.textContent = captions[place] ?? "";
      back.disabled = place === 0;
      forward.disabled = place === last;
    };
    const go = (to) => {
      const next = Math.min(last, Math.max(0, to));
      if (next === place) return;
      place = next;
      draw();
    };
    const step = (by) => {
      pause();
      go(place + by);
    };
    const tick = () => {
      go(place + 1);
      if (place === last || !host.isConnected) pause();
      else timer = setTimeout(tick, PERIOD_MS);
    };
    const toggle = () => {
      if (timer !== null) return pause();
      if (place === last) go(0);
      timer = setTimeout(tick, PERIOD_MS);
      return label();
    };
    const keys = {
      ArrowRight: () => step(1),
      ArrowLeft: () => step(-1),
      Home: () => step(-last),
      End: () => step(last),
      " ": () => (calm.matches ? step(1) : toggle()),
    };

    play.hidden = calm.matches;
    play.addEventListener("click", toggle);
    back.addEventListener("click", () => step(-1));
    forward.addEventListener("click", () => step(1));
    slider.addEventListener("input", () => step(slider.value - 1 - place));
    player.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      const native = event.target.localName === "button" ? [" ", "Enter"]
        : event.target === slider ? ["ArrowUp", "ArrowDown", "PageUp", "PageDown"] : [];
      if (native.includes(event.key)) event.stopPropagation(); // the button or the slider does what it does anywhere
      else if (event.key in keys) {
        event.preventDefault();
        event.stopPropagation();
        keys[event.key]();
      }
    });
    label();
    draw();
  };

  for (const host of document.querySelectorAll(".course-player")) if (!host.shadowRoot) start(host);
})();
