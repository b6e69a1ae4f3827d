"""The index of the library's functions by lesson and of lessons by function, and its faults.

The index holds what a lesson or an exercise uses, nothing else: a student looks up what they met.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from IPython.core.inputtransformer2 import TransformerManager

from tools.authoring import pages
from tools.authoring.course import Course
from tools.authoring.lesson import AuthoringError, Cell, Lesson, cells_of
from tools.authoring.problem import Problem

_TAUGHT = re.compile(r"Lesson\s+(\d\d)\.\s*\Z")
_ROLE = re.compile(r":[a-z]+:`[~.]?([^`]*)`")
_MENTIONED = re.compile(r"`([A-Za-z_][\w.]*)(?:\(.*?\))?`")


@dataclass(frozen=True)
class FunctionEntry:
    """A public function or class: how a notebook calls it, where it stands, what it does, which
    lesson teaches it.

    ``taught`` is the lesson that its docstring names, or that of its module; ``own`` says that it
    is its docstring's.
    """

    call: str
    key: tuple[str, str]
    file: str
    summary: str
    taught: str | None
    own: bool
    is_function: bool


@dataclass(frozen=True)
class Uses:
    """The (module, name) of each function and class of the package that a lesson, with its
    appendix, and its exercises use, by number.
    """

    lessons: Mapping[str, frozenset[tuple[str, str]]]
    exercises: Mapping[str, frozenset[tuple[str, str]]]

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return frozenset().union(*self.lessons.values(), *self.exercises.values())


def uses(course: Course, lessons: Sequence[Lesson]) -> Uses:
    """Return the uses of the course's package in the lessons, their appendices and the sources of
    their exercises.
    """
    exercises = {
        path.name[:2]: _keys_in_cells(
            cells_of(path.read_text(encoding="utf-8"), path.name), course.package, path.name
        )
        for path in sorted((course.folder / "instructor" / "exercises").glob("*.py"))
    }
    lesson_keys = {lesson.number: used_keys(lesson, course.package) for lesson in lessons}
    for appendix in course.appendices([*lesson_keys]):
        lesson_keys[appendix.number] |= used_keys(appendix, course.package)
    return Uses(lesson_keys, exercises)


def entries(course: Course, keys: Iterable[tuple[str, str]] = ()) -> tuple[FunctionEntry, ...]:
    """Return every public function and class of the course's package, in the order of their names.

    Public is what a module of the package defines, and what a package within it hands on, without
    an underscore. Of ``keys``, by module and name, that is listed as well which stands deeper.
    """
    package = _package(course)
    entries_by_key: dict[tuple[str, str], FunctionEntry] = {}
    for module in (package, *_modules(package)):
        for member in _public(module):
            is_handed_on = (
                member.__name__ in dir(package) and getattr(package, member.__name__) is member
            )
            call = (
                f"{(package if is_handed_on else module).__name__.rpartition('.')[2]}"
                f".{member.__name__}"
            )
            entries_by_key[member.__module__, member.__name__] = _entry(course, call, member)
    for path, name in set(keys) - set(entries_by_key):
        call = f"{face(path, name).removeprefix(f'{package.__name__}.')}.{name}"
        entries_by_key[path, name] = _entry(
            course, call, getattr(importlib.import_module(path), name)
        )
    return tuple(sorted(entries_by_key.values(), key=lambda entry: entry.call.lower()))


def face(module: str, name: str) -> str:
    """Return the shortest path of public packages that hands ``name`` on, or the module itself
    where none does.

    A package that has something else under this name, such as a room, does not hand it on.
    """
    packages = module.partition("._")[0].split(".")
    faces = (".".join(packages[:length]) for length in range(2, len(packages) + 1))
    member = getattr(importlib.import_module(module), name)
    return next(
        (path for path in faces if getattr(importlib.import_module(path), name, None) is member),
        module,
    )


def plain(text: str) -> str:
    """Return a line of a docstring as Markdown, in which a role, such as :func: with its target, is
    plain code.
    """
    return _ROLE.sub(r"``\1``", text)


def _package(course: Course) -> ModuleType:
    package = importlib.import_module(course.package)
    if not Path(package.__file__ or "").resolve().is_relative_to(course.root.resolve()):
        raise AuthoringError(
            f"{course.package} is imported from elsewhere; install it with make setup"
        )
    return package


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    """Yield the modules of a package, and those of each package in it that hands nothing on."""
    for module_info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not module_info.name.rpartition(".")[2].startswith("_"):
            module = importlib.import_module(module_info.name)
            yield module
            if module_info.ispkg and not any(_public(module)):
                yield from _modules(module)


def _public(module: ModuleType) -> Iterator[Callable]:
    """Yield the members that a module defines or a package hands on; ``dir`` knows what a package
    imports only when it is used.
    """
    for name in dir(module):
        member = None if name.startswith("_") else getattr(module, name)
        if _is_named(member) and name == member.__name__:
            is_defined_here = member.__module__ == module.__name__
            if is_defined_here or (
                hasattr(module, "__path__") and member.__module__.startswith(f"{module.__name__}.")
            ):
                yield member


def _is_named(value: object) -> TypeGuard[Callable]:
    """Return whether a value is a function (a cached one too) or a class of a module: no method, no
    object to be called.
    """
    return (
        callable(value)
        and getattr(value, "__qualname__", None) == getattr(value, "__name__", "") != ""
    )


def _entry(course: Course, call: str, member: Callable) -> FunctionEntry:
    module = importlib.import_module(member.__module__)
    text, module_text = inspect.getdoc(member) or "", inspect.getdoc(module) or ""
    own_match = _TAUGHT.search(text)
    lesson_match = own_match or _TAUGHT.search(module_text)
    sentence = re.split(r"(?<=[.:;])\s", " ".join(text.split()), maxsplit=1)[0].rstrip(":;")
    return FunctionEntry(
        call=call,
        key=(module.__name__, member.__name__),
        file=Path(module.__file__ or "").resolve().relative_to(course.root.resolve()).as_posix(),
        summary=sentence,
        taught=lesson_match[1] if lesson_match else None,
        own=own_match is not None,
        is_function=not inspect.isclass(member),
    )


def used_keys(lesson: Lesson, package: str) -> frozenset[tuple[str, str]]:
    """Return the (module, name) of every thing of the package that a lesson's code calls or its
    text names in code.
    """
    return _keys_in_cells(lesson.cells, package, lesson.label)


def _keys_in_cells(cells: Iterable[Cell], package: str, where: str) -> frozenset[tuple[str, str]]:
    bindings: dict[str, str] = {}
    dotted_names: set[str] = set()
    for cell in cells:
        if cell.kind == "code":
            tree = _syntax(cell.source, cell.line, where)
            bindings |= _imports(tree, package)
            dotted_names |= set(_references(tree, bindings))
        else:
            dotted_names |= {_qualify(name, bindings) for name in _MENTIONED.findall(cell.source)}
    return frozenset(key for name in dotted_names if (key := resolve(name, package)) is not None)


def _syntax(source: str, line: int, where: str) -> ast.Module:
    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError as error:
        raise AuthoringError(
            f"{where}: the cell at line {line} is not Python: {error.msg}"
        ) from error


def _imports(tree: ast.Module, package: str) -> dict[str, str]:
    targets: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets |= {
                alias.asname or alias.name.partition(".")[0]: alias.name
                if alias.asname
                else alias.name.partition(".")[0]
                for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            targets |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    return {
        name: target for name, target in targets.items() if f"{target}.".startswith(f"{package}.")
    }


def _references(tree: ast.Module, bindings: Mapping[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield _qualify(ast.unparse(node), bindings)


def _qualify(name: str, bindings: Mapping[str, str]) -> str:
    first, dot, rest = name.partition(".")
    return f"{bindings.get(first, first)}{dot}{rest}"


def resolve(dotted_name: str, package: str) -> tuple[str, str] | None:
    """Return the (module, name) that a dotted name of the package stands for; None for other
    names.
    """
    first, *rest = dotted_name.split(".")
    if first != package or not all(name.isidentifier() for name in rest):
        return None
    value: object = importlib.import_module(package)
    for name in rest:
        try:
            value = getattr(value, name)
        except AttributeError:
            if (
                not inspect.ismodule(value)
                or importlib.util.find_spec(f"{value.__name__}.{name}") is None
            ):
                return None
            value = importlib.import_module(f"{value.__name__}.{name}")
    if not _is_named(value) or value.__module__.partition(".")[0] != package:
        return None
    return value.__module__, value.__name__


def check(course: Course, lessons: Sequence[Lesson]) -> list[Problem]:
    """Return a problem for each function of a lesson that names none, and for each that names one
    not using it.
    """
    package_uses = uses(course, lessons)
    problems = []
    for entry in entries(course, package_uses.keys):
        users = [number for number, keys in package_uses.lessons.items() if entry.key in keys]
        if not entry.is_function:
            continue
        if users and entry.taught is None:
            message = (
                f"{entry.call} names no lesson; end its docstring, or its module's, with 'Lesson "
                f"{users[0]}.'"
            )
        elif entry.own and entry.taught in package_uses.lessons and entry.taught not in users:
            elsewhere = f" (lesson {', '.join(users)} does)" if users else ""
            message = (
                f"{entry.call} names lesson {entry.taught}, which does not use it{elsewhere}; mend "
                "either"
            )
        else:
            continue
        problems.append(Problem(entry.file, None, message))
    return problems


def page(course: Course, lessons: Sequence[Lesson]) -> str:
    """Return the index as Markdown: first from lesson to functions, then from function to
    lessons.
    """
    package_uses = uses(course, lessons)
    files = {lesson.number: lesson.notebook_name for lesson in lessons}
    used_entries = [
        entry for entry in entries(course, package_uses.keys) if entry.key in package_uses.keys
    ]
    lines = [
        "# Index of functions",
        "",
        pages.made_from(f"lessons, exercises and docstrings of {course.package}"),
        "",
        (
            "The lessons come first, each with the functions that it uses. Then comes each "
            "function with its lessons."
        ),
        "",
        "## From a lesson to the functions it uses",
        "",
    ]
    for lesson in lessons:
        names = [
            f"[`{entry.call}`](../{entry.file})"
            for entry in used_entries
            if entry.key in package_uses.lessons[lesson.number]
        ]
        lines += [
            (
                f"- [{lesson.number} {lesson.title}]({lesson.notebook_name}): "
                f"{', '.join(names) or 'none'}"
            )
        ]
    lines += [
        "",
        "## From a function to its lessons",
        "",
        "| Name | What it gives | Taught in | Used in |",
        "|--|--|--|--|",
    ]
    for entry in used_entries:
        used_in = [
            _link(number, files) for number in files if entry.key in package_uses.lessons[number]
        ]
        used_in += [
            f"exercises {number}"
            for number, keys in package_uses.exercises.items()
            if entry.key in keys
        ]
        lesson_link = _link(entry.taught, files) if entry.taught else ""
        name = f"[`{entry.call}`](../{entry.file})"
        lines += [
            f"| {name} | {_escape(plain(entry.summary))} | {lesson_link} | {', '.join(used_in)} |"
        ]
    return "\n".join(lines) + "\n"


def _link(number: str, files: Mapping[str, str]) -> str:
    return f"[{number}]({files[number]})" if number in files else number


def _escape(text: str) -> str:
    return text.replace("|", r"\|")
