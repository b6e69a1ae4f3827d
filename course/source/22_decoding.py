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
#       - write|wrote attention that keeps keys and values, and in which heads share them
#       - predict|predicted the time of a step from its bytes, up to where that fails
#       - weigh|weighed what a model keeps of a text against its weights
#       - rebuild|rebuilt a published table from the shapes of its models
#       - judge|judged a draft's guesses by a rule that keeps the distribution of the text
# ---

# %% [markdown] tags=["objectives"]
# # Decoding
#
# A language model writes one *token* at a time, a word or a piece of one. Each token takes a pass through the whole model, and
# the next pass needs the token of this one: that is [decoding](glossary.md#decoding). That loop decides how long you wait for an
# answer, and what it costs.
#
# You will write what makes it bearable: keys and values that stay, heads that share them, tokens guessed ahead.

# %%
import copy
from itertools import pairwise

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, one_hot, scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

import helpers
from helpers import exercises, models, plotting, timing, units
from helpers.studies import decoding

device = "cuda" if torch.cuda.is_available() else "cpu"
allocator = helpers.steady_allocator()  # freed memory is kept for later tensors

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# - Llama 2 7B: 32 layers of width 4,096
# - Numbers of 2 bytes
# - A token is a few letters of text
# - While it writes on, what must it keep of that token?

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000000]
bet = helpers.predict("Llama 2 7B: how many bytes does it keep of one token of the text?", "B")
bet

# %% [markdown] tags=["slide"] minutes=2 headline="What comes later never changes a key or a value"
# ## Part 1: keys and values stay
#
# - A token has a query, a key and a value
# - It looks at itself and at all tokens before it
# - So what comes later never changes its key and value
#
# This is lesson 11's attention. In training all queries are there at once. In decoding one token is new: it brings *one* query,
# and needs the keys and values of all before it. They can be computed again from the whole text, or kept in a [KV cache](glossary.md#kv-cache), a
# tensor. (A processor's [cache](glossary.md#cache) is another thing.)
#
# **Your turn**: one head, whose vectors have $d$ numbers. `cache[0]` has room for keys, `cache[1]` for values. A softmax of
# $q \cdot k / \sqrt{d}$ weighs the values.


# %%
def one_by_one(function, queries, keys, values):
    cache = torch.zeros(2, len(keys) + 1, keys.shape[1], dtype=keys.dtype)
    steps = zip(queries, keys, values, strict=True)
    found = [function(*token, cache, place) for place, token in enumerate(steps)]
    return torch.stack([torch.as_tensor(each) for each in found])


# %% tags=["yours"] yours="attend_new"
def attend_new(query, key, value, cache, place):
    """Put key and value (d) into cache (2, room, d); return the new token's attention (d)."""
    cache[0, place], cache[1, place] = key, value
    keys, values = cache[:, : place + 1]
    weights = torch.softmax(keys @ query / len(query) ** 0.5, dim=0)
    return weights @ values


# %% checks="attend_new"
asked = exercises.Checks("A new token looks back", attend_new)
torch.manual_seed(0)
given = torch.zeros(3, 1), torch.ones(3, 1), torch.tensor([[3.0], [5], [7]])
slips = {
    ((0.75,), (2.0,), (3.75,)): "Empty places are no tokens: stop at the new one",
    ((0.0,), (3.0,), (4.0,)): "The new token looks at itself as well",
    ((3.0,), (2.5,), (7 / 3,)): "Each token has a place of its own",
}
goal, means = "a query of 0: the mean of all values so far", [[3.0], [4.0], [5.0]]
asked.returns(goal, given, call=one_by_one, expected=means, mistakes=slips)
given = tuple(torch.randn(3, 6, 4, dtype=torch.float64))
whole = scaled_dot_product_attention(*given, is_causal=True)
unscaled = scaled_dot_product_attention(*given, is_causal=True, scale=1.0).tolist()
slips = {tuple(map(tuple, unscaled)): "Divide the scores by the root of d"}
goal = "six tokens give what PyTorch gives for all six at once"
asked.returns(goal, given, call=one_by_one, expected=whole, mistakes=slips)
attend_new = asked.settle()


# %% wrong="attend_new" says="Empty places are no tokens"
def attend_new(query, key, value, cache, place):
    cache[0, place], cache[1, place] = key, value
    return torch.softmax(cache[0] @ query / len(query) ** 0.5, dim=0) @ cache[1]


# %% wrong="attend_new" says="looks at itself as well"
def attend_new(query, key, value, cache, place):
    keys, values = cache[:, :place]
    found = torch.softmax(keys @ query / len(query) ** 0.5, dim=0) @ values
    cache[0, place], cache[1, place] = key, value
    return found


# %% wrong="attend_new" says="a place of its own"
def attend_new(query, key, value, cache, place):
    cache[0, 0], cache[1, 0] = key, value
    keys, values = cache[:, : place + 1]
    return torch.softmax(keys @ query / len(query) ** 0.5, dim=0) @ values


# %% wrong="attend_new" says="Divide the scores by the root of d"
def attend_new(query, key, value, cache, place):
    cache[0, place], cache[1, place] = key, value
    keys, values = cache[:, : place + 1]
    return torch.softmax(keys @ query, dim=0) @ values


# %% [markdown]
# To see a model write, we train a small one on the numbers from one to ninety nine, in words, and after them one again. A token is a
# word or a comma.

# %%
ones = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
ones = [*ones.split(), "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
names = ones + [f"{ten} {one}".strip() for ten in tens for one in ["", *ones[:9]]]
vocabulary = [",", *ones, *tens]
lesson = [vocabulary.index(word) for word in " , ".join([*names, ""]).split()]
print(f"{len(names)} numbers, {len(lesson)} tokens, {len(vocabulary)} different ones")

# %% tags=["run"]
torch.manual_seed(0)
small = models.Decoder(len(vocabulary), width=32, layers=2, heads=4, context=96)
ring = torch.tensor(lesson * 2)
rate, steps = 0.01, 1200
adam = torch.optim.Adam(small.parameters(), lr=rate, fused=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(adam, rate, total_steps=steps)
for _ in range(steps):
    starts = torch.randint(len(lesson), (8, 1))
    texts = ring[starts + torch.arange(97)]
    loss = cross_entropy(small(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())
    adam.zero_grad()
    loss.backward()
    adam.step()
    schedule.step()


# %% [markdown]
# `models.Decoder` is a row of blocks. This is one of them: your cache, for all heads of all texts at once. The new tokens stand at
# the places from `start` on.


# %% tags=["slide", "slide-code"] minutes=1 headline="A block writes its new keys, and reads all"
def run_block(block, x, cache, start):
    """Return a block's output; cache (2, N, heads, room, d) takes the new keys and values."""
    split = block.qkv(block.norm1(x)).unflatten(-1, (-1, block.head_width)).transpose(1, 2)
    queries, keys, values = split.split((block.heads, block.kv_heads, block.kv_heads), dim=1)
    end = start + x.shape[1]
    cache[0, :, :, start:end], cache[1, :, :, start:end] = keys, values
    keys, values = cache[:, :, :, :end]
    seen = models.causal_attention(queries, keys, values)
    x = x + block.out(seen.transpose(1, 2).flatten(2))
    return x + block.down(gelu(block.up(block.norm2(x))))


# %%
x, (ours, theirs) = torch.randn(1, 6, 32), torch.zeros(2, 2, 1, 4, 96, 8)
with torch.no_grad():
    block = small.blocks[0]
    apart = run_block(block, x, ours, 0) - block(x, theirs, 0)
    heads = block.qkv(block.norm1(x))[0].unflatten(-1, (-1, block.head_width))
one_head = heads[:, 0], heads[:, block.heads], heads[:, -block.kv_heads]
found = one_by_one(attend_new, *one_head)
same = torch.isclose(found, scaled_dot_product_attention(*one_head, is_causal=True), atol=1e-5)
right = int(same.all(dim=1).sum())
print(f"one head by your attend_new: {right} of {len(found)} tokens as all at once")
assert same.all()
print(f"largest difference from the library's block: {float(apart.abs().max()):.1g}")
print(f"numbers in the cache that differ: {int((ours != theirs).sum())}")
assert torch.equal(ours, theirs)
assert not apart.any()

# %% [markdown]
# Around the blocks runs the loop of decoding. It takes the token with the largest logit, and gives it back in:


# %%
@torch.no_grad()
def write(model, text, count, cached=True):
    cache, new, through = model.new_cache() if cached else None, text, 0
    for _ in range(count):
        logits = model(new, cache, text.shape[1] - new.shape[1])
        token = logits[:, -1:].argmax(-1)
        through += new.shape[1]
        text = torch.cat((text, token), dim=1)
        new = token if cached else text
    return text, through


# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Each step adds a key and a value to the cache" layout="steps"
frames, words = [], ["one", ",", "two", ",", "three", ",", "four", ","]
for end in range(4, 8):
    first, places = end - 1 if end > 4 else 0, range(end)
    spans = [("goes in", at, "computing", words[at]) for at in places[first:]]
    for lane in ("keys", "values"):
        kinds = ["data, kept in the cache"] * first + ["computing"] * (end - first)
        spans += [(lane, at, kinds[at], f"{lane[0]}{at + 1}") for at in places]
    spans.append(("comes out", end, "computing, comes out", words[end]))
    spans = [plotting.Span(lane, at, at + 1, *kind) for lane, at, *kind in spans]
    how = {"unit": "", "xlabel": "place in the text", "until": 8}
    frames.append(plotting.gantt(spans, title="One step of the loop", **how))
plotting.play(
    frames,
    title="Decoding with a cache",
    captions=["The whole prompt goes in"] + 3 * ["What came out goes in, alone"],
    alt="The prompt fills the cache; then each step adds a token's key and value.",
)

# %% [markdown] tags=["explain"]
# The first pass takes the prompt, all its tokens at once: that is [prefill](glossary.md#prefill). Without a cache the whole text would go
# in at every step. Let the prompt have 6 tokens, and write 90 more.

# %% tags=["predict"]
through = helpers.predict("No cache: how many times as many tokens through the model?", "x")
through

# %% tags=["run"]
prompt = ring[None, 168:174]
text, with_cache = write(small, prompt, 90)
again, without_cache = write(small, prompt, 90, cached=False)

# %% tags=["look"]
modelled = sum(range(6, 96)) / (6 + 89)
through.reveal(modelled=modelled, counted=without_cache / with_cache)
print(f"{int((text == again).sum())} of {text.numel()} tokens are the same in both")
print(" ".join(vocabulary[token] for token in text[0, :48]).replace(" ,", ","))
assert torch.equal(text, again)
assert torch.equal(text[0], ring[168 : 168 + 96])

# %% [markdown] tags=["explain"]
# Without a cache each step takes the whole text, 6 to 95 tokens. With it one is enough, and the text is the same: the cache holds what
# would be computed again. (The model counts right up to its 96 positions. A 97th was never trained.)

# %% [markdown] tags=["slide"] minutes=2 headline="A step waits for the weights"
# ## Part 2: the time of a step
#
# - A step multiplies each matrix by *one* vector
# - Lesson 02: that waits for the matrix
# - Each text also reads its own cache
#
# For time we take a larger model, with random weights. It babbles, but bytes and time do not depend on that.

# %%
torch.manual_seed(0)
sizes = {"width": 4096, "heads": 32} if device == "cuda" else {"width": 512, "heads": 8}
big = models.Decoder(256, layers=8, context=1024, **sizes).to(device).eval()
counts = decoding.count_step(decoding.config_of(big), bits=32)
tables = big.tokens.weight.nbytes + big.positions.weight.nbytes
assert counts.weight_bytes == sum(each.nbytes for each in big.parameters()) - tables
weights = counts.weight_bytes // 4
cached = decoding.config_of(big).cache_bytes(number_bytes=4) // 4
print(f"a step reads {weights:,} weights, and {cached:,} numbers for each token in a cache")

# %% [markdown]
# (Input tables are not among these weights: of them a step reads one row.)
#
# **Your turn**: the model of a step. All texts share the weights, each has a cache of its own. A product takes the time of its
# bytes or of its arithmetic, whichever is longer; attention over a cache waits for its bytes.


# %% tags=["yours"] yours="step_s"
def step_s(batch, weights, cached, bandwidth, peak):
    """Return a step's seconds: weights, and cached numbers of each text, of 4 bytes each."""
    products = max(4 * weights / bandwidth, 2 * batch * weights / peak)
    return products + 4 * batch * cached / bandwidth


# %% checks="step_s"
asked = exercises.Checks("The time of a step", step_s)
slips = {
    88.0: "All texts share the weights: they are read once",
    22.0: "Each text reads a cache of its own",
    38.0: "Arithmetic goes on while weights arrive: take the longer, not the sum",
    12.0: "A number has 4 bytes",
}
goal = "four texts: the bytes of the weights decide"
asked.returns(goal, (4, 100, 10, 20, 80), expected=28.0, mistakes=slips)
slips = {52.0: "Each text has multiply-adds of its own, two operations each"}
goal = "sixteen texts: their arithmetic decides"
asked.returns(goal, (16, 100, 10, 20, 80), expected=72.0, mistakes=slips)
step_s = asked.settle()


# %% wrong="step_s" says="they are read once"
def step_s(batch, weights, cached, bandwidth, peak):
    return max(4 * batch * weights / bandwidth, 2 * batch * weights / peak) + (
        4 * batch * cached / bandwidth
    )


# %% wrong="step_s" says="a cache of its own"
def step_s(batch, weights, cached, bandwidth, peak):
    return max(4 * weights / bandwidth, 2 * batch * weights / peak) + 4 * cached / bandwidth


# %% wrong="step_s" says="not the sum"
def step_s(batch, weights, cached, bandwidth, peak):
    return (
        4 * weights / bandwidth + 2 * batch * weights / peak + 4 * batch * cached / bandwidth
    )


# %% wrong="step_s" says="multiply-adds of its own"
def step_s(batch, weights, cached, bandwidth, peak):
    return max(4 * weights / bandwidth, 2 * weights / peak) + 4 * batch * cached / bandwidth


# %% [markdown]
# Both rates come from products on this machine: one matrix with as many weights as the model, times a vector, and a square times
# a square. (Matrix and model are equally large, so both come from main memory, or both fit into a large last cache.)

# %% tags=["run"]
side = round(weights**0.5)
matrix, vector = torch.rand(side, side, device=device), torch.rand(side, 1, device=device)
square = torch.rand(1024, 1024, device=device)
cache, prompts = big.new_cache(), torch.zeros(1, 128, dtype=torch.int64, device=device)
calls = {
    "one matrix": lambda: matrix @ vector,
    "step": lambda: big(prompts[:, :1], cache, 64),
    "5 tokens": lambda: big(prompts[:, :5], cache, 64),
    "prompt of 128": lambda: big(prompts, cache),
}
with torch.no_grad():
    once = timing.compare(calls, budget_s=2.5, precision=0.15)
    product = helpers.measure(lambda: square @ square, budget_s=0.5)
bandwidth = 4 * weights / once.candidate("one matrix").median_s
peak = units.flops_from_macs(1024**3) / product.median_s

# %% tags=["look", "nbval-ignore-output"]
step_time = once.candidate("step").time_ratio
print(f"{units.text(bandwidth, 'B/s')}, {units.text(peak, 'FLOP/s')}")
print(f"a step takes {step_time:.2f} times as long as the one matrix")
print(f"while a weight arrives: {4 / bandwidth * peak / 2:.0f} multiply-adds")

# %% [markdown] tags=["explain"]
# A prompt's 128 tokens share the weights as well, but each has multiply-adds of its own. The last line above says how many of them your
# machine does while one weight arrives.

# %% tags=["predict"]
prefill = helpers.predict("A prompt of 128 tokens: how many times as long as a step?", "x")
prefill

# %% tags=["run"]
one, many = (step_s(tokens, weights, 0, bandwidth, peak) for tokens in (1, 128))
five, measured = (
    once.candidate(name).time_ratio / step_time for name in ("5 tokens", "prompt of 128")
)

# %% tags=["look", "nbval-ignore-output"]
prefill.reveal(modelled=many / one, measured=measured)

# %% tags=["look"]
sentence = "a step takes about the time of one matrix of as many weights"
timing.claim(sentence, step_time, at_least=0.7, at_most=3, evidence=once)
sentence = "128 tokens at once take less than a third of 128 steps"
timing.claim(sentence, measured, at_most=128 / 3, evidence=once)
timing.claim("5 tokens at once take less than 4 steps", five, at_most=4, evidence=once)

# %% [markdown] tags=["explain"]
# Token for token, a prompt is quick to read and an answer slow to write. So Part 1's 48 was a ratio of work and not of time, because
# a whole text at once costs far less than as many steps.

# %% [markdown] tags=["slide"] minutes=2 headline="Many texts share one reading of the weights"
# ## Part 3: many texts at once
#
# - A server writes many answers at a time
# - Each step reads the weights once, for all of them
# - So what do seven more texts cost?
#
# Each text has 64 tokens in its cache. Eight texts need eight multiply-adds for each weight.

# %% tags=["predict"]
eight = helpers.predict("8 texts at once: how many times the time of a step for one?", "x")
eight


# %% tags=["run"]
def parts(batch):
    cache = big.new_cache(batch, 65)
    new = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    linears = [each for each in big.modules() if isinstance(each, nn.Linear)]
    inputs = [torch.rand(batch, 1, each.in_features, device=device) for each in linears]
    query = torch.rand(batch, big.blocks[0].heads, 1, cache.shape[-1], device=device)
    return {
        "step": lambda: big(new, cache, 64),
        "products": lambda: [f(x) for f, x in zip(linears, inputs, strict=True)],
        "attention": lambda: [models.causal_attention(query, *layer) for layer in cache],
    }


batches = (1, 2, 4, 8, 16, 32)
with torch.no_grad():
    tries = [timing.compare(parts(each), budget_s=1.2, precision=0.2) for each in batches]

# %% tags=["look", "nbval-ignore-output"]
times = [{row.name: row.median_s for row in each.candidates} for each in tries]
modelled = [step_s(batch, weights, 65 * cached, bandwidth, peak) for batch in batches]
steps = [each["step"] for each in times]
eight.reveal(modelled=modelled[3] / modelled[0], measured=steps[3] / steps[0])
share = times[3]["attention"] / times[3]["step"]
print(f"attention to the cache, alone: {share:.0%} of the step for 8 texts")

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="More texts take longer than their bytes say"
drawn, axes = plotting.figure(title="A step of more texts: the model tells a part of its time")
axes.plot(batches, modelled, color=plotting.MODELLED, label="modelled: bytes, arithmetic")
sums = [each["products"] + each["attention"] for each in times]
how = {"color": plotting.MODELLED, "linestyle": ":", "marker": "."}
axes.plot(batches, sums, **how, label="products alone + attention alone")
axes.plot(batches, steps, "o", color=plotting.MEASURED, label="measured")
axes.set_xscale("log", base=2)
axes.set_xticks(batches, batches)
axes.set(xlabel="texts at once", ylabel="a step", ylim=(0, None))
plotting.unit_axis(axes, "y", "s")
axes.legend()
plotting.show(
    drawn, alt="Over the texts the measured step grows, as does the sum of its parts."
)

# %% tags=["look"]
shares = [sum(row.time_ratio for row in each.candidates[1:]) for each in tries]
sentence = "products alone and attention alone add up to about a step"
timing.claim(sentence, shares, at_least=0.5, at_most=1.3, evidence=tries)
sixteen = steps[4] / steps[0]
timing.claim("16 texts take less than half of 16 steps", sixteen, at_most=8, evidence=tries)

# %% [markdown] tags=["explain"]
# The step grows far more than the model says. We timed its parts alone: from eight texts up, most of what the model lacks is in the
# products. So take one product, an eighth of Part 2's matrix, and change only the rows that it meets, one for each text.
#
# Which program runs, we cannot see. But a program that adds in another order rounds otherwise: compare row 1 of the
# results, bit by bit.

# %% tags=["run"]
counts = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 24, 32)
texts, eighth = torch.rand(32, side, device=device), matrix[: side // 8].T
calls = {str(count): lambda x=texts[:count]: x @ eighth for count in counts}
by_rows = timing.compare(calls, budget_s=3, precision=0.2)
firsts = [call()[0] for call in calls.values()]
orders = [0]
for before, after in pairwise(firsts):
    orders.append(orders[-1] + (not torch.equal(before, after)))

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="One product grows in stairs, and its last bits change"
drawn, axes = plotting.figure(
    title="One matrix, more rows: how many times as long as one row?"
)
least = [step_s(count, weights, 0, bandwidth, peak) for count in counts]
least = [each / least[0] for each in least]
axes.plot(counts, least, color=plotting.MODELLED, label="modelled: bytes, arithmetic")
taken = [row.minimum_s / by_rows.candidates[0].minimum_s for row in by_rows.candidates]
for order in range(orders[-1] + 1):
    here = [place for place, each in enumerate(orders) if each == order]
    how = {"color": plotting.MEASURED, "marker": "os^Dv*"[order % 6], "linestyle": ""}
    label = f"measured, row 1 rounded as in {counts[here[0]]} row{'s' * (here[0] > 0)}"
    axes.plot([counts[at] for at in here], [taken[at] for at in here], **how, label=label)
axes.set(xlabel="rows: texts at once", ylabel="times", ylim=(0, 1.6 * max(taken)))
axes.legend(loc="upper left")
plotting.show(drawn, alt="With more rows one product takes longer, in stairs, not in a line.")

# %% [markdown] tags=["explain"]
# The weights are the same bytes for any number of rows. But the dots climb in stairs: on the machine of this page by one for every
# three rows, as if its program read the whole matrix again for each three. Where the marker changes, row 1 is rounded otherwise, so
# another program ran: the one for 16 rows takes less time than the other for 15. Your machine may have other stairs, or none. The
# model knows no programs: it is a floor.
#
# (So the last bits of a text's logits can depend on how many texts are beside it.)
#
# Text for text, a large batch is still cheaper. What ends that?

# %% [markdown] tags=["slide"] minutes=2 headline="Each text has a cache of its own"
# ## Part 4: what the cache weighs
#
# - A token: key and value, in each layer, in each head
# - Weights are shared by all texts
# - A cache is not
#
# Here is the bet's model, on the device *meta* (shapes without data), with room for one token:

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Half a megabyte for a few letters"
with torch.device("meta"):
    llama = models.Decoder(32_000, width=4096, layers=32, heads=32, hidden=11_008)
a_token = llama.bfloat16().new_cache(batch=1, tokens=1).nbytes
bet.reveal(modelled=2 * 32 * 4096 * 2, counted=a_token)

# %% [markdown] tags=["explain"]
# Half a megabyte for a few letters. (`Decoder` has Llama's layers and heads; Llama's feed-forward has a third matrix and its
# positions are made otherwise, which the cache does not notice.)
#
# In [grouped-query attention](glossary.md#grouped-query-attention) (Ainslie and others, 2023) several query heads share a head of
# keys and values. Llama 3 8B has 32 heads of queries and 8 of keys, and its weights are read once a step, for all texts together:

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A long cache outweighs the weights"
llama3 = decoding.CONFIGS["Llama 3 8B"]
read = decoding.read_bytes(llama3)
tokens = [1000, 1_000_000]
drawn, axes = plotting.figure(title="Llama 3 8B: what a step reads")
axes.axhline(read, color="#444444")
axes.text(1100, 1.2 * read, f"weights: {units.text(read, 'B')}", color="#444444")
for heads, style in {32: "--", 8: "-"}.items():
    size = [heads / 8 * llama3.cache_bytes(each) for each in tokens]
    axes.loglog(tokens, size, color=plotting.MODELLED, linestyle=style)
    equal = read / (heads / 8 * llama3.cache_bytes())
    axes.plot(equal, read, "o", color="#444444")
    words = f"{heads} heads of keys:\n{equal:,.0f} tokens"
    how = {"textcoords": "offset points", "ha": "right" if heads == 32 else "left"}
    axes.annotate(words, (equal, read), (-8, 12) if heads == 32 else (8, -32), **how)
axes.set(xlabel="tokens in the caches of all texts", ylabel="bytes")
plotting.unit_axis(axes, "y", "B")
plotting.show(
    drawn, alt="Two lines of caches cross the weights, 32 heads at a quarter of the tokens."
)

# %% [markdown] tags=["explain"]
# (The dashed line is what 32 heads of keys would make of it, with the same weights.) Right of a dot,
# caches are most of what a step reads, and no batch shares their cost. All of it must also fit: 15 GB of cache, and the weights with
# the input table, which a step does not read.
#
# **Your turn.** In each of N texts one token is new: `queries` (N, heads, d). Of 8 query heads and 2 heads of `keys`
# (N, 2, t, d), heads 0 to 3 share the first, 4 to 7 the second. `scaled_dot_product_attention` takes several rows of queries for a
# head of keys. Copy nothing: the check notes what is written.


# %%
class Written(TorchDispatchMode):
    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **kwargs or {})
        given = {each.untyped_storage() for each in args if isinstance(each, torch.Tensor)}
        for each in found if isinstance(found, tuple) else [found]:
            if isinstance(each, torch.Tensor) and each.untyped_storage() not in given:
                self.largest = max(self.largest, each.numel())
        return found


def copied(function, queries, keys, values):
    with Written() as noted:
        function(queries, keys, values)
    return "keys copied" if noted.largest > keys.numel() else "nothing copied"


# %% tags=["yours"] yours="grouped"
def grouped(queries, keys, values):
    """Return attention (N, heads, d) of queries to keys and values (N, kv_heads, t, d)."""
    rows = queries.unflatten(1, (keys.shape[1], -1))
    return scaled_dot_product_attention(rows, keys, values).flatten(1, 2)


# %% checks="grouped"
asked = exercises.Checks("Heads that share", grouped)
query, key = torch.randn(3, 8, 4).double(), torch.randn(3, 2, 64, 4).double()
value = torch.randn_like(key)
one_row, twice = query[:, :, None], (key.repeat(1, 4, 1, 1), value.repeat(1, 4, 1, 1))
each = [given.repeat_interleave(4, dim=1) for given in (key, value)]
whole = scaled_dot_product_attention(one_row, *each)[:, :, 0]
turns = scaled_dot_product_attention(one_row, *twice)[:, :, 0]
hashable = tuple(tuple(map(tuple, text)) for text in turns.tolist())
slips = {hashable: "Neighbours share: heads 0 to 3 have the first"}
goal, given = "8 heads of queries, 2 of keys", (query, key, value)
asked.returns(goal, given, expected=whole, mistakes=slips)
slips = {"keys copied": "Keys were copied for each head: make rows of the queries instead"}
goal, free = "no key is copied", "nothing copied"
asked.returns(goal, given, call=copied, expected=free, mistakes=slips)
grouped = asked.settle()


# %% wrong="grouped" says="Neighbours share"
def grouped(queries, keys, values):
    rows = queries.unflatten(1, (-1, keys.shape[1])).transpose(1, 2)
    return scaled_dot_product_attention(rows, keys, values).transpose(1, 2).flatten(1, 2)


# %% wrong="grouped" says="Keys were copied for each head"
def grouped(queries, keys, values):
    group = queries.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
    return scaled_dot_product_attention(queries[:, :, None], keys, values)[:, :, 0]


# %% [markdown]
# A shorter program copies each head of keys and values for its four query heads, and goes on as with 32 of them. Count its bytes:
# what it reads, what it writes, and what it reads again.

# %% tags=["predict"]
copies = helpers.predict("8 heads of keys copied to 32: times as long as with 32?", "x")
copies

# %% tags=["run"]
query = torch.randn(1, 32, 128, device=device)
many = torch.randn(2, 1, 32, 4096, 128, device=device)
few = many[:, :, :8].contiguous()
calls = {
    "32": lambda: scaled_dot_product_attention(query[:, :, None], *many),
    "copied": lambda: scaled_dot_product_attention(
        query[:, :, None], *few.repeat_interleave(4, dim=2)
    ),
    "shared": lambda: grouped(query, *few),
}
shared = timing.compare(calls, budget_s=1.5, precision=0.1)

# %% tags=["look", "nbval-ignore-output"]
ratios = {row.name: row.time_ratio for row in shared.candidates}
copies.reveal(modelled=1 / 4 + 1 + 1, measured=ratios["copied"])
print(f"8 heads, shared: {ratios['shared']:.2f} times (measured) that of 32")

# %% tags=["look"]
ratio = ratios["shared"] / ratios["copied"]
sentence = "shared heads take less than half the time of copied ones"
timing.claim(sentence, ratio, at_most=1 / 2, evidence=shared)

# %% [markdown] tags=["explain"]
# A quarter is read, all 32 are written, all 32 are read: the copy costs more than the fewer heads saved in reading. What is kept is still a
# quarter.

# %% [markdown] tags=["slide"] minutes=2 headline="Fewer bits and more cards mean fewer bytes a card"
# ## Part 5: fewer bits, more cards
#
# - If bytes are the time, use fewer bits
# - Or give each card (GPU) a part of each matrix
# - A published table shows what came of it
#
# Round each weight to one of 255 steps (8 bits) or 15 (4 bits), with a scale for each row. Does our small model still count?


# %% tags=["look", "nbval-ignore-output"]
def rounded(model, bits):
    new = copy.deepcopy(model)
    for layer in (each for each in new.modules() if isinstance(each, nn.Linear)):
        rows, steps = layer.weight.data, 2 ** (bits - 1) - 1
        scales = rows.abs().amax(dim=1, keepdim=True) / steps
        rows.copy_((rows / scales).round() * scales)
    return new


small.requires_grad_(False)
sure, rows = small(text).softmax(-1), {}
least = float(sure[0, 5:-1].amax(-1).min())
print(f"the token of which the model was least sure had a probability of {least:.0%}")
for bits in (8, 4, 3, 2):
    less = rounded(small, bits)
    moved = float((less(text).softmax(-1) - sure).abs().max())
    same = int((write(less, prompt, 90)[0] == text)[0, 6:].sum())
    rows[f"{bits} bits"] = f"{moved:.1g}", f"{same} of 90"
assert rows["8 bits"][1] == "90 of 90"
pd.DataFrame(rows, index=["largest change of a probability", "tokens as before"]).T

# %% [markdown] tags=["explain"]
# With 8 bits no token changes here: this model is sure of each, and its probabilities move little. Where two tokens are nearly as
# likely, a small move decides, and the text goes another way; here it takes very few bits.
#
# And the time? gpt-fast, a small program by pytorch-labs, published how fast it writes one text with Llama 2 7B on an A100:

# %%
configs, source = decoding.CONFIGS, decoding.GPT_FAST_SOURCE
found = {(row.model, row.bits, row.gpus): row.tokens_per_s for row in decoding.GPT_FAST[:13]}
sizes = {bits: decoding.read_bytes(configs["Llama 2 7B"], bits=bits) for bits in (16, 8)}
token_s = {bits: 1 / found["Llama 2 7B", bits, 1] for bits in (16, 8)}
bytes_s = {bits: read / 2039e9 for bits, read in sizes.items()}  # A100 80 GB, data sheet
print(f"16 bits: a token takes {units.text(token_s[16], 's')} (published)")
print(f"its {units.text(sizes[16], 'B')} take {units.text(bytes_s[16], 's')} at 2,039 GB/s")

# %% [markdown]
# Weights of 8 bits are half the bytes. What of a token's time the bytes do not explain, we let stay as it is.

# %% tags=["predict"]
int8 = helpers.predict("A100, weights of 8 bits: how many times the tokens/s of 16 bits?", "x")
int8

# %% tags=["run"]
rest_s = token_s[16] - bytes_s[16]
with_rest = token_s[16] / (bytes_s[8] + rest_s)

# %% tags=["look"]
int8.reveal(modelled=with_rest, published=token_s[16] / token_s[8], source=source)

# %% [markdown] tags=["explain"]
# Half the bytes, and not twice the tokens: bytes at the data sheet's [bandwidth](glossary.md#bandwidth) do not explain a third of the
# time. A card may not reach its data sheet's bandwidth, or does something else meanwhile; the table does not say.
#
# Beside its tokens it prints a "Memory Bandwidth (GB/s)". Here is where that column comes from:

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A published bandwidth is weights times tokens a second" mark="7B, 16 bits, 1 x"
rows = {}
for row in decoding.GPT_FAST:
    stored = decoding.stored_bytes(configs[row.model], bits=row.bits, gpus=row.gpus) / 1e9
    product, printed = stored * row.tokens_per_s, row.bandwidth_bytes_per_s / 1e9
    numbers = f"{stored:.3f}", f"{row.tokens_per_s}", f"{product:.2f}", f"{printed:.2f}"
    what = f"{row.model[8:]}, {row.bits} bits, {row.gpus} x {row.device}"
    rows[what] = *numbers, f"{100 * abs(product / printed - 1):.2f}"
columns = ["GB a card", "tokens/s", "product", "printed", "off by %"]
fit = sum(float(off) < 0.02 for *_, off in rows.values())
print(f"{fit} of {len(rows)} rows fit; the first eight:")
pd.DataFrame(rows, index=columns).T[:8]

# %% [markdown] tags=["explain"]
# No bandwidth was measured. The column is all weights of a card, times tokens a second, as gpt-fast's `generate.py` computes it; so it
# counts the input table, too, which a step does not read. Three rows do not fit to rounding, the first by more than one per cent: perhaps their
# two numbers come from different runs.
#
# Now more cards. Each has a part of each matrix, and twice a layer they add up what they found (lesson 06). The reading of weights
# divides by the cards; the adding up does not, and other things may not.

# %%
cards_s = {cards: 1 / found["Llama 2 70B", 16, cards] for cards in (2, 4, 8)}
for cards in (2, 8):
    print(f"70B on {cards} cards: a token takes {units.text(cards_s[cards], 's')} (published)")

# %% tags=["predict"]
four = helpers.predict("Llama 2 70B on four cards: how long does a token take?", "s")
four

# %% tags=["run"]
divided = (cards_s[2] - cards_s[8]) / (1 / 2 - 1 / 8)
stays = cards_s[8] - divided / 8

# %% tags=["look"]
four.reveal(modelled=divided / 4 + stays, published=cards_s[4], source=source)
print(f"what stays: {1e6 * stays / 160:.0f} microseconds for each of 160 sums")

# %% [markdown] tags=["explain"]
# Two rows predict the third, with a part that cards divide and one that stays. Is it the sums? One adds up 8,192 numbers, 16 kB, and at
# 100 GB/s that takes a sixth of a microsecond. [Latency](glossary.md#latency) and launching work take longer. But a single card, which adds
# nothing up, left time unexplained as well, so the sums need not be any of it.

# %% [markdown] tags=["slide"] minutes=2 headline="A draft guesses, and the model judges"
# ## Part 6: guess ahead
#
# - A small, fast *draft* guesses four tokens
# - The model looks at all four in one pass
# - It keeps the first ones that it agrees with, and adds one of its own
#
# Part 2: a few tokens at once cost less than as many steps. This is [speculative decoding](glossary.md#speculative-decoding)
# (Leviathan and others, 2023). Models draw their tokens by chance. So which guesses may be kept, if the text is to be distributed as the
# model alone would write it? An example:
#
# | token | a | b | c |
# |---|--:|--:|--:|
# | the model's probability $p$ | 0.5 | 0.3 | 0.2 |
# | the draft's probability $q$ | 0.2 | 0.3 | 0.5 |
#
# - The draft guesses a too seldom: a guess of a is always kept.
# - It guesses c too often: keep some of these guesses, so that c is written with its $p$.
# - When a guess falls, draw from the tokens that are still short of their $p$.
#
# **Your turn**:


# %%
def distribution(function, model, draft):
    keep, rest = function(model, draft)
    guessed = draft * keep
    return guessed + (1 - guessed.sum()) * rest


def kept(function, model, draft):
    return (draft * function(model, draft)[0]).sum()


# %% tags=["yours"] yours="verify"
def verify(model, draft):
    """Return the chance that each guess is kept, and the distribution for when it is not."""
    keep = (model / draft).clamp(max=1)
    missing = (model - draft).clamp(min=0)
    return keep, missing / missing.sum()


# %% checks="verify"
asked = exercises.Checks("Kept or drawn again", verify)
model, draft = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]], dtype=torch.float64)
again = (0.35, 0.39, 0.26)
slips = {
    again: "What is drawn again must fill what is missing: where the draft guesses too seldom",
    (0.2, 0.3, 0.5): "All guesses are kept: that is the draft's text",
}
goal = "the text is distributed as the model's"
asked.returns(goal, (model, draft), call=distribution, expected=model, mistakes=slips)
slips = {0.29: "A guess may be kept more often, and the text stays the model's"}
goal = "and as many guesses as possible are kept"
asked.returns(goal, (model, draft), call=kept, expected=0.7, mistakes=slips)
verify = asked.settle()


# %% wrong="verify" says="where the draft guesses too seldom"
def verify(model, draft):
    return (model / draft).clamp(max=1), model


# %% wrong="verify" says="All guesses are kept"
def verify(model, draft):
    missing = (model - draft).clamp(min=0)
    return torch.ones_like(model), missing / missing.sum()


# %% wrong="verify" says="may be kept more often"
def verify(model, draft):
    missing = model - draft * model
    return model, missing / missing.sum()


# %% tags=["look", "slide", "slide-output"] minutes=1 headline="What is kept and what is drawn again add up"
keep, rest = verify(model, draft)
kept_part = draft * keep
again = (1 - kept_part.sum()) * rest
drawn, axes = plotting.figure(title="Left: what the draft guesses. Right: what is written")
left, right = torch.arange(3) - 0.2, torch.arange(3) + 0.2
for places in (left, right):
    label = "guessed and kept" if places is left else None
    axes.bar(places, kept_part, 0.36, color="#882255", label=label)
axes.bar(left, draft - kept_part, 0.36, kept_part, color="#BBBBBB", label="guessed, falls")
blue = plotting.COLOURS["computing"]
axes.bar(right, again, 0.36, kept_part, color=blue, label="drawn again")
axes.hlines(model, left - 0.2, right + 0.2, color="#222222", label="the model alone, p")
axes.set_xticks(range(3), ["token a", "token b", "token c"])
axes.set(ylabel="probability", ylim=(0, 0.68))
axes.legend(ncols=2)
plotting.show(drawn, alt="For each token, what is kept and what is drawn again add up to p.")

# %% [markdown] tags=["explain"]
# That is the proof: what is kept is $\min(p, q)$, and what is drawn again fills it up to $p$. It fits, because $p$ and $q$ both add up to
# 1: what falls weighs as much as what is missing. Of all guesses 70 % are kept here. When
# one falls, those after it fall as well.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 5]
a_call = helpers.predict(
    "Four guesses a call, each kept with 70 %: how many tokens a call?", "tokens"
)
a_call

# %% tags=["run"]
chance = torch.Generator().manual_seed(0)
guesses = torch.multinomial(draft, 400_000, replacement=True, generator=chance).view(-1, 4)
agreed = torch.rand(guesses.shape, generator=chance) < keep[guesses]
tokens = 1 + agreed.int().cumprod(dim=1).sum(dim=1)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="A guess counts if all before it were kept"
modelled = sum(0.7**guess for guess in range(5))
a_call.reveal(modelled=modelled, simulated=float(tokens.double().mean()))

# %% [markdown] tags=["explain"]
# $1 + 0.7 + 0.7^2 + 0.7^3 + 0.7^4$: the model's own token, and each guess if all before it were kept.
#
# Here is the whole of it: your rule applied to a row of guesses, and the loop.


# %% tags=["slide", "slide-code"] minutes=2 headline="The rule, applied to a row of guesses"
def judged(guesses, targets, drafts):
    for place, guess in enumerate(guesses):
        keep, rest = verify(targets[place], drafts[place])
        if torch.rand(()) >= keep[guess]:
            return [*guesses[:place], int(rest.multinomial(1))]
    return [*guesses, int(targets[-1].multinomial(1))]


# %%
@torch.no_grad()
def guess_ahead(model, draft, text, count, ahead=4):
    cache, known, calls = model.new_cache(), 0, []
    while (left := count - sum(map(len, calls))) > 0:
        guesses, drafts = [], []
        for _ in range(min(ahead, left - 1)):
            drafts.append(draft([*text, *guesses]))
            guesses.append(int(drafts[-1].multinomial(1)))
        new = torch.tensor([[*text[known:], *guesses]])
        likeliest = model(new, cache, known)[0, -len(guesses) - 1 :].argmax(-1)
        targets = one_hot(likeliest, len(vocabulary)).double()
        calls.append(judged(guesses, targets, drafts))
        known, text = len(text) + len(calls[-1]) - 1, text + calls[-1]
    return calls


# %% [markdown]
# The first `known` tokens have their keys in the cache. Behind them stand keys of guesses that fell; the next pass writes over those. The
# model takes its likeliest token, so its $p$ is 1 for that one.
#
# As the draft of our counting model we take a table: which token followed the last two, or three, in the text that we trained on?

# %% tags=["run"]
asked_for, alone = prompt[0].tolist(), text[0, 6:].tolist()
torch.manual_seed(0)
runs = {}
for last in (2, 3):
    table = decoding.NGram(lesson, order=last + 1, vocabulary=len(vocabulary))
    runs[last] = calls = guess_ahead(small, table, asked_for, 90)
    tokens = [token for call in calls for token in call]
    assert decoding.speculate(small, table, asked_for, 90).tokens == tuple(tokens)
    same = sum(one == other for one, other in zip(tokens, alone, strict=True))
    print(f"by the last {last}: {same} of 90 tokens are the same, in {len(calls)} calls,")
    print(f"{90 / len(calls):.2f} tokens a call")
print(f"a call on 5 tokens: {five:.2f} times (measured) a step of the large model")

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A call adds the guesses that it keeps, and a token"
spans = []
for last, calls in {2: runs[2][:7], 3: runs[3][:2]}.items():
    place = 0
    for number, call in enumerate(calls, start=1):
        kinds = ["guessed and kept"] * (len(call) - 1) + ["computing, its own"]
        for kind, token in zip(kinds, call, strict=True):
            lane = f"last {last}, call {number}"
            spans.append(plotting.Span(lane, place, place + 1, kind, vocabulary[token]))
            place += 1
title = "Drafts by the last two tokens, and by the last three"
drawn = plotting.gantt(spans, title=title, unit="", xlabel="tokens written")
drawn.axes[0].set_xticks(range(11))
plotting.show(
    drawn, alt="Looking two tokens back a call adds one or two, three back it adds five."
)

# %% [markdown] tags=["explain"]
# The rule promises the same distribution. Our model always takes its likeliest token, so here it is the same text; the check of your
# `verify` tried chances. Guessing pays where a call brings more tokens than it costs steps, the draft's own time included. The draft by
# the last two tokens brings 1.84, and loses where a call costs two steps. The one by the last three always brings five, the most there
# are, because it was made from this text: a best case.
#
# The [exercises](exercises/22_decoding_exercises.ipynb) have you cut the cache into pages, fill a server's places, choose how far to
# guess, and judge a web page's tokens a second.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Bytes are the floor of a step: weights once, and every text's cache.
# 2. Keep keys and values, share them between heads, copy nothing.
# 3. Guesses that the rule judges keep the distribution; they change the time.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $B$ texts of $T$ tokens; $W$ weights read in a step and $b$ bytes a number; $L$ layers, $K$ heads of keys of $d$ numbers; a memory's
# bandwidth $\beta$ and a peak of $F$ [FLOP](glossary.md#flop)/s; on $n$ cards a part $a$ of the time is divided and a
# part $c$ stays. A guess is kept with the probability $k$.
#
# | quantity | formula |
# |---|---|
# | cache of a token | $2\,L\,K\,d\,b$ bytes |
# | time of a step, modelled | $\max\left(\frac{b\,W}{\beta}, \frac{2\,B\,W}{F}\right) + \frac{B\,T \cdot 2\,L\,K\,d\,b}{\beta}$ |
# | tokens at which caches weigh as much as the weights | $\frac{W}{2\,L\,K\,d}$ |
# | time of a step on $n$ cards | $\frac{a}{n} + c$, from two measurements |
# | a guess with probabilities $p$ (model) and $q$ (draft) is kept with | $\min(1, \frac{p}{q})$ |
# | tokens a call, $g$ guesses | $\frac{1 - k^{g+1}}{1 - k}$ |
