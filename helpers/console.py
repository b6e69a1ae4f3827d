"""Messages of a helper while it works: a progress bar, and single lines of notice.

A lesson that is being built or tested sets ``HELPERS_HEADLESS=1``: then nothing is shown, so that
what a notebook saves holds results only. Without tqdm (a bare machine that only records a run)
progress is printed as lines of text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def is_headless() -> bool:
    """Return True while a notebook is built or tested, when nobody watches and nobody types.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, HELPERS_HEADLESS="1"):
    ...     print(is_headless())
    True
    """
    return os.environ.get("HELPERS_HEADLESS", "") not in ("", "0")


def track(
    items: Iterable[Item], description: str, *, total: int | None = None, unit: str = "it"
) -> Iterator[Item]:
    """Yield ``items`` under a progress bar that is gone when they are; ``total`` where ``len`` does
    not tell.

    It shows the ``description`` and counts in ``unit``. The bar is closed as well when the loop
    over it breaks off or raises.

    >>> for batch in track(range(1000), "epoch 1 of 2", unit="batch"):  # doctest: +SKIP
    ...     pass
    """
    if is_headless():
        return iter(items)
    if total is None:
        total = _length(items)
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        return _lines(items, description, total)
    return iter(tqdm(items, desc=description, total=total, unit=unit, leave=False, file=sys.stdout))


def _length(items: Iterable[object]) -> int | None:
    try:
        return len(items)  # type: ignore[arg-type]  # what has no length raises
    except (TypeError, NotImplementedError):  # a generator, or a DataLoader over a stream
        return None


def _lines(items: Iterable[Item], description: str, total: int | None) -> Iterator[Item]:
    step = max(1, (total or 100) // 10)
    for count, item in enumerate(items):
        if count % step == 0:
            print(f"{description}: {count:,}" + (f" of {total:,}" if total else ""), flush=True)
        yield item


def notice(line: str) -> None:
    """Print one line about a step that a helper took on its own (a cache renewed, a fallback
    taken).

    It goes to the standard error, and nowhere when headless.

    >>> notice("The cached limits are of another machine. They are measured again.")
    """
    if not is_headless():
        print(line, file=sys.stderr, flush=True)
