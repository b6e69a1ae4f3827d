"""The symbols that mean the same in all lessons: course/symbols.toml, the table that opens the
sheet of formulas.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.authoring.cells import AuthoringError
from tools.authoring.lesson import Lesson
from tools.authoring.problem import Problem

_MATH = re.compile(r"\$([^$\n]+)\$")
_SENTENCE_END = re.compile(r"(?<=[.?!])\)?\s+(?=[A-Z`*(\[])|\n\s*\n|\n(?=\s*[|>#-])")


@dataclass(frozen=True)
class Symbol:
    """A symbol of the course, as LaTeX writes it, what it means, and words that say so."""

    symbol: str
    meaning: str
    words: tuple[str, ...]


def read(path: Path) -> tuple[Symbol, ...]:
    """Return the symbols that the file states; () where there is no file.

    Raises AuthoringError for a symbol without a meaning or words, and for one that is stated twice.
    """
    if not path.is_file():
        return ()
    rows = tomllib.loads(path.read_text(encoding="utf-8")).get("symbols", [])
    symbols = []
    for row in rows:
        if set(row) != {"symbol", "meaning", "words"} or not row["words"]:
            raise AuthoringError(
                f"{path.name} has {row}; state symbol, meaning and words of each symbol"
            )
        symbols.append(Symbol(row["symbol"], row["meaning"], tuple(row["words"])))
    names = [symbol.symbol for symbol in symbols]
    if len(set(names)) < len(names):
        raise AuthoringError(f"{path.name} states a symbol twice among {', '.join(names)}")
    return tuple(symbols)


def table(symbols: Sequence[Symbol]) -> str:
    """Return the symbols as a Markdown table."""
    rows = [f"| ${symbol.symbol}$ | {symbol.meaning} |" for symbol in symbols]
    return "\n".join(["| symbol | meaning in every lesson |", "|---|---|", *rows])


def check(lesson: Lesson, symbols: Sequence[Symbol]) -> list[Problem]:
    """Return a problem for each symbol of the table whose first sentence in a lesson does not say
    its meaning.
    """
    problems = []
    symbols_by_name = {symbol.symbol: symbol for symbol in symbols}
    seen: set[str] = set()
    for index, cell in enumerate(lesson.cells):
        for sentence in _sentences(cell.source) if cell.kind == "markdown" else ():
            for name in _lone_symbols(sentence):
                if name not in symbols_by_name or name in seen:
                    continue
                seen.add(name)
                symbol = symbols_by_name[name]
                if not any(
                    re.search(rf"\b{re.escape(word)}\b", sentence, re.IGNORECASE)
                    for word in symbol.words
                ):
                    message = (
                        f"${name}$ is {symbol.meaning} in every lesson (course/symbols.toml); say "
                        f"one of {', '.join(symbol.words)} where it comes first, or take another "
                        "letter"
                    )
                    problems.append(Problem(lesson.notebook_name, index, message))
    return problems


def _sentences(text: str) -> list[str]:
    return [" ".join(sentence.split()) for sentence in _SENTENCE_END.split(text)]


def _lone_symbols(sentence: str) -> Iterator[str]:
    """Yield the formulas of a sentence that are a single symbol."""
    for formula in _MATH.findall(sentence):
        if re.fullmatch(r"\\?[A-Za-z]+", formula.strip()):
            yield formula.strip()
