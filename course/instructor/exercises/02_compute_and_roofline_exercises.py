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
# # Compute and roofline: exercises
#
# Three functions to write, for [lesson 02](../02_compute_and_roofline.ipynb): the model with its calls, a kernel, and
# the batch that makes a layer wait for arithmetic. Every machine in them is made up, so nothing depends on how fast
# yours is. The last question is about your own machine.
#
# Run the checks as often as you like. A goal is a point; "public checks passed, hidden not run" means that your
# function is right for the inputs that you see here.

# %%
from helpers import exercises
from helpers.studies import simulators

# %% [markdown]
# ## Exercise 1: under the roof
#
# A machine does at most `peak` FLOP a second and moves at most `bandwidth` bytes a second. Each call of an operator
# costs `call_s` seconds on top. Write `roofline_time(flops, moved_bytes, peak, bandwidth, call_s)`, which returns the
# modelled time of one call in seconds, and the regime:
#
# | regime | when |
# |---|---|
# | `"overhead"` | the call costs more than data and arithmetic would |
# | `"memory"` | else, when the data take longer than the arithmetic |
# | `"compute"` | else |
#
# Data and arithmetic overlap; the call comes before both. For example, 2,000 FLOP on 1,000 bytes, with a peak of
# 1,000 FLOP/s, 2,000 B/s and calls of 0.25 s, take 2.25 s, and the regime is `"compute"`.


# %% answer="roofline_time"
def roofline_time(flops, moved_bytes, peak, bandwidth, call_s):
    """Return the modelled seconds of one call and its regime, as a tuple of two."""
    ### BEGIN SOLUTION
    compute_s, memory_s = flops / peak, moved_bytes / bandwidth
    longer_s = max(compute_s, memory_s)
    waits_for = "memory" if memory_s > compute_s else "compute"
    return longer_s + call_s, "overhead" if call_s > longer_s else waits_for
    ### END SOLUTION


# %% checks="roofline_time" points=3
check = exercises.Checks("Exercise 1, roofline_time", roofline_time)
compute, memory, overhead = "waits for arithmetic", "waits for data", "waits for the call"
added = "That adds the times of data and arithmetic; they overlap, so take the longer of the two"
no_call = "That leaves out the call, which comes before data and arithmetic"
shorter = "That takes the shorter of the two times; the operator has to wait for both"
check.returns(
    compute,
    (2000, 1000, 1000, 2000, 0.25),
    expected=(2.25, "compute"),
    mistakes={(2.75, "compute"): added, (2.0, "compute"): no_call, (0.75, "compute"): shorter},
)
check.returns(
    memory,
    (1000, 8000, 2000, 4000, 0.5),
    expected=(2.5, "memory"),
    mistakes={(3.0, "memory"): added, (2.0, "memory"): no_call, (1.0, "memory"): shorter, (1.0, "compute"): shorter},
)
both = "The call takes longer than data and arithmetic: the regime is overhead"
most = "That takes the longest of the three; the call is added"
check.returns(
    overhead,
    (1000, 1000, 4000, 8000, 1.5),
    expected=(1.75, "overhead"),
    mistakes={(1.75, "compute"): both, (1.875, "overhead"): added, (1.5, "overhead"): most, (1.5, "compute"): most},
)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(2003)
for goal in (compute, memory, overhead) * 4:
    peak, bandwidth = draw.randint(100, 999), draw.randint(100, 999)
    long_s, short_s = draw.uniform(5, 9), draw.uniform(1, 4)
    compute_s, memory_s = (short_s, long_s) if goal == memory else (long_s, short_s)
    call_s = 2 * long_s if goal == overhead else draw.uniform(0.1, 0.9) * long_s
    arguments = (compute_s * peak, memory_s * bandwidth, peak, bandwidth, call_s)
    name = {compute: "compute", memory: "memory", overhead: "overhead"}[goal]
    check.returns(goal, arguments, expected=(max(compute_s, memory_s) + call_s, name))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: two times</summary>
#
# The arithmetic takes `flops / peak` seconds, the data `moved_bytes / bandwidth`.
#
# </details>
# <details><summary>Hint 2: overlap</summary>
#
# What overlaps takes as long as the longer of the two: `max`. What comes before is added.
#
# </details>
# <details><summary>Hint 3: the regime</summary>
#
# Compare `call_s` with that longer time first; then compare the two times with each other.
#
# </details>


# %% wrong="roofline_time" says="they overlap, so take the longer of the two" gets=0
def roofline_time(flops, moved_bytes, peak, bandwidth, call_s):
    compute_s, memory_s = flops / peak, moved_bytes / bandwidth
    regime = "memory" if memory_s > compute_s else "compute"
    return compute_s + memory_s + call_s, "overhead" if call_s > max(compute_s, memory_s) else regime


# %% wrong="roofline_time" says="That leaves out the call" gets=0
def roofline_time(flops, moved_bytes, peak, bandwidth, call_s):
    compute_s, memory_s = flops / peak, moved_bytes / bandwidth
    regime = "memory" if memory_s > compute_s else "compute"
    return max(compute_s, memory_s), "overhead" if call_s > max(compute_s, memory_s) else regime


# %% wrong="roofline_time" says="the regime is overhead" gets=2
def roofline_time(flops, moved_bytes, peak, bandwidth, call_s):
    compute_s, memory_s = flops / peak, moved_bytes / bandwidth
    return max(compute_s, memory_s) + call_s, "memory" if memory_s > compute_s else "compute"


# %% wrong="roofline_time" says="That takes the longest of the three" gets=0
def roofline_time(flops, moved_bytes, peak, bandwidth, call_s):
    compute_s, memory_s = flops / peak, moved_bytes / bandwidth
    return max(compute_s, memory_s, call_s), "memory" if memory_s > compute_s else "compute"


# %% wrong="roofline_time" says="the call is added" gets=0
def roofline_time(flops, moved_bytes, peak, bandwidth, call_s):
    times_s = {"compute": flops / peak, "memory": moved_bytes / bandwidth, "overhead": call_s}
    regime = max(times_s, key=times_s.get)
    return times_s[regime], regime


# %% [markdown]
# ## Exercise 2: a matrix times a vector, with shared memory
#
# A product of a matrix `a` (m, k) and a single column `b` (k, 1). Every row of `a` needs all of `b`. Blocks have
# `tile` rows and `tile` columns of threads, and the column of results `c` (m, 1) needs one thread a row. Here is the
# naive kernel, in which the threads of the first column do all the work:


# %%
def naive(thread, a, b, c):
    if thread.row < c.shape[0] and thread.column == 0:
        total = 0.0
        for p in range(a.shape[1]):
            total += a[thread.row, p] * b[p, 0]
        c[thread.row, 0] = total


def reads_and_writes(kernel, m, k, tile):
    """Return the global reads and writes of a kernel for an (m, k) matrix; raise KernelError where it is wrong."""
    returned = []

    def watched(*given):
        returned.append(kernel(*given))
        return returned[-1]

    try:
        run = simulators.count_traffic(watched, m, 1, k, tile=tile)
    except simulators.KernelError:
        if any(isinstance(one, exercises.NotYet) for one in returned):
            return exercises.not_yet
        raise
    return run.global_reads, run.global_writes


print(reads_and_writes(naive, 8, 12, 4))

# %% [markdown]
# Write `shared_vector(thread, a, b, c)`, in which each block reads every element of `b` from global memory **once**,
# into a shared matrix, and all rows of the block use it from there. Every element of `a` is read once from global
# memory, as before. For an (8, 12) matrix and tiles of 4:
#
# | | naive | yours |
# |---|--:|--:|
# | global reads of `a` | 96 | 96 |
# | global reads of `b` | 96 | 24 |
#
# `m` need not be a multiple of `tile`. Write `yield` where every thread of the block must have arrived before any goes
# on; each thread of a block has to pass each `yield`.


# %% answer="shared_vector"
def shared_vector(thread, a, b, c):
    """Compute c = a @ b for a single column b, each block reading b once from global memory."""
    ### BEGIN SOLUTION
    k, threads = a.shape[1], thread.tile**2
    column = thread.shared("column", k, 1)
    for p in range(thread.thread_row * thread.tile + thread.thread_column, k, threads):
        column[p, 0] = b[p, 0]
    yield
    if thread.row < c.shape[0] and thread.thread_column == 0:
        total = 0.0
        for p in range(k):
            total += a[thread.row, p] * column[p, 0]
        c[thread.row, 0] = total
    ### END SOLUTION


# %% checks="shared_vector" points=3
check = exercises.Checks("Exercise 2, shared_vector", reads_and_writes)
whole, ragged, long = (
    "b is read once a block",
    "m is no multiple of the tile",
    "k is longer than the threads of a block",
)
every_row = "Every row reads b from global memory: that is the naive kernel"
check.returns(whole, (shared_vector, 8, 12, 4), expected=(120, 8), mistakes={(192, 8): every_row})
check.returns(ragged, (shared_vector, 6, 12, 4), expected=(96, 6), mistakes={(144, 6): every_row})
check.returns(long, (shared_vector, 4, 40, 4), expected=(200, 4), mistakes={(320, 4): every_row})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(2011)
for tile in (2, 3, 4):
    blocks, k = draw.randint(2, 4), draw.randint(2, tile**2)
    check.returns(
        whole, (shared_vector, blocks * tile, k, tile), expected=(blocks * tile * k + blocks * k, blocks * tile)
    )
    rows = blocks * tile - 1
    check.returns(ragged, (shared_vector, rows, k, tile), expected=(rows * k + blocks * k, rows))
    k = 2 * tile**2 + draw.randint(1, 5)
    check.returns(
        long, (shared_vector, blocks * tile, k, tile), expected=(blocks * tile * k + blocks * k, blocks * tile)
    )
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the shared column</summary>
#
# `column = thread.shared("column", a.shape[1], 1)` is the same matrix for all threads of a block.
#
# </details>
# <details><summary>Hint 2: who brings what?</summary>
#
# Number the threads of a block: `thread.thread_row * thread.tile + thread.thread_column`. Thread 0 brings the
# elements 0, `tile**2`, `2 * tile**2`, ..., thread 1 the elements 1, `tile**2 + 1`, ...: a `range` with a step.
#
# </details>
# <details><summary>Hint 3: the barrier</summary>
#
# One `yield` after the bringing, outside of any `if`. Only after it do the threads with `thread.thread_column == 0`
# whose row exists compute their sums.
#
# </details>


# %% wrong="shared_vector" says="that is the naive kernel" gets=0
def shared_vector(thread, a, b, c):
    yield
    if thread.row < c.shape[0] and thread.thread_column == 0:
        c[thread.row, 0] = sum(a[thread.row, p] * b[p, 0] for p in range(a.shape[1]))


# %% wrong="shared_vector" says="put a yield before the reading" gets=0
def shared_vector(thread, a, b, c):
    k, tile = a.shape[1], thread.tile
    column = thread.shared("column", k, 1)
    for p in range(thread.thread_row * tile + thread.thread_column, k, tile**2):
        column[p, 0] = b[p, 0]
    if thread.row < c.shape[0] and thread.thread_column == 0:
        c[thread.row, 0] = sum(a[thread.row, p] * column[p, 0] for p in range(k))


# %% wrong="shared_vector" says="let one thread write it" gets=0
def shared_vector(thread, a, b, c):
    column = thread.shared("column", a.shape[1], 1)
    for p in range(a.shape[1]):
        column[p, 0] = b[p, 0]
    yield
    if thread.row < c.shape[0] and thread.thread_column == 0:
        c[thread.row, 0] = sum(a[thread.row, p] * column[p, 0] for p in range(a.shape[1]))


# %% wrong="shared_vector" says="outside its 6 rows" gets=2
def shared_vector(thread, a, b, c):
    k, tile = a.shape[1], thread.tile
    column = thread.shared("column", k, 1)
    for p in range(thread.thread_row * tile + thread.thread_column, k, tile**2):
        column[p, 0] = b[p, 0]
    yield
    if thread.thread_column == 0:
        c[thread.row, 0] = sum(a[thread.row, p] * column[p, 0] for p in range(k))


# %% wrong="shared_vector" says="which nothing was written to" gets=2
def shared_vector(thread, a, b, c):
    k, tile = a.shape[1], thread.tile
    column = thread.shared("column", k, 1)
    p = thread.thread_row * tile + thread.thread_column
    if p < k:
        column[p, 0] = b[p, 0]
    yield
    if thread.row < c.shape[0] and thread.thread_column == 0:
        c[thread.row, 0] = sum(a[thread.row, p] * column[p, 0] for p in range(k))


# %% [markdown]
# ## Exercise 3: the batch that reaches the ridge
#
# A fully connected layer multiplies a batch of inputs by its weights: `batch` rows of `inputs` numbers each, weights
# of `inputs` by `outputs`, and `batch` rows of `outputs` numbers come out. There is no bias, and a number has `size`
# bytes.
#
# | counted | |
# |---|---|
# | operations | two for each multiply-accumulate |
# | bytes | inputs, weights and outputs, each moved once |
#
# Write `smallest_batch(inputs, outputs, size, ridge)`: the smallest batch at which the layer's arithmetic intensity
# is at least `ridge` FLOP/B, or `"never"` where no batch is large enough. For 64 inputs, 64 outputs, 4 bytes and a
# ridge of 8, a batch of 32 does $2 \cdot 32 \cdot 64 \cdot 64$ operations on
# $4\,(32 \cdot 64 + 64 \cdot 64 + 32 \cdot 64)$ bytes, which is 8 FLOP/B exactly; 31 are too few.


# %% answer="smallest_batch"
def smallest_batch(inputs, outputs, size, ridge):
    """Return the smallest batch with at least `ridge` FLOP for each byte, "never" where there is none."""
    ### BEGIN SOLUTION
    # 2 b i o >= ridge size (b (i + o) + i o), solved for b in whole numbers
    gain = 2 * inputs * outputs - ridge * size * (inputs + outputs)
    if gain <= 0:
        return "never"
    return max(1, -(-(ridge * size * inputs * outputs) // gain))
    ### END SOLUTION


# %% checks="smallest_batch" points=3
check = exercises.Checks("Exercise 3, smallest_batch", smallest_batch)
counts, width, never = (
    "all three matrices are counted",
    "narrower numbers need less",
    "never, where no batch is enough",
)
mistakes = {
    16: "That counts the weights alone; inputs and outputs move as well",
    64: "That counts one operation for a multiply-accumulate; it is two",
    33: "A batch of 32 reaches the ridge exactly, and at least means that it counts",
    8: "The ridge is in FLOP a byte; a number has size bytes",
    31: "A batch of 31 is below the ridge: round up",
}
check.returns(counts, (64, 64, 4, 8), expected=32, mistakes=mistakes)
check.returns(counts, (256, 128, 4, 8), expected=20, mistakes={19: "A batch of 19 is below the ridge: round up"})
check.returns(width, (64, 64, 2, 8), expected=11, mistakes={32: "That takes 4 bytes for a number, whatever size is"})
check.returns(width, (64, 64, 1, 8), expected=5, mistakes={32: "That takes 4 bytes for a number, whatever size is"})
beyond = "However large the batch, inputs and outputs move as well: its intensity stays below the ridge"
negative = "No batch is less than one: where the division gives that, none is large enough"
check.returns(never, (16, 16, 4, 8), expected="never", mistakes={-16: negative, 0: beyond, 1: beyond})
check.returns(never, (16, 16, 4, 4), expected="never", mistakes={0: beyond, 1: beyond})
check.report()
### BEGIN HIDDEN TESTS
import random


def brute_force(inputs, outputs, size, ridge):
    for batch in range(1, 100_000):
        moved = size * (batch * inputs + inputs * outputs + batch * outputs)
        if 2 * batch * inputs * outputs >= ridge * moved:
            return batch
    return "never"


draw = random.Random(2017)
for _ in range(6):
    inputs, outputs, ridge = draw.randint(200, 900), draw.randint(200, 900), draw.randint(3, 20)
    check.returns(counts, (inputs, outputs, 4, ridge), expected=brute_force(inputs, outputs, 4, ridge))
    size = draw.choice([1, 2, 8])
    check.returns(width, (inputs, outputs, size, ridge), expected=brute_force(inputs, outputs, size, ridge))
    small = draw.randint(4, 20)
    check.returns(never, (small, small, 4, 4 * small), expected="never")
    check.returns(never, (inputs, outputs, 4, 1), expected=brute_force(inputs, outputs, 4, 1))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: try</summary>
#
# Count operations and bytes for one batch, and divide. Then ask for batches 1, 2, 3, ... until the ridge is reached.
# Where none reaches it, such a loop does not end (the square button stops a cell): hint 2 says when not to begin.
#
# </details>
# <details><summary>Hint 2: when is it in vain?</summary>
#
# A very large batch has an intensity of nearly `2 * inputs * outputs / (size * (inputs + outputs))`, and never more.
#
# </details>
# <details><summary>Hint 3: no floats</summary>
#
# `operations >= ridge * bytes` asks the same as `operations / bytes >= ridge`, in whole numbers.
#
# </details>


# %% wrong="smallest_batch" says="That counts the weights alone" gets=0
def smallest_batch(inputs, outputs, size, ridge):
    if 2 * inputs * outputs <= ridge * size * (inputs + outputs):
        return "never"
    return -(-ridge * size // 2)


# %% wrong="smallest_batch" says="whatever size is" gets=2
def smallest_batch(inputs, outputs, size, ridge):  # noqa: ARG001
    gain = 2 * inputs * outputs - ridge * 4 * (inputs + outputs)
    return max(1, -(-(ridge * 4 * inputs * outputs) // gain)) if gain > 0 else "never"


# %% wrong="smallest_batch" says="No batch is less than one" gets=2
def smallest_batch(inputs, outputs, size, ridge):
    gain = 2 * inputs * outputs - ridge * size * (inputs + outputs)
    return -(-(ridge * size * inputs * outputs) // gain) if gain else 0


# %% wrong="smallest_batch" says="its intensity stays below the ridge" gets=2
def smallest_batch(inputs, outputs, size, ridge):
    gain = 2 * inputs * outputs - ridge * size * (inputs + outputs)
    return max(1, -(-(ridge * size * inputs * outputs) // gain)) if gain else 0


# %% wrong="smallest_batch" says="and at least means that it counts" gets=2
def smallest_batch(inputs, outputs, size, ridge):
    gain = 2 * inputs * outputs - ridge * size * (inputs + outputs)
    return ridge * size * inputs * outputs // gain + 1 if gain > 0 else "never"


# %% [markdown]
# ## Question 1: a faster processor that does not help
#
# An operator moves 4 bytes for each FLOP. Your machine's ridge stands at 10 FLOP a byte. Somebody offers a processor
# with twice the peak and the same memory. What happens to the time of this operator, and to the ridge? Name one change
# to the program that would help instead.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="no_help" points=2
# A full answer says:
#
# - 1 point: the time stays, since it waits for memory (0.25 FLOP a byte, far below the ridge), and the ridge moves up
#   to 20 FLOP a byte, so more operators wait for memory than before.
# - 1 point: a change that moves fewer bytes for the same FLOP: fusing it with its neighbours, narrower numbers, a
#   larger batch, tiling. "Optimise it" is not enough.

# %% [markdown]
# ## Question 2: an operator of your own
#
# Take an operator or a small model that the lesson does not have, at a size that you choose. Count its operations and
# its bytes, and write down a time for your machine, from the limits that `helpers.probe()` shows and the calls. Then
# measure it with `helpers.measure`. Go on until your model and the measured time are within a factor of 2, or until
# you can show which promise of the roofline this operator breaks.
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="own_operator" points=2
# A full answer says:
#
# - 1 point: FLOP, bytes and calls with where each comes from, the machine's limits, and a time that was written down
#   before the measured one (a first guess that was far off loses nothing).
# - 1 point: what closed the gap, shown by a second measurement and not merely named: the call on the least input,
#   another size, an input that fits into a cache, fewer threads. "Overhead" or "the cache" alone is not enough.

# %% [markdown]
# ## What you have practised
#
# The roofline with its overhead in three lines, a kernel that reads from global memory only what it must, and the
# batch from which on a layer is worth a faster processor.
