"""What a submission's cells showed, as data that nothing runs: text, tables as rows of text,
pictures as PNG.

It comes from a process that may send anything, and goes into a lecturer's and a student's browser.
So text is cut, of a table's HTML nothing is kept but its cells' text, and a picture must be a PNG
of a reasonable size.
"""

from __future__ import annotations

import base64
import binascii
import functools
import html
import re
import struct
from typing import Any

import nbformat

from tools.authoring.course import HERE
from tools.exercises.sheets import Sheet

MOST_OF_A_CELL = 8
MOST_CHARACTERS = 5_000  # of printed text, or of a value shown as text
MOST_OF_A_TABLE = 100_000  # characters of its HTML
LARGEST_PICTURE_BYTES = 400_000
LARGEST_PICTURE_PIXELS = 4_000_000  # a browser unpacks each of them
_LONGEST_BLANK, _LONGEST_LINE = 200, 1_000  # characters of a source that are shown
_PNG = b"\x89PNG\r\n\x1a\n"
_ROWS = ("table", "thead", "tbody", "tr", "th", "td")
_CELLS, _PARTS = ("td", "th"), ("thead", "tbody")
_OVER = {"tr": ("tr",), "td": _CELLS, "th": _CELLS, "thead": _PARTS, "tbody": _PARTS}
# An element, whose quoted values may hold ">"; it takes nothing back, and ends before the next "<".
_ELEMENT = re.compile(r"""<(/?)([A-Za-z][^\s/<>]*+)(?:[^<>"']|"[^"<]*+"|'[^'<]*+'|["'])*+>""")
# a number that no character has, and that Python may not even read
_NO_CHARACTER = re.compile(r"&#0*+\d{8,}+;?")
_SILENT = ("style", "script", "template", "title")
_UNPRINTABLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {
    127: 0x2421
}
# of Unicode's bidi algorithm
_TURNING = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_UNPRINTABLE |= dict.fromkeys((*range(0x80, 0xA0), *_TURNING), 0xFFFD)


def printable(text: str) -> str:
    """Return ``text`` with signs in place of the characters that no page may hold.

    They are the control characters, such as NUL, and those that turn the direction of text. However
    its lines end, they end as ours do.
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_UNPRINTABLE)


def safe(raw_outputs: object) -> list[dict[str, Any]]:
    """Return as a notebook's outputs what a submission sent of a cell; what is not as it shall be
    is left out.
    """
    outputs: list[dict[str, Any]] = []
    for output in raw_outputs[:MOST_OF_A_CELL] if isinstance(raw_outputs, list) else []:
        if isinstance(output, dict) and isinstance(output.get("printed"), str):
            outputs.append(
                {"output_type": "stream", "name": "stdout", "text": _text(output["printed"])}
            )
        elif isinstance(output, dict):
            data = _data(output)
            outputs += (
                [{"output_type": "display_data", "data": data, "metadata": {}}] if data else []
            )
    return outputs


def _data(output: dict[str, Any]) -> dict[str, str]:
    data = {"text/plain": _text(output["text"])} if isinstance(output.get("text"), str) else {}
    if isinstance(output.get("png"), str) and (picture := _picture(output["png"])):
        data["image/png"] = picture
    elif isinstance(output.get("html"), str) and (rows := table(output["html"])):
        data["text/html"] = rows
    return data


def _text(text: str) -> str:
    return printable(
        text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}\n[and so on]"
    )


def _picture(encoded: str) -> str:
    """Return a PNG in base64 again, "" for what is none or is too large to be shown."""
    if len(encoded) > 2 * LARGEST_PICTURE_BYTES:
        return ""
    try:
        picture = base64.b64decode(re.sub(r"\s+", "", encoded), validate=True)
    except (binascii.Error, ValueError):
        return ""
    if (
        len(picture) > LARGEST_PICTURE_BYTES
        or picture[:8] != _PNG
        or picture[12:16] != b"IHDR"
        or len(picture) < 24
    ):
        return ""
    width, height = struct.unpack(">II", picture[16:24])
    return (
        base64.b64encode(picture).decode("ascii")
        if width * height <= LARGEST_PICTURE_PIXELS
        else ""
    )


class _Rows:
    """The rows of tables as HTML of our own: of each element its name, of each cell its text, and
    nothing else.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._open: list[str] = []

    def start(self, tag: str) -> None:
        """Open an element of a table, and close before what may not hold it."""
        if (tag == "table") != ("table" in self._open):
            for outer in _OVER.get(tag, ()):
                self.end(outer)
            self._open.append(tag)
            self.parts.append(f"<{tag}>")

    def end(self, tag: str) -> None:
        """Close an element, and what is open in it."""
        while tag in self._open:
            innermost = self._open.pop()
            self.parts.append(f"</{innermost}>")
            if innermost == tag:
                break

    def text(self, text: str) -> None:
        """Add what a cell says; outside of the cells nothing is kept."""
        if self._open and self._open[-1] in _CELLS:
            self.parts.append(
                html.escape(printable(html.unescape(_NO_CHARACTER.sub("\ufffd", text))))
            )


def table(text: str) -> str:
    """Return the tables in HTML as HTML of our own, without an attribute; "" where there is none.

    It takes as long as the text is: Python's own parser of HTML takes the square, so that a
    student's 100,000 characters hold up a class for minutes.
    """
    if len(text) > MOST_OF_A_TABLE:
        return ""
    rows, silent = _Rows(), ""
    pieces = _ELEMENT.split(_without_comments(text))
    for cell_text, is_end, name in zip(
        pieces[::3], [*pieces[1::3], ""], [*pieces[2::3], ""], strict=True
    ):
        if not silent:
            rows.text(cell_text)
        tag = name.lower()
        if tag in _SILENT:
            silent = ("" if tag == silent else silent) if is_end else silent or tag
        elif tag in _ROWS and not silent:
            (rows.end if is_end else rows.start)(tag)
    rows.end("table")
    return "".join(rows.parts)


def _without_comments(text: str) -> str:
    parts, position = [], 0
    while (start := text.find("<!--", position)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        parts.append(text[position:start])
        position = end + 3
    return "".join([*parts, text[position:]])


@functools.cache
def _built_outputs(name: str) -> dict[str, list[dict[str, Any]]]:
    path = HERE.folder / "exercises" / f"{name}.ipynb"
    cells = nbformat.read(path, as_version=4).cells if path.is_file() else []
    return {
        cell.id: safe([_as_sent(output) for output in cell.outputs])
        for cell in cells
        if cell.cell_type == "code"
    }


def _as_sent(output: dict[str, Any]) -> dict[str, str]:
    if output["output_type"] == "stream":
        return {"printed": output["text"]}
    data = output.get("data", {})
    named = {"text": "text/plain", "html": "text/html", "png": "image/png"}
    return {name: data[kind] for name, kind in named.items() if kind in data}


def of_given(sheet: Sheet) -> dict[str, list[dict[str, Any]]]:
    """Return the outputs of the given cells of the exercises by their ids, as the released notebook
    has them.
    """
    return _built_outputs(sheet.lesson.name)


def cut(source: str, limit: int) -> str:
    """Return a source as it is shown: what nobody reads is named in its place, so that it takes
    nobody's time.

    To colour Python takes the square of a run of blank lines.
    """
    shortened = re.sub(
        rf"\s{{{_LONGEST_BLANK},}}", lambda match: f"\n# [{len(match[0])} blanks]\n", source
    )
    return printable(
        shortened
        if len(shortened) <= limit
        else f"{shortened[:limit]}\n# [{len(shortened) - limit:,} characters more]"
    )


def cut_code(source: str, limit: int) -> str:
    """Return Python as :func:`cut` does, without the ends of long lines: to colour it takes the
    square of a line.
    """
    return re.sub(
        rf"[^\n]{{{_LONGEST_LINE + 1},}}",
        lambda match: (
            f"{match[0][:_LONGEST_LINE]}  # [{len(match[0]) - _LONGEST_LINE:,} characters more]"
        ),
        cut(source, limit),
    )
