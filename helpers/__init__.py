"""Helpers of the course on the hardware under deep learning: profiling, memory and timing on CPU and CUDA.

``import helpers`` loads nothing heavy: a name is imported from its module when it is first used.
"""

from helpers import _faces as faces

__version__ = "1.0.0"
__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
