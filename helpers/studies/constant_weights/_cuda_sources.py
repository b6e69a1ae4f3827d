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
from helpers.studies.constant_weights._network import Dense, Network

CUDA_PLACEMENTS = ("const", "constexpr", "device", "constant", "parameter", "pointer", "shared")
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
_WORDS = {
    "const": "in the program, as constants that never change (const)",
    "constexpr": "in the program, as constants of the compiler (constexpr)",
    "device": "in global memory, in arrays of the program that somebody may write to (__device__)",
    "constant": "in constant memory, which somebody may write to (__constant__)",
    "parameter": "in a structure that the launch hands over by value (__grid_constant__)",
    "pointer": "in global memory, behind a pointer",
    "shared": "in shared memory, copied there by every block from behind a pointer",
}
_QUALIFIERS = {
    "const": "__device__ const",
    "constexpr": "__device__ constexpr",
    "device": "__device__",
    "constant": "__constant__",
}
_LAST_PARAMETER = {
    "parameter": ", const __grid_constant__ Weights weights",
    "pointer": ", const Weights* __restrict__ weights",
    "shared": ", const Weights* __restrict__ weights",
}
_PREFIX = {"parameter": "weights.", "pointer": "weights->", "shared": "copied."}
_ROW_NUMBERS = 6


class _Numbers(NamedTuple):
    """A precision in CUDA C++: the types that are stored and computed with, and the pieces of a
    multiply-add.
    """

    stored: str
    computed: str
    weight: str
    is_not_zero: str
    multiply_add: str
    kernel: str
    candidates: tuple[str, ...]


_NUMBERS = {
    "fp32": _Numbers(
        "float", "float", "{}", "{} != 0.0f", "fmaf", "cuda/evaluate.cu", ("candidate",)
    ),
    "fp16": _Numbers(
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
    numbers = _NUMBERS[precision]
    parts = [_head(network, placement, precision, layout), _functions(network, precision)]
    if placement in _QUALIFIERS:
        parts += _arrays(network, _QUALIFIERS[placement], precision)
    else:
        parts.append(_structure(network, precision))
    places = dict(
        zip(("input", "second_input"), _places(numbers, "i", network.inputs, layout), strict=False)
    )
    places |= zip(
        ("output", "second_output"), _places(numbers, "j", network.outputs, layout), strict=False
    )
    layers = [
        _layer(layer, number, placement, numbers)
        for number, layer in enumerate(network.layers, start=1)
    ]
    copy = _fill("cuda/copy.cu", kind=numbers.stored) + "\n" if placement == "shared" else ""
    return _fill(
        numbers.kernel,
        before="\n\n".join(filter(None, parts)),
        copy=copy,
        parameter=_LAST_PARAMETER.get(placement, ""),
        inputs=network.inputs,
        outputs=network.outputs,
        layers="\n\n".join(layers),
        last=f"h{len(layers)}",
        **places,
    )


def cuda_declaration(placement: str) -> str:
    """Return the C declaration of the kernel ``evaluate``, for
    :meth:`helpers.native.Module.function`.

    Lesson 17.
    """
    last = {
        "parameter": ", Weights weights",
        "pointer": ", const void* weights",
        "shared": ", const void* weights",
    }
    return (
        "void evaluate(const float* inputs, float* outputs, long long "
        f"candidates{last.get(placement, '')})"
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
    parts = [array for layer in network.layers for array in (layer.weights, layer.bias)]
    if precision == "fp32":
        return b"".join(array.astype("<f4").tobytes() for array in parts)
    return b"".join(half_bits(array).astype("<u2").tobytes() for array in parts)


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
    for name, value, known in (
        ("placement", placement, CUDA_PLACEMENTS),
        ("precision", precision, PRECISIONS),
        ("layout", layout, LAYOUTS),
    ):
        if value not in known:
            raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r:.40}")
    if network.macs > _MOST_WEIGHTS:
        raise ValueError(
            f"the network has {network.macs:,} weights, each with an instruction of its own; up to "
            f"{_MOST_WEIGHTS:,} are generated. Use torch for a network of this size"
        )
    size = network.parameters * {"fp32": 4, "fp16": 2}[precision]
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
    many = {"fp32": "one candidate", "fp16": "two candidates, in the two halves of its registers"}[
        precision
    ]
    order = {"rows": "row after row", "columns": "column after column"}[layout]
    lines = [
        (
            f"// {' -> '.join(steps)}: {network.macs:,} weights, of which "
            f"{network.nonzero_weights:,} are not zero."
        ),
        f"// The weights stand {_WORDS[placement]}.",
        f"// A thread evaluates {many}. Inputs and outputs are stored {order}.",
    ]
    return "\n".join(lines + (["#include <cuda_fp16.h>"] if precision == "fp16" else []))


def _functions(network: Network, precision: str) -> str:
    """Return the functions of the activations that the network has; on halves those that they call,
    too.
    """
    used = {layer.activation for layer in network.layers}
    single = {
        name: text for name, text in _functions_of("cuda/activations.cu").items() if name in used
    }
    if precision == "fp32":
        return "\n\n".join(single.values())
    halves = _functions_of("cuda/activations_halves.cu")
    functions = [halves.pop("both")]
    for name in (name for name in halves if name in used):
        functions += [halves[name]] if name == "relu" else [single[name], halves[name]]
    return "\n\n".join(functions)


def _functions_of(file: str) -> dict[str, str]:
    """Return the functions of a file, between which an empty line stands, by the names of their
    activations.
    """
    texts = native.read_source(__package__, file).strip().split("\n\n")
    names = [match[1] for match in (re.search(r"(\w+)\(", text) for text in texts) if match]
    return {
        {"hyperbolic_tangent": "tanh"}.get(name, name): text
        for name, text in zip(names, texts, strict=True)
    }


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
    lines = [
        ", ".join(texts[start : start + _ROW_NUMBERS])
        for start in range(0, len(texts), _ROW_NUMBERS)
    ]
    return (",\n" + " " * indent).join(lines)


def _structure(network: Network, precision: str) -> str:
    kind, members = _NUMBERS[precision].stored, []
    for number, layer in enumerate(network.layers, start=1):
        members.append(
            f"    {kind} weights_{number}[{layer.inputs}][{layer.outputs}], "
            f"bias_{number}[{layer.outputs}];"
        )
    return "\n".join(
        [
            "struct Weights  // weights_1[i][j] is what output j of layer 1 takes from its input i",
            "{",
            *members,
            "};",
        ]
    )


def _places(numbers: _Numbers, index: str, width: int, layout: str) -> Iterator[str]:
    """Yield where a number of each of the thread's candidates is stored."""
    for candidate in numbers.candidates:
        yield (
            f"{candidate} * {width} + {index}"
            if layout == "rows"
            else f"{index} * candidates + {candidate}"
        )


def _layer(layer: Dense, number: int, placement: str, numbers: _Numbers) -> str:
    now, prefix = f"h{number}", _PREFIX.get(placement, "")
    bias, weight = f"{prefix}bias_{number}[j]", f"{prefix}weights_{number}[i][j]"
    condition = f"if ({numbers.is_not_zero.format(weight)}) " if placement in KNOWN_VALUES else ""
    product = f"h{number - 1}[i], {numbers.weight.format(weight)}"
    text = _fill(
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
        name = {"tanh": "hyperbolic_tangent"}.get(layer.activation, layer.activation)
        text += (
            f"    #pragma unroll\n    for (int j = 0; j < {layer.outputs}; ++j) {now}[j] = "
            f"{name}({now}[j]);\n"
        )
    return text.removesuffix("\n")


def _fill(file: str, **values: object) -> str:
    return string.Template(native.read_source(__package__, file)).substitute(values)
