"""The rules of a slide: what a marked cell may carry, and what a slide may not be.

Every rule raises SlideError, which names the lesson, the cell and what to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slides import deck, players, questions
from slides.deck import Slide
from slides.markdown import (
    formula_of_words,
    is_described,
    outside_reference,
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


class SlideError(ValueError):
    """A marked cell cannot be a slide; the message names the lesson, the cell and what to
    change.
    """


def cell_error(name: str, index: int, problem: str) -> SlideError:
    """Return the error of the cell at ``index`` in the lesson ``name``."""
    return SlideError(f"{name}, cell {index + 1}, {problem}")


def slide_tags(cell: Mapping[str, Any], name: str, index: int) -> set[str]:
    """Return the slide tags of a cell; refuse unknown ones and those that contradict each other."""
    tags = {tag for tag in cell["metadata"].get("tags", []) if tag.startswith("slide")}
    unknown = sorted(tags - set(TAGS))
    if unknown:
        raise cell_error(
            name, index, f"has the tag {unknown[0]!r}; the tags of slides are {', '.join(TAGS)}"
        )
    if {"slide", "slide-more"} <= tags:
        raise cell_error(
            name, index, "is tagged both 'slide' and 'slide-more'; keep the one that is meant"
        )
    if {"slide-code", "slide-output"} <= tags:
        raise cell_error(
            name, index, "is tagged 'slide-code' and 'slide-output'; leave both out to show both"
        )
    if tags and cell["cell_type"] != "code" and tags & {"slide-code", "slide-output"}:
        raise cell_error(
            name,
            index,
            "holds text, so that it has no code and no output; use 'slide' or 'slide-more'",
        )
    if tags and cell["cell_type"] not in ("code", "markdown"):
        raise cell_error(
            name,
            index,
            f"is a {cell['cell_type']} cell; only markdown and code cells go on a slide",
        )
    return tags


def minutes_to_talk(cell: Mapping[str, Any], name: str, index: int) -> float:
    """Return the minutes of a cell that opens a slide; refuse a cell without them."""
    minutes = cell["metadata"].get("minutes")
    if (
        isinstance(minutes, bool)
        or not isinstance(minutes, int | float)
        or not 0 < minutes < float("inf")
    ):
        stated_minutes = "no minutes" if minutes is None else f"minutes={minutes!r}"
        raise cell_error(
            name,
            index,
            f"opens a slide and has {stated_minutes}; write the time to talk after its tags: "
            "minutes=2",
        )
    return minutes


def check_title(markup: str, name: str) -> None:
    """Refuse a measurement or a formula of plain words in a title and objectives."""
    measurement, formula = typed_measurement(markup), formula_of_words(markup)
    if measurement:
        raise SlideError(
            f"{name} types the measurement {measurement!r} in its title or objectives; leave the "
            "number out"
        )
    if formula:
        raise SlideError(
            f"{name} has plain words that become a formula in its title or objectives, {formula!r}"
        )


def check_html(markup: str, name: str, index: int, verb: str) -> None:
    """Refuse HTML that loads a file, has a figure without a text, or a formula of plain words."""
    reference = outside_reference(markup)
    if reference:
        raise cell_error(
            name, index, f"{verb} {reference}; a deck loads nothing and runs no code of a cell"
        )
    figure = undescribed_figure(markup)
    if figure:
        remedy = "describe it: ![a sentence](file.png), alt=, or plotting.show(figure, alt=...)"
        raise cell_error(name, index, f"shows a figure without an alt text ({figure}); {remedy}")
    formula = formula_of_words(markup)
    if formula:
        remedy = (
            r"write 'dollars' for an amount, \text{...} for words in a formula, and no space "
            r"inside the dollars"
        )
        raise cell_error(
            name, index, f"{verb} plain words that become a formula, {formula!r}; {remedy}"
        )


def check_measurement(measurement: str | None, name: str, index: int, where: str = "") -> None:
    """Refuse ``measurement``, one that an author typed, where there is one."""
    if measurement:
        remedy = "show the notebook's own output"
        raise cell_error(
            name, index, f"types the measurement {measurement!r}{where} on the slide; {remedy}"
        )


def check_output(data: Mapping[str, Any], name: str, index: int, folder: Path) -> None:
    """Refuse an output that a slide cannot show, or a figure without an alt text."""
    if data and not set(SHOWN) & set(data):
        raise cell_error(
            name,
            index,
            f"has an output that a slide cannot show ({', '.join(data)}); show it as HTML or PNG",
        )
    markup = players.open_frames(data.get("text/html", "")) + render_markdown(
        data.get("text/markdown", ""), folder=folder
    )
    check_html(markup, name, index, "has an output with")
    if set(deck.IMAGES) & set(data) and not is_described(str(data.get("text/plain", ""))):
        raise cell_error(
            name, index, "shows a figure without an alt text; use plotting.show(figure, alt=...)"
        )


def check_words(slide: Slide, name: str, index: int) -> None:
    """Refuse a slide of more than :data:`MOST_WORDS` words."""
    if slide.words > MOST_WORDS:
        problem = f"makes a slide of {slide.words} words; at most {MOST_WORDS} are allowed"
        raise cell_error(
            name,
            index,
            f"{problem}: move what is said below the first paragraph or list, into the notes",
        )


def check_answers(slides: Sequence[Slide], cells: Sequence[Mapping[str, Any]], name: str) -> None:
    """Refuse a question on the slide of its answer, and an answer that no slide has asked for."""
    has_asked = False
    known_questions: set[str] = set()  # the questions that were on a slide
    for slide in slides:
        outputs = [
            output for part in slide.parts for output in cells[part.cell_index].get("outputs", ())
        ]
        known_questions |= {
            question for question in map(questions.question, outputs) if question is not None
        }
        opening = slide.parts[0].cell_index
        output_indices = [part.cell_index for part in slide.parts if part.outputs]
        asks = deck.asks(slide.parts)
        remedy = "open a slide of its own for the output: tag its cell 'slide', with minutes"
        if output_indices and asks:
            raise cell_error(
                name, opening, f"asks a question and shows an output on one slide; {remedy}"
            )
        text_indices = [part.cell_index for part in slide.parts if part.text]
        if (
            output_indices
            and text_indices
            and any(
                questions.is_predict(cell) for cell in cells[text_indices[0] : output_indices[-1]]
            )
        ):
            raise cell_error(
                name, opening, f"joins a text above a predict to an output below it; {remedy}"
            )
        answers = [
            output for part in slide.parts for output in part.outputs if questions.is_answer(output)
        ]
        if not has_asked and any(
            questions.lines(output)[0] not in known_questions for output in answers
        ):
            remedy = (
                "tag the cell of its predict 'slide-output', to join the slide before or with "
                "'slide' and minutes"
            )
            problem = "shows the answer of a reveal, and no slide since the last output has asked"
            raise cell_error(name, opening, f"{problem}; {remedy}")
        has_asked = asks or (has_asked and not output_indices)
