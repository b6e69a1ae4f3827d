"""``python -m slides.check [NN ...] [--pictures]``: opens decks in Chromium, offline, and says what
is wrong where.

``lecture`` in place of a number is the lecture; ``--pictures`` leaves each slide as a PNG, light
and dark, in slides/_build/pictures.

Looked at, in light, in dark and as printed: nothing is requested beyond the deck itself, the page
does not complain, no slide overflows, every formula is drawn, every figure is loaded, large enough
and described, every text is large enough and has a contrast of 4.5 or more against what stands
behind it (WCAG 2.2, criterion 1.4.3, AA). A slide is filled and shows no printed lines alone; a
deck opens with its bet, says no title twice, ends with what to take home.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.results import Result
from slides import lecture
from slides.browser import PRINT_QUERY, BrowserError, OpenDeck, open_deck, run_chromium
from slides.build import BUILD, build, display_path, find_lessons
from slides.pdf import print_open_deck
from slides.rules import SlideError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MODES = ("light", "dark", "print")

# Sizes in CSS pixels of a slide of 1280 by 720. A figure's pixel is one of these when it is drawn
# at its own size: its text of 11 points is then 24 pixels high, at the least scale 17.
LIMITS = {
    "contrast": 4.5,
    "text": 28,
    "code": 20,
    "footer": 18,
    "figureWidth": 560,
    "figureHeight": 320,
    "figureSide": 200,
    "figureScale": 0.7,
    "filled": 0.25,
    "lines": 12,
    "drawn": 12.5,
}

_SCRIPT = Path(__file__).with_name("check.js")


@dataclass(frozen=True)
class SlideProblem(Result):
    """One thing that is wrong; ``slide`` counts from 1, and 0 stands for the whole deck."""

    slide: int
    kind: str
    detail: str


@dataclass(frozen=True)
class Examination(Result):
    """The counts and measures of a deck in one mode, and every problem found."""

    deck: str
    mode: str
    slides: int
    formulas: int
    figures: int
    texts: int
    lowest_contrast: float
    smallest_text_px: float
    least_filled: float
    problems: tuple[SlideProblem, ...]


def examine(browser: Browser, deck: Path, *, mode: str = "light") -> Examination:
    """Return the counts, measures and problems of the slides of ``deck``, in one of :data:`MODES`.

    Raises BrowserError when the deck does not start, ValueError for another mode.
    """
    if mode not in MODES:
        raise ValueError(f"a deck is examined in one of the modes {', '.join(MODES)}, not {mode!r}")
    query = PRINT_QUERY if mode == "print" else {}
    with open_deck(browser, deck, dark=mode == "dark", query=query) as opened_deck:
        return look(opened_deck, deck, mode)


def examine_all(
    browser: Browser, deck: Path, pictures: Path | None = None
) -> tuple[list[Examination], bytes]:
    """Return the results of :func:`examine` in each of :data:`MODES`, and the deck as PDF; PNGs go
    to ``pictures``.

    The deck is opened twice: on a screen, where the system's preference changes from light to dark,
    and to be printed. Raises BrowserError when it does not start, or is not laid out as one page a
    slide.
    """
    with open_deck(browser, deck) as on_screen:
        examinations = [look(on_screen, deck, "light", pictures)]
        on_screen.page.emulate_media(color_scheme="dark")
        on_screen.page.wait_for_selector("html[data-theme=dark]", state="attached")
        examinations.append(look(on_screen, deck, "dark", pictures))
    with open_deck(browser, deck, query=PRINT_QUERY) as to_print:
        return [*examinations, look(to_print, deck, "print")], print_open_deck(to_print, deck)


def look(opened_deck: OpenDeck, deck: Path, mode: str, pictures: Path | None = None) -> Examination:
    """Return the counts, measures and problems of a deck that is open in ``mode``.

    Each slide is left as a PNG in the folder ``pictures``, where one is given.
    """
    page = opened_deck.page
    address = page.url.partition("#")[0]
    script = _SCRIPT.read_text(encoding="utf-8")
    slides = []
    for index in range(page.evaluate("Reveal.getTotalSlides()")):
        page.evaluate("index => Reveal.slide(index)", index)
        slides.append(page.evaluate(script, [index, LIMITS]))
        if pictures:
            page.screenshot(path=pictures / f"{deck.stem}_{index + 1:02}_{mode}.png")
    deck_problems = [
        SlideProblem(slide=0, kind="page", detail=complaint)
        for complaint in dict.fromkeys(opened_deck.complaints)
    ]
    outside_urls = [url for url in dict.fromkeys(opened_deck.requested) if url != address]
    deck_problems += [
        SlideProblem(slide=0, kind="request", detail=url[:200]) for url in outside_urls
    ]
    slide_problems = [
        SlideProblem(slide=number, kind=kind, detail=detail)
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
        least_filled=min(slide["filled"] for slide in slides[1:]),
        problems=(*deck_problems, *slide_problems, *_deck_problems(slides)),
    )


def _deck_problems(slides: Sequence[dict[str, Any]]) -> Iterator[SlideProblem]:
    """Yield the problems of the row of slides: its bet, its titles, its end."""
    if slides[1]["layout"] != "question" and slides[1]["title"] != "The bet":
        yield SlideProblem(
            slide=2, kind="opening", detail="the deck does not open with its bet, a question"
        )
    titles = [slide["title"] for slide in slides]
    for number, title in enumerate(titles, start=1):
        if title in titles[: number - 1]:
            yield SlideProblem(
                slide=number,
                kind="title",
                detail=f"{title!r} is said twice; state what this slide shows",
            )
    if slides[-1]["layout"] != "close":
        yield SlideProblem(
            slide=len(slides), kind="close", detail="the deck does not end with what to take home"
        )


def main(arguments: Sequence[str]) -> int:
    """Build and examine the decks on the command line, or all lessons'; return 1 when something is
    wrong.
    """
    parser = argparse.ArgumentParser(
        description="Open decks in Chromium and say what is wrong on which slide."
    )
    parser.add_argument(
        "decks",
        nargs="*",
        metavar="NN",
        help="numbers of lessons, or lecture (default: all lessons)",
    )
    parser.add_argument(
        "--pictures", action="store_true", help="leave each slide as a PNG, light and dark"
    )
    options = parser.parse_args(arguments)
    numbers = [name for name in options.decks if name != lecture.NAME]
    folder = BUILD / "pictures" if options.pictures else None
    try:
        built = [
            build(notebook)
            for notebook in (find_lessons(numbers) if numbers or not options.decks else ())
        ]
        built += [lecture.build() for name in options.decks if name == lecture.NAME]
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            print(f"the pictures are in {display_path(folder)}")
        with run_chromium() as browser:
            examinations = [
                examination
                for deck in built
                for examination in examine_all(browser, BUILD / f"{deck.lesson}.html", folder)[0]
            ]
    except (SlideError, BrowserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for examination in examinations:
        print(examination)
    return int(any(examination.problems for examination in examinations))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
