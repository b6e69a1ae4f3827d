"""Attention without its table of scores: plain, in tiles and back, the bytes of each, and a kernel for GPUs.

:func:`plain` and :func:`in_tiles` compute the same; :func:`stream` has the addresses that each order touches, and
:func:`count_bytes` what of them reaches memory; :func:`interpret` runs the Triton kernel on a CPU;
:data:`FLASH_TABLE` and :data:`FLASH_2_TRAINING` are published measurements. Lesson 21.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
