"""Systolic arrays: simulated register by register, and modelled by closed formulas apart from that.

:func:`simulate` moves every operand one element a cycle and counts what happens;
:func:`model_cycles` and :func:`model_accesses` say what should happen; :func:`gemm_of` and
:func:`simulate_network` turn layers into the products that an array computes. Lesson 14.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
