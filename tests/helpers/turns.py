"""Whose turn it is: what a test of functions that wait for each other asks while one of them
runs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from helpers import steps


def is_taken() -> bool:
    """Return whether another thread would have to wait now."""
    with ThreadPoolExecutor(1) as other:
        return not other.submit(_is_free).result()


def _is_free() -> bool:
    is_free = steps.ONE_AT_A_TIME.acquire(blocking=False)
    if is_free:
        steps.ONE_AT_A_TIME.release()
    return is_free
