"""The answer beside the reader's number and the model's, and the reading and writing of such
numbers.
"""

from __future__ import annotations

import html
import math
from typing import Any

from helpers import results, units

NO_PREDICTION = "no prediction made"
_CLOSE_RATIO = 1.1
_NEVER_ZERO = ("x", "s", "B/s", "FLOP/s", "MAC/s", "FLOP/B", "Hz")


class Answer(results.Record):
    """The numbers of one experiment, all in ``unit``; None where there is none.

    ``found`` is the answer and ``evidence`` what it rests on: ``measured`` here, ``counted``,
    ``simulated``, ``published`` in ``source``, or ``stated`` by the system.
    """

    question: str
    unit: str
    predicted: float | None
    modelled: float | None
    found: float | None
    evidence: str = "measured"
    source: str = ""
    after_answer: bool = False

    @property
    def verdict(self) -> str:
        """One line on the reader's error."""
        if self.predicted is None:
            return f"predicted: {NO_PREDICTION}"
        late = " (predicted after the answer was shown)" if self.after_answer else ""
        if self.found is None:
            answer, held_to = self.modelled, "what the model says"
        else:
            answer, held_to = self.found, f"what was {self.evidence}"
        assert answer is not None  # there is one of the two
        return _error_line(self.predicted, answer, self.unit, held_to) + late

    @property
    def _numbers(self) -> dict[str, float | None]:
        return {"predicted": self.predicted, "modelled": self.modelled, self.evidence: self.found}

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and ratio to the answer, as text, of the prediction, the model and the
        answer.
        """
        return [
            (
                name,
                NO_PREDICTION if value is None else quantity(value, self.unit),
                self._beside(name, value),
            )
            for name, value in self._numbers.items()
            if value is not None or name == "predicted"
        ]

    def _beside(self, name: str, value: float | None) -> str:
        if name == self.evidence:
            return self.source
        if value is None or not self.found or value == self.found:
            return ""
        ratio = f"{value / self.found:.3g}"
        return f"as {self.evidence}" if ratio == "1" else f"{ratio} times what was {self.evidence}"

    def __str__(self) -> str:
        names, values, _ = zip(*self.rows(), strict=True)
        name_width, value_width = max(map(len, names)), max(map(len, values))
        lines = [
            f"{name:<{name_width}}  {value:<{value_width}}  {beside}".rstrip()
            for name, value, beside in self.rows()
        ]
        verdict = [] if self.predicted is None else [self.verdict]
        return "\n".join([self.question, *lines, *verdict])

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        numbers = self._numbers
        largest = max(abs(value or 0) for value in numbers.values()) or 1
        rows = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td "
            f"style='text-align:right'>{html.escape(value)}</td><td "
            f"style='text-align:left;min-width:12em'>{_bar(numbers[name], largest, name)}</td><td "
            f"style='text-align:left'>{html.escape(beside)}</td></tr>"
            for name, value, beside in self.rows()
        )
        verdict = f"<p>{html.escape(self.verdict)}</p>" if self.predicted is not None else ""
        question = html.escape(self.question)
        return f"<div><b>{question}</b><table><tbody>{rows}</tbody></table>{verdict}</div>"


def quantity(value: float, unit: str) -> str:
    """Return ``value`` as text: with a prefix where the unit takes one, else the plain number and
    the unit.
    """
    if unit in units.BASE_UNITS:
        return units.text(value, unit)
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits}{'' if unit in ('x', '%') else ' '}{unit}"


def read_number(text: str, unit: str) -> float:
    """Return the finite number in ``text`` in ``unit``; raises ValueError with a line for the
    reader.

    >>> read_number("3 ms", "s"), read_number("2.5x", "x"), read_number("24 GiB", "B")
    (0.003, 2.5, 25769803776)
    """
    if unit in units.BASE_UNITS:
        value = units.parse(text, unit, bare=True)
    else:
        value = units.parse(text.strip().removesuffix(unit).strip() or text, "")
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is too large to be a prediction")
    if value < 0 or (value == 0 and unit in _NEVER_ZERO):
        raise ValueError(
            f"{text!r}: what is measured here is {'above' if unit in _NEVER_ZERO else 'at least'} "
            "zero"
        )
    return value


def _error_line(predicted: float, answer: float, unit: str, held_to: str) -> str:
    if predicted == answer:
        return f"Your prediction is exactly {held_to}."
    if predicted <= 0 or answer <= 0:
        return f"Your prediction is off by {quantity(predicted - answer, unit)}."
    ratio = predicted / answer
    far = max(ratio, 1 / ratio)
    if far <= _CLOSE_RATIO:
        return f"Your prediction is within {math.ceil(100 * (far - 1))} % of {held_to}."
    return f"Your prediction is {far:.3g} times too {'high' if ratio > 1 else 'low'}."


def _bar(value: float | None, largest: float, name: str) -> str:
    if value is None:
        return ""
    colour = {"predicted": "#E69F00", "modelled": "#0072B2"}.get(name, "#009E73")
    width = 12 * abs(value) / largest
    return (
        "<span "
        f"style='display:inline-block;height:0.8em;width:{width:.2f}em;background:{colour}'></span>"
    )
