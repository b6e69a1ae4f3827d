"""``python -m slides.pdf [NN ...]``: builds a lesson's deck and prints it with Chromium, one page a
slide.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from helpers import storage
from slides.browser import PRINT_QUERY, BrowserError, OpenDeck, open_deck, run_chromium
from slides.build import BUILD, build, display_path, find_lessons, parse_lessons
from slides.rules import SlideError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# A slide and, in the place of a page of their own that reveal.js gives them, its notes.
_HANDOUT = """
@page { size: 1280px 1810px; margin: 0; }
html.print-pdf .reveal .slides .pdf-page { page-break-after: avoid !important; break-after: avoid !important; }
"""  # noqa: E501


def print_deck(browser: Browser, deck: Path, *, notes: bool = False) -> bytes:
    """Return the PDF of ``deck``, in light colours: a page of 1280 by 720 CSS pixels per slide.

    With ``notes`` a page has the shape of A4, and the notes stand below the slide.

    Raises BrowserError when the deck does not start, or is not laid out as one page a slide.
    """
    # what reveal.js is asked in the address
    query = {"showNotes": "separate-page"} if notes else {}
    with open_deck(browser, deck, query=PRINT_QUERY | query) as opened_deck:
        if notes:
            opened_deck.page.add_style_tag(content=_HANDOUT)
        return print_open_deck(opened_deck, deck)


def print_open_deck(opened_deck: OpenDeck, deck: Path) -> bytes:
    """Return the PDF of a deck that is open to be printed; see :func:`print_deck`."""
    page = opened_deck.page
    pages, slides = (
        page.locator(".pdf-page:not(:has(> .speaker-notes-pdf))").count(),
        page.evaluate("Reveal.getTotalSlides()"),
    )
    if pages != slides:
        raise BrowserError(
            f"{deck.name}: {slides} slides became {pages} pages; run `python -m slides.check`"
        )
    return page.pdf(prefer_css_page_size=True, print_background=True, tagged=True)


def main(arguments: Sequence[str]) -> int:
    """Print the decks of the lessons on the command line, or of all, beside the HTML; return 1 when
    one cannot be.
    """
    numbers = parse_lessons(
        arguments, "Print each lesson's deck as PDF, one page a slide, into slides/_build."
    )
    try:
        lessons = [build(notebook).lesson for notebook in find_lessons(numbers)]
        with run_chromium() as browser:
            for lesson in lessons:
                storage.write_atomically(
                    BUILD / f"{lesson}.pdf", print_deck(browser, BUILD / f"{lesson}.html")
                )
                print(display_path(BUILD / f"{lesson}.pdf"))
    except (SlideError, BrowserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
