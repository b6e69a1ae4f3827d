"""The recorded ports of a systolic array: what is written is what is read, and what the recording
says of itself.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from helpers.studies.simulators.systolic import simulate
from tests.benchmarks import systolic as benchmark

RUNS = benchmark.recorded()


def test_a_run_that_is_written_is_read_back():
    random = np.random.default_rng(9)
    for cycles, ports in ((1, 1), (7, 4), (40, 3)):
        traces = [random.integers(-1, 6, (cycles, ports)) for _ in benchmark.PORTS]
        run = benchmark.PortTrace(2, 3, 4, ports, ports, "weight", cycles, *traces)
        again = benchmark._decoded(json.loads(json.dumps(benchmark._encoded(run))))
        for name, trace in zip(benchmark.PORTS, traces, strict=True):
            assert np.array_equal(getattr(again, name), trace)


def test_every_product_ran_on_every_array_in_every_dataflow():
    found = {(run.m, run.n, run.k, run.rows, run.columns, run.dataflow) for run in RUNS}
    wanted = {
        (*product, *array, dataflow)
        for product in benchmark.PRODUCTS
        for array in benchmark.ARRAYS
        for dataflow in ("weight", "output", "input")
    }
    assert found == wanted
    assert len(RUNS) == len(wanted)
    assert benchmark.RECORDED.stat().st_size < 300_000


@pytest.mark.parametrize(
    "run",
    RUNS[:: len(benchmark.PRODUCTS)],
    ids=lambda run: f"{run.rows}x{run.columns} {run.dataflow}",
)
def test_a_product_of_one_by_one_touches_each_matrix_once(run):
    assert (run.m, run.n, run.k) == (1, 1, 1)
    assert [getattr(run, name).max() for name in benchmark.PORTS] == [0, 0, 0]
    assert [int((getattr(run, name) >= 0).sum()) for name in benchmark.PORTS] == [1, 1, 1]


def test_an_output_stationary_run_writes_a_result_before_it_can_exist():
    run = next(
        run
        for run in RUNS
        if (run.m, run.n, run.k, run.rows, run.columns, run.dataflow) == (4, 4, 4, 4, 4, "output")
    )
    # (3, 0) in cycle 3, and its last operands arrive in cycle 6
    assert run.outputs[3].tolist() == [12, -1, -1, -1]
    assert benchmark.early_outputs(run) == 8


# Our array, held to the recording port by port, cycle by cycle. SCALE-Sim charges a partial tile
# all rows and columns, so its folds are laid beside ours from their first cycles on; what it has
# after our last cycle must be idle.


def ports_of(run):
    """Return, for each fold of a simulated run, the places that cross the ports in each of its
    cycles.
    """
    folds = [
        [frame for frame in run.frames if frame.fold == fold]
        for fold in range(run.frames[-1].fold + 1)
    ]
    stays, moves = {
        "weight": ("filters", "inputs"),
        "input": ("inputs", "filters"),
        "output": (None, "inputs"),
    }[run.dataflow]
    for frames in folds:
        loading = [frame for frame in frames if frame.phase == "load"]
        idle = np.full(run.columns, -1)
        left = np.stack([getattr(frame, moves)[:, 0] for frame in frames])
        if stays:
            top = np.stack(
                [getattr(frame, stays)[0] if frame in loading else idle for frame in frames]
            )
            yield {
                moves: left,
                stays: top,
                "outputs": np.stack([frame.sums[-1] for frame in frames]),
            }
        else:
            computing = [frame for frame in frames if frame.phase == "compute"]
            yield {
                "inputs": left[: len(computing)],
                "filters": np.stack([frame.filters[0] for frame in computing]),
            }


@pytest.mark.parametrize("dataflow", ["weight", "output", "input"])
def test_every_port_in_every_cycle_is_as_scale_sim_has_it(dataflow):
    compared = 0
    for recorded in (run for run in RUNS if run.dataflow == dataflow):
        a, b = np.ones((recorded.m, recorded.k)), np.ones((recorded.k, recorded.n))
        run = simulate(
            a, b, rows=recorded.rows, columns=recorded.columns, dataflow=dataflow, frames=True
        )
        folds = list(ports_of(run))
        length = recorded.cycles // len(folds)
        assert recorded.cycles == len(folds) * length
        for fold, ports in enumerate(folds):
            for name, ours in ports.items():
                theirs = getattr(recorded, name)[fold * length : (fold + 1) * length]
                assert np.array_equal(theirs[: len(ours)], ours), (
                    recorded.m,
                    recorded.n,
                    recorded.k,
                    name,
                    fold,
                )
                assert (theirs[len(ours) :] == -1).all()
                compared += 1
    assert compared > 300
