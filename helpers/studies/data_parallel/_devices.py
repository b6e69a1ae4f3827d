"""Devices that sleep instead of computing, and a slow link under DistributedDataParallel.

A sleeping rank needs no core, so a few cores carry many ranks with the clock of as many devices.
What sleeps is the host: forward, backward and link take the stated time on a CPU and on CUDA alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from helpers.checks import members, number, numbers, whole_number
from helpers.links import Link, Recorder, sleep_until
from helpers.parallel import _costs as costs


class SleepingLayer(nn.Module):
    """A layer that takes ``forward_s`` and ``backward_s`` seconds by sleeping, and adds the mean of
    its weight.

    ``weight`` has ``parameters`` float32 elements, so its gradient is 4 x ``parameters`` bytes; it
    exists when the backward sleep has ended. Inputs and outputs have any shape, and the arithmetic
    is real: gradients are exact. A ``recorder`` that it is given notes each pass in the lane
    "device". Raises ValueError for a negative time or no parameter. Lesson 05.
    """

    def __init__(self, forward_s: float, backward_s: float, *, parameters: int = 1) -> None:
        super().__init__()
        self.forward_s = number("forward_s", forward_s, at_least=0)
        self.backward_s = number("backward_s", backward_s, at_least=0)
        self.recorder: Recorder | None = None
        self.weight = nn.Parameter(torch.zeros(whole_number("parameters", parameters)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Sleep for ``forward_s`` and return ``inputs`` plus the mean of the weight."""
        self._sleep(self.forward_s, "forward")
        return Nap.apply(
            inputs + self.weight.mean(), partial(self._sleep, self.backward_s, "backward")
        )

    @property
    def cost(self) -> costs.LayerCost:
        """The cost of the layer, for :func:`ddp_step`. Lesson 05."""
        return costs.LayerCost(self.forward_s, self.backward_s, self.weight.nbytes)

    def _sleep(self, duration_s: float, kind: str) -> None:
        start_s = time.perf_counter()
        sleep_until(start_s + duration_s)
        if self.recorder is not None:
            self.recorder.add("device", start_s, time.perf_counter(), kind=kind)


class Nap(torch.autograd.Function):
    """Hand a value on, and in the backward pass call ``sleep()`` before its gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, sleep: Callable[[], None]) -> torch.Tensor:
        ctx.sleep = sleep
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.sleep()
        return gradient, None


@dataclass
class SlowReducer:
    """Averages DDP's buckets over a slow link, one after the other, while the backward pass goes
    on.

    Made by :func:`slow_link`. Each bucket is really reduced by torch.distributed; then a thread of
    its own sleeps until the link would have finished, and DDP waits for that. ``bucket_bytes``
    collects the bytes of each bucket sent.
    """

    link: Link
    recorder: Recorder | None
    group: dist.ProcessGroup
    bucket_bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free_s = float("-inf")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slow link")

    # DDP compares the annotations with classes, and here they would be text.
    def reduce(self, _state, bucket):
        """Start one bucket's all-reduce and return the future of its average: the hook itself.

        Lesson 05.
        """
        buffer = bucket.buffer()
        world_size = dist.get_world_size(self.group)
        buffer.div_(world_size)
        self.bucket_bytes.append(buffer.nbytes)
        work = dist.all_reduce(buffer, group=self.group, async_op=True)
        devices = [buffer.device] if buffer.is_cuda else None
        future: torch.futures.Future = torch.futures.Future(devices=devices)
        label = f"bucket {bucket.index()}"
        self._thread.submit(
            self._carry, work, buffer, future, label, world_size, time.perf_counter()
        )
        return future

    def _carry(
        self,
        work: dist.Work,
        buffer: torch.Tensor,
        future: torch.futures.Future,
        label: str,
        world_size: int,
        called_s: float,
    ) -> None:
        try:
            work.wait()
            if buffer.is_cuda:
                torch.cuda.current_stream(buffer.device).synchronize()
            waiting_s, start_s = max(called_s, self._free_s), max(time.perf_counter(), self._free_s)
            self._free_s = start_s + costs.ring_all_reduce_s(
                world_size, buffer.nbytes, link=self.link
            )
            sleep_until(self._free_s)
            if self.recorder is not None:
                self.recorder.add("link", waiting_s, start_s, kind="waiting")
                self.recorder.add("link", start_s, self._free_s, kind="all-reduce", label=label)
        except Exception as error:  # DDP waits for the future: it must hear of everything
            future.set_exception(error)
        else:
            future.set_result(buffer)


def slow_link(
    model: nn.parallel.DistributedDataParallel, link: Link, *, recorder: Recorder | None = None
) -> SlowReducer:
    """Let ``model`` average its gradients as over ``link``: a communication hook on DDP.

    The link carries one bucket after the other, each as long as a ring all-reduce takes.
    ``recorder`` notes each bucket in the lane "link", and before it, as "waiting", how long the
    free link waited for it: for the slowest rank, and for the sum that the processes really make.
    DDP takes one hook, and refuses a second.

    Raises TypeError for a model that is not a DistributedDataParallel.
    """
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        raise TypeError(
            f"slow_link needs a DistributedDataParallel; got a {type(model).__name__}: wrap it "
            "first"
        )
    reducer = SlowReducer(link, recorder, model.process_group)
    model.register_comm_hook(None, reducer.reduce)
    return reducer


def step_times(step: Callable[[], object], *, repeats: int, warm_ups: int = 2) -> list[float]:
    """Return the seconds of each of ``repeats`` calls of ``step`` on this rank, all ranks starting
    together.

    DDP arranges its buckets anew after its first step, so ``warm_ups`` calls come first that are
    not counted. The slowest rank of a call is its time: see :func:`fastest_step_s`. Raises
    ValueError for fewer than 1 repeat. Lesson 08.
    """
    taken_s = []
    for _ in range(
        whole_number("warm_ups", warm_ups, at_least=0) + whole_number("repeats", repeats)
    ):
        dist.barrier()
        start_s = time.perf_counter()
        step()
        taken_s.append(time.perf_counter() - start_s)
    return taken_s[warm_ups:]


def fastest_step_s(times_s: list[list[float]]) -> float:
    """Return the fastest step of all ranks together: of each step the slowest rank, of these the
    minimum.

    ``times_s`` has a list a rank, as ``Ranks.run`` returns it of :func:`step_times`. Lesson 08.
    """
    ranks = members("times_s", times_s, "lists of seconds, one a rank")
    rank_times = [
        numbers(f"times_s[{rank}]", times, at_least=0) for rank, times in enumerate(ranks)
    ]
    if len({len(times) for times in rank_times}) != 1 or not rank_times[0]:
        raise ValueError(
            "times_s has no times, or ranks of unlike many; give one list a rank, all of the same "
            "steps"
        )
    return min(max(together) for together in zip(*rank_times, strict=True))
