"""The memory of a model: per layer, at the peak of a step, and how large a batch fits.

Lesson 07.
"""

from __future__ import annotations

from helpers.memory.peak import AliveGroup, PeakEstimate, PeakMeasurement, estimate_peak_memory, measure_peak_memory
from helpers.memory.steps import ModelError, sum_of_outputs
from helpers.memory.timeline import CATEGORIES, Event, LiveTensor, Timeline
