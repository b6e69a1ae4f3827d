"""``python -m slides.check [NN ...]``: opens a built deck in Chromium, offline, and says what is wrong on which slide.

Looked at, in light, in dark and as printed: nothing is requested beyond the deck itself, the page does not
complain, no slide overflows, every formula is drawn, every figure is loaded, large enough and described, every text
is large enough and has a contrast of 4.5 or more against what stands behind it (WCAG 2.2, criterion 1.4.3, AA).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.results import Result
from slides.browser import PRINT_QUERY, BrowserError, OpenDeck, opened, running
from slides.build import BUILD, build, find_lessons, lessons_asked_for
from slides.cells import SlideError
from slides.pdf import printed

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MODES = ("light", "dark", "print")

# Sizes in CSS pixels of a slide of 1280 by 720. A figure's pixel is one of these when it is drawn at its own size: its
# text of 11 points is then 24 pixels high, at the least scale 17.
LIMITS = {
    "contrast": 4.5, "text": 28, "code": 20, "footer": 16, "figureWidth": 560, "figureHeight": 320, "figureSide": 200,
    "figureScale": 0.7,
}  # fmt: skip

_SCRIPT = Path(__file__).with_name("check.js")


@dataclass(frozen=True)
class Problem(Result):
    """One thing that is wrong; ``slide`` counts from 1, and 0 stands for the whole deck."""

    slide: int
    kind: str
    detail: str


@dataclass(frozen=True)
class Examination(Result):
    """What was looked at on a deck in one mode, and every problem found."""

    deck: str
    mode: str
    slides: int
    formulas: int
    figures: int
    texts: int
    lowest_contrast: float
    smallest_text_px: float
    problems: tuple[Problem, ...]


def examine(browser: Browser, deck: Path, *, mode: str = "light") -> Examination:
    """Return what stands on the slides of ``deck`` and what is wrong with them, in one of :data:`MODES`.

    Raises BrowserError when the deck does not start, ValueError for another mode.
    """
    if mode not in MODES:
        raise ValueError(f"a deck is examined in one of the modes {', '.join(MODES)}, not {mode!r}")
    query = PRINT_QUERY if mode == "print" else {}
    with opened(browser, deck, dark=mode == "dark", **query) as opened_deck:
        return look(opened_deck, deck, mode)


def examine_all(browser: Browser, deck: Path) -> tuple[list[Examination], bytes]:
    """Return what :func:`examine` does in each of :data:`MODES`, and the deck as PDF.

    The deck is opened twice: on a screen, where the system's preference changes from light to dark, and to be printed.
    Raises BrowserError when it does not start, or is not laid out as one page a slide.
    """
    with opened(browser, deck) as on_screen:
        found = [look(on_screen, deck, "light")]
        on_screen.page.emulate_media(color_scheme="dark")
        on_screen.page.wait_for_selector("html[data-theme=dark]", state="attached")
        found.append(look(on_screen, deck, "dark"))
    with opened(browser, deck, **PRINT_QUERY) as to_print:
        return [*found, look(to_print, deck, "print")], printed(to_print, deck)


def look(opened_deck: OpenDeck, deck: Path, mode: str) -> Examination:
    """Return what stands on the slides of a deck that is open in ``mode``, and what is wrong with them."""
    page = opened_deck.page
    address = page.url.partition("#")[0]
    script = _SCRIPT.read_text(encoding="utf-8")
    slides = []
    for index in range(page.evaluate("Reveal.getTotalSlides()")):
        page.evaluate("index => Reveal.slide(index)", index)
        slides.append(page.evaluate(script, [index, LIMITS]))
    whole = [Problem(slide=0, kind="page", detail=complaint) for complaint in dict.fromkeys(opened_deck.complaints)]
    beyond = [url for url in dict.fromkeys(opened_deck.requested) if url != address]
    whole += [Problem(slide=0, kind="request", detail=url[:200]) for url in beyond]
    on_slides = [
        Problem(slide=number, kind=kind, detail=detail)
        for number, slide in enumerate(slides, start=1)
        for kind, detail in slide["problems"]
    ]
    return Examination(
        deck=deck.name,
        mode=mode,
        slides=len(slides),
        formulas=sum(slide["formulas"] for slide in slides),
        figures=sum(slide["figures"] for slide in slides),
        texts=sum(slide["texts"] for slide in slides),
        lowest_contrast=min(slide["lowest"] for slide in slides),
        smallest_text_px=min(slide["smallest"] for slide in slides),
        problems=(*whole, *on_slides),
    )


def main(arguments: Sequence[str]) -> int:
    """Build and examine the decks of the lessons on the command line, or of all; return 1 when something is wrong."""
    numbers = lessons_asked_for(arguments, "Open each lesson's deck in Chromium and say what is wrong on which slide.")
    try:
        decks = [BUILD / f"{build(notebook).lesson}.html" for notebook in find_lessons(numbers)]
        with running() as browser:
            examinations = [examination for deck in decks for examination in examine_all(browser, deck)[0]]
    except (SlideError, BrowserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for examination in examinations:
        print(examination)
    return int(any(examination.problems for examination in examinations))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
