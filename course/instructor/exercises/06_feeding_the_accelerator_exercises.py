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
# Three functions to write, for [lesson 06](../06_feeding_the_accelerator.ipynb). Each exercise has a table or a
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
# The loader of Part 4 with `workers` workers and a `prefetch` factor. Its rules:
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
# ## Exercise 2: which rows may be compared?
#
# Somebody measured these runs. Two rows answer a question when they differ in one factor, and the answer is a speedup
# at equal work: examples a second.
#
# | row | device | devices | batch | loading in the clock | examples | seconds |
# |--:|---|--:|--:|---|--:|--:|
# | 0 | CPU | 1 | 128 | yes | 1000 | 10 |
# | 1 | GPU | 1 | 128 | yes | 1000 | 4 |
# | 2 | GPU | 2 | 256 | yes | 2000 | 4 |
# | 3 | GPU | 1 | 128 | no | 2000 | 2 |
#
# Row 1 may be held against row 0 (device: 2.5 times as fast) and row 3 against row 1 (loading: 4 times as many
# examples a second). Row 2 may be held against none.
#
# Write `fair_pairs(rows)`. A row is a tuple (factors, examples, seconds), where factors is a dictionary. Return a
# list of tuples (first, second, factor, speedup) for all pairs of places with first < second that differ in exactly
# one factor, in the order of first and then of second. The speedup is the second row's examples a second over the
# first row's.


# %% answer="fair_pairs"
def fair_pairs(rows):
    """Return (first, second, factor, speedup) for each pair of rows that differs in exactly one factor."""
    ### BEGIN SOLUTION
    found = []
    for first, (before, before_examples, before_s) in enumerate(rows):
        for second in range(first + 1, len(rows)):
            after, after_examples, after_s = rows[second]
            differing = [factor for factor in before if before[factor] != after[factor]]
            if len(differing) == 1:
                speedup = (after_examples / after_s) / (before_examples / before_s)
                found.append((first, second, differing[0], speedup))
    return found
    ### END SOLUTION


# %% checks="fair_pairs" points=3
check = exercises.Checks("Exercise 2, fair_pairs", fair_pairs)
one, several = "a pair that differs in one factor is found", "other pairs are left out"
work = "unequal work is divided out"


def row(device, batch, examples, seconds, **more):
    return {"device": device, "batch": batch, **more}, examples, seconds


cpu_gpu = [row("CPU", 128, 1000, 10.0), row("GPU", 128, 1000, 4.0)]
inverse = {((0, 1, "device", 0.4),): "That is below 1 for a faster row; divide the second rate by the first"}
check.returns(one, (cpu_gpu,), expected=[(0, 1, "device", 2.5)], mistakes=inverse)
neighbours = {((0, 1, "device", 2.5), (1, 2, "device", 0.5)): "Neighbours are not the only pairs"}
three = [*cpu_gpu, row("TPU", 128, 1000, 8.0)]
every_pair = [(0, 1, "device", 2.5), (0, 2, "device", 1.25), (1, 2, "device", 0.5)]
check.returns(one, (three,), expected=every_pair, mistakes=neighbours)
two_things = [row("CPU", 128, 1000, 10.0), row("GPU", 512, 1000, 2.0)]
blamed = {((0, 1, "device", 5.0),): "The batch changed as well; which of the two made it faster?"}
check.returns(several, (two_things,), expected=[], mistakes=blamed)
check.returns(several, ([cpu_gpu[0], cpu_gpu[0]],), expected=[])
longer = [row("GPU", 128, 1000, 4.0), row("GPU", 256, 3000, 6.0)]
seconds_only = {
    ((0, 1, "batch", 4 / 6),): "The second row trained three times as many examples; compare examples a second"
}
check.returns(work, (longer,), expected=[(0, 1, "batch", 2.0)], mistakes=seconds_only)
check.report()
### BEGIN HIDDEN TESTS
import random
from itertools import combinations

draw = random.Random(6002)


def truth(rows):
    """Pairs of places in order; items that are in one row's set of factors and not in the other's come in twos."""
    kept = []
    for (i, one), (j, other) in combinations(enumerate(rows), 2):
        apart = set(one[0].items()) ^ set(other[0].items())
        if len(apart) == 2:
            kept.append((i, j, next(iter(apart))[0], other[1] * one[2] / (one[1] * other[2])))
    return kept


for _ in range(5):
    examples, names = 1000 * draw.randint(1, 9), ["CPU", "GPU", "NPU", "TPU"]
    alone = [row(name, 64, examples, float(draw.randint(1, 40)), clock=True) for name in draw.sample(names, 3)]
    alone.append(row(alone[0][0]["device"], 64, examples, float(draw.randint(41, 60)), clock=False))
    chain = alone[:3]
    check.returns(one, (chain,), expected=truth(chain))
    apart = [row(name, size, examples, 5.0, clock=place % 2 == 0) for place, (name, size) in
             enumerate(zip(names, draw.sample((32, 64, 128, 256), 4), strict=True))]  # fmt: skip
    check.returns(several, (apart,), expected=truth(apart))
    factors, *work_and_time = apart[0]
    twin = ({**factors, "clock": not factors["clock"]}, *work_and_time)
    check.returns(several, ([apart[0], twin, *apart[1:]],), expected=[(0, 1, "clock", 1.0)])
    uneven = [(factors, examples * draw.randint(2, 9) + place, seconds) for place, (factors, _, seconds) in
              enumerate(alone[:3])]  # fmt: skip
    check.returns(work, (uneven,), expected=truth(uneven))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: all pairs</summary>
#
# Two loops over the places, the inner one from the place after the outer one.
#
# </details>
# <details><summary>Hint 2: what differs</summary>
#
# `[factor for factor in a if a[factor] != b[factor]]`, and its length decides.
#
# </details>
# <details><summary>Hint 3: the speedup</summary>
#
# A rate is examples over seconds; a speedup is the later rate over the earlier one.
#
# </details>


# %% wrong="fair_pairs" says="which of the two made it faster" gets=2
def fair_pairs(rows):
    pairs = []
    for j in range(len(rows)):
        for i in range(j):
            names = [name for name in rows[i][0] if rows[i][0][name] != rows[j][0][name]]
            if names:
                pairs.append((i, j, names[0], rows[j][1] / rows[j][2] / (rows[i][1] / rows[i][2])))
    return sorted(pairs)


# %% wrong="fair_pairs" says="compare examples a second" gets=2
def fair_pairs(rows):
    pairs = []
    for j in range(len(rows)):
        for i in range(j):
            names = [name for name in rows[i][0] if rows[i][0][name] != rows[j][0][name]]
            if len(names) == 1:
                pairs.append((i, j, names[0], rows[i][2] / rows[j][2]))
    return sorted(pairs)


# %% wrong="fair_pairs" says="divide the second rate by the first" gets=1
def fair_pairs(rows):
    pairs = []
    for j in range(len(rows)):
        for i in range(j):
            names = [name for name in rows[i][0] if rows[i][0][name] != rows[j][0][name]]
            if len(names) == 1:
                pairs.append((i, j, names[0], rows[i][1] / rows[i][2] / (rows[j][1] / rows[j][2])))
    return sorted(pairs)


# %% [markdown]
# ## Exercise 3: when does the training end?
#
# A training of `work_s` seconds is cut into pieces of `interval_s`; the last may be shorter. After each piece, the
# last one too, a save takes `save_s`. When a failure comes, whatever was not saved whole is lost: the training
# restarts, which takes `restart_s`, and does the piece again. A failure during a restart starts the restart again.
#
# Pieces of 20 s, saves of 5 s, restarts of 10 s, and a failure at 40 s:

# %%
done = [
    ("training", 0, 20, "piece"),
    ("save", 20, 25, "save"),
    ("training", 25, 40, "lost"),
    ("restart", 40, 50, "restart"),
]
done += [("training", 50, 70, "piece"), ("save", 70, 75, "save")]
drawn = plotting.gantt(
    [plotting.Span("one machine", start, end, kind, label) for kind, start, end, label in done],
    title="40 s of training end at 75 s",
)
plotting.show(
    drawn, alt="One lane: a piece and its save, a piece that a failure ends, a restart, the piece again, its save."
)

# %% [markdown]
# Write `ends_s(work_s, interval_s, save_s, restart_s, failures_s)`: the time at which the last save ends.
# `failures_s` are the times of the failures, in rising order; none falls on the moment at which something ends, and
# those after the end do not matter.


# %% answer="ends_s"
def ends_s(work_s, interval_s, save_s, restart_s, failures_s):
    """Return when the last save ends: ends_s(40, 20, 5, 10, [40]) is 75."""
    ### BEGIN SOLUTION
    clock, safe, waking = 0, 0, 0
    coming = list(failures_s)
    while safe < work_s:
        length = min(interval_s, work_s - safe)
        planned_end = clock + waking + length + save_s
        if coming and coming[0] < planned_end:
            clock, waking = coming.pop(0), restart_s
        else:
            clock, safe, waking = planned_end, safe + length, 0
    return clock
    ### END SOLUTION


# %% checks="ends_s" points=3
check = exercises.Checks("Exercise 3, ends_s", ends_s)
saves, lost = "every piece is saved, whole or not at all", "what was not saved is done again"
restarts = "a restart takes time, and may fail"
without = {100: "A save takes time, and the training waits for it", 115: "The last piece is saved too"}
check.returns(saves, (100, 30, 5, 0, []), expected=120, mistakes=without)
half_saved = dict.fromkeys((25, 35), "The failure at 25 ended the save: what is not saved whole is done again")
check.returns(saves, (20, 20, 10, 0, [25]), expected=55, mistakes=half_saved)
unharmed = {
    60: "The failure came within a piece: what was done of it is lost",
    91: "Not everything is lost; the first piece was saved",
}
check.returns(lost, (60, 20, 0, 0, [31]), expected=71, mistakes=unharmed)
lucky = {35: "The failure at 9 came during the restart, which begins again", 29: "After a failure comes a restart"}
check.returns(restarts, (20, 20, 0, 10, [5, 9]), expected=39, mistakes=lucky)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(6003)


def truth(work, interval, save, restart, failures):
    """The end by recursion over failures: what is safe at each failure, then the rest of the run after it."""
    begin, kept = 0, 0
    for failure in failures:
        whole = begin
        while kept < work and whole + min(interval, work - kept) + save < failure:
            whole, kept = whole + min(interval, work - kept) + save, kept + min(interval, work - kept)
        if kept == work:
            return whole
        begin = failure + restart
    rest = work - kept
    return begin + rest + save * -(-rest // interval)


for _ in range(5):
    interval, pieces, save = draw.randint(20, 60), draw.randint(3, 7), draw.randint(2, 9)
    work = interval * pieces + draw.randint(1, interval - 1)
    check.returns(saves, (work, interval, save, 0, []), expected=truth(work, interval, save, 0, []))
    during = (interval, interval, save, 0, [interval + draw.randrange(save) + 0.5])
    check.returns(saves, during, expected=truth(*during))
    fails = sorted(draw.sample(range(10, work), 3))
    fails = [each + 0.5 for each in fails]
    check.returns(lost, (work, interval, 0, 0, fails), expected=truth(work, interval, 0, 0, fails))
    early = [draw.randint(1, 9) + 0.5, draw.randint(10, 19) + 0.25]
    restart = draw.randint(25, 50)
    asked = (interval, interval, 0, restart, early)
    check.returns(restarts, asked, expected=truth(*asked))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one attempt</summary>
#
# An attempt is a restart (if there was a failure), a piece and its save. It ends well, or a failure comes before its
# end.
#
# </details>
# <details><summary>Hint 2: what to remember</summary>
#
# Three numbers: the time, the seconds of training that are safe, and how long the restart in front of the next
# attempt is.
#
# </details>
# <details><summary>Hint 3: the loop</summary>
#
# `while` not everything is safe: work out when this attempt would end. If the next failure comes earlier, go to the
# failure; else go to the end, and the piece is safe.
#
# </details>


# %% wrong="ends_s" says="A save takes time" gets=2
def ends_s(work_s, interval_s, _save_s, restart_s, failures_s):
    now, done = 0, 0
    for failure in failures_s:
        while done < work_s and now + min(interval_s, work_s - done) < failure:
            now, done = now + min(interval_s, work_s - done), done + min(interval_s, work_s - done)
        if done >= work_s:
            return now
        now = failure + restart_s
    return now + work_s - done


# %% wrong="ends_s" says="The failure at 25 ended the save" gets=2
def ends_s(work_s, interval_s, save_s, restart_s, failures_s):
    clock, safe, waking = 0, 0, 0
    coming = list(failures_s)
    while safe < work_s:
        length = min(interval_s, work_s - safe)
        trained = clock + waking + length
        if coming and coming[0] < trained:
            clock, waking = coming.pop(0), restart_s
        elif coming and coming[0] < trained + save_s:
            clock, safe, waking = coming.pop(0), safe + length, restart_s
        else:
            clock, safe, waking = trained + save_s, safe + length, 0
    return clock


# %% wrong="ends_s" says="Not everything is lost" gets=2
def ends_s(work_s, interval_s, save_s, restart_s, failures_s):
    whole, begin = work_s + save_s * -(-work_s // interval_s), 0
    for failure in failures_s:
        if begin + whole < failure:
            break
        begin = failure + restart_s
    return begin + whole


# %% wrong="ends_s" says="After a failure comes a restart" gets=2
def ends_s(work_s, interval_s, save_s, _restart_s, failures_s):
    now, done = 0, 0
    for failure in failures_s:
        while done < work_s and now + min(interval_s, work_s - done) + save_s < failure:
            now, done = now + min(interval_s, work_s - done) + save_s, done + min(interval_s, work_s - done)
        if done >= work_s:
            return now
        now = failure
    return now + work_s - done + save_s * -(-(work_s - done) // interval_s)


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
# ## Question 2: is the copy free?
#
# You set `pin_memory=True` and `non_blocking=True`, and the time of a step falls only a little. Explain why this is
# no contradiction, what is missing, and when even that would not make the copy free.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="free_copy" points=2
# A full answer says:
#
# - 1 point: the host no longer waits, but copy and computing are in one stream and still run in turn; a second stream
#   with the copy started one batch ahead is missing (and an event that the computing waits for).
# - 1 point: overlap takes the longer of the two, so it is free only while the copy is shorter than the step; also not
#   when the batch is not ready in time, since the copy cannot begin before it.

# %% [markdown]
# ## What you have practised
#
# Playing a bounded queue batch by batch, finding the pairs of rows that answer a question, and following a training
# through its failures. `feeding.simulate_feeding`, `feeding.compare_setups` and `feeding.simulate_run_s` do these in
# the library; now you know what they count.
