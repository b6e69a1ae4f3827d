"""Zeros: which weights a pattern removes, what storing the others takes, and a product that skips
the zeros.

:func:`prune` gives a model's copy without the weights nearest to zero, single ones, two of every
four, blocks or whole neurons. :func:`to_csr` and :func:`pack_2_4` store a matrix without its zeros
and count the bytes, and :func:`model_bytes` says by a formula, apart from that, what they should
be. Lesson 15.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
