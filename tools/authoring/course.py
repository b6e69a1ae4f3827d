"""The files and folders of the course, and its lessons."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat

from tools.authoring import lesson, order
from tools.authoring.lesson import AuthoringError, Lesson
from tools.authoring.order import Act


@dataclass(frozen=True)
class Course:
    """The folders of a course under ``root``; ``package`` is the library that its lessons use."""

    root: Path
    package: str = "helpers"

    @property
    def folder(self) -> Path:
        return self.root / "course"

    @property
    def source_folder(self) -> Path:
        return self.folder / "source"

    @property
    def glossary(self) -> Path:
        return self.folder / "glossary.md"

    @property
    def functions(self) -> Path:
        return self.folder / "index_of_functions.md"

    @property
    def formulas(self) -> Path:
        return self.folder / "formulas.md"

    @property
    def syllabus(self) -> Path:
        return self.folder / "syllabus.md"

    @property
    def acts(self) -> tuple[Act, ...]:
        return order.read(self.folder / "order.toml")

    @property
    def symbols(self) -> Path:
        return self.folder / "symbols.toml"

    @property
    def rules_of_thumb(self) -> Path:
        return self.folder / "rules_of_thumb.md"

    def map(self, of: Lesson) -> Path:
        return self.folder / "map" / f"{of.name}.svg"

    @property
    def course_map(self) -> Path:
        return self.folder / "map" / "course.svg"

    @property
    def three_numbers(self) -> Path:
        """The picture of a lesson's three numbers, which the README and the site show as an
        answer.
        """
        return self.folder / "map" / "three_numbers.svg"

    @property
    def asked_numbers(self) -> Path:
        """The same picture as a question, without the numbers that answer it."""
        return self.folder / "map" / "asked_numbers.svg"

    @property
    def readme(self) -> Path:
        return self.root / "README.md"

    @property
    def address(self) -> str:
        """The repository's address, as pyproject.toml states it in ``[project.urls]``, or ''."""
        path = self.root / "pyproject.toml"
        project = (
            tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
            if path.is_file()
            else {}
        )
        return project.get("urls", {}).get("Repository", "")

    def checks(self, of: Lesson) -> Path:
        """Return the path of the checks of a lesson that is built from a story; the others have
        them in their cells.
        """
        return self.source_folder / "checks" / f"{of.name}.py"

    def source(self, of: Lesson) -> Path:
        return self.source_folder / f"{of.name}.py"

    def notebook(self, of: Lesson) -> Path:
        return self.folder / of.notebook_name

    def lessons(self, numbers: Sequence[str] = ()) -> tuple[Lesson, ...]:
        """Return the lessons in the order of their numbers: all of them, or those in ``numbers``.

        Raises AuthoringError when a source is ill-formed, two share a number, or a number in
        ``numbers`` has none.
        """
        parsed_lessons = (lesson.read(path) for path in sorted(self.source_folder.glob("*.py")))
        acts = self.acts
        ways = order.ways(self.folder / "order.toml")
        lessons = tuple(
            replace(
                lesson,
                run_s=_run_s(self.notebook(lesson)),
                act=order.act_of(acts, lesson.name),
                way=ways.get(lesson.slug),
            )
            for lesson in parsed_lessons
        )
        known_numbers = [lesson.number for lesson in lessons]
        duplicates = sorted({number for number in known_numbers if known_numbers.count(number) > 1})
        if duplicates:
            raise AuthoringError(
                f"two sources have the number {', '.join(duplicates)}; give each lesson its own"
            )
        unknown = [number for number in numbers if number not in known_numbers]
        if unknown:
            raise AuthoringError(
                f"no lesson {', '.join(unknown)}; there are "
                f"{', '.join(known_numbers) or 'none yet'}"
            )
        return tuple(lesson for lesson in lessons if not numbers or lesson.number in numbers)

    def appendices(self, numbers: Sequence[str] = ()) -> tuple[Lesson, ...]:
        """Return the appendices of the lessons in ``numbers`` (all when empty), for those that have
        one.

        Raises AuthoringError when a source is ill-formed, or has not the name of a lesson's.
        """
        appendices = []
        for path in sorted((self.source_folder / lesson.APPENDIX).glob("*.py")):
            appendix = lesson.read(path)
            if not (self.source_folder / path.name).is_file():
                raise AuthoringError(
                    f"{appendix.name}.py: no lesson has this name; name an appendix as its lesson "
                    "is named"
                )
            appendices.append(replace(appendix, run_s=_run_s(self.notebook(appendix))))
        return tuple(
            appendix for appendix in appendices if not numbers or appendix.number in numbers
        )

    def built(self, of: Lesson) -> nbformat.NotebookNode:
        """Return the notebook that was built from a lesson; raises AuthoringError when it is absent
        or not one.
        """
        path, advice = self.notebook(of), f"run make lessons LESSONS={of.number}"
        try:
            return nbformat.read(path, as_version=4)
        except FileNotFoundError as error:
            raise AuthoringError(f"{of.label} is not built; {advice}") from error
        except (ValueError, nbformat.ValidationError, nbformat.reader.NotJSONError) as error:
            raise AuthoringError(f"{of.notebook_name} is not a notebook; {advice}") from error


def _run_s(path: Path) -> int:
    """Return the seconds that the run of a built notebook took; 0 where there is none that says
    it.
    """
    try:
        return _read_run_s(path, path.stat().st_mtime_ns)
    except (FileNotFoundError, ValueError, KeyError):
        return 0


@functools.lru_cache(maxsize=128)
def _read_run_s(path: Path, modified_ns: int) -> int:
    del modified_ns
    return json.loads(path.read_text(encoding="utf-8"))["metadata"]["lesson"]["run_s"]


HERE = Course(Path(__file__).resolve().parents[2])
