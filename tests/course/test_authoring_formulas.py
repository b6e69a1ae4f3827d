"""The sheet of formulas is what lessons and docstrings say, and what a docstring says is what its function computes."""

from __future__ import annotations

import math
import re

import pytest

from course.authoring import formulas
from course.authoring.course import HERE
from course.authoring.lesson import AuthoringError
from helpers import feeding, simulators
from helpers.parallel import costs, schedules, updates
from helpers.parallel.links import Link

LESSONS = HERE.lessons()


@pytest.fixture(scope="module")
def sheet() -> str:
    return HERE.formulas.read_text(encoding="utf-8")


def test_the_sheet_is_what_lessons_and_docstrings_make_of_it_now(sheet):
    assert sheet == formulas.page(HERE, LESSONS), "run python -m course.authoring table --write"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.number)
def test_every_lesson_has_its_own_formulas_on_it(sheet, lesson):
    own = formulas.table(lesson)
    assert own.count("\n|") >= 5
    section = sheet.partition(f"## {lesson.number} {lesson.title}\n")[2].partition("\n## ")[0]
    assert own in section


def test_a_function_has_one_row_with_all_of_its_sentences(sheet):
    rows = [line for line in sheet.splitlines() if "](../helpers/" in line]
    names = [line.partition("](")[0] for line in rows]
    assert len(names) == len(set(names))
    several = [one for one in formulas.stated(HERE) if one.call == "parallel.stability_limit"]
    assert len(several) > 1
    [row] = [line for line in rows if line.startswith("| [`parallel.stability_limit`]")]
    assert ". ".join(one.sentence for one in several) in row


@pytest.mark.parametrize("name", ["nothing_of_the_kind", "speedup"])
def test_a_name_without_a_formula_is_refused(monkeypatch, name):
    monkeypatch.setattr(formulas, "STATED", {"helpers.parallel.costs": (name,)})
    with pytest.raises(AuthoringError, match=rf"costs\.{name} (is not there|states no formula)"):
        formulas.stated(HERE)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Return a + b, the sum. Raises ValueError. Lesson 00.", ["a + b, the sum"]),
        ("Return the parts: ``n / p`` of them each. Lesson 00.", ["The parts: `n / p` of them each"]),
        ("A well-known thing, either/or. Lesson 04.", []),
        ("As :func:`other` does: 2 m n k reads. Lessons 03 and 05.", ["As `other` does: 2 m n k reads"]),
    ],
)
def test_the_sentences_with_a_formula_are_found(text, found):
    assert formulas.formulas_in(text) == found


FUNCTIONS = {"sqrt": math.sqrt, "ceil": math.ceil, "log2": math.log2, "sin": math.sin, "pi": math.pi, "e": math.e}
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[A-Za-z_]\w*|\S")


def computed(formula: str, **values: float) -> float:
    """Return the value of a formula as people write it: a space is a product, ``2M`` binds before a division."""
    text = re.sub(r"\b(\d+)([A-Za-z]\w*)", r"(\1 \2)", formula)
    text = re.sub(r"\blog2 (\w+)", r"log2(\1)", text)
    tokens = _TOKEN.findall(text)
    python = ""
    for before, token in zip(["", *tokens], tokens, strict=False):
        ends = before == ")" or (before[-1:].isalnum() and before not in ("sqrt", "ceil", "log2", "sin"))
        python += f"{' * ' if ends and (token[0].isalnum() or token == '(') else ' '}{'**' if token == '^' else token}"
    return eval(python, {"__builtins__": {}}, {**FUNCTIONS, **values})


def stated(name: str) -> str:
    """Return all that the sheet says of a function."""
    return " ".join(one.sentence for one in formulas.stated(HERE) if one.call.rpartition(".")[2] == name)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("ring_all_reduce_s", "2 (p - 1) alpha + 2 (p - 1) / p n beta"),
        ("ring_reduce_scatter_s", "(p - 1) (alpha + n / p beta)"),
        ("ring_all_gather_s", "(p - 1) (alpha + n / p beta)"),
        ("tree_all_reduce_s", "2 ceil(log2 p) (alpha + n beta)"),
        ("halving_doubling_all_reduce_s", "2 log2 p alpha + 2 (p - 1) / p n beta"),
        ("gather_broadcast_all_reduce_s", "2 (p - 1) (alpha + n beta)"),
    ],
)
def test_the_formula_of_a_collective_is_what_its_function_computes(name, formula):
    link, ranks, size_bytes = Link(latency_s=3e-5, bandwidth_bytes_per_s=2e9), 8, 1_000_000
    assert formula in stated(name)
    value = computed(formula, p=ranks, n=size_bytes, alpha=3e-5, beta=1 / 2e9)
    assert value == pytest.approx(getattr(costs, name)(ranks, size_bytes, link=link), rel=1e-12)


ZERO_BUBBLE = {"ranks": 4, "microbatches": 8, "forward_s": 2, "backward_s": 5, "weight_s": 2}
DALY = {"save_s": 30, "mtbf_s": 9000, "restart_s": 60}


@pytest.mark.parametrize(
    ("formula", "values", "function", "arguments"),
    [
        ("1 / (s + (1 - s) / p)", {"s": 0.1, "p": 8}, costs.amdahl_speedup, {"world_size": 8, "serial_share": 0.1}),
        ("s + (1 - s) p", {"s": 0.1, "p": 8}, costs.gustafson_speedup, {"world_size": 8, "serial_share": 0.1}),
        ("r / (1 + r)", {"r": 0.3}, schedules.bubble_share, {"ratio": 0.3}),
        ("(p - 1) / m", {"p": 4, "m": 8}, schedules.bubble_ratio, {"name": "gpipe", "ranks": 4, "microbatches": 8}),
        (
            "(p - 1) / (v m)",
            {"p": 4, "v": 2, "m": 8},
            schedules.bubble_ratio,
            {"name": "interleaved", "ranks": 4, "microbatches": 8, "chunks": 2},
        ),
        (
            "(p - 1) (F + (B - W) - W) / (m (F + B))",
            {"p": 4, "m": 8, "F": 2, "B": 5, "W": 2},
            schedules.bubble_ratio,
            {"name": "zero_bubble", **ZERO_BUBBLE},
        ),
        ("2 sin(pi / (2 (2 delay + 1)))", {"delay": 3}, updates.stability_limit, {"delay": 3}),
        (
            "sqrt(2 save_s mtbf_s)",
            {"save_s": 30, "mtbf_s": 9000},
            feeding.young_interval_s,
            {"save_s": 30, "mtbf_s": 9000},
        ),
        (
            "sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d",
            {"d": 30, "M": 9000},
            feeding.daly_interval_s,
            {"save_s": 30, "mtbf_s": 9000},
        ),
        (
            "M e^(R / M) (e^((t + d) / M) - 1) work_s / t",
            {"M": 9000, "R": 60, "t": 700, "d": 30, "work_s": 86_400},
            feeding.expected_run_s,
            {"work_s": 86_400, "interval_s": 700, **DALY},
        ),
    ],
)
def test_a_formula_on_the_sheet_is_what_its_function_computes(formula, values, function, arguments):
    assert formula in stated(function.__name__)
    assert computed(formula, **values) == pytest.approx(function(**arguments), rel=1e-12)


def test_the_formula_of_tiles_counts_what_the_model_counts():
    formula = "k (m ceil(n / tile) + n ceil(m / tile))"
    assert formula in stated("tiled_traffic")
    assert computed(formula, m=10, n=7, k=5, tile=4) == simulators.tiled_traffic(10, 7, 5, tile=4).global_reads


def test_the_reader_of_formulas_sees_a_wrong_one():
    assert computed("2 (p - 1) / p n", p=4, n=8) == 12
    assert computed("sqrt(d / 2M)", d=8, M=1) == 2
    assert computed("2 log2 p alpha", p=8, alpha=0.5) == 3
