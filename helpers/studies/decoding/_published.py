"""Published measurements of decoding and serving, as data with their source. Lesson 22."""

from __future__ import annotations

from helpers.results import Record


class DecodingRate(Record):
    """One row of gpt-fast's README: tokens a second for one text, and the bandwidth printed beside
    it.
    """

    model: str
    device: str
    bits: int
    gpus: int
    tokens_per_s: float
    bandwidth_bytes_per_s: float


class CacheUse(Record):
    """The memory for keys and values that was in use: shares of it, as far as the figure prints
    them.
    """

    system: str
    token_states_share: float


GPT_FAST_SOURCE = (
    "gpt-fast, README.md (github.com/pytorch-labs/gpt-fast, commit 0f925b5): batch 1, a prompt of "
    "5 tokens; A100 80 GB limited to 330 W, one GCD of an MI250X"
)
GPT_FAST = tuple(
    DecodingRate(model, device, bits, gpus, rate, 1e9 * bandwidth)
    for model, device, bits, gpus, rate, bandwidth in (
        ("Llama 2 7B", "A100", 16, 1, 104.9, 1397.31),
        ("Llama 2 7B", "A100", 8, 1, 155.58, 1069.20),
        ("Llama 2 7B", "A100", 4, 1, 196.80, 862.69),
        ("Llama 2 70B", "A100", 8, 1, 19.13, 1322.58),
        ("Llama 2 70B", "A100", 4, 1, 25.25, 1097.66),
        ("Llama 2 7B", "A100", 16, 2, 168.84, 1181.99),
        ("Llama 2 7B", "A100", 16, 4, 254.02, 955.83),
        ("Llama 2 7B", "A100", 16, 8, 328.43, 704.10),
        ("Llama 2 70B", "A100", 16, 2, 21.32, 1481.87),
        ("Llama 2 70B", "A100", 16, 4, 38.01, 1340.76),
        ("Llama 2 70B", "A100", 16, 8, 62.50, 1135.29),
        ("Llama 2 70B", "A100", 8, 8, 80.44, 752.04),
        ("Llama 2 70B", "A100", 4, 8, 90.77, 548.10),
        ("Llama 2 7B", "MI250X", 16, 1, 76.33, 1028.70),
        ("Llama 2 7B", "MI250X", 8, 1, 101.86, 700.06),
    )
)

PAGED_ATTENTION_SOURCE = (
    "Kwon and others, Efficient Memory Management for Large Language Model Serving with "
    "PagedAttention, SOSP 2023, figure 2"
)
PAGED_ATTENTION = (
    CacheUse("Orca, the longest possible text reserved", 0.204),
    CacheUse("Orca, the next power of two reserved", 0.268),
    CacheUse("Orca, the true length known and reserved", 0.382),
    CacheUse("vLLM, pages", 0.963),
)
