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
# # Feeding the accelerator: exercises
#
# Three functions to write, for [lesson 10](../10_feeding_the_accelerator.ipynb). Each exercise has a table or a
# picture, a function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints
# that stay folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. All times are made up; nothing depends on how fast your machine is.

# %%
from helpers import exercises, plotting

# %% [markdown]
# ## Exercise 1: when does each step begin?
#
# The loader of Parts 2 and 3 with `workers` workers and a `prefetch` factor. Its rules:
#
# | who | rule |
# |---|---|
# | a worker | batch $i$ is made by worker $i$ modulo `workers`, which makes its batches one after the other |
# | the bound | batch $i$ is begun when step $i -$ `workers` $\times$ `prefetch` begins (if there is one), or later |
# | the device | step $i$ begins when batch $i$ is ready and step $i - 1$ has ended |
#
# Here two workers with a prefetch factor of 1 make batches that take 1 s, but batch 2 takes 6 s; a step takes 1 s.
# Worker 1 has batch 3 ready long before step 2, and may not begin batch 5 before step 3 begins:

# %%
made = [("worker 0", 0, 1, 0), ("worker 1", 0, 1, 1), ("worker 0", 1, 7, 2), ("worker 1", 2, 3, 3)]
made += [("worker 0", 7, 8, 4), ("worker 1", 8, 9, 5)]
spans = [plotting.Span(lane, start, end, "making a batch", str(batch)) for lane, start, end, batch in made]
spans += [plotting.Span("device", at, at + 1, "computing", str(step)) for step, at in enumerate((1, 2, 7, 8, 9, 10))]
drawn = plotting.gantt(spans, title="Batch 2 is late, and all wait in order")
plotting.show(
    drawn, alt="Lanes of two workers and the device: batch 2 takes six seconds, batch 3 is ready and waits for it."
)

# %% [markdown]
# Write `steps_begin(times_s, device_s, workers, prefetch)`: `times_s` has the seconds that each batch takes to make.
# Return the list of the times at which the steps begin. The workers start at time 0.


# %% answer="steps_begin"
def steps_begin(times_s, device_s, workers, prefetch):
    """Return when each step begins: steps_begin([1, 1, 6, 1, 1, 1], 1, 2, 1) is [1, 2, 7, 8, 9, 10]."""
    ### BEGIN SOLUTION
    begins, idle_from = [], [0] * workers
    bound = workers * prefetch
    for number, duration in enumerate(times_s):
        mine = number % workers
        sent_off = begins[number - bound] if number >= bound else 0
        idle_from[mine] = max(idle_from[mine], sent_off) + duration
        device_free = begins[-1] + device_s if begins else 0
        begins.append(max(idle_from[mine], device_free))
    return begins
    ### END SOLUTION


# %% checks="steps_begin" points=3
check = exercises.Checks("Exercise 1, steps_begin", steps_begin)
single = "a worker makes its own batches, one at a time"
order = "batches are handed out in order"
bound = "the bound holds workers back"
at_once = {(3, 4, 5, 6): "Batch 2 begins only when its worker has made batch 0"}
check.returns(single, ([3, 3, 3, 3], 1, 2, 8), expected=[3, 4, 6, 7], mistakes=at_once)
whoever = {(1, 9, 17, 27): "Batch 3 is worker 1's, which makes batch 1 until 9; worker 0, free at 2, may not take it"}
check.returns(single, ([1, 9, 1, 25], 8, 2, 8), expected=[1, 9, 17, 34], mistakes=whoever)
overtaken = {(1, 2, 9): "A batch that is ready waits for those before it"}
check.returns(order, ([9, 1, 1], 1, 3, 8), expected=[9, 10, 11], mistakes=overtaken)
unbounded = {(1, 5, 9, 13, 17): "That worker ran ahead without bound; see the second rule"}
check.returns(bound, ([1, 1, 1, 9, 1], 4, 1, 1), expected=[1, 5, 9, 18, 22], mistakes=unbounded)
of_one = {
    (1, 5, 9, 13, 30, 47, 51, 55): "The bound is workers times prefetch: each worker has so many under way",
    (1, 5, 9, 13, 19, 23, 27, 31): "Those workers ran ahead without bound; see the second rule",
}
late_pair = [1, 1, 1, 1, 17, 17, 1, 1]
check.returns(bound, (late_pair, 4, 2, 1), expected=[1, 5, 9, 13, 26, 30, 34, 38], mistakes=of_one)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(6001)


def truth(times, device, workers, prefetch):
    """The earliest times that break no rule: start from zero and push every step later until all rules hold."""
    ready, begin = [0] * len(times), [0] * len(times)
    for _ in range(2 * len(times) + 2):
        for i, time in enumerate(times):
            after = [0]
            if i >= workers:
                after.append(ready[i - workers])
            if i >= workers * prefetch:
                after.append(begin[i - workers * prefetch])
            ready[i] = max(after) + time
            begin[i] = max(ready[i], begin[i - 1] + device if i else 0)
    return begin


for _ in range(5):
    workers, device = draw.randint(2, 4), draw.randint(1, 3)
    alike = [device * workers + draw.randint(2, 9)] * (3 * workers + 1)
    check.returns(single, (alike, device, workers, 50), expected=truth(alike, device, workers, 50))
    # Worker 1 is the last to be free, and its second batch is the one that decides; the slow device hides all else.
    slow = draw.randint(5, 9)
    own = [1, slow + 1] + [1] * (workers - 1) + [slow * (workers + 1) + draw.randint(2, 9)]
    check.returns(single, (own, slow, workers, 50), expected=truth(own, slow, workers, 50))
    few = [draw.randint(20, 40), *(draw.randint(1, 9) for _ in range(workers))]
    check.returns(order, (few, device, workers + 1, 50), expected=truth(few, device, workers + 1, 50))
    late = [1] * 8 + [draw.randint(60, 90)] + [1] * 6
    prefetch = draw.randint(1, 3)
    check.returns(bound, (late, device + 1, 1, prefetch), expected=truth(late, device + 1, 1, prefetch))
    pair = [1] * 6 + [draw.randint(60, 90)] * 2 + [1] * 6
    check.returns(bound, (pair, device + 1, 2, 1), expected=truth(pair, device + 1, 2, 1))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what to remember</summary>
#
# One number for each worker (from when on it is free) and the list of the steps' beginnings. That is all.
#
# </details>
# <details><summary>Hint 2: one batch</summary>
#
# Its worker begins at the later of two moments: when it is free, and when the bound allows it. The step begins at the
# later of two others.
#
# </details>
# <details><summary>Hint 3: the bound</summary>
#
# Batch 5 with 2 workers and a prefetch factor of 2 may begin when step 1 begins; batches 0 to 3 may begin at once.
#
# </details>


# %% wrong="steps_begin" says="Batch 2 begins only when its worker has made batch 0" gets=2
def steps_begin(times_s, device_s, workers, prefetch):
    begins = []
    for number, duration in enumerate(times_s):
        early = number < workers * prefetch
        made = (0 if early else begins[number - workers * prefetch]) + duration
        begins.append(max(made, begins[-1] + device_s if begins else 0))
    return begins


# %% wrong="steps_begin" says="worker 0, free at 2, may not take it" gets=2
def steps_begin(times_s, device_s, workers, prefetch):
    begins, idle_from = [], [0] * workers
    for number, duration in enumerate(times_s):
        first = idle_from.index(min(idle_from))
        sent_off = begins[number - workers * prefetch] if number >= workers * prefetch else 0
        idle_from[first] = max(idle_from[first], sent_off) + duration
        begins.append(max(idle_from[first], begins[-1] + device_s if begins else 0))
    return begins


# %% wrong="steps_begin" says="A batch that is ready waits for those before it" gets=1
def steps_begin(times_s, device_s, workers, _prefetch):
    made, idle = [], [0] * workers
    for number, duration in enumerate(times_s):
        idle[number % workers] += duration
        made.append(idle[number % workers])
    begins = []
    for ready in sorted(made):
        begins.append(max(ready, begins[-1] + device_s if begins else 0))
    return begins


# %% wrong="steps_begin" says="ran ahead without bound" gets=2
def steps_begin(times_s, device_s, workers, _prefetch):
    begins, idle = [], [0] * workers
    for number, duration in enumerate(times_s):
        idle[number % workers] += duration
        begins.append(max(idle[number % workers], begins[-1] + device_s if begins else 0))
    return begins


# %% wrong="steps_begin" says="The bound is workers times prefetch" gets=2
def steps_begin(times_s, device_s, workers, prefetch):
    begins, idle = [], [0] * workers
    for number, duration in enumerate(times_s):
        mine, allowed = number % workers, begins[number - prefetch] if number >= prefetch else 0
        idle[mine] = max(idle[mine], allowed) + duration
        begins.append(max(idle[mine], begins[-1] + device_s if begins else 0))
    return begins


# %% [markdown]
# ## Exercise 2: who reads what?
#
# A stream of items is read under data parallel: `ranks` training processes, each with `workers` workers of its own.
# Every worker sees the whole stream and must choose its part. So all *readers* are numbered, first the workers of
# rank 0, then those of rank 1, and the items are dealt to them in turn, as cards are.
#
# | item | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
# |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
# | rank | 0 | 0 | 1 | 1 | 0 | 0 | 1 | 1 | left out |
# | worker | 0 | 1 | 0 | 1 | 0 | 1 | 0 | 1 | |
#
# A rank with more batches than another would wait for it forever. So every reader gets as many items as every other,
# and the items that are over at the end are left out.
#
# Write `own_items(count, rank, ranks, worker, workers)`: the list of the items, of `count`, that this worker reads.


# %% answer="own_items"
def own_items(count, rank, ranks, worker, workers):
    """Return the items of one reader: own_items(9, 1, 2, 0, 2) is [2, 6]."""
    ### BEGIN SOLUTION
    readers = ranks * workers
    whole = count - count % readers
    return list(range(rank * workers + worker, whole, readers))
    ### END SOLUTION


# %% checks="own_items" points=3
check = exercises.Checks("Exercise 2, own_items", own_items)
one, several, even = "workers share the items", "ranks share them too", "every reader gets as many"
everything = {tuple(range(8)): "Then each worker trains on every item"}
check.returns(one, (8, 0, 1, 1, 2), expected=[1, 3, 5, 7], mistakes=everything)
slips = {
    (1, 3, 5, 7): "Its other worker would read the same items: deal to all readers, not to ranks",
    (1, 5): "Rank 0 has readers 0 and 1, so rank 1 begins with reader 2",
}
check.returns(several, (8, 1, 2, 0, 2), expected=[2, 6], mistakes=slips)
over = {(0, 2, 4, 6, 8, 10): "The other rank has only five: leave out what is over"}
check.returns(even, (11, 0, 2, 0, 1), expected=[0, 2, 4, 6, 8], mistakes=over)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(6002)


def truth(count, rank, ranks, worker, workers):
    """Deal the items one by one, in whole rounds, to a list of readers in order."""
    readers = [(r, w) for r in range(ranks) for w in range(workers)]
    hands = {reader: [] for reader in readers}
    for first in range(0, count - len(readers) + 1, len(readers)):
        for place, reader in enumerate(readers):
            hands[reader].append(first + place)
    return hands[rank, worker]


for _ in range(5):
    workers, rounds = draw.randint(2, 5), draw.randint(2, 6)
    asked = (workers * rounds, 0, 1, draw.randrange(workers), workers)
    check.returns(one, asked, expected=truth(*asked))
    ranks = draw.randint(2, 4)
    rank, worker = draw.randrange(1, ranks), draw.randrange(workers)
    asked = (ranks * workers * rounds, rank, ranks, worker, workers)
    check.returns(several, asked, expected=truth(*asked))
    asked = (ranks * rounds + draw.randrange(1, ranks), 0, ranks, 0, 1)
    check.returns(even, asked, expected=truth(*asked))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one number</summary>
#
# Give each reader one number, from its rank and its worker. How many readers are there?
#
# </details>
# <details><summary>Hint 2: in turn</summary>
#
# Reader 2 of 4 reads 2, 6, 10: `range` with a step.
#
# </details>
# <details><summary>Hint 3: whole rounds</summary>
#
# Only whole rounds are dealt. `count % readers` items are over.
#
# </details>


# %% wrong="own_items" says="Then each worker trains on every item" gets=1
def own_items(count, rank, ranks, _worker, _workers):
    return list(range(rank, count - count % ranks, ranks))


# %% wrong="own_items" says="so rank 1 begins with reader 2" gets=2
def own_items(count, rank, ranks, worker, workers):
    readers = ranks * workers
    return [item for item in range(count // readers * readers) if item % readers == worker * ranks + rank]


# %% wrong="own_items" says="leave out what is over" gets=2
def own_items(count, rank, ranks, worker, workers):
    return [item for item in range(count) if item % (ranks * workers) == rank * workers + worker]


# %% [markdown]
# ## Exercise 3: mixed, and still read in order
#
# A shard is read in order, and training wants its items mixed. So a buffer with `room` places stands between. Its
# rules:
#
# | | rule |
# |---|---|
# | at first | the first `room` items fill the buffer |
# | then | draw a place; hand out the item there; the next item of the shard takes its place |
# | in the end | no item is left to take the place: the buffer closes up, as `buffer.pop(place)` does |
#
# Here the chance is given: `draws` has one whole number for each item, and the place is that number modulo the length
# of the buffer. Four items, room for two, draws 1, 0, 0, 0:
#
# | buffer | place | handed out |
# |---|--:|---|
# | a b | 1 | b |
# | a c | 0 | a |
# | d c | 0 | d |
# | c | 0 | c |
#
# Write `mixed(items, room, draws)`: the list of the items in the order in which they are handed out.


# %% answer="mixed"
def mixed(items, room, draws):
    """Return the items as handed out: mixed(["a", "b", "c", "d"], 2, [1, 0, 0, 0]) is ["b", "a", "d", "c"]."""
    ### BEGIN SOLUTION
    buffer, coming, out = list(items[:room]), list(items[room:]), []
    for draw in draws:
        place = draw % len(buffer)
        out.append(buffer[place])
        if coming:
            buffer[place] = coming.pop(0)
        else:
            buffer.pop(place)
    return out
    ### END SOLUTION


# %% checks="mixed" points=3
check = exercises.Checks("Exercise 3, mixed", mixed)
bounded, takes, empties = "only what is in the buffer is drawn", "the next item takes the place", "the end is drawn too"
whole = {(7, 4, 5, 6): "Item 7 was not in the buffer yet: it has room for two"}
check.returns(bounded, ([4, 5, 6, 7], 2, [3, 3, 0, 0]), expected=[5, 6, 4, 7], mistakes=whole)
behind = {(0, 1, 2, 3): "Item 2 takes the place of item 0, before item 1"}
check.returns(takes, ([0, 1, 2, 3], 2, [0, 0, 0, 0]), expected=[0, 2, 3, 1], mistakes=behind)
in_order = {(0, 1, 2, 3): "What is left in the buffer is drawn as well"}
check.returns(empties, ([0, 1, 2, 3], 4, [2, 2, 1, 0]), expected=[2, 3, 1, 0], mistakes=in_order)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(6003)


def truth(items, room, draws):
    """Follow places, not a buffer: who sits where, and who is next; an empty chair is taken away."""
    chairs = {place: item for place, item in enumerate(items) if place < room}
    following, out = room, []
    for number in draws:
        chair = sorted(chairs)[number % len(chairs)]
        out.append(chairs.pop(chair))
        if following < len(items):
            chairs[chair] = items[following]
            following += 1
    return out


for _ in range(5):
    count = draw.randint(5, 9)
    items = draw.sample(range(100), count)
    last_place = (items, 2, [*(draw.randrange(3, 99, 2) for _ in items[2:]), 0, 0])
    check.returns(bounded, last_place, expected=truth(*last_place))
    two_places = (items, 2, [0, 1, *(draw.randint(0, 9) for _ in items[4:]), 0, 0])
    check.returns(takes, two_places, expected=truth(*two_places))
    at_once = (items, count, [2, *(draw.randint(0, 99) for _ in items[1:])])
    check.returns(empties, at_once, expected=truth(*at_once))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: two lists</summary>
#
# Cut `items` in two: what is in the buffer, and what is still to come.
#
# </details>
# <details><summary>Hint 2: one draw</summary>
#
# `place = draw % len(buffer)`. The length changes only in the end.
#
# </details>
# <details><summary>Hint 3: the place</summary>
#
# `buffer[place] = coming.pop(0)` while something is coming, else `buffer.pop(place)`.
#
# </details>


# %% wrong="mixed" says="it has room for two" gets=1
def mixed(items, _room, draws):
    left = list(items)
    return [left.pop(draw % len(left)) for draw in draws]


# %% wrong="mixed" says="takes the place of item 0" gets=2
def mixed(items, room, draws):
    buffer, coming, out = list(items[:room]), list(items[room:]), []
    for draw in draws:
        out.append(buffer.pop(draw % len(buffer)))
        buffer += coming[:1]
        coming = coming[1:]
    return out


# %% wrong="mixed" says="What is left in the buffer is drawn as well" gets=2
def mixed(items, room, draws):
    buffer, out = list(items[:room]), []
    for item, draw in zip(items[room:], draws, strict=False):
        place = draw % room
        out.append(buffer[place])
        buffer[place] = item
    return out + buffer


# %% [markdown]
# ## Question 1: more workers
#
# A training step takes 30 ms on your GPU, its busy share is 40 %, and there is one worker. A colleague sets
# `num_workers=16` and the training gets slower. Which two measurements would you make before you change anything, and
# which result of each would make more workers the wrong remedy?
#
# Two to five sentences; a person reads them.

# %% [markdown] written="more_workers" points=2
# A full answer says:
#
# - 1 point: what an item costs and how much of it is processor time (or the disk's): with computing items workers
#   help up to the cores, with one disk not beyond overlap, with free items the hand-over makes it worse.
# - 1 point: a second measurement that tells another cause apart, such as the copy (pageable, in turn with the step),
#   the time a batch waits ready (then the device is the limit), or the memory of workers times prefetch; with the
#   result that speaks against workers.

# %% [markdown]
# ## Question 2: a pipeline of your own
#
# Take a data set that you use, or make one (images, audio, text to tokens), and a training step: a real one, or one
# that sleeps. Measure two times alone: a batch made without workers, and a step. From these, and from what limits an
# item (waiting, cores, one disk, nothing), predict the seconds from step to step for 0, 1 and 2 workers and one change
# of your own (another prefetch factor, a shard for small files, uint8 for float32, `persistent_workers`). Write the
# predictions down. Then run all of them.
#
# Report the settings, predicted and measured times side by side, and explain every distance of more than a factor of
# two by a further measurement. Four to eight sentences and a table; a person reads them. Plan 45 minutes.

# %% [markdown] written="own_pipeline" points=3
# A full answer says:
#
# - 1 point: the two times with how they were measured (warm-up left out, several runs, the device waited for), the
#   kind of item with the evidence for it (processor time, a count of reads), and predictions that follow from them.
# - 1 point: measured times for 0, 1 and 2 workers and one change alone, from step to step and not for a whole epoch
#   with the start of the workers in it.
# - 1 point: each distance beyond a factor of two has a cause that a measurement shows: the hand-over of large batches,
#   cores shared with the training, pages that were in the cache in one run and not in the other, workers that start, a
#   late item. "Overhead" is no cause.

# %% [markdown]
# ## What you have practised
#
# Playing a bounded queue batch by batch, dealing a stream to the workers of several ranks, mixing what is read in
# order, and predicting a pipeline of your own. `input_pipeline.simulate_feeding` does the first in the library; now
# you know what it counts.
