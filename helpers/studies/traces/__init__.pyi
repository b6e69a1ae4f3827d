from ._programs import (
    Passes as Passes,
    Program as Program,
    count_passes as count_passes,
    missing_compiler as missing_compiler,
    write_program as write_program,
)
from ._queue import Queue as Queue, run_queue as run_queue
from ._steps import (
    BATCH as BATCH,
    Network as Network,
    TrainingStep as TrainingStep,
    gelu as gelu,
    load_pixels as load_pixels,
    load_tensor as load_tensor,
    plant_fault as plant_fault,
    product_shapes as product_shapes,
)
from ._tracing import (
    Call as Call,
    idle_share as idle_share,
    own_times as own_times,
    read_calls as read_calls,
    read_kernels as read_kernels,
    takes_float64 as takes_float64,
    trace_step as trace_step,
)
from .figures import (
    draw_queue as draw_queue,
    draw_timeline as draw_timeline,
    explore_launches as explore_launches,
)
