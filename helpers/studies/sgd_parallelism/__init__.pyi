from ._ensembles import (
    largest_difference as largest_difference,
    make_ensemble as make_ensemble,
    measure_overheads as measure_overheads,
    sweep_crossover as sweep_crossover,
    train_in_loop as train_in_loop,
    train_in_processes as train_in_processes,
    train_stacked as train_stacked,
)
from ._problems import least_squares as least_squares
from ._search import (
    NoisePoint as NoisePoint,
    RateSearch as RateSearch,
    follow_noise as follow_noise,
    search_rates as search_rates,
)
from ._servers import (
    count_lost_updates as count_lost_updates,
    interleave_additions as interleave_additions,
    run_hogwild as run_hogwild,
    run_server as run_server,
    simulate_server as simulate_server,
)
from ._sharing import SharingTimes as SharingTimes, measure_sharing as measure_sharing
from ._stacking import stack_weights as stack_weights
from ._updates import (
    descend_quadratic as descend_quadratic,
    growth_factor as growth_factor,
    stability_limit as stability_limit,
    sweep_local as sweep_local,
    train_local as train_local,
    train_stale as train_stale,
)
from ._within_layer import (
    WAYS as WAYS,
    combine as combine,
    count_lanes as count_lanes,
    lane_calls as lane_calls,
    model_split as model_split,
    partial_products as partial_products,
    sweep_threads as sweep_threads,
)
from .figures._batches import draw_rounds as draw_rounds, draw_updates as draw_updates
from .figures._cuts import draw_cut as draw_cut, explore_sharing as explore_sharing
from .figures._results import (
    draw_crossover as draw_crossover,
    draw_limits as draw_limits,
    draw_speedup as draw_speedup,
    draw_split as draw_split,
)
from .figures._schedules import draw_sources as draw_sources
from .figures._tasks import draw_tasks as draw_tasks
