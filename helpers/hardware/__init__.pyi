from .card import Cache as Cache, Gpu as Gpu, MachineCard as MachineCard
from .devices import (
    Device as Device,
    device as device,
    known_device as known_device,
    memory_inversion as memory_inversion,
    published_errors as published_errors,
    ridge_flops_per_byte as ridge_flops_per_byte,
)
from .history import (
    doubling_time as doubling_time,
    energy_cost as energy_cost,
    energy_costs as energy_costs,
    inference_energy as inference_energy,
    multiplier_exponent as multiplier_exponent,
    processors as processors,
    training_compute as training_compute,
)
from .limits.bandwidth import compiled_triad as compiled_triad
from .limits.levels import find_change_points as find_change_points
from .limits.probing import probe as probe
from .limits.results import (
    BandwidthPoint as BandwidthPoint,
    LatencyPoint as LatencyPoint,
    MachineLimits as MachineLimits,
    MemoryLevel as MemoryLevel,
)
from .machine import machine_card as machine_card
