"""The failure of a run on several ranks as one error: its rank, its line, and the states of the
others.

Lesson 05.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from helpers import _processes as processes, results

Step = tuple[str, int, str]  # file, line, function

_STACK_LINE = re.compile(r'^  File "(.*)", line (\d+),? in (.*)$', re.MULTILINE)
_COLLECTIVES = "/torch/distributed/"
_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_ROOM = Path(__file__).resolve().parent


class RankState(results.Record):
    """The state of one rank when a run was broken off.

    ``status``: it ``returned``, ``raised`` an exception, ``died`` (its process ended), or was still
    ``running``. ``message`` says more, ``file``, ``line`` and ``text`` where it stood in the
    reader's own code, where that is known; ``output`` is what it had printed. Lesson 05.
    """

    rank: int
    status: Literal["returned", "raised", "died", "running"]
    message: str
    file: str = ""
    line: int | None = None
    text: str = ""
    traceback: str = field(default="", repr=False)
    output: str = field(default="", repr=False)
    raised_at_s: float = field(default=0.0, repr=False)
    # it only tells of, or waits for, another rank
    by_peers: bool = field(default=False, repr=False)

    @property
    def place(self) -> str:
        """Return the line as one phrase, or "". Lesson 05."""
        if not self.file:
            return ""
        text = f": {self.text}" if self.text else ""
        # there a cell's file is a number
        home = "the cell" if "ipykernel_" in self.file else Path(self.file).name
        return f"line {self.line} of {home}{text}"


_UNKNOWN = RankState(0, "died", "")  # where none ran


class RankError(RuntimeError):
    """A run on several ranks failed: ``rank`` is the one that was first to, ``states`` tells of
    all, in rank order.

    ``file``, ``line`` and ``text`` name the line of the reader's own code, where it is known.
    ``timed_out`` says whether the run was ended at its limit. Lesson 05.
    """

    def __init__(
        self, message: str, rank: int | None, states: tuple[RankState, ...], timed_out: bool
    ) -> None:
        # all of them, so that the error itself can be pickled
        super().__init__(message, rank, states, timed_out)
        self.rank, self.states, self.timed_out = rank, states, timed_out
        first = _UNKNOWN if rank is None else states[rank]
        self.file, self.line, self.text = first.file, first.line, first.text

    def __str__(self) -> str:
        return self.args[0]

    def _render_traceback_(self) -> list[str]:
        """Return the notebook's view: the message, which holds the rank's own traceback, without
        the library's.
        """
        return [f"RankError: {self}"]


_AFRESH = "All ranks were ended; the next run starts them afresh."


def error(
    states: Sequence[RankState], *, limit_s: float | None, outcome: str = _AFRESH
) -> RankError:
    """Return the one error of a failed run; ``limit_s`` is the limit that it met, ``outcome`` its
    last line.

    First to fail is a rank whose process died, then the one that raised first; an exception that
    only tells of a lost connection to another rank comes after all others. Of ranks that hang, one
    that stands in a collective only waits for one that does not.
    """
    order = {"died": 0, "raised": 1, "running": 3, "returned": 5}
    first = min(
        states,
        key=lambda state: (order[state.status] + state.by_peers, state.raised_at_s, state.rank),
    )
    timed_out = first.status == "running"
    problem = f"did not return within {limit_s:g} s" if timed_out else first.message
    place = f"  at {first.place}" if first.place else ""
    details = first.traceback or (first.output[-2000:] if first.status == "died" else "")
    lines = [
        f"rank {first.rank} of {len(states)} {problem}",
        place,
        *_describe_others(states, first),
        outcome,
        f"\n{details}".rstrip(),
    ]
    message = "\n".join(filter(None, lines))
    return RankError(message, first.rank, tuple(states), timed_out)


def _describe_others(states: Sequence[RankState], first: RankState) -> list[str]:
    """Return a line for each thing that ranks other than the first did."""
    groups: dict[str, list[int]] = {}
    for state in states:
        if state.rank == first.rank:
            continue
        is_same = state.message == first.message and state.place == first.place
        location = f" at {state.place}" if state.place and not is_same else ""
        message = state.message.partition("\n")[0]
        brief = message if len(message) <= 200 else f"{message[:200]} ..."
        groups.setdefault(("the same" if is_same else brief) + location, []).append(state.rank)
    return [f"  {_ranks(members)}: {description}" for description, members in groups.items()]


def _ranks(members: Sequence[int]) -> str:
    if len(members) == 1:
        return f"rank {members[0]}"
    listing = (
        ", ".join(map(str, members[:-1]))
        if len(members) <= 12
        else f"{members[0]}, {members[1]}, ..."
    )
    return f"ranks {listing} and {members[-1]}"


def raised_state(rank: int, answer: Mapping[str, Any], output: str) -> RankState:
    """Return the state of a rank that answered with an exception."""
    own_steps, parts = [], []
    for own_steps, headline, words in reversed(answer["chain"]):
        parts += [_traceback(own_steps, headline), words]
    return RankState(
        rank,
        "raised",
        answer["what"],
        *_own_line(own_steps),
        output=output,
        traceback="\n\n".join(filter(None, parts)),
        raised_at_s=answer["at_s"],
        by_peers=answer["by_peers"],
    )


def died_state(rank: int, code: int | None, output: str) -> RankState:
    """Return the state of a rank whose process ended; ``code`` is negative for a signal.

    What Python wrote of a fatal signal, if anything, tells the line.
    """
    if code is None:
        message = "lost its process"
    elif code < 0:
        message = f"died: its process was ended by {processes.signal_name(code)}"
    else:
        message = f"died: its process ended with exit code {code}"
    fatal = output.partition("Fatal Python error")[2]
    return RankState(rank, "died", message, *_own_line(_parse_dump(fatal)), output=output)


def running_state(rank: int, stack: str, output: str) -> RankState:
    """Return the state of a rank that had not answered; ``stack`` is faulthandler's text."""
    steps = _parse_dump(stack)
    message = "was still running" if steps else "was still running, and did not say where"
    waits = bool(steps) and _COLLECTIVES in Path(steps[-1][0]).as_posix()
    return RankState(
        rank,
        "running",
        message,
        *_own_line(steps),
        output=output,
        traceback=_traceback(steps, ""),
        by_peers=waits,
    )


def state_from_text(rank: int, text: str, output: str, *, by_peers: bool) -> RankState:
    """Return the state of a rank that left a traceback as ``text``."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(" ")]
    return RankState(
        rank,
        "raised",
        f"raised {lines[-1]}",
        *_own_line(_parse_steps(text)),
        traceback=text,
        output=output,
        by_peers=by_peers,
    )


def _parse_dump(text: str) -> list[Step]:
    """Return the frames in the last stack of faulthandler's output, the outermost first."""
    last_stack = re.split(r"^(?:Stack|Current thread|Thread) .*$", text, flags=re.MULTILINE)[-1]
    ours = (str(_ROOM), "<string>")  # the program of the process is a string
    return [step for step in reversed(_parse_steps(last_stack)) if not step[0].startswith(ours)]


def _parse_steps(text: str) -> list[Step]:
    return [(file, int(line), name) for file, line, name in _STACK_LINE.findall(text)]


def _own_line(steps: Sequence[Step]) -> tuple[str, int | None, str]:
    """Return file, line and text of the innermost frame in the reader's own code, else of the
    innermost of all.
    """
    if not steps:
        return "", None, ""
    libraries = (*_LIBRARIES, str(_ROOM.parent), "<frozen")
    own_steps = [step for step in steps if not step[0].startswith(libraries)]
    file, line, _ = (own_steps or steps)[-1]
    return file, line, linecache.getline(file, line).strip()


def _traceback(steps: Sequence[Step], headline: str) -> str:
    """Return a traceback in Python's own form; the lines are read here, where the cells' text
    is.
    """
    frames = traceback.StackSummary.from_list([traceback.FrameSummary(*step) for step in steps])
    head = "Traceback (most recent call last):\n" if steps else ""
    return (head + "".join(frames.format()) + headline).rstrip()
