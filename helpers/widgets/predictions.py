"""Ask the reader for a number before an experiment, lock it, and set it beside the model and the answer."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from helpers import console
from helpers.checks import one_of
from helpers.widgets import forms
from helpers.widgets.answers import NO_PREDICTION, Answer


@dataclass(frozen=True)
class Prediction:
    """A question put to the reader; :func:`predict` makes it, and :meth:`reveal` answers it."""

    question: str
    unit: str

    @property
    def value(self) -> float | None:
        """The locked number in ``unit``, or None while the reader has made no prediction."""
        return forms.locked_value(self.question)

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
        display(forms.answer_form(answer))

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if console.is_headless():
            text = f"{self.question} [{self.unit}]\n{NO_PREDICTION}"
            display({"text/plain": text}, raw=True)
            return
        display(forms.question_form(self.question, self.unit))


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
