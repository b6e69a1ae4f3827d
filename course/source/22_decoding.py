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
#     title: Decoding
#     needs: ["02", "11"]
#     objectives:
#       - write|wrote attention that keeps its keys and values, and in which query heads share them
#       - predict|predicted the time of a decoding step from its bytes
#       - say|said at how many users a GPU writes half as many tokens per second as with an endless batch
#       - explain|explained why half the bytes do not double the tokens per second
#       - apply|applied the rule that accepts draft tokens and keeps the model's distribution
# ---

# %% [markdown] tags=["objectives"]
# # Decoding
#
# What does a GPU do with its arithmetic units for 99.7 % of the time while it writes? Ask a language model a question, and the answer arrives
# piece by piece. Each piece is a *token*, and each token costs a pass through the whole model. The next pass must wait for this one, because the
# new token is part of its input. This loop is called [decoding](glossary.md#decoding). Take Llama 3 8B on an H100. A pass uses 7.5 billion
# parameters, each in one multiplication and one addition, so a token takes 15 billion operations. By its data sheet the GPU can do 989 trillion
# operations per second, which would be enough for 66,000 tokens per second. A single user of this GPU gets at most 223 of them (modelled).
#
# If you remember the [roofline](glossary.md#roofline) of [lesson 02](02_compute_and_roofline.ipynb), you know the suspect already. A weight that
# is used once must still be read once. At 2 bytes each, the 7.5 billion weights are 15 GB, and at the data sheet's 3,350 GB/s they take 4.5 ms
# to read. The arithmetic takes 0.015 ms. While the GPU writes for one user, its arithmetic units wait for memory during 99.7 % of the time
# (modelled).
#
# This matters to everybody who pays for a model or waits for one, because one line bounds how fast an answer comes and how many users can share
# a GPU:
#
# > time of a step = (bytes of the weights + sequences × bytes of one sequence's [KV cache](glossary.md#kv-cache)) / [bandwidth](glossary.md#bandwidth)
#
# The line holds as long as reading takes longer than computing, and we shall see where that ends. Part 1 builds its second term, the KV cache,
# because a model without one computes the whole text again for every token. Then we measure the first term, share it among users, shrink both,
# and get more than one token out of a step.

# %% tags=["hide-input"]
import torch
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import helpers
from helpers import exercises, models, plotting, timing
from helpers.studies import decoding

check = exercises.checks_of("decoding")
device = "cuda" if torch.cuda.is_available() else "cpu"
allocator = helpers.steady_allocator()  # freed memory is kept for later tensors

# %% [markdown] tags=["slide"] minutes=1 headline="Do 64 users share the speed of one?"
# ## The bet
#
# What happens to your answer when others write on the same GPU?
#
# - Llama 3 8B writes for one user of an H100
# - Now 64 users write at once, with 2,000 tokens each
# - Does each keep the speed, or a 64th of it?
#
# All numbers that you need are above, but for the bytes of one sequence's KV cache. If you do not know them yet, guess, because Part 1 counts
# them.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000]
bet = helpers.predict(
    "When 64 users with 2,000 tokens each share the H100, "
    "how many tokens per second does each get?",
    "tokens/s",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="What comes later never changes a key or a value"
# ## Part 1: what the model must remember
#
# Which results of earlier tokens does a model need again for its next token? The second term of our line counts the bytes of
# exactly these results.
#
# - Each token has a query, a key and a value
# - A token attends to itself and to earlier tokens
# - So later tokens never change an earlier key or value
#
# In attention, a token compares its query with the keys of all tokens up to itself, and then takes a weighted mean of their values. When we
# train, all tokens are there at once. When we decode, only the last one is new. It brings a single query, but it needs the keys and values
# of all tokens before it.
#
# We could compute those again by running the whole text through the model for every new token. But a token only looks backwards, so its key
# and value never change, and the model can store them. These stored tensors are called the KV cache, which is unrelated
# to a processor's [cache](glossary.md#cache).
#
# **Your turn.** Write one decoding step for one head with vectors of $d$ elements. `cache[0]` has room for the keys and `cache[1]` for the
# values. The output is the sum of the values, weighted by the softmax of $q \cdot k / \sqrt{d}$.


# %% tags=["yours"] yours="attend_new" takes=8
def attend_new(query, key, value, cache, position):
    """Put key and value (d) into cache (2, room, d); return the new token's attention (d)."""
    cache[0, position], cache[1, position] = key, value
    keys, values = cache[:, : position + 1]  # (position + 1, d) each
    weights = torch.softmax(keys @ query / len(query) ** 0.5, dim=0)  # (position + 1)
    return weights @ values


# %% checks="attend_new"
attend_new = check(attend_new)


# %% wrong="attend_new" says="attend to the empty part"
def attend_new(query, key, value, cache, position):
    cache[0, position], cache[1, position] = key, value
    return torch.softmax(cache[0] @ query / len(query) ** 0.5, dim=0) @ cache[1]


# %% wrong="attend_new" says="attends to itself as well"
def attend_new(query, key, value, cache, position):
    keys, values = cache[:, :position]
    output = torch.softmax(keys @ query / len(query) ** 0.5, dim=0) @ values
    cache[0, position], cache[1, position] = key, value
    return output


# %% wrong="attend_new" says="a position of its own"
def attend_new(query, key, value, cache, position):
    cache[0, 0], cache[1, 0] = key, value
    keys, values = cache[:, : position + 1]
    return torch.softmax(keys @ query / len(query) ** 0.5, dim=0) @ values


# %% wrong="attend_new" says="square root of d"
def attend_new(query, key, value, cache, position):
    cache[0, position], cache[1, position] = key, value
    keys, values = cache[:, : position + 1]
    return torch.softmax(keys @ query, dim=0) @ values


# %% right="attend_new" style=1
def attend_new(query, key, value, cache, position):
    cache[:, position] = torch.stack([key, value])
    keys, values = cache[0, : position + 1], cache[1, : position + 1]
    scores = (keys * query).sum(dim=1) / query.numel() ** 0.5
    exponentials = (scores - scores.max()).exp()
    return (exponentials[:, None] * values).sum(dim=0) / exponentials.sum()


# %% right="attend_new" style=2
def attend_new(query, key, value, cache, position):
    cache[0][position].copy_(key)
    cache[1][position].copy_(value)
    end = position + 1
    return scaled_dot_product_attention(query[None], cache[0, :end], cache[1, :end])[0]


# %% [markdown]
# To watch a model decode, we have trained a small one to count. Its text is the numbers from one to ninety-nine in words, over and over, and a
# token is a word or a comma. `models.Decoder` is a stack of blocks. This is one of them, which does what your `attend_new` does for all heads
# and all sequences of a batch at once. The new tokens take the positions from `start` on, because the cache already holds the tokens before
# them.


# %%
def run_block(block, x, cache, start):
    """Return a block's output (N, T, width); fill cache (2, N, heads, room, d) from start."""
    heads = block.qkv(block.norm1(x)).unflatten(-1, (-1, block.head_width)).transpose(1, 2)
    queries, keys, values = heads.split((block.heads, block.kv_heads, block.kv_heads), dim=1)
    end = start + x.shape[1]
    cache[0, :, :, start:end], cache[1, :, :, start:end] = keys, values
    keys, values = cache[:, :, :, :end]  # (N, kv_heads, end, d) each
    attended = models.causal_attention(queries, keys, values)
    x = x + block.out(attended.transpose(1, 2).flatten(2))
    return x + block.down(gelu(block.up(block.norm2(x))))


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

# %% tags=["hide-input"]
x, our_cache = torch.randn(1, 6, 32), torch.zeros(2, 1, 4, 96, 8)
library_cache = torch.zeros_like(our_cache)
block = counting.blocks[0]
with torch.no_grad():
    difference = run_block(block, x, our_cache, 0) - block(x, library_cache, 0)
    heads = block.qkv(block.norm1(x))[0].unflatten(-1, (-1, block.head_width))  # (6, 12, 8)
query, key, value = heads[:, 0], heads[:, block.heads], heads[:, -block.kv_heads]
cache = torch.zeros(2, 7, block.head_width)
stepwise = torch.stack(
    [
        attend_new(*token, cache, at)
        for at, token in enumerate(zip(query, key, value, strict=True))
    ]
)
at_once = scaled_dot_product_attention(query, key, value, is_causal=True)
matching = int(torch.isclose(stepwise, at_once, atol=1e-5).all(dim=1).sum())
print(
    f"a head of the model by your attend_new: {matching} of {len(query)} tokens as all at once"
)
print(
    f"cache entries that differ from the library's: {int((our_cache != library_cache).sum())}"
)
assert matching == len(query)
assert torch.equal(our_cache, library_cache)
assert not difference.any()

# %% [markdown]
# The decoding loop runs around these blocks. It takes the token with the largest logit, which is called greedy decoding, and feeds it back in.


# %%
@torch.no_grad()
def generate(model, sequence, count, use_cache=True):
    """Return sequence (1, T) with `count` new tokens, and the number of tokens processed."""
    cache, inputs, tokens_processed = model.new_cache() if use_cache else None, sequence, 0
    for _ in range(count):
        logits = model(
            inputs, cache, sequence.shape[1] - inputs.shape[1]
        )  # (1, new, vocabulary)
        token = logits[:, -1:].argmax(-1)  # (1, 1)
        tokens_processed += inputs.shape[1]
        sequence = torch.cat((sequence, token), dim=1)
        inputs = token if use_cache else sequence
    return sequence, tokens_processed


# %% tags=["hide-input", "slide", "slide-output"] minutes=3 headline="Each pass adds a key and a value to the cache" layout="steps"
plotting.play(
    decoding.cache_frames(["one", ",", "two", ",", "three", ",", "four", ","], prompt=4),
    title="Decoding with a cache",
    captions=["The whole prompt goes in."] + 3 * ["The token that came out goes in, alone."],
    stills=[0, 1, 3],
    alt="The prompt fills the cache, and then each pass adds one token's key and value.",
)

# %% [markdown]
# The first pass processes all tokens of the prompt at once, which is called [prefill](glossary.md#prefill). Without a cache, every later pass
# would process the whole sequence again. Suppose that the prompt has 6 tokens and that the model writes 90 more, in 90 passes. The number of
# tokens in each pass is all that you need for an estimate.

# %% tags=["predict"]
processed = helpers.predict(
    "For 90 tokens after a prompt of 6, "
    "how many times as many tokens does a model without a cache process?",
    "x",
)
processed

# %% tags=["run"]
prompt = text[None, 168:174]
sequence, with_cache = generate(counting, prompt, 90)
repeated, without_cache = generate(counting, prompt, 90, use_cache=False)

# %% tags=["look"]
processed.reveal(modelled=sum(range(6, 96)) / (6 + 89), counted=without_cache / with_cache)
print(" ".join(vocabulary[token] for token in sequence[0, :48]).replace(" ,", ","))
assert torch.equal(sequence, repeated)
assert torch.equal(sequence[0], text[168 : 168 + 96])

# %% [markdown] tags=["explain"]
# Without a cache the model processed 47.8 times as many tokens (counted), because each of the 90 passes took the whole sequence. The passes
# had 6, 7, 8 and so on up to 95 tokens, which makes 4,545 in all. With a cache the first pass had 6 tokens and each of the other 89 had one, so
# 95 tokens sufficed. The text is the same, token for token, because the cache holds the keys and values that would otherwise be recomputed.
#
# We have saved the computing, and pay for it with memory. How much does the cache hold? Llama 3 8B has 32 layers, and each stores a key and a
# value of 8 × 128, or 1,024, elements per token, in 2 bytes per element.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000000]
token_bytes = helpers.predict(
    "How many bytes does Llama 3 8B keep for each token of a conversation?", "B"
)
token_bytes

# %% tags=["run"]
with torch.device("meta"):  # shapes without data
    llama = models.Decoder(128_256, width=4096, layers=32, heads=32, kv_heads=8).bfloat16()

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="A token leaves over a hundred kilobytes"
token_bytes.reveal(
    modelled=32 * 2 * 1024 * 2, counted=llama.new_cache(batch=1, tokens=1).nbytes
)

# %% [markdown] tags=["explain"]
# It keeps 32 × 2 × 1,024 × 2, or 131,072 bytes. A conversation of 2,000 tokens has a cache of 0.26 GB, and this is the number that the bet was
# still missing.
#
# **To remember.** Keys and values of old tokens never change, so keep them. One token of Llama 3 8B costs 131 kB.
#
# With the cache, each pass processes one new token per sequence, and we call such a pass a step. How long does a step take?

# %% [markdown] tags=["slide"] minutes=2 headline="For one user, a step reads the weights"
# ## Part 2: the time of a step
#
# How long does a step take for a single user? For one user the first term of our line is nearly all of it.
#
# - A step multiplies each matrix by *one* vector
# - So each weight is read once, and used once
# - The larger the bandwidth, the sooner the token
#
# We count the weights first. A layer of Llama 3 8B has seven matrices. The query and the output projection have 4,096 × 4,096 weights each. Key
# and value have 4,096 × 1,024, because this model has only 8 key-value heads for its 32 query heads. The feed-forward layer is gated, so it has
# three matrices of 4,096 × 14,336 and not two. Together that makes 218 million weights per layer, and 6.98 billion in 32 layers. The output head
# over the vocabulary adds 0.53 billion. The embedding table is as large again, but a step reads a single row of it, so it does not count. What
# remains is 7.5 billion weights, or 15.0 GB.
#
# **Your turn.** Write the line as a function. All sequences share the weights, and each has a cache of its own.


# %% tags=["yours"] yours="step_s" takes=5
def step_s(weight_bytes, cache_bytes, sequences, bandwidth):
    """Return the seconds of a step that reads the weights, and the cache of each sequence."""
    return (weight_bytes + sequences * cache_bytes) / bandwidth


# %% checks="step_s"
step_s = check(step_s)


# %% wrong="step_s" says="a step reads them once"
def step_s(weight_bytes, cache_bytes, sequences, bandwidth):
    return sequences * (weight_bytes + cache_bytes) / bandwidth + 0 * 8


# %% wrong="step_s" says="reads four of them"
def step_s(weight_bytes, cache_bytes, sequences, bandwidth):
    return (weight_bytes + cache_bytes) / bandwidth


# %% wrong="step_s" says="not divided among them"
def step_s(weight_bytes, cache_bytes, sequences, bandwidth):
    return (weight_bytes + sequences * cache_bytes) / bandwidth / sequences


# %% wrong="step_s" says="also reads all weights"
def step_s(weight_bytes, cache_bytes, sequences, bandwidth):
    return sequences * cache_bytes / bandwidth


# %% wrong="step_s" says="the cells below need int or float"
def step_s(weight_bytes, cache_bytes, sequences, bandwidth):
    return torch.tensor((weight_bytes + sequences * cache_bytes) / bandwidth)


# %% right="step_s" style=1
def step_s(weight_bytes, cache_bytes, sequences, bandwidth):
    seconds = weight_bytes / bandwidth
    for _ in range(sequences):
        seconds += cache_bytes / bandwidth
    return seconds


# %% right="step_s" style=2
def step_s(weight_bytes, cache_bytes, sequences, bandwidth):
    read = sum([weight_bytes, *([cache_bytes] * sequences)])
    return float(read) * bandwidth**-1


# %% [markdown]
# Does the line hold on your own machine? We take a model that fits here, with random weights, because its time does not depend on what the
# weights are. For comparison we time one large matrix with just as many weights, multiplied by one vector. It gives the bandwidth with which
# this machine reads weights, and by the line alone a step should take as long as this one product.

# %% tags=["hide-input", "nbval-ignore-output"]
torch.manual_seed(0)
sizes = {"width": 4096, "heads": 32} if device == "cuda" else {"width": 512, "heads": 8}
large = models.Decoder(256, layers=8, context=1024, **sizes).to(device).eval()
weight_bytes = decoding.count_step(decoding.config_of(large), bits=32).weight_bytes
cache_bytes = 65 * decoding.config_of(large).cache_bytes(number_bytes=4)
side = round((weight_bytes / 4) ** 0.5)
matrix, vector = torch.rand(side, side, device=device), torch.rand(side, 1, device=device)
cache, tokens = large.new_cache(), torch.zeros(1, 128, dtype=torch.int64, device=device)
print(f"a step of this model reads {weight_bytes // 4:,} weights, each of 4 bytes")

# %% tags=["predict"]
own_step = helpers.predict(
    "How many times as long as one matrix with as many weights "
    "does a step take on your machine?",
    "x",
)
own_step

# %% tags=["run"]
with torch.no_grad():
    passes = timing.compare(
        {
            "one matrix": lambda: matrix @ vector,
            "step": lambda: large(tokens[:, :1], cache, 64),
            "5 tokens": lambda: large(tokens[:, :5], cache, 64),
            "prompt": lambda: large(tokens, cache),
        },
        budget_s=2.5,
        precision=0.15,
    )

# %% tags=["look", "nbval-ignore-output"]
step = passes.candidate("step").time_ratio
own_step.reveal(modelled=1 + cache_bytes / weight_bytes, measured=step)

# %% tags=["hide-input", "look"]
bandwidth = weight_bytes / passes.candidate("one matrix").median_s
five, whole_prompt = (
    passes.candidate(name).time_ratio / step for name in ("5 tokens", "prompt")
)
sentence = "a step takes about the time of one matrix with as many weights"
timing.claim(sentence, step, at_least=0.7, at_most=3, evidence=passes)
sentence = "a prompt of 128 tokens takes less than a third of 128 steps"
timing.claim(sentence, whole_prompt, at_most=128 / 3, evidence=passes)

# %% [markdown] tags=["explain"]
# The line is a floor and not a forecast. Your step took at least about as long as the one matrix, because it reads the same bytes. It usually
# takes longer, because it starts 33 smaller products one after another and computes softmax, norms and additions between them, and the line
# counts none of the time in which no weight is read. A GPU is no exception. The authors of
# [gpt-fast](https://pytorch.org/blog/accelerating-generative-ai-2/) measured 104.9 tokens per second for Llama 2 7B on an A100 with its power
# limited to 330 W (published). Its 13.2 GB and the data sheet's 2,039 GB/s would allow 154, so their step reached 68 % of the bound.
#
# The last measurement above is of prefill. The same weights can serve many tokens of a prompt in one pass, so a prompt is read much faster than
# an answer is written. But arithmetic then counts as well, because every token brings operations of its own. A weight of 2 bytes takes part in
# two operations per token. That is one operation per byte and token, so 100 tokens need 100 operations for each byte that is read. In the time
# in which the H100 reads a byte, it can do 989 / 3.35, or 295 operations, so with fewer than 295 tokens the reading takes longer, and with more
# the arithmetic. A prompt of 2,000 tokens lies far above that. It takes 2 × 7.5·10⁹ × 2,000, or 3·10¹³ operations, which need 75 ms at 400
# TFLOP/s, about the rate that the training of Llama 3 405B reached on each H100 (Grattafiori and others, 2024, published), a [model FLOPs
# utilisation](glossary.md#model-flops-utilisation) of 40 %.
#
# **To remember.** One user gets at most bandwidth divided by the bytes of the weights, which for 15 GB on an H100 is 223 tokens per second. By
# the data sheet up to 295 tokens fit into the same pass before arithmetic limits it, and at 400 TFLOP/s, the rate of a large training, about
# 120.
#
# A prompt fills a pass with the tokens of one user. Can the next tokens of many users fill it as well?

# %% [markdown] tags=["slide"] minutes=2 headline="Users share the weights, but not their caches"
# ## Part 3: what users share
#
# What happens to one user's step when others join it? Now that both terms of the line have their bytes, your function can answer the bet.
#
# - The user wants the next token soon
# - The owner wants to sell many tokens per second
# - The batch size decides between them
#
# All sequences of a batch share one reading of the weights, whereas each of them has a cache of its own, which nobody else can use. With 2,000
# tokens, reading a cache of 0.26 GB takes 0.078 ms. Eight users therefore need 4.48 + 8 × 0.078, or 5.1 ms. Each of them loses a tenth of the
# speed, and the owner sells seven times as many tokens. And your bet?

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Sixty-four users each keep half the speed"
h100_step = step_s(15.01e9, 2000 * 131_072, 64, bandwidth=3.35e12)
bet.reveal(modelled=1 / h100_step)

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Every new user adds fewer tokens per second"
import pandas as pd

rows = {}
for users in (1, 8, 64, 200):
    seconds = step_s(15.01e9, 2000 * 131_072, users, bandwidth=3.35e12)
    rows[f"{users}"] = (
        f"{1e3 * seconds:.1f} ms",
        f"{1 / seconds:.0f}",
        f"{users / seconds:,.0f}",
    )
columns = ["a step", "tokens per second for each", "for the owner"]
pd.DataFrame(rows, index=columns).T.rename_axis("users")

# %% [markdown] tags=["explain"]
# For 64 users the caches take 5.0 ms and a step 9.5 ms, so each user gets 105 tokens per second (modelled). A single user with a text of 2,000
# tokens gets 219, a little less than the 223 of the bet, because the cache is read too. So each of the 64 keeps nearly half of the speed, which
# is thirty times a 64th of it and still faster than anybody reads. The last row of the table looks poor. Three times as many users bring the
# owner not even half as much again, because most of the bytes are now caches, which are not shared. The weights are 15.0 GB and a cache is 0.26
# GB, so the two weigh the same at 57 users. There the owner sells half of what even an endless batch could bring, because half of the time goes
# to the weights. At about 240 users the GPU is full, since the whole model takes 16 GB of its 80 GB, and the other 64 GB hold no more caches.
#
# Turn it yourself. Where do the caches outweigh the weights if each text has 8,000 tokens? Which batch still gives everybody 50 tokens per second?

# %% tags=["hide-input"]
decoding.explore_step()

# %% [markdown]
# With 8,000 tokens each, the caches outweigh the weights from 15 users on, and up to 49 users get 50 tokens per second. All of this is modelled,
# so let us see what your machine says. Eight sequences bring eight caches, but those are small here, with 65 tokens in each. The line therefore
# promises little difference between one sequence and eight.

# %% tags=["predict"]
eight = helpers.predict(
    "How many times as long as a step for one sequence "
    "does a step for eight take on your machine?",
    "x",
)
eight


# %% tags=["run"]
def steps_of(sequences):
    inputs = torch.zeros(sequences, 1, dtype=torch.int64, device=device)
    cache = large.new_cache(sequences, 65)
    return lambda: large(inputs, cache, 64)


batches = (1, 2, 4, 8, 16, 32)
with torch.no_grad():
    steps = timing.compare({f"{n}": steps_of(n) for n in batches}, budget_s=5, precision=0.15)
ratios = [row.time_ratio for row in steps.candidates]

# %% tags=["look", "nbval-ignore-output"]
modelled = [step_s(weight_bytes, cache_bytes, n, bandwidth) for n in batches]
modelled = [seconds / modelled[0] for seconds in modelled]
eight.reveal(modelled=modelled[3], measured=ratios[3])

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="A step takes longer than its bytes predict"
alt = "Over the number of sequences the measured time of a step rises above the modelled one."
plotting.show(decoding.draw_batches(batches, modelled=modelled, measured=ratios), alt=alt)

# %% tags=["hide-input", "look"]
sentence = "16 sequences in one step take less than half of 16 steps"
timing.claim(sentence, ratios[4], at_most=8, evidence=steps)

# %% [markdown] tags=["explain"]
# The measured step grows faster than the bytes promise, as the dots above the line show. Does the time go into the products or between them? We
# time a single matrix product, without the rest of a step, and change only the number of rows that it multiplies, one row per sequence.

# %% tags=["hide-input", "run"]
rows = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 24, 32)
sequences, eighth = torch.rand(32, side, device=device), matrix[: side // 8].T
calls = {f"{count}": lambda x=sequences[:count]: x @ eighth for count in rows}
products = timing.compare(calls, budget_s=3, precision=0.2)

# %% tags=["hide-input", "look"]
taken = [row.minimum_s / products.candidates[0].minimum_s for row in products.candidates]
alt = "With more rows one product takes longer, although it reads the same matrix."
plotting.show(decoding.draw_rows(rows, measured=taken), alt=alt)

# %% [markdown] tags=["explain"]
# The matrix has the same bytes for any number of rows. If a few rows take longer than a single one in your picture, one possible reason is the
# kernel. It keeps the sums of its rows in [registers](glossary.md#register) while the matrix streams past. If they have room for the sums of
# four rows, say, then eight rows need two passes through the matrix.
#
# **To remember.** When the caches weigh as much as the weights, the owner sells half of what an endless batch would bring. For Llama 3 8B that
# happens at 114,500 tokens in all sequences together, for example 57 users with 2,000 tokens each.
#
# Bytes now limit the user and the owner alike. Which of them can we do without?

# %% [markdown] tags=["slide"] minutes=2 headline="Caches and weights can both take fewer bytes"
# ## Part 4: how few bytes are enough
#
# How small can caches and weights become? Part 3 has shown that both terms count, so we shrink one after the other, and the caches first, because
# with many users they are the larger term.
#
# - Several query heads can share one key-value head
# - A weight can have fewer bits
# - Neither shortens the part of a step that does not read
#
# The cache of Llama 3 8B has been shrunk already. Llama 2 7B has the same 32 layers and the same width, yet it keeps 524,288 bytes per token,
# four times as many, because each of its 32 query heads has a key and a value of its own. In [grouped-query
# attention](glossary.md#grouped-query-attention) (Ainslie and others, 2023) four query heads share one key-value head. The model can still ask
# 32 different questions of every token, and it gets the answers from 8 sets of keys, with a quality close to that of one set per head, as the
# authors found for another model. Without this, the caches of our 64 users would take 67 GB, which would not even fit beside the weights.
#
# **Your turn.** Each of N sequences has one new token, with `queries` (N, heads, d), and its `keys` and `values` (N, kv_heads, t, d). Of 8 query
# heads and 2 key-value heads, heads 0 to 3 share the first and 4 to 7 the second. `scaled_dot_product_attention` accepts several rows of queries
# for one head of keys, so you need not copy a single key.


# %% tags=["yours"] yours="grouped" takes=10
def grouped(queries, keys, values):
    """Return attention (N, heads, d) of queries to keys and values (N, kv_heads, t, d)."""
    groups = queries.unflatten(1, (keys.shape[1], -1))  # (N, kv_heads, heads / kv_heads, d)
    return scaled_dot_product_attention(groups, keys, values).flatten(1, 2)


# %% checks="grouped"
grouped = check(grouped)


# %% wrong="grouped" says="Neighbours share"
def grouped(queries, keys, values):
    groups = queries.unflatten(1, (-1, keys.shape[1])).transpose(1, 2)
    return scaled_dot_product_attention(groups, keys, values).transpose(1, 2).flatten(1, 2)


# %% wrong="grouped" says="You copy the keys"
def grouped(queries, keys, values):
    group = queries.shape[1] // keys.shape[1]
    keys, values = (tensor.repeat_interleave(group, dim=1) for tensor in (keys, values))
    return scaled_dot_product_attention(queries[:, :, None], keys, values)[:, :, 0]


# %% wrong="grouped" says="the cells below need torch.Tensor"
def grouped(queries, keys, values):
    groups = queries.unflatten(1, (keys.shape[1], -1))
    return scaled_dot_product_attention(groups, keys, values).flatten(1, 2).tolist()


# %% right="grouped" style=1
def grouped(queries, keys, values):
    batch, heads, d = queries.shape
    groups = queries.reshape(batch, keys.shape[1], heads // keys.shape[1], d)
    scores = groups @ keys.transpose(2, 3) / d**0.5
    return (scores.softmax(dim=-1) @ values).reshape(batch, heads, d)


# %% right="grouped" style=2
def grouped(queries, keys, values):
    batch, _, d = queries.shape
    groups = queries.view(batch, keys.shape[1], -1, d)
    weights = torch.softmax(torch.matmul(groups, keys.mT) * d**-0.5, -1)
    return torch.matmul(weights, values).flatten(1, 2)


# %% [markdown]
# A shorter program would copy each key-value head four times and then call the attention that you already have. For the copy a quarter of the
# bytes of 32 heads is read, all 32 heads are written, and then all 32 are read again. Together that is 0.25 + 1 + 1, or 2.25 times the bytes of
# 32 stored heads, so the copy costs more than the sharing saved. Without the copy a quarter is read, which is 0.25 / 2.25, or 0.11 times as many
# bytes.

# %% tags=["hide-input", "run"]
query = torch.randn(1, 32, 128, device=device)
stored = torch.randn(2, 1, 32, 4096, 128, device=device)
shared = stored[:, :, :8].contiguous()
attend = scaled_dot_product_attention
sharing = timing.compare(
    {
        "32 stored heads": lambda: attend(query[:, :, None], *stored),
        "8 heads, copied to 32": lambda: attend(
            query[:, :, None], *shared.repeat_interleave(4, dim=2)
        ),
        "8 heads, shared": lambda: grouped(query, *shared),
    },
    budget_s=1.5,
    precision=0.1,
)

# %% tags=["hide-input", "look"]
copied, without_copy = (sharing.candidates[place].time_ratio for place in (1, 2))
sentence = "8 shared heads take less than half the time of 8 heads that are copied to 32"
timing.claim(sentence, without_copy / copied, at_most=1 / 2, evidence=sharing)

# %% [markdown] tags=["explain"]
# The weights can shrink as well. The authors of gpt-fast published how fast their program writes one text with Llama 2 7B on an A100. With
# weights of 16 bits they measured 104.9 tokens per second, which is 9.5 ms per token. In 8 bits the weights are half as large, and reading them
# takes half the time. Reading 13.2 GB takes 6.5 ms at the data sheet's 2,039 GB/s, which leaves about 3 ms of each token for something else.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 4] headline="gpt-fast writes one text with Llama 2 7B"
int8 = helpers.predict(
    "On the A100, how many times as many tokens per second as 16-bit weights "
    "did 8-bit weights give?",
    "x",
)
int8

# %% tags=["hide-input", "run"]
published = {row.bits: row.tokens_per_s for row in decoding.GPT_FAST[:2]}
read_s = {
    bits: decoding.read_bytes(decoding.CONFIGS["Llama 2 7B"], bits=bits) / 2039e9
    for bits in (16, 8)
}

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Half the bytes do not give twice the tokens"
rest_s = 1 / published[16] - read_s[16]
modelled = (1 / published[16]) / (read_s[8] + rest_s)
int8.reveal(
    modelled=modelled, published=published[8] / published[16], source=decoding.GPT_FAST_SOURCE
)

# %% [markdown] tags=["explain"]
# They measured 155.6 tokens per second, which is only 1.48 times as many (published). If these 3 ms stay as they are, 8 bits shorten a token
# from 9.5 to 6.3 ms and bring a factor of 1.51, close to the published one. Do not trust it too quickly, however, because the two measured
# speeds can also be explained in another way, as the [appendix](appendix/22_decoding.ipynb) shows.
#
# For the 64 users of the bet, 8-bit weights shorten the step from 9.5 to 7.2 ms. With 8-bit caches too it takes 4.7 ms, and each user gets 211
# tokens per second (modelled). This is the line alone, so a GPU that keeps its other milliseconds will stay below 211.
#
# **To remember.** Four query heads per key-value head divide the cache by four. Halving the bytes at most halves the time of reading them, and
# 8-bit weights brought 1.48 times the tokens and not 2.
#
# All this shortens a step. Can a step also give more than one token?

# %% [markdown] tags=["slide"] minutes=2 headline="A draft proposes, and the model checks"
# ## Part 5: more than one token per step
#
# What else can the idle arithmetic do? For a single user the GPU still reads
# 15 GB per token, and in that time it could check 295 tokens.
#
# - A small, fast model drafts the next four tokens
# - The large model checks all four in one pass
# - It accepts the first ones, and adds one of its own
#
# This is [speculative decoding](glossary.md#speculative-decoding). A draft must not change what the model writes. In Part 1 we always took the
# largest logit, but a chat program usually samples each token at random. So a draft token may be accepted only in a way that keeps the model's own
# distribution. Take three tokens with the model's probabilities $p$ and the draft's $q$.
#
# | token | a | b | c |
# |---|--:|--:|--:|
# | the model's probability, $p$ | 0.5 | 0.3 | 0.2 |
# | the draft's probability, $q$ | 0.2 | 0.3 | 0.5 |
#
# The draft proposes *a* too rarely, so whenever it does, we accept. It proposes *c* too often, in 5 of 10 cases where the model would write it in 2 of
# 10, so we accept *c* with the probability 0.2 / 0.5. This is the rule of Leviathan and others (2023), accept with $\min(1, p/q)$. What is rejected
# must then be replaced, and the replacement should be what the draft proposes too rarely, here *a*. In general we resample with probabilities
# in proportion to $\max(p - q, 0)$, divided by their sum.
#
# **Your turn.** Write both halves of the rule for a whole vocabulary.


# %% tags=["yours"] yours="verify" takes=8
def verify(model, draft):
    """Return the probability to accept each token, and the distribution to resample from.

    The two distributions (one probability for each token of the vocabulary) are not equal.
    """
    accept = (model / draft).clamp(max=1)
    missing = (model - draft).clamp(min=0)
    return accept, missing / missing.sum()


# %% checks="verify"
verify = check(verify)


# %% wrong="verify" says="proposes too rarely"
def verify(model, draft):
    return (model / draft).clamp(max=1), model


# %% wrong="verify" says="the text is the draft's"
def verify(model, draft):
    missing = (model - draft).clamp(min=0)
    return torch.ones_like(model), missing / missing.sum()


# %% wrong="verify" says="can accept more often"
def verify(model, draft):
    missing = model - draft * model
    return model, missing / missing.sum()


# %% wrong="verify" says="the cells below need torch.Tensor"
def verify(model, draft):
    missing = (model - draft).clamp(min=0)
    return (model / draft).clamp(max=1).tolist(), missing / missing.sum()


# %% right="verify" style=1
def verify(model, draft):
    accept = torch.minimum(torch.ones_like(model), model / draft)
    missing = torch.relu(model - draft)
    return accept, torch.nn.functional.normalize(missing, p=1, dim=0)


# %% right="verify" style=2
def verify(model, draft):
    accept = torch.where(model >= draft, 1.0, model / draft)
    missing = model - torch.minimum(model, draft)
    total = missing.sum().item()
    return accept, missing.div(total)


# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=1 headline="Resampling restores the model's distribution"
model = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
draft = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
accept, resample = verify(model, draft)
alt = (
    "For each token, the accepted and the resampled part add up to the model's probability p."
)
plotting.show(decoding.draw_acceptance(model, draft, accept, resample), alt=alt)

# %% [markdown] tags=["explain"]
# The picture shows why this keeps the distribution. On the left is what the draft proposes. Its purple part is accepted, which is $\min(p, q)$
# of each token, and its grey part is rejected. On the right, the resampled tokens fill each column exactly up to $p$. There is always just
# enough to fill, because $p$ and $q$ both add up to 1, so all that was proposed too often equals all that was proposed too rarely.
#
# When a draft token is rejected, all that follow it are lost, because they continue a text that no longer exists. So the second draft token
# counts only if the first was accepted as well, and so on. If each is accepted with probability 0.7, four of them bring 0.7 + 0.7² + 0.7³ + 0.7⁴
# tokens on average, which is 1.77. The pass always adds one token of its own. After a rejection that is the resampled one, and after four
# acceptances the model samples the next, whose probabilities it has from the same pass. Together that is 2.77 tokens per pass.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 5]
per_pass = helpers.predict(
    "If each of four draft tokens is accepted with probability 0.3, "
    "how many tokens does a pass yield on average?",
    "tokens",
)
per_pass

# %% tags=["run"]
chance = torch.Generator().manual_seed(0)
accepted = torch.rand(100_000, 4, generator=chance) < 0.3
tokens_per_pass = 1 + accepted.int().cumprod(dim=1).sum(dim=1)  # (passes)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="A draft token counts if all before it were accepted"
modelled = sum(0.3**drafted for drafted in range(5))
per_pass.reveal(modelled=modelled, simulated=float(tokens_per_pass.double().mean()))

# %% [markdown] tags=["explain"]
# The sum is 1 + 0.3 + 0.3² + 0.3³ + 0.3⁴, so at 0.3 a pass yields 1.43 tokens, half as many as at 0.7. Suppose that drafting a token costs 5 % of a step.
# Then a pass with four of them costs 1.2 steps. The user's tokens come 2.77 / 1.2, or 2.3 times as fast with the better draft, but only 1.2 times as
# fast with the worse one.
#
# Now let our counting model write with drafts and your rule. It is nearly certain of each token, so its text can be compared word for word. As
# its draft we take a table of which token followed each token in the text that we trained on, and then one that looks at three tokens. The
# second is a best case, because the model writes that very text.

# %% tags=["run", "nbval-ignore-output"]
alone, passes_of = sequence[0, 6:].tolist(), {}
for seen in (1, 3):
    table = decoding.NGram(lesson, order=seen + 1, vocabulary=len(vocabulary))
    drafted = decoding.speculate(counting, table, prompt[0].tolist(), 90, verify=verify)
    matching = sum(ours == theirs for ours, theirs in zip(drafted.tokens, alone, strict=True))
    passes_of[seen] = drafted.calls
    print(
        f"tokens seen: {seen}, {matching} of 90 as without drafts, in {drafted.calls} passes"
    )
assert matching == 90
assert passes_of[3] == 18 < passes_of[1] < 90

# %% tags=["hide-input", "look"]
sentence = "a pass over 5 tokens takes less than 4 steps"
timing.claim(sentence, five, at_most=4, evidence=passes)

# %% [markdown] tags=["explain"]
# The text is the same with both drafts. The good one needed 18 passes where the model alone needs 90, because all of its tokens were accepted,
# four per pass. The bad one is rejected often, and needed about 56 (counted). Whether this pays depends on the price of a pass over five tokens,
# which the last line gives for your machine in steps. On the H100 it should be hardly more than one step for a single user, because the pass
# reads the same bytes. On our CPU it is 1.83 steps (measured), so the good draft takes the time of 33 steps instead of 90, but the bad one that
# of 102, which is more than without drafts.
#
# A single user leaves much arithmetic idle, but many users need it themselves. On the H100, 59 users with five tokens each make 295 tokens in a
# pass. From there on arithmetic limits the products with the weights, and every further draft token costs time.
#
# **To remember.** Four draft tokens, each accepted with probability 0.7, give 2.77 tokens per pass. On an H100 checking them is nearly free while all
# users together have fewer than about 295 tokens in a pass, by the arithmetic of the data sheet.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. Users share the weights, and not their caches.
# 2. Keys and values that heads share take fewer bytes.
# 3. Drafts keep the model's distribution and save passes.
#
# Each of the 64 users gets 105 tokens per second, because they share 15.0 GB of weights but not the 16.8 GB of their caches. A single user keeps
# the GPU's arithmetic 0.3 % busy and 64 users 10 %. Grouped heads have divided the caches by four, 8-bit weights and caches could bring each
# user up to 211 by the line alone, and drafts that are accepted with probability 0.7 give a single user about 2.3 times as many tokens, if
# checking them is nearly free. The first four parts needed one line, and on your own machine you have seen that it is a floor.
#
# The [exercises](exercises/22_decoding_exercises.ipynb) choose how far to draft, count how many texts fit beside the weights, and judge a web
# page's tokens per second. How fewer bits change what a model writes, and how several GPUs divide the weights, is in
# [the appendix](appendix/22_decoding.ipynb).

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $b$ sequences in the batch with $n$ tokens each; $N$ parameters that a step reads and $s$ bytes per element; $L$ layers with $k$ key-value heads of
# vectors with $d$ elements; a memory's bandwidth $B$. A draft token is accepted with the probability $r$.
#
# | quantity | formula |
# |---|---|
# | cache of a token | $2\,L\,k\,d\,s$ bytes |
# | time of a step, at least | $\frac{s\,N + b\,n \cdot 2\,L\,k\,d\,s}{B}$ |
# | tokens at which the caches weigh as much as the weights | $\frac{N}{2\,L\,k\,d}$ |
# | a draft token with probabilities $p$ (model) and $q$ (draft) is accepted with | $\min(1, \frac{p}{q})$ |
# | tokens per pass, $g$ draft tokens | $\frac{1 - r^{g+1}}{1 - r}$ |
