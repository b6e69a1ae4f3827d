from ._estimate import (
    OperatorEstimate as OperatorEstimate,
    StepTimeEstimate as StepTimeEstimate,
    estimate_step_time as estimate_step_time,
)
from ._kernels import (
    KernelTable as KernelTable,
    KernelTime as KernelTime,
    kernel_table as kernel_table,
)
from ._layers import (
    LayerTime as LayerTime,
    ModelError as ModelError,
    OperatorTime as OperatorTime,
    TimeProfile as TimeProfile,
    profile_time as profile_time,
)
