"""Every number of the exam's answers follows from its question, by the library or by a few
lines.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from helpers import parallel
from helpers.studies.simulators import systolic
from tools.authoring.course import HERE
from tools.authoring.rules import links

PAGE = HERE.folder / "instructor" / "exam.md"
QUESTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def said(number: int) -> str:
    """Return the answer to a question, its lines joined."""
    return " ".join(
        line.removeprefix("> ")
        for line in QUESTIONS[number - 1].splitlines()
        if line.startswith("> ")
    )


def test_there_are_ten_each_with_four_points_and_its_lesson():
    lessons = {lesson.number for lesson in HERE.lessons()}
    assert len(QUESTIONS) == 10
    for number, question in enumerate(QUESTIONS, start=1):
        heading = question.splitlines()[0]
        assert heading.startswith(f"{number}. ")
        assert re.search(r"\(lesson (\d\d)\)$", heading)[1] in lessons
        assert sum(map(int, re.findall(r"(?:^|\s)\((\d)\)\s", said(number)))) == 4, heading
    assert links.check_page(PAGE, root=HERE.root) == []


def test_1_roofline():
    memory_s, compute_s = 3 * 4 * 1e8 / 500e9, 1e8 / 20e12
    assert (memory_s, compute_s) == (2.4e-3, 5e-6)
    assert f"{1e8 / memory_s / 1e9:.0f} GFLOP/s, {100 * 1e8 / memory_s / 20e12:.2f} %" in said(1)


def test_2_lines():
    assert f"(2) {64 // 8} times" in said(2)
    under_way = 16e9 * 90e-9
    assert (
        f"{under_way:,.0f} bytes, {under_way / 64} lines: at least {math.ceil(under_way / 64)}"
        in said(2)
    )


def test_3_tiles():
    ridge = 20e12 / 500e9
    assert f"{ridge:.0f} FLOP/B" in said(3)
    assert rf"t \ge {4 * ridge:.0f}$" in said(3)


def test_4_ring():
    sent = {
        size: parallel.collective("all_reduce", "ring", world_size=size, length=350_000)
        .ranks()[0]
        .sent_bytes
        * 1e3
        for size in (8, 64)
    }
    assert f"{sent[8] / 1e9:.2f} GB" in said(4)
    assert f"{1e3 * sent[8] / 12.5e9:.0f} ms" in said(4)
    assert f"{sent[64] / 1e9:.2f} GB" in said(4)
    assert sent[64] / sent[8] == pytest.approx(1.125, rel=1e-3)


def test_5_pipeline():
    busy, idle = 12, 4 - 1
    assert f"{100 * idle / busy:.0f} % of the busy time" in said(5)
    assert idle / (idle + busy) == 1 / 5
    ratio = parallel.bubble_ratio("gpipe", ranks=4, microbatches=12)
    assert ratio == parallel.bubble_ratio("1f1b", ranks=4, microbatches=12) == idle / busy
    assert parallel.bubble_share(ratio) == pytest.approx(1 / 5)


def test_6_workers():
    wanted, brought, computed = 32 / 40e-3, 1 / 12e-3, 4 / 4e-3
    assert f"{wanted:.0f} items" in said(6)
    assert f"{brought:.0f} a second: {math.ceil(wanted / brought)} workers" in said(6)
    assert wanted < computed < 2 * wanted
    assert f"{2 * wanted:,.0f} a second, and four cores compute {computed:,.0f}" in said(6)


def test_7_memory():
    assert f"16 bytes a weight: {3 * 16} GB" in said(7)
    assert f"8 bytes a weight: {3 * 8} GB" in said(7)


def test_8_array():
    ones = np.ones((8, 24), int)
    cycles = systolic.simulate(ones, ones.T, rows=8, columns=8, dataflow="output").cycles
    assert cycles == 24 + 7 + 7 + 8
    assert f"to leave: {cycles}." in said(8)
    assert f"24 / {cycles} = {100 * 24 / cycles:.0f} %" in said(8)


def test_9_few_bits():
    def rounded(value: float) -> float:
        step = 2.0 ** (math.frexp(value)[1] - 1 - 5)
        return round(value / step) * step  # Python rounds halves to even

    total = 0.0
    while rounded(total + 1) != total:
        total = rounded(total + 1)
    assert f"At {total:.0f}:" in said(9)
    assert f"{100 * 2**-6:.1f} %" in said(9)


def test_10_fusion():
    ratio = (1 + 5 * 16) / (1 + 16)
    assert f"81 / 17 = {ratio:.2f}" in said(10)
    assert f"= {1 / (0.7 + 0.3 / ratio):.2f}." in said(10)
