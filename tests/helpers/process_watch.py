"""Whether a process still runs, and a wait until something is so: for tests of what must leave
nothing behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def is_running(process: int) -> bool:
    """Return whether the process is there and is no zombie that its parent has yet to notice
    (Linux).
    """
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        # the second where it ends between opening and reading
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool], limit_s: float = 60.0) -> bool:
    """Return what ``condition`` said last: true as soon as it is met, false when the limit has
    passed.

    The limit is there to end a test that fails: a sound program on a busy machine needs a part of
    it, or nothing.
    """
    end = time.monotonic() + limit_s
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return met
