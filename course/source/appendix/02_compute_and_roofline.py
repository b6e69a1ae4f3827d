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
# ---

# %% [markdown]
# # Compute and roofline
#
# Six additions, each of which stands alone: the doubling times, how to time a product wrongly, what a wide number costs, peaks in
# public tables, the instructions of the kernels, and a side that is a power of two.

# %%
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import torch

import helpers
from helpers import hardware, native, results, units
from helpers.studies import history, matrix_product, simulators

device = "cuda" if torch.cuda.is_available() else "cpu"
allocator = helpers.steady_allocator()

# %% [markdown]
# ## The doubling times
#
# What doubles every $d$ years is a straight line on a logarithmic axis: the slope of $\log_2$ of the values is $1/d$. `np.polyfit(x,
# y, 1)` returns slope and height of the least-squares line.


# %%
def doubling_years(years, values):
    """Return in how many years the values double, by a line through their log2."""
    slope, _ = np.polyfit(years, np.log2(values), 1)
    return 1 / slope


# %%
landmarks = history.training_compute().between(2010, 2030)
trained = (
    [point.year for point in landmarks.points],
    [point.value for point in landmarks.points],
)
print(f"training, from 2010: {12 * doubling_years(*trained):.1f} months")
fit = history.doubling_time(landmarks)
low, high = 12 * fit.shortest_doubling_years, 12 * fit.longest_doubling_years
print(f"with 95 % confidence: {low:.1f} to {high:.1f} months")

# %% [markdown]
# The models are few, and landmarks; a line through many more doubles about every 6 months ([Sevilla and others,
# 2022](https://arxiv.org/abs/2202.05924)). Now processors, before and since 2005 ([Karl Rupp's
# collection](https://github.com/karlrupp/microprocessor-trend-data)). "None seen": the slope may as well be 0. (Before the first of these
# points, in 1946, the ENIAC did [5,000 additions a
# second](https://www.thehistoricalarchive.com/happenings/66/eniac-a-powerhouse-in-its-day/), of decimal numbers.)

# %%
quantities = ("transistors", "clock_hz", "power_w", "single_thread", "cores")
trends = {}
for period, span in {"before 2005": (1970, 2005), "since 2005": (2005, 2030)}.items():
    for quantity in quantities:
        fit = history.doubling_time(history.processors(quantity).between(*span))
        years = f"{fit.doubling_years:.1f} years"
        seen = years if fit.shortest_doubling_years else "none seen"
        trends.setdefault(period, {})[quantity] = seen
pd.DataFrame(trends)

# %% [markdown]
# Dennard and others ([1974](https://doi.org/10.1109/JSSC.1974.1050511)) had shown how to shrink a transistor together with its
# voltage: it switches faster, and a square millimetre takes no more power. The power of a whole processor doubled every 4 years
# before 2005 all the same. The rule speaks of a square millimetre at a fixed shrink; which part of the growth came from larger
# chips and which from faster clocks these data do not say. When the voltage could hardly fall any more, a faster clock meant a
# hotter chip, and the clock stopped. One thread still gets faster, more slowly, at the same clock; the data do not say by what.

# %% [markdown]
# ## Five faults in five lines
#
# The function below times "a product" on a device. `"meta"` is a device that every PyTorch has; it stands for a GPU here. Find the
# five faults before you go on.


# %%
def faulty_time(where):
    """Time a "product" of two matrices on the device `where`, with five faults."""
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    a.to(where), b.to(where)
    start_s = time.time()
    c = a * b
    return c, time.time() - start_s


# %% tags=["nbval-ignore-output"]
for where in ("cpu", "meta"):
    print(f"{where}: {units.text(faulty_time(where)[1], 's')}")

# %% [markdown]
# **The operator.** `*` multiplies element by element; `@` is the matrix product.

# %%
x, y = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0, 1], [1, 0]])
print("x * y:", (x * y).tolist())
print("x @ y:", (x @ y).tolist())

# %% [markdown]
# **The device.** `a.to(where)` returns a copy and leaves `a` where it is, and the copy was thrown away. Both timings ran on the CPU.
# Ask the result where it was computed:

# %%
lost, _ = faulty_time("meta")
kept = torch.rand(4, 4).to("meta")
print(f"asked for meta, computed on {lost.device.type}")
print(f"with the copy kept, computed on {(kept * kept).device.type}")

# %% [markdown]
# **The clock stops too early.** A GPU works through a queue: `a @ b` puts the product into it and returns, and the clock shows the
# time of putting. A thread of its own stands for the GPU here. It still has earlier work to do, which lasts until we open a gate:

# %%
a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
queue, gate = ThreadPoolExecutor(max_workers=1), threading.Event()
queue.submit(gate.wait)
behind = queue.submit(torch.matmul, a, b)
said = {False: "not done", True: "done"}
print(f"the call has returned; the product is {said[behind.done()]}")
gate.set()
behind.result()
print(f"we have waited for it; the product is {said[behind.done()]}")

# %% tags=["nbval-ignore-output"]
launched_s, done_s = [], []
for _ in range(5):
    begun_s = time.perf_counter()
    launched = queue.submit(torch.matmul, a, b)
    launched_s.append(time.perf_counter() - begun_s)
    launched.result()
    done_s.append(time.perf_counter() - begun_s)
queue.shutdown()
print(f"returned after {units.text(statistics.median(launched_s), 's')}")
print(f"done after     {units.text(statistics.median(done_s), 's')}")

# %% [markdown]
# **A [cold call](../glossary.md#cold-call), once.** The first call also loads and sets up code, and one time tells nothing about the
# next. **The wrong clock.** `time.time()` is the time of day, which may be set while you measure; `time.perf_counter()` never goes
# back. `helpers.measure` mends the last three; the operator and the device stay yours.

# %% [markdown]
# ## The price of a wide number
#
# The simplest circuit multiplies as you do on paper: every bit of one factor meets every bit of the other in an AND gate, and the
# rows of results are added.


# %%
def multiply(x, y, bits):
    """Return the product of two numbers of `bits` bits, and the AND gates that it took."""
    total, gates = 0, 0
    for i in range(bits):
        for j in range(bits):
            total += ((x >> i) & (y >> j) & 1) << (i + j)
            gates += 1
    return total, gates


# %%
gates = {bits: multiply(2**bits - 1, 2**bits - 3, bits)[1] for bits in (4, 8, 16, 32)}
print(f"201 x 77 is {201 * 77:,}; the circuit says {multiply(201, 77, 8)[0]:,}")
for bits, count in gates.items():
    print(f"{bits:>2} bits: {count:>5,} AND gates")

# %% tags=["predict"]
wide_energy = helpers.predict("Energy of a 32-bit multiplication over an 8-bit one?", "x")
wide_energy

# %% [markdown]
# [Horowitz](https://doi.org/10.1109/ISSCC.2014.6757323) published energies of circuits of one chip process (45 nm).

# %% tags=["run"]
kinds = [f"{dtype} {what}" for what in ("multiply", "add") for dtype in ("int8", "int32")]
kinds += [f"{dtype} multiply" for dtype in ("float16", "float32")]
joules = {name: history.energy_cost(name).middle_j for name in kinds}

# %% tags=["look"]
ratio = joules["int32 multiply"] / joules["int8 multiply"]
source = "Horowitz, ISSCC 2014"
wide_energy.reveal(modelled=gates[32] / gates[8], published=ratio, source=source)

# %% tags=["look"]
for name, energy in joules.items():
    print(f"{name:<17} {energy * 1e12:>4.2f} pJ")
print(f"energy grows as bits to the power {history.multiplier_exponent():.2f}")
ratio = joules["float32 multiply"] / joules["float16 multiply"]
print(f"float16 to float32: {ratio:.2f} times; significands say {24**2 / 11**2:.2f}")

# %% [markdown] tags=["explain"]
# An addition grows with the bits, a multiplication with their square. Of a floating-point number only the significand (the digits)
# is multiplied, which has 11 bits in float16 and 24 in float32. The exponents are added, and rounding costs as well, so the ratio
# of the whole is not that of the gates alone.
#
# A T4 computes in float16, int8 and int4. Half the bits are a quarter of the multiplier.

# %% tags=["predict"]
t4_gain = helpers.predict("T4: how many times the operations of int8 in int4?", "x")
t4_gain

# %% tags=["run"]
t4, bits_of = hardware.device("T4"), {"float16": 16, "int8": 8, "int4": 4}
rates = {dtype: t4.peak(dtype).dense_flops_per_s for dtype in bits_of}
shapes = {"float16": (16, 8, 8), "int8": (8, 8, 16), "int4": (8, 8, 32)}

# %% tags=["look"]
source = t4.peak("int4").source.title
gained = rates["int4"] / rates["int8"]
t4_gain.reveal(modelled=gates[8] / gates[4], published=gained, source=source)

# %% tags=["look"]
for dtype, (m, n, k) in shapes.items():
    bits = (m * k + k * n) * bits_of[dtype] / (m * n * k)
    speed = rates[dtype] / rates["float16"]
    print(
        f"{dtype:<8} {bits:.1f} bits of A and B a MAC, {speed:.0f} times the rate of float16"
    )

# %% [markdown] tags=["explain"]
# Four times is what the multipliers would allow. But a multiplier must be fed: [tensor cores](../glossary.md#tensor-core) multiply small
# matrices that come out of [registers](../glossary.md#register), A of m x k numbers and B of k x n, in the shapes of
# [CUTLASS](https://nvidia.github.io/cutlass/mma__sm75_8h_source.html): m16n8k8, m8n8k16 and m8n8k32.
#
# From int8 to int4 the bits of a multiply-accumulate halve and the rate doubles: a machine that delivers a fixed number of bits a
# second would do just that. It does not explain float16, with 1.5 times the bits of int8 and half its rate. So this is a reason
# that fits one of the steps, and no proof: we found no word of NVIDIA on its own reason.

# %% [markdown]
# ## Peaks in public tables
#
# Since 2020, data sheets print a second rate, for matrices in which two of every four values are 0. Tables copy it and call it dense,
# or do not say which it is. The ratio is that of the rate in such a table to the dense rate:

# %%
errors = hardware.published_errors()
fields = ["dtype", "dense_flops_per_s", "claim_ratio"]
results.printed(errors.table().set_index("device").rename_axis(None)[fields])

# %%
print(f"the median of these claims is {errors.median_ratio:.1f} times the dense rate")
print("read in:", "; ".join(sorted(set(errors.table()["published_by"]))))

# %% [markdown]
# ## The instructions of the kernels
#
# The lesson's two kernels, as CUDA C++. A compiler tells without a GPU how many loads from global memory stand in each program for
# a multiply-add: 2 in the naive one, $2/t$ in the tiled one with tiles of side $t$, here 16.

# %% tags=["nbval-ignore-output"]
counted = None
try:
    counted = matrix_product.count_instructions(tile=16, architectures=["sm_90"])
except native.NativeError as error:
    print(f"not counted here: {error}")
counted

# %%
expected = {"naive": 2, "tiled": 2 / 16}
print(f"global loads for a multiply-add: {expected}")
for row in counted.kernels if counted else ():
    assert row.loads_per_multiply_add_ratio == expected[row.kernel]

# %% [markdown]
# And two C++ products in the order of Part 4, but with `sum += a * b` where the lesson writes `std::fma`. "Packed" arithmetic works
# on a whole vector register ([SIMD](../glossary.md#simd)), an "fma" is a multiplication and an addition in one instruction. The
# compiler may not add in another order, because rounding would change the result, so the sums of the naive program stay scalar.
# But it may split the multiply-add: where you see packed multiplies and scalar adds, several products are made at once and
# added one by one. Such a chain has the latency of a plain addition; that is why the lesson writes `std::fma`. The interchanged
# program adds to many elements of $C$, in any order.

# %% tags=["nbval-ignore-output"]
censuses = {}
try:
    library = native.compile_cpp(matrix_product.cpu_source(tile=64))
    for name in ("naive", "interchanged"):
        censuses[name] = native.census(library, function=f"{name}_product")
except native.NativeError as error:
    print(f"not counted here: {error}")
fields = ("scalar_fmas", "packed_fmas", "packed_multiplies", "scalar_adds", "vector_bits")
table = {name: {each: getattr(one, each) for each in fields} for name, one in censuses.items()}
pd.DataFrame(table)

# %% [markdown]
# ## Sixteen more columns
#
# The lesson's product had side 240. What changes with 256, a power of two? The work grows by $(256/240)^3$, so a little. But a cache
# keeps a line only in the one set that its address names. Down a column of a matrix of side $n$ the addresses are $4n$ bytes
# apart. Here is a [cache](../glossary.md#cache) of 32 KiB with 8 [ways](../glossary.md#ways), which has room for 512 lines. A program walks down a
# column of $n$ lines, and down it again.

# %% tags=["predict"]
still_there = helpers.predict(
    "Side 256: how many lines are there at the second walk?", "lines"
)
still_there

# %% tags=["run"]
level = simulators.CacheLevel(size_bytes=32 * 1024, line_bytes=64, ways=8)
found = {}
for rows in (240, 256):
    column = simulators.strided(rows, stride_bytes=4 * rows)
    twice = simulators.simulate_caches(simulators.join_streams([column, column]), [level])
    found[rows] = twice.levels[0].hits

# %% tags=["look"]
stride_lines = 4 * 256 // level.line_bytes
sets = level.sets // stride_lines
room = sets * level.ways
still_there.reveal(modelled=256 if room >= 256 else 0, simulated=found[256])

# %% tags=["look"]
print(f"side 240: {found[240]} lines are still there")
print(
    f"side 256: {level.sets} sets, and a stride of {stride_lines} lines uses {sets}: room for {room}"
)

# %% tags=["explain", "nbval-ignore-output"]
try:
    pair = [
        matrix_product.measure_products(side, device="cpu", budget_s=1) for side in (240, 256)
    ]
    smaller_s, larger_s = (one.comparison.candidate("naive").minimum_s for one in pair)
    print(f"naive, 256 over 240: work {(256 / 240) ** 3:.2f}, time {larger_s / smaller_s:.2f}")
except native.NativeError as error:
    print(f"not measured here: {error}")

# %% [markdown] tags=["explain"]
# With a stride of a power of two all lines of a column crowd into a few sets, and each has been driven out by later ones before the
# second walk comes back to it. With 240 they spread over all sets. If your processor's first cache has another size or other rules, you may see
# less of it. Sides that are powers of two are common in deep learning; libraries copy the tiles that they work on to places of
# their own, and so does a kernel with shared memory.
