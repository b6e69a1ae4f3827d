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
#     number: "13"
#     title: One launch for a whole step, and graphs for many shapes
# ---

# %% [markdown]
# # One launch for a whole step, and graphs for many shapes
#
# The lesson ends with a compiler that merges operators. Here are two questions that it leaves open. How can a GPU get rid of its launches, and what
# does a compiler do if every batch has another shape?

# %% tags=["hide-input"]
import logging

import pandas as pd
import torch

import helpers
from helpers.studies import traces

logging.getLogger("torch").setLevel(logging.ERROR)  # no lines of the compiler's own

# %% [markdown]
# ## What does a CUDA graph save?
#
# A training step launches the same kernels with the same shapes again and again. So the CPU can record all launches of one step and
# later replay the record with a single call, which is called a *CUDA graph*. The GPU then runs the kernels without waiting for Python. A record has a
# price, because it holds addresses and shapes. Every tensor must stay at its address, every batch must have the same shape, and Python must not ask
# for a value in between, so `.item()` cannot be recorded.
#
# A model of two numbers says what to expect. Without a graph, the CPU needs a time for all its launches, whatever the batch is, and the GPU needs a time
# for all its kernels, which grows with the batch. Since the two run at once, a step takes the longer of them. With a graph, only the kernels' time is
# left.
#
# A table for ResNet-50 in training (float32, one V100) is in pull request 706 of pytorch/benchmark. With one image, a step took 89.0 ms
# without a graph and 50.2 ms with one (published). By the model, the launches take 89.0 ms. With four images, a step with a graph took 71.5 ms.

# %% tags=["predict"]
four = helpers.predict(
    "How many milliseconds does a step with four images take on the V100 without a graph?",
    "ms",
)
four

# %% tags=["hide-input", "run"]
without_ms = {1: 89.033, 2: 92.854, 4: 93.676, 8: 105.099}
with_ms = {1: 50.233, 2: 56.130, 4: 71.465, 8: 105.381}

# %% tags=["look"]
four.reveal(
    modelled=max(without_ms[1], with_ms[4]),
    published=without_ms[4],
    source="pytorch/benchmark, pull request 706",
)

# %% tags=["hide-input", "look"]
rows = {
    images: (
        f"{without_ms[images]:.1f}",
        f"{max(without_ms[1], with_ms[images]):.1f}",
        f"{with_ms[images]:.1f}",
    )
    for images in without_ms
}
columns = [
    "without a graph, published",
    "without a graph, modelled",
    "with a graph, published",
]
pd.DataFrame(rows, index=columns).T.rename_axis("images (times in ms)")

# %% [markdown] tags=["explain"]
# The model says 89.0 ms, and 93.7 were published. Up to four images a step without a graph takes nearly the same time, because the launches decide it. With
# eight images the kernels take longer than the launches, so a graph gains nothing. The model is at most 5 % off in all four rows, and we do not know
# what the 5 % are.
#
# PyTorch's own authors report 1.70 times the speed for Mask R-CNN on 272 GPUs with one image each, where the GPUs had been idle between kernels
# ([PyTorch blog](https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/), 2021). With `torch.compile` you get such graphs by
# `mode="reduce-overhead"`.
#
# ## What does a compiler do with many shapes?
#
# In the lesson a smaller last batch made a second graph. Suppose that each of 32 batches has another size. We count the graphs with a backend that compiles
# nothing, in three settings of `dynamic`.


# %%
def count_graphs(sizes, dynamic):
    """Return how many graphs of the network are made for batches of these sizes."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(traces.Network(), backend=backend, dynamic=dynamic)
    images, _ = traces.load_tensor(0)
    for size in sizes:
        compiled(images[:size])
    return len(graphs)


for dynamic in (None, False, True):
    print(f"dynamic={dynamic}: {count_graphs(range(127, 95, -1), dynamic)} graphs")

# %% [markdown]
# By default, the first shape makes a graph for this shape alone. The second one makes PyTorch expect more of them, so it makes a graph in which the size of the
# batch is a variable, and this graph serves all others. With `dynamic=False`, each shape makes a graph of its own, but only up to PyTorch's limit of eight.
# From then on the function runs as it is written, for good, and only a warning says so. If a compiled training becomes slow after some batches,
# look for this warning.
