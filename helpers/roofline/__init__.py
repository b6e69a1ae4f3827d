"""A workload on a machine's measured limits: its attainable rate, its bound, and its time.

:func:`model` works from two numbers of the workload and the limits that
:func:`helpers.hardware.probe` measured, and measures nothing. :func:`roofline` times a model's
layers, each beside its modelled time.

Lesson 02.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
