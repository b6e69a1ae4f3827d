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
#     needs: ["05", "06", "07"]
#     objectives:
#       - place|placed the groups of a mesh, so that the group that sends most gets the node
#       - count|counted what a GPU sends inside its node and through its port
#       - choose|chose the fastest of all layouts of 64 GPUs by a model of your own
#       - say|said from how many tokens and sequences on data parallelism alone is enough
#       - decide|decided into how many parts a model has to be cut before it fits
# ---

# %% [markdown] tags=["objectives"]
# # Layouts
#
# You want to train Llama 2 7B on 64 H100, which are eight nodes with eight GPUs each. You make eight copies of the model and cut each copy over eight GPUs
# by [tensor parallelism](glossary.md#tensor-parallelism). PyTorch arranges the GPUs in a single line,
# `init_device_mesh("cuda", (8, 8), mesh_dim_names=("dp", "tp"))`, where `dp` is [data parallel](05_data_parallel.ipynb) and `tp` is tensor parallel. A
# colleague writes `("tp", "dp")` instead. The program starts, and the loss falls as before. In a step of 64 sequences with 4,096 tokens each, every GPU
# still computes for 430 ms and still sends the same 63.2 GB. Inside a node it sends 450 GB/s, and to other nodes it has a port of 50 GB/s.
#
# This can happen to anybody. In April 2024 a user read such a line in torchtitan, PyTorch's own library for training large models, and opened an issue with
# the title "Wrong [mesh](glossary.md#mesh) order". The order should be "PP DP TP", where PP means [pipeline parallel](glossary.md#pipeline-parallelism), and a maintainer answered
# "good catch!" ([issue 286](https://github.com/pytorch/torchtitan/issues/286)).
#
# A *layout* says how many data [ranks](glossary.md#rank), tensor ranks and stages a training has, and which of them are neighbours.
# [Lesson 06](06_model_parallel.ipynb) found the price of each cut, and [lesson 07](07_links_in_two_levels.ipynb) found what it costs to leave a node. Now we put them together and ask how
# you choose a layout when eight GPUs become eight nodes. Our model has 32 heads and 32 layers, so we can use up to 32 tensor ranks and up to 32 stages. For
# 64 GPUs this leaves 26 layouts in powers of two. We work one of them out by hand, and after that a program tries them all.
#
# We had no 64 GPUs. The times of our example are modelled as in lessons 06 and 07, with 400 TFLOP/s for a GPU and the two rates above. Computing, waiting and
# sending come one after the other unless we say that something hides. After each answer we look at a training that others have measured.

# %% tags=["hide-input"]
import time

import pandas as pd
import torch
from torch.distributed.device_mesh import init_device_mesh

import helpers
from helpers import exercises, plotting
from helpers.links import Link
from helpers.ranks import Ranks
from helpers.studies import data_parallel, layouts

check = exercises.checks_of("layouts")
ranks = Ranks(4, device="cpu")  # four processes, two in each node


def as_ms(seconds):
    return f"{1e3 * seconds:,.0f} ms"


def named(layout):
    return "{} x {} x {}".format(*layout)


# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# What do two exchanged names cost?
#
# - 64 H100 in eight nodes, eight copies of Llama 2 7B
# - `mesh_dim_names=("dp", "tp")`, or `("tp", "dp")`
# - The same loss, and the same bytes from every GPU
#
# Write down a number before you go on.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 10]
bet = helpers.predict(
    "If the two names are exchanged, how many times as long as before does a step take?", "x"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A mesh says who is in whose group"
# ## Part 1: the neighbours
#
# Who should be neighbours? We begin with the layout of the bet, because one example by hand shows all that a program does later.
#
# - GPUs 0 to 7 are in the first node
# - The last name belongs to the rows, the first to the columns
# - A row is a node
#
# Number the GPUs from 0 to 63, so that 0 to 7 are in the first node. The line of the bet puts these numbers into a *mesh*, a table of
# eight rows and eight columns. The last name says what the GPUs of a row are to each other, and the first name says it for the GPUs of a column. With
# `("dp", "tp")` the GPUs 0 to 7 are therefore one tensor group, and together they hold one copy of the model. The GPUs 0, 8, 16 and so on up to 56 hold the
# same eighth of the weights, each for another copy, and they are one data group.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="The last name gets the node" layout="steps" smallest=12.5
plotting.play(
    [layouts.draw_names(names) for names in (("dp", "tp"), ("tp", "dp"))],
    title="64 GPUs in a mesh of 8 x 8",
    captions=[
        "A row is a node and a tensor group, and a column is a data group.",
        "With the names exchanged, each tensor group has one GPU in every node.",
    ],
    alt="Eight rows of eight GPUs; the tensor group of GPU 0 is its row, then its column.",
)

# %% [markdown]
# If you exchange the names, the rows become data groups and the columns become tensor groups, so that each copy has one GPU in every node.
#
# What does a GPU send to each group? To its tensor group it sends 1.835 MB per token (lesson 06), because each of the 32 layers has four sums of 8,192 bytes per
# token, and in a ring of eight a GPU sends 2 × 7/8 of each. Its copy gets eight of the 64 sequences, which are 32,768 tokens, so this makes 60.13 GB. To its
# data group it sends gradients and weights. We take ZeRO 1, in which the data ranks divide Adam's state
# ([lesson 05](05_data_parallel.ipynb)). They sum the gradients by a [reduce-scatter](glossary.md#reduce-scatter),
# and later they get the new weights by an [all-gather](glossary.md#all-gather). Each of these two halves of a ring sends 7/8 of the 1.75 GB that an eighth of the model has, so together
# they send 3.06 GB per step.

# %%
PARAMETERS, LAYERS, WIDTH, TOKENS = 7e9, 32, 4096, 4096  # of the model, and of a sequence
PEAK, NODE, PORT = 400e12, 450e9, 50e9  # FLOP/s, and B/s in the node and to others

# %% [markdown]
# **Your turn.** Write both bytes for any number of data ranks and tensor ranks, with 2 bytes per element. A group of one sends nothing.


# %% tags=["yours"] yours="sent_to_groups" takes=6
def sent_to_groups(data, tensor, sequences):
    """Return the bytes that a GPU sends per step to its tensor group and to its data group."""
    sums = 4 * LAYERS * 2 * WIDTH * TOKENS * sequences / data  # of a copy's tokens
    gradients = 2 * PARAMETERS / tensor
    return 2 * (tensor - 1) / tensor * sums, 2 * (data - 1) / data * gradients


# %% checks="sent_to_groups"
sent_to_groups = check(sent_to_groups)


# %% wrong="sent_to_groups" says="A copy has only sequences / data of them"
def sent_to_groups(data, tensor, sequences):
    sums = 4 * 32 * 2 * 4096 * 4096 * sequences
    return 2 * (tensor - 1) / tensor * sums, 2 * (data - 1) / data * 2 * 7e9 / tensor


# %% wrong="sent_to_groups" says="A tensor rank holds only its part of the model"
def sent_to_groups(data, tensor, sequences):
    sums = 4 * 32 * 2 * 4096 * 4096 * sequences / data
    return 2 * (tensor - 1) / tensor * sums, 2 * (data - 1) / data * 2 * 7e9


# %% wrong="sent_to_groups" says="first the bytes to the tensor group"
def sent_to_groups(data, tensor, sequences):
    sums = 4 * 32 * 2 * 4096 * 4096 * sequences / data
    return 2 * (data - 1) / data * 2 * 7e9 / tensor, 2 * (tensor - 1) / tensor * sums


# %% wrong="sent_to_groups" says="the cells below need tuple or list"
def sent_to_groups(data, tensor, sequences):
    sums = 4 * 32 * 2 * 4096 * 4096 * sequences / data
    both = 2 * (tensor - 1) / tensor * sums, 2 * (data - 1) / data * 2 * 7e9 / tensor
    return torch.tensor(both, dtype=torch.float64)


# %% right="sent_to_groups" style=1
def sent_to_groups(data, tensor, sequences):
    def ring(members, size_bytes):  # a reduce-scatter and an all-gather
        return [2 * size_bytes * (members - 1) / members]

    tokens_of_a_copy = TOKENS * (sequences / data)
    return ring(tensor, tokens_of_a_copy * WIDTH * 2 * 4 * LAYERS) + ring(
        data, PARAMETERS * 2 / tensor
    )


# %% right="sent_to_groups" style=2
def sent_to_groups(data, tensor, sequences):
    to_tensor = (1 - 1 / tensor) * 8 * LAYERS * 2 * WIDTH * TOKENS * sequences / data
    to_data = (1 - 1 / data) * 4 * PARAMETERS / tensor
    return (to_tensor, to_data)


# %% tags=["run"]
to_tensor, to_data = sent_to_groups(data=8, tensor=8, sequences=64)
computing_s = 6 * PARAMETERS * TOKENS * 64 / 64 / PEAK
in_order = {"computing": computing_s, "tensor": to_tensor / NODE, "data": to_data / PORT}
exchanged = {"computing": computing_s, "tensor": to_tensor / PORT, "data": to_data / NODE}

# %% [markdown]
# Now the times. The 64 sequences have 262,144 tokens, so each GPU computes 6 × 7·10⁹ × 262,144 / 64 [FLOP](glossary.md#flop). At 400 TFLOP/s this takes 430 ms.

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The wrong order sends 95 of 100 bytes through the ports"
bet.reveal(modelled=sum(exchanged.values()) / sum(in_order.values()))
both = {'("dp", "tp")': in_order, '("tp", "dp")': exchanged}
rows = {
    names: [*map(as_ms, parts.values()), as_ms(sum(parts.values()))]
    for names, parts in both.items()
}
groups = [f"tensor group, {to_tensor / 1e9:.2f} GB", f"data group, {to_data / 1e9:.2f} GB"]
pd.DataFrame(rows, index=["computing", *groups, "step"]).T

# %% [markdown] tags=["explain"]
# The exchanged step takes 2.6 times as long. No byte has been added. But 95 of 100 bytes go to the tensor group, and now they all pass through the ports, which
# have a ninth of the rate.
#
# We can run this on four real processes in two groups of two, whose links sleep as in lesson 07. They have a [bandwidth](glossary.md#bandwidth) of 200 MB/s
# and a [latency](glossary.md#latency) of 0.2 ms inside a group, and 10 MB/s and 5 ms between the two. In a step each process computes for 100 ms, sums 100 kB with its tensor partner 16 times, and sums 400 kB with its data partner once. The line
# of the bet makes the groups.


# %%
node, port = Link(200e6, latency_s=0.2e-3), Link(10e6, latency_s=5e-3)


def run_steps(rank, world_size, names, repeats=3):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    wires = layouts.Wires(ranks_per_node=2, node=node, port=port)
    activations, gradients = torch.ones(25_000), torch.ones(100_000)  # float32

    def step():
        time.sleep(0.1)  # computing
        for _ in range(16):
            wires.all_reduce(activations, mesh.get_group("tp"))
        wires.all_reduce(gradients, mesh.get_group("dp"))

    times_s = data_parallel.step_times(step, repeats=repeats, warm_ups=1)
    return times_s, wires.node_bytes / (repeats + 1), wires.port_bytes / (repeats + 1)


# %% tags=["run"]
orders = {names: ranks.run(run_steps, names) for names in (("dp", "tp"), ("tp", "dp"))}

# %% tags=["hide-input", "look"]
for names, results in orders.items():
    _, node_bytes, port_bytes = results[0]
    print(f"{names}: rank 0 sent {node_bytes:,.0f} B in its node, {port_bytes:,.0f} B beyond")

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Four real processes lose as the model says" numbers=[["in order: simulated ([^,]+),", "names in order, simulated"], ["exchanged: simulated ([^,]+),", "names exchanged, simulated"]]
ring_s = {  # of a tensor group's 16 sums and of a data group's, by their link
    link: (16 * 2 * link.transfer_s(50_000), 2 * link.transfer_s(200_000))
    for link in (node, port)
}
modelled_s = [0.1 + ring_s[node][0] + ring_s[port][1], 0.1 + ring_s[port][0] + ring_s[node][1]]
simulated_s = [
    data_parallel.fastest_step_s([times_s for times_s, _, _ in results])
    for results in orders.values()
]
for name, simulated, modelled in zip(
    ("in order", "exchanged"), simulated_s, modelled_s, strict=True
):
    assert simulated >= modelled
    print(f"{name}: simulated {as_ms(simulated)}, modelled {as_ms(modelled)}")
assert simulated_s[1] > 1.2 * simulated_s[0]

# %% [markdown] tags=["explain"]
# A sum of two takes two messages of half the bytes. Over the slow link the 16 sums of the wrong order therefore take 16 × 2 × (5 + 5) ms, or 320
# ms. The whole step takes 164 ms in the right order and 422 ms in the wrong one (modelled). The processes take longer in both, probably because
# real messages also take time to send and to receive.
#
# Does it happen outside a model? The authors of the Ultra-Scale Playbook cut a model of 3 billion parameters over more and more GPUs
# ([Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook), published). From 4 to 8 tensor ranks, inside a node, each GPU lost 12 % of its tokens
# per second. From 8 to 16, where the group leaves the node, it lost 43 %. Meta's order for Llama 3 has tensor parallelism innermost and data parallelism
# outermost, because the innermost one "requires the highest network bandwidth and lowest latency" ([Llama Team](https://arxiv.org/abs/2407.21783), 2024).
#
# **To remember.** The group that sends most gets the node. In our layout a GPU sends 20 times as many bytes to its tensor group as to its data group, and the
# wrong order makes a step 2.6 times as long.
#
# The tensor group now has its node. But does it deserve one?

# %% [markdown] tags=["slide"] minutes=2 headline="A good place does not make a cut useful"
# ## Part 2: the cut of a node
#
# Must a node be cut at all? We ask this next, because a good place does not make a cut useful.
#
# - Each of the 64 GPUs holds a whole copy
# - Each computes one sequence, and no tensor group sends
# - But 14 GB of gradients must be summed, not 1.75 GB
#

#
# All 14 GB of gradients have to be summed over all GPUs, eight times as much as the 1.75 GB of before. But remember the two levels of lesson 07,
# where a node first adds up what its own GPUs have.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 100]
port_bytes = helpers.predict(
    "If each GPU holds a whole copy, how many times as many bytes as in the 8 x 8 layout "
    "leave through each port?",
    "x",
)
port_bytes

# %% [markdown]
# Lesson 07 counted what such a sum sends. Here a group has `in_node` GPUs in each of its `nodes`.


# %%
def sum_bytes(in_node, nodes, size_bytes):
    """Return the bytes that a GPU sends in its node and through its port to sum a buffer."""
    inside = 2 * (in_node - 1) / in_node * size_bytes
    return inside, 2 * (nodes - 1) / nodes * size_bytes / in_node


# %% tags=["run"]
whole_copies, cut_copies = sum_bytes(8, 8, 14e9), sum_bytes(1, 8, 1.75e9)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="However a node is cut, its ports carry the same"
port_bytes.reveal(modelled=whole_copies[1] / cut_copies[1])
print(f"through each port: {whole_copies[1] / 1e9:.2f} GB and {cut_copies[1] / 1e9:.2f} GB")

# %% [markdown] tags=["explain"]
# Exactly as many. Inside the node, a reduce-scatter leaves each GPU with an eighth of the node's sum, and this eighth has 1.75 GB. Only this eighth has to meet
# its partners in the other seven nodes, so the port carries 3.06 GB again and takes 61 ms. For the other nodes it makes no difference how a node is cut inside.
# In either case a node exchanges the gradients of one whole model through its eight ports.
#
# So the two layouts differ only inside the node. With one copy per GPU, NVLink carries twice 7/8 of 14 GB, which takes 54 ms, whereas the tensor group of the
# 8 × 8 layout needed 134 ms. So the step takes 546 ms without any cut, and 625 ms with our careful 8 × 8. It also fits. ZeRO 1 keeps 4 bytes per parameter and
# 12/64 for Adam, together 29.3 GB, and the activations of one sequence take 20.1 GB (lesson 06).
#
# Now let a program try all layouts. It puts tensor ranks next to each other, then data ranks, then stages, and it counts each sequence as a
# [microbatch](glossary.md#microbatch).


# %%
def placed(data, tensor, node_gpus=8):
    """Return for the tensor group and the data group: its GPUs in a node, and its nodes."""
    tensor_in_node = min(tensor, node_gpus)
    data_in_node = min(data, node_gpus // tensor_in_node)
    return (tensor_in_node, tensor // tensor_in_node), (data_in_node, data // data_in_node)


# %% [markdown]
# **Your turn.** Write the four times of a step. A GPU computes 6 FLOP per parameter of its part and token of its copy. With $q$ stages and $b$ sequences per copy it waits for
# $(q - 1)/b$ of the time in which it computes and sums with its tensor group, because another stage is at work then. Each group sums its buffer in two levels, `sum_bytes(*group, size_bytes)`. The tensor group's buffer has only the layers of a
# stage, and the data group's has only the weights of a GPU. Stages talk through the ports (also those that share a node, which
# is little). Per token of the copy a stage sends $2(q - 1)/q$ × 8,192 bytes on average, and its tensor ranks divide them among themselves.


# %% tags=["yours"] yours="step_parts" takes=15
def step_parts(data, tensor, stages, sequences):
    """Return the seconds of computing, of waiting, inside the node and through the ports."""
    tokens = TOKENS * sequences / data  # of a copy
    computing = 6 * PARAMETERS / (tensor * stages) * tokens / PEAK
    tensor_group, data_group = placed(data, tensor)
    sums = sum_bytes(*tensor_group, 4 * LAYERS / stages * 2 * WIDTH * tokens)
    sums_s = sums[0] / NODE + sums[1] / PORT
    waiting = (stages - 1) / (sequences / data) * (computing + sums_s)
    gradients = sum_bytes(*data_group, 2 * PARAMETERS / (tensor * stages))
    boundary = 2 * (stages - 1) / stages * 2 * WIDTH * tokens / tensor
    inside, ports = sums[0] + gradients[0], sums[1] + gradients[1] + boundary
    return computing, waiting, inside / NODE, ports / PORT


# %% checks="step_parts"
step_parts = check(step_parts)


# %% wrong="step_parts" says="Stages wait for (stages - 1) / (sequences / data) of what a stage does"
def step_parts(data, tensor, stages, sequences):
    tokens = TOKENS * sequences / data
    computing = 6 * PARAMETERS / (tensor * stages) * tokens / PEAK
    tensor_group, data_group = placed(data, tensor)
    sums = sum_bytes(*tensor_group, 4 * LAYERS / stages * 2 * WIDTH * tokens)
    waiting = (stages - 1) / sequences * (computing + sums[0] / NODE + sums[1] / PORT)
    gradients = sum_bytes(*data_group, 2 * PARAMETERS / (tensor * stages))
    boundary = 2 * (stages - 1) / stages * 2 * WIDTH * tokens / tensor
    inside, ports = sums[0] + gradients[0], sums[1] + gradients[1] + boundary
    return computing, waiting, inside / NODE, ports / PORT


# %% wrong="step_parts" says="While one stage computes and sums, another waits"
def step_parts(data, tensor, stages, sequences):
    tokens = TOKENS * sequences / data
    computing = 6 * PARAMETERS / (tensor * stages) * tokens / PEAK
    waiting = (stages - 1) / (sequences / data) * computing
    tensor_group, data_group = placed(data, tensor)
    sums = sum_bytes(*tensor_group, 4 * LAYERS / stages * 2 * WIDTH * tokens)
    gradients = sum_bytes(*data_group, 2 * PARAMETERS / (tensor * stages))
    boundary = 2 * (stages - 1) / stages * 2 * WIDTH * tokens / tensor
    inside, ports = sums[0] + gradients[0], sums[1] + gradients[1] + boundary
    return computing, waiting, inside / NODE, ports / PORT


# %% wrong="step_parts" says="what a stage sends to the next one"
def step_parts(data, tensor, stages, sequences):
    tokens = TOKENS * sequences / data
    computing = 6 * PARAMETERS / (tensor * stages) * tokens / PEAK
    tensor_group, data_group = placed(data, tensor)
    sums = sum_bytes(*tensor_group, 4 * LAYERS / stages * 2 * WIDTH * tokens)
    sums_s = sums[0] / NODE + sums[1] / PORT
    waiting = (stages - 1) / (sequences / data) * (computing + sums_s)
    gradients = sum_bytes(*data_group, 2 * PARAMETERS / (tensor * stages))
    return (
        computing,
        waiting,
        (sums[0] + gradients[0]) / NODE,
        (sums[1] + gradients[1]) / PORT,
    )


# %% wrong="step_parts" says="A stage has only its own layers"
def step_parts(data, tensor, stages, sequences):
    tokens = TOKENS * sequences / data
    computing = 6 * PARAMETERS / (tensor * stages) * tokens / PEAK
    tensor_group, data_group = placed(data, tensor)
    sums = sum_bytes(*tensor_group, 4 * LAYERS * 2 * WIDTH * tokens)
    sums_s = sums[0] / NODE + sums[1] / PORT
    waiting = (stages - 1) / (sequences / data) * (computing + sums_s)
    gradients = sum_bytes(*data_group, 2 * PARAMETERS / (tensor * stages))
    boundary = 2 * (stages - 1) / stages * 2 * WIDTH * tokens / tensor
    inside, ports = sums[0] + gradients[0], sums[1] + gradients[1] + boundary
    return computing, waiting, inside / NODE, ports / PORT


# %% wrong="step_parts" says="the cells below need tuple or list"
def step_parts(data, tensor, stages, sequences):
    tokens = TOKENS * sequences / data
    computing = 6 * PARAMETERS / (tensor * stages) * tokens / PEAK
    tensor_group, data_group = placed(data, tensor)
    sums = sum_bytes(*tensor_group, 4 * LAYERS / stages * 2 * WIDTH * tokens)
    sums_s = sums[0] / NODE + sums[1] / PORT
    waiting = (stages - 1) / (sequences / data) * (computing + sums_s)
    gradients = sum_bytes(*data_group, 2 * PARAMETERS / (tensor * stages))
    boundary = 2 * (stages - 1) / stages * 2 * WIDTH * tokens / tensor
    inside, ports = sums[0] + gradients[0], sums[1] + gradients[1] + boundary
    parts = [computing, waiting, inside / NODE, ports / PORT]
    return torch.tensor(parts, dtype=torch.float64)


# %% right="step_parts" style=1
def step_parts(data, tensor, stages, sequences):
    copy, gpus = sequences / data, data * tensor * stages
    computing = 6 * PARAMETERS * TOKENS * sequences / gpus / PEAK
    element_bytes = 2 * WIDTH * TOKENS * copy
    buffers = 4 * LAYERS * element_bytes / stages, 2 * PARAMETERS / tensor / stages
    moved = [
        sum_bytes(*group, size)
        for group, size in zip(placed(data, tensor), buffers, strict=True)
    ]
    inside, ports = map(sum, zip(*moved, strict=True))
    ports += 2 * (1 - 1 / stages) * element_bytes / tensor
    busy = computing + moved[0][0] / NODE + moved[0][1] / PORT
    return [computing, busy * (stages - 1) / copy, inside / NODE, ports / PORT]


# %% right="step_parts" style=2
def step_parts(data, tensor, stages, sequences):
    batch = sequences // data
    times_s = [6 * PARAMETERS * TOKENS * batch / tensor / stages / PEAK]
    (in_node, nodes), (copies_in_node, copy_nodes) = placed(data, tensor)
    vector = torch.empty(WIDTH, dtype=torch.bfloat16).nbytes
    activations = 4 * LAYERS // stages * vector * TOKENS * batch
    weights = 2 * PARAMETERS / tensor / stages
    first, second = (
        sum_bytes(in_node, nodes, activations),
        sum_bytes(copies_in_node, copy_nodes, weights),
    )
    times_s.append((times_s[0] + first[0] / NODE + first[1] / PORT) * (stages - 1) / batch)
    times_s.append(first[0] / NODE + second[0] / NODE)
    passed_on = 2 * (stages - 1) * vector * TOKENS * batch / stages / tensor
    times_s.append(sum((first[1], second[1], passed_on)) / PORT)
    return tuple(times_s)


# %% [markdown]
# `choose` calls it for every layout in which each copy has a sequence.


# %%
def choose(gpus, sequences):
    """Return (seconds of a step, layout) of every layout, the fastest first."""
    powers = (1, 2, 4, 8, 16, 32)
    cuts = [(tensor, stages) for tensor in powers for stages in powers]
    fitting = [
        (gpus // (tensor * stages), tensor, stages)
        for tensor, stages in cuts
        if tensor * stages <= gpus <= tensor * stages * sequences
    ]
    return sorted((sum(step_parts(*layout, sequences)), layout) for layout in fitting)


ranking = choose(gpus=64, sequences=64)

# %% tags=["hide-input", "look"]
chosen = [(64, 1, 1), (32, 2, 1), (8, 8, 1), (8, 4, 2), (1, 8, 8), (2, 32, 1)]
rows = {}
for layout in chosen:
    parts = step_parts(*layout, 64)
    rows[named(layout)] = [as_ms(part) for part in (*parts[1:], sum(parts))]
columns = ["waiting", "inside the node", "through the ports", "step (modelled)"]
print(f"{len(ranking)} layouts, and in each {as_ms(parts[0])} of computing")
pd.DataFrame(rows, index=columns).T.rename_axis(columns="data x tensor x stages")

# %% [markdown] tags=["explain"]
# In each row of the table, 430 ms of computing are added to what you see. Take the second row. In 32 × 2 × 1, two GPUs share two sequences
# and send 8.6 GB to each other, which takes 19 ms. A node then holds four copies, and each GPU sums half a model with three others in its node. That is twice
# 3/4 of 7 GB, which takes 23 ms, so that we get 42 ms inside the node. Rows with stages use their ports less, but they wait. In 8 × 4 × 2 two stages have eight
# sequences, so they wait for 1/8 of the 430 ms of computing and of the 57 ms of sums.

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=3 headline="The fastest layouts hardly cut" untitled=true
steps_s = {layout: time_s for time_s, layout in ranking}
figure = layouts.draw_layouts(
    steps_s, title="A step of 64 sequences on 64 GPUs (modelled): 26 layouts"
)
plotting.show(
    figure, alt="A triangle of layouts; those with few tensor ranks and stages are fastest."
)

# %% [markdown] tags=["explain"]
# The first two rows of the table differ by 2 %, and a model that counts only bytes is not exact enough to choose between them. So look at what
# it has left out. The gradients of data ranks can hide behind the backward pass (lesson 05), whereas the forward sums of tensor ranks hardly can
# (lesson 06). That speaks for fewer cuts. For stages, measurements agree. On 64 A100, Narayanan and others
# ([2021](https://arxiv.org/abs/2104.04473)) trained a model of 5.9 billion parameters, and for each batch size that they tried, more stages made
# it slower. They advise stages for models that do not fit, and data parallelism for speed.
#
# The lecture from which this course grew (Cambridge, 2022) says that sharing a batch between machines is rarely if ever needed. For our
# step a single node computes 8 × 430 ms and sums for 54 ms inside, which makes 3.50 s. Eight nodes are 6.4 times as fast, so that the 140 billion tokens of
# lesson 05 take 3.4 days instead of 22. If you want to use a second machine at all, the batch is what you
# can share most cheaply, because only 3 GB per step pass through a port.
#
# **To remember.** Share the batch first. If the model fits and every GPU has a sequence of its own, eight nodes need no cut at all, and by the
# data sheets they are 6.4 times as fast as one.
#
# Then why is no very large model trained in this way?

# %% [markdown] tags=["slide"] minutes=2 headline="Where more GPUs stop to help"
# ## Part 3: the end of data parallelism
#
# When is data alone not enough? We ask it now, because so far data parallelism alone was as good as any layout.
#
# - ZeRO 3 sends all weights and gradients in every step
# - More GPUs do not make these bytes fewer
# - But each GPU has fewer tokens to hide them
#
# The reason shows in a table of the same paper. Its authors trained GPT-3, with 174.6 billion parameters, by ZeRO 3 alone, and each step had 1,536 sequences of
# 2,048 tokens. From the measured speed they computed how long 300 billion tokens would take. On 384 A100 it was 90 days, and on 768 it was 74.
#
# Think of what a GPU sends. In ZeRO 3 it gathers all weights twice and scatters all gradients once, so it sends 3 × 2 × 174.6·10⁹ bytes, or 1,048 GB, in every
# step.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000]
days = helpers.predict(
    "If ZeRO 3 needs 90 days on 384 GPUs and 74 on 768, how many days does it need on 1,536?",
    "days",
)
days

# %% tags=["hide-input", "run"]
rows = {
    f"{row.gpus:,}": [f"{1536 * 2048 // row.gpus:,}", row.zero3_days, row.cut_days]
    for row in layouts.GPT3_DAYS
}

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="768 further GPUs bring nothing"
days.reveal(published=layouts.GPT3_DAYS[-1].zero3_days, source=layouts.GPT3_DAYS_SOURCE)
columns = ["tokens per GPU and step", "days, ZeRO 3 alone", "days, copies over 96 GPUs"]
pd.DataFrame(rows, index=columns).T.rename_axis(columns="GPUs")

# %% [markdown] tags=["explain"]
# It needs 74 days again, so 768 further GPUs bring nothing. The last column shows what they could do. There the same GPUs cut each copy by tensor parallelism
# and stages, and the days are nearly halved each time.
#
# Both columns together suggest what happened. Let the last one be the time for computing, and let the 74 days be the time for the traffic of ZeRO 3, since
# more GPUs do not change them any more. If one hides behind the other, the longer of the two decides, which is 84, 74 and 74 days. Their
# own days are 90, 74 and 74, so only the first is a test of this thought.
#
# When does data parallelism meet this wall? Lesson 06 has the rule. In ZeRO 3 computing and sending take equally long if each GPU has P / B tokens, where $P$ is the rate of a
# GPU and $B$ is that of its link. But which $B$ do you have? Here 300 billion tokens are 95,400 steps, so in 74 days each step takes 67 s. A GPU sends its
# 1,048 GB in this time, which is 16 GB/s.
#
# That is less than a single one of their ports carries, 25 GB/s (same paper), although eight ports can share the work of a node, which should make it better.
# But on many nodes the pieces become small and wait, which makes it worse. The [bus bandwidth](glossary.md#bus-bandwidth) of lesson 07 contains both effects, so measure it on as many nodes as you will use. The authors of the Playbook
# did this on their cluster. On eight nodes, the mean of their jobs was 99.6 GB/s. The data sheets promised more than twice as much in Part 2, 238 GB/s, since 14 GB
# were summed in 116 ms. At 99.6 GB/s this sum takes 277 ms, and the step without a cut takes 707 ms if nothing is hidden. But the backward
# pass takes 287 ms, so nearly all of the sum can hide behind it, whereas the sums of tensor ranks cannot.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[100, 100000]
enough_tokens = helpers.predict(
    "At 400 TFLOP/s and a bus bandwidth of 99.6 GB/s, "
    "how many tokens per GPU hide the traffic of ZeRO 3?",
    "tokens",
)
enough_tokens

# %% tags=["run"]
hiding_tokens = {nodes: PEAK / rate for nodes, rate in layouts.BUS_BANDWIDTHS.items()}

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="On more nodes, a GPU needs more tokens and has fewer" source="Hugging Face, The Ultra-Scale Playbook, 2025: bus bandwidths of nodes of eight H100" rows=["1 ", "8 ", "64 "]
enough_tokens.reveal(modelled=hiding_tokens[8])
rows = {}
for nodes in (1, 8, 16, 32, 64):
    tokens = f"{float(f'{hiding_tokens[nodes]:.3g}'):,.0f}", f"{2**20 // (8 * nodes):,}"
    rows[nodes] = [f"{layouts.BUS_BANDWIDTHS[nodes] / 1e9:.1f} GB/s", *tokens]
columns = ["bus bandwidth (published)", "tokens that hide (modelled)", "tokens of 2^20"]
pd.DataFrame(rows, index=columns).T.rename_axis(columns="nodes of eight H100")

# %% [markdown] tags=["explain"]
# On eight nodes 4,000 tokens suffice. Between 16 and 32 nodes the last column, a batch of 2²⁰ tokens divided among the GPUs, falls below the one beside it. By the rule, a batch of a million tokens is therefore too
# small for 256 GPUs. The same authors used such a batch in several thousand runs, and they say that data parallelism alone starts to become inefficient at 512
# GPUs. The rule thus warns earlier than they do. In our own step each GPU
# has 4,096 tokens, just enough for ZeRO 3 on eight nodes.
#
# There is a second wall, and to see it you only have to count. A data rank needs at least one whole sequence. A batch of 2²⁰ tokens has 256 sequences of 4,096
# tokens, so it cannot feed 512 data ranks however fast their links are. Several GPUs must then share a sequence. Our own 64 GPUs meet this wall if the batch is smaller.

# %% tags=["hide-input", "look"]
rows = {}
for sequences in (128, 64, 32, 16):
    (best_s, best), (second_s, second) = choose(64, sequences)[:2]
    behind = f"{named(second)}, +{100 * (second_s / best_s - 1):.0f} %"
    rows[sequences] = [named(best), as_ms(best_s), behind]
columns = ["fastest, data x tensor x stages", "step (modelled)", "next"]
pd.DataFrame(rows, index=columns).T.rename_axis(columns="sequences per step")

# %% [markdown] tags=["explain"]
# With 16 sequences at least four GPUs must share one. As a tensor group inside a node they do it cheaply, since in 16 × 4 × 1 they send for 14 ms only. But the
# ports need 61 ms as before, and that is now more than half of the 108 ms of computing. Would stages be better? The layout 1 × 8 × 8 has a single copy, and thus
# no gradients to exchange. But its stages wait for 7/16 of the time in which they work, 62 ms, so a step takes 205 ms instead of 191.
#
# The same search for other clusters gives a map. A cell has the tensor ranks and the stages of the fastest layout.

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=3 headline="Sequences per GPU decide" untitled=true
fastest = {
    (nodes, sequences): choose(8 * nodes, sequences)[0][1]
    for nodes in (1, 2, 4, 8, 16, 32, 64)
    for sequences in (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
}
figure = layouts.draw_fastest(
    fastest, title="The fastest layout (modelled): tensor ranks x stages"
)
plotting.show(
    figure, alt="A map of nodes and sequences; the kinds of layouts form diagonal bands."
)

# %% [markdown] tags=["explain"]
# The colours form diagonal bands, because sequences per GPU decide. From two sequences per GPU on, data alone is at least as good. With one
# sequence per GPU, or one for two GPUs, it is two tensor ranks, and with fewer as many as share a sequence, because stages with a single
# sequence would wait for each other. (Where a tensor group leaves the node, the model is too kind, since lesson 07 found that such sums mostly
# wait.) Turn the figure yourself. Copies without a sequence stay idle in it. At how many sequences does data alone become slower than eight
# tensor ranks, and what happens to this border if you double the nodes, or halve the ports?

# %% tags=["hide-input"]
layouts.explore_layouts()

# %% [markdown]
# Of the figure's numbers, data alone is faster than eight tensor ranks from 64 sequences on if there are eight nodes, one per GPU, and each
# doubling of the nodes doubles this number. Slower ports do not move the border, because the ports carry the same bytes in both, and only the
# stages gain.
#
# **To remember.** Data parallelism alone ends at one sequence per GPU, or with ZeRO 3 even earlier at P / B tokens per GPU. On eight nodes of
# that H100 cluster these are about 4,000 tokens.
#
# All of this assumed that a copy fits where we put it. What if it does not?

# %% [markdown] tags=["slide"] minutes=2 headline="A layout that does not fit has no time at all"
# ## Part 4: the parts of a model
#
# When is one node too small? This question comes last in our argument, but when you choose it comes first, because a layout that does not fit has no time at all.
#
# - Adam's full state takes 16 bytes per parameter
# - Tensor ranks and stages divide it
# - Half of the memory is left for activations
#
# Narayanan and others published layouts of ten models, for A100 with 80 GB, and each data rank kept the full state of Adam. So a copy needs 16 bytes per
# parameter (lesson 05), divided by its tensor ranks and its stages.
#
# Suppose that they reserved half of the 80 GB for this state, and the other half for activations. A model of 18.4 billion parameters has 294 GB of state. Four
# tensor ranks would keep 74 GB each, which is too much, and eight keep 37. A model of 39.1 billion parameters has 626 GB, so that even eight tensor ranks would
# keep 78 GB each. But more than eight would leave the node. So now each copy needs two stages.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000]
many_stages = helpers.predict(
    "If a GPU may keep 40 GB of state and a node holds eight tensor ranks, "
    "how many stages do 310 billion parameters need?",
    "stages",
)
many_stages

# %% [markdown]
# **Your turn.** Write the rule. First double the tensor ranks, up to the eight of a node, until a GPU keeps at most `limit_bytes` of state. If this is not
# enough, use as few stages as possible.


# %% tags=["yours"] yours="cut_to_fit" takes=8
def cut_to_fit(parameters, limit_bytes):
    """Return the tensor ranks, a power of two up to 8, and the stages that keep the limit."""
    tensor = 1
    while tensor < 8 and 16 * parameters / tensor > limit_bytes:
        tensor *= 2
    stages = -(-16 * parameters // (tensor * limit_bytes))  # rounded up
    return tensor, int(stages)


# %% checks="cut_to_fit"
cut_to_fit = check(cut_to_fit)


# %% wrong="cut_to_fit" says="First fill the node"
def cut_to_fit(parameters, limit_bytes):
    return 1, int(-(-16 * parameters // limit_bytes))


# %% wrong="cut_to_fit" says="More than eight tensor ranks leave the node"
def cut_to_fit(parameters, limit_bytes):
    tensor = 1
    while 16 * parameters / tensor > limit_bytes:
        tensor *= 2
    return tensor, 1


# %% wrong="cut_to_fit" says="Round the stages up"
def cut_to_fit(parameters, limit_bytes):
    tensor = 1
    while tensor < 8 and 16 * parameters / tensor > limit_bytes:
        tensor *= 2
    return tensor, max(1, int(16 * parameters / tensor / limit_bytes))


# %% wrong="cut_to_fit" says="the cells below need tuple"
def cut_to_fit(parameters, limit_bytes):
    tensor = 1
    while tensor < 8 and 16 * parameters / tensor > limit_bytes:
        tensor *= 2
    return [tensor, int(-(-16 * parameters // (tensor * limit_bytes)))]


# %% right="cut_to_fit" style=1
def cut_to_fit(parameters, limit_bytes):
    state = 16 * parameters
    fitting = [tensor for tensor in (1, 2, 4, 8) if state <= tensor * limit_bytes]
    if fitting:
        return fitting[0], 1
    stages = 1
    while state > 8 * stages * limit_bytes:
        stages += 1
    return 8, stages


# %% right="cut_to_fit" style=2
def cut_to_fit(parameters, limit_bytes):
    needed = torch.tensor(16 * parameters / limit_bytes, dtype=torch.float64)
    tensor = int(2 ** needed.log2().ceil().clamp(0, 3))
    return tensor, int((needed / tensor).ceil().clamp(min=1))


# %% [markdown]
# Now it is applied to the 310 billion parameters, and then to all ten models.

# %% tags=["run"]
tensor, stages = cut_to_fit(310e9, 40e9)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="A node is filled before the stages begin"
many_stages.reveal(modelled=stages)
print(f"{16 * 310e9 / tensor / stages / 1e9:.1f} GB of state per GPU")

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="The rule finds eight of ten published layouts" source="Narayanan and others, Megatron-LM, 2021 (arxiv.org/abs/2104.04473), table 1" rows=["1.7 ", "18.4 ", "145.6 ", "310.1 ", "529.6 "] columns=["tensor x stages", "by the rule", "state per GPU"]
rows = {}
for model in layouts.MODELS:
    published, ruled = (model.tensor, model.stages), cut_to_fit(model.parameters, 40e9)
    state = 16 * model.parameters / (model.tensor * model.stages)
    rows[f"{model.parameters / 1e9:,.1f} billion"] = [
        "{} x {}".format(*published),
        "the same" if ruled == published else "{} x {}".format(*ruled),
        f"{state / 1e9:.0f} GB",
        model.data,
        f"{model.peak_share:.0%}",
    ]
columns = [
    "tensor x stages (published)",
    "by the rule",
    "state per GPU",
    "data ranks",
    "share of the peak",
]
pd.DataFrame(rows, index=columns).T.rename_axis(columns="parameters")

# %% [markdown] tags=["explain"]
# The state has 16 × 310 GB, or 4,960 GB. Each of eight tensor ranks would keep 620 GB, and 620 / 40 is 15.5, so 16 stages are needed. The authors took 16.
#
# Our rule of 40 GB finds eight of the ten layouts, but we chose its limit when we had seen their table. For the two largest models it asks for 27 and 51 stages, and the authors took 35 and 64, perhaps because these
# divide the 105 and 128 layers. Read the tensor ranks from top to bottom, and you see how a node is filled before the stages begin.
#
# Why stages and not 16 tensor ranks? In lesson 06 a stage sent 1/112 of the bytes of a tensor rank, so it is the cut that can cross the ports. On 64 A100 the
# same authors cut a model of 162 billion parameters five times, with 2, 4, 8, 16 or 32 tensor ranks and the other factor as stages. The fastest had 8 tensor
# ranks and 8 stages (published). The price of stages is their waiting. The 310 billion parameters have 15 copies for 2,160 sequences, so each copy has 144, and
# its 16 stages wait for 15/144, or 10 % of the computing time.
#
# With ZeRO 1 fewer cuts suffice, because the data ranks divide the 12 bytes of Adam. That is why Llama 2 7B could stay whole in Part 2, although its full
# state has 112 GB. For Llama 3 405B with 128 data ranks, each of eight tensor ranks would
# keep 405·10⁹ × (4 + 12/128) / 8 bytes, or 207 GB, so that six stages would do. Meta took 16 (published).
#
# **To remember.** Cut until the state takes half of the memory, first over the eight GPUs of a node and then into stages. At 16 bytes per parameter a node of
# 80 GB GPUs holds 20 billion parameters.
#
# The [appendix](appendix/08_layouts.ipynb) trains a small network in several layouts on real processes, and the
# [exercises](exercises/08_layouts_exercises.ipynb) find the neighbours of a rank, the smallest batch of a cluster, and the order of any mesh.

# %%
ranks.close()

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. The group that sends most gets the node.
# 2. If the model fits, share the batch first, as long as each GPU has a sequence.
# 3. Fill a node with tensor ranks, and only then use stages.
#
# With the two names exchanged a step takes 1,639 ms instead of 625, which is 2.6 times as long, because 95 % of its bytes leave the node. But
# neither of the two is the best layout. With ZeRO 1 the model fits without any cut, and the step takes 546 ms by the data sheets, only 2 % more
# than the best, because no activations are sent. Cuts are for models that do not fit, and for steps with less than one sequence or P / B tokens
# per GPU.
#
# So choose in this order. First make the state fit into half of the memory, by a cut over the GPUs of a node and then by stages. Next, use all other GPUs for
# more copies, as long as each copy has a sequence and each GPU has P / B tokens. If one of these runs out, use more GPUs for each copy. At the end, give the
# nearest GPUs to the group that sends most.
#
# One wall remains. At the end of its training Llama 3 learned from sequences of 131,072 tokens, and a step of 16 million tokens has only 128 of them. For 16,384
# GPUs that is one sequence for 128 GPUs. Eight of them can be tensor ranks and sixteen can be stages. But with a single sequence only one stage would work at a
# time. So Meta gave each copy 16 sequences, and cut every sequence over 16 groups of GPUs (published).

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $c$ copies (data ranks), $k$ tensor ranks and $q$ stages. A copy has $b$ sequences of $n$ tokens, and the model $N$ parameters in $L$ layers of width $h$,
# with 2 bytes per element. $B$ is a bandwidth in bytes per second, $P$ a rate in FLOP per second.
#
# | quantity | formula | for |
# |---|---|---|
# | sent to the tensor group | $2\frac{k-1}{k} \cdot \frac{4L}{q} \cdot 2\,h\,b\,n$ | a step |
# | sent to the data group, ZeRO 1 | $2\frac{c-1}{c} \cdot \frac{2N}{k\,q}$ | a step |
# | sent by a stage, mean | $2\frac{q-1}{q} \cdot \frac{2\,h\,b\,n}{k}$ | a step |
# | sum in two levels, through a port | $2\frac{m-1}{m} \cdot \frac{s}{g}$ | a buffer of $s$ bytes, $g$ GPUs in each of $m$ nodes |
# | waiting over computing and sums | $\frac{q-1}{b}$ | stages, each sequence a microbatch |
# | tokens per GPU that hide ZeRO 3 | $P / B$ | 2 bytes per parameter |
# | state per GPU, Adam in mixed precision | $\frac{16N}{k\,q}$ | data ranks that divide nothing |
