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
#     number: "17"
#     title: Constant weights
#     needs: ["00", "02"]
#     objectives:
#       - write|wrote the weights of a network into the text of a program
#       - count|counted what feeds the multiply-adds of a GPU's program, without a GPU
#       - tell|told what `const` and `__constant__` cost chip by chip, and a reference on one
#       - combine|combined constants with half precision, with zeros and with a file
#       - predict|predicted what a constant is worth on a CPU, and when it is too dear
# ---

# %% [markdown] tags=["objectives"]
# # Constant weights
#
# The weights of a network lie in memory, and each one is read before it is multiplied. Must it be? A compiler that knows the
# weights can put each into the very *instruction* that multiplies by it, and no load is left.
#
# A physics experiment had such a program. When the weights moved into a file it became slow, and its author found a likely reason in the
# machine code. You will repeat the finding without a GPU, and then have both: weights from a file, inside the instructions.

# %%
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import helpers
from helpers import exercises, native, plotting, timing, units
from helpers.studies import constant_weights as cw

torch.set_num_threads(1)

# %% [markdown]
# A compiler for GPUs runs on any processor. Where yours has none, the lesson shows what was recorded elsewhere.


# %%
def missing(*finders):
    """Return what is missing here and how to get it, or an empty text."""
    try:
        for find in finders:
            find()
    except native.NativeError as error:
        return str(error)
    return ""


# %% tags=["nbval-ignore-output"]
no_gpu_code = missing(native.nvrtc_version, native.find_nvdisasm)
no_cpu_code = missing(native.find_compiler)
recorded = json.loads(Path("recorded/constant_weights/listings.json").read_text("utf-8"))
print("code for a GPU:", no_gpu_code or "is compiled and read here")
print("C++:", no_cpu_code or "is compiled here")

# %% [markdown] tags=["slide"] minutes=2
# ## The bet
#
# - One GPU thread runs a small network on one *candidate*, a possible particle track
# - Program 1: `__device__ const float weights[23][32] = {...};`
# - Program 2: the same array without `const`
# - How many times as many instructions?
#
# `__device__` puts an array into the GPU's memory. Without `const`, somebody may write to it later, and that is how weights from
# a file get in. All loops are unrolled in both programs: each weight has a multiply-add of its own.

# %% tags=["predict"]
bet = helpers.predict("Without const: how many times as many instructions?", "x")
bet

# %% [markdown] tags=["slide"] minutes=2 headline="One word made a program faster"
# ## Part 1: one word
#
# - CMS at CERN, [draft 143](https://github.com/SegmentLinking/cmssw/pull/143), January 2025
# - Weights from a file: as slow as without `const`
# - The author, GNiendorf, read the machine code, [SASS](glossary.md#sass)
#
# The experiment finds tracks of particles on GPUs, and a network of 23 inputs says which candidates to keep. Its weights stood in C++
# headers as `const` arrays, so that each training needed a new program. The draft reads them from a file. The step with the network then
# took more of the GPU's time. So GNiendorf put the weights back, changed only the word before the arrays, and looked: "From
# looking at the SASS, I see that when the const keyword is used the NN weights are embedded directly into the FFMA instructions and
# this seems to be what is causing the speedup". SASS is NVIDIA's machine code, FFMA its multiply-add in
# float32. The author left the draft open.


# %%
def read_back(function, weights, words):
    """Return what C++ reads in a declaration: what stands before " = ", and the float32s."""
    before, _, values = function(weights, words).partition(" = ")
    rows = [re.findall(r"[-+.\w]+(?=f\b)", row) for row in re.findall(r"{([^{}]*)}", values)]
    return before, [[exactly(number) for number in row] for row in rows]


def exactly(number):
    value = float.fromhex(number) if "x" in str(number) else float(number)
    return float(np.float32(value)).hex()


# %% [markdown]
# We need two programs that differ in a word. **Your turn**: write the array. `0x1.8p-1f` is C++ for the float 0.75, and
# `float(value).hex()` gives all of it but the `f`, exactly.


# %% tags=["yours"] yours="declare"
def declare(weights, words):
    """Return C++: `words weights[rows][columns] = {{..., ...}, {..., ...}};`, exact floats."""
    rows, columns = weights.shape
    texts = [", ".join(f"{float(value).hex()}f" for value in row) for row in weights]
    values = ", ".join(f"{{{text}}}" for text in texts)
    return f"{words} weights[{rows}][{columns}] = {{{values}}};"


# %% checks="declare"
asked = exercises.Checks("An array in C++", declare)
given = np.array([[0.5, -0.25, 0.1], [1, 1e-9, 3]], np.float32)
exact, rounded = (
    tuple(tuple(exactly(format(value, form)) for value in row) for row in given.tolist())
    for form in (".17g", ".6f")
)
before = "__device__ float weights[2][3]"
slips = {
    (before, rounded): "1e-9 has become 0: a weight is exact, to the last bit",
    (before, ((), ())): "Without an f behind it a number is a double",
    ("__device__ float weights[3][2]", exact): "The rows come first: weights[rows][columns]",
}
how = {"call": read_back, "expected": (before, exact), "mistakes": slips}
asked.returns("two rows of three", (given, "__device__ float"), **how)
declare = asked.settle()


# %% wrong="declare" says="to the last bit"
def declare(weights, words):
    rows, columns = weights.shape
    texts = [", ".join(f"{value:.6f}f" for value in row) for row in weights]
    values = ", ".join(f"{{{text}}}" for text in texts)
    return f"{words} weights[{rows}][{columns}] = {{{values}}};"


# %% wrong="declare" says="a number is a double"
def declare(weights, words):
    rows, columns = weights.shape
    texts = [", ".join(float(value).hex() for value in row) for row in weights]
    values = ", ".join(f"{{{text}}}" for text in texts)
    return f"{words} weights[{rows}][{columns}] = {{{values}}};"


# %% wrong="declare" says="The rows come first"
def declare(weights, words):
    rows, columns = weights.shape
    texts = [", ".join(f"{float(value).hex()}f" for value in row) for row in weights]
    values = ", ".join(f"{{{text}}}" for text in texts)
    return f"{words} weights[{columns}][{rows}] = {{{values}}};"


# %% [markdown]
# The [GPU kernel](glossary.md#gpu-kernel): one layer of 4 inputs and 4 outputs. Each thread has its own inputs, and all threads share the
# weights. It is compiled for sm_90, NVIDIA's name for the H100's instructions.

# %% tags=["slide", "slide-code"] minutes=1 mark="fmaf(" headline="One layer, its weights known to the compiler or not"
LAYER = """
extern "C" __global__ void layer(const float* inputs, float* outputs) {
    const float* x = inputs + 4 * threadIdx.x;
    float h[4] = {0, 0, 0, 0};
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        #pragma unroll
        for (int j = 0; j < 4; ++j) h[j] = fmaf(x[i], weights[i][j], h[j]);
    for (int j = 0; j < 4; ++j) outputs[4 * threadIdx.x + j] = h[j];
}"""


# %%
def instructions(compiled):
    """Return a program's instructions, a line each, without `.reuse` and `desc[...]`."""
    lines = re.findall(r"^\s*[\da-f]+ +(.*)", native.disassemble(compiled), re.M)
    return [re.sub(r"\.reuse|desc\[\w+\]", "", line) for line in lines]


def machine_code(name, source, chip="sm_90"):
    """Return a kernel's instructions: compiled here, or recorded as `name`."""
    if no_gpu_code:
        return recorded["layers"][name]
    return instructions(native.compile_cuda(source, architecture=chip))


def instruction_with(weight):
    """Return the 16 bytes of the instruction of `const` that has `weight` at bytes 4 to 7."""
    if no_gpu_code:
        return bytes.fromhex(recorded["instruction"])
    image = native.compile_cuda(sources["const"], architecture="sm_90").image
    places = range(0, len(image) - 15, 16)
    return next(image[p : p + 16] for p in places if image[p + 4 : p + 8] == weight.tobytes())


# %% tags=["run"]
weights = np.random.default_rng(0).uniform(-0.5, 0.5, (4, 4)).astype(np.float32)
words = {"const": "__device__ const float", "without": "__device__ float"}
sources = {name: declare(weights, word) + LAYER for name, word in words.items()}
layers = {name: machine_code(name, source) for name, source in sources.items()}

# %% tags=["look", "slide", "slide-output"] minutes=2 numbers=[["const: (\\d+) loads", "loads for a layer of 16 products, with const"], ["without: (\\d+) loads", "loads for the same layer, without"]] headline="Without the word a weight is loaded each time"
for name, lines in layers.items():
    loads, adds = (
        [each for each in lines if each.startswith(kind)] for kind in ("LDG", "FFMA")
    )
    print(f"{name}: {len(loads)} loads, {len(adds)} multiply-adds; the last of each:")
    print(*loads[-1:], *adds[-2:], sep="\n", end="\n\n")

# %% [markdown] tags=["explain"]
# A line is one instruction. `FFMA R10, R37, w, R10` means R10 = R37 times w, plus R10. With `const`, w is a number inside the
# instruction: an [immediate](glossary.md#immediate). Without `const`, w is a [register](glossary.md#register). A load, `LDG`, must fill it
# first, from [global memory](glossary.md#global-memory). The 4 loads of both programs bring the inputs.
#
# An instruction of sm_90 has 16 bytes. Where in them is the weight?

# %%
weight = weights[3, 3]
code = instruction_with(weight)
last = [line for line in layers["const"] if line.startswith("FFMA")][-1]
backward = code[7:3:-1].hex(" ")
named = {0: "FFMA", **dict(zip((2, 3, 8), re.findall(r"R\d+", last), strict=True))}
assert all(name == f"R{code[place]}" for place, name in named.items() if place)

# %% tags=["slide", "slide-output"] minutes=1 headline="The weight stands inside the instruction"
drawn, axes = plotting.figure(
    title="Four of an instruction's 16 bytes are the weight", height_in=2.6
)
for place, byte in enumerate(code):
    colour = plotting.COLOURS["data" if 4 <= place < 8 else "waiting"]
    axes.add_patch(plt.Rectangle((place + 0.04, 1), 0.92, 0.8, color=colour))
    axes.text(place + 0.5, 1.4, f"{byte:02x}", ha="center", va="center", color="black")
    axes.text(place + 0.5, 1.95, place, ha="center", size=9, color="#555555")
axes.plot([4, 4, 8, 8], [0.9, 0.75, 0.75, 0.9], color="black")
for place, name in named.items():
    axes.text(place + 0.5, 0.78, name, ha="center", size=9)
axes.text(6, 0.4, f"last byte first: {backward} = {weight:.9f} in float32", ha="center")
axes.text(0, 2.4, last, family="monospace")
axes.set(xlim=(0, 16), ylim=(0.2, 2.7))
axes.axis("off")
alt = "The 16 bytes of the last FFMA; bytes 4 to 7 are its weight in float32."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["slide"] minutes=2 headline="Count instructions; run nothing"
# ## Part 2: a census
#
# - Compile both programs, run neither
# - Count what feeds each multiply-add
# - Hold the author's sentence to the count
#
# A [census](glossary.md#census) is the list of what a program consists of. Nothing loops here, so it is also what each thread
# executes. Of the operands that an FFMA *reads*, as a rule one is the input, one the sum, and one the weight:
#
# | some operand is | looks like | comes from |
# |---|---|---|
# | an immediate | `0.0298`, `-3.2e-05` | the instruction |
# | in [constant memory](glossary.md#constant-memory) | `c[0x3][0x9c]` | a [cache](glossary.md#cache) for constants |
# | in a [uniform register](glossary.md#uniform-register) | `UR11` | a register of 32 threads |
# | in a register | `R37`, `-R37` | this thread |
#
# **Your turn**: say which row is the first that fits. A line may begin with a condition such as `@!P1`; the first operand is the
# result; what follows the dot of `FFMA.FTZ` makes no difference here.


# %% tags=["yours"] yours="fed_by"
def fed_by(line):
    """Return "immediate", "constant", "uniform" or "register" for an FFMA, else "nothing"."""
    opcode, _, operands = re.sub(r"^@\S+ ", "", line).partition(" ")
    if opcode.split(".")[0] != "FFMA":
        return "nothing"
    read = [operand.strip(" -|") for operand in operands.split(",")[1:]]
    for kind, start in {"immediate": r"\d", "constant": r"c\[", "uniform": "UR"}.items():
        if any(re.match(start, operand) for operand in read):
            return kind
    return "register"


# %% checks="fed_by"
asked = exercises.Checks("What feeds a multiply-add", fed_by)
lines = {
    "FFMA R10, R37, 0.18100865185260772705, R10": "immediate",
    "@!P1 FFMA R9, R37, c[0x3][0x9c], R9": "constant",
    "FFMA.FTZ R12, -R37, UR11, R12": "uniform",
    "FFMA R69, R54, R18, R69": "register",
    "FFMA R46, R34, R13, -0.034500002861022949219": "immediate",
    "FADD R38, R1, 0.5": "nothing",
}
slips = {
    2: {"register": "UR11 is a uniform register, although it has an R in it"},
    4: {"register": "Look at all operands that are read: here what is added is a number"},
    5: {"immediate": "FADD does not multiply; only FFMA counts"},
}
for place, (line, kind) in enumerate(lines.items()):
    goal = f"{kind}, {line.split(',')[0]}"
    asked.returns(goal, (line,), expected=kind, mistakes=slips.get(place))
fed_by = asked.settle()


# %% wrong="fed_by" says="although it has an R in it"
def fed_by(line):
    if "FFMA" not in line:
        return "nothing"
    read = [operand.strip(" -") for operand in line.split(",")[1:]]
    if any(operand[0].isdigit() for operand in read):
        return "immediate"
    return "constant" if any("c[" in operand for operand in read) else "register"


# %% wrong="fed_by" says="here what is added is a number"
def fed_by(line):
    if "FFMA" not in line:
        return "nothing"
    weight = line.split(",")[2].strip(" -")
    if weight.startswith("UR"):
        return "uniform"
    return "constant" if weight[0] == "c" else "register" if weight[0] == "R" else "immediate"


# %% wrong="fed_by" says="only FFMA counts"
def fed_by(line):
    read = [operand.strip(" -") for operand in line.split(",")[1:]]
    if any(operand[0].isdigit() for operand in read):
        return "immediate"
    if any(operand.startswith("c[") for operand in read):
        return "constant"
    return "uniform" if any(operand.startswith("UR") for operand in read) else "register"


# %% [markdown]
# Now the network itself: 23 inputs, two layers of 32 with ReLU, one output with a sigmoid. Its weights are random, none is
# zero, and other numbers that differ give the same counts. `cw.generate` writes arrays like yours and a kernel of all layers. The `const` program
# also tests each weight for zero, which Part 5 needs. No weight is zero here, so the compiler drops the test. A line of it:

# %%
network = cw.standard_network(seed=0)
print(f"{network.macs:,} MAC, {network.parameters:,} parameters")
text = cw.generate(network, "cuda", placement="const")
print(next(line.strip() for line in text.splitlines() if "fmaf" in line))


# %% tags=["run"]
def count(placement, precision="fp32"):
    """Return what the network's program for sm_90 consists of."""
    if no_gpu_code:
        record = cw.recorded_counts(current=True)
        return record.count(placement, architecture="sm_90", precision=precision)
    how = {"architectures": ["sm_90"], "placements": [placement], "precision": precision}
    return cw.count_placements(network, **how).counts[0]


programs = {name: cw.generate(network, "cuda", placement=name) for name in ("const", "device")}
counts = {name: count(name) for name in programs}
listings = {
    name: [] if no_gpu_code else instructions(cw.build(text).cubin)
    for name, text in programs.items()
}
yours = {name: Counter(map(fed_by, lines)) for name, lines in listings.items()}
columns = ["FFMA, immediate", "FFMA, register", "loads", "all"]

# %% tags=["look"]
const, device = counts["const"], counts["device"]
bet.reveal(modelled=2, counted=device.total / const.total)

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="const" headline="With const nearly all loads are gone"
rows = {}
for name, row in counts.items():
    mine = yours[name] or {"immediate": row.immediate, "register": row.register}
    assert mine["immediate"] == row.immediate
    rows[name] = [mine["immediate"], mine["register"], row.global_loads, row.total]
pd.DataFrame(rows, index=columns).T.rename({"device": "without const"}).map("{:,}".format)

# %% [markdown] tags=["explain"]
# One multiply-add a weight, and without `const` one load a parameter: that is the
# model of two. (23 loads bring the inputs.) A load is issued even where the cache has the weight at hand. Here a load and an FFMA count
# alike; how long each takes is not asked.
#
# An immediate is a number; is it *our* number? Look whose number stands in each instruction. A weight may stand there without its minus,
# because `-R9` subtracts.


# %%
def number_in(line):
    """Return the number in an FFMA or a MOV as a float32 without its sign, else None."""
    opcode, *operands = re.split(r",? ", re.sub(r"^@\S+ ", "", line))
    for text in operands[1:]:
        if opcode == "MOV" and text.startswith("0x"):
            return abs(np.uint32(int(text, 16)).view(np.float32))
        if opcode.startswith("FFMA") and re.match(r"-?\d", text):
            return abs(np.float32(text))
    return None


ours = {}
for layer in network.layers:
    ours |= {abs(value): "weight" for value in layer.weights.ravel()}
    ours |= {abs(value): "bias" for value in layer.bias}
assert len(ours) == network.parameters


# %% tags=["run"]
def kind_of(line):
    """Return which kind of instruction a line is, and whose number it carries."""
    opcode, number = re.search(r"(@\S+ )?(\w+)", line)[2], number_in(line)
    if number in ours:
        return f"{opcode} with our {ours[number]}"
    numbers = "no number" if number is None else "another number"
    names = {"FFMA": f"FFMA with {numbers}", "LDG": "LDG, load", "FMNMX": "FMNMX, ReLU"}
    return names.get(opcode, "others")


other = cw.generate(cw.standard_network(seed=1), "cuda")
groups = recorded["groups"]
if not no_gpu_code:
    listings["another network's const"] = instructions(cw.build(other).cubin)
    reached = {name: [line for line in lines if line[:3] not in ("NOP", "BRA")]
               for name, lines in listings.items()}  # fmt: skip
    groups = {name: Counter(map(kind_of, lines)) for name, lines in reached.items()}

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="FFMA with our weight" headline="The numbers in the instructions are our weights"
kinds = [
    f"FFMA with {what}" for what in ("our weight", "our bias", "another number", "no number")
]
kinds += ["MOV with our weight", "LDG, load", "FMNMX, ReLU", "others"]
table = pd.DataFrame(groups, index=kinds).fillna(0).astype(int)
table.loc["all"] = table.sum()
assert list(table.loc["all"])[:2] == [const.total, device.total]
table.rename(columns={"device": "without const"}).map("{:,}".format)

# %% [markdown] tags=["explain"]
# With `const`, 1,727 FFMAs carry a weight. An FFMA has room for one number. The first of each of the 65 units adds the bias, which takes
# that room; a `MOV` puts the weight into a register first. Together 1,857: each parameter stands in an instruction. In another network's program none of them does, nor without `const`.
# (The 5 other numbers are the sigmoid's; the 31 others are its rest, addresses, a test whether there is a candidate, and the store.)
#
# So the first half of GNiendorf's sentence is right: the weights are in the instructions. On sm_90 a constant costs no load; it comes
# with the instruction, which Part 6 weighs. That this made the program fast is the other half, and no count can show it.

# %% [markdown] tags=["slide"] minutes=2 headline="Which other places of a weight are as free?"
# ## Part 3: where else a weight can be
#
# - By *reference*: a function gets the array's address
# - In [constant memory](glossary.md#constant-memory): `__constant__`, written before the kernel starts
# - Which of them is still free?
#
# The draft also handed the arrays to its functions by reference, as `std::array`, and its author found that this change caused most of
# the slowdown. Part 1 blamed the missing `const`. Can both be right? A reference is an address. Must what lies there be loaded? Here is
# the layer with a function. Our compiler does not bring `std::array`, so `array` is made like it.

# %%
ARRAY = """
template <class T, int n> struct array {
    T values[n];
    __device__ const T& operator[](int i) const { return values[i]; }
};
"""
FUNCTION = """
template <class Rows> INLINE void add_up(const Rows& w, const float* x, float* h) {
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        #pragma unroll
        for (int j = 0; j < 4; ++j) h[j] = fmaf(x[i], w[i][j], h[j]);
}
extern "C" __global__ void layer(const float* inputs, float* outputs PARAMETER) {
    float h[4] = {0, 0, 0, 0};
    CALLS
    for (int j = 0; j < 4; ++j) outputs[4 * threadIdx.x + j] = h[j];
}"""


# %%
def by_reference(declared, *arrays, inline="__forceinline__", parameter=""):
    """Return the layer's text: its function is called for each of the arrays."""
    calls = [f"add_up({name}, inputs + 4 * threadIdx.x, h);" for name in arrays]
    text = FUNCTION.replace("CALLS", " ".join(calls)).replace("PARAMETER", parameter)
    return declared + text.replace("INLINE", f"__device__ {inline}")


fixed, free = (declare(weights, word) for word in words.values())
second = declare(-weights, words["const"]).replace(" weights", " others")
values = fixed.partition(" = ")[2].rstrip(";")
like_std = f"{ARRAY}__device__ const array<array<float, 4>, 4> weights = {{{values}}};"
later, apart = ", const float (*{} memory)[4][4]", {"inline": "__noinline__"}

# %%
ways = {
    "const array": by_reference(fixed, "weights"),
    "const, like std::array": by_reference(like_std, "weights"),
    "const, not inlined": by_reference(fixed, "weights", **apart),
    "two const, not inlined": by_reference(fixed + second, "weights", "others", **apart),
    "without const": by_reference(free, "weights"),
    "filled later": by_reference("", "*memory", parameter=later.format("")),
    "same, __restrict__": by_reference("", "*memory", parameter=later.format("__restrict__")),
}

# %% [markdown]
# Inlined, the function's body stands in the kernel, in place of a call; not inlined, it stands apart and gets an address. We count in the text.

# %% tags=["predict"]
loaded = helpers.predict(
    "Two const arrays, one function, not inlined: how many of 16 weights are loaded?",
    "weights",
)
loaded

# %% tags=["run"]
codes = {name: machine_code(name, text) for name, text in ways.items()}
found = {}
for name, lines in codes.items():
    loads = sum(line.startswith("LDG") for line in lines)
    found[name] = loads - 4, sum(fed_by(line) == "immediate" for line in lines)  # 4 inputs

# %% tags=["look"]
loaded.reveal(counted=found["two const, not inlined"][0])

# %% tags=["look", "slide", "slide-output"] minutes=1 mark="const, not inlined" headline="A function that is not inlined must load"
pd.DataFrame(found, index=["loads of weights", "immediates"]).T.rename_axis("refers to")

# %% [markdown] tags=["explain"]
# What decides is whether the compiler knows the array. It followed the address through the reference, through `operator[]`, and into a
# function that is not inlined. Where that function serves two arrays, it loads: 16 in the text, so 32 in its two calls. So do the programs whose array may be written later, and
# `__restrict__`, the promise that no other name reaches it ([aliasing](glossary.md#aliasing)), changes nothing. The draft's array was
# filled from its file. Our reading: the reference was free, and filling the array at run time was not. (The draft's own machine code we
# do not have.)
#
# And constant memory? A kernel can only read it. It has its own caches, made for 32 threads that read the same value. Follow the last
# weight of our layer into its multiply-add, on sm_80 (the A100) and on sm_90:

# %% tags=["run"]
made = {"without const, sm_90": layers["without"], "const, sm_90": layers["const"]}
for chip in ("sm_90", "sm_80"):
    name, text = f"__constant__, {chip}", declare(weights, "__constant__ float") + LAYER
    made[name] = machine_code(name, text, chip)
stops = {
    "without const, sm_90": ["global memory", "register"],
    "__constant__, sm_90": ["constant memory", "uniform register"],
    "__constant__, sm_80": ["constant memory"],
    "const, sm_90": [],
}


def last_line(name, opcodes):
    """Return a program's last line with one of the opcodes, its number shortened."""
    found = [line for line in made[name] if line.startswith(opcodes)]
    return re.sub(r"(\.\d{4})\d+", r"\1", found[-1])


# %%
def draw_journey(axes, y, name):
    """Draw from where a weight is stored, yellow, to its FFMA; an orange arrow is a load."""
    boxes = [last_line(name, "FFMA"), *reversed(stops[name])]
    places = {1: [7.8], 2: [7.8, 0.9], 3: [7.8, 4.7, 0.9]}[len(boxes)]
    for x, text in zip(places, boxes, strict=True):
        colour = plotting.COLOURS["data" if x == places[-1] else "waiting"]
        frame = {"facecolor": colour, "edgecolor": "none", "boxstyle": "round,pad=0.5"}
        axes.text(x, y, text, bbox=frame, ha="center", va="center", size=9, color="black")
    for end, start in itertools.pairwise(places):
        colour, tip = (
            ("black", end - 1.5) if end > 7 else (plotting.COLOURS["sending"], end - 0.85)
        )
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8}
        axes.annotate("", (tip, y), (start + 0.85, y), arrowprops=arrow)
    note = {1: "no weight is read", 2: "", 3: last_line(name, ("LDG", "ULDC"))}[len(boxes)]
    axes.text(2.8, y + 0.14 * bool(stops[name]), note, ha="center", size=8)
    axes.text(0, y + 0.4, name, weight="bold", size=10)


# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Three chips, three ways to a weight"
drawn, axes = plotting.figure(
    title="A weight's way to its FFMA, with a load and without", height_in=4
)
for place, name in enumerate(stops):
    draw_journey(axes, 3 - place, name)
axes.set(xlim=(0, 9.3), ylim=(-0.3, 3.6))
axes.axis("off")
alt = (
    "From memory or constant memory with a load (sm_90), without one (sm_80), or none: const."
)
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# Yellow is where the weight is stored, an orange arrow is a load, a black one an operand. On sm_80 the FFMA reads constant memory by
# itself. For sm_90 the same compiler (CUDA 13.0) does not write that: `ULDC.64` fills two uniform registers first, UR8 and UR9, with two
# weights that are neighbours. Now the whole network, from sm_60 (2016) to sm_90 (2022):

# %% tags=["run"]
records = cw.recorded_counts().counts + cw.recorded_counts(current=True).counts
chips = ("sm_60", "sm_70", "sm_80", "sm_90")
placements = {"const": "const", "constant": "__constant__", "device": "without const"}
census = {(row.placement, row.architecture): row for row in records if row.precision == "fp32"}
shown = [census[placement, chip] for placement in placements for chip in chips]
parts = {
    name: np.array([getattr(row, name) for row in shown])
    for name in ("immediate", "constant_bank", "uniform_register", "register")
}
loads = np.array([row.global_loads + row.constant_loads for row in shown])
adds = sum(parts.values())
stacked = {"FFMA": adds, "load": loads}
stacked["the rest"] = np.array([row.total for row in shown]) - adds - loads
where, bottom = np.arange(12) + np.arange(12) // 4, np.zeros(12)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Constant memory is as cheap on some chips alone"
drawn, axes = plotting.figure(
    title="On sm_90 constant memory costs a load, too", height_in=4.2
)
looks = {"FFMA": "#56B4E9", "load": "#D55E00", "the rest": "white"}
for part, heights in stacked.items():
    how = {"color": looks[part], "edgecolor": "black", "linewidth": 0.5}
    axes.bar(where, heights, bottom=bottom, label=part, **how)
    bottom += heights
for place, x in enumerate(where):
    fed = max(parts, key=lambda name: parts[name][place]).replace("bank", "memory")
    axes.text(x, 60, fed.replace("_", " "), rotation=90, ha="center", color="black", size=9)
    axes.text(x, bottom[place] + 50, f"{bottom[place]:,.0f}", ha="center", size=8)
for place, name in enumerate(placements.values()):
    axes.text(5 * place + 1.5, 4420, name, ha="center", weight="bold", size=12)
axes.set_xticks(where, [chip[3:] for chip in chips] * 3)
axes.set(ylim=(0, 5400), ylabel="instructions of a thread", xlabel="instruction set: sm_")
axes.legend(loc="upper center", ncols=3, fontsize=9)
alt = "const about 2,000; __constant__ too, but 3,756 on sm_90; without const 3,781 to 4,038."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# With `__constant__` the 1,792 weights are operands in constant memory up to sm_80, and operands in uniform registers on sm_90, behind
# a load each: the network goes down a column of weights, and neighbours stand in a row, so `ULDC.64` seldom helps.
#
# Somebody asked in the draft about the V100, which is sm_70. There `const` weights are immediates like here. On sm_60 even with `const`
# 1,795 of 1,797 FFMAs read constant memory. (sm_60 and sm_70 were compiled with CUDA 12.8, which still knows them.)
#
# Counts are not times. Beside them stand the times that the author published, of the part of the program that holds the network:

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="__constant__" headline="The published times go the way of the counts"
published = {"device": "3.8 ms", "constant": "2.4 ms", "const": "fast, figure lost"}
rows = {}
for placement, name in placements.items():
    totals = [f"{census[placement, chip].total:,}" for chip in chips[1:]]
    rows[name] = [published[placement], *totals]
pd.DataFrame(rows, index=["published", *chips[1:]]).T

# %% [markdown] tags=["explain"]
# By count, constant memory equals `const` up to sm_80, and almost equals the
# program without `const` on sm_90. We know neither the author's chip nor what the caches for constants cost there, so the times
# neither confirm nor refute the counts.

# %% [markdown] tags=["slide"] minutes=2 headline="Half precision takes two candidates at once"
# ## Part 4: half precision, or const?
#
# - `HFMA2` multiplies and adds two half-precision numbers at once
# - So a thread takes two candidates
# - But there is no `const` array of halves, says the draft
#
# The author thought that the gain of lower precision might outweigh that of `const`. Compare the two: weights in half precision, loaded
# from a file, against float32 constants. What does one *candidate* cost?

# %% tags=["predict"]
half = helpers.predict(
    "Half precision, loaded: instructions a candidate, as a share of float32 const?", "%"
)
half

# %% tags=["run"]
cases = {
    "float32, loaded": ("device", "fp32"),
    "half, loaded": ("device", "fp16"),
    "float32, const": ("const", "fp32"),
}
costs = {name: count(*case).instructions_per_candidate for name, case in cases.items()}

# %% tags=["look"]
half.reveal(modelled=100, counted=100 * costs["half, loaded"] / costs["float32, const"])

# %% [markdown] tags=["explain"]
# It is a tie for this program, which loads weight by weight; wider loads would need fewer instructions. Half precision takes
# two instructions for two candidates; a float32 constant takes one instruction for one. Must one choose? A half is 16 bits, and so is an `unsigned short`, of which there are `const` arrays:

# %% tags=["look"]
bits = network.layers[0].weights[:1, :2].astype(np.float16).view(np.uint16)
print(declare(network.layers[0].weights[:1, :2], words["const"]))
shorts = ", ".join(f"0x{each:04x}" for each in bits[0])
print(f"__device__ const unsigned short weights[1][2] = {{{{{shorts}}}}};")
text = cw.generate(network, "cuda", precision="fp16")
print(
    next(
        line.strip() for line in text.splitlines() if "__hfma2(" in line and "for" not in line
    )
)
halves = recorded["half"] if no_gpu_code else instructions(cw.build(text).cubin)
print([line for line in halves if line.startswith("HFMA2")][100])

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="half, const" headline="Halves as constants take the fewest instructions"
costs["half, const"] = count("const", "fp16").instructions_per_candidate
least = costs["float32, const"]
rows = {name: [f"{cost:,.0f}", f"{100 * cost / least:.0f} %"] for name, cost in costs.items()}
pd.DataFrame(rows, index=["instructions a candidate", "of float32, const"]).T

# %% [markdown] tags=["explain"]
# `both` makes a pair of equal halves of a weight's 16 bits. The compiler does that itself, and both halves of the immediate hold the
# weight. So half precision and constants go together. Accuracy is the price. The sums are rounded to 16 bits as well, and that loses more
# than rounding the weights (appendix).

# %% [markdown] tags=["slide"] minutes=2 headline="A zero weight can take its instruction along"
# ## Part 5: constants that are zero
#
# - Our program skips a zero weight with an `if`
# - [Pruning](glossary.md#pruning): the smaller half of each layer's weights becomes zero
# - What is left of 1,980 instructions?
#
# The compiler knows the weight, so it removes the `if` and the multiply-add. Without the `if` it must not, because 0 times NaN is NaN.
#
# In lesson 15 a zero saved nothing in a dense product, because the processor multiplies by zero as by any number. Here it never arrives.

# %% tags=["predict"]
left = helpers.predict(
    "Half of the weights kept: which share of the instructions is left?", "%"
)
left


# %%
def count_pruned(kept):
    """Return the instructions of the network with a share of each layer's weights."""
    if no_gpu_code:
        return recorded["pruned"][f"{kept:g}"]
    text = cw.generate(network, "cuda", placement="const", prune=1 - kept)
    return cw.census(cw.build(text)).total


# %% tags=["run"]
shares = (1, 0.75, 0.5, 0.25, 0.1)
pruned = {kept: count_pruned(kept) for kept in shares}

# %% tags=["look"]
rest = const.total - network.macs
modelled = 100 * (0.5 * network.macs + rest) / const.total
left.reveal(modelled=modelled, counted=100 * pruned[0.5] / pruned[1])

# %% [markdown] tags=["explain"]
# The model keeps half of the weights' instructions and all others. Much less is left. Look at the last layer. It has 32 weights, and 16 of them are zero, so nobody reads 16 of the units
# before it. Computing what nobody reads is *dead code*, and compilers remove it.
#
# **Your turn**: count the weights that matter. Go from the last layer back, and remember which units are read.


# %% tags=["yours"] yours="weights_in_use"
def weights_in_use(layers):
    """Return how many weights are not zero and lead to an output; layers (inputs, outputs)."""
    read, used = np.ones(layers[-1].shape[1], bool), 0
    for weights in reversed(layers):
        matter = (weights != 0) & read
        read, used = matter.any(axis=1), used + int(matter.sum())
    return used


# %% checks="weights_in_use"
asked = exercises.Checks("Weights that matter", weights_in_use)
first, last = np.array([[1, 1, 0], [1, 1, 1]]), np.array([[1], [0], [1]])
slips = {
    7: "That counts all weights but zeros; nobody reads the middle unit",
    6: "Unit 2 is not read: its weights do not matter either",
    4: "A unit that is read counts with all its weights that are not zero",
}
asked.returns("the middle unit is not read", ([first, last],), expected=5, mistakes=slips)
chain = [np.array([[1.0, 1.0]]), np.array([[1.0], [0.0]]), np.array([[0.0]])]
slips = {
    3: "The last weight is zero: nothing before it is read",
    1: "Go from the last layer back",
}
asked.returns("nothing leads to the output", (chain,), expected=0, mistakes=slips)
weights_in_use = asked.settle()


# %% wrong="weights_in_use" says="nobody reads the middle unit"
def weights_in_use(layers):
    return sum(int((weights != 0).sum()) for weights in layers)


# %% wrong="weights_in_use" says="Go from the last layer back"
def weights_in_use(layers):
    used = int((layers[-1] != 0).sum())
    for place, weights in enumerate(layers[:-1]):
        after = layers[place + 1]
        used += int(((weights != 0) & (after != 0).any(axis=1)).sum())
    return used


# %% tags=["look", "slide", "slide-output"] minutes=2 mark="50 %" headline="Half of the weights, less than half of the instructions"
kept_of = {kept: cw.pruned(network, 1 - kept) for kept in shares}
in_use = {
    kept: weights_in_use([layer.weights for layer in net.layers])
    for kept, net in kept_of.items()
}
rows = {
    f"{100 * kept:g} %": [net.nonzero_weights, in_use[kept], pruned[kept]]
    for kept, net in kept_of.items()
}
assert all(77 <= pruned[kept] - in_use[kept] <= 188 for kept in shares)
names = ["weights kept", "weights in use", "instructions"]
pd.DataFrame(rows, index=names).T.rename_axis("kept").map("{:,}".format)

# %% [markdown] tags=["explain"]
# One instruction a weight in use, and 77 to 188 more. With all weights the 188 are Part 2's `MOV`s, ReLUs, loads, others and the
# sigmoid's five. No format of zeros, no index, no hardware for sparsity: an `if` and a compiler are enough, as long as the zeros stay
# where they are.

# %% [markdown] tags=["slide"] minutes=2 headline="A file need not mean a load"
# ## Part 6: a file, and a compiler
#
# - "then the weights must be stored at compile-time and not loaded at the start of the run"
# - So the author concluded
# - And if we compile at the start of the run?
#
# Compilers are programs, and [NVRTC](glossary.md#nvrtc) is one for CUDA that runs inside yours. The draft's file has, for each layer, the
# layer's number, inputs and outputs as u32 (4 bytes, `"<u4"`), then the biases, then the weights row by row as float32 (`"<f4"`).


# %%
def file_of(layers):
    """Return the draft's file of (biases, weights)."""
    sizes = [np.array([n, *w.shape], "<u4") for n, (_, w) in enumerate(layers, start=1)]
    parts = [
        (size, bias.astype("<f4"), w.astype("<f4"))
        for size, (bias, w) in zip(sizes, layers, strict=True)
    ]
    return b"".join(each.tobytes() for part in parts for each in part)


# %%
def read_layers(content):
    """Return (biases, weights) of each layer; weights are (inputs, outputs)."""
    layers, at = [], 0
    while at < len(content):
        _, inputs, outputs = map(int, np.frombuffer(content, "<u4", 3, at))
        numbers = np.frombuffer(content, "<f4", outputs * (inputs + 1), at + 12)
        layers.append((numbers[:outputs], numbers[outputs:].reshape(inputs, outputs)))
        at += 12 + numbers.nbytes
    return layers


# %% [markdown]
# The network goes into a file and comes back; then its program is written again, from the file.

# %% tags=["run"]
content = file_of([(layer.bias, layer.weights) for layer in network.layers])
kinds = [layer.activation for layer in network.layers]
parts = zip(read_layers(content), kinds, strict=True)
from_file = cw.Network(tuple(cw.Dense(w, bias, kind) for (bias, w), kind in parts))
text = cw.generate(from_file, "cuda", placement="const")

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="from the file" headline="From the file comes the same program"
differ = sum(a != b for a, b in zip(text, programs["const"], strict=True))
row = [len(content), len(text), differ]
names = ["bytes of file", "characters of program", "that differ"]
pd.DataFrame({"from the file": row}, index=names).T.map("{:,}".format)

# %% tags=["look", "nbval-ignore-output"]
if not no_gpu_code:
    retrained = cw.generate(cw.standard_network(seed=int.from_bytes(b"new")), "cuda")
    compile_s = cw.build(retrained).cubin.compile_s
    print(f"another training, compiled: {compile_s:.2g} s")

# %% [markdown] tags=["explain"]
# The same text gives the same machine code: weights from a file, and all of them immediates. The price is that time at the start, and
# a compiler on each machine.
#
# Is it worth it on a CPU as well? Three C++ programs for *this* processor: weights as constants; behind a pointer; and behind a pointer
# with the sizes unknown, too. An x86 multiply-add has no room for a float. It takes a factor from memory by itself, in the same instruction
# (Intel, *Software Developer's Manual*, volume 2, VFMADD).

# %% tags=["predict"]
cpu = helpers.predict(
    "On a CPU: how many times as long with a pointer as with constants?", "x"
)
cpu

# %% tags=["run"]
kinds = {"constants": "constexpr", "pointer": "pointer", "sizes unknown, too": "runtime_sizes"}
x, out = torch.randn(4096, network.inputs), torch.empty(4096, 1)
made = (
    {}
    if no_cpu_code
    else {name: cw.cpp_program(network, kind) for name, kind in kinds.items()}
)
calls = {
    name: lambda one=one: one.evaluate(x.data_ptr(), out.data_ptr(), len(x), one.context)
    for name, one in made.items()
}
times = helpers.compare(calls, budget_s=3, precision=0.05) if made else None

# %% tags=["look", "nbval-ignore-output"]
cpu.reveal(modelled=1, measured=times.candidate("pointer").time_ratio if times else None)

# %% tags=["look"]
bounds = {
    "pointer": ("a pointer costs little", {"at_most": 1.3}),
    "sizes unknown, too": ("unknown sizes cost more", {"at_least": 1.5}),
}
for name, (sentence, bound) in bounds.items():
    if times:
        times.claim(sentence, name, **bound)
    else:
        timing.claim(sentence, None, **bound)

# %% [markdown] tags=["explain"]
# On x86 constants lie in memory, too, and a pointer only changes the address. The draft's author saw no change on the CPU: 145.6 ms with
# the headers, 145.2 ms with the file (published). What is above 1 here we leave unexplained. What does cost time is
# not knowing the *sizes*, as the second line shows.
#
# So the instruction set decides, chip by chip. When are constants too dear? As bytes, the parameters are 7,428.

# %% tags=["predict"]
code_bytes = helpers.predict(
    "How many bytes of code hold the network as constants, on sm_90?", "B"
)
code_bytes

# %% tags=["run"]
rows = {}
for width in (16, 32, 64, 128, 256):
    macs = 23 * width + width * width + width
    rows[width] = [f"{macs:,}", units.text(4 * macs, "B"), units.text(16 * macs, "B")]

# %% tags=["look"]
code_bytes.reveal(modelled=16 * network.macs, counted=16 * const.total)

# %% tags=["look", "slide", "slide-output"] minutes=2 mark="32" headline="A network as code grows with its weights"
columns = ["weights", "as numbers", "as code, modelled"]
pd.DataFrame(rows, index=columns).T.rename_axis("23, w, w, 1")

# %% [markdown] tags=["explain"]
# 16 bytes of instruction hold 4 bytes of weight, and code is fetched through an [instruction cache](glossary.md#instruction-cache). On a T4
# (sm_75) the two nearest hold 16 and 46 KiB (published, by Jia and others): our 31.7 kB fit into the second, the 90 kB of width 64
# into neither. (Unrolled without `const` it is 60.5 kB; the rival of constants is a loop, a few instructions and 7.4 kB.) What that costs
# on a GPU we have not measured; on a CPU straight-line code loses ground against a loop as it grows (appendix).
# So we would try constants for small networks that run all the time, and lesson 02's matrix product for wide ones: there each weight,
# once read, serves many candidates.
#
# The [exercises](exercises/17_constant_weights_exercises.ipynb) are about constants in other places. The
# [appendix](appendix/17_constant_weights.ipynb) measures a CPU further: [lanes](glossary.md#lane), zeros, straight-line code, and PyTorch beside it.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Since sm_70 a float constant stands in an instruction; sm_60 and x86 read it.
# 2. Chip and compiler decide where; the machine code tells.
# 3. Weights from a file can be constants: compile when you read it.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | parameters | $\sum_l (\text{inputs}_l + 1) \cdot \text{outputs}_l$ | dense layers with bias |
# | instructions, weights as constants | $W$ and some more, 77 to 188 on sm_90 | $W$ weights in use, sm_70 and later |
# | instructions, one load a weight | $2W$ and some more | arrays that may be written |
# | instructions a candidate, half precision and constants | $W / 2$ and some more | two candidates a thread |
# | code | $16 \cdot \text{instructions}$ bytes | sm_70 and later |
