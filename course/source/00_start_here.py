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
#       - model|modelled the time of a program from its bytes, its operations and two rates
#       - tell|told which operations of PyTorch wait for data
#       - estimate|estimated a training run from a smaller one, your own and that of Llama 2 70B
# ---

# %% [markdown] tags=["objectives"]
# # Start here
#
# What does one character cost? Take two matrices of 1,024 × 1,024 random numbers. In PyTorch, `a * b` multiplies them element by element, and
# `a @ b` is their matrix product. The two programs differ in a single character. The first does about a million multiplications, one for each
# element. The second needs 1,024 multiplications and 1,024 additions for each element of its result, which is 2,048 times as much arithmetic.
#
# On one core of an AMD EPYC server, `a * b` takes 0.86 ms (measured). If time followed arithmetic, `a @ b` would take 2,048 times as long, or
# 1.8 s. Would it?
#
# This is less of a game than it looks. The layers of a neural network are products such as `a @ b`, and its activations, biases and dropouts are
# element-wise operations such as `a * b`. If you can predict these two, you can predict most of a training step before you pay for the machine
# that runs it. The whole course can be written in one line:
#
# > time = work / rate
#
# So far it has given us 1.8 s. By the end of this lesson it will predict what it cost to train a language model of 70 billion parameters, with an
# error of about 10 %. You need a little PyTorch, and no GPU, because everything here runs on one core of your processor.

# %% tags=["hide-input"]
import statistics
import time

import torch

import helpers

if "machine_card" not in dir(helpers):
    raise ImportError(f"{helpers.__file__} hides the course's helpers: rename it, and restart")
from torch.nn.functional import gelu

from helpers import exercises, plotting, timing, units
from helpers.studies import decoding, start_here

check = exercises.checks_of("start_here")
torch.set_num_threads(1)  # one core
allocator = helpers.steady_allocator()  # freed memory is kept for later tensors

# %% [markdown] tags=["slide"] minutes=1 headline="One character, and 2,048 times the arithmetic"
# ## The bet
#
# How many times as long does the second program take?
#
# - `a * b` multiplies 1,024 × 1,024 elements
# - `a @ b` does 2,048 times as many operations
# - Does its time follow the operations?
#
# Write down a number, even if it is a guess. You will do this in every lesson, because a number that you wrote down before you saw the answer
# shows you what you had not understood.

# %% tags=["hide-input", "predict", "slide", "slide-output"] minutes=1 axis=[1, 10000]
bet = helpers.predict(
    "For matrices of 1,024 x 1,024, how many times as long as a * b does a @ b take?", "x"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Predicted, modelled, measured"
# ## Three numbers for every experiment
#
# - **Predicted**: you wrote it down beforehand
# - **Modelled**: it was computed from other numbers
# - **Measured**: a machine took that time
#
# When we borrow a number from a paper or a data sheet, we call it *published*. If model and measurement disagree by a factor of ten, the model has
# left something out, and we learn by looking for it.
#
# Some cells are yours to write. The check below says what is wrong, and it shows a worked version if you are stuck. Code that is not the idea is
# folded, and a click opens it.

# %% [markdown] tags=["slide"] minutes=2 headline="Five calls of the same product"
# ## Part 1: the time of a program
#
# Can we settle the bet by running each program once, with a clock beside it? Before we trust such a time, we try the clock on something simpler,
# because there we know what must come out.
#
# - Multiply two matrices of 64 × 64, five times
# - Each call does the same work
# - So all five times should be equal
#
# Every time belongs to a machine, so this is the moment to meet yours. A [cache](glossary.md#cache) is a small, fast memory near a core that keeps
# copies of recent data. Remember the size of your largest one.

# %% tags=["hide-input", "nbval-ignore-output"]
helpers.machine_card()

# %% tags=["hide-input", "predict", "slide", "slide-output"] minutes=1 axis=[1, 10000]
first_call = helpers.predict(
    "How many times as long as a later call does the first call of a product take?", "x"
)
first_call

# %% tags=["run"]
small_a, small_b = torch.rand(2, 64, 64)
times_s = []
for _ in range(5):
    begun_s = time.perf_counter()
    small_a @ small_b
    times_s.append(time.perf_counter() - begun_s)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The first call does far more than multiply"
first_call.reveal(modelled=1, measured=times_s[0] / statistics.median(times_s[1:]))
print("the five calls: " + ", ".join(units.text(time_s, "s") for time_s in times_s))

# %% [markdown] tags=["explain"]
# The first call is [*cold*](glossary.md#cold-call). It also had to load code of the library and to prepare memory, and a process does most of that
# only once. The later calls are *warm*. On the EPYC of the first screen, the five calls took 34.6 ms, 102 µs, 21.5 µs, 25.5 µs and 20.5 µs (measured), so
# the first one took 1,473 times as long as the median of the others. If you time a short program by running it once, you have mostly timed its
# start.
#
# The warm calls differ too, because a computer always has other things to do. One disturbed call can move their mean far away, but it hardly moves
# their median.
#
# **Your turn.** Time the first call and the median of the later ones. The check does so with a clock of its own, on which one call is disturbed.


# %% tags=["yours"] yours="cold_and_warm" takes=5
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


# %% tags=["hide-input", "run", "nbval-ignore-output"]
first_s, later_s = cold_and_warm(lambda: small_a @ small_b, time.perf_counter)
print(f"by your function: first {units.text(first_s, 's')}, later {units.text(later_s, 's')}")
helpers.measure(lambda: small_a @ small_b)

# %% [markdown]
# `helpers.measure` does the same. It also says how far the warm calls are spread (the [interquartile range](glossary.md#interquartile-range)),
# whether the result is stable, and if not, why. To compare two programs, let them run *in turns*, as `helpers.compare` does, because a busy moment
# then makes both of them slower and the ratio of their times survives. Below a claim about times, the line *here* says whether it holds on your
# machine.


# %% tags=["hide-input"]
def in_a_new_process():
    x = torch.rand(64, 64)
    return helpers.measure(lambda: x @ x)


fresh = helpers.run_limited(in_a_new_process, timeout_s=60).unwrap()
sentence = "the first product of a process takes longer than a later one"
timing.claim(sentence, fresh.cold_s / fresh.median_s, at_least=1, evidence=fresh)

# %% [markdown]
# **To remember.** A cold call can take 1,000 times as long as a warm one. Time warm calls, take the median, and run the programs that you compare
# in turns.
#
# With a trustworthy time we can settle the bet. Which work fills it?

# %% [markdown] tags=["slide"] minutes=2 headline="The same core, and two very different rates"
# ## Part 2: the work of a program
#
# Which work takes the time of our two programs? We can ask now, because we have a time to which we can hold our counts.
#
# - Count the operations of each program
# - Count the bytes that it must move
# - Which of the two counts gives the time?
#
# Six programs take turns, so that all of them meet the same conditions.

# %% tags=["run"]
a, b, c, d, e = torch.rand(5, 1024, 1024)
half_a, half_b = torch.rand(2, 512, 512)
programs = {
    "a * b": lambda: a * b,
    "a @ b": lambda: a @ b,
    "copy": lambda: c.clone(),
    "half product": lambda: half_a @ half_b,
    "ReLU": lambda: d.relu(),
    "GELU": lambda: gelu(e),
}
turns = helpers.compare(programs, precision=0.1, budget_s=5)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Operations are wrong by a wide margin"
bet.reveal(modelled=2048, measured=turns.candidate("a @ b").time_ratio)

# %% tags=["hide-input"]
sentence = "a @ b takes longer than a * b, by far less than the operations say"
turns.claim(sentence, "a @ b", at_least=2, at_most=2048 / 4)

# %% [markdown] tags=["explain"]
# On the EPYC, `a * b` took 0.86 ms and `a @ b` took 33.6 ms, and the median of the ratios of 64 turns was 40 (measured). Turn the line around and
# compute a rate, which is work divided by time. There `a * b` did 1.05 million [FLOP](glossary.md#flop), or floating-point operations, in 0.86 ms,
# which is 1.2 billion per second, and `a @ b` did 2.15 billion in 33.6 ms, which is 64 billion per second. So the product is not surprisingly
# quick. It is `a * b` that is surprisingly slow, as if the core were waiting for something.
#
# It waits for data. Each program has to read two matrices and to write a third, and with 4 bytes per element these are 3 × 4 × 1,024², or 12.6
# million bytes. But `a * b` uses each element once, whereas `a @ b` multiplies each element of `a` with a whole row of `b`, so it uses each element
# 1,024 times.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="The product uses each element many times"
alt = "An element of a makes one result of a * b, and a row of results of a @ b."
plotting.show(plotting.draw_products(4, title="Uses of one element, at n = 4"), alt=alt)

# %% tags=["slide", "slide-output"] minutes=2 numbers=[["a \\* b does ([\\d.]+ FLOP)", "for every byte in a * b"], ["a @ b does ([\\d.]+ FLOP)", "for every byte in a @ b"]] headline="A program that does little per byte waits for bytes"
moved_bytes = 3 * 4 * 1024**2  # three matrices of float32
flops = {"a * b": 1024**2, "a @ b": units.flops_from_macs(1024**3)}
for name in flops:
    print(f"{name} does {flops[name] / moved_bytes:.3g} FLOP per byte")

# %% [markdown]
# So there are two kinds of work, bytes and operations, and each has a rate of its own. If we computed these rates from the two times of the bet, our model would agree with these times whatever happens, and we would learn nothing.
# Therefore we take them from two other programs, a copy and a product of matrices with half as many rows and columns.

# %% tags=["nbval-ignore-output"]
bandwidth = 2 * c.nbytes / turns.candidate("copy").median_s  # it reads c and writes a copy
flops_per_s = units.flops_from_macs(512**3) / turns.candidate("half product").median_s
print(f"{units.text(bandwidth, 'B/s')}, {units.text(flops_per_s, 'FLOP/s')}")

# %% [markdown]
# On the EPYC they were 19.7 GB/s and 86.8 billion FLOP per second. A core can move data and compute at the same time, so the longer of the two
# times decides.
#
# **Your turn.** Write this model.


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
sentence = "each of the two takes about the time of its model"
timing.claim(sentence, ratios, at_least=1 / 2, at_most=2, evidence=turns)

# %% [markdown] tags=["explain"]
# By hand, with the rates of the EPYC, it goes like this. For `a * b`, the bytes take 12.6 million / 19.7 billion, which is 0.64 ms, and the
# operations only 0.01 ms. For `a @ b`, the bytes take the same 0.64 ms, but the operations take 2.15 billion / 86.8 billion, which is 24.7 ms. So
# the model says 39 times as long, and 40 were measured.
#
# A right ratio can hide two wrong times, so look at them as well. On the EPYC both were a third longer than modelled, and Part 3 explains one of the
# two errors.
#
# You can use this tomorrow, because most operations of PyTorch are like `a * b`. Activations, biases, dropout, residual additions and the step of an
# optimizer use each element once, so they wait for data. Matrix products and convolutions use each element many times, so they compute. For example,
# ReLU does one operation per element and GELU more than twenty, but both read 4 bytes per element and write 4.

# %% tags=["hide-input", "predict", "slide", "slide-output"] minutes=1 axis=[0.5, 50]
gelu_ratio = helpers.predict(
    "How many times as long as ReLU does GELU take, "
    "which does more than twenty operations per element instead of one?",
    "x",
)
gelu_ratio

# %% tags=["hide-input", "run"]
relu_s, gelu_s = (turns.candidate(name).median_s for name in ("ReLU", "GELU"))

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="An activation costs about what its bytes cost"
gelu_ratio.reveal(modelled=1, measured=gelu_s / relu_s)

# %% tags=["hide-input"]
sentence = "GELU takes far less than twenty times as long as ReLU"
timing.claim(sentence, gelu_s / relu_s, at_most=10, evidence=turns)
sentence = "ReLU takes about as long as a copy, which moves as many bytes"
copy_s = turns.candidate("copy").median_s
timing.claim(sentence, relu_s / copy_s, at_least=1 / 2, at_most=2, evidence=turns)

# %% [markdown] tags=["explain"]
# A core can do most of these operations while it waits, so an activation function costs about what its bytes cost. In a layer of BERT that trains
# with PyTorch on a V100, element-wise operations and normalisations do 0.2 % of all FLOP and take 39 % of the time
# ([Ivanov and others, 2021](https://arxiv.org/abs/2007.00072), published). To make them faster, do not look for simpler functions. Look for fewer
# bytes, for example with elements of 2 bytes, or with `torch.compile`, which can fuse several operations so that the data travel only once.
#
# **To remember.** Count bytes as well as operations, divide each by its own rate, and take the larger time. An operation that uses each float32
# element once costs 4 bytes per element of each tensor that it reads or writes.
#
# The model needed two rates that we had measured under certain conditions. Do they hold under any other?

# %% [markdown] tags=["slide"] minutes=2 headline="Now each program runs alone"
# ## Part 3: the conditions of a rate
#
# When does a rate hold? We ask this now, because a rate that holds only where it was measured cannot predict anything else.
#
# - In turns, other programs run in between
# - Alone, each program repeats itself, as in a benchmark
# - Same work, same core, same rates?

# %% tags=["hide-input", "predict", "slide", "slide-output"] minutes=1 axis=[1, 10000]
alone_ratio = helpers.predict(
    "When each program runs alone, again and again, "
    "how many times as long as a * b does a @ b take?",
    "x",
)
alone_ratio

# %% tags=["run"]
names = ("a * b", "a @ b", "copy", "half product")
alone_s = {name: helpers.measure(programs[name], budget_s=0.5).median_s for name in names}

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Run alone, the same programs have another ratio"
alone_rates = (
    2 * c.nbytes / alone_s["copy"],
    units.flops_from_macs(512**3) / alone_s["half product"],
)
modelled = {name: modelled_s(moved_bytes, flops[name], *alone_rates) for name in flops}
alone_ratio.reveal(
    modelled=modelled["a @ b"] / modelled["a * b"],
    measured=alone_s["a @ b"] / alone_s["a * b"],
)
rate_texts = [units.text(one, "B/s") for one in (bandwidth, alone_rates[0])]
print("a copy in turns: {}, alone: {}".format(*rate_texts))

# %% [markdown] tags=["explain"]
# On the EPYC the ratio was 176 (measured), because one of the two rates had changed. A copy that ran alone moved 71.4 GB/s, 3.6 times as much as
# the copy in turns. With this rate the bytes of `a * b` take 0.18 ms, and the model says 140. This is a fifth too low, because the model still
# assumes 87 billion FLOP per second for a product that had reached 64 billion. Why the large product was slower than the small one, we do not know.
#
# The likely reason for the faster data is the cache. Alone, `a * b` can find its matrices, 12.6 MB in all, where its last call has left them, because
# the EPYC's cache holds 32 MiB. In turns, others may fill the cache in the meantime. A longer pause leaves them more time, and the copy of Part 2
# came back after 3 ms, but `a * b` after 34 ms, so it took longer than modelled. [The appendix](appendix/00_start_here.ipynb) tests this reason. On a
# machine that does nothing else, your two ratios may be close.
#
# Which rate should you take for a program of your own? In a network an operation runs between others, so a rate in turns is usually nearer to what
# you will see. A benchmark that repeats one operation alone flatters it.
#
# Here is the one insight of this lesson. A rate is not a property of a machine, as its weight is. It belongs to a machine *and* to what the machine
# was doing when you measured it. So whenever you read a rate, in a data sheet or in your own notebook, ask what was running, on how much data, and
# what had run before.
#
# **To remember.** A rate holds under the conditions of its measurement. The same copy on the same core moved 19.7 GB/s in one setting and 71.4 GB/s in
# another, a factor of 3.6.
#
# This sounds like bad news for predictions. But it also tells you how to make a good one, because you can measure the rate on the same kind of work.
# How far does that carry?

# %% [markdown] tags=["slide"] minutes=2 headline="A long run from a short one"
# ## Part 4: the time of a training run
#
# Can you predict a training run before you pay for it? The question comes last, because its answer needs a count, a rate and its conditions.
#
# - First a small run, on your core
# - Then a large one, on A100s
# - Each time the rate comes from a smaller run of the same kind
#
# LeNet, a small network, learns to read handwritten digits of MNIST. Each run is a new process, as a training script is.


# %% tags=["hide-input", "run"]
def whole_run(epochs):
    torch.set_num_threads(1)
    digits = helpers.make_MNIST_loader(batch_size=64)
    unseen = helpers.make_MNIST_loader(batch_size=500, split="test")
    return helpers.train(helpers.LeNet(), digits, epochs=epochs, test_loader=unseen)


def faster_run(epochs, runs=2):  # a disturbance can only add time
    made = [helpers.run_limited(whole_run, epochs, timeout_s=300) for _ in range(runs)]
    return min(made, key=lambda run: run.elapsed_s)


# %% tags=["hide-input"]
splits = ("train", "test")
digits, unseen = (helpers.make_MNIST_loader(64, split=split).dataset for split in splits)
parameters = sum(weight.numel() for weight in helpers.LeNet().parameters())
print(f"LeNet has {parameters:,} parameters with the biases")
print(f"{len(digits):,} digits to learn from, {len(unseen):,} to test on")

# %% tags=["hide-input"]
runs = {1: faster_run(1)}

# %% tags=["hide-input", "nbval-ignore-output"]
runs[3] = faster_run(3)
for epochs, run in runs.items():
    print(f"epochs: {epochs}, {units.text(run.elapsed_s, 's')}")

# %% [markdown]
# On the EPYC a run of one epoch took 2.5 s and one of three epochs 3.75 s (measured). How long does a run of six take? Six times 2.5 s would be
# 15 s, but this would pay for six starts. A run has to start Python, load the library and read the digits, and like a cold call it does so once.
# The difference of 1.25 s is two pure epochs, because both runs paid for one start.
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
runs[6] = faster_run(6, runs=1)
taken_s[6] = runs[6].elapsed_s
trained = {epochs: run.unwrap() for epochs, run in runs.items()}
assert trained[6].test_accuracy_share > 0.85  # guessing reads a tenth of the digits right

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="A start and a rate predict the longer run"
alt = "Seconds over epochs: a line through the runs of one and three, and the run of six."
plotting.show(start_here.draw_runs(taken_s, modelled_s=line_s), alt=alt)

# %% tags=["hide-input"]
evidence = list(trained.values())
sentence = "six epochs take about their estimate"
timing.claim(sentence, taken_s[6] / line_s[6], at_least=1 / 2, at_most=2, evidence=evidence)
sentence = "six times the run of one epoch is too long"
timing.claim(sentence, 6 * taken_s[1] / taken_s[6], at_least=1.2, evidence=evidence)

# %% [markdown] tags=["explain"]
# On the EPYC one epoch took 0.62 s and the start 1.9 s, so six epochs should take 1.9 + 6 × 0.62, or 5.6 s (modelled). They took 5.35 s (measured),
# because all epochs do the same kind of work, under the same conditions.
#
# Now a large run. The authors of Llama 2 trained a model with 7 billion parameters on 2 trillion tokens in 184,320 GPU hours
# ([Touvron and others, 2023](https://arxiv.org/abs/2307.09288), Table 2, published), and one with 70 billion parameters on as many tokens and on the
# same kind of GPU, an A100. The start is negligible here, so we need only the work and the rate.
#
# The work is a count. In the forward pass each parameter costs two operations per token, a multiplication and an addition. The backward pass
# computes two products of the same size, one for the gradient of the weights and one for the gradient of the layer's input, and that makes four
# more.

# %%
# parameters, from the published shapes of the models' matrices
small, large = (decoding.CONFIGS[f"Llama 2 {size}"].parameters for size in ("7B", "70B"))
rate = 6 * small * 2e12 / (184_320 * 3600)  # operations per second of a GPU
print(f"the small model has {small:,} parameters, the large one {large:,}")
print(f"each GPU did {rate:.3g} FLOP/s, {rate / 312e12:.0%} of the A100's data sheet")

# %% [markdown]
# The small run took 6 × 6.74 billion × 2 trillion, or 8.1·10²² operations. In 184,320 hours there are 6.6·10⁸ seconds, so each GPU did 1.22·10¹⁴
# operations per second. We need not know why this was 39 % of the data sheet's rate. It is a rate, and we know its conditions.

# %% tags=["hide-input", "predict", "slide", "slide-output"] minutes=1 axis=[100000, 10000000]
large_hours = helpers.predict(
    "If the 7B took 184,320 GPU hours, "
    "how many GPU hours did the 70B, with 69 billion parameters, take?",
    "GPU hours",
)
large_hours

# %% tags=["run"]
hours = 6 * large * 2e12 / rate / 3600
source = "Touvron and others, 2023, Table 2"

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A rate of the small run predicts the large one"
large_hours.reveal(modelled=hours, published=1_720_320, source=source)

# %% [markdown] tags=["explain"]
# The large model needs 6 × 69 billion × 2 trillion, or 8.3·10²³ operations. Divided by the rate of the small run, this is 6.8·10⁹ seconds, or 1.89
# million GPU hours, 10 % more than published. For the model with 13 billion parameters, the same division gives 356,000 hours, 3 % less than the
# published 368,640.
#
# Notice that we counted operations only, and that this was wrong by a factor of 51 in Part 2, because there it compared a program that waits for data
# with one that computes. Here both runs spend their time in the same kind of large matrix products, so the rate of the one holds for the other.
#
# Turn it yourself. How many A100s would have finished the large run within a month? What can you train in a week on eight?

# %% tags=["hide-input"]
start_here.explore_training()

# %% [markdown]
# **To remember.** A training run takes about 6 × parameters × tokens operations. With a rate from a smaller run of the same kind, this predicted 1.7
# million GPU hours with an error of 10 %.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. Time warm calls, in turns, and take the median.
# 2. Count bytes and operations. The longer time decides.
# 3. A rate holds under the conditions of its measurement.
#
# On the EPYC the matrix product took 40 times as long as the element-wise one, although it does 2,048 times the arithmetic. The reason is that `a * b`
# waits for 12.6 MB of data, whereas `a @ b` uses each element 1,024 times, and one rate for bytes and one for operations predicted 39. When each
# program ran alone the ratio was 176, because a rate holds only under the conditions of its measurement.
#
# This is the method of the whole course. Count the work, find the rate, divide, compare, and look for what is missing.
#
# ![Map of the course: six acts on a drawing of the machine, from a core to a cluster, each with its lessons and its question.](map/course.svg)
#
# The machine grows from act to act, from one core to a server of language models for many users, and the line stays the same. Each lesson needs only
# those that it names at its top, so you may also follow a way of your own.
#
# The [exercises](exercises/00_start_here_exercises.ipynb) of this lesson read units, tell cold calls from warm ones, read timings and compare fairly.
# Your predictions stay in one private file beside the lessons, and `helpers.progress()` shows how far you are. `helpers.gpu_train` trains LeNet on a GPU, if you have one. When something does not work,
# `python -m helpers` in a terminal examines this machine (`helpers.doctor.examine`) and prints what to try. Words are in the
# [glossary](glossary.md), functions in the [index](index_of_functions.md).

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
# | operations of training a language model, about | $6 \cdot$ parameters $\cdot$ tokens | $N$ parameters |
