"""The checks' side: a sandbox, its cells run one by one, and its functions called as if they were
here.

Only inputs go in and only values come out. What an argument allows a submission to do with an
object that stays here (to call a function, to read an element of a matrix) stands in ``_ALLOWED``,
and nothing else of it can be reached.
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from helpers import exercises
from helpers.studies import gpu_execution, simulators
from tools.grading import outputs, sandbox
from tools.grading.sandbox import Limits, Sandbox
from tools.grading.student import wire

_START_S = 120.0
_MOST_KEPT = 200_000  # objects handed to one submission
_LONGEST_PLACE = 200  # numbers: a few for each loop and each call that a kernel is in
_LARGEST_IN_PLACE = 2**31 - 1  # of bytecodes and iterations
_FUNCTIONS = ("function", "method", "builtin_function_or_method")
# names the code of what stands for an answer, so that no line of this file is taken for one of it
_ANSWER = "<answer>"
YOUR_LINE = "in your line: "
# The type, what is sent with it (it does not change), what may be called, and whether it has
# elements.
_ALLOWED: tuple[tuple[type[Any], tuple[str, ...], tuple[str, ...], bool], ...] = (
    (
        simulators.Thread,
        ("block_row", "block_column", "thread_row", "thread_column", "tile", "row", "column"),
        ("shared",),
        False,
    ),
    (simulators.Matrix, ("shape",), (), True),
    (
        gpu_execution.Thread,
        (
            "block_x",
            "block_y",
            "thread_x",
            "thread_y",
            "block_width",
            "block_height",
            "x",
            "y",
            "row",
            "column",
            "thread_row",
            "thread_column",
            "tile",
        ),
        ("shared",),
        False,
    ),
    (gpu_execution.DeviceArray, ("shape",), (), True),
)


def _place(reported: object) -> gpu_execution.ReportedPlace:
    """Return the place in its kernel that a submission reports.

    Raises ValueError for what is no place.
    """
    if (
        type(reported) is not list
        or len(reported) > _LONGEST_PLACE
        or {type(part) for part in reported} - {int}
    ):
        raise ValueError("a place is a list of whole numbers")
    if any(not 0 <= part <= _LARGEST_IN_PLACE for part in reported):
        raise ValueError("a place has a number that no program reaches")
    return gpu_execution.ReportedPlace(reported)


def _load(target: Any, index: Any, place: object) -> Any:
    return (
        target.load_at(index, _place(place))
        if isinstance(target, gpu_execution.DeviceArray)
        else target[index]
    )


def _store(target: Any, index: Any, value: Any, place: object) -> None:
    if isinstance(target, gpu_execution.DeviceArray):
        target.store_at(index, value, _place(place))
    else:
        target[index] = value


class Lost(BaseException):
    """The submission's process has gone, or runs for too long; no except in the checks may take it
    for an answer.
    """


class Session:
    """A submission that runs in ``sandbox``, until ``deadline`` (of ``time.monotonic``)."""

    def __init__(self, sandbox: Sandbox, limits: Limits, deadline: float) -> None:
        self._sandbox, self._limits, self._deadline = sandbox, limits, deadline
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._raised: list[Exception] = []
        self.shown: list[dict[str, Any]] = []  # what the last cell put out
        self._ends = min(deadline, time.monotonic() + _START_S)
        if self._receive() != {"ready": True}:
            raise Lost("it did not start")

    def step(self) -> None:
        """Begin a step: from now on it has ``limits.step_s`` seconds of the processor."""
        self._sandbox.allow(self._limits.step_s)
        self._ends = min(
            self._deadline, time.monotonic() + self._limits.patience * self._limits.step_s
        )

    def run(self, source: str) -> str:
        """Run a cell; return what it raised and, below, the student's line; "" where it raised
        none.

        Raises Lost.
        """
        self.step()
        self._send({"run": source})
        answer = self._receive()
        self.shown = outputs.safe(answer.get("shown"))
        return _with_line(
            " ".join(str(answer.get("ran", ""))[:2000].split()), str(answer.get("line", ""))
        )

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function that calls the submission's ``name``: what it returns, raises and
        changes comes back.
        """

        def call(*arguments: Any) -> Any:
            is_kernel = any(isinstance(argument, gpu_execution.Thread) for argument in arguments)
            encoded = wire.encode(list(arguments), self._encode_object)
            answer = self._request({"call": name, "with": encoded, "follow": is_kernel})
            if "changed" in answer:
                _copy_back(list(arguments), self._value(answer["changed"]))
            return self._value(answer.get("value"))

        call.__name__ = name
        call.__code__ = call.__code__.replace(co_filename=_ANSWER)
        return call

    def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and serve what is asked meanwhile, until its answer comes."""
        self._send(message)
        while "do" in (answer := self._receive()):
            self._send(self._serve(answer))
        if "raised" in answer:
            raise self._exception(
                str(answer["raised"]), str(answer.get("said", "")), str(answer.get("line", ""))
            )
        return answer

    def _serve(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a submission asks of an object that is kept here, and return the answer."""
        arguments = self._value(request.get("with"))
        if type(arguments) is not list:
            raise Lost("it sent what is no request")
        try:
            return {
                "value": wire.encode(
                    self._do(request.get("do"), request.get("to"), arguments), self._encode_object
                )
            }
        except Exception as error:
            self._raised.append(error)
            return {"raised": type(error).__name__, "said": str(error)[:2000]}

    def _do(self, verb: object, number: object, arguments: Sequence[Any]) -> Any:
        if type(number) is not int or not 0 <= number < len(self._objects):
            raise ValueError("there is no such object")
        target = self._objects[number]
        if verb == "call" and type(target).__name__ in _FUNCTIONS:
            return target(*arguments)
        for kind, _, methods, has_elements in _ALLOWED:
            if isinstance(target, kind):
                if verb == "get" and arguments[0] in methods:
                    return getattr(target, arguments[0])
                if verb == "len":
                    return len(target)
                if verb == "item" and has_elements:
                    return _load(target, *arguments)
                if verb == "put" and has_elements:
                    return _store(target, *arguments)
        raise AttributeError(
            f"{type(target).__name__!r} has no {arguments[0] if arguments else verb!r}"
        )

    def _encode_object(self, value: Any) -> Any:
        """Return the JSON of an argument that is no data.

        Raises TypeError for one that no exercise has handed out.
        """
        if dataclasses.is_dataclass(value) and not isinstance(
            value, simulators.Thread | gpu_execution.Thread | type
        ):
            fields = {
                field.name: wire.encode(getattr(value, field.name), self._encode_object)
                for field in dataclasses.fields(value)
            }
            return {"c": [type(value).__module__, type(value).__qualname__, fields]}
        attributes = next(
            (names for kind, names, _, _ in _ALLOWED if isinstance(value, kind)), None
        )
        if attributes is None and type(value).__name__ not in _FUNCTIONS:
            raise TypeError(
                f"a check hands out {value!r:.80}; say in tools/grading/session.py what it allows"
            )
        if id(value) not in self._numbers:
            if len(self._objects) >= _MOST_KEPT:
                raise Lost(f"it asked for more than {_MOST_KEPT} objects")
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)  # kept, so that its id stays its own
        names = {
            name: wire.encode(getattr(value, name), self._encode_object)
            for name in attributes or ()
        }
        return {
            "o": [self._numbers[id(value)], getattr(value, "__name__", type(value).__name__), names]
        }

    def _value(self, data: Any) -> Any:
        try:
            return wire.decode(data, self._decode_object)
        except wire.Broken as error:
            raise Lost(f"its answer was {error}") from error

    def _decode_object(self, tag: str, body: Any) -> Any:
        if tag == "y":
            return exercises.not_yet
        if tag == "g" and type(body) is int:
            return self._steps(body)
        if tag == "c":
            return wire.SAME
        if tag == "o" and type(body) is int and 0 <= body < len(self._objects):
            return self._objects[body]
        if tag == "x" and isinstance(body, str):
            return wire.Unsendable(body[:200])
        raise wire.Broken("no value")

    def _steps(self, number: int) -> Iterator[gpu_execution.ReportedPlace]:
        while (answer := self._request({"next": number})).get("more") is True:
            yield _place(answer.get("place"))

    def _exception(self, name: str, message: str, line: str) -> Exception:
        """Return an exception of the submission: the one that was raised here and went through it,
        or one like it.
        """
        for error in reversed(self._raised):
            if type(error).__name__ == name and str(error)[:2000] == message:
                return error
        kind = type(name if name.isidentifier() else "Exception", (Exception,), {})
        return kind(_with_line(message, line))

    def _send(self, message: dict[str, Any]) -> None:
        self._with_deadline(wire.send, message)

    def _receive(self) -> dict[str, Any]:
        return self._with_deadline(wire.receive, sandbox.without_folders)

    def _with_deadline(self, work: Callable[..., Any], *message: Any) -> Any:
        try:
            return work(_Until(self._sandbox.channel, self._ends), *message)
        except TimeoutError:
            is_over = self._ends >= self._deadline
            step_s = self._limits.patience * self._limits.step_s
            limit = f"{self._limits.total_s:.3g} s in all" if is_over else f"{step_s:.3g} s"
            raise Lost(f"it ran for more than {limit}") from None
        except wire.Broken as error:
            raise Lost(self._sandbox.ended() or str(error)) from None


def _with_line(message: str, line: str) -> str:
    return f"{message}\n{YOUR_LINE}{' '.join(line.split())[:200]}" if line else message


class _Until:
    """A socket on which nothing waits beyond ``ends``, however slowly the bytes come."""

    def __init__(self, channel: socket.socket, ends: float) -> None:
        self._channel, self._ends = channel, ends

    def _wait(self) -> None:
        remaining_s = self._ends - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._channel.settimeout(remaining_s)

    def recv(self, count: int) -> bytes:
        self._wait()
        return self._channel.recv(count)

    def sendall(self, data: bytes) -> None:
        self._wait()
        self._channel.sendall(data)


def _copy_back(original: Any, copy: Any) -> Any:
    """Make lists, dicts and arrays of the caller hold what the submission left in its copies;
    return the new value.
    """
    if copy is wire.SAME:
        return original
    if type(original) is list and type(copy) is list:
        original[:] = [_copy_back(*pair) for pair in zip(original, copy, strict=False)] + copy[
            len(original) :
        ]
        return original
    if type(original) is dict and type(copy) is dict:
        merged = {
            key: _copy_back(original[key], value) if key in original else value
            for key, value in copy.items()
        }
        original.clear()
        original.update(merged)
        return original
    if (
        hasattr(original, "dtype")
        and hasattr(copy, "dtype")
        and original.shape == copy.shape
        and original.dtype == copy.dtype
    ):
        original[...] = copy
        return original
    return copy
