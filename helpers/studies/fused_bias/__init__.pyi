from ._compilers import (
    CompilerTime as CompilerTime,
    CompilerTimes as CompilerTimes,
    measure_compilers as measure_compilers,
)
from ._convnet import (
    RUNGS as RUNGS,
    Convnet as Convnet,
    Ladder as Ladder,
    RungTime as RungTime,
    default_rungs as default_rungs,
    measure_ladder as measure_ladder,
)
from ._counting import (
    KernelModel as KernelModel,
    KernelTraffic as KernelTraffic,
    TrafficModel as TrafficModel,
    VariantTraffic as VariantTraffic,
    bandwidth_at as bandwidth_at,
    model_time as model_time,
    traffic as traffic,
)
from ._measuring import (
    KernelComparison as KernelComparison,
    KernelComparisons as KernelComparisons,
    StoryFigures as StoryFigures,
    StoryRow as StoryRow,
    measure_kernels as measure_kernels,
    measure_layer as measure_layer,
    measure_reductions as measure_reductions,
    measure_story as measure_story,
)
from ._operators import (
    ALGORITHMS as ALGORITHMS,
    bias_gradient as bias_gradient,
    bias_relu as bias_relu,
    bias_relu_ as bias_relu_,
    bias_relu_pool as bias_relu_pool,
    conv_bias_relu_pool as conv_bias_relu_pool,
    relu_bias_backward as relu_bias_backward,
)
from ._variants import (
    REDUCTIONS as REDUCTIONS,
    VARIANTS as VARIANTS,
    Gradients as Gradients,
    gradients as gradients,
    layer as layer,
    missing as missing,
    reduction as reduction,
)
from .figures import (
    Kernel as Kernel,
    draw_busy as draw_busy,
    draw_gains as draw_gains,
    draw_kernels as draw_kernels,
    explore_gain as explore_gain,
    pass_frames as pass_frames,
)
