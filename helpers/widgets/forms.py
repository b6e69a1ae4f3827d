"""The two forms that a live notebook shows for a prediction: the question, and the answer that waits for it."""

from __future__ import annotations

import html
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from helpers.widgets import predictions, store

if TYPE_CHECKING:
    import ipywidgets

# Forms that show the same question's answer are told when it is locked.
_waiting: weakref.WeakValueDictionary[int, _Listener] = weakref.WeakValueDictionary()


class _Listener:
    """Keeps what an answer form does when its question is locked, for as long as the form lives."""

    def __init__(self, question: str, refresh: Callable[[], None]) -> None:
        self.question, self.refresh = question, refresh
        _waiting[id(self)] = self


def question_form(prediction: predictions.Prediction) -> ipywidgets.Widget:
    """Return the question with a place to type a number and a button that locks it."""
    import ipywidgets

    box = ipywidgets.Text(placeholder=f"a number in {prediction.unit}", description="I predict", continuous_update=True)
    button = ipywidgets.Button(description="Lock it in", tooltip="A locked prediction cannot be changed")
    message = ipywidgets.HTML()

    def settle() -> None:
        value = prediction.value
        if value is not None:
            box.value = predictions.quantity(value, prediction.unit)
            box.disabled = button.disabled = True
            button.description = "Locked"

    def submit(_: object) -> None:
        try:
            store.lock_in(prediction.question, prediction.unit, predictions.read_number(box.value, prediction.unit))
        except ValueError as error:
            message.value = html.escape(str(error))
            return
        message.value = ""
        settle()
        for listener in list(_waiting.values()):
            if listener.question == prediction.question:
                listener.refresh()

    button.on_click(submit)
    settle()
    question = ipywidgets.HTML(f"<b>{html.escape(prediction.question)}</b>")
    return ipywidgets.VBox([question, ipywidgets.HBox([box, button]), message])


def answer_form(prediction: predictions.Prediction, answer: predictions.Answer) -> ipywidgets.Widget:
    """Return the numbers of ``answer``, hidden until the reader has locked a prediction or does without one."""
    import ipywidgets

    shown = ipywidgets.HTML()
    skip = ipywidgets.Button(
        description="Show it without a prediction", layout=ipywidgets.Layout(width="auto", display="none")
    )

    def reveal() -> None:
        store.mark_seen(prediction.question, prediction.unit)
        shown.value = prediction.answered(answer)._repr_html_()
        skip.layout.display = "none"

    def refresh() -> None:
        if prediction.value is not None:
            reveal()
            return
        shown.value = "The answer is ready. Lock in your prediction above to see it."
        skip.layout.display = ""

    skip.on_click(lambda _: reveal())
    form = ipywidgets.VBox([shown, skip])
    form.listener = _Listener(prediction.question, refresh)
    refresh()
    return form
