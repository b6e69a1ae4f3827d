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
# ---

# %% [markdown]
# # Layouts: exercises
#
# Three functions to write and two questions to answer, for [lesson 08](../08_layouts.ipynb). Each exercise has a table,
# a function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Nothing depends on how fast your machine is.

# %%
from helpers import exercises
from helpers.studies import parallel_plans

# %% [markdown]
# ## Exercise 1: neighbours in a mesh
#
# Ranks stand in a [mesh](../glossary.md#mesh) of pipeline x data x tensor. Tensor ranks are next to each other, stages
# furthest apart. Twelve ranks as 3 stages x 2 data x 2 tensor:
#
# | stage | data 0, tensor 0 | data 0, tensor 1 | data 1, tensor 0 | data 1, tensor 1 |
# |--:|--:|--:|--:|--:|
# | 0 | 0 | 1 | 2 | 3 |
# | 1 | 4 | 5 | 6 | 7 |
# | 2 | 8 | 9 | 10 | 11 |
#
# A rank's neighbours along one dimension are the ranks whose other two numbers are its own: so it is one of them.
# Write `neighbours(rank, along, pipeline, data, tensor)`, where `along` is `"pipeline"`, `"data"` or `"tensor"`, and
# return the sorted list of them.


# %% answer="neighbours"
def neighbours(rank, along, pipeline, data, tensor):
    """Return the ranks along one dimension: neighbours(5, "data", 3, 2, 2) is [5, 7]."""
    ### BEGIN SOLUTION
    stage, data_rank, tensor_rank = rank // (tensor * data), rank // tensor % data, rank % tensor
    if along == "tensor":
        places = [(stage, data_rank, each) for each in range(tensor)]
    elif along == "data":
        places = [(stage, each, tensor_rank) for each in range(data)]
    else:
        places = [(each, data_rank, tensor_rank) for each in range(pipeline)]
    return [(s * data + d) * tensor + t for s, d, t in places]
    ### END SOLUTION


# %% checks="neighbours" points=3
check = exercises.Checks("Exercise 1, neighbours", neighbours)
goals = {kind: f"neighbours along {kind} are found" for kind in ("tensor", "data", "pipeline")}
expected = {"tensor": [6, 7], "data": [5, 7], "pipeline": [3, 7, 11]}
mistakes = {
    "tensor": {(5, 7): "Those are two apart, and tensor ranks stand next to each other"},
    "data": {(6, 7): "Those stand next to each other, and that place is the tensor ranks'"},
    "pipeline": {(6, 7, 8): "Stages are furthest apart: data x tensor ranks lie between two of them"},
}
from_here = {"tensor": (7, 8), "data": (7, 9), "pipeline": (7, 11, 15)}
for kind, goal in goals.items():
    others = tuple(rank for rank in expected[kind] if rank != 7)
    mistakes[kind] |= {
        others: "Rank 7 is one of them as well",
        from_here[kind]: "Begin with the rank whose number along this dimension is 0, not with rank 7",
    }
    check.returns(goal, (7, kind, 3, 2, 2), expected=expected[kind], mistakes=mistakes[kind])
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(5002)


def truth(rank, kind, pipeline, data, tensor):
    """All ranks whose places differ from this one's in one number alone, or in none."""
    layout = parallel_plans.Layout(data=data, tensor=tensor, pipeline=pipeline)
    here, varied = layout.place(rank), ("pipeline", "data", "tensor").index(kind)
    fixed = [axis for axis in range(3) if axis != varied]
    return [each for each in range(layout.ranks) if all(layout.place(each)[axis] == here[axis] for axis in fixed)]


for _ in range(5):
    sizes = draw.sample([2, 3, 4, 5], 3)
    rank = draw.randrange(sizes[0] * sizes[1] * sizes[2])
    for kind, goal in goals.items():
        check.returns(goal, (rank, kind, *sizes), expected=truth(rank, kind, *sizes))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: a number with three digits</summary>
#
# A rank is like a number whose last digit counts tensor ranks, the one before it data ranks, the first stages.
#
# </details>
# <details><summary>Hint 2: take it apart</summary>
#
# `rank % tensor` is the last digit, `rank // tensor % data` the next, `rank // (tensor * data)` the first.
#
# </details>
# <details><summary>Hint 3: put it together</summary>
#
# The rank at (s, d, t) is `(s * data + d) * tensor + t`. Along one dimension let that digit run through its range.
#
# </details>


# %% wrong="neighbours" says="that place is the tensor ranks'" gets=1
def neighbours(rank, along, pipeline, data, tensor):
    stage, tensor_rank, data_rank = rank // (tensor * data), rank // data % tensor, rank % data
    places = {
        "tensor": [(stage, each, data_rank) for each in range(tensor)],
        "data": [(stage, tensor_rank, each) for each in range(data)],
        "pipeline": [(each, tensor_rank, data_rank) for each in range(pipeline)],
    }
    return [(s * tensor + t) * data + d for s, t, d in places[along]]


# %% wrong="neighbours" says="Rank 7 is one of them as well" gets=0
def neighbours(rank, along, pipeline, data, tensor):
    apart, ranks = {"tensor": (1, tensor), "data": (tensor, data), "pipeline": (tensor * data, pipeline)}[along]
    first = rank - rank // apart % ranks * apart
    return [first + each * apart for each in range(ranks) if first + each * apart != rank]


# %% wrong="neighbours" says="Begin with the rank whose number along this dimension is 0" gets=0
def neighbours(rank, along, pipeline, data, tensor):
    if along == "tensor":
        return [rank + each for each in range(tensor)]
    if along == "data":
        return [rank + each * tensor for each in range(data)]
    return [rank + each * tensor * data for each in range(pipeline)]


# %% wrong="neighbours" says="Stages are furthest apart" gets=2
def neighbours(rank, along, pipeline, data, tensor):
    if along == "pipeline":
        return [rank // pipeline * pipeline + each for each in range(pipeline)]
    block = rank // (tensor * data) * data * tensor
    if along == "data":
        return [block + each * tensor + rank % tensor for each in range(data)]
    return [rank // tensor * tensor + each for each in range(tensor)]


# %% [markdown]
# ## Exercise 2: the smallest batch
#
# A cluster trains with data parallelism alone, by ZeRO 3. Two walls bound its batch from below. Each GPU needs at least
# one sequence, and it needs $P / B$ tokens to hide what it sends, where $P$ is its rate in FLOP/s and $B$ the bus
# bandwidth of the cluster in bytes per second. A GPU takes whole sequences. Three clusters of H100 with 400 TFLOP/s:
#
# | GPUs | bus bandwidth | tokens per sequence | tokens that hide | sequences per GPU | tokens per step |
# |--:|--:|--:|--:|--:|--:|
# | 8 | 400 GB/s | 4,096 | 1,000 | 1 | 32,768 |
# | 64 | 100 GB/s | 2,048 | 4,000 | 2 | 262,144 |
# | 512 | 40 GB/s | 4,096 | 10,000 | 3 | 6,291,456 |
#
# Write `smallest_batch(gpus, peak, bandwidth, tokens)`, which returns the tokens per step.


# %% answer="smallest_batch"
def smallest_batch(gpus, peak, bandwidth, tokens):
    """Return the tokens of a step: smallest_batch(64, 400e12, 100e9, 2048) is 262144."""
    ### BEGIN SOLUTION
    per_gpu = 1
    while per_gpu * tokens * bandwidth < peak:
        per_gpu += 1
    return gpus * per_gpu * tokens
    ### END SOLUTION


# %% checks="smallest_batch" points=3
check = exercises.Checks("Exercise 2, smallest_batch", smallest_batch)
one, several, exact = "each GPU has a sequence", "each GPU has enough tokens", "what suffices exactly is enough"
too_few = "Eight GPUs need a sequence each, however few tokens would hide the traffic"
check.returns(one, (8, 400e12, 400e9, 4096), expected=32_768, mistakes={8_192: too_few, 8_000: too_few, 4_096: too_few})
rounded = "A GPU takes whole sequences, so round up for each GPU and not for the whole step"
sequences = "Those are the sequences of the step; return its tokens"
mistakes = {
    256_000: rounded,
    131_072: "One sequence has 2,048 tokens, and 4,000 are needed",
    4_096: "That is for one GPU, and the step has as much for each",
    128: sequences,
}
check.returns(several, (64, 400e12, 100e9, 2048), expected=262_144, mistakes=mistakes)
mistakes = {5_120_000: rounded, 4_194_304: "10,000 tokens are more than two sequences", 1_536: sequences}
check.returns(several, (512, 400e12, 40e9, 4096), expected=6_291_456, mistakes=mistakes)
enough = "Two sequences of 2,048 tokens are exactly P / B"
check.returns(exact, (4, 512e12, 125e9, 2048), expected=16_384, mistakes={24_576: enough})
check.report()
### BEGIN HIDDEN TESTS
import math
import random
from fractions import Fraction

draw = random.Random(8002)
for _ in range(6):
    gpus, tokens = draw.randint(2, 900), draw.choice([512, 1024, 8192])
    bandwidth, times = draw.randint(10, 400), draw.randint(2, 5)
    needed = tokens * (times - 1) + draw.randint(1, tokens - 1)  # tokens that hide
    check.returns(one, (gpus, tokens * bandwidth - 1, bandwidth, tokens), expected=gpus * tokens)
    per_gpu = math.ceil(Fraction(needed, tokens))
    check.returns(several, (gpus, needed * bandwidth, bandwidth, tokens), expected=gpus * per_gpu * tokens)
    check.returns(exact, (gpus, times * tokens * bandwidth, bandwidth, tokens), expected=gpus * times * tokens)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one GPU</summary>
#
# Begin with a single GPU. How many tokens does it need, and how many whole sequences are these?
#
# </details>
# <details><summary>Hint 2: rounding up</summary>
#
# `peak / bandwidth / tokens` sequences would do, if a GPU could take a part of one. `math.ceil` rounds up.
#
# </details>
# <details><summary>Hint 3: all GPUs</summary>
#
# All GPUs have equally many sequences, and at least one.
#
# </details>


# %% wrong="smallest_batch" says="however few tokens would hide" gets=1
def smallest_batch(gpus, peak, bandwidth, tokens):
    return tokens * -int(-gpus * peak // bandwidth // tokens)


# %% wrong="smallest_batch" says="round up for each GPU" gets=2
def smallest_batch(gpus, peak, bandwidth, tokens):
    return tokens * max(gpus, -int(-gpus * peak // (bandwidth * tokens)))


# %% wrong="smallest_batch" says="are exactly P / B" gets=2
def smallest_batch(gpus, peak, bandwidth, tokens):
    return tokens * gpus * (1 + int(peak // (bandwidth * tokens)))


# %% [markdown]
# ## Exercise 3: the ports of any mesh
#
# A mesh has dimensions with names, such as `("pp", "dp", "tp")`, and the last one gives neighbouring GPUs. Each group
# sums a buffer in two levels: first in the node, and what is left of it through the ports. If a group has $g$ GPUs in
# each of $m$ nodes, a GPU sends $2\frac{m-1}{m} \cdot \frac{s}{g}$ of a buffer of $s$ bytes through its port. A node
# has 4 GPUs, and three meshes of 16 GPUs sum 16 bytes and 64 bytes:
#
# | sizes | buffers | group of the last | group of the first | through a port |
# |---|---|---|---|--:|
# | (8, 2) | (16, 64) | 2 GPUs in 1 node | 2 GPUs in each of 4 nodes | 0 + 12 |
# | (2, 8) | (16, 64) | 4 GPUs in each of 2 nodes | 1 GPU in each of 2 nodes | 16 + 16 |
# | (2, 8) | (64, 16) | 4 GPUs in each of 2 nodes | 1 GPU in each of 2 nodes | 4 + 64 |
#
# Write `port_bytes(sizes, buffers, node)`, which returns the bytes that a GPU sends through its port. `sizes` and
# `buffers` have an entry for each dimension, the last one for neighbours. All sizes and `node` are powers of two.


# %% answer="port_bytes"
def port_bytes(sizes, buffers, node):
    """Return the bytes through a port: port_bytes([8, 2], [16, 64], 4) is 12."""
    ### BEGIN SOLUTION
    total, room = 0, node
    for size, buffer in zip(reversed(sizes), reversed(buffers), strict=True):
        inside = min(size, room)
        nodes = size // inside
        total += 2 * (nodes - 1) / nodes * buffer / inside
        room //= inside
    return total
    ### END SOLUTION


# %% checks="port_bytes" points=3
check = exercises.Checks("Exercise 3, port_bytes", port_bytes)
inner, outer = "the last group fills its node", "the other group takes what room is left"
three = "three dimensions are summed"
check.returns(
    inner,
    ([1, 8], [16, 64], 4),
    expected=16,
    mistakes={
        112: "A node first adds up what its own GPUs have, so that only a part of the buffer leaves it",
        0: "Eight GPUs are in two nodes of four",
        14: "Eight GPUs in nodes of four are two nodes, and not eight",
    },
)
check.returns(
    outer,
    ([8, 2], [16, 64], 4),
    expected=12,
    mistakes={
        24: "A node of four has two GPUs of the first group as well: they add up before the ports",
        4: "The last group already takes two GPUs of each four, so only two are left for the first",
        28: "The first group has 8 GPUs in 4 nodes",
        68: "The last size is that of neighbours, so begin with it",
    },
)
check.returns(outer, ([2, 8], [16, 64], 4), expected=32)
check.returns(three, ([2, 2, 4], [8, 16, 64], 8), expected=8, mistakes={0: "All dimensions count, also the first"})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(8003)


def truth(sizes, buffers, node):
    """List the group of GPU 0 along each dimension, and the nodes in which its members are."""
    pipeline, data, tensor = [1] * (3 - len(sizes)) + list(sizes)
    layout, total = parallel_plans.Layout(data=data, tensor=tensor, pipeline=pipeline), 0
    for axis, buffer in zip((2, 1, 0), reversed(buffers), strict=False):
        places = {rank: layout.place(rank) for rank in range(layout.ranks)}
        group = [rank for rank, place in places.items() if not any(n for at, n in enumerate(place) if at != axis)]
        nodes = {rank // node for rank in group}
        total += 2 * (len(nodes) - 1) / len(nodes) * buffer / (len(group) / len(nodes))
    return total


for _ in range(5):
    node, buffers = draw.choice([2, 4, 8]), [8 * draw.randint(1, 99) for _ in range(3)]
    size = node * draw.choice([1, 2, 4])
    check.returns(inner, ([1, size], buffers[:2], node), expected=truth([1, size], buffers[:2], node))
    sizes = [draw.choice([8, 16]), node // 2]
    check.returns(outer, (sizes, buffers[:2], node), expected=truth(sizes, buffers[:2], node))
    sizes = [draw.choice([2, 4]), draw.choice([2, 4]), draw.choice([1, 2, 4, 16])]
    check.returns(three, (sizes, buffers, node), expected=truth(sizes, buffers, node))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: from the end</summary>
#
# Go through the dimensions from the last to the first, and remember how many GPUs of a node are still free.
#
# </details>
# <details><summary>Hint 2: one group</summary>
#
# A group takes `min(size, room)` GPUs of each node, and it is in `size // min(size, room)` nodes.
#
# </details>
# <details><summary>Hint 3: what is left</summary>
#
# A group that takes 2 of 8 GPUs leaves 8 // 2 for the next one, because each of its copies takes 2.
#
# </details>


# %% wrong="port_bytes" says="A node first adds up what its own GPUs have" gets=0
def port_bytes(sizes, buffers, node):
    total, inside = 0, 1
    for size, buffer in zip(reversed(sizes), reversed(buffers), strict=True):
        inside *= size
        if inside > node:
            total += 2 * (size - 1) / size * buffer
    return total


# %% wrong="port_bytes" says="two GPUs of the first group as well" gets=1
def port_bytes(sizes, buffers, node):
    total, room = 0, node
    for place, (size, buffer) in enumerate(zip(reversed(sizes), reversed(buffers), strict=True)):
        inside = min(size, room)
        nodes = size // inside
        total += 2 * (nodes - 1) / nodes * buffer / (1 if place else inside)
        room //= inside
    return total


# %% wrong="port_bytes" says="so begin with it" gets=1
def port_bytes(sizes, buffers, node):
    total, room = 0, node
    for size, buffer in zip(sizes, buffers, strict=True):
        inside = min(size, room)
        nodes = size // inside
        total += 2 * (nodes - 1) / nodes * buffer / inside
        room //= inside
    return total


# %% wrong="port_bytes" says="so only two are left for the first" gets=1
def port_bytes(sizes, buffers, node):
    total = 0
    for size, buffer in zip(sizes, buffers, strict=True):
        inside = min(size, node)
        nodes = size // inside
        total += 2 * (nodes - 1) / nodes * buffer / inside
    return total


# %% [markdown]
# ## Question 1: which ranks go where?
#
# Two machines with four GPUs each; within a machine the link is ten times as fast as between the two. A network is to
# be trained with 4 tensor ranks and 2 data ranks. Say which ranks share a machine, and why: how often does each kind
# speak in a step, and what can it do while it waits? Then say for which network or batch you would put it the other
# way round, or that you never would, and why.
#
# Three to six sentences; a person reads them.

# %% [markdown] written="which_ranks_where" points=2
# A full answer says:
#
# - 1 point: the tensor ranks share a machine: they all-reduce activations in every block, forward and back, and the
#   next layer waits; data ranks average gradients once a step, mostly behind the backward pass.
# - 1 point: a case that is weighed by bytes: a very small batch with very large weights, where activations are few and
#   gradients many; or a reason why the latency of many waited-for messages decides against it even there.

# %% [markdown]
# ## Question 2: your own layout
#
# Take a model that you would like to train, and devices that you could have or rent: how many, how much memory, which
# link inside a machine and which between machines. Use `step_parts` and `choose` of the lesson with your numbers.
# Give the layout that you would choose and one that comes close, with what each keeps and sends. Then say which of your
# numbers would have to change, and how far, for the other one to win.
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="your_own_layout" points=2
# A full answer says:
#
# - 1 point: two layouts with bytes kept and sent from the person's own numbers, and a choice that fits into the memory
#   and follows from the times.
# - 1 point: the number that would turn the choice (tokens of a step, the link between machines, memory), and about how
#   far it would have to change, computed and not guessed.

# %% [markdown]
# ## What you have practised
#
# Finding whom a rank of a mesh speaks to, saying how small the batch of a cluster may be, and counting what the groups
# of any mesh send through a port.
