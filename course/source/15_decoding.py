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
#     number: "15"
#     title: Decoding
#     needs: ["02", "07"]
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

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
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
# This is lesson 07's attention. In training all queries are there at once. In decoding one token is new: it brings *one* query,
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
# `models.Decoder` does so in every head of every layer, in some 60 lines that you can read. To see one write we train it on the
# numbers from one to ninety nine, in words; after these comes one again. A token is a word or a comma.

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
# The loop of decoding takes the token with the largest logit, and gives it back in:


# %% tags=["slide", "slide-code"] minutes=1 headline="Decoding is a loop: a token comes out and goes in"
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


# %% tags=["look", "slide", "slide-output"] minutes=2 headline="With a cache one token goes through the model" layout="steps"
frames, words = [], ["one", ",", "two", ",", "three", ",", "four"]
for new in range(3, 7):
    spans = []
    for lane, first in {"no cache": 0, "with a cache": new if new > 3 else 0}.items():
        for place in range(new + 1):
            kind = "computing" if place >= first else "data, in the cache"
            spans.append(plotting.Span(lane, place, place + 1, kind, words[place]))
    title = "What goes through the model for the next token"
    how = {"unit": "", "xlabel": "place in the text", "until": 8}
    frames.append(plotting.gantt(spans, title=title, **how))
plotting.play(
    frames,
    title="Decoding with and without a cache",
    alt="Without a cache all tokens are computed again in each step, with it only the last.",
)

# %% [markdown] tags=["explain"]
# The first pass takes the prompt, all its tokens at once: [prefill](glossary.md#prefill). Let the prompt have 6 tokens, and
# write 90 more.

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
# would be computed again.
#
# The model counts right to the end of its 96 positions. A 97th was never trained.

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
# A prompt's 128 tokens share the weights as well, but each has multiply-adds of its own. How many your machine does while a weight
# arrives stands above.

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
# The model has one [bandwidth](glossary.md#bandwidth) for all batches, and falls short. We timed the parts, each alone. With one text about
# half of what the line lacks is within the parts and half between them; from four texts up most of it is within, and mostly in the
# products. A likely cause, not tested here: libraries have one program for a matrix times a vector (gemv) and another for a matrix times
# a matrix (gemm, with lesson 10's tiles of sums). The model knows one.
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
# keys and values. Llama 3 8B has 32 heads of queries and 8 of keys, and its weights are read once a step, whoever writes:

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A long cache outweighs the weights"
llama3 = decoding.CONFIGS["Llama 3 8B"]
read = decoding.read_bytes(llama3)
tokens = [1000, 1_000_000]
drawn, axes = plotting.figure(title="Llama 3 8B: what a step reads")
axes.axhline(read, color="#444444", label="weights")
for heads, style in {32: "--", 8: "-"}.items():
    size = [heads / 8 * llama3.cache_bytes(each) for each in tokens]
    how = {"color": plotting.MODELLED, "linestyle": style}
    axes.loglog(tokens, size, **how, label=f"cache, {heads} heads of keys")
    equal = read / (heads / 8 * llama3.cache_bytes())
    axes.plot(equal, read, "o", color="#444444")
    axes.annotate(f"{equal:,.0f}", (equal, read), (5, -14), textcoords="offset points")
axes.set(xlabel="tokens in the caches of all texts", ylabel="bytes")
plotting.unit_axis(axes, "y", "B")
axes.legend()
plotting.show(
    drawn, alt="Two lines of caches cross the weights, 32 heads at a quarter of the tokens."
)

# %% [markdown] tags=["explain"]
# (The dashed line is what 32 heads of keys would make of it, with the same weights.) Right of a dot,
# caches are most of what a step reads, and a larger batch no longer helps. All of it must also fit: 15 GB of weights and as much cache
# are 30 GB.
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


# %% tags=["run"]
def rounded(model, bits):
    new = copy.deepcopy(model)
    for layer in new.modules():
        if isinstance(layer, nn.Linear):
            rows, steps = layer.weight.data, 2 ** (bits - 1) - 1
            scales = rows.abs().amax(dim=1, keepdim=True) / steps
            rows.copy_((rows / scales).round() * scales)
    return new


# %% tags=["look", "nbval-ignore-output"]
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
# likely, a small move decides, and the text goes another way: here with the fewest bits.
#
# And the time? gpt-fast, a small program by pytorch-labs, writes with Llama 2 7B on an A100, for one text. A step reads
# 13.2 GB with weights of 16 bits, and half as much with 8.

# %% tags=["predict"]
int8 = helpers.predict("A100, weights of 8 bits: how many times the tokens/s of 16 bits?", "x")
int8

# %% tags=["run"]
configs = decoding.CONFIGS
found = {(row.model, row.bits, row.gpus): row.tokens_per_s for row in decoding.GPT_FAST[:13]}
sizes = {bits: decoding.read_bytes(configs["Llama 2 7B"], bits=bits) for bits in (16, 8)}
speedup = found["Llama 2 7B", 8, 1] / found["Llama 2 7B", 16, 1]

# %% tags=["look"]
source = decoding.GPT_FAST_SOURCE
int8.reveal(modelled=sizes[16] / sizes[8], published=speedup, source=source)
roof = 2039e9 / sizes[16]  # NVIDIA's data sheet of the A100 80 GB: 2,039 GB/s
print(f"16 bits: {found['Llama 2 7B', 16, 1]} of at most {roof:.0f} tokens a second")
step_s = 1 / found["Llama 2 7B", 16, 1]
with_rest = step_s / (step_s - 1 / roof + sizes[8] / sizes[16] / roof)
print(f"8 bits, if all else stays as it is: {with_rest:.2f} times")

# %% [markdown] tags=["explain"]
# Half the bytes, and not twice the tokens. With 16 bits already, a third of the time is not explained by the bytes at the data sheet's
# bandwidth. If that third stays when the bytes become half, 1.51 times is left, near what was published. What it is, the table does not
# say.
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
# Now more cards. Each has a part of each matrix, and twice a layer they add up what they found (lesson 05). The reading of weights
# divides by the cards; the adding up stays. Published: 70B takes 46.9 ms a token on two cards, and 16.0 ms on eight.

# %% tags=["predict"]
four = helpers.predict("Llama 2 70B on four cards: how long does a token take?", "s")
four

# %% tags=["run"]
token_s = {cards: 1 / found["Llama 2 70B", 16, cards] for cards in (2, 4, 8)}
divided = (token_s[2] - token_s[8]) / (1 / 2 - 1 / 8)
stays = token_s[8] - divided / 8

# %% tags=["look"]
four.reveal(modelled=divided / 4 + stays, published=token_s[4], source=source)
print(f"what stays: {1e6 * stays / 160:.0f} microseconds for each of 160 sums")

# %% [markdown] tags=["explain"]
# Two rows predict the third, with a part that cards divide and one that stays. A sum adds up 8,192 numbers, 16 kB. At 100 GB/s that
# takes a sixth of a microsecond, so these 36 are too long for a link's bandwidth. They may be [latency](glossary.md#latency) or launching
# work: the table does not say. (The head is in there as well, because every card reads all of it.)

# %% [markdown] tags=["slide"] minutes=2 headline="A draft guesses, and the model judges"
# ## Part 6: guess ahead
#
# - A small, fast *draft* guesses four tokens
# - The model looks at all four in one pass
# - It keeps the first ones that it agrees with, and adds one of its own
#
# Part 3: a few tokens at once cost less than as many steps. This is [speculative decoding](glossary.md#speculative-decoding)
# (Leviathan and others, 2023). Models draw their tokens by chance. Which guesses may be kept, if the text shall be distributed as the
# model alone would write it? Let the model give a token the probability $p$, and the draft $q$:
#
# - If the draft guesses a token too seldom, keep it always.
# - If it guesses it too often, keep it with a chance that leaves $p$ in all.
# - When a guess falls, draw from the tokens that are still short of $p$.
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


# %% tags=["look", "slide", "slide-output"] minutes=1 headline="What is kept and what is drawn again add up" mark="written"
keep, rest = verify(model, draft)
guessed = draft * keep
again = (1 - guessed.sum()) * rest
rows = {"the draft guesses": draft, "guessed and kept": guessed, "drawn again": again}
rows |= {"written": guessed + again, "the model alone": model}
table = {name: [f"{each:.2f}" for each in numbers] for name, numbers in rows.items()}
pd.DataFrame(table, index=["token a", "token b", "token c"]).T

# %% [markdown] tags=["explain"]
# The proof is the sum: what is kept is $\min(p, q)$, what is drawn again fills it up to $p$. Of all guesses 70 % are kept here. The
# guesses after one that falls fall with it.

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
# Now our counting model, and as its draft a table: which token followed the last two, or three, in the text that we trained on?
# The model takes its likeliest token, so its $p$ is 1 for that one. The rule is yours.

# %% tags=["run"]
asked_for, alone = prompt[0].tolist(), text[0, 6:].tolist()
runs = {}
for last in (2, 3):
    table = decoding.NGram(lesson, order=last + 1, vocabulary=len(vocabulary))
    run = decoding.speculate(small, table, asked_for, 90, ahead=4, verify=verify)
    same = sum(one == other for one, other in zip(run.tokens, alone, strict=True))
    print(f"by the last {last}: {same} of 90 tokens are the same, in {run.calls} calls,")
    print(f"{90 / run.calls:.2f} tokens a call")
    runs[last] = run
print(f"a call on 5 tokens: {five:.2f} times (measured) a step of the large model")

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A call adds the guesses that it keeps, and a token"
spans, place = [], 0
for call, count in enumerate(runs[2].written[:7], start=1):
    for guess in range(count):
        kind = "guessed and kept" if guess < count - 1 else "computing, its own"
        word = vocabulary[runs[2].tokens[place]]
        spans.append(plotting.Span(f"call {call}", place, place + 1, kind, word))
        place += 1
title = "A draft by the last two tokens: what each call adds"
drawn = plotting.gantt(spans, title=title, unit="", xlabel="tokens written")
drawn.axes[0].set_xticks(range(place + 1))
plotting.show(drawn, alt="Steps down to the right: each call adds one token or two.")

# %% [markdown] tags=["explain"]
# The rule promises the same distribution. Our model always takes its likeliest token, so here it is the same text. Guessing pays where a
# call brings more tokens than it costs steps, the draft's own time included. Both numbers stand above, as if the large model had such
# drafts.
#
# The [exercises](exercises/15_decoding_exercises.ipynb) have you cut the cache into pages, fill a server's places, choose how far to
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
