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
#     title: Beyond memory
#     needs: ["02", "11"]
#     objectives:
#       - tell|told a time that grows with the work from one that grows because a memory is full
#       - model|modelled the time of a layer that outgrows a cache
#       - find|found the largest batch that a memory holds, without running out of it
#       - predict|predicted which layers come from the disk when the weights do not fit
#       - choose|chose a batch size from its bytes and its images a second
#       - count|counted the batches that a data loader keeps in /dev/shm
# ---

# %% [markdown] tags=["objectives"]
# # Beyond memory
#
# Nine layers of weights lie in a file. The memory holds eight. A network runs through the nine, in order, again and again. It
# keeps what it used last.
#
# **The bet:** how many layers must be read from the disk in each pass?
#
# Models outgrow memories every year. A full memory does not always say so. A full [cache](glossary.md#cache) makes a program
# slower, a full RAM makes it very much slower or ends it, and a full [`/dev/shm`](glossary.md#shm) may end it with an error that does not even speak of
# memory. This lesson fills each of them, safely: what may go wrong runs in a process of its own.

# %%
import math
import os
import textwrap
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import helpers
from helpers import exercises, memory, operations, plotting, timing, units
from helpers.studies import data_movement, input_pipeline

device = "cuda" if torch.cuda.is_available() else "cpu"
allocator = helpers.steady_allocator()
MIB = 2**20

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 9]
bet = helpers.predict(
    "Nine layers, room for eight: how many are read from the disk in each pass?", "layers"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Divide by the work first"
# ## Part 1: slow, because memory is full?
#
# - A network grows, and from some size on its training is slow
# - "It no longer fits into memory" is the usual explanation
# - Divide the time by the work before you believe it
#
# LeNet's first fully connected layer has `hidden` outputs and its second one half as many, so the second has $h^2/2$ weights. How
# much longer is a training step with `hidden=4096` than with `hidden=128`? First count.


# %%
def weights_of(hidden):
    with torch.device("meta"):  # shapes without memory
        return sum(weight.numel() for weight in helpers.LeNet(hidden).parameters())


adam, hidden_sizes = {"optimizer": torch.optim.Adam}, (128, 1024, 2048, 4096)
weights = [weights_of(hidden) for hidden in hidden_sizes]
nets = [helpers.LeNet(hidden) for hidden in hidden_sizes]
counts = [operations.profile_ops(net, (128, 1, 28, 28), **adam) for net in nets]
flops = [each.forward_flops + each.backward_flops + each.optimizer_flops for each in counts]

# %%
for hidden, parameters, work in zip(hidden_sizes, weights, flops, strict=True):
    print(f"hidden={hidden}: {parameters:,} weights, {work / flops[0]:.1f} times the FLOP")

# %% tags=["predict"]
growth = helpers.predict("How many times longer is a step with hidden=4096?", "x")
growth

# %% [markdown]
# `estimate_training_for` trains each size for a few steps on real digits and takes the median step.

# %% tags=["run"]
estimate = helpers.estimate_training_for(
    helpers.LeNet, epochs=1, hidden_sizes=hidden_sizes, device=device
)
steps_s = [row.step_s for row in estimate.sizes]

# %% tags=["look", "nbval-ignore-output"]
growth.reveal(modelled=flops[-1] / flops[0], measured=steps_s[-1] / steps_s[0])

# %% [markdown] tags=["explain"]
# The [FLOP](glossary.md#flop) overstate it. The convolutions take the same time at every width, and they are most of a narrow step
# (the [appendix](appendix/12_beyond_memory.ipynb) measures it). So subtract the narrow step, then divide the rest by the weights that
# were added.


# %% tags=["yours"] yours="for_each"
def for_each(times_s, amounts):
    """Return the seconds of each further unit of work, for each size after the first.

    ``times_s`` and ``amounts`` are lists, the smallest size first; its time is the fixed part.
    """
    first_s, first = times_s[0], amounts[0]
    pairs = list(zip(times_s, amounts, strict=True))[1:]
    return [(time_s - first_s) / (amount - first) for time_s, amount in pairs]


# %% [markdown]
# The check's machine has a fixed part of 5 s, and a unit of work takes 2 s, then 3 s.

# %% checks="for_each"
asked = exercises.Checks("Seconds for each further unit", for_each)
mistakes = {
    (2.3, 3.125): "Take the fixed part off before you divide",
    (2.0, 3.5): "Subtract the first size, not the one before",
    (1.8, 2.8125): "The first size did work too: subtract its amount",
}
asked.returns("two sizes", ([5, 23, 50], [1, 10, 16]), expected=[2.0, 3.0], mistakes=mistakes)
asked.returns("one size has nothing further", ([5], [1]), expected=[])
for_each = asked.settle()


# %% wrong="for_each" says="Take the fixed part off"
def for_each(times_s, amounts):
    return [time_s / amount for time_s, amount in zip(times_s, amounts, strict=True)][1:]


# %% wrong="for_each" says="The first size did work too"
def for_each(times_s, amounts):
    return [(t - times_s[0]) / amount for t, amount in zip(times_s, amounts, strict=True)][1:]


# %% tags=["look", "nbval-ignore-output"]
for hidden, each_s in zip(hidden_sizes[1:], for_each(steps_s, weights), strict=True):
    print(f"hidden={hidden}: {units.text(each_s, 's')} of a step for each further weight")

# %% [markdown] tags=["explain"]
# Where these numbers are about the same, the longer step shows no jump, and needs no full memory. (A dearer part can hide behind a
# cheaper one: Part 2 times one part alone.)
#
# Now a published curve. A course printed these seconds an epoch and blamed the RAM: the widest layer, it said, no longer fitted
# ([Cambridge, "Hardware Ecosystem", 2022](https://github.com/mlatcl/deepnn/blob/38fad41/_lamd/hardware-notes.md)). Most readers would
# agree. Its machine is not named; its counts are those of our LeNet.

# %% tags=["slide", "slide-output"] minutes=1 headline="The last two points lie above the line"
course_s = {128: 2.42, 256: 2.31, 512: 2.38, 1024: 2.56, 2048: 3.10, 4096: 7.20, 6144: 13.21}
millions = [weights_of(h) / 1e6 for h in course_s]
each_s = (course_s[2048] - course_s[128]) / (millions[4] - millions[0])
line = [course_s[128] + each_s * (x - millions[0]) for x in millions]
drawn, axes = plotting.figure(title="Seconds an epoch (published) above the line of the work")
axes.plot(millions, list(course_s.values()), "o", color="#555555", label="published")
axes.plot(millions, line, color=plotting.MODELLED, label="work: as from 128 to 2,048")
axes.set(xlabel="million weights", ylabel="seconds", ylim=(0, None))
axes.legend()
alt = "Seconds an epoch by weights: the last two points, 4,096 and 6,144, lie above the line."
plotting.show(drawn, alt=alt)

# %% [markdown]
# The last two points are `hidden=4096` and 6,144. Was something full at 4,096, or at 6,144?

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 8]
jump = helpers.predict(
    "From 4,096 to 6,144: how many times longer does each further weight take?", "x"
)
jump

# %% tags=["run"]
wide = (2048, 4096, 6144)
published = {}
for first in (128, 256):
    sizes = (first, *wide)
    published[first] = for_each([course_s[h] for h in sizes], [weights_of(h) for h in sizes])

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Beyond the bend a weight costs no more"
ratio = published[128][2] / published[128][1]
jump.reveal(modelled=1, published=ratio, source="the seconds an epoch, divided")
for first, each_s in published.items():
    print(
        f"from 2,048 to 4,096: {each_s[1] / each_s[0]:.2f} times (fixed part: hidden={first})"
    )
for hidden in wide:
    print(f"hidden={hidden}: training keeps {units.text(4 * 4 * weights_of(hidden), 'B')}")

# %% [markdown] tags=["explain"]
# At 6,144 nothing happens: a weight takes as long as before. (Training keeps weights, gradients and two numbers of Adam's: less than
# half a gigabyte.) The jump is at 4,096. There what training keeps grows from 42 to 151 MB, past a last cache
# that holds between these two, if that machine had one. Was it that? Nobody has tested it on that machine. Part 2 tests it on yours.

# %% [markdown] tags=["slide"] minutes=2 headline="One layer waits for its bytes"
# ## Part 2: a layer outgrows a cache
#
# - One example, one layer: every weight is read once
# - So the time is that of reading, from where the weights fit
# - Past the last cache they come from main memory, each time
#
# These are the limits of your machine, among them each memory's [bandwidth](glossary.md#bandwidth), measured as in lesson 02.

# %% tags=["nbval-ignore-output"]
limits = helpers.probe()
limits

# %% [markdown]
# Write the model. A memory serves whatever fits into it, and the smallest that holds everything is the fastest. The arithmetic runs
# at the rate of the library's products, because a layer is one, and a library may reach less than the peak.


# %% tags=["yours"] yours="layer_s"
def layer_s(width, batch, levels, flops_per_s):
    """Return the modelled seconds of a ``width`` x ``width`` layer on ``batch`` examples.

    ``levels`` are pairs (bytes that it holds, bytes a second), smallest first. Weights, inputs
    and outputs move once each, in float32.
    """
    moved_bytes = 4 * (width**2 + 2 * batch * width)
    bytes_per_s = next(rate for holds, rate in levels if moved_bytes <= holds)
    return max(moved_bytes / bytes_per_s, 2 * batch * width**2 / flops_per_s)


# %% checks="layer_s"
asked = exercises.Checks("A layer's time", layer_s)
two = [(1000, 100.0), (math.inf, 10.0)]
mistakes = {
    48.0: "That reads from the large memory what the small one holds",
    4.0: "Inputs and outputs move too, 4 bytes a number",
    1.2: "A float32 has 4 bytes",
}
asked.returns("it fits into the cache", (10, 1, two, 1000), expected=4.8, mistakes=mistakes)
mistakes = {17.6: "It does not fit into the cache: take the next memory"}
asked.returns("it outgrows the cache", (20, 1, two, 1000), expected=176.0, mistakes=mistakes)
mistakes = {
    100.0: "A multiply-add is two FLOP",
    12.0: "Many examples: the arithmetic takes longer",
}
asked.returns("many examples", (10, 10, two, 10), expected=200.0, mistakes=mistakes)
layer_s = asked.settle()


# %% wrong="layer_s" says="That reads from the large memory"
def layer_s(width, batch, levels, flops_per_s):
    moved = 4 * (width**2 + 2 * batch * width)
    return max(moved / levels[-1][1], 2 * batch * width**2 / flops_per_s)


# %% wrong="layer_s" says="Inputs and outputs move too"
def layer_s(width, batch, levels, flops_per_s):
    moved = 4 * width**2
    return max(
        moved / next(r for h, r in levels if moved <= h), 2 * batch * width**2 / flops_per_s
    )


# %% tags=["nbval-ignore-output"]
named = [each for each in limits.memory_levels if each.bandwidth_bytes_per_s]
levels = [(each.holds_bytes or math.inf, each.bandwidth_bytes_per_s) for each in named]
levels[-1] = (math.inf, levels[-1][1])
caches = {each.name: each.holds_bytes for each in named[:-1] if each.holds_bytes}
last = max(caches.values(), default=0)
most = min(limits.bandwidths[-1].working_set_bytes, max(32 * MIB, 5 * last))
widths = [w for w in (int(128 * 2 ** (n / 2)) for n in range(15)) if 4 * w**2 <= most]
print(f"the caches hold {caches}; layers of {widths[0]} to {widths[-1]} squared")

# %% [markdown]
# The widest layer is well over the last cache, where an eighth of your memory (and 512 MiB) allows it.

# %% tags=["predict"]
slower = helpers.predict(
    "One weight: how many times longer does it take in the widest layer than in the fastest?",
    "x",
)
slower


# %% tags=["run"]
def layer_of(width, batch):
    weight = torch.ones(width, width, device=device)
    x = torch.ones(batch, width, device=device)
    return lambda: torch.nn.functional.linear(x, weight)


def measured_s(width, batch):
    return helpers.measure(layer_of(width, batch), budget_s=0.06).minimum_s


def modelled_s(width, batch):
    flops_per_s = limits.product_flops["float32"]
    return limits.call_overhead_s + layer_s(width, batch, levels, flops_per_s)


measured = [measured_s(w, 1) / w**2 for w in widths]
modelled = [modelled_s(w, 1) / w**2 for w in widths]

# %% tags=["look", "nbval-ignore-output"]
fastest = measured.index(min(measured))
slower.reveal(
    modelled=modelled[-1] / modelled[fastest],
    measured=measured[-1] / measured[fastest],
)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Past the last cache a weight takes longer"
sizes = [4 * w**2 for w in widths]
drawn = plotting.draw_curves(
    sizes,
    {"modelled": modelled, "measured": measured},
    unit="s",
    title="One weight of a layer, one example",
    xlabel="bytes of the layer's weights",
    ylabel="time",
    marks={name: size for name, size in caches.items() if size > sizes[0]},
)
alt = "Modelled and measured time of a weight by the bytes of its layer, for one example."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# Read it from the left. A small layer's time is the call, borne by few weights. Then the layer lies in a cache, and past each cache
# the time rises towards that of the next memory. The model has steps; where the machine has slopes, a part of the layer
# still lies in the smaller memory. Where points lie above the line in a cache, a layer does not reach the bandwidth that the probe found
# there, and the model promises too large a rise. (On shared machines a guest gets a part of the last cache: the mark is where the bandwidth falls.)
#
# Your machine may show no rise: where one core computes no faster than main memory delivers, or where no layer here outgrows the
# last cache. The claim is tested where your layers are over twice the last cache and the model promises a rise. It times the fastest and the widest in turns,
# each with its own data in the caches, so its ratio can differ from the one above; it holds all steps between the two.

# %% tags=["explain"]
two_widths = {"fastest": widths[fastest], "widest": widths[-1]}
layers = {name: layer_of(width, 1) for name, width in two_widths.items()}
pair = helpers.compare(layers, budget_s=1, precision=0.1, own_caches=True)
promised = modelled[-1] > 1.5 * measured[fastest]
known = f"{limits.memory.name} bandwidth" not in limits.unstable
tested = device == "cpu" and sizes[-1] > 2 * last > 0 and promised and known
per_weight = pair.candidate("widest").time_ratio * (widths[fastest] / widths[-1]) ** 2
sentence = "past the last cache a weight takes longer"
ratio, evidence = (per_weight, pair) if tested else (None, ())
timing.claim(sentence, ratio, at_least=1.2, evidence=evidence)

# %% [markdown] tags=["explain"]
# Back to training. A batch of 128 uses each weight 128 times, so the products hardly notice where it lies. Adam does: once a step it
# reads and writes each weight and two more numbers, and reads the gradient. Time its update alone:


# %% tags=["look", "nbval-ignore-output"]
def adam_s(hidden):
    net = helpers.LeNet(hidden).to(device)
    for weight in net.parameters():
        weight.grad = torch.ones_like(weight)
    return helpers.measure(torch.optim.Adam(net.parameters()).step, budget_s=0.3).minimum_s


for hidden, step_s in zip(hidden_sizes, steps_s, strict=True):
    update_s, kept = adam_s(hidden), units.text(16 * weights_of(hidden), "B")
    each = units.text(update_s / weights_of(hidden), "s")
    print(
        f"hidden={hidden}: {kept} kept, {each} a weight, {update_s / step_s:.0%} of the step"
    )

# %% [markdown] tags=["explain"]
# (With few weights this is the call.) If a weight takes longer where what is kept outgrows your last cache, a cache can make a jump.
# The seconds that it adds are a
# part of Adam's share of the step. Whether that explains the published jump nobody has measured on its machine.

# %% [markdown] tags=["slide"] minutes=2 headline="Memory that is asked for is not memory that is there"
# ## Part 3: more than there is
#
# - A function may hold 256 MiB
# - It asks for tensors of 64 MiB, and keeps them all
# - How many does it get?
#
# Do not try this in the notebook's own process: where memory ends, Linux picks a program to end, and it may pick yours.
# `run_limited` runs a function in a new process with a limit, and tells what became of it.

# %% tags=["predict"] axis=[0, 8]
tensors = helpers.predict(
    "256 MiB, tensors of 64 MiB: how many does the function get?", "tensors"
)
tensors


# %% tags=["run"]
def hoard():
    kept = []
    while True:
        kept.append(torch.ones(16 * MIB))
        print(len(kept), "tensors", flush=True)


refused = helpers.run_limited(hoard, memory_bytes=256 * MIB)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The process itself takes a part of its limit"
got = len(refused.output.splitlines())
tensors.reveal(modelled=256 / 64, counted=got)
print(textwrap.fill(refused.message, 64))

# %% tags=["explain"]
assert got in (3, 4) or "was ended" in refused.message  # or the system sets no limit
print(refused.status)

# %% [markdown] tags=["explain"]
# Three, as a rule. The limit counts the private memory that the process has asked for, written or not, beyond what it held at the start. Four tensors fill it to the last byte,
# and the allocator's notes and Python's objects need room too. (Where you got four, the process had given back a few pages.)
#
# A refusal says what was asked for, and perhaps what there was. It does not say who holds it: the tensor that is refused is seldom
# the one to blame. On a GPU PyTorch raises `torch.cuda.OutOfMemoryError`.
#
# Better: ask before you allocate. `fits` estimates the [peak](glossary.md#peak-memory) without a run (lesson 11). Which batch is
# the largest that fits? Trying every size takes too long. Double until it fails, then halve the gap.


# %% tags=["yours"] yours="largest_batch"
def largest_batch(fits):
    """Return the largest batch for which ``fits(batch)`` is true; 0 if not even 1 fits.

    What fits a batch fits every smaller one. Ask as few times as you can.
    """
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# %% checks="largest_batch"
asked = exercises.Checks("The largest batch", largest_batch)
tried = []


def fits_up_to(limit):
    tried.clear()
    return lambda batch: tried.append(batch) or batch <= limit


mistakes = {512: "Doubling ends at the last power of two: search on above it",
            1001: "That one no longer fits"}  # fmt: skip
asked.returns("up to 1,000", (fits_up_to(1000),), expected=1000, mistakes=mistakes)
few = len(tried) <= 22
asked.holds(
    "few questions", few, otherwise=f"{len(tried)} questions: double, then halve the gap"
)
asked.returns(
    "nothing fits", (fits_up_to(0),), expected=0, mistakes={1: "Not even 1 fits here"}
)
largest_batch = asked.settle()


# %% wrong="largest_batch" says="Doubling ends at the last power of two"
def largest_batch(fits):
    batch = 1
    while fits(2 * batch):
        batch *= 2
    return batch if fits(batch) else 0


# %% wrong="largest_batch" says="double, then halve the gap"
def largest_batch(fits):
    batch = 0
    while fits(batch + 1):
        batch += 1
    return batch


# %% tags=["run"]
network = helpers.BasicFCModel(hidden=1024)
half = largest_batch(lambda n: helpers.fits(network, (n, 784), 64 * MIB, training=False))
found = memory.max_batch_size(network, (1, 784), 64 * MIB, training=False)
print(f"64 MiB of tensors: yours finds {half:,} images, max_batch_size {found.batch_size:,}")


# %% tags=["look"]
def infer(batch):
    with torch.no_grad():
        helpers.BasicFCModel(hidden=1024)(torch.zeros(batch, 784))


for batch in (half, 3 * half):
    run = helpers.run_limited(infer, batch, memory_bytes=128 * MIB, timeout_s=180)
    print(f"{batch:,} images: {run.status}")

# %% [markdown] tags=["explain"]
# The limit was 128 MiB, twice what the tensors need. How much room a process needs beside its tensors, the last question of the
# exercises finds out.

# %% [markdown] tags=["slide"] minutes=2 headline="A mapped file is read where it is touched"
# ## Part 4: weights that do not fit
#
# - A file can be [mapped](glossary.md#memory-mapping): its bytes have addresses
# - They come from the disk when they are touched
# - Where room is needed, what was [used longest ago](glossary.md#least-recently-used) goes
#
# So a program can use weights larger than its memory, and gets no error. What it gets is slow. Back to the bet. Write the
# rule.


# %% tags=["yours"] yours="after_use"
def after_use(kept, layer, room):
    """Return the layers in memory once ``layer`` was used: the one used longest ago first.

    ``kept`` is that list before. Where ``room`` would be exceeded, the first goes.
    """
    others = [each for each in kept if each != layer]
    if len(others) == room:
        others = others[1:]
    return [*others, layer]


# %% checks="after_use"
asked = exercises.Checks("What stays in memory", after_use)
asked.returns("there is room", ([0, 1], 2, 3), expected=[0, 1, 2])
mistakes = {(0, 1, 3): "The one used longest ago goes: the first", (0, 1, 2, 3): "One must go"}
asked.returns("one must go", ([0, 1, 2], 3, 3), expected=[1, 2, 3], mistakes=mistakes)
mistakes = {
    (0, 1, 2): "A layer that is there was just used: it moves to the end",
    (1, 2, 0, 0): "It stands there twice",
    (2, 0): "It was there already: none needs to go",
}
asked.returns("it was there", ([0, 1, 2], 0, 3), expected=[1, 2, 0], mistakes=mistakes)
after_use = asked.settle()


# %% wrong="after_use" says="it moves to the end"
def after_use(kept, layer, room):
    return (
        kept
        if layer in kept
        else [*kept[-room + 1 :], layer]
        if len(kept) == room
        else [*kept, layer]
    )


# %% wrong="after_use" says="The one used longest ago goes"
def after_use(kept, layer, room):
    others = [each for each in kept if each != layer]
    return [*others[:-1], layer] if len(others) == room else [*others, layer]


# %% tags=["run"]
def play(order, room):
    kept, history = [], []
    for layer in order:
        read = layer not in kept
        kept = after_use(kept, layer, room)
        history.append((layer, kept, read))
    return history


around = play([*range(9)] * 2, room=8)
misses = [sum(read for *_, read in around[begin : begin + 9]) for begin in (0, 9)]

# %% [markdown]
# On this machine: map a file of weights, and multiply a vector by each layer in turn. When a layer must go, our program tells the
# system to drop it (`madvise`), by the rule above. The system counts what it then reads from the disk.

# %% tags=["run", "nbval-ignore-output"]
mapped, megabytes = None, (32, 36, 64)
try:
    sizes = [n * MIB for n in megabytes]
    mapped = data_movement.measure_mapped_weights(sizes, limit_bytes=32 * MIB, passes=2)
except (MemoryError, OSError, RuntimeError, ValueError) as why:
    print(f"not measured here: {why}")

# %% tags=["look", "nbval-ignore-output"]
read = {n: mapped.row(n * MIB).read_bytes for n in megabytes} if mapped else {}
counted = {n: size / mapped.layer_bytes for n, size in read.items() if size is not None}
bet.reveal(modelled=misses[1], counted=counted.get(36))

# %% tags=["look", "slide", "slide-output"] minutes=3 layout="steps" frames=[1, 2, 3, 4, 5, 11] headline="Each layer was thrown out just before its turn"
shown = around[6:18]
frames = [data_movement.draw_window(9, kept, used=n, read=read) for n, kept, read in shown]
said = [f"layer {n} {'comes from the disk' if read else 'is there'}" for n, _, read in shown]
alt = "Each layer was thrown out just before its turn, so each is read from the disk again."
look = {"title": "Nine layers, room for eight", "captions": said, "stills": (1, 2, 3, 11)}
plotting.play(frames, **look, alt=alt)

# %% tags=["look"]
for n in megabytes:
    played = play([*range(n // 4)] * 2, room=8)
    again = sum(read for *_, read in played[n // 4 :])
    print(f"played with {n // 4} layers: {again} read in pass 2")

# %% tags=["look", "nbval-ignore-output"]
for n, layers in counted.items():
    row = mapped.row(n * MIB)
    took, model = (
        units.text(row.layers * s, "s") for s in (row.layer_s, row.modelled_layer_s)
    )
    print(
        f"{row.layers} layers: {layers:.1f} read, {took} a pass (measured), {model} (modelled)"
    )

# %% [markdown] tags=["explain"]
# All nine. When the ninth comes, the first must go, and the first is needed next. A layer is always thrown out just before its turn.
# That is a cliff: one layer too many is read as often as if nothing were kept. (Modelled: a layer's time from memory, and its bytes at
# the disk's rate.)
#
# [Swapping](glossary.md#swap) does the same for memory without a file. The system writes a changed page to the disk before it drops it. So each read costs a
# write too, where weights change; mapped weights that only serve are dropped unwritten. (Our program drops by the rule above. Linux only
# approximates it, so its cliff may be softer.)
#
# Training goes forward through the layers and then *backward*.

# %% tags=["predict"]
order = helpers.predict(
    "Nine layers, forward and backward, room for eight: how many of the 18 are read?", "reads"
)
order

# %% tags=["run"]
step = [*range(9), *reversed(range(9))]
there_and_back = [read for *_, read in play(step * 2, room=8)][18:]

# %% tags=["look"]
order.reveal(modelled=2 * (9 - 8), counted=sum(there_and_back))

# %% [markdown] tags=["explain"]
# What was used last is needed first, so eight of nine are there: one is read forward, one backward. The bytes, the room and the rule are the same. Only the order
# is another. A network that only runs forward cannot turn round; if it always keeps the same seven layers, it reads two of nine.

# %% [markdown] tags=["slide"] minutes=2 headline="Larger batches: more memory, more images a second?"
# ## Part 5: a batch for memory and for time
#
# - Larger batches need more memory
# - Do they give more images a second?
#
# A step costs something however small its batch, and something for each image: $t(n) = t_0 + n\,t_1$. Two measured batches give both
# numbers, and the model the rest.


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
for n, time_s in batch_s.items():
    print(f"batch {n}: {units.text(time_s, 's')} a step")

# %% tags=["predict"]
gain = helpers.predict(
    "Batch 64 in place of 4: how many times more images a second does LeNet learn from?", "x"
)
gain

# %% tags=["run"]
batches = (1, 4, 16, 64, 256, 1024)
batch_s |= {n: helpers.measure(step_of(n), budget_s=0.2).median_s for n in (4, 16, 64, 1024)}
image_s = (batch_s[256] - batch_s[1]) / 255
fixed_s = batch_s[1] - image_s

# %% tags=["look", "nbval-ignore-output"]
modelled_rate = {n: n / (fixed_s + n * image_s) for n in batches}
rate = {n: n / batch_s[n] for n in batches}
gain.reveal(modelled=modelled_rate[64] / modelled_rate[4], measured=rate[64] / rate[4])
print(f"t0 = {units.text(fixed_s, 's')}, t1 = {units.text(image_s, 's')}")
good = min(n for n in batches if rate[n] >= 0.9 * max(rate.values()))
print(f"the smallest batch with nine tenths of the best rate: {good:,}")

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="The gain flattens; the memory goes on growing"
peaks = [
    memory.estimate_peak_memory(helpers.LeNet(), (n, 1, 28, 28), **adam).peak_bytes
    for n in batches
]
drawn, axes = plotting.figure(title="What a larger batch gives, and what it takes")
axes.semilogx(batches, list(modelled_rate.values()), color=plotting.MODELLED, label="modelled")
axes.semilogx(batches, list(rate.values()), "o", color=plotting.MEASURED, label="measured")
axes.set_xticks(
    batches,
    [f"{n:,}\n{units.text(peak, 'B')}" for n, peak in zip(batches, peaks, strict=True)],
)
axes.minorticks_off()
axes.set(xlabel="batch, and its peak memory", ylabel="images a second", ylim=(0, None))
axes.legend(loc="upper left")
alt = "Images a second by batch: a rise that flattens, while the peak grows with the batch."
plotting.show(drawn, alt=alt)

# %% tags=["explain", "nbval-ignore-output"]
pair = helpers.compare({"64": step_of(64), "1": step_of(1)}, budget_s=0.5, precision=0.1)
more = 64 * pair.candidate("1").time_ratio
sentence = "a batch of 64 gives more images a second than a batch of 1"
timing.claim(sentence, more, at_least=2, evidence=pair)
image_bytes = (peaks[4] - peaks[3]) / 192
assert abs(image_bytes / 53_824 - 1) < 0.05
print(f"a further image: {image_bytes:,.0f} bytes from 64 to 256")

# %% [markdown] tags=["explain"]
# By the model images a second ([throughput](glossary.md#throughput)) saturate: half of the highest rate comes at $n = t_0/t_1$, and past
# ten times that a larger batch gives a tenth more at most. Memory does not saturate. Where your points *fall* at
# large batches, the straight line in $n$ does not hold; a full cache is one possible cause. Either way the largest batch that fits is
# rarely the one to take. (Fewer updates an epoch change what is learned; that is not in these numbers.)

# %% [markdown] tags=["slide"] minutes=1 headline="A bus error is no full card"
# ## Part 6: a bus error
#
# - One loader worker, batches of 6,000 digits
# - A published run ended in epoch 2 with a *bus error*
# - The course had announced "out of memory"
#
# ([The output](https://github.com/mlatcl/deepnn/blob/38fad41/_lamd/hardware-notes.md), near "Bus error".) What was full? A worker of a
# `DataLoader` is another process. To hand over a batch without a copy it writes it into a file under `/dev/shm`
# which both map. That is a file system in memory with a size of its own. A Docker container gets 64 MiB
# unless it asks for more ([moby issue 29492](https://github.com/moby/moby/issues/29492)). First the error itself: map a file, take
# its bytes away, touch them.


# %%
def touch_what_is_not_there():
    import mmap
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped_file:
            file.truncate(0)
            mapped_file[0] = 1


print(helpers.run_limited(touch_what_is_not_there).message)

# %% [markdown]
# SIGBUS: this address is yours, and nothing stands behind it. No function was called, so no exception could be raised.
#
# How much does a loader need? Each worker prepares `prefetch_factor` batches ahead (2 unless you say otherwise), and the trainer
# holds one.

# %% tags=["slide", "slide-output"] minutes=1 headline="Batches wait in shared memory, which is a small file system"
drawn = input_pipeline.draw_loader([None], [2, 3], 1, places=2, title="One worker, ahead")
plotting.show(drawn, alt="A worker writes batches into shared memory; a trainer takes them.")

# %% tags=["predict"]
shared = helpers.predict(
    "Two workers, prefetch_factor 2: how many batches are in /dev/shm at once?", "batches"
)
shared


# %% tags=["run"]
def used_bytes():
    room = os.statvfs("/dev/shm")
    return (room.f_blocks - room.f_bfree) * room.f_frsize


def taken_batches(batch_bytes, workers, expected):
    images = TensorDataset(torch.zeros(64, batch_bytes // 16))
    how = {"num_workers": workers, "prefetch_factor": 2, "multiprocessing_context": "fork"}
    batches = iter(DataLoader(images, batch_size=4, **how))
    in_hand, end_s = next(batches), time.monotonic() + 60
    while used_bytes() < expected * batch_bytes and time.monotonic() < end_s:
        time.sleep(0.05)
    time.sleep(0.3)  # for more than expected, should there be more
    return used_bytes() / in_hand[0].nbytes


# %% [markdown]
# Linux can give a process a `/dev/shm` of its own, if it may make *namespaces*; where it may not, the cell says so.

# %% tags=["run", "nbval-ignore-output"]
own_shm, taken = {"shared_memory_bytes": 64 * MIB, "timeout_s": 180}, None
try:
    taken = helpers.run_limited(taken_batches, MIB, 2, 2 * 2 + 1, **own_shm).unwrap()
except RuntimeError as why:
    print(f"not measured here: {why}")
assert taken is None or 5 <= taken < 5.5  # pages that do not fill up, the queues' locks

# %% tags=["look", "nbval-ignore-output"]
shared.reveal(modelled=2 * 2 + 1, counted=taken)

# %% tags=["look", "slide", "slide-output"] minutes=1 numbers=[["digits: ([\\d.]+) of", "MiB taken by one worker's batches"], ["of (\\d+) MiB", "MiB are there"]] headline="One worker's batches fill it nearly"
digit_bytes = 28 * 28 * 4 + 8  # in float32, with its label in int64
print(f"one worker, 6,000 digits: {(1 * 2 + 1) * 6000 * digit_bytes / MIB:.1f} of 64 MiB")

# %% [markdown] tags=["explain"]
# By that count the published case fits into a container. Does it? Two epochs: first a loop that lets go of each batch at once, then
# the ordinary loop. (A row stands for 1,000 digits, and a step lasts until the worker is ahead.)


# %% tags=["run"]
class Digits(torch.utils.data.Dataset):
    def __len__(self):
        return 18

    def __getitem__(self, row):
        time.sleep(0.005)  # a worker takes its time
        return torch.zeros(1000, 784), torch.zeros(1000, dtype=torch.int64)


def wait_for_worker():
    before = None
    while before != used_bytes():
        before = used_bytes()
        time.sleep(0.2)


# %% tags=["run"]
def two_epochs(keeps):
    loader = DataLoader(Digits(), batch_size=6, num_workers=1, multiprocessing_context="fork")
    for epoch in (1, 2):
        for images, labels in loader:
            if not keeps:
                del images, labels
            wait_for_worker()
        print(f"epoch {epoch} went through", flush=True)


# %% tags=["look", "nbval-ignore-output"]
for what, keeps in {"letting go of it": False, "keeping its last batch": True}.items():
    try:
        ended = helpers.run_limited(two_epochs, keeps, **own_shm)
    except RuntimeError as error:
        print(f"not measured here: {error}")
        continue
    print(f"{what}:", ", ".join(ended.output.splitlines()))
    if ended.status != "returned":
        print(textwrap.fill(ended.message.strip().splitlines()[-1], 64))

# %% [markdown] tags=["explain"]
# The ordinary loop fails in epoch 2. The worker of an epoch is a copy of your process (`fork`, Linux's way up to Python 3.13), made
# while you still hold the last batch of the epoch before. So the worker keeps that batch as long as it lives: a fourth one,
# 72 MiB. Delete the names after the loop, or keep the workers (`persistent_workers=True`).
#
# Was that the published case? It fits, and so do other causes, such as a progress bar that holds one more. How large its `/dev/shm`
# was, nobody has written down.
#
# The published run ended with a bus error; this PyTorch says what is full. Why? Setting a file's size reserves nothing: pages are made
# when they are touched, and there the old one died. The PyTorch of this course reserves them first
# ([pull request 161910](https://github.com/pytorch/pytorch/pull/161910), 2025), so it can raise an exception. The cure is to count, with
# the batch that you keep:

# %% tags=["explain"]
sizes = (digit_bytes, 3 * 224 * 224 * 4 + 8)
for workers in (1, 2, 8, 16):
    digits, photos = (64 * MIB // ((2 * workers + 2) * size) for size in sizes)
    print(
        f"workers: {workers:>2}, batches of up to {digits:>5,} digits, or {photos} photographs"
    )

# %% [markdown] tags=["explain"]
# Of photographs (224 x 224 in float32) hardly any fit. Give the container more (`--shm-size`), use fewer workers, or hand over bytes and convert them
# on the device, which needs a quarter.
#
# The [exercises](exercises/12_beyond_memory_exercises.ipynb): a bend or a knee, a better rule for what goes, a loader's bytes, and
# a network of your own against a limit.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Divide by the work before you blame a memory.
# 2. A loop in one direction that outgrows a least-recently-used memory misses every time.
# 3. "Out of memory" can be a small file system; count what it holds.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | time for each unit of work | $(t(w) - t(w_0)) / (w - w_0)$ | work $w$, smallest $w_0$ |
# | what training keeps for its weights | $4\,P \cdot 4$ bytes | $P$ parameters, float32, Adam |
# | time of a layer | $\max(\text{FLOPs}/\text{rate},\ \text{bytes}/\text{bandwidth}) + t_{call}$ | rate of the library's products, bandwidth of the smallest memory that holds it |
# | layers read again in a pass | 0 if all fit, else all of them | in order, least recently used goes |
# | the same, back and forth | layers $-$ room | forward, then backward |
# | /dev/shm of a loader, at least | (workers $\cdot$ prefetch $+\,1) \cdot$ bytes of a batch | one batch in hand, none kept from the epoch before |
# | time of a step | $t_0 + n\,t_1$ | batch of $n$ |
# | images a second | $n / (t_0 + n\,t_1)$ | half of the highest at $n = t_0/t_1$ |
