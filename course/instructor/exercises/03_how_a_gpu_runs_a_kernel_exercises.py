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
# # How a GPU runs a kernel: exercises
#
# Three functions to write and two questions to answer, for [lesson 03](../03_how_a_gpu_runs_a_kernel.ipynb). Each
# exercise has a picture or a table, a function that returns `exercises.not_yet` until you write it, checks that you
# can read, and three hints that stay folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is counted or modelled, so you need no GPU.

# %%
import inspect

import numpy as np

from helpers import exercises
from helpers.studies.gpu_execution import launch


def run(function, *arguments, grid, block):
    """What `launch` counts of a kernel, or `not_yet` while the kernel is not written."""
    answers = []

    def kernel(thread, *given):
        answer = function(thread, *given)
        if inspect.isgenerator(answer):
            yield from answer
        answers.append(answer)

    done = launch(kernel, *arguments, grid=grid, block=block)
    return exercises.not_yet if answers[0] is exercises.not_yet else done


# %% [markdown]
# ## Exercise 1: several values per thread
#
# In the lesson four values per thread brought more bandwidth, because each thread had four loads in flight. They bring
# it only if the requests stay coalesced. Here a block of 32 threads copies 64 values, two per thread. The table has the
# values that the first three lanes copy in each of the two steps, in two kernels.
#
# | kernel | step 0 | step 1 | sectors of a load |
# |---|---|---|--:|
# | each thread copies neighbours | 0, 2, 4, ... | 1, 3, 5, ... | 8 |
# | each warp copies neighbours | 0, 1, 2, ... | 32, 33, 34, ... | 4 |
#
# Write the second kernel, `copy_many`, for any number of values per thread. A block copies `values` times as many
# consecutive elements as it has threads, `thread.block_width`, and the last block may have fewer to copy.


# %% answer="copy_many"
def copy_many(thread, source, target, values):
    """Copy this thread's elements, so that the lanes of a warp copy neighbours in each step."""
    ### BEGIN SOLUTION
    width = thread.block_width
    for step in range(values):
        i = thread.block_x * width * values + step * width + thread.thread_x
        if i < len(source):
            target[i] = source[i]
    ### END SOLUTION


# %% checks="copy_many" points=3
check = exercises.Checks("Exercise 1, copy_many", copy_many)
whole, coalesced, guarded = "all blocks copy all their elements", "a load touches 4 sectors", "the end is guarded"


def copied(function, count, values, blocks, width):
    """How many elements were copied."""
    source, target = np.arange(1, count + 1, dtype=np.float32), np.zeros(count, np.float32)
    done = run(function, source, target, values, grid=blocks, block=width)
    return done if done is exercises.not_yet else int((source == target).sum())


def all_sectors(function, values, width):
    """The sectors of all loads and stores of one full block."""
    source, target = np.ones(values * width, np.float32), np.zeros(values * width, np.float32)
    done = run(function, source, target, values, grid=1, block=width)
    return done if done is exercises.not_yet else done.sectors


slips = {64: "Each block begins behind all elements of the blocks before it, `values` times its width"}
check.returns(whole, (128, 2, 2, 32), call=copied, expected=128, mistakes=slips)
slips = {32: "Lanes are two elements apart; let neighbouring lanes copy neighbours in each step"}
check.returns(coalesced, (2, 32), call=all_sectors, expected=16, mistakes=slips)  # two loads and two stores
check.returns(guarded, (50, 2, 1, 32), call=copied, expected=50)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(3001)
for _ in range(3):
    values, blocks, width = draw.randint(2, 5), draw.randint(2, 3), 32 * draw.randint(1, 2)
    check.returns(
        whole, (blocks * values * width, values, blocks, width), call=copied, expected=blocks * values * width
    )
    values = draw.randint(2, 6)
    check.returns(coalesced, (values, 64), call=all_sectors, expected=values * 2 * 2 * 4)
    count = 32 * values - draw.randint(1, 31)
    check.returns(guarded, (count, values, 1, 32), call=copied, expected=count)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one block, two steps</summary>
#
# In step 0 thread 5 of the block copies element 5, and in step 1 it copies element 37.
#
# </details>
# <details><summary>Hint 2: any step</summary>
#
# From one step to the next the index grows by the number of threads of the block.
#
# </details>
# <details><summary>Hint 3: any block</summary>
#
# Block b begins at element `b * thread.block_width * values`. Check each index before you use it.
#
# </details>


# %% wrong="copy_many" says="let neighbouring lanes copy neighbours" gets=2
def copy_many(thread, source, target, values):
    for step in range(values):
        i = (thread.block_x * thread.block_width + thread.thread_x) * values + step
        if i < len(source):
            target[i] = source[i]


# %% wrong="copy_many" says="guard the access with an if" gets=2
def copy_many(thread, source, target, values):
    width = thread.block_width
    for step in range(values):
        i = thread.block_x * width * values + step * width + thread.thread_x
        target[i] = source[i]


# %% [markdown]
# ## Exercise 2: a sum in three ways
#
# A block adds up 256 values in shared memory. In each round the threads add pairs and wait at a barrier, so after eight
# rounds the first word has the sum. These two kernels differ in the threads that add. The first one takes every
# second thread, then every fourth, and so on. The second one takes the first threads, which add the same pairs.


# %%
def scattered(thread, values, total):
    i = thread.thread_x
    words = thread.shared("words", 256)
    words[i] = values[i]
    yield
    distance = 1
    while distance < 256:
        if i % (2 * distance) == 0:
            words[i] = words[i] + words[i + distance]
        yield
        distance *= 2
    if i == 0:
        total[0] = words[0]


def strided(thread, values, total):
    i = thread.thread_x
    words = thread.shared("words", 256)
    words[i] = values[i]
    yield
    distance = 1
    while distance < 256:
        if 2 * distance * i < 256:
            first = 2 * distance * i
            words[first] = words[first] + words[first + distance]
        yield
        distance *= 2
    if i == 0:
        total[0] = words[0]


# %% [markdown]
# The requests to shared memory say how many warps take part, and the passes say how long its banks are busy.


# %%
def shared_costs(kernel):
    """The requests and the passes of a kernel in shared memory, and its sum of 256 ones."""
    total = np.zeros(1, np.float32)
    done = launch(kernel, np.ones(256, np.float32), total, grid=1, block=256)
    requests = sum(row.requests for row in done.counts if row.space == "shared")
    return requests, done.passes, float(total[0])


for kernel in (scattered, strided):
    requests, passes, total = shared_costs(kernel)
    print(f"{kernel.__name__:>9}: {requests} requests, {passes} passes, sum {total:.0f}")

# %% [markdown]
# In `scattered` all eight warps take part in each of the first five rounds, with fewer and fewer lanes. In `strided`
# few warps do, but the words that their lanes want are in the same banks. Write `in_order`, in which the first threads
# add and the words of
# neighbouring lanes are neighbours. In the first round thread i adds word i + 128 to word i, in the second round word
# i + 64, and so on.


# %% answer="in_order"
def in_order(thread, values, total):
    """Write the sum of 256 values, so that neither lanes nor banks are wasted."""
    ### BEGIN SOLUTION
    i = thread.thread_x
    words = thread.shared("words", 256)
    words[i] = values[i]
    yield
    distance = 128
    while distance > 0:
        if i < distance:
            words[i] = words[i] + words[i + distance]
        yield
        distance //= 2
    if i == 0:
        total[0] = words[0]
    ### END SOLUTION


# %% checks="in_order" points=3
check = exercises.Checks("Exercise 2, in_order", in_order)
right, together, apart = "the sum is right", "few warps take part", "no bank conflicts"


def summed(function, values):
    total = np.zeros(1, np.float32)
    done = run(function, np.array(values, np.float32), total, grid=1, block=256)
    return done if done is exercises.not_yet else float(total[0])


def few_requests(function, values):
    done = run(function, np.array(values, np.float32), np.zeros(1, np.float32), grid=1, block=256)
    if done is exercises.not_yet:
        return done
    requests = sum(row.requests for row in done.counts if row.space == "shared")
    return requests <= 60 if requests else "no request to shared memory"


def most_passes(function, values):
    done = run(function, np.array(values, np.float32), np.zeros(1, np.float32), grid=1, block=256)
    return done if done is exercises.not_yet else max((request.passes for request in done.requests), default=0)


ones = [1.0] * 256
check.returns(right, (ones,), call=summed, expected=256.0)
slips = {False: "All eight warps take part in five of the eight rounds; let the first threads add"}
check.returns(together, (ones,), call=few_requests, expected=True, mistakes=slips)
slips = {8: "Lanes want words of the same bank; let neighbouring lanes add neighbouring words"}
check.returns(apart, (ones,), call=most_passes, expected=1, mistakes=slips)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(3002)
for _ in range(2):
    values = [float(draw.randint(0, 50)) for _ in range(256)]
    check.returns(right, (values,), call=summed, expected=sum(values))
    check.returns(together, (values,), call=few_requests, expected=True)
    check.returns(apart, (values,), call=most_passes, expected=1)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: who adds?</summary>
#
# In the round with distance 128 the threads 0 to 127 add, in the next round the threads 0 to 63.
#
# </details>
# <details><summary>Hint 2: the loop</summary>
#
# The distance begins with 128 and halves after each round, until it is 1.
#
# </details>
# <details><summary>Hint 3: barriers</summary>
#
# The `yield` of a round is outside of the `if`, because all threads of the block must reach it.
#
# </details>


# %% wrong="in_order" says="let the first threads add" gets=2
def in_order(thread, values, total):
    yield from scattered(thread, values, total)


# %% wrong="in_order" says="let neighbouring lanes add" gets=2
def in_order(thread, values, total):
    yield from strided(thread, values, total)


# %% [markdown]
# ## Exercise 3: which threads must wait?
#
# By Little's law the bytes in flight are bandwidth times latency. The lesson found that 54 % of an H100's threads must
# wait for one float32 each. For other GPUs, and with other loads:
#
# | read at | latency | multiprocessors x threads | bytes in flight per thread | share of the threads |
# |---|---|---|--:|--:|
# | 1,675 GB/s | 347 ns | 132 x 2,048 | 4 | 0.538 |
# | 1,000 GB/s | 400 ns | 100 x 2,000 | 4 | 0.5 |
# | 1,000 GB/s | 400 ns | 100 x 2,000 | 16 | 0.125 |
#
# Write `share_waiting`. A share above 1 means that the memory cannot be filled, so return 1 then, because more threads
# than there are cannot wait.


# %% answer="share_waiting"
def share_waiting(bytes_per_s, latency_s, threads, bytes_per_thread):
    """Return the share of all threads of a GPU that must wait at any moment, at most 1."""
    ### BEGIN SOLUTION
    return min(1.0, bytes_per_s * latency_s / bytes_per_thread / threads)
    ### END SOLUTION


# %% checks="share_waiting" points=3
check = exercises.Checks("Exercise 3, share_waiting", share_waiting)
single, several, bounded = "one float32 per thread", "several values per thread", "not more threads than there are"
slips = {400000.0: "Divide by the bytes per thread and by the threads", 2.0: "Divide by the bytes per thread as well"}
check.returns(single, (1e12, 4e-7, 200_000, 4), expected=0.5, mistakes=slips)
slips = {0.5: "More bytes per thread need fewer threads"}
check.returns(several, (1e12, 4e-7, 200_000, 16), expected=0.125, mistakes=slips)
slips = {2.0: "More threads than there are cannot wait; return 1 then"}
check.returns(bounded, (4e12, 4e-7, 200_000, 4), expected=1.0, mistakes=slips)
check.returns(bounded, (4e12, 4e-7, 500_000, 4), expected=0.8)
check.report()
### BEGIN HIDDEN TESTS
import random
from fractions import Fraction

draw = random.Random(3003)


def truth(rate, latency, threads, size):
    return float(min(Fraction(1), Fraction(rate) * Fraction(latency) / (size * threads)))


for _ in range(5):
    rate, latency, threads = draw.randint(1, 9) * 1e11, draw.randint(200, 500) * 1e-9, draw.randint(120, 300) * 1000
    for goal, size in ((single, 4), (several, draw.choice([8, 16, 32]))):
        check.returns(goal, (rate, latency, threads, size), expected=truth(rate, latency, threads, size))
    check.returns(bounded, (5e12, latency, 1000 * draw.randint(20, 60), 4), expected=1.0)
    threads = 1000 * draw.randint(700, 900)
    check.returns(bounded, (5e12, latency, threads, 4), expected=truth(5e12, latency, threads, 4))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: how many bytes?</summary>
#
# `bytes_per_s * latency_s` bytes are in flight.
#
# </details>
# <details><summary>Hint 2: how many threads?</summary>
#
# Each thread that waits has `bytes_per_thread` of them.
#
# </details>
# <details><summary>Hint 3: which share?</summary>
#
# Divide by all threads, and let `min(1.0, ...)` bound the share.
#
# </details>


# %% wrong="share_waiting" says="return 1 then" gets=2
def share_waiting(bytes_per_s, latency_s, threads, bytes_per_thread):
    return bytes_per_s * latency_s / bytes_per_thread / threads


# %% wrong="share_waiting" says="More bytes per thread need fewer threads" gets=2
def share_waiting(bytes_per_s, latency_s, threads, bytes_per_thread):  # noqa: ARG001
    return min(1.0, bytes_per_s * latency_s / 4 / threads)


# %% [markdown]
# ## Question 1: passes and times
#
# Mark Harris published the times of these three sums on a G80, a GPU of 2006, for 4 million integers: 8.054 ms
# (scattered), 3.456 ms (strided) and 1.722 ms (in order), in "Optimizing Parallel Reduction in CUDA".
#
# What do requests and passes say about the two steps, and where do the published times differ from them? Name one
# reason that you can count, and one that you cannot. (The G80 had 16 banks, and it executed `%` slowly.)
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="sums" points=2
# A full answer says:
#
# - 1 point: from scattered to strided the requests fall from 150 to 45 and the passes stay 150; from strided to in
#   order the requests stay 45 and the passes fall from 150 to 45.
# - 1 point: the published factors are 2.3 and 2.0, so the first step gained although its passes are the same; it has
#   fewer instructions and no `%`, which the count of passes does not hold; the second factor is smaller than 150 / 45,
#   because the G80 had 16 banks and because the kernel does other work, such as its loads from the GPU's memory.

# %% [markdown]
# ## Question 2: a layout of your own
#
# Take a tensor of at least three dimensions from a program of yours, such as activations by batch, token, head and
# element. Choose two dimensions, let the lanes of a warp follow first the one and then the other, and count the sectors
# of a request from the strides, `x.stride()`.
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="own_layout" points=2
# A full answer says:
#
# - 1 point: shape and strides, and the sectors of a request in both directions, worked out from the strides in bytes.
# - 1 point: which operation follows which direction, and one remedy with its price, such as another order of the
#   dimensions, a copy, or a tile in shared memory.

# %% [markdown]
# ## What you have practised
#
# Giving a thread several values without losing coalesced requests, choosing the lanes and the banks of a sum, and
# counting the threads that must wait so that a memory stays busy.
