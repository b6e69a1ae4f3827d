from ._algorithms import (
    ALGORITHMS as ALGORITHMS,
    WINOGRAD as WINOGRAD,
    AlgorithmWork as AlgorithmWork,
    count_work as count_work,
    serving as serving,
    why_not as why_not,
)
from ._collecting import (
    ConvolutionTimes as ConvolutionTimes,
    NetworkPlaces as NetworkPlaces,
    collect as collect,
    measure_networks as measure_networks,
    recorded_shapes as recorded_shapes,
)
from ._counts import (
    COUNTINGS as COUNTINGS,
    MULTIPLICATIONS as MULTIPLICATIONS,
    TimePart as TimePart,
    count_terms as count_terms,
    explain_time as explain_time,
    implementation_of as implementation_of,
    predict_times as predict_times,
)
from ._judging import (
    PredictionErrors as PredictionErrors,
    Split as Split,
    errors as errors,
    hold_out_networks as hold_out_networks,
    random_split as random_split,
)
from ._models import (
    MODELS as MODELS,
    TERMS as TERMS,
    Model as Model,
    ProgramFit as ProgramFit,
    fit as fit,
    program_of as program_of,
)
from ._shapes import (
    NETWORKS as NETWORKS,
    ConvolutionShape as ConvolutionShape,
    LayerShape as LayerShape,
    NetworkShapes as NetworkShapes,
    network_shapes as network_shapes,
    random_shapes as random_shapes,
)
from ._waves import (
    TITAN_XP as TITAN_XP,
    BlockCapacity as BlockCapacity,
    Waves as Waves,
    count_blocks as count_blocks,
    count_waves as count_waves,
)
from .figures import (
    draw_patches as draw_patches,
    draw_ratios as draw_ratios,
    draw_waves as draw_waves,
)
