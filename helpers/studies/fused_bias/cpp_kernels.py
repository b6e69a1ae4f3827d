"""The one-pass kernels in C++, called on CPU tensors: compiled at the first call, threaded as torch is."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from helpers import native
from helpers.studies.fused_bias import cpp_source, layouts

FLAGS = (*native.CPP_FLAGS, "-fno-trapping-math", "-pthread")

_PART_BYTES = 2**20  # a thread takes some 20 us to start: as long as it takes to move a few hundred KiB


def bias_relu(x: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> None:
    """Write relu(x + bias) to ``out``, of x's dense layout, which may be ``x`` itself. For the library itself."""
    dtype = _dtype(x, cpp_source.DTYPES)
    if x.numel():
        function = _function(cpp_source.BIAS_RELU, dtype)
        bias = bias.contiguous()
        function(x.data_ptr(), bias.data_ptr(), out.data_ptr(), *layouts.split(x), _threads(x, 2))


def bias_gradient(grad: torch.Tensor) -> torch.Tensor:
    """Return the sums (C,) of a dense ``grad``. For the library itself."""
    dtype = _dtype(grad, cpp_source.DTYPES)
    total = _sums(grad)
    if grad.numel():
        function = _function(cpp_source.BIAS_GRADIENT, dtype)
        function(grad.data_ptr(), total.data_ptr(), *layouts.split(grad), _threads(grad, 1))
    return total


def relu_bias_backward(grad: torch.Tensor, y: torch.Tensor, grad_x: torch.Tensor) -> torch.Tensor:
    """Write to ``grad_x`` what of ``grad`` passes the ReLU whose output is ``y``; return its sums (C,).

    All three have one dense layout. For the library itself.
    """
    dtype = _dtype(grad, cpp_source.DTYPES)
    total = _sums(grad)
    if grad.numel():
        function = _function(cpp_source.RELU_BIAS_BACKWARD, dtype)
        addresses = (grad.data_ptr(), y.data_ptr(), grad_x.data_ptr(), total.data_ptr())
        function(*addresses, *layouts.split(grad), _threads(grad, 3))
    return total


def bias_relu_pool(x: torch.Tensor, bias: torch.Tensor, out: torch.Tensor, place: torch.Tensor) -> None:
    """Write the 2 x 2 maxima of relu(x + bias) to ``out`` and the place of each (0 to 3, 4: zero) to ``place``.

    For the library itself.
    """
    dtype = _dtype(x, cpp_source.POOL_DTYPES)
    if out.numel():
        function = _function(cpp_source.BIAS_RELU_POOL, dtype)
        bias = bias.contiguous()
        addresses = (x.data_ptr(), bias.data_ptr(), out.data_ptr(), place.data_ptr())
        function(*addresses, *x.shape, layouts.is_channels_last(x), _threads(x, 1))


def bias_relu_pool_backward(grad: torch.Tensor, place: torch.Tensor, grad_x: torch.Tensor) -> torch.Tensor:
    """Write the gradient of :func:`bias_relu_pool` to ``grad_x``; return that of the bias (C,).

    For the library itself.
    """
    dtype = _dtype(grad_x, cpp_source.POOL_DTYPES)
    total = _sums(grad_x)
    if grad_x.numel():
        function = _function(cpp_source.POOL_BACKWARD, dtype)
        addresses = (grad.data_ptr(), place.data_ptr(), grad_x.data_ptr(), total.data_ptr())
        function(*addresses, *grad_x.shape, layouts.is_channels_last(grad_x), _threads(grad_x, 1))
    return total


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out: torch.Tensor,
    place: torch.Tensor | None,
    *,
    tiled: bool,
) -> None:
    """Write what :func:`bias_relu_pool` would of the 3 x 3 convolution of ``x`` to ``out`` and ``place`` (if not None).

    ``x``, ``out`` and ``place`` lie channels-last, ``weight`` in any way. For the library itself.
    """
    dtype = _dtype(x, cpp_source.POOL_DTYPES)
    if out.numel():
        function = _function(cpp_source.CONVOLUTION, dtype)
        bias = bias.contiguous()
        addresses = (x.data_ptr(), weight.data_ptr(), bias.data_ptr(), out.data_ptr(), place.data_ptr() if place is not
                     None else 0)  # fmt: skip
        sizes = (*x.shape, len(weight), *weight.stride())
        function(*addresses, *sizes, tiled, min(len(x), _threads(x, 1 + len(weight))))


@functools.cache
def compiled(dtype: str = "float32", *, pool: bool = False, convolution: bool = False) -> native.Library:
    """Return the compiled program for ``dtype``: the kernels without max pooling, or with ``pool`` those with it.

    With ``convolution`` it is the program of the convolution that pools. It takes seconds once, and is then kept by
    :mod:`helpers.native`. Raises MissingToolError without a C++ compiler. Lesson 12.
    """
    source = cpp_source.pool_source if pool else cpp_source.convolution_source if convolution else cpp_source.source
    return native.compile_cpp(source(cpp_source.DTYPES[dtype]), flags=FLAGS)


@functools.cache
def _function(declaration: str, dtype: str) -> Callable[..., None]:
    library = compiled(dtype, pool="_pool" in declaration, convolution="convolution" in declaration)
    return library.function(declaration.format(cpp_source.DTYPES[dtype])).raw


def _dtype(tensor: torch.Tensor, accepted: dict[str, str]) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in accepted:
        raise TypeError(f"the C++ kernel takes {', '.join(accepted)}, not {name}; convert with x.float()")
    return name


def _sums(grad: torch.Tensor) -> torch.Tensor:
    """Return where a kernel writes the sums of each channel of ``grad``; of nothing they are zeros."""
    return grad.new_empty(grad.shape[1]) if grad.numel() else grad.new_zeros(grad.shape[1])


def _threads(tensor: torch.Tensor, passes: int) -> int:
    """Return torch's number of threads, or fewer where a thread would have less than a MiB to move."""
    moved_bytes = passes * tensor.numel() * tensor.element_size()
    return max(1, min(torch.get_num_threads(), moved_bytes // _PART_BYTES))
