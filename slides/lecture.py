"""``python -m slides.lecture``: the lecture "Hardware ecosystem", 45 minutes, as one HTML file, PDF
and handout.

``lecture.toml`` has its slides in order: each a statement, the cell of a lesson that shows it, what
to say. Its topics are those of the lecture that the course grew from ("Hardware Ecosystem",
Cambridge, 2022). Its short slides make a lecture of 25 minutes. Some of the minutes are left for
what the room asks, and the notes say which slides a lecturer who is late leaves out.
"""

from __future__ import annotations

import html
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook

from helpers import hardware, storage, units
from slides import evidence
from slides.browser import BrowserError, run_chromium
from slides.build import (
    BUILD,
    COURSE,
    BuiltDeck,
    DeckFrame,
    display_path,
    find_lessons,
    read_notebook,
    render_deck,
)
from slides.cells import read_slides
from slides.deck import Deck
from slides.pdf import print_deck
from slides.rules import KEYS, SlideError

TITLE = "Hardware ecosystem"
MINUTES, SHORT_MINUTES = 45, 25
FILLED = 0.9, 0.96  # the least and the most of the minutes that the slides take
NAME, SHORT_NAME, HANDOUT = "lecture", "lecture_25_minutes", "lecture_handout"

_BEFORE = (
    "<p>F is full screen, T switches light and dark, S opened this window. Where a slide has an "
    "axis, press R (or click into the line below it), type the numbers that you hear (10, 300, "
    "2k), and press Enter or your remote: the slide turns, and the guesses stand on the answer's "
    "axis, too. G and a number go to the slide of that number. The acts may be held apart; ask "
    "before you tell, and let a neighbour's guess be defended.</p><p>Say first: Welcome. Training "
    "a large network takes a data centre, and we ask why. You will guess first, and then see what "
    "was computed or measured, so keep a pen ready. At the end you vote on what to build.</p>"
)
_PLAN = Path(__file__).with_name("lecture.toml")
_APPENDIX = "appendix "
_SHOWN = {"output": "slide-output", "code": "slide-code", "both": "slide-more"}
_FIELDS = {
    "title",
    "topics",
    "short",
    "seconds",
    "cells",
    "text",
    "ask",
    "answer",
    "first",
    "live",
    "late",
    "if_asked",
    *KEYS,
} - {"headline"}

Slide = Mapping[str, Any]


def plan(path: Path = _PLAN, *, short: bool = False) -> list[Slide]:
    """Return the lecture's slides as ``lecture.toml`` states them, or the ``short`` ones alone."""
    slides = tomllib.loads(path.read_text(encoding="utf-8"))["slide"]
    for slide in slides:
        unknown = sorted(set(slide) - _FIELDS)
        if unknown:
            raise SlideError(f"{path.name}, {slide['title']!r}: unknown {', '.join(unknown)}")
    return [slide for slide in slides if slide.get("short") or not short]


def _late_notes(slides: Sequence[Slide]) -> list[str]:
    """Return each slide's note to a lecturer who is late: how far to skip, and the time saved."""
    notes = []
    for index, slide in enumerate(slides):
        stays = next(
            (later for later in range(index, len(slides)) if not slides[later].get("late")), None
        )
        if slide.get("late") and stays is None:
            raise SlideError(
                f"{_PLAN.name}, {slide['title']!r}: late, and no slide after it stays; take its "
                "late away"
            )
        saved = sum(skipped["seconds"] for skipped in slides[index:stays])
        number = (stays or 0) + 2  # the title slide is the first
        notes.append(f"Late? Skip to slide {number}; it saves {saved} seconds." if saved else "")
    return notes


def assemble(
    slides: Sequence[Slide], *, minutes: float, course: Path = COURSE
) -> tuple[Deck, NotebookNode, DeckFrame]:
    """Return the deck of ``slides``, a notebook of the cells on it, and what stands around them.

    ``course`` holds the lessons' notebooks and, in its folder appendix, those of appendices. Raises
    SlideError for a cell that its lesson does not have once, and where the slides take more or less
    of the ``minutes`` than :data:`FILLED`.
    """
    seconds = sum(slide["seconds"] for slide in slides)
    least, most = (round(60 * minutes * share) for share in FILLED)
    if not least <= seconds <= most:
        raise SlideError(
            f"the lecture takes {seconds} seconds, not {least} to {most}; mend slides/lecture.toml"
        )
    numbers = sorted({number for slide in slides for number, *_ in slide.get("cells", ())})
    lessons = {number: _read_lesson(number, course) for number in numbers}
    late_notes = _late_notes(slides)
    cells = [
        cell
        for slide, late_note in zip(slides, late_notes, strict=True)
        for cell in _slide_cells(slide, lessons, late=late_note)
    ]
    acts = [slide["title"] for slide in slides if slide.get("layout") == "act"]
    deck = Deck(
        number="",
        title=TITLE,
        facts=f"{minutes:g} minutes",
        objectives=tuple(html.escape(act.partition(". ")[2]) for act in acts),
        slides=read_slides(cells, title=TITLE, name=_PLAN.name, folder=course),
    )
    footers = [
        ", ".join(dict.fromkeys(number for number, *_ in slide.get("cells", ())))
        for slide in slides
    ]
    frame = DeckFrame(
        page=TITLE,
        eyebrow=f"Lecture · {deck.facts}",
        lead="Why does training take a data centre, and what would you build?",
        notes=_BEFORE,
        footers=(TITLE, *(_footer(numbers) if numbers else TITLE for numbers in footers)),
        sizes=("", "", *_sizes("H100 SXM 80 GB")),
    )
    first_metadata = next(iter(lessons.values())).metadata
    metadata = {
        key: first_metadata[key] for key in ("kernelspec", "language_info") if key in first_metadata
    }
    return deck, new_notebook(cells=cells, metadata=metadata), frame


def _sizes(name: str) -> tuple[str, str, str]:
    """Return the published sizes of an accelerator: its memory, that on its chip, its rate."""
    card = hardware.device(name)
    on_chip = [
        size for size in (card.register_bytes, card.l1_bytes, card.l2_bytes) if size is not None
    ]
    assert len(on_chip) == 3  # the file of devices has them
    on_chip_bytes = sum(on_chip)
    (rate,) = [
        peak.dense_flops_per_s
        for peak in card.peaks
        if (peak.dtype, peak.unit) == ("float16", "matrix")
    ]
    memory = units.text(card.memory_bytes, "B", binary=True)
    bandwidth = units.text(card.memory_bandwidth_bytes_per_s, "B/s")
    return (
        f"H100, published: {memory} at {bandwidth}",
        units.text(on_chip_bytes, "B"),
        units.text(rate, "FLOP/s"),
    )


def _footer(numbers: str) -> str:
    """Return where the cells of a slide are from: "Lesson 01, 02", or "Appendix 01"."""
    return numbers.capitalize() if numbers.startswith(_APPENDIX) else f"Lesson {numbers}"


def _read_lesson(number: str, course: Path) -> NotebookNode:
    """Return the notebook of a lesson by its number, "01", or that of its appendix, "appendix
    01".
    """
    is_appendix = number.startswith(_APPENDIX)
    folder = course / _APPENDIX.strip() if is_appendix else course
    (path,) = find_lessons([number.removeprefix(_APPENDIX)], course=folder)
    notebook = read_notebook(path)
    notebook.metadata["stem"] = path.stem
    return notebook


def _slide_cells(
    slide: Slide, lessons: Mapping[str, NotebookNode], *, late: str
) -> list[NotebookNode]:
    """Return the slide's text and cells, tagged as those of a lesson's slide are."""
    choices = [
        (lessons[number], _find_cell(slide, number, lessons[number], text), display)
        for number, text, display in slide.get("cells", ())
    ]
    cells = [new_markdown_cell(slide["text"])] if "text" in slide else []
    metadata = {
        key: slide[key]
        for key in KEYS
        if key in slide and key not in ("say", "layout", "here", "numbers")
    }
    patterns = list(slide.get("numbers", ()))
    for _, cell, display in choices:
        part, _, nth = display.partition(" ")
        slide_cell = cell.copy()
        # two slides may show two outputs of one cell
        slide_cell.id = f"{cell.id}-{display.replace(' ', '-')}"
        slide_cell.metadata = nbformat.from_dict({**metadata, "tags": [_SHOWN[part]]})
        slide_cell.outputs = cell.outputs[int(nth) - 1 : int(nth)] if nth else cell.outputs
        cell_patterns = (
            [pattern for pattern in patterns if evidence.holds(slide_cell.outputs, pattern[0])]
            if len(choices) > 1
            else patterns
        )
        if cell_patterns:
            slide_cell.metadata["numbers"] = cell_patterns
            patterns = [pattern for pattern in patterns if pattern not in cell_patterns]
        cells.append(slide_cell)
    if patterns and len(choices) > 1:
        raise SlideError(
            f"{_PLAN.name}, {slide['title']!r}: no cell of the slide prints {patterns[0][0]!r}"
        )
    opening = cells[0].metadata
    opening["tags"] = ["slide", *(tag for tag in opening.get("tags", []) if tag != "slide-more")]
    opening.update({key: slide[key] for key in ("layout", "here", "source") if key in slide})
    opening.update(
        headline=slide["title"],
        minutes=slide["seconds"] / 60,
        say=_speaker_notes(slide, lessons, late=late),
    )
    return cells


def _find_cell(slide: Slide, number: str, lesson: NotebookNode, text: str) -> NotebookNode:
    matches = [cell for cell in lesson.cells if cell.cell_type == "code" and text in cell.source]
    if len(matches) != 1:
        raise SlideError(
            f"{_PLAN.name}, {slide['title']!r}: {len(matches)} code cells of lesson {number} hold "
            f"{text!r}, not one; name a text of the cell that is meant"
        )
    return matches[0]


def _speaker_notes(slide: Slide, lessons: Mapping[str, NotebookNode], *, late: str) -> str:
    """Return the notes: whether to skip, what to say, what to ask and its answer, and which cell to
    run live.
    """
    paragraph = html.escape(" ".join(slide["say"].split()))
    answer = f" <em>Answer: {html.escape(slide['answer'])}</em>" if "answer" in slide else ""
    questions = (
        [f"<strong>Ask:</strong> {html.escape(slide['ask'])}{answer}"] if "ask" in slide else []
    )
    notes = [*questions, paragraph] if slide.get("first") else [paragraph, *questions]
    if "if_asked" in slide:
        notes.append(f"<strong>If asked:</strong> {html.escape(slide['if_asked'])}")
    if "live" in slide:
        live = slide["live"]
        number, text = live["cell"]
        cell = _find_cell(slide, number, lessons[number], text)
        notes.append(
            f"<strong>Live, {live['seconds']} s:</strong> "
            f"{lessons[number].metadata['stem']}.ipynb, open in <code>make lab</code> and run once "
            f"before the lecture; cell [{cell.execution_count}] under "
            f"“{_heading(lessons[number], cell)}”. {html.escape(live['do'])}"
        )
    skip = [f"<strong>{late}</strong>"] if late else []
    return "".join(f"<p>{note}</p>" for note in (*skip, *notes))


def _heading(lesson: NotebookNode, cell: NotebookNode) -> str:
    cells_above = lesson.cells[: lesson.cells.index(cell)]
    lines = [
        line
        for earlier in cells_above
        if earlier.cell_type == "markdown"
        for line in earlier.source.splitlines()
    ]
    return html.escape([line.lstrip("# ") for line in lines if re.match("#+ ", line)][-1])


def build(*, short: bool = False, course: Path = COURSE, folder: Path = BUILD) -> BuiltDeck:
    """Write the lecture's deck, or that of 25 minutes, to ``folder``, whole or not at all."""
    name, minutes = (SHORT_NAME, SHORT_MINUTES) if short else (NAME, MINUTES)
    deck, notebook, frame = assemble(plan(short=short), minutes=minutes, course=course)
    page = render_deck(deck, notebook, frame=frame).encode()
    folder.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(folder / f"{name}.html", page)
    return BuiltDeck(
        lesson=name, slides=len(deck.slides) + 1, minutes=deck.minutes, file_bytes=len(page)
    )


def main(*, course: Path = COURSE, folder: Path = BUILD) -> int:
    """Build both decks, print the lecture as PDF and as a handout with notes; return 1 when one is
    not possible.
    """
    try:
        for short in (False, True):
            built = build(short=short, course=course, folder=folder)
            size = units.text(built.file_bytes, "B")
            print(
                f"{display_path(folder / built.lesson)}.html: {built.slides} slides, "
                f"{built.minutes:.0f} minutes, {size}"
            )
        with run_chromium() as browser:
            for name, notes in ((NAME, False), (HANDOUT, True)):
                pdf = print_deck(browser, folder / f"{NAME}.html", notes=notes)
                storage.write_atomically(folder / f"{name}.pdf", pdf)
                contents = "a page per slide, with its notes" if notes else "a page per slide"
                print(f"{display_path(folder / name)}.pdf: {contents}, {units.text(len(pdf), 'B')}")
    except (SlideError, BrowserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
