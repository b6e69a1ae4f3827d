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
#       - compute|computed from tables how fast the demand for arithmetic and the supply of it have grown
#       - repair|repaired a faulty timing of a matrix product, fault by fault
#       - predict|predicted the time of an operator from its operations, its bytes and two limits of the machine
#       - count|counted the memory traffic of a naive and of a tiled matrix product, with loops of your own
#       - tell|told where the roofline model is wrong, and what the overhead of a call adds
# ---

# %% [markdown] tags=["objectives"]
# # Compute and roofline
#
# Two numbers of an operator, its operations and its bytes, and two numbers of a machine, how fast it computes and how fast it
# moves data, say how long the operator must take at least. That is the [roofline](glossary.md#roofline) model. This lesson derives it, holds it to
# measurements, and then looks for the place where it fails.
#
# Counts, bytes and what is computed from tables are the same on every machine. Times are those of one machine, here with one
# thread. Clear the outputs before you begin (Edit, Clear Outputs of All Cells).

# %%
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import torch

import helpers
from helpers import hardware, native, plotting, results, roofline, simulators, timing, units
from helpers.studies import matrix_product

device = "cuda" if torch.cuda.is_available() else "cpu"

# %% tags=["nbval-ignore-output"]
helpers.steady_allocator()

# %% [markdown] tags=["slide"] minutes=1
# ## Part 1: how we got here
#
# - Demand: the operations that training takes.
# - Supply: transistors, clock, power, cores.
# - Both grow by doubling; how fast?
#
# Epoch AI estimates how many operations the training of landmark models took, from the perceptron of 1957 on. It expects most
# estimates to be right within a factor of 2, and within 5 where the makers keep silent, as with GPT-4
# ([Our World in Data](https://ourworldindata.org/grapher/artificial-intelligence-training-computation)). Each point of our
# table carries its source.

# %%
training = hardware.training_compute()
print(f"{len(training.points)} models, from {training.points[0].name} to {training.points[-1].name}")
print(f"source: {training.points[0].source.title}")

# %% tags=["predict"]
doubling = helpers.predict(
    "From 2010 on, in how many months did the training compute of landmark models double?", "months"
)
doubling

# %% [markdown]
# A doubling every $d$ years is a straight line on a logarithmic axis. `doubling_time` fits that line by least squares, with an
# interval (in brackets, at 95 % confidence). For a model, take what is said of chips: if models had grown as the transistors on a
# processor did, they would have doubled as fast.

# %% tags=["run"]
eras = {"before 2010": training.between(1950, 2010), "from 2010": training.between(2010, 2030)}
demand = {era: hardware.doubling_time(points) for era, points in eras.items()}
transistors = hardware.doubling_time(hardware.processors("transistors"))
for era, fit in demand.items():
    low, high = fit.shortest_doubling_years, fit.longest_doubling_years
    print(f"{era}: doubled in {12 * fit.doubling_years:.1f} months ({12 * low:.1f} to {12 * high:.1f})")

# %% tags=["look", "slide", "slide-output"] minutes=2
lines = [plotting.doubling_line(era, eras[era], demand[era]) for era in eras]
named = [
    "Perceptron Mark I",
    "Neocognitron",
    "LeNet-5",
    "NPLM",
    "AlexNet",
    "VGG16",
    "AlphaGo Zero",
    "BERT-Large",
    "GPT-4",
]
drawn = plotting.draw_growth(training, title="Operations to train landmark models", named=named, doublings=lines)
alt = "Training compute from 1957 to 2023 on a logarithmic axis: a slow rise until 2010, a much steeper one after it."
plotting.show(drawn, alt=alt)

# %% tags=["look"]
doubling.reveal(
    modelled=12 * transistors.doubling_years,
    published=12 * demand["from 2010"].doubling_years,
    source="a line through Epoch AI's estimates",
)

# %% [markdown] tags=["explain"]
# The sample is small, and of landmarks only: a line through many more models doubles about every 6 months since 2010 ([Sevilla and
# others, 2022](https://arxiv.org/abs/2202.05924)), which our interval holds. The transistors explain the small part. From AlexNet
# to GPT-4, to one digit, because the estimates are good to a factor of 2:

# %% tags=["explain"]
points = {point.name: point for point in training.points}
years = points["GPT-4"].year - points["AlexNet"].year
grown = points["GPT-4"].value / points["AlexNet"].value
by_transistors = 2 ** (years / transistors.doubling_years)
print(f"training compute grew about {round(grown, -7):,.0f} times in {years:.1f} years")
print(f"transistors doubling every {transistors.doubling_years:.1f} years give {by_transistors:.0f} times")
print(f"what is left: about {round(grown / by_transistors, -6):,.0f} times")

# %% [markdown] tags=["explain"]
# What is left did not come from more transistors on a chip. It was bought with more chips, that work for longer, and won by
# chips that give more of their transistors to one operation, the [multiply-accumulate](glossary.md#mac), in narrower numbers. So
# three things of a machine matter here: how many operations it does at once (parallelism, lessons 03 to 05), how wide its
# numbers are, and whether the data arrive in time.

# %% [markdown] tags=["slide"] minutes=1
# ### Moore's law, and what stopped
#
# Which of these still double: transistors, clock, power, speed of one thread, cores?
#
# [Karl Rupp's collection](https://github.com/karlrupp/microprocessor-trend-data) has processors from 1971 on; our table holds one a
# year. We fit each quantity before and after 2005. For a model, let one thread go on after 2005 as it did before.

# %% tags=["predict"]
one_thread = helpers.predict("Since 2005, in how many years did the speed of one thread double?", "years")
one_thread

# %% tags=["run"]
periods = {"before 2005": (1970, 2005), "since 2005": (2005, 2030)}


def doubling_text(quantity, period):
    """Return the doubling time of one quantity of processors in words; a slope that may be zero tells none."""
    fit = hardware.doubling_time(hardware.processors(quantity).between(*period))
    return f"{fit.doubling_years:.1f} years" if fit.shortest_doubling_years else "no clear doubling"


quantities = ("transistors", "clock_hz", "power_w", "single_thread", "cores")
trends = {name: {q: doubling_text(q, period) for q in quantities} for name, period in periods.items()}
pd.DataFrame(trends)

# %% tags=["look", "slide", "slide-output"] minutes=1
all_series = [hardware.processors(quantity) for quantity in quantities]
drawn = plotting.draw_trends(all_series, title="Processors by year")
alt = "Five quantities of processors from 1971 on: transistors rise throughout, the clock stops rising about 2005, cores begin."
plotting.show(drawn, alt=alt)

# %% tags=["look"]
eras_of_speed = [
    hardware.doubling_time(hardware.processors("single_thread").between(*period)) for period in periods.values()
]
one_thread.reveal(
    modelled=eras_of_speed[0].doubling_years,
    published=eras_of_speed[1].doubling_years,
    source="a line through Karl Rupp's collection",
)

# %% [markdown] tags=["explain"]
# One thread did not go on as before. Dennard and others ([1974](https://doi.org/10.1109/JSSC.1974.1050511)) had shown how to shrink
# a transistor: with its voltage, so that it switches faster and the power of each square millimetre stays. Makers did not keep
# to it throughout, and chips grew as well: in the table the power of a whole processor doubled every 4 years even before 2005.
# When the voltage could hardly fall any more, a faster clock meant a hotter chip, and the clock stopped. The transistors
# went on. They became cores, wider vectors and special units: operations at the same time instead of one after another.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 2: the price of a wide number
#
# A well-known textbook asks: why does a 16-bit multiplier cost four times an 8-bit one?
#
# Build one. The simplest circuit multiplies as you do on paper: every bit of one factor meets every bit of the other in an AND gate, and
# the rows of results are added.


# %%
def multiply(x, y, bits):
    """Return the product of two numbers of `bits` bits, and the AND gates that it took."""
    total, gates = 0, 0
    for i in range(bits):
        for j in range(bits):
            total += ((x >> i) & (y >> j) & 1) << (i + j)
            gates += 1
    return total, gates


# %% tags=["slide", "slide-output"] minutes=1
gates = {bits: multiply(2**bits - 1, 2**bits - 3, bits)[1] for bits in (4, 8, 16, 32)}
print(f"201 x 77 is {201 * 77:,}; the circuit says {multiply(201, 77, 8)[0]:,}")
for bits, count in gates.items():
    print(f"{bits:>2} bits: {count:>5,} AND gates")

# %% [markdown]
# Twice the bits are four times the gates, and about as many times the adders behind them. Does the energy follow?
# [Horowitz](https://doi.org/10.1109/ISSCC.2014.6757323) published energies of circuits of one chip process (45 nm).

# %% tags=["predict"]
wide_energy = helpers.predict("How many times the energy of an 8-bit multiplication does a 32-bit one take?", "x")
wide_energy

# %% tags=["run"]
multiplications = ("int8 multiply", "int32 multiply", "float16 multiply", "float32 multiply")
additions = ("int8 add", "int32 add", "float16 add", "float32 add")
costs = {name: hardware.energy_cost(name) for name in (*multiplications, *additions)}
for name, cost in costs.items():
    print(f"{name:<17} {cost.middle_j * 1e12:>4.2f} pJ")

# %% tags=["look"]
energy_ratio = costs["int32 multiply"].middle_j / costs["int8 multiply"].middle_j
wide_energy.reveal(modelled=gates[32] / gates[8], published=energy_ratio, source="Horowitz, ISSCC 2014")

# %% tags=["explain"]
exponent = hardware.multiplier_exponent()
float_ratio = costs["float32 multiply"].middle_j / costs["float16 multiply"].middle_j
print(f"energy of an integer multiplier grows as bits to the power {exponent:.2f}")
print(f"twice the bits: {2**exponent:.2f} times the energy; gates say {gates[16] / gates[8]:.2f}")
print(f"an addition of 4 times the bits: {costs['int32 add'].middle_j / costs['int8 add'].middle_j:.2f} times")
print(f"float16 to float32: {float_ratio:.2f} times; significands of 11 and 24 bits say {24**2 / 11**2:.2f}")

# %% [markdown] tags=["explain"]
# An addition grows with the bits, a multiplication with their square. In a
# floating-point multiplier only the significand (the digits) is multiplied, which has 11 bits in float16 and 24 in float32; the exponents are
# added, and rounding costs as well, so the ratio of the whole is not that of the gates alone.

# %% [markdown] tags=["slide"] minutes=1
# ### Then why does INT4 "only" double the rate of INT8?
#
# - A T4 computes in float16, int8 and int4.
# - Half the bits, a quarter of the multiplier: four times the rate?

# %% tags=["predict"]
t4_gain = helpers.predict("How many times more operations a second does a T4 do in int4 than in int8?", "x")
t4_gain

# %% tags=["run"]
t4 = hardware.device("T4")
bits_of = {"float16": 16, "int8": 8, "int4": 4}
t4_rates = {dtype: t4.peak(dtype).dense_flops_per_s for dtype in bits_of}
for dtype, rate in t4_rates.items():
    print(f"{dtype:<8} {rate / 1e12:>4.0f} tera-operations a second ({t4.peak(dtype).source.title})")

# %% tags=["look"]
source = t4.peak("int4").source.title
t4_gain.reveal(modelled=gates[8] / gates[4], published=t4_rates["int4"] / t4_rates["int8"], source=source)

# %% [markdown] tags=["explain"]
# Four times is what the multipliers would allow. But a multiplier must be fed. The T4's [tensor cores](glossary.md#tensor-core) multiply
# small matrices that come out of [registers](glossary.md#register): A of m x k numbers and B of k x n. The instructions for this generation
# ([CUTLASS](https://nvidia.github.io/cutlass/mma__sm75_8h_source.html) lists them) are called m16n8k8, m8n8k16 and m8n8k32. How
# many bits must come in for each multiply-accumulate?

# %% tags=["explain", "slide", "slide-output"] minutes=1
shapes = {"float16": (16, 8, 8), "int8": (8, 8, 16), "int4": (8, 8, 32)}
for dtype, (m, n, k) in shapes.items():
    bits_a_mac = (m * k + k * n) * bits_of[dtype] / (m * n * k)
    speed = t4_rates[dtype] / t4_rates["float16"]
    print(f"{dtype:<8} {bits_a_mac:.1f} bits of A and B a MAC, {speed:.0f} times the rate of float16")

# %% [markdown] tags=["explain"]
# From int8 to int4 the bits halve and the rate doubles: a machine that delivers a fixed number of bits a second would do just
# that. It does not explain float16, with 1.5 times the bits of int8 and half its rate; its numbers need another kind of
# multiplier. So this is a reason that fits the answer, and no proof: we found no word of NVIDIA on its own reason. The rest of
# this lesson teaches the same about whole operators: arithmetic that cannot be fed is worth nothing.

# %% [markdown] tags=["slide"] minutes=0.5
# ## Part 3: what went wrong here?
#
# A lecture printed two times of the product of two matrices of side 1024, one of a CPU, one of a GPU. Can they be true?
#
# The lecture is "Hardware Ecosystem" (Cambridge, 2022), and its figures are 0.52 ms and 0.30 ms. The processor that it describes
# is a Ryzen 9 5950X, the card an RTX 3090. Before you run anything, count.

# %% tags=["predict"]
beyond_peak = helpers.predict("How many times the processor's peak would a product in 0.52 ms be?", "x")
beyond_peak

# %% tags=["run", "slide", "slide-output"] minutes=0.5
printed_s = {"CPU": 0.52e-3, "GPU": 0.30e-3}
side = 1024
product_flops, elementwise_bytes = units.flops_from_macs(side**3), 3 * side**2 * 4
for where, duration_s in printed_s.items():
    print(f"{where}: {units.text(duration_s, 's')}; as a product {units.text(product_flops / duration_s, 'FLOP/s')}, "
          f"as a * b {units.text(elementwise_bytes / duration_s, 'B/s')}")  # fmt: skip

# %% tags=["look"]
ryzen, rtx = hardware.device("Ryzen 9 5950X"), hardware.device("RTX 3090")
as_product = product_flops / printed_s["CPU"] / ryzen.peak("float32").dense_flops_per_s
as_stream = elementwise_bytes / printed_s["GPU"] / rtx.memory_bandwidth_bytes_per_s
beyond_peak.reveal(modelled=as_product)

# %% tags=["explain"]
at_highest_clock = as_product * 3.4 / 4.9  # GHz, from the lecture's own card of this processor
print(f"as a product the CPU's time is {as_product:.1f} times the processor's peak at its base clock")
print(f"and {at_highest_clock:.1f} times that at its highest clock")
print(f"as a * b the GPU's time uses {as_stream:.1%} of the card's memory bandwidth")

# %% [markdown] tags=["explain"]
# Without a run you know that something is wrong. No processor computes faster than its peak, so the CPU's time is not that
# of a product. As `a * b` both are possible. The three matrices, 12.6 MB, fit this processor's 64 MiB of L3, and the new pages of
# the result cost time as well (lesson 01), so 24 GB/s is the rate of no one part of it. But the card's own memory reaches 936 GB/s:
# at 42 GB/s it did not do the work, or did little but wait. The printed code shows which: it ran `a * b` twice and moved nothing.
#
# Now let the errors happen. This is our reconstruction; the line with `.to` is one that the lecture did not have, and that most
# people would add first. `"meta"` is a device that every PyTorch has, and it stands for the GPU.


# %% [markdown] tags=["slide"] minutes=2
# ### Five faults in five lines
#
# Find them before you go on.


# %% tags=["slide-code"]
def faulty_time(where):
    """Time a "product" on the device `where`, with five faults."""
    a, b = torch.rand(side, side), torch.rand(side, side)
    a.to(where), b.to(where)
    start_s = time.time()
    c = a * b
    return c, time.time() - start_s


# %% tags=["nbval-ignore-output"]
for where in ("cpu", "meta"):
    print(f"{where}: {units.text(faulty_time(where)[1], 's')}")

# %% [markdown]
# **Fault 1: the operator.** `*` multiplies element by element; `@` is the matrix product.

# %%
x, y = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0, 1], [1, 0]])
print("x * y:", (x * y).tolist())
print("x @ y:", (x @ y).tolist())

# %% [markdown]
# **Fault 2: the device.** The lecture's matrices were never moved. Ours are not either: `a.to(where)` returns a copy and leaves `a`
# where it is, and the copy was thrown away. Both timings ran on the CPU. Ask the result where it was computed:

# %%
lost, _ = faulty_time("meta")
kept = torch.rand(side, side).to("meta")
print(f"asked for meta, computed on {lost.device.type}")
print(f"with the copy kept, computed on {(kept * kept).device.type}")

# %% [markdown]
# **Fault 3: the clock stops too early.** A GPU works through a queue: `a @ b` puts the product into it and returns, and the clock
# shows the time of putting. Without a GPU, a thread of its own stands for one; the queue behaves the same. Here it still has
# earlier work to do, which lasts until we open a gate:

# %%
a, b = torch.rand(side, side, device=device), torch.rand(side, side, device=device)
queue, gate = ThreadPoolExecutor(max_workers=1), threading.Event()
queue.submit(gate.wait)
behind = queue.submit(torch.matmul, a, b)
said = {False: "not done", True: "done"}
print(f"the call has returned; the product is {said[behind.done()]}")
gate.set()
behind.result()
print(f"we have waited for it; the product is {said[behind.done()]}")

# %% [markdown]
# Now time it: until the call returns, and until the product is done.


# %%
def launch():
    """Start a product, and do not wait for it."""
    return a @ b if device == "cuda" else queue.submit(torch.matmul, a, b)


def wait(launched):
    """Wait until what was launched is done."""
    return torch.cuda.synchronize() if device == "cuda" else launched.result()


# %% tags=["nbval-ignore-output"]
launched_s, done_s = [], []
wait(launch())
for _ in range(5):
    begun_s = time.perf_counter()
    launched = launch()
    launched_s.append(time.perf_counter() - begun_s)
    wait(launched)
    done_s.append(time.perf_counter() - begun_s)
queue.shutdown()
print(f"returned after {units.text(statistics.median(launched_s), 's')}")
print(f"done after     {units.text(statistics.median(done_s), 's')}")

# %% [markdown]
# **Fault 4: a [cold call](glossary.md#cold-call), once.** The first call also loads and sets up code (lesson 00), and one time tells
# nothing about the next. The lecture's "GPU" ran the same code as its CPU, only second; to be warm may have been all its
# advantage.
#
# **Fault 5: the wrong clock.** `time.time()` is the time of day, which may be set while you measure; `time.perf_counter()` never
# goes back.

# %% [markdown]
# `helpers.measure` mends faults 3 to 5. The operator and the device are still yours. For a model, measure a product of half the
# side: twice the side is $2^3$ times the operations.

# %% tags=["predict"]
product_time = helpers.predict("How long does a @ b take here, for two 1024 by 1024 matrices?", "s")
product_time

# %% tags=["run", "nbval-ignore-output"]
half_a, half_b = (matrix[: side // 2, : side // 2].contiguous() for matrix in (a, b))
half = helpers.measure(lambda: half_a @ half_b, budget_s=0.5)
product = helpers.measure(lambda: a @ b, budget_s=0.5)
product

# %% tags=["look", "nbval-ignore-output"]
product_time.reveal(modelled=8 * half.median_s, measured=product.median_s)

# %% tags=["explain"]
ratio = product.median_s / (8 * half.median_s)
timing.claim("the product takes what eight halves do", ratio, at_least=1 / 2, at_most=2, evidence=[half, product])

# %% [markdown] tags=["slide"] minutes=2
# ## Part 4: two roofs
#
# - Peak $P$: operations a second, at most.
# - [Bandwidth](glossary.md#bandwidth) $B$: bytes a second, at most.
# - $t \ge \max\left(\dfrac{\text{operations}}{P}, \dfrac{\text{bytes}}{B}\right)$
#
# Divide the operations by that time: an operator reaches at most $\min(P, I \cdot B)$, where its
# [arithmetic intensity](glossary.md#arithmetic-intensity) $I$ is the [FLOP](glossary.md#flop) that it does for each byte it moves. Over $I$, on
# logarithmic axes, this is a slope that runs into a flat roof: the roofline, by
# [Williams, Waterman and Patterson](https://doi.org/10.1145/1498765.1498785) (2009). They meet at the
# [ridge point](glossary.md#ridge-point) $P / B$.
#
# Both numbers are measured here and now. `probe` takes some ten seconds, once; then it remembers.

# %% tags=["nbval-ignore-output"]
limits = helpers.probe()
limits

# %%
peak, memory = limits.peak_flops["float32"], limits.memory
print(f"measured: peaks in {', '.join(limits.peak_flops)}, on {limits.device.partition(':')[0]}")
assert min(peak, memory.bandwidth_bytes_per_s, limits.call_overhead_s) > 0

# %% [markdown]
# Look at `unstable` and at the notes: they say which of these numbers did not repeat. A model is as good as its limits. From
# the two that matter most here follows the ridge point:

# %% tags=["nbval-ignore-output"]
ridge = peak / memory.bandwidth_bytes_per_s
roofs = limits.resting_on("float32 peak", *(f"{level.name} bandwidth" for level in limits.memory_levels))
print(f"ridge point: {ridge:.1f} FLOP/B ({memory.name}, float32)")

# %% [markdown]
# Here are four operators. Count the operations and the bytes of each, as if every matrix were read once and every result written
# once.

# %%
n, columns, size = 4096, 16, 4  # rows, columns of the thin matrix, bytes of a float32
operators = {
    "a + b": (n * n, 3 * n * n * size),
    "a @ vector": (2 * n * n, (n * n + 2 * n) * size),
    "a @ 16 columns": (2 * n * n * columns, (n * n + 2 * n * columns) * size),
    "a @ b": (units.flops_from_macs(side**3), 3 * side**2 * size),
}
counted = pd.DataFrame(operators, index=["flops", "moved_bytes"]).T
counted["intensity_flops_per_byte"] = counted["flops"] / counted["moved_bytes"]
results.printed(counted)

# %%
modelled = [
    roofline.model(roofline.Workload(name, *work), limits, level=memory.name) for name, work in operators.items()
]
known = hardware.known_device(helpers.machine_card()).device
in_table = known is not None and hardware.ridge_flops_per_byte(known, "float32") is not None
promised = roofline.datasheet_roof(known) if in_table else None
drawn = plotting.draw_roofline(limits, modelled, datasheet=promised)
alt = (
    "The roofline of this machine: a slope for each memory level, a flat roof, and the modelled points of four "
    "operators from a + b on the left to a @ b on the right. Roofs of a datasheet, where one is known, are dashed."
)
plotting.show(drawn, alt=alt)
for point in modelled:
    assert (point.intensity_flops_per_byte < point.ridge_flops_per_byte) == (point.memory_s > point.compute_s)

# %% [markdown]
# Solid roofs are measured, and no point moves them. A dashed roof is what a datasheet promises; there is one where our table knows
# your processor. The points lie on main memory's roof, and the two coloured fields are main memory's: a matrix of side 4096 has
# 64 MiB, more than most [caches](glossary.md#cache) hold, and in a virtual machine other guests may fill the cache that your system
# names. Left of the ridge point an operator waits for data (memory-bound), right of it for arithmetic (compute-bound).

# %% tags=["predict"]
vector_share = helpers.predict("Which share of the peak does a matrix times a vector reach?", "%")
vector_share

# %% tags=["run"]
matrix, other = (torch.rand(n, n, device=device) for _ in range(2))
thin, vector = torch.rand(n, columns, device=device), torch.rand(n, device=device)
total = torch.empty_like(matrix)
functions = {
    "a + b": lambda: torch.add(matrix, other, out=total),
    "a @ vector": lambda: matrix @ vector,
    "a @ 16 columns": lambda: matrix @ thin,
    "a @ b": lambda: a @ b,
}
placed = [
    roofline.place(name, functions[name], *operators[name], limits, level=memory.name, budget_s=0.4)
    for name in operators
]

# %% tags=["look", "nbval-ignore-output"]
fields = ["regime", "modelled_s", "measured_s", "time_ratio", "stable"]
results.printed(pd.DataFrame([one.to_dict() for one in placed]).set_index("name").rename_axis(None)[fields])

# %% tags=["look", "nbval-ignore-output"]
times_vector = placed[1]
vector_share.reveal(
    modelled=100 * times_vector.point.attainable_flops_per_s / peak,
    measured=100 * times_vector.measured_flops_per_s / peak,
)

# %% tags=["look", "slide", "slide-output"] minutes=2
drawn = plotting.draw_roofline(limits, placed, title="Four operators, modelled and measured")
alt = "The same roofline: each of the four operators has a hollow modelled point and a solid measured one, joined by a line."
plotting.show(drawn, alt=alt)

# %% tags=["explain"]
plain = [one for one in placed if one.name != "a @ 16 columns"]
timing.claim(
    "a + b, a @ vector and a @ b take about the time of their roofs",
    [one.time_ratio for one in plain], at_least=1 / 3, at_most=2, evidence=[*plain, roofs],
)  # fmt: skip
more = counted.loc["a @ 16 columns"] / counted.loc["a @ vector"]
print(f"16 columns for one: {more['flops']:.0f} times the operations, {more['moved_bytes']:.3f} times the bytes")

# %% [markdown] tags=["explain"]
# `a @ vector` and `a @ 16 columns` read the same matrix; the second does 16 times the work with it. While both wait for data
# that work is free, and that is why an inference server collects requests into a batch: the weights are read once for all. It pays
# until the ridge point, from where on the arithmetic takes as long as the reading. How many times longer did your 16 columns take?
#
# A point below its roof has lost something that the model leaves out. A product with 16 columns, for one, gives the library too
# little to reuse for the peak of a large product; how much it loses differs so much between libraries that we claim nothing of it.
#
# A point above its roof is no miracle: a part of the data came from a nearer memory, or the limit was measured in a busier moment.

# %% [markdown] tags=["slide"] minutes=1
# ### What went wrong here? Peaks in public tables
#
# The dashed roof of a GPU is often drawn twice too high.
#
# Since 2020, datasheets print a second rate, for matrices in which two of every four values are 0. Tables copy it and call it dense,
# or do not say which it is. The ratio is that of the rate in such a table to the dense rate:

# %% tags=["slide-output"]
errors = hardware.published_errors()
fields = ["dtype", "dense_flops_per_s", "claim_ratio"]
results.printed(errors.table().set_index("device").rename_axis(None)[fields])

# %%
print(f"the median of these claims is {errors.median_ratio:.1f} times the dense rate")
print("read in:", "; ".join(sorted(set(errors.table()["published_by"]))))

# %%
for name in ("GTX 580", "T4", "RTX 3090", "H100 SXM 80 GB"):
    ridges = {dtype: hardware.ridge_flops_per_byte(hardware.device(name), dtype) for dtype in ("float32", "float16")}
    print(name, {dtype: f"{value:.0f} FLOP/B" for dtype, value in ridges.items() if value is not None})

# %% [markdown]
# From the GTX 580 of 2010 to the H100 of 2022 the ridge point moved to the right, for arithmetic has grown faster than bandwidth.
# Not at each step: the H100's costly memory takes its float32 back to the left of the RTX 3090's. It lies furthest out for narrow
# numbers on special units. To use those, an operator must do hundreds of operations with each byte. How does a matrix product
# manage that?

# %% [markdown] tags=["slide"] minutes=2
# ## Part 5: a matrix product, by its traffic
#
# $C = A\,B$: each element of $C$ needs a row of $A$ and a column of $B$, and its neighbours need them too.
#
# On a GPU each element of $C$ gets a thread. A program for a GPU is called a kernel; here is the naive one, as a Python function
# that runs once for each thread;
# `a`, `b` and `c` are recorders that count every access to the GPU's [global memory](glossary.md#global-memory).


# %% tags=["slide-code"]
def naive(thread, a, b, c):
    total = 0.0
    for p in range(a.shape[1]):
        total += a[thread.row, p] * b[p, thread.column]
    c[thread.row, thread.column] = total


# %%
rows, tile = 32, 8
naive_run = simulators.count_traffic(naive, rows, rows, rows, tile=tile)
by_formula = simulators.naive_traffic(rows, rows, rows, tile=tile)
print(f"A and B have {2 * rows**2:,} elements; {naive_run.threads:,} threads read {naive_run.global_reads:,} times")
print(f"modelled, 2 m n k: {by_formula.global_reads:,}")
print(f"each element is read {naive_run.global_reads / (2 * rows**2):.0f} times")

# %% [markdown] tags=["slide"] minutes=2
# ### Tiles
#
# Threads come in blocks. A block can keep a tile of $A$ and of $B$ in its [shared memory](glossary.md#shared-memory), and use
# each element of it many times.
#
# Every thread brings one element of each tile. Then all wait for each other at a [barrier](glossary.md#barrier), for a thread needs what the others
# brought. Where CUDA C++ has `__syncthreads()` we write `yield`.

# %% tags=["predict"]
fewer_reads = helpers.predict("How many times fewer global reads does the product take with tiles of 8 by 8?", "x")
fewer_reads


# %% tags=["run", "slide-code"]
def tiled(thread, a, b, c):
    y, x, side = thread.thread_row, thread.thread_column, thread.tile
    a_tile = thread.shared("a_tile", side, side)
    b_tile = thread.shared("b_tile", side, side)
    total = 0.0
    for start in range(0, a.shape[1], side):
        a_tile[y, x] = a[thread.row, start + x]
        b_tile[y, x] = b[start + y, thread.column]
        yield
        for p in range(side):
            total += a_tile[y, p] * b_tile[p, x]
        yield
    c[thread.row, thread.column] = total


# %% tags=["look"]
tiled_run = simulators.count_traffic(tiled, rows, rows, rows, tile=tile)
print(f"global reads: naive {naive_run.global_reads:,}, tiled {tiled_run.global_reads:,}")
print(f"shared reads: naive {naive_run.shared_reads:,}, tiled {tiled_run.shared_reads:,}")
fewer_reads.reveal(modelled=tile, counted=naive_run.global_reads / tiled_run.global_reads)

# %% tags=["explain"]
assert tiled_run == simulators.tiled_traffic(rows, rows, rows, tile=tile)
print(f"shared memory of a block: {tiled_run.shared_block_bytes:,} bytes, two tiles of {tile} x {tile} x 4")
for name, run in (("naive", naive_run), ("tiled", tiled_run)):
    print(f"{name}: {run.macs_per_global_byte:.3f} MAC for each byte of global memory")

# %% [markdown] tags=["explain"]
# The reads have not gone; they have moved to a memory that is near and fast. In global memory an element is now read $n / t$ times
# instead of $n$, so the intensity is $t/4$ FLOP/B with tiles of side $t$ in float32 (the writes of $C$ left out).
#
# What if you forget a barrier? On a GPU the result is wrong, now and then. Here it is refused:


# %%
def without_a_barrier(thread, a, _b, c):
    a_tile = thread.shared("a_tile", thread.tile, thread.tile)
    a_tile[thread.thread_row, thread.thread_column] = a[thread.row, thread.column]
    c[thread.row, thread.column] = a_tile[thread.thread_row, 0]
    yield


try:
    simulators.count_traffic(without_a_barrier, 4, 4, 4, tile=4)
except simulators.KernelError as error:
    print(error)

# %% [markdown]
# How large must a tile be? Move the slider. The points are products of side 4096 whose every global access goes to main memory;
# solid roofs are those of your machine, dashed ones those that the datasheet of an RTX 3090 promises.

# %%
side_of_c, steps = 4096, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def tiled_points(tile):
    points = []
    for one in sorted({steps[0], tile, steps[-1]}):
        traffic = simulators.tiled_traffic(side_of_c, side_of_c, side_of_c, tile=one)
        work = roofline.Workload(f"tile {one}", units.flops_from_macs(traffic.macs), traffic.global_bytes)
        points.append(roofline.model(work, limits, level=memory.name))
    promised_rtx = roofline.datasheet_roof(rtx)
    return plotting.draw_roofline(limits, points, datasheet=promised_rtx, title=f"Tiles of {tile} x {tile}")


helpers.interactive_figure(
    tiled_points,
    {"tile": steps},
    views=[{"tile": 4}, {"tile": 64}],
    alt=lambda tile: (
        f"Roofline with products in tiles of 1, {tile} and 512: the larger the tile, the further right the point. "
        "The dashed roof of an RTX 3090 has a ridge point of its own."
    ),
)

# %%
rtx_ridge = hardware.ridge_flops_per_byte(rtx, "float32")
needed_tile = 4 * rtx_ridge
print(f"an RTX 3090 has its ridge at {rtx_ridge:.0f} FLOP/B, so tiles of {needed_tile:.0f} x {needed_tile:.0f}")
tiles_bytes = 2 * 4 * round(needed_tile) ** 2
print(f"two such tiles: {tiles_bytes:,} bytes; a core has {rtx.core_shared_bytes:,} of shared memory")
print(f"a block of 1,024 threads, one an element: a tile of {1024**0.5:.0f} x {1024**0.5:.0f}")

# %% [markdown]
# (A core of a GPU, which NVIDIA calls a [streaming multiprocessor](glossary.md#multiprocessor), runs a whole block; on NVIDIA's a block has at most 1,024 threads.)
# So tiles of one element a thread cannot reach that roof from main memory alone. Fast products let each thread compute a small tile
# of its own, in registers: the same idea again, one level nearer. (L2, which keeps tiles for neighbouring blocks, helps as well.)

# %% [markdown] tags=["slide"] minutes=1
# ## Part 6: the same product, by its time
#
# Five programs, one product, one thread of the CPU. How far is the naive one from the library's?
#
# | program | what it does |
# |---|---|
# | naive | the order i, j, k: down a column of $B$ |
# | interchanged | the order i, k, j: along a row of $B$ |
# | tiled | interchanged, in blocks |
# | registers | a block of $C$ stays in registers |
# | torch.matmul | the library |
#
# They are C++ of the course, in `helpers/studies/matrix_product/products.cpp`; the first two differ in the order of two loops.

# %% [markdown]
# A model of the ratio: the library fills a vector register with several numbers and starts two such multiply-accumulates a cycle.
# The naive program adds to one number: each multiply-accumulate waits for the one before, and one takes 4 cycles (so many take
# both on AMD's Zen 3 and on Intel's, says [AnandTech](https://www.anandtech.com/show/16214/amd-zen-3-ryzen-deep-dive-review-5950x-5900x-5800x-and-5700x-tested/6)).
# So the ratio is [lanes](glossary.md#lane) x 2 x 4, with no wait for data at all.

# %% tags=["predict"]
naive_ratio = helpers.predict("How many times longer does the naive C++ program take than torch.matmul, side 240?", "x")
naive_ratio

# %% tags=["run", "nbval-ignore-output"]
lanes = {"AVX2": 8, "AVX512": 16}.get(torch.backends.cpu.get_cpu_capability(), 4)
programs = None
try:
    programs = matrix_product.measure_products(240, device="cpu", budget_s=2)
except native.NativeError as error:
    print(f"not measured here: {error}")
programs

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
speedups = {row.name: row.speedup for row in programs.products} if programs else {}
naive_ratio.reveal(modelled=lanes * 2 * 4, measured=speedups.get("torch.matmul"))

# %% tags=["explain"]
claim = "with two loops exchanged the product takes less time"
if programs:
    programs.comparison.claim(claim, "interchanged", at_most=1 / 2)
else:
    timing.claim(claim, None, at_most=1 / 2)

# %% [markdown] tags=["explain"]
# Where the model asks for far more than was measured, its naive program is too slow. Look at the sum again: it is a chain, but
# the *next* element of $C$ is another chain, which waits for nothing. A core reads some hundred instructions ahead and begins it
# while the first still runs. The shorter the chains, the more of them overlap. Here is that sum alone, without the walk down a
# column. Each row of the table does the same number of multiply-accumulates:

# %% tags=["run"]
SUMS = """
#include <cstdint>
extern "C" void sums(const float* x, float* c, int64_t k, int64_t many) {
    for (int64_t j = 0; j < many; ++j) {
        float sum = 0;
        for (int64_t p = 0; p < k; ++p) sum += x[p] * x[p + j % 16];
        c[j % 16] = sum;
    }
}"""
macs, lengths = 240_000, (4000, 1000, 240, 60, 15)
print(f"{macs:,} multiply-accumulates in {', '.join(f'{macs // k:,} sums of {k:,}' for k in lengths)}")

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
chains = None
try:
    library = native.compile_cpp(SUMS)
    sums = library.function("void sums(const float* x, float* c, int64_t k, int64_t many)")
    x, c = torch.rand(4016), torch.empty(16)
    chains = timing.compare(
        {f"sums of {k}": lambda k=k: sums(x, c, k, macs // k) for k in lengths}, device="cpu", precision=0.05
    )
    mac_s = {row.name: row.median_s / macs for row in chains.candidates}
    overlapped = mac_s["sums of 240"] * programs.products[-1].rate_flops_per_s / 2
    print(results.printed(pd.DataFrame({"mac_s": mac_s})))
    print(f"sums of 240 against the library's rate: {overlapped:.0f} times")
except native.NativeError as error:
    print(f"not measured here: {error}")

# %% tags=["explain"]
ratio = chains.candidate("sums of 15").time_ratio if chains else None
timing.claim("in sums of 15 a multiply-accumulate takes less time than in sums of 4,000", ratio,
             at_most=0.8, evidence=chains or ())  # fmt: skip

# %% [markdown] tags=["explain"]
# Both assumptions about the sum can fail. A step need not take 4 cycles: where the compiler takes the multiplication out of the
# chain, only the addition waits, on a Zen 3 for 3 cycles ([LLVM's model of
# it](https://github.com/llvm/llvm-project/blob/main/llvm/lib/Target/X86/X86ScheduleZnver3.td)). And in sums of 240, as in our
# product, a core may run several at once. The last line above has the time of these sums and the library's rate, both as
# measured, in place of 4 cycles and two vectors a cycle: it should come nearer to the five programs. The walk down the column is
# not in it.
#
# Why does the exchange help? `census`
# counts the instructions of the compiled programs, in the whole of each function. "Packed" arithmetic works on a whole vector
# register ([SIMD](glossary.md#simd)); an "fma" is a multiplication and an addition in one instruction.

# %% tags=["look", "nbval-ignore-output"]
censuses = {}
try:
    library = native.compile_cpp(matrix_product.cpu_source(tile=64))
    censuses = {name: native.census(library, function=f"{name}_product") for name in ("naive", "interchanged")}
except native.NativeError as error:
    print(f"not counted here: {error}")
fields = ("scalar_fmas", "packed_fmas", "scalar_adds", "packed_adds", "vector_bits")
pd.DataFrame({name: {field: getattr(one, field) for field in fields} for name, one in censuses.items()})

# %% [markdown] tags=["explain"]
# The compiler may not add in another order, for rounding would change the result. The naive sum is one chain, so it stays
# scalar. The interchanged loop adds to many different elements of $C$, in any order it likes.
#
# All this was about instructions. There can be a wait for memory as well, and it would make the naive program slower still.

# %% [markdown]
# ### Sixteen more columns
#
# The side was 240. What changes with 256, a power of two?
#
# The work grows by $(256/240)^3$, so a little. But a cache keeps a line only in the one set that its address
# names. Down a column of a matrix of side $n$ the addresses are $4n$ bytes apart. Here is a cache of 32 KiB with 8
# [ways](glossary.md#ways), which has room for 512 lines. The program walks down a column of $n$ lines, and down it again:

# %% tags=["predict"]
still_there = helpers.predict("Side 256: how many of the 256 lines are still in the cache on the second walk?", "lines")
still_there

# %% tags=["run"]
level = simulators.CacheLevel(size_bytes=32 * 1024, line_bytes=64, ways=8)
for rows_of_b in (240, 256):
    column = simulators.strided(rows_of_b, stride_bytes=4 * rows_of_b)
    twice = simulators.simulate_caches(simulators.join_streams([column, column]), [level])
    print(f"side {rows_of_b}: {twice.levels[0].hits} of {rows_of_b} lines are still there")

# %% tags=["look"]
stride_lines = 4 * 256 // level.line_bytes
sets_used = level.sets // stride_lines
room = sets_used * level.ways
print(f"{level.sets} sets, and a stride of {stride_lines} lines uses {sets_used}: room for {room}")
still_there.reveal(modelled=256 if room >= 256 else 0, simulated=twice.levels[0].hits)

# %% tags=["explain", "nbval-ignore-output"]
if programs:
    larger = matrix_product.measure_products(256, device="cpu", budget_s=1)
    times_s = [one.comparison.candidate("naive").minimum_s for one in (programs, larger)]
    print(f"naive, side 256 over side 240: work {(256 / 240) ** 3:.2f} times, time {times_s[1] / times_s[0]:.2f} times")

# %% [markdown] tags=["explain"]
# With a stride of a power of two all lines of a column crowd into a few sets. The model: where they do not all have room, each has
# been driven out by later ones before the second walk comes back to it. With 240 they spread over all sets. If your processor's
# first cache has another size or other rules, you may see less of it. Sides that are powers of two are
# common in deep learning; libraries copy the tiles that they work on to places of their own, and so does a kernel with shared
# memory.
#
# **On CUDA** the two kernels of Part 5 are C++ as well. Without a GPU the compiler still tells how many loads stand in
# each program for a multiply-accumulate: 2 in the naive one, $2/t$ in the tiled one.

# %% tags=["look", "nbval-ignore-output"]
instructions = None
try:
    instructions = matrix_product.count_instructions(tile=16, architectures=["sm_90"])
except native.NativeError as error:
    print(f"not counted here: {error}")
instructions

# %% tags=["explain"]
expected_loads = {"naive": 2, "tiled": 2 / 16}
print(f"global loads for a multiply-accumulate: {expected_loads}")
for row in instructions.kernels if instructions else ():
    assert row.loads_per_multiply_add_ratio == expected_loads[row.kernel]

# %% [markdown] tags=["slide"] minutes=1
# ## Part 7: threads and precision
#
# Two ways to raise the flat roof of a CPU: more cores, narrower numbers.
#
# A model of threads: two threads on two cores compute twice as fast. It says nothing of the slope: one core alone may already
# take most of what main memory gives.

# %% tags=["predict", "slide-output"]
two_threads = helpers.predict("How many times as fast is a product of side 1024 with two threads of the CPU?", "x")
two_threads

# %% tags=["run", "nbval-ignore-output"]
cpu_a, cpu_b = a.cpu(), b.cpu()


def with_threads(threads):
    with timing.fixed_threads(threads):
        return cpu_a @ cpu_b


by_threads = helpers.compare(
    {"one": lambda: with_threads(1), "two": lambda: with_threads(2)}, device="cpu", budget_s=2, precision=0.05
)
by_threads

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
cores = helpers.machine_card().usable_cores or 1
two_threads.reveal(modelled=min(2, cores), measured=1 / by_threads.candidate("two").time_ratio)

# %% tags=["explain"]
by_threads.claim("two threads take nearly half of the time of one, or more", "two", at_least=0.45)

# %% [markdown] tags=["explain"]
# Where it falls short of the model: two "cores" may be two threads of one core that share its arithmetic units, other programs may
# want a core as well, and two threads must be started and waited for. On a busy machine two threads may even be slower than one.
# Lesson 03 comes back to this.
#
# Now the width of the numbers. A vector register holds half as many float64 as float32:

# %% tags=["predict"]
double_time = helpers.predict("How many times longer does the product of side 1024 take in float64 on the CPU?", "x")
double_time

# %% tags=["run", "nbval-ignore-output"]
wide_a, wide_b = cpu_a.double(), cpu_b.double()
by_width = helpers.compare(
    {"float32": lambda: cpu_a @ cpu_b, "float64": lambda: wide_a @ wide_b}, device="cpu", budget_s=1.5, precision=0.05
)
by_width

# %% tags=["look", "nbval-ignore-output"]
double_time.reveal(modelled=64 / 32, measured=by_width.candidate("float64").time_ratio)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
peaks = pd.DataFrame({"peak_flops_per_s": limits.peak_flops})
results.printed(peaks)

# %% tags=["explain"]
by_width.claim("a product in float64 takes longer than in float32", "float64", at_least=1.5)

# %% [markdown] tags=["explain"]
# Are your float16 and bfloat16 faster than float32, or slower? Without units for a narrow number a processor must turn it into
# float32 and back. The card of lesson 00 says whether yours has some (AVX-512 BF16 or FP16, AMX). A unit alone decides nothing:
# the library must also have a program for it, and for these sizes; we have seen bfloat16 at half the rate of float32 on a
# processor with AVX-512 BF16, and do not know why. Half the bytes still help an operator that waits for data. So precision moves
# both roofs, each by what hardware and library were built for.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 8: where the roofline is wrong
#
# LeNet on one image: how many times longer than its roofline?
#
# Each layer's operations and bytes are counted, each gets its time from the roof of the smallest memory level that its
# [working set](glossary.md#working-set) fits, and the times are added.

# %% tags=["predict"]
beyond_roofline = helpers.predict("How many times longer than its roofline does LeNet take for one image?", "x")
beyond_roofline

# %% tags=["run"]
lenet = helpers.LeNet().to(device).eval()
image = torch.rand(1, 1, 28, 28, device=device)
layers = roofline.roofline(lenet, image, limits, budget_s=0.5)
roofs_s = sum(max(row.point.compute_s, row.point.memory_s) for row in layers.layers)
one_image = helpers.measure(lambda: lenet(image), budget_s=0.5)
print(f"{len(layers.layers)} layers have a place on the roofline")

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_roofline(limits, layers.layers, title="LeNet, one image: layers")
alt = "Roofline with the layers of LeNet: each layer has a hollow modelled point and a solid measured one, joined by a line."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output"]
beyond_roofline.reveal(modelled=layers.modelled_s / roofs_s, measured=one_image.median_s / roofs_s)

# %% tags=["explain"]
timing.claim(
    "one image takes far longer than its roofline",
    one_image.median_s / roofs_s,
    at_least=5,
    evidence=[one_image, roofs],
)

# %% [markdown] tags=["explain"]
# The roofline promised a time that no run comes near. What did it leave out? Not arithmetic, not bytes: the call itself. Before an
# operator computes anything, Python calls PyTorch, PyTorch looks at types and shapes, makes a tensor for the result, and picks a
# kernel. `limits.call_overhead_s` is that for an addition of two numbers. The "modelled" number above, and the hollow points,
# hold it once for each layer. But a convolution has more to prepare than an addition.
#
# So measure what a call of each kind costs when there is next to nothing to compute: each layer on the least input that it takes,
# first again and again by itself, then all of them in turn.

# %% tags=["run", "nbval-ignore-output"]
least = {
    "conv1": (1, 1, 5, 5),
    "conv2": (1, 6, 5, 5),
    "pool": (1, 1, 2, 2),
    "fc1": (1, 256),
    "fc2": (1, 120),
    "fc3": (1, 60),
}
inputs = {row.layer: torch.rand(least.get(row.layer, least["pool"]), device=device) for row in layers.layers}
in_order = [(lenet.get_submodule(name), x) for name, x in inputs.items()]
alone = [helpers.measure(lambda layer=layer, x=x: layer(x), budget_s=0.2) for layer, x in in_order]
in_turn = helpers.measure(lambda: [layer(x) for layer, x in in_order], budget_s=0.5)
results.printed(pd.DataFrame({"call_s": {name: one.median_s for name, one in zip(inputs, alone, strict=True)}}))

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2
alone_s = sum(one.median_s for one in alone)
print(f"the roofs alone:               {units.text(roofs_s, 's')}")
print(f"with an addition's overhead:   {units.text(layers.modelled_s, 's')}")
print(f"with each layer's own call:    {units.text(roofs_s + alone_s, 's')}")
print(f"with these calls in turn:      {units.text(roofs_s + in_turn.median_s, 's')}")
print(f"measured:                      {units.text(one_image.median_s, 's')}")

# %% tags=["explain"]
timing.claim(
    "the roofs and the calls in turn are most of the time of an image",
    one_image.median_s / (roofs_s + in_turn.median_s), at_least=0.8, at_most=2, evidence=[one_image, roofs, in_turn],
)  # fmt: skip

# %% [markdown] tags=["explain"]
# The same call takes longer in turn with others than by itself: between two calls of a layer the others have used the caches, and
# what the processor had learnt of the layer's code. What is left after that may be work that the layers do off their roofs
# (see below), the Python of the network's own `forward`, and new memory for each result.
#
# Most of this network's time on one image is that of its calls. A processor with twice the peak would hardly help it. Fewer calls
# would (fusing operators, compiling the model), and so would more work for each call. Hold the second to a test: with a larger
# batch the calls stay, the work grows, and the roofline must come nearer.

# %% tags=["predict"]
batch_ratio = helpers.predict(
    "For a batch of 256 images, how many times longer than its roofline does LeNet take?", "x"
)
batch_ratio

# %% tags=["run"]
images = torch.rand(256, 1, 28, 28, device=device)
many_layers = roofline.roofline(lenet, images, limits, budget_s=0.3)
many_roofs_s = sum(max(row.point.compute_s, row.point.memory_s) for row in many_layers.layers)
many_images = helpers.measure(lambda: lenet(images), budget_s=0.5)
print(f"{sum(row.flops for row in many_layers.layers):,} FLOP in {len(many_layers.layers)} layers")

# %% tags=["look", "nbval-ignore-output"]
batch_ratio.reveal(
    modelled=(many_roofs_s + in_turn.median_s) / many_roofs_s, measured=many_images.median_s / many_roofs_s
)

# %% tags=["explain"]
nearer = (many_images.median_s / many_roofs_s) / (one_image.median_s / roofs_s)
timing.claim(
    "a batch comes nearer to its roofline than one image",
    nearer,
    at_most=1 / 2,
    evidence=[one_image, many_images, roofs],
)

# %% [markdown] tags=["explain"]
# Nearer, and not there. Ask the layers which of them took the time:

# %% tags=["look", "nbval-ignore-output"]
fields = ["kind", "regime", "modelled_s", "measured_s", "time_ratio"]
by_layer = pd.DataFrame([row.to_dict() for row in many_layers.layers]).set_index("layer").rename_axis(None)[fields]
results.printed(by_layer.sort_values("measured_s", ascending=False).head(5))

# %% [markdown] tags=["explain"]
# The roofline holds three promises that a small network breaks:
#
# - **Every operator reaches a roof.** The peak was measured with a large product; a convolution with 6 filters does not fill the
#   vectors. The bandwidth was measured with a plain stream; max pooling compares the numbers of a window: see how far it lies from
#   its roof where the table above has it.
# - **Only the counted bytes move, and once.** A convolution may copy its input first. PyTorch's max pooling also writes down where
#   each maximum stood, which our count leaves out.
# - **Nothing takes time but arithmetic and data.** You have just seen the calls.
#
# The roofline is a bound. Far below it, ask what the bound leaves out; it tells you how much there is to win.

# %% [markdown]
# The [exercises](exercises/02_compute_and_roofline_exercises.ipynb) let you write the model, a kernel, and the batch that
# reaches the ridge point.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. An operator takes at least the time of its bytes and that of its operations.
# 2. Tiles cut the bytes; independent chains keep the units busy.
# 3. Small operators pay for the call.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | growth | $v(t) = v_0\,2^{(t - t_0)/d}$ | a value $v$ that doubles in $d$ years |
# | AND gates of a multiplier | $b^2$ | $b$ bits |
# | arithmetic intensity $I$ | $I = \text{FLOP} / \text{bytes}$ | any operator |
# | attainable rate | $\min(P,\; I\,B)$ | peak $P$, bandwidth $B$ |
# | ridge point | $P / B$ | a machine |
# | time, roofline | $\max(\text{FLOP}/P,\; \text{bytes}/B)$ | at least |
# | time with overhead, CPU | $\text{roofline} + \text{calls} \cdot t_{call}$ | small operators |
# | global reads, naive | $2\,m\,n\,k$ | a product of $m \times k$ and $k \times n$ |
# | global reads, tiled | $2\,m\,n\,k / t$ | tiles of $t \times t$ that divide $m$ and $n$ |
# | intensity, tiled | $t / 4$ FLOP/B | float32, writes left out |
# | library over one chain | $\text{lanes} \cdot \text{units} \cdot \text{latency}$ | less where chains overlap |
