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
#     title: Beyond memory
#     needs: ["02", "07"]
#     objectives:
#       - estimate|estimated how long a training takes from a few of its steps, with an interval
#       - tell|told a time that grows with the work from one that grows because a memory is full
#       - model|modelled the time of a layer that outgrows a cache
#       - read|read from a refused allocation what was asked for and what there was
#       - predict|predicted what happens when weights are a little larger than the memory they may take
#       - count|counted the batches that a data loader keeps between two processes
#       - choose|chose a batch size from its bytes and its images a second
# ---

# %% [markdown] tags=["objectives"]
# # Beyond memory
#
# A network grows, and at some size its training becomes slow, or stops with an error. Both are put down to "memory". Which memory?
# A machine has several, and each of them says in its own manner that it is full. Past a [cache](glossary.md#cache) the program
# becomes slower, past what may stay of a file it becomes much slower, past a limit it ends, and one small file system ends it with
# an error that does not even speak of memory.
#
# This lesson fills each of them, safely: what may go wrong runs in a process of its own. Outputs that you see below were printed on
# another machine. Clear them (Edit, Clear Outputs of All Cells) before you begin.

# %%
import os
import textwrap
import time

import pandas as pd
import torch
from torch.utils.data import DataLoader, TensorDataset

import helpers
from helpers import access, memory, operations, plotting, results, roofline, timing, units
from helpers.access import Window

device = "cuda" if torch.cuda.is_available() else "cpu"
MIB = 2**20

# %% tags=["nbval-ignore-output"]
helpers.steady_allocator()

# %% [markdown] tags=["slide"] minutes=2
# ## Part 1: how long would it take?
#
# LeNet's first fully connected layer has `hidden` outputs, the second half as many. How much longer is an epoch with
# `hidden=4096` than with `hidden=128`?
#
# Nobody wants to train for an hour to learn that it takes an hour. A training is the same step again and again, so a few steps
# tell. How many operations does one step have?

# %% tags=["predict"]
growth = helpers.predict("How many times longer is an epoch with hidden=4096 than with hidden=128?", "x")
growth

# %%
hidden_sizes = (128, 1024, 2048, 4096)
counts = {
    hidden: operations.profile_ops(helpers.LeNet(hidden), (128, 1, 28, 28), optimizer=torch.optim.Adam)
    for hidden in hidden_sizes
}
step_flops = {h: count.forward_flops + count.backward_flops + count.optimizer_flops for h, count in counts.items()}
for hidden, flops in step_flops.items():
    print(f"hidden={hidden}: {flops / step_flops[128]:.1f} times the FLOPs of a step with hidden=128")

# %% [markdown]
# That is the simplest model: the time grows as the operations do. `estimate_training_for` measures instead. For each size it
# trains a few steps on real digits, in two passes, leaves out the cold ones, and multiplies the median step by the number of steps.
# To each epoch it adds the time to the loader's first batch.

# %% tags=["run", "nbval-ignore-output", "slide", "slide-output"] minutes=2
estimate = helpers.estimate_training_for(helpers.LeNet, epochs=1, hidden_sizes=hidden_sizes, device=device)
rows = {row.hidden: row for row in estimate.sizes}
table = estimate.table().set_index("hidden").rename(index="hidden={}".format).rename_axis(None)
results.printed(table[["parameters", "step_s", "estimated_s", "low_s", "high_s"]])

# %% tags=["look", "nbval-ignore-output"]
growth.reveal(modelled=step_flops[4096] / step_flops[128], measured=rows[4096].step_s / rows[128].step_s)

# %% [markdown] tags=["explain"]
# The operations overstate it. What else is in a step with `hidden=128`? Run the part up to the last pooling alone, there and back:

# %% tags=["look", "nbval-ignore-output"]
narrow, images = helpers.LeNet(128).to(device), torch.rand(128, 1, 28, 28, device=device)
front = torch.nn.Sequential(*list(narrow.children())[:6])
whole_and_front = helpers.compare(
    {"the network": lambda: narrow(images).sum().backward(), "its front": lambda: front(images).sum().backward()},
    budget_s=0.8,
    precision=0.1,
)
front_share = whole_and_front.candidate("its front").time_ratio
before_s, after_s = rows[128].step_s, rows[4096].step_s - rows[128].step_s
slower_flop = (before_s / step_flops[128]) / (after_s / (step_flops[4096] - step_flops[128]))
print(f"convolutions, ReLU and poolings: {front_share:.0%} of the time")
print(f"a FLOP of the step with hidden=128 takes {slower_flop:.1f} times as long as one that the width adds")

# %% tags=["explain"]
sentence = "on a CPU, at hidden=128, convolutions, ReLU and poolings take most of the time there and back"
if device == "cpu":
    whole_and_front.claim(sentence, "its front", at_least=0.5)
else:
    timing.claim(sentence, None, at_least=0.5)

# %% [markdown] tags=["explain"]
# A [FLOP](glossary.md#flop) there takes longer than a FLOP of a large matrix product. And it is a fixed amount, to which the wide
# layers add.
#
# ### An estimate without an interval says nothing
#
# A program prints what it computes, down to the last bit of the number:

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2
row = rows[128]
print(f"one epoch: {row.estimated_s!r} s")
print(f"one epoch: between {row.low_s:.2g} and {row.high_s:.2g} s")

# %% [markdown] tags=["explain"]
# Of the first line at most the first digits mean anything. The second line multiplies the fastest and the slowest step. What is it
# worth? If steps are independent, each is as likely to be above the true median as below it.
# The interval misses the median only where all of them fall on one side:

# %% tags=["explain"]
print(f"{estimate.timed_steps} steps, all on one side: {2 * 0.5**estimate.timed_steps:.1%}")
print(f"so the median lies in the interval with a chance of {estimate.confidence_share:.1%}")
assert all(row.low_s <= row.estimated_s <= row.high_s for row in rows.values())

# %% [markdown] tags=["explain"]
# That is the chance for the *median* step. An epoch is another quantity: the sum of all its steps, the slow ones with them. Run a real one:

# %% tags=["predict"]
one_epoch = helpers.predict("How long will a whole epoch with hidden=1024 take?", "s")
one_epoch

# %% tags=["run", "nbval-ignore-output"]
loader = helpers.make_MNIST_loader(batch_size=128)
trained = helpers.train(helpers.LeNet(1024).to(device), loader, epochs=1)
print(
    f"by the median step {rows[1024].low_s:.2g} to {rows[1024].high_s:.2g} s, the epoch itself {trained.total_s:.2g} s"
)

# %% tags=["look", "nbval-ignore-output"]
one_epoch.reveal(modelled=rows[1024].estimated_s, measured=trained.total_s)

# %% tags=["explain"]
print(f"steps of the estimate's epoch: {estimate.steps_per_epoch}, steps of the real one: {trained.steps}")

# %% [markdown] tags=["explain"]
# The last batch of an epoch is smaller, and the estimate counts it by its digits. Where your epoch lies outside the interval, above or
# below, nothing is contradicted: no interval of a step says how fast the machine will be in an hour. It says how well the step is known.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 2: what went wrong here?
#
# A lecture let `hidden` grow to 6,144. The time shot up. Its explanation: the layer exceeds the RAM.
#
# The lecture is "Hardware Ecosystem" (Cambridge, 2022). It printed these seconds an epoch. It does not say on which machine, but
# its operation counts are those of our LeNet, so we take its network to be ours.

# %% tags=["slide-output"]
lecture_s = {128: 2.42, 256: 2.31, 512: 2.38, 1024: 2.56, 2048: 3.10, 4096: 7.20, 6144: 13.21}
drawn = plotting.draw_layers(
    [f"hidden={h}" for h in lecture_s], {"epoch": list(lecture_s.values())}, unit="s", title="The lecture's epochs"
)
plotting.show(drawn, alt="Bars by hidden size: nearly the same up to 2,048, then far longer at 4,096 and at 6,144.")

# %% tags=["predict"]
widest = helpers.predict("How many bytes does the widest layer of LeNet have, with hidden=6144?", "B")
widest

# %% tags=["run"]
with torch.device("meta"):
    wide = helpers.LeNet(6144)
layer_bytes = {name: weight.nbytes for name, weight in wide.named_parameters() if "weight" in name}
print(pd.Series(layer_bytes).map("{:,} bytes".format).to_string())

# %% tags=["look"]
widest.reveal(modelled=6144 * 3072 * 4, counted=max(layer_bytes.values()))

# %% [markdown] tags=["explain"]
# `torch.device("meta")` makes tensors with a shape and no memory, which is all that counting needs. Training keeps four such
# numbers a weight: itself, its gradient, and two of Adam's.

# %% tags=["explain"]
kept_bytes = 4 * sum(weight.nbytes for weight in wide.parameters())
print(f"weights, gradients, Adam's state: {kept_bytes:,} bytes")
print(f"that is {kept_bytes / units.parse('1 GiB', 'B'):.2f} GiB")

# %% [markdown] tags=["explain"]
# Every machine that trains has more RAM than that. So what was it? The second fully connected layer has $h \cdot h/2$ weights, and so
# the *work* grows with $h^2$. Take away the fixed part, the epoch at 128, and divide the rest by $h^2$. If nothing but the work grew, you would see one
# number:

# %% tags=["predict"]
jump = helpers.predict("From 4,096 to 6,144: how many times larger is the lecture's time for each h squared?", "x")
jump

# %% tags=["run", "slide", "slide-output"] minutes=2
per_square_s = {h: (lecture_s[h] - lecture_s[128]) / h**2 for h in (2048, 4096, 6144)}
divided = {f"hidden={h}": (4 * h * h // 2, lecture_s[h], value) for h, value in per_square_s.items()}
columns = ["widest_layer_bytes", "epoch_s", "for_each_h_squared_s"]
results.printed(pd.DataFrame.from_dict(divided, orient="index", columns=columns))

# %% tags=["look"]
ratio = per_square_s[6144] / per_square_s[4096]
jump.reveal(modelled=1, published=ratio, source="the lecture's seconds an epoch, divided")

# %% [markdown] tags=["explain"]
# At 6,144, where the RAM is said to be exceeded, nothing happens at all: the time is that of the work, to the percent. There *is* a
# knee, and it lies earlier:

# %% tags=["explain"]
print(f"from 2,048 to 4,096 the time for each unit grows {per_square_s[4096] / per_square_s[2048]:.2f} times")
for hidden in (2048, 4096):
    with torch.device("meta"):
        kept = 4 * sum(weight.nbytes for weight in helpers.LeNet(hidden).parameters())
    print(f"hidden={hidden}: training keeps {units.text(kept, 'B')} for its weights")

# %% [markdown] tags=["explain"]
# The processor that the lecture describes, a Ryzen 9 5950X, has 64 MB of last cache, in two halves with eight cores each. What
# training keeps would fit at 2,048, in both halves together, and not at 4,096. That is a guess: we do not know where it ran. But
# a guess can be tested, on a machine that we know. Divide your own times in the same way first:

# %% tags=["look", "nbval-ignore-output"]
ours_ns = {
    h: 1e9 * (rows[h].step_s - rows[128].step_s) / (rows[h].parameters - rows[128].parameters) for h in rows if h > 128
}
for hidden, nanoseconds in ours_ns.items():
    print(f"hidden={hidden}: {nanoseconds:.0f} ns of a step for each further weight")

# %% [markdown] tags=["explain"]
# In a batch of 128 each weight does 128 [multiply-accumulates](glossary.md#mac) forward and 256 backward, and then Adam reads it
# once more. Work and memory are mixed. Separate them.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 3: a layer outgrows a cache
#
# One example through one layer: every weight is read once and used once.
#
# Then the time is that of reading, and which memory is read from depends on where the weights fit. These are the limits of your
# machine, measured as in lesson 02 (under 20 seconds on a quiet machine, and at once if they are kept from there):

# %% tags=["nbval-ignore-output"]
limits = helpers.probe()
limits

# %% tags=["nbval-ignore-output"]
caches = {level.name: level.holds_bytes for level in limits.memory_levels[:-1] if level.holds_bytes}
last_cache, most_bytes = max(caches.values(), default=0), limits.bandwidths[-1].working_set_bytes
fine = [int(128 * 2 ** (step / 4)) for step in range(29)]
widths = [width for width in fine[::2] if 4 * width**2 <= min(most_bytes, max(32 * MIB, 5 * last_cache))]
print(f"the caches hold {caches}; widths of a square layer to measure: {widths}")

# %% [markdown]
# The largest layer is chosen for your machine: well over twice the last cache where it may be, and no larger than the largest array that the probe
# allowed itself (an eighth of the memory, and 512 MiB at most).

# %% tags=["predict"]
slower = helpers.predict(
    "One weight: how many times longer does it take in the largest layer than in the fastest?", "x"
)
slower

# %% [markdown]
# The model is the [roofline](glossary.md#roofline): the FLOPs over the peak, or the bytes over the
# [bandwidth](glossary.md#bandwidth) of the smallest memory that holds them, whichever is longer, and the call. `place` computes it
# and times the layer.


# %% tags=["run"]
def placed(width, batch):
    weight, x = torch.ones(width, width, device=device), torch.ones(batch, width, device=device)
    flops = units.flops_from_macs(batch * width**2)
    moved_bytes = 4 * (width**2 + 2 * batch * width)
    layer = lambda: torch.nn.functional.linear(x, weight)  # noqa: E731
    return roofline.place(f"{width}", layer, flops, moved_bytes, limits, budget_s=0.06)


alone = {width: placed(width, batch=1) for width in widths}

# %% tags=["look", "nbval-ignore-output"]
per_weight = {width: (p.modelled_s / width**2, p.measured_s / width**2) for width, p in alone.items()}
fastest = min(per_weight, key=lambda width: per_weight[width][1])
modelled, measured = (per_weight[widths[-1]][i] / per_weight[fastest][i] for i in (0, 1))
print(f"{len(alone)} widths; the fastest weight is in the layer of {4 * fastest**2:,} bytes")
slower.reveal(modelled=modelled, measured=measured)


# %% tags=["look"]
def draw_weights(batch):
    points = timed.get(batch, {})
    drawn_widths = [width for width in fine if width <= widths[-1]]
    modelled_s = [modelled_layer(width, batch).modelled_s / (batch * width**2) for width in drawn_widths]
    measured_s = [points[w].measured_s / (batch * w**2) if w in points else None for w in drawn_widths]
    curves = {"modelled": modelled_s} | ({"measured": measured_s} if points else {})
    return plotting.draw_curves(
        [4 * width**2 for width in drawn_widths],
        curves,
        unit="s",
        title=f"One weight for one example, batch {batch}",
        xlabel="bytes of the layer's weights",
        ylabel="time",
        marks={name: size for name, size in caches.items() if size > 4 * 128**2},
    )


def modelled_layer(width, batch):
    flops, moved_bytes = units.flops_from_macs(batch * width**2), 4 * (width**2 + 2 * batch * width)
    return roofline.model(roofline.Workload(f"{width}", flops, moved_bytes), limits)


def alt_of_weights(batch):
    return f"Modelled and measured time of a weight for an example by the bytes of a layer, batch {batch}."


# %% tags=["look", "slide", "slide-output"] minutes=3
timed = {1: alone}
plotting.show(draw_weights(1), alt=alt_of_weights(1))

# %% [markdown] tags=["explain"]
# Read it from left to right. Where the layer is small, the call is most of the time, and each weight bears a large part of it. Then
# comes the floor, where the layer lies in a cache, and then the knee: past the last cache each weight comes from main memory again
# in every call. The model has sharp steps, the machine has round ones: a cache is shared, with other data and with other programs,
# so it fills before its size and never keeps everything.
#
# The knee need not be there on your machine. Where one core cannot compute faster than main memory delivers, or where the memory
# is too small for a layer that outgrows the last cache, the line stays flat, and on a GPU the call hides it. On a shared machine a
# guest gets only a part of the last cache. The probe then reports the size at which its bandwidth fell (column `holds`), and so does the
# mark in the figure. The next cell holds the model to the knee where your largest layer is more than twice that cache and the
# model's time from main memory is well above your floor.

# %% tags=["explain", "nbval-ignore-output"]
outgrown = 4 * widths[-1] ** 2 > 2 * last_cache > 0 and f"{limits.memory.name} bandwidth" not in limits.unstable
if outgrown and per_weight[widths[-1]][0] > 1.5 * per_weight[fastest][1]:
    often = {fastest: (widths[-1] // fastest) ** 2, widths[-1]: 1}  # about as many weights for each
    layers = {width: (torch.ones(1, width), torch.ones(width, width)) for width in often}
    linear = torch.nn.functional.linear
    calls = {
        f"{width}": lambda n=n, pair=layers[width]: [linear(*pair) for _ in range(n)] for width, n in often.items()
    }
    knee = helpers.compare(calls, budget_s=1, precision=0.1, device="cpu")
    knee.claim("a weight takes longer past the last cache than before it", f"{widths[-1]}", at_least=1.2)
else:
    print("no knee was tested here: it takes a layer of over twice the last cache, a stable bandwidth")
    print("of main memory, and a model that lies well above your floor")

# %% [markdown] tags=["explain"]
# That was one example. What does the knee become with more of them? Move the slider; for 1 and for 128 the points are measured.

# %% tags=["look"]
timed[128] = {width: placed(width, batch=128) for width in widths if width <= 2048}
helpers.interactive_figure(
    draw_weights,
    {"batch": [2**power for power in range(11)]},
    views=[{"batch": 4}, {"batch": 128}],
    alt=alt_of_weights,
)

# %% [markdown] tags=["explain"]
# A batch of 128 uses each weight 128 times. On most processors the model has no knee left: arithmetic takes longer than reading.
# The model is a bound. It reads each byte once and lets reading and computing overlap without a gap. Measured points that lie
# above it, or rise, say what that leaves out.

# %% tags=["explain"]
largest = max(timed[128])
print(f"batch 128, width {largest}: {timed[128][largest].point.intensity_flops_per_byte:.0f} FLOP for each byte")
print(f"one example: {alone[largest].point.intensity_flops_per_byte:.2f} FLOP for each byte")

# %% [markdown] tags=["explain", "slide"] minutes=2
# ### The model of Part 1, mended
#
# The fixed part as measured, the further FLOPs over the peak, Adam's bytes over the bandwidth of main memory.
#
# A batch hides the knee from the products. It hides nothing from Adam: the update reads and writes every weight, and what is kept
# with it, once a step, whatever the batch. Both rates were measured apart from the step, so this is a real prediction.

# %% tags=["explain", "nbval-ignore-output", "slide-output"]
parts = {"fixed_s": {}, "products_s": {}, "adam_s": {}}
for hidden, count in counts.items():
    further_flops = (
        count.forward_flops + count.backward_flops - (counts[128].forward_flops + counts[128].backward_flops)
    )
    parts["fixed_s"][hidden] = rows[128].step_s
    parts["products_s"][hidden] = further_flops / limits.peak_flops["float32"]
    moved_bytes = count.optimizer_read_bytes + count.optimizer_written_bytes
    parts["adam_s"][hidden] = moved_bytes / limits.memory.bandwidth_bytes_per_s
modelled = pd.DataFrame(parts).assign(modelled_s=lambda table: table.sum(axis=1))
modelled["measured_s"] = [rows[hidden].step_s for hidden in modelled.index]
results.printed(modelled.rename(index="hidden={}".format))

# %% tags=["explain"]
wide_share = 1 - step_flops[128] / step_flops[4096]
print(f"hidden=4096: {wide_share:.0%} of the FLOPs came with the width")

# %% [markdown] tags=["explain"]
# Counts and limits give the whole curve. Where it turns up, the products have overtaken the fixed part: that alone makes a curve
# with a bend, without any memory being full. A bend is no proof of a full memory; divide by the work before you look for one. What
# is then left of the lecture's jump may be a cache, as above, or memory that is asked for anew in each step (lesson 01): on its
# machine nobody has tested either. The RAM had room for all of it.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 4: more than there is
#
# A function may hold 256 MiB. It asks for tensors of 64 MiB and keeps them all. How many does it get?
#
# Do not try such things in the notebook's own process: where memory ends, the operating system picks a program to end, and it may
# pick yours, with all that you have not saved. `run_limited` runs a function in a fresh process with a limit, and tells what became
# of it.

# %% tags=["predict"]
tensors = helpers.predict("256 MiB, tensors of 64 MiB: how many does the function get?", "tensors")
tensors


# %% tags=["run"]
def hoard():
    kept = []
    while True:
        kept.append(torch.ones(16 * 2**20))
        print(len(kept), "tensors", flush=True)


refused = helpers.run_limited(hoard, memory_bytes=256 * MIB)
print(refused.status)

# %% tags=["look", "nbval-ignore-output"]
got = len(refused.output.splitlines())
tensors.reveal(modelled=256 / 64, counted=got)

# %% [markdown] tags=["explain"]
# Three, as a rule. Four would fill the limit to the last byte, and nothing else would have a place: not the allocator's own notes on each
# tensor, not one more Python object. (Where you got four, the process had given back a few pages since the limit was set.) A limit is on everything that the process may write to, and a model that counts tensors alone must leave
# some room. This is what the process left behind:

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2
print(textwrap.fill(refused.message, 64))
if refused.peak_bytes is not None:
    print(f"asked for: {64 * MIB:,} bytes; held at most: {refused.peak_bytes:,} of {256 * MIB:,} bytes")

# %% tags=["explain"]
assert got in (3, 4) or "was ended" in refused.message  # ended by us, where a system sets no limit
print("and the notebook is still here")

# %% [markdown] tags=["explain"]
# A clean refusal answers two questions: what was asked for at that moment, and what there was. PyTorch's own message on a CPU
# answers the first alone; `run_limited` knows the limit and what the process held, which is the second. Neither says who holds it:
# the tensor that is refused is seldom the one to blame. Where a system cannot limit a process (macOS, Windows), `run_limited`
# watches it and ends it instead. On a GPU PyTorch raises `torch.cuda.OutOfMemoryError`, whose text has
# both, and what it holds already; `torch.cuda.set_per_process_memory_fraction` sets a limit there.
#
# ### Ask before you allocate
#
# The estimate of [peak memory](glossary.md#peak-memory) of lesson 07 needs no run. Which batch of images fits through a fully
# connected network, with half of a limit of 128 MiB left as room?

# %% tags=["run"]
network = helpers.BasicFCModel(hidden=1024)
half = memory.max_batch_size(network, (1, 784), 64 * MIB, training=False)
print(f"{half.batch_size:,} images have a peak of {half.peak_bytes:,} bytes")


# %% tags=["look"]
def infer(images):
    with torch.no_grad():
        for count in images:
            helpers.BasicFCModel(hidden=1024)(torch.zeros(count, 784))
            print(count, flush=True)


batches = (half.batch_size, 3 * half.batch_size)
tried = helpers.run_limited(infer, batches, memory_bytes=128 * MIB, timeout_s=180)
for batch in batches:
    foretold = "fits" if helpers.fits(network, (batch, 784), 128 * MIB, training=False) else "does not fit"
    became = "went" if str(batch) in tried.output.split() else "did not go"
    which = "three times that batch" if batch > half.batch_size else "that batch"
    print(f"{which} {foretold} by the estimate, and {became} through")
print("and the process:", tried.status)

# %% [markdown] tags=["explain"]
# A batch between these two is the doubtful case: the estimate counts the bytes of tensors, and the process needs more than its
# tensors. That is what the room is for.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 5: weights that do not fit
#
# Nine layers of 4 MiB lie in a file. Eight may be in memory. How many are read from the disk in each pass?
#
# A file can be [mapped](glossary.md#memory-mapping): its bytes have addresses, and the system brings them from the disk when they
# are touched. So a program can use weights larger than its memory, and never sees an error. What it sees is time. The layer that
# was not used for longest goes first ([least recently used](glossary.md#least-recently-used)).

# %% tags=["predict"]
missed_layers = helpers.predict("Nine layers, room for eight: how many are read from the disk in each pass?", "layers")
missed_layers

# %% [markdown]
# The guess at hand is one: nine do not fit into eight, and one is too many. The model plays it through, layer by layer, pass by
# pass. The experiment maps a file and multiplies a vector by layer after layer, in a limited process, and holds the limit itself.

# %% tags=["run", "nbval-ignore-output"]
mapped, sizes = None, [mib * MIB for mib in (16, 32, 36, 64)]
try:
    mapped = access.measure_mapped_weights(sizes, limit_bytes=32 * MIB, passes=2)
    print(mapped)
except (MemoryError, OSError, RuntimeError, ValueError) as why:
    print(f"not measured here: {why}")

# %% tags=["look"]
modelled = {size // MIB: access.model_missed_layers(size // (4 * MIB), resident=8, passes=2) for size in sizes}
print("layers from the disk in a pass, by MiB of the file:", modelled)

# %% tags=["look", "nbval-ignore-output"]
from_disk = {row.file_bytes: row.read_bytes for row in mapped.rows} if mapped else {}
read_layers = {size: read / mapped.layer_bytes for size, read in from_disk.items() if read is not None}
for size, layers in read_layers.items():
    print(f"{size // MIB} MiB: the system read {layers:.1f} layers' bytes from the disk in each pass")
counted = round(mapped.row(36 * MIB).missed_share * 9) if mapped else None
missed_layers.reveal(modelled=modelled[36], counted=counted)

# %% [markdown] tags=["explain"]
# All nine. The count in the reveal is the program's own, which keeps the rule; the system's count of what it read from the disk
# does not know the rule, and agrees (some file systems report nothing there). When the ninth comes, the first must go, and the
# first is needed next; for it the second goes, which is needed after it. A layer is always thrown out just before its turn. That
# is the cliff: one layer over the limit costs as much as if nothing were kept.

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2
numbers = range(4, 17)
curves = {"modelled": [access.model_missed_layers(n, resident=8, passes=2) for n in numbers]}
curves["if only the excess were read"] = [max(0, n - 8) for n in numbers]
files = [4 * MIB * n for n in numbers]
drawn = plotting.draw_curves(
    files,
    curves | {"measured": [read_layers.get(size) for size in files]},
    unit="",
    title="Layers read from the disk in each pass",
    xlabel="size of the file",
    ylabel="layers of 4 MiB",
    marks={"the limit": 32 * MIB},
    log=False,
)
plotting.show(drawn, alt="Layers read from the disk by the file's size: none up to the limit, then all of them.")

# %% [markdown] tags=["explain"]
# The points are what the system read. In the table above `modelled layer` is a layer's time from memory and, where it
# misses, that of its bytes at the disk's rate. The `layer` that was measured takes less where the system reads ahead while you compute,
# and more where the faults take time or the disk is slower than when its rate was taken. What if the order were another?
#
# A training step goes forward through the layers and then *backward*. Play it through with the same rule:

# %% tags=["explain"]
window = Window(8)
for step in range(3):
    forward = sum(not window.touch(layer) for layer in range(9))
    backward = sum(not window.touch(layer) for layer in reversed(range(9)))
    print(f"step {step + 1}: {forward} missed forward, {backward} missed backward")

# %% [markdown] tags=["explain"]
# The layer used last is needed first, so eight of nine are there. The same bytes, the same limit, the same rule of eviction; only
# the order is another. Where you choose the order yourself, go back and forth.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 6: what went wrong here?
#
# The lecture's cell was to show "OOM": one worker, batches of 6,000 digits. A worker ended with a *bus error*, early in epoch 2.
#
# ([The lecture's output](https://github.com/mlatcl/deepnn/blob/38fad41/_lamd/hardware-notes.md), near "Bus error".) A worker of a `DataLoader` is
# another process. To hand a batch over without copying it through a pipe, it writes it into a file
# under `/dev/shm` ([shm](glossary.md#shm)) that both map (on Linux). (The [shared memory](glossary.md#shared-memory) of a GPU is
# another thing of the same name.) That is a file system in memory with a size of its own, and a Docker container gets 64 MiB of it
# unless it asks for more ([moby issue 29492](https://github.com/moby/moby/issues/29492), "default-shm-size", which writes 64MB),
# however much memory the machine and the card have. How large it was where the lecture ran, nobody has written down.
#
# First the error itself. Map a file, take its bytes away, and touch them:


# %% tags=["run"]
def touch_what_is_not_there():
    import mmap
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped_file:
            file.truncate(0)
            mapped_file[0] = 1


gone = helpers.run_limited(touch_what_is_not_there)
print(gone.status)

# %% tags=["look"]
print(gone.message)

# %% [markdown] tags=["explain"]
# SIGBUS is the bus error. It says: this address is yours, and nothing stands behind it. There is no return value to look at and no
# exception to catch, because no function was called: you wrote to memory. A mapped file in a full `/dev/shm` is the same case.
#
# ### How much of it does a loader need?
#
# Each worker prepares `prefetch_factor` batches ahead, 2 unless you say otherwise, and you hold one in your hand.

# %% tags=["predict"]
shared = helpers.predict("Two workers, prefetch_factor 2: how many batches are in /dev/shm at once?", "batches")
shared


# %% tags=["run"]
def used_bytes():
    room = os.statvfs("/dev/shm")
    return (room.f_blocks - room.f_bfree) * room.f_frsize


def taken_batches(batch_bytes, workers, expected):
    images = TensorDataset(torch.zeros(64, batch_bytes // 4 // 4))
    how = {"num_workers": workers, "prefetch_factor": 2, "multiprocessing_context": "fork"}
    batches = iter(DataLoader(images, batch_size=4, **how))
    in_hand, end_s = next(batches), time.monotonic() + 60
    while used_bytes() < expected * batch_bytes and time.monotonic() < end_s:
        time.sleep(0.05)
    time.sleep(0.3)  # for more than expected, should there be more
    return used_bytes() / in_hand[0].nbytes


# %% [markdown]
# It needs a `/dev/shm` in which nobody else writes. Linux can give a process one of its own, of any size, if it may make
# *namespaces*; where it may not, the cell says so.

# %% tags=["run", "nbval-ignore-output"]
waiting = 2 * 2 + 1
taken = None
try:
    taken = helpers.run_limited(taken_batches, MIB, 2, waiting, shared_memory_bytes=64 * MIB, timeout_s=180).unwrap()
except RuntimeError as why:
    print(f"not measured here: {why}")

# %% tags=["look", "nbval-ignore-output"]
shared.reveal(modelled=waiting, counted=taken)

# %% tags=["explain"]
assert taken is None or waiting <= taken < waiting + 0.5
digit_bytes = 28 * 28 * 4 + 8  # a digit in float32 and its label in int64
print(f"the lecture's loader: 3 batches of 6,000 digits, {3 * 6000 * digit_bytes / MIB:.1f} of 64 MiB")

# %% [markdown] tags=["explain"]
# (What lies over the whole number are pages that do not fill up, and the locks of the queues.) By that count the lecture's case fits into a
# container. Does it? Here it is, for two epochs: first a loop that lets go of each batch at once, as one that moves it to a GPU may,
# then the ordinary loop, `for images, labels in loader`. (A row stands for 1,000 digits.)


# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
class Digits(torch.utils.data.Dataset):
    def __len__(self):
        return 18

    def __getitem__(self, row):
        time.sleep(0.005)  # a worker takes its time
        return torch.zeros(1000, 784), torch.zeros(1000, dtype=torch.int64)


def two_epochs(keeps):
    loader = DataLoader(Digits(), batch_size=6, num_workers=1, multiprocessing_context="fork")
    for epoch in (1, 2):
        for images, labels in loader:
            if not keeps:
                del images, labels
            before = None  # the step: as long as the worker still fills /dev/shm
            while before != used_bytes():
                before = used_bytes()
                time.sleep(0.2)
        print(f"epoch {epoch} went through", flush=True)


for keeps in (False, True):
    try:
        ended = helpers.run_limited(two_epochs, keeps, shared_memory_bytes=64 * MIB, timeout_s=180)
        why = "" if ended.status == "returned" else ended.message.strip().splitlines()[-1]
        print("keeping its last batch:" if keeps else "letting go of it:", ", ".join(ended.output.splitlines()))
        print(textwrap.fill(why, 64)) if why else None
    except RuntimeError as error:
        print(f"not measured here: {error}")

# %% [markdown] tags=["explain"]
# The ordinary loop goes through epoch 1 and fails in epoch 2. The worker of an epoch is a copy of your process (`fork`, Linux's way up to
# Python 3.13), made while you still hold the last batch of the epoch before. So the worker keeps that batch as long as it lives:
# a fourth one, 72 MiB. The count is a lower bound: workers times prefetch, one in your hand, and what you held when the workers began.
# Delete the names after the loop, or keep the workers (`persistent_workers=True`), and it is met.
#
# Was that the lecture's case? It fits, and it fits other causes: a progress bar that holds a batch more, or a `/dev/shm` that others use.
#
# And why was it a bus error then? Setting a file's size reserves nothing in memory: the pages are made when they are touched, and if there is none left, that is
# where the process dies. The PyTorch of this course asks for the pages first (since
# [pull request 161910](https://github.com/pytorch/pytorch/pull/161910), "Use posix_fallocate() to reserve disk space for shared
# memory", of 2025), so that it gets an answer that it can raise. In both, `/dev/shm` is full; the card and the RAM are not. The
# remedy is to count, with one batch more for the one that you keep:

# %% tags=["explain", "slide", "slide-output"] minutes=2
for workers in (1, 2, 8, 16):
    batch = 64 * MIB // ((2 * workers + 2) * digit_bytes)
    print(f"workers: {workers:>2}, batches of up to {batch:,} digits fit into 64 MiB")
imagenet_bytes = 3 * 224 * 224 * 4 + 8
print(f"workers:  8, images of 224 by 224: batches of up to {64 * MIB // (18 * imagenet_bytes)} images")

# %% [markdown] tags=["explain"]
# The lecture's 6,000 digits are too many, and of photographs hardly any fit. Give the container more (`--shm-size`), use fewer workers, or hand over
# bytes in place of float32 and convert them on the device, which needs a quarter.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 7: a batch size for memory and for time
#
# Larger batches need more memory. Do they give more images a second?
#
# A step costs something however small its batch is, and something for each image: $t(n) = t_0 + n\,t_1$. Two measured batches give
# both numbers; the model foretells the rest. Memory needs no run.

# %% tags=["predict"]
gain = helpers.predict("Batch 64 in place of 4: how many times more images a second does LeNet learn from?", "x")
gain


# %% tags=["run"]
def step_of(batch):
    lenet, images = helpers.LeNet().to(device), torch.rand(batch, 1, 28, 28, device=device)
    adam = torch.optim.Adam(lenet.parameters())

    def step():
        adam.zero_grad()
        lenet(images).sum().backward()
        adam.step()

    return step


batches = (1, 4, 16, 64, 256, 1024)
steps = {batch: helpers.measure(step_of(batch), budget_s=0.15) for batch in batches}
peaks = {
    batch: memory.estimate_peak_memory(helpers.LeNet(), (batch, 1, 28, 28), optimizer=torch.optim.Adam).peak_bytes
    for batch in batches
}

# %% tags=["look", "nbval-ignore-output"]
image_s = (steps[256].median_s - steps[1].median_s) / 255
fixed_s = steps[1].median_s - image_s
modelled_rate = {batch: batch / (fixed_s + batch * image_s) for batch in batches}
rate = {batch: batch / steps[batch].median_s for batch in batches}
gain.reveal(modelled=modelled_rate[64] / modelled_rate[4], measured=rate[64] / rate[4])

# %% tags=["look", "slide", "slide-output"] minutes=2
drawn = plotting.draw_curves(
    batches,
    {"modelled": list(modelled_rate.values()), "measured": list(rate.values())},
    unit="",
    title="LeNet: images a second by batch",
    xlabel="batch",
    ylabel="images a second",
    size_unit="",
    log=False,
)
plotting.show(drawn, alt="Images a second by batch: a steep rise for small batches, then it flattens.")

# %% tags=["look", "nbval-ignore-output"]
side_by_side = {"peak_bytes": peaks, "images_a_second": {batch: round(value) for batch, value in rate.items()}}
results.printed(pd.DataFrame(side_by_side).rename_axis("batch"))

# %% tags=["explain"]
growths = [(peaks[1024] - peaks[256]) / 768, (peaks[256] - peaks[64]) / 192]
print(f"each further image adds {growths[1]:,.0f} bytes up to 256, {growths[0]:,.0f} beyond")
pair = helpers.compare({"64": step_of(64), "1": step_of(1)}, budget_s=0.5, precision=0.1)
more = 64 * pair.candidate("1").time_ratio
timing.claim("a batch of 64 gives more images a second than a batch of 1", more, at_least=2, evidence=pair)

# %% [markdown] tags=["explain"]
# The images a second ([throughput](glossary.md#throughput)) saturate, memory does not. Where they *fall* at the largest batch, what
# a step touches may have outgrown a cache, as in Part 3; the model, a straight line in $n$, knows of none. Half of the highest rate
# is reached at $n = t_0/t_1$; past ten times that a larger batch costs memory and gives almost nothing. The largest batch that
# fits is rarely the one to take:

# %% tags=["explain", "nbval-ignore-output"]
good = min(batch for batch in batches if rate[batch] >= 0.8 * max(rate.values()))
fitting = 256 + int((units.parse("1 GiB", "B") - peaks[256]) / growths[0])
if image_s > 0:
    print(f"half of the highest rate: at a batch of {fixed_s / image_s:.1f}, by the model")
print(f"four fifths of the best rate seen: at a batch of {good}, with {units.text(peaks[good], 'B')}")
print(f"1 GiB would hold a batch of about {fitting:,}")

# %% [markdown] tags=["explain"]
# On a GPU $t_0$ is the launching of the kernels and $t_1$ is small, so the knee lies at a far larger batch. The cells above run
# there unchanged; where a batch of 256 takes no longer than a batch of 1, $t_1$ is lost in the noise, and `batches` must go
# further. And a larger batch means fewer updates in an epoch: what that costs in accuracy is not in these numbers.

# %% [markdown]
# The [exercises](exercises/08_beyond_memory_exercises.ipynb) of this lesson: what went wrong in a row of times, the
# misses of an order of your own, and a loader's batches in `/dev/shm`.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. An estimate needs an interval.
# 2. A loop that outgrows a least-recently-used cache misses every time.
# 3. Out of memory can mean shared memory, not the card's.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | time of a training | epochs $\cdot\,(t_{first} + \text{steps} \cdot t_{step})$ | median step $t_{step}$, time to the loader's first batch $t_{first}$ |
# | chance that the interval misses the median | $2 \cdot (1/2)^n$ | $n$ independent steps, from fastest to slowest |
# | time for each unit of work | $(t(h) - t(h_0)) / h^2$ | $h$ hidden units: a layer of $h \cdot h/2$ weights |
# | what training keeps for its weights | $4\,P \cdot 4$ bytes | $P$ parameters, float32, Adam |
# | time of a layer | $\max(\text{FLOPs}/\text{peak},\ \text{bytes}/\text{bandwidth}) + t_{call}$ | bandwidth of the smallest memory that holds it |
# | layers read again in a pass | 0 if all fit, else all of them | in order, least recently used goes |
# | the same, back and forth | layers $-$ room | forward, then backward |
# | time of a mapped layer, about | $t_{memory} + \text{missed share} \cdot \text{bytes}/\text{disk rate}$ | no reading ahead |
# | /dev/shm of a loader, at least | (workers $\cdot$ prefetch $+\,1) \cdot$ bytes of a batch | one batch in hand, none kept from the epoch before |
# | time of a step | $t_0 + n\,t_1$ | batch of $n$ |
# | images a second | $n / (t_0 + n\,t_1)$ | half of the highest at $n = t_0/t_1$ |
