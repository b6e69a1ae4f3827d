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
#     title: One convolution down to its instructions, an array in the registers, and the bytes of zeros
# ---

# %% [markdown]
# # One convolution down to its instructions, an array in the registers, and the bytes of zeros
#
# The lesson designs for an array and asks at the end who else decides. Here we follow one convolution from Python down to
# its instructions, find an array of sums in the registers of a core, and count what a matrix takes without its zeros.

# %% tags=["hide-input"]
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
from helpers import plotting, results, timing
from helpers.studies import sparsity, stack

warnings.filterwarnings("ignore", "Sparse CSR")  # PyTorch calls its CSR tensors beta

# %% [markdown]
# ## From Python to an instruction
#
# An [ATen operator](../glossary.md#aten-operator) is PyTorch's unit of work, such as `aten::relu`. PyTorch looks up who
# computes it on this device and for this type. For a few operators that is a library such as
# [oneDNN](../glossary.md#onednn), which generates the instructions for these sizes, on this processor, when it is called
# for the first time. `stack.trace_calls` makes a call in a fresh process, notes the operators and reads the libraries'
# logs. We follow LeNet's second convolution.

# %% tags=["hide-input"]
torch.manual_seed(0)
conv2 = helpers.LeNet().conv2
images = torch.randn(64, 6, 12, 12)
call = stack.trace_calls(conv2, images)


def multiply_adds(trace):
    """Return the instructions that multiply and add in the kernels of a call."""
    listings = [kernel.listing for kernel in trace.kernels if kernel.multiply_adds]
    lines = [line for listing in listings for line in listing.splitlines()]
    return [line.split(maxsplit=1)[1] for line in lines if "fmadd" in line]


# %% tags=["hide-input", "nbval-ignore-output"]
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

# %% [markdown]
# Where oneDNN computes the call, its *reorders* stand beside it. They are its price, because it wants 8 or 16 channels
# side by side, as many as a vector register holds, and PyTorch's tensors are not laid out so. The first reorder copies the
# weights, the last one the result. In a format such as `aBcd8b` the channels, axis B, stand in blocks of 8.
#
# The last level is one instruction in several copies, a [SIMD](../glossary.md#simd) multiply-add for 8 or 16 filters at
# once. So a convolution is multiply-adds of inputs and filters, like a matrix product. You can even write it as one. If
# the patch under each position of the kernel becomes a row, the filters are the columns of the other matrix. This is
# [im2col](../glossary.md#im2col), and it makes the same numbers.

# %%
image = torch.randint(-9, 10, (1, 6, 12, 12)).float()
filters = torch.randint(-9, 10, (16, 6, 5, 5)).float()
patches = nn.functional.unfold(image, 5)[0].T  # (positions, 6 * 5 * 5)
product = patches @ filters.flatten(1).T  # (positions, filters)
convolved = nn.functional.conv2d(image, filters)[0].flatten(1).T
print("largest difference:", int((product - convolved).abs().max()))
print(f"{image.numel()} numbers became {patches.numel():,}")
assert torch.equal(product, convolved)

# %% [markdown]
# The price is a matrix of patches that is eleven times as large as the image. oneDNN's kernel therefore reads the patches
# where they lie in the image.
#
# ## An array in the registers
#
# A multiply-add reads an input, a filter and a sum. If the sums stay in registers, $p$ inputs and $v$ vectors of filters
# make $p \cdot v$ multiply-adds from $p + v$ loads. A kernel's inner loop is such a
# [register tile](../glossary.md#register-tile), step after step of the patch. In each step it adds an *outer product*:


# %%
def micro_kernel(inputs, filters):
    """Return the (p, n) sums over all k of inputs (k, p) and filters (k, n)."""
    sums = np.zeros((inputs.shape[1], filters.shape[1]), int)
    for step in range(inputs.shape[0]):
        sums += np.outer(inputs[step], filters[step])
    return sums


# %% tags=["hide-input"]
left, right = np.arange(10).reshape(5, 2), np.arange(15).reshape(5, 3)
assert (micro_kernel(left, right) == left.T @ right).all()

# %% [markdown]
# AVX2 has 16 vector registers (`ymm`) of 8 numbers, AVX-512 has 32 (`zmm`) of 16. With AVX2, oneDNN's tile is in 16
# registers. They hold all sums, $p$ inputs, each *broadcast* (copied to all places of its register, to meet 8 filters),
# and one vector of filters at a time. So $p\,v + p + 1 \le 16$, and with four vectors of filters $p$ is 3. The drawing
# shows what oneDNN made for conv2 with 64 filters, as recorded on an AMD EPYC limited to AVX2.


# %% tags=["hide-input"]
def recorded_calls(name):
    """Return the recorded traces of a processor by the call."""
    text = Path(f"../recorded/stack/{name}.json").read_text(encoding="utf-8")
    return {
        call: results.from_dict(stack.StackTrace, trace)
        for call, trace in json.loads(text)["calls"].items()
    }


def operands(trace):
    """Return the three operands of each multiply-add."""
    return [line.replace(",", " ").split()[1:4] for line in multiply_adds(trace)]


recorded = {"AVX2": recorded_calls("avx2"), "AVX-512": recorded_calls("avx512")}
tile = operands(recorded["AVX2"]["conv2 with 64 filters, batch 64"])
inputs = list(dict.fromkeys(each[1] for each in tile[:12]))
rows = [[held for held, name, _ in tile[:12] if name == each] for each in inputs]
columns = [f"{tile[3 * vector][2]} ({vector + 1})" for vector in range(4)]
plotting.show(
    stack.draw_tile(rows, inputs, columns, title="64 filters: ymm15 is loaded 4 times"),
    alt="Three inputs meet four vectors of filters; twelve sums stay in ymm0 to ymm11.",
)

# %% [markdown]
# All 16 registers are used. On lesson 14's output-stationary array the sums stay, inputs move right and filters move down.
# This is the same [dataflow](../glossary.md#dataflow). A processor's registers are an output-stationary array, and a few
# multiplier units visit its places in turn. And conv2 itself, with 16 filters?

# %% tags=["hide-input"]
rows = {}
for name, calls in recorded.items():
    for what in list(calls)[:2]:
        listing = next(each.listing for each in calls[what].kernels if each.multiply_adds)
        used = set(re.findall(r"[yz]mm\d+", listing))
        held = {accumulator for accumulator, *_ in operands(calls[what])}
        rows[f"{name}: {what}"] = len(held), f"{len(used)} of {32 if 'zmm0' in used else 16}"
pd.DataFrame(rows, index=["sums", "registers used"]).T

# %% [markdown]
# With AVX2, 16 filters are two vectors of 8. With $v = 2$ the formula allows $p = 5$, but oneDNN chose 3, which makes six
# sums and 6 + 3 + 1 = 10 registers. A multiply-add has a [latency](../glossary.md#latency) of about four cycles, and two
# start in each (Agner Fog, *Instruction tables*, Intel since Skylake, AMD since Zen 3). By [Little's
# law](../glossary.md#littles-law) eight must be under way, so six sums can reach 6/8 of the peak (modelled).
#
# With AVX-512, 16 filters are one vector, and the eight sums are the eight outputs of a row. The multiply-add reads its
# input from memory by itself and broadcasts it, so no register holds it, and the formula does not apply.
#
# ## A matrix without its zeros
#
# [CSR](../glossary.md#compressed-sparse-rows) (compressed sparse rows) stores the values, the column of each, and where
# each row starts.


# %%
def csr_product(values, columns, starts, x):
    """Return the product of a matrix in CSR with a vector."""
    product = np.zeros(len(starts) - 1)
    for row in range(len(product)):
        for place in range(starts[row], starts[row + 1]):
            product[row] += values[place] * x[columns[place]]
    return product


# %% tags=["hide-input"]
matrix = torch.tensor([[0.0, 5, 0, 0], [0, 0, 0, 0], [6, 0, 0, 7]])
csr = sparsity.to_csr(matrix)
arrays = [each.numpy() for each in (csr.values, csr.column_indices, csr.row_starts)]
for name, array in zip(("values", "columns", "starts"), arrays, strict=True):
    print(f"{name:8}{array}")
print("product ", csr_product(*arrays, np.array([1, 10, 100, 1000])))

# %% [markdown]
# Three multiplications take the place of twelve, and there are two more lists to read. PyTorch's indices have 8 bytes by
# default, so a kept number takes 12 bytes instead of 4, and each row adds the 8 of its start.


# %%
def csr_bytes(side, kept, value_bytes=4, index_bytes=8):
    """Return the bytes of a square matrix in CSR with `kept` numbers."""
    return kept * (value_bytes + index_bytes) + (side + 1) * index_bytes


# %% tags=["hide-input"]
def stored_bytes(kept, side=200):
    """Return what the library stores for `kept` ones."""
    matrix = torch.zeros(side * side)
    matrix[:kept] = 1
    return sparsity.to_csr(matrix.view(side, side)).stored_bytes


kept = bisect.bisect_right(range(200**2), 4 * 200**2, key=stored_bytes) - 1
zeros = 100 * (1 - kept / 200**2)
print(f"a 200 x 200 matrix takes fewer bytes from {zeros:.1f} % zeros on (counted)")
assert csr_bytes(200, kept) <= 4 * 200**2 < csr_bytes(200, kept + 1)

# %% [markdown]
# Two thirds must be zero before anything is saved, and a little more for the starts. In time CSR pays later still:

# %% tags=["hide-input", "nbval-ignore-output"]
torch.manual_seed(0)
weights = torch.randn(1024, 1024)


def with_zeros(share):
    """Return the weights with a share of them set to zero, at random."""
    return torch.where(torch.rand(1024, 1024) < share, 0.0, weights)


shares = (0.5, 0.65, 0.8, 0.9, 0.99)
times = {}
for columns in (1, 64):
    right = torch.randn(1024, columns)
    for share in shares:
        matrices = {"dense": weights, "CSR": with_zeros(share).to_sparse_csr()}
        both = {name: lambda left=left, x=right: left @ x for name, left in matrices.items()}
        with timing.fixed_threads(1):
            times[columns, share] = timing.compare(both, budget_s=0.4, precision=0.1)

# %% tags=["hide-input", "nbval-ignore-output"]
figure, axes = plotting.figure(title="CSR over dense, 1,024 x 1,024: where does it pay?")
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
plotting.show(figure, alt="Three falling curves; each crosses one at another share of zeros.")

# %% tags=["hide-input"]
first, last = times[1, 0.5], times[64, 0.99]
slower, faster = (each.candidate("CSR").time_ratio for each in (first, last))
timing.claim("half zeros, one column: CSR is slower", slower, at_least=1, evidence=first)
timing.claim("99 % zeros, 64 columns: CSR is faster", faster, at_most=1 / 2, evidence=last)

# %% [markdown]
# CSR must read an index to know which input a weight needs. With 64 columns one index serves 64 multiply-adds that lie
# side by side, whereas with one column it serves one. The same matrix in float16, in five forms:

# %% tags=["hide-input"]
halves = weights.half()
groups = halves.float().abs().view(-1, 4)
mask = torch.zeros_like(groups, dtype=torch.bool).scatter(1, groups.topk(2).indices, True)
packed = sparsity.pack_2_4(halves * mask.view_as(halves))
forms = {
    "dense": halves.nbytes,
    "2:4": packed.stored_bytes,
    "half of the rows": halves[:512].nbytes,
}
for share in (50, 90):
    smallest = halves.abs().float().quantile(share / 100, dim=1, keepdim=True)
    forms[f"CSR, {share} % zeros"] = sparsity.to_csr(
        halves * (halves.abs() > smallest)
    ).stored_bytes
table = {
    name: [f"{size:,}", f"{100 * size / halves.nbytes:.1f} %"] for name, size in forms.items()
}
pd.DataFrame(table, index=["bytes", "of dense"]).T

# %% [markdown]
# In 2:4, two values of 2 bytes and two indices of 2 bits stand for four values, which is 9/16. CSR's index is four times
# as long as its value, so half of the numbers take two and a half times the bytes.
#
# ## What became of the factor of two?
#
# NVIDIA promises twice the rate for 2:4, the layers became 1.3 times as fast, and the whole training took 6 % less time
# (published, see the lesson). [Amdahl's law](../glossary.md#amdahls-law) connects the last two numbers.

# %% tags=["hide-input"]
saved = 0.06  # of the wall time of a DINOv2 ViT-L training, as published
share = saved / (1 - 1 / 1.3)
rows = {
    "layers 1.3 times as fast (published)": f"{1 / (1 - saved):.2f}",
    "layers twice as fast (modelled)": f"{1 / (1 - share / 2):.2f}",
    "layers that take no time (modelled)": f"{1 / (1 - share):.2f}",
}
print(f"the layers had {100 * share:.0f} % of the time, if nothing else became slower")
pd.DataFrame(rows, index=["the whole training, times as fast"]).T

# %% [markdown]
# The layers had about a quarter of the time, so even an infinitely fast unit would save no more than that.
