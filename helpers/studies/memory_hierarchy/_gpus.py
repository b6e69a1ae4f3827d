"""The wait of a load on GPUs: published chases as data with their source, and those measured with
this library.
"""

from __future__ import annotations

import torch

from helpers import hardware
from helpers.results import Record
from helpers.studies import sending


class GpuWait(Record):
    """A chase that one thread ran on a GPU: the cycles of a load from its L1, its L2 and its
    memory, at ``clock_hz``.

    ``device`` is the GPU that ran it, ``chip`` the chip in it, which other GPUs have as well, also
    with other memory. Memory is that of a buffer of 1 GB. The source measured seconds and published
    them times ``clock_hz``, the clock that the GPU's driver stated under load, so the seconds are
    what was measured, and they hold for ``device``.
    """

    device: str
    chip: str
    l1_cycles: float
    l2_cycles: float
    memory_cycles: float
    clock_hz: float

    @property
    def l1_s(self) -> float:
        """Seconds of a load from L1."""
        return self.l1_cycles / self.clock_hz

    @property
    def l2_s(self) -> float:
        """Seconds of a load from L2."""
        return self.l2_cycles / self.clock_hz

    @property
    def memory_s(self) -> float:
        """Seconds of a load from the GPU's memory."""
        return self.memory_cycles / self.clock_hz


GPU_WAITS_SOURCE = (
    "RRZE, gpu-benches, gpu-latency (github.com/RRZE-HPC/gpu-benches, commit 1038c5d): one thread "
    "chases through lines of 128 bytes; the rows at 61, 2,050 and about 1,000,000 KiB. For "
    "example, the A40's last is 2,598.0 ms for 8,124,373 loads at 1,740 MHz"
)
GPU_WAITS = (
    GpuWait("V100", "GV100", 28.2, 212.1, 434.0, 1380e6),
    GpuWait("A100 80 GB", "GA100", 33.4, 205.5, 552.3, 1410e6),
    GpuWait("A40", "GA102", 33.4, 250.4, 556.4, 1740e6),
    GpuWait("L40", "AD102", 34.5, 273.6, 624.8, 2490e6),
    GpuWait("GH200", "GH100", 32.5, 280.4, 687.7, 1980e6),
)


def gpu_wait(chip: str) -> GpuWait:
    """Return the published chase on ``chip``, such as "GA102", the chip of an RTX 3090; ValueError
    for another.

    Lesson 01.
    """
    for wait in GPU_WAITS:
        if wait.chip == chip:
            return wait
    raise ValueError(
        f"no chase on {chip!r} is published here; there is one on "
        f"{', '.join(w.chip for w in GPU_WAITS)}"
    )


def gpu_limits() -> dict[str, hardware.MachineLimits]:
    """Return the limits of this machine's GPU, measured now, and of those that readers have sent
    in, by their names.

    It is empty where there is neither; a GPU whose chase could not be compiled is left out. Lesson
    01.
    """
    sent_limits = {
        f"{records.device} (sent in)": recording.result("limits")
        for records in sending.gpus()
        for recording in records.recordings
        if recording.lesson == "01"
    }
    local_limits = (
        {f"{torch.cuda.get_device_name()} (here)": hardware.probe(device="cuda")}
        if torch.cuda.is_available()
        else {}
    )
    all_limits = {**local_limits, **sent_limits}
    return {
        name: limits
        for name, limits in all_limits.items()
        if isinstance(limits, hardware.MachineLimits) and limits.latencies
    }
