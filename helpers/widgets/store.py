"""The reader's predictions, kept in one private file beside the lessons and never in a notebook."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from helpers import console, results, storage

FILE_NAME = "my_predictions.json"
_outside: dict[str, Entry] = {}  # predictions made outside a course


@dataclass(frozen=True)
class Entry(results.Result):
    """One question as the reader left it. ``value`` is in the question's unit, None while there is no prediction."""

    question: str
    unit: str
    value: float | None = None
    date: str = ""
    after_answer: bool = False
    answer_seen: bool = False


def path() -> Path | None:
    """Return the file of predictions: ``HELPERS_PREDICTIONS`` if that is set, else beside the course's notebooks.

    None outside a course: predictions last then as long as the kernel.
    """
    if os.environ.get("HELPERS_PREDICTIONS"):
        return Path(os.environ["HELPERS_PREDICTIONS"])
    course = storage.course_folder()
    return course / FILE_NAME if course else None


def read() -> dict[str, Entry]:
    """Return the entries by question; none while headless, so that a build or a test does not depend on its reader.

    Raises ValueError when the file cannot be read, and leaves it as it is.
    """
    file = path()
    if console.is_headless():
        return {}
    if file is None:
        return dict(_outside)
    if not file.exists() or file.stat().st_size == 0:
        return {}
    try:
        entries = [results.from_dict(Entry, item) for item in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the file of your predictions, {file.name}, is damaged ({error}); move it away, and the lessons ask again"
        ) from error
    return {entry.question: entry for entry in entries}


def lock_in(question: str, unit: str, value: float) -> Entry:
    """Keep ``value`` as the prediction for ``question`` unless one is kept already; return the one that stands."""

    def update(entry: Entry) -> Entry:
        if entry.value is not None:
            return entry
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        return replace(entry, unit=unit, value=value, date=today, after_answer=entry.answer_seen)

    return _change(question, unit, update)


def mark_seen(question: str, unit: str) -> Entry:
    """Remember that the answer to ``question`` was shown; a prediction made later is marked as such."""
    return _change(question, unit, lambda entry: replace(entry, answer_seen=True))


def _change(question: str, unit: str, update: Callable[[Entry], Entry]) -> Entry:
    file = path()
    if file is None:
        _outside[question] = update(_outside.get(question, Entry(question, unit)))
        return _outside[question]
    with FileLock(storage.cache_folder() / f"{FILE_NAME}.lock"):
        entries = read()
        entries[question] = update(entries.get(question, Entry(question, unit)))
        file.touch(mode=0o600)
        storage.write_atomically(file, json.dumps([entry.to_dict() for entry in entries.values()], indent=1) + "\n")
    return entries[question]
