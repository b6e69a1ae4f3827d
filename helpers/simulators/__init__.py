"""Machines simulated by rules that stand on a page: exact counts, no noise.

``simulate_caches`` counts what an address stream does to a hierarchy of caches, ``simulate_latency`` gives such a
machine's latency by working set; ``count_traffic`` runs a kernel of the reader's, thread by thread, and counts what it
reads and writes. Lesson 01.
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
from helpers.simulators.streams import AddressStream, join_streams, pointer_chase, sequential, strided
from helpers.simulators.tiling import Traffic, count_traffic, naive_traffic, tiled_traffic

__all__ = [
    "AddressStream", "CacheLevel", "CacheRun", "ChasePoint", "KernelError", "LatencyCurve", "LevelCounts", "Matrix",
    "Thread", "Traffic", "count_traffic", "join_streams", "naive_traffic", "pointer_chase", "sequential",
    "simulate_caches", "simulate_latency", "strided", "tiled_traffic",
]  # fmt: skip
