"""Where a thread is in its kernel, as a tuple that orders places: which lanes of a warp go
together, and who waits.

A warp has one instruction at a time for all its lanes. Lanes at the same place, in the same
iteration of every loop, go together. Lanes at different places take turns, those that are furthest
behind first, so they meet again after the branch, and lanes that leave a loop early wait for the
others. That is how a GPU runs structured code whose compiler lets the lanes meet again as early as
possible; a real compiler may also let them meet later, or do without the branch.
"""

from __future__ import annotations

import dis
import inspect
import sys
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, GeneratorType, TracebackType
from typing import Any

Place = tuple[int, ...]


class ReportedPlace(Place):
    """A place of a thread whose kernel runs in another process, as a :class:`Follower` there
    reports it.
    """


_ROOM = str(Path(__file__).parent)


@dataclass(frozen=True)
class _CodeLoop:
    """A loop of compiled code: its first and last byte, its first and last line."""

    begin: int
    end: int
    first_line: int
    last_line: int

    def has(self, line: int) -> bool:
        return self.first_line <= line <= self.last_line


@dataclass(frozen=True)
class _Layout:
    """The loops of compiled code, outer before inner, and where each of its instructions begins;
    none of the room's.
    """

    code: CodeType
    loops: tuple[_CodeLoop, ...]
    begins: tuple[int, ...]


def _layout(code: CodeType) -> _Layout:
    instructions = list(dis.get_instructions(code))
    end_of_loop: dict[int, int] = {}
    for jump in instructions:
        # which waits for a generator
        if "JUMP_BACKWARD" in jump.opname and not jump.opname.endswith("NO_INTERRUPT"):
            end_of_loop[jump.argval] = max(end_of_loop.get(jump.argval, 0), jump.offset)
    loops = []
    for begin, end in sorted(end_of_loop.items()):
        lines = [
            instruction.positions.lineno
            for instruction in instructions
            if begin <= instruction.offset <= end
            and instruction.positions
            and instruction.positions.lineno is not None
        ]
        loops.append(_CodeLoop(begin, end, min(lines), max(lines)))
    return _Layout(code, tuple(loops), tuple(instruction.offset for instruction in instructions))


@dataclass(eq=False)
class _Visit:
    """A frame of a thread: its layout, the line it is on, and the iteration of each of its
    loops.
    """

    layout: _Layout
    line: int
    iterations: list[int]

    def move(self, line: int) -> None:
        """Go to ``line``: a loop that is entered begins with iteration 0, at its first line again
        with the next one.
        """
        for index, loop in enumerate(self.layout.loops):
            if loop.has(line) and not loop.has(self.line):
                self.iterations[index] = 0
            elif line == loop.first_line and (
                self.line > line or loop.first_line == loop.last_line
            ):
                self.iterations[index] += loop.has(self.line)
        self.line = line


@dataclass(eq=False)
class Follower:
    """Follows threads through a kernel: ``with follower.of(frames):`` around what a thread runs,
    then :meth:`place`.

    ``frames`` is a dictionary that belongs to the thread and lives as long as it does. Frames from
    that of the ``with`` outwards are no part of the kernel.
    """

    _layouts: dict[int, _Layout] = field(default_factory=dict)
    _frames: dict[FrameType, _Visit] = field(default_factory=dict)
    _previous_trace: Any = None
    _outside: FrameType | None = None

    def of(self, frames: dict[FrameType, _Visit]) -> Follower:
        """Follow the thread that has ``frames``."""
        self._frames = frames
        return self

    def __enter__(self) -> None:
        self._previous_trace, self._outside = sys.gettrace(), sys._getframe(1)
        sys.settrace(self._trace_call)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.settrace(self._previous_trace)

    def _trace_call(self, frame: FrameType, _event: str, _: Any) -> Any:
        code = frame.f_code
        if not (self._layouts.get(id(code)) or self._layout_of(code)).loops:
            return None
        if frame not in self._frames:
            layout = self._layouts[id(code)]
            self._frames[frame] = _Visit(layout, frame.f_lineno, [0] * len(layout.loops))
        return self._trace_line

    def _trace_line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self._frames[frame].move(frame.f_lineno)
        elif event == "return" and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            # which may only wait
            del self._frames[frame]
        return self._trace_line

    def _layout_of(self, code: CodeType) -> _Layout:
        layout = _Layout(code, (), ()) if code.co_filename.startswith(_ROOM) else _layout(code)
        self._layouts[id(code)] = layout  # which keeps the code, so that its id stays its own
        return layout

    def place(self, frame: FrameType | None) -> Place:
        """Return the place of ``frame``, which runs in the thread, from the kernel inwards."""
        place: Place = ()
        while frame is not None and frame is not self._outside:
            layout = self._layouts.get(id(frame.f_code)) or self._layout_of(frame.f_code)
            if not layout.begins:  # the room's own code, which called the kernel
                break
            offset = layout.begins[bisect_right(layout.begins, frame.f_lasti) - 1]
            part: Place = ()
            iterations = self._frames[frame].iterations if layout.loops else ()
            for loop, iteration in zip(layout.loops, iterations, strict=True):
                if loop.begin <= offset <= loop.end:
                    part += (loop.begin, iteration)
            place = (*part, offset, *place)
            frame = frame.f_back
        return place

    def barrier(self, waiting: object) -> Place:
        """Return the place where the generator ``waiting`` has stopped, through every
        ``yield from``.
        """
        place: Place = ()
        while isinstance(waiting, GeneratorType):
            place += self.place(waiting.gi_frame)
            waiting = waiting.gi_yieldfrom
        return place
