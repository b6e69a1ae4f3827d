from ._devices import (
    SleepingLayer as SleepingLayer,
    fastest_step_s as fastest_step_s,
    slow_link as slow_link,
    step_times as step_times,
)
from ._execution import execute as execute, measure_message_overhead as measure_message_overhead
from ._modelling import ddp_step as ddp_step, ring_frames as ring_frames
from ._published import (
    PUBLISHED_LINKS as PUBLISHED_LINKS,
    TWO_GPUS as TWO_GPUS,
    TWO_GPUS_SOURCE as TWO_GPUS_SOURCE,
    TwoGpuRun as TwoGpuRun,
)
from ._sleeping_steps import (
    RankSteps as RankSteps,
    SimulatedStep as SimulatedStep,
    fastest_step as fastest_step,
    record_steps as record_steps,
)
from .figures import (
    draw_sharding as draw_sharding,
    draw_step as draw_step,
    explore_link as explore_link,
)
