from ._collectives import collective as collective
from ._comparing import count_collectives as count_collectives
from ._costs import LayerCost as LayerCost, schedule as schedule
from ._data_parallel import shard as shard
from .pipeline._schedules import (
    PipelineAction as PipelineAction,
    PipelineSchedule as PipelineSchedule,
    bubble_ratio as bubble_ratio,
    bubble_share as bubble_share,
    live_activations as live_activations,
    pipeline_schedule as pipeline_schedule,
)
