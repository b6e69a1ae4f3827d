// The slides are laid out after the maths is set, so that a printed page has its final size.
// The root element's data-ready tells a test or the PDF export that the deck is complete.
(function () {
  "use strict";
  const startDeck = () => window.Reveal.initialize({
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
    plugins: [window.RevealNotes],
  });
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
          document.documentElement.dataset.ready = "yes";
        }),
    },
  };
})();
