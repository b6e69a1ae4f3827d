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
#     number: "01"
#     title: Memory hierarchy
#     needs: ["00"]
#     objectives:
#       - find|found the sizes of the caches on a curve of latency
#       - model|modelled a transfer from the latency and the bandwidth of its link
#       - count|counted the lines of memory that an order, a stride or an alignment moves
#       - tell|told how the memory of a GPU differs from that of a CPU, from published figures
#       - compute|computed the energy of an inference, arithmetic and memory apart
# ---

# %% [markdown] tags=["objectives"]
# # Memory hierarchy
#
# Add up the same numbers twice: once in the order in which they lie in memory, once in another order. The additions are the same,
# and so is the sum. Yet one takes many times as long, and no count of operations says so. The reason lies on the way: every level
# of memory between the [registers](glossary.md#register) and the disk, each [cache](glossary.md#cache) too, has a [latency](glossary.md#latency), the wait
# for the first byte, and a [bandwidth](glossary.md#bandwidth), the rate of those that follow. This lesson measures them on the
# machine under your notebook.
#
# PyTorch gets one thread here, so that you see the memory as one core sees it; Part 7 adds the others. Outputs that you see
# below were printed on another machine. Clear them (Edit, Clear Outputs of All Cells), restart the kernel, and predict before you run.

# %%
import mmap

import numpy as np
import pandas as pd
import torch
from torch import nn

import helpers
from helpers import access, hardware, native, operations, plotting, results, simulators, timing, units

torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
KIB, MIB = 2**10, 2**20

# %% [markdown] tags=["slide"] minutes=1
# ## Part 1: inside a processor
#
# A CPU spends its area on making one thread fast: prediction, reordering, large caches. A GPU spends it on arithmetic, and
# hides the wait for memory behind other threads.

# %% tags=["slide", "slide-output"] minutes=1
drawn = plotting.draw_dies()
alt = "Two squares: the CPU's is mostly caches and control, in four large cores; the GPU's mostly arithmetic, in many."
plotting.show(drawn, alt=alt)

# %% [markdown]
# It is a drawing: no processor has exactly these shares. What it shows is the choice. A unit of arithmetic is small; what brings
# its operands in time is not. The rest of this lesson asks what that wait costs.

# %% [markdown] tags=["slide"] minutes=1
# ### What went wrong here?
#
# A lecture's card of a GeForce RTX 3090 said: 24 GB of L2 cache, and 10,496 threads.
#
# (The lecture is "Hardware Ecosystem", Cambridge, 2022.) One of the two lines can be refuted without looking anything up but a
# number of transistors. A bit of cache takes six transistors; the whole chip, GA102, has 28.3 billion ([NVIDIA, "Ampere GA102 GPU
# Architecture"](https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf)).

# %% tags=["predict"]
too_large = helpers.predict("How many times too large are 24 GB for the L2 cache of this card?", "x")
too_large

# %% [markdown]
# A lower bound comes from the transistors: a cache takes no more than the whole chip. The course's table of devices, in which each
# figure carries the page where it was read, has the rest.

# %% tags=["run"]
claimed_bytes, chip_transistors = 24 * 10**9, 28.3e9
chips = claimed_bytes * 8 * 6 / chip_transistors
rtx_3090 = hardware.device("GeForce RTX 3090")
print(f"a cache of 24 GB takes the transistors of {chips:.0f} such chips")
print(f"L2 {rtx_3090.l2_bytes:,} B, memory {rtx_3090.memory_bytes:,} B")
print("L2 from:", rtx_3090.fact("l2_bytes").source.title)

# %% tags=["look"]
source = rtx_3090.fact("l2_bytes").source.title
too_large.reveal(modelled=chips, published=claimed_bytes / rtx_3090.l2_bytes, source=source)

# %% [markdown] tags=["explain"]
# The 24 GB are the card's DRAM, beside the chip: the last level of the hierarchy was taken for the second. And
# the threads? A GPU's cores are called [multiprocessors](glossary.md#multiprocessor). The [CUDA C++ Programming
# Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities) (compute capability 8.6) gives
# each of them 128 float32 units and room for 1,536 threads.

# %% tags=["explain", "slide", "slide-output"] minutes=1
multiprocessors, units_each, threads_each = rtx_3090.cores, 128, 1536
print(f"CUDA cores: {multiprocessors} x {units_each} = {multiprocessors * units_each:,}")
print(f"threads at once: {multiprocessors} x {threads_each} = {multiprocessors * threads_each:,}")
print(f"threads for each unit: {threads_each // units_each}")

# %% [markdown] tags=["explain"]
# 10,496 are the arithmetic units, which NVIDIA calls CUDA cores. The threads are twelve times as many, and that is the point of a
# GPU: while some wait for memory, others compute. A CPU core has mostly one thread or two, and must avoid the wait instead.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 2: fresh pages
#
# `x * 2` makes a new tensor; `torch.mul(x, 2, out=kept)` writes into an old one. The arithmetic is the same. How many times longer
# does the new one take?
#
# Lesson 00 called `steady_allocator` and promised to show what it is worth. Here it has not been called yet.

# %% tags=["predict"]
fresh_ratio = helpers.predict("How many times longer does x * 2 take in new memory than in memory used before?", "x")
fresh_ratio

# %% [markdown]
# A model by bytes: the operation reads `x` and writes the result. The system may not hand out a page with another program's data
# in it, so it writes zeros into new memory first. That is three passes over 64 MiB in place of two.

# %% tags=["run", "slide-code"]
x = torch.ones(64 * MIB // 4)
kept = torch.zeros_like(x)
ways = {
    "memory used again": lambda: torch.mul(x, 2, out=kept),
    "new memory": lambda: x * 2,
}
faults = {name: access.count_faults(way).minor for name, way in ways.items()}
before = helpers.compare(ways, budget_s=2, device="cpu", precision=0.05)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
fresh_ratio.reveal(modelled=3 / 2, measured=before.candidate("new memory").time_ratio)

# %% tags=["look", "nbval-ignore-output"]
pages = x.nbytes // mmap.PAGESIZE
print(f"{x.nbytes:,} bytes are {pages:,} pages of {mmap.PAGESIZE:,} bytes")
results.printed(pd.DataFrame({"page faults": faults}))

# %% tags=["explain"]
before.claim("new memory saves no time", "new memory", at_least=0.9)
used_again = faults["memory used again"]
assert used_again is None or used_again < pages / 10

# %% [markdown] tags=["explain"]
# A [page fault](glossary.md#page-fault) is why. The allocator promises memory; the system brings a page only when something
# touches it, page by page, each time with a trap into the kernel, a page to find, to clear and to enter into the table. What was
# measured beyond the model's 1.5 is that work. (If there are far fewer faults than pages, your system brings pages of 2 MiB:
# "transparent huge pages".)
#
# glibc, the C library of most Linux systems, gives a freed block of this size back at once, so the next call starts on fresh pages
# again. Ask it to keep them (on another system the setting says that nothing was changed):

# %% tags=["run", "nbval-ignore-output"]
setting = helpers.steady_allocator()
for _ in range(12):  # the heap finds its shape
    ways["new memory"]()
faults_after = {name: access.count_faults(way).minor for name, way in ways.items()}
after = helpers.compare(ways, budget_s=2, device="cpu", precision=0.05)
setting

# %% tags=["look", "nbval-ignore-output"]
ratios = [compared.candidate("new memory").time_ratio for compared in (before, after)]
rows = {"page faults": [faults["new memory"], faults_after["new memory"]], "time ratio": ratios}
results.printed(pd.DataFrame(rows, index=["default allocator", "memory kept"]))

# %% tags=["explain"]
timing.claim(
    "where freed memory is kept, new memory takes little longer",
    ratios[1] if setting.changed else None, at_most=1.5, evidence=after if setting.changed else (),
)  # fmt: skip

# %% [markdown] tags=["explain"]
# The same operation, the same bytes, and another time: a measurement that did not know of the pages would have called it slow
# arithmetic. PyTorch's allocator on a GPU keeps freed memory because new memory is slow to get there as well. The price: the
# process keeps its peak. From here on this process keeps its memory, so the first measurement of this part, run again, shows no
# faults any more. To see both halves again call `access.measure_fresh_pages()`: it starts a new process for each, and takes
# about ten seconds.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 3: the whole system
#
# - Latency: how long until the first byte is there.
# - Bandwidth: how many bytes a second follow.
#
# `probe` measures both for each level of memory: latency by a chain of loads in which each address comes out of the load before, so
# that none can start early; bandwidth by long runs over arrays. It takes some ten seconds, more on a
# busy machine, and is kept for the next time.

# %% tags=["predict"]
last_to_first = helpers.predict("How many times longer does a load from main memory take than one from L1?", "x")
last_to_first

# %% tags=["run"]
limits = helpers.probe(device="cpu")
levels = limits.memory_levels
sizes = [level.size_bytes for level in levels if level.size_bytes]
assert sizes == sorted(sizes)  # each level holds more than the one before it

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_hierarchy(levels)
alt = "A pyramid of the memory levels, the smallest and fastest at the top, with size, latency and bandwidth."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["look"]
# Is there a model? A signal needs time for its way, and a store with $n$ bits laid out flat has a side of $\sqrt n$. So geometry
# alone says: latency grows with the root of the size.

# %% tags=["look", "nbval-ignore-output"]
first, last = levels[0], levels[-1]
known = first.latency_s and last.latency_s
by_geometry = (last.size_bytes / first.size_bytes) ** 0.5 if first.size_bytes and last.size_bytes else None
if known or by_geometry:
    last_to_first.reveal(modelled=by_geometry, measured=last.latency_s / first.latency_s if known else None)

# %% tags=["explain"]
slower = last.latency_s / first.latency_s if known else None
evidence = limits.resting_on(f"{first.name} latency", f"{last.name} latency")
timing.claim("a load from main memory takes longer than one from the first cache",
             slower, at_least=5, evidence=evidence if known else ())  # fmt: skip

# %% [markdown] tags=["explain"]
# Geometry is far too pessimistic from end to end: even the first level must compare tags and pass the pipeline, a fixed time, and
# DRAM is denser than cache. But it explains why there is a hierarchy at all. No memory can be both large and near, so a machine
# has a small near one for what is used often, and larger ones behind it.
#
# If a level shows "unknown", the notes say what was missing:

# %% tags=["explain", "nbval-ignore-output"]
limits

# %% [markdown]
# Between the levels, and beyond them, are links: from the disk, to the [page cache](glossary.md#page-cache), from memory to memory, over the bus to a GPU,
# through the network's software. Before you see them: a read of 4 KiB from the disk of this machine.

# %% tags=["predict", "slide", "slide-output"] minutes=0.5
loads_in_read = helpers.predict(
    "How many loads from main memory fit into the time of one 4 KiB read from the disk?", "loads"
)
loads_in_read

# %% tags=["run"]
system = access.measure_links(file_bytes=32 * MIB, limits=limits, budget_s=0.1)
drawn = plotting.draw_links([link for link in system.links if link.bandwidth_bytes_per_s])
alt = (
    "Two panels with a point a link: bandwidth and latency of disk, page cache, memory and caches, on logarithmic axes."
)
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["look"]
# The model takes the bandwidth alone: 4 KiB divided by the disk's bytes a second.

# %% tags=["look", "nbval-ignore-output"]
disk = system.link("disk")
load_s = limits.memory.latency_s or 100e-9
basis = "measured" if limits.memory.latency_s else "a rule of thumb, for nothing here can chase a pointer"
print(f"a load from main memory: {units.text(load_s, 's')} ({basis})")
print(f"a word: {system.pointer_bits} bits, a vector: {system.simd_bits} bits, a line: {system.line_bytes} bytes")
print(f"reads of 4 KiB, one at a time: {units.text(4 * KIB / disk.latency_s, 'B/s')}")

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=0.5
by_bandwidth = 4 * KIB / disk.bandwidth_bytes_per_s / load_s
loads_in_read.reveal(modelled=by_bandwidth, measured=disk.latency_s / load_s)

# %% tags=["explain"]
assert all(link.bandwidth_bytes_per_s or link.note for link in system.links)
print(f"{len(system.links)} links, each measured or with the reason why it was not")

# %% [markdown] tags=["explain"]
# A small read pays for the way, not for its bytes. Bandwidth is reached only with large requests, or with many at once. What this
# machine has no hardware for is in the table with its reason:

# %% tags=["explain", "nbval-ignore-output"]
system

# %% [markdown] tags=["slide"] minutes=2
# ## Part 4: moving a model to a device
#
# $t = n\,\alpha + \text{bytes} \cdot \beta$: each of $n$ tensors pays the latency $\alpha$, each byte $\beta$, one over the bandwidth.
#
# On CUDA a model moves over the bus. Without a GPU we copy its weights from memory to memory: the same calls, another link. First,
# two calls that look alike and are not:

# %%
rows, layer = torch.ones(1, 3), nn.Linear(3, 3)
rows.to("meta")
layer.to("meta")
print(f"the tensor is on {rows.device}, the layer on {layer.weight.device}")
try:
    layer(rows)
except RuntimeError as error:
    print(f"{type(error).__name__}: they are on different devices")

# %% [markdown]
# `Tensor.to` returns a copy, which is lost unless you keep it; `Module.to` moves the module itself. ("meta" is PyTorch's device
# without memory, so you can see this on any machine.)
#
# Now the time. One network has many small tensors, the other one large and one small. For $\alpha$ we time the smallest transfer
# that there is, one number; $\beta$ is one over the link's bandwidth, from Part 3.

# %%
models = {
    "50 layers of 16": nn.Sequential(*(nn.Linear(16, 16) for _ in range(50))),
    "one layer of 2048": nn.Linear(2048, 2048),
}
tensors = {name: [weight.detach() for weight in model.parameters()] for name, model in models.items()}
total = {name: sum(weight.nbytes for weight in weights) for name, weights in tensors.items()}
for name, weights in tensors.items():
    print(f"{name}: {len(weights)} tensors, {total[name]:,} bytes")

# %% tags=["predict"]
size_ratio = helpers.predict("How many times longer does the one layer take to copy than the fifty?", "x")
size_ratio

# %% tags=["run"]
link = system.link("host to device, pageable" if device == "cuda" else "memory to memory, 1 thread")
one_number = torch.ones(1)
alpha_s, bandwidth = helpers.measure(lambda: one_number.to(device, copy=True)).median_s, link.bandwidth_bytes_per_s
modelled_s = {name: len(weights) * alpha_s + total[name] / bandwidth for name, weights in tensors.items()}
copies = {name: lambda ws=weights: [w.to(device, copy=True) for w in ws] for name, weights in tensors.items()}
copied = helpers.compare(copies, budget_s=2, precision=0.05)

# %% tags=["look", "nbval-ignore-output"]
measured_s = {name: copied.candidate(name).median_s for name in tensors}
print(results.printed(pd.DataFrame({"modelled_s": modelled_s, "measured_s": measured_s})))
small, large = tensors
size_ratio.reveal(modelled=modelled_s[large] / modelled_s[small], measured=copied.candidate(large).time_ratio)

# %% tags=["explain"]
bytes_ratio = total[large] / total[small]
print(f"by bytes alone: {bytes_ratio:.0f} times")
copied.claim("the time grows by less than the bytes do", large, at_most=bytes_ratio / 2)

# %% [markdown] tags=["explain"]
# The fifty layers pay for calls, the one layer for bytes. Where the one layer is faster than its model, a part of its 16 MiB may
# still have been in a nearer cache; the link's bandwidth is that of a copy of 64 MiB. Two prices for each transfer: that is why a
# framework packs many small gradients into one buffer before it sends them (lesson 04).

# %% [markdown] tags=["slide"] minutes=1
# ## Part 5: find your caches
#
# Chase pointers through ever larger buffers. As long as the buffer fits a cache, a load takes that cache's time.
#
# First on a machine whose caches are known, because we made them up: a simulation that follows every load through three caches and
# adds up their times. Here it is, without its sizes.

# %%
machine = [simulators.CacheLevel(size, ways=8) for size in (8 * KIB, 64 * KIB, 512 * KIB)]
working_sets = [round(4 * KIB * 2 ** (step / 2) / 64) * 64 for step in range(17)]
simulated = simulators.simulate_latency(machine, [1e-9, 4e-9, 16e-9, 80e-9], working_sets)
drawn = plotting.draw_latencies(simulated.points, origin="simulated", title="A simulated machine")
plotting.show(drawn, alt="A staircase of four flat steps: the time of a load by working set, on a simulated machine.")

# %% tags=["predict"]
second_cache = helpers.predict("Read the plot: how large is the second cache of this machine?", "B")
second_cache

# %% tags=["run"]
found = hardware.find_change_points(simulated.points)
print("found on the curve:", ", ".join(units.text(size, "B", binary=True) for size in found))

# %% tags=["look"]
second_cache.reveal(modelled=machine[1].size_bytes, simulated=found[1])

# %% [markdown] tags=["explain"]
# The edge of a step is the last buffer that fits. `find_change_points` looks for the steepest rise of the simulated curve, and finds
# the sizes that the machine was given. The edge is so sharp because a chase goes round and round: one line too many, and the line that is
# thrown out, the [least recently used](glossary.md#least-recently-used), is always the one needed next. Play with a machine of your own. A cache of few
# [ways](glossary.md#ways) has a soft edge: its lines crowd some sets before all are full.


# %% tags=["run"]
def own_machine(first_KiB, second_KiB, ways):
    own = {"L1": first_KiB * KIB, "L2": second_KiB * KIB}
    caches = [simulators.CacheLevel(size, ways=ways) for size in own.values()]
    curve = simulators.simulate_latency(caches, [1e-9, 4e-9, 80e-9], working_sets[:-2]).points
    found = hardware.find_change_points(curve)
    return plotting.draw_latencies(
        curve, caches=own, change_points=found, origin="simulated", title="A machine of my own"
    )


helpers.interactive_figure(
    own_machine,
    {"first_KiB": [4, 8, 16, 32], "second_KiB": [64, 128, 256], "ways": [1, 2, 4, 8]},
    views=[{"first_KiB": 8, "second_KiB": 64, "ways": 8}, {"first_KiB": 16, "second_KiB": 256, "ways": 1}],
    alt=lambda first_KiB, second_KiB, ways: (
        f"Latency by working set with caches of {first_KiB} and {second_KiB} KiB, {ways} ways: "
        f"{'soft' if ways == 1 else 'sharp'} edges."
    ),
)

# %% [markdown] tags=["look"]
# Now your machine. The figure has no sizes in it yet. Where no compiler and no numba is at hand, nothing can chase a pointer fast
# enough: then the figure is the simulated one, and its legend says so.

# %% tags=["look", "slide", "slide-output"] minutes=1
curve = limits.latencies or simulated.points
origin = "measured" if limits.latencies else "simulated"
drawn = plotting.draw_latencies(curve, origin=origin)
alt = "The time of a load by working set: flat inside each cache, rising behind it, highest in main memory."
plotting.show(drawn, alt=alt)

# %% tags=["explain"]
slower = curve[-1].latency_s / curve[0].latency_s if limits.latencies else None
timing.claim("a load from the largest buffer takes longer than from the smallest",
             slower, at_least=2, evidence=limits.resting_on("latency curve") if slower else ())  # fmt: skip

# %% tags=["predict"]
first_cache = helpers.predict("Read the plot: how large is the first cache of your machine?", "B")
first_cache

# %% tags=["run", "nbval-ignore-output"]
found = hardware.find_change_points(curve)
by_system = {level.name: level.size_bytes for level in levels[:-1] if level.size_bytes}
caches = by_system if origin == "measured" else {}
print("on the curve:", ", ".join(units.text(size, "B", binary=True) for size in found))
print("by the system:", ", ".join(f"{name} {units.text(size, 'B', binary=True)}" for name, size in by_system.items()))
if found:
    first_cache.reveal(**{origin: found[0]})

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_latencies(curve, caches=caches, change_points=found, origin=origin)
alt = "The same curve with lines at the cache sizes that the system states and at those that were found on the curve."
plotting.show(drawn, alt=alt)

# %% tags=["explain"]
near = [size / stated for size in found for stated in list(caches.values())[:1]][:1]
timing.claim("the first size on the curve is that of the first cache by the system",
             near or None, at_least=1 / 2, at_most=2, evidence=limits.resting_on("latency curve") if near else ())  # fmt: skip

# %% [markdown] tags=["explain"]
# This is how one measures the size of a cache, and why the
# answer gets worse with each level: other programs share the last cache, a virtual machine may own a part of it only, its sets
# fill unevenly. And the processor keeps the addresses of pages in a small table of their own, the [TLB](glossary.md#tlb): where the
# buffer has more pages than that, there is another step. A busy machine adds steps that no cache has. And where the last cache is
# large and far from the core, a load from it takes nearly as long as one from main memory: then its step may not be found at all.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 6: bandwidth is not one over latency
#
# A line of 64 bytes arrives after the latency of main memory. So the bandwidth is 64 bytes over the latency. Is it?

# %% tags=["predict"]
memory_rate = helpers.predict("How many bytes a second does the triad a = b + s c reach in main memory?", "B/s")
memory_rate

# %% tags=["run"]
one_at_a_time = system.line_bytes / load_s
triad = hardware.compiled_triad(1)  # a text where nothing can be compiled
compiled = {} if isinstance(triad, str) else {size: triad(size) for size in (KIB * 4**power for power in range(2, 9))}
drawn = plotting.draw_bandwidths(limits.bandwidths, caches=by_system, kernels=["read", "triad"], compiled=compiled)
alt = "Bytes a second by working set: a compiled triad is fastest in the smallest arrays; PyTorch's operators, dashed, are not."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
rate = limits.memory.bandwidth_bytes_per_s
print(f"lines on their way at once: {rate / one_at_a_time:.0f}")
memory_rate.reveal(modelled=one_at_a_time, measured=rate)

# %% tags=["explain"]
in_flight = rate / one_at_a_time if limits.memory.latency_s else None
timing.claim("memory delivers more than one line per latency",
             in_flight, at_least=2,
             evidence=limits.resting_on(f"{last.name} latency", f"{last.name} bandwidth") if in_flight else ())  # fmt: skip

# %% [markdown] tags=["explain"]
# The model takes one line at a time, as the chase does, where each address waits for the load before. In a long run the processor
# knows the addresses early, asks for the next lines before it needs them (prefetching), and has many on their way at once. By
# [Little's law](glossary.md#littles-law) their number is the rate times the time: $\text{bandwidth} \cdot \text{latency} = \text{bytes
# in flight}$. The dashed curves are low on the left for another reason: there the call of a PyTorch operator takes longer than its
# data. The compiled loop repeats inside one call and shows the cache. Lesson 02 takes up both.

# %% [markdown] tags=["slide"] minutes=0.5
# ## Part 7: order, stride, direction, alignment
#
# Memory moves whole lines, on most machines of 64 bytes: 16 numbers of 4 bytes. Who uses one number of a line has moved all of it.
#
# Back to the sums of the beginning: the same 16,384 numbers, in sequence and in random order, through a cache of 8 KiB.

# %%
cache = [simulators.CacheLevel(8 * KIB, ways=8)]
shuffled = simulators.AddressStream(4 * np.random.default_rng(0).permutation(2**14))
for name, stream in {"in sequence": simulators.sequential(2**14), "random": shuffled}.items():
    run = simulators.simulate_caches(stream, cache)
    print(f"{name}: asked for {run.asked_bytes:,} bytes, moved {run.memory_read_bytes:,}")

# %% tags=["predict", "slide", "slide-output"] minutes=0.5
order_ratio = helpers.predict("64 MiB of numbers: how many times longer does the random order take?", "x")
order_ratio

# %% tags=["run"]
engine = "native" if limits.latencies else "torch"  # compiled loops, or PyTorch's where nothing can be compiled
order = access.compare_order(engine=engine, buffer_bytes=64 * MIB, budget_s=3)
lines_ratio = 2**24 / access.lines_touched(2**24, line_bytes=system.line_bytes)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
print(f"at most {lines_ratio:.0f} times the lines")
order_ratio.reveal(modelled=lines_ratio, measured=order.candidate("random").time_ratio)

# %% tags=["explain"]
order.claim("the random order takes longer", "random", at_least=1)

# %% [markdown] tags=["explain"]
# The model counts lines: in random order each number brings its own. Two things pull it in opposite directions. In sequence the
# loop may wait for its additions, not for memory, which makes the ratio smaller. At random there is no next address to fetch
# early and a page's entry must be looked up almost each time, which makes it larger. (64 MiB lie beyond the caches of most machines.
# Does your curve of Part 5 still rise behind them? Then a cache holds a part of them, and the ratio is a cache's.)
#
# ### Sequence against stride
#
# Read every second number only, every fourth, and so on. Half the numbers, half the time?

# %% tags=["predict"]
stride_ratio = helpers.predict("How many times longer does one number take at stride 16 than at stride 1?", "x")
stride_ratio

# %% tags=["run"]
sweep = access.sweep_stride((1, 4, 16, 32), engine=engine, buffer_bytes=64 * MIB, budget_s=0.8)
counted = pd.DataFrame({"lines": {row.stride: access.lines_touched(2**20, stride=row.stride) for row in sweep.rows}})
counted["numbers a line"] = 2**20 / counted["lines"]
results.printed(counted)

# %% [markdown] tags=["look"]
# The lines are those of a million numbers: up to stride 16 they grow with the stride, and then there is one number a line. The
# model gives each line the time that it takes at the bandwidth of reading 64 MiB (Part 6):

# %% tags=["look", "slide", "slide-output"] minutes=1
near = min(limits.bandwidths, key=lambda point: abs(point.working_set_bytes - sweep.buffer_bytes))
line_s = system.line_bytes / near.read_bytes_per_s
modelled_s = [line_s * row.lines / row.elements for row in sweep.rows]
numbers = {"modelled": modelled_s, "measured": [row.element_s for row in sweep.rows]}
names = [str(row.stride) for row in sweep.rows]
drawn = plotting.draw_three(
    names, numbers, unit="s", title="Time of one number read", xlabel="stride, in numbers of 4 bytes"
)
alt = "Bars by stride: the modelled time of one number grows with the stride up to 16, then stays; beside it the measured one."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output"]
by_stride = {row.stride: row.element_s for row in sweep.rows}
stride_ratio.reveal(modelled=16, measured=by_stride[16] / by_stride[1])

# %% tags=["explain"]
slower = by_stride[16] / by_stride[1]
timing.claim("one number costs more at stride 16 than at stride 1", slower, at_least=1, evidence=sweep)

# %% [markdown] tags=["explain"]
# A matrix that is stored by rows and read by columns is such a walk: of each line one number is used. Where the measured time
# lies above the model at stride 1, the loop itself may be the limit and not memory; where it does so at stride 32, the processor
# may guess the next lines worse, or fetch some that nobody asked for.
#
# ### Forward against backward

# %% tags=["predict"]
backward_ratio = helpers.predict("How many times as long as forwards does it take to read an array backwards?", "x")
backward_ratio

# %% tags=["run"]
direction = access.compare_direction(engine=engine, buffer_bytes=64 * MIB, budget_s=0.5)
forwards, backwards = (access.lines_touched(2**20, stride=stride) for stride in (1, -1))
print(f"lines forwards {forwards:,}, backwards {backwards:,}")

# %% tags=["look", "nbval-ignore-output"]
backward_ratio.reveal(modelled=backwards / forwards, measured=direction.candidate("backwards").time_ratio)

# %% tags=["explain"]
direction.claim("backwards takes about as long as forwards", "backwards", at_least=1 / 2, at_most=2)

# %% [markdown] tags=["explain"]
# The same lines move, and prefetchers follow a sequence in both directions, so on most machines the two are hard to tell apart.
# That used to be different for disks, which turn one way only (Part 10).
#
# ### Aligned against misaligned
#
# A number of 8 bytes is aligned where its address is a multiple of 8. A load that is not may lie across two lines.

# %% tags=["predict"]
split_ratio = helpers.predict("How many times as long as an aligned load does one across two lines take?", "x")
split_ratio

# %% tags=["run"]
places = {"aligned": 0, "misaligned, in one line": 4, "across two lines": 60}
touched = {name: access.lines_touched(1, element_bytes=8, offset_bytes=offset) for name, offset in places.items()}
print(touched)
every = access.lines_touched(2**12, stride=1, element_bytes=8, offset_bytes=4)
print(
    f"an array of 4,096 that starts 4 bytes late: {every} lines in place of {access.lines_touched(2**12, element_bytes=8)}"
)

# %% tags=["look", "nbval-ignore-output"]
try:
    alignment = access.compare_alignment(budget_s=0.6)
    split_ratio.reveal(modelled=2, measured=alignment.candidate("across lines").time_ratio)
except native.MissingToolError as error:
    alignment = None
    print(error)
alignment

# %% tags=["explain"]
timing.claim("a load across two lines saves no time",
             alignment and alignment.candidate("across lines").time_ratio,
             at_least=0.9, evidence=alignment or ())  # fmt: skip

# %% [markdown] tags=["explain"]
# Within a line, most processors of today charge nothing for misalignment. Across lines a load is two; across pages two addresses must be
# translated as well. So alignment matters where *every* load is split, as with wide vectors: one of 64 bytes that starts late is
# split always. PyTorch's allocator aligns what it hands out.

# %%
fresh = [torch.empty(size).data_ptr() % 64 for size in (1, 3, 100, 12345)]
print("where new CPU tensors start, modulo 64:", fresh)

# %% [markdown] tags=["slide"] minutes=0.5
# ### Memory channels, for one thread and for many
#
# Main memory has several [channels](glossary.md#memory-channel), each with its own wires. How should data be laid out over four of
# them?
#
# In turns, 64 bytes here and 64 there? Or each array in a channel of its own? Take four channels and 64 KiB for each thread.

# %% tags=["predict"]
one_thread_share = helpers.predict("One thread, its array in one channel: which share of the four channels works?", "%")
one_thread_share

# %% tags=["run", "slide", "slide-output"] minutes=0.5
four = {"channels": 4, "units_in_flight": 4}
turns = access.model_channels([0], bytes_each=64 * KIB, interleave_bytes=64, **four)
alone = access.model_channels([0], bytes_each=64 * KIB, interleave_bytes=64 * KIB, **four)
starts = [thread * 64 * KIB for thread in range(4)]
own = access.model_channels(starts, bytes_each=64 * KIB, interleave_bytes=64 * KIB, **four)
shared = access.model_channels(starts, bytes_each=64 * KIB, interleave_bytes=64, **four)
shares = {"1 thread": [turns.used_share, alone.used_share], "4 threads": [shared.used_share, own.used_share]}
results.printed(pd.DataFrame(shares, index=["in turns of 64 bytes", "an array a channel"]))

# %% tags=["look"]
one_thread_share.reveal(modelled=100 / 4, simulated=100 * alone.used_share)

# %% [markdown] tags=["explain"]
# One thread needs the turns: in one channel it has a quarter of the wires. With a thread a channel both layouts use everything, and
# separate channels keep the threads out of each other's way. But that holds only while every thread is busy and stays with its own
# data, so hardware takes turns. No program can read here how; what it can see is how the rate grows with the threads:

# %% tags=["look", "nbval-ignore-output"]
latencies_s = [point.latency_s for point in limits.latencies if point.working_set_bytes >= 64 * MIB]
try:
    threads = access.sweep_threads(
        latency_s=latencies_s[0] if latencies_s else None, buffer_bytes=64 * MIB, budget_s=1.2
    )
except native.MissingToolError as error:
    threads = error
threads

# %% [markdown] tags=["explain"]
# If two threads are not twice as fast as one, one thread has already filled the channels (or the cache that holds the 64 MiB), the
# two run on one core, or the machine is busy. Where turns take longer than blocks, the model has no reason: it knows no prefetching.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 8: the memory of a GPU
#
# A CPU's caches work unseen. A GPU has six memory spaces, and the program says which one it means.

# %% tags=["slide-output"]
drawn = plotting.draw_memory_spaces()
alt = "Six rows: register and local per thread, shared per block, constant, texture and global for all; place, lifetime, access."
plotting.show(drawn, alt=alt)

# %% [markdown]
# Two names mislead. "Local" memory is local to a thread but lies in device memory: it is where registers spill to. "Shared" memory
# lies on the chip, next to the registers, and is a cache that the program manages itself.
#
# And the latency? It follows from the place: whatever lies in device memory takes a cache's latency if a cache has a copy, and
# that of [global memory](glossary.md#global-memory) if none has. Here are an A100's, in clock cycles (Abdelkhalik and others,
# "Demystifying the Nvidia Ampere Architecture through Microbenchmarking and Instruction-level Analysis", Table IV,
# [arXiv:2208.11174](https://arxiv.org/abs/2208.11174)).

# %% tags=["predict"]
gpu_ratio = helpers.predict(
    "How many times longer does a load from global memory take there than from the first cache?", "x"
)
gpu_ratio

# %% tags=["run"]
cycles = {"shared": 23, "first cache": 33, "L2": 200, "global": 290}
results.printed(pd.DataFrame({"cycles": cycles}))

# %% tags=["look", "nbval-ignore-output"]
here = last.latency_s / first.latency_s if known else None
print("this processor:", f"{here:.0f} times" if here else "unknown")
gpu_ratio.reveal(
    modelled=here, published=cycles["global"] / cycles["first cache"], source="Abdelkhalik and others, Table IV"
)

# %% [markdown] tags=["explain"]
# (Modelled: the ratio of this machine's processor.) Papers differ: another takes 400 cycles for global memory, on V100, A100 and
# H100 alike ([Table 3 there](https://pmc.ncbi.nlm.nih.gov/articles/PMC10448217/table/t0015)), which makes the ratio 12. The ratio is small because the near memory is
# slow: 33 cycles for what the first cache holds. It does not have to be fast, because the wait is filled with other threads: while
# one group of them waits those cycles, others issue their instructions. That is Little's law once more, with threads in place of
# lines. On a machine with CUDA `helpers.probe(device="cuda")` measures its levels, by this lesson's chase in CUDA C++.

# %% [markdown] tags=["slide"] minutes=1
# ### Memory inversion
#
# The lecture: taken as a whole, a GPU has more low-level memory than a CPU. How much more? And is its pyramid upside down?
#
# So many threads need so many registers. In a CPU each level holds more than the one before. Which way is it in a GPU?
#
# A model for the RTX 3090: 32 registers of 4 bytes for each of the threads of Part 1.

# %% tags=["predict"]
inversion = helpers.predict("RTX 3090: all registers together, over the L2 cache?", "x")
inversion

# %% tags=["run"]
chosen = ["Ryzen 9 5950X", "GeForce GTX 580", "V100 SXM2", "GeForce RTX 3090", "A100 SXM 40 GB", "H100 SXM 80 GB"]
on_chip = hardware.memory_inversion(chosen).devices
ratio = {row.name: row.registers_to_l2_ratio for row in on_chip}
print({name: round(value, 2) for name, value in ratio.items()})

# %% tags=["look"]
wanted_bytes = multiprocessors * threads_each * 32 * 4
inversion.reveal(
    modelled=wanted_bytes / rtx_3090.l2_bytes, published=ratio["GeForce RTX 3090"], source="the table of devices"
)

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_inversion(on_chip)
alt = "Bytes on the chip by level: the CPU's line rises; those of GTX 580, V100 and RTX 3090 fall; A100 and H100 rise at L2."
plotting.show(drawn, alt=alt)

# %% tags=["explain"]
inverted = [row.name for row in on_chip if row.inverted]
print("inverted:", ", ".join(inverted))
print(f"L2 of the A100 over that of the V100: {on_chip[4].l2_bytes / on_chip[2].l2_bytes:.1f} times")
print(
    f"registers of the RTX 3090 over those of the CPU: {on_chip[3].register_bytes / on_chip[0].register_bytes:,.0f} times"
)

# %% [markdown] tags=["explain"]
# The lecture is right: registers are the lowest level, and the whole RTX 3090 has 200 times those of the Ryzen (more than the model
# asks for, so a thread may have over 32). That its levels shrink outwards is true of some GPUs and no law: among these it ends with
# the A100, whose L2 had grown so much. All sizes, with their sources, are in `hardware.device(name).facts`.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 9: energy
#
# A lecture: an access to RAM is 3 to 4 orders of magnitude slower than a multiply-add, and energy and latency are commensurate.

# %% tags=["slide", "slide-output"] minutes=1
drawn = plotting.draw_energy(hardware.energy_costs().costs)
alt = "Energies of additions and multiplications, below 4 picojoules, of caches, 10 to 100, and of DRAM, above 1,000."
plotting.show(drawn, alt=alt)

# %% [markdown]
# These are the energies of a chip in 45 nm (Horowitz, "Computing's Energy Problem", ISSCC 2014). An access is one of 64 bits, two
# numbers in float32. Products of int8 are added up in int32.
#
# First the sentence about time, with the latency, the bandwidth and the peak that `probe` measured here:

# %% tags=["nbval-ignore-output"]
mac_s = 2 / limits.peak_flops["float32"]
waited_for, streamed = load_s / mac_s, 4 / limits.memory.bandwidth_bytes_per_s / mac_s
print(f"a load that is waited for, over a multiply-add at the peak: {waited_for:,.0f} times")
print(f"a number out of a long run, over a multiply-add at the peak: {streamed:.0f} times")

# %% [markdown]
# So it depends on the access. A load that nothing hides is three to four orders slower on many machines. In a long run loads
# overlap as multiply-adds do (Part 6), and most of these orders are gone: the second line. If energy went with latency, the first
# ratio would be that of the energies too:

# %% tags=["predict"]
energy_ratio = helpers.predict(
    "An access of 64 bits to DRAM over a multiply-add in float32: which ratio of the energies?", "x"
)
energy_ratio

# %% tags=["run"]
dram = hardware.energy_cost("DRAM").middle_j
adds = {"float32": "float32 add", "int8": "int32 add"}
mac_j = {
    dtype: hardware.energy_cost(f"{dtype} multiply").middle_j + hardware.energy_cost(add).middle_j
    for dtype, add in adds.items()
}
for dtype, energy_j in mac_j.items():
    print(f"{dtype}: {dram / energy_j:,.0f} times")

# %% tags=["look", "nbval-ignore-output"]
energy_ratio.reveal(modelled=waited_for, published=dram / mac_j["float32"], source="Horowitz, ISSCC 2014")

# %% [markdown] tags=["explain"]
# Moving data takes energy as it takes time, but not in the same proportion: overlapping hides a wait, and saves no energy. The ratio
# needs a number format (it is larger for 8-bit integers) and a width: half of these 64 bits is one float32, at half the energy.
#
# Now a whole inference of LeNet. Its work and bytes are counted (lesson 07), and the weights come from DRAM once.

# %% tags=["predict"]
dram_share = helpers.predict("LeNet, one image, weights from DRAM: which share of the energy is DRAM's?", "%")
dram_share

# %% tags=["run", "slide", "slide-code"] minutes=1
lenet, energies = helpers.LeNet(), {}
weight_bytes = sum(weight.nbytes for weight in lenet.parameters())
for batch in (1, 64):
    counts = operations.profile_ops(lenet, (batch, 1, 28, 28))
    inside = counts.forward_read_bytes + counts.forward_written_bytes
    outside = weight_bytes + batch * 28 * 28 * 4
    energies[batch] = hardware.inference_energy(
        counts.forward_macs,
        dram_bytes=outside,
        cache_bytes=inside,
    )

# %% tags=["look", "slide", "slide-output"] minutes=1
microjoules = {
    f"batch of {batch}": [1e6 / batch * joules for joules in (e.arithmetic_j, e.cache_j, e.dram_j, e.total_j)]
    for batch, e in energies.items()
}
print(pd.DataFrame(microjoules, index=["arithmetic", "cache", "DRAM", "together"]).round(2).to_string())
print("in microjoules an image")

# %% tags=["look"]
dram_share.reveal(modelled=100 * energies[1].dram_share)

# %% tags=["explain"]
print(f"{energies[1].macs:,} MAC and {weight_bytes:,} bytes of weights for one image")
print(f"in a batch of 64 an image takes {energies[1].total_j / (energies[64].total_j / 64):.1f} times less energy")

# %% [markdown] tags=["explain"]
# Nobody measured this energy here: it is counts times published costs, and a floor, for instructions and clocks are not in it. What
# it shows does not depend on the last digit. One image alone pays mostly for fetching the weights. Sixty-four share them: the same
# reuse that makes a batch fast makes it cheap.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 10: questions nobody could check
#
# A textbook asks thirteen questions about hardware, and gives no way to check an answer. Eleven are about memory, or the way to it.
#
# ("Dive into Deep Learning", chapter "Hardware".) Five you have answered: aligned against misaligned, sequence against stride, the sizes of caches, memory channels, forward against
# backward (Parts 5 and 7). Here are the other six. Lesson 02 has the two about arithmetic.
#
# ### 1. The least worst-case wait of a disk with 10,000 turns a minute

# %% tags=["predict"]
disk_wait = helpers.predict("The head is in place. How long may the data take to come round, at worst?", "s")
disk_wait

# %% tags=["run"]
turn_s = access.revolution_s(10_000)
print(f"one turn: {1000 * turn_s:.1f} ms, on average half of it: {500 * turn_s:.1f} ms")

# %% tags=["look"]
disk_wait.reveal(modelled=turn_s)

# %% [markdown] tags=["explain"]
# No cleverness of the controller helps against having just missed it. Compare it with the latency of the disk under this notebook
# (Part 3), which most likely does not turn.
#
# ### 2. Inner and outer rings, as the density grows
#
# Take a small platter, with rings from 1.5 to 3 cm from its centre, and bits that are squares.

# %% tags=["predict"]
ring_ratio = helpers.predict("How many times more does the outermost ring hold than the innermost?", "x")
ring_ratio

# %% tags=["run"]
for density in (1e12, 5e12):
    inner, outer = (access.ring_bytes(radius_m, density) for radius_m in (0.015, 0.03))
    print(
        f"{density / 1e12:.0f} Tbit a square inch: inner {inner:,.0f} B, outer {outer:,.0f} B, {outer / inner:.2f} times"
    )

# %% tags=["look"]
ring_ratio.reveal(modelled=outer / inner)

# %% [markdown] tags=["explain"]
# The ratio is that of the radii and does not depend on the density. Five times the density gives a ring only $\sqrt 5$ times the
# bits; the other $\sqrt 5$ are more rings. The disk turns at one speed, so the outer rings are also faster by the same ratio, and a disk puts the
# first addresses there.
#
# ### 3. A disk's own cache
#
# Read a region twice, past the system's page cache. If the second time is faster, something on the other side remembers it.

# %% tags=["predict"]
twice = helpers.predict("How many times faster is the second read of the same 1 MiB, past the page cache?", "x")
twice

# %% tags=["run"]
kept_by_disk = access.sweep_disk_cache(file_bytes=16 * MIB, region_bytes=(1 * MIB, 4 * MIB, 8 * MIB), repeats=3)
print(f"regions read: {[row.region_bytes // MIB for row in kept_by_disk.rows]} MiB")

# %% tags=["look", "nbval-ignore-output"]
print(kept_by_disk)
twice.reveal(modelled=1, measured=kept_by_disk.rows[0].speedup)

# %% [markdown] tags=["explain"]
# The model is a disk without a cache: both reads take the same time. If some rows are above 1 and some below, they are noise. If
# all are close to 1, either there is no cache or it is larger than the file and answered the first read as well. A virtual disk
# may be a file in another machine's memory, and no program inside can see that. Look at `bypass`: where the page cache could not
# be avoided, the rows are the page cache's.
#
# ### 4. What a packet carries besides the message

# %% tags=["predict"]
payload_share = helpers.predict(
    "1 byte sent by UDP over Ethernet: which share of what goes over the wire is the byte?", "%"
)
payload_share

# %% tags=["run"]
for size in (1, 100, 1400, 65_507):
    by_protocol = {name: access.packet_overhead(size, name) for name in ("UDP", "TCP")}
    print(
        f"{size:6,} B:",
        ", ".join(f"{name} {o.packets} packets, {o.payload_share:.1%}" for name, o in by_protocol.items()),
    )

# %% tags=["look", "nbval-ignore-output"]
trips = access.measure_loopback((1, 1400), budget_s=0.3)
print(trips)
payload_share.reveal(modelled=100 * access.packet_overhead(1, "UDP").payload_share)

# %% [markdown] tags=["explain"]
# Headers of UDP (8 bytes) or TCP (20), IP (20) and Ethernet, and Ethernet pads a frame to a least size: for one byte all of that is
# sent, and UDP's saving is lost in the padding. (A system's TCP may add options to its header, such as time stamps.) The times are those of the loopback, where there is no wire: they are the calls and
# the waking of two threads, and 1,400 bytes take hardly longer than one.
#
# ### 5. Why direct memory access?
#
# Somebody must move the bytes from the disk to memory. It can be the core, or the disk's controller by itself, which is called
# [direct memory access](glossary.md#direct-memory-access).

# %% tags=["predict"]
core_share = helpers.predict("Which share of a core does a read from the disk take, past the page cache?", "%")
core_share

# %% tags=["run"]
costs = access.measure_copy_costs(moved_bytes=32 * MIB, passes=3)
assert len(costs.rows) >= 2

# %% tags=["look", "nbval-ignore-output"]
print(costs)
by_disk = [row.cpu_share for row in costs.rows if "DMA" in row.how]
core_share.reveal(modelled=0, measured=100 * by_disk[0] if by_disk else None)

# %% [markdown] tags=["explain"]
# A copy by a core takes the whole core. While the device writes to memory, the core is free for others: the share that is left is
# the system's work for each request. A GPU fetches its data in the same way, but only from pinned memory, which the system promises
# not to move (lesson 06).
#
# ### 6. The shortest round trip over 10,000 km

# %% tags=["predict"]
round_trip = helpers.predict("How long does a message take at least, there and back, over 10,000 km of fibre?", "s")
round_trip

# %% tags=["run"]
from helpers.access import FIBRE_REFRACTIVE_INDEX

in_vacuum, in_fibre = (access.shortest_round_trip_s(10_000e3, refractive_index=n) for n in (1, FIBRE_REFRACTIVE_INDEX))
print(f"in a vacuum {1000 * in_vacuum:.1f} ms, in fibre {1000 * in_fibre:.1f} ms")

# %% tags=["look"]
round_trip.reveal(modelled=in_fibre)

# %% [markdown] tags=["explain"]
# No better hardware shortens it: light is the last latency of the hierarchy. Bandwidth can be bought; latency has a floor, and what
# can be done about it is always the same: keep a copy near, ask early, ask for much at once, or do something else meanwhile.

# %% [markdown]
# The [exercises](exercises/01_memory_hierarchy_exercises.ipynb) let you write a cache, count the lines of a walk, and model a
# transfer.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Each memory further out is larger, slower, and costs more energy.
# 2. Data moves in lines: use a whole line before you leave it.
# 3. Bandwidth needs many loads under way at once.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | transfer | $t = n\,\alpha + \text{bytes} \cdot \beta$ | $n$ pieces, latency $\alpha$, $\beta$ one over the bandwidth |
# | bytes in flight | $\text{bandwidth} \cdot \text{latency}$ | Little's law |
# | lines moved | $\min(1, s\,e/\ell)$ a number | stride $s$, numbers of $e$ bytes, lines of $\ell$ bytes |
# | page faults | bytes / page size | memory touched for the first time |
# | turn of a disk | $60 / \text{turns a minute}$ s | the worst wait; the mean is half |
# | a ring of a disk | $2\pi r \sqrt{\text{density}}$ bits | radius $r$, square bits |
# | round trip | $2\,d\,n/c$ | distance $d$, refractive index $n$, speed of light $c$ |
# | energy | $\text{MAC} \cdot e_{MAC} + \text{accesses} \cdot e_{access}$ | a floor |
