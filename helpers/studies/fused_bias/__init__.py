"""The fused bias: why adding a bias cost more than the convolution before it, in bytes, models and measurements.

Variants of one layer behind :func:`layer`, one-pass kernels of our own (:func:`bias_relu`, :func:`bias_relu_`,
:func:`bias_gradient`, :func:`relu_bias_backward`, :func:`bias_relu_pool`), the bytes of each (:func:`traffic`), the
time that a machine's limits give them (:func:`model_time`), and a net like the story's (:class:`Convnet`). Lesson 12.
"""

from helpers.studies.fused_bias.compilers import CompilerTime, CompilerTimes, measure_compilers
from helpers.studies.fused_bias.convnet import RUNGS, Convnet, Ladder, RungTime, measure_ladder
from helpers.studies.fused_bias.convolution import ALGORITHMS, conv_bias_relu_pool
from helpers.studies.fused_bias.counting import (
    KernelModel,
    KernelTraffic,
    RatioModel,
    Traffic,
    TrafficModel,
    bandwidth_at,
    model_ratio,
    model_time,
    traffic,
)
from helpers.studies.fused_bias.measuring import (
    KernelComparison,
    KernelComparisons,
    LayerTime,
    LayerTimes,
    StoryFigures,
    StoryRow,
    measure_kernels,
    measure_layer,
    measure_reductions,
    measure_story,
)
from helpers.studies.fused_bias.operators import (
    bias_gradient,
    bias_relu,
    bias_relu_,
    bias_relu_pool,
    relu_bias_backward,
)
from helpers.studies.fused_bias.reductions import REDUCTIONS, reduction
from helpers.studies.fused_bias.variants import VARIANTS, Gradients, gradients, layer, missing

__all__ = [
    "ALGORITHMS", "REDUCTIONS", "RUNGS", "VARIANTS", "CompilerTime", "CompilerTimes", "Convnet", "Gradients",
    "KernelComparison", "KernelComparisons", "KernelModel", "KernelTraffic", "Ladder", "LayerTime", "LayerTimes",
    "RatioModel", "RungTime", "StoryFigures", "StoryRow", "Traffic", "TrafficModel", "bandwidth_at", "bias_gradient",
    "bias_relu", "bias_relu_", "bias_relu_pool", "conv_bias_relu_pool", "gradients", "layer", "measure_compilers",
    "measure_kernels", "measure_ladder", "measure_layer", "measure_reductions", "measure_story", "missing",
    "model_ratio", "model_time", "reduction", "relu_bias_backward", "traffic",
]  # fmt: skip
