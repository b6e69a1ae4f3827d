"""A function in a fresh process with a limit on its memory and its time: the only place that limits
anything.

The function may be defined in a notebook's cell or in a script without a ``__main__`` guard: it is
sent by value (cloudpickle), and the caller's main program is never run again. Whatever becomes of
it, one :class:`Outcome` tells.

What the memory limit counts: on Linux the private memory that the process and its threads may write
to, touched or not (``VmData`` of ``/proc/self/status``, RLIMIT_DATA in setrlimit(2)), over what the
process held once the function was loaded, PyTorch imported if the caller has imported it, and
PyTorch's threads running. Allocating past the limit fails at once, as on a full machine. Files
mapped read-only or shared, shared memory, and a GPU's own memory are not counted; a process that
the function starts has the same limit for itself. Where the system cannot limit (macOS, Windows),
the caller watches the resident memory with psutil and ends the process that exceeds it.

Lesson 12.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
