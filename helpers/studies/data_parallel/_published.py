"""What others have measured of data parallel training:
https://github.com/huggingface/transformers/issues/9371.
"""

from __future__ import annotations

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
