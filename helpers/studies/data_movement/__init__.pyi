from ._channels import model_channels as model_channels, sweep_threads as sweep_threads
from ._copies import measure_copy_costs as measure_copy_costs, measure_links as measure_links
from ._disk import (
    measure_disk as measure_disk,
    revolution_s as revolution_s,
    ring_bytes as ring_bytes,
    sweep_disk_cache as sweep_disk_cache,
)
from ._mapped import measure_mapped_weights as measure_mapped_weights
from ._network import (
    FIBRE_REFRACTIVE_INDEX as FIBRE_REFRACTIVE_INDEX,
    measure_loopback as measure_loopback,
    packet_overhead as packet_overhead,
    shortest_round_trip_s as shortest_round_trip_s,
)
from ._order import (
    compare_alignment as compare_alignment,
    compare_direction as compare_direction,
    compare_order as compare_order,
    lines_touched as lines_touched,
    sweep_stride as sweep_stride,
)
from ._pages import count_faults as count_faults
from .figures._hierarchy import (
    draw_hierarchy as draw_hierarchy,
    draw_inversion as draw_inversion,
    draw_links as draw_links,
)
from .figures._mountains import draw_bandwidths as draw_bandwidths, draw_latencies as draw_latencies
from .figures._processors import (
    MEMORY_SPACES as MEMORY_SPACES,
    SCHEMATIC_DIES as SCHEMATIC_DIES,
    Die as Die,
    MemorySpace as MemorySpace,
    draw_dies as draw_dies,
    draw_memory_spaces as draw_memory_spaces,
)
from .figures._towers import draw_towers as draw_towers
from .figures._window import draw_window as draw_window
