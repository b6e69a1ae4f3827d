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


_FOUND = {"measured", "counted", "simulated", "published", "stated"}
_VIEW_BOX = re.compile(r'viewBox="\S+ \S+ ([\d.]+) ([\d.]+)"')
_NAME = re.compile(r'(\bid="|url\(#|href="#)')
_FONT_SIZE = re.compile(r"(?<=font-size: )[\d.]+(?=px)")
_TALL = 1.7  # a drawing less wide than this has its caption beside it
_INK = 250  # of 255: what is darker was drawn
_BELOW_A_TITLE_PX, _BORDER_PX = 12, 6


class EvidenceError(ValueError):
    """What a cell asks to be set off or taken out of its output is not there."""


def shown(
    output: Mapping[str, Any], asked: Mapping[str, questions.Guess], *, alone: bool = True
) -> Mapping[str, Any]:
    """Return ``output`` as a slide shows it; ``asked`` are the notebook's questions.

    An answer that is not ``alone`` on its slide leaves room: its axis stands beside its numbers and
    not below them.
    """
    if questions.is_answer(output):
        return _answer(output, asked, alone=alone)
    claims = list(_CLAIM.finditer(output.get("text", "")))
    if claims and "".join(claim[0] for claim in claims).strip() == output["text"].strip():
        said = [
            f'<p class="of">{html.escape(one["said"])}</p>{numbers([(one["number"], one["how"])])}'
            for one in claims
        ]
        return whole("".join(said))
    return players.for_slide(output)


def _answer(
    output: Mapping[str, Any], asked: Mapping[str, questions.Guess], *, alone: bool
) -> dict[str, Any]:
    """Return an answer in large numbers below its question, and on the axis of the guesses."""
    said = questions.as_html(questions.lines(output)[0])
    row = numbers(_found(output)) + _answers_axis(output, asked, low=not alone)
    row = row if alone else f'<div class="answer-row">{row}</div>'
    return whole(f'<p class="of">{said}</p>{row}', text=output["data"]["text/plain"])


def _answers_axis(
    output: Mapping[str, Any], asked: Mapping[str, questions.Guess], *, low: bool = False
) -> str:
    """Return the axis of an answer's question with the answer on it, '' where the notebook does not
    ask it.
    """
    guess = asked.get(questions.lines(output)[0])
    return guess.axis(questions.values(output, guess.unit), low=low) if guess else ""


def _found(output: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the numbers of an answer, each with what it rests on."""
    return [(value, name) for name, value, _ in questions.rows(output)]


def whole(markup: str, *, text: str = "") -> dict[str, Any]:
    """Return an output that stands on the slide as it is; ``text`` is what it says as text."""
    data = {"text/html": f'<div class="part">{markup}</div>', "text/plain": text}
    return {"output_type": "display_data", "data": data, "metadata": {"whole": True}}


def numbers(found: Sequence[tuple[str, str]]) -> str:
    """Return the HTML of one number or more, each with what it is."""
    cells = "".join(
        "<div "
        f'class="{_kind(what)}"><b>{html.escape(number)}</b><span>{html.escape(what)}</span></div>'
        for number, what in found
    )
    return f'<div class="number-row">{cells}</div>'


def _kind(what: str) -> str:
    """Return the classes of a number by what it rests on, as ``what`` says: a model, or what was
    found.
    """
    words = set(re.findall(r"\w+", what))
    return (
        "number modelled" if "modelled" in words else "number found" if words & _FOUND else "number"
    )


def numbers_in(
    outputs: Sequence[Mapping[str, Any]], wanted: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Return the numbers that the patterns of ``wanted`` find in the text of ``outputs``, each with
    its label.
    """
    text = _text(outputs)
    found = []
    for pattern, label in wanted:
        match = re.search(pattern, text)
        if match is None:
            raise EvidenceError(f"finds no {pattern!r} in its output: {text[:300]!r}")
        found.append((match[1], label))
    return whole(numbers(found))


def holds(outputs: Sequence[Mapping[str, Any]], pattern: str) -> bool:
    """Return whether ``pattern`` finds a number in the text of ``outputs``."""
    return re.search(pattern, _text(outputs)) is not None


def _text(outputs: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(
        one.get("text") or str(one.get("data", {}).get("text/plain", "")) for one in outputs
    )


def code(source: str, *, mark: str = "", lines: Sequence[int] = ()) -> str:
    """Return Python as HTML: the ``lines`` from first to last, with those that hold ``mark`` set
    off.
    """
    rows = source.splitlines()
    rows = textwrap.dedent("\n".join(rows[lines[0] - 1 : lines[1]])).splitlines() if lines else rows
    marked = [number for number, row in enumerate(rows, start=1) if mark and mark in row]
    return highlight("\n".join(rows), get_lexer_by_name("ipython3"), HtmlFormatter(hl_lines=marked))


def table(output: Mapping[str, Any], stated: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``output`` with its table as a slide shows it; an answer, a player and what has no
    table as they are.

    ``stated`` may hold ``rows`` and ``columns``, how those begin that are shown (by default all),
    and ``mark``, how the rows begin that are set off, or else what they hold. The name of a table's
    index stands above its column. Raises EvidenceError for a row or a column that is not there.
    """
    page = output.get("data", {}).get("text/html", "")
    if "<tr" not in page or questions.is_answer(output) or players.held(output):
        return output
    soup = BeautifulSoup(page, "html.parser")
    _join_names(soup)
    rows = soup.find_all("tr")
    if "columns" in stated:
        names = [_words(cell) for cell in rows[0].find_all(["th", "td"])]
        places = {0, *(_starting(names, begin, "column") for begin in stated["columns"])}
        for row in rows:
            for place, cell in enumerate(row.find_all(["th", "td"])):
                if place not in places:
                    cell.decompose()
    if "rows" in stated:
        body = rows[1:]
        kept = {_starting([_words(row) for row in body], begin, "row") for begin in stated["rows"]}
        for place, row in enumerate(body):
            if place not in kept:
                row.decompose()
    if stated.get("mark"):
        _set_off(soup, stated["mark"])
    return {**output, "data": {**output["data"], "text/html": str(soup)}}


def _words(tag: Tag) -> str:
    return " ".join(tag.get_text(" ").split())


def _starting(texts: Sequence[str], begin: str, what: str) -> int:
    """Return the place of the first of ``texts`` that begins so."""
    place = next((place for place, text in enumerate(texts) if text.startswith(begin)), None)
    if place is None:
        raise EvidenceError(
            f"has no {what} of its table that begins with {begin!r}: {', '.join(texts)[:300]}"
        )
    return place


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
        "set-off" in one.get("data", {}).get("text/html", "") for one in outputs
    )


def untitled(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``output`` with its figure cut to what is drawn below the title; another output as it
    is.

    The title is the first row of ink. Raises EvidenceError for a figure with nothing below its
    first row.
    """
    if "image/png" not in output.get("data", {}):
        return output
    picture = Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"])))
    drawn = np.asarray(picture.convert("L")) < _INK
    rows = np.flatnonzero(drawn.any(axis=1))
    (gaps,) = np.nonzero(np.diff(rows) > _BELOW_A_TITLE_PX)
    if gaps.size == 0:
        raise EvidenceError("shows a figure without a title to leave out")
    top, bottom = int(rows[gaps[0] + 1]), int(rows[-1])
    columns = np.flatnonzero(drawn[top:].any(axis=0))
    ends = (
        int(columns[0]) - _BORDER_PX,
        top - _BORDER_PX,
        int(columns[-1]) + _BORDER_PX,
        bottom + _BORDER_PX,
    )
    with io.BytesIO() as cut:
        picture.convert("RGB").crop(
            (max(ends[0], 0), ends[1], min(ends[2], picture.width), min(ends[3], picture.height))
        ).save(cut, format="png", optimize=True)
        data = {**output["data"], "image/png": base64.b64encode(cut.getvalue()).decode()}
    return {**output, "data": data}


def _own_names(frame: str, step: int) -> str:
    """Return an SVG whose names no other one has: what is clipped by a name in a hidden frame would
    not be seen.

    Two steps may show the same drawing, so ``step`` is a part of the names.
    """
    digest = hashlib.sha256(f"{step} {frame}".encode()).hexdigest()[:10]
    return _NAME.sub(rf"\g<1>n{digest}-", frame)


def steps(
    output: Mapping[str, Any], stated: Mapping[str, Any], asked: Mapping[str, questions.Guess]
) -> Mapping[str, Any]:
    """Return a player as fragments of reveal.js, a frame each; another output as it is.

    ``stated`` may hold ``frames``, the places of those that are wanted, ``captions`` for them,
    ``crop``, the part of the drawing that is shown: left, top, width and height, and ``smallest``,
    to which its texts grow. On paper the frame in the middle stands alone. An answer stands above
    the steps in large numbers, beside a low axis.
    """
    if questions.is_answer(output):
        axis = _answers_axis(output, asked, low=True)
        return whole(numbers(_found(output)) + axis, text=output["data"]["text/plain"])
    held = players.held(output)
    if held is None:
        return output
    places = stated.get("frames") or range(len(held["frames"]))
    captions = stated.get("captions") or [
        held["captions"][place] for place in places if held["captions"]
    ]
    last = len(places) - 1
    frames = []
    for step, place in enumerate(places):
        moves = "fade-out" if step == 0 else "fade-in-then-out" if step < last else ""
        paper = " on-paper" if step == (last + 1) // 2 else ""
        said = f"<p>{html.escape(captions[step])}</p>" if captions else ""
        drawn = _own_names(held["frames"][place], step)
        drawn = _FONT_SIZE.sub(
            lambda size: f"{max(float(size[0]), stated.get('smallest', 0)):g}", drawn
        )
        if "crop" in stated:
            drawn = _VIEW_BOX.sub(f'viewBox="{" ".join(map(str, stated["crop"]))}"', drawn, count=1)
        frames.append(
            f'<div class="frame fragment {moves}{paper}" '
            f'data-fragment-index="{max(step - 1, 0)}">{drawn}{said}</div>'
        )
    box = _VIEW_BOX.search(drawn)
    if box is None:
        raise EvidenceError(
            f"shows steps with crop={stated.get('crop')}, which must be left, top, width and height"
        )
    shape = "steps tall" if float(box[1]) / float(box[2]) < _TALL else "steps"
    made = whole("", text=held["alt"])
    made["data"]["text/html"] = (
        f'<div class="part {shape}" role="img" '
        f'aria-label="{html.escape(held["alt"])}">{"".join(frames)}</div>'
    )
    return made
