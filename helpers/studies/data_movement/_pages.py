"""The page faults of a call: new memory holds no page until it is written. Lesson 01."""

from __future__ import annotations

import sys
from collections.abc import Callable

from helpers import checks
from helpers.results import Record


class PageFaults(Record):
    """The page faults of this process during a call: ``minor`` were answered from memory, ``major``
    from the disk.

    Both None where the system tells nothing; on Windows ``minor`` holds all and ``major`` is None.
    Lesson 01.
    """

    minor: int | None
    major: int | None


def count_faults(function: Callable[[], object]) -> PageFaults:
    """Return the page faults of this process, all its threads, while ``function`` runs once.

    From getrusage(2) on Linux and macOS, from psutil on Windows (ModuleNotFoundError without it).
    Lesson 01.
    """
    checks.function("function", function, "a function without arguments")
    before = _faults()
    function()
    after = _faults()
    return PageFaults(
        *(None if b is None or a is None else a - b for a, b in zip(after, before, strict=True))
    )


def _faults() -> tuple[int | None, int | None]:
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().num_page_faults, None
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_majflt
