from ._choosing import choose as choose
from ._costs import LayerWork as LayerWork, strategy_step as strategy_step, strategy_traffic as strategy_traffic
from ._execution import execute_strategies as execute_strategies
from ._memory import estimate_footprint as estimate_footprint, measure_footprint as measure_footprint
from ._work import layer_work as layer_work, tensor_plan as tensor_plan
