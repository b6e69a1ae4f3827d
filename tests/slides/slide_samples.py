"""Cells, outputs and a notebook with one of everything that a slide can show."""

from __future__ import annotations

import base64
import io

import matplotlib.pyplot as plt
import pandas as pd
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.widgets import NO_PREDICTION, Answer

LESSON = {
    "number": "98",
    "title": "A sample of everything",
    "minutes": 20,
    "needs": ["00", "a quiet machine"],
    "objectives": [
        "tell|told a byte from a bit",
        "predict|predicted the time of `a @ b` from $2mnk$ operations",
    ],
}
ALT = 'Two bars: the "row" order takes less time than the column order.'


def text_cell(
    source: str, *, tags: tuple[str, ...] = ("slide",), minutes: float | None = 2, **stated: object
) -> NotebookNode:
    metadata = {"tags": list(tags), **stated} | ({} if minutes is None else {"minutes": minutes})
    return new_markdown_cell(source, metadata=metadata)


def code_cell(
    source: str, *outputs: NotebookNode, tags: tuple[str, ...] = (), **metadata: object
) -> NotebookNode:
    return new_code_cell(
        source, outputs=list(outputs), execution_count=1, metadata={"tags": list(tags), **metadata}
    )


def printed(text: str) -> NotebookNode:
    return new_output("stream", name="stdout", text=text)


def displayed(data: dict[str, str]) -> NotebookNode:
    return new_output("display_data", data=data)


def figure_output(*, width_in: float = 7.2, height_in: float = 3.8, alt: str = ALT) -> NotebookNode:
    drawn, axes = plt.subplots(figsize=(width_in, height_in), dpi=160)
    axes.bar(["row order", "column order"], [1, 3], color=["#0072B2", "#E69F00"])
    axes.set(title="Time of one pass over the matrix", ylabel="time (ms)")
    with io.BytesIO() as buffer:
        drawn.savefig(buffer, format="png", metadata={"Software": None})
        png = base64.b64encode(buffer.getvalue()).decode()
    plt.close(drawn)
    return displayed({"image/png": png, "text/plain": alt})


QUESTION = "How many times longer is a < b [cold]?"


def asked(question: str = QUESTION, unit: str = "x") -> NotebookNode:
    return displayed({"text/plain": f"{question} [{unit}]\n{NO_PREDICTION}"})


def answered(**changes: float | str | None) -> NotebookNode:
    values = {"predicted": None, "modelled": 2.0, "found": 4.0} | changes
    answer = Answer(QUESTION, "x", **values)
    return displayed({"text/html": answer._repr_html_(), "text/plain": str(answer)})


def notebook_of(*cells: NotebookNode, lesson: dict | None = None) -> NotebookNode:
    notebook = new_notebook(
        cells=list(cells), metadata={"lesson": LESSON if lesson is None else lesson}
    )
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    return notebook


def sample_notebook() -> NotebookNode:
    frame = pd.DataFrame({"layer": ["conv1", "fc1"], "MACs": [117_600, 30_720]}).to_html(
        index=False, border=0
    )
    long_line = (
        "def bandwidth(read_bytes, seconds):\n    # Bytes over seconds\n    return read_bytes / "
        "seconds  " + "# a" * 60
    )
    return notebook_of(
        text_cell("# A sample\n\nNot on a slide.", tags=(), minutes=None),
        code_cell(
            "asked = predict(...)",
            asked(),
            tags=("predict", "slide", "slide-output"),
            minutes=1,
            axis=[1, 1000],
        ),
        code_cell(
            "asked.reveal(...)",
            answered(),
            tags=("slide", "slide-output"),
            minutes=1,
            headline="Four, not two",
        ),
        text_cell(
            "## Three numbers\n\n- **predicted** by you, before anything runs\n- **modelled** from "
            "`counts` and limits of the machine\n- **measured** here, warm and several "
            "times\n\nSay why the order matters.\n\n### Ask\n\nWho has measured before?"
        ),
        text_cell(
            "## Work over time\n\nA product of matrices does $2mnk$ operations.\n\nSay more.",
            minutes=1.5,
        ),
        text_cell(
            "$$t \\geq \\max\\left(\\frac{2mnk}{P}, \\frac{Q}{B}\\right)$$",
            tags=("slide-more",),
            minutes=None,
        ),
        text_cell(
            "## Rows before columns\n\nOne order reads whole cache lines, the other wastes most of "
            "each."
        ),
        code_cell("plotting.show(figure, alt=...)", figure_output(), tags=("slide-output",)),
        text_cell(
            "## A square picture\n\n- text on the left\n- figure on the right", layout="beside"
        ),
        code_cell(
            "plotting.show(figure, alt=...)",
            figure_output(width_in=5, height_in=4.5),
            tags=("slide-output",),
        ),
        text_cell("## Code that wraps\n\nA rate is bytes over seconds.", minutes=3),
        code_cell(
            f"{long_line}\n\nbandwidth(64_000_000, 2)",
            printed("\n  32,000,000.0 < 10^9\n"),
            tags=("slide-more",),
        ),
        text_cell(
            "## A table\n\nMost of the work stands in the first layer.", tags=(), minutes=None
        ),
        code_cell(
            "profile_ops(model)",
            displayed({"text/html": frame}),
            tags=("slide",),
            minutes=2,
            mark="conv1",
        ),
        text_cell(
            "## What to take home\n\n1. Count bytes before you count operations.\n2. Measure warm, "
            "several times.\n3. Write down what you expect.",
            layout="close",
        ),
    )
