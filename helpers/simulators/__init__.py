"""Machines simulated by rules that stand on a page: exact counts, no noise.

``simulate_caches`` counts what an address stream does to a hierarchy of caches, ``miss_curve`` what it would do to
caches of every size, ``simulate_latency`` gives such a machine's latency by working set; ``count_traffic`` runs a
kernel of the reader's, thread by thread, and counts what it reads and writes. Lesson 01.
"""

from helpers.simulators.blocks import KernelError, Matrix, Thread
from helpers.simulators.cache import (
    CacheLevel,
    CacheRun,
    ChasePoint,
    LatencyCurve,
    LevelCounts,
    simulate_caches,
    simulate_latency,
)
from helpers.simulators.reuse import (
    FIRST_TOUCH,
    MissCurve,
    MissPoint,
    ReuseBin,
    ReuseHistogram,
    miss_curve,
    reuse_distances,
    reuse_histogram,
)
from helpers.simulators.streams import (
    AddressStream,
    join_streams,
    matrix_product,
    matrix_walk,
    pointer_chase,
    random_accesses,
    sequential,
    strided,
)
from helpers.simulators.tiling import (
    Traffic,
    count_traffic,
    naive_product,
    naive_traffic,
    tiled_product,
    tiled_traffic,
)

__all__ = [
    "FIRST_TOUCH", "AddressStream", "CacheLevel", "CacheRun", "ChasePoint", "KernelError", "LatencyCurve",
    "LevelCounts", "Matrix", "MissCurve", "MissPoint", "ReuseBin", "ReuseHistogram", "Thread", "Traffic",
    "count_traffic", "join_streams", "matrix_product", "matrix_walk", "miss_curve", "naive_product",
    "naive_traffic", "pointer_chase", "random_accesses", "reuse_distances", "reuse_histogram", "sequential",
    "simulate_caches", "simulate_latency", "strided", "tiled_product", "tiled_traffic",
]  # fmt: skip
