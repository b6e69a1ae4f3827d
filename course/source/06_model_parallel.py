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
#       - cut|cut a block of two layers by columns and rows, and its way back
#       - write|wrote a pipeline's way back with send and receive, and the order 1F1B
#       - predict|predicted a pipeline's idle time, and how many activations each stage keeps
#       - compare|compared what each rank keeps by estimate with what four real ranks allocate
#       - count|counted what a model of 7 billion parameters keeps and sends on eight devices
# ---

# %% [markdown] tags=["objectives"]
# # Model parallel
#
# A model of 7 billion parameters does not fit into the card that you would train it on. With Adam in
# mixed precision a parameter takes 16 bytes (Rajbhandari and others, *ZeRO*, 2020): 112 GB before the
# first example, and an A100 or H100 has 80 GB. Plain data parallelism does not help: every
# [rank](glossary.md#rank) keeps the whole network. FSDP of lesson 05 does: a rank keeps an eighth, and
# fetches the rest whenever it computes. Here are two cuts of the computing itself.
#
# Give each of eight devices an eighth of **every** layer, or give each 4 of the 32 **layers**. Both leave
# 20 GB on a device, as FSDP does. Which of the three would you take?
#
# Your functions run on four real processes on your CPU; what eight devices would do is counted. Where a time is
# called *simulated*, the devices sleep: processes, messages and the clock are real, the computing is not.

# %%
import time
from collections import OrderedDict
from itertools import accumulate

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

import helpers
from helpers import exercises, parallel, plotting, units
from helpers.links import PUBLISHED_LINKS
from helpers.ranks import Ranks
from helpers.studies import data_parallel, parallel_plans

ranks = Ranks(4)


def on_ranks(function, *arguments):
    return ranks.run(function, *arguments, timeout_s=20)


# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# Cut each of 32 layers into eight, or give each of eight devices four whole layers. Cutting every layer sends more.
#
# How many times as many bytes? We ask for one token, forward and back, and for a device in the middle. Part 6 counts it.

# %% tags=["predict", "slide-output"] axis=[1, 1000]
bet = helpers.predict("How many times the bytes does cutting every layer send?", "x")
bet

# %% [markdown] tags=["slide"] minutes=1 headline="A card of 3 GB is said to have forced the cut"
# ## Part 1: two cards, two towers
#
# In 2012 AlexNet was trained on two cards of 3 GB: one half of every layer, a *tower*, on each.
#
# A card's 3 GB "limits the maximum size of the networks that can be trained on it", so "we spread the net
# across two GPUs" (Krizhevsky, Sutskever and Hinton, *ImageNet Classification with Deep Convolutional Neural
# Networks*, 2012, section 3.2). Let us count: 61 million parameters, each with a gradient and a momentum, and
# what is [saved for backward](glossary.md#saved-for-backward) for 128 images.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[100000000.0, 100000000000.0]
whole_net = helpers.predict("AlexNet in one piece, batch 128, float32: how much memory?", "B")
whole_net

# %% tags=["run", "slide", "slide-output"] minutes=1 headline="AlexNet in one piece fits into a card of 3 GB"
with torch.device("meta"):  # shapes, and no values
    alexnet = helpers.AlexNet()
towers = parallel_plans.model_towers(alexnet, batch=128)
whole_net.reveal(counted=towers.whole_bytes)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The second card bought room for twice the images" mark="images in a card"
needed = towers.whole_bytes, towers.rank_bytes
table = {"needed for 128 images": [units.text(each, "B", binary=True) for each in needed]}
table["images in a card's 3 GiB"] = [towers.whole_largest_batch, towers.rank_largest_batch]
assert towers.card_bytes == 3 * 2**30
pd.DataFrame(table, index=["one card", "each of two"]).T

# %% [markdown] tags=["explain"]
# By our count it fits. The count leaves out the convolutions' [workspace](glossary.md#workspace) and whatever else the code of 2012 kept.
#
# The towers talk in a few layers only, so two towers are not the uncut network. The cuts below change
# nothing: many devices compute what one would.

# %% [markdown]
# ## Part 2: cut every layer
#
# - $f(X A)\,B = f(X A_1)\,B_1 + f(X A_2)\,B_2$
# - $A_1$, $A_2$: columns of $A$. $B_1$, $B_2$: rows of $B$
#
# The feed-forward block of a transformer is two products with an $f$ between. A column of $A$ makes one
# number of the hidden layer, whole, so $f$ can be applied at once. A row of $B$ makes one term of the
# output's sum. Nothing is sent between the two; one [all-reduce](glossary.md#all-reduce) at the end adds
# the terms. This is [tensor parallelism](glossary.md#tensor-parallelism) (Shoeybi and others,
# *Megatron-LM*, 2019).

# %% tags=["slide", "slide-output"] minutes=2 headline="Columns first, then rows: nothing is sent between"
plotting.show(
    parallel_plans.draw_column_row(2, title="Column, then row"),
    alt="X times two blocks of A's columns, each times its rows of B; two terms are added.",
)

# %% tags=["predict"]
messages = helpers.predict("This block, forward and back: how many collectives?", "calls")
messages

# %% [markdown]
# **Your turn.** On each rank, take this rank's columns of `up` and rows of `down`, compute, and add up.
# `tensor.chunk(n, dim=d)` cuts into `n` pieces; `dist.all_reduce(tensor)` replaces a tensor by the sum
# over all ranks.


# %% tags=["yours"] yours="column_then_row"
def column_then_row(rank, world_size, inputs, up, down):
    """Return relu(inputs @ up) @ down, whole, on every rank, from its part of up and down."""
    own_up = up.chunk(world_size, dim=1)[rank]
    own_down = down.chunk(world_size, dim=0)[rank]
    output = torch.relu(inputs @ own_up) @ own_down
    dist.all_reduce(output)
    return output


# %% checks="column_then_row"
torch.manual_seed(0)
sizes = {"inputs": (2, 4), "up": (4, 8), "down": (8, 3)}
inputs, up, down = (torch.randint(-3, 4, size).float() for size in sizes.values())
hidden, whole = torch.relu(inputs @ up), torch.relu(inputs @ up) @ down
terms = tuple(hidden[:, each : each + 2] @ down[each : each + 2] for each in (0, 2, 4, 6))
asked = exercises.Checks("Columns, then rows, on four ranks", column_then_row)
asked.returns(
    "every rank has what one process computes",
    (inputs, up, down),
    call=on_ranks,
    expected=[whole] * 4,
    mistakes={
        terms: "Each rank has its own term: the all-reduce is missing",
        (whole / 4,) * 4: "The terms are added, not averaged: nothing is divided",
    },
)
column_then_row = asked.settle()


# %% wrong="column_then_row" says="the all-reduce is missing"
def column_then_row(rank, world_size, inputs, up, down):
    return (
        torch.relu(inputs @ up.chunk(world_size, dim=1)[rank]) @ down.chunk(world_size)[rank]
    )


# %% wrong="column_then_row" says="nothing is divided"
def column_then_row(rank, world_size, inputs, up, down):
    output = (
        torch.relu(inputs @ up.chunk(world_size, dim=1)[rank]) @ down.chunk(world_size)[rank]
    )
    dist.all_reduce(output)
    return output / world_size


# %% [markdown]
# Rows first would not do: a row gives a *term*, and $f$ of a sum is not the sum of $f$.
#
# ### Back
#
# Every rank has the whole output, so every rank also knows the gradient $G$ that comes back for it. With
# $H = f(XA)$, and $f'$ 1 where $H$ is above 0 and 0 elsewhere,
#
# $$T_r = (G B_r^\top) \odot f', \qquad \frac{\partial L}{\partial X} = \sum_r T_r A_r^\top, \qquad
# \frac{\partial L}{\partial A_r} = X^\top T_r, \qquad \frac{\partial L}{\partial B_r} = H_r^\top G$$
#
# The gradient of $X$ is again a sum over ranks. Those of the weights need nobody else, and nobody waits for
# them. **Your turn**, with one trick: start the sum with `sending = dist.all_reduce(tensor, async_op=True)`,
# compute what does not need it, then `sending.wait()`. Megatron-LM does the same.


# %% tags=["yours"] yours="column_then_row_back"
def column_then_row_back(rank, world_size, inputs, up, down, gradient):
    """Return the gradients of inputs (whole), this rank's columns of up and rows of down."""
    own_up = up.chunk(world_size, dim=1)[rank]
    own_down = down.chunk(world_size, dim=0)[rank]
    hidden = torch.relu(inputs @ own_up)
    through = (gradient @ own_down.T) * (hidden > 0)
    to_inputs = through @ own_up.T
    sending = dist.all_reduce(to_inputs, async_op=True)
    to_up, to_down = inputs.T @ through, hidden.T @ gradient
    sending.wait()
    return to_inputs, to_up, to_down


# %% checks="column_then_row_back"
gradient = torch.randint(-3, 4, (2, 3)).float()
_, back = torch.func.vjp(lambda x, a, b: torch.relu(x @ a) @ b, inputs, up, down)
to_inputs, to_up, to_down = back(gradient)
own = list(zip(to_up.chunk(4, dim=1), to_down.chunk(4), strict=True))
through = (gradient @ down.T) * (hidden > 0)
terms = [through[:, each : each + 2] @ up[:, each : each + 2].T for each in (0, 2, 4, 6)]
unsummed = tuple((term, *each) for term, each in zip(terms, own, strict=True))
four_times = tuple((4 * to_inputs, 4 * each, 4 * other) for each, other in own)
asked = exercises.Checks("The way back, on four ranks", column_then_row_back)
asked.returns(
    "gradients are those of autograd in one process",
    (inputs, up, down, gradient),
    call=on_ranks,
    expected=[(to_inputs, *each) for each in own],
    mistakes={
        unsummed: "The inputs' gradient is a sum over ranks",
        four_times: "The gradient that comes in is whole: do not add it up",
    },
)
column_then_row_back = asked.settle()


# %% wrong="column_then_row_back" says="a sum over ranks"
def column_then_row_back(rank, world_size, inputs, up, down, gradient):
    own_up, own_down = up.chunk(world_size, dim=1)[rank], down.chunk(world_size)[rank]
    hidden = torch.relu(inputs @ own_up)
    through = (gradient @ own_down.T) * (hidden > 0)
    return through @ own_up.T, inputs.T @ through, hidden.T @ gradient


# %% wrong="column_then_row_back" says="do not add it up"
def column_then_row_back(rank, world_size, inputs, up, down, gradient):
    own_up, own_down = up.chunk(world_size, dim=1)[rank], down.chunk(world_size)[rank]
    dist.all_reduce(gradient)
    hidden = torch.relu(inputs @ own_up)
    through = (gradient @ own_down.T) * (hidden > 0)
    to_inputs = through @ own_up.T
    dist.all_reduce(to_inputs)
    return to_inputs, inputs.T @ through, hidden.T @ gradient


# %% tags=["run"]
def counted(rank, world_size, function, *arguments):
    with parallel.count_collectives() as counter:
        function(rank, world_size, *arguments)
    return counter.counts.collectives


forward = ranks.run(counted, column_then_row, inputs, up, down)[0]
back = ranks.run(counted, column_then_row_back, inputs, up, down, gradient)[0]

# %% tags=["look"]
messages.reveal(counted=sum(each.calls for each in forward + back))
for way, [each] in (("forward", forward), ("back", back)):
    print(f"{way}: {each.calls} {each.collective} of {each.size_bytes} bytes")

# %% [markdown] tags=["explain"]
# One forward, of the output; one back, of the input's gradient. The first stands in the way: the next layer
# needs the sum. The second can hide behind the gradients of the weights. So every block has a wait, and
# tensor ranks belong on the fastest link that there is.
#
# ### A common error: a gradient counted twice
#
# Above, $G$ came in whole. A program that adds it over the four ranks "to be safe" has it 4 times too large, with a forward pass and a
# loss that look right. Every gradient of this block is then 4 times too large. Adam divides by the size of the gradients, so it
# hides that. Now eight blocks in a row, each with this error:

# %% tags=["predict"]
grown = helpers.predict("How many times too large is the first block's gradient?", "x")
grown


# %%
def make_blocks(depth, width, hidden):
    def block():
        up, down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        return nn.Sequential(OrderedDict(up=up, act=nn.ReLU(), down=down))

    return nn.Sequential(*(block() for _ in range(depth)))


# %% tags=["run"]
def first_and_last(factor, residual):
    torch.manual_seed(1)
    rows, blocks = torch.randn(64, 16), make_blocks(8, 16, 64)
    for block in blocks:
        output = block(rows)
        output.register_hook(lambda gradient: factor * gradient)  # one all-reduce too many
        rows = rows + output if residual else output
    rows.pow(2).mean().backward()
    return [blocks[place].up.weight.grad.flatten() for place in (0, -1)]


first, table = {}, {}
for name, residual in (("plain", False), ("with residual paths", True)):
    true, wrong = first_and_last(1, residual), first_and_last(4, residual)
    first[name], last = ((wrong[i].norm() / true[i].norm()).item() for i in (0, 1))
    cosine = torch.cosine_similarity(wrong[0], true[0], dim=0).item()
    table[name] = [f"{first[name]:,.1f}x", f"{last:.1f}x", f"{cosine:.2f}"]

# %% tags=["look"]
grown.reveal(counted=first["plain"])
columns = ["first too large", "last too large", "cosine of the first"]
pd.DataFrame(table, index=columns).T

# %% [markdown] tags=["explain"]
# The factor grows at each block on the way back. In a plain stack Adam hides even that, because each gradient has one constant
# factor. With residual paths a part of the gradient goes round a block and is not multiplied. So the sum *points* elsewhere (its
# cosine with the true gradient is below 1), and no optimizer hides that. Compare gradients, not losses. And ask at each point
# whether the ranks hold different *terms* (add them) or the same *whole* (do not).

# %% [markdown] tags=["slide"] minutes=2 headline="Cut between layers, and stages wait for one another"
# ## Part 3: cut between layers
#
# - Stage $s$ has the layers of rank $s$
# - Forward, activations cross a boundary; back, their gradients
# - Stage 3 waits for stage 2, which waits for stage 1
#
# In [pipeline parallelism](glossary.md#pipeline-parallelism) layers stay whole, and hardly anything
# travels. But a batch in one piece keeps one stage busy at a time. So cut the batch into
# [microbatches](glossary.md#microbatch): while stage 1 has the first, stage 0 takes the second. GPipe (Huang
# and others, 2019) sends all of them forward, and then all back.
#
# Four stages of one weight each, three microbatches, and what one process makes of them:

# %%
stages = [nn.Linear(2, 2, bias=False) for _ in range(4)]
for place, each in enumerate(stages):
    each.weight.data = torch.tensor([[1.0, place - 1], [2, -1]])
batches = list(torch.tensor([[[1.0, 2]], [[3, -1]], [[0, 2]]]))


def one_process(given):
    net = nn.Sequential(*stages)
    return torch.autograd.grad(net(torch.cat(given)).sum(), list(net.parameters()))


# %% [markdown]
# The way forward is given. `dist.send(tensor, rank)` sends; `dist.recv(tensor, rank)` fills a tensor with what
# arrives. Autograd's record does not cross processes. So a stage begins its own at `given` (`requires_grad_`),
# sends bare values (`detach`), and keeps both ends for the way back:


# %%
def all_forward(rank, world_size, stage, microbatches):
    kept = []
    for batch in microbatches:
        given = batch.clone()
        if rank > 0:
            dist.recv(given, rank - 1)
        given.requires_grad_()
        output = stage(given)
        if rank < world_size - 1:
            dist.send(output.detach(), rank + 1)
        kept.append((given, output))
    return kept


# %% [markdown]
# GPipe's step is this and then the way back. The loss is the sum of all last outputs:


# %%
def gpipe(rank, world_size, all_back, stages, microbatches):
    all_back(rank, world_size, all_forward(rank, world_size, stages[rank], microbatches))
    return stages[rank].weight.grad


# %% [markdown]
# **Your turn**: the way back, the mirror image of `all_forward`. Gradients come from the right and go to the left; at the last
# stage they are all ones. `output.backward(gradient)` goes back through this stage alone, adds up the gradient of
# its weight, and leaves in `given.grad` what is to be sent on. A `recv` without its `send` ends after 20 seconds.


# %% tags=["yours"] yours="all_back"
def all_back(rank, world_size, kept):
    """Go back through this stage for each (given, output) of kept, in order; return nothing.

    The gradient of output, of its shape, comes from rank + 1; that of given goes to rank - 1.
    """
    for given, output in kept:
        gradient = torch.ones_like(output)
        if rank < world_size - 1:
            dist.recv(gradient, rank + 1)
        output.backward(gradient)
        if rank > 0:
            dist.send(given.grad, rank - 1)


# %% checks="all_back"
whole = one_process(batches)
asked = exercises.Checks("GPipe's way back: three microbatches, four stages", all_back)
asked.returns(
    "every stage has its gradient of the whole batch",
    (stages, batches),
    call=lambda function, *given: on_ranks(gpipe, function, *given),
    expected=whole,
    mistakes={
        one_process(batches[-1:]): "Only the last went back: go through all of kept",
        tuple(each / 3 for each in whole): "Microbatches' gradients are added, not averaged",
    },
)
all_back = asked.settle()


# %% wrong="all_back" says="go through all of kept"
def all_back(rank, world_size, kept):
    given, output = kept[-1]
    gradient = torch.ones_like(output)
    if rank < world_size - 1:
        dist.recv(gradient, rank + 1)
    output.backward(gradient)
    if rank > 0:
        dist.send(given.grad, rank - 1)


# %% wrong="all_back" says="added, not averaged"
def all_back(rank, world_size, kept):
    for given, output in kept:
        gradient = torch.ones_like(output) / len(kept)
        if rank < world_size - 1:
            dist.recv(gradient, rank + 1)
        output.backward(gradient)
        if rank > 0:
            dist.send(given.grad, rank - 1)


# %% [markdown]
# Now the clock. The step runs again, with stages that sleep: 300 ms a stage for the whole batch, a third of
# it forward. A stage that never waited would be done after 300 ms.

# %% tags=["predict", "slide", "slide-output"] minutes=1
idle = helpers.predict("4 stages, 4 microbatches: idle time in % of busy time?", "%")
idle


# %% tags=["run", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="With few microbatches a pipeline idles nearly as long as it works"
def timed(rank, world_size, function, *arguments):
    dist.barrier()
    start_s = time.perf_counter()
    function(rank, world_size, *arguments)
    return time.perf_counter() - start_s


def simulated_s(microbatches):
    layer = data_parallel.SleepingLayer(0.1 / microbatches, 0.2 / microbatches)
    given = (all_back, [layer] * 4, [torch.ones(1)] * microbatches)
    return min(max(ranks.run(timed, gpipe, *given)) for _ in range(2))


step_s = {m: simulated_s(m) for m in (1, 2, 4)}
assert step_s[4] < 0.7 * step_s[1]
ratio = parallel.bubble_ratio("gpipe", ranks=4, microbatches=4)
idle.reveal(modelled=100 * ratio, simulated=100 * (step_s[4] / 0.3 - 1))

# %% tags=["look", "nbval-ignore-output"]
table = {m: [0.3 * (m + 3) / m, each] for m, each in step_s.items()}
print("one step, by the number of microbatches")
pd.DataFrame(table, index=["modelled", "simulated"]).T.map(lambda s: units.text(s, "s"))

# %% [markdown] tags=["explain"]
# With one microbatch, four devices are as fast as one. With $m$ microbatches on $p$ stages a step lasts
# $m + p - 1$ turns instead of $m$. The rest is the [bubble](glossary.md#bubble):
#
# $$\frac{\text{idle}}{\text{busy}} = \frac{p - 1}{m}$$
#
# (Others state the share of the whole step, $(p-1)/(m+p-1)$.) The simulated step is longer, because messages take time. Play it:


# %% tags=["look", "slide", "slide-output"] minutes=1 headline="More microbatches, a smaller bubble" layout="steps"
def drawn(name, microbatches, chunks=1, until_s=None):
    pieces = {"ranks": 4, "microbatches": microbatches, "chunks": chunks}
    turn_s = 0.1 / microbatches / chunks
    model = parallel.pipeline_schedule(name, **pieces, forward_s=turn_s, backward_s=2 * turn_s)
    label = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved"}[name]
    title = f"{label}, microbatches: {microbatches}, idle {model.bubble_ratio:.0%} of busy"
    return plotting.gantt(model.timeline.activities, title=title, until=until_s)


plotting.play(
    [drawn("gpipe", m, until_s=1.25) for m in (1, 2, 4)],
    title="GPipe on 4 stages: the same batch in more and more microbatches",
    alt="Four lanes of passes; on one axis of time, the same work ends sooner in each frame.",
)

# %% [markdown] tags=["explain"]
# So why not a thousand microbatches? Each is tiny then: small products leave a device mostly idle, and every message has its
# [latency](glossary.md#latency). To keep them large one takes a larger batch, and that fills the memory: in this order the
# activations of the whole batch are alive until the first microbatch goes back. (The paper's GPipe keeps only a stage's input and
# recomputes the rest.)

# %% [markdown] tags=["slide"] minutes=2 headline="Go backward as soon as you can"
# ## Part 4: backward as soon as you can
#
# - Stage $s$ first sends as many microbatches forward as stages come after it
# - Then one forward, one backward, in turn
# - Then the backward passes that are left
#
# This is 1F1B (Narayanan and others, *PipeDream*, 2019; here all of a batch ends before the next begins). The
# last stage goes back at once, so activations are freed early.

# %% tags=["predict"]
alive = helpers.predict(
    "1F1B, 4 stages, 8 microbatches: of how many does stage 0 keep activations?",
    "microbatches",
)
alive

# %% [markdown]
# **Your turn.** Write the order of one stage as a list of `("F", 0)`, microbatch 0 forward, and `("B", 0)`, backward. With few
# microbatches there may be fewer than stages that come after.


# %% tags=["yours"] yours="one_f_one_b"
def one_f_one_b(stage, stages, microbatches):
    """Return the passes of a stage in 1F1B's order, a list of ("F" or "B", microbatch)."""
    ahead = min(stages - 1 - stage, microbatches)
    order = [("F", each) for each in range(ahead)]
    for each in range(microbatches - ahead):
        order += [("F", ahead + each), ("B", each)]
    return order + [("B", each) for each in range(microbatches - ahead, microbatches)]


# %% checks="one_f_one_b"
asked = exercises.Checks("1F1B, a stage's order", one_f_one_b)
turns = [("F", 0), ("B", 0), ("F", 1), ("B", 1)]
asked.returns("the last stage goes back at once", (3, 4, 2), expected=turns)
one_ahead = [("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("B", 2)]
two_ahead = (("F", 0), ("F", 1), ("F", 2), ("B", 0), ("B", 1), ("B", 2))
asked.returns(
    "stage 2 of 4 is one microbatch ahead",
    (2, 4, 3),
    expected=one_ahead,
    mistakes={two_ahead: "One microbatch too many ahead: only one stage comes after stage 2"},
)
few = [("F", 0), ("F", 1), ("B", 0), ("B", 1)]
asked.returns("two microbatches are enough for four stages", (0, 4, 2), expected=few)
one_f_one_b = asked.settle()


# %% wrong="one_f_one_b" says="One microbatch too many ahead"
def one_f_one_b(stage, stages, microbatches):
    ahead = min(stages - stage, microbatches)
    order = [("F", each) for each in range(ahead)]
    for each in range(microbatches - ahead):
        order += [("F", ahead + each), ("B", each)]
    return order + [("B", each) for each in range(microbatches - ahead, microbatches)]


# %% wrong="one_f_one_b" says="two microbatches are enough"
def one_f_one_b(stage, stages, microbatches):
    ahead = stages - 1 - stage
    order = [("F", each) for each in range(ahead)]
    for each in range(microbatches - ahead):
        order += [("F", ahead + each), ("B", each)]
    return order + [("B", each) for each in range(max(0, microbatches - ahead), microbatches)]


# %% tags=["run"]
def most_alive(order):
    return max(accumulate(1 if kind == "F" else -1 for kind, _ in order))


in_turn = [("F", each) for each in range(8)] + [("B", each) for each in range(8)]
kept = {"GPipe": [most_alive(in_turn)] * 4}
kept["1F1B"] = [most_alive(one_f_one_b(stage, 4, 8)) for stage in range(4)]

# %% tags=["look"]
modelled = parallel.live_activations("1f1b", rank=0, ranks=4, microbatches=8)
alive.reveal(modelled=modelled, counted=kept["1F1B"][0])
pd.DataFrame(kept, index=[f"stage {stage}" for stage in range(4)]).T

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="1F1B keeps as many microbatches as stages, not all eight"
schedule = parallel.pipeline_schedule("1f1b", ranks=4, microbatches=8)
for stage in range(4):
    order = [(kind[0].upper(), microbatch) for kind, _, microbatch in schedule.order(stage)]
    assert order == one_f_one_b(stage, 4, 8)  # the figure is your order
figure = drawn("1f1b", 8)
lanes = [f"rank {rank}, keeps {number}" for rank, number in enumerate(kept["1F1B"])]
figure.axes[0].set_yticks(range(4), lanes)
alt = "Four lanes that keep 4, 3, 2 and 1 microbatches: forward and backward take turns."
plotting.show(figure, alt=alt)

# %% [markdown] tags=["explain"]
# Stage $r$ keeps $\min(m, p - r)$ microbatches. The bubble is that of GPipe, $\frac{p-1}{m}$: 1F1B saves memory,
# not time.
#
# Time is saved by thinner stages. **Interleaved** (Narayanan and others, *Efficient Large-Scale Language Model
# Training on GPU Clusters Using Megatron-LM*, 2021): rank 0 has layers 0 and 4, rank 1 layers 1 and 5, and so
# on. The pipeline still fills and drains in $p - 1$ turns, and with $v = 2$ stages a rank a turn is half as long: so is the
# bubble. The price: activations travel more than twice as often, and with many microbatches rank 0 keeps
# $1 + \frac{p-1}{pv}$ times as much as in 1F1B.

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Two stages a rank make the bubble half as long" layout="steps"
one_stage = drawn("1f1b", 4, until_s=0.55)
two_stages = drawn("interleaved", 4, chunks=2, until_s=0.55)
one_stage.set_figheight(two_stages.get_figheight())  # frames of a player have one size
plotting.play(
    [one_stage, two_stages],
    title="4 microbatches: one stage a rank, then two",
    captions=["1F1B: each rank has one stage.", "A rank's second stage is darker."],
    alt="Four lanes of passes, then the same with passes half as long and a smaller bubble.",
)

# %% [markdown] tags=["explain"]
# And a *zero-bubble* schedule (Qi and others, 2024) fills the gaps with the gradients of the weights, which
# nobody waits for, as you did in Part 2. PyTorch has all of them in
# `torch.distributed.pipelining`.

# %% [markdown] tags=["slide"] minutes=1 headline="All cuts divide the state; activations differ"
# ## Part 5: what each rank keeps
#
# - Weights, gradients, [optimizer state](glossary.md#optimizer-state): an eighth each
# - Activations: here the cuts differ
#
# Eight blocks like that of Part 2, 4096 wide and 16,384 within, Adam in float32, 4096 rows a step, eight devices.
# An [FSDP](glossary.md#sharding) rank has an eighth of the rows and of every weight, and gathers a layer's weights just before it
# uses them. A tensor rank has all rows and an eighth of each layer. (The table leaves out the batch, and what FSDP has gathered:
# up to a block, 537 MB, and on the way back its gradient.)

# %%
with torch.device("meta"):
    large = make_blocks(8, 4096, 16384)

# %% tags=["predict"]
fuller = helpers.predict("Saved activations on a rank: tensor 8 over FSDP 8?", "x")
fuller

# %% [markdown]
# `estimate_footprint` runs one rank's part of a step on tensors that have shapes and no values, the other
# ranks in name alone. `plan` says which layer is cut by columns and which by rows.

# %% tags=["run"]
adam = torch.optim.Adam
given = {"inputs": (4096, 4096), "plan": parallel_plans.tensor_plan(large), "optimizer": adam}


def estimated(**layout):
    return parallel_plans.estimate_footprint(
        large, parallel_plans.Layout(**layout), **given
    ).ranks


[fsdp], [tensor] = estimated(data=8, sharded="parameters"), estimated(tensor=8)
rows = {"FSDP 8": fsdp, "tensor 8": tensor}
rows |= {f"pipeline 8, stage {each.stage}": each for each in estimated(pipeline=8)}

# %% tags=["look"]
fuller.reveal(counted=tensor.activation_bytes / fsdp.activation_bytes)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="A tensor rank keeps the most activations" mark="tensor 8"
table = {}
for name, rank in rows.items():
    state = rank.parameter_bytes, rank.gradient_bytes, rank.optimizer_bytes
    kept = *state, rank.activation_bytes, rank.total_bytes
    table[name] = [units.text(each, "B") for each in kept]
pd.DataFrame(table, index=["weights", "gradients", "Adam", "activations", "all"]).T

# %% [markdown] tags=["explain"]
# The weights are an eighth everywhere. Activations are not: each rank's columns of $A$ multiply the whole input,
# so each rank keeps all of it, and here it takes all rows at once; in microbatches, as in Part 6, it would keep the least. (Lesson 08
# divides that as well.) In the pipeline, with 1F1B and 8 microbatches, the early stages keep more. (What enters stage 0 is the
# batch, which is not counted.)
#
# An estimate that nobody has measured is a guess. So four real ranks train a small network of the same form,
# and we ask their allocators:

# %% tags=["run"]
small = make_blocks(4, 256, 1024)
given = {"inputs": (64, 256), "plan": parallel_plans.tensor_plan(small), "optimizer": adam}
both = {}
for name, layout in {
    "tensor 4": parallel_plans.Layout(tensor=4),
    "pipeline 4": parallel_plans.Layout(pipeline=4),
}.items():
    estimate = parallel_plans.estimate_footprint(small, layout, ranks=range(4), **given)
    allocated = parallel_plans.measure_footprint(ranks, small, layout, **given)
    pairs = zip(estimate.ranks, allocated.ranks, strict=True)
    both[name] = [(each.total_bytes, found.total_bytes) for each, found in pairs]

# %% tags=["look", "nbval-ignore-output"]
print("bytes estimated / allocated")
shown = {name: [f"{each:,} / {found:,}" for each, found in both[name]] for name in both}
pd.DataFrame(shown, index=[f"rank {rank}" for rank in range(4)])

# %% [markdown] tags=["explain"]
# (A tensor rank's 16 bytes more are PyTorch's list of the ranks.)

# %% [markdown] tags=["slide"] minutes=2 headline="One model of seven billion parameters, cut in three ways"
# ## Part 6: seven billion parameters on eight devices
#
# - 32 layers, 4096 wide, $7 \cdot 10^9$ parameters
# - A step: 16 sequences of 4096 tokens, 8,192 a device
#
# That is the shape of Llama 2 7B (Touvron and others, 2023). A layer has two blocks, attention and feed-forward. Attention is cut
# by whole heads, which need nothing of one another. In each block columns-then-rows leave one all-reduce forward and one back, of
# one activation of the layer's width for each token, in bfloat16 (2 bytes a number). On a ring a rank sends $2\frac{p-1}{p}$ times
# the bytes that it sums (lesson 05).
#
# **Your turn**: what does a tensor rank send for one token?


# %% tags=["yours"] yours="sent_per_token"
def sent_per_token(layers, width, devices):
    """Return the bytes a tensor rank sends for one token, forward and back, in bfloat16."""
    all_reduces = 4 * layers
    return all_reduces * 2 * (devices - 1) / devices * 2 * width


# %% checks="sent_per_token"
asked = exercises.Checks("What a tensor rank sends for a token", sent_per_token)
asked.returns(
    "two layers, 100 wide, on four devices",
    (2, 100, 4),
    expected=2400,
    mistakes={
        1200: "Half is missing: two blocks a layer, forward and back, and 2 bytes a number",
        1600: "A ring's all-reduce sends 2 (p - 1) / p times the bytes that it sums",
        4800: "bfloat16 has 2 bytes a number",
    },
)
asked.returns("one device sends nothing", (2, 100, 1), expected=0)
sent_per_token = asked.settle()


# %% wrong="sent_per_token" says="two blocks a layer, forward and back"
def sent_per_token(layers, width, devices):
    return 2 * layers * 2 * (devices - 1) / devices * 2 * width


# %% wrong="sent_per_token" says="2 (p - 1) / p times"
def sent_per_token(layers, width, devices):
    return 4 * layers * 2 * width * min(1, devices - 1)


# %% [markdown]
# In a pipeline a stage sends one activation forward and one gradient back; the first and the last send one
# of the two. So, the bet:

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Cutting every layer sends over a hundred times the bytes"
layers, width, tokens, sequences = 32, 4096, 4096, 16
sent = {"tensor 8": sent_per_token(layers, width, 8), "pipeline 8": 2 * 2 * width}
bet.reveal(counted=sent["tensor 8"] / sent["pipeline 8"])

# %% [markdown] tags=["explain"]
# And FSDP? It gathers all weights twice and scatters the gradients once (lesson 05), and each costs $\frac{p-1}{p}$ of 14 GB,
# whatever the number of tokens. What a tensor rank sends grows with the tokens.

# %% tags=["predict"]
even = helpers.predict(
    "From how many tokens a step on does FSDP 8 send less than tensor 8?", "tokens"
)
even

# %% tags=["run"]
fsdp_bytes = 3 * 7 / 8 * 2 * 7e9

# %% tags=["look"]
even.reveal(counted=fsdp_bytes / sent["tensor 8"])

# %% [markdown] tags=["explain"]
# Now the memory. Of a token a layer of GPT, of width $h$, keeps $34\,h$ bytes for its backward pass: $11\,h$ in attention, $19\,h$ in
# the feed-forward block, $4\,h$ in layer norms (Korthikanti and others, *Reducing Activation Recomputation in Large Transformer
# Models*, 2022, without the table of attention scores; Llama differs a little). Of these, $t$ tensor ranks divide $24\,h$.
#
# A tensor rank takes one sequence at a time. The pipeline takes each as a microbatch, by 1F1B. An FSDP rank takes its two at once:
# one at a time would halve its activations, and gather the weights twice as often.

# %%
state = 16 * 7e9 / 8  # weights, gradients, Adam
sequence = tokens * width  # numbers of one sequence in one layer
in_step = tokens * sequences
rows = {
    "FSDP 8": (34 * sequence * 32 * 2, fsdp_bytes),
    "tensor 8": ((10 + 24 / 8) * sequence * 32, sent["tensor 8"] * in_step),
    "pipeline 8, stage 0": (34 * sequence * 4 * 8, sent["pipeline 8"] * in_step / 2),
    "pipeline 8, stage 3": (34 * sequence * 4 * 5, sent["pipeline 8"] * in_step),
}
table = {}
for name, (kept, sent_bytes) in rows.items():
    table[name] = [units.text(each, "B") for each in (state, kept, state + kept, sent_bytes)]
kinds = ["weights to Adam", "activations", "kept in all", "sent in a step"]
pd.DataFrame(table, index=kinds).T

# %% [markdown] tags=["explain"]
# All fit into 80 GB. Now the time of a step on the eight H100 of lesson 05: 6 [FLOP](glossary.md#flop) a parameter and token
# (attention scores left out), 400 TFLOP/s, and the published rates of two links. First, nothing hides behind anything. Then, at
# best: FSDP's gathers hide behind computing, a tensor rank's sums of the way back behind the gradients of the weights (a third of
# computing), and a pipeline's messages behind other microbatches.

# %% tags=["run"]
compute_s = 6 * 7e9 * in_step / 8 / 400e12
bubble_s = compute_s * 7 / sequences
steps, times = {}, {}
for wire in ("NVLink 4 (of an H100)", "InfiniBand NDR"):
    rate = PUBLISHED_LINKS[wire].link.bandwidth_bytes_per_s
    link = wire.split()[0]
    steps[f"on {link}"] = {"computing": 0.0}  # a lane for the words
    sending_s = {name: sent_bytes / rate for name, (_, sent_bytes) in rows.items()}
    hidden_s = {"FSDP 8": compute_s, "tensor 8": min(compute_s / 3, sending_s["tensor 8"] / 2)}
    for name in ("FSDP 8", "tensor 8", "pipeline 8, stage 3"):
        each_s = sending_s[name]
        waiting_s = bubble_s if name.startswith("pipeline") else 0.0
        bare_s = compute_s + waiting_s + each_s
        lane = f"{name.partition(',')[0]}: {bare_s:.2f} s"
        steps[lane] = {"computing": compute_s, "waiting": waiting_s, "sending": each_s}
        best_s = bare_s - min(each_s, hidden_s.get(name, each_s))
        times.setdefault(link, {})[name] = f"{bare_s:.2f} s, hidden {best_s:.2f} s"

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Which cut is fastest depends on the link"
spans = plotting.spans_in_a_row(steps, label=".2f")
figure = plotting.gantt(spans, title="Modelled: a step of 7 billion parameters on 8 H100")
alt = "Three bars a link: on NVLink FSDP is the shortest, on InfiniBand the pipeline."
plotting.show(figure, alt=alt)

# %% tags=["look"]
pd.DataFrame(times)

# %% [markdown] tags=["explain"]
# If nothing hides, FSDP wins on NVLink at this batch, and the pipeline on InfiniBand: it sends next to nothing, and waits in its
# bubble, which a larger batch or interleaving shrinks. Where all hides that can, FSDP wins on both.
#
# So why does anybody cut layers? With many more devices a batch leaves few tokens for each. FSDP's bytes do not shrink then, its
# computing does, and activations of one sequence must still fit. Hence the common layout: tensor ranks within a machine, pipeline
# stages and data ranks between machines. [Lesson 08](08_layouts.ipynb) puts them together and chooses.
#
# The [exercises](exercises/06_model_parallel_exercises.ipynb) have you time unequal stages, cut a table of words over real ranks,
# and plan for a model of your own.

# %%
ranks.close()

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Columns, then rows: one all-reduce a block, each way.
# 2. A pipeline sends one boundary and waits in its bubble, $(p-1)/m$.
# 3. Many tokens a device: take FSDP. Few: cut layers within a machine, stages between.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $p$ ranks, $m$ microbatches, $v$ stages a rank, $n$ bytes of a whole buffer.
#
# | quantity | formula |
# |---|---|
# | column then row | $f(XA)B = \sum_r f(XA_r)\,B_r$ for weights $A$ and $B$ and any $f$ of single numbers; forward one all-reduce of the output, back one of the gradient of $X$ |
# | sent by a rank, all-reduce | $2\frac{p-1}{p}n$ |
# | GPipe, 1F1B: idle over busy | $\frac{p-1}{m}$ |
# | interleaved | $\frac{p-1}{v\,m}$ |
# | alive on rank $r$ | GPipe $m$; 1F1B $\min(m, p-r)$ |
# | tensor parallel, sent for a token | $4\,l\cdot 2\frac{p-1}{p}\,b\,h$ for $l$ layers of width $h$ and $b$ bytes a number |
# | pipeline, sent for a token by a stage between two others | $2\,b\,h$ |
