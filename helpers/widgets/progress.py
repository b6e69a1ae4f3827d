"""What the reader has done so far: predictions made, lesson by lesson."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path

from helpers import results, storage
from helpers.checks import one_of
from helpers.widgets import store


@dataclass(frozen=True)
class LessonProgress(results.Result):
    """One lesson's questions, and how many the reader has predicted and seen answered."""

    lesson: str
    title: str
    questions: int
    predicted: int
    answered: int


@dataclass(frozen=True)
class Progress(results.Result):
    """The reader's way through the course."""

    lessons: tuple[LessonProgress, ...]


def progress(*, course: Path | None = None) -> Progress:
    """Return what is done of each lesson in the folder ``course``, from the reader's private file. Lesson 00."""
    folder = storage.course_folder() if course is None else course
    if folder is not None:
        one_of("course", folder, Path, "the folder of the lessons as a pathlib.Path, or leave it out")
    notebooks = sorted(folder.glob("[0-9][0-9]_*.ipynb")) if folder else []
    if not notebooks:
        raise FileNotFoundError("no lessons here; start JupyterLab with `make lab`, from the course's own folder")
    entries = store.read()
    return Progress(tuple(_of_lesson(path, entries) for path in notebooks))


def _of_lesson(path: Path, entries: dict[str, store.Entry]) -> LessonProgress:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    asked = [question for cell in notebook["cells"] if cell["cell_type"] == "code" for question in _questions(cell)]
    known = [entries[question] for question in asked if question in entries]
    title = notebook["metadata"].get("lesson", {}).get("title", path.stem[3:].replace("_", " "))
    predicted = sum(entry.value is not None for entry in known)
    return LessonProgress(path.stem[:2], title, len(asked), predicted, sum(entry.answer_seen for entry in known))


def _questions(cell: dict) -> list[str]:
    """Return the questions that a cell asks: the first argument of each call of ``predict``, where it is a literal."""
    lines = [line for line in "".join(cell["source"]).splitlines() if not line.lstrip().startswith(("%", "!"))]
    calls = [node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.Call) and node.args]
    named = [call for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) == "predict"]
    return [call.args[0].value.strip() for call in named if isinstance(call.args[0], ast.Constant)]
