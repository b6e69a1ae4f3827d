# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   lesson:
#     number: "23"
#     title: A line against a real server, and GPUs of two kinds
# ---

# %% [markdown]
# # A line against a real server, and GPUs of two kinds
#
# The lesson trusts one line for the time of a step. Here we hold it to the rates that NVIDIA publishes for a real server. Then we let one GPU read and
# another one write, and work out what that brings.

# %% tags=["hide-input"]
import pandas as pd

from helpers.studies import decoding, serving

llama = decoding.CONFIGS["Llama 3 8B"]
h100 = serving.gpu_step(llama, bandwidth_bytes_per_s=3.35e12, flops_per_s=400e12)
promise = serving.MLPERF_INTERACTIVE

# %% [markdown]
# ## Does the line hold for a real server?
#
# NVIDIA publishes how many tokens per second its server TensorRT-LLM writes with Llama 3.1 8B, which has the shape of Llama 3 8B, on one H100 that never runs out
# of requests ([table](https://github.com/NVIDIA/TensorRT-LLM/blob/00f37686aa854010d68bcbd0f4ab000221541ca6/docs/source/performance/perf-overview.md)).
# The weights there have 8 bits. We assume 8 bits for the caches too. With 8 bits the peak is twice as high, so the same 40 % of it are 800 TFLOP/s. And we
# assume so many requests per step that the weights are read behind the arithmetic.
#
# Take prompts and answers of 2,048 tokens. The arithmetic of 4,096 tokens takes 77 ms. A cache holds 3,072 tokens of 65,536 bytes on average, because all
# answers have the same length here, and reading it 2,048 times takes 123 ms. So 2,048 tokens are written in 200 ms, or 10,200 per second.

# %% tags=["hide-input"]
eight_bits = serving.gpu_step(
    llama, bandwidth_bytes_per_s=3.35e12, flops_per_s=800e12, bits=8, cache_number_bytes=1
)
rows = []
for row in serving.TENSORRT_LLM:
    seconds = eight_bits.request_s(row.prompt_tokens, row.answer_tokens)
    modelled = row.answer_tokens / seconds
    ratio = row.h100_tokens_per_s / modelled
    sizes = f"{row.prompt_tokens:,} / {row.answer_tokens:,}"
    rows.append((sizes, f"{modelled:,.0f}", f"{row.h100_tokens_per_s:,.0f}", f"{ratio:.2f}"))
columns = ["tokens of prompt / answer", "modelled", "published", "published / modelled"]
pd.DataFrame(rows, columns=columns).set_index(columns[0])

# %% [markdown]
# The published rates are between 0.83 and 1.24 times the modelled ones. For prompts of 20,000 tokens the caches take two thirds of the time, and a kernel
# hardly reads them at the full bandwidth of the data sheet. We have also left out the arithmetic of attention itself, which by the same 40 % of the peak would add
# a tenth there and 3.5 % to a prompt of 2,000. For answers of 128 tokens the arithmetic takes nine tenths. There the server beats the model,
# because its products reach about half of the peak by our count, more than the 40 % of a training.
#
# ## One GPU reads and another one writes
#
# If one GPU reads all prompts and another one writes all answers, nobody interrupts anybody (Zhong and others, "DistServe", 2024). The authors published up to 7.4
# times as many requests, compared with a server that reads whole prompts. What would it bring in our example? We let an H100 only read, so that each answer
# has a single token.


# %% tags=["hide-input"]
def read_only(rate):
    requests = serving.random_requests(5000, rate, longest=1)
    return serving.serve(requests, h100, slots=64)


rate = serving.promised_rate(
    read_only, ttft_s=promise.ttft_s, tpot_s=promise.tpot_s, between=(7, 11), within=0.02
)
print(f"a GPU that only reads can promise {rate:.1f} requests per second (simulated)")

# %% [markdown]
# A GPU that only reads needs 75 ms per prompt, so 13 per second are its limit. It can promise 9.2 of them (simulated, one seed). Each cache of 0.26 GB crosses a network of
# 50 GB/s in 5 ms. One GPU can write for three that read. The three bring 26 requests per second, and when a step takes 10.4 ms, an answer of
# 250 tokens takes 2.6 s, so that 67 requests are being written at once, which is what a step of 10.4 ms can hold. These four GPUs serve 26 requests per
# second, or 6.5 each. That is 1.5 times the 4.2 of whole prompts, but no more than the 6.7 of chunks.
