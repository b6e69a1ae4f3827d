"""CUDA C++ of a dense network, one thread a candidate, its weights in one of seven places.

One template writes them all: only how the weights are declared and how the kernel comes to them
differs. Loops over layers are unrolled, so every weight has a multiply-add of its own in the
program. Lesson 17.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from helpers import native
from helpers.checks import choice
from helpers.studies.constant_weights._network import Dense, Network


class _Place(NamedTuple):
    """A place of the weights: what the head of the source says of it, and the pieces of the
    source.
    """

    words: str
    qualifiers: str = ""  # of the arrays, where the program has them
    parameter: str = ""  # the kernel's last
    declared: str = ""  # the same, for whoever calls it
    prefix: str = ""  # of a name of weights


_BEHIND_POINTER = (", const Weights* __restrict__ weights", ", const void* weights")
_PLACES = {
    "const": _Place("in the program, as constants that never change (const)", "__device__ const"),
    "constexpr": _Place(
        "in the program, as constants of the compiler (constexpr)", "__device__ constexpr"
    ),
    "device": _Place(
        "in global memory, in arrays of the program that somebody may write to (__device__)",
        "__device__",
    ),
    "constant": _Place(
        "in constant memory, which somebody may write to (__constant__)", "__constant__"
    ),
    "parameter": _Place(
        "in a structure that the launch hands over by value (__grid_constant__)",
        "",
        ", const __grid_constant__ Weights weights",
        ", Weights weights",
        "weights.",
    ),
    "pointer": _Place("in global memory, behind a pointer", "", *_BEHIND_POINTER, "weights->"),
    "shared": _Place(
        "in shared memory, copied there by every block from behind a pointer",
        "",
        *_BEHIND_POINTER,
        "copied.",
    ),
}
CUDA_PLACEMENTS = tuple(_PLACES)
KNOWN_VALUES = ("const", "constexpr")
LAYOUTS = ("rows", "columns")
THREADS = 128

_MOST_WEIGHTS = 65_536
_MOST_BYTES = {"constant": 65_536, "parameter": 32_764 - 32, "shared": 48 * 1024}
_REASON = {
    "constant": "constant memory holds 65,536 bytes",
    "parameter": (
        "a kernel's parameters take at most 32,764 bytes, the tensors' addresses among them"
    ),
    "shared": "a block has 49,152 bytes of shared memory unless it asks for more",
}
_ROW_NUMBERS = 6
_TANH = "hyperbolic_tangent"  # the name of our function, as CUDA has its own tanh


class _Numbers(NamedTuple):
    """A precision in CUDA C++: the types that are stored and computed with, and the pieces of a
    multiply-add.
    """

    words: str  # of what a thread evaluates
    stored_bytes: int
    stored: str
    computed: str
    weight: str
    is_not_zero: str
    multiply_add: str
    kernel: str
    candidates: tuple[str, ...]


_NUMBERS = {
    "fp32": _Numbers(
        "one candidate",
        4,
        "float",
        "float",
        "{}",
        "{} != 0.0f",
        "fmaf",
        "cuda/evaluate.cu",
        ("candidate",),
    ),
    "fp16": _Numbers(
        "two candidates, in the two halves of its registers",
        2,
        "unsigned short",
        "__half2",
        "both({})",
        "({} & 0x7fff) != 0",
        "__hfma2",
        "cuda/evaluate_halves.cu",
        ("first", "second"),
    ),
}
PRECISIONS = tuple(_NUMBERS)


def cuda_source(
    network: Network, *, placement: str = "const", precision: str = "fp32", layout: str = "rows"
) -> str:
    """Return the CUDA C++ source of ``network``: one kernel, ``evaluate``, as
    :func:`cuda_declaration` declares it.

    ``placement`` is one of :data:`CUDA_PLACEMENTS`. With ``precision="fp32"`` a thread evaluates
    one candidate; with "fp16" two, in the halves of its registers, its weights rounded to float16
    and kept as their bits. Inputs and outputs are float32 either way: ``layout="rows"`` is (N,
    inputs) and (N, outputs), "columns" the transposes, in which neighbouring threads read
    neighbouring numbers. Of "const" and "constexpr" weights a zero costs no instruction (what holds
    for finite inputs); elsewhere the compiler does not know it.

    Every float32 stands as a hexadecimal number, which means it exactly. Raises ValueError for an
    unknown name, for a weight that float16 cannot hold, and for a network that is too large for the
    placement. Lesson 17.
    """
    _check(network, placement, precision, layout)
    numbers, place = _NUMBERS[precision], _PLACES[placement]
    parts = [_head(network, placement, precision, layout), _functions(network, precision)]
    parts += (
        _arrays(network, place.qualifiers, precision)
        if place.qualifiers
        else [_structure(network, numbers.stored)]
    )
    indices = {}  # where a number of each of the thread's candidates is stored
    for name, index, width in (("input", "i", network.inputs), ("output", "j", network.outputs)):
        for key, candidate in zip((name, f"second_{name}"), numbers.candidates, strict=False):
            indices[key] = (
                f"{candidate} * {width} + {index}"
                if layout == "rows"
                else f"{index} * candidates + {candidate}"
            )
    layers = [
        _layer(layer, number, placement, numbers)
        for number, layer in enumerate(network.layers, start=1)
    ]
    copy = fill("cuda/copy.cu", kind=numbers.stored) + "\n" if placement == "shared" else ""
    return fill(
        numbers.kernel,
        before="\n\n".join(filter(None, parts)),
        copy=copy,
        parameter=place.parameter,
        inputs=network.inputs,
        outputs=network.outputs,
        layers="\n\n".join(layers),
        last=f"h{len(layers)}",
        **indices,
    )


def cuda_declaration(placement: str) -> str:
    """Return the C declaration of the kernel ``evaluate``, for
    :meth:`helpers.native.Module.function`.

    Lesson 17.
    """
    return (
        "void evaluate(const float* inputs, float* outputs, long long "
        f"candidates{_PLACES[placement].declared})"
    )


def candidates_per_thread(precision: str) -> int:
    """Return the number of candidates that a thread evaluates: 1, and 2 in the halves of its
    registers with "fp16".
    """
    return len(_NUMBERS[precision].candidates)


def packed_weights(network: Network, *, precision: str = "fp32") -> bytes:
    """Return the bytes of the structure ``Weights`` in the source: each layer's weights row by row,
    then its bias.

    Four bytes a number for "fp32" and two for "fp16", little-endian. Raises ValueError for a weight
    that float16 cannot hold. Lesson 17.
    """
    if precision == "fp32":
        return b"".join(array.astype("<f4").tobytes() for array in network.arrays)
    return b"".join(half_bits(array).astype("<u2").tobytes() for array in network.arrays)


def half_bits(values: np.ndarray) -> np.ndarray:
    """Return float32 ``values`` rounded to the nearest float16, as their 16 bits.

    Raises ValueError for a number that would become infinite. Lesson 17.
    """
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        worst = float(np.abs(values).max())
        raise ValueError(
            f"a weight or bias of {worst:g} in size is too large for float16, which ends at "
            "65,504; "
            'use precision="fp32"'
        )
    return halves.view(np.uint16)


def float_literal(value: float) -> str:
    """Return a float32 as a C literal that means exactly it, also where it is denormal:
    ``0x1.99999ap-4f``.

    Lesson 17.
    """
    mantissa, _, exponent = float(value).hex().partition("p")
    integer_part, _, digits = mantissa.partition(".")
    digits = digits.rstrip("0")
    return f"{integer_part}{'.' + digits if digits else ''}p{exponent}f"


def _check(network: Network, placement: str, precision: str, layout: str) -> None:
    choice("placement", placement, CUDA_PLACEMENTS)
    choice("precision", precision, PRECISIONS)
    choice("layout", layout, LAYOUTS)
    if network.macs > _MOST_WEIGHTS:
        raise ValueError(
            f"the network has {network.macs:,} weights, each with an instruction of its own; up to "
            f"{_MOST_WEIGHTS:,} are generated. Use torch for a network of this size"
        )
    size = network.parameters * _NUMBERS[precision].stored_bytes
    if size > _MOST_BYTES.get(placement, size):
        raise ValueError(
            f"{network.parameters:,} parameters take {size:,} bytes; {_REASON[placement]}; use "
            'placement="pointer"'
        )


def _head(network: Network, placement: str, precision: str, layout: str) -> str:
    steps = [str(network.inputs)]
    steps += [
        f"{layer.outputs}{'' if layer.activation == 'identity' else ' ' + layer.activation}"
        for layer in network.layers
    ]
    order = layout.removesuffix("s")
    include = "\n#include <cuda_fp16.h>" if precision == "fp16" else ""
    return (
        f"// {' -> '.join(steps)}: {network.macs:,} weights, of which "
        f"{network.nonzero_weights:,} are not zero.\n"
        f"// The weights stand {_PLACES[placement].words}.\n"
        f"// A thread evaluates {_NUMBERS[precision].words}. Inputs and outputs are stored "
        f"{order} after {order}.{include}"
    )


def _functions(network: Network, precision: str) -> str:
    """Return the functions of the activations that the network has; on halves those that they call,
    too.
    """
    used = {layer.activation for layer in network.layers}
    single = _functions_of("cuda/activations.cu")
    names = [name for name in single if name in used]
    if precision == "fp32":
        return "\n\n".join(single[name] for name in names)
    halves = _functions_of("cuda/activations_halves.cu")
    functions = [halves["both"]]
    for name in names:
        functions += [halves[name]] if name == "relu" else [single[name], halves[name]]
    return "\n\n".join(functions)


def _functions_of(file: str) -> dict[str, str]:
    """Return the functions of a file, between which an empty line stands, by the names of their
    activations.
    """
    texts = native.read_source(__package__, file).strip().split("\n\n")
    names = [match[1] for match in (re.search(r"(\w+)\(", text) for text in texts) if match]
    names = ["tanh" if name == _TANH else name for name in names]
    return dict(zip(names, texts, strict=True))


def _arrays(network: Network, qualifiers: str, precision: str) -> Iterator[str]:
    """Yield the declarations of each layer's weights and bias, with their values."""
    kind = _NUMBERS[precision].stored
    for number, layer in enumerate(network.layers, start=1):
        rows = ",\n".join(f"    {{{_values(row, precision, indent=5)}}}" for row in layer.weights)
        yield (
            f"// weights_{number}[i][j] is what output j of layer {number} takes from its input i\n"
            f"{qualifiers} {kind} weights_{number}[{layer.inputs}][{layer.outputs}] = {{\n{rows}}};"
        )
        bias = _values(layer.bias, precision, indent=4)
        yield f"{qualifiers} {kind} bias_{number}[{layer.outputs}] = {{\n    {bias}}};"


def _values(values: np.ndarray, precision: str, *, indent: int) -> str:
    if precision == "fp32":
        texts = [float_literal(value) for value in values]
    else:
        texts = [f"0x{bits:04x}" for bits in half_bits(values)]
    starts = range(0, len(texts), _ROW_NUMBERS)
    lines = (", ".join(texts[start : start + _ROW_NUMBERS]) for start in starts)
    return (",\n" + " " * indent).join(lines)


def _structure(network: Network, kind: str) -> str:
    members = [
        f"    {kind} weights_{number}[{layer.inputs}][{layer.outputs}], "
        f"bias_{number}[{layer.outputs}];\n"
        for number, layer in enumerate(network.layers, start=1)
    ]
    return (
        "struct Weights  // weights_1[i][j] is what output j of layer 1 takes from its input i\n"
        f"{{\n{''.join(members)}}};"
    )


def _layer(layer: Dense, number: int, placement: str, numbers: _Numbers) -> str:
    now, prefix = f"h{number}", _PLACES[placement].prefix
    bias, weight = f"{prefix}bias_{number}[j]", f"{prefix}weights_{number}[i][j]"
    condition = f"if ({numbers.is_not_zero.format(weight)}) " if placement in KNOWN_VALUES else ""
    product = f"h{number - 1}[i], {numbers.weight.format(weight)}"
    text = fill(
        "cuda/layer.cu",
        number=number,
        inputs=layer.inputs,
        outputs=layer.outputs,
        activation=layer.activation,
        type=numbers.computed,
        bias=numbers.weight.format(bias),
        step=f"{condition}{now}[j] = {numbers.multiply_add}({product}, {now}[j]);",
    )
    if layer.activation == "softmax":
        text += f"    softmax({now});\n"
    elif layer.activation != "identity":
        name = _TANH if layer.activation == "tanh" else layer.activation
        text += (
            f"    #pragma unroll\n    for (int j = 0; j < {layer.outputs}; ++j) {now}[j] = "
            f"{name}({now}[j]);\n"
        )
    return text.removesuffix("\n")


def fill(file: str, **values: object) -> str:
    """Return the text of ``file`` with ``values`` in the places that it names."""
    return string.Template(native.read_source(__package__, file)).substitute(values)
