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
#     number: "18"
#     title: Attention without the matrix
#     needs: ["07", "16"]
#     objectives:
#       - count|counted how often plain attention passes its table of scores
#       - write|wrote a softmax that sees its numbers once, and attention that never holds the table
#       - predict|predicted the bytes that tiles read, by a formula and by a simulated cache
#       - write|wrote the backward pass that computes every score again
#       - read|read the same loop as a kernel for GPUs, and published rates with a pencil beside them
# ---

# %% [markdown] tags=["objectives"]
# # Attention without the matrix
#
# Attention compares every token with every other. For 4,096 tokens and 8 heads that is a table of 134 million scores, and nobody
# wants the scores: the next step makes one output a token from them. There are programs that never hold the table: *fused*
# attention, such as FlashAttention (Dao and others, 2022). PyTorch has one too.
#
# You will write it in plain PyTorch, forward and backward, and count what it reads. A simulated [cache](glossary.md#cache) has
# the exact bytes; your machine has the last word on time.

# %%
import math

import pandas as pd
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import helpers
from helpers import exercises, native, operations, plotting, timing, units
from helpers.studies import attention

device = "cuda" if torch.cuda.is_available() else "cpu"
allocator = helpers.steady_allocator()  # no page faults in our times (lesson 01)

# %% [markdown] tags=["slide"] minutes=2
# ## The bet
#
# - 2,048 tokens, forward and backward
# - Plain attention keeps its table
# - *Fused* attention computes each score twice
# - 7 products instead of 6
#
# Fused attention keeps no table for the way back. Lesson 07 paid for such forgetting: activations that are not kept are computed
# again, and the step takes longer. PyTorch's fused attention is `scaled_dot_product_attention`. How long does its step take, over
# the plain one's?

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10]
bet = helpers.predict(
    "Fused attention computes more products: its step over the plain one's?", "x"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Attention makes a number for every pair of tokens"
# ## Part 1: a table that nobody wants
#
# $$O = \text{softmax}\left(\frac{Q K^T}{\sqrt{d}}\right) V$$
#
# - $Q$, $K$, $V$, $O$: a row of $d$ numbers for each of $n$ tokens
# - The scores between them: $n \times n$
#
# Each head has its own. In PyTorch these are four lines:


# %%
def plain(query, key, value):
    scores = query @ key.mT
    scores = scores / query.shape[-1] ** 0.5
    weights = scores.softmax(dim=-1)
    return weights @ value


# %% [markdown]
# Suppose that a tensor which one line makes and the next one reads goes out to memory in between. A *pass* is one reading or one
# writing of the whole table.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 16]
passes = helpers.predict(
    "How many times do these four lines read or write the table?", "passes"
)
passes

# %% [markdown]
# `operations.profile_ops` (lesson 07) has the bytes of every operator, each input read once, each output written once:


# %% tags=["run"]
class Attention(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, query, key, value):
        return self.function(query, key, value)


inputs = tuple(torch.randn(8, 512, 64) for _ in range(3))
own_bytes, table_bytes = inputs[0].nbytes, 8 * 512 * 512 * 4
counts = operations.profile_ops(Attention(plain), inputs)
moved = counts.forward_read_bytes + counts.forward_written_bytes

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Four lines pass the table six times"
passes.reveal(counted=(moved - 4 * own_bytes) / table_bytes)

# %% tags=["look"]
rows = {
    each.operator.split(".")[1]: [each.calls, each.read_bytes, each.written_bytes]
    for each in counts.operators
    if each.phase == "forward" and each.read_bytes
}
columns = ["calls", "bytes read", "bytes written"]
pd.DataFrame(rows, index=columns).T.map("{:,}".format)

# %% [markdown] tags=["explain"]
# 8 heads, 512 tokens, $d = 64$: $Q$, $K$, $V$ and $O$ have 1,048,576 bytes each, the table eight times as many. It is written by
# the first product, read and written by the division, read and written by the softmax, and read by the second product: six
# passes. Fusing the division into its neighbour would save two (lesson 12). To save all six, the softmax must change.

# %% [markdown] tags=["slide"] minutes=2 headline="A softmax needs the largest score before it divides"
# ## Part 2: the maximum and the sum in one pass
#
# $$\text{softmax}(s)_i = \frac{e^{s_i - m}}{\sum_j e^{s_j - m}}, \qquad m = \max_j s_j$$
#
# - Without $m$: $e^{89}$ is already infinite in float32
# - So first all scores for $m$, then all again for the sum?
#
# One pass is enough for both, with an [online softmax](glossary.md#online-softmax) (Milakov and Gimelshein, *Online normalizer calculation
# for softmax*, 2018). Keep the largest score *so far*, and the sum *for that one*. A larger score makes the old sum too large:
# correct it by one factor, and go on. (The weights themselves need every score again; Part 3 uses each at once instead.)
#
# **Your turn.** `blocks` can be walked through once, as a file or a stream can.


# %% tags=["yours"] yours="one_pass"
def one_pass(blocks):
    """Return the largest score and the sum of exp(score - largest); blocks are tensors."""
    largest, total = -math.inf, 0.0
    for scores in blocks:
        new = max(largest, scores.max().item())
        total = total * math.exp(largest - new) + (scores - new).exp().sum().item()
        largest = new
    return largest, total


# %% checks="one_pass"
def once(function, blocks):
    return function(iter(blocks))


asked = exercises.Checks("A softmax's maximum and sum, in one pass", one_pass)
known = [torch.tensor(each, dtype=torch.float64) for each in ([1.0, 3.0], [2.0], [5.0, 4.0])]
whole = torch.cat(known)
total = (whole - 5).exp().sum().item()
stale = math.exp(-2) + 1 + math.exp(-1) + 1 + math.exp(-1)
slips = {
    (5.0, stale): "A sum for an old maximum is too large: shrink it when a larger one comes"
}
asked.returns("three blocks", (known,), call=once, expected=(5.0, total), mistakes=slips)
below = [each - 1000 for each in known]
slips = {(0.0, 0.0): "All of these are far below 0: begin with minus infinity"}
asked.returns("all far below 0", (below,), call=once, expected=(-995.0, total), mistakes=slips)
high = [each + 1000 for each in known]
asked.returns("and far above", (high,), call=once, expected=(1005.0, total))
one_pass = asked.settle()


# %% wrong="one_pass" says="shrink it when a larger one comes"
def one_pass(blocks):
    largest, total = -math.inf, 0.0
    for scores in blocks:
        largest = max(largest, scores.max().item())
        total += (scores - largest).exp().sum().item()
    return largest, total


# %% wrong="one_pass" says="begin with minus infinity"
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


# %% [markdown]
# A correction costs a little work. Take 1,000 scores in random order, one by one. The first is the largest so far; when is the
# second, the third, the thousandth?

# %% tags=["predict"]
records = helpers.predict(
    "1,000 scores, random order: how often is one the largest so far?", "times"
)
records

# %% tags=["run"]
torch.manual_seed(0)
orders = torch.rand(4000, 1000, dtype=torch.float64)
largest_so_far = orders.cummax(dim=1).indices
counted = (largest_so_far == torch.arange(1000)).sum(dim=1).double().mean().item()

# %% tags=["look"]
records.reveal(modelled=sum(1 / place for place in range(1, 1001)), counted=counted)

# %% [markdown] tags=["explain"]
# Number $i$ is the largest of the first $i$ with a chance of $1/i$, and $1 + \frac12 + \frac13 + \dots$ grows as the logarithm
# does. (Counted: the mean of 4,000 orders.)
#
# Attention needs more than the sum: the output $\sum_j e^{s_j - m} v_j$ divided by it. The old output is corrected by the same
# factor. Lesson 16 merged two finished outputs; this one is not divided until the end.


# %%
def state_of(scores, values):
    largest = scores.amax(dim=-1, keepdim=True)
    weights = (scores - largest).exp()
    return largest, weights.sum(dim=-1, keepdim=True), weights @ values


# %% [markdown]
# **Your turn.** A block of scores `(rows, columns)` and the values `(columns, d)` of its keys come to what is there.


# %% tags=["yours"] yours="absorb"
def absorb(largest, total, output, scores, values):
    """Return largest, total (rows, 1) and the undivided output (rows, d), with the block."""
    new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
    shrink, weights = (largest - new).exp(), (scores - new).exp()
    total = shrink * total + weights.sum(dim=-1, keepdim=True)
    return new, total, shrink * output + weights @ values


# %% checks="absorb"
torch.manual_seed(1)
scores, values = torch.randn(2, 6).double() + torch.arange(6), torch.randn(6, 3).double()
before, after = state_of(scores[:, :2], values[:2]), state_of(scores, values)
block = scores[:, 2:], values[2:]
fresh = (block[0] - after[0]).exp()
asked = exercises.Checks("A block of keys is absorbed", absorb)
asked.returns(
    "2 keys, then 4 more: as with 6",
    (*before, *block),
    expected=after,
    mistakes={(*after[:2], before[2] + fresh @ block[1]): "Shrink the old output as well"},
)
nothing = torch.full((2, 1), -torch.inf), torch.zeros(2, 1), torch.zeros(2, 3)
empty = tuple(each.double() for each in nothing)
asked.returns(
    "before any block: minus infinity, 0, 0", (*empty, scores, values), expected=after
)
absorb = asked.settle()


# %% wrong="absorb" says="Shrink the old output as well"
def absorb(largest, total, output, scores, values):
    new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
    weights = (scores - new).exp()
    total = (largest - new).exp() * total + weights.sum(dim=-1, keepdim=True)
    return new, total, output + weights @ values


# %% wrong="absorb" says="gave"
def absorb(largest, total, output, scores, values):
    new = scores.amax(dim=-1, keepdim=True)
    shrink, weights = (largest - new).exp(), (scores - new).exp()
    total = shrink * total + weights.sum(dim=-1, keepdim=True)
    return new, total, (shrink * output + weights @ values) / total


# %% [markdown]
# ## Part 3: tiles
#
# - Take a block of queries
# - Walk through the keys, a block at a time
# - Absorb each tile of scores, and forget it
#
# A product in tiles is lesson 02's. New is that the second product and the softmax between the two take place in the tile.
#
# **Your turn**: return the output, and for each row $L = m + \log(\text{sum})$, which Part 4 needs. `query.split(rows, dim=-2)`
# has the blocks; leading dimensions, such as heads, come along. `most_numbers` is for the checks: the largest tensor that a call
# makes.


# %%
def nothing_yet(query, value):
    largest = query.new_full((*query.shape[:-1], 1), -torch.inf)
    output = query.new_zeros(*query.shape[:-1], value.shape[-1])
    return largest, torch.zeros_like(largest), output


# %%
class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        made = operator(*args, **(kwargs or {}))
        self.most = max(self.most, made.numel() if isinstance(made, torch.Tensor) else 0)
        return made


def most_numbers(function, *arguments):
    with Sizes() as sizes:
        sizes.most = 0
        function(*arguments)
    return sizes.most


# %% tags=["yours"] yours="by_tiles"
def by_tiles(query, key, value, rows, columns):
    """Return attention and L (..., tokens, 1), from tiles of at most rows x columns scores."""
    outputs, logs = [], []
    for own in (query / query.shape[-1] ** 0.5).split(rows, dim=-2):
        state = nothing_yet(own, value)
        for block in zip(
            key.split(columns, dim=-2), value.split(columns, dim=-2), strict=True
        ):
            state = absorb(*state, own @ block[0].mT, block[1])
        largest, total, output = state
        outputs.append(output / total)
        logs.append(largest + total.log())
    return torch.cat(outputs, dim=-2), torch.cat(logs, dim=-2)


# %% checks="by_tiles"
torch.manual_seed(2)
given = tuple(torch.randn(2, 12, 2, dtype=torch.float64) for _ in range(3))
scores = given[0] @ given[1].mT / 2**0.5
logs, largest = scores.logsumexp(dim=-1, keepdim=True), scores.amax(dim=-1, keepdim=True)
expected = functional.scaled_dot_product_attention(*given), logs
undivided = expected[0] * (expected[1] - largest).exp()
slips = {
    (undivided, expected[1]): "Divide the output by its sum, when all keys are absorbed",
    attention.in_tiles(
        2**0.5 * given[0], *given[1:]
    ): "The scores are divided by the root of d",
}
asked = exercises.Checks("Attention in tiles", by_tiles)
goal = "12 tokens, tiles of 4 x 3: PyTorch's attention, and L"
asked.returns(goal, (*given, 4, 3), expected=expected, mistakes=slips)
slips = {288: "That is the whole table: one tile at a time"}
slips[96] = "That is a block of queries with all keys: split the keys, too"
goal = "no tensor larger than the output's 48 numbers"
asked.returns(goal, (*given, 4, 3), call=most_numbers, expected=48, mistakes=slips)
by_tiles = asked.settle()


# %% wrong="by_tiles" says="when all keys are absorbed"
def by_tiles(query, key, value, rows, columns):
    outputs, logs = [], []
    for own in (query / query.shape[-1] ** 0.5).split(rows, dim=-2):
        state = nothing_yet(own, value)
        for block in zip(
            key.split(columns, dim=-2), value.split(columns, dim=-2), strict=True
        ):
            state = absorb(*state, own @ block[0].mT, block[1])
        outputs.append(state[2])
        logs.append(state[0] + state[1].log())
    return torch.cat(outputs, dim=-2), torch.cat(logs, dim=-2)


# %% wrong="by_tiles" says="divided by the root of d"
def by_tiles(query, key, value, rows, columns):
    outputs, logs = [], []
    for own in query.split(rows, dim=-2):
        state = nothing_yet(own, value)
        for block in zip(
            key.split(columns, dim=-2), value.split(columns, dim=-2), strict=True
        ):
            state = absorb(*state, own @ block[0].mT, block[1])
        outputs.append(state[2] / state[1])
        logs.append(state[0] + state[1].log())
    return torch.cat(outputs, dim=-2), torch.cat(logs, dim=-2)


# %% wrong="by_tiles" says="That is the whole table"
def by_tiles(query, key, value, rows, columns):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1, keepdim=True)


# %% tags=["look", "slide", "slide-output"] minutes=2 layout="steps" frames=[0, 3, 4, 9] headline="A tile of scores is made, used and forgotten"
order = attention.tiles_of(4, rows=1, columns=1)
frames, captions = [], []
for step, (row, _) in enumerate(order):
    frames.append(plotting.draw_score_tiles(order, step))
    count = f"Blocks read so far: {row + 1} of Q, {step + 1} of K, {step + 1} of V"
    captions.append(f"{count}; finished of O: {row}.")
plotting.play(
    frames,
    title="Queries outside, keys inside",
    captions=captions,
    alt="A tile runs along the rows of a 4 by 4 table; each row finishes a block of O.",
)

# %% [markdown] tags=["explain"]
# Which bytes does this move? Let a cache hold $Q$'s block, a block of $K$ and one of $V$, and not all of $K$. Then a block of $K$
# has left it when the next block of queries comes. Tiles of scores and running sums are left out: a GPU keeps them in
# [registers](glossary.md#register). One more rule: before this cache writes to a [line](glossary.md#cache-line), it reads it.
#
# One head, 512 tokens, $d = 64$: each matrix has 131,072 bytes, the cache half of that. Tiles of 64 x 64.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000]
reads = helpers.predict("Bytes read from memory, in all: how many times the size of Q?", "x")
reads

# %% [markdown]
# `attention.count_bytes` gives the addresses of an order to lesson 01's simulated cache, line by line; `attention.model_bytes` is
# the formula. *Row by row* takes each product a row at a time; *products in tiles* has good products, and still the table.

# %% tags=["run"]
sizes = {"tokens": 512, "width": 64, "rows": 64, "columns": 64}
found = {order: attention.count_bytes(**sizes, order=order) for order in attention.ORDERS}
q_bytes = 512 * 64 * 4
simulated = found["queries outside"].read_bytes / q_bytes

# %% tags=["look"]
reads.reveal(modelled=1 + 2 * 512 / 64 + 1, simulated=simulated)

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="queries outside" headline="Without the table, attention reads 18 times Q"
rows = {}
for order, each in found.items():
    assert each == attention.model_bytes(**sizes, order=order)
    rows[order] = [each.read_bytes / q_bytes, each.written_bytes / q_bytes]
columns = ["read, times Q", "written, times Q"]
pd.DataFrame(rows, index=columns).T.map("{:,.0f}".format)

# %% [markdown] tags=["explain"]
# Queries outside: $Q$ once, $K$ and $V$ once for each of 8 blocks of queries, $O$ once. The first row has two products without
# tiles, and both read a matrix anew for every row. Tiles cut 1,058 to 50. The table costs 32 of
# these: it is 8 times as large as $Q$ and is read four times, once of it before its first write.
#
# The last row has the loops exchanged: a block of keys stays, and the queries walk past it. It reads as much. But then no output
# is finished before the last block of keys, so $O$ comes and goes with every one. FlashAttention's algorithm 1 (2022) has this
# order, FlashAttention-2 (Dao, 2023) the other.
#
# Now the shape of a tile. 128 x 32 are as many scores as 64 x 64:

# %% tags=["predict"]
tall = helpers.predict("Tiles of 128 x 32: what share of the bytes that 64 x 64 read?", "%")
tall

# %% tags=["run"]
sides = (16, 32, 64, 128, 256)
by_rows = {}
for side in sides:
    shape = sizes | {"rows": side, "columns": 32, "order": "queries outside"}
    both = attention.count_bytes(**shape), attention.model_bytes(**shape)
    by_rows[side] = [each.read_bytes / q_bytes for each in both]

# %% tags=["look"]
share = 100 / found["queries outside"].read_bytes * q_bytes
tall.reveal(modelled=share * by_rows[128][1], simulated=share * by_rows[128][0])

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Tall tiles read less, until their queries fill the cache"
drawn, axes = plotting.figure(title="512 tokens of width 64, a cache of 65,536 bytes")
counted, modelled = zip(*by_rows.values(), strict=True)
axes.loglog(sides, modelled, ":", color=plotting.MODELLED, label="2 n / rows + 2, modelled")
axes.loglog(sides, counted, "o-", color=plotting.MEASURED, label="simulated")
axes.set_xticks(sides, sides)
axes.set_yticks([4, 10, 18, 34, 66], ["4", "10", "18", "34", "66"])
axes.minorticks_off()
axes.set(xlabel="rows of a tile of 32 columns", ylabel="bytes read, times Q")
axes.legend()
plotting.show(
    drawn, alt="Bytes read almost halve with each doubling of the rows, up to 128, then jump."
)

# %% [markdown] tags=["explain"]
# Columns do not enter the formula: they only have to fit. More rows mean fewer walks through the keys. 256 rows of $Q$ fill this
# cache alone, so each tile reads them again.

# %% [markdown] tags=["slide"] minutes=2 headline="Weights that can be made again need not be kept"
# ## Part 4: the way back
#
# - Backward needs the weights, one for each score
# - Plain attention keeps them
# - Or: compute them again, from $Q$, $K$ and one number a row
#
# Plain attention keeps the inputs of its products and the softmax's output (lesson 07). A tensor that two operators share counts once.

# %% tags=["predict"]
kept = helpers.predict(
    "2,048 tokens, d = 64: how many times Q does plain attention keep?", "x"
)
kept

# %% tags=["run"]
long = tuple(torch.randn(1, 1, 2048, 64) for _ in range(3))
plain_keeps = attention.saved_bytes(plain, *long) / long[0].nbytes
loop_keeps = attention.saved_bytes(lambda *each: by_tiles(*each, 64, 64)[0], *long)

# %% tags=["look"]
kept.reveal(modelled=3 + 2048 / 64, counted=plain_keeps)
print(f"your tiles, if autograd watches them: {loop_keeps / long[0].nbytes:.0f} times Q")

# %% [markdown] tags=["explain"]
# $Q$, $K$, $V$, and a table of $n / d = 32$ times their size. Tiles alone do not help: autograd keeps every tile, and more
# besides. So the way back must be written by hand.
#
# Write $W$ for the weights of a tile, $G$ for the gradient of its rows of $O$. Because $L$ is kept, a tile's weights come back
# without its neighbours: $W = e^{S - L}$. The values get $W^T G$. A softmax's gradient is
#
# $$dS = W \circ (G V^T - D), \qquad D = \text{sum over the row's keys of } W \circ (G V^T)$$
#
# $D$ runs over *all* keys, which a tile does not see. But $\sum_j W_{ij} (G_i \cdot V_j) = G_i \cdot
# \sum_j W_{ij} V_j = G_i \cdot O_i$, and $O$ is kept.
#
# **Your turn**: one tile's part of the three gradients. $S = Q K^T / \sqrt{d}$, so its root comes once more at the end.


# %% tags=["yours"] yours="tile_gradients"
def tile_gradients(query, key, value, log, shared, gradient):
    """Return a tile's part of dQ, dK and dV; log is L, shared is D, gradient is G."""
    scale = query.shape[-1] ** -0.5
    weights = (scale * query @ key.mT - log).exp()
    to_scores = weights * (gradient @ value.mT - shared)
    return scale * to_scores @ key, scale * to_scores.mT @ query, weights.mT @ gradient


# %% checks="tile_gradients"
torch.manual_seed(3)
query, key, value, gradient = torch.randn(4, 6, 4, dtype=torch.float64)
ends = [each.clone().requires_grad_() for each in (query, key, value)]
output, log = attention.in_tiles(query, key, value)
shared = (gradient * output).sum(dim=-1, keepdim=True)
right = torch.autograd.grad(plain(*ends), ends, gradient)
weights = (query @ key.mT / 2 - log).exp()
flat = weights * (gradient @ value.mT)
without = flat @ key / 2, flat.mT @ query / 2, right[2]
asked = exercises.Checks("The way back through one tile", tile_gradients)
asked.returns(
    "a tile of all keys: autograd's gradients",
    (query, key, value, log, shared, gradient),
    expected=right,
    mistakes={
        without: "Take D off: weights of a row add up to 1, so one grows at the others' cost",
        (2 * right[0], 2 * right[1], right[2]): "The scores were divided by the root of d",
    },
)
tile_gradients = asked.settle()


# %% wrong="tile_gradients" says="Take D off"
def tile_gradients(query, key, value, log, shared, gradient):
    scale = query.shape[-1] ** -0.5
    weights = (scale * query @ key.mT - log).exp()
    to_scores = weights * (gradient @ value.mT)
    return scale * to_scores @ key, scale * to_scores.mT @ query, weights.mT @ gradient


# %% wrong="tile_gradients" says="divided by the root of d"
def tile_gradients(query, key, value, log, shared, gradient):
    weights = (query.shape[-1] ** -0.5 * query @ key.mT - log).exp()
    to_scores = weights * (gradient @ value.mT - shared)
    return to_scores @ key, to_scores.mT @ query, weights.mT @ gradient


# %% [markdown]
# All tiles, and then an operator of PyTorch's with this way back. It keeps the inputs, the output, and one number a row:


# %%
def back_in_tiles(query, key, value, output, log, gradient, side):
    shared = (gradient * output).sum(dim=-1, keepdim=True)
    sums = [torch.zeros_like(each) for each in (query, key, value)]
    for top in range(0, query.shape[-2], side):
        rows = slice(top, top + side)
        own = [each[..., rows, :] for each in (query, log, shared, gradient)]
        for left in range(0, key.shape[-2], side):
            others = slice(left, left + side)
            keys, values = key[..., others, :], value[..., others, :]
            parts = tile_gradients(own[0], keys, values, *own[1:])
            for total, at, part in zip(sums, (rows, others, others), parts, strict=True):
                total[..., at, :] += part
    return sums


# %%
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


# %%
small = [each.requires_grad_() for each in torch.randn(3, 2, 7, 3, dtype=torch.float64)]
assert torch.autograd.gradcheck(lambda *each: Tiles.apply(*each, 3), small)

# %% [markdown]
# PyTorch's own counter, `FlopCounterMode`, has the products of a step. One product is $2 n^2 d$ [FLOP](glossary.md#flop):

# %% tags=["run"]
fused = functional.scaled_dot_product_attention
versions = {"plain": plain, "yours": lambda *each: Tiles.apply(*each, 128), "fused": fused}
versions["fused, three dimensions"] = lambda *each: fused(*(tensor[0] for tensor in each))


def products(function, query, key, value):
    inputs = [each.clone().requires_grad_() for each in (query, key, value)]
    with FlopCounterMode(display=False) as counter:
        function(*inputs).sum().backward()
    return counter.get_total_flops() / (2 * query.shape[-2] ** 2 * query.shape[-1])


short = tuple(each[..., :512, :] for each in long)

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="yours" headline="One product more, and no table is kept"
rows = {
    name: [
        f"{attention.saved_bytes(function, *long) / long[0].nbytes:.2f}",
        f"{products(function, *short):g}",
    ]
    for name, function in versions.items()
}
pd.DataFrame(rows, index=["kept, 2,048 tokens, times Q", "products, as PyTorch counts"]).T

# %% [markdown] tags=["explain"]
# Four matrices and $1/d$ instead of 35. Seven products, two forward and five back, instead of six. And fused attention? It keeps
# as little as yours, so it must make the weights again. But PyTorch's counter has no formula for the operator that a CPU uses,
# and says 0 without a warning; in lesson 07 another counter missed attention. The last row is a trap: given (heads, tokens,
# width) without a batch in front, the same function takes the plain way here, with its table, and does not say so.
#
# Time, with two heads. Their tables have 0.5 MB for 256 tokens, and 33.6 MB for 2,048.


# %% tags=["run"]
def step(function, inputs, gradient):
    return torch.autograd.grad(function(*inputs), inputs, gradient)


def race(tokens, budget_s):
    inputs = [torch.randn(1, 2, tokens, 64, device=device).requires_grad_() for _ in "qkv"]
    gradient = torch.randn(1, 2, tokens, 64, device=device)
    programs = {
        name: lambda function=versions[name]: step(function, inputs, gradient)
        for name in ("plain", "yours", "fused")
    }
    return timing.compare(programs, budget_s=budget_s, precision=0.1)


costs = {256: race(256, budget_s=1), 2048: race(2048, budget_s=8)}

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="More products, and a shorter step"
bet.reveal(measured=costs[2048].candidate("fused").time_ratio)

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="fused" headline="Short texts gain little"
rows = {
    name: [
        f"{each.candidate(name).time_ratio:.2f} times (measured)" for each in costs.values()
    ]
    for name in ("plain", "yours", "fused")
}
pd.DataFrame(rows, index=[f"{tokens:,} tokens" for tokens in costs]).T

# %% tags=["look"]
sentence = "2,048 tokens: fused attention's step is shorter than plain attention's"
ratio = costs[2048].candidate("fused").time_ratio
timing.claim(sentence, ratio, at_most=0.9, evidence=costs[2048])

# %% [markdown] tags=["explain"]
# Checkpointing in lesson 07 computed again and paid in time. Here computing again goes with a shorter step, in the fused program: a
# score is made again from 64 products, and each pass over the tables that is saved would move 33.6 MB. (That this is the cause, no cell
# shows: yours computes again as well.) With 256 tokens a pass moves 0.5 MB, which fits a
# cache of most processors, so there is less to save. (Yours starts several small programs for each tile.)

# %% [markdown] tags=["slide"] minutes=2 headline="A program of the kernel takes one block of queries"
# ## Part 5: the kernel
#
# - On a GPU one *program* takes one block of queries
# - Loops run inside it, sums stay in its registers
# - Triton: Python that is compiled for the GPU
#
# Below, `tl.load` reads a block from memory, `tl.dot` multiplies two, and `tl.store` writes. It is your loop, with the addresses
# written out. Find the line that shrinks the old output.

# %% tags=["look"]
print(attention.kernel_source())

# %% [markdown] tags=["explain"]
# Only `query`, `key`, `value`, `output` and `log_sum` are in memory. (`CAUSAL` is next.) Triton's interpreter runs the kernel on
# a CPU, for its results and not for speed. Here are 50 tokens, which are no whole tiles of 32:

# %% tags=["run"]
torch.manual_seed(4)
given = tuple(torch.randn(2, 50, 32) for _ in range(3))
who = "the kernel"
try:
    output, _ = attention.interpret(*given, rows=32, columns=32, causal=True)
except native.MissingToolError as missing:  # Triton comes with PyTorch for Linux
    who = f"our tiles, because {missing}"
    output, _ = attention.in_tiles(*given, causal=True)
expected = fused(*given, is_causal=True)
assert (output - expected).abs().max() < 1e-5

# %% tags=["look"]
rows = {who: output[1, 49, :4].tolist(), "PyTorch": expected[1, 49, :4].tolist()}
pd.DataFrame(rows).T.round(4)

# %% [markdown] tags=["explain"]
# In a language model a token looks back only: the attention is *causal*. A tile in which every key is later than every query need
# not be computed. 512 tokens, tiles of 64 x 64:

# %% tags=["predict"]
share = helpers.predict("Causal: what share of the tiles is computed?", "%")
share

# %% tags=["run"]
how = {"rows": 64, "columns": 64}
order = attention.tiles_of(512, **how, causal=True)
inputs = tuple(torch.randn(1, 512, 64) for _ in range(3))
work = [
    products(
        lambda *each, causal=causal: attention.in_tiles(*each, **how, causal=causal)[0],
        *inputs,
    )
    for causal in (True, False)
]

# %% tags=["look"]
share.reveal(modelled=100 * 9 / 16, counted=100 * work[0] / work[1])

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Tiles of later keys are never made"
plotting.show(
    plotting.draw_score_tiles(order, 24, title="Causal: 36 of 64 tiles"),
    alt="Tiles below and on the diagonal are done or to come; those above it are never made.",
)

# %% [markdown] tags=["explain"]
# With $b$ blocks in a row, $(b + 1) / 2b$. On the diagonal the tile is computed whole, and half of it is masked away.

# %% [markdown] tags=["slide"] minutes=2 headline="Whoever states a rate has chosen what to count"
# ## Part 6: who counts what?
#
# - A rate is FLOP over time
# - Time is measured
# - FLOP are *chosen*: the whole table, or the half that is looked at?
#
# Both are customary. First here: fused attention over 4,096 tokens, whole and causal, beside one large product.

# %% tags=["run", "nbval-ignore-output"]
inputs = [torch.randn(1, 1, 4096, 64, device=device) for _ in range(3)]
square = torch.randn(1024, 1024, device=device)
programs = {
    "whole": lambda: fused(*inputs),
    "causal": lambda: fused(*inputs, is_causal=True),
    "large product": lambda: square @ square,
}
rates = timing.compare(programs, budget_s=2, precision=0.1)
flops = dict.fromkeys(("whole", "causal"), 2 * 2 * 4096**2 * 64) | {
    "large product": 2 * 1024**3
}
for name, count in flops.items():
    rate = count / rates.candidate(name).median_s
    print(f"{name}: {units.text(rate, 'FLOP/s')}")

# %% tags=["look"]
sentence = "causal attention takes less time than the whole"
ratio = rates.candidate("causal").time_ratio
timing.claim(sentence, ratio, at_most=0.95, evidence=rates)

# %% [markdown] tags=["explain"]
# The causal rate is too high: it counts all scores, and about half were computed. Where it passes even a large product's, suspect the
# count first.
#
# Now a published rate. FlashAttention-2's table 1 gives 225 TFLOP/s for training a GPT of 2.7 billion parameters, 8,192 tokens,
# on A100s. Its formula counts, for a token, $6P$ for $P$ parameters and $12\,l\,h\,n$ for the scores, with 32 layers of width
# 2,560 as $l$ and $h$: 16.2 and 8.1 GFLOP. The model is causal; the paper says that the scores are counted whole, so as to agree
# with the literature.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[100, 300]
honest = helpers.predict(
    "225 TFLOP/s: how many, if half of the scores are counted?", "TFLOP/s"
)
honest

# %% tags=["run"]
row = attention.FLASH_2_TRAINING[0]
weights_flops, scores_flops = 6 * row.parameters, 12 * row.layers * row.width * row.tokens
half = (weights_flops + scores_flops / 2) / (weights_flops + scores_flops)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Half of the scores are a sixth of the rate"
honest.reveal(modelled=half * row.flops_per_s / 1e12)
shares = f"{row.peak_share:.0%} (published), {half * row.peak_share:.0%} if halved"
print(f"of the A100's peak: {shares}")

# %% [markdown] tags=["explain"]
# Such rates compare badly between lengths: the longer the text, the larger the share of the counted FLOP that nobody computes.
# (In its comparison of attention alone, the same paper halves them.)
#
# Last, the table that made the idea famous: FlashAttention's figure 2, forward and backward, GPT-2 medium, 1,024 tokens, 16 heads
# of 64, batch 64, an A100. We hold its GFLOP against the products of these sizes:

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Published GFLOP can be checked with a pencil"
product = 2 * 64 * 16 * 1024**2 * 64
table = 2 * 64 * 16 * 1024**2  # bytes, in 16 bits
rows = {}
for row, count in zip(attention.FLASH_TABLE, (6, 7), strict=True):
    times = count * product / row.flops
    rows[row.attention] = [f"{row.flops / 1e9:.1f}", f"{count * product / 1e9:.0f}"]
    rows[row.attention] += [f"{times:.1f}", f"{row.memory_bytes / table:.1f}"]
columns = ["GFLOP, published", "GFLOP of its products", "ratio", "published bytes / table"]
pd.DataFrame(rows, index=columns).T

# %% [markdown] tags=["explain"]
# The published bytes are 18.8 times a table of 2.1 GB; we counted 6 for the forward pass alone. The GFLOP are not those of the
# caption's sizes; twelve times as many would be. What was counted, the paper does not say. Its message is fewer bytes and more
# arithmetic in less time. You have counted the forward pass's bytes and the products, and measured the time.
#
# **Your own.** The [exercises](exercises/18_attention_without_the_matrix_exercises.ipynb) have you merge what several devices
# hold, choose a tile for a cache, count a sliding window, and take an attention of your own from prediction to measurement.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Maximum and sum need one pass: when the maximum grows, shrink what came before.
# 2. What is cheap to make again need not be stored.
# 3. Ask of every rate which FLOP were counted.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# One head, $n$ tokens, width $d$; tiles of $r$ rows of queries; a unit is the bytes of $Q$.
#
# | quantity | formula |
# |---|---|
# | passes over the table, plain | $6$, each of $\frac{n}{d}$ units |
# | softmax, one more score $s$ | $m' = \max(m, s)$, $\ell' = e^{m - m'} \ell + e^{s - m'}$ with the sum $\ell$ for the maximum $m$ |
# | largest so far among $n$ in random order | $1 + \frac12 + \dots + \frac1n$ times |
# | read by tiles, queries outside | $\frac{2n}{r} + 2$ units |
# | kept for backward, plain | $3 + \frac{n}{d}$ units |
# | kept for backward, tiles | $4 + \frac{1}{d}$ units |
# | products of a step | $6$ plain, $7$ computed again, each $2 n^2 d$ FLOP |
# | causal tiles, $b$ blocks in a row | $\frac{b + 1}{2b}$ of all |
