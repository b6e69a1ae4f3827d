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
#     number: "16"
#     title: Numbers of few bits
#     needs: ["02", "05"]
#     objectives:
#       - write|wrote the step between the numbers of a format, and rounding in one line
#       - predict|predicted where a sum stops growing, and which updates and gradients get lost
#       - train|trained a network whose weights have 16 bits, with a coin that decides the last one
#       - quantise|quantised a trained network down to 2 bits, and rows with an outlier
#       - find|found out why seven bits can be better than eight
# ---

# %% [markdown] tags=["objectives"]
# # Numbers of few bits
#
# A float32 has 32 bits. Networks also train in 16, serve requests in 8, and store weights in 4. Half of the bits are half of the bytes
# to move, and a quarter of the gates of a multiplier (lesson 02). What does that cost?
#
# Often nothing, and sometimes everything: a sum stops growing, a network hardly learns, a product is wrong, and no error is
# raised. You will predict each of these from two properties of a [format of numbers](glossary.md#format-of-numbers): how far it
# reaches, and how large its
# steps are.

# %%
import copy
import warnings
from functools import partial

import pandas as pd
import torch
from torch import nn

import helpers
from helpers import exercises, plotting
from helpers.studies import numbers

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# - The pixels of an image: 8 bits each
# - The weights of the first layer: 8 bits
# - Now throw away a bit of each pixel
#
# You would expect the error to grow a little. With an instruction that x86 processors have had since 2006 it shrinks: there 8 bits
# are worse than 7. By how much?

# %% tags=["predict"]
bet = helpers.predict(
    "Pixels of 8 bits, by that instruction: error over that with pixels of 7 bits?", "x"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A format is a sign, an exponent, a mantissa"
# ## Part 1: what a format is
#
# - Sign, exponent $e$, mantissa $k$ of $m$ bits
# - $\pm(1 + k/2^m) \cdot 2^{e-\text{bias}}$
# - $e = 0$: $\pm\, k/2^m \cdot 2^{1-\text{bias}}$, subnormal
#
# The exponent decides how far the numbers reach, the mantissa how close they stand. In *e4m3* (4 bits of exponent, 3 of mantissa,
# bias 7) the byte
# `0 0111 001` is $(1 + 1/8) \cdot 2^0 = 1.125$; `0 0000 001` is $2^{-9}$, the smallest positive number. All bits but the sign set
# is NaN, so the
# largest is $1.75 \cdot 2^8 = 448$. fp32, bf16 (bfloat16, the upper half of a float32), fp16 and e5m2 reserve the whole top
# exponent, for
# infinity and NaN.

# %% tags=["slide", "slide-output"] minutes=1 headline="The same bits can reach far or lie close"
names = ["fp32", "bf16", "fp16", "e5m2", "e4m3", "int8"]
alt = (
    "A box a bit: fp32 has 8 bits of exponent and 23 of mantissa, bf16 8 and 7, fp16 5 and 10."
)
plotting.show(numbers.draw_bits([numbers.FORMATS[name] for name in names[:-1]]), alt=alt)

# %% tags=["predict"]
inside = helpers.predict("Of all numbers in e4m3 (-448 to 448), how many lie in -1 to 1?", "%")
inside

# %% tags=["run"]
values = numbers.FORMATS["e4m3"].values()
near_zero = (values.abs() <= 1).sum().item()

# %% tags=["look"]
inside.reveal(modelled=100 * (2 * 7 * 8 + 1) / 253, counted=100 * near_zero / len(values))

# %% [markdown] tags=["explain"]
# Of 256 bytes two are NaN and two are zero: 253 numbers. Each exponent has 8, and 7 of the 16 exponents stand for less than 1. So
# nearly
# half of the numbers lie close to zero, and so do weights. Between two powers of two the step is the same; at each power of two it
# doubles.
#
# **Your turn**: that step, of a format with $m$ bits of mantissa. Below $2^{\text{least}}$, where
# least is $1 - \text{bias}$, it shrinks no further: there are the subnormal numbers. (`torch.frexp(v).exponent - 1` is
# $\lfloor\log_2 |v|\rfloor$, exactly.)


# %% tags=["yours"] yours="spacing"
def spacing(values, mantissa_bits, least):
    """Return the step to the next number of a format at each of the values, none of them 0."""
    exponents = (torch.frexp(values).exponent - 1).clamp_min(least)
    return torch.exp2(exponents.double() - mantissa_bits)


# %% checks="spacing"
asked = exercises.Checks("The step between two numbers", spacing)
slips = {
    (1.0, 1.0, 4.0, 256.0): "That is the power of two: the mantissa divides it into 2^m steps",
    (0.125, 0.21875, 0.625, 56.0): "Between two powers of two the step is the same: floor",
}
given, steps = torch.tensor([1, 1.75, -5, 448]).double(), (0.125, 0.125, 0.5, 32.0)
goal = "3 bits of mantissa, at 1, 1.75, -5 and 448"
asked.returns(goal, (given, 3, -6), expected=steps, mistakes=slips)
given, steps = torch.tensor([2**-6, 2**-8]).double(), (2**-9, 2**-9)
slips = {(2**-9, 2**-11): "Below 2^least the exponent stays least"}
goal = "among the subnormal numbers it stays the same"
asked.returns(goal, (given, 3, -6), expected=steps, mistakes=slips)
spacing = asked.settle()


# %% wrong="spacing" says="the mantissa divides it"
def spacing(values, mantissa_bits, least):
    return torch.exp2((torch.frexp(values).exponent - 1).clamp_min(least).double())


# %% wrong="spacing" says="the exponent stays least"
def spacing(values, mantissa_bits, least):
    return torch.exp2((torch.frexp(values).exponent - 1).double() - mantissa_bits)


# %% wrong="spacing" says="the step is the same"
def spacing(values, mantissa_bits, least):
    return values.abs() / 2**mantissa_bits


# %% [markdown]
# Now rounding is one line: count in steps, and take the nearest whole number, midway the even one. The second version tosses a
# coin for the last bit: 0.3 of a step becomes a whole step in 3 of 10 cases. That is
# [stochastic rounding](glossary.md#stochastic-rounding). (Both are for numbers within the format's reach.)


# %%
def nearest(values, mantissa_bits, least):
    step = spacing(values, mantissa_bits, least)
    return (values / step).round() * step


def stochastic(values, mantissa_bits, least):
    step = spacing(values, mantissa_bits, least)
    return (values / step + torch.rand_like(values)).floor() * step


def as_bf16(values):
    return nearest(values, 7, -126)


# %% tags=["run"]
torch.manual_seed(0)
some = torch.randn(10**5).double()
assert torch.equal(as_bf16(some), some.bfloat16().double())
third = torch.full((10**5,), 1 / 3).double()
print(f"1/3 with 3 bits of mantissa: {nearest(third, 3, -6)[0]:.4f}", end=", ")
print(f"mean of 100,000 coins {stochastic(third, 3, -6).mean():.4f}")

# %% [markdown]
# Which numbers does a network need? One loop trains all networks of this lesson; `keep` rounds each weight after its update. It
# computes in
# float64, so that machines differ only far behind the digits shown, and rounds only where a format is meant.


# %%
images, labels = helpers.make_MNIST_loader(20).dataset.tensors
images = images.double()
test_images, test_labels = helpers.make_MNIST_loader(20, split="test").dataset.tensors
test_images = test_images.double()


def learn(model, rate, epochs, keep=lambda weights: weights):
    chance, losses = torch.Generator().manual_seed(0), []
    order = torch.cat([torch.randperm(4000, generator=chance) for _ in range(epochs)])
    weights = list(model.parameters())
    for batch in order.split(20):
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.copy_(keep(weight - rate * gradient))
    return losses


# %% tags=["run"]
torch.manual_seed(0)
lenet = helpers.LeNet().double()
learn(lenet, rate=0.1, epochs=2)
loss = nn.functional.cross_entropy(lenet(images[:1000]), labels[:1000])
gradients = torch.autograd.grad(loss, list(lenet.parameters()))
gradients = torch.cat([each.flatten() for each in gradients])
gradients = gradients[gradients != 0]
lenet.requires_grad_(False)
weights = torch.cat([each.flatten() for each in lenet.parameters()])
activations = nn.Sequential(*list(lenet.children())[:9])(images[:100])
tensors = {"weights": weights, "activations": activations, "gradients": gradients}


# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A format's steps grow with its numbers"
def explore(name):
    return numbers.draw_format(numbers.FORMATS[name], tensors)


def described(name):
    form = numbers.FORMATS[name]
    reach = f"{form.smallest_subnormal:g} to {form.largest:g}"
    return f"{name}: positive numbers from {reach}, their steps, and LeNet's numbers below."


plotting.show(explore("e4m3"), alt=described("e4m3"))

# %% [markdown] tags=["explain"]
# Grey is what e4m3 cannot hold (down to half of its smallest number, it rounds up). Nearly all weights and activations fit; many
# gradients fall off the left end. And the other formats?

# %% tags=["look"]
views = [{"name": "fp16"}, {"name": "bf16"}]
helpers.interactive_figure(explore, {"name": names}, views=views, alt=described)

# %% [markdown] tags=["explain"]
# bf16 keeps the exponents of fp32, with steps of 1/128 to 1/256 of the number; fp16 has finer steps and less reach. int8 has one step
# for all: Part 5 gives it a scale.

# %% [markdown] tags=["slide"] minutes=1 headline="Half the bytes are half the time only where bytes decide"
# ## Part 2: half the bytes, and the time?
#
# - bfloat16 has half the bytes of float32
# - A product of large matrices waits for arithmetic
# - A matrix times a vector waits for bytes
#
# bfloat16 halves the bytes on every processor. Whether it halves the time too depends on the processor's instructions, and on
# whether the
# library has a program for them.


# %%
def in_bfloat16():
    wide, vector = torch.randn(4096, 4096), torch.randn(4096)
    square = torch.randn(512, 512)
    operations = {
        "product, side 512": (torch.mm, square, square),
        "4,096 x 4,096 by a vector": (torch.mv, wide, vector),
        "copy of 4,096 x 4,096": (torch.Tensor.copy_, wide.clone(), wide),
    }
    found = {}
    for name, (call, *given) in operations.items():
        narrow = [each.bfloat16() for each in given]
        turns = {"fp32": partial(call, *given), "bf16": partial(call, *narrow)}
        found[name] = helpers.compare(turns, budget_s=0.3, precision=0.1, device="cpu")
    return found


# %% tags=["run"]
older = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
older["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"
here = in_bfloat16()
limited = helpers.run_limited(in_bfloat16, variables=older).unwrap()

# %% tags=["look", "slide", "slide-output"] minutes=1 mark="product" headline="Narrow numbers pay where the processor knows them"
shown = {}
for name, found in {"this processor": here, "the same, AVX2 at most": limited}.items():
    ratios = [each.candidate("bf16").time_ratio for each in found.values()]
    shown[name] = [f"{ratio:.2g} times (measured)" for ratio in ratios]
pd.DataFrame(shown, index=list(here)).rename_axis("bfloat16 over float32", axis=1)

# %% [markdown] tags=["explain"]
# For the second column, a separate process is asked for AVX2 at most. (MKL, which multiplies in float32, need not obey on every
# processor.) AVX2 has no instruction that multiplies bfloat16, and on our processor the product took tens of times as long as in
# float32;
# AVX-512 BF16 and AMX have one.
# The copy follows its bytes in both columns. The matrix times a vector need not; why, we did not find out. So measure the
# operation that you need, on the machine that will do it.

# %% [markdown] tags=["slide"] minutes=1 headline="A sum can stop growing"
# ## Part 3: sums that stop growing
#
# - A product of two narrow numbers fits a wider format exactly
# - A sum is rounded at each addition
# - What becomes of 1 added to a large sum?

# %% [markdown]
# **Your turn**: a sum in a narrow format. `keep` rounds to what can be stored.


# %% tags=["yours"] yours="add_up"
def add_up(terms, keep):
    """Return the sum of terms, added one after the other, each partial sum kept by keep."""
    total = torch.zeros_like(terms[0])
    for term in terms:
        total = keep(total + term)
    return total


# %% checks="add_up"
def two_digits(total):
    return torch.tensor(float(f"{total.item():.2g}"))


terms = torch.tensor([100.0, 4.0, 4.0, 4.0])
asked = exercises.Checks("100 + 4 + 4 + 4, with two decimal digits", add_up)
asked.returns(
    "104 is kept as 100, and again",
    (terms, two_digits),
    expected=100.0,
    mistakes={
        112.0: "No partial sum was rounded: keep each one",
        110.0: "Only the last sum was rounded: keep each partial sum",
    },
)
add_up = asked.settle()


# %% wrong="add_up" says="No partial sum was rounded"
def add_up(terms, keep):
    return sum(keep(term) for term in terms)


# %% wrong="add_up" says="Only the last sum was rounded"
def add_up(terms, keep):
    return keep(terms.sum())


# %% tags=["predict"]
stop = helpers.predict("bfloat16: at which number does adding ones stop?", "ones")
stop

# %% tags=["run"]
ones = torch.ones(3000).double()
mantissas = {"fp16": (10, -14), "bf16": (7, -126), "e5m2": (2, -14), "e4m3": (3, -6)}
stops = {}
for name, (bits, least) in mantissas.items():
    rounded = partial(nearest, mantissa_bits=bits, least=least)
    stops[name] = add_up(ones, rounded).item()

# %% tags=["look"]
stop.reveal(modelled=2 ** (7 + 1), counted=stops["bf16"])
for name, (bits, _) in mantissas.items():
    print(f"{name}: 2^({bits} + 1) = {2 ** (bits + 1):,}, counted {stops[name]:,.0f}")

# %% [markdown] tags=["explain"]
# From $2^{m+1}$ on the step is 2. Adding 1 ends midway between two numbers, the old sum is the even one, and there it
# stays for ever. A long dot product is such a sum, if its terms have one sign. Take 16,384 products of two numbers between 0 and 1, on
# average 1/4 each:

# %% tags=["predict"]
long = helpers.predict(
    "Their sum, kept in bf16: relative error? (fp16: your second guess)", "%"
)
long

# %% tags=["run"]
torch.manual_seed(1)
factors = as_bf16(torch.rand(2, 16384, 32).double())
terms = factors[0] * factors[1]
kept = {
    "float32 sums": lambda total: total.float().double(),
    "fp16 sums": lambda total: total.half().double(),
    "bf16 sums": lambda total: total.bfloat16().double(),
}
lengths, sum_errors = [4**power for power in range(2, 8)], {}
for length in lengths:
    some, true_sum = terms[:length], terms[:length].sum(0)
    totals = {name: add_up(some, keep) for name, keep in kept.items()}
    parts = add_up(some.unflatten(0, (16, -1)), kept["bf16 sums"])
    totals["bf16 sums of 16"] = parts.float().sum(0).double()
    for name, total in totals.items():
        error = ((total - true_sum) / true_sum).abs().mean().item()
        sum_errors.setdefault(name, []).append(error)

# %% tags=["look"]
long.reveal(modelled=100 * (1 - 256 / 4096), counted=100 * sum_errors["bf16 sums"][-1])
print(f"fp16: modelled {1 - 2048 / 4096:.1%}, counted {sum_errors['fp16 sums'][-1]:.1%}")

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Long sums need more bits than their terms"
drawn, axes = plotting.figure(title="Dot products of bf16 numbers: error of the sum")
for (name, found), style in zip(sum_errors.items(), ("-", "--", "-.", ":"), strict=True):
    axes.loglog(lengths, found, style, marker="o", label=name)
axes.set(xlabel="terms, between 0 and 1", ylabel="mean relative error")
axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
axes.minorticks_off()
drawn.legend(loc="outside lower left", ncols=4, fontsize=10)
plotting.show(drawn, alt="bf16 sums end far off; float32 sums and short bf16 sums stay close.")

# %% [markdown] tags=["explain"]
# The sums stop near 256 and 2,048 on their way to 4,096. The factors have 16 bits in all curves; only the *sum* differs. So NVIDIA's
# matrix units multiply narrow numbers and can add in float32 (bytes: in int32; PTX manual, `mma`). If sums must be narrow, keep them
# short, here 16 terms, and add their results in float32: their errors cancel in part, so the curve falls.

# %% [markdown] tags=["slide"] minutes=2 headline="An update below half a step is lost"
# ## Part 4: updates that get lost
#
# - An update adds a small number to a large one
# - $|\eta g| < \text{step}/2$: the weight stays as it was
# - In this step it learns nothing
#
# A network of three linear layers, its weights kept in bf16, before its first step of plain SGD. The rate, 0.002, is small on
# purpose. (We
# leave out gradients that are exactly 0, because a ReLU is off for all 20 images.)

# %%
torch.manual_seed(0)
start = helpers.BasicFCModel(hidden=32).double()
for weight in start.parameters():
    weight.data = as_bf16(weight.data)
before = torch.cat([weight.detach().flatten() for weight in start.parameters()])
loss = nn.functional.cross_entropy(start(images[:20]), labels[:20])
moves = torch.autograd.grad(loss, list(start.parameters()))
moves = 0.002 * torch.cat([each.flatten() for each in moves])
before, moves = before[moves != 0], moves[moves != 0]
for name, each in {"weights": before, "updates": moves}.items():
    quarter, half, most = each.abs().quantile(torch.tensor([0.25, 0.5, 0.75]).double())
    print(f"{name}: a quarter below {quarter:.1g}, half {half:.1g}, 3/4 {most:.1g}")

# %% tags=["predict"]
lost = helpers.predict("bf16 weights, to the nearest: how many of the updates get lost?", "%")
lost

# %% tags=["run"]
small = moves.abs() < spacing(before, 7, -126) / 2
unmoved = as_bf16(before - moves) == before

# %% tags=["look"]
modelled, counted = (100 * each.double().mean().item() for each in (small, unmoved))
lost.reveal(modelled=modelled, counted=counted)

# %% [markdown] tags=["explain"]
# At 0.02 the step of bf16 is $2^{-13}$, and an update must be larger than half of that. (Below a power of two the step
# halves, so a quarter suffices there; few weights are one.) Now train: six epochs, the same batches, and
# three rules to keep a weight.

# %% tags=["run", "nbval-ignore-output"]
keeping = {
    "float64": lambda weights: weights,
    "bf16, stochastic": lambda weights: stochastic(weights, 7, -126),
    "bf16, nearest": as_bf16,
}
curves, accuracies, trained = {}, {}, {}
for name, keep in keeping.items():
    model = trained[name] = copy.deepcopy(start)
    curves[name] = torch.tensor(learn(model, 0.002, 6, keep)).unflatten(0, (-1, 50)).mean(1)
    hits = model(test_images).argmax(1) == test_labels
    accuracies[name] = 100 * hits.double().mean().item()
print("; ".join(f"{name}: {share:.1f} % right" for name, share in accuracies.items()))
assert abs(accuracies["bf16, stochastic"] - accuracies["float64"]) < 3
assert accuracies["bf16, nearest"] < accuracies["bf16, stochastic"] - 15

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Sixteen bits forget; a coin remembers"
drawn, axes = plotting.figure(title="One training, three rules to keep a weight")
for (name, losses), style in zip(curves.items(), ("-", "--", "-."), strict=True):
    label = f"{name}: {accuracies[name]:.0f} % right"
    axes.plot(range(50, 1201, 50), losses, style, label=label)
axes.set(xlabel="step", ylabel="loss, mean of 50 steps", ylim=(0, 2.4))
axes.legend(loc="lower left")
alt = "Stochastic rounding learns as float64 does; nearest hardly lowers the loss."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# The coin rarely moves a weight, but then by a whole step, so that its average move equals the update. *Mixed Precision Training*
# (Micikevicius
# and others, 2018) spends bits instead: it keeps the weights in float32, and multiplies with a rounded copy.
#
# ### Gradients that become zero
#
# Look at the explorer again: where are LeNet's gradients, and where does e4m3 begin?

# %% tags=["predict"]
zeros = helpers.predict("LeNet's gradients in e4m3: how many become zero?", "%")
zeros

# %% [markdown]
# Multiply the *loss* by a power of two: then all gradients grow with it, and the update divides by it again. This is
# [loss scaling](glossary.md#loss-scaling). **Your turn**: choose the power.


# %% tags=["yours"] yours="loss_scale"
def loss_scale(gradients, largest):
    """Return the largest power of two that takes no gradient beyond the format's largest."""
    return 2.0 ** torch.log2(largest / gradients.abs().max()).floor().item()


# %% checks="loss_scale"
asked = exercises.Checks("As large as it fits", loss_scale)
asked.returns(
    "the largest gradient is -1/32, the largest number 448",
    (torch.tensor([2**-10, -(2**-5)]).double(), 448.0),
    expected=2**13,
    mistakes={
        14336: "Only a power of two leaves each mantissa as it is",
        2**14: "1/32 times that is beyond 448: round down",
        2**18: "The largest gradient may be negative: its magnitude counts",
    },
)
loss_scale = asked.settle()


# %% wrong="loss_scale" says="Only a power of two"
def loss_scale(gradients, largest):
    return largest / gradients.abs().max()


# %% wrong="loss_scale" says="round down"
def loss_scale(gradients, largest):
    return 2.0 ** torch.log2(largest / gradients.abs().max()).ceil().item()


# %% wrong="loss_scale" says="its magnitude counts"
def loss_scale(gradients, largest):
    return 2.0 ** torch.log2(largest / gradients.max()).floor().item()


# %% tags=["run"]
powers, missing = range(0, 33, 2), {}
for name in ("e4m3", "e5m2"):
    form = numbers.FORMATS[name]
    step = spacing(torch.tensor([form.largest]).double(), *mantissas[name]).item()
    low, high = form.smallest_subnormal / 2, form.largest + step / 2  # half a step beyond
    for scaled in (gradients * 2.0**power for power in powers):
        modelled = (scaled.abs() <= low) | (scaled.abs() > high)
        stored = form.decode(form.encode(scaled, saturate=False))
        counted = (stored == 0) | ~stored.isfinite()
        shares = [100 * each.double().mean().item() for each in (modelled, counted)]
        missing.setdefault(name, []).append(shares)

# %% tags=["look", "nbval-ignore-output"]
modelled, counted = missing["e4m3"][0]
assert abs(modelled - counted) < 0.1
assert 70 < counted < 88
zeros.reveal(modelled=modelled, counted=counted)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A scale keeps gradients from becoming zero"
drawn, axes = plotting.figure(title="Gradients that are zero or too large, by loss scale")
for (name, shares), style in zip(missing.items(), ("-", "--"), strict=True):
    modelled, counted = zip(*shares, strict=True)
    axes.plot(powers, modelled, style, color=plotting.MODELLED, label=f"{name}, modelled")
    marker = {"marker": "o" if name == "e4m3" else "s", "linestyle": "", "markersize": 4}
    axes.plot(powers, counted, color=plotting.MEASURED, **marker, label=f"{name}, counted")
    yours = torch.tensor(loss_scale(gradients, numbers.FORMATS[name].largest)).log2().item()
    axes.axvline(yours, color="#777777", linestyle=style)
    axes.text(yours - 0.9, 50, f"your scale, {name}", rotation=90, va="center")
axes.set(xlabel="loss scale, as a power of two", ylabel="lost, %", ylim=(0, 100))
drawn.legend(loc="outside lower left", ncols=4, fontsize=10)
plotting.show(drawn, alt="Both curves fall to nearly zero, and rise again later.")

# %% [markdown] tags=["explain"]
# These curves are the explorer's histogram, added up from both ends. e5m2 has one bit of mantissa less and one of
# exponent more, so it covers nearly twice as many powers of two: its valley is wide. Just beyond your scale even fewer gradients
# are lost, but
# they are the largest, and one infinity or NaN spoils the whole step. PyTorch's `GradScaler` finds the scale by trying: it doubles
# it now and
# then; when an infinity appears, it skips that step and halves the scale. bf16 has the exponents of fp32, and needs none here.

# %% [markdown] tags=["slide"] minutes=2 headline="An integer needs a scale beside it"
# ## Part 5: integers
#
# - A whole number of $b$ bits and a scale: $w \approx q \cdot s$
# - $s = \max|w| \,/\, (2^{b-1} - 1)$
# - The same step everywhere
#
# This is [quantisation](glossary.md#quantisation). Sums of whole numbers are exact, as long as they fit. The scale stays outside and
# multiplies the finished sum.
#
# **Your turn**: a scale for each row.


# %% tags=["yours"] yours="quantise"
def quantise(rows, bits):
    """Return the whole numbers that stand for a matrix, and a scale a row, (rows, 1)."""
    scale = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (rows / scale).round(), scale


# %% checks="quantise"
rows = torch.tensor([[7, -3.25, 1.75], [-3.5, 1.625, 0.875]]).double()
whole = torch.tensor([[7, -3, 2], [-7, 3, 2]])
scales = torch.tensor([[1], [0.5]])
one, cut = torch.tensor([[7, -3, 2], [-4, 2, 1]]), torch.tensor([[7, -4, 1], [-7, 3, 1]])
eight = torch.tensor([[8, -4, 2], [-8, 4, 2]])
asked = exercises.Checks("4 bits: whole numbers from -7 to 7", quantise)
asked.returns(
    "each row reaches 7 or -7",
    (rows, 4),
    expected=(whole, scales),
    mistakes={
        (one, torch.tensor([[1.0]])): "Each row has a scale of its own",
        (cut, scales): "To the nearest: round, do not cut",
        (eight, torch.tensor([[0.875], [0.4375]])): "There is no 8 in 4 bits with a sign",
    },
)
quantise = asked.settle()


# %% wrong="quantise" says="a scale of its own"
def quantise(rows, bits):
    scale = (rows.abs().max() / (2 ** (bits - 1) - 1)).reshape(1, 1)
    return (rows / scale).round(), scale


# %% wrong="quantise" says="do not cut"
def quantise(rows, bits):
    scale = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (rows / scale).floor(), scale


# %% wrong="quantise" says="no 8 in 4 bits"
def quantise(rows, bits):
    scale = rows.abs().amax(1, keepdim=True) / 2 ** (bits - 1)
    return (rows / scale).round(), scale


# %% tags=["nbval-ignore-output"]
logits_before = lenet(test_images)


def right_of(logits):
    return 100 * (logits.argmax(1) == test_labels).double().mean().item()


assert right_of(logits_before) > 92
print(f"LeNet as it was trained: {right_of(logits_before):.1f} % of 1,000 digits right")

# %% tags=["predict"]
four = helpers.predict(
    "All its weights (not biases) in 4 bits, no more training: how many right?", "%"
)
four

# %% tags=["run"]
found = {}
for bits in range(8, 1, -1):
    model = copy.deepcopy(lenet)
    for weight in (each for each in model.parameters() if each.ndim > 1):
        whole, scales = quantise(weight.flatten(1), bits)
        weight.copy_((whole * scales).reshape(weight.shape))
    logits, noise = model(test_images), model.fc1.weight - lenet.fc1.weight
    _, steps = quantise(lenet.fc1.weight, bits)
    sizes = (steps.square().mean() / 12).sqrt().item(), noise.square().mean().sqrt().item()
    error = ((logits - logits_before).norm() / logits_before.norm()).item()
    found[bits] = right_of(logits), error, *sizes

# %% tags=["look", "nbval-ignore-output"]
four.reveal(counted=found[4][0])
assert found[4][0] > right_of(logits_before) - 3

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 mark="4 " headline="Four bits a weight, and the answers stay"
columns = ["right", "error of the logits", "noise of fc1, modelled", "counted"]
forms = "{:.1f} %", "{:.1%}", "{:.2g}", "{:.2g}"
assert all(abs(noise / step - 1) < 0.1 for *_, step, noise in found.values())
assert all(1.2 < found[bits][1] / found[bits + 1][1] < 8 for bits in range(2, 8))
table = {
    bits: [form.format(each) for form, each in zip(forms, row, strict=True)]
    for bits, row in found.items()
}
pd.DataFrame(table, index=columns).T.rename_axis("bits", axis=1)

# %% [markdown] tags=["explain"]
# A bit less makes the step about twice as large, and at the end 7/3 and 3 times. The error of the logits grows with it; down to 4 bits
# the share of right answers hardly changes. (A share of 95 % of 1,000 digits is itself uncertain by $\sqrt{0.95 \cdot 0.05 /
# 1000}$, 0.7 points.) A
# number anywhere within a step is off by $\text{step}/\sqrt{12}$ (root of the mean square): modelled and counted agree.
#
# ### Outliers
#
# A scale follows the largest number. In large language models a few columns of activations are far larger than all
# others (Dettmers and others, *LLM.int8()*, 2022). Here one column of a random matrix grows, and the rest pays:

# %% tags=["run"]
torch.manual_seed(2)
plain, other = torch.randn(256, 256).double(), torch.randn(256, 64).double()
larger, outlier_errors = (1, 2, 5, 10, 20, 50, 100, 200), {}
for factor in larger:
    rows = plain.clone()
    rows[:, 5] *= factor
    others = torch.mul(*quantise(rows.index_fill(1, torch.tensor(5), 0), 8))
    stored = {
        "a scale for all": numbers.quantise(rows, 8).decode(),
        "a scale a row": torch.mul(*quantise(rows, 8)),
        "a scale for 32 (MXINT8)": numbers.encode_blocks(rows, "int8").decode(),
        "that column kept in float": others.index_copy(1, torch.tensor(5), rows[:, 5:6]),
    }
    for name, each in stored.items():
        error = ((each - rows) @ other).norm() / (plain @ other).norm()
        outlier_errors.setdefault(name, []).append(error.item())
ends = [f"{name} {found[-1]:.1%}" for name, found in outlier_errors.items()]
print("200 times as large:", "; ".join(ends))

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="One large column costs all others their bits"
drawn, axes = plotting.figure(title="Product with 8-bit rows: one column grows")
for (name, found), style in zip(outlier_errors.items(), ("-", "--", "-.", ":"), strict=True):
    axes.loglog(larger, found, style, marker="o", label=name)
axes.set(xlabel="times as large as the others", ylabel="error / product at 1")
axes.set_xticks(larger, [str(factor) for factor in larger])
axes.minorticks_off()
axes.legend()
plotting.show(
    drawn, alt="Three curves rise with the outlier; with its column in float nothing does."
)

# %% [markdown] tags=["explain"]
# (The error is relative to the product before the column grows.) A scale a row halves the error, but it still grows with the outlier,
# because every row contains an outlier. A block confines it to 32 numbers, which at 200 times halves it again: OCP's MX formats
# give each block a scale of 8 bits.
# *LLM.int8()* takes the few large columns out and multiplies them in 16 bits.

# %% [markdown] tags=["slide"] minutes=2 headline="Two products can be too large for sixteen bits"
# ## Part 6: seven bits better than eight
#
# - `pmaddubsw`: bytes 0 to 255 times bytes -128 to 127
# - It adds neighbours in 16 bits, at most 32,767
# - $255 \cdot 127 + 255 \cdot 127 = 64{,}770$
#
# The instruction [saturates](glossary.md#saturation): what is beyond becomes the largest number. A pair, on the page:


# %%
def pair(inputs, weights):
    total = inputs[0] * weights[0] + inputs[1] * weights[1]
    return max(-32768, min(32767, total))


print(f"255 * 127 + 255 * 127: {pair((255, 255), (127, 127)):,} instead of {2 * 255 * 127:,}")

# %% [markdown]
# Many programs for x86 processors without VNNI multiply bytes with it, or with `vpmaddubsw`, its AVX form; VNNI adds four products
# in 32 bits.
# PyTorch's library FBGEMM takes the better one that it finds. We let it run as this processor allows, and once more with AVX2 at most:


# %%
def by_kernel(inputs, weights):
    import torch  # here, because the function also runs in another process

    torch.backends.quantized.engine = "fbgemm"
    columns = weights.T.contiguous().to(torch.int8)
    columns = torch._make_per_tensor_quantized_tensor(columns, 1.0, 0)
    packed = torch.ops.quantized.linear_prepack(columns, None)
    product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return product(inputs.float(), 1.0, 0, packed).long()


# %% tags=["run"]
pixels = ((test_images * 0.3081 + 0.1307) * 255).round().long().flatten(1)
first = trained["float64"].fc1.weight.detach()
whole, scales = quantise(first, 8)
byte_weights = whole.T.long()
exact = pixels @ byte_weights
saturated = numbers.saturating_product(pixels, byte_weights)

# %% tags=["run"]
variables = {"FBGEMM_ENABLE_INSTRUCTIONS": "AVX2"}
kernels = {}
if "fbgemm" in torch.backends.quantized.supported_engines:  # it is for x86
    with warnings.catch_warnings(action="ignore"):
        kernels["this processor"] = by_kernel(pixels, byte_weights)
    limited = helpers.run_limited(by_kernel, pixels, byte_weights, variables=variables)
    kernels["AVX2 at most"] = limited.unwrap()

# %% tags=["look", "nbval-ignore-output"]
for name, results in kernels.items():
    same = [(results == each).sum().item() for each in (exact, saturated)]
    assert exact.numel() in same
    print(
        f"{name}: {same[0]:,} of {exact.numel():,} results as exact, {same[1]:,} as saturated"
    )

# %% [markdown] tags=["explain"]
# *Saturated* adds up such pairs. Each run equals either the exact or the saturated sums, in all 32,000 results, and raises no error.
#
# Seven bits are 0 to 127 and cannot saturate: $2 \cdot 127 \cdot 127 = 32{,}258$. So, against the exact pixels and weights:

# %% tags=["run"]
wanted, bit_errors = pixels.double() @ first.T, {"exact": {}, "saturating": {}}
for bits in range(8, 3, -1):
    unit = 2 ** (8 - bits)
    fewer = pixels // unit
    products = fewer @ byte_weights, numbers.saturating_product(fewer, byte_weights)
    for name, product in zip(bit_errors, products, strict=True):
        error = (product * unit * scales.T - wanted).norm() / wanted.norm()
        bit_errors[name][bits] = error.item()

# %% tags=["look", "nbval-ignore-output"]
assert 1.7 < bit_errors["exact"][7] / bit_errors["exact"][8] < 2.3
assert bit_errors["saturating"][7] == bit_errors["exact"][7]
assert 15 < bit_errors["saturating"][8] / bit_errors["saturating"][7] < 35
bet.reveal(simulated=bit_errors["saturating"][8] / bit_errors["saturating"][7])
for name, error in bit_errors.items():
    print(f"{name}: error with 8 bits {error[8]:.2%}, with 7 bits {error[7]:.2%}")

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="The eighth bit can make it worse"
drawn, axes = plotting.figure(title="First layer of a network: error by the bits of a pixel")
for (name, error), style in zip(bit_errors.items(), ("-", "--"), strict=True):
    percent = [100 * each for each in error.values()]
    axes.semilogy(list(error), percent, style, marker="o", label=name)
axes.set(xlabel="bits of a pixel (weights: 8)", ylabel="relative error", xticks=range(4, 9))
axes.set_yticks([0.2, 0.5, 1, 2, 5], [f"{each} %" for each in (0.2, 0.5, 1, 2, 5)])
axes.minorticks_off()
axes.legend()
alt = "The error falls up to 7 bits; with the eighth it falls, or jumps where sums saturate."
plotting.show(drawn, alt=alt)

# %% tags=["look", "nbval-ignore-output"]
network = trained["float64"]
unrounded = network(test_images).argmax(1)
changed = {}
for name, results in {"exact": exact, "saturating": saturated}.items():
    sums = (
        results * scales.T / 255 / 0.3081 + network.fc1.bias - 0.1307 / 0.3081 * first.sum(1)
    )
    answers = network.fc3(network.fc2(sums.relu()).relu()).argmax(1)
    changed[name] = int((answers != unrounded).sum())
    print(f"8 bits, {name}: {changed[name]} of 1,000 answers change")
assert changed["exact"] < 6 < changed["saturating"] < 60

# %% [markdown] tags=["explain"]
# Exact, the eighth bit halves the error. Saturating, its error is more than twenty times that of seven bits, because neighbouring
# pixels
# are often both 255, and two large weights overflow the pair. PyTorch's quantisers have an option against it, `reduce_range`:
# activations in 7 bits. So whether 8 bits are enough is also a
# question about the processor. Test a network on the one that will serve it.
#
# The [exercises](exercises/16_numbers_of_few_bits_exercises.ipynb) have you decode bytes of any format, toss the coin in whole
# numbers, and predict the saturating product to the last unit.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Exponent: how far. Mantissa: how close. Half a step decides what is lost.
# 2. In training, sums and updates need the bits, factors few.
# 3. A narrow format works where hardware, library and range agree: test it there.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A format with $m$ bits of mantissa; below $2^l$, the power $l$ of two, its numbers are subnormal. A weight $w$, its gradient
# $g$, whole numbers of $b$ bits.
#
# | quantity | formula |
# |---|---|
# | step at $v$ | $2^{\max(\lfloor\log_2 \lvert v\rvert\rfloor,\, l) - m}$ |
# | adding ones stops at | $2^{m+1}$ |
# | an update gets lost | $\lvert \eta g\rvert < \frac12\,$step at $w$ |
# | scale of whole numbers | $\max\lvert w\rvert / (2^{b-1} - 1)$ |
# | noise of rounding, root of the mean square | step$/\sqrt{12}$ |
# | a saturating pair of bytes $x$, $w$ | $\min(32767, \max(-32768,\, x_1w_1 + x_2w_2))$ |
