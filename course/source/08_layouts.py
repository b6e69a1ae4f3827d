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
#     number: "08"
#     title: Layouts
#     needs: ["06"]
#     objectives:
#       - divide|divided the tokens between tensor ranks
#       - write|wrote ring attention on four processes, and the merge of two softmaxes that it stands on
#       - predict|predicted what a causal mask, a link and a full expert cost
#       - count|counted what every layout of eight devices sends for a model of 7 billion parameters
#       - choose|chose a layout by a model that four real ranks have checked
# ---

# %% [markdown] tags=["objectives"]
# # Layouts
#
# In attention every token looks at every other. A prompt of a million tokens makes $10^{12}$ scores in each head
# of each layer, and its keys, values and activations fill a device many times over. Give each device a part of the
# sequence, and send keys and values round a ring: [ring attention](glossary.md#ring-attention).
#
# Lesson 06 left the tokens whole; here we divide them. We also split a layer into
# [experts](glossary.md#mixture-of-experts). At the end the lesson multiplies the cuts of lessons 05 and 06. For 7 billion
# parameters on eight devices, which layout is fastest,
# and on which link?
#
# Four real processes on your CPU, [ranks](glossary.md#rank), do all of it. Bytes and results are exact; *simulated* times are those
# of devices that sleep.

# %%
from collections import OrderedDict

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

import helpers
from helpers import exercises, parallel, plotting, units
from helpers.links import PUBLISHED_LINKS, Link
from helpers.ranks import Ranks
from helpers.studies import data_parallel, parallel_plans

ranks = Ranks(4)


# %%
def on_ranks(function, *arguments):
    return ranks.run(function, *arguments, timeout_s=20)


# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# Four devices share a long prompt, a quarter each, in order. A token may look back and not ahead.
#
# What share of the time do the four work, on average? The device with the first quarter has little to do, and waits for the others. Part 2 draws it.

# %% tags=["predict", "slide-output"]
bet = helpers.predict("A causal ring of 4 devices: what share of the time do they work?", "%")
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Stop an all-reduce half way, and each rank keeps its tokens"
# ## Part 1: the tokens between the layers
#
# - Between two blocks, all tensor ranks hold the same tokens
# - [All-reduce](glossary.md#all-reduce) = [reduce-scatter](glossary.md#reduce-scatter), then [all-gather](glossary.md#all-gather)
# - So stop half way, and go on before the next block
#
# In lesson 06 a tensor rank kept an eighth of each layer and the *whole* input of each block, and all ranks
# did the same layer norm on it. [Sequence parallelism](glossary.md#sequence-parallelism) (Korthikanti and
# others, *Reducing Activation Recomputation in Large Transformer Models*, 2022) leaves each rank its rows:
# gather them in front of the columns, and hand the sum out by rows behind.

# %% tags=["predict"]
more = helpers.predict("Forward: how many times the bytes of one all-reduce?", "x")
more

# %% [markdown]
# Eight rows of small whole numbers, two a rank. And a count: `calls_of_rank_0` says which
# [collectives](glossary.md#collective) a function calls there, and on how many bytes.

# %%
torch.manual_seed(0)
inputs, up, down = (torch.randint(-3, 4, size).float() for size in ((8, 2), (2, 8), (8, 2)))
parts = [list(each) for each in (inputs.chunk(4), up.chunk(4, dim=1), down.chunk(4))]


# %%
def calls(rank, world_size, function, *arguments):
    with parallel.count_collectives() as counter:
        function(rank, world_size, *arguments)
    return sorted((each.collective, each.size_bytes) for each in counter.counts.collectives)


def calls_of_rank_0(function, *arguments):
    return on_ranks(calls, function, *arguments)[0]


# %% [markdown]
# **Your turn.** `dist.all_gather(pieces, own)` fills a list of tensors with those of all ranks;
# `dist.reduce_scatter(own, pieces)` adds the ranks' lists up, and rank $r$ gets piece $r$ of the sum.


# %% tags=["yours"] yours="sequence_parallel"
def sequence_parallel(rank, world_size, rows, ups, downs):
    """Return this rank's rows of relu(X up) down; of each list a rank has its part alone."""
    pieces = [torch.empty_like(rows[rank]) for _ in range(world_size)]
    dist.all_gather(pieces, rows[rank])
    terms = torch.relu(torch.cat(pieces) @ ups[rank]) @ downs[rank]
    own = torch.empty_like(rows[rank])
    dist.reduce_scatter(own, list(terms.chunk(world_size)))
    return own


# %% checks="sequence_parallel"
whole = (torch.relu(inputs @ up) @ down).chunk(4)
local = tuple(torch.relu(r @ u) @ d for r, u, d in zip(*parts, strict=True))
asked = exercises.Checks("Rows in, rows out, on four ranks", sequence_parallel)
slips = {local: "A rank's columns need all rows: gather them first"}
slips[tuple(each / 4 for each in whole)] = "The terms are added, not averaged"
goal = "each rank has its rows of the whole result"
asked.returns(goal, parts, call=on_ranks, expected=whole, mistakes=slips)
gather, scatter, total = (
    (each, inputs.nbytes) for each in ("all_gather", "reduce_scatter", "all_reduce")
)
slips = {
    (): "Nothing was sent: of each list a rank has its own part; it asks for the rest",
    (gather,): "A rank has its own columns: have the other terms sent",
    (gather, total): "An all-reduce sends twice as much, and each rank keeps all rows",
}
goal = "an all-gather and a reduce-scatter are sent"
asked.returns(goal, parts, call=calls_of_rank_0, expected=[gather, scatter], mistakes=slips)
sequence_parallel = asked.settle()


# %% wrong="sequence_parallel" says="gather them first"
def sequence_parallel(rank, world_size, rows, ups, downs):
    return torch.relu(rows[rank] @ ups[rank]) @ downs[rank]


# %% wrong="sequence_parallel" says="Nothing was sent"
def sequence_parallel(rank, world_size, rows, ups, downs):
    whole = torch.relu(torch.cat(rows) @ torch.cat(ups, dim=1)) @ torch.cat(downs)
    return whole.chunk(world_size)[rank]


# %% wrong="sequence_parallel" says="have the other terms sent"
def sequence_parallel(rank, world_size, rows, ups, downs):
    pieces = [torch.empty_like(rows[rank]) for _ in range(world_size)]
    dist.all_gather(pieces, rows[rank])
    whole = torch.relu(torch.cat(pieces) @ torch.cat(ups, dim=1)) @ torch.cat(downs)
    return whole.chunk(world_size)[rank]


# %% wrong="sequence_parallel" says="An all-reduce sends twice as much"
def sequence_parallel(rank, world_size, rows, ups, downs):
    pieces = [torch.empty_like(rows[rank]) for _ in range(world_size)]
    dist.all_gather(pieces, rows[rank])
    terms = torch.relu(torch.cat(pieces) @ ups[rank]) @ downs[rank]
    dist.all_reduce(terms)
    return terms.chunk(world_size)[rank]


# %% wrong="sequence_parallel" says="added, not averaged"
def sequence_parallel(rank, world_size, rows, ups, downs):
    pieces = [torch.empty_like(rows[rank]) for _ in range(world_size)]
    dist.all_gather(pieces, rows[rank])
    terms = torch.relu(torch.cat(pieces) @ ups[rank]) @ downs[rank] / world_size
    own = torch.empty_like(rows[rank])
    dist.reduce_scatter(own, list(terms.chunk(world_size)))
    return own


# %% tags=["run"]
buffers = dict(calls_of_rank_0(sequence_parallel, *parts))
halves = 3 / 4 * (buffers["all_gather"] + buffers["reduce_scatter"])
all_reduce = 2 * 3 / 4 * inputs.nbytes

# %% tags=["look"]
more.reveal(counted=halves / all_reduce)
print(f"all-gather and reduce-scatter: {halves:.0f} bytes; one all-reduce: {all_reduce:.0f}")

# %% [markdown] tags=["explain"]
# On a ring each half sends $\frac{p-1}{p}n$, the all-reduce twice that: the forward pass sends no extra bytes. A GPT layer kept
# $(10 + 24/t)\,h$ bytes of a token (lesson 06); now it keeps $34\,h/t$. The price: the backward pass gathers each block's input
# again. So a layer sends five all-reduces' worth instead of four. Of 7 billion parameters, for one sequence of 4096 tokens on eight
# ranks:

# %% tags=["look"]
tokens, width, layers = 4096, 4096, 32
for name, kept in {"tensor 8": 10 + 24 / 8, "and the tokens divided": 34 / 8}.items():
    print(f"{name}: {units.text(kept * tokens * width * layers, 'B')} of activations")

# %% [markdown] tags=["slide"] minutes=2 headline="Queries stay; keys and values go round"
# ## Part 2: ring attention
#
# - A rank keeps its queries
# - Keys and values go round
# - After each step, two partial results become one
#
# In ring attention (Liu, Zaharia and Abbeel, 2023) a rank never sees all keys at
# once. But a softmax divides by the sum over *all* of them. Let block $i$ of keys give the output $o_i$, with
# its own sum $s_i = \sum_{k \in i} e^{q \cdot k / \sqrt{d}}$ as the divisor. Then both blocks together give
#
# $$o = \frac{s_1 o_1 + s_2 o_2}{s_1 + s_2}, \qquad s = s_1 + s_2$$
#
# $e^{100}$ fits into no float32, so programs carry $\log s_i$. Attention over one block of keys:


# %%
def attend(query, key, value):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1, keepdim=True)


# %% [markdown]
# **Your turn.** `torch.logaddexp(a, b)` is $\log(e^a + e^b)$, and does not overflow.


# %% tags=["yours"] yours="merge"
def merge(output, log_sum, more, more_log_sum):
    """Return output and log_sum over both blocks; outputs (tokens, d), sums (tokens, 1)."""
    both = torch.logaddexp(log_sum, more_log_sum)
    return output * (log_sum - both).exp() + more * (more_log_sum - both).exp(), both


# %% checks="merge"
torch.manual_seed(1)
query, key, value = torch.randn(3, 8, 4, dtype=torch.float64)
near, far = attend(query, key[:2], value[:2]), attend(query, key[2:], value[2:])
mean, total = (near[0] + far[0]) / 2, torch.logaddexp(near[1], far[1])
zero, one, low, high = (torch.full((1, 1), each) for each in (0.0, 1.0, 900.0, 1000.0))
asked = exercises.Checks("Two blocks of keys become one", merge)
asked.returns(
    "2 keys and 6 keys give what 8 keys give",
    (*near, *far),
    expected=attend(query, key, value),
    mistakes={
        (mean, total): "A block counts by its share of the sum, not by half",
        (near[0] + far[0], total): "Each output was divided by its own sum: weigh the two",
    },
)
asked.returns("nothing overflows", (zero, low, one, high), expected=(one, high))
merge = asked.settle()


# %% wrong="merge" says="not by half"
def merge(output, log_sum, more, more_log_sum):
    return (output + more) / 2, torch.logaddexp(log_sum, more_log_sum)


# %% wrong="merge" says="weigh the two"
def merge(output, log_sum, more, more_log_sum):
    return output + more, torch.logaddexp(log_sum, more_log_sum)


# %% wrong="merge" says="nothing overflows"
def merge(output, log_sum, more, more_log_sum):
    one, two = log_sum.exp(), more_log_sum.exp()
    return (one * output + two * more) / (one + two), (one + two).log()


# %% [markdown]
# Now the ring. `pass_on` sends a tensor to the right neighbour and returns what comes from the left.
# **Your turn**: four ranks, each with its part of queries, keys and values.


# %%
def pass_on(rank, world_size, tensor):
    arrived = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % world_size)
    dist.recv(arrived, (rank - 1) % world_size)
    sending.wait()
    return arrived


# %% tags=["yours"] yours="ring_attention"
def ring_attention(rank, world_size, queries, keys, values):
    """Return queries[rank]'s attention to all keys; of each list a rank has its part alone."""
    query, key, value = queries[rank], keys[rank], values[rank]
    output, log_sum = attend(query, key, value)
    for _ in range(world_size - 1):
        key, value = pass_on(rank, world_size, key), pass_on(rank, world_size, value)
        output, log_sum = merge(output, log_sum, *attend(query, key, value))
    return output


# %% checks="ring_attention"
split = [list(each.chunk(4)) for each in (query, key, value)]
own_only = tuple(attend(*each)[0] for each in zip(*split, strict=True))
asked = exercises.Checks("Ring attention on four ranks", ring_attention)
whole = nn.functional.scaled_dot_product_attention(query, key, value).chunk(4)
slips = {own_only: "That is the attention over the rank's own keys: send them round"}
goal = "every rank has PyTorch's attention over all keys"
asked.returns(goal, split, call=on_ranks, expected=whole, mistakes=slips)
both = key.nbytes + value.nbytes
sent = 3 * both // 4  # a quarter in each of three steps
slips = {
    (): "Nothing was sent: of each list a rank has its own part; the rest comes round",
    (("all_gather", both),): "After an all-gather each rank holds all keys: pass them on",
}
goal, passed = f"and passes on {sent} bytes", [("receive", sent), ("send", sent)]
asked.returns(goal, split, call=calls_of_rank_0, expected=passed, mistakes=slips)
ring_attention = asked.settle()


# %% wrong="ring_attention" says="send them round"
def ring_attention(rank, world_size, queries, keys, values):
    return attend(queries[rank], keys[rank], values[rank])[0]


# %% wrong="ring_attention" says="Nothing was sent"
def ring_attention(rank, world_size, queries, keys, values):
    return attend(queries[rank], torch.cat(keys), torch.cat(values))[0]


# %% wrong="ring_attention" says="each rank holds all keys"
def ring_attention(rank, world_size, queries, keys, values):
    every = [[torch.empty_like(each) for each in keys] for _ in "kv"]
    dist.all_gather(every[0], keys[rank])
    dist.all_gather(every[1], values[rank])
    return attend(queries[rank], *map(torch.cat, every))[0]


# %% wrong="ring_attention" says="not reached  every rank has"
def ring_attention(rank, world_size, queries, keys, values):
    key, value = keys[rank], values[rank]
    output, log_sum = attend(queries[rank], key, value)
    for _ in range(world_size - 1):
        key = pass_on(rank, world_size, key)
        output, log_sum = merge(output, log_sum, *attend(queries[rank], key, value))
    return output


# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Each step computes another block of every row" layout="steps"
plotting.play(
    [parallel_plans.draw_blocks(4, step) for step in range(4)],
    title="Ring attention on 4 ranks",
    captions=[f"Step {step}: rank r has the keys of (r - {step}) mod 4." for step in range(4)],
    alt="4 by 4 blocks of scores; in each step every rank computes another block of its row.",
)

# %% [markdown] tags=["explain"]
# Keys and values may travel while the block before them is computed. A device with $c$ tokens computes two
# products in a step, $4 c^2 h$ [FLOP](glossary.md#flop) for a width of $h$, and sends $4 c h$ bytes of keys and values in bfloat16.
# The H100 of lesson 05 does $400 \cdot 10^{12}$ FLOP/s in training; its NVLink carries 450 GB/s one way.

# %% tags=["predict"]
enough = helpers.predict("From how many tokens on a device does NVLink keep up?", "tokens")
enough

# %% tags=["run"]
names = ("NVLink 4 (of an H100)", "InfiniBand NDR", "Ethernet, 100 Gbit/s")
one_way = {
    name.split()[0].strip(","): PUBLISHED_LINKS[name].link.bandwidth_bytes_per_s
    for name in names
}
h100_flops_per_s = 400e12

# %% tags=["look"]
hidden_from = {name: h100_flops_per_s / rate for name, rate in one_way.items()}
enough.reveal(modelled=hidden_from["NVLink"])
print("; ".join(f"{name}: {tokens:,.0f} tokens" for name, tokens in hidden_from.items()))

# %% [markdown] tags=["explain"]
# Computing grows with $c^2$ and traffic with $c$, so their ratio is $c$ FLOP a byte: long sequences hide their
# own traffic, even on Ethernet. With short ones the ring waits for the link.
#
# ### And with a causal mask
#
# Now a token looks back only. A block of later keys has nothing to compute, and its rank waits:

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="With a causal mask fewer ranks work in each step" layout="steps"
working = ["4 of 4 ranks work, each on half a block"]
working += [f"{4 - step} of 4 ranks work" for step in range(1, 4)]
plotting.play(
    [parallel_plans.draw_blocks(4, step, causal=True) for step in range(4)],
    title="Ring attention with a causal mask",
    captions=[f"Step {step}: {who}." for step, who in enumerate(working)],
    alt="Blocks right of the diagonal are masked; in the last step only rank 3 works.",
)

# %% tags=["look"]
work = [rank + 0.5 for rank in range(4)]  # blocks of scores, half a one on the diagonal
bet.reveal(counted=100 * sum(work) / (4 * max(work)))
balanced = [((rank + 0.5) + (7 - rank + 0.5)) / 4 for rank in range(4)]  # quarter blocks
print(f"blocks of each rank: {work}; with pieces r and 7 - r of eight: {balanced}")

# %% [markdown] tags=["explain"]
# The last rank never waits, and all others wait for it: on $p$ ranks a share of $\frac{p}{2p - 1}$ is work, hardly
# more than half. The repair: cut the sequence into eight pieces, and give rank $r$ an early one and a late
# one, $r$ and $7 - r$ (so *The Llama 3 Herd of Models*, 2024, section 3.3.2, which gathers all keys instead of a ring).
# Piece $i$ looks at $i + \frac12$ pieces, and the sum is the same on all ranks, in each step of the ring:

# %% tags=["slide", "slide-output"] minutes=1 headline="An early piece and a late one balance the ring" layout="steps"
plotting.play(
    [parallel_plans.draw_blocks(4, step, balanced=True) for step in range(4)],
    title="The same ring with pieces r and 7 - r",
    captions=[f"Step {step}: 4 of 4 ranks work, each on 2 small blocks." for step in range(4)],
    alt="8 by 8 blocks below the diagonal; in each step every rank computes as much.",
)

# %% [markdown] tags=["slide"] minutes=2 headline="With experts the tokens travel"
# ## Part 3: experts
#
# - Many small networks; a router sends each token to one
# - Parameters grow, the work of a token does not
# - The tokens travel: an all-to-all there, one back
#
# This is a mixture of experts (Shazeer and others, 2017, who send a token to a few; here it goes to one). In an *all-to-all* each
# rank sends a different part to every other rank. Here messages have a fixed size: an expert keeps so many places for each rank's
# tokens, its *capacity*. A token that finds no place is dropped: it skips the expert (Fedus, Zoph and Shazeer, *Switch
# Transformers*, 2021).

# %%
torch.manual_seed(3)
given, weights = torch.randn(4, 16, 8), torch.randn(4, 8, 8)
chosen = torch.randint(4, (4, 16)).tolist()  # each rank's tokens choose by chance
counts = [[each.count(expert) for expert in range(4)] for each in chosen]
plotting.show(
    parallel_plans.draw_all_to_all(
        counts, title="64 tokens, each to the expert that it chose"
    ),
    alt="Four ranks on the left, four experts on the right, an arrow from each to each.",
)

# %% [markdown]
# **Your turn**: give each token its place in the queue of the expert that it chose.


# %% tags=["yours"] yours="places_of"
def places_of(chosen, experts, capacity):
    """Return each token's place (from 0) at expert chosen[token], None where that is full."""
    waiting = [0] * experts
    places = []
    for expert in chosen:
        places.append(waiting[expert] if waiting[expert] < capacity else None)
        waiting[expert] += 1
    return places


# %% checks="places_of"
asked = exercises.Checks("A place for each token", places_of)
asked.returns(
    "tokens queue at their own expert",
    ([1, 0, 1, 1], 2, 3),
    expected=[0, 0, 1, 2],
    mistakes={(0, 1, 2, None): "Each expert has a queue of its own"},
)
asked.returns(
    "who comes when it is full is dropped",
    ([0, 0, 0, 1], 2, 2),
    expected=[0, 1, None, 0],
    mistakes={(0, 1, 2, 0): "Places count from 0: of two there is no place 2"},
)
places_of = asked.settle()


# %% wrong="places_of" says="a queue of its own"
def places_of(chosen, experts, capacity):
    return [place if place < capacity else None for place, _ in enumerate(chosen)]


# %% wrong="places_of" says="there is no place 2"
def places_of(chosen, experts, capacity):
    waiting = [0] * experts
    places = []
    for expert in chosen:
        places.append(waiting[expert] if waiting[expert] <= capacity else None)
        waiting[expert] += 1
    return places


# %% [markdown]
# With it, a layer of four experts is two all-to-alls. Rank $r$ has expert $r$, and sixteen tokens of its own:


# %%
def expert_layer(rank, world_size, tokens, chosen, weights, capacity):
    own, experts = tokens[rank], chosen[rank]
    places = places_of(experts, world_size, capacity)
    kept = [token for token, place in enumerate(places) if place is not None]
    there = [experts[token] for token in kept], [places[token] for token in kept]
    sent = torch.zeros(world_size, capacity, own.shape[1])
    sent[there] = own[kept]
    arrived, back = torch.empty_like(sent), torch.empty_like(sent)
    dist.all_to_all_single(arrived, sent)
    dist.all_to_all_single(back, torch.relu(arrived @ weights[rank]))
    result = torch.zeros_like(own)
    result[kept] = back[there]
    return result


# %% tags=["predict"]
dropped = helpers.predict("64 tokens choose by chance, 64 places: how many dropped?", "tokens")
dropped

# %% tags=["run"]
rows = {}
for capacity in (4, 6, 8, 16):
    found = torch.stack(on_ranks(expert_layer, given, chosen, weights, capacity))
    [(_, buffer)] = calls_of_rank_0(expert_layer, given, chosen, weights, capacity)
    lost = sum(places_of(each, 4, capacity).count(None) for each in chosen)
    rows[16 * capacity] = lost, buffer * 3 // 4
own_expert = weights[torch.tensor(chosen)]
alone = torch.relu(given[:, :, None] @ own_expert)[:, :, 0]
assert torch.allclose(found, alone, atol=1e-5)  # with 16 places a rank nobody is dropped

# %% tags=["look"]
dropped.reveal(counted=rows[64][0])
pd.DataFrame(rows, index=["dropped", "bytes a rank sends"]).T.rename_axis("places in all")

# %% [markdown] tags=["explain"]
# Places are enough, but tokens choose: some experts are full, others send empty places. More room drops fewer
# tokens and sends more bytes.
#
# ### A common error: tokens dropped in silence
#
# Nothing reports a dropped token; it goes on by the residual path. And each rank's tokens queue by
# themselves, so *which* are dropped depends on the number of ranks: 8 ranks train another network than 4.
# Log the dropped share.

# %% [markdown] tags=["slide"] minutes=2 headline="Each cut keeps, sends and waits differently"
# ## Part 4: ten layouts of eight devices
#
# | cut | keeps | sends in a step |
# |:--|:--|:--|
# | data (ZeRO 1) | $1/d$ of Adam's state | gradients, new weights |
# | tensor | $1/t$ of layers | activations of each block |
# | pipeline | $1/p$ of layers | one boundary |
#
# The cuts multiply: $d \cdot t \cdot p = 8$ for ten layouts. A rank of such a [mesh](glossary.md#mesh) speaks to those that
# differ from it in one number. Tensor ranks speak in every block, so they are neighbours, on the fastest link;
# data ranks speak twice a step. (Below all eight share one link.)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Three cuts multiply to eight devices"
mesh = parallel_plans.Layout(data=2, tensor=2, pipeline=2)
plotting.show(
    parallel_plans.draw_mesh(mesh, along="tensor", title="data 2 x tensor 2 x pipeline 2"),
    alt="Two stages of four ranks; rows are data ranks, and a row has one colour.",
)

# %% [markdown]
# The model of lesson 06: 32 layers, 4096 wide, $7 \cdot 10^9$ parameters in bfloat16, sequences of 4096 tokens. Data ranks scatter
# the gradients of this rank's share of the weights, $2P/(tp)$ bytes, and gather the new weights: each half sends $\frac{d-1}{d}$ of
# them. Tensor ranks send five all-reduces' worth of an activation in each layer (Part 1), $2\frac{t-1}{t}$ times its bytes for
# each. Over each of the $p - 1$ boundaries an activation goes on and a gradient comes back, $1/t$ of both from each tensor rank.
#
# **Your turn**: the bytes that a device sends in a step. Each data rank has `tokens / data` of the tokens.


# %% tags=["yours"] yours="sent_by_device"
def sent_by_device(data, tensor, pipeline, tokens, layers=32, width=4096, parameters=7e9):
    """Return the bytes a device sends in a step to data, tensor and pipeline ranks.

    0 where there is one of a kind; to pipeline ranks the mean over the stages.
    """
    weights = 2 * (data - 1) / data * 2 * parameters / (tensor * pipeline)
    an_activation = 2 * width * tokens / data
    sums = 5 * layers / pipeline * 2 * (tensor - 1) / tensor * an_activation
    boundary = 2 * (pipeline - 1) / pipeline * an_activation / tensor
    return weights, sums, boundary


# %% checks="sent_by_device"
asked = exercises.Checks("What a device sends in a step", sent_by_device)
small = (80, 2, 10, 1000)  # tokens, layers, width, parameters
slips = {
    (1000, 0, 0): "Two halves of a ring, a scatter and a gather",
    (3000, 0, 0): "Those are FSDP's three halves; ZeRO 1 gathers the weights once",
    (0, 8000, 0): "Half is missing: an all-reduce sends 2 (t - 1) / t of the bytes",
    (0, 12800, 0): "Five, not four: the backward pass gathers once more",
    (500, 8000, 800): "A data rank has its share of the tokens",
    (0, 0, 3200): "One of two stages sends the activation, the other the gradient",
    (500, 8000, 400): "A stage has its share of the layers",
}
cases = {
    "two data ranks": ((2, 1, 1), (2000, 0, 0)),
    "two tensor ranks": ((1, 2, 1), (0, 16000, 0)),
    "two stages": ((1, 1, 2), (0, 0, 1600)),
    "all three": ((2, 2, 2), (500, 4000, 400)),
}
for goal, (layout, sent) in cases.items():
    asked.returns(goal, (*layout, *small), expected=sent, mistakes=slips)
sent_by_device = asked.settle()


# %% wrong="sent_by_device" says="a scatter and a gather"
def sent_by_device(data, tensor, pipeline, tokens, layers=32, width=4096, parameters=7e9):
    weights = (data - 1) / data * 2 * parameters / (tensor * pipeline)
    an_activation = 2 * width * tokens / data
    sums = 5 * layers / pipeline * 2 * (tensor - 1) / tensor * an_activation
    return weights, sums, 2 * (pipeline - 1) / pipeline * an_activation / tensor


# %% wrong="sent_by_device" says="its share of the tokens"
def sent_by_device(data, tensor, pipeline, tokens, layers=32, width=4096, parameters=7e9):
    weights = 2 * (data - 1) / data * 2 * parameters / (tensor * pipeline)
    an_activation = 2 * width * tokens
    sums = 5 * layers / pipeline * 2 * (tensor - 1) / tensor * an_activation
    return weights, sums, 2 * (pipeline - 1) / pipeline * an_activation / tensor


# %% wrong="sent_by_device" says="its share of the layers"
def sent_by_device(data, tensor, pipeline, tokens, layers=32, width=4096, parameters=7e9):
    weights = 2 * (data - 1) / data * 2 * parameters / (tensor * pipeline)
    an_activation = 2 * width * tokens / data
    sums = 5 * layers * 2 * (tensor - 1) / tensor * an_activation
    return weights, sums, 2 * (pipeline - 1) / pipeline * an_activation / tensor


# %% [markdown] tags=["explain"]
# First, nothing hides behind anything. Each sequence is one [microbatch](glossary.md#microbatch), and the pipeline runs 1F1B. Then
# the parts of a layout's step, and what its fullest device keeps, are as below. (A middle stage sends $p/(p-1)$ of your mean,
# which adds about 1 %.)
#
# With `hidden`, data ranks scatter the gradients behind the last microbatch's way back, two thirds of its computing, and gather the
# new weights behind the next step's first way forward:


# %%
def parts_s(layout, rate, sequences, hidden=False):
    data, _, pipeline = layout
    tokens = 4096 * sequences
    compute_s = 6 * 7e9 * tokens / 8 / h100_flops_per_s
    one_s = compute_s / (sequences / data)  # a microbatch
    weights_s, *others_s = (each / rate for each in sent_by_device(*layout, tokens))
    if hidden:
        half_s = weights_s / 2
        weights_s = max(0, half_s - 2 / 3 * one_s) + max(0, half_s - 1 / 3 * one_s)
    sending_s = weights_s + sum(others_s)
    return {"computing": compute_s, "waiting": one_s * (pipeline - 1), "sending": sending_s}


# %%
def kept_by_device(data, tensor, pipeline, sequences):
    state = (4 + 12 / data) * 7e9 / (tensor * pipeline)  # whole weights and gradients, Adam
    alive = min(pipeline, sequences // data)  # microbatches on stage 0
    return state + 34 / tensor * 4096 * 4096 * 32 / pipeline * alive


# %% tags=["predict"]
slower = helpers.predict("8 sequences: best step on Ethernet over that on NVLink?", "x")
slower


# %% tags=["run"]
def named(layout):
    return "{} x {} x {}".format(*layout)


powers = (1, 2, 4, 8)
eight = [(d, t, p) for d in powers for t in powers for p in powers if d * t * p == 8]
steps = {}
for link, rate in one_way.items():
    for case in ((each, hidden) for each in (8, 64, 512) for hidden in (False, True)):
        found = {each: sum(parts_s(each, rate, *case).values()) for each in eight}
        steps[link, *case] = sorted((time_s, each) for each, time_s in found.items())

# %% tags=["look"]
slower.reveal(modelled=steps["Ethernet", 8, False][0][0] / steps["NVLink", 8, False][0][0])


# %%
def drawn(link, rate):
    lanes, best = {}, steps[link, 8, False][0][1]
    for layout in eight:
        parts, kept = parts_s(layout, rate, 8), kept_by_device(*layout, 8)
        lane = f"{named(layout)}: {kept / 1e9:.0f} GB, {sum(parts.values()):.2f} s"
        lanes["best: " * (layout == best) + lane] = parts
    spans = plotting.spans_in_a_row(lanes)
    title = f"data x tensor x pipeline, {link}"
    return plotting.gantt(spans, title=title, unit="", xlabel="seconds", until=2)


# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A slower link turns the order of ten layouts round" layout="steps"
plotting.play(
    [drawn(*each) for each in one_way.items()],
    title="A step of 8 sequences (modelled)",
    captions=[f"Best: {named(steps[each, 8, False][0][1])}." for each in one_way],
    alt="Ten bars of computing, waiting and sending; sending grows with tensor ranks.",
)

# %% [markdown] tags=["explain"]
# Ethernet is 36 times slower than NVLink, and its best step is not even twice as long, because another layout takes over: the
# pipeline sends least and pays with its [bubble](glossary.md#bubble). The *wrong* layout costs less than twice the time on NVLink,
# and many times on Ethernet, where five bars go on beyond the picture.
#
# Memory decides as well. Many data ranks keep most: they divide Adam's state, and each keeps whole weights and gradients of its
# part. With at least as many microbatches as stages, more stages do not shrink the activations of a device: each has fewer layers
# but more microbatches. Tensor ranks do. (The count leaves out logits, buffers, and what the libraries take.) All ten fit into
# 80 GB. Which layout is best, which is second and how much slower, which is best once data ranks hide, and which then in 40 GB?

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="No layout is best on every link" mark="InfiniBand, 8 "
rows = {}
for link, sequences in ((each, number) for each in one_way for number in (8, 64, 512)):
    (best_s, best), (second_s, second) = steps[link, sequences, False][:2]
    behind = steps[link, sequences, True]
    fits = (each for each in behind if kept_by_device(*each[1], sequences) <= 40e9)
    shown = [(best_s, best), behind[0], next(fits)]
    cells = [f"{named(layout)}, {time_s:.2f} s" for time_s, layout in shown]
    cells.insert(1, f"{named(second)}, +{100 * (second_s / best_s - 1):.0f} %")
    rows[f"{link}, {sequences}"] = cells
columns = ["best, nothing hides", "second", "best, data hidden", "and in 40 GB"]
pd.DataFrame(rows, index=columns).T.rename_axis(columns="link, sequences")

# %% [markdown] tags=["explain"]
# So hiding decides. Data ranks send once a step, and that hides; tensor ranks' sums mostly do not. On NVLink and InfiniBand eight data
# ranks then win at each size, where the card has room for them; on Ethernet the weights are too many. With more sequences the
# bubble shrinks, and so does the share of data ranks, while tensor ranks send with the tokens. Where two layouts lie within a few
# per cent, this model cannot choose.
#
# Why ZeRO 1, where lesson 06 ended with FSDP? FSDP sends half as much again, and with microbatches it gathers for each. What it
# saves is memory. Eight data ranks, 8 sequences, InfiniBand:

# %% tags=["look"]
fsdp_s = 3 * 7 / 8 * 2 * 7e9 / one_way["InfiniBand"]
zero = [parts_s((8, 1, 1), one_way["InfiniBand"], 8, hidden) for hidden in (False, True)]
compute_s = zero[0]["computing"]
kept = kept_by_device(8, 1, 1, 8), 16 * 7e9 / 8 + 34 * 4096 * 4096 * 32
times_s = [sum(each.values()) for each in zero], (compute_s + fsdp_s, max(compute_s, fsdp_s))
cells = [[f"{each:.2f} s" for each in both] for both in times_s]
table = pd.DataFrame(cells, index=["ZeRO 1", "FSDP"], columns=["nothing hides", "data hidden"])
table.assign(kept=[units.text(each, "B") for each in kept])

# %% [markdown]
# ### A million tokens
#
# And the prompt of the first screen? One sequence leaves data ranks nothing to divide, and stages nothing to take turns with. Its
# tokens can be divided, by tensor ranks or on a ring. Now the scores count, which 6 FLOP a parameter leave out: forward and back,
# three times Part 2's $4 c^2 h$ in each layer, for all tokens at once, of which the mask leaves half. By tensor ranks:

# %% tags=["look"]
rows = {}
for tokens in (4096, 2**20):
    flops = 6 * 7e9 * tokens, 3 * 4 / 2 * tokens**2 * width * layers
    times_s = [each / 8 / h100_flops_per_s for each in flops]
    sending_s = sent_by_device(1, 8, 1, tokens)[1] / one_way["NVLink"]
    cells = [units.text(each, "s") for each in (*times_s, sending_s)]
    whole, inputs_of = (each / 8 * tokens * width * layers for each in (34, 2))
    gathered = (
        2 * 2 * tokens * width
    )  # a block's whole input, and its sum before it is scattered
    again = (
        16 * 7e9 / 8 + inputs_of + whole / layers + gathered
    )  # weights to Adam, inputs, a layer
    rows[f"{tokens:,} tokens"] = cells + [units.text(each, "B") for each in (whole, again)]
kinds = ["weights", "scores", "tensor 8 sends", "activations", "kept with recomputing"]
pd.DataFrame(rows, index=kinds).T

# %% [markdown] tags=["explain"]
# Scores take twenty times as long as all products with weights, and sending is small beside both. Memory fails: an eighth of the
# activations is 584 GB. So keep of each layer its input alone, and compute the rest again on the way back. Then a device has 14 GB
# of weights to Adam, the inputs, one whole layer, and what a block gathers, at the price of one more forward pass (a third of the
# computing). That is just above an H100's 80 GB, so a block must also go through its tokens in pieces.
#
# So tensor ranks nearly do the million without a ring. A ring is needed beyond the number of heads, or of devices on one fast link. It
# divides the tokens and not the weights, so it needs FSDP as well. And it hides its traffic: a device has 131,072 tokens. By
# Part 2 even Ethernet keeps up from 32,000, with a mask and balanced pieces, half the work, from 64,000.

# %% [markdown] tags=["slide"] minutes=1 headline="A model of a step is checked by real processes"
# ## Part 5: four real ranks check
#
# - Your function counts bytes: four processes send them
# - A step also has overlap, [buckets](glossary.md#bucket), messages' [latency](glossary.md#latency)
# - `choose` models these: the processes take their time
#
# A network small enough to train here: four blocks, in float32. Your function counts five all-reduces
# for a layer of two blocks with divided tokens; here a layer is one block and its tokens are whole: two.
# Four devices sleep, one alone 1.2 s for the batch of 32 rows; a link has 2 MB/s and 5 ms. (All is slow on purpose, so that this
# machine's own messages do not decide the order.)
#
# `parallel_plans.choose` goes through all layouts of one to four devices. It models the step of each, with latency and with what is sent
# while a device computes; it leaves out what does not fit into a device's memory, and sorts the rest. Here 2 MiB are enough for any
# layout, because one device alone, without Adam, needs 1.2 MB, so time decides.


# %%
def block():
    up, down = nn.Linear(64, 256), nn.Linear(256, 64)
    return nn.Sequential(OrderedDict(up=up, act=nn.ReLU(), down=down))


torch.manual_seed(4)
net = nn.Sequential(*(block() for _ in range(4)))
plan, link = parallel_plans.tensor_plan(net), Link(2e6, 5e-3)
at_one = parallel_plans.layer_work(net, (32, 64), flops_per_s=1.0)
flops_per_s = sum(each.forward_s + each.backward_s for each in at_one) / 1.2
how = {"inputs": (32, 64), "flops_per_s": flops_per_s}
pieces = {"bucket_bytes": 1}  # a bucket is full with the first layer in it


# %% tags=["predict"]
faster = helpers.predict("4 devices: how many times faster than one is the best layout?", "x")
faster

# %% tags=["run"]
choice = parallel_plans.choose(net, 4, link, "2 MiB", **how, **pieces)
cuts = (4, 1, 1), (1, 4, 1), (1, 1, 4), (2, 1, 2), (2, 2, 1)
tried = [
    row for row in choice.rows if row.layout in [parallel_plans.Layout(*cut) for cut in cuts]
]
values = torch.randn(32, 64)
work = parallel_plans.layer_work(net, (32, 64), flops_per_s=flops_per_s, plan=plan)
runs = parallel_plans.execute_strategies(
    ranks,
    net,
    [(row.layout, row.microbatches) for row in tried],
    layers=work,
    link=link,
    plan=plan,
    **pieces,
    inputs=values,
    targets=values,
    loss=nn.functional.mse_loss,
)

# %% tags=["look", "nbval-ignore-output"]
assert tried[0].strategy == choice.best
faster.reveal(modelled=choice.speedup, simulated=1.2 / runs[0].step_s)

# %% tags=["look"]
small = {"layers": 4, "width": 64, "parameters": sum(map(torch.numel, net.parameters()))}
counted = []
for row, run in zip(tried, runs, strict=True):
    cut = row.layout.data, row.layout.tensor, row.layout.pipeline
    weights, sums, boundary = sent_by_device(*cut, 32, **small)
    counted.append(
        2 * (weights + sums * 2 / 5 + boundary)
    )  # float32; two all-reduces a block, not five a layer
    sent = run.data_bytes + run.tensor_bytes + run.pipeline_bytes
    print(f"{row.strategy}: your function {counted[-1]:,.0f} bytes, rank 0 sent {sent:,}")
    same = parallel_plans.strategy_traffic(
        work, row.layout, microbatches=row.microbatches, **pieces
    )
    assert same.sent_bytes == sent

# %% [markdown] tags=["explain"]
# What data ranks send is your function's to the last byte. Tensor ranks send seven all-reduces of eight, because the first block's
# input is the batch, which needs no gradient. (With data ranks beside them, the biases of `down` come on top, which each tensor rank
# keeps whole.) Rank 0 is the first of four stages and only sends forward; your function takes the mean of all stages.
#
# And the time? Part 4's formula is computing, bubble and bytes, one after the other. `choose` adds latency and what hides. The
# third column adds what the fastest message costs this machine, measured:

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Four processes take about what the model says" mark="tensor 4"
real = data_parallel.measure_message_overhead(ranks).added_to(link)
shown = {}
for row, run, sent in zip(tried, runs, counted, strict=True):
    formula_s = 0.3 * (1 + (row.layout.pipeline - 1) / row.microbatches) + sent / 2e6
    same = {"link": real, "microbatches": row.microbatches, **pieces}
    with_s = parallel_plans.strategy_step(work, row.layout, **same).step_s
    times = [f"{1000 * each:.0f} ms" for each in (formula_s, row.step_s, with_s, run.step_s)]
    shown[row.strategy] = times
columns = ["Part 4", "choose", "messages", "simulated"]
pd.DataFrame(shown, index=columns).T

# %% tags=["look", "nbval-ignore-output"]
order = sorted(range(len(runs)), key=lambda place: runs[place].step_s)
print("simulated, the fastest first:", "; ".join(tried[place].strategy for place in order))

# %% [markdown] tags=["explain"]
# The rows stand in the order of `choose`; the last line has that of the ranks. Where the two differ, layouts lie closer together
# than the model is exact: a step waits for its *slowest* message.
#
# The formula would take tensor 4, because it counts no messages: seven all-reduces of six messages, 5 ms each, are 210 ms. Here
# latency (5 ms) outweighs a message's 2,048 bytes (1 ms). In Part 4 messages have megabytes: on Ethernet latency hardly matters, on
# NVLink it would add to what tensor ranks send.
#
# The [exercises](exercises/08_layouts_exercises.ipynb) have you balance a causal ring on real ranks and choose
# a layout for your own model.

# %%
ranks.close()

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. A long sequence hides its own traffic: computing grows with its square.
# 2. Partial softmaxes merge by their sums; a full expert drops tokens in silence.
# 3. No layout wins everywhere: count what each keeps, sends and hides.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $p$ ranks of a ring, $n$ bytes of a whole buffer, $c$ tokens on a rank; a mesh has $d$ data ranks, $t$ tensor ranks
# and $q$ stages. $P$ parameters, $l$ layers of width $h$, $T$ tokens a step, $b$ bytes a number.
#
# | quantity | formula |
# |---|---|
# | all-gather or reduce-scatter, sent by a rank | $\frac{p-1}{p}n$ |
# | merge of two blocks of attention | $\frac{s_1o_1+s_2o_2}{s_1+s_2}$, with $o$ a block's output and $s$ its sum of $e^{g}$ over its scores $g$ |
# | ring attention, FLOP over bytes | $c$ in bfloat16 |
# | causal ring, share of work | $\frac{p}{2p-1}$ |
# | ZeRO 1, sent in a step | $2\frac{d-1}{d}\cdot\frac{bP}{tq}$ |
# | tensor ranks with divided tokens, sent in a step | $\frac{5l}{q}\cdot 2\frac{t-1}{t}\cdot\frac{bhT}{d}$ |
# | stage, sent in a step, mean | $2\frac{q-1}{q}\cdot\frac{bhT}{dt}$ |
