"""The sheet of formulas is what the lessons make of it, explains its symbols, and says what the
library computes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable

import pytest

from helpers.links import Link
from helpers.parallel import _collectives as collectives, _costs as costs
from helpers.parallel.pipeline import _schedules as schedules
from helpers.studies import data_movement, input_pipeline, simulators
from helpers.studies.sgd_parallelism import _updates as updates
from tools.authoring import lesson
from tools.authoring.course import HERE
from tools.authoring.rules import formulas, symbols

LESSONS = HERE.lessons()
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.number)


@pytest.fixture(scope="module")
def sheet() -> str:
    return HERE.formulas.read_text(encoding="utf-8")


def test_the_sheet_is_what_the_lessons_make_of_it_now(sheet):
    assert sheet == formulas.page(LESSONS, symbols.read(HERE.symbols)), (
        "run python -m tools.authoring table --write"
    )


@each_lesson
def test_every_lesson_has_its_own_formulas_on_it(sheet, lesson):
    own = formulas.table(lesson)
    assert own.count("\n|") >= 5
    section = sheet.partition(f"## {lesson.number} {lesson.title}\n")[2].partition("\n## ")[0]
    assert own in section


@each_lesson
def test_every_symbol_of_a_lessons_formulas_is_explained(lesson):
    assert [problem.what for problem in formulas.check(lesson)] == []


def unexplained(*rows: str) -> list[str]:
    """Return what the check says of a lesson whose only text is this table of formulas."""
    head = (
        "# ---\n# jupyter:\n#   lesson: {number: '90', title: T, needs: [], objectives: ['use|used "
        "it']}\n"
    )
    text = "".join(f"# {row}\n" for row in (formulas.HEADING, "", *rows))
    parsed = lesson.parse(f"{head}# ---\n\n# %% [markdown]\n{text}", number="90", slug="t")
    return [re.search(r"what (.*) is$", problem.what)[1] for problem in formulas.check(parsed)]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("| growth | $v(t) = v_0\\,2^{t/d}$ | doubles |", ["d, v"]),
        ("| growth | $v(t) = v_0\\,2^{t/d}$ | a value $v$ that doubles in $d$ years |", []),
        ("| intensity $I$ | $I = \\text{FLOP} / \\text{bytes}$ | any |", []),
        ("| product | $2\\,m\\,n\\,k$ | a product of $m \\times k$ and $k \\times n$ |", []),
        ("| product | $2\\,m\\,n\\,k$ | at most $m\\,n\\,k / 2$ and $m = n$ |", ["k, m, n"]),
        (
            "| sum | $\\sum_i \\frac{\\lambda}{2} h_i\\,t_{step}$, with $h_i$ the share of $i$ |",
            ["\\lambda"],
        ),
        ("| a | $\\alpha + n\\beta$, for $n$ bytes |", []),
        ("| a | $\\sin(\\pi / 2) e^{x}$ |", ["x"]),
    ],
)
def test_a_symbol_is_explained_where_a_text_names_it(row, found):
    assert unexplained("| quantity | formula | for |", "|---|---|---|", row) == found


def test_a_sentence_above_the_table_explains_as_well():
    assert unexplained("$q$ ranks.", "", "| a | b |", "|---|---|", "| a | $2 q$ |") == []


_TOKEN = re.compile(r"\d+(?:\.\d+)?|[A-Za-z]\w*|\*\*|\S")
_FUNCTIONS: dict[str, Callable | float] = {
    "sqrt": math.sqrt,
    "sin": math.sin,
    "min": min,
    "max": max,
    "factorial": math.factorial,
    "pi": math.pi,
    "e": math.e,
}


def computed(formula: str, **values: float) -> float:
    """Return the value of a formula in LaTeX as the sheet writes it, where what stands side by side
    is multiplied.
    """
    text = re.sub(r"\\(?:big|,|;)", " ", formula)
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    text = re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", text).replace("\\cdot", "*")
    text = re.sub(r"(\([^()]*\)|\w)!", r"factorial(\1)", text)
    text = re.sub(
        r"\^(?:\{([^{}]*)\}|(\w))", r"**(\1\2)", re.sub(r"_\{(\w+)\}", r"_\1", text)
    ).replace("\\", " ")
    names = sorted({*values, *_FUNCTIONS}, key=len, reverse=True)
    text = re.sub(r"[A-Za-z]\w*", lambda word: " ".join(re.findall("|".join(names), word[0])), text)
    python, before = "", ""
    for token in _TOKEN.findall(text):
        ends = before == ")" or (before[-1:].isalnum() and not callable(_FUNCTIONS.get(before)))
        python += f"{' * ' if ends and (token[0].isalnum() or token == '(') else ' '}{token}"
        before = token
    return eval(
        re.sub(r"\bsin (.+)", r"sin(\1)", python), {"__builtins__": {}}, {**_FUNCTIONS, **values}
    )


def test_the_reader_of_formulas_sees_a_wrong_one():
    assert computed(r"2\frac{p-1}{p}\,n", p=4, n=8) == 12
    assert computed(r"\sqrt{2CM}", C=4, M=2) == 4
    assert computed(r"(2n)! / 2^n", n=3) == 90
    assert computed(r"2(p-1)(a + n b)", p=3, a=1, n=2, b=5) == 44
    assert computed(r"e^{a/b} \big(e^{(a + b)/b} - 1\big) a / b", a=1, b=1) == pytest.approx(
        math.e * (math.e**2 - 1)
    )


def late_wait_s(late_s, workers, prefetch, device_s):
    """Return the longest wait between two steps where batch 6 of 12 is late, in the exact
    simulation.
    """
    times_s = [late_s if batch == 6 else device_s / 2 for batch in range(12)]
    played = input_pipeline.simulate_feeding(
        times_s, device_s, workers=workers, prefetch_factor=prefetch
    )
    steps = [each for each in played.timeline.activities if each.lane == "device"]
    return max(after.start_s - before.end_s for before, after in itertools.pairwise(steps))


LINK = Link(latency_s=3e-5, bandwidth_bytes_per_s=2e9)
RING = {"R": 8, "s": 1_000_000, "alpha": 3e-5, "B": 2e9}
GATHERED = collectives.collective("all_reduce", "gather_broadcast", world_size=8, length=250_000)


@pytest.mark.parametrize(
    ("number", "formula", "values", "truth"),
    [
        (
            "01",
            r"\min(1, s\,e/\ell)",
            {"s": 3, "e": 4, "ell": 64},
            lambda: (
                data_movement.lines_touched(16_000, stride=3, element_bytes=4, line_bytes=64)
                / 16_000
            ),
        ),
        (
            "02",
            r"2\,m\,n\,k",
            {"m": 10, "n": 7, "k": 5},
            lambda: simulators.naive_traffic(10, 7, 5, tile=2).global_reads,
        ),
        (
            "02",
            r"2\,m\,n\,k / t",
            {"m": 8, "n": 12, "k": 5, "t": 4},
            lambda: simulators.tiled_traffic(8, 12, 5, tile=4).global_reads,
        ),
        ("04", r"2 \sin \frac{\pi}{2\,(2s+1)}", {"s": 3}, lambda: updates.stability_limit(3)),
        (
            "04",
            r"2\,\frac{R-1}{R}\,x",
            {"R": 4, "x": 4000},
            lambda: (
                collectives.collective("all_reduce", "ring", world_size=4, length=1000)
                .ranks()[0]
                .received_bytes
            ),
        ),
        (
            "05",
            r"2\frac{R-1}{R}\,s",
            {"R": 4, "s": 4000},
            lambda: (
                collectives.collective("all_reduce", "ring", world_size=4, length=1000)
                .ranks()[0]
                .sent_bytes
            ),
        ),
        (
            "05",
            r"2(R-1)(\alpha + \frac{s}{R\,B})",
            RING,
            lambda: costs.ring_all_reduce_s(8, 1_000_000, link=LINK),
        ),
        (
            "05",
            r"2(R-1)(\alpha + \frac{s}{B})",
            RING,
            lambda: costs.schedule(GATHERED, LINK).duration_s,
        ),
        (
            "05",
            r"\frac{P}{B}\frac{R-1}{R}",
            {"P": 4e14, "B": 2e9, "R": 8},
            lambda: costs.ring_all_reduce_s(8, 2, link=Link(2e9)) / (4 / 4e14),
        ),
        (
            "06",
            r"\frac{R-1}{m}",
            {"R": 4, "m": 8},
            lambda: schedules.bubble_ratio("gpipe", ranks=4, microbatches=8),
        ),
        (
            "06",
            r"\frac{R-1}{v\,m}",
            {"R": 4, "v": 2, "m": 8},
            lambda: schedules.bubble_ratio("interleaved", ranks=4, microbatches=8, chunks=2),
        ),
        (
            "06",
            r"2\frac{R-1}{R}\,s",
            {"R": 4, "s": 4000},
            lambda: (
                collectives.collective(
                    "all_reduce", "ring", world_size=4, length=1000
                ).busiest_port_bytes
            ),
        ),
        (
            "08",
            r"2\frac{c-1}{c} \cdot \frac{2N}{k\,q}",
            {"c": 4, "N": 24000, "k": 2, "q": 3},
            lambda: (
                collectives.collective(
                    "all_reduce", "ring", world_size=4, length=2000
                ).busiest_port_bytes
            ),
        ),
        (
            "10",
            r"\max(0, t_l - W F\, t_d)",
            {"t_l": 0.1, "W": 2, "F": 1, "t_d": 0.02},
            lambda: late_wait_s(0.1, 2, 1, 0.02),
        ),
    ],
)
def test_a_formula_on_the_sheet_is_what_its_function_computes(number, formula, values, truth):
    [own] = [formulas.table(lesson) for lesson in LESSONS if lesson.number == number]
    assert formula in own
    assert computed(formula, **values) == pytest.approx(truth(), rel=1e-12)
