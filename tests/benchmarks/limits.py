"""The probe beside its peers on this machine: ``make bench NAME=limits``.

Latency beside a chase in C over the same buffer; bandwidth beside STREAM's kernels in C with OpenMP
and beside ``torch.utils.benchmark`` on the same operator; the product beside
``torch.utils.benchmark`` on the same product, and its spread over processes of their own; the peak
of a core beside clock x lanes x units; the caches of the machine's card beside py-cpuinfo's.
py-cpuinfo is in the group "peers"; without it, its part is left out, and a line says so.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch.utils import benchmark

from helpers import hardware, native, results
from helpers.hardware import MachineLimits, probe
from helpers.hardware.limits import (
    _bandwidth as bandwidth,
    _chase as chase,
    _levels as probe_levels,
    _library as library,
    _multiply_adds as multiply_adds,
)
from helpers.hardware.limits._passes import fastest_s
from tests import cores

CPU = torch.device("cpu")
RUNS = 9
PROCESSES = 5
STREAM = """#include <chrono>
#include <cstdint>
static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
extern "C" double chase_s(const uint64_t* next, uint64_t* index, int64_t steps) {
    uint64_t place = *index;
    double begin = now();
    for (int64_t step = 0; step < steps; ++step) place = next[place];
    *index = place;
    return now() - begin;
}
#define KERNEL(name, statement) \\
    extern "C" double name(float* a, float* b, float* c, float s, int64_t n, int32_t threads) { \\
        double begin = now(); \\
        _Pragma("omp parallel for num_threads(threads) schedule(static)") \\
        for (int64_t i = 0; i < n; ++i) statement; \\
        return now() - begin; \\
    }
KERNEL(copy, c[i] = a[i])
KERNEL(scale, b[i] = s * c[i])
KERNEL(add, c[i] = a[i] + b[i])
KERNEL(triad, a[i] = b[i] + s * c[i])
"""  # noqa: E501
STREAM_BYTES = {"copy": 8, "scale": 8, "add": 12, "triad": 12}  # a step: floats read and written


@dataclass(frozen=True)
class LatencyRow(results.Result):
    """One load at one working set: the probe's walker beside C, minimum of nine in turns."""

    working_set_bytes: int
    probe_s: float
    c_s: float
    c_ratio: float


@dataclass(frozen=True)
class BandwidthRow(results.Result):
    """One kernel; ``probe_ratio`` is its rate over that of the probe's triad."""

    kernel: str
    by: str
    working_set_bytes: int
    bandwidth_bytes_per_s: float
    probe_ratio: float


@dataclass(frozen=True)
class ProductRow(results.Result):
    """The best float32 product under one timer, or in one process."""

    by: str
    product_flops_per_s: float


@dataclass(frozen=True)
class PeakRow(results.Result):
    """A form of multiply-adds on one thread, beside clock x lanes x units of 2 FLOP where these are
    known.
    """

    form: str
    peak_flops_per_s: float
    clock_hz: float
    units: int | None
    lanes: int | None
    known_ratio: float | None


@dataclass(frozen=True)
class CacheRow(results.Result):
    """A cache: the machine's card beside py-cpuinfo."""

    field: str
    card_bytes: int | None
    py_cpuinfo: str


def latency_rows(stream: native.Library, limits: MachineLimits) -> Iterator[LatencyRow]:
    """Yield a row for a working set well inside each level."""
    follow = stream.function(
        "double chase_s(const uint64_t* next, uint64_t* index, int64_t steps)"
    ).raw
    walker = chase.find_walker()
    levels = probe_levels.card_levels(hardware.machine_card())
    sizes = [probe_levels.triad_bytes(levels, index, 1) // 64 * 64 for index in range(len(levels))]
    for size in [*sizes, limits.latencies[-1].working_set_bytes]:
        buffer = chase.chase_buffer(size)
        chase.link(buffer, size)
        index, ours, theirs = ctypes.c_uint64(0), [], []
        for _ in range(RUNS):
            place, taken_s = chase._run(walker.walk, buffer, index.value, 20_000)
            index.value = place
            ours.append(taken_s / 20_000)
            theirs.append(follow(buffer.ctypes.data, ctypes.addressof(index), 20_000) / 20_000)
        yield LatencyRow(size, min(ours), min(theirs), min(theirs) / min(ours))


def bandwidth_rows(stream: native.Library, limits: MachineLimits) -> Iterator[BandwidthRow]:
    """Yield the probe's kernels, torch's Timer on the same triad, and STREAM's kernels in C, in
    main memory.
    """
    last = limits.bandwidths[-1]
    size, ours = last.working_set_bytes, last.triad_bytes_per_s
    for kernel in bandwidth.KERNELS:
        rate = getattr(last, f"{kernel}_bytes_per_s")
        yield BandwidthRow(kernel, "probe", size, rate, rate / ours)
    pool = bandwidth.pool(size, CPU)
    triad = bandwidth.operators(pool, size)["triad"]
    rate = triad.moved_bytes / timer_s(triad.fn, limits.threads)
    yield BandwidthRow("triad", "torch.utils.benchmark", size, rate, rate / ours)
    arrays = bandwidth.arrays(pool, size, 3)
    for kernel, moved in STREAM_BYTES.items():
        run = stream.function(
            f"double {kernel}(float* a, float* b, float* c, float s, int64_t n, int32_t threads)"
        ).raw
        pointers = [array.data_ptr() for array in arrays]
        taken_s = min(run(*pointers, 1.0, len(arrays[0]), limits.threads) for _ in range(RUNS))
        rate = moved * len(arrays[0]) / taken_s
        yield BandwidthRow(kernel, "C, as STREAM", size, rate, rate / ours)


def timer_s(fn: Callable[[], object], threads: int) -> float:
    """Return the fastest of the runs of torch's own Timer."""
    return min(
        benchmark.Timer("fn()", globals={"fn": fn}, num_threads=threads).blocked_autorange().times
    )


def product_rows(limits: MachineLimits, side: int = 512) -> Iterator[ProductRow]:
    """Yield the probe's product, torch's Timer on one product, and the product in five processes of
    their own.
    """
    yield ProductRow("probe", limits.product_flops["float32"])
    a, b, out = (torch.ones(side, side) for _ in range(3))
    flops, torch_s = (
        library.flops_of_product(side),
        timer_s(lambda: torch.mm(a, b, out=out), limits.threads),
    )
    yield ProductRow(f"torch.utils.benchmark, side {side}", flops / torch_s)
    yield ProductRow(
        f"the probe's timer, side {side}",
        flops / fastest_s(lambda: torch.mm(a, b, out=out), CPU, budget_s=1),
    )
    for number in range(PROCESSES):
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.limits",
            "--product-alone",
            str(limits.threads),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        yield ProductRow(f"process {number + 1}", float(done.stdout))


def peak_rows() -> Iterator[PeakRow]:
    """Yield a row for each form that this core has; clock and rate are the fastest of turns."""
    known, forms = cores.this_core(), multiply_adds.compile_forms()
    units, lanes = (None, None) if isinstance(known, str) else (known.units, known.lanes)
    for kind, names in multiply_adds.FORMS.items():
        for name in (name for name in names if name in forms):
            clock_hz = rate = 0.0
            for _ in range(RUNS):
                clock_hz = max(clock_hz, cores.clock_hz())
                rate = max(
                    rate, multiply_adds.form_flops(forms[name], getattr(torch, kind), threads=1)
                )
            is_known = kind == "float32" and lanes is not None
            ratio = rate / (2 * clock_hz * units * lanes) if is_known else None
            yield PeakRow(
                name, rate, clock_hz, *((units, lanes) if is_known else (None, None)), ratio
            )


def cache_rows() -> Sequence[CacheRow]:
    """Return the data caches of the card beside py-cpuinfo's fields.

    Raises ModuleNotFoundError without py-cpuinfo.
    """
    import cpuinfo

    begin_s = time.perf_counter()
    told = cpuinfo.get_cpu_info()
    print(f"py-cpuinfo: {time.perf_counter() - begin_s:.2f} s a call")
    sizes = {
        level.name: level.size_bytes for level in probe_levels.card_levels(hardware.machine_card())
    }
    fields = {"L1": "l1_data_cache_size", "L2": "l2_cache_size", "L3": "l3_cache_size"}
    return [
        CacheRow(field, sizes.get(name), str(told.get(field, "missing")))
        for name, field in fields.items()
    ]


def show(title: str, rows: Sequence[results.Result]) -> None:
    """Print rows of one type as a table."""
    frame = results.printed(pd.concat([row.table() for row in rows], ignore_index=True))
    print(f"\n{title}\n{frame.to_string(index=False)}", flush=True)


def main() -> None:
    """Print the probe, then a table for each sort of peer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--product-alone",
        type=int,
        metavar="THREADS",
        help="print the float32 product in FLOP/s and end",
    )
    arguments = parser.parse_args()
    if arguments.product_alone:
        torch.set_num_threads(arguments.product_alone)
        print(library.product_flops("float32", CPU, budget=library.Budget()))
        return
    begin_s = time.perf_counter()
    limits = probe(refresh=True, device="cpu")
    print(f"{limits}\nprobe: {time.perf_counter() - begin_s:.1f} s")
    try:
        stream = native.compile_cpp(STREAM, flags=(*native.CPP_FLAGS, "-fopenmp"))
    except native.NativeError as error:
        print(f"\nno C to compare with: {error}")
    else:
        if limits.latencies:
            show("One dependent load", list(latency_rows(stream, limits)))
        show("Main memory", list(bandwidth_rows(stream, limits)))
        show("One core's multiply-adds", list(peak_rows()))
    rows = list(product_rows(limits))
    show("Matrix products of float32", rows)
    alone = [row.product_flops_per_s for row in rows[-PROCESSES:]]
    spread = (max(alone) - min(alone)) / statistics.median(alone)
    print(f"spread over {PROCESSES} processes: {100 * spread:.1f} % of the median")
    try:
        show("Caches", cache_rows())
    except ModuleNotFoundError:
        print(
            "\npy-cpuinfo is not installed: install the group 'peers' of pyproject.toml to see its "
            "caches beside ours"
        )


if __name__ == "__main__":
    main()
