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
#       - write|wrote a pointer chase whose curve shows the caches of a machine
#       - measure|measured what many loads under way at once are worth
#       - count|counted the lines that a layout moves, for columns, embeddings and channels
#       - compare|compared a CPU with a GPU by latency and bandwidth
#       - model|modelled the time of moving a network, and the energy of an inference
# ---

# %% [markdown] tags=["objectives"]
# # Memory hierarchy
#
# Here are the same sixteen million additions in two orders. Which is faster, and by how much? No count of operations
# tells, because both have the same. The two orders wait differently for their numbers. [Latency](glossary.md#latency) is the wait for
# the first byte; [bandwidth](glossary.md#bandwidth) is the rate at which the rest arrive. You decide about them each time you lay out
# a tensor, look up an embedding, or choose a batch.
#
# You will measure this wait with a loop of three lines of your own, and find the [caches](glossary.md#cache) of your
# machine on the curve that it draws.

# %%
import numba
import numpy as np
import pandas as pd
import torch
from torch import nn

import helpers
from helpers import exercises, hardware, operations, plotting, recorded, timing, units

torch.set_num_threads(1)  # the memory as one core sees it
helpers.steady_allocator()
KIB, MIB = 2**10, 2**20

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# - A table: a million samples, 16 features each
# - Add it up row by row, or column by column
# - The same numbers, the same additions
#
# The table is stored as PyTorch stores every matrix, row after row.

# %% [markdown]
# Row by row goes in 16 blocks of rows, so that both orders make 16 calls.

# %% tags=["slide", "slide-code"] minutes=1
table = torch.rand(2**20, 16)  # 64 MiB
orders = {
    "row by row": lambda: [rows.sum() for rows in table.chunk(16)],
    "column by column": lambda: [table[:, column].sum() for column in range(16)],
}

# %% tags=["predict", "slide", "slide-output"] minutes=1
bet = helpers.predict("How many times as long do the columns take?", "x")
bet

# %% [markdown] tags=["slide"] minutes=2
# ## Part 1: from registers to swap
#
# - Near memory is small, large memory is far
# - Latency: the wait for the first byte
# - Bandwidth: the rate of those that follow
#
# The drawing has the levels of two machines side by side, with what each level holds and how fast main memory delivers.

# %%
ryzen, rtx_3090 = (hardware.device(name) for name in ("Ryzen 9 5950X", "GeForce RTX 3090"))


def size(held_bytes):
    number, unit = units.text(held_bytes, "B", binary=True).replace(",", "").split()
    return f"{float(number):g} {unit}"


towers = {
    "CPU: Ryzen 9 5950X, 16 cores": [
        ("registers", f"{size(ryzen.core_register_bytes)} a core"),
        ("L1", f"{size(ryzen.core_l1_bytes)} a core"),
        ("L2", f"{size(ryzen.l2_bytes // ryzen.cores)} a core"),
        ("L3", f"{size(ryzen.l3_bytes)}, in two halves"),
        ("main memory", units.text(ryzen.memory_bandwidth_bytes_per_s, "B/s")),
        ("swap", "a part of the disk"),
    ],
}

# %% tags=["slide", "slide-output"] minutes=1
device_rate = units.text(rtx_3090.memory_bandwidth_bytes_per_s, "B/s")
towers["GPU: RTX 3090, 82 cores"] = [
    ("registers", f"{size(rtx_3090.core_register_bytes)} a core"),
    ("L1, shared", f"{size(rtx_3090.core_l1_bytes)} a core"),
    ("L2", size(rtx_3090.l2_bytes)),
    None,
    ("device memory", f"{size(rtx_3090.memory_bytes)}, {device_rate}"),
    None,
]
drawn = plotting.draw_towers(
    towers,
    on_chip=4,
    bus=(4, "PCIe"),
    title="Two machines, from registers to swap (published)",
)
alt = (
    "Two towers: small registers on top, then caches, then memory outside the chip, then swap."
)
plotting.show(drawn, alt=alt)

# %% [markdown]
# The numbers count here, not the widths. Arithmetic happens in [registers](glossary.md#register). A cache keeps copies of what
# was used last. When main memory is full, the system moves pages that nobody used lately to the disk: that is
# [swap](glossary.md#swap). To touch such a page is a [page fault](glossary.md#page-fault), and the program waits for the disk. (A GPU also has *texture* memory: pictures
# in device memory, with a cache for neighbours in two dimensions.)
#
# How long does one load take? A loop over an array does not say, because a processor knows the next
# addresses and asks for them early. So let each load name the next: a *pointer chase*. Memory moves
# [cache lines](glossary.md#cache-line), *lines* for short, on most machines of 64 bytes. So give each line one pointer, and visit them
# in random order.
#
# **Your turn.** A row of eight numbers is a line. Its first number says which row comes next.


# %% tags=["yours"] yours="one_cycle"
def one_cycle(lines, random):
    """Return (lines, 8) numbers: row[0] is the next row on one random way through all rows."""
    order = random.permutation(lines)
    following = np.zeros((lines, 8), np.uint64)
    following[order, 0] = np.roll(order, -1)
    return following


# %% checks="one_cycle"
def visited(function, lines):
    following, seen, place = function(lines, np.random.default_rng(0)), set(), 0
    while place not in seen:
        seen.add(place)
        place = int(following[place, 0])
    return len(seen)


def to_neighbours(function, lines):
    following = function(lines, np.random.default_rng(0))[:, 0].astype(int)
    return int((following == np.arange(lines) + 1).sum()) // 8


asked = exercises.Checks("One random cycle", one_cycle)
few = visited(lambda lines, random: random.permutation(lines)[:, None], 64)
slips = {few: "A permutation falls apart into several cycles; you walk in one of them"}
asked.returns("comes by all 64 rows", (64,), call=visited, expected=64, mistakes=slips)
slips = {7: "A processor can guess the neighbour: mix the order"}
asked.returns("random order", (64,), call=to_neighbours, expected=0, mistakes=slips)
one_cycle = asked.settle()


# %% wrong="one_cycle" says="several cycles"
def one_cycle(lines, random):
    following = np.zeros((lines, 8), np.uint64)
    following[:, 0] = random.permutation(lines)
    return following


# %% wrong="one_cycle" says="mix the order"
def one_cycle(lines, random):
    following = np.zeros((lines, 8), np.uint64)
    following[:, 0] = np.roll(np.arange(lines), -1)
    return following


# %% [markdown]
# **Your turn.** The chase itself: load, and go where the load says.


# %% tags=["yours"] yours="chase"
def chase(following, place, loads):
    """Follow following[place, 0] so many times; return the last place."""
    for _ in range(loads):
        place = following[place, 0]
    return place


# %% checks="chase"
asked = exercises.Checks("The chase", chase)
rows = np.array([[3], [0], [1], [2]], np.uint64)
slips = {
    0: "The address of a load must come from the load before",
    3: "Each load says where the next one looks",
}
asked.returns("six loads in four rows", (rows, 0, 6), expected=2, mistakes=slips)
asked.returns("no load stays where it is", (rows, 1, 0), expected=1)
chase = asked.settle()


# %% wrong="chase" says="must come from the load before"
def chase(following, place, loads):
    for load in range(loads):
        place = following[load % len(following), 0]
    return place


# %% wrong="chase" says="where the next one looks"
def chase(following, place, loads):
    for _ in range(loads):
        last = following[place, 0]
    return last


# %% [markdown]
# [numba](https://numba.pydata.org) compiles your loop to machine code, for the types in the string: `u8[:, ::1]` is a table of
# unsigned numbers of 8 bytes, stored row after row. A walk goes on where it stopped, so that a large buffer is not walked on its first lines alone.


# %% tags=["slide", "slide-code"] minutes=1
walk = numba.njit("u8(u8[:, ::1], u8, i8)")(chase)
LOADS = 20_000


def walker(size_bytes):
    following = one_cycle(size_bytes // 64, np.random.default_rng(0))
    following = np.ascontiguousarray(following, np.uint64)
    state = [walk(following, 0, size_bytes // 64)]  # once round

    def go_on():
        state[0] = walk(following, state[0], LOADS)

    return go_on


# %% [markdown]
# Is there a model? A store of $n$ bits, laid out flat, has a side of $\sqrt n$, and a signal must cross it. So by geometry
# alone the latency grows with the root of the size.

# %% tags=["predict", "slide", "slide-output"] minutes=1
far_to_near = helpers.predict(
    "A load from 128 MiB takes how many times as long as one from 16 KiB?", "x"
)
far_to_near

# %% tags=["run"]
sizes = [2**power for power in range(12, 28)]
passes = [
    {each: timing.measure(walker(each), budget_s=0.1).minimum_s for each in sizes}
    for _ in range(2)
]
curve = {each: min(found[each] for found in passes) / LOADS for each in sizes}
walkers = {"16 KiB": walker(16 * KIB), "128 MiB": walker(128 * MIB)}
ends = timing.compare(walkers, budget_s=1, own_caches=True, precision=0.1)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
far_to_near.reveal(modelled=8192**0.5, measured=ends.candidate("128 MiB").time_ratio)

# %% tags=["explain"]
ratio = ends.candidate("128 MiB").time_ratio
timing.claim("a load from 128 MiB takes longer", ratio, at_least=10, evidence=ends)

# %% [markdown] tags=["explain"]
# Geometry is a rule of thumb: it leaves out the fixed time of a load and how dense main memory's chips (DRAM) are. But it says why
# there is a hierarchy. No memory is both large and near, so a machine has a small near one for what is used often, and larger ones behind it.
#
# Now the whole curve: first that of another machine, a virtual one on a large server. Inside a cache the curve is flat. A step
# begins a little before the cache is full and ends behind it; only the first is sharp.

# %% tags=["predict"]
server = recorded.load("01").result("limits")
alt = "A staircase: the time of a load is flat inside each cache and rises around its size."
drawn = plotting.draw_latencies(server.latencies, title="Another machine (recorded)")
plotting.show(drawn, alt=alt)
print(recorded.load("01").source)
second = helpers.predict("Read the curve: how large is that machine's second cache?", "MiB")
second

# %% tags=["run"]
found = hardware.find_change_points(server.latencies)
by_system = {each.name: each.size_bytes for each in server.memory_levels[:-1]}
second.reveal(stated=by_system["L2"] / MIB)
print("found on the curve:", ", ".join(size(each) for each in found))
print("stated:", ", ".join(f"{name} {size(each)}" for name, each in by_system.items()))

# %% tags=["look", "slide", "slide-output"] minutes=2
points = [hardware.LatencyPoint(each, load_s) for each, load_s in curve.items()]
caches = {
    f"L{each.level}": each.size_bytes
    for each in helpers.machine_card().caches or ()
    if each.kind != "instruction" and each.size_bytes
}
drawn = plotting.draw_latencies(points, caches=caches, title="Your chase, on this machine")
recorded_sizes, recorded_s = zip(
    *[(each.working_set_bytes, each.latency_s) for each in server.latencies], strict=True
)
drawn.axes[0].plot(recorded_sizes, recorded_s, "--", color="#882255")
drawn.axes[0].annotate("recorded", (recorded_sizes[-9], recorded_s[-9] / 2), color="#882255")
plotting.show(
    drawn, alt="Two curves rise in steps as the working set outgrows cache after cache."
)

# %% [markdown] tags=["explain"]
# So one measures a cache. The search finds six steps for three caches, because a slow step counts as several: the first is L1, the
# next two are L2. The last three lie far below the stated 480 MiB: other programs share the last cache, and a virtual machine may
# own a part of it. The processor also keeps the addresses of pages in a small table, the [TLB](glossary.md#tlb), and a buffer with
# more pages than that makes another step. Why is the first step so sharp? The line that goes is the [least recently
# used](glossary.md#least-recently-used), and on a cycle that is always the one needed next. (In the first cache your chase may lie
# above a recorded one: that one is C++ and has an instruction or two less a load.)

# %% [markdown] tags=["slide"] minutes=2
# ## Part 2: many loads at once
#
# - One chase: each load waits for the one before
# - Eight chases in turn: eight loads that do not know each other
# - Each takes as many steps as before
#
# Here are many chases in one loop, each with a place of its own.


# %% tags=["predict", "slide", "slide-output"] minutes=1
@numba.njit("void(u8[:, ::1], u8[::1], i8)")
def chases(following, places, loads):
    for _ in range(loads):
        for each in range(len(places)):
            places[each] = following[places[each], 0]


eight = helpers.predict(
    "128 MiB: eight chases at once take how many times as long as one?", "x"
)
eight

# %% tags=["run"]
lines, numbers = 128 * MIB // 64, (1, 2, 4, 8, 16, 32)
following = one_cycle(lines, np.random.default_rng(1))
following, places = np.ascontiguousarray(following, np.uint64), [0]
for _ in range(sum(numbers) - 1):  # far from each other on the way
    places.append(walk(following, places[-1], lines // sum(numbers)))
parts = np.split(np.array(places, np.uint64), np.cumsum(numbers)[:-1])
starts = dict(zip(numbers, parts, strict=True))
at_once = timing.compare(
    {str(n): lambda n=n: chases(following, starts[n], 1_000) for n in numbers},
    budget_s=2,
    precision=0.1,
)

# %% tags=["look", "nbval-ignore-output"]
eight.reveal(modelled=1, measured=at_once.candidate("8").time_ratio)

# %% tags=["look", "slide", "slide-output"] minutes=1
line_s = [at_once.candidate(str(n)).median_s / 1_000 / n for n in numbers]
drawn = plotting.draw_curves(
    numbers,
    {"modelled": [line_s[0] / n for n in numbers], "measured": line_s},
    unit="s",
    size_unit="",
    title="Loads that do not wait for each other",
    xlabel="chases at once",
    ylabel="time per load",
)
plotting.show(drawn, alt="The time per load falls with the number of chases, then levels off.")

# %% tags=["explain"]
ratio = at_once.candidate("8").time_ratio
timing.claim("eight chases take little more time than one", ratio, at_most=2, evidence=at_once)

# %% [markdown] tags=["explain"]
# The core does not stop at a load. It starts the next while the first waits, unless the next needs what the first brings. In the
# model all wait together, so that $n$ chases take the time of one. A core keeps a limited number of lines on their way; at that
# number the curve leaves the model.
#
# What a core does for eight chases it does for every loop whose addresses are known ahead. Here is one that turns the sign of each
# number, as `x.neg_()` does. It reads a line and writes it back:


# %% tags=["run"]
@numba.njit("void(f4[::1], i8)")
def negate(numbers, times):
    for _ in range(times):
        for place in range(numbers.size):
            numbers[place] = -numbers[place]


def negated_line_s(size_bytes):
    numbers, times = torch.ones(size_bytes // 4).numpy(), max(1, 4 * MIB // size_bytes)
    timed = timing.measure(lambda: negate(numbers, times), budget_s=0.05)
    return timed.minimum_s / times / (size_bytes // 64)


# %% tags=["look", "slide", "slide-output"] minutes=2
in_a_row = [negated_line_s(each) for each in sizes]
drawn, axes = plotting.figure(title="A line of 64 bytes: waited for, or one of many")
axes.loglog(sizes, curve.values(), "o-", color=plotting.MEASURED, label="chase: read")
axes.loglog(sizes, in_a_row, "s--", color=plotting.MEASURED, label="loop: read, written")
axes.fill_between(sizes, in_a_row, list(curve.values()), color=plotting.MEASURED, alpha=0.15)
plotting.unit_axis(axes, "x", "B", binary=True)
plotting.unit_axis(axes, "y", "s")
axes.set_xticks(sizes[::3])
axes.minorticks_off()
axes.set(xlabel="working set", ylabel="time of a line")
axes.legend()
plotting.show(
    drawn, alt="Both curves are lowest in the first cache; the chase lies far above the loop."
)

# %% tags=["look", "nbval-ignore-output"]
far_s, rate = curve[128 * MIB], 64 / in_a_row[-1]
print(f"from 128 MiB: latency {units.text(far_s, 's')}, read at {units.text(rate, 'B/s')}")
chased, looped = line_s[0] / line_s[-1], far_s / in_a_row[-1]
print(f"lines on their way: {chased:.0f} in 32 chases, at most {looped:.0f} in the loop")

# %% [markdown] tags=["explain"]
# The first cache is the fastest for both. The gap is what order is worth: at most that many lines under way, and shorter waits.
# [Little's law](glossary.md#littles-law) counts the lines: $\text{bytes in flight} = \text{bandwidth} \cdot \text{latency}$. We
# count only lines read, because nobody waits for one that is written back. The loop can do better than 32 chases for two reasons. A
# [hardware prefetcher](glossary.md#hardware-prefetcher) guesses the next lines of a sequence and fetches them before the core asks.
# And the loop seldom meets a new page, so each wait is shorter than a chase's: that is why we say at most.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 3: lines
#
# - Memory moves whole lines: 16 numbers of 4 bytes
# - Who uses one number of a line has moved all of it
# - So count lines, not numbers

# %% tags=["slide", "slide-output"] minutes=1
line, place = np.mgrid[:16, :16]
shades = np.array(["white", plotting.COLOURS["waiting"], plotting.COLOURS["computing"]])
drawn, axes = plotting.figure(title="16 numbers wanted (blue), and what comes along (grey)")
for left, name, wanted, moved in (
    (0, "a row: one line", line == 5, line == 5),
    (19, "a column: 16 lines", place == 5, line >= 0),
):
    colours = shades[1 * moved + wanted]
    look = {"marker": "s", "s": 110, "edgecolors": "#777777", "linewidths": 0.5}
    axes.scatter(left + place, line, c=colours.ravel(), **look)
    axes.text(left + 7.5, 17.5, name, ha="center")
axes.invert_yaxis()
axes.set_aspect("equal")
axes.axis("off")
alt = "Two tables of 16 lines: a row uses all of one line, a column one number of each line."
plotting.show(drawn, alt=alt)

# %% [markdown]
# **Your turn.** A tensor says where its numbers lie: number $(i, j)$ stands at `storage_offset()` $+\, i \cdot$
# `stride(0)` $+\, j \cdot$ `stride(1)`, counted in numbers. The storage starts on a line.


# %% tags=["yours"] yours="lines_touched"
def lines_touched(view):
    """Return how many different lines of 64 bytes hold the numbers of a view."""
    places = torch.tensor([view.storage_offset()])
    for size, stride in zip(view.shape, view.stride(), strict=True):
        places = (places[:, None] + stride * torch.arange(size)).flatten()
    return len((places * view.element_size() // 64).unique())


# %% checks="lines_touched"
asked = exercises.Checks("Lines touched", lines_touched)
square = torch.arange(1024.0).view(32, 32)
asked.returns("a row", (square[0],), expected=2, mistakes={32: "Neighbours share a line"})
slips = {2: "That is the bytes over 64: a column has one number a line"}
asked.returns("a column", (square[:, 0],), expected=32, mistakes=slips)
late = {1: "It begins in the middle of a line: add the offset"}
asked.returns("begins late", (square[0, 8:24],), expected=2, mistakes=late)
asked.returns("halves", (square.half()[:, ::16],), expected=32)
lines_touched = asked.settle()


# %% wrong="lines_touched" says="Neighbours share a line"
def lines_touched(view):
    return view.numel()


# %% wrong="lines_touched" says="one number a line"
def lines_touched(view):
    return -(-view.numel() * view.element_size() // 64)


# %% wrong="lines_touched" says="add the offset"
def lines_touched(view):
    places = torch.zeros(1, dtype=torch.long)
    for size, stride in zip(view.shape, view.stride(), strict=True):
        places = (places[:, None] + stride * torch.arange(size)).flatten()
    return len((places * view.element_size() // 64).unique())


# %% [markdown] tags=["slide"] minutes=1
# ### Back to the bet
#
# How many times as long do the columns take?
#
# Your function counts the lines of the first 1,024 samples. The same loops also run on a table of 1 MiB, which lies near.

# %% tags=["run"]
part = table[:1024]
by_rows = sum(lines_touched(rows) for rows in part.chunk(16))
by_columns = sum(lines_touched(part[:, column]) for column in range(16))
summed = timing.compare(orders, budget_s=2, precision=0.1)
near = table[: 2**14].clone()  # 1 MiB
near_orders = {
    "row by row": lambda: [rows.sum() for rows in near.chunk(16)],
    "column by column": lambda: [near[:, column].sum() for column in range(16)],
}
summed_near = timing.compare(near_orders, budget_s=1, precision=0.1)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
bet.reveal(
    modelled=by_columns / by_rows, measured=summed.candidate("column by column").time_ratio
)

# %% tags=["explain"]
print(f"lines moved: {by_rows:,} by rows, {by_columns:,} by columns")
ratios = []
for name, found, bound in (("64 MiB", summed, 3), ("1 MiB", summed_near, 1.5)):
    ratios.append(found.candidate("column by column").time_ratio)
    timing.claim(f"{name}: columns take longer", ratios[-1], at_least=bound, evidence=found)
print(f"the first over the second: {ratios[0] / ratios[1]:.1f} times (measured)")

# %% [markdown] tags=["explain"]
# Down a column, each line brings one feature that is wanted and fifteen that are not, and it is gone from the near caches before
# the next column asks for it. Our model counts only lines. The small table lies near, though not in the first cache, and its columns
# are slower too: strided code is also slower in itself, because numbers that lie apart fill no [SIMD](glossary.md#simd) register with
# one load. So a result near 16 does not prove the model. What the far lines add is the ratio printed last.
#
# `table.sum(0)` asks for the same sums in one call, and leaves the order to the library.
#
# ### An embedding
#
# An embedding looks up rows at places that nobody can guess. Take tables of 64 MiB, with rows of 4, 16 or 64 numbers, and
# 65,536 look-ups in each.

# %% tags=["predict"]
longer = helpers.predict(
    "Rows of 64 numbers and not 4, 16 times the bytes: how many times the time?", "x"
)
longer

# %% tags=["run"]
tables = {width: torch.rand(2**24 // width, width) for width in (4, 16, 64)}
places = {width: torch.randint(2**24 // width, (2**16,)) for width in tables}
looked_up = timing.compare(
    {
        str(width): lambda width=width: nn.functional.embedding(places[width], tables[width])
        for width in tables
    },
    budget_s=2,
    precision=0.1,
)

# %% tags=["look", "nbval-ignore-output"]
of_a_row = {width: lines_touched(each[:1]) for width, each in tables.items()}
measured = looked_up.candidate("64").time_ratio
longer.reveal(modelled=of_a_row[64] / of_a_row[4], measured=measured)

# %% tags=["look", "slide", "slide-output"] minutes=1
rows = {}
for width, moved in of_a_row.items():
    ratio = looked_up.candidate(str(width)).time_ratio
    used = f"{100 * width / (16 * moved):.0f} %"
    rows[f"{width} numbers"] = [moved, used, width / 16, f"{ratio:.1f} times (measured)"]
pd.DataFrame(rows, index=["lines read", "used", "written", "time over the first"]).T

# %% tags=["explain"]
ratio = looked_up.candidate("64").time_ratio
timing.claim(
    "16 times the bytes take less than 16 times as long", ratio, at_most=12, evidence=looked_up
)

# %% [markdown] tags=["explain"]
# A row of 16 bytes moves a whole line, three quarters of it for nothing. So a row of a whole line costs little more, and
# a wide row is cheaper a number than a narrow one. The model counts the lines that a look-up waits for. It leaves out the result, 1 MiB
# against 16, because it is written in order and nobody waits for it. Where the ratio is below 4, lines that lie side by side came
# together, and part of each look-up did not depend on the row's length.
#
# ### Channels last
#
# A batch of images has four axes, and somebody chose which one lies side by side.
# [Channels-last](glossary.md#channels-last) puts the channels of a pixel together:

# %% tags=["run"]
images = torch.rand(8, 64, 56, 56)
layouts = {
    "channels last": images.to(memory_format=torch.channels_last),
    "channels first": images,
}
rows = {
    name: [lines_touched(part) for part in (each[0, :, 5, 5], each[0, 5], each[0])]
    for name, each in layouts.items()
}
norms = {
    name: lambda each=each: nn.functional.layer_norm(each.permute(0, 2, 3, 1), (64,))
    for name, each in layouts.items()
}
norms["the copy"] = lambda: images.permute(0, 2, 3, 1).contiguous()
normed = timing.compare(norms, budget_s=1, precision=0.1)

# %% tags=["look", "slide", "slide-output"] minutes=1
pd.DataFrame(rows, index=["lines of a pixel", "of a channel", "of an image"]).T

# %% tags=["explain"]
sentence = "a layer norm over the channels of each pixel takes longer channels first"
ratio = normed.candidate("channels first").time_ratio
timing.claim(sentence, ratio, at_least=1.2, evidence=normed)
copied = normed.candidate("the copy").time_ratio
print(f"a copy from channels first to last alone: {copied:.2g} times (measured)")

# %% [markdown] tags=["explain"]
# Shapes and results are the same. A pixel's channels lie in 16 times fewer lines channels last. But the norm takes all pixels, and
# the image has as many lines in either layout, so lines do not explain its time. PyTorch's layer norm wants each pixel's channels
# side by side: channels first, it makes such a copy before it begins. Who asks for one channel wants the other layout. So count, then
# measure.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 4: a GPU hides the wait
#
# - A CPU spends its area on making one thread fast
# - A GPU spends it on arithmetic
# - While some threads wait for memory, others compute

# %% tags=["slide", "slide-output"] minutes=1
drawn = plotting.draw_dies()
alt = "Two squares: the CPU's is mostly caches and control, the GPU's mostly arithmetic."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# It is a drawing: no processor has exactly these shares. A *thread* is one walk through a program, with registers of its own. A
# Ryzen 9 5950X has 16 cores, runs 32 threads on them, and reaches 3.4 to 4.9 GHz ([AnandTech](https://www.anandtech.com/show/16214/), 2020). And an RTX 3090? A common error is to take its "10,496
# CUDA cores" for threads. They are arithmetic units, 128 in each of 82 [multiprocessors](glossary.md#multiprocessor). Each
# multiprocessor keeps up to 1,536 threads ([CUDA C++ Programming
# Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities), compute capability 8.6).
#
# How long do they wait? A chase on an A100, of the same generation, took 33 cycles to the first cache, 200 to L2 and 290 to
# device memory (Abdelkhalik and others, "Demystifying the Nvidia Ampere Architecture", 2022, Table IV,
# [arXiv:2208.11174](https://arxiv.org/abs/2208.11174)). We take these for the RTX 3090 too, at its own clock. The
# clock follows from its peak: each unit does two operations a cycle.

# %% tags=["run"]
peak = rtx_3090.peak("float32", unit="vector").dense_flops_per_s
gpu_hz = peak / (rtx_3090.cores * 128 * 2)
print(f"units: {rtx_3090.cores * 128:,}, threads at once: {rtx_3090.cores * 1536:,}")
in_flight = rtx_3090.memory_bandwidth_bytes_per_s * 290 / gpu_hz
print(f"bytes in flight: {in_flight:,.0f}, at 4 a thread {in_flight / 4:,.0f} threads wait")
print(f"in each of {rtx_3090.cores} multiprocessors: {in_flight / rtx_3090.cores:,.0f} bytes")

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2
waits_s, gpu_rate = [33 / gpu_hz, 290 / gpu_hz], rtx_3090.memory_bandwidth_bytes_per_s
rows = {
    "core, measured": [curve[16 * KIB], far_s, rate],
    "Ryzen, published": [None, None, ryzen.memory_bandwidth_bytes_per_s],
    "RTX 3090, modelled": [*waits_s, gpu_rate],
    f"one of its {rtx_3090.cores} cores": [*waits_s, gpu_rate / rtx_3090.cores],
}
shown = {
    name: [units.text(first_s, "s"), units.text(last_s, "s"), units.text(moved, "B/s")]
    for name, (first_s, last_s, moved) in rows.items()
}
columns = ["load: L1", "load: memory", "bandwidth"]
compared = pd.DataFrame(shown, index=columns).T
compared["in flight"] = [
    units.text(last_s and last_s * moved, "B") for _, last_s, moved in rows.values()
]
compared

# %% [markdown] tags=["explain"]
# A core's bandwidth counts reads, as above. The GPU's is published; its waits are modelled, so it is chance how near they come to
# ours. But a GPU does not wait less. A multiprocessor has about as
# many bytes in flight as our one core. The GPU has 82 of them.

# %% tags=["look", "slide", "slide-output"] minutes=2
drawn, axes = plotting.figure(title="A core, a multiprocessor, a GPU: bytes in flight")
for held in (64, 4 * KIB, 256 * KIB):
    axes.loglog([2e-8, 2e-6], [held / 2e-8, held / 2e-6], ":", color="#777777")
    axes.text(8e-7, 1.5 * held / 8e-7, f"{size(held)} in flight", fontsize=10)
for name, moved in {"one chase here": 64 / far_s, "a core here": rate}.items():
    axes.loglog(far_s, moved, "o", color=plotting.MEASURED)
    axes.text(far_s / 1.1, moved / 1.3, name, ha="right", va="top")
gpu = {"a multiprocessor": gpu_rate / rtx_3090.cores, "RTX 3090": gpu_rate}
for name, moved in gpu.items():
    axes.loglog(waits_s[1], moved, "o", mfc="none", color=plotting.MODELLED, markersize=13)
    axes.text(1.1 * waits_s[1], moved / 1.3, name, va="top")
plotting.unit_axis(axes, "x", "s")
plotting.unit_axis(axes, "y", "B/s")
axes.set(xlabel="latency of memory", ylabel="bandwidth")
alt = "A core and a multiprocessor lie near each other, a whole GPU far above them."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# About a third of its threads, each with one number on its way, fill the bus. (Another study finds 400 cycles in place of 290:
# [PMC10448217](https://pmc.ncbi.nlm.nih.gov/articles/PMC10448217/table/t0015), Table 3. Then it is nearly half.)

# %% [markdown] tags=["slide"] minutes=1
# ### Memory inversion
#
# - In a CPU each level holds more than the one before
# - On a GPU every waiting thread keeps its registers
# - The towers of Part 1 have the sizes

# %% tags=["predict", "slide", "slide-output"] minutes=1
inversion = helpers.predict("RTX 3090: all registers together, over the L2 cache?", "x")
inversion

# %% tags=["run"]
chosen = ["Ryzen 9 5950X", "V100 SXM2", "GeForce RTX 3090", "A100 SXM 40 GB", "H100 SXM 80 GB"]
on_chip = hardware.memory_inversion(chosen).devices
ratio = {row.name: row.registers_to_l2_ratio for row in on_chip}
held = {row.name: row.register_bytes for row in on_chip}

# %% tags=["look"]
inversion.reveal(published=ratio["GeForce RTX 3090"], source="the table of devices")
print(f"registers: {held['GeForce RTX 3090']:,} B, the Ryzen's {held['Ryzen 9 5950X']:,} B")

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_inversion(on_chip)
alt = "Bytes by level: the CPU's line rises, the RTX 3090's falls, the A100's rises at L2."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# Taken as a whole, a GPU has far more registers than a CPU. In the V100 and RTX 3090 each level is smaller than the one before. The
# A100 and the H100 break the pattern: their L2 is larger than their registers.

# %% [markdown] tags=["slide"] minutes=1
# ### Memory spaces
#
# - A CPU's caches work unseen
# - On a GPU the program says which memory it means

# %% tags=["slide", "slide-output"] minutes=1
drawn = plotting.draw_memory_spaces()
alt = "Six rows: register and local per thread, shared per block, the others for all threads."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# "Local" memory is local to a thread, but lies in device memory: registers spill to it. "Shared" memory lies on the chip
# and is a cache that the program fills itself; a block of threads shares it. In lesson 02 you fill it.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 5: moving a network
#
# - A transfer pays for the wait, then for its bytes
# - A network moves tensor by tensor
# - `model.to(device)`: one transfer a parameter
#
# **Your turn**: the model of a move. It is the same for a bus, a network and a disk.


# %% tags=["yours"] yours="move_s"
def move_s(tensors, latency_s, bytes_per_s):
    """Return the modelled seconds of moving each of the tensors after the other."""
    total_bytes = sum(each.numel() * each.element_size() for each in tensors)
    return len(tensors) * latency_s + total_bytes / bytes_per_s


# %% checks="move_s"
asked = exercises.Checks("Moving tensors", move_s)
two = [torch.zeros(100), torch.zeros(50, 2, dtype=torch.float64)]
slips = {
    4.0: "Bytes, not numbers: ask each tensor for element_size()",
    10.0: "A number of the second tensor has 8 bytes",
    13.0: "Each tensor waits: two latencies here",
}
asked.returns(
    "800 + 400 bytes, 100 a second", (two, 1.0, 100.0), expected=14.0, mistakes=slips
)
move_s = asked.settle()


# %% wrong="move_s" says="Each tensor waits"
def move_s(tensors, latency_s, bytes_per_s):
    return latency_s + sum(each.nbytes for each in tensors) / bytes_per_s


# %% wrong="move_s" says="Bytes, not numbers"
def move_s(tensors, latency_s, bytes_per_s):
    return len(tensors) * latency_s + sum(each.numel() for each in tensors) / bytes_per_s


# %% [markdown]
# Fifty layers of 16 x 16, and one layer of 4,096 x 4,096. We move them within main memory; with a GPU, write `.to("cuda")`.
# Here $\alpha$, the `latency_s` of your model, is the fixed cost of a call: the time of copying one number. The bandwidth is that of a
# copy of 128 MiB.

# %%
networks = {
    "fifty small": nn.Sequential(*[nn.Linear(16, 16) for _ in range(50)]),
    "one large": nn.Linear(4096, 4096),
}
tensors = {name: list(network.parameters()) for name, network in networks.items()}
for name, found in tensors.items():
    print(f"{name}: {len(found)} tensors, {sum(each.nbytes for each in found):,} B")


def moves(tensors):
    return lambda: [each.detach().clone() for each in tensors]


latency_s = timing.measure(moves([torch.ones(1)]), budget_s=0.3).median_s
many = torch.ones(32 * MIB)
bytes_per_s = many.nbytes / timing.measure(moves([many]), budget_s=0.5).median_s
print(f"a call {units.text(latency_s, 's')}, then {units.text(bytes_per_s, 'B/s')}")

# %% tags=["predict", "slide", "slide-output"] minutes=1
larger = helpers.predict("How many times as long does the one large layer take to move?", "x")
larger

# %% tags=["run"]
both = {name: moves(found) for name, found in tensors.items()}
moved = timing.compare(both, budget_s=1, precision=0.1)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
modelled_s = {name: move_s(found, latency_s, bytes_per_s) for name, found in tensors.items()}
measured = moved.candidate("one large").time_ratio
larger.reveal(modelled=modelled_s["one large"] / modelled_s["fifty small"], measured=measured)

# %% tags=["explain"]
ratio = moved.candidate("one large").time_ratio
timing.claim("the time grows by less than the bytes do", ratio, at_most=300, evidence=moved)

# %% [markdown] tags=["explain"]
# The large one has 1,234 times the bytes. The fifty pay for a hundred calls, the one for its bytes. So a framework
# packs many small gradients into one buffer before it sends them (lesson 04). With `Module.to` the inputs stay where they were: a forgotten `x.to(device)` is an error
# and not a copy.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 6: energy
#
# - Moving a number takes energy, as computing does
# - Other work can hide the time of a move
# - Nothing hides its energy
#
# Here is a chip of 45 nm (Horowitz, "Computing's Energy Problem", ISSCC 2014). An access is one of 64 bits.

# %% tags=["slide", "slide-output"] minutes=1
drawn = plotting.draw_energy(hardware.energy_costs().costs)
alt = (
    "Energies: additions and products below 4 picojoules, caches 10 to 100, DRAM above 1,000."
)
plotting.show(drawn, alt=alt)

# %% [markdown]
# We model one image through LeNet. Weights and image come from DRAM once. Every operator then reads and writes a cache of 8 KB. An
# access to DRAM counts with the middle of its range.

# %% tags=["predict"]
lenet = helpers.LeNet()
weight_bytes = sum(weight.nbytes for weight in lenet.parameters())
counts = {batch: operations.profile_ops(lenet, (batch, 1, 28, 28)) for batch in (1, 64)}
cached = {
    n: each.forward_read_bytes + each.forward_written_bytes for n, each in counts.items()
}
print(f"{counts[1].forward_macs:,} multiply-adds, {weight_bytes:,} bytes of weights")
print(f"{cached[1]:,} bytes to and from the cache")
for name in ("float32 multiply", "float32 add", "cache of 8 KB", "DRAM"):
    print(f"{name}: {1e12 * hardware.energy_cost(name).middle_j:,.4g} pJ")
share = helpers.predict("LeNet, one image: which share of the energy is DRAM's?", "%")
share

# %% tags=["run"]
energies = {
    batch: hardware.inference_energy(
        counted.forward_macs,
        dram_bytes=weight_bytes + batch * 28 * 28 * 4,
        cache_bytes=cached[batch],
    )
    for batch, counted in counts.items()
}

# %% tags=["look"]
share.reveal(modelled=100 * energies[1].dram_share)

# %% tags=["look", "slide", "slide-output"] minutes=1
parts = {
    f"batch of {batch}": [1e6 / batch * j for j in (e.arithmetic_j, e.cache_j, e.dram_j)]
    for batch, e in energies.items()
}
frame = pd.DataFrame(parts, index=["arithmetic", "cache", "DRAM"])
frame.loc["together"] = frame.sum()
frame.round(2).rename_axis("microjoules an image", axis=1)

# %% [markdown] tags=["explain"]
# Nobody measured this energy: it is counts times published costs, and a floor, because instructions and clocks are not in it. One image
# alone pays for fetching the weights. Sixty-four share them, and an image costs a fifteenth. (The cache's part falls too: each operator
# reads its weights once a batch.) The reuse that makes a batch fast makes it cheap.

# %% [markdown]
# `helpers.probe()` measures all of this for your machine and keeps it; later lessons model with it. The
# [appendix](appendix/01_memory_hierarchy.ipynb) has more experiments: fresh pages, strides, alignment, the [ways](glossary.md#ways) of
# a cache, [memory channels](glossary.md#memory-channel), the [page cache](glossary.md#page-cache), and
# [DMA](glossary.md#direct-memory-access). In the [exercises](exercises/01_memory_hierarchy_exercises.ipynb) you write a cache
# and read a curve.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Further out is slower and costs more energy; on a CPU it is also larger.
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
# | energy | $\text{MAC} \cdot e_{MAC} + \text{accesses} \cdot e_{access}$ | a floor |
