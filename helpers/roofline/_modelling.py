"""The roofline model: the time of a workload from its FLOPs, its bytes and a machine's limits,
beside measured times.

A function, or every layer of a model, is timed here and put under the roofs.
"""

from __future__ import annotations

from dataclasses import field

import torch
from torch import nn

from helpers import profiling, steps, trees
from helpers.checks import boolean, number
from helpers.hardware._devices import Device, require_device
from helpers.hardware.limits._results import MachineLimits, MemoryLevel
from helpers.operations import LayerOperations, OperationProfile, OperatorOperations, profile_ops
from helpers.results import Record, derived

COMPUTE_BOUND, MEMORY_BOUND, OVERHEAD_BOUND = "compute-bound", "memory-bound", "overhead-bound"


class Workload(Record):
    """The work of a kernel or a layer: ``flops`` operations in ``dtype`` on ``moved_bytes`` read
    and written.

    ``working_set_bytes`` are the distinct bytes touched, which decide the memory level; by default
    ``moved_bytes``, as where each byte moves once. ``calls`` of operators make it up: each costs
    the call overhead.

    Raises ValueError for no bytes, a negative or infinite number, calls that are no whole number of
    at least 1, or a working set larger than the bytes moved; TypeError for what is no number.
    Lesson 02.
    """

    name: str
    flops: float
    moved_bytes: float
    dtype: str = "float32"
    working_set_bytes: float | None = None
    calls: int = 1

    def __post_init__(self) -> None:
        for name, least in (
            ("flops", 0),
            ("moved_bytes", 0),
            ("working_set_bytes", 0),
            ("calls", 1),
        ):
            if name != "working_set_bytes" or self.working_set_bytes is not None:
                number(f"{name} of {self.name!r}", getattr(self, name), at_least=least)
        if self.calls != int(self.calls):
            raise ValueError(f"calls of {self.name!r} must be a whole number, got {self.calls!r}")
        if self.moved_bytes == 0:
            raise ValueError(
                f"{self.name!r} moves no bytes, so it has no arithmetic intensity (FLOP a byte); "
                "give the bytes that it reads and writes"
            )
        if self.working_set_bytes is not None and self.working_set_bytes > self.moved_bytes:
            raise ValueError(
                f"{self.name!r} touches {self.working_set_bytes:,} bytes and moves only "
                f"{self.moved_bytes:,}; each byte of the working set moves at least once"
            )

    @property
    def intensity_flops_per_byte(self) -> float:
        """The arithmetic intensity: FLOPs for each byte moved."""
        return self.flops / self.moved_bytes


class RooflinePoint(Record):
    """A workload on a machine: where it stands under the roofs, and the time that the model gives
    it.

    ``level`` is the memory level whose bandwidth is the slope, ``ridge_flops_per_byte`` where slope
    and peak meet. ``modelled_s`` holds the call overhead, ``attainable_flops_per_s`` (the roof
    above the point) does not. Lesson 02.
    """

    name: str
    dtype: str
    flops: float
    moved_bytes: float
    intensity_flops_per_byte: float
    level: str
    bandwidth_bytes_per_s: float
    peak_flops_per_s: float
    ridge_flops_per_byte: float
    attainable_flops_per_s: float
    compute_s: float
    memory_s: float
    overhead_s: float
    modelled_s: float
    regime: str

    @property
    def modelled_flops_per_s(self) -> float:
        """FLOP/s at the modelled time: below the roof by the call overhead."""
        return self.flops / self.modelled_s


def model(workload: Workload, limits: MachineLimits, *, level: str | None = None) -> RooflinePoint:
    """Return where ``workload`` stands under the roofs of ``limits``, and its modelled time.

    ``compute_s`` is FLOPs over the peak of its dtype, ``memory_s`` bytes over the bandwidth of a
    memory level: the one called ``level``, or else the smallest that holds the working set (by its
    ``holds_bytes``) and whose bandwidth was measured (the point names it). The longer of the two is
    the roofline's time: arithmetic and transfers overlap perfectly, the bytes move once, and each
    runs at its measured best. ``overhead_s`` is the call overhead times the calls. On a CPU it is
    added, for the operator starts only when the call has got to it; on CUDA the calls run ahead of
    the kernels, so ``modelled_s`` is the longest of the three, as in a row of launches with one
    wait at its end.

    ``regime`` is "compute-bound", "memory-bound" (left of the ridge point) or "overhead-bound" (the
    overhead is longer than both). Source of the model: Williams, Waterman, Patterson, "Roofline: an
    insightful visual performance model for multicore architectures", Communications of the ACM
    52(4), 2009; the overhead is our addition.

    Raises ValueError for a dtype without a measured peak, a level that is not there, or a bandwidth
    that nobody could measure; TypeError when ``workload`` or ``limits`` is none.

    >>> from helpers import probe
    >>> limits = probe()  # doctest: +SKIP
    >>> model(Workload("a + b", flops=1e8, moved_bytes=12e8), limits).regime  # doctest: +SKIP
    'memory-bound'
    """
    if not isinstance(workload, Workload):
        raise TypeError(
            f"model works on a Workload, not on {type(workload).__name__}; write Workload('name', "
            "flops, moved_bytes), or roofline(...) for a model's layers"
        )
    require_limits(limits)
    peak = peak_of(limits, workload.dtype)
    memory, bandwidth = _level(limits, workload, level)
    compute_s, memory_s = workload.flops / peak, workload.moved_bytes / bandwidth
    overhead_s, longer_s = workload.calls * limits.call_overhead_s, max(compute_s, memory_s)
    overlaps = limits.device.startswith("cuda")
    busy = COMPUTE_BOUND if compute_s >= memory_s else MEMORY_BOUND
    return derived(
        RooflinePoint,
        workload,
        level=memory.name,
        bandwidth_bytes_per_s=bandwidth,
        peak_flops_per_s=peak,
        ridge_flops_per_byte=peak / bandwidth,
        attainable_flops_per_s=min(peak, workload.intensity_flops_per_byte * bandwidth),
        compute_s=compute_s,
        memory_s=memory_s,
        overhead_s=overhead_s,
        modelled_s=max(longer_s, overhead_s) if overlaps else longer_s + overhead_s,
        regime=OVERHEAD_BOUND if overhead_s > longer_s else busy,
    )


def require_limits(limits: object) -> MachineLimits:
    """Return ``limits``; raise TypeError unless they are the limits of a machine."""
    if not isinstance(limits, MachineLimits):
        raise TypeError(
            f"limits are what helpers.probe() returns, not {type(limits).__name__} {limits!r:.40}"
        )
    return limits


def peak_of(limits: MachineLimits, dtype: str) -> float:
    """Return the measured peak in FLOP/s; ValueError, with the dtypes that were measured, for
    another.
    """
    if dtype not in limits.peak_flops:
        measured_types = ", ".join(limits.peak_flops) or "none"
        raise ValueError(
            f"no peak was measured for {dtype!r} on this machine{_why(limits)}; there is one for "
            f"{measured_types}"
        )
    return limits.peak_flops[dtype]


def _level(
    limits: MachineLimits, workload: Workload, name: str | None
) -> tuple[MemoryLevel, float]:
    """Return the level of memory that feeds ``workload``, and its bandwidth in bytes per second."""
    if name is not None:
        chosen = limits.level(name)
        if chosen.bandwidth_bytes_per_s is None:
            raise ValueError(
                f"the bandwidth of {name} could not be measured here{_why(limits)}; choose another "
                "level"
            )
        return chosen, chosen.bandwidth_bytes_per_s
    working_set_bytes = (
        workload.moved_bytes if workload.working_set_bytes is None else workload.working_set_bytes
    )
    for level in limits.memory_levels:
        bandwidth = level.bandwidth_bytes_per_s
        if bandwidth is not None and (level is limits.memory or level.fits(working_set_bytes)):
            return level, bandwidth
    raise ValueError(
        f"the bandwidth of {limits.memory.name} could not be measured here{_why(limits)}; "
        f"{workload.name!r} needs it"
    )


def _why(limits: MachineLimits) -> str:
    return f" ({'; '.join(limits.notes)})" if limits.notes else ""


# What a maker promises: the two numbers of a datasheet that the measured roofs are drawn beside.


class DatasheetRoof(Record):
    """A device's promised peak in ``dtype`` (dense, without sparsity) and memory bandwidth.

    Raises TypeError for what is no number, ValueError for one that is not above 0 and finite.
    Lesson 02.
    """

    name: str
    dtype: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        for name in ("peak_flops_per_s", "bandwidth_bytes_per_s"):
            number(f"the {name} of {self.name}", getattr(self, name), above=0)

    @property
    def ridge_flops_per_byte(self) -> float:
        """Where the promised slope and the promised peak meet."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s


def datasheet_roof(
    device: Device, dtype: str = "float32", *, unit: str | None = None
) -> DatasheetRoof:
    """Return the roofs that the table of devices has for ``device``: dense peak in ``dtype``,
    memory bandwidth.

    ``unit`` is "vector" or "matrix", by default whichever is faster. Raises TypeError for what is
    no device, ValueError where the table does not know the peak or the bandwidth, with the dtypes
    whose dense peak it does know.

    >>> from helpers.hardware import device
    >>> roof = datasheet_roof(device("NVIDIA H200"), "bfloat16")
    >>> roof.peak_flops_per_s, round(roof.ridge_flops_per_byte)
    (989000000000000, 206)

    Lesson 02.
    """
    require_device(device)
    peak = device.peak(dtype, unit=unit)
    if peak is None or peak.dense_flops_per_s is None:
        known_peaks = list(
            dict.fromkeys(row.dtype for row in device.peaks if row.dense_flops_per_s is not None)
        )
        raise ValueError(
            f"the dense peak of {device.name} in {dtype}{f' on its {unit} units' if unit else ''} "
            f"is unknown; known are {', '.join(known_peaks) or 'none'}"
        )
    if device.memory_bandwidth_bytes_per_s is None:
        raise ValueError(
            f"the memory bandwidth of {device.name} is unknown, so its datasheet gives no slope"
        )
    return DatasheetRoof(
        device.name, dtype, peak.dense_flops_per_s, device.memory_bandwidth_bytes_per_s
    )


def check_limits(limits: MachineLimits | None, device: torch.device) -> MachineLimits:
    """Return ``limits``; raise ValueError when ``limits`` are not those of ``device`` with its
    threads now.

    On CUDA the number of CPU threads does not matter. Raises TypeError for what are no limits.
    """
    limits = require_limits(limits)
    limits_device = torch.device(limits.device)
    if limits_device.type != device.type:
        raise ValueError(
            f"these limits were measured on {limits_device}, and this runs on {device}; measure "
            f"the limits of {device.type} first: probe(device={device.type!r})"
        )
    if limits_device.type == "cpu" and limits.threads != torch.get_num_threads():
        raise ValueError(
            f"these limits were measured with {limits.threads} threads, and PyTorch now uses "
            f"{torch.get_num_threads()}; call probe() again, or "
            f"torch.set_num_threads({limits.threads})"
        )
    return limits


# Every layer of a model.


_BACKWARD_CALLS = 2  # the gradient of the input and that of the weights


class LayerPlacement(Record):
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


class RooflineProfile(Record):
    """Every layer of a model that moves bytes as a point, and the sums of the modelled and of the
    measured times.

    ``left_out`` are the rows that move nothing (views, dropout at inference) or that the counter
    does not see; ``left_out_s`` is their measured time, ``measured_s`` that of the points. Lesson
    02.
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
    """Return ``counted``, a result of :func:`.operations.profile_ops`, as a workload: a profile, a
    layer, an operator.

    It is called ``name``, by default as the model, layer or operator, and computes in ``dtype``.
    With ``training`` the backward pass is added to the forward. An operator's row has one phase,
    and its own calls. A profile has the calls of its operators in those phases. A layer's row knows
    how often the module was called: that is one operator call a time forward, and two more (the
    gradients of input and weights) backward; for a module that calls several operators itself it is
    too few.

    Raises TypeError for anything else and ValueError where nothing is moved.

    >>> linear = workload_of(profile_ops(nn.Linear(100, 10), (8, 100)))
    >>> linear.name, linear.flops, linear.moved_bytes
    ('Linear', 16000, 7560)
    """
    boolean("training", training)
    if isinstance(counted, OperatorOperations):
        moved_bytes = counted.read_bytes + counted.written_bytes
        return Workload(
            name or counted.operator, counted.flops, moved_bytes, dtype, calls=counted.calls
        )
    if not isinstance(counted, OperationProfile | LayerOperations):
        raise TypeError(
            "workload_of takes what profile_ops returns (a profile, one of its layers or "
            f"operators), not {type(counted).__name__}"
        )
    phases = ("forward", "backward") if training else ("forward",)
    flops = sum(getattr(counted, f"{phase}_flops") for phase in phases)
    moved_bytes = sum(
        getattr(counted, f"{phase}_{direction}_bytes")
        for phase in phases
        for direction in ("read", "written")
    )
    if isinstance(counted, OperationProfile):
        calls = sum(row.calls for row in counted.operators if row.phase in phases)
        return Workload(name or counted.model, flops, moved_bytes, dtype, calls=max(1, calls))
    calls = max(1, counted.calls) * (
        1 + _BACKWARD_CALLS * (training and counted.backward_flops > 0)
    )
    return Workload(name or counted.layer or counted.kind, flops, moved_bytes, dtype, calls=calls)


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
    """Return every layer of ``model`` as a point: counted FLOPs and bytes, modelled time, measured
    time.

    ``inputs`` (or ``shape``) is as in :mod:`helpers.steps`, ``limits`` what :func:`.hardware.probe`
    returned; ``training`` takes forward and backward in training mode, else the forward in
    evaluation mode. Counts are :func:`.operations.profile_ops`'s in that mode, times
    :func:`helpers.profiling.profile_time`'s, with ``loss`` and ``budget_s``; :func:`workload_of`
    says how layers become workloads. The model comes back as it was.

    A point's level follows from the bytes that the layer itself moves: that its input still lies in
    a cache, or that the layers before have driven its weights out, is not in the model.

    Raises ValueError for limits of another device or number of threads than the model's now, a
    dtype whose peak was not measured, or a model that moves no bytes, and what counting and timing
    raise.

    >>> from helpers import LeNet, probe
    >>> limits = probe()  # doctest: +SKIP
    >>> profile = roofline(LeNet(), (64, 1, 28, 28), limits)  # doctest: +SKIP
    >>> profile.layer("fc1").flops, profile.layer("fc1").moved_bytes  # doctest: +SKIP
    (3932160, 219616)

    Lesson 02.
    """
    boolean("training", training)
    steps.check_model(model)
    arguments = steps.arguments_of(model, inputs, shape)
    limits = check_limits(limits, steps.device_of(model, arguments))
    dtype = str(steps.dtype_of(model)).removeprefix("torch.")
    peak_of(limits, dtype)  # refused before anything is timed
    operation_profile = count(model, arguments, training=training)
    time_profile = profiling.profile_time(
        model, arguments, training=training, loss=loss, budget_s=budget_s
    )
    return join(operation_profile, time_profile, limits, dtype=dtype)


def count(model: nn.Module, inputs: steps.Inputs, *, training: bool) -> OperationProfile:
    """Count the model's operations in training or in evaluation mode; its modes come back."""
    with steps.preserved(model):
        model.train(training)
        return profile_ops(model, inputs)


def join(
    operation_profile: OperationProfile,
    time_profile: profiling.TimeProfile,
    limits: MachineLimits,
    *,
    dtype: str,
) -> RooflineProfile:
    """Put the counts and the times of the same layers together with the model; measures nothing.

    Raises ValueError where nothing moves bytes, or the two are not of the same model.
    """
    rows = {row.layer: row for row in operation_profile.layers}
    placements, left_out, left_out_s = [], [], 0.0
    for part in time_profile.parts():
        row = rows.get(part.layer)
        if row is None or not _moves(row, time_profile.training):
            left_out.append(part.layer or part.kind)
            left_out_s += part.total_s
            continue
        point = model(workload_of(row, training=time_profile.training, dtype=dtype), limits)
        placements.append(_placement(row, point, part.total_s))
    if not placements:
        raise ValueError(
            f"no layer of {time_profile.model} both moves bytes and was timed: views alone move "
            "none, and "
            f"counts of {operation_profile.model} for {operation_profile.input} go with no times "
            f"of {time_profile.model} for {time_profile.input}"
        )
    modelled_s, measured_s = (
        sum(row.modelled_s for row in placements),
        sum(row.measured_s for row in placements),
    )
    return derived(
        RooflineProfile,
        time_profile,
        modelled_s=modelled_s,
        measured_s=measured_s,
        time_ratio=measured_s / modelled_s,
        left_out=tuple(left_out),
        left_out_s=left_out_s,
        layers=tuple(placements),
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
