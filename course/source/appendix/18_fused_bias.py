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
#     title: "Fused bias: the gradient, the pooling, the profile"
# ---

# %% [markdown]
# # Fused bias: the gradient, the pooling, the profile
#
# [Lesson 18](../18_fused_bias.ipynb) leaves four questions open:
#
# - Which of several programs computes the gradient of a bias fastest, and how much of a training step is it?
# - Did bytes take the time of the small kernel in each version of the example, and in its shortest and longest calls?
# - Why does max pooling take more time than the convolutions, and what makes the network several times as fast?
# - Who fuses today, and who does not?

# %%
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

import helpers
from helpers import plotting, profiling, recorded, timing, units
from helpers.studies import fused_bias

torch.manual_seed(0)
allocator = helpers.steady_allocator()

# %% [markdown]
# ## The gradient of a bias
#
# $$y_{nchw} = x_{nchw} + b_c \quad\Rightarrow\quad \frac{\partial L}{\partial b_c} = \sum_{n,h,w} \frac{\partial L}{\partial y_{nchw}}$$
#
# Forward, $b_c$ is copied to every image and pixel of its channel: it is *broadcast*. If it grows by a little, all these outputs grow by as
# much, and the loss changes by the sum of what each of them does to it. So the gradient of a broadcast is a sum over the places to
# which it was copied. (And the gradient of a sum is a broadcast.)

# %%
grad = torch.randint(-8, 9, (4, 3, 5, 5)).float()
b = torch.zeros(3, requires_grad=True)
(torch.zeros(4, 3, 5, 5) + b.view(1, -1, 1, 1)).backward(grad)
print("autograd:", b.grad.tolist())
print("the sum: ", grad.sum((0, 2, 3)).tolist())

# %% [markdown]
# This sum was the first question of the issue. Its title is "Bottleneck in mapreducedim", the name of Julia's general reduction on a GPU, which was
# [known to be slow](https://github.com/avik-pal/DeepLearningBenchmarks/issues/1): a function with two sums took 239 ms with it, and 43 ms in Knet, another
# library of the same language ([CuArrays 141](https://github.com/JuliaGPU/CuArrays.jl/issues/141), 2018). In 2020 it was
# [written anew](https://github.com/JuliaGPU/CuArrays.jl/pull/602). It was not the only one: in 2019 one case of TensorFlow's own kernel for this gradient
# came from 242 to 41 ms on a CPU, once it ran on a pool of threads ([26426](https://github.com/tensorflow/tensorflow/pull/26426)).
#
# 25 MB of gradient become 16 numbers. Hardly anything is written, all is read. Five programs for it, all with the same result:
#
# - "per image" is a loop over the images that adds up their sums;
# - "sum" is `grad.sum((0, 2, 3))`, what autograd does for a broadcast;
# - "two-step" sums each plane, then the images: `grad.sum((2, 3)).sum(0)`;
# - "ones" multiplies each plane by a vector of ones, so that a library's matrix product does the adding;
# - "one-pass" is a C++ kernel of this course.

# %%
whole = torch.randint(
    -8, 9, (20, 16, 28, 28)
).float()  # whole numbers add up exactly in any order
missing_kernel = fused_bias.missing("one-pass", "cpu")
names = [name for name in fused_bias.REDUCTIONS if name != "one-pass" or not missing_kernel]
sums = [fused_bias.reduction(name)(whole) for name in names]
assert all(torch.equal(total, sums[0]) for total in sums)

# %%
slowest = helpers.predict(
    "All read the same 25 MB: how many times as long as the fastest does the slowest take?",
    "x",
)
slowest

# %%
shape = (500, 16, 28, 28)
limits = helpers.probe()
reductions = fused_bias.measure_reductions(shape, device="cpu", budget_s=2)
medians_s = {row.name: row.median_s for row in reductions.candidates}
read_s = 4 * 500 * 16 * 28 * 28 / fused_bias.bandwidth_at(limits, 25e6, by="read")

# %% tags=["nbval-ignore-output"]
slowest.reveal(modelled=1, measured=max(medians_s.values()) / min(medians_s.values()))

# %%
figure = plotting.draw_three(
    list(medians_s),
    {"modelled": [read_s] * len(medians_s), "measured": list(medians_s.values())},
    unit="s",
    title="Bias gradient of 25 MB; modelled: reading it once",
    xlabel="program",
)
plotting.show(figure, alt="Times of five programs beside the time of reading 25 MB once.")

# %%
sentence = "with the same bytes the slowest program takes longer"
ratio = max(medians_s.values()) / min(medians_s.values())
timing.claim(sentence, ratio, at_least=1.5, evidence=reductions)

# %% [markdown]
# The bytes are a lower bound. On the machine that printed this, four programs take 1.4 to 2.4 times as long, and the loop takes six times as long,
# because it makes a call for each image. How near a program comes is its own affair, and changes with the order of the numbers in memory:
# `fused_bias.measure_reductions(shape, channels_last=True)`.
#
# ### How much of a training step is it?
#
# The thread has a profile of a training step with cuDNN's own kernel for this sum. Three of its rows:

# %%
shares = {
    "gradients of weights": 20.8,
    "gradients of inputs": 17.7,
    "gradients of biases": 10.2,
}
rows = {name: [f"{share} % (published)"] for name, share in shares.items()}
pd.DataFrame(rows, index=["share of the GPU's time"]).T

# %% [markdown]
# At a batch of 1,000 the share of the biases was about 28 % (published, in the same thread, which also names a batch of around 100, but
# not whether the table is of that). One reader found that the bias dominates even with cuDNN, another that it costs little. The
# share depends on the batch, so both may be right. Here is our network, on a CPU:


# %%
def training_step(net, images, labels):
    functional.cross_entropy(net(images), labels).backward()


def share_of_sums(batch):
    net = fused_bias.Convnet("separate")
    images, labels = torch.rand(batch, 1, 28, 28), torch.zeros(batch, dtype=torch.int64)
    sides = {16: 28, 32: 14, 33: 7}  # 33: the second layer of 32
    grads = [torch.rand(batch, min(c, 32), side, side) for c, side in sides.items()]
    runs = {"step": partial(training_step, net, images, labels)}
    runs["sums"] = lambda: [grad.sum((0, 2, 3)) for grad in grads]
    return timing.compare(runs, budget_s=4, precision=0.2, device="cpu")


steps = {batch: share_of_sums(batch) for batch in (10, 100, 500)}

# %% tags=["nbval-ignore-output"]
rows = {
    f"batch {batch}": [f"{100 * comparison.candidate('sums').time_ratio:.2f} %"]
    for batch, comparison in steps.items()
}
pd.DataFrame(rows, index=["bias gradients' share of a step"]).T

# %% [markdown]
# On a CPU the sums are a small part, because the rest of the step is so much longer: max pooling, there and back. A share says as much about
# the rest as about the part.
#
# ### One kernel backward
#
# The ReLU's gradient needs a pass over the gradient and the output: two reads, one write. Its result is then read once more for
# the sum. One kernel can add up what it writes:

# %%
for name in ("separate", "one-pass"):
    backward = fused_bias.traffic(name, shape, phase="backward")
    kernels = ", then ".join(kernel.kernel for kernel in backward.kernels)
    tensors = backward.moved_bytes / (4 * 500 * 16 * 28 * 28)
    print(f"{name}: {tensors:.2f} tensors moved ({kernels})")

# %%
backward_ratio = helpers.predict(
    "How many times as long as the one kernel do the two take?", "x"
)
backward_ratio

# %% tags=["nbval-ignore-output"]
comparisons = fused_bias.measure_kernels(shape, limits, device="cpu", budget_s=4)
backward = {row.variant: row for row in comparisons.rows if row.phase == "backward"}
if not missing_kernel:
    two, one = backward["separate"], backward["one-pass"]
    backward_ratio.reveal(modelled=4 / 3, measured=two.measured_s / one.measured_s)

# %%
sentence, bounds = "one kernel backward takes less time than two", {"at_most": 0.95}
if missing_kernel:
    timing.claim(sentence, None, **bounds)
else:
    timing.claim(sentence, one.measured_s / two.measured_s, **bounds, evidence=comparisons)

# %% [markdown]
# The measured ratio may be above 4 to 3: our C++ kernel writes a large tensor past the caches, which saves the fetching of each line before
# it is written.
#
# ## The profile against the bytes
#
# The issue names an example file ([model-zoo](https://github.com/FluxML/model-zoo), `vision/mnist/conv.jl`), and that file had three versions within a
# month. The profile is of 21 January 2019, when the file had four layers. Lesson 18 counts the last version. Here are all three, by the elements that
# each convolution reads and writes and by the products in one output.

# %%
examples = {
    "2 layers, until 17 January": [(784, 16 * 27**2, 4), (16 * 13**2, 8 * 12**2, 64)],
    "4 layers, until 8 February": [
        (784, 21632, 9),
        (21632, 18432, 288),
        (4608, 1600, 288),
        (400, 90, 144),
    ],
    "3 layers, from 8 February": [(784, 12544, 9), (3136, 6272, 144), (1568, 1568, 288)],
}
rows = {}
for name, layers in examples.items():
    moved = sum(read + written for read, written, _ in layers)
    operations = sum(2 * products * written for _, written, products in layers)
    small = sum(2 * written for _, written, _ in layers)  # elements moved, and operations
    rows[name] = [f"{moved / small:.2f}", f"{operations / small:.0f}"]
columns = ["convolutions over bias and ReLU, by bytes", "by operations"]
pd.DataFrame(rows, index=columns).T

# %% [markdown]
# In all three versions the bytes say that the small kernel takes longer, and the operations say the opposite.
#
# Now we hold the same count against single calls. nvprof prints the average of a kernel's calls and the shortest and the longest of them (published,
# Flux.jl, issue 558):

# %%
story = {
    "bias and ReLU": (184.91, 78.683, 29.184, 117.03),
    "convolution": (98.559, 41.940, 16.960, 67.488),
    "all in one call": (108.64, 46.229, 18.368, 69.505),
}
columns = ["total (ms)", "average (us)", "shortest (us)", "longest (us)"]
pd.DataFrame(story, index=columns).T.map("{:,.1f}".format).assign(calls="2,350")

# %% [markdown]
# The kernel for bias and ReLU reads and writes a layer's output. If bytes took its time, its longest call over its shortest would be the
# largest output over the smallest. Here are the three versions of the example file, each with its batch:

# %%
versions = {
    "2 layers, batch 1,000": [(1000, 16, 27, 27), (1000, 8, 12, 12)],
    "4 layers, batch 32": [
        (32, 32, 26, 26),
        (32, 32, 24, 24),
        (32, 16, 10, 10),
        (32, 10, 3, 3),
    ],
    "3 layers, batch 128": [(128, 16, 28, 28), (128, 32, 14, 14), (128, 32, 7, 7)],
}
_, average_us, shortest_us, longest_us = story["bias and ReLU"]
print(f"in the profile, longest call over shortest: {longest_us / shortest_us:.1f}")
for name, outputs in versions.items():
    counts = [fused_bias.traffic("broadcast", output).moved_bytes for output in outputs]
    rate = units.text(max(counts) / longest_us * 1e6, "B/s")
    print(f"{name}: by bytes {max(counts) / min(counts):.0f}; the longest call at {rate}")

# %% [markdown]
# In none of the three do the times go as the bytes do. (The 2,350 calls are a multiple of 2, and not of 3 or 4.) And in two of the
# three the longest call moves 47 or 110 GB/s, where a T4 of that time has 320 and a V100 900 GB/s (data sheets, `hardware.devices`): there
# bytes are not what it waits for. In the third it is near a V100's limit. So what fusing saves is one read and one write of each
# output, in all cases; whether these took the time, the profile cannot say.
#
# ## Max pooling
#
# In lesson 18's profile of the whole network max pooling stands at the top. (These experiments run on the CPU.) It reads the activation once and writes less than one:

# %%
sample = torch.rand(100, 16, 28, 28)
maxima, places = functional.max_pool2d(sample, 2, return_indices=True)
print(
    f"read {sample.nbytes:,} bytes, write {maxima.nbytes:,} of maxima, {places.nbytes:,} of places"
)
print(
    f"{(sample.nbytes + maxima.nbytes + places.nbytes) / sample.nbytes:.2f} activations; add and ReLU: 4"
)

# %% [markdown]
# The places are for the backward pass, 8 bytes for each maximum, also when there will be none. So bytes do not explain it. Ask in another
# manner: change nothing but the *values*. Random ones, the same sorted along each row, all zero. Same bytes, same operations, same
# program.

# %%
zeros_ratio = helpers.predict(
    "How many times as long as zeros do random numbers take to pool?", "x"
)
zeros_ratio

# %%
values = {"zeros": torch.zeros_like(sample), "sorted": sample.sort(dim=-1).values}
values["random"] = sample
runs = {name: partial(functional.max_pool2d, value, 2) for name, value in values.items()}
pooled = timing.compare(runs, budget_s=4, device="cpu", precision=0.2)

# %% tags=["nbval-ignore-output"]
zeros_ratio.reveal(modelled=1, measured=pooled.candidate("random").time_ratio)
for name in values:
    print(f"{name}: {units.text(pooled.candidate(name).median_s, 's')}")

# %%
sentence = "random numbers take longer to pool than zeros"
ratio = pooled.candidate("random").time_ratio
timing.claim(sentence, ratio, at_least=1.5, evidence=pooled)

# %% [markdown]
# A time that depends on the values points to a branch: "if this one is larger, remember it". A processor guesses which way a branch
# goes and works on ahead; random values make it guess wrong, and what it did ahead is thrown away
# ([branch prediction](../glossary.md#branch-prediction)). In a sorted row the right neighbour is never the smaller, so some of the guesses are
# easy.
#
# This is PyTorch's loop for tensors in NCHW order: image, channel, row, column; channel after channel, one number at a time. In
# [channels-last](../glossary.md#channels-last) order the 16 channels of a pixel lie side by side. Neighbouring numbers then belong
# to different maxima, and a vector of them can be compared at once, without a branch.

# %%
orders = {
    "NCHW": sample,
    "channels-last": sample.contiguous(memory_format=torch.channels_last),
}
assert torch.equal(*(functional.max_pool2d(value, 2) for value in orders.values()))
runs = {name: partial(functional.max_pool2d, value, 2) for name, value in orders.items()}
layouts = timing.compare(runs, budget_s=1, device="cpu", precision=0.1)
sentence = "channels-last the same maxima take less time"
ratio = layouts.candidate("channels-last").time_ratio
timing.claim(sentence, ratio, at_most=0.5, evidence=layouts)

# %% [markdown]
# No secret: ["max_pool2d CPU forward performance is poor"](https://github.com/pytorch/pytorch/issues/51393) is an open issue of
# 2021. With vectors for channels-last [their author](https://github.com/pytorch/pytorch/pull/42719) measured 9.6 times the speed on one core of a Xeon; they came in
# by way of two more pull requests, [48917](https://github.com/pytorch/pytorch/pull/48917) and
# [56361](https://github.com/pytorch/pytorch/pull/56361).
#
# ## The ladder
#
# Seven programs for the network of lesson 18, all with the same weights and the same logits. The last four have one idea each.
#
# **Pool within the pass.** `bias_relu_pool` is the kernel of lesson 18 with a maximum in it: it reads four numbers of the convolution's
# result, and writes one. Instead of a place of 8 bytes it keeps one byte, and without a branch: where a comparison holds it
# chooses between two vectors.
#
# **Channels-last, and the same.** The convolution's library wants its channels side by side anyway, and reorders what comes otherwise. So
# do the vectors of the pooling.
#
# **One kernel a layer.** The convolution keeps its sums in registers (lesson 15's tile). It adds the bias there, cuts off, takes
# the largest of four, and writes only that. Written by one layer for one digit:

# %%
y_bytes, maxima_bytes, places_bytes = 4 * 16 * 28 * 28, 4 * 16 * 14 * 14, 8 * 16 * 14 * 14
written = {
    "separate": 3 * y_bytes + maxima_bytes + places_bytes,
    "one-pass with pooling": y_bytes + maxima_bytes + places_bytes // 8,
    "one kernel a layer": maxima_bytes,
}
for name, size in written.items():
    print(f"{name}: {size:,} bytes")

# %% [markdown]
# **And by Winograd.** The convolution itself is then what is left. [Winograd's algorithm](../glossary.md#winograds-algorithm) computes
# 2 x 2 outputs, just what a pooling window needs, from 4 x 4 inputs ([Lavin and Gray](https://arxiv.org/abs/1509.09308)): transform inputs and
# filter, multiply place by place, transform back. It is the whole of it:


# %%
def winograd(tile, kernel):
    """Return the 2 x 2 sums of a 3 x 3 kernel over a tile of 4 x 4."""
    of_tile = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    of_kernel = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    back = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
    products = (of_kernel @ kernel @ of_kernel.T) * (of_tile @ tile @ of_tile.T)
    return back @ products @ back.T


tile, kernel = np.arange(16.0).reshape(4, 4) ** 2, np.arange(-4.0, 5.0).reshape(3, 3)
direct = np.array(
    [[(tile[i : i + 3, j : j + 3] * kernel).sum() for j in (0, 1)] for i in (0, 1)]
)
print("9 products for each of 4 outputs, 36:", direct.tolist())
print("one product for each of 4 x 4 places, 16:", winograd(tile, kernel).tolist())

# %% [markdown]
# The filter is transformed once. The other transforms are additions, and they are shared: a tile's is made once for all filters, and the way back is
# taken once for all channels. The price is accuracy: a tile's inputs are added up before the product, so one large value costs
# its neighbours digits.

# %%
best_ratio = helpers.predict(
    "How many times as fast as the first is the best program for the network?", "x"
)
best_ratio

# %%
images, labels = next(iter(helpers.make_MNIST_loader(100)))
net = fused_bias.Convnet("separate")
programs = ["separate", "native", "one-pass", "one-pass with pooling"]
programs += ["channels-last, one-pass with pooling"]
programs += ["one kernel a layer", "one kernel a layer, Winograd"]
rungs = [name for name in programs if name in fused_bias.default_rungs("cpu")]
ladder = fused_bias.measure_ladder(images, labels, rungs=rungs, model=net, budget_s=2)
speedups = {rung.rung: rung.speedup for rung in ladder.rungs}

# %% [markdown]
# A model for the best: PyTorch's three convolutions stay, and all else takes no time. Their time is a row of the profile.

# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    profile = profiling.kernel_table(lambda: net(images), runs=10)
times_s = {row.name: row.total_s for row in profile.kernels if row.calls}
convolutions_s = sum(time_s for name, time_s in times_s.items() if "convolution" in name)
best_ratio.reveal(
    modelled=sum(times_s.values()) / convolutions_s, measured=max(speedups.values())
)

# %%
figure = plotting.draw_bars(speedups, unit="", title="Forward: times as fast")
plotting.show(
    figure, alt="Each rung of the ladder is faster; those that pool within a kernel most."
)

# %%
sentence = "pooling within the pass is faster than pooling after it"
bounds = {"at_least": 1.2}
if missing_kernel:
    timing.claim(sentence, None, **bounds)
else:
    ratio = speedups["one-pass with pooling"] / speedups["one-pass"]
    timing.claim(sentence, ratio, **bounds, evidence=ladder)

# %% [markdown]
# The bottleneck has moved to the convolution, where the arithmetic is. Where the best program beats the model, its convolution is
# better than PyTorch's for these few channels.
#
# A training step goes backward as well, through other kernels. What is best forward need not be best there:

# %%
steps = fused_bias.measure_ladder(
    images, labels, phase="training", rungs=rungs, model=net, budget_s=3
)
training = {rung.rung: rung.speedup for rung in steps.rungs}
figure = plotting.draw_bars(training, unit="", title="Training step: times as fast")
plotting.show(figure, alt="Bars of the speedup of a training step of each program.")

# %% [markdown]
# ## Who fuses, and who does not
#
# Fewer bytes, always. Faster, not always: the answer has flipped more than once, and both sides had measured.
#
# | when | where | what they found |
# |---|---|---|
# | 2017 | [PyTorch 3823](https://github.com/pytorch/pytorch/issues/3823) | cuDNN's fused call allowed no activation "identity", so the bias alone could not be fused |
# | 2019 | [OpenCV 16254](https://github.com/opencv/opencv/pull/16254) | convolution, bias and ReLU in one call: a whole Mask R-CNN on a GTX 1050 from 187.6 to 180.3 ms |
# | 2019 | [PyTorch 31524](https://github.com/pytorch/pytorch/pull/31524) | bias taken out of cuDNN's convolution: PyTorch's own add is "faster, especially for backward" |
# | 2020 | [NNlib 228](https://github.com/FluxML/NNlib.jl/pull/228), [CUDA 321](https://github.com/JuliaGPU/CUDA.jl/pull/321) | the fused call in Julia's libraries, merged: VGG-19 from 263 to 160 ms, ResNet-50 from 253 to 285, and to 197 on an experimental branch |
# | 2020, 2022 | [Flux 1302](https://github.com/FluxML/Flux.jl/pull/1302), [1832](https://github.com/FluxML/Flux.jl/pull/1832) | to call it in Flux: both closed without being merged |
# | 2021 | [PyTorch 68506](https://github.com/pytorch/pytorch/issues/68506) | `cudnn_convolution_relu` is 17 times slower for 7 by 7 filters in channels-last |
# | 2022, 2023 | dlib, a C++ library: [2656](https://github.com/davisking/dlib/pull/2656), [2839](https://github.com/davisking/dlib/pull/2839) | one call is slower, so two; then one again, for the one algorithm where it is 8 to 13 % faster |
# | 2022 | [torchdynamo 403](https://github.com/pytorch/torchdynamo/pull/403) | the compiler takes the bias off the convolution and gives it a kernel of its own, which fuses with what follows |
# | 2023, 2024 | [NNlib 457](https://github.com/FluxML/NNlib.jl/pull/457), [Flux 2327](https://github.com/FluxML/Flux.jl/pull/2327) | what Flux has instead: `bias_act!`, bias and activation in one pass over the convolution's result, in place |
# | 2026 | [PyTorch 192838](https://github.com/pytorch/pytorch/pull/192838) | a draft that puts the bias back into cuDNN: about 10 % faster, slower for depthwise convolutions |
# | 2026 | [Flux 558](https://github.com/FluxML/Flux.jl/issues/558) | the issue is closed in August as stale: the kernel that it profiled is gone |
#
# On a CPU oneDNN calls these [post-operations](https://oneapi-src.github.io/oneDNN/dev_guide_attributes_post_ops.html), and says
# of them that they reduce the pressure on memory bandwidth. PyTorch gives its convolutions a bias there, and the ReLU only when a
# compiler asks. Why the flips? Each library's fused kernel is another kernel, with its own algorithm and its own gaps. What is
# saved in bytes may be lost in a slower convolution.
#
# Compilers fuse without being asked, and take their time. Here is this network's forward pass, 100 images. It was recorded once,
# because the first call takes seconds (`prepared`: until the first result), and because ONNX Runtime is no part of this course's
# environment. (The shorter time of the second compilation is partly warm-up.)

# %%
recorded.show("18-cpu", "compilers")
