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
#     number: "03"
#     title: Four sources of parallelism
#     needs: ["00"]
#     objectives:
#       - count|counted how often each of four sources of parallelism must wait, and the bytes that it moves
#       - split|split a matrix product along each of its three sides, with a sum where one is needed
#       - read|read from a compiled program how many numbers one instruction adds
#       - predict|predicted at which delay a learning rate blows up, from either side of the limit
#       - tell|told when a stack of networks trains faster than a loop over them
#       - choose|chose the sources that pay on a given machine
# ---

# %% [markdown] tags=["objectives"]
# # Four sources of parallelism
#
# A thousand processors are of use only when there are a thousand things to do that do not wait for one another. Where are they
# in the training of a network? There are four places to look, and each has a price: the moment at which the workers must wait
# for each other, or the errors that they make when they do not.
#
# You need one ordinary computer. Counts and bytes are exact, and yours must be the same as these; times are those of one
# machine. Clear the outputs before you begin (Edit, Clear Outputs of All Cells).

# %%
import copy
import dataclasses

import pandas as pd
import torch
from torch import nn

import helpers
from helpers import hardware, native, operations, plotting, results, sources, timing

device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown] tags=["slide"] minutes=1.5
# ## Part 1: one line, four sources
#
# $$w \leftarrow w - \frac{\eta}{B} \sum_{i=1}^{B} \nabla_w\, \ell\bigl(f(x_i; w),\, y_i\bigr)$$
#
# This is minibatch SGD: $\eta$ is the learning rate, $B$ the batch size, $f$ the network, $\ell$ the loss. Look for work that
# does not wait for other work:
#
# | source | in the formula | what is independent |
# |---|---|---|
# | within a layer | $f$ | the elements of each matrix product |
# | over examples | $\sum_i$ | the terms of the sum |
# | over update iterations | $\leftarrow$, again and again | nothing, strictly: each step needs the one before it |
# | over models | the whole line | trainings with another rate, or other first weights |
#
# The lecture "Hardware Ecosystem" (Cambridge, 2022), from which this course grew, lists the same four.

# %% [markdown]
# A [synchronisation](glossary.md#synchronisation) is a point at which workers wait until they have exchanged what they
# computed. Take LeNet and a batch of 64 digits, and two plans to share one step. Split *within each layer*, the parts of each
# layer's output must be collected before the next layer can start. Split *over examples*, each worker has the whole network and
# a part of the batch, and they add up their gradients once, at the end. Which of them exchanges more bytes?

# %% tags=["predict"]
layer_bytes = helpers.predict(
    "LeNet, batch 64: how many times the bytes of the split over examples does the split within layers exchange?", "x"
)
layer_bytes

# %% [markdown]
# By hand. Within layers: the output of each layer with weights, in the forward; in the backward the gradient of its input,
# except for the first layer, for whose input nobody needs a gradient. Over examples: one number a parameter.

# %%
outputs = {"conv1": 6 * 24 * 24, "conv2": 16 * 8 * 8, "fc1": 120, "fc2": 60, "fc3": 10}
inputs = {"conv2": 6 * 12 * 12, "fc1": 16 * 4 * 4, "fc2": 120, "fc3": 60}
numbers_an_image = sum(outputs.values()) + sum(inputs.values())
parameters = sum(weight.numel() for weight in helpers.LeNet().parameters())
print(f"within layers: {64 * numbers_an_image * 4:,} bytes; over examples: {parameters * 4:,} bytes")

# %% [markdown]
# `sources_of_parallelism` counts the same for any model, by following its operators: how often workers exchange something
# (`synchronisations`), how many bytes in all (`payload`), and whether they wait for it.

# %% tags=["run", "slide", "slide-output"] minutes=1.5
four = sources.sources_of_parallelism(helpers.LeNet(), (64, 1, 28, 28))
within, examples = four.row("within a layer"), four.row("over examples")
table = pd.DataFrame([row.to_dict() for row in four.rows]).set_index("source").rename_axis(None)
results.printed(table[["synchronisations", "payload_bytes", "waits"]])

# %% tags=["look"]
layer_bytes.reveal(modelled=64 * numbers_an_image / parameters, counted=within.payload_bytes / examples.payload_bytes)

# %% [markdown] tags=["explain"]
# Over update iterations nobody waits for anybody, yet each worker sends a
# gradient and fetches new weights: twice the parameters. Over models there is nothing to exchange.
#
# What crosses a layer grows with the batch; the gradient does not. So there is a batch below which the order turns over:

# %% tags=["explain"]
print(f"equal at a batch of {parameters / numbers_an_image:.1f}")
for batch in (1, 6, 7, 64):
    rows = sources.sources_of_parallelism(helpers.LeNet(), (batch, 1, 28, 28))
    more = rows.row("within a layer").payload_bytes > rows.row("over examples").payload_bytes
    print(f"batch {batch}: more bytes {'within layers' if more else 'over examples'}")

# %% [markdown] tags=["explain"]
# Bytes are half of the price. The other half is how often: 9 synchronisations against 1. A single layer can add some: batch
# normalisation in training needs the mean and the variance of the *whole* batch, so workers that share a batch must meet in the
# middle of the forward, and again in the backward.

# %% tags=["explain"]
normed = nn.Sequential(nn.Conv2d(1, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16))
over_examples = sources.sources_of_parallelism(normed, (64, 1, 28, 28)).row("over examples")
print(f"{over_examples.synchronisations} synchronisations over examples: {over_examples.synchronises}")

# %% [markdown]
# (Lesson 04 shows what PyTorch does by default: each worker takes the statistics of its own part of the batch, which is another
# function.)

# %% [markdown] tags=["slide"] minutes=1
# ## Part 2: within a layer
#
# A product $(m, k) \cdot (k, n)$ has three sides along which it can be cut: $m$ rows, $n$ columns, and the inner dimension
# $k$ between them. What does each cut cost?
#
# We cut by hand. The matrices hold small whole numbers, so that every sum is exact, and "equal" means equal.

# %%
torch.manual_seed(0)
a = torch.randint(-9, 10, (4, 6)).float()
b = torch.randint(-9, 10, (6, 8)).float()
rows = torch.cat([a[:2] @ b, a[2:] @ b])
columns = torch.cat([a @ b[:, :4], a @ b[:, 4:]], dim=1)
inner = a[:, :3] @ b[:3] + a[:, 3:] @ b[3:]
for name, whole in (("rows", rows), ("columns", columns), ("inner", inner)):
    print(f"{name}: the largest difference from a @ b is {(whole - a @ b).abs().max():.0f}")

# %%
for by, other in (("rows", "b"), ("columns", "a")):
    drawn = plotting.draw_split(sources.model_split(4, 6, 8, by=by, parts=2))
    plotting.show(
        drawn, alt=f"By {by}: the output and one input are cut into two halves of {by}; both parts need {other}."
    )

# %% tags=["slide", "slide-output"] minutes=1
drawn = plotting.draw_split(sources.model_split(4, 6, 8, by="inner", parts=2))
alt = "Inner: a is cut by columns and b by rows; each part has a term as large as the output, and they add up."
plotting.show(drawn, alt=alt)

# %% [markdown]
# Two of the cuts copy an input, the third needs a sum. Now a real layer: LeNet's `fc1` on a batch of 64 is a product $(64, 256)
# \cdot (256, 120)$. Four workers share it, and in the end one of them needs the whole output.

# %% tags=["predict"]
sum_bytes = helpers.predict(
    "How many times the bytes does that worker receive when the cut is over the inner dimension, and not by columns?",
    "x",
)
sum_bytes

# %% tags=["run", "slide", "slide-output"] minutes=1
splits = {by: sources.model_split(64, 256, 120, by=by, parts=4) for by in sources.WAYS}
table = pd.DataFrame([split.to_dict() for split in splits.values()]).set_index("by").rename_axis(None)
results.printed(table[["received_bytes", "additions", "copied_bytes"]])

# %% [markdown]
# The model: by columns the worker has a quarter of the output and receives three quarters. Over the inner dimension it has a
# *term* of the whole output and receives three more terms, each as large as the output.

# %% tags=["look"]
sum_bytes.reveal(modelled=3 / (3 / 4), counted=splits["inner"].received_bytes / splits["columns"].received_bytes)

# %% [markdown] tags=["explain"]
# Why would one cut over $k$, then? The last column has the bytes of inputs that more than one worker needs: it is the only cut
# that copies nothing. By rows every worker needs all weights; by columns every worker needs all inputs.
#
# ### What went wrong here?
#
# A layer is a product and then an activation. Somebody saves a step: each part applies ReLU to what it has, and the results are
# combined after that.

# %% tags=["look"]
for by in sources.WAYS:
    pieces = sources.partial_products(a, b, by=by, parts=2)
    early = sources.combine([piece.relu() for piece in pieces], by=by)
    wrong = (early != (a @ b).relu()).sum()
    print(f"{by}: after ReLU on the parts {wrong} of the layer's {early.numel()} numbers are wrong")

# %% [markdown] tags=["explain"]
# $\max(0, x + y)$ is not $\max(0, x) + \max(0, y)$. A slice of the output is finished and may go on; a term of a sum is not,
# and must wait for the other terms. It would be silent: the shapes are right, and the network may even train.
#
# ### Two layers, one sum
#
# Put the two facts together. Cut the first layer by columns: each part may apply its ReLU at once. The columns that it then has
# are exactly the inner elements that a cut of the *second* layer over $k$ needs. So both layers run without any exchange
# between them, and one sum at the end is all (Shoeybi and others, [Megatron-LM](https://arxiv.org/abs/1909.08053), 2019).

# %% tags=["look", "slide", "slide-code"] minutes=1
shapes = (5, 6), (6, 8), (8, 3)
x, first, second = (torch.randint(-3, 4, shape).float() for shape in shapes)
left = (x @ first[:, :4]).relu() @ second[:4]
right = (x @ first[:, 4:]).relu() @ second[4:]
both = (x @ first).relu() @ second
print(f"one sum for two layers: the largest difference is {(left + right - both).abs().max():.0f}")

# %% [markdown] tags=["explain"]
# Lesson 05 trains a network that is cut like this. Here we go down instead: parallelism within a layer begins inside one core.
#
# ### One instruction, many numbers
#
# A core can add eight float32 numbers with one instruction if its [registers](glossary.md#register) are 256 bits wide, and sixteen if they are 512 bits
# wide ([SIMD](glossary.md#simd)). One such place of a register is a [lane](glossary.md#lane). The C++ loops are
# `y[i] = a * x[i] + y[i]` and `sum += x[i]`; the compiler was asked for one lane, for vectors, and for vectors with leave to
# reorder sums. A loop of the second kind, in how many lanes does it run when you just ask for vectors?

# %% tags=["run", "nbval-ignore-output", "slide", "slide-output"] minutes=2
try:
    census = sources.count_lanes()
    shown = pd.DataFrame([row.to_dict() for row in census.rows]).set_index("function").rename_axis(None)
    shown = results.printed(shown[["variant", "one_lane", "packed", "lanes"]])
except native.NativeError as missing:
    census, shown = None, f"this machine cannot show it: {missing}"
shown

# %% [markdown] tags=["look"]
# The table counts the instructions that add or multiply in the compiled program: those of one lane handle one number, the packed
# ones as many as there are lanes. (It needs a C++ compiler and an x86-64 processor; elsewhere the cell says what is missing.) The scaled
# addition gets vectors; one-lane instructions stay beside them for the last few numbers. The sum gets none, although they were
# asked for.

# %% tags=["look"]
if census is not None:
    assert census.row("scaled_add", "vectors").packed > 0 == census.row("total", "vectors").packed

# %% [markdown] tags=["explain"]
# The compiler is right. In `sum += x[i]` each addition needs the result of the one before it, and in floating point another
# order is another result. Eight lanes, say, keep eight sums and add them up at the end, which is another order:


# %% tags=["explain"]
def summed(numbers, sums):
    """Add `numbers` one after another into `sums` running sums in turn, in float32; then add those."""
    running = torch.zeros(sums)
    for place, number in enumerate(numbers):
        running[place % sums] += number
    return running.sum().item()


numbers = torch.tensor([2.0**24] + [1.0] * 15)
print(f"exactly:       {2**24 + 15:,}")
print(f"one sum:       {summed(numbers, 1):,.0f}")
print(f"eight sums:    {summed(numbers, 8):,.0f}")

# %% [markdown] tags=["explain"]
# Neither is exact. Near $2^{24}$ the next float32 is 2 away, so adding 1 to one running sum is lost, fifteen times. The cut
# over the inner dimension has come back on the smallest scale: a sum may be split, and the last digits pay. What is it worth?

# %% tags=["predict"]
lane_speedup = helpers.predict(
    "How many times faster is a sum of 4,096 numbers with reordering than with one lane?", "x"
)
lane_speedup

# %% tags=["run", "nbval-ignore-output"]
summing = None
if census is None:
    print("there is nothing to time: the loops could not be compiled or counted")
else:
    summing = timing.compare(sources.lane_calls("total"), budget_s=1, precision=0.05)
    many_lanes = census.row("total", "vectors, sums reordered").lanes
    reordered = summing.candidate("vectors, sums reordered")
    lane_speedup.reveal(modelled=many_lanes, measured=1 / reordered.time_ratio)

# %% tags=["look"]
several_lanes = summing is not None and many_lanes > 1
timing.claim(
    "the sum that may be reordered takes less time than the one in one lane",
    reordered.time_ratio if several_lanes else None, at_most=0.8, evidence=summing if several_lanes else (),
)  # fmt: skip

# %% [markdown] tags=["explain"]
# The model is the number of lanes. Below it you see what does not shrink with the lanes: the call from Python. Time it alone, on
# one number, with `timing.compare(sources.lane_calls("total", 1), budget_s=0.5)`, and take it from both times. What is then still
# missing is in the addition itself: each waits for the one before, and a wide one may take more cycles than one of one lane.
# (Above the model there would be another reason: a compiler may keep several wide sums under way at once.)
#
# ### Many cores
#
# The next larger scale is a thread on each core. The cut is the same, by rows or columns, and the threads must be woken and
# waited for.

# %% tags=["predict"]
thread_speedup = helpers.predict(
    "How many times faster is a product of 512 x 512 with all your cores than with one?", "x"
)
thread_speedup

# %% tags=["run"]
small, large = torch.rand(64, 64), torch.rand(512, 512)
sweeps = [
    sources.sweep_threads(lambda: small @ small, name="64 x 64", budget_s=0.3),
    sources.sweep_threads(lambda: large @ large, name="512 x 512", budget_s=0.3),
]
alt = "Speedup against threads on logarithmic axes: a dotted line of perfect speedup, measured points of two products."
plotting.show(plotting.draw_speedup(sweeps), alt=alt)

# %% tags=["look", "nbval-ignore-output"]
thread_speedup.reveal(modelled=sweeps[1].cores, measured=sweeps[1].points[-1].speedup)

# %% [markdown] tags=["explain"]
# The model, one speedup a core, leaves out the waiting. Where the small product is no faster with more threads, waking them
# took longer than the work that they took over. A point far below 1 says that the cores were not free: the threads wait for one
# another, and if one of them waits for a core, all do. Run it again with nothing else running; no claim is made here, because
# there is none that holds on every machine.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 3: over examples
#
# $$\nabla = \frac{1}{B} \sum_{i=1}^{B} \nabla \ell_i$$
#
# Each worker takes a part of the batch. When is the mean of the workers' gradients the gradient of the batch?
#
# `gradient` below returns the gradient of the mean loss on some digits, as one long vector, in float64, so that rounding does
# not hide a difference.

# %%
loader = helpers.make_MNIST_loader(batch_size=64)
images, labels = (torch.cat(part).to(device) for part in zip(*loader, strict=True))
digits = (images, labels)
torch.manual_seed(0)
wide = helpers.BasicFCModel(784, 32, 10, 2).double().to(device)


def gradient(part):
    loss = nn.functional.cross_entropy(wide(images[part].double()), labels[part])
    return torch.cat([slope.flatten() for slope in torch.autograd.grad(loss, list(wide.parameters()))])


# %% tags=["look"]
whole = gradient(slice(0, 60))
even = (gradient(slice(0, 30)) + gradient(slice(30, 60))) / 2
uneven = (gradient(slice(0, 50)) + gradient(slice(50, 60))) / 2
for name, mean in (("30 and 30 digits", even), ("50 and 10 digits", uneven)):
    print(f"{name}: the mean of the two is off by {(mean - whole).norm() / whole.norm():.0%} of the gradient of all")

# %% [markdown] tags=["explain"]
# What went wrong in the second row? The mean of two means gives each of the 10 digits five times the weight of each of the 50.
# It happens in practice with the last batch of an epoch, when it does not divide by the workers. The repair is to weigh by
# counts:

# %% tags=["explain", "slide-code"]
weighed = (50 * gradient(slice(0, 50)) + 10 * gradient(slice(50, 60))) / 60
print(f"weighed by the number of digits: off by less than {1e-9:.0e}")
assert (weighed - whole).norm() < 1e-9 * whole.norm()

# %% [markdown] tags=["explain"]
# So this source, batch norm apart, changes nothing in what is learnt, for one synchronisation a step. It is what most people use,
# and lesson 04 is all about it.
#
# ### What went wrong here?
#
# The lecture compared a CPU, one GPU and two GPUs: 5.22 s, 4.37 s and 4.72 s for two epochs of MNIST. A reader takes from it
# that a GPU is hardly faster. The batches were 128, 512 and 1024. Here is what the batch alone does, on one device: the same
# 1,024 digits, once through.


# %% tags=["predict"]
batch_effect = helpers.predict("How many times faster are 1,024 digits in one batch than in eight batches of 128?", "x")
batch_effect


# %% tags=["run", "nbval-ignore-output"]
def pass_through(batch):
    for start in range(0, 1024, batch):
        nn.functional.cross_entropy(fast(images[start : start + batch]), labels[start : start + batch]).backward()


fast = helpers.BasicFCModel(784, 32, 10, 2).to(device)
batches = timing.compare(
    {f"batch {batch}": lambda batch=batch: pass_through(batch) for batch in (128, 512, 1024)},
    budget_s=2,
    precision=0.05,
)
batch_effect.reveal(modelled=1, measured=1 / batches.candidate("batch 1024").time_ratio)

# %% tags=["look"]
batches.claim("on one and the same device the larger batch takes less time", "batch 1024", at_most=0.95)
for batch in (128, 512, 1024):
    print(f"batch {batch}: {-(-len(images) // batch)} updates an epoch")

# %% [markdown] tags=["explain"]
# The model, the same arithmetic in the same time, forgets what each step costs besides its arithmetic. So a part of the lecture's
# difference, or all of it, may have come from the batch; and the runs did not even learn the same, for the number of updates
# differed as well. (Its clock also ran while the data was loaded: lesson 06.) Change one thing at a time.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 4: over update iterations
#
# - Each step needs the weights of the step before.
# - Workers that do not wait compute on old weights.
# - The gradient is [stale](glossary.md#stale-gradient): *delay* updates old.
#
# $$w_{t+1} = w_t - \eta\, \nabla \ell(w_{t-d})$$
#
# Take the simplest loss, $\ell = \tfrac{c}{2} w^2$ with curvature $c$, so that only $\eta c$ matters. Plain descent multiplies
# $w$ by $1 - \eta c$ in each step: at $\eta c = 1.5$ by $-0.5$, and it converges. Now let each gradient be one update old. (In
# the first $d$ steps no gradient has arrived yet, and $w$ stays as it is.)

# %% tags=["predict"]
one_old = helpers.predict("eta c = 1.5, delay 1: how many times larger does w become a step, in the long run?", "x")
one_old

# %% tags=["run", "slide", "slide-output"] minutes=1
paths = {delay: sources.descend_quadratic(1, rate=1.5, delay=delay, steps=100) for delay in (0, 1)}
curves = {f"delay {delay}": [w**2 / 2 for w in path[:16]] for delay, path in paths.items()}
drawn = plotting.draw_losses(curves, title="A parabola, rate times curvature 1.5")
plotting.show(
    drawn, alt="Without delay the loss falls on a straight line of a logarithmic axis; with delay 1 it grows in waves."
)

# %% [markdown]
# The model: try $w_t = z^t$. Then $z^{d+1} - z^d + \eta c = 0$, and the root $z$ of the largest size says by which factor $w$
# grows a step in the long run. For $d = 1$ and $\eta c = 1.5$ it is $\sqrt{1.5}$.

# %% tags=["look"]
early, late = (max(abs(w) for w in paths[1][start : start + 11]) for start in (30, 90))
one_old.reveal(modelled=sources.growth_factor(1.5, delay=1), simulated=(late / early) ** (1 / 60))

# %% [markdown] tags=["explain"]
# (Simulated: from the highest of some waves to that of some later ones, 60 steps apart.) A correction that
# comes late overshoots, and the correction of that comes late as well. Where is the limit? The largest stable $\eta c$ is known
# (Levin and May, "A note on difference-delay equations", 1976):
#
# $$\eta c < 2 \sin \frac{\pi}{2\,(2d + 1)}$$
#
# Test it without using it: run the descent, and halve an interval between a rate that settles and one that grows.


# %% tags=["run"]
def largest_stable(delay):
    settles, grows = 0.0, 2.5
    for _ in range(14):
        rate = (settles + grows) / 2
        path = [abs(w) for w in sources.descend_quadratic(1, rate=rate, delay=delay, steps=600)]
        settles, grows = (rate, grows) if max(path[400:]) < max(path[200:400]) else (settles, rate)
    return settles


delays = [0, 1, 2, 4, 8, 16]
modelled = [sources.stability_limit(delay) for delay in delays]
simulated = [largest_stable(delay) for delay in delays]

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_limits(delays, modelled, simulated)
plotting.show(
    drawn,
    alt="The largest stable rate times curvature falls from 2 without delay to about 0.1 at delay 16; model and runs agree.",
)

# %% tags=["explain"]
apart = max(abs(found / limit - 1) for found, limit in zip(simulated, modelled, strict=True))
print("limit for delays 0, 1, 2:", ", ".join(f"{limit:.3f}" for limit in modelled[:3]))
print("found by running:           ", ", ".join(f"{limit:.3f}" for limit in simulated[:3]))
assert apart < 0.01

# %% [markdown] tags=["explain"]
# One old update halves the rate that you may use; for long delays the limit is about $\pi / (2 d)$. Stale gradients are not
# free: you pay with a smaller rate, so with more steps.
#
# A parabola in one direction is no training. Here are 256 examples of a least-squares problem with 16 weights, whose largest
# curvature is 1 by construction, trained by PyTorch just below the limit and just above it.

# %% tags=["look"]
problem = sources.least_squares()
for delay in (0, 4):
    for part in (0.9, 1.1):
        rate = part * sources.stability_limit(delay)
        run = sources.train_stale(problem.model(), problem.examples, delay=delay, rate=rate, steps=400, batch_size=None)
        grows = max(run.losses[300:]) > max(run.losses[200:300])
        print(f"delay {delay}, {part:.0%} of the limit: the loss {'grows' if grows else 'falls'}")

# %% [markdown] tags=["explain"]
# With 16 weights the descent is 16 parabolas at once, one for each curvature, and the most curved one decides.

# %% [markdown] tags=["slide"] minutes=1
# ### And a real network?
#
# The limit needs the curvature of the loss: measure it at the first weights, on all digits. Which is the lowest of five rates
# at which delay 4 blows up?
#
# The rates are 0.05, 0.1, 0.2, 0.4 and 0.8. The network has one hidden layer of 32, and all runs begin with the same weights
# and see the same batches. Staleness is a plain queue here, so a run can be repeated bit for bit.

# %% tags=["predict"]
blown_up_from = helpers.predict("At which of the rates does training with delay 4 blow up first?", "")
blown_up_from

# %% tags=["run"]
torch.manual_seed(0)
net = helpers.BasicFCModel(784, 32, 10, 2).to(device)
rates = (0.05, 0.1, 0.2, 0.4, 0.8)
sweep = sources.sweep_stale(net, digits, delays=(0, 1, 2, 4, 8), rates=rates, steps=120)
again = sources.train_stale(net, digits, delay=4, rate=0.1, steps=120)
print(f"{len(sweep.runs)} runs of {sweep.runs[0].steps} steps")
assert again.weights == sweep.run(4, 0.1).weights  # bit for bit

# %% tags=["look", "slide", "slide-output"] minutes=2
drawn = plotting.draw_stale(sweep)
alt = "A map of the final loss by delay and rate: low losses at short delays, hatched cells that blew up at long delays and high rates; the modelled limit steps down with the delay."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output"]
limit = sources.stability_limit(4) / sweep.curvature
print(f"curvature at the start {sweep.curvature:.2f}, so the limit of the rate at delay 4 is {limit:.3f}")
above = [rate for rate in rates if rate > limit]
blown_up = [rate for rate in rates if sweep.run(4, rate).diverged]
blown_up_from.reveal(modelled=min(above, default=None), measured=min(blown_up, default=None))

# %% tags=["explain", "nbval-ignore-output"]
most = {delay: max(rate for rate in rates if not sweep.run(delay, rate).diverged) for delay in (0, 1, 2, 4, 8)}
print("the largest rate that survives, by delay:", most)
assert most[8] < most[0]

# %% [markdown] tags=["explain"]
# The shape is that of the theory; the place is not. At delay 4 the model says 0.05, the lowest rate above the limit; the runs
# that we saw survive 0.1 and blow up at 0.2. The formula is for one fixed curvature, and a network does not keep its own. Do the
# runs survive because they go where the loss is flatter? Write the queue out, train at both rates again, and measure on the way:


# %% tags=["look", "nbval-ignore-output"]
def delayed(rate, delay=4, steps=120):
    """Train with gradients that are `delay` updates old; return rate times curvature over the limit, by step."""
    model, waiting, seen = copy.deepcopy(net), [], {}
    weights = list(model.parameters())
    for done in range(steps + 1):
        if done % 20 == 0:
            curvature = sources.largest_curvature(model, digits, iterations=15)
            seen[done] = rate * curvature / sources.stability_limit(delay)
        batch = torch.randint(len(images), (64,), device=device)
        waiting.append(torch.autograd.grad(nn.functional.cross_entropy(model(images[batch]), labels[batch]), weights))
        if len(waiting) > delay:
            for weight, slope in zip(weights, waiting.pop(0), strict=True):
                weight.data -= rate * slope
    return seen


torch.manual_seed(0)
over_limit = pd.DataFrame({f"rate {rate}": delayed(rate) for rate in (0.05, 0.1)})
print("rate times curvature, as a multiple of the limit, by step")
print(over_limit.round(1).to_string())

# %% tags=["explain"]
for times in (2, 5):
    print(
        f"a parabola at {times} times the limit: the wave grows {sources.growth_factor(times * 0.3473, delay=4):.2f} times a step"
    )
assert (over_limit.max() > 1.5).all()

# %% [markdown] tags=["explain"]
# No. The curvature grows to several times what the limit allows and comes down again, but not to where a parabola would be stable:
# both runs stand above the limit nearly all the time, and they learn. On a parabola the wave would grow a million times in
# some 120 steps even at twice the limit. Here it grows for a while (move the sliders below to delay 4, rate 0.1) and then no more.
# So far out the loss is no parabola. The cross-entropy is steep, but no steeper the further one goes: the slope of each logit is at
# most 1. That fits, and it is not shown; we know of no formula for the rate at which such a network blows up. (Without delay, and
# with all digits in each step, the curvature is known to hover about the limit: Cohen and others, ["Gradient descent on neural
# networks typically occurs at the edge of stability"](https://arxiv.org/abs/2103.00065), 2021.) So the limit at the first weights
# is a guide and no law.

# %% tags=["look"]
guessing = torch.log(torch.tensor(10.0)).item()


def draw_run(delay, rate):
    chosen = {"no delay": sweep.run(0, rate).losses, f"delay {delay}": sweep.run(delay, rate).losses}
    return plotting.draw_losses(chosen, title=f"Delay {delay}, rate {rate:g}", smooth=5, guessing=guessing)


helpers.interactive_figure(
    draw_run,
    {"delay": [1, 2, 4, 8], "rate": list(rates)},
    views=[{"delay": 4, "rate": 0.05}, {"delay": 4, "rate": 0.1}, {"delay": 4, "rate": 0.4}],
    alt=lambda delay, rate: (
        f"Loss by step at rate {rate:g}, without delay and with delay {delay}, and the loss of guessing."
    ),
)

# %% [markdown] tags=["explain"]
# A final loss near $\ln 10 = 2.30$ is that of guessing: a network that blew up may look merely untrained. `largest_loss` tells
# the two apart, and that is how the map knows what to hatch.

# %% [markdown] tags=["slide"] minutes=1
# ### Where delays come from: a parameter server
#
# Workers fetch the weights, compute a gradient, send it, and wait for nobody. Four workers are equally fast. How old is a
# gradient when it is applied?
#
# The server (a [parameter server](glossary.md#parameter-server)) applies each gradient as it comes. Learning is real here, the
# clock is simulated, so all is exact.

# %% tags=["predict"]
age = helpers.predict("Four equal workers: how many updates old is a gradient when it is applied?", "updates")
age

# %% tags=["run", "slide", "slide-output"] minutes=1
server = sources.simulate_server(net, digits, compute_s=(1, 1, 1, 1), rate=0.05, updates=100)
for staleness, count in server.staleness_counts.items():
    print(f"staleness {staleness}: {count:>2} of {server.updates} updates")

# %% tags=["look"]
age.reveal(modelled=4 - 1, simulated=max(server.staleness_counts, key=server.staleness_counts.get))

# %% tags=["explain"]
queue = sources.train_stale(net, digits, delay=3, rate=0.05, steps=103)
print(f"{server.updates} updates of the server, {queue.updates} of a queue with delay 3")
assert server.weights == queue.weights  # bit for bit

# %% [markdown] tags=["explain"]
# Both end with the same weights, bit for bit. (The queue takes 103 steps, because in the first three no gradient has arrived.) While one worker computes, each of the three
# others sends one gradient. So a server with $W$ equal workers *is* the queue with
# delay $W - 1$, and the map above tells which rates it can bear. Now one worker of three is three times slower:


# %% tags=["predict"]
slow_age = helpers.predict("Workers that take 1, 1 and 3 s: how old are the slow one's gradients?", "updates")
slow_age

# %% tags=["run", "slide", "slide-output"] minutes=1
seconds = (1, 1, 3)
spans = [
    plotting.Span(f"worker {worker}", start, start + length, f"a gradient every {length} s")
    for worker, length in enumerate(seconds)
    for start in range(0, 9, length)
]
drawn = plotting.gantt(spans, title="Three workers, nobody waits")
plotting.show(drawn, alt="Workers 0 and 1 finish a gradient every second, worker 2 every three seconds.")

# %% tags=["look"]
server = sources.simulate_server(net, digits, compute_s=seconds, rate=0.05, updates=70)
for share in server.shares:
    print(f"worker {share.worker}: {share.updates} updates, {share.mean_staleness:.2f} updates old in the mean")
slow_age.reveal(modelled=2 * 3, simulated=server.shares[2].mean_staleness)

# %% [markdown] tags=["explain"]
# In its three seconds the others send three gradients each. The slowest worker sends the fewest gradients and the oldest ones.
# If all waited for one another (lesson 04), the two fast workers would stand idle two thirds of the time instead: that is the
# trade.
#
# ### With real threads, with a lock and without
#
# The same with threads of this process. `run_server` locks the weights while they are copied or changed. `run_hogwild` has one
# set of weights and no lock at all ([Hogwild](glossary.md#hogwild): Recht and others, [2011](https://arxiv.org/abs/1106.5730)).
# Nobody sets the delay now; the machine does.

# %% tags=["run", "nbval-ignore-output"]
threaded = [
    run(net, digits, workers=workers, rate=0.05, updates=100)
    for run in (sources.run_server, sources.run_hogwild)
    for workers in (1, 2, 4)
]
shown = pd.DataFrame([run.to_dict() for run in threaded])
results.printed(shown[["how", "workers", "mean_staleness", "largest_staleness", "first_loss", "final_loss"]])

# %% tags=["look"]
print("largest staleness with one worker:", [run.largest_staleness for run in threaded if run.workers == 1])
assert all(run.final_loss < run.first_loss for run in threaded)

# %% [markdown] tags=["explain"]
# Look at the largest staleness: when the operating system takes the core from a thread that has read the weights, that thread
# comes back with an older gradient than the rest. Run it again, and the numbers change; a run like this cannot be repeated.
#
# Without a lock something else can happen: two threads read the same number, each adds its own, each writes, and one addition
# is lost. Two threads have a read and a write each. In how many of the possible orders is nothing lost?

# %% tags=["predict"]
lossless = helpers.predict(
    "Two threads, a read and a write each: in which share of the orders is no addition lost?", "%"
)
lossless

# %% tags=["run"]
for workers in (2, 3, 4):
    orders = sources.interleave_additions(workers)
    print(f"{workers} threads: {orders.interleavings:,} orders, nothing lost in {orders.lossless_share:.1%}")

# %% [markdown]
# The model for two: nothing is lost only when one thread is done before the other begins, which is 2 of $4! / (2!\,2!) = 6$
# orders.

# %% tags=["look"]
lossless.reveal(modelled=100 * 2 / 6, counted=100 * sources.interleave_additions(2).lossless_share)

# %% [markdown] tags=["look"]
# If the orders were equally likely, most additions of many threads would be lost. On a real machine a read and its write stand
# close together, and so it is a matter of how close:

# %% tags=["look", "nbval-ignore-output"]
lost = [
    sources.count_lost_updates(4, how="read, then write"),
    sources.count_lost_updates(4, how="in place"),
    sources.count_lost_updates(4, how="in place", with_lock=True),
]
results.printed(pd.DataFrame([count.to_dict() for count in lost])[["how", "with_lock", "additions", "lost_additions"]])

# %% tags=["look"]
print(f"with a lock: {lost[2].lost_additions} of {lost[2].additions:,} additions lost")

# %% [markdown] tags=["explain"]
# SGD bears a few lost updates: each is one small step among thousands. Its proof for Hogwild asks for updates that touch few
# weights each, and those of a dense network touch all. On a GPU the threads of a process share one stream of kernels (unless they
# ask for others), which run one after another, and an addition in place is one kernel: gradients are stale there as well, but no
# such addition is lost.

# %% [markdown] tags=["slide"] minutes=0.5
# ### Or meet less often: local SGD
#
# Each worker trains its own copy. Every $k$ steps all take the mean of their weights.
#
# This is [local SGD](glossary.md#local-sgd) (Stich, [2018](https://arxiv.org/abs/1805.09767)). Four workers, 150 steps. Weights
# are averaged by a [ring all-reduce](glossary.md#ring-all-reduce) (lesson 04): the weights are cut into $W$ chunks, and each worker
# sends a chunk to its neighbour in each of $2 (W-1)$ rounds. This network has 25,450 weights of 4 bytes.

# %% tags=["predict"]
sent = helpers.predict("How many bytes does each of 4 workers send in 150 steps when they average every 10 steps?", "B")
sent

# %% tags=["run"]
local = sources.sweep_local(net, digits, workers=4, every=(1, 10, 50), rate=0.1, steps=150)
for run in local.runs:
    print(f"every {run.synchronise_every}: {run.synchronisations} synchronisations")

# %% tags=["look"]
weight_bytes = sum(weight.nbytes for weight in net.parameters())
sent.reveal(modelled=150 / 10 * 2 * 3 / 4 * weight_bytes, counted=local.runs[1].sent_bytes)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=0.5
names = [f"every {run.synchronise_every}" for run in local.runs]
table = pd.DataFrame([run.to_dict() for run in local.runs], index=names)
results.printed(table[["sent_bytes", "final_loss", "largest_distance"]])

# %% tags=["explain"]
dearest, _, cheapest = local.runs
print(f"sent every step: {dearest.sent_bytes:,} bytes; every 50 steps: {cheapest.sent_bytes:,}")
assert cheapest.final_loss < cheapest.first_loss / 2
assert cheapest.largest_distance > dearest.largest_distance

# %% [markdown] tags=["explain"]
# The workers run in one process here, so nothing goes over a wire: the bytes are counted in the messages that the ring would send.
# 25,450 weights do not divide by four, so some chunks have one weight more, and the count is a little above the model. A fiftieth
# of the bytes still brings the loss down by more than half; the workers drift further apart meanwhile.
#
# With $k = 1$ this is the split over examples: the mean of weights that one step changed is one step with the mean gradient.
# The largest distance is how far a worker has gone from the mean when they meet. These digits forgive it; a harder problem, or
# parts of the data that differ more between the workers, may not.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 5: over models
#
# A search over learning rates, an ensemble, a cross-validation: whole trainings that never wait for one another. What is left
# to gain on *one* core?
#
# 16 networks can be trained in a loop, one operator call for each layer of each network; or stacked, where `torch.vmap` makes
# one batched product of the 16. Do they learn the same?

# %% tags=["look"]
nets = sources.make_ensemble(8, hidden=16, device=device)
looped = sources.train_in_loop(nets, digits, rate=0.1, steps=20)
stacked = sources.train_stacked(nets, digits, rate=0.1, steps=20)
print("the largest difference between two weights is below 1e-4")
assert sources.largest_difference(looped, stacked) < 1e-4

# %% [markdown] tags=["explain"]
# A step of one network costs an overhead $o$ (Python, autograd, the calls) and work $w$. The loop pays $N (o + w)$. A stack
# pays $o' + N w$, with an overhead $o'$ of its own that does not grow with $N$. So stacking saves overhead and never work. How
# large may the networks be until nothing is left to save?

# %% tags=["predict"]
stack_ratio = helpers.predict("16 networks 16 wide, batch 32: which share of the loop's time does the stack take?", "%")
stack_ratio

# %% tags=["run", "nbval-ignore-output"]
overheads = sources.measure_overheads(device=device)
with helpers.Ranks(2) as pool:
    crossover = sources.sweep_crossover(
        digits, nets=16, sizes=((16, 32), (64, 64), (256, 128)), budget_s=0.4, pool=pool, device=device
    )
print(f"overhead of a step: one network {overheads.net_s * 1e6:,.0f} us, a stack {overheads.stack_s * 1e6:,.0f} us")

# %% [markdown]
# The two overheads are measured on networks one wide, which have next to no work. Then $w$ follows from the time of the loop,
# and with it the model of the stack.


# %% tags=["look", "slide", "slide-output"] minutes=2
def modelled_ratio(point):
    work_s = max(0.0, point.loop_s / point.nets - overheads.net_s)
    return (overheads.stack_s + point.nets * work_s) / point.loop_s


points = tuple(dataclasses.replace(point, modelled_ratio=modelled_ratio(point)) for point in crossover.points)
drawn = plotting.draw_crossover(dataclasses.replace(crossover, points=points))
alt = "Time over the loop's for three sizes of network: stacked as modelled and as measured, and in two processes."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output"]
stack_ratio.reveal(modelled=100 * points[0].modelled_ratio, measured=100 * points[0].stacked_ratio)

# %% tags=["explain"]
timing.claim(
    "for small networks the stack takes less time than the loop",
    points[0].stacked_ratio,
    at_most=0.8,
    evidence=points[0],
)

# %% [markdown] tags=["explain"]
# Small networks are mostly overhead, and a stack pays it once. For larger ones work outweighs overhead, and the model comes
# closer to 1. (The overheads are measured first and the loop after them: on a machine that is busy with other things they may
# not fit each other, and the model is off by as much.) Where the measured stack is slower than the loop, it has found what the
# model left out: a batched product may run at a lower rate than a single one, and 16 networks need not fit a
# [cache](glossary.md#cache) together where one does. Two processes (the third line) share the work over
# cores instead, and keep each network's products as they are: they can win where the stack cannot, provided that there are two
# free cores. The rates may differ from network to network, so a search for the best one is the same experiment:

# %% tags=["explain", "nbval-ignore-output"]
rates_tried = [0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8]
searched = sources.train_stacked(nets, digits, rate=rates_tried, steps=60)
with torch.no_grad():
    found = [nn.functional.cross_entropy(model(images), labels).item() for model in searched]
results.printed(pd.DataFrame({"rate": rates_tried, "loss": found}))

# %% [markdown] tags=["slide"] minutes=2
# ## Part 6: which source for which machine?
#
# Four places: a CPU's cores, a GPU's cores, four GPUs, four machines. For which source is at least half of a step left for
# computing?
#
# The step is that of a wide network: three layers, 4,096 wide, a batch of 64. Each place computes at its peak and exchanges
# over one link, and nothing is hidden behind computing. Peaks and the [bandwidths](glossary.md#bandwidth) of memory come from
# `hardware.device`, with their sources. Between GPUs there is NVLink: an A100 has 12 such links of 25 GB/s in each direction, so
# 300 GB/s each way and 600 GB/s in all ([NVIDIA Ampere Architecture
# In-Depth](https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/)). The network between the machines is one of
# 10 Gbit/s. The [latencies](glossary.md#latency) are assumptions: put your own there.

# %%
epyc, a100 = hardware.device("EPYC 7713"), hardware.device("A100 SXM 40 GB")
# name: (chip, number of chips, bandwidth of the link in bytes/s each way, latency in s)
places = {
    "CPU cores": (epyc, 1, epyc.bus_bandwidth_bytes_per_s, 1e-6),
    "GPU cores": (a100, 1, a100.bus_bandwidth_bytes_per_s, 5e-6),
    "4 GPUs": (a100, 4, 12 * 25e9, 10e-6),
    "4 machines": (a100, 4, 10e9 / 8, 50e-6),
}

# %% [markdown]
# First your own answer. Put `y` or `n` for each source, in the order of the headings: within a layer, over examples, over
# update iterations, over models.

# %%
mine = {
    "CPU cores": "????",
    "GPU cores": "????",
    "4 GPUs": "????",
    "4 machines": "????",
}

# %% [markdown]
# The model of each case is one line: the share that is left is $t / (t + n\,\alpha + b\,\beta)$, for $t$ seconds of computing,
# $n$ synchronisations, $b$ bytes, latency $\alpha$, and $\beta$ one over the bandwidth. (Over update iterations a worker waits for nobody, but
# its own bytes must still pass.) It errs in both directions: it counts the fewest bytes that must be exchanged, which is too
# good, and it computes at the peak and overlaps nothing, which is too bad. So believe the large gaps, and doubt what is near the
# half.


# %%
def shares_left(model, shape):
    work = operations.profile_ops(model, shape)
    four = sources.sources_of_parallelism(model, shape)
    table = {}
    for place, (chip, workers, bandwidth, latency_s) in places.items():
        compute_s = (work.forward_flops + work.backward_flops) / workers / chip.peak("float32").dense_flops_per_s
        costs = sources.cost_on_link(
            four, link=place, compute_s=compute_s, bandwidth_bytes_per_s=bandwidth, latency_s=latency_s
        )
        table[place] = {row.source: row.compute_share for row in costs.rows}
    return pd.DataFrame(table).T


# %% tags=["predict"]
yes_cases = helpers.predict("In how many of the 16 cases is at least half of the step left for computing?", "cases")
yes_cases

# %% tags=["run", "slide", "slide-output"] minutes=2
network = helpers.BasicFCModel(784, 4096, 10, 3)
left = shares_left(network, (64, 784))
left.T.map("{:.1%}".format)

# %% tags=["look"]
pays = left >= 0.5
yes_cases.reveal(modelled=int(pays.to_numpy().sum()))
given = pd.DataFrame([list(mine[place]) for place in pays.index], index=pays.index, columns=pays.columns)
right = (given == pays.replace({True: "y", False: "n"})).to_numpy().sum()
print(f"your table: {(given != '?').to_numpy().sum()} of 16 filled in, {right} as the model says")

# %% [markdown] tags=["explain"]
# Nothing is measured here: these machines are not under your notebook, so this is a model to be doubted. What does it say? Within
# one chip everything pays. Between machines only whole models do. And in the column of the four GPUs something is the other way
# round than most expect: splitting *within the layers* leaves far more of the step than splitting the batch does. The layers are
# wide and the batch is small, so the gradient is far larger than what crosses the layers (as LeNet's at a batch below 7).
# Krizhevsky saw it in AlexNet's fully connected layers (["One weird trick for parallelizing convolutional neural
# networks"](https://arxiv.org/abs/1404.5997), 2014).
#
# ### How many of the four sources pay?
#
# That depends on the network and its batch. What changes with a batch of 4,096, and with LeNet?

# %% tags=["look", "slide", "slide-output"] minutes=1
tables = {
    "wide, 64": left,
    "wide, 4096": shares_left(network, (4096, 784)),
    "LeNet, 64": shares_left(helpers.LeNet(), (64, 1, 28, 28)),
}
counts = {name: (table >= 0.5).sum(axis=1) for name, table in tables.items()}
results.printed(pd.DataFrame(counts))

# %% tags=["explain"]
more = tables["wide, 4096"].loc["4 GPUs", "over examples"]
print(f"four GPUs, over examples: {left.loc['4 GPUs', 'over examples']:.0%} left at batch 64, {more:.0%} at batch 4096")
print("LeNet on one GPU, within a layer:", f"{tables['LeNet, 64'].loc['GPU cores', 'within a layer']:.0%} left")

# %% [markdown] tags=["explain"]
# A larger batch gives the split over examples more to compute for the same bytes. And LeNet is too small for a GPU altogether:
# its step is over before the cores have met nine times. That may be a second reason why the lecture's GPU (4.37 s) gained so
# little on its CPU (5.22 s).
#
# Two limits of the table. It says what could pay, not what a library offers: PyTorch uses the cores of a chip within layers and
# over examples, both at once, without asking you, and leaves update iterations to you. And nothing is overlapped here; lesson
# 04 sends one layer's gradient while the layer before it is still computing.

# %% [markdown]
# The [exercises](exercises/03_sources_of_parallelism_exercises.ipynb) of this lesson: cut a product and count its bytes, mend a
# parameter server that counts staleness wrongly, and decide which source pays on a given link.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. The four sources differ in what they exchange, and how often.
# 2. What is exchanged in each step decides which machine can use a source.
# 3. Late gradients need smaller steps.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | minibatch SGD | $w \leftarrow w - \frac{\eta}{B} \sum_i \nabla \ell_i$ | weights $w$, a batch of $B$ examples with losses $\ell_i$ |
# | received by one of $p$, cut by columns or rows | $\frac{p-1}{p} \cdot \text{output}$ | bytes |
# | received by one of $p$, cut over $k$ | $(p-1) \cdot \text{output}$ | bytes; $(p-1)\,m\,n$ additions |
# | exchanged within layers | $B \cdot (\text{outputs} + \text{inputs but the first})$ | grows with the batch |
# | exchanged over examples | parameters | once a step, whatever the batch |
# | delayed descent is stable | $\eta\,c < 2 \sin \frac{\pi}{2 (2d+1)}$ | curvature $c$, delay $d$ |
# | staleness at a parameter server | $W - 1$ | $W$ equal workers |
# | orders of $n$ threads' reads and writes | $(2n)! / 2^n$ | $n!$ of them lose nothing |
# | sent by each worker, local SGD, about | $\lceil \text{steps}/k \rceil \cdot 2 \frac{W-1}{W} \cdot \text{weights}$ | averaging every $k$ steps |
# | loop against stack | $N (o + w)$ against $o' + N w$ | $N$ networks; a step's overhead $o$ (the stack's: $o'$) and work $w$ |
# | share left for computing | $t / (t + n \alpha + b \beta)$ | $n$ synchronisations, $b$ bytes |
