from .choosing import choose as choose
from .costs import LayerWork as LayerWork, strategy_step as strategy_step, strategy_traffic as strategy_traffic
from .execution import execute_strategies as execute_strategies, train_alone as train_alone
from .memory import estimate_footprint as estimate_footprint, measure_footprint as measure_footprint
from .work import layer_work as layer_work, tensor_plan as tensor_plan
