"""The share of compared cells counts what nbval would notice, and nothing else."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.authoring import mutation
from tools.authoring.notebook import WIDGET_VIEW
from tools.authoring.rules import shares

RULES = shares.patterns(mutation.SANITIZE)


def stream(text):
    return new_output("stream", name="stdout", text=text)


def shown(**data):
    return new_output(
        "display_data", {mime.replace("_", "/"): value for mime, value in data.items()}
    )


def cell(*outputs, tags=(), count=1):
    return new_code_cell(
        "1", outputs=list(outputs), execution_count=count, metadata={"tags": list(tags)}
    )


@pytest.mark.parametrize(
    ("one", "compared"),
    [
        (cell(stream("10 pairs\n")), True),
        (cell(stream("10 pairs in 3 ms\n")), True),
        (cell(shown(text_plain="3")), True),
        (cell(shown(text_html="<td>3 ms</td>")), True),
        (cell(shown(image_png="iVBO", text_plain="One grey dot.")), True),
        (cell(new_output("error", ename="ValueError", evalue="no")), True),
        (cell(stream("3 ms\n"), stream("done\n")), True),
        (cell(stream("10 pairs\n"), tags=["nbval-ignore-output"]), False),
        (cell(stream("10 pairs\n"), count=None), False),
        (cell(shown(image_png="iVBO")), False),
        (cell(new_output("display_data", {WIDGET_VIEW: {"model_id": "1"}})), False),
        (cell(stream("3 ms\n")), False),
        (cell(stream("12.3 ms, 34.1 GB/s\n")), False),
        (cell(shown(text_plain="")), False),
    ],
)
def test_a_cell_is_compared_when_nbval_would_notice_a_change(one, compared):
    assert shares.is_compared(one, RULES) is compared


def test_cells_are_counted():
    cells = [
        new_markdown_cell("text"),
        cell(),
        cell(stream("a")),
        cell(stream("b")),
        cell(stream("3 ms")),
    ]
    counted = shares.share("00", new_notebook(cells=cells), RULES)
    assert counted == shares.ComparedShare("00", 4, 3, 2, 2 / 3)
    quiet = shares.share("01", new_notebook(cells=[cell()]), RULES)
    assert quiet == shares.ComparedShare("01", 1, 0, 0, None)
    assert shares.shares([counted, quiet]).total_share == 2 / 3
    assert shares.shares([]).total_share is None
    assert "66.7 %" in str(shares.shares([counted, quiet]))
