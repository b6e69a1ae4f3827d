"""A model's layers under the roofs: FLOPs and bytes counted, time modelled from them, time measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from helpers import profiling, steps, trees
from helpers.hardware.limits.results import MachineLimits
from helpers.operations import LayerOperations, OperationProfile, OperatorOperations, profile_ops
from helpers.results import Result
from helpers.roofline.modelling import RooflinePoint, Workload, model, peak_of
from helpers.roofline.placing import check_limits

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

    Raises TypeError for anything else and ValueError where nothing is moved. For the library itself.
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

    Raises ValueError where nothing moves bytes, or the two are not of the same model. For the library itself.
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
    return RooflineProfile(
        model=timed.model,
        input=timed.input,
        device=timed.device,
        threads=timed.threads,
        training=timed.training,
        rounds=timed.rounds,
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
    return LayerPlacement(
        layer=row.layer or row.kind,
        kind=row.kind,
        flops=int(point.flops),
        moved_bytes=int(point.moved_bytes),
        intensity_flops_per_byte=point.intensity_flops_per_byte,
        level=point.level,
        regime=point.regime,
        modelled_s=point.modelled_s,
        measured_s=measured_s,
        time_ratio=measured_s / point.modelled_s,
        point=point,
    )
