"""Layers split over ranks by DTensor: tensor parallel, sequence parallel, and both beside data parallel on a mesh.

A plan names nn.Linear layers and how their weight is split, as in ``{"up": "column", "down": "row"}``:

- "column": each rank has some of the outputs, which stay split for the next layer;
- "row": each rank has the inputs that a column split left it, and the ranks add their terms up (all-reduce);
- "gathered": as "column", but every rank gets all outputs at once. Always right, and twice the traffic or more.

After Shoeybi et al., "Megatron-LM" (2019), and Korthikanti et al., "Reducing activation recomputation in large
transformer models" (2022) for sequence parallel: there the values between the pairs are split by their dimension 1, a
layer that works on each token by itself is planned as "sequence", and an all-gather before the column and a
reduce-scatter after the row replace the all-reduces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers._checks import batch_shape, whole_number
from helpers.parallel._counting import CollectiveCounter, CollectiveCounts, count_collectives
from helpers.parallel._data_parallel import shard
from helpers.parallel._differences import Agreement, Loss, RankPass, agreement, gradients_of
from helpers.parallel._execution import RankPool, rank_device
from helpers.parallel._footprint import check_plan
from helpers.results import Result

WAYS = ("column", "row", "gathered", "sequence")

Plan = Mapping[str, str]


@dataclass(frozen=True)
class TensorTraffic(Result):
    """The collectives of one rank in a forward and in a backward pass. Lesson 05."""

    forward: CollectiveCounts
    backward: CollectiveCounts


@dataclass(frozen=True)
class TensorRun(Result):
    """One pass of a batch through a split net on data x tensor ranks, forward and back, against one process.

    ``traffic`` is what rank 0 called in the passes; after them ``averaged_bytes`` went into an all-reduce over the data
    ranks, its own part of the gradients. ``parameters`` are those of the whole net, ``rank_parameters`` what each rank
    holds of them. ``rank_flops`` are the FLOPs of the matrix
    products that rank 0 computed in both passes; ``flop_counter_flops`` is what PyTorch's FlopCounterMode says there,
    which counts the whole product of a split layer on every rank. Lesson 05.
    """

    data: int
    tensor: int
    sequence: bool
    agreement: Agreement
    parameters: int
    rank_parameters: tuple[int, ...]
    rank_flops: int
    flop_counter_flops: int
    averaged_bytes: int
    traffic: TensorTraffic


def make_mesh(*, data: int = 1, tensor: int = 1) -> Any:
    """Return the mesh of data x ``tensor`` ranks, dimensions "data" and "tensor"; every rank calls it.

    Tensor ranks are neighbours: they have the most to say to each other. Raises ValueError where these are not all
    ranks, and RuntimeError outside of ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh

    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("a mesh is made of ranks: call this in a function that Ranks(...).run or torchrun starts")
    check_mesh(dist.get_world_size(), data=data, tensor=tensor)
    return init_device_mesh(rank_device().type, (data, tensor), mesh_dim_names=("data", "tensor"))


def check_mesh(ranks: int, *, data: int, tensor: int) -> None:
    """Raise ValueError unless data x ``tensor`` are all ``ranks``."""
    whole_number("data", data)
    whole_number("tensor", tensor)
    if data * tensor != ranks:
        raise ValueError(f"a mesh of {data} data x {tensor} tensor ranks has {data * tensor}, and here are {ranks}; "
                         "choose sizes whose product is the number of ranks")  # fmt: skip


def split_layers(net: nn.Module, plan: Plan, mesh: Any, *, sequence: bool = False) -> nn.Module:
    """Split the layers of ``net`` in place over the "tensor" ranks of ``mesh`` and return it; every rank calls it.

    Every rank brings the same values, takes and returns whole tensors, and keeps whole what the plan does not name. The
    parameters that are split become DTensors: ``full_tensor()`` puts one together. With ``sequence`` the values between
    the layers are split by dimension 1, and what has parameters must be planned. The gradients of a "sequence" layer
    are DTensors too, of each rank's own tokens: their local part is a term of a sum, and ``full_tensor()`` adds it up.

    Raises what :func:`check_split` raises.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    check_split(net, plan, mesh["tensor"].size(), sequence=sequence)
    between = Shard(1) if sequence else Replicate()
    styles = {
        "column": lambda: ColwiseParallel(input_layouts=between),
        "gathered": lambda: ColwiseParallel(output_layouts=Replicate()),
        "row": lambda: RowwiseParallel(output_layouts=between),
        "sequence": SequenceParallel,
    }
    parallelize_module(net, mesh["tensor"], {name: styles[way]() for name, way in plan.items()}, src_data_rank=None)
    if sequence:
        ends = (PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True),
                PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate()))  # fmt: skip
        for end in ends:
            parallelize_module(net, mesh["tensor"], end, src_data_rank=None)
    return net


def check_split(net: nn.Module, plan: Plan, ranks: int, *, sequence: bool = False) -> None:
    """Raise ValueError unless ``plan`` splits ``net`` over ``ranks`` so that every layer reads what it expects.

    That is: each name is a layer's, each way is known, the split widths divide by the ranks, what a "column" leaves
    split is read by a "row", and in sequence parallel every layer with parameters is planned. nn.Linear layers are
    taken to run in the order in which the net names them. Lesson 05.
    """
    layers = dict(net.named_modules())
    for name, way in plan.items():
        if way not in WAYS:
            raise ValueError(f"the plan splits {name!r} by {way!r}; give one of {', '.join(WAYS)}")
        if way == "sequence" and (name not in layers or not sequence):
            raise ValueError(f"the plan has {name!r} as 'sequence': that is for a layer of this net, and takes "
                             "sequence=True")  # fmt: skip
        if way == "gathered" and sequence:
            raise ValueError(f"the plan has {name!r} as 'gathered', and in sequence parallel no rank has all tokens "
                             "between the layers; split it by 'column', and the next layer by 'row'")  # fmt: skip
    linear = {name: "row" if way == "row" else "column" for name, way in plan.items() if way != "sequence"}
    check_plan(net, linear, ranks)
    _check_order([(name, plan.get(name)) for name, layer in layers.items() if isinstance(layer, nn.Linear)])
    if sequence:
        left = sorted({name.rpartition(".")[0] for name, _ in net.named_parameters()} - set(plan))
        if left:
            raise ValueError(f"{', '.join(map(repr, left))} would see a part of the sequence and train on that alone; "
                             "in sequence parallel the plan names every layer with parameters")  # fmt: skip


def _check_order(layers: Sequence[tuple[str, str | None]]) -> None:
    split_by = None
    for name, way in layers:
        if way == "row" and split_by is None:
            raise ValueError(f"{name!r} is split by 'row' and reads inputs that are split, and those of this net are "
                             "whole there; split the layer before it by 'column'")  # fmt: skip
        if split_by is not None and way in (None, "gathered"):
            raise ValueError(f"the outputs of {split_by!r} stay split, and {name!r} reads them whole; split {name!r} "
                             f"by 'row', or {split_by!r} by 'gathered'")  # fmt: skip
        split_by = name if way == "column" else None
    if split_by is not None:
        raise ValueError(f"the outputs of {split_by!r} stay split at the end of the net; split it by 'gathered'")


def model_tensor_traffic(
    net: nn.Module, plan: Plan, *, inputs: Sequence[int], tensor: int, sequence: bool = False
) -> TensorTraffic:
    """Return the collectives of one of ``tensor`` ranks in a pass over ``inputs``, the shape of its rows of the batch.

    Per layer, n bytes being all its outputs or inputs: "row" adds its outputs up in an all-reduce, and "column" its
    inputs' gradients; "gathered" does the second and all-gathers its outputs. In sequence parallel an all-reduce
    becomes a reduce-scatter there and an all-gather in the other pass, and the net's outputs are gathered at its end.
    The first layer that learns hands no gradient on. nn.Linear layers are taken to run in the order in which the net
    names them, each on all tokens. One rank calls nothing. Raises what :func:`check_split` raises, and TypeError or
    ValueError for ``inputs`` that are no shape, or not as wide as the first layer reads. Lesson 05.
    """
    check_split(net, plan, tensor, sequence=sequence)
    inputs = batch_shape(inputs)
    first = next((layer for layer in net.modules() if isinstance(layer, nn.Linear)), None)
    if first is not None and first.in_features != inputs[-1]:
        raise ValueError(f"the first nn.Linear reads {first.in_features} numbers a token, and inputs of shape {inputs} "
                         f"have {inputs[-1]}; give the shape (rows, ..., {first.in_features})")  # fmt: skip
    called: dict[str, list[tuple[str, int]]] = {"forward": [], "backward": []}
    tokens, learned, width, itemsize = math.prod(inputs[:-1]), False, inputs[-1], 4
    for name, layer in net.named_modules():
        own = list(layer.parameters(recurse=False))
        if isinstance(layer, nn.Linear):
            width, itemsize = layer.out_features, layer.weight.element_size()
            sizes = tokens * layer.in_features * itemsize, tokens * layer.out_features * itemsize
            for step, collective, size in _collectives(plan.get(name), sizes, sequence=sequence):
                if step == "forward" or learned or collective == "all_gather":
                    called[step].append((collective, size))
        learned = learned or any(parameter.requires_grad for parameter in own)
    if sequence:
        called["forward"].append(("all_gather", tokens * width * itemsize))
    if tensor == 1:
        called = {"forward": [], "backward": []}
    return TensorTraffic(_counted(called["forward"]), _counted(called["backward"][::-1]))


def _counted(calls: Sequence[tuple[str, int]]) -> CollectiveCounts:
    counter = CollectiveCounter()
    for collective, size_bytes in calls:
        counter.add(collective, size_bytes)
    return counter.counts


def _collectives(way: str | None, sizes: tuple[int, int], *, sequence: bool) -> list[tuple[str, str, int]]:
    """Return (pass, collective, bytes) of a layer with ``sizes`` of inputs and outputs."""
    read, written = sizes
    if way == "row":
        if sequence:
            return [("forward", "reduce_scatter", written), ("backward", "all_gather", written)]
        return [("forward", "all_reduce", written)]
    if way == "column" and sequence:
        return [("forward", "all_gather", read), ("backward", "reduce_scatter", read)]
    found = [("backward", "all_reduce", read)] if way in ("column", "gathered") else []
    return [("forward", "all_gather", written), *found] if way == "gathered" else found


class FlopCount(TorchDispatchMode):
    """Counts the FLOPs that this rank computes inside the ``with``: of a split layer its own part of the product.

    ``flops`` are those of PyTorch's formulas (matrix products, convolutions, attention: two a multiply-add). PyTorch's
    own FlopCounterMode sees a split layer before DTensor splits it, and counts the whole product on each rank.

    Lesson 05.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        from torch.distributed.tensor import DTensor
        from torch.utils.flop_counter import flop_registry

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor calls the operators of the parts, and they come by here
        result = operator(*args, **(kwargs or {}))
        formula = flop_registry.get(operator._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


def compare_tensor_parallel(
    ranks: RankPool,
    net: nn.Module,
    *,
    plan: Plan,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss: Loss,
    data: int = 1,
    tensor: int | None = None,
    sequence: bool = False,
    tolerance: float = 1e-5,
    timeout_s: float = 120.0,
) -> TensorRun:
    """Return how ``net``, split by ``plan``, compares with ``net`` here: outputs, gradients, collectives, FLOPs.

    ``tensor`` is by default all ranks of ``ranks`` over ``data``. The data ranks share the rows of ``inputs`` equally
    and average their gradients; ``loss(outputs, targets)`` is a mean over rows. ``net`` takes and returns one tensor,
    (rows, ..., width), in sequence parallel (rows, tokens, width), and stays as it is.

    Raises ValueError for a mesh that is not all ranks, rows or tokens that do not divide, and as :func:`check_split`.
    Lesson 05.
    """
    parts = max(1, ranks.world_size // whole_number("data", data)) if tensor is None else tensor
    check_mesh(ranks.world_size, data=data, tensor=parts)
    check_split(net, plan, parts, sequence=sequence)
    if len(inputs) % data:
        raise ValueError(f"{len(inputs)} rows do not divide among {data} data ranks; give a multiple of {data}")
    if sequence and (inputs.ndim != 3 or inputs.shape[1] % parts):
        raise ValueError(f"inputs of shape {tuple(inputs.shape)} have no sequence, in dimension 1 of three, that "
                         f"divides among {parts} tensor ranks; give (rows, a multiple of {parts}, width)")  # fmt: skip
    outputs, alone = gradients_of(net, inputs, targets, loss)
    passes = ranks.run(_run, net, dict(plan), (data, parts), sequence, inputs, targets, loss, timeout_s=timeout_s)
    columns = [torch.cat([own.outputs for own in passes[start::parts]]) for start in range(parts)]
    several = [agreement(columns, outputs, own.gradients, alone, tolerance=tolerance) for own in passes]
    return TensorRun(
        data=data,
        tensor=parts,
        sequence=sequence,
        agreement=max(several, key=lambda compared: max(compared.output_difference, compared.gradient_difference)),
        parameters=sum(parameter.numel() for parameter in net.parameters()),
        rank_parameters=tuple(own.counted.pop("parameters") for own in passes),
        **passes[0].counted,
    )


# What runs on a rank.


def _run(
    _rank: int, _world_size: int, net: nn.Module, plan: dict[str, str], sizes: tuple[int, int], sequence: bool,
    inputs: torch.Tensor, targets: torch.Tensor, loss: Loss,
) -> RankPass:  # fmt: skip
    from torch.utils.flop_counter import FlopCounterMode

    device = rank_device()
    mesh = make_mesh(data=sizes[0], tensor=sizes[1])
    place = mesh["data"].get_local_rank()
    batch = [shard(whole, place, world_size=sizes[0]).to(device) for whole in (inputs, targets)]
    split = split_layers(net.to(device), plan, mesh, sequence=sequence)
    split.zero_grad()
    with count_collectives() as forward:
        outputs = split(batch[0]).clone()  # what is still on its way arrives before it is cloned
    with count_collectives() as backward:
        loss(outputs, batch[1]).backward()
    traffic = TensorTraffic(forward.counts, backward.counts)
    with count_collectives() as averaged:
        _average(split, mesh["data"].get_group())
    gradients = {
        name: _whole(parameter.grad, parameter).cpu()
        for name, parameter in split.named_parameters()
        if parameter.requires_grad
    }
    own, theirs = FlopCount(), FlopCounterMode(display=False)
    for counter in (own, theirs):
        with counter:
            loss(split(batch[0]), batch[1]).backward()
    held = sum(_local(parameter).numel() for parameter in split.parameters())
    counted = {"parameters": held, "rank_flops": own.flops, "flop_counter_flops": theirs.get_total_flops(),
               "averaged_bytes": averaged.counts.size_bytes("all_reduce"), "traffic": traffic}  # fmt: skip
    return RankPass(outputs.detach().cpu(), gradients, counted)


def _average(net: nn.Module, group: dist.ProcessGroup) -> None:
    """Replace what this rank has of each gradient by its mean over the data ranks in ``group``, as one flat buffer."""
    own = [_local(parameter.grad) for parameter in net.parameters() if parameter.grad is not None]
    if dist.get_world_size(group) == 1 or not own:
        return
    flat = torch.cat([gradient.flatten() for gradient in own])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for gradient, mean in zip(own, flat.split([gradient.numel() for gradient in own]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def _whole(gradient: torch.Tensor | None, parameter: torch.Tensor) -> torch.Tensor:
    if gradient is None:
        return torch.zeros(parameter.shape, dtype=parameter.dtype)
    whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return whole.clone()  # it may be the gradient itself, to which a later pass adds


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
