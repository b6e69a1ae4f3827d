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
# Nine additions, each of which stands alone. They are the training of a large model on one GPU, the doubling times, how to time a product wrongly, what a
# wide number costs, peaks in public tables, a core that reads ahead, what LeNet waits for besides its calls, the instructions of the kernels, and a side
# that is a power of two.

# %%
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import torch

import helpers
from helpers import hardware, native, plotting, results, timing, units
from helpers.studies import history, layer_roofline, matrix_product, simulators

torch.set_num_threads(1)
allocator = helpers.steady_allocator()

# %% [markdown]
# ## Demand and supply
#
# The operations of a whole training are an amount, in FLOP, and the peak of a machine is a rate, in FLOP per second. An amount divided by a rate is a
# time. Epoch AI estimates GPT-4's training at $2.1 \cdot 10^{10}$ petaFLOP ([Our World in
# Data](https://ourworldindata.org/grapher/artificial-intelligence-training-computation)), and an H100 is sold with 0.989 petaFLOP per second in float16.
# (Many texts write FLOPS for both, the amount and the rate. Here a rate always says "per second" or ends in "/s".)

# %% tags=["predict"]
alone = helpers.predict(
    "If one H100 trained GPT-4 at its peak, how many years would it take?", "years"
)
alone

# %% tags=["run"]
models, year_s = history.training_compute(), 365.25 * 24 * 3600
demand = models.between(2010, 2030)
gpus = ("GTX 580", "V100 SXM2", "A100 SXM 40 GB", "H100 SXM 80 GB", "B200 SXM")
rates = {}
for gpu in map(hardware.device, gpus):
    peaks = [gpu.peak(dtype) for dtype in ("float32", "float16")]
    rates[gpu.year] = max(peak.dense_flops_per_s for peak in peaks if peak)
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

# %% tags=["look"]
title = "A training on one GPU: from minutes to centuries"
figure, axes = plotting.figure(title=title, height_in=4.2)
dates = {point.name: point.year for point in demand.points}
axes.semilogy(dates.values(), years.values(), "o", color=plotting.MODELLED)
for name in ("6-layer MLP (MNIST)", "AlexNet", "Transformer", "GPT-3 175B", "GPT-4"):
    left = name.startswith("GPT-3")
    options = {"textcoords": "offset points", "ha": "right" if left else "left"}
    axes.annotate(name, (dates[name], years[name]), xytext=(-9 if left else 9, -4), **options)
ticks = {"1 minute": 1 / 525_960, "1 hour": 1 / 8766, "1 day": 1 / 365.25, "1 year": 1}
ticks |= {"30 years": 30, "1,000 years": 1000}
axes.set_yticks(list(ticks.values()), list(ticks))
axes.minorticks_off()
axes.set(xlabel="year", ylabel="on the newest of five GPUs", xlim=(2009, 2026))
plotting.show(figure, alt="A training's time on one GPU grows from minutes to centuries.")

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
# 2, the latest within 5, so GPT-4's 673 years may be 135 or 3,363. All times are at the peak of the *dense* rate, of matrices
# without zeros left out, and the five GPUs are our choice. Training reaches less. Llama 3's, on 16,384 H100, reached about 400 TFLOP/s
# on each (*The Llama 3 Herd of Models*, 2024, table 4).
#
# A GPU's peak has doubled faster than a processor's transistors. Part of that comes from narrower numbers, float16 for float32, and from
# units for a single operation, the [multiply-accumulate](../glossary.md#mac). Demand doubled faster still, and many GPUs at once make up for it.
#
# Which of the quantities of a processor still grow? The figure has them by year ([Karl Rupp's
# collection](https://github.com/karlrupp/microprocessor-trend-data)), and the dashed line is 2005.

# %% tags=["look"]
quantities = ("transistors", "clock_hz", "single_thread", "cores")
title = "The clock stopped in 2005, transistors did not"
figure = history.draw_trends([*map(history.processors, quantities)], title=title, mark=2005)
alt = "Transistors rise throughout; the clock stops about 2005, cores begin."
plotting.show(figure, alt=alt)

# %% [markdown] tags=["explain"]
# The clock stopped, and one thread gets faster only slowly, because when the voltage could hardly fall any more, a faster clock meant a hotter chip. The
# transistors became cores, wider vectors and special units, which do more operations at the same time, and each of them wants its data.

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
errors = layer_roofline.published_errors()
fields = ["dtype", "dense_flops_per_s", "claim_ratio"]
results.printed(errors.table().set_index("device").rename_axis(None)[fields])

# %%
print(f"the median of these claims is {errors.median_ratio:.1f} times the dense rate")
print("read in:", "; ".join(sorted(set(errors.table()["published_by"]))))

# %% [markdown]
# ## A core that reads ahead
#
# In the lesson the naive product takes less than its latencies add up to. By the model it adds one number every 4 cycles, because each addition waits for
# the one before. But the *next* sum waits for nothing, and a core reads ahead. It holds a *window* of multiply-adds, and starts any of them whose inputs
# are there. They leave the window in order, so number `i` enters when number `i - window` has left. In this drawing the window has room for three, a
# result takes 3 ticks, and one may start in a tick:

# %%
moves = [(0, 0, 3, 3), (0, 3, 6, 6), (0, 6, 9, 9)]  # enters, starts, ends, leaves
moves += [(3, 4, 7, 9), (6, 7, 10, 10), (9, 10, 13, 13)]
kinds, spans = ("waiting, to start", "computing", "waiting, to leave"), []
for i, moments in enumerate(moves):
    for kind, begin, end in zip(kinds, moments, moments[1:], strict=False):
        if end > begin:
            spans.append(plotting.Span(f"number {i}, sum {i // 3 + 1}", begin, end, kind))
title = "Two sums of three: the second begins early"
figure = plotting.gantt(spans, title=title, unit="", xlabel="tick")
plotting.show(figure, alt="Six multiply-adds in a window of three; the second sum overlaps.")


# %%
def cycles(additions, k, latency, window):
    """Return the ticks of so many multiply-adds, in sums of k, one after the other."""
    ends, left, starts = [], [], set()
    for i in range(additions):
        start = left[i - window] if i >= window else 0
        if i % k:
            start = max(start, ends[-1])
        while start in starts:
            start += 1
        starts.add(start)
        ends.append(start + latency)
        left.append(max([ends[-1], *left[-1:]]))
    return left[-1]


# %% [markdown]
# Take a core with a [latency](../glossary.md#latency) of 4 ticks and a window of 64 multiply-adds.

# %% tags=["predict"]
short = helpers.predict(
    "With a latency of 4 and a window of 64, "
    "how many times as fast as sums of 4,000 are sums of 16?",
    "x",
)
short

# %% tags=["run"]
long_ticks, short_ticks = (cycles(16_000, k, 4, 64) for k in (4000, 16))

# %% tags=["look"]
short.reveal(simulated=long_ticks / short_ticks)

# %% [markdown] tags=["explain"]
# Four sums of 16 fill the window, so four chains run at once. And this core? One long sum shows its latency, and twelve sums side by side show how often it
# can start an addition, which is its tick. (By the published numbers the latency is 8 ticks. But `twelve` makes 13 loads for 12 multiply-adds.)

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
try:
    sums = native.compile_cpp(SUMS, flags=(*native.CPP_FLAGS, "-fno-tree-vectorize"))
except native.NativeError as error:
    print(f"not measured here: {error}")
else:
    declaration = "void {}(const float* x, const float* y, float* c, int64_t k, int64_t many)"
    in_turn, twelve = (
        sums.function(declaration.format(name)) for name in ("in_turn", "twelve")
    )
    x, y, c = torch.rand(4016), torch.rand(4000), torch.empty(16)
    calls = {f"{k}": lambda k=k: in_turn(x, y, c, k, additions // k) for k in lengths}
    calls["side by side"] = lambda: twelve(x, y, c, 4000, additions // 4000)
    chains = timing.compare(calls, device="cpu", budget_s=2, precision=0.05)
    step_s = {row.name: row.minimum_s / additions for row in chains.candidates}
    latency = round(step_s["4000"] / step_s["side by side"])
    ends = {name: units.text(step_s[name], "s") for name in ("4000", "side by side")}
    print(f"a step: {ends}; latency {latency} ticks")


# %% tags=["run", "nbval-ignore-output"]
def largest_miss(window):
    simulated = [cycles(8000, k, latency, window) for k in lengths]
    ratios = [step_s[f"{k}"] / step_s["4000"] for k in lengths]
    misses = np.log(np.divide(simulated, simulated[0]) / ratios)
    return np.exp(np.abs(misses).max())


if step_s:
    windows = (16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256)
    window = min(windows, key=largest_miss)
    for size in (window // 2, window, 2 * window):
        print(f"window {size}: off by at most {largest_miss(size):.2f} times")

# %% tags=["look"]
figure, axes = plotting.figure(title="The shorter the sums, the more of them overlap")
if step_s:
    for size, style in {window // 2: ":", window: "-", 2 * window: "--"}.items():
        simulated = [cycles(8000, k, latency, size) for k in lengths]
        simulated_s = np.divide(simulated, simulated[0]) * step_s["4000"]
        options = {"color": plotting.MODELLED, "label": f"simulated, window {size}"}
        axes.semilogx(lengths, simulated_s, style, **options)
    measured_s = [step_s[f"{k}"] for k in lengths]
    axes.semilogx(lengths, measured_s, "o", color=plotting.MEASURED, label="measured")
    axes.axhline(step_s["side by side"], color="#888888", lw=1, label="one tick, measured")
    axes.set_ylim(0, 1.1 * step_s["4000"])
    axes.legend()
axes.set_xticks(lengths, lengths)
axes.minorticks_off()
axes.set(xlabel="length k of a sum", ylabel="time of a step")
plotting.unit_axis(axes, "y", "s")
plotting.show(figure, alt="A step takes less time in short sums, as in the simulation.")

# %% tags=["look"]
sentence = "in sums of 30 a step takes less time than in sums of 4,000"
ratio = chains and chains.candidate("30").time_ratio
timing.claim(sentence, ratio, at_most=0.8, evidence=chains or ())

# %% [markdown] tags=["explain"]
# Sums of 240 overlap, so the naive product of the lesson takes less than one long sum would. A simulated core with the measured latency and one window
# follows all lengths, within the factor printed above, whereas half that window and twice that window miss them by more. But a simulation with a window
# that was chosen to fit is no proof, because a real core's window holds the loop's other instructions, too.

# %% [markdown]
# ## What else LeNet waits for
#
# In the lesson a batch of 256 images still takes several times its least time. Two tests. Is it bytes that a pooling waits for? The same maxima can be
# taken from slices, with two calls that read more bytes. And does the first convolution fill its vectors? It has six filters, so we try as many as a
# vector has values, and one more.


# %% tags=["run", "nbval-ignore-output"]
def from_slices(x):
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


x, pool = torch.rand(256, 6, 24, 24), torch.nn.MaxPool2d(2)
assert torch.equal(pool(x), from_slices(x))
calls = {"MaxPool2d": lambda: pool(x), "slices": lambda: from_slices(x)}
pooled = timing.compare(calls, device="cpu", budget_s=0.5, precision=0.1)
lanes = {"AVX2": 8, "AVX512": 16}.get(torch.backends.cpu.get_cpu_capability(), 4)
digits, calls = torch.rand(256, 1, 28, 28), {}
for filters in (6, lanes, lanes + 1):
    convolution = torch.nn.Conv2d(1, filters, 5).requires_grad_(False)
    calls[f"{filters} filters"] = lambda convolution=convolution: convolution(digits)
convolved = timing.compare(calls, device="cpu", budget_s=0.7, precision=0.1)
for row in (*pooled.candidates, *convolved.candidates):
    print(f"{row.name}: {units.text(row.minimum_s, 's')}")

# %% tags=["look"]
sentence = "from slices the same maxima take less than half of the time"
ratio = pooled.candidate("slices").time_ratio
timing.claim(sentence, ratio, at_most=1 / 2, evidence=pooled)

# %% [markdown] tags=["explain"]
# `MaxPool2d` does not wait for bytes, and three comparisons for four values are little arithmetic. [The appendix of lesson 18](18_fused_bias.ipynb) finds the
# reason. The operator is slow because the processor often guesses wrongly which of two values is larger. The first convolution computes a whole vector of filters at a time here, because
# as many filters as values in a vector take hardly longer than six, and one more costs a second vector. So some places are empty, which is a part of its
# gap.

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
# And two C++ products in the orders of Part 4, but with `sum += a * b` where the lesson writes `std::fma`. "Packed" arithmetic works
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
stride = f"a stride of {stride_lines} lines uses {sets}"
print(f"side 256: {level.sets} sets, and {stride}: room for {room}")

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
