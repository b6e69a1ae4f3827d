"""Published measurements of attention, as data with their source. Lesson 21."""

from __future__ import annotations

from helpers.results import Record


class FlashRow(Record):
    """A column of the table in FlashAttention's figure 2: forward and backward of attention on one
    A100.
    """

    attention: str
    flops: float
    memory_bytes: float
    time_s: float


class TrainingRate(Record):
    """A rate of training in FlashAttention-2's table 1; ``formula`` is the paper's, which counts
    all scores.
    """

    model: str
    parameters: float
    layers: int
    width: int
    tokens: int
    flops_per_s: float
    peak_share: float


FLASH_SOURCE = (
    "Dao and others, FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness, "
    "2022 (arXiv 2205.14135), figure 2 left: GPT-2 medium, 1,024 tokens, heads of 64, 16 heads, "
    "batch 64, an A100"
)
FLASH_TABLE = (
    FlashRow("standard", 66.6e9, 40.3e9, 41.7e-3),
    FlashRow("FlashAttention", 75.2e9, 4.4e9, 7.3e-3),
)

FLASH_2_SOURCE = (
    "Dao, FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning, 2023 "
    "(arXiv 2307.08691), table 1: training on 8 A100"
)
FLASH_2_TRAINING = (TrainingRate("GPT3-2.7B", 2.7e9, 32, 2560, 8192, 225e12, 0.72),)
