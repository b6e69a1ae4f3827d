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
#       - measure|measured for which share of the time a training loop computes
#       - write|wrote a loader, from its thread and its workers' loop to the order of its batches
#       - choose|chose workers for the rate, and enough batches under way for a delay
#       - put|put many small files into one shard
#       - find|found what workers spoil without an error
# ---

# %% [markdown] tags=["objectives"]
# # Feeding the accelerator
#
# Two workers make batches of photos for a GPU. Suppose that a batch takes a worker 10 ms if its photos lie on the disk of your machine. In every
# seventh batch some photos are missing there and must come across the network, so this batch takes 100 ms. Seven batches take a worker 6 × 10 +
# 100, or 160 ms, which is 22.9 ms per batch, and two workers together can bring a batch every 11.4 ms. The GPU needs 20 ms for a training step
# on each batch. On average, then, the workers are almost twice as fast as they have to be.
#
# Two rules hold. The GPU uses the batches in order. And a worker that has finished a batch keeps it until the GPU takes it, and only then begins its
# next one. Is that enough?
#
# A GPU that waits costs as much rent as one that computes, and input takes much work. Google recorded millions of training jobs for a month, and
# a fifth of them spent more than a third of their compute time on their input ([Murray and others](https://arxiv.org/abs/2101.12127), "tf.data",
# 2021, published).
#
# In the lessons so far each device had its next batch as soon as it asked. Now we look at the way to the device, from the disk through the
# processor and its memory to the bus. PyTorch's `DataLoader` manages it with half a dozen arguments that most people copy from somewhere. You
# will write its inside and then know what to set. You need no GPU, because in the experiments that we call *simulated* the GPU and the network
# only sleep, whereas the loader and the clock are real. The simulated and the measured times in the text come from the machine of this page, a
# shared server with two cores. The outputs are your machine's once you have run the page.

# %% tags=["hide-input"]
import itertools
import pathlib
import queue
import tempfile
import threading
import time
import warnings

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

import helpers
from helpers import exercises, plotting, units
from helpers.studies import input_pipeline

check = exercises.checks_of("feeding_the_accelerator")
warnings.filterwarnings("ignore", message="This DataLoader will create")  # more than cores


# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# Is it enough to be fast on average?
#
# - Two workers make batches, and every seventh is late
# - On average they are almost twice as fast as needed
# - The GPU takes the batches in order
# - A worker keeps its batch until the GPU takes it
#
# Write down a number before you go on.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 100]
bet = helpers.predict(
    "If two workers feed the GPU by these rules, for which share of the time does it compute?",
    "%",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A timer in the loop says who waits for whom"
# ## Part 1: a timer for your loop
#
# Is your GPU starved? We begin with your own training loop, because the usual displays do not answer the question.
#
# - A loop waits for a batch, then it takes a step
# - A timer adds up the two kinds of time
# - The steps' part of the sum is the [busy share](glossary.md#busy-share)
#
# A loss curve over steps does not show how long each step waits. `nvidia-smi` shows for which share of the time at least one kernel was running
# ([NVML documentation](https://docs.nvidia.com/deploy/nvml-api/structnvmlUtilization__t.html)), so it can tell you that the GPU waits, but not for whom.
#
# A timer in the loop can tell. It reads the clock when the loader has delivered a batch and again when the step has ended, and it adds up the
# two kinds of time. There is one trap. A GPU works through a queue, so PyTorch often returns long before the step has ended. The timer therefore
# calls `torch.cuda.synchronize()` before it reads the clock, wherever there is a GPU. (This keeps the loop from preparing the next batch
# meanwhile, so without workers a timed loop can wait a little more than the same loop untimed.)
#
# > busy share = time in steps / (time in steps + time waiting for batches)
#
# **Your turn.** Write the timer. It goes through `batches` and calls `step(batch)` for each, and it fits around any loader. Read the clock with
# `time.perf_counter()`.


# %% tags=["yours"] yours="step_times" takes=8
def step_times(batches, step):
    """Return the seconds of waiting for batches and the seconds in steps."""
    waiting_s = stepping_s = 0.0
    ended_s = time.perf_counter()
    for batch in batches:
        arrived_s = time.perf_counter()
        step(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        waiting_s += arrived_s - ended_s
        ended_s = time.perf_counter()
        stepping_s += ended_s - arrived_s
    return waiting_s, stepping_s


# %% checks="step_times"
step_times = check(step_times)


# %% wrong="step_times" says="PyTorch returned before the step had ended"
def step_times(batches, step):
    waiting_s = stepping_s = 0.0
    ended_s = time.perf_counter()
    for batch in batches:
        arrived_s = time.perf_counter()
        step(batch)
        waiting_s += arrived_s - ended_s
        ended_s = time.perf_counter()
        stepping_s += ended_s - arrived_s
    return waiting_s, stepping_s


# %% wrong="step_times" says="count each wait from the end of the step before it"
def step_times(batches, step):
    waiting_s = stepping_s = 0.0
    began_s = time.perf_counter()
    for batch in batches:
        arrived_s = time.perf_counter()
        step(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        waiting_s += arrived_s - began_s
        stepping_s += time.perf_counter() - arrived_s
    return waiting_s, stepping_s


# %% wrong="step_times" says="Return the waiting first"
def step_times(batches, step):
    waiting_s = stepping_s = 0.0
    ended_s = time.perf_counter()
    for batch in batches:
        arrived_s = time.perf_counter()
        step(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        waiting_s += arrived_s - ended_s
        ended_s = time.perf_counter()
        stepping_s += ended_s - arrived_s
    return stepping_s, waiting_s


# %% wrong="step_times" says="the cells below need tuple or list"
def step_times(batches, step):
    marks_s = [time.perf_counter()]
    for batch in batches:
        marks_s.append(time.perf_counter())
        step(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        marks_s.append(time.perf_counter())
    return torch.tensor(marks_s, dtype=torch.float64).diff().reshape(-1, 2).sum(0)


# %% right="step_times" style=1
def step_times(batches, step):
    marks_s = [time.perf_counter()]
    for batch in batches:
        marks_s.append(time.perf_counter())
        step(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        marks_s.append(time.perf_counter())
    spans_s = [after - before for before, after in itertools.pairwise(marks_s)]
    return [sum(spans_s[::2]), sum(spans_s[1::2])]


# %% right="step_times" style=2
def step_times(batches, step):
    finish = torch.cuda.synchronize if torch.cuda.is_available() else (lambda: None)
    total_s = {"waiting": 0, "step": 0}
    iterator, start_s = iter(batches), time.perf_counter()
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return tuple(total_s.values())
        for name in total_s:
            if name == "step":
                step(batch)
                finish()
            now_s = time.perf_counter()
            total_s[name] += now_s - start_s
            start_s = now_s


# %% [markdown]
# You can check the answer if you use the same batch again in every step. If the loop does not become faster, the loader was not the problem.
# ([Mohan and others](https://arxiv.org/abs/2007.06775), 2021, built their tool for data stalls on such differences.)
#
# Now suppose that no photo is on your disk, so that every batch takes 100 ms, and let the training loop make its batches itself, without any
# worker. The first steps are left out, because a loader needs a moment to get going.


# %%
def gpu_step(batch):
    time.sleep(0.020)  # the GPU computes


def distant_batches(count):
    for number in range(count):
        time.sleep(0.100)  # every batch comes across the network
        yield number


def steady(batches, step, warm_up, steps):
    """Return the seconds per step of waiting and of computing, after a warm-up."""
    batches = iter(batches)
    step_times(itertools.islice(batches, warm_up), step)
    waiting_s, stepping_s = step_times(itertools.islice(batches, steps), step)
    return waiting_s / steps, stepping_s / steps


# %% tags=["hide-input", "nbval-ignore-output"]
def busy_percent(times_s):
    waiting_s, stepping_s = times_s
    return 100 * stepping_s / (waiting_s + stepping_s)


def as_ms(seconds):
    return f"{1e3 * seconds:.3g} ms"


in_turn = steady(distant_batches(12), gpu_step, warm_up=2, steps=10)
print(f"waiting {as_ms(in_turn[0])}, step {as_ms(in_turn[1])}", end=", ")
print(f"busy {busy_percent(in_turn):.0f} % (simulated)")

# %% [markdown]
# The timer finds about 100 ms of waiting for each step of 20 ms, and a busy share of 20 / 120, or 17 %. A GPU that waits for its data suffers from
# [starvation](glossary.md#starvation). This one starves because loader and GPU take turns. While the GPU computes nobody makes a batch, and while a
# batch is made nobody computes.
#
# So let a *thread*, which runs beside your program in the same memory, make the next batches during the step. It puts them into a queue with a limited
# number of places. The `put` of such a queue waits while the queue is full, and its `get` waits while it is empty.
#
# **Your turn.** Write the generator that keeps `depth` batches ready. After the last batch the thread has to put something into the queue that tells the
# generator to stop.


# %% tags=["yours"] yours="prefetched" takes=10
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
prefetched = check(prefetched)


# %% wrong="prefetched" says="put something into the queue that ends it"
def prefetched(batches, depth):
    ready = queue.Queue(maxsize=depth)

    def fill():
        for batch in batches:
            ready.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


# %% wrong="prefetched" says="give the queue depth places"
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


# %% right="prefetched" style=1
def prefetched(batches, depth):
    ready = queue.Queue(depth)

    def fill():
        for batch in batches:
            ready.put((True, batch))
        ready.put((False, None))

    threading.Thread(target=fill, daemon=True).start()
    more, batch = ready.get()
    while more:
        yield batch
        more, batch = ready.get()


# %% right="prefetched" style=2
def prefetched(batches, depth):
    filled, empty, made = threading.Semaphore(0), threading.Semaphore(depth), []

    def fill():
        for batch in batches:
            empty.acquire()
            made.append([batch])
            filled.release()
        made.append(None)
        filled.release()

    threading.Thread(target=fill, daemon=True).start()
    for place in itertools.count():
        filled.acquire()
        if made[place] is None:
            return
        empty.release()
        yield made[place].pop()


# %% [markdown]
# A batch takes 100 ms and a step 20 ms, as before. Now both happen at the same time.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 100]
ahead_share = helpers.predict(
    "If a thread keeps up to two batches ready, "
    "for which share of the time does the GPU compute?",
    "%",
)
ahead_share

# %% tags=["run"]
ahead = {
    depth: steady(prefetched(distant_batches(12), depth), gpu_step, warm_up=2, steps=10)
    for depth in (2, 8)
}

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The sum has become the larger of the two times"
ahead_share.reveal(modelled=100 * 20 / 100, simulated=busy_percent(ahead[2]))
print(f"in turn {1e3 * sum(in_turn):.1f} ms from step to step", end=", ")
print(", ".join(f"{depth} places {1e3 * sum(ahead[depth]):.1f} ms" for depth in ahead))

# %% tags=["hide-input"]
assert min(map(sum, ahead.values())) < 0.95 * sum(in_turn)

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=1 headline="In turn is a sum, overlapped a maximum"
figure = input_pipeline.draw_overlap(0.100, 0.020, steps=4)
plotting.show(figure, alt="In turn takes the sum of both times, overlapped the longer one.")

# %% [markdown] tags=["explain"]
# In turn it was 120 ms from step to step, and with the thread it is 100 ms (simulated). Times that take turns add up, but of times that overlap only the
# larger one remains. With eight places instead of two it is 100 ms again, because the thread brings one batch in the time in which the GPU could take
# five, so the queue is always empty. And since a sum of two times is at most twice the larger one, overlapping them can at best double the speed.
#
# **To remember.** Measure the waiting and the step before you change anything. One thread that works ahead replaces their sum by the larger time, here
# 100 ms instead of 120, and never brings more than a factor of 2.
#
# The GPU is still idle for four fifths of the time, because a single maker is too slow. How many do you need?

# %% [markdown]
# ## Part 2: workers
#
# How many workers are enough? We ask this next, because a single maker needs five times as long for a batch as the GPU.
#
# - A worker makes batches and nothing else
# - It gets orders, each a number and a list of items
# - It answers with the number and the batch
#
# For batches that only wait, more threads would do. But in the usual Python only one thread at a time runs Python code
# ([its lock](https://docs.python.org/3/glossary.html#term-global-interpreter-lock)), so the *workers* of a `DataLoader` are processes, each with a Python of its
# own. A worker receives orders, each with a number and a list of items, and answers with the number and the finished batch.
#
# **Your turn.** Write the loop of a worker. `dataset[i]` makes item `i`, and `default_collate`, PyTorch's own, makes a batch of a list of items.


# %% tags=["yours"] yours="worker_loop" takes=6
def worker_loop(dataset, orders, done):
    """Answer each order (number, items) by (number, batch) in ``done``; stop at None."""
    while (order := orders.get()) is not None:
        number, items = order
        done.put((number, default_collate([dataset[item] for item in items])))


# %% checks="worker_loop"
worker_loop = check(worker_loop)


# %% wrong="worker_loop" says="Go on until the order is None"
def worker_loop(dataset, orders, done):
    order = orders.get()
    if order is not None:
        number, items = order
        done.put((number, default_collate([dataset[item] for item in items])))


# %% wrong="worker_loop" says="Send the number as well"
def worker_loop(dataset, orders, done):
    while (order := orders.get()) is not None:
        done.put(default_collate([dataset[item] for item in order[1]]))


# %% wrong="worker_loop" says="A batch is one tensor"
def worker_loop(dataset, orders, done):
    while (order := orders.get()) is not None:
        number, items = order
        done.put((number, [dataset[item] for item in items]))


# %% right="worker_loop" style=1
def worker_loop(dataset, orders, done):
    for number, items in iter(orders.get, None):
        done.put([number, default_collate(list(map(dataset.__getitem__, items)))])


# %% right="worker_loop" style=2
def worker_loop(dataset, orders, done):
    while True:
        order = orders.get()
        if order is None:
            break
        made = []
        for place in order[1]:
            made.append(dataset[place])
        done.put((order[0], torch.utils.data.default_collate(tuple(made))))


# %% [markdown]
# One worker may be quicker than another, so the training keeps a batch that comes early until it is its turn. **Your turn.** Hand the batches out in
# order, each as soon as it may go.


# %% tags=["yours"] yours="in_order" takes=8
def in_order(arrived):
    """Yield batches 0, 1, 2, ... from pairs (number, batch) that arrive in any order."""
    early, due = {}, 0
    for number, batch in arrived:
        early[number] = batch
        while due in early:
            yield early.pop(due)
            due += 1


# %% checks="in_order"
in_order = check(in_order)


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


# %% right="in_order" style=1
def in_order(arrived):
    early, arriving = {}, iter(arrived)
    for due in itertools.count():
        while due not in early:
            pair = next(arriving, None)
            if pair is None:
                return
            early[pair[0]] = pair[1]
        yield early.pop(due)


# %% right="in_order" style=2
def in_order(arrived):
    waiting, due = [], 0
    for pair in arrived:
        waiting = sorted([*waiting, pair], key=lambda each: each[0])
        while waiting and waiting[0][0] == due:
            yield waiting.pop(0)[1]
            due += 1


# %% [markdown]
# Put together, the two functions are a loader. Worker `i % workers` makes batch `i`, and each batch that is taken sends off the next order. Yours runs its
# workers as threads, which is enough here because our items only wait.


# %% tags=["slide", "slide-code"] minutes=2 headline="The whole loader: orders go out, batches come back in order" lines=[2, 13]
def load(dataset, batch_size, workers, prefetch=2):
    orders = list(enumerate(torch.arange(len(dataset)).split(batch_size)))
    queues, done = [queue.Queue() for _ in range(workers)], queue.Queue()
    for own in queues:
        given = (dataset, own, done)
        threading.Thread(target=worker_loop, args=given, daemon=True).start()
    arrived = (done.get() for _ in range(len(orders)))  # an answer per order
    orders += [None] * (workers * prefetch)  # None ends a worker, without an answer
    for place in range(workers * prefetch):  # at the start, prefetch orders per worker
        queues[place % workers].put(orders[place])
    for place, batch in enumerate(in_order(arrived), start=workers * prefetch):
        queues[place % workers].put(orders[place])
        yield batch


# %% [markdown]
# Its time can be worked out. With four workers a batch arrives every 100 / 4, or 25 ms, which is longer than the step of 20 ms, so the workers
# decide. With five workers a batch arrives every 20 ms, and a sixth has nothing to add. The time to hand a batch over is left out for now.
#
# > time from step to step = the larger of (time of a batch / workers) and (time of a step)

# %%
tried = {}
for workers in (1, 2, 4, 5, 6):
    distant = input_pipeline.WaitingItems(6 * workers, wait_s=0.100)
    loaders = load(distant, 1, workers), DataLoader(distant, num_workers=workers)
    how = {"warm_up": 2 * workers, "steps": 4 * workers}
    tried[workers] = [sum(steady(loader, gpu_step, **how)) for loader in loaders]

# %% tags=["hide-input", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Five workers suffice, and a sixth adds nothing"
columns = ["modelled", "your loader (simulated)", "DataLoader (simulated)"]
rows = {}
for workers, (own_s, library_s) in tried.items():
    modelled_s = input_pipeline.model_feeding(0.100, 0.020, workers=workers).step_s
    rows[workers] = [f"{1e3 * step_s:.1f} ms" for step_s in (modelled_s, own_s, library_s)]
assert min(tried[5]) < 0.5 * min(tried[1])
pd.DataFrame(rows, index=columns).T.rename_axis("workers")

# %% [markdown] tags=["explain"]
# This is [Little's law](glossary.md#littles-law) from [lesson 01](01_memory_hierarchy.ipynb). To deliver one batch per 20 ms when each takes 100 ms, five must be
# in the making at any moment.
#
# Workers that wait need no core, but workers that compute do. How long does it take to read, decode and crop a JPEG photo of 384 × 384 pixels?

# %% tags=["hide-input", "nbval-ignore-output"]
folder = tempfile.TemporaryDirectory()
photos = input_pipeline.write_images(folder.name, images=10, side=384)
cost = input_pipeline.item_cost(input_pipeline.DecodedImages(photos, crop=224), items=10)
print(f"a photo takes {1e3 * cost.median_s:.3g} ms on one core (measured)", end=", ")
print(f"{100 * cost.processor_share:.0f} % of it computing")
print(f"2,600 photos per second keep {2600 * cost.median_s:.2g} cores busy")

# %% [markdown]
# On the machine of this page a photo takes 2.90 ms, all of it computing. A published benchmark has 577 photos of ImageNet per second, or 1.73 ms
# each, for Pillow with one thread on a Xeon Platinum 8581C ([Iglovikov and Kosarevsky](https://arxiv.org/abs/2605.08731), 2026). An A100 can
# train ResNet-50 on 2,600 photos per second if nobody has to load them (a user's benchmark, [timm issue
# 1491](https://github.com/huggingface/pytorch-image-models/issues/1491), published). These photos need 2,600 × 2.90 ms, or 7.5 s of computing in
# every second, so eight cores must do nothing else. With only four cores, a larger `num_workers` changes nothing, and you must decode faster,
# store the photos smaller or decoded, or let the GPU decode them.
#
# A third kind of item is in memory already. LeNet trains on the processor itself, with batches of 64 digits. A batch that comes from another process has to
# be received, and this [hand-over](glossary.md#hand-over) takes time of the training's own process.

# %%
train = input_pipeline.training_step(helpers.LeNet())
alone = steady(helpers.make_MNIST_loader(64), train, warm_up=8, steps=50)
settings = input_pipeline.LoaderSettings(64, workers=2)
handover_s = input_pipeline.measure_handover(64 * 28 * 28 * 4, settings)

# %% tags=["hide-input", "nbval-ignore-output"]
print(f"LeNet: step {as_ms(alone[1])}, waiting {as_ms(alone[0])}", end=", ")
print(f"busy {busy_percent(alone):.0f} % (measured)")
print(f"hand-over of such a batch: {as_ms(handover_s)} (measured)")

# %% [markdown]
# The training waits little for its batch. Workers could still take over this little time, but the hand-over comes in its place.

# %% tags=["predict"]
lenet_share = helpers.predict(
    "With two workers instead of none, "
    "for which share of the time does LeNet's training compute?",
    "%",
)
lenet_share

# %% tags=["run"]
fed = steady(helpers.make_MNIST_loader(64, num_workers=2), train, warm_up=8, steps=50)

# %% tags=["look", "nbval-ignore-output"]
lenet_modelled = 100 * alone[1] / (alone[1] + handover_s)
lenet_share.reveal(modelled=lenet_modelled, measured=busy_percent(fed))

# %% [markdown] tags=["explain"]
# On the machine of this page a step takes 8.42 ms and waits 0.69 ms, so without workers the busy share is 92 %. The hand-over takes 1.65 ms, so
# the model says 8.42 / (8.42 + 1.65), or 83.6 %, and we measured 85.5 %. With workers the steps have a smaller share of the time, because
# receiving a batch takes longer than making it.
#
# **To remember.** You need as many workers as the time of a batch divided by the time of a step, rounded up, here 100 / 20 or 5. If the items compute, each
# worker also needs a core. If making a batch takes less time than the hand-over, 1.65 ms for a small batch here, use no workers.
#
# By this rule the two workers of the bet are enough, because 22.9 / 20 is less than 2. Are they?

# %% [markdown] tags=["slide"] minutes=2 headline="A GPU waits for the next batch, not for the average"
# ## Part 3: late batches
#
# What does a late batch cost? The rule of Part 2 uses an average, and a GPU does not wait for an average. It waits for the next batch in order.
#
# - Batches are used in order
# - A late batch holds up all after it
# - Meanwhile the GPU has what is under way
#
# Number the batches from 0, so that batch 6 is the first late one. A batch is under way if it is ordered but not yet taken. Back to the bet, with a real
# `DataLoader` and its [prefetch factor](glossary.md#prefetch-factor), which says how many batches each worker may have under way. The bet allows one.

# %% tags=["run"]
uneven = input_pipeline.WaitingItems(10_000, wait_s=0.010, late_every=7, late_s=0.100)


def two_workers(**how):
    loader = DataLoader(uneven, num_workers=2, **how)
    return steady(loader, gpu_step, warm_up=7, steps=28)


bet_times = two_workers(prefetch_factor=1)

# %% tags=["hide-input", "run"]
batch_s = [uneven.cost_s(number) for number in range(36)]


def played(prefetch):
    how = {"workers": 2, "prefetch_factor": prefetch, "warm_up": 7}
    return input_pipeline.simulate_feeding(batch_s, 0.020, **how)


def simulated(times_s):
    return f"{busy_percent(times_s):.0f} %", f"{1e3 * sum(times_s):.1f} ms"


# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The average rate was enough, and the GPU waits"
bet.reveal(modelled=100 * played(1).busy_share, simulated=busy_percent(bet_times))

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Batch 7 lies ready and may not go" layout="steps"
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
# Only two batches may be under way, so batch 6 is ordered when the GPU takes batch 4. At that moment the GPU has two steps of work, on batches 4 and 5, which
# last 40 ms, but batch 6 takes 100 ms. For the other 60 ms the GPU waits. The second worker cannot help. It soon has batch 7 ready, but the GPU may not use
# batch 7 before batch 6, and until the GPU takes it, this worker gets no new order.
#
# So in every seven steps the GPU computes for 140 ms and waits for 60, and its share is 140 / 200, or 70 % (modelled). A real `DataLoader` reached 66 % on the
# machine of this page (simulated).
#
# The remedy is to order earlier. With a prefetch factor of 2 there are four batches under way in all, so batch 6 is ordered four steps before its turn. These
# steps last 80 ms, the GPU waits only 20 ms, and its share is 140 / 160.
#
# > wait for a rare late batch = its time − workers × prefetch factor × time of a step, or 0 if that is negative

# %% tags=["hide-input", "look"]
for prefetch in (1, 2, 3, 4):
    wait_ms = max(0, 100 - 2 * prefetch * 20)
    print(
        f"prefetch factor {prefetch}: {2 * prefetch} under way, waits {wait_ms} ms,",
        f"busy {100 * played(prefetch).busy_share:.1f} % (modelled)",
    )

# %%
by_factor = {factor: two_workers(prefetch_factor=factor) for factor in (1, 2, 3, 4)}
any_order = two_workers(prefetch_factor=1, in_order=False)

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="More batches under way absorb the late one"
rows = {}
for factor, times_s in by_factor.items():
    rows[f"{factor}"] = [f"{100 * played(factor).busy_share:.1f} %", *simulated(times_s)]
rows["1, any order"] = ["", *simulated(any_order)]
shares = {factor: busy_percent(times_s) for factor, times_s in by_factor.items()}
assert shares[1] + 5 < max(shares[3], shares[4])
columns = ["modelled busy", "DataLoader busy", "step to step (simulated)"]
pd.DataFrame(rows, index=columns).T.rename_axis("prefetch factor")

# %% [markdown] tags=["explain"]
# With a factor of 3 the 9 % that are missing are not late batches. From one step to the next it took 22.2 ms instead of 20, as in the last rows
# of the table in Part 2, probably because of the hand-over, since your own loader, whose threads hand nothing from process to process, lost only
# 0.3 to 0.9 ms. And a step of 20 ms takes 20.3 here (Part 1), so its share is 20.3 / 22.2, or 91 %.
#
# Little's law gives the number here too. To cover a delay of 100 ms at one batch per 20 ms, five batches must be under way. In Part 2 every
# batch took 100 ms, so all five were being made at the same time and needed five workers. Here only one in seven takes so long. The others are
# soon ready and wait in memory for their turn, so two workers suffice. A batch of 256 photos in float32, with 224 × 224 pixels and three
# colours, takes 154 MB. Eight workers with the default factor of 2 may hold sixteen of them, or 2.5 GB, in the memory that processes share. A
# Docker container has 64 MB of it unless you ask for more, which is why many a first training in a container ends with `Bus error`.
#
# You can also give up the order. With `in_order=False` the GPU takes whichever batch is ready. While one worker is late, the other needs only 10 ms for a batch
# and so has one ready for every step of 20 ms. Even a prefetch factor of 1 then reached 90 % (simulated, the last row). But now the clock decides
# which batch comes first, so two runs with the same seed may train in different orders.
#
# Turn the loader yourself. It starts at the bet. Where the two lines meet, late batches cost nothing. Keep the late batch at 100 ms, and find the workers and
# the prefetch factor with the fewest batches under way that never wait.

# %% tags=["hide-input"]
input_pipeline.explore_loader()

# %% [markdown]
# **To remember.** The number of workers sets the rate, and workers × prefetch factor covers delays. To hide a delay of 100 ms behind steps of 20 ms, have five
# batches under way.
#
# So far a batch simply took 10 or 100 ms. What are the bytes doing in that time?

# %% [markdown] tags=["slide"] minutes=2 headline="A file each, or all items in one shard"
# ## Part 4: the way of the bytes
#
# How fast do the bytes travel? They travel twice, from the disk to memory and from memory to the GPU, and we begin with the disk, because there most of the
# time is lost.
#
# - 2,000 digits of 784 bytes each
# - Each in a file of its own, or all in one *shard*
# - A shard is one file with a table of where each item begins
#
# First make sure that your folder is not a part of main memory, as the temporary folder of many Linux systems is (tmpfs). The lesson asks the
# system and tells you, because the times do not give it away. In a test on such a folder, many small files still took more than 20 times as long
# as one large one (measured), although no disk took part. On a real disk we first tell the system to forget our files, since it keeps what was
# just written in memory, in its [page cache](glossary.md#page-cache).

# %% tags=["hide-input", "nbval-ignore-output"]
disk = input_pipeline.measure_disk(folder.name)
if disk.filesystem in input_pipeline.MEMORY_FILESYSTEMS:
    print(f"The temporary folder is main memory ({disk.filesystem}), and no disk takes part.")
    print("Set TMPDIR to a folder on a disk and start again to measure one.")
elif disk.filesystem:
    print(f"The temporary folder lies on a file system of type {disk.filesystem}.")
else:
    print("This system does not say whether the temporary folder lies on a disk,")
    print("and may read what was just written from memory.")
print(f"one file of 784 bytes: {units.text(disk.request_s, 's')} (measured)")
print(f"one file of 64 MiB: {units.text(disk.bandwidth_bytes_per_s, 'B/s')} (measured)")
print(f"a request takes as long as {units.text(disk.equal_bytes, 'B')}")

# %% [markdown]
# **Your turn.** Write the shard. `items` is a list of bytes, and `file` is open for writing.


# %% tags=["yours"] yours="write_shard" takes=5
def write_shard(items, file):
    """Write all items (bytes) into ``file``; return where each begins, and last the end."""
    for item in items:
        file.write(item)
    return [0, *itertools.accumulate(len(item) for item in items)]


# %% checks="write_shard"
write_shard = check(write_shard)


# %% wrong="write_shard" says="Where does the last item end?"
def write_shard(items, file):
    starts = []
    for item in items:
        starts.append(file.tell())
        file.write(item)
    return starts


# %% wrong="write_shard" says="add up the lengths"
def write_shard(items, file):
    starts = [0]
    for item in items:
        file.write(item)
        starts.append(len(item))
    return starts


# %% wrong="write_shard" says="the cells below need list or tuple"
def write_shard(items, file):
    file.write(b"".join(items))
    return torch.tensor([0, *itertools.accumulate(map(len, items))])


# %% right="write_shard" style=1
def write_shard(items, file):
    starts = [file.tell()]
    for item in items:
        file.write(item)
        starts.append(starts[-1] + len(item))
    return tuple(starts)


# %% right="write_shard" style=2
def write_shard(items, file):
    file.writelines(items)
    return np.cumsum([0, *map(len, items)]).tolist()


# %%
digits = [np.random.default_rng(number).bytes(784) for number in range(2000)]
paths = [pathlib.Path(folder.name, f"{number:05}.raw") for number in range(2000)]
shard = pathlib.Path(folder.name, "shard")
for path, digit in zip(paths, digits, strict=True):
    path.write_bytes(digit)
with shard.open("wb") as file:
    starts = write_shard(digits, file)


def read_files():
    return [path.read_bytes() for path in paths]


def read_shard():
    content = shard.read_bytes()
    return [content[start:end] for start, end in itertools.pairwise(starts)]


# %% tags=["hide-input"]
assert read_files() == read_shard() == digits

# %% [markdown]
# A small file takes a request of its own. The shard takes one request and its 1.57 MB. Both numbers that you need are printed above.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000]
disk_ratio = helpers.predict(
    "From the disk, how many times as long as one shard do the 2,000 small files take?", "x"
)
disk_ratio

# %% tags=["run"]
files_s = input_pipeline.read_from_disk_s(read_files, paths)
shard_s = input_pipeline.read_from_disk_s(read_shard, [shard])
modelled_s = 2000 * disk.request_s, disk.request_s + 2000 * 784 / disk.bandwidth_bytes_per_s

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Small files cost requests, not bytes"
disk_ratio.reveal(modelled=modelled_s[0] / modelled_s[1], measured=files_s / shard_s)
print(f"files {units.text(files_s, 's')}, shard {units.text(shard_s, 's')} (measured)")

# %% tags=["hide-input", "look", "nbval-ignore-output"]
assert files_s > 4 * shard_s
in_order_s, at_random_s = disk.in_order_s, disk.at_random_s
print(f"an item of a large file: {units.text(in_order_s, 's')} in order", end=", ")
print(f"{units.text(at_random_s, 's')} at a random place (measured)")
bytes_s = 110e3 / disk.bandwidth_bytes_per_s
print(f"a photo of 110 kB: {units.text(disk.request_s, 's')} for its request", end=", ")
print(f"{units.text(bytes_s, 's')} for its bytes", end=", ")
print(f"together {1 + disk.request_s / bytes_s:.2g} times its bytes alone")

# %% [markdown] tags=["explain"]
# On our disk the small files need 2,000 × 42.3 µs, or 85 ms. The shard needs one request of 42 µs and 1.57 MB / 0.89 GB/s, together 1.8 ms, so
# the model says 47 times. We measured 104 and 2.92 ms, which is 36 times. Small files are so slow because each costs a request, beside which its
# bytes hardly count. Bytes take as long as a request only if there are 42.3 µs × 0.89 GB/s, or 38 kB, of them. A photo of 110 kB takes 42 µs for
# its request and 124 µs for its bytes. In a shard only the 124 µs remain, and 166 / 124 is only about 1.3.
#
# A shard is fast only in order. An item at a random place of a large file took 51 µs, but 4.4 µs in order (measured). Training wants its items mixed, so mix
# the order of the shards, read each from front to back into a buffer, and draw from the buffer at random.
#
# Then the batch crosses the bus, at no more than 32 GB/s for an A100 (data sheet, 64 GB/s for both directions). The 154 MB of 256 photos take at
# least 4.8 ms, and a step on them takes 256 / 2,600 s, or 98 ms. If copy and step take turns, the copy is about 5 % of the time. They can
# overlap if the batch is in [page-locked memory](glossary.md#page-locked-memory) (or pinned memory), which the system may not move, so that the
# GPU can fetch it by itself ([direct memory access](glossary.md#direct-memory-access)). It is simpler to send less. As 8-bit integers the photos
# take 38.5 MB and 1.2 ms, and the GPU converts them.
#
# **To remember.** On our disk an item below about 40 kB costs its request and not its bytes, so put small items into shards and read these in order. Send
# photos as 8-bit integers, because float32 takes four times the bytes in every queue and on the bus.
#
# The batches now arrive in time. Are they the right ones?

# %% [markdown] tags=["slide"] minutes=2 headline="Each worker begins as a copy of your program"
# ## Part 5: copies
#
# What can workers spoil? We ask this last, because no timer shows it, and two of the three faults below raise no error.
#
# - On Linux a worker begins as a copy of your process
# - The dataset holds a generator of random numbers
# - By default each epoch starts new workers
#
# On Linux, up to Python 3.13, a worker begins as a *fork* of your process, an exact copy, and by default each epoch starts new workers. (A
# worker that is started in another way gets a copy of the dataset too.) Suppose that your dataset crops photos at random and holds a NumPy
# generator for that. An item here is only the random number of its crop. An epoch has sixteen items in four batches, and each of four workers
# makes one batch.


# %%
class Crops(Dataset):
    def __init__(self):
        self.random = np.random.default_rng(6)

    def __len__(self):
        return 16

    def __getitem__(self, item):
        return int(self.random.integers(2**62))


def numbers_of_two_epochs(**how):
    how |= {"multiprocessing_context": "fork"}  # else no worker could import this cell
    loader = DataLoader(Crops(), batch_size=4, num_workers=4, **how)
    return [number for _ in range(2) for batch in loader for number in batch.tolist()]


# %% [markdown]
# Each number is one of $2^{62}$, so no two are equal by chance.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 32]
different = helpers.predict(
    "Of the 32 random numbers that the four workers draw in two epochs, "
    "how many are different?",
    "numbers",
)
different


# %% tags=["run"]
def own_seed(worker):
    info = get_worker_info()
    info.dataset.random = np.random.default_rng(info.seed)


drawn, seeded = numbers_of_two_epochs(), numbers_of_two_epochs(worker_init_fn=own_seed)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Four workers draw the same numbers, twice"
different.reveal(modelled=4, counted=len(set(drawn)))
print(f"with a seed of its own in each worker: {len(set(seeded))} different numbers")

# %% [markdown] tags=["explain"]
# Only 4 (counted). All four workers started with the same generator, so each drew the same four numbers, and the new copies of the second epoch drew them
# again. Nothing fails, but you have an eighth of the variety that you think you have. In each worker PyTorch seeds its own generator, Python's and NumPy's
# global one, but it cannot know yours. Seed it in `worker_init_fn`.
#
# The copy also has a price in memory. A fork copies nothing at first. The processes share all pages, and the system copies a page, mostly of 4,096 bytes, only when one
# of them writes to it. Suppose that the dataset holds a list of a million paths, each a Python string, and the workers only read them.

# %% tags=["hide-input", "nbval-ignore-output"]
strings = input_pipeline.PathItems(1_000_000)
string_bytes = strings.stored_bytes / len(strings)
print(f"a path of 48 characters is a string of {string_bytes:.0f} bytes in this Python")

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 1000]
growth = helpers.predict(
    "When two workers have read all one million paths, "
    "by how many MB has the memory of the program grown?",
    "MB",
)
growth

# %% tags=["run"]
array = input_pipeline.PathItems(1_000_000, as_array=True)
with_strings = input_pipeline.measure_growth(strings, workers=2)
with_array = input_pipeline.measure_growth(array, workers=2)

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Who reads a Python string writes to its page"
grown_mb = []
if with_strings and with_array:
    pairs = zip(with_strings.grown_bytes, with_array.grown_bytes, strict=True)
    grown_mb = [(own - without) / 1e6 for own, without in pairs]
    assert grown_mb[1] > 100
growth.reveal(
    modelled=2 * strings.stored_bytes / 1e6, measured=grown_mb[1] if grown_mb else None
)
if grown_mb:
    print(f"after a tenth of the epoch {grown_mb[0] / grown_mb[1]:.0%} of it had come")
else:
    print("not measured here, because this system does not fork or does not say")

# %% tags=["hide-input", "look"]
print(f"in one array of bytes the paths take {array.stored_bytes:,} bytes, once for all")
del strings, array

# %% [markdown] tags=["explain"]
# On the machine of this page it has grown by 227 MB, or 113 MB per worker (measured against workers that read a NumPy array), so each worker has copied all
# strings, which have 112 bytes each. The reason is that Python counts the references to an object inside the object itself, so that even reading a string writes
# to its page. The growth comes early. A page holds 36 strings, so a worker that has read one string in twenty, at random places, has touched 1 − 0.95³⁶, or 84 %
# of the pages. Because two workers share the reading, that is after a tenth of the epoch, and 86 % of the growth had come by then (measured). With ten million
# paths and 16 workers the copies would take 18 GB. In a NumPy array of bytes, which is a single object, the million paths take 48 MB and stay shared.
#
# The third fault does raise an error. Let the tenth of twenty items be broken, in batches of four.


# %%
class Photos(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, item):
        if item == 9:
            raise ValueError("a broken file")
        return item


class MendedPhotos(Photos):
    broken = torch.zeros((), dtype=torch.int64).share_memory_()  # workers write to it as well

    def __getitem__(self, item):
        try:
            return super().__getitem__(item)
        except ValueError:
            self.broken.add_(1)
            return super().__getitem__(0)


# %%
def count_items(photos, goes_on):
    how = {"num_workers": 2, "multiprocessing_context": "fork"}
    batches, items = iter(DataLoader(photos, batch_size=4, **how)), 0
    while True:
        try:
            items += len(next(batches))
        except (StopIteration, ValueError) as error:
            if isinstance(error, StopIteration) or not goes_on:
                input_pipeline.end_workers(batches)
                return items


# %% tags=["hide-input", "look"]
print(f"a loop that ends with the error: {count_items(Photos(), goes_on=False)} items")
print(f"a loop that goes on: {count_items(Photos(), goes_on=True)} items")
print(f"caught where it is read: {count_items(MendedPhotos(), goes_on=False)} items", end=", ")
print(f"of which {MendedPhotos.broken} in place of a broken one")
folder.cleanup()

# %% [markdown] tags=["explain"]
# A `for` loop over the loader ends with the worker's error after two batches, or 8 items. If you catch the error and ask for the next batch, you get 16 items,
# because the broken one takes its whole batch with it (counted). Catch the error in `__getitem__` instead, count it, and return another item. You may need it,
# because even among ImageNet's 50,000 validation photos there is one that strict JPEG decoders reject (Iglovikov and Kosarevsky again, published).
#
# **To remember.** Give each worker its own seed. Keep long lists in arrays, because a million paths cost about 113 MB per worker (measured). Catch a broken item where
# it is read.
#
# The [appendix](appendix/10_feeding_the_accelerator.ipynb) has what else belongs here, such as all arguments of a `DataLoader`, copies that run beside the steps,
# streams of items, and saving a [snapshot](glossary.md#snapshot) of a training while it goes on. In the
# [exercises](exercises/10_feeding_the_accelerator_exercises.ipynb) you play the queue by hand, divide a stream among workers and mix a shard.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. In turn is a sum, at the same time a maximum.
# 2. Workers set the rate; batches under way cover delays.
# 3. Small items go into shards, and each worker gets a seed.
#
# Two workers could bring a batch every 11.4 ms, and still the GPU computes for only 70 % of the time by the model, and for 66 % with PyTorch's loader. A late
# batch takes 100 ms, and when it is ordered the GPU has only 40 ms of work. With a prefetch factor of 3 the GPU has 120 ms of work, so it does not wait for a
# late batch any more. With no photo on the disk every batch would take 100 ms, and then no prefetch factor helps, whereas five workers do.
#
# So first measure for which share of the time your loop waits. If the loader is too slow on average, it needs workers, cores or shards. If it is fast enough but
# uneven, it needs more batches under way.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A batch is made in $t_b$ seconds, a step takes $t_d$, the hand-over of a batch $t_h$. There are $W$ workers on $K$ cores, each with the prefetch factor $F$.
#
# | quantity | formula |
# |---|---|
# | busy share | $t_d / t_{step}$ |
# | no workers | $t_{step} = t_b + t_d$ |
# | $W$ workers, items that wait | $t_{step} = \max(t_b / W,\; t_h + t_d)$ |
# | items that compute | $t_b / \min(W, K)$ in place of $t_b / W$ |
# | workers that suffice on average | $\lceil t_b / t_d \rceil$ |
# | batches under way, at most | $W F$ |
# | wait for a rare late batch of $t_l$ | $\max(0, t_l - W F\, t_d)$ |
# | size at which bytes take as long as a request, of $t_r$ at the [bandwidth](glossary.md#bandwidth) $B$ | $t_r\,B$ |
