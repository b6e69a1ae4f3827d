"""What a timing means, in one place: measure one function, compare several, claim something about a
time.

**The boundary.** What is timed is a *run*: ``calls_per_run`` calls one after another, from the
moment when host and device have nothing left to do until they have nothing left to do again. The
host's clock is read at both ends, on the CPU and on CUDA alike; on CUDA the device is synchronised
just before each of the two readings. So a run holds Python's own call (tens of nanoseconds), the
launches of the kernels, the kernels, one synchronisation, and the release of what the function
returns. Inside a run nothing is waited for: on CUDA, launching one call overlaps with computing the
one before, as in a training loop. The time of a call is the time of its run over ``calls_per_run``.

**What is left out.** The first call (``cold_s``) and the warm-up runs that find ``calls_per_run``
are in no statistic, but for a warm-up run that alone spends the budget: it counts, because another
one would cost as much again. Python's garbage collector is off during a run; between two runs it is
as it was.

Lesson 00.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
