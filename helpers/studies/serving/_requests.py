"""Requests that arrive at random, and prompts for them. Lesson 23."""

from __future__ import annotations

import random

from helpers.checks import members, number, random_seed, whole_number
from helpers.results import Record

_MOST_REQUESTS = 10**6


class Request(Record):
    """A request with its arrival, the tokens of its prompt, and those of its answer.

    A scheduler needs no more than these numbers; the prompt itself is the step's
    (:class:`DecoderStep`). A server does not know ``answer_tokens`` before it has written them, and
    no scheduler here looks at them. Lesson 23.

    >>> Request(arrival_s=0.5, prompt_tokens=2000, answer_tokens=250)
    Request(arrival_s=0.5, prompt_tokens=2000, answer_tokens=250)
    """

    arrival_s: float
    prompt_tokens: int
    answer_tokens: int


def random_requests(
    count: int,
    rate_per_s: float,
    *,
    seed: int = 0,
    prompt: tuple[int, int] = (1600, 2400),
    answer: float = 250,
    longest: int | None = None,
) -> tuple[Request, ...]:
    """Return ``count`` requests in the order of their arrival, the same ones for the same ``seed``.

    They come independently of one another, ``rate_per_s`` in a second on average: a Poisson
    process, whose gaps are distributed exponentially. A prompt has any number of tokens within
    ``prompt``, its least and its most, with equal chance. Answers are distributed exponentially
    with the mean ``answer``, rounded up, at most ``longest`` tokens. For one seed the lengths are
    the same at every rate. Raises TypeError or ValueError for what is no such number. Lesson 23.

    >>> [request.prompt_tokens for request in random_requests(3, 4.0, prompt=(8, 8))]
    [8, 8, 8]
    """
    count, rate = (
        whole_number("count", count, at_most=_MOST_REQUESTS),
        number("rate_per_s", rate_per_s, above=0),
    )
    answer = number("answer", answer, above=0)
    least, most = _range("prompt", prompt)
    longest = None if longest is None else whole_number("longest", longest)
    generator = random.Random(random_seed(seed))
    now, requests = 0.0, []
    for _ in range(count):
        now += generator.expovariate(1.0) / rate
        tokens = generator.randint(least, most)
        written = 1 + int(answer * generator.expovariate(1.0))
        requests.append(Request(now, tokens, written if longest is None else min(longest, written)))
    return tuple(requests)


def random_prompts(
    requests: tuple[Request, ...], vocabulary: int, *, common: int = 0, seed: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Return a prompt for each of ``requests``: as many tokens as it says, each below
    ``vocabulary``.

    The first ``common`` tokens are the same in all of them, as the instructions of a chat service
    are. ``seed`` decides the tokens. Raises ValueError where a prompt is shorter than ``common``.
    Lesson 23.
    """
    requests = tuple(members("requests", requests, "Requests", kind=Request))
    vocabulary, common = (
        whole_number("vocabulary", vocabulary),
        whole_number("common", common, at_least=0),
    )
    shortest = min((request.prompt_tokens for request in requests), default=common)
    if shortest < common:
        raise ValueError(
            f"common={common} and a prompt of {shortest} tokens; give at most {shortest}"
        )
    generator, tokens = random.Random(random_seed(seed)), range(vocabulary)
    beginning = generator.choices(tokens, k=common)
    return tuple(
        (*beginning, *generator.choices(tokens, k=request.prompt_tokens - common))
        for request in requests
    )


def _range(name: str, bounds: tuple[int, int]) -> tuple[int, int]:
    ends = [
        whole_number(f"{name}[{index}]", end)
        for index, end in enumerate(members(name, bounds, "two numbers"))
    ]
    if len(ends) != 2 or ends[0] > ends[1]:
        raise ValueError(
            f"{name}={bounds!r:.60}; give the least and the most tokens, such as (1600, 2400)"
        )
    return ends[0], ends[1]
