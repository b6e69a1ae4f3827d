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
#     title: "Constant weights: what else was measured"
# ---

# %% [markdown]
# # Constant weights: what else was measured
#
# The network is the lesson's, with 23 inputs, two layers of 32 and one output. Without a C++ compiler the lines about times
# say that nothing was measured here.

# %%
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import helpers
from helpers import native, plotting, recorded, timing, units
from helpers.studies import constant_weights as cw

torch.set_num_threads(1)
network = cw.standard_network(seed=0)

# %% tags=["nbval-ignore-output"]
try:
    native.find_compiler()
    no_compiler = ""
except native.NativeError as error:
    no_compiler = str(error)
print(no_compiler or "C++ is compiled here")

# %% [markdown]
# ## Four chips
#
# The lesson has counted for the A100 (sm_80) and the H100 (sm_90). Two older generations show when the rule changed. They are the
# P100 (sm_60, 2016) and the V100 (sm_70, 2017), for which somebody asked in the draft. Their programs were compiled with CUDA 12.8,
# because CUDA 13.0 no longer knows these chips, and their counts are recorded.

# %%
records = cw.recorded_counts().counts + cw.recorded_counts(current=True).counts
places = {"const": "const", "constant": "constant memory", "device": "plain array"}
groups = {
    label: [row for row in records if (row.placement, row.precision) == (name, "fp32")]
    for name, label in places.items()
}
figure = cw.draw_placements(groups, title="What feeds the multiply-adds of the network")
alt = (
    "const about 2,000; constant memory too, but 3,756 on sm_90; a plain array 3,781 to 4,038."
)
plotting.show(figure, alt=alt)

# %% [markdown]
# In code for the P100, 1,795 of the 1,797 multiply-adds read constant memory even with `const`, because an instruction of that
# generation has room for fewer bits. From the V100 on the weights are immediates, as the reply in NVIDIA's forum says. Constant memory
# needs no load up to the A100. On the H100 a `ULDC` brings each weight first, although `ULDC.64` could bring two at once. The network
# goes down a column of weights, whereas neighbours in memory are in a row, so the two weights of such a load are seldom used together.
#
# ## By reference
#
# What must a compiler see so that a reference is free? These are seven programs of the lesson's small layer, whose function takes its 16
# weights by reference. *Inlined*, the function's body stands in the kernel, in the place of the call. If it is not inlined, it stands
# apart. We count in the text of the program.

# %%
rows = {}
for array in cw.REFERENCES:
    lines = cw.listing(cw.reference_source(array))
    loads = sum(line.startswith("LDG") for line in lines) - 4  # the inputs
    immediates = sum(bool(re.match(r"FFMA.* -?\d", line)) for line in lines)
    rows[array] = [loads, immediates]
pd.DataFrame(rows, index=["weights loaded", "immediates"]).T.rename_axis("a reference to")

# %% [markdown]
# The compiler followed the address of a `const` array through the reference, through `operator[]`, and even into a function that is not
# inlined. If that function serves two arrays, it must load, 16 weights in the text and therefore 32 in its two calls, because the same
# instructions cannot hold both values. So do the programs whose array may be written later, with `__restrict__` or without it.
#
# ## Three other explanations, with a pencil
#
# Why might weights from a file be slow? They must come from *memory*; they do not stay in the *cache*; as constants they would stay
# in *registers*. Say that there are ten million candidates. A multiprocessor of an NVIDIA GPU since Turing (2018) leaves at least
# 28 KiB of data cache beside shared memory, and a thread has at most 255 registers (NVIDIA, *CUDA Programming Guide*, tables
# "Shared Memory Capacity" and "Memory Information").

# %%
candidates = 10_000_000
input_bytes, weight_bytes = 4 * network.inputs * candidates, 4 * network.parameters
print(
    f"memory: the inputs have {input_bytes / weight_bytes:,.0f} times the bytes of the weights"
)
print(f"cache: the weights fill {weight_bytes / (28 * 1024):.0%} of 28 KiB")
print(f"registers: {network.parameters:,} parameters, 255 registers")

# %% [markdown]
# None of the three can be it. What is left is the program itself, and the lesson counts that.
#
# ## Sums in half precision
#
# The lesson's kernel with half precision keeps its sums in half precision, too. Which costs more, the weights or the sums? Here both
# are computed in NumPy, on 1,000 candidates, and held against float64.


# %%
def last_sum(x, sums):
    """Return the last sum: weights and inputs in half, rounded to `sums` at each step."""
    values = x.astype(np.float16).astype(sums)
    for layer in network.layers:
        halves = (
            each.astype(np.float16).astype(float) for each in (layer.weights, layer.bias)
        )
        weights, bias = halves
        total = np.tile(bias, (len(x), 1)).astype(sums)
        for i in range(layer.inputs):
            total = (values[:, i : i + 1].astype(float) * weights[i] + total).astype(sums)
        values = np.maximum(total, 0)
    return total.astype(float)


# %%
some = np.random.default_rng(0).standard_normal((1000, network.inputs))
with torch.no_grad():
    exact = network.module().double()[:-1](torch.from_numpy(some)).numpy()
for sums in (np.float32, np.float16):
    off = np.abs(last_sum(some, sums) - exact).mean()
    print(f"weights in half, sums in {sums.__name__}: off by {off:.1e}")

# %% [markdown]
# The sums cost more, because they are rounded after every addition, and their error is nearly four times as large.
# [Lesson 16](../16_numbers_of_few_bits.ipynb) adds up in a wider type for the same reason.
#
# ## What a CPU does care about
#
# Five C++ programs for this processor. Weights as constants; behind a pointer; behind a pointer with the sizes unknown, too; then
# with eight or sixteen candidates in one [SIMD](../glossary.md#simd) register; and with the smallest nine tenths of the weights
# removed.

# %%
ways = {
    "constants": ("constexpr", 0.0),
    "pointer": ("pointer", 0.0),
    "sizes unknown": ("runtime_sizes", 0.0),
    "candidates on lanes": ("lanes", 0.0),
    "10 % of the weights": ("pruned", 0.9),
}
programs = {}
if not no_compiler:
    for name, (way, share) in ways.items():
        programs[name] = cw.cpp_program(network, way, prune=share)

# %% [markdown]
# Do they compute the right thing? Float64 PyTorch is the judge, and rounding sets the bound.

# %%
x = torch.randn(4096, network.inputs, generator=torch.Generator().manual_seed(0))
for name, program in programs.items():
    off = (program(x) - cw.exact_outputs(program.network, x)).abs()
    right = int((off <= cw.error_bound(program.network, x)).sum())
    print(f"{name}: {right:,} of {len(x):,} within the bound")

# %% tags=["nbval-ignore-output"]
out = torch.empty(len(x), 1)
calls = {
    name: lambda cpp=cpp: cpp.evaluate(x.data_ptr(), out.data_ptr(), len(x), cpp.context)
    for name, cpp in programs.items()
}
times = helpers.compare(calls, budget_s=3, precision=0.05) if calls else None
measured = times.candidates if times else ()
rows = {row.name: units.text(row.median_s / len(x), "s") for row in measured}
pd.DataFrame({"one candidate": rows})


# %%
def claim(sentence, name, **bounds):
    if times:
        times.claim(sentence, name, **bounds)
    else:
        timing.claim(sentence, None, **bounds)


claim("unknown sizes cost more than known ones", "sizes unknown", at_least=1.5)
claim(
    "candidates on lanes are faster than outputs on lanes", "candidates on lanes", at_most=0.9
)
claim("one weight in ten takes a fraction of the time", "10 % of the weights", at_most=0.3)


# %% [markdown]
# The last program has a tenth of the weights. Does it take a tenth of the time of candidates on lanes? If about that, do not trust
# it yet: in Part 4 of the lesson only 40 of 1,792 weights were in use, 2.2 %. The time is far above that share, because reading 23
# inputs, moving them onto the lanes and the sigmoid remain.
#
# ## Straight lines and loops
#
# A program of constants grows with the network, a loop does not. For a GPU that can be counted. The networks are 23, w, w, 1, and
# the model is an instruction of 16 bytes for each weight.

# %%
rows = {}
for width in (8, 16, 32, 64):
    wide = cw.random_network((23, width, width, 1), ("relu", "relu", "sigmoid"))
    total = cw.count_instructions(cw.generate(wide, "cuda")).total
    rows[width] = [wide.macs, total, 16 * total]
names = ["weights", "instructions", "bytes of code"]
print(pd.DataFrame(rows, index=names).T.map("{:,}".format))

# %% [markdown]
# On this CPU it can be measured. To see where growth begins to cost, here is the extreme: one term for each
# weight, and one function for each unit.


# %%
def unit(name, weights, bias):
    """Return C++ of one unit: four sums, so that none waits for itself."""
    terms = [f"x[{i}] * {weight.hex()}f" for i, weight in enumerate(weights.tolist())]
    sums = " + ".join("(" + " + ".join(terms[part::4]) + ")" for part in range(4))
    body = f"float sum = {float(bias).hex()}f + {sums}; return sum > 0 ? sum : 0;"
    return f"static __attribute__((noinline)) float {name}(const float* x) {{ {body} }}"


def straight_line(net):
    """Return C++ in which every weight is a term of its own."""
    texts, calls = [], []
    for number, layer in enumerate(net.layers, start=1):
        calls.append(f"float h{number}[{layer.outputs}];")
        for j, bias in enumerate(layer.bias):
            texts.append(unit(f"unit_{number}_{j}", layer.weights[:, j], bias))
            calls.append(f"h{number}[{j}] = unit_{number}_{j}(h{number - 1});")
    last = f"y[c] = h{len(net.layers)}[0];"
    body = f"const float* h0 = x + {net.inputs} * c; {' '.join(calls)} {last}"
    loop = f"for (long long c = 0; c < n; ++c) {{ {body} }}"
    declared = "void evaluate(const float* x, float* y, long long n)"
    return "\n".join([*texts, f'extern "C" {declared} {{ {loop} }}'])


# %%
widths = (8, 16, 32, 64, 128)
relus = ("relu", "relu", "relu")
nets = {width: cw.random_network((23, width, width, 1), relus) for width in widths}
flags = ("-O1", "-march=native", "-ffp-contract=fast", "-std=c++17")


def compiled(net):
    return native.compile_cpp(straight_line(net), flags=flags)


lines = {}
if not no_compiler:
    with ThreadPoolExecutor(2) as pool:
        lines = dict(zip(nets, pool.map(compiled, nets.values()), strict=True))


# %%
def compare_at(width):
    """Compare the loop with the straight line, for 256 candidates."""
    loop = cw.cpp_program(nets[width], "runtime_sizes")
    straight = lines[width].function("void evaluate(const float* x, float* y, int64_t n)").raw
    addresses = x.data_ptr(), out.data_ptr(), 256
    both = {
        "loop": lambda: loop.evaluate(*addresses, loop.context),
        "straight line": lambda: straight(*addresses),
    }
    return helpers.compare(both, budget_s=0.4, device="cpu", precision=0.05)


knee = {width: compare_at(width) for width in lines}

# %% tags=["nbval-ignore-output"]
if knee:
    figure, axes = plotting.figure(title="23, w, w, 1: the time per weight")
    for way, style in {"straight line": "o-", "loop": "s--"}.items():
        weight_ns = [
            1e9 * both.candidate(way).minimum_s / 256 / nets[width].macs
            for width, both in knee.items()
        ]
        axes.semilogx(widths, weight_ns, style, label=way)
    axes.set_xticks(widths, widths)
    axes.minorticks_off()
    axes.set(xlabel="width w", ylabel="ns per weight (measured)", ylim=(0, None))
    axes.legend(loc="center right")
    alt = "Over the width a weight's time falls in the loop, and not in straight-line code."
    plotting.show(figure, alt=alt)

# %%
ratios = [both.candidate("straight line").time_ratio for both in knee.values()]
lost = ratios[-1] / ratios[0] if knee else None
sentence = "against the loop, straight-line code loses ground from width 8 to width 128"
timing.claim(sentence, lost, at_least=1.2, evidence=list(knee.values()))

# %% [markdown]
# A straight line runs through each of its instructions once a candidate. Once the code is larger than the first
# [instruction cache](../glossary.md#instruction-cache), more and more of it comes from the next level each time. The loop fetches a
# few instructions and runs them thousands of times, and the work around it is shared by more weights. Look where the two lines cross:
# that may be long before the straight line becomes slow by itself.
#
# ## A program that compiles itself
#
# `cw.Specialised.from_file` serves at once, from behind a pointer, and compiles meanwhile. When the compiler is done, the constants
# take over. A file that decides over code must be checked before it is believed; here is one with a flipped bit.

# %%
folder = tempfile.TemporaryDirectory()
path = Path(folder.name, "network.bin")
cw.save(network, path)
damaged = bytearray(path.read_bytes())
damaged[1000] ^= 1
Path(folder.name, "damaged.bin").write_bytes(damaged)
try:
    cw.load(Path(folder.name, "damaged.bin"))
except ValueError as error:
    print(error)

# %%
if not no_compiler:
    served = cw.Specialised.from_file(path)
    first = served(x)
    served.wait()
    off = [(y - cw.exact_outputs(network, x)).abs() for y in (first, served(x))]
    right = [int((each <= cw.error_bound(network, x)).sum()) for each in off]
    print(f"right before and after: {right[0]:,} and {right[1]:,} of {len(x):,}")
folder.cleanup()

# %% [markdown]
# And beside others? Recorded with one thread on one machine; every way is called from Python and fills the caller's tensor. (ONNX
# Runtime may return one of its own, which flatters it.)

# %%
recording = recorded.load("17-cpu")
print(recording.source)
rows = {}
for row in recording.result("peers").times:
    if row.called.startswith("from Python"):
        column = f"{row.candidates:,} at once"
        rows.setdefault(row.way, {})[column] = units.text(row.candidate_s, "s")
pd.DataFrame(rows).T.rename_axis("time of a candidate", axis=1)

# %% [markdown]
# With one candidate a call, what a call costs decides: PyTorch makes one an operator, and each finds its kernel and makes a tensor.
# With 4,096 these costs are shared, and the arithmetic shows.
