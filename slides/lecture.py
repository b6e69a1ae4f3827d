"""``python -m slides.lecture``: the lecture "Hardware ecosystem", cut from the lessons' slides, as HTML and PDF.

The lecture keeps the order of the topics of the one that the course grew from ("Hardware Ecosystem", Cambridge, 2022).
It has no slide of its own: each is a lesson's, with the minutes that it gets here. What a topic lacks stands in
the notes of the last slide.
"""

from __future__ import annotations

import dataclasses
import html
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers import storage, units
from helpers.results import Result
from slides.browser import BrowserError, running
from slides.build import BUILD, COURSE, BuiltDeck, Frame, find_lessons, read_notebook, render_deck, where
from slides.cells import Deck, Slide, SlideError, read_deck
from slides.markdown import plain_text
from slides.pdf import print_deck

NAME = "lecture"
TITLE = "Hardware ecosystem"
MINUTES = 50

_PART = re.compile(r"^Part \d+: (.)")


@dataclass(frozen=True)
class Pick(Result):
    """A slide of a lesson: the ``nth`` there with this ``heading`` (as a reader sees it), and its minutes here.

    ``shown`` is its heading here; by default the lesson's own, without the number of its part.
    """

    lesson: str
    heading: str
    minutes: float
    nth: int = 1
    shown: str = ""


@dataclass(frozen=True)
class Topic(Result):
    """A topic of the lecture: its slides, and ``later``, what no lesson has yet ('' for nothing)."""

    number: int
    title: str
    picks: tuple[Pick, ...] = ()
    later: str = ""


@dataclass(frozen=True)
class Act(Result):
    """Topics that belong together, a line of the title slide."""

    title: str
    topics: tuple[Topic, ...]


LECTURE = (
    Act("Machines: what is inside, and how it became so", (
        Topic(1, "How we got here", (
            Pick("02", "Part 1: demand and supply", 1, 2, shown="Training grows faster than machines"),
        )),
        Topic(2, "Inside a processor", (
            Pick("01", "Part 4: a GPU hides the wait", 1.5, 2, shown="A GPU spends its area on arithmetic units"),
        )),
        Topic(3, "A CPU, and moving a model to a device", (
            Pick("01", "Part 5: moving a network", 1, shown="Each tensor that moves pays the latency"),
        )),
        Topic(4, "A GPU's card", (
            Pick("01", "Part 4: a GPU hides the wait", 1.5, 3, shown="A GPU's card beside a core: bytes in flight"),
        )),
        Topic(5, "The memory spaces of a GPU", (
            Pick("01", "Memory spaces", 1.5, 2, shown="On a GPU the program chooses the memory"),
        )),
        Topic(6, "A system for deep learning", (
            Pick("01", "Part 1: from registers to swap", 1, 2, shown="Each level further out is larger and slower"),
        )),
        Topic(7, "The memory hierarchy, in time and in energy", (
            Pick("01", "Part 1: from registers to swap", 1, 6, shown="Each cache that is outgrown slows a load"),
            Pick("01", "Part 6: energy", 1, 2, shown="A DRAM access costs far more than arithmetic"),
        )),
        Topic(8, "Memory inversion", (
            Pick("01", "Memory inversion", 0.5, 1),
            Pick("01", "Memory inversion", 1, 2, shown="Near its units a GPU holds more than a CPU"),
        )),
        Topic(9, "Moore's law", (
            Pick("02", "Moore's law, and what stopped", 1, 2, shown="The clock stopped; transistors did not"),
        )),
        Topic(10, "A matrix product, timed", (
            Pick("02", "The bet", 1, shown="How much longer do 16 tokens take than one?"),
            Pick("02", "Part 2: two roofs", 1, 2, shown="One token waits for its weights"),
        )),
    )),
    Act("Parallelism: where it comes from, and which machine can use it", (
        Topic(11, "Minibatch SGD and its four sources of parallelism", (
            Pick("03", "Part 1: one line, four sources", 0.5, 1, shown="Four sources of parallelism in one line"),
            Pick("03", "Part 1: one line, four sources", 1, 2, shown="The sources differ in what they exchange"),
            Pick("03", "Part 3: over examples", 1, shown="Over examples: weigh each part by its size"),
            Pick("03", "Part 4: over update iterations", 1, 2, shown="A stale gradient can make training blow up"),
            Pick("03", "Part 5: over models", 1, 2, shown="Over models: a stack pays for small networks"),
        )),
        Topic(12, "Which source for which machine", (
            Pick("03", "Part 6: which source for which machine?", 1, 2,
                 shown="Between machines only whole models pay"),
        )),
        Topic(13, "The product in tiles", (
            Pick("02", "Part 3: a matrix product, by its traffic", 1, shown="A row and a column for each element"),
            Pick("02", "Part 3: a matrix product, by its traffic", 1, 2,
                 shown="A tile is read once and used many times"),
            Pick("02", "Part 4: the same product, by its time", 0.5, 1, shown="And in time? Naive against the library"),
            Pick("02", "Part 4: the same product, by its time", 1, 2, shown="Naive code is far from the library"),
        )),
        Topic(14, "Data and model parallelism, and where they wait", (
            Pick("04", "Batch norm: whose batch?", 1, shown="Where data parallelism must wait: batch norm"),
            Pick("04", "Part 4: send while you compute", 1.5, 2, shown="What is sent meanwhile is hidden"),
            Pick("16", "Part 4: ten layouts of eight devices", 1, 1,
                 shown="Each cut keeps, sends and waits differently"),
        )),
        Topic(15, "Beyond parallelism: an accelerator that starves", (
            Pick("06", "Part 1: who waits for whom?", 1, 1, shown="A batch takes longer than its step"),
            Pick("06", "Part 1: who waits for whom?", 1, 2, shown="Without workers host and device take turns"),
            Pick("06", "Part 2: what went wrong here?", 0.5, 1, shown="What went wrong here? A starving GPU"),
            Pick("06", "Part 2: what went wrong here?", 0.5, 2, shown="One factor at a time: one case starves"),
        )),
    )),
    Act("Resources: operations, bytes, and what happens when they run out", (
        Topic(16, "Operations, layer by layer", (
            Pick("07", "Part 1: what a layer computes and touches", 1, 1, shown="Count by hand: outputs times weights"),
            Pick("07", "Part 1: what a layer computes and touches", 1, 3,
                 shown="Inference is at least a third of training"),
        )),
        Topic(17, "The working set of a layer", (
            Pick("07", "What it touches", 0.5, shown="A batch outgrows the weights"),
            Pick("07", "Part 2: what training keeps", 1, 2, shown="Training keeps activations for the backward"),
            Pick("07", "Part 4: the peak of a step", 1, 1, shown="The peak decides whether a step fits"),
            Pick("07", "Part 4: the peak of a step", 1, 2, shown="What is saved climbs forward, falls backward"),
        )),
        Topic(18, "A working set beyond memory", (
            Pick("08", "Part 1: slow, because memory is full?", 1, 2, shown="Slow, because memory is full?"),
            Pick("08", "Part 1: slow, because memory is full?", 0.5, 3, shown="Divide by the work"),
            Pick("08", "Part 1: slow, because memory is full?", 0.5, 4, shown="The time follows the work"),
            Pick("08", "Part 2: a layer outgrows a cache", 1, 2, shown="A layer that outgrows a cache slows down"),
            Pick("08", "Part 6: a bus error", 0.5, 1, shown="A bus error"),
            Pick("08", "Part 6: a bus error", 0.5, 2, shown="What was full: /dev/shm, not the card"),
        )),
    )),
    Act("Software and hardware, made for each other", (
        Topic(19, "Systolic arrays, their dataflows, the TPU's matrix unit", (
            Pick("09", "Part 1: one element, then sixteen", 0.5, 1, shown="Systolic: numbers pass from neighbour on"),
            Pick("09", "Part 1: one element, then sixteen", 1, 2, shown="A product crosses the array as a wave"),
            Pick("09", "Part 3: what stays", 0.5, 1, shown="Three dataflows: what stays is read once"),
            Pick("09", "Part 5: Google's first TPU, from three numbers", 1, 2, shown="Counters from three numbers"),
        )),
        Topic(20, "The stack of deep learning, from framework to instruction", (
            Pick("10", "Part 1: one call, all levels", 1, 2, shown="Four levels below one line of Python"),
            Pick("10", "Part 2: an array in the registers", 0.5, 2, shown="The registers of a CPU hold an array, too"),
        )),
        Topic(21, "Beyond hardware: narrow numbers, sparsity, libraries", (
            Pick("17", "Part 4: updates that get lost", 0.5, 2, shown="Sixteen bits forget; a coin helps"),
            Pick("17", "Part 5: integers", 0.5, 2, shown="Weights of 4 bits, and the answers stay"),
            Pick("11", "Part 5: constants that are zero", 0.5, 1, shown="Constants that are zero"),
            Pick("11", "Part 5: constants that are zero", 0.5, 2, shown="A zero weight takes its instruction along"),
        )),
        Topic(22, "Co-design: AlexNet on two cards", (
            Pick("05", "Part 1: two cards, two towers", 0.5, 1, shown="AlexNet on two cards: a tower on each"),
            Pick("05", "Part 1: two cards, two towers", 0.5, 2, shown="Two cards bought room, not the right to run"),
            Pick("10", "AlexNet: a network in the shape of two cards", 0.5, 2, shown="The cut saved work, not weights"),
        )),
        Topic(23, "The hardware lottery and the software lottery", (
            Pick("10", "Part 6: lotteries", 0.5, 1, shown="Four convolutions, three ways to count"),
            Pick("10", "Part 6: lotteries", 1, 2, shown="The fewest MACs take the most cycles"),
        )),
        Topic(24, "What to take home", (
            Pick("01", "What to take home", 0.5, shown="To take home: memory"),
            Pick("03", "What to take home", 0.5, shown="To take home: parallelism"),
            Pick("07", "What to take home", 0.5, shown="To take home: the working set"),
        )),
    )),
)  # fmt: skip


def topics(lecture: Sequence[Act] = LECTURE) -> tuple[Topic, ...]:
    """Return all topics of the lecture, in order."""
    return tuple(topic for act in lecture for topic in act.topics)


def assemble(lecture: Sequence[Act] = LECTURE, *, course: Path = COURSE) -> tuple[Deck, NotebookNode, Frame]:
    """Return the lecture's deck, a notebook of the cells on it, and what stands around its slides.

    ``course`` holds the lessons' notebooks. Raises SlideError for a slide that its lesson does not have, and where
    the minutes do not add up to :data:`MINUTES`.
    """
    wanted = [(topic, pick) for topic in topics(lecture) for pick in topic.picks]
    total = sum(pick.minutes for _, pick in wanted)
    if total != MINUTES:
        raise SlideError(
            f"the lecture's slides take {total:g} minutes, not {MINUTES}; change minutes in slides/lecture.py"
        )
    lessons = {number: read_lesson(number, course=course) for number in sorted({pick.lesson for _, pick in wanted})}
    cells: list[NotebookNode] = []
    slides = []
    for topic, pick in wanted:
        notebook, deck = lessons[pick.lesson]
        found = _find(pick, deck)
        parts = tuple(
            dataclasses.replace(part, cell_index=len(cells) + place) for place, part in enumerate(found.parts)
        )
        cells += [notebook.cells[part.cell_index] for part in found.parts]
        notes = f"<p><strong>Topic {topic.number}: {html.escape(topic.title)}.</strong></p>\n{found.notes}"
        slides.append(
            dataclasses.replace(
                found,
                heading=html.escape(pick.shown) or _without_part(found.heading),
                parts=parts,
                notes=notes,
                minutes=pick.minutes,
            )
        )
    slides[-1] = dataclasses.replace(slides[-1], notes=f"{slides[-1].notes}\n{_missing(topics(lecture))}")
    deck = Deck(
        number="",
        title=TITLE,
        facts=f"{MINUTES} minutes",
        objectives=tuple(html.escape(act.title) for act in lecture),
        slides=tuple(slides),
    )
    frame = Frame(
        page=TITLE,
        eyebrow=f"Lecture · {deck.facts}",
        lead=f"{len(lecture)} acts, {sum(bool(topic.picks) for topic in topics(lecture))} topics",
        footers=(TITLE, *(f"{TITLE} · lesson {pick.lesson}" for _, pick in wanted)),
    )
    return deck, nbformat.v4.new_notebook(cells=cells, metadata=_metadata(lessons)), frame


def build(*, course: Path = COURSE, folder: Path = BUILD) -> BuiltDeck:
    """Write the lecture's deck to ``folder`` as lecture.html, whole or not at all."""
    deck, notebook, frame = assemble(course=course)
    written = render_deck(deck, notebook, frame=frame).encode()
    folder.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(folder / f"{NAME}.html", written)
    return BuiltDeck(lesson=NAME, slides=len(deck.slides) + 1, minutes=deck.minutes, file_bytes=len(written))


def read_lesson(number: str, *, course: Path = COURSE) -> tuple[NotebookNode, Deck]:
    """Return the notebook of a lesson and its deck; raises SlideError where there is none."""
    (path,) = find_lessons([number], course=course)
    notebook = read_notebook(path)
    return notebook, read_deck(notebook, name=path.stem, folder=path.parent)


def _find(pick: Pick, deck: Deck) -> Slide:
    headings = [plain_text(slide.heading) for slide in deck.slides]
    found = [slide for slide, heading in zip(deck.slides, headings, strict=True) if heading == pick.heading]
    if len(found) < pick.nth:
        there = "; ".join(dict.fromkeys(headings))
        raise SlideError(
            f"the lecture takes slide {pick.nth} headed {pick.heading!r} of lesson {pick.lesson}, which has "
            f"{len(found)}; mend slides/lecture.py (the headings there: {there})"
        )
    return found[pick.nth - 1]


def _without_part(heading: str) -> str:
    """Return the heading without the number of its part in the lesson, which means nothing here."""
    return _PART.sub(lambda match: match[1].upper(), heading)


def _missing(found: Sequence[Topic]) -> str:
    rows = [f"<li>{topic.number}. {html.escape(topic.title)}: {html.escape(topic.later)}</li>"
            for topic in found if topic.later]  # fmt: skip
    return f"<p>Not in the lessons yet:</p>\n<ul>{''.join(rows)}</ul>" if rows else ""


def _metadata(lessons: Mapping[str, tuple[NotebookNode, Deck]]) -> dict[str, object]:
    first, _ = next(iter(lessons.values()))
    return {key: first.metadata[key] for key in ("kernelspec", "language_info") if key in first.metadata}


def main(*, course: Path = COURSE, folder: Path = BUILD) -> int:
    """Build the lecture's deck and print it beside itself as PDF; return 1 when one of them is not possible."""
    try:
        built = build(course=course, folder=folder)
        size = units.text(built.file_bytes, "B")
        print(f"{where(folder / NAME)}.html: {built.slides} slides, {built.minutes:g} minutes, {size}")
        with running() as browser:
            printed = print_deck(browser, folder / f"{NAME}.html")
        storage.write_atomically(folder / f"{NAME}.pdf", printed)
        print(f"{where(folder / NAME)}.pdf: {built.slides} pages, {units.text(len(printed), 'B')}")
    except (SlideError, BrowserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
