"""The generated programs beside each other and beside PyTorch and ONNX Runtime: one run, one
thread.

**The boundary.** Called from Python, every way takes a tensor (N, inputs) and fills the caller's
``out`` (N, outputs), and checks both as it always does. ONNX Runtime, which would have to copy into
``out``, may return an array of its own: its times flatter it. The raw calls, in rows of their own,
hand ready addresses to the compiled function. Lesson 17.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from helpers import timing
from helpers.hardware.limits import _library as library, _multiply_adds as multiply_adds
from helpers.results import Record, derived
from helpers.studies import _frameworks as frameworks
from helpers.studies.constant_weights._files import Specialised, through_a_file
from helpers.studies.constant_weights._network import (
    Network,
    error_bound,
    exact_outputs,
    standard_network,
)
from helpers.studies.constant_weights._programs import cpp_program

BATCHES = (1, 4096)
OURS = "specialised, weights from a file"
EAGER, COMPILED, FROZEN = "torch eager", "torch.compile", "torch.compile, frozen weights"
ONNX = "ONNX Runtime"
RAW = {
    "sizes at run time": ("runtime_sizes", 0.0),
    "outputs on lanes, weights by pointer": ("pointer", 0.0),
    "outputs on lanes, constexpr weights": ("constexpr", 0.0),
    "candidates on lanes, weights by pointer": ("lanes_pointer", 0.0),
    "candidates on lanes, constexpr weights": ("lanes", 0.0),
    "straight line, 50 % of the weights": ("pruned", 0.5),
    "straight line, 20 % of the weights": ("pruned", 0.8),
    "straight line, 10 % of the weights": ("pruned", 0.9),
}
CONSTEXPR, SIZES, TENTH = (list(RAW)[index] for index in (4, 0, 7))
_PRECISION = 0.05  # the ways lie further apart
# PyTorch's and ONNX Runtime's difference from float64 that passes; ours has its own bound
_ENOUGH = 1e-5

Way = Callable[[torch.Tensor, torch.Tensor], Any]


class WayTime(Record):
    """One way to evaluate the network: seconds a candidate, and how often as fast ours is (from
    runs in turns).

    ``low_ratio`` to ``high_ratio`` is the interval of ``time_ratio``, the way's time over that of
    ours. Lesson 17.
    """

    way: str
    called: str
    candidates: int
    candidate_s: float
    minimum_s: float
    time_ratio: float
    low_ratio: float
    high_ratio: float


class PeerTimes(Record):
    """Every way's time on one machine and one thread.

    ``absent`` names the ways that could not be timed, each with why; ``unstable`` the comparisons
    that were disturbed. ``peak_flops_per_s`` is what one core's own float32 multiply-adds reach in
    the same run (None in a recording that is older than their measurement), ``product_flops_per_s``
    the library's fastest matrix product on one thread, and ``reached_flops_per_s`` constexpr
    weights on lanes, two operations a weight. Lesson 17.
    """

    widths: tuple[int, ...]
    macs: int
    threads: int
    compile_s: float
    peak_flops_per_s: float | None
    product_flops_per_s: float
    reached_flops_per_s: float
    absent: str
    unstable: str
    times: tuple[WayTime, ...]

    @classmethod
    def _upgraded(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return values of before ``product_flops_per_s``, when the product was called the peak, as
        those of today.
        """
        if "product_flops_per_s" in values or "peak_flops_per_s" not in values:
            return values
        return {
            **values,
            "peak_flops_per_s": None,
            "product_flops_per_s": values["peak_flops_per_s"],
        }


def measure_peers(*, budget_s: float = 6.0) -> PeerTimes:
    """Time every way of evaluating the story's network that is installed here, on one CPU thread.

    Each comparison (batch of 1, batch of 4,096, raw calls) has ``budget_s``. Every way's result is
    checked against float64 first. Raises AssertionError for a wrong result, MissingToolError
    without a C++ compiler.
    """
    network = standard_network()
    with timing.fixed_threads(1), torch.inference_mode():
        ours = through_a_file(network)
        compile_s = ours.wait().compile_s or 0.0
        absent: dict[str, str] = {}
        times, unstable = [], {}
        for batch in BATCHES:
            x, out = _tensors(network, batch)
            runs: dict[str, Callable[[], Any]] = {OURS: functools.partial(ours, x, out=out)}
            for name, way in _peers(network, x, out, absent).items():
                runs[name] = functools.partial(way, x, out)
            comparison = timing.compare(runs, budget_s=budget_s, device="cpu", precision=_PRECISION)
            times += _rows(comparison, f"from Python, {batch:,} at once", batch)
            if not comparison.stable:
                unstable[f"batch of {batch:,}"] = comparison.reason
        before = _peak(), _product()
        raw = _compare_raw(network, ours, budget_s)
        peak_flops_per_s, product_flops_per_s = map(max, before, (_peak(), _product()))
    times += _rows(raw, "raw, ready addresses", BATCHES[-1])
    if not raw.stable:
        unstable["raw calls"] = raw.reason
    fastest_s = raw.candidate(CONSTEXPR).minimum_s / BATCHES[-1]
    return PeerTimes(
        widths=network.widths,
        macs=network.macs,
        threads=1,
        compile_s=compile_s,
        peak_flops_per_s=peak_flops_per_s,
        product_flops_per_s=product_flops_per_s,
        reached_flops_per_s=2 * network.macs / fastest_s,
        absent=_list_reasons(absent),
        unstable=_list_reasons(unstable),
        times=tuple(times),
    )


def _list_reasons(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "nothing"


def _tensors(network: Network, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(batch)
    return torch.randn(batch, network.inputs, generator=random), torch.empty(batch, network.outputs)


def _peers(
    network: Network, x: torch.Tensor, out: torch.Tensor, absent: dict[str, str]
) -> dict[str, Way]:
    """Return the peers that work here, each checked on ``x``; what does not is named in
    ``absent``.
    """
    makers = {EAGER: _make_eager, COMPILED: _make_compiled, FROZEN: _make_frozen, ONNX: _make_onnx}
    exact = exact_outputs(network, x)
    ways = {}
    for name, make in makers.items():
        try:
            way = make(network)
            output = way(x, out)
        except Exception as error:  # a peer that fails is a result
            absent[name] = frameworks.first_line(error)
            continue
        largest_error = float((torch.as_tensor(output).double() - exact).abs().max())
        if not largest_error <= _ENOUGH:
            raise AssertionError(
                f"{name} is {largest_error:.2g} from float64, more than {_ENOUGH:g}"
            )
        ways[name] = way
    return ways


def _make_eager(network: Network) -> Way:
    module = network.module()
    first, last = module[:-1], module[-1]
    function = {torch.nn.Sigmoid: torch.sigmoid, torch.nn.Tanh: torch.tanh}.get(type(last))
    if function is None:
        return lambda x, out: out.copy_(module(x))
    return lambda x, out: function(first(x), out=out)


def _make_compiled(network: Network) -> Way:
    module = network.module()
    return torch.compile(lambda x, out: out.copy_(module(x)), dynamic=False)


def _make_frozen(network: Network) -> Way:
    return frameworks.freeze(_make_compiled(network))


def _make_onnx(network: Network) -> Way:
    run = frameworks.onnx_runtime(lambda: onnx_model(network))
    return lambda x, _: run("x", x)


def onnx_model(network: Network) -> bytes:
    """Return ``network`` as a serialised ONNX model: a Gemm a layer, then its activation; x (N,
    inputs) to y.

    Needs the package onnx (group peers). Lesson 17.
    """
    from onnx import helper, numpy_helper

    nodes, constants, before = [], [], "x"
    for number, layer in enumerate(network.layers):
        after = "y" if number + 1 == len(network.layers) else f"y{number}"
        parameters = {f"weights{number}": layer.weights, f"bias{number}": layer.bias}
        constants += [
            numpy_helper.from_array(np.array(array), name) for name, array in parameters.items()
        ]
        nodes += [
            helper.make_node("Gemm", [before, *parameters], [f"sum{number}"]),
            # ONNX has an operator for each of our activations, named as it is
            helper.make_node(layer.activation.title(), [f"sum{number}"], [after]),
        ]
        before = after
    return frameworks.onnx_model(
        "network", nodes, constants, {"x": ["N", network.inputs], "y": ["N", network.outputs]}
    )


def _compare_raw(network: Network, ours: Specialised, budget_s: float) -> timing.Comparison:
    """Compare the compiled functions alone, on the larger batch, ours first; every result is within
    its bound.
    """
    x, out = _tensors(network, BATCHES[-1])
    programs = {OURS: cpp_program(ours.network, ours.serving.placement)}
    for name, (placement, share) in RAW.items():
        programs[name] = cpp_program(network, placement, prune=share)
    for name, program in programs.items():
        errors = (program(x, out=out) - exact_outputs(program.network, x)).abs()
        if not (errors <= error_bound(program.network, x)).all():
            raise AssertionError(f"{name} leaves its error bound")
    arguments = (x.data_ptr(), out.data_ptr(), BATCHES[-1])
    calls = {
        name: functools.partial(program.evaluate, *arguments, program.context)
        for name, program in programs.items()
    }
    # x and out, whose addresses are used, live here
    return timing.compare(calls, budget_s=budget_s, device="cpu", precision=_PRECISION)


def _peak() -> float:
    return multiply_adds.core_flops(multiply_adds.compile_forms(), "float32", threads=1)


def _product() -> float:
    rate = library.product_flops("float32", torch.device("cpu"), budget=library.Budget(size_s=0.3))
    if isinstance(rate, str):
        raise RuntimeError(rate)
    return rate


def _rows(compared: timing.Comparison, called: str, batch: int) -> list[WayTime]:
    return [
        derived(
            WayTime,
            row,
            way=row.name,
            called=called,
            candidates=batch,
            candidate_s=row.median_s / batch,
            minimum_s=row.minimum_s / batch,
        )
        for row in compared.candidates
    ]
