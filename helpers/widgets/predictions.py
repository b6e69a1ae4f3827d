"""Ask the reader for a number before an experiment, lock it, and set it beside the model and the answer."""

from __future__ import annotations

import html
import math
import numbers
from dataclasses import dataclass, replace

from helpers import console, results, units
from helpers.checks import one_of
from helpers.widgets import store

NO_PREDICTION = "no prediction made"
_CLOSE_RATIO = 1.1
_NEVER_ZERO = ("x", "s", "B/s", "FLOP/s", "MAC/s", "FLOP/B", "Hz")


@dataclass(frozen=True)
class Answer(results.Result):
    """The numbers of one experiment, all in ``unit``; None where there is none.

    ``found`` is the answer and ``evidence`` what it rests on: ``measured`` here, ``counted``, ``simulated``,
    ``published`` in ``source``, or ``stated`` by the system.
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
        if self.found is not None:
            return _error_line(self.predicted, self.found, self.unit, f"what was {self.evidence}") + late
        return _error_line(self.predicted, self.modelled, self.unit, "what the model says") + late

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and ratio to the answer, as text, of the prediction, the model and the answer."""
        numbers = (("predicted", self.predicted), ("modelled", self.modelled), (self.evidence, self.found))
        shown = [(name, value) for name, value in numbers if value is not None or name == "predicted"]
        return [
            (name, NO_PREDICTION if value is None else quantity(value, self.unit), self._beside(name, value))
            for name, value in shown
        ]

    def _beside(self, name: str, value: float | None) -> str:
        if name == self.evidence:
            return self.source
        if value is None or not self.found or value == self.found:
            return ""
        return f"{value / self.found:.3g} times {self.evidence}"

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.question, *lines, *([self.verdict] if self.predicted is not None else [])])

    def _repr_html_(self) -> str:
        numbers = {"predicted": self.predicted, "modelled": self.modelled, self.evidence: self.found}
        largest = max((abs(value) for value in numbers.values() if value is not None), default=0) or 1
        rows = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td style='text-align:right'>{html.escape(value)}</td>"
            f"<td style='text-align:left;min-width:12em'>{_bar(numbers[name], largest, name)}</td>"
            f"<td style='text-align:left'>{html.escape(beside)}</td></tr>"
            for name, value, beside in self.rows()
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
        value = units.parse(text, unit, bare=True)
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

    def reveal(
        self,
        *,
        modelled: float | None = None,
        measured: float | None = None,
        counted: float | None = None,
        simulated: float | None = None,
        published: float | None = None,
        stated: float | None = None,
        source: str = "",
    ) -> None:
        """Show prediction, model and answer side by side; in a live notebook, once the reader has predicted.

        The answer stands under the name of what it rests on: ``measured`` here and now, ``counted`` (in a run, a file,
        a program), ``simulated``, ``published`` (``source`` says where) or ``stated`` by the system. All are in the
        question's unit. Headless, and in a saved notebook, the reader's place says "no prediction made".

        Raises ValueError when no number is given, or several answers, or a published one without its source. Lesson 00.
        """
        given = {"measured": measured, "counted": counted, "simulated": simulated, "published": published,
                 "stated": stated}  # fmt: skip
        answers = {name: number for name, number in given.items() if number is not None}
        if not answers and modelled is None:
            raise ValueError(f"reveal what? Give modelled= or one of {', '.join(given)}, in the unit of the question")
        if len(answers) > 1:
            raise ValueError(f"{' and '.join(answers)} are given; an answer rests on one of them")
        for name, number in {"modelled": modelled, **answers}.items():
            if number is not None and not (isinstance(number, numbers.Real) and math.isfinite(number)):
                raise ValueError(f"{name}={number!r} is no finite number in {self.unit}; give one")
        if ("published" in answers) != bool(source):
            raise ValueError("a published number has its source, and no other has one: give published= and source=")
        [(evidence, found)] = answers.items() or [("measured", None)]
        answer = Answer(self.question, self.unit, None, modelled, found, evidence, source)
        from IPython.display import display

        if console.is_headless():
            display(answer)
            return
        from helpers.widgets import forms

        display(forms.answer_form(self, answer))

    def answered(self, answer: Answer) -> Answer:
        """Return ``answer`` with the reader's number as it is kept now."""
        entry = store.read().get(self.question)
        if entry is None:
            return answer
        return replace(answer, predicted=entry.value, after_answer=entry.after_answer)

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
    one_of("question", question, str, "the question as text")
    one_of("unit", unit, str, "a unit as text, such as 's' or 'x'")
    if not question.strip():
        raise ValueError("the question is empty; ask for one number that the experiment will measure")
    return Prediction(question.strip(), unit)


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
    return f"<span style='display:inline-block;height:0.8em;width:{width:.2f}em;background:{colour}'></span>"
