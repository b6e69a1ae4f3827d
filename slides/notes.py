"""What is said on a slide, from the text of its lesson, and for how long.

A lesson speaks to a reader, and a lecturer speaks to a room. So the notes leave out what only a
reader can do or see: the task of a function that the reader writes, tables and code, and sentences
that point to a place on the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bs4 import BeautifulSoup, Tag

from slides.markdown import count_words, plain_text

WORDS_PER_MINUTE = 130
QUESTION_S = 45  # in which a room guesses
LOOK_S = 15  # in which it looks at a figure, a table, numbers or code
GRAIN_S, LEAST_S = 5, 15

_TASK, _RULE, _DONE = "Your turn", "To remember", "In this lesson you"
_NOT_SAID = ("table", "pre", "figure", "img")
_SENTENCE = re.compile(r"(?<=[.?!])\s+")
_FOR_READERS = re.compile(
    r"^(?:Write (?!down\b)|Return |(?:Turn|Move) (?:the|it)\b)|\brun this page\b|\byou read "
    r"on\b|\bnext cell\b"
    r"|\b(?:cells?|lines?|rows?|figure|table|printed) (?:above|below)\b"
)


def spoken(html: str) -> str:
    """Return the notes that ``html``, a text of a lesson, makes: what a lecturer says of it."""
    said, task = [], False
    for block in BeautifulSoup(html, "html.parser").find_all(True, recursive=False):
        text = " ".join(block.get_text().split())
        task = text.startswith((_TASK, _DONE)) or (
            task and not text.startswith(_RULE) and not _ends(block)
        )
        if not task and block.name not in _NOT_SAID and not block.find(_NOT_SAID):
            said.append(_without_pointers(block))
    return "\n".join(one for one in said if one)


def _ends(block: Tag) -> bool:
    """Return whether ``block`` stands below the list of what was done in a lesson, and no longer
    belongs to it.
    """
    return block.name == "p" and block.get_text().startswith("Next:")


def _without_pointers(block: Tag) -> str:
    """Return ``block`` without the sentences that only a reader can follow, '' where there are no
    others.
    """
    if block.name != "p":
        return str(block)
    sentences = _SENTENCE.split(block.decode_contents())
    # a tag spans two of them
    if any(one.count("<") != 2 * one.count("</") + one.count("<br") for one in sentences):
        return str(block)
    said = [one for one in sentences if not _FOR_READERS.search(plain_text(one).strip())]
    return f"<p>{' '.join(said)}</p>" if said else ""


def shared(above: str, below: str) -> tuple[str, str] | None:
    """Return the notes of two slides that would say the same text, ``below``: its last paragraph
    leads to the second.

    None where the slide ``above`` does not say it. A text of one paragraph is said on the first
    slide alone.
    """
    if not below or not above.endswith(below):
        return None
    first, _, last = below.rpartition("\n<p>")
    return (above.removesuffix(f"\n<p>{last}"), f"<p>{last}") if first else (above, "")


def seconds(notes: str, *, asks: bool, shows: bool) -> float:
    """Return the seconds that the words of ``notes`` take, and the guesses or the look that a slide
    waits for.
    """
    return 60 * count_words(notes) / WORDS_PER_MINUTE + QUESTION_S * asks + LOOK_S * shows


def divided(total_s: float, needed: Sequence[float]) -> list[int]:
    """Return the seconds of each slide of a deck of ``total_s``: LEAST_S, and the rest in
    proportion to its needs.

    They are multiples of GRAIN_S and add up to ``total_s``. A deck of less than LEAST_S per slide
    is divided evenly.
    """
    grains, least = round(total_s / GRAIN_S), LEAST_S // GRAIN_S
    free = max(grains - least * len(needed), 0)
    least = min(least, grains // len(needed))
    ideal = [free * one / (sum(needed) or 1) for one in needed]
    given = [least + int(one) for one in ideal]
    by_rest = sorted(range(len(needed)), key=lambda place: int(ideal[place]) - ideal[place])
    for place in (by_rest * grains)[: grains - sum(given)]:
        given[place] += 1
    return [GRAIN_S * one for one in given]
