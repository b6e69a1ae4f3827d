"""A rehearsal of other processors: every notebook by strict nbval where libraries, cores and caches
are limited.

``python -m tools.authoring rehearse`` says first which limit had an effect here, because one that
nothing heeds is no evidence, and then which output changed. What changed is run again, twice: with
the same limits, and without any.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from helpers.results import Record
from tools.authoring.course import Course
from tools.authoring.environment import headless
from tools.authoring.lesson import AuthoringError
from tools.authoring.rehearsal import effects
from tools.authoring.rehearsal.settings import AS_IT_IS, Setting, Unavailable, files

_ROOT = Path(__file__).resolve().parents[3]
_ANSWERS = Path(__file__).with_name("processor.c")
_PROGRAM = Path(__file__).with_name("cells.py")


class Effect(Record):
    """The words of a library as it is and with the limits of a setting; ``limit`` is the variable
    that asks for it.
    """

    setting: str
    limit: str
    says: str
    as_it_is: str
    limited: str

    @property
    def has_effect(self) -> bool:
        return self.as_it_is != self.limited


class Change(Record):
    """An output that changed: ``stored`` and ``here`` are the first line that differs, as nbval
    compares it.

    ``again`` says that it changed in a second run with the same limits, ``without`` that it does
    without limits too.
    """

    setting: str
    notebook: str
    cell: int
    why: str
    stored: str
    here: str
    again: bool = False
    without: bool = False

    @property
    def verdict(self) -> str:
        if self.without:
            return "without limits too"
        return "in both runs" if self.again else "in one run of two"


class Rehearsal(Record):
    """The results of a rehearsal: the effects of its settings, and the outputs that changed."""

    notebooks: int
    settings: tuple[str, ...]
    impossible: tuple[str, ...]
    effects: tuple[Effect, ...]
    changes: tuple[Change, ...]

    @property
    def is_clean(self) -> bool:
        """Whether a setting was rehearsed, and no output changed but by chance, in one run of
        two.
        """
        return bool(self.settings) and not any(
            change.again or change.without for change in self.changes
        )

    def __str__(self) -> str:
        lines = [
            f"{self.notebooks} notebooks in each of: {', '.join(self.settings) or 'no setting'}"
        ]
        lines += [f"NOT REHEARSED, {reason}" for reason in self.impossible]
        for effect in self.effects:
            difference = (
                f"{effect.as_it_is} -> {effect.limited}"
                if effect.has_effect
                else f"NO EFFECT, {effect.as_it_is}"
            )
            lines.append(f"{effect.setting}: {effect.limit}: {effect.says}: {difference}")
        for change in self.changes:
            lines.append(
                f"{change.setting}: {change.notebook}, code cell {change.cell}, {change.verdict}: "
                f"{change.why}"
            )
            lines += [f"    - {change.stored}", f"    + {change.here}"]
        return "\n".join([*lines, f"{len(self.changes)} output(s) changed"])


def rehearse(
    course: Course, settings: Sequence[Setting], notebooks: Sequence[Path], *, sanitize: Path
) -> Rehearsal:
    """Run notebooks in each setting that can be made here, and return the effects and the changes.

    Raises AuthoringError where a run ends before it has compared every notebook.
    """
    results: dict[str, tuple[list[Effect], list[Change]]] = {}
    impossible = []
    for setting in settings:
        try:
            results[setting.name] = _rehearse_setting(course, setting, notebooks, sanitize)
        except Unavailable as error:
            impossible.append(f"{setting.name}: {error}")
    effects = tuple(effect for effects, _ in results.values() for effect in effects)
    changes = tuple(change for _, changes in results.values() for change in changes)
    return Rehearsal(len(notebooks), tuple(results), tuple(impossible), effects, changes)


def _rehearse_setting(
    course: Course, setting: Setting, notebooks: Sequence[Path], sanitize: Path
) -> tuple[list[Effect], list[Change]]:
    with _apply_limits(setting) as limits:
        effects = _effects(setting, limits)
        first_changes = _changes(course, limits, notebooks, sanitize)
        changed_notebooks = [
            path
            for path in notebooks
            if any(name == _name(course, path) for name, _ in first_changes)
        ]
        second_changes = (
            _changes(course, limits, changed_notebooks, sanitize) if changed_notebooks else {}
        )
    with _apply_limits(AS_IT_IS) as plain:
        unlimited_changes = (
            _changes(course, plain, changed_notebooks, sanitize) if changed_notebooks else {}
        )
    return effects, [
        Change(
            setting.name,
            *location,
            *difference,
            again=location in second_changes,
            without=location in unlimited_changes,
        )
        for location, difference in first_changes.items()
    ]


def notebooks(course: Course, numbers: Sequence[str] = ()) -> tuple[Path, ...]:
    """Return the notebooks of the lessons in ``numbers`` (all when empty), with their appendices
    and exercises.
    """
    lessons = course.lessons(numbers)
    paths = [course.notebook(lesson) for lesson in (*lessons, *course.appendices(numbers))]
    for lesson in lessons:
        paths += sorted((course.folder / "exercises").glob(f"{lesson.number}_*.ipynb"))
    return tuple(paths)


@dataclass(frozen=True)
class _Limits:
    """The limits of a setting for a process: words before its command, variables, processors that
    it may use.
    """

    prefix: tuple[str, ...]
    environment: dict[str, str]
    variables: dict[str, str]
    processors: frozenset[int] | None

    def start(self) -> None:
        """Keep this process, which has just been forked, to its processors."""
        if self.processors is not None:
            os.sched_setaffinity(0, self.processors)


@contextmanager
def _apply_limits(setting: Setting) -> Iterator[_Limits]:
    with tempfile.TemporaryDirectory(
        prefix="course-rehearsal-", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        variables = dict(setting.variables)
        if setting.processor:
            variables |= {
                "LD_PRELOAD": str(_compile_answers(folder)),
                "REHEARSED_CPUID": setting.processor.text,
            }
        environment = {**os.environ, **headless(cache_folder=str(folder / "cache")), **variables}
        yield _Limits(
            _command_prefix(setting, folder), environment, variables, _processors(setting)
        )


def _processors(setting: Setting) -> frozenset[int] | None:
    if setting.cores is None:
        return None
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < setting.cores:
        raise Unavailable(
            f"{setting.name} needs {setting.cores} cores, and {len(usable)} may be used here"
        )
    return frozenset(usable[: setting.cores])


def _compile_answers(folder: Path) -> Path:
    """Return processor.c, compiled; raises Unavailable where this processor answers every program
    itself.
    """
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or "cpuid_fault" not in cpuinfo.read_text(encoding="utf-8"):
        raise Unavailable(
            "this processor cannot answer as another one (no cpuid_fault among its flags)"
        )
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("to answer as another processor needs a C compiler; install gcc")
    target = folder / "processor.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", str(_ANSWERS), "-o", str(target), "-ldl"], check=True
    )
    return target


def _command_prefix(setting: Setting, folder: Path) -> tuple[str, ...]:
    """Return the words that start a command which sees other files in place of the system's."""
    bind_options = []
    for number, (path, text) in enumerate(files(setting).items()):
        replacement = folder / f"file-{number}"
        replacement.write_text(text, encoding="utf-8")
        bind_options += ["--ro-bind", str(replacement), str(path)]
    if not bind_options:
        return ()
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise Unavailable(
            f"{setting.name} shows other files in place of the system's; install bubblewrap"
        )
    return (bubblewrap, "--die-with-parent", "--dev-bind", "/", "/", *bind_options, "--")


def _effects(setting: Setting, limits: _Limits) -> list[Effect]:
    """Return the evidence of each limit's effect; of the answers of another processor, all that
    changed.
    """
    python = [sys.executable, "-P"]
    with _apply_limits(AS_IT_IS) as plain:
        facts_before = effects.facts(python, plain.environment, plain.start)
    facts_after = effects.facts([*limits.prefix, *python], limits.environment, limits.start)
    shows = [(f"{key}={value}", effects.SHOWN_BY[key]) for key, value in setting.variables.items()]
    shows += [(f"{setting.cores} core(s)", "cores of the card")] if setting.cores else []
    shows += (
        [(f"a last cache of {setting.cache_bytes:,} B", "last cache of the card")]
        if setting.cache_bytes
        else []
    )
    shows += [("flags hidden", "extensions of the card")] if setting.hidden else []
    if setting.processor:
        shows += [
            ("another cpuid", name)
            for name in facts_after
            if facts_before.get(name) != facts_after[name]
        ]
    return [
        Effect(
            setting.name,
            limit,
            says,
            facts_before.get(says, "nothing"),
            facts_after.get(says, "nothing"),
        )
        for limit, says in dict.fromkeys(shows)
    ]


def _name(course: Course, notebook: Path) -> str:
    return notebook.relative_to(course.folder).as_posix()


def _changes(
    course: Course, limits: _Limits, notebooks: Sequence[Path], sanitize: Path
) -> dict[tuple[str, int], tuple[str, str, str]]:
    """Run notebooks in one process with the limits: (notebook, cell) to why and what changed."""
    with tempfile.TemporaryDirectory(
        prefix="course-rehearsal-", ignore_cleanup_errors=True
    ) as folder:
        failures_file = Path(folder, "changes")
        request = {
            "root": str(course.root),
            "sanitize": str(sanitize),
            "variables": limits.variables,
            "notebooks": [str(path) for path in notebooks],
        }
        command = [*limits.prefix, sys.executable, "-P", str(_PROGRAM), str(failures_file)]
        path = os.pathsep.join(
            filter(None, (str(course.root), str(_ROOT), os.environ.get("PYTHONPATH", "")))
        )
        process = subprocess.run(
            command,
            env={**limits.environment, "PYTHONPATH": path},
            preexec_fn=limits.start,
            input=json.dumps(request),
            text=True,
            cwd=course.root,
            check=False,
        )
        lines = (
            [json.loads(line) for line in failures_file.read_text(encoding="utf-8").splitlines()]
            if failures_file.exists()
            else []
        )
    if process.returncode != 0 or len(lines) != len(notebooks):
        missing = _name(course, notebooks[len(lines)]) if len(lines) < len(notebooks) else "the end"
        raise AuthoringError(
            f"the rehearsal ended with status {process.returncode} before {missing} was compared"
        )
    return {
        (_name(course, notebook), cell): (why, stored, here)
        for notebook, failures in zip(notebooks, lines, strict=True)
        for cell, why, stored, here in failures
    }
