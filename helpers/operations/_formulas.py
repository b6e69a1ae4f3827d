"""The cost of one recorded operator, forward and backward, from its shapes.

A multiply-accumulate is counted for every product of a convolution or matrix product that torch
executes, padding included; a MAC is two FLOP (:func:`helpers.units.flops_from_macs`). The backward
pass of a product is one product of the same size for each operand that needs a gradient. Bytes are
the compulsory traffic: each operand read once, the result written once, nothing kept in a cache
between operators; indices and statistics that an operator returns beside its result are left out.
The per-element costs stand in :mod:`helpers.operations._conventions`.

Lesson 11.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from math import prod
from typing import Any

import torch

from helpers import units
from helpers.checks import kind_of
from helpers.operations import _conventions as conventions
from helpers.operations._specs import (
    NOTHING,
    Call,
    Rule,
    Spec,
    Work,
    broadcast_gradient,
    operator_of,
    option,
    traffic,
)
from helpers.steps import first_line

# Operators that compute nothing and move data: what they read and write, and what their gradients
# cost.


def _move_backward(call: Call) -> Work:
    """Backward of moving data: each gradient is moved, and summed where its operand was broadcast
    or repeated.
    """
    total = NOTHING
    for spec in call.inputs:
        if spec.needs_grad:
            flops = (
                call.output.numel
                if spec.numel < call.output.numel and call.name in _SUMMED_IN_BACKWARD
                else 0
            )
            total += Work(flops=flops) + traffic([call.output] if flops else [spec], [spec])
    return total


_SUMMED_IN_BACKWARD = frozenset({"where", "repeat", "repeat_interleave", "masked_fill"})


def _copy(call: Call) -> Work:
    operands = call.inputs[1:] if call.name == "copy" else call.inputs
    return traffic(operands, [call.output])


def _gather(call: Call) -> Work:
    source = call.inputs[0]
    indices = [spec for spec in call.inputs[1:] if spec.kind == "i"]
    return traffic([call.output._replace(is_weight=source.is_weight), *indices], [call.output])


def _gather_backward(call: Call) -> Work:
    source = call.inputs[0]
    if not source.needs_grad:
        return NOTHING
    indices = [spec for spec in call.inputs[1:] if spec.kind == "i"]
    return Work(flops=call.output.numel) + traffic([call.output, *indices], [source])


def _scatter_source(call: Call) -> Spec:
    """The values that are put: the last floating-point tensor that is not the destination, else the
    destination.
    """
    return next((spec for spec in reversed(call.inputs[1:]) if spec.kind != "i"), call.inputs[0])


def _scatter(call: Call) -> Work:
    is_adding = call.name in conventions.ACCUMULATING or (
        "index_put" in call.name and bool(option(call, "accumulate", 3, False))
    )
    values = _scatter_source(call)
    indices = [spec for spec in call.inputs[1:] if spec.kind == "i"]
    flops = values.numel if is_adding and values.kind != "i" else 0
    return Work(flops=flops) + traffic([values, *indices], [values])


def _scatter_backward(call: Call) -> Work:
    gradients = [spec for spec in call.inputs if spec.needs_grad]
    return traffic(gradients, gradients)


def _bag(call: Call) -> Work:
    weight, indices = call.args[0], call.args[1]
    rows = indices.numel * prod(weight.shape[1:])
    gathered_rows = weight._replace(elements=rows)
    return Work(flops=rows) + traffic([gathered_rows, indices], [call.output])


def _bag_backward(call: Call) -> Work:
    weight, indices = call.args[0], call.args[1]
    if not weight.needs_grad:
        return NOTHING
    return Work(flops=indices.numel * prod(weight.shape[1:])) + traffic(
        [call.output, indices], [weight]
    )


def _expand_backward(call: Call) -> Work:
    """An expanded view costs nothing; its gradient is summed over what was expanded."""
    source = call.inputs[0]
    return (
        broadcast_gradient(call.output._replace(elements=call.output.numel), source)
        if source.needs_grad
        else NOTHING
    )


def _accumulate(call: Call) -> Work:
    return Work(flops=call.inputs[-1].numel) + traffic(call.inputs, [call.output])


def _no_work(_: Call) -> Work:
    return NOTHING


_MOVING: dict[str, Rule] = {
    **{name: Rule(lambda call: traffic([], [call.output]), _no_work) for name in conventions.FILL},
    **{name: Rule(_copy, _move_backward) for name in conventions.COPY},
    **{name: Rule(_gather, _gather_backward) for name in conventions.GATHER},
    **{name: Rule(_scatter, _scatter_backward) for name in conventions.SCATTER},
    # its gradient is a fold: each element is added where it came from
    "im2col": Rule(_copy, _gather_backward),
    "expand": Rule(_no_work, _expand_backward),
    # the gradient of what a score of flex_attention takes
    "flex_lib::zeros_and_scatter": Rule(_accumulate, _no_work),
    "_embedding_bag": Rule(_bag, _bag_backward),
    "_embedding_bag_forward_only": Rule(_bag, _bag_backward),
}


_REGISTERED: dict[str, list[Rule]] = {}  # the last one holds


def rule_for(name: str) -> Rule | None:
    """Return the rule of the operator ``name``, or None where the library has none."""
    return _REGISTERED[name][-1] if _REGISTERED.get(name) else _RULES.get(name)


def is_registered(name: str) -> bool:
    """Tell whether the rule of ``name`` was given by :func:`register`."""
    return bool(_REGISTERED.get(name))


def register(
    operator: Any, rule: Callable[[Call], Work], backward: Callable[[Call], Work] | None = None
) -> ExitStack:
    """Give an operator a rule of its own, for :func:`.operations.profile_ops` and all that counts
    with it.

    ``operator`` is what ``torch.library.custom_op`` returns, one of ``torch.ops``, or its name
    ("course::scaled_tanh", "aten::sort"). ``rule`` and ``backward`` take the call and return its
    work in one phase, most simply by :func:`work`; without ``backward`` the gradient is taken to
    cost nothing. ``call.inputs`` and ``call.outputs`` are its tensors in order (``.shape``,
    ``.numel``, ``.bytes``), ``call.output`` is the first result, ``call.args`` and ``call.kwargs``
    hold tensors and options as they were given::

        operations.register(scaled_tanh, lambda call: operations.work(call, flops=3 *
        call.output.numel))

    The last rule for an operator holds. What is returned takes this one back, by ``close()`` or at
    the end of a ``with`` block: ``with operations.register(...): profile_ops(...)`` is for one
    call.

    Raises TypeError for what names no operator, or a rule that cannot be called, and where the rule
    is applied for one that returns something else than work; RuntimeError there for one that
    raises.

    >>> from helpers import count_ops
    >>> rule = lambda call: work(call, flops=10 * call.output.numel)
    >>> with register("aten::sort", rule), count_ops() as ops:
    ...     values, indices = torch.sort(torch.ones(8))
    >>> ops.profile().forward_flops
    80

    Lesson 11.
    """
    name = _name_of(operator)
    if name is None or not callable(rule) or not (backward is None or callable(backward)):
        kind, rejected = (
            ("operator", operator)
            if name is None
            else ("rule", backward if callable(rule) else rule)
        )
        rejected_text = (
            repr(rejected) if isinstance(rejected, str | float | int) else kind_of(rejected)
        )
        raise TypeError(
            f"the {kind} {rejected_text} cannot be used; pass an operator that is defined "
            "(torch.ops.aten.sort, what torch.library.custom_op returned, or "
            "'course::scaled_tanh') and functions from a call to operations.work(call, macs=..., "
            "flops=...)"
        )
    registered_rule = Rule(
        _guard_rule(rule, name), _guard_rule(backward, name) if backward else lambda _: NOTHING
    )
    _REGISTERED.setdefault(name, []).append(registered_rule)
    registration = ExitStack()
    registration.callback(_take_back, name, registered_rule)
    return registration


def _take_back(name: str, registered_rule: Rule) -> None:
    _REGISTERED[name] = [rule for rule in _REGISTERED[name] if rule is not registered_rule]


def _guard_rule(rule: Callable[[Call], Work], name: str) -> Callable[[Call], Work]:
    """Return ``rule`` with an error that names the operator where it raises, or returns something
    else than work.
    """

    def apply(call: Call) -> Work:
        try:
            result = rule(call)
        except Exception as error:
            raise RuntimeError(
                f"the rule registered for {name} raised {type(error).__name__}: "
                f"{first_line(error)}; it must return operations.work(call, macs=..., flops=...) "
                "for every call"
            ) from error
        if not isinstance(result, Work):
            raise TypeError(
                f"the rule registered for {name} returned {kind_of(result)}; "
                "it must return operations.work(call, macs=..., flops=...)"
            )
        return result

    return apply


def _name_of(operator: Any) -> str | None:
    """Return the name by which calls of ``operator`` are recorded, None for what is no operator of
    torch.
    """
    schema = getattr(operator, "_schema", None)
    name = operator if isinstance(operator, str) else getattr(operator, "_qualname", None)
    name = name or (
        schema.name if schema is not None else getattr(operator, "_qualified_op_name", None)
    )
    namespace, _, plain = name.rpartition("::") if isinstance(name, str) else ("", "", "")
    packet = (
        getattr(getattr(torch.ops, namespace or "aten"), plain, None)
        if plain.isidentifier()
        else None
    )
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    return operator_of(getattr(packet, packet.overloads()[0])).name


def work(call: Call, macs: int = 0, flops: int = 0) -> Work:
    """Return the work of ``call`` for a rule of one's own.

    ``macs`` are the multiply-accumulates of its products, all of them useful; ``flops`` are the
    operations besides, so that the FLOPs are 2 ``macs`` + ``flops``. Bytes: each operand is read
    once and each result written once.

    >>> from helpers import count_ops
    >>> with register("aten::sort", lambda call: work(call, macs=5, flops=2)), count_ops() as ops:
    ...     values, indices = torch.sort(torch.ones(8))
    >>> ops.macs, ops.profile().forward_flops
    (5, 12)

    Lesson 11.
    """
    return Work(macs, macs, units.flops_from_macs(macs) + flops) + traffic(
        call.inputs, call.outputs
    )


# Products.


def _product(call: Call, macs: int) -> Work:
    """Return ``macs`` as work, four real ones a complex one, and the useful part under a causal
    mask.
    """
    macs *= 4 if any(spec.kind == "c" for spec in call.inputs) else 1
    useful = macs
    if call.causal is not None:
        rows, columns = call.causal
        useful = macs // max(1, rows * columns) * sum(min(row + 1, columns) for row in range(rows))
    return Work(macs, useful, units.flops_from_macs(macs))


def _product_rule(
    macs: Callable[[Call], int], operands: Callable[[Call], tuple[Spec, Spec]]
) -> Rule:
    """Return the rule of an operator that multiplies two operands and may add a third to the
    result.
    """

    def forward(call: Call) -> Work:
        return _product(call, macs(call)) + _scaling(call) + traffic(call.inputs, [call.output])

    def backward(call: Call) -> Work:
        left, right = operands(call)
        total = NOTHING
        for operand, other_operand in ((left, right), (right, left)):
            if operand.needs_grad:
                total += _product(call, macs(call)) + traffic(
                    [call.output, other_operand], [operand]
                )
        biases = [spec for spec in call.inputs if spec is not left and spec is not right]
        for bias in biases:
            if bias.needs_grad:
                total += broadcast_gradient(call.output, bias)
        return total

    return Rule(forward, backward)


def _scaling(call: Call) -> Work:
    """``alpha`` and ``beta`` of addmm and its kind: one multiplication an element where they are
    not 1.
    """
    scale_factors = sum(call.kwargs.get(name, 1) not in (0, 1) for name in ("alpha", "beta"))
    return Work(flops=scale_factors * call.output.numel)


def _matrix_product_rule(first_index: int) -> Rule:
    """Matrix product of the operands at ``first_index`` and after it: result elements times the
    length summed over.
    """

    def operands(call: Call) -> tuple[Spec, Spec]:
        return call.args[first_index], call.args[first_index + 1]

    def macs(call: Call) -> int:
        left, right = operands(call)
        columns = right.shape[-1] if len(right.shape) > 1 else 1
        return left.numel * columns

    return _product_rule(macs, operands)


def _grouped_macs(call: Call) -> int:
    """Products of groups of rows (or of columns, or of what is summed over): every row is in one of
    the groups.
    """
    left, right = call.args[:2]
    # each column of the right belongs to one group
    is_spread = len(left.shape) == 3 and len(right.shape) == 2
    return left.numel * right.shape[-1] // (max(1, left.shape[0]) if is_spread else 1)


_GROUPED = ("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")
# Products with weights of 8 or 4 bits, of which several may stand in one number.
_PACKED = (
    "_weight_int8pack_mm",
    "_weight_int4pack_mm",
    "_weight_int4pack_mm_for_cpu",
    "_dyn_quant_matmul_4bit",
    "_weight_int4pack_mm_with_scales_and_zeros",
)


def _packed_macs(call: Call) -> int:
    return call.args[0].numel * call.output.shape[-1]


def _triangular_solve() -> Rule:
    """X of A X = B, or X A = B: each element is one of B, less products with those before it, over
    A's diagonal.

    No product of matrices: n operations an element of X, n - 1 where the diagonal is 1. The
    gradient of B is such a solve again, and that of A is a product with it, negated
    (``linalg_solve_triangular_backward`` in PyTorch's torch/csrc/autograd/FunctionsManual.cpp).
    """

    def solve(call: Call) -> Work:
        order = call.args[0].shape[-1] - bool(call.kwargs.get("unitriangular"))
        return Work(flops=order * call.output.numel) + traffic(call.inputs, [call.output])

    def backward(call: Call) -> Work:
        matrix = call.args[0]
        order, elements = matrix.shape[-1], call.output.numel
        total = solve(call)
        if matrix.needs_grad:
            gradient = matrix._replace(
                shape=(elements * order // max(1, prod(call.output.shape[-2:])), order), elements=0
            )
            total += (
                _product(call, elements * order)
                + Work(flops=gradient.numel)
                + broadcast_gradient(gradient, matrix)
            )
            total += traffic([call.output, call.output], [matrix])
        return total

    return Rule(solve, backward)


def _convolution_macs(call: Call) -> int:
    data, weight = call.args[0], call.args[1]
    is_transposed = option(call, "transposed", 6, False)
    spread_elements = data.numel if is_transposed else call.output.numel
    return spread_elements * prod(weight.shape[1:])


def _trilinear() -> Rule:
    """``F.bilinear``: the outer product of the two inputs (element-wise), times the weight
    (MACs).
    """

    def sizes(call: Call) -> tuple[int, int]:
        shapes = []
        for spec, dims in zip(call.args[:3], call.args[3:6], strict=True):
            shape = list(spec.shape)
            for dim in sorted(dims):
                shape.insert(dim, 1)
            shapes.append(shape)
        full = [max(column) if 0 not in column else 0 for column in zip(*shapes, strict=True)]
        outer = [max(a, b) if a and b else 0 for a, b in zip(shapes[0], shapes[2], strict=True)]
        return prod(full), prod(outer)

    def forward(call: Call) -> Work:
        full, outer = sizes(call)
        return _product(call, full) + Work(flops=outer) + traffic(call.inputs, [call.output])

    def backward(call: Call) -> Work:
        full, outer = sizes(call)
        first, weight, second = call.args[:3]
        total = NOTHING
        if weight.needs_grad:
            total += (
                _product(call, full)
                + Work(flops=outer)
                + traffic([call.output, first, second], [weight])
            )
        if first.needs_grad or second.needs_grad:
            total += _product(call, full) + traffic([call.output, weight], 0)
        for operand, other_operand in ((first, second), (second, first)):
            if operand.needs_grad:
                total += _product(call, outer) + traffic([other_operand], [operand])
        return total

    return Rule(forward, backward)


# Operators counted per element.


def _is_floating(call: Call) -> bool:
    return any(spec.kind != "i" for spec in (*call.inputs, *call.outputs))


def _elementwise(name: str, convention: conventions.Elementwise) -> Rule:
    def applied_convention(call: Call) -> conventions.Elementwise:
        is_tanh = name == "gelu" and option(call, "approximate", 1, "none") == "tanh"
        return conventions.GELU_TANH if is_tanh else convention

    def forward(call: Call) -> Work:
        if not _is_floating(call):
            return traffic(call.inputs, [call.output])
        flops = applied_convention(call).flops
        if any(spec.kind == "c" for spec in call.inputs):
            flops = conventions.COMPLEX_FLOPS.get(name, 2 * flops)
        flops += sum(call.kwargs.get(option, 1) != 1 for option in ("alpha", "value"))
        return Work(flops=flops * call.output.numel) + traffic(call.inputs, [call.output])

    def backward(call: Call) -> Work:
        total = NOTHING
        rule, out = applied_convention(call), call.output
        tensors = call.inputs
        for index, spec in enumerate(tensors):
            if not spec.needs_grad:
                continue
            flops_per_element = rule.gradient_flops
            flops = (
                flops_per_element
                if isinstance(flops_per_element, int)
                else flops_per_element[
                    min(_argument_index(call, spec, index), len(flops_per_element) - 1)
                ]
            )
            flops *= 2 if spec.kind == "c" else 1
            if name == "pow" and len(tensors) == 1 and call.args[1] == 2:
                flops = 2
            other_operands = [operand for operand in tensors if operand is not spec]
            saved_specs = {"none": [], "own": [spec], "other": other_operands, "one": [out]}[
                rule.saved
            ]
            if flops:
                total += Work(flops=flops * out.numel) + traffic([out, *saved_specs], [spec])
            if spec.numel < out.numel:
                total += Work(flops=out.numel)
                total += NOTHING if flops else traffic([out], [spec])
        return total

    return Rule(forward, backward)


def _argument_index(call: Call, spec: Spec, fallback: int) -> int:
    return next((index for index, value in enumerate(call.args) if value is spec), fallback)


def _reduction(convention: conventions.Reduction) -> Rule:
    def forward(call: Call) -> Work:
        source = call.inputs[0]
        flops = (
            convention.flops
            * source.numel
            * (0 if source.kind == "i" else 2 if source.kind == "c" else 1)
        )
        return Work(flops=flops) + traffic(call.inputs, [call.output])

    def backward(call: Call) -> Work:
        source = call.inputs[0]
        if not source.needs_grad:
            return NOTHING
        operands = [call.output] + [source] * convention.saved
        return Work(flops=convention.gradient_flops * source.numel) + traffic(operands, [source])

    return Rule(forward, backward)


def _pooling(*, adds: bool) -> Rule:
    def forward(call: Call) -> Work:
        return Work(flops=call.output.numel * _window_elements(call)) + traffic(
            [call.inputs[0]], [call.output]
        )

    def backward(call: Call) -> Work:
        if not call.inputs[0].needs_grad:
            return NOTHING
        element_flops = _window_elements(call) if adds else 1
        return Work(flops=call.output.numel * element_flops) + traffic(
            [call.output], [call.inputs[0]]
        )

    return Rule(forward, backward)


def _window_elements(call: Call) -> int:
    size = call.args[1]
    dimensions = int(call.name.split("pool")[1][0])
    sizes = [size] if isinstance(size, int) else list(size)
    return prod(sizes * dimensions if len(sizes) == 1 else sizes)


def _interpolation(pair: tuple[int, int]) -> Rule:
    def forward(call: Call) -> Work:
        return Work(flops=pair[0] * call.output.numel) + traffic(call.inputs, [call.output])

    def backward(call: Call) -> Work:
        gradients = [spec for spec in call.inputs if spec.needs_grad]
        return Work(flops=pair[1] * call.output.numel * bool(gradients)) + (
            traffic([call.output], gradients) if gradients else NOTHING
        )

    return Rule(forward, backward)


def _normalisation(name: str) -> Rule:
    is_batch = "batch_norm" in name

    def parts(call: Call) -> tuple[Spec, Spec | None, Spec | None, bool]:
        indices = {"native_layer_norm": (2, 3)}.get(name, (1, 2))
        weight, bias = (call.args[index] if len(call.args) > index else None for index in indices)
        is_own = (
            not is_batch
            or name.startswith("_batch_norm_with")
            or (
                "no_" not in name
                and bool(option(call, "training", 5, option(call, "train", 5, True)))
            )
        )
        return call.args[0], weight, bias, is_own

    def forward(call: Call) -> Work:
        source, weight, bias, is_own = parts(call)
        costs = conventions.NORM_FLOPS
        element_flops = (
            costs["own" if is_own else "stored"] + (weight is not None) * costs["weight"]
        )
        element_flops += (bias is not None) * costs["bias"]
        running_statistics = (
            [spec for spec in call.args[3:5] if isinstance(spec, Spec)]
            if is_batch and is_own
            else []
        )
        written_bytes = call.output.bytes + sum(spec.bytes for spec in running_statistics)
        return Work(flops=element_flops * source.numel) + traffic(call.inputs, written_bytes)

    def backward(call: Call) -> Work:
        source, weight, bias, is_own = parts(call)
        costs, total = conventions.NORM_GRADIENT_FLOPS, NOTHING
        if source.needs_grad:
            element_flops = (
                costs["own" if is_own else "stored"]
                + (weight is not None) * costs["through_weight"]
            )
            operands = [
                call.output,
                *([source] if is_own else []),
                *([weight] if weight is not None else []),
            ]
            total += Work(flops=element_flops * source.numel) + traffic(operands, [source])
        if weight is not None and weight.needs_grad:
            total += Work(flops=costs["weight"] * source.numel) + traffic(
                [call.output, source], [weight]
            )
        if bias is not None and bias.needs_grad:
            total += Work(flops=costs["bias"] * source.numel) + traffic([call.output], [bias])
        return total

    return Rule(forward, backward)


def _distance() -> Rule:
    """``cdist``: subtract, power and add for each element of each pair."""

    def pairs(call: Call) -> int:
        return call.output.numel * call.args[0].shape[-1]

    def backward(call: Call) -> Work:
        gradients = [spec for spec in call.args[:2] if spec.needs_grad]
        return Work(flops=4 * pairs(call) * len(gradients)) + traffic(
            [call.output, *call.args[:2]], gradients
        )

    return Rule(
        lambda call: Work(flops=3 * pairs(call)) + traffic(call.inputs, [call.output]), backward
    )


_RULES: dict[str, Rule] = {
    **{
        name: _matrix_product_rule(0)
        for name in ("mm", "bmm", "mv", "dot", "vdot", "_int_mm", "_scaled_mm", "_scaled_mm_v2")
    },
    **{
        name: _matrix_product_rule(1)
        for name in ("addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation")
    },
    **{name: _product_rule(_grouped_macs, lambda call: call.args[:2]) for name in _GROUPED},
    **{name: _product_rule(_packed_macs, lambda call: call.args[:2]) for name in _PACKED},
    "linalg_solve_triangular": _triangular_solve(),
    "addr": _product_rule(lambda call: call.output.numel, lambda call: call.args[1:3]),
    "convolution": _product_rule(_convolution_macs, lambda call: (call.args[0], call.args[1])),
    "_trilinear": _trilinear(),
    "_cdist_forward": _distance(),
    **{name: _elementwise(name, rule) for name, rule in conventions.ELEMENTWISE.items()},
    **{name: _reduction(rule) for name, rule in conventions.REDUCTIONS.items()},
    **{f"max_pool{n}d_with_indices": _pooling(adds=False) for n in (2, 3)},
    **{f"avg_pool{n}d": _pooling(adds=True) for n in (1, 2, 3)},
    **{name: _interpolation(pair) for name, pair in conventions.INTERPOLATION.items()},
    **{name: _normalisation(name) for name in conventions.NORMS},
    **_MOVING,
}
