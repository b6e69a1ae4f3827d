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
#     number: "05"
#     title: Model parallel
#     minutes: 100
#     needs: ["04"]
#     objectives:
#       - count|counted what a rank keeps and sends when a network is cut by towers, by columns and rows, or by stages
#       - predict|predicted the idle share of a pipeline, and how many activations it keeps
#       - show|showed on real ranks that a cut network computes what the whole one does, and which mistakes break it
#       - explain|explained what travels when a sequence is divided among ranks, and when tokens are sent to the networks they need
#       - choose|chose a layout for a network, a link and a memory, by a model and by runs
# ---

# %% [markdown] tags=["objectives"]
# # Model parallel
#
# In lesson 04 every [rank](glossary.md#rank) had the whole network and a part of the batch. Two things end that: the network
# does not fit into one device's memory, or one device takes too long for even one example. Then the network itself is cut, and
# the question is where: between towers, inside a layer, between layers, along the sequence, between small networks of which each
# example uses a few. Each cut keeps less on a rank and moves something else.
#
# All of it runs here with real processes on your CPU; the same cells use a GPU a process where there are four. Bytes and results
# are exact. Times come from devices that sleep: processes, messages and clock are real, the computing is not, so these times are
# called *simulated*. Clear the outputs before you begin (Edit, Clear Outputs of All Cells).

# %%
from collections import OrderedDict

import pandas as pd
import torch
from torch import nn

import helpers
from helpers import layouts, parallel, plotting, units

ranks = parallel.Ranks(4)
cross_entropy, mse_loss = nn.functional.cross_entropy, nn.functional.mse_loss

# %% [markdown] tags=["slide"] minutes=2
# ## Part 1: two towers
#
# In 2012 AlexNet was trained on two cards of 3 GB each. One half of every layer, a *tower*, on each card.
#
# The reason given: "A single GTX 580 GPU has only 3GB of memory, which limits the maximum size of the networks that can be trained
# on it" (Krizhevsky, Sutskever and Hinton, *ImageNet Classification with Deep Convolutional Neural Networks*, 2012, section 3.2).
# The lecture "Hardware Ecosystem" (Cambridge, 2022) tells the story layer by layer. So let us count: parameters, gradients, the
# momentum of SGD (4 bytes each), and what is [saved for backward](glossary.md#saved-for-backward) for a batch of 128.

# %% tags=["predict"]
whole_net = helpers.predict("How much memory does AlexNet need for training in one piece, batch 128, float32?", "B")
whole_net

# %% [markdown]
# Parameters alone first. The paper says 60 million; each is kept three times, as weight, gradient and momentum.

# %%
with torch.device("meta"):
    alexnet = helpers.AlexNet()
parameters = sum(each.numel() for each in alexnet.parameters())
print(f"{parameters:,} parameters, three times 4 bytes: {3 * 4 * parameters:,} bytes")

# %% [markdown]
# A tensor on the `meta` device has a shape and no values, so that a network of any size costs nothing. `model_towers` lets autograd
# go through both forms on it, whole and as one tower, and notes what each layer saves.

# %% tags=["run"]
towers = parallel.model_towers(alexnet, batch=128)

# %% tags=["look"]
whole_net.reveal(counted=towers.whole_bytes)
print(f"whole: {towers.whole_bytes:,} bytes; on each of two ranks: {towers.rank_bytes:,} bytes")

# %% tags=["look", "slide", "slide-output"] minutes=1
groups = {"1": "1", "2": "2", "3-5": "345", "6": "6", "7": "7", "8": "8"}
bars = [(layers, form) for layers in groups for form in ("whole", "rank")]


def bytes_of(kind):
    return [sum(getattr(each, f"{form}_{kind}_bytes") for each in towers.layers if each.layer[-1] in groups[layers])
            for layers, form in bars]  # fmt: skip


drawn = plotting.draw_layers(
    [f"{layers}, {'whole' if form == 'whole' else 'tower'}" for layers, form in bars],
    {
        "weights x 3": [3 * size for size in bytes_of("parameter")],
        "saved for backward": bytes_of("saved"),
    },
    unit="B",
    title="AlexNet's eight layers, batch 128",
)
plotting.show(drawn, alt="Two bars for each layer (3 to 5 together): most is saved in 1 and 2, most weights are in 6.")

# %% [markdown] tags=["explain"]
# The parameters alone, three times, are less than a third of it. The rest is activations, most of them in the first two layers,
# where the maps are large (with each convolution stand its ReLU, normalisation and pooling). A tower is not exactly a half: both
# ranks keep the images that conv1 reads, and conv3 reads the maps of both towers. Now the reason that everybody gives:

# %% tags=["explain", "slide", "slide-output"] minutes=1
needed, there = (units.text(size, "B", binary=True) for size in (towers.whole_bytes, towers.card_bytes))
print(f"the whole network at batch 128 needs {needed}, a card has {there}")
print(f"images that fit: {towers.whole_largest_batch} whole, {towers.rank_largest_batch} on each of two ranks")

# %% [markdown] tags=["explain"]
# **What went wrong here?** That AlexNet did not fit is told often, and this count does not support it. The count has what PyTorch
# keeps today; it leaves out the [workspace](glossary.md#workspace) of the convolutions and whatever else the code of 2012 kept,
# which we cannot count. The paper itself says less than the story: memory *limits the size*. What two cards bought is the factor
# between the two numbers above, in images or in width, and half of the work for each.
#
# ### What the towers say to each other
#
# conv2, conv4 and conv5 read their own tower alone. At conv3 and the fully connected layers each rank needs the other's values. How
# many bytes is that for an image?

# %% tags=["predict"]
moved = helpers.predict("How many bytes do both ranks together receive for one image, forward?", "B")
moved

# %% [markdown]
# By hand: the maps after pool2 (256 of 13 x 13), after pool5 (256 of 6 x 6), the 4096 values after fc6 and after fc7, and at the end
# the 1000 logits. Of each a rank has half and receives half.

# %% tags=["run"]
by_hand = 4 * (256 * 13**2 + 256 * 6**2 + 4096 + 4096 + 1000)


# %% [markdown]
# Now on real ranks: of our four, two have a tower. To be quick, fc6 and fc7 are 512 wide here, the convolutions those of 2012.
# The towers run forward and back, and outputs and all gradients are held against the whole network in one process.

# %% tags=["run"]
torch.manual_seed(0)
narrow = helpers.AlexNet(hidden=512)
images, labels = torch.randn(2, 3, 224, 224), torch.tensor([3, 141])
run = parallel.compare_towers(ranks, narrow, inputs=images, targets=labels, loss=cross_entropy)
assert run.agreement.equal
print(f"outputs and gradients are less than {run.agreement.tolerance:g} from those of one process")
print(f"parameters a rank: {run.rank_parameters}, of {sum(each.numel() for each in narrow.parameters()):,}")

# %% tags=["look"]
counted = {each.layer: each.moved_bytes // run.batch for each in run.gathered}
narrower = 4 * 2 * (4096 - 512)
moved.reveal(modelled=by_hand, counted=sum(counted.values()) + narrower)
print(counted)

# %% [markdown] tags=["explain"]
# The run used 512-wide fc6 and fc7; we add the bytes that the full 4096 would have moved. A batch of 128 moves all of them 128
# times, and the gradients travel back. Outputs and gradients are equal within $10^{-5}$, and not bit for bit: the terms of two
# ranks are added in another order than in one process, and a convolution with 48 outputs may be computed by another algorithm than
# one with 96 (that depends on the processor).
#
# ### What went wrong here? A gradient counted twice
#
# In the backward pass of a gather, each rank knows what *its* tower makes of the values, so the terms of both ranks must be added.
# This program does so everywhere:


# %% tags=["look"]
def always_added(values, _place):
    return parallel.gather_towers(values, "fc6")


wrong = parallel.compare_towers(
    ranks, narrow, inputs=images, targets=labels, loss=cross_entropy, gather=always_added
).agreement
print(f"outputs are off by {wrong.output_difference:.2f} of themselves, a gradient by {wrong.gradient_difference:.2f}")

# %% [markdown] tags=["explain"]
# The forward pass is right, so the loss looks right. But both ranks compute the *same* loss from the gathered logits: each has the
# whole gradient there already, and adding makes it twice as large, with all gradients before it. Plain SGD then trains as if at
# twice the learning rate. Adam divides by the size of the gradients, so it hides the error all but completely. Where values are
# gathered, ask whether the ranks then do different things (add) or the same thing (do not).

# %% [markdown] tags=["slide"] minutes=1
# ## Part 2: what does each rank keep?
#
# - Weights, gradients, [optimizer state](glossary.md#optimizer-state): counted from shapes
# - Activations: a rank's part of a step, run without values
# - The other ranks exist in name alone: one process is enough
#
# A network of our own from here on: blocks of two layers, as in a transformer's feed-forward part. 16 blocks, 4096 wide and 16,384
# within, with Adam. The plan says how tensor ranks would divide each layer, by columns or by rows (Part 3 says what that means).


# %%
def make_blocks(depth, width, hidden):
    def block():
        return nn.Sequential(OrderedDict(up=nn.Linear(width, hidden), act=nn.ReLU(), down=nn.Linear(hidden, width)))

    return nn.Sequential(*(block() for _ in range(depth)))


with torch.device("meta"):
    large = make_blocks(16, 4096, 16384)
plan = layouts.tensor_plan(large)
parameters = sum(each.numel() for each in large.parameters())
print(f"{parameters:,} parameters; block 0 is split by {dict(list(plan.items())[:2])}")

# %% tags=["predict"]
kept = helpers.predict("Weights, gradients and Adam's state, float32: how many bytes on one device?", "B")
kept

# %% [markdown]
# Four layouts on 64 devices, and one on a single device. Data ranks can shard ([FSDP](glossary.md#sharding), lesson 04); tensor
# ranks divide each layer, pipeline ranks divide the row of layers into stages (Parts 3 and 4 show how). The last two layouts are
# 8 tensor x 8 pipeline ranks, and 4 x 4 x 4. `estimate_footprint` takes a rank of each stage.

# %% tags=["run"]
candidates = {
    "one device": parallel.Layout(),
    "data 64": parallel.Layout(data=64),
    "FSDP 64": parallel.Layout(data=64, sharded="parameters"),
    "tensor x pipeline": parallel.Layout(tensor=8, pipeline=8),
    "all three": parallel.Layout(data=4, tensor=4, pipeline=4, sharded="parameters"),
}
how = {"inputs": (4096, 4096), "plan": plan, "optimizer": torch.optim.Adam}
footprints = {name: layouts.estimate_footprint(large, layout, **how) for name, layout in candidates.items()}

# %% tags=["look"]
[one] = footprints["one device"].ranks
kept.reveal(modelled=(4 + 4 + 8) * parameters, counted=one.total_bytes - one.activation_bytes)

# %% tags=["look", "slide", "slide-output"] minutes=1
kinds = {"weights": "parameter", "gradients": "gradient", "Adam": "optimizer", "saved": "activation", "all": "total"}
sizes = {}
for name, footprint in footprints.items():
    fullest = max(footprint.ranks, key=lambda rank: rank.total_bytes)
    sizes[name] = {"fullest": f"stage {fullest.stage} of {footprint.pipeline}"}
    sizes[name] |= {kind: units.text(getattr(fullest, f"{key}_bytes"), "B") for kind, key in kinds.items()}
pd.DataFrame(sizes).T

# %% tags=["look"]
for name in ("tensor x pipeline", "all three"):
    staged = footprints[name]
    saved = ", ".join(units.text(rank.activation_bytes, "B") for rank in staged.ranks)
    print(f"{name} ({staged.schedule}, {staged.microbatches} microbatches), saved by stage: {saved}")

# %% [markdown] tags=["explain"]
# (The 256 bytes more than modelled are Adam's counters of steps, 4 bytes for each of 64 tensors.)
#
# Plain data parallel divides only the activations: no number of such devices makes room for the weights. The other three keep nearly
# the same weights, because each cuts all of them into 64 parts. They differ in the activations saved and, as you will see, in what
# they send. In a pipeline the stages differ as well: with the schedule 1F1B of Part 4 and as many [microbatches](glossary.md#microbatch) as stages, stage 0
# keeps the activations of all of them, the last stage of one. What enters stage 0 is the batch, which is not counted; so stage 1
# may keep most.
#
# An estimate that nobody has held against a measurement is a guess, so four real ranks train a small network of the same form, and
# we ask their allocators:

# %% tags=["run"]
small = make_blocks(4, 256, 1024)
given = {"inputs": (64, 256), "plan": layouts.tensor_plan(small), "optimizer": torch.optim.Adam}
rows = {}
for name, layout in {
    "FSDP 4": parallel.Layout(data=4, sharded="parameters"),
    "tensor 4": parallel.Layout(tensor=4),
    "pipeline 4": parallel.Layout(pipeline=4),
    "tensor 2 x pipeline 2": parallel.Layout(tensor=2, pipeline=2),
}.items():
    estimated = layouts.estimate_footprint(small, layout, ranks=range(4), **given)
    measured = layouts.measure_footprint(ranks, small, layout, **given)
    rows[name] = {f"rank {rank}": (estimated.ranks[rank].total_bytes, measured.ranks[rank].total_bytes)
                  for rank in range(4)}  # fmt: skip

# %% tags=["look", "nbval-ignore-output"]
print("bytes estimated / allocated")
pd.DataFrame(rows).T.map("{0[0]:,} / {0[1]:,}".format)

# %% tags=["explain"]
for name, by_rank in rows.items():
    ratios = [measured / estimated for estimated, measured in by_rank.values()]
    print(f"{name}: four ranks allocated {min(ratios):.2f} to {max(ratios):.2f} of the estimate")

# %% [markdown] tags=["slide"] minutes=2
# ## Part 3: inside a layer
#
# - $f(X A)\,B = f(X A_1)\,B_1 + f(X A_2)\,B_2$
# - $A_1$ and $A_2$ are columns of $A$, $B_1$ and $B_2$ rows of $B$
#
# This is [tensor parallelism](glossary.md#tensor-parallelism) (Shoeybi and others, *Megatron-LM*, 2019). A column of $A$ makes a
# number of the hidden layer, whole, so that $f$ may be applied to it at once; a row of $B$ makes a term of the sum. Between the two nothing is
# sent. The obvious alternative puts the pieces together after each layer. Each way of putting them together is a
# [collective](glossary.md#collective). Four ranks, a block of two layers, forward and back:

# %% tags=["predict"]
messages = helpers.predict("How many collectives in all, forward and back, does column-then-row need?", "calls")
messages

# %% tags=["run"]
torch.manual_seed(1)
block = nn.Sequential(OrderedDict(norm=nn.LayerNorm(64), up=nn.Linear(64, 256), act=nn.ReLU(), down=nn.Linear(256, 64)))
tokens, wanted = torch.randn(8, 16, 64), torch.randn(8, 16, 64)
plans = {
    "gathered each time": {"up": "gathered", "down": "gathered"},
    "column, then row": {"up": "column", "down": "row"},
    "sequence parallel": {"norm": "sequence", "up": "column", "down": "row"},
}
split = {
    name: parallel.compare_tensor_parallel(
        ranks, block, plan=plan, inputs=tokens, targets=wanted, loss=mse_loss, sequence="norm" in plan
    )
    for name, plan in plans.items()
}
assert all(each.agreement.equal for each in split.values())

# %% tags=["look"]
traffic = parallel.model_tensor_traffic(block, plans["column, then row"], inputs=tokens.shape, tensor=4)
both = [sum(each.calls for way in ("forward", "backward") for each in getattr(found, way).collectives)
        for found in (traffic, split["column, then row"].traffic)]  # fmt: skip
messages.reveal(modelled=both[0], counted=both[1])

# %% tags=["look"]
calls = [
    {"plan": name, "pass": way, "collective": each.collective, "calls": each.calls, "bytes": f"{each.size_bytes:,}"}
    for name, run in split.items()
    for way in ("forward", "backward")
    for each in getattr(run.traffic, way).collectives
]
pd.DataFrame(calls).set_index(["plan", "pass"])

# %% [markdown] tags=["explain"]
# All three compute what one process computes. Column-then-row needs one [all-reduce](glossary.md#all-reduce) forward, of the
# output's terms, and one back, of the input's gradient. The first stands in the way: the next layer needs the sum. Behind the
# second a program can hide computing, because nobody waits for the gradient of the weights; Megatron-LM computes it while the sum
# is on its way. That leaves a wait in every block, and is why tensor ranks sit on the fastest link of the machine.
#
# ### Sequence parallel
#
# Between the blocks all four ranks hold the same tokens and do the same layer norm. [Sequence
# parallelism](glossary.md#sequence-parallelism) divides the tokens there (Korthikanti and others, *Reducing Activation Recomputation
# in Large Transformer Models*, 2022). An all-reduce is a [reduce-scatter](glossary.md#reduce-scatter) and an
# [all-gather](glossary.md#all-gather); the tokens stay scattered in between. Each of the two sends half of an all-reduce of the same
# buffer:

# %%
sent = {}
for name in ("column, then row", "sequence parallel"):
    halves = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    run = split[name].traffic
    sent[name] = sum(halves[each.collective] * each.size_bytes * 3 // 4
                     for way in (run.forward, run.backward) for each in way.collectives)  # fmt: skip
print(sent)
print(f"the gather at the end of the net, so that we can compare: {tokens.nbytes * 3 // 4:,}")

# %% [markdown] tags=["explain"]
# A rank sends as many bytes as before, plus one all-gather at the end of this net of one block; in a longer network that gather
# disappears. What is won is memory: each rank keeps a fourth of the activations of each norm, dropout and residual.

# %% [markdown] tags=["slide"] minutes=1
# ### What went wrong here? A split that computes nothing less
#
# PyTorch's own [FLOP](glossary.md#flop) counter, on one of four ranks:

# %% tags=["slide-output"]
run = split["column, then row"]
print(f"PyTorch's FlopCounterMode: {run.flop_counter_flops:,} FLOP")
print(f"in the products really computed: {run.rank_flops:,} FLOP")
print(f"parameters on this rank: {run.rank_parameters[0]:,} of {run.parameters:,}")

# %% [markdown] tags=["explain"]
# The counter sees a `DTensor`, one tensor that lies on four ranks, before it is split: it counts the whole product on every rank.
# A utilisation made of it is four times too good. (The second line counts the products of plain tensors to which each DTensor hands
# its work.) Shapes mislead in the same way: a DTensor's `.shape` is that of the whole tensor, not of this rank's part.
#
# Widths must divide. What happens with 66 columns on 4 ranks?

# %%
odd = nn.Sequential(OrderedDict(up=nn.Linear(64, 66), act=nn.ReLU(), down=nn.Linear(66, 64)))
try:
    parallel.compare_tensor_parallel(
        ranks, odd, plan=plans["column, then row"], inputs=tokens, targets=wanted, loss=mse_loss
    )
except ValueError as error:
    print(error)
print("cut by torch.chunk, as DTensor does:", [len(part) for part in torch.arange(66).chunk(4)])

# %% [markdown] tags=["explain"]
# The first line is this course's own check; DTensor would go on, and one rank would wait for the three others. That is why widths
# and vocabularies are padded to multiples.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 4: a pipeline
#
# - Stage $s$ has the layers of rank $s$
# - Only the boundary moves: activations forward, gradients back
# - But stage 3 waits for stage 2, and stage 2 for stage 1
#
# [Pipeline parallelism](glossary.md#pipeline-parallelism) sends least of all: one tensor a boundary. The naive form has a whole
# batch go through the stages one after the other. Our devices sleep: forward 15 ms, backward 30 ms for a fourth of the batch.

# %% tags=["predict"]
naive_busy = helpers.predict("Four stages, the batch in one piece: what share of the time is a device busy?", "%")
naive_busy

# %%
stages, forward_s, backward_s = 4, 15e-3, 30e-3
naive = parallel.pipeline_schedule("gpipe", ranks=4, microbatches=1, forward_s=4 * forward_s, backward_s=4 * backward_s)
gpipe = parallel.pipeline_schedule("gpipe", ranks=4, microbatches=4, forward_s=forward_s, backward_s=backward_s)

# %% tags=["slide", "slide-output"] minutes=1
drawn = plotting.gantt(naive.timeline.activities, title="Modelled: the batch in one piece")
plotting.show(
    drawn, alt="Four lanes: forward passes go down like stairs, backward passes come up; one at a time works."
)

# %% [markdown]
# The remedy is to cut the batch into [microbatches](glossary.md#microbatch): while stage 1 has the first, stage 0 takes the second
# (GPipe: Huang and others, 2019). The gradients of the microbatches add up, so that the result is the same.

# %% tags=["slide", "slide-output"] minutes=1
drawn = plotting.gantt(gpipe.timeline.activities, title="Modelled: GPipe, the batch in four microbatches")
plotting.show(drawn, alt="Four lanes: the passes of four microbatches overlap; triangles of idle time remain.")


# %% [markdown]
# What remains idle is the [bubble](glossary.md#bubble). Now both on four ranks that sleep, by `torch.distributed.pipelining`:


# %% tags=["run", "nbval-ignore-output"]
def run_pipeline(name, microbatches, chunks=1, scale=1.0):
    times = {"forward_s": scale * forward_s / chunks, "backward_s": scale * backward_s / chunks}
    weight = {"weight_s": times["backward_s"] / 2} if name == "zero_bubble" else {}
    net, batch = parallel.sleeping_net(stages * chunks, **times, **weight), torch.ones(microbatches, 1)
    how = {"microbatches": microbatches, "chunks": chunks}
    run = parallel.execute_schedule(ranks, name, net=net, inputs=batch, targets=batch, loss=mse_loss, **how)
    return parallel.pipeline_schedule(name, ranks=4, **how, **times), run.schedule


one_piece, four_parts = run_pipeline("gpipe", 1, scale=4)[1], run_pipeline("gpipe", 4)[1]
for _ in range(3):  # a busy machine may hold up a run: then it is repeated
    if four_parts.duration_s > 0.7 * one_piece.duration_s:
        four_parts = run_pipeline("gpipe", 4)[1]
# %% tags=["look", "nbval-ignore-output"]
naive_busy.reveal(modelled=100 / stages, simulated=100 * (1 - one_piece.bubble_share))

# %% tags=["explain"]
print(f"one device alone: {units.text(16 * (forward_s + backward_s), 's')}; four, the batch in one piece: "
      f"{units.text(one_piece.duration_s, 's')}, in four microbatches: {units.text(four_parts.duration_s, 's')}")  # fmt: skip

# %% [markdown] tags=["explain"]
# In one piece a device works a fourth of the time: four devices, and the speed of one. With $m$ microbatches on $p$ stages, a step
# lasts $m + p - 1$ turns in place of $m$:
#
# $$\frac{\text{idle}}{\text{busy}} = \frac{p - 1}{m}$$

# %% tags=["predict"]
bubble_16 = helpers.predict("4 stages, 16 microbatches: idle time in % of busy time?", "%")
bubble_16

# %% tags=["run", "nbval-ignore-output"]
pipelines = {4: (gpipe, four_parts)} | {m: run_pipeline("gpipe", m) for m in (8, 16)}
assert all(run.order(rank) == model.order(rank) for model, run in pipelines.values() for rank in range(4))
bubble_16.reveal(
    modelled=100 * parallel.bubble_ratio("gpipe", ranks=4, microbatches=16),
    simulated=100 * pipelines[16][1].bubble_ratio,
)

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_three(
    [str(m) for m in pipelines],
    {
        "modelled": [round(100 * model.bubble_ratio, 1) for model, _ in pipelines.values()],
        "simulated": [round(100 * run.bubble_ratio, 1) for _, run in pipelines.values()],
    },
    unit="",
    title="GPipe on 4 sleeping ranks: the bubble",
    xlabel="microbatches",
)
drawn.axes[0].set_ylabel("idle time in % of busy time")
plotting.show(
    drawn,
    alt="Bars of modelled and simulated bubble for 4, 8 and 16 microbatches; the model halves from each to the next.",
)

# %% [markdown] tags=["explain"]
# The simulated bubble is larger, because a message between processes takes time as well, in particular where other programs use the
# cores. So why not a thousand microbatches? Cut out of the same batch they are small: they use a device badly, and each pays for its
# messages. Of the same size, as here, they make a larger batch, and there is the memory: GPipe does all forward passes first, so that
# a stage keeps the activations of *all* microbatches.

# %% [markdown] tags=["slide"] minutes=2
# ### Four schedules
#
# - **GPipe**: all forward, then all backward
# - **1F1B**: backward as soon as one can be
# - **interleaved**: two thin stages a rank
# - **zero bubble**: the weights' gradients fill the gaps
#
# 1F1B is PipeDream's (Narayanan and others, 2019), here with a wait at the end of each step; interleaved: Narayanan and others,
# *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, 2021. Zero bubble: Qi and others, *Zero Bubble
# Pipeline Parallelism*, 2024; we take its ZB-H1. A backward pass computes two things: the gradient of its input, for which the
# stage before waits, and that of the weights, for which nobody waits. The second can be put off.

# %% tags=["predict"]
alive = helpers.predict(
    "With 1F1B, 4 stages and 8 microbatches: of how many microbatches does stage 0 keep activations at the same time?",
    "microbatches",
)
alive

# %% tags=["run"]
kinds = {"gpipe": {}, "1f1b": {}, "interleaved": {"chunks": 2}, "zero_bubble": {}}
scheduled = {"gpipe": pipelines[8]}
scheduled |= {name: run_pipeline(name, 8, **how) for name, how in list(kinds.items())[1:]}

# %% tags=["look"]
alive.reveal(
    modelled=parallel.live_activations("1f1b", rank=0, ranks=4, microbatches=8),
    counted=scheduled["1f1b"][1].loads[0].live_activations,
)

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.gantt(scheduled["1f1b"][1].timeline.activities, title="Simulated: 1F1B, 8 microbatches")
plotting.show(drawn, alt="Four lanes: after a few forward passes, forward and backward passes take turns on each rank.")

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.gantt(scheduled["zero_bubble"][1].timeline.activities, title="Simulated: zero bubble, 8 microbatches")
plotting.show(drawn, alt="Four lanes: as before, and passes for the weights alone stand where ranks were idle.")

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
table = {
    name: {
        "modelled": f"{model.bubble_ratio:.1%}",
        "simulated": f"{run.bubble_ratio:.1%}",
        "alive": [each.live_activations for each in run.loads],
    }
    for name, (model, run) in scheduled.items()
}
print("idle over busy time, and the microbatches alive on ranks 0 to 3")
pd.DataFrame(table).T

# %% tags=["explain"]
for name, (model, run) in scheduled.items():
    keep = [[each.live_activations for each in found.loads] for found in (model, run)]
    print(f"{name}: alive {keep[0]} modelled, {keep[1]} counted")

# %% [markdown] tags=["explain"]
# By the model 1F1B has exactly the bubble of GPipe: it saves memory, not time. Interleaved halves the bubble, and keeps more: its
# counts are of stages half as thick, so 11 of them are the activations of 5.5 microbatches; every boundary is crossed twice. Zero
# bubble keeps a full $p$ on every rank, and has a third of the bubble where the three parts of a pass take equally long. (In its
# simulated chart rank 0 shows whole backward passes as one bar: nobody waits for its input's gradient, so PyTorch puts all off.)
#
# Move the sliders. Which is the smallest number of microbatches with less than a tenth of bubble for your number of stages?


# %%
def draw_schedule(schedule, stages, microbatches):
    chunks = 2 if schedule == "interleaved" else 1
    model = parallel.pipeline_schedule(
        schedule, ranks=stages, microbatches=microbatches, chunks=chunks, forward_s=1 / chunks, backward_s=2 / chunks
    )
    most = max(each.live_activations for each in model.loads) / chunks
    title = f"{schedule}: idle {model.bubble_ratio:.0%} of busy, {most:g} microbatches alive"
    return plotting.gantt(model.timeline.activities, title=title, unit="", xlabel="time, in forward passes")


helpers.interactive_figure(
    draw_schedule,
    {"schedule": list(kinds), "stages": [2, 4, 8], "microbatches": [8, 16, 24, 32]},
    views=[
        {"schedule": "gpipe", "stages": 4, "microbatches": 8},
        {"schedule": "1f1b", "stages": 4, "microbatches": 8},
        {"schedule": "interleaved", "stages": 4, "microbatches": 8},
    ],
    alt=lambda schedule, stages, microbatches: (
        f"A lane for each of {stages} stages: the modelled passes of {microbatches} microbatches under {schedule}."
    ),
)

# %% [markdown] tags=["slide"] minutes=1
# ### What went wrong here? A pipeline that trains another network
#
# Layers that compute, four stages, four microbatches. Once with layer norm, once with batch norm:


# %% tags=["look", "slide-output"]
def stage(norm):
    return nn.Sequential(nn.Linear(16, 16), norm, nn.Tanh())


inputs, targets = torch.randn(32, 16), torch.randn(32, 16)
batch = {"inputs": inputs, "targets": targets, "loss": mse_loss}
for norm in (nn.LayerNorm, nn.BatchNorm1d):
    net = nn.Sequential(*(stage(norm(16)) for _ in range(4)))
    run = parallel.execute_schedule(ranks, "1f1b", net=net, microbatches=4, **batch)
    apart = parallel.compare_with_one_process(run, net, **batch).gradient_difference
    print(f"{norm.__name__}: a gradient is off by {apart:.1f} of itself at most")

# %% [markdown] tags=["explain"]
# Batch norm takes its mean over what it sees, and that is one microbatch of 8. Here no all-reduce can mend it, as it did in lesson
# 04: the microbatches come one after the other, and the first has gone on long before the last arrives.
#
# What if there are fewer microbatches than stages? 1F1B itself can do with them, and Megatron-LM runs it so. PyTorch refuses, and
# so does this library:

# %%
try:
    parallel.pipeline_schedule("1f1b", ranks=4, microbatches=2)
except ValueError as error:
    print(error)

# %% [markdown] tags=["slide"] minutes=1
# ## Part 5: meshes
#
# A [mesh](glossary.md#mesh) gives each rank several numbers: its row and its column.
#
# Tensor ranks speak most often, so they are neighbours, on the fastest link; data ranks speak once a step. Four ranks as 2 data x 2
# tensor:

# %% tags=["slide-output"]
layout = parallel.Layout(data=2, tensor=2)
for rank in range(layout.ranks):
    _, data, tensor = layout.place(rank)
    print(f"rank {rank}: shard {data} of the batch, part {tensor} of each layer")

# %% tags=["predict"]
averaged = helpers.predict("2 data x 2 tensor: what share of all gradients does a rank average?", "%")
averaged

# %% tags=["run"]
plain = nn.Sequential(OrderedDict(list(block.named_children())[1:]))
mesh = parallel.compare_tensor_parallel(
    ranks, plain, plan=plans["column, then row"], inputs=tokens, targets=wanted, loss=mse_loss, data=2
)
assert mesh.agreement.equal
averaged.reveal(modelled=50, counted=100 * mesh.averaged_bytes / (4 * mesh.parameters))

# %% tags=["look"]
for kind, each in (("between tensor ranks", mesh.traffic.forward), ("back", mesh.traffic.backward)):
    print(f"{kind}: {each.size_bytes('all_reduce'):,} bytes in {each.calls('all_reduce')} all-reduce(s)")
print(f"between data ranks, once a step: {mesh.averaged_bytes:,} of {4 * mesh.parameters:,} bytes of gradient")

# %% [markdown] tags=["explain"]
# A bit more than a half: the bias of a row split is whole on every tensor rank. Nothing goes back between the tensor ranks here, for `up` is now
# the first layer, and nobody asks for the gradient of the batch. Each traffic divides by the other dimension: all-reduces carry half the batch,
# gradients are half of the layers. A mesh larger than the ranks is refused:

# %%
try:
    parallel.compare_tensor_parallel(
        ranks, plain, plan=plans["column, then row"], inputs=tokens, targets=wanted, loss=mse_loss, data=2, tensor=4
    )
except ValueError as error:
    print(error)

# %% [markdown] tags=["slide"] minutes=2
# ## Part 6: along the sequence
#
# Each rank has a part of the tokens. Its queries stay; keys and values go round the ring.
#
# In attention every token looks at all others, so the table of scores grows with the square of the length. In [ring
# attention](glossary.md#ring-attention) (Liu, Zaharia and Abbeel, 2023) no rank ever has all keys, nor a whole row of scores. The
# difficulty: a softmax needs the sum over *all* keys, and they come in blocks. So each rank keeps, beside its output so far, the sum
# so far (as its logarithm, for $e^{100}$ fits into no float32), and rescales, for queries of $d$ numbers:
#
# $$o = \frac{s_1 o_1 + s_2 o_2}{s_1 + s_2}, \qquad s_i = \sum_{k \in \text{block } i} e^{q \cdot k / \sqrt{d}}$$

# %% tags=["predict"]
ring_growth = helpers.predict("From 2 to 4 ranks, same sequence: how many times the bytes a rank sends forward?", "x")
ring_growth


# %% tags=["run"]
def plain_mean(output, log_sum, more, more_log_sum):
    first = torch.isinf(log_sum)
    return torch.where(first, more, (output + more) / 2), torch.where(first, more_log_sum, log_sum)


torch.manual_seed(2)
query, key, value = torch.randn(3, 1, 2, 32, 16)
merges = {"by the running sum": None, "by the plain mean": plain_mean}
rings = {name: parallel.compare_ring_attention(ranks, query, key, value, merge=merge) for name, merge in merges.items()}
for name, each in rings.items():
    print(f"merged {name}: outputs are off by {each.agreement.output_difference:.1f} of the largest")

# %% tags=["look"]
ring_bytes = {p: parallel.model_ring_traffic(query.shape, ranks=p).forward_bytes for p in (2, 4)}
ring_growth.reveal(modelled=ring_bytes[4] / ring_bytes[2])
sent = rings["by the running sum"].sent.forward_bytes
print(f"modelled on 2 and 4 ranks: {ring_bytes[2]:,} and {ring_bytes[4]:,} bytes; counted on 4: {sent:,}")

# %% [markdown] tags=["explain"]
# A rank passes on all keys and values but one block: $\frac{p-1}{p}$ of them, less than all however many ranks there are, while
# its queries, and the scores that it computes in all, shrink as $1/p$. **What went wrong** with the plain mean: a block whose keys fit the query well must count for more.
#
# With a causal mask a token sees only earlier ones:

# %% tags=["explain"]
causal = parallel.compare_ring_attention(ranks, query, key, value, causal=True)
assert causal.agreement.equal
print(f"blocks of scores by rank: {causal.blocks}")
busy = sum(causal.blocks) / (len(causal.blocks) * max(causal.blocks))
print(f"mean work of the ranks over the most: {busy:.1%}")
print("cut into 8, pieces r and 7 - r on rank r:", [(rank + 1) + (8 - rank) for rank in range(4)])

# %% [markdown] tags=["explain"]
# The last rank works four times as much as the first, and in a ring all wait for the slowest. The repair gives each rank one early and one late
# piece of the sequence (*The Llama 3 Herd of Models*, 2024, section 3.3.2): piece $i$, counted from 0, sees $i + 1$ pieces, and the sum is the
# same on all ranks.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 7: experts
#
# - Many small networks; a router sends each token to one
# - Parameters grow, the work of a token does not
# - The tokens travel: two all-to-alls
#
# This is a [mixture of experts](glossary.md#mixture-of-experts) (Shazeer and others, 2017). In an *all-to-all* each rank sends a
# different part to each other rank. Messages need a fixed size, so each expert has places for so many tokens of a rank, its
# *capacity*; what comes late is dropped (Fedus, Zoph and Shazeer, *Switch Transformers*, 2021). 64 tokens, 8 experts, and exactly as many places
# as there are tokens:

# %% tags=["predict"]
dropped = helpers.predict(
    "64 tokens, 8 experts, 64 places, a router that has learned nothing: how many are dropped?", "tokens"
)
dropped

# %% tags=["run"]
torch.manual_seed(3)
tight = parallel.Experts(32, 64, experts=8, capacity_factor=1.0)
many = torch.randn(64, 32)
mixed = parallel.compare_experts(ranks, tight, many)
assert mixed.agreement.equal  # to one process in which each rank's tokens queue by themselves

# %% tags=["look"]
dropped.reveal(modelled=0, counted=mixed.dropped)

# %% tags=["look"]
pd.DataFrame([{"expert": e.expert, "rank": e.rank, "tokens": e.tokens, "dropped": e.dropped} for e in mixed.loads])

# %% [markdown] tags=["explain"]
# The model that says 0 counts places and forgets that tokens choose: some experts are asked for too often, others have empty
# places, which travel all the same. More places drop fewer tokens and send more bytes:

# %% tags=["look"]
rows = {}
for factor in (1.0, 2.0, 4.0):
    roomy = parallel.Experts(32, 64, experts=8, capacity_factor=factor)
    roomy.load_state_dict(tight.state_dict())
    run = parallel.compare_experts(ranks, roomy, many)
    modelled = parallel.model_expert_traffic(roomy, tokens=16, ranks=4).forward_bytes
    rows[factor] = {"places": run.capacity, "dropped": run.dropped, "modelled B": modelled,
                    "sent B": run.sent.forward_bytes}  # fmt: skip
pd.DataFrame(rows).T.rename_axis("capacity factor").astype(int)

# %% [markdown] tags=["explain"]
# **What went wrong here?** Nothing reports a dropped token: the layer adds nothing to it, and it goes on by the residual path alone.
# And since each rank's tokens queue by themselves, *which* tokens are dropped depends on the number of ranks: a run on 8 ranks trains another network
# than one on 4.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 8: choosing
#
# | cut | a rank keeps | it sends | it waits for |
# |:--|:--|:--|:--|
# | data | all | gradients | a [bucket](glossary.md#bucket) |
# | FSDP | $1/p$ | weights twice, gradients | each layer's weights |
# | tensor | $1/p$ | activations of each block | each all-reduce |
# | pipeline | its stage | one boundary | the bubble |
#
# Which of these is fastest depends on the network, the link, and the memory together. `choose` models every product of them that
# four devices allow, throws out what does not fit, and sorts. Our devices take 240 ms for the whole batch of 32 rows; the link has
# 10 MB/s and 1 ms; each has 2 MiB. A bucket of gradients is one layer, as FSDP's unit is, so that the two send in pieces of the same
# size; pipelines run 1F1B, with the number of microbatches that is fastest.

# %%
net = make_blocks(4, 64, 256)
plan = layouts.tensor_plan(net)
one_flop = layouts.layer_work(net, (32, 64), flops_per_s=1.0)
flops_per_s = sum(each.forward_s + each.backward_s for each in one_flop) / 0.24
link = parallel.Link(bandwidth_bytes_per_s=10e6, latency_s=1e-3)
one_layer = 1  # a bucket is full with the first layer in it


def choose(link=link, memory="2 MiB", rows=32, bucket_bytes=one_layer):
    how = {"inputs": (rows, 64), "flops_per_s": flops_per_s, "bucket_bytes": bucket_bytes}
    return layouts.choose(net, 4, link, memory, **how)


# %% tags=["predict"]
best_of_four = helpers.predict("How many times faster than one device will the best layout of 4 devices be?", "x")
best_of_four

# %% tags=["run"]
choice = choose()
tried = [row for row in choice.rows if row.strategy in (choice.best, "data 4", "tensor 4", "pipeline 4")]
values = torch.randn(32, 64)
trained = {"inputs": values, "targets": values, "loss": mse_loss}
work = layouts.layer_work(net, (32, 64), flops_per_s=flops_per_s, plan=plan)
cases = [(row.layout, row.microbatches) for row in tried]
runs = layouts.execute_strategies(
    ranks, net, cases, layers=work, link=link, plan=plan, bucket_bytes=one_layer, **trained
)

# %% tags=["look", "nbval-ignore-output"]
alone_s = next(row.step_s for row in choice.rows if row.strategy == "one device")
best_of_four.reveal(modelled=choice.speedup, simulated=alone_s / min(run.step_s for run in runs))

# %% tags=["look"]
parts = ("step", "compute", "tensor", "bubble", "exposed")
picked = {
    row.strategy: {f"{part} ms": f"{1000 * getattr(row, f'{part}_s'):.1f}" for part in parts}
    | {"microbatches": row.microbatches, "needs": units.text(row.largest_bytes, "B")}
    for row in choice.rows
    if row.layout.ranks in (1, 4)
}
pd.DataFrame(picked).T

# %% [markdown] tags=["explain"]
# This is the model's step time of the rank that ends last: its computing, its waits for all-reduces of tensor ranks, its waits for
# other stages, and the traffic of data ranks that no computing hides. (Stage 0 computes a little less, because nobody asks for the
# gradient of the batch.) A model of so many parts deserves distrust, so four ranks trained with the first row and with three simple
# layouts, and we looked at the clock:

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_three(
    [row.strategy.replace(" x ", "\nx ") for row in tried],
    {"modelled": [row.step_s for row in tried], "simulated": [run.step_s for run in runs]},
    unit="s",
    title=f"A step of 4 devices; one alone takes {1000 * alone_s:.0f} ms",
    xlabel="layout",
)
plotting.show(
    drawn, alt="Bars of modelled and simulated step time of four layouts; the modelled times grow to the right."
)

# %% tags=["explain"]
alone = layouts.train_alone(net, steps=3, **trained)
for row, run in zip(tried, runs, strict=True):
    assert all(torch.allclose(run.parameters[name], each, rtol=0, atol=1e-6) for name, each in alone.items())
    rank_0 = layouts.strategy_traffic(work, row.layout, microbatches=row.microbatches, bucket_bytes=one_layer)
    sent = run.data_bytes + run.tensor_bytes + run.pipeline_bytes
    print(f"{row.strategy}: rank 0 sent {sent:,} bytes, modelled {rank_0.sent_bytes:,.0f}")

# %% [markdown] tags=["explain"]
# Each trains the parameters that one process trains, by other messages. The clock may put another layout first than the model did. **What
# went wrong?** The model knows the link's time for a message, and not the machine's: to wake a process, to copy, to notice the
# arrival. A layout of many collectives meets that often, and one of few does not. So measure what a message costs here, add it to the
# link, and model again:

# %% tags=["run", "nbval-ignore-output"]
overhead = parallel.measure_message_overhead(ranks, repeats=10)
with_messages = {row.layout: row.step_s for row in choose(link=overhead.added_to(link)).rows}

# %% tags=["look", "nbval-ignore-output"]
table = {
    row.strategy: {"link alone": row.step_s, "and messages": with_messages[row.layout], "simulated": run.step_s}
    for row, run in zip(tried, runs, strict=True)
}
pd.DataFrame(table).T.map(lambda seconds: units.text(seconds, "s"))


# %% [markdown] tags=["explain"]
# What is left between the last two columns is, we think, the processor: four ranks share the cores of your machine with all else
# that runs there.
#
# Now change one thing at a time. Which layout wins where the link is faster or slower, the memory smaller, the batch larger?

# %% tags=["look", "slide", "slide-output"] minutes=2
settings = {
    "link 1 GB/s, 10 us": {"link": parallel.Link(1e9, 1e-5)},
    "link 1 MB/s": {"link": parallel.Link(1e6, 1e-3)},
    "20 ms a message": {"link": parallel.Link(10e6, 20e-3)},
    "memory 340 KiB": {"memory": "340 KiB"},
    "batch of 128 rows": {"rows": 128},
    "buckets of 100 kB": {"bucket_bytes": 100_000},
}
won = {"10 MB/s, 1 ms, 2 MiB, 32 rows": choice} | {name: choose(**changed) for name, changed in settings.items()}
pd.DataFrame({name: {"chosen": each.best, "speedup": f"{each.speedup:.2f}"} for name, each in won.items()}).T

# %% tags=["look"]
fast = [row.step_s for row in won["link 1 GB/s, 10 us"].rows if row.layout.ranks == 4]
print(f"on the fast link, all {len(fast)} layouts of four devices: {1000 * min(fast):.1f} to {1000 * max(fast):.1f} ms")

# %% [markdown] tags=["explain"]
# No layout wins everywhere. A setting that nobody thinks of may decide: FSDP sends half as much again as plain data parallel, and
# wins where DDP waits for buckets of 100 kB. With a large batch plain data parallel wins: its traffic is the size of the weights,
# whatever the batch. On a slow link or a small memory it is the pipeline, which sends one boundary and keeps one stage. With 20 ms a message hardly anything is
# gained. On a fast link every layout is nearly as good as any other, and the choice is free for memory.
#
# Your turn: put your own network, link and memory here. Any `nn.Sequential` will do, and it may be on `meta`.

# %%
with torch.device("meta"):
    yours = make_blocks(4, 4096, 16384)
your_link = parallel.Link(bandwidth_bytes_per_s=50e9, latency_s=1e-5)
your_choice = layouts.choose(
    yours, 4, your_link, "16 GiB", inputs=(8192, 4096), flops_per_s=1e14, optimizer=torch.optim.Adam
)
ranks.close()
pd.DataFrame(
    {row.strategy: {"ms": f"{1000 * row.step_s:.1f}", "needs": units.text(row.largest_bytes, "B"), "why": row.reason}
     for row in your_choice.fitting()[:5]}
).T  # fmt: skip

# %% [markdown] tags=["explain"]
# The numbers above (50 GB/s, $10^{14}$ FLOP/s, 16 GiB) are assumptions, not measurements: put in what lesson 02 measured on your machine.
# What the model leaves out stands in its docstring: the optimizer's arithmetic, the lower speed of small products, links that
# several kinds of traffic share.
#
# The [exercises](exercises/05_model_parallel_exercises.ipynb) ask you to count what a pipeline keeps, to find a
# rank's neighbours in a mesh, and to say when a pipeline ends.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Every cut trades memory for bytes to send and time to wait.
# 2. Tensor parallel sends activations; a pipeline waits in its bubble.
# 3. Choose a layout by counting all three.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $p$ ranks, $m$ microbatches, $v$ stages a rank, $n$ bytes of a whole buffer; passes take $F$ and $B$, of which $W$ is for the weights.
#
# | quantity | formula |
# |---|---|
# | column then row | $f(XA)B = \sum_r f(XA_r)\,B_r$ for weights $A$ and $B$ and any $f$ of single numbers; forward one all-reduce of $Y$, back one of the gradient of $X$ |
# | sent by a rank, all-reduce | $2\frac{p-1}{p}n$; reduce-scatter or all-gather: half |
# | GPipe, 1F1B: idle over busy | $\frac{p-1}{m}$, a share of $\frac{p-1}{m+p-1}$ |
# | interleaved | $\frac{p-1}{v\,m}$ |
# | zero bubble (ZB-H1) | $\frac{(p-1)(F+B-2W)}{m(F+B)}$ |
# | alive on rank $r$ | GPipe $m$; 1F1B $\min(m, p-r)$; ZB-H1 $p$ |
# | merge of two blocks of attention | $\frac{s_1o_1+s_2o_2}{s_1+s_2}$, with $o$ a block's output and $s$ its sum of $e^{q \cdot k / \sqrt{d}}$ |
# | ring attention, sent forward | $\frac{p-1}{p}$ of all keys and values |
# | capacity of an expert | $c\,k\,\frac{\text{tokens of a rank}}{\text{experts}}$, rounded up, for $k$ experts a token and factor $c$ |
# | experts, sent forward | $2\frac{p-1}{p}$ of all places, full or not |
# | step of a layout | compute + tensor waits + bubble + data traffic that no computing hides |
