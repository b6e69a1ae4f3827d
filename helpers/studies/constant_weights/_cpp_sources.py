"""A dense network written as C++: the same arithmetic, with less and less left for run time.

Every program exports ``evaluate(inputs, outputs, candidates, context)``; ``context`` is what it
still has to be told: for "runtime_sizes" everything, for a pointer placement the numbers, for the
others nothing. Lesson 17.

Python calls it in less time than the program takes: two tensors in, checked in C. A call by
``ctypes`` with the checks in Python costs microseconds, the network tens of nanoseconds. So a small
C++ function, compiled once for all networks, is made a built-in function of Python
(PyCFunction_NewEx). It sees a tensor through DLPack's exchange table
(``torch.Tensor.__dlpack_c_exchange_api__``), and knows Python by the addresses of a few functions
of the stable ABI, so neither Python.h nor torch's headers are needed. Whatever is unusual it hands
back as None, and Python's own checks say what is wrong.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from helpers import native
from helpers.checks import choice
from helpers.studies.constant_weights._cuda_sources import float_literal
from helpers.studies.constant_weights._network import ACTIVATIONS, Network

CPP_PLACEMENTS = {
    "runtime_sizes": "sizes, activations and weights arrive with the call",
    "pointer": (
        "sizes stand in the program, weights behind a pointer; the outputs of a candidate on SIMD "
        "lanes"
    ),
    "constexpr": "sizes and weights stand in the program; the outputs of a candidate on SIMD lanes",
    "lanes_pointer": (
        "sizes stand in the program, weights behind a pointer; candidates on SIMD lanes"
    ),
    "lanes": "sizes and weights stand in the program; candidates on SIMD lanes",
    "pruned": (
        "straight-line code, one line for each weight that is not zero; candidates on SIMD lanes"
    ),
}
_PROGRAMS = {
    "runtime_sizes": "cpp/any_sizes.cpp",
    "pointer": "cpp/outputs_on_lanes.cpp",
    "constexpr": "cpp/outputs_on_lanes.cpp",
    "lanes_pointer": "cpp/candidates_on_lanes.cpp",
    "lanes": "cpp/candidates_on_lanes.cpp",
    "pruned": "cpp/straight_line.cpp",
}
BY_POINTER = ("pointer", "lanes_pointer")
PADDING = 16  # floats that a register may read behind the last weight

_MOST_STRAIGHT_LINES = 20_000
_MOST_STACK_FLOATS = 2**18  # a thread's stack may be as small as 8 MiB, on macOS 512 KiB
_NUMBERS_A_LINE = 8
_LINE_BYTES = 64
_EVALUATE_LANES = (
    "\ntemplate <int WIDTH>\n"
    "INLINE void evaluate_lanes(const Lanes (*x0)[WIDTH], Lanes (*y)[WIDTH], const float*"
)


def cpp_source(network: Network, placement: str) -> str:
    """Return the C++ program that evaluates ``network``, its weights placed as
    :data:`CPP_PLACEMENTS` says.

    Only the placement "pruned" gains from weights of zero, since it leaves them out. (So an input
    that is infinite or NaN does not reach an output through a weight of zero there.) Floats stand
    as hexadecimal literals, bit for bit.

    Raises ValueError for an unknown placement, or a network too large for the placement. Lesson 17.
    """
    choice("placement", placement, CPP_PLACEMENTS)
    if placement == "runtime_sizes":
        return native.read_source(__package__, _PROGRAMS[placement])
    _check_size(network, placement)
    parts = [f"\nconstexpr int INPUTS = {network.inputs}, OUTPUTS = {network.outputs};\n"]
    if placement == "pruned":
        parts += _straight_line(network)
    else:
        if placement not in BY_POINTER:
            parts += _constants(network)
        parts += _evaluate_one(network, placement)
        if placement in ("lanes", "lanes_pointer"):
            parts += _evaluate_lanes(network, placement)
    generated = {"network.h": "".join(parts)}
    return _heading(network, placement) + native.read_source(
        __package__, _PROGRAMS[placement], generated=generated
    )


def _check_size(network: Network, placement: str) -> None:
    nonzero_weights = network.nonzero_weights
    if placement == "pruned" and nonzero_weights > _MOST_STRAIGHT_LINES:
        raise ValueError(
            f"straight-line code of {nonzero_weights:,} weights is too long for the compiler and "
            f"the instruction cache; up to {_MOST_STRAIGHT_LINES:,} are written: prune more, or "
            "take 'lanes'"
        )
    widest = sum(sorted(network.widths)[-2:])
    if widest * 64 > _MOST_STACK_FLOATS:
        raise ValueError(
            f"two layers of {widest:,} numbers together do not fit a thread's stack for 64 "
            f"candidates; up to {_MOST_STACK_FLOATS // 64:,} do. For larger layers a matrix "
            "product is the tool: torch"
        )


def _heading(network: Network, placement: str) -> str:
    chain = " ".join(f"-> {layer.outputs} {layer.activation}" for layer in network.layers)
    return (
        f"// {network.inputs} {chain}; {network.nonzero_weights:,} of {network.macs:,} weights are "
        f"not zero.\n// {placement}: {CPP_PLACEMENTS[placement]}.\n"
    )


def context_of(network: Network, placement: str) -> tuple[np.ndarray, ...]:
    """Return the context of ``evaluate``, first, and then all that it points to; keep all of it
    alive.

    The struct Network for "runtime_sizes", the packed numbers for a pointer placement, nothing for
    the others.
    """
    if placement in BY_POINTER:
        return (pack(network),)
    if placement != "runtime_sizes":
        return ()
    kinds = [ACTIVATIONS.index(layer.activation) for layer in network.layers]
    parts = np.array(network.widths, np.int64), np.array(kinds, np.int64), pack(network)
    addresses = [part.ctypes.data for part in parts]
    return (np.array([len(kinds), max(network.widths), *addresses], np.int64), *parts)


def pack(network: Network) -> np.ndarray:
    """Return the network's numbers as a pointer placement reads them, flat float32, in the order of
    the layers.

    Of each layer its biases, then its weights, a row an input; then :data:`PADDING` zeros. They
    begin at a multiple of 64 bytes, as constants in a program do: reads that cross cache lines
    would take longer. Lesson 17.
    """
    parts = [part.reshape(-1) for layer in network.layers for part in (layer.bias, layer.weights)]
    numbers = np.concatenate([*parts, np.zeros(PADDING, np.float32)])
    room = np.empty(numbers.size + _LINE_BYTES // numbers.itemsize, np.float32)
    start = -room.ctypes.data % _LINE_BYTES // numbers.itemsize
    aligned = room[start : start + numbers.size]
    aligned[:] = numbers
    return aligned


def _constants(network: Network) -> Iterator[str]:
    yield "alignas(64) static constexpr float constants[] = {\n"
    for number, layer in enumerate(network.layers, start=1):
        yield f"    // layer {number}, biases\n"
        yield from _numbers(layer.bias)
        yield f"    // layer {number}, weights, {layer.inputs} rows of {layer.outputs}\n"
        yield from _numbers(layer.weights)
    yield "    // read, and not used\n"
    yield from _numbers(np.zeros(PADDING, np.float32))
    yield "};\n"


def _numbers(values: np.ndarray) -> Iterator[str]:
    for row in np.atleast_2d(values).tolist():
        for start in range(0, len(row), _NUMBERS_A_LINE):
            yield f"    {', '.join(map(float_literal, row[start : start + _NUMBERS_A_LINE]))},\n"


def _evaluate_one(network: Network, placement: str) -> Iterator[str]:
    unused = "" if placement in BY_POINTER else "[[maybe_unused]] "
    yield (
        f"\nINLINE void evaluate_one(const float* x0, float* outputs, {unused}const float* "
        "parameters) {\n"
    )
    yield from _layers(network, placement, "    alignas(64) float {}[padded({})];\n")
    yield f"    memcpy(outputs, x{len(network.layers)}, sizeof(float) * OUTPUTS);\n}}\n"


def _evaluate_lanes(network: Network, placement: str) -> Iterator[str]:
    yield f"{_EVALUATE_LANES} parameters) {{\n"
    yield from _layers(network, placement, "    Lanes {}[{}][WIDTH];\n", width=", WIDTH", last="y")
    yield "}\n"


def _layers(
    network: Network, placement: str, declaration: str, *, width: str = "", last: str = ""
) -> Iterator[str]:
    """Yield the layers' calls; ``last`` is what the last one writes to where that is declared
    already.
    """
    if placement not in BY_POINTER:
        yield "    parameters = constants;\n"
    bias = 0
    for number, layer in enumerate(network.layers, start=1):
        weights = bias + layer.outputs
        y = last if last and number == len(network.layers) else f"x{number}"
        if y != last:
            yield declaration.format(y, layer.outputs)
        yield (
            f"    dense<{layer.inputs}, {layer.outputs}{width}>(x{number - 1}, parameters + "
            f"{weights}, parameters + {bias}, {y});\n"
        )
        if layer.activation == "softmax":
            yield f"    softmax<{layer.outputs}{width}>({y});\n"
        elif layer.activation != "identity":
            yield f"    apply<{layer.outputs}, {layer.activation}{width}>({y});\n"
        bias = weights + layer.weights.size


def _straight_line(network: Network) -> Iterator[str]:
    yield f"{_EVALUATE_LANES}) {{\n"
    used = _used_units(network)
    for number, layer in enumerate(network.layers, start=1):
        y = "y" if number == len(network.layers) else f"x{number}"
        function = "identity" if layer.activation == "softmax" else layer.activation
        if y != "y":
            yield f"    Lanes {y}[{layer.outputs}][WIDTH];\n"
        for unit in used[number].tolist():
            yield (
                f"    {{\n        Unit<WIDTH> sum;\n        begin(sum, "
                f"{float_literal(layer.bias[unit])});\n"
            )
            for row in np.flatnonzero(layer.weights[:, unit]).tolist():
                yield (
                    f"        add(sum, x{number - 1}[{row}], "
                    f"{float_literal(layer.weights[row, unit])});\n"
                )
            yield f"        end<{function}>(sum, {y}[{unit}]);\n    }}\n"
        if layer.activation == "softmax":
            yield f"    softmax<{layer.outputs}, WIDTH>({y});\n"
    yield "}\n"


def _used_units(network: Network) -> list[np.ndarray]:
    """Return of each layer, the inputs first, the units that reach an output through weights that
    are not zero.
    """
    used = [np.arange(network.outputs)]
    before = ("identity", *(layer.activation for layer in network.layers[:-1]))
    for layer, activation in zip(reversed(network.layers), reversed(before), strict=True):
        counts = np.any(layer.weights[:, used[-1]] != 0, axis=1)
        # every unit counts in a softmax's sum
        used.append(np.flatnonzero(counts | (activation == "softmax")))
    return used[::-1]


EVALUATE = (
    "void evaluate(const float* inputs, float* outputs, int64_t candidates, const void* context)"
)

_EXCHANGE = "__dlpack_c_exchange_api__"
_EXCHANGE_MAJOR = 1
_METH_FASTCALL = 0x80
_RELEASE_FROM_MACS = 200_000  # some microseconds: worth letting other threads run
_API = ("PyLong_AsVoidPtr", "PyObject_Type", "PyObject_GetAttr", "Py_IncRef", "Py_DecRef",
        "PyErr_Clear", "PyEval_SaveThread", "PyEval_RestoreThread")  # fmt: skip


class _Method(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("address", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p))  # fmt: skip


class _Exchange(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("allocate", "import", "export", "view", "stream")),
    )


class _Owner(int):
    """The address that the built-in function is bound to, and all that must live as long as it."""

    kept: tuple[object, ...]


def caller(evaluate: Any, context: tuple[np.ndarray, ...], network: Network) -> Callable[..., Any]:
    """Return a built-in function of (x, out) that runs ``evaluate`` and gives ``out``, or None
    where it declines.

    It declines whatever is not two plain float32 CPU tensors (N, inputs) and (N, outputs) that do
    not overlap; without torch's exchange table, always. ``evaluate`` is a loaded program's raw
    function, ``context`` as :func:`cpp_sources.context_of` gives it; both are kept alive.
    """
    view = _view_address()
    if view is None:
        return _decline
    bound = np.array(  # the struct Bound of call.cpp
        [
            _address(evaluate),
            address_of(context) or 0,
            network.inputs,
            network.outputs,
            -(-_RELEASE_FROM_MACS // network.macs),
            id(torch.Tensor),
            id(_REQUIRES_GRAD),
            view,
        ],
        np.int64,
    )
    library = _caller_library()
    method = _Method(
        b"evaluate",
        _address(library.raw.call),
        _METH_FASTCALL,
        b"Evaluate x into out; None where Python has to look.",
    )
    owner = _Owner(bound.ctypes.data)
    owner.kept = (bound, method, context, evaluate, library)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p],
    )
    return make(ctypes.addressof(method), owner, None)


_REQUIRES_GRAD = sys.intern("requires_grad")


def address_of(context: tuple[np.ndarray, ...]) -> int | None:
    """Return the address that a program gets as its context."""
    return context[0].ctypes.data if context else None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _decline(x: object, out: object) -> None:  # noqa: ARG001
    return None


@functools.cache
def _view_address() -> int | None:
    """Return the address of torch's function that describes a tensor in place, None where there is
    none of ours.
    """
    capsule = getattr(torch.Tensor, _EXCHANGE, None)
    if capsule is None or sys.implementation.name != "cpython":
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = _Exchange.from_address(pointer(capsule, b"dlpack_exchange_api"))
    return table.view if table.major == _EXCHANGE_MAJOR else None


@functools.cache
def _caller_library() -> native.Library:
    library = native.compile_cpp(native.read_source(__package__, "cpp/call.cpp"))
    addresses = [_address(getattr(ctypes.pythonapi, name)) for name in _API]
    python = (ctypes.c_void_p * (len(_API) + 2)).in_dll(library.raw, "python")  # its struct Python
    python[:] = [*addresses, id(None), id(False)]
    return library


def check_tensors(
    x: object, out: object, network: Network, *, device: str = "cpu", layout: str = "rows"
) -> torch.Tensor:
    """Return ``out``, made if it is None, once both are what a program can take; lesson 17's errors
    otherwise.

    ``x`` is a float32 tensor (N, inputs) of ``network`` and ``out`` (N, outputs), or their
    transposes with the ``layout`` "columns"; both on ``device``, contiguous and without gradient,
    and they share no memory. Raises TypeError or ValueError with what was given and what to do.
    Lesson 17.
    """
    axis = 0 if layout == "rows" else 1
    inputs = _plain("x", x, network.inputs, device, axis)
    candidates = inputs.shape[axis]
    if out is None:
        shape = (candidates, network.outputs)
        return inputs.new_empty(shape if axis == 0 else shape[::-1])
    target = _plain("out", out, network.outputs, device, axis)
    if target.shape[axis] != candidates:
        raise ValueError(
            f"x has {candidates:,} candidates and out {target.shape[axis]:,}; they must be equal"
        )
    begin, end = target.data_ptr(), target.data_ptr() + target.nbytes
    if inputs.data_ptr() < end and begin < inputs.data_ptr() + inputs.nbytes:
        raise ValueError(
            "out shares memory with x, which is still read while out is written; give another "
            "tensor"
        )
    return target


def _plain(name: str, value: object, width: int, device: str, axis: int) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{name} is a torch.Tensor, not {type(value).__name__}; torch.from_numpy(...) makes one"
        )
    if value.dtype != torch.float32:
        raise ValueError(
            f"{name} is {value.dtype}, and the network computes in torch.float32; give "
            f"{name}.float()"
        )
    if value.device != torch.device(device):
        raise ValueError(
            f"{name} is on {value.device}, and the network on {device}; give {name}.to({device!r})"
        )
    if value.dim() != 2 or value.shape[1 - axis] != width:
        unit = "numbers" if width > 1 else "number"
        expected_shape = f"({width}, candidates)" if axis else f"(candidates, {width})"
        raise ValueError(
            f"{name} has the shape {tuple(value.shape)}; it is {expected_shape}, {width} {unit} "
            "each"
        )
    if value.is_neg():
        raise ValueError(f"{name} is a negated view; give {name}.resolve_neg()")
    if not value.is_contiguous():
        raise ValueError(
            f"{name} has gaps, or lies in another order; give a copy: {name}.contiguous()"
        )
    if value.requires_grad:
        raise ValueError(
            f"{name} requires a gradient, and this program computes none; give {name}.detach()"
        )
    return value
