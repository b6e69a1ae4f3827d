"""Results without data: shapes of the commonest operators without torch's own rules, and answers that need no values.

On the meta device torch works the results of many small operators out in Python, by a long way round: counting with
these rules takes less time than the model's own forward on shapes. Each rule gives exactly what torch's would, and
:func:`result_of` leaves to torch every case that is not plain.

A forward that asks whether its activations are finite numbers is told yes, as in a run that works. DETR and T5 ask it
of what they compute, to clamp what has overflowed; such a question has one answer for every element, so that no
values are needed to reduce it to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

_UNARY = frozenset({"relu", "sigmoid", "tanh", "silu", "gelu", "exp", "neg", "sqrt", "rsqrt", "hardswish",
                    "hardsigmoid", "hardtanh", "elu", "leaky_relu", "abs", "log", "sin", "cos", "erf"})  # fmt: skip
MATRIX_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"})
_BINARY = frozenset({"add", "sub", "mul", "div"})


def result_of(name: str, args: tuple, kwargs: dict, *, in_place: bool) -> Any:
    """Return the result of the operator ``name`` on shapes, or None where torch's own rule is needed."""
    if "out" in kwargs or not args or not isinstance(args[0], Tensor):
        return None
    data = args[0]
    if name == "native_batch_norm":
        kept = data.shape[1] if args[5] else 0
        return torch.empty_like(data), data.new_empty(kept), data.new_empty(kept)
    if name == "native_layer_norm":
        kept = (*data.shape[: data.dim() - len(args[1])], *[1] * len(args[1]))
        return torch.empty_like(data, memory_format=torch.contiguous_format), data.new_empty(kept), data.new_empty(kept)
    if name == "convolution":
        return _convolved(*args)
    if name == "_grouped_mm":
        return _grouped(*args, **kwargs)
    if name == "addmm" and _multiplies(*args[:3]):
        return args[1].new_empty((args[1].shape[0], args[2].shape[1]))
    is_plain = (name in _UNARY or (name in _BINARY and _fits(data, args[1]))) and data.is_floating_point()
    if not is_plain:
        return None
    return data if in_place else torch.empty_like(data)


def _convolved(data: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int],
               dilation: list[int], transposed: bool, added: list[int], groups: int) -> Tensor | None:  # fmt: skip
    """Return the result for a batch in torch's default layout, or None: torch itself says what is wrong."""
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    wanted = weight.shape[0] if transposed else weight.shape[1] * groups
    is_plain = (data.is_contiguous() and weight.is_contiguous() and data.dim() == weight.dim() == len(stride) + 2
                and len(padding) == len(dilation) == len(stride) and data.shape[1] == wanted
                and 0 not in data.shape[1:] and min(stride) > 0 and min(padding) >= 0 and min(dilation) > 0
                and weight.shape[0] % groups == 0 and data.dtype == weight.dtype
                and (bias is None or (bias.shape == (channels,) and bias.dtype == data.dtype)))  # fmt: skip
    if not is_plain:
        return None
    sizes = []
    for place, size in enumerate(data.shape[2:]):
        reach = dilation[place] * (weight.shape[2 + place] - 1)
        if transposed:
            sizes.append((size - 1) * stride[place] - 2 * padding[place] + reach + added[place] + 1)
        else:
            sizes.append((size + 2 * padding[place] - reach - 1) // stride[place] + 1)
    return data.new_empty((data.shape[0], channels, *sizes)) if min(sizes) > 0 else None


def _grouped(
    left: Tensor, right: Tensor, offs: Tensor | None = None, _bias: None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Return the result of products by group: torch's own rule knows bfloat16 only, where a real run knows more."""
    if left.shape[-1] != right.shape[-2]:
        raise RuntimeError(f"a grouped product is given {tuple(left.shape)} and {tuple(right.shape)}")
    groups = {(2, 2): offs.shape if offs is not None else (), (3, 3): left.shape[:1]}.get((left.dim(), right.dim()), ())
    return left.new_empty((*groups, left.shape[-2], right.shape[-1]), dtype=out_dtype or left.dtype)


def check_positions(positions: Tensor) -> None:
    """Raise where a real embedding would: until torch 2.13, one on shapes takes positions of any type."""
    if positions.dtype not in (torch.int64, torch.int32):
        name = str(positions.dtype).removeprefix("torch.")
        raise RuntimeError(f"an embedding is given {name} for its indices, which are int64 or int32")


def check_types(operator: Any, tensors: Iterable[Tensor]) -> None:
    """Raise where a real matrix product would: one on shapes multiplies float32 by float64 without a word."""
    types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
    if len(types) > 1:
        raise RuntimeError(
            f"{operator} is given {' and '.join(types)}; a matrix product needs one type: give inputs of the model's "
            "type, such as x.to(model.weight.dtype)"
        )


def batch_sizes(data: Tensor, lengths: Sequence[int], batch_first: bool) -> list[int]:
    """Return the sequences that are left at each step, of sequences of these ``lengths`` packed from ``data``."""
    sequences, longest = data.shape[:2] if batch_first else data.shape[1::-1]
    if not 0 < len(lengths) == sequences or lengths[0] > longest:
        raise RuntimeError(f"sequences of lengths {list(lengths)} do not fit data of shape {tuple(data.shape)}")
    return [sum(length > step for length in lengths) for step in range(lengths[0])]


def _multiplies(bias: Tensor, left: Tensor, right: Tensor) -> bool:
    """Tell whether this is the plain product of a linear layer: matrices that fit, and a bias of one row."""
    return (left.dim() == right.dim() == 2 and left.shape[1] == right.shape[0] and bias.dim() == 1
            and bias.shape[0] == right.shape[1] and bias.dtype == left.dtype == right.dtype)  # fmt: skip


def _fits(data: Tensor, other: Any) -> bool:
    """Tell whether the result has the shape, strides and type of the first operand."""
    if isinstance(other, Tensor):
        return (other.dtype == data.dtype and other.shape == data.shape and other.stride() == data.stride()
                and other.dim() > 0)  # fmt: skip
    return isinstance(other, int | float)


_BOTH = frozenset({"mul", "logical_and", "bitwise_and", "__and__"})
_EITHER = frozenset({"logical_or", "bitwise_or", "__or__"})


def everywhere(name: str, args: tuple, answers: Callable[[Tensor], bool | None]) -> bool | None:
    """Return what every element of an operator's result is, None where nothing is known of it.

    ``answers`` tells it of an operand. PyTorch takes ``isfinite`` apart: x == x and abs(x) != inf. Only activations are
    taken to be finite, which need a gradient: a mask of the caller's may hold infinities.
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
        return answers(first) if first.numel() else None
    if (name in _BOTH or name in _EITHER) and isinstance(second, Tensor):
        pair = (answers(first), answers(second))
        return None if None in pair else all(pair) if name in _BOTH else any(pair)
    return None
