"""The state of a server: who waits, who runs in which slot, and whose tokens are in which pages. Lesson 23."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile

from helpers.checks import short
from helpers.results import Record
from helpers.studies.serving._requests import Request
from helpers.studies.serving._steps import Piece

Admit = Callable[[Sequence[int | None], Sequence[int]], Sequence[int | None]]
Plan = Callable[[Sequence[int]], Sequence[int]]
Grow = Callable[[list[int], list[int], int, int], bool]
Release = Callable[[list[int], list[int]], None]


class CacheMemory(Record):
    """Room for keys and values: ``pages`` pages of ``page_tokens`` tokens each.

    A server that reserves the longest context for each request has one page of that length a slot. Lesson 23.

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
    """A request on its way through the server: the tokens that are in its cache, its pages, and what came out."""

    def __init__(self, number: int, request: Request) -> None:
        self.number, self.request = number, request
        self.slot, self.since_s = -1, 0.0
        self.cached = 0  # tokens of its text whose keys and values are in the cache
        self.shared: tuple[int, ...] = ()  # pages of the common beginning, which it does not own
        self.table: list[int] = []
        self.token_s: list[float] = []
        self.stays: list[tuple[int, float, float]] = []

    @property
    def text(self) -> int:
        """Tokens of its prompt and of its answer so far."""
        return self.request.prompt_tokens + len(self.token_s)

    @property
    def unread(self) -> int:
        """Tokens of its text that a step has to read before it can write; 0 where only the last one is left."""
        left = self.text - self.cached
        return 0 if self.token_s and left == 1 else left

    @property
    def done(self) -> bool:
        return len(self.token_s) == self.request.answer_tokens


class Server:
    """Slots, memory and clock of a server between two steps."""

    def __init__(self, requests: Sequence[Request], slots: int, memory: CacheMemory | None, common: int) -> None:
        self.jobs = [Job(number, request) for number, request in enumerate(requests)]
        self.waiting = deque(sorted(self.jobs, key=lambda job: job.request.arrival_s))
        self.running: list[Job] = []  # in the order in which they were admitted
        self.slots: list[int | None] = [None] * slots
        self.memory, self.now_s = memory, 0.0
        self.free = list(range(memory.pages))[::-1] if memory else []
        self.kept = common if memory is None else common // memory.page_tokens * memory.page_tokens
        self.common_pages: tuple[int, ...] | None = None  # none before somebody has read them
        self._refuse_what_cannot_fit(common)

    def _refuse_what_cannot_fit(self, common: int) -> None:
        shortest = min(job.request.prompt_tokens for job in self.jobs)
        if common >= shortest:
            raise ValueError(f"common={common}, and a prompt has {shortest} tokens; give at most {shortest - 1}, since "
                             "a prompt's last token is read for the first token of the answer")  # fmt: skip
        longest = max(job.request.prompt_tokens + job.request.answer_tokens for job in self.jobs)
        if self.memory and longest > self.memory.tokens:
            raise ValueError(f"a request has {longest} tokens, and the memory room for {self.memory.tokens}; give "
                             "CacheMemory more pages")  # fmt: skip

    def skip_idle_time(self) -> None:
        """Move the clock to the next arrival if nobody is there."""
        if not self.running:
            self.now_s = max(self.now_s, self.waiting[0].request.arrival_s)

    def refuse(self, patience_s: float) -> None:
        """Drop those who have never been admitted and have waited for longer than ``patience_s``."""
        while self.waiting and not self.waiting[0].stays and self.now_s - self._arrival(self.waiting[0]) > patience_s:
            self.waiting.popleft()

    def fill(self, admit: Admit, grow: Grow) -> None:
        """Let ``admit`` put waiting requests into free slots, as many as the memory can take with their text."""
        if len(self.running) == len(self.slots):
            return
        here = takewhile(lambda job: self._arrival(job) <= self.now_s, self.waiting)
        fitting = {job.number: job for job in self._fitting(islice(here, len(self.slots)))}
        if not fitting:
            return
        slots = list(admit(list(self.slots), list(fitting)))
        joined = [number for number, before in zip(slots, self.slots, strict=False) if number != before]
        if len(slots) != len(self.slots) or len({*joined}) < len(joined) or not fitting.keys() >= {*joined} or any(
            before not in (None, number) for number, before in zip(slots, self.slots, strict=True)
        ):  # fmt: skip
            raise ValueError(f"admit({short(self.slots)}, {short(list(fitting))}) gave {short(slots)}; give as many "
                             "slots, each with the request that is in it, or a waiting one, each once, or None")  # fmt: skip
        if not joined and not self.running:
            raise ValueError(f"admit lets nobody in, although all {len(slots)} slots are free and {short(list(fitting))} "
                             "wait")  # fmt: skip
        self.slots = slots
        for number in sorted(joined, key=list(fitting).index):
            self._begin(fitting[number], slots.index(number), grow)

    def _fitting(self, candidates: Sequence[Job] | islice[Job]) -> list[Job]:
        if self.memory is None:
            return list(candidates)
        found, room = [], len(self.free)
        for job in candidates:
            room -= -(-(job.text - self._known()) // self.memory.page_tokens)
            if room < 0:
                break
            found.append(job)
        return found

    def _known(self) -> int:
        """Return the tokens that a request finds in the cache when it is admitted."""
        return self.kept if self.common_pages is not None else 0

    def _begin(self, job: Job, slot: int, grow: Grow) -> None:
        self.waiting.remove(job)
        self.running.append(job)
        job.slot, job.since_s, job.cached, job.shared = slot, self.now_s, self._known(), self.common_pages or ()
        self._grow(job, job.text, grow)

    def _grow(self, job: Job, tokens: int, grow: Grow) -> bool:
        """Return whether the pages of ``job`` hold the first ``tokens`` of its text now."""
        if self.memory is None:
            return True
        page, before = self.memory.page_tokens, len(self.free) + len(job.table)
        own = tokens - len(job.shared) * page
        grown = grow(job.table, self.free, own, page)
        enough = len(job.table) >= -(-own // page)
        if len(self.free) + len(job.table) != before or bool(grown) != enough:
            raise ValueError(f"grow gave {grown!r:.40} and left {len(job.table)} pages of {page} tokens for {own} tokens "
                             f"and {len(self.free)} free ones of {before} in all; it moves pages from free to table, and "
                             "says whether they hold the tokens")  # fmt: skip
        return enough

    def pieces(self, plan: Plan, grow: Grow, release: Release) -> list[Piece]:
        """Return what ``plan`` chooses for the next step, with a page for each token; who finds none is stopped."""
        unread = [job.unread for job in self.running]
        tokens = list(plan(unread))
        most = [left or 1 for left in unread]
        if len(tokens) != len(most) or any(not 0 <= n <= left for n, left in zip(tokens, most, strict=False)):
            raise ValueError(f"plan({short(unread)}) gave {short(tokens)}; give a number for each request, from 0 to "
                             "what it has not read, or to 1 for one that writes")  # fmt: skip
        chosen = [(job, n) for job, n in zip(self.running, tokens, strict=True) if n]
        if not chosen:
            raise ValueError(f"plan({short(unread)}) gave nobody a token, so the server would stand still for ever; a "
                             "budget must be larger than the requests that write")  # fmt: skip
        for job, n in chosen:
            while job in self.running and not self._grow(job, job.cached + n, grow):
                self._stop(self.running[-1], release)
        return [Piece(job.number, job.cached, n, (*job.shared, *job.table)) for job, n in chosen if job in self.running]

    def _stop(self, job: Job, release: Release) -> None:
        self._leave(job, release)
        job.cached = 0
        self.waiting.appendleft(job)

    def _leave(self, job: Job, release: Release) -> None:
        job.stays.append((job.slot, job.since_s, self.now_s))
        self.running.remove(job)
        self.slots[job.slot] = None
        if self.memory is not None:
            pages = sorted([*self.free, *job.table])
            release(job.table, self.free)
            if job.table or sorted(self.free) != pages:
                raise ValueError(f"release left {len(job.table)} pages in the table and {len(self.free)} free ones; it "
                                 f"moves all pages of the table to free, which are {len(pages)} then")  # fmt: skip

    def advance(self, pieces: Sequence[Piece], seconds: float, release: Release) -> None:
        """Move the clock by the step, and give a token to each request whose whole text has been through it."""
        self.now_s += seconds
        for number, start, tokens, _ in pieces:
            job = self.jobs[number]
            job.cached = start + tokens
            if self.kept and self.common_pages is None and job.cached >= self.kept:
                self._keep_common(job)
            if job.cached == job.text:
                job.token_s.append(self.now_s)
            if job.done:
                self._leave(job, release)

    def _keep_common(self, job: Job) -> None:
        count = self.kept // self.memory.page_tokens if self.memory else 0
        self.common_pages = job.shared = tuple(job.table[:count])
        del job.table[:count]

    @staticmethod
    def _arrival(job: Job) -> float:
        return job.request.arrival_s
