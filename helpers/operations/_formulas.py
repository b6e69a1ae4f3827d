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

Gradient = Callable[[Call, Spec], Work]
"""The work of the gradient of one operand of a call."""


def _for_each(gradient: Gradient) -> Callable[[Call], Work]:
    """Return the backward pass that does ``gradient`` for each operand that needs one."""

    def backward(call: Call) -> Work:
        operands = [spec for spec in call.inputs if spec.needs_grad]
        return sum((gradient(call, operand) for operand in operands), NOTHING)

    return backward


def _for_first(gradient: Gradient) -> Callable[[Call], Work]:
    """Return the backward pass of an operator of which only the first operand has a gradient."""

    def backward(call: Call) -> Work:
        source = call.inputs[0]
        return gradient(call, source) if source.needs_grad else NOTHING

    return backward


def _pass_over(call: Call, flops: int = 0) -> Work:
    """Return the work of reading each operand once and writing the result."""
    return traffic(call.inputs, [call.output], flops)


def _no_work(_: Call) -> Work:
    return NOTHING


# Operators that compute nothing and move data: what they read and write, and what their gradients
# cost.

_SUMMED_IN_BACKWARD = frozenset({"where", "repeat", "repeat_interleave", "masked_fill"})


def _moving_gradient(call: Call, operand: Spec) -> Work:
    """A gradient is moved, and summed where its operand was broadcast or repeated."""
    if call.name in _SUMMED_IN_BACKWARD and operand.numel < call.output.numel:
        return broadcast_gradient(call.output, operand)
    return traffic([operand], [operand])


def _copy(call: Call) -> Work:
    operands = call.inputs[1:] if call.name == "copy" else call.inputs
    return traffic(operands, [call.output])


def _indices(call: Call) -> list[Spec]:
    return [spec for spec in call.inputs[1:] if spec.kind == "i"]


def _gather(call: Call) -> Work:
    elements = call.output._replace(is_weight=call.inputs[0].is_weight)
    return traffic([elements, *_indices(call)], [call.output])


def _gather_gradient(call: Call, source: Spec) -> Work:
    return traffic([call.output, *_indices(call)], [source], call.output.numel)


def _scatter(call: Call) -> Work:
    is_adding = call.name in conventions.ACCUMULATING or (
        "index_put" in call.name and bool(option(call, "accumulate", 3, False))
    )
    # what is put: the last floating-point tensor that is not the destination, else the destination
    values = next((spec for spec in reversed(call.inputs[1:]) if spec.kind != "i"), call.inputs[0])
    flops = values.numel if is_adding and values.kind != "i" else 0
    return traffic([values, *_indices(call)], [values], flops)


def _bag(call: Call) -> Work:
    weight, indices = call.args[:2]
    rows = weight._replace(elements=indices.numel * prod(weight.shape[1:]))
    return traffic([rows, indices], [call.output], rows.elements)


def _bag_gradient(call: Call, weight: Spec) -> Work:
    indices = call.args[1]
    return traffic([call.output, indices], [weight], indices.numel * prod(weight.shape[1:]))


def _expand_gradient(call: Call, source: Spec) -> Work:
    """An expanded view costs nothing; its gradient is summed over what was expanded."""
    return broadcast_gradient(call.output._replace(elements=call.output.numel), source)


_MOVING: dict[str, Rule] = {
    **dict.fromkeys(conventions.FILL, Rule(lambda call: traffic([], [call.output]), _no_work)),
    **dict.fromkeys(conventions.COPY, Rule(_copy, _for_each(_moving_gradient))),
    **dict.fromkeys(conventions.GATHER, Rule(_gather, _for_first(_gather_gradient))),
    **dict.fromkeys(
        conventions.SCATTER,
        Rule(_scatter, _for_each(lambda _, operand: traffic([operand], [operand]))),
    ),
    # its gradient is a fold: each element is added where it came from
    "im2col": Rule(_copy, _for_first(_gather_gradient)),
    "expand": Rule(_no_work, _for_first(_expand_gradient)),
    # the gradient of what a score of flex_attention takes
    "flex_lib::zeros_and_scatter": Rule(
        lambda call: _pass_over(call, call.inputs[-1].numel), _no_work
    ),
    **dict.fromkeys(
        ("_embedding_bag", "_embedding_bag_forward_only"), Rule(_bag, _for_first(_bag_gradient))
    ),
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
    work in one phase, most simply by :func:`work`; without ``backward`` a gradient is not counted,
    and the profile says so. ``call.inputs`` and ``call.outputs`` are its tensors in order
    (``.shape``, ``.numel``, ``.bytes``), ``call.output`` is the first result, ``call.args`` and
    ``call.kwargs`` hold tensors and options as they were given::

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
        _guard_rule(rule, name), _guard_rule(backward, name) if backward else lambda _: None
    )
    rules = _REGISTERED.setdefault(name, [])
    rules.append(registered_rule)
    registration = ExitStack()
    registration.callback(rules.remove, registered_rule)
    return registration


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
    products = Work(macs, macs, units.flops_from_macs(macs))
    return products + traffic(call.inputs, call.outputs, flops)


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


def _product_rule(macs: Callable[[Call, Spec, Spec], int], first_index: int = 0) -> Rule:
    """Return the rule of an operator that multiplies the operands at ``first_index`` and after it,
    and may add a third to the result.
    """

    def product(call: Call) -> Work:
        return _product(call, macs(call, *call.args[first_index : first_index + 2]))

    def forward(call: Call) -> Work:
        # alpha and beta of addmm and its kind: one multiplication an element where they are not 1
        scale_factors = sum(call.kwargs.get(name, 1) not in (0, 1) for name in ("alpha", "beta"))
        return product(call) + _pass_over(call, scale_factors * call.output.numel)

    def gradient(call: Call, operand: Spec) -> Work:
        left, right = call.args[first_index : first_index + 2]
        if operand is not left and operand is not right:  # a bias
            return broadcast_gradient(call.output, operand)
        other_operand = right if operand is left else left
        return product(call) + traffic([call.output, other_operand], [operand])

    return Rule(forward, _for_each(gradient))


def _matrix_macs(_: Call, left: Spec, right: Spec) -> int:
    """Matrix product: result elements times the length summed over."""
    return left.numel * (right.shape[-1] if len(right.shape) > 1 else 1)


def _grouped_macs(_: Call, left: Spec, right: Spec) -> int:
    """Products of groups of rows (or of columns, or of what is summed over): every row is in one of
    the groups.
    """
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


def _convolution_macs(call: Call, data: Spec, weight: Spec) -> int:
    is_transposed = option(call, "transposed", 6, False)
    spread_elements = data.numel if is_transposed else call.output.numel
    return spread_elements * prod(weight.shape[1:])


def _triangular_solve(call: Call) -> Work:
    """X of A X = B, or X A = B: each element is one of B, less products with those before it, over
    A's diagonal.

    No product of matrices: n operations an element of X, n - 1 where the diagonal is 1. The
    gradient of B is such a solve again, and that of A is a product with it, negated
    (``linalg_solve_triangular_backward`` in PyTorch's torch/csrc/autograd/FunctionsManual.cpp).
    """
    order = call.args[0].shape[-1] - bool(call.kwargs.get("unitriangular"))
    return _pass_over(call, order * call.output.numel)


def _triangular_solve_backward(call: Call) -> Work:
    matrix, out = call.args[0], call.output
    if not matrix.needs_grad:
        return _triangular_solve(call)
    order, elements = matrix.shape[-1], out.numel
    gradient = matrix._replace(
        shape=(elements * order // max(1, prod(out.shape[-2:])), order), elements=0
    )
    return (
        _triangular_solve(call)
        + _product(call, elements * order)
        + broadcast_gradient(gradient, matrix)
        + traffic([out, out], [matrix], gradient.numel)
    )


def _trilinear_sizes(call: Call) -> tuple[int, int]:
    """Return the products of ``F.bilinear``: of its two inputs and the weight, and of the inputs
    alone.
    """
    shapes = []
    for spec, dims in zip(call.args[:3], call.args[3:6], strict=True):
        shape = list(spec.shape)
        for dim in sorted(dims):
            shape.insert(dim, 1)
        shapes.append(shape)
    first, _, second = shapes
    return prod(torch.broadcast_shapes(*shapes)), prod(torch.broadcast_shapes(first, second))


def _trilinear(call: Call) -> Work:
    """``F.bilinear``: the outer product of the two inputs (element-wise), times the weight
    (MACs).
    """
    full, outer = _trilinear_sizes(call)
    return _product(call, full) + _pass_over(call, outer)


def _trilinear_backward(call: Call) -> Work:
    full, outer = _trilinear_sizes(call)
    first, weight, second = call.args[:3]
    total = NOTHING
    if weight.needs_grad:
        total += _product(call, full) + traffic([call.output, first, second], [weight], outer)
    if first.needs_grad or second.needs_grad:
        total += _product(call, full) + traffic([call.output, weight], [])
    for operand, other_operand in ((first, second), (second, first)):
        if operand.needs_grad:
            total += _product(call, outer) + traffic([other_operand], [operand])
    return total


# Operators counted per element.


def _elementwise(name: str, convention: conventions.Elementwise) -> Rule:
    def applied_convention(call: Call) -> conventions.Elementwise:
        is_tanh = name == "gelu" and option(call, "approximate", 1, "none") == "tanh"
        return conventions.GELU_TANH if is_tanh else convention

    def forward(call: Call) -> Work:
        if all(spec.kind == "i" for spec in (*call.inputs, *call.outputs)):
            return _pass_over(call)
        flops = applied_convention(call).flops
        if any(spec.kind == "c" for spec in call.inputs):
            flops = conventions.COMPLEX_FLOPS.get(name, 2 * flops)
        flops += sum(call.kwargs.get(option, 1) != 1 for option in ("alpha", "value"))
        return _pass_over(call, flops * call.output.numel)

    def gradient(call: Call, operand: Spec) -> Work:
        rule, out = applied_convention(call), call.output
        flops = rule.gradient_flops
        if not isinstance(flops, int):
            index = next(index for index, value in enumerate(call.args) if value is operand)
            flops = flops[min(index, len(flops) - 1)]
        flops *= 2 if operand.kind == "c" else 1
        if name == "pow" and len(call.inputs) == 1 and call.args[1] == 2:
            flops = 2
        if not flops:
            return broadcast_gradient(out, operand)
        other_operands = [spec for spec in call.inputs if spec is not operand]
        saved = {"none": [], "own": [operand], "other": other_operands, "one": [out]}[rule.saved]
        is_summed = operand.numel < out.numel
        return traffic([out, *saved], [operand], (flops + is_summed) * out.numel)

    return Rule(forward, _for_each(gradient))


def _reduction(convention: conventions.Reduction) -> Rule:
    def forward(call: Call) -> Work:
        source = call.inputs[0]
        kind_factor = {"i": 0, "f": 1, "c": 2}[source.kind]
        return _pass_over(call, convention.flops * source.numel * kind_factor)

    def gradient(call: Call, source: Spec) -> Work:
        operands = [call.output] + [source] * convention.saved
        return traffic(operands, [source], convention.gradient_flops * source.numel)

    return Rule(forward, _for_first(gradient))


def _pooling(*, adds: bool) -> Rule:
    def forward(call: Call) -> Work:
        flops = call.output.numel * _window_elements(call)
        return traffic([call.inputs[0]], [call.output], flops)

    def gradient(call: Call, source: Spec) -> Work:
        element_flops = _window_elements(call) if adds else 1
        return traffic([call.output], [source], call.output.numel * element_flops)

    return Rule(forward, _for_first(gradient))


def _window_elements(call: Call) -> int:
    size = call.args[1]
    dimensions = int(call.name.split("pool")[1][0])
    sizes = [size] if isinstance(size, int) else list(size)
    return prod(sizes * dimensions if len(sizes) == 1 else sizes)


def _interpolation(flops: int, gradient_flops: int) -> Rule:
    def backward(call: Call) -> Work:
        gradients = [spec for spec in call.inputs if spec.needs_grad]
        if not gradients:
            return NOTHING
        return traffic([call.output], gradients, gradient_flops * call.output.numel)

    return Rule(lambda call: _pass_over(call, flops * call.output.numel), backward)


def _normalisation(name: str) -> Rule:
    is_batch = "batch_norm" in name
    weight_index = 2 if name == "native_layer_norm" else 1

    def affine(call: Call) -> tuple[Spec | None, Spec | None]:
        return call.args[weight_index : weight_index + 2]

    def has_own_statistics(call: Call) -> bool:
        if not is_batch or name.startswith("_batch_norm_with"):
            return True
        return "no_" not in name and bool(option(call, "training", 5, True))

    def forward(call: Call) -> Work:
        (weight, bias), is_own = affine(call), has_own_statistics(call)
        costs = conventions.NORM_FLOPS
        element_flops = (
            costs["own" if is_own else "stored"]
            + (weight is not None) * costs["weight"]
            + (bias is not None) * costs["bias"]
        )
        statistics = call.args[3:5] if is_batch and is_own else ()
        results = [call.output, *(spec for spec in statistics if isinstance(spec, Spec))]
        return traffic(call.inputs, results, element_flops * call.args[0].numel)

    def gradient(call: Call, operand: Spec) -> Work:
        source, (weight, bias), out = call.args[0], affine(call), call.output
        costs = conventions.NORM_GRADIENT_FLOPS
        if operand is source:
            is_own = has_own_statistics(call)
            element_flops = costs["own" if is_own else "stored"]
            operands = [out, source] if is_own else [out]
            if weight is not None:
                element_flops += costs["through_weight"]
                operands.append(weight)
        elif operand is weight:
            element_flops, operands = costs["weight"], [out, source]
        elif operand is bias:
            element_flops, operands = costs["bias"], [out]
        else:
            return NOTHING
        return traffic(operands, [operand], element_flops * source.numel)

    return Rule(forward, _for_each(gradient))


def _distance(call: Call) -> Work:
    """``cdist``: subtract, power and add for each element of each pair."""
    return _pass_over(call, 3 * call.output.numel * call.args[0].shape[-1])


def _distance_backward(call: Call) -> Work:
    gradients = [spec for spec in call.args[:2] if spec.needs_grad]
    flops = 4 * call.output.numel * call.args[0].shape[-1] * len(gradients)
    return traffic([call.output, *call.args[:2]], gradients, flops)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("mm", "bmm", "mv", "dot", "vdot", "_int_mm", "_scaled_mm", "_scaled_mm_v2"),
        _product_rule(_matrix_macs),
    ),
    **dict.fromkeys(
        ("addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation"), _product_rule(_matrix_macs, 1)
    ),
    **dict.fromkeys(_GROUPED, _product_rule(_grouped_macs)),
    **dict.fromkeys(
        _PACKED, _product_rule(lambda call, left, _: left.numel * call.output.shape[-1])
    ),
    "linalg_solve_triangular": Rule(_triangular_solve, _triangular_solve_backward),
    "addr": _product_rule(lambda call, *_: call.output.numel, 1),
    "convolution": _product_rule(_convolution_macs),
    "_trilinear": Rule(_trilinear, _trilinear_backward),
    "_cdist_forward": Rule(_distance, _distance_backward),
    **{name: _elementwise(name, rule) for name, rule in conventions.ELEMENTWISE.items()},
    **{name: _reduction(rule) for name, rule in conventions.REDUCTIONS.items()},
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), _pooling(adds=False)),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _pooling(adds=True)),
    **{name: _interpolation(*pair) for name, pair in conventions.INTERPOLATION.items()},
    **{name: _normalisation(name) for name in conventions.NORMS},
    **_MOVING,
}
