"""Ask the reader for a number before an experiment, lock it, and set it beside the model and the measurement."""

from __future__ import annotations

import html
import math
import numbers
from dataclasses import dataclass

from helpers import console, results, units
from helpers.widgets import store

NO_PREDICTION = "no prediction made"
_CLOSE_RATIO = 1.1
_NEVER_ZERO = ("x", "s", "B/s", "FLOP/s", "MAC/s", "FLOP/B", "Hz")


@dataclass(frozen=True)
class Answer(results.Result):
    """The three numbers of one experiment, all in ``unit``; None where there is none."""

    question: str
    unit: str
    predicted: float | None
    modelled: float | None
    measured: float | None
    after_answer: bool = False

    @property
    def verdict(self) -> str:
        """One line on the reader's error."""
        if self.predicted is None:
            return f"predicted: {NO_PREDICTION}"
        if self.measured is None:
            return "nothing was measured to hold the prediction to"
        late = " (predicted after the answer was shown)" if self.after_answer else ""
        return _error_line(self.predicted, self.measured, self.unit) + late

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and ratio to the measured number, as text, for predicted, modelled and measured."""
        numbers = (("predicted", self.predicted), ("modelled", self.modelled), ("measured", self.measured))
        return [(name, self._value(name, value), self._ratio(value)) for name, value in numbers]

    def _value(self, name: str, value: float | None) -> str:
        if value is None:
            return {"predicted": NO_PREDICTION, "modelled": "no model yet", "measured": "not measured"}[name]
        return quantity(value, self.unit)

    def _ratio(self, value: float | None) -> str:
        if value is None or not self.measured or value == self.measured:
            return ""
        return f"{value / self.measured:.3g} times measured"

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.question, *lines, *([self.verdict] if self.predicted is not None else [])])

    def _repr_html_(self) -> str:
        known = [abs(value) for value in (self.predicted, self.modelled, self.measured) if value is not None]
        largest = max(known, default=0) or 1
        rows = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td style='text-align:right'>{html.escape(value)}</td>"
            f"<td style='text-align:left;min-width:12em'>{_bar(number, largest, name)}</td>"
            f"<td style='text-align:left'>{html.escape(ratio)}</td></tr>"
            for (name, value, ratio), number in zip(
                self.rows(), (self.predicted, self.modelled, self.measured), strict=True
            )
        )
        verdict = f"<p>{html.escape(self.verdict)}</p>" if self.predicted is not None else ""
        return f"<div><b>{html.escape(self.question)}</b><table><tbody>{rows}</tbody></table>{verdict}</div>"


def quantity(value: float, unit: str) -> str:
    """Return ``value`` as text: with a prefix where the unit takes one, else the plain number and the unit."""
    if unit in units.BASE_UNITS:
        return units.text(value, unit)
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits}{'' if unit in ('x', '%') else ' '}{unit}"


def read_number(text: str, unit: str) -> float:
    """Return the finite number in ``text`` in ``unit``; raises ValueError with a line for the reader."""
    if unit in units.BASE_UNITS:
        value = units.parse(text, unit)
    else:
        value = units.parse(text.strip().removesuffix(unit).strip() or text, "")
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is too large to be a prediction")
    if value < 0 or (value == 0 and unit in _NEVER_ZERO):
        raise ValueError(f"{text!r}: what is measured here is {'above' if unit in _NEVER_ZERO else 'at least'} zero")
    return value


@dataclass(frozen=True)
class Prediction:
    """A question put to the reader; :func:`predict` makes it, and :meth:`reveal` answers it."""

    question: str
    unit: str

    @property
    def value(self) -> float | None:
        """The locked number in ``unit``, or None while the reader has made no prediction."""
        entry = store.read().get(self.question)
        return entry.value if entry else None

    def reveal(self, *, modelled: float | None = None, measured: float | None = None) -> None:
        """Show predicted, modelled and measured side by side; in a live notebook, once the reader has predicted.

        ``modelled`` and ``measured`` are in the question's unit. Headless, and in a saved notebook, the reader's
        place says "no prediction made". Raises ValueError when neither number is given. Lesson 00.
        """
        if modelled is None and measured is None:
            raise ValueError("reveal what? Give modelled=, measured= or both, in the unit of the question")
        for name, number in (("modelled", modelled), ("measured", measured)):
            if number is not None and not (isinstance(number, numbers.Real) and math.isfinite(number)):
                raise ValueError(f"{name}={number!r} is no finite number in {self.unit}; give one")
        from IPython.display import display

        if console.is_headless():
            display(Answer(self.question, self.unit, None, modelled, measured))
            return
        from helpers.widgets import forms

        display(forms.answer_form(self, modelled, measured))

    def answer(self, modelled: float | None, measured: float | None) -> Answer:
        """Return the :class:`Answer` with the reader's number as it is kept now."""
        entry = store.read().get(self.question)
        predicted, late = (entry.value, entry.after_answer) if entry else (None, False)
        return Answer(self.question, self.unit, predicted, modelled, measured, late)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if console.is_headless():
            text = f"{self.question} [{self.unit}]\n{NO_PREDICTION}"
            display({"text/plain": text}, raw=True)
            return
        from helpers.widgets import forms

        display(forms.question_form(self))


def predict(question: str, unit: str) -> Prediction:
    """Ask ``question``, whose answer is a number in ``unit``, and lock what the reader types.

    ``unit`` is one of ``units.BASE_UNITS``, in which the reader may write '3 ms' or '24 GiB', or any short word
    such as 'x' (times), '%' or 'messages'. Put the call on the cell's last line. Raises ValueError for an empty
    question. Lesson 00.
    """
    if not question.strip():
        raise ValueError("the question is empty; ask for one number that the experiment will measure")
    return Prediction(question.strip(), unit)


def _error_line(predicted: float, measured: float, unit: str) -> str:
    if predicted == measured:
        return "Your prediction is exactly what was measured."
    if predicted <= 0 or measured <= 0:
        return f"Your prediction is off by {quantity(predicted - measured, unit)}."
    ratio = predicted / measured
    far = max(ratio, 1 / ratio)
    if far <= _CLOSE_RATIO:
        return f"Your prediction is within {math.ceil(100 * (far - 1))} % of what was measured."
    return f"Your prediction is {far:.3g} times too {'high' if ratio > 1 else 'low'}."


def _bar(value: float | None, largest: float, name: str) -> str:
    if value is None:
        return ""
    colours = {"predicted": "#E69F00", "modelled": "#0072B2", "measured": "#009E73"}
    width = 12 * abs(value) / largest
    return f"<span style='display:inline-block;height:0.8em;width:{width:.2f}em;background:{colours[name]}'></span>"
