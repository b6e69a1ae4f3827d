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
#     number: "08"
#     title: Layouts
# ---

# %% [markdown]
# # Layouts
#
# One addition. The lesson's model of a step counts bytes and lets nothing overlap, and its 26 layouts have never run. Here a small network trains in several
# layouts on four real processes, so that a finer model can be held to their clock.

# %%
from collections import OrderedDict

import pandas as pd
import torch
from torch import nn

from helpers import plotting
from helpers.links import Link
from helpers.ranks import Ranks
from helpers.studies import data_parallel, parallel_plans

ranks = Ranks(4, device="cpu")

# %% [markdown]
# ## A small network in five layouts
#
# A mesh can have three dimensions. Here 2 stages, 2 data ranks and 2 tensor ranks are eight processes, and one colour is one tensor group.

# %%
mesh = parallel_plans.Layout(data=2, tensor=2, pipeline=2)
figure = parallel_plans.draw_mesh(mesh, along="tensor", title="Three cuts multiply")
plotting.show(
    figure, alt="Two stages of four ranks; rows are data ranks, and a row has one colour."
)

# %% [markdown]
# Which layout of four devices is fastest, if a message also has a latency and if sending can hide behind computing? The network has four blocks of two layers.
# One device alone would take 1.2 s for a batch of 32 rows. The devices sleep instead of computing, and their link has 2 MB/s and 5 ms. Everything is
# slow on purpose, so that the messages of this machine itself do not decide the order.


# %%
def block():
    up, down = nn.Linear(64, 256), nn.Linear(256, 64)
    return nn.Sequential(OrderedDict(up=up, act=nn.ReLU(), down=down))


torch.manual_seed(4)
net = nn.Sequential(*(block() for _ in range(4)))
plan, link = parallel_plans.tensor_plan(net), Link(2e6, 5e-3)
at_one = parallel_plans.layer_work(net, (32, 64), flops_per_s=1.0)
flops_per_s = sum(layer.forward_s + layer.backward_s for layer in at_one) / 1.2

# %% [markdown]
# `parallel_plans.choose` goes through all layouts of one to four devices. It models the step of each, with latency and with what is sent while a device
# computes, leaves out what does not fit into a device's memory, and sorts the rest. A bucket of gradients is sent as soon as a layer has them. With 2 MiB of
# memory every layout fits, because one device alone, without Adam, needs 1.2 MB. So time decides.

# %%
step = {"inputs": (32, 64), "flops_per_s": flops_per_s}
options = {"bucket_bytes": 1}  # a bucket is full with the first layer in it
choice = parallel_plans.choose(net, 4, link, "2 MiB", **step, **options)
cuts = [(4, 1, 1), (1, 4, 1), (1, 1, 4), (2, 1, 2), (2, 2, 1)]
wanted = [parallel_plans.Layout(*sizes) for sizes in cuts]
rows = [row for row in choice.rows if row.layout in wanted]

# %% [markdown]
# Four real processes train in five of the layouts, one step each. The messages are real, and the bytes that rank 0 sent are counted.

# %%
values = torch.randn(32, 64)
work = parallel_plans.layer_work(net, (32, 64), flops_per_s=flops_per_s, plan=plan)
runs = parallel_plans.execute_strategies(
    ranks,
    net,
    [(row.layout, row.microbatches) for row in rows],
    layers=work,
    link=link,
    plan=plan,
    **options,
    inputs=values,
    targets=values,
    loss=nn.functional.mse_loss,
)
for row, run in zip(rows, runs, strict=True):
    sent = run.data_bytes + run.tensor_bytes + run.pipeline_bytes
    counts = {"microbatches": row.microbatches, **options}
    modelled = parallel_plans.strategy_traffic(work, row.layout, **counts)
    assert modelled.sent_bytes == sent
    print(f"{row.strategy}: rank 0 sent {sent:,} bytes")

# %% [markdown]
# These are the bytes of the model to the last one. Tensor ranks send seven all-reduces and not eight, because the input of the first block is the batch, which
# needs no gradient. The first of four stages only sends forward.
#
# And the time? The first column is the model with latency and overlap. The second adds what the fastest message costs this machine by itself (measured),
# and the third is the clock of the four processes (simulated, because the devices and the link sleep).

# %% tags=["nbval-ignore-output"]
real = data_parallel.measure_message_overhead(ranks).added_to(link)
table = {}
for row, run in zip(rows, runs, strict=True):
    counts = {"link": real, "microbatches": row.microbatches, **options}
    with_messages_s = parallel_plans.strategy_step(work, row.layout, **counts).step_s
    times_s = (row.step_s, with_messages_s, run.step_s)
    table[row.strategy] = [f"{1000 * time_s:.0f} ms" for time_s in times_s]
pd.DataFrame(table, index=["modelled", "with messages", "simulated"]).T

# %% [markdown]
# The rows have the order of the model. If the processes disagree with it, the two layouts differ by less than the model is exact, because a step waits for its
# slowest message. A model of bytes alone would take four tensor ranks. But seven all-reduces of six messages with 5 ms each are 210 ms of latency, and a
# message's 2,048 bytes take only 1 ms. In the lesson's model messages have megabytes, so that on a port latency hardly matters, while on NVLink it would add
# to what tensor ranks send.

# %%
ranks.close()
