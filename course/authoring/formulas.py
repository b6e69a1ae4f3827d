"""The sheet of formulas: each lesson's own table, and what the docstrings of the library's functions state.

Nothing is typed here but names: a formula that changes in a lesson or in a docstring changes on the sheet.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from course.authoring.course import Course
from course.authoring.lesson import AuthoringError, Lesson

HEADING = "## Formulas"

# The functions and results whose docstrings state a formula worth a line, by module.
STATED = {
    "helpers.feeding.intervals": ("young_interval_s", "daly_interval_s", "expected_run_s"),
    "helpers.feeding.pipeline": ("model_feeding",),
    "helpers.hardware.history": ("doubling_time", "multiplier_exponent"),
    "helpers.operations.report": ("LectureTable",),
    "helpers.parallel.costs": (
        "ring_all_reduce_s", "ring_reduce_scatter_s", "ring_all_gather_s", "tree_all_reduce_s",
        "halving_doubling_all_reduce_s", "gather_broadcast_all_reduce_s", "amdahl_speedup", "gustafson_speedup",
    ),
    "helpers.parallel.data_parallel": ("batch_weight",),
    "helpers.parallel.ensembles": ("model_ensemble_step",),
    "helpers.parallel.execution": ("MessageOverhead",),
    "helpers.parallel.experts": ("Experts", "model_expert_traffic"),
    "helpers.parallel.local": ("LocalRun",),
    "helpers.parallel.races": ("interleave_additions",),
    "helpers.parallel.ring": ("ring_attention", "model_ring_traffic"),
    "helpers.parallel.schedules": ("bubble_ratio", "bubble_share", "live_activations"),
    "helpers.parallel.sources": ("cost_on_link",),
    "helpers.parallel.strategy_costs": ("Traffic",),
    "helpers.parallel.updates": ("train_stale", "stability_limit", "growth_factor"),
    "helpers.simulators.tiling": ("naive_traffic", "tiled_traffic"),
    "helpers.studies.constant_weights.accuracy": ("error_bound",),
    "helpers.studies.fused_bias.operators": ("bias_gradient",),
    "helpers.studies.matrix_product": ("KernelInstructions", "error_share"),
}  # fmt: skip

_TAUGHT = re.compile(r"Lessons? (\d\d)[^.]*\.\s*\Z")
_SENTENCE = re.compile(r"(?<=\.)\s+(?=[A-Z`])")
_FORMULA = re.compile(
    r"(?<=[\w)\]`]) (?:[-+*/=]|x) (?=[\w(`])"  # a + b, counts x bytes
    r"|\b(?:sqrt|ceil|log2|sin)\b|\w\^[\w(-]"
    r"|\b\d+ m n k\b"
)
_ROLE = re.compile(r":\w+:`(?P<name>[^`]+)`")


@dataclass(frozen=True)
class Stated:
    """A formula that a docstring states: how a notebook calls the function, its file, the sentence, its lesson."""

    call: str
    file: str
    sentence: str
    lesson: str


def stated(course: Course) -> tuple[Stated, ...]:
    """Return every formula of :data:`STATED` that is of the course's package, in the order there.

    Raises AuthoringError for a name that is not there, and for a docstring without a formula or a lesson.
    """
    found: list[Stated] = []
    for module, names in STATED.items():
        if module.partition(".")[0] == course.package:
            for name in names:
                found += _of(course, module, name)
    return tuple(found)


def _of(course: Course, module: str, name: str) -> Iterable[Stated]:
    thing = getattr(importlib.import_module(module), name, None)
    text = " ".join((inspect.getdoc(thing) or "").split()) if thing is not None else ""
    taught = _TAUGHT.search(text)
    sentences = formulas_in(text)
    if taught is None or not sentences:
        lacks = "is not there" if thing is None else "names no lesson" if taught is None else "states no formula"
        raise AuthoringError(f"{module}.{name} {lacks}; mend its docstring, or STATED in course/authoring/formulas.py")
    file = Path(inspect.getfile(thing)).resolve().relative_to(course.root.resolve()).as_posix()
    call = _call(module, name, thing)
    return [Stated(call=call, file=file, sentence=sentence, lesson=taught[1]) for sentence in sentences]


def formulas_in(text: str) -> list[str]:
    """Return the sentences of a docstring that hold a formula, as Markdown, without 'Return' and the lesson."""
    plain = _ROLE.sub(r"`\g<name>`", _TAUGHT.sub("", text)).replace("``", "`")
    found = [sentence for sentence in _SENTENCE.split(plain.strip()) if _FORMULA.search(sentence)]
    return [_shown(sentence) for sentence in found]


def _shown(sentence: str) -> str:
    words = sentence.removeprefix("Return ").rstrip().removesuffix(".")
    return words[0].upper() + words[1:] if re.match(r"[a-z]{2,} ", words) else words


def _call(module: str, name: str, thing: object) -> str:
    """Return the shortest name that reaches the thing: the library's, its package's, else its module's whole path."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        if getattr(importlib.import_module(".".join(parts[:depth])), name, None) is thing:
            return f"{parts[depth - 1]}.{name}"
    return f"{module.partition('.')[2]}.{name}"


def table(lesson: Lesson) -> str:
    """Return what stands under a lesson's heading 'Formulas', '' where it has none."""
    for cell in lesson.cells:
        if cell.kind == "markdown" and HEADING in cell.source.splitlines():
            after = cell.source.partition(f"{HEADING}\n")[2]
            return re.split(r"^#{1,2} ", after, maxsplit=1, flags=re.MULTILINE)[0].strip()
    return ""


def page(course: Course, lessons: Sequence[Lesson]) -> str:
    """Return the sheet as Markdown: a section a lesson, its own formulas and then those that the library states."""
    known = stated(course)
    lines = [
        "# Formulas",
        "",
        f"Built by `make lessons` from the lessons' formulas and the docstrings of `{course.package}`; do not edit.",
        "What a docstring states is shown in its own words: *p* is the number of ranks, *n* a buffer's bytes, *alpha*",
        "the latency of a link, *beta* one over its bandwidth, where nothing else is said.",
    ]
    for lesson in lessons:
        rows = [one for one in known if one.lesson == lesson.number]
        own = table(lesson)
        if not own and not rows:
            continue
        lines += [
            "",
            f"## {lesson.number} {lesson.title}",
            "",
            f"From [lesson {lesson.number}]({lesson.notebook_name}).",
        ]
        lines += ["", own] if own else []
        if rows:
            lines += ["", "In the library:", "", "| function | formula |", "|---|---|"]
            lines += _rows(rows)
    return "\n".join(lines) + "\n"


def _rows(found: Sequence[Stated]) -> list[str]:
    """Return the lines of the table, one a function: its sentences, in their order."""
    functions = itertools.groupby(found, key=lambda one: f"[`{one.call}`](../{one.file})")
    return [f"| {name} | {_escaped('. '.join(one.sentence for one in sentences))} |" for name, sentences in functions]


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")
