"""Two pictures of a lesson's three numbers, a question and an answer: the bet of lesson 00, from
its notebook.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

import nbformat

from helpers.plotting import MEASURED, MODELLED, PREDICTED
from helpers.units import flops_from_macs
from tools.authoring.cells import AuthoringError
from tools.authoring.machine_map import GREY

LESSON = "start_here"
_SIDE = 1024  # of the bet's matrices
_MOVED_BYTES, _FLOPS = 3 * 4 * _SIDE**2, (_SIDE**2, flops_from_macs(_SIDE**3))
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BET = re.compile(r"^modelled +([\d,.]+)x.*\nmeasured +([\d,.]+)x", re.MULTILINE)
_RATES = re.compile(r"^([\d.]+) ([kMGT]?)B/s, ([\d.]+) ([kMGT]?)FLOP/s$", re.MULTILINE)

WIDTH = 620
_LEFT, _TOP, _ROW, _BAR = 210, 52, 54, 26


def numbers(built: nbformat.NotebookNode) -> tuple[float, float, float]:
    """Return three ratios of the time of the product ``a @ b`` to that of ``a * b``, as the built
    lesson 00 shows them.

    The first number is modelled from operations alone, the second from bytes and operations with
    the printed rates, and the third is measured. Raises AuthoringError if the lesson does not show
    them.
    """
    texts = "\n".join(_texts(built))
    bet, rates = _BET.search(texts), _RATES.search(texts)
    if not bet or not rates:
        missing = (
            "the modelled and the measured number of its bet"
            if not bet
            else "its two rates, in B/s and FLOP/s"
        )
        raise AuthoringError(
            f"lesson 00 does not show {missing}, which the picture of the three numbers needs; "
            "show them as before, or change tools/authoring/three_numbers.py"
        )
    bandwidth, flops_per_s = (float(rates[index]) * _PREFIXES[rates[index + 1]] for index in (1, 3))
    element_wise_s, product_s = (
        max(_MOVED_BYTES / bandwidth, flops / flops_per_s) for flops in _FLOPS
    )
    operations, measured = (float(text.replace(",", "")) for text in bet.groups())
    return operations, product_s / element_wise_s, measured


def svg(built: nbformat.NotebookNode, *, asks: bool = False) -> str:
    """Return the picture as SVG; one that ``asks`` keeps the better model and the measured number
    back.

    Raises AuthoringError as :func:`numbers` does.
    """
    operations, both, measured = numbers(built)
    rows: list[tuple[str, str, float | str, str]] = [
        ("predicted", "by you", "your number", PREDICTED),
        ("modelled", "operations alone", operations, MODELLED),
        ("modelled", "bytes and operations", both, MODELLED),
        ("measured", "on one core", "?" if asks else measured, MEASURED),
    ]
    if asks:
        del rows[2]  # its name tells what decides
    title = "How many times as long as a * b does a @ b take?"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {_TOP + len(rows) * _ROW}" '
        f'width="{WIDTH}" font-family="\'DejaVu Sans\', Verdana, sans-serif" font-size="16" '
        f'fill="{GREY}" role="img">',
        f"<title>{html.escape(description(built, asks=asks))}</title>",
        (
            f'<text x="{WIDTH / 2:g}" y="26" text-anchor="middle" font-size="18" '
            f'font-weight="bold">{title}</text>'
        ),
    ]
    for index, (label, basis, number, colour) in enumerate(rows):
        lines += _row(
            _TOP + index * _ROW,
            (label, basis),
            number,
            colour,
            largest=max(operations, both, measured),
        )
    return "\n".join([*lines, "</svg>", ""])


def description(built: nbformat.NotebookNode, *, asks: bool = False) -> str:
    """Return the alt text of the picture; that of one that ``asks`` says the first number alone."""
    operations, both, measured = map(_text, numbers(built))
    question = (
        f"For matrices of {_SIDE:,} x {_SIDE:,}, a @ b should take {operations} times as long as a "
        "* b by its operations alone"
    )
    if asks:
        return f"{question} (modelled). What is your number?"
    return (
        f"{question} and {both} times by bytes and operations (modelled). On one core it took "
        f"{measured} times (measured)."
    )


def _row(
    top: int, labels: Sequence[str], number: float | str, colour: str, *, largest: float
) -> list[str]:
    """Return a row whose bar has the length of ``number``, or a dashed box with a word in its
    place.
    """
    label, basis = labels
    middle, full = top + _BAR - 8, WIDTH - _LEFT - 90
    if isinstance(number, str):
        width, fill = (
            150.0,
            f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="6 4"',
        )
        label_text = (
            f'<text x="{_LEFT + width / 2:g}" y="{middle}" text-anchor="middle">{number}</text>'
        )
    else:
        width, fill = max(4, full * number / largest), f'fill="{colour}"'
        end = _LEFT + width + 10
        label_text = f'<text x="{end:g}" y="{middle}" font-weight="bold">{_text(number)}×</text>'
    return [
        f'<text x="{_LEFT - 14}" y="{top + 9}" text-anchor="end" font-weight="bold">{label}</text>',
        f'<text x="{_LEFT - 14}" y="{top + 28}" text-anchor="end" font-size="14">{basis}</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{width:g}" height="{_BAR}" rx="2" {fill}/>',
        label_text,
    ]


def _text(number: float) -> str:
    return f"{number:,.0f}"


def _texts(built: nbformat.NotebookNode) -> list[str]:
    outputs = [output for cell in built.cells for output in cell.get("outputs", [])]
    return [
        output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs
    ]
