"""Published promises and rates of servers, as data with their source. Lesson 23."""

from __future__ import annotations

from helpers.results import Record


class Promise(Record):
    """The longest time to the first token and the longest mean time per output token, for a share
    of all requests.
    """

    ttft_s: float
    tpot_s: float
    kept_share: float


class ServingRate(Record):
    """A row of NVIDIA's table: tokens written per second on one GPU that never runs out of
    requests.
    """

    prompt_tokens: int
    answer_tokens: int
    h200_tokens_per_s: float
    h100_tokens_per_s: float


MLPERF_SOURCE = (
    "MLPerf Inference, loadgen/mlperf.conf (github.com/mlcommons/inference, commit 001712e): "
    "llama3.1-8b, interactive, 99th percentile"
)
MLPERF_INTERACTIVE = Promise(ttft_s=0.5, tpot_s=0.03, kept_share=0.99)

TENSORRT_LLM_SOURCE = (
    "TensorRT-LLM, docs/source/performance/perf-overview.md (github.com/NVIDIA/TensorRT-LLM, "
    "commit 00f37686aa854010d68bcbd0f4ab000221541ca6): Llama 3.1 8B, weights in FP8, one GPU, "
    "requests at an infinite rate"
)
TENSORRT_LLM = (
    ServingRate(128, 128, 27_911, 28_312),
    ServingRate(128, 2048, 26_221, 22_714),
    ServingRate(128, 4096, 18_027, 14_325),
    ServingRate(500, 2000, 20_770, 17_660),
    ServingRate(1000, 1000, 17_744, 15_220),
    ServingRate(1000, 2000, 16_828, 13_899),
    ServingRate(2048, 128, 3_538, 3_450),
    ServingRate(2048, 2048, 12_194, 9_305),
    ServingRate(5000, 500, 3_902, 3_459),
    ServingRate(20_000, 2000, 1_804, 1_351),
)
