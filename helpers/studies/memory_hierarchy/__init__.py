"""The wait of a load: by the size of its buffer, by the pages that it is in, and on GPUs.

:func:`measure_waits` chases through buffers of many sizes, also after their lines have been thrown
out of every cache; :data:`GPU_WAITS` are published chases on GPUs, and :func:`gpu_limits` those
that were measured with this library. Lesson 01.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
