"""The decisions of a scheduler: who joins, how many tokens each gets in a step, whose pages grow,
who was served in time.

These are the functions that a reader of lesson 23 writes, and the rules to which they are compared.
Lesson 23.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.checks import members, number


def admit(slots: Sequence[int | None], waiting: Sequence[int]) -> list[int | None]:
    """Return the slots after the requests ``waiting`` have taken the free ones, first come first
    served.

    ``slots`` has the number of the request in each slot, and None where a slot is free; ``waiting``
    the numbers of those who wait, in their order. It is called after every step: continuous
    batching (Yu and others, Orca, OSDI 2022). Lesson 23.

    >>> admit([None, 7, None], [8, 9, 10])
    [8, 7, 9]
    """
    following = iter(waiting)
    return [next(following, None) if request is None else request for request in slots]


def admit_static(slots: Sequence[int | None], waiting: Sequence[int]) -> list[int | None]:
    """Return the slots as :func:`admit` does if all are free, and else as they are: static
    batching.

    Lesson 23.

    >>> admit_static([None, 7, None], [8, 9])
    [None, 7, None]
    """
    return admit(slots, waiting) if all(request is None for request in slots) else list(slots)


def read_alone(unread: Sequence[int]) -> list[int]:
    """Return the tokens that each running request gets in the next step, where a prompt is read
    whole and alone.

    ``unread`` has for each of them the tokens of its prompt that are not read yet, and 0 for one
    that writes. The first that has some reads all of them, and nobody else gets a token; where
    there is none, each writes one. Lesson 23.

    >>> read_alone([0, 30, 20]), read_alone([0, 0, 0])
    ([0, 30, 0], [1, 1, 1])
    """
    reader = next((index for index, count in enumerate(unread) if count), None)
    if reader is None:
        return [1] * len(unread)
    return [count if index == reader else 0 for index, count in enumerate(unread)]


def read_together(unread: Sequence[int]) -> list[int]:
    """Return the tokens as :func:`read_alone` does, except that all prompts are read in one step.

    So does a server with static batches. Lesson 23.

    >>> read_together([0, 30, 20]), read_together([0, 0, 0])
    ([0, 30, 20], [1, 1, 1])
    """
    return list(unread) if any(unread) else [1] * len(unread)


def plan(unread: Sequence[int], budget: int) -> list[int]:
    """Return the tokens that each running request gets in a step of at most ``budget`` tokens:
    chunked prefill.

    ``unread`` is as in :func:`read_alone`. Everyone who writes gets one token, and the rest of the
    budget is for the prompts, in their order (Agrawal and others, Sarathi-Serve, OSDI 2024). Lesson
    23.

    >>> plan([0, 300, 0, 400], budget=512)
    [1, 300, 1, 210]
    """
    tokens = [0 if count else 1 for count in unread]
    room = budget - sum(tokens)
    for index, count in enumerate(unread):
        if count:
            tokens[index] = max(0, min(count, room))
            room -= tokens[index]
    return tokens


def grow(table: list[int], free: list[int], tokens: int, page_tokens: int) -> bool:
    """Move as many pages from ``free`` to the end of ``table`` as ``tokens`` tokens need; return
    whether there were.

    ``table`` has the numbers of a request's pages of ``page_tokens`` tokens, in the order of its
    tokens. If there are too few in ``free``, nothing moves (Kwon and others, PagedAttention, SOSP
    2023). Lesson 23.

    >>> table, free = [4], [1, 2, 3]
    >>> grow(table, free, 33, page_tokens=16), table, free
    (True, [4, 3, 2], [1])
    """
    missing = -(-tokens // page_tokens) - len(table)
    if missing > len(free):
        return False
    for _ in range(missing):
        table.append(free.pop())
    return True


def release(table: list[int], free: list[int]) -> None:
    """Move all pages of ``table`` to ``free``; the table is empty afterwards. Lesson 23.

    >>> table, free = [4, 3], [1]
    >>> release(table, free)
    >>> table, sorted(free)
    ([], [1, 3, 4])
    """
    free.extend(reversed(table))
    table.clear()


def good_share(
    ttft_s: Sequence[float], tpot_s: Sequence[float], ttft_limit_s: float, tpot_limit_s: float
) -> float:
    """Return the share of requests that keep both limits; the goodput is this share of the rate.

    ``ttft_s`` and ``tpot_s`` have the seconds to the first token and per output token of each
    request, infinite for one that was refused; at most ``ttft_limit_s`` and ``tpot_limit_s`` are
    promised. Raises ValueError for no requests and for lists of different lengths. Lesson 23.

    >>> good_share([0.1, 0.4], [0.02, 0.05], ttft_limit_s=0.5, tpot_limit_s=0.03)
    0.5
    """
    ttfts, tpots = members("ttft_s", ttft_s, "seconds"), members("tpot_s", tpot_s, "seconds")
    ttft_limit, tpot_limit = (
        number("ttft_limit_s", ttft_limit_s),
        number("tpot_limit_s", tpot_limit_s),
    )
    if not ttfts or len(ttfts) != len(tpots):
        raise ValueError(
            f"{len(ttfts)} times to the first token and {len(tpots)} per token; give both of each "
            "request"
        )
    is_good = [
        ttft <= ttft_limit and tpot <= tpot_limit for ttft, tpot in zip(ttfts, tpots, strict=True)
    ]
    return sum(is_good) / len(is_good)
