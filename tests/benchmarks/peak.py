"""The peak memory of a step, estimated by us and by our peers, beside the measured one
(``make bench NAME=peak``).

Nine models, each in inference and in training with Adam, at the sizes of the project's table. The
truth is ``measure_peak_memory``. The peers are torchinfo's "estimated total size" (it knows of no
optimizer) and the peak of torch's ``MemTracker`` under fake tensors, in the second step; a peer
that fails shows its error instead.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from helpers import console, results
from helpers.memory import estimate_peak_memory, measure_peak_memory
from tests.helpers.memory.memory_models import CONFIGURATIONS, Adam, Configuration

Case = tuple[Configuration, bool]
PEERS = ("helpers.memory", "torchinfo", "MemTracker")


@dataclass(frozen=True)
class Row(results.Result):
    """One model measured, and the error of each estimate; ``difference_bytes`` is ours in bytes."""

    model: str
    step: str
    measured_bytes: int
    difference_bytes: int
    error: str
    torchinfo: str
    mem_tracker: str
    estimate_s: float
    measure_s: float


def main() -> None:
    """Print a row a case, and for each estimate how many are exact, the median and the worst
    error.
    """
    cases = [
        (configuration, training) for configuration in CONFIGURATIONS for training in (False, True)
    ]
    errors: dict[str, list[float | None]] = {peer: [] for peer in PEERS}
    rows = [_row(case, errors) for case in console.track(cases, "peak")]
    print(results.printed(pd.DataFrame([row.to_dict() for row in rows])).to_string(index=False))
    for peer, found in errors.items():
        print(_verdict(peer, found))


def _row(case: Case, errors: dict[str, list[float | None]]) -> Row:
    configuration, training = case
    how = {"training": training, "optimizer": Adam if training else None}
    model = configuration.make()
    ours, estimate_s = _timed(
        lambda: estimate_peak_memory(model, configuration.shape, **how).peak_bytes
    )
    truth, measure_s = _timed(
        lambda: measure_peak_memory(model, configuration.shape, **how).peak_bytes
    )
    estimates = {
        "helpers.memory": ours,
        "torchinfo": _attempt(lambda: _torchinfo(configuration, training)),
        "MemTracker": _attempt(lambda: _mem_tracker(configuration, training)),
    }
    cells = {}
    for peer, estimate in estimates.items():
        error = None if isinstance(estimate, str) else estimate / truth - 1
        errors[peer].append(error)
        cells[peer] = estimate if error is None else f"{100 * error:+.2f} %"
    return Row(
        model=configuration.name,
        step="Adam" if training else "inference",
        measured_bytes=truth,
        difference_bytes=ours - truth,
        error=cells["helpers.memory"],
        torchinfo=cells["torchinfo"],
        mem_tracker=cells["MemTracker"],
        estimate_s=estimate_s,
        measure_s=measure_s,
    )


def _timed(call: Callable[[], int]) -> tuple[int, float]:
    begin = time.perf_counter()
    value = call()
    return value, time.perf_counter() - begin


def _attempt(call: Callable[[], int]) -> int | str:
    """Return what a peer says, or the name of its error: a peer that fails is a result."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def _torchinfo(configuration: Configuration, training: bool) -> int:
    import torchinfo

    mode = "train" if training else "eval"
    summary = torchinfo.summary(
        configuration.make(), configuration.shape, device="cpu", mode=mode, verbose=0
    )
    return summary.total_input + summary.total_output_bytes + summary.total_param_bytes


def _mem_tracker(configuration: Configuration, training: bool) -> int:
    with FakeTensorMode():
        model = configuration.make().train(training)
        inputs = torch.zeros(configuration.shape)
        optimizer = Adam(model.parameters()) if training else None
        tracker = MemTracker()
        tracker.track_external(
            *([model, inputs] if optimizer is None else [model, optimizer, inputs])
        )
        peaks = []
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                _step(model, inputs, optimizer)
                peaks.append(copy.deepcopy(tracker.get_tracker_snapshot("peak")))
        return peaks[-1][torch.device("cpu")]["Total"]


def _step(
    model: torch.nn.Module, inputs: torch.Tensor, optimizer: torch.optim.Optimizer | None
) -> None:
    if optimizer is None:
        with torch.no_grad():
            model(inputs)
        return
    sum(output.sum() for output in _tensors(model(inputs))).backward()
    optimizer.step()
    optimizer.zero_grad()


def _tensors(outputs: object) -> Iterator[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, tuple):
        for output in outputs:
            yield from _tensors(output)


def _verdict(peer: str, found: list[float | None]) -> str:
    sizes = [abs(error) for error in found if error is not None]
    exact = sum(size == 0 for size in sizes)
    if not sizes:
        return f"{peer}: failed on all {len(found)}"
    return (
        f"{peer}: {exact} of {len(found)} to the byte, median error "
        f"{100 * statistics.median(sizes):.2f} %, worst {100 * max(sizes):.1f} %, failed on "
        f"{len(found) - len(sizes)}"
    )


if __name__ == "__main__":
    main()
