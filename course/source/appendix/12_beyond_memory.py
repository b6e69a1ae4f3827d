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
# The lesson estimated epochs from a few steps. How well is such an estimate known? And can its step be
# computed from counts and limits alone?

# %%
import pandas as pd
import torch

import helpers
from helpers import operations, results, timing

device = "cuda" if torch.cuda.is_available() else "cpu"
allocator = helpers.steady_allocator()

# %%
hidden_sizes = (128, 1024, 2048, 4096)
estimate = helpers.estimate_training_for(
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
