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
# # Links in two levels: exercises
#
# Three functions to write and two questions to answer, for [lesson 07](../07_links_in_two_levels.ipynb). Each exercise
# has a table, a function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints
# that stay folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is modelled or published, so you need no cluster.

# %%
from helpers import exercises
from helpers.studies import two_levels

# %% [markdown]
# ## Exercise 1: how small is small?
#
# In the lesson a straight line went through two times of an all-reduce, a wait plus the bytes over a rate. Below the
# size at which both terms are equal, the GPUs mostly wait. Here are two pairs of published times.
#
# | GPUs | small tensor | large tensor | equal at |
# |---|---|---|--:|
# | 32 B200 in four nodes (Bekman) | 0.378 ms for 1 MiB | 87.2 ms for 16 GiB | 74 MB |
# | 16 H100 in two nodes (A3 Mega) | 0.203 ms for 1 MiB | 47.5 ms for 8 GiB | 36 MB |
#
# Write `equal_bytes`, which returns this size for any two measurements.


# %% answer="equal_bytes"
def equal_bytes(small_bytes, small_s, large_bytes, large_s):
    """Return the bytes for which a straight line through both times waits as long as it sends."""
    ### BEGIN SOLUTION
    rate = (large_bytes - small_bytes) / (large_s - small_s)
    wait_s = small_s - small_bytes / rate
    return wait_s * rate
    ### END SOLUTION


# %% checks="equal_bytes" points=2
check = exercises.Checks("Exercise 1, equal_bytes", equal_bytes)
exact, published = "a wait and a rate", "a published line"
mistakes = {
    30.0: "The wait is not the time of the small tensor; take its bytes over the rate away first",
    2.0: "That is the wait in seconds; multiply it by the rate",
}
check.returns(exact, (10, 3.0, 110, 13.0), expected=20.0, mistakes=mistakes)
times = two_levels.A3_MEGA.times_s
check.returns(published, (2**20, times[2**20], 2**33, times[2**33]), expected=35_824_343.23)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(7001)
for _ in range(4):
    wait_s, rate = draw.randint(1, 9), draw.randint(2, 9) * 10
    small, large = draw.randint(1, 50), draw.randint(100, 900)
    line = (small, wait_s + small / rate, large, wait_s + large / rate)
    check.returns(exact, line, expected=float(wait_s * rate))
times = two_levels.B200_FOUR_NODES.times_s
check.returns(published, (2**20, times[2**20], 2**34, times[2**34]), expected=73_824_172.2)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the rate</summary>
#
# The large tensor has more bytes and takes longer. The further bytes over the further time are the rate.
#
# </details>
# <details><summary>Hint 2: the wait</summary>
#
# The small tensor waits, and then sends its own bytes at that rate.
#
# </details>
# <details><summary>Hint 3: the size</summary>
#
# A tensor of `wait_s * rate` bytes sends for as long as it waits.
#
# </details>


# %% wrong="equal_bytes" says="take its bytes over the rate away first" gets=0
def equal_bytes(small_bytes, small_s, large_bytes, large_s):
    return small_s * (large_bytes - small_bytes) / (large_s - small_s)


# %% wrong="equal_bytes" says="multiply it by the rate" gets=0
def equal_bytes(small_bytes, small_s, large_bytes, large_s):
    return small_s - small_bytes * (large_s - small_s) / (large_bytes - small_bytes)


# %% [markdown]
# ## Exercise 2: read other people's benchmarks
#
# A report has the size of a tensor, the time of its all-reduce, the GPUs per node, the nodes, and the rate of a port.
# In the lesson this was enough to rule out that NCCL had laid eight rings. Three ways to sum are possible.
#
# | way | bytes through the busiest port |
# |---|---|
# | "one ring" through all GPUs | all that a GPU sends in a ring of all GPUs |
# | "many rings", one for each GPU of a node | the same, divided by the GPUs per node |
# | "two levels" | all that a GPU sends in a ring of the nodes, for its share of the tensor |
#
# Write `possible_ways`. It returns the names of the ways, in the order of the table, for which the busiest port needs
# at most the reported time. For 8 GiB on the two A3 Mega nodes, with 47.5 ms and ports of 25 GB/s, that is
# `["two levels"]`.


# %% answer="possible_ways"
def possible_ways(size_bytes, time_s, gpus, nodes, port):
    """Return the names of the ways to sum that a port of so many bytes per second allows in this time."""
    ### BEGIN SOLUTION
    ranks = gpus * nodes
    ring = 2 * (ranks - 1) / ranks * size_bytes
    loads = {"one ring": ring, "many rings": ring / gpus, "two levels": 2 * (nodes - 1) / nodes * size_bytes / gpus}
    return [way for way, load in loads.items() if load / port <= time_s]
    ### END SOLUTION


# %% checks="possible_ways" points=3
check = exercises.Checks("Exercise 2, possible_ways", possible_ways)
fast, several, slow = "two levels alone, or no way at all", "two ways are possible", "all ways are possible"
report = (8 * 2**30, 0.047535, 8, 2, 25e9)
mistakes = {
    (): "In two levels a port carries only its share of the tensor, as the ring of the nodes sends it",
    ("many rings", "two levels"): "With many rings a port carries 2.01 GB, for which it needs 80 ms",
}
check.returns(fast, report, expected=["two levels"], mistakes=mistakes)
mistakes = {("many rings",): "In two levels a port carries only its share of the tensor"}
check.returns(several, (4 * 2**30, 0.02205, 8, 4, 50e9), expected=["many rings", "two levels"], mistakes=mistakes)
check.returns(slow, (8e9, 1.0, 8, 2, 25e9), expected=["one ring", "many rings", "two levels"])
check.returns(fast, (8e9, 0.001, 8, 2, 25e9), expected=[])
check.report()
### BEGIN HIDDEN TESTS
import random
from fractions import Fraction

draw = random.Random(7002)


def truth(size, time_s, gpus, nodes, port):
    ring = Fraction(2 * (gpus * nodes - 1), gpus * nodes) * size
    loads = {"one ring": ring, "many rings": ring / gpus, "two levels": Fraction(2 * (nodes - 1), nodes * gpus) * size}
    return [way for way, load in loads.items() if load / port <= Fraction(time_s)]


for _ in range(4):
    gpus, nodes, port = draw.choice([4, 8, 16]), draw.randint(2, 9), draw.choice([10, 25, 50]) * 10**9
    size = draw.randint(2, 9) * 10**9
    ring_s = 2 * (gpus * nodes - 1) / (gpus * nodes) * size / port
    levels_s = 2 * (nodes - 1) / (nodes * gpus) * size / port
    times = (levels_s + ring_s / gpus) / 2, levels_s / 2, 2 * ring_s / gpus, 2 * ring_s
    for goal, time_s in zip((fast, fast, several, slow), times, strict=True):
        given = (size, time_s, gpus, nodes, port)
        check.returns(goal, given, expected=truth(*given))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: a ring</summary>
#
# In a ring of R members each sends `2 * (R - 1) / R` times the bytes that are summed.
#
# </details>
# <details><summary>Hint 2: which ring, and which bytes?</summary>
#
# One ring has all GPUs and the whole tensor. In two levels the ring outside has one member per node, and it sums a
# share of the tensor.
#
# </details>
# <details><summary>Hint 3: the list</summary>
#
# Put the bytes into a dictionary with the three names in order, and keep the names with `bytes / port <= time_s`.
#
# </details>


# %% wrong="possible_ways" says="for which it needs 80 ms" gets=1
def possible_ways(size_bytes, time_s, gpus, nodes, port):
    ranks = gpus * nodes
    ring = (ranks - 1) / ranks * size_bytes
    loads = {"one ring": ring, "many rings": ring / gpus, "two levels": (nodes - 1) / nodes * size_bytes / gpus}
    return [way for way, load in loads.items() if load / port <= time_s]


# %% wrong="possible_ways" says="only its share of the tensor" gets=1
def possible_ways(size_bytes, time_s, gpus, nodes, port):
    ranks = gpus * nodes
    ring = 2 * (ranks - 1) / ranks * size_bytes
    loads = {"one ring": ring, "many rings": ring / gpus, "two levels": 2 * (nodes - 1) / nodes * size_bytes}
    return [way for way, load in loads.items() if load / port <= time_s]


# %% [markdown]
# ## Exercise 3: a third level
#
# Large clusters have more than two levels, for example 8 GPUs in a node, 4 nodes behind one switch, and 16 such groups.
# The sum goes on as before. After the reduce-scatter inside the node each GPU has an eighth, after a reduce-scatter
# among the nodes of a switch a quarter of that, and this share is summed among the groups. Then two all-gathers lead
# back. For a tensor of 3,200 bytes:
#
# | level | members | bytes that are summed | sent by each GPU |
# |---|--:|--:|--:|
# | node | 8 | 3,200 | 5,600 |
# | switch | 4 | 400 | 600 |
# | cluster | 16 | 100 | 187.5 |
#
# Write `bytes_by_level` for any number of levels. `members` has the number of members of each level, from the inside
# to the outside, such as `[8, 4, 16]`.


# %% answer="bytes_by_level"
def bytes_by_level(size_bytes, members):
    """Return a list with the bytes that each GPU sends on each level of a hierarchical all-reduce."""
    ### BEGIN SOLUTION
    sent = []
    for count in members:
        sent.append(2 * (count - 1) / count * size_bytes)
        size_bytes /= count
    return sent
    ### END SOLUTION


# %% checks="bytes_by_level" points=3
check = exercises.Checks("Exercise 3, bytes_by_level", bytes_by_level)
single, double, triple = "one level is a ring", "two levels", "three levels"
check.returns(single, (3200, [8]), expected=[5600.0], mistakes={(2800.0,): "There is an all-gather as well"})
mistakes = {
    (5600.0, 4800.0): "A GPU takes only its share to the next level, so divide the bytes by the members",
    (2800.0, 300.0): "There is an all-gather as well, on every level",
}
check.returns(double, (3200, [8, 4]), expected=[5600.0, 600.0], mistakes=mistakes)
check.returns(triple, (3200, [8, 4, 16]), expected=[5600.0, 600.0, 187.5])
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(7003)


def truth(size, members):
    sent = []
    for count in members:
        size /= count
        sent.append(2 * (count - 1) * size)
    return sent


for _ in range(3):
    for goal, levels in ((single, 1), (double, 2), (triple, draw.randint(3, 5))):
        members, size = [draw.randint(2, 16) for _ in range(levels)], draw.randint(1, 9) * 10**6
        check.returns(goal, (size, members), expected=truth(size, members))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one level</summary>
#
# With `count` members a GPU sends `(count - 1) / count` of the bytes in the reduce-scatter and as many in the
# all-gather.
#
# </details>
# <details><summary>Hint 2: the next level</summary>
#
# After the reduce-scatter a GPU has `1 / count` of the bytes, and only these go on.
#
# </details>
# <details><summary>Hint 3: the loop</summary>
#
# Go through `members`, append what is sent, and divide the bytes before the next turn.
#
# </details>


# %% wrong="bytes_by_level" says="so divide the bytes by the members" gets=1
def bytes_by_level(size_bytes, members):
    return [2 * (count - 1) / count * size_bytes for count in members]


# %% wrong="bytes_by_level" says="There is an all-gather as well" gets=0
def bytes_by_level(size_bytes, members):
    sent = []
    for count in members:
        sent.append((count - 1) / count * size_bytes)
        size_bytes /= count
    return sent


# %% [markdown]
# ## Question 1: faster than the wire
#
# For 8 GiB on eight H200 in one node, Bekman's table has a bus bandwidth of 473 GB/s, although a GPU sends at most
# 450 GB/s through NVLink. The same GPUs reach 366 GB/s if the switch between them may not add up (NVLS switched off).
#
# How can a bus bandwidth be larger than the rate of the link, and what does the switch change in the bytes that a GPU
# sends? What would you compare with the link instead?
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="faster_than_the_wire" points=2
# A full answer says:
#
# - 1 point: the bus bandwidth takes 2 x 7/8 of the tensor, the bytes of a ring, whatever was really sent; a switch that
#   adds up takes each GPU's tensor once and gives the sum back once, so a GPU sends about the tensor once and not 1.75
#   times.
# - 1 point: 473 / 1.75 is 270 GB/s of tensor per second, which is 60 % of the link if each byte is sent once; without
#   the switch the ring sends 366 GB/s, 81 % of the link. So compare the bytes that the algorithm really sends.

# %% [markdown]
# ## Question 2: an exchange of your own
#
# Take a model and a number of nodes that interest you. Name two exchanges of a training step or of a token, for
# example gradients, sums of a layer that is cut, tokens on their way to experts, or activations between stages. For
# each of them compute the bytes that pass each port, and the number of messages in a row.
#
# Which of the two may leave the node? Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="own_exchange" points=2
# A full answer says:
#
# - 1 point: for two exchanges the bytes per port, with the formula of a sum in two levels, of an all-to-all or of a
#   message from one GPU to another, and how often they happen per step or per token.
# - 1 point: the time of the bytes and of the waiting beside the time of computing, and a decision that follows from
#   both.

# %% [markdown]
# ## What you have practised
#
# Finding the size below which GPUs mostly wait, ruling out algorithms by the rate of a port, and counting the bytes of
# a sum on any number of levels.
