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
#     number: "12"
#     title: Fused bias
#     needs: ["02", "07"]
#     objectives:
#       - read|read a profile, your own before another machine's
#       - count|counted the bytes that each step of a layer moves, and from them what fusing is worth
#       - find|found for which batch and which layer fusing pays, and for which it does not
#       - write|wrote bias and ReLU as one pass in C++, right also for NaN
#       - derive|derived the gradient of a broadcast, with five programs for it and a way to lose it by rounding
#       - explain|explained why one operator takes half of a network's time without moving many bytes
# ---

# %% [markdown] tags=["objectives"]
# # Fused bias
#
# In January 2019 somebody profiled a small convolutional network on a GPU and found that the convolution was not what took the
# time. Adding the bias to its result, and cutting off what is below zero, took nearly twice as long: two operations an element,
# where a convolution of 3 by 3 that reads 32 channels has $2 \cdot 9 \cdot 32 = 576$.
#
# This lesson is that case, investigated again on your machine: the evidence, the motive, the repair, the question whether the
# right one was caught. You need no GPU; a C++ compiler is good to have. Outputs that you see below were printed on another machine. Clear
# them (Edit, Clear Outputs of All Cells) before you begin.

# %%
import functools

import pandas as pd
import torch
from torch import nn
from torch.nn import functional

import helpers
from helpers import native, plotting, profiling, recorded, results, timing, units
from helpers.studies import fused_bias

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch.backends.cudnn.allow_tf32 = False  # a GPU, too, computes in float32: TF32 would round each factor to 11 bits
grad_mode = torch.set_grad_enabled(False)  # all but Part 7 and the end is forward

# %% [markdown]
# Large tensors will come and go. On Linux with glibc the next line keeps the pages that they leave, so that no
# [page fault](glossary.md#page-fault) is timed in place of an operator (lesson 01). Without it, page faults would be most of what
# you measure in this lesson.

# %% tags=["nbval-ignore-output"]
helpers.steady_allocator()

# %% [markdown] tags=["slide"] minutes=1
# ## Part 1: a profile from 2019
#
# A network for digits, its layers convolution, bias, ReLU. How many times as long as bias and ReLU do the
# convolutions take?
#
# The profile is in [Flux.jl, issue 558](https://github.com/FluxML/Flux.jl/issues/558), and nobody has written down which network ran: the
# [example](https://github.com/FluxML/model-zoo) that it names had three versions within a month. We take one like it throughout, the version of February:
# three layers of 3 by 3, 1 to 16 to 32 to 32 channels, on images of 28, 14 and 7 pixels a side, since a 2 by 2 max pooling follows each. Count the
# [FLOP](glossary.md#flop) first. An output of a convolution is a sum of 9 products for each channel it reads; the bias is one addition, the ReLU one comparison.

# %% tags=["predict"]
convolution_ratio = helpers.predict("How many times as long as bias and ReLU did the convolutions take?", "x")
convolution_ratio

# %%
channels, sides = (1, 16, 32, 32), (28, 14, 7)
convolution_flops = bias_relu_flops = 0
for before, after, side in zip(channels, channels[1:], sides, strict=False):
    outputs = after * side**2
    convolution_flops += units.flops_from_macs(outputs * before * 9)
    bias_relu_flops += 2 * outputs
print(f"one digit, our network: {convolution_flops:,} FLOP of convolution, {bias_relu_flops:,} of bias and ReLU")

# %% [markdown]
# The profile in the issue has a line for each [GPU kernel](glossary.md#gpu-kernel), a function that the GPU runs: all its calls together,
# and their share of the time. These two lines stand at its top. The first was called `ptxcall_anonymous23_3`, because Julia made it out of
# $\sigma.(y \mathbin{.+} b)$: one kernel for bias and activation together, called as often as the convolution.

# %% tags=["run", "slide", "slide-output"] minutes=1
calls, total_ms = 2350, {"bias and ReLU": 184.91, "convolution": 98.559}
lines = {"share": [0.5996, 0.3196], "total_s": [total / 1000 for total in total_ms.values()], "calls": calls}
story = pd.DataFrame(lines, index=list(total_ms))
story["average_s"] = story["total_s"] / calls
story["shortest_s"], story["longest_s"] = [29.184e-6, 16.960e-6], [117.03e-6, 67.488e-6]
results.printed(story)

# %% tags=["look", "slide-output"]
convolution_ratio.reveal(
    modelled=convolution_flops / bias_relu_flops,
    published=total_ms["convolution"] / total_ms["bias and ReLU"],
    source="Flux.jl, issue 558",
)

# %% [markdown] tags=["explain"]
# The count of operations is wrong by two orders of magnitude for our network, and by one for the smallest of the three versions. So these
# kernels do not wait for arithmetic.
#
# The same GPU's library ([cuDNN](glossary.md#cudnn)) has one call that does all three: convolution, bias, ReLU. With it the issue reports 108.64 ms for
# the same 2,350 calls, 81.38 % of the time.

# %% tags=["explain", "slide", "slide-output"] minutes=1
fused_ms, whole_ms = 108.64, total_ms["bias and ReLU"] / 0.5996
print(f"two kernels against one that does all three: {sum(total_ms.values()) / fused_ms:.2f} times as fast")
print(f"the whole forward pass: {whole_ms / (fused_ms / 0.8138):.2f} times as fast")
print(f"fused against bare convolution: {fused_ms / total_ms['convolution']:.2f} times as long")

# %% [markdown] tags=["explain"]
# The bias and the ReLU are nearly free when the convolution does them. They are the same additions and comparisons. What did
# they cost before? And is it so on your machine?

# %% [markdown] tags=["slide"] minutes=1
# ## Part 2: the scene of the crime, here
#
# The first layer, written with PyTorch's three operators, each with a new tensor for its result. Which share of
# its time do bias and ReLU take?
#
# (The story's framework ran two kernels here, and PyTorch three: a scene like it, not the same.) The first of the three layers has by far the largest output for the least arithmetic. The batch is 1,000 digits.

# %%
batch, shape = 1000, (1000, 16, 28, 28)
x = torch.rand(batch, 1, 28, 28, device=device)
first = nn.Conv2d(1, 16, 3, padding=1).to(device)
weight, bias = first.weight.detach(), first.bias.detach()


def as_written(x, weight, bias):
    y = functional.conv2d(x, weight, padding=1)
    y = y + bias.view(1, -1, 1, 1)
    return torch.relu(y)


# %% tags=["predict"]
bias_share = helpers.predict("Which share of this layer's time do bias and ReLU take here?", "%")
bias_share

# %% tags=["run", "nbval-ignore-output", "slide", "slide-output"] minutes=1
profile = profiling.kernel_table(lambda: as_written(x, weight, bias), runs=5)
results.printed(profile.table().head(3)[["name", "share", "calls", "average_s", "minimum_s"]])

# %% [markdown]
# A profiler costs time itself, and one slow call spoils an average (hold it against the minimum). So we take the share from two runs
# without it: the layer, and its convolution alone.

# %% tags=["run", "nbval-ignore-output"]
alone = timing.compare(
    {
        "convolution": lambda: functional.conv2d(x, weight, padding=1),
        "layer": lambda: as_written(x, weight, bias),
    },
    budget_s=2,
    precision=0.1,
)
alone

# %% tags=["look", "nbval-ignore-output", "slide-output"]
bias_share.reveal(modelled=100 * 2 / (2 + 2 * 9), measured=100 * (1 - 1 / alone.candidate("layer").time_ratio))

# %% tags=["explain"]
alone.claim("the layer takes longer than its convolution", "layer", at_least=1.1)

# %% [markdown] tags=["explain"]
# The model is again that of the operations: 9 [multiply-accumulates](glossary.md#mac) an output, that is 18
# FLOP, against 2. Look for the names in the profile: on a CPU the bias is `aten::add`, the ReLU `aten::clamp_min`. Neither computes much. What else do they do?

# %% [markdown] tags=["slide"] minutes=1
# ## Part 3: count the bytes
#
# A kernel that works element by element reads a whole tensor and writes a whole tensor.
#
# Nothing stays in the [registers](glossary.md#register) from one kernel to the next. What the convolution had in its hands is written down, read, written
# again with the bias, read, and written a third time without its negative numbers.

# %% tags=["predict"]
moved = helpers.predict("How many bytes do the bias and the ReLU of this layer move, beside the convolution?", "B")
moved

# %% tags=["run", "slide-code"]
activation_bytes = batch * 16 * 28 * 28 * 4
by_hand = 2 * (activation_bytes + activation_bytes)  # 2 kernels: read, write
counted = fused_bias.traffic("separate", shape)
print(f"by hand: {by_hand:,} bytes, counted: {counted.moved_bytes:,} bytes")

# %% tags=["look"]
moved.reveal(modelled=by_hand, counted=counted.moved_bytes)

# %% tags=["explain"]
print(f"the {counted.moved_bytes - by_hand} bytes of difference are the bias itself: 16 numbers of 4 bytes")

# %% [markdown] tags=["explain"]
# Seven programs for this layer follow, all with the same result; `fused_bias.layer(name)` gives each. "broadcast" is the story's: one kernel
# for bias and ReLU, with a new tensor. "in-place" writes over
# its input. "native" hands the bias to the convolution, as `nn.Conv2d` does. "post-op" hands over the ReLU as well: [oneDNN](glossary.md#onednn), the
# library that computes PyTorch's convolutions on most CPUs, and cuDNN on a GPU do both before they write. "compiled" is `torch.compile`. "one-pass" is a kernel of our own after the convolution;
# you will write it in Part 6. The table shows what each moves beside its convolution:

# %% tags=["look", "slide", "slide-output"] minutes=2
rows = {}
for name in fused_bias.VARIANTS:
    traffic = fused_bias.traffic(name, shape)
    kernels = ", then ".join(kernel.kernel for kernel in traffic.kernels) or "(none)"
    rows[name] = {"kernels": kernels, "read_bytes": traffic.read_bytes, "written_bytes": traffic.written_bytes}
results.printed(pd.DataFrame.from_dict(rows, orient="index"))

# %% [markdown] tags=["explain", "slide-more"]
# To write a kernel that does the work of several is [fusion](glossary.md#fusion). It saves no arithmetic. It saves the bytes
# between the kernels.
#
# First make sure that the programs are the same function:

# %%
small = (x[:50], weight, bias)
exact = as_written(*(tensor.double() for tensor in small))
ready = [name for name in fused_bias.VARIANTS if name != "compiled" and not fused_bias.missing(name, device)]
errors = {name: (fused_bias.layer(name)(*small) - exact).abs().max().item() for name in ready}
assert max(errors.values()) < 1e-5
print(f"largest difference from float64, of all programs that can run here: below {1e-5:g}")

# %% [markdown] tags=["explain"]
# Without a C++ compiler "broadcast" and "one-pass" are missing from that list; `fused_bias.missing("one-pass")` says why. "compiled" is left out of
# this lesson's runs because its first call takes long; Part 8 shows how long.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 4: from bytes to time
#
# $$t = \frac{\text{bytes}}{\text{bandwidth}} + \text{one call}, \quad\text{for each kernel}$$
#
# The [bandwidth](glossary.md#bandwidth) depends on where the bytes are, in a [cache](glossary.md#cache) or in main memory, and on
# how they are moved: reading is not writing, and writing over what was read is cheaper than writing elsewhere, because a processor
# as a rule reads a line before it writes a part of it. `probe` measures all that (lessons 01 and 02). For each kernel `model_time` takes the
# bandwidth of a probe with the same pattern of access and the same total size.

# %% tags=["nbval-ignore-output"]
limits = helpers.probe()
model = fused_bias.model_time(counted, limits)
results.printed(pd.DataFrame([kernel.to_dict() for kernel in model.kernels]))

# %% tags=["predict"]
separate_time = helpers.predict("How long do the add and the ReLU take together, on 50 MB?", "s")
separate_time

# %% tags=["run"]
beside = fused_bias.measure_kernels(shape, limits, device=device, budget_s=5)
forward = [row for row in beside.rows if row.phase == "forward"][::-1]
print(f"bytes of what was timed: {beside.row('separate').moved_bytes:,}, counted: {counted.moved_bytes:,}")

# %% tags=["look", "nbval-ignore-output"]
separate_time.reveal(modelled=model.modelled_s, measured=beside.row("separate").measured_s)

# %% tags=["look", "slide", "slide-output"] minutes=2
drawn = plotting.draw_three(
    [row.variant for row in forward],
    {"modelled": [row.modelled_s for row in forward], "measured": [row.measured_s for row in forward]},
    unit="s",
    title="What follows the convolution, batch 1,000",
    xlabel="program",
)
alt = "Bars of modelled and measured time of bias and ReLU for each program; separate kernels take longest."
plotting.show(drawn, alt=alt)

# %% tags=["explain"]
timing.claim(
    "every program takes about its bytes over the bandwidth",
    [1 / row.model_ratio for row in forward],
    at_least=0.4,
    at_most=2.5,
    evidence=[beside, limits],
)

# %% [markdown] tags=["explain"]
# Compare the bars of one colour with one another: among the programs that write in place, fewer bytes, less time; and so among
# the two that write a new tensor, "broadcast" and "separate". ("post-op" moves none after the convolution, so it has no bar.) Compare the two colours: where the measured bar is longer, something besides the bytes took time, or the machine was busy while
# it was probed or while it ran; `beside.stable` and `beside.reason` tell which measurement not to trust. Where it is shorter, the
# kernel is better than the operator of PyTorch whose bandwidth stands in the model.
#
# Both colours are of loops: each program here runs once before it is timed, so it finds in the caches what it left there itself. In a
# network the cache holds the end of the previous layer's output, so "one-pass" works from the last block of the tensor to the first.
#
# Why does "separate" take longer than "in-place", with the same count? It writes to a new tensor, and a CPU first reads a line before writing
# it: a third transfer that our count omits. And it goes through more memory: three tensors of 50 MB, where "in-place" stays in one.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 5: when does it pay?
#
# $$\frac{\text{separate}}{\text{fused}} = 1 + \frac{t_{bytes}}{t_{convolution}}$$
#
# A fused layer takes the time of its convolution; a separate one takes $t_{convolution} + t_{bytes}$. So fusing pays where the convolution is short and its output is long: few channels to read, large images. For the model we
# measure the bare convolution and model the bytes.


# %%
FUSED = "native" if fused_bias.missing("post-op", device) else "post-op"


@functools.cache
def race(batch, in_channels, out_channels, pixels):
    """Time the layer fused, separate, and its convolution alone, in turns."""
    x = torch.rand(batch, in_channels, pixels, pixels, device=device)
    layer = nn.Conv2d(in_channels, out_channels, 3, padding=1).to(device)
    given = (x, layer.weight.detach(), layer.bias.detach())
    programs = {name: functools.partial(fused_bias.layer(name), *given) for name in (FUSED, "separate")}
    programs["convolution"] = functools.partial(functional.conv2d, *given[:2], padding=1)
    return timing.compare(programs, budget_s=0.6, precision=0.1)


# %% tags=["predict"]
layer_ratio = helpers.predict(
    "First layer, batch 1,000: how many times as long as the fused one is the separate one?", "x"
)
layer_ratio


# %% tags=["run"]
def modelled_ratio(batch, in_channels, out_channels, pixels):
    convolution_s = race(batch, in_channels, out_channels, pixels).candidate("convolution").median_s
    counted = fused_bias.traffic("separate", (batch, out_channels, pixels, pixels))
    return 1 + fused_bias.model_time(counted, limits).modelled_s / convolution_s


def measured_ratio(batch, in_channels, out_channels, pixels):
    return race(batch, in_channels, out_channels, pixels).candidate("separate").time_ratio


# %% tags=["look", "nbval-ignore-output"]
layer_ratio.reveal(modelled=modelled_ratio(1000, 1, 16, 28), measured=measured_ratio(1000, 1, 16, 28))

# %% tags=["explain"]
race(1000, 1, 16, 28).claim("the separate layer takes longer than the fused one", "separate", at_least=1.1)

# %% [markdown] tags=["slide"] minutes=1
# ### Which layer, which batch?
#
# All three layers, from one digit to a thousand. Before you look: does the ratio grow or fall with the batch? Is it the same for
# the last layer?
#
# The broken line in the figure is what the [roofline](glossary.md#roofline) alone allows: there the convolution itself is modelled,
# as if it reached the machine's peak or its bandwidth.

# %% tags=["predict"]
last_ratio = helpers.predict("Last layer (32 to 32 channels, 7 by 7), batch 1,000: separate over fused?", "x")
last_ratio


# %% tags=["run"]
def draw_layer(in_channels, out_channels, pixels):
    batches = (1, 10, 100, 1000)
    settings = [(batch, in_channels, out_channels, pixels) for batch in batches]
    sizes = {"in_channels": in_channels, "out_channels": out_channels, "pixels": pixels, "limits": limits}
    curves = {
        "modelled": [modelled_ratio(*setting) for setting in settings],
        "measured": [measured_ratio(*setting) for setting in settings],
        "roofline": [fused_bias.model_ratio(batch, **sizes).separate_per_fused_ratio for batch in batches],
    }
    title = f"{in_channels} to {out_channels} channels, {pixels} x {pixels} pixels"
    names = {"xlabel": "batch", "ylabel": "separate : fused, times", "size_unit": ""}
    return plotting.draw_curves(batches, curves, unit="", title=title, log=False, **names)


helpers.interactive_figure(
    draw_layer,
    {"in_channels": [1, 3, 16, 32], "out_channels": [16, 32], "pixels": [7, 14, 28]},
    views=[
        {"in_channels": before, "out_channels": after, "pixels": side}
        for before, after, side in zip(channels, channels[1:], sides, strict=False)
    ],
    alt=lambda in_channels, out_channels, pixels: (
        f"Time of the separate layer over that of the fused one by batch, modelled, measured and by the roofline, for "
        f"{in_channels} to {out_channels} channels and {pixels} by {pixels} pixels."
    ),
)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2
layers = list(zip(channels, channels[1:], sides, strict=False))
table = [{f"batch {n:,}": measured_ratio(n, *layer) for n in (1, 10, 100, 1000)} for layer in layers]
rows = [f"{before} to {after}, {side} x {side}" for before, after, side in layers]
pd.DataFrame(table, index=rows).rename_axis("separate : fused", axis="columns").round(2)

# %% tags=["look", "nbval-ignore-output"]
last_ratio.reveal(modelled=modelled_ratio(1000, 32, 32, 7), measured=measured_ratio(1000, 32, 32, 7))

# %% tags=["explain"]
timing.claim(
    "separate over fused is larger in the first layer than in the last",
    measured_ratio(1000, 1, 16, 28) / measured_ratio(1000, 32, 32, 7),
    at_least=1.1,
    evidence=[race(1000, 1, 16, 28), race(1000, 32, 32, 7)],
)

# %% [markdown] tags=["explain"]
# The last layer reads 32 channels for each output: 288 multiply-accumulates, against 9 in the first. Its output is small beside
# that work, and fusing is worth next to nothing.
#
# For small batches the measured points may lie below 1: fused is *slower*. The model knows no such thing. Look at the three programs
# for one digit:

# %% tags=["look", "nbval-ignore-output"]
race(1, 1, 16, 28)

# %% [markdown] tags=["explain"]
# At batch 1 all tensors fit a cache and the bytes cost nearly nothing; what counts is the fixed price of a call. On the machine that
# printed this the fused operator takes several times as long as the bare convolution, whose arithmetic is the same: oneDNN's price
# for it is higher, and the Python function around it adds its own. Nothing in a count of bytes warns you of that. Measure.
#
# Without oneDNN "native" stands for the fused layer here; then the ReLU is still a pass of its own, and the ratio is lower.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 6: write the kernel
#
# One pass: read an element, add its channel's bias, cut off below zero, write it where it was.
#
# A plane is one image's channel: 28 by 28 numbers that lie side by side and share one bias. Here is the C++, the whole of it. The
# line that decides is a parameter, `RULE`, for a reason that comes soon. (This part runs on the CPU also where there is a GPU.)

# %% tags=["slide-code"]
SOURCE = """#include <cstdint>
extern "C" void bias_relu(float* y, const float* bias,
                          int64_t planes, int64_t channels, int64_t pixels) {
    for (int64_t plane = 0; plane < planes; ++plane) {
        float b = bias[plane % channels];
        float* row = y + plane * pixels;
        for (int64_t i = 0; i < pixels; ++i) {
            float v = row[i] + b;
            row[i] = RULE;
        }
    }
}"""


# %%
DECLARATION = "void bias_relu(float* y, const float* bias, int64_t planes, int64_t channels, int64_t pixels)"


def build(rule):
    """Compile the kernel with a rule for the ReLU; None where there is no compiler."""
    flags = (*native.CPP_FLAGS, "-fno-trapping-math")
    try:
        kernel = native.compile_cpp(SOURCE.replace("RULE", rule), flags=flags).function(DECLARATION)
    except native.NativeError:
        return None
    return lambda y, bias: kernel(y, bias, y.shape[0] * y.shape[1], y.shape[1], y.shape[2] * y.shape[3])


kernel = build("v > 0 ? v : 0")


# %% [markdown]
# (The extra flag says that nobody listens for floating-point exceptions. Without it a compiler may refuse to compare several numbers
# with one instruction. Where there is no compiler, `build` returns None, and the checks below have nothing to contradict.) Is the
# kernel right?


# %%
def same_as_torch(kernel, y, bias):
    """Whether the kernel's result is torch's, bit for bit up to the sign of zero; True where nothing could run."""
    if kernel is None:
        return True
    expected = torch.relu(y + bias.view(1, -1, 1, 1))
    kernel(y, bias)
    return torch.equal(y.nan_to_num(nan=-1.0), expected.nan_to_num(nan=-1.0))


bias_cpu = bias.cpu()
assert same_as_torch(kernel, torch.randn(3, 16, 5, 7), bias_cpu)
print("on 1,680 random numbers nothing differs from torch")

# %% [markdown] tags=["slide"] minutes=1
# ### What went wrong here?
#
# The kernel has passed its test on random numbers. It hides a broken training all the same. How?
#
# Think of the numbers that `randn` never gives. A training that has gone wrong gives them soon: a division of zero by zero, a sum
# that has overflowed.

# %% tags=["slide", "slide-output"] minutes=1
odd = torch.tensor([1.0, -1.0, 0.0, float("inf"), -float("inf"), float("nan")])
print("the numbers:   ", odd.tolist())
print("torch.relu:    ", torch.relu(odd).tolist())
print("v > 0 ? v : 0: ", torch.where(odd > 0, odd, 0.0).tolist())
print("v <= 0 ? 0 : v:", torch.where(odd <= 0, 0.0, odd).tolist())

# %% [markdown] tags=["explain"]
# NaN compares as false with everything, so the first rule turns "not a number" into a zero, and the loss looks healthy. The second
# rule lets it pass, as torch does. One comparison, turned around:

# %%
repaired = build("v <= 0 ? 0 : v")
ill = torch.randn(3, 16, 5, 7)
ill[0, 0, 0, 0] = float("nan")
assert same_as_torch(repaired, ill.clone(), bias_cpu)
assert kernel is None or not same_as_torch(kernel, ill.clone(), bias_cpu)
print("with a NaN among them, the first kernel fails the test and the repaired one passes")

# %% [markdown]
# Now the time. PyTorch's own in-place program, `add_` and then `relu_`, reads the tensor twice and writes it twice.

# %% tags=["predict"]
in_place_ratio = helpers.predict(
    "In place on 50 MB, one thread: how many times as fast as add_, relu_ is one pass?", "x"
)
in_place_ratio

# %% [markdown]
# `bias_relu_` is the library's kernel: the same idea with vectors written out, threads, three types of number, and both orders in
# memory. `mul_` by 1 reads and writes the tensor and does nothing else: it is PyTorch's simplest pass in place.

# %% tags=["run", "nbval-ignore-output"]
y, bias_small = torch.rand(shape), torch.full((16,), 1e-3)
column = bias_small.view(1, -1, 1, 1)
programs = {"add_, relu_": lambda: y.add_(column).relu_(), "mul_": lambda: y.mul_(1.0)}
if repaired is not None:
    programs["yours"] = lambda: repaired(y, bias_small)
    programs["bias_relu_"] = lambda: fused_bias.bias_relu_(y, bias_small)
with timing.fixed_threads(1):
    passes = timing.compare(programs, budget_s=2, device="cpu", precision=0.05)
passes

# %% tags=["look", "nbval-ignore-output"]
if repaired is not None:
    two_s, one_s = (fused_bias.traffic(name, shape).moved_bytes for name in ("in-place", "one-pass"))
    in_place_ratio.reveal(modelled=two_s / one_s, measured=1 / passes.candidate("yours").time_ratio)

# %% tags=["explain"]
claim, bounds = "one pass takes less time than two", {"at_most": 0.8}
passes.claim(claim, "yours", **bounds) if repaired is not None else timing.claim(claim, None, **bounds)

# %% [markdown] tags=["explain"]
# Half the bytes, about half the time: twelve lines are enough for that, since all
# these programs wait for the same memory. What the library's kernel has beyond yours, several places in turns and an order from the
# end, is for a network, where the layer before has just written (Part 4); in this loop it may even be slower than yours. In a cache it is another matter: there the instructions count, and so does the price of a call.
#
# On a GPU the idea is the same and the language is CUDA C++ or Triton, a Python for GPU kernels; `helpers.studies.fused_bias._triton_kernels` holds those
# kernels. To be of use in a network the function also needs a gradient.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 7: backward
#
# $$y_{nchw} = x_{nchw} + b_c \quad\Rightarrow\quad \frac{\partial L}{\partial b_c} = \sum_{n,h,w} \frac{\partial L}{\partial y_{nchw}}$$
#
# Forward, one number $b_c$ is copied to every image and pixel of its channel. Change it by a little, and all those outputs change
# by as much; the loss changes by the sum of what each does to it. So the gradient of a broadcast is a sum over the places to which
# it was copied. (And the gradient of a sum is a broadcast.)

# %%
grad = torch.randint(-8, 9, (4, 3, 5, 5)).float()
with torch.enable_grad():
    b = torch.zeros(3, requires_grad=True)
    (torch.zeros(4, 3, 5, 5) + b.view(1, -1, 1, 1)).backward(grad)
print("autograd:", b.grad.tolist())
print("the sum: ", grad.sum((0, 2, 3)).tolist())

# %% [markdown]
# A sum of 50 MB gives 16 numbers: hardly any bytes are written, all are read. Five programs for it:
#
# - "per image" is a loop over the images that adds up their sums;
# - "sum" is `grad.sum((0, 2, 3))`, what autograd does for a broadcast;
# - "two-step" sums each plane, then the images: `grad.sum((2, 3)).sum(0)`;
# - "ones" multiplies each plane by a vector of ones, so that a library's matrix product does the adding;
# - "one-pass" is our C++ kernel (on a GPU Triton's).
#
# All give the same sums. (The numbers below are whole, so float32 adds them up exactly in any order.)

# %%
whole = torch.randint(-8, 9, (20, 16, 28, 28), device=device).float()
can_run = [name for name in fused_bias.REDUCTIONS if name != "one-pass" or not fused_bias.missing(name, device)]
sums = [fused_bias.reduction(name)(whole) for name in can_run]
assert all(torch.equal(total, sums[0]) for total in sums)
print(f"the sum of channel 0: {sums[0][0].item():.0f}, by every program")

# %% tags=["predict"]
reduction_ratio = helpers.predict("All read the same 50 MB. How many times as long as the fastest is the slowest?", "x")
reduction_ratio

# %% tags=["run", "nbval-ignore-output"]
reductions = fused_bias.measure_reductions(shape, device=device, budget_s=2)
reductions

# %% tags=["look", "nbval-ignore-output"]
medians_s = {row.name: row.median_s for row in reversed(reductions.candidates)}
reduction_ratio.reveal(modelled=1, measured=max(medians_s.values()) / min(medians_s.values()))

# %% tags=["look"]
read_s = activation_bytes / fused_bias.bandwidth_at(limits, activation_bytes, by="read")
names = list(medians_s)
drawn = plotting.draw_three(
    names,
    {"modelled": [read_s] * len(names), "measured": list(medians_s.values())},
    unit="s",
    title="Bias gradient of 50 MB",
    xlabel="program",
)
plotting.show(drawn, alt="Bars of the time of each program for the bias gradient beside that of reading 50 MB once.")

# %% tags=["explain"]
slowest = max(medians_s.values()) / min(medians_s.values())
timing.claim("with the same bytes the slowest program takes longer", slowest, at_least=1.5, evidence=reductions)

# %% [markdown] tags=["explain"]
# The bytes are a lower bound, and how near a program comes to it is its own affair: for a general reduction over three of four
# dimensions it is harder to be good than for a sum along rows. In another order of the numbers others win:
# `fused_bias.measure_reductions(shape, channels_last=True)` shows it. This sum is what the issue is about: its title is "Bottleneck in mapreducedim", which was such a general reduction. With cuDNN's kernel the sum took 10.2 % of the GPU's time in a
# profile whose batch is given as around 100, and about 28 % at 1,000: its readers did not agree whether that is little.

# %% [markdown] tags=["slide"] minutes=1
# ### How exact must a sum be?
#
# There is a second way to be wrong. Add up a thousand ones, in bfloat16, one after the other. What comes out?

# %% tags=["slide", "slide-output"] minutes=1
running, one = torch.zeros((), dtype=torch.bfloat16), torch.ones((), dtype=torch.bfloat16)
for _ in range(1000):
    running += one
at_once = torch.ones(1000, dtype=torch.bfloat16).sum()
print(f"one after the other: {running.item():g}, by torch.sum: {at_once.item():g}")

# %% [markdown] tags=["explain"]
# A bfloat16 has eight significant bits. From 256 on the next number is 258, and $256 + 1$ rounds back to 256. A kernel for a gradient
# must therefore add up in a wider type and round once, at the end; on a CPU `bias_gradient` adds short runs in float32 and
# the runs in float64. (The 1000 above is exact: it needs seven bits.)
#
# The last step is fusion again. The ReLU's gradient needs a pass over the gradient and the output (two reads, one write), and its
# result is then read once more for the sum. One kernel can add up what it writes:

# %%
for name in ("separate", "one-pass"):
    backward = fused_bias.traffic(name, shape, phase="backward")
    kernels = ", then ".join(kernel.kernel for kernel in backward.kernels)
    print(f"{name}: {backward.moved_bytes / activation_bytes:.2f} tensors moved ({kernels})")

# %% tags=["predict"]
backward_ratio = helpers.predict("On 50 MB: how many times as long as the one kernel do the two take?", "x")
backward_ratio

# %% [markdown]
# Part 4 has timed them already, in turns with the forward kernels.

# %% tags=["run", "nbval-ignore-output"]
backward = {row.variant: row for row in beside.rows if row.phase == "backward"}
columns = ["variant", "moved_bytes", "modelled_s", "measured_s"]
results.printed(pd.DataFrame([row.to_dict() for row in backward.values()])[columns])

# %% tags=["look", "nbval-ignore-output"]
if "one-pass" in backward:
    two, one = backward["separate"], backward["one-pass"]
    backward_ratio.reveal(modelled=two.modelled_s / one.modelled_s, measured=two.measured_s / one.measured_s)

# %% tags=["explain"]
seconds = {name: row.measured_s for name, row in backward.items()}
sentence, bounds = "one kernel backward takes less time than two", {"at_most": 0.95}
if "one-pass" in seconds:
    timing.claim(sentence, seconds["one-pass"] / seconds["separate"], **bounds, evidence=beside)
else:
    timing.claim(sentence, None, **bounds)

# %% [markdown] tags=["explain"]
# By bytes alone the ratio is 4 to 3. The model departs from that a little, since it takes the probe's rate of each kernel, and the bias
# gradient only reads. The measured ratio may be larger: our C++ kernel writes a large tensor past the caches, which saves the fetching of
# each line before it is written.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 8: who fuses today?
#
# | year | what was decided |
# |---|---|
# | 2019 | PyTorch: bias out of cuDNN |
# | 2020 | Flux: fused call not merged |
# | 2022 | dlib: separate; 2023: fused |
# | 2023 | Flux: bias and activation in place |
# | 2026 | PyTorch: a draft puts it back |
#
# Fewer bytes, always. Faster, not always: the answer has flipped more than once, and both sides had measured.
#
# | when | where | what they found |
# |---|---|---|
# | 2017 | [PyTorch 3823](https://github.com/pytorch/pytorch/issues/3823) | cuDNN's fused call allowed no activation "identity", so the bias alone could not be fused |
# | 2019 | [OpenCV 16254](https://github.com/opencv/opencv/pull/16254) | convolution, bias and ReLU in one call: a whole Mask R-CNN on a GTX 1050 from 187.6 to 180.3 ms |
# | 2019 | [PyTorch 31524](https://github.com/pytorch/pytorch/pull/31524) | bias taken out of cuDNN's convolution: PyTorch's own add is "faster, especially for backward" |
# | 2020 | [NNlib 228](https://github.com/FluxML/NNlib.jl/pull/228), [CUDA 321](https://github.com/JuliaGPU/CUDA.jl/pull/321), [Flux 1302](https://github.com/FluxML/Flux.jl/pull/1302) | the story's repair: merged in the two libraries below; in Flux closed without being merged |
# | 2021 | [PyTorch 68506](https://github.com/pytorch/pytorch/issues/68506) | `cudnn_convolution_relu` is 17 times slower for 7 by 7 filters in [channels-last](glossary.md#channels-last) |
# | 2022, 2023 | dlib, a C++ library: [2656](https://github.com/davisking/dlib/pull/2656), [2839](https://github.com/davisking/dlib/pull/2839) | one call is slower, so two; then one again, for the one algorithm where it is 8 to 13 % faster |
# | 2022 | [torchdynamo 403](https://github.com/pytorch/torchdynamo/pull/403) | the compiler takes the bias off the convolution and gives it a kernel of its own, which fuses with what follows |
# | 2023 | [NNlib 457](https://github.com/FluxML/NNlib.jl/pull/457), [Flux 2327](https://github.com/FluxML/Flux.jl/pull/2327) | what Flux has instead: `bias_act!`, bias and activation in one pass over the convolution's result, in place |
# | 2026 | [PyTorch 192838](https://github.com/pytorch/pytorch/pull/192838) | a draft that puts the bias back into cuDNN: about 10 % faster, slower for [depthwise convolutions](glossary.md#depthwise-convolution) |
#
# On a CPU oneDNN calls these [post-operations](https://oneapi-src.github.io/oneDNN/dev_guide_attributes_post_ops.html), and says
# of them that they reduce the pressure on memory bandwidth. PyTorch gives its convolutions a bias there, and the ReLU only when a
# compiler asks. Why the flips? Each library's fused kernel is another kernel, with its own algorithm and its own gaps. What is saved in
# bytes may be lost in a slower convolution.
#
# Compilers fuse without being asked, and take their time. Here is this network's forward pass, 100 images. It was recorded once,
# because the first call takes seconds (`prepared`: until the first result), and because ONNX Runtime is no part of this course's
# environment. (The shorter time of the second compilation is partly warm-up.)

# %%
recorded.show("12-cpu", "compilers")

# %% [markdown] tags=["slide"] minutes=1
# ## Part 9: profile again
#
# The layer is repaired. How many times as fast is the whole network?
#
# One batch of 100 real digits. For a model, take the three layers that you raced in Part 5: their separate times
# over their fused times.

# %%
images, labels = next(iter(helpers.make_MNIST_loader(100)))
images, labels = images.to(device), labels.to(device)
net = fused_bias.Convnet("separate").to(device)
print(f"{sum(weight.numel() for weight in net.parameters()):,} parameters, logits {tuple(net(images).shape)}")

# %% tags=["predict"]
net_ratio = helpers.predict(
    "With all three layers fused: how many times as fast is the forward pass of the network?", "x"
)
net_ratio

# %% tags=["run"]
races = [race(100, *layer) for layer in layers]
layers_s = {name: sum(one.candidate(name).median_s for one in races) for name in (FUSED, "separate")}
pair = fused_bias.measure_ladder(images, labels, rungs=["separate", FUSED], model=net, budget_s=1)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
net_ratio.reveal(modelled=layers_s["separate"] / layers_s[FUSED], measured=pair.rung(FUSED).speedup)

# %% [markdown] tags=["explain", "slide"] minutes=1
# ### What went wrong here?
#
# We took the suspect from another machine's profile, and convicted it on ours.
#
# We did profile: the one layer that we already suspected. Now the profile that should have come first, of the whole network.

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
before = profiling.kernel_table(lambda: net(images), runs=10)
results.printed(before.table().head(6)[["name", "share", "calls"]])

# %% [markdown] tags=["explain"]
# On the machine that printed this the line at the top is the max pooling, which no one had suspected; the bias (`aten::add`) and the
# ReLU (`aten::clamp_min`) stand below. If a share $s$ of
# the time is made $k$ times as fast, the whole is $1 / (1 - s + s/k)$ times as fast ([Amdahl's law](glossary.md#amdahls-law)). What if $k$ is infinite?

# %%
for part, share in {"a twentieth": 1 / 20, "a tenth": 1 / 10, "a half": 1 / 2}.items():
    print(f"{part} of the time removed: {1 / (1 - share):.2f} times as fast")

# %% [markdown] tags=["slide"] minutes=1
# ### What does max pooling do all the time?
#
# It reads the activation once and writes less than one. Its bytes do not explain it.
#
# A quarter are the maxima. Twice their bytes are their places in the image, for the backward pass, also when there will be none.
# (The experiments with it run on the CPU, also where there is a GPU.)

# %%
sample = torch.rand(100, 16, 28, 28)
maxima, places = functional.max_pool2d(sample, 2, return_indices=True)
print(f"read {sample.nbytes:,} bytes, write {maxima.nbytes:,} of maxima and {places.nbytes:,} of places")
print(f"in activations: {(sample.nbytes + maxima.nbytes + places.nbytes) / sample.nbytes:.2f}, add and ReLU move 4")

# %% [markdown]
# So let us ask it in another manner. We change nothing but the *values*: random ones, the same sorted along each row, all zero.
# Same bytes, same operations, same program.

# %% tags=["predict", "slide-output"]
zeros_ratio = helpers.predict("How many times as long as zeros do random numbers take to pool?", "x")
zeros_ratio

# %% tags=["run", "nbval-ignore-output"]
values = {"zeros": torch.zeros_like(sample), "sorted": sample.sort(dim=-1).values, "random": sample}
pooled = timing.compare(
    {name: functools.partial(functional.max_pool2d, value, 2) for name, value in values.items()},
    budget_s=2,
    device="cpu",
    precision=0.2,
)
pooled

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
zeros_ratio.reveal(modelled=1, measured=pooled.candidate("random").time_ratio)

# %% tags=["explain"]
pooled.claim("random numbers take longer to pool than zeros", "random", at_least=1.5)

# %% [markdown] tags=["explain", "slide-more"]
# A time that depends on the values points to a branch: "if this one is larger, remember it".
#
# A processor guesses which way a branch goes and works on ahead; random values make it guess wrong, and what it did ahead is thrown
# away ([branch prediction](glossary.md#branch-prediction)). In a sorted row the right neighbour is never the smaller, so some of the
# guesses are easy. Channel after channel, row by row, one number at a time.
#
# That order in memory is called NCHW: image, channel, row (height), column (width). The other one, channels-last, has the 16 channels of a pixel side by side. There
# neighbouring numbers belong to different maxima, and a vector of them can be compared at once, without a branch.

# %% tags=["look", "nbval-ignore-output"]
orders = {"NCHW": sample, "channels-last": sample.contiguous(memory_format=torch.channels_last)}
layouts = timing.compare(
    {name: functools.partial(functional.max_pool2d, value, 2) for name, value in orders.items()},
    budget_s=1,
    device="cpu",
    precision=0.1,
)
layouts

# %% tags=["explain"]
assert torch.equal(*(functional.max_pool2d(value, 2) for value in orders.values()))
layouts.claim("channels-last the same maxima take less time", "channels-last", at_most=0.5)

# %% [markdown] tags=["explain"]
# No secret: ["max_pool2d CPU forward performance is poor"](https://github.com/pytorch/pytorch/issues/51393) is an open issue of 2021.
# With vectors for channels-last, [their author](https://github.com/pytorch/pytorch/pull/42719) measured 9.6 times the speed on one core of a Xeon.
# (They came in by way of two more pull requests, [48917](https://github.com/pytorch/pytorch/pull/48917) and [56361](https://github.com/pytorch/pytorch/pull/56361).)

# %% [markdown] tags=["slide"] minutes=1
# ### The ladder
#
# Six programs for this network, over the one as written. How many times as fast is the best?
#
# All have the same weights and the same logits. Some fuse the pooling with bias and ReLU: `bias_relu_pool` reads the convolution's
# result once and writes a quarter. Some fuse the whole layer; [Winograd's algorithm](glossary.md#winograds-algorithm) takes 16 products for what the definition
# takes 36 ([Lavin and Gray](https://arxiv.org/abs/1509.09308)). They are listed in the order in which one would try them.
#
# A model for the best: PyTorch's three convolutions stay, as measured bare in Part 5, and all else takes no time.

# %% tags=["predict"]
best_ratio = helpers.predict("How many times as fast as the first is the best program for the network?", "x")
best_ratio

# %% tags=["run", "nbval-ignore-output", "slide", "slide-output"] minutes=1
wanted = ["separate", "native", "one-pass", "one-pass with pooling"]
wanted += ["channels-last, one-pass with pooling", "one kernel a layer, Winograd"]
rungs = [name for name in wanted if name in fused_bias.default_rungs(device)]
ladder = fused_bias.measure_ladder(images, labels, rungs=rungs, model=net, budget_s=2)
speedups = {rung.rung: rung.speedup for rung in ladder.rungs}
drawn = plotting.draw_bars(speedups, unit="", title="Speedup of the forward pass")
plotting.show(drawn, alt="Bars of the speedup of each program for the network over the separate kernels.")

# %% tags=["look", "nbval-ignore-output"]
bare_s = sum(one.candidate("convolution").median_s for one in races)
best_ratio.reveal(modelled=pair.rung("separate").median_s / bare_s, measured=max(speedups.values()))

# %% tags=["look"]
best = max(speedups, key=speedups.get)
agreed = 1e-4 * net(images).abs().max()
other = fused_bias.Convnet(best).to(device)
other.load_state_dict(net.state_dict())
assert (other(images) - net(images)).abs().max() < agreed
print(f"of {len(images)} digits the best program reads "
      f"{int((other(images).argmax(1) == net(images).argmax(1)).sum())} as the first one does")  # fmt: skip

# %% tags=["look", "nbval-ignore-output"]
after = profiling.kernel_table(lambda: other(images), runs=10)
results.printed(after.table().head(4)[["name", "share", "total_s", "calls", "average_s"]])

# %% tags=["explain"]
claim, bounds = "pooling within the pass over bias and ReLU is faster than pooling after it", {"at_least": 1.2}
if {"one-pass", "one-pass with pooling"} <= set(speedups):
    timing.claim(claim, speedups["one-pass with pooling"] / speedups["one-pass"], **bounds, evidence=ladder)
else:
    timing.claim(claim, None, **bounds)

# %% [markdown] tags=["explain"]
# The bottleneck has moved, as it always does. What stands at the top now is the convolution, alone or inside a kernel that does
# a whole layer, and that is where the arithmetic is. Where the best program beats the model, its convolution is better than PyTorch's
# for these few channels. To go further, make it better still; what surrounds it costs little by now.
#
# A training step goes backward as well, through other kernels. What is best forward need not be best there:

# %% tags=["run", "nbval-ignore-output"]
with torch.enable_grad():
    steps = fused_bias.measure_ladder(images, labels, phase="training", rungs=rungs, model=net, budget_s=3)
training = {rung.rung: rung.speedup for rung in steps.rungs}
drawn = plotting.draw_bars(training, unit="", title="Speedup of a training step")
plotting.show(drawn, alt="Bars of the speedup of a training step of each program over the separate kernels.")

# %% tags=["look"]
torch.set_grad_enabled(grad_mode.prev)
assert set(training) == set(speedups)

# %% [markdown] tags=["explain"]
# Nothing here was promised by a count of bytes. Each bar is a program that somebody had to write and to measure. (The measurement says
# whether to trust a small difference: `steps.stable`, and `low_speedup` and `high_speedup` of each rung.)

# %% [markdown]
# Back to the story, with the method of Part 4. Its kernel for bias and ReLU reads and writes a layer's output, so the bytes of its longest and
# its shortest call follow from the network. Here are the three networks of that example file in the winter of 2019, each with its batch:

# %%
examples = {
    "2 layers, batch 1,000 (to 17 January)": [(1000, 16, 27, 27), (1000, 8, 12, 12)],
    "4 layers, batch 32 (to 8 February)": [(32, 32, 26, 26), (32, 32, 24, 24), (32, 16, 10, 10), (32, 10, 3, 3)],
    "3 layers, batch 128 (from 8 February)": [(128, 16, 28, 28), (128, 32, 14, 14), (128, 32, 7, 7)],
}
longest_s, shortest_s = story.loc["bias and ReLU", ["longest_s", "shortest_s"]]
print(f"in the profile, longest call over shortest: {longest_s / shortest_s:.1f}")
for name, outputs in examples.items():
    moved_bytes = [fused_bias.traffic("broadcast", output).moved_bytes for output in outputs]
    rate = units.text(max(moved_bytes) / longest_s, "B/s")
    print(f"{name}: by bytes {max(moved_bytes) / min(moved_bytes):.0f}; the longest call at {rate}")

# %% [markdown] tags=["explain"]
# (The 2,350 calls are a multiple of 2, and not of 3 or of 4.) In none of the three do the times go as the
# bytes do, so something else is in them too. And in two of three the longest call moves its bytes at a rate of 47 or 110 GB/s, where a T4 of that
# time has 320 and a V100 900 GB/s (data sheets, `hardware.devices`): there bytes are not the reason. In the third it is near a V100's limit. What follows in every
# case is what fusing saves: one read and one write of each output. Whether those took the time, the profile cannot say.

# %% [markdown] tags=["slide"] minutes=1
# ## The verdict
#
# - The story: fusing saved a pass over each output. Whether the bytes took the time is open.
# - Your CPU: fusing helps most in the first layer, at large batches.
# - At large all the time: max pooling.
#
# The method is what to take along, more than the verdict: profile the whole, count the bytes, model, measure, and profile again. And
# a profile is a fact about one machine, one version and one size.
#
# The [exercises](exercises/12_fused_bias_exercises.ipynb) let you count the bytes of any chain of kernels, fuse it, and write the
# gradient of any broadcast.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Fusing saves bytes between kernels, not arithmetic.
# 2. It pays where those bytes are a large part of the time.
# 3. Profile the whole program first.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | activation | $N\,C\,H\,W \cdot 4$ bytes | $N$ images of $C$ channels, $H \times W$ pixels, in float32 |
# | add bias, then ReLU | 4 activations moved | two kernels that read and write |
# | one pass | 2 activations moved | one kernel, as the story's |
# | inside the convolution | 0 activations moved | post-operations |
# | time of a kernel that waits for memory | $\text{bytes}/\text{bandwidth} + t_{call}$ | bandwidth at its [working set](glossary.md#working-set) |
# | separate : fused | $1 + t_{bytes}/t_{convolution}$ | one layer |
# | gradient of a broadcast | $\partial L/\partial b_c = \sum_{n,h,w} \partial L/\partial y_{nchw}$ | loss $L$, a bias $b_c$ for each channel |
# | ReLU backward, then bias gradient | 4 activations moved; in one pass 3 | backward |
# | Amdahl's law | $1 / (1 - s + s/k)$ | a share $s$ made $k$ times as fast |
