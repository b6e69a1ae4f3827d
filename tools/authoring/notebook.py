"""Turn a lesson into a notebook, and a run notebook into bytes that depend on nothing but its
outputs.
"""

from __future__ import annotations

import hashlib
import struct
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.authoring import machine_map
from tools.authoring.lesson import AuthoringError, Cell, Lesson
from tools.authoring.minutes import FOLDED

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

_KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
_LANGUAGE = {
    "name": "python",
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "pygments_lexer": "ipython3",
    "nbconvert_exporter": "python",
    "codemirror_mode": {"name": "ipython", "version": 3},
}
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_KEPT = {b"IHDR", b"PLTE", b"tRNS", b"gAMA", b"sRGB", b"pHYs", b"IDAT", b"IEND"}


def unexecuted(lesson: Lesson, others: Iterable[Lesson] = ()) -> nbformat.NotebookNode:
    """Return the lesson's notebook before it is run: cells filled from the metadata, with ids that
    stay.

    ``others`` are the course's lessons: a number in ``needs`` becomes a link to its notebook.
    """
    files = {other_lesson.number: other_lesson.notebook_name for other_lesson in others}
    following = next(
        (other_lesson for other_lesson in others if other_lesson.number > lesson.number), None
    )
    seen: Counter[str] = Counter()
    texts = (
        cell_text(cell, lesson, files, is_first=not index, following=following)
        for index, cell in enumerate(lesson.cells)
    )
    cells = [_cell(cell, text, seen) for cell, text in zip(lesson.cells, texts, strict=True)]
    return new_notebook(cells=cells, metadata=_metadata(lesson), nbformat_minor=5)


def cell_text(
    cell: Cell,
    lesson: Lesson,
    files: Mapping[str, str],
    *,
    is_first: bool,
    following: Lesson | None = None,
) -> str:
    """Return a cell's text, with the objectives where its tags ask for them, or the way back from
    an appendix.

    Above the objectives is the lesson's place on the map, below what was reached the way to the
    lesson ``following``.
    """
    if lesson.is_appendix:
        heading, text = _split_title(cell.source, lesson.title)
        parts = (
            [heading, facts(lesson, files), text]
            if is_first and cell.kind == "markdown"
            else [cell.source]
        )
    elif "objectives" in cell.tags:
        heading, text = _split_title(cell.source, lesson.title)
        promise = "After this lesson you will be able to:"
        parts = [
            heading,
            facts(lesson, files),
            text,
            picture_of(lesson),
            promise,
            objectives(lesson, done=False),
        ]
    elif "recap" in cell.tags:
        recap = objectives(lesson, done=True)
        parts = [cell.source, "In this lesson you:", recap, way_on(lesson, following)]
    else:
        parts = [cell.source]
    return "\n\n".join(part for part in parts if part)


def picture_of(lesson: Lesson) -> str:
    """Return the map of the machine with the lesson's place as Markdown, "" for a lesson without
    one.
    """
    way = lesson.way
    return f"![{machine_map.description(way.places)}](map/{lesson.name}.svg)" if way else ""


def way_on(lesson: Lesson, following: Lesson | None) -> str:
    """Return why the next lesson follows, with a link to it; "" where there is none, or nobody has
    said why.
    """
    if lesson.way is None or following is None:
        return ""
    link = f"[lesson {following.number}, {following.title}]({following.notebook_name})"
    return f"**Next: {link}.** {lesson.way.leads_on}"


def facts(lesson: Lesson, files: Mapping[str, str]) -> str:
    """Return the line under a title: a lesson's number, its minutes and what it needs; an
    appendix's lesson.
    """
    if lesson.is_appendix:
        lesson_link = f"[lesson {lesson.number}](../{lesson.number}_{lesson.slug}.ipynb)"
        return f"*Appendix of {lesson_link}, about {lesson.minutes} minutes.*"
    needs = needs_text(lesson, files) or "nothing beyond this machine"
    return f"*Lesson {lesson.number}, about {lesson.minutes} minutes. Needs: {needs}.*"


def needs_text(lesson: Lesson, files: Mapping[str, str]) -> str:
    """Return the needs of a lesson, lesson numbers as links into ``files`` (number to file)."""
    return ", ".join(
        f"[lesson {need}]({files[need]})" if need in files else need for need in lesson.needs
    )


def objectives(lesson: Lesson, *, done: bool) -> str:
    """Return the lesson's objectives as a Markdown list, in the past tense or in the future."""
    return "\n".join(
        f"- {objective.done if done else objective.future}" for objective in lesson.objectives
    )


def _split_title(source: str, title: str) -> tuple[str, str]:
    """Part a cell into its title and its text; the title is made where the cell has none."""
    first, _, text = source.partition("\n")
    return (first, text.strip()) if first.startswith("# ") else (f"# {title}", source)


def _cell(cell: Cell, source: str, seen: Counter[str]) -> nbformat.NotebookNode:
    digest = hashlib.sha256(f"{cell.kind}\n{source}".encode()).hexdigest()[:12]
    seen[digest] += 1
    metadata = {**cell.metadata, **({"tags": list(cell.tags)} if cell.tags else {})}
    if FOLDED in cell.tags:
        metadata["jupyter"] = {"source_hidden": True}
    make = new_code_cell if cell.kind == "code" else new_markdown_cell
    return make(
        source=source,
        metadata=metadata,
        id=f"{digest}-{seen[digest]}" if seen[digest] > 1 else digest,
    )


def _metadata(lesson: Lesson) -> dict[str, Any]:
    lesson_metadata = {
        "number": lesson.number,
        "title": lesson.title,
        "minutes": lesson.minutes,
        "run_s": lesson.run_s,
        "needs": list(lesson.needs),
        "objectives": [
            f"{objective.verb}|{objective.past} {objective.rest}" for objective in lesson.objectives
        ],
    }
    return {
        "kernelspec": dict(_KERNEL),
        "language_info": dict(_LANGUAGE),
        "lesson": lesson_metadata,
    }


def with_outputs(
    lesson: Lesson, others: Iterable[Lesson], run: nbformat.NotebookNode
) -> nbformat.NotebookNode:
    """Return the lesson's notebook with the outputs of ``run``, whose code cells are the same, in
    the same order.

    Raises AuthoringError, with the line of the source, where they are not.
    """
    fresh = unexecuted(lesson, others)
    lines = [cell.line for cell in lesson.cells if cell.kind == "code"]
    source_cells, run_cells = (
        [cell for cell in notebook.cells if cell.cell_type == "code"] for notebook in (fresh, run)
    )
    for line, cell, run_cell in zip_longest(lines, source_cells, run_cells):
        if cell is None or run_cell is None or cell.source != run_cell.source:
            where = f"from line {line} of {lesson.name}.py on" if line else "at the end"
            message = (
                f"the code is not that of {lesson.notebook_name} {where}, whose outputs cannot be "
                "kept"
            )
            raise AuthoringError(
                f"{lesson.label}: {message}; run make lessons LESSONS={lesson.number}"
            )
        cell.outputs = run_cell.outputs
    return fresh


def canonical(notebook: nbformat.NotebookNode) -> str:
    """Return a run notebook as text: the same cells and outputs give the same text on every
    machine.

    Cells are numbered 1 to n, streams of one name that touch are one, a picture keeps its pixels
    and no record of the program that drew it, a live widget (which a saved file cannot show) leaves
    its text, and an error that a lesson lets happen keeps its last line. Raises
    nbformat.ValidationError when the notebook is ill-formed.
    """
    canonical_notebook = nbformat.from_dict(notebook)
    code = [cell for cell in canonical_notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
        cell.outputs = [_output(output, count) for output in _join_streams(cell.outputs)]
    nbformat.validate(canonical_notebook)
    return nbformat.writes(canonical_notebook, version=4).rstrip("\n") + "\n"


def _join_streams(outputs: Iterable[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    joined_outputs: list[nbformat.NotebookNode] = []
    for output in outputs:
        last = joined_outputs[-1] if joined_outputs else None
        if (
            last is not None
            and output.output_type == last.output_type == "stream"
            and output.name == last.name
        ):
            last.text += output.text
        else:
            joined_outputs.append(nbformat.from_dict(output))
    return joined_outputs


def _output(output: nbformat.NotebookNode, count: int) -> nbformat.NotebookNode:
    if output.output_type == "execute_result":
        output.execution_count = count
    if output.output_type == "error":
        output.traceback = [f"{output.ename}: {output.evalue}"]
    data = output.get("data", {})
    data.pop(WIDGET_VIEW, None)
    if "image/png" in data:
        data["image/png"] = b64encode(plain_png(b64decode(data["image/png"]))).decode()
    return output


def plain_png(picture: bytes) -> bytes:
    """Return a PNG without the chunks that name the program, the date or the machine that wrote it.

    Raises ValueError when ``picture`` is not a whole PNG.
    """
    if not picture.startswith(_PNG_SIGNATURE):
        raise ValueError("an output says image/png but holds no PNG")
    chunks, position = [_PNG_SIGNATURE], len(_PNG_SIGNATURE)
    while position < len(picture):
        header = picture[position : position + 8]
        length, kind = struct.unpack(">I4s", header) if len(header) == 8 else (0, b"")
        chunk = picture[position : position + 12 + length]
        if len(header) < 8 or len(chunk) < 12 + length:
            raise ValueError("an output holds a PNG that ends too early")
        if kind in _PNG_KEPT:
            chunks.append(chunk)
        position += len(chunk)
    return b"".join(chunks)
