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
#     title: Feeding the accelerator
#     needs: ["00", "01"]
#     objectives:
#       - write|wrote a loader, from its thread and its workers' loop to the order of its batches
#       - choose|chose workers for the rate and prefetching for late batches
#       - find|found random numbers that every worker draws again
#       - read|read many small files, and one large one in their place
#       - copy|copied a batch ahead on a stream of its own
# ---

# %% [markdown] tags=["objectives"]
# # Feeding the accelerator
#
# An accelerator that waits costs as much as one that computes. Before each step somebody must read a batch, decode it, put it together and
# copy it over. PyTorch's `DataLoader` does that with five or six arguments that most people copy from somewhere. In this lesson you
# write its inside, and then you know what to set.
#
# **The bet.** Two workers make batches at the same time. A batch takes 10 ms, but every seventh is late and takes 100 ms. So on average
# they could bring a batch every 11.4 ms. The device needs 20 ms for each, and takes them in order. Two batches may be under way: whenever the
# device takes one, the worker that made it begins another.
#
# Your machine may have no accelerator. So many experiments here feed a device that only sleeps, from a store that only sleeps. What comes
# out of those is called *simulated*, though the loader and the clock are real.

# %%
import dataclasses
import itertools
import math
import os
import pathlib
import queue
import random
import tempfile
import threading
import time
import warnings

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

import helpers
from helpers import exercises, plotting, timing, units
from helpers.studies import input_pipeline

# %%
device = "cuda" if torch.cuda.is_available() else "cpu"
warnings.filterwarnings("ignore", message="This DataLoader will create")  # more than cores

# %% tags=["predict", "slide", "slide-output"] minutes=1 headline="Twice as fast as needed, on average: is that enough?" axis=[0, 100]
bet = helpers.predict(
    "Batches could come almost twice as fast as needed: how busy is the device?", "%"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="In turn, store and device wait for each other"
# ## Part 1: one batch ahead
#
# - A store makes a batch
# - The device takes a step with it
# - In turn, each waits for the other
#
# Here a batch takes 30 ms and a step 20 ms, so in turn it is 50 ms from step to step. The [busy share](glossary.md#busy-share) of the device is the time it computes over all the time, here 40 %. The rest is
# [starvation](glossary.md#starvation). No loss curve over steps shows it: each step runs as fast as ever.


# %% tags=["nbval-ignore-output"]
def slow_batches(count, make_s):
    for made in range(count):
        time.sleep(make_s)  # a store far away
        yield made


def step_to_step_s(batches, step_s, warm_up=3):
    """Feed a device that sleeps; return the mean seconds from step to step."""
    starts = []
    for _ in batches:
        starts.append(time.perf_counter())
        time.sleep(step_s)  # the device computes
    return (starts[-1] - starts[warm_up]) / (len(starts) - 1 - warm_up)


in_turn_s = step_to_step_s(slow_batches(12, 0.030), 0.020)
print(f"in turn: {units.text(in_turn_s, 's')} from step to step (simulated)")


# %%
def all_given(function, count, depth):
    found = []
    fill = threading.Thread(
        target=lambda: found.extend(function(range(count), depth)), daemon=True
    )
    fill.start()
    fill.join(2)
    return "it does not end" if fill.is_alive() else found


def made_ahead(function, depth):
    made = []
    batches = function((made.append(n) or n for n in range(20)), depth)
    next(batches)
    time.sleep(0.2)  # nobody takes the next one
    ahead = len(made) - 1
    return "bounded" if depth <= ahead <= depth + 1 else ahead


# %% [markdown]
# While the device computes, somebody could make the next batch. A *thread* runs beside your program in the same memory. A *bounded
# queue* hands things from one to the other: `put` waits while it is full, `get` waits while it is empty.
#
# **Your turn.** Write the loop that keeps `depth` batches ready. (The thread holds one more in its hand.)


# %% tags=["yours"] yours="prefetched"
def prefetched(batches, depth):
    """Yield the batches in order; a thread makes up to ``depth`` of them ahead."""
    ready, end = queue.Queue(maxsize=depth), object()

    def fill():
        for batch in batches:
            ready.put(batch)  # waits while the queue is full
        ready.put(end)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not end:
        yield batch


# %% checks="prefetched"
asked = exercises.Checks("A queue that is filled ahead", prefetched)
slips = {"it does not end": "After the last batch put an end into the queue, and stop there"}
asked.returns(
    "every batch, in order", (5, 2), call=all_given, expected=list(range(5)), mistakes=slips
)
slips = {
    0: "Nothing was made ahead: start a thread that fills the queue",
    19: "All were made ahead: give the queue a size",
}
asked.returns("depth batches ahead", (3,), call=made_ahead, expected="bounded", mistakes=slips)
prefetched = asked.settle()


# %% wrong="prefetched" says="put an end into the queue"
def prefetched(batches, depth):
    ready = queue.Queue(maxsize=depth)

    def fill():
        for batch in batches:
            ready.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


# %% wrong="prefetched" says="give the queue a size"
def prefetched(batches, depth):
    ready, end = queue.Queue(), object()

    def fill():
        for batch in batches:
            ready.put(batch)
        ready.put(end)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not end:
        yield batch


# %% wrong="prefetched" says="Nothing was made ahead"
def prefetched(batches, depth):
    yield from batches


# %% tags=["predict"]
ahead_time = helpers.predict("With two batches ahead: how long from step to step?", "s")
ahead_time

# %% tags=["run"]
ahead_s = {
    depth: step_to_step_s(prefetched(slow_batches(12, 0.030), depth), 0.020)
    for depth in (2, 8)
}

# %% tags=["look", "nbval-ignore-output"]
ahead_time.reveal(modelled=max(0.030, 0.020), simulated=ahead_s[2])
print(f"depth 8: {units.text(ahead_s[8], 's')} (simulated)")

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="In turn is a sum, ahead a maximum"
spans = []
for way, workers in {"in turn": 0, "ahead": 1}.items():
    for each in input_pipeline.simulate_feeding(
        0.030, 0.020, steps=6, workers=workers
    ).timeline.activities:
        spans.append(dataclasses.replace(each, lane=f"{way}: {each.lane}"))
drawn = plotting.gantt(spans, title="Six batches, six steps (modelled)")
plotting.show(drawn, alt="In turn takes the sum of both times; ahead takes the longer one.")

# %% [markdown] tags=["explain"]
# (The *host* is your program, which makes the batches itself; worker 0 is the thread.) What happens in turn takes the sum, what happens at
# the same time the longest: $\max(30, 20)$. A deeper queue changes nothing,
# because the store makes a batch every 30 ms however many may lie ready. And of two times the sum is at most twice the longer. So
# working ahead never more than doubles the speed; for more, several must work.

# %% [markdown]
# ## Part 2: workers
#
# - A *worker* makes batches and nothing else
# - It takes an order: a number, and which items
# - It sends back the number and the batch
#
# A thread is enough for what waits. But in the usual Python only one thread at a time runs Python code ([its
# lock](https://docs.python.org/3/glossary.html#term-global-interpreter-lock)). So the workers of PyTorch's `DataLoader` are processes:
# each has a Python of its own.

# %% tags=["slide", "slide-output"] minutes=1 headline="Batches wait in a queue of bounded length"
drawn = input_pipeline.draw_loader(
    [4, 5], [2, 3], 1, places=4, title="Two workers, prefetch factor 2"
)
plotting.show(
    drawn, alt="Two workers make batches 4 and 5; 2 and 3 lie ready; the trainer has 1."
)


# %%
def answers(function, orders):
    given, done = queue.Queue(), queue.Queue()
    for order in [*orders, None]:
        given.put(order)
    function([0, 10, 20, 30, 40], given, done)
    return [done.get() for _ in range(done.qsize())]


def handed_out(function, pairs):
    return list(function(iter(pairs)))


def seen_before_first(function, pairs):
    arriving = iter(pairs)
    next(iter(function(arriving)))
    return len(pairs) - len(list(arriving))


# %% [markdown]
# **Your turn**: what each worker does. `dataset[i]` makes item $i$; `default_collate`, PyTorch's own, makes a batch of a list of
# items.


# %% tags=["yours"] yours="worker_loop"
def worker_loop(dataset, orders, done):
    """Answer each order (number, items) by (number, batch) in ``done``; stop at None."""
    while (order := orders.get()) is not None:
        number, items = order
        done.put((number, default_collate([dataset[item] for item in items])))


# %% checks="worker_loop"
asked = exercises.Checks("A worker's loop", worker_loop)
orders = [(2, [3]), (0, [1, 4])]
expected = [(2, torch.tensor([30])), (0, torch.tensor([10, 40]))]
slips = {
    tuple(
        batch for _, batch in expected
    ): "Send the number too: else nobody knows which it is",
    tuple(expected[:1]): "Go on until the order is None",
}
goal = "every order is answered"
asked.returns(goal, (orders,), call=answers, expected=expected, mistakes=slips)
asked.returns("no order, no answer", ([],), call=answers, expected=[])
worker_loop = asked.settle()


# %% wrong="worker_loop" says="Go on until the order is None"
def worker_loop(dataset, orders, done):
    order = orders.get()
    if order is not None:
        number, items = order
        done.put((number, default_collate([dataset[item] for item in items])))


# %% wrong="worker_loop" says="Send the number too"
def worker_loop(dataset, orders, done):
    while (order := orders.get()) is not None:
        done.put(default_collate([dataset[item] for item in order[1]]))


# %% [markdown]
# One worker may be quicker than another, so batches come back in any order. **Your turn**: hand them out in order, each as soon as
# it may go.


# %% tags=["yours"] yours="in_order"
def in_order(arrived):
    """Yield batches 0, 1, 2, ... from pairs (number, batch) that arrive in any order."""
    early, due = {}, 0
    for number, batch in arrived:
        early[number] = batch
        while due in early:
            yield early.pop(due)
            due += 1


# %% checks="in_order"
asked = exercises.Checks("Batches in order", in_order)
mixed = [(1, "b"), (0, "a"), (3, "d"), (2, "c")]
slips = {
    ("b", "a", "d", "c"): "That is the order in which they arrived",
    ("a",): "Batch 1 came early: keep it until its turn",
}
asked.returns("0, 1, 2, 3", (mixed,), call=handed_out, expected=list("abcd"), mistakes=slips)
slips = {4: "Batch 0 was there after two arrivals: do not wait for the rest"}
goal = "batch 0 goes out as soon as it is there"
asked.returns(goal, (mixed,), call=seen_before_first, expected=2, mistakes=slips)
in_order = asked.settle()


# %% wrong="in_order" says="the order in which they arrived"
def in_order(arrived):
    for _, batch in arrived:
        yield batch


# %% wrong="in_order" says="do not wait for the rest"
def in_order(arrived):
    yield from (batch for _, batch in sorted(arrived))


# %% wrong="in_order" says="keep it until its turn"
def in_order(arrived):
    due = 0
    for number, batch in arrived:
        if number == due:
            yield batch
            due += 1


# %% [markdown]
# With both, a loader. Batch $i$ is made by worker $i \bmod W$. At most $W \times$
# [prefetch factor](glossary.md#prefetch-factor) orders are under way, and each batch that is taken sends off the next one. Ours starts
# threads, so that it runs everywhere; our items only wait, so threads do.


# %% tags=["slide", "slide-code"] minutes=2 headline="The whole loader: orders go out, batches come back in order" lines=[4, 13]
def load(dataset, batch_size, workers, prefetch=2):
    orders = list(enumerate(torch.arange(len(dataset)).split(batch_size)))
    queues, done = [queue.Queue() for _ in range(workers)], queue.Queue()
    for own in queues:
        given = (dataset, own, done)
        threading.Thread(target=worker_loop, args=given, daemon=True).start()
    for order in orders[: workers * prefetch]:
        queues[order[0] % workers].put(order)
    further = iter(orders[workers * prefetch :])
    for batch in in_order(done.get() for _ in orders):
        if order := next(further, None):
            queues[order[0] % workers].put(order)
        yield batch
    for own in queues:
        own.put(None)


# %% [markdown]
# An item waits 15 ms, four are a batch, and a step takes 20 ms. Beside yours stands PyTorch's.

# %% tags=["nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Three workers suffice, and a fourth buys nothing"
waiting = input_pipeline.WaitingItems(84, wait_s=0.015)  # 21 batches, 12 steps are timed
rows = {}
for workers in (1, 2, 3, 4):
    theirs = DataLoader(waiting, batch_size=4, num_workers=workers)
    rows[workers] = {
        "modelled": max(0.060 / workers, 0.020),
        "yours, simulated": step_to_step_s(load(waiting, 4, workers), 0.020, warm_up=8),
        "DataLoader, simulated": step_to_step_s(theirs, 0.020, warm_up=8),
    }
shown = {
    name: {n: f"{1000 * row[name]:.1f} ms" for n, row in rows.items()} for name in rows[1]
}
pd.DataFrame(shown).rename_axis("workers")

# %% [markdown] tags=["explain"]
# By the model it takes $\max(t_b / W,\; t_d)$ from step to step: with three workers the device need not wait, and a fourth buys
# nothing. Three batches are then being made at once, because each takes three steps to make ([Little's law](glossary.md#littles-law): the
# number on its way is the rate times the time that each takes). On the machine that printed this `DataLoader` needs a millisecond more
# where the device decides; Part 4 comes back to it.

# %% [markdown]
# ## Part 3: the bound, and late batches
#
# - In order: a late batch holds up all after it
# - Meanwhile the device has what is under way
# - Its number: workers times prefetch factor
#
# Back to the bet: two workers, prefetch factor 1, every seventh batch late. `simulate_feeding` plays the rules of Part 2 exactly,
# without a clock. `DataLoader` runs by the clock.

# %% tags=["run"]
late = input_pipeline.WaitingItems(60, wait_s=0.010, late_every=7, late_s=0.100)
times_s = [late.cost_s(index) for index in range(36)]
how = {"batch_size": 1, "num_workers": 2}


def played(prefetch):
    more = {"workers": 2, "prefetch_factor": prefetch, "warm_up": 7}
    return input_pipeline.simulate_feeding(times_s, 0.020, **more)


def busy_percent(**more):
    batches = itertools.islice(DataLoader(late, **how, **more), 36)
    return 100 * 0.020 / step_to_step_s(batches, 0.020, warm_up=7)


bet_percent = busy_percent(prefetch_factor=1)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The average rate was enough, and the device waits"
bet.reveal(modelled=100 * played(1).busy_share, simulated=bet_percent)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Batch 6 is late, and the device runs dry"
shown = [each for each in played(1).timeline.activities if each.start_s < 0.42]
drawn = plotting.gantt(shown, title="Batch 6 is late, and batch 7 waits for it (modelled)")
plotting.show(drawn, alt="Worker 0 makes batch 6 for 100 ms; worker 1 and the device wait.")

# %% [markdown] tags=["explain"]
# Batch 6 is begun when step 4 begins. The device then has two batches, 40 ms of work, and waits for the other 60 ms. So of
# 200 ms it computes for seven steps, 140 ms, though the average rate was high enough. Worker 1 cannot help: batch 8 is worker 0's, and
# 9 may be ordered only when 7 is taken. Here is the queue meanwhile:


# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Batch 7 lies ready and may not go" layout="steps"
moments_ms = [75, 85, 95, 115, 125, 135, 155, 185, 195, 215]
states = [played(1).at(moment_ms / 1000) for moment_ms in moments_ms]
captions = [f"{moment_ms} ms" for moment_ms in moments_ms]
captions[5:8] = [f"{each}: batch 7 is ready, and waits for 6" for each in captions[5:8]]
plotting.play(
    [input_pipeline.draw_loader(*state, places=2) for state in states],
    title="The queue while batch 6 is late (modelled)",
    captions=captions,
    stills=(2, 4, 6, 9),
    alt="Worker 0 makes batch 6; batch 7 lies ready; the trainer runs dry and waits.",
)

# %% [markdown] tags=["explain"]
# The prefetch factor is a cure. A batch is ordered $W P$ steps before its turn, and a late one is begun then if its worker is idle:

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Prefetching absorbs the spread" numbers=[["factor=1: .* busy (.+ %)", "prefetch factor 1"], ["factor=3: .* busy (.+ %)", "prefetch factor 3"]]
for prefetch in (1, 2, 3, 4):
    wait_ms = max(0, 100 - 2 * prefetch * 20)
    print(
        f"prefetch_factor={prefetch}: waits {wait_ms} ms for a late batch,",
        f"busy {100 * played(prefetch).busy_share:.1f} % (modelled)",
    )

# %% [markdown] tags=["explain"]
# So workers raise the rate, and in this model workers times prefetch factor cover a late batch. A larger factor is the cheaper of the two: it
# takes no process, but memory, up to $W P$ batches of it (lesson 12 counts them).
#
# There is another way. With `in_order=False` `DataLoader` hands out whichever batch is there, and sends the next order to a worker that
# has room. Prefetch factor 1 again:

# %% tags=["predict"]
any_order = helpers.predict("in_order=False: what share of the time is the device busy?", "%")
any_order

# %% tags=["run"]
any_order_percent = busy_percent(prefetch_factor=1, in_order=False)

# %% tags=["look", "nbval-ignore-output"]
any_order.reveal(modelled=100, simulated=any_order_percent)

# %% [markdown] tags=["explain"]
# While one worker is late, the other makes a batch in 10 ms, and the device takes one every 20 ms: one worker feeds it. (The model leaves
# out the time to send an order and to receive a batch.) But now the clock decides which batch comes when, so a second run may train in
# another order.
#
# ### All that you set
#
# | argument | if you say nothing | what it is |
# |:--|:--|:--|
# | `num_workers` | 0: the training makes them | processes that make batches |
# | `prefetch_factor` | 2 | orders under way for each worker |
# | `in_order` | True | whether batches come in order |
# | `persistent_workers` | False | whether workers live on in the next epoch |
# | `pin_memory` | False | whether each batch is copied to memory that a GPU can read (Part 6) |
# | `worker_init_fn` | nothing | what each worker calls first |
# | `generator` | torch's | draws the order, and the seed of the workers |
# | `multiprocessing_context` | the system's | `"fork"`: a worker is a copy of your process; `"spawn"`, `"forkserver"`: a new Python |
#
# What does it cost to start workers anew in each epoch? Here are items in memory, in the epochs after the first:


# %% tags=["nbval-ignore-output"]
nothing, how = input_pipeline.FreeItems(8), {"batch_size": 4, "num_workers": 2}
for kept in (True, False):
    loader = DataLoader(nothing, persistent_workers=kept, **how)
    fed = input_pipeline.feed(
        loader, input_pipeline.SleepingAccelerator(0), epochs=4, warm_up=0
    )
    input_pipeline.end_workers(loader)
    first_s = min(epoch.first_batch_s for epoch in fed.epochs[1:])
    print(
        f"persistent_workers={kept}: {units.text(first_s, 's')} to the first batch (measured)"
    )

# %% [markdown] tags=["slide"] minutes=2 headline="Each worker gets a copy of the dataset, and of its generator"
# ### A common error: every worker draws the same
#
# - Items are cropped at random
# - The dataset keeps a generator of random numbers
# - Each worker gets a copy of the dataset
#
# An item here is only the random number. There are sixteen items in batches of four, four workers, and two epochs.


# %%
class Crops(Dataset):
    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 16

    def __getitem__(self, item):
        return int(self.draw(2**62))


def drawn_in_two_epochs(draw, **more):
    more |= {"multiprocessing_context": "fork"}  # else no worker could import this cell
    loader = DataLoader(Crops(draw), batch_size=4, num_workers=4, **more)
    return [number for _ in range(2) for batch in loader for number in batch.tolist()]


# %% tags=["predict", "slide", "slide-output"] minutes=1 headline="Four workers, two epochs: how many numbers differ?" axis=[1, 32]
different = helpers.predict("32 numbers are drawn: how many different ones?", "numbers")
different


# %% tags=["run"]
def own_seed(worker):
    info = get_worker_info()
    info.dataset.draw = np.random.default_rng(info.seed).integers


kept = np.random.default_rng(6).integers  # a generator that the dataset keeps
draws = {
    "kept": drawn_in_two_epochs(kept),
    "kept, and worker_init_fn=own_seed": drawn_in_two_epochs(kept, worker_init_fn=own_seed),
    "torch.randint": drawn_in_two_epochs(lambda most: torch.randint(most, ()).item()),
    "random.randrange": drawn_in_two_epochs(random.randrange),
    "np.random.randint": drawn_in_two_epochs(np.random.randint),
}

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Every worker draws the same"
different.reveal(modelled=4, counted=len(set(draws["kept"])))
for name, numbers in draws.items():
    print(f"{name}: {len(set(numbers))} different")

# %% [markdown] tags=["explain"]
# Each worker starts from the same copy, so all four draw the same four numbers; and the workers of the second epoch are new copies.
# Nothing fails. The augmentation is just poorer than you think. In each worker PyTorch seeds three generators anew: its own, Python's and
# NumPy's global one. It cannot know of yours. Draw from those three, or seed yours by `info.seed` in `worker_init_fn`.

# %% [markdown] tags=["slide"] minutes=2 headline="Ask what an item costs before you add workers"
# ## Part 4: what does an item cost?
#
# | an item | batches at once | workers |
# |:--|:--|:--|
# | waits | as many as workers | all help |
# | computes | as many as cores | help up to the cores |
# | lies in memory | it costs next to nothing | ? |
#
# Two measured times choose the workers: that of a batch, made without workers, and that of a step. `hands` is how many
# batches can be made at once. Where too few can, return `math.inf`. (Where items vary, take the mean; late batches need slack besides, as in Part 3.) **Your turn.**


# %% tags=["yours"] yours="workers_for"
def workers_for(batch_s, step_s, hands):
    """Return the fewest workers that keep up with the device on average."""
    needed = math.ceil(batch_s / step_s)
    return needed if needed <= hands else math.inf


# %% checks="workers_for"
asked = exercises.Checks("Workers from two times", workers_for)
asked.returns("60 ms a batch, 20 ms a step", (60, 20, 8), expected=3)
slips = {
    3: "Three bring a batch every 23.3 ms: round up",
    3.5: "There is no half worker: round up",
}
asked.returns("70 ms a batch, 20 ms a step", (70, 20, 8), expected=4, mistakes=slips)
slips = {
    4: "Only two can work at once: no number of workers suffices",
    2: "Two bring a batch every 35 ms: the device waits",
}
asked.returns("the same on two cores", (70, 20, 2), expected=math.inf, mistakes=slips)
workers_for = asked.settle()


# %% wrong="workers_for" says="no number of workers suffices"
def workers_for(batch_s, step_s, hands):
    return math.ceil(batch_s / step_s)


# %% wrong="workers_for" says="the device waits"
def workers_for(batch_s, step_s, hands):
    return min(math.ceil(batch_s / step_s), hands)


# %% wrong="workers_for" says="Three bring a batch"
def workers_for(batch_s, step_s, hands):
    needed = batch_s // step_s
    return needed if needed <= hands else math.inf


# %% [markdown]
# Three kinds of items, in batches of 8, for a step of 5 ms. The second reads and decodes a real JPEG file, and crops it.

# %% tags=["nbval-ignore-output"]
folder = tempfile.TemporaryDirectory()
files = input_pipeline.write_images(folder.name, images=10, side=384)
cores = max(1, math.floor(helpers.machine_card().usable_cores or 1))
kinds = {
    "waits": (input_pipeline.WaitingItems(80, wait_s=0.008), math.inf),
    "computes": (input_pipeline.DecodedImages(files, crop=224, repeats=8), cores),
    "in memory": (input_pipeline.FreeItems(80), math.inf),
}
costs = {name: input_pipeline.item_cost(items, items=10) for name, (items, _) in kinds.items()}
for name, (_, hands) in kinds.items():
    cost = costs[name]
    needed = workers_for(8 * cost.median_s, 0.005, hands)
    print(
        f"{name}: {units.text(cost.median_s, 's')} an item,",
        f"{100 * cost.processor_share:.0f} % of it processor; workers: {needed}",
    )

# %% [markdown] tags=["explain"]
# (`inf`: the cores are too few.) The first number picks out what lies in memory; for the others the second tells waiting, which leaves the
# processor alone, from computing. Where cores are too few, do the work once and store what comes out, or let the accelerator do it.
#
# For items in memory the formula says one worker. It cannot say zero, because it leaves out what a worker costs: a batch crosses from one
# process to another, the [hand-over](glossary.md#hand-over), and receiving it takes time of the training, which adds to the step. Now the device is real: LeNet trains on digits in memory, on your machine.


# %% tags=["nbval-ignore-output"]
def trained(workers):
    step = input_pipeline.training_step(helpers.LeNet().to(device))
    loader = helpers.make_MNIST_loader(batch_size=64, num_workers=workers)
    with input_pipeline.workers_end(loader):
        train = input_pipeline.TrainingAccelerator(step, device=device)
        found = input_pipeline.feed(loader, train, steps=50, warm_up=8).last
    return found.step_s, found.busy_share * found.step_s


alone_s, alone_busy_s = trained(0)
handover_s = input_pipeline.measure_handover(
    64 * 28 * 28 * 4, input_pipeline.LoaderSettings(64, workers=2)
)
print(f"no workers: {units.text(alone_s, 's')} from step to step", end=", ")
print(f"busy for {units.text(alone_busy_s, 's')}, {100 * alone_busy_s / alone_s:.0f} %")
print(f"hand-over of a batch: {units.text(handover_s, 's')}")

# %% tags=["predict"]
lenet_share = helpers.predict(
    "Two workers: what share of the time is LeNet's device busy?", "%"
)
lenet_share

# %% tags=["run"]
fed_s, fed_busy_s = trained(2)

# %% tags=["look", "nbval-ignore-output"]
lenet_share.reveal(
    modelled=100 * alone_busy_s / (alone_busy_s + handover_s),
    measured=100 * fed_busy_s / fed_s,
)
print(f"two workers: {units.text(fed_s, 's')} from step to step", end=", ")
print(f"busy for {units.text(fed_busy_s, 's')}")

# %% [markdown] tags=["explain"]
# On the machine that printed this, workers made the training slower: to receive a batch took longer than to make one. The model still
# says too much. The rest is mostly waiting beyond the measured hand-over, and we have not tested its cause.


# %%
def read_item(file, starts, number):
    file.seek(starts[number])
    return file.read(starts[number + 1] - starts[number])


def through_shard(function, items):
    with tempfile.TemporaryFile() as file:
        starts = function(items, file)
        file.seek(0)
        whole = file.read()
    return starts, [whole[begin:end] for begin, end in itertools.pairwise(starts)]


# %% [markdown] tags=["slide"] minutes=2 headline="A file each, or all items in one shard"
# ## Part 5: many small files, or one
#
# - 2,000 images of 784 bytes
# - A file each: open, read, close
# - Or one *shard*: one after the other, with a table of where each begins
#
# File systems keep files in blocks, of 4,096 bytes as a rule. **Your turn**: write the shard.


# %% tags=["yours"] yours="write_shard"
def write_shard(items, file):
    """Write all items (bytes) into ``file``; return where each begins, and last the end."""
    for item in items:
        file.write(item)
    return [0, *itertools.accumulate(len(item) for item in items)]


# %% checks="write_shard"
asked = exercises.Checks("A shard and its table", write_shard)
items = [b"one", b"three", b""]
slips = {
    ((0, 3, 8), (b"one", b"three")): "Where does the last item end? Return that too",
    ((0, 3, 5, 0), (b"one", b"th", b"")): "An item begins where all before it end: add up",
}
read_back = ([0, 3, 8, 8], items)
goal = "items of 3, 5 and 0 bytes"
asked.returns(goal, (items,), call=through_shard, expected=read_back, mistakes=slips)
write_shard = asked.settle()


# %% wrong="write_shard" says="Where does the last item end?"
def write_shard(items, file):
    starts = []
    for item in items:
        starts.append(file.tell())
        file.write(item)
    return starts


# %% wrong="write_shard" says="add up"
def write_shard(items, file):
    starts = [0]
    for item in items:
        file.write(item)
        starts.append(len(item))
    return starts


# %%
images = [np.random.default_rng(item).bytes(784) for item in range(2000)]
paths = [pathlib.Path(folder.name, f"{item:05}.raw") for item in range(2000)]
for path, image in zip(paths, images, strict=True):
    path.write_bytes(image)
shard = pathlib.Path(folder.name, "shard")
with shard.open("wb") as file:
    starts = write_shard(images, file)


def read_files():
    return [path.open("rb").read() for path in paths]


def read_shard():
    with shard.open("rb") as file:
        return [read_item(file, starts, number) for number in range(2000)]


assert read_files() == read_shard() == images

# %% tags=["nbval-ignore-output"]
for name, given in {"files": paths, "shard": [shard]}.items():
    taken = sum(512 * each.stat().st_blocks for each in given)
    print(f"{name}: {taken:,} bytes on the disk for {2000 * 784:,}")

# %% [markdown]
# The shard's table adds 2,001 numbers. Now the time. What was just written is still in memory, in the system's
# [page cache](glossary.md#page-cache). From there no disk is touched, and only the calls take time:

# %%
warm = timing.compare({"shard": read_shard, "files": read_files}, budget_s=2, precision=0.1)
warm_ratio = warm.candidate("files").time_ratio
sentence = "from the page cache, files take longer than a shard"
timing.claim(sentence, warm_ratio, at_least=4, evidence=warm)

# %% [markdown]
# A data set larger than memory comes from the disk in each epoch. So let the system forget our files. (Where it has no
# `posix_fadvise`, all stays in memory.)


# %% tags=["nbval-ignore-output"]
def from_disk_s(read, *given):
    for path in given:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start_s = time.perf_counter()
    read()
    return time.perf_counter() - start_s


large, large_bytes = pathlib.Path(folder.name, "large"), 64 * 2**20
large.write_bytes(bytes(large_bytes))
file_s = sorted(from_disk_s(path.read_bytes, path) for path in paths[:25])[12]
rate = large_bytes / min(from_disk_s(large.read_bytes, large) for _ in range(3))
print(f"one file of 784 bytes: {units.text(file_s, 's')}")
print(f"one file of 64 MiB: {units.text(rate, 'B/s')}")

# %% tags=["predict", "slide", "slide-output"] minutes=1 headline="How much does a file of its own cost?" axis=[1, 1000]
disk_ratio = helpers.predict(
    "From the disk: how many times as long as the shard do 2,000 files take?", "x"
)
disk_ratio

# %% tags=["run"]
files_s = min(from_disk_s(read_files, *paths) for _ in range(3))
shard_s = min(from_disk_s(read_shard, shard) for _ in range(3))
modelled_s = 2000 * file_s, file_s + 2000 * 784 / rate

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="From the disk, small files take very much longer"
disk_ratio.reveal(modelled=modelled_s[0] / modelled_s[1], measured=files_s / shard_s)
print(f"files {units.text(files_s, 's')}, shard {units.text(shard_s, 's')} (measured)")

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="A small file leaves most of its block empty"
drawn, axes = plotting.figure(title="Three files, and a shard of fifteen items", height_in=2.4)
look = {"height": 0.5, "color": plotting.COLOURS["data"], "edgecolor": "#666666"}
axes.barh([1] * 3, 784, left=[4096 * item for item in range(3)], **look)
axes.barh([0] * 15, 784, left=[784 * item for item in range(15)], **look)
for block in range(3):
    for row in (0, 1):
        axes.barh(row, 4096, 0.5, 4096 * block, color="none", edgecolor="#222222", linewidth=2)
axes.set_yticks([0, 1], ["shard", "files"])
axes.set_xticks([0, 4096, 8192, 12288], ["0", "4,096", "8,192", "12,288"])
axes.set_xlabel("bytes on the disk, in blocks of 4,096")
axes.grid(visible=False)
plotting.show(drawn, alt="A file leaves most of its block empty; a shard fills its blocks.")

# %% [markdown] tags=["explain"]
# Every small file costs a request of its own to the disk. The shard is read in order, and the system reads ahead of you. A shard is fast
# only if it is read in order. Now 500 items of a large file, in order and at random places:


# %% tags=["nbval-ignore-output"]
def read_large(places):
    with large.open("rb") as file:
        for place in places:
            file.seek(place)
            file.read(784)


places = {"in order": range(0, 784 * 500, 784)}
places["at random places"] = random.Random(6).sample(range(large_bytes - 784), 500)
for name, each in places.items():
    item_s = (
        min(from_disk_s(lambda each=each: read_large(each), large) for _ in range(3)) / 500
    )
    print(f"{name}: {units.text(item_s, 's')} an item (measured)")

# %% [markdown] tags=["explain"]
# At a random place an item cost about what a small file did on the machine of this page: each is a request of its own. But training
# wants its items mixed. So one mixes the order of the shards, reads each in order, and draws items from a buffer (an exercise).
# [WebDataset](https://github.com/webdataset/webdataset) keeps shards as tar files. The
# [appendix](appendix/10_feeding_the_accelerator.ipynb) divides them among workers.

# %% [markdown]
# ## Part 6: copy ahead
#
# - A GPU has a memory of its own: each batch is copied
# - From [page-locked memory](glossary.md#page-locked-memory) (pinned) it reads by itself
# - Then `non_blocking=True` lets your program go on
#
# The system may move an ordinary page, so a copy from an ordinary page first goes to a locked one
# ([PyTorch's tutorial](https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html)). A locked page stays where it is, and the
# GPU fetches it by [direct memory access](glossary.md#direct-memory-access). `pin_memory=True` puts batches there.
#
# A GPU does what you queue in a *stream*, one thing after the other. Two streams may run at the same time. An *event* is a mark in a
# stream: another stream can wait for it, and your program need not.
#
# `PlayedCuda` has these by `torch.cuda`'s names, on a clock that is played: nothing sleeps, and the times are made up and exact. A copy takes
# 30 ms, or 15 ms from pinned memory, and a step 20 ms. Each step ends with `loss.item()`, so your program waits for it.


# %%
def play(copies, pinned):
    cuda = input_pipeline.PlayedCuda(copy_s=0.015, pageable_s=0.030, step_s=0.020)
    for there in copies(cuda.batches(6, pinned=pinned), cuda):
        cuda.step(there)
        cuda.synchronize()  # loss.item()
    return cuda


def copied(batches, cuda, non_blocking=False):
    for batch in batches:
        yield batch.to("cuda", non_blocking=non_blocking)


def copied_non_blocking(batches, cuda):
    return copied(batches, cuda, non_blocking=True)


pageable = play(copied, pinned=False)
print(f"pageable: {1000 * pageable.from_step_to_step_s:.0f} ms from step to step (simulated)")


# %%
def stepped(function):
    cuda = play(function, pinned=True)
    steps = [int(each.label) for each in cuda.activities if each.kind == "computing"]
    return steps, round(1000 * cuda.from_step_to_step_s), list(cuda.faults)


# %% tags=["predict", "slide", "slide-output"] minutes=1 headline="Pinned and non-blocking: is the copy hidden?" axis=[0, 0.08]
non_blocking_time = helpers.predict(
    "Pinned memory and non_blocking=True: how long from step to step?", "s"
)
non_blocking_time

# %% tags=["run"]
non_blocking = play(copied_non_blocking, pinned=True)

# %% tags=["look"]
non_blocking_time.reveal(modelled=0.015 + 0.020, simulated=non_blocking.from_step_to_step_s)

# %% [markdown] tags=["explain"]
# Still the sum. `non_blocking` let your program go on, and it went to wait for the step. It queued the next copy only after that; in the
# same stream the copy would have run after the step anyway. So two things are missing: a stream for the copies, and a copy that is
# queued before the step that it runs beside.
#
# **Your turn.** A stream has `record_event()`, which returns the event, and `wait_event(event)`. One thing more: memory belongs to the
# stream on which it was made. When you drop a batch, a later copy may overwrite it while the step still reads it.
# `batch.record_stream(stream)` prevents that. (Where each step waits, as here, all would go well without. A loop that does not wait needs it.)


# %% tags=["yours"] yours="copied_ahead"
def copied_ahead(batches, cuda):
    """Yield each batch on the device; the next copy is queued before, on its own stream."""
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


# %% checks="copied_ahead"
asked = exercises.Checks("Copies ahead of the steps", copied_ahead)
whole, early = [*range(6)], "step 0 began before its batch was there"
unsafe = "batch 0 was not recorded on the stream of its step"
slips = {
    (tuple(whole), 35, ()): "Copy and step take turns: queue the next copy before you yield",
    (tuple(whole), 20, (unsafe,)): "record_stream: tell the memory who else reads it",
    (tuple(whole), 20, (early,)): "Let the step's stream wait for the event of its copy",
    (tuple(whole), 20, (early, unsafe)): "Both are missing: wait_event, record_stream",
    (tuple(whole[:-1]), 20, ()): "The last batch is still on its way: yield it too",
}
expected = (whole, 20, [])
asked.returns(
    "six steps, 20 ms apart, no fault", (), call=stepped, expected=expected, mistakes=slips
)
copied_ahead = asked.settle()


# %% wrong="copied_ahead" says="Let the step's stream wait"
def copied_ahead(batches, cuda):
    copies, before = cuda.Stream(), None
    for batch in itertools.chain(batches, [None]):
        if batch is not None:
            with cuda.stream(copies):
                coming = batch.to("cuda", non_blocking=True)
        if before is not None:
            before.record_stream(cuda.current_stream())
            yield before
        before = coming


# %% wrong="copied_ahead" says="tell the memory who else reads it"
def copied_ahead(batches, cuda):
    copies, before = cuda.Stream(), None
    for batch in itertools.chain(batches, [None]):
        if batch is not None:
            with cuda.stream(copies):
                coming = batch.to("cuda", non_blocking=True), copies.record_event()
        if before is not None:
            cuda.current_stream().wait_event(before[1])
            yield before[0]
        before = coming


# %% wrong="copied_ahead" says="queue the next copy before you yield"
def copied_ahead(batches, cuda):
    copies = cuda.Stream()
    for batch in batches:
        with cuda.stream(copies):
            there = batch.to("cuda", non_blocking=True)
        cuda.current_stream().wait_stream(copies)
        there.record_stream(cuda.current_stream())
        yield there


# %% tags=["look", "slide", "slide-output"] minutes=2 headline="The copy hides on a stream of its own, one batch ahead"
ahead = play(copied_ahead, pinned=True)
names = {"default stream": "two: for steps", "stream 1": "two: for copies"}
spans = [dataclasses.replace(each, lane="one stream") for each in non_blocking.activities]
spans += [dataclasses.replace(each, lane=names[each.lane]) for each in ahead.activities]
drawn = plotting.gantt(spans, title="One stream, and two with copies ahead (played)")
plotting.show(drawn, alt="In one stream copy and step take turns; in two they run together.")

# %% [markdown] tags=["explain"]
# Sum against maximum once more: 30 + 20, then 15 + 20, then the longer of 15 and 20. Were the copy the longer one, the device would
# wait for copies, and no worker could help. Your function uses nothing but `torch.cuda`'s names. So give it that, where there is one
# (this course has no run of it on a GPU yet):

# %% tags=["nbval-ignore-output"]
if device == "cuda":
    pinned = (torch.rand(64, 3, 96, 96).pin_memory() for _ in range(6))
    print("on your GPU:", [batch.device.type for batch in copied_ahead(pinned, torch.cuda)])
else:
    print("no GPU here: a batch is where it is needed, and nothing is copied")
folder.cleanup()

# %% [markdown] tags=["explain"]
# The [appendix](appendix/10_feeding_the_accelerator.ipynb) has what else belongs here: four runs that tell one cause from another, one disk for
# all workers, and saving a [snapshot](glossary.md#snapshot) of a training while it goes on. The [exercises](exercises/10_feeding_the_accelerator_exercises.ipynb) play the queue by hand,
# divide a stream of items among workers, mix shards, and ask for a pipeline of your own.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. In turn is a sum, at the same time a maximum.
# 2. Workers raise the rate; workers times prefetch factor cover what is late.
# 3. One large file in order; the next copy on its own stream.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A batch is made in $t_b$, a step takes $t_d$, a copy $t_c$, a hand-over $h$. There are $W$ workers on $K$ cores, with prefetch factor $P$.
#
# | quantity | formula |
# |---|---|
# | busy share | $t_d / t_{step}$ |
# | no workers | $t_{step} = t_b + t_d$ |
# | $W$ workers, items that wait | $t_{step} = \max(t_b / W,\; h + t_d)$ |
# | items that compute | $t_b / \min(W, K)$ in place of $t_b / W$ |
# | workers that suffice on average | $\lceil t_b / t_d \rceil$ |
# | batches under way, at most | $W P$ |
# | wait for a rare late batch of $t_l$ | $\max(0, t_l - W P\, t_d)$ |
# | step and copy in one stream | $t_c + t_d$ |
# | copied ahead on another stream | $\max(t_c, t_d)$ |
