"""The work of one operator, and the traffic every rule counts alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from helpers.operations.specs import Call, Spec


class Work(NamedTuple):
    """MACs executed and useful, FLOPs, and bytes: activations read, weights read, results written."""

    macs: int = 0
    useful_macs: int = 0
    flops: int = 0
    input_bytes: int = 0
    weight_bytes: int = 0
    output_bytes: int = 0

    def __add__(self, other: tuple) -> Work:
        a, b, c, d, e, f = self
        u, v, w, x, y, z = other
        return Work(a + u, b + v, c + w, d + x, e + y, f + z)


NOTHING = Work()


class Rule(NamedTuple):
    """How an operator is counted: a function for its forward and one for its backward pass."""

    forward: Callable[[Call], Work]
    backward: Callable[[Call], Work]


def traffic(read: Sequence[Spec], written: Sequence[Spec] | int) -> Work:
    """Return the bytes of reading each of ``read`` once and writing ``written`` (tensors, or bytes) once."""
    weights = sum(spec.bytes for spec in read if spec.is_weight)
    inputs = sum(spec.bytes for spec in read if not spec.is_weight)
    out = written if isinstance(written, int) else sum(spec.bytes for spec in written)
    return Work(input_bytes=inputs, weight_bytes=weights, output_bytes=out)


def option(call: Call, name: str, place: int, default: object) -> object:
    """Return an operator's option, given by keyword or by place."""
    return call.kwargs.get(name, call.args[place] if len(call.args) > place else default)


def summed(gradient: Spec, wanted: Spec) -> Work:
    """The gradient of an operand that was broadcast: a sum over the result; nothing where shapes agree."""
    if wanted.numel >= gradient.numel:
        return NOTHING
    return Work(flops=gradient.numel) + traffic([gradient], [wanted])
