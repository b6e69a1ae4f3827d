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
#     number: "15"
#     title: Co-design
#     needs: ["11", "14"]
#     objectives:
#       - follow|followed one convolution from Python down to its multiply-adds
#       - write|wrote the tile of sums that a processor keeps in its registers
#       - predict|predicted which library computes a call, and from where on zeros save bytes
#       - measure|measured what zeros cost in time and accuracy, by their pattern
#       - order|ordered four convolutions by operations, by time and by cycles of an array
# ---

# %% [markdown] tags=["objectives"]
# # Co-design
#
# A network is an idea, and it runs on a machine that somebody built for other ideas. *Co-design* means to choose both together:
# the network with the machine in mind, and the
# machine with the network.
#
# You will follow one line of Python to the instruction, find lesson 14's array again in the [registers](glossary.md#register) of a
# CPU, and measure
# what zeros are worth.

# %%
import bisect
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

import helpers
from helpers import exercises, plotting, results, timing, training
from helpers.studies import sparsity, stack
from helpers.studies.simulators import systolic

warnings.filterwarnings("ignore", "Sparse CSR")  # PyTorch calls its CSR tensors beta

# %% [markdown]
# ## The bet
#
# - A layer of 1,024 x 1,024 weights
# - Nine of ten are set to zero
# - How many times as fast is the product?
#
# Nine of ten multiplications have become superfluous. 64 columns are multiplied, as for a batch of 64.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 10]
bet = helpers.predict(
    "Nine of ten weights are zero: how many times as fast is weights @ x?", "x"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A call has four levels, and each chooses"
# ## Part 1: one call, all levels
#
# - *Operators*: what PyTorch dispatches
# - *Primitives*: what a library is asked for
# - *Instructions*: what the processor does
#
# An [ATen operator](glossary.md#aten-operator) is PyTorch's unit of work, such as `aten::relu`. PyTorch looks up who computes it
# on this device
# and for this type. For a few operators that is a library such as [oneDNN](glossary.md#onednn). oneDNN *generates* the
# instructions for these sizes, on this processor, when it is called for the first time.

# %% [markdown]
# `stack.trace_calls` makes the call in a fresh process, notes the operators just below autograd, and reads the libraries' logs.

# %% tags=["run"]
torch.manual_seed(0)
lenet = helpers.LeNet()
whole = stack.trace_calls(lenet, torch.randn(64, 1, 28, 28))

# %% tags=["look"]
modes = ("with_autograd", "without_autograd", "in_inference_mode")
counts = {row.operator: [getattr(row, mode) for mode in modes] for row in whole.operators}
pd.DataFrame(counts, index=modes).T.rename_axis("operator")

# %% [markdown] tags=["explain"]
# LeNet has 12 layers, and in inference mode 12 operators. Otherwise a call passes autograd first, even with gradients off, and a
# linear
# layer arrives as a transposed weight and `addmm`. What an operator calls inside itself is not counted here.
#
# Now one layer alone, LeNet's second convolution, all the way down on *this* machine:

# %% tags=["run"]
conv2 = lenet.conv2
images = torch.randn(64, 6, 12, 12)
call = stack.trace_calls(conv2, images)


# %%
def multiply_adds(trace):
    """Return the instructions that multiply and add in the kernels of a call."""
    listings = [kernel.listing for kernel in trace.kernels if kernel.multiply_adds]
    lines = [line for listing in listings for line in listing.splitlines()]
    return [line.split(maxsplit=1)[1] for line in lines if "fmadd" in line]


# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Here is what one convolution became"
by_depth = {each.depth: each.name for each in reversed(call.nested)}
formats = [" to ".join(re.findall(r"\w+(?=,|$)", each.tensors)) for each in call.primitives]
primitives = [
    f"{each.library} {each.name} {order if each.name == 'reorder' else each.implementation}"
    for each, order in zip(call.primitives, formats, strict=True)
]
levels = {
    "Python": [f"conv2(images)  # {call.inputs}"],
    "operators": [by_depth[depth] for depth in sorted(by_depth) if depth < 4],
    "library": primitives or [call.computed_by],
    "instructions": multiply_adds(call)[:3] or ["not followed on this machine"],
}
plotting.show(
    stack.draw_levels(levels, title="One line of Python, and what it becomes here"),
    alt="Four levels: a call in Python, its operators, a library's primitives, instructions.",
)

# %% [markdown] tags=["explain"]
# The *reorders* are the price of oneDNN: it wants 8 or 16 channels side by side, as many as a vector register holds, and
# PyTorch's tensors are not laid out so. The first copies the weights, the last the result. In `aBcd8b` or `aBcd16b` axis B, the
# channels, stands in blocks.
#
# The last level is one instruction in several copies: a [SIMD](glossary.md#simd) multiply-add, for 8 or 16 filters at once. So a
# convolution is multiply-adds of inputs and filters. As one product it looks like this:
#
# **Your turn**: write the patch under each position of the kernel as a row. This is [im2col](glossary.md#im2col).


# %% tags=["yours"] yours="patches"
def patches(image, side):
    """Return (positions, channels * side * side) for an image (channels, height, width)."""
    _, height, width = image.shape
    return torch.stack(
        [
            image[:, top : top + side, left : left + side].flatten()
            for top in range(height - side + 1)
            for left in range(width - side + 1)
        ]
    )


# %% checks="patches"
asked = exercises.Checks("Patches as rows", patches)
small = torch.arange(18.0).view(2, 3, 3)
rows = nn.functional.unfold(small[None], 2)[0].T
slips = {
    tuple(map(tuple, rows.T.tolist())): "A patch is a row, not a column",
    tuple(map(tuple, rows[:, :4].tolist())): "A patch has all channels",
    tuple(map(tuple, rows[[0, 2, 1, 3]].tolist())): "Go along a row of the image first",
}
asked.returns("2 channels of 3 x 3, kernel 2", (small, 2), expected=rows, mistakes=slips)
wide = torch.arange(12.0).view(1, 2, 6)
goal = "an image that is no square"
asked.returns(goal, (wide, 2), expected=nn.functional.unfold(wide[None], 2)[0].T)
patches = asked.settle()


# %% wrong="patches" says="not a column"
def patches(image, side):
    return nn.functional.unfold(image[None], side)[0]


# %% wrong="patches" says="has all channels"
def patches(image, side):
    return nn.functional.unfold(image[None, :1], side)[0].T


# %% wrong="patches" says="along a row of the image"
def patches(image, side):
    _, height, width = image.shape
    return torch.stack(
        [
            image[:, top : top + side, left : left + side].flatten()
            for left in range(width - side + 1)
            for top in range(height - side + 1)
        ]
    )


# %% tags=["look"]
image = torch.randint(-9, 10, (6, 12, 12)).float()
filters = torch.randint(-9, 10, (16, 6, 5, 5)).float()
as_rows = patches(image, 5)
product = as_rows @ filters.flatten(1).T
convolved = nn.functional.conv2d(image[None], filters)[0].flatten(1).T
print("largest difference:", int((product - convolved).abs().max()))
growth = as_rows.numel() / image.numel()
print(f"{image.numel()} numbers became {as_rows.numel():,}, {growth:.1f} times as many")

# %% [markdown] tags=["explain"]
# The product *is* the convolution, at the price of a matrix eleven times as large as the image. oneDNN's kernel therefore reads the
# patches where they lie in the image. Both compute the same matrix product.

# %% [markdown] tags=["slide"] minutes=2 headline="A fast product keeps its sums in registers"
# ## Part 2: an array in the registers
#
# - A multiply-add reads an input, a filter and a sum
# - Sums stay in registers
# - In each step: an *outer product*
#
# $p$ inputs and $v$ vectors of filters make $p \cdot v$ multiply-adds from $p + v$ loads. A kernel's inner loop is such a
# [register tile](glossary.md#register-tile), step after step of the patch.
#
# **Your turn.** `inputs` are $k \times p$ numbers, `filters` $k \times n$. The check counts what you read.


# %%
class Counted:
    def __init__(self, numbers):
        self.numbers, self.shape, self.reads = numbers, numbers.shape, 0

    def __getitem__(self, place):
        self.reads += self.numbers[place].size
        return self.numbers[place]


def reads_of(function, *matrices):
    counted = [Counted(each) for each in matrices]
    function(*counted)
    return [each.reads for each in counted]


# %% tags=["yours"] yours="micro_kernel"
def micro_kernel(inputs, filters):
    """Return the (p, n) sums over all k; read a row of inputs and of filters once a step."""
    sums = np.zeros((inputs.shape[1], filters.shape[1]), int)
    for step in range(inputs.shape[0]):
        sums += np.outer(inputs[step], filters[step])
    return sums


# %% checks="micro_kernel"
asked = exercises.Checks("A tile of sums", micro_kernel)
left, right = np.arange(10).reshape(5, 2), np.arange(15).reshape(5, 3)
last = tuple(map(tuple, np.outer(left[4], right[4]).tolist()))
slips = {last: "Add to the sums that stand there: they stay from step to step"}
goal = "2 x 3 sums over 5 steps"
asked.returns(goal, (left, right), expected=left.T @ right, mistakes=slips)
asked.returns(
    "each number is read once",
    (left, right),
    call=reads_of,
    expected=[left.size, right.size],
    mistakes={
        (30, 30): "That reads two numbers for each multiply-add: keep a row for all sums",
        (10, 30): "A row of filters serves all inputs: read it once a step",
        (30, 15): "A row of inputs serves all filters: read it once a step",
    },
)
micro_kernel = asked.settle()


# %% wrong="micro_kernel" says="they stay from step to step"
def micro_kernel(inputs, filters):
    for step in range(inputs.shape[0]):
        sums = np.outer(inputs[step], filters[step])
    return sums


# %% wrong="micro_kernel" says="two numbers for each multiply-add"
def micro_kernel(inputs, filters):
    (steps, p), n = inputs.shape, filters.shape[1]
    sums = np.zeros((p, n), int)
    for i, j in np.ndindex(p, n):
        for step in range(steps):
            sums[i, j] += inputs[step, i] * filters[step, j]
    return sums


# %% [markdown]
# AVX2 has 16 vector registers (`ymm`) of 8 numbers, AVX-512 has 32 (`zmm`) of 16. With AVX2, oneDNN's tile is in 16 registers: all
# sums, $p$ inputs, each *broadcast* (copied to all places of its register, to meet 8 filters), and one vector of filters at a time.
# Give conv2 64 filters in place of 16: a tile takes four vectors of them.

# %% tags=["predict"]
sums = helpers.predict(
    "16 registers, four vectors of filters: how many vectors of sums?", "sums"
)
sums

# %% [markdown]
# What follows was recorded on one processor, an AMD EPYC with AVX-512; for the rows "AVX2" it was limited to that.


# %% tags=["run"]
def recorded_calls(name):
    text = Path(f"recorded/stack/{name}.json").read_text(encoding="utf-8")
    found = json.loads(text)["calls"].items()
    return {call: results.from_dict(stack.StackTrace, trace) for call, trace in found}


def operands(trace):
    return [line.replace(",", " ").split()[1:4] for line in multiply_adds(trace)]


recorded = {"AVX2": recorded_calls("avx2"), "AVX-512": recorded_calls("avx512")}
tile = operands(recorded["AVX2"]["conv2 with 64 filters, batch 64"])
most = max(p for p in range(1, 16) if 4 * p + p + 1 <= 16)

# %% tags=["look"]
sums.reveal(modelled=4 * most, counted=len({accumulator for accumulator, *_ in tile}))

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Twelve sums stay, and seven loads feed them"
inputs = list(dict.fromkeys(each[1] for each in tile[:12]))
rows = [[held for held, name, _ in tile[:12] if name == each] for each in inputs]
columns = [f"{tile[3 * vector][2]} ({vector + 1})" for vector in range(4)]
plotting.show(
    stack.draw_tile(rows, inputs, columns, title="64 filters: ymm15 is loaded 4 times"),
    alt="Three inputs meet four vectors of filters; twelve sums stay in ymm0 to ymm11.",
)

# %% [markdown] tags=["explain"]
# $p\,v$ sums, $p$ inputs and one vector of filters: $p\,v + p + 1 \le 16$, with $v = 4$ that is $p = 3$. All 16 are used. On lesson
# 14's array the sums stay, inputs move right and filters move down. This is the same [dataflow](glossary.md#dataflow): a
# processor's registers are an output-stationary array, and a few multiplier units visit its places in turn. And conv2 itself?

# %% tags=["look"]
rows = {}
for name, calls in recorded.items():
    for what in list(calls)[:2]:
        listing = next(each.listing for each in calls[what].kernels if each.multiply_adds)
        used = set(re.findall(r"[yz]mm\d+", listing))
        held = {accumulator for accumulator, *_ in operands(calls[what])}
        rows[f"{name}: {what}"] = len(held), f"{len(used)} of {32 if 'zmm0' in used else 16}"
pd.DataFrame(rows, index=["sums", "registers used"]).T

# %% tags=["look", "nbval-ignore-output"]
here = {accumulator for accumulator, *_ in operands(call)}
print(f"conv2 on this machine: {len(here)} sums")

# %% [markdown] tags=["explain"]
# AVX2: 16 filters are two vectors of 8. With $v = 2$ the formula allows $p = 5$, but oneDNN chose 3: six sums, and $6 + 3 + 1 =
# 10$ registers. A multiply-add has a
# [latency](glossary.md#latency) of about four cycles, and two start in each (Agner Fog, *Instruction tables*: Intel since Skylake, AMD
# since Zen 3). By [Little's law](glossary.md#littles-law) eight must be under way: six sums can reach 6/8 of the peak (modelled).
#
# AVX-512: 16 filters are one vector, and the eight sums are the eight outputs of a row. The multiply-add reads its input from memory
# by itself and broadcasts it (`BCST`), so no register holds it, and the formula does not apply. The other four hold filters. 64
# filters
# change nothing: the kernel takes one vector of them at a time.

# %% [markdown] tags=["slide"] minutes=2 headline="A library is chosen by type, batch and processor"
# ## Part 3: the same line calls another library
#
# - float32, two images or more: oneDNN
# - float32, one small image: PyTorch's patches
# - bfloat16: oneDNN with AVX-512, not with AVX2
# - float64: PyTorch's patches
#
# This is the rule of `use_mkldnn`, in PyTorch's `aten/src/ATen/native/Convolution.cpp`, for filters of 3 x 3 and as far as we need
# it. "Patches" are those of Part 1,
# multiplied by a matrix product.
#
# Four calls of `conv(x)` with four filters of 3 x 3: one image of 3 x 8 x 8 in float32, two in float32, two in float64, two in
# bfloat16.

# %% tags=["predict"]
callers = helpers.predict("With AVX2: for how many of the four does oneDNN convolve?", "of 4")
callers


# %% tags=["run"]
def computed_by(trace):
    names = [f"{p.library} {p.name}" for p in trace.primitives if p.name != "reorder"]
    own = [each.name for each in trace.nested if "conv" in each.name]
    return ", ".join(dict.fromkeys(names)) or own[-1]


table = pd.DataFrame(
    {
        name: {what: computed_by(calls[what]) for what in list(calls)[2:]}
        for name, calls in recorded.items()
    }
)

# %% tags=["look"]
callers.reveal(counted=int(table["AVX2"].str.startswith("oneDNN").sum()))

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The same line calls another library" mark="bfloat16"
table.rename_axis("recorded", axis=1)

# %% tags=["look", "nbval-ignore-output"]
small, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
versions = {"batch 1": torch.float32, "bfloat16": torch.bfloat16}
for name, dtype in versions.items():
    batch = x[:1] if name == "batch 1" else x
    found = stack.trace_calls(small.to(dtype), batch.to(dtype))
    print(f"here, {name}: {computed_by(found)}")

# %% [markdown] tags=["explain"]
# SGEMM and DGEMM are MKL's matrix products: PyTorch itself writes the patches. bfloat16 with AVX2 uses patches too
# (`_slow_conv2d_forward`), but no library logs a product.
#
# A new format, a new layer, a batch of one: each may leave the well-trodden path without an error or a warning. Lesson 16 measures it
# for bfloat16.

# %% [markdown] tags=["slide"] minutes=2 headline="To gain from zeros, do not store them"
# ## Part 4: zeros
#
# - In a dense matrix a zero is a number like any other
# - To skip it, store where the others stand
# - Bytes and time break even at different shares
#
# [Pruning](glossary.md#pruning) sets small weights to zero. First the bet: nothing but zeros, and half of the rows taken out.

# %% tags=["run"]
torch.manual_seed(0)
weights, x = torch.randn(1024, 1024), torch.randn(1024, 64)


def with_zeros(share):
    return torch.where(torch.rand(1024, 1024) < share, 0.0, weights)


# %% tags=["run"]
sparse_weights, half = with_zeros(0.9), weights[:512].clone()
products = {
    "dense": lambda: weights @ x,
    "zeros": lambda: sparse_weights @ x,
    "half of the rows": lambda: half @ x,
}
dense = timing.compare(products, budget_s=1, precision=0.1)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Zeros that nobody skips save nothing"
bet.reveal(measured=1 / dense.candidate("zeros").time_ratio)

# %% tags=["look"]
ratios = {row.name: row.time_ratio for row in dense.candidates}
sentence = "nine of ten zeros take as long"
timing.claim(sentence, ratios["zeros"], at_least=0.8, at_most=1.25, evidence=dense)
half_s = ratios["half of the rows"]
timing.claim("half of the rows take less time", half_s, at_most=0.8, evidence=dense)

# %% [markdown] tags=["explain"]
# The processor multiplies by zero as by any number. To skip zeros, a matrix is stored as
# [compressed sparse rows](glossary.md#compressed-sparse-rows), CSR: the values, the column of each, and where each row starts.


# %% tags=["slide", "slide-code"] minutes=1 headline="CSR stores a place beside every number" mark="columns[place]"
def csr_product(values, columns, starts, x):
    product = np.zeros(len(starts) - 1)
    for row in range(len(product)):
        for place in range(starts[row], starts[row + 1]):
            product[row] += values[place] * x[columns[place]]
    return product


# %% tags=["look", "slide-more", "slide-output"]
matrix = torch.tensor([[0.0, 5, 0, 0], [0, 0, 0, 0], [6, 0, 0, 7]])
csr = sparsity.to_csr(matrix)
arrays = [each.numpy() for each in (csr.values, csr.column_indices, csr.row_starts)]
for name, array in zip(("values", "columns", "starts"), arrays, strict=True):
    print(f"{name:8}{array}")
print("product ", csr_product(*arrays, np.array([1, 10, 100, 1000])))

# %% [markdown] tags=["explain"]
# Three multiplications in place of twelve, and two more lists to read.
#
# **Your turn**: what does the matrix take? PyTorch's indices have 8 bytes by default.


# %% tags=["yours"] yours="csr_bytes"
def csr_bytes(rows, kept, value_bytes=4, index_bytes=8):
    """Return the bytes of values, columns and starts."""
    return kept * (value_bytes + index_bytes) + (rows + 1) * index_bytes


# %% checks="csr_bytes"
asked = exercises.Checks("Bytes of CSR", csr_bytes)
slips = {
    60: "Each row has a start, and the last one an end: rows + 1",
    36: "And where does each row start?",
    44: "Each value needs its column",
}
small = torch.tensor([[0.0, 5, 0, 0], [0, 0, 0, 0], [6, 0, 0, 7]])
stored = sparsity.to_csr(small).stored_bytes
asked.returns("3 rows, 3 values", (3, 3), expected=stored, mistakes=slips)
asked.returns("half precision, short indices", (3, 3, 2, 4), expected=34)
csr_bytes = asked.settle()


# %% wrong="csr_bytes" says="the last one an end"
def csr_bytes(rows, kept, value_bytes=4, index_bytes=8):
    return kept * (value_bytes + index_bytes) + rows * index_bytes


# %% wrong="csr_bytes" says="needs its column"
def csr_bytes(rows, kept, value_bytes=4, index_bytes=8):
    return kept * value_bytes + (rows + 1) * index_bytes


# %% tags=["predict"]
even = helpers.predict("From what share of zeros does CSR in float32 save bytes?", "%")
even


# %% tags=["run"]
def stored_bytes(kept, side=200):
    numbers = torch.zeros(side * side)
    numbers[:kept] = 1
    return sparsity.to_csr(numbers.view(side, side)).stored_bytes


kept = bisect.bisect_right(range(200**2), 4 * 200**2, key=stored_bytes) - 1

# %% tags=["look"]
assert csr_bytes(200, kept) <= 4 * 200**2 < csr_bytes(200, kept + 1)
even.reveal(modelled=100 * 2 / 3, counted=100 * (1 - kept / 200**2))

# %% [markdown] tags=["explain"]
# A kept number takes 12 bytes and not 4, so two thirds must be zero before anything is saved, and a little more for the starts.
# And time?

# %% tags=["run"]
shares = (0.5, 0.65, 0.8, 0.9, 0.99)
times = {}
for columns in (1, 64):
    right = torch.randn(1024, columns)
    for share in shares:
        stored = {"dense": weights, "CSR": with_zeros(share).to_sparse_csr()}
        both = {name: lambda left=left, x=right: left @ x for name, left in stored.items()}
        times[columns, share] = timing.compare(both, budget_s=0.4, precision=0.1)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="In time, CSR pays later than in bytes"
drawn, axes = plotting.figure(title="CSR over dense, 1,024 x 1,024: where does it pay?")
percent = [100 * share for share in shares]
for columns, style in {1: "o--", 64: "o-"}.items():
    ratios = [times[columns, share].candidate("CSR").time_ratio for share in shares]
    name = f"time, {columns} column{'s' * (columns > 1)}, measured"
    axes.semilogy(percent, ratios, style, color=plotting.MEASURED, label=name)
zeros = np.linspace(0.5, 0.99)
stored = csr_bytes(1024, 1024**2 * (1 - zeros)) / (4 * 1024**2)
axes.semilogy(100 * zeros, stored, ":", color=plotting.MODELLED, label="bytes, modelled")
axes.axhline(1, color="#777777")
axes.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
axes.set(xlabel="share of zeros in %", ylabel="CSR over dense; below 1 CSR wins")
axes.legend()
plotting.show(drawn, alt="Three falling curves; each crosses one at another share of zeros.")

# %% tags=["look"]
first, last = times[1, 0.5], times[64, 0.99]
slower, faster = (each.candidate("CSR").time_ratio for each in (first, last))
timing.claim("half zeros, one column: CSR is slower", slower, at_least=1, evidence=first)
timing.claim("99 % zeros, 64 columns: CSR is faster", faster, at_most=1 / 2, evidence=last)

# %% [markdown] tags=["explain"]
# CSR must read an index to know which input a weight needs. With 64 columns one index serves 64 multiply-adds that lie side by
# side, with
# one column it serves one. Here time breaks even later than bytes, and with 64 columns earlier than with one.

# %% [markdown] tags=["slide"] minutes=2 headline="A pattern is a bargain between network and machine"
# ## Part 5: zeros that hardware can use
#
# - *Unstructured*: zeros anywhere
# - *2:4*: two of every four neighbours
# - *Neurons*: whole rows
#
# [2:4 sparsity](glossary.md#24-sparsity) is a bargain between network and machine: of four neighbours two may stay. So an index takes
# two bits, every row has as much work as every other, and in NVIDIA's [tensor cores](glossary.md#tensor-core) since 2020 the index
# tells the
# multiplier which two of four inputs to fetch.
#
# **Your turn**: which weights stay?


# %% tags=["yours"] yours="two_of_four"
def two_of_four(weights):
    """Return a mask of the two largest magnitudes of every four neighbours in a row."""
    groups = weights.abs().view(-1, 4)
    largest = groups.topk(2).indices
    return (
        torch.zeros_like(groups, dtype=torch.bool).scatter(1, largest, True).view_as(weights)
    )


# %% checks="two_of_four"
asked = exercises.Checks("Two of four", two_of_four)
given = torch.tensor([[1.0, -4, 2, 3, 9, 8, 7, 6], [0.5, 0.1, -0.2, 0.3, 5, -6, -7, 4]])
keeps = [[False, True, False, True, True, True, False, False]]
keeps += [[True, False, False, True, False, True, True, False]]
signed = (given.view(-1, 4) >= given.view(-1, 4).topk(2).values[:, 1:]).view_as(given)
whole_row = given.abs() >= given.abs().topk(4).values[:, 3:]
slips = {
    tuple(map(tuple, signed.tolist())): "Large negative weights matter: take magnitudes",
    tuple(map(tuple, whole_row.tolist())): "Each group of four has two of its own",
}
asked.returns("two rows of eight weights", (given,), expected=keeps, mistakes=slips)
two_of_four = asked.settle()


# %% wrong="two_of_four" says="take magnitudes"
def two_of_four(weights):
    groups = weights.view(-1, 4)
    return (groups >= groups.topk(2).values[:, 1:]).view_as(weights)


# %% wrong="two_of_four" says="two of its own"
def two_of_four(weights):
    return weights.abs() >= weights.abs().topk(weights.shape[1] // 2).values[:, -1:]


# %% [markdown]
# The same matrix in float16, in five forms:

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="A pattern stores its places in a few bits" mark="2:4"
halves = weights.half()
packed = sparsity.pack_2_4(halves * two_of_four(halves))
forms = {
    "dense": halves.nbytes,
    "2:4": packed.stored_bytes,
    "half of the rows": halves[:512].nbytes,
}
for share in (50, 90):
    smallest = halves.abs().float().quantile(share / 100, dim=1, keepdim=True)
    kept = halves * (halves.abs() > smallest)
    forms[f"CSR, {share} % zeros"] = sparsity.to_csr(kept).stored_bytes
cells = {
    name: [f"{each:,}", f"{100 * each / halves.nbytes:.1f} %"] for name, each in forms.items()
}
pd.DataFrame(cells, index=["bytes", "of dense"]).T

# %% [markdown] tags=["explain"]
# Two values of 2 bytes and two indices of 2 bits, for four values: 9/16. CSR's index is four times as long as its value, so half
# of the
# numbers take two and a half times the bytes.
#
# Which pattern does a network survive? A network of three layers trains for three epochs. We prune two layers, then train for one more
# epoch, in which the zeros stay zero.

# %% tags=["run"]
digits = list(helpers.make_MNIST_loader(batch_size=64))
unseen = list(helpers.make_MNIST_loader(batch_size=500, split="test"))
torch.manual_seed(0)
trained = helpers.BasicFCModel()
helpers.train(trained, digits, epochs=3)
cases = {
    "nothing": (0.0, "unstructured"),
    "50 %, single": (0.5, "unstructured"),
    "50 %, 2:4": (0.5, "2:4"),
}
cases |= {"50 %, neurons": (0.5, "neurons"), "90 %, single": (0.9, "unstructured")}
cases["90 %, neurons"] = 0.9, "neurons"
accuracies = {}
for name, (share, pattern) in cases.items():
    pruned, _ = sparsity.prune(trained, share, pattern=pattern, layers=("fc1", "fc2"))
    before = training.accuracy(pruned, unseen)
    helpers.train(pruned, digits, epochs=1)
    accuracies[name] = before, training.accuracy(pruned, unseen)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Single zeros cost the least, whole neurons the most"
drawn, axes = plotting.figure(title="1,000 digits: what a pattern of zeros costs")
pairs = 100 * np.array(list(accuracies.values()))
axes.plot(pairs.T, [range(len(pairs))] * 2, color="#999999", zorder=1)
for found, fill, label in zip(
    pairs.T, ("white", plotting.MEASURED), ("pruned", "one epoch later"), strict=True
):
    how = {"color": fill, "edgecolor": plotting.MEASURED, "label": label}
    axes.scatter(found, range(len(pairs)), **how)
axes.set_yticks(range(len(accuracies)), accuracies)
axes.invert_yaxis()
axes.set(xlabel="accuracy in %", xlim=(0, 100))
axes.legend(loc="center left")
plotting.show(drawn, alt="Without nine of ten neurons the network stays below the others.")

# %%
ends = [after for _, after in list(accuracies.values())[1:5]]
assert max(abs(accuracies["nothing"][1] - after) for after in ends) < 0.06
assert accuracies["50 %, neurons"][0] < accuracies["50 %, 2:4"][0] - 0.02
assert accuracies["90 %, neurons"][1] < accuracies["90 %, single"][1] - 0.02

# %% [markdown] tags=["explain"]
# One network, one seed, 1,000 digits: small differences are chance. At one half, right after pruning, only the neurons had lost much,
# and an epoch repaired it. They then do as well as 2:4, as a smaller product and without special hardware: this small network has
# neurons to spare. At nine tenths, neurons stay below single weights.
#
# What became of 2:4's factor of two?

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Twice as fast in one place is little in the whole" mark="the whole training"
saved = 0.06  # of the wall time of a DINOv2 ViT-L training, as published
share = saved / (1 - 1 / 1.3)
rows = {
    "the unit multiplies (promised)": ["2", "-"],
    "linear layers of its MLPs": ["1.3", "-"],
}
rows["the whole training"] = [f"{1 / (1 - saved):.2f}", f"{100 * saved:.0f} %"]
rows["at a full 2x (modelled)"] = [f"{1 / (1 - share / 2):.2f}", f"{100 * share / 2:.0f} %"]
rows["at infinity (modelled)"] = [f"{1 / (1 - share):.2f}", f"{100 * share:.0f} %"]
pd.DataFrame(rows, index=["times as fast", "time saved"]).T

# %% [markdown] tags=["explain"]
# Published: NVIDIA's peak rate for the first line; Cai, Haziza and Rao, *Accelerating Neural Network Training with Semi-Structured
# (2:4)
# Sparsity*, pytorch.org, 2024, for the next two, on an A100. [Amdahl's law](glossary.md#amdahls-law) gives the share of these
# layers: about a quarter of the time, if nothing else became slower. Even an infinitely fast unit would save no more. The peak of 2
# became 1.3 already in the layers; how much of that was packing weights anew in each step, the source does not say.

# %% [markdown] tags=["slide"] minutes=2 headline="Papers count operations; machines do not"
# ## Part 6: lotteries
#
# - Dense 3 x 3, 8 groups, [depthwise](glossary.md#depthwise-convolution), 1 x 1; 64 channels
# - Papers count [MACs](glossary.md#mac)
# - Machines do not
#
# In a depthwise convolution each channel has its own kernel and sees no other: a 64th of the MACs. Four images of
# 28 x 28 give 3,136 positions. This array of 256 x 256 keeps *weights*; Part 2's tile kept sums. It loads a tile of weights while it
# works on the one before. Each group is a product of its own, and filling and draining take 766 cycles a product (lesson 14).

# %% tags=["predict"]
depthwise = helpers.predict(
    "Depthwise, 1/64 of the MACs: times the cycles of the dense one?", "x"
)
depthwise

# %% tags=["run"]
layers = {
    name: nn.Conv2d(64, 64, 3, padding=1, groups=groups)
    for name, groups in {"dense": 1, "8 groups": 8, "depthwise": 64}.items()
}
layers["1 x 1"] = nn.Conv2d(64, 64, 1)
shape = (4, 64, 28, 28)
array = {"rows": 256, "columns": 256, "double_buffered": True}
runs = {
    name: systolic.simulate_network(layer, shape, **array) for name, layer in layers.items()
}
x = torch.randn(shape)
with torch.inference_mode():
    calls = {name: lambda layer=layer: layer(x) for name, layer in layers.items()}
    convolutions = timing.compare(calls, budget_s=1, precision=0.1)

# %% tags=["look"]
depthwise.reveal(modelled=runs["depthwise"].cycles / runs["dense"].cycles)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="The fewest operations take the most cycles" mark="depthwise"
rows = {}
for name, run in runs.items():
    ratio = convolutions.candidate(name).time_ratio
    rows[name] = [
        f"{run.macs / runs['dense'].macs:.3f}",
        f"{ratio:.2f} times (measured)",
        f"{run.cycles / runs['dense'].cycles:.2f}",
        f"{100 * run.utilisation_share:.2g} %",
    ]
columns = ["MACs", "time here", "cycles, 256 x 256", "of the array used"]
pd.DataFrame(rows, index=columns).T

# %% tags=["look"]
for measure in ("macs", "cycles"):
    order = sorted(runs, key=lambda name: getattr(runs[name], measure))
    print(f"by {measure}:", " < ".join(order))
sentence = "depthwise takes more than twice its share of the MACs"
ratio = convolutions.candidate("depthwise").time_ratio
timing.claim(sentence, ratio, at_least=2 / 64, evidence=convolutions)

# %% [markdown] tags=["explain"]
# By MACs depthwise is the cheapest of the four, by cycles of the array the dearest. The dense layer has $k = 576$ numbers in a patch,
# three tiles: $3 \cdot 3136 + 766$ cycles. The depthwise one has 64 products of one tile, 9 x 1: $64 \cdot (3136 + 766)$. A small
# tile takes as
# long as a full one. On a CPU each channel is a [lane](glossary.md#lane), and depthwise saves time, but less than its MACs promise.
#
# Sara Hooker has named this the [hardware lottery](glossary.md#hardware-lottery): "when a research idea wins because it is suited
# to the
# available software and hardware" and not because it is superior (hardwarelottery.github.io, 2020; Communications of the ACM,
# 2021). It is the *idea* that wins, not the hardware.

# %% [markdown] tags=["slide"] minutes=1 headline="AlexNet has the shape of two cards"
# ### AlexNet: a network in the shape of two cards
#
# - Trained in 2012 on two GPUs, half of each layer on each
# - conv2, conv4 and conv5 see their own half only
# - How many parameters does that save?
#
# Lesson 06 counts what the cards could hold. Here: what did the cut do to the network?

# %% tags=["predict"]
fewer = helpers.predict("Two towers and not one: how many per cent fewer parameters?", "%")
fewer

# %% tags=["run"]
rows = {}
for towers in (1, 2):
    alexnet = helpers.AlexNet(towers=towers)
    weights_of = sum(weight.numel() for weight in alexnet.parameters())
    rows[towers] = [
        weights_of,
        systolic.simulate_network(alexnet, (1, 3, 224, 224), **array).macs,
    ]

# %% tags=["look"]
fewer.reveal(counted=100 * (1 - rows[2][0] / rows[1][0]))

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The cut saved work, and hardly a weight" mark="MACs"
table = pd.DataFrame(rows, index=["parameters", "MACs of an image"])
table = table.rename_axis("towers", axis=1)
saved = [f"{100 * (1 - two / one):.1f} %" for one, two in zip(*rows.values(), strict=True)]
table.map("{:,}".format).assign(saved=saved)

# %% [markdown] tags=["explain"]
# Only convolutions lost connections. They hold few of the parameters and do most of the work, so more than a third of the MACs went.
# Grouped convolutions came back for the work that they save (ResNeXt and MobileNet, both 2017).
#
# The [exercises](exercises/15_co_design_exercises.ipynb) have you multiply by CSR, pack 2:4, choose a register tile, and keep a
# ledger of zeros.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. A fast product is a tile of sums that stay: in registers, in an array.
# 2. Zeros save what format, library and machine can skip.
# 3. Fewer operations win where the machine suits them.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A matrix of $m \times n$ numbers of $b$ bytes, a share $z$ of them zero; indices of $i$ bytes. A register tile of $p$ inputs and $v$
# vectors of filters.
#
# | quantity | formula |
# |---|---|
# | registers of a tile (AVX2) | $p\,v + p + 1$ |
# | multiply-adds for a load | $\frac{p\,v}{p + v}$ |
# | sums that keep the multipliers busy | latency of a multiply-add $\cdot$ those that start in a cycle |
# | bytes of CSR | $(1 - z)\,m\,n\,(b + i) + (m + 1)\,i$ |
# | share of zeros from which CSR saves bytes, large $n$ | $\frac{i}{b + i}$ |
# | bytes of 2:4 | $\frac{m\,n}{2}\,b + \frac{m\,n}{8}$ |
