"""A CPU that launches kernels into a queue and a GPU that runs them: a model without a GPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from helpers.checks import members, number, numbers, whole_number
from helpers.results import Record


class Queue(Record):
    """When the CPU launched each kernel and when the GPU ran it: (start, end) in microseconds each.

    ``idle_share`` is the part of the time, from the first launch to the end of the last kernel, in
    which no kernel runs. Lesson 13.
    """

    launches_us: tuple[tuple[float, float], ...]
    kernels_us: tuple[tuple[float, float], ...]
    idle_share: float


def run_queue(
    kernels_us: Sequence[float], *, launch_us: float, waits: Collection[int] = ()
) -> Queue:
    """Return the :class:`Queue` of kernels that take ``kernels_us`` each, launched one after the
    other.

    A launch takes ``launch_us``. A kernel starts when it is launched and the kernel before it has
    ended. Before it launches a kernel whose number is in ``waits``, the CPU waits until the GPU has
    run all earlier ones, as ``.item()`` does. Handing the value to Python takes no time here.
    Raises ValueError for no kernels and for a time that is not above 0.

    >>> round(run_queue([2.0] * 100, launch_us=5).idle_share, 2)
    0.6

    Lesson 13.
    """
    lengths = numbers("kernels_us", kernels_us, above=0)
    if not lengths:
        raise ValueError("no kernels; give the microseconds of at least one")
    launch = number("launch_us", launch_us, above=0)
    waiting = {
        whole_number("waits", wait, at_least=0)
        for wait in members("waits", waits, "numbers of kernels")
    }
    cpu = gpu = 0.0
    launches, kernels = [], []
    for index, length in enumerate(lengths):
        begin = max(cpu, gpu) if index in waiting else cpu
        cpu = begin + launch
        start = max(cpu, gpu)
        gpu = start + length
        launches.append((begin, cpu))
        kernels.append((start, gpu))
    return Queue(tuple(launches), tuple(kernels), 1 - sum(lengths) / gpu)
