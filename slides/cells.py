"""From a lesson's notebook to the slides in it: which cells, which part of each, what is said, for
how long.

=================  =================================================================================
tag of a cell      what it does
=================  =================================================================================
``slide``          opens a slide
``slide-more``     joins the slide that was opened last
``slide-code``     shows a code cell's code without its output; joins, unless tagged ``slide`` too
``slide-output``   shows a code cell's output without its code; joins, unless tagged ``slide`` too
=================  =================================================================================

Of a markdown cell the heading and the first paragraph, list, table or figure are shown; the rest is
for the speaker, and so is the next text of the lesson below an output, which explains it. A slide
that opens without a heading of its own takes the last heading above it. The cell that opens a slide
carries ``minutes``; those of all are the time to talk, which a lesson's deck divides among its
slides by what there is to say and to look at.

A cell that opens a slide may say more in its metadata: ``headline``, the slide's title, a statement
in a sentence (by default the last heading above); ``layout``, one of :data:`LAYOUTS` (by default
what its parts are); ``say``, the notes. A cell on a slide may say ``mark``, a text in the line of
its code or the row of its table that is set off; ``lines``, the first and the last of its code;
``rows`` and ``columns``, those of its table that are shown, by how they begin; ``numbers``,
patterns with labels that take large numbers out of its output; ``frames``, the places of a player's
frames that are steps, ``captions`` for them, ``crop``, the part of the drawing (left, top, width,
height), and ``smallest``, to which its texts grow; ``untitled``, to leave a figure's own title out;
``printed=false``, to leave out what is printed beside it; ``source``, who published its numbers,
for the slide's foot, where the source of a published answer stands by itself; and a ``predict``
cell ``axis``, the two ends of the axis to guess on.

A question and its answer stand on two slides. A slide whose text asks something shows no output,
and none joins a text above a ``predict`` to an output below it. The output of a ``predict`` is its
question, as text, and that of a ``reveal`` needs a slide before it that asks.
"""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.results import Result
from slides import evidence, notes, players, questions
from slides.markdown import (
    CutCell,
    count_words,
    cut_markdown,
    formula_of_words,
    is_described,
    measurement_in_comments,
    outside_reference,
    refused_block,
    render_markdown,
    typed_measurement,
    undescribed_figure,
)

TAGS = ("slide", "slide-more", "slide-code", "slide-output")
LAYOUTS = (
    "statement",
    "question",
    "figure",
    "beside",
    "numbers",
    "table",
    "code",
    "steps",
    "act",
    "close",
    "printed",
)
KEYS = ( "headline", "layout", "say", "here", "mark", "lines", "rows", "columns", "numbers",
    "frames", "captions", "crop", "smallest", "untitled", "printed", "axis", "source")  # fmt: skip
MOST_WORDS = 40

# What an output is shown as: the first of these that it has.
SHOWN = (
    "text/html",
    "image/svg+xml",
    "image/png",
    "image/jpeg",
    "text/markdown",
    "text/latex",
    "text/plain",
)

_WIDGET = "application/vnd.jupyter.widget-view+json"
_IMAGES = ("image/png", "image/jpeg", "image/svg+xml")
_LEADS_OVER = re.compile(r":(\s*(?:</[a-z]+>\s*)*)$")
_LESSON_KEYS = ("number", "title", "minutes", "objectives")


class SlideError(ValueError):
    """A marked cell cannot be a slide; the message names the lesson, the cell and what to
    change.
    """


@dataclass(frozen=True)
class Part(Result):
    """What one cell gives to a slide: HTML of its text, of the axis to guess on where it asks, and
    of its code, and its outputs, and who published its numbers.
    """

    cell_index: int
    text: str = ""
    axis: str = ""
    code: str = ""
    outputs: tuple[Mapping[str, Any], ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Slide(Result):
    """One slide: HTML of the heading and of the notes, the parts in order, the minutes to talk, and
    its layout.

    ``here`` are the places of the machine that an act or a slide of it is about, and ``source``
    says who published its numbers.
    """

    heading: str
    parts: tuple[Part, ...]
    notes: str
    minutes: float
    layout: str
    here: tuple[str, ...] = ()
    source: str = ""

    @property
    def words(self) -> int:
        """The words of the slide's text, heading included; code and outputs are not text."""
        return count_words(self.heading) + sum(count_words(part.text) for part in self.parts)


@dataclass(frozen=True)
class Deck(Result):
    """A lesson's slides, and what its title slide says: ``facts`` in one line, the objectives as
    HTML.

    ``exercise`` is what to do after it, which the last slide says.
    """

    number: str
    title: str
    facts: str
    objectives: tuple[str, ...]
    slides: tuple[Slide, ...]
    exercise: str = ""

    @property
    def minutes(self) -> float:
        """The minutes of all slides together, to the second."""
        return round(60 * sum(slide.minutes for slide in self.slides)) / 60


def read_deck(notebook: Mapping[str, Any], *, name: str, folder: Path) -> Deck:
    """Return the deck that the marked cells of ``notebook`` make; ``name`` is the lesson's name in
    messages.

    ``folder`` is where the notebook's pictures in markdown are. Raises SlideError, naming the
    lesson and the cell, for a lesson without metadata or slides and for every cell that breaks a
    rule of a slide.
    """
    lesson = _lesson(notebook, name)
    objectives = tuple(_in_future(objective, name) for objective in lesson["objectives"])
    _check_title(" ".join((html.escape(lesson["title"]), *objectives)), name)
    return Deck(
        number=f"{lesson['number']}",
        title=lesson["title"],
        facts=_facts(lesson),
        objectives=objectives,
        slides=_in_time(
            read_slides(notebook["cells"], title=lesson["title"], name=name, folder=folder)
        ),
        exercise=_first_exercise(
            folder / "exercises" / f"{name}_exercises.ipynb", f"{lesson['number']}"
        ),
    )


def read_slides(
    cells: Sequence[Mapping[str, Any]], *, title: str, name: str, folder: Path
) -> tuple[Slide, ...]:
    """Return the slides that the marked ``cells`` make; ``title`` is the heading where there is
    none.

    See read_deck.
    """
    groups: list[list[int]] = []
    for index, cell in enumerate(cells):
        tags = _slide_tags(cell, name, index)
        if "slide" in tags:
            groups.append([index])
        elif tags:
            if not groups:
                raise _error(
                    name, index, f"is tagged {sorted(tags)[0]!r} before any cell is tagged 'slide'"
                )
            if "minutes" in cell["metadata"]:
                raise _error(
                    name,
                    index,
                    "joins a slide and has minutes; write them at the cell that opens the slide",
                )
            groups[-1].append(index)
    if not groups:
        raise SlideError(f"{name} has no slide: tag the cells that open one 'slide'")
    asked = questions.read(cells)
    slides = tuple(_slide(cells, group, title, name, folder, asked) for group in groups)
    _check_answers(slides, cells, name)
    return _each_said_once(slides)


def _each_said_once(slides: Sequence[Slide]) -> tuple[Slide, ...]:
    """Return the slides, of which none says again what explains the slide before it, where it has
    more to say.
    """
    once = [*slides[:1]]
    for slide in slides[1:]:
        parted = notes.shared(once[-1].notes, slide.notes)
        own = parted and (parted[1] or _to_show(slide.parts))
        if parted and own:
            once[-1] = dataclasses.replace(once[-1], notes=parted[0])
        once.append(dataclasses.replace(slide, notes=own) if own else slide)
    return tuple(once)


def _in_time(slides: Sequence[Slide]) -> tuple[Slide, ...]:
    """Return the slides, with their minutes divided among them by what is said and looked at on
    each.
    """
    needed = [
        notes.seconds(
            slide.notes,
            asks=any(part.axis for part in slide.parts),
            shows=any(part.code or part.outputs for part in slide.parts),
        )
        for slide in slides
    ]
    given = notes.divided(60 * sum(slide.minutes for slide in slides), needed)
    return tuple(
        dataclasses.replace(slide, minutes=one / 60)
        for slide, one in zip(slides, given, strict=True)
    )


def _first_exercise(path: Path, number: str) -> str:
    headings = (
        re.findall(r"## Exercise 1: ([^\\\n\"]+)", path.read_text(encoding="utf-8"))
        if path.is_file()
        else []
    )
    return f"Now you: exercise 1 of lesson {number}, {headings[0].strip()}" if headings else ""


def _lesson(notebook: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    lesson = notebook["metadata"].get("lesson", {})
    missing = [key for key in _LESSON_KEYS if lesson.get(key) in (None, "", [])]
    if missing:
        raise SlideError(
            f"{name} has no {' and no '.join(missing)} in its metadata under 'lesson'; run `make "
            "lessons`"
        )
    return lesson


def _check_title(shown: str, name: str) -> None:
    typed, words = typed_measurement(shown), formula_of_words(shown)
    if typed:
        raise SlideError(
            f"{name} types the measurement {typed!r} in its title or objectives; leave the number "
            "out"
        )
    if words:
        raise SlideError(
            f"{name} has plain words that become a formula in its title or objectives, {words!r}"
        )


def _facts(lesson: Mapping[str, Any]) -> str:
    needs = lesson.get("needs") or []
    listed = [needs] if isinstance(needs, str) else [str(need) for need in needs]
    numbers, others = ([need for need in listed if need.isdigit() is one] for one in (True, False))
    named = [f"lesson{'s' * (len(numbers) > 1)} {', '.join(numbers)}"] * bool(numbers) + others
    return f"{lesson['minutes']} minutes" + (f" · needs {', '.join(named)}" if named else "")


def _in_future(objective: str, name: str) -> str:
    verb, bar, past_and_rest = objective.partition("|")
    words, count = past_and_rest.split(), len(verb.split())
    if not bar or not 0 < count < len(words):
        raise SlideError(
            f"{name}: the objective {objective!r} is not of the form 'predict|predicted the time "
            "of ...'"
        )
    future = f"{verb.strip()} {' '.join(words[count:]).removesuffix('.')}"
    return cut_markdown(future, folder=Path()).text.removeprefix("<p>").removesuffix("</p>")


def _slide_tags(cell: Mapping[str, Any], name: str, index: int) -> set[str]:
    tags = {tag for tag in cell["metadata"].get("tags", []) if tag.startswith("slide")}
    unknown = sorted(tags - set(TAGS))
    if unknown:
        raise _error(
            name, index, f"has the tag {unknown[0]!r}; the tags of slides are {', '.join(TAGS)}"
        )
    if {"slide", "slide-more"} <= tags:
        raise _error(
            name, index, "is tagged both 'slide' and 'slide-more'; keep the one that is meant"
        )
    if {"slide-code", "slide-output"} <= tags:
        raise _error(
            name, index, "is tagged 'slide-code' and 'slide-output'; leave both out to show both"
        )
    if tags and cell["cell_type"] != "code" and tags & {"slide-code", "slide-output"}:
        raise _error(
            name,
            index,
            "holds text, so that it has no code and no output; use 'slide' or 'slide-more'",
        )
    if tags and cell["cell_type"] not in ("code", "markdown"):
        raise _error(
            name,
            index,
            f"is a {cell['cell_type']} cell; only markdown and code cells go on a slide",
        )
    return tags


def _slide(
    cells: Sequence[Mapping[str, Any]],
    group: list[int],
    title: str,
    name: str,
    folder: Path,
    asked: Mapping[str, questions.Guess],
) -> Slide:
    opening = group[0]
    stated = cells[opening]["metadata"]
    heading, said, parts = _headline(stated.get("headline", ""), name, opening, folder), [], []
    for index in group:
        cell = cells[index]
        if cell["cell_type"] == "markdown":
            cut = _cut(cell, name, index, folder)
            heading = heading or (cut.heading if index == opening else "")
            said += [_shown_in_notes(cut, joined=index != opening), notes.spoken(cut.notes)]
            parts.append(
                Part(cell_index=index, text=cut.text, source=cell["metadata"].get("source", ""))
            )
        else:
            parts.append(
                _code_part(cell, name, index, folder, asked, steps=stated.get("layout") == "steps")
            )
    code_last = cells[group[-1]]["cell_type"] == "code"
    below = _explained(cells, group[-1] + 1, name, folder) if code_last else ""
    if parts[-1].outputs:
        said.append(below)
    spoken = stated.get("say", "") or _ended("\n".join(one for one in said if one))
    spoken = spoken or _led_up_to(cells, opening, folder) or _to_show(parts) or _ended(below)
    # the question is the title
    if not heading and len(parts) == 1 and parts[0].axis and not parts[0].outputs:
        heading = parts[0].text.removeprefix("<p>").removesuffix("</p>")
        parts = [dataclasses.replace(parts[0], text="")]
    layout = stated.get("layout") or (
        "close" if "recap" in stated.get("tags", []) else _layout(parts)
    )
    if layout not in LAYOUTS:
        raise _error(
            name, opening, f"has the layout {layout!r}; the layouts are {', '.join(LAYOUTS)}"
        )
    slide = Slide(
        heading=heading or _heading_above(cells, opening, name, folder) or html.escape(title),
        parts=tuple(parts),
        notes=spoken,
        minutes=_minutes(cells[opening], name, opening),
        layout=layout,
        here=tuple(stated.get("here", ())),
        source="; ".join(dict.fromkeys(part.source for part in parts if part.source)),
    )
    _check_words(slide, name, opening)
    return slide


def _headline(stated: str, name: str, index: int, folder: Path) -> str:
    """Return a stated title as HTML, '' where there is none."""
    said = render_markdown(stated, folder=folder).strip().removeprefix("<p>").removesuffix("</p>")
    _check_html(said, name, index, "holds")
    _check_measurement(typed_measurement(said), name, index, " in the headline")
    return said


def _layout(parts: Sequence[Part]) -> str:
    """Return what the parts of a slide make where its cell does not say."""
    outputs = [output for part in parts for output in part.outputs]
    code = any(part.code for part in parts)
    pages = [output.get("data", {}).get("text/html", "") for output in outputs]
    if any(set(_IMAGES) & set(output.get("data", {})) for output in outputs):
        return "figure"
    if any('class="number' in page for page in pages):
        return "numbers"
    if any("<tr" in page for page in pages):
        return "table"
    if outputs and not code:
        return "printed"
    if code:
        return "code"
    return "question" if _asks(parts) else "statement"


def _asks(parts: Sequence[Part]) -> bool:
    return any(part.axis for part in parts) or questions.asks([part.text for part in parts])


def _ended(notes: str) -> str:
    """Return ``notes`` with a full stop where the last sentence led over to a cell that is not read
    out.
    """
    return _LEADS_OVER.sub(r".\1", notes)


def _to_show(parts: Sequence[Part]) -> str:
    """Return what to do with a slide on which the lesson says no more, by what it asks and
    shows.
    """
    if _asks(parts):
        return "<p>Let the room guess, and write the guesses down, before you go on.</p>"
    shown = [output.get("data", {}) for part in parts for output in part.outputs]
    figures = [data["text/plain"] for data in shown if any(mime in data for mime in _IMAGES)]
    if figures:
        return "".join(f"<p>On the figure: {html.escape(alt)}</p>" for alt in figures)
    return (
        "<p>Hold the guesses of the room against it: who was near, and by what reasoning?</p>"
        if shown
        else ""
    )


def _explained(cells: Sequence[Mapping[str, Any]], start: int, name: str, folder: Path) -> str:
    """Return as notes the next text below an output, unless a slide, a predict or a section comes
    before it.
    """
    for index in range(start, len(cells)):
        cell = cells[index]
        if _slide_tags(cell, name, index) or _is_predict(cell):
            return ""
        if cell["cell_type"] == "markdown":
            cut = cut_markdown(cell["source"], folder=folder, attachments=cell.get("attachments"))
            _check_html(f"{cut.text}{cut.notes}", name, index, "holds")
            return "" if cut.heading else notes.spoken(f"{cut.text}\n{cut.notes}")
    return ""


def _led_up_to(cells: Sequence[Mapping[str, Any]], opening: int, folder: Path) -> str:
    """Return as notes the last text above a slide, where it is on no slide itself."""
    for cell in reversed(cells[:opening]):
        if cell["cell_type"] == "markdown":
            on_a_slide = any(tag.startswith("slide") for tag in cell["metadata"].get("tags", []))
            cut = cut_markdown(cell["source"], folder=folder, attachments=cell.get("attachments"))
            return "" if on_a_slide else _ended(notes.spoken(f"{cut.text}\n{cut.notes}"))
    return ""


def _cut(cell: Mapping[str, Any], name: str, index: int, folder: Path) -> CutCell:
    cut = cut_markdown(cell["source"], folder=folder, attachments=cell.get("attachments"))
    _check_html(f"{cut.heading}{cut.text}{cut.notes}", name, index, "holds")
    refused = refused_block(cut.text)
    if refused:
        remedy = (
            "write a paragraph, list or table below the heading, or show code with a code cell "
            "(slide-code)"
        )
        raise _error(name, index, f"has {refused} as its first block; {remedy}")
    _check_measurement(typed_measurement(f"{cut.heading} {cut.text}"), name, index)
    return cut


def _check_html(shown: str, name: str, index: int, how: str) -> None:
    outside = outside_reference(shown)
    if outside:
        raise _error(
            name, index, f"{how} {outside}; a deck loads nothing and runs no code of a cell"
        )
    figure = undescribed_figure(shown)
    if figure:
        remedy = "describe it: ![a sentence](file.png), alt=, or plotting.show(figure, alt=...)"
        raise _error(name, index, f"shows a figure without an alt text ({figure}); {remedy}")
    words = formula_of_words(shown)
    if words:
        remedy = (
            r"write 'dollars' for an amount, \text{...} for words in a formula, and no space "
            r"inside the dollars"
        )
        raise _error(name, index, f"{how} plain words that become a formula, {words!r}; {remedy}")


def _check_measurement(typed: str | None, name: str, index: int, where: str = "") -> None:
    if typed:
        remedy = "show the notebook's own output"
        raise _error(name, index, f"types the measurement {typed!r}{where} on the slide; {remedy}")


def _shown_in_notes(cut: CutCell, *, joined: bool) -> str:
    return f"<p><strong>{cut.heading}</strong></p>" if joined and cut.heading else ""


def _heading_above(cells: Sequence[Mapping[str, Any]], index: int, name: str, folder: Path) -> str:
    for above in range(index, -1, -1):
        if cells[above]["cell_type"] == "markdown":
            attachments = cells[above].get("attachments")
            heading = cut_markdown(
                cells[above]["source"], folder=folder, attachments=attachments
            ).heading
            if heading:
                _check_html(heading, name, above, "holds")
                _check_measurement(typed_measurement(heading), name, above, " in the heading")
                return heading
    return ""


def _minutes(cell: Mapping[str, Any], name: str, index: int) -> float:
    minutes = cell["metadata"].get("minutes")
    if (
        isinstance(minutes, bool)
        or not isinstance(minutes, int | float)
        or not 0 < minutes < float("inf")
    ):
        given = "no minutes" if minutes is None else f"minutes={minutes!r}"
        raise _error(
            name,
            index,
            f"opens a slide and has {given}; write the time to talk after its tags: minutes=2",
        )
    return minutes


def _check_words(slide: Slide, name: str, index: int) -> None:
    if slide.words > MOST_WORDS:
        problem = f"makes a slide of {slide.words} words; at most {MOST_WORDS} are allowed"
        raise _error(
            name,
            index,
            f"{problem}: move what is said below the first paragraph or list, into the notes",
        )


def _check_answers(slides: Sequence[Slide], cells: Sequence[Mapping[str, Any]], name: str) -> None:
    """Refuse a question on the slide of its answer, and an answer that no slide has asked for."""
    asked = False
    predicted: set[str] = set()  # the questions that were on a slide
    for slide in slides:
        outputs = [
            output for part in slide.parts for output in cells[part.cell_index].get("outputs", ())
        ]
        predicted |= {one for one in map(questions.question, outputs) if one is not None}
        opening = slide.parts[0].cell_index
        shows = [part.cell_index for part in slide.parts if part.outputs]
        asks = _asks(slide.parts)
        remedy = "open a slide of its own for the output: tag its cell 'slide', with minutes"
        if shows and asks:
            raise _error(
                name, opening, f"asks a question and shows an output on one slide; {remedy}"
            )
        told = [part.cell_index for part in slide.parts if part.text]
        if shows and told and any(_is_predict(cell) for cell in cells[told[0] : shows[-1]]):
            raise _error(
                name, opening, f"joins a text above a predict to an output below it; {remedy}"
            )
        answers = [
            output for part in slide.parts for output in part.outputs if questions.is_answer(output)
        ]
        if not asked and any(questions.lines(output)[0] not in predicted for output in answers):
            remedy = (
                "tag the cell of its predict 'slide-output', to join the slide before or with "
                "'slide' and minutes"
            )
            problem = "shows the answer of a reveal, and no slide since the last output has asked"
            raise _error(name, opening, f"{problem}; {remedy}")
        asked = asks or (asked and not shows)


def _is_predict(cell: Mapping[str, Any]) -> bool:
    return any(questions.question(output) is not None for output in cell.get("outputs", []))


def _code_part(
    cell: Mapping[str, Any],
    name: str,
    index: int,
    folder: Path,
    asked: Mapping[str, questions.Guess],
    *,
    steps: bool,
) -> Part:
    stated = cell["metadata"]
    tags, mark = stated.get("tags", []), stated.get("mark", "")
    outputs = () if "slide-code" in tags else tuple(_shown_outputs(cell, name, index, folder))
    if "slide-output" in tags and not outputs:
        raise _error(
            name,
            index,
            "has no output to show; run `make lessons`, or tag a cell that prints something",
        )
    code = ""
    if "slide-output" not in tags:
        _check_measurement(measurement_in_comments(cell["source"]), name, index, " in a comment")
        code = evidence.code(cell["source"], mark=mark, lines=stated.get("lines", ()))
    answers = tuple(output for output in outputs if questions.question(output) is None)
    # What is printed beside an answer is not for the slide.
    if not stated.get("printed", True) or any(questions.is_answer(output) for output in answers):
        answers = tuple(output for output in answers if "text" not in output)
    try:
        if "untitled" in stated:
            answers = tuple(map(evidence.untitled, answers))
        answers = tuple(evidence.table(output, stated) for output in answers)
        if "numbers" in stated:
            answers = (evidence.numbers_in(answers, stated["numbers"]),)
        elif steps:
            answers = tuple(evidence.steps(output, stated, asked) for output in answers)
        else:
            answers = tuple(
                evidence.shown(output, asked, alone=len(answers) == 1) for output in answers
            )
    except evidence.EvidenceError as error:
        raise _error(name, index, str(error)) from error
    if mark and not evidence.is_set_off(code, answers):
        raise _error(name, index, f"has no line of code and no row with {mark!r} to set off")
    return Part(
        cell_index=index,
        text=questions.as_text(outputs),
        axis=questions.axes(outputs, asked),
        code=code,
        outputs=answers,
        source=stated.get("source", "") or "; ".join(filter(None, map(questions.source, outputs))),
    )


def _shown_outputs(
    cell: Mapping[str, Any], name: str, index: int, folder: Path
) -> list[Mapping[str, Any]]:
    shown = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if output["output_type"] == "error":
            raise _error(
                name,
                index,
                f"failed with {output.get('ename')}; mend the lesson and run `make lessons`",
            )
        if output.get("name") == "stderr":
            raise _error(
                name,
                index,
                "writes to stderr (a warning?); mend its cause, or show the code alone: slide-code",
            )
        if _WIDGET in data:
            continue
        _check_output(data, name, index, folder)
        shown.append(output)
    if cell.get("outputs") and not shown:
        raise _error(
            name,
            index,
            "shows a widget alone; a slide shows the static figure that stands beside one",
        )
    return shown


def _check_output(data: Mapping[str, Any], name: str, index: int, folder: Path) -> None:
    if data and not set(SHOWN) & set(data):
        raise _error(
            name,
            index,
            f"has an output that a slide cannot show ({', '.join(data)}); show it as HTML or PNG",
        )
    shown = players.opened(data.get("text/html", "")) + render_markdown(
        data.get("text/markdown", ""), folder=folder
    )
    _check_html(shown, name, index, "has an output with")
    if set(_IMAGES) & set(data) and not is_described(str(data.get("text/plain", ""))):
        raise _error(
            name, index, "shows a figure without an alt text; use plotting.show(figure, alt=...)"
        )


def _error(name: str, index: int, problem: str) -> SlideError:
    return SlideError(f"{name}, cell {index + 1}, {problem}")
