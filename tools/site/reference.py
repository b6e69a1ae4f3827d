"""The reference of the library: a page a package, each public thing with its docstring and the
lessons that use it.

A function stands on the page of the package that it belongs to, also where ``helpers`` hands it on.
The index finds the functions for one's own programs by task, and lists the packages that serve the
lessons apart.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.authoring.course import Course
from tools.authoring.lesson import AuthoringError, Lesson
from tools.authoring.rules import functions

FOLDER = "api"
TASKS = {
    "Count the operations and bytes of each layer of a model": ("operations.profile_ops",),
    "Count the operations of any code, such as a training loop": ("operations.count_ops",),
    "Estimate the peak memory of a step without running it": ("memory.estimate_peak_memory",),
    "Measure the peak memory of a step": ("memory.measure_peak_memory",),
    "See which layer needs the memory": ("memory.profile_layer_mem",),
    "Find out whether a step fits, and the largest batch that does": (
        "memory.fits",
        "memory.max_batch_size",
    ),
    "Find the layer in which a step spends its time": ("profiling.profile_time",),
    "Find the kernel in which a function spends its time": ("profiling.kernel_table",),
    "Model the time of a step from its operators": ("profiling.estimate_step_time",),
    "Time a function, or compare two": ("timing.measure", "timing.compare"),
    "Describe this machine, and measure its limits": ("hardware.machine_card", "hardware.probe"),
    "Compare a model with the limits of a machine": ("roofline.roofline", "roofline.model"),
    "Run a function in a process with a limit on its memory and time": ("isolation.run_limited",),
    "Train with several processes from a notebook or a script": ("ranks.Ranks", "ranks.torchrun"),
    "Compile C++ or CUDA C++, and count the instructions": (
        "native.compile_cpp",
        "native.compile_cuda",
        "native.census",
    ),
    "Read and write quantities with their units": ("units.parse", "units.text"),
}
_FOR_LESSONS = ("checks", "console", "data", "doctor", "exercises", "lecture", "links", "models",
                "plotting", "recorded", "storage", "studies", "training", "trees",
                "widgets")  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """The pages by their files, and by each name as the index of functions gives it the path to
    import it from.
    """

    pages: Mapping[str, str]
    paths: Mapping[str, str]


def of(course: Course, lessons: Sequence[Lesson]) -> Reference:
    """Return the reference of what is public in the course's package, and of what else a lesson
    uses.

    Raises AuthoringError where a task of the index names what the package does not have.
    """
    uses = functions.uses(course, lessons)
    files = {lesson.number: f"../{lesson.notebook_name}" for lesson in lessons}
    by_face: dict[str, list[functions.FunctionEntry]] = {}
    paths = {}
    for entry in functions.entries(course, uses.keys):
        face = functions.face(*entry.key)
        by_face.setdefault(face, []).append(entry)
        paths[entry.call] = f"{face}.{entry.key[1]}"
    pages = {f"{FOLDER}/{course.package}.md": _page_of_names(course.package, paths)}
    for face, entries in by_face.items():
        ordered = sorted(entries, key=lambda entry: (not entry.is_function, entry.key[1].lower()))
        texts = []
        for entry in ordered:
            lessons_using = [number for number in files if entry.key in uses.lessons[number]]
            short_name = entry.call if entry.call.startswith(f"{course.package}.") else None
            texts.append(_entry(f"{face}.{entry.key[1]}", entry, short_name, lessons_using, files))
        pages[f"{FOLDER}/{face}.md"] = _page(face, ordered, texts)
    index = _index(course.package, [course.package, *sorted(by_face)], frozenset(paths.values()))
    return Reference({f"{FOLDER}/index.md": index, **pages}, paths)


def _entry(
    path: str,
    entry: functions.FunctionEntry,
    short_name: str | None,
    lessons_using: Sequence[str],
    files: Mapping[str, str],
) -> str:
    links = ", ".join(f"[{number}]({files[number]})" for number in lessons_using)
    directive = "autofunction" if entry.is_function else "autoclass"
    members = "" if entry.is_function else "\n   :members:"
    notes = [f"Import it as `{short_name}` too."] if short_name else []
    notes += (
        [f"Used in {'lesson' if len(lessons_using) == 1 else 'lessons'} {links}."]
        if lessons_using
        else []
    )
    return "\n\n".join(
        [
            f"```{{eval-rst}}\n.. {directive}:: {path}{members}\n```",
            *filter(None, [" ".join(notes)]),
        ]
    )


def _page(face: str, entries: Sequence[functions.FunctionEntry], texts: Sequence[str]) -> str:
    """Return the page of a package: what it is for, its functions, and the classes that they take
    or return.
    """
    parts = [f"# {face}", _docstring_directive(face)]
    for title, is_function in (("Functions", True), ("Classes", False)):
        texts_of_kind = [
            text
            for entry, text in zip(entries, texts, strict=True)
            if entry.is_function is is_function
        ]
        parts += [f"## {title}", *texts_of_kind] if texts_of_kind else []
    return "\n\n".join(parts) + "\n"


def _page_of_names(package: str, paths: Mapping[str, str]) -> str:
    """Return the page of the course's package, which lists the names that it hands on and describes
    none of them.
    """
    names = [
        f"- `{call}` is {_link(path)}"
        for call, path in paths.items()
        if call.startswith(f"{package}.")
    ]
    return (
        "\n\n".join([f"# {package}", _docstring_directive(package), "## Names", "\n".join(names)])
        + "\n"
    )


def _index(package: str, faces: Sequence[str], paths: frozenset[str]) -> str:
    missing = sorted(
        {name for names in TASKS.values() for name in names if f"{package}.{name}" not in paths}
    )
    if missing:
        raise AuthoringError(
            f"the reference's tasks name {', '.join(missing)}, which {package} does not have"
        )
    for_lessons = [
        face for face in faces if face.split(".")[1:2] and face.split(".")[1] in _FOR_LESSONS
    ]
    for_programs = [face for face in faces if face not in for_lessons]
    tasks = [
        f"| {task} | {', '.join(_link(f'{package}.{name}') for name in names)} |"
        for task, names in TASKS.items()
    ]
    lines = [
        "# Reference of the library",
        "",
        "## By task",
        "",
        "| You want to | Function |",
        "|--|--|",
        *tasks,
        "",
        "## Packages for your own programs",
        "",
        *map(_row, for_programs),
        "",
        "## Packages that serve the lessons",
        "",
        *map(_row, for_lessons),
        "",
        ":::{toctree}\n:hidden:\n\n" + "\n".join([*for_programs, *for_lessons]) + "\n:::",
    ]
    return "\n".join(lines) + "\n"


def _link(path: str) -> str:
    return f"{{py:obj}}`{path.partition('.')[2]} <{path}>`"


def _row(face: str) -> str:
    return f"- [{face}]({face}.md): {functions.plain(_docstring(face).partition(chr(10))[0])}"


def _docstring_directive(face: str) -> str:
    return f"```{{eval-rst}}\n{_docstring(face)}\n```"


def _docstring(face: str) -> str:
    return inspect.getdoc(importlib.import_module(face)) or ""
