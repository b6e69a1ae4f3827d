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
#     needs: ["02", "13"]
#     objectives:
#       - count|counted the bytes that one kernel saves over two and over three
#       - write|wrote bias and ReLU as one pass over memory that keeps NaN
#       - predict|predicted for which layers fusion pays, and by how much
#       - explain|explained why a sum with few results is slow on a GPU
#       - judge|judged a published profile by what it says and what it leaves open
# ---

# %% [markdown] tags=["objectives"]
# # Fused bias
#
# Which of two kernels is the convolution? In January 2019 a user of Flux, Julia's library for neural networks, profiled a small convolutional network
# for handwritten digits on a GPU. Two kernels, each called 2,350 times, took 92 % of its forward pass. One needed 78.7 µs per call on average, and the
# other 41.9 µs ([Flux issue 558](https://github.com/FluxML/Flux.jl/issues/558), published). One of them was the convolution. The other added a bias to
# each output of the convolution and applied the activation, in this network a ReLU.
#
# Which is which? You can count the operations. In a 3 × 3 convolution that reads 32 channels, an output is a sum of 9 × 32 products, which takes 576
# operations. The other kernel does two operations per output, an addition and a comparison.
#
# The author, who signs as KristofferC, then switched on a call of [cuDNN](glossary.md#cudnn), NVIDIA's library, which does the work of both
# [kernels](glossary.md#gpu-kernel) in one.
#
# You will meet this question in every network, because between its large products there are small operators, for example a bias, an activation or a
# norm, which compute next to nothing. To merge them into one kernel, or into the product before them, is called [fusion](glossary.md#fusion). In
# [lesson 13](13_reading_a_profile.ipynb) a compiler did it for you. In this case study you do it by hand on the smallest example, and find out when it
# pays.
#
# The measured times in the text come from the machine on which this page was built, one core of an AMD EPYC in a shared virtual server, and they
# are medians of programs that ran in turns. The outputs are your machine's once you have run the page. We had no GPU, so every time on a GPU is
# published or modelled, and the issue does not say which GPU it was.

# %% tags=["hide-input"]
import logging

import numba
import numpy as np
import pandas as pd
import torch
from torch.nn import functional

import helpers
from helpers import exercises, plotting, profiling, timing, units
from helpers.studies import fused_bias, sending, traces

check = exercises.checks_of("fused_bias")
logging.getLogger("torch").setLevel(logging.ERROR)  # no lines of the compiler's own
torch.manual_seed(0)
torch.set_num_threads(1)  # a core, as in lesson 13
allocator = helpers.steady_allocator()  # freed memory is kept for later tensors
FUSED = "native" if fused_bias.missing("post-op", "cpu") else "post-op"

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# How much does it bring to do the work of both kernels in one?
#
# - Two kernels per layer on a GPU
# - One multiplies and adds, the other adds and compares
# - Then one call does the work of both
#
# The bet is about the two kernels alone, and not about the rest of the network. If the second kernel costs as little as its operations, there is
# nearly nothing to gain.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 5]
bet = helpers.predict(
    "If one kernel does the work of both, "
    "how many times as fast is it as the two kernels together?",
    "x",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Between two kernels everything goes through memory"
# ## Part 1: where a small kernel spends its time
#
# What does a small kernel do all the time? We begin with the profile itself, because two of your earlier tools suffice to read it.
#
# - A kernel reads its inputs from memory
# - It writes its result to memory
# - Between two kernels nothing stays in [registers](glossary.md#register)
#
# The first tool is the least time of [lesson 02](02_compute_and_roofline.ipynb). A kernel needs at least the time of its operations and at least
# the time of its bytes, and so far we have counted only operations. When a kernel ends, its registers and its [shared
# memory](glossary.md#shared-memory) are lost ([lesson 03](03_how_a_gpu_runs_a_kernel.ipynb)). So the convolution must write its result to
# memory. The next kernel reads all of it again, adds one number to each element, and writes everything a second time.
#
# The example in the issue had three versions that winter. We count the last one, which has three layers. Each of them is a convolution, bias and ReLU,
# and a pooling that halves both sides of the image. The table counts elements per image and leaves out the weights, which are few.
#
# | layer | the convolution reads + writes | bias and ReLU read + write | operations of the convolution | of bias and ReLU |
# |---|--:|--:|--:|--:|
# | 1 to 16 channels, 28 × 28 | 784 + 12,544 | 12,544 + 12,544 | 225,792 | 25,088 |
# | 16 to 32 channels, 14 × 14 | 3,136 + 6,272 | 6,272 + 6,272 | 1,806,336 | 12,544 |
# | 32 to 32 channels, 7 × 7 | 1,568 + 1,568 | 1,568 + 1,568 | 903,168 | 3,136 |
# | sum | 25,872 | 40,768 | 2,935,296 | 40,768 |

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 100]
small_kernel = helpers.predict(
    "How many times as long as the kernel for bias and ReLU "
    "did the convolution take per call?",
    "x",
)
small_kernel

# %% tags=["run"]
layers = [(1, 16, 28), (16, 32, 14), (32, 32, 7)]  # channels read and written, pixels per side
convolution_moves = sum((read + written) * side**2 for read, written, side in layers)
bias_relu_moves = sum(2 * written * side**2 for _, written, side in layers)
convolution_operations = sum(18 * read * written * side**2 for read, written, side in layers)
bias_relu_operations = sum(2 * written * side**2 for _, written, side in layers)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The small kernel took nearly twice as long" source="Flux issue 558 (github.com/FluxML/Flux.jl)"
small_kernel.reveal(
    modelled=convolution_moves / bias_relu_moves,
    published=41.940 / 78.683,
    source="Flux issue 558",
)
print(f"by operations: {convolution_operations / bias_relu_operations:.0f} times (modelled)")

# %% [markdown] tags=["explain"]
# By operations the convolutions should take 72 times as long as bias and ReLU. By bytes they should take only 0.63 times as long, because the small
# kernel reads as much as it writes, whereas the first two convolutions read less than they write. The profile agrees with the bytes. The convolution
# took 41.9 µs, which is 0.53 times as long as the other kernel.
#
# Now let one kernel do both. It adds the bias while the sum is still in a register, so the 40,768 elements need not be moved at all, and only 25,872
# of 66,640 elements remain.

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="One kernel saves nearly the whole of the other" source="Flux issue 558 (github.com/FluxML/Flux.jl)"
bet.reveal(
    modelled=(convolution_moves + bias_relu_moves) / convolution_moves,
    published=(78.683 + 41.940) / 46.229,
    source="Flux issue 558",
)

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="One kernel writes the output only once"
x_bytes, y_bytes = (4 * 1000 * channels * 28 * 28 for channels in (1, 16))
convolution = fused_bias.Kernel("convolution", {"x": x_bytes}, {"y": y_bytes})
bias_and_relu = fused_bias.Kernel("bias, ReLU", {"y": y_bytes}, {"out": y_bytes})
both = fused_bias.Kernel("both", {"x": x_bytes}, {"out": y_bytes})
plotting.show(
    fused_bias.draw_kernels(
        {"two kernels": [convolution, bias_and_relu], "one kernel": [both]},
        title="The first layer for 1,000 digits",
    ),
    alt="Two kernels write y and read it back; one kernel reads x and writes the output.",
)

# %% [markdown] tags=["explain"]
# By its bytes the one kernel should be 2.58 times as fast (modelled). In the issue it took 46.2 µs instead of 78.7 + 41.9, which is 2.61 times as fast
# (published).
#
# How much did the whole forward pass gain? For this we need the second tool, because lesson 13 read profiles by their shares. The kernel for bias and
# ReLU took 184.9 ms in all, and this was 59.96 % of the GPU's time. The convolution took 98.6 ms in all. After the change, the one kernel took 108.6
# ms, or 81.38 %.
#
# **Your turn.** How long did the whole pass take, and how long everything but these kernels?


# %% tags=["yours"] yours="pass_times" takes=5
def pass_times(kernels_ms, share):
    """Return the ms of a whole pass, and of all of it that is not in `kernels_ms`.

    `share` is the share of the first of these kernels in the pass, such as 0.25.
    """
    pass_ms = kernels_ms[0] / share
    return pass_ms, pass_ms - sum(kernels_ms)


# %% checks="pass_times"
pass_times = check(pass_times)


# %% wrong="pass_times" says="divide by the share"
def pass_times(kernels_ms, share):
    pass_ms = kernels_ms[0] * share
    return pass_ms, pass_ms - sum(kernels_ms)


# %% wrong="pass_times" says="of the first kernel alone"
def pass_times(kernels_ms, share):
    pass_ms = sum(kernels_ms) / share
    return pass_ms, pass_ms - sum(kernels_ms)


# %% wrong="pass_times" says="Subtract both kernels"
def pass_times(kernels_ms, share):
    pass_ms = kernels_ms[0] / share
    return pass_ms, pass_ms - kernels_ms[0]


# %% right="pass_times" style=1
def pass_times(kernels_ms, share):
    first, *others = kernels_ms
    rest_ms = first * (1 - share) / share
    for kernel_ms in others:
        rest_ms -= kernel_ms
    return [first / share, rest_ms]


# %% right="pass_times" style=2
def pass_times(kernels_ms, share):
    kernels = np.array(kernels_ms)
    return np.array([kernels[0] / share, kernels[0] / share - kernels.sum()])


# %%
before_ms, rest_before_ms = pass_times([184.91, 98.559], 0.5996)
after_ms, rest_after_ms = pass_times([108.64], 0.8138)
print(f"before: {before_ms:.1f} ms, of which {rest_before_ms:.1f} ms are the rest")
print(f"after: {after_ms:.1f} ms, of which {rest_after_ms:.1f} ms are the rest")
print(f"the pass is {before_ms / after_ms:.2f} times as fast")

# %% [markdown] tags=["explain"]
# The GPU's time for the pass fell by a factor of 2.31, from 308.4 to 133.5 ms in all passes of the profile together (published). The rest did
# not change. Before the change 184.9 + 98.6 of 308.4 ms belonged to the two kernels, which leaves 24.9 ms for everything else. After it 108.6 of
# 133.5 ms belonged to the one kernel, and 24.9 ms are left again.
#
# Do not trust the bytes too far, however. The issue does not say which of the three versions ran. Since 2,350 calls are no multiple of three layers, it
# was probably not the one in our table, and that 2.58 lies so close to 2.61 may be luck. In all of them bytes and operations disagree as in our table
# ([the appendix](appendix/18_fused_bias.ipynb) counts the other two), but the longest call of the small kernel took only 4.0 times as long as its
# shortest, whereas its bytes would differ by a factor of 8 or more. In our version, for example, it goes through 12,544 elements per image in the first
# layer and 1,568 in the last. So the bytes say what fusion saves, but not what each call takes.
#
# **To remember.** A separate kernel for bias and ReLU reads its tensor once and writes it once. In our version that is 1.6 times the bytes of the
# convolutions, and in the issue one kernel was 2.6 times as fast as the two.
#
# NVIDIA wrote the kernel in the issue. What would it take to write one yourself?

# %% [markdown] tags=["slide"] minutes=2 headline="PyTorch runs three kernels for this layer"
# ## Part 2: one pass instead of two
#
# Can you write the kernel? We begin behind the convolution, because a few lines suffice there, and because in PyTorch, written in this way, there is even more to save than in Flux.
#
# - Convolution, addition and ReLU are three operators
# - Each of them writes a new tensor
# - First layer, 1,000 digits: 3.1 MB in, 50.2 MB out
#
# Take the first layer with 1,000 digits. Its input has 1,000 × 784 values of 4 bytes, or 3.1 MB, and its output is 16 times as large, 50.2 MB. In
# PyTorch you could write the layer like this.


# %%
def as_written(x, weight, bias):
    y = functional.conv2d(x, weight, padding=1)  # (images, 16, 28, 28)
    y = y + bias.view(1, -1, 1, 1)
    return torch.relu(y)


# %% [markdown]
# These are three kernels and not two, because Flux joins the addition and the ReLU into one, whereas PyTorch runs one operator at a time. (On a CPU,
# too, we call a library's routine a kernel.)

# %% tags=["predict"]
traffic = helpers.predict(
    "How many times the bytes of one fused kernel do the three kernels move?", "x"
)
traffic

# %% tags=["hide-input", "run"]
digits = torch.rand(1000, 1, 28, 28)
weight, bias = torch.randn(16, 1, 3, 3) / 3, torch.rand(16)
passes = traces.count_passes(lambda x: as_written(x, weight, bias), digits)  # in sizes of x

# %% tags=["look"]
traffic.reveal(
    modelled=(x_bytes + 5 * y_bytes) / (x_bytes + y_bytes),
    counted=(passes.reads + passes.writes) / (1 + y_bytes / x_bytes),
)

# %% [markdown] tags=["explain"]
# The convolution moves the input and the output once, 53.3 MB, and a fused kernel moves no more. The addition and the ReLU each read and write the
# output, which adds four times 50.2 MB. The sum is 254 MB, or 4.8 times as much (counted).
#
# The time need not follow, because a convolution may have other things to wait for. So we measure two things apart. On a CPU, PyTorch's library
# [oneDNN](glossary.md#onednn) can fuse the bias and the ReLU into the convolution. The addition and the ReLU each read and write a tensor of the
# output's size, just as a copy of the output does. Here are both times on your machine.

# %% tags=["nbval-ignore-output"]
layer = fused_bias.measure_layer(channels=1, images=1000, device="cpu")
one_s, copy_s = layer.candidate("one kernel").median_s, layer.candidate("copy").median_s
print(f"one kernel: {units.text(one_s, 's')}, copy of its output: {units.text(copy_s, 's')}")

# %% [markdown]
# A model of the three kernels needs no other times.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10] headline="Three kernels write the output three times"
three_kernels = helpers.predict(
    "How many times as long as the one kernel do the three kernels take on your machine?", "x"
)
three_kernels

# %% tags=["run"]
modelled = (one_s + 2 * copy_s) / one_s
measured = layer.candidate("three kernels").time_ratio

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The small kernels hardly do more than copy"
three_kernels.reveal(modelled=modelled, measured=measured)

# %% tags=["hide-input", "look"]
layer.claim("three kernels take longer than one", "three kernels", at_least=1.2)

# %% [markdown] tags=["explain"]
# On our core the fused layer took 16.3 ms and a copy 9.2 ms. The three kernels should then take 16.3 + 2 × 9.2, or 34.7 ms, which is 2.13 times as long
# (modelled), and they took 2.09 times as long (measured). So on our core, too, the small kernels do hardly anything but move their tensor.
#
# Addition and ReLU can share one pass over the tensor, if each value gets both while it is in a register.

# %% tags=["hide-input", "slide", "slide-output"] minutes=1 layout="steps" frames=[2, 4, 8] headline="Two passes visit memory twice as often"
plotting.play(
    fused_bias.pass_frames(),
    title="Eight values in memory",
    captions=[f"{visits} values were read and written." for visits in range(0, 17, 2)],
    stills=(1, 4, 6, 8),
    alt="One pass is done after 8 visits to memory, two passes after 16.",
)

# %% [markdown]
# **Your turn.** Write the pass with plain loops, in place. `y` is an array (images, channels, pixels), and all pixels of a channel share one bias.
# `relu` is a function of one number. The library numba will compile your loops.


# %% tags=["yours"] yours="bias_relu" takes=10
def bias_relu(y, bias, relu):
    """Replace each value v of y by relu(v + the bias of its channel), in one pass."""
    images, channels, pixels = y.shape
    for image in range(images):
        for channel in range(channels):
            b = bias[channel]
            for pixel in range(pixels):
                y[image, channel, pixel] = relu(y[image, channel, pixel] + b)


# %% checks="bias_relu"
bias_relu = check(bias_relu)


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


# %% wrong="bias_relu" says="into y itself"
def bias_relu(y, bias, relu):
    for image in range(y.shape[0]):
        for channel in range(y.shape[1]):
            for pixel in range(y.shape[2]):
                v = relu(y[image, channel, pixel] + bias[channel])
    return v


# %% right="bias_relu" style=1
def bias_relu(y, bias, relu):
    for place in np.ndindex(y.shape):
        y[place] = relu(y[place] + bias[place[1]])


# %% right="bias_relu" style=2
def bias_relu(y, bias, relu):
    for image in y:
        for channel, row in enumerate(image):
            for pixel, v in enumerate(row):
                row[pixel] = relu(v + bias[channel])


# %% wrong="bias_relu" says="go through y twice"
def bias_relu(y, bias, relu):
    for image in range(y.shape[0]):
        y[image] += bias.reshape(-1, 1)
    for place in np.ndindex(y.shape):
        y[place] = relu(y[place])


# %% [markdown]
# Here is your kernel on the 50.2 MB, beside PyTorch's two passes in place. `mul_` multiplies the tensor by 1, which is about the least that a pass in
# place can take.


# %%
def relu(v):
    return v if v > 0 else 0.0


# %% tags=["hide-input", "run"]
compiled, compiled_relu = numba.njit(bias_relu), numba.njit(relu)
y, small_bias = torch.randn(1000, 16, 28, 28), torch.full((16,), -1e-3)
values, biases = y.flatten(2).numpy(), small_bias.numpy()  # the memory of both tensors itself
column = small_bias.view(1, -1, 1, 1)
expected = torch.relu(y + column)
compiled(values, biases, compiled_relu)
assert torch.equal(y, expected)
in_place = timing.compare(
    {
        "add_, then relu_": lambda: y.add_(column).relu_(),
        "your kernel": lambda: compiled(values, biases, compiled_relu),
        "mul_ by 1": lambda: y.mul_(1.0),
    },
    budget_s=2,
    device="cpu",
    precision=0.05,
)

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="One pass takes about half the time of two"
rows = {
    row.name: [units.text(row.median_s, "s"), f"{row.time_ratio:.2f}"]
    for row in in_place.candidates
}
pd.DataFrame(rows, index=["time (measured)", "relative to add_, then relu_"]).T

# %% tags=["hide-input", "look"]
in_place.claim("one pass takes less time than two", "your kernel", at_most=0.8)

# %% [markdown] tags=["explain"]
# On our core, `add_` and `relu_` took 11.7 ms and the kernel 5.7 ms (measured), half as long, because it moves half the bytes. Multiplying by 1 took
# 5.9 ms, so hardly anything is left to gain. Working in place is cheaper than a copy, partly because a [cache](glossary.md#cache) reads the lines of
# a new tensor before they are written.
#
# It is fast, but is it right? Suppose that a training has failed, and one weight of the first layer is NaN, "not a number". PyTorch's ReLU lets a NaN
# pass, and after the next convolution it is everywhere. For 100 digits and 10 classes all 1,000 logits are NaN, and you notice at once. Now use your
# kernel with the `relu` above.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 1000]
not_numbers = helpers.predict(
    "If the ReLU of your kernel is v if v > 0 else 0, how many of the 1,000 logits are NaN?",
    "logits",
)
not_numbers


# %% tags=["hide-input", "run"]
def logits(net, images, activation):
    for convolution in net.convolutions:
        images = functional.max_pool2d(activation(convolution(images)), 2)
    return net.dense(images.flatten(1))


def activation_by(rule):
    rule = numba.njit(rule)

    def activation(y):
        compiled(y.flatten(2).numpy(), np.zeros(y.shape[1], np.float32), rule)
        return y

    return activation


images, labels = next(iter(helpers.make_MNIST_loader(100)))
failed = fused_bias.Convnet()
with torch.no_grad():
    failed.convolutions[0].weight[0, 0, 0, 0] = float("nan")
    by_pytorch = logits(failed, images, torch.relu)
    by_kernel = logits(failed, images, activation_by(relu))
assert by_pytorch.isnan().all()

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The kernel hides a failed training"
not_numbers.reveal(counted=int(by_kernel.isnan().sum()))
print(f"the loss is {functional.cross_entropy(by_kernel, labels):.1f}")

# %% [markdown] tags=["explain"]
# None is (counted). Every comparison with NaN by < or > is false, so your kernel replaces each NaN by 0. The loss is 2.3, the logarithm of ten,
# as for any network that has learned nothing. One filter is dead, and no error is raised. To repair the kernel, turn the comparison around. For
# NaN this comparison is false as well, but now the NaN goes through.


# %%
def keep_nan(v):
    return 0.0 if v <= 0 else v


# %% tags=["hide-input"]
with torch.no_grad():
    repaired = logits(failed, images, activation_by(keep_nan))
print(f"with keep_nan: {int(repaired.isnan().sum()):,} of 1,000 logits are NaN")

# %% [markdown]
# A compiler writes the same kernel. As in lesson 13, we give `as_written` to `torch.compile` and read the C++ of the kernel behind the convolution. Put
# its loop beside yours.

# %% tags=["hide-input", "nbval-ignore-output"]
missing = traces.missing_compiler()
if missing:
    print(missing)
else:
    program = traces.write_program(as_written, digits, weight, bias)
    print(program.loop)

# %% [markdown] tags=["explain"]
# The compiler leaves the convolution to oneDNN and fuses the addition and the ReLU into one function, with three loops over images, channels and
# pixels, in place. Two things differ. On our core it takes 8 pixels at a time, because a vector register holds 8 values there, and its function for the
# ReLU keeps a NaN. It does not enter the convolution, so it needs one pass over the output more than the fused layer.
#
# **To remember.** A separate kernel that writes a new tensor costs about one copy of it, here 9.2 ms for 50 MB. A fused kernel must treat NaN and
# infinity like the kernels that it replaces.
#
# With three kernels the first layer took twice as long. For which layers is fusion worth the trouble?

# %% [markdown] tags=["slide"] minutes=2 headline="The gain is one plus a ratio of times"
# ## Part 3: when fusion pays
#
# When does it pay? The model of Part 2 already contains the answer, because its two terms depend on different things.
#
# - The copies depend only on the size of the output
# - The convolution's time grows with the channels it reads
#
# > three kernels / one kernel = 1 + (time of two copies of the output) / (time of one kernel)
#
# For each output, a 3 × 3 convolution does 18 operations per channel that it reads. A copy reads a value and writes one, so two copies move four values per output,
# however many channels there are.
#
# **Your turn.** Write the ratio for a convolution that computes at `rate` and for copies that move bytes at `bandwidth`.


# %% tags=["yours"] yours="gain" takes=7
def gain(channels, rate, bandwidth, size):
    """Return the time of three kernels over that of one, for a 3 x 3 convolution.

    It reads `channels`, `rate` is in FLOP/s, `bandwidth` in bytes/s, a value has `size` bytes.
    """
    one_s = 2 * 9 * channels / rate  # per output
    copies_s = 2 * 2 * size / bandwidth
    return 1 + copies_s / one_s


# %% checks="gain"
gain = check(gain)


# %% wrong="gain" says="two operations"
def gain(channels, rate, bandwidth, size):
    return 1 + 4 * size / bandwidth / (9 * channels / rate)


# %% wrong="gain" says="both read and write"
def gain(channels, rate, bandwidth, size):
    return 1 + 2 * size / bandwidth / (18 * channels / rate)


# %% wrong="gain" says="grow with the channels"
def gain(_channels, rate, bandwidth, size):
    return 1 + 4 * size / bandwidth / (18 / rate)


# %% wrong="gain" says="has `size` bytes"
def gain(channels, rate, bandwidth, _size):
    return 1 + 4 / bandwidth / (18 * channels / rate)


# %% right="gain" style=1
def gain(channels, rate, bandwidth, size):
    per_value = rate / bandwidth * size
    return (18 * channels + 4 * per_value) / (18 * channels)


# %% right="gain" style=2
def gain(channels, rate, bandwidth, size):
    convolution = 1 / rate
    convolution *= 3 * 3 * 2 * channels
    three = convolution
    for _ in ("add", "relu"):
        three += 2 * size / bandwidth
    return float(three / convolution)


# %% [markdown]
# Now let the first layer read 32 channels instead of one. Your machine's times of one kernel and of a copy suffice for an estimate.

# %% tags=["nbval-ignore-output"]
wide = fused_bias.measure_layer(channels=32, images=1000, device="cpu", budget_s=12)
one_s, copy_s = wide.candidate("one kernel").median_s, wide.candidate("copy").median_s
print(f"one kernel: {units.text(one_s, 's')}, copy of its output: {units.text(copy_s, 's')}")

# %% tags=["predict"]
thirty_two = helpers.predict(
    "If the layer reads 32 channels, "
    "how many times as long as one kernel do the three kernels take on your machine?",
    "x",
)
thirty_two

# %% [markdown]
# Your function needs the rate of the convolution and the [bandwidth](glossary.md#bandwidth) of the copy, which follow from the two times.

# %% tags=["run"]
outputs = 1000 * 16 * 28 * 28
rate, bandwidth = 18 * 32 * outputs / one_s, 2 * 4 * outputs / copy_s
modelled = gain(32, rate, bandwidth, 4)

# %% tags=["look", "nbval-ignore-output"]
thirty_two.reveal(modelled=modelled, measured=wide.candidate("three kernels").time_ratio)

# %% [markdown] tags=["explain"]
# For each width the model needs the times of one kernel and a copy, so it tests whether small kernels cost as much as copies. Here it stands beside the measured ratio for four widths of the input.

# %% tags=["hide-input", "run"]
sweep = {1: layer, 3: fused_bias.measure_layer(channels=3, images=1000, device="cpu")}
sweep |= {8: fused_bias.measure_layer(channels=8, images=1000, device="cpu"), 32: wide}
modelled_ratios = []
for channels, times in sweep.items():
    one_s, copy_s = times.candidate("one kernel").median_s, times.candidate("copy").median_s
    rate, bandwidth = 18 * channels * outputs / one_s, 8 * outputs / copy_s
    modelled_ratios.append(gain(channels, rate, bandwidth, 4))
measured_ratios = [times.candidate("three kernels").time_ratio for times in sweep.values()]

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="With more work per output fusion gains less"
plotting.show(
    fused_bias.draw_gains(list(sweep), modelled=modelled_ratios, measured=measured_ratios),
    alt="Three kernels relative to one: the ratio falls towards 1 with more channels.",
)

# %% tags=["hide-input", "look"]
timing.claim(
    "fusion gains more with 1 channel than with 32",
    measured_ratios[0] / measured_ratios[-1],
    at_least=1.02,
    evidence=[layer, wide],
)

# %% [markdown] tags=["explain"]
# On our core the three kernels took 2.1, 1.6, 1.4 and 1.1 times as long as one kernel for 1, 3, 8 and 32 channels (measured). Fusion saves about two
# copies each time, or 18 ms, but it saves them of 34 ms with 1 channel and of 153 ms with 32.
#
# Where is the border on an H100? In bfloat16, two copies move four values of 2 bytes for each output. An H100 can do 295 operations while one byte
# arrives (lesson 02), so the copies cost as much as 8 × 295, or 2,360 operations. A convolution at its peak does as many when it reads 2,360 / 18, or
# 131 channels (modelled). Your function says the same.

# %%
print(f"{gain(131, rate=989e12, bandwidth=3.35e12, size=2):.2f} times on an H100 (modelled)")

# %% [markdown]
# Up to about this width, bias and ReLU in kernels of their own would at least double the time of the layer. The next figure begins there, with a
# layer that writes as many channels as it reads. It also knows the bytes of the convolution and the price of a [kernel
# launch](glossary.md#kernel-launch). Set a launch to 5 µs, and then make the batch smaller. When does fusion no longer save bytes, but launches?

# %% tags=["hide-input"]
fused_bias.explore_gain()

# %% [markdown]
# For a thousand images two copies take 30 µs, and for a single one 0.03 µs. With a launch of 5 µs, one image needs 15 µs in three kernels and 5 µs in
# one, up to a thousand channels and more, because two launches are saved and hardly any bytes. The figure lets every byte come from the GPU's memory.
# The output of a thousand images has 25 MB, however, and an H100 has a cache of 50 MB
# ([NVIDIA](https://developer.nvidia.com/blog/nvidia-hopper-architecture-in-depth/), published), from which the copies may take less time.
#
# For small tensors the clock can also say the opposite. The output of a single digit has 50 KB and stays in the cache, so there is little to save.

# %% tags=["hide-input", "nbval-ignore-output"]
single = fused_bias.measure_layer(channels=1, images=1, device="cpu", budget_s=1)
for name in ("three kernels", "one kernel"):
    print(f"one digit, {name}: {units.text(single.candidate(name).median_s, 's')} (measured)")

# %% [markdown]
# On our core the three kernels took 82 µs and the fused one took 192 µs (measured). The price of a call was the third formula of lesson 02, and the
# fused call has the higher price here.
#
# A real network has layers of many kinds. In 2020 gartangh brought the fused call into Julia's GPU library and timed four networks ([CUDA.jl
# 321](https://github.com/JuliaGPU/CUDA.jl/pull/321), published).
#
# | network | before | fused | experimental branch |
# |---|--:|--:|--:|
# | VGG-19 | 263 ms | 160 ms | 154 ms |
# | Darknet-19 | 120 ms | 90 ms | 84 ms |
# | Darknet-53 | 194 ms | 164 ms | 148 ms |
# | ResNet-50 | 253 ms | 285 ms | 197 ms |
#
# Three networks became 1.2 to 1.6 times as fast, and ResNet-50 became slower. Its author did not blame the kernel but the memory, because a
# convolution also asks for scratch memory and the library has to decide how much it may have. The last column may support him, although the thread
# does not say what the branch changed. There ResNet-50 is 1.3 times as fast as before.
#
# And our own network? Lesson 13 told you to profile the whole before you repair a part, so we do it now, later than we should have. Here is a forward
# pass of 100 digits.

# %% tags=["hide-input", "run"]
net = fused_bias.Convnet("separate")
with torch.no_grad():
    profile = profiling.kernel_table(lambda: net(images), runs=20, device="cpu")
parts = {"max pooling": "max_pool", "convolutions": "conv", "additions": "aten::add "}
parts |= {"ReLUs": "clamp_min"}
times_s = {f"{row.name} ": row.total_s for row in profile.kernels if row.calls}
shares = {
    part: sum(time_s for name, time_s in times_s.items() if key in name)
    / sum(times_s.values())
    for part, key in parts.items()
}
shares["the rest"] = 1 - sum(shares.values())
ladder = fused_bias.measure_ladder(
    images, labels, rungs=["separate", FUSED], model=net, budget_s=4
)

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Additions and ReLUs are a small part of the pass"
figure = plotting.draw_bars(
    {part: 100 * share for part, share in shares.items()},
    unit="",
    title="Forward pass of 100 digits",
)
figure.axes[0].set_xlabel("share of the time, % (measured)")
plotting.show(
    figure,
    alt="Bars of the shares of max pooling, convolutions, additions and ReLUs.",
)

# %% tags=["hide-input", "nbval-ignore-output"]
small_share = shares["additions"] + shares["ReLUs"]
print(f"without additions and ReLUs: {1 / (1 - small_share):.2f} times as fast (modelled)")
print(f"all layers fused: {ladder.rung(FUSED).speedup:.2f} times as fast (measured)")

# %% [markdown] tags=["explain"]
# On our core, max pooling took 52 % of the time, the convolutions took 38 %, and the additions and ReLUs took 8 % (measured). Pooling compares
# values, and the processor probably often guesses wrongly which one is larger ([branch prediction](glossary.md#branch-prediction)). If the 8 %
# vanished, the pass would be 1 / 0.92, or 1.09 times as fast by [Amdahl's law](glossary.md#amdahls-law) (modelled). With all layers fused, it
# became 1.08 times as fast (measured).
#
# **To remember.** Fusion pays if a large output needs little work. On an H100 in bfloat16, bias and ReLU in two kernels of their own cost as much as
# a 3 × 3 convolution that reads 131 channels.
#
# So far we have only gone forward. But the issue is called "Bottleneck in mapreducedim", and the kernel of that name runs on the way back. What is slow
# about it?

# %% [markdown] tags=["slide"] minutes=2 headline="The gradient of a broadcast is a sum"
# ## Part 4: the way back
#
# What does a bias cost in the backward pass? This was the first question of the issue, where a kernel for sums took a time that its author called
# "probably a bit big".
#
# - Forward, a bias is added at every pixel of every image
# - Backward, the gradients of all these outputs are added up
# - 784,000 values per bias, for 1,000 digits
#
# One of Flux's authors named the likely cause on the same day. In the forward pass each bias is *broadcast*, which means that it is added at every
# pixel of its channel in every image. If the bias grows a little, all these outputs grow as much, so its gradient is the sum of their gradients. In
# our first layer with 1,000 digits, the gradient of each of the 16 biases is a sum of 784,000 values.
#
# For our layer the kernel reads 50.2 MB and writes 16 numbers. That is half the bytes of a copy, so why was it slow? The issue links its code, and
# lesson 03 tells you what to look for. For so few results, the code starts one block per result, with at most 512 threads.

# %% tags=["predict"]
busy = helpers.predict(
    "If a kernel starts one block for each of 16 biases, "
    "how many of an H100's 132 multiprocessors can work on the sum?",
    "busy",
)
busy

# %% tags=["run"]
blocks, multiprocessors = 16, 132

# %% tags=["look"]
busy.reveal(modelled=min(blocks, multiprocessors))

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=1 headline="Few results leave most of the GPU idle"
plotting.show(
    fused_bias.draw_busy(
        blocks, multiprocessors=multiprocessors, title="An H100 with one block per bias"
    ),
    alt="Of 132 squares 16 are busy and 116 are idle.",
)

# %% [markdown] tags=["explain"]
# Only 16 can, because a block runs on one [multiprocessor](glossary.md#multiprocessor). There are also too few bytes in flight. Suppose that each of
# the 16 × 512 threads waits for one value of 4 bytes. Then 33 kB are on their way at any moment. If a load takes 347 ns, as in lesson 03, that makes
# 94 GB/s, less than 3 % of an H100's 3,350 GB/s. The sum then takes 0.53 ms instead of 0.015 (modelled). The kernel gives a block to each result,
# which is fine for a thousand results, but a layer has few biases.
#
# There are two remedies. The first is to cut each channel into pieces, so that many blocks add up one piece each, and to add up the pieces in a second
# step. A single core has no idle neighbours, but even here the program matters.
#
# **Your turn.** Add up the gradients of each channel in two steps. Every image is a piece.


# %% tags=["yours"] yours="bias_gradient" takes=5
def bias_gradient(grad):
    """Return the sum of grad (images, channels, rows, columns) per channel, in two steps."""
    per_image = grad.sum(dim=(2, 3))  # (images, channels)
    return per_image.sum(dim=0)  # (channels)


# %% checks="bias_gradient"
bias_gradient = check(bias_gradient)


# %% wrong="bias_gradient" says="Do not average them"
def bias_gradient(grad):
    return grad.mean(dim=(2, 3)).mean(dim=0)


# %% wrong="bias_gradient" says="One operator adds up everything"
def bias_gradient(grad):
    return grad.sum(dim=(0, 2, 3))


# %% wrong="bias_gradient" says="for each image"
def bias_gradient(grad):
    total = torch.zeros(grad.shape[1])
    for image in grad:
        total += image.sum(dim=(1, 2))
    return total


# %% wrong="bias_gradient" says="one sum per image"
def bias_gradient(grad):
    return grad.sum(dim=(2, 3)).sum(dim=1)


# %% right="bias_gradient" style=1
def bias_gradient(grad):
    images, channels = grad.shape[:2]
    planes = grad.reshape(images * channels, -1)
    return planes.sum(1).view(images, channels).sum(0)


# %% right="bias_gradient" style=2
def bias_gradient(grad):
    per_image = torch.einsum("nchw->nc", grad)
    return torch.ones(len(grad)) @ per_image


# %% tags=["hide-input", "run"]
whole_numbers = torch.randint(-8, 9, (50, 16, 28, 28)).float()  # these add up exactly
broadcast = torch.zeros(16, requires_grad=True)
(torch.zeros_like(whole_numbers) + broadcast.view(1, -1, 1, 1)).backward(whole_numbers)
matching = int((bias_gradient(whole_numbers) == broadcast.grad).sum())
print(f"gradients as autograd computes them: {matching} of 16")
assert matching == 16
grad = torch.randn(1000, 16, 28, 28)
sums = timing.compare(
    {
        "in two steps": lambda: bias_gradient(grad),
        "sum over three dimensions": lambda: grad.sum(dim=(0, 2, 3)),
        "loop over the images": lambda: fused_bias.reduction("per image")(grad),
    },
    budget_s=2,
    device="cpu",
    precision=0.1,
)

# %% tags=["hide-input", "look", "nbval-ignore-output"]
rows = {
    row.name: [units.text(row.median_s, "s"), f"{row.time_ratio:.2f}"]
    for row in sums.candidates
}
pd.DataFrame(rows, index=["time (measured)", "relative to two steps"]).T

# %% tags=["hide-input", "look"]
sums.claim(
    "a loop over the images takes longer than two steps", "loop over the images", at_least=1.3
)

# %% [markdown] tags=["explain"]
# On our core, for 50.2 MB each, a loop over the images took 11.1 ms, PyTorch's `sum` over three dimensions took 6.2 ms, and a sum in two steps took
# 4.1 ms (measured).
#
# The second remedy is fusion again. Just before the sum, the backward pass of the ReLU reads the gradient and the output and writes a new gradient,
# which the sum reads once more. A kernel can add up what it writes.

# %% tags=["hide-input"]
rows = {}
for variant, name in {"separate": "ReLU, then the sum", "one-pass": "both in one"}.items():
    backward = fused_bias.traffic(variant, (1000, 16, 28, 28), phase="backward")
    rows[name] = [f"{backward.read_bytes:,}", f"{backward.written_bytes:,}"]
pd.DataFrame(rows, index=["bytes read", "bytes written"]).T

# %% [markdown]
# Two kernels move four times the tensor, and one kernel moves it only three times, beside 64 bytes of results. In 2022 the authors of `torch.compile`
# took the sum out of the convolution's backward pass, so that on a GPU it can be fused with its neighbours. One network went from 373 to 383 images
# per second ([PyTorch 89128](https://github.com/pytorch/pytorch/pull/89128), published).
#
# How much is there to gain? In the thread of the issue the readers did not agree. With cuDNN's own kernel for the sum, it took 10.2 % of the GPU's time in one profile of a
# training step, and about 28 % at a batch of 1,000 (published). One reader found that the bias dominated even so, and another that it cost little.
# Both can be right, because a share says as much about the rest of the step as about the sum.
#
# **To remember.** The gradient of a broadcast is a sum. With one block per result, 16 biases keep 16 of 132 multiprocessors busy, so count the
# results of a sum as well as its bytes.
#
# How does the whole issue look on your machine?

# %% [markdown]
# ## Back to the bet
#
# One kernel was 2.61 times as fast as the two. Here is the issue beside your machine, with the same ratio and the same baseline, which is one
# kernel for the convolution and one for bias and ReLU. The first two columns are the time of two kernels over that of one, and the last is the
# share of a training step that the gradients of the biases take. Your GPU has rows of its own, if you have one.

# %% tags=["hide-input", "run"]
machines = {}
fused_on_core = not (
    fused_bias.missing("broadcast", "cpu") or fused_bias.missing("post-op", "cpu")
)
if fused_on_core:
    story = fused_bias.measure_story(batches=(100,), device="cpu", budget_s=1)
    machines |= {f"one core here, {row.batch} digits": row for row in story.rows}
    convolution_s, bias_relu_s = (
        sum(row.total_s for row in story.profile.kernels if row.calls and part in row.name)
        for part in ("conv", "bias_relu")
    )
if torch.cuda.is_available():
    story = fused_bias.measure_story(device="cuda", budget_s=0.5)
    machines |= {f"this GPU, {row.batch:,} digits": row for row in story.rows}
for records in sending.gpus():
    for recording in records.recordings:
        if recording.lesson == "18":
            machines |= {
                f"{recording.device}, {row.batch:,} digits (sent in)": row
                for row in recording.result("story").rows
            }

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="A slow convolution hides its neighbours" source="Flux issue 558 (github.com/FluxML/Flux.jl)" numbers=[["the issue \\(published\\) +([\\d.]+)", "two kernels / one kernel, in the issue (published)"], ["one core here, \\d+ digits +([\\d.]+)", "two kernels / one kernel, on one core (measured)"], ["this core: ([\\d.]+)", "convolution / bias and ReLU on this core (measured)"]]
rows = {"the issue (published)": ["2.61", "2.31", "10.2 %"]}
for name, row in machines.items():
    ratios = [f"{row.layers_ratio:.2f}", f"{row.forward_ratio:.2f}"]
    rows[name] = [*ratios, f"{100 * row.bias_gradient_share:.1f} %"]
if fused_on_core:
    ratio = convolution_s / bias_relu_s
    print(f"convolution over bias and ReLU on this core: {ratio:.1f} (measured)")
pd.DataFrame(rows, index=["three layers", "forward pass", "bias gradients"]).T

# %% [markdown] tags=["explain"]
# On our core we measured 1.16, 1.04 and 0.8 % with 100 digits.
#
# Our gain is smaller, because our convolutions are slower. In the issue a convolution took half as long as bias and ReLU, and on our core it
# takes 4.7 times as long (measured, 100 digits). It is far from both limits. The 226 million operations of the first layer for 1,000 digits are
# 14 GFLOP/s in its 16.3 ms, far below the peak of a core (lesson 02), and its 53.3 MB would take 4.9 ms at the rate of the copy (modelled). A
# slow convolution hides the cost of its neighbours. When we wrote each layer as one better kernel, with the pooling inside, the forward pass
# became 4.9 times as fast as with three kernels (measured). [The appendix](appendix/18_fused_bias.ipynb) builds this kernel step by step, with
# [channels-last](glossary.md#channels-last) tensors and [Winograd's algorithm](glossary.md#winograds-algorithm).

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Fusion saves the bytes between kernels, and calls.
# 2. It pays if a large output needs little work.
# 3. Profile the whole program first.
#
# What became of the issue? It was closed as stale. The fused call was merged into Julia's GPU library, but the attempts to use it in Flux were closed
# as well ([1302](https://github.com/FluxML/Flux.jl/pull/1302), [1832](https://github.com/FluxML/Flux.jl/pull/1832)), the second one as housekeeping
# and not because of the idea. One obstacle was that the call had no gradient. Since 2024 Flux ([2327](https://github.com/FluxML/Flux.jl/pull/2327))
# adds the bias and applies the activation in one pass, in place, as your kernel does. Its author reports fewer allocations and some times that are
# slightly slower. PyTorch took the bias out of cuDNN in 2019 ([31524](https://github.com/pytorch/pytorch/pull/31524)), since its own addition was
# "faster, especially for backward", and a draft of 2026 ([192838](https://github.com/pytorch/pytorch/pull/192838)) would put it back, because cuDNN
# has a new interface by now. It reports about 10 % gain, but losses for [depthwise convolutions](glossary.md#depthwise-convolution). So the answer
# changes with the library. Count the bytes between your kernels, and then let a profile of your own program decide.
#
# The [exercises](exercises/18_fused_bias_exercises.ipynb) have you count the bytes of any chain of kernels, fuse it, write the gradient of any
# broadcast, and fuse two operators of your own.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A 3 × 3 convolution reads $c$ channels and computes at the rate $P$. Copies move $B$ bytes per second, and a value has $s$ bytes. A kernel took the
# share $q$ of a pass.
#
# | quantity | formula |
# |---|---|
# | bytes of addition and ReLU as two kernels, per output | $4\,s$ |
# | bytes of both in one pass, per output | $2\,s$ |
# | three kernels over one | $1 + \frac{4\,s}{B} \cdot \frac{P}{18\,c}$ |
# | time of a pass in which a kernel took $t$ | $\frac{t}{q}$ |
# | times as fast if the share $q$ vanishes | $\frac{1}{1 - q}$ |
