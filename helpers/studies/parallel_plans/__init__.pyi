from ._blocks import make_blocks as make_blocks
from ._choosing import choose as choose
from ._costs import (
    LayerWork as LayerWork,
    strategy_step as strategy_step,
    strategy_traffic as strategy_traffic,
)
from ._cuts_figures import (
    draw_schedule as draw_schedule,
    draw_step_times as draw_step_times,
    explore_cuts as explore_cuts,
)
from ._execution import execute_strategies as execute_strategies
from ._footprint import Layout as Layout, count_footprint as count_footprint
from ._memory import (
    estimate_footprint as estimate_footprint,
    measure_footprint as measure_footprint,
)
from ._work import layer_work as layer_work, tensor_plan as tensor_plan
from .figures import (
    draw_all_to_all as draw_all_to_all,
    draw_blocks as draw_blocks,
    draw_column_row as draw_column_row,
    draw_mesh as draw_mesh,
    draw_ring as draw_ring,
)
