"""Published rates of attention on a ring of eight GPUs, as data with their source. Lesson 09."""

from __future__ import annotations

from helpers.results import Record


class RingRate(Record):
    """Rates of one attention layer of Llama 3 8B with a causal mask, in passes per second.

    ``one_gpu`` is that of 8,192 tokens on a single GPU. ``in_order`` and ``zigzag`` are those of
    65,536 tokens on eight GPUs, whose pieces are dealt out in order or in pairs of an early and a
    late one. ``backward`` says whether a pass includes the backward pass. Lesson 09.
    """

    gpu: str
    backward: bool
    one_gpu: float
    in_order: float
    zigzag: float


RING_SOURCE = (
    "zhuzilin, ring-flash-attention (github.com/zhuzilin/ring-flash-attention, README at commit "
    "01c8baf): the table of its batch API"
)
RING_RATES = (
    RingRate("H800", True, 154.7, 10.4, 17.4),
    RingRate("H800", False, 591.5, 38.5, 63.0),
    RingRate("A100", True, 94.7, 6.2, 10.6),
    RingRate("A100", False, 373.4, 24.0, 38.2),
)
