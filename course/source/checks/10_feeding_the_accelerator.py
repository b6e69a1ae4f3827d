"""The checks of lesson 10: what goes in, what must come out, and what common mistakes would give instead."""

import contextlib
import itertools
import queue
import tempfile
import threading
import time
from unittest import mock

import torch

from helpers.exercises import Checks

_CLOCKS = ("perf_counter", "monotonic", "time")


def step_times(checks: Checks) -> None:
    """Waiting and steps"""
    early = (
        "PyTorch returned before the step had ended. Call torch.cuda.synchronize() behind "
        "step(batch), before you read the clock."
    )
    between = (
        "The waits overlap the steps: count each wait from the end of the step before it."
    )
    checks.returns(
        "three batches that take 3 s each, and steps of 2 s in the queue of a GPU",
        (3, 3, 2),
        call=_timed,
        expected=(9.0, 6.0),
        kind=(tuple, list),
        mistakes={
            (9.0, 0.0): early,
            (24.0, 6.0): between,
            (6.0, 9.0): "Return the waiting first and the steps second.",
            (15.0, 6.0): "The first number is the whole time. Leave the steps out of it.",
        },
    )
    checks.returns(
        "no batch, no time",
        (0, 3, 2),
        call=_timed,
        expected=(0.0, 0.0),
        kind=(tuple, list),
    )


class _Played:
    """A clock that is played, for this thread alone, and a GPU that works through a queue."""

    def __init__(self, batch_s, step_s):
        self.now_s = self.free_s = 100.0
        self.batch_s, self.step_s = batch_s, step_s

    def batches(self, count):
        for number in range(count):
            self.now_s += self.batch_s
            yield number

    def step(self, _batch):
        self.free_s = max(self.now_s, self.free_s) + self.step_s

    def synchronize(self, _device=None):
        self.now_s = max(self.now_s, self.free_s)

    def clock(self, real):
        own = threading.get_ident()
        return lambda: self.now_s if threading.get_ident() == own else real()


def _timed(function, count, batch_s, step_s):
    played = _Played(batch_s, step_s)
    with contextlib.ExitStack() as patches:
        for name in _CLOCKS:
            clock = played.clock(getattr(time, name))
            patches.enter_context(mock.patch.object(time, name, clock))
        patches.enter_context(mock.patch.object(torch.cuda, "is_available", return_value=True))
        patches.enter_context(mock.patch.object(torch.cuda, "synchronize", played.synchronize))
        return function(played.batches(count), played.step)


def prefetched(checks: Checks) -> None:
    """A queue that is filled ahead"""
    checks.returns(
        "every batch, in order",
        (5, 2),
        call=_all_batches,
        expected=list(range(5)),
        mistakes={
            "it does not end": (
                "It does not end: after the last batch, put something into the queue that ends it, "
                "and stop there."
            )
        },
    )
    checks.returns(
        "depth batches ahead",
        (3,),
        call=_made_ahead,
        expected="3 or 4",
        mistakes={
            0: "Nothing was made ahead: start a thread that fills the queue.",
            19: "All were made ahead: give the queue depth places.",
        },
    )


def _all_batches(function, count, depth):
    batches = []
    reader = threading.Thread(
        target=lambda: batches.extend(function(range(count), depth)), daemon=True
    )
    reader.start()
    reader.join(2)
    return "it does not end" if reader.is_alive() else batches


def _made_ahead(function, depth):
    """Return how many batches of 20 lie ready while nobody takes the next one."""
    made = []
    batches = iter(function((made.append(number) or number for number in range(20)), depth))
    next(batches)
    ends_s = time.perf_counter() + 2
    while len(made) <= depth and time.perf_counter() < ends_s:
        time.sleep(0.01)
    time.sleep(0.2)  # for a thread that goes on although the queue should be full
    ahead = len(made) - 1
    return f"{depth} or {depth + 1}" if depth <= ahead <= depth + 1 else ahead


def worker_loop(checks: Checks) -> None:
    """A worker's loop"""
    orders = [(2, [3]), (0, [1, 4])]
    expected = [(2, torch.tensor([30])), (0, torch.tensor([10, 40]))]
    checks.returns(
        "every order is answered",
        (orders,),
        call=_answers,
        expected=expected,
        mistakes={
            tuple(batch for _, batch in expected): (
                "Send the number as well, because otherwise nobody knows which batch it is."
            ),
            tuple(expected[:1]): "Go on until the order is None.",
        },
    )
    checks.returns("no order, no answer", ([],), call=_answers, expected=[])
    checks.returns(
        "a batch is a tensor",
        (orders,),
        call=_kinds,
        expected="Tensor Tensor",
        mistakes={
            "list list": "A batch is one tensor. Let default_collate make it of the list."
        },
    )


def _answers(function, orders):
    given, done = queue.Queue(), queue.Queue()
    for order in [*orders, None]:
        given.put(order)
    function([0, 10, 20, 30, 40], given, done)
    return [done.get() for _ in range(done.qsize())]


def _kinds(function, orders):
    return " ".join(type(batch).__name__ for _, batch in _answers(function, orders))


def in_order(checks: Checks) -> None:
    """Batches in order"""
    mixed = [(1, "b"), (0, "a"), (3, "d"), (2, "c")]
    checks.returns(
        "0, 1, 2, 3",
        (mixed,),
        call=lambda function, pairs: list(function(iter(pairs))),
        expected=list("abcd"),
        mistakes={
            ("b", "a", "d", "c"): "That is the order in which they arrived.",
            ("a",): "Batch 1 came early: keep it until its turn.",
        },
    )
    checks.returns(
        "batch 0 goes out as soon as it is there",
        (mixed,),
        call=_arrivals_before_first,
        expected=2,
        mistakes={4: "Batch 0 was there after two arrivals: do not wait for the rest."},
    )


def _arrivals_before_first(function, pairs):
    arriving = iter(pairs)
    next(iter(function(arriving)))
    return len(pairs) - len(list(arriving))


def write_shard(checks: Checks) -> None:
    """A shard and its table"""
    items = [b"one", b"three", b""]
    last = "Where does the last item end? Return that as well."
    lengths = "An item begins where all before it end: add up the lengths."
    checks.returns(
        "items of 3, 5 and 0 bytes begin at 0, 3 and 8",
        (items,),
        call=_starts,
        expected=[0, 3, 8, 8],
        kind=(list, tuple),
        mistakes={(0, 3, 8): last, (0, 3, 5, 0): lengths},
    )
    checks.returns(
        "the items are read back",
        (items,),
        call=_read_back,
        expected=items,
        mistakes={(b"one", b"three"): last, (b"one", b"th", b""): lengths},
    )


def _starts(function, items):
    with tempfile.TemporaryFile() as file:
        return function(items, file)


def _read_back(function, items):
    with tempfile.TemporaryFile() as file:
        starts = function(items, file)
        file.seek(0)
        content = file.read()
    return [content[start:end] for start, end in itertools.pairwise(starts)]
