"""A machine whose time is made up, on which code that times something is checked exactly.

Lesson 00.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise


class FakeMachine:
    """A machine whose time is made up: a clock, functions that take as long as they are told, and a
    log of both.

    ``cost_s(name, nth, total)`` is the seconds that the ``nth`` call of the function ``name`` takes
    when the machine has made ``total`` calls before it (both from 0). ``log`` holds the functions'
    names and ``"clock"``, in order.
    """

    def __init__(self, cost_s: Callable[[str, int, int], float]) -> None:
        self._cost_s = cost_s
        self._now_s = 0.0
        self.log: list[str] = []

    def function(self, name: str) -> Callable[[], None]:
        """Return a function without arguments that takes its time on this machine; ValueError for
        the name "clock".
        """
        if name == "clock":
            raise ValueError(
                "the log calls a reading of the clock 'clock'; name the function otherwise"
            )

        def call() -> None:
            self._now_s += self._cost_s(
                name, self.log.count(name), len(self.log) - self.log.count("clock")
            )
            self.log.append(name)

        call.__name__ = name
        return call

    def clock(self) -> float:
        """Return the seconds since the machine started, and write the reading into the log."""
        self.log.append("clock")
        return self._now_s

    @property
    def timed(self) -> list[str]:
        """The calls made with a reading of the clock just before and just after, in order."""
        return [name for index, name in self._calls() if self._is_timed(index)]

    @property
    def untimed(self) -> list[str]:
        """All other calls, in order."""
        return [name for index, name in self._calls() if not self._is_timed(index)]

    @property
    def takes_turns(self) -> bool:
        """True when the timed calls change from one function to another in each pair: a b, a b or a
        b, b a.
        """
        timed = self.timed
        pairs = list(pairwise(timed))[::2]
        return (
            len(timed) % 2 == 0 and bool(pairs) and all(first != second for first, second in pairs)
        )

    def _calls(self) -> list[tuple[int, str]]:
        return [(index, name) for index, name in enumerate(self.log) if name != "clock"]

    def _is_timed(self, index: int) -> bool:
        return (
            index > 0
            and self.log[index - 1] == "clock"
            and self.log[index + 1 : index + 2] == ["clock"]
        )
