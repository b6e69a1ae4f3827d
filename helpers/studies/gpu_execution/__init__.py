"""A GPU that runs a kernel: warps, sectors and passes of their requests, blocks that fit, waits
that are hidden.

:func:`sectors` and :func:`bank_passes` count one request of a warp; :func:`launch` runs a reader's
own function on simulated warps and counts all of theirs; :func:`occupancy` says how many blocks fit
on a multiprocessor, by NVIDIA's rules; :func:`run_scheduler` hides the wait of a warp behind other
warps. No GPU is needed. Lesson 03.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
