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
#     title: "Four sources of parallelism: lanes, servers, local SGD"
# ---

# %% [markdown]
# # Four sources of parallelism: lanes, servers, local SGD
#
# [Lesson 04](../04_sources_of_parallelism.ipynb) leaves out how a core shares a sum among its
# [lanes](../glossary.md#lane), where the limit of old gradients comes from and what it is for many weights, a
# [parameter server](../glossary.md#parameter-server), threads without a lock and the additions that they lose, workers that only
# meet now and then, and ensembles in a loop, in a stack and in two processes.

# %%
import dataclasses

import pandas as pd
import torch

import helpers
from helpers import native, plotting, results, timing
from helpers.studies import sgd_parallelism

device = "cuda" if torch.cuda.is_available() else "cpu"
loader = helpers.make_MNIST_loader(batch_size=64)
images, labels = (torch.cat(part).to(device) for part in zip(*loader, strict=True))
digits = (images, labels)
torch.manual_seed(0)
net = helpers.BasicFCModel(784, 32, 10, 2).to(device)

# %% [markdown]
# ## A term is not a slice
#
# A layer is a product and then an activation. Suppose that each worker applies ReLU to its own result at once, and that the results
# are only combined afterwards. We cut a product by the rows of its first matrix, by the columns of its second one, and by the inner side that it sums over.

# %%
figure = sgd_parallelism.draw_split(sgd_parallelism.model_split(4, 6, 8, by="inner", parts=2))
alt = "Inner: a is cut by columns, b by rows, and each part has a term of the output."
plotting.show(figure, alt=alt)

# %%
torch.manual_seed(0)
a, b = torch.randint(-9, 10, (4, 6)).float(), torch.randint(-9, 10, (6, 8)).float()
for by in sgd_parallelism.WAYS:
    pieces = sgd_parallelism.partial_products(a, b, by=by, parts=2)
    early = sgd_parallelism.combine([piece.relu() for piece in pieces], by=by)
    wrong = (early != (a @ b).relu()).sum()
    print(f"{by}: {wrong} of the layer's {early.numel()} numbers are wrong")

# %% [markdown]
# A slice of the output is finished, so it may go on, whereas a term of a sum must wait for the other terms, because
# $\max(0, x + y)$ is not $\max(0, x) + \max(0, y)$. The shapes are right, so nothing warns you.
#
# ## One instruction, many numbers
#
# One instruction of a core can add several values to several others ([SIMD](../glossary.md#simd)), each in its own lane. Here are two
# loops in C++, `y[i] = a * x[i] + y[i]` and `sum += x[i]`. We ask the compiler for one lane, for vectors, and for vectors with permission
# to reorder sums. In how many lanes does each loop add?

# %% tags=["nbval-ignore-output"]
try:
    census = sgd_parallelism.count_lanes()
    shown = pd.DataFrame([row.to_dict() for row in census.rows]).set_index("function")
    columns = ["variant", "one_lane", "packed", "lanes"]
    shown = results.printed(shown.rename_axis(None)[columns])
except native.NativeError as missing:
    census, shown = None, f"this machine cannot show it: {missing}"
shown

# %%
if census is not None:
    assert (
        census.row("scaled_add", "vectors").packed > 0 == census.row("total", "vectors").packed
    )

# %% [markdown]
# Counted are the instructions that add or multiply in the compiled program. Those of one lane handle one number, the packed ones as many
# as there are lanes. (It needs a C++ compiler and an x86-64 processor.) The scaled addition gets vectors, and one-lane instructions
# for the last few numbers. The sum gets none although they were asked for: each addition needs the result of the one
# before, and another order can be another result. What is the leave to reorder worth?

# %%
lane_speedup = helpers.predict(
    "How many times faster is a sum of 4,096 numbers with reordering than with one lane?", "x"
)
lane_speedup

# %% tags=["nbval-ignore-output"]
summing = None
if census is None:
    print("there is nothing to time: the loops could not be compiled or counted")
else:
    summing = timing.compare(sgd_parallelism.lane_calls("total"), budget_s=1, precision=0.05)
    many_lanes = census.row("total", "vectors, sums reordered").lanes
    reordered = summing.candidate("vectors, sums reordered")
    lane_speedup.reveal(modelled=many_lanes, measured=1 / reordered.time_ratio)

# %%
several_lanes = summing is not None and many_lanes > 1
timing.claim(
    "the sum that may be reordered takes less time than the one in one lane",
    reordered.time_ratio if several_lanes else None,
    at_most=0.8,
    evidence=summing if several_lanes else (),
)

# %% [markdown]
# The model is the number of lanes. The call from Python does not shrink with them: time it alone, on one number, with
# `timing.compare(sgd_parallelism.lane_calls("total", 1), budget_s=0.5)`.
#
# ## Many cores
#
# A thread on each core. The cut is by rows or columns, and the threads must be woken and waited for.

# %%
small, large = torch.rand(64, 64), torch.rand(512, 512)
sweeps = [
    sgd_parallelism.sweep_threads(lambda: small @ small, name="64 x 64", budget_s=0.3),
    sgd_parallelism.sweep_threads(lambda: large @ large, name="512 x 512", budget_s=0.3),
]
alt = "Speedup against threads, two products, beside the line of a perfect one."
plotting.show(sgd_parallelism.draw_speedup(sweeps), alt=alt)

# %% [markdown]
# A point below 1 says that threads lost: to wake them took longer than the work that they took over, or the cores were not free. No
# claim is made, because none holds on every machine.
#
# ## Old gradients, one weight and many
#
# On a parabola with curvature $c$, gradients that are $s$ updates old give $w_{t+1} = w_t - \eta c\, w_{t-s}$. Try $w_t = z^t$.
# Then $z^{s+1} - z^s + \eta c = 0$, and the root $z$ of the largest size says how $w$ grows in the long run. At the limit a wave keeps its
# size, so $z = e^{i\theta}$. Then $\eta c = z^s (1 - z)$ has the size $2 \sin \frac{\theta}{2}$, and it is a positive number first
# if $s\,\theta = \frac{\pi - \theta}{2}$, that is, if $\theta = \frac{\pi}{2s + 1}$. This is the formula of the lesson,
# $\eta c < 2 \sin \frac{\pi}{2\,(2s + 1)}$. We compare the root with a run over 200 steps, at 1.1 times the limit.

# %%
for delay in (1, 4, 8):
    rate = 1.1 * sgd_parallelism.stability_limit(delay)
    path = sgd_parallelism.descend_quadratic(1, rate=rate, delay=delay, steps=400)
    early, late = (max(abs(w) for w in path[first : first + 40]) for first in (160, 360))
    growth = sgd_parallelism.growth_factor(rate, delay=delay)
    print(
        f"delay {delay}: {growth:.4f} a step by the root, {(late / early) ** (1 / 200):.4f} run"
    )

# %% [markdown]
# 256 examples of a least-squares problem with 16 weights, whose largest curvature is 1 by construction: just below the limit of the
# lesson, and just above it.

# %%
problem = sgd_parallelism.least_squares()
for delay in (0, 4):
    for part in (0.9, 1.1):
        rate = part * sgd_parallelism.stability_limit(delay)
        settings = {"delay": delay, "rate": rate, "steps": 400, "batch_size": None}
        losses = sgd_parallelism.train_stale(
            problem.model(), problem.examples, **settings
        ).losses
        after, before = max(losses[300:]), max(losses[200:300])
        print(
            f"delay {delay}, {part:.0%} of the limit: the loss {'grows' if after > before else 'falls'}"
        )

# %% [markdown]
# With 16 weights the descent is 16 parabolas at once, one for each curvature, and the most curved one decides.
#
# ## A parameter server
#
# Workers fetch weights, compute a gradient, send it and wait for nobody. The server applies each gradient as it comes. The learning is
# real, the clock is simulated.

# %%
server = sgd_parallelism.simulate_server(
    net, digits, compute_s=(1, 1, 1, 1), rate=0.05, updates=100
)
queue = sgd_parallelism.train_stale(net, digits, delay=3, rate=0.05, steps=103)
for staleness, count in server.staleness_counts.items():
    print(f"staleness {staleness}: {count:>2} of {server.updates} updates")
assert server.weights == queue.weights  # bit for bit

# %% [markdown]
# Four equal workers end with the weights of a queue with delay 3, bit for bit. (The queue takes 103 steps, because in the first three no
# gradient has arrived.) Now one worker of three is three times slower:

# %%
slow_age = helpers.predict(
    "If three workers take 1, 1 and 3 s, how old are the gradients of the slow one?", "updates"
)
slow_age

# %%
server = sgd_parallelism.simulate_server(
    net, digits, compute_s=(1, 1, 3), rate=0.05, updates=70
)
slow_age.reveal(modelled=2 * 3, simulated=server.shares[2].mean_staleness)
for share in server.shares:
    print(f"worker {share.worker}: {share.updates} updates, {share.mean_staleness:.2f} old")

# %% [markdown]
# In its three seconds the others send three gradients each, so not waiting brings seven gradients in the time in which waiting
# brings three. But the slowest worker sends the oldest gradients. If all waited for each other, the two fast workers would be idle for
# two thirds of the time, and no gradient would be old.
#
# ### Threads, with a lock and without
#
# `run_server` locks the weights while they are copied or changed. `run_hogwild` has one set of weights and no lock (Recht and others,
# [2011](https://arxiv.org/abs/1106.5730)). In both, the machine decides how large the delay is.

# %% tags=["nbval-ignore-output"]
threaded = [
    run(net, digits, workers=workers, rate=0.05, updates=100)
    for run in (sgd_parallelism.run_server, sgd_parallelism.run_hogwild)
    for workers in (1, 2, 4)
]
shown = pd.DataFrame([run.to_dict() for run in threaded])
results.printed(shown[["how", "workers", "mean_staleness", "largest_staleness", "final_loss"]])

# %%
print("largest staleness of one worker:", [run.largest_staleness for run in threaded[::3]])
assert all(run.final_loss < run.first_loss for run in threaded)

# %% [markdown]
# A thread that has read the weights and then loses its core comes back with an older gradient than the rest. Run it again,
# and the numbers change.
#
# Without a lock two threads can read the same number, each add its own and write, and one addition is lost. A read and a write each:
# in how many of the possible orders is nothing lost?

# %%
for workers in (2, 3, 4):
    orders = sgd_parallelism.interleave_additions(workers)
    print(
        f"{workers} threads: {orders.interleavings:,} orders, nothing lost in {orders.lossless_share:.1%}"
    )

# %% [markdown]
# For two threads nothing is lost only when one is done before the other begins: 2 of $4! / (2!\,2!) = 6$ orders. In general
# $n!$ of $(2n)!/2^n$. On a real machine a read and its write stand close together:

# %% tags=["nbval-ignore-output"]
lost = [
    sgd_parallelism.count_lost_updates(4, how="read, then write"),
    sgd_parallelism.count_lost_updates(4, how="in place"),
    sgd_parallelism.count_lost_updates(4, how="in place", with_lock=True),
]
shown = pd.DataFrame([count.to_dict() for count in lost])
results.printed(shown[["how", "with_lock", "additions", "lost_additions"]])

# %%
print(f"with a lock: {lost[2].lost_additions} of {lost[2].additions:,} additions lost")

# %% [markdown]
# The proof for Hogwild asks for updates that touch few weights each, and those of a dense network touch all. The runs above learn
# all the same.
#
# ## Local SGD
#
# Each worker trains its own copy. Every $k$ steps all take the mean of their weights (Stich, [2018](https://arxiv.org/abs/1805.09767)), here by a
# ring all-reduce ([lesson 05](../05_data_parallel.ipynb)): in each of $2 (W-1)$ rounds a worker sends one of $W$ chunks. The network has
# 25,450 weights of 4 bytes.

# %%
sent = helpers.predict(
    "How many bytes does each of 4 workers send in 150 steps, averaging every 10?", "B"
)
sent

# %%
local = sgd_parallelism.sweep_local(
    net, digits, workers=4, every=(1, 10, 50), rate=0.1, steps=150
)
weight_bytes = sum(weight.nbytes for weight in net.parameters())
sent.reveal(modelled=150 / 10 * 2 * 3 / 4 * weight_bytes)
for run in local.runs:
    print(f"every {run.synchronise_every}: {run.sent_bytes:,} bytes in the ring's messages")

# %% tags=["nbval-ignore-output"]
names = [f"every {run.synchronise_every}" for run in local.runs]
table = pd.DataFrame([run.to_dict() for run in local.runs], index=names)
results.printed(table[["synchronisations", "final_loss", "largest_distance"]])

# %%
dearest, _, cheapest = local.runs
assert cheapest.final_loss < cheapest.first_loss / 2
assert cheapest.largest_distance > dearest.largest_distance

# %% [markdown]
# Nothing goes over a wire here: the workers run in one process. 25,450 weights do not divide by four, so some chunks have one weight more
# than the model says. A fiftieth of the bytes still brings the loss down by more than half. The workers drift further apart
# meanwhile: the largest distance is how far one has gone from the mean when they meet. These digits forgive it; a harder problem may
# not.
#
# ## Ensembles: a loop, a stack, two processes
#
# Networks in a loop, or stacked, where `torch.vmap` makes one batched product of all. Do they learn the same? And a search over
# learning rates is an ensemble as well:

# %%
nets = sgd_parallelism.make_ensemble(8, hidden=16, device=device)
looped = sgd_parallelism.train_in_loop(nets, digits, rate=0.1, steps=20)
stacked = sgd_parallelism.train_stacked(nets, digits, rate=0.1, steps=20)
assert sgd_parallelism.largest_difference(looped, stacked) < 1e-4

# %% tags=["nbval-ignore-output"]
tried = [0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8]
searched = sgd_parallelism.train_stacked(nets, digits, rate=tried, steps=60)
with torch.no_grad():
    found = [
        torch.nn.functional.cross_entropy(each(images), labels).item() for each in searched
    ]
pd.DataFrame({"loss after 60 steps": found}, index=tried).rename_axis("rate").round(2)

# %% [markdown]
# A loop pays $N (o + w)$, a stack $o' + N w$. The overheads $o$ and $o'$ are measured on networks one wide, which have next to no work;
# then $w$ follows from the time of the loop.

# %% tags=["nbval-ignore-output"]
overheads = sgd_parallelism.measure_overheads(device=device)
with helpers.Ranks(2) as pool:
    crossover = sgd_parallelism.sweep_crossover(
        digits,
        nets=16,
        sizes=((16, 32), (64, 64), (256, 128)),
        budget_s=0.4,
        pool=pool,
        device=device,
    )
print(
    f"one network: {overheads.net_s * 1e6:,.0f} us, a stack: {overheads.stack_s * 1e6:,.0f} us"
)


# %%
def modelled_ratio(point):
    work_s = max(0.0, point.loop_s / point.nets - overheads.net_s)
    return (overheads.stack_s + point.nets * work_s) / point.loop_s


points = [
    dataclasses.replace(point, modelled_ratio=modelled_ratio(point))
    for point in crossover.points
]
drawn = sgd_parallelism.draw_crossover(dataclasses.replace(crossover, points=tuple(points)))
alt = (
    "Time over the loop's for three sizes: a stack, modelled and measured, and two processes."
)
plotting.show(drawn, alt=alt)

# %%
timing.claim(
    "for small networks the stack takes less time than the loop",
    points[0].stacked_ratio,
    at_most=0.8,
    evidence=points[0],
)

# %% [markdown]
# Small networks are mostly overhead, and a stack pays it once. Where the measured stack lies above its model, it has found what the
# model left out: a batched product may run at a lower rate than a single one, and 16 networks need not fit a cache together
# where one does. Two processes share the work over cores, and can win where the stack cannot, provided that there are two free cores.
