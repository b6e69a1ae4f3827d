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
#     number: "12"
#     title: How sure is an estimate, and of what is a step made?
# ---

# %% [markdown]
# # How sure is an estimate, and of what is a step made?
#
# [Lesson 00](../00_start_here.ipynb) estimated epochs from a few steps. How well is such an estimate known? Can its step be computed from
# counts and limits alone? And how do you tell a memory that is full from work that has grown?

# %%
import textwrap

import pandas as pd
import torch

import helpers
from helpers import memory, operations, results, timing, units
from helpers.studies import beyond_memory

device = "cuda" if torch.cuda.is_available() else "cpu"
allocator = helpers.steady_allocator()

# %%
hidden_sizes = (128, 1024, 2048, 4096)
estimate = beyond_memory.estimate_training_for(
    helpers.LeNet, epochs=1, hidden_sizes=hidden_sizes, device=device
)
rows = {row.hidden: row for row in estimate.sizes}

# %% [markdown]
# ## An interval
#
# A program prints what it computes, down to the last bit of the number:

# %% tags=["nbval-ignore-output"]
row = rows[128]
print(f"one epoch: {row.estimated_s!r} s")
print(f"one epoch: between {row.low_s:.2g} and {row.high_s:.2g} s")

# %% [markdown]
# The second line multiplies the fastest and the slowest step. What is it worth? If steps are independent, each is as likely to be
# above the true median as below it. The interval misses the median only where all of them fall on one side:

# %%
print(f"{estimate.timed_steps} steps, all on one side: {2 * 0.5**estimate.timed_steps:.1%}")
print(f"so the median lies in the interval with a chance of {estimate.confidence_share:.1%}")
assert all(row.low_s <= row.estimated_s <= row.high_s for row in rows.values())

# %% [markdown]
# That is the chance for the *median* step. An epoch is another quantity: the sum of all its steps, the slow ones with them. Run a
# real one:

# %% tags=["nbval-ignore-output"]
loader = helpers.make_MNIST_loader(batch_size=128)
trained = helpers.train(helpers.LeNet(1024).to(device), loader, epochs=1)
row = rows[1024]
print(
    f"by the median step {row.low_s:.2g} to {row.high_s:.2g} s, the epoch {trained.total_s:.2g} s"
)

# %%
print(
    f"steps of the estimate's epoch: {estimate.steps_per_epoch}, of the real one: {trained.steps}"
)

# %% [markdown]
# The last batch of an epoch is smaller, and the estimate counts it by its digits. An epoch outside the interval contradicts
# nothing: the interval says how well the step is known, not how fast the machine will be in an hour.
#
# ## A step from its parts
#
# At `hidden=128` most of a step is convolutions, ReLU and poolings. Run the part up to the last pooling alone, there and back:

# %%
narrow, images = helpers.LeNet(128).to(device), torch.rand(128, 1, 28, 28, device=device)
front = torch.nn.Sequential(*list(narrow.children())[:6])
calls = {
    "the network": lambda: narrow(images).sum().backward(),
    "its front": lambda: front(images).sum().backward(),
}
both = helpers.compare(calls, budget_s=0.8, precision=0.1)
share = both.candidate("its front").time_ratio if device == "cpu" else None
sentence = "on a CPU convolutions, ReLU and poolings take most of the time"
timing.claim(sentence, share, at_least=0.5, evidence=both if share else ())

# %% [markdown]
# So take that step as it was measured. To it the wider layers add their FLOP over the rate of the library's products, which may be
# less than the peak, and Adam its bytes over the bandwidth of
# main memory: it reads and writes every weight, and what is kept with it, once a step. First the counts:

# %%
adam = {"optimizer": torch.optim.Adam}
counts = {
    h: operations.profile_ops(helpers.LeNet(h), (128, 1, 28, 28), **adam) for h in hidden_sizes
}
products = {h: count.forward_flops + count.backward_flops for h, count in counts.items()}
for hidden in hidden_sizes:
    print(f"hidden={hidden}: {products[hidden] - products[128]:,} FLOP more than with 128")

# %%
moved = {
    h: count.optimizer_read_bytes + count.optimizer_written_bytes
    for h, count in counts.items()
}
for hidden in hidden_sizes:
    print(f"hidden={hidden}: Adam moves {moved[hidden]:,} bytes")

# %% tags=["nbval-ignore-output"]
limits = helpers.probe()
bytes_per_s, flops_per_s = limits.memory.bandwidth_bytes_per_s, limits.product_flops["float32"]
parts = {
    "fixed_s": dict.fromkeys(hidden_sizes, rows[128].step_s),
    "products_s": {h: (products[h] - products[128]) / flops_per_s for h in hidden_sizes},
    "adam_s": {h: moved[h] / bytes_per_s for h in hidden_sizes},
}
modelled = pd.DataFrame(parts).assign(modelled_s=lambda table: table.sum(axis=1))
modelled["measured_s"] = [rows[hidden].step_s for hidden in hidden_sizes]
results.printed(modelled.rename(index="hidden={}".format))

# %% [markdown]
# Both rates were measured apart from the step, so this is a real prediction. Where the curve turns up, the products have overtaken
# the fixed part. That alone makes a bend, without any memory being full.
#
# ## A published curve
#
# A course printed the seconds of an epoch by the width of LeNet's first linear layer, and its lecture blamed the memory of the
# computer, because the widest layer took so long ([Cambridge, "Hardware Ecosystem",
# 2022](https://github.com/mlatcl/deepnn/blob/38fad41/_lamd/hardware-notes.md)). Before you believe that a memory is full, divide the
# time by the work. The second linear layer has half as many outputs as the first, so its weights grow with the square of the
# width. We subtract the narrowest network, whose time is mostly that of the convolutions, and divide the rest by the weights that
# were added.

# %%
course_s = {128: 2.42, 256: 2.31, 512: 2.38, 1024: 2.56, 2048: 3.10, 4096: 7.20, 6144: 13.21}


def weight_count(hidden):
    with torch.device("meta"):  # shapes without memory
        return sum(weight.numel() for weight in helpers.LeNet(hidden).parameters())


for hidden in (2048, 4096, 6144):
    added = weight_count(hidden) - weight_count(128)
    each_s = (course_s[hidden] - course_s[128]) / added
    kept = units.text(16 * weight_count(hidden), "B")
    print(f"hidden={hidden}: {1e9 * each_s:.0f} ns for each further weight, {kept} kept")

# %% [markdown]
# From 2,048 to 4,096 a further weight becomes dearer, and from 4,096 to 6,144 it does not, although the memory that training keeps
# more than doubles there. With Adam a weight keeps 16 bytes, so even the widest network keeps less than half a gigabyte, and no
# computer of 2022 is full then. Between 2,048 and 4,096 it grows from 42 to 151 MB, past the last cache of many processors, which
# may be the cause. Nobody has tested that on the course's machine, which its notes do not name.
#
# ## Out of memory, in a process of its own
#
# Do not fill the memory of the notebook's own process, because Linux then ends a process, and it may be yours. `run_limited` runs
# a function in a new process with a limit and tells what became of it. This function may hold 256 MiB, and it asks for tensors of
# 64 MiB until it gets no more.

# %%
MIB = 2**20


def hoard():
    kept = []
    while True:
        kept.append(torch.ones(16 * MIB))
        print(len(kept), "tensors", flush=True)


refused = helpers.run_limited(hoard, memory_bytes=256 * MIB)

# %% tags=["nbval-ignore-output"]
print(refused.output.splitlines()[-1])
print(textwrap.fill(refused.message, 84))

# %% [markdown]
# As a rule the function gets three. Four would fill the limit to the last byte, and the notes of the allocator and Python's objects
# need room too. The message says what was refused, and not who holds the rest, so the tensor that is refused is seldom the one to
# blame. On a GPU PyTorch raises `torch.cuda.OutOfMemoryError` in the same situation.
#
# It is better to ask before you allocate. `fits` estimates the peak without a run, as in lesson 11, and `max_batch_size` finds the
# largest batch that fits. It doubles the batch until it fails and then halves the gap.

# %%
network = helpers.BasicFCModel(hidden=1024)
found = memory.max_batch_size(network, (1, 784), 64 * MIB, training=False)
print(f"64 MiB of tensors have room for {found.batch_size:,} images")

# %%
for batch in (found.batch_size, found.batch_size + 1):
    verdict = helpers.fits(network, (batch, 784), 64 * MIB, training=False)
    print(f"a batch of {batch:,} {'fits' if verdict.fits else 'does not fit'}")

# %% [markdown]
# ## A batch that is worth its bytes
#
# The largest batch that fits is rarely the one to take. A step costs something however small its batch is, and something for each
# image, so a batch of $n$ takes about $t(n) = t_0 + n\,t_1$. Two measured batches give both numbers.


# %% tags=["nbval-ignore-output"]
def step_of(batch):
    lenet, images = helpers.LeNet().to(device), torch.rand(batch, 1, 28, 28, device=device)
    optimizer = torch.optim.Adam(lenet.parameters())

    def step():
        optimizer.zero_grad()
        lenet(images).sum().backward()
        optimizer.step()

    return step


batch_s = {n: helpers.measure(step_of(n), budget_s=0.3).median_s for n in (1, 256)}
image_s = (batch_s[256] - batch_s[1]) / 255
fixed_s = batch_s[1] - image_s
print(f"t0 = {units.text(fixed_s, 's')}, t1 = {units.text(image_s, 's')}")
for n in (1, 16, 64, 256, 1024):
    print(f"batch {n:>5,}: {n / (fixed_s + n * image_s):,.0f} images a second (modelled)")

# %%
pair = helpers.compare({"64": step_of(64), "1": step_of(1)}, budget_s=0.5, precision=0.1)
more = 64 * pair.candidate("1").time_ratio
sentence = "a batch of 64 gives more images a second than a batch of 1"
timing.claim(sentence, more, at_least=2, evidence=pair)

# %% [markdown]
# Half of the highest rate comes at $n = t_0/t_1$, and past ten times that a larger batch adds a tenth at most. The memory goes on
# growing with every image.
