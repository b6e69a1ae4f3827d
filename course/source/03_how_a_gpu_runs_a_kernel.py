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
#     number: "03"
#     title: How a GPU runs a kernel
#     needs: ["01", "02"]
#     objectives:
#       - count|counted the instructions that a GPU issues when neighbouring threads differ
#       - predict|predicted how many bytes travel when neighbours follow a row or a column
#       - write|wrote a transpose that reads and writes along rows
#       - compute|computed how many blocks of a kernel a GPU can hold at once
#       - explain|explained why a GPU full of threads can still wait for its memory
# ---

# %% [markdown] tags=["objectives"]
# # How a GPU runs a kernel
#
# A transpose is the laziest program that you can give to a GPU. It reads every element of a matrix, writes it to another place, and computes
# nothing. In PyTorch, `x.t()` does not even do that, because it only exchanges sizes and strides. But `x.t().contiguous()` has to move the data,
# and so does a layer that wants its activations sorted by head instead of by token.
#
# Take a matrix of 32,768 × 32,768 float32 values. A transpose reads its 4.29 GB and writes 4.29 GB. By the [roofline](glossary.md#roofline) of
# [lesson 02](02_compute_and_roofline.ipynb) only memory can limit it, and at an H100's 3,350 GB/s the 8.59 GB take 2.56 ms. In December 2025 Caleb
# Yenusah published the times of twenty [kernels](glossary.md#gpu-kernel) that transpose this matrix on an H100
# ([code and table](https://github.com/yencal/gpu-matrix-transpose)). Mark Harris showed the first steps in 2013. The fastest needs 2.92 ms, which is 88 % of
# that [bandwidth](glossary.md#bandwidth).
#
# The simplest of the twenty is a single line, `output[x][y] = input[y][x]`, which each thread runs for one element. By its bytes and its
# operations it is the same program. Its time differs, by a factor that you can meet when you write a kernel or choose between two layouts of a
# tensor.
#
# So far a GPU was two rates (lesson 02) and a crowd of waiting threads ([lesson 01](01_memory_hierarchy.ipynb)). Now we open it, and each part finds
# something to count, namely [lanes](glossary.md#lane), [sectors](glossary.md#sector), passes and bytes in flight. You need no GPU, because a simulated
# [warp](glossary.md#warp) on your processor counts exactly. We had none either, so every measured time below is published, and unless we name another
# source it is from Yenusah's table. If your machine has a GPU, a cell near the end measures there.

# %% tags=["hide-input"]
import math

import numpy as np
import pandas as pd

import helpers
from helpers import exercises, native, plotting
from helpers.studies import gpu_execution
from helpers.studies.gpu_execution import launch

check = exercises.checks_of("how_a_gpu_runs_a_kernel")
published = {row.kernel: row for row in gpu_execution.TRANSPOSES}


def numbered(rows, columns):
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)


# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# What does a single line cost?
#
# - A transpose moves data and computes nothing
# - The fastest nearly fills the bandwidth of an H100
# - The simplest is one line, with the same bytes
#
# Write down a number before you go on.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.5, 50]
bet = helpers.predict(
    "On the same H100, how many times as long as the fastest transpose "
    "does the one-line transpose take?",
    "x",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A kernel is written for one thread and runs in warps"
# ## Part 1: the threads of a kernel
#
# Who runs a kernel? We begin with the threads, because a kernel is written for one of them.
#
# - A GPU starts threads in whole blocks
# - A block is cut into warps of 32 threads
# - A warp has one instruction at a time
#
# Take SAXPY, which computes `a * x + y` for every element of two vectors. A GPU starts threads in blocks, for example of 256, and it starts whole blocks
# only. For 1,000 elements we need four blocks, which are 1,024 threads, and the last 24 would reach past the end. So each thread first checks its index
# with an `if`, which is called a [guard](glossary.md#guard).
#
# **Your turn.** Write the kernel for one thread. Its index is `thread.block_x * thread.block_width + thread.thread_x`, which CUDA C++ writes as
# `blockIdx.x * blockDim.x + threadIdx.x`. If `x` has such an element, the thread replaces that element of `y`.


# %% tags=["yours"] yours="saxpy" takes=5
def saxpy(thread, a, x, y):
    """Replace this thread's element of y by a * x + y, if there is one."""
    i = thread.block_x * thread.block_width + thread.thread_x
    if i < len(x):
        y[i] = a * x[i] + y[i]


# %% checks="saxpy"
saxpy = check(saxpy)


# %% wrong="saxpy" says="guard the access with an if"
def saxpy(thread, a, x, y):
    i = thread.block_x * thread.block_width + thread.thread_x
    y[i] = a * x[i] + y[i]


# %% wrong="saxpy" says="Add the index of the block's first thread"
def saxpy(thread, a, x, y):
    i = thread.thread_x
    if i < len(x) and thread.block_x == 0:
        y[i] = a * x[i] + y[i]


# %% right="saxpy" style=1
def saxpy(thread, a, x, y):
    if thread.x >= x.shape[0]:
        return
    y[thread.x] += a * x[thread.x]


# %% right="saxpy" style=2
def saxpy(thread, a, x, y):
    for i in range(thread.x, min(len(y), thread.x + 1)):
        value = a * x[i]
        y[i] = y[i] + value


# %% [markdown]
# The hardware, however, never runs a single thread. It cuts each block into *warps* of 32 threads with consecutive numbers, and a warp
# executes one instruction at a time for all its threads, its *lanes*. `launch` simulates this for the 1,024 threads.

# %%
x, y = np.ones(1000, np.float32), np.ones(1000, np.float32)
run = launch(saxpy, 2.0, x, y, grid=4, block=256)

# %% tags=["hide-input"]
by_warp = {number: [one for one in run.requests if one.warp == number] for number in (30, 31)}
figure = gpu_execution.draw_lanes(
    {f"warp {number}": by_warp[number] for number in (30, 31)},
    title="Lanes of the last two of 32 warps",
)
plotting.show(figure, alt="All lanes of warp 30 take part, and of warp 31 the first eight.")

# %% tags=["hide-input"]
print(f"{run.threads:,} threads in {run.blocks} blocks are {run.warps} warps")
print(f"lanes of the last warp that pass the guard: {len(by_warp[31][0].lanes)} of 32")

# %% [markdown]
# Our 1,024 threads are 32 warps. In 31 of them every lane passes the guard. In the last one 8 lanes pass it, and the other 24 are switched off meanwhile.
# The guard costs almost nothing.
#
# An `if` with two sides can cost more. Suppose that in every warp the odd threads load from one array and the even threads from another. In this kernel
# `thread.x` is short for the index that you computed above.


# %%
def odd_and_even(thread, a, b, output):
    i = thread.x
    if i % 2:
        value = a[i]
    else:
        value = b[i]
    output[i] = value


# %% [markdown]
# For an estimate, remember how many instructions a warp has at a time.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 32]
loads = helpers.predict(
    "If the odd and even threads of a warp load from different arrays, "
    "how many load instructions does the warp issue?",
    "loads",
)
loads

# %% tags=["run"]
a, b, output = (np.ones(256, np.float32) for _ in range(3))
by_lane = launch(odd_and_even, a, b, output, grid=1, block=256)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Each side of the branch is issued"
loads.reveal(counted=by_lane.loads / by_lane.warps)


# %% [markdown] tags=["explain"]
# It issues two, because it has only one instruction at a time. First one half of the lanes loads while the other half is off, and then the roles change.
# This is called *[divergence](glossary.md#divergence)*. For a short `if` a compiler may find a way without a branch.
#
# Now let whole warps take one side or the other.


# %%
def warp_by_warp(thread, a, b, output):
    i = thread.x
    if i // 32 % 2:
        value = a[i]
    else:
        value = b[i]
    output[i] = value


by_warps = launch(warp_by_warp, a, b, output, grid=1, block=256)

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="A GPU minds that neighbours differ"
figure = gpu_execution.draw_lanes(
    {
        "odd and even lanes": [one for one in by_lane.requests if one.warp == 1],
        "whole warps": [one for one in by_warps.requests if one.warp == 1],
    },
    title="One warp, with half of all threads on each side",
)
plotting.show(figure, alt="Odd and even lanes load one after the other, a whole warp at once.")

# %% tags=["hide-input", "look"]
print(f"odd and even lanes: {by_lane.loads} loads of {by_lane.warps} warps")
print(f"whole warps: {by_warps.loads} loads of {by_warps.warps} warps")

# %% [markdown] tags=["explain"]
# Half of the threads are again on each side, yet each warp issues only one load, because its lanes agree. A GPU does not mind that threads
# differ. It minds that lanes of one warp differ.
#
# Which threads share a warp? In a block of 32 × 32 threads, thread (x, y) has the number 32 y + x. A warp is therefore one row of the block,
# with one y and with x from 0 to 31.
#
# **To remember.** Count warps and not threads. A warp of 32 lanes issues every side of a branch that at least one of its lanes takes.
#
# The one-line transpose cannot suffer from divergence, because all of its threads do the same and no lane has to decide anything. What else can 32
# neighbours disagree about?

# %% [markdown] tags=["slide"] minutes=2 headline="Memory answers a warp in sectors"
# ## Part 2: the sectors of a request
#
# What does a warp request from memory? The lanes of the transpose agree on the instruction, but they can still disagree about the place.
#
# - A load or a store hands over 32 addresses at once
# - Memory answers in sectors of 32 bytes
# - A request costs the sectors that its addresses touch
#
# When a warp executes a load or a store, it hands over 32 addresses in one *request*. In lesson 01 memory delivered lines of 64 bytes. On a GPU the unit is
# a *sector* of 32 bytes, which is 8 float32 values, and a request costs as many sectors as its addresses touch
# ([CUDA C++ Best Practices Guide](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/)).
#
# **Your turn.** Count them. The addresses of the lanes are in bytes, each of a value of 4 bytes, and sector number 0 has the bytes 0 to 31.


# %% tags=["yours"] yours="sectors" takes=5
def sectors(addresses):
    """Return how many sectors of 32 bytes the byte addresses of one request touch."""
    return len({address // 32 for address in addresses})


# %% checks="sectors"
sectors = check(sectors)


# %% wrong="sectors" says="A sector that several lanes touch counts once"
def sectors(addresses):
    return len([address // 32 for address in addresses])


# %% wrong="sectors" says="A sector has 32 bytes, and not 128"
def sectors(addresses):
    return len({address // 128 for address in addresses})


# %% wrong="sectors" says="Lanes need not touch neighbouring sectors"
def sectors(addresses):
    return max(addresses) // 32 - min(addresses) // 32 + 1


# %% wrong="sectors" says="the cells below need int"
def sectors(addresses):
    return float(len({address // 32 for address in addresses}))


# %% right="sectors" style=1
def sectors(addresses):
    touched = []
    for address in addresses:
        if address // 32 not in touched:
            touched.append(address // 32)
    return len(touched)


# %% right="sectors" style=2
def sectors(addresses):
    return np.unique(np.array(list(addresses)) // 32).size


# %%
steps = {"every value": 1, "every 2nd value": 2, "every 8th value": 8}
requests = {name: [4 * step * lane for lane in range(32)] for name, step in steps.items()}
touched = {name: sectors(addresses) for name, addresses in requests.items()}

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="The same 128 bytes cost 4, 8 or 32 sectors"
figure = gpu_execution.draw_sectors(requests, title="What travels for 32 values")
plotting.show(figure, alt="32 neighbours touch 4 sectors, every 2nd value 8, every 8th 32.")

# %% tags=["hide-input"]
assert touched == {name: gpu_execution.sectors(request) for name, request in requests.items()}
print("sectors:", ", ".join(map(str, touched.values())))

# %% [markdown]
# If 32 lanes read 32 neighbouring values, they touch 128 bytes, or four sectors. If they read only every second value, they touch eight and use half of
# each. If they read every eighth value, each lane has a sector of its own, so that a whole kilobyte travels although the warp wanted 128 bytes. A request
# that touches as few sectors as possible is called *[coalesced](glossary.md#coalesced-access)*.
#
# Now count the one line, on a matrix of 64 × 64 elements that `numbered` fills with different values. Try it before you read on, because you know that the
# lanes share y and differ in x.


# %% tags=["slide", "slide-code"] minutes=1 headline="A row on one side, a column on the other"
def one_line(thread, input, output):
    output[thread.x, thread.y] = input[thread.y, thread.x]


matrix, turned = numbered(64, 64), np.zeros((64, 64), np.float32)
line = launch(one_line, matrix, turned, grid=(2, 2), block=(32, 32))

# %% tags=["hide-input"]
assert (turned == matrix.T).all()
for array, access in (("input", "load"), ("output", "store")):
    print(f"{access} {array}: {line.count(array, access).sectors_per_request:.0f} sectors")

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Sectors explain a large part of the factor"
longer = published["Naive"].time_s / published["Vec4_T64_Coarsen4"].time_s
source = "yencal/gpu-matrix-transpose, an H100"
bet.reveal(modelled=line.sectors / line.warps / 8, published=longer, source=source)

# %% [markdown] tags=["explain"]
# The lanes read neighbours in one row, which takes 4 sectors, but they write into 32 different rows, which are 131,072 bytes apart in the large matrix, and
# that takes 32. A copy would need 4 + 4 sectors, and the transpose needs 4 + 32. That is 36 / 8, or 4.5 times as many (counted).
#
# And your bet? The one-line kernel takes 18.06 ms, 6.2 times as long as the fastest. Our count explains a large part of it, and we shall have to look for
# the rest. But first, does the count deserve to be trusted?
#
# Test it on another program, the naive matrix product of lesson 02. Each thread computes one element of C, and in each step it loads one element of A and
# one of B. Suppose that x is the column. Then all lanes of a warp need the same element of A, which is 1 sector, and 32 neighbours of B, which are 4. Now
# let x be the row. The lanes need 32 elements of A from different rows, and all of them the same element of B.


# %%
def x_is_column(thread, a, b, c):
    total = 0.0
    for p in range(a.shape[1]):
        total += a[thread.y, p] * b[p, thread.x]
    c[thread.y, thread.x] = total


def x_is_row(thread, a, b, c):
    total = 0.0
    for p in range(a.shape[1]):
        total += a[thread.x, p] * b[p, thread.y]
    c[thread.x, thread.y] = total


# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.5, 50]
exchanged = helpers.predict(
    "In the naive product, how many times as many sectors does a warp request "
    "if x is the row instead of the column?",
    "x",
)
exchanged

# %% tags=["hide-input", "run"]
left, right = numbered(32, 8), numbered(8, 32)
loaded = []
for kernel in (x_is_column, x_is_row):
    product = np.zeros((32, 32), np.float32)
    done = launch(kernel, left, right, product, grid=1, block=(32, 32))
    assert np.allclose(product, left @ right)
    loaded.append(sum(done.count(name, "load").sectors for name in "ab"))

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="One exchanged index asks for many more sectors"
exchanged.reveal(modelled=(32 + 1) / (1 + 4), counted=loaded[1] / loaded[0])
slow, fast = (row.flops_per_s / 1e9 for row in gpu_execution.PRODUCTS)
print(f"published, on an A6000: {slow:,.0f} and {fast:,.1f} GFLOP/s, {fast / slow:.1f} times")

# %% [markdown] tags=["explain"]
# It requests 32 + 1 instead of 1 + 4, which is 6.6 times as many. Simon Boehm measured both products on an A6000 and got 309 and 1,986.5 GFLOP/s
# ([SGEMM_CUDA](https://github.com/siboehm/SGEMM_CUDA), published). That is a factor of 6.4. So close an agreement is partly luck, because
# [caches](glossary.md#cache) serve many of these sectors. But all he had to do was to exchange x and y, and you will not find a cheaper factor of six.
#
# For the transpose this trick fails. If we exchange x and y, the writes are coalesced and the reads are not, and 32 + 4 is 36 again. A transpose has to
# follow a row on one side and a column on the other.
#
# **To remember.** A warp that follows a row of float32 values touches 4 sectors per request, and down a column it touches 32. Let x run along the rows.
#
# Is there a memory that does not charge by the sector?

# %% [markdown] tags=["slide"] minutes=2 headline="Shared memory delivers single words"
# ## Part 3: a memory for columns
#
# Where can a warp walk down a column? A transpose needs such a place, because one of its two sides is always a column.
#
# - Each [multiprocessor](glossary.md#multiprocessor) has a small [shared memory](glossary.md#shared-memory)
# - A block fills it by hand, row by row
# - Then the block takes the columns out
#
# Each multiprocessor has a small *shared memory*, which a block fills by hand and can use as long as it runs. On an H100 it has 228 KiB, and it
# delivers single words of 4 bytes, so a column costs no extra sectors there. A block loads a tile of 32 × 32 elements by rows and waits at a
# [barrier](glossary.md#barrier) until all its warps have done so. Then it takes the tile out by columns, and each column becomes a row of the
# output.
#
# **Your turn.** Write it for one thread, in blocks of 32 × 32. `thread.x` and `thread.y` are its place in the whole matrix, `thread.thread_x` and
# `thread.thread_y` its place in the block. Block (`thread.block_x`, `thread.block_y`) of the input becomes block (`thread.block_y`, `thread.block_x`) of the
# output. `thread.shared("tile", 32, words)` gives the block its tile, an array of 32 rows with `words` words each, 32 for now, and its
# elements are `tile[row, column]`. Where CUDA C++ has `__syncthreads()` we write `yield`.


# %% tags=["yours"] yours="transpose" takes=15
def transpose(thread, input, output, words):
    """Turn the block's tile of 32 x 32 elements in shared memory, `words` words per row."""
    x, y = thread.thread_x, thread.thread_y
    tile = thread.shared("tile", 32, words)
    tile[y, x] = input[thread.y, thread.x]
    yield
    row, column = 32 * thread.block_x + y, 32 * thread.block_y + x
    output[row, column] = tile[x, y]


# %% checks="transpose"
transpose = check(transpose)


# %% wrong="transpose" says="with a yield in between"
def transpose(thread, input, output, words):
    x, y = thread.thread_x, thread.thread_y
    tile = thread.shared("tile", 32, words)
    tile[y, x] = input[thread.y, thread.x]
    row, column = 32 * thread.block_x + y, 32 * thread.block_y + x
    output[row, column] = tile[x, y]


# %% wrong="transpose" says="The blocks change places as well"
def transpose(thread, input, output, words):
    tile = thread.shared("tile", 32, words)
    tile[thread.thread_y, thread.thread_x] = input[thread.y, thread.x]
    yield
    output[thread.y, thread.x] = tile[thread.thread_x, thread.thread_y]


# %% wrong="transpose" says="down a column of the output"
def transpose(thread, input, output, words):
    x, y = thread.thread_x, thread.thread_y
    tile = thread.shared("tile", 32, words)
    tile[y, x] = input[thread.y, thread.x]
    yield
    output[thread.x, thread.y] = tile[y, x]


# %% wrong="transpose" says="Give a row of the tile `words` words"
def transpose(thread, input, output, words):
    x, y = thread.thread_x, thread.thread_y
    tile = thread.shared("tile", 32, 32)
    tile[y, x] = input[thread.y, thread.x]
    yield
    row, column = 32 * thread.block_x + y, 32 * thread.block_y + x
    output[row, column] = tile[x, y]


# %% right="transpose" style=1
def transpose(thread, input, output, words):
    turned = thread.shared("turned", 32, words)
    turned[thread.thread_x, thread.thread_y] = input[thread.y, thread.x]  # down a column
    yield
    first_row, first_column = 32 * thread.block_x, 32 * thread.block_y
    value = turned[thread.thread_y, thread.thread_x]  # along a row
    output[first_row + thread.thread_y, first_column + thread.thread_x] = value


# %% right="transpose" style=2
def transpose(thread, input, output, words):
    tile, lane, warp = thread.shared("s", 32 * words), thread.thread_x, thread.thread_y
    tile[words * warp + lane] = input[thread.y, thread.x]
    yield
    output[thread.x - lane + warp, thread.y - warp + lane] = tile[words * lane + warp]


# %%
matrix, turned = numbered(64, 64), np.zeros((64, 64), np.float32)
tiled = launch(transpose, matrix, turned, 32, grid=(2, 2), block=(32, 32))
assert (turned == matrix.T).all()

# %% tags=["hide-input"]
print(f"each warp: {tiled.sectors / tiled.warps:.0f} sectors of the GPU's memory")
print(f"each warp: {tiled.passes / tiled.warps:.0f} passes of shared memory")

# %% [markdown]
# All requests to the GPU's memory are coalesced now, and a warp needs 4 + 4 sectors, as in a copy. If sectors were everything, the time would fall by a
# factor of 4.5, from 18.06 to 4.0 ms.
#
# It falls to 8.62 ms, a factor of only 2.1. Something in the tile takes time, and it has to do with the 33 passes that the cell has counted.
#
# Shared memory consists of 32 *banks*. Word number w is in bank w mod 32, and each bank delivers one word per cycle ([CUDA C++ Programming
# Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/)). The words of a row are in 32 different banks, so a warp gets them in one
# *pass*. A column of our tile consists of the words 0, 32, 64 and so on. All of them are in bank 0, which must deliver 32 different words one
# after the other. The column takes 32 passes, and 31 banks look on. This is a *[bank conflict](glossary.md#bank-conflict)*. Lanes that want the
# very same word do not conflict, because a bank gives it to all of them at once.
#
# The remedy is almost embarrassing. Give each row of the tile 33 words, and never use the last one. The words of a column are now 0, 33, 66 and so on, in
# the banks 0, 1, 2 and so on, and a column takes a single pass. In `transpose` this changes one number.

# %%
turned = np.zeros_like(matrix)
padded = launch(transpose, matrix, turned, 33, grid=(2, 2), block=(32, 32))

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="One unused word per row removes the conflict" untitled=true
columns = {
    f"{words} words per row": [4 * words * lane for lane in range(32)] for words in (32, 33)
}
figure = gpu_execution.draw_banks(columns, title="Where a column of the tile is stored")
plotting.show(figure, alt="A column is in one bank with 32 words per row, in 32 with 33.")

# %% tags=["hide-input"]
assert (turned == matrix.T).all()
for words, run in ((32, tiled), (33, padded)):
    down = run.passes / run.warps - 1  # without the one that goes along a row
    print(f"{words} words per row: a column takes {down:.0f} of the passes of a warp")

# %% [markdown]
# The price of this *padding* is 128 bytes per tile. You can work out every other width in the same way.

# %% tags=["predict"]
passes = helpers.predict(
    "With 34 words per row instead of 33, how many passes does a column of the tile take?",
    "passes",
)
passes

# %% tags=["run"]
wider = launch(transpose, matrix, turned, 34, grid=(2, 2), block=(32, 32))

# %% tags=["look"]
passes.reveal(modelled=math.gcd(34, 32), counted=wider.passes / wider.warps - 1)

# %% [markdown] tags=["explain"]
# It takes two, because the banks are then 0, 2, 4 and so on, and after 16 rows they repeat. Every odd number of words is free of conflicts, and no even
# number is.
#
# How much time should the padding save? The matrix has 2³⁰ elements, so 33.6 million warps each save 31 passes, 1.04 billion in all. Divided among 132
# multiprocessors these are 7.9 million passes each. With one pass per cycle, at the 1.98 GHz behind the data sheet's float32 peak, they take 4.0 ms
# (modelled). The padded kernel takes 5.07 ms, so the padding saves 3.55 ms. The model is 12 % too high, perhaps because some passes were hidden behind
# other waits.
#
# The one-line kernel takes 3.6 times as long as the padded one, although the count of sectors said 4.5. A known reason is that not every
# requested sector becomes traffic of the memory, because a cache stands between. Eight warps of a block write the eight values of each sector,
# and a cache can join their writes. We have not tested how much of the difference this explains.
#
# **To remember.** Turn data in shared memory, and give a tile an odd number of words per row. With 32 words a column takes 32 passes, and with 33 it takes
# one.
#
# No lane is switched off now, a warp needs as many sectors as in a copy, and a column takes one pass. Yet 5.07 ms are twice the 2.56 ms of the
# roofline. What does the GPU do in the other half?

# %% [markdown] tags=["slide"] minutes=2 headline="A GPU hides the wait of a warp behind other warps"
# ## Part 4: the bytes in flight
#
# Who waits, and with how many bytes? None of our counts of work explains the other half of the time, so let us look for waiting, which we found at our
# core in lesson 01.
#
# - A load from the GPU's memory takes hundreds of cycles
# - Meanwhile a scheduler issues instructions of other warps
# - [Registers](glossary.md#register) and shared memory limit how many there are
#
# On a GH200, whose GPU is of the same generation, a load from idle memory takes 347 ns ([RRZE](https://github.com/RRZE-HPC/gpu-benches),
# published), which are 687 cycles at 1.98 GHz. A warp whose data are missing is set aside, and its scheduler, one of four in a multiprocessor,
# issues an instruction of another warp in the next cycle. The change costs nothing, because every warp keeps its registers the whole time. So a
# GPU hides the wait of a warp behind other warps, if enough of them are there. The figure shows this for loads of only 19 cycles, in which a
# warp is set aside for 18.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Enough warps keep a scheduler busy" untitled=true
schedules = {
    f"{warps} warp{'s' if warps > 1 else ''}": gpu_execution.run_scheduler(
        warps, latency_cycles=19
    )
    for warps in (1, 4, 10)
}
figure = gpu_execution.draw_schedules(
    schedules, title="A scheduler with 1, 4 and 10 warps", until=80
)
plotting.show(figure, alt="The scheduler is busy for 10, 40 and 100 % of the cycles.")

# %% [markdown]
# A multiprocessor of an H100 has room for 64 warps, and the share of these places that are taken is called *[occupancy](glossary.md#occupancy)*.
#
# Blocks move in whole, and each must find room for its threads, its registers and its shared memory. We compiled the padded kernel for an H100. Each of its
# 1,024 threads needs 12 registers, and the block needs 4,224 bytes of shared memory. A warp gets its registers in lots of 256, so its 32 × 12, or 384,
# count as 512, and the 32 warps of a block take 16,384. The multiprocessor's 65,536 registers are enough for four such blocks. The system adds 1,024 bytes
# of shared memory to each block, so 228 KiB are enough for 44 (rules of CUDA's occupancy calculator). But there is room for only 2,048 threads. So two
# blocks fit, and the occupancy is 100 %.
#
# **Your turn.** Write these rules down for an H100. However small its blocks are, a multiprocessor holds at most 32 of them. (One rule is left out. The
# registers lie in four equal parts, and a warp takes its own from one part. It matters only if the warps of a block are no multiple of four, and
# `gpu_execution.occupancy`, which draws the figure below, has it.)


# %% tags=["yours"] yours="blocks_that_fit" takes=10
def blocks_that_fit(threads, registers, shared_bytes):
    """Return the blocks that a multiprocessor of an H100 holds at once."""
    warps = math.ceil(threads / 32)
    warp_registers = 256 * math.ceil(32 * registers / 256)
    by_registers = 65_536 // (warps * warp_registers)
    by_shared_memory = 228 * 1024 // (shared_bytes + 1024)
    return min(64 // warps, by_registers, by_shared_memory, 32)


# %% checks="blocks_that_fit"
blocks_that_fit = check(blocks_that_fit)


# %% wrong="blocks_that_fit" says="in lots of 256"
def blocks_that_fit(threads, registers, shared_bytes):
    by_registers = 65_536 // (threads * registers)
    return min(2048 // threads, by_registers, 228 * 1024 // (shared_bytes + 1024), 32)


# %% wrong="blocks_that_fit" says="The system adds 1,024 bytes"
def blocks_that_fit(threads, registers, shared_bytes):
    warps = math.ceil(threads / 32)
    by_registers = 65_536 // (warps * 256 * math.ceil(registers / 8))
    by_shared_memory = 228 * 1024 // shared_bytes if shared_bytes else 32
    return min(64 // warps, by_registers, by_shared_memory, 32)


# %% wrong="blocks_that_fit" says="at most 32 blocks"
def blocks_that_fit(threads, registers, shared_bytes):
    warps = math.ceil(threads / 32)
    by_registers = 65_536 // (warps * 256 * math.ceil(registers / 8))
    return min(64 // warps, by_registers, 228 * 1024 // (shared_bytes + 1024))


# %% wrong="blocks_that_fit" says="half a block cannot move in"
def blocks_that_fit(threads, registers, shared_bytes):
    warps = threads / 32
    by_registers = 65_536 / (warps * 256 * math.ceil(registers / 8))
    return min(64 / warps, by_registers, 228 * 1024 / (shared_bytes + 1024), 32)


# %% right="blocks_that_fit" style=1
def blocks_that_fit(threads, registers, shared_bytes):
    warps = -(-threads // 32)
    blocks = 0
    while blocks < 32:
        needed = blocks + 1
        places, lots = needed * warps, needed * warps * -(-registers // 8)
        if places > 64 or lots > 256 or needed * (shared_bytes + 1024) > 228 * 1024:
            break
        blocks = needed
    return blocks


# %% right="blocks_that_fit" style=2
def blocks_that_fit(threads, registers, shared_bytes):
    return gpu_execution.occupancy(
        "9.0", threads=threads, registers=registers, shared_bytes=shared_bytes
    ).blocks


# %%
kernel = gpu_execution.H100_RESOURCES["padded"]
blocks = blocks_that_fit(1024, kernel.registers, kernel.shared_bytes)

# %% tags=["hide-input"]
print(f"{kernel.registers} registers per thread, {kernel.shared_bytes:,} bytes per block")
print(f"{blocks} blocks, {32 * blocks} of 64 warps, an occupancy of {50 * blocks} %")

# %% tags=["hide-input", "nbval-ignore-output"]
try:
    compiled = native.compile_cuda(gpu_execution.cuda_source(), architecture="sm_90")
    here = compiled.resources("padded")
    print(f"compiled here: {here.registers} registers, {here.shared_bytes:,} bytes")
except native.NativeError as error:
    print(f"not compiled here, so the lesson takes what we compiled: {error}")

# %% [markdown]
# The limits have sharp edges. The 65,536 registers are exactly 32 for each of 2,048 threads.

# %% tags=["predict"]
one_more = helpers.predict(
    "In blocks of 1,024 threads, which occupancy is left "
    "if each thread needs 33 registers instead of 32?",
    "%",
)
one_more

# %% tags=["run"]
blocks = blocks_that_fit(1024, 33, 0)

# %% tags=["look"]
one_more.reveal(modelled=100 * blocks * 32 / 64)

# %% tags=["hide-input", "look"]
gpu_execution.explore_occupancy()

# %% [markdown] tags=["explain"]
# Only 50 %, because the second block does not fit any more, and half a block cannot move in. Turn the figure, and find the
# largest block with which a kernel of 33 registers keeps 75 % of the warps.
#
# The padded kernel thus has all the warps that it can have, and still it reaches only 1,693 GB/s, half of the bandwidth. By
# [Little's law](glossary.md#littles-law) the bytes in flight are bandwidth times [latency](glossary.md#latency). We count the reads only, because a thread
# waits for what it loads and not for what it stores, and they are half of a transpose's bytes, 1,675 GB/s at full speed. The latency is that of the GH200.
# Full of warps, the 132 multiprocessors of an H100 have 132 × 2,048, or 270,336 threads.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 100]
waiting = helpers.predict(
    "For a transpose at full bandwidth, which share of an H100's 270,336 threads "
    "must wait for one float32 each at any moment?",
    "%",
)
waiting

# %% tags=["run"]
read_bytes_per_s, latency_s = 3350e9 / 2, 347e-9
bytes_in_flight = read_bytes_per_s * latency_s

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="More than half of all threads must wait at once"
waiting.reveal(modelled=100 * bytes_in_flight / 4 / (132 * 2048))

# %% [markdown] tags=["explain"]
# The reads need 1,675 GB/s × 347 ns, or 581 kB in flight. With 4 bytes each these are 145,000 threads, or 54 % (modelled). At an occupancy of 100 % this
# sounds easy. But the 1,693 GB/s that came out are 847 GB/s of reads, for which the same law needs only 27 % of the threads, so with an idle
# memory's latency about one thread in four had a load on its way. Not every thread that is there waits for its load. Some wait at the barrier for the slowest warp, others write, and a place stays empty
# until the next block has moved in. Besides, a busy memory answers later than an idle one, so both shares are larger in truth.
#
# More warps cannot be had, so each must ask for more. Let 256 threads serve a tile instead of 1,024, each of them in four rows. In the code that we
# compiled, a thread issues its four loads before it needs the first value. Occupancy is still 100 %, now with eight blocks of 256 threads, and each value
# costs the same sectors and passes. But every thread has four values on their way instead of one, so a quarter of the threads suffices, or 13 %.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="More values per thread bring more bandwidth" source="Caleb Yenusah, gpu-matrix-transpose (github.com/yencal/gpu-matrix-transpose), on an H100"
kernels = {1: "TiledPadded", 2: "Coarsen2", 4: "Coarsen4", 8: "Coarsen8"}
row = [f"{published[name].bandwidth_bytes_per_s / 1e9:,.0f}" for name in kernels.values()]
pd.DataFrame([row], index=["GB/s (published)"], columns=list(kernels)).rename_axis(
    "values per thread", axis=1
)

# %% [markdown]
# Four values bring 1.64 times the bandwidth of one. Perhaps it was the smaller blocks that helped? Another of the twenty kernels speaks against it, because
# its blocks of 1,024 threads, with four values each and in tiles of 64 × 64, reach 2,872 GB/s. Even a plain copy, without a tile or a barrier, moves only
# about 2,000 GB/s on an H100 if each thread loads 4 bytes, but about 3,050 with 16
# ([Yenusah, November 2025](https://github.com/yencal/gpu-bandwidth-benchmark), published). Threads with more values also compute fewer indices per value,
# which the author names as a cause, and the table cannot separate the two.
#
# And the fastest of the twenty? Compiled, it takes 32 registers per thread, which leave room for all warps. But its blocks of 128 threads need 16,640 bytes
# of shared memory each, or 17,664 with those of the system. Thirteen of them fit into 228 KiB, which are 52 of 64 warps. It wins with an occupancy of 81 % against kernels with 100 %. Occupancy counts warps, whereas
# the memory counts bytes.

# %% tags=["hide-input"]
fits = gpu_execution.occupancy("9.0", threads=128, registers=32, shared_bytes=16_640)
print(f"the fastest: {fits.blocks} blocks of 4 warps, limited by {fits.limited_by}")
print(f"{4 * fits.blocks} of 64 warps, an occupancy of {100 * fits.warp_share:.0f} %")

# %% [markdown]
# **To remember.** Bytes in flight are waiting warps times bytes per warp. To keep an H100's memory busy with a transpose, 54 % of all threads
# must wait at any moment with one float32 each, and 13 % with four.
#
# You can now count most of what separates the slowest kernel from the fastest. Which count brought how much?

# %% [markdown]
# ## Back to the bet
#
# The one-line transpose takes 6.2 times as long as the fastest, 18.06 ms instead of 2.92. You have seen the way between them, and you can name the counts
# that each step changed.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Each step on the way changed a count" source="Caleb Yenusah, gpu-matrix-transpose (github.com/yencal/gpu-matrix-transpose), on an H100"
four_rows = [4 * (4 * 65 * (lane % 16) + lane // 16) for lane in range(32)]
runs = {
    "one line": ("Naive", line, None),
    "tile": ("Tiled", tiled, tiled.passes // tiled.warps - 1),
    "padded tile": ("TiledPadded", padded, padded.passes // padded.warps - 1),
    "four values per thread": ("Coarsen4", padded, padded.passes // padded.warps - 1),
    "fastest, tiles of 64 × 64": (
        "Vec4_T64_Coarsen4",
        padded,
        gpu_execution.bank_passes(four_rows),
    ),
}
way = {
    name: gpu_execution.TransposeStep(run.sectors // run.warps, down, published[kernel])
    for name, (kernel, run, down) in runs.items()
}
figure = gpu_execution.draw_way(
    way,
    least_s=2 * 4 * 32_768**2 / 3350e9,
    title="The way from one line to the fastest transpose",
)
plotting.show(
    figure,
    alt="Five kernels, from 18.06 to 2.92 ms. Sectors fall, then passes, and values rise.",
)

# %% [markdown]
# Fewer sectors and the padding together made it 3.6 times as fast, because a warp that walks down a column touches 32 sectors for 128 bytes, and
# because the padding removed the price of the detour. The fastest kernel has two passes again, although its rows have 65 words, because each of
# its threads takes four neighbouring rows, and the 16 lanes of a warp that go down a column in such steps meet only eight banks. Four values per
# thread bring most of the other factor of 1.7. More bytes are in flight then, and each value costs fewer indices, and the table cannot separate
# the two. From 3.10 to 2.92 ms the tiles and the values per thread change together, so we cannot name the cause.
#
# If your machine has a GPU, the next cell runs four of these kernels there, on a matrix of 8,192 × 8,192, and PyTorch's `x.t().contiguous()` beside them.

# %% tags=["hide-input", "nbval-ignore-output"]
here = gpu_execution.measure_transposes()  # None without a GPU
if here:
    stability = "" if here.stable else ", not stable"
    print(f"{here.device}, {here.side:,} x {here.side:,} values (measured{stability})")
    for row in here.transposes:
        rate = 8 * here.side**2 / row.time_s / 1e9  # each value is read and written
        print(f"{row.kernel:>12}: {1e3 * row.time_s:.3g} ms, {rate:,.0f} GB/s")
else:
    print("No GPU here, so the times are those of the published table.")

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. A GPU runs warps, and neighbours should agree.
# 2. Along a row a request takes 4 sectors, down a column 32.
# 3. Memory stays busy only with enough bytes in flight.
#
# So ask a slow kernel four questions. Do the lanes agree? Do they follow a row? Do they share a bank? Are enough bytes in flight? The repair is often one
# exchanged index or one word of padding, and not a new GPU. In the [exercises](exercises/03_how_a_gpu_runs_a_kernel_exercises.ipynb) you add up a block's
# values with three kernels, and count what each of them costs. [The appendix](appendix/03_how_a_gpu_runs_a_kernel.ipynb) is about
# [kernel launches](glossary.md#kernel-launch), and about a tile that needs no unused words.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A row of a tile has $p$ words. A block has $w$ warps and $s$ bytes of shared memory, and a thread $r$ registers.
#
# | quantity | formula | for |
# |---|---|---|
# | sectors of a request | number of different $\lfloor \text{address} / 32 \rfloor$ | values of 4 bytes |
# | passes of a column | $\gcd(p, 32)$ | a tile with 32 rows in shared memory |
# | blocks by warps | $\lfloor 64 / w \rfloor$ | an H100 |
# | blocks by registers | $\lfloor 65536 / (256\, w\, \lceil r / 8 \rceil) \rfloor$ | an H100 |
# | blocks by shared memory | $\lfloor 233472 / (s + 1024) \rfloor$ | an H100 |
# | blocks that fit | the least of these three and 32 | an H100 |
# | bytes in flight | bandwidth × latency | a memory at full bandwidth |
