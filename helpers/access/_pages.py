"""What a fresh page costs: a new tensor each call against one that is used again, with the faults counted. Lesson 01.

Memory that the system has just handed out holds no page yet: the first write to each page faults, and the kernel
clears one. Everything runs in processes of its own, so that the notebook's allocator stays as it is.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from helpers.isolation import run_limited
from helpers.results import Record, row_of
from helpers.timing import Comparison, compare, fixed_threads, steady_allocator

_SHORTEST_BYTES, _LONGEST_BYTES = 2**20, 2**29
_COUNTED_CALLS, _WARM_CALLS = 5, 12
_ROOM_BYTES = 512 * 2**20
_LIMIT_S = 60.0
_NEW, _REUSED = "new", "reused"


class PageFaults(Record):
    """The page faults of this process during a call: ``minor`` were answered from memory, ``major`` from the disk.

    Both None where the system tells nothing; on Windows ``minor`` holds all and ``major`` is None. Lesson 01.
    """

    minor: int | None
    major: int | None


class PagesRow(Record):
    """One way to get the memory of a result: the time of a call, the faults in it, and the bytes that each brought.

    ``call_s`` is the minimum, ``time_ratio`` the median ratio to the memory used again in the same process. Lesson 01.
    """

    memory: str
    allocator: str
    call_s: float
    time_ratio: float
    faults_per_call: float | None
    fault_bytes: float | None


class FreshPages(Record):
    """A scaling ``2 x`` into new memory against memory used again; ``fault_s`` is what one fault adds to the time.

    ``pages`` is how many pages the result has: the model of its faults where pages are not grouped. ``huge_pages`` is
    the system's setting for pages of 2 MiB ("unknown" outside Linux): with "always" a fault brings 512 pages.
    ``stable`` and ``reason`` are of the default allocator's comparison. Lesson 01.
    """

    tensor_bytes: int
    page_bytes: int
    pages: int
    huge_pages: str
    fault_s: float | None
    stable: bool
    reason: str
    rows: tuple[PagesRow, ...]

    def row(self, memory: str, allocator: str) -> PagesRow:
        """Return the row of ``memory`` ("new" or "reused") and ``allocator`` ("default" or "keeps memory").

        Raises ValueError for another pair.
        """
        return row_of(self.rows, "row", memory=memory, allocator=allocator)


def count_faults(function: Callable[[], object]) -> PageFaults:
    """Return the page faults of this process, all its threads, while ``function`` runs once.

    From getrusage(2) on Linux and macOS, from psutil on Windows (ModuleNotFoundError without it). Lesson 01.
    """
    before = _faults()
    function()
    after = _faults()
    return PageFaults(*(None if b is None or a is None else a - b for a, b in zip(after, before, strict=True)))


def measure_fresh_pages(*, tensor_bytes: int = 64 * 2**20, budget_s: float = 2.0) -> FreshPages:
    """Return what new memory costs an element-wise operation on a float32 tensor, against memory used again.

    Two processes, one thread each: one with the C library's default allocator, which gives a block above 32 MiB (the
    ceiling of glibc's threshold, mallopt(3)) back at once, and one after :func:`helpers.timing.steady_allocator`, which
    keeps it. Each times both ways in turns and counts the faults of 5 calls. Takes about ten seconds and four times
    ``tensor_bytes``, under a limit of memory and time.

    Raises ValueError for a size outside 1 MiB to 512 MiB; MemoryError, TimeoutError or RuntimeError when a process did
    not get through. Lesson 01.
    """
    if isinstance(tensor_bytes, bool) or not isinstance(tensor_bytes, int) or not (
        _SHORTEST_BYTES <= tensor_bytes <= _LONGEST_BYTES
    ):  # fmt: skip
        raise ValueError(f"tensor_bytes is {tensor_bytes!r}; give a whole number of bytes from {_SHORTEST_BYTES:,} to "
                         f"{_LONGEST_BYTES:,}")  # fmt: skip
    rows: list[PagesRow] = []
    compared: dict[str, Comparison] = {}
    for allocator, keeps in (("default", False), ("keeps memory", True)):
        room_bytes, limit_s = 6 * tensor_bytes + _ROOM_BYTES, _LIMIT_S + 4 * budget_s
        outcome = run_limited(_time_pages, tensor_bytes, budget_s, keeps, memory_bytes=room_bytes, timeout_s=limit_s)
        compared[allocator], faults = outcome.unwrap()
        rows += [_row(compared[allocator], name, allocator, faults[name], tensor_bytes) for name in (_REUSED, _NEW)]
    new, reused = rows[1], rows[0]
    default = compared["default"]
    return FreshPages(tensor_bytes=tensor_bytes, page_bytes=mmap.PAGESIZE, pages=-(-tensor_bytes // mmap.PAGESIZE),
                      huge_pages=_huge_pages(), fault_s=_fault_seconds(new, reused), stable=default.stable,
                      reason=default.reason, rows=tuple(rows))  # fmt: skip


def _time_pages(tensor_bytes: int, budget_s: float, keeps: bool) -> tuple[Comparison, dict[str, float | None]]:
    if keeps:
        steady_allocator()
    with fixed_threads(1):
        x = torch.ones(tensor_bytes // 4)
        out = torch.zeros_like(x)
        ways = {_REUSED: lambda: torch.mul(x, 2, out=out), _NEW: lambda: torch.mul(x, 2)}
        for way in ways.values():
            for _ in range(_WARM_CALLS):  # the allocator finds its shape
                way()
        faults = {name: _faults_per_call(way) for name, way in ways.items()}
        return compare(ways, budget_s=budget_s, device="cpu"), faults


def _faults_per_call(way: Callable[[], object]) -> float | None:
    def calls() -> None:
        for _ in range(_COUNTED_CALLS):
            way()

    minor = count_faults(calls).minor
    return None if minor is None else minor / _COUNTED_CALLS


def _row(compared: Comparison, memory: str, allocator: str, faults: float | None, tensor_bytes: int) -> PagesRow:
    timed = compared.candidate(memory)
    brought = tensor_bytes / faults if faults else None
    return PagesRow(memory=memory, allocator=allocator, call_s=timed.minimum_s, time_ratio=timed.time_ratio,
                    faults_per_call=faults, fault_bytes=brought)  # fmt: skip


def _fault_seconds(new: PagesRow, reused: PagesRow) -> float | None:
    """Return the added seconds of an added fault; None where there were none or the system does not count."""
    if new.faults_per_call is None or reused.faults_per_call is None:
        return None
    added = new.faults_per_call - reused.faults_per_call
    return (new.call_s - reused.call_s) / added if added >= 1 else None


def _faults() -> tuple[int | None, int | None]:
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().num_page_faults, None
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_majflt


def _huge_pages() -> str:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists():
        return "unknown"
    words = setting.read_text(encoding="ascii").split()
    return next((word.strip("[]") for word in words if word.startswith("[")), "unknown")
