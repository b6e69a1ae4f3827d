"""The one-pass kernels in C++, called on CPU tensors: compiled at the first call, threaded as torch
is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from helpers import native
from helpers.studies.fused_bias import _layouts as layouts

FLAGS = (*native.CPP_FLAGS, "-fno-trapping-math", "-pthread")
DTYPES = {"float32": "F32", "float64": "F64", "bfloat16": "BF16"}
POOL_DTYPES = {"float32": "F32", "float64": "F64"}

# a thread takes some 20 us to start: as long as it takes to move a few hundred KiB
_PART_BYTES = 2**20
_SHAPE = "int64_t outer, int64_t channels, int64_t inner, int32_t threads"
_IMAGES = (
    "int64_t images, int64_t channels, int64_t height, int64_t width, int32_t last, int32_t threads"
)
_FUNCTIONS = {  # the program in which each stands, and what it takes
    "bias_relu": ("passes", f"const void* x, const void* bias, void* out, {_SHAPE}"),
    "bias_gradient": ("passes", f"const void* grad, void* total, {_SHAPE}"),
    "relu_bias_backward": (
        "passes",
        f"const void* grad, const void* y, void* grad_x, void* total, {_SHAPE}",
    ),
    "bias_relu_pool": (
        "pool",
        f"const void* x, const void* bias, void* out, uint8_t* place, {_IMAGES}",
    ),
    "bias_relu_pool_backward": (
        "pool",
        f"const void* grad, const uint8_t* place, void* grad_x, void* total, {_IMAGES}",
    ),
    "convolution": (
        "convolution",
        "const void* x, const void* weight, const void* bias, void* out, uint8_t* place, int64_t "
        "images, int64_t depth, int64_t height, int64_t width, int64_t channels, int64_t of_out, "
        "int64_t of_in, int64_t of_y, int64_t of_x, int32_t tiled, int32_t threads",
    ),
}


def bias_relu(x: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> None:
    """Write relu(x + bias) to ``out``, of x's dense layout, which may be ``x`` itself."""
    _run("bias_relu", x, (x, bias.contiguous(), out), layouts.split(x), passes=2)


def bias_gradient(grad: torch.Tensor) -> torch.Tensor:
    """Return the sums (C,) of a dense ``grad``."""
    total = _sums(grad)
    _run("bias_gradient", grad, (grad, total), layouts.split(grad), passes=1)
    return total


def relu_bias_backward(grad: torch.Tensor, y: torch.Tensor, grad_x: torch.Tensor) -> torch.Tensor:
    """Write to ``grad_x`` what of ``grad`` passes the ReLU whose output is ``y``; return its sums
    (C,).

    All three have one dense layout.
    """
    total = _sums(grad)
    _run("relu_bias_backward", grad, (grad, y, grad_x, total), layouts.split(grad), passes=3)
    return total


def bias_relu_pool(
    x: torch.Tensor, bias: torch.Tensor, out: torch.Tensor, place: torch.Tensor
) -> None:
    """Write the 2 x 2 maxima of relu(x + bias) to ``out`` and the place of each (0 to 3, 4: zero)
    to ``place``.
    """
    sizes = (*x.shape, layouts.is_channels_last(x))
    _run("bias_relu_pool", x, (x, bias.contiguous(), out, place), sizes, passes=1)


def bias_relu_pool_backward(
    grad: torch.Tensor, place: torch.Tensor, grad_x: torch.Tensor
) -> torch.Tensor:
    """Write the gradient of :func:`bias_relu_pool` to ``grad_x``; return that of the bias (C,)."""
    total, sizes = _sums(grad_x), (*grad_x.shape, layouts.is_channels_last(grad_x))
    _run("bias_relu_pool_backward", grad_x, (grad, place, grad_x, total), sizes, passes=1)
    return total


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out: torch.Tensor,
    place: torch.Tensor,
    *,
    tiled: bool,
) -> None:
    """Write what :func:`bias_relu_pool` would of the 3 x 3 convolution of ``x`` to ``out``, and to
    ``place`` if any.

    ``x``, ``out`` and ``place`` lie channels-last, ``weight`` in any way; an empty ``place`` is not
    written to.
    """
    sizes = (*x.shape, len(weight), *weight.stride(), tiled)
    tensors = (x, weight, bias.contiguous(), out, place)
    _run("convolution", x, tensors, sizes, passes=1 + len(weight), most_threads=len(x))


def _run(
    name: str,
    tensor: torch.Tensor,
    tensors: tuple[torch.Tensor, ...],
    sizes: tuple[int, ...],
    *,
    passes: int,
    most_threads: int | None = None,
) -> None:
    """Run a kernel of the dtype of ``tensor`` on the addresses of ``tensors``, unless there is
    nothing to do.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    accepted = DTYPES if _FUNCTIONS[name][0] == "passes" else POOL_DTYPES
    if dtype not in accepted:
        raise TypeError(
            f"the C++ kernel takes {', '.join(accepted)}, not {dtype}; convert with x.float()"
        )
    if tensor.numel():
        threads = _threads(tensor, passes)
        addresses = map(torch.Tensor.data_ptr, tensors)  # of an empty tensor it is null
        _function(name, dtype)(*addresses, *sizes, min(threads, most_threads or threads))


@functools.cache
def compile_program(dtype: str = "float32", program: str = "passes") -> native.Library:
    """Return a compiled program for ``dtype``: "passes", those with max pooling ("pool"), or the
    "convolution".

    It takes seconds once, and is then kept by :mod:`helpers.native`. Raises MissingToolError
    without a C++ compiler. Lesson 18.
    """
    return native.compile_cpp(source(program), flags=(*FLAGS, f"-DKIND={DTYPES[dtype]}"))


def source(program: str) -> str:
    """Return the text of a program of :func:`compile_program`, for the type of ``-DKIND=...``."""
    return native.read_source(__package__, f"cpp/{program}.cpp")


@functools.cache
def _function(name: str, dtype: str) -> Callable[..., None]:
    return function_of(compile_program(dtype, _FUNCTIONS[name][0]), name)


def function_of(library: native.Library, name: str) -> Callable[..., None]:
    """Return a kernel of a program that was compiled, as a bare function of addresses."""
    return library.function(f"void {name}({_FUNCTIONS[name][1]})").raw


def _sums(grad: torch.Tensor) -> torch.Tensor:
    """Return the tensor for a kernel's sums of each channel of ``grad``; of nothing they are
    zeros.
    """
    return grad.new_empty(grad.shape[1]) if grad.numel() else grad.new_zeros(grad.shape[1])


def _threads(tensor: torch.Tensor, passes: int) -> int:
    """Return torch's number of threads, or fewer where a thread would have less than a MiB to
    move.
    """
    moved_bytes = passes * tensor.numel() * tensor.element_size()
    return max(1, min(torch.get_num_threads(), moved_bytes // _PART_BYTES))
