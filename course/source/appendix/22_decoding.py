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
#     number: "22"
#     title: Fewer bits, several GPUs, and a column that was not measured
# ---

# %% [markdown]
# # Fewer bits, several GPUs, and a column that was not measured
#
# The lesson shrinks the bytes of a step. Here are three things that it leaves out, because none of them changes its one line. We look at what fewer bits
# do to the text, how several GPUs divide the reading, and where a published bandwidth came from.

# %% tags=["hide-input"]
import copy

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import helpers
from helpers import models, units
from helpers.studies import decoding

# %% [markdown]
# ## Does a model with fewer bits still write the same?
#
# We train the small counting model of the lesson once more, round each of its weights, and let it write. With 8 bits a weight is rounded to one of 255
# values, with 4 bits to one of 15, and each row of a matrix has a scale of its own.


# %% tags=["hide-input"]
ones = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
ones = [*ones.split(), "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
names = ones + [f"{ten} {one}".strip() for ten in tens for one in ["", *ones[:9]]]
vocabulary = [",", *ones, *tens]
lesson = [vocabulary.index(word) for word in " , ".join([*names, ""]).split()]

torch.manual_seed(0)
counting = models.Decoder(len(vocabulary), width=32, layers=2, heads=4, context=96)
text = torch.tensor(lesson * 2)
adam = torch.optim.Adam(counting.parameters(), lr=0.01, fused=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 0.01, total_steps=1200)
for _ in range(1200):
    starts = torch.randint(len(lesson), (8, 1))
    sequences = text[starts + torch.arange(97)]  # (8, 97)
    logits = counting(sequences[:, :-1]).flatten(0, 1)
    loss = cross_entropy(logits, sequences[:, 1:].flatten())
    adam.zero_grad()
    loss.backward()
    adam.step()
    schedule.step()


# %%
def rounded(model, bits):
    """Return a copy of the model with weights of `bits` bits, and a scale for each row."""
    rounded_model = copy.deepcopy(model)
    for layer in (
        module for module in rounded_model.modules() if isinstance(module, nn.Linear)
    ):
        rows, largest = layer.weight.data, 2 ** (bits - 1) - 1
        scales = rows.abs().amax(dim=1, keepdim=True) / largest  # (rows, 1)
        rows.copy_((rows / scales).round() * scales)
    return rounded_model


# %% tags=["nbval-ignore-output"]
counting.requires_grad_(False)
prompt = text[168:174].tolist()
written = decoding.generate(counting, prompt, 90).tokens
sequence = torch.tensor([[*prompt, *written]])
probabilities = counting(sequence).softmax(-1)
rows = {}
for bits in (8, 4, 3, 2):
    fewer = rounded(counting, bits)
    change = float((fewer(sequence).softmax(-1) - probabilities).abs().max())
    tokens = decoding.generate(fewer, prompt, 90).tokens
    same = sum(a == b for a, b in zip(tokens, written, strict=True))
    rows[f"{bits} bits"] = f"{change:.1g}", f"{same} of 90"
assert rows["8 bits"][1] == "90 of 90"
pd.DataFrame(rows, index=["largest change of a probability", "tokens as before"]).T

# %% [markdown]
# With 8 bits no token changes here, because this model is sure of each token and its probabilities move little. If two tokens are nearly as likely, a
# small change decides between them, and the text goes another way. How a large model is rounded so that its quality stays is the subject of
# [lesson 16](../16_numbers_of_few_bits.ipynb).
#
# ## Why did half the bytes not give twice the tokens?
#
# With weights of 16 bits gpt-fast took 9.5 ms per token and with 8 bits 6.4 ms, a factor of 1.48 (published). The lesson explained it by 3 ms in
# which no weights are read and which stay. This is what remains if 13.2 GB are read at the data sheet's bandwidth. But the same authors write
# that "even just copying memory struggles to break 85%" of it ([PyTorch blog](https://pytorch.org/blog/accelerating-generative-ai-2/), 2023). So
# there are two ways to divide the 9.5 ms.
#
# | bandwidth | reading in 16 bits | everything else | a token in 8 bits | factor |
# |---|--:|--:|--:|--:|
# | of the data sheet | 6.5 ms | 3.1 ms | 6.3 ms | 1.51 |
# | 85 % of it | 7.6 ms | 1.9 ms | 5.7 ms | 1.67 |
#
# The first way is close to the published factor. If the second one is right, the 8-bit weights must cost something extra, for example their conversion
# back to 16 bits. Two numbers cannot tell these explanations apart.
#
# ## Where does a published bandwidth come from?
#
# Beside its tokens per second, the table of gpt-fast has a column "Memory Bandwidth (GB/s)". We multiply the bytes of all weights on one GPU by the
# tokens per second and compare the product with the column.

# %%
rows = {}
for row in decoding.GPT_FAST:
    config = decoding.CONFIGS[row.model]
    stored = decoding.stored_bytes(config, bits=row.bits, gpus=row.gpus) / 1e9
    product, printed = stored * row.tokens_per_s, row.bandwidth_bytes_per_s / 1e9
    numbers = f"{stored:.3f}", f"{row.tokens_per_s}", f"{product:.2f}", f"{printed:.2f}"
    name = f"{row.model[8:]}, {row.bits} bits, {row.gpus} x {row.device}"
    rows[name] = *numbers, f"{100 * abs(product / printed - 1):.2f}"
columns = ["GB per GPU", "tokens/s", "product", "printed", "differs by %"]
equal = sum(float(difference) < 0.02 for *_, difference in rows.values())
print(f"{equal} of {len(rows)} rows agree; the first eight:")
pd.DataFrame(rows, index=columns).T[:8]

# %% [markdown]
# So no bandwidth was measured. The column is the product of the other two, as gpt-fast's `generate.py` computes it, and it counts the embedding table
# as well, which a step does not read. Three rows differ by 0.17 to 1.17 %, perhaps because their two numbers come from different runs.
#
# ## How do several GPUs divide a step?
#
# With tensor parallelism ([lesson 06](../06_model_parallel.ipynb)) each GPU holds a part of every matrix, and twice per layer the GPUs add up their
# results. The reading of the weights is divided by the number of GPUs, whereas the adding up is not. A model with two terms, one that is divided and
# one that stays, needs two measurements. We take those of Llama 2 70B on two and on eight GPUs.

# %%
cards_s = {row.gpus: 1 / row.tokens_per_s for row in decoding.GPT_FAST[8:11]}
for cards in (2, 8):
    print(f"70B on {cards} GPUs: a token takes {units.text(cards_s[cards], 's')} (published)")

# %% tags=["predict"]
four = helpers.predict("How long does a token of Llama 2 70B take on four GPUs?", "s")
four

# %% tags=["run"]
divided = (cards_s[2] - cards_s[8]) / (1 / 2 - 1 / 8)
stays = cards_s[8] - divided / 8

# %% tags=["look"]
four.reveal(
    modelled=divided / 4 + stays, published=cards_s[4], source=decoding.GPT_FAST_SOURCE
)
print(f"the part that stays: {1e6 * stays / 160:.0f} microseconds for each of 160 sums")

# %% [markdown] tags=["explain"]
# Two rows predict the third. Are the sums the part that stays? One of them adds 8,192 elements, which are 16 kB and take a sixth of a microsecond at
# 100 GB/s. The latency of a link and launching the work take longer. But a single GPU, which performs no sums, had unexplained time as well, so we
# cannot blame all of the constant part on the sums.
