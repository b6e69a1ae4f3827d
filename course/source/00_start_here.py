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
#       - tell|told the first call of an operation from its time
#       - read|read every field of a `Timing`, and its reason not to be trusted
#       - model|modelled the time of one operation from another that uses the same part of the machine
#       - estimate|estimated the time of a training run from a shorter one, on real digits
# ---

# %% [markdown] tags=["objectives"]
# # Start here
#
# Two operations differ by one character. How many times longer does one of them take, and why? This course answers such
# questions on the machine under your own notebook. You need Python and a little PyTorch. You do not need a GPU.

# %% [markdown] tags=["slide"] minutes=2
# ## Three numbers for every experiment
#
# - **Predicted**: what you expect, written down before anything runs.
# - **Modelled**: what counting the work says.
# - **Measured**: what this machine did, here, now.
#
# Lock your prediction in even when it is a guess. You learn from the distance between the three numbers: a model that is wrong
# by a factor of ten has left something out, and finding out what is the point of the experiment.

# %%
import pandas as pd
import torch

import helpers
from helpers import plotting, recorded, results, timing, units

device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# Large tensors come from the operating system in fresh pages, and the first touch of a page is slow. The next line tells the C
# library to keep the pages it has, so that we time arithmetic and not page faults. Lesson 01 will measure what it changes.

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
# Find three things in it: how many cores your notebook may use, how large the last cache is, and how much memory there is. Each
# will decide an experiment of this course. One thing holds on every machine: the further a cache is from the core, the
# larger it is.

# %%
data_caches = [cache for cache in card.caches or () if cache.kind != "instruction" and cache.size_bytes]
sizes = [cache.size_bytes for cache in sorted(data_caches, key=lambda cache: cache.level)]
print("every data cache is at least as large as the one before it:", sizes == sorted(sizes))

# %% [markdown] tags=["slide"] minutes=3
# ## Experiment 1: the first call
#
# We multiply two matrices of 1,024 by 1,024 numbers: once, then again and again. How many times longer does the first call take?
#
# The arithmetic of every call is the same. So is the data. Commit yourself to a number before you go on. Where a question asks
# for a time or for bytes, write it as you like: `units.parse` reads `3 ms` and `0.003`, `2 GiB` and `2,147,483,648`.

# %% tags=["predict"]
first_call = helpers.predict("How many times longer is the first call of a @ b than a later one?", "x")
first_call

# %% tags=["run", "nbval-ignore-output", "slide-output"]
side = 1024
a, b = torch.rand(side, side, device=device), torch.rand(side, side, device=device)
product = helpers.measure(lambda: a @ b)
product

# %% [markdown] tags=["look"]
# This is a `Timing`. Read it field by field:
#
# | field | meaning |
# |---|---|
# | cold | the very first call, alone |
# | minimum | the fastest later run: what the machine can do when nothing disturbs it |
# | median | half of the later runs took longer, half less: what you will usually see |
# | iqr | the [interquartile range](glossary.md#interquartile-range): how far the middle half of the runs is spread |
# | runs | how many runs the statistics stand on |
# | threads, device | where it ran; without them a time means nothing |
# | waiting share | how much of the time another program held the processor |
# | stable | whether the measurement repeats; if not, the reason stands beside it |

# %% tags=["look", "slide", "slide-output"] minutes=2
drawn = plotting.draw_bars(
    {"first call": product.cold_s, "median": product.median_s, "fastest": product.minimum_s},
    unit="s",
    title="The same product, cold and warm",
    log=True,
)
alt = "Three points on a logarithmic axis of time: the first call, the median, the fastest run."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output"]
first_call.reveal(measured=product.cold_s / product.median_s)

# %% tags=["explain"]
timing.claim(
    "the first call is no faster than a typical one",
    holds=product.cold_s >= product.median_s,
    evidence=product,
)

# %% [markdown] tags=["explain"]
# The first call also loads the library's code, starts its threads and touches memory for the first time. A [cold
# call](glossary.md#cold-call) is a fact about starting up; a warm one is a fact about the operation. From here on, "the time" of
# an operation is the median of warm runs. The first call is still real: your users pay it once.

# %% [markdown] tags=["slide"] minutes=3
# ## Experiment 2: `a * b` against `a @ b`
#
# `a * b` multiplies element by element: $n^2$ multiplications. `a @ b` is the matrix product: $n^3$
# [multiply-accumulates](glossary.md#mac), each two [floating-point operations](glossary.md#flop).
#
# The two are one character apart, and a well-known lecture once timed the first believing it was the second. Predict how far
# apart they are in time.

# %% tags=["predict"]
two_products = helpers.predict("How many times longer does a @ b take than a * b?", "x")
two_products

# %% [markdown]
# The simplest model counts [FLOP](glossary.md#flop): if each took the same time, the ratio of the times would be the ratio of the
# counts.

# %%
elementwise_flops = side**2
product_flops = units.flops_from_macs(side**3)
print(f"a * b: {elementwise_flops:,} FLOP")
print(f"a @ b: {side**3:,} MAC, that is {product_flops:,} FLOP")
print(f"the model says: {product_flops / elementwise_flops:,.0f} times longer")

# %% tags=["run", "nbval-ignore-output"]
both = helpers.compare({"a * b": lambda: a * b, "a @ b": lambda: a @ b})
both

# %% [markdown] tags=["look"]
# `compare` takes turns between the candidates, so that a busy moment of the machine falls on all of them, and gives the ratio with
# an interval. Now the three numbers side by side:

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2
measured_ratio = both.candidate("a @ b").time_ratio
two_products.reveal(modelled=product_flops / elementwise_flops, measured=measured_ratio)

# %% tags=["explain"]
both.claim(
    "a @ b is slower than a * b, by less than a quarter of what the operations say",
    "a @ b",
    at_least=1,
    at_most=product_flops / elementwise_flops / 4,
)

# %% [markdown] tags=["explain"]
# So the model is wrong, and by far. The arithmetic is not what `a * b` waits for. Count the bytes as well: both read two matrices
# and write a third, of four bytes a number.

# %%
moved_bytes = 3 * side**2 * a.element_size()
print(f"both move {moved_bytes:,} bytes at least once")
print(f"a * b does {elementwise_flops / moved_bytes:.2f} FLOP for every byte")
print(f"a @ b does {product_flops / moved_bytes:.1f} FLOP for every byte")

# %% [markdown] tags=["slide"] minutes=3
# ## A better model: ask the machine what it is limited by
#
# - `a * b` waits for memory: model it from a copy.
# - `a @ b` waits for arithmetic: model it from a smaller product.
#
# A copy moves two matrices where `a * b` moves three, so the model is $t_{a*b} = \tfrac{3}{2}\,t_{copy}$. A product of matrices
# of half the side does an eighth of the multiply-accumulates, so $t_{a@b} = 8\,t_{half}$. Neither model has seen the thing it
# models.

# %% tags=["run", "nbval-ignore-output"]
half_a, half_b = a[: side // 2, : side // 2].contiguous(), b[: side // 2, : side // 2].contiguous()
limits = helpers.compare({"copy": lambda: a.clone(), "half product": lambda: half_a @ half_b})
limits

# %% tags=["look", "nbval-ignore-output", "slide-output"]
copy_s, half_product_s = (limits.candidate(name).median_s for name in ("copy", "half product"))
modelled_s = {"a * b": 3 / 2 * copy_s, "a @ b": 8 * half_product_s}
measured_s = {name: both.candidate(name).median_s for name in modelled_s}
ratios = {name: measured_s[name] / modelled_s[name] for name in modelled_s}
results.printed(pd.DataFrame({"modelled_s": modelled_s, "measured_s": measured_s, "ratio": ratios}))

# %% tags=["explain"]
timing.claim(
    "each time is within a factor of 4 of its model",
    holds=all(1 / 4 < ratio < 4 for ratio in ratios.values()),
    evidence=[both, limits],
)

# %% [markdown] tags=["explain"]
# The model from counts alone was wrong by a factor that you saw above; two small measurements of this machine bring it close. That
# is the method of the whole course: count the work, measure what the machine can do, divide, and compare. Lesson 02 turns it into
# a picture, the roofline.

# %% [markdown]
# The two rates that the models need are bytes a second for the copy and FLOP a second for the product. With them the models
# speak about any side. Move the slider: at which side does the product cost as much as the element-wise one?

# %% tags=["nbval-ignore-output"]
bytes_per_s = 2 * side**2 * a.element_size() / copy_s
flops_per_s = units.flops_from_macs((side // 2) ** 3) / half_product_s
print(f"{units.text(bytes_per_s, 'B/s')} and {units.text(flops_per_s, 'FLOP/s')}")

# %% tags=["look"]
def modelled_products(n):
    times_s = {"a * b": 3 * n**2 * 4 / bytes_per_s, "a @ b": units.flops_from_macs(n**3) / flops_per_s}
    return plotting.draw_bars(times_s, unit="s", title=f"Modelled, side {n}")


helpers.interactive_figure(
    modelled_products,
    {"n": [2**power for power in range(4, 14)]},
    views=[{"n": 16}, {"n": 1024}],
    alt=lambda n: f"Two bars: the modelled times of a * b and of a @ b for matrices of side {n}.",
)

# %% [markdown] tags=["explain"]
# The bytes grow with $n^2$, the multiply-accumulates with $n^3$, so the ratio of the two times grows with $n$. Small matrices are a
# matter of memory for both. Below a side of a few dozen, neither model is right: calling the operation takes longer than doing it.

# %% [markdown] tags=["slide"] minutes=2
# ## Experiment 3: a training run, from a shorter one
#
# LeNet learns to read real handwritten digits. You see the time of one epoch; predict the time of four.
#
# An epoch is one pass over the training digits. The 5,000 digits are part of MNIST and ship with the course, so nothing is
# downloaded.

# %%
loader = helpers.make_MNIST_loader(batch_size=64)
test_loader = helpers.make_MNIST_loader(batch_size=500, split="test")
images, labels = zip(*(test_loader.dataset[index] for index in range(0, 1000, 100)), strict=True)
names = [str(int(label)) for label in labels]
drawn = plotting.draw_images(torch.stack(images), names, title="Ten of the test digits")
plotting.show(drawn, alt=f"Ten handwritten digits: {', '.join(names)}.")

# %% [markdown]
# The model is LeNet: two convolutions, three fully connected layers. Every lesson comes back to it, because one can count all of it
# by hand.

# %%
parameters = sum(parameter.numel() for parameter in helpers.LeNet().parameters())
print(f"{parameters:,} parameters, {4 * parameters:,} bytes in float32")
print(f"{len(loader.dataset):,} digits to learn from, {len(test_loader.dataset):,} to test on")

# %% [markdown]
# One epoch first. The very first one is cold, as you now know, and `measure` keeps it apart.

# %% tags=["nbval-ignore-output"]
one_epoch = helpers.measure(lambda: helpers.train(helpers.LeNet().to(device), loader, epochs=1), budget_s=4)
one_epoch

# %% tags=["predict"]
four_epochs = helpers.predict("How long will four epochs take?", "s")
four_epochs

# %% tags=["run"]
runs = {}
for epochs in (1, 2, 4):
    runs[epochs] = helpers.train(helpers.LeNet().to(device), loader, epochs=epochs, test_loader=test_loader)
right = runs[4].test_accuracy_share
print(f"after four epochs more than 85 % of the test digits are read right: {right > 0.85}")

# %% [markdown]
# The model is one line: each epoch does the same work, so $t(e) = e\,t(1)$.

# %% tags=["look", "slide", "slide-output"] minutes=2
measured = [run.total_s for run in runs.values()]
modelled = [epochs * one_epoch.median_s for epochs in runs]
drawn = plotting.draw_three(
    [str(epochs) for epochs in runs],
    {"predicted": [None, None, four_epochs.value], "modelled": modelled, "measured": measured},
    unit="s",
    title="Training LeNet on real digits",
    xlabel="epochs",
)
alt = "Bars of modelled and measured time for one, two and four epochs, each twice the one before."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output"]
four_epochs.reveal(modelled=modelled[-1], measured=measured[-1])

# %% tags=["explain"]
fastest_epoch_s = min(row.time_s for row in runs[4].rows)
timing.claim(
    "an epoch of the long run takes what the model says, within a factor of 2",
    holds=1 / 2 < fastest_epoch_s / one_epoch.median_s < 2,
    evidence=one_epoch,
)

# %% [markdown] tags=["explain"]
# `helpers.train` trains where the model is; `helpers.gpu_train` takes it to a GPU and back, and says so where there is none.
#
# The model holds as long as each epoch does the same work on a machine that does nothing else. It does not say what happens when you
# change the batch size, the width of a layer or the device: for that one must know where the time of an epoch goes, and
# that is what the next lessons find out.

# %% [markdown]
# ## The same on another machine
#
# Some hardware is not under your notebook. Then a lesson shows what was recorded on a real machine, under that machine's name,
# and never a number that nobody measured.

# %%
recorded.show("00", "products")

# %% [markdown] tags=["slide"] minutes=2
# ## How the course works
#
# - Lessons: predict, run, look, explain.
# - Exercises grade themselves.
# - Slides are cut from these cells.
# - Words are in the glossary.
#
# Run a lesson from top to bottom; lock your predictions before you look. Your predictions stay in one private file beside the
# lessons and are in no notebook; `helpers.progress()` shows how far you are. The exercises of a lesson stand in the folder
# `exercises`. Words that are linked are defined in the [glossary](glossary.md).
#
# When something does not work, `python -m helpers` in a terminal examines this machine (`helpers.doctor.examine`) and prints a line
# that mends it. Everything the lessons call stands in `helpers`. `help(helpers.measure)` shows what a function returns, in which units, and which
# lesson teaches it; the [index of functions](index_of_functions.md) shows the reverse.

# %% [markdown] tags=["recap"]
# ## What you have done

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | element-wise product | $n^2$ FLOP | two $n \times n$ matrices |
# | matrix product | $n^3$ MAC, $2n^3$ FLOP | two $n \times n$ matrices |
# | bytes moved, at least | $3 \cdot 4\,n^2$ | either, in float32 |
# | model of a copy-bound operation | $t = t_{copy} \cdot \text{bytes} / \text{bytes}_{copy}$ | the same part of the machine |
# | model of a training run | $t(e) = e\,t(1)$ | epochs that do the same work |
