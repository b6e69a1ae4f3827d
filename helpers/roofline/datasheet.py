"""What a maker promises: the two numbers of a datasheet that the measured roofs are drawn beside."""

from __future__ import annotations

import math
from dataclasses import dataclass

from helpers.hardware.devices import Device, require_device
from helpers.results import Result


@dataclass(frozen=True)
class DatasheetRoof(Result):
    """A device's promised peak in ``dtype`` (dense, without sparsity) and memory bandwidth. Lesson 02.

    Raises ValueError for a number that is not above 0 and finite.
    """

    name: str
    dtype: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        for field in ("peak_flops_per_s", "bandwidth_bytes_per_s"):
            value = getattr(self, field)
            if value is None or not 0 < value < math.inf:
                raise ValueError(f"the {field} of {self.name} must be a number above 0, got {value!r}")

    @property
    def ridge_flops_per_byte(self) -> float:
        """Where the promised slope and the promised peak meet."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s


def datasheet_roof(device: Device, dtype: str = "float32", *, unit: str | None = None) -> DatasheetRoof:
    """Return the roofs that the table of devices has for ``device``: dense peak in ``dtype``, memory bandwidth.

    ``unit`` is "vector" or "matrix", by default whichever is faster. Raises TypeError for what is no device, ValueError
    where the table does not know the peak or the bandwidth, with the dtypes whose dense peak it does know. Lesson 02.
    """
    require_device(device)
    peak = device.peak(dtype, unit=unit)
    if peak is None or peak.dense_flops_per_s is None:
        known = list(dict.fromkeys(row.dtype for row in device.peaks if row.dense_flops_per_s is not None))
        raise ValueError(
            f"the dense peak of {device.name} in {dtype}{f' on its {unit} units' if unit else ''} is unknown; known "
            f"are {', '.join(known) or 'none'}"
        )
    if device.memory_bandwidth_bytes_per_s is None:
        raise ValueError(f"the memory bandwidth of {device.name} is unknown, so its datasheet gives no slope")
    return DatasheetRoof(device.name, dtype, peak.dense_flops_per_s, device.memory_bandwidth_bytes_per_s)
