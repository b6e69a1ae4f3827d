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
# ---

# %% [markdown]
# # Memory hierarchy
#
# This page has what the lesson leaves out. It begins with the levels of two machines, the energy of a load, the time of moving a network, embeddings and channels last. Then come
# fresh pages, the links of a whole machine, caches of your own, the order of addresses, memory channels, energy against latency, and six questions of a
# textbook. Run it from the top.

# %%
import itertools
import mmap

import numpy as np
import pandas as pd
import torch
from torch import nn

import helpers
from helpers import hardware, native, operations, plotting, results, timing, units
from helpers.studies import data_movement, history, memory_hierarchy, simulators

torch.set_num_threads(1)
KIB, MIB = 2**10, 2**20


def size(held_bytes):
    number, unit = units.text(held_bytes, "B", binary=True).replace(",", "").split()
    return f"{float(number):g} {unit}"


# %% [markdown]
# ## The levels of two machines
#
# Here are the levels of a desktop processor and of a GPU. Each bar on the chip is as wide as the logarithm of what the whole chip holds there. When main memory is full, the
# system moves pages that were not used lately to the disk, which is called [swap](../glossary.md#swap).

# %%
ryzen, rtx_3090 = (hardware.device(name) for name in ("Ryzen 9 5950X", "GeForce RTX 3090"))


def level(name, held_bytes):
    return name, size(held_bytes), held_bytes


towers = {
    "CPU: Ryzen 9 5950X, 16 cores": [
        level("registers", ryzen.cores * ryzen.core_register_bytes),
        level("L1", ryzen.cores * ryzen.core_l1_bytes),
        level("L2", ryzen.l2_bytes),
        level("L3", ryzen.l3_bytes),
        ("main memory", units.text(ryzen.memory_bandwidth_bytes_per_s, "B/s")),
        ("swap", "a part of the disk"),
    ],
}

# %%
device_rate = units.text(rtx_3090.memory_bandwidth_bytes_per_s, "B/s")
towers["GPU: RTX 3090, 82 multiprocessors"] = [
    level("registers", rtx_3090.cores * rtx_3090.core_register_bytes),
    level("L1, shared", rtx_3090.cores * rtx_3090.core_l1_bytes),
    level("L2", rtx_3090.l2_bytes),
    None,
    ("device memory", f"{size(rtx_3090.memory_bytes)}, {device_rate}"),
    None,
]
drawn = data_movement.draw_towers(
    towers,
    on_chip=4,
    bus=(4, "PCIe"),
    title="Two machines (sizes and rates: published)",
)
alt = "Two towers: the CPU's widens from registers to L3, the GPU's narrows down to L2."
plotting.show(drawn, alt=alt)

# %% [markdown]
# In the CPU each level holds more than the one nearer to the arithmetic. In this GPU it is the other way round, which is called *memory inversion*. Every waiting thread keeps
# its registers, so its largest store on the chip is the nearest. The A100 and the H100 break the pattern, because their L2 is larger than their registers.

# %%
chosen = ["Ryzen 9 5950X", "GeForce RTX 3090", "A100 SXM 40 GB", "H100 SXM 80 GB"]
on_chip = memory_hierarchy.memory_inversion(chosen)
drawn = data_movement.draw_inversion(on_chip)
alt = "Bytes by level: the CPU's line rises, the RTX 3090's falls, the A100's rises at L2."
plotting.show(drawn, alt=alt)

# %% [markdown]
# The registers, L1 and the shared memory in this table are those of one multiprocessor. L1 and L2 work unseen, as in a CPU, whereas a program fills
# [shared memory](../glossary.md#shared-memory) itself. The waits are those of the lesson, in cycles of the chip in an A40.

# %%
chip = memory_hierarchy.gpu_wait("GA102")
shared = f"{size(rtx_3090.core_shared_bytes)} of L1"
spaces = {
    "registers": [size(rtx_3090.core_register_bytes), "a thread", "compiler", ""],
    "shared memory": [f"up to {shared}", "a block of threads", "program", ""],
    "L1": [
        size(rtx_3090.core_l1_bytes),
        "a multiprocessor",
        "hardware",
        f"{chip.l1_cycles:.0f}",
    ],
    "L2": [size(rtx_3090.l2_bytes), "all", "hardware", f"{chip.l2_cycles:.0f}"],
    "device memory": [
        size(rtx_3090.memory_bytes),
        "all",
        "program",
        f"{chip.memory_cycles:.0f}",
    ],
}
pd.DataFrame(spaces, index=["RTX 3090", "seen by", "filled by", "cycles (published)"]).T

# %% [markdown]
# "Local" memory is local to a thread, but it is a part of device memory, to which the compiler moves registers that do not fit. *Texture* memory is device memory as well, read through a
# cache for neighbours in two dimensions. CUDA has a name for each of these places:

# %%
drawn = data_movement.draw_memory_spaces()
alt = "Six rows: register and local per thread, shared per block, the others for all threads."
plotting.show(drawn, alt=alt)

# %% [markdown]
# A CPU spends its area on making one thread fast, a GPU on arithmetic. No processor has exactly the shares of this drawing.

# %%
drawn = data_movement.draw_dies()
alt = "Two squares: the CPU's is mostly caches and control, the GPU's mostly arithmetic."
plotting.show(drawn, alt=alt)

# %% [markdown]
# ## The energy of a load
#
# What does a load cost besides time? Other loads can hide its wait, but nothing hides its energy. These are the costs on a chip of 45 nm (Horowitz, "Computing's Energy Problem",
# ISSCC 2014, published). An access is one of 64 bits.

# %%
title = "Energy of one operation (45 nm, 2014)"
drawn = history.draw_energy(history.energy_costs().costs, title=title)
alt = (
    "Energies: additions and products below 4 picojoules, caches 10 to 100, DRAM above 1,000."
)
plotting.show(drawn, alt=alt)

# %% [markdown]
# Take LeNet with one image. Its weights and the image come from DRAM once. The bytes that its operators read and write then go to and from a cache of 1 MB, because all of them fit
# there. DRAM counts with the middle of its range.

# %% tags=["predict"]
lenet, image_bytes = helpers.LeNet(), 28 * 28 * 4
weight_bytes = sum(weight.nbytes for weight in lenet.parameters())
counted = operations.profile_ops(lenet, (1, 1, 28, 28))
cache_bytes = counted.forward_read_bytes + counted.forward_written_bytes
print(f"{counted.forward_macs:,} multiply-adds; {weight_bytes:,} bytes of weights,", end=" ")
print(f"{image_bytes:,} of an image, {cache_bytes:,} to and from the cache")
names = ("float32 multiply", "float32 add", "cache of 1 MB", "DRAM")
cost_j = {name: history.energy_cost(name).middle_j for name in names}
for name, joules in cost_j.items():
    print(f"{name}: {1e12 * joules:,.4g} pJ")
share = helpers.predict(
    "When LeNet classifies one image, which share of the energy does DRAM take?", "%"
)
share


# %% tags=["run"]
def energies_j(images):
    """Return the energy of arithmetic, cache and DRAM; an access moves 8 bytes."""
    mac_j = cost_j["float32 multiply"] + cost_j["float32 add"]
    cached, fetched = images * cache_bytes / 8, (weight_bytes + images * image_bytes) / 8
    moved_j = [cached * cost_j["cache of 1 MB"], fetched * cost_j["DRAM"]]
    return np.array([images * counted.forward_macs * mac_j, *moved_j])


assert weight_bytes + cache_bytes < 10**6  # all of it fits
single, many = energies_j(1), energies_j(64) / 64
dram = history.energy_cost("DRAM")
ends_j = [single[2] * end_j / dram.middle_j for end_j in (dram.least_j, dram.most_j)]

# %% tags=["look"]
share.reveal(modelled=100 * single[2] / single.sum())
ends = [100 * end_j / (single[:2].sum() + end_j) for end_j in ends_j]
print(f"from one end of DRAM's range to the other: {ends[0]:.0f} to {ends[1]:.0f} %")

# %% [markdown]
# Now 64 images follow each other while the weights stay in the cache, so the weights come from DRAM only once.

# %% tags=["look"]
frame = 1e6 * pd.DataFrame({"one image": single, "one of 64": many})
frame.index = ["arithmetic", "cache", "DRAM"]
frame.loc["together"] = frame.sum()
frame.round(2).rename_axis("microjoules per image", axis=1)

# %% [markdown] tags=["explain"]
# A single image pays for fetching all weights. When 64 images share them, an image takes about an eighth of the energy (modelled), so it pays to batch what uses the same weights. Nobody measured
# this energy. It is counts times published costs, and it leaves out instructions and clocks.
#
# ## The time of moving a network
#
# How long does `model.to(device)` take? A transfer pays a fixed cost $\alpha$, its latency, and then for its bytes. A network moves tensor by tensor, so it pays the fixed cost once per parameter.
# The same model holds for a bus, a network and a disk.


# %%
def move_s(tensors, latency_s, bytes_per_s):
    """Return the modelled seconds of moving each of the tensors after the other."""
    total_bytes = sum(tensor.nbytes for tensor in tensors)
    return len(tensors) * latency_s + total_bytes / bytes_per_s


# %% [markdown]
# One network has fifty layers of 16 x 16, the other a single layer of 4,096 x 4,096. We move them within main memory, and with a GPU you can write `.to("cuda")`. The fixed cost is that of a call,
# nearly all of it software, so we time the copy of one element. The bandwidth is that of a copy of 128 MiB.

# %%
networks = {
    "fifty small": nn.Sequential(*[nn.Linear(16, 16) for _ in range(50)]),
    "one large": nn.Linear(4096, 4096),
}
tensors = {name: list(network.parameters()) for name, network in networks.items()}
for name, parameters in tensors.items():
    total_bytes = sum(tensor.nbytes for tensor in parameters)
    print(f"{name}: {len(parameters)} tensors, {total_bytes:,} B")


def moves(tensors):
    return lambda: [tensor.detach().clone() for tensor in tensors]


# %% tags=["nbval-ignore-output"]
latency_s = timing.measure(moves([torch.ones(1)]), budget_s=0.3).median_s
copied = torch.ones(32 * MIB)
bytes_per_s = copied.nbytes / timing.measure(moves([copied]), budget_s=0.5).median_s
print(f"a call {units.text(latency_s, 's')}, then {units.text(bytes_per_s, 'B/s')}")

# %% tags=["predict"]
larger = helpers.predict(
    "How many times as long as the fifty small layers does the one large layer take to move?",
    "x",
)
larger

# %% tags=["run"]
both = {name: moves(parameters) for name, parameters in tensors.items()}
moved = timing.compare(both, budget_s=1, own_caches=True, precision=0.1)

# %% tags=["look", "nbval-ignore-output"]
small_s, large_s = (move_s(found, latency_s, bytes_per_s) for found in tensors.values())
measured = moved.candidate("one large").time_ratio
larger.reveal(modelled=large_s / small_s, measured=measured)

# %% tags=["explain"]
ratio = measured / (large_s / small_s)
timing.claim("move: measured over modelled", ratio, at_least=1 / 3, at_most=3, evidence=moved)

# %% [markdown] tags=["explain"]
# The large layer has 1,234 times the bytes and takes far fewer times as long, because the fifty small ones pay for a hundred calls. With `own_caches=True` each candidate starts with its own data in the
# caches, as when the fixed cost was measured. A framework packs many small gradients into one buffer before it sends them, for the same reason (lesson 05).
#
# ## Lines of an embedding
#
# An embedding looks up rows at positions that no prefetcher can guess. Take tables of 64 MiB, with rows of 4, 16 or 64 values, and 65,536 look-ups per call, each call at other positions. A row of 64 values
# has 16 times the values of the shortest row, but only 4 times the lines.

# %% tags=["predict"]
longer = helpers.predict(
    "In an embedding, how many times as long as a row of 4 values does one of 64 take?",
    "x",
)
longer

# %% tags=["run"]
tables = {width: torch.rand(2**24 // width, width) for width in (4, 16, 64)}
positions = {
    width: itertools.cycle(torch.randint(2**24 // width, (16, 2**16))) for width in tables
}
looked_up = timing.compare(
    {
        str(width): lambda width=width: nn.functional.embedding(
            next(positions[width]), tables[width]
        )
        for width in tables
    },
    budget_s=2,
    precision=0.1,
)

# %% tags=["look", "nbval-ignore-output"]
longer.reveal(modelled=4, measured=looked_up.candidate("64").time_ratio)

# %% tags=["explain"]
ratio = looked_up.candidate("64").time_ratio
timing.claim("rows of 64 over rows of 4", ratio, at_least=1, at_most=8, evidence=looked_up)

# %% [markdown] tags=["explain"]
# The ratio is about 4 if the four lines of a row arrive one after another, and less if they arrive together. Either way sixteen times the values take far less than sixteen times as long, because the short row moves
# a whole line as well and uses a quarter of it. An embedding row shorter than 16 float32 values saves hardly any time.
#
# ## Channels last
#
# A batch of images has four axes, and a memory format says which of them is contiguous. [Channels-last](../glossary.md#channels-last) puts the channels of a pixel next to each other. A layer norm over the
# channels takes the 64 values of each pixel, pixel after pixel, until it has read the image.

# %% tags=["predict"]
norm = helpers.predict(
    "How many times as long as with channels last does the norm take with channels first?",
    "x",
)
norm

# %% tags=["run"]
images = torch.rand(8, 64, 56, 56)
layouts = {
    "channels last": images.to(memory_format=torch.channels_last),
    "channels first": images,
}
norms = {
    name: lambda layout=layout: nn.functional.layer_norm(layout.permute(0, 2, 3, 1), (64,))
    for name, layout in layouts.items()
}
norms["the copy"] = lambda: images.permute(0, 2, 3, 1).contiguous()
normed = timing.compare(norms, budget_s=2, precision=0.05)

# %% tags=["look", "nbval-ignore-output"]
measured, copy_ratio = (
    normed.candidate(name).time_ratio for name in ("channels first", "the copy")
)
norm.reveal(modelled=1, measured=measured)
print(f"norm and copy: 1 + {copy_ratio:.2f} = {1 + copy_ratio:.2f} times")

# %% tags=["explain"]
ratio = measured / (1 + copy_ratio)
sentence = "channels first over norm + copy"
timing.claim(sentence, ratio, at_least=0.6, at_most=1.7, evidence=normed)

# %% [markdown] tags=["explain"]
# The image has as many lines in either layout, so the count of lines says 1 and does not explain the time. A copy does, because PyTorch's layer norm needs the channels of each pixel next to each other, and with
# channels first it copies them before it begins. If you walk more than once, copy once, with `x.contiguous(memory_format=torch.channels_last)`.

# %% [markdown]
# ## Fresh pages
#
# `x * 2` makes a new tensor; `torch.mul(x, 2, out=kept)` writes into an old one. The arithmetic is the same. How many times longer
# does the new one take?
#
# Lessons 00 and 01 call `steady_allocator`. Here it has not been called yet, and you see what it is worth.

# %% tags=["predict"]
fresh_ratio = helpers.predict(
    "How many times longer does x * 2 take in new memory than in memory used before?", "x"
)
fresh_ratio

# %% [markdown]
# A model by bytes: the operation reads `x` and writes the result. The system may not hand out a page with another program's data
# in it, so it writes zeros into new memory first. That is three passes over 64 MiB in place of two.

# %% tags=["run"]
x = torch.ones(64 * MIB // 4)
kept = torch.zeros_like(x)
ways = {
    "memory used again": lambda: torch.mul(x, 2, out=kept),
    "new memory": lambda: x * 2,
}
faults = {name: data_movement.count_faults(way).minor for name, way in ways.items()}
before = helpers.compare(ways, budget_s=2, device="cpu", precision=0.05)

# %% tags=["look", "nbval-ignore-output"]
fresh_ratio.reveal(modelled=3 / 2, measured=before.candidate("new memory").time_ratio)

# %% tags=["look", "nbval-ignore-output"]
pages = x.nbytes // mmap.PAGESIZE
print(f"{x.nbytes:,} bytes are {pages:,} pages of {mmap.PAGESIZE:,} bytes")
results.printed(pd.DataFrame({"page faults": faults}))

# %% tags=["explain"]
timing.claim(
    "new memory saves no time",
    before.candidate("new memory").time_ratio,
    at_least=0.9,
    evidence=before,
)
used_again = faults["memory used again"]
assert used_again is None or used_again < pages / 10

# %% [markdown] tags=["explain"]
# A [page fault](../glossary.md#page-fault) is why. The allocator promises memory; the system brings a page only when something
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
faults_after = {name: data_movement.count_faults(way).minor for name, way in ways.items()}
after = helpers.compare(ways, budget_s=2, device="cpu", precision=0.05)
setting

# %% tags=["look", "nbval-ignore-output"]
ratios = [compared.candidate("new memory").time_ratio for compared in (before, after)]
rows = {
    "page faults": [faults["new memory"], faults_after["new memory"]],
    "time ratio": ratios,
}
results.printed(pd.DataFrame(rows, index=["default allocator", "memory kept"]))

# %% tags=["explain"]
timing.claim(
    "where freed memory is kept, new memory takes little longer",
    ratios[1] if setting.changed else None,
    at_most=1.5,
    evidence=after if setting.changed else (),
)

# %% [markdown] tags=["explain"]
# The same operation, the same bytes, and another time: a measurement that did not know of the pages would have called it slow
# arithmetic. PyTorch's allocator on a GPU keeps freed memory because new memory is slow to get there as well. The price: the
# process keeps its peak. From here on this process keeps its memory, so the first measurement of this part, run again, shows no
# faults any more. To see both halves again, restart the kernel.

# %% [markdown]
# ## The levels and links of a machine
#
# `probe` does the lesson's experiments for each level of memory: latency by a chase, bandwidth by a compiled loop
# over three arrays, a *triad* $a = b + s\,c$. It takes some ten seconds and is kept for the next time.

# %%
limits = helpers.probe(device="cpu")
drawn = data_movement.draw_hierarchy(limits.memory_levels)
alt = "A pyramid of the memory levels, with size, latency and bandwidth of each."
plotting.show(drawn, alt=alt)

# %% [markdown]
# PyTorch's operators in small arrays are far below the triad: there a call takes longer than its data.

# %%
triad = hardware.compiled_triad(1)  # a text where nothing can be compiled
working_sets = [KIB * 4**power for power in range(2, 9)]
compiled = {} if isinstance(triad, str) else {size: triad(size) for size in working_sets}
drawn = data_movement.draw_bandwidths(
    limits.bandwidths, kernels=["read", "triad"], compiled=compiled
)
alt = "Bytes a second by working set: the compiled triad is fastest in the smallest arrays."
plotting.show(drawn, alt=alt)

# %% [markdown]
# Between the levels, and beyond them, are links: from the disk, to the [page cache](../glossary.md#page-cache), from memory to
# memory, over the bus to a GPU, through the network's software. Before you see them: a read of 4 KiB from the disk of this machine.

# %% tags=["predict"]
loads_in_read = helpers.predict(
    "How many loads from main memory fit into the time of one 4 KiB read from the disk?",
    "loads",
)
loads_in_read

# %% tags=["run"]
system = data_movement.measure_links(file_bytes=32 * MIB, limits=limits, budget_s=0.1)
drawn = data_movement.draw_links([link for link in system.links if link.bandwidth_bytes_per_s])
alt = "Bandwidth and latency of disk, page cache, memory and caches, a point a link."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["look"]
# The model takes the bandwidth alone: 4 KiB divided by the disk's bytes a second.

# %% tags=["look", "nbval-ignore-output"]
disk = system.link("disk")
load_s = limits.memory.latency_s or 100e-9
basis = (
    "measured"
    if limits.memory.latency_s
    else "a rule of thumb, for nothing here can chase a pointer"
)
print(f"a load from main memory: {units.text(load_s, 's')} ({basis})")
print(
    f"a word: {system.pointer_bits} bits, a vector: {system.simd_bits} bits, "
    f"a line: {system.line_bytes} bytes"
)
print(f"reads of 4 KiB, one at a time: {units.text(4 * KIB / disk.latency_s, 'B/s')}")

# %% tags=["look", "nbval-ignore-output"]
by_bandwidth = 4 * KIB / disk.bandwidth_bytes_per_s / load_s
loads_in_read.reveal(modelled=by_bandwidth, measured=disk.latency_s / load_s)

# %% tags=["explain", "nbval-ignore-output"]
assert all(link.bandwidth_bytes_per_s or link.note for link in system.links)
print(f"{len(system.links)} links, each measured or with the reason why it was not")

# %% [markdown] tags=["explain"]
# A small read pays for the way, not for its bytes. Bandwidth is reached only with large requests, or with many at once. What this
# machine has no hardware for is in the table with its reason:

# %% tags=["explain", "nbval-ignore-output"]
system

# %% [markdown]
# ## Caches of your own
#
# A simulated machine has sizes that are known because we made them up. The simulation follows every load of a chase through three
# caches and adds up their times. Here it is, without its sizes.

# %%
machine = [simulators.CacheLevel(size, ways=8) for size in (8 * KIB, 64 * KIB, 512 * KIB)]
working_sets = [round(4 * KIB * 2 ** (step / 2) / 64) * 64 for step in range(17)]
simulated = simulators.simulate_latency(machine, [1e-9, 4e-9, 16e-9, 80e-9], working_sets)
drawn = data_movement.draw_latencies(
    simulated.points, origin="simulated", title="A simulated machine"
)
plotting.show(
    drawn,
    alt="A staircase of four flat steps: the time of a load, on a simulated machine.",
)

# %% tags=["predict"]
second_cache = helpers.predict(
    "Read the plot: how large is the second cache of this machine?", "B"
)
second_cache

# %% tags=["run"]
found = hardware.find_change_points(simulated.points)
print("found on the curve:", ", ".join(units.text(size, "B", binary=True) for size in found))

# %% tags=["look"]
second_cache.reveal(modelled=machine[1].size_bytes, simulated=found[1])

# %% [markdown] tags=["explain"]
# The edge of a step is the last buffer that fits. `find_change_points` looks for the steepest rise of the simulated curve, and finds
# the sizes that the machine was given. The edge is so sharp because a chase goes round and round: one line too many, and the line that is
# thrown out, the [least recently used](../glossary.md#least-recently-used), is always the one needed next. Play with a machine of your own. A cache of few
# [ways](../glossary.md#ways) has a soft edge: its lines crowd some sets before all are full.


# %%
def own_machine(first_KiB, second_KiB, ways):
    own = {"L1": first_KiB * KIB, "L2": second_KiB * KIB}
    caches = [simulators.CacheLevel(size, ways=ways) for size in own.values()]
    curve = simulators.simulate_latency(caches, [1e-9, 4e-9, 80e-9], working_sets[:-2]).points
    found = hardware.find_change_points(curve)
    return data_movement.draw_latencies(
        curve, caches=own, change_points=found, origin="simulated", title="A machine of my own"
    )


helpers.interactive_figure(
    own_machine,
    {"first_KiB": [4, 8, 16, 32], "second_KiB": [64, 128, 256], "ways": [1, 2, 4, 8]},
    views=[
        {"first_KiB": 8, "second_KiB": 64, "ways": 8},
        {"first_KiB": 16, "second_KiB": 256, "ways": 1},
    ],
    alt=lambda first_KiB, second_KiB, ways: (
        f"Latency with caches of {first_KiB} and {second_KiB} KiB, {ways} ways: "
        f"{'soft' if ways == 1 else 'sharp'} edges."
    ),
)

# %% [markdown]
# ## Order, stride, direction, alignment
#
# Memory moves whole lines, on most machines of 64 bytes: 16 numbers of 4 bytes. Who uses one number of a line has moved all of it.
#
# The same 16,384 numbers, in sequence and in random order, through a cache of 8 KiB.

# %%
cache = [simulators.CacheLevel(8 * KIB, ways=8)]
shuffled = simulators.AddressStream(4 * np.random.default_rng(0).permutation(2**14))
for name, stream in {"in sequence": simulators.sequential(2**14), "random": shuffled}.items():
    run = simulators.simulate_caches(stream, cache)
    print(f"{name}: asked for {run.asked_bytes:,} bytes, moved {run.memory_read_bytes:,}")

# %% tags=["predict"]
order_ratio = helpers.predict(
    "64 MiB of numbers: how many times longer does the random order take?", "x"
)
order_ratio

# %% tags=["run"]
engine = (
    "native" if limits.latencies else "torch"
)  # compiled loops, or PyTorch's where nothing can be compiled
order = data_movement.compare_order(engine=engine, buffer_bytes=64 * MIB, budget_s=3)
lines_ratio = 2**24 / data_movement.lines_touched(2**24, line_bytes=system.line_bytes)

# %% tags=["look", "nbval-ignore-output"]
print(f"at most {lines_ratio:.0f} times the lines")
order_ratio.reveal(modelled=lines_ratio, measured=order.candidate("random").time_ratio)

# %% tags=["explain"]
slower = order.candidate("random").time_ratio
timing.claim("the random order takes longer", slower, at_least=1, evidence=order)

# %% [markdown] tags=["explain"]
# The model counts lines: in random order each number brings its own. Two things pull it in opposite directions. In sequence the
# loop may wait for its additions, not for memory, which makes the ratio smaller. At random there is no next address to fetch
# early and a page's entry must be looked up almost each time, which makes it larger. (64 MiB lie beyond the caches of most machines. If
# your curve in the lesson still rises beyond 64 MiB, a cache holds part of the array, and the ratio is partly the cache's.)
#
# ### Sequence against stride
#
# Read every second number only, every fourth, and so on. Half the numbers, half the time?

# %% tags=["predict"]
stride_ratio = helpers.predict(
    "How many times longer does one number take at stride 16 than at stride 1?", "x"
)
stride_ratio

# %% tags=["run"]
sweep = data_movement.sweep_stride(
    (1, 4, 16, 32), engine=engine, buffer_bytes=64 * MIB, budget_s=0.8
)
counted = pd.DataFrame(
    {
        "lines": {
            row.stride: data_movement.lines_touched(2**20, stride=row.stride)
            for row in sweep.rows
        }
    }
)
counted["numbers a line"] = 2**20 / counted["lines"]
results.printed(counted)

# %% [markdown] tags=["look"]
# The lines are those of a million numbers: up to stride 16 they grow with the stride, and then there is one number a line. The
# model gives each line the time that it takes at the bandwidth of reading 64 MiB:

# %% tags=["look"]
near = min(
    limits.bandwidths, key=lambda point: abs(point.working_set_bytes - sweep.buffer_bytes)
)
line_s = system.line_bytes / near.read_bytes_per_s
modelled_s = [line_s * row.lines / row.elements for row in sweep.rows]
numbers = {"modelled": modelled_s, "measured": [row.element_s for row in sweep.rows]}
names = [str(row.stride) for row in sweep.rows]
drawn = plotting.draw_three(
    names,
    numbers,
    unit="s",
    title="Time of one number read",
    xlabel="stride, in numbers of 4 bytes",
)
alt = "Bars by stride: the modelled time of a number grows up to 16, then stays."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output"]
by_stride = {row.stride: row.element_s for row in sweep.rows}
stride_ratio.reveal(modelled=16, measured=by_stride[16] / by_stride[1])

# %% tags=["explain"]
slower = by_stride[16] / by_stride[1]
timing.claim(
    "one number costs more at stride 16 than at stride 1", slower, at_least=1, evidence=sweep
)

# %% [markdown] tags=["explain"]
# The columns of the lesson's table are such a walk. Where the measured time
# lies above the model at stride 1, the loop itself may be the limit and not memory; where it does so at stride 32, the processor
# may guess the next lines worse, or fetch some that nobody asked for.
#
# ### Forward against backward

# %% tags=["predict"]
backward_ratio = helpers.predict(
    "How many times as long as forwards does it take to read an array backwards?", "x"
)
backward_ratio

# %% tags=["run"]
direction = data_movement.compare_direction(engine=engine, buffer_bytes=64 * MIB, budget_s=0.5)
forwards, backwards = (data_movement.lines_touched(2**20, stride=stride) for stride in (1, -1))
print(f"lines forwards {forwards:,}, backwards {backwards:,}")

# %% tags=["look", "nbval-ignore-output"]
backward_ratio.reveal(
    modelled=backwards / forwards, measured=direction.candidate("backwards").time_ratio
)

# %% tags=["explain"]
timing.claim(
    "backwards takes about as long as forwards",
    direction.candidate("backwards").time_ratio,
    at_least=1 / 2,
    at_most=2,
    evidence=direction,
)

# %% [markdown] tags=["explain"]
# The same lines move, and prefetchers follow a sequence in both directions, so on most machines the two are hard to tell apart.
# That used to be different for disks, which turn one way only (below).
#
# ### Aligned against misaligned
#
# A number of 8 bytes is aligned where its address is a multiple of 8. A load that is not may lie across two lines.

# %% tags=["predict"]
split_ratio = helpers.predict(
    "How many times as long as an aligned load does one across two lines take?", "x"
)
split_ratio

# %% tags=["run"]
places = {"aligned": 0, "misaligned, in one line": 4, "across two lines": 60}
touched = {
    name: data_movement.lines_touched(1, element_bytes=8, offset_bytes=offset)
    for name, offset in places.items()
}
print(touched)
every = data_movement.lines_touched(2**12, stride=1, element_bytes=8, offset_bytes=4)
print(
    f"an array of 4,096 that starts 4 bytes late: {every} lines "
    f"in place of {data_movement.lines_touched(2**12, element_bytes=8)}"
)

# %% tags=["look", "nbval-ignore-output"]
try:
    alignment = data_movement.compare_alignment(budget_s=0.6)
    split_ratio.reveal(modelled=2, measured=alignment.candidate("across lines").time_ratio)
except native.MissingToolError as error:
    alignment = None
    print(error)

# %% tags=["explain"]
timing.claim(
    "a load across two lines saves no time",
    alignment and alignment.candidate("across lines").time_ratio,
    at_least=0.9,
    evidence=alignment or (),
)

# %% [markdown] tags=["explain"]
# Within a line, most processors of today charge nothing for misalignment. Across lines a load is two; across pages two addresses must be
# translated as well. So alignment matters where *every* load is split, as with wide vectors: one of 64 bytes that starts late is
# split always. PyTorch's allocator aligns what it hands out.

# %%
fresh = [torch.empty(size).data_ptr() % 64 for size in (1, 3, 100, 12345)]
print("where new CPU tensors start, modulo 64:", fresh)

# %% [markdown]
# ## Memory channels, for one thread and for many
#
# Main memory has several [channels](../glossary.md#memory-channel), each with its own wires. How should data be laid out over four of
# them?
#
# In turns, 64 bytes here and 64 there? Or each array in a channel of its own? Take four channels and 64 KiB for each thread.

# %% tags=["predict"]
one_thread_share = helpers.predict(
    "One thread, its array in one channel: which share of the four channels works?", "%"
)
one_thread_share

# %% tags=["run"]
four = {"channels": 4, "units_in_flight": 4}
turns = data_movement.model_channels([0], bytes_each=64 * KIB, interleave_bytes=64, **four)
alone = data_movement.model_channels(
    [0], bytes_each=64 * KIB, interleave_bytes=64 * KIB, **four
)
starts = [thread * 64 * KIB for thread in range(4)]
own = data_movement.model_channels(
    starts, bytes_each=64 * KIB, interleave_bytes=64 * KIB, **four
)
shared = data_movement.model_channels(starts, bytes_each=64 * KIB, interleave_bytes=64, **four)
shares = {
    "1 thread": [turns.used_share, alone.used_share],
    "4 threads": [shared.used_share, own.used_share],
}
results.printed(pd.DataFrame(shares, index=["in turns of 64 bytes", "an array a channel"]))

# %% tags=["look"]
one_thread_share.reveal(modelled=100 / 4, simulated=100 * alone.used_share)

# %% [markdown] tags=["explain"]
# One thread needs the turns: in one channel it has a quarter of the wires. With a thread a channel both layouts use everything, and
# separate channels keep the threads out of each other's way. But that holds only while every thread is busy and stays with its own
# data, so hardware takes turns. No program can read here how; what it can see is how the rate grows with the threads:

# %% tags=["look", "nbval-ignore-output"]
latencies_s = [
    point.latency_s for point in limits.latencies if point.working_set_bytes >= 64 * MIB
]
try:
    threads = data_movement.sweep_threads(
        latency_s=latencies_s[0] if latencies_s else None, buffer_bytes=64 * MIB, budget_s=1.2
    ).table()
except native.MissingToolError as error:
    threads = pd.DataFrame({"not measured": [str(error)]})
results.printed(threads)

# %% [markdown] tags=["explain"]
# If two threads are not twice as fast as one, one thread has already filled the channels (or the cache that holds the 64 MiB), the
# two run on one core, or the machine is busy. Where turns take longer than blocks, the model has no reason: it knows no prefetching.

# %% [markdown]
# ## Energy against latency
#
# It is often said that a load from RAM is three to four orders of magnitude slower than a multiply-add, and that energy goes with
# latency. First the time, with the latency, the bandwidth and the peak that `probe` measured here:

# %% tags=["nbval-ignore-output"]
mac_s = 2 / limits.peak_flops["float32"]
waited_for, streamed = load_s / mac_s, 4 / limits.memory.bandwidth_bytes_per_s / mac_s
print(f"a load that is waited for, over a multiply-add at the peak: {waited_for:,.0f} times")
print(f"a number out of a long run, over a multiply-add at the peak: {streamed:.0f} times")

# %% [markdown]
# So it depends on the access. A load that nothing hides is three to four orders slower on many machines. In a long run loads
# overlap as multiply-adds do, and most of these orders are gone: the second line. If energy went with latency, the first
# ratio would be that of the energies too:

# %% tags=["predict"]
energy_ratio = helpers.predict(
    "An access of 64 bits to DRAM over a float32 multiply-add: ratio of the energies?",
    "x",
)
energy_ratio

# %% tags=["run"]
dram = history.energy_cost("DRAM").middle_j
adds = {"float32": "float32 add", "int8": "int32 add"}
mac_j = {
    dtype: history.energy_cost(f"{dtype} multiply").middle_j
    + history.energy_cost(add).middle_j
    for dtype, add in adds.items()
}

# %% tags=["look", "nbval-ignore-output"]
energy_ratio.reveal(
    modelled=waited_for, published=dram / mac_j["float32"], source="Horowitz, ISSCC 2014"
)

# %% tags=["look"]
for dtype, energy_j in mac_j.items():
    print(f"{dtype}: {dram / energy_j:,.0f} times")

# %% [markdown] tags=["explain"]
# Moving data takes energy as it takes time, but not in the same proportion: overlapping hides a wait, and saves no energy. The ratio
# needs a number format (it is larger for 8-bit integers) and a width: half of these 64 bits is one float32, at half the energy.

# %% [markdown]
# ## Questions that nobody could check
#
# A textbook asks thirteen questions about hardware, and gives no way to check an answer. Eleven are about memory, or the way to it.
#
# ("Dive into Deep Learning", chapter "Hardware".) Five you have answered: aligned against misaligned, sequence against stride, the sizes of caches, memory channels, forward against
# backward (above, and in the lesson). Here are the other six. Lesson 02 has the two about arithmetic.
#
# ### 1. The least worst-case wait of a disk with 10,000 turns a minute

# %% tags=["predict"]
disk_wait = helpers.predict(
    "The head is in place. How long may the data take to come round, at worst?", "s"
)
disk_wait

# %% tags=["run"]
turn_s = data_movement.revolution_s(10_000)

# %% tags=["look"]
disk_wait.reveal(modelled=turn_s)
print(f"one turn: {1000 * turn_s:.1f} ms, on average half of it: {500 * turn_s:.1f} ms")

# %% [markdown] tags=["explain"]
# No cleverness of the controller helps against having just missed it. Compare it with the latency of the disk under this notebook
# (above), which most likely does not turn.
#
# ### 2. Inner and outer rings, as the density grows
#
# Take a small platter, with rings from 1.5 to 3 cm from its centre, and bits that are squares.

# %% tags=["predict"]
ring_ratio = helpers.predict(
    "How many times more does the outermost ring hold than the innermost?", "x"
)
ring_ratio

# %% tags=["run"]
rings = {
    density: [data_movement.ring_bytes(radius_m, density) for radius_m in (0.015, 0.03)]
    for density in (1e12, 5e12)
}

# %% tags=["look"]
inner, outer = rings[1e12]
ring_ratio.reveal(modelled=outer / inner)
for density, (inner, outer) in rings.items():
    print(
        f"{density / 1e12:.0f} Tbit a square inch: inner {inner:,.0f} B, "
        f"outer {outer:,.0f} B, {outer / inner:.2f} times"
    )

# %% [markdown] tags=["explain"]
# The ratio is that of the radii and does not depend on the density. Five times the density gives a ring only $\sqrt 5$ times the
# bits; the other $\sqrt 5$ are more rings. The disk turns at one speed, so the outer rings are also faster by the same ratio, and a disk puts the
# first addresses there.
#
# ### 3. A disk's own cache
#
# Read a region twice, past the system's page cache. If the second time is faster, something on the other side remembers it.

# %% tags=["predict"]
twice = helpers.predict(
    "How many times faster is the second read of the same 1 MiB, past the page cache?", "x"
)
twice

# %% tags=["run"]
kept_by_disk = data_movement.sweep_disk_cache(
    file_bytes=16 * MIB, region_bytes=(1 * MIB, 4 * MIB, 8 * MIB), repeats=3
)
print(f"regions read: {[row.region_bytes // MIB for row in kept_by_disk.rows]} MiB")

# %% tags=["look", "nbval-ignore-output"]
twice.reveal(modelled=1, measured=kept_by_disk.rows[0].speedup)
print(kept_by_disk)

# %% [markdown] tags=["explain"]
# The model is a disk without a cache: both reads take the same time. If some rows are above 1 and some below, they are noise. If
# all are close to 1, either there is no cache or it is larger than the file and answered the first read as well. A virtual disk
# may be a file in another machine's memory, and no program inside can see that. Look at `bypass`: where the page cache could not
# be avoided, the rows are the page cache's.
#
# ### 4. What a packet carries besides the message

# %% tags=["predict"]
payload_share = helpers.predict(
    "1 byte sent by UDP over Ethernet: which share of what goes over the wire is the byte?",
    "%",
)
payload_share

# %% tags=["run"]
trips = data_movement.measure_loopback((1, 1400), budget_s=0.3)
one_byte = data_movement.packet_overhead(1, "UDP").payload_share

# %% tags=["look"]
payload_share.reveal(modelled=100 * one_byte)
for size in (1, 100, 1400, 65_507):
    by_protocol = {name: data_movement.packet_overhead(size, name) for name in ("UDP", "TCP")}
    print(
        f"{size:6,} B:",
        ", ".join(
            f"{name} {o.packets} packets, {o.payload_share:.1%}"
            for name, o in by_protocol.items()
        ),
    )

# %% tags=["look", "nbval-ignore-output"]
results.printed(trips.table())

# %% [markdown] tags=["explain"]
# Headers of UDP (8 bytes) or TCP (20), IP (20) and Ethernet, and Ethernet pads a frame to a least size: for one byte all of that is
# sent, and UDP's saving is lost in the padding. (A system's TCP may add options to its header, such as time stamps.) The times are those of the loopback, where there is no wire: they are the calls and
# the waking of two threads, and 1,400 bytes take hardly longer than one.
#
# ### 5. Why direct memory access?
#
# Somebody must move the bytes from the disk to memory. It can be the core, or the disk's controller by itself, which is called
# [direct memory access](../glossary.md#direct-memory-access).

# %% tags=["predict"]
core_share = helpers.predict(
    "Which share of a core does a read from the disk take, past the page cache?", "%"
)
core_share

# %% tags=["run"]
costs = data_movement.measure_copy_costs(moved_bytes=32 * MIB, passes=3)
assert len(costs.rows) >= 2

# %% tags=["look", "nbval-ignore-output"]
by_disk = [row.cpu_share for row in costs.rows if "DMA" in row.how]
core_share.reveal(modelled=0, measured=100 * by_disk[0] if by_disk else None)
print(costs)

# %% [markdown] tags=["explain"]
# A copy by a core takes the whole core. While the device writes to memory, the core is free for others: the share that is left is
# the system's work for each request. A GPU fetches its data in the same way, but only from pinned memory, which the system promises
# not to move (lesson 10).
#
# ### 6. The shortest round trip over 10,000 km

# %% tags=["predict"]
round_trip = helpers.predict(
    "How long does a message take at least, there and back, over 10,000 km of fibre?", "s"
)
round_trip

# %% tags=["run"]
from helpers.studies.data_movement import FIBRE_REFRACTIVE_INDEX

in_vacuum, in_fibre = (
    data_movement.shortest_round_trip_s(10_000e3, refractive_index=n)
    for n in (1, FIBRE_REFRACTIVE_INDEX)
)

# %% tags=["look"]
round_trip.reveal(modelled=in_fibre)
print(f"in a vacuum {1000 * in_vacuum:.1f} ms, in fibre {1000 * in_fibre:.1f} ms")

# %% [markdown] tags=["explain"]
# No better hardware shortens it: light is the last latency of the hierarchy. Bandwidth can be bought; latency has a floor, and what
# can be done about it is always the same: keep a copy near, ask early, ask for much at once, or do something else meanwhile.
