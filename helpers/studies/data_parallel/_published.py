"""What others have measured of data parallel training
(https://github.com/huggingface/transformers/issues/9371), and links that are on sale.
"""

from __future__ import annotations

from helpers.links import Link
from helpers.results import Record


class TwoGpuRun(Record):
    """A step of GPT-2 with ``parameters`` on one RTX 3090 and on two that exchange gradients
    without NVLink.

    ``tokens`` are those of each GPU in a step, the times are seconds per step. Lesson 05.
    """

    parameters: float
    tokens: int
    one_gpu_s: float
    two_gpus_s: float

    @property
    def exchange_s(self) -> float:
        """The seconds that the second GPU adds to a step. Lesson 05."""
        return self.two_gpus_s - self.one_gpu_s

    @property
    def times_one(self) -> float:
        """How many times as many tokens per second two GPUs learn from as one. Lesson 05."""
        return 2 * self.one_gpu_s / self.two_gpus_s


TWO_GPUS_SOURCE = "transformers, issue 9371 (2021)"
TWO_GPUS = (
    TwoGpuRun(124e6, 512, 48.9e-3, 150.1e-3),
    TwoGpuRun(124e6, 2048, 145.2e-3, 246.0e-3),
    TwoGpuRun(355e6, 512, 123.5e-3, 375.0e-3),
    TwoGpuRun(774e6, 512, 246.5e-3, 761.1e-3),
)


class PublishedLink(Record):
    """A link that is on sale: one direction of it, without latency, and who says so. Lesson 05."""

    link: Link
    source: str


# One direction each. Of PCI Express 128 of 130 bits are data; NVLink is stated for both directions
# together.
PUBLISHED_LINKS = {
    name: PublishedLink(Link(bytes_per_s), source)
    for name, bytes_per_s, source in (
        ("Ethernet, 100 Gbit/s", 100e9 / 8, "IEEE 802.3 (100GBASE)"),
        (
            "PCI Express 4.0 x16",
            16 * 16e9 * 128 / 130 / 8,
            "PCI-SIG, specification 4.0: 16 GT/s a lane",
        ),
        ("InfiniBand NDR", 400e9 / 8, "InfiniBand Trade Association: 400 Gbit/s on 4 lanes"),
        (
            "PCI Express 5.0 x16",
            16 * 32e9 * 128 / 130 / 8,
            "PCI-SIG, specification 5.0: 32 GT/s a lane",
        ),
        (
            "NVLink 3 (of an A100)",
            600e9 / 2,
            "NVIDIA, Ampere Architecture In-Depth: half of 600 GB/s",
        ),
        (
            "NVLink 4 (of an H100)",
            900e9 / 2,
            "NVIDIA, Hopper Architecture In-Depth: half of 900 GB/s",
        ),
    )
}
