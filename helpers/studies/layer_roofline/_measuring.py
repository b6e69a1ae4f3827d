"""The bounds of a layer here: the rate at which it is read, the time of a packed product and of
empty calls.

Lesson 02.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from helpers import hardware, native, timing
from helpers.results import Record

STREAMS = (1, 4, 8)  # parts of the weights that a compiled program reads side by side
_AHEAD = 128  # floats by which a program asks for its weights early
_GPU_SIDE, _GPU_TOKENS, _GPU_BUDGET_S = 8192, (1, 16, 64, 256, 1024, 4096), 3.0
_ROUNDS = 300
_READS = "void read_all(const float* w, int64_t n, float* total)"

Program = Callable[[], object]


def reading_programs(weights: torch.Tensor) -> dict[str, Program]:
    """Return programs that read all of ``weights`` once, a float32 tensor on the CPU, and add them
    up, by their names.

    They are PyTorch's sum and, where there is a C++ compiler, loops that read 1, 4 and 8 parts of
    them side by side. Which one is the fastest depends on the core, so a reading rate is that of
    the fastest. Raises ValueError for weights that are not contiguous float32 on the CPU, or whose
    number is no multiple of 128. Lesson 02.

    >>> list(reading_programs(torch.ones(256)))[0]
    'torch.sum'
    """
    if (
        weights.dtype != torch.float32
        or weights.device.type != "cpu"
        or not weights.is_contiguous()
    ):
        raise ValueError(
            f"weights are contiguous float32 on the CPU; these are {weights.dtype} on "
            f"{weights.device}: call .float().cpu().contiguous()"
        )
    if weights.numel() % (16 * max(STREAMS)):
        raise ValueError(
            f"{weights.numel():,} weights must be a multiple of {16 * max(STREAMS)}, to be read in "
            "parts"
        )
    programs: dict[str, Program] = {"torch.sum": weights.sum}
    try:
        for streams in STREAMS:
            read_weights = native.compile_cpp(_reading_source(streams)).function(_READS)
            programs[f"{streams} at once"] = functools.partial(
                read_weights, weights, weights.numel(), torch.empty(1)
            )
    except native.MissingToolError:
        return programs  # the sum is left, a lower rate
    return programs


def _reading_source(streams: int) -> str:
    program = native.read_source(__package__, "reading.cpp")
    return f"#define STREAMS {streams}\n#define AHEAD {_AHEAD}\n{program}"


def packed_product(weights: torch.Tensor, inputs: torch.Tensor) -> Program | None:
    """Return a program for ``weights @ inputs`` whose weights MKL has packed beforehand, None where
    there is no MKL.

    ``weights`` is (rows, columns) and ``inputs`` (columns, tokens); the program returns (tokens,
    rows). The packed weights take as much memory as ``weights``, for this number of tokens. Lesson
    02.
    """
    if not torch.backends.mkl.is_available() or not hasattr(torch.ops.mkl, "_mkl_linear"):
        return None
    rows = inputs.T.contiguous()  # (tokens, columns), as a linear layer takes them
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weights, len(rows))
    return lambda: torch.ops.mkl._mkl_linear(rows, packed, weights, None, len(rows))


class CallTimes(Record):
    """The seconds of calls of operations with almost nothing to compute: ``call_s`` for each,
    ``total_s`` in a row.

    ``stable`` says whether the total repeats, so that a claim may rest on it. Lesson 02.
    """

    call_s: tuple[float, ...]
    total_s: float
    stable: bool


def measure_calls(modules: Sequence[nn.Module], *, budget_s: float = 0.5) -> CallTimes:
    """Return the time of calls of ``modules``, on the CPU, on the smallest inputs that they accept,
    one after another.

    A convolution gets a single patch, and a pooling or an activation 2 x 2 elements. A linear layer
    has a fixed input size, so one with a single weight is called instead. Each time is the median
    of 300 rounds. Lesson 02.
    """
    calls = [_smallest(module) for module in modules]

    def one_round() -> list[float]:
        times_s = []
        for call, x in calls:
            begun_s = time.perf_counter()
            call(x)
            times_s.append(time.perf_counter() - begun_s)
        return times_s

    with torch.no_grad():
        total = timing.measure(one_round, device="cpu", budget_s=budget_s)
        rounds = [one_round() for _ in range(_ROUNDS)]
    medians = tuple(statistics.median(times_s) for times_s in zip(*rounds, strict=True))
    return CallTimes(medians, total.median_s, total.stable)


def _smallest(module: nn.Module) -> tuple[nn.Module, torch.Tensor]:
    if isinstance(module, nn.Conv2d):
        height, width = module.kernel_size
        return module, torch.rand(1, module.in_channels, height, width)
    if isinstance(module, nn.Linear):
        return nn.Linear(1, 1), torch.rand(1, 1)
    return module, torch.rand(1, 1, 2, 2)


class LayerTimes(Record):
    """A square layer on a GPU for several numbers of tokens, with the two rates that bound it
    there.

    ``times_s`` has the fastest run for each of ``tokens``. ``bandwidth_bytes_per_s`` is that of a
    sum over the largest buffer of the probe, ``peak_flops_per_s`` that of the library's fastest
    product in ``dtype``. Lesson 02.
    """

    device: str
    dtype: str
    side: int
    weight_bytes: int
    bandwidth_bytes_per_s: float
    peak_flops_per_s: float
    tokens: tuple[int, ...]
    times_s: tuple[float, ...]
    stable: bool


def measure_gpu() -> LayerTimes | None:
    """Return a layer of 8,192 x 8,192 weights of 2 bytes on this machine's GPU; None where there is
    no GPU.

    The weights are bfloat16, or float16 on a GPU before Ampere, which has no fast bfloat16. Lesson
    02.
    """
    if not torch.cuda.is_available():
        return None
    limits = hardware.probe(device="cuda")
    dtype = torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16
    name = str(dtype).removeprefix("torch.")
    weights = torch.rand(_GPU_SIDE, _GPU_SIDE, dtype=dtype, device="cuda")
    inputs = {
        count: torch.rand(_GPU_SIDE, count, dtype=dtype, device="cuda") for count in _GPU_TOKENS
    }
    calls = {str(count): lambda x=x: weights @ x for count, x in inputs.items()}
    turns = timing.compare(calls, device="cuda", budget_s=_GPU_BUDGET_S, precision=0.1)
    largest = max(limits.bandwidths, key=lambda point: point.working_set_bytes)
    return LayerTimes(
        device=torch.cuda.get_device_name(),
        dtype=name,
        side=_GPU_SIDE,
        weight_bytes=dtype.itemsize,
        bandwidth_bytes_per_s=largest.read_bytes_per_s,
        peak_flops_per_s=limits.peak_flops[name],
        tokens=tuple(inputs),
        times_s=tuple(row.minimum_s for row in turns.candidates),
        stable=turns.stable,
    )
