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
# ---

# %% [markdown]
# # Convolution time: exercises
#
# Four functions to write, for [lesson 20](../20_convolution_time.ipynb), and two questions. Each exercise has a table,
# a function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is counted, so nothing depends on how fast your machine
# is.

# %%
import torch

from helpers import exercises
from helpers.studies import convolution_time

# %% [markdown]
# ## Exercise 1: the FLOPs of a convolution
#
# A convolution of `channels` x `height` x `width` with `filters` filters of `kernel` x `kernel` puts a window on the
# image every `stride` places, in both directions, as long as the window fits. `padding` adds rows and columns of zeros
# on all four sides. One row of 5 numbers, kernel 3, padding 1:
#
# | stride | windows begin at | positions | numbers in windows | of these, zeros of the padding |
# |--:|---|--:|--:|--:|
# | 1 | -1, 0, 1, 2, 3 | 5 | 15 | 2 |
# | 2 | -1, 1, 3 | 3 | 9 | 2 |
# | 3 | -1, 2 | 2 | 6 | 1 |
#
# Each number of a window meets a weight: one multiply-accumulate, two FLOPs. By definition those with zeros of the
# padding count too. A program that leaves them out has fewer.
#
# Write `convolution_flops`. Return two numbers: the FLOPs of the definition, and those without the padding's zeros.


# %%
def of_definition(function, *sizes):
    """Return the first of the two numbers alone."""
    found = function(*sizes)
    return found[0] if isinstance(found, tuple | list) and len(found) == 2 else found


def without_zeros(function, *sizes):
    """Return the second of the two numbers alone."""
    found = function(*sizes)
    return found[1] if isinstance(found, tuple | list) and len(found) == 2 else found


# %% answer="convolution_flops"
def convolution_flops(batch, channels, height, width, filters, kernel, stride, padding):
    """Return both: convolution_flops(1, 1, 3, 3, 1, 3, 1, 1) is (162, 98)."""
    ### BEGIN SOLUTION
    every, real = [], []
    for side in (height, width):
        begins = range(-padding, side + padding - kernel + 1, stride)
        every.append(kernel * len(begins))
        real.append(sum(0 <= begin + place < side for begin in begins for place in range(kernel)))
    each = 2 * batch * channels * filters
    return each * every[0] * every[1], each * real[0] * real[1]
    ### END SOLUTION


# %% checks="convolution_flops" points=3
check = exercises.Checks("Exercise 1, convolution_flops", convolution_flops)
plain, strided, real = "the definition, stride 1", "the definition, with a stride", "without the padding's zeros"
told = {
    2 * 3 * 3 * 4 * 9 * 36: "Without padding a window of 3 fits in four places of six",
    2 * 3 * 4 * 9 * 16: "The batch has three images",
    3 * 3 * 4 * 9 * 16: "A multiply-accumulate is two FLOPs",
}
given = (3, 3, 6, 6, 4, 3, 1, 0)
check.returns(plain, given, expected=2 * 3 * 3 * 4 * 9 * 16, mistakes=told, call=of_definition)
given = (1, 1, 5, 8, 1, 3, 1, 1)
check.returns(plain, given, expected=2 * 9 * 5 * 8, call=of_definition)
told = {
    2 * 9 * 3 * 4: "Eight columns, padding 1, stride 3: windows begin at -1, 2 and 5",
    2 * 9 * 5 * 8: "Windows begin every three places",
}
given = (1, 1, 5, 8, 1, 3, 3, 1)
check.returns(strided, given, expected=2 * 9 * 2 * 3, mistakes=told, call=of_definition)
told = {
    2 * 81: "That counts the zeros: a corner's window has four numbers of the image and five zeros",
    2 * 9: "Each number of the image stands in several windows",
}
check.returns(real, (1, 1, 3, 3, 1, 3, 1, 1), expected=98, mistakes=told, call=without_zeros)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(14001)


def truth(batch, channels, height, width, filters, kernel, stride, padding):
    """Return both numbers by convolving ones with ones."""
    found = []
    for fill in (1.0, 0.0):
        image = torch.ones(batch, channels, height, width, dtype=torch.float64)
        padded = torch.nn.functional.pad(image, [padding] * 4, value=fill)
        weight = torch.ones(filters, channels, kernel, kernel, dtype=torch.float64)
        found.append(2 * int(torch.nn.functional.conv2d(padded, weight, stride=stride).sum()))
    return found


def sizes(kernel, stride, padding):
    height, width = (draw.randint(kernel + 2, 14) for _ in range(2))
    return draw.randint(1, 3), draw.randint(1, 4), height, width, draw.randint(1, 5), kernel, stride, padding


for _ in range(8):
    kernel = draw.choice((1, 2, 3, 5))
    given = sizes(kernel, 1, draw.randint(0, 2))
    check.returns(plain, given, expected=truth(*given)[0], call=of_definition)
    given = sizes(kernel, draw.randint(2, 4), draw.randint(0, 2))
    check.returns(strided, given, expected=truth(*given)[0], call=of_definition)
    given = sizes(draw.choice((3, 4, 5)), draw.randint(1, 3), draw.randint(1, 2))
    check.returns(real, given, expected=truth(*given)[1], call=without_zeros)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: where windows begin</summary>
#
# Along one side they begin at `range(-padding, side + padding - kernel + 1, stride)`.
#
# </details>
# <details><summary>Hint 2: rows and columns are apart</summary>
#
# The numbers in all windows are those along the height times those along the width. Images, channels and filters
# multiply them.
#
# </details>
# <details><summary>Hint 3: without zeros</summary>
#
# For each begin and each place of the kernel, ask whether `0 <= begin + place < side`.
#
# </details>


# %% wrong="convolution_flops" says="four places of six" gets=0
def convolution_flops(batch, channels, height, width, filters, kernel, stride, padding):  # noqa: ARG001
    every = 2 * batch * channels * filters * kernel**2 * (height // stride) * (width // stride)
    return every, every


# %% wrong="convolution_flops" says="a corner's window has four numbers" gets=2
def convolution_flops(batch, channels, height, width, filters, kernel, stride, padding):
    rows, columns = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    every = 2 * batch * channels * filters * kernel**2 * rows * columns
    return every, every


# %% wrong="convolution_flops" says="windows begin at -1, 2 and 5" gets=2
def convolution_flops(batch, channels, height, width, filters, kernel, stride, padding):
    every, real = 2 * batch * channels * filters, 2 * batch * channels * filters
    for side in (height, width):
        begins = range(-padding, side + padding - kernel + 1, stride)
        every *= kernel * (-(-(side + 2 * padding - kernel) // stride) + 1)
        real *= sum(0 <= begin + place < side for begin in begins for place in range(kernel))
    return every, real


# %% [markdown]
# ## Exercise 2: im2col, with counted reads
#
# [im2col](../glossary.md#im2col) makes a matrix with a column for each position and a row for each place of a window,
# channel by channel. An image of one channel, kernel 2, stride 1, no padding:
#
# | the image | | | the matrix, positions: | 0 | 1 | 2 | 3 |
# |--:|--:|--:|---|--:|--:|--:|--:|
# | 1 | 2 | 3 | upper left of the window | 1 | 2 | 4 | 5 |
# | 4 | 5 | 6 | upper right | 2 | 3 | 5 | 6 |
# | 7 | 8 | 9 | lower left | 4 | 5 | 7 | 8 |
# | | | | lower right | 5 | 6 | 8 | 9 |
#
# The 5 is copied four times, but it has to be read once. Write `im2col(image, channels, height, width, kernel, stride,
# padding)`. `image` is a function: `image(channel, row, column)` reads a number, and reads are counted. Outside of the
# image there is nothing to read; the padding is 0. Return the matrix as a list of rows. Read no number twice.


# %%
def reader(channels, height, width, *, reads):
    """Return a function that reads an image whose numbers are 1, 2, 3 and so on, and counts in reads."""

    def image(channel, row, column):
        if not (0 <= channel < channels and 0 <= row < height and 0 <= column < width):
            raise IndexError(f"image({channel}, {row}, {column}) is outside of {channels} x {height} x {width}")
        place = (channel * height + row) * width + column
        reads[place] = reads.get(place, 0) + 1
        return place + 1

    return image


def matrix_of(function, channels, height, width, *sizes):
    """Return the matrix."""
    return function(reader(channels, height, width, reads={}), channels, height, width, *sizes)


def most_reads_of(function, channels, height, width, *sizes):
    """Return how often the number that was read most was read."""
    reads = {}
    matrix = function(reader(channels, height, width, reads=reads), channels, height, width, *sizes)
    if matrix is exercises.not_yet:
        return matrix
    return max(reads.values(), default=0) if isinstance(matrix, list | tuple) else "no matrix"


# %% answer="im2col"
def im2col(image, channels, height, width, kernel, stride, padding):
    """Return the matrix: for the image above it is [[1, 2, 4, 5], [2, 3, 5, 6], [4, 5, 7, 8], [5, 6, 8, 9]]."""
    ### BEGIN SOLUTION
    numbers = {}
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                numbers[channel, row, column] = image(channel, row, column)
    tops = range(-padding, height + padding - kernel + 1, stride)
    lefts = range(-padding, width + padding - kernel + 1, stride)
    return [
        [numbers.get((channel, top + down, left + right), 0) for top in tops for left in lefts]
        for channel in range(channels)
        for down in range(kernel)
        for right in range(kernel)
    ]
    ### END SOLUTION


# %% checks="im2col" points=3
check = exercises.Checks("Exercise 2, im2col", im2col)
plain, padded, once = "stride 1, no padding", "stride and padding", "no number is read twice"
told = {((1, 2, 4, 5), (2, 3, 5, 6), (4, 5, 7, 8), (5, 6, 8, 9)): "Those are channel 0's rows; channel 1 comes below"}
two = [[1, 2, 4, 5], [2, 3, 5, 6], [4, 5, 7, 8], [5, 6, 8, 9]]
two += [[number + 9 for number in row] for row in two]
check.returns(plain, (2, 3, 3, 2, 1, 0), expected=two, mistakes=told, call=matrix_of)
turned = {((1, 2, 4, 5), (2, 3, 5, 6)): "A column is a position, a row is a place of the window"}
check.returns(plain, (1, 2, 3, 2, 1, 0), expected=[[1, 2], [2, 3], [4, 5], [5, 6]], mistakes=turned, call=matrix_of)
none, upper, lower, up, low = (0,) * 5, (0, 1, 2, 3, 4), (0, 5, 6, 7, 8), (1, 2, 3, 4, 0), (5, 6, 7, 8, 0)
told = {
    ((1, 3), (2, 4), (5, 7), (6, 8)): "The padding adds a 0 on each side, and the windows begin there",
    (none + upper + lower, none + up + low, upper + lower + none, up + low + none): (
        "With stride 2 every other window is left out"
    ),
}
rows = [[0, 0, 0, 0, 6, 8], [0, 0, 0, 5, 7, 0], [0, 2, 4, 0, 0, 0], [1, 3, 0, 0, 0, 0]]
check.returns(padded, (1, 2, 4, 2, 2, 1), expected=rows, mistakes=told, call=matrix_of)
told = dict.fromkeys((2, 4), "Some numbers are read again for each window: keep what you have read")
check.returns(once, (1, 3, 3, 2, 1, 0), expected=1, mistakes=told, call=most_reads_of)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(14002)


def truth(channels, height, width, kernel, stride, padding):
    """Return PyTorch's matrix of the same image."""
    image = torch.arange(1.0, channels * height * width + 1).view(1, channels, height, width)
    return torch.nn.functional.unfold(image, kernel, stride=stride, padding=padding)[0].int().tolist()


for _ in range(6):
    channels, height, width, kernel = (draw.randint(*ends) for ends in ((1, 3), (4, 7), (4, 7), (1, 4)))
    given = channels, height, width, kernel, 1, 0
    check.returns(plain, given, expected=truth(*given), call=matrix_of)
    given = channels, height, width, kernel, draw.randint(2, 3), draw.randint(1, 2)
    check.returns(padded, given, expected=truth(*given), call=matrix_of)
    check.returns(once, (channels, height, width, draw.randint(2, 4), 1, 0), expected=1, call=most_reads_of)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: read first</summary>
#
# Read the whole image into a dict `numbers[channel, row, column]`; copy from there.
#
# </details>
# <details><summary>Hint 2: the order</summary>
#
# The rows of the matrix go through channels, then rows of the kernel, then its columns; the columns go through the
# positions, row by row.
#
# </details>
# <details><summary>Hint 3: the padding</summary>
#
# Windows begin at `range(-padding, height + padding - kernel + 1, stride)`. A dict's `get(place, 0)` gives 0 outside.
#
# </details>


# %% wrong="im2col" says="keep what you have read" gets=2
def im2col(image, channels, height, width, kernel, stride, padding):
    def number(channel, row, column):
        return image(channel, row, column) if 0 <= row < height and 0 <= column < width else 0

    tops = range(-padding, height + padding - kernel + 1, stride)
    lefts = range(-padding, width + padding - kernel + 1, stride)
    return [
        [number(channel, top + down, left + right) for top in tops for left in lefts]
        for channel in range(channels)
        for down in range(kernel)
        for right in range(kernel)
    ]


# %% wrong="im2col" says="the windows begin there" gets=2
def im2col(image, channels, height, width, kernel, stride, padding):  # noqa: ARG001
    places = [(c, i, j) for c in range(channels) for i in range(height) for j in range(width)]
    numbers = {place: image(*place) for place in places}
    tops, lefts = range(0, height - kernel + 1, stride), range(0, width - kernel + 1, stride)
    return [
        [numbers[c, top + down, left + right] for top in tops for left in lefts]
        for c in range(channels)
        for down in range(kernel)
        for right in range(kernel)
    ]


# %% wrong="im2col" says="With stride 2 every other window" gets=2
def im2col(image, channels, height, width, kernel, stride, padding):  # noqa: ARG001
    places = [(c, i, j) for c in range(channels) for i in range(height) for j in range(width)]
    numbers = {place: image(*place) for place in places}
    tops = range(-padding, height + padding - kernel + 1)
    lefts = range(-padding, width + padding - kernel + 1)
    return [
        [numbers.get((c, top + down, left + right), 0) for top in tops for left in lefts]
        for c in range(channels)
        for down in range(kernel)
        for right in range(kernel)
    ]


# %% [markdown]
# ## Exercise 3: what choices cost
#
# A network calls its convolutions `calls` times. For each, a chooser named a program. Milliseconds of one call:
#
# | shape | calls | im2col | winograd | fft | chosen | fastest | a hit? |
# |---|--:|--:|--:|--:|---|---|---|
# | a | 1 | 2.0 | - | 9.0 | im2col | im2col | yes |
# | b | 4 | 1.05 | 1.0 | 3.0 | im2col | winograd | yes, 5 % slower |
# | c | 1 | 40 | 30 | 60 | im2col | winograd | no |
#
# Hits: 2 of 3 shapes. The chosen programs take 2 + 4 x 1.05 + 40 = 46.2 ms, the fastest 2 + 4 x 1 + 30 = 36 ms, so the
# [regret](../glossary.md#regret) is 46.2 / 36 = 1.283. Of the programs that serve every shape, im2col takes 46.2 ms and
# fft 81 ms: the best single program is im2col.
#
# Write `judge(times, calls, chosen)`. `times` maps a program to its times, one a shape, `None` where it does not serve.
# Return three things: how many shapes are hits (at most 10 % slower than the fastest; calls do not count here), the
# regret, and the name of the program with the least total among those that serve every shape.


# %%
def part(place):
    """Return a way to call the function and look at one of the three things alone."""

    def call(function, *given):
        found = function(*given)
        return found[place] if isinstance(found, tuple | list) and len(found) == 3 else found

    return call


# %% answer="judge"
def judge(times, calls, chosen):
    """Return hits, regret and the best single program: for the table above (2, 1.2833..., "im2col")."""
    ### BEGIN SOLUTION
    fastest = [min(time for time in row if time is not None) for row in zip(*times.values(), strict=True)]
    taken = [times[name][place] for place, name in enumerate(chosen)]
    hits = sum(time <= 1.1 * best for time, best in zip(taken, fastest, strict=True))

    def total(row):
        return sum(number * time for number, time in zip(calls, row, strict=True))

    single = {name: total(row) for name, row in times.items() if None not in row}
    return hits, total(taken) / total(fastest), min(single, key=single.get)
    ### END SOLUTION


# %% checks="judge" points=3
check = exercises.Checks("Exercise 3, judge", judge)
hits, regret, single = "hits", "regret", "the best single program"
table = {"im2col": [2.0, 1.05, 40.0], "winograd": [None, 1.0, 30.0], "fft": [9.0, 3.0, 60.0]}
told = {1: "5 % slower than the fastest is a hit as well", 3: "The last shape is a third slower than it could be"}
check.returns(hits, (table, [1, 1, 1], ["im2col"] * 3), expected=2, mistakes=told, call=part(0))
told = {
    43.05 / 33: "Shape b is called four times: each call takes its time",
    (1 + 1.05 + 40 / 30) / 3: "That is the mean of the ratios: divide total by total",
    46.2 / 36 - 1: "The ratio itself: 1 for perfect choices",
}
check.returns(regret, (table, [1, 4, 1], ["im2col"] * 3), expected=46.2 / 36, mistakes=told, call=part(1))
told = {
    "winograd": "winograd does not serve shape a: it is no single program for this network",
    "fft": "The least total is wanted",
}
check.returns(single, (table, [1, 4, 1], ["im2col"] * 3), expected="im2col", mistakes=told, call=part(2))
often = {"a": [1.0, 6.0], "b": [2.0, 4.5]}
told = {"b": "The first shape is called three times: a takes 9, and b 10.5"}
check.returns(single, (often, [3, 1], ["a", "a"]), expected="a", mistakes=told, call=part(2))
check.report()
### BEGIN HIDDEN TESTS
import random

import numpy as np

draw = random.Random(14003)


def some(shapes, programs, *, missing):
    """Return a table of times of which no two of a shape are within 2 % around the 10 % of a hit."""
    times = {}
    for program in range(programs):
        row = [round(2 ** draw.uniform(0, 6) * 1.3**program, 3) for _ in range(shapes)]
        times[f"program {program}"] = [None if program and draw.random() < missing else time for time in row]
    return times


for _ in range(8):
    shapes, programs = draw.randint(4, 9), draw.randint(3, 5)
    times, ones = some(shapes, programs, missing=0.3), [1] * shapes
    counts = [draw.randint(1, 6) for _ in range(shapes)]
    matrix = np.array([[np.nan if time is None else time for time in row] for row in times.values()])
    served = [[name for name, row in times.items() if row[place] is not None] for place in range(shapes)]
    chosen = [draw.choice(names) for names in served]
    taken = np.array([times[name][place] for place, name in enumerate(chosen)])
    best = np.nanmin(matrix, axis=0)
    near = int((taken <= 1.1 * best).sum())
    check.returns(hits, (times, ones, chosen), expected=near, call=part(0))
    whole = float((taken * counts).sum() / (best * counts).sum())
    check.returns(regret, (times, counts, chosen), expected=whole, call=part(1))
    totals = dict(zip(times, matrix @ np.array(counts), strict=True))
    everywhere = {name: total for name, total in totals.items() if not np.isnan(total)}
    least = min(everywhere, key=everywhere.get)
    check.returns(single, (times, counts, chosen), expected=least, call=part(2))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the fastest of each shape</summary>
#
# `zip(*times.values())` gives one row a shape; take the least of those that are not `None`.
#
# </details>
# <details><summary>Hint 2: totals</summary>
#
# The total of a list of times is the sum of `calls[place] * times[place]`. Write it once, use it for all three.
#
# </details>
# <details><summary>Hint 3: single programs</summary>
#
# `None not in row` says that a program serves every shape.
#
# </details>


# %% wrong="judge" says="divide total by total" gets=2
def judge(times, calls, chosen):
    fastest = [min(time for time in row if time is not None) for row in zip(*times.values(), strict=True)]
    taken = [times[name][place] for place, name in enumerate(chosen)]
    ratios = [time / best for time, best in zip(taken, fastest, strict=True)]
    single = {
        name: sum(number * time for number, time in zip(calls, row, strict=True))
        for name, row in times.items()
        if None not in row
    }
    return sum(ratio <= 1.1 for ratio in ratios), sum(ratios) / len(ratios), min(single, key=single.get)


# %% wrong="judge" says="winograd does not serve shape a" gets=2
def judge(times, calls, chosen):
    fastest = [min(time for time in row if time is not None) for row in zip(*times.values(), strict=True)]
    taken = [times[name][place] for place, name in enumerate(chosen)]
    hits = sum(time <= 1.1 * best for time, best in zip(taken, fastest, strict=True))

    def total(row):
        return sum(number * (time or 0) for number, time in zip(calls, row, strict=True))

    return hits, total(taken) / total(fastest), min(times, key=lambda name: total(times[name]))


# %% wrong="judge" says="each call takes its time" gets=1
def judge(times, calls, chosen):  # noqa: ARG001
    fastest = [min(time for time in row if time is not None) for row in zip(*times.values(), strict=True)]
    taken = [times[name][place] for place, name in enumerate(chosen)]
    hits = sum(time <= 1.1 * best for time, best in zip(taken, fastest, strict=True))
    single = {name: sum(row) for name, row in times.items() if None not in row}
    return hits, sum(taken) / sum(fastest), min(single, key=single.get)


# %% [markdown]
# ## Exercise 4: blocks and waves
#
# A GPU computes a kernel in blocks. A [multiprocessor](../glossary.md#multiprocessor) holds as many blocks at once as
# each of its resources allows; the scarcest decides. A TITAN Xp has 30 of them, each with:
#
# | | a multiprocessor has | a block of 128 threads takes, with 96 registers a thread and 20,000 B | so it fits |
# |---|--:|--:|--:|
# | registers | 65,536 | 4 warps x 3,072 = 12,288 | 5 times |
# | shared memory | 98,304 B | 20,000 B | 4 times |
# | threads | 2,048 | 128 | 16 times |
#
# Shared memory decides: 4 blocks on each, 120 at once. 300 blocks then take three
# [waves](../glossary.md#wave-of-blocks), and
# the last has 60 blocks. Registers are given to a warp of 32 threads, in units of 256: with 97 a thread, a warp takes
# 32 x 97 = 3,104, rounded up to 3,328.
#
# Write `count_waves(blocks, threads, registers, shared_bytes)` for this GPU; `threads` is a multiple of 32, and a block
# may take no shared memory. Return how many blocks run at once on the GPU, the waves, and the blocks of the last one.


# %%
def at_once(function, *given):
    """Return the blocks that run at once, alone."""
    found = function(*given)
    return found[0] if isinstance(found, tuple | list) and len(found) == 3 else found


def waves_of(function, *given):
    """Return the waves, and the blocks of the last one."""
    found = function(*given)
    return tuple(found[1:]) if isinstance(found, tuple | list) and len(found) == 3 else found


# %% answer="count_waves"
def count_waves(blocks, threads, registers, shared_bytes):
    """Return blocks at once, waves, blocks of the last wave: count_waves(300, 128, 96, 20000) is (120, 3, 60)."""
    ### BEGIN SOLUTION
    warp = -(-32 * registers // 256) * 256
    fitting = [65536 // (threads // 32 * warp), 2048 // threads]
    if shared_bytes:
        fitting.append(98304 // shared_bytes)
    places = 30 * min(fitting)
    waves = -(-blocks // places)
    return places, waves, blocks - (waves - 1) * places
    ### END SOLUTION


# %% checks="count_waves" points=3
check = exercises.Checks("Exercise 4, count_waves", count_waves)
scarce, units, last = "the scarcest resource decides", "registers in units of 256 a warp", "waves, and the last one"
told = {
    150: "20,000 bytes of shared memory fit four times",
    4: "That is one multiprocessor; the GPU has 30",
    480: "2,048 threads would be 16 blocks, but shared memory and registers run out before",
}
check.returns(scarce, (300, 128, 96, 20_000), expected=120, mistakes=told, call=at_once)
check.returns(scarce, (300, 128, 96, 0), expected=150, mistakes={480: told[480]}, call=at_once)
check.returns(scarce, (300, 1024, 32, 0), expected=60, call=at_once)
told = {150: "A warp of 97 registers a thread takes 3,328, so a block takes 13,312: it fits four times"}
check.returns(units, (300, 128, 97, 1_000), expected=120, mistakes=told, call=at_once)
told = {
    (2, 100): "After two full waves 100 blocks are left: a third wave",
    (3, 100 / 150): "The blocks of the last wave are wanted, not their share",
}
check.returns(last, (400, 128, 96, 16_000), expected=(3, 100), mistakes=told, call=waves_of)
told = {(2, 0): "300 blocks fill two waves, and the last has 150", (3, 0): "300 blocks fill two waves: no third"}
check.returns(last, (300, 128, 96, 16_000), expected=(2, 150), mistakes=told, call=waves_of)
check.report()
### BEGIN HIDDEN TESTS
import math
import random

draw = random.Random(14004)


def truth(blocks, threads, registers, shared_bytes):
    """Return the three, for blocks that are put on a multiprocessor one by one until something runs out."""
    warp, places = 256 * math.ceil(registers / 8), 0
    takes = {2048: threads, 65536: threads // 32 * warp, 98304: shared_bytes}
    while all((places + 1) * taken <= has for has, taken in takes.items()):
        places += 1
    waves = math.ceil(blocks / (30 * places))
    return 30 * places, waves, blocks - (waves - 1) * 30 * places


# SEER's own kernel has as many blocks by all of NVIDIA's rules, which also divide the registers among partitions.
shape, kernel = convolution_time.ConvolutionShape(1, 1, 1, 2916, 1, 1, 1, 0), {"threads": 128, "registers": 96}
found = convolution_time.count_waves(shape, tile_positions=1, tile_channels=1, shared_bytes=16_384, **kernel)
assert truth(2916, 128, 96, 16_384)[:2] == (found.resident_blocks, found.waves)
for _ in range(8):
    threads = draw.choice((64, 128, 256, 512))
    given = draw.randint(1, 2000), threads, 8 * draw.randint(4, 12), draw.choice((0, draw.randint(2_000, 40_000)))
    check.returns(scarce, given, expected=truth(*given)[0], call=at_once)
    given = draw.randint(1, 2000), threads, draw.choice((33, 41, 57, 65, 97)), 100
    check.returns(units, given, expected=truth(*given)[0], call=at_once)
    given = draw.randint(200, 4000), 128, 96, 16_000
    check.returns(last, given, expected=truth(*given)[1:], call=waves_of)
for full in (1, 2, 7):
    check.returns(last, (150 * full, 128, 96, 16_000), expected=(full, 150), call=waves_of)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: rounding up</summary>
#
# `-(-a // b)` is a / b, rounded up.
#
# </details>
# <details><summary>Hint 2: places</summary>
#
# Divide what a multiprocessor has by what a block takes, resource by resource, round down, and take the least, times
# 30. Leave out shared memory where a block takes none.
#
# </details>
# <details><summary>Hint 3: the last wave</summary>
#
# All waves before it are full: `blocks - (waves - 1) * places`.
#
# </details>


# %% wrong="count_waves" says="so a block takes 13,312" gets=2
def count_waves(blocks, threads, registers, shared_bytes):
    fitting = [65536 // (threads * registers), 2048 // threads]
    places = 30 * min([*fitting, 98304 // shared_bytes] if shared_bytes else fitting)
    waves = -(-blocks // places)
    return places, waves, blocks - (waves - 1) * places


# %% wrong="count_waves" says="300 blocks fill two waves" gets=2
def count_waves(blocks, threads, registers, shared_bytes):
    warp = -(-32 * registers // 256) * 256
    fitting = [65536 // (threads // 32 * warp), 2048 // threads]
    places = 30 * min([*fitting, 98304 // shared_bytes] if shared_bytes else fitting)
    return places, -(-blocks // places), blocks % places


# %% wrong="count_waves" says="shared memory fit four times" gets=2
def count_waves(blocks, threads, registers, shared_bytes):  # noqa: ARG001
    warp = -(-32 * registers // 256) * 256
    places = 30 * min(65536 // (threads // 32 * warp), 2048 // threads)
    waves = -(-blocks // places)
    return places, waves, blocks - (waves - 1) * places


# %% [markdown]
# ## Question 1: six per cent
#
# Somebody reports: "Our model predicts the time of a layer with an error of 6 %." It was fitted to 70 % of all layers
# of twelve networks, drawn at random, and tested on the others. Ten models were tried, and this one was the best on the
# test. You want to use it for a network of your own, and to choose programs by it.
#
# Name three things that you would ask or measure before you believe that it helps you. For each, say in which direction
# the 6 % may mislead, and by what in the lesson's tables you know.
#
# Three to six sentences; a person reads them.

# %% [markdown] written="report" points=2
# A full answer says:
#
# - 1 point: two of these with their direction: layers repeat, so that about half of the test was fitted (learned models
#   looked about twice as good as with a network held out); the best of ten was chosen on the test, so it is too good;
#   which error it is (MAPE hides one bad prediction, RMSPE is larger); whose networks and sizes, since trees end where
#   their data end; which machine and program.
# - 1 point: a good time is not a good choice: one wrong choice of a long layer may cost more than a hundred short ones
#   gain (the model with 95 % hits and a regret above that of a fixed program), so ask for the regret on networks held
#   out.

# %% [markdown]
# ## Question 2: a convolution of your own
#
# Take a convolution that you know, from a network of your own or a paper. Predict its time on your machine from the
# FLOPs and the recorded costs (`convolution_time.fit("physical", ...)` on the recording). Then
# measure it with `convolution_time.collect([shape], algorithms=["direct"])`. Give the shape, both times and the
# machine. If they are more than a factor of two apart, find out why; if they are not, say which term of the model takes
# most of the time, and what you would change in the shape to halve it.
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="own" points=2
# A full answer says:
#
# - 1 point: the shape's eight sizes, its FLOPs, a predicted and a measured time of the same call, and the machine.
# - 1 point: an explanation that follows from the numbers: another instruction set (compare the rates of a product), a
#   program that the recording has few of (1 x 1 with stride 2, few filters), threads, or, within a factor of two, the
#   largest term with its share, and a change that acts on this term (a whole block of 16 filters, a stride, fewer
#   channels) with the time predicted for it.

# %% [markdown]
# ## What you have practised
#
# Counting the FLOPs of a convolution, copying its windows without reading twice, judging choices by what they cost, and
# filling a GPU's waves.
