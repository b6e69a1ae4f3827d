"""The reference of the library: a page a package, each public thing with its docstring and the lessons that use it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.authoring.course import Course
from tools.authoring.lesson import Lesson
from tools.authoring.rules import functions

FOLDER = "api"


@dataclass(frozen=True)
class Reference:
    """The pages by their files, and by each name as the index of functions gives it the path to import it from."""

    pages: Mapping[str, str]
    paths: Mapping[str, str]


def of(course: Course, lessons: Sequence[Lesson]) -> Reference:
    """Return the reference of what is public in the course's package, and of what else a lesson uses."""
    known = functions.uses(course, lessons)
    files = {lesson.number: f"../{lesson.notebook_name}" for lesson in lessons}
    by_face: dict[str, list[str]] = {}
    paths = {}
    for entry in functions.entries(course, known.keys):
        module, name = entry.key
        face = course.package if entry.call == f"{course.package}.{name}" else functions.face(module, name)
        used = [number for number in files if entry.key in known.lessons[number]]
        by_face.setdefault(face, []).append(_entry(f"{face}.{name}", entry, used, files))
        paths[entry.call] = f"{face}.{name}"
    pages = {f"{FOLDER}/{face}.md": _page(face, texts) for face, texts in by_face.items()}
    return Reference({f"{FOLDER}/index.md": _index(sorted(by_face)), **pages}, paths)


def _entry(path: str, entry: functions.FunctionEntry, used: Sequence[str], files: Mapping[str, str]) -> str:
    links = ", ".join(f"[{number}]({files[number]})" for number in used)
    directive = "autofunction" if entry.is_function else "autoclass"
    members = "" if entry.is_function else "\n   :members:"
    said = f"\n\nUsed in {'lesson' if len(used) == 1 else 'lessons'} {links}." if used else ""
    return f"```{{eval-rst}}\n.. {directive}:: {path}{members}\n```{said}"


def _page(face: str, texts: Sequence[str]) -> str:
    said = inspect.getdoc(importlib.import_module(face)) or ""
    return "\n\n".join([f"# {face}", f"```{{eval-rst}}\n{said}\n```", *texts]) + "\n"


def _index(faces: Sequence[str]) -> str:
    rows = [f"- [{face}]({face}.md): {_summary(face)}" for face in faces]
    contents = ":::{toctree}\n:hidden:\n\n" + "\n".join(faces) + "\n:::"
    return "\n".join(["# Reference of the library", "", *rows, "", contents]) + "\n"


def _summary(face: str) -> str:
    return (inspect.getdoc(importlib.import_module(face)) or "").partition("\n")[0].replace("``", "`")
