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
#       - write|wrote a pointer chase that measures how long a load waits
#       - tell|told by a test whether a cache or main memory answers a load
#       - count|counted the cache lines that a view of a tensor touches
#       - explain|explained how loads that wait at the same time hide their waits, on a core and on a GPU
# ---

# %% [markdown] tags=["objectives"]
# # Memory hierarchy
#
# A buffer of 512 MiB consists of 8.4 million pieces of 64 bytes, which are called [cache lines](glossary.md#cache-line). A core reads one number
# from each line, from the first line to the last. Then it reads each line once more, in random order. The bytes are the same, the number of
# loads is the same, and the core is the same. Two things are different. The order is random, and each line contains the number of the next one,
# as in a linked list, so the core learns where to look only when the line before has arrived.
#
# [Lesson 00](00_start_here.ipynb) would divide the bytes by a rate and find no difference at all. At the 51.2 GB/s that the memory of a Ryzen 9
# 5950X delivers by its data sheet, either walk takes 10.5 ms. But this leaves out the wait. The [latency](glossary.md#latency) of a load is the
# time from asking for a byte until it arrives, and [bandwidth](glossary.md#bandwidth) is the rate at which bytes arrive once they flow. You pay for
# the latency each time a program follows a pointer, for example in a linked list, a hash table or a graph.
#
# We first measure a single wait, and find out whether a [cache](glossary.md#cache) or main memory has answered. Then we ask how much data arrives with it
# and how many waits can overlap, until we can say which of the two differences costs more. At the end we ask how a GPU lives with a wait that is even longer.

# %% tags=["hide-input"]
import mmap

import numba
import numpy as np
import torch

import helpers
from helpers import exercises, hardware, plotting, timing, units
from helpers.studies import memory_hierarchy

check = exercises.checks_of("memory_hierarchy")
torch.set_num_threads(1)  # the memory as one core sees it
allocator = helpers.steady_allocator()  # freed memory is kept for later tensors
MIB = 2**20

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# How much slower is a linked list than an array, if both have the same lines?
#
# - 512 MiB in 8.4 million lines of 64 bytes
# - Once in the order of their addresses
# - Once at random, and each line names the next
#
# The buffer is in ordinary pages of 4 KiB, which Part 2 explains. Nothing on this page so far decides the ratio, so write down what you believe.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.5, 1000]
bet = helpers.predict(
    "How many times as long as reading the 512 MiB in order does the random walk take?", "x"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A chase makes every load wait"
# ## Part 1: the wait for one load
#
# How long does a core wait for one load? The random walk can tell us, because each of its loads has to wait for the one before.
#
# - Near the core are small memories, the caches
# - A cache keeps copies of what was used last
# - In a chase, each load waits for the one before
#
# An ordinary loop cannot tell how long a load waits, because a core sees the next addresses coming and asks for them early. In this walk it does
# not see them. Such a walk is called a *pointer chase*, and its time per load is the latency.
#
# **Your turn.** The buffer has a row of eight integers for each line. Join all lines into one random cycle, so that `buffer[line, 0]` is the number
# of the line that comes next. The largest buffer has 8.4 million lines, so write it with NumPy and without a loop.


# %% tags=["yours"] yours="one_cycle" takes=8
def one_cycle(buffer, random):
    """Write into buffer[:, 0] which line comes next on one random way through all lines."""
    order = random.permutation(len(buffer))
    buffer[order, 0] = np.roll(order, -1)


# %% checks="one_cycle"
one_cycle = check(one_cycle)


# %% wrong="one_cycle" says="falls apart into several cycles"
def one_cycle(buffer, random):
    buffer[:, 0] = random.permutation(len(buffer))


# %% wrong="one_cycle" says="put the lines into a random order"
def one_cycle(buffer, random):
    buffer[:, 0] = np.roll(np.arange(len(buffer)), -1)


# %% wrong="one_cycle" says="Assign to `buffer[:, 0]`"
def one_cycle(buffer, random):
    order = random.permutation(len(buffer))
    following = np.zeros_like(buffer)
    following[order, 0] = np.roll(order, -1)
    return following


# %% right="one_cycle" style=1
def one_cycle(buffer, random):
    order = np.arange(len(buffer), dtype=np.uint64)
    random.shuffle(order)
    buffer[order[:-1], 0] = order[1:]
    buffer[order[-1], 0] = order[0]


# %% right="one_cycle" style=2
def one_cycle(buffer, random):
    order = torch.from_numpy(random.permutation(len(buffer)))
    following = torch.empty_like(order)
    following[order] = order.roll(-1)
    buffer[:, 0] = following.numpy()
    return buffer


# %% [markdown]
# **Your turn.** Now follow the cycle. Each load reads the number of the line to which the next load goes.


# %% tags=["yours"] yours="chase" takes=5
def chase(buffer, line, loads):
    """Begin at a line, follow buffer[line, 0] so many times, and return the last line."""
    for _ in range(loads):
        line = buffer[line, 0]
    return line


# %% checks="chase"
chase = check(chase)


# %% wrong="chase" says="must come from the load before"
def chase(buffer, line, loads):
    for load in range(loads):
        line = buffer[load % len(buffer), 0]
    return line


# %% wrong="chase" says="give its result to the next load"
def chase(buffer, line, loads):
    last = line
    for _ in range(loads):
        last = buffer[line, 0]
    return last


# %% wrong="chase" says="numba cannot compile this"
def chase(buffer, line, loads):
    for _ in range(loads):
        line = buffer[line].tolist()[0]
    return line


# %% right="chase" style=1
def chase(buffer, line, loads):
    while loads > 0:
        line = buffer[line][0]
        loads -= 1
    return line


# %% right="chase" style=2
def chase(buffer, line, loads):
    following = buffer[:, 0]
    for _load in range(0, 2 * loads, 2):
        line = following[line]
    return line


# %% [markdown]
# A loop in Python would take longer than the loads. Therefore [numba](https://numba.pydata.org) compiles your function to machine code, for arguments of
# the types in the string. Here `u8[:, ::1]` is a table of unsigned integers of 8 bytes, stored row after row. The second function makes as many loads
# in the order of the addresses.

# %%
walk = numba.njit("u8(u8[:, ::1], u8, i8)")(chase)


@numba.njit("u8(u8[:, ::1], i8)")
def in_order(buffer, times):
    total = np.uint64(0)
    for _ in range(times):
        for line in range(len(buffer)):
            total += buffer[line, 0]
    return total


# %% [markdown]
# The latency depends on the size of the buffer, because a buffer that fits into a cache is served from there. These are the caches that your system states
# for one core, and often the last one is shared with other cores. The buffer has pages of 2 MiB if your system gives them, for a reason that Part 2 explains.

# %% tags=["hide-input", "nbval-ignore-output"]
large = hardware.chase_buffer(512 * MIB).reshape(-1, 8)
small = hardware.chase_buffer(512 * MIB, huge=False).reshape(-1, 8)
caches = {
    f"L{cache.level}": cache.size_bytes
    for cache in helpers.machine_card().caches or ()
    if cache.kind != "instruction" and cache.size_bytes
}
stated = (f"{name} {units.text(size, 'B', binary=True)}" for name, size in caches.items())
print("stated by the system:", ", ".join(stated) or "no caches")

# %% [markdown]
# How do we know that main memory answered? A processor has an instruction that throws a line out of all caches, and after it the next load must
# go to main memory. So we chase twice, once round and round, and once directly after all lines of the buffer were thrown out. If the second
# chase takes much longer, a cache had answered the first. If it takes equally long, main memory had answered already.

# %% tags=["run"]
sizes = [2**power for power in range(15, 28)]  # 32 KiB to 128 MiB
chased = memory_hierarchy.measure_waits(
    walk, one_cycle, {"large pages": large}, sizes_bytes=sizes, flush=hardware.flush_caches
)
waits = chased["large pages"]

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Where the curves meet, main memory answers"
alt = (
    "Over the size of the buffer the chase rises in steps to the time of a load after a flush."
)
plotting.show(memory_hierarchy.draw_waits(waits, caches=caches), alt=alt)

# %% tags=["hide-input", "look", "nbval-ignore-output"]
held_bytes = waits.held_bytes
for power in (15, 18, 27):
    at = sizes.index(2**power)
    flushed = f", after a flush {units.text(waits.flushed_s[at], 's')}" if held_bytes else ""
    size = units.text(2**power, "B", binary=True)
    print(f"{size}: a load waits {units.text(waits.chase_s[at], 's')}{flushed}")
if held_bytes:
    held = units.text(held_bytes, "B", binary=True)
    print(f"up to {held}, a load after a flush takes at least 1.5 times as long")
    [apart] = memory_hierarchy.measure_waits(
        walk,
        one_cycle,
        {"every eighth line": large.reshape(-1, 64)},
        sizes_bytes=[32 * 1024],
        flush=hardware.flush_caches,
    ).values()
    wait = units.text(apart.flushed_s[0], "s")
    print(f"32.0 KiB, but only every eighth line of 256 KiB: after a flush {wait}")
else:
    print(
        "Here no line could be thrown out of the caches, so only the steps of the curve tell."
    )

# %% tags=["hide-input", "look"]
ratio = waits.memory_s / waits.chase_s[0]
sentence = "a load from main memory takes much longer than one from the first cache"
timing.claim(sentence, ratio, at_least=8, evidence=waits)

# %% [markdown] tags=["explain"]
# Follow the solid curve, the chase round and round, from the left. While the buffer fits into L1, a load takes a few nanoseconds, part of which
# is the arithmetic that turns the number of a line into its address. Each further cache answers later, because a large memory takes room and
# signals need time to cross it. If the dashed curve, the chase after the flush, is far above the solid one, a cache had the lines. Where the two
# meet, throwing the lines out changes nothing, so main memory had answered before. The shape of the solid curve alone could not tell you this,
# because main memory can look as flat as a cache.
#
# Between a cache and main memory, the solid curve is a mixture of both. The arrow marks the largest buffer in which a load takes 1.5 times as
# long or longer after the flush.
#
# In the smallest buffers the dashed curve can be lower, although all lines were thrown out. Their loads are so close to each other that the core takes them for a pattern
# and fetches some lines early, by a prefetcher (Part 4). If we chase only through every eighth line, as for the last line above, a load takes about as long as in the large buffers.
#
# Do the curves meet at the size of your last cache, the last dotted line? On a laptop of your own they usually do. On a rented server they may
# meet much earlier, because the whole server shares the stated cache, and most likely its other users have filled it. The server on which this
# lesson was written states an L3 of 300 MiB. At times the curves met soon after L2, as if there were no L3 at all.
#
# **To remember.** A load takes a few nanoseconds in L1 and here 130 to 250 in memory. On a shared server the only caches that you can count on
# are those of your own core, such as the 2 MiB of L2 on the server of this page.
#
# In the bet, with 512 MiB in ordinary pages, a load can take much longer still. What else can be slow, if main memory is already the last level?

# %% [markdown] tags=["slide"] minutes=2 headline="Every address has to be translated"
# ## Part 2: the cost of a page
#
# What does a load wait for besides its data? So far we had large pages, whereas for the buffer of the bet we have forbidden them.
#
# - Memory is handed out in pages, usually of 4 KiB
# - A table says where each page really is
# - The [TLB](glossary.md#tlb) keeps the translations that were used last
#
# The system hands out memory in *pages*, and the core has to translate every address of a program into the real one before it
# can load anything. It keeps recent translations in a small cache of their own, the TLB. An Intel core of the Golden Cove family has
# room for 2,048 of them (Bakhvalov, [Performance Analysis and Tuning on Modern CPUs](https://github.com/dendibakh/perf-book), 2024, published), and
# 2,048 pages of 4 KiB cover 8 MiB. If a translation is not there, the core must read it from the table first, and the table is in memory like
# everything else.
#
# A program can also ask for pages of 2 MiB, on Linux with a call of `madvise`. Then even 1,024 translations cover 2 GiB.

# %% tags=["hide-input", "nbval-ignore-output"]
page = f"{mmap.PAGESIZE // 1024} KiB"
has_large = bool(hardware.huge_pages(large))
other = "2 MiB" if has_large else f"{page} again"
buffers = {page: small, other: large}
print(f"pages of the two buffers: {page} and {other}")
if not has_large:
    print("This system gives no pages of 2 MiB (or does not say so), so both are alike.")

# %% [markdown]
# If the second number above is not 2 MiB, as on macOS and in some containers, your two curves will be alike, but you can still predict. The 512
# MiB are 131,072 pages of 4 KiB, of which a TLB of 2,048 entries holds 1.6 %. So almost every load has to read an entry of the table first. The
# table has 8 bytes per page, which makes 1 MiB. If its entries come from main memory, they double the wait of each load, and if they are in L2,
# they add little.

# %% tags=["predict"]
pages = helpers.predict(
    "In a chase through 512 MiB, how many times as long as with 2 MiB pages "
    "does a load take with 4 KiB pages?",
    "x",
)
pages

# %% tags=["run"]
sizes = [2**power for power in range(15, 30)]  # 32 KiB to 512 MiB
paged = memory_hierarchy.measure_waits(
    walk, one_cycle, buffers, sizes_bytes=sizes, in_order=in_order
)

# %% tags=["look", "nbval-ignore-output"]
slower = paged[page].chase_s[-1] / paged[other].chase_s[-1]
pages.reveal(modelled=2, measured=slower if has_large else None)

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Beyond the TLB the two kinds of pages part"
alt = (
    "Two curves over the size of the buffer: close within the reach of the TLB, apart beyond."
)
covered_bytes = 2048 * mmap.PAGESIZE
plotting.show(memory_hierarchy.draw_pages(paged, covered_bytes=covered_bytes), alt=alt)

# %% tags=["hide-input", "look"]
sentence = "in 512 MiB, a load takes longer with small pages than with large ones"
evidence = list(paged.values()) if has_large else ()
timing.claim(sentence, slower if has_large else None, at_least=1.1, evidence=evidence)

# %% [markdown] tags=["explain"]
# As long as the pages fit into the TLB, which for small pages is up to 8 MiB if it has 2,048 entries, neither curve is clearly above the other.
# Far beyond it the small pages cost more, because the core first has to find out where the data are, although the data are no farther away. The
# factor is less than 2 if a part of the table is still in the caches, or if the large pages wait for translations as well.
#
# The curve of the large pages may indeed rise, although a TLB can translate 2 GiB of them. On a server in the cloud, which is a virtual machine,
# the host translates every address a second time ([Bhargava and others](https://doi.org/10.1145/1346281.1346286), 2008), a known cause of such a
# rise that we have not tested here.
#
# **To remember.** With pages of 4 KiB, a TLB of 2,048 entries covers 8 MiB, and far beyond it a random load also waits for its translation. On
# Linux, NumPy asks for large pages from 4 MiB on.
#
# And your bet? The random walk makes 8.4 million loads, and each takes as long as the last point of the upper curve. Reading in order is the loop that
# numba compiled above, on the same pages. Counted in bytes, both walks would take equally long.

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The linked list takes many times as long"
ordinary = paged[page]
bet.reveal(measured=ordinary.chase_s[-1] / ordinary.in_order_s[-1])

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="In order, a load hardly waits at all"
alt = "The chase is above the loop at every size, and far above it beyond the near caches."
plotting.show(memory_hierarchy.draw_orders(ordinary), alt=alt)

# %% tags=["hide-input", "look"]
random_s, ordered_s = ordinary.chase_s[-1], ordinary.in_order_s[-1]
sentence = "a load of the random walk takes longer than one in order"
timing.claim(sentence, random_s / ordered_s, at_least=5, evidence=ordinary)
loads = 512 * MIB // 64
times = [units.text(loads * seconds, "s") for seconds in (random_s, ordered_s)]
waited = [units.text(seconds, "s") for seconds in (random_s, ordered_s)]

# %% tags=["hide-input", "look", "nbval-ignore-output"]
print(f"at random: 8.4 million loads of {waited[0]} make {times[0]}")
print(f"in order: 8.4 million loads of {waited[1]} make {times[1]}")

# %% [markdown] tags=["explain"]
# The slow side is explained. Each of its loads waits for main memory and for a translation. But now the fast side is a
# riddle. In order, a load takes only a few nanoseconds, although its data come from the same far memory. Does a wait perhaps bring more than one
# asks for?

# %% [markdown] tags=["slide"] minutes=2 headline="Memory moves whole lines"
# ## Part 3: what a wait brings
#
# How much data comes with each wait? If one wait served several loads of the loop, that would explain its speed.
#
# - Memory moves lines of 64 bytes, 16 float32 values
# - A load of one value moves its whole line
# - So count lines and not values
#
# If you use one value of a line, the other fifteen have made the journey for nothing. You can see it in a sum. We add all float32 values of 256 MiB, and
# then only every sixteenth, which is a sixteenth of the additions. The sixteenth value of each line is the first of the next.

# %% tags=["predict"]
sixteenth = helpers.predict(
    "How many times as long as adding all values does adding every sixteenth value take?", "x"
)
sixteenth

# %% tags=["run"]
x = torch.ones(64 * MIB)  # 256 MiB
sums = timing.compare(
    {"all": lambda: x.sum(), "every sixteenth": lambda: x[::16].sum()},
    budget_s=2,
    precision=0.1,
)

# %% tags=["look", "nbval-ignore-output"]
ratio = sums.candidate("every sixteenth").time_ratio
sixteenth.reveal(modelled=1, measured=ratio)

# %% tags=["hide-input", "look"]
sentence = "a sixteenth of the additions takes more than a quarter of the time"
timing.claim(sentence, ratio, at_least=1 / 4, evidence=sums)

# %% [markdown] tags=["explain"]
# Fifteen sixteenths of the additions are gone, and the time hardly changes, because the core still fetches every line. It is the same with a table, which PyTorch stores row by row:

# %% tags=["hide-input"]
alt = "Two tables of 16 lines: a row uses all of one line, a column one value of each line."
plotting.show(memory_hierarchy.draw_lines(), alt=alt)

# %% [markdown]
# **Your turn.** Count the lines behind any view of a tensor. Its value $(i, j, \dots)$ is at the position `storage_offset()` $+\, i \cdot$ `stride(0)`
# $+\, j \cdot$ `stride(1)` $+ \dots$ of its storage, counted in elements, for any number of axes. Suppose that the storage begins at the beginning of a line.


# %% tags=["yours"] yours="lines_touched" takes=12
def lines_touched(view):
    """Return how many different lines of 64 bytes hold the values of a view."""
    positions = torch.tensor([view.storage_offset()])
    for size, stride in zip(view.shape, view.stride(), strict=True):
        positions = (positions[:, None] + stride * torch.arange(size)).flatten()
    return len((positions * view.element_size() // 64).unique())


# %% checks="lines_touched"
lines_touched = check(lines_touched)


# %% wrong="lines_touched" says="Neighbours share a line"
def lines_touched(view):
    return view.numel()


# %% wrong="lines_touched" says="a column has only one value in each line"
def lines_touched(view):
    return -(-view.numel() * view.element_size() // 64)


# %% wrong="lines_touched" says="add its `storage_offset()`"
def lines_touched(view):
    positions = torch.zeros(1, dtype=torch.long)
    for size, stride in zip(view.shape, view.stride(), strict=True):
        positions = (positions[:, None] + stride * torch.arange(size)).flatten()
    return len((positions * view.element_size() // 64).unique())


# %% wrong="lines_touched" says="the cells below need int"
def lines_touched(view):
    positions = torch.tensor([view.storage_offset()])
    for size, stride in zip(view.shape, view.stride(), strict=True):
        positions = (positions[:, None] + stride * torch.arange(size)).flatten()
    return torch.tensor(len((positions * view.element_size() // 64).unique()))


# %% right="lines_touched" style=1
def lines_touched(view):
    lines = set()
    for index in np.ndindex(*view.shape):
        steps = (i * stride for i, stride in zip(index, view.stride(), strict=True))
        lines.add((view.storage_offset() + sum(steps)) * view.element_size() // 64)
    return len(lines)


# %% right="lines_touched" style=2
def lines_touched(view):
    elements = view.untyped_storage().nbytes() // view.element_size()
    positions = torch.arange(elements)
    seen = positions.as_strided(view.shape, view.stride(), view.storage_offset())
    return seen.mul(view.element_size()).div(64, rounding_mode="floor").unique().numel()


# %% [markdown]
# A table of a million samples with 16 features has one sample in each line. We add it up row by row, in 16 blocks of rows, and then column by column,
# in 16 columns. A column needs one value of each line, and by the time the next column needs the line again, it has left the near caches. For the first
# 1,024 samples, your function counts these lines:

# %%
table = torch.rand(2**20, 16)  # 64 MiB
part = table[:1024]
by_rows = sum(lines_touched(rows) for rows in part.chunk(16))
by_columns = sum(lines_touched(part[:, column]) for column in range(16))
print(f"lines touched: {by_rows:,} by rows, {by_columns:,} by columns (counted)")

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.5, 50]
columns = helpers.predict(
    "How many times as long as row by row does the sum of the table column by column take?",
    "x",
)
columns

# %% [markdown]
# The comparison also has a small part of the table, which is read again and again and stays in L1. There no line has to travel, so it shows
# what the additions alone take.

# %% tags=["run"]
near = table[:256].expand(4096, 256, 16)  # 16 KiB, read 4,096 times
orders = {
    "rows": lambda: [rows.sum() for rows in table.chunk(16)],
    "columns": lambda: [table[:, column].sum() for column in range(16)],
    "rows in L1": lambda: [rows.sum() for rows in near.chunk(16)],
    "columns in L1": lambda: [near[:, :, column].sum() for column in range(16)],
}
added = timing.compare(orders, budget_s=3, precision=0.1)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The count of lines predicts the time"
by_lines = by_columns / by_rows
columns.reveal(modelled=by_lines, measured=added.candidate("columns").time_ratio)

# %% tags=["hide-input", "look", "nbval-ignore-output"]
for order in ("columns", "rows"):
    all_s, near_s = (added.candidate(name).median_s for name in (order, f"{order} in L1"))
    print(
        f"{order}: {units.text(all_s, 's')}; as many values in L1: {units.text(near_s, 's')}"
    )

# %% tags=["hide-input", "look"]
ratio = added.candidate("columns").time_ratio / by_lines
sentence = "columns over rows, measured over counted"
timing.claim(sentence, ratio, at_least=1 / 3, at_most=3, evidence=added)
sentence = "the columns take much longer than as many values in L1"
ratio = added.candidate("columns").time_ratio / added.candidate("columns in L1").time_ratio
timing.claim(sentence, ratio, at_least=2, evidence=added)

# %% [markdown] tags=["explain"]
# The columns touch 16 times as many lines (counted), and they take about as many times as long. A second effect works in the same direction. A
# processor can load neighbouring values together into one vector [register](glossary.md#register), and the values of a column are not
# neighbours. This is why the columns take longer also in L1, where no line has to travel. But in L1 rows and columns both take only a small part
# of their time for the whole table, as the last lines show. Most of the difference is therefore the wait for lines.
#
# You can see this in your own program, because `x.stride()` says how many values apart two neighbours are along each axis.
#
# **To remember.** Memory moves lines of 64 bytes, which are 16 float32 values. Walk along the axis with stride 1, because from stride 16 on each value costs
# a line of its own.
#
# Lines explain why a neighbour is cheap, but they do not explain the bet, because both of its walks used one number from each line. Why does reading in
# order get a line every few nanoseconds?

# %% [markdown] tags=["slide"] minutes=2 headline="Loads that do not depend on each other wait together"
# ## Part 4: many waits at the same time
#
# How many waits fit into one? Both walks of the bet move the same lines, so the loop can be faster only if many of its waits happen at the same time.
#
# - A core does not stop at a load
# - It starts the next load if it knows the address
# - It must remember every line that it waits for
#
# In a chase, the core needs the first load to know where the next one is. But let one core follow several chases in turn, each with its own starting point.
# Then each load still waits for the load before it in its own chase, but not for those of the other chases. Each *step* moves all chases on by one load.


# %%
@numba.njit("void(u8[:, ::1], u8[::1], i8)")
def chases(buffer, lines, steps):
    for _ in range(steps):
        for chase in range(len(lines)):
            lines[chase] = buffer[lines[chase], 0]


# %% [markdown]
# The core remembers the lines that it waits for in its [line fill buffers](glossary.md#line-fill-buffer). The Golden Cove family has 16 of them (Bakhvalov,
# 2024, published), and other cores have fewer or more. If all are occupied, the next load has to wait until one is free. We use a buffer of
# 256 MiB in large pages, because there the translation hardly counts. Each call starts its chases at new lines, because a chase that runs close behind
# another one finds its lines in a cache.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.5, 64]
many = helpers.predict(
    "With 16 line fill buffers, how many times as long as a step of one chase "
    "does a step of 32 chases take?",
    "x",
)
many

# %% tags=["hide-input", "run"]
lines = 4 * MIB  # 256 MiB
one_cycle(large[:lines], np.random.default_rng(0))
random = np.random.default_rng(1)
counts = (1, 2, 4, 8, 16, 32, 64)


def starts(n):
    return random.integers(lines, size=n, dtype=np.uint64)


steps = timing.compare(
    {f"{n}": lambda n=n: chases(large, starts(n), 1000) for n in counts},
    budget_s=4,
    precision=0.1,
)
ratios = [row.time_ratio for row in steps.candidates]

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The line fill buffers limit how many waits overlap"
many.reveal(modelled=32 / 16, measured=ratios[5])
print(
    f"64 chases took {ratios[6]:.1f} times as long: {64 / ratios[6]:.0f} loads waited together"
)

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Eight chases take hardly longer than one"
alt = "Over the number of chases the time of a step stays flat and then rises in proportion."
plotting.show(memory_hierarchy.draw_chases(counts, measured=ratios, buffers=16), alt=alt)

# %% tags=["hide-input", "look"]
sentence = "a step of eight chases takes little longer than a step of one"
timing.claim(sentence, ratios[3], at_most=2, evidence=steps)

# %% [markdown] tags=["explain"]
# Eight loads take hardly longer than one, because all of them wait at the same time. From some number on the dots rise in proportion, since then
# all buffers are occupied. The second line of the answer says how many waited together. It divides the number of loads in a step by the number
# of single waits that the step took, and the result is about the number of buffers of your core.
#
# We know now how many waits can overlap, and so we can take the two differences of the bet apart. The random walk has a random order, and each
# of its addresses comes from the load before. The next function reads the same lines, also in a random order, but this order is given
# beforehand. An embedding is read like this, because the batch contains the numbers of all its rows.


# %%
@numba.njit("u8(u8[:, ::1], i8[::1])")
def gather(buffer, order):
    total = np.uint64(0)
    for line in order:
        total += buffer[line, 0]
    return total


# %% [markdown]
# For an estimate you need only the number of loads for which a core can wait at the same time.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.5, 64]
known = helpers.predict(
    "If both read the 512 MiB of the bet in random order, how many times as long as "
    "`gather` does the chase take?",
    "x",
)
known

# %% tags=["run"]
control = memory_hierarchy.measure_waits(
    walk, one_cycle, {page: small}, sizes_bytes=[512 * MIB], in_order=in_order, gather=gather
)[page]

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The order costs less than the dependence"
[chase_s], [gather_s], [loop_s] = control.chase_s, control.gathered_s, control.in_order_s
known.reveal(modelled=16, measured=chase_s / gather_s)
print(f"random and each address from the load before: {units.text(chase_s, 's')} per load")
print(f"random, all addresses known: {units.text(gather_s, 's')} per load")
print(f"in order, all addresses known: {units.text(loop_s, 's')} per load")

# %% tags=["hide-input", "look"]
sentence = "unknown addresses cost a larger factor than the random order"
ratio = (chase_s / gather_s) / (gather_s / loop_s)
timing.claim(sentence, ratio, at_least=1.2, evidence=control)

# %% [markdown] tags=["explain"]
# In the same random order, known addresses make the loads many times as fast, because as many of them wait together as the core has buffers, or
# fewer if their translations take long. So in random order a list is slow above all because each address comes from the load before. The random
# order alone costs only the factor between the last two lines, on this page about 4.5 (measured).
#
# Reading in order does even better. A [hardware prefetcher](glossary.md#hardware-prefetcher) notices the pattern and fetches lines before the
# program asks for them. On their way from memory to L2 they occupy no line fill buffer, because they are noted in another queue, behind L2,
# which has 48 places in the same family (Bakhvalov, 2024, published).
#
# How many lines are in flight at any moment? Suppose that lines arrive at a bandwidth $B$, in bytes per second, and that each is on its way for the
# latency $\alpha$. Then [Little's law](glossary.md#littles-law) says that $B\,\alpha$ bytes are in flight. For example, at 16 GB/s and 120 ns they are
# 16·10⁹ × 120·10⁻⁹, or 1,920 bytes, which are 30 lines. For your core it gives:

# %% tags=["hide-input", "look", "nbval-ignore-output"]
bandwidth, latency = 64 / ordinary.in_order_s[-1], waits.memory_s
core_bytes = bandwidth * latency
core_lines = core_bytes / 64
rate, wait, walk_wait = (
    units.text(bandwidth, "B/s"),
    units.text(latency, "s"),
    units.text(ordinary.chase_s[-1], "s"),
)
print(f"in order: {rate}, each line on its way for {wait} or longer (both measured)")
print(f"so {core_bytes:,.0f} bytes are in flight, or {core_lines:.1f} lines (modelled)")
factor = core_lines * ordinary.chase_s[-1] / latency
print(f"the bet: {core_lines:.1f} lines x {walk_wait} / {wait} = {factor:.1f} times")

# %% [markdown] tags=["explain"]
# For the wait we take that of main memory without a translation, because a loop in order needs a new page only once in 64 lines. While many
# lines are on their way, the real wait is longer, so the number is a lower bound. The random walk has a single line in flight, and each of its
# waits includes a translation. The last printed row multiplies the lines in flight by the ratio of the two waits, which must give the bet,
# because all come from the same times.
#
# **To remember.** Bytes in flight are bandwidth times latency. A core has 1 line in flight if each address comes from the load before. One of the Golden Cove family has
# up to 16 if it knows the addresses, and up to 48 if the prefetcher can guess them.
#
# A core gets some 10 to 20 GB/s by looking ahead in a single program, and the memory of the Ryzen above serves all of its cores with 51.2 GB/s.
# An RTX 3090 has 936 GB/s. Does its memory answer so much faster?

# %% [markdown] tags=["slide"] minutes=2 headline="A GPU waits longer, and has more that wait"
# ## Part 5: how a GPU hides the wait
#
# How does a GPU reach its bandwidth? Little's law can tell us, because its latency has been measured.
#
# - A GPU's memory answers later than a processor's
# - Its bandwidth is many times larger
# - So far more bytes must be in flight
#
# A chase runs on a GPU as well, in a single thread. On an A40 at 1,740 MHz, a load took 19 ns from L1, 144 ns from L2 and 320 ns from the memory
# of the GPU (RRZE, [gpu-benches](https://github.com/RRZE-HPC/gpu-benches), published as 33, 250 and 556 cycles). An RTX 3090, whose bandwidth we
# know, has the same chip and other memory, whose wait is not in this source. So we borrow the wait of the A40 and suppose that the 3090 answers
# in 320 ns too.
#
# Here is the chase of the A40 beside that of your core, together with your own GPU, if you have one, and with GPUs that readers have sent in:

# %% tags=["hide-input"]
alt = "The chase of the core and that of a GPU: each rises in steps, and the GPU's is higher."
gpus = memory_hierarchy.gpu_limits()
plotting.show(memory_hierarchy.draw_gpus(paged[other], gpus), alt=alt)

# %% [markdown]
# Yet the RTX 3090 has a bandwidth of 936 GB/s (published). By Little's law, 936 GB/s × 320 ns, or 300 kB, have to be in flight at every moment.
# Who waits for all these bytes? The GPU has 82 [multiprocessors](glossary.md#multiprocessor), which correspond to the cores of a CPU. Each of
# them holds up to 1,536 *threads*, which all run the same program, each with registers of its own. That makes 125,952 threads. The GPU starts
# them in groups of 32, called [warps](glossary.md#warp). Suppose that each waiting thread waits for one float32, which is 4 bytes.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 100]
waiting = helpers.predict(
    "Which share of all the threads of an RTX 3090 must wait for one float32 each "
    "to reach its bandwidth?",
    "%",
)
waiting

# %% tags=["run"]
rtx_3090 = hardware.device("GeForce RTX 3090")
chip = memory_hierarchy.gpu_wait("GA102")
gpu_bytes = rtx_3090.memory_bandwidth_bytes_per_s * chip.memory_s
gpu_threads = gpu_bytes / 4

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="More than half of its threads must wait"
waiting.reveal(modelled=100 * gpu_threads / (rtx_3090.cores * 1536))
print(f"{gpu_bytes:,.0f} bytes in flight, {gpu_threads:,.0f} threads wait (modelled)")

# %% tags=["hide-input", "look"]
alt = "Bars of threads: one keeps a unit busy a tenth of the time, ten all the time."
plotting.show(memory_hierarchy.draw_threads(), alt=alt)

# %% [markdown] tags=["explain"]
# At least 75,000 threads must wait, which is 59 % of all (modelled). So a GPU does not avoid the wait. It keeps so many threads that some of
# them always have their data, and it runs those. In the drawing a single thread keeps an arithmetic unit busy for a tenth of the time, and ten
# threads keep it busy all the time, although none of them waits less. Each waiting thread keeps its registers, and therefore this GPU has more
# bytes of registers than of L2:

# %% tags=["look"]
registers = rtx_3090.cores * rtx_3090.core_register_bytes
print(f"RTX 3090: {registers:,} bytes of registers, {rtx_3090.l2_bytes:,} of L2 (published)")

# %% [markdown] tags=["explain"]
# A single multiprocessor has 3.7 kB in flight, only about twice as much as a core that reads in order, but there are 82 of them. Whereas a core finds its loads by looking ahead,
# a GPU needs a programmer who brings enough threads.
#
# So far each thread waits for one float32, but it can also wait for several. In the next figure, choose a GPU, and find the one that cannot reach its bandwidth with one float32
# per thread, even if all of its threads wait.

# %% tags=["hide-input"]
memory_hierarchy.explore_threads()

# %% [markdown] tags=["explain"]
# By this estimate it is the H100. Its memory delivers 3,350 GB/s, and the same chip in a GH200 waits 347 ns (RRZE, published), so 1.16 MB must
# be in flight, which are 291,000 float32 values. But an H100 holds only 270,336 threads, 2,048 on each of 132 multiprocessors. If each thread
# loads four neighbouring values at once, 27 % of them suffice (modelled). Bandwidth has grown faster than the number of threads.
#
# **To remember.** With a wait of 320 ns, an RTX 3090 needs 300 kB in flight, for example 75,000 threads that wait for one float32 each. An operation on fewer values ends before its memory
# has ever reached full speed.
#
# The [appendix](appendix/01_memory_hierarchy.ipynb) has more, for example the energy of a load, channels last and embeddings, the
# [ways](glossary.md#ways) of a cache, [memory channels](glossary.md#memory-channel), [page faults](glossary.md#page-fault) and the
# [page cache](glossary.md#page-cache). In the [exercises](exercises/01_memory_hierarchy_exercises.ipynb) you write a cache that drops the
# [least recently used](glossary.md#least-recently-used) line, and you read a latency curve.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. Keep data near, in the caches of your own core.
# 2. Keep data next to each other, because memory moves lines.
# 3. Keep addresses known, because loads that are known wait together.
#
# On the machine that built this page the random walk takes 49 times as long as reading in order (measured), because it has 1 line in flight and
# waits 252 ns for each, for main memory and for a translation. In order, the prefetcher keeps dozens of lines in flight, so a line arrives every
# few nanoseconds. Of the two differences, unknown addresses cost about 11 times here and the random order alone about 4.5 times (measured). An
# RTX 3090 that waits 320 ns needs 300 kB in flight, so that some 75,000 of its threads wait.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $B$ is a bandwidth in bytes per second, $\alpha$ a latency in seconds. A view has the stride $s$ in elements of $e$ bytes, and a line has $\ell$ bytes.
#
# | quantity | formula |
# |---|---|
# | bytes in flight | $B\,\alpha$ |
# | bandwidth of a core with $m$ lines in flight | $\frac{m\,\ell}{\alpha}$ |
# | lines moved per element of a long walk, about | $\min(1, s\,e/\ell)$ |
