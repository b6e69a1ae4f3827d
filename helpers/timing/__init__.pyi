from ._comparing import (
    FALSE_POSITIVE_RATE as FALSE_POSITIVE_RATE,
    Candidate as Candidate,
    ClaimContradicted as ClaimContradicted,
    Comparison as Comparison,
    claim as claim,
    compare as compare,
)
from ._measuring import CudaTiming as CudaTiming, Timing as Timing, measure as measure
from ._runs import (
    AllocatorSetting as AllocatorSetting,
    fixed_threads as fixed_threads,
    steady_allocator as steady_allocator,
)
