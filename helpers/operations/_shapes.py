"""Results without data: shapes of the commonest operators without torch's own rules, and answers
that need no values.

On the meta device torch works the results of many small operators out in Python, by a long way
round: counting with these rules takes less time than the model's own forward on shapes. Each rule
gives exactly what torch's would, and :func:`result_of` leaves to torch every case that is not
plain.

A forward that asks whether its activations are finite numbers is told yes, as in a run that works.
DETR and T5 ask it of what they compute, to clamp what has overflowed; such a question has one
answer for every element, so that no values are needed to reduce it to one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.operations._specs import META

_UNARY = frozenset({"relu", "sigmoid", "tanh", "silu", "gelu", "exp", "neg", "sqrt", "rsqrt",
                    "hardswish", "hardsigmoid", "hardtanh", "elu", "leaky_relu", "abs", "log",
                    "sin", "cos", "erf"})  # fmt: skip
MATRIX_PRODUCTS = frozenset(
    {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"}
)
_BINARY = frozenset({"add", "sub", "mul", "div"})
_ELEMENTWISE = _UNARY | _BINARY


def result_of(name: str, args: tuple, kwargs: dict, *, in_place: bool) -> Any:
    """Return the result of the operator ``name`` on shapes, or None where torch's own rule is
    needed.
    """
    rule = _RULES.get(name)
    if rule is None or "out" in kwargs or not args:
        return None
    data = args[0]
    if name in _WITH_OPTIONS:
        return rule(*args, **kwargs)
    if not (isinstance(data, Tensor) and data.is_floating_point()):
        return None
    result = rule(*args)
    if in_place and result is not None:
        return data if name in _ELEMENTWISE and result.shape == data.shape else None
    return result


def _empty(shape: Sequence[int], like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=META)


def _like(data: Tensor, *_: Any) -> Tensor:
    """Return the result of an operator on single elements: in the memory format of its operand."""
    shape = data.size()  # torch.empty_like goes a long way round
    strides = data.stride() if data.is_contiguous() else _strides(shape, [data])
    return torch.empty_strided(shape, strides, dtype=data.dtype, device=META)


def _empty_like(data: Tensor, **options: Any) -> Tensor | None:
    return _empty(data.shape, data) if not options and data.is_contiguous() else None


def _contiguous(data: Tensor, *_: Any) -> Tensor | None:
    return _empty(data.shape, data) if data.is_contiguous() else None


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape that these broadcast to, None where they do not fit."""
    longest = max(shapes, key=len)
    result = list(longest)
    for shape in shapes:
        for dim in range(-len(shape), 0):
            if result[dim] == 1:
                result[dim] = shape[dim]
            elif shape[dim] not in (1, result[dim]):
                return None
    return tuple(result)


def _elementwise(*operands: Any) -> Tensor | None:
    """Return the result of an operator on the elements of several tensors of one type, or of one
    and numbers.
    """
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    data = tensors[-1]
    if len(tensors) == 1 and all(isinstance(operand, int | float) for operand in operands[1:]):
        return _like(data)
    if len(tensors) < len(operands) or any(tensor.dtype != data.dtype for tensor in tensors[-2:]):
        return None
    if all(tensor.shape == data.shape and tensor.is_contiguous() for tensor in tensors):
        return _empty(data.shape, data)
    shape = _broadcast(*[tensor.shape for tensor in tensors])
    if shape is None or 0 in shape:
        return None
    return torch.empty_strided(shape, _strides(shape, tensors), dtype=data.dtype, device=META)


def _strides(shape: tuple[int, ...], tensors: list[Tensor]) -> tuple[int, ...]:
    """Return the strides of a result as torch's TensorIterator orders its dimensions: as the
    operands have theirs.

    Source: ``compute_elementwise_output_logical_to_physical_perm`` in PyTorch's
    torch/_prims_common.
    """
    dimensions = len(shape)
    # 0 where an operand is spread, so that it says no order
    operand_strides = [tensor.expand(shape).stride() for tensor in tensors]

    def is_before(first: int, second: int) -> bool | None:
        """Tell whether a dimension lies inside of another, None where nothing says so."""
        for strides in operand_strides:
            inner, outer = strides[first], strides[second]
            if inner and outer and inner != outer:
                return inner < outer
            if inner and outer and shape[first] > shape[second]:
                return False
        return None

    order = list(range(dimensions - 1, -1, -1))
    for position in range(1, dimensions):
        for earlier in range(position - 1, -1, -1):
            is_inner = is_before(order[earlier], order[position])
            if is_inner is False:
                order[earlier], order[position] = order[position], order[earlier]
                position = earlier
            elif is_inner:
                break
    strides, size = [0] * dimensions, 1
    for dimension in order:
        strides[dimension] = size
        size *= max(1, shape[dimension])
    return tuple(strides)


def _power(data: Tensor, exponent: Any) -> Tensor | None:
    return _like(data) if isinstance(exponent, int | float) else None


def _mean(
    data: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor | None:
    dimensions = data.dim()
    is_plain = (
        data.is_contiguous() and data.is_floating_point() and dtype in (None, data.dtype) and dims
    )
    if not is_plain or not all(-dimensions <= dim < dimensions for dim in dims):
        return None
    reduced = {dim % dimensions for dim in dims}
    if len(reduced) < len(dims):
        return None
    sizes = [
        1 if dimension in reduced else size
        for dimension, size in enumerate(data.shape)
        if keepdim or dimension not in reduced
    ]
    return _empty(sizes, data)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Return the result of ``cat`` where it is contiguous: in the first tensor no channels lie
    inside.
    """
    # one without elements fits all
    tensors = [tensor for tensor in tensors if tensor.shape != (0,)] or tensors[:1]
    first = tensors[0]
    dimensions = first.dim()
    has_inner_channels = dimensions > 3 and first.stride(-1) >= first.stride(1)
    if not dimensions or has_inner_channels or not -dimensions <= dim < dimensions:
        return None
    dimension, sizes = dim % dimensions, list(first.shape)
    for tensor in tensors[1:]:
        before, after = tensor.shape[:dimension], tensor.shape[dimension + 1 :]
        fits = (*before, first.shape[dimension], *after) == first.shape
        if not fits or tensor.dtype != first.dtype:
            return None
        sizes[dimension] += tensor.shape[dimension]
    return _empty(sizes, first)


def _where(condition: Tensor, first: Any = None, second: Any = None) -> Tensor | None:
    are_tensors = isinstance(first, Tensor) and isinstance(second, Tensor)
    is_plain = are_tensors and condition.dtype == torch.bool
    return _elementwise(condition, first, second) if is_plain else None


def _safe_softmax(data: Tensor, _dim: int, dtype: torch.dtype | None = None) -> Tensor | None:
    return _contiguous(data) if dtype in (None, data.dtype) and data.is_floating_point() else None


def _matrix_product(dimensions: int, left: Tensor, right: Tensor, *options: Any) -> Tensor | None:
    is_plain = not options and left.dim() == right.dim() == dimensions and left.dtype == right.dtype
    left_shape, right_shape = left.shape, right.shape
    fits = is_plain and left_shape[:-2] == right_shape[:-2] and left_shape[-1] == right_shape[-2]
    return _empty((*left_shape[:-1], right_shape[-1]), left) if fits else None


def _batch_norm(data: Tensor, *options: Any) -> tuple[Tensor, ...]:
    statistics_shape = [data.shape[1] if options[4] else 0]
    return _like(data), _empty(statistics_shape, data), _empty(statistics_shape, data)


def _layer_norm(data: Tensor, normalised: Sequence[int], *_: Any) -> tuple[Tensor, ...]:
    statistics_shape = (*data.shape[: data.dim() - len(normalised)], *[1] * len(normalised))
    return _empty(data.shape, data), _empty(statistics_shape, data), _empty(statistics_shape, data)


def _linear(bias: Tensor, left: Tensor, right: Tensor, *options: Any) -> Tensor | None:
    """Return the result of a linear layer: of matrices that fit, and a bias of one row."""
    product = _matrix_product(2, left, right, *options)
    fits = product is not None and bias.shape == product.shape[1:] and bias.dtype == left.dtype
    return product if fits else None


def _convolution(
    data: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor | None:
    """Return the result for a batch in torch's default layout, or None: torch itself says what is
    wrong.
    """
    channels, input_channels = weight.shape[0], weight.shape[1] * groups
    if transposed:
        channels, input_channels = input_channels, channels
    is_plain = (
        data.is_contiguous()
        and weight.is_contiguous()
        and data.dim() == weight.dim() == len(stride) + 2
        and len(padding) == len(dilation) == len(stride)
        and data.shape[1] == input_channels
        and 0 not in data.shape[1:]
        and min(stride) > 0
        and min(padding) >= 0
        and min(dilation) > 0
        and weight.shape[0] % groups == 0
        and data.dtype == weight.dtype
        and (bias is None or (bias.shape == (channels,) and bias.dtype == data.dtype))
    )
    if not is_plain:
        return None
    sizes = []
    for axis, size in enumerate(data.shape[2:]):
        margin = dilation[axis] * (weight.shape[2 + axis] - 1) - 2 * padding[axis]
        if transposed:
            sizes.append((size - 1) * stride[axis] + margin + output_padding[axis] + 1)
        else:
            sizes.append((size - margin - 1) // stride[axis] + 1)
    return _empty((data.shape[0], channels, *sizes), data) if min(sizes) > 0 else None


def _grouped_product(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    _bias: None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the result of products by group: torch's own rule knows bfloat16 only, where a real
    run knows more.
    """
    if left.shape[-1] != right.shape[-2]:
        raise RuntimeError(
            f"a grouped product is given {tuple(left.shape)} and {tuple(right.shape)}"
        )
    groups = {(2, 2): offs.shape if offs is not None else (), (3, 3): left.shape[:1]}.get(
        (left.dim(), right.dim()), ()
    )
    return left.new_empty((*groups, left.shape[-2], right.shape[-1]), dtype=out_dtype or left.dtype)


def check_positions(positions: Tensor) -> None:
    """Raise where a real embedding would: until torch 2.13, one on shapes takes positions of any
    type.
    """
    if positions.dtype not in (torch.int64, torch.int32):
        name = str(positions.dtype).removeprefix("torch.")
        raise RuntimeError(
            f"an embedding is given {name} for its indices, which are int64 or int32"
        )


def check_types(operator: Any, tensors: Iterable[Tensor]) -> None:
    """Raise where a real matrix product would: one on shapes multiplies float32 by float64 without
    a word.
    """
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        types = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise RuntimeError(
            f"{operator} is given {' and '.join(types)}; a matrix product needs one type: give "
            "inputs of the model's type, such as x.to(model.weight.dtype)"
        )


def batch_sizes(data: Tensor, lengths: Sequence[int], batch_first: bool) -> list[int]:
    """Return the sequences that are left at each step, of sequences of these ``lengths`` packed
    from ``data``.
    """
    sequences, longest = data.shape[:2] if batch_first else data.shape[1::-1]
    if not 0 < len(lengths) == sequences or lengths[0] > longest:
        raise RuntimeError(
            f"sequences of lengths {list(lengths)} do not fit data of shape {tuple(data.shape)}"
        )
    return [sum(length > step for length in lengths) for step in range(lengths[0])]


_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_UNARY, _like),
    **dict.fromkeys(_BINARY, _elementwise),
    **dict.fromkeys(("tril", "triu", "roll"), _contiguous),
    "empty_like": _empty_like,
    "_unsafe_view": Tensor.view,
    "pow": _power,
    "mean": _mean,
    "cat": _cat,
    "where": _where,
    "_safe_softmax": _safe_softmax,
    "mm": functools.partial(_matrix_product, 2),
    "bmm": functools.partial(_matrix_product, 3),
    "addmm": _linear,
    "_grouped_mm": _grouped_product,
    "convolution": _convolution,
    "native_batch_norm": _batch_norm,
    "native_layer_norm": _layer_norm,
}
_WITH_OPTIONS = frozenset({"empty_like", "_unsafe_view", "mean", "cat", "where", "tril", "triu",
                           "roll", "_safe_softmax", "_grouped_mm"})  # fmt: skip


_BOTH = frozenset({"mul", "logical_and", "bitwise_and", "__and__"})
_EITHER = frozenset({"logical_or", "bitwise_or", "__or__"})


def uniform_value(name: str, args: tuple, value_of: Callable[[Tensor], bool | None]) -> bool | None:
    """Return the one value of all elements of an operator's result, None where nothing is known of
    it.

    ``value_of`` tells it of an operand. PyTorch takes ``isfinite`` apart: x == x and abs(x) != inf.
    Only activations are taken to be finite, which need a gradient: a mask of the caller's may hold
    infinities.
    """
    first, second = (*args, None, None)[:2]
    if not isinstance(first, Tensor):
        return None
    if name in ("isnan", "isinf", "eq", "ne") and first.requires_grad:
        if name in ("isnan", "isinf"):
            return False
        if second is first or (isinstance(second, float) and second == math.inf):
            return (second is first) == (name == "eq")
    if name in ("all", "any"):
        return value_of(first) if first.numel() else None
    if (name in _BOTH or name in _EITHER) and isinstance(second, Tensor):
        pair = (value_of(first), value_of(second))
        return None if None in pair else all(pair) if name in _BOTH else any(pair)
    return None
