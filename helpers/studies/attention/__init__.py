"""Attention without its table of scores: in tiles, the bytes of each order, and a kernel for GPUs.

:func:`in_tiles` computes it; :func:`stream` has the addresses that an order touches, and
:func:`count_bytes` what of them reaches memory; :func:`interpret` runs the Triton kernel on a CPU;
:data:`FLASH_TABLE` and :data:`FLASH_2_TRAINING` are published measurements. Lesson 21.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
