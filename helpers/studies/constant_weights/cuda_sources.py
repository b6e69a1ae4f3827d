"""CUDA C++ of a dense network, one thread a candidate, its weights in one of seven places.

One template writes them all: only how the weights are declared and how the kernel comes to them differs. Loops over
layers are unrolled, so every weight has a multiply-add of its own in the program. Lesson 11.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from helpers.studies.constant_weights.network import Dense, Network

CUDA_PLACEMENTS = ("const", "constexpr", "device", "constant", "parameter", "pointer", "shared")
KNOWN_VALUES = ("const", "constexpr")
PRECISIONS = ("fp32", "fp16")
LAYOUTS = ("rows", "columns")
THREADS = 128

_MOST_WEIGHTS = 65_536
_MOST_BYTES = {"constant": 65_536, "parameter": 32_764 - 32, "shared": 48 * 1024}
_REASON = {
    "constant": "constant memory holds 65,536 bytes",
    "parameter": "a kernel's parameters take at most 32,764 bytes, the tensors' addresses among them",
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
_QUALIFIERS = {"const": "__device__ const", "constexpr": "__device__ constexpr", "device": "__device__",
               "constant": "__constant__"}  # fmt: skip
_ROW_NUMBERS = 6


def cuda_source(network: Network, *, placement: str = "const", precision: str = "fp32", layout: str = "rows") -> str:
    """Return the CUDA C++ source of ``network``: one kernel, ``evaluate``, as :func:`cuda_declaration` declares it.

    ``placement`` is one of :data:`CUDA_PLACEMENTS`. With ``precision="fp32"`` a thread evaluates one candidate; with
    "fp16" two, in the halves of its registers, its weights rounded to float16 and kept as their bits. Inputs and
    outputs are float32 either way: ``layout="rows"`` is (N, inputs) and (N, outputs), "columns" the transposes, in
    which neighbouring threads read neighbouring numbers. Of "const" and "constexpr" weights a zero costs no instruction
    (what holds for finite inputs); elsewhere the compiler does not know it.

    Every float32 stands as a hexadecimal number, which means it exactly. Raises ValueError for an unknown name, for a
    weight that float16 cannot hold, and for a network that is too large for the placement. Lesson 11.
    """
    _check(network, placement, precision, layout)
    parts = [_head(network, placement, precision, layout), _functions(network, precision)]
    if placement in _QUALIFIERS:
        parts.append("\n\n".join(_arrays(network, _QUALIFIERS[placement], precision)))
    else:
        parts.append(_structure(network, precision))
    parts.append(_kernel(network, placement, precision, layout))
    return "\n\n".join(part for part in parts if part) + "\n"


def cuda_declaration(placement: str) -> str:
    """Return the C declaration of the kernel ``evaluate``, for :meth:`helpers.native.Module.function`. Lesson 11."""
    last = {"parameter": ", Weights weights", "pointer": ", const void* weights", "shared": ", const void* weights"}
    return f"void evaluate(const float* inputs, float* outputs, long long candidates{last.get(placement, '')})"


def candidates_per_thread(precision: str) -> int:
    """Return how many candidates a thread evaluates: 1, and 2 in the halves of its registers with "fp16"."""
    return {"fp32": 1, "fp16": 2}[precision]


def packed_weights(network: Network, *, precision: str = "fp32") -> bytes:
    """Return the bytes of the structure ``Weights`` in the source: each layer's weights row by row, then its bias.

    Four bytes a number for "fp32" and two for "fp16", little-endian. Raises ValueError for a weight that float16
    cannot hold. Lesson 11.
    """
    parts = [array for layer in network.layers for array in (layer.weights, layer.bias)]
    if precision == "fp32":
        return b"".join(array.astype("<f4").tobytes() for array in parts)
    return b"".join(half_bits(array).astype("<u2").tobytes() for array in parts)


def half_bits(values: np.ndarray) -> np.ndarray:
    """Return float32 ``values`` rounded to the nearest float16, as their 16 bits.

    Raises ValueError for a number that would become infinite. Lesson 11.
    """
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        worst = float(np.abs(values).max())
        raise ValueError(f"a weight or bias of {worst:g} in size is too large for float16, which ends at 65,504; "
                         'use precision="fp32"')  # fmt: skip
    return halves.view(np.uint16)


def float_literal(value: float) -> str:
    """Return a float32 as a C literal that means exactly it, also where it is denormal: ``0x1.99999ap-4f``.

    Lesson 11.
    """
    mantissa, _, exponent = float(value).hex().partition("p")
    whole, _, digits = mantissa.partition(".")
    digits = digits.rstrip("0")
    return f"{whole}{'.' + digits if digits else ''}p{exponent}f"


def _check(network: Network, placement: str, precision: str, layout: str) -> None:
    for name, value, known in (("placement", placement, CUDA_PLACEMENTS), ("precision", precision, PRECISIONS),
                               ("layout", layout, LAYOUTS)):  # fmt: skip
        if value not in known:
            raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r:.40}")
    if network.macs > _MOST_WEIGHTS:
        raise ValueError(f"the network has {network.macs:,} weights, each with an instruction of its own; up to "
                         f"{_MOST_WEIGHTS:,} are generated. Use torch for a network of this size")  # fmt: skip
    size = network.parameters * {"fp32": 4, "fp16": 2}[precision]
    if size > _MOST_BYTES.get(placement, size):
        raise ValueError(f'{network.parameters:,} parameters take {size:,} bytes; {_REASON[placement]}; use '
                         'placement="pointer"')  # fmt: skip


def _head(network: Network, placement: str, precision: str, layout: str) -> str:
    steps = [str(network.inputs)]
    steps += [f"{layer.outputs}{'' if layer.activation == 'identity' else ' ' + layer.activation}"
              for layer in network.layers]  # fmt: skip
    many = {"fp32": "one candidate", "fp16": "two candidates, in the two halves of its registers"}[precision]
    order = {"rows": "row after row", "columns": "column after column"}[layout]
    lines = [
        f"// {' -> '.join(steps)}: {network.macs:,} weights, of which {network.nonzero_weights:,} are not zero.",
        f"// The weights stand {_WORDS[placement]}.",
        f"// A thread evaluates {many}. Inputs and outputs are stored {order}.",
    ]
    return "\n".join(lines + (["#include <cuda_fp16.h>"] if precision == "fp16" else []))


_BOTH = """\
__device__ inline __half2 both(unsigned short bits)  // one weight's bits, for both candidates
{
    return __half2half2(__ushort_as_half(bits));
}"""

_FUNCTIONS = {
    "relu": """\
__device__ inline float relu(float x)  // NaN stays NaN, as in torch; fmaxf would make it 0
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(x));  // one instruction, which sm_80 and later have
    return x;
#else
    return x < 0.0f ? 0.0f : x;
#endif
}""",
    "tanh": """\
__device__ inline float hyperbolic_tangent(float x) { return tanhf(x); }""",
    "sigmoid": """\
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }""",
    "softmax": """\
template <int width> __device__ inline void softmax(float (&x)[width])
{
    float largest = x[0], sum = 0.0f;
    #pragma unroll
    for (int j = 1; j < width; ++j) largest = x[j] > largest ? x[j] : largest;
    #pragma unroll
    for (int j = 0; j < width; ++j) { x[j] = expf(x[j] - largest); sum += x[j]; }
    #pragma unroll
    for (int j = 0; j < width; ++j) x[j] = __fdividef(x[j], sum);
}""",
}
_HALF_FUNCTIONS = {
    "relu": """\
__device__ inline __half2 relu(__half2 x) { return __hmax2_nan(x, both(0)); }  // NaN stays NaN""",
    "softmax": """\
template <int width> __device__ inline void softmax(__half2 (&x)[width])  // in float, rounded at the end
{
    float first[width], second[width];
    #pragma unroll
    for (int j = 0; j < width; ++j) { first[j] = __low2float(x[j]); second[j] = __high2float(x[j]); }
    softmax(first);
    softmax(second);
    #pragma unroll
    for (int j = 0; j < width; ++j) x[j] = __floats2half2_rn(first[j], second[j]);
}""",
}
_HALF_OF_FLOAT = """\
__device__ inline __half2 {name}(__half2 x)  // in float, rounded at the end
{{
    return __floats2half2_rn({name}(__low2float(x)), {name}(__high2float(x)));
}}"""
_NAMES = {"tanh": "hyperbolic_tangent"}


def _functions(network: Network, precision: str) -> str:
    used = [name for name in _FUNCTIONS if any(layer.activation == name for layer in network.layers)]
    if precision == "fp32":
        return "\n\n".join(_FUNCTIONS[name] for name in used)
    made = [_BOTH]
    for name in used:
        if name != "relu":
            made.append(_FUNCTIONS[name])
        made.append(_HALF_FUNCTIONS.get(name) or _HALF_OF_FLOAT.format(name=_NAMES.get(name, name)))
    return "\n\n".join(made)


def _arrays(network: Network, qualifiers: str, precision: str) -> Iterator[str]:
    """Yield the declarations of each layer's weights and bias, with their values."""
    kind = _KIND[precision]
    for number, layer in enumerate(network.layers, start=1):
        rows = ",\n".join(f"    {{{_values(row, precision, indent=5)}}}" for row in layer.weights)
        yield (f"// weights_{number}[i][j] is what output j of layer {number} takes from its input i\n"
               f"{qualifiers} {kind} weights_{number}[{layer.inputs}][{layer.outputs}] = {{\n{rows}}};")  # fmt: skip
        bias = _values(layer.bias, precision, indent=4)
        yield f"{qualifiers} {kind} bias_{number}[{layer.outputs}] = {{\n    {bias}}};"


def _values(values: np.ndarray, precision: str, *, indent: int) -> str:
    if precision == "fp32":
        texts = [float_literal(value) for value in values]
    else:
        texts = [f"0x{bits:04x}" for bits in half_bits(values)]
    lines = [", ".join(texts[start : start + _ROW_NUMBERS]) for start in range(0, len(texts), _ROW_NUMBERS)]
    return (",\n" + " " * indent).join(lines)


def _structure(network: Network, precision: str) -> str:
    kind, members = _KIND[precision], []
    for number, layer in enumerate(network.layers, start=1):
        members.append(f"    {kind} weights_{number}[{layer.inputs}][{layer.outputs}], bias_{number}[{layer.outputs}];")
    return "\n".join(["struct Weights  // weights_1[i][j] is what output j of layer 1 takes from its input i", "{",
                      *members, "};"])  # fmt: skip


def _kernel(network: Network, placement: str, precision: str, layout: str) -> str:
    lines = [_SIGNATURE + _LAST_PARAMETER.get(placement, "") + ")", "{"]
    if placement == "shared":
        lines.append(_COPY.format(kind=_KIND[precision]))
    lines += [_START[precision], "", *_inputs(network.inputs, precision, layout)]
    for number, layer in enumerate(network.layers, start=1):
        lines += ["", *_layer(layer, number, placement, precision)]
    return "\n".join([*lines, "", *_outputs(network, precision, layout), "}"])


_KIND = {"fp32": "float", "fp16": "unsigned short"}
_NUMBER = {"fp32": "float", "fp16": "__half2"}
_PREFIX = {"parameter": "weights.", "pointer": "weights->", "shared": "copied."}
_SIGNATURE = """\
extern "C" __global__ void evaluate(const float* __restrict__ inputs, float* __restrict__ outputs,
                                    long long candidates"""
_LAST_PARAMETER = {
    "parameter": ", const __grid_constant__ Weights weights",
    "pointer": ", const Weights* __restrict__ weights",
    "shared": ", const Weights* __restrict__ weights",
}
_COPY = """\
    __shared__ __align__(16) Weights copied;
    for (int k = threadIdx.x; k < (int)(sizeof(Weights) / sizeof({kind})); k += blockDim.x)
        (({kind}*)&copied)[k] = ((const {kind}*)weights)[k];
    __syncthreads();
"""
_START = {
    "fp32": """\
    const long long candidate = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (candidate >= candidates) return;""",
    "fp16": """\
    const long long first = 2 * ((long long)blockIdx.x * blockDim.x + threadIdx.x);
    if (first >= candidates) return;
    const long long second = first + 1 < candidates ? first + 1 : first;""",
}


def _place(candidate: str, index: str, width: int, layout: str) -> str:
    return f"[{candidate} * {width} + {index}]" if layout == "rows" else f"[{index} * candidates + {candidate}]"


def _loop(index: str, count: int, body: str, *, depth: int = 1) -> list[str]:
    space = "    " * depth
    return [f"{space}#pragma unroll", f"{space}for (int {index} = 0; {index} < {count}; ++{index}){body}"]


def _inputs(width: int, precision: str, layout: str) -> list[str]:
    names = {"fp32": ("candidate",), "fp16": ("first", "second")}[precision]
    read = ", ".join(f"inputs{_place(name, 'i', width, layout)}" for name in names)
    value = read if precision == "fp32" else f"__floats2half2_rn({read})"
    return [f"    {_NUMBER[precision]} h0[{width}];", *_loop("i", width, f" h0[i] = {value};")]


def _layer(layer: Dense, number: int, placement: str, precision: str) -> list[str]:
    before, now, prefix = f"h{number - 1}", f"h{number}", _PREFIX.get(placement, "")
    bias, weight = f"{prefix}bias_{number}[j]", f"{prefix}weights_{number}[i][j]"
    wide = {"fp32": "{}", "fp16": "both({})"}[precision]
    multiply_add = {"fp32": "fmaf", "fp16": "__hfma2"}[precision]
    zero = {"fp32": f"{weight} != 0.0f", "fp16": f"({weight} & 0x7fff) != 0"}[precision]
    condition = f"if ({zero}) " if placement in KNOWN_VALUES else ""
    step = f"{condition}{now}[j] = {multiply_add}({before}[i], {wide.format(weight)}, {now}[j]);"
    lines = [
        f"    // layer {number}: {layer.inputs} -> {layer.outputs}, {layer.activation}",
        f"    {_NUMBER[precision]} {now}[{layer.outputs}];",
        *_loop("j", layer.outputs, f" {now}[j] = {wide.format(bias)};"),
        *_loop("j", layer.outputs, ""),
        *_loop("i", layer.inputs, f"\n            {step}", depth=2),
    ]
    if layer.activation == "softmax":
        lines.append(f"    softmax({now});")
    elif layer.activation != "identity":
        name = _NAMES.get(layer.activation, layer.activation)
        lines += _loop("j", layer.outputs, f" {now}[j] = {name}({now}[j]);")
    return lines


def _outputs(network: Network, precision: str, layout: str) -> list[str]:
    last, width = f"h{len(network.layers)}[j]", network.outputs
    if precision == "fp32":
        return _loop("j", width, f" outputs{_place('candidate', 'j', width, layout)} = {last};")
    first, second = (f"outputs{_place(name, 'j', width, layout)}" for name in ("first", "second"))
    return [
        *_loop("j", width, f" {first} = __low2float({last});"),
        "    if (second == first) return;",
        *_loop("j", width, f" {second} = __high2float({last});"),
    ]
