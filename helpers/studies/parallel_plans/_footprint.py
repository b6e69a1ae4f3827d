"""What each rank keeps in memory: parameters, gradients and optimizer states, by data, tensor and
pipeline parallelism.

Here it is counted from the shapes of a model, which may be on the meta device. What a step runs
into (activations) is in :mod:`helpers.studies.parallel_plans._memory`, on a fake process group and
on real ranks.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch
from torch import nn

from helpers.checks import choice, function, one_of, short, whole_number
from helpers.parallel.pipeline._stages import split_stages
from helpers.results import Record

SHARDED = ("nothing", "optimizer", "gradients", "parameters")

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Plan = Mapping[str, str]
Net = TypeVar("Net", bound=nn.Module)


class Layout(Record):
    """How a model lies on data x tensor x pipeline ranks; data neighbours are ``tensor`` ranks
    apart.

    ``sharded`` is what the ``data`` ranks divide among themselves instead of each keeping it whole:
    "nothing" (data parallel), "optimizer" (ZeRO-1), "gradients" (these too: ZeRO-2) or "parameters"
    (all three: ZeRO-3, FSDP; ZeRO: Rajbhandari et al., 2020, arXiv 1910.02054). Raises ValueError
    or TypeError for what is not one of these and for numbers that are not whole and above 0. Lesson
    06.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    sharded: str = "nothing"

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline"):
            whole_number(name, getattr(self, name))
        choice("sharded", self.sharded, SHARDED)

    @property
    def ranks(self) -> int:
        """The number of ranks: data x tensor x pipeline. Lesson 06."""
        return self.data * self.tensor * self.pipeline

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return (stage, data rank, tensor rank) of ``rank``: tensor ranks are neighbours, stages
        furthest apart.

        Raises ValueError for a rank that is not there. Lesson 06.
        """
        whole_number("rank", rank, at_least=0, at_most=self.ranks - 1)
        group, tensor_rank = divmod(rank, self.tensor)
        return (*divmod(group, self.data), tensor_rank)


class RankFootprint(Record):
    """The bytes that one rank keeps: ``total_bytes`` is all that is known; ``activation_bytes`` is
    None where none were counted.

    ``activation_bytes`` is what autograd saves for the backward pass, beyond parameters and the
    batch itself; in a pipeline it is that of all microbatches that the rank has in flight at once.
    Lesson 06.
    """

    rank: int
    stage: int
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int | None
    total_bytes: int


class Footprint(Record):
    """The bytes that ``ranks`` of a layout keep: ``largest_bytes``, the most that one of them does,
    decides whether it fits.

    ``schedule`` and ``microbatches`` are those by which activations were counted, None where none
    were. Lesson 06.
    """

    data: int
    tensor: int
    pipeline: int
    sharded: str
    schedule: str | None
    microbatches: int | None
    largest_bytes: int
    ranks: tuple[RankFootprint, ...]


@dataclass(frozen=True)
class _LocalParameter:
    """One parameter as a rank has it after tensor parallelism, before data ranks shard it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    learns: bool

    @property
    def size_bytes(self) -> int:
        """The bytes of all its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def check_layout(layout: Layout) -> Layout:
    """Return ``layout``; raise TypeError unless it is a :class:`Layout`."""
    return one_of("layout", layout, Layout, "a Layout, such as Layout(data=2)")


def count_footprint(
    net: nn.Sequential,
    layout: Layout,
    *,
    plan: Plan | None = None,
    optimizer: OptimizerFactory | None = None,
) -> Footprint:
    """Return the bytes of parameters, buffers, gradients and optimizer states of every rank,
    counted from shapes.

    ``net`` may be on the meta device; a pipeline cuts its layers into ``layout.pipeline`` stages of
    equally many. ``plan`` says which nn.Linear the tensor ranks split:
    ``{"0.up": "column", "0.down": "row"}``; what is not named is on every one of them.
    ``optimizer`` is a class of torch.optim or a callable from parameters to an optimizer, and None
    keeps no state; its state is counted by letting it step on meta tensors of the rank's shapes.

    ZeRO-1 and 2 cut all parameters, laid end to end, into equal parts (the last one padded); ZeRO-3
    cuts each one by its first dimension, padded to equal rows, as PyTorch's ``fully_shard`` does.
    Buffers are on every rank of a stage.

    Raises ValueError for layers that do not divide by the stages or stand in two places, for widths
    that do not divide by the tensor ranks, and for a plan that names no nn.Linear; TypeError for a
    net that is not an nn.Sequential, for a plan that is no mapping, and for an optimizer that
    cannot be called or does not step by itself.
    """
    ranks = []
    check_layout(layout)
    check_plan(net, plan or {}, layout.tensor)
    for stage, part in enumerate(split_stages(net, layout.pipeline)):
        local = _local_parameters(part, plan or {}, layout.tensor)
        buffers = sum(buffer.nbytes for buffer in part.buffers())
        # a layer's last rows are fewer; else all data ranks keep as much
        is_sharded = layout.sharded == "parameters"
        rank_bytes = [
            _data_rank_bytes(local, layout, data_rank, optimizer)
            for data_rank in range(layout.data if is_sharded else 1)
        ]
        first = stage * layout.data * layout.tensor
        for index in range(layout.data * layout.tensor):
            parameters, gradients, states = rank_bytes[index // layout.tensor if is_sharded else 0]
            ranks.append(
                rank_footprint(first + index, stage, parameters, buffers, gradients, states)
            )
    return footprint_of(layout, ranks)


def footprint_of(
    layout: Layout,
    ranks: Iterable[RankFootprint],
    *,
    schedule: str | None = None,
    microbatches: int | None = None,
) -> Footprint:
    """Return the footprints of ``ranks`` as one."""
    footprints = tuple(ranks)
    return Footprint(
        layout.data,
        layout.tensor,
        layout.pipeline,
        layout.sharded,
        schedule,
        microbatches,
        max(rank.total_bytes for rank in footprints),
        footprints,
    )


def rank_footprint(
    rank: int,
    stage: int,
    parameter_bytes: int,
    buffer_bytes: int,
    gradient_bytes: int,
    optimizer_bytes: int,
    activation_bytes: int | None = None,
) -> RankFootprint:
    """Return a rank's footprint with its sum."""
    parts = (parameter_bytes, buffer_bytes, gradient_bytes, optimizer_bytes, activation_bytes)
    return RankFootprint(rank, stage, *parts, sum(part or 0 for part in parts))


def check_plan(net: nn.Module, plan: Plan, ranks: int) -> None:
    """Raise ValueError unless every layer of ``plan`` is an nn.Linear that ``ranks`` divide,
    TypeError for no plan.
    """
    one_of("net", net, nn.Module, "an nn.Sequential")
    whole_number("tensor", ranks)
    if not isinstance(plan, Mapping):
        raise TypeError(
            "a plan says how each layer is split, as in {'0.up': 'column', '0.down': 'row'}; got "
            f"{short(plan)}"
        )
    layers = dict(net.named_modules())
    linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    for name, style in plan.items():
        if name not in linear:
            raise ValueError(
                f"the plan names {name!r}, which is no nn.Linear of this net; these are: "
                f"{', '.join(linear) or 'none'}"
            )
        if style not in ("column", "row"):
            raise ValueError(f"the plan splits {name!r} by {style!r}; give 'column' or 'row'")
        width, unit = (
            (layers[name].out_features, "outputs")
            if style == "column"
            else (layers[name].in_features, "inputs")
        )
        if width % ranks:
            raise ValueError(
                f"the {width} {unit} of {name!r} do not divide by {ranks} tensor ranks; choose a "
                "width or a number of ranks that does"
            )


def check_rows(rows: int, layout: Layout, microbatches: int) -> int:
    """Return the rows of a microbatch on a data rank.

    Raises ValueError for a batch that does not divide.
    """
    parts = layout.data * whole_number("microbatches", microbatches)
    if rows % parts:
        raise ValueError(
            f"a batch of {rows} rows does not divide among {layout.data} data ranks and "
            f"{microbatches} microbatches; give a multiple of {parts} rows"
        )
    return rows // parts


def cut_dimension(style: str | None, kind: str) -> int | None:
    """Return by which dimension ``style`` divides a parameter of an nn.Linear among tensor ranks,
    None where by none.

    A column split divides the outputs (rows of the weight, and the bias), a row split the inputs;
    the bias of a row split is whole everywhere (Megatron-LM: Shoeybi et al., 2019, arXiv
    1909.08053).
    """
    return {("column", "weight"): 0, ("column", "bias"): 0, ("row", "weight"): 1}.get(
        (style or "", kind)
    )


def cut_linear(layer: nn.Linear, style: str, *, ranks: int, rank: int = 0) -> None:
    """Leave of ``layer``, in place, the part that tensor rank ``rank`` of ``ranks`` has."""
    for kind, parameter in list(layer.named_parameters()):
        dimension = cut_dimension(style, kind)
        if dimension is not None:
            local_part = parameter.detach().chunk(ranks, dim=dimension)[rank].clone()
            setattr(layer, kind, nn.Parameter(local_part, requires_grad=parameter.requires_grad))


def _local_parameters(part: nn.Module, plan: Plan, ranks: int) -> list[_LocalParameter]:
    """Return the parameters of ``part`` as each of ``ranks`` tensor ranks has them."""
    local = []
    for name, parameter in part.named_parameters():
        layer, _, kind = name.rpartition(".")
        shape = list(parameter.shape)
        dimension = cut_dimension(plan.get(layer), kind)
        if dimension is not None:
            shape[dimension] //= ranks
        local.append(_LocalParameter(name, tuple(shape), parameter.dtype, parameter.requires_grad))
    return local


def _data_rank_bytes(
    local: list[_LocalParameter], layout: Layout, data_rank: int, optimizer: OptimizerFactory | None
) -> tuple[int, int, int]:
    """Return the bytes of parameters, gradients and optimizer states of a data rank."""
    learning = [parameter for parameter in local if parameter.learns]
    parameter_bytes, gradient_bytes = (
        sum(parameter.size_bytes for parameter in parameters) for parameters in (local, learning)
    )
    if layout.sharded == "parameters":
        _check_rows(local)
        kinds = tuple(
            (_rows(parameter.shape, layout.data, data_rank), parameter.dtype)
            for parameter in learning
        )
        return (
            _padded_bytes(local, layout.data),
            _padded_bytes(learning, layout.data),
            state_bytes(kinds, optimizer),
        )
    if layout.sharded == "nothing":
        kinds = tuple((parameter.shape, parameter.dtype) for parameter in learning)
        return parameter_bytes, gradient_bytes, state_bytes(kinds, optimizer)
    parts = _flat_parts(learning, layout.data)
    state = state_bytes(parts, optimizer)
    shard_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in parts)
    return parameter_bytes, shard_bytes if layout.sharded == "gradients" else gradient_bytes, state


def _flat_parts(
    learning: Iterable[_LocalParameter], ranks: int
) -> tuple[tuple[tuple[int], torch.dtype], ...]:
    """Return the (shape, dtype) of a rank's equal part of all parameters end to end, one a
    dtype.
    """
    numbers: dict[torch.dtype, int] = {}
    for parameter in learning:
        numbers[parameter.dtype] = numbers.get(parameter.dtype, 0) + math.prod(parameter.shape)
    return tuple(((math.ceil(number / ranks),), dtype) for dtype, number in numbers.items())


def _check_rows(local: Iterable[_LocalParameter]) -> None:
    flat = next((parameter.name for parameter in local if not parameter.shape), None)
    if flat is not None:
        raise ValueError(
            f"the parameter {flat!r} is one number without a dimension, and fully_shard cuts by "
            "the first dimension: give it the shape (1,)"
        )


def _padded_bytes(parameters: Iterable[_LocalParameter], ranks: int) -> int:
    return sum(
        math.ceil(parameter.shape[0] / ranks)
        * math.prod(parameter.shape[1:])
        * parameter.dtype.itemsize
        for parameter in parameters
    )


def _rows(shape: tuple[int, ...], ranks: int, rank: int) -> tuple[int, ...]:
    """Return the shape of a rank's rows as ``torch.chunk`` deals them: equal parts rounded up, the
    last shorter.
    """
    rows = math.ceil(shape[0] / ranks)
    return (max(0, min(rows, shape[0] - rank * rows)), *shape[1:])


def state_bytes(
    parameters: tuple[tuple[tuple[int, ...], torch.dtype], ...], optimizer: OptimizerFactory | None
) -> int:
    """Return the bytes of the state that ``optimizer`` has after a step on parameters of these
    shapes and dtypes.

    What it keeps of a parameter is taken to depend on that one's shape and dtype alone, as in
    torch.optim: a step is made on one of each kind.
    """
    if optimizer is None:
        return 0
    function(
        "optimizer",
        optimizer,
        "a class of torch.optim, or a function from parameters to an optimizer",
    )
    return sum(
        number * _state_bytes_of(*kind, optimizer) for kind, number in Counter(parameters).items()
    )


@lru_cache(maxsize=4096)
def _state_bytes_of(shape: tuple[int, ...], dtype: torch.dtype, optimizer: OptimizerFactory) -> int:
    parameter = nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"))
    parameter.grad = torch.empty_like(parameter)
    stepping = optimizer([parameter])
    try:
        stepping.step()
    except TypeError as error:  # LBFGS asks for a function that computes the loss again
        raise TypeError(
            f"{type(stepping).__name__} does not step by itself ({error}), so its state is not "
            "known from shapes; give an optimizer whose step() takes nothing, such as "
            "torch.optim.Adam"
        ) from error
    tensors = [
        value
        for state in stepping.state.values()
        for value in state.values()
        if torch.is_tensor(value)
    ]
    return sum(tensor.nbytes for tensor in tensors)


def without_values(net: Net, device: str | torch.device = "meta") -> Net:
    """Return a copy of ``net`` with empty parameters and buffers on ``device``; ties are kept, no
    value is copied.
    """
    copies: dict[int, torch.Tensor] = {
        id(buffer): torch.empty_like(buffer, device=device) for buffer in net.buffers()
    }
    for parameter in net.parameters():
        empty = torch.empty_like(parameter, device=device)
        copies[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return copy.deepcopy(net, copies)


def empty_output(layers: Iterable[nn.Module], value: torch.Tensor) -> torch.Tensor:
    """Return an empty meta tensor like the output of ``layers``, applied to ``value`` in turn."""
    value = torch.empty_like(value, device="meta")
    with torch.no_grad():
        for layer in layers:
            value = without_values(layer)(value)
    return value


def number_type(net: nn.Module) -> torch.dtype:
    """Return the type of the net's first parameter, and of its inputs; without one torch's
    default.
    """
    return next((parameter.dtype for parameter in net.parameters()), torch.get_default_dtype())
