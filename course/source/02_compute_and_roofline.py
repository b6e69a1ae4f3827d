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
#       - work|worked out how long one GPU alone would train a large model
#       - place|placed one token of a language model under the roofs of two machines
#       - write|wrote a matrix product in tiles for a GPU, in a simulator that counts its reads
#       - simulate|simulated a core that overlaps sums, beside a measured sweep
#       - find|found what the roofline leaves out of a small network
# ---

# %% [markdown] tags=["objectives"]
# # Compute and roofline
#
# A language model writes one token (a piece of a word) after the other, and for each token a machine multiplies by all of its
# weights. By the arithmetic on its data sheet it could do that hundreds of times faster than it does.
#
# The [roofline](glossary.md#roofline) gives the least time of an operation. It needs four numbers: the operation's
# [FLOP](glossary.md#flop) and bytes, the machine's FLOP/s and bytes a second. You will put a language model's layer under it, write the program that
# makes matrix products fast on a GPU, and find what the roofline leaves out.

# %%
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import torch

import helpers
from helpers import exercises, hardware, native, plotting, roofline, timing, units
from helpers.studies import history, matrix_product, simulators

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
# - Demand: the operations of a whole training, an amount in FLOP
# - Supply: the operations of a machine in a second, a rate in FLOP/s
# - Amount over rate is a time
#
# Epoch AI estimates GPT-4's training at $2.1 \cdot 10^{10}$ petaFLOP ([Our World in
# Data](https://ourworldindata.org/grapher/artificial-intelligence-training-computation)). An H100 is sold with 0.989 petaFLOP/s
# in float16. (Many texts write FLOPS for both, the amount and the rate. Here a rate always ends in "/s".)

# %% tags=["predict"]
alone = helpers.predict("GPT-4's training on one H100 at its peak: how many years?", "years")
alone

# %% tags=["run"]
models, year_s = history.training_compute(), 365.25 * 24 * 3600
demand = models.between(2010, 2030)
cards = ("GTX 580", "V100 SXM2", "A100 SXM 40 GB", "H100 SXM 80 GB", "B200 SXM")
rates = {}
for each in map(hardware.device, cards):
    peaks = [each.peak(dtype) for dtype in ("float32", "float16")]
    rates[each.year] = max(peak.dense_flops_per_s for peak in peaks if peak)
years = {}
for point in demand.points:
    newest = max(year for year in rates if year <= point.year)
    years[point.name] = point.value / rates[newest] / year_s

# %% tags=["look"]
alone.reveal(modelled=years["GPT-4"])
print(f"at its peak, in three months: {4 * years['GPT-4']:,.0f} GPUs")
many, of_peak = 16_384, 400e12 / rates[hardware.device("H100 SXM 80 GB").year]
days = 365.25 * years["GPT-4"] / many
print(f"{many:,} H100 at their peak: {days:.0f} days (modelled)")
print(f"at the rate of Llama 3's training: {days / of_peak / 7:.1f} weeks (modelled)")

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Alone, one GPU would train for centuries"
title = "A training on one GPU: from minutes to centuries"
drawn, axes = plotting.figure(title=title, height_in=4.2)
when = {point.name: point.year for point in demand.points}
axes.semilogy(when.values(), years.values(), "o", color=plotting.MODELLED)
for name in ("6-layer MLP (MNIST)", "AlexNet", "Transformer", "GPT-3 175B", "GPT-4"):
    left = name.startswith("GPT-3")
    how = {"textcoords": "offset points", "ha": "right" if left else "left"}
    axes.annotate(name, (when[name], years[name]), xytext=(-9 if left else 9, -4), **how)
ticks = {"1 minute": 1 / 525_960, "1 hour": 1 / 8766, "1 day": 1 / 365.25, "1 year": 1}
ticks |= {"30 years": 30, "1,000 years": 1000}
axes.set_yticks(list(ticks.values()), list(ticks))
axes.minorticks_off()
axes.set(xlabel="year", ylabel="on the newest of five GPUs", xlim=(2009, 2026))
plotting.show(drawn, alt="A training's time on one GPU grows from minutes to centuries.")

# %% tags=["look"]
fits = {
    "training, from 2010": history.doubling_time(demand),
    "transistors of a processor": history.doubling_time(history.processors("transistors")),
}
for name, fit in fits.items():
    low, high = 12 * fit.shortest_doubling_years, 12 * fit.longest_doubling_years
    print(f"{name}: {12 * fit.doubling_years:.1f} months ({low:.1f} to {high:.1f})")
doublings = np.log2(rates[2024] / rates[2010])
print(f"a GPU's peak, 2010 to 2024: {12 * 14 / doublings:.1f} months")

# %% [markdown] tags=["explain"]
# These are the times of a doubling, in brackets with 95 % confidence. Epoch expects most estimates to be right within a factor of
# 2, the latest within 5: GPT-4's 673 years may be 135 or 3,363. All times are at the peak of the *dense* rate, of matrices
# without zeros left out, and the five cards are our choice. Training reaches less: Llama 3's, on 16,384 H100, about 400 TFLOP/s
# on each (*The Llama 3 Herd of Models*, 2024, table 4).
#
# A GPU's peak has doubled faster than a processor's transistors. Part of that comes from narrower numbers, float16 for float32, and from
# units for a single operation, the [multiply-accumulate](glossary.md#mac). Demand doubled faster still. Many GPUs at once make
# up for it.

# %% [markdown] tags=["slide"] minutes=1
# ### Moore's law, and what stopped
#
# Which of these still grow: transistors, clock, the speed of one thread, cores?
#
# Processors by year ([Karl Rupp's collection](https://github.com/karlrupp/microprocessor-trend-data)); the dashed line is 2005.

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The clock stopped; transistors did not"
quantities = ("transistors", "clock_hz", "single_thread", "cores")
title = "The clock stopped in 2005, transistors did not"
drawn = history.draw_trends([*map(history.processors, quantities)], title=title, mark=2005)
alt = "Transistors rise throughout; the clock stops about 2005, cores begin."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# The clock stopped, and one thread gets faster only slowly: when the voltage could hardly fall any more, a faster clock meant a hotter chip (the appendix has the doubling times, and
# Dennard's rule behind this). The transistors became cores, wider vectors and special units: more operations at the same time,
# and each of them wants its data.

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
# `probe` measures both numbers of this machine, once, in some ten seconds; then it remembers them. The peak is that of independent
# multiply-adds on the fastest vectors, because it belongs to the processor, not to a library. The bandwidth is that of `a = b + c` on
# long arrays in main memory, because the weights take 256 MiB.

# %% tags=["run"]
limits = helpers.probe()
peak, product = limits.peak_flops["float32"], limits.product_flops["float32"]
memory, bandwidth = limits.memory, limits.memory.bandwidth_bytes_per_s
print(f"peak {units.text(peak, 'FLOP/s')}, {memory.name} {units.text(bandwidth, 'B/s')}")
print(f"the library's product: {units.text(product, 'FLOP/s')}")

# %% tags=["run"]
side, counts = 8192, (1, 4, 16, 64)
weights = torch.rand(side, side, device=device)
inputs = {count: torch.rand(side, count, device=device) for count in counts}
calls = {str(count): lambda x=x: weights @ x for count, x in inputs.items()}
layer = timing.compare(calls, budget_s=3, precision=0.1)
points = {count: on_roofline(count, side, side, peak, bandwidth) for count in counts}

# %% tags=["look", "nbval-ignore-output"]
flops = {count: 2 * side**2 * count for count in counts}
modelled_s = {count: flops[count] / attainable for count, (_, attainable) in points.items()}
measured_s = {count: layer.candidate(str(count)).minimum_s for count in counts}
measured = layer.candidate("16").time_ratio
bet.reveal(modelled=modelled_s[16] / modelled_s[1], measured=measured)

# %% tags=["look"]
sentence = "16 tokens take less than a quarter of 16 times as long"
timing.claim(sentence, measured, at_most=4, evidence=layer)
roofs = limits.resting_on("float32 peak", f"{memory.name} bandwidth")
ratio = measured_s[1] / modelled_s[1]
sentence = "one token takes about the time of its bytes"
timing.claim(sentence, ratio, at_least=1 / 3, at_most=2, evidence=[layer, roofs])

# %% [markdown] tags=["explain"]
# One token uses each weight once and waits for the weights. For the other fifteen they are there already, so the model says once the
# time of one. The library takes about twice. Is the model wrong, or does the library lose something? A test: a program of our own,
# which multiplies each weight that it loads by all 16 tokens at once, in one vector.


# %% tags=["run"]
MANY = """
#include <cstdint>
#include <cstring>
typedef float Vector __attribute__((vector_size(64)));  // 16 numbers, one of each token
extern "C" void many(const float* w, const float* x, float* y, int64_t first, int64_t k) {
    for (int64_t i = first; i < first + 512; i += 8) {  // eight rows of weights
        Vector sums[8] = {};
        for (int64_t p = 0; p < k; ++p) {
            for (int row = 0; p % 16 == 0 && row < 8; ++row)  // ask for weights ahead
                __builtin_prefetch(w + (i + row) * k + p + 128);
            Vector inputs;
            memcpy(&inputs, x + 16 * p, sizeof inputs);
            for (int row = 0; row < 8; ++row) sums[row] += w[(i + row) * k + p] * inputs;
        }
        memcpy(y + 16 * i, sums, sizeof sums);
    }
}"""


# %% tags=["run"]
def compiled(source, flags=native.CPP_FLAGS):
    try:
        return native.compile_cpp(source, flags=flags)
    except native.NativeError as error:
        print(f"not measured here: {error}")


program, tried = compiled(MANY) if device == "cpu" else None, None
if program:
    declaration = (
        "void many(const float* w, const float* x, float* y, int64_t first, int64_t k)"
    )
    run, y, x = program.function(declaration), torch.empty(side, 16), inputs[16]
    workers = ThreadPoolExecutor(torch.get_num_threads())  # each takes 512 rows at a time
    share, starts = (lambda first: run(weights, x, y, first, side)), range(0, side, 512)
    both = {"library": calls["16"], "ours": lambda: list(workers.map(share, starts))}
    tried = timing.compare(both, budget_s=2, precision=0.1)
    assert torch.allclose(y, weights @ x, rtol=1e-3)
    print({row.name: units.text(row.minimum_s, "s") for row in tried.candidates})

# %% tags=["look"]
ours_s = tried and tried.candidate("ours").minimum_s
sentence = "16 tokens take less than twice their roof in our program"
evidence = [tried, roofs] if tried else ()
timing.claim(sentence, tried and ours_s / modelled_s[16], at_most=2, evidence=evidence)

# %% [markdown] tags=["explain"]
# (All times here are those of the fastest run.) Our program stays below twice its roof, so much of the loss is the library's: from one
# column to a few, its program gets slower by more than data and arithmetic ask for. Why, we have not tested. Here are all cases
# under the roof:


# %%
def draw_roof(axes, peak, bandwidth, name, ends=(0.1, 1000), **how):
    ridge = peak / bandwidth
    places = np.array([ends[0], ridge, ends[1]])
    axes.loglog(places, np.minimum(peak, places * bandwidth), **{"color": "black", **how})
    axes.vlines(ridge, 1, peak, linestyles=":", color="#888888")
    words = f"{name}: ridge {ridge:.0f} FLOP/B"
    axes.text(0.9 * ends[1], 1.12 * peak, words, ha="right", va="bottom")
    axes.set(xlabel="arithmetic intensity", ylabel="operations a second", xlim=ends)
    plotting.unit_axis(axes, "x", "FLOP/B")
    plotting.unit_axis(axes, "y", "FLOP/s")


def mark(axes, place, words, kind="modelled", left=False):
    colour, form = plotting.COLOURS[kind], "D" if kind == "modelled" else "o"
    fill = "white" if kind == "modelled" else colour
    axes.plot(*place, form, color=fill, markeredgecolor=colour, markersize=8, zorder=3)
    how = {"textcoords": "offset points", "ha": "right" if left else "left"}
    axes.annotate(words, place, xytext=(-9 if left else 9, 2 if left else -11), **how)


# %% tags=["look", "slide", "slide-output"] minutes=2 headline="One token waits for its weights"
title = "One layer: modelled (diamonds), measured (dots)"
drawn, axes = plotting.figure(title=title, height_in=4.4)
draw_roof(axes, peak, bandwidth, "here")
ridge = peak / bandwidth
axes.hlines(product, product / bandwidth, 1000, colors="#777777", linestyles="--")
axes.text(900, product / 1.12, "the library's product", ha="right", va="top")
axes.axvspan(0.1, ridge, color="#E69F00", alpha=0.12, lw=0)
axes.axvspan(ridge, 1000, color="#56B4E9", alpha=0.12, lw=0)
for where, words in ((0.13, "waits for data"), (1.2 * ridge, "waits for arithmetic")):
    axes.text(where, 2.5 * peak, words, color="#444444")
for count, place in points.items():
    mark(axes, place, units.text(modelled_s[count], "s"), left=True)
    words = f"{count} token{'s' * (count > 1)}: {units.text(measured_s[count], 's')}"
    mark(axes, (place[0], flops[count] / measured_s[count]), words, "measured")
if tried:
    words = f"ours: {units.text(ours_s, 's')}"
    mark(axes, (points[16][0], flops[16] / ours_s), words, "measured")
axes.set_ylim(peak / 300, 4 * peak)
alt = "One token lies far left on the slope; with more tokens the layer moves right and up."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# A point below its roof has lost something, and the roofline does not say what. A point may also lie a little above: these roofs are measured, too, and `probe` writes.
# A [cache](glossary.md#cache) often reads a line before it writes it; `probe` does not count that read.
#
# Now an accelerator. A model has 7 billion weights in float16, and one user. We take them as one layer of 70,000 x 100,000. The
# H100's data sheet has 3.35 TB/s and 989 TFLOP/s.

# %% tags=["predict", "slide", "slide-output"] minutes=1
pace = helpers.predict("One user: how many tokens a second at most?", "tokens/s")
pace

# %% tags=["run", "slide", "slide-output"] minutes=1 headline="One user waits for bytes, not for arithmetic"
sheet = roofline.datasheet_roof(hardware.device("H100 SXM 80 GB"), "float16")
promised = sheet.peak_flops_per_s, sheet.bandwidth_bytes_per_s
token_flops = 2 * 7e9
_, one_user = on_roofline(1, 70_000, 100_000, *promised, size=2)
pace.reveal(modelled=one_user / token_flops)
print(f"by its arithmetic alone: {sheet.peak_flops_per_s / token_flops:,.0f} tokens a second")

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="More users climb to the ridge"
drawn, axes = plotting.figure(
    title="1 to 512 users, and their share of the peak", height_in=4.4
)
shown = {("GTX 580", "float32"): "#E69F00", ("H100 SXM 80 GB", "float32"): "#777777"}
for (name, dtype), colour in (shown | {("H100 SXM 80 GB", "float16"): "black"}).items():
    roof = roofline.datasheet_roof(hardware.device(name), dtype)
    both = roof.peak_flops_per_s, roof.bandwidth_bytes_per_s
    label = f"{name.split(' SXM')[0]}, {dtype}"
    draw_roof(axes, *both, label, ends=(0.1, 20_000), color=colour)
for users in (1, 64, 512):
    place = on_roofline(users, 70_000, 100_000, *promised, size=2)
    share = 100 * place[1] / promised[0]
    words = f"{users} user{'s' * (users > 1)}: {share:.1f} %"
    mark(axes, place, words)
axes.set_ylim(1e11, 5e15)
alt = "On the H100 one user is far left; 512 users are right of the ridge."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# One user gets a third of a per cent of the arithmetic, and all of the bandwidth. So a server collects the tokens of many users
# into a batch, until the ridge point. This counts the weights alone; lesson 22 adds what else a token must read.
#
# From the GTX 580 of 2010 to the H100 of 2022 the ridge moved from 8 to 20 FLOP/B in float32: arithmetic grew faster than
# bandwidth. [Tensor cores](glossary.md#tensor-core) and float16 moved it to 295. The layer's own intensity doubles in
# float16, so its distance from the ridge has grown 18 times. An operation has to use each byte hundreds of times. How does a
# matrix product manage that?

# %% [markdown] tags=["slide"] minutes=2
# ## Part 3: a matrix product, by its traffic
#
# - $C = A\,B$: an element of $C$ needs a row of $A$ and a column of $B$
# - Here each element gets a thread
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
# square of $A$, and one of $B$, and use each element many times.

# %% tags=["predict"]
fewer = helpers.predict("Tiles of 8 x 8: how many times fewer global reads?", "x")
fewer

# %% tags=["slide", "slide-output"] minutes=2 headline="A tile is read once and used many times"
shown = {"m": 12, "n": 16, "k": 12, "tile": 4, "block": (1, 2)}
frames = [matrix_product.draw_tiles(**shown, step=step) for step in (None, 0, 1, 2)]
plotting.play(
    frames,
    title="12 blocks of 16 threads: who reads what",
    captions=[
        "Naive: two neighbours read the same row of A. The 16 threads: 384 global reads.",
        "Tiled: the 16 threads bring 16 elements of A and of B: 32 reads, each used 4 times.",
        "Every thread has added 4 products from shared memory. The next tiles come: 64 reads.",
        "The last tiles: 96 reads, and each of the 16 sums is complete.",
    ],
    stills=[0, 1, 3],
    alt="Two threads' row and columns; then a block's tiles, which move along A and down B.",
)

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

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The reads move to a near memory"
runs = {"naive": naive_run, "tiled": tiled_run}
runs["tiled, by formula"] = simulators.tiled_traffic(16, 24, 32, tile=8)
rows = {}
for name, run in runs.items():
    rows[name] = [run.global_reads, run.shared_reads, f"{2 * run.macs_per_global_byte:.2f}"]
pd.DataFrame(rows, index=["global reads", "shared reads", "FLOP a global byte"]).T

# %% [markdown] tags=["explain"]
# The reads have not gone: they go to a memory that is near and fast. From global memory an element of $A$ is read $n / t$ times
# and not $n$ times, one of $B$ $m / t$ times. With the writes of $C$ left out, tiles of side $t$ in float32 give
# $2\,m\,n\,k$ FLOP for $4 \cdot 2\,m\,n\,k / t$ bytes, or $t / 4$ FLOP/B. How large must a tile be?

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Tiles of 32 reach a fifth of the peak"
rtx = roofline.datasheet_roof(hardware.device("RTX 3090"), "float32")
both = rtx.peak_flops_per_s, rtx.bandwidth_bytes_per_s
drawn, axes = plotting.figure(title="Tiles, and their share of the peak", height_in=4.2)
draw_roof(axes, *both, "RTX 3090, float32, published")
for tile in (1, 8, 32, 152):
    attainable = min(both[0], tile / 4 * both[1])
    words = f"{tile} x {tile}: {100 * attainable / both[0]:.1f} %"
    mark(axes, (tile / 4, attainable), words)
axes.set_ylim(1e11, 1e14)
plotting.show(drawn, alt="Tiles of 1, 8 and 32 lie on the slope; 152 is just below the ridge.")

# %% tags=["look"]
room = hardware.device("RTX 3090").core_shared_bytes
needed = {tile: 2 * 4 * tile**2 for tile in (32, 152)}
print({tile: f"{units.text(size, 'B')} for two tiles" for tile, size in needed.items()})
print(f"shared memory of a core, at most: {units.text(room, 'B')} (published)")

# %% [markdown] tags=["explain"]
# Tiles of 152 do not fit, and a block has at most 1,024 threads (CUDA C++ Programming Guide): at one element a thread, tiles end
# at 32 x 32, a fifth of the peak. There are two cures. The $t / 4$ does not depend on how deep a tile is along $k$, so a tile can
# be thin. And a thread can compute many elements, whose sums it keeps in [registers](glossary.md#register): the same
# idea once more, one memory nearer (lesson 15).
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
# All matrices have side 240 and fit into a cache, and one thread computes. `std::fma` is one multiply-add:

# %% tags=["nbval-ignore-output"]
PRODUCTS = """
#include <cmath>
#include <cstdint>
extern "C" void naive(const float* a, const float* b, float* c, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) {
            float sum = 0;
            for (int64_t p = 0; p < n; ++p) sum = std::fma(a[i * n + p], b[p * n + j], sum);
            c[i * n + j] = sum;
        }
}
extern "C" void interchanged(
        const float* a, const float* b, float* __restrict__ c, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t p = 0; p < n; ++p)
            for (int64_t j = 0; j < n; ++j)
                c[i * n + j] = std::fma(a[i * n + p], b[p * n + j], c[i * n + j]);
}"""
lanes = {"AVX2": 8, "AVX512": 16}.get(torch.backends.cpu.get_cpu_capability(), 4)
print(f"float32 numbers in one vector register: {lanes}")

# %% [markdown]
# A core starts two multiply-adds in each cycle, each on a whole vector or on one number; the result is there after 4 cycles
# (Intel since Skylake, AMD since Zen 3: Agner Fog, *Instruction tables*). Vectors of 512 bits count half on AMD's Zen 4 and Intel's
# client chips. What does `naive` use of that?

# %% tags=["predict", "slide-output"]
slower = helpers.predict("How many times longer does naive take than the library?", "x")
slower

# %% tags=["run"]
n, programs, times, starts = 240, None, {}, 2
a, b, c = torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)
library = compiled(PRODUCTS)
if library:
    rates = hardware.vector_flops()  # FLOP/s, by the bits of a vector
    starts = 1 if rates[max(rates)] < 1.5 * rates.get(max(rates) // 2, 0) else 2
    one = "void {}(const float* a, const float* b, float* c, int64_t n)"
    plain, other = (library.function(one.format(name)) for name in ("naive", "interchanged"))
    calls = {"naive": lambda: plain(a, b, c, n)}
    calls["interchanged"] = lambda: other(a, b, c.zero_(), n)
    calls["library"] = lambda: torch.mm(a, b, out=c)
    with timing.fixed_threads(1):
        programs = timing.compare(calls, device="cpu", budget_s=1, precision=0.1)
    times = {row.name: row.minimum_s for row in programs.candidates}

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Naive code is far from the library"
ratio = times["naive"] / times["library"] if times else None
slower.reveal(modelled=lanes * starts * 4, measured=ratio)

# %% tags=["look"]
sentence = "with two loops exchanged the product takes less than half of the time"
faster = times["interchanged"] / times["naive"] if times else None
timing.claim(sentence, faster, at_most=1 / 2, evidence=programs or ())

# %% [markdown] tags=["explain"]
# By the model, naive adds one number every 4 cycles, because each addition waits for the one before, and the library adds a
# vector at each start. The exchange changes three things at once: neighbouring sums are independent, they share
# a register, and $B$ is read along its rows.
#
# But why is naive better than the model says? The *next* sum waits for nothing. A core reads ahead: it holds a *window* of
# multiply-adds, and starts any of them whose inputs are there. They leave the window in order; number `i` enters when
# number `i - window` has left. Here the window has room for three, a result takes 3 ticks, and one may start in a tick:

# %%
moves = [(0, 0, 3, 3), (0, 3, 6, 6), (0, 6, 9, 9)]  # enters, starts, ends, leaves
moves += [(3, 4, 7, 9), (6, 7, 10, 10), (9, 10, 13, 13)]
kinds, spans = ("waiting, to start", "computing", "waiting, to leave"), []
for i, times_of in enumerate(moves):
    for kind, begin, end in zip(kinds, times_of, times_of[1:], strict=False):
        if end > begin:
            spans.append(plotting.Span(f"number {i}, sum {i // 3 + 1}", begin, end, kind))
title = "Two sums of three: the second begins early"
drawn = plotting.gantt(spans, title=title, unit="", xlabel="tick")
plotting.show(drawn, alt="Six multiply-adds in a window of three; the second sum overlaps.")

# %% [markdown]
# **Your turn**: write that core.


# %% tags=["yours"] yours="cycles"
def cycles(additions, k, latency, window):
    """Return the ticks of so many multiply-adds, in sums of k, one after the other."""
    ends, left, taken = [], [], set()
    for i in range(additions):
        start = left[i - window] if i >= window else 0
        if i % k:
            start = max(start, ends[-1])
        while start in taken:
            start += 1
        taken.add(start)
        ends.append(start + latency)
        left.append(max([ends[-1], *left[-1:]]))
    return left[-1]


# %% checks="cycles"
asked = exercises.Checks("A core that reads ahead", cycles)
free = {8: "An addition waits for the one before it in its sum"}
asked.returns("one sum of 6", (6, 6, 3, 99), expected=18, mistakes=free)
at_once = {3: "One addition may start in a tick", 18: "Another sum waits for nothing"}
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


# %% wrong="cycles" says="One addition may start in a tick"
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


# %% [markdown]
# Take a core with a [latency](glossary.md#latency) of 4 ticks and a window of 64. How many times faster are sums of 16 than sums of 4,000?

# %% tags=["predict"]
short = helpers.predict("Latency 4, window 64: sums of 16, how many times faster?", "x")
short

# %% tags=["run"]
long_run, short_run = (cycles(16_000, k, 4, 64) for k in (4000, 16))

# %% tags=["look"]
short.reveal(simulated=long_run / short_run)

# %% [markdown] tags=["explain"]
# Four sums of 16 fill the window, so four chains run at once. And this core? Its latency is a step of
# one long sum. Its tick is the shortest time between two starts: that of a step when twelve sums go on side by side. (By the
# published numbers the latency is 8 ticks; but `twelve` makes 13 loads for 12 multiply-adds.)

# %% tags=["run"]
SUMS = """
#include <cmath>
#include <cstdint>
extern "C" void in_turn(const float* x, const float* y, float* c, int64_t k, int64_t many) {
    for (int64_t j = 0; j < many; ++j) {
        float sum = 0;
        #pragma GCC unroll 4
        for (int64_t p = 0; p < k; ++p) sum = std::fma(x[p + j % 16], y[p], sum);
        c[j % 16] = sum;
    }
}
extern "C" void twelve(const float* x, const float* y, float* c, int64_t k, int64_t many) {
    for (int64_t j = 0; j < many; j += 12) {
        float sums[12] = {};
        for (int64_t p = 0; p < k; ++p)
            for (int q = 0; q < 12; ++q) sums[q] = std::fma(x[p + q], y[p], sums[q]);
        for (int q = 0; q < 12; ++q) c[q] = sums[q];
    }
}"""

# %% tags=["run", "nbval-ignore-output"]
lengths, additions, chains, step_s = (4000, 1000, 500, 240, 120, 60, 30), 240_000, None, {}
library = compiled(SUMS, flags=(*native.CPP_FLAGS, "-fno-tree-vectorize"))
if library:
    one = "void {}(const float* x, const float* y, float* c, int64_t k, int64_t many)"
    in_turn, twelve = (library.function(one.format(name)) for name in ("in_turn", "twelve"))
    x, y, c = torch.rand(4016), torch.rand(4000), torch.empty(16)
    calls = {f"{k}": lambda k=k: in_turn(x, y, c, k, additions // k) for k in lengths}
    calls["side by side"] = lambda: twelve(x, y, c, 4000, additions // 4000)
    chains = timing.compare(calls, device="cpu", budget_s=2, precision=0.05)
    step_s = {row.name: row.minimum_s / additions for row in chains.candidates}
    latency = round(step_s["4000"] / step_s["side by side"])
    found = {name: units.text(step_s[name], "s") for name in ("4000", "side by side")}
    print(f"a step: {found}; latency {latency} ticks")


# %% tags=["run", "nbval-ignore-output"]
def off(window):
    simulated = [cycles(8000, k, latency, window) for k in lengths]
    ratios = [step_s[f"{k}"] / step_s["4000"] for k in lengths]
    apart = np.log(np.divide(simulated, simulated[0]) / ratios)
    return np.exp(np.abs(apart).max())


if step_s:
    window = min((16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256), key=off)
    for each in (window // 2, window, 2 * window):
        print(f"window {each}: off by at most {off(each):.2f} times")

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Short sums overlap in the window"
drawn, axes = plotting.figure(title="The shorter the sums, the more of them overlap")
if step_s:
    for each, style in {window // 2: ":", window: "-", 2 * window: "--"}.items():
        simulated = [cycles(8000, k, latency, each) for k in lengths]
        shown_s = np.divide(simulated, simulated[0]) * step_s["4000"]
        how = {"color": plotting.MODELLED, "label": f"simulated, window {each}"}
        axes.semilogx(lengths, shown_s, style, **how)
    found = [step_s[f"{k}"] for k in lengths]
    axes.semilogx(lengths, found, "o", color=plotting.MEASURED, label="measured")
    axes.axhline(step_s["side by side"], color="#888888", lw=1, label="one tick, measured")
    axes.set_ylim(0, 1.1 * step_s["4000"])
    axes.legend()
axes.set_xticks(lengths, lengths)
axes.minorticks_off()
axes.set(xlabel="length k of a sum", ylabel="time of a step")
plotting.unit_axis(axes, "y", "s")
plotting.show(drawn, alt="A step takes less time in short sums, as in the simulation.")

# %% tags=["look"]
sentence = "in sums of 30 a step takes less time than in sums of 4,000"
ratio = chains and chains.candidate("30").time_ratio
timing.claim(sentence, ratio, at_most=0.8, evidence=chains or ())

# %% tags=["look", "nbval-ignore-output"]
macs, cpu = n**3, helpers.probe(device="cpu")
at_peak_s = 2 * cpu.threads / cpu.peak_flops["float32"]
steps = {"naive, by the model": lanes * starts * 4 * at_peak_s}
if times and step_s:
    steps["one long sum, measured"] = step_s["4000"]
    steps["sums of 240 alone, measured"] = step_s["240"]
    steps["naive, measured"] = times["naive"] / macs
    steps["library, measured"] = times["library"] / macs
steps["at one thread's peak"] = at_peak_s
taken = list(steps.values())
shown = [units.text(each, "s") for each in taken]
over = ["", *(f"{ratio:.3g}" for ratio in np.divide(taken[:-1], taken[1:]))]
pd.DataFrame({"a step of a sum": shown, "times as fast as the row above": over}, index=steps)

# %% [markdown] tags=["explain"]
# The row "library, measured" holds the measured ratio. The other four factors lead from it to the model's:
#
# 1. The model takes its cycle from the peak. Another latency than 4 shows here, or a clock that wide vectors slow; these runs do not
#    separate the two.
# 2. Sums of 240 overlap. A simulated core with the measured latency and one window follows all lengths, within the factor
#    printed above; half that window and twice that window miss them by more.
# 3. Walking down the columns of $B$ costs naive little here: all of $B$ lies in a cache.
# 4. The last factor is what the library leaves unused of a core.
#
# A simulation with a window chosen to fit is no proof: a real core's window holds the loop's other instructions, too.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 5: what the roofline leaves out
#
# - LeNet, one image, 11 layers with arithmetic
# - Each layer under its own roof, the times added
# - How many times longer does it really take?
#
# Each layer gets the bandwidth of the smallest memory level that holds its numbers. Before an operator computes anything, Python
# calls PyTorch, PyTorch looks at types and shapes, makes a tensor for the result and picks a program. What does such a call cost? We
# give each layer next to nothing to compute: the smallest input that it takes, such as a patch of 5 x 5 pixels. A linear layer has a fixed
# input size, so we time one with a single weight instead.

# %%
lenet = helpers.LeNet().to(device).eval()
image = torch.rand(1, 1, 28, 28, device=device)
layers = roofline.roofline(lenet, image, limits, budget_s=0.5).layers
roofs_s = [max(row.point.compute_s, row.point.memory_s) for row in layers]
least = {"conv1": (1, 1, 5, 5), "conv2": (1, 6, 5, 5), "linear": (1, 1)}
own = {f"fc{place}": ("linear", torch.nn.Linear(1, 1).to(device)) for place in (1, 2, 3)}
in_order = []
for row in layers:
    name, call = own.get(row.layer, (row.layer, lenet.get_submodule(row.layer)))
    in_order.append((call, torch.rand(least.get(name, (1, 1, 2, 2)), device=device)))


# %%
def one_round():
    taken_s = []
    for call, x in in_order:
        begin_s = time.perf_counter()
        call(x)
        taken_s.append(time.perf_counter() - begin_s)
    return taken_s


in_turn = helpers.measure(one_round, budget_s=0.5)
own_s = np.median([one_round() for _ in range(300)], axis=0)
calls_s = {"conv1's call": own_s[0], "relu1's call": own_s[1], "all roofs": sum(roofs_s)}
print({name: units.text(each, "s") for name, each in calls_s.items()})

# %% tags=["predict"]
beyond = helpers.predict("LeNet, one image: how many times longer than its roofs?", "x")
beyond

# %% tags=["run", "nbval-ignore-output"]
one_image = helpers.measure(lambda: lenet(image), budget_s=0.5)
measured = one_image.median_s / sum(roofs_s)
beyond.reveal(modelled=(sum(roofs_s) + in_turn.median_s) / sum(roofs_s), measured=measured)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A call takes longer than a roof"
drawn, axes = plotting.figure(title="LeNet, one image: the time of each layer", height_in=4.2)
places, found = range(len(layers)), [row.measured_s for row in layers]
axes.hlines(places, roofs_s, found, color="#BBBBBB", zorder=1)
how = {"marker": "D", "color": "white", "edgecolor": plotting.MODELLED}
axes.scatter(roofs_s, places, **how, label="its roof, modelled")
how = {"marker": "|", "s": 200, "linewidth": 3, "color": plotting.MODELLED}
axes.scatter(roofs_s + own_s, places, **how, label="roof and own call")
axes.scatter(found, places, color=plotting.MEASURED, label="measured")
axes.set_yticks(places, [row.layer for row in layers])
axes.invert_yaxis()
axes.set(xscale="log", xlabel="time")
plotting.unit_axis(axes, "x", "s")
axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
plotting.show(
    drawn, alt="Each layer's roof lies far left of its measured time; its call lies near it."
)

# %% tags=["look"]
sentence = "one image takes far longer than its roofs"
timing.claim(sentence, measured, at_least=5, evidence=[one_image, roofs])
both_s = sum(roofs_s) + in_turn.median_s
ratio = one_image.median_s / both_s
sentence = "roofs and own calls are about the time of an image"
evidence = [one_image, in_turn]  # the roofs are a few per cent of the sum
timing.claim(sentence, ratio, at_least=0.8, at_most=2, evidence=evidence)
shown_s = {"roofs and own calls": both_s, "measured": one_image.median_s}
print({name: units.text(each, "s") for name, each in shown_s.items()})

# %% [markdown] tags=["explain"]
# Most of this network's time on one image is that of its calls. A processor with twice the peak would hardly help. Fewer calls
# would (fused operators, a compiled model), and so would more work for each call. What roofs and calls leave over is largest at
# conv1, and pool1 takes several times its call. A batch shows more of both:

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
print(f"256 images: {many_images.median_s / batch_s:.1f} times their roofs")
of_an_image = {"pool1": 6 * 24 * 24, "pool2": 16 * 8 * 8}
for row in (row for row in batch if row.layer in of_an_image):
    numbers, speed = of_an_image[row.layer], units.text(row.point.bandwidth_bytes_per_s, "B/s")
    one_s = units.text(row.measured_s / (256 * numbers), "s")
    print(f"{row.layer}: {numbers:,} numbers, {one_s} each ({row.point.level}: {speed})")

# %% [markdown] tags=["explain"]
# The batch is nearer to its roofs, and still above them. pool2's data lie in a memory some four times as fast here, and yet each number takes about as long as in
# pool1. Two tests. Is it bytes that a pooling
# waits for? The same maxima can be taken from slices, with two calls that read more bytes. Does conv1 fill its vectors? It has six filters;
# try as many as a vector has numbers, and one more.


# %% tags=["run"]
def from_slices(x):
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


x, pool = torch.rand(256, 6, 24, 24), torch.nn.MaxPool2d(2)
assert torch.equal(pool(x), from_slices(x))
calls = {"MaxPool2d": lambda: pool(x), "slices": lambda: from_slices(x)}
pooled = timing.compare(calls, device="cpu", budget_s=0.5, precision=0.1)
digits, calls = torch.rand(256, 1, 28, 28), {}
for filters in (6, lanes, lanes + 1):
    conv = torch.nn.Conv2d(1, filters, 5).requires_grad_(False)
    calls[f"{filters} filters"] = lambda conv=conv: conv(digits)
convolved = timing.compare(calls, device="cpu", budget_s=0.7, precision=0.1)

# %% tags=["look"]
for row in (*pooled.candidates, *convolved.candidates):
    print(f"{row.name}: {units.text(row.minimum_s, 's')}")
sentence = "from slices the same maxima take less than half of the time"
ratio = pooled.candidate("slices").time_ratio
timing.claim(sentence, ratio, at_most=1 / 2, evidence=pooled)

# %% [markdown] tags=["explain"]
# `MaxPool2d` does not wait for bytes, and three comparisons for four numbers are little arithmetic. What it waits for instead, we have
# not tested. conv1 computes a whole vector of filters at a time here: as many filters as numbers in a vector
# take hardly longer than six, and one more costs a second vector. So some places are empty: part of its gap.
#
# A bound that is far off is not wrong. It tells how much there is to win, and makes you ask what it leaves out.
#
# The [exercises](exercises/02_compute_and_roofline_exercises.ipynb) have you write the model with its calls, a kernel, and
# the batch that reaches the ridge; the last one is an operator of your own. The
# [appendix](appendix/02_compute_and_roofline.ipynb) has the doubling times, five faults of a timing, the price of a wide number,
# peaks in public tables, the instructions of the kernels, and sides that are powers of two.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. An operation takes at least the time of its bytes, and at least that of its arithmetic.
# 2. Tiles use a byte many times; independent sums keep the units busy.
# 3. Small operators pay for the call.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | arithmetic intensity $I$ | $I = \text{FLOP} / \text{bytes}$ | any operator |
# | attainable rate | $\min(P,\; I\,B)$ | peak $P$, bandwidth $B$ |
# | ridge point | $P / B$ | a machine |
# | time of a network, CPU | $\sum_l \left(\max(\text{FLOP}_l/P,\; \text{bytes}_l/B) + t_l\right)$ | layers $l$, each with its own call of $t_l$ seconds |
# | tokens a second, one user | $B / \text{bytes of the weights}$ | at most |
# | global reads, naive | $2\,m\,n\,k$ | a product of $m \times k$ and $k \times n$ |
# | global reads, tiled | $2\,m\,n\,k / t$ | tiles of $t \times t$ that divide $m$ and $n$ |
# | intensity, tiled | $t / 4$ FLOP/B | float32, writes left out |
