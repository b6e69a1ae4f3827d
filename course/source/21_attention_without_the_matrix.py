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
#     number: "21"
#     title: Attention without the matrix
#     needs: ["02", "11"]
#     objectives:
#       - predict|predicted the time of attention from two counts, its products and its passes over the scores
#       - write|wrote a softmax that sees each score once, and attention in tiles that never holds the matrix
#       - choose|chose the shape of a tile by the bytes that it reads
#       - write|wrote the backward pass that computes every score again
#       - ask|asked of published rates which operations they count
# ---

# %% [markdown] tags=["objectives"]
# # Attention without the matrix
#
# Attention compares every token with every other token. Take a text of 2,048 tokens and two heads, whose vectors have 64 elements each. The comparison
# makes 8.4 million scores, which fill 33.6 MB in float32. The result, one vector per token and head, fills 1.05 MB. Nobody ever looks at the scores.
# The program only computes the result from them, which is 32 times as small.
#
# In *plain* attention, four lines of PyTorch, the scores are a tensor like any other. *Fused* attention computes a small piece of the matrix,
# uses it and forgets it, and PyTorch's `scaled_dot_product_attention` can work in this way, as does FlashAttention (Dao and others, 2022). But
# the backward pass of training needs every score again, so the fused program must compute every score twice. A step of plain attention, forward
# and backward, consists of 6 matrix products. The fused step needs 7.
#
# [Lesson 11](11_working_set.ipynb) made a trade of this kind. [Checkpointing](glossary.md#activation-checkpointing) forgets activations and pays
# with time, because a step then does four thirds of the arithmetic. Here it is 7/6, or 1.17 times. Every transformer that you train with fused
# attention makes this trade in every layer. [Lesson 20](20_convolution_time.ipynb) predicted times from counts, and here two counts give the
# ratio roughly. You collect them on the way. The measured times in the text are from the machine that wrote this page, one core of an Intel Xeon
# server. The outputs are your machine's once you have run the page.

# %% tags=["hide-input"]
import math
from functools import partial

import pandas as pd
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

import helpers
from helpers import exercises, native, plotting, timing, units
from helpers.studies import attention

check = exercises.checks_of("attention_without_the_matrix")
device = "cuda" if torch.cuda.is_available() else "cpu"
allocator = helpers.steady_allocator()  # freed memory is kept for later tensors
fused = scaled_dot_product_attention


def as_ms(seconds):
    return f"{1e3 * seconds:.3g} ms"


# %% [markdown] tags=["slide"] minutes=2
# ## The bet
#
# What does it cost to forget the scores and to compute them again?
#
# - 2,048 tokens, two heads, forward and backward
# - Plain attention stores its scores and needs 6 products
# - Fused attention forgets them and needs 7
#
# Write down a number before you go on. You may change it later, when both counts are known.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10]
bet = helpers.predict(
    "With 2,048 tokens, how many times as long as plain attention's step "
    "does the fused step take?",
    "x",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Attention makes a score for every pair of tokens"
# ## Part 1: passes over the matrix
#
# How often does plain attention touch the matrix? We begin with the plain program, because forgetting can only save what keeping costs.
#
# - $Q$, $K$, $V$ and $O$ have a row of $d$ elements for each of $n$ tokens
# - The scores between them are $n \times n$
#
# $$O = \text{softmax}\left(\frac{Q K^T}{\sqrt{d}}\right) V$$
#
# A head has three matrices $Q$, $K$ and $V$. Plain attention multiplies $Q$ by the transpose of $K$, which gives $n \times n$ scores, and divides them by
# the root of $d$. A softmax over each row turns the scores into *attention weights*, and their product with $V$ is the output $O$.


# %%
def plain(query, key, value):
    scores = query @ key.mT  # (heads, tokens, tokens)
    scores = scores / query.shape[-1] ** 0.5
    weights = scores.softmax(dim=-1)
    return weights @ value  # (heads, tokens, d)


# %% [markdown]
# One reading or one writing of the whole score matrix is called a *pass* here.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 16]
passes = helpers.predict(
    "In the forward pass, how many times do the four lines of plain attention "
    "read or write the whole score matrix?",
    "passes",
)
passes


# %% tags=["run"]
def passes_of(function, *tensors, scores):
    rows = attention.count_passes(function, *tensors, scores=scores)
    return rows, sum(row.reads + row.writes for row in rows)


forward, forward_passes = passes_of(plain, *torch.randn(3, 2, 512, 64), scores=2 * 512**2)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Four lines pass over the matrix six times"
passes.reveal(counted=forward_passes)

# %% tags=["hide-input", "look"]
pd.DataFrame(
    [(row.reads, row.writes) for row in forward],
    columns=["reads", "writes"],
    index=pd.Index([row.operator for row in forward], name="operator"),
)

# %% [markdown] tags=["explain"]
# The first product (`bmm`) writes the matrix, the division reads and writes it, the softmax reads and writes it, and the second product reads it. Those
# are six passes, counted by a hook on every operator. Inside, the softmax goes over each row several times, for the maximum, for the sum and for the
# division. But a row of 2,048 scores has only 8 KB and stays in the nearest [cache](glossary.md#cache) of the core, which has 48 KB on this machine, so only its first reading comes from
# farther away.
#
# What does a pass cost? We time two programs that have nothing to do with attention. One doubles a matrix of 33.6 MB, which is one reading and one
# writing. The other is a large matrix product. They run in turns with plain attention's forward pass, and with the two steps of your bet, whose times
# wait until you have both counts.


# %% tags=["hide-input"]
def step(function, inputs, gradient):
    return torch.autograd.grad(function(*inputs), inputs, gradient)


def step_of(function, tokens):
    *inputs, gradient = torch.randn(4, 1, 2, tokens, 64, device=device)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    return lambda: step(function, inputs, gradient)


query, key, value = torch.randn(3, 2, 2048, 64, device=device)
scores = torch.randn(2, 2048, 2048, device=device)
square = torch.randn(1024, 1024, device=device)

# %% tags=["run"]
turns = timing.compare(
    {
        "two passes": lambda: 2 * scores,
        "large product": lambda: square @ square,
        "plain, forward": lambda: plain(query, key, value),
        "plain": step_of(plain, 2048),
        "fused": step_of(fused, 2048),
    },
    budget_s=8,
    precision=0.1,
)
times_s = {row.name: row.median_s for row in turns.candidates}

# %% tags=["hide-input", "look", "nbval-ignore-output"]
flops = 2 * 2 * 2048**2 * 64  # of a product of attention, two heads
pass_s = times_s["two passes"] / 2
flops_per_s = 2 * 1024**3 / times_s["large product"]
product_s = flops / flops_per_s
print(f"a pass over 33.6 MB takes {as_ms(pass_s)}")
print(
    f"a large product reaches {units.text(flops_per_s, 'FLOP/s')}, "
    f"so one of attention takes {as_ms(product_s)}"
)
print(f"2 products and 6 passes: {as_ms(2 * product_s + 6 * pass_s)} (modelled)")
print(f"plain attention, forward: {as_ms(times_s['plain, forward'])} (measured)")

# %% [markdown] tags=["explain"]
# Doubling took 7.18 ms, so a pass takes 3.59 ms. A product of attention has $2 n^2 d$ [FLOP](glossary.md#flop) per head, which makes 1.07 GFLOP for our two heads, and at the
# 112 GFLOP/s of the large product it takes 9.61 ms. The forward pass should therefore take 2 × 9.61 + 6 × 3.59, or 40.8 ms (modelled), and it took 46.6 ms (measured).
# More than half of the modelled time goes into moving scores.
#
# On other machines the share is different. A pass moves $n^2$ scores and a product does $2 n^2 d$ operations, so the number of tokens cancels as
# long as the scores come from memory.
#
# > cost of a pass, in products = (peak / [bandwidth](glossary.md#bandwidth)) × (bytes per score) / (2 d)
#
# On our core it is 3.59 / 9.61, or 0.37. An H100 can do 989 / 3.35, or 295 operations while one byte arrives ([lesson 02](02_compute_and_roofline.ipynb)). Let its scores have 2 bytes
# and its heads a width of 128, as in Llama 3 8B.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 100] headline="Heads of width 128, scores of 2 bytes, as in Llama 3 8B"
h100_pass = helpers.predict(
    "On an H100, how many products of such a head could be computed "
    "in the time of one pass over its scores?",
    "products",
)
h100_pass

# %% tags=["run"]
operations_per_byte = 989e12 / 3.35e12

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="On a GPU a pass costs more than a product"
h100_pass.reveal(modelled=operations_per_byte * 2 / (2 * 128))

# %% [markdown] tags=["explain"]
# The answer is 295 × 2 / 256, or 2.3. There the six passes weigh as much as 13.8 products, and the GPU computes for only 2 of 15.8 parts of the time, or
# 13 % (modelled, if it does one after the other).
#
# **To remember.** Plain attention's forward pass is 2 products and 6 passes. A pass costs as much as 0.37 products on our core, and as 2.3 on an H100
# with heads of width 128.
#
# It would be best to multiply each attention weight by its value as soon as its score exists. Why does plain attention not do that?

# %% [markdown] tags=["slide"] minutes=2 headline="A softmax needs the largest score before it divides"
# ## Part 2: a softmax that does not wait
#
# Can a softmax begin before it has seen all scores? Plain attention waits because the softmax divides each $e^s$ by the sum over the whole row.
#
# - The sum is known only at the end of the row
# - So is the largest score $m$, and without it $e^{89}$ is infinite in float32
#
# $$\text{softmax}(s)_i = \frac{e^{s_i - m}}{\sum_j e^{s_j - m}}, \qquad m = \max_j s_j$$
#
# There is a simple way around it. Take a single query, compute its row, finish the softmax, multiply by $V$ and forget the row. No matrix is ever stored.
# But every query walks past all keys and values, so $K$ and $V$ are read 2,048 times. If 64 queries walk together, one reading of a key serves all 64.
# Their 64 rows of scores, however, have 524 KB, and they no longer fit into the nearest cache, where one row did. So we have to let go of scores before a
# row is complete.
#
# The [online softmax](glossary.md#online-softmax) does this (Milakov and Gimelshein, 2018). It keeps the largest score *so far*, $m$, and the sum of all $e^{s-m}$ for that maximum. Suppose that
# a row starts with the scores 1 and 3. The maximum is 3, and the sum is $e^{-2} + 1$, or 1.135. Next come the scores 2 and 5, and each old term should
# have been made for a maximum of 5.

# %% tags=["predict"]
shrink = helpers.predict(
    "When the largest score of a row grows from 3 to 5, "
    "by which factor must the old sum be multiplied?",
    "x",
)
shrink

# %% tags=["run"]
row = torch.tensor([1.0, 3.0], dtype=torch.float64)
old_sum, new_sum = (row - 3).exp().sum().item(), (row - 5).exp().sum().item()

# %% tags=["look"]
shrink.reveal(modelled=math.exp(3 - 5), counted=new_sum / old_sum)

# %% [markdown] tags=["explain"]
# Every term is too large by the same factor, so one multiplication by $e^{3-5}$, or 0.135, repairs them all. The sum becomes 0.135 × 1.135 + $e^{-3}$ + 1,
# or 1.203, which is exactly the sum over all four scores at once.
#
# **Your turn.** `blocks` is a series of tensors that can be walked through only once, as a stream can. The maximum of no score at all is minus infinity,
# for which Python has `-math.inf`, and `scores.max().item()` is a number.


# %% tags=["yours"] yours="one_pass" takes=5
def one_pass(blocks):
    """Return the largest score of all blocks, and the sum of exp(score - largest)."""
    largest, total = -math.inf, 0.0
    for scores in blocks:
        new = max(largest, scores.max().item())
        total = total * math.exp(largest - new) + (scores - new).exp().sum().item()
        largest = new
    return largest, total


# %% checks="one_pass"
one_pass = check(one_pass)


# %% wrong="one_pass" says="Shrink it when a larger one comes"
def one_pass(blocks):
    largest, total = -math.inf, 0.0
    for scores in blocks:
        largest = max(largest, scores.max().item())
        total += (scores - largest).exp().sum().item()
    return largest, total


# %% wrong="one_pass" says="Begin with minus infinity"
def one_pass(blocks):
    largest, total = 0.0, 0.0
    for scores in blocks:
        new = max(largest, scores.max().item())
        total = total * math.exp(largest - new) + (scores - new).exp().sum().item()
        largest = new
    return largest, total


# %% wrong="one_pass" says="gave"
def one_pass(blocks):
    total = sum(scores.exp().sum().item() for scores in blocks)
    return math.log(total), 1.0


# %% wrong="one_pass" says="the cells below need tuple"
def one_pass(blocks):
    largest, total = -math.inf, 0.0
    for scores in blocks:
        new = max(largest, scores.max().item())
        total = total * math.exp(largest - new) + (scores - new).exp().sum().item()
        largest = new
    return torch.tensor([largest, total], dtype=torch.float64)


# %% right="one_pass" style=1
def one_pass(blocks):
    largest, total = torch.tensor(-torch.inf), torch.tensor(0.0)
    for scores in blocks:
        new = torch.maximum(largest, scores.max())
        total = total * torch.exp(largest - new) + torch.exp(scores - new).sum()
        largest = new
    return largest, total


# %% right="one_pass" style=2
def one_pass(blocks):
    largest, total = float("-inf"), 0
    for scores in blocks:
        for score in scores.tolist():
            if score > largest:
                total, largest = total * math.e ** (largest - score), score
            total += math.exp(score - largest)
    return largest, total


# %% [markdown]
# The output can be collected in the same way. Let the four values be 10, 20, 30 and 40. After two scores the output, not yet divided, is 0.135 × 10 +
# 1 × 20, or 21.35. When the 5 arrives, it shrinks by the same 0.135, and the new values join it, which gives 2.89 + 0.0498 × 30 + 1 × 40, or 44.38. After
# the last score we divide once, 44.38 / 1.203, and the result is 36.9.
#
# **Your turn.** Bring a block of scores, with the values of its keys, into the maximum, the sum and the undivided output of each row. `torch.maximum` takes
# the larger of two tensors, element by element, and `scores.amax(dim=-1, keepdim=True)` is each row's largest score.


# %% tags=["yours"] yours="absorb" takes=8
def absorb(largest, total, output, scores, values):
    """Return largest and total (rows, 1) and the undivided output (rows, d), with the block.

    The block has scores (rows, columns) and values (columns, d).
    """
    new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
    shrink, weights = (largest - new).exp(), (scores - new).exp()  # (rows, 1), (rows, columns)
    total = shrink * total + weights.sum(dim=-1, keepdim=True)
    return new, total, shrink * output + weights @ values


# %% checks="absorb"
absorb = check(absorb)


# %% wrong="absorb" says="Shrink the old output as well"
def absorb(largest, total, output, scores, values):
    new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
    weights = (scores - new).exp()
    total = (largest - new).exp() * total + weights.sum(dim=-1, keepdim=True)
    return new, total, output + weights @ values


# %% wrong="absorb" says="Divide only when all keys are absorbed"
def absorb(largest, total, output, scores, values):
    new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
    shrink, weights = (largest - new).exp(), (scores - new).exp()
    total = shrink * total + weights.sum(dim=-1, keepdim=True)
    return new, total, (shrink * output + weights @ values) / total


# %% right="absorb" style=1
def absorb(largest, total, output, scores, values):
    block_largest = scores.max(dim=-1, keepdim=True).values
    block_weights = torch.exp(scores - block_largest)
    new = torch.max(largest, block_largest)
    old_part, new_part = torch.exp(largest - new), torch.exp(block_largest - new)
    total = old_part * total + new_part * block_weights.sum(-1, keepdim=True)
    return new, total, old_part * output + new_part * torch.matmul(block_weights, values)


# %% right="absorb" style=2
def absorb(largest, total, output, scores, values):
    new = torch.cat([largest, scores], dim=-1).amax(dim=-1, keepdim=True)
    shrink = torch.exp(largest - new)
    weights = torch.exp(scores - new)
    return [
        new,
        total * shrink + weights.sum(-1, True),
        output * shrink + weights.matmul(values),
    ]


# %% tags=["hide-input"]
blocks = [torch.tensor([1.0, 3.0]), torch.tensor([2.0, 5.0])]
largest, total = one_pass(iter(blocks))
state = (torch.full((1, 1), -torch.inf), torch.zeros(1, 1), torch.zeros(1, 1))
for scores_of_block, values_of_block in zip(blocks, ([10.0, 20.0], [30.0, 40.0]), strict=True):
    state = absorb(*state, scores_of_block[None], torch.tensor(values_of_block)[:, None])
print(f"by your one_pass: maximum {float(largest):g}, sum {float(total):.3f}")
undivided = state[2].item()
quotient = (state[2] / state[1]).item()
print(f"by your absorb: {undivided:.2f} / {state[1].item():.3f} = {quotient:.1f}")

# %% [markdown]
# **To remember.** A row of attention needs only its maximum, its sum and its output so far. For a head of width 64 these are 66 elements, whereas the row
# has 2,048 scores.
#
# Scores may now come in blocks and go again. How many bytes are still moved?

# %% [markdown] tags=["slide"] minutes=2 headline="Tiles read keys and values again and again"
# ## Part 3: attention in tiles
#
# What do tiles still read? Without the matrix only $Q$, $K$, $V$ and $O$ are left, and you might think that each is moved once. The shape of the blocks
# decides how far this is from true.
#
# - Take a block of queries
# - Let it walk past all keys, one block at a time
# - Absorb each *tile* of scores, and forget it
#
# A matrix product in tiles was lesson 02's. New is that the softmax and the second product take place within the tile, while its scores are at hand.
#
# **Your turn.** Cut `query` into blocks of `rows` rows, and `key` and `value` into blocks of `columns` rows, with `tensor.split(rows, dim=-2)`. The
# scores are divided by the root of $d$, as in `plain`. Return the output, and for each row $\lambda$, its maximum plus the logarithm of its sum, for which Part 4 has a use. `empty_state` is what you begin with.


# %%
def empty_state(query, value):
    largest = query.new_full((*query.shape[:-1], 1), -torch.inf)
    output = query.new_zeros(*query.shape[:-1], value.shape[-1])
    return largest, torch.zeros_like(largest), output


# %% tags=["yours"] yours="by_tiles" takes=12
def by_tiles(query, key, value, rows, columns):
    """Return attention (..., tokens, d) and lambda (..., tokens, 1), tile by tile."""
    outputs, logs = [], []
    for queries in (query / query.shape[-1] ** 0.5).split(rows, dim=-2):
        state = empty_state(queries, value)
        for keys, values in zip(key.split(columns, -2), value.split(columns, -2), strict=True):
            state = absorb(*state, queries @ keys.mT, values)
        largest, total, output = state
        outputs.append(output / total)
        logs.append(largest + total.log())
    return torch.cat(outputs, dim=-2), torch.cat(logs, dim=-2)


# %% checks="by_tiles"
by_tiles = check(by_tiles)


# %% wrong="by_tiles" says="Divide the output by its sum"
def by_tiles(query, key, value, rows, columns):
    outputs, logs = [], []
    for queries in (query / query.shape[-1] ** 0.5).split(rows, dim=-2):
        state = empty_state(queries, value)
        for keys, values in zip(key.split(columns, -2), value.split(columns, -2), strict=True):
            state = absorb(*state, queries @ keys.mT, values)
        outputs.append(state[2])
        logs.append(state[0] + state[1].log())
    return torch.cat(outputs, dim=-2), torch.cat(logs, dim=-2)


# %% wrong="by_tiles" says="by the root of d"
def by_tiles(query, key, value, rows, columns):
    outputs, logs = [], []
    for queries in query.split(rows, dim=-2):
        state = empty_state(queries, value)
        for keys, values in zip(key.split(columns, -2), value.split(columns, -2), strict=True):
            state = absorb(*state, queries @ keys.mT, values)
        outputs.append(state[2] / state[1])
        logs.append(state[0] + state[1].log())
    return torch.cat(outputs, dim=-2), torch.cat(logs, dim=-2)


# %% wrong="by_tiles" says="That is the whole matrix"
def by_tiles(query, key, value, rows, columns):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1, keepdim=True)


# %% wrong="by_tiles" says="gave"
def by_tiles(query, key, value, rows, columns):
    output = fused(query, key, value)
    return output, torch.zeros_like(output[..., :1])


# %% right="by_tiles" style=1
def by_tiles(query, key, value, rows, columns):
    tokens, d = query.shape[-2:]
    output = torch.empty_like(query[..., :1].expand(*query.shape[:-1], value.shape[-1]))
    log = torch.empty_like(query[..., :1])
    for top in range(0, tokens, rows):
        queries = query[..., top : top + rows, :] * d**-0.5
        state = empty_state(queries, value)
        for left in range(0, key.shape[-2], columns):
            keys, values = (tensor[..., left : left + columns, :] for tensor in (key, value))
            state = absorb(*state, queries @ keys.transpose(-1, -2), values)
        output[..., top : top + rows, :] = state[2] / state[1]
        log[..., top : top + rows, :] = state[0] + torch.log(state[1])
    return output, log


# %% right="by_tiles" style=2
def by_tiles(query, key, value, rows, columns):
    scale = 1 / math.sqrt(query.size(-1))
    blocks = list(zip(key.split(columns, dim=-2), value.split(columns, dim=-2), strict=True))
    finished = []
    for queries in query.split(rows, dim=-2):
        largest, total, output = empty_state(queries, value)
        for keys, values in blocks:
            scores = torch.matmul(queries, keys.mT) * scale
            largest, total, output = absorb(largest, total, output, scores, values)
        finished.append((output / total, largest + total.log()))
    return tuple(torch.cat(parts, dim=-2) for parts in zip(*finished, strict=True))


# %% tags=["hide-input", "slide", "slide-output"] minutes=2 layout="steps" frames=[0, 3, 4, 9] headline="A tile of scores is made, used and forgotten"
order = attention.tiles_of(4, rows=1, columns=1)
frames, captions = [], []
for at, (row, _) in enumerate(order):
    frames.append(attention.draw_score_tiles(order, at))
    count = f"Blocks read so far: {row + 1} of Q, {at + 1} of K, {at + 1} of V"
    captions.append(f"{count}; finished of O: {(at + 1) // 4}.")
plotting.play(
    frames,
    title="Queries outside, keys inside",
    captions=captions,
    alt="A tile runs along 4 rows. Q's blocks are read once, K's and V's 4 times.",
)

# %% [markdown]
# Our unit is the bytes of $Q$ in one head, 2,048 × 64 × 4, or 0.52 MB. Let the cache have 64 KiB, enough for the blocks of one tile but not for all of $K$,
# so that a block of $K$ is gone when the next block of queries needs it. The scores and the unfinished output stay in [registers](glossary.md#register). A cache also reads a
# [line](glossary.md#cache-line) before the first write to it, so writing $O$ costs one unit of reading.

# %% tags=["predict"]
reads = helpers.predict(
    "With tiles of 64 x 64, how many times the bytes of Q does one head read from memory?", "x"
)
reads


# %% tags=["run"]
def units_moved(rows, columns, order="queries outside"):
    moved = attention.count_bytes(2048, 64, order=order, rows=rows, columns=columns)
    return moved.read_bytes / (2048 * 64 * 4), moved.written_bytes / (2048 * 64 * 4)


square_tiles, tall_tiles = units_moved(64, 64), units_moved(128, 32)

# %% tags=["look"]
reads.reveal(modelled=1 + 2 * 2048 / 64 + 1, simulated=square_tiles[0])

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Tiles of 64 x 64 move a quarter of the bytes"
rows = {
    "matrix, products in tiles of 64 x 64 (simulated)": units_moved(
        64, 64, "products in tiles"
    ),
    "one query at a time, no matrix (modelled)": (2 * 2048 + 2, 1),
    "tiles of 64 x 64 (simulated)": square_tiles,
    "tiles of 128 x 32 (simulated)": tall_tiles,
}
table = pd.DataFrame(rows, index=["units read", "units written"]).T
table.rename_axis("2,048 tokens, one head").map("{:,.0f}".format)

# %% [markdown] tags=["explain"]
# $Q$ is read once. $K$ and $V$ are read once for each of 2,048 / 64, or 32 blocks of queries, which makes 64 units, and with $O$ the sum is 66. The simulated
# cache of [lesson 01](01_memory_hierarchy.ipynb) counts exactly 66.
#
# The matrix has $n/d$, or 32 units. The first program writes the matrix three times and reads it three times. Its division and its softmax work in place,
# so only the first writing meets lines that are not there yet, and the cache reads each of these before. That is a fourth reading. That makes 4 × 32 units read. $Q$, $K$, $V$ and $O$ add 66 as before, and the sum is 194. Tiles move 67 units
# in all instead of 291, a factor of 4.3. But the 64 units for $K$ and $V$ are still as many bytes as two passes, and they grow with the square of the
# tokens, as passes do.
#
# The formula $2n/r + 2$ for $r$ rows says what helps, because the columns of a tile do not appear in it. Tiles of 128 × 32 hold as many scores as 64 × 64, but they need half
# as many walks past the keys and read 34 units. So make a tile tall, as long as it fits. (The paper of 2022 went the other way round, with the keys
# outside and the queries inside, and its successor of 2023 has our order.)

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Tall tiles read less, until the cache is full"
sides = (16, 32, 64, 128, 256)
plotting.show(
    attention.draw_units(
        sides,
        modelled=[2 * 2048 / side + 2 for side in sides],
        simulated=[units_moved(side, 32)[0] for side in sides],
        title="2,048 tokens of width 64, tiles of 32 columns",
    ),
    alt="Units read almost halve with each doubling of the rows, to 34, then jump to 81.",
)

# %% [markdown] tags=["explain"]
# With 256 rows the formula promises 18 units, but the simulator counts 81, because the block of $Q$ now fills the cache alone and must be fetched again for
# every tile.
#
# Since blocks of queries do not depend on each other, each block of threads of a GPU can take one, loop over the keys and hold the sums in registers. Here is
# your loop as a Triton kernel, which is Python that is compiled for the GPU. `tl.load` reads a block from memory, `tl.dot` multiplies two, and `tl.store`
# writes. Find the line that shrinks the old output.

# %% tags=["hide-input"]
for number, line in enumerate(attention.kernel_source().splitlines(), 1):
    print(f"{number:2} {line}")

# %% tags=["hide-input"]
torch.manual_seed(4)
given = tuple(torch.randn(2, 50, 32) for _ in range(3))
try:  # Triton's interpreter runs the kernel on a CPU, for its results and not for its speed
    output, _ = attention.interpret(*given, rows=32, columns=32, causal=True)
except native.MissingToolError as missing:  # Triton comes with PyTorch for Linux
    print(f"the kernel was not run, and the library's tiles stand in for it: {missing}")
    output, _ = attention.in_tiles(*given, causal=True)
assert torch.allclose(output, fused(*given, is_causal=True), atol=1e-5)
assert torch.allclose(by_tiles(*given, 16, 8)[0], fused(*given), atol=1e-5)

# %% [markdown]
# It is the line that begins with `result = shrink`. What surrounds it are addresses, loads, and masks for what lies beyond the last token.
#
# **To remember.** Tiles of $r$ rows read $2n/r + 2$ units. Their reading of $K$ and $V$ costs as much as $2d/r$ passes, where plain attention has six.
#
# On our core most of this comes from a cache, since $K$ and $V$ of a head have 1.05 MB and the core's L2 cache has 2 MB, so we count no passes for tiles there.
# In the forward pass, then, the matrix is gone. Can the backward pass do without it?

# %% [markdown] tags=["slide"] minutes=2 headline="Attention weights that can be made again need not be kept"
# ## Part 4: the backward pass
#
# Where does the backward pass get the scores from? This part decides your bet, because the backward pass needs the attention weights again. What a forward
# pass keeps for it is called [saved for backward](glossary.md#saved-for-backward).
#
# - Plain attention saves them, beside $Q$, $K$ and $V$
# - Tiles have forgotten them
# - One number per row brings each of them back
#
# A tensor that two operators share is saved once.

# %% tags=["predict"]
kept = helpers.predict(
    "With 2,048 tokens and heads of width 64, how many times the bytes of Q "
    "does plain attention save?",
    "x",
)
kept

# %% tags=["run"]
head = torch.randn(3, 1, 2048, 64)
plain_saves = attention.saved_bytes(plain, *head) / head[0].nbytes
tiles_save = attention.saved_bytes(lambda *head: by_tiles(*head, 64, 64)[0], *head)

# %% tags=["look"]
kept.reveal(modelled=3 + 2048 / 64, counted=plain_saves)

# %% tags=["hide-input", "look", "nbval-ignore-output"]
print(f"your tiles, if autograd differentiates them: {tiles_save / head[0].nbytes:.0f} units")
assert tiles_save > plain_saves * head[0].nbytes

# %% [markdown] tags=["explain"]
# It saves 3 + 32, or 35 units. If autograd differentiates your `by_tiles`, it saves even more, 103 units here (counted), because it keeps every tile and temporary
# tensors as well. So the backward pass is written by hand, and two small ideas make it possible.
#
# The first is one number per row. Our example ended with the maximum 5 and the sum 1.203, so keep $\lambda$ = 5 + ln 1.203, or 5.185. From now on every attention
# weight can be made from its score alone. For the score 5 it is $e^{5 - 5.185}$, or 0.831.
#
# The second idea is about the neighbours. The attention weights of a row add up to 1, so if one grows, the others shrink, and the gradient of a score seems to
# need the whole row. Let the gradient of our output be 1. If the last key gets more weight, it brings in its value 40, but it pushes out a mixture of all
# values, and this mixture is the output, 36.9. So its score has the gradient 0.831 × (40 − 36.9), or +2.6, and the first score, with the value 10 and the
# weight 0.0152, has 0.0152 × (10 − 36.9), or −0.41. All that a key must know of the rest of the row is the output. For vectors, the dot product $D$ of the row's
# output with its gradient $G$ takes the place of 36.9, and $O$ is saved anyway.
#
# So a tile can do its backward pass alone, with five products. The matrix of its attention weights is $W$, and $\circ$ multiplies element by element.
#
# > $S = QK^T/\sqrt{d}, \quad W = e^{S - \lambda}, \quad dS = W \circ (G V^T - D), \quad dQ = dS\,K/\sqrt{d}, \quad dK = dS^T Q/\sqrt{d}, \quad dV = W^T G$

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="A tile's backward pass has five products"
plotting.show(
    attention.draw_backward_tile(),
    alt="A tile reads rows of Q, G, lambda and D, columns of K and V; it adds to dQ, dK, dV.",
)

# %% [markdown]
# **Your turn.** Write a tile's part of the three gradients. The numbers $\lambda$ and $D$ of its rows come as columns (rows, 1).


# %% tags=["yours"] yours="tile_gradients" takes=10
def tile_gradients(query, key, value, log, shared, gradient):
    """Return a tile's part of dQ, dK and dV; log is lambda, shared is D, gradient is G."""
    scale = query.shape[-1] ** -0.5
    weights = (scale * query @ key.mT - log).exp()  # (rows, columns)
    to_scores = weights * (gradient @ value.mT - shared)
    return scale * to_scores @ key, scale * to_scores.mT @ query, weights.mT @ gradient


# %% checks="tile_gradients"
tile_gradients = check(tile_gradients)


# %% wrong="tile_gradients" says="Take D off"
def tile_gradients(query, key, value, log, shared, gradient):
    scale = query.shape[-1] ** -0.5
    weights = (scale * query @ key.mT - log).exp()
    to_scores = weights * (gradient @ value.mT)
    return scale * to_scores @ key, scale * to_scores.mT @ query, weights.mT @ gradient


# %% wrong="tile_gradients" says="by the root of d"
def tile_gradients(query, key, value, log, shared, gradient):
    weights = (query.shape[-1] ** -0.5 * query @ key.mT - log).exp()
    to_scores = weights * (gradient @ value.mT - shared)
    return to_scores @ key, to_scores.mT @ query, weights.mT @ gradient


# %% wrong="tile_gradients" says="the cells below need tuple or list"
def tile_gradients(query, key, value, log, shared, gradient):
    scale = query.shape[-1] ** -0.5
    weights = (scale * query @ key.mT - log).exp()
    to_scores = weights * (gradient @ value.mT - shared)
    parts = scale * to_scores @ key, scale * to_scores.mT @ query, weights.mT @ gradient
    return torch.stack(parts)


# %% right="tile_gradients" style=1
def tile_gradients(query, key, value, log, shared, gradient):
    d = query.shape[-1]
    weights = torch.exp(torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(d) - log)
    dv = torch.matmul(weights.transpose(-1, -2), gradient)
    dw = torch.matmul(gradient, value.transpose(-1, -2))
    ds = weights * (dw - shared) / math.sqrt(d)
    return torch.matmul(ds, key), torch.matmul(ds.transpose(-1, -2), query), dv


# %% right="tile_gradients" style=2
def tile_gradients(query, key, value, log, shared, gradient):
    scaled = query * query.size(-1) ** -0.5
    weights = torch.exp(scaled @ key.mT - log)
    to_scores = torch.einsum("...rd,...cd->...rc", gradient, value).sub(shared).mul(weights)
    return [
        to_scores @ key * query.size(-1) ** -0.5,
        to_scores.mT @ scaled,
        weights.mT @ gradient,
    ]


# %% [markdown]
# All tiles of the matrix, one after the other, make a backward pass that PyTorch can use:


# %%
def back_in_tiles(query, key, value, output, log, gradient, side):
    shared = (gradient * output).sum(dim=-1, keepdim=True)  # D (..., tokens, 1)
    sums = [torch.zeros_like(tensor) for tensor in (query, key, value)]
    for top in range(0, query.shape[-2], side):
        rows = slice(top, top + side)
        of_rows = [tensor[..., rows, :] for tensor in (query, log, shared, gradient)]
        for left in range(0, key.shape[-2], side):
            columns = slice(left, left + side)
            keys, values = key[..., columns, :], value[..., columns, :]
            parts = tile_gradients(of_rows[0], keys, values, *of_rows[1:])
            for total, place, part in zip(sums, (rows, columns, columns), parts, strict=True):
                total[..., place, :] += part
    return sums


# %% tags=["hide-input"]
class Tiles(torch.autograd.Function):
    @staticmethod
    def forward(context, query, key, value, side):
        output, log = by_tiles(query, key, value, side, side)
        context.save_for_backward(query, key, value, output, log)
        context.side = side
        return output

    @staticmethod
    def backward(context, gradient):
        return *back_in_tiles(*context.saved_tensors, gradient, context.side), None


def yours(query, key, value, side=128):
    return Tiles.apply(query, key, value, side)


small = [tensor.requires_grad_() for tensor in torch.randn(3, 2, 7, 3, dtype=torch.float64)]
assert torch.autograd.gradcheck(lambda *tensors: yours(*tensors, 3), small)

# %% tags=["hide-input"]
*inputs, gradient = torch.randn(4, 1, 1, 512, 64)
inputs = [tensor.requires_grad_() for tensor in inputs]


def products_of(function):
    with FlopCounterMode(display=False) as counter:
        step(function, inputs, gradient)
    return counter.get_total_flops() / (2 * 512**2 * 64)


programs = {"plain": plain, "yours": yours, "fused": fused}
batch, rows = [tensor[None] for tensor in head], {}
for name, function in programs.items():
    units_saved = attention.saved_bytes(function, *batch) / head[0].nbytes
    _, seen = passes_of(partial(step, function, inputs, gradient), scores=512**2)
    rows[name] = (f"{units_saved:.2f}", seen, f"{products_of(function):g}")
units_saved = attention.saved_bytes(fused, *head) / head[0].nbytes
rows["fused, three dimensions"] = (f"{units_saved:.2f}", "", "")
columns = ["units saved", "passes of a step", "products, by PyTorch's counter"]
pd.DataFrame(rows, index=columns).T

# %% [markdown]
# Five products in the backward pass and two in the forward pass make seven. Saved are $Q$, $K$, $V$, $O$ and one number per row, 4 + 1/64, or 4.02 units instead of 35.
#
# Plain attention has four products in its backward pass. The first reads the attention weights, the second writes their gradient, the softmax reads both and
# writes a third matrix, the division reads and writes, and the last two products read. These are 1 + 1 + 3 + 2 + 2, or nine passes, and with the forward
# pass fifteen (counted). Now you have both counts, products and passes. You may change your bet in your mind before you look.

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="More products, and a shorter step"
modelled_s = {"plain": 6 * product_s + 15 * pass_s, "fused": 7 * product_s}
bet.reveal(
    modelled=modelled_s["fused"] / modelled_s["plain"],
    measured=turns.candidate("fused").median_s / turns.candidate("plain").median_s,
)

# %% tags=["hide-input"]
calls = {"plain": step_of(plain, 2048), "yours": step_of(yours, 2048)}
own_turns = timing.compare(calls, budget_s=4, precision=0.1)
calls = {"plain": step_of(plain, 256), "fused": step_of(fused, 256)}
short_turns = timing.compare(calls, budget_s=1, precision=0.05)

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Fifteen passes cost more than one product"
own_s = own_turns.candidate("yours").time_ratio * times_s["plain"]
rows = {
    "plain": (6, 15, modelled_s["plain"], times_s["plain"]),
    "fused, PyTorch": (7, 0, modelled_s["fused"], times_s["fused"]),
    "fused, your tiles of 128 x 128": (7, 0, modelled_s["fused"], own_s),
}
rows = {name: (*row[:2], as_ms(row[2]), as_ms(row[3])) for name, row in rows.items()}
columns = ["products", "passes", "modelled", "measured"]
pd.DataFrame(rows, index=columns).T.rename_axis("step, 2,048 tokens, two heads")

# %% tags=["hide-input", "look"]
fused_ratio = times_s["fused"] / times_s["plain"]
short_ratio = short_turns.candidate("fused").time_ratio
sentence = "with 2,048 tokens the fused step is shorter than the plain one"
timing.claim(sentence, fused_ratio, at_most=0.9, evidence=turns)
sentence = "with 2,048 tokens the fused step saves a larger share than with 256"
timing.claim(sentence, fused_ratio / short_ratio, at_most=0.95, evidence=[turns, short_turns])

# %% [markdown] tags=["explain"]
# The fused step takes 0.62 times as long as the plain one (measured), although it does more arithmetic. One product more costs 9.61 ms, whereas
# fifteen passes fewer save 54 ms (modelled). The model is 14 to 19 ms too fast for both, since it leaves out the exponentials and gives every
# product the rate of a large one. (Plain and fused steps ran in turns with the two programs of Part 1, and yours in turns with plain.) Your own
# tiles save the same passes, but they call 28 small operators for each of 256 tiles. Here the saving became time only in one kernel.
#
# For short texts less can be saved. With 256 tokens the matrices of both heads have 0.5 MB and stay in a cache, so a pass is cheap, and the fused step took
# 0.90 times as long as the plain one (measured).
#
# You may meet two traps at work. If you pass three dimensions instead of four, PyTorch on a CPU takes the plain way without a warning, and it saves 37 units
# (counted above). And its `FlopCounterMode` reports 0 FLOP for the fused operator of a CPU.
#
# **To remember.** Computing again costs one product and saves fifteen passes. It pays if a pass costs more than 1/15 of a product, as long as tiles find
# their keys in a cache.
#
# A counter that reports 0 is a warning about other counts. Do published ones agree with ours?

# %% [markdown] tags=["slide"] minutes=2 headline="Whoever states a rate has chosen what to count"
# ## Part 5: what a rate counts
#
# Which operations does a rate count? We end with a GPU, because fused attention became famous there and our two counts should predict it.
#
# - A rate is operations over time
# - The time is measured
# - The operations are chosen
#
# Figure 2 of the FlashAttention paper gives times for the attention of GPT-2 medium on an A100. It has 16 heads of width 64, 1,024 tokens and a batch of 64, and
# we assume 2 bytes per score. The score matrices have 64 × 16 × 1,024² × 2 bytes, or 2.15 GB, and a product has 137 GFLOP. By its data sheet an A100 with
# 40 GB does 312 TFLOP/s and moves 1,555 GB/s. So a product takes 0.44 ms, and a pass takes 1.38 ms, as long as 3.1 products.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.01, 10] headline="GPT-2 medium has 1,024 tokens and 16 heads of width 64"
a100 = helpers.predict(
    "On this A100, how many times as long as the plain step should the fused step take?", "x"
)
a100

# %% tags=["hide-input", "run"]
matrix_bytes, product_flops = 64 * 16 * 1024**2 * 2, 2 * 64 * 16 * 1024**2 * 64
a100_pass_s, a100_product_s = matrix_bytes / 1555e9, product_flops / 312e12
counts = {"plain": (6, 15), "FlashAttention": (7, 0)}
a100_s = {name: a100_product_s * n + a100_pass_s * m for name, (n, m) in counts.items()}
published = dict(zip(counts, attention.FLASH_TABLE, strict=True))

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="On an A100 the plain step is mostly passes"
a100.reveal(
    modelled=a100_s["FlashAttention"] / a100_s["plain"],
    published=published["FlashAttention"].time_s / published["plain"].time_s,
    source=attention.FLASH_SOURCE,
)

# %% tags=["hide-input", "look"]
rows = {
    name: (
        as_ms(a100_s[name]),
        as_ms(row.time_s),
        f"{row.memory_bytes / 1e9:.1f} GB",
        f"{row.flops / 1e9:.1f}",
        f"{counts[name][0] * product_flops / 1e9:.0f}",
    )
    for name, row in published.items()
}
columns = ["time, modelled", "time, published", "bytes, published", "GFLOP, published"]
columns = [*columns, "GFLOP of 6 and 7 products"]
pd.DataFrame(rows, index=columns).rename_axis("forward and backward, A100")

# %% [markdown] tags=["explain"]
# Seven products instead of 6 + 15 × 3.1, or about 53, make a share of 0.13 (modelled). The published times give 0.18. The modelled times add up what a GPU can partly
# overlap, and leave out much else, and both programs stay well above them. The published 40.3 GB are 18.8 passes, where our four lines have 15. FlashAttention's 4.4 GB are two passes and not none,
# since $Q$, $K$, $V$, $O$ and their gradients move at least once, 12 × 0.134 or 1.6 GB, and tiles read some of them again. With these passes the model gives 28.6 and 5.9 ms, and the share becomes 0.21, so the published 0.18 lies
# between the two. But the published GFLOP are not those of our count. Six products of 137 GFLOP are 825, which is 12.4 times the 66.6 of the paper, and
# the paper does not say what it counted. (Its ratio, 75.2 / 66.6 or 1.13, is close to our 7 / 6.) Its message holds all the same. More arithmetic with fewer bytes took less time.
#
# More often the question is about one half. In a language model a token looks back only, which is called *causal*, so a kernel may skip every tile that is
# wholly in the future.

# %% tags=["run"]
calls = {
    "whole": lambda: fused(query[None], key[None], value[None]),
    "causal": lambda: fused(query[None], key[None], value[None], is_causal=True),
    "large product": lambda: square @ square,
}
halves = timing.compare(calls, budget_s=4, precision=0.05)

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="The causal rate counts work that is not done"
counted = {"whole": 2 * flops, "causal": 2 * flops, "large product": 2 * 1024**3}
rows = {
    name: (as_ms(row.median_s), units.text(counted[name] / row.median_s, "FLOP/s"))
    for name, row in ((name, halves.candidate(name)) for name in counted)
}
pd.DataFrame(rows, index=["measured", "if two whole products are counted"]).T

# %% tags=["hide-input", "look"]
sentence = "causal attention takes less time than the whole"
ratio = halves.candidate("causal").median_s / halves.candidate("whole").median_s
timing.claim(sentence, ratio, at_most=0.95, evidence=halves)
row = attention.FLASH_2_TRAINING[0]
weights_flops, scores_flops = 6 * row.parameters, 12 * row.layers * row.width * row.tokens
half = (weights_flops + scores_flops / 2) / (weights_flops + scores_flops)
print(
    f"with half of the scores: {half * row.flops_per_s / 1e12:.0f} TFLOP/s, "
    f"{half * row.peak_share:.0%} of the peak instead of {row.peak_share:.0%} (published)"
)
print(attention.FLASH_2_SOURCE)

# %% [markdown] tags=["explain"]
# On our core the causal forward pass took 14.1 ms and the whole one 22.5 ms (measured). If you count two whole products for both, 2.15 GFLOP, they do
# 152 and 96 GFLOP/s. But our large
# product did only 123, and the whole attention 96. The 152 is higher because it counts the operations of tiles that the causal program may skip.
#
# Published rates may contain them too. Table 1 of FlashAttention-2 (Dao, 2023) reports 225 TFLOP/s per A100, 72 % of the peak, for training a GPT of 2.7 billion
# parameters on 8,192 tokens. Its formula counts 16.2 GFLOP per token for the parameters and 8.1 for the scores, and the paper says openly that it counts all
# scores although the model is causal. With half of the scores, 225 × (16.2 + 4.05) / (16.2 + 8.1) is 188 TFLOP/s, or 60 % of the peak.
#
# **To remember.** Ask of each rate which operations were counted. Causal attention with all scores counted can show almost 2 times its true rate.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. When the maximum grows, shrink what came before.
# 2. What is cheap to make again need not be stored.
# 3. Make tiles tall, and ask what a rate counts.
#
# Fused attention computes every score twice, and with 2,048 tokens its step still takes only 0.62 times as long as the plain one. It does seven products instead of
# six, but it saves fifteen passes over a matrix that is 32 times as large as the result, and on our core each pass costs 0.37 products. On an A100 a pass costs
# 3.1 products, and there the published share is 0.18.
#
# Before you store a result, then, ask whether it is cheaper to make it again, and count bytes as well as operations. Tiles save the more bytes, the taller they are, because
# each key that is read must serve many queries.
#
# The [exercises](exercises/21_attention_without_the_matrix_exercises.ipynb) have you merge what several devices hold, choose a tile for a cache, count a sliding
# window, and take an attention of your own from prediction to measurement.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# One head, $n$ tokens, width $d$; tiles of $r$ rows of queries; a unit is the bytes of $Q$; $P$ is the peak and $B$ the bandwidth.
#
# | quantity | formula |
# |---|---|
# | passes over the scores, plain | $6$ forward and $9$ backward, each of $\frac{n}{d}$ units |
# | a pass, in products | $\frac{P}{B} \cdot \frac{\text{bytes per score}}{2 d}$ |
# | softmax, one more score $s$ | $m' = \max(m, s)$, $\ell' = e^{m - m'} \ell + e^{s - m'}$ with the sum $\ell$ for the maximum $m$ |
# | read by tiles | $\frac{2n}{r} + 2$ units |
# | saved for backward, plain | $3 + \frac{n}{d}$ units |
# | saved for backward, tiles | $4 + \frac{1}{d}$ units |
# | products of a step | $6$ plain, $7$ computed again, each $2 n^2 d$ FLOP |
