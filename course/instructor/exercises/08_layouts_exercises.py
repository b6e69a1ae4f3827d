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
# Three functions to write, for [lesson 08](../08_layouts.ipynb). Each exercise has a table or a
# picture, a function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints
# that stay folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. The checks of exercise 2 run your function on four real ranks; nothing
# depends on how fast your machine is.

# %%
import torch
import torch.distributed as dist

from helpers import exercises, plotting
from helpers.ranks import Ranks
from helpers.studies import parallel_plans

ranks = Ranks(4)

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
# ## Exercise 2: a ring that is balanced
#
# With a causal mask a token looks back only, so the rank with the last tokens works most, and the others wait. Cut the
# sequence into twice as many pieces as there are ranks, and give each rank an early one and a late one: the first with
# the last, the second with the last but one, and so on. Sixteen tokens on four [ranks](../glossary.md#rank):
#
# | rank | early tokens | late tokens |
# |--:|---|---|
# | 0 | 0, 1 | 14, 15 |
# | 1 | 2, 3 | 12, 13 |
# | 2 | 4, 5 | 10, 11 |
# | 3 | 6, 7 | 8, 9 |
#
# Write `tokens_of(rank, ranks, length)`, which returns the rank's tokens, a sorted list. `length` divides by twice the
# ranks. The checks run [ring attention](../glossary.md#ring-attention) with your tokens on four real ranks.


# %%
def pass_on(tensor, rank, world_size):
    arrived = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % world_size)
    dist.recv(arrived, (rank - 1) % world_size)
    sending.wait()
    return arrived


def attend(rank, world_size, function, query, key, value):
    """Causal ring attention: each rank has the tokens that function says; return them and their outputs."""
    own = function(rank, world_size, len(query))
    places, keys, values = torch.tensor(own), key[own], value[own]
    output, log_sum = torch.zeros_like(query[own]), torch.full((len(own), 1), -1e9, dtype=query.dtype)
    for step in range(world_size):
        if step:
            places, keys, values = (pass_on(each, rank, world_size) for each in (places, keys, values))
        scores = (query[own] @ keys.T).masked_fill(places > torch.tensor(own)[:, None], -1e9)
        more = scores.logsumexp(dim=1, keepdim=True)
        both = torch.logaddexp(log_sum, more)
        output = output * (log_sum - both).exp() + scores.softmax(dim=1) @ values * (more - both).exp()
        log_sum = both
    return own, output


# %%
def on_ranks(function, query, key, value):
    if function(0, 4, len(query)) is exercises.not_yet:
        return exercises.not_yet
    try:
        found = ranks.run(attend, function, query, key, value, timeout_s=20)
    except TypeError:  # where a class is graded: its functions stay in another process, so one rank has all in turn
        found = [(function(rank, 4, len(query)), None) for rank in range(4)]
        whole = attend(0, 1, lambda *_: list(range(len(query))), query, key, value)[1]
        found = [(own, whole[own]) for own, _ in found]
    ordered = sorted((token, row) for own, output in found for token, row in zip(own, output.tolist(), strict=True))
    return [row for _, row in ordered]


# %% answer="tokens_of"
def tokens_of(rank, ranks, length):
    """Return the rank's tokens: tokens_of(1, 2, 8) is [2, 3, 4, 5]."""
    ### BEGIN SOLUTION
    piece = length // (2 * ranks)
    early, late = rank * piece, (2 * ranks - 1 - rank) * piece
    return [*range(early, early + piece), *range(late, late + piece)]
    ### END SOLUTION


# %% checks="tokens_of" points=3
check = exercises.Checks("Exercise 2, tokens_of", tokens_of)
first, between, whole = "the first rank has both ends", "each rank has two pieces", "four ranks attend to all tokens"
in_order = {(0, 1, 2, 3): "Those are the first tokens in order: rank 0 has the last ones as well"}
check.returns(first, (0, 4, 16), expected=[0, 1, 14, 15], mistakes=in_order)
by_turns = {
    (2, 3, 10, 11): "Rank 1's late piece is the last but one: count the late pieces from the end",
    (4, 5, 6, 7): "Those are a quarter in order: cut into twice as many pieces as ranks",
}
check.returns(between, (1, 4, 16), expected=[2, 3, 12, 13], mistakes=by_turns)
check.returns(between, (2, 3, 12), expected=[4, 5, 6, 7])
query, key, value = (
    torch.randint(-2, 3, (16, 2), generator=torch.Generator().manual_seed(n)).double() for n in range(3)
)
mask = torch.full((16, 16), -1e9).triu(1).double()
expected = ((query @ key.T + mask).softmax(dim=1) @ value).tolist()
check.returns(whole, (query, key, value), expected=expected, call=on_ranks)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(16002)
for _ in range(6):
    size, piece = draw.randint(3, 6), draw.randint(2, 5)
    pieces = [list(range(start, start + piece)) for start in range(0, 2 * size * piece, piece)]
    check.returns(first, (0, size, 2 * size * piece), expected=pieces[0] + pieces[-1])
    rank = draw.randint(1, size - 1)
    check.returns(between, (rank, size, 2 * size * piece), expected=pieces[rank] + pieces[-1 - rank])


def all_once(function, size, length):
    return sorted(token for rank in range(size) for token in function(rank, size, length))


for size in (3, 5):
    check.returns(whole, (size, 4 * size), expected=list(range(4 * size)), call=all_once)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: how long is a piece?</summary>
#
# There are `2 * ranks` pieces of equal length.
#
# </details>
# <details><summary>Hint 2: which two?</summary>
#
# Rank `r` has piece `r` and piece `2 * ranks - 1 - r`.
#
# </details>
# <details><summary>Hint 3: as a list</summary>
#
# Piece `i` is `range(i * piece, (i + 1) * piece)`; `[*a, *b]` puts two ranges into one list.
#
# </details>


# %% wrong="tokens_of" says="rank 0 has the last ones as well" gets=1
def tokens_of(rank, ranks, length):
    return list(range(rank * length // ranks, (rank + 1) * length // ranks))


# %% wrong="tokens_of" says="count the late pieces from the end" gets=1
def tokens_of(rank, ranks, length):
    piece = length // (2 * ranks)
    late = (ranks + rank) * piece
    return [*range(rank * piece, (rank + 1) * piece), *range(late, late + piece)]


# %% [markdown]
# ## Exercise 3: when does the ring hide its traffic?
#
# A rank computes one block of scores after the other. It begins with its own keys; those of step $i$ have been on the
# way for $i$ messages. Each message takes 3 units of time, the blocks 2, 5 and 2:

# %%
spans = [
    plotting.Span("arriving", 0, 3, "sending", "1"),
    plotting.Span("arriving", 3, 6, "sending", "2"),
    *(plotting.Span("computing", start, end, "computing", str(step))
      for step, (start, end) in enumerate([(0, 2), (3, 8), (8, 10)])),
]  # fmt: skip
drawn = plotting.gantt(spans, title="Step 1 waits for its keys, step 2 for the device", unit="", xlabel="time")
plotting.show(drawn, alt="Two lanes: keys arrive at 3 and 6; blocks are computed from 0 to 2, 3 to 8 and 8 to 10.")

# %% [markdown]
# Write `ring_end(blocks, message)`: when has the rank computed all its blocks? `blocks[i]` is how long block `i` takes;
# with a causal mask some are 0, and their keys are passed on all the same. Keys travel on as soon as they have arrived,
# whatever the rank computes.


# %% answer="ring_end"
def ring_end(blocks, message):
    """Return the end of the last block: ring_end([2, 5, 2], 3) is 10."""
    ### BEGIN SOLUTION
    end = 0
    for step, block in enumerate(blocks):
        end = max(end, step * message) + block
    return end
    ### END SOLUTION


# %% checks="ring_end" points=3
check = exercises.Checks("Exercise 3, ring_end", ring_end)
hidden, exposed, unequal = "long blocks hide their traffic", "a slow link is waited for", "unequal blocks are timed"
serial = {19: "Keys travel while a block is computed: do not add both"}
check.returns(hidden, ([4, 4, 4, 4], 1), expected=16, mistakes=serial)
short = {19: "The first block is shorter than a message, so the second waits for 1"}
check.returns(hidden, ([1, 9, 9], 2), expected=20, mistakes=short)
forgotten = {8: "Block 3 cannot begin before its keys have come a way of 3 messages"}
check.returns(
    exposed, ([2, 2, 2, 2], 5), expected=17, mistakes=forgotten | {23: "Keys travel while a block is computed"}
)
lockstep = {13: "Keys travel on while the rank computes: those of step 2 are there at 6, those of step 3 at 9"}
check.returns(unequal, ([5, 1, 1, 2], 3), expected=11, mistakes=lockstep)
check.returns(unequal, ([1, 0, 0, 6], 2), expected=12)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(16003)


def truth(blocks, message):
    """The longest chain: some messages in a row, and then all blocks that are left."""
    return max(step * message + sum(blocks[step:]) for step in range(len(blocks)))


for _ in range(5):
    steps, block = draw.randint(3, 7), draw.randint(4, 9)
    message = draw.randint(1, block - 1)
    blocks = [message - 1, *[block] * steps]
    check.returns(hidden, (blocks, message), expected=truth(blocks, message))
    message = block + draw.randint(1, 9)
    check.returns(exposed, ([block] * steps, message), expected=truth([block] * steps, message))
    blocks, message = [draw.randint(2, 12) for _ in range(steps)], draw.randint(3, 9)
    blocks[1] = 2 * message + 1
    check.returns(unequal, (blocks, message), expected=truth(blocks, message))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one block</summary>
#
# A block begins at the later of two times: when its keys are there, and when the block before it has ended.
#
# </details>
# <details><summary>Hint 2: when are the keys there?</summary>
#
# Nobody holds them up: those of step `i` arrive at `i * message`.
#
# </details>
# <details><summary>Hint 3: one number</summary>
#
# Keep the end of the block before, and start from 0.
#
# </details>


# %% wrong="ring_end" says="do not add both" gets=0
def ring_end(blocks, message):
    return sum(blocks) + (len(blocks) - 1) * message


# %% wrong="ring_end" says="before its keys have come" gets=0
def ring_end(blocks, message):  # noqa: ARG001
    return sum(blocks)


# %% wrong="ring_end" says="Keys travel on while the rank computes" gets=2
def ring_end(blocks, message):
    return sum(max(block, message) for block in blocks[:-1]) + blocks[-1]


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
# link inside a machine and which between machines. Use the functions of Part 4 of the lesson with your numbers. Give
# the layout that you would choose and one that comes close, with what each keeps and sends. Then say which of your
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
# Finding whom a rank of a mesh speaks to, dealing out a sequence so that a causal ring is balanced, and saying when the
# traffic of a ring hides behind its computing.
