"""Checks of the reader's own functions: known inputs, and a machine with a made-up clock.

The checks stand in the notebook, one call a line: what is asked (the *goal*), the arguments, what
must come back, and what a common mistake would give instead. :meth:`Checks.report` ends the checks
of an exercise, :meth:`Checks.settle` those of a cell in a lesson, which goes on with the course's
version where the reader's does not reach its goals.

Lesson 00.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
