"""Many texts at once, as counts: pages of the cache, and who writes in which step. Lesson 22."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from helpers.checks import choice, members, whole_number
from helpers.results import Record

POLICIES = ("static", "continuous")
_MOST_PLACES = 10**6


class Pages(Record):
    """Pages of ``page_tokens`` tokens that texts take, and the share of their places that stays
    empty.

    Lesson 22.
    """

    page_tokens: int
    tokens: int
    pages: int
    empty_share: float


class BatchSchedule(Record):
    """In which steps each text was written: its place, its first step and the step after its last.

    Lesson 22.
    """

    policy: str
    places: int
    steps: int
    spans: tuple[tuple[int, int, int], ...]

    @property
    def used_share(self) -> float:
        """The share of places and steps in which a token was written."""
        return sum(end - start for _, start, end in self.spans) / (self.places * self.steps)


def count_pages(lengths: Sequence[int], page_tokens: int) -> Pages:
    """Return the pages that texts of ``lengths`` tokens take, each with pages of its own."""
    page_tokens = whole_number("page_tokens", page_tokens)
    lengths = _lengths(lengths)
    pages = sum(-(-length // page_tokens) for length in lengths)
    return Pages(page_tokens, sum(lengths), pages, 1 - sum(lengths) / (pages * page_tokens))


def schedule(lengths: Sequence[int], *, places: int, policy: str) -> BatchSchedule:
    """Return the steps in which texts of ``lengths`` tokens are written, in their order, one token
    a step in each of ``places``.

    With the ``policy`` "static" texts start together, ``places`` of them, and the next ones when
    the longest is done. With "continuous" a text starts in a place as soon as one is free (Yu and
    others, Orca, OSDI 2022). Prompts cost no step.
    """
    places, lengths = whole_number("places", places, at_most=_MOST_PLACES), _lengths(lengths)
    policy = choice("policy", policy, POLICIES)
    spans: list[tuple[int, int, int]] = []
    free, start = [(0, place) for place in range(places)], 0
    for number, length in enumerate(lengths):
        if policy == "static":
            if number % places == 0:
                start = max((end for *_, end in spans), default=0)
            place = number % places
        else:
            start, place = heapq.heappop(free)
            heapq.heappush(free, (start + length, place))
        spans.append((place, start, start + length))
    return BatchSchedule(policy, places, max(end for *_, end in spans), tuple(spans))


def _lengths(lengths: Sequence[int]) -> list[int]:
    entries = members("lengths", lengths, "whole numbers")
    token_counts = [
        whole_number(f"lengths[{index}]", length) for index, length in enumerate(entries)
    ]
    if not token_counts:
        raise ValueError("lengths is empty; give the tokens of at least one text")
    return token_counts
