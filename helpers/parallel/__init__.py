"""Training by several processes: collectives, and the data, tensor, pipeline, sequence and expert
kinds of parallelism.

A name is imported from its module when it is first used: a rank loads only what it runs.

Lesson 05.
"""

from helpers import _faces as faces

_MOVED = {
    "Link": "helpers.links:Link",
    "RankError": "helpers.ranks:RankError",
    "Ranks": "helpers.ranks:Ranks",
    "torchrun": "helpers.ranks:torchrun",
    "SleepingLayer": "helpers.studies.data_parallel:SleepingLayer",
    "fastest_step_s": "helpers.studies.data_parallel:fastest_step_s",
    "slow_link": "helpers.studies.data_parallel:slow_link",
    "step_times": "helpers.studies.data_parallel:step_times",
    "ddp_step": "helpers.studies.data_parallel:ddp_step",
    "ring_frames": "helpers.studies.data_parallel:ring_frames",
    "execute": "helpers.studies.data_parallel:execute",
    "measure_message_overhead": "helpers.studies.data_parallel:measure_message_overhead",
}
__getattr__, __dir__, __all__ = faces.attach(__name__, __file__, moved=_MOVED)
