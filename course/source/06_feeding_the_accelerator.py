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
#     number: "06"
#     title: Feeding the accelerator
#     needs: ["00", "04"]
#     objectives:
#       - measure|measured how busy a device is, and what it waits for
#       - change|changed one factor of an input pipeline at a time, with a model before each run
#       - choose|chose how many workers a loader has, and how far ahead they work
#       - overlap|overlapped copies with computing, for which `non_blocking=True` is not enough
#       - compare|compared a CPU, a GPU and two GPUs, one question at a time
#       - save|saved a training while it goes on, at the best interval
# ---

# %% [markdown] tags=["objectives"]
# # Feeding the accelerator
#
# An accelerator that waits costs as much as one that computes. Before it can take a step somebody must read a batch, decode it,
# put it together and copy it over; and every now and then somebody must save what was learned. This lesson asks one question of
# all that: in which share of the time is the device busy?
#
# Your machine may have no accelerator, and if it has one you do not know beforehand how long its step takes. So most experiments
# here feed a device that sleeps: it takes as long as we say, on any machine, and a model must predict what comes out. The
# loader is real, PyTorch's `DataLoader` with its worker processes, and so is the clock; the device is not, so what comes out is
# called *simulated*. (On a busy machine most of it is slower than its model.) Clear the outputs before you begin (Edit, Clear
# Outputs of All Cells).

# %%
import math
import tempfile

import pandas as pd
import torch

import helpers
from helpers import feeding, plotting, results, units

device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown] tags=["slide"] minutes=2
# ## Part 1: who waits for whom?
#
# - An item waits for a store far away
# - Four items are a batch, made by the loader
# - A batch is a step of the device
#
# The [busy share](glossary.md#busy-share) of the device is the time it computes over all the time. The items here stand for
# files in a store on the network: an item sleeps for 15 ms and then is there. At first there are no
# workers, other processes that would make batches: the training process makes each batch itself.

# %% tags=["slide-output"]
far_items = feeding.WaitingItems(200, wait_s=0.015)
accelerator = feeding.SleepingAccelerator(step_s=0.020)
make_batch_s = 4 * far_items.wait_s
print(f"a batch: {units.text(make_batch_s, 's')}, a step: {units.text(accelerator.step_s, 's')}")

# %% tags=["predict"]
alone_share = helpers.predict("No workers: what share of the time is the device busy?", "%")
alone_share

# %% tags=["run"]
settings = feeding.LoaderSettings(batch_size=4, workers=0)
alone_model = feeding.model_feeding(make_batch_s, accelerator.step_s, workers=0)
alone = feeding.feed(feeding.make_loader(far_items, settings), accelerator, steps=10)

# %% tags=["look", "nbval-ignore-output"]
alone_share.reveal(modelled=100 * alone_model.busy_share, simulated=100 * alone.last.busy_share)

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.gantt(alone.timeline.activities, title="Simulated, no workers: host and device take turns")
plotting.show(
    drawn, alt="Lanes of device and host: the host waits for each batch, then the device computes for a third of that."
)

# %% tags=["explain"]
print(f"ten batches and ten steps take {units.text(10 * (make_batch_s + accelerator.step_s), 's')}, the loop took "
      f"{units.text(alone.last.elapsed_s, 's')}; what decides: {alone_model.bound}")  # fmt: skip

# %% [markdown] tags=["explain"]
# What happens in turn takes the sum of its parts: 60 + 20 ms, of which the device computes a quarter. Three quarters of what you
# pay for it are for waiting. This is [starvation](glossary.md#starvation). A loss curve over the steps does not show it, and a
# profile of the model alone does not show it either, for each step that runs is as fast as ever.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 2: what went wrong here?
#
# A lecture showed a starving GPU by one slow run: one worker, batches of 64. Its other runs had other batch sizes.
#
# (The lecture is "Hardware Ecosystem", Cambridge, 2022; it printed 8.92 s for that run, and 4.37 s for one GPU with batches of
# 512.) We make the same error. The fast run has 4 workers and batches of 16, the slow one a single worker and batches of 4. An item
# now takes 2 ms, and a step 20 ms and half a millisecond for each example in it.

# %%
near_items = feeding.WaitingItems(400, wait_s=0.002)


def step_of(settings):
    return feeding.SleepingAccelerator(step_s=0.020 + 0.0005 * settings.batch_size)


fast = feeding.LoaderSettings(batch_size=16, workers=4)
slow = feeding.LoaderSettings(batch_size=4, workers=1)

# %% tags=["predict"]
workers_part = helpers.predict(
    "At batches of 16: how many times as many examples a second do 4 workers bring as 1?", "x"
)
workers_part


# %% tags=["run", "nbval-ignore-output"]
def fed(settings):
    with feeding.workers_end(feeding.make_loader(near_items, settings)) as loader:
        found = feeding.feed(loader, step_of(settings), steps=20).last
    return settings.batch_size / found.step_s, found.busy_share


(fast_per_s, _), (slow_per_s, slow_busy_share) = fed(fast), fed(slow)
print(f"the fast run trains {fast_per_s / slow_per_s:.1f} times as many examples a second")

# %% [markdown] tags=["look"]
# "One worker starves the device": the numbers seem to say so. But what differs between the runs?

# %% tags=["look"]
print("changed:", ", ".join(feeding.changed(fast, slow)))
try:
    feeding.vary(fast, workers=(1, 4), batch_size=(4, 16))
except ValueError as error:
    print(str(error).partition(";")[0])

# %% [markdown] tags=["look"]
# Two things. So we need the two runs that are missing: each factor alone, the other one fixed.

# %% tags=["look", "nbval-ignore-output"]
missing = {
    "fewer workers": feeding.vary(fast, workers=(1,))[0],
    "smaller batches": feeding.vary(fast, batch_size=(4,))[0],
}
gains = {}
for name, each in missing.items():
    per_s, busy_share = fed(each)
    gains[name] = fast_per_s / per_s
    print(
        f"{name} alone: an example takes {gains[name]:.2f} times as long, the device is busy {100 * busy_share:.0f} %"
    )
print(f"both, the slow run: {fast_per_s / slow_per_s:.2f} times, the device is busy {100 * slow_busy_share:.0f} %")

# %% tags=["look", "nbval-ignore-output"]
modelled = {}
for batch, workers in ((16, 4), (16, 1), (4, 4), (4, 1)):
    step_s = step_of(feeding.LoaderSettings(batch_size=batch)).step_s
    modelled[batch, workers] = feeding.model_feeding(batch * near_items.wait_s, step_s, workers=workers)
workers_part.reveal(modelled=modelled[16, 1].step_s / modelled[16, 4].step_s, simulated=gains["fewer workers"])

# %% tags=["explain", "slide", "slide-output"] minutes=2
rows = {f"batch {batch}, {workers} worker(s)": {"step_s": each.step_s, "each_example_s": each.step_s / batch,
        "busy_share": each.busy_share, "decided by": each.bound} for (batch, workers), each in modelled.items()}  # fmt: skip
results.printed(pd.DataFrame(rows).T)

# %% [markdown] tags=["explain"]
# (These are the model's numbers: $W$ workers bring a batch every $t_{batch} / W$, and from step to step it takes that long or as
# long as the device computes, whichever is longer. Part 3 holds this against runs.)
#
# Read the last row: in the slow run the device is busy all the time. (In the run it was a little less, because each batch also has
# to cross from a worker to the training process, which Part 5 measures.) Nothing starved. It was slow because a step has a price
# whatever is in it (on a GPU: starting each of its operations), and with batches of 4 an example bears four times as much of it.
# More workers would have bought nothing. One worker does starve the device a little at batches of 16: the second row, one of the
# two runs that were missing. (The lecture's two timings cannot tell us what its device was waiting for.)
#
# The rule of this lesson: change one thing, and look at the busy share, not at the time alone.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 3: workers
#
# - A worker is a process that makes batches while the device computes
# - What happens at the same time takes the longest of its parts, not the sum
# - With $W$ workers: $t_{step} = \max(t_{batch} / W,\; t_{device})$
#
# Back to the items of Part 1: 60 ms a batch, 20 ms a step. With $W$ workers, each busy with a batch of its own, one is ready
# every $60 / W$ ms.

# %% tags=["predict"]
workers_needed = helpers.predict("How many workers does it take until the device never waits?", "workers")
workers_needed

# %% tags=["run", "nbval-ignore-output"]
by_workers = feeding.sweep_feeding(far_items, feeding.vary(settings, workers=(0, 1, 2, 3, 4)), accelerator, steps=17)
modelled = [feeding.model_feeding(make_batch_s, accelerator.step_s, workers=workers) for workers in range(5)]
shares = {
    "modelled": [100 * each.busy_share for each in modelled],
    "simulated": [100 * row.busy_share for row in by_workers.rows],
}
enough = next(workers for workers, share in enumerate(shares["simulated"]) if share > 0.9 * max(shares["simulated"]))
workers_needed.reveal(modelled=make_batch_s / accelerator.step_s, simulated=enough)

# %% tags=["look", "nbval-ignore-output"]
shown = ["first_batch_s", "step_s", "busy_share", "waiting_share"]
results.printed(by_workers.table().set_index("value").rename_axis("workers")[shown])

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_three(
    ["0", "1", "2", "3", "4"],
    shares,
    unit="",
    title="Batches of 60 ms, steps of 20 ms",
    xlabel="workers",
)
drawn.axes[0].set_ylabel("busy share of the device (%)")
plotting.show(
    drawn, alt="Pairs of bars for 0 to 4 workers: the busy share rises from a quarter and ends at three workers."
)

# %% tags=["look"]
for workers, each in enumerate(modelled):
    print(f"{workers} worker(s): busy {100 * each.busy_share:.0f} %, decided by {each.bound}")

# %% [markdown] tags=["explain"]
# $t_{batch} / t_{device}$ workers suffice, rounded up: three. ("Simulated" is the fewest workers that reach nine tenths of the best
# busy share; with three, workers and device take equally long.) Each keeps one batch under way, so this is
# [Little's law](glossary.md#littles-law): the number on its way is the rate at which they are taken times the time that
# each takes. The first batch is as late as ever, and later, because the workers must start (on macOS and Windows each is a new
# Python, which takes seconds).
#
# A claim about time is held to the clock. We keep the four workers from epoch to epoch (`persistent_workers`), and time whole epochs
# of five steps, without workers and with four:

# %% tags=["run", "nbval-ignore-output"]
kept = feeding.LoaderSettings(batch_size=4, workers=4, persistent_workers=True)
few_items = feeding.WaitingItems(5 * kept.batch_size, wait_s=far_items.wait_s)
alone_loader = feeding.make_loader(few_items, settings)
with feeding.workers_end(feeding.make_loader(few_items, kept)) as loader:
    loaders = {"four workers": loader, "no workers": alone_loader}
    programs = {name: lambda each=each: feeding.feed(each, accelerator, warm_up=0) for name, each in loaders.items()}
    epochs = helpers.compare(programs, budget_s=6, precision=0.1, device="cpu")
epochs

# %% tags=["look"]
sentence = "on this sleeping device an epoch takes longer without workers"
epochs.claim(sentence, "no workers", at_least=1.5, simulated=True)

# %% [markdown] tags=["slide"] minutes=1
# ## Part 4: the loader is a bounded queue
#
# - Batch $i$ is made by worker $i$ modulo $W$
# - Batches are handed out in order
# - At most $W \times$ [prefetch factor](glossary.md#prefetch-factor) are under way; taking one sends off the next
#
# The prefetch factor is a bound, not a speed. These three rules are all there is to the loader,
# so a few lines can play it through exactly: `feeding.simulate_feeding`. Eight batches of 60 ms, two workers, steps of 20 ms:

# %% tags=["look", "slide", "slide-output"] minutes=2
queue = feeding.simulate_feeding(make_batch_s, accelerator.step_s, steps=8, workers=2)
drawn = plotting.gantt(queue.timeline.activities, title="Two workers, one device: batches in order")
plotting.show(
    drawn, alt="Lanes of two workers and the device: two batches arrive together, are computed with, and it waits."
)

# %% [markdown] tags=["explain"]
# The batches come in pairs, and the device waits after each pair. If every batch takes the same time, more prefetch does not
# change the rate. It is there for batches that do not. In the next data set every seventh item is late (a store that answers
# after 100 ms instead of 10), one item is a batch, and there are two workers. (Seventh, so that the workers take turns with the
# late ones: by the first rule every eighth would always fall to the same worker.)

# %%
late_items = feeding.WaitingItems(33, wait_s=0.010, late_every=7, late_s=0.100)
times_s = [late_items.cost_s(index) for index in range(len(late_items))]
print(f"a batch takes {units.text(sum(times_s) / len(times_s), 's')} on average, so two workers deliver one every "
      f"{units.text(sum(times_s) / len(times_s) / 2, 's')}; a step takes {units.text(accelerator.step_s, 's')}")  # fmt: skip

# %% [markdown]
# On average that is nearly twice as fast as needed.

# %% tags=["predict"]
shallow_share = helpers.predict("Prefetch factor 1: what share of the time is the device busy?", "%")
shallow_share

# %% tags=["run", "nbval-ignore-output"]
one_item = feeding.LoaderSettings(batch_size=1, workers=2)
by_prefetch = feeding.sweep_feeding(
    late_items, feeding.vary(one_item, prefetch_factor=(1, 2, 4)), accelerator, warm_up=8
)
queues = {
    factor: feeding.simulate_feeding(times_s, accelerator.step_s, workers=2, prefetch_factor=factor, warm_up=8)
    for factor in (1, 2, 4)
}
shallow_share.reveal(modelled=100 * queues[1].busy_share, simulated=100 * by_prefetch.rows[0].busy_share)

# %% tags=["look", "nbval-ignore-output"]
results.printed(by_prefetch.table().set_index("value").rename_axis("prefetch factor")[["step_s", "busy_share"]])

# %% tags=["look"]
for factor, each in queues.items():
    print(
        f"prefetch factor {factor}: modelled {100 * each.busy_share:.0f} % busy, at most {each.most_ready} batches ready"
    )

# %% [markdown] tags=["explain"]
# A late batch holds up all that come after it, because they are handed out in order. Meanwhile the device can only use batches that
# are already in the queue: with a prefetch factor of 4, up to eight batches under way are 160 ms of work. So the rule is: workers
# for the mean, prefetch for the spread. The price is memory, $W \times$ prefetch factor batches of it (lesson 08 counts
# them).
#
# Play with it. One batch of 24, the tenth, takes five times as long as the others. How many workers, and what prefetch factor,
# make it disappear?


# %%
def play_queue(workers, prefetch_factor, batch_ms):
    times_s = [batch_ms / 1000 * (5 if batch == 9 else 1) for batch in range(24)]
    found = feeding.simulate_feeding(times_s, 0.020, workers=workers, prefetch_factor=prefetch_factor, warm_up=4)
    title = f"{workers} workers, prefetch factor {prefetch_factor}: the device is busy {100 * found.busy_share:.0f} %"
    return plotting.gantt(found.timeline.activities, title=title)


helpers.interactive_figure(
    play_queue,
    {"workers": [1, 2, 3, 4, 6], "prefetch_factor": [1, 2, 4, 8], "batch_ms": [10, 20, 30, 40, 60]},
    views=[
        {"workers": 2, "prefetch_factor": 1, "batch_ms": 30},
        {"workers": 2, "prefetch_factor": 4, "batch_ms": 30},
        {"workers": 3, "prefetch_factor": 4, "batch_ms": 30},
    ],
    alt=lambda workers, prefetch_factor, batch_ms: (
        f"Lanes of {workers} workers and the device, batches of {batch_ms} ms and one late one, "
        f"prefetch factor {prefetch_factor}."
    ),
)

# %% [markdown] tags=["slide"] minutes=1
# ## Part 5: more workers are not always better
#
# | an item | is limited by | workers help |
# |:--|:--|:--|
# | waits | others | always |
# | computes | cores | up to the cores |
# | on one disk | the disk | only the first |
# | in memory | nothing | never |
#
# (As far as the device is not the limit itself: once it is always busy nothing helps.)
#
# So far an item only waited. Four data sets now differ in what an item costs. The second reads, decodes, crops and mirrors real
# JPEG files, which is work for a processor; the third reads the same files through one disk that all workers share (a made-up
# one, which takes 8 ms for a file). The fourth has its items in memory.

# %%
folder = tempfile.TemporaryDirectory()
files = feeding.write_images(folder.name, images=10, side=384)
mean_bytes = sum(path.stat().st_size for path in files) / len(files)
slow_disk = helpers.parallel.Link(bandwidth_bytes_per_s=mean_bytes / 0.008)
kinds = {
    "waits": feeding.WaitingItems(80, wait_s=0.008),
    "computes": feeding.DecodedImages(files, crop=224, repeats=8),
    "one disk": feeding.FilesOnOneDisk(files * 8, slow_disk),
    "in memory": feeding.FreeItems(80),
}

# %% tags=["look"]
for name, items in kinds.items():
    print(f"{name}: {feeding.item_cost(items, items=10).kind}")

# %% [markdown] tags=["explain"]
# `item_cost` makes some items alone and compares two clocks: the wall's, and that of the processor's time. An item that computes
# uses the processor nearly all the time; one that waits does not. Look at the disk: it waits as well, so this test cannot tell it
# from the first. The model needs to know how many items can be made at once: one for each worker, one for each core, or just one on
# a single disk.

# %% tags=["predict"]
disk_gain = helpers.predict("One disk: how many times as fast is the loop with 2 workers as with 1?", "x")
disk_gain

# %% tags=["run", "nbval-ignore-output"]
cores = max(1, math.floor(helpers.machine_card().usable_cores or 1))
per_batch_s = {name: 4 * feeding.item_cost(items, items=10).median_s for name, items in kinds.items()}
simulated, modelled = {}, {}
for name, items in kinds.items():
    sweep = feeding.sweep_feeding(items, feeding.vary(settings, workers=(0, 1, 2)), accelerator, steps=13)
    simulated[name] = {f"{row.value} worker(s)": row.busy_share for row in sweep.rows}
    hands = {"computes": cores, "one disk": 1}.get(name, 2)
    models = [feeding.model_feeding(per_batch_s[name], 0.020, workers=each, cores=hands) for each in (0, 1, 2)]
    modelled[name] = {f"{each} worker(s)": model.busy_share for each, model in zip((0, 1, 2), models, strict=True)}

# %% tags=["look", "nbval-ignore-output"]
gain = {name: each["one disk"]["2 worker(s)"] / each["one disk"]["1 worker(s)"]
        for name, each in (("modelled", modelled), ("simulated", simulated))}  # fmt: skip
disk_gain.reveal(**gain)

# %% tags=["look", "nbval-ignore-output"]
both = pd.concat({"modelled": pd.DataFrame(modelled).T, "simulated": pd.DataFrame(simulated).T}, axis=1)
both.map("{:.0%} busy".format)

# %% [markdown] tags=["explain"]
# - What waits gains with every worker, until the device is the limit.
# - What computes gains up to the cores that are free, and the training process needs one as well.
# - One disk does one thing at a time. The first worker overlaps it with the device; the others stand in a queue.
# - Items in memory lose: a batch from a worker has to cross from one process to another, the [hand-over](glossary.md#hand-over).
#
# The model of the last row says 100 %, because it knows no hand-over. Here it is, measured on this machine, for a batch of four
# small images:

# %% tags=["look", "nbval-ignore-output"]
handover_s = feeding.measure_handover(4 * 28 * 28 * 4, feeding.LoaderSettings(batch_size=4, workers=2), batches=12)
with_handover = feeding.model_feeding(per_batch_s["in memory"], 0.020, workers=1, handover_s=handover_s)
print(f"hand-over: {units.text(handover_s, 's')}; so modelled {100 * with_handover.busy_share:.0f} % with one worker, "
      f"simulated {100 * simulated['in memory']['1 worker(s)']:.0f} %")  # fmt: skip

# %% tags=["explain"]
disk_s = sum(kinds["one disk"].disk_s(index) for index in range(40))
with feeding.workers_end(
    feeding.make_loader(kinds["one disk"], feeding.LoaderSettings(batch_size=4, workers=4))
) as loader:
    through_disk = feeding.feed(loader, feeding.SleepingAccelerator(0.0), steps=10)
print(
    f"40 files: {units.text(disk_s, 's')} of the disk, {units.text(through_disk.last.elapsed_s, 's')} by four workers"
)
folder.cleanup()

# %% [markdown] tags=["explain"]
# (Beside the disk's time the workers took theirs to start and to end.) So ask first what an item costs, then choose. For what computes there is a better way than more workers: do the work once, and
# store what comes out (decoded, cropped larger than needed); or let the accelerator do it.
#
# And your own device? The same loop around a real training step, measured: LeNet on digits, which are in memory. On a CPU, workers
# and training share the processor: what the workers gain, the training loses. On a GPU two events around each step give its busy
# time.

# %% tags=["nbval-ignore-output"]
train_step = feeding.training_step(helpers.LeNet().to(device))
for workers in (0, 2):
    with feeding.workers_end(helpers.make_MNIST_loader(batch_size=64, num_workers=workers)) as loader:
        real = feeding.feed(loader, feeding.TrainingAccelerator(train_step, device=device), steps=24, warm_up=8)
    print(f"{workers} workers, on this {device}: busy {100 * real.last.busy_share:.0f} %, "
          f"{units.text(real.last.step_s, 's')} from step to step")  # fmt: skip

# %% [markdown] tags=["slide"] minutes=1
# ## Part 6: the copy
#
# - A card has a memory of its own: each batch is copied
# - From ordinary memory the host must copy first; [page-locked memory](glossary.md#page-locked-memory) (pinned) the device reads
#   itself
# - `non_blocking=True`, pinned: the host does not wait
#
# The system may move an ordinary page while a device reads it. A page that is locked stays where it is, so the device can fetch it
# by [direct memory access](glossary.md#direct-memory-access). `DataLoader(pin_memory=True)` puts batches there. Where processor
# and accelerator share one memory this part has less to say, and on a CPU nothing at all: there is nothing to copy. So
# our device gets two made-up links: a copy takes 30 ms from ordinary memory and 15 ms from pinned memory.
# Items are in memory, one worker hands them over, and a step takes 20 ms.

# %%
heavy_items = feeding.FreeItems(400, shape=(3, 64, 64))
batch_bytes = 16 * heavy_items.image.nbytes
links = {name: helpers.parallel.Link(batch_bytes / copy_s) for name, copy_s in (("pageable", 0.030), ("pinned", 0.015))}
copying_device = feeding.SleepingAccelerator(0.020, **links)
print(f"a batch has {batch_bytes:,} bytes")

# %% tags=["predict"]
non_blocking_time = helpers.predict("Pinned memory and non_blocking=True: how long from step to step?", "s")
non_blocking_time

# %% tags=["run", "nbval-ignore-output"]
copy_s = {"blocking": 0.030, "non_blocking": 0.015, "ahead": 0.015}
copies = {}
for way in copy_s:
    with feeding.workers_end(
        feeding.make_loader(heavy_items, feeding.LoaderSettings(batch_size=16, workers=1))
    ) as loader:
        copies[way] = feeding.feed(loader, copying_device, steps=16, copying=way, wait_each_step=False)
simulated = {way: run.last.step_s for way, run in copies.items()}
modelled = {way: feeding.model_feeding(0, 0.020, workers=1, copy_s=copy_s[way], copying=way, wait_each_step=False)
            for way in copy_s}  # fmt: skip
non_blocking_time.reveal(modelled=modelled["non_blocking"].step_s, simulated=simulated["non_blocking"])

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.gantt(
    copies["non_blocking"].timeline.activities[:40], title="Simulated, non_blocking: copy and step still take turns"
)
alt = (
    "Lanes of copies, device and host: each copy ends before its step begins, and the next copy begins after that step."
)
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["look"]
# What went wrong here? `non_blocking=True` promises that the *host* goes on. Copy and step were both put on the device's one
# stream, and a stream does one thing after the other: still the sum. To overlap, the copy needs a stream of its own, and
# the loop must start it one batch ahead.

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.gantt(
    copies["ahead"].timeline.activities, title="Simulated, copied ahead: the next copy runs during the step"
)
alt = "Lanes of copies, device and host: while the device computes with one batch, the next ones are copied."
plotting.show(drawn, alt=alt)

# %% tags=["explain"]
table = pd.DataFrame({"modelled_s": {way: each.step_s for way, each in modelled.items()}, "simulated_s": simulated})
table["decided by"] = {way: each.bound for way, each in modelled.items()}
results.printed(table)

# %% [markdown] tags=["explain"]
# Sum against maximum: 30 + 20, then 15 + 20, then the longer of 15 and 20. Pinning made the copy cheaper; only running it at the
# same time hid it. (In the last figure the copies run ever further ahead, and each batch that waits there takes memory of
# the device. A loop that waits for each step, as one that prints its loss does, keeps them a few batches ahead.)
#
# Had the copy been the longer one, the device would starve again, and no worker could help. On CUDA, `feeding.copy_ahead` wraps
# any loader of pinned batches. It copies on a stream of its own, makes the computing stream wait for an event, and calls
# `record_stream`, without which the allocator could hand the memory to the next copy too early:

# %% tags=["nbval-ignore-output"]
pinned = feeding.LoaderSettings(batch_size=16, workers=1, pin_memory=device == "cuda")
with feeding.workers_end(feeding.make_loader(heavy_items, pinned)) as loader:
    shapes = {tuple(images.shape) for images, _ in feeding.copy_ahead(loader, device)}
print(f"batches of {shapes} on {device}" + ("" if device == "cuda" else ", where they were already: nothing to copy"))


# %% [markdown] tags=["slide"] minutes=2
# ## Part 7: what went wrong here? A CPU, a GPU, two GPUs
#
# The lecture's table again, with what changed from row to row.
#
# Lesson 04 counted its updates. Here we ask of each row: which row is it fair to compare it with?

# %% tags=["look", "slide-output"]
columns = ["device", "devices", "batch_size", "updates", "elapsed_s", "changed", "fair"]
lecture = feeding.compare_setups(feeding.LECTURE_SETUPS)
results.printed(lecture.table()[columns])

# %% [markdown] tags=["explain"]
# Neither of the later rows can fairly be compared with the one before it. Device and batch size changed together, then number and batch
# size; and data loading, in the clock of all three, is work of the same processor in each row. We repair it with two devices that
# have prices: a CPU takes 1 ms for an example. A GPU takes 40 us, and 10 ms for each step whatever its size. Loading takes 0.2 ms
# an example, on either. (All made up; put in your own.)

# %%
gradient_bytes = sum(weight.nbytes for weight in helpers.LeNet().parameters())
cable = {"gradient_bytes": gradient_bytes, "link_bandwidth_bytes_per_s": 50e6, "link_latency_s": 1e-4}
costs = {
    "CPU": feeding.SetupCosts(step_s=0, example_s=1e-3, load_example_s=0.2e-3),
    "GPU": feeding.SetupCosts(step_s=0.010, example_s=40e-6, load_example_s=0.2e-3, **cable),
}
base = feeding.Setup("CPU", devices=1, batch_size=128, examples=512, epochs=1)

# %% tags=["predict"]
loading_hides = helpers.predict("Batch 128, loading in the clock: how many times as fast is the GPU as the CPU?", "x")
loading_hides

# %% [markdown]
# Four setups, each a repair of one thing: loading comes out of the clock, then the device changes, then the number of devices, then
# the batch of both.

# %% tags=["run"]
on_cpu, on_gpu = feeding.vary(base, device=("CPU", "GPU"))
outside = {name: feeding.vary(each, loading_in_clock=(False,))[0] for name, each in (("CPU", on_cpu), ("GPU", on_gpu))}
two = feeding.vary(outside["GPU"], devices=(2,))[0]
large = [feeding.vary(each, batch_size=(512,))[0] for each in (outside["GPU"], two)]
chains = {
    "GPU, loading in the clock": [on_cpu, on_gpu],
    "GPU, loading outside": [outside["CPU"], outside["GPU"]],
    "two GPUs, same batch": [outside["GPU"], two],
    "two GPUs, larger batch": large,
}
for name, pair in chains.items():
    print(f"{name}: changed {', '.join(feeding.changed(*pair))}")

# %% [markdown]
# Each runs as it would: the batches in a loop, with two devices two processes that average their gradients by DDP over a link.
# Only the arithmetic sleeps. A run on GPUs is short, and what else this machine does only adds to it: of five runs we take the
# shortest.

# %% tags=["run", "nbval-ignore-output"]
setups = dict.fromkeys(each for pair in chains.values() for each in pair)
with helpers.Ranks(2, device="cpu") as ranks:
    simulated = {each: min(feeding.run_sleeping_setup(each, costs[each.device], ranks=ranks)
                           for _ in range(5 if each.device == "GPU" else 1)) for each in setups}  # fmt: skip
modelled = {each: feeding.model_setup(each, costs[each.device]) for each in setups}
loading_hides.reveal(modelled=modelled[on_cpu] / modelled[on_gpu], simulated=simulated[on_cpu] / simulated[on_gpu])

# %% tags=["look", "nbval-ignore-output"]
rows = {name: {"modelled_speedup": modelled[first] / modelled[second],
               "simulated_speedup": simulated[first] / simulated[second]}
        for name, (first, second) in chains.items()}  # fmt: skip
results.printed(pd.DataFrame(rows).T)

# %% tags=["explain", "slide", "slide-output"] minutes=2
rows = {
    name: {"updates": second.updates, "modelled_speedup": round(modelled[first] / modelled[second], 2)}
    for name, (first, second) in chains.items()
}
results.printed(pd.DataFrame(rows).T.astype({"updates": int}))

# %% [markdown] tags=["explain"]
# Four questions, four answers. By its prices our GPU computes more than eight times as fast; with the loader in the clock one would have said
# less than four, because the loader's time is the same on both sides, and the faster the device the larger its share ([Amdahl's law](glossary.md#amdahls-law):
# what is not made faster bounds the gain). Two GPUs at the same batch of 128 are *slower* than one: most of a step is the price
# of the step itself, which is not divided, and the [all-reduce](glossary.md#all-reduce) comes on top. At 512 they are faster, but
# that is another training: a quarter of the updates. "Are two GPUs faster?" has no answer until you say what is held fixed.
#
# The same question to your own device. The slower it computes, the smaller the share of loading, so on a CPU one may miss it:

# %% tags=["nbval-ignore-output"]
images, labels = next(iter(helpers.make_MNIST_loader(batch_size=1024)))
kind = "GPU" if device == "cuda" else "CPU"
clocks = feeding.vary(feeding.Setup(kind, batch_size=128, examples=1024, epochs=1), loading_in_clock=(False, True))
outside_s, inside_s = (min(feeding.run_setup(each, helpers.LeNet, images, labels) for _ in range(2)) for each in clocks)
print(f"LeNet, 1,024 digits on this {kind}: {units.text(outside_s, 's')} without loading, "
      f"{units.text(inside_s, 's')} with it")  # fmt: skip

# %% [markdown] tags=["slide"] minutes=1
# ## Part 8: saving is feeding backwards
#
# - A checkpoint holds all that the next step depends on
# - While it is written the device waits
# - How long, and must it?
#
# A network with one hidden layer of 512, trained by Adam. The state to save is the weights and what the optimizer keeps for each
# of them (its [optimizer state](glossary.md#optimizer-state)).


# %%
def make_model():
    return helpers.BasicFCModel(784, 512, 10, 2)


model = make_model()
optimizer = torch.optim.Adam(model.parameters())
model(torch.zeros(1, 1, 28, 28)).sum().backward()
optimizer.step()
state = feeding.training_state(model, optimizer, step=1)

# %% tags=["predict"]
state_ratio = helpers.predict("How many times the bytes of the weights does a checkpoint with Adam hold?", "x")
state_ratio

# %% tags=["run"]
weight_bytes = sum(weight.nbytes for weight in model.parameters())
averages = 2  # Adam's two, each with as many numbers as the weights
state_ratio.reveal(modelled=1 + averages, counted=round(feeding.state_bytes(state) / weight_bytes, 3))

# %% tags=["look"]
print(f"weights: {weight_bytes:,} bytes, state: {feeding.state_bytes(state):,} bytes")

# %% tags=["look", "slide", "slide-output"] minutes=1
cost = feeding.measure_save(state)
parts = {
    "snapshot": cost.snapshot_s,
    "serialise": cost.serialise_s,
    "write": cost.write_s,
    "wait for the disk": cost.sync_s,
}
drawn = plotting.draw_bars(parts, unit="s", title="What a save costs on this machine, part by part")
plotting.show(
    drawn,
    alt="Four bars: the snapshot in memory, torch.save, handing the bytes to the system, and waiting for the disk.",
)

# %% tags=["explain"]
print(f"bytes of the file over bytes of the state: {cost.file_bytes / cost.state_bytes:.2f}")

# %% [markdown] tags=["explain"]
# Weights and two running averages: three times. Of the four parts only the first needs the training to stand still. A
# [snapshot](glossary.md#snapshot) is a copy in memory; once there is one, a thread can serialise and write it while the training
# goes on. Now with a disk that is slow enough to matter: it takes 100 ms for this state. A step takes 20 ms, and every tenth is
# followed by a save.

# %% tags=["predict"]
async_stall = helpers.predict("How long does an asynchronous save keep the training waiting?", "s")
async_stall

# %% tags=["run", "nbval-ignore-output"]
disk = helpers.parallel.Link(cost.state_bytes / 0.100)
ways = ("synchronous", "asynchronous")
stalls = feeding.measure_stalls(make_model, ways=ways, saves=3, every=10, step_s=0.020, disk=disk, device="cpu")
save_s = 0.100 + cost.serialise_s + cost.write_s
modelled = {way: feeding.modelled_stall_s(way, save_s=save_s, snapshot_s=cost.snapshot_s, interval_s=stalls.interval_s)
            for way in ways}  # fmt: skip
async_stall.reveal(modelled=modelled["asynchronous"], simulated=stalls.row("asynchronous").stall_s)

# %% tags=["look"]
simulated = {way: stalls.row(way).stall_s for way in ways}
results.printed(pd.DataFrame({"modelled_s": modelled, "simulated_s": simulated}))

# %% tags=["explain"]
often = feeding.modelled_stall_s("asynchronous", save_s=0.100, snapshot_s=0, interval_s=0.040)
print(f"asynchronous, a save every 40 ms on this disk: modelled stall at least {units.text(often, 's')}")

# %% [markdown] tags=["explain"]
# The asynchronous save stalls the training for the snapshot, as long as the last save is written before the next one comes. (The
# thread also takes processor time from the training process, which the model leaves out.) When it is not, the training
# waits for what is left: a disk that is too slow on average cannot be hidden, just as a loader that is too slow on average
# cannot.

# %% [markdown] tags=["slide"] minutes=1
# ### What went wrong here? A save without a snapshot
#
# - "A thread saves `state_dict()`": no tensor is copied by that
# - The optimizer changes the same tensors in place
# - What is in the file?
#
# We save the state of step 1, let the training take one more step while the disk is busy, and read the file.


# %% tags=["predict"]
later_weights = helpers.predict("The file says step 1. Without a snapshot, which step's weights are in it?", "")
later_weights


# %% tags=["run"]
def save_and_go_on(takes_snapshot):
    busy = helpers.parallel.Link(math.inf, latency_s=0.5)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = [model.weight.detach().clone()]
    with tempfile.TemporaryDirectory() as place:
        with feeding.Checkpointer(place, takes_snapshot=takes_snapshot, disk=busy) as checkpointer:
            for step in (1, 2):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                weights.append(model.weight.detach().clone())
                if step == 1:
                    checkpointer.save(feeding.training_state(model, optimizer, step=step), step)
        saved = checkpointer.load()
    return saved["step"], [step for step, each in enumerate(weights) if torch.equal(each, saved["model"]["weight"])]


# %% tags=["look"]
found = {takes_snapshot: save_and_go_on(takes_snapshot) for takes_snapshot in (False, True)}
model = torch.nn.Linear(4, 4)
assert model.state_dict()["weight"].data_ptr() == model.weight.data_ptr()  # one memory: it holds the latest step
later_weights.reveal(modelled=2, counted=found[False][1][0])

# %% tags=["look", "slide", "slide-output"] minutes=1
for takes_snapshot, (says, holds) in found.items():
    print(f"snapshot {takes_snapshot!s:5}: says step {says}, weights of step {holds[0]}")

# %% [markdown] tags=["explain"]
# `state_dict()` names tensors, it does not copy them. Nothing fails: the file loads, the run goes on from step 1, and takes step 2
# with weights that have taken it already. In a large network the file may hold some layers before the step and some after: a state
# that no step ever had. The repair is the copy, and on a GPU it must be finished before the next step may write.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 9: how often?
#
# - A save costs $C$; a failure comes every $M$ on average
# - Too often: saving takes the time. Too rarely: each failure takes half an interval
# - Best: train for about $\sqrt{2CM}$ between two saves
#
# (Young, *A first order approximation to the optimum checkpoint interval*, Communications of the ACM, 1974.) Take a save that
# stalls the training for one minute, and a machine that fails once a day.

# %% tags=["predict"]
interval = helpers.predict("How long should one train between two saves?", "s")
interval

# %% tags=["run"]
minute_s, day_s = 60.0, 24 * 3600.0
found_s = {
    "Young 1974": feeding.young_interval_s(minute_s, day_s),
    "Daly 2006": feeding.daly_interval_s(minute_s, day_s),
    "exact": feeding.optimal_interval_s(minute_s, day_s),
}
# %% [markdown]
# These are two estimates and the exact optimum of a formula (Daly, *A higher order estimate of the optimum checkpoint interval for
# restart dumps*, Future Generation Computer Systems, 2006). Beside them stands a simulation that knows no formula: it trains for a
# week, draws failures, and starts again from the last save, 60 times for each interval.

# %% tags=["run"]
minutes = [6.75, 13.5, 27, 54, 108, 216, 432]
week_s, costs_s = 7 * day_s, {"save_s": minute_s, "mtbf_s": day_s}
expected = [feeding.expected_run_s(week_s, 60 * each, **costs_s) / week_s - 1 for each in minutes]
simulated = [sum(feeding.simulate_run_s(week_s, 60 * each, **costs_s, seed=seed) for seed in range(60)) / 60 / week_s - 1
             for each in minutes]  # fmt: skip
best = minutes[simulated.index(min(simulated))]

# %% tags=["look"]
interval.reveal(modelled=found_s["Young 1974"], simulated=60 * best)
for name, each_s in found_s.items():
    print(f"{name:10}  {each_s / 60:.1f} minutes")

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_curves(
    minutes,
    {"modelled": [100 * each for each in expected], "simulated": [100 * each for each in simulated]},
    unit="",
    title="Time lost to saves and failures, as a part of the work",
    xlabel="training between two saves",
    ylabel="lost (%)",
    size_unit="min",
    marks={"Young": 54},
    log=False,
)
plotting.show(
    drawn,
    alt="A curve over the interval that falls, is flat around an hour at Young's mark, and rises; the points lie on it.",
)

# %% tags=["explain"]
off = max(abs(one - other) for one, other in zip(expected, simulated, strict=True))
print(
    f"best of the simulated intervals: {best} minutes; formula and simulation differ by {off:.1%} of the work at most"
)
for stall_s in (minute_s, minute_s / 100):
    best_s = feeding.optimal_interval_s(stall_s, day_s)
    lost = feeding.expected_run_s(week_s, best_s, save_s=stall_s, mtbf_s=day_s) / week_s - 1
    print(f"a stall of {units.text(stall_s, 's')}: save every {best_s / 60:.1f} minutes, and lose {100 * lost:.2f} %")

# %% [markdown] tags=["explain"]
# The curve is flat around its minimum: half or twice the best interval costs little, so an estimate will do. An asynchronous save
# changes $C$, not the formula. If only a hundredth of the save stalls the training, one saves ten times as often and loses about a
# tenth; as long as the disk keeps up.
#
# All parts asked one question: what happens in turn, what at the same time, and what bounds the queue between them? The
# [exercises](exercises/06_feeding_the_accelerator_exercises.ipynb) ask you to play the loader's queue by hand, to repair a
# comparison, and to count what a failure costs.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. The slower of loader and device sets the step.
# 2. Workers raise the mean rate; prefetching absorbs the spread.
# 3. A checkpoint costs time now, its lack costs work later.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $t_b$ the time to make a batch, $t_d$ the device's step, $t_c$ the copy, $W$ workers, $P$ the prefetch factor, $h$ the hand-over.
#
# | quantity | formula |
# |---|---|
# | busy share | $t_d / t_{step}$ |
# | no workers | $t_{step} = t_b + t_d$ |
# | $W$ workers, items that wait | $t_{step} = \max(t_b / W,\; h + t_d)$ |
# | items that compute, $K$ cores | $t_b / \min(W, K)$ in place of $t_b / W$ |
# | one disk for all | $t_b$ in place of $t_b / W$ |
# | workers that suffice | $\lceil t_b / t_d \rceil$ |
# | batches under way, at most | $W P$ |
# | step and copy in one stream | $t_c + t_d$ |
# | copied ahead on another stream | $\max(t_c, t_d)$ |
# | step of batch $B$ | $a + b\,B$, with $a$ once a step and $b$ for each example; a rate of $B / (a + b B)$ examples a second |
# | stall of an asynchronous save | snapshot $+ \max(0, t_{save} - t_{interval})$ |
# | interval between saves | $\sqrt{2\,C\,M}$, for a save of $C$ seconds and $M$ seconds from failure to failure |
# | expected run | $M e^{R/M} \big(e^{(t + C)/M} - 1\big)\, t_{work} / t$, with $R$ the restart |
