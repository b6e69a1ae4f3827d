"""Time of a model: by layer and by operator, of any function's kernels, and of a step from its
operators alone.

Three questions, three functions. :func:`profile_time` asks where the time of a step goes,
:func:`kernel_table` which kernels a function spends its time in, :func:`estimate_step_time` what a
step takes if it is nothing but its operators.

Lesson 11.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
