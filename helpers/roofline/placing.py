"""A function timed here and now, beside the time that the roofline gives its workload."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from helpers.hardware.limits.results import MachineLimits
from helpers.results import Result
from helpers.roofline.modelling import RooflinePoint, Workload, model, require_limits
from helpers.timing import Timing, measure
from helpers.timing.runs import Clock, Function


@dataclass(frozen=True)
class Placement(Result):
    """A function's measured time beside its modelled one; ``time_ratio`` is measured over modelled.

    ``measured_s`` is the minimum over the runs of ``timing``, as the limits are: like is compared with like.
    ``reason`` says why the timing is not ``stable``. Lesson 02.
    """

    name: str
    regime: str
    modelled_s: float
    measured_s: float
    time_ratio: float
    measured_flops_per_s: float
    attainable_flops_per_s: float
    stable: bool
    reason: str
    point: RooflinePoint = field(repr=False)
    timing: Timing = field(repr=False)


def place(
    name: str,
    fn: Function,
    flops: float,
    moved_bytes: float,
    limits: MachineLimits,
    *,
    dtype: str = "float32",
    working_set_bytes: float | None = None,
    calls: int = 1,
    level: str | None = None,
    budget_s: float = 1.0,
    clock: Clock = time.perf_counter,
) -> Placement:
    """Time ``fn``, which does ``flops`` on ``moved_bytes``, on the device of ``limits``; put it beside the model.

    ``fn`` takes no argument and makes ``calls`` operator calls. :class:`Workload` and :func:`model` say what the
    numbers mean, :func:`helpers.timing.measure` how the time is taken. One call follows another at once, so what fits
    in a cache is found there: the level by working set.

    Raises as those do, and ValueError for limits of another machine, device or number of threads than now.
    Lesson 02.
    """
    check_limits(limits)
    workload = Workload(name, flops, moved_bytes, dtype, working_set_bytes, calls)
    point = model(workload, limits, level=level)
    return beside(point, measure(fn, budget_s=budget_s, device=limits.device, clock=clock))


def beside(point: RooflinePoint, timing: Timing) -> Placement:
    """Return a modelled point and the timing of the same work as one result. For the library itself."""
    return Placement(
        name=point.name,
        regime=point.regime,
        modelled_s=point.modelled_s,
        measured_s=timing.minimum_s,
        time_ratio=timing.minimum_s / point.modelled_s,
        measured_flops_per_s=point.flops / timing.minimum_s,
        attainable_flops_per_s=point.attainable_flops_per_s,
        stable=timing.stable,
        reason=timing.reason,
        point=point,
        timing=timing,
    )


def check_limits(limits: MachineLimits, device: torch.device | None = None) -> None:
    """Raise ValueError when ``limits`` are not those of ``device`` (None: theirs, if it is here) with its threads now.

    On CUDA the number of CPU threads does not matter. Raises TypeError for what are no limits. For the library itself.
    """
    require_limits(limits)
    theirs = torch.device(limits.device)
    wanted = theirs if device is None else device
    if theirs.type != wanted.type:
        raise ValueError(
            f"these limits were measured on {theirs}, and this runs on {wanted}; measure the limits of {wanted.type} "
            f"first: probe(device={wanted.type!r})"
        )
    if theirs.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("these limits were measured on CUDA, and there is none here; give the limits of the CPU")
    if theirs.type == "cpu" and limits.threads != torch.get_num_threads():
        raise ValueError(
            f"these limits were measured with {limits.threads} threads, and PyTorch now uses "
            f"{torch.get_num_threads()}; call probe() again, or torch.set_num_threads({limits.threads})"
        )
