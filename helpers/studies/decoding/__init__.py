"""Decoding: a language model that writes one token at a time; bytes and FLOPs of a step, guesses
ahead, and serving.

:func:`count_step` counts what a step reads and computes for a :class:`Config`; :func:`generate` and
:func:`speculate` write with a model; :func:`count_pages` and :func:`schedule` count what serving
many texts takes; :data:`GPT_FAST` and :data:`PAGED_ATTENTION` are published measurements. Lesson
22.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
