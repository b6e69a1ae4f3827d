"""The state of a server: who waits, who runs in which slot, and whose tokens are in which pages.

Lesson 23.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np

from helpers.checks import short
from helpers.results import Record
from helpers.studies.serving._requests import Request
from helpers.studies.serving._steps import Batch

Admit = Callable[[Sequence[int | None], Sequence[int]], Sequence[int | None]]
Plan = Callable[[Sequence[int]], Sequence[int]]
Grow = Callable[[list[int], list[int], int, int], bool]
Release = Callable[[list[int], list[int]], None]


class CacheMemory(Record):
    """Room for keys and values: ``pages`` pages of ``page_tokens`` tokens each.

    A server that reserves the longest context for each request has one page of that length a slot.
    Lesson 23.

    >>> CacheMemory(pages=30_517, page_tokens=16).tokens
    488272
    """

    pages: int
    page_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens for which there is room."""
        return self.pages * self.page_tokens


class Job:
    """A request on its way through the server: the tokens in its cache, its pages, and its
    answer.
    """

    def __init__(self, number: int, request: Request) -> None:
        self.number, self.request = number, request
        self.slot, self.since_s = -1, 0.0
        self.text = request.prompt_tokens  # tokens of its prompt and of its answer so far
        self.cached = 0  # tokens of its text whose keys and values are in the cache
        # tokens to read before it writes; 0 where only the last one that it wrote is left
        self.unread = self.text
        self.shared: tuple[int, ...] = ()  # pages of the common beginning, which it does not own
        self.table: list[int] = []  # its own pages
        self.pages: tuple[int, ...] = ()  # all of them, in the order of its tokens
        self.room: float = 0  # tokens for which these have places; where nobody counts, infinite
        self.token_s: list[float] = []
        self.stays: list[tuple[int, float, float]] = []


class Server:
    """Slots, memory and clock of a server between two steps."""

    def __init__(
        self, requests: Sequence[Request], slots: int, memory: CacheMemory | None, common: int
    ) -> None:
        self.jobs = [Job(number, request) for number, request in enumerate(requests)]
        self.coming = deque(sorted(self.jobs, key=lambda job: job.request.arrival_s))
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []  # in the order in which they were admitted
        self.slots: list[int | None] = [None] * slots
        self.memory, self.now_s = memory, 0.0
        self.free = list(range(memory.pages))[::-1] if memory else []
        self.page_tokens = memory.page_tokens if memory else 1
        self.common_tokens = common // self.page_tokens * self.page_tokens
        self.common_pages: tuple[int, ...] | None = None  # none before somebody has read them
        self._refuse_what_cannot_fit(common)

    def _refuse_what_cannot_fit(self, common: int) -> None:
        shortest = min(job.request.prompt_tokens for job in self.jobs)
        if common >= shortest:
            raise ValueError(
                f"common={common}, and a prompt has {shortest} tokens; give at most "
                f"{shortest - 1}, since a prompt's last token is read for the first token of the "
                "answer"
            )
        longest = max(job.request.prompt_tokens + job.request.answer_tokens for job in self.jobs)
        if self.memory and longest > self.memory.tokens:
            raise ValueError(
                f"a request has {longest} tokens, and the memory room for {self.memory.tokens}; "
                "give CacheMemory more pages"
            )

    def receive(self, patience_s: float) -> None:
        """Let those in who have arrived, and drop those who have waited for longer than
        ``patience_s`` for a slot.

        If nobody is there, the clock moves to the next arrival.
        """
        if not self.running and not self.waiting:
            self.now_s = max(self.now_s, self.coming[0].request.arrival_s)
        while self.coming and self.coming[0].request.arrival_s <= self.now_s:
            self.waiting.append(self.coming.popleft())
        if patience_s < math.inf:
            patient = (
                job
                for job in self.waiting
                if job.stays or self.now_s - job.request.arrival_s <= patience_s
            )
            self.waiting = deque(patient)

    def fill(self, admit: Admit, grow: Grow) -> None:
        """Let ``admit`` put waiting requests into free slots, as many as the memory can take with
        their text.
        """
        if not self.waiting or len(self.running) == len(self.slots):
            return
        fitting = {
            job.number: job for job in self._select_fitting(islice(self.waiting, len(self.slots)))
        }
        if not fitting:
            return
        slots, before = list(admit(list(self.slots), list(fitting))), self.slots
        joined = [number for number, old in zip(slots, before, strict=False) if number != old]
        keeps_running = len(slots) == len(before) and all(
            old in (None, number) for number, old in zip(slots, before, strict=False)
        )
        if not keeps_running or len({*joined}) < len(joined) or not fitting.keys() >= {*joined}:
            raise ValueError(
                f"admit({short(before)}, {short(list(fitting))}) gave {short(slots)}; give as many "
                "slots, each with the request that is in it, a waiting one, each once, or None"
            )
        if not joined and not self.running:
            raise ValueError(
                f"admit lets nobody in, although all {len(slots)} slots are free and requests "
                f"{short(list(fitting))} wait"
            )
        self.slots = slots
        for number, job in fitting.items():
            if number in joined:
                self._begin(job, slots.index(number), grow)

    def _select_fitting(self, candidates: Iterable[Job]) -> list[Job]:
        fitting, room = [], len(self.free) if self.memory else math.inf
        for job in candidates:
            room -= -(-(job.text - self._cached_tokens()) // self.page_tokens)
            if room < 0:
                break
            fitting.append(job)
        return fitting

    def _cached_tokens(self) -> int:
        """Return the tokens that a request finds in the cache when it is admitted."""
        return self.common_tokens if self.common_pages is not None else 0

    def _begin(self, job: Job, slot: int, grow: Grow) -> None:
        self.waiting.remove(job)
        self.running.append(job)
        job.slot, job.since_s = slot, self.now_s
        job.cached, job.shared = self._cached_tokens(), self.common_pages or ()
        job.unread = job.text - job.cached
        if self.memory is None:
            job.room = math.inf
        else:
            self._grow(job, job.text, grow)

    def _grow(self, job: Job, tokens: int, grow: Grow) -> bool:
        """Return whether the pages of ``job`` hold the first ``tokens`` of its text now."""
        page, before = self.page_tokens, len(self.free) + len(job.table)
        own_tokens = tokens - len(job.shared) * page
        grown = grow(job.table, self.free, own_tokens, page)
        enough = len(job.table) * page >= own_tokens
        if len(self.free) + len(job.table) != before or bool(grown) != enough:
            raise ValueError(
                f"grow gave {grown!r:.40} and left {len(job.table)} pages of {page} tokens for "
                f"{own_tokens} tokens and {len(self.free)} free ones of {before} in all; it moves "
                "pages from free to table, and says whether they hold the tokens"
            )
        job.pages = (*job.shared, *job.table)
        job.room = len(job.pages) * page
        return enough

    def next_batch(self, plan: Plan, grow: Grow, release: Release) -> Batch:
        """Return the batch that ``plan`` chooses for the next step, with a page for each token; who
        finds none is stopped.
        """
        unread = [job.unread for job in self.running]
        tokens = list(plan(unread))
        most = [count or 1 for count in unread]
        if len(tokens) != len(most) or any(
            not 0 <= n <= limit for n, limit in zip(tokens, most, strict=True)
        ):
            raise ValueError(
                f"plan({short(unread)}) gave {short(tokens)}; give a number for each request, from "
                "0 to what it has not read, or to 1 for one that writes"
            )
        chosen = [(job, n) for job, n in zip(self.running, tokens, strict=True) if n]
        if not chosen:
            raise ValueError(
                f"plan({short(unread)}) gave nobody a token, so the server would stand still for "
                "ever; a budget must be larger than the number of requests that write"
            )
        chosen = self._reserve_pages(chosen, grow, release)
        return Batch(
            [job.number for job, _ in chosen],
            [job.cached for job, _ in chosen],
            [n for _, n in chosen],
            [job.pages for job, _ in chosen],
        )

    def _reserve_pages(
        self, chosen: list[tuple[Job, int]], grow: Grow, release: Release
    ) -> list[tuple[Job, int]]:
        """Return those of ``chosen`` for whose tokens there are pages; the last admitted are
        stopped for the others.
        """
        stopped: set[Job] = set()
        for job, n in chosen:
            while (
                job.cached + n > job.room
                and job not in stopped
                and not self._grow(job, job.cached + n, grow)
            ):
                stopped.add(self.running[-1])
                self._stop(self.running[-1], release)
        return [(job, n) for job, n in chosen if job not in stopped] if stopped else chosen

    def writing_steps(self, batch: Batch) -> int:
        """Return for how many steps all requests write, and nobody ends or needs a page before the
        last one.

        It is 1 if somebody reads. Arrivals are not looked at.
        """
        jobs = self.running
        if len(batch.requests) < len(jobs) or any(job.unread for job in jobs):
            return 1
        steps = min(job.request.answer_tokens - len(job.token_s) for job in jobs)
        return int(min(steps, *(job.room - job.cached for job in jobs)))

    def write(self, seconds: np.ndarray, release: Release) -> list[float]:
        """Move the clock by steps in which all running requests write, up to an arrival for whom a
        slot is free.

        Return when each of these steps ended.
        """
        ends_s = np.cumsum([self.now_s, *seconds])[1:].tolist()
        if self.coming and len(self.running) < len(self.slots):
            del ends_s[bisect.bisect_left(ends_s, self.coming[0].request.arrival_s) + 1 :]
        self.now_s = ends_s[-1]
        for job in list(self.running):
            job.cached += len(ends_s)
            self._note_tokens(job, ends_s, release)
        return ends_s

    def advance(self, batch: Batch, seconds: float, release: Release) -> float:
        """Move the clock by the step, and give a token to each request whose whole text has been
        through it.

        Return when the step ended.
        """
        self.now_s += seconds
        for number, tokens in zip(batch.requests, batch.tokens, strict=True):
            job = self.jobs[number]
            job.cached += tokens
            if self.common_pages is None and job.cached >= self.common_tokens > 0:
                self._keep_common(job)
            job.unread = job.text - job.cached
            if not job.unread:
                self._note_tokens(job, [self.now_s], release)
        return self.now_s

    def _note_tokens(self, job: Job, ends_s: list[float], release: Release) -> None:
        """Give ``job`` a token at the end of each step; it leaves with its last one."""
        job.text += len(ends_s)
        job.token_s += ends_s
        if len(job.token_s) == job.request.answer_tokens:
            self._leave(job, release)

    def _keep_common(self, job: Job) -> None:
        """Keep the beginning that all prompts have in common, which ``job`` has in its pages."""
        count = self.common_tokens // self.page_tokens
        self.common_pages = job.shared = tuple(job.table[:count])
        del job.table[:count]

    def _stop(self, job: Job, release: Release) -> None:
        self._leave(job, release)
        job.cached = 0
        self.waiting.appendleft(job)

    def _leave(self, job: Job, release: Release) -> None:
        job.stays.append((job.slot, job.since_s, self.now_s))
        self.running.remove(job)
        self.slots[job.slot] = None
        if self.memory is not None:
            pages = len(self.free) + len(job.table)
            release(job.table, self.free)
            if job.table or len(self.free) != pages:
                raise ValueError(
                    f"release left {len(job.table)} pages in the table and {len(self.free)} free "
                    f"ones; it moves all pages of the table to free, which are {pages} then"
                )
            job.pages, job.room = (), 0
