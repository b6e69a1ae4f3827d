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
# # Data parallel: exercises
#
# Three functions to write, for [lesson 05](../05_data_parallel.ipynb). Each exercise has a table or a picture, a
# function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Nothing depends on how fast your machine is.

# %%
import torch
import torch.distributed as dist

from helpers import exercises
from helpers.ranks import Ranks

# %% [markdown]
# ## Exercise 1: the bytes of a ring
#
# A [ring all-reduce](../glossary.md#ring-all-reduce) of `length` elements on `world_size` [ranks](../glossary.md#rank).
# The elements are cut into as many chunks as there are ranks; where that does not divide, the first chunks are one
# element longer: 10 elements on 4 ranks are chunks of 3, 3, 2 and 2. As in the lesson, in step $s$ (from 0 to $R - 2$)
# rank $r$ of $R$ sends
#
# | half | chunk that it sends (modulo $R$) |
# |---|---|
# | reduce-scatter | $r - s - 1$ |
# | all-gather | $r - s$ |
#
# Write `ring_bytes(world_size, length, element_bytes)`, which returns a list: the bytes that each rank sends in all, in
# the order of the ranks. One rank alone sends nothing.


# %% answer="ring_bytes"
def ring_bytes(world_size, length, element_bytes):
    """Return the bytes that each rank sends: ring_bytes(2, 8, 4) is [32, 32]."""
    ### BEGIN SOLUTION
    shorter, one_more = divmod(length, world_size)
    chunk = [shorter + (index < one_more) for index in range(world_size)]
    sent = []
    for rank in range(world_size):
        first = sum(chunk[(rank - step - 1) % world_size] for step in range(world_size - 1))
        second = sum(chunk[(rank - step) % world_size] for step in range(world_size - 1))
        sent.append((first + second) * element_bytes)
    return sent
    ### END SOLUTION


# %% checks="ring_bytes" points=3
check = exercises.Checks("Exercise 1, ring_bytes", ring_bytes)
equal, unequal = "equal chunks are counted", "chunks of unequal length are counted"
narrow = "other types than float32 are counted"
once = "That is one half of the ring; after adding up, the sums must be handed out"
everything = "In each step a rank sends one chunk, not everything"
check.returns(
    equal, (4, 16, 4), expected=[96] * 4, mistakes={(48,) * 4: once, (384,) * 4: everything, (24,) * 4: "Bytes, please"}
)
check.returns(equal, (1, 16, 4), expected=[0], mistakes={(128,): "One rank has nobody to send to"})
mistakes = {
    (60,) * 4: "That is the mean of the ranks; follow which chunks each of them sends",
    (56, 56, 64, 64): "That is the first half twice; in the second a rank sends other chunks",
    (64, 60, 56, 60): "The first chunks are the longer ones, not the last",
    (60, 64, 60, 56): "In step 0 rank r sends chunk r - 1 first, and chunk r in the second half",
}
check.returns(unequal, (4, 10, 4), expected=[56, 60, 64, 60], mistakes=mistakes)
check.returns(narrow, (2, 8, 2), expected=[16, 16], mistakes={(32, 32): "A float16 has 2 bytes: use element_bytes"})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(4001)


def truth(ranks, length, size):
    """Each half leaves out one chunk of all: the one that the rank has, or gets, last."""
    shorter, one_more = divmod(length, ranks)
    chunk = [shorter + (index < one_more) for index in range(ranks)]
    return [size * (2 * length - chunk[rank] - chunk[(rank + 1) % ranks]) for rank in range(ranks)]


for _ in range(6):
    ranks = draw.randint(3, 9)
    even = ranks * draw.randint(2, 99)
    check.returns(equal, (ranks, even, 4), expected=truth(ranks, even, 4))
    odd = even + draw.randint(1, ranks - 1)
    check.returns(unequal, (ranks, odd, 4), expected=truth(ranks, odd, 4))
    check.returns(narrow, (ranks, even, 2), expected=truth(ranks, even, 2))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the chunks</summary>
#
# `divmod(length, world_size)` gives the shorter length and how many chunks are one longer.
#
# </details>
# <details><summary>Hint 2: one rank</summary>
#
# There are `world_size - 1` steps in each half. Write down the numbers of the chunks that rank 0 of 4 sends: 3, 2, 1,
# then 0, 3, 2. In Python `-1 % 4` is 3.
#
# </details>
# <details><summary>Hint 3: all ranks</summary>
#
# Two sums over the steps, for each rank, and the bytes of an element at the end.
#
# </details>


# %% wrong="ring_bytes" says="That is the mean of the ranks" gets=2
def ring_bytes(world_size, length, element_bytes):
    return [2 * (world_size - 1) * length * element_bytes // world_size] * world_size


# %% wrong="ring_bytes" says="That is one half of the ring" gets=0
def ring_bytes(world_size, length, element_bytes):
    return [(world_size - 1) * length * element_bytes // world_size] * world_size


# %% wrong="ring_bytes" says="That is the first half twice" gets=2
def ring_bytes(world_size, length, element_bytes):
    chunk = [length // world_size + (index < length % world_size) for index in range(world_size)]
    steps = range(world_size - 1)
    return [
        2 * element_bytes * sum(chunk[(rank - step - 1) % world_size] for step in steps) for rank in range(world_size)
    ]


# %% wrong="ring_bytes" says="The first chunks are the longer ones" gets=2
def ring_bytes(world_size, length, element_bytes):
    shorter, one_more = divmod(length, world_size)
    chunk = [shorter + (index >= world_size - one_more) for index in range(world_size)]
    steps = range(world_size - 1)
    return [
        element_bytes * sum(chunk[(rank - step - 1) % world_size] + chunk[(rank - step) % world_size] for step in steps)
        for rank in range(world_size)
    ]


# %% wrong="ring_bytes" says="In step 0 rank r sends chunk r - 1 first" gets=2
def ring_bytes(world_size, length, element_bytes):
    chunk = [length // world_size + (index < length % world_size) for index in range(world_size)]
    steps = range(world_size - 1)
    return [
        element_bytes * sum(chunk[(rank - step) % world_size] + chunk[(rank - step + 1) % world_size] for step in steps)
        for rank in range(world_size)
    ]


# %% wrong="ring_bytes" says="A float16 has 2 bytes" gets=2
def ring_bytes(world_size, length, _element_bytes):
    chunk = [length // world_size + (index < length % world_size) for index in range(world_size)]
    steps = range(world_size - 1)
    return [
        4 * sum(chunk[(rank - step - 1) % world_size] + chunk[(rank - step) % world_size] for step in steps)
        for rank in range(world_size)
    ]


# %% [markdown]
# ## Exercise 2: what is a micro-batch worth?
#
# Each rank works on a list of micro-batches and adds up their gradients
# ([gradient accumulation](../glossary.md#gradient-accumulation)). The loss of a micro-batch is the mean over its rows,
# times a weight. At the end DDP takes the mean over the ranks. Two ranks, 16 rows:
#
# | rank | micro-batches | what the gradient of one process needs |
# |--:|---|---|
# | 0 | 6 rows, 4 rows | every row counts 1/16 |
# | 1 | 4 rows, 2 rows | every row counts 1/16 |
#
# Write `loss_weights(rows)`. `rows` has a list for each rank, with the rows of each of its micro-batches: `[[6, 4],
# [4, 2]]`. Return lists of the same shape with the weights that make the result the mean gradient of all rows.


# %% answer="loss_weights"
def loss_weights(rows):
    """Return a weight for each micro-batch: loss_weights([[8], [8]]) is [[1.0], [1.0]]."""
    ### BEGIN SOLUTION
    total = sum(sum(mine) for mine in rows)
    return [[len(rows) * count / total for count in mine] for mine in rows]
    ### END SOLUTION


# %% checks="loss_weights" points=3
check = exercises.Checks("Exercise 2, loss_weights", loss_weights)
even, over_ranks = "equal micro-batches are weighed", "ranks with unequal shards are weighed"
over_parts = "unequal micro-batches of a rank are weighed"
no_ranks = "DDP divides by the number of ranks as well; that would count every row 1 / world_size times"
no_parts = "Gradients of micro-batches add up; those weights count every row as often as there are micro-batches"
shares = {((0.25, 0.25), (0.25, 0.25)): no_ranks, ((1.0, 1.0), (1.0, 1.0)): no_parts}
check.returns(even, ([[8, 8], [8, 8]],), expected=[[0.5, 0.5], [0.5, 0.5]], mistakes=shares)
check.returns(
    over_ranks,
    ([[12], [4]],),
    expected=[[1.5], [0.5]],
    mistakes={((1.0,), (1.0,)): "Then a row of rank 1 counts three times a row of rank 0"},
)
means = {((0.5, 0.5), (0.5, 0.5)): "Then a row of the short micro-batch counts three times a row of the long one"}
check.returns(over_parts, ([[6, 2], [4, 4]],), expected=[[0.75, 0.25], [0.5, 0.5]], mistakes=means)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(4002)


def truth(rows):
    """What weight w of b rows gives to a row after the mean over the ranks, w / b / ranks, must be 1 / all rows."""
    everyone = [count for mine in rows for count in mine]
    return [[count * len(rows) / sum(everyone) for count in mine] for mine in rows]


for _ in range(5):
    ranks, parts, size = draw.randint(3, 6), draw.randint(3, 5), draw.randint(3, 40)
    check.returns(even, ([[size] * parts] * ranks,), expected=truth([[size] * parts] * ranks))
    alone = [[size + place * draw.randint(1, 5)] for place in range(ranks)]
    check.returns(over_ranks, (alone,), expected=truth(alone))
    uneven = [2 * size, size, *[size + 1] * (parts - 2)]
    mixed = [[*uneven[turn % parts :], *uneven[: turn % parts]] for turn in range(ranks)]
    check.returns(over_parts, (mixed,), expected=truth(mixed))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one row</summary>
#
# A row in a micro-batch of 4 rows with the weight w ends with w / 4 / 2 of the result, where 2 is the number of ranks.
#
# </details>
# <details><summary>Hint 2: solve for w</summary>
#
# That must be 1 over the number of all rows.
#
# </details>
# <details><summary>Hint 3: the shape</summary>
#
# `[[... for count in mine] for mine in rows]`.
#
# </details>


# %% wrong="loss_weights" says="Then a row of rank 1 counts three times" gets=2
def loss_weights(rows):
    return [[count / sum(mine) for count in mine] for mine in rows]


# %% wrong="loss_weights" says="Then a row of the short micro-batch counts three times" gets=2
def loss_weights(rows):
    total = sum(sum(mine) for mine in rows)
    return [[len(rows) * sum(mine) / total / len(mine)] * len(mine) for mine in rows]


# %% wrong="loss_weights" says="DDP divides by the number of ranks as well" gets=0
def loss_weights(rows):
    total = sum(sum(mine) for mine in rows)
    return [[count / total for count in mine] for mine in rows]


# %% [markdown]
# ## Exercise 3: each rank updates its part
#
# ZeRO's first stage. Every rank keeps all weights, and the momentum of its own part alone: rank $r$ of $p$ owns the
# $r$-th of $p$ equal parts. One step of two ranks with four weights:
#
# | | rank 0 | rank 1 |
# |---|---|---|
# | gradients of its own rows | 1, 2, 3, 4 | 5, 6, 7, 8 |
# | after reduce-scatter: sums of its part | 6, 8 | 10, 12 |
# | updates its part with the mean | 3, 4 | 5, 6 |
# | after all-gather | all new weights | all new weights |
#
# Write `sharded_update(weights, momentum, gradient, rank, world_size, reduce_scatter, all_gather)`. All numbers stand
# in lists. `reduce_scatter(numbers)` takes as many numbers as there are weights, and returns this rank's part of their
# sums over the ranks; `all_gather(part)` returns the parts of all ranks as one list. The new momentum is 0.9 times the
# old plus the *mean* gradient; a weight loses 0.1 times its momentum. Return all new weights, and the new momentum of
# this rank's part.
#
# The checks make the two collectives of a rank from what the other ranks bring:


# %%
def collectives(rank, gradients, parts):
    """Return reduce_scatter and all_gather of ``rank``, when the others bring these gradients and parts."""

    def reduce_scatter(numbers):
        brought = [*gradients[:rank], numbers, *gradients[rank + 1 :]]
        sums, size = [sum(column) for column in zip(*brought, strict=True)], len(numbers) // len(gradients)
        return sums[rank * size : (rank + 1) * size]

    def all_gather(part):
        return [number for other in (*parts[:rank], part, *parts[rank + 1 :]) for number in other]

    return reduce_scatter, all_gather


# %% answer="sharded_update"
def sharded_update(weights, momentum, gradient, rank, world_size, reduce_scatter, all_gather):
    """Return all new weights and this rank's new momentum; one rank, weight 1, gradient 1: ([0.9], [1.0])."""
    ### BEGIN SOLUTION
    sums = reduce_scatter(gradient)
    momentum = [0.9 * old + total / world_size for old, total in zip(momentum, sums, strict=True)]
    own = weights[rank * len(momentum) : (rank + 1) * len(momentum)]
    return all_gather([weight - 0.1 * moved for weight, moved in zip(own, momentum, strict=True)]), momentum
    ### END SOLUTION


# %% checks="sharded_update" points=3
check = exercises.Checks("Exercise 3, sharded_update", sharded_update)
alone, own_part, kept = "one rank alone", "each rank updates its own part", "the momentum is kept"
check.returns(
    alone,
    ([1.0, 2.0], [0.0, 0.0], [1.0, 1.0], 0, 1, *collectives(0, [[]], [[]])),
    expected=([0.9, 1.9], [1.0, 1.0]),
    mistakes={((1.1, 2.1), (1.0, 1.0)): "Downhill, please: subtract"},
)
two = collectives(1, [[1.0, 2.0, 3.0, 4.0], []], [[0.7, 0.6], []])
told = {
    ((0.7, 0.6, 1.0, 0.8), (10.0, 12.0)): "Those are sums over the ranks: the step needs the mean",
    ((0.7, 0.6, 0.5, 0.4), (5.0, 6.0)): "These begin with the weights of rank 0: take this rank's part",
    ((0.7, 0.6, 1.3, 1.2), (7.0, 8.0)): "That is this rank's own gradient: reduce_scatter adds the others'",
    ((1.5, 1.4), (5.0, 6.0)): "Return all weights: all_gather has the other part",
}
check.returns(
    own_part,
    ([1.0, 1.0, 2.0, 2.0], [0.0, 0.0], [5.0, 6.0, 7.0, 8.0], 1, 2, *two),
    expected=([0.7, 0.6, 1.5, 1.4], [5.0, 6.0]),
    mistakes=told,
)
two = collectives(0, [[], [4.0] * 4], [[], [9.0, 9.0]])
check.returns(
    kept,
    ([0.0] * 4, [10.0, 20.0], [2.0] * 4, 0, 2, *two),
    expected=([-1.2, -2.1, 9.0, 9.0], [12.0, 21.0]),
    mistakes={((-0.3, -0.3, 9.0, 9.0), (3.0, 3.0)): "The old momentum is lost: 0.9 times of it stays"},
)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(4003)


def some(count):
    return [draw.randint(-40, 40) / 8 for _ in range(count)]


def step(ranks, size, fresh):
    """Return a rank's arguments and answer, from the step of one process that keeps everything."""
    everything, rank = ranks * size, draw.randrange(ranks)
    weights, old = some(everything), [0.0] * everything if fresh else some(everything)
    gradients = [some(everything) for _ in range(ranks)]
    new = [0.9 * kept + sum(column) / ranks for kept, column in zip(old, zip(*gradients, strict=True), strict=True)]
    after = [weight - 0.1 * moved for weight, moved in zip(weights, new, strict=True)]
    mine = slice(rank * size, (rank + 1) * size)
    parts = [after[place * size : (place + 1) * size] for place in range(ranks)]
    given = (weights, old[mine], gradients[rank], rank, ranks, *collectives(rank, gradients, parts))
    return given, (after, new[mine])


for _ in range(4):
    for goal, ranks, fresh in (
        (alone, 1, True),
        (own_part, draw.randint(2, 5), True),
        (kept, draw.randint(2, 5), False),
    ):
        given, wanted = step(ranks, draw.randint(2, 6), fresh)
        check.returns(goal, given, expected=wanted)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what a rank knows</summary>
#
# It knows all weights and the gradients of its own rows. Of the momentum it has its part, and no more.
#
# </details>
# <details><summary>Hint 2: two calls</summary>
#
# `reduce_scatter(gradient)` first: its result is as long as `momentum`. `all_gather` last, with the new weights of the
# part.
#
# </details>
# <details><summary>Hint 3: which weights are its own?</summary>
#
# `weights[rank * len(momentum) : (rank + 1) * len(momentum)]`.
#
# </details>


# %% wrong="sharded_update" says="Those are sums over the ranks" gets=1
def sharded_update(weights, momentum, gradient, rank, world_size, reduce_scatter, all_gather):  # noqa: ARG001
    momentum = [0.9 * old + total for old, total in zip(momentum, reduce_scatter(gradient), strict=True)]
    own = weights[rank * len(momentum) : (rank + 1) * len(momentum)]
    return all_gather([weight - 0.1 * moved for weight, moved in zip(own, momentum, strict=True)]), momentum


# %% wrong="sharded_update" says="These begin with the weights of rank 0" gets=1
def sharded_update(weights, momentum, gradient, rank, world_size, reduce_scatter, all_gather):  # noqa: ARG001
    momentum = [0.9 * old + total / world_size for old, total in zip(momentum, reduce_scatter(gradient), strict=True)]
    return all_gather([weight - 0.1 * moved for weight, moved in zip(weights, momentum, strict=False)]), momentum


# %% wrong="sharded_update" says="The old momentum is lost" gets=2
def sharded_update(weights, momentum, gradient, rank, world_size, reduce_scatter, all_gather):
    momentum = [total / world_size for total in reduce_scatter(gradient)]
    own = weights[rank * len(momentum) : (rank + 1) * len(momentum)]
    return all_gather([weight - 0.1 * moved for weight, moved in zip(own, momentum, strict=True)]), momentum


# %% wrong="sharded_update" says="Return all weights" gets=1
def sharded_update(weights, momentum, gradient, rank, world_size, reduce_scatter, all_gather):  # noqa: ARG001
    momentum = [0.9 * old + total / world_size for old, total in zip(momentum, reduce_scatter(gradient), strict=True)]
    own = weights[rank * len(momentum) : (rank + 1) * len(momentum)]
    return [weight - 0.1 * moved for weight, moved in zip(own, momentum, strict=True)], momentum


# %% [markdown]
# ## The same on real ranks
#
# Your function on four processes, with the collectives of `torch.distributed`: ten steps downhill in a bowl, $\sum
# w^2$, of which each rank sees a quarter of the terms. One process that keeps everything ends at the number below. Do
# your ranks?


# %%
def ten_steps(rank, world_size, update):
    weights, momentum = [1.0, 2.0, 3.0, 4.0], [0.0]
    for _ in range(10):
        gradient = [2 * world_size * weight * (place == rank) for place, weight in enumerate(weights)]
        answer = update(weights, momentum, gradient, rank, world_size, summed_part, all_parts)
        if isinstance(answer, exercises.NotYet):
            return "not yet"
        weights, momentum = answer
    return [round(weight, 4) for weight in weights]


def summed_part(numbers):
    part = torch.empty(len(numbers) // dist.get_world_size())
    dist.reduce_scatter(part, list(torch.tensor(numbers).chunk(dist.get_world_size())))
    return part.tolist()


def all_parts(part):
    parts = [torch.empty(len(part)) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.tensor(part))
    return torch.cat(parts).tolist()


if "sharded_update" in dir():
    with Ranks(4, device="cpu") as ranks:
        for rank, ended in enumerate(ranks.run(ten_steps, sharded_update, timeout_s=60)):
            print(f"rank {rank}: {ended}")

# %% [markdown]
# `torch.optim.SGD(lr=0.1, momentum=0.9)` in one process:

# %%
weights = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9)
for _ in range(10):
    optimizer.zero_grad()
    weights.square().sum().backward()
    optimizer.step()
print([round(weight, 4) for weight in weights.tolist()])

# %% [markdown]
# ## Question 1: more ranks, the same step
#
# You train with one process and a batch of 256, and then with 8 ranks of 32 rows each and the same seed. Under which
# conditions do both follow the same path, and to how many digits? Name two things that let them drift apart although
# the program is correct.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="same_step" points=2
# A full answer says:
#
# - 1 point: the same initial weights, every row once a step, gradients averaged with every row counting the same; then
#   they agree to the rounding of the sums, not bit by bit, since the order of addition differs.
# - 1 point: two of: batch norm's statistics from 32 rows instead of 256, dropout drawn per rank, rounding that grows
#   over many steps, a last batch that does not divide.

# %% [markdown]
# ## Question 2: your own machine and its link
#
# Take your machine's FLOP/s (`helpers.probe()`, or `helpers.machine_card()` with a published rate for your GPU) and the
# link to the nearest other machine that you could train with: Wi-Fi, a cable, or what your laboratory has. From how
# many tokens per rank on can the backward pass hide the all-reduce of two machines? Is that many? Which one change
# would you make first?
#
# Give your two rates with where you have them from, the number, and two to four sentences; a person reads them.

# %% [markdown] written="own_link" points=2
# A full answer says:
#
# - 1 point: both rates with their origin and unit (bits and bytes not confused), and the number from
#   $\frac{P}{B} \frac{R-1}{R}$, that is P / (2 B) for two ranks and 2 bytes of gradient per parameter (twice that with
#   float32), where P is the rate in FLOP per second and B the bandwidth of the link in bytes per second. A laptop of
#   100 GFLOP/s on 100 Mbit/s needs about 4,000 tokens.
# - 1 point: a judgement held against a batch that fits the machine's memory, and a change that fits it: accumulate, a
#   larger batch, fewer bytes a gradient, a better link; with what it costs.

# %% [markdown]
# ## What you have practised
#
# Counting what a ring sends when nothing divides, giving every row the same say, and updating weights of which a rank
# keeps the momentum of a part alone. `parallel.collective`, `fully_shard` and
# `torch.distributed.optim.ZeroRedundancyOptimizer` do these for you; now you know what they count and send.
