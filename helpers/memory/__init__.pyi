from ._layers import (
    LayerMemory as LayerMemory,
    LayerMemoryProfile as LayerMemoryProfile,
    LayerWorkingSet as LayerWorkingSet,
    MemoryProfile as MemoryProfile,
    MemoryShare as MemoryShare,
    WorkingSets as WorkingSets,
    profile_layer_alexnet as profile_layer_alexnet,
    profile_layer_mem as profile_layer_mem,
    profile_mem as profile_mem,
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
