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
# Here are sixteen million additions in two orders. Which is faster, and by how much? Both orders do the same number of
# additions, so counting them cannot tell. They wait differently for their numbers. [Latency](glossary.md#latency) is the wait
# for the first byte; [bandwidth](glossary.md#bandwidth) is the rate at which the rest arrive. You decide about both each time
# you lay out a tensor, look up an embedding, or choose a batch.
#
# You will measure the wait with a loop of three lines of your own, and find the [caches](glossary.md#cache) of your
# machine on its curve.

# %%
import itertools

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


def size(held_bytes):
    number, unit = units.text(held_bytes, "B", binary=True).replace(",", "").split()
    return f"{float(number):g} {unit}"


# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# - A table: a million samples, 16 features each
# - Add it up row by row, or column by column
# - The same numbers, as many additions
#
# The table is stored as PyTorch stores every matrix, row after row.

# %% [markdown]
# Row by row goes in 16 blocks of rows, so that both orders make 16 calls.

# %% tags=["slide", "slide-code"] minutes=1 headline="The same table, added up in two orders"
table = torch.rand(2**20, 16)  # 64 MiB
orders = {
    "row by row": lambda: [rows.sum() for rows in table.chunk(16)],
    "column by column": lambda: [table[:, column].sum() for column in range(16)],
}

# %% tags=["predict", "slide", "slide-output"] minutes=1
bet = helpers.predict("How many times as long do the columns take?", "x")
bet

# %% [markdown]
# ## Part 1: from registers to swap
#
# - Near memory is small, large memory is far
# - Latency: the wait for the first byte
# - Bandwidth: the rate of those that follow
#
# Here are the levels of two machines. Each bar on the chip is as wide as the logarithm of what the whole chip holds there.

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

# %% tags=["slide", "slide-output"] minutes=1 headline="This CPU widens outwards, this GPU narrows"
device_rate = units.text(rtx_3090.memory_bandwidth_bytes_per_s, "B/s")
towers["GPU: RTX 3090, 82 multiprocessors"] = [
    level("registers", rtx_3090.cores * rtx_3090.core_register_bytes),
    level("L1, shared", rtx_3090.cores * rtx_3090.core_l1_bytes),
    level("L2", rtx_3090.l2_bytes),
    None,
    ("device memory", f"{size(rtx_3090.memory_bytes)}, {device_rate}"),
    None,
]
drawn = plotting.draw_towers(
    towers,
    on_chip=4,
    bus=(4, "PCIe"),
    title="Two machines (sizes and rates: published)",
)
alt = "Two towers: the CPU's widens from registers to L3, the GPU's narrows down to L2."
plotting.show(drawn, alt=alt)

# %% [markdown]
# Arithmetic happens in [registers](glossary.md#register). A cache keeps copies of what
# was used last. When main memory is full, the system moves pages that nobody used lately to the disk: that is
# [swap](glossary.md#swap). To touch such a page is a [page fault](glossary.md#page-fault), and the program waits for the disk.
#
# The drawing lacks the waits. How long does one load take? A loop over an array does not say, because a processor knows the next
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
# unsigned numbers of 8 bytes, stored row after row. Beside it stands a loop of the same loads, one from each line, in the order
# of the addresses.


# %% tags=["slide", "slide-code"] minutes=1 headline="A chase learns each address from the load before" lines=[1, 11]
walk = numba.njit("u8(u8[:, ::1], u8, i8)")(chase)


@numba.njit("u8(u8[:, ::1], i8)")
def in_order(following, times):
    total = np.uint64(0)
    for _ in range(times):
        for place in range(len(following)):
            total += following[place, 0]
    return total


LOADS = 20_000


# %%
def buffer(size_bytes):
    following = one_cycle(size_bytes // 64, np.random.default_rng(0))
    return np.ascontiguousarray(following, np.uint64)


def chased(following):
    place = [walk(following, 0, min(len(following), MIB))]  # once round, up to 64 MiB

    def go_on():  # where the last walk stopped
        place[0] = walk(following, place[0], LOADS)

    return timing.measure(go_on, budget_s=0.05), LOADS


def looped(following):
    times = max(1, LOADS // len(following))
    found = timing.measure(lambda: in_order(following, times), budget_s=0.05)
    return found, times * len(following)


# %% [markdown]
# A first model counts lines: in either loop each load brings one line. (A second one on paper: at the
# Ryzen's 51.2 GB/s a line can come every 1.25 ns. How long do you think a wait is?)

# %% tags=["predict", "slide", "slide-output"] minutes=1
order = helpers.predict(
    "1 GiB: the chase takes how many times as long as the same loads in order?", "x"
)
order

# %% tags=["run"]
fine = {*range(32, 44), *range(52, 81)}  # four an octave where a cache may end, else one
steps = sorted({*range(24, 97, 4), *fine})
sizes = [64 * round(2 ** (step / 4)) for step in steps]
timed = {(name, each): [] for name in ("chase", "in order") for each in sizes}
for each in sizes[:-4] + sizes:  # all but the largest twice
    following = buffer(each)
    timed["chase", each].append(chased(following))
    timed["in order", each].append(looped(following))
best_s = {
    key: min(found.minimum_s / loads for found, loads in runs) for key, runs in timed.items()
}
curve, in_a_row = ([best_s[name, each] for each in sizes] for name in ("chase", "in order"))

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The same lines take many times as long"
order.reveal(modelled=1, measured=curve[-1] / in_a_row[-1])

# %% tags=["explain"]
ends = [timed[name, sizes[-1]][0][0] for name in ("chase", "in order")]
timing.claim("the chase takes longer", curve[-1] / in_a_row[-1], at_least=10, evidence=ends)

# %% [markdown] tags=["explain"]
# As many lines come, so the wait makes the difference. In order, the processor knows the next addresses and asks early. In
# the chase it learns an address from the load before, and waits each time.
#
# How long it waits depends on where the line lies:

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Each cache that is outgrown slows a load"
points = [hardware.LatencyPoint(*point) for point in zip(sizes, curve, strict=True)]
caches = {
    f"L{each.level}": each.size_bytes
    for each in helpers.machine_card().caches or ()
    if each.kind != "instruction" and each.size_bytes
}
title, found = "Your chase, on this machine", hardware.find_change_points(points)
drawn = plotting.draw_latencies(points, caches=caches, change_points=found, title=title)
server = recorded.load("01").result("limits")
recorded_sizes = [each.working_set_bytes for each in server.latencies]
recorded_s = [each.latency_s for each in server.latencies]
drawn.axes[0].plot(recorded_sizes, recorded_s, "--", color="#882255")
below = (recorded_sizes[-20], recorded_s[-20] / 1.2)
drawn.axes[0].annotate("recorded", below, color="#882255", va="top")
plotting.show(
    drawn, alt="Two curves rise in steps as the working set outgrows cache after cache."
)

# %%
found = hardware.find_change_points(server.latencies)
by_system = {each.name: each.size_bytes for each in server.memory_levels[:-1]}
print("found on the curve:", ", ".join(size(each) for each in found), "(recorded)")
print("stated:", ", ".join(f"{name} {size(each)}" for name, each in by_system.items()))

# %% [markdown] tags=["explain"]
# Where the curve is flat, a cache holds the [working set](glossary.md#working-set); where it rises, one is outgrown. The search takes the last size before each
# steepest rise (dotted). It counts a slow rise more than once: the recorded curve has six for three caches. The first is L1, and the
# next two are L2.
#
# The last three lie far below the stated 480 MiB of L3, and your curve may rise elsewhere. Why is open. The recorded machine is
# a virtual one on a busy server: others share that cache, and the system does not say how much of it is ours.
#
# A cache drops, more or less, the line [least recently used](glossary.md#least-recently-used), and on a cycle that is the one needed
# next. So a cache should fail as soon as it is full. L2 fails earlier, and we have not tested why. Pages may matter: the processor
# keeps the addresses of some in a table, the [TLB](glossary.md#tlb), and a larger buffer has more pages than fit.
#
# Why many levels? A large store takes room, and signals must cross it: nothing is both large and near.
#
# **On Monday**: before a loop uses `x` again and again, print `x.nbytes`.

# %% [markdown]
# ## Part 2: many loads at once
#
# - One chase: each load waits for the one before
# - Eight chases in turn, from eight places
# - Each takes as many steps as before


# %% tags=["predict", "slide", "slide-output"] minutes=1
@numba.njit("void(u8[:, ::1], u8[::1], i8)")
def chases(following, places, loads):
    for _ in range(loads):
        for each in range(len(places)):
            places[each] = following[places[each], 0]


eight = helpers.predict("1 GiB: eight chases at once take how many times as long as one?", "x")
eight

# %% tags=["run"]
numbers = (1, 2, 4, 8, 16, 32)
anywhere = np.random.default_rng(1).integers(len(following), size=sum(numbers))
places = np.split(anywhere.astype(np.uint64), np.cumsum(numbers)[:-1])  # of the 1 GiB
starts = dict(zip(numbers, places, strict=True))
at_once = timing.compare(
    {str(n): lambda n=n: chases(following, starts[n], 1_000) for n in numbers},
    budget_s=2,
    precision=0.1,
)

# %% tags=["look", "nbval-ignore-output"]
eight.reveal(modelled=1, measured=at_once.candidate("8").time_ratio)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Eight chases take hardly longer than one"
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
# model all wait together, so $n$ chases take the time of one. A core can keep only so many lines under way; there
# the curve leaves the model.
#
# A loop in order has this for free, because its addresses are known ahead:

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="In order, many lines are under way at once"
drawn, axes = plotting.figure(title="The same loads, one from each line of 64 bytes")
axes.loglog(sizes, curve, "o-", ms=4, color=plotting.MEASURED, label="chase (measured)")
axes.loglog(sizes, in_a_row, "s-", ms=4, color="#882255", label="in order (measured)")
for place in (sizes.index(16 * KIB), len(sizes) - 1):
    low, high = in_a_row[place], curve[place]
    axes.annotate(
        "", (sizes[place], low), (sizes[place], high), arrowprops={"arrowstyle": "<->"}
    )
    words = f"{high / low:.0f} times "
    axes.text(sizes[place], (low * high) ** 0.5, words, ha="right", va="center")
plotting.unit_axis(axes, "x", "B", binary=True)
plotting.unit_axis(axes, "y", "s")
axes.set_xticks([4 * KIB * 8**power for power in range(7)])
axes.minorticks_off()
axes.set(xlabel="working set", ylabel="time of a load")
axes.legend()
alt = "The chase lies above the loop at every size, and far above it beyond the near caches."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output"]
rate = 64 / in_a_row[-1]
print(f"from 1 GiB: a wait of {units.text(curve[-1], 's')}, read at {units.text(rate, 'B/s')}")
chased_lines, loop_lines = line_s[0] / line_s[-1], curve[-1] / in_a_row[-1]
print(f"lines under way: {chased_lines:.0f} in 32 chases, about {loop_lines:.0f} in the loop")


def in_flight_bytes(bytes_per_s, wait_s):
    return bytes_per_s * wait_s  # Little's law


assert round(in_flight_bytes(rate, curve[-1]) / 64) == round(loop_lines)
following = None  # 1 GiB is free again

# %% [markdown] tags=["explain"]
# If each wait were as long in the loop as in the chase, the ratio of the two times would be the lines under way. It is an estimate:
# the loop meets a new page every 64 lines or less often, the chase at almost every load, and that shortens the loop's waits; lines
# that queue for the bus lengthen them.
#
# [Little's law](glossary.md#littles-law) says it in bytes: what is in flight is bandwidth times latency.
#
# The loop may have more lines under way than 32 chases. A [hardware prefetcher](glossary.md#hardware-prefetcher) guesses the next
# lines of a sequence and fetches them before the core asks.
#
# **On Monday**: keep what you walk often in an array, and not in a linked list. The next address of an array is known; that of a list
# lies in the element before.

# %% [markdown]
# ## Part 3: lines
#
# - Memory moves whole lines: 16 numbers of 4 bytes
# - Using one number moves its whole line
# - So count lines, not numbers

# %% tags=["slide", "slide-output"] minutes=1 headline="A column uses one number of each line"
line, place = np.mgrid[:16, :16]
shades = np.array(["white", plotting.COLOURS["waiting"], plotting.COLOURS["computing"]])
drawn, axes = plotting.figure(
    title="Blue: 16 numbers wanted. Grey: what comes along", height_in=4.4
)
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
# **Your turn.** A tensor says where its numbers lie. It has a `stride` for each axis, and any number of axes. Number $(i, j,
# \dots)$ stands at `storage_offset()` $+\, i \cdot$ `stride(0)` $+\, j \cdot$ `stride(1)` $+ \dots$, counted in numbers. The
# storage starts on a line.


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


# %% [markdown]
# ### Back to the bet
#
# How many times as long do the columns take?
#
# Your function counts the lines of the first 1,024 samples. The same loops also run on 16 KiB of the table, 4,096 times over: as
# many numbers, all in the first cache.

# %% tags=["run"]
part = table[:1024]
by_rows = sum(lines_touched(rows) for rows in part.chunk(16))
by_columns = sum(lines_touched(part[:, column]) for column in range(16))
near = table[:256].expand(4096, 256, 16)
orders |= {
    "row by row, near": lambda: [rows.sum() for rows in near.chunk(16)],
    "column by column, near": lambda: [near[:, :, column].sum() for column in range(16)],
}
summed = timing.compare(orders, budget_s=3, precision=0.1)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The count of lines foretells the bet"
by_lines, columns = by_columns / by_rows, summed.candidate("column by column")
bet.reveal(modelled=by_lines, measured=columns.time_ratio)

# %% tags=["explain"]
print(f"lines moved: {by_rows:,} by rows, {by_columns:,} by columns")
ratio = columns.time_ratio / by_lines
timing.claim("bet: measured over modelled", ratio, at_least=1 / 3, at_most=3, evidence=summed)
near_rows, near_columns = (
    summed.candidate(f"{name}, near").time_ratio for name in list(orders)[:2]
)
far_ratios = [1 / near_rows, columns.time_ratio / near_columns]
timing.claim("far over near, rows and columns", far_ratios, at_least=2, evidence=summed)
added = (columns.time_ratio - near_columns) / (1 - near_rows)
print(f"near: columns over rows {near_columns / near_rows:.1f} times (measured)")
print(f"what far adds: columns over rows {added:.1f} times (measured)")

# %% [markdown] tags=["explain"]
# Down a column, each line brings one feature that is wanted and fifteen that are not. It is gone from the near caches before
# the next column asks for it.
#
# The columns take several times as long near, too, where lines do not matter: numbers that lie apart fill no
# [SIMD](glossary.md#simd) register with one load. So the bet alone proves nothing about lines. But both orders take several times as
# long from far as from near, and what far adds is the wait for lines: this is the ratio to hold against 16.
#
# ### An embedding
#
# An embedding looks up rows at places that nobody can guess. Take tables of 64 MiB, with rows of 4, 16 or 64 numbers, and
# 65,536 look-ups a call, each call at other places.

# %% tags=["predict"]
longer = helpers.predict(
    "A look-up reads 64 numbers instead of 4. How many times as long does it take?", "x"
)
longer

# %% tags=["run"]
tables = {width: torch.rand(2**24 // width, width) for width in (4, 16, 64)}
places = {
    width: itertools.cycle(torch.randint(2**24 // width, (16, 2**16))) for width in tables
}
looked_up = timing.compare(
    {
        str(width): lambda width=width: nn.functional.embedding(
            next(places[width]), tables[width]
        )
        for width in tables
    },
    budget_s=2,
    precision=0.1,
)

# %% tags=["look", "nbval-ignore-output"]
of_a_row = {width: lines_touched(each[:1]) for width, each in tables.items()}
by_lines, measured = of_a_row[64] / of_a_row[4], looked_up.candidate("64").time_ratio
longer.reveal(modelled=by_lines, measured=measured)

# %% tags=["look"]
rows = {}
for width, moved in of_a_row.items():
    ratio = looked_up.candidate(str(width)).time_ratio
    used = f"{100 * width / (16 * moved):.0f} %"
    rows[f"{width} numbers"] = [moved, used, width / 16, f"{ratio:.1f} times (measured)"]
shown = ["lines read", "of which used", "lines written", "time over the first"]
pd.DataFrame(rows, index=shown).T

# %% tags=["explain"]
timing.claim("64 numbers over 4", measured, at_least=1, at_most=6, evidence=looked_up)

# %% [markdown] tags=["explain"]
# Sixteen times the numbers take far less than sixteen times as long: the short row moves a whole line too, three quarters of it for
# nothing.
#
# The count of lines is a limit here. The ratio is 4 if each line costs a wait of its own, and 1 if the four of a row come together, or
# if a look-up costs more than its lines.
# (The model leaves out the result, which is written in order.)
#
# ### Channels last
#
# A batch of images has four axes, and somebody chose which one lies side by side.
# [Channels-last](glossary.md#channels-last) puts the channels of a pixel together:

# %%
images = torch.rand(8, 64, 56, 56)
layouts = {
    "channels last": images.to(memory_format=torch.channels_last),
    "channels first": images,
}
rows = {
    name: [lines_touched(part) for part in (each[0, :, 5, 5], each[0, 5], each[0])]
    for name, each in layouts.items()
}
pd.DataFrame(rows, index=["lines of a pixel", "of a channel", "of an image"]).T

# %% [markdown]
# A layer norm over the channels takes each pixel's 64 numbers, pixel after pixel, until it has read the image.

# %% tags=["predict"]
norm = helpers.predict(
    "Channels first, the norm takes how many times as long as channels last?", "x"
)
norm

# %% tags=["run"]
norms = {
    name: lambda each=each: nn.functional.layer_norm(each.permute(0, 2, 3, 1), (64,))
    for name, each in layouts.items()
}
norms["the copy"] = lambda: images.permute(0, 2, 3, 1).contiguous()
normed = timing.compare(norms, budget_s=2, precision=0.05)

# %% tags=["look", "nbval-ignore-output"]
measured, copied = (
    normed.candidate(name).time_ratio for name in ("channels first", "the copy")
)
by_lines = rows["channels first"][2] / rows["channels last"][2]
norm.reveal(modelled=by_lines, measured=measured)
print(f"norm and copy: 1 + {copied:.2f} = {1 + copied:.2f} times")

# %% tags=["explain"]
ratio = measured / (1 + copied)
timing.claim(
    "channels first over norm + copy", ratio, at_least=0.6, at_most=1.7, evidence=normed
)

# %% [markdown] tags=["explain"]
# The image has as many lines in either layout, so lines do not explain the time. A copy does. PyTorch's layer norm wants each
# pixel's channels side by side; channels first, it copies them so before it begins.
#
# **On Monday**: print `x.stride()`. Where the axis that you walk along does not have stride 1, count lines. If you walk more than once,
# copy once: `x.contiguous(memory_format=torch.channels_last)`.

# %% [markdown]
# ## Part 4: a GPU hides the wait
#
# - A core waits; its loop must know addresses ahead
# - A GPU has other threads to run meanwhile
# - How many must wait at once?
#
# A *thread* is one walk through a program, with registers of its own. In the drawing each computes for one step and then waits
# for nine.

# %% tags=["slide", "slide-output"] minutes=1 headline="While some threads wait, others compute"
drawn, axes = plotting.figure(
    title="A thread computes a step (blue), waits nine (grey)", height_in=3.4
)
row = 0
for threads in (1, 4, 10):
    for thread in range(threads):
        for turn in range(0, 40, 10):
            for begin, long, what in ((thread, 1, "computing"), (thread + 1, 9, "waiting")):
                bar = (turn + begin, long)
                axes.broken_barh([bar], (row, 0.8), color=plotting.COLOURS[what])
        row += 1
    words = f"{threads} at once:\nbusy {10 * threads} %"
    axes.text(-1, row - threads / 2, words, ha="right", va="center")
    row += 1
axes.set(xlim=(0, 40), ylim=(row, -0.5), xlabel="steps (modelled)", yticks=[])
axes.grid(visible=False)
alt = "Bars of threads: one keeps a unit busy a tenth of the time, ten all the time."
plotting.show(drawn, alt=alt)

# %% [markdown]
# The 16 cores of a Ryzen 9 5950X run 32 threads ([AnandTech](https://www.anandtech.com/show/16214/), 2020). And
# an RTX 3090? A common error is to take its "10,496 CUDA cores" for threads. They are arithmetic units, 128 in each of 82
# [multiprocessors](glossary.md#multiprocessor). Each multiprocessor keeps up to 1,536 threads ([CUDA C++ Programming
# Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities), compute capability 8.6).
#
# How long do they wait? A chase on an A100, of the same generation, took 33 cycles to the first cache, 200 to L2 and 290 to
# device memory (Abdelkhalik and others, "Demystifying the Nvidia Ampere Architecture", 2022, Table IV,
# [arXiv:2208.11174](https://arxiv.org/abs/2208.11174)). Another study has 400 for memory
# ([PMC10448217](https://pmc.ncbi.nlm.nih.gov/articles/PMC10448217/table/t0015), Table 3). We take these cycles at the RTX 3090's
# clock. That is rough, because memory does not follow the clock of the cores.

# %% tags=["predict"]
gpu_rate = rtx_3090.memory_bandwidth_bytes_per_s
peak = rtx_3090.peak("float32", unit="vector").dense_flops_per_s
gpu_hz = peak / (rtx_3090.cores * 128 * 2)  # a unit does two operations a cycle
threads, waits_s = rtx_3090.cores * 1536, [290 / gpu_hz, 400 / gpu_hz]
print(f"{threads:,} threads; {units.text(gpu_rate, 'B/s')};", end=" ")
print(f"waits of {' and '.join(units.text(each, 's') for each in waits_s)}")
waiting = helpers.predict(
    "RTX 3090, 290 cycles, 4 bytes a thread: which share must wait to fill the bus?", "%"
)
waiting

# %% tags=["run"]
needed = [in_flight_bytes(gpu_rate, each) for each in waits_s]
shares = [100 * each / 4 / threads for each in needed]

# %% tags=["look"]
waiting.reveal(modelled=shares[0])
print(f"{needed[0] / 4:,.0f} threads wait; with 400 cycles {shares[1]:.0f} %")

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="A GPU must keep far more bytes in flight" mark="RTX 3090, 290 cycles"
rows = {
    "a core here, about": (curve[-1], rate),
    "RTX 3090, 290 cycles": (waits_s[0], gpu_rate),
    "RTX 3090, 400 cycles": (waits_s[1], gpu_rate),
    "a multiprocessor, 290": (waits_s[0], gpu_rate / rtx_3090.cores),
    "a multiprocessor, 400": (waits_s[1], gpu_rate / rtx_3090.cores),
}
flights = {}
for name, (wait_s, moved) in rows.items():
    held = in_flight_bytes(moved, wait_s)
    flights[name] = [units.text(wait_s, "s"), units.text(moved, "B/s"), units.text(held, "B")]
pd.DataFrame(flights, index=["wait", "bandwidth", "in flight"]).T

# %% [markdown] tags=["explain"]
# A GPU does not win by waiting less. Its bandwidth is many times our core's, and its modelled wait is not many times shorter. So it
# must keep many times as much in flight. (The first row is about what our core reached.)
#
# A multiprocessor must keep 2.0 to 2.7 kB under way, which is of the order of our core's. The GPU has 82 of them.
#
# Bytes in flight are not enough: the bus must carry them. Sixteen cores at the rate of ours would ask for sixteen times that rate;
# the Ryzen's bus gives 51.2 GB/s.

# %% [markdown]
# ### Memory inversion
#
# - In a CPU each level holds more than the one before
# - On a GPU every waiting thread keeps its registers
# - So its largest store on the chip may be the nearest

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="An RTX 3090 holds most at its registers"
chosen = ["Ryzen 9 5950X", "GeForce RTX 3090", "A100 SXM 40 GB", "H100 SXM 80 GB"]
on_chip = hardware.memory_inversion(chosen).devices
drawn = plotting.draw_inversion(on_chip)
alt = "Bytes by level: the CPU's line rises, the RTX 3090's falls, the A100's rises at L2."
plotting.show(drawn, alt=alt)

# %%
held = {row.name: row.register_bytes for row in on_chip}
print(f"registers: {held['GeForce RTX 3090']:,} B, the Ryzen's {held['Ryzen 9 5950X']:,} B")

# %% [markdown] tags=["explain"]
# The RTX 3090 has two hundred times the Ryzen's registers, and each further level on its chip is smaller. The A100 and the H100
# break the pattern: their L2 is larger than their registers.

# %% [markdown]
# ### Memory spaces
#
# - L1 and L2 work unseen, as in a CPU
# - [Shared memory](glossary.md#shared-memory) the program fills itself

# %%
shared = f"{size(rtx_3090.core_shared_bytes)} of L1"
spaces = {
    "registers": [size(rtx_3090.core_register_bytes), "a thread", "compiler", ""],
    "shared memory": [f"up to {shared}", "a block of threads", "program", ""],
    "L1": [size(rtx_3090.core_l1_bytes), "a multiprocessor", "hardware", "33 cycles"],
    "L2": [size(rtx_3090.l2_bytes), "all", "hardware", "200 cycles"],
    "device memory": [size(rtx_3090.memory_bytes), "all", "program", "290 cycles"],
}
pd.DataFrame(spaces, index=["RTX 3090", "seen by", "filled by", "wait (A100)"]).T

# %% [markdown] tags=["explain"]
# Registers, L1 and shared memory are those of one multiprocessor. "Local" memory is local to a thread, but lies in device memory:
# registers spill to it. *Texture* memory is device memory too, read through a cache for neighbours in two dimensions. You fill
# shared memory in lesson 02.
#
# **On Monday**: give a GPU work in large pieces. By this model an operator on fewer than 40,000 numbers, a thread for each,
# cannot fill the bus of an RTX 3090 even for one wait.

# %% [markdown]
# ## Part 5: moving a network
#
# - A transfer pays a fixed cost, then for its bytes
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
# Fifty layers of 16 x 16, one layer of 4,096 x 4,096. We move them within main memory; with a GPU, write `.to("cuda")`.
# Here $\alpha$, the `latency_s` of your model, is the fixed cost of a call, nearly all of it software: the time of copying one
# number. The bandwidth is that of a
# copy of 128 MiB. (It counts a byte once, though a copy reads it and writes it. So it lies below the rate of reading.)

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
moved = timing.compare(both, budget_s=1, own_caches=True, precision=0.1)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Many small tensors pay for their calls"
small_s, large_s = (move_s(found, latency_s, bytes_per_s) for found in tensors.values())
measured = moved.candidate("one large").time_ratio
larger.reveal(modelled=large_s / small_s, measured=measured)

# %% tags=["explain"]
ratio = measured / (large_s / small_s)
timing.claim("move: measured over modelled", ratio, at_least=1 / 2, at_most=2, evidence=moved)

# %% [markdown] tags=["explain"]
# The large one has 1,234 times the bytes and takes far fewer times as long. The fifty pay for a hundred calls, the one
# for its bytes.
#
# `own_caches=True` lets each candidate find the caches as it left them, as $\alpha$ was measured. Without it the fifty run behind
# a copy of 64 MiB, which has filled the near caches.
#
# **On Monday**: move few large tensors. A framework packs many small gradients into one buffer before it sends them (lesson 05).

# %% [markdown]
# ## Part 6: energy
#
# - Moving a number takes energy, as computing does
# - Other work can hide the time of a move
# - Nothing hides its energy
#
# Here is a chip of 45 nm (Horowitz, "Computing's Energy Problem", ISSCC 2014). An access is one of 64 bits.

# %% tags=["slide", "slide-output"] minutes=1 headline="An access to DRAM costs far more than arithmetic"
title = "Energy of one operation (45 nm, 2014)"
drawn = plotting.draw_energy(hardware.energy_costs().costs, title=title)
alt = (
    "Energies: additions and products below 4 picojoules, caches 10 to 100, DRAM above 1,000."
)
plotting.show(drawn, alt=alt)

# %% [markdown]
# We model LeNet on one image. Weights and image come from DRAM once. What the operators read and write then lies in a cache of 1 MB,
# which holds all of it. DRAM counts with the middle of its range.

# %% tags=["predict"]
lenet, image_bytes = helpers.LeNet(), 28 * 28 * 4
weight_bytes = sum(weight.nbytes for weight in lenet.parameters())
counted = operations.profile_ops(lenet, (1, 1, 28, 28))
cache_bytes = counted.forward_read_bytes + counted.forward_written_bytes
print(f"{counted.forward_macs:,} multiply-adds; {weight_bytes:,} bytes of weights,", end=" ")
print(f"{image_bytes:,} of an image, {cache_bytes:,} to and from the cache")
names = ("float32 multiply", "float32 add", "cache of 1 MB", "DRAM")
cost_j = {name: hardware.energy_cost(name).middle_j for name in names}
for name, joules in cost_j.items():
    print(f"{name}: {1e12 * joules:,.4g} pJ")
share = helpers.predict("LeNet, one image: which share of the energy is DRAM's?", "%")
share


# %% tags=["run"]
def energies_j(images):
    """Return the energy of arithmetic, cache and DRAM; an access moves 8 bytes."""
    mac_j = cost_j["float32 multiply"] + cost_j["float32 add"]
    cached, fetched = images * cache_bytes / 8, (weight_bytes + images * image_bytes) / 8
    moved_j = [cached * cost_j["cache of 1 MB"], fetched * cost_j["DRAM"]]
    return np.array([images * counted.forward_macs * mac_j, *moved_j])


assert weight_bytes + cache_bytes < 10**6  # all of it fits
one, many = energies_j(1), energies_j(64) / 64
dram = hardware.energy_cost("DRAM")
ends_j = [one[2] * end_j / dram.middle_j for end_j in (dram.least_j, dram.most_j)]

# %% tags=["look"]
share.reveal(modelled=100 * one[2] / one.sum())
ends = [100 * end_j / (one[:2].sum() + end_j) for end_j in ends_j]
print(f"from one end of DRAM's range to the other: {ends[0]:.0f} to {ends[1]:.0f} %")

# %% [markdown]
# Now 64 images in turn, while the weights stay in the cache: they come from DRAM once.

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Sixty-four images share one fetch of the weights" mark="together"
frame = 1e6 * pd.DataFrame({"one image": one, "one of 64": many})
frame.index = ["arithmetic", "cache", "DRAM"]
frame.loc["together"] = frame.sum()
frame.round(2).rename_axis("microjoules an image", axis=1)

# %% [markdown] tags=["explain"]
# One image alone pays for fetching the weights. Sixty-four share them, and an image costs about an eighth.
#
# Nobody measured this energy. It is counts times published costs, an estimate that leaves out instructions and clocks.
# (`hardware.inference_energy` has other formats.)
#
# **On Monday**: batch what uses the same weights. The reuse that saves energy here saves time in lesson 02.

# %% [markdown]
# `helpers.probe()` measures all of this for your machine and keeps it; later lessons model with it. The
# [appendix](appendix/01_memory_hierarchy.ipynb) has more: dies, fresh pages, strides, alignment, the [ways](glossary.md#ways) of
# a cache, [memory channels](glossary.md#memory-channel), the [page cache](glossary.md#page-cache), and
# [DMA](glossary.md#direct-memory-access). In the [exercises](exercises/01_memory_hierarchy_exercises.ipynb) you write a cache
# and read a curve.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Memory further out is slower and costs more energy.
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
# | energy | $\text{MAC} \cdot e_{MAC} + \text{accesses} \cdot e_{access}$ | without instructions and clocks |
