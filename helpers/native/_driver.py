"""A cubin on a GPU: loaded and launched through CUDA's driver, in torch's context and on torch's
current stream.

The driver's functions are those of NVIDIA's CUDA Driver API reference (module management, execution
control).
"""

from __future__ import annotations

import ctypes
import math
import operator
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from helpers.native import _cubin as cubin
from helpers.native._signatures import Signature, parse_signature, to_c
from helpers.native._tools import MissingToolError, NativeError

_NO_GPU = (
    "run it on a machine with an NVIDIA GPU; without one the program can be compiled, read and "
    "counted"
)
_MAX_BLOCK_THREADS = 1024
_MAX_GRID = (2**31 - 1, 65535, 65535)
_UNASKED_SHARED_BYTES = 48 * 1024
_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_POINTER, _WORD, _SIZE = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
_ARGUMENTS = {
    "cuGetErrorString": (ctypes.c_int, _POINTER),
    "cuCtxGetCurrent": (_POINTER,),
    "cuCtxPushCurrent_v2": (_POINTER,),
    "cuCtxPopCurrent_v2": (_POINTER,),
    "cuModuleLoadData": (_POINTER, ctypes.c_char_p),
    "cuModuleGetFunction": (_POINTER, _POINTER, ctypes.c_char_p),
    "cuModuleGetGlobal_v2": (_POINTER, _POINTER, _POINTER, ctypes.c_char_p),
    "cuMemcpyAsync": (_POINTER, _POINTER, _SIZE, _POINTER),
    "cuFuncSetAttribute": (_POINTER, ctypes.c_int, ctypes.c_int),
    "cuLaunchKernel": (_POINTER, *(_WORD,) * 7, _POINTER, _POINTER, _POINTER),
}


class Driver:
    """CUDA's driver library: :meth:`call` calls one of its functions and raises the error that it
    reports.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes = arguments

    def call(self, name: str, *arguments: Any) -> None:
        """Call ``name``. Raises NativeError with the driver's own words when it fails."""
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            words = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(words))
            reason = (words.value or b"unknown error").decode()
            raise NativeError(
                f"{name}: {reason} (error {status})",
                "see whether the GPU is free and the driver new enough",
            )


@dataclass(frozen=True)
class Module:
    """A program on a GPU; it stays there until the process ends. Lesson 17."""

    device: str
    image: bytes = field(repr=False)
    driver: Driver = field(repr=False)
    handle: int = field(repr=False)
    context: int = field(repr=False)
    stream: Callable[[], int] = field(repr=False)

    def function(self, declaration: str) -> LoadedKernel:
        """Return the kernel of a declaration, ``"void add(const float* x, float* y, int n)"``,
        ready to launch.

        Raises ValueError for a declaration that cannot be read or whose parameters are not as large
        as the kernel's, and for a name that the program does not hold. Lesson 17.
        """
        signature = parse_signature(declaration)
        if signature.returns is not None:
            raise ValueError(
                f"a kernel returns void; {signature.name} is declared to return a "
                f"{signature.returns.type}"
            )
        file = cubin.read(self.image)
        names = cubin.kernels(file)
        matches = [name for name in names if name == signature.name] or [
            name for name in names if name.startswith(f"_Z{len(signature.name)}{signature.name}")
        ]
        if len(matches) != 1:
            raise ValueError(
                f"the program has no kernel {signature.name!r}; it has {', '.join(names) or 'none'}"
            )
        _check_size(signature, cubin.resources(file, matches[0]).parameter_bytes)
        kernel = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(kernel), self.handle, matches[0].encode())
        return LoadedKernel(signature, self, kernel.value or 0)

    def write(self, name: str, tensor: Any) -> None:
        """Write a contiguous tensor of this device to the ``__device__`` or ``__constant__``
        variable ``name``.

        It happens on torch's current stream. Raises ValueError when the sizes differ or there is no
        such variable. Lesson 17.
        """
        address, size = ctypes.c_void_p(), ctypes.c_size_t()
        symbol_names = {symbol[0] for symbol in cubin.read(self.image).symbols}
        if name not in symbol_names:
            raise ValueError(
                f"the program has no variable {name!r}; declare it outside the kernels and use it "
                "in one"
            )
        tensor_bytes = tensor.numel() * tensor.element_size()
        self._call(
            "cuModuleGetGlobal_v2",
            ctypes.byref(address),
            ctypes.byref(size),
            self.handle,
            name.encode(),
        )
        if (
            tensor_bytes != size.value
            or not tensor.is_contiguous()
            or str(tensor.device) != self.device
        ):
            raise ValueError(
                f"{name} holds {size.value:,} bytes on {self.device}; the tensor has "
                f"{tensor_bytes:,} on {tensor.device}; give a contiguous tensor of that size there"
            )
        self._call("cuMemcpyAsync", address, tensor.data_ptr(), tensor_bytes, self.stream())

    def _call(self, name: str, *arguments: Any) -> None:
        """Call the driver in the module's context: another thread, or another current device, has
        another one.
        """
        self.driver.call("cuCtxPushCurrent_v2", self.context)
        try:
            self.driver.call(name, *arguments)
        finally:
            self.driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel on a GPU: call it with its arguments, ``kernel(x, y, n, grid=8, block=256)``.

    Lesson 17.
    """

    signature: Signature
    module: Module
    handle: int

    def __call__(
        self,
        *values: Any,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        shared_bytes: int = 0,
    ) -> None:
        """Launch it on torch's current stream: ``grid`` blocks of ``block`` threads (1 to 3 numbers
        each).

        ``shared_bytes`` is the dynamic shared memory of a block. It returns at once, as torch's own
        operations do. Raises TypeError or ValueError for arguments that do not fit, and NativeError
        when the driver refuses.
        """
        blocks, threads = (
            _dimensions("grid", grid, _MAX_GRID),
            _dimensions("block", block, (1024, 1024, 64)),
        )
        if math.prod(threads) > _MAX_BLOCK_THREADS:
            raise ValueError(
                f"block {threads} has more than {_MAX_BLOCK_THREADS:,} threads; make blocks "
                "smaller, the grid larger"
            )
        if not isinstance(shared_bytes, int) or shared_bytes < 0:
            raise ValueError(f"shared_bytes is {shared_bytes!r}; give a whole number, 0 or more")
        arguments = to_c(self.signature, values, device=self.module.device)
        if shared_bytes > _UNASKED_SHARED_BYTES:
            self.module._call(
                "cuFuncSetAttribute", self.handle, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes
            )
        argument_pointers = (ctypes.c_void_p * max(1, len(arguments)))(
            *(ctypes.addressof(value) for value in arguments)
        )
        stream = self.module.stream()
        self.module._call(
            "cuLaunchKernel",
            self.handle,
            *blocks,
            *threads,
            shared_bytes,
            stream,
            argument_pointers,
            None,
        )


def load(image: bytes, *, architecture: str, device: Any = None) -> Module:
    """Return a cubin loaded on a CUDA device (torch's current one).

    Raises NativeError when it cannot be. Lesson 17.
    """
    import torch

    if not torch.cuda.is_available():
        raise NativeError("there is no CUDA device here", _NO_GPU)
    target = torch.device("cuda" if device is None else device)
    if target.type != "cuda":
        raise ValueError(f"a GPU's program is loaded on a CUDA device, not on {target}")
    index = torch.cuda.current_device() if target.index is None else target.index
    _check_architecture(architecture, torch.cuda.get_device_capability(index))
    with torch.cuda.device(index):
        torch.cuda.synchronize()  # torch makes its context when it first needs one
        return module_in_current_context(
            Driver(_driver_library()),
            image,
            device=f"cuda:{index}",
            stream=lambda: torch.cuda.current_stream(index).cuda_stream,
        )


def module_in_current_context(
    driver: Driver, image: bytes, *, device: str, stream: Callable[[], int]
) -> Module:
    """Return ``image`` loaded in the driver's current context, which the calling thread must
    have.
    """
    context, handle = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuCtxGetCurrent", ctypes.byref(context))
    if not context.value:
        raise NativeError(
            "torch has not started CUDA in this thread", "run any CUDA operation of torch first"
        )
    driver.call("cuModuleLoadData", ctypes.byref(handle), image)
    return Module(device, image, driver, handle.value or 0, context.value, stream)


def gpu_architecture(device: Any = None) -> str:
    """Return the architecture of a CUDA device, ``"sm_90"``: the one to compile for here.

    Raises NativeError without a GPU.

    >>> gpu_architecture("cuda:0")  # doctest: +SKIP
    'sm_90'
    """
    import torch

    if not torch.cuda.is_available():
        raise NativeError("there is no CUDA device here, so it has no architecture", _NO_GPU)
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _check_architecture(architecture: str, capability: tuple[int, int]) -> None:
    """Refuse a program for another GPU: code for sm_80 runs on 8.0 and later of its generation,
    sm_90a on 9.0 alone.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", architecture)
    if match is None:
        raise ValueError(
            f"architecture={architecture!r} is not known; give what the program is compiled for, "
            "such as 'sm_90'"
        )
    major, minor, kind = int(match[1]), int(match[2]), match[3]
    device_architecture = f"sm_{capability[0]}{capability[1]}"
    if capability[0] != major or capability[1] < minor or (kind == "a" and capability[1] != minor):
        raise NativeError(
            f"the program is compiled for {architecture}, and this GPU is {device_architecture}",
            f"compile it with architecture={device_architecture!r}",
        )


def _driver_library() -> ctypes.CDLL:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise MissingToolError(
            f"{name} does not load: {error}", "install NVIDIA's driver"
        ) from error


def _dimensions(
    name: str, sizes: int | Sequence[int], limits: Sequence[int]
) -> tuple[int, int, int]:
    try:
        numbers = tuple(map(operator.index, sizes if isinstance(sizes, Sequence) else [sizes]))
    except TypeError:
        numbers = ()
    if not 1 <= len(numbers) <= 3:
        raise TypeError(f"{name} is one to three whole numbers, not {sizes!r:.40}")
    if not all(1 <= number <= limit for number, limit in zip(numbers, limits, strict=False)):
        raise ValueError(
            f"{name} is {sizes}; each number is 1 or more, and at most "
            f"{', '.join(f'{n:,}' for n in limits)}"
        )
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _check_size(signature: Signature, expected: int | None) -> None:
    """Refuse a declaration whose parameters do not take the bytes that the compiled kernel
    reads.
    """
    kinds = [parameter.c_type for parameter in signature.parameters]
    if expected is None or None in kinds:
        return
    size = 0
    for kind in kinds:
        size = -(-size // ctypes.alignment(kind)) * ctypes.alignment(kind) + ctypes.sizeof(kind)
    if size != expected:
        raise ValueError(
            f"{signature.name} is declared with {size} bytes of parameters, and the kernel has "
            f"{expected}; write its parameters as they stand in the source"
        )
