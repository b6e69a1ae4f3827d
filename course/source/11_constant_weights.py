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
#     number: "11"
#     title: Constant weights
#     needs: ["00", "02"]
#     objectives:
#       - choose|chose between four explanations of a time by one experiment that separates them
#       - read|read a GPU's machine code line by line, without a GPU
#       - count|counted what feeds each multiply-add of a kernel, for every place that weights can have
#       - test|tested three claims about constants against machine code
#       - predict|predicted what constants are worth on a CPU, and what is worth more there
#       - load|loaded weights from a file at the speed of constants
#       - tell|told where constants stop paying, from the size of the code
# ---

# %% [markdown] tags=["objectives"]
# # Constant weights
#
# A small network ran fast on a GPU while its weights stood in the source text of its [GPU kernel](glossary.md#gpu-kernel), and slowly once they
# came from a file. The author of the program read its machine code, found the reason, and left the weights in the text. In this lesson you find the reason
# too, down to the single instruction, and then do what is neither: weights from a file, compiled as constants.
#
# You need no GPU. A compiler for one runs on any processor, and so does the tool that reads what the compiler wrote. Outputs that you
# see below were printed on another machine. Clear them (Edit, Clear Outputs of All Cells) before you begin.

# %%
import hashlib
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import helpers
from helpers import native, plotting, recorded, timing
from helpers.studies import constant_weights as cw

torch.set_num_threads(1)

# %% [markdown]
# The network runs with one thread here. Two kinds of tools are needed beside PyTorch; where one is not installed, the next cell says
# how to get it, and the lesson goes on with what was recorded on another machine. Without a C++ compiler the claims about the CPU's
# times say `here: not measured`.


# %% tags=["nbval-ignore-output"]
def missing(*finders):
    """Return what is missing and how to get it, as the first of `finders` to fail says it; or an empty text."""
    try:
        for find in finders:
            find()
    except native.NativeError as error:
        return str(error)
    return ""


no_gpu_code = missing(native.nvrtc_version, native.find_nvdisasm)
no_cpu_code = missing(native.find_compiler)
print("code for a GPU:", no_gpu_code or "can be compiled and read here")
print("C++:", no_cpu_code or "can be compiled here")

# %% [markdown] tags=["slide"] minutes=1
# ## The observation
#
# - A physics experiment evaluates a small network for each candidate track.
# - One GPU thread takes one candidate.
# - Weights as `const` arrays: fast. Weights from a file: slow.
#
# The experiment is CMS at CERN, the program its line-segment tracking. Its weights stand in C++ headers as `const` arrays. In January
# 2025 [a draft](https://github.com/SegmentLinking/cmssw/pull/143) read them from a binary file when the program starts, so that a new
# training would need no new program. The stage that holds the network became far slower. So its author, GNiendorf, put the weights back
# into the header and changed only the word before the arrays. In CUDA C++ `__device__` puts an array into the GPU's memory, where it may
# be written; `__constant__` puts it into a part of that memory which a kernel can only read. Two of the times are left; that of
# `const`, the fastest, was in a picture that is lost. Then the author read the machine code.

# %% tags=["slide", "slide-output"] minutes=1
story_s = {"__device__": 3.8e-3, "__constant__": 2.4e-3}
drawn = plotting.draw_bars(story_s, unit="s", title="The story's stage, by the word before its weights")
plotting.show(drawn, alt="Two bars: 3.8 ms with a __device__ array, 2.4 ms with a __constant__ array.")

# %% [markdown]
# The version that read the file took 3.8 ms as well. So a file is no slower than an array that may be written, and the word matters.
#
# Here is a network of the same shape: 23 inputs, two layers of 32 with ReLU, one output with a sigmoid. Its weights are random; no
# question of this lesson depends on their values.

# %% tags=["predict"]
multiply_adds = helpers.predict("How many multiply-adds does one candidate need?", "MAC")
multiply_adds

# %% tags=["run"]
network = cw.standard_network(seed=0)
by_hand = 23 * 32 + 32 * 32 + 32 * 1
parameters = by_hand + 32 + 32 + 1
print(f"by hand: {by_hand:,} MAC, {parameters:,} parameters, {4 * parameters:,} bytes in float32")
print(f"helpers: {network.macs:,} MAC, {network.parameters:,} parameters")

# %% tags=["look"]
multiply_adds.reveal(modelled=by_hand, counted=network.macs)

# %% [markdown] tags=["explain"]
# A [MAC](glossary.md#mac) a weight: each weight is used once a candidate. So whatever it costs to bring one weight to its
# multiply-add is paid as often as the arithmetic itself.

# %% [markdown] tags=["slide"] minutes=1
# ## Four hypotheses
#
# 1. **Memory**: weights from a file must be read from the GPU's memory.
# 2. **[Cache](glossary.md#cache)**: they do not stay in the cache.
# 3. **[Registers](glossary.md#register)**: constants stay in registers.
# 4. **Instructions**: the program itself is another one.
#
# Each is plausible, and each says something that can be counted. Which one is it? Commit yourself to a number from 1 to 4.

# %% tags=["predict"]
hypothesis = helpers.predict("Which of the four hypotheses explains the time, 1, 2, 3 or 4?", "(its number)")
hypothesis

# %% [markdown] tags=["run"]
# Three of them can be examined with a pencil. All threads share the same weights; say there are ten million candidates. A
# [multiprocessor](glossary.md#multiprocessor) is one core of a GPU. On every NVIDIA GPU since Turing (2018) it has a data cache, of which a kernel may take a part as
# [shared memory](glossary.md#shared-memory), and 28 KiB or more are left. A thread has at most 255 registers. (NVIDIA, "CUDA
# Programming Guide", tables "Shared Memory Capacity" and "Memory Information", compute capability 7.5 and later.)

# %% tags=["look", "slide", "slide-output"] minutes=1
candidates = 10_000_000
input_bytes, weight_bytes = 4 * network.inputs * candidates, 4 * network.parameters
print(f"memory: the inputs have {input_bytes / weight_bytes:,.0f} times the bytes of the weights")
print(f"cache: the weights fill {weight_bytes / (28 * 1024):.0%} of 28 KiB")
print(f"registers: {network.parameters:,} parameters, 255 registers")
refuted = {1: weight_bytes < input_bytes / 1000, 2: weight_bytes < 28 * 1024, 3: network.parameters > 255}
not_refuted = [number for number in (1, 2, 3, 4) if not refuted.get(number)]
print("hypotheses that are left:", not_refuted)

# %% [markdown] tags=["explain"]
# So it is not the memory: weights read once and for all are nothing beside the inputs. It is not the size of the cache: they fit
# more than three times. And no program can keep them in registers, whether they are constants or not. What is left is the
# program. If that is it, then the two programs differ in what they *contain*, and that can be counted without running them.

# %% [markdown] tags=["slide"] minutes=1
# ### The experiment that separates them
#
# - One program: `__device__ const float weights_1[23][32] = {...}`
# - The other: `__device__ float weights_1[23][32] = {...}`
# - Compile both, run neither, count instructions.
#
# `generate` writes both texts from one template. Here is all that differs in layer 1, a line of the first program above its like in
# the second.

# %%
sources = {placement: cw.generate(network, "cuda", placement=placement) for placement in ("const", "device")}
for const_line, device_line in zip(*(text.splitlines() for text in sources.values()), strict=True):
    if const_line != device_line and "weights_1" in const_line:
        print(const_line.strip(), device_line.strip(), sep="\n", end="\n\n")

# %% [markdown]
# `const` says that nobody ever changes the numbers. Without it somebody may, and that is how weights from a file get in. The condition
# leaves out weights of zero, which only a compiler that knows the weights can do; none of ours is zero, so here it changes
# nothing. The kernel below the arrays is plain C++. The loops are unrolled by the compiler, since the sizes are known in both programs.

# %%
kernel = sources["const"].split("    // layer 1")[1].split("    // layer 2")[0]
print("    // layer 1" + kernel)

# %% tags=["predict"]
more_instructions = helpers.predict("How many times as many instructions has the program with __device__ arrays?", "x")
more_instructions

# %% [markdown] tags=["run"]
# Where the GPU's tools are missing, `count` takes what was recorded with the same network. Compiling takes some seconds, two
# programs at a time. Of the columns, `immediate` counts the multiply-adds whose weight stands in the instruction itself, `register` those
# that find it in a register, and `global_loads` the instructions that read the GPU's memory.


# %% tags=["run"]
def compile_all(texts):
    """Compile programs, two at a time; each is kept in the cache under its content."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(cw.build, texts))


def count(placement, architecture="sm_90", precision="fp32"):
    """Return what one program consists of: a row."""
    if no_gpu_code:
        return cw.recorded_counts(current=True).count(placement, architecture=architecture, precision=precision)
    chosen = {"architectures": [architecture], "placements": [placement], "precision": precision}
    return cw.count_placements(network, **chosen).counts[0]


# %% tags=["run", "nbval-ignore-output"]
programs = {} if no_gpu_code else dict(zip(sources, compile_all(sources.values()), strict=True))
counts = {placement: count(placement) for placement in sources}
columns = ["total", "multiply_adds", "immediate", "register", "global_loads"]
counted = pd.DataFrame({name: row.to_dict() for name, row in counts.items()}).T[columns]
counted

# %% tags=["look", "nbval-ignore-output"]
model = (network.macs + network.macs) / network.macs
more_instructions.reveal(modelled=model, counted=counts["device"].total / counts["const"].total)

# %% tags=["explain", "slide", "slide-output"] minutes=2
const, device = counts["const"], counts["device"]
assert const.multiply_adds == device.multiply_adds
print(f"inputs: {network.inputs}; loads of const: {const.global_loads}")
print(f"inputs and parameters: {network.inputs + network.parameters:,}; loads of device: {device.global_loads:,}")
print(f"weights inside instructions: const {min(1, const.immediate / network.macs):.0%}, "
      f"device {device.immediate / network.macs:.0%}")  # fmt: skip
print(f"instructions of device: {device.total / const.total:.1f} times as many, for the same multiply-adds")

# %% tags=["explain"]
hypothesis.reveal(counted=not_refuted[0])

# %% [markdown] tags=["explain"]
# The pencil left hypothesis 4 over, and the count agrees with it: the programs differ, by about one load a weight beside one
# multiply-add a weight, which was the model. (A count of instructions is no time: how long they take on a GPU we have not measured.) This is the table that a GPU programmer calls a
# [census](glossary.md#census): what the program consists of, counted once. Since nothing in this kernel loops, it is also what each
# thread executes. Even when every load hits the cache, its instruction is issued. (The few multiply-adds beyond the number of MACs
# belong to the sigmoid.)

# %% [markdown] tags=["slide"] minutes=1
# ## Read it line by line
#
# | in the text | operand | comes from |
# |:--|:--|:--|
# | `R37` | register | this thread |
# | `0.0298` | [immediate](glossary.md#immediate) | the instruction |
# | `c[3][..]` | constant bank | [constant memory](glossary.md#constant-memory) |
# | `UR11` | [uniform register](glossary.md#uniform-register) | a register of 32 threads |
#
# NVIDIA's machine code is called [SASS](glossary.md#sass). `FFMA R10, R37, w, R10` is one multiply-add in float32: R10 = R37 times w, plus R10. What stands
# in the place of w is the whole story. An immediate is a number that is part of the instruction. From sm_70 on
# (sm_90 is NVIDIA's name for the H100's instruction set) an instruction has 16 bytes, and four of them can be a float32.


# %% tags=["run"]
def listing(program, first, lines):
    """Return some lines of a program, from the first one on that matches `first` and has its like below it."""
    text = program.disassembly().splitlines()
    places = [place for place, line in enumerate(text) if re.search(first, line)]
    start = places[len(places) // 2]
    return "\n".join(text[start : start + lines])


# %% tags=["look", "nbval-ignore-output", "slide-output"]
print(listing(programs["const"], "FFMA", 5) if programs else no_gpu_code)

# %% [markdown] tags=["look"]
# Each line is one multiply-add, and has its own weight in it. The first number of a line counts bytes: 16 an instruction. The word
# `reuse` keeps an operand at hand for the next instruction. And the same place of the other program:

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
print(listing(programs["device"], "LDG", 6) if programs else no_gpu_code)

# %% [markdown] tags=["explain"]
# `LDG` loads from [global memory](glossary.md#global-memory) into a register. (`CONSTANT` behind it is not constant memory: it says that
# this kernel does not write what it loads.) It has to be issued, its address has to be there, and a register has to wait for it;
# the multiply-add comes on top. Is what stands in `const`'s instructions really our weights? Search
# the compiled file for the four bytes of each, at the place that an immediate has within its 16 bytes. A weight may also stand
# there without its minus: `FFMA R28, R34, -R9, ...` subtracts.


# %% tags=["look", "nbval-ignore-output"]
def share_in_code(program):
    """Return the share of the weights that stand in `program` as the immediate of an instruction."""
    image, weights = program.cubin.image, np.concatenate([layer.weights.ravel() for layer in network.layers])
    inside = {image[place + 4 : place + 8] for place in range(0, len(image) - 15, 16)}
    return sum(weight.tobytes() in inside or (-weight).tobytes() in inside for weight in weights) / weights.size


if programs:
    other = cw.build(cw.generate(cw.standard_network(seed=1), "cuda", placement="const"))
    print(f"of our weights {share_in_code(programs['const']):.0%} stand in our program")
    print(f"and {share_in_code(other):.0%} in that of another network")
else:
    print(no_gpu_code)

# %% [markdown] tags=["explain"]
# They are there. An instruction has room for one immediate. A unit's first multiply-add spends it on the bias, and gets its weight from
# a `MOV` before it.
#
# That is the answer to the first question, and the author of the story read the same: the weights inside the `FFMA` instructions. A constant is not a *place* from which a weight is read fast. It is no read at all.

# %% [markdown] tags=["slide"] minutes=1
# ## Every place that weights can have
#
# - `const`: nobody writes, the compiler knows the values
# - `device`: an array, filled from a file
# - `pointer`: handed to the kernel
# - `constant`: constant memory, filled from a file
# - `shared`: copied to the multiprocessor first
#
# In the draft the function was handed its weights, as `std::array`s by reference, and its author found that this change alone
# caused most of the slowdown. Constant memory is 64 KiB with caches of its own, made for values that all threads read at once.
# Shared memory is within the multiprocessor, but a block must first copy the weights into it. What will
# the census say of `constant` on sm_90?

# %% tags=["predict"]
constant_ratio = helpers.predict("How many times as many instructions as const has __constant__, on sm_90?", "x")
constant_ratio

# %% [markdown] tags=["run"]
# The rows of `const` and `device` for sm_90 are those from above; the others come from the record, among them sm_80, the A100's.
# (`count("constant")` compiles a row here.)

# %% tags=["run", "nbval-ignore-output", "slide", "slide-output"] minutes=1
record = cw.recorded_counts(current=True)
rows = {f"{name} sm_90": row for name, row in counts.items()}
others = (("pointer", "sm_90"), ("constant", "sm_90"), ("shared", "sm_90"))
others += tuple((name, "sm_80") for name in ("const", "device", "constant"))
for name, architecture in others:
    rows[f"{name} {architecture}"] = record.count(name, architecture=architecture)
short = {"total": "total", "immediate": "immediate", "constant_bank": "c[]", "uniform_register": "UR"}
short |= {"global_loads": "LDG", "shared_loads": "LDS"}
table = pd.DataFrame({name: row.to_dict() for name, row in rows.items()}).T
table[list(short)].rename(columns=short)

# %% [markdown] tags=["look"]
# Instructions in all; multiply-adds with an immediate, with an operand in constant memory, with one in a uniform register; loads from
# global and from shared memory.

# %% tags=["look", "nbval-ignore-output"]
constant_ratio.reveal(modelled=1, counted=rows["constant sm_90"].total / rows["const sm_90"].total)

# %% [markdown] tags=["explain", "slide"] minutes=2
# ### Claim 1: constant memory is as good
#
# - sm_80: no further instruction; the multiply-add reads constant memory itself.
# - sm_90: one load into a uniform register for each weight.
# - On the story's GPU, by its clock: slower than `const`.
#
# The model in the reveal is a rule that programmers learned: an operand `c[3][..]` of constant memory is free. Up to sm_80 it
# costs no *instruction*. On sm_90 the multiply-add has the weight in a uniform register in its place, and an
# instruction of its own, ULDC, brings it there.

# %% tags=["explain"]
old, new = rows["constant sm_80"], rows["constant sm_90"]
print(f"sm_80: {old.constant_bank:,} of {network.macs:,} weights are operands in constant memory")
print(f"sm_90: {new.uniform_register:,} come from uniform registers, by {new.constant_loads:,} loads")
for architecture in ("sm_80", "sm_90"):
    device_total, constant_total = (rows[f"{name} {architecture}"].total for name in ("device", "constant"))
    print(f"{architecture}: device has {device_total / constant_total:.2f} times the instructions of constant")
print(f"the story: device took {story_s['__device__'] / story_s['__constant__']:.2f} times as long as constant")

# %% [markdown] tags=["explain"]
# So the census refutes the claim for sm_90 and leaves it open for sm_80, because instructions are not times: neither of its two ratios is the
# story's. It does not see, for one, that a read of constant memory goes through caches. The nearest one holds 2 KiB on Turing
# ([Jia and others, 2019](https://arxiv.org/abs/1903.07486)), and our weights have over 7. The author of the story measured `const` as faster than
# `__constant__`. We have no time of our own: that is for a GPU to say.
#
# Shared memory lies between: with loads of 16 bytes one instruction brings four weights, and the copy comes on top.

# %% tags=["explain"]
shared = rows["shared sm_90"]
assert rows["const sm_90"].total < shared.total < rows["device sm_90"].total
print(f"a load from shared memory brings {network.parameters / shared.shared_loads:.1f} parameters")

# %% [markdown]
# The compiler of today no longer knows sm_60 (2016) and sm_70 (2017). An older one was recorded. On sm_60 even `const` is read from constant
# memory, so a programmer of 2016 had nearly the same program with `const` and with `__constant__`. In the story somebody asked about a V100,
# which is sm_70: there `const` is in the instructions already.

# %%
recorded_rows = cw.recorded_counts()
kept = [row.to_dict() for row in recorded_rows.counts if row.placement in ("const", "constant", "device")]
print(recorded_rows.compiler)
pd.DataFrame(kept)[["placement", "architecture", "total", "immediate", "constant_bank", "global_loads"]]

# %% [markdown] tags=["slide"] minutes=1
# ### Claim 2: half precision and constants exclude each other
#
# - The story: there is no `const` array of `__half`.
# - An array of `unsigned short` holds the same 16 bits.
#
# With half precision one `HFMA2` works on two numbers at once, so a thread takes two candidates. The story's author saw a choice between
# the two. The generator writes the bits as `unsigned short`, and the compiler sees through the conversion.

# %% tags=["predict"]
half_ratio = helpers.predict(
    "How many instructions a candidate are left in half precision, as a share of float32's?", "%"
)
half_ratio

# %% tags=["run"]
half = count("const", precision="fp16")

# %% tags=["look", "nbval-ignore-output"]
half_ratio.reveal(
    modelled=50, counted=100 * half.instructions_per_candidate / rows["const sm_90"].instructions_per_candidate
)

# %% tags=["explain", "slide", "slide-output"] minutes=1
assert half.immediate >= network.macs
saving = half.instructions_per_candidate / rows["const sm_90"].instructions_per_candidate
print(f"half precision, each weight in an instruction, {half.candidates} candidates a thread: "
      f"{saving:.0%} of float32's instructions")  # fmt: skip

# %% [markdown] tags=["explain"]
# Claim 2 is refuted. There is a price: a weight keeps 11 significant bits, and so does each sum, because the kernel adds in half precision
# as well. What does that do to the last sum, on average over 1,000 candidates?


# %% tags=["explain"]
def last_sum(x, sums):
    """Return the network's last sum with weights and inputs in half precision, rounded to `sums` after each step."""
    values = x.astype(np.float16).astype(sums)
    for layer in network.layers:
        weights, bias = (array.astype(np.float16).astype(float) for array in (layer.weights, layer.bias))
        total = np.tile(bias, (len(x), 1)).astype(sums)
        for i in range(layer.inputs):
            total = (values[:, i : i + 1].astype(float) * weights[i] + total).astype(sums)
        values = np.maximum(total, 0)
    return total.astype(float)


some = np.random.default_rng(0).standard_normal((1000, network.inputs))
hidden = network.module().double()[:-1](torch.from_numpy(some)).detach().numpy()
for sums in (np.float32, np.float16):
    print(f"weights in half, sums in {sums.__name__}: off by {np.abs(last_sum(some, sums) - hidden).mean():.1e}")

# %% [markdown] tags=["explain"]
# The sums cost more than the weights: nearly four times the error. (Lesson 12 meets this again: add up in a wider type.)

# %% [markdown] tags=["slide"] minutes=0.5
# ### Constants that are zero
#
# A weight of zero costs nothing: the compiler sees that it is zero. So remove the smaller half of each layer's weights, and count.
#
# Removing weights is called [pruning](glossary.md#pruning).

# %% tags=["predict", "slide-output"]
pruned_code = helpers.predict("Half of the weights kept: which share of the instructions is left?", "%")
pruned_code

# %% tags=["run", "nbval-ignore-output"]
chosen = {"architectures": ["sm_90"], "placements": ["const"]}
pruned = {} if no_gpu_code else {kept: cw.count_placements(network, prune=1 - kept, **chosen) for kept in (0.5, 0.1)}
shown = {f"{kept:.0%}": [one.nonzero_weights, one.counts[0].total] for kept, one in pruned.items()}
pd.DataFrame(shown, index=["weights kept", "instructions"]) if pruned else no_gpu_code

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=0.5
left = 100 * pruned[0.5].counts[0].total / rows["const sm_90"].total if pruned else None
pruned_code.reveal(modelled=50, counted=left)

# %% [markdown] tags=["explain"]
# Fewer instructions than weights kept: the model was too careful. What went wrong? Look at the last layer. It has 32 weights, and half
# of them are zero now. So nothing reads the 16 units before those, and whoever computes a number that nobody reads has dead code.
# Count only the weights of units that something reads, from the last layer back:


# %% tags=["explain"]
def weights_in_use(net):
    """Return how many weights are not zero and lead, through others, to an output."""
    read, used = np.ones(net.outputs, bool), 0
    for layer in reversed(net.layers):
        alive = (layer.weights != 0) & read
        read, used = alive.any(axis=1), used + int(alive.sum())
    return used


for kept in (0.5, 0.1):
    net = cw.pruned(network, 1 - kept)
    print(f"{kept:.0%} kept: {net.nonzero_weights:,} weights, of which {weights_in_use(net):,} are in use")
used = {kept: weights_in_use(cw.pruned(network, 1 - kept)) for kept in pruned}
assert all(used[kept] <= one.counts[0].total < used[kept] + 300 for kept, one in pruned.items())

# %% [markdown] tags=["explain"]
# Now the table above reads well: an instruction for each weight in use, and at most 300 more.

# %% [markdown] tags=["slide"] minutes=1
# ## Why a CPU does not care
#
# In the story the CPU's time hardly changed. How many times as long do weights behind a pointer take on a CPU, compared with
# constants?
#
# Here are two C++ programs for this processor. Both know the sizes; one holds the weights as `constexpr`, the other gets a pointer. Three
# more follow, for the questions after this one.

# %% tags=["predict"]
pointer_ratio = helpers.predict("On a CPU, how many times as long do weights behind a pointer take as constants?", "x")
pointer_ratio

# %% tags=["run"]
ways = {
    "constants": ("constexpr", 0.0),
    "pointer": ("pointer", 0.0),
    "sizes at run time": ("runtime_sizes", 0.0),
    "candidates on lanes": ("lanes", 0.0),
    "10 % of the weights": ("pruned", 0.9),
}
cpu = {}
if not no_cpu_code:
    texts = [cw.generate(network, "cpp", placement=placement, prune=share) for placement, share in ways.values()]
    compile_all(texts)
    cpu = {name: cw.cpp_program(network, placement, prune=share) for name, (placement, share) in ways.items()}

# %% [markdown]
# First of all: do they compute the right thing? Float64 PyTorch is the judge, and rounding sets the bound. Without a compiler nothing is
# printed here.

# %% tags=["run"]
x = torch.randn(4096, network.inputs, generator=torch.Generator().manual_seed(0))
for name, program in cpu.items():
    off = (program(x) - cw.exact_outputs(program.network, x)).abs()
    print(f"{name}: {int((off <= cw.error_bound(program.network, x)).sum()):,} of {len(x):,} within the bound")

# %% [markdown]
# Now the times of all five, in turns. Called with addresses, so that no Python is timed but one call for 4,096 candidates.


# %% tags=["run", "nbval-ignore-output"]
def calling(program, outputs):
    """Return a function that evaluates all of x with `program`, without any check."""
    addresses = x.data_ptr(), outputs.data_ptr(), len(x), program.context
    return lambda: program.evaluate(*addresses)


out = torch.empty(len(x), 1)
timed = {name: calling(one, out) for name, one in cpu.items()}
cpu_times = helpers.compare(timed, budget_s=1.5, precision=0.05) if cpu else None
if cpu_times is None:
    recorded.show("11-cpu", "peers")
cpu_times or no_cpu_code

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
pointer_ratio.reveal(modelled=1, measured=cpu_times.candidate("pointer").time_ratio if cpu else None)


# %% tags=["explain"]
def say(sentence, name, **bounds):
    """Hold a sentence to the measurement, where there is one."""
    if cpu_times:
        cpu_times.claim(sentence, name, **bounds)
    else:
        timing.claim(sentence, None, **bounds)


say("on a CPU weights behind a pointer cost little more than constants", "pointer", at_most=1.3)

# %% [markdown] tags=["explain", "slide"] minutes=1
# ### The instruction set decides
#
# An x86 multiply-add takes its factors from registers or from memory. There is no immediate for a float.
#
# So the `constexpr` weights are put into memory beside the code, and read from there. Count in both programs the multiply-adds that read
# memory themselves, and look at two of each. (`vfmadd231ps` does eight at once in registers called `ymm`, sixteen in `zmm`; Intel,
# "Software Developer's Manual", volume 2, lists its operands.)

# %% tags=["explain", "nbval-ignore-output", "slide-output"]
for name in ("constants", "pointer"):
    try:
        code = native.disassemble(cpu[name].library, function="evaluate") if cpu else no_cpu_code
    except native.NativeError as error:
        code = str(error)
    lines = [line.strip() for line in code.splitlines() if "fmadd" in line]
    reading = [line for line in lines if " PTR " in line]
    told = f"{len(reading)} of {len(lines)} multiply-adds read memory" if lines else code[:400]
    print(f"{name}: {told}", *reading[:2], sep="\n  ")

# %% [markdown] tags=["explain"]
# On an x86 processor most multiply-adds of both programs have `YMMWORD PTR [...]` or `ZMMWORD PTR [...]` in the weight's place: a read from
# memory, out of the nearest cache, which the processor does in the same instruction. The others find their weight in a register, into
# which it was read before. No load is saved, because the load is part of the multiply-add. (On an ARM processor there is another listing
# and the same conclusion: its multiply-adds read registers only, so weights are loaded first in both programs.)
#
# Where your ratio is a little above 1, one reason is [aliasing](glossary.md#aliasing): the compiler cannot know that writing an output does not overwrite a bias
# behind the pointer, so it reads the biases again. Where the weights begin matters as well: ours begin at a multiple of 64 bytes in both
# programs, for otherwise reads of a whole register would cross cache lines, and we should compare addresses.

# %% [markdown] tags=["slide"] minutes=1
# ## What a CPU does care about
#
# - **Sizes** known: loops are unrolled, sums stay in registers.
# - **[Lanes](glossary.md#lane)**: one register, eight or sixteen candidates.
# - **Work removed**: weights of zero.
#
# A lane is one place of a [SIMD](glossary.md#simd) register. So far, in `constants` and `pointer`, the outputs of one candidate were on
# the lanes. One more prediction: with one weight in ten left, the work is a tenth. And the time, compared with candidates on
# lanes that keep all weights?

# %% tags=["predict"]
pruned_share = helpers.predict("Which share of the time is left, with 10 % of the weights kept?", "%")
pruned_share

# %% tags=["run"]
times_s = {row.name: row.minimum_s / len(x) for row in cpu_times.candidates} if cpu_times else {}

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1
if times_s:
    drawn = plotting.draw_bars(times_s, unit="s", title="One candidate on this CPU, one thread", log=True)
    alt = "Five points: sizes at run time slowest, 10 % of the weights fastest, pointer and constants alike."
    plotting.show(drawn, alt=alt)
else:
    print(no_cpu_code)

# %% tags=["look", "nbval-ignore-output"]
left = 100 * times_s["10 % of the weights"] / times_s["candidates on lanes"] if times_s else None
pruned_share.reveal(modelled=10, measured=left)

# %% tags=["explain"]
say("sizes that are known only at run time cost more than weights that are", "sizes at run time", at_least=1.5)
say("candidates on lanes are faster than outputs on lanes", "candidates on lanes", at_most=0.9)
say("one weight in ten takes a fraction of the time of all", "10 % of the weights", at_most=0.3)

# %% [markdown] tags=["explain"]
# If your tenth of the weights took about a tenth of the time, do not trust the model yet. You know how many of those weights are in
# use:

# %% tags=["explain"]
in_use = weights_in_use(cw.pruned(network, 0.9))
print(f"of {network.macs:,} weights, {in_use} are in use: {in_use / network.macs:.1%} of the multiply-adds")

# %% [markdown] tags=["explain"]
# The time is not: it is far above that share. What is left is work that no pruning removes: reading 23 inputs of each candidate,
# moving them onto the lanes, one sigmoid. Two errors of opposite sign had made the model look right.

# %% [markdown] tags=["explain"]
# So known values are worth little here, until they are zero: then they remove work. The finding of the story, that constants are fast, is
# true, and its reason is the instruction set, not the constness. That is why its author had to read machine code to find it.

# %% [markdown] tags=["slide"] minutes=2
# ## Claim 3: weights from a file cannot be fast
#
# 1. Read the file.
# 2. Write the source text with its weights.
# 3. Compile it, now.
#
# The compiler must know the weights. It need not know them *before the program starts*.
# Compilers are programs, and they run where the network runs: [NVRTC](glossary.md#nvrtc) for a GPU, a C++ compiler for a CPU. The story ended with two
# options, weights in the program or weights in a file. This is the third.

# %%
folder = tempfile.TemporaryDirectory()
path = Path(folder.name, "network.bin")
cw.save(network, path)
from_file = cw.load(path)
print(f"{path.name}: {path.stat().st_size:,} bytes, of which {4 * network.parameters:,} are parameters")
written = {"const": sources["const"], "from the file": cw.generate(from_file, "cuda", placement="const")}
for name, text in written.items():
    print(f"{name}: {len(text):,} characters, SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]}")

# %% [markdown]
# The same text gives the same machine code, so on a GPU the file costs no instruction, and claim 3 is refuted by an equality. The price is a
# compiler on each machine where the program runs, and about a second when it starts. A file that decides over code must be checked before it is believed. One flipped bit:

# %% tags=["run"]
damaged = bytearray(path.read_bytes())
damaged[1000] ^= 1
Path(folder.name, "damaged.bin").write_bytes(damaged)
try:
    cw.load(Path(folder.name, "damaged.bin"))
except ValueError as error:
    print(error)

# %% [markdown] tags=["slide"] minutes=1
# ### `Specialised.from_file`
#
# It serves at once, from behind a pointer, and compiles meanwhile. When the compiler is done, the constants take over.
#
# On a CPU it takes what the last part found to be fast: sizes and candidates on lanes, or straight-line code where few weights are left.
# With `device="cuda"` it takes NVRTC and the const kernel. Let us do what the story wanted: a new training, a new file, the old program.

# %% tags=["run", "nbval-ignore-output", "slide-code"]
retrained = Path(folder.name, "retrained.bin")
cw.save(cw.standard_network(seed=2), retrained)
if no_cpu_code:
    print(no_cpu_code)
else:
    served = cw.Specialised.from_file(retrained)
    first = served(x)
    print("at first the weights are", served.serving.weights_are)
    print(served.wait())

# %% tags=["look"]
if not no_cpu_code:
    exact, bound = (judge(served.network, x) for judge in (cw.exact_outputs, cw.error_bound))
    right_rows = [int(((y - exact).abs() <= bound).sum()) for y in (first, served(x))]
    print(f"within the bound of float64 before and after: {right_rows[0]:,} and {right_rows[1]:,} of {len(x):,}")

# %% [markdown] tags=["explain"]
# The two programs agree to rounding and not to the bit, since they add in different orders. Both are held to the same bound. (Run the cell
# again and the constants serve almost at once: what is compiled is kept under its content.)

# %% tags=["predict"]
eager_ratio = helpers.predict("For one candidate, how many times as long does PyTorch's own module take?", "x")
eager_ratio

# %% tags=["run", "nbval-ignore-output"]
one, one_out = x[:1].clone(), torch.empty(1, 1)
module = network.module()
called = None
if not no_cpu_code:
    with torch.inference_mode():
        ours = {"from a file": lambda: served(one, out=one_out), "torch eager": lambda: module(one)}
        called = helpers.compare(ours, budget_s=1, device="cpu", precision=0.05)
called or no_cpu_code

# %% tags=["look", "nbval-ignore-output"]
steps = 2 * len(network.layers)
eager_ratio.reveal(modelled=steps, measured=called.candidate("torch eager").time_ratio if called else None)

# %% tags=["explain"]
sentence, bounds = (
    "for one candidate PyTorch's module takes longer than a call for each operator explains",
    {"at_least": 6},
)
called.claim(sentence, "torch eager", **bounds) if called else timing.claim(sentence, None, **bounds)

# %% [markdown] tags=["explain"]
# The model counts calls: PyTorch makes one an operator, six in all, and ours is one. It is too low, because each of PyTorch's calls also
# makes a tensor and finds out which kernel to take. With 4,096 candidates a call these costs disappear and the arithmetic shows. Others,
# ONNX Runtime and `torch.compile` among them, were measured where a run is recorded: one thread, every way filling the caller's tensor
# (ONNX Runtime may return one of its own, which flatters it).

# %% tags=["nbval-ignore-output"]
recorded.show("11-cpu", "peers")

# %% [markdown] tags=["slide"] minutes=1
# ## When not to do it
#
# A program of constants grows with the network. A loop does not.
#
# Code is read from memory as well, through a cache of its own, the [instruction cache](glossary.md#instruction-cache). To see where it
# fills up, let us write the extreme: one term for each weight, and a function for each unit.


# %%
def straight_line(net):
    """Return C++ in which every weight is a term of its own; four sums a unit, so that none waits for itself."""
    functions, calls = [], []
    for number, layer in enumerate(net.layers, start=1):
        for j, bias in enumerate(layer.bias.tolist()):
            terms = [f"x[{i}] * {weight.hex()}f" for i, weight in enumerate(layer.weights[:, j].tolist())]
            sums = " + ".join("(" + " + ".join(terms[part::4]) + ")" for part in range(4))
            body = f"float sum = {bias.hex()}f + {sums}; return sum > 0 ? sum : 0;"
            functions.append(f"static __attribute__((noinline)) float unit_{number}_{j}(const float* x) {{ {body} }}")
            calls.append(f"h{number}[{j}] = unit_{number}_{j}(h{number - 1});")
    arrays = " ".join(f"float h{number}[{layer.outputs}];" for number, layer in enumerate(net.layers, start=1))
    start = f"const float* h0 = x + {net.inputs} * c; {arrays} {' '.join(calls)} y[c] = h{len(net.layers)}[0];"
    loop = f"for (long long c = 0; c < n; ++c) {{ {start} }}"
    return "\n".join([*functions, f'extern "C" void evaluate(const float* x, float* y, long long n) {{ {loop} }}'])


tiny = cw.random_network((4, 4, 1), ("relu", "relu"))
print(straight_line(tiny).splitlines()[0].replace("{ ", "{\n    ").replace("; ", ";\n    "))

# %% [markdown]
# Every term is a hexadecimal float, because that writes a float32 exactly. Now networks 23, w, w, 1 of growing width w, as straight lines
# and through the loops that take any sizes.

# %%
widths = (8, 16, 32, 64, 128)
nets = {width: cw.random_network((23, width, width, 1), ("relu", "relu", "relu")) for width in widths}
weights = {width: net.macs for width, net in nets.items()}
flags = ("-O1", "-march=native", "-ffp-contract=fast", "-std=c++17")
lines = {}
if not no_cpu_code:
    with ThreadPoolExecutor(2) as pool:
        built = pool.map(lambda net: native.compile_cpp(straight_line(net), flags=flags), nets.values())
        lines = dict(zip(nets, built, strict=True))

# %% tags=["predict"]
slower = helpers.predict("Straight line: how many times as long does a weight take at width 128, compared with 8?", "x")
slower


# %% tags=["run"]
def compare_at(width):
    """Compare the loop with the straight line, for 256 candidates."""
    loop = cw.cpp_program(nets[width], "runtime_sizes")
    straight = lines[width].function("void evaluate(const float* x, float* y, int64_t n)").raw
    addresses = x.data_ptr(), out.data_ptr(), 256
    ways = {"loop": lambda: loop.evaluate(*addresses, loop.context), "straight line": lambda: straight(*addresses)}
    return helpers.compare(ways, budget_s=0.4, device="cpu", precision=0.05)


knee = {width: compare_at(width) for width in lines}

# %% [markdown] tags=["run"]
# The size of the code comes from the compiled files: the bytes that each weight adds to them, its instructions and itself. The model is
# that a weight takes as long as in the smallest network. The marks are this machine's caches.

# %% tags=["run"]
weight_s, code_bytes = {"straight line": [], "loop": []}, []
if knee:
    for way, values in weight_s.items():
        values += [one.candidate(way).minimum_s / 256 / weights[width] for width, one in knee.items()]
    file_bytes = {width: library.path.stat().st_size for width, library in lines.items()}
    bytes_a_weight = (file_bytes[128] - file_bytes[32]) / (weights[128] - weights[32])
    code_bytes = [bytes_a_weight * weights[width] for width in widths]

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2
caches = [cache for cache in helpers.machine_card().caches or () if cache.size_bytes and cache.kind != "data"]
marks = {f"L{cache.level} full": cache.size_bytes for cache in caches if cache.level in (1, 2)}
if knee:
    straight, loop = weight_s.values()
    curves = {"modelled": [straight[0]] * len(widths), "measured": straight, "loop, measured": loop}
    labels = {"unit": "s", "xlabel": "size of the code", "ylabel": "time a weight", "marks": marks}
    title = "Straight-line code (points) and a loop (dashes)"
    drawn = plotting.draw_curves(code_bytes, curves, title=title, **labels)
    alt = "Time a weight over the size of the code: the loop's falls, that of straight-line code does not."
    plotting.show(drawn, alt=alt)
else:
    print(no_cpu_code)

# %% tags=["look", "nbval-ignore-output"]
measured = weight_s["straight line"][-1] / weight_s["straight line"][0] if knee else None
slower.reveal(modelled=1, measured=measured)

# %% tags=["explain"]
ratios = [one.candidate("straight line").time_ratio for one in knee.values()]
lost = ratios[-1] / ratios[0] if knee else None
sentence = "against the loop, straight-line code loses ground from width 8 to width 128"
timing.claim(sentence, lost, at_least=1.2, evidence=list(knee.values()))

# %% [markdown] tags=["explain"]
# A straight line executes each of its instructions once a candidate, and comes back to it for the next candidate. Once the code is
# larger than the first instruction cache, more and more of it comes from the next level each time. What that costs depends on
# the processor: the code lies in order, so it can be fetched ahead. This lesson was tried on two. On one a weight took longer once the
# code was a few times as large as the first level; on the other only where it nearly filled the second. Which is yours?
#
# The loop fetches a few instructions and runs them thousands of times; its time a weight even falls, since the work around it is
# shared by more. So a straight line pays while the network is small; look in the figure where the two lines cross, which may be long
# before the straight line becomes slow by itself.
#
# On a GPU a weight takes 16 bytes of code, and all threads of a multiprocessor share the instruction caches. Where those end is for a GPU
# to say; we have no time of one.

# %% [markdown]
# Last, the three sides of growth in one picture: instructions and code bytes from the GPU's census, and the straight line's time on this
# CPU. The model is one instruction a weight, 16 bytes an instruction, and for the time as long a weight as in the smallest
# network (without a C++ compiler there is nothing to go by, and a round nanosecond stands in). Choose a quantity.

# %% tags=["run"]
grown = [] if no_gpu_code else cw.count_widths(widths[:4]).rows
model = {"instructions": 1, "code size": 16, "time": (weight_s["straight line"] or [1e-9])[0]}
points = {"instructions": [row.total for row in grown], "code size": [row.code_bytes for row in grown]}
points["time"] = [time_s * net.macs for time_s, net in zip(weight_s["straight line"], nets.values(), strict=False)]
units_of = {"instructions": "", "code size": "B", "time": "s"}
found = {"instructions": "counted", "code size": "counted", "time": "measured"}


def growth(quantity):
    known = [*points[quantity], *[None] * len(widths)][: len(widths)]
    curves = {"modelled": [model[quantity] * weights[width] for width in widths], found[quantity]: known}
    labels = {"unit": units_of[quantity], "xlabel": "width w", "ylabel": quantity, "size_unit": ""}
    return plotting.draw_curves(list(widths), curves, title=f"23, w, w, 1 with constants: {quantity}", **labels)


# %% tags=["look"]
helpers.interactive_figure(
    growth,
    {"quantity": list(model)},
    views=[{"quantity": name} for name in model],
    alt=lambda quantity: (
        f"{quantity} of a network 23, w, w, 1 over its width, modelled and {found[quantity]}: it grows faster than the width."
    ),
)

# %% tags=["explain", "nbval-ignore-output"]
assert all(row.immediate >= 0.99 * row.weights and row.total < 1.3 * row.weights + 100 for row in grown)
if grown:
    print(
        f"width {grown[-1].width}: {grown[-1].weights:,} weights, {grown[-1].total / grown[-1].weights:.1f} instructions each"
    )

# %% [markdown] tags=["explain", "slide"] minutes=1
# ### A rule to take home
#
# - Small network, called all the time: constants.
# - Code larger than the instruction cache: loops, and weights in memory.
# - Retrained every minute: mind the compile time.
#
# With wide layers the matrix product of lesson 02 wins anyway, because each weight that was read serves many candidates.

# %%
folder.cleanup()

# %% [markdown]
# The [exercises](exercises/11_constant_weights_exercises.ipynb) let you read SASS with a program of your own, work out how large a network
# may be, and read the file format of the story.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. A weight in the instruction needs no load.
# 2. Its price is a compiler at each change of the weights.
# 3. Read the instructions before you explain a time.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | multiply-adds of a candidate | $\sum_l \text{inputs}_l \cdot \text{outputs}_l$ | dense layers |
# | parameters | $\sum_l (\text{inputs}_l + 1) \cdot \text{outputs}_l$ | dense layers with bias |
# | instructions, weights as constants | $W$ and a few more | $W$ weights in use, sm_70 and later |
# | instructions, one load a weight | $2W$ and a few more | arrays that may be written |
# | instructions a candidate in half precision | $W / 2$ and a few more | two candidates a thread |
# | code | $16 \cdot \text{instructions}$ bytes | sm_70 and later |
# | largest network for an instruction cache | $W = \text{cache} / \text{bytes a weight}$ | straight-line code |
