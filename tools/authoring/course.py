"""Where the parts of the course lie, and which lessons it has."""

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
        """Where the checks of a lesson are that is built from a story; the others have them in
        their cells.
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
        read = (lesson.read(path) for path in sorted(self.source_folder.glob("*.py")))
        acts = self.acts
        ways = order.ways(self.folder / "order.toml")
        found = tuple(
            replace(
                one,
                run_s=_run_s(self.notebook(one)),
                act=order.act_of(acts, one.name),
                way=ways.get(one.slug),
            )
            for one in read
        )
        known = [one.number for one in found]
        twice = sorted({number for number in known if known.count(number) > 1})
        if twice:
            raise AuthoringError(
                f"two sources have the number {', '.join(twice)}; give each lesson its own"
            )
        unknown = [number for number in numbers if number not in known]
        if unknown:
            raise AuthoringError(
                f"no lesson {', '.join(unknown)}; there are {', '.join(known) or 'none yet'}"
            )
        return tuple(one for one in found if not numbers or one.number in numbers)

    def appendices(self, numbers: Sequence[str] = ()) -> tuple[Lesson, ...]:
        """Return the appendices of the lessons in ``numbers`` (all when empty), for those that have
        one.

        Raises AuthoringError when a source is ill-formed, or has not the name of a lesson's.
        """
        found = []
        for path in sorted((self.source_folder / lesson.APPENDIX).glob("*.py")):
            one = lesson.read(path)
            if not (self.source_folder / path.name).is_file():
                raise AuthoringError(
                    f"{one.name}.py: no lesson has this name; name an appendix as its lesson is "
                    "named"
                )
            found.append(replace(one, run_s=_run_s(self.notebook(one))))
        return tuple(one for one in found if not numbers or one.number in numbers)

    def built(self, of: Lesson) -> nbformat.NotebookNode:
        """Return the notebook that was built from a lesson; raises AuthoringError when it is absent
        or not one.
        """
        path, again = self.notebook(of), f"run make lessons LESSONS={of.number}"
        try:
            return nbformat.read(path, as_version=4)
        except FileNotFoundError as error:
            raise AuthoringError(f"{of.label} is not built; {again}") from error
        except (ValueError, nbformat.ValidationError, nbformat.reader.NotJSONError) as error:
            raise AuthoringError(f"{of.notebook_name} is not a notebook; {again}") from error


def _run_s(path: Path) -> int:
    """Return the seconds that the run of a built notebook took; 0 where there is none that says
    it.
    """
    try:
        return _stated_run_s(path, path.stat().st_mtime_ns)
    except (FileNotFoundError, ValueError, KeyError):
        return 0


@functools.lru_cache(maxsize=128)
def _stated_run_s(path: Path, changed_ns: int) -> int:
    del changed_ns
    return json.loads(path.read_text(encoding="utf-8"))["metadata"]["lesson"]["run_s"]


HERE = Course(Path(__file__).resolve().parents[2])
