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
# # Memory hierarchy: exercises
#
# Three functions to write, for [lesson 01](../01_memory_hierarchy.ipynb): the lines that a walk moves, a cache, and a
# reader of latency curves. All three are counts, whatever your machine.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point.

# %%
import itertools

import pandas as pd

from helpers import exercises, plotting
from helpers.studies import data_movement, simulators

# %% [markdown]
# ## Exercise 1: how many lines move?
#
# In the lesson the storage began on a line, and no number lay across two. Here neither holds. A program reads `count`
# elements of `element_bytes` each. The first begins at the address `offset_bytes`, each next
# one `stride` elements further on. Memory moves whole lines: line 0 holds the addresses from 0 to `line_bytes - 1`,
# line 1 the next ones, and so on. A line that is touched more than once moves once.
#
# Write `lines_moved(count, stride, element_bytes, line_bytes, offset_bytes)`, which returns the number of different
# lines. All five are whole numbers, `offset_bytes` at least 0 and the others at least 1.

# %%
walks = {
    "in sequence": (8, 1, 4, 16, 0),
    "every second": (8, 2, 4, 16, 0),
    "every eighth": (8, 8, 4, 16, 0),
    "begins late": (4, 1, 4, 16, 12),
    "across lines": (2, 4, 8, 16, 12),
}
rows = {name: (*walk, lines) for (name, walk), lines in zip(walks.items(), (2, 4, 8, 2, 4), strict=True)}
pd.DataFrame(rows, index=["count", "stride", "element_bytes", "line_bytes", "offset_bytes", "lines"]).transpose()

# %% [markdown]
# In the last row each element of 8 bytes begins 12 bytes into a line of 16: half of it lies in the next line.


# %% answer="lines_moved"
def lines_moved(count, stride, element_bytes, line_bytes, offset_bytes):
    """Return how many different lines the walk touches: lines_moved(8, 1, 4, 16, 0) is 2."""
    ### BEGIN SOLUTION
    touched = set()
    for access in range(count):
        first = offset_bytes + access * stride * element_bytes
        touched.update(range(first // line_bytes, (first + element_bytes - 1) // line_bytes + 1))
    return len(touched)
    ### END SOLUTION


# %% checks="lines_moved" points=4
check = exercises.Checks("Exercise 1, lines_moved", lines_moved)
within, beyond = "several elements share a line", "beyond the line each element moves its own"
late, across = "the offset decides where lines begin", "an element across two lines moves both"
dense = {8: "That is a line for each element; neighbours share one", 32: "That is bytes; a line holds 16 of them"}
check.returns(within, (8, 1, 4, 16, 0), expected=2, mistakes=dense)
used = {2: "That is the bytes read over the line's; the lines between are touched, but not filled, by a stride of 2"}
check.returns(within, (8, 2, 4, 16, 0), expected=4, mistakes=used)
passed = {16: "That counts the lines that are skipped as well; nothing reads them"}
check.returns(beyond, (8, 8, 4, 16, 0), expected=8, mistakes=passed)
check.returns(late, (4, 1, 4, 16, 12), expected=2, mistakes={1: "The first element stands at the end of a line"})
half = {2: "That looks at where each element begins; its last byte lies in the next line"}
check.returns(across, (2, 4, 8, 16, 12), expected=4, mistakes=half)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(1013)
for _ in range(6):
    line, size = draw.choice([32, 64, 128]), draw.choice([1, 2, 4])
    count, places = draw.randint(20, 90), line // size
    for goal, stride, offset in (
        (within, draw.randint(2, places // 4), 0),
        (beyond, draw.randint(2 * places, 5 * places), 0),
        (late, 1, size * draw.randint(1, places - 1)),
    ):
        if goal == late:  # as many as fill whole lines, so that beginning late costs exactly one more
            count = places * draw.randint(2, 5)
        lines = data_movement.lines_touched(
            count, stride=stride, element_bytes=size, line_bytes=line, offset_bytes=offset
        )
        check.returns(goal, (count, stride, size, line, offset), expected=lines)
    lines = data_movement.lines_touched(count, element_bytes=size, line_bytes=line)
    check.returns(beyond, (count, 1, size, line, 0), expected=lines)  # not each element a line, whatever the stride
    split = 8 * draw.randint(1, 3) - draw.randint(1, 7)
    lines = data_movement.lines_touched(count, stride=line, element_bytes=8, line_bytes=line, offset_bytes=line - 4)
    check.returns(across, (count, line, 8, line, line - 4), expected=lines)
    lines = data_movement.lines_touched(1, element_bytes=line, line_bytes=line, offset_bytes=split)
    check.returns(across, (1, 1, line, line, split), expected=lines)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: which line is it?</summary>
#
# The address `a` lies in line `a // line_bytes`.
#
# </details>
# <details><summary>Hint 2: where does an element end?</summary>
#
# Its first byte stands at `offset_bytes + number * stride * element_bytes`, its last one `element_bytes - 1` further
# on.
#
# </details>
# <details><summary>Hint 3: count each line once</summary>
#
# Put the numbers of the lines into a set. From the line of the first byte to that of the last one it is a `range`.
#
# </details>


# %% wrong="lines_moved" says="That is a line for each element" gets=0
def lines_moved(count, stride, element_bytes, line_bytes, offset_bytes):
    return len([(offset_bytes + number * stride * element_bytes) // line_bytes for number in range(count)])


# %% wrong="lines_moved" says="That is the bytes read over the line's" gets=0
def lines_moved(count, _stride, element_bytes, line_bytes, _offset_bytes):
    return -(-count * element_bytes // line_bytes)


# %% wrong="lines_moved" says="That looks at where each element begins" gets=3
def lines_moved(count, stride, element_bytes, line_bytes, offset_bytes):
    return len({(offset_bytes + number * stride * element_bytes) // line_bytes for number in range(count)})


# %% wrong="lines_moved" says="The first element stands at the end of a line" gets=2
def lines_moved(count, stride, element_bytes, line_bytes, _offset_bytes):
    return len({number * stride * element_bytes // line_bytes for number in range(count)})


# %% wrong="lines_moved" says="That counts the lines that are skipped as well" gets=2
def lines_moved(count, stride, element_bytes, line_bytes, offset_bytes):
    last = offset_bytes + ((count - 1) * stride + 1) * element_bytes - 1
    extra = stride - 1 if stride * element_bytes > line_bytes else 0
    return (last + extra * element_bytes) // line_bytes - offset_bytes // line_bytes + 1


# %% [markdown]
# ## Exercise 2: a cache of your own
#
# A cache has room for `room` lines of `line_bytes`. It begins empty. A program reads one byte at each of a list of
# addresses. If the address's line is in the cache, that is a hit. If not, it is a miss: the line is brought in, and if
# there is no room, the line that was *used* least recently goes.

# %%
example = [0, 4, 64, 0, 128, 0, 64]
events = ["miss", "hit", "miss", "hit", "miss: 64 goes", "hit", "miss: 128 goes"]
pd.DataFrame({"address": example, "line": [a // 64 for a in example], "room for 2 lines": events}).transpose()

# %% [markdown]
# At the fifth read the lines of 0 and of 64 are in the cache. Line 0 came first, but it was used again since; so the
# line of 64 goes.
#
# Write `count_hits(addresses, room, line_bytes)`, which returns the number of hits.


# %% answer="count_hits"
def count_hits(addresses, room, line_bytes):
    """Return the hits of a cache of `room` lines: count_hits([0, 4, 64, 0, 128, 0, 64], 2, 64) is 3."""
    ### BEGIN SOLUTION
    kept, hits = [], 0  # the least recently used line first
    for address in addresses:
        line = address // line_bytes
        if line in kept:
            hits += 1
            kept.remove(line)
        elif len(kept) == room:
            kept.pop(0)
        kept.append(line)
    return hits
    ### END SOLUTION


# %% checks="count_hits" points=3
check = exercises.Checks("Exercise 2, count_hits", count_hits)
whole, limited = "a miss brings the whole line", "the cache holds no more than its room"
recent = "the line used least recently goes"
alone = {0: "Only the same address hits; a miss brings all bytes of the line", 2: "Those are the misses"}
check.returns(whole, ([0, 4, 63, 64, 100, 65], 4, 64), expected=4, mistakes=alone)
check.returns(whole, ([], 4, 64), expected=0)
endless = {3: "Nothing ever leaves that cache; it has room for 2 lines"}
check.returns(limited, ([0, 64, 128, 0, 64, 128], 2, 64), expected=0, mistakes=endless)
fifo = {1: "The line that came first went; but it was used again since, and stays"}
check.returns(recent, ([0, 64, 0, 128, 0, 64], 2, 64), expected=2, mistakes=fifo)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(1019)


def simulated_hits(addresses, room, line_bytes):
    stream = simulators.AddressStream(addresses, access_bytes=1)
    return simulators.simulate_caches(stream, [simulators.CacheLevel(room * line_bytes, line_bytes)]).levels[0].hits


for _ in range(5):
    line, room = draw.choice([16, 32, 128]), draw.randint(3, 9)
    few = [draw.randrange(room * line) for _ in range(60)]
    round_and_round = [line * (number % (room + 1)) for number in range(5 * room)]
    round_and_round += [round_and_round[-1]] * draw.randint(2, 5)  # some hits, so that 0 is never the answer
    kept_alive = [line * (0 if number % 2 else 1 + number // 2 % (2 * room)) for number in range(12 * room)]
    for goal, addresses in ((whole, few), (limited, round_and_round), (recent, kept_alive)):
        check.returns(goal, (addresses, room, line), expected=simulated_hits(addresses, room, line))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what to remember</summary>
#
# The numbers of the lines in the cache, in a list, in the order in which they were last used.
#
# </details>
# <details><summary>Hint 2: a hit</summary>
#
# The line moves to the end of the list: `remove` it, and `append` it again.
#
# </details>
# <details><summary>Hint 3: a miss</summary>
#
# If the list is full, `pop(0)` takes out the line that was used least recently. Then `append` the new one.
#
# </details>


# %% wrong="count_hits" says="Only the same address hits" gets=2
def count_hits(addresses, room, _line_bytes):
    kept, hits = [], 0
    for address in addresses:
        if address in kept:
            hits += 1
            kept.remove(address)
        elif len(kept) == room:
            kept.pop(0)
        kept.append(address)
    return hits


# %% wrong="count_hits" says="Nothing ever leaves that cache" gets=1
def count_hits(addresses, _room, line_bytes):
    return len(addresses) - len({address // line_bytes for address in addresses})


# %% wrong="count_hits" says="The line that came first went" gets=2
def count_hits(addresses, room, line_bytes):
    kept, hits = [], 0
    for line in (address // line_bytes for address in addresses):
        if line in kept:
            hits += 1
        else:
            kept = [*kept, line][-room:]
    return hits


# %% [markdown]
# ## Exercise 3: read the caches off a curve
#
# A chase gave the time of a load by working set. On a machine without noise the curve is flat inside a cache and rises
# behind it. (The curve is simulated, so the sizes are known.)

# %%
caches = [simulators.CacheLevel(8 * 1024, ways=2), simulators.CacheLevel(64 * 1024, ways=8)]
sizes = [2048 * 2**step for step in range(9)]
simulated = simulators.simulate_latency(caches, [1e-9, 4e-9, 40e-9], sizes)
curve = [(point.working_set_bytes, point.latency_s) for point in simulated.points]
drawn = data_movement.draw_latencies(simulated.points, origin="simulated", title="Two caches")
plotting.show(
    drawn, alt="The time of a load by working set: flat up to 8 KiB, a step, flat up to 64 KiB, another step."
)

# %% [markdown]
# Write `cache_sizes(curve)`. It takes a list of pairs (working set in bytes, seconds of a load), in any order, and
# returns the list of the cache sizes, the smallest first:
#
# - a *rise* is one step of the sorted curve, or several in a row, in each of which the time grows by a tenth or more;
# - each rise gives one cache: the last working set *before* it.


# %% answer="cache_sizes"
def cache_sizes(curve):
    """Return the working sets after which the time of a load rises: the caches' sizes, the smallest first."""
    ### BEGIN SOLUTION
    ordered, found, rising = sorted(curve), [], False
    for (size, before_s), (_, after_s) in itertools.pairwise(ordered):
        grows = after_s >= 1.1 * before_s
        if grows and not rising:
            found.append(size)
        rising = grows
    return found
    ### END SOLUTION


# %% checks="cache_sizes" points=4
check = exercises.Checks("Exercise 3, cache_sizes", cache_sizes)
before, ordered = "a cache ends before the rise", "the order of the points does not count"
once, drift = "a rise over several points is one cache", "a slow drift is none"
plain = [(1024, 1e-9), (2048, 1e-9), (4096, 5e-9), (8192, 5e-9), (16384, 30e-9)]
behind = {(4096, 16384): "Those are the first working sets that no longer fit"}
check.returns(before, (list(plain),), expected=[2048, 8192], mistakes=behind)
check.returns(before, (list(curve),), expected=[8192, 65536])
check.returns(before, ([(1024, 1e-9), (2048, 1e-9)],), expected=[])
unsorted = {(1024,): "The points come in any order; sort them first"}
check.returns(ordered, ([plain[4], plain[0], plain[2], plain[3], plain[1]],), expected=[2048, 8192], mistakes=unsorted)
soft = [(1024, 1e-9), (2048, 1e-9), (4096, 2e-9), (8192, 5e-9), (16384, 5e-9)]
double = {(2048, 4096): "That is one rise, over two steps, so one cache", (4096,): "It begins to rise after 2048"}
check.returns(once, (soft,), expected=[2048], mistakes=double)
slow = [(1024, 1e-9), (2048, 1.05e-9), (4096, 1.1e-9), (8192, 4e-9), (16384, 4.1e-9)]
every = {(1024, 2048, 4096, 8192): "5 % more is no step", (1024,): "5 % more is no step"}
check.returns(drift, (slow,), expected=[4096], mistakes=every)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(1021)


def staircase(*, steps, soft, drifting):
    """Return a curve and its caches: flats of a few points, with rises between them."""
    size, time_s, points, truth = 2 ** draw.randint(9, 12), draw.uniform(1e-9, 2e-9), [], []
    for flat in range(steps + 1):
        for _ in range(draw.randint(2, 4)):
            points.append((size, time_s))
            time_s *= draw.uniform(1.02, 1.06) if drifting else 1
            size *= 2
        time_s = points[-1][1]
        if flat < steps:
            truth.append(points[-1][0])
            for _ in range(draw.randint(1, 3) if soft else 0):
                time_s *= draw.uniform(1.3, 2)
                points.append((size, time_s))
                size *= 2
            time_s *= draw.uniform(2, 6)
    return points, truth


for _ in range(5):
    for goal in (before, ordered, once, drift):
        points, truth = staircase(steps=draw.randint(2, 4), soft=goal == once, drifting=goal == drift)
        if goal == ordered:
            points = points[::-1] if draw.random() < 0.5 else draw.sample(points, len(points))
        check.returns(goal, (points,), expected=truth)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: in order</summary>
#
# `sorted(curve)` sorts the pairs by their first number, the working set.
#
# </details>
# <details><summary>Hint 2: a step</summary>
#
# Look at neighbours: `itertools.pairwise(ordered)` gives each point with the next one. It is a step of a rise if the
# next time is at least 1.1 times this one.
#
# </details>
# <details><summary>Hint 3: one rise, one cache</summary>
#
# Keep a variable that says whether the step before was part of a rise as well. Only a step after a flat one gives a
# cache.
#
# </details>


# %% wrong="cache_sizes" says="Those are the first working sets that no longer fit" gets=0
def cache_sizes(curve):
    ordered, found, rising = sorted(curve), [], False
    for (_, before_s), (size, after_s) in itertools.pairwise(ordered):
        grows = after_s >= 1.1 * before_s
        if grows and not rising:
            found.append(size)
        rising = grows
    return found


# %% wrong="cache_sizes" says="The points come in any order" gets=3
def cache_sizes(curve):
    found, rising = [], False
    for (size, before_s), (_, after_s) in itertools.pairwise(curve):
        grows = after_s >= 1.1 * before_s
        if grows and not rising:
            found.append(size)
        rising = grows
    return found


# %% wrong="cache_sizes" says="That is one rise, over two steps" gets=3
def cache_sizes(curve):
    ordered = sorted(curve)
    return [size for (size, before_s), (_, after_s) in itertools.pairwise(ordered) if after_s >= 1.1 * before_s]


# %% wrong="cache_sizes" says="5 % more is no step" gets=3
def cache_sizes(curve):
    ordered, found, rising = sorted(curve), [], False
    for (size, before_s), (_, after_s) in itertools.pairwise(ordered):
        grows = after_s > before_s
        if grows and not rising:
            found.append(size)
        rising = grows
    return found


# %% [markdown]
# ## Question 1: an operation of your own
#
# Take an operation from your own work that reads a tensor in two orders or two layouts: a slice, a transpose, a
# gather, a norm, a convolution in channels-last. Before you run it, write down how many lines each of the two moves,
# and from that how many times as long the one takes as the other. Measure with `timing.compare`. Say how far your
# model is off, and explain what is more than a factor of two: what else the operation pays for, and how you would
# find out.
#
# Five to ten sentences with your numbers; a person reads them.

# %% [markdown] written="own_order" points=3
# A full answer says:
#
# - 1 point: lines for both, counted from shape, strides and element size, with the prediction from them, written
#   before the measurement. A prediction without a count gets no point.
# - 1 point: a measured ratio in turns, on tensors that are named by shape and lie beyond the caches that matter (or
#   with the reason why they do not), and its distance from the prediction.
# - 1 point: an explanation of what the count leaves out, with a test of it: the call's overhead (a larger tensor),
#   a loop without SIMD (the same layouts in a tensor that fits into the first cache), a copy into another layout
#   (its own time), the result that is written, lines that prefetching brings early. An honest "off by three, and
#   here is the test that rules out the overhead" gets the point; a model bent until it fits does not.

# %% [markdown]
# ## Question 2: latency or bandwidth?
#
# A program follows a chain: each element says where the next one stands. Another program copies an array of the same
# bytes. A new machine has twice the bandwidth of memory and the same latency. Which of the two gains, by about how
# much, and why?
#
# Two to five sentences; a person reads them.

# %% [markdown] written="latency_or_bandwidth" points=2
# A full answer says:
#
# - 1 point: the copy gains, up to twice as fast, since its addresses are known ahead and many lines are on their way
#   at once. Who adds that one core gains less where its lines in flight are already the limit (Little's law) is right.
# - 1 point: the chain gains next to nothing, since the address of a load comes from the load before it; it waits a
#   whole latency for each.

# %% [markdown]
# ## What you have practised
#
# Counting what memory moves instead of what a program reads, following a cache by its rule, and reading its size off a
# curve. `data_movement.lines_touched`, `simulators.simulate_caches` and `hardware.find_change_points` do the same; now
# you know what they count, and what noise makes harder.
