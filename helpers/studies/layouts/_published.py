"""Published layouts, days of training and bandwidths of clusters, as data with their sources.

Lesson 08.
"""

from __future__ import annotations

from helpers.results import Record


class PublishedLayout(Record):
    """A model and how it was cut: ``parameters`` of all its layers, the ranks of its layout, and
    ``peak_share``.

    The batch has ``sequences`` of 2,048 tokens. ``peak_share`` is what a GPU reached of 312
    TFLOP/s.
    """

    parameters: float
    data: int
    tensor: int
    stages: int
    sequences: int
    peak_share: float


class TrainingDays(Record):
    """The days of 300 billion tokens on ``gpus`` A100, 1,536 sequences of 2,048 tokens per step.

    ``zero3_days`` is with ZeRO 3 alone, ``cut_days`` with each copy cut over 96 GPUs by tensor
    parallelism and stages.
    """

    gpus: int
    zero3_days: float
    cut_days: float


_PAPER = (
    "Narayanan and others, Efficient Large-Scale Language Model Training on GPU Clusters Using "
    "Megatron-LM, 2021 (arxiv.org/abs/2104.04473)"
)

MODELS_SOURCE = f"{_PAPER}, table 1: A100 with 80 GB, eight in a node"
MODELS = (
    PublishedLayout(1.7e9, 32, 1, 1, 512, 0.44),
    PublishedLayout(3.6e9, 32, 2, 1, 512, 0.44),
    PublishedLayout(7.5e9, 32, 4, 1, 512, 0.46),
    PublishedLayout(18.4e9, 32, 8, 1, 1024, 0.43),
    PublishedLayout(39.1e9, 32, 8, 2, 1536, 0.44),
    PublishedLayout(76.1e9, 32, 8, 4, 1792, 0.45),
    PublishedLayout(145.6e9, 24, 8, 8, 2304, 0.47),
    PublishedLayout(310.1e9, 15, 8, 16, 2160, 0.50),
    PublishedLayout(529.6e9, 9, 8, 35, 2520, 0.52),
    PublishedLayout(1008.0e9, 6, 8, 64, 3072, 0.52),
)

GPT3_DAYS_SOURCE = f"{_PAPER}, table 2: GPT-3 with 174.6 billion parameters"
GPT3_DAYS = (TrainingDays(384, 90, 84), TrainingDays(768, 74, 43), TrainingDays(1536, 74, 23))

BUS_BANDWIDTHS_SOURCE = (
    "Hugging Face, The Ultra-Scale Playbook, 2025 "
    "(huggingface.co/spaces/nanotron/ultrascale-playbook): all-reduces on "
    "nodes of eight H100, the mean over many jobs"
)
# B/s by nodes
BUS_BANDWIDTHS = {1: 436.0e9, 2: 361.7e9, 4: 160.1e9, 8: 99.6e9, 16: 84.7e9, 32: 64.9e9, 64: 32.9e9}
