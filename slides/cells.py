"""From a lesson's notebook to its deck: which cells are on which slide, and which part of each.

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
in a sentence (by default the last heading above); ``layout``, one of :data:`~slides.rules.LAYOUTS`
(by default what its parts are); ``say``, the notes. A cell on a slide may say ``mark``, a text in
the line of its code or the row of its table that is set off; ``lines``, the first and the last of
its code; ``rows`` and ``columns``, those of its table that are shown, by how they begin;
``numbers``, patterns with labels that take large numbers out of its output; ``frames``, the places
of a player's frames that are steps, ``captions`` for them, ``crop``, the part of the drawing (left,
top, width, height), and ``smallest``, to which its texts grow; ``untitled``, to leave a figure's
own title out; ``printed=false``, to leave out what is printed beside it; ``source``, who published
its numbers, for the slide's foot, where the source of a published answer stands by itself; and a
``predict`` cell ``axis``, the two ends of the axis to guess on.

A question and its answer stand on two slides. A slide whose text asks something shows no output,
and none joins a text above a ``predict`` to an output below it. The output of a ``predict`` is its
question, as text, and that of a ``reveal`` needs a slide before it that asks.
"""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slides import deck, evidence, notes, questions, rules
from slides.deck import Deck, Part, Slide
from slides.markdown import (
    CutCell,
    cut_markdown,
    measurement_in_comments,
    refused_block,
    render_markdown,
    typed_measurement,
)
from slides.rules import SlideError

_WIDGET = "application/vnd.jupyter.widget-view+json"
_LESSON_KEYS = ("number", "title", "minutes", "objectives")


def read_deck(notebook: Mapping[str, Any], *, name: str, folder: Path) -> Deck:
    """Return the deck that the marked cells of ``notebook`` make; ``name`` is the lesson's name in
    messages.

    ``folder`` is where the notebook's pictures in markdown are. Raises SlideError, naming the
    lesson and the cell, for a lesson without metadata or slides and for every cell that breaks a
    rule of a slide.
    """
    lesson = _lesson_metadata(notebook, name)
    objectives = tuple(_future_objective(objective, name) for objective in lesson["objectives"])
    rules.check_title(" ".join((html.escape(lesson["title"]), *objectives)), name)
    return Deck(
        number=f"{lesson['number']}",
        title=lesson["title"],
        facts=_lesson_facts(lesson),
        objectives=objectives,
        slides=notes.divide_minutes(
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
        tags = rules.slide_tags(cell, name, index)
        if "slide" in tags:
            groups.append([index])
        elif tags:
            if not groups:
                raise rules.cell_error(
                    name, index, f"is tagged {sorted(tags)[0]!r} before any cell is tagged 'slide'"
                )
            if "minutes" in cell["metadata"]:
                raise rules.cell_error(
                    name,
                    index,
                    "joins a slide and has minutes; write them at the cell that opens the slide",
                )
            groups[-1].append(index)
    if not groups:
        raise SlideError(f"{name} has no slide: tag the cells that open one 'slide'")
    guesses = questions.read(cells)
    slides = tuple(_make_slide(cells, group, title, name, folder, guesses) for group in groups)
    rules.check_answers(slides, cells, name)
    return notes.drop_repeats(slides)


def _first_exercise(path: Path, number: str) -> str:
    headings = (
        re.findall(r"## Exercise 1: ([^\\\n\"]+)", path.read_text(encoding="utf-8"))
        if path.is_file()
        else []
    )
    return f"Now you: exercise 1 of lesson {number}, {headings[0].strip()}" if headings else ""


def _lesson_metadata(notebook: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    lesson = notebook["metadata"].get("lesson", {})
    missing = [key for key in _LESSON_KEYS if lesson.get(key) in (None, "", [])]
    if missing:
        raise SlideError(
            f"{name} has no {' and no '.join(missing)} in its metadata under 'lesson'; run `make "
            "lessons`"
        )
    return lesson


def _lesson_facts(lesson: Mapping[str, Any]) -> str:
    needs = lesson.get("needs") or []
    all_needs = [needs] if isinstance(needs, str) else [str(need) for need in needs]
    numbers, topics = (
        [need for need in all_needs if need.isdigit() is is_lesson] for is_lesson in (True, False)
    )
    prerequisites = [f"lesson{'s' * (len(numbers) > 1)} {', '.join(numbers)}"] * bool(
        numbers
    ) + topics
    return f"{lesson['minutes']} minutes" + (
        f" · needs {', '.join(prerequisites)}" if prerequisites else ""
    )


def _future_objective(objective: str, name: str) -> str:
    verb, bar, past_and_rest = objective.partition("|")
    words, count = past_and_rest.split(), len(verb.split())
    if not bar or not 0 < count < len(words):
        raise SlideError(
            f"{name}: the objective {objective!r} is not of the form 'predict|predicted the time "
            "of ...'"
        )
    future = f"{verb.strip()} {' '.join(words[count:]).removesuffix('.')}"
    return cut_markdown(future, folder=Path()).text.removeprefix("<p>").removesuffix("</p>")


def _make_slide(
    cells: Sequence[Mapping[str, Any]],
    group: list[int],
    title: str,
    name: str,
    folder: Path,
    guesses: Mapping[str, questions.Guess],
) -> Slide:
    opening = group[0]
    metadata = cells[opening]["metadata"]
    heading, paragraphs, parts = (
        _render_headline(metadata.get("headline", ""), name, opening, folder),
        [],
        [],
    )
    for index in group:
        cell = cells[index]
        if cell["cell_type"] == "markdown":
            cut = _cut_cell(cell, name, index, folder)
            heading = heading or (cut.heading if index == opening else "")
            paragraphs += [
                notes.heading_notes(cut, joined=index != opening),
                notes.spoken_text(cut.notes),
            ]
            parts.append(
                Part(cell_index=index, text=cut.text, source=cell["metadata"].get("source", ""))
            )
        else:
            parts.append(
                _make_code_part(
                    cell, name, index, folder, guesses, steps=metadata.get("layout") == "steps"
                )
            )
    ends_in_code = cells[group[-1]]["cell_type"] == "code"
    notes_below = notes.notes_after(cells, group[-1] + 1, name, folder) if ends_in_code else ""
    if parts[-1].outputs:
        paragraphs.append(notes_below)
    speaker_notes = metadata.get("say", "") or notes.with_full_stop(
        "\n".join(paragraph for paragraph in paragraphs if paragraph)
    )
    speaker_notes = (
        speaker_notes
        or notes.notes_before(cells, opening, folder)
        or notes.default_notes(parts)
        or notes.with_full_stop(notes_below)
    )
    # the question is the title
    if not heading and len(parts) == 1 and parts[0].axis and not parts[0].outputs:
        heading = parts[0].text.removeprefix("<p>").removesuffix("</p>")
        parts = [dataclasses.replace(parts[0], text="")]
    layout = metadata.get("layout") or (
        "close" if "recap" in metadata.get("tags", []) else _default_layout(parts)
    )
    if layout not in rules.LAYOUTS:
        raise rules.cell_error(
            name, opening, f"has the layout {layout!r}; the layouts are {', '.join(rules.LAYOUTS)}"
        )
    slide = Slide(
        heading=heading or _heading_above(cells, opening, name, folder) or html.escape(title),
        parts=tuple(parts),
        notes=speaker_notes,
        minutes=rules.minutes_to_talk(cells[opening], name, opening),
        layout=layout,
        here=tuple(metadata.get("here", ())),
        source="; ".join(dict.fromkeys(part.source for part in parts if part.source)),
    )
    rules.check_words(slide, name, opening)
    return slide


def _render_headline(headline: str, name: str, index: int, folder: Path) -> str:
    """Return a stated title as HTML, '' where there is none."""
    markup = (
        render_markdown(headline, folder=folder).strip().removeprefix("<p>").removesuffix("</p>")
    )
    rules.check_html(markup, name, index, "holds")
    rules.check_measurement(typed_measurement(markup), name, index, " in the headline")
    return markup


def _default_layout(parts: Sequence[Part]) -> str:
    """Return the layout of a slide, from its parts, where its cell states none."""
    outputs = [output for part in parts for output in part.outputs]
    code = any(part.code for part in parts)
    pages = [output.get("data", {}).get("text/html", "") for output in outputs]
    if any(set(deck.IMAGES) & set(output.get("data", {})) for output in outputs):
        return "figure"
    if any('class="number' in page for page in pages):
        return "numbers"
    if any("<tr" in page for page in pages):
        return "table"
    if outputs and not code:
        return "printed"
    if code:
        return "code"
    return "question" if deck.asks(parts) else "statement"


def _cut_cell(cell: Mapping[str, Any], name: str, index: int, folder: Path) -> CutCell:
    cut = cut_markdown(cell["source"], folder=folder, attachments=cell.get("attachments"))
    rules.check_html(f"{cut.heading}{cut.text}{cut.notes}", name, index, "holds")
    block_kind = refused_block(cut.text)
    if block_kind:
        remedy = (
            "write a paragraph, list or table below the heading, or show code with a code cell "
            "(slide-code)"
        )
        raise rules.cell_error(name, index, f"has {block_kind} as its first block; {remedy}")
    rules.check_measurement(typed_measurement(f"{cut.heading} {cut.text}"), name, index)
    return cut


def _heading_above(cells: Sequence[Mapping[str, Any]], index: int, name: str, folder: Path) -> str:
    for above in range(index, -1, -1):
        if cells[above]["cell_type"] == "markdown":
            attachments = cells[above].get("attachments")
            heading = cut_markdown(
                cells[above]["source"], folder=folder, attachments=attachments
            ).heading
            if heading:
                rules.check_html(heading, name, above, "holds")
                rules.check_measurement(typed_measurement(heading), name, above, " in the heading")
                return heading
    return ""


def _make_code_part(
    cell: Mapping[str, Any],
    name: str,
    index: int,
    folder: Path,
    guesses: Mapping[str, questions.Guess],
    *,
    steps: bool,
) -> Part:
    metadata = cell["metadata"]
    tags, mark = metadata.get("tags", []), metadata.get("mark", "")
    outputs = () if "slide-code" in tags else tuple(_outputs_to_show(cell, name, index, folder))
    if "slide-output" in tags and not outputs:
        raise rules.cell_error(
            name,
            index,
            "has no output to show; run `make lessons`, or tag a cell that prints something",
        )
    code = ""
    if "slide-output" not in tags:
        rules.check_measurement(
            measurement_in_comments(cell["source"]), name, index, " in a comment"
        )
        code = evidence.code(cell["source"], mark=mark, lines=metadata.get("lines", ()))
    answers = tuple(output for output in outputs if questions.question(output) is None)
    # What is printed beside an answer is not for the slide.
    if not metadata.get("printed", True) or any(questions.is_answer(output) for output in answers):
        answers = tuple(output for output in answers if "text" not in output)
    try:
        if "untitled" in metadata:
            answers = tuple(map(evidence.cut_title, answers))
        answers = tuple(evidence.table(output, metadata) for output in answers)
        if "numbers" in metadata:
            answers = (evidence.numbers_in(answers, metadata["numbers"]),)
        elif steps:
            answers = tuple(evidence.steps(output, metadata, guesses) for output in answers)
        else:
            answers = tuple(
                evidence.render_output(output, guesses, alone=len(answers) == 1)
                for output in answers
            )
    except evidence.EvidenceError as error:
        raise rules.cell_error(name, index, str(error)) from error
    if mark and not evidence.is_set_off(code, answers):
        raise rules.cell_error(
            name, index, f"has no line of code and no row with {mark!r} to set off"
        )
    return Part(
        cell_index=index,
        text=questions.as_text(outputs),
        axis=questions.axes(outputs, guesses),
        code=code,
        outputs=answers,
        source=metadata.get("source", "")
        or "; ".join(filter(None, map(questions.source, outputs))),
    )


def _outputs_to_show(
    cell: Mapping[str, Any], name: str, index: int, folder: Path
) -> list[Mapping[str, Any]]:
    outputs = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if output["output_type"] == "error":
            raise rules.cell_error(
                name,
                index,
                f"failed with {output.get('ename')}; mend the lesson and run `make lessons`",
            )
        if output.get("name") == "stderr":
            raise rules.cell_error(
                name,
                index,
                "writes to stderr (a warning?); mend its cause, or show the code alone: slide-code",
            )
        if _WIDGET in data:
            continue
        rules.check_output(data, name, index, folder)
        outputs.append(output)
    if cell.get("outputs") and not outputs:
        raise rules.cell_error(
            name,
            index,
            "shows a widget alone; a slide shows the static figure that stands beside one",
        )
    return outputs
