from ._card import Cache as Cache, Gpu as Gpu, MachineCard as MachineCard
from ._devices import (
    Device as Device,
    device as device,
    known_device as known_device,
    ridge_flops_per_byte as ridge_flops_per_byte,
)
from ._machine import machine_card as machine_card
from .limits._bandwidth import compiled_triad as compiled_triad
from .limits._chase import (
    chase_buffer as chase_buffer,
    flush_caches as flush_caches,
    huge_pages as huge_pages,
)
from .limits._levels import find_change_points as find_change_points
from .limits._multiply_adds import vector_flops as vector_flops
from .limits._probe import probe as probe
from .limits._results import (
    BandwidthPoint as BandwidthPoint,
    LatencyPoint as LatencyPoint,
    MachineLimits as MachineLimits,
    MemoryLevel as MemoryLevel,
)
