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
#     number: "02"
#     title: Compute and roofline
#     needs: ["00", "01"]
#     objectives:
#       - compute|computed the least time of a layer from its bytes and its operations
#       - decide|decided by an experiment whether a model or a library is wrong
#       - predict|predicted how many tokens keep the arithmetic of a machine busy
#       - write|wrote a matrix product in tiles that uses each byte many times
#       - explain|explained why a small network takes many times its least time
# ---

# %% [markdown] tags=["objectives"]
# # Compute and roofline
#
# What do sixteen users cost? A layer of a language model is a matrix of 8,192 × 8,192, or 67 million weights. On the machine of this page, one core of a server
# multiplies it by the vector of one token in 17.5 ms (measured). Now sixteen users write at the same time, so the layer has to serve sixteen tokens at
# once. That is sixteen times the arithmetic, whereas the weights are the same for everybody. If time follows arithmetic, sixteen tokens take
# 280 ms. You have reason to distrust this, because in [lesson 00](00_start_here.ipynb) the operations alone were wrong by a factor of 100. But
# can you say what is right before you run the program?
#
# Behind it is the question of everybody who has ever watched a progress bar. Why is it not faster? This lesson has four answers. The program
# waits for its bytes, or it waits for its arithmetic, or it is not a good program, or it does so little that you mostly pay for calling it. Each
# answer has its own remedy, and some remedies are expensive. If your program waits for bytes, a GPU with twice the arithmetic waits just as
# long, although it looks more impressive while it does so. This lesson tells the four answers apart, with three formulas and a few experiments.
#
# [Lesson 01](01_memory_hierarchy.ipynb) ended by asking how many operations per byte keep the arithmetic busy. Here you count them. *Our core* is the core that wrote
# this page, one of an Intel Xeon server, and all measured times in the text come from it. The outputs are your machine's once you have run the page.

# %% tags=["hide-input"]
import pandas as pd
import torch

import helpers
from helpers import exercises, hardware, native, plotting, roofline, timing, units
from helpers.studies import layer_roofline, matrix_product, simulators

check = exercises.checks_of("compute_and_roofline")
torch.set_num_threads(1)  # one core
allocator = helpers.steady_allocator()  # freed memory is kept for later tensors


def as_ms(seconds):
    return f"{1e3 * seconds:.3g} ms"


# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# What do fifteen further users cost?
#
# - One layer of a language model, 8,192 × 8,192 weights
# - One token for one user, or sixteen for sixteen users
# - Sixteen times the arithmetic, and the same weights
#
# Write down a number before you go on.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.5, 50]
bet = helpers.predict(
    "How many times as long as one token do sixteen tokens take in this layer?", "x"
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Two times that no program can avoid"
# ## Part 1: the least time of an operation
#
# What is the least time of an operation? We begin with a time that no program can beat, because without one you cannot even say that a program is slow.
#
# - The bytes have to arrive, at some [bandwidth](glossary.md#bandwidth)
# - The operations have to be done, at some peak
# - The larger of the two times is the least time
#
# Take one token first. Each weight takes part in a multiplication and an addition, so the layer needs 2 × 67 million, or 134 million
# [FLOP](glossary.md#flop). The *peak* of our core is 179 billion per second (measured with multiply-adds that never wait for each other), so the
# arithmetic takes 0.75 ms. But a weight has 4 bytes, so 268 MB have to come from main memory, and at the 16.7 GB/s at which the core can read
# (measured) they take 16.1 ms. The core can compute with some weights while the next ones are on their way, so the two times need not be added, but
# neither of them can be avoided. This is the first formula.
#
# > least time = the larger of bytes / bandwidth and FLOP / peak
#
# The bandwidth has to be that of a program that only reads, because the layer hardly writes. A common test of a memory adds two arrays into a
# third one, and it moves 14.7 GB/s here (measured). At the 14.7 GB/s of that test the weights would take 18.3 ms, and the layer, with its 17.5
# ms, would be faster than its own least time. A bound is only as good as its two rates, so we take the fastest of several loops that do nothing
# but read the weights. They run in turns with the layer, and of each program the fastest run counts, because a disturbance can only add time.

# %% tags=["run"]
side = 8192
weights = torch.rand(side, side)  # 268 MB
inputs = {tokens: torch.rand(side, tokens) for tokens in (1, 4, 16, 64)}
products = {f"{tokens}": lambda x=x: weights @ x for tokens, x in inputs.items()}
readers = layer_roofline.reading_programs(weights)
turns = helpers.compare(products | readers, precision=0.1, budget_s=12)
fastest_s = {row.name: row.minimum_s for row in turns.candidates}
bandwidth = weights.nbytes / min(fastest_s[name] for name in readers)
limits = helpers.probe(device="cpu")
peak = limits.peak_flops["float32"]

# %% tags=["hide-input", "nbval-ignore-output"]
triad = units.text(limits.memory.bandwidth_bytes_per_s, "B/s")
print(f"peak {units.text(peak, 'FLOP/s')}")
print(f"reading {units.text(bandwidth, 'B/s')} ({triad} if one of three arrays is written)")
print(f"one token takes {as_ms(fastest_s['1'])}")

# %% [markdown]
# **Your turn.** How long do the bytes and the operations of a layer take at least? Count its weights, its inputs and its results, each once and each with
# the same bytes per element. A layer of `rows` × `columns` weights takes a vector of `columns` elements for each token and returns one of `rows` elements.


# %% tags=["yours"] yours="least_time" takes=7
def least_time(tokens, rows, columns, bandwidth, peak, element_bytes=4):
    """Return the least seconds of a layer of rows x columns weights for so many tokens."""
    flops = 2 * rows * columns * tokens
    moved_bytes = element_bytes * (rows * columns + (rows + columns) * tokens)
    return max(moved_bytes / bandwidth, flops / peak)


# %% checks="least_time"
least_time = check(least_time)


# %% wrong="least_time" says="Inputs and results move as well"
def least_time(tokens, rows, columns, bandwidth, peak, element_bytes=4):
    flops = 2 * rows * columns * tokens
    return max(element_bytes * rows * columns / bandwidth, flops / peak)


# %% wrong="least_time" says="need not be added"
def least_time(tokens, rows, columns, bandwidth, peak, element_bytes=4):
    flops = 2 * rows * columns * tokens
    moved_bytes = element_bytes * (rows * columns + (rows + columns) * tokens)
    return moved_bytes / bandwidth + flops / peak


# %% wrong="least_time" says="a multiplication and an addition"
def least_time(tokens, rows, columns, bandwidth, peak, element_bytes=4):
    moved_bytes = element_bytes * (rows * columns + (rows + columns) * tokens)
    return max(moved_bytes / bandwidth, rows * columns * tokens / peak)


# %% wrong="least_time" says="the cells below need int or float"
def least_time(tokens, rows, columns, bandwidth, peak, element_bytes=4):
    flops = 2 * rows * columns * tokens
    moved_bytes = element_bytes * (rows * columns + (rows + columns) * tokens)
    return torch.tensor([moved_bytes / bandwidth, flops / peak], dtype=torch.float64).max()


# %% right="least_time" style=1
def least_time(tokens, rows, columns, bandwidth, peak, element_bytes=4):
    elements = rows * columns + rows * tokens + tokens * columns
    bytes_s = elements * element_bytes / bandwidth
    arithmetic_s = rows * columns * tokens / (peak / 2)
    return bytes_s if bytes_s > arithmetic_s else arithmetic_s


# %% right="least_time" style=2
def least_time(tokens, rows, columns, bandwidth, peak, element_bytes=4):
    flops = 2 * rows * columns * tokens
    moved_bytes = element_bytes * (rows * columns + (rows + columns) * tokens)
    attainable = min(peak, flops / moved_bytes * bandwidth)  # by the arithmetic intensity
    return flops / attainable


# %%
least_s = {tokens: least_time(tokens, side, side, bandwidth, peak) for tokens in inputs}

# %% tags=["hide-input", "nbval-ignore-output"]
arithmetic_s = 2 * side**2 / peak  # of one token
print(f"least time of one token {as_ms(least_s[1])}, of sixteen {as_ms(least_s[16])}")
print(f"the arithmetic of a token takes {as_ms(arithmetic_s)}")

# %% [markdown]
# For one token it says 16.1 ms, and 17.5 ms were measured. So a single token waits for its weights almost all the time.
#
# What changes with sixteen tokens? The weights are still read once, because one reading serves them all, and the inputs and results add only 1 MB to the
# 268. The arithmetic grows to 12 ms, but that is less than the 16.2 ms of the bytes. By the model sixteen tokens take as long as one, and
# fifteen users travel free of charge.
#
# **To remember.** An operation takes at least the larger of its two times. A program that overlaps nothing takes their sum, which is at most twice as
# long. Our layer needs 16 ms for its bytes and 0.75 ms of arithmetic for each token.
#
# Now to the sixteen tokens, which ran in turns with the one.

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Sixteen tokens are far from sixteen times, and not once"
ratio = fastest_s["16"] / fastest_s["1"]
bet.reveal(modelled=least_s[16] / least_s[1], measured=ratio)
print(f"sixteen tokens take {as_ms(fastest_s['16'])}")

# %% tags=["hide-input", "look"]
sentence = "sixteen tokens take far less than sixteen times as long as one"
timing.claim(sentence, ratio, at_most=8, evidence=turns)
sentence = "one token takes about its least time"
timing.claim(sentence, fastest_s["1"] / least_s[1], at_least=0.9, at_most=2, evidence=turns)

# %% [markdown] tags=["explain"]
# On our core PyTorch took 40.3 ms for sixteen tokens, 2.3 times as long as for one (measured). That is far from sixteen times, but it is not once
# either. Who is wrong?

# %% [markdown] tags=["slide"] minutes=2 headline="A second program decides between the two"
# ## Part 2: the model or the library
#
# Is it the model or the library? We settle this now, because the two answers tell you to do opposite things.
#
# - If the model has forgotten something, you must live with the time
# - If the library wastes time, you can have it back
# - Two numbers cannot tell, a second program can
#
# It does not help to look at the two numbers for longer, because a forgetful model and a wasteful library would give exactly the same pair. Before you
# read on, think of an experiment that would come out differently in the two cases.
#
# We need a second program. The model claims that nothing in this machine prevents 16.2 ms. If any program comes close to that, the claim is true,
# whatever the library does. If we try hard and end at 40 ms as well, we should suspect the model. We wrote such a program for this single purpose. It
# loads each weight once and multiplies it by all sixteen tokens, which exactly fill a vector [register](glossary.md#register) of the core, and it asks early for the
# weights that come next.

# %%
SIXTEEN = """
#include <cstdint>
#include <cstring>
typedef float Vector __attribute__((vector_size(64)));  // 16 values, one of each token
extern "C" void sixteen(const float* w, const float* x, float* y, int64_t rows, int64_t k) {
    for (int64_t i = 0; i < rows; i += 8) {  // eight rows of weights at a time
        Vector inputs, sums[8] = {};
        for (int64_t p = 0; p < k; ++p) {
            for (int row = 0; p % 16 == 0 && row < 8; ++row)  // once per cache line
                __builtin_prefetch(w + (i + row) * k + p + 128);
            memcpy(&inputs, x + 16 * p, sizeof inputs);
            for (int row = 0; row < 8; ++row) sums[row] += w[(i + row) * k + p] * inputs;
        }
        memcpy(y + 16 * i, sums, sizeof sums);
}}"""

# %% tags=["hide-input", "run"]
TWO_SIZES = "(const float* w, const float* x, float* y, int64_t rows, int64_t columns)"


def compiled(source, declaration):
    try:
        return native.compile_cpp(source).function(declaration)
    except native.NativeError as error:
        print(f"not measured here: {error}")


sixteen = compiled(SIXTEEN, f"void sixteen{TWO_SIZES}")
tried = None
if sixteen:
    results = torch.empty(side, 16)
    programs = {
        "library": products["16"],
        "ours": lambda: sixteen(weights, inputs[16], results, side, side),
    }
    tried = timing.compare(programs, budget_s=4, precision=0.1)
    assert torch.allclose(results, weights @ inputs[16], rtol=1e-3)

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 numbers=[["ours ([^,]+),", "our program, sixteen tokens, measured"], ["library ([^,]+),", "the library, sixteen tokens, measured"]] headline="The model was right, the library takes longer"
tried_s = {row.name: row.minimum_s for row in tried.candidates} if tried else {}
if tried_s:
    for name in ("ours", "library"):
        over_least = tried_s[name] / least_s[16]
        print(f"{name} {as_ms(tried_s[name])}, {over_least:.2f} times the least time")

# %% tags=["hide-input", "look"]
sentence = "for sixteen tokens our program comes close to the least time"
over_least = tried_s["ours"] / least_s[16] if tried_s else None
timing.claim(sentence, over_least, at_most=2.5, evidence=[tried, turns] if tried else ())

# %% [markdown] tags=["explain"]
# On our core the program took 20.2 ms (measured). The library, in turns with it, took 43.5 ms. So the least time of 16.2 ms is at most a fifth
# too low, and the 23 ms by which the library is slower than ours are its own. This is no disgrace, because a library has to be good at every
# shape, whereas our program is useless for any other. But what does it do in this time?
#
# One guess is that the library overlaps nothing, so that it takes the sum of the two times. That would be 16.2 + 12, or 28.2 ms, which would
# explain almost half of the loss. It is tempting to stop here, but a guess that was made to fit a number has not been tested by it. So we let it
# predict another one. You need the least time of one token, which is that of its bytes, and the arithmetic per token. Both are printed above for
# your machine.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000]
four = helpers.predict("If the library overlaps nothing, how long do four tokens take?", "ms")
four

# %% tags=["hide-input", "run"]
sum_s = 4 * (side**2 + 4 * 2 * side) / bandwidth + 4 * arithmetic_s

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The guess fails at four tokens"
four.reveal(modelled=1e3 * sum_s, measured=1e3 * fastest_s["4"])

# %% [markdown] tags=["explain"]
# On our core four tokens need 3 ms of arithmetic, so they should take 19.1 ms. They took 40.3 ms (measured), as long as sixteen, and the guess
# is dead.
#
# But it has left a clue. The weights are the same for four tokens and for sixteen, so perhaps the library does something with them alone. A library
# usually *packs* a matrix first, that is, it copies the matrix piece by piece into the order in which its kernel reads it
# ([Goto and van de Geijn](https://doi.org/10.1145/1356052.1356053), 2008). This pays only if many tokens share the copy. PyTorch's library also accepts a
# matrix that was packed in advance, so we can leave the copy out.

# %% tags=["hide-input", "run"]
packed = {count: layer_roofline.packed_product(weights, inputs[count]) for count in (4, 16)}
without_copy = None
if all(packed.values()):
    again = {"1": products["1"]}
    for count, program in packed.items():
        again |= {f"{count}": products[f"{count}"], f"{count}, packed": program}
    without_copy = timing.compare(again, budget_s=4, precision=0.1)
    assert torch.allclose(packed[4]().T, weights @ inputs[4], rtol=1e-3)
del packed

# %% tags=["hide-input", "look", "nbval-ignore-output"]
if without_copy:
    packed_s = {row.name: row.minimum_s for row in without_copy.candidates}
    for name in ("4", "4, packed", "16", "16, packed"):
        print(f"{name:>10}: {packed_s[name] / packed_s['1']:.2f} times as long as one token")
else:
    print("PyTorch has no library here that takes a packed matrix.")

# %% [markdown] tags=["explain"]
# In turns with one token, four tokens then took 1.5 times as long as one, instead of 2.4 times (measured), so for them the copy was most of the
# loss. Sixteen tokens gained less, with 2.1 instead of 2.4 times, although a copy of the same weights should cost both the same. So a part of
# the answer is still missing, and we stop the search here.
#
# How far each program is from its bound can be seen in one picture, which gives this lesson its name. Divide the FLOP by the least time, and you
# get the highest rate that an operation can reach on a machine. It depends only on the FLOP per byte of the operation, its [arithmetic
# intensity](glossary.md#arithmetic-intensity). The rate rises with the intensity as long as the bytes decide, and once it has reached the peak,
# it stays flat. This is the [roofline](glossary.md#roofline) ([Williams, Waterman and Patterson](https://doi.org/10.1145/1498765.1498785),
# 2009).

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="One token waits for its weights" untitled=true
library_s = {tokens: fastest_s[f"{tokens}"] for tokens in inputs}
figure = layer_roofline.draw_layer(
    library_s,
    side=side,
    bandwidth=bandwidth,
    peak=peak,
    own_s={16: tried_s["ours"]} if tried_s else None,
    title="One layer under the roof of this core",
)
alt = "A slope and a flat roof. One token is far left on the slope, more are right and up."
plotting.show(figure, alt=alt)

# %% [markdown] tags=["explain"]
# The distance of a point from the roof says how much there is to win. The part of the roof above it says whether bytes or arithmetic set that limit.
#
# **To remember.** A missed bound proves nothing until a second program has tried. For sixteen tokens ours took 1.25 times the least time, and the
# library 2.69 times.
#
# In a good program, then, fifteen of sixteen tokens are almost free. Where does the free ride end?

# %% [markdown] tags=["slide"] minutes=2 headline="The corner says how many tokens to collect"
# ## Part 3: the tokens that keep a machine busy
#
# How many tokens keep a machine busy? We ask now, because the answer decides how many users a server should collect, and you can read it off a data sheet.
#
# - Left of the corner, a further token costs nothing
# - Right of it, each token costs its arithmetic
# - At the corner both times are equal
#
# The free ride ends at the corner of the roof, which is called the [ridge point](glossary.md#ridge-point). Our core can do 179 / 16.7, or 10.7
# operations in the time in which one byte arrives, so each byte has to serve 10.7 operations, or the arithmetic is not busy. A float32 weight
# has 4 bytes, and each token uses it for two operations. So $n$ tokens bring $n/2$ operations per byte, and about 21 tokens reach the corner.
# Sixteen are below it, whereas sixty-four are beyond it and need at least 48 ms, because now their arithmetic takes that long. The library took
# 72.5 ms (measured). The corner gives us the second formula.
#
# > break-even tokens = (peak / bandwidth) × (bytes per weight / 2)

# %% tags=["hide-input", "nbval-ignore-output"]
corner = peak / bandwidth
print(f"corner of this core: {corner:.1f} FLOP per byte, {corner * 4 / 2:.0f} tokens")
print(f"sixty-four tokens: {as_ms(fastest_s['64'])}, at least {as_ms(least_s[64])}")

# %% [markdown]
# The data sheet of an H100 SXM has 989 TFLOP/s for bfloat16, in which a weight has 2 bytes, and 3.35 TB/s.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 10000]
break_even = helpers.predict(
    "From how many tokens on does arithmetic limit a bfloat16 product on an H100?", "tokens"
)
break_even

# %% tags=["run", "slide", "slide-output"] minutes=1 headline="An H100 needs hundreds of tokens"
h100 = roofline.datasheet_roof(hardware.device("H100 SXM 80 GB"), "bfloat16")
h100_tokens = h100.peak_flops_per_s / h100.bandwidth_bytes_per_s * 2 / 2
break_even.reveal(modelled=h100_tokens)

# %% tags=["hide-input", "look"]
at_peak, per_byte_s = 1 / h100.peak_flops_per_s, 1 / h100.bandwidth_bytes_per_s
for rows, columns in ((4096, 14336), (1024, 1024)):
    of_a_token_s = 2 * rows * columns * at_peak - 2 * (rows + columns) * per_byte_s
    tokens = 2 * rows * columns * per_byte_s / of_a_token_s
    print(f"{rows:,} x {columns:,}, with inputs and results: {tokens:.0f} tokens")
print(f"at 400 TFLOP/s: {400e12 * per_byte_s:.0f} tokens")
print(f"one token gets {1 / h100_tokens:.1%} of the arithmetic")

# %% [markdown] tags=["explain"]
# A weight has 2 bytes and serves two operations per token, which cancel, so the answer is 989 / 3.35, or 295 tokens. Below that number you pay
# for the weights, and by the model a further token costs nothing.
#
# Be careful with this number, for three reasons. First, the data sheet also prints 1,979 TFLOP/s, "with sparsity". That is for matrices of which half the
# elements are left out, and yours are probably complete. Second, inputs and results are bytes too. For the 4,096 × 14,336 matrices of Llama 3 8B they
# raise the 295 tokens to 326, and for a 1,024 × 1,024 layer to almost 700. Third, few programs reach the peak. In the training of Llama 3 an H100 did
# about 400 TFLOP/s ([Llama Team](https://arxiv.org/abs/2407.21783), 2024, Table 4, published), communication between the GPUs included, and at that rate the arithmetic already decides
# from 119 tokens on.
#
# Turn it yourself. The figure begins with sixteen tokens on an H100. Move the tokens to the corner, then make the layer smaller and watch where the
# corner goes. What do weights of one byte change, and where is the corner of your own core?

# %% tags=["hide-input", "nbval-ignore-output"]
gpu = layer_roofline.measure_gpu()  # None without one
layer_roofline.explore_roofline(core=(bandwidth, peak), gpu=gpu)

# %% tags=["hide-input", "nbval-ignore-output"]
if gpu:
    figure = layer_roofline.draw_layer(
        dict(zip(gpu.tokens, gpu.times_s, strict=True)),
        side=gpu.side,
        bandwidth=gpu.bandwidth_bytes_per_s,
        peak=gpu.peak_flops_per_s,
        weight_bytes=gpu.weight_bytes,
        title=f"The same layer on {gpu.device}, in {gpu.dtype}",
    )
    plotting.show(figure, alt="The layer under the roof of the GPU that was found here.")
else:
    print("No GPU here, so the roofs of GPUs are those of data sheets.")

# %% [markdown] tags=["explain"]
# Who has 300 tokens? A training step has thousands, and so has a long prompt. A user who waits for an answer has one, because the next token cannot begin
# before this one is known. Alone on an H100, this user gets 1/295, or 0.3 %, of the arithmetic. With weights in 8 bits and the arithmetic as before, 148
# tokens suffice.
#
# **To remember.** On an H100 a bfloat16 product needs about 300 tokens before arithmetic limits it. Our core needs 21.
#
# All of this assumes that a weight travels once and is then used many times. Who makes sure of that?

# %% [markdown] tags=["slide"] minutes=2 headline="A naive kernel reads each value again and again"
# ## Part 4: a byte that is used many times
#
# How does a program use a byte many times? We look at an older GPU and at float32, where 38 operations per byte are enough, and begin with a
# program that does not reach them, because it shows what has to change.
#
# - Each element of the product gets a thread of its own
# - For each multiply-add the thread reads two values
# - Its neighbours read the same rows and columns again
#
# A program for a GPU is a [kernel](glossary.md#gpu-kernel), a function that runs once for each thread. In this one each multiply-add reads two float32
# values from the GPU's [global memory](glossary.md#global-memory), which makes two operations for 8 bytes. An RTX 3090, with 35.6 TFLOP/s and 936 GB/s (published), needs 38 operations per byte, whereas this
# kernel has 0.25, enough for 0.7 % of the peak.


# %% tags=["slide-code"]
def naive(thread, a, b, c):
    total = 0.0
    for p in range(a.shape[1]):
        total += a[thread.row, p] * b[p, thread.column]
    c[thread.row, thread.column] = total


# %% [markdown]
# The remedy is a *tile*. The threads of a block together bring a small square of each matrix into [shared memory](glossary.md#shared-memory), which is
# near to them, and each of its elements then serves a whole row or column of threads.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="A tile is read once and used many times" layout="steps" smallest=13
shown = {"m": 12, "n": 16, "k": 12, "tile": 4, "block": (1, 2)}
frames = [matrix_product.draw_tiles(**shown, step=step) for step in (None, 0, 1, 2)]
plotting.play(
    frames,
    title="12 blocks of 16 threads: who reads what",
    captions=[
        "Naive: two neighbours read the same row of A. The 16 threads: 384 global reads.",
        "Tiled: the 16 threads bring 16 elements of A and of B: 32 reads, each used 4 times.",
        "Every thread has added 4 products from shared memory. The next tiles come: 64 reads.",
        "The last tiles: 96 reads, and each of the 16 sums is complete.",
    ],
    stills=[0, 1, 3],
    alt="Two threads' row and columns; then a block's tiles, which move along A and down B.",
)

# %% [markdown]
# **Your turn.** Write the kernel with tiles, in a simulator that counts each read. A thread knows its element of the product, `thread.row` and
# `thread.column`, as in `naive`. It also knows its row and column inside its block, `thread.thread_row` and `thread.thread_column`, and the side of a
# tile, `thread.tile`. With `thread.shared("a", side, side)` all threads of a block get the same small matrix in shared memory, which you index like any
# other, and all sides of the matrices are multiples of the tile.
#
# Each thread brings one element of each tile, the one in its own row and column of the block. Then all threads of the block wait for each other at a [barrier](glossary.md#barrier), because a thread needs the elements that
# the others have brought. Where CUDA C++ has `__syncthreads()` we write `yield`. One barrier comes before the sums, and another one after them, since
# without it a fast thread would overwrite a tile that others still read.


# %% tags=["yours"] yours="tiled" takes=15
def tiled(thread, a, b, c):
    """Write this thread's element of c; bring each tile of a and b to shared memory once."""
    y, x, side = thread.thread_row, thread.thread_column, thread.tile
    a_tile, b_tile = thread.shared("a", side, side), thread.shared("b", side, side)
    total = 0.0
    for start in range(0, a.shape[1], side):
        a_tile[y, x] = a[thread.row, start + x]
        b_tile[y, x] = b[start + y, thread.column]
        yield
        for p in range(side):
            total += a_tile[y, p] * b_tile[p, x]
        yield
    c[thread.row, thread.column] = total


# %% checks="tiled"
tiled = check(tiled)


# %% wrong="tiled" says="with no barrier in between; put a yield there"
def tiled(thread, a, b, c):
    y, x, side = thread.thread_row, thread.thread_column, thread.tile
    a_tile, b_tile = thread.shared("a", side, side), thread.shared("b", side, side)
    total = 0.0
    for start in range(0, a.shape[1], side):
        a_tile[y, x] = a[thread.row, start + x]
        b_tile[y, x] = b[start + y, thread.column]
        yield
        for p in range(side):
            total += a_tile[y, p] * b_tile[p, x]
    c[thread.row, thread.column] = total


# %% wrong="tiled" says="put a yield before the reading"
def tiled(thread, a, b, c):
    y, x, side = thread.thread_row, thread.thread_column, thread.tile
    a_tile, b_tile = thread.shared("a", side, side), thread.shared("b", side, side)
    total = 0.0
    for start in range(0, a.shape[1], side):
        a_tile[y, x] = a[thread.row, start + x]
        b_tile[y, x] = b[start + y, thread.column]
        for p in range(side):
            total += a_tile[y, p] * b_tile[p, x]
    c[thread.row, thread.column] = total


# %% wrong="tiled" says="That is the naive kernel"
def tiled(thread, a, b, c):
    total = 0.0
    for p in range(a.shape[1]):
        total += a[thread.row, p] * b[p, thread.column]
    c[thread.row, thread.column] = total


# %% right="tiled" style=1
def tiled(thread, a, b, c):
    size, (i, j) = thread.tile, (thread.thread_row, thread.thread_column)
    left, right = (thread.shared(name, size, size) for name in ("left", "right"))
    sums = []
    for step in range(a.shape[1] // size):
        left[i, j] = a[thread.row, step * size + j]
        right[i, j] = b[step * size + i, thread.column]
        yield
        sums.append(sum(left[i, p] * right[p, j] for p in range(size)))
        yield
    c[thread.row, thread.column] = sum(sums)


# %% right="tiled" style=2
def tiled(thread, a, b, c):
    y, x, side = thread.thread_row, thread.thread_column, thread.tile
    rows, columns = thread.shared("rows", side, side), thread.shared("columns", side, side)
    total, start = 0, 0
    while start < a.shape[1]:
        rows[x, y] = a[thread.row, start + x]  # stored transposed
        columns[y, x] = b[start + y, thread.column]
        yield
        for p in reversed(range(side)):
            total = total + rows[p, y] * columns[p, x]
        yield
        start += side
    c[thread.row, thread.column] = total


# %% [markdown]
# Both kernels now multiply a 16 × 32 matrix by a 32 × 24 one. For an estimate, ask how often a value is used once it has been read.

# %% tags=["predict"]
fewer_reads = helpers.predict(
    "With tiles of 8 x 8, by what factor does the number of reads from the GPU's memory fall?",
    "x",
)
fewer_reads

# %% tags=["run"]
naive_run = simulators.count_traffic(naive, 16, 24, 32, tile=8)
tiled_run = simulators.count_traffic(tiled, 16, 24, 32, tile=8)
fewer_reads.reveal(modelled=8, counted=naive_run.global_reads / tiled_run.global_reads)

# %% tags=["hide-input", "look"]
runs = {"naive": naive_run, "tiled": tiled_run}
runs["tiled, by formula"] = simulators.tiled_traffic(16, 24, 32, tile=8)
rows = {}
for name, run in runs.items():
    rows[name] = [f"{run.global_reads:,}", f"{run.shared_reads:,}"]
pd.DataFrame(rows, index=["global reads", "shared reads"]).T

# %% tags=["hide-input", "look"]
rtx_3090 = roofline.datasheet_roof(hardware.device("RTX 3090"), "float32")
wanted = 4 * rtx_3090.ridge_flops_per_byte
print(
    f"RTX 3090: {rtx_3090.ridge_flops_per_byte:.0f} FLOP per byte, tiles of {wanted:.0f} rows"
)
print(f"two such tiles: {units.text(2 * 4 * round(wanted) ** 2, 'B')}")
shared_bytes = hardware.device("RTX 3090").core_shared_bytes
print(f"shared memory of a multiprocessor: {units.text(shared_bytes, 'B')} (published)")
print(f"tiles of 32 x 32 allow {32 / wanted:.0%} of the peak")

# %% [markdown] tags=["explain"]
# For a 16 × 32 matrix times a 32 × 24 one, the simulator counts 24,576 reads without tiles and 3,072 with them. The factor is 8, because each value that
# is read is now used 8 times. So tiles of $t \times t$ bring $t/4$ operations per byte, and the RTX 3090 would want 152 × 152. Two such tiles take 185 kB,
# but one of its [multiprocessors](glossary.md#multiprocessor) has 102 kB. With 32 × 32, an element for each of the 1,024 threads that a block can have, 21 % of the peak are possible.
# Faster kernels let a thread compute many elements and keep their sums in registers, which is the same idea one memory nearer.
#
# That was the side of the bytes. Is all well, then, once they are near? On our core, three matrices of 240 × 240 take 0.69 MB and stay in the L2
# [cache](glossary.md#cache). A product has 40 operations for each of their bytes, far beyond the corner, so its arithmetic should decide. The
# core can start two multiply-adds per cycle, each on 16 values, and a result is ready after four cycles ([Agner
# Fog](https://www.agner.org/optimize/), "Instruction tables"). A core of AMD's Zen 4 takes two steps for 16 values, so it starts half as many.
# The naive program adds one product after the other to the same sum.

# %% tags=["slide", "slide-code"] minutes=2 lines=[6, 9] headline="The same four lines, with two loops exchanged"
NAIVE = """
#include <cmath>
#include <cstdint>
extern "C" void product(
        const float* a, const float* b, float* __restrict__ c, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j)
            for (int64_t p = 0; p < n; ++p)
                c[i * n + j] = std::fma(a[i * n + p], b[p * n + j], c[i * n + j]);
}"""

# %% [markdown]
# We also exchange the two inner loops, and nothing else.

# %% tags=["slide-more", "slide-code"] lines=[6, 9]
EXCHANGED = """
#include <cmath>
#include <cstdint>
extern "C" void product(
        const float* a, const float* b, float* __restrict__ c, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t p = 0; p < n; ++p)
            for (int64_t j = 0; j < n; ++j)
                c[i * n + j] = std::fma(a[i * n + p], b[p * n + j], c[i * n + j]);
}"""

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000]
slower = helpers.predict(
    "With all data in the cache, how many times its least time does the naive product take?",
    "x",
)
slower

# %% tags=["hide-input", "run"]
n = 240
a, b, c = torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)
declaration = "void product(const float* a, const float* b, float* c, int64_t n)"
sources = {"naive, one sum after the other": NAIVE, "two loops exchanged": EXCHANGED}
loops = {name: compiled(source, declaration) for name, source in sources.items()}
orders, product_s = None, {}
if all(loops.values()):
    calls = {name: lambda loop=loop: loop(a, b, c.zero_(), n) for name, loop in loops.items()}
    for call in calls.values():
        call()
        assert torch.allclose(c, a @ b, rtol=1e-4)
    calls["library"] = lambda: torch.mm(a, b, out=c)
    orders = timing.compare(calls, baseline="library", budget_s=2, precision=0.1)
    product_s = {row.name: row.minimum_s for row in orders.candidates}

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="All data is near, and the naive program waits"
naive_s, exchanged_s = (product_s.get(name) for name in sources)
wide = {"AVX2": 8, "AVX512": 16}.get(torch.backends.cpu.get_cpu_capability(), 4)
starts = 2
if product_s:
    rates = hardware.vector_flops()  # FLOP/s by the bits of a vector
    starts = 1 if rates[max(rates)] < 1.5 * rates.get(max(rates) // 2, 0) else 2
least_product_s = least_time(n, n, n, bandwidth, peak)
ratio = naive_s / least_product_s if product_s else None
slower.reveal(modelled=starts * wide * 4, measured=ratio)
print(f"this core starts {starts} multiply-adds per cycle, each on {wide} values")

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Two exchanged loops bring most of it"
rows = {f"{name} (measured)": time_s for name, time_s in product_s.items()}
rows["least time (modelled)"] = least_product_s
library = product_s.get("library", least_product_s)
table = {
    "time": [f"{1e3 * time_s:.3g} ms" for time_s in rows.values()],
    "relative to the library": [f"{time_s / library:.3g}" for time_s in rows.values()],
}
pd.DataFrame(table, index=list(rows))

# %% tags=["hide-input", "look"]
sentence = "with two loops exchanged the product takes less than half of the time"
faster = exchanged_s / naive_s if product_s else None
timing.claim(sentence, faster, at_most=1 / 2, evidence=orders or ())

# %% [markdown] tags=["explain"]
# The bytes are near, the arithmetic is idle, and still the naive program waits, because it waits mostly for itself. Each addition needs the
# result of the one before, so in four cycles the program does one multiply-add, whereas the core could do 2 × 16 × 4, or 128. On our core it
# takes 12.3 / 0.154, or 80 times its least time and not 128 times, because the core begins the next sum before the last one is finished. [The
# appendix](appendix/02_compute_and_roofline.ipynb) simulates this.
#
# If you exchange the two inner loops, neighbouring multiply-adds belong to different sums. They need not wait for each other, they fill a
# vector, and the second matrix is read along its rows. The operations are the same, and the program is 24 times as fast. So the art of the
# library, which is considerable, brings a factor of 2.9, and the factor of 24 comes from two lines that change places. If somebody offers you a
# kernel that is 71 times as fast, ask kindly what it was compared with.
#
# **To remember.** Tiles of $t \times t$ in float32 bring $t/4$ operations per byte. The peak is only for operations that need not wait for each other, and
# two exchanged loops brought a factor of 24.
#
# So the bytes are near and the sums are independent. Can a program still be slow?

# %% [markdown] tags=["slide"] minutes=2 headline="Before an operation computes, it is called"
# ## Part 5: a small network
#
# Why is a small network not faster? The last of the four answers is missing from the roofline, and for small models it is the usual one.
#
# - LeNet reads a digit with eleven operations
# - Each of them has a least time
# - Each of them is also a call
#
# On our core the least times of the eleven operations add up to 4.1 µs, if each byte comes from the nearest cache that can hold it (modelled). But before an operation computes
# anything, Python calls PyTorch, which checks types and shapes, allocates a result and chooses a kernel. We timed such calls with almost nothing to
# compute. A ReLU still took 5.2 µs, more than the whole network should take, and a convolution took 65 µs (measured).

# %%
lenet, image = helpers.LeNet().eval(), torch.rand(1, 1, 28, 28)
layers = roofline.roofline(lenet, image, limits, budget_s=0.5).layers
calls = layer_roofline.measure_calls([lenet.get_submodule(row.layer) for row in layers])

# %% tags=["hide-input", "nbval-ignore-output"]
names = [row.layer for row in layers]
layers_least_s = [max(row.point.compute_s, row.point.memory_s) for row in layers]
one_of_each = dict(zip(names, calls.call_s, strict=True))
print(
    f"sum of the least times of {len(layers)} operations: {1e6 * sum(layers_least_s):.3g} us"
)
print(f"a ReLU with almost nothing to compute: {1e6 * one_of_each['relu1']:.3g} us")
print(f"a convolution with almost nothing to compute: {1e6 * one_of_each['conv1']:.3g} us")

# %% [markdown]
# The eleven operations are called one after the other. For an estimate you need the sum of their least times and the calls, which are printed above for
# your machine.

# %% tags=["predict"]
small = helpers.predict(
    "For a single image, how many times as long as the sum of its least times "
    "does LeNet take?",
    "x",
)
small

# %% tags=["run"]
with torch.no_grad():
    one_image = helpers.measure(lambda: lenet(image), budget_s=0.5)

# %% tags=["look", "nbval-ignore-output"]
small.reveal(measured=one_image.median_s / sum(layers_least_s))
image_us, calls_us = 1e6 * one_image.median_s, 1e6 * calls.total_s
singly_us = 1e6 * sum(calls.call_s)
print(f"one image {image_us:.3g} us, its calls alone {calls_us:.3g} us in a row")
print(f"and {singly_us:.3g} us if each is timed by itself")

# %% [markdown] tags=["explain"]
# On our core it took 278 µs, 68 times as long (measured). The eleven calls alone take 203 µs in a row and add up to 185 µs if each is timed by
# itself (measured), so most of the time is calls. They give us the third formula, which takes each call by itself.
#
# > time of a network = sum over its operations of (least time + call)
#
# **Your turn.** Compute it. Each operation has its FLOP, its bytes, the bandwidth of the memory that holds them, and the seconds of its call.


# %% tags=["yours"] yours="network_time" takes=5
def network_time(operations, peak):
    """Return the seconds of a network of (flops, moved_bytes, bandwidth, call_s) each."""
    return sum(
        max(flops / peak, moved_bytes / bandwidth) + call_s
        for flops, moved_bytes, bandwidth, call_s in operations
    )


# %% checks="network_time"
network_time = check(network_time)


# %% wrong="network_time" says="each operation has a call of its own"
def network_time(operations, peak):
    return sum(max(flops / peak, moved / rate) for flops, moved, rate, _ in operations) + max(
        call_s for *_, call_s in operations
    )


# %% wrong="network_time" says="comes before its work"
def network_time(operations, peak):
    return sum(
        max(flops / peak, moved / rate, call_s) for flops, moved, rate, call_s in operations
    )


# %% wrong="network_time" says="for each operation alone"
def network_time(operations, peak):
    flops_s = sum(flops / peak for flops, _, _, _ in operations)
    bytes_s = sum(moved / rate for _, moved, rate, _ in operations)
    return max(flops_s, bytes_s) + sum(call_s for *_, call_s in operations)


# %% wrong="network_time" says="the cells below need int or float"
def network_time(operations, peak):
    flops, moved, rate, call_s = torch.tensor(list(operations), dtype=torch.float64).T
    return (torch.maximum(flops / peak, moved / rate) + call_s).sum()


# %% right="network_time" style=1
def network_time(operations, peak):
    total_s = 0
    for flops, moved_bytes, bandwidth, call_s in operations:
        arithmetic_s, bytes_s = flops / peak, moved_bytes / bandwidth
        total_s += call_s
        total_s += arithmetic_s if arithmetic_s > bytes_s else bytes_s
    return total_s


# %% right="network_time" style=2
def network_time(operations, peak):
    flops, moved, rate, call_s = torch.tensor(list(operations), dtype=torch.float64).T
    return (torch.maximum(flops / peak, moved / rate) + call_s).sum().item()


# %% tags=["run"]
operations = [
    (row.flops, row.moved_bytes, row.point.bandwidth_bytes_per_s, call_s)
    for row, call_s in zip(layers, calls.call_s, strict=True)
]
modelled_s = network_time(operations, peak)

# %% tags=["hide-input", "run"]
images = torch.rand(256, 1, 28, 28)
batch = roofline.roofline(lenet, images, limits, budget_s=0.3).layers
batch_least_s = sum(max(row.point.compute_s, row.point.memory_s) for row in batch)
with torch.no_grad():
    many_images = helpers.measure(lambda: lenet(images), budget_s=0.5)

# %% tags=["hide-input", "look", "nbval-ignore-output"]
print(f"modelled {1e6 * modelled_s:.3g} us, measured {1e6 * one_image.median_s:.3g} us")
print(f"256 images: {many_images.median_s / batch_least_s:.2g} times their least time")
cheapest_s = min(calls.call_s)
flops = cheapest_s * peak
print(f"the cheapest call {1e6 * cheapest_s:.2g} us, or {flops:,.0f} FLOP at the peak")

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="The calls are most of the time" untitled=true
figure = layer_roofline.draw_calls(
    names,
    least_s=layers_least_s,
    call_s=calls.call_s,
    measured_s=[row.measured_s for row in layers],
)
alt = "Each least time is far left, and with the call it is near the measured time."
plotting.show(figure, alt=alt)


# %% tags=["hide-input", "look"]
def roofs_of(rows):
    levels = {f"{row.point.level} bandwidth" for row in rows}
    return limits.resting_on("float32 peak", *levels)


over_least = one_image.median_s / sum(layers_least_s)
sentence = "one image takes far longer than the sum of its least times"
timing.claim(sentence, over_least, at_least=5, evidence=[one_image, roofs_of(layers)])
sentence = "least times and calls are about the time of an image"
evidence = [one_image, calls]  # the least times are a few per cent of the sum
ratio = one_image.median_s / modelled_s
timing.claim(sentence, ratio, at_least=0.8, at_most=2, evidence=evidence)
sentence = "a batch of 256 is at least twice as near to its least time as one image"
nearer = (many_images.median_s / batch_least_s) / over_least
evidence = [one_image, many_images, roofs_of([*layers, *batch])]
timing.claim(sentence, nearer, at_most=1 / 2, evidence=evidence)

# %% [markdown] tags=["explain"]
# On our core it predicts 189 µs, so 89 of the 278 µs are still missing, most visibly in the first convolution. But it tells you what to do. By
# the formula, a processor with twice the peak and twice the bandwidth would save 2 µs. Fewer calls save more, for example in a compiled model,
# and so does more work per call, because 256 images at once took only 7.7 times their least time (measured).
#
# **To remember.** The cheapest call costs about 4.1 µs here. Our core could do 730,000 operations in that time, so for anything smaller you mostly
# pay the call.
#
# The [appendix](appendix/02_compute_and_roofline.ipynb) has more, for example how demand and supply of operations grew, a core that reads ahead, faults of a timing, peaks in
# public tables, and sides that are powers of two. In the [exercises](exercises/02_compute_and_roofline_exercises.ipynb) you write the model with its
# calls, a kernel, and the batch that reaches the corner.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. The larger of two times is the least time.
# 2. A second program decides between model and library.
# 3. An H100 needs about 300 tokens, and each call costs time.
#
# In a program that is written for them, sixteen tokens need hardly more time than one, because the 268 MB of weights travel once for all of
# them. On the machine of this page the model says 16.2 ms, and our own program took 20.2. PyTorch took 40.3 ms, 2.3 times as long as for one
# token, and now you can say what it waits for. Its bytes need 16 ms, its arithmetic needs 12 ms of the same time, and the rest is the program,
# of which a part was the copy of the weights.
#
# When something is too slow, do the two divisions before you buy anything. If the time is near the larger one, you know which number of the data sheet to
# pay for, and on an H100 the border is at 300 tokens. If it is far above both, look at the program and its calls before you look at another machine.
#
# One thing here was too simple. We let every thread of a GPU send each of its reads to memory, whereas a real GPU runs threads in groups of 32 and may
# serve a group with one request or with 32. So two kernels with equally many reads can differ by a large factor.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $B$ is a bandwidth in bytes per second, $P$ a peak rate in FLOP per second.
#
# | quantity | formula | for |
# |---|---|---|
# | least time | $\max(\text{bytes} / B,\; \text{FLOP} / P)$ | any operation |
# | arithmetic intensity $I$ | $I = \text{FLOP} / \text{bytes}$ | any operation |
# | attainable rate | $\min(P,\; I\,B)$ | any operation |
# | ridge point | $P / B$ | a machine |
# | break-even tokens | $\frac{P}{B} \cdot \frac{w}{2}$ | weights of $w$ bytes |
# | time of a network, CPU | $\sum_l \left(\max(\text{FLOP}_l/P,\; \text{bytes}_l/B) + t_l\right)$ | layers $l$, each with its own call of $t_l$ seconds |
# | tokens per second, one user | $B / \text{bytes of the weights}$ | at most |
# | global reads, naive | $2\,m\,n\,k$ | a product of $m \times k$ and $k \times n$ |
# | global reads, tiled | $2\,m\,n\,k / t$ | tiles of $t \times t$ that divide $m$ and $n$ |
# | intensity, tiled | $t / 4$ FLOP/B | float32, writes left out |
