"""The speaker's notes of each slide, from the text of its lesson, and the time that they take.

A lesson speaks to a reader, and a lecturer speaks to a room. So the notes leave out what only a
reader can do or see: the task of a function that the reader writes, tables and code, and sentences
that point to a place on the page.
"""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag

from slides import deck, questions, rules
from slides.deck import Part, Slide
from slides.markdown import CutCell, count_words, cut_markdown, plain_text

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
_LEADS_OVER = re.compile(r":(\s*(?:</[a-z]+>\s*)*)$")


def spoken_text(html: str) -> str:
    """Return the part of ``html``, a text of a lesson, that a lecturer says."""
    paragraphs, in_task = [], False
    for block in BeautifulSoup(html, "html.parser").find_all(True, recursive=False):
        text = " ".join(block.get_text().split())
        in_task = text.startswith((_TASK, _DONE)) or (
            in_task and not text.startswith(_RULE) and not _ends_list(block)
        )
        if not in_task and block.name not in _NOT_SAID and not block.find(_NOT_SAID):
            paragraphs.append(_drop_pointers(block))
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


def _ends_list(block: Tag) -> bool:
    """Return whether ``block`` stands below the list of what was done in a lesson, and no longer
    belongs to it.
    """
    return block.name == "p" and block.get_text().startswith("Next:")


def _drop_pointers(block: Tag) -> str:
    """Return ``block`` without the sentences that only a reader can follow, '' where there are no
    others.
    """
    if block.name != "p":
        return str(block)
    sentences = _SENTENCE.split(block.decode_contents())
    # a tag spans two of them
    if any(
        sentence.count("<") != 2 * sentence.count("</") + sentence.count("<br")
        for sentence in sentences
    ):
        return str(block)
    spoken_sentences = [
        sentence for sentence in sentences if not _FOR_READERS.search(plain_text(sentence).strip())
    ]
    return f"<p>{' '.join(spoken_sentences)}</p>" if spoken_sentences else ""


def split_shared(above: str, below: str) -> tuple[str, str] | None:
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


def divide_seconds(total_s: float, needed: Sequence[float]) -> list[int]:
    """Return the seconds of each slide of a deck of ``total_s``: LEAST_S, and the rest in
    proportion to its needs.

    They are multiples of GRAIN_S and add up to ``total_s``. A deck of less than LEAST_S per slide
    is divided evenly.
    """
    grains, least = round(total_s / GRAIN_S), LEAST_S // GRAIN_S
    free = max(grains - least * len(needed), 0)
    least = min(least, grains // len(needed))
    shares = [free * need / (sum(needed) or 1) for need in needed]
    grains_per_slide = [least + int(share) for share in shares]
    by_remainder = sorted(range(len(needed)), key=lambda index: int(shares[index]) - shares[index])
    for index in (by_remainder * grains)[: grains - sum(grains_per_slide)]:
        grains_per_slide[index] += 1
    return [GRAIN_S * grains_of_slide for grains_of_slide in grains_per_slide]


def heading_notes(cut: CutCell, *, joined: bool) -> str:
    """Return the heading of a cell that joins a slide, as notes."""
    return f"<p><strong>{cut.heading}</strong></p>" if joined and cut.heading else ""


def with_full_stop(notes: str) -> str:
    """Return ``notes`` with a full stop where the last sentence led over to a cell that is not read
    out.
    """
    return _LEADS_OVER.sub(r".\1", notes)


def default_notes(parts: Sequence[Part]) -> str:
    """Return the notes of a slide without notes of its own, by its questions and outputs."""
    if deck.asks(parts):
        return "<p>Let the room guess, and write the guesses down, before you go on.</p>"
    bundles = [output.get("data", {}) for part in parts for output in part.outputs]
    figures = [data["text/plain"] for data in bundles if any(mime in data for mime in deck.IMAGES)]
    if figures:
        return "".join(f"<p>On the figure: {html.escape(alt)}</p>" for alt in figures)
    return (
        "<p>Hold the guesses of the room against it: who was near, and by what reasoning?</p>"
        if bundles
        else ""
    )


def notes_after(cells: Sequence[Mapping[str, Any]], start: int, name: str, folder: Path) -> str:
    """Return as notes the next text below an output, unless a slide, a predict or a section comes
    before it.
    """
    for index in range(start, len(cells)):
        cell = cells[index]
        if rules.slide_tags(cell, name, index) or questions.is_predict(cell):
            return ""
        if cell["cell_type"] == "markdown":
            cut = cut_markdown(cell["source"], folder=folder, attachments=cell.get("attachments"))
            rules.check_html(f"{cut.text}{cut.notes}", name, index, "holds")
            return "" if cut.heading else spoken_text(f"{cut.text}\n{cut.notes}")
    return ""


def notes_before(cells: Sequence[Mapping[str, Any]], opening: int, folder: Path) -> str:
    """Return as notes the last text above a slide, where it is on no slide itself."""
    for cell in reversed(cells[:opening]):
        if cell["cell_type"] == "markdown":
            on_a_slide = any(tag.startswith("slide") for tag in cell["metadata"].get("tags", []))
            cut = cut_markdown(cell["source"], folder=folder, attachments=cell.get("attachments"))
            return "" if on_a_slide else with_full_stop(spoken_text(f"{cut.text}\n{cut.notes}"))
    return ""


def drop_repeats(slides: Sequence[Slide]) -> tuple[Slide, ...]:
    """Return the slides, of which none says again what explains the slide before it, where it has
    more to say.
    """
    told_once = [*slides[:1]]
    for slide in slides[1:]:
        split_notes = split_shared(told_once[-1].notes, slide.notes)
        own_notes = split_notes and (split_notes[1] or default_notes(slide.parts))
        if split_notes and own_notes:
            told_once[-1] = dataclasses.replace(told_once[-1], notes=split_notes[0])
        told_once.append(dataclasses.replace(slide, notes=own_notes) if own_notes else slide)
    return tuple(told_once)


def divide_minutes(slides: Sequence[Slide]) -> tuple[Slide, ...]:
    """Return the slides, with their minutes divided among them by what is said and looked at on
    each.
    """
    needed_s = [
        seconds(
            slide.notes,
            asks=any(part.axis for part in slide.parts),
            shows=any(part.code or part.outputs for part in slide.parts),
        )
        for slide in slides
    ]
    given_s = divide_seconds(60 * sum(slide.minutes for slide in slides), needed_s)
    return tuple(
        dataclasses.replace(slide, minutes=slide_s / 60)
        for slide, slide_s in zip(slides, given_s, strict=True)
    )
