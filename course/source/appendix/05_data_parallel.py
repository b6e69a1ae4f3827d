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
#     number: "05"
#     title: Ranks that fail, and buckets of other sizes
# ---

# %% [markdown]
# # Ranks that fail, and buckets of other sizes
#
# Four additions, each of which stands alone. They are a rank that forgets a call, the best size of a bucket, two ways of adding GPUs, and a script whose
# training goes on after a rank was killed.

# %% tags=["hide-input"]
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import helpers
from helpers import parallel, plotting, units
from helpers.links import Link
from helpers.ranks import RankError, Ranks, torchrun
from helpers.studies.data_parallel import ddp_step

# %% [markdown]
# ## A rank that forgets a call
#
# An all-reduce is a [collective](../glossary.md#collective), so every rank must make the same
# calls, in the same order, with tensors of the same shape. In this cell [rank](../glossary.md#rank) 2 of four leaves one out.


# %%
def rank_2_forgets(rank, world_size):
    if rank != 2:
        dist.all_reduce(torch.zeros(1))


with Ranks(4, device="cpu") as ranks:
    try:
        ranks.run(rank_2_forgets, timeout_s=3)
    except RankError as error:
        print("ended", "at the limit of 3 seconds" if error.timed_out else "before the limit")
        print({f"rank {state.rank}": state.status for state in error.states})

# %% [markdown]
# Three ranks wait inside the all-reduce, although their code is right, because rank 2 never made the call. From outside it looks like a slow network. So
# give a limit wherever a rank might wait forever. Here it is `timeout_s`, and in your own training it is the argument `timeout` of `init_process_group`.
#
# ## The best size of a bucket
#
# In the lesson a step had four [buckets](../glossary.md#bucket), and only the last one stuck out. Smaller buckets shorten this last wait, but every
# further bucket costs $2(R - 1)$ more latencies, where $R$ is the number of ranks. Turn both numbers and look for the size with the shortest step.


# %% tags=["hide-input"]
def draw_buckets(bucket_kb, latency_ms):
    layers = [parallel.LayerCost(10e-3, 40e-3, 100_000)] * 4
    link = Link(10e6, latency_ms / 1000)
    step = ddp_step(layers, world_size=4, link=link, bucket_bytes=bucket_kb * 1000)
    took = units.text(step.step_s, "s")
    title = f"Buckets of {bucket_kb} kB and {latency_ms} ms of latency: {took} (modelled)"
    return plotting.gantt(step.activities(), title=title, until=0.65)


helpers.interactive_figure(
    draw_buckets,
    {"bucket_kb": [100, 200, 400], "latency_ms": [0, 2, 5, 10, 20]},
    views=[{"bucket_kb": size_kb, "latency_ms": 10} for size_kb in (100, 200, 400)],
    alt=lambda bucket_kb, latency_ms: (
        f"A modelled step with buckets of {bucket_kb} kB and {latency_ms} ms of latency."
    ),
)

# %% [markdown]
# With 2 ms of latency four buckets are best, with 10 ms two, and with 20 ms a single one. On a GPU a further cost comes on top, because an all-reduce takes
# [multiprocessors](../glossary.md#multiprocessor) and memory [bandwidth](../glossary.md#bandwidth) from the backward pass, so hidden traffic is not free.
#
# ## Two ways of adding GPUs
#
# If the batch grows with the ranks, each rank keeps its tokens, and its step takes nearly as long as before. This is
# [weak scaling](../glossary.md#weak-scaling). If the batch stays, each rank gets fewer tokens, so that its computing shrinks and its traffic does not. This is
# [strong scaling](../glossary.md#strong-scaling), and it ends where the tokens per GPU fall below the number that hides the traffic. A published factor for
# "64 GPUs" says little unless you know which of the two was meant.
#
# ## A training that survives a killed rank
#
# Your `train_rank` becomes a script with few changes. This is all that DDP wants of it, and
# [train_data_parallel.py](../scripts/train_data_parallel.py) is the same with a checkpoint.
#
# ```python
# dist.init_process_group()
# torch.manual_seed(0)
# model = DistributedDataParallel(make_model())
# optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# sampler = DistributedSampler(dataset)  # each rank its own rows, some twice so that shards are equal
# for epoch in range(epochs):
#     sampler.set_epoch(epoch)
#     for x, y in DataLoader(dataset, batch_size=32, sampler=sampler):
#         optimizer.zero_grad()
#         loss_function(model(x), y).backward()
#         optimizer.step()
# dist.destroy_process_group()
# ```
#
# You start `torchrun` on every machine, with the name of one of them as `HOST`. There it is called the agent, which numbers the ranks, starts them and watches
# them. With GPUs a rank also calls `torch.cuda.set_device(LOCAL_RANK)` and moves the model and each batch there.
#
# ```
# torchrun --nnodes=2 --nproc-per-node=1 --max-restarts=3 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \
#     train_data_parallel.py --checkpoint run.pt
# ```
#
# When a rank dies, its neighbours are in a collective that cannot succeed. The agent sees it, ends all ranks and, if restarts are allowed, starts them
# again. Each reads the last checkpoint, which holds the step, the weights and the momentum of the optimizer. We let rank 1 be killed right after step 6 of 12,
# with a checkpoint after every fourth step.

# %%
script = Path("../scripts/train_data_parallel.py")
with tempfile.TemporaryDirectory() as folder:
    undisturbed = torchrun(
        script, nproc_per_node=2, args=["--checkpoint", f"{folder}/a.pt"], timeout_s=110
    )
    killed = torchrun(
        script,
        nproc_per_node=2,
        max_restarts=1,
        args=["--checkpoint", f"{folder}/b.pt", "--kill-after", "6"],
        timeout_s=110,
    )

# %% tags=["hide-input"]
hashes = set()
for name, run in {"undisturbed": undisturbed, "killed": killed}.items():
    steps, _, parameters = run.ranks[0].output.splitlines()[0].rpartition(", parameters ")
    hashes.add(parameters)
    print(f"{name:11}  {steps}")
print("different sets of parameters at the end:", len(hashes))

# %% [markdown]
# Steps 5 and 6 were done twice, and both runs end with the same parameters, bit for bit, because we count the hashes of all parameters. This needs a
# checkpoint that holds everything on which the next step depends.
#
# How often should a training write one? A checkpoint costs the time $C$, and a failure costs on average half an interval. If one failure comes every $M$
# seconds on average, an interval of $\sqrt{2CM}$ loses the least time
# ([Young](https://doi.org/10.1145/361147.361115), 1974). For the failures that Meta counted, and a checkpoint that stops the training for half a minute, it
# is this:

# %% tags=["hide-input"]
between_failures_min = 54 * 24 * 60 / 419
interval_min = (2 * 0.5 * between_failures_min) ** 0.5
print(
    f"a failure every {between_failures_min:.0f} minutes, a checkpoint every {interval_min:.0f}"
)
