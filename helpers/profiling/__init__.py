"""Time of a model: by layer and by operator, of any function's kernels, and of a step from its operators alone.

Three questions, three functions. :func:`profile_time` asks where the time of a step goes, :func:`kernel_table` which
kernels a function spends its time in, :func:`estimate_step_time` what a step takes if it is nothing but its operators.

Lesson 07.
"""

from helpers.profiling.estimate import OperatorEstimate, StepTimeEstimate, estimate_step_time
from helpers.profiling.kernels import KernelTable, KernelTime, kernel_table
from helpers.profiling.layers import LayerTime, OperatorTime, TimeProfile, profile_time
from helpers.steps import ModelError

__all__ = [
    "KernelTable", "KernelTime", "LayerTime", "ModelError", "OperatorEstimate", "OperatorTime", "StepTimeEstimate",
    "TimeProfile", "estimate_step_time", "kernel_table", "profile_time",
]  # fmt: skip
