"""The study's convnet under compilers that fuse by themselves: what their first call costs, and
what it brings.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from helpers import timing
from helpers.checks import whole_number
from helpers.results import Record, derived
from helpers.studies import _frameworks as frameworks
from helpers.studies.fused_bias import _convnet as convnet

EAGER, COMPILED, FROZEN, ONNX = (
    "as written",
    "torch.compile",
    "torch.compile, frozen weights",
    "ONNX Runtime",
)

_AGREE = 1e-4
_PRECISION = 0.05  # the ways lie further apart

Way = Callable[[torch.Tensor], object]


class CompilerTime(Record):
    """One way to run the forward pass: ``prepared_s`` until its first result, then its time and
    speedup, warm.

    ``low_speedup`` to ``high_speedup`` is the interval of the speedup, from runs in turns. Lesson
    18.
    """

    way: str
    prepared_s: float
    median_s: float
    speedup: float
    low_speedup: float
    high_speedup: float


class CompilerTimes(Record):
    """Every way that is there, for one batch; ``absent`` names the others, each with why.

    Lesson 18.
    """

    batch: int
    device: str
    threads: int
    absent: str
    stable: bool
    reason: str
    ways: tuple[CompilerTime, ...]


def measure_compilers(*, batch: int = 100, budget_s: float = 5.0) -> CompilerTimes:
    """Time the forward pass of the separate net on random images by PyTorch, its compiler and ONNX
    Runtime.

    On the CPU with one thread; all but ``prepared_s`` is the thread's own processor time, in which
    other programs do not count. torch.compile starts with an empty cache. Before it is timed, each
    way's result is compared with the net in float64: RuntimeError when it is off by more than 1e-4
    of the largest logit. Raises ValueError for a batch under 1.
    """
    from torch._inductor.utils import fresh_cache

    batch = whole_number("batch", batch)
    net = convnet.Convnet("separate").eval()
    images = torch.rand(batch, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    makers = {
        EAGER: lambda net: net,
        COMPILED: _make_compiled,
        FROZEN: _make_frozen,
        ONNX: _make_onnx,
    }
    ways: dict[str, Way] = {}
    prepared_s, absent = {}, []
    with timing.fixed_threads(1), torch.no_grad(), fresh_cache():
        exact = convnet._net("separate", net.state_dict(), images.device).double()
        expected = exact(images.double())
        for name, make in makers.items():
            begin_s = time.perf_counter()
            try:
                way = make(net)
                output = torch.as_tensor(way(images))
            except Exception as error:  # a way that does not run here is a result
                absent.append(f"{name}: {frameworks.first_line(error)}")
                continue
            prepared_s[name] = time.perf_counter() - begin_s
            relative_error = float((output.double() - expected).abs().max() / expected.abs().max())
            if not relative_error <= _AGREE:
                raise RuntimeError(
                    f"{name} is off by {relative_error:.2g} of the largest logit, more than "
                    f"{_AGREE:g}; not timed"
                )
            ways[name] = way
        comparison = timing.compare(
            {name: functools.partial(way, images) for name, way in ways.items()},
            device="cpu",
            budget_s=budget_s,
            precision=_PRECISION,
            clock=time.thread_time,
        )
    rows = tuple(
        CompilerTime(
            row.name,
            prepared_s[row.name],
            row.median_s,
            1 / row.time_ratio,
            1 / row.high_ratio,
            1 / row.low_ratio if row.low_ratio else float("inf"),
        )
        for row in comparison.candidates
    )
    return derived(
        CompilerTimes, comparison, batch=batch, absent="; ".join(absent) or "nothing", ways=rows
    )


def _make_compiled(net: convnet.Convnet) -> Way:
    torch.compiler.reset()
    return torch.compile(net, dynamic=False)


def _make_frozen(net: convnet.Convnet) -> Way:
    return frameworks.freeze(_make_compiled(net))


def _make_onnx(net: convnet.Convnet) -> Way:
    run = frameworks.onnx_runtime(lambda: onnx_model(net))
    return lambda images: run("images", images)


def onnx_model(net: convnet.Convnet) -> bytes:
    """Return ``net`` as a serialised ONNX model: Conv, Relu and MaxPool a layer, then Gemm; needs
    the package onnx.

    Its input "images" is (N, 1, 28, 28), its output "logits" (N, 10). Lesson 18.
    """
    from onnx import helper, numpy_helper

    nodes, constants, last = [], [], "images"

    def constant(name: str, value: torch.Tensor) -> str:
        constants.append(numpy_helper.from_array(value.detach().contiguous().numpy(), name))
        return name

    def add(operator: str, constants_read: list[str], result: str, **attributes: Any) -> None:
        nonlocal last
        nodes.append(helper.make_node(operator, [last, *constants_read], [result], **attributes))
        last = result

    for number, (weight, bias) in enumerate(net.layers()):
        weights = [constant(f"weight{number}", weight), constant(f"bias{number}", bias)]
        add("Conv", weights, f"sum{number}", pads=[1, 1, 1, 1])
        add("Relu", [], f"y{number}")
        add("MaxPool", [], f"pooled{number}", kernel_shape=[2, 2], strides=[2, 2])
    dense = [constant("weight", net.dense.weight), constant("bias", net.dense.bias)]
    add("Flatten", [], "flat")
    add("Gemm", dense, "logits", transB=1)
    return frameworks.onnx_model(
        "convnet", nodes, constants, {"images": ["N", 1, 28, 28], "logits": ["N", 10]}
    )
