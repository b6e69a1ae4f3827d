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
from helpers.studies.constant_weights._cuda_sources import float_literal
from helpers.studies.constant_weights._network import ACTIVATIONS, Dense, Network, pruned

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


def cpp_source(network: Network, placement: str = "lanes", prune: float = 0.0) -> str:
    """Return the C++ program that evaluates ``network``, its weights placed as
    :data:`CPP_PLACEMENTS` says.

    ``prune`` is the share of every layer's weights, the ones nearest to zero, that are set to zero
    first; only the placement "pruned" gains from it, since it leaves zeros out. (So an input that
    is infinite or NaN does not reach an output through a weight of zero there.) Floats stand as
    hexadecimal literals, bit for bit.

    Raises ValueError for an unknown placement, a share outside 0 to 1, or a network too large for
    the placement. Lesson 17.
    """
    if placement not in CPP_PLACEMENTS:
        raise ValueError(
            f"the placements in C++ are {', '.join(CPP_PLACEMENTS)}; there is no {placement!r:.40}"
        )
    network = pruned(network, prune)
    if placement == "runtime_sizes":
        return native.read_source(__package__, _PROGRAMS[placement])
    _check_size(network, placement)
    if placement == "pruned":
        parts = [_sizes(network), *_straight_line(network)]
    else:
        parts = [_parameters(network, placement), _evaluate_one(network, placement)]
        parts += (
            [_evaluate_lanes(network, placement)] if placement in ("lanes", "lanes_pointer") else []
        )
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


def context_of(network: Network, placement: str) -> tuple[object, ...]:
    """Return the context of ``evaluate``, first, and then all that it points to; keep all of it
    alive.

    A ctypes structure for "runtime_sizes", the packed numbers for a pointer placement, nothing for
    the others.
    """
    if placement in BY_POINTER:
        return (pack(network),)
    if placement != "runtime_sizes":
        return ()
    numbers, widths = pack(network), np.array(network.widths, np.int64)
    kinds = np.array([ACTIVATIONS.index(layer.activation) for layer in network.layers], np.int64)
    sizes = RuntimeSizes(
        len(network.layers), max(network.widths), *(a.ctypes.data for a in (widths, kinds, numbers))
    )
    return (sizes, widths, kinds, numbers)


class RuntimeSizes(ctypes.Structure):
    """The struct Network of the program "runtime_sizes"."""

    _fields_ = (
        ("layers", ctypes.c_int64), ("widest", ctypes.c_int64), ("widths", ctypes.c_void_p),
        ("activations", ctypes.c_void_p), ("parameters", ctypes.c_void_p),
    )  # fmt: skip


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


def _sizes(network: Network) -> str:
    return f"\nconstexpr int INPUTS = {network.inputs}, OUTPUTS = {network.outputs};\n"


def _parameters(network: Network, placement: str) -> str:
    if placement in BY_POINTER:
        return _sizes(network)
    lines = [_sizes(network), "alignas(64) static constexpr float constants[] = {\n"]
    for number, layer in enumerate(network.layers, start=1):
        lines += [f"    // layer {number}, biases\n", *_numbers(layer.bias)]
        lines += [
            f"    // layer {number}, weights, {layer.inputs} rows of {layer.outputs}\n",
            *_numbers(layer.weights),
        ]
    return "".join(
        [*lines, "    // read, and not used\n", *_numbers(np.zeros(PADDING, np.float32)), "};\n"]
    )


def _numbers(values: np.ndarray) -> Iterator[str]:
    row = values.shape[-1]
    flat = [float_literal(value) for value in values.reshape(-1).tolist()]
    for start in range(0, len(flat), row):
        for first in range(start, start + row, _NUMBERS_A_LINE):
            yield f"    {', '.join(flat[first : min(first + _NUMBERS_A_LINE, start + row)])},\n"


def _offsets(network: Network) -> Iterator[tuple[int, Dense, int, int]]:
    """Yield of each layer its number, the layer, and where its biases and its weights begin."""
    offset = 0
    for number, layer in enumerate(network.layers, start=1):
        yield number, layer, offset, offset + layer.outputs
        offset += layer.outputs + layer.weights.size


def _evaluate_one(network: Network, placement: str) -> str:
    unused = "" if placement in BY_POINTER else "[[maybe_unused]] "
    return "".join(
        [
            (
                f"\nINLINE void evaluate_one(const float* x0, float* outputs, {unused}const float* "
                f"parameters) {{\n"
            ),
            *_layers(network, placement, "    alignas(64) float {}[padded({})];\n"),
            f"    memcpy(outputs, x{len(network.layers)}, sizeof(float) * OUTPUTS);\n}}\n",
        ]
    )


def _evaluate_lanes(network: Network, placement: str) -> str:
    return "".join(
        [
            "\ntemplate <int WIDTH>\n",
            (
                "INLINE void evaluate_lanes(const Lanes (*x0)[WIDTH], Lanes (*y)[WIDTH], const "
                "float* parameters) {\n"
            ),
            *_layers(network, placement, "    Lanes {}[{}][WIDTH];\n", width=", WIDTH", last="y"),
            "}\n",
        ]
    )


def _layers(
    network: Network, placement: str, declaration: str, *, width: str = "", last: str = ""
) -> Iterator[str]:
    """Yield the layers' calls; ``last`` is what the last one writes to where that is declared
    already.
    """
    if placement not in BY_POINTER:
        yield "    parameters = constants;\n"
    for number, layer, bias, weights in _offsets(network):
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


def _straight_line(network: Network) -> Iterator[str]:
    yield "\ntemplate <int WIDTH>\n"
    yield (
        "INLINE void evaluate_lanes(const Lanes (*x0)[WIDTH], Lanes (*y)[WIDTH], const float*) {\n"
    )
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


class _Python(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in (*_API, "none", "no"))


class _Bound(ctypes.Structure):
    _fields_ = (
        ("evaluate", ctypes.c_void_p), ("context", ctypes.c_void_p), ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64), ("release_from", ctypes.c_int64), ("tensor", ctypes.c_void_p),
        ("requires_grad", ctypes.c_void_p), ("view", ctypes.c_void_p),
    )  # fmt: skip


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


def caller(
    evaluate: Any, context: tuple[object, ...], *, inputs: int, outputs: int, macs: int
) -> Callable[..., Any]:
    """Return a built-in function of (x, out) that runs ``evaluate`` and gives ``out``, or None
    where it declines.

    It declines whatever is not two plain float32 CPU tensors (N, inputs) and (N, outputs) that do
    not overlap; without torch's exchange table, always. ``evaluate`` is a loaded program's raw
    function, ``context`` as :func:`cpp_sources.context_of` gives it; both are kept alive.
    """
    view = _view_address()
    if view is None:
        return _decline
    bound = _Bound(
        ctypes.cast(evaluate, ctypes.c_void_p).value,
        address_of(context),
        inputs,
        outputs,
        -(-_RELEASE_FROM_MACS // macs),
        id(torch.Tensor),
        id(_REQUIRES_GRAD),
        view,
    )
    library = _caller_library()
    method = _Method(
        b"evaluate",
        ctypes.cast(library.raw.call, ctypes.c_void_p).value,
        _METH_FASTCALL,
        b"Evaluate x into out; None where Python has to look.",
    )
    owner = _Owner(ctypes.addressof(bound))
    owner.kept = (bound, method, context, evaluate, library)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p],
    )
    return make(ctypes.addressof(method), owner, None)


_REQUIRES_GRAD = sys.intern("requires_grad")


def address_of(context: tuple[object, ...]) -> int | None:
    """Return the address that a program gets as its context."""
    if not context:
        return None
    first: Any = context[0]
    return ctypes.addressof(first) if isinstance(first, ctypes.Structure) else first.ctypes.data


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
    python = _Python.in_dll(library.raw, "python")
    for name in _API:
        setattr(python, name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
    python.none, python.no = id(None), id(False)
    return library


def check_tensors(
    x: object, out: object, *, inputs: int, outputs: int, device: str = "cpu"
) -> torch.Tensor:
    """Return ``out``, made if it is None, once both are what a program can take; lesson 17's errors
    otherwise.

    ``x`` is a float32 tensor (N, inputs) and ``out`` (N, outputs), both on ``device``, contiguous
    and without gradient, and they share no memory. Raises TypeError or ValueError with what was
    given and what to do. Lesson 17.
    """
    rows = _plain("x", x, inputs, device)
    if out is None:
        return torch.empty((rows.shape[0], outputs), dtype=torch.float32, device=rows.device)
    target = _plain("out", out, outputs, device)
    if target.shape[0] != rows.shape[0]:
        raise ValueError(
            f"x has {rows.shape[0]:,} candidates and out {target.shape[0]:,}; they must be equal"
        )
    begin, end = target.data_ptr(), target.data_ptr() + 4 * target.numel()
    if rows.data_ptr() < end and begin < rows.data_ptr() + 4 * rows.numel():
        raise ValueError(
            "out shares memory with x, which is still read while out is written; give another "
            "tensor"
        )
    return target


def _plain(name: str, value: object, width: int, device: str) -> torch.Tensor:
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
    if value.dim() != 2 or value.shape[1] != width:
        unit = "numbers" if width > 1 else "number"
        raise ValueError(
            f"{name} has the shape {tuple(value.shape)}; it is (candidates, {width}), {width} "
            f"{unit} each"
        )
    if not value.is_contiguous() or value.is_neg():
        raise ValueError(
            f"{name} has gaps, or lies in another order; give a copy: {name}.contiguous()"
            if not value.is_neg()
            else f"{name} is a negated view; give {name}.resolve_neg()"
        )
    if value.requires_grad:
        raise ValueError(
            f"{name} requires a gradient, and this program computes none; give {name}.detach()"
        )
    return value
