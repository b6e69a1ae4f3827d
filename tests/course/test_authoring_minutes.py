"""Minutes are computed from what a lesson holds, by the figures that the course states."""

from __future__ import annotations

import pytest

from tools.authoring.cells import Cell
from tools.authoring.minutes import minutes


def cell(kind="code", source="1", **metadata):
    return Cell(kind, source, (), metadata, 1)


def text(words):
    return cell("markdown", "word " * words)


@pytest.mark.parametrize(
    ("cells", "run_s", "expected"),
    [
        ([], 0, 0),
        ([text(1)], 0, 5),
        ([text(900)], 0, 5),
        ([text(901)], 0, 10),
        ([text(900)], 10, 10),
        ([cell()] * 15, 0, 5),
        ([cell()] * 16, 0, 10),
        ([cell(source='a = helpers.predict("?", "s")')] * 6, 0, 15),  # 6 * (1.5 + 1/3)
        ([cell("markdown", "predict() predict()")], 0, 5),
        ([cell(source="a = model.predict(b)")] * 12, 0, 5),  # 12 / 3
        ([cell(yours="f")], 0, 10),
        ([cell(answer="f")], 0, 15),
        ([cell("markdown", "Why?", written="f")] * 3, 0, 10),
        ([], 301, 10),
    ],
)
def test_minutes(cells, run_s, expected):
    assert minutes(cells, run_s=run_s) == expected
