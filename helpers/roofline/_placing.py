"""Measured beside modelled: a function, or every layer of a model, timed here and put under the roofs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import nn

from helpers import _trees as trees, profiling, steps
from helpers.hardware.limits._results import MachineLimits
from helpers.operations import LayerOperations, OperationProfile, OperatorOperations, profile_ops
from helpers.results import Result, derived
from helpers.roofline._modelling import RooflinePoint, Workload, model, peak_of, require_limits
from helpers.timing import Timing, measure
from helpers.timing._runs import Clock, Function


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
    """Return a modelled point and the timing of the same work as one result."""
    return derived(
        Placement,
        point,
        timing,
        measured_s=timing.minimum_s,
        time_ratio=timing.minimum_s / point.modelled_s,
        measured_flops_per_s=point.flops / timing.minimum_s,
        point=point,
        timing=timing,
    )


def check_limits(limits: MachineLimits, device: torch.device | None = None) -> None:
    """Raise ValueError when ``limits`` are not those of ``device`` (None: theirs, if it is here) with its threads now.

    On CUDA the number of CPU threads does not matter. Raises TypeError for what are no limits.
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


# Every layer of a model.


_BACKWARD_CALLS = 2  # the gradient of the input and that of the weights


@dataclass(frozen=True)
class LayerPlacement(Result):
    """One layer: counted, modelled, measured; ``time_ratio`` is measured over modelled.

    ``measured_s`` is a median over the steps of the profile. Lesson 02.
    """

    layer: str
    kind: str
    flops: int
    moved_bytes: int
    intensity_flops_per_byte: float
    level: str
    regime: str
    modelled_s: float
    measured_s: float
    time_ratio: float
    point: RooflinePoint = field(repr=False)

    @property
    def name(self) -> str:
        """The layer's path, which is how a drawing calls the point."""
        return self.layer


@dataclass(frozen=True)
class RooflineProfile(Result):
    """Every layer of a model that moves bytes as a point, and the sums of the modelled and of the measured times.

    ``left_out`` are the rows that move nothing (views, dropout at inference) or that the counter does not see;
    ``left_out_s`` is their measured time, ``measured_s`` that of the points. Lesson 02.
    """

    model: str
    input: str
    device: str
    threads: int
    training: bool
    rounds: int
    modelled_s: float
    measured_s: float
    time_ratio: float
    left_out: tuple[str, ...]
    left_out_s: float
    layers: tuple[LayerPlacement, ...]

    def layer(self, path: str) -> LayerPlacement:
        """Return the row of the layer at ``path``; KeyError that names the paths there are."""
        return trees.row_of(self.layers, path)


def workload_of(
    counted: OperationProfile | LayerOperations | OperatorOperations,
    *,
    name: str | None = None,
    training: bool = False,
    dtype: str = "float32",
) -> Workload:
    """Return what :func:`helpers.operations.profile_ops` counted as a workload: a whole profile, a layer, an operator.

    With ``training`` the backward pass is added to the forward. An operator's row has one phase, and its own calls. A
    profile has the calls of its operators in those phases. A layer's row knows how often the module was called: that
    is one operator call a time forward, and two more (the gradients of input and weights) backward; for a module that
    calls several operators itself it is too few.

    Raises TypeError for anything else and ValueError where nothing is moved.
    """
    if isinstance(counted, OperatorOperations):
        moved = counted.read_bytes + counted.written_bytes
        return Workload(name or counted.operator, counted.flops, moved, dtype, calls=counted.calls)
    if not isinstance(counted, OperationProfile | LayerOperations):
        raise TypeError(
            f"workload_of takes what profile_ops returns (a profile, one of its layers or operators), not "
            f"{type(counted).__name__}"
        )
    phases = ("forward", "backward") if training else ("forward",)
    flops = sum(getattr(counted, f"{phase}_flops") for phase in phases)
    moved = sum(getattr(counted, f"{phase}_{way}_bytes") for phase in phases for way in ("read", "written"))
    if isinstance(counted, OperationProfile):
        calls = sum(row.calls for row in counted.operators if row.phase in phases)
        return Workload(name or counted.model, flops, moved, dtype, calls=max(1, calls))
    calls = max(1, counted.calls) * (1 + _BACKWARD_CALLS * (training and counted.backward_flops > 0))
    return Workload(name or counted.layer or counted.kind, flops, moved, dtype, calls=calls)


def roofline(
    model: nn.Module,
    inputs: steps.Inputs = None,
    limits: MachineLimits | None = None,
    training: bool = False,
    *,
    shape: steps.Inputs = None,
    loss: steps.Loss | None = None,
    budget_s: float = 2.0,
) -> RooflineProfile:
    """Return every layer of ``model`` as a point: counted FLOPs and bytes, modelled time, measured time.

    ``inputs`` (or ``shape``) is as in :mod:`helpers.steps`, ``limits`` what :func:`helpers.probe` returned;
    ``training`` takes forward and backward in training mode, else the forward in evaluation mode. Counts are
    :func:`helpers.operations.profile_ops`'s in that mode, times :func:`helpers.profiling.profile_time`'s, with ``loss``
    and ``budget_s``; :func:`workload_of` says how layers become workloads. The model comes back as it was.

    A point's level follows from the bytes that the layer itself moves: that its input still lies in a cache, or that
    the layers before have driven its weights out, is not in the model.

    Raises ValueError for limits of another device or number of threads than the model's now, a dtype whose peak was
    not measured, or a model that moves no bytes, and what counting and timing raise. Lesson 02.
    """
    steps.check_model(model)
    arguments = steps.arguments_of(model, inputs, shape)
    check_limits(limits, steps.device_of(model, arguments))
    dtype = str(steps.dtype_of(model)).removeprefix("torch.")
    peak_of(limits, dtype)  # refused before anything is timed
    counted = count(model, arguments, training=training)
    timed = profiling.profile_time(model, arguments, training=training, loss=loss, budget_s=budget_s)
    return join(counted, timed, limits, dtype=dtype)


def count(model: nn.Module, inputs: steps.Inputs, *, training: bool) -> OperationProfile:
    """Count the model's operations in training or in evaluation mode; its modes come back."""
    with steps.preserved(model):
        model.train(training)
        return profile_ops(model, inputs)


def join(
    counted: OperationProfile, timed: profiling.TimeProfile, limits: MachineLimits, *, dtype: str
) -> RooflineProfile:
    """Put the counts and the times of the same layers together with the model; measures nothing.

    Raises ValueError where nothing moves bytes, or the two are not of the same model.
    """
    rows = {row.layer: row for row in counted.layers}
    placed, left_out, left_out_s = [], [], 0.0
    for part in timed.parts():
        row = rows.get(part.layer)
        if row is None or not _moves(row, timed.training):
            left_out.append(part.layer or part.kind)
            left_out_s += part.total_s
            continue
        point = model(workload_of(row, training=timed.training, dtype=dtype), limits)
        placed.append(_placement(row, point, part.total_s))
    if not placed:
        raise ValueError(
            f"no layer of {timed.model} both moves bytes and was timed: views alone move none, and counts of "
            f"{counted.model} for {counted.input} go with no times of {timed.model} for {timed.input}"
        )
    modelled_s, measured_s = sum(row.modelled_s for row in placed), sum(row.measured_s for row in placed)
    return derived(
        RooflineProfile,
        timed,
        modelled_s=modelled_s,
        measured_s=measured_s,
        time_ratio=measured_s / modelled_s,
        left_out=tuple(left_out),
        left_out_s=left_out_s,
        layers=tuple(placed),
    )


def _moves(row: LayerOperations, training: bool) -> bool:
    backward = row.backward_read_bytes + row.backward_written_bytes if training else 0
    return row.forward_read_bytes + row.forward_written_bytes + backward > 0


def _placement(row: LayerOperations, point: RooflinePoint, measured_s: float) -> LayerPlacement:
    return derived(
        LayerPlacement,
        point,
        layer=row.layer or row.kind,
        kind=row.kind,
        flops=int(point.flops),
        moved_bytes=int(point.moved_bytes),
        measured_s=measured_s,
        time_ratio=measured_s / point.modelled_s,
        point=point,
    )
