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
#     number: "18"
#     title: Fused bias
#     needs: ["02"]
#     objectives:
#       - count|counted the bytes that one kernel saves over three
#       - write|wrote bias and ReLU as one pass over memory, right also for NaN
#       - predict|predicted for which layers fusing pays, and by how much
#       - bound|bounded what a repair can gain, from a profile of the whole network
#       - judge|judged a published profile by what it says and what it leaves open
# ---

# %% [markdown] tags=["objectives"]
# # Fused bias
#
# Between two large products of a network stand small operators: a bias, an activation, a norm. They compute next to nothing, and
# yet they can take more time than the product before them. The cure is called [fusion](glossary.md#fusion): one program does the
# work of several. `torch.compile` does it for you. In this lesson you do it by hand, on the smallest case: a convolution, its bias
# and a ReLU.
#
# The case is real. In January 2019 KristofferC profiled a small network on a GPU, in Flux, Julia's library for neural networks, and
# reported what he saw ([issue 558](https://github.com/FluxML/Flux.jl/issues/558)).
#
# You need no GPU. What computes is your CPU, or your GPU if there is one.

# %%
from functools import cache, partial

import numba
import numpy as np
import pandas as pd
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import helpers
from helpers import exercises, plotting, profiling, timing, units
from helpers.studies import fused_bias

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch.set_grad_enabled(False)  # this lesson goes forward only
torch.backends.cudnn.allow_tf32 = False  # float32 on a GPU as well
allocator = helpers.steady_allocator()  # no page faults in our times (lesson 01)

# %% [markdown] tags=["slide"] minutes=2
# ## The bet
#
# - A layer: two kernels on a GPU
# - Convolution, 32 channels read: 576 operations for an output
# - Bias and ReLU: 2
#
# A [GPU kernel](glossary.md#gpu-kernel) is a function that a GPU runs on a whole tensor. In each layer of the network, one for digits,
# the first kernel was a convolution. In the last layer of the version that we count, an output is a sum of $9 \cdot 32$ products. The
# second kernel added the bias, and made zero what was negative.

# %% tags=["predict", "slide-output"]
bet = helpers.predict(
    "How many times as long as bias and ReLU did the convolutions take?", "x"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Between two kernels all goes through memory"
# ## Part 1: what a kernel reads and writes
#
# - A kernel reads its inputs from memory
# - It writes its result to memory
# - Between two kernels nothing stays in [registers](glossary.md#register)
#
# So the convolution writes its result down, and the next kernel reads all of it again, to add one number and write it down a
# second time. Here are both programs for 1,000 digits: of each, one channel of 28 x 28 is read, and 16 are made.

# %% tags=["slide", "slide-output"] minutes=2 headline="One kernel moves a third of the bytes"
x_bytes, y_bytes = (1000 * 4 * channels * 28 * 28 for channels in (1, 16))
convolution = fused_bias.Kernel("convolution", {"x": x_bytes}, {"y": y_bytes})
bias_and_relu = fused_bias.Kernel("bias, ReLU", {"y": y_bytes}, {"out": y_bytes})
all_three = fused_bias.Kernel("all three", {"x": x_bytes}, {"out": y_bytes})
plotting.show(
    fused_bias.draw_kernels(
        {"two kernels": [convolution, bias_and_relu], "one kernel": [all_three]}
    ),
    alt="Two kernels write y and read it back; one kernel reads x and writes the output.",
)

# %% [markdown]
# Weights and biases are few, so we leave them out, here and below.
#
# **Your turn.** Suppose that only bytes take time. How many times as long as bias and ReLU do the convolutions of a network then
# take?


# %% tags=["yours"] yours="byte_ratio"
def byte_ratio(layers):
    """Return the bytes of all convolutions over those of all kernels for bias and ReLU.

    A layer is a pair: how many numbers its convolution reads, and how many it writes.
    """
    convolutions = sum(read + written for read, written in layers)
    bias_relus = sum(2 * written for _, written in layers)
    return convolutions / bias_relus


# %% checks="byte_ratio"
asked = exercises.Checks("Bytes over bytes", byte_ratio)
slips = {
    3 / 2: "Bias and ReLU read the convolution's result and write one as large",
    4 / 3: "The convolutions over bias and ReLU, not the other way round",
}
asked.returns("one layer", ([(1, 2)],), expected=3 / 4, mistakes=slips)
slips = {
    (3 / 4 + 9 / 2) / 2: "Add the bytes of all layers first, then divide",
    12 / 3: "Bias and ReLU read the convolution's result and write one as large",
}
asked.returns("two layers", ([(1, 2), (8, 1)],), expected=12 / 6, mistakes=slips)
byte_ratio = asked.settle()


# %% wrong="byte_ratio" says="and write one as large"
def byte_ratio(layers):
    return sum(map(sum, layers)) / sum(written for _, written in layers)


# %% wrong="byte_ratio" says="first, then divide"
def byte_ratio(layers):
    return sum((read + written) / (2 * written) for read, written in layers) / len(layers)


# %% [markdown]
# We need a network. The issue names an example file, and that file had three versions within a month. We count the last, because
# Parts 4 and 6 run it: 1 to 16 to 32 to 32 channels, on 28, 14 and 7 pixels a side. After each layer a 2 x 2 max pooling halves the
# sides. It is of February, and the profile of 21 January is older; the other versions follow below.

# %% tags=["run"]
channels, sides = (1, 16, 32, 32), (28, 14, 7)
february = [
    (before * side**2, after * side**2)
    for before, after, side in zip(channels, channels[1:], sides, strict=False)
]
products = [9 * before for before in channels[:-1]]  # in one output of each layer


def operation_ratio(layers, products):
    flops = sum(2 * n * out for (_, out), n in zip(layers, products, strict=True))
    return flops / sum(2 * out for _, out in layers)


average_us = {"bias and ReLU": 78.683, "convolution": 41.940}  # of 2,350 calls, published

# %% tags=["look"]
bet.reveal(
    modelled=byte_ratio(february),
    published=average_us["convolution"] / average_us["bias and ReLU"],
    source="Flux.jl, issue 558",
)
print(f"by operations it would be {operation_ratio(february, products):.0f} times")

# %% [markdown] tags=["explain"]
# The small kernel took nearly twice as long as the convolution. Operations promised the opposite. Bytes have the order right,
# because the small kernel reads as much as it writes, and these convolutions read less on the whole.
#
# The profile says neither which version ran, nor on which card. On its day the file had four layers, but its 2,350 calls divide by 2,
# and not by 3 or 4: perhaps an older copy ran. In all three versions bytes give this order, and operations the opposite one:

# %% tags=["look"]
two = [(784, 16 * 27**2), (16 * 13**2, 8 * 12**2)]
four = [(784, 21632), (21632, 18432), (4608, 1600), (400, 90)]
versions = {
    "2 layers, until 17 January": (two, [4, 4 * 16]),
    "4 layers, until 8 February": (four, [9, 9 * 32, 9 * 32, 9 * 16]),
    "3 layers, from 8 February": (february, products),
}
rows = {}
for name, (layers, sums) in versions.items():
    written = [out for _, out in layers]
    ratios = byte_ratio(layers), operation_ratio(layers, sums), max(written) / min(written)
    rows[name] = [f"{ratio:.2f}" for ratio in ratios]
pd.DataFrame(rows, index=["by bytes", "by operations", "largest y over smallest"]).T

# %% [markdown] tags=["explain"]
# One call of [cuDNN](glossary.md#cudnn), NVIDIA's library, does all three. Its average in the issue is 46.2 us: it does the work
# of both kernels in little more than the convolution's time.

# %% tags=["look", "slide", "slide-output"] minutes=1 mark="bias and ReLU" headline="Published: the small operations took longer than the convolution"
average_us["all three in one call"] = 46.229
us = pd.Series(average_us)
rows = {"average": us.map("{:.1f} us (published)".format)}
rows["over the convolution"] = (us / us["convolution"]).map("{:.2f}".format)
pd.DataFrame(rows)

# %% [markdown] tags=["explain"]
# Fusing saved nearly the whole small kernel, as its bytes promise. Did bytes also take the time of the small kernel? Its calls took 29.2 to 117.0 us (published): the
# longest 4.0 times as long as the shortest. By bytes it would be the last column of the table of versions, 8 and more. So bytes were
# not all of it; [the appendix](appendix/18_fused_bias.ipynb) goes on from here.

# %% [markdown] headline="As one writes it, each operation makes a tensor"
# ## Part 2: three kernels here
#
# - PyTorch, as one writes it: convolution, add, ReLU
# - Each makes a new tensor
# - The first layer, 1,000 digits: $x$ has 3.1 MB, $y$ has 50 MB
#
# On a CPU we call *kernel* the routine of a library that goes through whole tensors. [oneDNN](glossary.md#onednn), which computes
# PyTorch's convolutions on most CPUs, can do all three in one kernel, as cuDNN can on a GPU. `fused_bias.layer("post-op")` asks for
# that.


# %%
def as_written(x, weight, bias):
    y = functional.conv2d(x, weight, padding=1)
    y = y + bias.view(1, -1, 1, 1)
    return torch.relu(y)


FUSED = "native" if fused_bias.missing("post-op", device) else "post-op"
fused = fused_bias.layer(FUSED)
batch = 1000


# %% tags=["predict"]
traffic = helpers.predict("How many times the bytes of one kernel do the three move?", "x")
traffic

# %% [markdown]
# To count, we watch PyTorch. A dispatch mode is called for every operator; ours adds up the bytes of all tensors that go in and come
# out.


# %%
class Watch(TorchDispatchMode):
    moved_bytes = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        tensors = [each for each in (*args, result) if isinstance(each, torch.Tensor)]
        self.moved_bytes += sum(each.nbytes for each in tensors)
        return result


def moved(program, *tensors):
    with Watch() as watch:
        program(*tensors)
    return watch.moved_bytes


# %%
def layer_inputs(count, channels):
    x = torch.rand(count, channels, 28, 28, device=device)
    weight = torch.randn(16, channels, 3, 3, device=device) / (3 * channels**0.5)
    return x, weight, torch.rand(16, device=device)


# %% tags=["run"]
first = layer_inputs(batch, 1)
three_bytes, one_bytes = moved(as_written, *first), moved(fused, *first)
assert torch.allclose(as_written(*first), fused(*first), atol=1e-4)

# %% tags=["look"]
traffic.reveal(
    modelled=(x_bytes + 5 * y_bytes) / (x_bytes + y_bytes), counted=three_bytes / one_bytes
)

# %% [markdown] tags=["explain"]
# $x$ and $y$ once for the convolution, then $y$ four more times: the add reads and writes, and so does the ReLU. There are programs
# in between. What does each move after the convolution? Count its passes over $y$ first: a pass reads 50 MB and writes 50 MB.
# `fused_bias.traffic` counts in the same way.

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="inside the convolution" headline="Fused into the convolution, nothing more is moved"
programs = {
    "separate": "add, ReLU",
    "in-place": "add_, relu_",
    "broadcast": "one kernel, as Flux",
    "one-pass": "one kernel, in place",
    "post-op": "inside the convolution",
}
counts = {
    what: fused_bias.traffic(name, (batch, 16, 28, 28)) for name, what in programs.items()
}
rows = {what: [each.read_bytes, each.written_bytes] for what, each in counts.items()}
pd.DataFrame(rows, index=["bytes read", "bytes written"]).T.map("{:,}".format)

# %% [markdown] tags=["explain"]
# (The odd 64 bytes are the bias.) By this count, writing in place saves a tensor and no byte. Do bytes take the time here? Add and
# ReLU each read and write as much as a copy of $y$ does. So measure two things apart from the layer: the convolution alone, and a copy.


# %%
@cache
def race(count, channels):
    x, weight, bias = layer_inputs(count, channels)
    runs = {"fused": partial(fused, x, weight, bias)}
    runs["separate"] = partial(as_written, x, weight, bias)
    runs["convolution"] = partial(functional.conv2d, x, weight, padding=1)
    y, target = torch.rand(2, count, 16, 28, 28, device=device)
    runs["copy"] = partial(target.copy_, y)
    return timing.compare(runs, budget_s=3, precision=0.1)


# %% tags=["nbval-ignore-output"]
convolution_s = race(batch, 1).candidate("convolution").median_s
copy_s = race(batch, 1).candidate("copy").median_s
print(f"convolution: {units.text(convolution_s, 's')}, copy of y: {units.text(copy_s, 's')}")

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10]
layer_time = helpers.predict(
    "How many times as long as one kernel do the three take here?", "x"
)
layer_time

# %% tags=["run"]
separate_ratio = race(batch, 1).candidate("separate").time_ratio

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Three kernels take about as much longer as they move"
layer_time.reveal(
    modelled=(convolution_s + 2 * copy_s) / convolution_s, measured=separate_ratio
)

# %% tags=["look"]
sentence = "three kernels take longer than one"
timing.claim(sentence, separate_ratio, at_least=1.1, evidence=race(batch, 1))

# %% [markdown] tags=["explain"]
# The model: one kernel takes as long as the convolution alone, and three take that and two copies. It is less than the ratio of
# the bytes, because a convolution does not wait for bytes alone.

# %% [markdown] headline="One pass reads each number once"
# ## Part 3: write the kernel
#
# - Two passes: all of $y$ comes from memory twice
# - One pass: each number comes once
#
# When the first pass ends, the beginning of a tensor larger than the [caches](glossary.md#cache) has left them.


# %%
def draw_passes(visits):
    drawn, axes = plotting.figure(title="", height_in=2.3)
    rows = {"one pass": [2 * (visits > i) for i in range(8)]}
    rows["two passes"] = [(visits > i) + (visits > i + 8) for i in range(8)]
    shades = ["white", plotting.COLOURS["data"], plotting.COLOURS["computing"]]
    for place, states in enumerate(rows.values()):
        colours = [shades[state] for state in states]
        axes.barh([place] * 8, 0.92, 0.7, range(8), color=colours, edgecolor="#666666")
        for at, state in enumerate(states):
            axes.text(
                at + 0.46, place, ["y", "y + b", "done"][state], ha="center", va="center"
            )
    axes.set_yticks([0, 1], rows)
    axes.set(xticks=[], xlim=(-0.1, 8))
    axes.grid(visible=False)
    return drawn


# %% tags=["slide", "slide-output"] minutes=1 layout="steps" headline="Two passes visit memory twice as often"
plotting.play(
    [draw_passes(visits) for visits in range(0, 17, 2)],
    title="Eight numbers in memory",
    captions=[f"{visits} numbers read and written" for visits in range(0, 17, 2)],
    stills=(1, 4, 6, 8),
    alt="One pass is done after 8 visits to memory, two passes after 16.",
)

# %% [markdown]
# **Your turn.** `y` is an array (images, channels, pixels), and all pixels of a channel share one bias. `relu` is a function of one
# number. The check counts how often you read and write numbers of `y`. Write plain loops: numba will compile them.


# %%
class Counted:
    def __init__(self, numbers):
        self.numbers, self.shape = numbers, numbers.shape
        self.reads = self.writes = 0

    def __getitem__(self, place):
        self.reads += np.size(self.numbers[place])
        return self.numbers[place]

    def __setitem__(self, place, values):
        self.writes += np.size(self.numbers[place])
        self.numbers[place] = values


# %%
def relu(v):
    return v if v > 0 else 0.0


def after(function, y, bias):
    y = y.copy()
    function(y, bias, relu)
    return y.ravel()


def visits(function, y, bias):
    counted = Counted(y.copy())
    function(counted, bias, relu)
    return [counted.reads, counted.writes]


# %% tags=["yours"] yours="bias_relu"
def bias_relu(y, bias, relu):
    """Replace each number v of y by relu(v + its channel's bias), in one pass."""
    images, channels, pixels = y.shape
    for image in range(images):
        for channel in range(channels):
            b = bias[channel]
            for pixel in range(pixels):
                y[image, channel, pixel] = relu(y[image, channel, pixel] + b)


# %% checks="bias_relu"
given = np.arange(-12.0, 12.0).reshape(2, 3, 4), np.array([1.0, -2.0, 5.0])
added = given[0] + given[1][:, None]
by_image = np.maximum(given[0] + given[1][:2, None, None], 0)
asked = exercises.Checks("Bias and ReLU in one pass", bias_relu)
slips = {tuple(added.ravel()): "Apply relu to the sum as well"}
slips[tuple(by_image.ravel())] = "A bias belongs to a channel, not to an image"
goal = "2 images, 3 channels, 4 pixels"
right = np.maximum(added, 0).ravel()
asked.returns(goal, given, call=after, expected=right, mistakes=slips)
slips = {(48, 48): "You go through y twice: apply relu to the sum before you write it"}
goal = "24 numbers: 24 reads, 24 writes"
asked.returns(goal, given, call=visits, expected=[24, 24], mistakes=slips)
bias_relu = asked.settle()


# %% wrong="bias_relu" says="before you write it"
def bias_relu(y, bias, relu):
    for place in np.ndindex(y.shape):
        y[place] = y[place] + bias[place[1]]
    for place in np.ndindex(y.shape):
        y[place] = relu(y[place])


# %% wrong="bias_relu" says="not to an image"
def bias_relu(y, bias, relu):
    for place in np.ndindex(y.shape):
        y[place] = relu(y[place] + bias[place[0]])


# %% wrong="bias_relu" says="relu to the sum as well"
def bias_relu(y, bias, relu):
    for place in np.ndindex(y.shape):
        y[place] = y[place] + bias[place[1]]


# %% [markdown]
# Now on 50 MB, against PyTorch's own two passes in place. `mul_` by 1 reads and writes the tensor and does nothing else: that is about the least that a pass can take. (`numba.njit` compiles for the CPU, so this part and the next stay there, on one thread.)

# %%
compiled, textbook = numba.njit(bias_relu), numba.njit(relu)
y, bias = torch.randn(1000, 16, 28, 28), torch.full((16,), -1e-3)
numbers, biases = y.flatten(2).numpy(), bias.numpy()  # the memory of y and bias itself
expected = torch.relu(y + bias.view(1, -1, 1, 1))
compiled(numbers, biases, textbook)
assert torch.equal(y, expected)

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10]
in_place = helpers.predict(
    "In place on 50 MB, one thread: how many times as fast as add_, relu_ is one pass?", "x"
)
in_place

# %% tags=["run"]
column = bias.view(1, -1, 1, 1)
runs = {
    "add_, relu_": lambda: y.add_(column).relu_(),
    "yours": lambda: compiled(numbers, biases, textbook),
    "mul_": lambda: y.mul_(1.0),
}
with timing.fixed_threads(1):
    passes = timing.compare(runs, budget_s=2, device="cpu", precision=0.05)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="One pass in place of two is about twice as fast"
over = {name: passes.candidate(name).time_ratio for name in runs}
in_place.reveal(modelled=4 / 2, measured=1 / over["yours"])
print(f"yours over mul_: {over['yours'] / over['mul_']:.2f} times (measured)")

# %% tags=["look"]
sentence = "one pass takes less time than two"
timing.claim(sentence, over["yours"], at_most=0.8, evidence=passes)

# %% [markdown] tags=["explain"]
# Half the bytes, half the time. And your kernel takes about as long as `mul_`: both fit waiting for memory, not for the loop. So ten
# lines are enough.

# %% [markdown] tags=["slide"] minutes=1 headline="One NaN must not be hidden"
# ## Part 4: not a number
#
# - $0/0$, or $\infty - \infty$ after an overflow, is NaN
# - A sum with a NaN in it is NaN
# - One NaN in a weight: a training has failed
#
# Let one weight of the first layer be NaN. `logits` is the network of Part 1, with an activation of our choice.


# %%
def logits(net, images, activation):
    for each in net.convolutions:
        images = functional.max_pool2d(activation(each(images)), 2)
    return net.dense(images.flatten(1))


def activation_by(rule):
    rule = numba.njit(rule)

    def activation(y):
        compiled(y.flatten(2).numpy(), np.zeros(y.shape[1], np.float32), rule)
        return y

    return activation


# %%
images, labels = next(iter(helpers.make_MNIST_loader(100)))
ill = fused_bias.Convnet()
ill.convolutions[0].weight[0, 0, 0, 0] = float("nan")

# %% tags=["predict"]
not_numbers = helpers.predict(
    "100 digits, 1,000 logits: how many are NaN with your kernel and relu?", "logits"
)
not_numbers

# %% tags=["run"]
found = {"torch.relu": logits(ill, images, torch.relu)}
found["v if v > 0 else 0"] = logits(ill, images, activation_by(relu))

# %% tags=["look"]
not_numbers.reveal(counted=int(found["v if v > 0 else 0"].isnan().sum()))
for name, values in found.items():
    loss = float(functional.cross_entropy(values, labels))
    print(f"{name}: {int(values.isnan().sum()):,} of 1,000 are NaN, the loss is {loss:.1f}")

# %% [markdown] tags=["explain"]
# With NaN `v > 0` is false, so it becomes 0. The filter is dead, and nobody is told: the loss is that of any untrained network, as
# this one is, which guesses among ten ($\ln 10 = 2.3$). PyTorch's own `relu` lets NaN pass. Every output of the
# next convolution reads that channel, so every logit of every digit is NaN.
#
# The check of Part 3 had no NaN in it. Test a fused kernel on every case that the old operators handle: NaN and both infinities too.
#
# **Your turn**: one comparison, turned around.


# %% tags=["yours"] yours="keeps_nan"
def keeps_nan(v):
    """Return v where it is above 0 or NaN, else 0."""
    return 0.0 if v <= 0 else v


# %% checks="keeps_nan"
def in_words(function, *numbers):
    return [str(float(function(each))) for each in numbers]


asked = exercises.Checks("A ReLU that keeps NaN", keeps_nan)
given = (2.0, -3.0, float("nan"), float("inf"), float("-inf"))
slips = {
    ("2.0", "0.0", "0.0", "inf", "0.0"): "NaN > 0 is false, and so is NaN <= 0: use that",
    ("2.0", "-3.0", "nan", "inf", "-inf"): "What is below zero becomes 0",
}
right = ["2.0", "0.0", "nan", "inf", "0.0"]
goal = "2, -3, NaN and both infinities"
asked.returns(goal, given, call=in_words, expected=right, mistakes=slips)
keeps_nan = asked.settle()


# %% wrong="keeps_nan" says="and so is NaN <= 0"
def keeps_nan(v):
    return max(0.0, v)


# %% wrong="keeps_nan" says="below zero becomes 0"
def keeps_nan(v):
    return v if v != v else v + 0.0


# %% tags=["slide", "slide-output"] minutes=1 mark="v if v > 0" headline="A comparison that is turned round swallows NaN"
found["0 if v <= 0 else v"] = logits(ill, images, activation_by(keeps_nan))
rows = {name: [int(values.isnan().sum())] for name, values in found.items()}
pd.DataFrame(rows, index=["NaN among 1,000 logits"]).T

# %% [markdown] tags=["slide"] minutes=2 headline="The gain is one plus a ratio of times"
# ## Part 5: when does it pay?
#
# $$\frac{\text{three kernels}}{\text{one}} = 1 + \frac{t_{bytes}}{t_{convolution}}$$
#
# For one output the convolution does $2 \cdot 9 \cdot c$ [FLOP](glossary.md#flop), if it reads $c$ channels. Add and ReLU move four
# numbers of 4 bytes for it, whatever $c$ is.
#
# **Your turn.**


# %% tags=["yours"] yours="gain"
def gain(channels, flops_per_s, bytes_per_s):
    """Return three kernels' time over one's; the convolution of 3 x 3 reads ``channels``.

    It computes at ``flops_per_s``, the rest waits for memory; numbers have 4 bytes.
    """
    convolution_s = 2 * 9 * channels / flops_per_s
    rest_s = 4 * 4 / bytes_per_s
    return 1 + rest_s / convolution_s


# %% checks="gain"
asked = exercises.Checks("Three kernels over one", gain)
slips = {
    1.0: "One kernel takes the time of the convolution: the ratio is 1 and more",
    3.0: "A product and an addition are two operations",
    1.5: "Add and ReLU: each of them reads and writes",
    1.25: "Four numbers of 4 bytes each",
    0.5: "Three kernels over one, not the other way round",
}
goal = "1 channel, 18 GFLOP/s, 16 GB/s"
asked.returns(goal, (1, 18e9, 16e9), expected=2.0, mistakes=slips)
slips = {2.0: "The convolution's operations grow with the channels, the bytes do not"}
asked.returns("4 channels", (4, 18e9, 16e9), expected=1.25, mistakes=slips)
gain = asked.settle()


# %% wrong="gain" says="two operations"
def gain(channels, flops_per_s, bytes_per_s):
    return 1 + 16 / bytes_per_s / (9 * channels / flops_per_s)


# %% wrong="gain" says="each of them reads and writes"
def gain(channels, flops_per_s, bytes_per_s):
    return 1 + 8 / bytes_per_s / (18 * channels / flops_per_s)


# %% wrong="gain" says="the bytes do not"
def gain(_channels, flops_per_s, bytes_per_s):
    return 1 + 16 / bytes_per_s / (18 / flops_per_s)


# %% [markdown]
# Now let the first layer read 32 channels in place of one. Here is how fast the convolution alone computes, and how fast a copy
# moves bytes. (We measure the first rate and do not model it: of each number that it writes, the convolution has 32 times the work.)


# %% tags=["nbval-ignore-output"]
def flops_per_s(channels):
    alone_s = race(batch, channels).candidate("convolution").median_s
    return 2 * 9 * channels * batch * 16 * 28 * 28 / alone_s


bytes_per_s = 2 * (4 * batch * 16 * 28 * 28) / copy_s
for count in (1, 32):
    print(f"{count} read: {units.text(flops_per_s(count), 'FLOP/s')}")
print(f"copy: {units.text(bytes_per_s, 'B/s')}")

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 4]
many = helpers.predict("32 channels: how many times as long as one kernel do three take?", "x")
many

# %% tags=["run"]
sweep = (1, 3, 8, 32)
gains = {
    "modelled": [gain(count, flops_per_s(count), bytes_per_s) for count in sweep],
    "measured": [race(batch, count).candidate("separate").time_ratio for count in sweep],
}

# %% tags=["look", "nbval-ignore-output"]
many.reveal(modelled=gains["modelled"][-1], measured=gains["measured"][-1])
more = gain(256, flops_per_s(32), bytes_per_s)
print(f"256 channels, computed as fast as 32: {more:.2f} times (modelled)")

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="With more work for each output fusing gains less"
drawn = plotting.draw_curves(
    sweep,
    gains,
    unit="",
    title="16 filters of 3 x 3 on 1,000 images of 28 x 28",
    xlabel="channels that the convolution reads",
    ylabel="time of three kernels : one",
    size_unit="",
    log=False,
)
axes = drawn.axes[0]
for line in (axes.lines[0], drawn.legends[0].get_lines()[0]):
    line.set_marker("s")  # modelled at these four, and not between them
axes.axhline(1, color="#777777", linestyle="--")
axes.annotate("no gain", (1, 1), (0, 4), textcoords="offset points", color="#555555")
axes.set_ylim(bottom=0.9)
alt = "Three kernels over one falls towards 1 as the convolution reads more channels."
plotting.show(drawn, alt=alt)

# %% tags=["look"]
ends = [race(batch, 1), race(batch, 32)]
few, many_channels = (each.candidate("separate").time_ratio for each in ends)
sentence = "with 1 channel fusing speeds the layer up more than with 32"
timing.claim(sentence, few / many_channels, at_least=1.1, evidence=ends)

# %% [markdown] tags=["explain"]
# The bytes saved are the same; the gain shrinks towards 1, because the rest of the layer grows. Fusing pays where a result is large
# and little work was done for it. That is so with few channels. By the same count, not measured here, it is so in a 1 x 1 convolution
# of few channels, in a [depthwise convolution](glossary.md#depthwise-convolution), and among element-wise operators.
#
# The formula knows no price of a call. Take one digit in place of 1,000: its tensors fit into a cache.

# %% tags=["look", "nbval-ignore-output"]
one_digit = race(1, 1)
for name in ("separate", "fused"):
    print(f"{name}: {units.text(one_digit.candidate(name).median_s, 's')}")
of_many_s = race(batch, 1).candidate("fused").median_s / batch
print(f"fused, a digit of 1,000: {units.text(of_many_s, 's')}")

# %% [markdown] tags=["explain"]
# On the machine that printed this the one call takes longer than the three. In a batch of 1,000 it takes far less for a digit: so probably
# most of its time is a price of the call, paid once, and here there is little to save against it. (The three do not pay it: for one small
# image `conv2d` goes around oneDNN and takes PyTorch's own, older way, in a profile `_slow_conv2d_forward`.) Fewer bytes are always a
# promise; only the clock says whether it is kept.

# %% [markdown] tags=["slide"] minutes=1 headline="Profile the whole before you mend a part"
# ## Part 6: profile the whole
#
# - 100 digits go through the whole network
# - Convolutions, bias, ReLU, max pooling, a dense layer
# - Which takes the most time?
#
# Part 5 says what each layer gains; what else is there? Suppose that some operators took no time at all. The rest stays
# ([Amdahl's law](glossary.md#amdahls-law)).
#
# **Your turn.**


# %% tags=["yours"] yours="at_best"
def at_best(times_s, gone):
    """Return how many times as fast a program is if the operators named in gone take no time.

    ``times_s`` has the seconds of each operator by its name.
    """
    left_s = sum(time_s for name, time_s in times_s.items() if name not in gone)
    return sum(times_s.values()) / left_s


# %% checks="at_best"
asked = exercises.Checks("At best", at_best)
given = {"convolution": 5.0, "add": 2.0, "relu": 1.0}
slips = {
    8 / 3: "What is gone takes no time; divide by what is left",
    5 / 8: "Times as fast: the old time over the new one",
}
asked.returns("two operators gone", (given, ["add", "relu"]), expected=8 / 5, mistakes=slips)
asked.returns("none gone", (given, []), expected=1.0)
at_best = asked.settle()


# %% wrong="at_best" says="divide by what is left"
def at_best(times_s, gone):
    return sum(times_s.values()) / (sum(times_s[name] for name in gone) or 1)


# %% wrong="at_best" says="the old time over the new one"
def at_best(times_s, gone):
    left_s = sum(time_s for name, time_s in times_s.items() if name not in gone)
    return left_s / sum(times_s.values())


# %% [markdown]
# Write down which operator you expect at the top. Here is the network as written:

# %% tags=["run"]
images, labels = images.to(device), labels.to(device)
net = fused_bias.Convnet("separate").to(device)
profile = profiling.kernel_table(lambda: net(images), runs=20)
times_s = {row.name: row.total_s for row in profile.kernels if row.calls}

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Another operator takes the most time"
longest = sorted(times_s, key=times_s.get, reverse=True)[:5]
percent = {
    name.removeprefix("aten::"): 100 * times_s[name] / sum(times_s.values())
    for name in longest
}
drawn = plotting.draw_bars(percent, unit="", title="Forward pass of 100 digits")
drawn.axes[0].set_xlabel("share of the time (%)")
plotting.show(drawn, alt="Bars of the five operators that take the most time.")

# %% [markdown] tags=["explain"]
# (`clamp_min` is the ReLU.) On the machine that printed this more than half of the time is max pooling, which nobody had suspected. We
# fuse what we set out to fuse, the bias and the ReLU:

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 4]
network = helpers.predict(
    "With all three layers fused: how many times as fast is the forward pass?", "x"
)
network

# %% tags=["run"]
ladder = fused_bias.measure_ladder(
    images, labels, rungs=["separate", FUSED], model=net, budget_s=1
)
small_ones = [name for name in times_s if name.endswith(("::add", "::clamp_min"))]

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Three layers fused, and the network gains little"
network.reveal(modelled=at_best(times_s, small_ones), measured=ladder.rung(FUSED).speedup)
name = longest[0].removeprefix("aten::")
print(f"without {name}: {at_best(times_s, longest[:1]):.2f} times as fast (modelled)")

# %% [markdown] tags=["explain"]
# Far less than the layer of Part 2. That was no error: there we looked at the layer that we already suspected, at a large batch. The
# profile should have come first.
#
# Max pooling moves 1.75 times the bytes of its input, add and ReLU four times. It is slow because the processor often guesses wrongly
# which of two numbers is larger ([branch prediction](glossary.md#branch-prediction)): in [the
# appendix](appendix/18_fused_bias.ipynb) random numbers take about 2.7 times as long to pool as zeros. The appendix then makes the
# network several times as fast: bias, ReLU and pooling in one pass, tensors in [channels-last](glossary.md#channels-last) order, a
# whole layer in one kernel, and in it [Winograd's algorithm](glossary.md#winograds-algorithm).
#
# A profile is a fact about one program, one machine and one size. The is not yours.

# %% [markdown] headline="Some libraries fuse, others took years"
# ### Who fuses today?
#
# | year | |
# |---|---|
# | 2019 | PyTorch adds the bias itself, not in cuDNN |
# | 2020 | Julia's GPU library can fuse; Flux does not use it |
# | 2024 | Flux: bias and activation in place |
#
# PyTorch's own add was ["faster, especially for backward"](https://github.com/pytorch/pytorch/pull/31524). In 2020
# [CUDA.jl](https://github.com/JuliaGPU/CUDA.jl/pull/321) learned to call cuDNN's fused kernel. The pull request measured:

# %% tags=["slide", "slide-output"] minutes=1 mark="ResNet-50" headline="Fused networks as published: mostly faster, once slower"
published_ms = {"VGG-19": (263, 160), "Darknet-19": (120, 90)}
published_ms |= {"Darknet-53": (194, 164), "ResNet-50": (253, 285)}
rows = {
    name: [
        f"{before} ms (published)",
        f"{fused_ms} ms (published)",
        f"{before / fused_ms:.2f}",
    ]
    for name, (before, fused_ms) in published_ms.items()
}
pd.DataFrame(rows, index=["before", "fused", "times as fast"]).T

# %% [markdown] tags=["explain"]
# ResNet-50 became slower, which its author put down to memory and not to the kernel. Two pull requests that would have had Flux
# call it were closed without being merged ([1302](https://github.com/FluxML/Flux.jl/pull/1302),
# [1832](https://github.com/FluxML/Flux.jl/pull/1832)); one obstacle was that it had no gradient. In 2019 Flux's one pass for bias and
# activation wrote a new tensor; since 2024 [`bias_act!`](https://github.com/FluxML/Flux.jl/pull/2327) does it in place. That is the
# kernel that you wrote in Part 3.
#
# And `torch.compile`? It finds by itself what to fuse. In a recorded run, which the appendix shows, it made this network's forward pass
# 3.3 times as fast; the first result took 5 seconds.
#
# The [exercises](exercises/18_fused_bias_exercises.ipynb) have you count the bytes of any chain of kernels, fuse it, write the
# gradient of any broadcast, and fuse two operators of your own.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Fusing saves the bytes between kernels, and calls, not arithmetic.
# 2. It pays where a result is large and little work was done for it.
# 3. Profile the whole program first.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A convolution of 3 x 3 reads $c$ channels at $R$ FLOP/s and writes $y$ bytes; kernels that wait for memory move $W$ bytes a second.
#
# | quantity | formula |
# |---|---|
# | add, then ReLU, two kernels | $4 y$ bytes moved |
# | both in one pass | $2 y$ bytes moved |
# | both inside the convolution | $0$ bytes moved |
# | three kernels over one, numbers of 4 bytes | $1 + \frac{16}{W} \cdot \frac{R}{18 c}$ |
# | a share $s$ of the time removed | $\frac{1}{1 - s}$ times as fast |
