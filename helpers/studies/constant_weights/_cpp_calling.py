"""Calling a generated program from Python in less time than the program takes: two tensors in, checked in C.

A call by ``ctypes`` with the checks in Python costs microseconds, the network tens of nanoseconds. So a small C++
function, compiled once for all networks, is made a built-in function of Python (PyCFunction_NewEx). It sees a tensor
through DLPack's exchange table (``torch.Tensor.__dlpack_c_exchange_api__``), and knows Python by the addresses of a few
functions of the stable ABI, so neither Python.h nor torch's headers are needed. Whatever is unusual it hands back as
None, and Python's own checks say what is wrong. Lesson 11.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from helpers import native

EVALUATE = "void evaluate(const float* inputs, float* outputs, int64_t candidates, const void* context)"

_EXCHANGE = "__dlpack_c_exchange_api__"
_EXCHANGE_MAJOR = 1
_METH_FASTCALL = 0x80
_RELEASE_FROM_MACS = 200_000  # some microseconds: worth letting other threads run
_API = ("PyLong_AsVoidPtr", "PyObject_Type", "PyObject_GetAttr", "Py_IncRef", "Py_DecRef", "PyErr_Clear",
        "PyEval_SaveThread", "PyEval_RestoreThread")  # fmt: skip


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
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p),
                *((name, ctypes.c_void_p) for name in ("allocate", "import", "export", "view", "stream")))  # fmt: skip


class _Owner(int):
    """The address that the built-in function is bound to, and what must live as long as it."""

    kept: tuple[object, ...]


def caller(evaluate: Any, context: tuple[object, ...], *, inputs: int, outputs: int, macs: int) -> Callable[..., Any]:
    """Return a built-in function of (x, out) that runs ``evaluate`` and gives ``out``, or None where it declines.

    It declines whatever is not two plain float32 CPU tensors (N, inputs) and (N, outputs) that do not overlap; without
    torch's exchange table, always. ``evaluate`` is a loaded program's raw function, ``context`` as
    :func:`cpp_sources.context_of` gives it; both are kept alive.
    """
    view = _view_address()
    if view is None:
        return _decline
    bound = _Bound(
        ctypes.cast(evaluate, ctypes.c_void_p).value, address_of(context), inputs, outputs,
        -(-_RELEASE_FROM_MACS // macs), id(torch.Tensor), id(_REQUIRES_GRAD), view,
    )  # fmt: skip
    library = _caller_library()
    method = _Method(b"evaluate", ctypes.cast(library.raw.call, ctypes.c_void_p).value, _METH_FASTCALL,
                     b"Evaluate x into out; None where Python has to look.")  # fmt: skip
    owner = _Owner(ctypes.addressof(bound))
    owner.kept = (bound, method, context, evaluate, library)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
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
    """Return the address of torch's function that describes a tensor in place, None where there is none of ours."""
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


def check_tensors(x: object, out: object, *, inputs: int, outputs: int, device: str = "cpu") -> torch.Tensor:
    """Return ``out``, made if it is None, once both are what a program can take; lesson 11's errors otherwise.

    ``x`` is a float32 tensor (N, inputs) and ``out`` (N, outputs), both on ``device``, contiguous and without gradient,
    and they share no memory. Raises TypeError or ValueError with what was given and what to do. Lesson 11.
    """
    given = _plain("x", x, inputs, device)
    if out is None:
        return torch.empty((given.shape[0], outputs), dtype=torch.float32, device=given.device)
    target = _plain("out", out, outputs, device)
    if target.shape[0] != given.shape[0]:
        raise ValueError(f"x has {given.shape[0]:,} candidates and out {target.shape[0]:,}; they must be equal")
    begin, end = target.data_ptr(), target.data_ptr() + 4 * target.numel()
    if given.data_ptr() < end and begin < given.data_ptr() + 4 * given.numel():
        raise ValueError("out shares memory with x, which is still read while out is written; give another tensor")
    return target


def _plain(name: str, value: object, width: int, device: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a torch.Tensor, not {type(value).__name__}; torch.from_numpy(...) makes one")
    if value.dtype != torch.float32:
        raise ValueError(f"{name} is {value.dtype}, and the network computes in torch.float32; give {name}.float()")
    if value.device != torch.device(device):
        raise ValueError(f"{name} is on {value.device}, and the network on {device}; give {name}.to({device!r})")
    if value.dim() != 2 or value.shape[1] != width:
        what = "numbers" if width > 1 else "number"
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; it is (candidates, {width}), {width} {what} each")
    if not value.is_contiguous() or value.is_neg():
        raise ValueError(f"{name} has gaps, or lies in another order; give a copy: {name}.contiguous()"
                         if not value.is_neg() else f"{name} is a negated view; give {name}.resolve_neg()")  # fmt: skip
    if value.requires_grad:
        raise ValueError(f"{name} requires a gradient, and this program computes none; give {name}.detach()")
    return value
