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
#     needs: ["09", "11"]
#     objectives:
#       - count|counted how often a plain step passes its table of scores, forward and back
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
import textwrap

import pandas as pd
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import helpers
from helpers import exercises, native, plotting, timing, units
from helpers.studies import attention

device = "cuda" if torch.cuda.is_available() else "cpu"
allocator = helpers.steady_allocator()  # no page faults in our times (lesson 01)

# %% [markdown] tags=["slide"] minutes=2
# ## The bet
#
# - 2,048 tokens, forward and backward
# - Plain attention keeps its table: 6 products
# - *Fused* attention forgets it, and computes each score twice: 7 products
#
# Lesson 11 paid for such forgetting: activations that are not kept are computed again, and the step takes longer. PyTorch's
# fused attention is `scaled_dot_product_attention`. How long does its step take?

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10]
bet = helpers.predict("The fused step takes how many times as long as the plain one?", "x")
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
# A *pass* is one reading or one writing of the whole table. (Whether it goes to memory or stays in a cache, its size decides.)

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 16]
passes = helpers.predict(
    "How many times do these four lines read or write the table?", "passes"
)
passes

# %% [markdown]
# `Watch` sees every operator that PyTorch starts, and notes how many numbers each tensor has that it reads or makes. One that
# only looks at the same memory in another shape moves nothing, and is left out:


# %% tags=["run"]
class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        made = operator(*args, **(kwargs or {}))
        read, written = tensors_in((args, kwargs)), tensors_in(made)
        homes = {each.untyped_storage().data_ptr() for each in read}
        if all(each.untyped_storage().data_ptr() not in homes for each in written):
            sizes = [[each.numel() for each in side] for side in (read, written)]
            self.seen.append((str(operator).split(".")[1], *sizes))
        return made


# %% tags=["run"]
def tensors_in(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def watch(function, *arguments):
    with Watch() as watching:
        watching.seen = []
        function(*arguments)
    return watching.seen


# %% tags=["run"]
def passes_over(table, function, *arguments):
    seen = watch(function, *arguments)
    rows = [(name, read.count(table), made.count(table)) for name, read, made in seen]
    return pd.DataFrame(rows, columns=["operator", "reads", "writes"]).set_index("operator")


inputs = tuple(torch.randn(1, 8, 512, 64) for _ in range(3))
forward = passes_over(8 * 512 * 512, plain, *inputs)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Four lines pass the table six times"
passes.reveal(counted=int(forward.to_numpy().sum()))

# %% tags=["look"]
forward

# %% [markdown] tags=["explain"]
# The first product (`bmm`) writes the table, the division reads and writes it, so does the softmax, and the second product reads it: six
# passes. With 8 heads, 512 tokens and $d = 64$ the table is 8 times as large as $Q$. Fusing the division into its neighbour
# would save two (lesson 18). To save all six, the softmax must change.

# %% [markdown] tags=["slide"] minutes=2 headline="A softmax needs the largest score before it divides"
# ## Part 2: the maximum and the sum in one pass
#
# $$\text{softmax}(s)_i = \frac{e^{s_i - m}}{\sum_j e^{s_j - m}}, \qquad m = \max_j s_j$$
#
# - Without $m$: $e^{89}$ is already infinite in float32
# - So first all scores for $m$, then all again for the sum?
#
# One pass is enough for both, with an [online softmax](glossary.md#online-softmax) (Milakov and Gimelshein, *Online normalizer calculation
# for softmax*, 2018). Keep the largest score *so far*, and the sum *for that one*. With a larger score $m'$ each old term
# $e^{s-m}$ should be $e^{s-m'}$: correct the sum by one factor, and go on. (The weights themselves need every score again; Part 3 uses each at once instead.)
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
# Attention needs more than the sum: the output $\sum_j e^{s_j - m} v_j$ divided by it. The old output is corrected by the same
# factor. Lesson 09 merged two finished outputs; this one is not divided until the end.


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


def most_numbers(function, *arguments):
    return max(max(made) for _, _, made in watch(function, *arguments))


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

# %% [markdown] tags=["explain"]
# Which bytes does this move, in a larger table? Let a cache hold $Q$'s block, a block of $K$ and one of $V$, and not all of $K$. Then a block of $K$
# has left it when the next block of queries comes. Tiles of scores and running sums are left out: a GPU keeps them in
# [registers](glossary.md#register). One more rule: before this cache writes to a [line](glossary.md#cache-line), it reads it.
#
# One head, 512 tokens, $d = 64$: each matrix has 131,072 bytes, the cache half of that. Tiles of 64 x 64.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000]
reads = helpers.predict("Bytes read from memory, in all: how many times the size of Q?", "x")
reads

# %% [markdown]
# `attention.count_bytes` gives the addresses of an order to lesson 01's simulated cache, line by line; `attention.model_bytes` is
# the formula. *Row by row* keeps the table and takes each product a row at a time; *products in tiles* keeps the table, too.

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
# Queries outside: $Q$ once, $K$ and $V$ once for each of 8 blocks of queries, $O$ once. Row by row, each product reads a whole
# matrix for every query; tiles cut 1,058 to 50. Of these the table costs 32: it is 8 times as large as $Q$ and is read four
# times, once of it before its first write.
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
# Plain attention keeps the inputs of its products and the softmax's output (lesson 11). A tensor that two operators share counts once.

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
# **Your turn**: one tile's part of the three gradients. $S = Q K^T / \sqrt{d}$, so the factor $1/\sqrt{d}$ multiplies the gradients of $Q$ and $K$ as well.


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
# Back to the bet. Plain attention's way back is the formulas above, an operator each: $W^T G$, $G V^T$, the softmax's, the
# division's, and the products for $Q$ and $K$.

# %% tags=["predict"]
both_ways = helpers.predict(
    "Plain attention, forward and back: how many passes over the table?", "passes"
)
both_ways


# %% tags=["run"]
def step(function, inputs, gradient):
    return torch.autograd.grad(function(*inputs), inputs, gradient)


def passes_of_step(function):
    inputs = [torch.randn(1, 1, 512, 64).requires_grad_() for _ in "qkv"]
    gradient = torch.randn(1, 1, 512, 64)
    return passes_over(512 * 512, step, function, inputs, gradient)


whole_step = passes_of_step(plain)

# %% tags=["look"]
both_ways.reveal(modelled=6 + 2 + 3 + 2 + 2, counted=int(whole_step.to_numpy().sum()))

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="_softmax_backward_data" headline="The way back passes the table nine times more"
whole_step

# %% [markdown] tags=["explain"]
# Backward: one product reads $W$ and one writes its gradient, the softmax reads both and writes $dS$, the division reads and
# writes, and two products read. Now all versions. `FlopCounterMode` is PyTorch's own counter of products, each $2 n^2 d$
# [FLOP](glossary.md#flop):

# %% tags=["run"]
fused = functional.scaled_dot_product_attention
versions = {"plain": plain, "yours": lambda *each: Tiles.apply(*each, 128), "fused": fused}
versions["fused, three dimensions"] = lambda *each: fused(*(one[0] for one in each))[None]


def products(function, query, key, value):
    inputs = [each.clone().requires_grad_() for each in (query, key, value)]
    with FlopCounterMode(display=False) as counter:
        function(*inputs).sum().backward()
    return counter.get_total_flops() / (2 * query.shape[-2] ** 2 * query.shape[-1])


short = tuple(each[..., :512, :] for each in long)

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="yours" headline="One product more, and no table is kept or passed"
rows = {}
for name, function in versions.items():
    kept_bytes, moves = attention.saved_bytes(function, *long), passes_of_step(function)
    rows[name] = [f"{kept_bytes / long[0].nbytes:.2f}", f"{products(function, *short):g}"]
    rows[name] += [moves.to_numpy().sum(), len(moves)]
pd.DataFrame(rows, index=["kept, times Q", "products, by PyTorch", "passes", "operators"]).T

# %% [markdown] tags=["explain"]
# Yours keeps four matrices and $1/d$ instead of 35 (2,048 tokens). It takes seven products, two forward and five back, instead of
# six, and no tensor of the table's size: what fifteen passes do happens tile by tile, in many small operators (512 tokens, tiles of
# 128 x 128).
#
# And fused attention? It keeps as little as yours, so it must make the weights again. But PyTorch's counter has no formula for
# the operator that a CPU uses, and says 0 without a warning; our count of passes cannot look into it either. The last row is a trap: given (heads, tokens, width) without a
# batch in front, the same function takes the plain way here, with its table, and does not say so.
#
# Time, with two heads. Their tables have 0.5 MB for 256 tokens, and 33.6 MB for 2,048.


# %% tags=["run"]
def race(tokens, budget_s):
    *inputs, gradient = torch.randn(4, 1, 2, tokens, 64, device=device)
    inputs = [each.requires_grad_() for each in inputs]
    programs = {
        name: lambda function=versions[name]: step(function, inputs, gradient)
        for name in ("plain", "yours", "fused")
    }
    return timing.compare(programs, budget_s=budget_s, precision=0.1)


costs = {256: race(256, budget_s=1), 2048: race(2048, budget_s=8)}

# %% [markdown]
# A model from counts alone: plain attention takes 6 products and 15 passes, fused attention 7 products. Two programs have nothing
# to do with attention, and measure what a product and a pass may cost here:

# %% tags=["run"]
table, square = (torch.randn(2, n, n, device=device) for n in (2048, 1024))
programs = {"two passes": lambda: 2 * table, "large product": lambda: square[0] @ square[1]}
limits = timing.compare(programs, budget_s=2, precision=0.1)
pass_s = limits.candidate("two passes").median_s / 2
product_s = 2 * 2048**2 * 64 / 1024**3 * limits.candidate("large product").median_s

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="More products, and a shorter step"
fused_ratio = costs[2048].candidate("fused").time_ratio
bet.reveal(modelled=7 * product_s / (6 * product_s + 15 * pass_s), measured=fused_ratio)

# %% tags=["look"]
rows = {
    name: [
        f"{each.candidate(name).time_ratio:.2f} times (measured)" for each in costs.values()
    ]
    for name in ("plain", "yours", "fused")
}
pd.DataFrame(rows, index=[f"{tokens:,} tokens" for tokens in costs]).T

# %% tags=["look"]
sentence = "2,048 tokens: fused attention's step is shorter than plain attention's"
timing.claim(sentence, fused_ratio, at_most=0.9, evidence=costs[2048])

# %% [markdown] tags=["explain"]
# Where the modelled and the measured are near, two counts fit the bet: one product more, and fifteen passes of 33.6 MB fewer.
# (Left out are exponentials, and what tiles read.) Computing again, which cost time in lesson 11, can save time here: 64 multiplications make a score again, and it
# need not come from memory. With 256 tokens a pass moves 0.5 MB, which fits in a cache of most processors, so there is less to
# save. Yours makes no table either, but calls many more operators; on the machine of this page
# it took longer.

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
kernel = attention.kernel_source().splitlines()
for number, line in enumerate(kernel, 1):
    print(f"{number:2} {line}")

# %% [markdown]
# Your lines, as the course's versions have them, and where each begins in the kernel:

# %% tags=["look"]
yours = {
    "for own in query.split(rows)": "block, head =",
    "state = nothing_yet(own, value)": "largest = tl.full",
    "for block in zip(key blocks, value blocks)": "for left in",
    "own @ block[0].mT": "scores = scale",
    "new = maximum(largest, scores.amax())": "new =",
    "shrink, weights = ...": "shrink, weights =",
    "total = shrink * total + ...": "total = shrink",
    "shrink * output + weights @ values": "result = shrink",
    "output / total": "tl.store(output",
    "largest + total.log()": "tl.store(log_sum",
}

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="shrink * output" headline="The kernel is your loop, with addresses"
found = []
for begins in yours.values():
    place = next(at for at, line in enumerate(kernel) if line.strip().startswith(begins))
    found.append((place + 1, textwrap.shorten(kernel[place], 48, placeholder=" ...")))
pd.DataFrame(found, index=yours, columns=["line", "in the kernel"])

# %% [markdown] tags=["explain"]
# The kernel's other lines are addresses, loads, and masks for what lies beyond the last token. (`CAUSAL` is next.) Only `query`,
# `key`, `value`, `output` and `log_sum` are in memory. Triton's interpreter runs the kernel on a CPU, for its results and not
# for speed. Here are 50 tokens, which are no whole tiles of 32:

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
    attention.draw_score_tiles(
        order, 35, title="Causal: 36 of 64 tiles, each of 64 x 64 scores"
    ),
    alt="Tiles up to the diagonal are done. Early keys are read up to 7 times, the last once.",
)

# %% [markdown] tags=["explain"]
# With $b$ blocks in a row, $(b + 1) / 2b$. On the diagonal the tile is computed whole, and half of it is masked away. Early keys
# are read most often. (The first block 7 times for 8 tiles: two of them follow each other.)

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
rates = timing.compare(programs, budget_s=5, precision=0.1)
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
# The causal rate is too high: it counts all scores, and about half are needed. Where it passes even a large product's, suspect the
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

# %% tags=["look"]
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
# The published bytes are 18.8 times a table of 2.1 GB, where your plain step had 15 passes. The GFLOP are not those of the
# caption's sizes; twelve times as many would be. What was counted, the paper does not say. Its message is fewer bytes and more
# arithmetic in less time. Your own step has fewer bytes and more products, too; in less time was PyTorch's.
#
# **Your own.** The [exercises](exercises/21_attention_without_the_matrix_exercises.ipynb) have you merge what several devices
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
# | passes over the table, plain | $6$ forward and $9$ back, each of $\frac{n}{d}$ units |
# | softmax, one more score $s$ | $m' = \max(m, s)$, $\ell' = e^{m - m'} \ell + e^{s - m'}$ with the sum $\ell$ for the maximum $m$ |
# | read by tiles, queries outside | $\frac{2n}{r} + 2$ units |
# | kept for backward, plain | $3 + \frac{n}{d}$ units |
# | kept for backward, tiles | $4 + \frac{1}{d}$ units |
# | products of a step | $6$ plain, $7$ computed again, each $2 n^2 d$ FLOP |
# | causal tiles, $b$ blocks in a row | $\frac{b + 1}{2b}$ of all |
