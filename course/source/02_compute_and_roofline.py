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
#     number: "02"
#     title: Compute and roofline
#     needs: ["00", "01"]
#     objectives:
#       - fit|fitted how fast the demand for arithmetic and the supply of it double
#       - place|placed one token of a language model under a machine's two roofs
#       - write|wrote a matrix product in tiles for a GPU, in a simulator that counts its reads
#       - explain|explained by a simulation and a sweep why a long sum is slow
#       - find|found what the roofline leaves out of a small network
# ---

# %% [markdown] tags=["objectives"]
# # Compute and roofline
#
# A language model writes one token (a piece of a word) after the other, and for each token a machine multiplies by all of its
# weights. By the arithmetic on its data sheet it could do that hundreds of times faster than it does.
#
# Two numbers of an operation, its arithmetic and its bytes, and two numbers of a machine say how long the operation takes at
# least. That is the [roofline](glossary.md#roofline). You will put a language model's layer under it, write the program that
# makes matrix products fast on a GPU, and find what the roofline leaves out.

# %%
import numpy as np
import pandas as pd
import torch

import helpers
from helpers import exercises, hardware, native, plotting, roofline, simulators, timing, units
from helpers.studies import matrix_product

device = "cuda" if torch.cuda.is_available() else "cpu"
allocator = helpers.steady_allocator()

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# - One layer of a language model: 8,192 x 8,192 weights
# - One token for one user, or 16 tokens for 16 users at once
# - How many times as long do the 16 take?
#
# Sixteen tokens are sixteen times the arithmetic. The weights are the same for all users.

# %% tags=["predict"]
bet = helpers.predict("16 tokens at once: how many times the time of one?", "x")
bet

# %% [markdown] tags=["slide"] minutes=1
# ## Part 1: demand and supply
#
# - Demand: the operations that a training takes, in [FLOP](glossary.md#flop)
# - Supply: the operations that a machine does in a second, in FLOP/s
# - Both double, and double again: how fast?
#
# What doubles every $d$ years is a straight line on a logarithmic axis. The slope of $\log_2$ of the values is $1/d$.
#
# **Your turn.** `np.polyfit(x, y, 1)` returns slope and height of the least-squares line.


# %% tags=["yours"] yours="doubling_years"
def doubling_years(years, values):
    """Return in how many years the values double, by a line through their log2."""
    slope, _ = np.polyfit(years, np.log2(values), 1)
    return 1 / slope


# %% checks="doubling_years"
asked = exercises.Checks("Years of a doubling", doubling_years)
exact = ([2000, 2001, 2002, 2003], [1, 4, 16, 64])
mistakes = {
    1 / np.log(4): "That is growth by a factor of e: a doubling needs log2",
    2.0: "That is doublings a year; turn it round",
}
asked.returns("four times as much each year", exact, expected=0.5, mistakes=mistakes)
ends = {2.0: "That is a line through the first and the last point; take all of them"}
rough = ([2000, 2001, 2004], [1, 8, 4])
asked.returns("points beside the line", rough, expected=3.25, mistakes=ends)
doubling_years = asked.settle()


# %% wrong="doubling_years" says="a doubling needs log2"
def doubling_years(years, values):
    return 1 / np.polyfit(years, np.log(values), 1)[0]


# %% wrong="doubling_years" says="the first and the last point"
def doubling_years(years, values):
    return (years[-1] - years[0]) / np.log2(values[-1] / values[0])


# %% [markdown]
# Demand: Epoch AI estimates how many operations the training of landmark models took. It expects most to be right within a
# factor of 2, the latest within 5 ([Our World in Data](https://ourworldindata.org/grapher/artificial-intelligence-training-computation)).
#
# Supply: the ENIAC did [5,000 additions a second](https://www.thehistoricalarchive.com/happenings/66/eniac-a-powerhouse-in-its-day/),
# of decimal numbers, before the press in 1946. For GPUs we take five well-known cards and the published rate in float32 or float16,
# whichever is higher: the *dense* rate, of matrices with no zeros left out.

# %% tags=["run"]
models = hardware.training_compute()
demand = models.between(2010, 2030)
gpus = [hardware.device(name) for name in ("GTX 580", "V100 SXM2", "A100 SXM 40 GB")]
gpus += [hardware.device(name) for name in ("H100 SXM 80 GB", "B200 SXM")]
peaks = [[each.peak(dtype) for dtype in ("float32", "float16")] for each in gpus]
rates = [max(peak.dense_flops_per_s for peak in pair if peak) for pair in peaks]
trained = [point.year for point in demand.points], [point.value for point in demand.points]
made = [each.year for each in gpus], rates
months = [12 * doubling_years(*each) for each in (trained, made)]

# %% tags=["look", "slide", "slide-output"] minutes=2
title = "Demand doubles in {:.0f} months, a GPU in {:.0f}".format(*months)
drawn, axes = plotting.figure(title=title, height_in=4.2)
amounts = {point.name: (point.year, point.value) for point in models.points}
machines = {"ENIAC": (1946, 5e3), "GTX 580": (2010, rates[0]), "B200": (2024, rates[-1])}
axes.semilogy(*zip(*amounts.values(), strict=True), "o", label="to train a model, in FLOP")
axes.semilogy([1946, *made[0]], [5e3, *rates], "s", label="one machine, in FLOP/s")
for place, (years, values) in enumerate((trained, made)):
    doubles, colour = months[place], f"C{place}"
    ends = np.array([2010, 2025])
    line = 2 ** (np.mean(np.log2(values)) + 12 * (ends - np.mean(years)) / doubles)
    axes.semilogy(ends, line, "--", color=colour, label=f"x 2 in {doubles:.1f} months")
for name in ("Perceptron Mark I", "AlexNet", "GPT-4"):
    how = {"xytext": (-6, 8), "textcoords": "offset points", "ha": "right"}
    axes.annotate(name, amounts[name], **how)
for name, point in machines.items():
    axes.annotate(name, point, xytext=(6, -15), textcoords="offset points")
axes.set(xlabel="year", ylabel="FLOP, or FLOP/s", xlim=(1928, 2036), ylim=(50, 1e28))
axes.legend(loc="upper left", fontsize=10)
plotting.show(drawn, alt="Training grows faster than machines: from 2010 on the gap widens.")

# %% tags=["look"]
fits = {
    "training, from 2010": hardware.doubling_time(demand),
    "transistors of a processor": hardware.doubling_time(hardware.processors("transistors")),
}
for name, fit in fits.items():
    low, high = 12 * fit.shortest_doubling_years, 12 * fit.longest_doubling_years
    print(f"{name}: {12 * fit.doubling_years:.1f} months ({low:.1f} to {high:.1f})")

# %% [markdown] tags=["explain"]
# In brackets: where the doubling time lies with 95 % confidence. The models are few, and landmarks; a line through many more
# doubles about every 6 months ([Sevilla and others, 2022](https://arxiv.org/abs/2202.05924)). The GPUs' line rests on five
# cards that we chose. GPUs double faster than
# a processor's transistors, because they give more transistors to one operation, the [multiply-accumulate](glossary.md#mac), and in narrower
# numbers. The rest of the demand was met by more GPUs that work for longer.
#
# How much longer? GPT-4's training is estimated at $2.1 \cdot 10^{10}$ petaFLOP. An H100 is sold with 0.989 petaFLOPS in
# float16.

# %% tags=["predict"]
alone = helpers.predict("GPT-4's training on one H100 at its peak: how many years?", "years")
alone

# %% tags=["run"]
gpt4 = next(point for point in models.points if point.name == "GPT-4")
h100 = hardware.device("H100 SXM 80 GB").peak("float16").dense_flops_per_s
training_s = gpt4.value / h100

# %% tags=["look"]
trained_years = training_s / (365.25 * 24 * 3600)
alone.reveal(modelled=trained_years)
low, high = trained_years / 5, trained_years * 5
print(f"right within a factor of 5: {low:,.0f} to {high:,.0f} years")

# %% [markdown] tags=["explain", "slide"] minutes=1
# ### A common error: FLOP, FLOPS, FLOP/s
#
# - petaFLOP: an amount, $10^{15}$ operations
# - petaFLOPS: a rate, $10^{15}$ operations in *each* second
# - Amount over rate is a time
#
# The same letters stand for both: a chart of training in "petaFLOPs" shows amounts, and a data sheet's "petaFLOPS" are rates. An
# equation such as 0.01 PFLOP = $10^{13}$ FLOPS sets an amount equal to a rate. We write FLOP and FLOP/s.

# %% [markdown] tags=["slide"] minutes=1
# ### Moore's law, and what stopped
#
# Which of these still double: transistors, clock, power, the speed of one thread, cores?
#
# The table gives the doubling times of processors before and since 2005 ([Karl Rupp's
# collection](https://github.com/karlrupp/microprocessor-trend-data)). "None seen": the slope may as well be 0.

# %% tags=["run"]
quantities = ("transistors", "clock_hz", "power_w", "single_thread", "cores")
trends = {}
for period, span in {"before 2005": (1970, 2005), "since 2005": (2005, 2030)}.items():
    for quantity in quantities:
        fit = hardware.doubling_time(hardware.processors(quantity).between(*span))
        text = (
            f"{fit.doubling_years:.1f} years" if fit.shortest_doubling_years else "none seen"
        )
        trends.setdefault(period, {})[quantity] = text
pd.DataFrame(trends)

# %% tags=["look", "slide", "slide-output"] minutes=1
series = [hardware.processors(quantity) for quantity in quantities]
title = "The clock stopped in 2005, transistors did not"
drawn = plotting.draw_trends(series, title=title, relative_to=2005)
plotting.show(
    drawn, alt="Transistors rise throughout; the clock stops about 2005, cores begin."
)

# %% [markdown] tags=["explain"]
# Dennard and others ([1974](https://doi.org/10.1109/JSSC.1974.1050511)) had shown how to shrink a transistor together with its
# voltage: it switches faster, and a square millimetre takes no more power. When the voltage could hardly fall any more, a faster
# clock meant a hotter chip, and the clock stopped. The transistors went on. They became cores, wider vectors and special units:
# more operations at the same time, and each of them wants its data.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 2: two roofs
#
# - Peak $P$: FLOP/s at most. [Bandwidth](glossary.md#bandwidth) $B$: bytes a second at most
# - [Arithmetic intensity](glossary.md#arithmetic-intensity) $I$: FLOP for each byte that moves
# - Attainable: $\min(P, I \cdot B)$
#
# As in lesson 00, data and arithmetic go on at the same time: a machine needs at least the longer of two times. Divide the
# operations by it: the rate rises with $I$, then stays flat at the peak ([Williams, Waterman and
# Patterson](https://doi.org/10.1145/1498765.1498785), 2009). Slope and flat roof meet at the [ridge
# point](glossary.md#ridge-point) $P / B$.
#
# **Your turn**: a layer of `rows` x `columns` weights, each of `size` bytes, times `tokens` columns of numbers. Everything moves
# once: weights, inputs, results.


# %% tags=["yours"] yours="on_roofline"
def on_roofline(tokens, rows, columns, peak, bandwidth, size=4):
    """Return the layer's intensity in FLOP a byte, and the FLOP/s that it reaches at most."""
    flops = 2 * rows * columns * tokens
    moved_bytes = size * (rows * columns + (rows + columns) * tokens)
    intensity = flops / moved_bytes
    return intensity, min(peak, intensity * bandwidth)


# %% checks="on_roofline"
asked = exercises.Checks("A layer under the roofs", on_roofline)
mistakes = {
    (0.5, 50.0): "Inputs and results move as well, (rows + columns) numbers a token",
    (0.2, 20.0): "A multiply-accumulate is two FLOP",
    (1.6, 160.0): "A number has size bytes",
}
asked.returns("waits for data", (1, 8, 8, 1000, 100), expected=(0.4, 40.0), mistakes=mistakes)
above = {(1.0, 100.0): "Data never come in time for more than the peak"}
asked.returns("waits for arithmetic", (4, 8, 8, 50, 100), expected=(1.0, 50.0), mistakes=above)
asked.returns("in float16", (4, 8, 8, 1000, 100, 2), expected=(2.0, 200.0))
on_roofline = asked.settle()


# %% wrong="on_roofline" says="Inputs and results move as well"
def on_roofline(tokens, rows, columns, peak, bandwidth, size=4):
    intensity = 2 * rows * columns * tokens / (size * rows * columns)
    return intensity, min(peak, intensity * bandwidth)


# %% wrong="on_roofline" says="for more than the peak"
def on_roofline(tokens, rows, columns, peak, bandwidth, size=4):
    intensity = (
        2 * rows * columns * tokens / size / (rows * columns + (rows + columns) * tokens)
    )
    return intensity, intensity * bandwidth


# %% [markdown]
# `probe` measures both numbers of this machine, once, in some ten seconds; then it remembers them. Main memory counts here, because
# the weights take 256 MiB. Its bandwidth is that of `a = b + c` on long arrays, two numbers read for one written.

# %% tags=["run"]
limits = helpers.probe()
peak, memory = limits.peak_flops["float32"], limits.memory
bandwidth = memory.bandwidth_bytes_per_s
print(f"peak {units.text(peak, 'FLOP/s')}, {memory.name} {units.text(bandwidth, 'B/s')}")

# %% tags=["run"]
side, counts = 8192, (1, 4, 16, 64)
weights = torch.rand(side, side, device=device)
inputs = {count: torch.rand(side, count, device=device) for count in counts}
calls = {str(count): lambda x=x: weights @ x for count, x in inputs.items()}
layer = timing.compare(calls, budget_s=3, precision=0.1)
points = {count: on_roofline(count, side, side, peak, bandwidth) for count in counts}
flops = {count: 2 * side**2 * count for count in counts}

# %% tags=["look", "nbval-ignore-output"]
modelled_s = {count: flops[count] / attainable for count, (_, attainable) in points.items()}
measured_s = {count: layer.candidate(str(count)).median_s for count in counts}
measured = layer.candidate("16").time_ratio
bet.reveal(modelled=modelled_s[16] / modelled_s[1], measured=measured)

# %% tags=["look"]
layer.claim("16 tokens take less than half of 16 times as long", "16", at_most=8)
roofs = limits.resting_on("float32 peak", f"{memory.name} bandwidth")
ratio = measured_s[1] / modelled_s[1]
sentence = "one token takes about the time of its bytes"
timing.claim(sentence, ratio, at_least=1 / 3, at_most=2, evidence=[layer, roofs])

# %% [markdown] tags=["explain"]
# A token uses each weight once, so the machine waits until the weights have come. Fifteen more tokens use the weights that are
# there already. Here are four such cases under the roofs; the roofline itself is three lines of code:


# %%
def draw_roofs(axes, peak, bandwidth, ends=(0.1, 1000)):
    ridge = peak / bandwidth
    intensities = np.array([ends[0], ridge, ends[1]])
    axes.loglog(intensities, np.minimum(peak, intensities * bandwidth), color="black", lw=2.5)
    axes.axvspan(ends[0], ridge, color="#E69F00", alpha=0.12, lw=0)
    axes.axvspan(ridge, ends[1], color="#56B4E9", alpha=0.12, lw=0)
    for where, words in ((0.02, "waits for data"), (0.98, "waits for arithmetic")):
        how = {"transform": axes.transAxes, "ha": "left" if where < 0.5 else "right"}
        axes.text(where, 0.94, words, color="#444444", **how)
    axes.set(xlabel="arithmetic intensity", ylabel="operations a second", xlim=ends)
    plotting.unit_axis(axes, "x", "FLOP/B")
    plotting.unit_axis(axes, "y", "FLOP/s")


# %% tags=["look", "slide", "slide-output"] minutes=2
drawn, axes = plotting.figure(title="One layer, 1 to 64 tokens, under this machine's roofs")
draw_roofs(axes, peak, bandwidth)
for count, (intensity, attainable) in points.items():
    reached = flops[count] / measured_s[count]
    how = {"color": "white", "markeredgecolor": plotting.MODELLED, "markersize": 9}
    axes.plot(intensity, attainable, "D", **how, label="modelled" if count == 1 else None)
    how = {"color": plotting.MEASURED, "label": "measured" if count == 1 else None}
    axes.plot(intensity, reached, "o", **how)
    where = {"xytext": (8, -14), "textcoords": "offset points"}
    words = f"{count} token{'s' * (count > 1)}, {units.text(measured_s[count], 's')}"
    axes.annotate(words, (intensity, reached), **where)
axes.set_ylim(peak / 300, 3 * peak)
axes.legend(loc="lower right")
alt = "One token lies far left on the slope; with more tokens the layer moves right and up."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# A point below its roof has lost something that the model leaves out, and the roofline does not say what. A point can also lie
# a little above: these roofs are measured. A [cache](glossary.md#cache) may fetch a line before it writes to it, which `probe` does not count, and this
# layer hardly writes.
#
# Now an accelerator. A model has 7 billion weights in float16, and one user. We take them as one layer of 70,000 x 100,000. The
# H100's data sheet has 3.35 TB/s and 989 TFLOP/s.

# %% tags=["predict", "slide", "slide-output"] minutes=1
pace = helpers.predict("One user: how many tokens a second at most?", "tokens/s")
pace

# %% tags=["run"]
sheet = roofline.datasheet_roof(hardware.device("H100 SXM 80 GB"), "float16")
promised = sheet.peak_flops_per_s, sheet.bandwidth_bytes_per_s
token_flops = 2 * 7e9
_, one_user = on_roofline(1, 70_000, 100_000, *promised, size=2)

# %% tags=["look", "slide", "slide-output"] minutes=1
pace.reveal(modelled=one_user / token_flops)

# %% tags=["look"]
print(f"by its arithmetic alone: {sheet.peak_flops_per_s / token_flops:,.0f} tokens a second")
card = "H100 SXM 80 GB"
for name, dtype in (("GTX 580", "float32"), (card, "float32"), (card, "float16")):
    ridge = hardware.ridge_flops_per_byte(hardware.device(name), dtype)
    print(f"ridge point, {name}, {dtype}: {ridge:.0f} FLOP/B")
for users in (1, 64, 512):
    intensity, attainable = on_roofline(users, 70_000, 100_000, *promised, size=2)
    share = 100 * attainable / promised[0]
    print(
        f"users: {users:>3}  intensity: {intensity:5.1f} FLOP/B  of the peak: {share:5.1f} %"
    )

# %% [markdown] tags=["explain"]
# One user gets a third of a per cent of what was paid for. So a server collects the tokens of many users into a batch, until the
# ridge point. This counts the weights alone; lesson 15 adds what else a token must read.
#
# From the GTX 580 of 2010 to the H100 of 2022 the ridge has moved far to the right: arithmetic has grown faster than bandwidth.
# Most of this came from [tensor cores](glossary.md#tensor-core) and narrower numbers; in float32 it moved only from 8 to 20 FLOP/B. An operation has to use
# each byte hundreds of times. How does a matrix product manage that?

# %% [markdown] tags=["slide"] minutes=2
# ## Part 3: a matrix product, by its traffic
#
# - $C = A\,B$: an element of $C$ needs a row of $A$ and a column of $B$
# - On a GPU each element gets a thread
# - Its neighbours read the same rows and columns again
#
# Libraries call this product GEMM, general matrix multiply. A program for a GPU is a [kernel](glossary.md#gpu-kernel). Here is the
# naive one, a function that runs once for each thread. `a`, `b` and `c` count every access to the GPU's
# [global memory](glossary.md#global-memory).


# %% tags=["slide-code"]
def naive(thread, a, b, c):
    total = 0.0
    for p in range(a.shape[1]):
        total += a[thread.row, p] * b[p, thread.column]
    c[thread.row, thread.column] = total


# %%
naive_run = simulators.count_traffic(naive, 16, 24, 32, tile=8)
elements = 16 * 32 + 32 * 24
print(f"A and B have {elements:,} elements; {naive_run.threads} threads read")
print(f"{naive_run.global_reads:,} times (2 m n k = {2 * 16 * 24 * 32:,})")

# %% [markdown]
# Threads come in blocks, and a block has [shared memory](glossary.md#shared-memory) of its own. It can bring a *tile* there, a small
# square of $A$, and one of $B$, and use each element many times. Step through it:

# %% tags=["slide", "slide-output"] minutes=2
shown = {"m": 12, "n": 16, "k": 12, "tile": 4, "block": (1, 2)}
frames = [plotting.draw_tiles(**shown, step=step) for step in (None, 0, 1, 2)]
plotting.play(
    frames,
    title="12 blocks of 16 threads: who reads what",
    captions=[
        "Naive: one thread reads a row of A and a column of B, from global memory.",
        "Tiled: the block's 16 threads bring a tile of A and a tile of B, an element each.",
        "Every thread has added 4 products from shared memory. The next two tiles come.",
        "After three steps each of the 16 sums is complete.",
    ],
    alt="A thread's row and column; then a block's tiles, which move along A and down B.",
)

# %% tags=["predict"]
fewer = helpers.predict("Tiles of 8 x 8: how many times fewer global reads?", "x")
fewer

# %% [markdown]
# **Your turn.** Each thread brings one element of each tile: row `y`, column `x`. Then all threads of the block wait for each
# other at a [barrier](glossary.md#barrier), because a thread needs what the others brought. Where CUDA C++ has
# `__syncthreads()` we write `yield`. A barrier stands before the sums, and another one after them:
# without it a fast thread would overwrite a tile that others still read.


# %% tags=["yours"] yours="tiled"
def tiled(thread, a, b, c):
    """Write this thread's element of c; bring each tile of a and b to shared memory once."""
    y, x, side = thread.thread_row, thread.thread_column, thread.tile
    a_tile, b_tile = thread.shared("a", side, side), thread.shared("b", side, side)
    total = 0.0
    for start in range(0, a.shape[1], side):
        a_tile[y, x] = a[thread.row, start + x]
        b_tile[y, x] = b[start + y, thread.column]
        yield
        for p in range(side):
            total += a_tile[y, p] * b_tile[p, x]
        yield
    c[thread.row, thread.column] = total


# %% checks="tiled"
def reads(kernel, m, n, k, tile):
    run = simulators.count_traffic(kernel, m, n, k, tile=tile)
    return run.global_reads, run.shared_reads


asked = exercises.Checks("A product in tiles", tiled)
naively = {(1024, 0): "That is the naive kernel: read the factors from shared memory"}
arguments = (8, 8, 8, 4)
asked.returns("8 x 8 x 8", arguments, call=reads, expected=(256, 1024), mistakes=naively)
asked.returns("sides that differ", (4, 8, 12, 4), call=reads, expected=(192, 768))
tiled = asked.settle()


# %% wrong="tiled" says="with no barrier in between; put a yield there"
def tiled(thread, a, b, c):
    y, x, side = thread.thread_row, thread.thread_column, thread.tile
    a_tile, b_tile = thread.shared("a", side, side), thread.shared("b", side, side)
    total = 0.0
    for start in range(0, a.shape[1], side):
        a_tile[y, x] = a[thread.row, start + x]
        b_tile[y, x] = b[start + y, thread.column]
        yield
        for p in range(side):
            total += a_tile[y, p] * b_tile[p, x]
    c[thread.row, thread.column] = total


# %% wrong="tiled" says="put a yield before the reading"
def tiled(thread, a, b, c):
    y, x, side = thread.thread_row, thread.thread_column, thread.tile
    a_tile, b_tile = thread.shared("a", side, side), thread.shared("b", side, side)
    total = 0.0
    for start in range(0, a.shape[1], side):
        a_tile[y, x] = a[thread.row, start + x]
        b_tile[y, x] = b[start + y, thread.column]
        for p in range(side):
            total += a_tile[y, p] * b_tile[p, x]
    c[thread.row, thread.column] = total


# %% wrong="tiled" says="That is the naive kernel"
def tiled(thread, a, b, c):
    total = 0.0
    for p in range(a.shape[1]):
        total += a[thread.row, p] * b[p, thread.column]
    c[thread.row, thread.column] = total


# %% tags=["run"]
tiled_run = simulators.count_traffic(tiled, 16, 24, 32, tile=8)
fewer.reveal(modelled=8, counted=naive_run.global_reads / tiled_run.global_reads)

# %% tags=["look", "slide", "slide-output"] minutes=1
runs = {"naive": naive_run, "tiled": tiled_run}
runs["tiled, by formula"] = simulators.tiled_traffic(16, 24, 32, tile=8)
rows = {
    name: [run.global_reads, run.shared_reads, f"{2 * run.macs_per_global_byte:.2f}"]
    for name, run in runs.items()
}
pd.DataFrame(rows, index=["global reads", "shared reads", "FLOP a global byte"]).T

# %% [markdown] tags=["explain"]
# The reads have not gone: they go to a memory that is near and fast. From global memory an element of $A$ is read $n / t$ times
# and not $n$ times, one of $B$ $m / t$ times. With the writes of $C$ left out, tiles of side $t$ in float32 give
# $2\,m\,n\,k$ FLOP for $4 \cdot 2\,m\,n\,k / t$ bytes, or $t / 4$ FLOP/B.
#
# How large must a tile be? An RTX 3090 has 35.6 TFLOP/s in float32 and 936 GB/s (published).

# %% tags=["predict"]
enough = helpers.predict("RTX 3090: which side of a tile reaches the ridge?", "numbers")
enough

# %% tags=["run"]
rtx = roofline.datasheet_roof(hardware.device("RTX 3090"), "float32")
enough.reveal(modelled=4 * rtx.ridge_flops_per_byte)

# %% tags=["look", "slide", "slide-output"] minutes=2
rows = {}
for tile in (1, 8, 32, 152):
    attainable = min(rtx.peak_flops_per_s, tile / 4 * rtx.bandwidth_bytes_per_s)
    share = 100 * attainable / rtx.peak_flops_per_s
    rows[f"{tile} x {tile}"] = [f"{tile / 4:g}", f"{share:.1f} %"]
pd.DataFrame(rows, index=["FLOP a global byte", "of the RTX 3090's peak"]).T

# %% [markdown] tags=["explain"]
# A block has at most 1,024 threads (CUDA C++ Programming Guide), so tiles of one element a thread end at 32 x 32, at a fifth of
# the peak. Fast products let each thread compute many elements, and keep their sums in [registers](glossary.md#register): the same
# idea once more, one memory nearer (lesson 10).
#
# The shares hold if every counted request goes to memory. On a GPU caches and joined reads serve many of them,
# so a program can be faster than its share.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 4: the same product, by its time
#
# - *naive*: one sum over `p` after the other
# - *interchanged*: for each `p`, all sums of a row
# - *library*: `torch.matmul`
#
# The first two do `c[i,j] += a[i,p] * b[p,j]` for all `i`, `j` and `p`, and differ in the order of the loops: naive has `p`
# innermost, interchanged `j`. All matrices have side 240 and fit into a cache, and one thread computes.
#
# A model of the ratio: naive adds one number every 4 cycles, because each addition waits for the one before and a multiply-add takes
# 4 (Intel since Skylake, AMD since Zen 3: Agner Fog, *Instruction tables*). The library adds 16 numbers twice in every cycle
# (AVX-512; 8 with AVX2).

# %% tags=["predict", "slide-output"]
slower = helpers.predict("How many times longer does naive take than the library?", "x")
slower

# %% tags=["run"]
lanes = {"AVX2": 8, "AVX512": 16}.get(torch.backends.cpu.get_cpu_capability(), 4)
try:
    programs = matrix_product.measure_products(240, device="cpu", budget_s=2)
    times = {row.name: row.median_s for row in programs.products}
except native.NativeError as error:
    programs, times = None, {}
    print(f"not measured here: {error}")
ratio = times and times["naive"] / times["torch.matmul"]

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
slower.reveal(modelled=lanes * 2 * 4, measured=ratio or None)

# %% tags=["look"]
sentence = "with two loops exchanged the product takes less than half of the time"
faster = times["interchanged"] / times["naive"] if times else None
timing.claim(sentence, faster, at_most=1 / 2, evidence=programs and programs.comparison)

# %% [markdown] tags=["explain"]
# The exchange helps because the sums along a row are independent: they go on at the same time, 8 or 16 in one register.
#
# But why is naive better than the model says? One cause can be simulated. Each sum is a chain, but the *next* sum is another chain,
# which waits for nothing. A core reads ahead: it holds a *window* of additions that have not left yet, starts any of them whose
# inputs are there, and lets them leave in order.
#
# **Your turn**: write that core. One addition may start in each cycle. Addition `i` may enter when addition `i - window` has left.
# `left[i]` is that cycle; the first ones enter at 0.


# %% tags=["yours"] yours="cycles"
def cycles(additions, k, latency, window):
    """Return the cycles of so many additions, in sums of k, one sum after the other."""
    left, ends, taken = [0] * window, [0], set()
    for i in range(additions):
        start = max(left[i], ends[-1] if i % k else 0)
        while start in taken:
            start += 1
        taken.add(start)
        ends.append(start + latency)
        left.append(max(left[-1], ends[-1]))
    return left[-1]


# %% checks="cycles"
asked = exercises.Checks("A core that reads ahead", cycles)
free = {8: "An addition waits for the one before it in its sum"}
asked.returns("one sum of 6", (6, 6, 3, 99), expected=18, mistakes=free)
at_once = {3: "One addition may start in a cycle", 18: "Another sum waits for nothing"}
asked.returns("6 sums of 1", (6, 1, 3, 99), expected=8, mistakes=at_once)
asked.returns("2 sums of 3", (6, 3, 3, 99), expected=10, mistakes={9: at_once[3]})
narrow = {10: "An addition begins only when there is room in the window"}
asked.returns("a window of 2", (6, 3, 3, 2), expected=16, mistakes=narrow)
cycles = asked.settle()


# %% wrong="cycles" says="waits for the one before it"
def cycles(additions, k, latency, window):
    left, taken = [0] * window, set()
    for i in range(additions):
        start = left[i]
        while start in taken:
            start += 1
        taken.add(start)
        left.append(max(left[-1], start + latency))
    return left[-1]


# %% wrong="cycles" says="One addition may start in a cycle"
def cycles(additions, k, latency, window):
    left, ends = [0] * window, [0]
    for i in range(additions):
        ends.append(max(left[i], ends[-1] if i % k else 0) + latency)
        left.append(max(left[-1], ends[-1]))
    return left[-1]


# %% wrong="cycles" says="only when there is room"
def cycles(additions, k, latency, window):
    ends, taken = [0], set()
    for i in range(additions):
        start = ends[-1] if i % k else 0
        while start in taken:
            start += 1
        taken.add(start)
        ends.append(start + latency)
    return max(ends)


# %% tags=["predict"]
short = helpers.predict("Latency 4, window 64: sums of 16, not of 4,000: times as fast?", "x")
short

# %% tags=["run"]
long_run, short_run = (cycles(16_000, k, 4, 64) for k in (4000, 16))

# %% tags=["look"]
short.reveal(simulated=long_run / short_run)

# %% [markdown] tags=["explain"]
# Four sums of 16 fill the window, so four chains run at once. Now the sweep over $k$: the same number of additions, in sums of
# different lengths, simulated and on this machine. We know neither [latency](glossary.md#latency) nor window of its core: 4 is the model's, 64 a guess,
# and the figure tries half and twice the guess too.

# %% tags=["run"]
SUMS = """
#include <cstdint>
extern "C" void sums(const float* x, float* c, int64_t k, int64_t many) {
    for (int64_t j = 0; j < many; ++j) {
        float sum = 0;
        for (int64_t p = 0; p < k; ++p) sum += x[p + j % 16];
        c[j % 16] = sum;
    }
}"""
lengths, additions = (4000, 1000, 500, 240, 120, 60, 30), 240_000
chains = None
if programs:
    declaration = "void sums(const float* x, float* c, int64_t k, int64_t many)"
    run_sums = native.compile_cpp(SUMS).function(declaration)
    x, c = torch.rand(4016), torch.empty(16)
    calls = {f"{k}": lambda k=k: run_sums(x, c, k, additions // k) for k in lengths}
    chains = timing.compare(calls, device="cpu", budget_s=2, precision=0.05)

# %% tags=["look", "slide", "slide-output"] minutes=2
drawn, axes = plotting.figure(title="The shorter the sums, the more of them overlap")
for window, style in {32: ":", 64: "-", 128: "--"}.items():
    simulated = [cycles(12_000, k, 4, window) for k in lengths]
    relative = [each / simulated[0] for each in simulated]
    how = {"color": plotting.MODELLED, "label": f"simulated, window {window}"}
    axes.semilogx(lengths, relative, style, **how)
if chains:
    relative = [chains.candidate(f"{k}").time_ratio for k in lengths]
    axes.semilogx(lengths, relative, "o", color=plotting.MEASURED, label="measured")
axes.set_xticks(lengths, lengths)
axes.minorticks_off()
axes.set(
    xlabel="length k of a sum", ylabel="time of an addition, over k = 4,000", ylim=(0, 1.1)
)
axes.legend()
plotting.show(drawn, alt="An addition takes less time in short sums, as in the simulation.")

# %% tags=["look"]
sentence = "in sums of 30 an addition takes less time than in sums of 4,000"
ratio = chains and chains.candidate("30").time_ratio
timing.claim(sentence, ratio, at_most=0.8, evidence=chains)

# %% tags=["look", "nbval-ignore-output"]
macs, cpu = 240**3, helpers.probe(device="cpu")
at_peak_s = 2 * cpu.threads / cpu.peak_flops["float32"]
steps = {"naive, by the model": lanes * 2 * 4 * at_peak_s}
if programs:
    steps["one long sum, measured"] = chains.candidate("4000").median_s / additions
    steps["sums of 240 alone, measured"] = chains.candidate("240").median_s / additions
    steps["naive, measured"] = times["naive"] / macs
    steps["library, measured"] = times["torch.matmul"] / macs
steps["library, at one thread's peak"] = at_peak_s
taken = list(steps.values())
shown = [units.text(each, "s") for each in taken]
over = ["", *(f"{ratio:.3g}" for ratio in np.divide(taken[:-1], taken[1:]))]
pd.DataFrame({"a step of a sum": shown, "times as fast as the row above": over}, index=steps)

# %% [markdown] tags=["explain"]
# The factors of the last column multiply to the model's ratio. One of them is the measured ratio, between the two programs; four
# others lie between it and the model:
#
# 1. A step of a long chain takes less than in the model. This core adds sooner than it multiply-adds, or its clock is
#    faster in this program.
# 2. Sums of 240 overlap.
# 3. The naive program also loads two numbers for each product and walks down the columns of $B$. A factor below 1 is that loss.
# 4. The library does not reach the peak at this size.
#
# The sweep shows the second alone. Its points follow the shape of the simulation; they do not prove its latency or its window.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 5: what the roofline leaves out
#
# - LeNet, one image, 11 layers with arithmetic
# - Each layer under its own roof, the times added
# - How many times longer does it really take?
#
# Each layer gets the bandwidth of the smallest memory level that holds its numbers. `probe` has also measured what a call of
# PyTorch costs: an addition of two numbers.

# %%
lenet = helpers.LeNet().to(device).eval()
image = torch.rand(1, 1, 28, 28, device=device)
layers = roofline.roofline(lenet, image, limits, budget_s=0.5).layers
roofs_s = [max(row.point.compute_s, row.point.memory_s) for row in layers]
call_s = limits.call_overhead_s
print(f"all roofs: {units.text(sum(roofs_s), 's')}, one call: {units.text(call_s, 's')}")

# %% tags=["predict"]
beyond = helpers.predict("LeNet, one image: how many times longer than its roofs?", "x")
beyond

# %% tags=["run"]
one_call = [roof + call_s for roof in roofs_s]
one_image = helpers.measure(lambda: lenet(image), budget_s=0.5)

# %% tags=["look", "nbval-ignore-output"]
measured = one_image.median_s / sum(roofs_s)
beyond.reveal(modelled=sum(one_call) / sum(roofs_s), measured=measured)

# %% tags=["look", "slide", "slide-output"] minutes=2
drawn, axes = plotting.figure(title="LeNet, one image: the time of each layer", height_in=4.2)
places, found = range(len(layers)), [row.measured_s for row in layers]
axes.hlines(places, roofs_s, found, color="#BBBBBB", zorder=1)
how = {"marker": "D", "color": "white", "edgecolor": plotting.MODELLED}
axes.scatter(roofs_s, places, **how, label="its roof, modelled")
how = {"marker": "|", "s": 200, "linewidth": 3, "color": plotting.MODELLED}
axes.scatter(one_call, places, **how, label="roof and one call, modelled")
axes.scatter(found, places, color=plotting.MEASURED, label="measured")
axes.set_yticks(places, [row.layer for row in layers])
axes.invert_yaxis()
axes.set(xscale="log", xlabel="time")
plotting.unit_axis(axes, "x", "s")
axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
plotting.show(
    drawn, alt="Each layer's roof lies far left of its measured time; a call lies between."
)

# %% tags=["look"]
sentence = "one image takes far longer than its roofs"
timing.claim(sentence, measured, at_least=5, evidence=[one_image, roofs])

# %% [markdown] tags=["explain"]
# The roofline leaves out the call. Before an operator computes anything, Python calls PyTorch, PyTorch looks at types and shapes,
# makes a tensor for the result and picks a kernel. But a layer has more to prepare than an addition of two numbers. So measure
# calls with next to nothing to compute, all of them in turn: each layer on the least input that it takes. A linear layer takes
# no less than one image gives it, so one with a single weight stands in.

# %% tags=["run"]
least = {"conv1": (1, 1, 5, 5), "conv2": (1, 6, 5, 5), "linear": (1, 1)}
own = {f"fc{place}": ("linear", torch.nn.Linear(1, 1).to(device)) for place in (1, 2, 3)}
in_order = []
for row in layers:
    name, call = own.get(row.layer, (row.layer, lenet.get_submodule(row.layer)))
    in_order.append((call, torch.rand(least.get(name, (1, 1, 2, 2)), device=device)))
in_turn = helpers.measure(lambda: [call(x) for call, x in in_order], budget_s=0.5)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
rows = {
    "the roofs": sum(roofs_s),
    "roofs, and an addition's call for each layer": sum(one_call),
    "roofs, and each layer's own call": sum(roofs_s) + in_turn.median_s,
    "measured": one_image.median_s,
}
pd.DataFrame({"one image": {name: units.text(each, "s") for name, each in rows.items()}})

# %% tags=["look"]
ratio = one_image.median_s / (sum(roofs_s) + in_turn.median_s)
sentence = "roofs and own calls are about the time of an image"
evidence = [one_image, roofs, in_turn]
timing.claim(sentence, ratio, at_least=0.8, at_most=2, evidence=evidence)

# %% [markdown] tags=["explain"]
# Most of this network's time on one image is that of its calls. A processor with twice the peak would hardly help. Fewer calls
# would (fused operators, a compiled model), and so would more work for each call:

# %% tags=["run"]
images = torch.rand(256, 1, 28, 28, device=device)
batch = roofline.roofline(lenet, images, limits, budget_s=0.3).layers
batch_s = sum(max(row.point.compute_s, row.point.memory_s) for row in batch)
many_images = helpers.measure(lambda: lenet(images), budget_s=0.5)

# %% tags=["look"]
nearer = (many_images.median_s / batch_s) / (one_image.median_s / sum(roofs_s))
sentence = "a batch of 256 is at least twice as near to its roofs as one image"
evidence = [one_image, many_images, roofs]
timing.claim(sentence, nearer, at_most=1 / 2, evidence=evidence)

# %% tags=["look", "nbval-ignore-output"]
numbers = {"pool1": 3456, "conv1": 784, "pool2": 1024, "conv2": 864, "fc1": 256}  # of an image
rows = {}
for row in batch:
    if row.layer in numbers:
        per_number_s = row.measured_s / (256 * numbers[row.layer])
        whole, one = (units.text(each, "s") for each in (row.measured_s, per_number_s))
        rows[row.layer] = whole, f"{row.time_ratio:.0f}", one
kept = ["measured", "times its roof and call", "a number that comes in"]
pd.DataFrame(rows, index=kept).T.loc[list(numbers)]

# %% [markdown] tags=["explain"]
# Nearer, and not there. The roofline assumes full vectors and only the counted bytes: conv1's six filters fill no vector of 16.
# The two poolings take about the same time for each number that comes in, though pool2's roof is here by far the higher,
# that of a nearer memory. So they wait for the work on each number, its comparison, and not for bytes.
#
# A bound that is far off is not wrong. It tells how much there is to win, and makes you ask what it leaves out.
#
# The [exercises](exercises/02_compute_and_roofline_exercises.ipynb) have you write the model with its calls, a kernel, and
# the batch that reaches the ridge; the last one is an operator of your own. The
# [appendix](appendix/02_compute_and_roofline.ipynb) has five faults of a timing, the price of a wide number, peaks in public
# tables, the instructions of the kernels, and sides that are powers of two.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. An operation takes at least the time of its bytes and that of its arithmetic.
# 2. Tiles use a byte many times; independent sums keep the units busy.
# 3. Small operators pay for the call.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | growth | $v(t) = v_0\,2^{(t - t_0)/d}$ | a value $v$ that doubles in $d$ years |
# | arithmetic intensity $I$ | $I = \text{FLOP} / \text{bytes}$ | any operator |
# | attainable rate | $\min(P,\; I\,B)$ | peak $P$, bandwidth $B$ |
# | ridge point | $P / B$ | a machine |
# | time of a network, CPU | $\sum_l \left(\max(\text{FLOP}_l/P,\; \text{bytes}_l/B) + t_l\right)$ | layers $l$, each with its own call of $t_l$ seconds |
# | tokens a second, one user | $B / \text{bytes of the weights}$ | at most |
# | global reads, naive | $2\,m\,n\,k$ | a product of $m \times k$ and $k \times n$ |
# | global reads, tiled | $2\,m\,n\,k / t$ | tiles of $t \times t$ that divide $m$ and $n$ |
# | intensity, tiled | $t / 4$ FLOP/B | float32, writes left out |
