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
#     number: "04"
#     title: Four sources of parallelism
#     needs: ["00"]
#     objectives:
#       - find|found how much of a training can run at once
#       - write|wrote a sum for many adders, a gradient in parts, descent on old gradients
#       - predict|predicted at which learning rate old gradients fail
#       - simulate|simulated what four workers are worth, waiting and not
#       - choose|chose the sources that pay on a given link
# ---

# %% [markdown] tags=["objectives"]
# # Four sources of parallelism
#
# A graphics processor has thousands of arithmetic units, and a large training uses thousands of such processors. They help only where
# work does not wait for other work. A training has four places to look for such work. Each has its
# price: workers wait for one another, or use old weights, or train a model each.

# %%
import itertools
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import torch
from torch import nn

import helpers
from helpers import exercises, hardware, operations, plotting, results, timing, units
from helpers.studies import sgd_parallelism

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# - Four workers share the weights of a network
# - Each computes gradients on 64 images, adds its updates
# - Nobody waits: four times as many updates
#
# One worker alone reaches a training loss of 0.5 after a while. All workers are equally fast. Sending takes no time.
# One and four each use the best of nine learning rates.

# %% tags=["predict", "slide-output"] axis=[0.1, 10]
bet = helpers.predict("Four workers that never wait: how many times as fast as one?", "x")
bet

# %% [markdown]
# ## Part 1: the four sources
#
# $$w \leftarrow w - \frac{\eta}{B} \sum_{i=1}^{B} \nabla_w\, \ell\bigl(f(x_i; w),\, y_i\bigr)$$
#
# This is minibatch SGD: $\eta$ is the learning rate, $B$ the batch size, $f$ the network, $\ell$ the loss. There is work for many
# within $f$, whose layers are large sums; in the terms of $\sum_i$; in update after update, if old weights will do; and
# in whole trainings. Here are two workers, A and B, and two layers:

# %% tags=["slide", "slide-output"] minutes=2 headline="Workers wait between layers, once an update, or never" layout="steps" frames=[1, 3, 5, 7]
plotting.play(
    [sgd_parallelism.draw_sources(until=until, title="") for until in range(1, 9)],
    title="Two workers share a training, four ways",
    stills=(7,),
    alt="Four schedules of two workers, with waits in the first two and none in the others.",
)

# %% [markdown]
# An orange bar is a [synchronisation](glossary.md#synchronisation): both wait until they have exchanged what they computed (its length is made up). An arrow
# adds an update to the weights that A and B have in common, and nobody waits.
#
# How much can be gained at best? Here is a training as tasks: the forward of one layer
# for one example, its backward, or an update. `needs[task]` lists the tasks that it waits for.


# %%
def training(steps=10, examples=8, layers=3, models=1, delay=0):
    needs = {}
    for model, step in itertools.product(range(models), range(steps)):
        for example in range(examples):
            waits_for = [(model, step - 1 - delay)] if step > delay else []
            for layer in [*range(layers), *range(-layers, 0)]:  # forward, then backward
                task = model, step, example, layer
                needs[task], waits_for = waits_for, [task]
        gradients = [(model, step, example, -1) for example in range(examples)]
        needs[model, step] = gradients + ([(model, step - 1)] if step else [])
    return needs


# %% [markdown]
# **Your turn.** However many workers there are, the tasks of a *chain*, each of which waits for the one before, run one after another.


# %% tags=["yours"] yours="longest_chain"
def longest_chain(needs):
    """Return how many tasks the longest chain has.

    ``needs[task]`` lists what a task waits for; a task comes later than all of these.
    """
    chain = {}
    for task, waits_for in needs.items():
        chain[task] = 1 + max((chain[each] for each in waits_for), default=0)
    return max(chain.values())


# %% checks="longest_chain"
asked = exercises.Checks("The longest chain", longest_chain)
fork = {"a": [], "b": ["a"], "c": ["a"], "d": ["a", "b", "c"]}
slips = {
    4: "Those are all tasks: b and c do not wait for each other",
    6: "b and c can run at once: take the longest, not the sum",
    2: "Count the tasks a, b, d, not the waits between them",
}
asked.returns("two tasks at once", (fork,), expected=3, mistakes=slips)
slips = {5: slips[4], 6: slips[6], 2: slips[2]}
slips[1] = "The chain may end at any task: take the longest of all"
asked.returns("the last task stands alone", (fork | {"e": []},), expected=3, mistakes=slips)
longest_chain = asked.settle()


# %% wrong="longest_chain" says="take the longest, not the sum"
def longest_chain(needs):
    chain = {}
    for task, waits_for in needs.items():
        chain[task] = 1 + sum(chain[each] for each in waits_for)
    return max(chain.values())


# %% wrong="longest_chain" says="take the longest of all"
def longest_chain(needs):
    chain = {}
    for task, waits_for in needs.items():
        chain[task] = 1 + max((chain[each] for each in waits_for), default=0)
    return chain[task]


# %% [markdown]
# All tasks take the same time, and exchanges take none. A training has 10 steps, batches of 8 examples and 3 layers.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000]
at_best = helpers.predict("Workers without end: how many times as fast as one?", "x")
at_best

# %% tags=["run"]
cases = {"as it is": {}, "16 examples": {"examples": 16}, "2 models": {"models": 2}}
cases |= {"20 steps": {"steps": 20}, "6 layers": {"layers": 6}}
cases["gradients 1 update old"] = {"delay": 1}
rows = {}
for name, change in cases.items():
    needs = training(**change)
    rows[name] = [len(needs), longest_chain(needs), len(needs) / longest_chain(needs)]

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Examples and models add work, and nothing to the chain"
at_best.reveal(modelled=(8 * 6 + 1) / (6 + 1), counted=rows["as it is"][2])
columns = ["tasks", "longest chain", "times as fast at best"]
pd.DataFrame(rows, index=columns).T.astype({"tasks": int, "longest chain": int}).round(1)

# %% [markdown] tags=["explain"]
# More examples or models add tasks, and no link to the chain. Each step adds 7 links: three layers forward, three back, an update.
# Gradients that are one update old nearly halve the chain, because two steps are under way at once. With $p$ workers a
# training takes at least the longer of *tasks / p* and *longest chain*. The remaining source, within a layer, cuts a task itself.

# %% [markdown]
# ## Part 2: within a layer
#
# - A layer is a product $(m, k) \cdot (k, n)$
# - It can be cut along $m$, $n$ or $k$
# - Only the cut along $k$ needs a sum
#
# The matrices hold small whole numbers, so every sum is exact.

# %%
torch.manual_seed(0)
a, b = torch.randint(-9, 10, (4, 6)).float(), torch.randint(-9, 10, (6, 8)).float()
rows_cut = torch.cat([a[:2] @ b, a[2:] @ b])
columns_cut = torch.cat([a @ b[:, :4], a @ b[:, 4:]], dim=1)
inner_cut = a[:, :3] @ b[:3] + a[:, 3:] @ b[3:]
assert all(torch.equal(cut, a @ b) for cut in (rows_cut, columns_cut, inner_cut))

# %%
drawn = sgd_parallelism.draw_split(sgd_parallelism.model_split(4, 6, 8, by="columns", parts=2))
alt = "By columns: b and the output are cut in halves; both parts need all of a."
plotting.show(drawn, alt=alt)

# %% tags=["slide", "slide-output"] minutes=1 headline="Only the cut along the inner side needs a sum"
drawn = sgd_parallelism.draw_split(sgd_parallelism.model_split(4, 6, 8, by="inner", parts=2))
alt = "Inner: a is cut by columns, b by rows; each part has a term of the output."
plotting.show(drawn, alt=alt)

# %% [markdown]
# Take LeNet's first dense layer on 64 digits, $(64, 256) \cdot (256, 120)$. Four workers share it, and one of them needs the output:

# %% tags=["look"]
splits = {
    by: sgd_parallelism.model_split(64, 256, 120, by=by, parts=4)
    for by in sgd_parallelism.WAYS
}
table = pd.DataFrame([split.to_dict() for split in splits.values()]).set_index("by")
results.printed(table.rename_axis(None)[["received_bytes", "additions", "copied_bytes"]])

# %% [markdown] tags=["explain"]
# By rows or columns it receives the three quarters that it lacks. Along $k$ it receives three *terms*, each as large as the
# output: four times as much. But only this cut copies nothing; the others need b, or a, three times more.
#
# ### One instruction, many numbers
#
# The cut along $k$ returns inside a core. One instruction can add, say, 8 numbers to 8 others ([SIMD](glossary.md#simd)), each in
# its [lane](glossary.md#lane). A sum in 8 lanes keeps 8 running sums, and adds those up in the end.
#
# To count additions that wait for one another, we add objects that know nothing else: a sum is one addition behind the later
# term.


# %%
@dataclass
class Waits:
    additions: int = 0

    def __add__(self, other):
        return Waits(1 + max(self.additions, other.additions))

    def __radd__(self, _zero):
        return self  # 0 + x needs no addition


def chain_of(function, count, lanes):
    return function(np.array([Waits() for _ in range(count)]), lanes).additions


# %% [markdown]
# **Your turn.**


# %% tags=["yours"] yours="lane_sum"
def lane_sum(numbers, lanes):
    """Return the sum of an array: ``lanes`` running sums side by side, then these in pairs.

    ``lanes`` is a power of two and divides len(numbers). Lane i takes i, i + lanes, ...
    """
    sums, *rest = numbers.reshape(-1, lanes)
    for row in rest:
        sums = sums + row  # one instruction
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return sums[0]


# %% checks="lane_sum"
asked = exercises.Checks("A sum in lanes", lane_sum)
asked.returns("it is the sum", (np.arange(64.0), 8), expected=2016.0)
slips = {
    63: "One addition waits for the other, 63 times: keep 8 running sums",
    14: "The 8 sums are added one after another: add half of them to the other half",
    6: "That is one number a lane, in pairs from the start: there are only 8 lanes",
}
goal = "64 numbers, 8 lanes: additions one after another"
asked.returns(goal, (64, 8), call=chain_of, expected=7 + 3, mistakes=slips)
lane_sum = asked.settle()


# %% wrong="lane_sum" says="keep 8 running sums"
def lane_sum(numbers, _lanes):
    return sum(numbers)


# %% wrong="lane_sum" says="add half of them to the other half"
def lane_sum(numbers, lanes):
    return sum(sum(numbers.reshape(-1, lanes)))


# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 4096]
fewest = helpers.predict(
    "4,096 numbers, lanes without end: how many additions one after another?", "additions"
)
fewest

# %% tags=["run"]
chains = {lanes: chain_of(lane_sum, 4096, lanes) for lanes in (1, 8, 16, 256, 4096)}
rounded = np.array([2.0**24] + [1.0] * 15, dtype=np.float32)  # 16,777,231

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Lanes without end still leave a chain"
fewest.reveal(modelled=math.log2(4096), counted=chains[4096])
for lanes, chain in chains.items():
    print(f"lanes: {lanes:5,}; additions one after another: {chain:5,}")
for lanes in (1, 8):
    print(f"2^24 + 15 in float32, lanes {lanes}: {lane_sum(rounded, lanes):,.0f}")

# %% [markdown] tags=["explain"]
# Even with a lane for each number, pairs and pairs of pairs take 12 additions, because $2^{12} = 4096$.
#
# Another order can be another result in float32: exactly it is 16,777,231. From $2^{24}$ on neighbours are 2 apart, so a 1 that is added to
# $2^{24}$ is lost, in one lane all 15. So a compiler may not use lanes for such a sum unless you allow it. [The
# appendix](appendix/04_sources_of_parallelism.ipynb) counts its instructions and times them.

# %% [markdown]
# ## Part 3: over examples
#
# $$\nabla = \frac{1}{B} \sum_{i=1}^{B} \nabla \ell_i$$
#
# The terms do not wait for one another. So four workers may take a quarter of the images each, or one worker the quarters
# one after another. Our network has 196 inputs (digits of 14 x 14 pixels), 32 hidden units and 10 outputs; one
# vector `w` holds all its weights.

# %%
loader = helpers.make_MNIST_loader(batch_size=64)
images, labels = (torch.cat(part) for part in zip(*loader, strict=True))
images = nn.functional.avg_pool2d(images, 2)
torch.manual_seed(2)
net = helpers.BasicFCModel(196, 32, 10, 2)
shapes = {name: weight.shape for name, weight in net.named_parameters()}
start = nn.utils.parameters_to_vector(net.parameters()).detach()


def loss(w, images, labels):
    pieces = w.split([shape.numel() for shape in shapes.values()])
    named = zip(shapes, pieces, shapes.values(), strict=True)
    weights = {name: piece.view(shape) for name, piece, shape in named}
    return nn.functional.cross_entropy(
        torch.func.functional_call(net, weights, (images,)), labels
    )


# %% [markdown]
# **Your turn.** `gradient(images, labels)` returns the gradient of the *summed* loss of the images that it is given. `tensor.chunk(4)` cuts
# a tensor into 4 parts.


# %% tags=["yours"] yours="in_parts"
def in_parts(gradient, images, labels, parts):
    """Return the gradient of the mean loss of the whole batch, computed part by part."""
    total = 0
    for some, theirs in zip(images.chunk(parts), labels.chunk(parts), strict=True):
        total = total + gradient(some, theirs)
    return total / len(images)


# %% checks="in_parts"
asked = exercises.Checks("A gradient in parts", in_parts)
seen = []


def weighed(some, theirs):
    seen.append(len(some))
    return (some * theirs).sum()


five, theirs = torch.tensor([1.0, 2, 3, 4, 5]), torch.tensor([1.0, 1, 2, 2, 2])
slips = {
    27.0: "gradient() returns a sum: divide by the images",
    9.0: "Divide by the number of images, not of parts",
    (3 / 2 + 14 / 2 + 10) / 3: "The last part has one image: add the sums, then divide",
}
asked.returns("5 images in 3 parts", (weighed, five, theirs, 3), expected=5.4, mistakes=slips)
whole = "All images came at once: call gradient() for each part"
asked.holds("5 images in 3 parts", max(seen, default=0) == 2, otherwise=whole)
in_parts = asked.settle()


# %% wrong="in_parts" says="not of parts"
def in_parts(gradient, images, labels, parts):
    pairs = zip(images.chunk(parts), labels.chunk(parts), strict=True)
    return sum(gradient(some, theirs) for some, theirs in pairs) / parts


# %% wrong="in_parts" says="add the sums, then divide"
def in_parts(gradient, images, labels, parts):
    pairs = zip(images.chunk(parts), labels.chunk(parts), strict=True)
    return sum(gradient(some, theirs) / len(some) for some, theirs in pairs) / parts


# %% wrong="in_parts" says="call gradient() for each part"
def in_parts(gradient, images, labels, _parts):
    return gradient(images, labels) / len(images)


# %%
def summed(some, theirs):
    return torch.func.grad(loss)(start.double(), some.double(), theirs) * len(some)


whole, quarters = (in_parts(summed, images[:64], labels[:64], parts) for parts in (1, 4))
assert (whole - quarters).abs().max() < 1e-12 * whole.abs().max()
print(
    f"largest element: {whole.abs().max():.6f} whole, {quarters.abs().max():.6f} in quarters"
)

# %% [markdown]
# ### One after another, if memory is too small?
#
# - A batch of 8,192 images, a new process
# - Two hidden layers: outputs of 32 MiB, before and after ReLU
# - Room for 80 MiB
#
# It is said that a GPU works on examples at once, or one after another if its memory is too small. We let a process
# with too little try one part and 32.


# %%
def learn(in_parts, parts):
    wide = helpers.BasicFCModel(64, 1024, 10, 3)

    def gradient(some, theirs):
        total = nn.functional.cross_entropy(wide(some), theirs, reduction="sum")
        slopes = torch.autograd.grad(total, list(wide.parameters()))
        print(len(some))  # so many images are done
        return torch.cat([slope.flatten() for slope in slopes])

    torch.manual_seed(0)
    in_parts(gradient, torch.rand(8192, 64), torch.randint(10, (8192,)), parts)


# %% tags=["predict"]
done = helpers.predict(
    "In one part: for how many of the 8,192 images is there a gradient?", "images"
)
done

# %% tags=["run"]
ends = {
    parts: helpers.run_limited(learn, in_parts, parts, memory_bytes=80 * 2**20)
    for parts in (1, 32)
}

# %% tags=["look"]
through = {parts: sum(map(int, end.output.split())) for parts, end in ends.items()}
done.reveal(counted=through[1])
for parts, end in ends.items():
    print(f"parts: {parts:2}; images done: {through[parts]:5,}; the process: {end.status}")

# %% [markdown] tags=["explain"]
# None. PyTorch does not cut the batch by itself. Where it gets too little memory it raises an error, by its
# documentation [`torch.cuda.OutOfMemoryError`](https://pytorch.org/docs/stable/generated/torch.cuda.OutOfMemoryError.html) on a GPU. It was your loop
# that went one part after another: [gradient accumulation](glossary.md#gradient-accumulation).
#
# Inside a GPU blocks of threads do queue, for a free [multiprocessor](glossary.md#multiprocessor) ([lesson 20](20_convolution_time.ipynb)). For memory they
# do not.

# %% [markdown]
# ## Part 4: over update iterations
#
# - A worker that does not wait adds a [stale gradient](glossary.md#stale-gradient)
# - It belongs to weights that are $d$ updates old
# - $w_{t+1} = w_t - \eta\, \nabla \ell(w_{t-d})$
#
# While one of $p$ equal workers computes, each other one sends an update. So its gradient is $d = p - 1$ updates old. (A [parameter
# server](glossary.md#parameter-server) may keep the weights.)
#
# **Your turn.** A queue makes the delay. In the first $d$ steps no gradient has arrived, and $w$ stays as it is.


# %% tags=["yours"] yours="delayed"
def delayed(gradient, w, rate, delay, steps):
    """Return [w_0, ..., w_steps] of descent with gradients that are ``delay`` updates old.

    Each step computes gradient(w); the oldest of more than ``delay`` waiting is applied.
    """
    waiting, path = [], [w]
    for _ in range(steps):
        waiting.append(gradient(w))
        if len(waiting) > delay:
            w = w - rate * waiting.pop(0)
        path.append(w)
    return path


# %% checks="delayed"
asked = exercises.Checks("Descent on old gradients", delayed)
slips = {(8.0, 4.0, 2.0, 1.0, 0.5): "Every gradient is applied at once: let it wait"}
goal = "delay 0 is plain descent"
asked.returns(goal, (lambda w: w, 8.0, 0.5, 0, 3), expected=[8.0, 4.0, 2.0, 1.0])
slips |= {
    (8.0, 8.0, 4.0, 2.0, 1.0): "Apply the oldest gradient that waits, not the newest",
    (8.0, 4.0, 0.0, -2.0, -2.0): "In the first step nothing has arrived: w stays 8",
    (8.0, 4.0, 0.0, -2.0): "One weight for each step, also while nothing arrives",
}
given = (lambda w: w, 8.0, 0.5, 1, 4)
asked.returns("one update old", given, expected=[8.0, 8.0, 4.0, 0.0, -2.0], mistakes=slips)
delayed = asked.settle()


# %% wrong="delayed" says="the oldest gradient that waits"
def delayed(gradient, w, rate, delay, steps):
    waiting, path = [], [w]
    for _ in range(steps):
        waiting.append(gradient(w))
        if len(waiting) > delay:
            w = w - rate * waiting.pop()
        path.append(w)
    return path


# %% wrong="delayed" says="let it wait"
def delayed(gradient, w, rate, _delay, steps):
    path = [w]
    for _ in range(steps):
        path.append(path[-1] - rate * gradient(path[-1]))
    return path


# %% [markdown]
# The simplest loss is a parabola, $\ell = \tfrac{c}{2} w^2$, with curvature $c$ and gradient $c\,w$. Only $\eta c$ matters. Without delay $w$
# is multiplied by $1 - \eta c$ in each step: at $\eta c = 1.5$ by $-0.5$, so it comes to rest. Now let each gradient be one update old.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10]
one_old = helpers.predict(
    "eta c = 1.5, delay 1: by which factor does w grow a step, in the long run?", "x"
)
one_old

# %% tags=["run", "slide", "slide-output"] minutes=1 headline="The same rate grows when gradients are one update old"
paths = {delay: delayed(lambda w: w, 1.0, 1.5, delay, 100) for delay in (0, 1)}
curves = {f"delay {delay}": [w**2 / 2 for w in path[:16]] for delay, path in paths.items()}
drawn = sgd_parallelism.draw_losses(curves, title="A parabola, rate times curvature 1.5")
alt = "Without delay the loss falls in a straight line; with delay 1 it grows in waves."
plotting.show(drawn, alt=alt)

# %% [markdown]
# Try $w_t = z^t$. Then $z^{d+1} - z^d + \eta c = 0$, and the root $z$ of the largest size says how $w$ grows in the long run. For $d = 1$ and
# $\eta c = 1.5$ the two roots have the size $\sqrt{1.5}$.

# %% tags=["look"]
early, late = (max(map(abs, paths[1][first : first + 11])) for first in (30, 90))
one_old.reveal(modelled=math.sqrt(1.5), simulated=(late / early) ** (1 / 60))

# %% [markdown] tags=["explain"]
# (Simulated: peaks 60 steps apart.) A correction that comes late overshoots, and its own
# correction comes late as well.
#
# At the limit a wave keeps its size: $z = e^{i\theta}$. Then $\eta c = z^d (1 - z)$ has the size $2 \sin \frac{\theta}{2}$. It is
# a positive number first if $d\,\theta = \frac{\pi - \theta}{2}$, so $\theta = \frac{\pi}{2d + 1}$. Descent with delay $d$ is stable below (Levin and May, "A note on difference-delay equations", 1976)
#
# $$\eta c < 2 \sin \frac{\pi}{2\,(2d + 1)}$$
#
# Test it without using it: run your descent, and halve the gap between an $\eta c$ that settles and one that grows.


# %% tags=["run"]
def largest_stable(delay):
    settles, grows = 0.0, 2.5
    for _ in range(14):
        rate = (settles + grows) / 2
        path = [abs(w) for w in delayed(lambda w: w, 1.0, rate, delay, 600)]
        falls = max(path[400:]) < max(path[200:400])
        settles, grows = (rate, grows) if falls else (settles, rate)
    return settles


delays = [0, 1, 2, 3, 4, 8, 16]
limits = {delay: 2 * math.sin(math.pi / (2 * (2 * delay + 1))) for delay in delays}
found = [largest_stable(delay) for delay in delays]
assert np.allclose(found, list(limits.values()), rtol=0.01)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The largest stable rate shrinks with the delay"
alt = "Rate times curvature at the limit: 2 without delay, 0.1 at delay 16; both agree."
plotting.show(sgd_parallelism.draw_limits(delays, list(limits.values()), found), alt=alt)

# %% [markdown] tags=["explain"]
# One old update halves the largest stable rate. Near its minimum a loss of many weights is nearly a sum of parabolas, and the
# most curved one sets the limit (the appendix tests it).
#
# ### And a network?
#
# A network has no fixed curvature, so we measure the largest at the first weights. The limit over it is a rate. A run makes 120
# steps of 64 images, with a queue like yours.

# %% tags=["nbval-ignore-output"]
digits = images, labels
curvature = sgd_parallelism.largest_curvature(net, digits)
print(f"curvature at the first weights: {curvature:.2f}")
print(f"largest stable rate for a parabola, delay 4: {limits[4] / curvature:.3f}")

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.05, 1.6]
fails = helpers.predict(
    "0.05, 0.1, 0.2, 0.4, 0.8, 1.6: delay 4 first ends above a loss of 1 at which rate?", ""
)
fails

# %% tags=["run"]
rates = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
sweep = sgd_parallelism.sweep_stale(
    net, digits, delays=(0, 1, 2, 4, 8), rates=rates, steps=120
)

# %% tags=["look", "nbval-ignore-output"]
above = [rate for rate in rates if rate > limits[4] / curvature]
ended = [rate for rate in rates if sweep.run(4, rate).final_loss > 1]
fails.reveal(modelled=min(above), measured=min(ended, default=None))

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="The limit at the first weights is a guide"
alt = "A map of the final loss by delay and rate; the modelled limit falls with the delay."
plotting.show(sgd_parallelism.draw_stale(sweep), alt=alt)

# %% [markdown] tags=["explain"]
# (*Blew up*: ended above the first loss, or had a batch with three times that.) In the run printed here the
# line separates what ended above 1 from the
# rest, but for delay 8. Does a run stay below it while it learns? Your loop, at delay 4 and rate 0.1:


# %% tags=["look", "nbval-ignore-output"]
def gradients_of(batch, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def gradient(w):
        some = torch.randint(len(images), (batch,), generator=generator)
        return torch.func.grad(loss)(w, images[some], labels[some])

    return gradient


path = delayed(gradients_of(64), start, 0.1, 4, 120)
on_the_way = {}
for step in range(0, 121, 20):
    nn.utils.vector_to_parameters(path[step], net.parameters())
    over = 0.1 * sgd_parallelism.largest_curvature(net, digits, iterations=15) / limits[4]
    on_the_way[step] = [f"{over:.1f}", f"{loss(path[step], *digits):.2f}"]
nn.utils.vector_to_parameters(start, net.parameters())
pd.DataFrame(on_the_way, index=["rate x curvature / limit", "loss"]).rename_axis(
    "step", axis=1
)

# %% tags=["explain"]
growth = sgd_parallelism.growth_factor(1.5 * limits[4], delay=4)
print(f"a parabola at 1.5 times the limit: w grows {growth**20:.1f} times in 20 steps")

# %% [markdown] tags=["explain"]
# It does not. At each step shown from 20 on it is above the limit, where a parabola's wave would grow without end. The loss
# falls all the same, though not everywhere.
#
# Why, and up to where, such a network goes on learning above the limit we do not know.
# (Without delay, and with all images in each step, it typically hovers just above: Cohen and others, ["Gradient Descent on Neural Networks Typically
# Occurs at the Edge of Stability"](https://arxiv.org/abs/2103.00065), 2021.)
#
# Threads can share weights without a lock ([Hogwild](glossary.md#hogwild)), and workers can train alone and average their weights
# now and then ([local SGD](glossary.md#local-sgd)): [the appendix](appendix/04_sources_of_parallelism.ipynb) runs both.

# %% [markdown]
# ## Part 5: over models
#
# - A search over learning rates: trainings that need nothing of each other
# - Stacked networks share their calls
#
# To settle the bet we train 18 networks, at 9 rates and with two draws of the images. A loop makes 18 times as
# many calls as one. `torch.func.vmap` makes one program of them, whose calls compute all 18: $N (o + w)$ becomes $o' + N w$, for $N$
# networks with work $w$ and overhead $o$ each, and the stack's overhead $o'$.

# %% tags=["run"]
one_slope = torch.func.grad(loss)
all_slopes = torch.func.vmap(one_slope)
stack = (
    start.repeat(18, 1),
    images[: 18 * 64].view(18, 64, 196),
    labels[: 18 * 64].view(18, 64),
)
programs = {
    "loop": lambda: [one_slope(*each) for each in zip(*stack, strict=True)],
    "stack": lambda: all_slopes(*stack),
}
race = timing.compare(programs, budget_s=1, precision=0.1)

# %% tags=["look"]
race.claim("18 small networks: a stack takes less time than a loop", "stack", at_most=0.6)

# %% [markdown] tags=["explain"]
# In this model a stack saves overhead and no work, so it pays for small networks. The
# search is your `delayed`, with a row of weights a network.


# %% tags=["run"]
grid = torch.tensor([0.05 * 2 ** (k / 2) for k in range(9)]).repeat_interleave(2)[:, None]
losses_of = torch.func.vmap(loss, in_dims=(0, None, None))


@cache
def search(batch, delay=0):
    """Return each draw's first step with a loss below 0.5 at its best rate, and that."""
    generator = torch.Generator().manual_seed(0)
    steps = 260 if batch < 32 else 160 if delay else 80

    def gradient(w):
        drawn = torch.randint(len(images), (2, batch), generator=generator).repeat(9, 1)
        return all_slopes(w, images[drawn].flatten(2), labels[drawn])

    path = delayed(gradient, start.expand(18, -1), grid, delay, steps)[::2]
    seen = torch.stack([losses_of(w, images[:1000], labels[:1000]) for w in path])
    below = seen.view(-1, 9, 2) < 0.5
    first = torch.where(below.any(0), 2 * below.int().argmax(0), math.inf)
    return first.amin(0), grid[2 * first.argmin(0), 0]


# %% [markdown]
# ### Back to the bet
#
# - Four workers that never wait take four steps in the time of one
# - Their gradients are 3 updates old
# - How many times as fast are they?
#
# A model from parabolas: in a flat
# direction progress is updates times rate. Four times the updates come at the largest stable rate of delay 3 instead of delay 0.

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Four times the updates are not four times the progress"
alone, never_wait = search(64), search(64, delay=3)
worth = 4 * alone[0] / never_wait[0]  # one number for each draw of the images
bet.reveal(modelled=4 * limits[3] / limits[0], simulated=worth.mean().item())
print("in each draw:", " and ".join(f"{times:.2f} times" for times in worth))
for name, tries in {"one worker": alone, "four, no waiting": never_wait}.items():
    best = [
        f"{steps:.0f} steps at rate {rate:.2f}" for steps, rate in zip(*tries, strict=True)
    ]
    print(f"{name}: {' and '.join(best)}")

# %% [markdown] tags=["explain"]
# (Simulated: the learning is real, the workers are a queue. Each draw's best of nine rates is chosen on the run that is counted, which
# flatters both sides.) Four times as many updates come in, but at their smaller rate more are needed. In the run
# printed here that takes back all of the gain in one draw, and most in the other.
#
# Would waiting be better? Four workers that wait take a step with a batch four times as large:

# %% tags=["run"]
sizes = (8, 32, 64, 256)
wait = {size: search(size)[0] / search(4 * size)[0] for size in sizes}
no_wait = {size: 4 * search(size)[0] / search(size, delay=3)[0] for size in sizes}
assert no_wait[8].mean() > no_wait[256].mean()
assert wait[8].mean() > wait[256].mean()

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="What four workers are worth depends on the batch"
drawn, axes = plotting.figure(title="What four workers are worth, sending left out")
ways = {"they wait: batch 4 times as large": (wait, 0.97, "o-", plotting.MEASURED)}
ways["they do not: 3 updates old"] = (no_wait, 1.03, "s--", plotting.COLOURS["sending"])
for name, (draws, aside, mark, colour) in ways.items():
    at = [aside * size for size in sizes]
    axes.plot(at, [draws[size].mean() for size in sizes], mark, color=colour, label=name)
    axes.vlines(at, *zip(*(draws[size].aminmax() for size in sizes), strict=True), colour)
axes.axhline(4 * limits[3] / limits[0], color=plotting.MODELLED, ls=":", label="parabola")
axes.set_xscale("log", base=2)
axes.set_xticks(sizes, [str(size) for size in sizes])
axes.set(xlabel="images in each worker's batch", ylabel="times as fast as one", ylim=(0, 4.2))
axes.legend()
alt = "Times as fast as one worker, by batch: both fall from about 2.5 to about 1."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# (A mark is the mean of the two draws that its line joins.) Two draws cannot tell which way is ahead. Both are worth
# less with 256 images than with 8. A likely reason is noise: the gradient of few images is a poor guess, and more images help. Larger batches pay
# only up to some size in many networks (McCandlish and others, ["An Empirical Model of
# Large-Batch Training"](https://arxiv.org/abs/1812.06162), 2018).

# %% [markdown]
# ## Part 6: which source for which machine?
#
# | source | what a step exchanges | waits |
# |---|---|---|
# | within a layer | outputs; back, gradients of inputs | each layer |
# | over examples | the gradient | once |
# | over update iterations | gradients there, weights back | never |
# | over models | nothing | never |
#
# How many bytes does each of $p$ workers receive? Outputs are *gathered*: each lacks $\frac{p - 1}{p}$ of
# them. Gradients are *summed*: twice as much, first terms, then sums (round a ring, [lesson 05](05_data_parallel.ipynb)). Weights in
# common are spread over the workers: each fetches what it lacks, and receives the others' gradients of its part. *wide* is three dense
# layers, 784 to 4,096 to 4,096 to 10. Four workers, 64 images:

# %%
wide = helpers.BasicFCModel(784, 4096, 10, 3)
four = sgd_parallelism.sources_of_parallelism(helpers.LeNet(), (64, 1, 28, 28))
exchanged = {"LeNet": four, "wide": sgd_parallelism.sources_of_parallelism(wide, (64, 784))}
columns = {}
for name, counted in exchanged.items():
    columns[f"{name}: exchanges"] = [row.synchronisations for row in counted.rows]
    columns[f"{name}: received"] = [f"{row.received_bytes(4):,.0f}" for row in counted.rows]
pd.DataFrame(columns, index=[row.source for row in four.rows])

# %% [markdown]
# Over examples that is one and a half times the parameters, whatever the batch. Within layers the bytes grow with it.
#
# **Your turn.** A model of a step: its computing is shared, and then each worker receives its bytes.


# %% tags=["yours"] yours="times_as_fast"
def times_as_fast(workers, compute_s, exchanges, received_bytes, latency_s, bytes_per_s):
    """Return how many times as fast as one worker ``workers`` do a step.

    One worker alone computes for ``compute_s``. Each exchange takes ``latency_s`` besides
    its bytes; ``received_bytes`` are those of all exchanges together.
    """
    wait_s = exchanges * latency_s + received_bytes / bytes_per_s
    return compute_s / (compute_s / workers + wait_s)


# %% checks="times_as_fast"
asked = exercises.Checks("How many times as fast", times_as_fast)
slips = {
    8 / 4.5: "Every exchange takes the latency: there are 3",
    8 / 4.0: "The latency is missing: 3 exchanges take it",
    8 / 11.5: "The computing is shared: each worker has a quarter of it",
    8 / 2.875: "The computing is shared, the waiting is not",
    5.5 / 8: "One worker's time over that of the shared step, not the other way round",
    8 / 9.5: "The bytes are those of all exchanges together",
}
given = (4, 8.0, 3, 20, 0.5, 10.0)
asked.returns("3 exchanges, 20 bytes", given, expected=8 / 5.5, mistakes=slips)
asked.returns("nothing to exchange", (4, 8.0, 0, 0, 0.5, 10.0), expected=4.0)
times_as_fast = asked.settle()


# %% wrong="times_as_fast" says="there are 3"
def times_as_fast(workers, compute_s, exchanges, received_bytes, latency_s, bytes_per_s):
    wait_s = (latency_s if exchanges else 0) + received_bytes / bytes_per_s
    return compute_s / (compute_s / workers + wait_s)


# %% wrong="times_as_fast" says="the waiting is not"
def times_as_fast(workers, compute_s, exchanges, received_bytes, latency_s, bytes_per_s):
    wait_s = exchanges * latency_s + received_bytes / bytes_per_s
    return compute_s / ((compute_s + wait_s) / workers)


# %% [markdown]
# Four A100 share *wide*'s batch of 64. Each computes at its peak in float32. Between them is NVLink, with a
# [bandwidth](glossary.md#bandwidth) of 12 times 25 GB/s each way ([NVIDIA Ampere
# Architecture In-Depth](https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/)). The
# [latency](glossary.md#latency) of an exchange is our assumption.

# %%
a100, nvlink = (
    hardware.device("A100 SXM 40 GB"),
    {"latency_s": 10e-6, "bytes_per_s": 12 * 25e9},
)
float32 = a100.peak("float32").dense_flops_per_s


@cache
def flops(batch):
    work = operations.profile_ops(wide, (batch, 784))
    return work.forward_flops + work.backward_flops


print(
    f"float32: {units.text(float32, 'FLOP/s')}, a step: {units.text(flops(64) / float32, 's')}"
)
print(f"NVLink: {units.text(nvlink['bytes_per_s'], 'B/s')} each way, latency 10 us")

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10]
shared = helpers.predict("Four A100 share the batch: how many times as fast as one?", "x")
shared


# %% tags=["run"]
def gains(workers, batch, flops_per_s, latency_s, bytes_per_s):
    alone_s, found = flops(batch) / flops_per_s, {}
    for row in sgd_parallelism.sources_of_parallelism(wide, (batch, 784)).rows:
        received = row.received_bytes(workers)
        step = workers, alone_s, row.synchronisations, received, latency_s, bytes_per_s
        hidden = workers * alone_s / max(alone_s, received / bytes_per_s)  # updates
        found[row.source] = times_as_fast(*step) if row.waits else hidden
    return found


four_a100 = gains(4, 64, float32, **nvlink)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The gradient takes longer to arrive than the work to compute"
shared.reveal(modelled=four_a100["over examples"])
received = exchanged["wide"].row("over examples").received_bytes(4)
print(f"computing, shared: {units.text(flops(64) / float32 / 4, 's')}")
print(f"receiving the gradient: {units.text(received / nvlink['bytes_per_s'], 's')}")
print(f"within layers it is {four_a100['within a layer']:.2f} times as fast")

# %% [markdown] tags=["explain"]
# Four cards are slower than one: the gradient takes longer to arrive than one card needs for all. Cutting the layers is
# better here.
#
# No A100 is under this notebook. The latency does not grow with the workers, which is too good. And no sending is hidden, which is too bad: libraries
# send the gradients of late layers while early ones are computed. That can at most halve a step, because a step takes at least
# the longer of its two times.

# %% [markdown] tags=["slide"] minutes=1
# ### The bet again, with sending
#
# - Four A100 that never wait
# - Each computes 64 images for an update of its own
# - It sends and receives meanwhile
#
# So its step takes the longer of the two times.

# %% tags=["predict", "slide-output"] axis=[0.1, 10]
again = helpers.predict("Four A100 never wait: how many times as many updates as one?", "x")
again

# %% tags=["run"]
times_s = {"computing": flops(64) / float32, "receiving": received / nvlink["bytes_per_s"]}

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Who does not wait hides what it sends"
again.reveal(modelled=four_a100["over update iterations"])
for what, seconds in times_s.items():
    print(f"{what}: {units.text(seconds, 's')}")

# %% [markdown] tags=["explain"]
# A card computes four times as long for as many bytes, and hides nearly all. But updates are not progress: in Part 5 four were
# worth little more than one. And sending makes gradients older still.
#
# Which batch, link, how many workers? (Over update iterations updates are counted.)


# %%
def draw_gains(batch, gigabytes_per_s):
    counts = [2, 4, 8, 16, 32, 64]
    rows = [gains(count, batch, float32, 10e-6, 1e9 * gigabytes_per_s) for count in counts]
    title = f"A100s, modelled: batch {batch:,}, {gigabytes_per_s:g} GB/s"
    drawn, axes = plotting.figure(title=title)
    colours = ("#882255", "#332288", "#999933", "#777777")
    for name, mark, colour in zip(rows[0], ("o-", "s--", "v:", "-"), colours, strict=True):
        axes.loglog(counts, [row[name] for row in rows], mark, color=colour, label=name)
    axes.set_xticks(counts, counts)
    axes.set_yticks([0.001, 0.01, 0.1, 1, 4, 16, 64], [0.001, 0.01, 0.1, 1, 4, 16, 64])
    axes.set(xlabel="workers", ylabel="times as fast as one", ylim=(0.0005, 90))
    axes.minorticks_off()
    drawn.legend(loc="outside lower left", ncols=2, fontsize=11, frameon=False)
    return drawn


# %% tags=["look"]
helpers.interactive_figure(
    draw_gains,
    {"batch": [16, 64, 256, 1024, 4096], "gigabytes_per_s": [1.25, 12.5, 50, 300]},
    views=[{"batch": 64, "gigabytes_per_s": 300}, {"batch": 4096, "gigabytes_per_s": 300}],
    alt=lambda batch, gigabytes_per_s: (
        f"Times as fast as one A100: four sources, batch {batch}, {gigabytes_per_s} GB/s."
    ),
)

# %% [markdown] tags=["explain"]
# Four places, batch 64: which share of the time is left for computing?

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Between these machines only whole models pay" mark="over models"
epyc = hardware.device("EPYC 7713")
cpu, cpu_bus = epyc.peak("float32").dense_flops_per_s, epyc.bus_bandwidth_bytes_per_s
places = {  # workers, and for each its peak, latency in s, bytes/s
    "CPU cores": (64, cpu / 64, 1e-6, cpu_bus / 64),
    "GPU cores": (108, float32 / 108, 5e-6, a100.bus_bandwidth_bytes_per_s / 108),
    "4 GPUs": (4, float32, *nvlink.values()),
    "4 machines": (4, float32, 50e-6, 10e9 / 8),
}
shares = {}
for place, (workers, *each) in places.items():
    found = gains(workers, 64, *each)
    shares[place] = {name: f"{times / workers:.1%}" for name, times in found.items()}
pd.DataFrame(shares)

# %% [markdown] tags=["explain"]
# (Modelled: float32 peaks, assumed latencies, 10 Gbit/s between machines. A chip's cores share its bus to memory; its [caches](glossary.md#cache) are
# left out, which is too bad for chips.) Without waiting the
# bytes hide behind computing, but between these machines most do not. There only whole models leave more than half.
#
# In the [exercises](exercises/04_sources_of_parallelism_exercises.ipynb) you cut a product, and run a parameter server by hand.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. What waits for what decides how much can run at once.
# 2. Old gradients need smaller rates, and that can take back all that not waiting gains.
# 3. What each worker receives decides which link can carry it.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $p$ workers.
#
# | quantity | formula |
# |---|---|
# | time of a training | at least the longer of $\frac{\text{tasks}}{p}$ and the longest chain |
# | additions one after another, $n$ numbers in $l$ lanes | $\frac{n}{l} - 1 + \log_2 l$ |
# | received by each of $p$ | $\frac{p-1}{p}\,b$ bytes if $b$ are gathered, twice that if summed |
# | received by one that adds $p$ terms of $b$ bytes | $(p-1)\,b$ |
# | delayed descent on a parabola is stable | $\eta\,c < 2 \sin \frac{\pi}{2 (2d+1)}$ with curvature $c$, delay $d$ |
# | times as fast, waiting | $t / (\frac{t}{p} + n \alpha + \frac{b}{W})$ for $t$ seconds of computing, $n$ exchanges, $b$ bytes, latency $\alpha$, bandwidth $W$ |
# | times the updates, not waiting | $p\,t / \max(t, \frac{b}{W})$ |
