"""Keeping an accelerator fed: input pipelines, starvation, copies that overlap, fair comparisons,
checkpoints.

A name is imported from its module when it is first used: a loader's worker loads only what its
items need.

Lesson 10.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
