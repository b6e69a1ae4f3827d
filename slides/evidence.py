"""An output on a slide: an answer or a claim in large numbers, a table with a row set off, a player
in steps.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bs4 import BeautifulSoup, Tag
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from slides import players, questions

# What ``claim`` of a comparison prints.
_CLAIM = re.compile(
    r"(?P<said>[^\n]+?) \([^()\n]*\)\nHere it is (?P<number>[^()\n]+) \((?P<how>\w+)\), so this "
    r"holds\.\n?"
)


_OBSERVED = {"measured", "counted", "simulated", "published", "stated"}
_VIEW_BOX = re.compile(r'viewBox="\S+ \S+ ([\d.]+) ([\d.]+)"')
_NAME = re.compile(r'(\bid="|url\(#|href="#)')
_FONT_SIZE = re.compile(r"(?<=font-size: )[\d.]+(?=px)")
_TALL = 1.7  # a drawing less wide than this has its caption beside it
_INK = 250  # of 255: what is darker was drawn
_BELOW_A_TITLE_PX, _BORDER_PX = 12, 6


class EvidenceError(ValueError):
    """A row, a number or a title that a cell names is not in its output."""


def render_output(
    output: Mapping[str, Any], guesses: Mapping[str, questions.Guess], *, alone: bool = True
) -> Mapping[str, Any]:
    """Return ``output`` as a slide shows it; ``guesses`` are the notebook's questions.

    An answer that is not ``alone`` on its slide leaves room: its axis stands beside its numbers and
    not below them.
    """
    if questions.is_answer(output):
        return _render_answer(output, guesses, alone=alone)
    claims = list(_CLAIM.finditer(output.get("text", "")))
    if claims and "".join(claim[0] for claim in claims).strip() == output["text"].strip():
        blocks = [
            f'<p class="of">{html.escape(claim["said"])}</p>'
            f"{numbers([(claim['number'], claim['how'])])}"
            for claim in claims
        ]
        return html_output("".join(blocks))
    return players.for_slide(output)


def _render_answer(
    output: Mapping[str, Any], guesses: Mapping[str, questions.Guess], *, alone: bool
) -> dict[str, Any]:
    """Return an answer in large numbers below its question, and on the axis of the guesses."""
    question = questions.as_html(questions.lines(output)[0])
    row = numbers(_answer_numbers(output)) + _answers_axis(output, guesses, low=not alone)
    row = row if alone else f'<div class="answer-row">{row}</div>'
    return html_output(f'<p class="of">{question}</p>{row}', text=output["data"]["text/plain"])


def _answers_axis(
    output: Mapping[str, Any], guesses: Mapping[str, questions.Guess], *, low: bool = False
) -> str:
    """Return the axis of an answer's question with the answer on it, '' where the notebook does not
    ask it.
    """
    guess = guesses.get(questions.lines(output)[0])
    return guess.axis(questions.values(output, guess.unit), low=low) if guess else ""


def _answer_numbers(output: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the numbers of an answer, each with the name of its source."""
    return [(value, name) for name, value, _ in questions.rows(output)]


def html_output(markup: str, *, text: str = "") -> dict[str, Any]:
    """Return an output that stands on the slide as it is; ``text`` is what it says as text."""
    data = {"text/html": f'<div class="part">{markup}</div>', "text/plain": text}
    return {"output_type": "display_data", "data": data, "metadata": {"whole": True}}


def numbers(labelled: Sequence[tuple[str, str]]) -> str:
    """Return the HTML of one number or more, each with its label."""
    cells = "".join(
        "<div "
        f'class="{_number_classes(label)}"><b>{html.escape(number)}</b><span>{html.escape(label)}</span></div>'
        for number, label in labelled
    )
    return f'<div class="number-row">{cells}</div>'


def _number_classes(label: str) -> str:
    """Return the CSS classes of a number by the words of its ``label``."""
    words = set(re.findall(r"\w+", label))
    return (
        "number modelled"
        if "modelled" in words
        else "number found"
        if words & _OBSERVED
        else "number"
    )


def numbers_in(
    outputs: Sequence[Mapping[str, Any]], patterns: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Return the numbers that the ``patterns`` find in the text of ``outputs``, each with
    its label.
    """
    text = _text(outputs)
    labelled = []
    for pattern, label in patterns:
        match = re.search(pattern, text)
        if match is None:
            raise EvidenceError(f"finds no {pattern!r} in its output: {text[:300]!r}")
        labelled.append((match[1], label))
    return html_output(numbers(labelled))


def holds(outputs: Sequence[Mapping[str, Any]], pattern: str) -> bool:
    """Return whether ``pattern`` finds a number in the text of ``outputs``."""
    return re.search(pattern, _text(outputs)) is not None


def _text(outputs: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(
        output.get("text") or str(output.get("data", {}).get("text/plain", ""))
        for output in outputs
    )


def code(source: str, *, mark: str = "", lines: Sequence[int] = ()) -> str:
    """Return Python as HTML: the ``lines`` from first to last, with those that hold ``mark`` set
    off.
    """
    rows = source.splitlines()
    rows = textwrap.dedent("\n".join(rows[lines[0] - 1 : lines[1]])).splitlines() if lines else rows
    marked = [number for number, row in enumerate(rows, start=1) if mark and mark in row]
    return highlight("\n".join(rows), get_lexer_by_name("ipython3"), HtmlFormatter(hl_lines=marked))


def table(output: Mapping[str, Any], metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``output`` with its table as a slide shows it; an answer, a player and what has no
    table as they are.

    ``metadata`` may hold ``rows`` and ``columns``, how those begin that are shown (by default all),
    and ``mark``, how the rows begin that are set off, or else what they hold. The name of a table's
    index stands above its column. Raises EvidenceError for a row or a column that is not there.
    """
    page = output.get("data", {}).get("text/html", "")
    if "<tr" not in page or questions.is_answer(output) or players.read_player(output):
        return output
    soup = BeautifulSoup(page, "html.parser")
    _join_names(soup)
    rows = soup.find_all("tr")
    if "columns" in metadata:
        names = [_words(cell) for cell in rows[0].find_all(["th", "td"])]
        shown_columns = {
            0,
            *(_find_start(names, prefix, "column") for prefix in metadata["columns"]),
        }
        for row in rows:
            for column, cell in enumerate(row.find_all(["th", "td"])):
                if column not in shown_columns:
                    cell.decompose()
    if "rows" in metadata:
        body = rows[1:]
        shown_rows = {
            _find_start([_words(row) for row in body], prefix, "row") for prefix in metadata["rows"]
        }
        for index, row in enumerate(body):
            if index not in shown_rows:
                row.decompose()
    if metadata.get("mark"):
        _set_off(soup, metadata["mark"])
    return {**output, "data": {**output["data"], "text/html": str(soup)}}


def _words(tag: Tag) -> str:
    return " ".join(tag.get_text(" ").split())


def _find_start(texts: Sequence[str], prefix: str, kind: str) -> int:
    """Return the place of the first of ``texts`` that begins so."""
    index = next((index for index, text in enumerate(texts) if text.startswith(prefix)), None)
    if index is None:
        raise EvidenceError(
            f"has no {kind} of its table that begins with {prefix!r}: {', '.join(texts)[:300]}"
        )
    return index


def _join_names(soup: BeautifulSoup) -> None:
    """Give pandas' second row of headings, which names the index alone, to the empty first cell of
    the row above.
    """
    headings = soup.select("thead tr")
    if len(headings) != 2:
        return
    above, below = (row.find_all("th") for row in headings)
    if above and below and not _words(above[0]) and not any(_words(cell) for cell in below[1:]):
        above[0].string = _words(below[0])
        headings[1].decompose()


def _set_off(soup: BeautifulSoup, mark: str) -> None:
    texts = {row: _words(row) + " " for row in soup.find_all("tr")}
    begin = [row for row, text in texts.items() if text.startswith(mark)]
    for row in begin or [row for row, text in texts.items() if mark in text]:
        row["class"] = " ".join(
            [*(row.get_attribute_list("class") if row.has_attr("class") else []), "set-off"]
        )


def is_set_off(code: str, outputs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a line of shown code or a row of a shown table is set off."""
    return 'class="hll"' in code or any(
        "set-off" in output.get("data", {}).get("text/html", "") for output in outputs
    )


def cut_title(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``output`` with its figure cut to what is drawn below the title; another output as it
    is.

    The title is the first row of ink. Raises EvidenceError for a figure with nothing below its
    first row.
    """
    if "image/png" not in output.get("data", {}):
        return output
    picture = Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"])))
    is_ink = np.asarray(picture.convert("L")) < _INK
    rows = np.flatnonzero(is_ink.any(axis=1))
    (gaps,) = np.nonzero(np.diff(rows) > _BELOW_A_TITLE_PX)
    if gaps.size == 0:
        raise EvidenceError("shows a figure without a title to leave out")
    top, bottom = int(rows[gaps[0] + 1]), int(rows[-1])
    columns = np.flatnonzero(is_ink[top:].any(axis=0))
    box = (
        int(columns[0]) - _BORDER_PX,
        top - _BORDER_PX,
        int(columns[-1]) + _BORDER_PX,
        bottom + _BORDER_PX,
    )
    with io.BytesIO() as buffer:
        picture.convert("RGB").crop(
            (max(box[0], 0), box[1], min(box[2], picture.width), min(box[3], picture.height))
        ).save(buffer, format="png", optimize=True)
        data = {**output["data"], "image/png": base64.b64encode(buffer.getvalue()).decode()}
    return {**output, "data": data}


def _unique_names(frame: str, step: int) -> str:
    """Return an SVG with names of its own: a path that is clipped by a name in a hidden frame would
    not be seen.

    Two steps may show the same drawing, so ``step`` is a part of the names.
    """
    digest = hashlib.sha256(f"{step} {frame}".encode()).hexdigest()[:10]
    return _NAME.sub(rf"\g<1>n{digest}-", frame)


def steps(
    output: Mapping[str, Any], metadata: Mapping[str, Any], guesses: Mapping[str, questions.Guess]
) -> Mapping[str, Any]:
    """Return a player as fragments of reveal.js, a frame each; another output as it is.

    ``metadata`` may hold ``frames``, the places of those that are wanted, ``captions`` for them,
    ``crop``, the part of the drawing that is shown: left, top, width and height, and ``smallest``,
    to which its texts grow. On paper the frame in the middle stands alone. An answer stands above
    the steps in large numbers, beside a low axis.
    """
    if questions.is_answer(output):
        axis = _answers_axis(output, guesses, low=True)
        return html_output(
            numbers(_answer_numbers(output)) + axis, text=output["data"]["text/plain"]
        )
    player = players.read_player(output)
    if player is None:
        return output
    frame_indices = metadata.get("frames") or range(len(player["frames"]))
    captions = metadata.get("captions") or [
        player["captions"][frame_index] for frame_index in frame_indices if player["captions"]
    ]
    last = len(frame_indices) - 1
    frames = []
    for step, frame_index in enumerate(frame_indices):
        motion = "fade-out" if step == 0 else "fade-in-then-out" if step < last else ""
        paper = " on-paper" if step == (last + 1) // 2 else ""
        caption = f"<p>{html.escape(captions[step])}</p>" if captions else ""
        drawing = _unique_names(player["frames"][frame_index], step)
        drawing = _FONT_SIZE.sub(
            lambda size: f"{max(float(size[0]), metadata.get('smallest', 0)):g}", drawing
        )
        if "crop" in metadata:
            drawing = _VIEW_BOX.sub(
                f'viewBox="{" ".join(map(str, metadata["crop"]))}"', drawing, count=1
            )
        frames.append(
            f'<div class="frame fragment {motion}{paper}" '
            f'data-fragment-index="{max(step - 1, 0)}">{drawing}{caption}</div>'
        )
    box = _VIEW_BOX.search(drawing)
    if box is None:
        raise EvidenceError(
            f"shows steps with crop={metadata.get('crop')}, which must be left, top, width and "
            "height"
        )
    shape = "steps tall" if float(box[1]) / float(box[2]) < _TALL else "steps"
    frames_output = html_output("", text=player["alt"])
    frames_output["data"]["text/html"] = (
        f'<div class="part {shape}" role="img" '
        f'aria-label="{html.escape(player["alt"])}">{"".join(frames)}</div>'
    )
    return frames_output
