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
#     title: The launch of a kernel, and a tile without unused words
# ---

# %% [markdown]
# # The launch of a kernel, and a tile without unused words
#
# The lesson looks into a kernel that runs already, and it pays for a tile without conflicts with one unused word per row. Here are two questions that it
# leaves open. What does it cost to start a kernel, and can a tile do without the unused words?

# %% tags=["hide-input"]
import numpy as np

import helpers
from helpers.studies.gpu_execution import launch

# %% [markdown]
# ## What does a launch cost?
#
# A GPU does not start a kernel by itself. A program on the CPU puts the launch into a queue, a *stream*, and the GPU takes one kernel after the other from
# it. NVIDIA's blog published a series of times for a step of 20 kernels, each of which runs for 2.9 µs on a V100
# ([Getting Started with CUDA Graphs](https://developer.nvidia.com/blog/cuda-graphs/), 2019). If the CPU waited for each kernel before it launched the next
# one, a kernel took 9.6 µs, because the launch and the wait came on top. If it did not wait, a kernel took 3.8 µs, because most of each launch was hidden
# behind the kernel before it. If all 20 launches were recorded once and then replayed with a single call, a *CUDA graph*, a kernel took 3.4 µs.
# Recording the graph took 400 µs once, so you can work out when it pays.

# %% tags=["predict"]
steps = helpers.predict(
    "After how many steps has the graph of 20 kernels earned back the time that it took to record?",
    "steps",
)
steps

# %% tags=["run"]
saved_us = 20 * (3.8 - 3.4)

# %% tags=["look"]
steps.reveal(modelled=400 / saved_us)

# %% [markdown] tags=["explain"]
# Each step saves 20 × 0.4, or 8 µs, so the 400 µs are earned back after 50 steps. A training has many more steps than that. But the graph saves a tenth
# of the time here, whereas not waiting saved six tenths. So look first for a line that makes the CPU wait, such as `.item()` in a loop. The
# [appendix of lesson 13](13_reading_a_profile.ipynb) shows what a graph demands, and what it saves for a whole network.
#
# ## Can a tile do without unused words?
#
# The unused word shifts each row by one bank. A row can also be rearranged in place. If row y stores its element x at the position x XOR y, each row
# still has its 32 elements in 32 different banks. A column consists of the positions x XOR 0, x XOR 1 and so on, and these are again all 32, because
# two different numbers XOR the same x remain different. This is called a *swizzle*.


# %%
def swizzled(thread, input, output):
    x, y = thread.thread_x, thread.thread_y
    tile = thread.shared("tile", 32, 32)
    tile[y, x ^ y] = input[thread.y, thread.x]
    yield
    row, column = 32 * thread.block_x + y, 32 * thread.block_y + x
    output[row, column] = tile[x, y ^ x]


matrix = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
turned = np.zeros_like(matrix)
run = launch(swizzled, matrix, turned, grid=1, block=(32, 32))

# %% tags=["hide-input"]
assert (turned == matrix.T).all()
for access in ("store", "load"):
    count = run.count("tile", access)
    print(f"{access}: {count.passes} passes for {count.requests} requests")
print(f"shared memory: {run.shared_bytes:,} bytes per block")

# %% [markdown]
# Each request takes a single pass, both along the rows and along the columns, and the tile takes 4,096 bytes instead of 4,224. The price is an XOR in each
# index. Libraries for matrix products store their tiles in this way, because their tiles fill nearly all of the shared memory, and because a row that
# begins at an odd word could not be loaded 16 bytes at a time.
