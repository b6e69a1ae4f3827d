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
# Three functions to write, for [lesson 04](../04_data_parallel.ipynb). Each exercise has a table or a picture, a
# function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. No process is started here, and nothing depends on how fast your machine
# is.

# %%
from helpers import exercises, plotting

# %% [markdown]
# ## Exercise 1: the bytes of a ring
#
# A [ring all-reduce](../glossary.md#ring-all-reduce) of `length` elements on `world_size`
# [ranks](../glossary.md#rank). The elements are cut into as many chunks as there are ranks; where that does not
# divide, the first chunks are one element longer: 10 elements on 4 ranks are chunks of 3, 3, 2 and 2. As in the
# lesson, in step $s$ (from 0 to $p - 2$) rank $r$ sends
#
# | half | chunk that it sends (modulo $p$) |
# |---|---|
# | first, to add up | $r - s$ |
# | second, to hand out | $r - s + 1$ |
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
        first = sum(chunk[(rank - step) % world_size] for step in range(world_size - 1))
        second = sum(chunk[(rank - step + 1) % world_size] for step in range(world_size - 1))
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
    (56, 64, 64, 56): "That is the first half twice; in the second a rank sends other chunks",
    (60, 56, 60, 64): "The first chunks are the longer ones, not the last",
}
check.returns(unequal, (4, 10, 4), expected=[60, 64, 60, 56], mistakes=mistakes)
check.returns(narrow, (2, 8, 2), expected=[16, 16], mistakes={(32, 32): "A float16 has 2 bytes: use element_bytes"})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(4001)


def truth(ranks, length, size):
    """Each half leaves out one chunk of all: the one that the rank has, or gets, last."""
    shorter, one_more = divmod(length, ranks)
    chunk = [shorter + (index < one_more) for index in range(ranks)]
    return [size * (2 * length - chunk[(rank + 1) % ranks] - chunk[(rank + 2) % ranks]) for rank in range(ranks)]


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
# There are `world_size - 1` steps in each half. Write down the numbers of the chunks that rank 0 of 4 sends: 0, 3, 2,
# then 1, 0, 3. In Python `-1 % 4` is 3.
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
    return [2 * element_bytes * sum(chunk[(rank - step) % world_size] for step in steps) for rank in range(world_size)]


# %% wrong="ring_bytes" says="The first chunks are the longer ones" gets=2
def ring_bytes(world_size, length, element_bytes):
    shorter, one_more = divmod(length, world_size)
    chunk = [shorter + (index >= world_size - one_more) for index in range(world_size)]
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
        4 * sum(chunk[(rank - step) % world_size] + chunk[(rank - step + 1) % world_size] for step in steps)
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
# ## Exercise 3: when does each bucket arrive?
#
# DDP sends a [bucket](../glossary.md#bucket) as soon as its gradients are ready. The link carries one bucket after the
# other. Here three buckets of one size are ready after 40, 80 and 200 ms, and each all-reduce takes 60 ms:

# %%
spans = [plotting.Span("ready", start, start + 0.002, "gradients are ready") for start in (0.04, 0.08, 0.2)] + [
    plotting.Span("link", start, start + 0.06, "all-reduce", f"bucket {i}") for i, start in enumerate((0.04, 0.1, 0.2))
]
drawn = plotting.gantt(spans, title="Bucket 1 waits for the link, the link waits for bucket 2")
plotting.show(
    drawn, alt="Lanes of readiness and link: bucket 1 waits until bucket 0 has ended, bucket 2 starts when ready."
)

# %% [markdown]
# Write `arrivals_s(ready_s, sizes_bytes, world_size, latency_s, bandwidth)`: the times at which the all-reduces end,
# as a list in the order of the buckets. Each is a ring all-reduce over `world_size` ranks: $2(p-1)$ steps, and in each
# a message of $1/p$ of the bucket, which takes `latency_s` and its bytes over `bandwidth` (bytes a second).


# %% answer="arrivals_s"
def arrivals_s(ready_s, sizes_bytes, world_size, latency_s, bandwidth):
    """Return the seconds at which each bucket has arrived: arrivals_s([1.0], [100], 2, 0.0, 50) is [3.0]."""
    ### BEGIN SOLUTION
    ends, free_s = [], 0.0
    for ready, size_bytes in zip(ready_s, sizes_bytes, strict=True):
        message_s = latency_s + size_bytes / world_size / bandwidth
        free_s = max(ready, free_s) + 2 * (world_size - 1) * message_s
        ends.append(free_s)
    return ends
    ### END SOLUTION


# %% checks="arrivals_s" points=3
check = exercises.Checks("Exercise 3, arrivals_s", arrivals_s)
waits, idle, delays = "a bucket waits for the link", "the link waits for a bucket", "every message pays the latency"
mistakes = {
    (7.0, 7.0, 7.0): "All three at once? The link carries one bucket after the other",
    (25.0, 49.0, 73.0): "A message is 1 / world_size of the bucket",
    (4.0, 7.0, 10.0): "That is half of the ring: it takes p - 1 steps to add up, and as many to hand out",
    (1.0, 7.0, 13.0): "Those are the times at which the buckets start; say when they end",
}
check.returns(waits, ([1, 1, 1], [400] * 3, 4, 0, 100), expected=[7.0, 13.0, 19.0], mistakes=mistakes)
early = {(7.0, 13.0): "The second ends before its gradients are ready; the link must wait for them"}
check.returns(idle, ([1, 50], [400, 400], 4, 0, 100), expected=[7.0, 56.0], mistakes=early)
cheap = {(8.0,): "There are 2 (p - 1) messages one after the other, and each pays the latency"}
check.returns(delays, ([1], [400], 4, 1.0, 100), expected=[13.0], mistakes=cheap)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(4003)


def truth(ready, sizes, ranks, latency, bandwidth):
    """The last start from which the link was never idle decides: the latest over all possible starts."""
    took = [2 * (ranks - 1) * (latency + size / ranks / bandwidth) for size in sizes]
    return [max(ready[first] + sum(took[first : end + 1]) for first in range(end + 1)) for end in range(len(ready))]


for _ in range(5):
    ranks, bandwidth = draw.randint(3, 8), draw.randint(50, 500)
    sizes = [ranks * bandwidth * draw.randint(1, 9) for _ in range(5)]
    longest = 2 * ranks * max(sizes) / bandwidth
    crowd = [draw.randint(1, 3)] * 5
    check.returns(waits, (crowd, sizes, ranks, 0, bandwidth), expected=truth(crowd, sizes, ranks, 0, bandwidth))
    apart = [1 + place * longest for place in range(5)]
    check.returns(idle, (apart, sizes, ranks, 0, bandwidth), expected=truth(apart, sizes, ranks, 0, bandwidth))
    one = ([draw.randint(1, 9)], sizes[:1], ranks, draw.randint(1, 5), bandwidth)
    check.returns(delays, one, expected=truth(*one))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one bucket</summary>
#
# How long is it on the link? `2 * (world_size - 1)` messages, each with its latency and its share of the bytes.
#
# </details>
# <details><summary>Hint 2: when does it start?</summary>
#
# At the later of two moments: when it is ready, and when the link is free.
#
# </details>
# <details><summary>Hint 3: the loop</summary>
#
# Keep one number, the moment from which the link is free. Each bucket moves it.
#
# </details>


# %% wrong="arrivals_s" says="The link carries one bucket after the other" gets=2
def arrivals_s(ready_s, sizes_bytes, world_size, latency_s, bandwidth):
    steps = 2 * (world_size - 1)
    return [
        ready + steps * (latency_s + size / world_size / bandwidth)
        for ready, size in zip(ready_s, sizes_bytes, strict=True)
    ]


# %% wrong="arrivals_s" says="the link must wait for them" gets=2
def arrivals_s(ready_s, sizes_bytes, world_size, latency_s, bandwidth):
    ends, now = [], ready_s[0]
    for size in sizes_bytes:
        now += 2 * (world_size - 1) * (latency_s + size / world_size / bandwidth)
        ends.append(now)
    return ends


# %% wrong="arrivals_s" says="each pays the latency" gets=2
def arrivals_s(ready_s, sizes_bytes, world_size, latency_s, bandwidth):
    ends, free = [], 0.0
    for ready, size in zip(ready_s, sizes_bytes, strict=True):
        free = max(ready, free) + latency_s + 2 * (world_size - 1) * size / world_size / bandwidth
        ends.append(free)
    return ends


# %% wrong="arrivals_s" says="That is half of the ring" gets=0
def arrivals_s(ready_s, sizes_bytes, world_size, latency_s, bandwidth):
    ends, free = [], 0.0
    for ready, size in zip(ready_s, sizes_bytes, strict=True):
        free = max(ready, free) + (world_size - 1) * (latency_s + size / world_size / bandwidth)
        ends.append(free)
    return ends


# %% wrong="arrivals_s" says="Those are the times at which the buckets start" gets=0
def arrivals_s(ready_s, sizes_bytes, world_size, latency_s, bandwidth):
    starts, free = [], 0.0
    for ready, size in zip(ready_s, sizes_bytes, strict=True):
        starts.append(max(ready, free))
        free = starts[-1] + 2 * (world_size - 1) * (latency_s + size / world_size / bandwidth)
    return starts


# %% wrong="arrivals_s" says="A message is 1 / world_size of the bucket" gets=0
def arrivals_s(ready_s, sizes_bytes, world_size, latency_s, bandwidth):
    ends, free = [], 0.0
    for ready, size in zip(ready_s, sizes_bytes, strict=True):
        free = max(ready, free) + 2 * (world_size - 1) * (latency_s + size / bandwidth)
        ends.append(free)
    return ends


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
# ## Question 2: when is it worth a second machine?
#
# A step computes for 100 ms on one machine. Its gradients have 400 MB. Describe how you would decide, before buying
# anything, whether two machines with a given link make the training faster, and which one change to the training makes
# a slow link matter less.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="second_machine" points=2
# A full answer says:
#
# - 1 point: the time of the all-reduce from the bytes and the link's latency and bandwidth (in a ring of two each sends
#   the whole gradient once), against the compute time that it can hide behind (buckets go while the backward still
#   runs); it pays when what is left is less than what is saved: half of the computing, if the batch is divided.
# - 1 point: fewer synchronisations for the work: a larger batch or accumulated gradients, or fewer bytes: narrower
#   gradients. The answer must say what it costs (memory, steps, digits).

# %% [markdown]
# ## What you have practised
#
# Counting what a ring sends when nothing divides, giving every row the same say, and following buckets over a link
# that is sometimes late and sometimes idle. `parallel.collective`, `data_parallel.batch_weight` and
# `parallel.ddp_step` do these in the library; now you know what they count.
