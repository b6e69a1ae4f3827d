"""A deck and its slides: what a lesson's cells become before they are HTML of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.results import Result
from slides import questions
from slides.markdown import count_words

IMAGES = ("image/png", "image/jpeg", "image/svg+xml")


@dataclass(frozen=True)
class Part(Result):
    """One cell's part of a slide: HTML of its text, of the axis to guess on where it asks, and of
    its code, and its outputs, and who published its numbers.
    """

    cell_index: int
    text: str = ""
    axis: str = ""
    code: str = ""
    outputs: tuple[Mapping[str, Any], ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Slide(Result):
    """One slide: HTML of the heading and of the notes, the parts in order, the minutes to talk, and
    its layout.

    ``here`` are the places of the machine that an act or a slide of it is about, and ``source``
    says who published its numbers.
    """

    heading: str
    parts: tuple[Part, ...]
    notes: str
    minutes: float
    layout: str
    here: tuple[str, ...] = ()
    source: str = ""

    @property
    def words(self) -> int:
        """The words of the slide's text, heading included; code and outputs are not text."""
        return count_words(self.heading) + sum(count_words(part.text) for part in self.parts)


@dataclass(frozen=True)
class Deck(Result):
    """A lesson's slides, and what its title slide says: ``facts`` in one line, the objectives as
    HTML.

    ``exercise`` is what to do after it, which the last slide says.
    """

    number: str
    title: str
    facts: str
    objectives: tuple[str, ...]
    slides: tuple[Slide, ...]
    exercise: str = ""

    @property
    def minutes(self) -> float:
        """The minutes of all slides together, to the second."""
        return round(60 * sum(slide.minutes for slide in self.slides)) / 60


def asks(parts: Sequence[Part]) -> bool:
    """Return whether ``parts`` ask something: by an axis to guess on, or in their texts."""
    return any(part.axis for part in parts) or questions.asks([part.text for part in parts])
