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
#     number: "09"
#     title: Long sequences and experts
#     needs: ["05", "06", "07", "08"]
#     objectives:
#       - write|wrote attention over a sequence that no process holds whole
#       - predict|predicted which GPU waits when a causal mask cuts the work unevenly
#       - say|said from how many tokens a ring, and from which width an expert, pays for its own traffic
#       - count|counted the tokens that an expert with limited places drops
#       - balance|balanced a router with a second loss
# ---

# %% [markdown] tags=["objectives"]
# # Long sequences and experts
#
# An H800 is an H100 with a slower NVLink. For a sequence of 8,192 tokens, the attention of one layer of Llama 3 8B takes it 6.46 ms, forward and
# backward ([ring-flash-attention](https://github.com/zhuzilin/ring-flash-attention), published as 154.7 per second). Now the sequence becomes eight
# times as long, 65,536 tokens. Attention compares each token with all tokens before it, so its arithmetic grows 64 times. You cut the sequence into
# eight equal pieces and give them, in order, to eight such GPUs. If they share the arithmetic evenly, each has 64 / 8 times the work of before, and
# the attention takes 8 × 6.46, or 51.7 ms.
#
# [Lesson 08](08_layouts.ipynb) ended with a sequence that had to be cut, and memory often demands it as well. For each token a layer of Llama 3 8B saves 167,936
# bytes for the backward pass (6.5 vectors of width 4,096 and four of width 14,336, counted as in [lesson 06](06_model_parallel.ipynb)). In 32 layers our
# 65,536 tokens save 352 GB, which no GPU can hold, whereas an eighth of it is 44 GB. Most of a layer looks at each token alone and does not care where the
# sequence is cut. Only attention does.
#
# One question runs through this lesson. When is an eighth of the tokens also an eighth of the work? We ask it first for a long sequence and then for
# a layer of [experts](glossary.md#mixture-of-experts), where the model itself chooses which GPU computes a token.
#
# We had no eight GPUs. Times of GPUs are published, or they are modelled with 400 TFLOP/s for an H100, 450 GB/s for its NVLink and 50 GB/s for its
# port to other nodes, as in the lessons before. What we counted ourselves comes from four real processes, the [ranks](glossary.md#rank), and
# from a small network.

# %% tags=["hide-input"]
from statistics import median

import pandas as pd
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

import helpers
from helpers import exercises, parallel, plotting
from helpers.ranks import Ranks
from helpers.studies import experts, long_sequences, parallel_plans

check = exercises.checks_of("long_sequences_and_experts")
ranks = Ranks(4)
peak, nvlink, port = 400e12, 450e9, 50e9  # FLOP/s of an H100; bytes per second


def calls_of_rank_0(function, *arguments):
    """Return the bytes of the buffers of each collective that rank 0 calls."""

    def count(rank, world_size):
        with parallel.count_collectives() as counter:
            function(rank, world_size, *arguments)
        return {call.collective: call.size_bytes for call in counter.counts.collectives}

    return ranks.run(count, timeout_s=20)[0]


# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# Is an eighth of the tokens also an eighth of the work?
#
# - 65,536 tokens in eight pieces, in order
# - Eight GPUs, one piece each
# - Attention's work grows 64 times, for eight GPUs
#
# An even share takes 51.7 ms, and the links will turn out to be fast enough.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[10, 1000]
bet = helpers.predict(
    "If each of eight GPUs gets an eighth of the tokens, "
    "how many milliseconds does this attention take?",
    "ms",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Queries stay, keys and values travel"
# ## Part 1: what a GPU must hear from the others
#
# What must a GPU hear from the others? We begin with the result, because a fast attention that computes something else is worth nothing.
#
# - Each GPU keeps its queries
# - Keys and values go round
# - After each step, two partial results become one
#
# Each GPU keeps the queries of its own tokens, and these need the keys and values of all tokens before them. In
# [ring attention](glossary.md#ring-attention) (Liu, Zaharia and Abbeel, 2023) the keys and values travel. Each GPU passes the block that it holds to
# its right neighbour and receives another from the left. After seven such steps every block has been on every GPU, and none has ever had to hold the
# whole sequence.

# %% tags=["hide-input", "slide", "slide-output"] minutes=1 headline="In each step a rank computes another block" layout="steps"
plotting.play(
    [parallel_plans.draw_blocks(4, step) for step in range(4)],
    title="Ring attention on 4 ranks",
    captions=[
        f"Step {step}: rank r has the keys of rank (r - {step}) mod 4." for step in range(4)
    ],
    alt="4 by 4 blocks of scores. In each step every rank computes another block of its row.",
)

# %% [markdown]
# There is one difficulty. A softmax divides by the sum over all keys, but a GPU sees one block at a time. Take a single query and four keys, two in
# each of two blocks. In the first block $e^{score}$ is 1 and 3, and the values are 10 and 18. Over these two keys alone the sum is 4, and the
# output is (1 × 10 + 3 × 18) / 4, or 16. In the second block $e^{score}$ is 6 and 6, and the values are 30 and 34, so the sum is 12 and the output
# is 32.

# %% tags=["predict"]
both_blocks = helpers.predict(
    "If one block gives 16 with the sum 4 and the other 32 with the sum 12, "
    "which output do both give?",
    "units",
)
both_blocks

# %% tags=["hide-input", "run"]
exponentials, values = (1, 3, 6, 6), (10, 18, 30, 34)
at_once = sum(e * value for e, value in zip(exponentials, values, strict=True))

# %% tags=["hide-input", "look"]
both_blocks.reveal(modelled=at_once / sum(exponentials))

# %% [markdown] tags=["explain"]
# It is 28 and not the mean, 24. Each output was divided by its own sum. So multiply it by that sum again, add the two, and divide by the common sum,
# (4 × 16 + 12 × 32) / (4 + 12). That is 448 / 16, exactly what all four keys give at once. For each query a GPU must therefore keep one number
# besides the output, namely the sum. Programs keep its logarithm, as ours will, because $e^{100}$ is too large for float32.


# %%
def attend(query, key, value):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5  # (queries, keys)
    return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1, keepdim=True)


# %% [markdown]
# **Your turn.** Write the merge of two blocks. `torch.logaddexp(a, b)` is
# $\log(e^a + e^b)$ and does not overflow.


# %% tags=["yours"] yours="merge" takes=8
def merge(output, log_sum, other, other_log_sum):
    """Return output (queries, d) and log_sum (queries, 1) over the keys of both blocks."""
    total = torch.logaddexp(log_sum, other_log_sum)
    merged = output * (log_sum - total).exp() + other * (other_log_sum - total).exp()
    return merged, total


# %% checks="merge"
merge = check(merge)


# %% wrong="merge" says="weigh it by that sum"
def merge(output, log_sum, other, other_log_sum):
    return (output + other) / 2, torch.logaddexp(log_sum, other_log_sum)


# %% wrong="merge" says="so their plain sum is too large"
def merge(output, log_sum, other, other_log_sum):
    return output + other, torch.logaddexp(log_sum, other_log_sum)


# %% wrong="merge" says="not reached  logarithms of 900"
def merge(output, log_sum, other, other_log_sum):
    own_sum, other_sum = log_sum.exp(), other_log_sum.exp()
    both = own_sum + other_sum
    return (own_sum * output + other_sum * other) / both, both.log()


# %% wrong="merge" says="so return them without tolist()"
def merge(output, log_sum, other, other_log_sum):
    total = torch.logaddexp(log_sum, other_log_sum)
    merged = output * (log_sum - total).exp() + other * (other_log_sum - total).exp()
    return merged.tolist(), total.tolist()


# %% right="merge" style=1
def merge(output, log_sum, other, other_log_sum):
    weight = torch.sigmoid(log_sum - other_log_sum)
    return weight * output + (1 - weight) * other, torch.logaddexp(log_sum, other_log_sum)


# %% right="merge" style=2
def merge(output, log_sum, other, other_log_sum):
    largest = torch.maximum(log_sum, other_log_sum)
    own_sum, other_sum = (log_sum - largest).exp(), (other_log_sum - largest).exp()
    both = own_sum + other_sum
    return (own_sum * output + other_sum * other).div(both), both.log() + largest


# %% [markdown]
# `pass_on` sends a tensor to the right neighbour and returns the one that comes from the left.


# %%
def pass_on(rank, world_size, tensor):
    arrived = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % world_size)
    dist.recv(arrived, (rank - 1) % world_size)
    sending.wait()
    return arrived


# %% [markdown]
# **Your turn.** Write ring attention for one rank, without a mask.


# %% tags=["yours"] yours="ring_attention" takes=12
def ring_attention(rank, world_size, queries, keys, values):
    """Return the attention of queries[rank] to all keys; a rank may use no other part."""
    query, key, value = queries[rank], keys[rank], values[rank]
    output, log_sum = attend(query, key, value)
    for _ in range(world_size - 1):
        key, value = pass_on(rank, world_size, key), pass_on(rank, world_size, value)
        output, log_sum = merge(output, log_sum, *attend(query, key, value))
    return output


# %% checks="ring_attention"
ring_attention = check(ring_attention, ranks=ranks)


# %% wrong="ring_attention" says="so send them round"
def ring_attention(rank, world_size, queries, keys, values):
    return attend(queries[rank], keys[rank], values[rank])[0]


# %% wrong="ring_attention" says="Nothing was sent"
def ring_attention(rank, world_size, queries, keys, values):
    return attend(queries[rank], torch.cat(keys), torch.cat(values))[0]


# %% wrong="ring_attention" says="each rank holds all keys at once"
def ring_attention(rank, world_size, queries, keys, values):
    gathered = [[torch.empty_like(part) for part in keys] for _ in range(2)]
    dist.all_gather(gathered[0], keys[rank])
    dist.all_gather(gathered[1], values[rank])
    return attend(queries[rank], *map(torch.cat, gathered))[0]


# %% wrong="ring_attention" says="Values travel with their keys"
def ring_attention(rank, world_size, queries, keys, values):
    key, value = keys[rank], values[rank]
    output, log_sum = attend(queries[rank], key, value)
    for _ in range(world_size - 1):
        key = pass_on(rank, world_size, key)
        output, log_sum = merge(output, log_sum, *attend(queries[rank], key, value))
    return output


# %% wrong="ring_attention" says="the cells below need torch.Tensor"
def ring_attention(rank, world_size, queries, keys, values):
    query, key, value = queries[rank], keys[rank], values[rank]
    output, log_sum = attend(query, key, value)
    for _ in range(world_size - 1):
        key, value = pass_on(rank, world_size, key), pass_on(rank, world_size, value)
        output, log_sum = merge(output, log_sum, *attend(query, key, value))
    return output.tolist()


# %% right="ring_attention" style=1
def ring_attention(rank, world_size, queries, keys, values):
    block = torch.stack([keys[rank], values[rank]])
    output, log_sum = attend(queries[rank], *block)
    for _ in range(1, world_size):
        block = pass_on(rank, world_size, block)
        output, log_sum = merge(*attend(queries[rank], *block), output, log_sum)
    return output


# %% right="ring_attention" style=2
def ring_attention(rank, world_size, queries, keys, values):
    key, value, partial = keys[rank], values[rank], []
    for step in range(world_size):
        partial.append(attend(queries[rank], key, value))
        if step < world_size - 1:
            key, value = (pass_on(rank, world_size, tensor) for tensor in (key, value))
    result = partial[0]
    for block in partial[1:]:
        result = merge(*result, *block)
    return result[0]


# %% tags=["hide-input"]
torch.manual_seed(0)
query, key, value = torch.randn(3, 64, 16, dtype=torch.float64)  # 64 tokens, 16 on each rank
parts = [list(tensor.chunk(4)) for tensor in (query, key, value)]
attended = torch.cat(ranks.run(ring_attention, *parts, timeout_s=20))
expected = scaled_dot_product_attention(query, key, value)
matching = int(torch.isclose(attended, expected).all(dim=1).sum())
print(f"four processes: {matching} of {len(query)} tokens as in PyTorch's attention")
sent_bytes = calls_of_rank_0(ring_attention, *parts)["send"]
print(f"keys and values that a rank passed on: {sent_bytes:,} bytes")
assert matching == len(query)

# %% [markdown]
# On the way back nothing has to be merged, because by then each query knows its whole sum. The keys and values go round once more. The gradient of a
# block travels with it, and every GPU adds its own term, until both are home again. With gradients of 2 bytes this doubles the bytes, but the
# arithmetic grows even more, because a block now takes five matrix products instead of two.
#
# Can this traffic hide behind the arithmetic? Take the forward pass, and let each GPU have $c$ tokens in a layer of width $h$. Two matrix products
# with one block are $4 c^2 h$ [FLOP](glossary.md#flop), and the block has $4 c h$ bytes of keys and values. So each byte brings $c$ operations, and a GPU with the
# rate $P$ hides the traffic on a link of [bandwidth](glossary.md#bandwidth) $B$ if $c$ is at least $P / B$. This number hid gradients in
# [lesson 05](05_data_parallel.ipynb) and weights in lesson 06, and now it hides keys. On a port it is 400 TFLOP/s / 50 GB/s, or 8,000 tokens.
#
# Two things change the number. A causal mask halves the arithmetic, so twice as many tokens are needed. And in Llama 3 8B four query heads share a
# key and a value, so only a quarter of the bytes travel. Together they leave 4,000 tokens on a port and 444 on NVLink. Our pieces have 8,192,
# which is enough for an H800 as well, although its NVLink carries only 160 GB/s (DeepSeek-V3's report, 2024).
#
# Meta has put such a ring over 16 nodes with eight H100 each, for a prompt of a million tokens ([Yang and others,
# 2024](https://arxiv.org/abs/2411.01783), published). Each node then has 62,500 tokens, and its eight GPUs divide the heads, which divides bytes
# and arithmetic alike. In their model, Llama 3 405B, sixteen query heads share a key, so the rule asks for only 8,000 × 2 / 16, or 1,000 tokens, where the
# 2 comes from the mask. The prompt took 77 s with a parallel efficiency of 93 %.
#
# **To remember.** Merge the outputs of two blocks by the weight of their sums. With a causal mask a ring hides its traffic from $2 P / B$ tokens per GPU, divided
# by the query heads that share a key. For Llama 3 8B that is 4,000 tokens at 50 GB/s.
#
# So the GPUs of our bet do not wait for bytes. Do they wait for anything else?

# %% [markdown] tags=["slide"] minutes=2 headline="A token looks back and never ahead"
# ## Part 2: a GPU with nothing to do
#
# Who has nothing to do? We ask this now because a token looks back and never ahead.
#
# - A *tile* is one piece's queries with one piece's keys
# - The first GPU has half a tile
# - The last GPU decides
#
# Call the comparison of the queries of one piece with the keys of one piece a *tile*. The first GPU has the beginning of the sequence, so its tokens look
# only at their own piece, and because of the mask they see half of it. That is half a tile. The second GPU has one and a half, the third two and a
# half, and the eighth has seven and a half. The attention is ready when the last GPU is.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="In the last step a single GPU works" layout="steps" frames=[0, 1, 4, 7] smallest=13
plotting.play(
    [parallel_plans.draw_blocks(8, step, causal=True) for step in range(8)],
    title="Ring attention with a causal mask, on 8 ranks",
    captions=["Step 0: all ranks have half a tile."]
    + [f"Step {step}: {step} of 8 ranks wait." for step in range(1, 8)],
    stills=[0, 1, 4, 7],
    alt="8 by 8 tiles, masked right of the diagonal. In the last step only rank 7 computes.",
)

# %% tags=["run"]
pieces = range(8)  # rank r has piece r, and all keys go round
tiles = [long_sequences.count_tiles([rank], pieces) for rank in range(8)]
one_gpu_ms = 1000 / 154.7  # 8,192 tokens on an H800, a whole piece with itself
even_ms = 64 * one_gpu_ms / 8

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=1 headline="The last GPU decides" source="zhuzilin, ring-flash-attention (github.com/zhuzilin/ring-flash-attention)"
bet.reveal(
    modelled=even_ms * max(tiles) / (sum(tiles) / 8),
    published=1000 / long_sequences.RING_RATES[0].in_order,
    source="ring-flash-attention",
)
print("tiles of each GPU:", *tiles)
print(f"all together {sum(tiles):g}, an even share {sum(tiles) / 8:g}")

# %% [markdown] tags=["explain"]
# All eight together have 32 tiles, and an even share would be 4. But the last GPU has 7.5. So the attention
# takes 51.7 × 7.5 / 4, or 97 ms (modelled). The benchmark's author measured 10.4 per second, or 96.2 ms. For $R$ GPUs the share of the
# time in which they compute is $R / (2R - 1)$, hardly more than half, and more GPUs do not make it better.
#
# The remedy changes only who gets which tokens. Cut the sequence into 16 smaller pieces, and give each GPU an early one and a late one, the first and
# the sixteenth, the second and the fifteenth, and so on.

# %% tags=["predict"]
together = helpers.predict(
    "If a small tile compares two of the 16 pieces, "
    "how many small tiles do the first and the sixteenth need together?",
    "small tiles",
)
together

# %% [markdown]
# **Your turn.** Which two of the $2R$ pieces does a rank get? They are numbered from 0.


# %% tags=["yours"] yours="zigzag" takes=5
def zigzag(rank, world_size):
    """Return the numbers of the early and the late piece of a rank, of 2 * world_size."""
    return rank, 2 * world_size - 1 - rank


# %% checks="zigzag"
zigzag = check(zigzag)


# %% wrong="zigzag" says="Count the late pieces from the end"
def zigzag(rank, world_size):
    return rank, world_size + rank


# %% wrong="zigzag" says="two neighbouring pieces"
def zigzag(rank, world_size):
    return 2 * rank, 2 * rank + 1


# %% wrong="zigzag" says="numbered from 0"
def zigzag(rank, world_size):
    return rank, 2 * world_size - rank


# %% wrong="zigzag" says="the cells below need tuple or list"
def zigzag(rank, world_size):
    return torch.tensor([rank, 2 * world_size - 1 - rank])


# %% right="zigzag" style=1
def zigzag(rank, world_size):
    pieces = list(range(2 * world_size))
    return [pieces[rank], pieces[-1 - rank]]


# %% right="zigzag" style=2
def zigzag(rank, world_size):
    pairs = list(zip(range(world_size), reversed(range(2 * world_size)), strict=False))
    return pairs[rank]


# %% tags=["run"]
of_rank = [zigzag(rank, 8) for rank in range(8)]
steps = [
    [long_sequences.count_tiles(of_rank[r], of_rank[r - step]) for r in range(8)]
    for step in range(8)
]  # small tiles of each rank in each step of the ring

# %% tags=["hide-input", "look"]
totals = [sum(step[rank] for step in steps) for rank in range(8)]
together.reveal(modelled=0.5 + 15.5, counted=totals[0])
print("small tiles of each GPU:", *totals)
print(
    "small tiles of a GPU in a single step:",
    *sorted({tiles for step in steps for tiles in step}),
)

# %% [markdown] tags=["explain"]
# The first piece needs half a small tile and the sixteenth 15½, which makes 16. The second and the fifteenth need 1½ and 14½, which makes 16 again, and
# so does every other pair. Even in each single step every GPU has two small tiles.

# %% tags=["hide-input", "slide", "slide-output"] minutes=1 headline="In pairs, all GPUs work in every step" layout="steps" frames=[0, 1, 7] smallest=13
plotting.play(
    [parallel_plans.draw_blocks(8, step, balanced=True) for step in range(8)],
    title="The same ring with an early and a late piece per rank",
    captions=[f"Step {step}: all ranks compute two small tiles." for step in range(8)],
    stills=[0, 1, 7],
    alt="16 by 16 small tiles below the diagonal. In each step every rank computes two.",
)

# %% [markdown]
# This order is called [zigzag](glossary.md#zigzag). Meta trained Llama 3 on long sequences with it, although each GPU gathered all keys at once there (Llama Team, 2024).

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Counting tiles predicts the published times" source="zhuzilin, ring-flash-attention (github.com/zhuzilin/ring-flash-attention)"
rows = {}
for row in long_sequences.RING_RATES:
    share_ms = 8 * 1000 / row.one_gpu
    times_ms = share_ms, share_ms * 7.5 / 4, 1000 / row.in_order, 1000 / row.zigzag
    label = f"{row.gpu}, forward {'and backward' if row.backward else 'only'}"
    rows[label] = [f"{time_ms:.3g} ms" for time_ms in times_ms]
columns = ["8 x one GPU", "in order, modelled", "in order, published", "zigzag, published"]
pd.DataFrame(rows, index=columns).T

# %% [markdown]
# In order, the model is right to within 4 %, from one GPU's time and the tiles alone. Zigzag reaches 82 to 90 % of the speed of an even share,
# the first column. The rest may be the smaller products and the merging, which we have not tested.
#
# Turn the ring yourself. From how many tokens per GPU does zigzag wait for nothing, and what do more GPUs change?

# %% tags=["hide-input"]
long_sequences.explore_ring()

# %% [markdown]
# On a port zigzag waits for nothing from 4,000 tokens on, as the rule says. More GPUs bring a ring in order closer to twice the even
# share.
#
# You may meet an uneven ring in a profile. When the developers of pith-train changed a ring of four GPUs to zigzag, a layer took 8.30 ms instead of
# 13.87 ([pull request 39](https://github.com/mlc-ai/pith-train/pull/39), published). That is a factor of 1.67, where our model says 3.5 / 2, or 1.75.
# Before the change, their first GPUs seemed to communicate for 83 % of the time, which looks like a slow network. In fact they waited for the last
# GPU, which computed 95 % of the time. As in lesson 05, look for the GPU that does not wait.
#
# **To remember.** With a causal mask and pieces in order, $R$ GPUs work for $R / (2R - 1)$ of the time, 53 % for eight. Give each GPU an early piece
# and a late one.
#
# The ring needs a merge, a new order of the tokens and seven steps. Is there a simpler way?

# %% [markdown] tags=["slide"] minutes=2 headline="Tokens change into heads, and back"
# ## Part 3: heads instead of tokens
#
# What if each GPU takes some heads? This is simpler than a ring, because heads never look at each other (lesson 06).
#
# - At first a GPU has some tokens with all heads
# - An [all-to-all](glossary.md#all-to-all) gives it all tokens with some heads
# - After an ordinary attention, a second one goes back
#
# In *Ulysses* (Jacobs and others, 2023) each GPU at first has an eighth of the tokens with all their heads. Then an all-to-all
# ([lesson 07](07_links_in_two_levels.ipynb)) regroups them, so that each GPU has all tokens with an eighth of the heads, in Llama 3 8B four query heads
# and the key-value head that they share. It computes an ordinary attention, and a second all-to-all brings the outputs back to their tokens. Every
# head has the same mask, so the work is even by itself.


# %%
def heads_for_tokens(rank, world_size, parts):
    """Return all tokens (tokens, own heads, d) for parts[rank] (own tokens, heads, d)."""
    own = parts[rank].chunk(world_size, dim=1)
    sent = torch.stack(own)  # (ranks, own tokens, own heads, d)
    arrived = torch.empty_like(sent)
    dist.all_to_all_single(arrived, sent)
    return arrived.flatten(0, 1)


def attend_by_heads(rank, world_size, queries, keys, values):
    """Return causal attention (own heads, tokens, d) of all tokens."""
    parts = (queries, keys, values)
    by_heads = [heads_for_tokens(rank, world_size, part).transpose(0, 1) for part in parts]
    return scaled_dot_product_attention(*by_heads, is_causal=True)


# %% tags=["hide-input"]
torch.manual_seed(0)
query, key, value = torch.randn(3, 64, 8, 4, dtype=torch.float64)  # 64 tokens, 8 heads
parts = [list(tensor.chunk(4)) for tensor in (query, key, value)]
by_heads = torch.cat(ranks.run(attend_by_heads, *parts, timeout_s=20))  # (8, 64, 4)
whole = [tensor.transpose(0, 1) for tensor in (query, key, value)]
expected = scaled_dot_product_attention(*whole, is_causal=True)
matching = int(torch.isclose(by_heads, expected).all(dim=2).sum())
print(f"four processes: {matching} of {8 * 64} outputs of a head as in PyTorch's attention")
assert matching == 8 * 64

# %% [markdown]
# What does it send? In bfloat16 a token's queries take 8,192 bytes and so do its outputs, whereas its keys and values take 2,048 bytes each. Of these
# 20,480 bytes a GPU sends 7/8, for its 8,192 tokens 147 MB. The ring sends only keys and values, 4,096 bytes per token, but seven times, which makes
# 235 MB. At our 400 TFLOP/s the forward pass of the attention takes 11 ms (4.4·10¹² FLOP on each GPU; the H800 of Part 2 needed 13.5), and NVLink carries 450 GB/s.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[-1, 1]
longer = helpers.predict(
    "If a ring sends 235 MB over NVLink and Ulysses 147, "
    "how many milliseconds longer than the ring does Ulysses wait?",
    "ms",
)
longer

# %% tags=["run"]
tokens = 65_536 // 8  # on each GPU
ulysses_bytes = 7 / 8 * tokens * 2 * (4096 + 4096 + 1024 + 1024)
ring_bytes = 7 * tokens * 2 * (1024 + 1024)
attention_s = 4 / 2 * 65_536**2 * 4096 / 8 / peak  # the mask leaves half of 4 n² h
ring_waits_s = max(0, ring_bytes / nvlink - attention_s)

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=1 headline="Ulysses sends less and waits longer"
longer.reveal(modelled=1e3 * (ulysses_bytes / nvlink - ring_waits_s))
print(f"the ring sends {ring_bytes / 1e6:.0f} MB, Ulysses {ulysses_bytes / 1e6:.0f} MB")
through_ports_ms = 1e3 * ulysses_bytes / port
print(f"attention {1e3 * attention_s:.0f} ms, Ulysses through ports {through_ports_ms:.1f} ms")

# %% [markdown] tags=["explain"]
# Ulysses waits longer, because it hides nothing. Its attention begins only when queries and keys have arrived, whereas the ring computes with one block
# while the next one travels. On NVLink the 147 MB add 0.3 ms to 11 ms, but through the ports they would add 2.9 ms. Ulysses
# also needs heads to hand out. With more than eight GPUs the eight key-value heads would have to be copied, and with more than 32 there are no
# query heads left.
#
# The tensor group of lesson 06 can divide its tokens too. Its [all-reduces](glossary.md#all-reduce) left some activations whole on every GPU. But an
# all-reduce is a [reduce-scatter](glossary.md#reduce-scatter) and then an [all-gather](glossary.md#all-gather). If the all-gather
# waits until the next block begins, each GPU holds only its own tokens in between. This is [sequence parallelism](glossary.md#sequence-parallelism)
# (Korthikanti and others, 2022). Its forward pass sends not one byte more. In lesson 06 a GPU held 47,872 of the 153,600 bytes
# that a layer of Llama 2 saves per token, because some vectors were whole on each GPU. Now it holds an eighth of all of them, 19,200 bytes.
#
# **To remember.** Inside a node regroup tokens by heads, and across nodes let the keys go round. Ulysses sends 147 MB where the ring sends 235,
# but only the ring can hide.
#
# So far we decided which GPU computes which token. In the next layer the model decides. What does that cost?

# %% [markdown] tags=["slide"] minutes=2 headline="With experts the tokens travel"
# ## Part 4: the way to an expert
#
# What does it cost to reach an expert? We count bytes first, because they decide where experts may stand.
#
# - Eight feed-forward blocks instead of one, the experts
# - A router sends each token to two of them
# - Parameters grow eightfold, and the work of a token only doubles
#
# Mixtral 8x7B has nearly the same layer as Llama 3 8B, with the same width and the same heads. But instead of one feed-forward block with 14,336 hidden
# elements it has eight, the *experts*, and each token uses only two of them. This is a *mixture of experts*. The model has 46.7
# billion parameters, but a token uses only 12.9 billion (published). A small matrix, the *router*, scores all experts for each token. The
# token goes to the two with the highest scores (top-2), and their outputs are added, weighted by a softmax of these two scores.
#
# **Your turn.** Write the router. `tensor.topk(k)` returns the largest values of each row and their indices.


# %% tags=["yours"] yours="route" takes=7
def route(x, router, k):
    """Return experts (tokens, k) of x (tokens, h) and their weights; router (h, experts)."""
    scores = x @ router  # (tokens, experts)
    highest, chosen = scores.topk(k, dim=-1)
    return chosen, highest.softmax(dim=-1)


# %% checks="route"
route = check(route)


# %% wrong="route" says="over the scores of the chosen experts alone"
def route(x, router, k):
    weights, chosen = (x @ router).softmax(dim=-1).topk(k, dim=-1)
    return chosen, weights


# %% wrong="route" says="and not equally"
def route(x, router, k):
    chosen = (x @ router).topk(k, dim=-1).indices
    return chosen, torch.full(chosen.shape, 1 / k, dtype=x.dtype)


# %% wrong="route" says="the highest scores and not the lowest"
def route(x, router, k):
    lowest, chosen = (x @ router).topk(k, dim=-1, largest=False)
    return chosen, lowest.softmax(dim=-1)


# %% wrong="route" says="so return them without tolist()"
def route(x, router, k):
    highest, chosen = (x @ router).topk(k, dim=-1)
    return chosen.tolist(), highest.softmax(dim=-1).tolist()


# %% right="route" style=1
def route(x, router, k):
    scores = torch.einsum("th,he->te", x, router)
    chosen = scores.argsort(dim=1, descending=True)[:, :k]
    exponentials = scores.gather(1, chosen).exp()
    return chosen, exponentials / exponentials.sum(dim=1, keepdim=True)


# %% right="route" style=2
def route(x, router, k):
    probabilities = (x @ router).softmax(dim=-1)
    top = probabilities.topk(k)
    return top.indices, top.values / top.values.sum(-1, keepdim=True)


# %% [markdown]
# Put each expert on a GPU of its own. Then a layer needs two all-to-alls, one that brings tokens to their experts and one that brings the outputs back. Here
# are four GPUs with 16 tokens each, four experts, and your router with top-2.

# %% tags=["hide-input"]
torch.manual_seed(3)
router = torch.randn(8, 4, dtype=torch.float64)
visits = torch.stack(
    [
        torch.bincount(route(x, router, 2)[0].flatten(), minlength=4)
        for x in torch.randn(4, 16, 8, dtype=torch.float64)
    ]
)  # (ranks, experts)
figure = parallel_plans.draw_all_to_all(visits.tolist(), title="64 tokens, two visits each")
alt = f"Arrows from four ranks to four experts, which get {visits.sum(0).tolist()} visits."
plotting.show(figure, alt=alt)

# %% [markdown]
# An expert waits for its tokens, so this traffic does not by itself hide behind the expert's arithmetic. How much is it?
#
# Count one visit of one token. Its vector travels there and back, and so does the gradient in the backward pass. That makes four trips of $2 h$ bytes, or
# $8 h$. The expert has three matrices of $h \times f$, where $f$ is its hidden width, and 6 operations per parameter make $18 h f$. If you divide,
# the width of the model cancels.
#
# > arithmetic / bytes = 18 h f / (8 h) = 2.25 f operations per byte


# %%
def sending_over_arithmetic(f, bandwidth, visits=1, vectors=None, h=4096):
    """Return how many times as long as its arithmetic a token's sending takes."""
    sent_bytes = 4 * 2 * h * (vectors or visits)  # each visit sends a vector of its own
    flops = 6 * 3 * h * f * visits
    return (sent_bytes / bandwidth) / (flops / peak)


# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10]
grows = helpers.predict(
    "If each token visits eight experts instead of two, "
    "by what factor does the sending grow relative to the arithmetic?",
    "x",
)
grows

# %% tags=["run"]
two, eight = (sending_over_arithmetic(14_336, port, visits) for visits in (2, 8))

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=1 headline="Each visit brings its own arithmetic"
grows.reveal(modelled=eight / two)
mixtral, deepseek, limited = (
    sending_over_arithmetic(14_336, port, 2),
    sending_over_arithmetic(2048, port, 8),
    sending_over_arithmetic(2048, port, 8, vectors=4),
)
print(f"as long if f is {peak / port / 2.25:,.0f}")
print("sending / arithmetic on a port of 50 GB/s")
print(f"Mixtral {mixtral:.2f}, DeepSeek-V3 {deepseek:.2f}, with at most 4 nodes {limited:.2f}")

# %% [markdown] tags=["explain"]
# It does not grow at all, because each visit brings its own arithmetic. More tokens change nothing either. Only the hidden width of an expert counts.
# Sending and computing take equally long if $2.25 f$ is $P / B$, so on a port if $f$ is 8,000 / 2.25, or 3,556.
#
# Mixtral's experts have 14,336 hidden elements. If every visit crossed a port, sending would take 3,556 / 14,336, or 25 % as long as the arithmetic.
# DeepSeek-V3 has 256 small experts per layer with only 2,048 hidden elements, and each token visits eight of them (published). There sending would take
# 3,556 / 2,048, or 1.7 times as long as the arithmetic.
#
# DeepSeek's remedy uses the two levels of lesson 07. Its experts are spread over eight nodes, but the
# router may choose experts on at most four of them. A vector that several experts of one node want crosses the port only once, because NVLink can distribute
# it inside. On the way back, the outputs of these experts are added inside their node, so again only one vector crosses. At most four vectors cross
# instead of eight, and sending takes at most 0.87 times as long as the arithmetic. DeepSeek's own report speaks of a ratio of "approximately 1:1" (2024,
# published), and they hide the traffic behind the arithmetic of another [microbatch](glossary.md#microbatch). Our count leaves out attention, and that tokens travel to the
# experts with 8 bits per element.
#
# **To remember.** An expert with about 3,600 hidden elements, $0.44 P / B$, computes as long as its traffic takes on a port of 50 GB/s. As long as
# each visit sends a vector of its own, neither the number of tokens nor top-k changes that.
#
# This count assumed that every expert gets the same number of tokens. Who makes sure of that?

# %% [markdown] tags=["slide"] minutes=2 headline="Places are enough, but tokens choose"
# ## Part 5: a crowd at one expert
#
# What if all tokens want the same expert? Nobody prevents it at first, and so our question returns, because a GPU with an eighth of the experts has an
# eighth of the work only if the tokens choose so.
#
# - A *capacity* is a number of places at an expert
# - Then every message has a fixed size
# - A token without a place is *dropped*, and skips the expert
#
# A layer can protect itself with an [expert capacity](glossary.md#expert-capacity), a fixed number of places that an expert has for the tokens of each GPU. A token that finds no place is *dropped*, that is, it skips the expert (Fedus, Zoph and Shazeer, 2021).


# %%
def places_of(chosen, experts, capacity):
    """Return each token's place at expert chosen[token], None where that is full."""
    waiting, places = [0] * experts, []
    for expert in chosen:
        places.append(waiting[expert] if waiting[expert] < capacity else None)
        waiting[expert] += 1
    return places


# %% [markdown]
# A layer of experts is two all-to-alls around a product. Rank $r$ has expert $r$ and 16 tokens.


# %%
def expert_layer(rank, world_size, tokens, chosen, matrices, capacity):
    """Return the outputs (tokens, h) of this rank's tokens, 0 where a token was dropped."""
    own, chosen = tokens[rank], chosen[rank]
    places = places_of(chosen, world_size, capacity)
    with_place = [token for token, place in enumerate(places) if place is not None]
    at = [chosen[token] for token in with_place], [places[token] for token in with_place]
    sent = torch.zeros(world_size, capacity, own.shape[1], dtype=own.dtype)
    sent[at] = own[with_place]
    arrived, returned = torch.empty_like(sent), torch.empty_like(sent)
    dist.all_to_all_single(arrived, sent)
    dist.all_to_all_single(returned, torch.relu(arrived @ matrices[rank]))
    outputs = torch.zeros_like(own)
    outputs[with_place] = returned[at]
    return outputs


# %% [markdown]
# Suppose that four GPUs have 16 tokens each, which choose at random, and that each of four experts has 4 places for each GPU. So there are 4 × 4 × 4,
# or 64 places, as many as tokens.

# %% tags=["predict"]
dropped = helpers.predict(
    "If 64 tokens choose at random among these experts with their 64 places, "
    "how many are dropped?",
    "tokens",
)
dropped

# %% tags=["run"]
torch.manual_seed(0)
chosen = torch.randint(4, (4, 16)).tolist()  # for each rank, the expert of each token
x, matrices = torch.rand(4, 16, 8).double(), torch.rand(4, 8, 8).double()  # no output is 0
outputs = torch.stack(ranks.run(expert_layer, x, chosen, matrices, 4, timeout_s=20))
without_output = int((outputs == 0).all(dim=-1).sum())

# %% tags=["hide-input", "look"]
pair = experts.expect_dropped(16, 1 / 4, capacity=4)
dropped.reveal(modelled=16 * pair, counted=without_output)
roomy = torch.stack(ranks.run(expert_layer, x, chosen, matrices, 16, timeout_s=20))
own_matrix = matrices[torch.tensor(chosen)]  # (ranks, tokens, h, h)
expected = torch.relu(x[:, :, None] @ own_matrix)[:, :, 0]
matching = int(torch.isclose(roomy, expected).all(dim=-1).sum())
print(f"with 16 places for each GPU, {matching} of 64 tokens have their expert's output")
large = experts.expect_dropped(4096, 1 / 4, capacity=1024) / 1024
print(f"4,096 tokens that choose 2 of 8 experts: {large:.1%} dropped (modelled)")
assert matching == 64
ranks.close()

# %% [markdown] tags=["explain"]
# Our run dropped 12 (counted), and the binomial distribution says 10.8 on average. The number of tokens from one
# GPU at one expert has the mean 4 and the standard deviation √(16 × ¼ × ¾), or 1.73. If numbers follow a bell curve, their part above the mean is 0.4
# standard deviations on average, here 0.69. For 16 pairs of a GPU and an expert that makes 11.
#
# In a large batch chance matters less. With 4,096 tokens on a GPU and top-2 of eight experts, the mean is 1,024 and the deviation √(4,096 × ¼ ×
# ¾), or 28. So chance drops 0.4 × 28 / 1,024, or 1 % of the visits.
#
# But a router does not choose at random, because it learns. An expert that is slightly better at first gets more tokens, so it learns more and becomes
# better still. We let a small network with eight experts and top-1 learn 4,000 handwritten digits of 14 × 14 pixels, and then count the choices for 1,000 new ones. (The network multiplies an expert's output by
# the router's probability, because the weight of `route` would be 1 with top-1, from which no router learns.) If all
# is even, the fullest expert gets once its fair share, and if it gets everything, eight times.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 8]
crowd = helpers.predict(
    "If nothing balances the router, "
    "how many times its fair share does the fullest expert get?",
    "x",
)
crowd

# %% tags=["run"]
alone = experts.train_routers([0], seeds=5)

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="A router alone fills a few experts"
crowd.reveal(counted=median(run.fullest for run in alone))
empty = [sum(share < 0.02 for share in run.shares) for run in alone]
print(f"experts with less than 2 % of the tokens, for each seed: {sorted(empty)}")
assert median(run.fullest for run in alone) > 2.5

# %% [markdown] tags=["explain"]
# Left alone, the fullest expert got 6.5 times its share (counted, the median of five seeds), and at least five of the eight stayed almost empty. If each
# expert had a GPU, all would wait for the fullest, and the eight would be as fast as 8 / 6.5, or 1.2 of them.
#
# The remedy is a second loss. For each expert multiply the share of the tokens that chose it by the mean probability that the router gave it, add all
# this up, and multiply by the number of experts. If everything is even, this [balance loss](glossary.md#balance-loss) is 1, and if all tokens want one of eight experts with
# certainty, it is 8. The share is a count and has no gradient, but the probability has one, so the loss makes full experts less probable.
#
# **Your turn.** Write the balance loss. `torch.bincount(chosen, minlength=experts)` counts the tokens of each expert.


# %% tags=["yours"] yours="balance_loss" takes=7
def balance_loss(probabilities, chosen):
    """Return the balance loss, from probabilities (tokens, experts) and chosen (tokens)."""
    tokens, experts = probabilities.shape
    share = torch.bincount(chosen, minlength=experts) / tokens
    return experts * (share * probabilities.mean(dim=0)).sum()


# %% checks="balance_loss"
balance_loss = check(balance_loss)


# %% wrong="balance_loss" says="Multiply by the number of experts"
def balance_loss(probabilities, chosen):
    tokens, experts = probabilities.shape
    share = torch.bincount(chosen, minlength=experts) / tokens
    return (share * probabilities.mean(dim=0)).sum()


# %% wrong="balance_loss" says="not of the probability by itself"
def balance_loss(probabilities, chosen):
    mean = probabilities.mean(dim=0)
    return len(mean) * (mean * mean).sum()


# %% wrong="balance_loss" says="The share of the tokens and not their number"
def balance_loss(probabilities, chosen):
    experts = probabilities.shape[1]
    count = torch.bincount(chosen, minlength=experts)
    return experts * (count * probabilities.mean(dim=0)).sum()


# %% wrong="balance_loss" says="the cells below need torch.Tensor"
def balance_loss(probabilities, chosen):
    tokens, experts = probabilities.shape
    share = torch.bincount(chosen, minlength=experts) / tokens
    return (experts * (share * probabilities.mean(dim=0)).sum()).item()


# %% right="balance_loss" style=1
def balance_loss(probabilities, chosen):
    experts = probabilities.shape[1]
    share = torch.nn.functional.one_hot(chosen, experts).to(probabilities.dtype).mean(dim=0)
    return experts * share @ probabilities.mean(dim=0)


# %% right="balance_loss" style=2
def balance_loss(probabilities, chosen):
    tokens, experts = probabilities.shape
    total = 0
    for expert in range(experts):
        share = (chosen == expert).sum() / tokens
        total = total + share * probabilities[:, expert].sum() / tokens
    return total * experts


# %% [markdown]
# Now the same network learns with your loss.

# %%
balanced = experts.train_routers([0.01, 0.1], balance_loss, seeds=5)

# %% tags=["hide-input", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="A balance loss spreads the tokens"
rows, fullest = {}, {}
for weight in (0, 0.01, 0.1):
    of = [run for run in (*alone, *balanced) if run.weight == weight]
    fullest[weight] = median(run.fullest for run in of)
    lost, accuracy = (
        median(run.dropped(0.25) for run in of),
        median(run.accuracy for run in of),
    )
    rows[f"{weight:g}"] = [f"{fullest[weight]:.1f}", f"{lost:.0%}", f"{accuracy:.1%}"]
assert fullest[0] > fullest[0.01] > fullest[0.1]
assert fullest[0.1] < 1.8
columns = ["fullest expert / fair share", "dropped, 25 % spare places", "digits recognised"]
pd.DataFrame(rows, index=columns).T.rename_axis("weight of the balance loss")

# %% [markdown]
# Each number is counted and the median of five seeds, and the digits were recognised without dropping. The accuracy shows nothing of the crowd.

# %% tags=["hide-input", "nbval-ignore-output"]
first_seed = {
    f"weight {run.weight:g}": run.shares for run in (alone[0], balanced[0], balanced[5])
}
figure = experts.draw_shares(first_seed, title="Tokens of each expert in the first run")
alt = "Without a balance loss a few experts get most tokens, and with it all get some."
plotting.show(figure, alt=alt)

# %% [markdown]
# Some unevenness remains, and you can pay for it in tokens or in time. With a capacity the time is fixed, but tokens are dropped, and no error reports it. The tokens
# of each GPU have a queue of their own, so on eight GPUs other tokens of the same batch are dropped than on four. A *dropless* layer, as in OLMoE or MegaBlocks (Gale
# and others, 2022), computes every token. Its GPUs first tell each other how many tokens will come and then send exactly these, so the fullest GPU sets
# the time and the memory.
#
# **To remember.** Chance drops 0.4 standard deviations, 1 % of 4,096 tokens with top-2 of eight experts. In our small network a router without a balance loss gave one of eight
# experts 6.5 times its share, so log the share of the fullest expert.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. Equal tokens are not equal work: pair early and late pieces.
# 2. Long pieces and wide experts pay for their own traffic.
# 3. A router needs a second loss, or a few experts get most tokens.
#
# Eight GPUs take 96 ms and not 51.7, although each has an eighth of the tokens, because the GPU with the end of the sequence has 7.5 tiles to compute where
# the average is 4. Pairs of an early and a late piece bring this down to 57.5 ms. In a layer of experts no order of the tokens helps, because the router
# decides, and in our small network a balance loss of weight 0.01 brought the fullest expert from 6.5 to 2.1 times its share.
#
# So ask two questions whenever you cut something. Does every GPU get the same work, or only the same number of tokens? And does each byte bring $P / B$
# operations? In a ring without a mask it brings $c$ and at an expert $2.25 f$, so long pieces and wide experts pay for their own traffic. In the
# [exercises](exercises/09_long_sequences_and_experts_exercises.ipynb) you bring heads back to their tokens, time a ring, and count the vectors that leave a node.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $R$ GPUs with $c$ tokens each share a sequence, in a layer of width $h$ in bfloat16. $P$ is the rate of a GPU and $B$ the bandwidth of its link; $g$ query
# heads share a key. An expert has the hidden width $f$.
#
# | quantity | formula | for |
# |---|---|---|
# | merge of two blocks with outputs $o_1$, $o_2$ and sums $s_1$, $s_2$ | $\frac{s_1 o_1 + s_2 o_2}{s_1 + s_2}$ | softmax attention |
# | tokens of a GPU that hide a ring's traffic | $c \ge \frac{2 P}{g B}$ | a causal mask, zigzag |
# | share of time in which GPUs compute | $\frac{R}{2 R - 1}$ | a causal mask, pieces in order |
# | pieces of rank $r$ in zigzag, of $2R$ | $r$ and $2R - 1 - r$ | pieces numbered from 0 |
# | sending over arithmetic of an expert | $\frac{P}{2.25\, f\, B}$ | a vector for each visit |
# | dropped by chance | $0.4\sqrt{n p (1 - p)}$ | $n$ tokens that choose an expert with probability $p$, as many places as the mean |
