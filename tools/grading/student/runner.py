"""The student's side: run cells as they come, and call the functions that they define.

Runs within the sandbox. Whatever the submission does to this process, it can only change what it
sends: data, which the other side checks.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import inspect
import io
import itertools
import os
import resource
import shutil
import socket
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tools.grading.student import wire
else:
    import wire  # the file beside this one, in the sandbox

_MESSAGE_CHARACTERS = 2000
# of what a cell puts out; the last two in characters
_MOST_PARTS, _MOST_PRINTED, _MOST_SHOWN = 8, 6_000, 600_000


class Remote:
    """An object that the other side keeps; what it allows is done there, one request each."""

    def __init__(self, link: GraderLink, number: int, name: str, names: dict[str, Any]) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_values", names)
        object.__setattr__(self, "__name__", name)

    def __getattr__(self, name: str) -> Any:
        values = object.__getattribute__(self, "_values")
        return values[name] if name in values else self._link.ask(self._number, "get", name)

    def __call__(self, *arguments: Any) -> Any:
        return self._link.ask(self._number, "call", *arguments)

    def __getitem__(self, index: Any) -> Any:
        return self._link.ask(self._number, "item", index, self._link.place(sys._getframe(1)))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._link.ask(self._number, "put", index, value, self._link.place(sys._getframe(1)))

    def __len__(self) -> int:
        return self._link.ask(self._number, "len")

    def __bool__(self) -> bool:  # else a thread, which has no length, could not be asked
        return True

    def __repr__(self) -> str:
        return f"<{object.__getattribute__(self, '__name__')}>"


class Shown(io.TextIOBase):
    """Takes what a cell prints and shows, and keeps the beginning of it: ``parts``, for the page of
    the student.
    """

    def __init__(self) -> None:
        self.parts: list[dict[str, str]] = []

    def write(self, text: str) -> int:
        if not (self.parts and "printed" in self.parts[-1]):
            self._add({"printed": ""})
        printed = self.parts[-1].get("printed")
        if printed is not None:
            self.parts[-1]["printed"] = printed + text[: _MOST_PRINTED - len(printed)]
        return len(text)

    def fileno(self) -> int:
        return 1

    def publish(self, data: dict[str, Any], *_: object, **__: object) -> None:
        """Keep what ``display`` shows: a picture or a table, and its text."""
        kinds = {"text": "text/plain", "html": "text/html", "png": "image/png"}
        part = {name: data[kind] for name, kind in kinds.items() if kind in data}
        if isinstance(part.get("png"), bytes):
            part["png"] = base64.b64encode(part["png"]).decode("ascii")
        self._add(
            {
                name: text
                for name, text in part.items()
                if isinstance(text, str) and len(text) <= _MOST_SHOWN
            }
        )

    def value(self, value: Any, formatter: Any) -> None:
        """Keep the value of a cell's last line."""
        if value is not None:
            self.publish(formatter.format(value)[0])

    def figures(self) -> None:
        """Keep the figures that are open, as a notebook shows them after a cell, and close them."""
        drawing = sys.modules.get("matplotlib.pyplot")
        if drawing is None:
            return
        for number in drawing.get_fignums()[:_MOST_PARTS]:
            picture = io.BytesIO()
            try:
                drawing.figure(number).savefig(picture, format="png", dpi=72)
            except Exception as error:  # of the student's own figure
                self._add({"text": f"a figure that cannot be drawn: {type(error).__name__}"})
            else:
                self.publish({"image/png": picture.getvalue(), "text/plain": "a figure"})
        drawing.close("all")

    def _add(self, part: dict[str, str]) -> None:
        if len(self.parts) < _MOST_PARTS:
            self.parts.append(part)


class GraderLink:
    """The socket to the other side, and the names that the cells define."""

    def __init__(self, channel: socket.socket) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        self._channel = channel
        self._shell = InteractiveShell.instance(
            config=Config({"HistoryManager": {"enabled": False}})
        )
        self._shown = Shown()
        self._shell.display_pub.publish = self._shown.publish  # type: ignore[method-assign]  # of this shell alone
        self._shell.display_trap.hook = lambda value: self._shown.value(
            value, self._shell.display_formatter
        )
        # What a cell raised is sent by itself.
        self._shell._showtraceback = lambda *_: None  # type: ignore[method-assign]  # of this shell alone
        self._running: dict[int, tuple[Any, dict[FrameType, Any] | None]] = {}
        self._numbers = itertools.count()
        self._follower: Any = None
        # of the kernel's thread that runs; None for other functions
        self._frames: dict[FrameType, Any] | None = None

    def serve(self) -> None:
        """Answer requests until the other side closes the socket."""
        wire.send(self._channel, {"ready": True})
        while True:
            message = wire.receive(self._channel)
            wire.send(self._channel, self._answer(message))

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if "run" in message:
            return self._run(message["run"])
        try:
            if "next" in message:
                return self._step(message["next"])
            return self._call(message["call"], message["with"], {} if message["follow"] else None)
        except Exception as error:
            return {
                "raised": type(error).__name__,
                "said": str(error)[:_MESSAGE_CHARACTERS],
                "line": _line(error),
            }

    def _run(self, source: str) -> dict[str, Any]:
        self._shown.parts = []
        with contextlib.redirect_stdout(self._shown):
            result = self._shell.run_cell(source, store_history=False)
            self._shown.figures()
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            return {"ran": "", "shown": self._shown.parts}
        # str would name a file nobody has
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        ran = f"{type(error).__name__}: {message}"[:_MESSAGE_CHARACTERS]
        return {"ran": ran, "line": _line(error), "shown": self._shown.parts}

    def _call(self, name: str, encoded: Any, frames: dict[FrameType, Any] | None) -> dict[str, Any]:
        arguments = list(wire.decode(encoded, self._decode_object))
        before = wire.encode(arguments, self._encode_object)
        if name not in self._shell.user_ns:
            raise NameError(f"name {name!r} is not defined")
        with self._follow(frames):
            value = self._shell.user_ns[name](*arguments)
        after = wire.encode(arguments, self._encode_object)
        answer = {"value": wire.encode(value, self._encode_object)}
        return answer if before == after else {**answer, "changed": after}

    def _step(self, number: int) -> dict[str, Any]:
        generator, frames = self._running[number]
        with self._follow(frames):
            try:
                next(generator)
            except StopIteration:
                del self._running[number]
                return {"more": False}
            return {
                "more": True,
                "place": [] if frames is None else list(self._follower.barrier(generator)),
            }

    def _follow(
        self, frames: dict[FrameType, Any] | None
    ) -> contextlib.AbstractContextManager[None]:
        """Return the context of a call: a kernel is followed through its loops, for its place."""
        self._frames = frames
        if frames is None:
            return contextlib.nullcontext()
        if self._follower is None:
            from helpers.studies.gpu_execution import Follower

            self._follower = Follower()
        return self._follower.of(frames)

    def place(self, frame: FrameType) -> list[int]:
        """Return the place of ``frame`` in a kernel that runs for a thread of the other side; else
        an empty one.
        """
        return [] if self._frames is None else list(self._follower.place(frame))

    def ask(self, number: int, verb: str, *arguments: Any) -> Any:
        """Have the other side do ``verb`` with an object that it keeps, and return or raise what it
        answers.
        """
        wire.send(
            self._channel,
            {"do": verb, "to": number, "with": wire.encode(list(arguments), self._encode_object)},
        )
        answer = wire.receive(self._channel)
        if "raised" in answer:
            raise _exception(answer["raised"])(answer["said"])
        return wire.decode(answer["value"], self._decode_object)

    def _encode_object(self, value: Any) -> Any:
        """Return the JSON of what is no data: an object of the other side, a generator, or its text
        alone.
        """
        if isinstance(value, Remote):
            return {"o": value._number}
        if (
            type(value).__module__ == "helpers.exercises._checks"
            and type(value).__name__ == "NotYet"
        ):
            return {"y": 1}
        if inspect.isgenerator(value):
            number = next(self._numbers)
            self._running[number] = value, self._frames
            return {"g": number}
        if type(value).__module__.partition(".")[0] == "helpers":
            return {"c": None}
        return {"x": repr(value)[:200]}

    def _decode_object(self, tag: str, body: Any) -> Any:
        if tag == "o":
            number, name, values = body
            return Remote(
                self,
                number,
                name,
                {key: wire.decode(value, self._decode_object) for key, value in values.items()},
            )
        if tag == "c":
            module, name, fields = body
            record_class = getattr(importlib.import_module(module), name)
            return record_class(
                **{key: wire.decode(value, self._decode_object) for key, value in fields.items()}
            )
        raise wire.Broken(f"no value has the tag {tag!r}")


def _exception(name: str) -> type[Exception]:
    import builtins

    from helpers.studies import simulators

    exception_class = getattr(builtins, name, None) or getattr(simulators, name, None)
    return (
        exception_class
        if isinstance(exception_class, type) and issubclass(exception_class, Exception)
        else type(name, (Exception,), {})
    )


def _line(error: BaseException) -> str:
    """Return the student's own line in which an exception began, or which is no Python; "" where
    there is none.
    """
    import linecache
    import traceback

    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, wire.__file__)
    ]
    students_frames = [
        frame
        for frame in frames
        if "ipykernel" in frame.filename or "ipython-input" in frame.filename
    ]
    if students_frames:
        return linecache.getline(
            students_frames[-1].filename, students_frames[-1].lineno or 0
        ).strip()[:200]
    return (error.text or "").strip()[:200] if isinstance(error, SyntaxError) else ""


def main() -> None:
    """Take the limits and the socket from the command line, and serve."""
    descriptor, memory_bytes, processes = (int(argument) for argument in sys.argv[1:4])
    for kind, limit in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_AS, memory_bytes + 8 * 2**30),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, 256 * 2**20),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    shutil.copytree(
        "/fonts", os.environ["MPLCONFIGDIR"], ignore=shutil.ignore_patterns("tex.cache")
    )
    channel = socket.socket(fileno=descriptor)
    try:
        GraderLink(channel).serve()
    except wire.Broken:
        sys.exit(3)
