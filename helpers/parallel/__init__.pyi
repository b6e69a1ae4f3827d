from ._collectives import collective as collective
from ._costs import LayerCost as LayerCost, ddp_step as ddp_step, schedule as schedule
from ._counting import count_collectives as count_collectives
from ._data_parallel import (
    average_gradients as average_gradients,
    equal_to_single_process as equal_to_single_process,
    shard as shard,
)
from ._devices import (
    SleepingLayer as SleepingLayer,
    fastest_step_s as fastest_step_s,
    slow_link as slow_link,
    step_times as step_times,
)
from ._execution import execute as execute, measure_message_overhead as measure_message_overhead
from ._experts import (
    Experts as Experts,
    compare_experts as compare_experts,
    exchange_of as exchange_of,
    model_expert_traffic as model_expert_traffic,
    route as route,
)
from ._footprint import Layout as Layout, count_footprint as count_footprint
from ._ring import (
    compare_ring_attention as compare_ring_attention,
    merge_blocks as merge_blocks,
    model_ring_traffic as model_ring_traffic,
    ring_attention as ring_attention,
    split_sequence as split_sequence,
)
from ._runtime import (
    FIRST_MACHINE as FIRST_MACHINE,
    Link as Link,
    RankError as RankError,
    RankOutput as RankOutput,
    Ranks as Ranks,
    RankState as RankState,
    Recorder as Recorder,
    ScriptRun as ScriptRun,
    TorchrunError as TorchrunError,
    available_links as available_links,
    joined as joined,
    on_two_machines as on_two_machines,
    torchrun as torchrun,
)
from ._tensor_parallel import (
    FlopCount as FlopCount,
    compare_tensor_parallel as compare_tensor_parallel,
    make_mesh as make_mesh,
    model_tensor_traffic as model_tensor_traffic,
    split_layers as split_layers,
)
from ._towers import (
    AlexNetTower as AlexNetTower,
    compare_towers as compare_towers,
    gather_towers as gather_towers,
    model_towers as model_towers,
)
from .pipeline._schedules import (
    PipelineAction as PipelineAction,
    PipelineSchedule as PipelineSchedule,
    bubble_ratio as bubble_ratio,
    bubble_share as bubble_share,
    live_activations as live_activations,
    pipeline_schedule as pipeline_schedule,
)
from .pipeline._stages import (
    compare_with_one_process as compare_with_one_process,
    execute_schedule as execute_schedule,
    sleeping_net as sleeping_net,
)
