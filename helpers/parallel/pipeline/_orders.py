"""In which order each rank of a pipeline works: GPipe, 1F1B, interleaved 1F1B and the zero-bubble schedule ZB-H1.

With p ranks and v chunks a rank there are p x v stages, and stage s is on rank s mod p. Orders say nothing of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, zip_longest

from helpers._checks import choice, whole_number

FORWARD, BACKWARD, BACKWARD_WEIGHT = "forward", "backward", "backward-weight"

Step = tuple[str, int, int]  # kind, stage, microbatch


def rank_order(name: str, *, rank: int, ranks: int, microbatches: int, chunks: int = 1) -> list[Step]:
    """Return what ``rank`` does, in order, as (kind, stage, microbatch).

    A kind is "forward", "backward" or "backward-weight". ``name`` is one of :data:`SCHEDULES`: "gpipe" (Huang et al.,
    2019), "1f1b" (PipeDream-Flush: Narayanan et al., 2021, arXiv 2104.04473), "interleaved" (the same paper, ``chunks``
    stages a rank) or "zero_bubble" (ZB-H1: Qi et al., 2024, arXiv 2401.10241), where "backward" is the gradient of the
    input alone. Raises as :func:`check`.
    """
    check(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    whole_number("rank", rank, at_least=0, at_most=ranks - 1)
    return list(SCHEDULES[name](rank, ranks, microbatches, chunks))


def check(name: str, *, ranks: int, microbatches: int, chunks: int) -> None:
    """Raise ValueError or TypeError for a schedule that does not exist, saying what to change."""
    choice("schedule", name, SCHEDULES)
    for what, number in (("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks)):
        whole_number(what, number)
    if name == "interleaved" and chunks < 2:
        raise ValueError("interleaved gives every rank several stages: give chunks=2 or more, or take '1f1b'")
    if name != "interleaved" and chunks != 1:
        raise ValueError(f"{name!r} has one stage a rank, and chunks is {chunks}; only 'interleaved' has more")
    if name != "gpipe" and microbatches < ranks:
        raise ValueError(f"{name!r} is run here as PyTorch runs it, with at least as many microbatches as ranks; got "
                         f"{microbatches} microbatches for {ranks} ranks: cut the batch into {ranks} or more, or take "
                         "'gpipe'")  # fmt: skip
    if name == "interleaved" and microbatches % ranks:
        raise ValueError(f"interleaved takes the microbatches in rounds of as many as there are ranks; {microbatches} "
                         f"do not divide by {ranks}: take {microbatches // ranks * ranks} or "
                         f"{(microbatches // ranks + 1) * ranks}")  # fmt: skip


def _gpipe(rank: int, _ranks: int, microbatches: int, _chunks: int) -> Iterator[Step]:
    yield from ((FORWARD, rank, microbatch) for microbatch in range(microbatches))
    yield from ((BACKWARD, rank, microbatch) for microbatch in range(microbatches))


def _alternating(forwards: list[Step], backwards: list[Step], *, warm_up: int) -> Iterator[Step]:
    yield from forwards[:warm_up]
    pairs = zip_longest(forwards[warm_up:], backwards)  # the backward passes left over are the cool-down
    yield from (step for step in chain.from_iterable(pairs) if step is not None)


def _one_forward_one_backward(rank: int, ranks: int, microbatches: int, _chunks: int) -> Iterator[Step]:
    forwards = [(FORWARD, rank, microbatch) for microbatch in range(microbatches)]
    backwards = [(BACKWARD, rank, microbatch) for microbatch in range(microbatches)]
    yield from _alternating(forwards, backwards, warm_up=ranks - 1 - rank)


def _interleaved(rank: int, ranks: int, microbatches: int, chunks: int) -> Iterator[Step]:
    def place(turn: int) -> tuple[int, int]:  # the chunk and the microbatch: rounds of `ranks` through every chunk
        return turn // ranks % chunks, turn // (ranks * chunks) * ranks + turn % ranks

    turns = [place(turn) for turn in range(microbatches * chunks)]
    forwards = [(FORWARD, chunk * ranks + rank, microbatch) for chunk, microbatch in turns]
    backwards = [(BACKWARD, (chunks - 1 - chunk) * ranks + rank, microbatch) for chunk, microbatch in turns]
    yield from _alternating(forwards, backwards, warm_up=interleaved_warm_up(rank, ranks, microbatches, chunks))


def interleaved_warm_up(rank: int, ranks: int, microbatches: int, chunks: int) -> int:
    """Return how many forward passes ``rank`` makes before it alternates: Narayanan et al. (2021)."""
    return min(microbatches * chunks, (chunks - 1) * ranks + 2 * (ranks - 1 - rank))


def _zero_bubble(rank: int, ranks: int, microbatches: int, chunks: int) -> Iterator[Step]:
    written = 0
    for kind, stage, microbatch in _one_forward_one_backward(rank, ranks, microbatches, chunks):
        yield kind, stage, microbatch
        if kind == BACKWARD and microbatch >= rank:  # `rank` weight gradients wait, to fill the rank's last gaps
            yield BACKWARD_WEIGHT, stage, written
            written += 1
    yield from ((BACKWARD_WEIGHT, rank, microbatch) for microbatch in range(written, microbatches))


SCHEDULES: dict[str, Callable[[int, int, int, int], Iterator[Step]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero_bubble": _zero_bubble,
}
