"""The checks of lesson 18: what goes in, what must come out, and what common mistakes would give instead."""

from collections import Counter

import numba
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.exercises import Checks


def pass_times(checks: Checks) -> None:
    """The times of a pass, from a profile"""
    checks.returns(
        "two kernels, of which the first took 50 % of the time",
        ([20.0, 10.0], 0.5),
        expected=(40.0, 10.0),
        mistakes={
            (10.0, -20.0): "The kernel took this share of the pass, so divide by the share.",
            (60.0, 30.0): "The share is that of the first kernel alone.",
            (40.0, 20.0): "Subtract both kernels from the whole pass.",
            (40.0, 30.0): "Subtract both kernels from the whole pass.",
            (10.0, 40.0): "Return the whole pass first, and then what is left of it.",
            40.0: "Return two numbers: the whole pass, and what is left of it.",
        },
    )
    checks.returns("one kernel with 75 %", ([30.0], 0.75), expected=(40.0, 10.0))


def bias_relu(checks: Checks) -> None:
    """Bias and ReLU in one pass"""
    y = np.arange(-12.0, 12.0).reshape(2, 3, 4)
    bias = np.array([1.0, -2.0, 5.0])
    added = y + bias[:, None]
    per_image = np.maximum(y + bias[:2, None, None], 0)
    expected = np.maximum(added, 0)
    checks.returns(
        "2 images, 3 channels, 4 pixels",
        (y, bias),
        call=_after,
        expected=expected.ravel(),
        mistakes={
            tuple(y.ravel()): "y is as it was before. Write each result into y itself.",
            tuple(added.ravel()): "Apply relu to the sum as well.",
            tuple(np.maximum(y, 0).ravel()): "Add the bias of the channel first.",
            tuple(
                (np.maximum(y, 0) + bias[:, None]).ravel()
            ): "Add the bias first, and then apply relu.",
            tuple(per_image.ravel()): "A bias belongs to a channel, not to an image.",
        },
    )
    checks.returns(
        "one read and one write for each of the 24 values",
        (y, bias),
        call=_visits,
        expected=(24, 24),
        mistakes={
            (48, 48): "You go through y twice. Apply relu to the sum before you write it.",
            (48, 24): "You read each value twice. Keep the sum in a variable.",
            (24, 48): "You write each value twice. Apply relu to the sum before you write it.",
        },
    )
    checks.returns(
        "numba can compile it",
        (y, bias),
        call=_compiled,
        expected=expected.ravel(),
        mistakes={"not compiled": "numba cannot compile this. Use plain loops over indices."},
    )


def _relu(v):
    return v if v > 0 else 0.0


def _after(function, y, bias):
    """Return the values of y after the call."""
    function(y, bias, _relu)
    return y.ravel()


class _Counted(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that counts how many of its values are read and written, also through its rows and other views."""

    def __init__(self, values, counts=None):
        self._values = values
        self.counts = Counter() if counts is None else counts
        self.shape, self.ndim, self.size = values.shape, values.ndim, values.size

    def __len__(self):
        return len(self._values)

    def __getitem__(self, index):
        selected = self._values[index]
        if np.ndim(selected):
            return _Counted(selected, self.counts)
        self.counts["reads"] += 1
        return selected

    def __setitem__(self, index, values):
        target = self._values[index]
        if isinstance(values, _Counted) and np.shares_memory(values._values, target):
            return  # the end of y[index] += ..., which has already written
        self.counts["writes"] += np.size(target)
        self._values[index] = values

    def __array__(self, dtype=None, copy=None):
        self.counts["reads"] += self.size
        return np.array(self._values, dtype=dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        arrays = [np.asarray(values) for values in inputs]
        result = getattr(ufunc, method)(*arrays, **options)
        for target in out:
            target[...] = result
        return out[0] if out else result

    def reshape(self, *shape):
        return _Counted(self._values.reshape(*shape), self.counts)


def _visits(function, y, bias):
    """Return how many values of y the function reads and how many it writes."""
    counted = _Counted(y)
    function(counted, bias, _relu)
    return counted.counts["reads"], counted.counts["writes"]


def _compiled(function, y, bias):
    """Return the values of y after a call of the compiled function."""
    try:
        numba.njit(function)(y, bias, numba.njit(_relu))
    except numba.core.errors.NumbaError:
        return "not compiled"
    return y.ravel()


def gain(checks: Checks) -> None:
    """Three kernels over one"""
    checks.returns(
        "1 channel, 18 GFLOP/s, 16 GB/s, 4 bytes: both terms take 1 ns per output",
        (1, 18e9, 16e9, 4),
        expected=2.0,
        kind=(int, float),
        mistakes={
            1.0: "One kernel takes the time of the convolution, so the ratio is 1 and more.",
            3.0: "A product and its addition are two operations.",
            1.5: "Two copies both read and write, so they move four values per output.",
            1.25: "Each of the four values has `size` bytes.",
            10.0: "A 3 x 3 convolution does nine products for each channel.",
        },
    )
    checks.returns(
        "4 channels",
        (4, 18e9, 16e9, 4),
        expected=1.25,
        kind=(int, float),
        mistakes={
            2.0: "The operations of the convolution grow with the channels, the copies do not.",
            5.0: "The copies come on top, so divide their time by that of the convolution.",
        },
    )
    checks.returns(
        "4 channels, 2 bytes per value", (4, 18e9, 16e9, 2), expected=1.125, kind=(int, float)
    )


def bias_gradient(checks: Checks) -> None:
    """The gradient of a bias, in two steps"""
    grad = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    checks.returns(
        "2 images, 3 channels, 4 x 5 pixels",
        (grad,),
        expected=grad.sum((0, 2, 3)),
        kind=torch.Tensor,
        mistakes={
            tuple(grad.mean((0, 2, 3)).tolist()): (
                "The bias is added at every pixel, so add up the gradients. Do not average them."
            ),
            tuple(grad.sum((1, 2, 3)).tolist()): (
                "That is one sum per image. Each channel has a bias of its own."
            ),
            tuple(map(tuple, grad.sum((2, 3)).tolist())): (
                "These are the sums per image and channel. Add up the images in the second step."
            ),
            tuple(
                map(tuple, grad.sum(0).sum(1).tolist())
            ): "One dimension of pixels is left, so add it up as well.",
        },
    )
    checks.returns(
        "two steps for 30 images",
        (torch.ones(30, 3, 4, 5),),
        call=_steps,
        expected="two steps",
        mistakes={
            "one step": (
                "One operator adds up everything. Sum the pixels of each image first, and the "
                "images in a second step."
            ),
            "a loop": "You call an operator for each image. Sum all images in one call.",
        },
    )


class _Operators(TorchDispatchMode):
    """A mode that notes the number of values that each operator takes and returns."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        inputs = [tensor.numel() for tensor in args if isinstance(tensor, torch.Tensor)]
        if isinstance(result, torch.Tensor):
            self.sizes.append((max(inputs, default=0), result.numel()))
        return result


def _steps(function, grad):
    """Return in how many steps ``function`` adds up the gradient (images, channels, rows, columns)."""
    with _Operators() as operators:
        function(grad)
    images, channels = grad.shape[:2]
    if len(operators.sizes) >= images:
        return "a loop"
    one_step = any(
        before == grad.numel() and after == channels for before, after in operators.sizes
    )
    return "one step" if one_step else "two steps"
