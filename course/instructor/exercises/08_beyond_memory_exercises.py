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
# # Beyond memory: exercises
#
# Three functions to write, for [lesson 08](../08_beyond_memory.ipynb). Each exercise has a picture or a table, a
# function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. No time is measured here: your numbers must be exact.

# %%
import pandas as pd

from helpers import exercises, plotting

# %% [markdown]
# ## Exercise 1: a bend, or a knee?
#
# A time that turns up may only follow its work. The lesson took away the fixed part and divided the rest by the work.
# Here is a made-up row of five sizes, with a fixed part of 20 s:

# %%
made_up = pd.DataFrame({"work": [1, 4, 16, 64, 256], "time_s": [24, 36, 84, 404, 1556]})
made_up["for each unit of work_s"] = (made_up["time_s"] - 20) / made_up["work"]
made_up.astype(int)

# %% [markdown]
# The times grow at every size, and most of all at the last. But the time for each unit of work is 4 s three times, then
# 6 s twice: there is one knee, at the place 3 (from 0).
#
# Write `knees(work, times_s, fixed_s)`: the list of the places, from 0, at which the time for each unit of work is more
# than a quarter larger than *at the place before*. `work` and `times_s` are lists of the same length; every time is
# larger than the fixed part, and all work is above 0. The first place has none before it, so it is never a knee.


# %% answer="knees"
def knees(work, times_s, fixed_s):
    """Return the places of the knees: knees([1, 4, 16, 64, 256], [24, 36, 84, 404, 1556], 20) is [3]."""
    ### BEGIN SOLUTION
    each_s = [(time_s - fixed_s) / units for units, time_s in zip(work, times_s, strict=True)]
    return [place for place in range(1, len(each_s)) if each_s[place] > 1.25 * each_s[place - 1]]
    ### END SOLUTION


# %% checks="knees" points=3
check = exercises.Checks("Exercise 1, knees", knees)
divided, fixed, several = (
    "a time that follows its work has no knee",
    "the fixed part is taken away",
    "every knee is found",
)
bends = {(1, 2, 3, 4): "That compares the times themselves; divide each by its work first"}
check.returns(divided, ([1, 4, 16, 64, 256], [2, 8, 32, 128, 512], 0), expected=[], mistakes=bends)
undivided = {
    (): "Take the fixed part away before you divide: spread over little work it hides the knee",
    (1, 2, 3, 4): "That compares the times themselves; divide each by its work first",
    (3, 4): "Compare with the place just before, not with the first",
    (6,): "That is the time for each unit of work; return its place",
    (4,): "The places count from 0",
    (0, 3): "The first place has none before it",
    3: "Return a list, also of one place",
}
check.returns(fixed, ([1, 4, 16, 64, 256], [24, 36, 84, 404, 1556], 20), expected=[3], mistakes=undivided)
stairs = {
    (2,): "That stops at the first knee; there may be more",
    (2, 3, 4): "Compare with the place just before, not with the first",
    (4, 8): "Those are the times for each unit of work; return their places",
    (3, 5): "The places count from 0",
}
check.returns(several, ([1, 2, 4, 8, 16], [2, 4, 16, 32, 128], 0), expected=[2, 4], mistakes=stairs)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(8001)
for number, goal in enumerate((divided, fixed, several) * 4):
    count = draw.randint(5, 8)
    work = [draw.randint(1, 3)]
    while len(work) < count:
        work.append(work[-1] * draw.randint(2, 5))
    fixed_s = 0 if goal != fixed else 1000 * draw.randint(1, 9)
    places = sorted(draw.sample(range(1, count), {divided: 0, fixed: 1, several: 3}[goal]))
    if goal == divided and number % 2:  # so that "none" is not always the answer
        places = [count - 1]
    each_s, times_s = draw.randint(2, 9), []
    for place, units in enumerate(work):
        each_s *= draw.choice([2, 3]) if place in places else 1
        times_s.append(fixed_s + units * each_s)
    check.returns(goal, (work, times_s, fixed_s), expected=places)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: which number?</summary>
#
# For every place: `(time - fixed_s) / work`. Make a list of these numbers first.
#
# </details>
# <details><summary>Hint 2: with what is it compared?</summary>
#
# With the number just before it. A knee is where it is more than 1.25 times that.
#
# </details>
# <details><summary>Hint 3: the places</summary>
#
# Let `place` run over `range(1, len(...))`, and keep those for which the comparison holds.
#
# </details>


# %% wrong="knees" says="That compares the times themselves" gets=0
def knees(_work, times_s, _fixed_s):
    return [place for place in range(1, len(times_s)) if times_s[place] > 1.25 * times_s[place - 1]]


# %% wrong="knees" says="Take the fixed part away before you divide" gets=2
def knees(work, times_s, _fixed_s):
    each_s = [time_s / units for units, time_s in zip(work, times_s, strict=True)]
    return [place for place in range(1, len(each_s)) if each_s[place] > 1.25 * each_s[place - 1]]


# %% wrong="knees" says="Compare with the place just before, not with the first" gets=1
def knees(work, times_s, fixed_s):
    each_s = [(time_s - fixed_s) / units for units, time_s in zip(work, times_s, strict=True)]
    return [place for place in range(1, len(each_s)) if each_s[place] > 1.25 * each_s[0]]


# %% wrong="knees" says="That stops at the first knee" gets=2
def knees(work, times_s, fixed_s):
    each_s = [(time_s - fixed_s) / units for units, time_s in zip(work, times_s, strict=True)]
    return [place for place in range(1, len(each_s)) if each_s[place] > 1.25 * each_s[place - 1]][:1]


# %% wrong="knees" says="Those are the times for each unit of work" gets=0
def knees(work, times_s, fixed_s):
    each_s = [(time_s - fixed_s) / units for units, time_s in zip(work, times_s, strict=True)]
    return [each_s[place] for place in range(1, len(each_s)) if each_s[place] > 1.25 * each_s[place - 1]]


# %% [markdown]
# ## Exercise 2: which layers come from the disk?
#
# There is room for `room` layers in memory. A visit to a layer that is there costs nothing; any other layer is a
# *miss*: it is read from the disk, and where the room is full, the [least recently
# used](../glossary.md#least-recently-used) layer goes first. A visit to a layer that is there is a use as well. Here is
# a room for two layers, empty at the start:

# %%
pd.DataFrame(
    {
        "visit": ["a", "b", "a", "c", "a", "b"],
        "miss": [True, True, False, True, False, True],
        "in memory, the one used last at the right": ["a", "a b", "b a", "a c", "c a", "a b"],
    }
)

# %% [markdown]
# At the visit to `c` it is `b` that goes, because `a` was used after it.
#
# Write `misses(order, room)`: how many of the visits in the list `order` are misses. `room` is at least 1; the layers
# in `order` are numbers or names, and it may be empty.


# %% answer="misses"
def misses(order, room):
    """Return how many visits come from the disk: misses(["a", "b", "a", "c", "a", "b"], 2) is 4."""
    ### BEGIN SOLUTION
    present, missed = [], 0
    for layer in order:
        if layer in present:
            present.remove(layer)
        else:
            missed += 1
            if len(present) == room:
                present.pop(0)
        present.append(layer)
    return missed
    ### END SOLUTION


# %% checks="misses" points=3
check = exercises.Checks("Exercise 2, misses", misses)
enough, around, used = "what fits is read once", "in a circle, one too many misses always", "a visit is a use"
again = {
    9: "That counts every visit; a layer that is in memory costs nothing",
    0: "At the start nothing is in memory: the first visit to a layer is a miss",
}
check.returns(enough, ([0, 1, 2] * 3, 3), expected=3, mistakes=again)
check.returns(enough, ([], 2), expected=0)
circle = {
    1: "That is what has no room; go through the visits one by one, and see which layer goes at each miss",
    4: "That is the number of different layers; one that was thrown out is read again",
    6: "When room is needed, the layer that was not used for longest goes, not the newest",
    8: "When room is needed, the layer that was not used for longest goes, not the newest",
}
check.returns(around, ([0, 1, 2, 3] * 3, 3), expected=12, mistakes=circle)
order = {
    5: "A visit to a layer that is in memory makes it the one used last",
    3: "That is the number of different layers; one that was thrown out is read again",
    6: "That counts every visit; a layer that is in memory costs nothing",
}
check.returns(used, (["a", "b", "a", "c", "a", "b"], 2), expected=4, mistakes=order)
check.report()
### BEGIN HIDDEN TESTS
import random

import helpers.access as paging

draw = random.Random(8011)
for _ in range(5):
    layers = draw.randint(3, 9)
    check.returns(enough, (list(range(layers)) * draw.randint(2, 4), layers + draw.randint(0, 3)), expected=layers)
    passes, room = draw.randint(2, 5), layers - draw.randint(1, layers - 1)
    check.returns(around, (list(range(layers)) * passes, room), expected=layers * passes)
    check.returns(around, (list(range(layers)) * passes, layers), expected=layers)
for _ in range(20):
    room = draw.randint(2, 4)
    mixed = [draw.randint(0, 6) for _ in range(draw.randint(20, 40))]
    window = paging.Window(room)
    check.returns(used, (mixed, room), expected=sum(not window.touch(layer) for layer in mixed))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what to keep</summary>
#
# A list of the layers in memory, in the order of their last use: the one at place 0 goes next.
#
# </details>
# <details><summary>Hint 2: a visit to a layer that is there</summary>
#
# It is no miss, but the list changes: take the layer out and append it at the end.
#
# </details>
# <details><summary>Hint 3: a miss</summary>
#
# Count it. If the list has `room` layers already, remove the one at place 0. Then append the new one.
#
# </details>


# %% wrong="misses" says="A visit to a layer that is in memory makes it the one used last" gets=2
def misses(order, room):
    present, missed = [], 0
    for layer in order:
        if layer not in present:
            missed += 1
            present = [*present, layer][-room:]
    return missed


# %% wrong="misses" says="That is the number of different layers" gets=1
def misses(order, _room):
    return len(set(order))


# %% wrong="misses" says="That counts every visit" gets=0
def misses(order, _room):
    return len(order)


# %% wrong="misses" says="That is what has no room" gets=0
def misses(order, room):
    return max(0, len(set(order)) - room)


# %% wrong="misses" says="not the newest" gets=1
def misses(order, room):
    present, missed = [], 0
    for layer in order:
        if layer in present:
            present.remove(layer)
        else:
            missed += 1
            if len(present) == room:
                present.pop()
        present.append(layer)
    return missed


# %% [markdown]
# ## Exercise 3: what a loader needs in /dev/shm
#
# Each worker of a loader prepares `prefetch` batches ahead, and the training holds one more in its hand. (A loop that
# keeps the last batch of an epoch into the next holds one more still; leave that out.) Each tensor of
# a batch (the images, the labels) is a file of its own in `/dev/shm` ([shm](../glossary.md#shm)), and a file takes
# whole pages of 4,096 bytes. The picture shows one batch of 10,000 bytes of images and 100 bytes of labels:

# %%
kinds = ("a page", "the next page")
spans = [plotting.Span("pages", 4096 * page, 4096 * (page + 1), kinds[page % 2]) for page in range(4)]
spans += [plotting.Span("images", 0, 10000, "used"), plotting.Span("labels", 3 * 4096, 3 * 4096 + 100, "used")]
drawn = plotting.gantt(spans, title="A batch in /dev/shm", unit="B", xlabel="byte")
alt = "Four pages in a row; the images use most of the first three, the labels a little of the fourth."
plotting.show(drawn, alt=alt)

# %% [markdown]
# Write `shm_bytes(workers, prefetch, tensor_bytes)`: the bytes that must at least be there. `tensor_bytes` is a list
# with the bytes of each tensor of one batch. Without workers the training makes each batch in its own memory, and
# `/dev/shm` is not used at all.


# %% answer="shm_bytes"
def shm_bytes(workers, prefetch, tensor_bytes):
    """Return the bytes of /dev/shm that a loader needs at least: shm_bytes(2, 2, [10000, 100]) is 81920."""
    ### BEGIN SOLUTION
    if workers == 0:
        return 0
    pages = sum(-(-size // 4096) for size in tensor_bytes)
    return (workers * prefetch + 1) * pages * 4096
    ### END SOLUTION


# %% checks="shm_bytes" points=3
check = exercises.Checks("Exercise 3, shm_bytes", shm_bytes)
batches, pages, none = "the batches are counted", "each tensor takes whole pages", "few workers, and none"
forgotten = {
    4 * 8192: "One more batch is in the hand of the training",
    3 * 8192: "Every worker prepares prefetch batches, so multiply the two",
    6 * 8192: "The batch in the hand is one, not one for each worker",
    8192: "That is one batch",
    5 * 12288: "A tensor that fills its last page takes no further one",
}
check.returns(batches, (2, 2, [8192]), expected=5 * 8192, mistakes=forgotten)
check.returns(batches, (3, 4, [4096, 4096]), expected=13 * 8192, mistakes={12 * 8192: forgotten[4 * 8192]})
rounded = {
    5 * 10100: "A file takes whole pages of 4,096 bytes: round up",
    5 * 12288: "Each tensor is a file of its own: round up each of them, then add",
    5 * 8192: "Round up: a page that is begun is taken",
}
check.returns(pages, (2, 2, [10000, 100]), expected=81920, mistakes=rounded)
alone = {8192: "Without workers the one in the hand is not there either"}
check.returns(none, (0, 2, [8192]), expected=0, mistakes=alone)
check.returns(none, (1, 2, [8192]), expected=3 * 8192, mistakes={2 * 8192: forgotten[4 * 8192]})
check.report()
### BEGIN HIDDEN TESTS
import math
import random

draw = random.Random(8021)
for _ in range(8):
    workers, prefetch = draw.randint(2, 16), draw.randint(2, 6)
    whole = [4096 * draw.randint(1, 90) for _ in range(draw.randint(1, 4))]
    check.returns(batches, (workers, prefetch, whole), expected=(workers * prefetch + 1) * sum(whole))
    parts = [4096 * draw.randint(0, 9) + draw.randint(1, 1300) for _ in range(3)]
    taken = sum(math.ceil(size / 4096) * 4096 for size in parts)
    check.returns(pages, (workers, prefetch, parts), expected=(workers * prefetch + 1) * taken)
    check.returns(none, (0, prefetch, parts), expected=0)
    check.returns(none, (1, prefetch, whole), expected=(prefetch + 1) * sum(whole))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: how many batches?</summary>
#
# `workers * prefetch` wait, and one is in the hand.
#
# </details>
# <details><summary>Hint 2: how many pages has a tensor?</summary>
#
# `math.ceil(size / 4096)`, or without a fraction `-(-size // 4096)`.
#
# </details>
# <details><summary>Hint 3: put together</summary>
#
# Batches times pages times 4,096, where the pages are the sum over the tensors, each rounded up by itself. Then the
# case of no workers.
#
# </details>


# %% wrong="shm_bytes" says="One more batch is in the hand" gets=0
def shm_bytes(workers, prefetch, tensor_bytes):
    return workers * prefetch * sum(-(-size // 4096) for size in tensor_bytes) * 4096


# %% wrong="shm_bytes" says="A file takes whole pages" gets=2
def shm_bytes(workers, prefetch, tensor_bytes):
    return (workers * prefetch + 1) * sum(tensor_bytes) if workers else 0


# %% wrong="shm_bytes" says="Each tensor is a file of its own" gets=2
def shm_bytes(workers, prefetch, tensor_bytes):
    return (workers * prefetch + 1) * -(-sum(tensor_bytes) // 4096) * 4096 if workers else 0


# %% wrong="shm_bytes" says="Without workers the one in the hand" gets=2
def shm_bytes(workers, prefetch, tensor_bytes):
    return (workers * prefetch + 1) * sum(-(-size // 4096) for size in tensor_bytes) * 4096


# %% [markdown]
# ## Question 1: slower than it should be
#
# You double the batch, and the time of a step grows fivefold. Name two causes that would explain it, and for each one
# observation that tells it from the other.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="slower" points=2
# A full answer says:
#
# - 1 point: two causes, such as a working set that no longer fits a cache, memory that is full so that pages go to the
#   disk, an allocator that frees and allocates again, a loader that falls behind.
# - 1 point: an observation for each that the other would not give, such as: the time for each image jumps at one size
#   and stays; reads from the disk or major page faults appear; the processor waits while loader processes are busy.

# %% [markdown]
# ## Question 2: a little too large
#
# Weights that are five per cent larger than the memory which they may take are read again and again in the same order.
# Explain why far more than five per cent of the reads come from the disk when the layer that was not used for longest
# makes room, and give one change of the order or of the rule that helps.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="little_too_large" points=2
# A full answer says:
#
# - 1 point: in a circle the layer that goes is the one that is needed soonest of those in memory; so each read throws
#   out the next one, and every read misses, however small the excess.
# - 1 point: going forth and back instead of round, pinning a fixed part, throwing out the newest, or shrinking the
#   weights below the limit, with the reason that part of the layers then stays.

# %% [markdown]
# ## What you have practised
#
# Telling a time that follows its work from one that does not, playing through which layers stay in a memory that is too
# small, and counting what a loader keeps between two processes before it runs out of room.
