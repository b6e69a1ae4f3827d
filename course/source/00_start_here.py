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
#       - model|modelled the time of a program from its work and its rates
#       - find|found the operations of PyTorch that are worth fusing
#       - time|timed an operation so that the time means something
#       - estimate|estimated a training run from a smaller one, your own and that of Llama 2 70B
# ---

# %% [markdown] tags=["objectives"]
# # Start here
#
# What does one character cost? Take two matrices of 1,024 × 1,024 random numbers. In PyTorch, `a * b` multiplies them element by element, and
# `a @ b` is their matrix product. The two programs differ in a single character. The first does about a million multiplications, one for each
# element. The second needs 1,024 multiplications and 1,024 additions for each element of its result, which is 2,048 times as much arithmetic.
#
# On the core that wrote this page, one of an Intel Xeon server, `a * b` takes 0.86 ms (measured). If `a @ b` does its arithmetic at the same rate, it
# takes 2,048 times as long, or 1.8 s. Whether it does is the first bet of this course.
#
# The question is less of a game than it looks. The layers of a neural network are products such as `a @ b`, and its activations and biases are element-wise
# operations such as `a * b`. If you can predict these two, you can predict most of a training step before you pay for the machine that runs it. The
# whole course can be written in one line:
#
# > time = work / rate
#
# So far it has given us 1.8 s. At the end of this lesson you will give it the published bill of a language model with 7 billion parameters, and it
# will predict the bill of a model that has ten times as many and was trained on twice as much text. You need a little PyTorch, and no GPU, because
# everything here runs on one core of your processor.

# %% tags=["hide-input"]
import statistics
import time
from operator import attrgetter

import torch

import helpers

if "machine_card" not in dir(helpers):
    raise ImportError(f"{helpers.__file__} hides the course's helpers: rename it, and restart")
from torch.nn.functional import gelu

from helpers import exercises, plotting, timing, units
from helpers.studies import decoding, matrix_product, start_here

check = exercises.checks_of("start_here")
torch.set_num_threads(1)  # one core
allocator = helpers.steady_allocator()  # freed memory is kept for later tensors

# %% [markdown] tags=["slide"] minutes=1 headline="One character, and 2,048 times the arithmetic"
# ## The bet
#
# How many times as long does the second program take on your machine?
#
# - `a * b` multiplies 1,024 × 1,024 elements
# - `a @ b` does 2,048 times as many operations
# - How many times as long does it take on the same core?
#
# Write down a number, even if it is a guess, and if you have already made this bet on the first page of the course, write down the same one. You will
# do this in every lesson, because a number that you wrote down before you saw the answer shows you what you had not understood.

# %% tags=["hide-input", "predict", "slide", "slide-output"] minutes=1 axis=[1, 10000]
bet = helpers.predict(
    "For matrices of 1,024 x 1,024, how many times as long as a * b does a @ b take?", "x"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Predicted, modelled, measured"
# ## Part 1: the work of a program
#
# Which work takes the time? We run the programs first, because only a measured time can say which count is right.
#
# - **Predicted**: you wrote it down beforehand
# - **Modelled**: it was computed from other numbers
# - **Measured**: a machine took that time
#
# These three words keep our numbers apart in the whole course, and other numbers are called counted, simulated or published. Besides the two
# programs of the bet we run a copy and a product of smaller matrices, because their times will give us the two rates that our model needs. All
# four run in turns, many times, so that a noise from outside meets all of them alike. A time below is the median of a program's times. For a
# ratio we divide the times of two programs in each turn, and take the median of these quotients.

# %% tags=["run"]
a, b, c = torch.rand(3, 1024, 1024)
half_a, half_b = torch.rand(2, 512, 512)
programs = {
    "a * b": lambda: a * b,
    "a @ b": lambda: a @ b,
    "copy": lambda: c.clone(),
    "half product": lambda: half_a @ half_b,
}
turns = helpers.compare(programs, precision=0.1, budget_s=5)

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Operations are wrong by a wide margin"
bet.reveal(modelled=2048, measured=turns.candidate("a @ b").time_ratio)
for name in ("a * b", "a @ b"):
    print(name, "takes", units.text(turns.candidate(name).median_s, "s"))

# %% [markdown] tags=["explain"]
# Counting operations alone gave a ratio that is 100 times too large. On our core `a @ b` took 17 ms, only 20 times as long as `a * b`
# (measured). The two lines above are your machine's once you have run this page. To see why, turn the formula around and compute a rate, which
# is work divided by time. In 0.86 ms, `a * b` did 1.05 million [FLOP](glossary.md#flop), or floating-point operations, which is 1.2 billion per
# second. In 17 ms, `a @ b` did 2.15 billion, which is 126 billion per second. So the same core was about 100 times as fast in one program as in
# the other. The product is not surprisingly quick. It is `a * b` that is surprisingly slow, as if the core were waiting for something.
#
# It is waiting, and what it waits for is data. Each program has to read two matrices and to write a third, and with 4 bytes per element these are 3 × 4 × 1,024², or 12.6
# million bytes. `a * b` uses each element once, whereas `a @ b` multiplies each element of `a` with a whole row of `b`, so it uses the element
# 1,024 times.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="The product uses each element many times" untitled=true
alt = "An element of a makes one result of a * b, and a row of results of a @ b."
plotting.show(matrix_product.draw_products(4, title="Uses of one element, at n = 4"), alt=alt)

# %% tags=["slide", "slide-output"] minutes=2 numbers=[["a \\* b does ([\\d.]+ FLOP)", "per byte in a * b, counted"], ["a @ b does ([\\d.]+ FLOP)", "per byte in a @ b, counted"]] headline="A program that does little per byte waits for bytes"
moved_bytes = 3 * 4 * 1024**2  # three matrices of float32
flops = {"a * b": 1024**2, "a @ b": units.flops_from_macs(1024**3)}
for name in flops:
    print(f"{name} does {flops[name] / moved_bytes:.3g} FLOP per byte")

# %% [markdown]
# Using an element 1,024 times would not help if the core had to fetch it from memory each time. But a core has [caches](glossary.md#cache),
# which are small, fast memories for copies of recent data. The library cuts the matrices into blocks that fit into a cache, and it uses the
# elements of a block many times while they are near. These are your caches:

# %% tags=["hide-input", "nbval-ignore-output"]
card = helpers.machine_card()
caches = [cache for cache in card.caches or () if cache.kind != "instruction"]
sizes = [units.text(cache.size_bytes, "B", binary=True) for cache in caches]
levels = [f"L{cache.level} {size}" for cache, size in zip(caches, sizes, strict=True)]
print("processor:", card.model)
print("caches:", ", ".join(levels) or "unknown")
print("memory:", units.text(card.ram_bytes, "B", binary=True))

# %% [markdown]
# So there are two kinds of work, bytes and operations, and each has a rate of its own. If we computed these rates from the two times of the bet, our
# model would always agree with them, and we would learn nothing. Therefore we take them from two other
# programs. Each of them makes a new matrix for its result, as the programs of the bet do.

# %% tags=["nbval-ignore-output"]
bandwidth = 2 * c.nbytes / turns.candidate("copy").median_s  # it reads c and writes a copy
flops_per_s = units.flops_from_macs(512**3) / turns.candidate("half product").median_s
print(f"{units.text(bandwidth, 'B/s')}, {units.text(flops_per_s, 'FLOP/s')}")

# %% [markdown]
# **Your turn.** A core can move data and compute at the same time. How long does a program take that has to do both?


# %% tags=["yours"] yours="modelled_s" takes=5
def modelled_s(moved_bytes, flops, bandwidth, flops_per_s):
    """Return the modelled seconds of a program that moves these bytes and does these FLOP."""
    return max(moved_bytes / bandwidth, flops / flops_per_s)


# %% checks="modelled_s"
modelled_s = check(modelled_s)


# %% wrong="modelled_s" says="go on at the same time"
def modelled_s(moved_bytes, flops, bandwidth, flops_per_s):
    return moved_bytes / bandwidth + flops / flops_per_s


# %% wrong="modelled_s" says="The longer one decides"
def modelled_s(moved_bytes, flops, bandwidth, flops_per_s):
    return min(moved_bytes / bandwidth, flops / flops_per_s)


# %% wrong="modelled_s" says="Time is work divided by rate"
def modelled_s(moved_bytes, flops, bandwidth, flops_per_s):
    return max(bandwidth / moved_bytes, flops_per_s / flops)


# %% wrong="modelled_s" says="the cells below need int or float"
def modelled_s(moved_bytes, flops, bandwidth, flops_per_s):
    times_s = [moved_bytes / bandwidth, flops / flops_per_s]
    return torch.tensor(times_s, dtype=torch.float64).max()


# %% right="modelled_s" style=1
def modelled_s(moved_bytes, flops, bandwidth, flops_per_s):
    data_s, arithmetic_s = moved_bytes / bandwidth, flops / flops_per_s
    if data_s > arithmetic_s:
        return data_s
    return arithmetic_s


# %% right="modelled_s" style=2
def modelled_s(moved_bytes, flops, bandwidth, flops_per_s):
    work, rates = torch.tensor([[moved_bytes, flops], [bandwidth, flops_per_s]]).double()
    return (work / rates).amax().item()


# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="The longer of two times is the model"
parts_s = {
    name: (moved_bytes / bandwidth, flops[name] / flops_per_s, turns.candidate(name).median_s)
    for name in flops
}
alt = "For a * b the bytes take most of its time, for a @ b the operations."
title = "Each program takes about the longer of two times"
plotting.show(start_here.draw_model(parts_s, title=title), alt=alt)

# %% tags=["hide-input"]
rates = (bandwidth, flops_per_s)
modelled = {name: modelled_s(moved_bytes, flops[name], *rates) for name in flops}
ratios = [turns.candidate(name).median_s / modelled[name] for name in flops]
misses = [max(ratio, 1 / ratio) for ratio in ratios]
sentence = "the model misses each of the two times by a small factor"
timing.claim(sentence, misses, at_most=2, evidence=turns)
miss = 2048 / turns.candidate("a @ b").time_ratio
sentence = "operations alone miss the ratio of the two times by a large one"
timing.claim(sentence, miss, at_least=8, evidence=turns)

# %% [markdown] tags=["explain"]
# The line below each claim says whether it holds on your machine. By hand, with our core's rates of 13.1 GB/s and 100 billion FLOP per second, the
# model goes like this. For `a * b`, the bytes take 12.6 million / 13.1 billion, which is 0.96 ms, and the operations only 0.01 ms. For `a @ b`, the
# bytes take the same 0.96 ms, but the operations take 2.15 billion / 100 billion, which is 21.5 ms. So the model says 22 times as long, and 20 were
# measured.
#
# A right ratio can hide two wrong times. Both programs took less than modelled, `a * b` by a tenth and `a @ b` by a fifth, and on another
# machine we saw them take a third more, because a rate is never quite the same in another program. But an error of a third is small beside the
# factor of 100 by which the operations alone were wrong.
#
# **To remember.** Count bytes as well as operations, divide each by its own rate, and take the larger time. An element-wise operation in float32
# moves 4 bytes for each element of each tensor that it reads or writes.
#
# If bytes decide, fewer bytes should save time. Where in a network can you save them?

# %% [markdown] tags=["slide"] minutes=2 headline="The same function in five operations and in one"
# ## Part 2: five operations or one
#
# Which operations of PyTorch wait for data, and how do you make them wait less? We ask this now, because you can use the answer tomorrow.
#
# - Large products and most convolutions use each element many times
# - Activations, biases, dropout and optimizers use it once
# - Write one of these in five operations, and in one
#
# The operations of the second line wait for data, and so does the addition of a residual. Our example is the activation function GELU, which is
# $\frac{x}{2}\,(1 + \mathrm{erf}(x / \sqrt{2}))$. If erf counts as one operation, it has five:


# %%
def gelu_in_five(x):
    scaled = x / 2**0.5
    bent = torch.erf(scaled)
    raised = bent + 1
    product = x * raised
    return product / 2


# %% [markdown]
# PyTorch also has a single operation, `gelu(x)`, which finishes the whole arithmetic of an element before it writes that element. To predict its
# advantage, count for both versions how many tensors they read or write. For example, the first line above reads one tensor and writes another.

# %% tags=["hide-input", "predict", "slide", "slide-output"] minutes=1 axis=[0.5, 50]
fusion_ratio = helpers.predict(
    "How many times as long as PyTorch's single operation does GELU in five operations take?",
    "x",
)
fusion_ratio

# %% tags=["run"]
x = torch.randn(2048, 2048)
activations = {
    "gelu": lambda: gelu(x),
    "five operations": lambda: gelu_in_five(x),
    "ReLU": lambda: x.relu(),
}
fusion = helpers.compare(activations, precision=0.1, budget_s=4)

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="One pass over the data is faster than five"
fusion_ratio.reveal(modelled=11 / 2, measured=fusion.candidate("five operations").time_ratio)
for row in fusion.candidates:
    print(f"{row.name}: {units.text(row.median_s, 's')}")

# %% tags=["hide-input"]
assert torch.allclose(gelu(x), gelu_in_five(x), atol=1e-5)
fusion.claim("five operations take longer than one", "five operations", at_least=1.5)

# %% [markdown] tags=["explain"]
# The five lines read six tensors, because the fourth reads two, and they write five. The single operation reads one and writes one. So the model says
# 11 / 2, or 5.5 times as long, although both do the same arithmetic. Our core took 5.3 times as long (measured). If your ratio is smaller, `gelu` does
# not only wait, because the erf takes your core some time as well.
#
# ReLU makes the same point from the other side. It only compares each element with zero, and yet it saves little of `gelu`'s time, because it moves
# the same two tensors. So do not look for a simpler function. Look for fewer bytes.
#
# To turn many operations into one that reads and writes once is called [*fusion*](glossary.md#fusion). You get it from PyTorch's own functions,
# such as `gelu`, or from `torch.compile(gelu_in_five)`, which writes the single operation for you. Elements of 2 bytes instead of 4 then halve
# the bytes that are left. In a layer of BERT that trains with PyTorch on a V100, element-wise operations and normalisations do 0.2 % of all FLOP
# and take 39 % of the time ([Ivanov and others, 2021](https://arxiv.org/abs/2007.00072), published).
#
# **To remember.** Most operations between the matrix products cost their bytes and not their arithmetic. GELU in five operations reads or writes 11
# tensors, and fused into one it reads or writes 2.
#
# Every time so far came out of a careful comparison. What happens if you just look at a clock?

# %% [markdown] tags=["slide"] minutes=2 headline="Five calls of the same product"
# ## Part 3: the conditions of a rate
#
# When can you trust a time, and a rate that you compute from it? You need to know before you predict anything larger, because every model of this
# course rests on measured rates.
#
# - Multiply two matrices of 64 × 64, five times
# - Each call does the same work
# - So all five times should be equal
#
# We do it in a new process, in which nothing has run before, as in a script of yours.


# %% tags=["run"]
def five_calls():
    small_a, small_b = torch.rand(2, 64, 64)
    times_s = []
    for _ in range(5):
        begun_s = time.perf_counter()
        small_a @ small_b
        times_s.append(time.perf_counter() - begun_s)
    return times_s


# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 numbers=[["calls: ([^,]+),", "the first call, measured"], ["calls: [^,]+, ([^,]+),", "the second call, measured"]] headline="The first call does far more than multiply"
times_s = helpers.run_limited(five_calls, timeout_s=60).unwrap()
print("the five calls: " + ", ".join(units.text(time_s, "s") for time_s in times_s))

# %% [markdown] tags=["explain"]
# The first call is [*cold*](glossary.md#cold-call). It also has to load code of the library and to prepare memory, and a process does most of that
# only once. Here it took 14 times as long as the median of the other four, in another process on the same core 48 times, and on an AMD EPYC 1,473
# times (measured). If you time a short program by running it once, you have mostly timed its start.
#
# The later calls are *warm*, but they are not equal either, because a computer always has other things to do. Look at your last four. If one of
# them is much slower than the others, it pulls their mean up, but it hardly moves their median.
#
# **Your turn.** Time a function yourself. The check brings a clock on which one of the warm calls takes far too long.


# %% tags=["yours"] yours="cold_and_warm" takes=5
def cold_and_warm(function, clock, runs=9):
    """Return the seconds of the first call, and then the median of ``runs`` later ones.

    Call ``function()`` and time each call alone. ``clock()`` returns the time in seconds.
    """
    times_s = []
    for _ in range(runs + 1):
        begun_s = clock()
        function()
        times_s.append(clock() - begun_s)
    return times_s[0], statistics.median(times_s[1:])


# %% checks="cold_and_warm"
cold_and_warm = check(cold_and_warm)


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


# %% wrong="cold_and_warm" says="the cells below need int or float"
def cold_and_warm(function, clock, runs=9):
    times_s = []
    for _ in range(runs + 1):
        begun_s = clock()
        function()
        times_s.append(clock() - begun_s)
    return times_s[0], torch.tensor(times_s[1:], dtype=torch.float64).median()


# %% right="cold_and_warm" style=1
def cold_and_warm(function, clock, runs=9):
    def call_s():
        begun_s = clock()
        function()
        return clock() - begun_s

    first_s, *later_s = [call_s() for _ in range(1 + runs)]
    return [first_s, sorted(later_s)[len(later_s) // 2]]


# %% right="cold_and_warm" style=2
def cold_and_warm(function, clock, runs=9):
    times_s = torch.zeros(runs + 1, dtype=torch.float64)
    for call in range(runs + 1):
        times_s[call] -= clock()
        function()
        times_s[call] += clock()
    return times_s[0].item(), times_s[1:].quantile(0.5).item()


# %% tags=["hide-input", "nbval-ignore-output"]
def times_of_a_product():
    x = torch.rand(64, 64)
    return cold_and_warm(lambda: x @ x, time.perf_counter)


first_s, later_s = helpers.run_limited(times_of_a_product, timeout_s=60).unwrap()
print(f"by your function: first {units.text(first_s, 's')}, later {units.text(later_s, 's')}")


# %% tags=["hide-input"]
def in_a_new_process():
    x = torch.rand(64, 64)
    return helpers.measure(lambda: x @ x)


fresh = helpers.run_limited(in_a_new_process, timeout_s=60).unwrap()
sentence = "in one more new process, the first product takes longer than a later one"
timing.claim(sentence, fresh.cold_s / fresh.median_s, at_least=2, evidence=fresh)

# %% [markdown]
# A median protects one time, but a ratio needs one thing more. In Part 1 the programs ran *in turns*, because a busy moment then makes all of
# them slower, and the ratio of their times survives.
#
# Does a warm median always give the same rate? Suppose that you copy matrices of three sizes, each of them alone and again and again. The copy goes
# to a matrix that exists already, so no call asks for new memory. Our model gives all three the same rate, because it is the same program.

# %% tags=["hide-input", "predict", "slide", "slide-output"] minutes=1 axis=[0.1, 1000]
size_ratio = helpers.predict(
    "How many times as many bytes per second does a copy of 256 x 256 elements move "
    "as one of 4,096 x 4,096?",
    "x",
)
size_ratio


# %% tags=["hide-input", "run"]
def measure_copy(n):
    source, target = torch.rand(2, n, n)
    return helpers.measure(lambda: target.copy_(source), budget_s=0.5)


sides = (256, 1024, 4096)
copies = {n: measure_copy(n) for n in sides}
alone_s = {name: helpers.measure(programs[name], budget_s=0.5).median_s for name in flops}

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="The same copy has another rate for each size"
copied_bytes = {n: 2 * 4 * n**2 for n in sides}  # read and written
copy_rates = {n: copied_bytes[n] / copies[n].median_s for n in sides}
size_ratio.reveal(modelled=1, measured=copy_rates[256] / copy_rates[4096])
for n in sides:
    moved, reached = units.text(copied_bytes[n], "B"), units.text(copy_rates[n], "B/s")
    print(f"a copy that reads and writes {moved}: {reached}")
in_turns, alone = turns.candidate("a @ b").time_ratio, alone_s["a @ b"] / alone_s["a * b"]
print(f"a @ b takes {in_turns:.3g} times as long as a * b in turns, {alone:.3g} times alone")

# %% tags=["hide-input"]
sentence = "a copy of 256 x 256 elements moves more bytes per second than one of 4,096 x 4,096"
ratio = copy_rates[256] / copy_rates[4096]
timing.claim(sentence, ratio, at_least=1.2, evidence=list(copies.values()))

# %% [markdown] tags=["explain"]
# The rate depends on how much data you copy, because near data are fast. The smallest matrix and its copy take 0.5 MB, so they stay in a cache of
# your core from one call to the next. The largest takes 134 MB. That is far more than the 2 MiB of our core's own L2, and the larger L3 is
# shared with everybody else on this server. So the same copy reached 52 GB/s
# with the small matrix and 9.4 GB/s with the large one.
#
# The rate also depends on what ran before. Alone, a program finds its matrices in a cache, where its own last call has left them. In turns,
# something else has used the cache meanwhile, and [the appendix](appendix/00_start_here.ipynb) finds out what. So even our bet has two answers.
# The product took 20 times as long as `a * b` in turns, and 33 times alone (measured), probably because `a * b` profits most from a cache.
#
# Here is what is most often forgotten about rates. A rate is not a property of a machine, as its weight is. It belongs to a machine *and* to
# what the machine was doing when you measured it. So whenever you read a rate, in a data sheet or in your own notebook, ask what was running, on
# how much data, and what had run before. The 13.1 GB/s of Part 1 served us well, because they came from a copy that ran just as `a * b` did, in
# turns with the same programs and into a new matrix.
#
# **To remember.** Time warm calls and take the median, because a cold call took 14 times as long here and 1,473 times elsewhere. A rate holds under the conditions of its
# measurement. The same copy on the same core moved 52 GB/s of a small matrix and 9.4 GB/s of a large one.
#
# But you can make a good prediction if you measure the rate on the same kind of work. How far does that carry?

# %% [markdown] tags=["slide"] minutes=2 headline="A long run from a short one"
# ## Part 4: the time of a training run
#
# Can you predict a training run before you pay for it? The question comes last, because its answer needs a count, a rate and its conditions.
#
# - First a small run, on your core
# - Then a large one, on A100s
# - Each time the rate comes from a smaller run of the same kind
#
# LeNet, a small network, learns to read handwritten digits of MNIST. Each run is a new process, as a training script is. Runs of one epoch and
# of three take turns, three times. With so few runs even a median may be disturbed, so here we keep the fastest of each, because a disturbance
# can only add time.


# %% tags=["hide-input", "run"]
def whole_run(epochs):
    torch.set_num_threads(1)
    digits = helpers.make_MNIST_loader(batch_size=64)
    unseen = helpers.make_MNIST_loader(batch_size=500, split="test")
    return helpers.train(helpers.LeNet(), digits, epochs=epochs, test_loader=unseen)


def run_each(*lengths):
    return {
        epochs: helpers.run_limited(whole_run, epochs, timeout_s=300) for epochs in lengths
    }


def fastest_of(rounds):
    seconds = attrgetter("elapsed_s")
    return {
        epochs: min((made[epochs] for made in rounds), key=seconds) for epochs in rounds[0]
    }


rounds = [run_each(1, 3)]

# %% tags=["hide-input"]
splits = ("train", "test")
digits, unseen = (helpers.make_MNIST_loader(64, split=split).dataset for split in splits)
parameters = sum(weight.numel() for weight in helpers.LeNet().parameters())
print(f"LeNet has {parameters:,} parameters with the biases")
print(f"{len(digits):,} digits to learn from, {len(unseen):,} to test on")

# %% tags=["hide-input", "run"]
rounds += [run_each(1, 3)]

# %% tags=["hide-input", "nbval-ignore-output"]
rounds += [run_each(1, 3)]
runs = fastest_of(rounds)
for epochs, run in runs.items():
    print(f"epochs: {epochs}, {units.text(run.elapsed_s, 's')}")
if runs[3].elapsed_s < 1.1 * runs[1].elapsed_s:
    print("Three epochs took hardly longer than one on this busy machine. Run it again.")

# %% [markdown]
# On our core a run of one epoch took 2.26 s and one of three epochs 3.22 s (measured). How long does a run of six take? Six times 2.26 s would be
# 13.6 s, but this would pay for six starts. A run has to start Python, load the library and read the digits, and like a cold call it does so once.
# The difference of 0.96 s is two pure epochs, because both runs paid for one start.
#
# **Your turn.** Turn two runs into a start and a rate, and then into a third run.


# %% tags=["yours"] yours="estimate_s" takes=5
def estimate_s(short, long, epochs):
    """Return the seconds of a run of ``epochs``, from two runs given as (epochs, seconds).

    Each run has one start, whatever that takes. Each epoch adds the same time.
    """
    epoch_s = (long[1] - short[1]) / (long[0] - short[0])
    start_s = short[1] - short[0] * epoch_s
    return start_s + epochs * epoch_s


# %% checks="estimate_s"
estimate_s = check(estimate_s)


# %% wrong="estimate_s" says="pays its start six times"
def estimate_s(short, long, epochs):
    return epochs * short[1] / short[0]


# %% wrong="estimate_s" says="the start is paid once"
def estimate_s(short, long, epochs):
    return epochs * (long[1] - short[1]) / (long[0] - short[0])


# %% wrong="estimate_s" says="Subtract all epochs of the short run"
def estimate_s(short, long, epochs):
    epoch_s = (long[1] - short[1]) / (long[0] - short[0])
    return short[1] - epoch_s + epochs * epoch_s


# %% wrong="estimate_s" says="the cells below need int or float"
def estimate_s(short, long, epochs):
    epoch_s = torch.tensor((long[1] - short[1]) / (long[0] - short[0]))
    return short[1] + (epochs - short[0]) * epoch_s


# %% right="estimate_s" style=1
def estimate_s(short, long, epochs):
    (few, few_s), (many, many_s) = short, long
    return few_s + (many_s - few_s) * (epochs - few) / (many - few)


# %% right="estimate_s" style=2
def estimate_s(short, long, epochs):
    counts = torch.tensor([[1, short[0]], [1, long[0]]], dtype=torch.float64)
    start, epoch = torch.linalg.solve(counts, torch.tensor([short[1], long[1]]).double())
    return float(start + epochs * epoch)


# %% tags=["hide-input", "run"]
taken_s = {epochs: run.elapsed_s for epochs, run in runs.items()}
line_s = {epochs: estimate_s((1, taken_s[1]), (3, taken_s[3]), epochs) for epochs in (0, 6)}
long_rounds = [run_each(6)]

# %% tags=["hide-input", "run"]
long_rounds += [run_each(6)]
runs |= fastest_of(long_rounds)
taken_s[6] = runs[6].elapsed_s
trained = {epochs: run.unwrap() for epochs, run in runs.items()}
assert trained[6].test_accuracy_share > 0.85  # guessing reads a tenth of the digits right

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="A start and a rate predict the longer run"
alt = "Seconds over epochs: a line through the runs of one and three, and the run of six."
plotting.show(start_here.draw_runs(taken_s, modelled_s=line_s), alt=alt)

# %% tags=["hide-input"]
usable = taken_s[3] >= 1.1 * taken_s[1] and line_s[0] > 0  # epochs and a start take time
evidence = list(trained.values()) if usable else ()
miss = max(taken_s[6] / line_s[6], line_s[6] / taken_s[6]) if usable else None
sentence = "the estimate misses the run of six epochs by a small factor"
timing.claim(sentence, miss, at_most=1.5, evidence=evidence)
sentence = "six times the run of one epoch is too long"
miss = 6 * taken_s[1] / taken_s[6] if usable else None
timing.claim(sentence, miss, at_least=1.2, evidence=evidence)

# %% [markdown] tags=["explain"]
# On our core six epochs should take 1.78 + 6 × 0.48, or 4.7 s (modelled). They took 5.0 s (measured), which is near, since all epochs do the
# same kind of work. But the rate was not constant. The last three epochs took 0.59 s each instead of 0.48 s, and the start of 1.78 s, which
# every run pays, hides part of this error.
#
# The same division works for a run that costs millions of times as much, if we can count its work. The authors of LLaMA trained a model with 7
# billion parameters on 1.0 trillion tokens in 82,432 GPU hours ([Touvron and others, 2023a](https://arxiv.org/abs/2302.13971), Tables 2 and 15,
# published). Later they trained Llama 2 70B on 2.0 trillion tokens, with the same kind of GPU, an A100 ([Touvron and others,
# 2023b](https://arxiv.org/abs/2307.09288)). The start is negligible here, so we need only the work and the rate.
#
# The work is a count. In the forward pass each parameter of a matrix costs two operations per token, a multiplication and an addition. The
# backward pass computes two products of the same size, for the gradients of the weights and of the layer's input, which makes four more.

# %%
# parameters, from the published shapes of the matrices, which LLaMA 7B and Llama 2 7B share
small, large = (decoding.CONFIGS[f"Llama 2 {size}"].parameters for size in ("7B", "70B"))
rate = 6 * small * 1e12 / (82_432 * 3600)  # operations per second of a GPU
print(f"the small model has {small:,} parameters, the large one {large:,}")
print(f"each GPU did {rate:.3g} FLOP/s, {rate / 312e12:.0%} of the A100's data sheet")

# %% [markdown]
# The small run took 6 × 6.74 billion × 1.0 trillion, or 4.0·10²² operations. In 82,432 hours there are 3.0·10⁸ seconds, so each GPU did
# 1.36·10¹⁴ operations per second. We need not know why this was 44 % of the data sheet's rate, as long as the large run has similar conditions,
# and both papers name the same kind of GPU and of model.

# %% tags=["hide-input", "predict", "slide", "slide-output"] minutes=1 axis=[100000, 10000000]
large_hours = helpers.predict(
    "If the 7B took 82,432 GPU hours, how many did the 70B take with twice as many tokens?",
    "GPU hours",
)
large_hours

# %% tags=["hide-input", "run"]
hours = 6 * large * 2e12 / rate / 3600
source = "Touvron and others, 2023b, Table 2"

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A rate of the small run predicts the large one"
large_hours.reveal(modelled=hours, published=1_720_320, source=source)

# %% [markdown] tags=["explain"]
# The large model needs 6 × 69 billion × 2 trillion, or 8.3·10²³ operations. Divided by the rate of the small run, this is 6.1·10⁹ seconds, or 1.69
# million GPU hours, 2 % less than published. So small an error is luck, since for the six other models of the two papers the same division misses by
# 5 to 21 %. The 6 cancels here, because both runs have it, but you need it as soon as the rate comes from a data sheet.
#
# In Part 1 it was wrong by a factor of 100 to count only operations, because the two programs did not wait for the same thing. Here both runs
# consist of the same kind of large matrix products. So the rate of one is a fair estimate for the other, here within about a fifth.
#
# Turn it yourself. The figure begins with a third run, LLaMA with 65 billion parameters and 1.4 trillion tokens on 2,048 A100s. With 44 % of the
# data sheet's rate it says 22.5 days, and the authors report about 21 (Touvron and others, 2023a, published). How many A100s train Llama 2 70B,
# with its 69 billion parameters, within a month? What can you train in a week on eight?

# %% tags=["hide-input"]
start_here.explore_training()

# %% [markdown]
# By the model, Llama 2 70B takes 1.69 million GPU hours, and a month has 720, so about 2,340 A100s would train it within a month. In a week eight A100s do
# 8 × 604,800 × 1.36·10¹⁴, or 6.6·10²⁰ operations. Divided by 6, these are enough for 1 billion parameters and 0.1 trillion tokens, for example.
#
# **To remember.** A training run takes about 6 × parameters × tokens operations. With the rate of another run of the same kind, our modelled GPU
# hours were wrong by 2 to 21 %.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. Count bytes and operations. The longer time decides.
# 2. Fuse operations that wait for data.
# 3. A rate holds under the conditions of its measurement.
#
# The matrix product took 20 times as long as the element-wise one, although it does 2,048 times the arithmetic. The reason is that `a * b` waits
# for 12.6 MB of data, whereas `a @ b` uses each element 1,024 times, and one rate for bytes and one for operations said 22 (modelled). When each
# program ran alone the ratio was 33, because a rate holds only under the conditions of its measurement.
#
# This is the method of the whole course. Count the work, find the rate, divide, compare, and look for what is missing.
#
# ![Map of the course: six acts on a drawing of the machine, from a core to a cluster, each with its lessons and its question.](map/course.svg)
#
# The machine grows from act to act, from one core to a server of language models for many users, and the line stays the same. Each lesson needs only
# those that it names at its top, so you may also follow a way of your own. The [exercises](exercises/00_start_here_exercises.ipynb) of this lesson
# read timings and compare fairly, words are in the [glossary](glossary.md), and if something does not work, `python -m helpers` in a terminal says
# what to try.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# Matrices are $n \times n$ and float32. The [bandwidth](glossary.md#bandwidth) of the memory is $B$, and $P$ is the rate of arithmetic in FLOP per second that a product reaches.
#
# | quantity | formula | for |
# |---|---|---|
# | element-wise product | $n^2$ FLOP | two $n \times n$ matrices |
# | matrix product | $n^3$ [MAC](glossary.md#mac), $2n^3$ FLOP | two $n \times n$ matrices |
# | bytes moved, at least | $3 \cdot 4\,n^2$ | either, in float32 |
# | time, about | the larger of bytes$/B$ and FLOP$/P$ | an operation that runs warm |
# | model of a training run | $t(e) = t_{start} + e\,t_{epoch}$ | $e$ epochs that do the same work |
# | operations of training a language model, about | $6\,N \cdot$ tokens | $N$ parameters |
