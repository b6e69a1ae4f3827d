from ._comparing import (
    FALSE_POSITIVE_RATE as FALSE_POSITIVE_RATE,
    Candidate as Candidate,
    ClaimContradicted as ClaimContradicted,
    Comparison as Comparison,
    claim as claim,
    compare as compare,
)
from ._runs import (
    AllocatorSetting as AllocatorSetting,
    CudaTiming as CudaTiming,
    Timing as Timing,
    fixed_threads as fixed_threads,
    measure as measure,
    steady_allocator as steady_allocator,
)
