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
# Three functions to write, for [lesson 12](../12_beyond_memory.ipynb). Each exercise has a picture or a table, a
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
# A time that turns up may only follow its work. The lesson's
# [appendix](../appendix/12_beyond_memory.ipynb) took away the fixed part and divided the rest by the work.
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
# ## Exercise 2: the best layer to throw out
#
# There is room for `room` layers in memory. A visit to a layer that is there costs nothing; any other visit is a
# *miss*: the layer is read from the disk, and where the room is full, one layer must go. The lesson's rule looks back,
# and throws out what was used longest ago. A network's order is known in advance, so a program can look *ahead*: the
# layer goes whose next visit is farthest away, and before all others one that is not visited again. No rule misses less
# (L. A. Belady, 1966). Here is a room for two layers, empty at the start:

# %%
pd.DataFrame(
    {
        "visit": ["a", "b", "a", "c", "b", "c", "a", "d"],
        "miss": [True, True, False, True, False, False, True, True],
        "in memory": ["a", "a b", "a b", "b c", "b c", "b c", "c a", "c d"],
    }
)

# %% [markdown]
# At the first visit to `c` it is `a` that goes, because `b` is needed sooner. The lesson's rule has six misses here.
#
# Write `best_misses(order, room)`: how many of the visits in the list `order` are misses under this rule. `room` is at
# least 1; the layers in `order` are numbers or names, and it may be empty.


# %% answer="best_misses"
def best_misses(order, room):
    """Return how many visits miss, looking ahead: best_misses(list("abacbcad"), 2) is 5."""
    ### BEGIN SOLUTION
    present, missed = [], 0
    for place, layer in enumerate(order):
        if layer in present:
            continue
        missed += 1
        if len(present) == room:
            ahead = [*order[place + 1 :], *present]  # what is not visited again comes after all visits
            present.remove(max(present, key=ahead.index))
        present.append(layer)
    return missed
    ### END SOLUTION


# %% checks="best_misses" points=3
check = exercises.Checks("Exercise 2, best_misses", best_misses)
enough, around, ahead = "what fits is read once", "in a circle, most stay", "what is not needed again goes first"
again = {
    9: "That counts every visit; a layer that is in memory costs nothing",
    0: "At the start nothing is in memory: the first visit to a layer is a miss",
}
check.returns(enough, ([0, 1, 2] * 3, 3), expected=3, mistakes=again)
check.returns(enough, ([], 2), expected=0)
circle = {
    12: "Each layer goes just before its turn: throw out the one whose next visit is farthest away",
    4: "That is the number of different layers; one that was thrown out is read again",
    7: "A layer that is not visited again goes before all others",
}
check.returns(around, ([0, 1, 2, 3] * 3, 3), expected=6, mistakes=circle)
never = {
    5: "A layer that is not visited again goes before all others, not only the newest",
    6: "The layer whose next visit is farthest away goes, not the one needed soonest",
    8: again[9],
}
check.returns(ahead, (list("abcabdab"), 3), expected=4, mistakes=never)
back = {6: "Look ahead, not back: the layer whose next visit is farthest away goes"}
check.returns(ahead, (list("abcdbdbcad"), 3), expected=5, mistakes=back)
check.report()
### BEGIN HIDDEN TESTS
import functools
import random


def fewest(order, room):
    """Return the fewest misses of all choices, each tried."""

    @functools.cache
    def rest(place, present):
        if place == len(order):
            return 0
        layer = order[place]
        if layer in present:
            return rest(place + 1, present)
        gone = [set()] if len(present) < room else [{each} for each in present]
        return 1 + min(rest(place + 1, (present - out) | {layer}) for out in gone)

    return rest(0, frozenset())


draw = random.Random(8011)
for _ in range(5):
    layers = draw.randint(3, 6)
    check.returns(enough, (list(range(layers)) * draw.randint(2, 4), layers + draw.randint(0, 3)), expected=layers)
    circling, room = list(range(layers)) * draw.randint(2, 4), layers - 1
    check.returns(around, (circling, room), expected=fewest(tuple(circling), room))
for _ in range(20):
    mixed, room = [draw.randint(0, 5) for _ in range(draw.randint(14, 20))], draw.randint(2, 4)
    check.returns(ahead, (mixed, room), expected=fewest(tuple(mixed), room))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what to keep</summary>
#
# A list of the layers in memory. Go through the visits with their places, `enumerate(order)`.
#
# </details>
# <details><summary>Hint 2: which one goes?</summary>
#
# The visits to come are `order[place + 1:]`. `index` says how far away a layer's next visit is, where there is one.
#
# </details>
# <details><summary>Hint 3: what is not visited again</summary>
#
# Treat it as farther away than all visits: `len(order)`. Then take the `max` over the layers in memory by distance.
#
# </details>


# %% wrong="best_misses" says="throw out the one whose next visit is farthest away" gets=1
def best_misses(order, room):
    present, missed = [], 0
    for layer in order:
        if layer in present:
            present.remove(layer)
        else:
            missed += 1
            present = present[1:] if len(present) == room else present
        present.append(layer)
    return missed


# %% wrong="best_misses" says="That is the number of different layers" gets=1
def best_misses(order, _room):
    return len(set(order))


# %% wrong="best_misses" says="That counts every visit" gets=0
def best_misses(order, _room):
    return len(order)


# %% wrong="best_misses" says="not only the newest" gets=2
def best_misses(order, room):
    present, missed = [], 0
    for layer in order:
        if layer in present:
            present.remove(layer)
        else:
            missed += 1
            present = present[:-1] if len(present) == room else present
        present.append(layer)
    return missed


# %% wrong="best_misses" says="A layer that is not visited again goes before all others" gets=1
def best_misses(order, room):
    present, missed = [], 0
    for place, layer in enumerate(order):
        if layer not in present:
            missed += 1
            if len(present) == room:
                ahead = [layer, *order[place + 1 :]]
                present.remove(max(present, key=lambda each: ahead.index(each) if each in ahead else 0))
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
# ## Question 2: a network of your own, against a limit
#
# Take a network of your own (or of torchvision) and a limit of 512 MiB. Write down before you run anything: which batch
# will go through a forward pass without gradients? Then ask `helpers.memory.max_batch_size` for half the limit, and run
# that batch and four times that batch with `helpers.run_limited(..., memory_bytes=2**29)`.
#
# Report your network, the three numbers (predicted, modelled, the largest that went through), and explain in two to
# five sentences what lies between the modelled and the true limit. If your own guess was more than twice off, say what
# you had not counted. A person reads it.

# %% [markdown] written="own_network" points=3
# A full answer says:
#
# - 1 point: network, input and three numbers with units, the prediction written down before the run.
# - 1 point: the modelled batch went through and four times it did not, or the outcome explained from the numbers: what
#   the process holds besides tensors (libraries, the allocator, workspaces), or an input that is small against the
#   weights.
# - 1 point: the guess compared with the model within a factor of two, or the missing part named: inputs and outputs of
#   a layer that live at once, a widest layer other than the last, float32's four bytes.

# %% [markdown]
# ## What you have practised
#
# Telling a time that follows its work from one that does not, choosing by what is needed next which layers stay in a
# memory that is too small, counting what a loader keeps in `/dev/shm`, and testing a model of memory on a network of
# your own.
