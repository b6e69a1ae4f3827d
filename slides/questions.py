"""Questions and their answers on slides: what is shown of each, and on which slide.

``helpers.predict`` asks and ``reveal`` answers. In a built notebook both say that no prediction was
made. On a slide the question stands alone with an axis to guess on, so that a room can predict; the
lecturer types its guesses in. The answer keeps its model and its measurement, as large numbers and
on the same axis, where the guesses stand, too.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bs4 import BeautifulSoup

from helpers.results import Result
from helpers.widgets import NO_PREDICTION, read_number
from slides.markdown import plain_text


@dataclass(frozen=True)
class Guess(Result):
    """A question of a notebook: the unit of its answer, and the axis to guess on, from ``low`` to
    ``high``.
    """

    question: str
    unit: str
    low: float
    high: float

    def axis(self, marks: Sequence[tuple[str, float]] = (), *, low: bool = False) -> str:
        """Return the HTML of the axis, with ``marks`` on it, or without them a place for the room's
        guesses.

        A ``low`` one takes half of the height.
        """
        unit = f" ({html.escape(self.unit)})" if self.unit else ""
        typed = (
            ""
            if marks
            else f"<label>The room's guesses{unit}, with commas:<input type=text></label>"
        )
        return (
            f'<div class="guess{" low" if low else ""}" '
            f'data-question="{html.escape(self.question)}" '
            f'data-unit="{html.escape(self.unit)}" '
            f'data-low="{self.low:g}" data-high="{self.high:g}" '
            f'data-marks="{html.escape(json.dumps(marks))}">'
            f"{typed}</div>"
        )


def read(cells: Sequence[Mapping[str, Any]]) -> dict[str, Guess]:
    """Return the questions that the cells ask, by their text.

    Where a predict cell states no ``axis`` it is wide enough for the answer and does not have it in
    its middle.
    """
    outputs = [(cell, output) for cell in cells for output in cell.get("outputs", [])]
    answers = {lines(output)[0]: output for _, output in outputs if is_answer(output)}
    guesses = {}
    for cell, output in outputs:
        text = question(output)
        if text is not None:
            unit = lines(output)[0].rpartition(" [")[2].removesuffix("]")
            numbers = [value for _, value in values(answers.get(text, {}), unit)]
            low, high = cell["metadata"].get("axis") or _axis(numbers, text, unit)
            guesses[text] = Guess(question=text, unit=unit, low=low, high=high)
    return guesses


def _axis(numbers: Sequence[float], text: str, unit: str) -> tuple[float, float]:
    positive = [value for value in numbers if value > 0]
    if unit == "%":
        return 0, 100
    if not positive or min(numbers) <= 0:
        return 0, 10 ** math.ceil(math.log10(max([*numbers, 1]) + 1))
    shift = sum(map(ord, text)) % 2
    low, high = (math.floor(math.log10(value)) for value in (min(positive), max(positive)))
    return 10.0 ** (low - 1 - shift), 10.0 ** (high + 3 - shift)


def lines(output: Mapping[str, Any]) -> list[str]:
    """Return the lines of an output's text, at least one; an answer's first is its question."""
    return output.get("data", {}).get("text/plain", "").splitlines() or [""]


def question(output: Mapping[str, Any]) -> str | None:
    """Return the question that ``output`` asks, without its unit, or None for another output."""
    first_line, _, reply = output.get("data", {}).get("text/plain", "").partition("\n")
    return first_line.rpartition(" [")[0] if reply.strip() == NO_PREDICTION else None


def is_predict(cell: Mapping[str, Any]) -> bool:
    """Return whether ``cell`` asks a question."""
    return any(question(output) is not None for output in cell.get("outputs", []))


def as_text(outputs: Sequence[Mapping[str, Any]]) -> str:
    """Return the questions that ``outputs`` ask as paragraphs of HTML, '' where there is none."""
    texts = [question(output) for output in outputs]
    return "".join(f"<p>{as_html(text)}</p>" for text in texts if text is not None)


def as_html(text: str) -> str:
    """Return a question as HTML: what stands in it between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def axes(outputs: Sequence[Mapping[str, Any]], guesses: Mapping[str, Guess]) -> str:
    """Return the axes to guess on, of the questions that ``outputs`` ask."""
    return "".join(guesses[text].axis() for text in map(question, outputs) if text is not None)


def is_answer(output: Mapping[str, Any]) -> bool:
    """Return whether ``output`` is that of a ``reveal``."""
    text = lines(output)
    return len(text) > 2 and text[1].startswith("predicted  ") and "text/html" in output["data"]


def rows(output: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name, value and remark of each number of an answer; no prediction that nobody made."""
    table = BeautifulSoup(output.get("data", {}).get("text/html", ""), "html.parser").find_all("tr")
    row_texts = [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in table]
    return [(name, value, beside) for name, value, _, beside in row_texts if value != NO_PREDICTION]


def source(output: Mapping[str, Any]) -> str:
    """Return who published a number of an answer, '' where nobody did and for another output."""
    numbers = rows(output) if is_answer(output) else []
    return next((remark for name, _, remark in numbers if name == "published"), "")


def values(output: Mapping[str, Any], unit: str) -> list[tuple[str, float]]:
    """Return the numbers of an answer in ``unit``, each with its name."""
    return [(name, read_number(value.replace(",", ""), unit)) for name, value, _ in rows(output)]


def asks(texts: Sequence[str]) -> bool:
    """Return whether one of ``texts``, pieces of HTML, asks something."""
    return any("?" in plain_text(text) for text in texts)
