"""Helpers of the course on the hardware under deep learning: profiling, memory and timing on CPU
and CUDA.

``import helpers`` loads nothing heavy: a name is imported from its module when it is first used.
"""

from helpers import _faces as faces

__version__ = "1.0.0"
_MOVED = {
    "access": "helpers.studies.data_movement",
    "estimate_training_for": "helpers.studies.beyond_memory:estimate_training_for",
    "feeding": "helpers.studies.input_pipeline",
    "layouts": "helpers.studies.parallel_plans",
    "numbers": "helpers.studies.numbers",
    "profile_layer_alexnet": "helpers.studies.working_set:profile_layer_alexnet",
    "profile_mem": "helpers.studies.working_set:profile_mem",
    "sending": "helpers.studies.sending",
    "simulators": "helpers.studies.simulators",
    "sources": "helpers.studies.sgd_parallelism",
    "sparse": "helpers.studies.sparsity",
    "stack": "helpers.studies.stack",
}
__getattr__, __dir__, __all__ = faces.attach(__name__, __file__, moved=_MOVED)
