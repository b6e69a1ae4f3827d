"""The time of a step, modelled: a line through measured steps, or a GPU's bytes and arithmetic.

Lesson 23.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from helpers.checks import boolean, number, one_of, whole_number
from helpers.results import Record
from helpers.studies.decoding import Config, count_step


class Batch(NamedTuple):
    """The work of a step, in four lists with a member for each request that has a part in it.

    ``requests`` are their numbers; ``tokens`` how many tokens of its text each sends through the
    model, of which the first stands at place ``starts``; ``tables`` has the pages of each in the
    order of its tokens, none where nobody counts memory. Lesson 23.
    """

    requests: Sequence[int]
    starts: Sequence[int]
    tokens: Sequence[int]
    tables: Sequence[Sequence[int]]


Step = Callable[[Batch], float]


class LineStep(Record):
    """A step as a line: ``fixed_s + token_s * n + request_s * k`` for n tokens of k requests, in
    seconds.

    It is called with the batch of a step, as :func:`serve` does. Lesson 23.

    >>> step = LineStep(fixed_s=3e-3, token_s=0.3e-3, request_s=0.5e-3)
    >>> round(step(Batch(requests=[0, 1], starts=[40, 0], tokens=[1, 9], tables=[[], []])), 6)
    0.007
    """

    fixed_s: float
    token_s: float
    request_s: float

    def __call__(self, batch: Batch) -> float:
        """Return the seconds of a step."""
        return (
            self.fixed_s + self.token_s * sum(batch.tokens) + self.request_s * len(batch.requests)
        )

    def writing(self, batch: Batch, count: int) -> np.ndarray:
        """Return the seconds (count,) of steps that follow one another, in which each request
        writes a token.
        """
        return np.full(count, self(batch))


class GpuStep(Record):
    """A step of a GPU: ``max(weights_s, token_s * n) + cached_s * c`` for n tokens that see c
    tokens of caches.

    ``weights_s`` are the seconds in which all weights are read, ``token_s`` those of the arithmetic
    of a token, and ``cached_s`` those in which keys and values of a token are read. Weights are
    read while others are computed with, so only the larger of the two times counts. Lesson 23.
    """

    weights_s: float
    token_s: float
    cached_s: float

    def __call__(self, batch: Batch) -> float:
        """Return the seconds of a step."""
        tokens = sum(batch.tokens)
        return max(self.weights_s, self.token_s * tokens) + self.cached_s * (
            sum(batch.starts) + tokens
        )

    def writing(self, batch: Batch, count: int) -> np.ndarray:
        """Return the seconds (count,) of steps that follow one another, in which each request
        writes a token.
        """
        tokens = len(batch.requests)
        cached = sum(batch.starts) + tokens * np.arange(1, count + 1)
        return max(self.weights_s, self.token_s * tokens) + self.cached_s * cached

    def request_s(
        self,
        prompt_tokens: int,
        answer_tokens: float,
        *,
        kept: int = 0,
        batch: float = float("inf"),
        spread: bool = False,
    ) -> float:
        """Return the cost of one request to a server that never runs out of them.

        Of ``prompt_tokens`` all are read, but for ``kept`` ones. ``batch`` requests share each step
        that writes, and so the weights; if infinitely many do, the weights are read behind the
        arithmetic. Half of ``answer_tokens`` are in the cache on average, and all of them, a mean
        length, if the lengths are ``spread`` exponentially, since long answers write most tokens.
        Lesson 23.
        """
        boolean("spread", spread)
        reading = self.token_s * (
            whole_number("prompt_tokens", prompt_tokens) - whole_number("kept", kept, at_least=0)
        )
        answer = number("answer_tokens", answer_tokens, above=0)
        seen = prompt_tokens + (answer if spread else answer / 2)
        return reading + answer * (max(self.weights_s / batch, self.token_s) + self.cached_s * seen)


def gpu_step(
    config: Config,
    *,
    bandwidth_bytes_per_s: float,
    flops_per_s: float,
    bits: int = 16,
    cache_number_bytes: int | None = None,
) -> GpuStep:
    """Return the step of a GPU that serves ``config``: the line of lesson 22, with the arithmetic
    of a step's tokens.

    The GPU reads ``bandwidth_bytes_per_s`` and computes ``flops_per_s``; weights have ``bits``, and
    a number of the cache ``cache_number_bytes``, as in :func:`helpers.studies.decoding.count_step`.
    The arithmetic of attention is left out. Raises TypeError or ValueError for other values. Lesson
    23.

    >>> from helpers.studies.decoding import CONFIGS
    >>> h100 = gpu_step(CONFIGS["Llama 3 8B"], bandwidth_bytes_per_s=3.35e12, flops_per_s=400e12)
    >>> round(1e3 * h100.weights_s, 2), round(1e3 * h100.token_s, 4), round(2e6 * h100.cached_s, 3)
    (4.48, 0.0375, 0.078)
    """
    one_of(
        "config", config, Config, "the shapes of a model, such as decoding.CONFIGS['Llama 3 8B']"
    )
    bandwidth = number("bandwidth_bytes_per_s", bandwidth_bytes_per_s, above=0)
    rate = number("flops_per_s", flops_per_s, above=0)
    alone = count_step(config, bits=bits, cache_number_bytes=cache_number_bytes)
    cached = count_step(config, tokens=1, bits=bits, cache_number_bytes=cache_number_bytes)
    return GpuStep(
        alone.weight_bytes / bandwidth, alone.flops / rate, cached.cache_bytes / bandwidth
    )


def fit_step(measured: Sequence[tuple[int, int, float]]) -> LineStep:
    """Return the line t = fixed + token n + request k that is nearest to ``measured`` steps,
    relative to each.

    ``measured`` has the tokens n, the requests k and the seconds of three steps or more; the line
    goes through three. Raises ValueError for fewer, for a time that is not above 0, and for steps
    that leave the line open, such as three with one token for each request. Lesson 23.

    >>> line = fit_step([(1, 1, 0.004), (8, 8, 0.0096), (256, 1, 0.0805)])
    >>> [round(1e3 * seconds, 6) for seconds in (line.fixed_s, line.token_s, line.request_s)]
    [3.2, 0.3, 0.5]
    """
    rows = [
        (whole_number("tokens", n), whole_number("requests", k), number("seconds", s, above=0))
        for n, k, s in measured
    ]
    counts = np.array([[1, n, k] for n, k, _ in rows], dtype=float)
    if len(rows) < 3 or np.linalg.matrix_rank(counts) < 3:
        raise ValueError(
            f"{len(rows)} steps leave the line open; give at least three, such as one request with "
            "one token, eight requests with one token each, and one request with 256"
        )
    seconds = np.array([s for *_, s in rows])
    line = np.linalg.lstsq(counts / seconds[:, None], np.ones(len(rows)), rcond=None)[0]
    return LineStep(*(float(value) for value in line))
