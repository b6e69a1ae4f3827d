"""Operators that compute nothing and move data: what they read and write, and what their gradients cost."""

from __future__ import annotations

from math import prod

from helpers.operations import conventions
from helpers.operations.specs import Call, Spec
from helpers.operations.work import NOTHING, Rule, Work, option, summed, traffic


def _moved_back(call: Call) -> Work:
    """Backward of moving data: each gradient is moved, and summed where its operand was broadcast or repeated."""
    total = NOTHING
    for spec in call.inputs:
        if spec.needs_grad:
            flops = call.output.numel if spec.numel < call.output.numel and call.name in _SUMMED_BACK else 0
            total += Work(flops=flops) + traffic([call.output] if flops else [spec], [spec])
    return total


_SUMMED_BACK = frozenset({"where", "repeat", "repeat_interleave", "masked_fill"})


def _fill(call: Call) -> Work:
    return traffic([], [call.output])


def _copy(call: Call) -> Work:
    read = call.inputs[1:] if call.name == "copy" else call.inputs
    return traffic(read, [call.output])


def _gather(call: Call) -> Work:
    source = call.inputs[0]
    indices = [spec for spec in call.inputs[1:] if spec.kind == "i"]
    return traffic([call.output._replace(is_weight=source.is_weight), *indices], [call.output])


def _gather_back(call: Call) -> Work:
    source = call.inputs[0]
    if not source.needs_grad:
        return NOTHING
    indices = [spec for spec in call.inputs[1:] if spec.kind == "i"]
    return Work(flops=call.output.numel) + traffic([call.output, *indices], [source])


def _scattered(call: Call) -> Spec:
    """What is put: the last floating-point tensor that is not the destination, else the destination."""
    return next((spec for spec in reversed(call.inputs[1:]) if spec.kind != "i"), call.inputs[0])


def _scatter(call: Call) -> Work:
    is_adding = call.name in conventions.ACCUMULATING or (
        "index_put" in call.name and bool(option(call, "accumulate", 3, False))
    )
    values = _scattered(call)
    indices = [spec for spec in call.inputs[1:] if spec.kind == "i"]
    flops = values.numel if is_adding and values.kind != "i" else 0
    return Work(flops=flops) + traffic([values, *indices], [values])


def _scatter_back(call: Call) -> Work:
    wanted = [spec for spec in call.inputs if spec.needs_grad]
    return traffic(wanted, wanted)


def _bag(call: Call) -> Work:
    weight, indices = call.args[0], call.args[1]
    rows = indices.numel * prod(weight.shape[1:])
    read = weight._replace(elements=rows)
    return Work(flops=rows) + traffic([read, indices], [call.output])


def _bag_back(call: Call) -> Work:
    weight, indices = call.args[0], call.args[1]
    if not weight.needs_grad:
        return NOTHING
    return Work(flops=indices.numel * prod(weight.shape[1:])) + traffic([call.output, indices], [weight])


def _expanded_back(call: Call) -> Work:
    """An expanded view costs nothing; its gradient is summed over what was expanded."""
    source = call.inputs[0]
    return summed(call.output._replace(elements=call.output.numel), source) if source.needs_grad else NOTHING


def _none(_: Call) -> Work:
    return NOTHING


RULES: dict[str, Rule] = {
    **{name: Rule(_fill, _none) for name in conventions.FILL},
    **{name: Rule(_copy, _moved_back) for name in conventions.COPY},
    **{name: Rule(_gather, _gather_back) for name in conventions.GATHER},
    **{name: Rule(_scatter, _scatter_back) for name in conventions.SCATTER},
    "im2col": Rule(_copy, _gather_back),  # its gradient is a fold: each element is added where it came from
    "expand": Rule(_none, _expanded_back),
    "_embedding_bag": Rule(_bag, _bag_back),
    "_embedding_bag_forward_only": Rule(_bag, _bag_back),
}
