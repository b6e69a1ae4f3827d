from ._blocks import KernelError as KernelError, Matrix as Matrix, Thread as Thread
from ._cache import (
    CacheLevel as CacheLevel,
    CacheRun as CacheRun,
    ChasePoint as ChasePoint,
    LatencyCurve as LatencyCurve,
    LevelCounts as LevelCounts,
    simulate_caches as simulate_caches,
    simulate_latency as simulate_latency,
)
from ._streams import (
    AddressStream as AddressStream,
    join_streams as join_streams,
    pointer_chase as pointer_chase,
    sequential as sequential,
    strided as strided,
)
from ._tiling import (
    Traffic as Traffic,
    count_traffic as count_traffic,
    naive_traffic as naive_traffic,
    tiled_traffic as tiled_traffic,
)
