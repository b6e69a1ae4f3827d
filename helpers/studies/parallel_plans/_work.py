"""What a net's layers cost, read off the net: seconds, bytes kept, handed on and summed, and which
layers to split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from helpers.checks import batch_shape, number, one_of, short
from helpers.operations import profile_ops
from helpers.parallel._costs import LayerCost
from helpers.parallel.pipeline._stages import layers_of, split_stages
from helpers.studies.parallel_plans._costs import LayerWork
from helpers.studies.parallel_plans._footprint import (
    Plan,
    check_plan,
    cut_dimension,
    cut_linear,
    number_type,
    without_values,
)

_BETWEEN = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Hardtanh,
            nn.Softplus, nn.Dropout, nn.Identity)  # fmt: skip


def tensor_plan(model: nn.Sequential) -> dict[str, str]:
    """Return which layers tensor ranks split: of each two nn.Linear with only element-wise layers
    between them, both.

    The first by columns and the second by rows, so that nothing is exchanged between them
    (Megatron-LM: Shoeybi et al., 2019, arXiv 1909.08053). Where the layers of ``model`` are nets
    themselves, a pair lies within one of them. Only nn.Sequential is looked into, for what another
    module does with its parts is not known: give such a net a plan of its own. Lesson 06.
    """
    one_of("model", model, nn.Sequential, "an nn.Sequential")
    plan: dict[str, str] = {}
    nested = any(isinstance(layer, nn.Sequential) for layer in model)
    for name, part in model.named_children() if nested else [("", model)]:
        column = None
        for path, layer in _leaves(part, name):
            if isinstance(layer, nn.Linear) and column is not None:
                plan |= {column: "column", path: "row"}
                column = None
            elif isinstance(layer, nn.Linear):
                column = path
            elif not isinstance(layer, _BETWEEN):
                column = None
    return plan


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    if not isinstance(module, nn.Sequential):
        yield name, module
        return
    for inner, child in module.named_children():
        yield from _leaves(child, f"{name}.{inner}" if name else inner)


def layer_work(
    model: nn.Sequential,
    inputs: Sequence[int],
    *,
    flops_per_s: float | None = None,
    layer_costs: Sequence[LayerCost] | None = None,
    plan: Plan | None = None,
) -> tuple[LayerWork, ...]:
    """Return the work of each layer of ``model`` on a batch of shape ``inputs``: see
    :class:`LayerWork`.

    Seconds are the counted FLOPs of :func:`.operations.profile_ops` over ``flops_per_s``, or those
    of ``layer_costs``. ``plan`` splits columns and, further on, the rows that follow them; what
    lies between is split as well.

    Raises ValueError unless exactly one of ``flops_per_s`` and ``layer_costs`` is given, for
    another number of costs, for a layer that stands in two places, and for a plan in which columns
    and rows do not take turns; TypeError for ``inputs`` that are no shape and for costs that are no
    :class:`costs.LayerCost`. Lesson 08.
    """
    one_of("model", model, nn.Sequential, "an nn.Sequential")
    batch_shape(inputs)
    if not len(model):
        raise ValueError("the model has no layers; put some into its nn.Sequential")
    if (flops_per_s is None) == (layer_costs is None):
        raise ValueError(
            "say how fast a device is: give either flops_per_s, or layer_costs with one LayerCost "
            "a layer"
        )
    if flops_per_s is not None:
        number("flops_per_s", flops_per_s, above=0)
    if layer_costs is not None and len(layer_costs) != len(model):
        raise ValueError(
            f"the model has {len(model)} layers and layer_costs {len(layer_costs)}; give one for "
            "each"
        )
    wrong = next((cost for cost in layer_costs or () if not isinstance(cost, LayerCost)), None)
    if wrong is not None:
        raise TypeError(
            "layer_costs are helpers.parallel.LayerCost(forward_s, backward_s, gradient_bytes), "
            f"one for each layer, not {short(wrong)}"
        )
    plan = plan or {}
    check_plan(model, plan, 1)
    profiles = {row.layer: row for row in profile_ops(model, tuple(inputs)).layers}
    outputs = _output_bytes(model, inputs)
    reader, works = _PlanReader(plan), []
    for index, (name, layer) in enumerate(layers_of(model)):
        row = profiles[name]
        rate = flops_per_s or math.inf
        work = LayerWork(
            name=name,
            forward_s=row.forward_flops / rate,
            backward_s=row.backward_flops / rate,
            parameter_bytes=sum(parameter.nbytes for parameter in layer.parameters()),
            gradient_bytes=sum(
                parameter.nbytes for parameter in layer.parameters() if parameter.requires_grad
            ),
            output_bytes=outputs[index],
            **reader.split(layer, name, profiles),
        )
        if layer_costs is not None:
            work = replace(
                work,
                forward_s=layer_costs[index].forward_s,
                backward_s=layer_costs[index].backward_s,
            )
        works.append(work)
    if reader.inside:
        raise ValueError(
            "the plan's last column split is followed by no row split; split the next nn.Linear by "
            "'row'"
        )
    return tuple(works)


class _PlanReader:
    """Goes through the layers in order: whether a column split is open, and whether anything has
    learned so far.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.inside, self.learned = plan, False, False

    def split(self, layer: nn.Module, name: str, profiles: dict) -> dict:
        """Return the work and the parameters of a layer that tensor ranks divide, and the bytes
        that they sum.
        """
        flops = parameter_bytes = gradient_bytes = 0
        entering, leaving = [], []
        for path, module in layer.named_modules(prefix=name):
            style = self.plan.get(path)
            if style == "row" and not self.inside:
                raise ValueError(
                    f"the plan splits {path!r} by rows, and no column split stands open before it"
                )
            if style is not None or (self.inside and not list(module.children())):
                flops += profiles[path].forward_flops + profiles[path].backward_flops
            if style == "column":
                self.inside = True
                # The gradient of the batch itself is not needed.
                entering += [profiles[path].input_bytes] if self.learned else []
            elif style == "row":
                self.inside = False
                leaving.append(profiles[path].output_bytes)
            for kind, parameter in module.named_parameters(recurse=False):
                if cut_dimension(style, kind) is not None:
                    parameter_bytes += parameter.nbytes
                    gradient_bytes += parameter.nbytes if parameter.requires_grad else 0
                self.learned |= parameter.requires_grad
        total_flops = profiles[name].forward_flops + profiles[name].backward_flops
        return {
            "split_share": flops / total_flops if total_flops else 0.0,
            "split_parameter_bytes": parameter_bytes,
            "split_gradient_bytes": gradient_bytes,
            "forward_sum_bytes": tuple(leaving),
            "backward_sum_bytes": tuple(entering),
        }


def _output_bytes(model: nn.Sequential, inputs: Sequence[int]) -> list[int]:
    value, sizes = torch.empty(tuple(inputs), dtype=number_type(model), device="meta"), []
    with torch.no_grad():
        for name, layer in without_values(model).named_children():
            value = layer(value)
            if not torch.is_tensor(value):
                raise ValueError(
                    f"layer {name!r} hands on a {type(value).__name__}; stages hand on one tensor"
                )
            sizes.append(value.nbytes)
    return sizes


Saved = list[dict[int, int]]


def activation_bytes(
    model: nn.Sequential,
    inputs: Sequence[int],
    *,
    stages: int = 1,
    tensor: int = 1,
    plan: Plan | None = None,
) -> list[int]:
    """Return the bytes that a rank of each stage keeps for the backward pass of one microbatch of
    shape ``inputs``.

    The layers run on meta tensors, cut to a tensor rank's width; counted is each storage that
    autograd saves, but for parameters, buffers and the batch itself. Raises ValueError for layers
    or widths that do not divide and for a pair of split layers that a stage ends between. Lesson
    06.
    """
    check_pairs(model, (plan or {}) if tensor > 1 else {}, stages)
    return sum_by_stage(
        saved_by_layer(rank_net(model, plan, tensor), inputs, tensor=tensor), stages
    )


def sum_by_stage(saved: Saved, stages: int) -> list[int]:
    """Return the bytes of each stage from those of each layer: a storage counts once a stage."""
    layers_per_stage = len(saved) // stages
    stage_storages = [
        {
            key: size
            for layer in saved[start : start + layers_per_stage]
            for key, size in layer.items()
        }
        for start in range(0, len(saved), layers_per_stage)
    ]
    return [sum(storages.values()) for storages in stage_storages]


def saved_by_layer(net: nn.Sequential, inputs: Sequence[int], *, tensor: int = 1) -> Saved:
    """Return the storages that each layer of a :func:`rank_net` saves, as {name of the storage:
    bytes}.

    Raises ValueError for inputs on which it does not run.
    """
    value = torch.empty(tuple(inputs), dtype=number_type(net), device="meta")
    layer_storages, outputs = [], [value]
    fixed_storages = {
        tensor.untyped_storage()._cdata for tensor in (*net.parameters(), *net.buffers(), value)
    }
    for layer in net:
        storages: dict[int, int] = {}

        def pack(saved_tensor: torch.Tensor, storages: dict[int, int] = storages) -> torch.Tensor:
            storage = saved_tensor.untyped_storage()
            if storage._cdata not in fixed_storages:
                storages[storage._cdata] = storage.nbytes()
            return saved_tensor

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                value = layer(value)
        except RuntimeError as error:
            if tensor == 1:
                raise ValueError(
                    f"the net does not run on inputs of shape {tuple(inputs)}: {error}"
                ) from None
            raise ValueError(
                f"with its plan for {tensor} tensor ranks the net does not run: {error}; split by "
                "columns and rows in pairs, with nothing between them that needs the whole width"
            ) from None
        # with its graph: the name of a storage that is gone could be another's
        outputs.append(value)
        layer_storages.append(storages)
    return layer_storages


def check_pairs(model: nn.Sequential, plan: Plan, stages: int) -> None:
    """Raise ValueError where a stage ends between layers that tensor ranks split together."""
    for part in split_stages(model, stages):
        styles = [plan[name] for name, _ in part.named_modules() if name in plan]
        if styles and (styles[0] == "row" or styles[-1] == "column"):
            raise ValueError(
                f"a pipeline of {stages} stages cuts between layers that tensor ranks split "
                "together; join each pair in an nn.Sequential of its own"
            )


def rank_net(model: nn.Sequential, plan: Plan | None, tensor: int) -> nn.Sequential:
    """Return a copy of ``model`` without values, its split layers as wide as each of ``tensor``
    ranks has them.

    Raises ValueError for widths that do not divide.
    """
    local_net = without_values(model)
    if tensor == 1:
        return local_net
    check_plan(model, plan or {}, tensor)
    for name, style in (plan or {}).items():
        layer = local_net.get_submodule(name)
        assert isinstance(layer, nn.Linear)  # the plan was checked
        cut_linear(layer, style, ranks=tensor)
    return local_net
