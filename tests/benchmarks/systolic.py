"""What crosses each port of a systolic array in each cycle, as SCALE-Sim has it:
``make bench NAME=systolic``.

The products of :data:`PRODUCTS` run on the arrays of :data:`ARRAYS` in three dataflows through
SCALE-Sim's compute classes alone (``scalesim.compute``; its memory model needs NumPy below 2.4, and
is not asked). With ``--record`` the result is written to :data:`RECORDED`, which ordinary tests
read with :func:`recorded`; without it the run is compared with that file, and a difference ends it
with status 1.

The file is JSON: ``simulator``, ``version`` and ``date``, and ``runs``, a list. A run has the sizes
``m``, ``n`` and ``k`` of the product (m by k) @ (k by n), the array's ``rows`` and ``columns``,
``dataflow`` (weight, output or input), ``cycles``, and the ports ``inputs``, ``filters`` and
``outputs``. Each of these is a list of ports, and a port is a list of stretches
``[cycle, address, step, count]``: from that cycle on, ``count`` addresses, one a cycle and ``step``
apart. In every other cycle the port is idle. An address is the flat row-major place in the matrix:
i * k + kk of an input, kk * n + j of a filter, i * n + j of an output.

Two things to know. ``cycles`` counts the cycles of the trace; SCALE-Sim's own report prints the
index of the last of them, one less. And the outputs of an output-stationary run are not causal: it
writes results before their last operands have arrived, and the last line that is printed here
counts them.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from helpers.results import Record, printed
from helpers.storage import write_atomically

RECORDED = Path(__file__).parents[1] / "helpers" / "studies" / "simulators" / "systolic_ports.json"
ARRAYS = ((4, 4), (8, 4), (4, 8))  # rows, columns
PRODUCTS = (  # m, n, k
    (1, 1, 1),
    (1, 1, 3),
    (1, 4, 4),
    (4, 4, 4),
    (4, 4, 9),
    (4, 1, 4),
    (4, 8, 4),
    (8, 4, 4),
    (8, 8, 8),
    (3, 5, 7),
    (5, 3, 2),
    (7, 6, 5),
    (2, 9, 4),
    (9, 2, 13),
    (6, 6, 6),
    (10, 3, 17),
    (9, 10, 11),
    (12, 4, 16),
    (16, 16, 16),
    (32, 4, 20),
)
PORTS = ("inputs", "filters", "outputs")
_MODULES = {"weight": "ws", "output": "os", "input": "is"}


class PortTrace(Record):
    """The addresses at every port in every cycle of one run: arrays of (cycles, ports), -1 where a
    port is idle.
    """

    m: int
    n: int
    k: int
    rows: int
    columns: int
    dataflow: str
    cycles: int
    inputs: np.ndarray
    filters: np.ndarray
    outputs: np.ndarray


class Compared(Record):
    """The runs of one dataflow on one array: how many, their cycles, and how many are not as
    recorded.
    """

    rows: int
    columns: int
    dataflow: str
    runs: int
    cycles: int
    different: int


def recorded() -> list[PortTrace]:
    """Return the runs of the file."""
    return [_decoded(run) for run in json.loads(RECORDED.read_text())["runs"]]


def simulated(m: int, n: int, k: int, rows: int, columns: int, dataflow: str) -> PortTrace:
    """Return the ports of one run of SCALE-Sim. Raises ModuleNotFoundError without it."""
    module = f"systolic_compute_{_MODULES[dataflow]}"
    simulator = getattr(importlib.import_module(f"scalesim.compute.{module}"), module)()
    config = SimpleNamespace(
        get_array_dims=lambda: (rows, columns),
        sparsity_support=False,
        sparsity_optimized_mapping=False,
    )
    inputs, filters, outputs = (
        np.arange(high * wide).reshape(high, wide) for high, wide in ((m, k), (k, n), (m, n))
    )
    simulator.set_params(
        config_obj=config, ifmap_op_mat=inputs, filter_op_mat=filters, ofmap_op_mat=outputs
    )
    ports = [matrix.astype(int) for matrix in simulator.get_demand_matrices()]
    return PortTrace(m, n, k, rows, columns, dataflow, len(ports[0]), *ports)


def early_outputs(run: PortTrace) -> int:
    """Return how many results of an output-stationary run are written before their last operands
    can have arrived.

    Element (r, c) of the array is r + c hops from the corner, so in a fold that begins in cycle 0
    its k-th operands arrive in cycle r + c + k - 1; a result that leaves at the bottom in the same
    cycle has made no hop, and is early by the least that anybody could ask.
    """
    fold = run.rows + run.columns + run.k - 2
    at, ports = np.nonzero(run.outputs >= 0)
    element = run.outputs[at, ports] // run.n % run.rows
    return int(np.sum(at % fold < element + ports + run.k - 1))


def _encoded(run: PortTrace) -> dict[str, Any]:
    ports = {name: [list(_stretches(port)) for port in getattr(run, name).T] for name in PORTS}
    sizes = {
        name: getattr(run, name)
        for name in ("m", "n", "k", "rows", "columns", "dataflow", "cycles")
    }
    return sizes | ports


def _stretches(port: np.ndarray) -> Iterator[list[int]]:
    """Yield the stretches of one port: as long as the cycles follow one another and the addresses
    are evenly apart.
    """
    stretch: list[int] = []
    for cycle in np.flatnonzero(port >= 0).tolist():
        address = int(port[cycle])
        begin, first, step, count = stretch or (0, 0, 0, 0)
        follows = bool(stretch) and cycle == begin + count
        if follows and count == 1:
            stretch = [begin, first, address - first, 2]
        elif follows and address == first + step * count:
            stretch[3] += 1
        else:
            if stretch:
                yield stretch
            stretch = [cycle, address, 0, 1]
    if stretch:
        yield stretch


def _decoded(run: dict[str, Any]) -> PortTrace:
    ports = {name: np.full((run["cycles"], len(run[name])), -1) for name in PORTS}
    for name, traces in ports.items():
        for port, stretches in enumerate(run[name]):
            for cycle, address, step, count in stretches:
                traces[cycle : cycle + count, port] = address + step * np.arange(count)
    return PortTrace(**run | ports)


def main() -> None:
    """Print the table, and record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name} anew")
    record = parser.parse_args().record
    runs = [
        simulated(*product, *array, dataflow)
        for array in ARRAYS
        for dataflow in _MODULES
        for product in PRODUCTS
    ]
    encoded = [_encoded(run) for run in runs]
    if record:
        _write(encoded)
    told = json.loads(RECORDED.read_text())["runs"]
    different = [run not in told for run in encoded]
    each = len(PRODUCTS)
    rows = [
        Compared(
            runs[at].rows,
            runs[at].columns,
            runs[at].dataflow,
            each,
            sum(run.cycles for run in runs[at : at + each]),
            sum(different[at : at + each]),
        )
        for at in range(0, len(runs), each)
    ]
    print(printed(pd.concat([row.table() for row in rows])).to_string(index=False))
    stationary = [run for run in runs if run.dataflow == "output"]
    print(
        f"output-stationary: {sum(map(early_outputs, stationary))} of "
        f"{sum(run.m * run.n for run in stationary)} results are written before their last "
        "operands can have arrived"
    )
    if any(different) or len(told) != len(runs):
        sys.exit(
            f"{sum(different)} of {len(runs)} runs are not among the {len(told)} recorded ones"
        )


def _write(runs: list[dict[str, Any]]) -> None:
    about = {
        "simulator": "SCALE-Sim",
        "version": importlib.metadata.version("scalesim"),
        "date": datetime.date.today().isoformat(),
    }
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    write_atomically(RECORDED, f'{json.dumps(about)[:-1]}, "runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
