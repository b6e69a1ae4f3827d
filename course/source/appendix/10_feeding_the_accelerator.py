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
#     number: "10"
#     title: "Feeding the accelerator: one cause at a time, and saving"
# ---

# %% [markdown]
# # Feeding the accelerator: one cause at a time, and saving
#
# What [lesson 10](../10_feeding_the_accelerator.ipynb) leaves open:
#
# - What does each argument of a `DataLoader` set?
# - Why is a copy to a GPU not hidden, although its memory is pinned and the call returns at once?
# - A slow run had one worker and small batches. Which of the two made it slow?
# - One disk for all workers: how many help?
# - A stream of items, read by several workers: who reads what?
# - A CPU, a GPU, two GPUs: which rows of a table may be compared?
# - How is a training saved while it goes on, and how often?
#
# As in the lesson, a device that only sleeps stands for an accelerator, and what comes out is called *simulated*.

# %%
import dataclasses
import itertools
import math
import tempfile
import warnings

import pandas as pd
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import helpers
from helpers import plotting, results, units
from helpers.links import Link
from helpers.studies import input_pipeline

warnings.filterwarnings("ignore", message="This DataLoader will create")  # more than cores

# %% [markdown]
# ## All arguments that you set
#
# | argument | if you say nothing | what it is |
# |:--|:--|:--|
# | `num_workers` | 0, the training makes them | processes that make batches |
# | `prefetch_factor` | 2 | orders under way for each worker |
# | `in_order` | True | whether batches come in order |
# | `persistent_workers` | False | whether workers live on in the next epoch |
# | `pin_memory` | False | whether each batch is copied to memory that a GPU can read by itself |
# | `worker_init_fn` | nothing | what each worker calls first, for example to seed a generator |
# | `generator` | torch's | draws the order, and the seed of the workers |
# | `multiprocessing_context` | the system's | `"fork"` copies your process, `"spawn"` and `"forkserver"` start a new Python |
#
# Without `persistent_workers` each epoch starts new workers. The items here are in memory, and the epochs are those after the first.

# %% tags=["nbval-ignore-output"]
nothing, how = input_pipeline.FreeItems(8), {"batch_size": 4, "num_workers": 2}
for persistent in (True, False):
    loader = DataLoader(nothing, persistent_workers=persistent, **how)
    epochs = input_pipeline.feed(
        loader, input_pipeline.SleepingAccelerator(0), epochs=4, warm_up=0
    ).epochs
    input_pipeline.end_workers(loader)
    first_s = min(epoch.first_batch_s for epoch in epochs[1:])
    print(
        f"persistent_workers={persistent}: {units.text(first_s, 's')} to the first batch",
        "(measured)",
    )

# %% [markdown]
# ## Copies beside the steps
#
# The lesson says that copy and step can overlap if the batch is in [page-locked memory](../glossary.md#page-locked-memory). That alone is not enough, because
# a GPU does what you queue in a *stream*, one thing after the other. Two streams may run at the same time. An *event* is a mark in a stream, and another
# stream can wait for it while your program goes on. `PlayedCuda` has these by `torch.cuda`'s names, on a clock that is played, so nothing sleeps and the
# times are made up and exact. A copy takes 30 ms, or 15 ms from pinned memory, and a step 20 ms. Each step ends with `loss.item()`, so your program waits
# for it.


# %%
def play(copies, pinned):
    cuda = input_pipeline.PlayedCuda(copy_s=0.015, pageable_s=0.030, step_s=0.020)
    for there in copies(cuda.batches(6, pinned=pinned), cuda):
        cuda.step(there)
        cuda.synchronize()  # loss.item()
    return cuda


def copied(batches, cuda):
    for batch in batches:
        yield batch.to("cuda", non_blocking=True)


def copied_ahead(batches, cuda):
    copies, before = cuda.Stream(), None
    for batch in itertools.chain(batches, [None]):
        if batch is not None:
            with cuda.stream(copies):
                coming = batch.to("cuda", non_blocking=True), copies.record_event()
        if before is not None:
            there, is_there = before
            cuda.current_stream().wait_event(is_there)
            there.record_stream(cuda.current_stream())
            yield there
        before = coming


# %%
played = {
    "pageable, one stream": play(copied, pinned=False),
    "pinned, one stream": play(copied, pinned=True),
    "pinned, two streams, one batch ahead": play(copied_ahead, pinned=True),
}
for name, cuda in played.items():
    print(f"{name}: {1000 * cuda.from_step_to_step_s:.0f} ms from step to step (simulated)")

# %%
names = {"default stream": "two: for steps", "stream 1": "two: for copies"}
_, one, two = played.values()
spans = [dataclasses.replace(each, lane="one stream") for each in one.activities]
spans += [dataclasses.replace(each, lane=names[each.lane]) for each in two.activities]
drawn = plotting.gantt(spans, title="One stream, and two with copies ahead (played)")
plotting.show(drawn, alt="In one stream copy and step take turns; in two they run together.")

# %% [markdown]
# In one stream it is the sum of 15 and 20 ms, because `non_blocking` only lets your program go on, which then waits for the step and queues the next copy
# after it. Two things are missing, a stream for the copies, and a copy that is queued before the step beside which it runs. With both, the larger of the two
# times remains. `wait_event` keeps the step from a batch that is not there yet. `record_stream` says that the step still reads the batch, because memory
# belongs to the stream on which it was made, and a later copy could overwrite what you have dropped.

# %% [markdown]
# ## A slow run with two causes
#
# A course showed a GPU that starves by one slow run: one worker, batches of 64. It took 8.92 s; another run, with one GPU and batches of 512,
# took 4.37 s ([Cambridge, "Hardware Ecosystem", 2022](https://github.com/mlatcl/deepnn/blob/38fad41/_lamd/hardware-notes.md)). Here is such a
# pair: the fast run has 4 workers and batches of 16, the slow one a single worker and batches of 4. An item takes 2 ms, and a step
# 20 ms and half a millisecond for each example in it.

# %%
near_items = input_pipeline.WaitingItems(400, wait_s=0.002)
fast = input_pipeline.LoaderSettings(batch_size=16, workers=4)
slow = input_pipeline.LoaderSettings(batch_size=4, workers=1)


def step_of(settings):
    return input_pipeline.SleepingAccelerator(step_s=0.020 + 0.0005 * settings.batch_size)


def fed(settings):
    with input_pipeline.workers_end(
        input_pipeline.make_loader(near_items, settings)
    ) as loader:
        found = input_pipeline.feed(loader, step_of(settings), steps=20).last
    return settings.batch_size / found.step_s, found.busy_share


print("changed:", ", ".join(input_pipeline.changed(fast, slow)))
try:
    input_pipeline.vary(fast, workers=(1, 4), batch_size=(4, 16))
except ValueError as error:
    print(str(error).partition(";")[0])

# %% [markdown]
# Two things changed, so two runs are missing: each factor alone, the other one fixed.

# %% tags=["nbval-ignore-output"]
four = {
    "fast": fast,
    "fewer workers": input_pipeline.vary(fast, workers=(1,))[0],
    "smaller batches": input_pipeline.vary(fast, batch_size=(4,))[0],
    "both, the slow run": slow,
}
found = {name: fed(each) for name, each in four.items()}
for name, (per_s, busy_share) in found.items():
    slower = found["fast"][0] / per_s
    print(f"{name}: {slower:.2f} times as long for an example, busy {100 * busy_share:.0f} %")

# %%
rows = {}
for name, each in four.items():
    made_s = each.batch_size * near_items.wait_s
    model = input_pipeline.model_feeding(made_s, step_of(each).step_s, workers=each.workers)
    rows[name] = {
        "modelled ms a step": 1000 * model.step_s,
        "ms an example": 1000 * model.step_s / each.batch_size,
        "busy %": round(100 * model.busy_share, 1),
        "decided by": model.bound,
    }
pd.DataFrame(rows).T

# %% [markdown]
# Read the last row: in the slow run the device is always busy (by the model; in the run a little less, because a batch also has to
# cross from the worker). Nothing starved. It was slow because a step has a price whatever is in it, and with batches of 4 an
# example bears four times as much of it. One worker does starve the device at batches of 16. So change one thing at a time, and look at
# the busy share, not at the time alone. What the published run waited for, its two times cannot say.

# %% [markdown]
# ## One disk for all
#
# Workers that wait for one disk stand in a queue. The files here lie behind a made-up disk that takes 8 ms for each.

# %%
folder = tempfile.TemporaryDirectory()
files = input_pipeline.write_images(folder.name, images=10, side=384)
mean_bytes = sum(path.stat().st_size for path in files) / len(files)
disk = Link(bandwidth_bytes_per_s=mean_bytes / 0.008)
items = input_pipeline.FilesOnOneDisk(files * 8, disk)
device = input_pipeline.SleepingAccelerator(0.020)
settings = input_pipeline.LoaderSettings(batch_size=4)

# %% tags=["nbval-ignore-output"]
sweep = input_pipeline.sweep_feeding(
    items, input_pipeline.vary(settings, workers=(0, 1, 2)), device, steps=13
)
for workers, row in enumerate(sweep.rows):
    model = input_pipeline.model_feeding(4 * 0.008, 0.020, workers=workers, cores=1)
    shares = (
        f"busy {100 * model.busy_share:.0f} % modelled, {100 * row.busy_share:.0f} % simulated"
    )
    print(f"{workers} worker(s): {shares}")
folder.cleanup()

# %% [markdown]
# The first worker overlaps the disk with the device. A second one adds nothing by the model, because the disk does one thing at a
# time.

# %% [markdown]
# ## A stream of items
#
# Some data come as a stream: a shard, a log, a socket. An `IterableDataset` has an `__iter__` and no places. Each worker gets a copy of it,
# and each copy starts from the beginning:


# %%
class Numbers(IterableDataset):
    def __init__(self, divided):
        self.divided = divided

    def __iter__(self):
        info = get_worker_info()
        first, stride = (info.id, info.num_workers) if info and self.divided else (0, 1)
        yield from range(first, 8, stride)


for divided in (False, True):
    loader = DataLoader(
        Numbers(divided), batch_size=2, num_workers=2, multiprocessing_context="fork"
    )
    given = [number for batch in loader for number in batch.tolist()]
    print(f"divided={divided}: {len(given)} items, {sorted(given)}")

# %% [markdown]
# Undivided, each item is trained on once for each worker, and no error is raised. `get_worker_info()` says which worker this is, and of how many.
# Under data parallel there are ranks as well: then worker $w$ of $W$ on rank $r$ of $R$ takes what is $rW + w$ modulo $RW$.

# %% [markdown]
# ## A CPU, a GPU, two GPUs
#
# The same course timed its training three times. The table shows what changed from row to row (lesson 05 counts the updates).

# %%
columns = ["device", "devices", "batch_size", "updates", "elapsed_s", "changed", "fair"]
lecture = input_pipeline.compare_setups(input_pipeline.LECTURE_SETUPS)
results.printed(lecture.table()[columns])

# %% [markdown]
# No later row can fairly be compared with the one before it: device and batch size changed together, then number and batch size. And
# loading is in the clock of all three. We repair it with devices that have made-up prices. A CPU takes 1 ms for an example; a GPU
# takes 40 us, and 10 ms for each step whatever its size. Loading takes 0.2 ms an example on either.

# %%
gradient_bytes = sum(weight.nbytes for weight in helpers.LeNet().parameters())
cable = {
    "gradient_bytes": gradient_bytes,
    "link_bandwidth_bytes_per_s": 50e6,
    "link_latency_s": 1e-4,
}
costs = {
    "CPU": input_pipeline.SetupCosts(step_s=0, example_s=1e-3, load_example_s=0.2e-3),
    "GPU": input_pipeline.SetupCosts(
        step_s=0.010, example_s=40e-6, load_example_s=0.2e-3, **cable
    ),
}
base = input_pipeline.Setup("CPU", devices=1, batch_size=128, examples=512, epochs=1)

# %%
on_cpu, on_gpu = input_pipeline.vary(base, device=("CPU", "GPU"))
outside = [
    input_pipeline.vary(each, loading_in_clock=(False,))[0] for each in (on_cpu, on_gpu)
]
two = input_pipeline.vary(outside[1], devices=(2,))[0]
large = [input_pipeline.vary(each, batch_size=(512,))[0] for each in (outside[1], two)]
chains = {
    "GPU, loading in the clock": [on_cpu, on_gpu],
    "GPU, loading outside": outside,
    "two GPUs, same batch": [outside[1], two],
    "two GPUs, larger batch": large,
}
rows = {}
for name, (first, second) in chains.items():
    first_s, second_s = (
        input_pipeline.model_setup(each, costs[each.device]) for each in (first, second)
    )
    changed = ", ".join(input_pipeline.changed(first, second))
    gain = f"{first_s / second_s:.2f}"
    rows[name] = {"changed": changed, "updates": second.updates, "times as fast": gain}
pd.DataFrame(rows).T

# %% [markdown]
# These are modelled. Now each setup runs as it would: the batches in a loop, two devices as two processes that average their gradients over a
# link. Only the arithmetic sleeps.

# %% tags=["nbval-ignore-output"]
setups = dict.fromkeys(each for pair in chains.values() for each in pair)
with helpers.Ranks(2, device="cpu") as ranks:
    run_s = {
        each: min(
            input_pipeline.run_sleeping_setup(each, costs[each.device], ranks=ranks)
            for _ in range(3 if each.device == "GPU" else 1)
        )
        for each in setups
    }
for name, (first, second) in chains.items():
    print(f"{name}: {run_s[first] / run_s[second]:.2f} times as fast (simulated)")

# %% [markdown]
# Each row changes one thing. With the loader in the clock the GPU looks less than four times as fast, because the loader's
# time is the same on both sides ([Amdahl's law](../glossary.md#amdahls-law)). By the model two GPUs at the same batch of 128 are *slower* than
# one: most of a step is the price of the step itself, which is not divided, and the [all-reduce](../glossary.md#all-reduce) comes on top. At
# 512 they are faster, but that is another training: a quarter of the updates.
#
# The same question to your own device, measured: the slower it computes, the smaller the share of loading.

# %% tags=["nbval-ignore-output"]
images, labels = next(iter(helpers.make_MNIST_loader(batch_size=1024)))
own = input_pipeline.Setup(
    "GPU" if torch.cuda.is_available() else "CPU", batch_size=128, examples=1024, epochs=1
)
for clock in input_pipeline.vary(own, loading_in_clock=(False, True)):
    best_s = min(
        input_pipeline.run_setup(clock, helpers.LeNet, images, labels) for _ in range(2)
    )
    loading = "with" if clock.loading_in_clock else "without"
    print(f"LeNet, 1,024 digits, {loading} loading: {units.text(best_s, 's')} (measured)")

# %% [markdown]
# ## Copies ahead, of any loader
#
# `copied_ahead` above takes tensors. `input_pipeline.copy_ahead` takes whatever a loader gives, and a thread of its own asks the loader, so
# that a slow batch does not hold up the copy before it. On a CPU batches pass as they are.

# %% tags=["nbval-ignore-output"]
there = "cuda" if torch.cuda.is_available() else "cpu"
pinned = input_pipeline.LoaderSettings(batch_size=16, workers=1, pin_memory=there == "cuda")
with input_pipeline.workers_end(
    input_pipeline.make_loader(input_pipeline.FreeItems(64), pinned)
) as loader:
    shapes = {tuple(images.shape) for images, _ in input_pipeline.copy_ahead(loader, there)}
print(f"batches of {shapes} on {there}")

# %% [markdown]
# ## Saving is feeding backwards
#
# A checkpoint holds all that the next step depends on: with Adam the weights and two running averages for each of them (its
# [optimizer state](../glossary.md#optimizer-state)).


# %%
def make_model():
    return helpers.BasicFCModel(784, 512, 10, 2)


model = make_model()
optimizer = torch.optim.Adam(model.parameters())
model(torch.zeros(1, 1, 28, 28)).sum().backward()
optimizer.step()
state = input_pipeline.training_state(model, optimizer, step=1)
weight_bytes = sum(weight.nbytes for weight in model.parameters())
state_bytes = input_pipeline.state_bytes(state)
print(f"weights: {weight_bytes:,} bytes, state: {state_bytes:,} bytes")
print(f"{state_bytes / weight_bytes:.3f} times")

# %%
cost = input_pipeline.measure_save(state)
parts = {
    "snapshot": cost.snapshot_s,
    "serialise": cost.serialise_s,
    "write": cost.write_s,
    "wait for the disk": cost.sync_s,
}
drawn = plotting.draw_bars(parts, unit="s", title="What a save costs on this machine")
plotting.show(
    drawn, alt="Bars: snapshot in memory, torch.save, writing, waiting for the disk."
)

# %% [markdown]
# Only the first part needs the training to stand still. A [snapshot](../glossary.md#snapshot) is a copy in memory; once there is one, a thread
# can write it while the training goes on. Now a disk that takes 100 ms for this state. A step takes 20 ms, and every tenth is followed by a
# save.

# %% tags=["nbval-ignore-output"]
disk = Link(cost.state_bytes / 0.100)
ways = ("synchronous", "asynchronous")
stalls = input_pipeline.measure_stalls(
    make_model, ways=ways, saves=3, every=10, step_s=0.020, disk=disk, device="cpu"
)
times = {
    "save_s": 0.100 + cost.serialise_s + cost.write_s,
    "snapshot_s": cost.snapshot_s,
    "interval_s": stalls.interval_s,
}
for way in ways:
    modelled_s = input_pipeline.modelled_stall_s(way, **times)
    print(
        f"{way}: stalls {units.text(modelled_s, 's')} (modelled),",
        f"{units.text(stalls.row(way).stall_s, 's')} (simulated)",
    )

# %% [markdown]
# By the model the asynchronous save stalls the training for the snapshot, as long as the last save is written before the next one comes.
# Else the training waits for what is left: a disk that is too slow on average cannot be hidden, as little as a loader.
#
# ### A save without a snapshot
#
# `state_dict()` names tensors and copies none, and the optimizer changes them in place. We save the state of step 1, let the
# training take one more step while the disk is busy, and read the file.


# %%
def save_and_go_on(takes_snapshot):
    busy = Link(math.inf, latency_s=0.5)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = [model.weight.detach().clone()]
    with tempfile.TemporaryDirectory() as place:
        with input_pipeline.Checkpointer(
            place, takes_snapshot=takes_snapshot, disk=busy
        ) as checkpointer:
            for step in (1, 2):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                weights.append(model.weight.detach().clone())
                if step == 1:
                    now = input_pipeline.training_state(model, optimizer, step=step)
                    checkpointer.save(now, step)
        saved = checkpointer.load()
    held = [s for s, each in enumerate(weights) if torch.equal(each, saved["model"]["weight"])]
    return saved["step"], held[0]


for takes_snapshot in (False, True):
    says, holds = save_and_go_on(takes_snapshot)
    print(f"snapshot {takes_snapshot!s:5}: says step {says}, has the weights of step {holds}")

# %% [markdown]
# Nothing fails: the file loads, and the run goes on from step 1 with weights that have taken step 2 already. The repair is the copy, and on a
# GPU it must be finished before the next step may write.

# %% [markdown]
# ### How often?
#
# A save costs $C$, a failure comes every $M$ on average, a restart takes $R$. The best interval is about $\sqrt{2CM}$ (Young, 1974; the appendix of lesson 05).
# The exact time expected for a run, of pieces of $t$ with a save after each, is
#
# $$M e^{R/M} \big(e^{(t + C)/M} - 1\big)\, t_{work} / t$$
#
# (Daly, *A higher order estimate of the optimum checkpoint interval for restart dumps*, Future Generation Computer Systems, 2006). Beside it
# stands a simulation that knows no formula: it trains for a week, draws failures, and starts again from the last save, 60 times for
# each interval. A save takes a minute, and a failure comes once a day.

# %%
minute_s, day_s = 60.0, 24 * 3600.0
minutes = [6.75, 13.5, 27, 54, 108, 216, 432]
week_s, prices = 7 * day_s, {"save_s": minute_s, "mtbf_s": day_s}
expected, simulated = [], []
for each in minutes:
    expected.append(input_pipeline.expected_run_s(week_s, 60 * each, **prices) / week_s - 1)
    runs = [
        input_pipeline.simulate_run_s(week_s, 60 * each, **prices, seed=seed)
        for seed in range(60)
    ]
    simulated.append(sum(runs) / 60 / week_s - 1)
drawn = plotting.draw_curves(
    minutes,
    {
        "modelled": [100 * each for each in expected],
        "simulated": [100 * each for each in simulated],
    },
    unit="",
    title="Time lost to saves and failures, in % of the work",
    xlabel="training between two saves",
    ylabel="lost (%)",
    size_unit="min",
    marks={"Young": 54},
    log=False,
)
alt = (
    "Lost time by interval: it falls, is flat near Young's mark, and rises; the points agree."
)
plotting.show(drawn, alt=alt)

# %%
found_s = {
    "Young 1974": input_pipeline.young_interval_s(minute_s, day_s),
    "Daly 2006": input_pipeline.daly_interval_s(minute_s, day_s),
    "exact": input_pipeline.optimal_interval_s(minute_s, day_s),
}
for name, each_s in found_s.items():
    print(f"{name}: {each_s / 60:.1f} minutes")
for stall_s in (minute_s, minute_s / 100):
    best_s = input_pipeline.optimal_interval_s(stall_s, day_s)
    lost = (
        input_pipeline.expected_run_s(week_s, best_s, save_s=stall_s, mtbf_s=day_s) / week_s
        - 1
    )
    print(
        f"a stall of {units.text(stall_s, 's')}: save every {best_s / 60:.1f} minutes,",
        f"and lose {100 * lost:.2f} %",
    )

# %% [markdown]
# The curve is flat around its minimum, so an estimate will do. An asynchronous save changes $C$, not the formula: if only a hundredth of
# the save stalls the training, one saves ten times as often and loses about a tenth, as long as the disk keeps up.
