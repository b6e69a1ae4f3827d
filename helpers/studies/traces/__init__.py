"""Traces of a training step: a step with four faults, its timeline, a GPU's queue of launches, a
compiler's program.

:class:`TrainingStep` is the step, each fault of which can be repaired alone; :func:`trace_step`
returns its calls as PyTorch's profiler wrote them down; :func:`run_queue` models a CPU that
launches kernels and a GPU that runs them; :func:`write_program` returns what Inductor writes for a
function. Lesson 13.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
