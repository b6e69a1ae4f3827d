"""The generated programs beside PyTorch and ONNX Runtime, one run, one thread:
``make bench NAME=constant_weights``.

It prints every way's time, the figures to reach as ratios, and what misses. ONNX Runtime is in the
group "peers"; without it, or where torch.compile does not work, a line says so. The lesson's table
is recorded by ``python -m helpers.recorded 17-cpu``.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

from helpers.results import Result
from helpers.studies.constant_weights._peers import (
    CONSTEXPR,
    EAGER,
    FROZEN,
    ONNX,
    SIZES,
    TENTH,
    PeerTimes,
    measure_peers,
)


@dataclass(frozen=True)
class Target(Result):
    """A figure to reach, the ratio that was measured, and whether it is reached."""

    figure: str
    needed_ratio: float
    measured_ratio: float
    reached: bool


def targets(measured: PeerTimes) -> list[Target]:
    """Return the figures to reach, as ratios that must be at least what is needed; absent ways are
    left out.
    """
    ratios = {(row.called, row.way): row.time_ratio for row in measured.times}
    raw = {way: ratio for (called, way), ratio in ratios.items() if called.startswith("raw")}
    found = [
        ("from a file: the speed of constexpr", 0.95, raw[CONSTEXPR]),
        ("from a file: over sizes at run time", 3.0, raw[SIZES]),
        (
            "candidates on lanes: of the core's peak",
            0.80,
            measured.reached_flops_per_s / measured.peak_flops_per_s,
        ),
        ("10 % of the weights: over all of them", 6.0, raw[CONSTEXPR] / raw[TENTH]),
    ]
    for batch, needs in (
        ("1", {EAGER: 12.0, ONNX: 3.0}),
        ("4,096", {EAGER: 1.35, FROZEN: 1.35, ONNX: 1.25}),
    ):
        there = {
            way: ratio
            for (called, way), ratio in ratios.items()
            if called == f"from Python, {batch} at once"
        }
        found += [
            (f"batch of {batch}: over {way}", need, there[way])
            for way, need in needs.items()
            if way in there
        ]
    return [
        Target(figure=figure, needed_ratio=need, measured_ratio=ratio, reached=ratio >= need)
        for figure, need, ratio in found
    ]


def main() -> None:
    """Print the measurement, the load of the machine, and one line that says what misses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--budget", type=float, default=6.0, help="seconds a comparison (default: 6)"
    )
    measured = measure_peers(budget_s=parser.parse_args().budget)
    print(measured)
    if hasattr(os, "getloadavg"):
        print(f"load of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    missed = [
        f"{target.figure} ({target.measured_ratio:.2f}x of {target.needed_ratio:.2f}x)"
        for target in targets(measured)
        if not target.reached
    ]
    print(f"misses: {', '.join(missed) or 'none of the figures that could be measured'}")


if __name__ == "__main__":
    main()
