from ._gpus import (
    GPU_WAITS as GPU_WAITS,
    GPU_WAITS_SOURCE as GPU_WAITS_SOURCE,
    GpuWait as GpuWait,
    gpu_limits as gpu_limits,
    gpu_wait as gpu_wait,
)
from ._inversion import memory_inversion as memory_inversion
from ._measuring import Waits as Waits, measure_waits as measure_waits
from .figures import (
    draw_chases as draw_chases,
    draw_gpus as draw_gpus,
    draw_lines as draw_lines,
    draw_orders as draw_orders,
    draw_pages as draw_pages,
    draw_threads as draw_threads,
    draw_waits as draw_waits,
    explore_threads as explore_threads,
)
