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
#     number: "20"
#     title: Convolution time
#     needs: ["02", "03", "15"]
#     objectives:
#       - write|wrote a convolution as one product of patches, and two outputs of it with four multiplications
#       - tell|told from its sizes which implementation computes a convolution
#       - fit|fitted costs to counts by relative errors, for networks that the fit has not seen
#       - compare|compared a published error with what it may be compared with
#       - judge|judged choices of algorithms by the time that they take
# ---

# %% [markdown] tags=["objectives"]
# # Convolution time
#
# Take eight networks, leave out [depthwise convolutions](glossary.md#depthwise-convolution), and count each shape once per network, and 201
# convolution layers remain. For each layer there are up to eight algorithms, which all give the same result, and two people must choose one.
# Anna always takes the same algorithm, without thinking. Ben has a model that predicts from the sizes of a layer how long each algorithm will
# take, and he takes the smallest prediction. A choice counts as *wrong* if it takes more than 10 % longer than the fastest algorithm. Anna is
# wrong in 19 layers, and Ben is wrong in only 11.
#
# Such a choice is made for every convolution that you call. If you set `torch.backends.cudnn.benchmark`, PyTorch times the algorithms on your GPU and
# keeps the fastest. But a compiler that compares thousands of variants, or a designer whose network does not exist yet, cannot measure everything.
# They need a prediction from the sizes alone. SEER, a study of 2021 ([its code](https://github.com/Vamix/seer-performance-model)), made one for seven
# algorithms of NVIDIA's library [cuDNN](glossary.md#cudnn), with an error of 14.71 % (published).
#
# We do the same for eight algorithms on one core of an Intel Xeon server, and at the end our error is put beside SEER's. All measured times in
# the text are from this core, in float32. The layers come from the eight networks, which read one image of 224 × 224 pixels, and 150 random
# layers were added, which makes 336 different shapes, because networks share some of them. Everything was timed twice, and a time is the shorter
# of the two unless we say otherwise.

# %% tags=["hide-input"]
import math

import numpy as np
import pandas as pd
import torch
from scipy.optimize import nnls
from torch.nn import functional as F

import helpers
from helpers import exercises, plotting, recorded
from helpers.studies import convolution_time as study

check = exercises.checks_of("convolution_time")
torch.set_num_threads(1)
ALGORITHM_NAMES = {
    "direct": "PyTorch's own call",
    "channels_last": "the same call, channels-last",
    "im2col": "im2col and a product",
    "shifted": "shifted products",
    "winograd_2": "Winograd, 2 x 2 outputs",
    "winograd_4": "Winograd, 4 x 4 outputs",
    "fft": "Fourier transform (FFT)",
    "nnpack": "NNPACK, a library",
}
recording = recorded.load("20-cpu")
times = recording.result("convolutions")
shapes, networks = times.shapes, times.network_shapes

# %% [markdown] tags=["slide"] minutes=2
# ## The bet
#
# Ben makes fewer mistakes than Anna. Does he also lose less time?
#
# - 201 layers, up to eight algorithms each
# - Anna always takes one algorithm, and is wrong in 19 layers
# - Ben takes the smallest prediction, and is wrong in 11
#
# Write down a number before you go on. Below 1 Ben is faster, above 1 Anna is.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 3]
bet = helpers.predict(
    "Over all 201 layers together, how many times as long as Anna's choices "
    "do Ben's choices take?",
    "x",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="An algorithm may multiply less than the definition"
# ## Part 1: counting multiplications
#
# How far does counting multiplications carry? We begin with the oldest model, [FLOP](glossary.md#flop) divided by a rate, because
# [lesson 02](02_compute_and_roofline.ipynb) has shown that it gives a least time.
#
# - The definition says how many multiplications a layer has
# - The fastest matrix product says how many run per second
# - An algorithm may do other and fewer multiplications
#
# One layer goes with us through the lesson. It is from ResNet-50, reads 64 channels of 56 × 56 values and has 64 filters of 3 × 3. Each of its
# 56 × 56 × 64 outputs is a sum of 64 × 9 products, which makes 115.6 million multiplications. With the additions that is 231 million FLOP. The fastest
# matrix product in our recording reached 182 GFLOP/s, so the layer should take 1.27 ms.

# %% tags=["hide-input", "run"]
layer = study.ConvolutionShape(1, 64, 56, 56, 64, kernel=3, stride=1, padding=1)
flops = np.array([shape.flops for shape in shapes])
direct_s = times.times_s("direct")
ran = np.array(times.programs("direct"))
product_rate = (flops / direct_s)[ran == "matrix product"].max()
print(recording.source)
print(f"fastest product: {product_rate / 1e9:.0f} GFLOP/s")
print(f"our layer: {layer.macs / 1e6:.1f} million multiplications")
least_ms = 1e3 * layer.flops / product_rate
print(f"{layer.flops / 1e6:.0f} million FLOP at this rate: {least_ms:.2f} ms")

# %% [markdown]
# How do algorithms turn a convolution into something else? The simplest is [im2col](glossary.md#im2col). It writes every 3 × 3 patch of the input as a
# column of a matrix, so that the convolution becomes one product of matrices. In exchange almost every value is copied nine times, since it lies in
# nine patches. The patches of our layer have 56 × 56 × 64 × 9 values, or 7.2 MB. They are written and read again, and with 1.8 MB for the input, the
# weights and the output this makes 16.2 MB.
#
# **Your turn.** `image.unfold(1, kernel, stride)` cuts the rows of an image (channels, height, width) into windows without copying, and a second
# `unfold` with dimension 2 cuts the columns. The result is (channels, rows, columns, kernel, kernel), where rows and columns count positions. Reorder
# the dimensions and `reshape`, which copies.


# %% tags=["yours"] yours="im2col" takes=6
def im2col(image, kernel, stride):
    """Return the patches as columns, (channels * kernel * kernel, positions)."""
    windows = image.unfold(1, kernel, stride).unfold(2, kernel, stride)
    return windows.permute(0, 3, 4, 1, 2).reshape(len(image) * kernel**2, -1)


# %% checks="im2col"
im2col = check(im2col)


# %% wrong="im2col" says="A window is a column here"
def im2col(image, kernel, stride):
    windows = image.unfold(1, kernel, stride).unfold(2, kernel, stride)
    return windows.permute(1, 2, 0, 3, 4).reshape(-1, len(image) * kernel**2)


# %% wrong="im2col" says="Reorder the dimensions first"
def im2col(image, kernel, stride):
    windows = image.unfold(1, kernel, stride).unfold(2, kernel, stride)
    return windows.reshape(len(image) * kernel**2, -1)


# %% wrong="im2col" says="The whole window of channel 0 comes first"
def im2col(image, kernel, stride):
    windows = image.unfold(1, kernel, stride).unfold(2, kernel, stride)
    return windows.permute(3, 4, 0, 1, 2).reshape(len(image) * kernel**2, -1)


# %% wrong="im2col" says="the cells below need torch.Tensor"
def im2col(image, kernel, stride):
    return F.unfold(image[None], kernel, stride=stride)[0].tolist()


# %% right="im2col" style=1
def im2col(image, kernel, stride):
    return F.unfold(image[None], kernel, stride=stride)[0]


# %% right="im2col" style=2
def im2col(image, kernel, stride):
    height, width = ((side - kernel) // stride + 1 for side in image.shape[1:])
    columns = []
    for row in range(height):
        for column in range(width):
            top, left = row * stride, column * stride
            patch = image[:, top : top + kernel, left : left + kernel]
            columns.append(patch.flatten())
    return torch.stack(columns, dim=1)


# %% tags=["run"]
image, filters = torch.randn(64, 56, 56), torch.randn(64, 64, 3, 3)
patches = im2col(F.pad(image, [1] * 4), kernel=3, stride=1)  # (64 * 9, 56 * 56)
outputs = (filters.flatten(1) @ patches).view(64, 56, 56)
assert torch.allclose(outputs, F.conv2d(image[None], filters, padding=1)[0], atol=1e-3)
print(f"your patches: {patches.nbytes / 1e6:.1f} MB, and one product gives the convolution")

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="im2col copies a pixel up to nine times"
plotting.show(
    study.draw_patches(5, 3, 12, title="5 x 5 pixels, and the patches of a 3 x 3 filter"),
    alt="25 pixels become a matrix of 9 x 9, in which pixel 12 stands nine times.",
)

# %% [markdown] tags=["explain"]
# [Winograd's algorithm](glossary.md#winograds-algorithm) multiplies less. A filter of three weights $g$ that moves along four elements $d$ gives two
# outputs, and the definition needs six multiplications for them. Winograd needs four, because it first adds and subtracts some of the values and
# weights.
#
# $$m_1 = (d_0 - d_2)\, g_0 \qquad m_2 = (d_1 + d_2)\, \frac{g_0 + g_1 + g_2}{2} \qquad m_3 = (d_2 - d_1)\, \frac{g_0 - g_1 + g_2}{2} \qquad m_4 = (d_1 - d_3)\, g_2$$
#
# **Your turn.** Compute the four products, and find the sums of them that are the outputs $d_0 g_0 + d_1 g_1 + d_2 g_2$ and
# $d_1 g_0 + d_2 g_1 + d_3 g_2$. The check counts multiplications by values of $d$. What is made of the weights alone is computed once per filter and
# not counted.


# %% tags=["yours"] yours="winograd" takes=8
def winograd(d, g):
    """Return the two outputs of the filter g (three weights) along d (four values)."""
    m1 = (d[0] - d[2]) * g[0]
    m2 = (d[1] + d[2]) * ((g[0] + g[1] + g[2]) / 2)
    m3 = (d[2] - d[1]) * ((g[0] - g[1] + g[2]) / 2)
    m4 = (d[1] - d[3]) * g[2]
    return m1 + m2 + m3, m2 - m3 - m4


# %% checks="winograd"
winograd = check(winograd)


# %% wrong="winograd" says="Six multiplications"
def winograd(d, g):
    return d[0] * g[0] + d[1] * g[1] + d[2] * g[2], d[1] * g[0] + d[2] * g[1] + d[3] * g[2]


# %% wrong="winograd" says="Multiply out m3"
def winograd(d, g):
    m1, m4 = (d[0] - d[2]) * g[0], (d[1] - d[3]) * g[2]
    m2 = (d[1] + d[2]) * ((g[0] + g[1] + g[2]) / 2)
    m3 = (d[2] - d[1]) * ((g[0] - g[1] + g[2]) / 2)
    return m1 + m2 + m3, m2 + m3 - m4


# %% wrong="winograd" says="Multiply out m4"
def winograd(d, g):
    m1, m4 = (d[0] - d[2]) * g[0], (d[1] - d[3]) * g[2]
    m2 = (d[1] + d[2]) * ((g[0] + g[1] + g[2]) / 2)
    m3 = (d[2] - d[1]) * ((g[0] - g[1] + g[2]) / 2)
    return m1 + m2 + m3, m2 - m3 + m4


# %% right="winograd" style=1
def winograd(d, g):
    outer, inner = (g[0] + g[2]) / 2, g[1] / 2
    products = [
        (d[0] - d[2]) * g[0],
        (d[1] + d[2]) * (outer + inner),
        (d[2] - d[1]) * (outer - inner),
        (d[1] - d[3]) * g[2],
    ]
    return [products[0] + products[1] + products[2], products[1] - products[2] - products[3]]


# %% right="winograd" style=2
def winograd(d, g):
    d0, d1, d2, d3 = d
    g0, g1, g2 = g
    summed = (d1 + d2) * (0.5 * (g0 + g1 + g2))
    differing = (d1 - d2) * (0.5 * (g0 - g1 + g2))
    first = (d0 - d2) * g0 + summed - differing
    return first, summed + differing - (d1 - d3) * g2


# %% [markdown]
# The larger version of the algorithm makes four outputs of a row with six multiplications. In both directions together it makes 4 × 4 outputs with
# 6 × 6 multiplications. The definition needs nine for each output.

# %% tags=["predict"] axis=[1, 10]
fewer = helpers.predict(
    "For 4 x 4 outputs of a 3 x 3 filter, how many times Winograd's 36 multiplications "
    "does the definition need?",
    "x",
)
fewer

# %% tags=["run"]
row, weights = torch.randn(10, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
pairs = [winograd(row[first : first + 4], weights) for first in (0, 2, 4, 6)]
convolved = F.conv1d(row[None, None], weights[None, None]).flatten()
assert np.allclose([float(output) for pair in pairs for output in pair], convolved)
work = {name: study.count_work(name, layer) for name in ALGORITHM_NAMES}

# %% tags=["look"]
fewer.reveal(
    modelled=4 * 4 * 9 / 6**2,
    counted=work["direct"].products / work["winograd_4"].products,
)

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Fewer multiplications move more bytes" numbers=[["PyTorch's own call +([\\d.]+) million", "million products, PyTorch's call (counted)"], ["PyTorch's own call +[\\d.]+ million +([\\d.]+ MB)", "moved by PyTorch's call (counted)"], ["Winograd, 4 x 4 outputs +([\\d.]+) million", "million products, Winograd (counted)"], ["Winograd, 4 x 4 outputs +[\\d.]+ million +([\\d.]+ MB)", "moved by Winograd (counted)"]]
rows = {}
for name, counts in work.items():
    is_counted = counts.products is not None
    rows[ALGORITHM_NAMES[name]] = (
        f"{counts.products / 1e6:.1f} million" if is_counted else "26.2 million (Part 3)",
        f"{counts.moved_bytes / 1e6:.1f} MB" if is_counted else "not counted",
        f"{1e3 * times.times_s(name)[shapes.index(layer)]:.4g} ms",
    )
columns = ["multiplications (counted)", "bytes moved (counted)", "time (measured)"]
pd.DataFrame(rows, index=columns).T.rename_axis("our layer")

# %% [markdown] tags=["explain"]
# The definition needs 16 × 9, or 144, which is four times as many. But in our layer our Winograd, which is made of PyTorch's operators, takes
# 1.5 times as long as PyTorch's own call, and it moves 34.2 MB, nearly 20 times as many bytes. The bytes are those that the operators read and
# write, but not what happens inside one operator. [Channels-last](glossary.md#channels-last) is a layout in memory, with all channels of a pixel
# next to each other. It is the algorithm that Anna always takes.
#
# Bytes are not the whole reason, because the shifted products, one matrix product for each of the nine places of a filter, move more and are as
# fast. We have not tested what else costs time. FFT moves 3.4 times as many bytes as Winograd and takes 66 times as long. (Its count of
# multiplications leaves out the transforms, but they alone do not explain this.) In our recording of this layer no algorithm that multiplies
# less beats channels-last. Your machine may have another order:

# %% tags=["run"]
here = study.collect([layer])

# %% tags=["hide-input", "look", "nbval-ignore-output"]
here_s = {ALGORITHM_NAMES[name]: here.times_s(name)[0] for name in here.algorithms}
print("our layer on your machine, a core:")
for name, seconds in here_s.items():
    text = f"{1e3 * seconds:8.2f} ms" if np.isfinite(seconds) else "   cannot run here"
    print(f"{name:30} {text}")

# %% [markdown]
# In other layers an algorithm that multiplies less does win. In a random layer with filters of 7 × 7, NNPACK was the fastest:

# %% tags=["hide-input", "look"]
nnpack_rates = flops / times.times_s("nnpack")
fastest = int(np.nanargmax(nnpack_rates))
sizes = f"{shapes[fastest].kernel} x {shapes[fastest].kernel}, stride {shapes[fastest].stride}"
print(f"NNPACK, {sizes}: {nnpack_rates[fastest] / 1e9:.0f} GFLOP/s by the definition's FLOP")
print(f"relative to the fastest product: {nnpack_rates[fastest] / product_rate:.2f}")

# %% [markdown] tags=["explain"]
# It reached 428 GFLOP/s, which is 2.35 times the rate of the fastest product, if we count the FLOP of the definition. No peak has been broken. NNPACK
# simply did fewer multiplications than the definition has.
#
# **To remember.** Count what an algorithm does, and not what the definition says. Winograd does a quarter of the multiplications here and moves 19 times
# the bytes, and it takes 1.5 times as long.
#
# So a model needs counts for each algorithm. But do we know what each of them does?

# %% [markdown] tags=["slide"] minutes=2 headline="One name may hide several implementations"
# ## Part 2: which implementation runs
#
# Which implementation runs when you call a convolution? Often we do not know, and this comes before any fitting, because a single name may hide several
# implementations.
#
# - PyTorch asks [oneDNN](glossary.md#onednn), or multiplies matrices itself
# - NNPACK uses Winograd, Fourier transforms or matrix products
# - The sizes of the layer decide
#
# [Lesson 15](15_co_design.ipynb) has shown how many layers of software choose for you, and PyTorch's own call is an example. On a CPU it either asks the
# library oneDNN, or it multiplies matrices itself. Its source code has a rule for one thread (`use_mkldnn` in `Convolution.cpp`). oneDNN is not asked if
# the filters are 1 × 1 with stride 1 and the batch has fewer than 16 images. It is not asked either for a single image of up to 20,480 values with
# filters up to 3 × 3.
#
# ResNet-50 has 53 convolutions. One is 7 × 7. Sixteen blocks have a 1 × 1, a 3 × 3 and a 1 × 1 each, and four more are 1 × 1 beside a block. Of all the
# 1 × 1, only three of these last four have stride 2. The inputs of the 3 × 3 have at least 25,088 values.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 60]
by_onednn = helpers.predict(
    "With one image, how many of the 53 convolutions of ResNet-50 does oneDNN compute?",
    "layers",
)
by_onednn


# %% [markdown]
# **Your turn.** Write the rule. A shape has the fields `batch`, `in_channels`, `height`, `width`, `kernel` and `stride`.


# %% tags=["yours"] yours="asks_onednn" takes=6
def asks_onednn(shape):
    """Return whether PyTorch asks oneDNN to compute this shape."""
    values = shape.batch * shape.in_channels * shape.height * shape.width
    is_small = shape.batch == 1 and values <= 20_480 and shape.kernel <= 3
    is_product = shape.kernel == 1 and shape.stride == 1 and shape.batch < 16
    return not is_small and not is_product


# %% checks="asks_onednn"
asks_onednn = check(asks_onednn)


# %% wrong="asks_onednn" says="With stride 2"
def asks_onednn(shape):
    values = shape.batch * shape.in_channels * shape.height * shape.width
    is_small = shape.batch == 1 and values <= 20_480 and shape.kernel <= 3
    return not is_small and (shape.kernel > 1 or shape.batch >= 16)


# %% wrong="asks_onednn" says="counts as small, too"
def asks_onednn(shape):
    values = shape.batch * shape.in_channels * shape.height * shape.width
    is_small = shape.batch == 1 and values < 20_480 and shape.kernel <= 3
    return not is_small and not (shape.kernel == 1 and shape.stride == 1 and shape.batch < 16)


# %% wrong="asks_onednn" says="With two images"
def asks_onednn(shape):
    is_small = shape.in_channels * shape.height * shape.width <= 20_480 and shape.kernel <= 3
    is_product = shape.kernel == 1 and shape.stride == 1 and shape.batch < 16
    return not is_small and not is_product


# %% right="asks_onednn" style=1
def asks_onednn(shape):
    if shape.kernel == 1 and shape.stride == 1:
        return shape.batch >= 16
    if shape.batch > 1 or shape.kernel > 3:
        return True
    return shape.in_channels * shape.height * shape.width > 20_480


# %% right="asks_onednn" style=2
def asks_onednn(shape):
    values = math.prod((shape.in_channels, shape.height, shape.width))
    wanted = [shape.kernel > 1 or shape.stride > 1 or shape.batch >= 16]
    wanted.append(shape.kernel > 3 or shape.batch > 1 or values > 20_480)
    return all(wanted)


# %% tags=["hide-input", "run"]
logged = {
    shape: " reorders" in implementation
    for shape, implementation in zip(shapes, ran, strict=True)
}
by_rule = sum(bool(asks_onednn(shape)) for shape in networks["resnet50"])
by_log = sum(logged[shape] for shape in networks["resnet50"])
agreeing = sum(bool(asks_onednn(shape)) == logged[shape] for shape in shapes)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="PyTorch computes 33 of 53 layers without oneDNN"
by_onednn.reveal(modelled=by_rule, counted=by_log)
print(f"the rule and oneDNN's log agree for {agreeing} of {len(shapes)} shapes")

# %% [markdown] tags=["explain"]
# It computes 20, namely the 7 × 7, sixteen 3 × 3 and three 1 × 1. The other 33 are plain matrix products. We compared the rule with oneDNN's own log, and
# they agreed for all 336 shapes of our recording.
#
# NNPACK hides even more. By its source code it uses Winograd's algorithm for 3 × 3 filters and Fourier transforms of small tiles for larger ones, but both
# only with stride 1. With stride 2 it multiplies matrices, and this is no detail. The layer with 428 GFLOP/s had filters of 7 × 7 and stride 1. The first
# layer of ResNet-50 has 7 × 7 and stride 2:

# %% tags=["hide-input", "look"]
stem = study.ConvolutionShape(1, 3, 224, 224, 64, kernel=7, stride=2, padding=3)
for shape in (shapes[fastest], stem):
    implementation = study.implementation_of("nnpack", shape)
    rate = nnpack_rates[shapes.index(shape)]
    print(f"NNPACK, 7 x 7, stride {shape.stride}: {implementation}, {rate / 1e9:.0f} GFLOP/s")

# %% [markdown] tags=["explain"]
# There NNPACK reached only 39 GFLOP/s (measured). A model that mixes the two must be wrong about both.
#
# SEER met the same difficulty on a GPU. One of cuDNN's matrix-product algorithms has three implementations, and the number of filters decides which one
# runs. SEER gave each of them a model of its own, and its authors advise: "make sure that you know the kernel names".
#
# **To remember.** Find out which implementation runs before you model its time. PyTorch's own call is oneDNN for 20 of ResNet-50's 53 layers and a matrix
# product for the other 33.
#
# We now know what runs and can count what it does. How do counts become milliseconds?

# %% [markdown] tags=["slide"] minutes=2 headline="A time is a sum of counts times costs"
# ## Part 3: from counts to a time
#
# How do counts become a time? We assume that each multiplication costs the same every time, and each byte as well, because then only a few costs are
# unknown, and measured times can supply them.
#
# - Count multiplications, bytes and calls
# - Each has a cost, which is never negative
# - Find the costs by least squares, on relative errors
#
# One decision is important. If you minimise errors in seconds, the longest layers decide everything, because their errors are the largest. We therefore
# minimise *relative* errors, as SEER does. The best costs make the sum of (modelled time / measured time − 1)² as small as possible.
#
# **Your turn.** `nnls(rows, targets)[0]` returns the costs, none of them negative, that bring `rows @ costs` as near as possible to `targets` by least
# squares. What must you do to `counts` (layers, kinds of count) and to the targets, so that it minimises relative errors?


# %% tags=["yours"] yours="fit_costs" takes=8
def fit_costs(counts, times_s):
    """Return the cost of one unit of each column of counts, none negative."""
    rows = counts / times_s[:, None]  # (layers, kinds of count)
    return nnls(rows, np.ones(len(times_s)))[0]


# %% checks="fit_costs"
fit_costs = check(fit_costs)


# %% wrong="fit_costs" says="errors in seconds"
def fit_costs(counts, times_s):
    return nnls(counts, times_s)[0]


# %% wrong="fit_costs" says="the mean of the costs"
def fit_costs(counts, times_s):
    return (times_s[:, None] / counts).mean(axis=0)


# %% wrong="fit_costs" says="is negative here"
def fit_costs(counts, times_s):
    return np.linalg.lstsq(counts / times_s[:, None], np.ones(len(times_s)), rcond=None)[0]


# %% wrong="fit_costs" says="after the fit"
def fit_costs(counts, times_s):
    rows = counts / times_s[:, None]
    return np.linalg.lstsq(rows, np.ones(len(times_s)), rcond=None)[0].clip(min=0)


# %% right="fit_costs" style=1
def fit_costs(counts, times_s):
    costs, _ = nnls(np.diag(1 / times_s) @ counts, np.ones_like(times_s))
    return costs


# %% right="fit_costs" style=2
def fit_costs(counts, times_s):
    rows = [row / seconds for row, seconds in zip(counts, times_s, strict=True)]
    return list(nnls(np.array(rows), [1.0] * len(rows))[0])


# %% tags=["hide-input", "look", "nbval-ignore-output"]
two_counts = np.column_stack([np.ones(len(flops)), flops / flops.max()])
average_errors = {}
for label, costs in {
    "errors in seconds": nnls(two_counts, direct_s)[0],
    "relative errors (yours)": np.asarray(fit_costs(two_counts, direct_s)),
}.items():
    average_errors[label] = study.errors(two_counts @ costs, direct_s).mape_share
    print(f"fitted to {label}: {100 * average_errors[label]:.0f} % off on average")
assert average_errors["relative errors (yours)"] < 0.5 * average_errors["errors in seconds"]

# %% [markdown] tags=["explain"]
# We tried both with only two counts, the call and its FLOP, for PyTorch's own call. Fitted to errors in seconds, the average error over all 336 shapes was
# 81 % of the measured time, because the short layers had no weight. Fitted to relative errors it was 22 %.
#
# Our model has about ten counts per algorithm, such as multiplications, bytes of the input, of the weights and of the patches. Here is what it says about
# our layer, with your `fit_costs`. All shapes of ResNet-50 were kept out of the fit.

# %% tags=["hide-input", "run"]
splits = study.hold_out_networks(shapes, networks)
without_resnet50 = next(split for split in splits if split.held_out == "resnet50")
parts = {
    name: study.explain_time(times, without_resnet50, name, layer, fit_costs=fit_costs)
    for name in ("channels_last", "im2col", "nnpack")
}

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Copies and transforms may cost more than multiplying" numbers=[["im2col and a product +[\\d.]+ million +([\\d.]+ ms)", "im2col, multiplying (modelled)"], ["im2col and a product +[\\d.]+ million +[\\d.]+ ms +([\\d.]+ ms)", "im2col, everything else (modelled)"], ["NNPACK, a library +[\\d.]+ million +([\\d.]+ ms)", "NNPACK, multiplying (modelled)"], ["NNPACK, a library +[\\d.]+ million +[\\d.]+ ms +([\\d.]+ ms)", "NNPACK, everything else (modelled)"]]
rows = {}
for name, mine in parts.items():
    multiplying = [part for part in mine if part.count in study.MULTIPLICATIONS]
    amounts = {part.count: part.amount for part in multiplying}
    total_s = sum(part.time_s for part in mine)
    multiplying_s = sum(part.time_s for part in multiplying)
    rows[ALGORITHM_NAMES[name]] = (
        f"{amounts.get('products of tiles', amounts['macs']) / 1e6:.1f} million",
        f"{1e3 * multiplying_s:.2f} ms",
        f"{1e3 * (total_s - multiplying_s):.2f} ms",
        f"{1e3 * total_s:.2f} ms",
        f"{1e3 * times.times_s(name)[shapes.index(layer)]:.2f} ms",
    )
columns = ["multiplications", "multiplying", "everything else", "sum (modelled)", "measured"]
pd.DataFrame(rows, index=columns).T.rename_axis("our layer")

# %% tags=["hide-input", "look", "nbval-ignore-output"]
counts = {part.count: part.amount for mine in parts.values() for part in mine}
rows = {
    count: (
        f"{amount:,.0f}",
        *(
            next(
                (f"{1e3 * part.time_s:.2f}" for part in mine if part.count == count),
                "not counted",
            )
            for mine in parts.values()
        ),
    )
    for count, amount in counts.items()
}
columns = ["amount", *(f"{ALGORITHM_NAMES[name]}, ms" for name in parts)]
pd.DataFrame(rows, index=columns).T.rename_axis("count")

# %% [markdown] tags=["explain"]
# For im2col, 2.59 of the 2.64 ms are the cost of the patches. NNPACK makes 6 × 6 outputs at once with 8 × 8 multiplications, so it cuts our 56 × 56
# outputs into 10 × 10 tiles. These need 100 × 64 multiplications for each of 64 × 64 pairs of channel and filter, or 26.2 million. By the fit they take
# little time, but the transforms and copies around them take twice as long. (A fit can shift cost between counts that grow together, so trust its sums
# more than its parts.)
#
# Such a sum is enough for one core. On a GPU SEER needed one idea more. From [lesson 03](03_how_a_gpu_runs_a_kernel.ipynb) you know that a
# [GPU kernel](glossary.md#gpu-kernel) is cut into blocks, and that a GPU holds only a certain number of blocks at a time. The others form the next
# [wave of blocks](glossary.md#wave-of-blocks). SEER's TITAN Xp has 30 [multiprocessors](glossary.md#multiprocessor), and by its script each of them holds four blocks
# of the implementation that serves our layer, so a wave has 120. A block computes 64 filters at 128 positions. Four images of our layer have 4 × 56 × 56
# positions, which fill 98 blocks, and five images need 123.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 5] headline="Four images need 98 blocks, five need 123, and a wave has 120"
one_image_more = helpers.predict(
    "If every wave takes the same time, how many times as long as four images "
    "do five images take?",
    "x",
)
one_image_more


# %% tags=["run"]
def blocks_of(images):
    positions = images * 56 * 56
    return math.ceil(positions / 128) * math.ceil(64 / 64)  # tiles of positions x of filters


waves = {images: math.ceil(blocks_of(images) / 120) for images in range(1, 21)}

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Three blocks more start a second wave"
one_image_more.reveal(modelled=waves[5] / waves[4])

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Whole waves make the time jump"
plotting.show(
    study.draw_waves(
        list(waves),
        [blocks_of(images) for images in waves],
        resident=120,
        title="Our layer on a TITAN Xp, 120 blocks at a time (modelled)",
    ),
    alt="The time jumps by a wave at 5, 10, 15 and 20 images; the FLOP grow along a line.",
)

# %% [markdown] tags=["explain"]
# By this count they take twice as long, because three blocks have to start a second wave. SEER counts whole waves for one class of GPU kernels,
# those that keep the arithmetic units busy. For a second class, which keeps the memory busy, it counts a part of a wave as a part. The third
# class does neither, and its formula contains both terms. A small decision tree predicts the class of a layer. The bytes that a block fetches
# from memory depend on the [caches](glossary.md#cache) and are hard to count, so other trees learn them from a profiler. The rest is computed by
# formulas with fitted costs. (SEER itself measured only batches of 128 images. With those our layer has 3,136 blocks, or 26.1 waves, and
# rounding up to 27 adds 3 %.)
#
# **To remember.** A time is counts times costs, fitted on relative errors, for each implementation. On a GPU also count waves, since 98 blocks take one wave
# of 120 and 123 blocks take two.
#
# The sums look good for one layer. How wrong are they in general?

# %% [markdown] tags=["slide"] minutes=2 headline="Keep out whole networks, and say which error you mean"
# ## Part 4: how wrong is the model?
#
# How large is the error for layers that the model has not seen? This question needs some care, because two decisions can flatter a model.
#
# - The choice of the test, because networks repeat their layers
# - The choice of the measure, because large errors count differently
#
# One is the choice of the test. ResNet-50's 53 convolutions have only 23 different shapes, so if you put 16 of the 53 aside at random, many of them have a
# twin among those that you fitted:

# %% tags=["hide-input", "look"]
twins = [study.random_split(networks["resnet50"], seed=seed).leaked for seed in range(1000)]
print(
    f"of 16 layers put aside, {np.mean(twins):.1f} have a twin that was fitted (mean of 1,000)"
)

# %% [markdown] tags=["explain"]
# On average 11.8 of the 16 have one (counted). We therefore keep out a whole network, and remove its shapes everywhere.
#
# The other is the choice of the measure. SEER's 14.71 % is an [RMSPE](glossary.md#rmspe), the root of the mean squared percentage error.

# %% tags=["predict"] axis=[1, 100]
one_bad = helpers.predict(
    "If 99 of 100 predictions are exact and one is three times the measured time, "
    "how large is the RMSPE?",
    "%",
)
one_bad

# %% tags=["run"]
one_of_hundred = study.errors([1.0] * 99 + [3.0], [1.0] * 100)

# %% tags=["look"]
one_bad.reveal(modelled=100 * math.sqrt(2**2 / 100), counted=100 * one_of_hundred.rmspe_share)

# %% [markdown] tags=["explain"]
# The one error is 200 %, or 2. Its square divided by 100 is 0.04, and the root of that is 0.2, so the RMSPE is 20 %. The plain average of the errors would
# be only 2 %.
#
# Your `fit_costs` now makes the table of all errors, for three models. The first counts calls and FLOP only. The second has all counts and tells oneDNN from
# the matrix products, but it treats NNPACK as one implementation. The third splits NNPACK as in Part 2, and also counts the tiles of NNPACK and Winograd,
# the calls of the shifted products and the bytes of FFT's transforms.


# %% tags=["run"]
def modelled_s(counting):
    """Return the modelled seconds of each network's shapes, its own kept out of the fit."""
    predictions = [
        study.predict_times(times, split, counting, fit_costs=fit_costs) for split in splits
    ]
    return np.concatenate(predictions)  # (layers, algorithms)


layers = [index for split in splits for index in split.test]  # 201 places in shapes
measured_s = np.column_stack([times.times_s(name)[layers] for name in times.algorithms])
models = {counting: modelled_s(counting) for counting in study.COUNTINGS}


# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=3 headline="Counts by implementation cut FLOP's error by over two thirds" numbers=[["predictions together +([\\d.]+ %)", "error from FLOP alone (measured)"], ["predictions together +[\\d.]+ % +([\\d.]+ %)", "from all counts (measured)"], ["predictions together +[\\d.]+ % +[\\d.]+ % +([\\d.]+ %)", "from counts by implementation (measured)"]]
def rmspe(predicted_s, known_s):
    is_known = np.isfinite(known_s)
    return 100 * study.errors(predicted_s[is_known], known_s[is_known]).rmspe_share


rows = {}
for name in ALGORITHM_NAMES:
    column = times.algorithms.index(name)
    errors = [rmspe(model[:, column], measured_s[:, column]) for model in models.values()]
    rows[ALGORITHM_NAMES[name]] = [f"{error:.1f} %" for error in errors]
predictions = np.isfinite(measured_s).sum()
pooled = [rmspe(model, measured_s) for model in models.values()]
assert 12 < pooled[2] < 14.7 < pooled[1] < 0.5 * pooled[0]
rows[f"all {predictions:,} predictions together"] = [f"{error:.1f} %" for error in pooled]
pd.DataFrame(rows, index=list(models)).T.rename_axis("RMSPE, eight networks kept out")

# %% tags=["hide-input", "look"]
ratios = models["by implementation"] / measured_s
named_ratios = {
    label: ratios[:, times.algorithms.index(name)] for name, label in ALGORITHM_NAMES.items()
}
plotting.show(
    study.draw_ratios(named_ratios, title="Networks kept out of the fit"),
    alt="Rows of points around 100 %: im2col's lie closest, FFT's go from half to twice.",
)

# %% tags=["hide-input", "look", "nbval-ignore-output"]
first_s, second_s = (
    np.column_stack([times.times_s(name, of=which)[layers] for name in times.algorithms])
    for which in ("first", "second")
)
passes_rmspe = rmspe(second_s, first_s)
print(f"second pass as a prediction of the first: RMSPE {passes_rmspe:.1f} %")
assert 6.6 < passes_rmspe < 6.8
drawn_errors = []
all_s = np.column_stack([times.times_s(name) for name in times.algorithms])
for seed in range(3):
    at_random = study.random_split(shapes, seed=seed)
    predicted_s = study.predict_times(
        times, at_random, "by implementation", fit_costs=fit_costs, shortest_s=1e-3
    )
    known_s = np.where(all_s[at_random.test] > 1e-3, all_s[at_random.test], np.nan)
    drawn_errors.append(f"{rmspe(predicted_s, known_s):.0f} %")
print(f"30 % of the shapes at random, times above 1 ms: {', '.join(drawn_errors)}")

# %% [markdown] tags=["explain"]
# We chose the counts of the third model by what each algorithm does and by their errors on the random layers, but we saw the errors on the
# networks as well while we chose among variants, so the networks are a test that has been looked at. The two passes themselves differ by an
# RMSPE of 6.7 %, so a part of every model's error is noise.
#
# Now we can put the figures side by side. It would be easy to say that our 9.9 % for PyTorch's own call is better than SEER's 14.71 %. But that
# is one algorithm against seven. SEER's error is over all predictions together (by its code), so 13.0 % is the number to compare. Even that is
# another task. SEER predicted GPU kernels on a TITAN Xp and a TITAN V, for a grid of sizes with 128 images. It kept only times from 1 ms to 1 s,
# and put a random 30 % aside as the test. (It also predicted whole networks, for which it reports an error of up to 1.79 % for one iteration.)
# If we too put 30 % aside at random and keep only times above 1 ms, our error is 23 to 27 % (three draws), and we have not tested which of the
# two conditions makes it so large. So by SEER's recipe our model does worse than SEER. A newer study (Li, Sun and Jog, 2023) also fits costs to
# counts for each GPU kernel, and reports an error of 7 % for new networks (published).
#
# **To remember.** Keep out whole networks and say which error you mean. Pooled over eight algorithms the FLOP alone miss by 46 %, counts by 19 %, and counts
# for the right implementation by 13 %.
#
# FFT has the largest error and NNPACK had the second largest. Which of the two harms the choice?

# %% [markdown] tags=["slide"] minutes=2 headline="A wrong choice costs the time that it adds"
# ## Part 5: what a wrong choice costs
#
# What does a wrong choice cost? We ask this last, because a prediction is worth only as much as the decision that it leads to.
#
# - Predict every algorithm that can compute the layer
# - Take the one with the smallest prediction
# - Add up what the choices take
#
# FFT harms nobody. It can compute 180 of the 201 layers, and in each of them it takes at least 24 times as long as the fastest algorithm, so even its large
# errors never make it look attractive. NNPACK is often close to the fastest, and so its errors decide.
#
# Ben's model is the second, with all counts. We judge by the second pass, since a choice should not be judged by the times that it was made from. You may
# change your bet in your mind before you look.


# %% tags=["run"]
def smallest(model):
    """Return the column of the smallest prediction for each layer."""
    return np.where(np.isfinite(second_s), model, np.inf).argmin(axis=1)


choices = {
    "always PyTorch's own call": np.full(len(layers), times.algorithms.index("direct")),
    "Anna, always channels-last": np.full(
        len(layers), times.algorithms.index("channels_last")
    ),
    "Ben, all counts": smallest(models["all counts"]),
    "the model by implementation": smallest(models["by implementation"]),
}
taken_s = {who: second_s[np.arange(len(layers)), columns] for who, columns in choices.items()}
fastest_s = np.nanmin(second_s, axis=1)  # (layers,)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Fewer mistakes, and a longer time"
anna_s, ben_s = taken_s["Anna, always channels-last"], taken_s["Ben, all counts"]
assert 1.03 < ben_s.sum() / anna_s.sum() < 1.07
bet.reveal(measured=ben_s.sum() / anna_s.sum())

# %% tags=["hide-input", "look", "nbval-ignore-output"]
fft_s = second_s[:, times.algorithms.index("fft")]
slowdown = np.nanmin(fft_s / fastest_s)
print(f"FFT: {np.isfinite(fft_s).sum()} layers, at least {slowdown:.0f} times the fastest")
for who, seconds in {"Anna": anna_s, "Ben": ben_s}.items():
    wrong = (seconds > 1.1 * fastest_s).sum()
    assert wrong == 19 if who == "Anna" else 9 <= wrong <= 13
    lost_s = (seconds - fastest_s).sum()
    spent = f"{1e3 * lost_s:.1f} ms lost, {1e3 * seconds.sum():.1f} ms in all"
    print(f"{who}: {wrong} wrong, {spent}")
print(f"the fastest: {1e3 * fastest_s.sum():.1f} ms")
keys = [(split.held_out, index) for split in splits for index in split.test]
row_of = {key: row for row, key in enumerate(keys)}
of_stem = [row for row, index in enumerate(layers) if shapes[index] == stem]
columns = [times.algorithms.index(name) for name in ("nnpack", "channels_last")]
at = row_of["resnet50", shapes.index(stem)]
expected_ms, truly_ms = 1e3 * models["all counts"][at, columns], 1e3 * second_s[at, columns]
print(f"first layer of ResNet-50 and {len(of_stem) - 1} others, NNPACK and channels-last:")
print(f"expected by Ben: {expected_ms[0]:.2f} and {expected_ms[1]:.2f} ms")
print(f"measured: {truly_ms[0]:.3f} and {truly_ms[1]:.3f} ms")

# %% [markdown] tags=["explain"]
# Ben's choices take 1.05 times as long as Anna's. Look at his 11 wrong choices. His model takes NNPACK for a single implementation. For the first layer of
# ResNet-50, with stride 2, it promises 1.33 ms. Channels-last would take 1.47 ms by the same model, so Ben takes NNPACK. In truth NNPACK takes 6.105 ms, and
# channels-last takes 1.361 ms. This shape is the first layer of four of the eight networks, so it is four of Ben's 11 wrong choices, and they cost him
# 4 × 4.744, or 19.0 ms.
#
# The fastest algorithms need 206.1 ms for all 201 layers. Ben loses 25.2 ms, three quarters of it by this one shape, and needs 231.3 ms. Anna
# loses 13.6 ms by her 19 mistakes and many smaller losses, and needs 219.7 ms. If the shape counted only once, and not for each of the four
# networks, Ben would need 213.0 ms and Anna 215.6, so this one shape decides the bet.
#
# A count of mistakes cannot see this, because it treats a loss of 11 % like one of 350 %. The [regret](glossary.md#regret) can. It is the total time of what
# you chose, divided by the total time of the fastest.
#
# **Your turn.** `times_s` has a row for each layer and a column for each algorithm, with NaN where an algorithm cannot compute the layer, and `chosen` has a
# column for each row.


# %% tags=["yours"] yours="regret" takes=5
def regret(times_s, chosen):
    """Return the total time of the chosen columns over the total time of the fastest."""
    taken = times_s[np.arange(len(chosen)), chosen]
    return taken.sum() / np.nanmin(times_s, axis=1).sum()


# %% checks="regret"
regret = check(regret)


# %% wrong="regret" says="the mean of the ratios"
def regret(times_s, chosen):
    taken = times_s[np.arange(len(chosen)), chosen]
    return (taken / np.nanmin(times_s, axis=1)).mean()


# %% wrong="regret" says="the fastest of each row"
def regret(times_s, chosen):
    taken = times_s[np.arange(len(chosen)), chosen]
    return taken.sum() / np.nanmin(times_s.sum(axis=0))


# %% wrong="regret" says="1 for perfect choices"
def regret(times_s, chosen):
    taken = times_s[np.arange(len(chosen)), chosen]
    return taken.sum() / np.nanmin(times_s, axis=1).sum() - 1


# %% right="regret" style=1
def regret(times_s, chosen):
    taken = sum(row[column] for row, column in zip(times_s, chosen, strict=True))
    return taken / sum(np.nanmin(row) for row in times_s)


# %% right="regret" style=2
def regret(times_s, chosen):
    taken = np.take_along_axis(times_s, np.asarray(chosen)[:, None], axis=1)
    return np.sum(taken) / np.where(np.isnan(times_s), np.inf, times_s).min(axis=1).sum()


# %% [markdown]
# Anna's regret is 219.7 / 206.1, or 1.07, and Ben's is 231.3 / 206.1, or 1.12. Without the 19.0 ms Ben would need 212.3 ms, a regret of 1.03. The third
# model knows what NNPACK runs, and counts its tiles.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1.2] headline="Regret is the time of your choices over the least time"
by_implementation = helpers.predict(
    "With the third model, which knows what NNPACK runs, what is the regret?", "x"
)
by_implementation

# %% tags=["run"]
third_regret = regret(second_s, choices["the model by implementation"])
assert 1 <= third_regret < 1.03

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Knowing the implementation mends the choice"
by_implementation.reveal(measured=third_regret)

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Fewer mistakes do not mean less regret"
rows = {
    who: (
        f"{100 * (taken_s[who] <= 1.1 * fastest_s).mean():.0f} %",
        f"{regret(second_s, columns):.3f}",
    )
    for who, columns in choices.items()
}
table = pd.DataFrame(rows, index=["within 10 % of the fastest", "regret"]).T
table.rename_axis("choice, 201 layers")

# %% tags=["hide-input", "look", "nbval-ignore-output"]
stem_ms = 1e3 * models["by implementation"][of_stem, times.algorithms.index("nnpack")]
print(f"first layer, NNPACK: {stem_ms.min():.2f} to {stem_ms.max():.2f} ms (modelled)")
rows = {}
for name, calls in networks.items():
    mine = [row_of[name, shapes.index(shape)] for shape in calls]
    rows[name] = [1e3 * seconds[mine].sum() for seconds in (*taken_s.values(), fastest_s)]
rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
columns = [*(who.split(",")[0] for who in choices), "fastest"]
pd.DataFrame(rows, index=columns).T.map("{:.1f}".format).rename_axis("all convolutions, ms")

# %% [markdown] tags=["explain"]
# The better model comes down to 1.007, since counting NNPACK's tiles repairs some smaller mistakes as well. In the first layer it expects 5.5 ms from NNPACK,
# which is still 10 % too short, but enough to choose channels-last. (A regret hangs on few layers. If NNPACK keeps the second model's counts beside those
# of its tiles, its error is nearly the same, but one layer of VGG-16 goes wrong and the regret is 1.02.)
#
# SEER judged its choices by the rule of 10 % and reports an error rate that is 7.14 % lower than that of cuDNN's own choice (published). In its code that
# choice is cuDNN's quick heuristic, and not the search that measures. Our counterpart is PyTorch's own call, which may not change the layout and is wrong in
# 32 % of the layers, against 2 % for the model. SEER reports no regret, so we cannot say whether its mistakes were expensive.
#
# What is it worth in whole networks? If we add up their convolutions, with every repetition but without depthwise ones, PyTorch's own call takes 361.5 ms, channels-last 336.5 ms,
# our model's choices 320.4 ms and the fastest 318.2 ms. Of the 16 ms between channels-last and the model, 15 come from VGG-16. In the other seven networks
# the model gains at most 3 % over channels-last. (No whole network was run, and changing the layout between layers would cost extra.)
#
# **To remember.** Judge choices by their total time. Ben was wrong less often than Anna, in 11 layers instead of 19, and had a regret of 1.12 instead of
# 1.07.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. Find the implementation that runs.
# 2. Test on networks that were not fitted.
# 3. Judge choices by their total time.
#
# Ben's choices take 231.3 / 219.7, or 1.05 times as long as Anna's, although he makes 11 mistakes and she makes 19. Four of his mistakes are the
# same shape, and these four cost more than all of hers. Half of the fall in our model's error came from a fact about a library, namely that
# NNPACK runs something else with stride 2. Splitting NNPACK brought the pooled error from 19.2 to about 16 %, the other counts brought it to
# 13.0 %, and the regret fell from 1.12 to 1.007.
#
# If you can measure, measure. To time all algorithms twice for our 336 shapes took 440 s.
#
# The [exercises](exercises/20_convolution_time_exercises.ipynb) count FLOP and reads, cut a kernel into blocks, and end with the time of a convolution of
# your own.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A convolution of $c$ channels, $o$ filters, kernel side $k$, stride $s$ and $p$ positions, all images together. Measured times $t$ in seconds, modelled ones
# $\hat t$, counts $n_i$ with costs $a_i$. A GPU of $M$ multiprocessors, each with room for $r$ of the $L$ blocks.
#
# | quantity | formula |
# |---|---|
# | FLOP | $2\,p\,o\,c\,k^2$ |
# | values of im2col over those of the input | about $(k/s)^2$ |
# | multiplications saved by Winograd, $m \times m$ outputs, $k = 3$ | $\left(\frac{3m}{m+2}\right)^2$ |
# | modelled time | $\hat t = \sum_i a_i n_i$, with the least $\sum (\hat t/t - 1)^2$ and no $a_i < 0$ |
# | RMSPE | root of the mean of $(\hat t/t - 1)^2$ |
# | regret | time of the chosen / time of the fastest, in total |
# | waves | $\lceil L / (r\,M) \rceil$ |
