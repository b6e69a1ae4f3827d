"""Minutes are computed from what a lesson holds, by the figures that the course states."""

from __future__ import annotations

import pytest

from tools.authoring.cells import Cell
from tools.authoring.minutes import minutes


def cell(kind="code", source="1", tags=(), **metadata):
    return Cell(kind, source, tags, metadata, 1)


def text(words, tags=()):
    return cell("markdown", "word " * words, tags)


@pytest.mark.parametrize(
    ("cells", "run_s", "expected"),
    [
        ([], 0, 0),
        ([text(1)], 0, 5),
        ([text(500)], 0, 5),
        ([text(501)], 0, 10),
        ([text(500)], 10, 10),
        ([text(6500, ("recap",))], 0, 0),
        ([cell("markdown", "- word " * 2000)], 0, 0),
        ([cell(source="1\n" * 60)], 0, 5),
        ([cell(source="1\n" * 60 + "2")], 0, 10),
        ([cell(source="1\n\n# why\n" * 60)], 0, 5),
        ([cell(source="1\n" * 600, tags=("hide-input",))], 0, 0),
        ([cell(source='a = helpers.predict("?", "s")')] * 6, 0, 15),  # 6 * (2 + 1/12)
        ([cell("markdown", "predict() predict()")], 0, 5),
        ([cell(source="a = model.predict(b)")] * 60, 0, 5),
        ([cell(yours="f")], 0, 10),
        ([cell(yours="f", takes=5)] * 2, 0, 10),
        ([cell(yours="f", takes=15, source="1\n" * 100)], 0, 15),
        ([cell(answer="f")], 0, 15),
        ([cell("markdown", "Why?", written="f")] * 3, 0, 10),
        ([], 301, 10),
    ],
)
def test_minutes(cells, run_s, expected):
    assert minutes(cells, run_s=run_s) == expected
