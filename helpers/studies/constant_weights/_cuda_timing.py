"""Every placement on a GPU: 10^7 candidates, beside PyTorch, and beside what the machine code's
census allows.

These functions are registered with :mod:`helpers.recorded`; without a GPU they return no rows, and
say why. Lesson 17.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from helpers import console, hardware, timing
from helpers.results import Record, row_of
from helpers.studies import _frameworks as frameworks
from helpers.studies.constant_weights._counting import INSTRUCTION_BYTES, WeightCensus, cuda_census
from helpers.studies.constant_weights._cuda_sources import CUDA_PLACEMENTS, candidates_per_thread
from helpers.studies.constant_weights._files import through_a_file
from helpers.studies.constant_weights._network import (
    Network,
    error_bound,
    exact_outputs,
    random_network,
    standard_network,
)
from helpers.studies.constant_weights._programs import CudaFunction, cuda_function

CANDIDATES = 10_000_000
GROWING_WIDTHS = (16, 32, 48, 64, 96, 128)

_WARP = 32
# of a multiprocessor, each with an instruction a cycle, from sm_70 on: NVIDIA's Volta and later
# papers
_SCHEDULERS = 4
# Of a multiprocessor, a cycle: results of float32 multiply-adds, and of float16 ones. "Throughput
# of Native Arithmetic Instructions": to 9.0 as in the CUDA C++ Programming Guide 12.6, from 10.0 on
# as in the Best Practices Guide 13, which counts pairs of float16.
_RATES = {
    "7.5": (64, 128),
    "8.0": (64, 256),
    "8.6": (128, 256),
    "8.9": (128, 128),
    "9.0": (128, 256),
    "10.0": (128, 128),
    "12.0": (128, 128),
}
# Of a multiprocessor, a cycle, at most: shared memory has 32 banks of 32 bits a cycle (CUDA C++
# Programming Guide, "Compute Capability 5.x" and later, shared memory), and the L1 cache is the
# same memory.
_WARP_LOADS = 1
_SHARE_OF_MEMORY = 0.25
_CHECKED = 4_096
_NO_GPU = "there is no CUDA device here: nothing was run"

Models = tuple[float | None, float | None, float | None, float | None]
_UNKNOWN: Models = (None, None, None, None)


class CudaTime(Record):
    """One program's time for all candidates; ``speedup`` is over the comparison's baseline, in
    turns with it.

    ``issue_s`` is what the instructions of the census take at four warps a cycle,
    ``multiply_add_s`` what the multiply-adds take in their units, ``load_s`` what global and shared
    loads take at one warp's a cycle (each a lower bound), ``memory_s`` what inputs and outputs take
    at the published bandwidth; ``modelled_s`` is the largest of them. None: not known, or no kernel
    of ours. ``error_share`` is the largest error over its bound (1 or less is right). Lesson 17.
    """

    name: str
    layout: str
    instructions: int | None
    code_bytes: int | None
    median_s: float
    candidate_ns: float
    speedup: float
    issue_s: float | None
    multiply_add_s: float | None
    load_s: float | None
    memory_s: float | None
    modelled_s: float | None
    error_share: float


class CudaTimes(Record):
    """The programs' times on one GPU; ``clock_hz`` is the highest clock, which the models take.

    ``notes`` say what could not be run, and why; ``comparison`` has the intervals. Lesson 17.
    """

    device: str
    multiprocessors: int | None
    clock_hz: float | None
    candidates: int
    widths: tuple[int, ...]
    notes: tuple[str, ...]
    rows: tuple[CudaTime, ...]
    comparison: timing.Comparison | None

    def time(self, name: str) -> CudaTime:
        """Return one program's row.

        Raises ValueError, with those that there are, for another name.
        """
        return row_of(self.rows, "row", name=name)


def measure_cuda(*, candidates: int = CANDIDATES, budget_s: float = 30.0) -> CudaTimes:
    """Return the times of every placement, of half precision, of a network from a file, and of
    PyTorch, on this GPU.

    The network is :func:`standard_network`; kernels read columns unless their name says rows.
    PyTorch has its input as rows, its floats "highest". Each program's outputs are checked against
    float64 first. On a GPU whose memory is too small for them, candidates are fewer. Without a GPU
    no row comes back, and a note. Raises RuntimeError when a program is wrong.
    """
    if not torch.cuda.is_available():
        return _empty_times()
    network = standard_network()
    notes: list[str] = []
    rows = _random_rows(_count_fitting(candidates, network, notes), network.inputs)
    kernels = {
        f"{name} {precision}" if precision == "fp16" else name: (name, precision, "columns")
        for precision in ("fp32", "fp16")
        for name in CUDA_PLACEMENTS
    }
    kernels |= {f"{name}, rows": (name, "fp32", "rows") for name in ("const", "pointer")}
    functions = {
        name: cuda_function(network, placement=placement, precision=precision, layout=layout)
        for name, (placement, precision, layout) in console.track(
            list(kernels.items()), "compiling"
        )
    }
    others = {"from a file, rows": _from_a_file(network, rows), **_peers(network, rows, notes)}
    return _measure(network, functions, rows, others, notes, baseline="pointer", budget_s=budget_s)


def measure_growth(*, candidates: int = 1_000_000, budget_s: float = 10.0) -> CudaTimes:
    """Return the times of growing networks whose weights are constants: where the code outgrows the
    instruction cache.

    Networks of 23 -> w -> w -> 1 for the widths w of :data:`GROWING_WIDTHS`, each a row named by
    its width; the model knows of no instruction cache, so the times leave it there. Without a GPU
    no row comes back.
    """
    if not torch.cuda.is_available():
        return _empty_times()
    notes: list[str] = []
    networks = {
        f"width {width}": random_network((23, width, width, 1), ("relu", "relu", "sigmoid"))
        for width in GROWING_WIDTHS
    }
    first = next(iter(networks.values()))
    rows = _random_rows(_count_fitting(candidates, first, notes), first.inputs)
    functions = {
        name: cuda_function(network, layout="columns")
        for name, network in console.track(list(networks.items()), "compiling")
    }
    baseline = next(iter(functions))
    return _measure(first, functions, rows, {}, notes, baseline=baseline, budget_s=budget_s)


def _empty_times() -> CudaTimes:
    return CudaTimes("no GPU", None, None, 0, standard_network().widths, (_NO_GPU,), (), None)


def _random_rows(candidates: int, inputs: int) -> torch.Tensor:
    return torch.randn(
        candidates, inputs, device="cuda", generator=torch.Generator("cuda").manual_seed(0)
    )


def _count_fitting(candidates: int, network: Network, notes: list[str]) -> int:
    """Return the number of candidates that fit: PyTorch keeps inputs, copies of them and the
    activations of two layers.
    """
    candidate_bytes = 4 * (2 * network.inputs + 4 * max(network.widths))
    free, _ = torch.cuda.mem_get_info()
    fitting = int(free * _SHARE_OF_MEMORY * 2 / candidate_bytes)
    if fitting < candidates:
        notes.append(f"the GPU's free memory holds {fitting:,} candidates, not {candidates:,}")
    return min(candidates, fitting)


def _from_a_file(network: Network, rows: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return the network as it serves from a file, once the compiler is done: const, rows, all
    checks included.
    """
    specialised = through_a_file(network, device="cuda")
    specialised.wait()
    out = torch.empty(len(rows), network.outputs, device=rows.device)
    return lambda: specialised(rows, out=out)


def _peers(
    network: Network, rows: torch.Tensor, notes: list[str]
) -> dict[str, Callable[[], torch.Tensor]]:
    """Return PyTorch's ways to evaluate the network; what does not run here is named in ``notes``
    with the reason.
    """
    module = network.module().to(rows.device)
    peers: dict[str, Callable[[], torch.Tensor]] = {
        "torch eager": torch.no_grad()(lambda: module(rows))
    }
    for name, make in (("torch.compile", _make_compiled), ("torch CUDA graph", _graph)):
        try:
            peers[name] = make(module, rows)
        except Exception as error:
            # a compiler that is not there, an operation that a graph refuses
            notes.append(
                f"{name} did not run: {type(error).__name__}: {frameworks.first_line(error)}"
            )
    return peers


def _make_compiled(module: torch.nn.Module, rows: torch.Tensor) -> Callable[[], torch.Tensor]:
    compiled = torch.compile(module)
    evaluate = torch.no_grad()(lambda: compiled(rows))
    evaluate()
    return evaluate


@torch.no_grad()
def _graph(module: torch.nn.Module, rows: torch.Tensor) -> Callable[[], torch.Tensor]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    # a graph is recorded after a warm-up on another stream
    with torch.cuda.stream(stream):
        for _ in range(3):
            module(rows)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = module(rows)

    def replay() -> torch.Tensor:
        graph.replay()
        return outputs

    replay()
    return replay


def _measure(
    network: Network,
    functions: Mapping[str, CudaFunction],
    rows: torch.Tensor,
    peers: Mapping[str, Callable[[], torch.Tensor]],
    notes: list[str],
    *,
    baseline: str,
    budget_s: float,
) -> CudaTimes:
    card = hardware.machine_card()
    gpu = card.gpus[0] if card.gpus else hardware.Gpu(torch.cuda.get_device_name(), "CUDA")
    inputs = {"rows": rows, "columns": rows.T.contiguous()}
    runs = {
        name: _run_of(function, inputs[function.layout]) for name, function in functions.items()
    } | dict(peers)
    shares = {name: _share(run(), functions.get(name), network, rows) for name, run in runs.items()}
    wrong = {name: share for name, share in shares.items() if not share <= 1}
    if wrong:
        listed = ", ".join(f"{name} ({share:.3g} times its bound)" for name, share in wrong.items())
        raise RuntimeError(
            f"wrong outputs: {listed}; nothing was timed. Report it with this machine's name"
        )
    comparison = timing.compare(runs, baseline=baseline, device="cuda", budget_s=budget_s)
    bandwidth = _bandwidth(card)
    times = []
    for row in comparison.candidates:
        timed_function = functions.get(row.name)
        layout, total, models = "rows", None, _UNKNOWN
        if timed_function is not None:
            weight_census = cuda_census(timed_function.program.cubin)
            layout, total = timed_function.layout, weight_census.total
            models = _models(weight_census, timed_function, gpu, len(rows), bandwidth)
        times.append(
            CudaTime(
                row.name,
                layout,
                total,
                None if total is None else total * INSTRUCTION_BYTES,
                row.median_s,
                row.median_s * 1e9 / len(rows),
                1 / row.time_ratio,
                *models,
                None if models[0] is None else max(time_s for time_s in models if time_s),
                shares[row.name],
            )
        )
    return CudaTimes(
        gpu.name,
        gpu.multiprocessors,
        gpu.clock_hz,
        len(rows),
        network.widths,
        tuple(notes),
        tuple(times),
        comparison,
    )


def _run_of(function: CudaFunction, inputs: torch.Tensor) -> Callable[[], torch.Tensor]:
    out = function(inputs)
    return lambda: function(inputs, out=out)


def _share(
    outputs: torch.Tensor, function: CudaFunction | None, network: Network, rows: torch.Tensor
) -> float:
    """Return the largest error over its bound, of the first candidates and of the last ones."""
    precision = function.precision if function else "fp32"
    network = function.network if function else network
    by_rows = outputs if function is None or function.layout == "rows" else outputs.T
    inputs, actual = (
        torch.cat([values[:_CHECKED], values[-_CHECKED:]]).cpu() for values in (rows, by_rows)
    )
    shares = (actual - exact_outputs(network, inputs)).abs() / error_bound(
        network, inputs, precision=precision
    )
    return math.inf if shares.isnan().any() else float(shares.max())


def _models(
    weight_census: WeightCensus,
    function: CudaFunction,
    gpu: hardware.Gpu,
    candidates: int,
    bandwidth: float | None,
) -> Models:
    memory = 4 * candidates * (function.network.inputs + function.network.outputs)
    memory_s = memory / bandwidth if bandwidth else None
    if not gpu.multiprocessors or not gpu.clock_hz:
        return None, None, None, memory_s
    warps = candidates / candidates_per_thread(function.precision) / _WARP
    # cycles of all multiprocessors a second, for each warp
    warps_per_s = gpu.multiprocessors * gpu.clock_hz / warps
    issue_s = weight_census.total / _SCHEDULERS / warps_per_s
    load_s = (weight_census.global_loads + weight_census.shared_loads) / _WARP_LOADS / warps_per_s
    if gpu.capability not in _RATES:
        return issue_s, None, load_s, memory_s
    single, half = _RATES[gpu.capability]
    halves = weight_census.fp16_multiply_adds
    multiply_add_s = (
        (weight_census.multiply_adds - halves) * _WARP / single + halves * 2 * _WARP / half
    ) / warps_per_s
    return issue_s, multiply_add_s, load_s, memory_s


def _bandwidth(card: hardware.MachineCard) -> float | None:
    known = hardware.known_device(card).device
    return known.memory_bandwidth_bytes_per_s if known else None
