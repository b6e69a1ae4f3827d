"""A function's C declaration as text, and Python values as the arguments that it declares.

``ctypes`` believes what it is told: a tensor of another type, a view with gaps or a number that is
too large reaches the compiled code as wrong numbers, or ends the process. Here each of them is
refused with what to do. A tensor stays alive through the call that it is handed to, which its bare
address does not ensure.
"""

from __future__ import annotations

import ctypes
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_C_TYPES: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "char": ctypes.c_byte,
    "signed char": ctypes.c_byte,
    "unsigned char": ctypes.c_ubyte,
    "short": ctypes.c_short,
    "unsigned short": ctypes.c_ushort,
    "int": ctypes.c_int,
    "signed": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "unsigned int": ctypes.c_uint,
    "long": ctypes.c_long,
    "unsigned long": ctypes.c_ulong,
    "long long": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong,
    "size_t": ctypes.c_size_t,
    "ptrdiff_t": ctypes.c_ssize_t,
    "int8_t": ctypes.c_int8,
    "int16_t": ctypes.c_int16,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
# the elements behind a pointer to what ctypes has no type for
_DTYPES = {
    "half": "float16",
    "__half": "float16",
    "__half2": "float16",
    "half2": "float16",
    "__nv_bfloat16": "bfloat16",
    "__nv_bfloat162": "bfloat16",
    "_Float16": "float16",
    "float2": "float32",
    "float4": "float32",
    "double2": "float64",
    "int2": "int32",
    "int4": "int32",
}
_PARAMETER = re.compile(
    r"\s*(?P<type>[A-Za-z_][\w:\s]*?)\s*(?P<stars>[*&\s]*?)\s*(?P<name>\b[A-Za-z_]\w*)?\s*(\[\s*\d*\s*\])?"
)
_DECLARATION = re.compile(
    r"\s*(?P<returns>[A-Za-z_][\w:\s]*?[\s*]+)(?P<name>[A-Za-z_]\w*)\s*\((?P<parameters>[^()]*)\)\s*;?\s*"
)
_QUALIFIERS = re.compile(
    r"\b(const|volatile|__restrict__|__restrict|restrict|struct|extern|inline|static|"
    r"__global__|__grid_constant__)\b|std::"
)


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, the type without qualifiers, whether it is a pointer, whether that
    is to const.
    """

    name: str
    type: str
    is_pointer: bool
    is_const: bool

    @property
    def c_type(self) -> Any:
        """The ``ctypes`` type, None for a structure that travels by value."""
        return ctypes.c_void_p if self.is_pointer else _C_TYPES.get(self.type)


@dataclass(frozen=True)
class Signature:
    """A function's name, what it returns (None: nothing) and its parameters."""

    name: str
    returns: Parameter | None
    parameters: tuple[Parameter, ...]


def parse_signature(declaration: str) -> Signature:
    """Return the signature in a C declaration such as ``"void add(const float* x, float* y, int64_t
    n)"``.

    Raises ValueError for what is no declaration of this form and for a returned type that is no
    number or pointer. Lesson 17.
    """
    plain = declaration.replace('extern "C"', "") if isinstance(declaration, str) else ""
    match = _DECLARATION.fullmatch(plain)
    if match is None:
        raise ValueError(
            f"{declaration!r} is no C declaration; write it as 'void add(const float* x, float* y, "
            "int n)'"
        )
    parameter_texts = (
        [] if match["parameters"].strip() in ("", "void") else match["parameters"].split(",")
    )
    parameters = tuple(
        _parameter(text, index, declaration) for index, text in enumerate(parameter_texts)
    )
    returns = _parameter(match["returns"], 0, declaration)
    nothing = returns.type == "void" and not returns.is_pointer
    if not nothing and returns.c_type is None:
        raise ValueError(
            f"{match['name']} returns a {returns.type}; a number, a pointer or void can be returned"
        )
    return Signature(match["name"], None if nothing else returns, parameters)


def _parameter(text: str, index: int, declaration: str) -> Parameter:
    const = bool(re.match(r"[^*&]*\bconst\b", text))
    plain = " ".join(_QUALIFIERS.sub(" ", text).split())
    if plain in _C_TYPES:  # a type alone, such as 'unsigned int'
        plain += f" argument_{index}"
    match = _PARAMETER.fullmatch(plain)
    if match is None or "&" in plain:
        raise ValueError(
            f"{text.strip()!r} in {declaration!r} is no parameter; write a type and a name, 'const "
            "float* x'"
        )
    kind, name, stars = match["type"], match["name"], match["stars"] + (match[4] or "")
    kind = kind.removesuffix(" int")  # 'long int' is 'long'
    pointer = bool(stars.strip())
    if kind == "void" and not pointer and name:
        raise ValueError(
            f"{text.strip()!r} in {declaration!r} has the type void; a pointer is 'void* {name}'"
        )
    return Parameter(name or f"argument_{index}", kind, pointer, const)


def to_c(signature: Signature, values: Sequence[Any], *, device: str) -> list[Any]:
    """Return ``values`` as ``ctypes`` values for the parameters; a tensor must live on ``device``
    ("cpu", "cuda:0").

    A pointer takes a contiguous tensor or NumPy array of the declared type, an address, a
    ``ctypes`` object or None (a null pointer); a structure by value takes a ``ctypes`` structure or
    bytes.

    Raises TypeError or ValueError naming the argument, what it was and what is accepted. Lesson 17.
    """
    if len(values) != len(signature.parameters):
        names = ", ".join(parameter.name for parameter in signature.parameters) or "nothing"
        raise TypeError(
            f"{signature.name} takes {len(signature.parameters)} arguments ({names}), not "
            f"{len(values)}"
        )
    return [
        _convert(signature.name, parameter, value, device)
        for parameter, value in zip(signature.parameters, values, strict=True)
    ]


def _convert(function: str, parameter: Parameter, value: Any, device: str) -> Any:
    label = f"{function}: {parameter.name}"
    if parameter.is_pointer:
        return _address(label, parameter, value, device)
    if parameter.c_type is None:
        if isinstance(value, bytes | bytearray):
            return (ctypes.c_char * len(value)).from_buffer_copy(value)
        if isinstance(value, ctypes.Structure | ctypes.Array):
            return value
        raise TypeError(
            f"{label} is a {parameter.type} by value: give a ctypes structure or bytes, not "
            f"{_kind(value)}"
        )
    if parameter.type in ("float", "double"):
        return parameter.c_type(_float(label, parameter.type, value))
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{label} is a whole number ({parameter.type}), not {_kind(value)} {value!r:.40}"
        ) from None
    if parameter.c_type(number).value != number:
        raise ValueError(
            f"{label} is {number}, which a {parameter.type} of {ctypes.sizeof(parameter.c_type)} "
            "bytes does not hold"
        )
    return parameter.c_type(number)


def _float(label: str, kind: str, value: Any) -> float:
    if (
        isinstance(value, str | bytes)
        or getattr(value, "ndim", 0) != 0
        or not hasattr(value, "__float__")
    ):
        raise TypeError(f"{label} is one number ({kind}), not {_kind(value)} {value!r:.40}")
    number = float(value)
    if kind == "float" and math.isfinite(number) and math.isinf(ctypes.c_float(number).value):
        raise ValueError(f"{label} is {number}, which a float of 32 bits does not hold")
    return number


def _address(label: str, parameter: Parameter, value: Any, device: str) -> Any:
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, ctypes.Array | ctypes.Structure | ctypes.c_void_p) and device == "cpu":
        return (
            value
            if isinstance(value, ctypes.c_void_p)
            else ctypes.c_void_p(ctypes.addressof(value))
        )
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)):
            raise ValueError(
                f"{label} is {value}, which is no address; give a tensor, or its data_ptr()"
            )
        return ctypes.c_void_p(value)
    if hasattr(value, "data_ptr"):
        return _tensor_address(label, parameter, value, device)
    if hasattr(value, "__array_interface__") and device == "cpu":
        _check_dtype(label, parameter, str(value.dtype))
        if not value.flags["C_CONTIGUOUS"]:
            raise ValueError(
                f"{label} is an array with gaps or in another order; give "
                "numpy.ascontiguousarray(...)"
            )
        if not parameter.is_const and not value.flags["WRITEABLE"]:
            raise ValueError(
                f"{label} is a read-only array, and the parameter is not const; give a copy of it"
            )
        return ctypes.c_void_p(value.ctypes.data)
    accepted = (
        "a tensor, a NumPy array, an address or None"
        if device == "cpu"
        else "a CUDA tensor, an address or None"
    )
    raise TypeError(f"{label} is a pointer: give {accepted}, not {_kind(value)} {value!r:.40}")


def _tensor_address(label: str, parameter: Parameter, tensor: Any, device: str) -> Any:
    if str(tensor.device) != device:
        raise ValueError(
            f"{label} is a tensor on {tensor.device}, and the function runs on {device}; "
            f"give tensor.to({device!r})"
        )
    _check_dtype(label, parameter, str(tensor.dtype).removeprefix("torch."))
    if not tensor.is_contiguous():
        raise ValueError(
            f"{label} is a tensor with gaps or in another order; give tensor.contiguous()"
        )
    if not parameter.is_const and tensor.requires_grad:
        raise ValueError(
            f"{label} would be written to behind autograd's back; give tensor.detach(), or declare "
            "it const"
        )
    return ctypes.c_void_p(tensor.data_ptr())


def _check_dtype(label: str, parameter: Parameter, dtype: str) -> None:
    """Refuse an element type that is not the declared one; a structure or void* takes any."""
    kind = parameter.type
    if kind in _DTYPES:
        accepted: tuple[str, ...] = (_DTYPES[kind],)
    elif kind == "char":
        accepted = ("int8", "uint8")
    elif kind in _C_TYPES:
        import numpy as np  # not for compiling, which the doctor tries without it

        name = np.dtype(_C_TYPES[kind]).name
        accepted = ("uint16", "float16", "bfloat16") if name == "uint16" else (name,)
    else:
        return
    if dtype not in accepted:
        raise ValueError(
            f"{label} is declared {kind}*, which takes {' or '.join(accepted)}, not {dtype}; "
            "convert the tensor, or correct the declaration"
        )


def _kind(value: Any) -> str:
    return type(value).__name__
