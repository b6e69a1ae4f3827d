from ._layers import (
    LayerMemory as LayerMemory,
    LayerMemoryProfile as LayerMemoryProfile,
    profile_layer_mem as profile_layer_mem,
)
from ._peak import (
    AliveGroup as AliveGroup,
    Fit as Fit,
    LargestBatch as LargestBatch,
    ModelError as ModelError,
    PeakEstimate as PeakEstimate,
    PeakMeasurement as PeakMeasurement,
    estimate_peak_memory as estimate_peak_memory,
    fits as fits,
    max_batch_size as max_batch_size,
    measure_peak_memory as measure_peak_memory,
)
from ._timeline import (
    CATEGORIES as CATEGORIES,
    Event as Event,
    LiveTensor as LiveTensor,
    MemoryTimeline as MemoryTimeline,
)
