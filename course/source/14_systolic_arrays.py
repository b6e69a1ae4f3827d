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
#   lesson:
#     number: "14"
#     title: Systolic arrays
#     needs: ["02", "11"]
#     objectives:
#       - write|wrote the step of one element, sixteen of which make a matrix product
#       - predict|predicted how much of an array works, by batch, by shape and without its skew
#       - count|counted the cycles and reads of an array that keeps sums, filters or inputs
#       - catch|caught a published simulator writing results before they exist
#       - derive|derived from three published numbers how long Google's first TPU shifts weights
# ---

# %% [markdown] tags=["objectives"]
# # Systolic arrays
#
# Google's first TPU (2015) has 65,536 multipliers, and control takes 2 % of its chip. No multiplier reads memory
# by itself: each takes its numbers from its neighbours, and hands them on. Such a grid is a
# [systolic array](glossary.md#systolic-array), after the beat of a heart. Today's TPUs still multiply with such arrays.
#
# You will build one, see when it idles, and predict from three published numbers a counter that Google read from its first TPU.
#
# *Simulated* here means: every [register](glossary.md#register) of every element, moved cycle by cycle. Its counts are exact.

# %%
import json
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

import helpers
from helpers import exercises, hardware, plotting, units
from helpers.studies import history
from helpers.studies.simulators import systolic

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# - An array of 256 x 256 elements, 65,536 weights
# - One row of 256 inputs: 65,536 multiplications
# - What share of all multiplier cycles is work?
#
# That is batch 1, as when one person waits for an answer. The weights have to be loaded first.

# %% tags=["predict"]
bet = helpers.predict(
    "One row on a 256 x 256 array: share of the multiplier cycles at work?", "%"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Only the edges of a systolic array read memory"
# ## Part 1: one element, then sixteen
#
# - An element: one multiplier, registers for an input, a filter and a sum
# - Inputs move right, filters move down, sums stay
# - Only the edges read memory
#
# A multiplier by itself reads two numbers for each [MAC](glossary.md#mac). H. T. Kung and Charles Leiserson proposed in 1978 to
# let a number that was once read pass many multipliers.

# %% tags=["predict"]
reads = helpers.predict(
    "4 x 4 elements, two 4 x 4 matrices: numbers read for one MAC?", "reads"
)
reads

# %% [markdown]
# **Your turn**: what one element does in one cycle. `None` means that nothing has come.


# %% tags=["yours"] yours="element"
def element(total, from_left, from_above):
    """Return the new sum, what goes on to the right, and what goes on down."""
    if from_left is not None and from_above is not None:
        total = total + from_left * from_above
    return total, from_left, from_above


# %% checks="element"
asked = exercises.Checks("One element, one cycle", element)
asked.returns(
    "two operands meet",
    (5, 2, 3),
    expected=(11, 2, 3),
    mistakes={
        (11, 3, 2): "What came from the left goes on to the right",
        (6, 2, 3): "The product is added to the sum that stands there",
        (11, None, None): "Pass both on, or the neighbours get nothing",
    },
)
asked.returns("one operand waits for nobody: it passes", (5, None, 3), expected=(5, None, 3))
asked.returns("nor does the other", (5, 2, None), expected=(5, 2, None))
element = asked.settle()


# %% wrong="element" says="goes on to the right"
def element(total, from_left, from_above):
    if from_left is not None and from_above is not None:
        total = total + from_left * from_above
    return total, from_above, from_left


# %% wrong="element" says="is added to the sum"
def element(total, from_left, from_above):
    if from_left is not None and from_above is not None:
        total = from_left * from_above
    return total, from_left, from_above


# %% wrong="element" says="one operand waits for nobody"
def element(total, from_left, from_above):
    return total + from_left * from_above, from_left, from_above


# %% [markdown]
# The array is this element $m \times n$ times, and a clock. Each row of $a$ enters one cycle after the row above it, each column of
# $b$ one cycle after the column to its left: the *skew*.


# %%
def entering(values, cycle):
    return values[cycle] if 0 <= cycle < len(values) else None


def on_array(a, b, skew=1):
    (m, k), n = a.shape, b.shape[1]
    sums = np.zeros((m, n), int)
    right, below = np.full((2, m, n), None)
    for cycle in range(m + n + k):
        before = right.copy(), below.copy()
        for r, c in np.ndindex(m, n):
            left = before[0][r, c - 1] if c else entering(a[r], cycle - skew * r)
            above = before[1][r - 1, c] if r else entering(b[:, c], cycle - skew * c)
            sums[r, c], right[r, c], below[r, c] = element(sums[r, c], left, above)
    return sums


# %% tags=["run"]
a, b = np.random.default_rng(2).integers(1, 10, (2, 4, 4))
print(on_array(a, b))
assert (on_array(a, b) == a @ b).all()

# %% [markdown]
# That is `a @ b`, and only the edges have read `a` or `b`. `systolic.simulate` does the same with registers for arrays and matrices of any
# size. Watch the wave, then step through it:

# %% tags=["look", "slide", "slide-output"] minutes=2 layout="steps" crop=[60, 112, 470, 263] frames=[0, 1, 3, 6, 8, 10] headline="A product crosses the array as a wave"
run = systolic.simulate(a, b, rows=4, columns=4, dataflow="output", frames=True)
captions = {
    "compute": "Pair j of element (r, c) meets in cycle r + c + j; all count from 0.",
    "drain": "The sums leave, one row a cycle.",
}
plotting.play(
    [systolic.draw_array(run, cycle) for cycle in range(run.cycles)],
    title="a @ b on 4 x 4 elements: sums stay",
    captions=[captions[frame.phase] for frame in run.frames],
    alt="A diagonal wave of working elements crosses the array; then the sums leave.",
)

# %% tags=["look"]
reads.reveal(modelled=1 / 4 + 1 / 4, counted=run.reads_per_mac)

# %% [markdown] tags=["explain"]
# An input that enters serves all columns, a filter all rows: $\frac{1}{R} + \frac{1}{C}$ reads a MAC on $R$ rows and $C$ columns.
# On 256 x 256 that is one read for 128 MACs. A GPU saves reads in the same manner, with tiles in [shared memory](glossary.md#shared-memory) (lesson 02). Here the
# wiring does it, and nothing has to fetch, decode or schedule an instruction for each multiplication.

# %% [markdown] tags=["slide"] minutes=2 headline="Each element begins a cycle after its neighbour"
# ## Part 2: the wave
#
# - Element $(r, c)$ begins in cycle $r + c$, from 0
# - It works for $k$ cycles
# - When all are done, the sums leave: a row a cycle
#
# While the wave comes in and runs out, corners of the array idle.

# %% tags=["predict"]
wave = helpers.predict("8 x 8 elements, two 8 x 8 matrices: share of the cycles at work?", "%")
wave

# %% tags=["run"]
runs = {}
for k in (8, 32):
    ones = np.ones((8, k), int)
    runs[k] = systolic.simulate(ones, ones.T, rows=8, columns=8, dataflow="output")

# %% tags=["look"]
wave.reveal(modelled=100 * 8 / (2 * 8 + 8 + 8 - 2), counted=100 * runs[8].utilisation)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A short product is all beginning and end"
print(f"k = 800, modelled: {800 / (2 * 8 + 8 + 800 - 2):.1%}")
drawn, axes = plotting.figure(title="Elements at work on 8 x 8, sums stay", height_in=3.4)
for (k, run), style in zip(runs.items(), ("-", "--"), strict=True):
    drawn_as = {"linestyle": style, "color": plotting.MEASURED, "label": f"k = {k}, counted"}
    axes.step(range(run.cycles), run.active, where="mid", **drawn_as)
axes.axhline(64, color="#777777", linestyle=":", label="all")
axes.set(xlabel="cycle", ylabel="elements at work")
axes.legend(loc="center right")
alt = "Elements at work by cycle: k = 8 makes a peak, k = 32 a plateau; then 8 idle cycles."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# The last element begins in cycle $R + C - 2$, so the wave takes $R + C + k - 2$ cycles, and the sums leave in $R$ more. Each element
# works in only $k$ of these: a longer $k$ uses the array better.
#
# Now break it. Without the skew, everything enters at once:

# %% tags=["predict"]
unskewed = helpers.predict(
    "Without the skew: how many of the 16 results are right?", "results"
)
unskewed

# %% tags=["run"]
off = on_array(a, b, skew=0) - a @ b

# %% tags=["look"]
unskewed.reveal(counted=int((off == 0).sum()))
print(off)

# %% [markdown] tags=["explain"]
# At element $(r, c)$ the number from the left arrives after $c$ cycles, the one from above after $r$. Without skew they match only
# where $r = c$; the skew delays both to $r + c$. So *when* a number enters is part of the program.

# %% [markdown] tags=["slide"] minutes=2 headline="What stays is read once: three dataflows"
# ## Part 3: what stays
#
# | stays | rows, columns | passes | good for |
# |:--|:--|:--|:--|
# | sums ("output") | $m$, $n$ | inputs, filters | long $k$ |
# | filters ("weight") | $k$, $n$ | inputs, sums | many rows $m$ |
# | inputs ("input") | $k$, $m$ | filters, sums | many columns $n$ |
#
# For $a$ of $m \times k$ and $b$ of $k \times n$. A filter or an input that stays is read once, a sum that stays is written once. This choice is the [dataflow](glossary.md#dataflow); the
# TPU keeps the filters, its weights. They are loaded first, down the columns; then inputs pass, and each sum grows on its way down.

# %% tags=["slide", "slide-output"] minutes=1 layout="steps" headline="Filters that stay are loaded first" crop=[45, 93, 490, 262]
run = systolic.simulate(a, b, rows=4, columns=4, dataflow="weight", frames=True)
captions = {
    "load": "The filters come down, the last row first.",
    "compute": "Inputs pass to the right; each sum grows on its way down.",
}
plotting.play(
    [systolic.draw_array(run, cycle) for cycle in range(run.cycles)],
    title="a @ b on 4 x 4 elements: filters stay",
    captions=[captions[frame.phase] for frame in run.frames],
    alt="Four cycles load the filters; then inputs pass and sums leave at the bottom.",
)

# %% [markdown]
# **Your turn.** Loading takes $R$ cycles. Then $m$ rows enter, one a cycle. The last one makes $C - 1$ steps to the last column, and
# its sum makes $R - 1$ steps to the last row. A matrix $b$ that is larger than the array is cut into tiles, *folds*, which run one
# after another.


# %% tags=["yours"] yours="cycles_weight_stationary"
def cycles_weight_stationary(m, n, k, rows, columns):
    """Return the cycles of all folds; k stands on the rows, n on the columns."""
    folds = -(-k // rows) * -(-n // columns)
    return folds * (rows + m + rows + columns - 2)


# %% checks="cycles_weight_stationary"
asked = exercises.Checks("Cycles, weight-stationary", cycles_weight_stationary)
asked.returns(
    "one fold on 4 x 4",
    (4, 4, 4, 4, 4),
    expected=14,
    mistakes={
        10: "The weights have to be loaded first, row by row",
        16: "To the last column it is columns - 1 steps, to the last row rows - 1",
    },
)
ones = np.ones((5, 8), int), np.ones((8, 12), int)
six_folds = systolic.simulate(*ones, rows=4, columns=4).cycles
asked.returns("2 x 3 folds, as simulated", (5, 12, 8, 4, 4), expected=six_folds)
asked.returns("9 of k on 4 rows are 3 folds", (4, 4, 9, 4, 4), expected=42)
ones = np.ones((5, 8), int), np.ones((8, 16), int)
wide = systolic.simulate(*ones, rows=4, columns=8).cycles
asked.returns("an array of 4 x 8, as simulated", (5, 16, 8, 4, 8), expected=wide)
cycles_weight_stationary = asked.settle()


# %% wrong="cycles_weight_stationary" says="loaded first"
def cycles_weight_stationary(m, n, k, rows, columns):
    return -(-k // rows) * -(-n // columns) * (m + rows + columns - 2)


# %% wrong="cycles_weight_stationary" says="9 of k on 4 rows"
def cycles_weight_stationary(m, n, k, rows, columns):
    return (k // rows) * (n // columns) * (rows + m + rows + columns - 2)


# %% [markdown]
# Input-stationary is the same machine on the transposed product, $b^T a^T$: $m$ and $n$ change places.

# %% tags=["predict"]
worst = helpers.predict(
    "32 x 20 by 20 x 4 on 4 x 4: times the cycles when inputs stay, not filters?", "x"
)
worst

# %% tags=["run"]
tall = np.ones((32, 20), int), np.ones((20, 4), int)
runs = [
    systolic.simulate(*tall, rows=4, columns=4, dataflow=name) for name in systolic.DATAFLOWS
]
cycles = {run.dataflow: run.cycles for run in runs}

# %% tags=["look"]
times = [cycles_weight_stationary(*sizes, 20, 4, 4) for sizes in ((4, 32), (32, 4))]
worst.reveal(modelled=times[0] / times[1], counted=cycles["input"] / cycles["weight"])

# %% tags=["look", "slide", "slide-output"] minutes=1 mark="output" headline="Which one is cheapest depends on the shape"
fields = ("cycles", "input_reads", "filter_reads", "output_writes", "partial_sum_reads")
table = pd.DataFrame([[getattr(run, name) for name in fields] for run in runs])
table.columns = ["cycles", "inputs", "filters", "sums written", "read back"]
table["accesses"] = table.iloc[:, 1:].sum(axis=1)
table.set_axis([run.dataflow for run in runs])

# %% [markdown] tags=["explain"]
# What passes should be long: 32 rows pass each filter, and only 4 columns pass each input. But $k$ takes five folds here, so
# where filters stay each sum is written five times and read back four times. Where sums stay it is written once. The best in cycles
# need not be the best in accesses.
#
# ### What went wrong here?
#
# SCALE-Sim is a simulator of systolic arrays that much research uses. We recorded where its version 3.0.0 writes the results of
# two 4 x 4 matrices, output-stationary. **Your turn**: how many results leave before their last operands have met?


# %% tags=["yours"] yours="written_too_early"
def written_too_early(writes, k):
    """Return how many of the writes (cycle, row, column) come before their element is done."""
    return sum(cycle < row + column + k - 1 for cycle, row, column in writes)


# %% checks="written_too_early"
asked = exercises.Checks("Results before their time", written_too_early)
writes = [(3, 0, 0), (5, 1, 1), (4, 1, 1), (2, 0, 0)]
asked.returns(
    "(0, 0) is done in cycle 3, (1, 1) in cycle 5",
    (writes, 4),
    expected=2,
    mistakes={
        4: "The k-th operand comes k - 1 cycles after the first",
        1: "The first operands need row + column cycles to come",
    },
)
written_too_early = asked.settle()


# %% wrong="written_too_early" says="k - 1 cycles after"
def written_too_early(writes, k):
    return sum(cycle < row + column + k for cycle, row, column in writes)


# %% wrong="written_too_early" says="row + column cycles"
def written_too_early(writes, k):
    return sum(cycle < k - 1 for cycle, row, column in writes)


# %% tags=["look", "slide", "slide-output"] minutes=1 numbers=[["(\\d+) of 16 results", "of 16 results leave too early"]] headline="Fed without a delay, half of the results are early"
recorded = json.loads(Path("recorded/systolic/scale_sim.json").read_text(encoding="utf-8"))
print(f"{recorded['simulator']} {recorded['version']}, recorded {recorded['date']}:")
for cycle, row, column in recorded["writes"][:3]:
    print(f"  ({row}, {column}) leaves in cycle {cycle}, due in {row + column + 4 - 1}")
early = written_too_early(recorded["writes"], 4)
print(early, "of", len(recorded["writes"]), "results are early")

# %% [markdown] tags=["explain"]
# Result (3, 0) leaves in cycle 3, when its element gets the *first* of four pairs; the tool counts $R + C + k - 2$ cycles, none of
# them to drain. All else holds, in three dataflows: the course's tests compare every other port in every cycle of 180 runs.
# Plausible totals prove little, so check single events, too.

# %% [markdown] tags=["slide"] minutes=2 headline="Loading and the wave cost the same for any batch"
# ## Part 4: an array of 256 x 256
#
# - Loading and the wave: 766 cycles, whatever the batch
# - $m$ rows: $m$ useful cycles of $m + 766$
# - A tile that is half empty takes as long as a full one
#
# All 65,536 elements, simulated:

# %% tags=["run"]
weights = np.random.default_rng(0).integers(-128, 128, (256, 256))
one_row = systolic.simulate(weights[:1], weights, rows=256, columns=256)
batches = {m: m / (m + 2 * 256 + 256 - 2) for m in (1, 256, 766, 6894)}

# %% tags=["look"]
bet.reveal(modelled=100 * batches[1], counted=100 * one_row.utilisation)
print("; ".join(f"{m:,} rows: {share:.1%}" for m, share in batches.items()))

# %% [markdown] tags=["explain"]
# With one row each element works in one cycle of 767. It takes a batch of 766 to be at work half the time, and nine times as many for
# 90 %. A second register in each element helps: the next weights are loaded while these are used (*double buffering*), so folds
# follow each other every $\max(m, R)$ cycles. TPUs do that.
#
# And the shape?

# %% tags=["predict"]
step = helpers.predict(
    "16 x 16 array: weights grow from 16 x 16 to 17 x 17. How many times the cycles?", "x"
)
step

# %% tags=["run"]
found = []
for side in (16, 17):
    inputs, square = np.ones((1024, side), int), np.ones((side, side), int)
    found.append(systolic.simulate(inputs, square, rows=16, columns=16).cycles)

# %% tags=["look"]
step.reveal(modelled=4, counted=found[1] / found[0])

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A side that does not divide wastes a tile"
sides = range(64, 1025)
drawn, axes = plotting.figure(title="4,096 rows, square weights: useful share of the array")
for array, style in {128: "--", 256: "-"}.items():
    how = {"rows": array, "columns": array, "double_buffered": True}
    cycles = [systolic.model_cycles(4096, side, side, **how) for side in sides]
    useful = [4096 * n**2 / (each * array**2) for n, each in zip(sides, cycles, strict=True)]
    axes.plot(
        sides, useful, style, color=plotting.MODELLED, label=f"{array} x {array}, modelled"
    )
axes.set(xlabel="side of the weights", ylabel="useful share", ylim=(0, 1.05))
axes.set_xticks(range(0, 1025, 128))
axes.legend()
plotting.show(
    drawn, alt="Saw teeth: the share jumps down behind each multiple of the array's side."
)

# %% [markdown] tags=["explain"]
# One row and one column too many make four folds of one. (A simulated fold ends with its last result, so it is a little
# less.) Programs for TPUs therefore use sizes that 128 or 256 divides. A share is not a speed: the larger array has four times the
# multipliers. Is it always faster? One LSTM of Google's has 600 x 600 weights: 9 tiles of 256, or 4 of 512, which are 1.8 times as
# many bytes to read.

# %% tags=["look"]
bandwidth = hardware.device("TPU v1").memory_bandwidth_bytes_per_s
for array, published in {256: 18, 512: 32}.items():
    tile_bytes = (-(-600 // array) * array) ** 2
    print(
        f"{array}: {1e6 * tile_bytes / bandwidth:.1f} us modelled, {published} us in the paper"
    )

# %% [markdown] tags=["explain"]
# Here the larger array is slower: it reads more padding. (Published: Jouppi and others, *In-Datacenter Performance Analysis of a
# Tensor Processing Unit*, 2017, section 7, who estimate as we do.)
#
# ### A convolution is a product, too
#
# Write the patch under each position of the kernel as a row, and each filter as a column.

# %% [markdown]
# **Your turn**: the sizes of that product, for square images and kernels.


# %% tags=["yours"] yours="as_product"
def as_product(batch, channels, output_side, filters, kernel):
    """Return (m, n, k): rows of patches, columns of filters, numbers in a patch."""
    return batch * output_side**2, filters, channels * kernel**2


# %% checks="as_product"
asked = exercises.Checks("A convolution as a product", as_product)
asked.returns(
    "16 filters of 6 x 5 x 5, 8 x 8 positions, 2 images",
    (2, 6, 8, 16, 5),
    expected=(128, 16, 150),
    mistakes={
        (64, 16, 150): "Every image of the batch has its own patches",
        (128, 16, 25): "A filter covers all channels",
        (128, 16, 30): "A kernel is a square: its side counts twice",
    },
)
as_product = asked.settle()


# %% wrong="as_product" says="its own patches"
def as_product(batch, channels, output_side, filters, kernel):
    return output_side**2, filters, channels * kernel**2


# %% wrong="as_product" says="covers all channels"
def as_product(batch, channels, output_side, filters, kernel):
    return batch * output_side**2, filters, kernel**2


# %% tags=["look", "slide", "slide-output"] minutes=1 mark="conv1" headline="AlexNet fills some tiles and half empties others"
conv3 = systolic.gemm_of(nn.Conv2d(256, 384, 3, padding=1), (128, 256, 13, 13))
assert as_product(128, 256, 13, 384, 3) == (conv3.m, conv3.n, conv3.k)
layers, alexnet = {}, helpers.AlexNet(towers=1)
for side in (128, 256):
    how = {"rows": side, "columns": side, "double_buffered": True}
    network = systolic.simulate_network(alexnet, (128, 3, 224, 224), **how)
    layers[side] = {layer.layer: f"{layer.utilisation_share:.1%}" for layer in network.layers}
pd.DataFrame(layers).rename_axis("AlexNet, batch 128", axis=1)

# %% [markdown] tags=["explain"]
# Modelled, with double buffering. The third convolution has 384 filters: three columns of tiles of 128, but one and a half of 256.
# The first has 96 filters, and $3 \cdot 11^2 = 363$ numbers in a patch. The linear layers pass 128 rows, while the next tile of 256
# takes 256 cycles to load: half the time is lost. (Assumed: all weights wait on the chip. Part 5 is about those that do not.)

# %% [markdown] tags=["slide"] minutes=2 headline="Three numbers of Google's first TPU"
# ## Part 5: Google's first TPU, from three numbers
#
# - The size of the array: a tile of weights is 256 x 256 bytes
# - The [bandwidth](glossary.md#bandwidth) of the weights' memory
# - The clock
#
# The paper counts what the array did in six applications. Four of them, perceptrons and LSTMs, wait for weights: a tile
# comes from memory, is shifted in, a row a cycle, and its batch passes long before the next tile comes. So nothing is left to
# overlap with the shift.

# %%
tpu = hardware.device("TPU v1")
tile_bytes = tpu.array_rows * tpu.array_columns
tile_cycles = tile_bytes / tpu.memory_bandwidth_bytes_per_s * tpu.clock_hz
facts = units.text(tpu.memory_bandwidth_bytes_per_s, "B/s"), units.text(tpu.clock_hz, "Hz")
print(f"{' and '.join(facts)} (published): a new tile every {tile_cycles:,.0f} cycles")

# %% tags=["predict"]
shift = helpers.predict(
    "TPU v1: of the cycles that work, shift or wait for weights, which share shifts?", "%"
)
shift

# %% [markdown]
# **Your turn**: from one tile to the next the array works one cycle for each row of the batch, shifts weights, and waits.


# %% tags=["yours"] yours="tile_shares"
def tile_shares(batch, rows, tile_cycles):
    """Return the shares (active, shift, stall) of the time from one tile to the next."""
    active, shift = batch / tile_cycles, rows / tile_cycles
    return active, shift, 1 - active - shift


# %% checks="tile_shares"
asked = exercises.Checks("Where a tile's time goes", tile_shares)
asked.returns(
    "10 rows, 4 cycles to shift, a tile every 20",
    (10, 4, 20),
    expected=(0.5, 0.2, 0.3),
    mistakes={
        (10, 4, 6): "These are cycles: divide by those of a tile",
        (0.5, 0.2, 0.5): "Shifting is no waiting for weights: the three add up to one",
    },
)
tile_shares = asked.settle()


# %% wrong="tile_shares" says="divide by those of a tile"
def tile_shares(batch, rows, tile_cycles):
    return batch, rows, tile_cycles - batch - rows


# %% wrong="tile_shares" says="add up to one"
def tile_shares(batch, rows, tile_cycles):
    return batch / tile_cycles, rows / tile_cycles, 1 - batch / tile_cycles


# %% tags=["run"]
rows, of_all = {}, {}
for app in systolic.tpu_applications().applications[:4]:
    counted = [app.active_share, app.shift_share, app.stall_share]
    matrix = [share / sum(counted) for share in counted]
    of_all[app.name] = f"{app.shift_share:.1%}"
    modelled = tile_shares(app.batch, 256, tile_cycles)
    rows[app.name] = [f"{m:.1%} / {p:.1%}" for m, p in zip(modelled, matrix, strict=True)]
    if app.name == "MLP0":
        mlp0 = modelled[1], matrix[1]

# %% tags=["look"]
source = "Jouppi and others, 2017, table 3"
shift.reveal(modelled=100 * mlp0[0], published=100 * mlp0[1], source=source)
print("shift, of all cycles (published):", of_all)

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="MLP0" headline="From them follow its published counters"
pd.DataFrame(rows, index=["active", "shift", "stall"]).T.rename_axis(
    "modelled / published", axis=1
)

# %% [markdown] tags=["explain"]
# The paper gives shares of all cycles. We divided by the three that concern weights, and so assumed that none arrive during other
# instructions. Then shifting fits within 0.7 points in all four. The active share, for which we also need the batch, fits MLP0
# alone. Why LSTM0 is active twice as long the paper does not say. Our guess: activations of 16 bits, which the array takes at half
# the speed. The exercises let you test it.
#
# ### Which unit?
#
# The paper gives "operations per weight byte" and a peak of 92 tera-operations a second, in which a multiply and an add are two. Are
# they two in the first number as well?

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="The paper's own figure needs another unit"
peak = 2 * tpu.array_rows * tpu.array_columns * tpu.clock_hz / 1e12
apps = systolic.tpu_applications().applications
intensity = np.geomspace(20, 4000, 50)
drawn, axes = plotting.figure(title="TPU v1: measured by Google, under two roofs")
for each, name in {1: "operations", 2: "MACs"}.items():
    roof = np.minimum(peak, each * intensity * bandwidth / 1e12)
    axes.loglog(
        intensity, roof, "-:"[each % 2], color=plotting.MODELLED, label=f"roof, if {name}"
    )
for app in apps:
    at = (app.ops_per_weight_byte, app.measured_tops)
    axes.plot(*at, "o", color=plotting.MEASURED, label="published" if app is apps[0] else None)
    axes.annotate(app.name, at, (8, -4), textcoords="offset points")
axes.set(xlabel='"operations per weight byte"', ylabel="tera-operations a second")
axes.legend()
plotting.show(drawn, alt="Three points lie above the lower roof, all below the upper one.")

# %% tags=["look"]
for app in apps:
    roofs = [min(peak, each * app.ops_per_weight_byte * bandwidth / 1e12) for each in (1, 2)]
    shares = [f"{app.measured_tops / roof:.2f}" for roof in roofs]
    print(f"{app.name}: {shares[0]} of the lower roof, {shares[1]} of the upper")

# %% [markdown] tags=["explain"]
# A point above its roof is impossible, so the unit is MACs. (The four numbers on the left are their batches: a weight meets each row
# once, in one MAC.) Four applications reach 0.85 of the right roof and more. What do the counters say of the other two?

# %% tags=["look"]
for app in apps[3:]:
    useful = app.useful_share / app.active_share
    print(
        f"{app.name}: active {app.active_share:.1%} of the time, {useful:.1%} of it useful;",
        end=" ",
    )
    print(f"waits for weights or shifts them {app.stall_share + app.shift_share:.1%}")
tiles = 600**2 / 768**2
lstm1 = apps[3].measured_tops / (2e-12 * apps[3].ops_per_weight_byte * bandwidth)
print(
    f"600 x 600 fill {tiles:.1%} of their tiles; LSTM1, padding as work: {lstm1 / tiles:.2f}"
)

# %% [markdown] tags=["explain"]
# LSTM1 has matrices of 600 x 600, says the paper. With their padding counted as work it reaches 0.70 of its roof, still below the
# four. CNN1 has layers with few channels, which leave half of the active multipliers without a weight; and a third of the time it waits
# for the weights of its other layers.
#
# Counters and speeds do not quite agree: CNN0 is active 78 % of the time and reaches 94 % of the peak. The paper says so itself; we
# take both as published.

# %% [markdown] tags=["slide"] minutes=1 headline="To move a number costs more than to use it"
# ## Part 6: what moving costs
#
# - A number from DRAM costs far more energy than a MAC
# - An array cannot help if each weight is used once
#
# One layer, 1,024 x 1,024 weights of a byte, on 256 x 256 elements. We price a MAC as 1, each byte that crosses the array's edges as an
# access to a buffer (a sum has 4 bytes), and each weight once from DRAM.

# %% tags=["predict"]
moved = helpers.predict(
    "Batch 1: share of the energy that goes to reading weights from DRAM?", "%"
)
moved

# %% tags=["run"]
relative = {cost.name: cost.mac_ratio for cost in history.relative_energy_costs().costs}
pj = {name: history.energy_cost(name).least_pj for name in ("int8 multiply", "int32 add")}
access = {name: history.energy_cost(name).least_pj / 8 for name in ("cache of 1 MB", "DRAM")}
mac_pj = sum(pj.values())
tables = {
    "Eyeriss": (relative["buffer"], relative["DRAM"]),
    "Horowitz": tuple(byte_pj / mac_pj for byte_pj in access.values()),
}

# %% tags=["run"]
rows = {}
for batch in (1, 256):
    edge = systolic.model_accesses(batch, 1024, 1024, rows=256, columns=256)
    edge_bytes = edge.input_reads + edge.filter_reads
    edge_bytes += 4 * (edge.output_writes + edge.partial_sum_reads)
    served = edge_bytes / (batch * 1024**2)
    rows[batch] = {"bytes at the edges, a MAC": f"{served:.3f}"}
    rows[batch]["bytes from DRAM, a MAC"] = f"{1 / batch:.4f}"
    for name, (buffer, dram) in tables.items():
        parts = 1, buffer * served, dram / batch
        rows[batch][f"{name}: energy, in MACs"] = f"{sum(parts):.1f}"
        rows[batch][f"{name}: of it DRAM"] = f"{parts[2] / sum(parts):.1%}"

# %% tags=["look"]
moved.reveal(modelled=float(rows[1]["Eyeriss: of it DRAM"].rstrip("%")))

# %% tags=["look", "slide", "slide-output"] minutes=1 mark="Eyeriss: of it" headline="At batch 1 the energy goes to moving weights"
pd.DataFrame(rows).rename_axis("batch", axis=1)

# %% [markdown] tags=["explain"]
# Modelled, from counts and two published tables: Chen, Emer and Sze, *Eyeriss*, 2016 (65 nm), and Horowitz, 2014 (45 nm, 8 bits).
# Registers and steps between neighbours are left out, a few MACs' worth, which matters for a batch of 256 and not for one row. The tables
# are for words of different sizes, disagree about buffers and DRAM by factors of seven and three, and agree on the answer: unless the weights stay on the chip, each request reads every weight
# once, and at batch 1 that is nearly all the energy. A batch shares the read.
#
# The [exercises](exercises/14_systolic_arrays_exercises.ipynb) have you choose dataflows, mend a broken array, and give the TPU a faster
# memory.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. A number read once serves a row or column; *when* it enters matters.
# 2. Loading, filling and padding idle an array: long streams, sides that divide.
# 3. At batch 1 moving the weights costs nearly everything.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A product of $m \times k$ and $k \times n$ on $R$ rows and $C$ columns. Cycles are exact for full tiles, else an upper bound.
#
# | quantity | formula |
# |---|---|
# | reads for a MAC, sums stay, full tiles | $\frac1R + \frac1C$ |
# | cycles, sums stay | $\lceil\frac mR\rceil\lceil\frac nC\rceil(2R + C + k - 2)$ |
# | cycles, filters stay | $\lceil\frac kR\rceil\lceil\frac nC\rceil(2R + C + m - 2)$ |
# | cycles, inputs stay | $\lceil\frac kR\rceil\lceil\frac mC\rceil(2R + C + n - 2)$ |
# | filters stay and double buffering, many folds | $\max(m, R)$ cycles a fold |
# | utilisation | $mnk / (\text{cycles} \cdot RC)$ |
# | a convolution as a product | $m$ = batch x positions, $n$ = filters, $k$ = channels x kernel side squared |
# | time for a tile of weights | $RC$ bytes / bandwidth |
