"""The sheet of formulas: each lesson's own table, under a line on the symbols that mean the same in
all of them.

A lesson's table stands under its heading 'Formulas'; a formula that changes there changes on the
sheet. Every symbol of a formula is explained: in another cell of the section, in a sentence there,
or in :data:`COMMON`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tools.authoring import pages
from tools.authoring.lesson import Lesson
from tools.authoring.problem import Problem
from tools.authoring.rules.symbols import Symbol, table as table_of_symbols

HEADING = "## Formulas"

INTRODUCTION = (
    "Here are the formulas of all lessons, in the order of the lessons. Each section links its "
    "lesson, which says\nwhere its formulas come from and how far they hold."
)
COMMON = (
    r"Unless a row says otherwise, $t$ is a time in seconds, and its index names the part that "
    r"takes this time. The "
    r"latency of a link or a memory is $\alpha$, one over its bandwidth is $\beta$, and the "
    r"learning rate is $\eta$."
)

_MATH = re.compile(r"\$([^$]+)\$")
_FORMULA = re.compile(
    r"^\|(?P<name>[^|\n]*)\| *(?P<formula>\$[^$]+\$)", re.MULTILINE
)  # a row to the end of its formula
_WORDS = re.compile(
    r"\\text\{[^}]*\}"
    r"|\\(?:sum|max|min)_(?:\{[^}]*\}|\w)"  # what runs over an index
    r"|\\?[A-Za-z]+?_\{?[A-Za-z][\w, -]{2,}\}?"  # a symbol whose name says what it is
    r"|_(?:\{[^}]*\}|\w)"
    r"|e(?=\^)"
)
_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|eta|lambda|mu|tau|theta|ell|omega|sigma|rho)(?![a-z])"
)
_COMMAND = re.compile(rf"(?!{_GREEK})\\[A-Za-z]+")
_SYMBOL = re.compile(rf"{_GREEK}|[A-Za-z]")


def table(lesson: Lesson) -> str:
    """Return the text under a lesson's heading 'Formulas', '' where it has none."""
    for cell in lesson.cells:
        if cell.kind == "markdown" and HEADING in cell.source.splitlines():
            after = cell.source.partition(f"{HEADING}\n")[2]
            return re.split(r"^#{1,2} ", after, maxsplit=1, flags=re.MULTILINE)[0].strip()
    return ""


def check(lesson: Lesson) -> list[Problem]:
    """Return a problem for each formula of a lesson with a symbol that nothing explains.

    A text explains a symbol that it names alone, or in a size such as $m \\times k$.
    """
    section = table(lesson)
    words = COMMON + _FORMULA.sub(r"\g<name>", section)
    explained_symbols = {
        symbol
        for math in _MATH.findall(words)
        if not re.search(r"[+=/(^-]", math)
        for symbol in _symbols(math)
    }
    problems = []
    for row in _FORMULA.finditer(section):
        unknown = sorted(set(_symbols(row["formula"])) - explained_symbols)
        if unknown:
            message = (
                f"{row['formula']}: say in another cell, or in a sentence of {HEADING}, what "
                f"{', '.join(unknown)} is"
            )
            problems.append(Problem(lesson.notebook_name, None, message))
    return problems


def _symbols(math: str) -> list[str]:
    """Return the symbols of a formula: letters, Greek ones too, without indices, functions and
    words.
    """
    return _SYMBOL.findall(_COMMAND.sub(" ", _WORDS.sub(" ", math)))


def page(lessons: Sequence[Lesson], symbols: Sequence[Symbol] = ()) -> str:
    """Return the sheet as Markdown: the symbols of the course, and a section for each lesson."""
    lines = [
        "# Formulas",
        "",
        pages.made_from("the lessons' formulas"),
        "",
        INTRODUCTION,
        "",
        COMMON,
    ]
    lines += ["", table_of_symbols(symbols)] if symbols else []
    for lesson in lessons:
        section = table(lesson)
        if section:
            lines += ["", f"## {lesson.number} {lesson.title}", ""]
            lines += [f"From [lesson {lesson.number}]({lesson.notebook_name}).", "", section]
    return "\n".join(lines) + "\n"
