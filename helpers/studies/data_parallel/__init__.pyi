from ._devices import (
    SleepingLayer as SleepingLayer,
    fastest_step_s as fastest_step_s,
    slow_link as slow_link,
    step_times as step_times,
)
from ._execution import execute as execute, measure_message_overhead as measure_message_overhead
