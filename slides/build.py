"""``python -m slides.build [NN ...]``: one offline HTML file a lesson, from the cells it marks,
into slides/_build/.

A deck holds all that it needs (reveal.js, MathJax, figures) and forbids the browser, by its content
security policy, to load anything else. The same notebook gives the same bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter
from nbformat import NotebookNode
from traitlets.config import Config

from helpers import storage, units
from helpers.results import Result
from slides.assets import ASSETS, asset
from slides.cells import read_deck
from slides.deck import Deck, Slide
from slides.rules import SHOWN, SlideError

SLIDES = Path(__file__).resolve().parent
COURSE = SLIDES.parent / "course"
BUILD = SLIDES / "_build"

# Everything is inline or data; frames are the speaker window's two views of this same file.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "frame-src 'self' file:; base-uri 'none'; form-action 'none'"
)

# The machine from outside to inside, each place in the one before: on an act's slide, and on the
# foot of the lecture's.
PLACES = ("data centre", "machine", "accelerator", "memory on the chip", "arithmetic unit")

# The theme has its own colours for code, and the template opens and closes each slide by itself.
_EXPORTER = {
    "NbConvertBase": {"display_data_priority": list(SHOWN)},
    "CSSHTMLHeaderPreprocessor": {"enabled": False},
    "_RevealMetadataPreprocessor": {"enabled": False},
}


@dataclass(frozen=True)
class BuiltDeck(Result):
    """A deck on disk: ``slides`` counts the title slide."""

    lesson: str
    slides: int
    minutes: float
    file_bytes: int


@dataclass(frozen=True)
class DeckFrame(Result):
    """The texts around the slides of a deck.

    ``page`` is the browser's title, ``eyebrow`` and ``lead`` stand above the title slide's heading
    and list, ``notes`` are for the speaker before it begins, and ``footers`` has a line for each
    slide, the title slide's first. ``sizes`` are numbers for the places of the machine, in that
    order, on an act's slide.
    """

    page: str
    eyebrow: str
    lead: str
    footers: tuple[str, ...]
    notes: str = ""
    sizes: tuple[str, ...] = ("",) * len(PLACES)


def find_lessons(numbers: Sequence[str] = (), *, course: Path = COURSE) -> list[Path]:
    """Return the notebooks of the lessons ``numbers`` ('7' and '07' are the same), or of all
    lessons, in order.

    Raises SlideError when a number has no notebook, and when there is none at all.
    """
    notebooks = sorted(path for path in course.glob("*.ipynb") if re.match(r"\d\d_", path.name))
    available = ", ".join(path.name[:2] for path in notebooks) or "none"
    unknown = [
        number for number in numbers if f"{number:0>2}" not in {path.name[:2] for path in notebooks}
    ]
    if unknown or not notebooks:
        raise SlideError(
            f"no notebook of lesson {', '.join(unknown) or 'NN'} in course/ (there: {available})"
        )
    prefixes = {f"{number:0>2}" for number in numbers}
    return [path for path in notebooks if not prefixes or path.name[:2] in prefixes]


def render(notebook: NotebookNode, *, name: str, folder: Path = COURSE) -> str:
    """Return the HTML of the deck that ``notebook``'s marked cells make; nothing is written.

    ``name`` is the lesson's name in messages, ``folder`` where its pictures in markdown are. Raises
    SlideError for a cell that cannot be a slide and AssetError when reveal.js or MathJax is not
    installed.
    """
    deck = read_deck(notebook, name=name, folder=folder)
    return render_deck(deck, notebook, frame=_lesson_frame(deck))


def render_deck(deck: Deck, notebook: NotebookNode, *, frame: DeckFrame) -> str:
    """Return the HTML of ``deck``, whose parts are cells of ``notebook``; nothing is written.

    Raises AssetError when reveal.js or MathJax is not installed.
    """
    exporter = SlidesExporter(
        template_name="template", extra_template_basedirs=[str(SLIDES)], config=Config(_EXPORTER)
    )
    html, _ = exporter.from_notebook_node(
        _deck_notebook(notebook, deck, frame), resources={"deck": _resources(deck, frame)}
    )
    return html


def build(notebook: Path, *, folder: Path = BUILD) -> BuiltDeck:
    """Write the deck of ``notebook`` to ``folder`` under its own name with .html, whole or not at
    all.
    """
    content = read_notebook(notebook)
    html = render(content, name=notebook.stem, folder=notebook.parent).encode()
    folder.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(folder / f"{notebook.stem}.html", html)
    deck = read_deck(content, name=notebook.stem, folder=notebook.parent)
    return BuiltDeck(
        lesson=notebook.stem,
        slides=len(deck.slides) + 1,
        minutes=deck.minutes,
        file_bytes=len(html),
    )


def read_notebook(notebook: Path) -> NotebookNode:
    """Return the notebook; raises SlideError where the file is none."""
    try:
        return nbformat.read(notebook, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0][:100]
        raise SlideError(
            f"{notebook.name} is not a notebook ({reason}); build it again: `make lessons`"
        ) from error


def display_path(path: Path) -> str:
    """Return ``path`` as a command prints it: from the repository's root where it lies there, else
    whole.
    """
    return (
        path.relative_to(SLIDES.parent).as_posix()
        if path.is_relative_to(SLIDES.parent)
        else str(path)
    )


def _lesson_frame(deck: Deck) -> DeckFrame:
    return DeckFrame(
        page=f"{deck.number} {deck.title}",
        eyebrow=f"Lesson {deck.number} · {deck.facts}",
        lead="You will be able to",
        footers=(f"Lesson {deck.number} · {deck.title}",) * (len(deck.slides) + 1),
    )


def _resources(deck: Deck, frame: DeckFrame) -> dict[str, object]:
    return {
        "page": frame.page,
        "eyebrow": frame.eyebrow,
        "lead": frame.lead,
        "places": PLACES,
        "sizes": frame.sizes,
        "exercise": deck.exercise,
        "footer": frame.footers[0],
        "title": deck.title,
        "objectives": deck.objectives,
        "count": len(deck.slides) + 1,
        "notes": (
            f"<p>{len(deck.slides) + 1} slides, {clock(deck.minutes)} to talk.</p>{frame.notes}"
        ),
        "policy": _POLICY,
        "assets": {name: asset(name) for name in ASSETS},
    }


def _deck_notebook(notebook: NotebookNode, deck: Deck, frame: DeckFrame) -> NotebookNode:
    """Return a notebook of the cells on slides alone, each with what the template needs in
    ``metadata.deck``.
    """
    cells = []
    minutes_so_far = 0.0
    for number, slide in enumerate(deck.slides, start=2):
        minutes_so_far += slide.minutes
        for part in slide.parts:
            cell = notebook.cells[part.cell_index].copy()
            template_data = {
                "opens": part is slide.parts[0],
                "closes": part is slide.parts[-1],
                "number": number,
                "heading": slide.heading,
                "footer": frame.footers[number - 1],
                "source": slide.source,
                "layout": slide.layout,
                "notes": _notes(slide, minutes_so_far, deck),
                "here": list(slide.here),
                "text": part.text,
                "axis": part.axis,
                "code": part.code,
            }
            cell.metadata = nbformat.from_dict({**cell.metadata, "deck": template_data})
            if cell.cell_type == "code":
                cell.outputs = list(part.outputs)
            cells.append(cell)
    metadata = {key: value for key, value in notebook.metadata.items() if key != "widgets"}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def _notes(slide: Slide, minutes_so_far: float, deck: Deck) -> str:
    return (
        f"<p>{round(60 * slide.minutes)} seconds; {clock(minutes_so_far)} of "
        f"{clock(deck.minutes)} at its end.</p>{slide.notes}"
    )


def clock(minutes: float) -> str:
    """Return minutes as 12:30."""
    return f"{round(60 * minutes) // 60}:{round(60 * minutes) % 60:02}"


def parse_lessons(arguments: Sequence[str], description: str) -> list[str]:
    """Return the lesson numbers on a command line that takes nothing else; ends the program for
    ``--help``.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "lessons", nargs="*", metavar="NN", help="numbers of lessons, such as 00 (default: all)"
    )
    return parser.parse_args(arguments).lessons


def main(arguments: Sequence[str], *, course: Path = COURSE, folder: Path = BUILD) -> int:
    """Build the decks of the lessons on the command line, or of all; return 1 when one could not be
    built.
    """
    failures = 0
    numbers = parse_lessons(arguments, "Cut one offline deck a lesson into slides/_build.")
    try:
        notebooks = find_lessons(numbers, course=course)
    except SlideError as error:
        print(error, file=sys.stderr)
        return 1
    for notebook in notebooks:
        try:
            built = build(notebook, folder=folder)
        except (SlideError, OSError) as error:
            failures += 1
            print(error, file=sys.stderr)
        else:
            size = units.text(built.file_bytes, "B")
            print(
                f"{display_path(folder / built.lesson)}.html: {built.slides} slides, "
                f"{built.minutes:g} minutes, {size}"
            )
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
