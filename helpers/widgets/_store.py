"""The reader's predictions, kept in one private file beside the lessons and never in a notebook."""

from __future__ import annotations

import ast
import datetime
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from helpers import console, results, storage
from helpers.checks import one_of

PREDICTIONS_FILE = "my_predictions.json"
# not a copy beside it, such as 05_data_parallel.new or 05_data_parallel-Copy1
_LESSON = re.compile(r"\d\d_[a-z0-9_]+")
_outside: dict[str, StoredPrediction] = {}  # predictions made outside a course


class StoredPrediction(results.Record):
    """One question as the reader left it.

    ``value`` is in the question's unit, None while there is no prediction.
    """

    question: str
    unit: str
    value: float | None = None
    date: str = ""
    after_answer: bool = False
    answer_seen: bool = False


class LessonProgress(results.Record):
    """One lesson's questions, and the numbers of those that the reader has predicted and seen
    answered.
    """

    lesson: str
    title: str
    questions: int
    predicted: int
    answered: int


class Progress(results.Record):
    """The reader's way through the course."""

    lessons: tuple[LessonProgress, ...]


def path() -> Path | None:
    """Return the file of predictions: ``HELPERS_PREDICTIONS`` if that is set, else beside the
    course's notebooks.

    None outside a course: predictions last then as long as the kernel.
    """
    if os.environ.get("HELPERS_PREDICTIONS"):
        return Path(os.environ["HELPERS_PREDICTIONS"])
    course = storage.course_folder()
    return course / PREDICTIONS_FILE if course else None


def read() -> dict[str, StoredPrediction]:
    """Return the entries by question; none while headless, so that a build or a test does not
    depend on its reader.

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
        entries = [
            results.from_dict(StoredPrediction, item)
            for item in json.loads(file.read_text(encoding="utf-8"))
        ]
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the file of your predictions, {file.name}, is damaged ({error}); move it away, and "
            "the lessons ask again"
        ) from error
    return {entry.question: entry for entry in entries}


def lock_in(question: str, unit: str, value: float) -> StoredPrediction:
    """Keep ``value`` as the prediction for ``question`` unless one is kept already; return the one
    that stands.
    """

    def update(entry: StoredPrediction) -> StoredPrediction:
        if entry.value is not None:
            return entry
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        return replace(entry, unit=unit, value=value, date=today, after_answer=entry.answer_seen)

    return _change(question, unit, update)


def mark_seen(question: str, unit: str) -> StoredPrediction:
    """Remember that the answer to ``question`` was shown; a prediction made later is marked as
    such.
    """
    return _change(question, unit, lambda entry: replace(entry, answer_seen=True))


def _change(
    question: str, unit: str, update: Callable[[StoredPrediction], StoredPrediction]
) -> StoredPrediction:
    file = path()
    if file is None:
        _outside[question] = update(_outside.get(question, StoredPrediction(question, unit)))
        return _outside[question]
    with FileLock(storage.cache_folder() / f"{PREDICTIONS_FILE}.lock"):
        entries = read()
        entries[question] = update(entries.get(question, StoredPrediction(question, unit)))
        file.touch(mode=0o600)
        storage.write_atomically(
            file, json.dumps([entry.to_dict() for entry in entries.values()], indent=1) + "\n"
        )
    return entries[question]


def progress(*, course: Path | None = None) -> Progress:
    """Return the reader's progress in each lesson of the folder ``course``, from the private file.

    >>> [(row.lesson, row.predicted) for row in progress().lessons][:2]  # doctest: +SKIP
    [('00', 3), ('01', 0)]

    Lesson 00.
    """
    if course is not None:
        one_of(
            "course", course, Path, "the folder of the lessons as a pathlib.Path, or leave it out"
        )
    folder = course or storage.course_folder()
    paths = sorted(folder.glob("*.ipynb")) if folder else []
    notebooks = [path for path in paths if _LESSON.fullmatch(path.stem)]
    if not notebooks:
        raise FileNotFoundError(
            "no lessons here; start JupyterLab with `make lab`, from the course's own folder"
        )
    entries = read()
    return Progress(tuple(_of_lesson(path, entries) for path in notebooks))


def _of_lesson(path: Path, entries: dict[str, StoredPrediction]) -> LessonProgress:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    questions = [
        question
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
        for question in _questions(cell)
    ]
    stored = [entries[question] for question in questions if question in entries]
    title = notebook["metadata"].get("lesson", {}).get("title", path.stem[3:].replace("_", " "))
    return LessonProgress(
        path.stem[:2],
        title,
        questions=len(questions),
        predicted=sum(entry.value is not None for entry in stored),
        answered=sum(entry.answer_seen for entry in stored),
    )


def _questions(cell: dict) -> Iterator[str]:
    """Yield the questions that a cell asks: the first argument of each call of ``predict``, where
    it is a literal.
    """
    lines = [
        line
        for line in "".join(cell["source"]).splitlines()
        if not line.lstrip().startswith(("%", "!"))
    ]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:  # a cell that the reader is still writing
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id="predict") | ast.Attribute(attr="predict"),
                args=[ast.Constant(value=str(question)), *_],
            ):
                yield question.strip()
