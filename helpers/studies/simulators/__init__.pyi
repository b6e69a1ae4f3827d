from . import systolic as systolic
from ._cache import (
    AddressStream as AddressStream,
    CacheLevel as CacheLevel,
    CacheRun as CacheRun,
    ChasePoint as ChasePoint,
    LatencyCurve as LatencyCurve,
    LevelCounts as LevelCounts,
    join_streams as join_streams,
    pointer_chase as pointer_chase,
    sequential as sequential,
    simulate_caches as simulate_caches,
    simulate_latency as simulate_latency,
    strided as strided,
)
from ._tiling import (
    KernelError as KernelError,
    Matrix as Matrix,
    ProductTraffic as ProductTraffic,
    Thread as Thread,
    count_traffic as count_traffic,
    naive_traffic as naive_traffic,
    tiled_traffic as tiled_traffic,
)
