"""The memory of a model: of each layer, at the peak of a step, and how large a batch fits.

Lesson 07.
"""

from __future__ import annotations

from helpers.memory.capacity import Fit, LargestBatch, fits, max_batch_size
from helpers.memory.layers import (
    LayerMemory,
    LayerMemoryProfile,
    LayerWorkingSet,
    MemoryProfile,
    MemoryShare,
    WorkingSets,
    profile_layer_alexnet,
    profile_layer_mem,
    profile_mem,
)
from helpers.memory.peak import AliveGroup, PeakEstimate, PeakMeasurement, estimate_peak_memory, measure_peak_memory
from helpers.memory.timeline import CATEGORIES, Event, LiveTensor, Timeline
from helpers.steps import ModelError, sum_of_outputs

__all__ = [
    "CATEGORIES", "AliveGroup", "Event", "Fit", "LargestBatch", "LayerMemory", "LayerMemoryProfile", "LayerWorkingSet",
    "LiveTensor", "MemoryProfile", "MemoryShare", "ModelError", "PeakEstimate", "PeakMeasurement", "Timeline",
    "WorkingSets", "estimate_peak_memory", "fits", "max_batch_size", "measure_peak_memory", "profile_layer_alexnet",
    "profile_layer_mem", "profile_mem", "sum_of_outputs",
]  # fmt: skip
