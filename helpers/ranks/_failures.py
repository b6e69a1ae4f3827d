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
_LIBRARIES = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_HELPERS = str(Path(__file__).resolve().parents[1])


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


class RankError(RuntimeError):
    """A run on several ranks failed: ``rank`` is the one that was first to, ``states`` tells of
    all, in rank order.

    ``file``, ``line`` and ``text`` name the line of the reader's own code, where it is known.
    ``timed_out`` says whether the run was ended at its limit. Lesson 05.
    """

    def __init__(
        self, message: str, rank: int, states: tuple[RankState, ...], timed_out: bool
    ) -> None:
        # all of them, so that the error itself can be pickled
        super().__init__(message, rank, states, timed_out)
        first = states[rank]
        self.rank: int | None = rank
        self.states, self.timed_out = states, timed_out
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
    if first.status == "running":
        headline = f"rank {first.rank} of {len(states)} did not return within {limit_s:g} s"
    else:
        headline = f"rank {first.rank} of {len(states)} {first.message}"
    lines = [headline, f"  at {first.place}" if first.place else ""]
    lines += _describe_others(states, first)
    lines.append(outcome)
    details = first.traceback or (first.output[-2000:] if first.status == "died" else "")
    lines += [f"\n{details.rstrip()}"] if details.strip() else []
    message = "\n".join(line for line in lines if line)
    return RankError(message, first.rank, tuple(states), first.status == "running")


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
    parts = []
    for cause in reversed(answer["causes"]):
        parts += [_traceback(cause["steps"], cause["headline"]), cause["link"]]
    parts.append(_traceback(answer["steps"], answer["headline"]))
    return RankState(
        rank,
        "raised",
        answer["what"],
        *_own_line(answer["steps"]),
        output=output,
        traceback="\n\n".join(part for part in parts if part),
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
    steps = [(file, int(line), name) for file, line, name in _STACK_LINE.findall(text)]
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(" ")]
    return RankState(
        rank,
        "raised",
        f"raised {lines[-1]}",
        *_own_line(steps),
        traceback=text,
        output=output,
        by_peers=by_peers,
    )


def returned_state(rank: int, output: str) -> RankState:
    """Return the state of a rank that was done."""
    return RankState(rank, "returned", "returned", output=output)


def _parse_dump(text: str) -> list[Step]:
    """Return the frames in the last stack of faulthandler's output, the outermost first."""
    last_stack = re.split(r"^(?:Stack|Current thread|Thread) .*$", text, flags=re.MULTILINE)[-1]
    steps = [(file, int(line), name) for file, line, name in _STACK_LINE.findall(last_stack)]
    ours = (str(Path(_HELPERS, "ranks", name)) for name in ("_worker.py", "_keeper.py"))
    skipped_files = {*ours, "<string>"}  # the program of the process is a string
    return [step for step in reversed(steps) if step[0] not in skipped_files]


def _own_line(steps: Sequence[Step]) -> tuple[str, int | None, str]:
    """Return file, line and text of the innermost frame in the reader's own code, else of the
    innermost of all.
    """
    if not steps:
        return "", None, ""
    own_steps = [step for step in steps if not _is_library(step[0])]
    file, line, _ = (own_steps or list(steps))[-1]
    return file, line, linecache.getline(file, line).strip()


def _is_library(file: str) -> bool:
    return file.startswith((*_LIBRARIES, _HELPERS, "<frozen"))


def _traceback(steps: Sequence[Step], headline: str) -> str:
    """Return a traceback in Python's own form; the lines are read here, where the cells' text
    is.
    """
    frames = traceback.StackSummary.from_list([traceback.FrameSummary(*step) for step in steps])
    head = "Traceback (most recent call last):\n" if steps else ""
    return (head + "".join(frames.format()) + headline).rstrip()
