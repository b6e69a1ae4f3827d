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
#     needs: ["02", "03"]
#     objectives:
#       - read|read in a GPU's machine code where the weight of each multiply-add comes from
#       - predict|predicted what a load costs although its data are near
#       - compare|compared the places of a weight on an A100, an H100 and your own processor
#       - count|counted which weights a compiler leaves if many are zero
#       - turn|turned weights from a file into constants
# ---

# %% [markdown] tags=["objectives"]
# # Constant weights
#
# In January 2025 a developer at CMS, an experiment at CERN, wanted to make a program more convenient. The program finds the tracks of particles on a GPU. In
# one of its stages a small neural network decides which candidates for a track it keeps. Every new training needed a new compilation, because the weights
# were written into the program's source. The developer, who signs as GNiendorf, drafted a version that reads them from a file instead
# ([draft 143](https://github.com/SegmentLinking/cmssw/pull/143), published, as are all times on this screen). On a CPU nothing changed. The stage took
# 145.6 ms before and 145.2 ms after. On a GPU, with one stream, it became slower and took 3.8 ms.
#
# The author therefore put the weights back into the source and changed only the word in front of the arrays. With plain arrays the stage took 3.8 ms again,
# although there was no file any more. With arrays in a special memory for constants it took 2.4 ms. With the word `const`, as at the beginning, it was fast.
# (The exact time is in a screenshot of 8 January, which we could not read, and we know no sentence of the draft that names the GPU.)
#
# How can one word do that? [Lesson 16](16_numbers_of_few_bits.ipynb) ended with a related question. After training the weights do not change any
# more, so can they become a part of the program? PyTorch has a similar idea, since `torch.jit.freeze` turns the parameters of a model into
# constants of its graph. In this case study you find out when this is worth it.
#
# We had no GPU. But a compiler for GPUs runs on any processor, so we compile the programs for an A100 and an H100 (with NVIDIA's CUDA 13.0), read the
# machine code, and count. Times on a GPU are published or modelled, unless your machine has one, because a cell near the end then measures there.

# %% tags=["hide-input"]
import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import helpers
from helpers import exercises, native, plotting, recorded, timing
from helpers.studies import constant_weights as cw

check = exercises.checks_of("constant_weights")
torch.set_num_threads(1)

# %% tags=["hide-input", "nbval-ignore-output"]
no_gpu_code = cw.missing_gpu_tools()
try:
    native.find_compiler()
    no_cpu_code = None
except native.MissingToolError as error:
    no_cpu_code = error
print("programs for a GPU:", no_gpu_code or "compiled and read here")
if no_gpu_code:
    print("The cells below show what was recorded on another machine.")
print("programs for this processor:", no_cpu_code or "compiled here")

# %% [markdown] tags=["slide"] minutes=2
# ## The bet
#
# What does the word `const` save?
#
# - One GPU thread evaluates a small network for one candidate
# - Program 1 has its weights in `__device__ const float weights[23][32] = {...};`
# - Program 2 has the same array without `const`
#
# With the word and without it, each candidate takes the same 1,792 multiply-adds, one for each weight. All loops are unrolled in both programs, so that a
# thread executes every instruction once.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 10]
bet = helpers.predict(
    "Without const, how many times as many instructions as with it does a thread execute?",
    "x",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Follow a single weight into its instruction"
# ## Part 1: what one word changes
#
# What does the compiler do with a weight that is `const`? We begin with a single weight, because the whole network only repeats what happens to it.
#
# - A layer with 4 inputs and 4 outputs
# - One thread computes it for one candidate
# - All threads use the same 16 weights
#
# The earlier lesson at work is [lesson 03](03_how_a_gpu_runs_a_kernel.ipynb), with its threads and [registers](glossary.md#register). The last of the 16
# weights is −0.324, and this is the whole [GPU kernel](glossary.md#gpu-kernel):

# %%
print(cw.layer_source("const"))

# %% [markdown]
# We compile it twice for the H100, with and without `const`, and look for the instructions that use the last weight.

# %% tags=["run"]
layers = {name: cw.listing(cw.layer_source(name)) for name in ("const", "device")}

# %% tags=["look"]
for name, lines in layers.items():
    loads = [line for line in lines if line.startswith("LDG")]
    adds = [line for line in lines if line.startswith("FFMA")]
    print(f"{name}: {len(loads)} loads, {len(adds)} multiply-adds; the last of each:")
    print(f"    {loads[-1]}\n    {adds[-1]}")

# %% [markdown] tags=["explain"]
# A line is one instruction. `FFMA` is the multiply-add in float32. It multiplies its second and third operand, adds the fourth, and writes the first. In the
# program with `const` the weight is a number inside the instruction, which is called an [immediate](glossary.md#immediate). In the other program the weight is
# in a register, and a load, `LDG`, must bring it from memory first. (The four loads of both programs bring the inputs.) An instruction of this GPU has 16 bytes,
# and in the first program four of them are the weight.

# %% tags=["hide-input", "slide", "slide-output"] minutes=1 headline="Four of an instruction's 16 bytes are the weight"
weight = cw.layer_weights()[3, 3]
line = [line for line in layers["const"] if line.startswith("FFMA")][-1]
figure = cw.draw_instruction(
    cw.instruction_with(weight, cw.layer_source("const")),
    line,
    title="The last multiply-add of the program with const, byte by byte",
)
plotting.show(figure, alt="The 16 bytes of an FFMA; bytes 4 to 7 are the weight in float32.")

# %% [markdown]
# Why does the compiler need the word? The CPU may write to a plain array before the kernel starts, and this is just how weights from a file get in. Therefore the
# compiler must not trust the values that it sees in the source. With `const` nobody may ever change them, and the compiler can copy each value into the
# instruction that needs it and never read the array.
#
# To check this for a whole network, we let a program read the machine code, which NVIDIA calls [SASS](glossary.md#sass). An operand that an `FFMA` *reads*
# can be an immediate, or come from one of three places.
#
# | an operand | looks like |
# |---|---|
# | immediate, a number in the instruction | `0.0298`, `-3.2e-05` |
# | in [constant memory](glossary.md#constant-memory), of which Part 3 will tell | `c[0x3][0x9c]` |
# | in a [uniform register](glossary.md#uniform-register), likewise | `UR11`, `-UR11` |
# | in a register of this thread | `R37`, `-R37` |
#
# **Your turn.** Look at all operands that an `FFMA` reads, and return the first row of the table, from the top, that fits one of them. The first operand of a line is
# the result, so it is not read. A line may begin with a condition such as `@!P1`, and what follows the dot of `FFMA.FTZ` makes no difference.


# %% tags=["yours"] yours="operand_kind" takes=10
def operand_kind(line):
    """Return "immediate", "constant", "uniform" or "register" for an FFMA, else "nothing"."""
    words = line.split()
    if words[0].startswith("@"):
        words = words[1:]
    if words[0].split(".")[0] != "FFMA":
        return "nothing"
    read = [word.strip("-,") for word in words[2:]]
    if any(word[0].isdigit() for word in read):
        return "immediate"
    if any(word.startswith("c[") for word in read):
        return "constant"
    return "uniform" if any(word.startswith("UR") for word in read) else "register"


# %% checks="operand_kind"
operand_kind = check(operand_kind)


# %% wrong="operand_kind" says="although there is an R in it"
def operand_kind(line):
    if "FFMA" not in line:
        return "nothing"
    read = [operand.strip(" -") for operand in line.split(",")[1:]]
    if any(operand[0].isdigit() for operand in read):
        return "immediate"
    return "constant" if any("c[" in operand for operand in read) else "register"


# %% wrong="operand_kind" says="Look at every operand that is read"
def operand_kind(line):
    if "FFMA" not in line:
        return "nothing"
    weight = line.split(",")[2].strip(" -")
    if weight.startswith("UR"):
        return "uniform"
    return "constant" if weight[0] == "c" else "register" if weight[0] == "R" else "immediate"


# %% wrong="operand_kind" says="`FADD` does not multiply"
def operand_kind(line):
    read = [operand.strip(" -") for operand in line.split(",")[1:]]
    if any(operand[0].isdigit() for operand in read):
        return "immediate"
    if any(operand.startswith("c[") for operand in read):
        return "constant"
    return "uniform" if any(operand.startswith("UR") for operand in read) else "register"


# %% wrong="operand_kind" says="A condition such as `@!P1` comes before"
def operand_kind(line):
    opcode, *operands = line.replace(",", "").split()
    if not opcode.startswith("FFMA"):
        return "nothing"
    read = [operand.strip("-") for operand in operands[1:]]
    if any(operand[0].isdigit() for operand in read):
        return "immediate"
    if any(operand.startswith("c[") for operand in read):
        return "constant"
    return "uniform" if any(operand.startswith("UR") for operand in read) else "register"


# %% right="operand_kind" style=1
def operand_kind(line):
    import re

    match = re.match(r"(?:@\S+ )?FFMA(?:\.\w+)* [^,]+, (.*)", line)
    if match is None:
        return "nothing"
    places = set()
    for operand in match[1].split(", "):
        bare = operand.lstrip("-|").rstrip("|")
        kinds = {"c": "constant", "U": "uniform", "R": "register"}
        places.add(kinds.get(bare[0], "immediate"))
    order = ("immediate", "constant", "uniform", "register")
    return next(kind for kind in order if kind in places)


# %% right="operand_kind" style=2
def operand_kind(line):
    tokens = line.replace(",", " ").split()
    while tokens and tokens[0][0] == "@":
        tokens.pop(0)
    name, _, *sources = tokens
    if name.partition(".")[0] != "FFMA":
        return "nothing"

    def rank(source):
        source = source.strip("-")
        if source.startswith("c["):
            return 1
        return 2 if source.startswith("UR") else 3 if source.startswith("R") else 0

    return ("immediate", "constant", "uniform", "register")[min(map(rank, sources))]


# %% [markdown]
# Now take the whole network. It has 23 inputs, two layers of 32 with a ReLU, and one output with a sigmoid. These are 23 × 32 + 32 × 32 + 32, or 1,792 weights,
# and with 65 biases 1,857 parameters. (Our weights are random. Other values give the same counts as long as none is zero.) Its program has a layer like the
# draft's, two unrolled loops around one multiply-add:

# %%
network = cw.standard_network()
plain = cw.generate(network, "cuda", placement="device")
print(plain[plain.index("    // layer 2") : plain.index("    // layer 3")].rstrip())

# %% tags=["run"]
programs = {"const": cw.generate(network, "cuda", placement="const"), "device": plain}
counts = {name: cw.count_instructions(source) for name, source in programs.items()}
const, device = counts["const"], counts["device"]

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Without const, nearly twice as many instructions"
bet.reveal(modelled=2, counted=device.total / const.total)

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 mark="without" headline="The additional instructions are loads"
rows = {}
for name, count in counts.items():
    lines = [] if no_gpu_code else cw.listing(programs[name])
    recorded_kinds = {"immediate": count.immediate, "register": count.register}
    kinds = Counter(map(operand_kind, lines)) if lines else recorded_kinds
    assert kinds["immediate"] == count.immediate
    others = count.total - count.multiply_adds - count.global_loads
    rows[{"const": "with const", "device": "without"}[name]] = [
        kinds["immediate"],
        kinds["register"],
        count.global_loads,
        others,
        count.total,
    ]
columns = ["FFMA, immediate", "FFMA, register", "loads", "others", "all"]
pd.DataFrame(rows, index=columns).T.map("{:,}".format)

# %% [markdown] tags=["explain"]
# The table is a [census](glossary.md#census) of both programs, counted with your function. Both have 1,797 multiply-adds, of which five belong to the sigmoid, and
# both load the 23 inputs. Without `const` a thread executes 1.91 times as many instructions, because it also loads each of the 1,857 parameters. It is not quite
# twice, mainly because a multiply-add has room for only one number. The first one of each unit starts from the bias, which takes that room, so the weight needs one
# more instruction, a `MOV`.
#
# Are the numbers in the instructions our weights? The next line looks for each parameter, also in the program of another network.

# %% tags=["hide-input"]
other = cw.generate(cw.standard_network(seed=1), "cuda")
carried = [network.parameters, 0]
if not no_gpu_code:
    lines = [cw.listing(source) for source in (programs["const"], other)]
    carried = [cw.parameters_in(program, network) for program in lines]
print(f"parameters in the instructions of our program with const: {carried[0]:,}")
print(f"in those of another network's program: {carried[1]:,}")

# %% [markdown]
# All of them are there. The author of the draft had seen the same. "From looking at the SASS", says the draft, "I see that when the const keyword is used the NN
# weights are embedded directly into the FFMA instructions and this seems to be what is causing the speedup." It links
# [a thread of NVIDIA's forum](https://forums.developer.nvidia.com/t/319454), and a reply there says since when this is possible. "Since the Volta architecture
# (I think) FP32 instructions can incorporate one full FP32 literal constant." Our counts agree. In code for Volta (2017) the weights are immediates, whereas in code
# for the generation before almost all are still read from constant memory ([appendix](appendix/17_constant_weights.ipynb)).
#
# **To remember.** A weight that the compiler knows is part of its instruction. One that it does not know costs a load, and with these loads our network needs 1.91
# times as many instructions.
#
# The author wrote with care that this "seems" to be the cause. Can a load cost so much if its data are near?

# %% [markdown] tags=["slide"] minutes=2 headline="Near data still need a load"
# ## Part 2: a load whose data are near
#
# What does a load cost if its data are in the nearest [cache](glossary.md#cache)? We ask because the author's explanation depends on it.
#
# - 1,857 parameters of 4 bytes are 7,428 bytes
# - They stay in the L1 cache
# - All 32 threads of a [warp](glossary.md#warp) need the same weight at once
#
# The parameters could hardly be nearer. After the first use they are in the L1 cache ([lesson 01](01_memory_hierarchy.ipynb)). A load touches a
# single [sector](glossary.md#sector) (lesson 03), because all threads of a warp want the same address. While one warp waits, its scheduler takes
# another. By all that we have learned about bytes and waiting, these loads should cost next to nothing.
#
# But a load must also be *executed*, and there are few units for it. A [multiprocessor](glossary.md#multiprocessor) of an H100 has four schedulers, and each issues
# one instruction of a warp per cycle. It has 128 float32 [lanes](glossary.md#lane), enough for the multiply-adds of four warps per cycle. But it has only 32
# load/store units, enough for the load of one warp (numbers of units from NVIDIA's H100 whitepaper).
#
# **Your turn.** Write how many cycles a multiprocessor needs per warp. All its instructions, loads included, pass through the schedulers, four per cycle, and at the
# same time the loads pass through the load units, one per cycle. Assume that no unit ever waits for data.


# %% tags=["yours"] yours="cycles_per_warp" takes=5
def cycles_per_warp(instructions, loads):
    """Return the cycles per warp, of whose `instructions` some are `loads`."""
    return max(instructions / 4, loads)


# %% checks="cycles_per_warp"
cycles_per_warp = check(cycles_per_warp)


# %% wrong="cycles_per_warp" says="at the same time"
def cycles_per_warp(instructions, loads):
    return instructions / 4 + loads


# %% wrong="cycles_per_warp" says="four instructions per cycle"
def cycles_per_warp(instructions, loads):
    return max(instructions, loads)


# %% wrong="cycles_per_warp" says="only one load per cycle"
def cycles_per_warp(instructions, loads):
    return max(instructions / 4, loads / 4)


# %% wrong="cycles_per_warp" says="the cells below need int or float"
def cycles_per_warp(instructions, loads):
    return torch.tensor(max(instructions / 4, loads))


# %% right="cycles_per_warp" style=1
def cycles_per_warp(instructions, loads):
    issue = instructions * 0.25
    if loads > issue:
        return loads
    return issue


# %% right="cycles_per_warp" style=2
def cycles_per_warp(instructions, loads):
    return sorted([instructions / 4, float(loads)])[-1]


# %% [markdown]
# With `const` the schedulers need 1,980 / 4, or 495 cycles, and the 23 loads are hidden among them. The program without `const` has 3,783 instructions, of which 1,880
# are loads.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 10]
slower = helpers.predict(
    "Without const, how many times as many cycles as with it "
    "does a multiprocessor need per warp?",
    "x",
)
slower

# %% tags=["run"]
cycles = {name: cycles_per_warp(row.total, row.global_loads) for name, row in counts.items()}

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The load units are the slower ones"
slower.reveal(modelled=cycles["device"] / cycles["const"])

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Without const the schedulers wait for the load units"
units = {
    label: {"schedulers": counts[name].total / 4, "load units": counts[name].global_loads}
    for name, label in {"const": "with const", "device": "without const"}.items()
}
plotting.show(
    cw.draw_cycles(units, title="Cycles per warp on a multiprocessor of an H100 (modelled)"),
    alt="Schedulers and load units need 495 and 23 cycles with const, 946 and 1,880 without.",
)

# %% [markdown] tags=["explain"]
# Without `const` the schedulers need 3,783 / 4, or 946 cycles. But the load units need 1,880, one for each load, and the slower of the two sets the time. It is
# 1,880 / 495, or 3.8 times as long (modelled). This is the [roofline](glossary.md#roofline) of [lesson 02](02_compute_and_roofline.ipynb) with load units instead of
# memory. The loads can thus be the cause, although only a run on a GPU could prove it, because the model assumes that no unit ever waits for data. With wide
# loads, which fetch four neighbouring weights at once, the model would give only about 1.2, because a quarter of the loads would do.
#
# **To remember.** A multiprocessor can do four multiply-adds in the time of one load, even if the data are in L1. A kernel with one load per multiply-add reaches at
# most a quarter of its peak.
#
# The best load is none. Is there another place from which a weight can be read without one?

# %% [markdown] tags=["slide"] minutes=2 headline="Constant memory serves a whole warp"
# ## Part 3: other places for a weight
#
# Which other places are as good as an immediate? The author of the draft tried one that was made for the purpose, and so do we.
#
# - Constant memory has 64 KiB, which a kernel can only read
# - Its caches serve values that a whole warp needs at once
# - The CPU fills it before the kernel starts, also from a file
#
# With constant memory the stage took 2.4 ms. Follow −0.324 once more, through code for an A100. There the `FFMA` can name an address in constant memory in
# the place of a register, for example `c[0x3][0x3c]`, and there is no load. In code for an H100 the same compiler does not do this any more. It first copies each weight
# into a uniform register, which all threads of a warp share, by an instruction of its own, `ULDC`.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 10]
constant_memory = helpers.predict(
    "With weights in constant memory, how many times as many instructions "
    "as with const does the network need on an H100?",
    "x",
)
constant_memory

# %% tags=["run"]
placed = {
    (name, chip): cw.count_instructions(
        cw.generate(network, "cuda", placement=name), architecture=chip
    )
    for name in ("const", "constant", "device")
    for chip in ("sm_80", "sm_90")  # the instructions of the A100 and of the H100
}

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="On an H100, constant memory needs a load as well"
constant_memory.reveal(modelled=2, counted=placed["constant", "sm_90"].total / const.total)

# %% tags=["hide-input", "look"]
names = {"const": "const", "constant": "constant memory", "device": "plain array"}
rows = {
    label: [f"{placed[name, chip].total:,}" for chip in ("sm_80", "sm_90")]
    for name, label in names.items()
}
pd.DataFrame(rows, index=["A100", "H100"]).T.rename_axis("instructions of a thread")


# %% tags=["hide-input", "slide", "slide-output"] minutes=2 untitled=true headline="Only const needs no memory for the weight"
def last_instruction(name, chip, *opcodes):
    lines = cw.listing(cw.layer_source(name), architecture=chip)
    instruction = [line for line in lines if line.startswith(opcodes)][-1]
    return re.sub(r"(\.\d{3})\d+", r"\1", instruction)


ways = {
    "const, H100": cw.WeightWay((), "", last_instruction("const", "sm_90", "FFMA")),
    "constant memory, A100": cw.WeightWay(
        ("constant memory",), "", last_instruction("constant", "sm_80", "FFMA")
    ),
    "constant memory, H100": cw.WeightWay(
        ("constant memory", "uniform register"),
        last_instruction("constant", "sm_90", "ULDC"),
        last_instruction("constant", "sm_90", "FFMA"),
    ),
    "plain array, H100": cw.WeightWay(
        ("global memory", "register"),
        last_instruction("device", "sm_90", "LDG"),
        last_instruction("device", "sm_90", "FFMA"),
    ),
}
plotting.show(
    cw.draw_ways(ways, title="The way of the weight −0.324 to its multiply-add"),
    alt="With const the weight is in the FFMA. An A100's FFMA reads it. Else it is loaded.",
)

# %% [markdown] tags=["explain"]
# On an H100 it is 1.90 times. By this count constant memory is as good as `const` on one chip, and on the next one it needs nearly as many instructions as a plain
# array, although these are no loads from [global memory](glossary.md#global-memory). Nothing in the source shows the difference. The author found constant memory
# slower than `const`. A known cause would be the small size of its nearest cache, which holds 2 KiB on a T4
# ([Jia and others, 2019](https://arxiv.org/abs/1903.07486), published), whereas our weights take 7 KiB. We have not tested whether it is the cause here.
#
# The draft had also changed how the layers get their arrays, namely as references to `std::array`, and its author found that this change caused most of the slowdown.
# So was it the reference, or the missing `const`? The program before the draft had used references too, to ordinary arrays. We compile the small layer with
# both kinds.

# %% tags=["hide-input"]
rows = {}
for array in (
    "const array",
    "const array of arrays",
    "array filled later",
    "array filled later, __restrict__",
):
    lines = cw.listing(cw.reference_source(array))
    loads = sum(line.startswith("LDG") for line in lines) - 4  # the inputs
    rows[array] = [loads, sum(operand_kind(line) == "immediate" for line in lines)]
pd.DataFrame(rows, index=["weights loaded", "immediates"]).T.rename_axis("a reference to")

# %% [markdown]
# As long as the compiler can see which `const` array a reference means, it loads none of the 16 weights, and `std::array`, an array of arrays, makes no difference. If the
# array is filled later, it loads all 16. (`__restrict__` promises that there is no [aliasing](glossary.md#aliasing), and this does not help either, because the values are still unknown.)
# Our reading is that the reference cost nothing and the filling cost the loads, but we do not have the machine code of the draft.
#
# One detail is easy to miss. The kernel of the draft does have a `const`, since it gets its weights through a *pointer to const*. But such a `const` promises only that this
# function does not write. The CPU may have written before, so the compiler knows no value. Only a `const` array whose values are in the source promises the values.
#
# And the CPU? The multiply-add of an x86 processor has no room for a float32, but it can read one factor from memory by itself, without a separate load. In the draft
# `const` changed nothing there. Your own processor can say what it makes of it, so we compile three C++ programs.

# %% tags=["predict"]
cpu = helpers.predict(
    "With weights behind a pointer, how many times as long "
    "as with constants does the network take on your processor?",
    "x",
)
cpu

# %% tags=["hide-input", "run"]
kinds = {
    "constants": "constexpr",
    "pointer": "pointer",
    "pointer, sizes unknown": "runtime_sizes",
}
x, out = torch.randn(4096, network.inputs), torch.empty(4096, 1)
calls = {}
for name, kind in kinds.items():
    if not no_cpu_code:
        program = cw.cpp_program(network, kind)
        calls[name] = lambda program=program: program(x, out=out)
times = None
if calls:
    times = helpers.compare(calls, budget_s=3, precision=0.05, device="cpu")

# %% tags=["look", "nbval-ignore-output"]
cpu.reveal(modelled=1, measured=times.candidate("pointer").time_ratio if times else None)

# %% tags=["hide-input", "look"]
claims = {
    "pointer": ("a pointer takes hardly longer than constants", {"at_most": 1.5}),
    "pointer, sizes unknown": ("unknown sizes take much longer", {"at_least": 2}),
}
for name, (sentence, bound) in claims.items():
    if times:
        times.claim(sentence, name, **bound)
    else:
        timing.claim(sentence, None, **bound)

# %% [markdown] tags=["explain"]
# On one core of our machine, an EPYC server, the network takes about 1.1 times as long through a pointer as with constants (measured). If the compiler does not know the
# *sizes* either, it takes about five times as long (measured), because the loops must then fit every size.
#
# **To remember.** Which place is free depends on the chip. On an H100 constant memory needs 1.90 times the instructions of `const`, and on an
# A100 no more than `const`. On a core of our x86 server known sizes are worth a factor of nearly five, and known values 1.1.
#
# So far the compiler has only moved the weight. But if it knows its value, can it do more?

# %% [markdown] tags=["slide"] minutes=2 headline="Half precision does two candidates at once"
# ## Part 4: weights that are short, or zero
#
# What does the compiler gain if a weight is short, or zero? We ask because earlier lessons have prepared both cases, few bits (lesson 16) and zeros
# ([lesson 15](15_co_design.ipynb)).
#
# - `HFMA2` does two multiply-adds in half precision
# - So a thread takes two candidates
# - But there is no `const` array of halves
#
# The author of the draft wondered whether half precision is worth more than `const`. It seemed that you have to choose. But a half has 16 bits, and so has the integer type
# `unsigned short`, of which there are `const` arrays. We store the bits of the half as an integer and let the kernel read them as a half.

# %%
half = np.float16(cw.layer_weights()[3, 3])
print(f"the half nearest to the last weight is {float(half)}")
print(f"its bits are 0x{half.view(np.uint16):04x}")
layer = cw.Dense(cw.layer_weights(), np.zeros(4, np.float32))
lines = cw.listing(cw.generate(cw.Network((layer,)), "cuda", precision="fp16"))
print(next(line for line in lines if line.startswith("HFMA2") and str(float(half)) in line))

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 mark="half" headline="Half precision and const each halve the instructions"
rows = {}
for precision, label in {"fp32": "float32", "fp16": "half"}.items():
    candidates = {"fp32": 1, "fp16": 2}[precision]  # of a thread
    sources = (
        cw.generate(network, "cuda", placement=name, precision=precision)
        for name in ("device", "const")
    )
    rows[label] = [
        f"{cw.count_instructions(source).total / candidates:,.0f}" for source in sources
    ]
columns = ["loaded", "const"]
pd.DataFrame(rows, index=columns).T.rename_axis("instructions per candidate")

# %% [markdown] tags=["explain"]
# The compiler put the half into the instruction, once for each of the two candidates. Each step alone about halves the instructions, and the two together leave about a
# quarter. The price is accuracy, because this kernel also adds in half precision. Its error is about four times as large as if only the weights were rounded
# ([computed for 1,000 candidates](appendix/17_constant_weights.ipynb)).
#
# Now let −0.324 be zero. In lesson 15 a zero saved nothing in a dense product, because the processor multiplies by it as by any other number. With `const` it can
# disappear. We put an `if` around each multiply-add, which skips a weight of zero:

# %%
print(next(line.strip() for line in programs["const"].splitlines() if "fmaf" in line))

# %% [markdown]
# Since the compiler knows the weight, it removes either the `if` or the whole multiply-add. Take the whole network again
# and set the smaller half of the weights of each layer to zero, 896 in all, which is called [pruning](glossary.md#pruning). If nothing but their multiply-adds disappeared, 55 % of the 1,980
# instructions would be left. But think of the last layer, whose 32 weights each read one unit of the layer before.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 100]
left = helpers.predict(
    "With half of the weights of each layer set to zero, "
    "what percentage of the instructions is left?",
    "%",
)
left

# %% tags=["run"]
shares = (1, 0.75, 0.5, 0.25, 0.1)
pruned = {kept: cw.pruned(network, 1 - kept) for kept in shares}
totals = {
    kept: cw.count_instructions(cw.generate(pruned[kept], "cuda")).total for kept in shares
}

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Half of the weights, and less than half of the instructions"
modelled = 100 * (const.total - network.macs / 2) / const.total
left.reveal(modelled=modelled, counted=100 * totals[0.5] / totals[1])

# %% [markdown] tags=["explain"]
# It is 787 instructions, or 40 % (counted). Nobody reads 16 units of the layer before the last any more, because 16 of the last 32 weights are zero. Code whose result nobody
# reads is called *dead code*, and the compiler removes it together with all weights that lead only there.
#
# **Your turn.** Count the weights that are in use. A weight is in use if it is not zero and if the unit to which it leads is an output or is read by a unit that is
# itself in use. Start at the last layer, whose units are all outputs. `layers` has the weights of each layer as an array (inputs, outputs).


# %% tags=["yours"] yours="weights_in_use" takes=10
def weights_in_use(layers):
    """Return how many weights of the layers are not zero and lead to an output."""
    read, used = np.ones(layers[-1].shape[1], bool), 0
    for weights in reversed(layers):
        in_use = (weights != 0) & read  # (inputs, outputs)
        read, used = in_use.any(axis=1), used + int(in_use.sum())
    return used


# %% checks="weights_in_use"
weights_in_use = check(weights_in_use)


# %% wrong="weights_in_use" says="You count every weight that is not zero"
def weights_in_use(layers):
    return sum(int((weights != 0).sum()) for weights in layers)


# %% wrong="weights_in_use" says="Go from the last layer to the first"
def weights_in_use(layers):
    used = int((layers[-1] != 0).sum())
    for place, weights in enumerate(layers[:-1]):
        after = layers[place + 1]
        used += int(((weights != 0) & (after != 0).any(axis=1)).sum())
    return used


# %% wrong="weights_in_use" says="the cells below need int"
def weights_in_use(layers):
    read, used = torch.ones(layers[-1].shape[1], dtype=torch.bool), 0
    for weights in reversed(layers):
        in_use = (torch.as_tensor(weights) != 0) & read
        read, used = in_use.any(dim=1), used + in_use.sum()
    return used


# %% right="weights_in_use" style=1
def weights_in_use(layers):
    total = 0
    live = set(range(layers[-1].shape[1]))
    for matrix in layers[::-1]:
        edges = [(i, j) for i, j in zip(*np.nonzero(matrix), strict=True) if j in live]
        total += len(edges)
        live = {i for i, _ in edges}
    return total


# %% right="weights_in_use" style=2
def weights_in_use(layers):
    masks = [np.asarray(weights) != 0 for weights in layers]
    for place in range(len(masks) - 2, -1, -1):
        masks[place] = masks[place] * masks[place + 1].any(1)[None, :]
    return int(np.sum([np.count_nonzero(mask) for mask in masks]))


# %% tags=["hide-input", "look"]
rows = {}
for kept, smaller in pruned.items():
    used = weights_in_use([layer.weights for layer in smaller.layers])
    rows[f"{100 * kept:g} %"] = [smaller.nonzero_weights, used, totals[kept]]
    assert 77 <= totals[kept] - used <= 188
columns = ["not zero", "in use", "instructions"]
pd.DataFrame(rows, index=columns).T.map("{:,}".format).rename_axis("weights kept")

# %% [markdown] tags=["explain"]
# With half of the weights kept, 631 are in use instead of 896, and the compiler has found the same. Each row has about one instruction per weight in use and 77 to 188
# more. Turn the figure, which models the same network with zeros at random places. What happens if it has eight outputs instead of one?

# %% tags=["hide-input"]
cw.explore_zeros()

# %% [markdown]
# With eight outputs and half of the weights nearly every unit is still read, and the weights in use follow those that are not zero. The
# additional saving was thus a gift of the single output. Whether a trained network stays accurate with so few weights is another question.
#
# **To remember.** With constants, a thread needs about one instruction per weight in use, and here 77 to 188 more, for inputs, biases and the sigmoid. A zero is free, and so
# is every weight that nobody reads.
#
# All this needs the weights in the source. So was the wish of the draft impossible?

# %% [markdown] tags=["slide"] minutes=2 headline="The compiler can run when the program starts"
# ## Part 5: constants from a file
#
# Can a constant come from a file? This was the wish with which the draft began.
#
# - The weights must be there when the compiler runs
# - But a compiler is a program too
# - So compile when the weights have been read
#
# The author concluded with care. "IF optimizations from the const keyword" are responsible, "then the weights must be stored at compile-time and not loaded at the start of the
# run". The *if* is in capitals, and the draft was left open. (The newest version of the program that we found still compiles the weights in, now for several networks.)
#
# The weights must indeed be there when the compiler runs. But it can run at the start of the run, as `torch.compile` does ([lesson 13](13_reading_a_profile.ipynb)), and
# [NVRTC](glossary.md#nvrtc) is NVIDIA's compiler as a library. It has compiled all programs for a GPU above.
#
# **Your turn.** Read a file in the format of the draft. For each layer it has three integers of 4 bytes (`"<u4"`), which are the layer's number, its inputs and its outputs. Then
# come the biases, and then the weights row by row, a row per input, all as float32 (`"<f4"`). `np.frombuffer(content, kind, count, offset)` reads `count` values from byte
# `offset` on.


# %% tags=["yours"] yours="read_layers" takes=10
def read_layers(content):
    """Return a pair for each layer of a file, its biases and its weights (inputs, outputs)."""
    layers, at = [], 0
    while at < len(content):
        _, inputs, outputs = (int(size) for size in np.frombuffer(content, "<u4", 3, at))
        values = np.frombuffer(content, "<f4", outputs * (inputs + 1), at + 12)
        layers.append((values[:outputs], values[outputs:].reshape(inputs, outputs)))
        at += 12 + values.nbytes
    return layers


# %% checks="read_layers"
read_layers = check(read_layers)


# %% wrong="read_layers" says="The biases come before the weights"
def read_layers(content):
    layers, at = [], 0
    while at < len(content):
        _, inputs, outputs = map(int, np.frombuffer(content, "<u4", 3, at))
        values = np.frombuffer(content, "<f4", outputs * (inputs + 1), at + 12)
        layers.append((values[-outputs:], values[:-outputs].reshape(inputs, outputs)))
        at += 12 + values.nbytes
    return layers


# %% wrong="read_layers" says="a row per input"
def read_layers(content):
    layers, at = [], 0
    while at < len(content):
        _, inputs, outputs = map(int, np.frombuffer(content, "<u4", 3, at))
        values = np.frombuffer(content, "<f4", outputs * (inputs + 1), at + 12)
        layers.append((values[:outputs], values[outputs:].reshape(outputs, inputs).T))
        at += 12 + values.nbytes
    return layers


# %% wrong="read_layers" says="more than one layer"
def read_layers(content):
    _, inputs, outputs = map(int, np.frombuffer(content, "<u4", 3))
    values = np.frombuffer(content, "<f4", outputs * (inputs + 1), 12)
    return [(values[:outputs], values[outputs:].reshape(inputs, outputs))]


# %% wrong="read_layers" says="the cells below need numpy.ndarray"
def read_layers(content):
    layers, at = [], 0
    while at < len(content):
        _, inputs, outputs = map(int, np.frombuffer(content, "<u4", 3, at))
        values = np.frombuffer(content, "<f4", outputs * (inputs + 1), at + 12)
        weights = values[outputs:].reshape(inputs, outputs)
        layers.append((values[:outputs].tolist(), weights.tolist()))
        at += 12 + values.nbytes
    return layers


# %% right="read_layers" style=1
def read_layers(content):
    import struct

    result, rest = [], bytes(content)
    while rest:
        _, rows, columns = struct.unpack("<III", rest[:12])
        bias = np.array(struct.unpack_from(f"<{columns}f", rest, 12), np.float32)
        flat = struct.unpack_from(f"<{rows * columns}f", rest, 12 + 4 * columns)
        result.append([bias, np.array(flat, np.float32).reshape(rows, columns)])
        rest = rest[12 + 4 * columns * (rows + 1) :]
    return result


# %% right="read_layers" style=2
def read_layers(content):
    words, layers = np.frombuffer(content, "<u4"), []
    while words.size:
        inputs, outputs = words[1:3].tolist()
        table = words[3 : 3 + outputs * (inputs + 1)].view("<f4").reshape(inputs + 1, outputs)
        layers.append((table[0].astype(np.float64), table[1:].astype(np.float64)))
        words = words[3 + table.size :]
    return tuple(layers)


# %% [markdown]
# The network goes into a file, your function reads it, and its program is written again, with the arrays from the file.

# %% tags=["run"]
content = cw.layer_format(network)  # the bytes of the file
activations = ("relu", "relu", "sigmoid")  # of which the file says nothing
layers_read = [
    cw.Dense(weights, biases, activation)
    for (biases, weights), activation in zip(read_layers(content), activations, strict=True)
]
from_file = cw.generate(cw.Network(tuple(layers_read)), "cuda", placement="const")

# %% tags=["hide-input", "look"]
different = sum(a != b for a, b in zip(from_file, programs["const"], strict=True))
row = [f"{len(content):,}", f"{len(from_file):,}", f"{different}"]
columns = ["bytes of the file", "characters of the program", "that differ"]
pd.DataFrame({"read from the file": row}, index=columns).T

# %% tags=["hide-input", "look", "nbval-ignore-output"]
try:
    with tempfile.TemporaryDirectory() as folder:  # no program is kept there yet
        retrained = native.compile_cuda(other, folder=Path(folder))
    print(f"another training, compiled in {retrained.compile_s:.2g} s (measured)")
except native.MissingToolError as error:
    print(error)

# %% [markdown] tags=["explain"]
# The text is the same, to the last of its 35,143 characters, as the one with the original weights, so all parameters are in the instructions again. On a quiet machine of ours the
# compiler took about 0.3 s (measured). A program that runs for hours can pay that at each start.
#
# The limit is the size. An instruction has 16 bytes for a weight of 4, so the 7,428 bytes of the network have become 1,980 × 16, or 31,680 bytes of code. Code comes
# through caches too. On a T4 the two nearest [instruction caches](glossary.md#instruction-cache) hold 16 and 46 KiB (Jia and others, published), so ours fits into the second. (The program without `const` has 60,528 bytes and does not, which our model leaves out.) With layers
# of width 64 the network has 23 × 64 + 64 × 64 + 64, or 5,632 weights.

# %% tags=["predict"]
code_bytes = helpers.predict(
    "With layers of width 64 instead of 32, "
    "about how many bytes of code does the network need?",
    "B",
)
code_bytes

# %% tags=["run"]
wide = cw.random_network((23, 64, 64, 1), activations)
wide_code = 16 * cw.count_instructions(cw.generate(wide, "cuda")).total

# %% tags=["look"]
code_bytes.reveal(modelled=16 * wide.macs, counted=wide_code)

# %% [markdown] tags=["explain"]
# Its code has 95,168 bytes (counted), which fit into neither of the T4's caches, because its middle layer has four times as many weights. We
# have not measured what this costs on a GPU. But wide layers have a better way. In a matrix product with tiles (lesson 02) the load of a weight
# hardly counts, because a thread uses it for many candidates.
#
# **To remember.** A constant needs unrolled code, 16 bytes per weight instead of 4 bytes of data. 46 KiB of code hold about 2,900 instructions,
# so constants are for small networks that run very often.
#
# Now compare our counts with the author's times. In each row of the table the program after the stroke is the baseline, and the draft names neither its GPU nor its CPU.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Constant memory saves instructions on an A100 alone" source="GNiendorf, draft 143 (github.com/SegmentLinking/cmssw)" numbers=[["plain array / constant memory +([\\d.]+)", "plain array / constant memory, time (published)"], ["constant memory +([\\d.]+) \\(A100\\)", "the same ratio of instructions, A100 (counted)"], ["\\(A100\\), ([\\d.]+) \\(H100\\)", "the same ratio of instructions, H100 (counted)"]]
pointer = cw.count_instructions(cw.generate(network, "cuda", placement="pointer"))
of_constant = [
    f"{placed['device', chip].total / placed['constant', chip].total:.2f} ({name})"
    for chip, name in {"sm_80": "A100", "sm_90": "H100"}.items()
]
of_file, of_const = pointer.total / device.total, device.total / const.total
rows = {
    "from a file / plain array": [f"{3.8 / 3.8:.1f}", f"{of_file:.2f} (H100)"],
    "plain array / constant memory": [f"{3.8 / 2.4:.1f}", ", ".join(of_constant)],
    "plain array / const": ["in a screenshot", f"{of_const:.2f} (H100)"],
    "from a file / const, on a CPU": [f"{145.2 / 145.6:.1f}", "time in Part 3"],
}
columns = ["published, time of the stage", "here, instructions (counted)"]
pd.DataFrame(rows, index=columns).T

# %% tags=["hide-input", "nbval-ignore-output"]
times_here, origin = None, ""
if torch.cuda.is_available():
    times_here, origin = cw.measure_cuda(budget_s=10), "measured here"
else:
    try:
        recording = recorded.load("17")
        times_here, origin = recording.result("placements on CUDA"), recording.source
    except FileNotFoundError:
        print("No GPU here, and none is recorded yet: published are 3.8 and 2.4 ms.")
if times_here is not None:
    print(f"{times_here.device}, {times_here.candidates:,} candidates, {origin}")
    least_s = times_here.time("const").median_s
    for name in ("const", "constant", "device", "pointer", "const fp16"):
        row = times_here.time(name)
        ratio = row.median_s / least_s
        print(f"{name:>12}: {1e3 * row.median_s:.3g} ms, {ratio:.2f} times as long as const")

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. A `const` weight is a part of its instruction.
# 2. Where loads set the time, one costs as much as four multiply-adds.
# 3. Weights from a file can be constants too.
#
# Without `const` a thread executes 3,783 instructions instead of 1,980, which is 1.91 times as many.
# Our counts neither confirm nor refute the 3.8 and 2.4 ms, because the stage does other work too. They agree with what the author read in the machine code, although our program is another one.
#
# What can you say now? A `const` weight is a part of the instruction that uses it, whereas each of the 1,857 parameters in a plain array costs a load. These loads matter even if all
# data are in the nearest cache, because a multiprocessor can do four multiply-adds in the time of one load, and in our model this makes a factor of 3.8. And the weights
# may come from a file after all, if you compile once you have read them, in about 0.3 s, and if the code is small enough for the caches of instructions.
#
# The author's method is worth keeping, too. When a change made the program slow for no visible reason, the author changed one word at a time, and then read what the machine really
# executes. In the [exercises](exercises/17_constant_weights_exercises.ipynb) you look for constants in other places. The [appendix](appendix/17_constant_weights.ipynb) counts older
# chips, and measures what a CPU makes of lanes and zeros.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A network of dense layers with bias has $w$ weights, of which $u$ are in use, and $v$ biases. Its program has $c$ instructions, $l$ of them loads.
#
# | quantity | formula | for |
# |---|---|---|
# | instructions of a thread, weights as constants | $u$ and 77 to 188 more | our network, H100 |
# | instructions of a thread, one load per parameter | $2\,w + v$ and some more | arrays that may be written |
# | instructions per candidate, half precision and constants | $u / 2$ and some more | two candidates per thread |
# | cycles per warp | $\max(c / 4,\; l)$ | a multiprocessor of an H100 |
# | code | $16\,c$ bytes | Volta and later |
