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
#     needs: ["02"]
#     objectives:
#       - write|wrote the step of one processing element, from which a whole array is built
#       - predict|predicted the share of the multipliers that work, from the rows of inputs and the shape of the weights
#       - count|counted the cycles of an array in which the weights, the inputs or the sums stay
#       - catch|caught a published simulator that writes results before they are finished
#       - derive|derived from three published numbers how long Google's first TPU moves weights into its array
# ---

# %% [markdown] tags=["objectives"]
# # Systolic arrays
#
# What would you build if you wanted nothing but matrix products? In 2015 Google put such a chip into its datacenters.
# This first TPU has 65,536 multipliers, which can do 92 trillion operations per second, and two years later Google
# published what they really did (Jouppi and others, 2017). For the faster of two networks of convolutions they did 86 trillion operations per second. For a network of fully connected layers, on the same chip, they did 12.3 trillion, which is
# 13 % of the peak.
#
# What would you change? Google's engineers modelled several successors of this chip. In one of them nothing changed
# but the number of multipliers, from 256 × 256 to 512 × 512. They explain it with a matrix of 600 × 600 weights from
# an LSTM, which they run with a batch of 96. So it meets 96 rows of inputs, one for each example. With 256 × 256
# multipliers, they say, the matrix takes 18 µs.
#
# We had no TPU, so our numbers are simulated, modelled or published. *Simulated* means here that a program moves the
# content of every [register](glossary.md#register) of the chip's array, cycle by cycle, so that its counts are exact.

# %% tags=["hide-input"]
import json
from pathlib import Path

import numpy as np
import pandas as pd

import helpers
from helpers import exercises, hardware, plotting
from helpers.studies.simulators import systolic

check = exercises.checks_of("systolic_arrays")

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# What do four times as many multipliers bring to the 600 × 600 matrix?
#
# - The old chip has 256 × 256 multipliers
# - The new chip has 512 × 512
# - Its clock and its memory stay the same

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 100]
bet = helpers.predict(
    "With 512 x 512 multipliers instead of 256 x 256, "
    "how many microseconds does the 600 x 600 matrix take?",
    "µs",
)
bet

# %% [markdown]
# If time followed the number of multipliers, the answer would be 4.5 µs. But the fully connected layers have shown
# that a multiplier can be there and have nothing to do. What share of the multipliers does useful work, and what
# decides it? Much of the decision is yours, because the share depends on your batch and on the widths of your layers.
# You get no warning if you choose badly, since the result stays right and only the time grows.

# %% [markdown] tags=["slide"] minutes=2 headline="One read serves a whole row of multipliers"
# ## Part 1: feeding the multipliers
#
# How can one read feed 256 multipliers? We begin with the feeding, because multipliers are small and their data come
# from far away.
#
# - Each multiplier keeps a weight
# - Inputs move to the right, sums move down
# - Only the edges of the array read and write
#
# Let each multiplier keep its weight, so that it needs only one new input in every cycle. With a byte for each,
# 65,536 multipliers need 65,536 bytes per cycle. At the TPU's 700 MHz some memory would have to deliver 46 TB/s. It
# would also cost energy. On a research chip, reading a value from a buffer took six times the energy of a
# multiply-add (Chen, Emer and Sze, 2016, published).
#
# A value that has been read once should therefore serve many multipliers. In 1978 H. T. Kung and Charles Leiserson
# proposed a grid in which each multiplier gets its values from its neighbours, through short wires, and hands them on
# in the next cycle. They called it a [systolic array](glossary.md#systolic-array), after the beat of the heart.
#
# Look at a single multiplier with its registers, a *processing element* or PE. It keeps one weight. An input comes
# from the left, and an unfinished sum comes from above. The PE multiplies the input by its weight and adds the
# product to the sum. Then it passes the input on to the right and the sum down.
#
# **Your turn.** Write what one PE does in one cycle. It keeps its weight anyway, so you return only the two values
# that it passes on.


# %% tags=["yours"] yours="element" takes=5
def element(weight, from_left, from_above):
    """Return what a PE passes on to the right, and what it passes down."""
    total = from_above + weight * from_left
    return from_left, total


# %% checks="element"
element = check(element)


# %% wrong="element" says="passes to the right comes first"
def element(weight, from_left, from_above):
    return from_above + weight * from_left, from_left


# %% wrong="element" says="forgets the sum"
def element(weight, from_left, from_above):
    return from_left, weight * from_left


# %% wrong="element" says="neighbour needs the input itself"
def element(weight, from_left, from_above):
    return weight * from_left, from_above + weight * from_left


# %% wrong="element" says="the weight stays"
def element(weight, from_left, from_above):
    return weight, from_above + weight * from_left


# %% right="element" style=1
def element(weight, from_left, from_above):
    return [from_left, sum([from_above, from_left * weight])]


# %% right="element" style=2
def element(weight, from_left, from_above):
    product = np.multiply(weight, from_left)
    return np.array([from_left, np.add(from_above, product)])


# %% [markdown]
# Now put two PEs on top of each other, with the weights 3 and 5, and let a row of inputs be (2, 4). The upper PE gets
# the 2 and sends 6 down. The lower PE gets the 4, adds 20, and 26 leaves at the bottom, which is 2 × 3 + 4 × 5. A
# column of PEs thus computes one element of the product. Meanwhile the inputs travel on to the next column, which
# uses them with other weights.
#
# The timing is part of the program. The sum reaches the lower PE one cycle after the upper one, so the 4 must enter
# one cycle after the 2. In the same way element number $r$ of every row must enter $r$ cycles late, and this delay is
# called the *skew*. Here is the whole array, made of your PEs:


# %% tags=["slide", "slide-code"] minutes=2 headline="Each element reads only its neighbours" lines=[8, 13]
def on_array(inputs, weights, skew=1):
    """Return inputs (m, k) @ weights (k, n), cycle by cycle on an array of k x n PEs."""
    (m, k), n = inputs.shape, weights.shape[1]
    right, down = np.zeros((2, k, n), int)  # what each PE passes on
    leaving = []  # what leaves the lowest row of PEs in each cycle
    for cycle in range(m + k + n - 2):
        old_right, old_down = right.copy(), down.copy()
        for r, c in np.ndindex(k, n):
            row = cycle - skew * r  # the row whose element r enters now
            entering = inputs[row, r] if 0 <= row < m else 0
            left = old_right[r, c - 1] if c else entering
            above = old_down[r - 1, c] if r else 0
            right[r, c], down[r, c] = element(weights[r, c], left, above)
        leaving.append(down[-1].copy())
    return np.array([[leaving[i + k - 1 + c][c] for c in range(n)] for i in range(m)])


# %% tags=["hide-input"]
inputs, weights = np.random.default_rng(2).integers(1, 10, (2, 4, 4))
product = on_array(inputs, weights)
matching = int((product == inputs @ weights).sum())
print(f"on your array: {matching} of 16 results as `@` gives them")
assert (product == inputs @ weights).all()

# %% [markdown]
# `systolic.simulate` does the same for arrays of any size and counts what happens. Its drawing labels inputs with the
# letter a, weights with b and sums with c. Watch how a diagonal wave of working PEs crosses the array.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 layout="steps" headline="A product crosses the array as a wave" crop=[45, 93, 490, 262] frames=[0, 3, 4, 6, 8, 10, 13]
run = systolic.simulate(inputs, weights, rows=4, columns=4, frames=True)
captions = {
    "load": "The weights come in from above, the last row first.",
    "compute": "Inputs pass to the right, and each sum grows on its way down.",
}
plotting.play(
    [systolic.draw_array(run, cycle) for cycle in range(run.cycles)],
    title="Four rows of inputs on an array of 4 x 4 PEs",
    captions=[captions[frame.phase] for frame in run.frames],
    stills=[8],
    alt="Four cycles load the weights; then a diagonal wave of working PEs crosses the array.",
)

# %% [markdown]
# Suppose that somebody forgets the skew. All four elements of a row then enter at once, and the next row follows one
# cycle later.

# %% tags=["predict"]
unskewed = helpers.predict(
    "Without the skew, how many of the 16 results of a 4 x 4 product are right?", "results"
)
unskewed

# %% tags=["run"]
difference = on_array(inputs, weights, skew=0) - inputs @ weights  # (4, 4)

# %% tags=["look"]
unskewed.reveal(counted=int((difference == 0).sum()))

# %% [markdown] tags=["explain"]
# Not one is right (counted). While the sum of the first row goes down by one PE, the second row has already come
# in. The first result therefore contains element 0 of the first row, element 1 of the second row, and so on. It looks
# like a plausible number, but it is mixed from four rows.
#
# With the skew, only 256 bytes enter an array of 256 × 256 at the left in every cycle, or 179 GB/s, because each of
# them serves 256 multiply-adds on its way. A GPU saves reads too, with tiles in [shared
# memory](glossary.md#shared-memory) ([lesson 02](02_compute_and_roofline.ipynb)), but it has to fetch and schedule
# instructions for that. Here the wires do it, and control takes only 2 % of the chip's area (published).
#
# **To remember.** In an array of side 256 each input that is read serves 256 multiply-adds, and 256 bytes per cycle
# feed 65,536 multipliers.
#
# An input moves by only one PE per cycle, and so does a sum. What do the PEs do that neither has reached yet?

# %% [markdown] tags=["slide"] minutes=2 headline="A wave has to come in and to run out"
# ## Part 2: rows that keep the array busy
#
# How many rows keep the array busy? PEs that nothing has reached yet wait, and we count this time next, because every
# product pays it.
#
# - First the weights come in
# - Then the rows pass, one per cycle
# - The last row still has to cross the array
#
# Follow one block of 256 × 256 weights, which is called a *tile*, and our 96 rows of inputs. First the weights come
# in from above, one row of the tile per cycle, which takes 256 cycles. Then the rows of inputs enter, one per cycle,
# which takes 96. The last row needs another 255 cycles to get from the first column to the last one, and its last sum
# needs 255 more to get to the bottom. These are 256 + 96 + 255 + 255, or 862 cycles. Each PE works in 96 of them,
# which is 11 %.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="With few rows the array never fills"
alt = "PEs at work by cycle: with 96 rows a low and short hill, with 766 rows a high plateau."
plotting.show(systolic.draw_working([96, 766], side=256), alt=alt)

# %% [markdown]
# Without the 96 cycles for the rows, 766 are left, and they are the same for every batch. Now let a single row come,
# as when one user asks one question.

# %% tags=["predict"]
one_row = helpers.predict(
    "If a single row passes through one tile, "
    "in what percentage of the cycles does a PE work?",
    "%",
)
one_row

# %% tags=["run"]
tile = np.ones((256, 256), int)
single = systolic.simulate(tile[:1], tile, rows=256, columns=256)

# %% tags=["look"]
one_row.reveal(modelled=100 * 1 / (1 + 766), counted=100 * single.utilisation)

# %% [markdown] tags=["explain"]
# It works in 1 cycle of 767, or 0.13 % (counted, with all 65,536 PEs simulated). For 50 % the tile needs 766 rows, and for 90
# % it needs nine times as many, 6,894.
#
# Most of the waiting can be hidden if another tile follows. The TPU gives each PE a second register for a weight. While the array works with one
# tile, the next one comes in, and each of its weights takes effect as soon as the first row of its own inputs arrives there (published). This is
# called *double buffering*. The next tile begins before the results of this one have left the array, so the way out no longer counts, and two
# times remain. In each tile 96 rows of inputs must pass, and meanwhile 256 rows of the next weights must come in. The tile takes the longer of
# the two times, 256 cycles, and the array works in 96 / 256, or 37.5 % of them. From 256 rows on it could work in all of them.
#
# **To remember.** An array of side 256 needs 256 rows per tile, because the next weights take 256 cycles to come in.
# With 96 rows, 37.5 % of the multipliers work at best.
#
# You cannot always have more rows. Could something else wait in the array instead of the weights?

# %% [markdown] tags=["slide"] minutes=2 headline="Three things can stay in the array"
# ## Part 3: what stays
#
# Which values should stay in the array? It need not be the weights, and the choice has a name in every paper on such
# chips, the [dataflow](glossary.md#dataflow).
#
# - Weight-stationary: inputs and sums pass
# - Input-stationary: weights and sums pass
# - Output-stationary: inputs and weights pass
#
# So far the weights have stayed and the inputs have passed, which is called *weight-stationary*. If the inputs stay
# and the columns of weights pass, the array is *input-stationary*. If each PE keeps a sum, while inputs and weights
# pass from two sides, it is *output-stationary*.
#
# Take, for example, 32 rows of 20 inputs and 20 × 4 weights, on an array of 4 × 4 without double buffering. If the
# weights stay, they fill 5 tiles. Each tile takes 4 cycles to load, 32 cycles for the rows, and 3 + 3 until the last
# sum is out. These are 42 cycles, or 210 for all five.
#
# **Your turn.** Write this sum for $m$ rows of $k$ inputs and $k \times n$ weights, on an array of `rows` × `columns`
# PEs. A tile that is only partly filled takes as long as a full one.


# %% tags=["yours"] yours="cycles_weight_stationary" takes=6
def cycles_weight_stationary(m, n, k, rows, columns):
    """Return the cycles of all tiles of a product (m, k) @ (k, n), one tile after another."""
    tiles = -(-k // rows) * -(-n // columns)
    return tiles * (rows + m + rows - 1 + columns - 1)


# %% checks="cycles_weight_stationary"
cycles_weight_stationary = check(cycles_weight_stationary)


# %% wrong="cycles_weight_stationary" says="the weights have to come in"
def cycles_weight_stationary(m, n, k, rows, columns):
    return -(-k // rows) * -(-n // columns) * (m + rows + columns - 2)


# %% wrong="cycles_weight_stationary" says="takes as long as a full one"
def cycles_weight_stationary(m, n, k, rows, columns):
    return (k // rows) * (n // columns) * (rows + m + rows + columns - 2)


# %% wrong="cycles_weight_stationary" says="only after it has crossed"
def cycles_weight_stationary(m, n, k, rows, columns):
    return -(-k // rows) * -(-n // columns) * (rows + m)


# %% right="cycles_weight_stationary" style=1
def cycles_weight_stationary(m, n, k, rows, columns):
    from math import ceil

    return ceil(k / rows) * ceil(n / columns) * (2 * rows + columns + m - 2)


# %% right="cycles_weight_stationary" style=2
def cycles_weight_stationary(m, n, k, rows, columns):
    cycles = 0
    for _ in range(0, k, rows):
        for _ in range(0, n, columns):
            cycles += rows + m + (rows - 1) + (columns - 1)
    return cycles


# %% [markdown]
# If the inputs stay, the 32 × 20 inputs fill 40 tiles, and 4 columns of weights pass through each. This is the same
# sum with inputs and weights exchanged.

# %% tags=["predict"]
exchanged = helpers.predict(
    "If the inputs stay instead of the weights, "
    "how many times as many cycles does this product take?",
    "x",
)
exchanged

# %% tags=["run"]
factors = np.ones((32, 20), int), np.ones((20, 4), int)
dataflows = {
    name: systolic.simulate(*factors, rows=4, columns=4, dataflow=name)
    for name in ("weight", "output", "input")
}

# %% tags=["look"]
weights_stay = cycles_weight_stationary(32, 4, 20, rows=4, columns=4)
inputs_stay = cycles_weight_stationary(4, 32, 20, rows=4, columns=4)
exchanged.reveal(
    modelled=inputs_stay / weights_stay,
    simulated=dataflows["input"].cycles / dataflows["weight"].cycles,
)

# %% [markdown] tags=["explain"]
# A tile takes 4 + 4 + 3 + 3, or 14 cycles, and 40 of them take 560. That is 2.7 times as many, because each load now
# serves 4 columns instead of 32 rows.
#
# If the sums stay, the 32 × 4 results fill 8 tiles. In each tile 20 pairs of values pass through every PE, and it
# takes 3 + 3 cycles until the first pair has reached the far corner. Then the finished sums leave, one row per cycle,
# so a tile takes 20 + 6 + 4, or 30 cycles. The simulation also counts the values that cross the edges of the array:

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="The fastest dataflow is not the one that moves least" numbers=[["weights stay +(\\d+)", "cycles, weights stay (simulated)"], ["in all *\\nweights stay +(\\d+)", "values moved, weights stay (simulated)"], ["sums stay +(\\d+)", "cycles, sums stay (simulated)"], ["in all *\\nweights stay +\\d+ *\\nsums stay +(\\d+)", "values moved, sums stay (simulated)"]]
names = {"weight": "weights stay", "output": "sums stay", "input": "inputs stay"}
table = {
    names[name]: {
        "cycles": run.cycles,
        "inputs read": run.input_reads,
        "weights read": run.filter_reads,
        "sums written": run.output_writes,
        "sums read back": run.partial_sum_reads,
        "values in all": run.input_reads
        + run.filter_reads
        + run.output_writes
        + run.partial_sum_reads,
    }
    for name, run in dataflows.items()
}
pd.DataFrame(table).T

# %% [markdown] tags=["explain"]
# The fastest choice is not the one that moves the least. If the weights stay, 640 inputs and 80 weights come in once.
# But a sum of 20 products is spread over five tiles, so each of the 128 results is written five times and read back
# four times in between. If the sums stay, the 80 weights come in eight times, but each result is written once.
#
# The last 4 cycles of a tile are easily forgotten. [SCALE-Sim](https://github.com/scalesim-project/scale-sim-v3), a
# simulator that much research uses, leaves them out in version 3.0.0. We have recorded in which cycle it writes each
# of the 16 results of two 4 × 4 matrices if the sums stay. The cycles count from 0. The first pair of values reaches
# the PE in row $r$ and column $c$ in cycle $r + c$, and one pair follows per cycle.
#
# **Your turn.** How many of the results are written before the last of their $k$ pairs has come?


# %% tags=["yours"] yours="written_too_early" takes=6
def written_too_early(writes, k):
    """Return how many of the writes, each (cycle, row, column), come before the k-th pair."""
    return sum(cycle < row + column + k - 1 for cycle, row, column in writes)


# %% checks="written_too_early"
written_too_early = check(written_too_early)


# %% wrong="written_too_early" says="k - 1 cycles after"
def written_too_early(writes, k):
    return sum(cycle < row + column + k for cycle, row, column in writes)


# %% wrong="written_too_early" says="has a way to go"
def written_too_early(writes, k):
    return sum(cycle < k - 1 for cycle, row, column in writes)


# %% wrong="written_too_early" says="one number"
def written_too_early(writes, k):
    return [write for write in writes if write[0] < write[1] + write[2] + k - 1]


# %% right="written_too_early" style=1
def written_too_early(writes, k):
    cycle, row, column = np.array(writes).T
    return (cycle - row - column < k - 1).sum()


# %% right="written_too_early" style=2
def written_too_early(writes, k):
    early = 0
    for cycle, row, column in writes:
        last_pair = row + column + (k - 1)
        if last_pair > cycle:
            early += 1
    return early


# %% tags=["hide-input", "look"]
path = Path("recorded/systolic/scale_sim.json")
recorded = json.loads(path.read_text(encoding="utf-8"))
print(f"{recorded['simulator']} {recorded['version']}, recorded on {recorded['date']}:")
for cycle, row, column in recorded["writes"][:3]:
    last = row + column + 4 - 1
    print(f"  result ({row}, {column}) in cycle {cycle}, its last pair comes in cycle {last}")
early = written_too_early(recorded["writes"], 4)
print(f"{early} of {len(recorded['writes'])} results are written too early")

# %% [markdown] tags=["explain"]
# SCALE-Sim writes the lower left result in cycle 3. But in this cycle the first pair of values has only just reached
# that PE, and three more have to follow. In all, 8 of the 16 results leave before they are finished (counted). The
# error was reported in July 2025, and a maintainer confirmed it ([issue
# 4](https://github.com/scalesim-project/scale-sim-v3/issues/4)). Everything else that crosses the edge of its arrays
# agreed with our simulator, cycle by cycle, in 180 runs.
#
# **To remember.** Let the longest side of a product pass, because each load then serves more. With 32 rows passing,
# the product took 210 cycles, and with 4 columns passing it took 560.
#
# A TPU keeps the weights, which suits images and large batches with their many rows. But few matrices have exactly the size of the array. What
# happens to the others?

# %% [markdown] tags=["slide"] minutes=2 headline="A tile that is half empty takes as long as a full one"
# ## Part 4: shapes that do not fit
#
# What happens if the matrix does not fit the array? We ask it now, because our 600 × 600 matrix does not fit.
#
# - A matrix is cut into tiles
# - Places without a weight multiply by zero
# - The useful share is the share of places with a weight
#
# For 600 rows of weights an array of side 256 needs three tiles, and for 600 columns it needs three in the other
# direction. These nine tiles have 768 × 768 places. Only 600 × 600 of them hold a weight, which is 61.0 %, and the
# other PEs multiply by zero. Google counted this as well. In the LSTM to which this matrix belongs, the array was
# active in 10.5 % of the cycles, and its useful multiply-adds were 6.3 % of all that were possible (published). The
# ratio is 60 %.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 10]
one_more = helpers.predict(
    "On an array of side 256, how many times as many tiles as a 256 x 256 matrix "
    "does a 257 x 257 matrix need?",
    "x",
)
one_more

# %% tags=["run"]
rows = 1024  # of inputs, on an array of side 16, which shows the same with fewer PEs
cycles = {
    side: systolic.simulate(
        np.ones((rows, side), int), np.ones((side, side), int), rows=16, columns=16
    ).cycles
    for side in (16, 17)
}

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="One row and one column cost three more tiles"
one_more.reveal(modelled=(-(-257 // 256)) ** 2)
print(f"simulated with side 16: {cycles[17] / cycles[16]:.2f} times the cycles, 17 after 16")

# %% [markdown] tags=["explain"]
# It needs four times as many, because one more row and one more column begin three new tiles. The matrix has 0.8 %
# more weights, and for the same rows of inputs it takes four times as long. (Our smaller simulation stops with its
# last useful result, so it takes a little less.)
#
# Turn the width yourself. Which widths fill an array of side 256, and where is the larger array the worse choice?

# %% tags=["hide-input"]
systolic.explore_width()

# %% [markdown]
# The share falls behind each multiple of the side, and the steps get smaller, because in a wide matrix the last tile
# matters less.
#
# Convolutions obey the same rule, because a convolution is a matrix product too. The patch of the image under each
# position of the kernel is a row of inputs, and each filter is a column of weights.
#
# **Your turn.** Write the sizes of this product, for square images and square kernels.


# %% tags=["yours"] yours="as_product" takes=5
def as_product(batch, channels, output_side, filters, kernel):
    """Return m rows of inputs, n columns of weights, and k values in a row of inputs."""
    return batch * output_side**2, filters, channels * kernel**2


# %% checks="as_product"
as_product = check(as_product)


# %% wrong="as_product" says="has its own patches"
def as_product(batch, channels, output_side, filters, kernel):
    return output_side**2, filters, channels * kernel**2


# %% wrong="as_product" says="covers all channels"
def as_product(batch, channels, output_side, filters, kernel):
    return batch * output_side**2, filters, kernel**2


# %% wrong="as_product" says="in this order"
def as_product(batch, channels, output_side, filters, kernel):
    return batch * output_side**2, channels * kernel**2, filters


# %% right="as_product" style=1
def as_product(batch, channels, output_side, filters, kernel):
    positions = output_side * output_side
    return [positions * batch, filters, kernel * kernel * channels]


# %% right="as_product" style=2
def as_product(batch, channels, output_side, filters, kernel):
    return np.array([batch, 1, channels]) * np.array([output_side**2, filters, kernel**2])


# %% [markdown]
# The third layer of AlexNet, for example, has 384 filters of 256 × 3 × 3 weights, so its matrix is 2,304 × 384. On an array of side 256 the 2,304 rows are exactly nine tiles, but the 384 columns are one and a half, which count as two. The table shows which share
# of the places holds a weight, for this and for other matrices (modelled):

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 mark="LSTM" headline="A larger array is harder to fill"
_, first_n, first_k = as_product(1, 3, 55, 96, 11)
_, third_n, third_k = as_product(1, 256, 13, 384, 3)
matrices = {
    "LSTM": (600, 600),
    "AlexNet, first layer": (first_k, first_n),
    "AlexNet, third layer": (third_k, third_n),
    "Llama 3 8B, feed-forward": (4096, 14336),
}
sides = (128, 256, 512)
table = {
    f"{name}, {k:,} x {n:,}": [
        f"{systolic.useful_share(k, n, side=side):.0%}" for side in sides
    ]
    for name, (k, n) in matrices.items()
}
pd.DataFrame(table, index=[f"side {side}" for side in sides]).T

# %% [markdown] tags=["explain"]
# In the first three rows the share falls to the right, so of a larger array a larger share is idle, although it needs fewer tiles. The last row
# fills all three arrays, because 4,096 and 14,336 are 8 and 28 times 512.
#
# At work you meet the rule as padding. A TPU's vector registers are 128 wide as well (Cloud TPU performance guide),
# and until August 2025 its kernels in vLLM needed attention heads whose size is a multiple of 128. Qwen2.5-0.5B has
# smaller heads, so they were padded with zeros, and its keys and values took [twice the
# memory](https://github.com/vllm-project/tpu-inference/pull/159) (published). Then [a new
# kernel](https://github.com/vllm-project/tpu-inference/pull/542) made this padding needless.
#
# **To remember.** A width counts as the next multiple of the side. On an array of side 256, 257 columns take as long
# as 512.
#
# For the 600 × 600 matrix, nine tiles of 256 cycles are 2,304 cycles, and at 700 MHz these are 3.3 µs. Google says
# 18. Where is the rest?

# %% [markdown] tags=["slide"] minutes=2 headline="A tile of weights has to come from memory"
# ## Part 5: waiting for the weights
#
# When do the weights arrive? We ask this last, because until now we assumed that the next weights are already on the
# chip.
#
# - The weights lie in a memory beside the chip
# - A tile has as many bytes as the array has PEs
# - The memory's [bandwidth](glossary.md#bandwidth) decides when it comes
#
# Our LSTM has 34 million weights of one byte, and a small queue brings tile after tile from the memory beside the chip,
# at 34 GB/s (all published). How many cycles is it from one tile to the next?

# %%
tpu = hardware.device("TPU v1")
tile_s = tpu.array_rows * tpu.array_columns / tpu.memory_bandwidth_bytes_per_s
tile_cycles = tile_s * tpu.clock_hz
print(f"A tile arrives every {1e6 * tile_s:.2f} µs, which is {tile_cycles:,.0f} cycles")
print(f"and nine tiles take {9e6 * tile_s:.1f} µs (modelled).")

# %% [markdown]
# So these are Google's 18 µs, nine times a rounded 2, and the speed of the array hardly matters. Of every 1,349 cycles it works in 96, if a row
# takes one cycle. Double buffering does not help, because the old tile is finished long before the next one arrives, so the new weights come in
# while there is nothing else to do.
#
# **Your turn.** From one tile to the next, the array works for one cycle per row, then it moves the new weights in,
# and the rest of the time it waits. Which shares are these?


# %% tags=["yours"] yours="tile_shares" takes=5
def tile_shares(rows, side, tile_cycles):
    """Return the shares of a tile's cycles in which the array works, moves weights, waits."""
    works, moves = rows / tile_cycles, side / tile_cycles
    return works, moves, 1 - works - moves


# %% checks="tile_shares"
tile_shares = check(tile_shares)


# %% wrong="tile_shares" says="divide by those of a tile"
def tile_shares(rows, side, tile_cycles):
    return rows, side, tile_cycles - rows - side


# %% wrong="tile_shares" says="add up to 1"
def tile_shares(rows, side, tile_cycles):
    return rows / tile_cycles, side / tile_cycles, 1 - rows / tile_cycles


# %% wrong="tile_shares" says="one row of the tile per cycle"
def tile_shares(rows, side, tile_cycles):
    works, moves = rows / tile_cycles, side**2 / tile_cycles
    return works, moves, 1 - works - moves


# %% right="tile_shares" style=1
def tile_shares(rows, side, tile_cycles):
    cycles = [rows, side, tile_cycles - side - rows]
    return [part / tile_cycles for part in cycles]


# %% right="tile_shares" style=2
def tile_shares(rows, side, tile_cycles):
    return np.array([rows, side, tile_cycles - (rows + side)]) / tile_cycles


# %% [markdown]
# One of the three shares does not depend on the rows. It follows from the chip alone, that is from its side and the 1,349 cycles.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 100]
moving = helpers.predict(
    "From one tile to the next, in what percentage of the 1,349 cycles "
    "does TPU v1 move new weights into its PEs?",
    "%",
)
moving

# %% tags=["hide-input", "run"]
applications = systolic.tpu_applications().applications[:4]
shares, published = {}, {}
for app in applications:
    modelled = tile_shares(app.batch, 256, tile_cycles)
    counted = np.array([app.active_share, app.shift_share, app.stall_share])
    published[app.name] = counted / counted.sum()
    pairs = zip(modelled, published[app.name], strict=True)
    shares[app.name] = [str(app.batch), *(f"{m:.1%} / {p:.1%}" for m, p in pairs)]

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Three published numbers predict a counter"
source = "Jouppi and others, 2017, table 3, MLP0"
modelled = 100 * tile_shares(200, 256, tile_cycles)[1]
moving.reveal(modelled=modelled, published=100 * published["MLP0"][1], source=source)

# %% [markdown] tags=["explain"]
# It does so in 256 of them, which is 19.0 %. This number depends on the side, the clock and the bandwidth, and on
# nothing else, so it should be the same in every application that waits for weights. Google counted it in four, two
# with fully connected layers (MLP) and two LSTMs. Ours is the second:

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 mark="LSTM1" headline="In four networks the array mostly waits"
columns = ["rows", "works, model / Google", "weights move in", "waits"]
pd.DataFrame(shares, index=columns).T

# %% [markdown] tags=["explain"]
# Google's shares are of all cycles, and in some cycles none of the three happens. For MLP0 the three add up to 82.5
# %, so we show 15.9 % as 15.9 / 82.5, or 19.3 %. This assumes that no weights arrive in the other cycles.
#
# Three numbers of the chip predict this one share for all four networks, and Google's counts agree to within 0.7 points. The share of work needs
# the rows too. There the model is close for MLP0 and up to 5.3 points too low for the others. LSTM0 works for twice as long as its 64 rows
# should take. The paper has a rule that would explain it, because with 8-bit weights and 16-bit inputs the array runs at half speed. Then 64
# rows take 128 cycles, or 9.5 %, and 10.0 % were counted. But the paper does not say which networks had 16-bit inputs, so this is only our
# inference, and LSTM1 fits neither speed.
#
# This explains most of the low number of the beginning, and it allows the high one. The 12.3 trillion belong to MLP0, whose 200 rows can use 200
# of 1,349 cycles. That allows 14.8 % of the peak, or 13.6 trillion, and the measured 12.3 are 90 % of it. The network with the 86 trillion uses
# each weight 2,888 times (published). That is more than 1,349, so it need not wait for memory.
#
# Why did MLP0 not use 1,349 rows? With 250 rows instead of 200, a TPU answered 280,000 instead of 225,000 requests
# per second, so the additional rows were almost free. But an answer then took 10 ms, and the application allowed 7
# (published).
#
# You can do the same sum for an array of today. With a peak of $P$ operations and a bandwidth of $B$ bytes per
# second, the chip can do $P / B$ operations in the time in which memory delivers one byte. Each row needs two
# operations per weight.
#
# > rows until memory keeps up = (P / B) × (bytes per weight / 2)
#
# | chip, published numbers | arrays | clock | peak $P$ | memory $B$ | rows |
# |---|---|--:|--:|--:|--:|
# | TPU v1, 8 bits | one of side 256 | 0.7 GHz | 91.75 TOP/s | 34 GB/s | 1,349 |
# | TPU v5e, bfloat16 | four of side 128 | 1.5 GHz | 197 TFLOP/s | 819 GB/s | 241 |
# | TPU v6e, bfloat16 | side 256 | not found | 918 TFLOP/s | 1,638 GB/s | 560 |
#
# The sources are the paper, Google Cloud's pages on the two chips, and for their sides and the clock [*How to Scale Your
# Model*](https://jax-ml.github.io/scaling-book/tpus/). The formula is that of lesson 02, where it gave 295 for an H100, because it does not ask
# how the multipliers are wired. A server that [decodes](22_decoding.ipynb) 32 sequences at once brings 32 rows, so it can use 32 / 241, or 13 %,
# of a TPU v5e.
#
# **To remember.** In bfloat16 memory keeps up from $P / B$ rows on, 241 on a TPU v5e and 560 on a v6e, whereas for
# their arrays alone 128 and 256 would do (Part 2).
#
# What does all of this mean for the 512 × 512 multipliers of the bet? You know how many tiles the 600 × 600 matrix
# needs on them, how many bytes a tile has, and how fast they come.

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="The larger array is slower"
tiles, tile_bytes = (-(-600 // 512)) ** 2, 512**2
bet.reveal(
    modelled=1e6 * tiles * tile_bytes / tpu.memory_bandwidth_bytes_per_s,
    published=32,
    source="Jouppi and others, 2017, section 7",
)

# %% [markdown] tags=["explain"]
# With 512 × 512 multipliers, the 600 × 600 matrix needs four tiles instead of nine. But a tile now has 262,144 bytes,
# and at 34 GB/s four of them take 30.8 µs instead of 17.3. Google says 32 instead of 18 µs, which is the same sum
# with 2 µs for each 65,536 bytes. So the chip with four times the multipliers takes 1.8 times as long, because it has
# to read 1.8 times as many bytes, and all the additional ones are zeros.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. A tile needs as many rows of inputs as the array is wide.
# 2. A width counts as the next multiple of the side.
# 3. Weights that are used too rarely come too late.
#
# On the larger array the 600 × 600 matrix takes 32 µs instead of 18 (published), because its tiles have more bytes. In Google's model this array helped none of
# six networks, and four times the clock brought almost nothing to the four that wait for weights, whereas four times the bandwidth made the six three times as
# fast on average (published).
#
# An array thus loses multipliers for three reasons, and you can estimate each of them in advance. With fewer rows than its side, 96 of 256, it
# waits for the next weights to come in. With a width that is no multiple of its side, 600 of 768, it multiplies by zeros. With fewer rows than
# its memory needs, 200 of 1,349, it waits for the weights themselves, and for Google's four networks this was the largest loss. The slower of
# the two waits sets the pace, whereas the zeros take their share of what is left.
#
# You can often repair all three by changing the network and not the chip, unless a limit such as the 7 ms forbids it.
# But a change of the network can also make them worse. In a depthwise 3 × 3 convolution, which was invented to save
# arithmetic, each channel is a product of its own with 9 × 1 weights, and they occupy 9 of 65,536 multipliers.
#
# The [exercises](exercises/14_systolic_arrays_exercises.ipynb) have you choose dataflows, write a PE that also loads
# its weight, repair a broken array, and give the TPU a faster memory. [The
# appendix](appendix/14_systolic_arrays.ipynb) asks which unit the paper's operations have, where the energy goes, and
# how AlexNet fills two arrays.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A product of an $m \times k$ matrix of inputs and a $k \times n$ matrix of weights, on an array of side $S$. Cycles
# are exact for full tiles, and an upper bound for others.
#
# | quantity | formula |
# |---|---|
# | cycles, weight-stationary | $\lceil\frac kS\rceil\lceil\frac nS\rceil(3S + m - 2)$ |
# | cycles, input-stationary | $\lceil\frac kS\rceil\lceil\frac mS\rceil(3S + n - 2)$ |
# | cycles, output-stationary | $\lceil\frac mS\rceil\lceil\frac nS\rceil(3S + k - 2)$ |
# | weight-stationary with double buffering, many tiles | $\max(m, S)$ cycles per tile |
# | useful share of a matrix of weights | $kn / (\lceil\frac kS\rceil\lceil\frac nS\rceil S^2)$ |
# | a convolution as a matrix product | $m$ = images × positions, $n$ = filters, $k$ = channels × kernel side squared |
# | rows until memory keeps up, peak $P$ and bandwidth $B$ | $\frac P B \cdot \frac{\text{bytes per weight}}{2}$ |
