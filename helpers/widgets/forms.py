"""The two forms that a live notebook shows for a prediction: the question, and the answer that waits for it."""

from __future__ import annotations

import html
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from helpers.widgets import store
from helpers.widgets.answers import Answer, quantity, read_number

if TYPE_CHECKING:
    import ipywidgets

# Forms that show the same question's answer are told when it is locked.
_waiting: weakref.WeakValueDictionary[int, _Listener] = weakref.WeakValueDictionary()


class _Listener:
    """Keeps what an answer form does when its question is locked, for as long as the form lives."""

    def __init__(self, question: str, refresh: Callable[[], None]) -> None:
        self.question, self.refresh = question, refresh
        _waiting[id(self)] = self


def locked_value(question: str) -> float | None:
    """Return the number that the reader has locked, None while there is none."""
    entry = store.read().get(question)
    return entry.value if entry else None


def question_form(question: str, unit: str) -> ipywidgets.Widget:
    """Return the question with a place to type a number and a button that locks it."""
    import ipywidgets

    box = ipywidgets.Text(placeholder=f"a number in {unit}", description="I predict", continuous_update=True)
    button = ipywidgets.Button(description="Lock it in", tooltip="A locked prediction cannot be changed")
    message = ipywidgets.HTML()

    def settle() -> None:
        value = locked_value(question)
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
        for listener in list(_waiting.values()):
            if listener.question == question:
                listener.refresh()

    button.on_click(submit)
    settle()
    asked = ipywidgets.HTML(f"<b>{html.escape(question)}</b>")
    return ipywidgets.VBox([asked, ipywidgets.HBox([box, button]), message])


def answer_form(answer: Answer) -> ipywidgets.Widget:
    """Return the numbers of ``answer``, hidden until the reader has locked a prediction or does without one."""
    import ipywidgets

    shown = ipywidgets.HTML()
    skip = ipywidgets.Button(
        description="Show it without a prediction", layout=ipywidgets.Layout(width="auto", display="none")
    )

    def reveal() -> None:
        store.mark_seen(answer.question, answer.unit)
        entry = store.read().get(answer.question)
        locked = replace(answer, predicted=entry.value, after_answer=entry.after_answer) if entry else answer
        shown.value = locked._repr_html_()
        skip.layout.display = "none"

    def refresh() -> None:
        if locked_value(answer.question) is not None:
            reveal()
            return
        shown.value = "The answer is ready. Lock in your prediction above to see it."
        skip.layout.display = ""

    skip.on_click(lambda _: reveal())
    form = ipywidgets.VBox([shown, skip])
    form.listener = _Listener(answer.question, refresh)
    refresh()
    return form
