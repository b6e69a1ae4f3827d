"""The loop of a server: who joins, what each gets in a step, how long that takes, when each token
came.

Lesson 23.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import pairwise
from typing import NamedTuple

from helpers.checks import function, members, number, one_of, real, whole_number
from helpers.results import Record
from helpers.studies.serving import _scheduling as scheduling
from helpers.studies.serving._requests import Request
from helpers.studies.serving._server import Admit, CacheMemory, Grow, Job, Plan, Release, Server
from helpers.studies.serving._steps import GpuStep, LineStep, Step


class Served(Record):
    """The outcome of a request: its stays in slots, and the times of its answer's tokens.

    ``stays`` has the slot, begin and end of each; there are two or more if the server had to stop
    it in between. Without any it was refused, and its times are infinite. Lesson 23.
    """

    request: Request
    stays: tuple[tuple[int, float, float], ...]
    token_s: tuple[float, ...] = field(repr=False)

    @property
    def ttft_s(self) -> float:
        """Time to first token: seconds from its arrival on."""
        return self.token_s[0] - self.request.arrival_s if self.token_s else math.inf

    @property
    def tpot_s(self) -> float:
        """Time per output token: mean seconds from one token to the next, 0 for an answer of one
        token.
        """
        if not self.token_s:
            return math.inf
        return (self.token_s[-1] - self.token_s[0]) / max(1, len(self.token_s) - 1)

    @property
    def longest_gap_s(self) -> float:
        """Longest time between two tokens that follow each other, 0 for fewer than two."""
        return max(map(operator.sub, self.token_s[1:], self.token_s), default=0.0)


class StepTaken(NamedTuple):
    """One step of the server: when it began and ended, its tokens, and its requests."""

    start_s: float
    end_s: float
    tokens: int
    requests: int


class Stretch(Record):
    """Steps that follow one another with the same requests, each with as many tokens."""

    start_s: float
    ends_s: tuple[float, ...]
    tokens: int
    requests: int


class ServingReport(Record):
    """The report of a server on its requests, in seconds of its own clock.

    Tokens per second count from the first arrival to the last token, and ``mean_running`` is how
    many requests were in slots on average over the same time. First tokens, times per token and
    gaps are those of the requests that were served. ``refused`` requests found no slot in time, and
    how often one lost its pages is ``stopped``. ``requests`` are in the order in which they were
    given; they and the steps are not printed. Lesson 23.
    """

    tokens_per_s: float
    median_ttft_s: float
    ttft_of_99_in_100_s: float
    median_tpot_s: float
    longest_gap_s: float
    mean_running: float
    refused: int
    stopped: int
    requests: tuple[Served, ...] = field(repr=False)
    stretches: tuple[Stretch, ...] = field(repr=False)

    @property
    def steps(self) -> list[StepTaken]:
        """All steps, in the order of time."""
        return [
            StepTaken(start_s, end_s, stretch.tokens, stretch.requests)
            for stretch in self.stretches
            for start_s, end_s in pairwise((stretch.start_s, *stretch.ends_s))
        ]

    @property
    def ttfts_s(self) -> list[float]:
        """Time to first token of each request, infinite for one that was refused."""
        return [served.ttft_s for served in self.requests]

    @property
    def tpots_s(self) -> list[float]:
        """Time per output token of each request, infinite for one that was refused."""
        return [served.tpot_s for served in self.requests]


def serve(
    requests: Sequence[Request],
    step: Step,
    *,
    slots: int,
    admit: Admit = scheduling.admit,
    plan: Plan = scheduling.read_alone,
    memory: CacheMemory | None = None,
    grow: Grow = scheduling.grow,
    release: Release = scheduling.release,
    common: int = 0,
    patience_s: float = math.inf,
) -> ServingReport:
    """Serve ``requests`` with at most ``slots`` at once, and report when every token came.

    ``step`` takes a :class:`Batch`, what a step does for each request, and returns its seconds: a
    real one (:class:`DecoderStep`) computes as well, a modelled one only says them. The clock is
    the sum of the steps; when nobody is there, it jumps to the next arrival.

    Before a step ``admit(slots, waiting)`` returns who is in which slot, and ``plan(unread)`` how
    many tokens each running request gets, in the order in which they were admitted; :func:`admit`
    and :func:`read_alone` say what they are given. A budget of 512 tokens is
    ``plan=lambda unread: serving.plan(unread, 512)``, static batching
    ``admit=serving.admit_static, plan=serving.read_together``. A request gets a token as soon as
    its whole text has been through a step. Modelled steps in which nobody reads, comes or leaves
    are taken at once, and neither is asked between them.

    With ``memory`` each request has a table of pages: those of its text when it is admitted, and
    another one whenever the last is full. ``grow(table, free, tokens, page_tokens)`` and
    ``release(table, free)`` move them. When no page is free, the request that was admitted last is
    stopped: it waits in front of all others, and its text is read again (vLLM's preemption by
    recomputation). Without ``memory`` there is room for all.

    The first ``common`` tokens of all prompts are the same. What the first request that has read
    them leaves in the cache is kept, whole pages of it, and used by all that are admitted later.
    Who has waited in vain for longer than ``patience_s`` is refused.

    Raises TypeError or ValueError for arguments that are not accepted, for a request that does not
    fit into the memory, and for what ``admit``, ``plan``, ``grow``, ``release`` or ``step`` return
    or do if a server cannot go on with it. Lesson 23.

    >>> from helpers.studies.serving import LineStep
    >>> report = serve([Request(0.0, 4, 3)], LineStep(0.01, 0.001, 0.0), slots=1)
    >>> [round(seconds, 3) for seconds in report.requests[0].token_s]
    [0.014, 0.025, 0.036]
    """
    request_list = members("requests", requests, "Requests", kind=Request)
    if not request_list:
        raise ValueError("requests is empty; give at least one Request")
    function(
        "step",
        step,
        "a function of a Batch, such as gpu_step and fit_step return, or a DecoderStep",
    )
    for name, rule in {"admit": admit, "plan": plan, "grow": grow, "release": release}.items():
        function(name, rule, f"a function, such as serving.{name}")
    if memory is not None:
        one_of(
            "memory",
            memory,
            CacheMemory,
            "room for the caches, such as CacheMemory(pages=256, page_tokens=16)",
        )
    if not real("patience_s", patience_s) > 0:
        raise ValueError(f"patience_s={patience_s}; give seconds above 0")
    slots = whole_number("slots", slots, at_most=10**6)
    common = whole_number("common", common, at_least=0)
    server, stretches = Server(request_list, slots, memory, common), []
    modelled = step if isinstance(step, LineStep | GpuStep) else None
    while server.coming or server.waiting or server.running:
        server.receive(patience_s)
        server.fill(admit, grow)
        if not server.running:
            continue
        start_s, batch = server.now_s, server.next_batch(plan, grow, release)
        if not batch.requests:  # the only one that runs found no page, and has been stopped
            continue
        count = server.writing_steps(batch) if modelled else 1
        if modelled and count > 1:
            ends_s = server.write(modelled.writing(batch, count), release)
        else:
            seconds = number("the seconds of a step", step(batch), at_least=0)
            ends_s = [server.advance(batch, seconds, release)]
        stretches.append(Stretch(start_s, tuple(ends_s), sum(batch.tokens), len(batch.requests)))
    return _report(server.jobs, stretches)


def _report(jobs: Sequence[Job], stretches: Sequence[Stretch]) -> ServingReport:
    outcomes = tuple(Served(job.request, tuple(job.stays), tuple(job.token_s)) for job in jobs)
    answered = [outcome for outcome in outcomes if outcome.token_s]
    seconds = (
        stretches[-1].ends_s[-1] - min(outcome.request.arrival_s for outcome in outcomes)
        or math.inf
    )
    ttfts_s = sorted(outcome.ttft_s for outcome in answered)
    tpots_s = [outcome.tpot_s for outcome in answered]
    return ServingReport(
        tokens_per_s=sum(len(outcome.token_s) for outcome in answered) / seconds,
        median_ttft_s=statistics.median(ttfts_s),
        ttft_of_99_in_100_s=ttfts_s[math.ceil(0.99 * len(ttfts_s)) - 1],
        median_tpot_s=statistics.median(tpots_s),
        longest_gap_s=max(outcome.longest_gap_s for outcome in answered),
        mean_running=sum(
            end_s - begin_s for outcome in outcomes for _, begin_s, end_s in outcome.stays
        )
        / seconds,
        refused=len(outcomes) - len(answered),
        stopped=sum(len(outcome.stays) - 1 for outcome in answered),
        requests=outcomes,
        stretches=tuple(stretches),
    )


def promised_rate(
    serve_at: Callable[[float], ServingReport],
    *,
    ttft_s: float,
    tpot_s: float,
    kept_share: float = 0.99,
    between: tuple[float, float] = (0.01, 100.0),
    within: float = 0.01,
) -> float:
    """Return the largest rate, in requests per second, at which ``kept_share`` of the requests keep
    both limits.

    The limits are ``ttft_s`` to the first token and ``tpot_s`` per output token. ``serve_at(rate)``
    serves requests that arrive at a rate, and :func:`good_share` of its report is held to
    ``kept_share``. The search goes on ``between`` two rates until it knows the rate to ``within``
    this share. Give requests of one seed at all rates, so that only their pace changes. Raises
    ValueError if the lower rate cannot be promised, or the upper one can. Lesson 23.
    """
    function("serve_at", serve_at, "a function of a rate that returns a ServingReport")
    low, high = (number("between", rate, above=0) for rate in between)

    def is_good(rate: float) -> bool:
        report = serve_at(rate)
        good_share = scheduling.good_share(
            report.ttfts_s, report.tpots_s, ttft_limit_s=ttft_s, tpot_limit_s=tpot_s
        )
        return good_share >= kept_share

    if not is_good(low) or is_good(high):
        raise ValueError(
            f"the rate is not between {low:g} and {high:g} requests per second; give other bounds"
        )
    while high > (1 + number("within", within, above=0)) * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_good(middle) else (low, middle)
    return low
