"""The student's side: run cells as they come, and call the functions that they define. Runs within the sandbox.

Whatever the submission does to this process, it can only change what it sends: data, which the other side checks.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import resource
import shutil
import socket
import sys
from typing import Any

import wire

_CONTAINERS = ("l", "d", "T", "N")
_MESSAGE_CHARACTERS = 2000


class Remote:
    """An object that the other side keeps; what it allows is done there, one request each."""

    def __init__(self, link: Link, number: int, name: str, names: dict[str, Any]) -> None:
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
        return self._link.ask(self._number, "item", index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._link.ask(self._number, "put", index, value)

    def __repr__(self) -> str:
        return f"<{object.__getattribute__(self, '__name__')}>"


class Link:
    """The socket to the other side, and the names that the cells define."""

    def __init__(self, channel: socket.socket) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        self._channel = channel
        self._shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
        self._running: dict[int, Any] = {}
        self._numbers = itertools.count()

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
            return self._step(message["next"]) if "next" in message else self._call(message["call"], message["with"])
        except Exception as error:
            return {"raised": type(error).__name__, "said": str(error)[:_MESSAGE_CHARACTERS], "line": _line(error)}

    def _run(self, source: str) -> dict[str, Any]:
        done = self._shell.run_cell(source, store_history=False)
        error = done.error_before_exec or done.error_in_exec
        if error is None:
            return {"ran": ""}
        said = error.msg if isinstance(error, SyntaxError) else str(error)  # str would name a file nobody has
        return {"ran": f"{type(error).__name__}: {said}"[:_MESSAGE_CHARACTERS], "line": _line(error)}

    def _call(self, name: str, given: Any) -> dict[str, Any]:
        arguments = list(wire.decode(given, self._kept))
        before = wire.encode(arguments, self._keep)
        if name not in self._shell.user_ns:
            raise NameError(f"name {name!r} is not defined")
        value = self._shell.user_ns[name](*arguments)
        after = wire.encode(arguments, self._keep)
        answer = {"value": wire.encode(value, self._keep)}
        return answer if before == after else {**answer, "changed": after}

    def _step(self, number: int) -> dict[str, Any]:
        try:
            next(self._running[number])
        except StopIteration:
            del self._running[number]
            return {"more": False}
        return {"more": True}

    def ask(self, number: int, verb: str, *arguments: Any) -> Any:
        """Have the other side do ``verb`` with an object that it keeps, and return or raise what it answers."""
        wire.send(self._channel, {"do": verb, "to": number, "with": wire.encode(list(arguments), self._keep)})
        answer = wire.receive(self._channel)
        if "raised" in answer:
            raise _exception(answer["raised"])(answer["said"])
        return wire.decode(answer["value"], self._kept)

    def _keep(self, value: Any) -> Any:
        """Return the JSON of what is no data: an object of the other side, a generator, or its text alone."""
        if isinstance(value, Remote):
            return {"o": value._number}
        if type(value).__module__ == "helpers.exercises" and type(value).__name__ == "NotYet":
            return {"y": 1}
        if inspect.isgenerator(value):
            number = next(self._numbers)
            self._running[number] = value
            return {"g": number}
        if type(value).__module__.partition(".")[0] == "helpers":
            return {"c": None}
        return {"x": repr(value)[:200]}

    def _kept(self, tag: str, body: Any) -> Any:
        if tag == "o":
            number, name, values = body
            return Remote(self, number, name, {key: wire.decode(one, self._kept) for key, one in values.items()})
        if tag == "c":
            module, name, fields = body
            made = getattr(importlib.import_module(module), name)
            return made(**{key: wire.decode(one, self._kept) for key, one in fields.items()})
        raise wire.Broken(f"no value has the tag {tag!r}")


def _exception(name: str) -> type[Exception]:
    import builtins

    from helpers import simulators

    found = getattr(builtins, name, None) or getattr(simulators, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else type(name, (Exception,), {})


def _line(error: BaseException) -> str:
    """Return the student's own line in which an exception began, or which is no Python; "" where there is none."""
    import linecache
    import traceback

    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename not in (__file__, wire.__file__)]
    own = [one for one in frames if "ipykernel" in one.filename or "ipython-input" in one.filename]
    if own:
        return linecache.getline(own[-1].filename, own[-1].lineno or 0).strip()[:200]
    return (error.text or "").strip()[:200] if isinstance(error, SyntaxError) else ""


def main() -> None:
    """Take the limits and the socket from the command line, and serve."""
    descriptor, memory_bytes, processes = (int(one) for one in sys.argv[1:4])
    for kind, most in ((resource.RLIMIT_DATA, memory_bytes), (resource.RLIMIT_AS, memory_bytes + 8 * 2**30),
                       (resource.RLIMIT_NPROC, processes), (resource.RLIMIT_FSIZE, 256 * 2**20),
                       (resource.RLIMIT_CORE, 0)):  # fmt: skip
        resource.setrlimit(kind, (most, most))
    shutil.copytree("/fonts", os.environ["MPLCONFIGDIR"], ignore=shutil.ignore_patterns("tex.cache"))
    channel = socket.socket(fileno=descriptor)
    try:
        Link(channel).serve()
    except wire.Broken:
        sys.exit(3)
