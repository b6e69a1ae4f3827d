from ._contractions import (
    ContractionCount as ContractionCount,
    ContractionCounts as ContractionCounts,
    cheapest_contraction as cheapest_contraction,
    padded as padded,
)
from ._epochs import EpochTimes as EpochTimes, time_epochs as time_epochs
from ._measuring import (
    ReplicaLadder as ReplicaLadder,
    default_ways as default_ways,
    measure_ladder as measure_ladder,
    measure_small_nets as measure_small_nets,
)
from ._mistakes import (
    change_fits as change_fits,
    is_changed as is_changed,
    median_losses as median_losses,
)
from ._problem import (
    FitProblem as FitProblem,
    Observable as Observable,
    make_problem as make_problem,
)
from ._training import WAYS as WAYS, ReplicaRun as ReplicaRun, train as train
from .figures import (
    draw_changes as draw_changes,
    draw_clipping as draw_clipping,
    draw_couplings as draw_couplings,
    draw_epochs as draw_epochs,
    draw_ladder as draw_ladder,
    draw_replicas as draw_replicas,
)
