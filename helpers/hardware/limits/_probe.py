"""Measure the limits of a device once, and keep them. Lesson 01."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers import storage
from helpers.checks import boolean
from helpers.hardware.limits._results import MachineLimits

if TYPE_CHECKING:
    import torch

_VERSION = 4


def probe(refresh: bool = False, *, device: str | torch.device | None = None) -> MachineLimits:
    """Return the measured limits of ``device`` (by default CUDA if there is one) with PyTorch's
    present threads.

    Measured once, in some 7 seconds and under 20 on a quiet machine, and then read from the cache,
    as long as the machine, the number of threads (``torch.get_num_threads()``) and the versions
    stay; ``refresh=True`` measures again. A cache that is damaged or from elsewhere is measured
    again, and a line says so.

    Latency is a chase through a random cycle of lines (:mod:`~helpers.hardware.limits._chase` says
    what it holds), bandwidth that of PyTorch's own operators
    (:mod:`~helpers.hardware.limits._bandwidth`), the peak of a CPU that of the cores' own
    multiply-adds (:mod:`~helpers.hardware.limits._multiply_adds`). Without a C++ compiler, and for
    a type that the cores have no multiply-adds for, the peak is the faster of the library's product
    and convolution, and a line of ``notes`` says so; the peak of a GPU is the library's product
    (:mod:`~helpers.hardware.limits._library`).

    Each is the fastest of many runs, in two passes that lie apart in time; two more where the two
    differ by over a tenth. What still does not repeat is named in ``unstable``. A cache is what the
    system lists, else what :func:`helpers.hardware.find_change_points` reads off the latency curve.
    Where the bandwidth shows that the last cache holds less than half of that, ``holds_bytes`` is
    what it shows. What cannot be measured is None (or missing from ``peak_flops`` and
    ``product_flops``), and a line of ``notes`` says why; nothing is guessed.

    Raises ValueError for a device that is neither the CPU nor CUDA, TypeError for a ``refresh``
    that is no bool, RuntimeError for CUDA where there is none, OSError when the cache folder cannot
    be written.

    >>> limits = probe(device="cpu")  # doctest: +SKIP
    >>> limits.peak_flops["float32"] > 1e9  # FLOP/s  # doctest: +SKIP
    True

    Lesson 01.
    """
    boolean("refresh", refresh, "give True or False, and a device by its name: probe(device='cpu')")
    # and below what imports it: the doctor reads a machine's card where torch does not even load
    import torch

    from helpers.hardware.limits import _cpu as probe_cpu, _cuda as probe_cuda
    from helpers.timing._runs import chosen_device

    chosen = chosen_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    threads = torch.get_num_threads()
    name = f"limits-{str(chosen).replace(':', '-')}-{threads}-threads"
    key = f"{storage.machine_key()}; {chosen}; {threads} threads; probe {_VERSION}"
    cached_limits = None if refresh else storage.load_cached(name, MachineLimits, key=key)
    if cached_limits is not None:
        return cached_limits
    limits = (
        probe_cpu.measure_cpu(probe_cpu.ProbePlan())
        if chosen.type == "cpu"
        else probe_cuda.measure_cuda(chosen, probe_cuda.cuda_plan())
    )
    storage.store(name, limits, key=key)
    return limits
