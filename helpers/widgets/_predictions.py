"""Ask the reader for a number before an experiment, lock it, and set it beside the model and the
answer.

A live notebook shows two forms for a prediction: the question, and the answer that waits for it.
"""

from __future__ import annotations

import html
import math
import numbers
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from helpers import console
from helpers.checks import one_of
from helpers.widgets import _store as store
from helpers.widgets._answers import NO_PREDICTION, Answer, quantity, read_number

if TYPE_CHECKING:
    import ipywidgets

# Forms that show the same question's answer are told when it is locked.
_answer_forms: weakref.WeakSet[ipywidgets.Widget] = weakref.WeakSet()


@dataclass(frozen=True)
class Prediction:
    """A question put to the reader; :func:`predict` makes it, and :meth:`reveal` answers it."""

    question: str
    unit: str

    @property
    def value(self) -> float | None:
        """The locked number in ``unit``, or None while the reader has made no prediction."""
        return _locked_value(self.question)

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
        """Show prediction, model and answer side by side; in a live notebook, once the reader has
        predicted.

        What the cell shows after this line is held back as long as the answer is, because it would
        give it away.

        The answer stands under the name of what it rests on: ``measured`` here and now, ``counted``
        (in a run, a file, a program), ``simulated``, ``published`` (``source`` says where) or
        ``stated`` by the system. All are in the question's unit. Headless, and in a saved notebook,
        the reader's place says "no prediction made".

        Raises ValueError when no number is given, or several answers, or a published one without
        its source. Lesson 00.
        """
        evidence_values = {
            "measured": measured,
            "counted": counted,
            "simulated": simulated,
            "published": published,
            "stated": stated,
        }
        answers = {name: value for name, value in evidence_values.items() if value is not None}
        if not answers and modelled is None:
            raise ValueError(
                f"reveal what? Give modelled= or one of {', '.join(evidence_values)}, in the unit "
                "of the question"
            )
        if len(answers) > 1:
            raise ValueError(f"{' and '.join(answers)} are given; an answer rests on one of them")
        for name, value in {"modelled": modelled, **answers}.items():
            if value is not None and not (isinstance(value, numbers.Real) and math.isfinite(value)):
                raise ValueError(f"{name}={value!r} is no finite number in {self.unit}; give one")
        if ("published" in answers) != bool(source):
            raise ValueError(
                "a published number has its source, and no other has one: give published= and "
                "source="
            )
        [(evidence, found)] = answers.items() or [("measured", None)]
        answer = Answer(self.question, self.unit, None, modelled, found, evidence, source)
        from IPython.display import display

        if console.is_headless():
            display(answer)
            return
        form = _answer_form(answer)
        display(form)
        if _locked_value(self.question) is None:
            _hold_back(form.beside)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if console.is_headless():
            text = f"{self.question} [{self.unit}]\n{NO_PREDICTION}"
            display({"text/plain": text}, raw=True)
        else:
            display(_question_form(self.question, self.unit))


def predict(question: str, unit: str) -> Prediction:
    """Ask ``question``, whose answer is a number in ``unit``, and lock the number that the reader
    types.

    ``unit`` is one of ``units.BASE_UNITS``, in which the reader may write '3 ms' or '24 GiB', or
    any short word such as 'x' (times), '%' or 'messages'. Put the call on the cell's last line.
    Raises ValueError for an empty question.

    >>> predict("How many bytes are a million numbers in float32?", "B")
    Prediction(question='How many bytes are a million numbers in float32?', unit='B')

    Lesson 00.
    """
    one_of("question", question, str, "the question as text")
    one_of("unit", unit, str, "a unit as text, such as 's' or 'x'")
    if not question.strip():
        raise ValueError(
            "the question is empty; ask for one number that the experiment will measure"
        )
    return Prediction(question.strip(), unit)


def _locked_value(question: str) -> float | None:
    """Return the number that the reader has locked, None while there is none."""
    entry = store.read().get(question)
    return entry.value if entry else None


def _question_form(question: str, unit: str) -> ipywidgets.Widget:
    """Return the question with a place to type a number and a button that locks it."""
    import ipywidgets

    box = ipywidgets.Text(
        placeholder=f"a number in {unit}", description="I predict", continuous_update=True
    )
    button = ipywidgets.Button(
        description="Lock it in", tooltip="A locked prediction cannot be changed"
    )
    message = ipywidgets.HTML()

    def settle() -> None:
        value = _locked_value(question)
        if value is not None:
            box.value = quantity(value, unit)
            box.disabled = button.disabled = True
            button.description = "Locked"

    def submit(_: object) -> None:
        try:
            store.lock_in(question, unit, read_number(box.value, unit))
        except ValueError as error:
            message.value = html.escape(str(error))
            return
        message.value = ""
        settle()
        for form in list(_answer_forms):
            if form.question == question:
                form.refresh()

    button.on_click(submit)
    settle()
    label = ipywidgets.HTML(f"<b>{html.escape(question)}</b>")
    return ipywidgets.VBox([label, ipywidgets.HBox([box, button]), message])


def _answer_form(answer: Answer) -> ipywidgets.Widget:
    """Return the numbers of ``answer``, hidden until the reader has locked a prediction or does
    without one.
    """
    import ipywidgets

    output = ipywidgets.HTML()
    beside = ipywidgets.Output(layout=ipywidgets.Layout(display="none"))
    skip = ipywidgets.Button(
        description="Show it without a prediction",
        layout=ipywidgets.Layout(width="auto", display="none"),
    )

    def reveal() -> None:
        entry = store.mark_seen(answer.question, answer.unit)
        locked_answer = replace(answer, predicted=entry.value, after_answer=entry.after_answer)
        output.value = locked_answer._repr_html_()
        skip.layout.display = "none"
        beside.layout.display = ""

    def refresh() -> None:
        if _locked_value(answer.question) is not None:
            reveal()
            return
        output.value = "The answer is ready. Lock in your prediction above to see it."
        skip.layout.display = ""

    skip.on_click(lambda _: reveal())
    form = ipywidgets.VBox([output, skip, beside])
    form.question, form.refresh, form.beside = answer.question, refresh, beside
    _answer_forms.add(form)
    refresh()
    return form


# the boxes into which the running cell writes, the innermost last
_holding: list[ipywidgets.Output] = []


def _hold_back(box: ipywidgets.Output) -> None:
    """Send the running cell's output from here on into ``box``, which its form shows with the
    answer.
    """
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:  # a program that is no notebook shows nothing below
        return
    if not _holding:
        shell.events.register("post_run_cell", _end_holding)
    box.__enter__()
    _holding.append(box)


def _end_holding(*_: object) -> None:
    from IPython import get_ipython

    while _holding:
        _holding.pop().__exit__(None, None, None)
    get_ipython().events.unregister("post_run_cell", _end_holding)
