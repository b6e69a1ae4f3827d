"""Prove what the reader of a lesson writes: run its checks here, on each version of it, and see
what they say.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import linecache
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import torch

from helpers.results import Record
from tools.authoring import names, notebook, yours
from tools.authoring.course import Course
from tools.authoring.lesson import Cell, Lesson

_STYLE = "right in style "


class Attempt(Record):
    """The answer of the checks of the function ``name`` to a version: ``worked``, ``stub``, or the
    words that a wrong one must hear.

    ``is_used`` says whether the cells below use it, and not the course's.
    """

    name: str
    version: str
    is_used: bool
    said: str


def attempts(course: Course, lesson: Lesson) -> tuple[Attempt, ...]:
    """Return the answers of the checks to each version of each function that the reader of a
    lesson writes.

    Of the lesson, the cells run from which the checks and the versions take a name, directly or
    not, each once and in order, in a folder that holds the reader's copy beside the course's own
    files. An exception in a cell passes unchanged.
    """
    code = [cell for cell in lesson.cells if cell.kind == "code"]
    versions = {
        cell.metadata["yours"]: _versions(cell, lesson) for cell in code if "yours" in cell.metadata
    }
    sources = [
        "\n".join(versions[cell.metadata["yours"]].values())
        if "yours" in cell.metadata
        else cell.source
        for cell in code
    ]
    needed_cells = names.needed_cells(
        sources, [index for index, cell in enumerate(code) if "checks" in cell.metadata]
    )
    space: dict[str, Any] = {"__name__": "__main__"}
    results: list[Attempt] = []
    with (
        _readers_folder(course, lesson),
        _preserve_torch_settings(),
        redirect_stdout(io.StringIO()),
    ):
        for cell in (code[index] for index in sorted(needed_cells)):
            if "checks" in cell.metadata:
                results += _attempts(cell, versions[cell.metadata["checks"]], space)
            elif "yours" not in cell.metadata:  # else it runs with its checks
                run_cell(cell.source, f"cell at line {cell.line}", space)
    space.clear()  # ranks end with the last name that holds them
    return tuple(results)


def faults(lesson: Lesson, all_attempts: Sequence[Attempt]) -> list[str]:
    """Return a sentence for each version to which the checks say what they should not.

    ``all_attempts`` are those of :func:`attempts`.
    """
    messages = []
    for attempt in all_attempts:
        is_right = attempt.version == "worked" or attempt.version.startswith(_STYLE)
        expected_words = (
            "" if is_right else {"stub": "not written yet"}.get(attempt.version, attempt.version)
        )
        is_as_expected = expected_words in attempt.said and attempt.is_used == is_right
        if not is_as_expected:
            messages.append(
                f"{lesson.name}.py: the checks of {attempt.name} say to the version "
                f"{attempt.version!r}:\n{attempt.said}"
            )
    return messages


def _versions(cell: Cell, lesson: Lesson) -> dict[str, str]:
    wrong = {
        answer.says: answer.cell.source
        for answer in lesson.wrong
        if answer.name == cell.metadata["yours"]
    }
    name = cell.metadata["yours"]
    right = {
        f"{_STYLE}{answer.style}": answer.cell.source
        for answer in lesson.right
        if answer.name == name
    }
    return {"stub": yours.stub(cell.source), **wrong, **right, "worked": cell.source}


def in_style(lesson: Lesson, style: int) -> dict[str, str]:
    """Return the answers of a lesson's functions in a style, by name; the worked one where the
    style has none.
    """
    worked_answers = {
        cell.metadata["yours"]: cell.source for cell in lesson.cells if "yours" in cell.metadata
    }
    return worked_answers | {
        answer.name: answer.cell.source for answer in lesson.right if answer.style == style
    }


def _attempts(checks: Cell, versions: dict[str, str], space: dict[str, Any]) -> Iterator[Attempt]:
    """Try the versions, each from the same names; those of the last one, the worked version,
    stay.
    """
    name = checks.metadata["checks"]
    before = dict(space)
    for version, source in versions.items():
        space.clear()
        space.update({key: own_copy(value) for key, value in before.items()})
        run_cell(source, f"{version} {name}", space)
        function, output = space[name], io.StringIO()
        with redirect_stdout(output):
            run_cell(checks.source, f"checks of {name}", space)
        yield Attempt(name, version, space[name] is function, output.getvalue())


@contextmanager
def _preserve_torch_settings() -> Iterator[None]:
    """Undo what a lesson may set for its whole process: whether gradients are kept, and the number
    of threads.
    """
    threads = torch.get_num_threads()
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _readers_folder(course: Course, lesson: Lesson) -> Iterator[None]:
    """Work in a folder that holds the reader's copy of the lesson, and the course's files that are
    no notebooks.
    """
    temporary = tempfile.TemporaryDirectory(prefix="course-proof-", ignore_cleanup_errors=True)
    with temporary as folder, contextlib.chdir(folder):
        for path in course.folder.iterdir():
            if path.suffix != ".ipynb":
                Path(path.name).symlink_to(path.resolve())
        copy = yours.as_copy(notebook.unexecuted(lesson))
        Path(Path(lesson.notebook_name).name).write_text(nbformat.writes(copy), encoding="utf-8")
        yield


def own_copy(value: Any) -> Any:
    """Return a copy of data, which an answer may change; anything else as it is."""
    return (
        copy.deepcopy(value)
        if isinstance(value, list | dict | set | np.ndarray | torch.Tensor)
        else value
    )


def run_cell(source: str, title: str, names: dict[str, Any]) -> Any:
    """Run a cell in ``names`` and return the value of its last line, as a notebook shows it; None
    for a statement.
    """
    name = f"<{title}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), names)
        return None
    tree.body.pop()
    exec(compile(tree, name, "exec"), names)
    return eval(compile(ast.Expression(last.value), name, "eval"), names)
