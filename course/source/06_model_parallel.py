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
#     number: "06"
#     title: Model parallel
#     needs: ["05"]
#     objectives:
#       - cut|cut attention between its heads, and run it on four real processes
#       - write|wrote the backward pass of a block that is cut by columns and rows
#       - write|wrote a pipeline's backward pass with send and receive, and the order 1F1B
#       - predict|predicted how long a pipeline waits, and how much it saves
#       - choose|chose between three cuts by bytes kept, bytes sent and the time of a step
# ---

# %% [markdown] tags=["objectives"]
# # Model parallel
#
# You have eight H100 in one machine, and you want to train Llama 2 7B on them. With Adam in mixed precision each parameter takes 16 bytes, namely 2 for the
# weight, 2 for its gradient and 12 for the optimizer ([lesson 05](05_data_parallel.ipynb)). Its 6.74 billion parameters, which we round to 7 billion, need
# 112 GB, but an H100 has only 80. Lesson 05 ended with the question where to cut a model, and there are two directions. In [*tensor
# parallelism*](glossary.md#tensor-parallelism) every GPU holds an eighth of each of the 32 layers. In [*pipeline
# parallelism*](glossary.md#pipeline-parallelism) every GPU holds four whole layers. Either way each GPU keeps 14 of the 112 GB.
#
# The two differ in what they send. Take a step of 16 sequences with 4,096 tokens each. With tensor parallelism a GPU sends 120 GB in this step, and in the
# pipeline it sends 1.07 GB. Each GPU computes for 0.86 s either way, and NVLink, the link inside the machine, carries 450 GB/s from each GPU.
#
# Programs that train or serve large models ask you how to cut. In vLLM, for example, you set `--tensor-parallel-size` and `--pipeline-parallel-size`,
# and in training the wrong choice can make the same step more than twice as long. This lesson finds the price of each cut. At the end the two compete with
# ZeRO 3 of lesson 05, which PyTorch calls FSDP. There a GPU computes whole layers for its part of the batch and fetches each layer's weights just
# before it needs them.
#
# We had no eight GPUs. All times of H100s are modelled, from 400 TFLOP/s per GPU (Llama Team, 2024, Table 4, published, of a whole run with its
# waiting) and from the rates on data sheets. Twice we hold the model against measurements that others have published.

# %% tags=["hide-input"]
import time
from itertools import accumulate

import pandas as pd
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

import helpers
from helpers import exercises, parallel, plotting, units
from helpers.ranks import Ranks
from helpers.studies import data_parallel, parallel_plans

check = exercises.checks_of("model_parallel")
ranks = Ranks(4)

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# How much faster is a cut that sends about a hundredth of the bytes?
#
# - Llama 2 7B on eight H100, 65,536 tokens per step
# - An eighth of every layer per GPU: each sends 120 GB
# - Four whole layers per GPU: each sends 1.07 GB
#
# Write down a number before you go on.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10]
bet = helpers.predict(
    "On NVLink, how many times as long as a tensor-parallel step does a pipeline step take?",
    "x",
)
bet

# %% [markdown]
# If only arithmetic and bytes took time, the pipeline would need about three quarters of the time, because 120 GB take 0.27 s and 1.07 GB take
# almost nothing. Why then would anybody use tensor parallelism? The two numbers of bytes are right, and you will count them.

# %% [markdown] tags=["slide"] minutes=2 headline="Cut by columns first, and by rows second"
# ## Part 1: inside a layer
#
# Where can you cut a layer? We begin inside the layer, because it is the harder place to cut.
#
# - A layer has two blocks, attention and feed-forward
# - Each block needs a cut across which little has to pass
# - A column gives finished elements, a row gives terms
#
# Take the feed-forward block first. It multiplies a token's vector of 4,096 elements by a matrix $U$ (up), which gives 11,008 hidden elements. Then it
# applies a function to each of them, and a matrix $D$ (down) leads back to 4,096 elements. Now look at one column of $U$. It produces one hidden element,
# and it produces it completely. So the first GPU takes the first eighth of the columns, computes 1,376 finished hidden elements, and applies the function at
# once, because the function looks at each element alone. These 1,376 elements meet only the first 1,376 rows of $D$, so the GPU needs no others. (In Llama a
# hidden element is the product of two such results. Both matrices are cut at the same columns, and nothing else changes.)
#
# The result has all 4,096 elements, but each of them is only one of eight terms of a sum. One [all-reduce](glossary.md#all-reduce) adds the terms, and then
# every GPU has the whole output.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Nothing is sent before the sum" untitled=true
plotting.show(
    parallel_plans.draw_column_row(2, title="Column, then row"),
    alt="X times two blocks of U's columns, each times its rows of D; two terms are added.",
)

# %% [markdown]
# Each [rank](glossary.md#rank) runs these five lines with a number of its own. `tensor.chunk(n, dim=d)` cuts a tensor into `n` pieces, and
# `dist.all_reduce(tensor)` replaces it by the sum over all ranks.


# %%
def column_then_row(rank, world_size, inputs, up, down):
    """Return relu(inputs @ up) @ down, whole on every rank, from its parts of up and down."""
    own_up = up.chunk(world_size, dim=1)[rank]  # (width, hidden / ranks)
    own_down = down.chunk(world_size, dim=0)[rank]  # (hidden / ranks, width)
    output = torch.relu(inputs @ own_up) @ own_down  # (tokens, width), one term of the sum
    dist.all_reduce(output)
    return output


# %% tags=["hide-input"]
torch.manual_seed(0)
sizes = {"inputs": (2, 4), "up": (4, 8), "down": (8, 4)}
inputs, up, down = (torch.randint(-3, 4, size).float() for size in sizes.values())
outputs = ranks.run(column_then_row, inputs, up, down)
rows = {"one process": torch.relu(inputs @ up) @ down}
rows |= {f"rank {rank} of four": output for rank, output in enumerate(outputs)}
pd.DataFrame({name: output[0].int().tolist() for name, output in rows.items()}).T

# %% [markdown]
# For this small token, four real processes on your CPU return what one process returns.
#
# Why not cut the rows of $U$ first? Each GPU would then hold one term of every hidden element, and the function of a sum is not the sum of the functions.
# Take ReLU and the terms 3 and −2. The right result is ReLU(1), which is 1, but ReLU(3) + ReLU(−2) is 3. So the terms would have to be added before the
# function, and that takes an all-reduce of 11,008 elements per token instead of 4,096.
#
# In attention the cut is already there. The layer has 32 heads, and no head looks at the queries, keys or values of another one. Each GPU takes four heads,
# which are 512 of the 4,096 columns in each of the three projections. It computes the attention of its heads for all tokens, and the 512 elements that come
# out for each token meet 512 rows of the output projection. The pattern is the same as before, with columns first, rows second, and one all-reduce at the
# end.
#
# **Your turn.** Compute the attention of this rank's heads, and add up. `unflatten(1, (own_heads, d))` splits the elements of each token among this rank's heads,
# `transpose(0, 1)` brings heads to the front, and `scaled_dot_product_attention(query, key, value, is_causal=True)` attends for tensors of heads × tokens × $d$ elements.


# %% tags=["yours"] yours="attention_by_heads" takes=10
def attention_by_heads(rank, world_size, inputs, weights, heads):
    """Return causal attention of all heads, (tokens, width), whole on every rank.

    weights (4, width, width) are the projections to queries, keys and values, and the output.
    """
    columns = weights[:3].chunk(world_size, dim=2)[rank]  # (3, width, width / ranks)
    query, key, value = (
        (inputs @ projection).unflatten(1, (heads // world_size, -1)).transpose(0, 1)
        for projection in columns
    )  # (heads / ranks, tokens, d) each
    attended = scaled_dot_product_attention(query, key, value, is_causal=True)
    rows = weights[3].chunk(world_size, dim=0)[rank]  # (width / ranks, width)
    output = attended.transpose(0, 1).flatten(1) @ rows  # (tokens, width)
    dist.all_reduce(output)
    return output


# %% checks="attention_by_heads"
attention_by_heads = check(attention_by_heads, ranks=ranks)


# %% wrong="attention_by_heads" says="the all-reduce is missing"
def attention_by_heads(rank, world_size, inputs, weights, heads):
    columns = weights[:3].chunk(world_size, dim=2)[rank]
    query, key, value = (
        (inputs @ projection).unflatten(1, (heads // world_size, -1)).transpose(0, 1)
        for projection in columns
    )
    attended = scaled_dot_product_attention(query, key, value, is_causal=True)
    rows = weights[3].chunk(world_size, dim=0)[rank]
    return attended.transpose(0, 1).flatten(1) @ rows


# %% wrong="attention_by_heads" says="Each rank has two heads here"
def attention_by_heads(rank, world_size, inputs, weights, heads):
    columns = weights[:3].chunk(world_size, dim=2)[rank]
    query, key, value = ((inputs @ projection)[None] for projection in columns)
    attended = scaled_dot_product_attention(query, key, value, is_causal=True)
    output = attended[0] @ weights[3].chunk(world_size, dim=0)[rank]
    dist.all_reduce(output)
    return output


# %% wrong="attention_by_heads" says="looks at itself and at earlier tokens only"
def attention_by_heads(rank, world_size, inputs, weights, heads):
    columns = weights[:3].chunk(world_size, dim=2)[rank]
    query, key, value = (
        (inputs @ projection).unflatten(1, (heads // world_size, -1)).transpose(0, 1)
        for projection in columns
    )
    attended = scaled_dot_product_attention(query, key, value)
    output = attended.transpose(0, 1).flatten(1) @ weights[3].chunk(world_size)[rank]
    dist.all_reduce(output)
    return output


# %% wrong="attention_by_heads" says="the cells below need torch.Tensor"
def attention_by_heads(rank, world_size, inputs, weights, heads):
    columns = weights[:3].chunk(world_size, dim=2)[rank]
    query, key, value = (
        (inputs @ projection).unflatten(1, (heads // world_size, -1)).transpose(0, 1)
        for projection in columns
    )
    attended = scaled_dot_product_attention(query, key, value, is_causal=True)
    output = attended.transpose(0, 1).flatten(1) @ weights[3].chunk(world_size)[rank]
    dist.all_reduce(output)
    return output.numpy()


# %% right="attention_by_heads" style=1
def attention_by_heads(rank, world_size, inputs, weights, heads):
    width = inputs.shape[1]
    d = width // heads
    total = torch.zeros_like(inputs)
    later = torch.ones(len(inputs), len(inputs), dtype=torch.bool).triu(diagonal=1)
    for head in range(rank * heads // world_size, (rank + 1) * heads // world_size):
        own = slice(head * d, (head + 1) * d)
        query, key, value = (inputs @ weights[i][:, own] for i in range(3))
        scores = (query @ key.T / d**0.5).masked_fill(later, float("-inf"))
        total += torch.softmax(scores, dim=-1) @ value @ weights[3][own]
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total


# %% right="attention_by_heads" style=2
def attention_by_heads(rank, world_size, inputs, weights, heads):
    tokens, width = inputs.shape
    share = width // world_size
    part = weights[:3, :, rank * share : (rank + 1) * share]
    projected = torch.einsum("tw,pwc->ptc", inputs, part)
    query, key, value = projected.view(3, tokens, heads // world_size, -1).permute(0, 2, 1, 3)
    attended = scaled_dot_product_attention(query, key, value, is_causal=True)
    joined = attended.permute(1, 0, 2).reshape(tokens, share)
    output = joined @ weights[3, rank * share : (rank + 1) * share]
    dist.all_reduce(output)
    return output


# %% [markdown]
# You may meet this cut as an error message. Qwen2-7B has 28 heads, and vLLM refused to run it on eight GPUs, because the number of heads "must be
# divisible by tensor parallel size" ([issue 11797](https://github.com/vllm-project/vllm/issues/11797)). A cut through a head would not do. Each score is a
# sum over the elements of a head, so each GPU would hold only a term of it, and the softmax needs finished scores.
#
# **To remember.** Cut by columns first and by rows second, and cut attention between heads. Then each block sends once in the forward pass, and it
# sums one vector of width $h$ per token, which takes 8,192 bytes in bfloat16 for $h = 4{,}096$.
#
# A model that is trained also goes backward. What does the cut cost there?

# %% [markdown] tags=["slide"] minutes=2 headline="The backward pass has a sum of its own"
# ## Part 2: the backward pass
#
# What must be sent on the way back? We ask this now, because only a model that goes backward can learn.
#
# - All GPUs have the same output and the same loss
# - Each finds the gradients of its own hidden elements
# - All of them used the input
#
# Follow the gradient from the output to the input of a block. After the all-reduce all GPUs have the same output, so they all compute the same loss, and each
# of them has the whole gradient of the output. Through its rows of $D$ it finds the gradients of its own hidden elements. These are complete, because no
# other GPU has used those elements. The input of the block, however, was used by all eight.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 100]
all_reduces = helpers.predict(
    "With tensor parallelism, how many all-reduces does a transformer layer need "
    "for one forward and one backward pass?",
    "all-reduces",
)
all_reduces

# %% tags=["hide-input", "run"]
blocks, directions = 2, 2

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Each block has one sum per direction"
all_reduces.reveal(modelled=blocks * directions)

# %% [markdown] tags=["explain"]
# It needs four. Each GPU finds only that part of the input's gradient which comes through its own columns, so eight terms have to be added again. Each
# of the two blocks thus has one sum per direction.
#
# **Your turn.** Write the backward pass of the feed-forward block. With the hidden elements $H = f(XU)$, the gradient $G$ of the output, and $f'$, which is
# 1 where $H$ is above 0 and 0 elsewhere, rank $r$ computes
#
# $$T_r = (G D_r^\top) \odot f', \qquad \text{input: } \sum_r T_r U_r^\top, \qquad \text{own columns: } X^\top T_r, \qquad \text{own rows: } H_r^\top G$$
#
# The weights' gradients need nothing from other ranks. So start the sum with `sending = dist.all_reduce(tensor, async_op=True)`, compute them meanwhile, and
# then call `sending.wait()`.


# %% tags=["yours"] yours="column_then_row_backward" takes=8
def column_then_row_backward(rank, world_size, inputs, up, down, gradient):
    """Return the gradients of inputs (whole), and of the rank's columns and rows."""
    own_up = up.chunk(world_size, dim=1)[rank]
    own_down = down.chunk(world_size, dim=0)[rank]
    hidden = torch.relu(inputs @ own_up)  # (tokens, hidden / ranks)
    own_terms = (gradient @ own_down.T) * (hidden > 0)
    to_inputs = own_terms @ own_up.T  # (tokens, width), one term of the sum
    sending = dist.all_reduce(to_inputs, async_op=True)
    to_up, to_down = inputs.T @ own_terms, hidden.T @ gradient
    sending.wait()
    return to_inputs, to_up, to_down


# %% checks="column_then_row_backward"
column_then_row_backward = check(column_then_row_backward, ranks=ranks)


# %% wrong="column_then_row_backward" says="add it up over the ranks"
def column_then_row_backward(rank, world_size, inputs, up, down, gradient):
    own_up, own_down = up.chunk(world_size, dim=1)[rank], down.chunk(world_size)[rank]
    hidden = torch.relu(inputs @ own_up)
    own_terms = (gradient @ own_down.T) * (hidden > 0)
    return own_terms @ own_up.T, inputs.T @ own_terms, hidden.T @ gradient


# %% wrong="column_then_row_backward" says="is whole already, so do not add it up"
def column_then_row_backward(rank, world_size, inputs, up, down, gradient):
    own_up, own_down = up.chunk(world_size, dim=1)[rank], down.chunk(world_size)[rank]
    dist.all_reduce(gradient)
    hidden = torch.relu(inputs @ own_up)
    own_terms = (gradient @ own_down.T) * (hidden > 0)
    to_inputs = own_terms @ own_up.T
    dist.all_reduce(to_inputs)
    return to_inputs, inputs.T @ own_terms, hidden.T @ gradient


# %% wrong="column_then_row_backward" says="ReLU passes a gradient on only where"
def column_then_row_backward(rank, world_size, inputs, up, down, gradient):
    own_up, own_down = up.chunk(world_size, dim=1)[rank], down.chunk(world_size)[rank]
    hidden = torch.relu(inputs @ own_up)
    own_terms = gradient @ own_down.T
    to_inputs = own_terms @ own_up.T
    dist.all_reduce(to_inputs)
    return to_inputs, inputs.T @ own_terms, hidden.T @ gradient


# %% right="column_then_row_backward" style=1
def column_then_row_backward(rank, world_size, inputs, up, down, gradient):
    leaves = [
        tensor.detach().clone().requires_grad_()
        for tensor in (inputs, up.chunk(world_size, 1)[rank], down.chunk(world_size, 0)[rank])
    ]
    x, own_up, own_down = leaves
    (torch.relu(x @ own_up) @ own_down).backward(gradient)
    to_inputs, to_up, to_down = (leaf.grad for leaf in leaves)
    dist.all_reduce(to_inputs)
    return to_inputs, to_up, to_down


# %% right="column_then_row_backward" style=2
def column_then_row_backward(rank, world_size, inputs, up, down, gradient):
    share = up.shape[1] // world_size
    own = slice(rank * share, (rank + 1) * share)
    before = torch.einsum("tw,wf->tf", inputs, up[:, own])
    terms = torch.where(before > 0, torch.einsum("tw,fw->tf", gradient, down[own]), 0.0)
    to_inputs = torch.einsum("tf,wf->tw", terms, up[:, own])
    dist.all_reduce(to_inputs)
    to_up = torch.einsum("tw,tf->wf", inputs, terms)
    to_down = torch.einsum("tf,tw->fw", before.clamp(min=0), gradient)
    return to_inputs, to_up, to_down


# %% tags=["hide-input"]
def count(rank, world_size, function, *arguments):
    with parallel.count_collectives() as counter:
        function(rank, world_size, *arguments)
    return counter.counts.collectives


gradient = torch.ones(2, 4)
programs = {
    "feed-forward, forward": (column_then_row, inputs, up, down),
    "feed-forward, backward": (column_then_row_backward, inputs, up, down, gradient),
    "attention, forward": (attention_by_heads, inputs, torch.ones(4, 4, 4), 4),
}
for name, program in programs.items():
    [row] = ranks.run(count, *program)[0]
    print(f"{name}: {row.calls} {row.collective} of {row.size_bytes} bytes")

# %% [markdown] tags=["explain"]
# On our four ranks, each of these passes sums two vectors of 4 float32 elements, or 32 bytes (counted). The forward sum is hard to hide, because the next
# block needs it. (Some programs cut the batch in two and compute one half while the other is summed.) During the backward sum a GPU can compute the
# gradients of its weights, a third of all arithmetic, since they need nothing from other GPUs.
#
# Now we can count. In a ring of eight, a GPU sends 2 × 7/8 of the bytes that are summed (lesson 05), which is 14,336 bytes for each 8,192. Four
# all-reduces in each of 32 layers make 1.84 MB per token, and 65,536 tokens make the 120 GB of the bet. The arithmetic of a token is 6 × 7·10⁹ / 8, or 5.25
# billion operations per GPU. The first row of the table divides both by their rates, 400 TFLOP/s and 450 GB/s.

# %% tags=["hide-input", "look"]
models = {  # parameters, layers, width, FLOP/s of a GPU, bytes per second of its links
    "Llama 2 7B, 32 layers of width 4,096, H100": (7e9, 32, 4096, 400e12, 450e9),
    "Llama 2 70B, 80 layers of width 8,192, H100": (70e9, 80, 8192, 400e12, 450e9),
    "Megatron-LM 8.3B, 72 layers of width 3,072, V100": (8.3e9, 72, 3072, 39e12, 150e9),
}
table = {}
for name, (parameters, layers, width, peak, bandwidth) in models.items():
    arithmetic_s = 6 * parameters / 8 / peak
    sending_s = 4 * layers * 2 * 7 / 8 * 2 * width / bandwidth
    times = [f"{1e6 * seconds:.3g} µs" for seconds in (arithmetic_s, sending_s)]
    table[name] = [*times, f"{sending_s / arithmetic_s:.0%}"]
columns = ["arithmetic", "sending", "sending / arithmetic"]
pd.DataFrame(table, index=columns).T.rename_axis("per token, on eight GPUs (modelled)")

# %% [markdown] tags=["explain"]
# In this model no batch changes the 31 %, because every token brings its own arithmetic and its own bytes. A wider layer does, because the
# arithmetic grows with the square of the width and the bytes only with the width. (A developer of NCCL expects [370
# GB/s](https://github.com/NVIDIA/nccl-tests/issues/212) of a ring on this NVLink, and 480 if the switch adds. Then the 31 % become 38 or 29 %.)
#
# Does this model deserve to be trusted? The last row is a test. The authors of Megatron-LM, who published this way of cutting in 2019, reached 39 TFLOP/s on
# one V100 with a smaller model ([report](https://nv-adlr.github.io/MegatronLM), published). Their links carry 300 GB/s, so 150 in each direction. By our
# count eight V100 should reach 160 / 180.6, or 89 %, of eight times one GPU. They measured 77 %. Our model takes the full rate of the
# data sheet, but a cut also makes the matrix products smaller, and smaller products use a GPU less well. With half as many heads, each twice as wide, the
# authors measured 82 %.
#
# ### A common error: a gradient counted twice
#
# One mistake deserves a warning, because no error reports it. Each GPU has the whole gradient of the output, but suppose that somebody adds it
# up over all GPUs once more, to be safe. On four GPUs, as in our small test, it is now four times too large. The forward pass and the loss still
# look right, and Adam divides every gradient by its usual size, so that even the training seems to go on.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 100000]
too_large = helpers.predict(
    "In a stack of eight blocks with this mistake, "
    "how many times too large is the gradient of the first block?",
    "x",
)
too_large


# %%
def first_gradient(factor, residual):
    torch.manual_seed(1)
    x, blocks = torch.randn(64, 16), parallel_plans.make_blocks(8, 16, 64)
    for block in blocks:
        output = block(x)
        output.register_hook(lambda gradient: factor * gradient)  # one all-reduce too many
        x = x + output if residual else output
    x.pow(2).mean().backward()
    return blocks[0].up.weight.grad.flatten()


# %% tags=["hide-input", "run"]
times_too_large, cosines = {}, {}
for name, residual in (("plain", False), ("with residual connections", True)):
    wrong, true = first_gradient(4, residual), first_gradient(1, residual)
    times_too_large[name] = (wrong.norm() / true.norm()).item()
    cosines[name] = torch.cosine_similarity(wrong, true, dim=0).item()

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The mistake multiplies at every block"
too_large.reveal(counted=times_too_large["plain"])

# %% tags=["hide-input", "look"]
rows = {
    name: (f"{times:,.1f}", f"{cosines[name]:.2f}") for name, times in times_too_large.items()
}
columns = ["times too large", "cosine with the true gradient"]
pd.DataFrame(rows, index=columns).T.rename_axis("gradient of the first block")

# %% [markdown] tags=["explain"]
# It is 4⁸, or 65,536 times too large (counted). With residual connections it is only 24.5 times too large, because a part of the gradient goes around each
# block and is not multiplied. But now it also points in another direction. The cosine of the angle between it and the true gradient is 0.64, where 1 would
# be the same direction (both counted in a small network of eight blocks), and no optimizer can hide that. So compare gradients and not losses. Ask at each
# point whether the GPUs hold different terms, which must be added, or the same whole, which must not.
#
# **To remember.** With tensor parallelism a layer needs four all-reduces per step. For a 7B on eight GPUs with NVLink, sending takes 31 % as long as
# computing, whatever the batch.
#
# Over InfiniBand, a network between machines with 50 GB/s per GPU, the same bytes would take 2.8 times as long as the computing. Is there a cut that sends
# less?

# %% [markdown] tags=["slide"] minutes=2 headline="Cut between layers, and stages wait for one another"
# ## Part 3: between the layers
#
# How long does a pipeline wait? It sends almost nothing, so waiting is its main price.
#
# - A GPU with its four whole layers is a stage
# - Activations cross a boundary, and their gradients come back
# - Each stage waits for the one before it
#
# The cut that sends less goes between the layers. A GPU with its four whole layers is called a *stage*. A stage passes on one vector per token in the
# forward pass, and it passes back one gradient. These are 2 × 8,192 bytes per token, or 1.07 GB per step. Tensor parallelism sends 112 times as much.
#
# But the second stage cannot begin before the first one has finished. If the batch goes through in one piece, one GPU works at a time and seven look on, so
# that eight GPUs need as long as one. GPipe (Huang and others, 2019) therefore cuts the batch into [microbatches](glossary.md#microbatch). While the second
# stage works on the first microbatch, the first stage takes the second one. All of them go forward, then all go back, and each stage adds up the gradients
# of its weights.
#
# Autograd's record ends at a process. So a stage begins its own record at what it receives, sends bare values, and saves both ends for the way back.
# `dist.send(tensor, rank)` sends a tensor, and `dist.recv(tensor, rank)` fills one with what arrives.


# %%
def all_forward(rank, world_size, stage, microbatches):
    saved = []
    for microbatch in microbatches:
        received = microbatch.clone()
        if rank > 0:
            dist.recv(received, rank - 1)
        received.requires_grad_()
        output = stage(received)
        if rank < world_size - 1:
            dist.send(output.detach(), rank + 1)
        saved.append((received, output))
    return saved


# %% tags=["hide-input"]
def gpipe(rank, world_size, all_backward, stages, microbatches):
    """Return the gradient of this stage's weight; the loss is the sum of all last outputs."""
    saved = all_forward(rank, world_size, stages[rank], microbatches)
    all_backward(rank, world_size, saved)
    return stages[rank].weight.grad


# %% [markdown]
# **Your turn.** Write the way back, the mirror image of `all_forward`. Gradients come from the next stage and go to the one before. At the last stage they
# are all ones, because the loss is the sum of its outputs. `output.backward(gradient)` goes back through this stage alone, adds up the gradient of its
# weights, and leaves in `received.grad` what has to be sent on.


# %% tags=["yours"] yours="all_backward" takes=8
def all_backward(rank, world_size, saved):
    """Go back through this stage for each (received, output) of saved, in order."""
    for received, output in saved:
        gradient = torch.ones_like(output)
        if rank < world_size - 1:
            dist.recv(gradient, rank + 1)
        output.backward(gradient)
        if rank > 0:
            dist.send(received.grad, rank - 1)


# %% checks="all_backward"
all_backward = check(all_backward, ranks=ranks, gpipe=gpipe)


# %% wrong="all_backward" says="so go through all of saved"
def all_backward(rank, world_size, saved):
    received, output = saved[-1]
    gradient = torch.ones_like(output)
    if rank < world_size - 1:
        dist.recv(gradient, rank + 1)
    output.backward(gradient)
    if rank > 0:
        dist.send(received.grad, rank - 1)


# %% wrong="all_backward" says="are added up, so do not divide"
def all_backward(rank, world_size, saved):
    for received, output in saved:
        gradient = torch.ones_like(output) / len(saved)
        if rank < world_size - 1:
            dist.recv(gradient, rank + 1)
        output.backward(gradient)
        if rank > 0:
            dist.send(received.grad, rank - 1)


# %% wrong="all_backward" says="Every stage went back from ones"
def all_backward(rank, world_size, saved):
    for received, output in saved:
        gradient = torch.ones_like(output)
        if rank < world_size - 1:
            dist.recv(torch.empty_like(output), rank + 1)
        output.backward(gradient)
        if rank > 0:
            dist.send(received.grad, rank - 1)


# %% wrong="all_backward" says="and send received.grad on"
def all_backward(rank, world_size, saved):
    for _, output in saved:
        gradient = torch.ones_like(output)
        if rank < world_size - 1:
            dist.recv(gradient, rank + 1)
        output.backward(gradient)
        if rank > 0:
            dist.send(gradient, rank - 1)


# %% right="all_backward" style=1
def all_backward(rank, world_size, saved):
    is_first, is_last = rank == 0, rank == world_size - 1
    for received, output in saved:
        if is_last:
            output.sum().backward()
        else:
            gradient = torch.empty(output.shape)
            dist.recv(gradient, src=rank + 1)
            output.backward(gradient)
        if not is_first:
            dist.send(received.grad.contiguous(), dst=rank - 1)


# %% right="all_backward" style=2
def all_backward(rank, world_size, saved):
    sending = []
    while saved:
        received, output = saved.pop(0)
        gradient = torch.ones(output.size())
        if rank + 1 < world_size:
            dist.irecv(gradient, rank + 1).wait()
        torch.autograd.backward([output], [gradient])
        if rank:
            sending.append(dist.isend(received.grad, rank - 1))
    for work in sending:
        work.wait()


# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="More microbatches leave less waiting" layout="steps"
plotting.play(
    [parallel_plans.draw_schedule("gpipe", microbatches=m, until_s=1.25) for m in (1, 2, 4)],
    title="GPipe on four stages, with the same batch in 1, 2 and 4 microbatches",
    alt="Four lanes of passes; on one axis of time, the same work ends sooner in each frame.",
)

# %% [markdown] tags=["explain"]
# How much waiting is left? Let a turn be the forward and the backward pass of one microbatch through one stage. With $m$ microbatches every
# stage works for $m$ turns. The last of $R$ GPUs first waits for $R - 1$ forward passes of the others, and at the end for their $R - 1$ backward
# passes. Together these are $R - 1$ turns, and every other stage waits as long, only at other times. This waiting is called the
# [bubble](glossary.md#bubble).
#
# > waiting / computing = (R − 1) / m

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[100, 2000]
step_time = helpers.predict(
    "With four stages and four microbatches, "
    "how long is a step in which each stage computes for 300 ms?",
    "ms",
)
step_time


# %% tags=["hide-input", "run"]
def time_step(rank, world_size, *arguments):
    dist.barrier()
    start_s = time.perf_counter()
    gpipe(rank, world_size, *arguments)
    return time.perf_counter() - start_s


def simulate(microbatches):
    stage = data_parallel.SleepingLayer(0.1 / microbatches, 0.2 / microbatches)
    arguments = (all_backward, [stage] * 4, [torch.ones(1)] * microbatches)
    return min(max(ranks.run(time_step, *arguments)) for _ in range(3))


simulated_s = {m: simulate(m) for m in (1, 2, 4)}
modelled_s = {
    m: 0.3 * (1 + parallel.bubble_ratio("gpipe", ranks=4, microbatches=m)) for m in simulated_s
}

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Four microbatches still wait for three turns"
step_time.reveal(modelled=1e3 * modelled_s[4], simulated=1e3 * simulated_s[4])

# %% tags=["hide-input", "look", "nbval-ignore-output"]
rows = {
    "300 ms × (1 + 3/m) (modelled)": modelled_s,
    "four sleeping processes (simulated)": simulated_s,
}
table = {name: [f"{1e3 * s:,.0f} ms" for s in row.values()] for name, row in rows.items()}
pd.DataFrame(table, index=list(simulated_s)).T.rename_axis("microbatches")

# %% tags=["hide-input"]
assert all(simulated_s[m] >= modelled_s[m] for m in simulated_s)  # nobody sleeps less
assert simulated_s[4] < 0.75 * simulated_s[1]

# %% [markdown] tags=["explain"]
# By the formula it takes 300 × (1 + 3/4), or 525 ms. We ran it with four real processes that sleep instead of computing, and it took a little
# longer (simulated), probably because real messages also take time.
#
# And on GPUs? Kakao Brain's torchgpipe trained an image network in eight stages on eight P40 ([table](https://github.com/kakaobrain/torchgpipe), published).
# With one microbatch it reached 24.9 images per second, no more than the 26.7 of a pipeline of only two GPUs. By the formula, 4 and 32 microbatches should
# be 8 / (1 + 7/4) and 8 / (1 + 7/32), or 2.9 and 6.6 times as fast as one. They were 2.8 and 5.3 times as fast. The runs differ in
# more, for example in the microbatches, which have 40 images instead of 196.
#
# In our own step the 16 sequences are 16 microbatches, so eight stages wait 7/16 of their computing time. That is 44 % of 0.86 s, or 0.38 s.
#
# More microbatches would help, but they need a larger batch, and in GPipe every stage saves the activations of the whole batch until the first microbatch comes
# back. It is better to go back as early as possible. In *1F1B*, one forward and one backward (named by Narayanan and others, 2019, and used in this form since
# their paper of 2021), a stage first takes as many microbatches forward as stages follow it, and from then on it alternates.

# %% tags=["predict"]
saved_by_first = helpers.predict(
    "With 1F1B on eight stages and 16 microbatches, "
    "of how many microbatches does the first stage save activations at most?",
    "microbatches",
)
saved_by_first

# %% [markdown]
# **Your turn.** Write the order of one stage as a list of `("F", 0)`, microbatch 0 forward, and `("B", 0)`, the same one backward. Stages count from 0. With
# few microbatches there may be fewer than stages that follow.


# %% tags=["yours"] yours="one_forward_one_backward" takes=7
def one_forward_one_backward(stage, stages, microbatches):
    """Return the passes of a stage in order, a list of ("F" or "B", microbatch)."""
    ahead = min(stages - 1 - stage, microbatches)
    order = [("F", microbatch) for microbatch in range(ahead)]
    for microbatch in range(microbatches - ahead):
        order += [("F", ahead + microbatch), ("B", microbatch)]
    return order + [("B", microbatches - ahead + left) for left in range(ahead)]


# %% checks="one_forward_one_backward"
one_forward_one_backward = check(one_forward_one_backward)


# %% wrong="one_forward_one_backward" says="One microbatch too many goes ahead"
def one_forward_one_backward(stage, stages, microbatches):
    ahead = min(stages - stage, microbatches)
    order = [("F", microbatch) for microbatch in range(ahead)]
    for microbatch in range(microbatches - ahead):
        order += [("F", ahead + microbatch), ("B", microbatch)]
    return order + [("B", microbatches - ahead + left) for left in range(ahead)]


# %% wrong="one_forward_one_backward" says="That is GPipe's order"
def one_forward_one_backward(stage, stages, microbatches):
    return [(kind, microbatch) for kind in "FB" for microbatch in range(microbatches)]


# %% wrong="one_forward_one_backward" says="a third microbatch that does not exist"
def one_forward_one_backward(stage, stages, microbatches):
    ahead = stages - 1 - stage
    order = [("F", microbatch) for microbatch in range(ahead)]
    for microbatch in range(microbatches - ahead):
        order += [("F", ahead + microbatch), ("B", microbatch)]
    return order + [("B", left) for left in range(max(0, microbatches - ahead), microbatches)]


# %% right="one_forward_one_backward" style=1
def one_forward_one_backward(stage, stages, microbatches):
    ahead, order = stages - stage - 1, []
    for turn in range(microbatches + ahead):
        if turn < microbatches:
            order.append(("F", turn))
        if turn >= ahead:
            order.append(("B", turn - ahead))
    return order


# %% right="one_forward_one_backward" style=2
def one_forward_one_backward(stage, stages, microbatches):
    forward, backward, order = 0, 0, []
    while backward < microbatches:
        in_flight = forward - backward
        if forward < microbatches and in_flight <= stages - 1 - stage:
            order, forward = [*order, ("F", forward)], forward + 1
        else:
            order, backward = [*order, ("B", backward)], backward + 1
    return order


# %% [markdown]
# A forward pass saves the activations of one microbatch, and its backward pass frees them.


# %% tags=["run"]
def most_saved(order):
    return max(accumulate(1 if kind == "F" else -1 for kind, _ in order))


most = [most_saved(one_forward_one_backward(stage, 8, 16)) for stage in range(8)]
modelled = parallel.live_activations("1f1b", rank=0, ranks=8, microbatches=16)
saved_by_first.reveal(modelled=modelled, counted=most[0])

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Early backward passes free activations early" printed=false
print(f"saved at most by stage 0 to 7: {', '.join(map(str, most))} of 16 microbatches")
plotting.show(
    parallel_plans.draw_schedule("1f1b", microbatches=8, title="1F1B on four stages"),
    alt="Four lanes that save 4, 3, 2 and 1 microbatches: forward and backward alternate.",
)

# %% [markdown] tags=["explain"]
# Seven stages follow, so with the microbatch that is being computed the first stage saves 8 instead of 16, and the last one saves 1. The waiting is the same as
# before, so 1F1B saves memory and no time.
#
# To save time, give each GPU two thinner stages, for example layers 1, 2, 17 and 18. This *interleaving* halves a turn and with it the waiting, and in
# return the activations cross 15 boundaries instead of 7. [The appendix](appendix/06_model_parallel.ipynb) draws it.
#
# **To remember.** A pipeline of $R$ stages waits $(R - 1)/m$ of its computing time. Eight stages wait 44 % with 16 microbatches, and they need 70
# microbatches for 10 %.
#
# You know both prices now. Which of them is lower?

# %% [markdown] tags=["slide"] minutes=2 headline="A choice needs bytes kept, bytes sent and a time"
# ## Part 4: the choice
#
# Which cut would you take? We can answer now, because we know both prices.
#
# - The bytes that a GPU keeps say what fits
# - The bytes that it sends take time on the link
# - The time of a step says which cut is faster
#
# A choice needs these three numbers. For memory we also need the [saved activations](glossary.md#saved-for-backward). A layer of Llama 2 saves eight vectors
# of width 4,096 and four of width 11,008 for each token, which take 153,600 bytes ([lesson 11](11_working_set.ipynb) counts them). Tensor parallelism does
# not divide them all, because the inputs and the results of the layer's two norms are whole on every GPU. These are four vectors of width 4,096, or 32,768
# bytes. An eighth of the other 120,832 bytes comes on top, so a GPU saves 47,872 bytes, nearly a third and not an eighth.
#
# FSDP computes two sequences at once on each GPU, so it saves 2 × 4,096 × 32 × 153,600 bytes, or 40.3 GB. Tensor parallelism takes one sequence at a time,
# and the pipeline's first stage saves eight sequences in four layers.


# %%
def kept(cut):
    """Return the bytes of state, of activations, and of what FSDP gathers for a layer."""
    sequence_layers = {"FSDP": 2 * 32, "tensor": 32, "pipeline": 8 * 4}[cut]
    per_token = 47_872 if cut == "tensor" else 153_600
    gathered = 2 * 2 * 7e9 / 32 if cut == "FSDP" else 0  # a layer's weights, and its gradient
    return 16 * 7e9 / 8, 4096 * sequence_layers * per_token, gathered


def sent(cut, tokens):
    """Return the bytes that a GPU sends in a step of so many tokens."""
    if cut == "FSDP":
        return 3 * 7 / 8 * 2 * 7e9  # gather all weights twice, scatter the gradients once
    return (4 * 32 * 2 * 7 / 8 if cut == "tensor" else 2) * 2 * 4096 * tokens


# %% [markdown]
# **Your turn.** How long is a step, as the sum of computing, waiting and sending, as if nothing could be hidden? Only a `"pipeline"` waits.


# %% tags=["yours"] yours="cut_step_s" takes=5
def cut_step_s(cut, computing_s, sent_bytes, bandwidth, ranks=8, microbatches=16):
    """Return the seconds of a step with the cut "FSDP", "tensor" or "pipeline"."""
    waiting_s = (ranks - 1) / microbatches * computing_s if cut == "pipeline" else 0
    sending_s = sent_bytes / bandwidth
    return computing_s + waiting_s + sending_s


# %% checks="cut_step_s"
cut_step_s = check(cut_step_s)


# %% wrong="cut_step_s" says="Only a pipeline waits"
def cut_step_s(cut, computing_s, sent_bytes, bandwidth, ranks=8, microbatches=16):
    return computing_s * (1 + (ranks - 1) / microbatches) + sent_bytes / bandwidth


# %% wrong="cut_step_s" says="That share is of the whole step"
def cut_step_s(cut, computing_s, sent_bytes, bandwidth, ranks=8, microbatches=16):
    share = (ranks - 1) / (microbatches + ranks - 1) if cut == "pipeline" else 0
    return computing_s * (1 + share) + sent_bytes / bandwidth


# %% wrong="cut_step_s" says="A pipeline waits for (ranks - 1) / microbatches"
def cut_step_s(cut, computing_s, sent_bytes, bandwidth, ranks=8, microbatches=16):
    return computing_s + sent_bytes / bandwidth


# %% wrong="cut_step_s" says="the cells below need int or float"
def cut_step_s(cut, computing_s, sent_bytes, bandwidth, ranks=8, microbatches=16):
    waiting_s = (ranks - 1) / microbatches * computing_s if cut == "pipeline" else 0
    parts = [computing_s, waiting_s, sent_bytes / bandwidth]
    return torch.tensor(parts, dtype=torch.float64).sum()


# %% right="cut_step_s" style=1
def cut_step_s(cut, computing_s, sent_bytes, bandwidth, ranks=8, microbatches=16):
    turns = microbatches + (ranks - 1) * (cut == "pipeline")
    return computing_s / microbatches * turns + sent_bytes / bandwidth


# %% right="cut_step_s" style=2
def cut_step_s(cut, computing_s, sent_bytes, bandwidth, ranks=8, microbatches=16):
    seconds = computing_s
    if cut == "pipeline":
        seconds += sum(computing_s / microbatches for _ in range(ranks - 1))
    seconds += sent_bytes / bandwidth
    return seconds


# %% [markdown]
# With your function the two cuts of the bet can now meet on both links.

# %% tags=["run"]
tokens, computing_s = 16 * 4096, 6 * 7e9 * 16 * 4096 / 8 / 400e12
cuts, links = ("FSDP", "tensor", "pipeline"), {"NVLink": 450e9, "InfiniBand": 50e9}
seconds = {
    (cut, link): cut_step_s(cut, computing_s, sent(cut, tokens), bandwidth)
    for cut in cuts
    for link, bandwidth in links.items()
}

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="A hundredth of the bytes, and no faster"
bet.reveal(modelled=seconds["pipeline", "NVLink"] / seconds["tensor", "NVLink"])

# %% tags=["hide-input", "look"]
rows, names = {}, {"tensor": "tensor parallel", "pipeline": "pipeline, 1F1B"}
for cut in cuts:
    state, activations, gathered = kept(cut)
    in_all = state + activations + gathered
    sizes = state, activations, gathered, in_all, sent(cut, tokens)
    texts = [units.text(size, "B") if size else "" for size in sizes]
    times = [f"{seconds[cut, link]:.2f} s" for link in links]
    rows[names.get(cut, cut)] = [*texts, *times]
kinds = "weights, gradients, Adam", "activations", "gathered", "in all", "sent"
columns = [*kinds, *(f"step, {link}" for link in links)]
pd.DataFrame(rows, index=columns).T.rename_axis("on eight GPUs")

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Which cut is fastest depends on the link"
plotting.show(
    parallel_plans.draw_step_times(
        {
            f"{names.get(cut, cut).split(',')[0]}, {link}": {
                "computing": computing_s,
                "waiting": 7 / 16 * computing_s if cut == "pipeline" else 0.0,
                "sending": sent(cut, tokens) / bandwidth,
            }
            for link, bandwidth in links.items()
            for cut in cuts
        }
    ),
    alt="Three bars per link: on NVLink FSDP is the shortest, on InfiniBand the pipeline.",
)

# %% [markdown] tags=["explain"]
# On InfiniBand, tensor parallelism takes 0.86 + 120 / 50 seconds, which is 3.27 s.
#
# The column *gathered* is easily forgotten. FSDP holds a whole layer's weights while it uses them, 0.44 GB here, and as much again for the layer's gradient
# before it is scattered. More GPUs do not make this column smaller. In Llama 3 405B a layer has 3.2 billion parameters, so FSDP gathers 12.8 GB on each GPU.
# The column can even decide which cut needs less memory. Take eight feed-forward blocks of 4,096 × 16,384 in float32 with 4,096 tokens, counted on tensors
# that have shapes and no values. To test the count, four real processes train a small network, and PyTorch's allocator says what they keep.

# %% tags=["hide-input", "run"]
with torch.device("meta"):
    large = parallel_plans.make_blocks(8, 4096, 16_384)
options = {"inputs": (4096, 4096), "plan": parallel_plans.tensor_plan(large)}
options["optimizer"] = torch.optim.Adam
layouts = {
    "FSDP": parallel_plans.Layout(data=8, sharded="parameters"),
    "tensor parallel": parallel_plans.Layout(tensor=8),
}
table = {}
for cut, layout in layouts.items():
    [rank] = parallel_plans.estimate_footprint(large, layout, **options).ranks
    state = rank.parameter_bytes + rank.gradient_bytes + rank.optimizer_bytes
    block = sum(parameter.nbytes for parameter in large[0].parameters())
    gathered = 2 * block if cut == "FSDP" else 0
    sizes = state, rank.activation_bytes, gathered, rank.total_bytes + gathered
    table[cut] = [units.text(size, "B") if size else "" for size in sizes]

small = parallel_plans.make_blocks(4, 256, 1024)
options |= {"inputs": (64, 256), "plan": parallel_plans.tensor_plan(small)}
layout = parallel_plans.Layout(tensor=4)
estimated = parallel_plans.estimate_footprint(small, layout, **options).largest_bytes
allocated = parallel_plans.measure_footprint(ranks, small, layout, **options).largest_bytes

# %% tags=["hide-input", "look"]
columns = ["weights, gradients, Adam", "activations", "gathered", "in all"]
pd.DataFrame(table, index=columns).T.rename_axis("eight feed-forward blocks (counted)")

# %% tags=["hide-input", "look", "nbval-ignore-output"]
print(f"a small network on four ranks: {estimated:,} bytes counted, {allocated:,} allocated")
assert 0 <= allocated - estimated < 1000

# %% [markdown] tags=["explain"]
# The activations add 0.33 GB in FSDP and 0.74 GB in tensor parallelism (counted, without the input of the first block), so tensor parallelism seems to need
# more than FSDP. But FSDP also gathers a block and its gradient, which take 1.07 GB, so that it needs 3.55 GB and tensor parallelism 2.89. In the small
# network, the allocator agrees with the count to within 16 bytes of 8.9 million.
#
# Now read the times. On NVLink, tensor parallelism is faster than this pipeline, because it sends for 0.27 s whereas the pipeline waits for 0.38
# s. On InfiniBand the sending grows to 2.4 s and the waiting stays, so the wrong cut makes the step 2.6 times as long. FSDP can do better than
# the table, because it can fetch the next weights while it computes, so that its step falls towards 0.86 s on both links. Tensor parallelism can
# hide its backward sums, and its forward sums only with the trick of two halves. Why, then, does anybody cut a model?

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[100, 10000000]
even = helpers.predict(
    "From how many tokens per step on does FSDP on eight GPUs send less "
    "than tensor parallelism?",
    "tokens",
)
even

# %% tags=["run", "slide", "slide-output"] minutes=1 headline="With few tokens, FSDP sends more"
even.reveal(counted=sent("FSDP", 1) / sent("tensor", 1))

# %% tags=["hide-input", "look"]
parallel_plans.explore_cuts()

# %% [markdown] tags=["explain"]
# FSDP sends weights, three times 7/8 of 14 GB in every step (lesson 05), however few tokens there are. Tensor parallelism sends activations, 1.84 MB for
# every token. The two are equal at 36.75 GB / 1.84 MB, or about 20,000 tokens. With fewer tokens FSDP sends more, and soon it has too little arithmetic to
# hide behind. In the figure, FSDP and tensor parallelism meet near five sequences, which are these 20,000 tokens, on either link. (Below eight the
# figure assumes that GPUs can share one.) From how many sequences on is the pipeline faster than tensor parallelism on NVLink?
#
# On many GPUs FSDP sends about 6 bytes per parameter in a step, and it computes 6 operations per parameter for each of a GPU's tokens. The two
# sixes cancel.
#
# > tokens per GPU for which FSDP computes as long as it sends = P / B
#
# With the rate $P$ of 400 TFLOP/s and the [bandwidth](glossary.md#bandwidth) $B$ of 50 GB/s these are 8,000 tokens, and on NVLink they are 889. Our eight
# GPUs have 8,192 tokens each, which is just enough.
#
# The largest training runs have fewer. For Llama 3 405B, Meta had 16,384 H100 and 16 million tokens per step (Llama Team, 2024, Table 4, published). That is
# about 1,000 tokens per GPU, and over their 50 GB/s FSDP alone would send for eight times as long as it computes. With NVLink inside each machine it is
# less ([lesson 08](08_layouts.ipynb)). Meta cut each layer over the eight GPUs of a machine and the model into 16 stages. These 128 GPUs together hold one copy.
# A GPU now sends and computes for a 128th of the parameters only, so the two sixes cancel as before, but the tokens that count are all 128,000 of
# its group. These are sixteen times the 8,000.
#
# **To remember.** Take FSDP if the model then fits and each GPU has more than P / B tokens, which is 8,000 at 400 TFLOP/s and 50 GB/s. With
# fewer, cut layers where the link is fast and put stages where it is slow.

# %% tags=["hide-input"]
ranks.close()

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. Columns first, rows second, and one sum per block and direction.
# 2. A pipeline of R stages waits (R − 1)/m of its computing time.
# 3. With more than P / B tokens per GPU, take FSDP.
#
# On NVLink a pipeline step takes 1.24 s and a tensor-parallel step 1.13 s, so the pipeline takes 1.10 times as long, although it sends only 1/112 of the bytes
# (modelled, and a tenth is within what such a model can miss). Tensor parallelism pays in bytes, and they cost 31 % of the computing time with any batch. The pipeline pays in waiting, which costs 44 % with 16
# microbatches, and it would win from 23 microbatches on, because 7/23 is less than 31 %.
#
# So before you set the two sizes, ask how many bytes per token you would send, how many microbatches you have, and how many tokens each GPU gets. These are
# three divisions, and you can do them before anybody books a machine. The [exercises](exercises/06_model_parallel_exercises.ipynb) have you follow what a
# stage saves, time unequal stages, cut a table of words over real ranks, and plan for a model of your own.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $X$ is the input of a feed-forward block and $f$ its function, applied to single elements; $R$ ranks or GPUs, $m$ microbatches, $v$ stages per GPU, $s$
# bytes that are summed; $L$ layers of width $h$ in bfloat16; a GPU's rate $P$ and its link's bandwidth $B$.
#
# | quantity | formula |
# |---|---|
# | column, then row | $f(XU)D = \sum_r f(XU_r)\,D_r$ for the weights $U$ and $D$ of the block |
# | sent per rank, all-reduce | $2\frac{R-1}{R}\,s$ |
# | tensor parallel, sent per token | $16\,\frac{R-1}{R}\,L\,h$ bytes, from four all-reduces per layer |
# | pipeline, sent per token by a stage between two others | $4\,h$ bytes |
# | GPipe, 1F1B: waiting / computing | $\frac{R-1}{m}$ |
# | interleaved: waiting / computing | $\frac{R-1}{v\,m}$ |
# | microbatches saved at most by stage $i$, from 0 | GPipe $m$; 1F1B $\min(m, R-i)$ |
# | tokens per GPU for which FSDP computes as long as it sends | $P / B$ |
