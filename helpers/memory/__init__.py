"""The memory of a model: of each layer, at the peak of a step, and how large a batch fits.

Lesson 11.
"""

from helpers import _faces as faces

_MOVED = {
    "LayerWorkingSet": "helpers.studies.working_set:LayerWorkingSet",
    "MemoryProfile": "helpers.studies.working_set:MemoryProfile",
    "MemoryShare": "helpers.studies.working_set:MemoryShare",
    "WorkingSets": "helpers.studies.working_set:WorkingSets",
    "profile_layer_alexnet": "helpers.studies.working_set:profile_layer_alexnet",
    "profile_mem": "helpers.studies.working_set:profile_mem",
    "sum_of_outputs": "helpers.steps:sum_of_outputs",
}
__getattr__, __dir__, __all__ = faces.attach(__name__, __file__, moved=_MOVED)
