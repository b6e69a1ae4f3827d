"""What leaves the instructor's hands: a clean tree for students, searched for leaks, and nbgrader's
own folder.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat

from tools.authoring import pages
from tools.authoring.build import write
from tools.authoring.course import Course
from tools.authoring.lesson import AuthoringError
from tools.authoring.order import title_of
from tools.authoring.problem import Problem
from tools.copies import form
from tools.exercises import sheets
from tools.exercises.sheets import Sheet

TREE = ("LICENSE", "LICENSE-TEXT", "NOTICE", "requirements.lock", "overrides.txt",
        "environment.yml", ".gitignore", "helpers")  # fmt: skip

_IGNORED = shutil.ignore_patterns("__pycache__", ".*", "*.pyc")
_STUDENTS = Path(__file__).with_name("students")
_SECTION = re.compile(r"\[+([\w.-]+)\]+")
_INSTALLING = ("build-system", "project", "tool.hatch")
_SHORTEST_SECRET = 20  # characters; a shorter line, such as "first()", gives nothing away
_CONFIG = '''"""How nbgrader releases and grades the course's exercises."""

c = get_config()  # noqa: F821

c.CourseDirectory.course_id = "deep_learning_hardware"
c.ClearSolutions.code_stub = {stub}
c.ClearSolutions.text_stub = {text}
c.Execute.timeout = 60

# A student's code runs in the sandbox of `make grade` alone, and no page shows a hidden test, also
# where somebody clicks Autograde or Generate Feedback in the Formgrader.
c.Autograde.NotebookExporter.preprocessors = ["nothing is run here: run `make grade`"]
c.GenerateFeedback.preprocessors = [
    "nbgrader.preprocessors.ClearHiddenTests",
    "nbgrader.preprocessors.GetGrades",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
'''


def student(course: Course, target: Path) -> Path:
    """Write the students' tree to ``target``, in place of what stood there, and return it.

    Raises AuthoringError, and leaves the old tree, when a notebook is not what its source gives or
    the tree holds a solution, a hidden test or a file of the instructor's.
    """
    all_sheets = sheets.load(course)
    with in_place_of(target) as fresh:
        fill(course, fresh)
        refuse([*sheets.problems(course), *leaks(fresh, all_sheets)])
    return target


@contextmanager
def in_place_of(target: Path) -> Iterator[Path]:
    """Give a path to write a tree to, which then takes the place of ``target``; after an error the
    old one stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        fresh = Path(folder, "fresh")
        yield fresh
        if target.exists():
            target.rename(Path(folder, "old"))
        fresh.rename(target)


def refuse(problems: Sequence[Problem]) -> None:
    """Raise AuthoringError that says what was found, if anything was."""
    if problems:
        raise AuthoringError("; ".join(str(problem) for problem in problems))


def fill(course: Course, tree: Path) -> None:
    """Write to ``tree`` the course as its readers get it, what it needs, and pages true there;
    without a search.
    """
    for name, content in form.files(course.folder).items():
        path = tree / "course" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for path in (course.root / name for name in TREE):
        if path.is_dir():
            shutil.copytree(path, tree / path.name, ignore=_IGNORED)
        elif path.exists():
            shutil.copy2(path, tree / path.name)
    readme = (_STUDENTS / "README.md").read_text(encoding="utf-8")
    (tree / "README.md").write_text(pages.with_table(readme, course.lessons()), encoding="utf-8")
    shutil.copyfile(_STUDENTS / "Makefile", tree / "Makefile")
    project = course.root / "pyproject.toml"
    if project.is_file():
        (tree / "pyproject.toml").write_text(
            installation_sections(project.read_text(encoding="utf-8")), encoding="utf-8"
        )


def installation_sections(project: str) -> str:
    """Return a pyproject.toml with the sections that install ``helpers``, and none of the course's
    own tools.
    """
    lines, is_kept = [], True
    for line in project.splitlines():
        section = _SECTION.fullmatch(line)
        if section:
            is_kept = section[1].startswith(_INSTALLING)
        if is_kept:
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n"


def leaks(tree: Path, all_sheets: Sequence[Sheet]) -> list[Problem]:
    """Return a problem for each file under ``tree`` that is the instructor's, or holds what
    students shall not read.

    Searched by content, anywhere in a file: every line of a solution, of a hidden test and of a
    wrong answer that is long enough to say something and that no released notebook holds itself,
    and nbgrader's marks of such regions.
    """
    secret = [*sorted(secrets(all_sheets)), "### BEGIN SOLUTION", "### BEGIN HIDDEN TESTS"]
    problems = []
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        name = path.relative_to(tree).as_posix()
        if "instructor" in Path(name).parts:
            problems.append(
                Problem(
                    name, None, "is a file of the instructor's; keep it out of the students' tree"
                )
            )
        text = _text(path)
        leaked = next((line for line in secret if line in text), None)
        if leaked:
            problems.append(
                Problem(name, None, f"shows a solution or a hidden test: {leaked!r}; take it out")
            )
    return problems


def secrets(all_sheets: Sequence[Sheet]) -> set[str]:
    """Return the lines, without indentation, that no student shall read before handing in."""
    public = "\n".join(cell.source for sheet in all_sheets for cell in sheets.released(sheet).cells)
    cells = [
        cell
        for sheet in all_sheets
        for cell in (*sheet.lesson.cells, *(wrong.cell for wrong in sheet.wrong))
    ]
    hidden = (cell for cell in cells if cell.kind == "code" or "written" in cell.metadata)
    lines = {line.strip() for cell in hidden for line in cell.source.splitlines()}
    return {line for line in lines if len(line) >= _SHORTEST_SECRET and line not in public}


def _text(path: Path) -> str:
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # a picture, not text
        return ""
    return (
        "\n".join(_strings(json.loads(content))) if path.suffix in (".ipynb", ".json") else content
    )


def _strings(value: Any) -> Iterator[str]:
    """Yield every text in JSON, the lines of a notebook's cell one by one where they are kept
    so.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def solutions(course: Course, target: Path, numbers: Sequence[str] = ()) -> Path:
    """Write the notebooks with solutions of the lessons in ``numbers`` (all when empty) to
    ``target``; return it.

    They are not run, and their links lead into the course's own folder.
    """
    target.mkdir(parents=True, exist_ok=True)
    for sheet in sheets.load(course, numbers):
        write(target / sheet.lesson.notebook_name, nbformat.writes(sheets.solved(sheet)) + "\n")
    return target


def nbgrader_folder(course: Course, target: Path, numbers: Sequence[str] = ()) -> list[Path]:
    """Write nbgrader's ``source`` folder under ``target``, one assignment a lesson, and its
    configuration if absent.

    Returns the paths written. What nbgrader keeps there (submissions, grades) is left alone, and an
    assignment keeps the name that it has there. Refuses a folder within the course that git would
    take in, since the notebooks hold the solutions.
    """
    return release_into(target, of_class(target, sheets.load(course, numbers)), course)


def of_class(folder: Path, current_sheets: Sequence[Sheet]) -> tuple[Sheet, ...]:
    """Return the exercises under the names that they have in the folder of a class.

    A class keeps the names with which it began, in its gradebook and in its files, also where a
    lesson has another number since.
    """
    current_names, names = {sheet.lesson.name for sheet in current_sheets}, dict[str, str]()
    for path in sorted((folder / "source").glob("[0-9][0-9]_*")):
        if path.is_dir() and names.get(title_of(path.name)) not in current_names:
            names[title_of(path.name)] = path.name
    return tuple(
        sheet.named(names.get(title_of(sheet.lesson.name), sheet.lesson.name))
        for sheet in current_sheets
    )


def release_into(target: Path, assignments: Sequence[Sheet], course: Course) -> list[Path]:
    """Write the sources of these assignments, under their names, and nbgrader's configuration; see
    nbgrader_folder.
    """
    inside = target.resolve().is_relative_to(course.root.resolve())
    if inside and not target.resolve().is_relative_to((course.root / "_build").resolve()):
        raise AuthoringError(
            f"{target}: give a folder outside the repository, or in _build; it will hold solutions"
        )
    written = []
    for sheet in assignments:
        path = target / "source" / sheet.lesson.name / sheet.lesson.notebook_name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, nbformat.writes(sheets.instructor(sheet)) + "\n")
        written.append(path)
    config = target / "nbgrader_config.py"
    if not config.exists():
        target.mkdir(parents=True, exist_ok=True)
        write(config, _CONFIG.format(stub={"python": sheets.STUB}, text=repr(sheets.WRITTEN_STUB)))
        written.append(config)
    return written
