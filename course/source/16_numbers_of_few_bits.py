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
#       - write|wrote integers with a scale, and the step between the numbers of a format
#       - predict|predicted which numbers vanish beside an outlier, and where a sum stops growing
#       - move|moved an outlier into the weights, so that 8 bits suffice
#       - compare|compared integers, FP8, MXFP4 and NVFP4 for weights and for activations
#       - explain|explained why bfloat16 weights forget updates, and how a coin remembers them
# ---

# %% [markdown] tags=["objectives"]
# # Numbers of few bits
#
# In 2022 a group at MIT and NVIDIA rounded a large language model, OPT-175B, from 16 bits to 8. Before, it had answered
# 71.6 % of the questions in four tests correctly. Afterwards it answered 32.3 %, which the authors call nearly random.
# Then they rounded the same model to 8 bits in another way, and it answered 71.1 % (Xiao and others, *SmoothQuant*,
# Table 4, published). Nobody had trained the model in between. Weights and activations had 8 bits both times.
#
# [Lesson 15](15_co_design.ipynb) asked how few bits are enough, but their number alone does not decide. We have built a similar accident into a
# model that is small enough to take apart. (Part 2 shows how. What the model computes does not change by it.) It reads 8 characters of the text
# that Python prints for `help()` and predicts the next one, and on text that it has not seen its loss is about 1.39 (cross-entropy per
# character, measured, as all losses of this model). When we rounded its weights to 4 bits, the loss rose by about 0.02. Then we gave it back its
# weights and rounded only its *activations*, the vectors that enter its layers, to 8 bits.

# %% tags=["hide-input"]
import copy
import warnings
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import helpers
from helpers import exercises, plotting
from helpers.studies import numbers

check = exercises.checks_of("numbers_of_few_bits")
colours = ["#882255", "#332288", "#999933", "#8C510A", "#000000"]  # without a meaning

# %% [markdown] tags=["slide"] minutes=2
# ## The bet
#
# Which of the two does more harm to this model?
#
# - The model's weights in 4 bits, with a scale for each 32
# - Or its activations in 8 bits, with one scale for all
# - The model is not trained again
#
# Since 8 bits have much finer steps than 4, you might expect a small fraction. You make such a choice whenever you serve a model, for example
# with vLLM's `--quantization` or with Hugging Face's `load_in_8bit`. Few bits are worth it because memory moves fewer bytes and multipliers are
# smaller. OpenAI stores most weights of gpt-oss-120b at 4.25 bits, so that the model fits on one GPU of 80 GB (model card). Its 117 billion
# parameters would take 234 GB in bfloat16, whereas at 4.25 bits they would all take about 62 GB. An H100 also multiplies 8-bit numbers at 1,979
# trillion operations per second, and bfloat16 at only 989 (data sheet, without sparsity).

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.01, 1000]
bet = helpers.predict(
    "How many times as much as 4-bit weights do the 8-bit activations raise the loss?", "x"
)
bet

# %% [markdown]
# [Lesson 15](15_co_design.ipynb) ended with the question of how few bits are enough and what breaks first. We look in
# four places, and each time we ask the same. What becomes of a small number beside a large one?

# %% [markdown] tags=["slide"] minutes=2 headline="An integer needs a scale beside it"
# ## Part 1: what a weight loses
#
# What does a weight lose? We begin with four weights, because everything that goes wrong later can go wrong with them.
#
# - The weights 0.70, -0.33, 0.12 and 0.04, in 4 bits each
# - Integers from -7 to 7, and a scale of 0.1
# - Stored: 7, -3, 1 and 0
#
# The simplest way to store them in 4 bits each is as integers with a *scale*, which is called [quantisation](glossary.md#quantisation). A 4-bit
# integer with a sign reaches from −8 to 7, of which we leave out −8, so we take 0.70 / 7, or 0.1, as the scale, and we keep the nearest
# integers, which are 7, −3, 1 and 0. Multiplied by the scale, they are 0.70, −0.30, 0.10 and 0.
#
# **Your turn.** Write it in two lines, with a scale of its own for each row. With $q$ bits the integers reach from
# $-(2^{q-1} - 1)$ to $2^{q-1} - 1$.


# %% tags=["yours"] yours="quantise" takes=6
def quantise(rows, bits):
    """Return the integers that stand for a matrix, and a scale for each row, (rows, 1)."""
    scale = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (rows / scale).round(), scale


# %% checks="quantise"
quantise = check(quantise)


# %% wrong="quantise" says="a scale of its own"
def quantise(rows, bits):
    scale = (rows.abs().max() / (2 ** (bits - 1) - 1)).reshape(1, 1)
    return (rows / scale).round(), scale


# %% wrong="quantise" says="and not the next lower one"
def quantise(rows, bits):
    scale = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (rows / scale).floor(), scale


# %% wrong="quantise" says="does not reach 8"
def quantise(rows, bits):
    scale = rows.abs().amax(1, keepdim=True) / 2 ** (bits - 1)
    return (rows / scale).round(), scale


# %% right="quantise" style=1
def quantise(rows, bits):
    limit = 2 ** (bits - 1) - 1
    scale = rows.abs().max(dim=1, keepdim=True).values / limit
    return torch.round(rows / scale).int(), scale


# %% right="quantise" style=2
def quantise(rows, bits):
    largest = torch.maximum(rows.amax(1), -rows.amin(1))
    scale = torch.unsqueeze(largest / (2 ** (bits - 1) - 1), 1)
    return torch.round(rows.div(scale)).to(torch.int16), scale


# %%
def stored(rows, bits):
    integers, scale = quantise(rows, bits)
    return integers * scale


four = torch.tensor([[0.70, -0.33, 0.12, 0.04]]).double()
for bits in (4, 8):
    print(f"{bits} bits:", *(f"{value:.3f}" for value in stored(four, bits)[0]))

# %% [markdown]
# Two stored values are at least 0.1 apart, and this distance is called the *step*. Rounding moves a number by at most
# half a step. This hardly matters for 0.33, but 0.04 is smaller than half a step, so it becomes zero. The largest of
# the four weights set the step, and the smallest one paid for it. With 8 bits the integers reach 127, the step is 0.70
# / 127, or 0.0055, and all four survive.
#
# A floating-point [format of numbers](glossary.md#format-of-numbers) has no single step. The format *e4m3*, one of the two that
# data sheets call FP8, has a sign, 4 bits of exponent and 3 bits of mantissa. The exponent chooses a power of two, and
# the mantissa divides the way to the next power of two into 8 steps. So between 0.25 and 0.5 the step is 0.25 / 8, or
# 1/32, whereas between 1/32 and 1/16 it is 1/256. Small numbers have small steps. (Only below 2⁻⁶ does the step stay at
# 2⁻⁹, and these numbers are called subnormal.) The largest number is 448.

# %% tags=["hide-input"]
names = ["fp32", "bf16", "fp16", "e5m2", "e4m3"]
alt = "A box for each bit: e4m3 has a sign, 4 bits of exponent and 3 of mantissa."
plotting.show(numbers.draw_bits([numbers.FORMATS[name] for name in names]), alt=alt)

# %% [markdown]
# **Your turn.** Write the step of a format with $m$ bits of mantissa. Below $2^{\text{least}}$ it shrinks no further.
# (`torch.frexp(v).exponent - 1` is $\lfloor\log_2 |v|\rfloor$, exactly.)


# %% tags=["yours"] yours="spacing" takes=8
def spacing(values, mantissa_bits, least):
    """Return the step to the next number of a format at each of the values, none of them 0."""
    exponents = (torch.frexp(values).exponent - 1).clamp_min(least)
    return torch.exp2(exponents.double() - mantissa_bits)


# %% checks="spacing"
spacing = check(spacing)


# %% wrong="spacing" says="which the mantissa divides"
def spacing(values, mantissa_bits, least):
    return torch.exp2((torch.frexp(values).exponent - 1).clamp_min(least).double())


# %% wrong="spacing" says="the exponent stays at least"
def spacing(values, mantissa_bits, least):
    return torch.exp2((torch.frexp(values).exponent - 1).double() - mantissa_bits)


# %% wrong="spacing" says="the step stays the same"
def spacing(values, mantissa_bits, least):
    return values.abs() / 2**mantissa_bits


# %% right="spacing" style=1
def spacing(values, mantissa_bits, least):
    floor = torch.maximum(torch.frexp(values)[1] - 1, torch.tensor(least))
    return torch.ldexp(torch.ones_like(values), floor - mantissa_bits)


# %% right="spacing" style=2
def spacing(values, mantissa_bits, least):
    _, exponents = torch.frexp(values.abs())
    steps = torch.full_like(values, 0.5**mantissa_bits, dtype=torch.float64)
    return steps * 2.0 ** torch.clamp(exponents - 1, min=least)


# %% [markdown]
# With this step, rounding is one line, because we count in steps and take the nearest whole number.


# %%
def nearest(values, mantissa_bits, least):
    step = spacing(values, mantissa_bits, least)
    return (values / step).round() * step


def as_bf16(values):
    return nearest(values, 7, -126)


# %% [markdown]
# The mantissa has 8 steps in each power of two, wherever it lies. So where do most numbers of the format stand?

# %% tags=["predict"]
inside = helpers.predict(
    "Of the 253 different numbers of e4m3, which share lies between -1 and 1?", "%"
)
inside

# %% tags=["run"]
values = numbers.FORMATS["e4m3"].values()
near_zero = (values.abs() <= 1).sum().item()

# %% tags=["look"]
inside.reveal(modelled=100 * (2 * 7 * 8 + 1) / 253, counted=100 * near_zero / len(values))

# %% [markdown] tags=["explain"]
# Seven of its sixteen exponents belong to numbers below 1, and each of them has 8 numbers of either sign, which makes
# 112. Since 0 and −0 are one number, and 1 and −1 come on top, the answer is 113 of 253, or 44.7 % (counted). That
# suits a network, because most of its weights are small. Below, LeNet's weights, activations and gradients stand under
# the numbers of a format. Turn it. Which of the six hold all three?

# %% tags=["hide-input"]
images, labels = helpers.make_MNIST_loader(20).dataset.tensors
images = images.double()
test_images, test_labels = helpers.make_MNIST_loader(20, split="test").dataset.tensors
test_images = test_images.double()


def learn(model, rate, epochs, keep=lambda weights: weights):
    chance, losses = torch.Generator().manual_seed(0), []
    order = torch.cat([torch.randperm(4000, generator=chance) for _ in range(epochs)])
    weights = list(model.parameters())
    for batch in order.split(20):
        loss = cross_entropy(model(images[batch]), labels[batch])
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.copy_(keep(weight - rate * gradient))
    return losses


# %% tags=["hide-input"]
torch.manual_seed(0)
lenet = helpers.LeNet().double()
learn(lenet, rate=0.1, epochs=2)
loss = cross_entropy(lenet(images[:1000]), labels[:1000])
gradients = torch.autograd.grad(loss, list(lenet.parameters()))
gradients = torch.cat([gradient.flatten() for gradient in gradients])
gradients = gradients[gradients != 0]
lenet.requires_grad_(False)
weights = torch.cat([weight.flatten() for weight in lenet.parameters()])
activations = nn.Sequential(*list(lenet.children())[:9])(images[:100])
tensors = {"weights": weights, "activations": activations, "gradients": gradients}


# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="A format's steps grow with its numbers"
def draw(name):
    return numbers.draw_format(numbers.FORMATS[name], tensors)


def described(name):
    form = numbers.FORMATS[name]
    reach = f"{form.smallest_subnormal:g} to {form.largest:g}"
    return f"{name}: positive numbers from {reach}, their steps, and LeNet's numbers below."


plotting.show(draw("e4m3"), alt=described("e4m3"))

# %% tags=["hide-input"]
views = [{"name": "fp16"}, {"name": "bf16"}]
helpers.interactive_figure(draw, {"name": [*names, "int8"]}, views=views, alt=described)

# %% [markdown]
# Grey is out of reach of the format, and in e4m3 many gradients lie there. Bfloat16 (bf16) holds all three, because it
# has as many bits of exponent as float32, but its steps are coarser than those of float16 (fp16).
#
# Four bits can be a floating-point format as well. The format *e2m1* has the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6,
# so it needs a scale. A large neighbour does the least harm if few numbers share its scale, so each small block gets
# its own. *MXFP4* (Open Compute Project, 2023) has blocks of 32 weights, each with a scale of 8 bits that is a power of
# two. That costs 4 + 8/32, or 4.25 bits per weight. *NVFP4*, which NVIDIA's Blackwell GPUs multiply directly, has
# blocks of 16 with an e4m3 number as their scale, which makes 4.5. Integers of 4 bits are used in the same way, for
# example in groups of 32 with a scale of 16 bits. The table stores our four weights, as if 0.70 were the largest of its
# block.
#
# (For MXFP4 we take 1/2, the largest power of two in 0.70, and divide it by 4, the largest in e2m1. For NVFP4 we take
# 0.70 / 6 and round it to e4m3. A second scale of NVFP4, one for the whole tensor, is left out.)

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Four bits with a floating point keep 0.04 from becoming 0" numbers=[["4-bit integers, scale 0.1 +\\S+ +\\S+ +\\S+ +(\\S+)", "0.04 as a 4-bit integer, scale 0.1"], ["MXFP4, scale 1/8 +\\S+ +\\S+ +\\S+ +(\\S+)", "0.04 in MXFP4, scale 1/8"], ["NVFP4, scale 15/128 +\\S+ +\\S+ +\\S+ +(\\S+)", "0.04 in NVFP4, scale 15/128"]]
block = torch.zeros(1, 32).double()
block[:, :4] = four
e4m3 = numbers.FORMATS["e4m3"]
rows = {
    "4-bit integers, scale 0.1": (stored(block, 4), 4 + 16 / 32),
    "MXFP4, scale 1/8": (numbers.encode_blocks(block, "e2m1").decode(), 4 + 8 / 32),
    "NVFP4, scale 15/128": (numbers.round_nvfp4(block), 4 + 8 / 16),
    "e4m3, no scale": (e4m3.decode(e4m3.encode(block)), 8),
}
table = {
    name: [*(f"{value:.4g}" for value in values[0, :4].tolist()), f"{bits:g}"]
    for name, (values, bits) in rows.items()
}
columns = ["0.70", "-0.33", "0.12", "0.04", "bits per weight"]
pd.DataFrame(table, index=columns).T.rename_axis("stored as")

# %% [markdown]
# In e2m1 even 0.04 survives, although it has become about 0.06.
#
# How much does a model lose? Ours is about as small as a language model can be. It turns each of its 8 characters into 16 numbers, computes 256
# hidden elements from these 128, which pass a ReLU, and from them the probabilities of about a hundred characters. We round its two matrices,
# about 59,000 weights, and do not train again.

# %% tags=["hide-input"]
text = numbers.character_text()
model = numbers.train_characters(text)
retrained = numbers.train_characters(text, seed=1)


def loss_of(model, store=lambda activations: activations):
    return cross_entropy(model(text.unseen_contexts, store), text.unseen_targets).item()


float_loss = loss_of(model)


# %%
def in_groups(matrix, bits, size):
    """Round a matrix to integers with a scale for each `size` elements of a row."""
    return stored(matrix.reshape(-1, size), bits).reshape(matrix.shape)


def with_weights(model, store):
    rounded = copy.deepcopy(model)
    for layer in (rounded.hidden, rounded.output):
        layer.weight.copy_(store(layer.weight))
    return rounded


# %% tags=["hide-input", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Four bits cost little if few weights share a scale" numbers=[["one scale per matrix +\\S+ +\\S+ +(\\S+)", "rise of the loss, one scale per matrix (measured)"], ["a scale per row +\\S+ +\\S+ +(\\S+)", "one scale per row (measured)"], ["4-bit integers, a scale per 32 +\\S+ +\\S+ +(\\S+)", "one scale per 32 weights (measured)"]]
ways = {
    "4-bit integers, one scale per matrix": (
        "4.0",
        lambda w: numbers.quantise(w, 4).decode().float(),
    ),
    "4-bit integers, a scale per row": ("4.1", lambda w: in_groups(w, 4, w.shape[1])),
    "4-bit integers, a scale per 32": ("4.5", lambda w: in_groups(w, 4, 32)),
    "MXFP4": ("4.25", lambda w: numbers.encode_blocks(w, "e2m1").decode().float()),
    "NVFP4": ("4.5", numbers.round_nvfp4),
    "2-bit integers, a scale per 32": ("2.5", lambda w: in_groups(w, 2, 32)),
}
table, rises = {"float32": ("32", f"{float_loss:.3f}", "", "")}, {}
for name, (bits, store) in ways.items():
    rounded_loss = loss_of(with_weights(model, store))
    rises[name] = rounded_loss - float_loss
    second_rise = loss_of(with_weights(retrained, store)) - loss_of(retrained)
    table[name] = bits, f"{rounded_loss:.3f}", f"{rises[name]:.3f}", f"{second_rise:.3f}"
per_matrix, per_row, per_32, mxfp4, nvfp4, two_bits = rises.values()
assert max(per_32, mxfp4, nvfp4) < 0.06 < per_matrix < two_bits
columns = ["bits per weight", "loss (measured)", "rise", "rise, second training"]
pd.DataFrame(table, index=columns).T.rename_axis("weights stored as")

# %% [markdown]
# A scale per matrix is clearly worse than one per row, because more weights must live with a step that is too large for them. The last three
# 4-bit rows are within 0.01 of each other. After a second training the integers with a scale per 32 lost 0.020 and MXFP4 0.032. A large model
# also loses little per token if the rounding is done well. With *AWQ* (2024, Table 4, published), which chooses its scales with care, 4-bit
# weights in groups of 128 raise the perplexity of Llama 2 7B from 5.47 to 5.60. Perplexity is e to the power of the loss, so the loss per token
# rises by 0.02.
#
# **To remember.** Whatever is smaller than half a step is lost, and the largest number under a scale sets the step.
# With a scale per 16 or 32 weights, 4 bits cost 4.25 to 4.5 bits per weight, and our model lost about 0.03 at most.
#
# So why did OPT-175B not survive 8?

# %% [markdown] tags=["slide"] minutes=2 headline="One outlier sets the step for all"
# ## Part 2: why 8 bits can do more harm than 4
#
# Why can 8 bits do more harm than 4? We suspect the activations, because our weights have just survived fewer.
#
# - In large models a few channels are about 100 times as large as most
# - One such *outlier* sets the step for all
# - 70, -0.33, 0.12 and 0.04 become 70, -0.55, 0 and 0
#
# In a layer of OPT-13B most of their elements are small, but a few *channels*, which are always the same elements of
# the vector, exceed 70 (*SmoothQuant*, Figure 4, published). Such channels are called *outliers*. They are about 100
# times as large as most elements, and in models of about 6.7 billion parameters or more they appear in all layers
# (Dettmers and others, *LLM.int8()*, 2022).
#
# Put one of them among our four numbers, so that they are 70, −0.33, 0.12 and 0.04, and store them in 8 bits. The step
# is now 70 / 127, or 0.55. The four become 70, −0.55, 0 and 0. For ordinary elements, up to 0.70, only three of the 255
# integers are left, namely −1, 0 and 1. That is less than 2 bits.
#
# Our small model has no such channel, so we give it one. We multiply the weights and the bias of one of its 256 hidden
# elements by 100 and divide the weights that read it by 100. The ReLU passes the factor on, so in exact arithmetic the
# model computes the same as before.

# %% tags=["hide-input", "nbval-ignore-output"]
channel = 0
planted = numbers.plant_outlier(model, channel=channel)
hidden = planted.hidden(planted.embedding(text.unseen_contexts).flatten(1)).relu()  # (N, 256)
active, step = hidden[hidden > 0], hidden.max().item() / 127
assert abs(loss_of(planted) - float_loss) < 1e-3
assert 2.5 < step < 9
print(f"largest activation {hidden.max():.0f}, a step of {step:.2f} in 8 bits (measured)")
print(f"half of those that are not zero are below {active.median():.2f} (measured)")

# %% [markdown]
# The largest activation is now 600, and one scale for all of them makes a step of 600 / 127, or 4.7. Half of the active
# elements are below about 1.

# %% tags=["predict"]
vanished = helpers.predict(
    "With a step of 4.7, which share of the elements that are not zero becomes zero?", "%"
)
vanished

# %% tags=["run"]
share = 100 * (active < step / 2).double().mean().item()

# %% tags=["look", "nbval-ignore-output"]
assert 70 < share < 98
vanished.reveal(counted=share)

# %% [markdown] tags=["explain"]
# It is about 84 % (counted), because half a step is about 2.4. What enters a layer is a matrix with a row for each token, here for each context
# of 8 characters, so your `quantise` gives it a scale per token, and `in_groups` one scale for all.

# %% [markdown]
# What can be done? We begin with the remedy that you can write yourself, which moves the outlier into the weights. Divide channel $c$ of
# the activations by a number $s_c$, and multiply the weights that read it by the same number. The product of each
# activation and its weight stays $x_c w_c$. With $s_c = 10$ the outlier of 70 becomes 7, and the four numbers are
# stored as 7, −0.33, 0.11 and 0.06. In return the weights of this channel become ten times as large. *SmoothQuant*
# chooses $s_c$ so that the largest activation and the largest weight of a channel become equal.
#
# **Your turn.** Write `smooth`. The activations are a row for each token, the weights a row for each output, and both
# have a column for each channel, none of them all zeros.


# %% tags=["yours"] yours="smooth" takes=8
def smooth(activations, weights):
    """Return activations / s, (tokens, channels), and weights * s, (outputs, channels)."""
    s = (activations.abs().amax(0) / weights.abs().amax(0)).sqrt()  # (channels)
    return activations / s, weights * s


# %% checks="smooth"
smooth = check(smooth)


# %% wrong="smooth" says="The activations are divided"
def smooth(activations, weights):
    s = (activations.abs().amax(0) / weights.abs().amax(0)).sqrt()
    return activations * s, weights / s


# %% wrong="smooth" says="carry the whole range"
def smooth(activations, weights):
    s = activations.abs().amax(0)
    return activations / s, weights * s


# %% wrong="smooth" says="the weights stayed as they were"
def smooth(activations, weights):
    s = (activations.abs().amax(0) / weights.abs().amax(0)).sqrt()
    return activations / s, weights


# %% right="smooth" style=1
def smooth(activations, weights):
    largest = torch.maximum(activations.amax(0), -activations.amin(0))
    s = torch.sqrt(largest / weights.abs().max(dim=0).values)
    return activations * (1 / s)[None, :], weights @ torch.diag(s)


# %% right="smooth" style=2
def smooth(activations, weights):
    new_activations, new_weights = activations.clone(), weights.clone()
    for channel in range(activations.shape[1]):
        ratio = activations[:, channel].abs().max() / weights[:, channel].abs().max()
        new_activations[:, channel] /= ratio**0.5
        new_weights[:, channel] *= ratio**0.5
    return new_activations, new_weights


# %% [markdown]
# Three more remedies stand in the table beside it. They give each token a scale of its own, keep the outlier in float,
# or store all activations in e4m3 or in NVFP4.


# %% tags=["hide-input"]
def per_token(activations):
    integers, scale = quantise(activations, 8)
    return torch.where(scale > 0, integers * scale, 0.0)


def in_e4m3(activations):
    scale = activations.abs().max() / 448
    return (e4m3.decode(e4m3.encode(activations / scale)) * scale).float()


def without_outlier(activations):
    if activations.shape[1] != hidden.shape[1]:
        return per_token(activations)
    rest = activations.index_fill(1, torch.tensor(channel), 0)
    return per_token(rest).index_copy(1, torch.tensor(channel), activations[:, [channel]])


stores = {
    "float32": lambda activations: activations,
    "8-bit integers, one scale": lambda a: in_groups(a, 8, a.numel()),
    "8-bit integers, a scale per token": per_token,
    "the same, but the outlier in float": without_outlier,
    "e4m3, one scale": in_e4m3,
    "NVFP4": numbers.round_nvfp4,
}

# %% tags=["hide-input", "run"]
as_trained = {name: loss_of(model, store) for name, store in stores.items()}
outlying = {name: loss_of(planted, store) for name, store in stores.items()}
used = hidden.amax(0) > 0
smoothed, weight = smooth(hidden[:, used], planted.output.weight[:, used])
logits = in_groups(smoothed, 8, smoothed.numel()) @ weight.T + planted.output.bias
outlying["8-bit integers, one scale, smoothed"] = cross_entropy(
    logits, text.unseen_targets
).item()
four_bits = (
    loss_of(with_weights(planted, ways["4-bit integers, a scale per 32"][1])) - float_loss
)
eight_bits = outlying["8-bit integers, one scale"] - float_loss
second = numbers.plant_outlier(retrained, channel=channel)
second_eight_bits = loss_of(second, stores["8-bit integers, one scale"]) - loss_of(second)
in_four_bits = with_weights(second, ways["4-bit integers, a scale per 32"][1])
second_bet = second_eight_bits / (loss_of(in_four_bits) - loss_of(second))
assert abs(as_trained["8-bit integers, one scale"] - float_loss) < 0.01
assert abs(outlying["e4m3, one scale"] - float_loss) < 0.02
assert abs(outlying["8-bit integers, one scale, smoothed"] - float_loss) < 0.02
assert eight_bits > 0.15

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Eight bits do more harm than four"
assert 5 < eight_bits / four_bits < 200
assert second_bet > 5
bet.reveal(measured=eight_bits / four_bits)
print(f"4-bit weights, a scale per 32, with the outlier: a rise of {four_bits:.3f} (measured)")
print(f"8-bit activations, one scale, with the outlier: a rise of {eight_bits:.3f} (measured)")
print(f"after a second training: {second_bet:.0f} times as much (measured)")

# %% tags=["hide-input", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Three remedies bring the loss back" numbers=[["(?s)with the outlier.*?8-bit integers, one scale +([\\d.]+)", "loss with one scale for all (measured)"], ["(?s)with the outlier.*?a scale per token +([\\d.]+)", "a scale per token (measured)"], ["(?s)with the outlier.*?outlier in float +([\\d.]+)", "the outlier in float (measured)"], ["(?s)with the outlier.*?one scale, smoothed +([\\d.]+)", "one scale, smoothed (measured)"]]
table = {
    name: (f"{as_trained[name]:.3f}" if name in as_trained else "", f"{loss:.3f}")
    for name, loss in outlying.items()
}
columns = ["as trained (measured)", "with the outlier (measured)"]
pd.DataFrame(table, index=columns).T.rename_axis("loss with activations stored as")

# %% [markdown] tags=["explain"]
# In the model with the outlier, 8-bit activations raise the loss about 30 times as much as 4-bit weights, although as
# trained they would have cost nothing.
#
# A scale per token helps in our model, because this channel is small for most tokens, so their step is finer. In
# OPT-175B the outliers are large for all tokens, and with a scale per token it reached only 31.7 %. A scale per channel
# would help, and in a simulation OPT-175B reached 71.4 % with it (*SmoothQuant*, Table 1, published). But the hardware
# cannot use such a scale. An output is the sum of $x_c w_c$ over all channels $c$, and the hardware adds these products
# as integers. A scale that is the same for the whole sum can be applied once at its end, whereas a scale that changes
# from term to term cannot.
#
# So three other remedies are in use. The first one takes the outliers out. *LLM.int8()*, which is Hugging Face's
# `load_in_8bit`, multiplies the few large channels in 16 bits and the rest in 8. OPT-175B reaches 71.4 % with it, but
# the detour takes time. For four sequences of 256 tokens, OPT-13B needed 237 ms on an A100 in this way, but 153 ms in
# 16 bits (*SmoothQuant*, Table 10, published).
#
# The second one is your `smooth`. The division costs no time, because it is built into the norm before the layer, and
# OPT-13B took 112 ms.
#
# The third one takes a format whose steps are relative. In e4m3 the four numbers become 72, −0.344, 0.117 and 0.039,
# because a small number has small steps whatever its neighbours do. That is why FP8, which an H100 multiplies as fast
# as 8-bit integers, can do with one scale per tensor. In 4 bits this way is closed, because between 0.5 and 6 there is
# only a factor of 12, and next to an outlier 100 times as large its neighbours become zero. So 4-bit activations need
# small blocks, which confine the damage to 16 or 32 numbers, and a Blackwell GPU applies a scale inside the sum after
# all, once per block.
#
# **To remember.** Beside an outlier 100 times as large, 8-bit integers leave less than 2 bits for the rest. Move it
# into the weights, give it 16 bits, or use e4m3, whose steps are relative.
#
# So the factors can have 8 bits. But their products are added up, and the sum grows. How many bits does the sum need?

# %% [markdown] tags=["slide"] minutes=1 headline="A sum can stop growing"
# ## Part 3: how many bits the sum needs
#
# How many bits does the sum need? We ask this now because a layer adds thousands of products, and soon the running sum
# is a large neighbour of each new term.
#
# - A product of two narrow numbers fits a wider format exactly
# - A sum is rounded at each addition
# - If a sum is large enough, adding 1 changes nothing
#
# **Your turn.** Write a sum in a narrow format. The function `keep` rounds to what can be stored.


# %% tags=["yours"] yours="add_up" takes=5
def add_up(terms, keep):
    """Return the sum of terms, added one after the other, each partial sum kept by keep."""
    total = torch.zeros_like(terms[0])
    for term in terms:
        total = keep(total + term)
    return total


# %% checks="add_up"
add_up = check(add_up)


# %% wrong="add_up" says="No partial sum was rounded"
def add_up(terms, keep):
    return sum(keep(term) for term in terms)


# %% wrong="add_up" says="Only the last sum was rounded"
def add_up(terms, keep):
    return keep(terms.sum())


# %% right="add_up" style=1
def add_up(terms, keep):
    total = keep(terms[0])
    for term in terms[1:]:
        total = keep(term + total)
    return total


# %% right="add_up" style=2
def add_up(terms, keep):
    from functools import reduce

    return reduce(lambda total, term: keep(total + term), terms, torch.tensor(0.0))


# %% [markdown]
# Take bfloat16, whose mantissa has 7 bits. From 64 to 128 its step is 64 / 128, or a half, and in each further power of
# two it doubles.

# %% tags=["predict"]
stop = helpers.predict(
    "At which number does a sum of ones stop growing if bfloat16 keeps every partial sum?",
    "ones",
)
stop

# %% tags=["run"]
ones = torch.ones(3000).double()
mantissas = {"fp16": (10, -14), "bf16": (7, -126), "e4m3": (3, -6)}
stops = {}
for name, (bits, least) in mantissas.items():
    rounded = partial(nearest, mantissa_bits=bits, least=least)
    stops[name] = add_up(ones, rounded).item()

# %% tags=["look", "hide-input"]
stop.reveal(modelled=2 ** (7 + 1), counted=stops["bf16"])
for name, (bits, _) in mantissas.items():
    print(f"{name}: 2^({bits} + 1) = {2 ** (bits + 1):,}, counted {stops[name]:,.0f}")

# %% [markdown] tags=["explain"]
# From 256 on the step is 2. It stops at 256, because 257 lies midway between 256 and 258, and a tie goes to the even
# mantissa, which is that of 256. A format with $m$ bits of mantissa stops at $2^{m+1}$, so float16 stops at 2,048 and
# e4m3 at 16. Now take 16,384 products of two numbers between 0 and 1, which are 1/4 on average, so that their sum
# should be 4,096. No product is larger than 1, so a bfloat16 sum cannot pass 256. It is 93.7 % too small, and in
# float16 the sum is 50.0 % too small (counted). No error is raised.
#
# You would expect that hardware adds in float32, and mostly it does. But DeepSeek's engineers found that an H800, a
# sister of the H100, retains only "around 14 bits" when it adds FP8 products. In sums of 4,096 terms the largest
# relative error was nearly 2 % (*DeepSeek-V3 Technical Report*, 2024, published). Our rule shows the danger. If the
# products are 1/4 on average again, the sum is 1,024 after 4,096 of them. Suppose that 14 bits are a leading one and 13
# bits of mantissa. Then the step is 1,024 / 2¹³, or 1/8, which is half of a product. Their remedy is called
# *promotion*. After every 128 products the partial sum is moved into a float32 [register](glossary.md#register) and the
# next one starts at zero. A partial sum then reaches about 32, where the step is 32 / 2¹³, or 1/256. Here are both accidents.

# %% tags=["hide-input"]
torch.manual_seed(1)
factors = as_bf16(torch.rand(2, 16384, 32).double())
terms = factors[0] * factors[1]  # (16384, 32)
fourteen = partial(nearest, mantissa_bits=13, least=-126)
accumulators = {
    "float32": lambda total: total.float().double(),
    "14 bits": fourteen,
    "fp16": lambda total: total.half().double(),
    "bf16": as_bf16,
}
lengths, sum_errors = [4**power for power in range(2, 8)], {}
for length in lengths:
    some, true_sum = terms[:length], terms[:length].sum(0)
    totals = {name: add_up(some + 0.0, keep) for name, keep in accumulators.items()}
    parts = some.reshape(-1, min(length, 128), 32).transpose(0, 1)  # (128, parts, 32)
    totals["14 bits, promoted"] = add_up(parts, fourteen).sum(0)
    for name, total in totals.items():
        error = ((total - true_sum) / true_sum).abs().mean().item()
        sum_errors.setdefault(name, []).append(error)
assert 0.93 < sum_errors["bf16"][-1] < 0.95

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Long sums need more bits than their terms"
assert 0.49 < sum_errors["fp16"][-1] < 0.51
assert sum_errors["14 bits, promoted"][-1] < sum_errors["14 bits"][-1] / 10
figure, axes = plotting.figure(title="Sums of products of bf16 numbers, by what keeps them")
styles = ("-", "--", "-.", ":", (0, (6, 2, 1, 2)))
for index, (name, errors) in enumerate(sum_errors.items()):
    axes.loglog(
        lengths, errors, linestyle=styles[index], color=colours[index], marker="o", label=name
    )
axes.set(xlabel="terms, between 0 and 1", ylabel="mean relative error")
axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
axes.minorticks_off()
figure.legend(loc="outside lower left", ncols=5, fontsize=10)
alt = "Sums in bf16, fp16 and 14 bits get worse with their length; a promoted sum stays close."
plotting.show(figure, alt=alt)

# %% [markdown]
# With 14 bits, sums of 4,096 terms are wrong by 0.2 % on average, whereas DeepSeek's 2 % are the largest error.
#
# Older processors have the same accident with integers. The instruction `pmaddubsw`, which x86 processors have had
# since 2006, multiplies pixels from 0 to 255 by weights from −128 to 127 and adds two neighbouring products in 16 bits.
# These reach 32,767, whereas 2 × 255 × 127 is 64,770, and every larger sum becomes 32,767. Now throw away one bit of
# every pixel, so that pixels reach only 127. Then 2 × 127 × 127 is 32,258, and nothing overflows, but each pixel is
# half as precise.


# %%
def pair(inputs, weights):
    total = inputs[0] * weights[0] + inputs[1] * weights[1]
    return max(-32768, min(32767, total))


for largest in (255, 127):
    exact = 2 * largest * 127
    print(f"pixels to {largest}: {exact:,} becomes {pair([largest] * 2, [127] * 2):,}")

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 100] headline="pmaddubsw adds two products in 16 bits, up to 32,767"
worse = helpers.predict(
    "With this instruction, how many times as large is a layer's error "
    "with 8-bit pixels as with 7-bit pixels?",
    "x",
)
worse

# %% tags=["hide-input", "run"]
torch.manual_seed(0)
start = helpers.BasicFCModel(hidden=32).double()
for weight in start.parameters():
    weight.data = as_bf16(weight.data)
trained, curves = {"float64": copy.deepcopy(start)}, {}
curves["float64"] = learn(trained["float64"], 0.002, 6)
first = trained["float64"].fc1.weight.detach()
pixels = ((test_images * 0.3081 + 0.1307) * 255).round().long().flatten(1)
integers, scales = quantise(first, 8)
byte_weights = integers.T.long()
wanted, errors = pixels.double() @ first.T, {"exact": {}, "saturating": {}}
for bits in range(8, 3, -1):
    unit = 2 ** (8 - bits)
    fewer = pixels // unit
    products = fewer @ byte_weights, numbers.saturating_product(fewer, byte_weights)
    for name, product in zip(errors, products, strict=True):
        difference = product * unit * scales.T - wanted
        errors[name][bits] = (difference.norm() / wanted.norm()).item()

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Saturated sums lose more than the eighth bit gains"
assert 1.7 < errors["exact"][7] / errors["exact"][8] < 2.3
assert errors["saturating"][7] == errors["exact"][7]
assert 15 < errors["saturating"][8] / errors["saturating"][7] < 35
worse.reveal(simulated=errors["saturating"][8] / errors["saturating"][7])
for name, error in errors.items():
    print(f"{name}: error with 8 bits {error[8]:.2%}, with 7 bits {error[7]:.2%}")

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="An eighth bit can make the error larger"
figure, axes = plotting.figure(title="First layer of a network: error by the bits of a pixel")
for index, (name, error) in enumerate(errors.items()):
    percent = [100 * share for share in error.values()]
    axes.semilogy(
        list(error), percent, ("-", "--")[index], color=colours[index], marker="o", label=name
    )
axes.set(xlabel="bits of a pixel (weights: 8)", ylabel="relative error", xticks=range(4, 9))
axes.set_yticks([0.2, 0.5, 1, 2, 5], [f"{tick} %" for tick in (0.2, 0.5, 1, 2, 5)])
axes.minorticks_off()
axes.legend()
alt = "The error falls up to 7 bits; with the eighth it falls, or jumps where sums saturate."
plotting.show(figure, alt=alt)


# %% tags=["hide-input", "look", "nbval-ignore-output"]
def by_kernel(inputs, weights):
    import torch  # here, because the function runs in another process

    torch.backends.quantized.engine = "fbgemm"
    columns = weights.T.contiguous().to(torch.int8)
    columns = torch._make_per_tensor_quantized_tensor(columns, 1.0, 0)
    packed = torch.ops.quantized.linear_prepack(columns, None)
    product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return product(inputs.float(), 1.0, 0, packed).long()


if "fbgemm" in torch.backends.quantized.supported_engines:  # it is for x86
    variables = {"FBGEMM_ENABLE_INSTRUCTIONS": "AVX2"}
    with warnings.catch_warnings(action="ignore"):
        limited = helpers.run_limited(by_kernel, pixels, byte_weights, variables=variables)
    results = limited.unwrap()
    saturated = numbers.saturating_product(pixels, byte_weights)
    same = [int((results == sums).sum()) for sums in (pixels @ byte_weights, saturated)]
    assert results.numel() in same
    print(
        f"PyTorch without VNNI: of {results.numel():,} outputs {same[0]:,} are as exact sums "
        f"give them, {same[1]:,} as saturating sums do (counted)"
    )

# %% [markdown] tags=["explain"]
# In the first layer of a small network that reads handwritten digits, the outputs are wrong by 7.70 % with 8 bits and
# by 0.33 % with 7 (simulated, relative to exact pixels and weights). So 8 bits are 23 times as bad as 7, because
# neighbouring pixels are often both 255 and two large weights then overflow, which is called
# [saturation](glossary.md#saturation). If the sums cannot overflow, the eighth bit does what you expect and halves the
# error to 0.17 %, that of the weights. When we forbade PyTorch's library the newer VNNI instructions, it returned exactly the overflowing
# sums in all 32,000 outputs (counted). PyTorch's quantisers have an option against it, `reduce_range`, which gives
# activations 7 bits.
#
# **To remember.** With $m$ bits of mantissa a sum of ones stops at $2^{m+1}$, which is 256 in bfloat16. Keep the sum in
# more bits, or keep it short and promote it, for example after every 128 terms.
#
# A sum of products ends with its layer. But there is a sum that grows during a whole training.

# %% [markdown] tags=["slide"] minutes=2 headline="An update below half a step is lost"
# ## Part 4: learning in few bits
#
# Can a network learn in few bits? The sum that grows during a training is the weight, and so it is the last large
# neighbour in this lesson.
#
# - An update adds a small number to a large one
# - Below half a step, the weight stays as it was
# - In this step it learns nothing
#
# Take a weight of 0.02 in bfloat16. It lies between 1/64 and 1/32, so its step is 1/64 / 128, or 0.00012. We train a
# network of three linear layers on handwritten digits with plain gradient descent at a small learning rate, 0.002. Half
# of its weights are smaller than about 0.02, and half of its first updates than about 0.000009.

# %% tags=["predict"]
lost = helpers.predict(
    "If the weights are kept in bfloat16, "
    "which share of the updates does not change its weight at all?",
    "%",
)
lost

# %% tags=["hide-input", "run"]
before_update = torch.cat([weight.detach().flatten() for weight in start.parameters()])
loss = cross_entropy(start(images[:20]), labels[:20])
updates = torch.autograd.grad(loss, list(start.parameters()))
updates = 0.002 * torch.cat([update.flatten() for update in updates])
before_update, updates = before_update[updates != 0], updates[updates != 0]

# %% tags=["run"]
small = updates.abs() < spacing(before_update, 7, -126) / 2
unmoved = as_bf16(before_update - updates) == before_update

# %% tags=["look"]
modelled, counted = (
    100 * lost_updates.double().mean().item() for lost_updates in (small, unmoved)
)
lost.reveal(modelled=modelled, counted=counted)

# %% [markdown] tags=["explain"]
# An update must be larger than half a step, 0.00006 for this weight, and 85.6 % of all updates are not (counted).
#
# Two remedies are in use. The first keeps each weight in float32 for the updates and multiplies with a rounded copy
# (Micikevicius and others, 2018). This float32 weight takes 4 of the 12 bytes per parameter that [lesson
# 05](05_data_parallel.ipynb) counted for the optimizer. The second remedy is a coin. If an update is a twentieth of a
# step, [stochastic rounding](glossary.md#stochastic-rounding) moves the weight by a whole step in one of twenty cases.
# On average nothing is lost.
#
# **Your turn.** Write the coin, in two lines. `torch.rand_like` draws numbers from 0 to 1.


# %% tags=["yours"] yours="stochastic" takes=6
def stochastic(values, step):
    """Return each value rounded up or down, with the probability of its nearness."""
    coins = torch.rand_like(values)
    return (values / step + coins).floor() * step


# %% checks="stochastic"
stochastic = check(stochastic)


# %% wrong="stochastic" says="moves in half of the cases"
def stochastic(values, step):
    coins = torch.rand_like(values) < 0.5
    return ((values / step).floor() + coins) * step


# %% wrong="stochastic" says="the update is lost as before"
def stochastic(values, step):
    return (values / step).round() * step


# %% wrong="stochastic" says="rounded to either side as well"
def stochastic(values, step):
    return (values / step + torch.rand_like(values)).trunc() * step


# %% wrong="stochastic" says="a number of steps times"
def stochastic(values, step):
    return (values / step + torch.rand_like(values)).floor()


# %% right="stochastic" style=1
def stochastic(values, step):
    below = torch.floor(values / step)
    up = torch.bernoulli(values / step - below)
    return (below + up) * step


# %% right="stochastic" style=2
def stochastic(values, step):
    counts = values / step
    lower = counts.floor()
    return step * torch.where(torch.rand(values.shape) < counts - lower, lower + 1, lower)


# %% tags=["hide-input", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Sixteen bits forget, and a coin remembers" numbers=[["float64: ([\\d.]+ %)", "right with weights in float64 (measured)"], ["stochastic: ([\\d.]+ %)", "in bfloat16, rounded by a coin (measured)"], ["nearest: ([\\d.]+ %)", "in bfloat16, rounded to the nearest (measured)"]]
def with_coin(weights):
    step = spacing(torch.where(weights == 0, 1.0, weights), 7, -126)
    return stochastic(weights, step)


accuracies = {}
for name, keep in {"bf16, stochastic": with_coin, "bf16, nearest": as_bf16}.items():
    trained[name] = copy.deepcopy(start)
    curves[name] = learn(trained[name], 0.002, 6, keep)
for name, network in trained.items():
    hits = network(test_images).argmax(1) == test_labels
    accuracies[name] = 100 * hits.double().mean().item()
assert abs(accuracies["bf16, stochastic"] - accuracies["float64"]) < 4
assert accuracies["bf16, nearest"] < accuracies["bf16, stochastic"] - 15
print("; ".join(f"{name}: {share:.1f} % right" for name, share in accuracies.items()))
figure, axes = plotting.figure(title="One training, three rules to keep a weight")
for index, (name, losses) in enumerate(curves.items()):
    means = torch.tensor(losses).unflatten(0, (-1, 50)).mean(1)
    axes.plot(
        range(50, 1201, 50), means, ("-", "--", "-.")[index], color=colours[index], label=name
    )
axes.set(xlabel="step", ylabel="loss, mean of 50 steps", ylim=(0, 2.4))
axes.legend(loc="lower left")
alt = "Stochastic rounding learns as float64 does; nearest hardly lowers the loss."
plotting.show(figure, alt=alt)

# %% [markdown]
# After six epochs the network reads about 50 % of the test digits correctly if bfloat16 keeps the weights by rounding
# to the nearest, but about 80 % if the weights have 64 bits (measured). With the coin it reads as many as with
# 64, up to chance, although its weights have only 16 bits.
#
# Gradients have the opposite problem, because they are small without any large neighbour. In e4m3, about 79 % of the gradients of LeNet, a small
# network for the same digits, are below half of 2⁻⁹ and become zero (counted). Here a single scale helps. If you multiply the loss by a power of
# two, all gradients grow with it, and you divide the gradients by it before the update. This is [loss scaling](glossary.md#loss-scaling).
# Bfloat16 does not need it, because it has as many bits of exponent as float32.

# %% tags=["hide-input", "nbval-ignore-output"]
underflowing = 100 * (gradients.abs() <= 2.0**-10).double().mean().item()
assert 70 < underflowing < 88
print(f"gradients of LeNet that e4m3 makes zero: {underflowing:.1f} % (counted)")

# %% [markdown]
# Now you can read a recipe for training in FP8. The authors of its formats recommend e4m3 for weights and activations,
# and for gradients e5m2, which has more reach and coarser steps (Micikevicius and others, 2022). DeepSeek-V3 used e4m3
# for all three, with a scale per 128 activations of a token and per 128 × 128 weights, promotion every 128 products,
# and weights in float32 for the updates. In its tests the loss differed from that of bfloat16 by less than 0.25 %
# (published).
#
# **To remember.** An update is lost if it is smaller than half a step of its weight. In bfloat16 that is between 1/512
# and 1/256 of the weight. Multiply in few bits, and keep the sums and the weights that learn in many.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. The largest number under a scale sets the step.
# 2. Beside an outlier or a growing sum, small numbers vanish.
# 3. Give it a scale of its own, relative steps, or more bits.
#
# In the model with the planted outlier, the 8-bit activations raise the loss by about 0.69 and the 4-bit weights by 0.024, so it is about 30
# times as much (45 times after a second training). The eight bits fail because one outlier sets a step of 4.7, and about 84 % of the elements
# that are not zero are smaller than half of it. The four bits succeed because a weight shares its scale with only 31 others. And OPT-175B went
# from 32.3 % to 71.1 % with the same 8 bits, because *SmoothQuant* moved the outliers into the weights.
#
# So before you choose a number of bits, look for the large neighbour. Among weights it is the largest of a group, and
# among activations an outlier. In a sum it is the sum itself, and in training the weight. Then give it a scale of its
# own, relative steps, or more bits.
#
# The [exercises](exercises/16_numbers_of_few_bits_exercises.ipynb) have you decode bytes of any format, toss the coin
# in whole numbers, and predict the saturating product to the last unit.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A format has $m$ bits of mantissa, and below $2^l$, the power $l$ of two, its numbers are subnormal. A weight is $w$
# and its gradient $g$, and integers have $q$ bits. Channel $c$ has activations $x_c$ and weights $w_c$.
#
# | quantity | formula |
# |---|---|
# | step at $v$ | $2^{\max(\lfloor\log_2 \lvert v\rvert\rfloor,\, l) - m}$ |
# | scale of integers | $\max\lvert w\rvert / (2^{q-1} - 1)$ |
# | divisor that smooths channel $c$ | $\sqrt{\max\lvert x_c\rvert / \max\lvert w_c\rvert}$ |
# | a sum of ones stops at | $2^{m+1}$ |
# | an update gets lost | $\lvert \eta g\rvert < \frac12\,$step at $w$ |
# | a saturating pair of bytes $x$, $w$ | $\min(32767, \max(-32768,\, x_1w_1 + x_2w_2))$ |
