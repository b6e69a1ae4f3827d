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
# # Attention without the matrix: exercises
#
# Four functions to write, for [lesson 21](../21_attention_without_the_matrix.ipynb), and two questions; the second is
# a task of your own. Each exercise has a table, a function that returns `exercises.not_yet` until you write it,
# checks that you can read, and three hints that stay folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Nothing depends on how fast your machine is.

# %%
import math

from helpers import exercises

# %% [markdown]
# ## Exercise 1: one query, keys on several devices
#
# A long text's keys lie on several devices. Each computes one query's attention over its own keys, and sends its
# output, already divided by its own sum, and the logarithm of that sum, $\lambda$:
#
# | device | output | $\lambda$ |
# |--:|---|--:|
# | 0 | [1.0, 0.0] | 0.0 |
# | 1 | [0.0, 4.0] | $\log 3$ |
# | together | [0.25, 3.0] | $\log 4$ |
#
# Write `merge(parts)`: `parts` is a list of (output, $\lambda$), an output a list of numbers. Return the output and the
# $\lambda$ of all keys. A $\lambda$ may be large, such as 1,000, and a device without keys has one of minus infinity.


# %% answer="merge"
def merge(parts):
    """Return output and L: merge([([1.0, 0.0], 0.0), ([0.0, 4.0], math.log(3))]) is [0.25, 3.0], log 4."""
    ### BEGIN SOLUTION
    largest = max(log_sum for _, log_sum in parts)
    weights = [math.exp(log_sum - largest) for _, log_sum in parts]
    columns = zip(*(output for output, _ in parts), strict=True)
    output = [sum(weight * each for weight, each in zip(weights, column, strict=True)) for column in columns]
    total = sum(weights)
    return [each / total for each in output], largest + math.log(total)
    ### END SOLUTION


# %% checks="merge" points=3
check = exercises.Checks("Exercise 1, merge", merge)
shares, far, nobody = "devices count by their sums", "large L do not overflow", "a device without keys changes nothing"
two = [([1.0, 0.0], 0.0), ([0.0, 4.0], math.log(3))]
mean, plain_sum = "A device counts by its sum, not as one of many", "Each output was divided by its own sum: weigh them"
slips = {((0.5, 2.0), math.log(4)): mean, ((1.0, 4.0), math.log(4)): plain_sum}
check.returns(shares, (two,), expected=([0.25, 3.0], math.log(4)), mistakes=slips)
check.returns(shares, ([([2.0], 1.5)],), expected=([2.0], 1.5))
high = [(output, log_sum + 1000) for output, log_sum in two]
check.returns(far, (high,), expected=([0.25, 3.0], 1000 + math.log(4)))
low = [(output, log_sum - 1000) for output, log_sum in two]
check.returns(far, (low,), expected=([0.25, 3.0], -1000 + math.log(4)))
empty = [*two, ([0.0, 0.0], -math.inf)]
thirds = ((0.25 * 2 / 3, 2.0), math.log(4))
check.returns(nobody, (empty,), expected=([0.25, 3.0], math.log(4)), mistakes={thirds: mean})
check.returns(nobody, (empty[::-1],), expected=([0.25, 3.0], math.log(4)))
check.report()
### BEGIN HIDDEN TESTS
import random

import torch

draw = random.Random(18001)


def truth(sizes, shift):
    """One softmax over all keys, cut into devices."""
    generator = torch.Generator().manual_seed(draw.randint(0, 999))
    scores = [torch.randn(size, generator=generator, dtype=torch.float64) + shift for size in sizes]
    values = [torch.randn(size, 3, generator=generator, dtype=torch.float64) for size in sizes]
    parts = [((s.softmax(0) @ v).tolist(), s.logsumexp(0).item()) for s, v in zip(scores, values, strict=True)]
    whole = torch.cat(scores)
    return parts, ((whole.softmax(0) @ torch.cat(values)).tolist(), whole.logsumexp(0).item())


for _ in range(4):
    sizes = [draw.randint(1, 6) for _ in range(draw.randint(2, 5))]
    parts, expected = truth(sizes, 0)
    check.returns(shares, (parts,), expected=expected)
    nothing = ([0.0] * 3, -math.inf)
    check.returns(nobody, ([nothing, *parts, nothing],), expected=expected)
    parts, expected = truth(sizes, draw.choice([-2000, 900, 3000]))
    check.returns(far, (parts,), expected=expected)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: weights</summary>
#
# A device's weight is its own sum over all sums, $e^{L_i} / \sum_j e^{L_j}$.
#
# </details>
# <details><summary>Hint 2: large numbers</summary>
#
# Take the largest $\lambda$ off all of them first: that changes no weight, and nothing overflows.
#
# </details>
# <details><summary>Hint 3: minus infinity</summary>
#
# `math.exp(-math.inf)` is 0. Some device has keys, so the largest $\lambda$ is a number.
#
# </details>


# %% wrong="merge" says="not as one of many" gets=0
def merge(parts):
    outputs, log_sums = zip(*parts, strict=True)
    largest = max(log_sums)
    total = largest + math.log(sum(math.exp(each - largest) for each in log_sums))
    return [sum(column) / len(parts) for column in zip(*outputs, strict=True)], total


# %% wrong="merge" says="raised OverflowError" gets=2
def merge(parts):
    weights = [math.exp(log_sum) for _, log_sum in parts]
    output = [sum(w * o[i] for w, (o, _) in zip(weights, parts, strict=True)) for i in range(len(parts[0][0]))]
    return [each / sum(weights) for each in output], math.log(sum(weights))


# %% [markdown]
# ## Exercise 2: the tile for a cache
#
# Queries outside, keys inside. A cache must hold a block of `rows` queries, and a block of `columns` keys and the
# same of values; all rows have `width` numbers of 4 bytes. The bytes read are $(2n / \text{rows} + 2)$ times those of
# $Q$. For 512 tokens of width 64 and 65,536 bytes:
#
# | rows | columns | the cache must hold | read, times Q |
# |--:|--:|--:|--:|
# | 64 | 64 | 49,152 B | 18 |
# | 128 | 64 | 65,536 B | 10 |
# | 256 | 16 | 73,728 B | does not fit |
#
# Write `best_tile(tokens, width, cache_bytes)`: return `(rows, columns)`, both from 16, 32, 64, ... up to `tokens`,
# that reads least. Of those that read equally little take the one with the most columns, because it has the fewest
# tiles.


# %% answer="best_tile"
def best_tile(tokens, width, cache_bytes):
    """Return (rows, columns): best_tile(512, 64, 65536) is (128, 64)."""
    ### BEGIN SOLUTION
    sides = [2**power for power in range(4, tokens.bit_length()) if 2**power <= tokens]
    fitting = [(r, c) for r in sides for c in sides if 4 * width * (r + 2 * c) <= cache_bytes]
    return max(fitting)
    ### END SOLUTION


# %% checks="best_tile" points=3
check = exercises.Checks("Exercise 2, best_tile", best_tile)
best, ties, ends = "the tile that reads least", "of those, the fewest tiles", "no side is longer than the text"
square = {
    (64, 64): "Read by the formula: rows count, columns do not. Taller tiles read less",
    (128, 128): "Count V as well",
}
check.returns(best, (512, 64, 65_536), expected=(128, 64), mistakes=square)
one = {(256, 128): "Count V as well", (128, 128): "Taller tiles read less"}
check.returns(best, (1024, 64, 98_304), expected=(256, 64), mistakes=one)
narrow = {(128, 16): "More columns fit, which makes fewer tiles", (128, 32): "Still more columns fit"}
check.returns(ties, (512, 64, 65_600), expected=(128, 64), mistakes=narrow)
check.returns(ties, (2048, 32, 131_072), expected=(512, 256))
check.returns(ends, (64, 16, 10**9), expected=(64, 64))
check.returns(ends, (256, 64, 10**6), expected=(256, 256))
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(18002)


def least(tokens, width, cache_bytes):
    """By trying: fewest bytes, then fewest tiles."""
    sides = [side for side in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096) if side <= tokens]
    found = {
        (2 * tokens / r + 2, tokens * tokens / r / c): (r, c)
        for r in sides
        for c in sides
        if (r + c + c) * width * 4 <= cache_bytes
    }
    return found[min(found)]


for _ in range(6):
    tokens, width = draw.choice([512, 1024, 4096]), draw.choice([32, 64, 128])
    for goal in (best, ties):
        given = (tokens, width, width * 4 * draw.randint(48, 2 * tokens))
        check.returns(goal, given, expected=least(*given))
    given = (draw.choice([16, 32, 128]), width, 10**8)
    check.returns(ends, given, expected=least(*given))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what fits?</summary>
#
# `4 * width * (rows + 2 * columns)` bytes must be at most `cache_bytes`.
#
# </details>
# <details><summary>Hint 2: what reads least?</summary>
#
# The most rows that leave room for at least 16 columns.
#
# </details>
# <details><summary>Hint 3: try them all</summary>
#
# There are few pairs. `max` of a list of pairs looks at the first number, and at the second where the first are
# equal.
#
# </details>


# %% wrong="best_tile" says="Taller tiles read less" gets=1
def best_tile(tokens, width, cache_bytes):
    sides = [2**power for power in range(4, tokens.bit_length()) if 2**power <= tokens]
    return max((side, side) for side in sides if 4 * width * 3 * side <= cache_bytes)


# %% wrong="best_tile" says="More columns fit" gets=0
def best_tile(tokens, width, cache_bytes):
    rows = 16
    while 2 * rows <= tokens and 4 * width * (2 * rows + 32) <= cache_bytes:
        rows *= 2
    return rows, 16


# %% wrong="best_tile" says="Count V as well" gets=1
def best_tile(tokens, width, cache_bytes):
    sides = [2**power for power in range(4, tokens.bit_length()) if 2**power <= tokens]
    return max((r, c) for r in sides for c in sides if 4 * width * (r + c) <= cache_bytes)


# %% [markdown]
# ## Exercise 3: a sliding window
#
# Some models let a token look at itself and at the `window - 1` tokens before it, and no further back. A tile is
# computed if at least one of its queries may look at at least one of its keys. Twelve tokens, tiles of 4 x 4, a
# window of 3: `x` is computed.
#
# | queries | keys 0-3 | keys 4-7 | keys 8-11 |
# |---|:--:|:--:|:--:|
# | 0-3 | x | | |
# | 4-7 | x | x | |
# | 8-11 | | x | x |
#
# Write `window_tiles(tokens, rows, columns, window)`: how many tiles are computed? Tiles begin at token 0; the last
# ones may be smaller.


# %% answer="window_tiles"
def window_tiles(tokens, rows, columns, window):
    """Return how many tiles have a query that sees a key: window_tiles(12, 4, 4, 3) is 5."""
    ### BEGIN SOLUTION
    count = 0
    for top in range(0, tokens, rows):
        bottom = min(top + rows, tokens) - 1
        for left in range(0, tokens, columns):
            right = min(left + columns, tokens) - 1
            count += left <= bottom and right > top - window
    return count
    ### END SOLUTION


# %% checks="window_tiles" points=3
check = exercises.Checks("Exercise 3, window_tiles", window_tiles)
near, whole, odd = (
    "a short window is a band",
    "a long window is the causal triangle",
    "sides need not be equal or divide",
)
slips = {3: "The first queries of a block look back into the block of keys before", 6: "Keys too far back are not seen"}
check.returns(near, (12, 4, 4, 3), expected=5, mistakes=slips | {9: "No token looks ahead"})
check.returns(near, (16, 4, 4, 1), expected=4, mistakes={7: "A window of 1 is the token itself"})
check.returns(whole, (16, 4, 4, 16), expected=10, mistakes={16: "No token looks ahead"})
check.returns(whole, (8, 2, 2, 100), expected=10)
check.returns(odd, (10, 4, 3, 2), expected=6)
check.returns(odd, (9, 2, 4, 5), expected=8)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(18003)


def truth(tokens, rows, columns, window):
    """Every pair of a token and a token that it may look at, by the tile that it lies in."""
    pairs = ((i, j) for i in range(tokens) for j in range(tokens) if i - window < j <= i)
    return len({(i // rows, j // columns) for i, j in pairs})


for _ in range(6):
    side = draw.choice([2, 4, 8])
    tokens = side * draw.randint(4, 9)
    given = (tokens, side, side, draw.randint(2, tokens // 2))
    check.returns(near, given, expected=truth(*given))
    given = (tokens, side, side, tokens + draw.randint(0, 5))
    check.returns(whole, given, expected=truth(*given))
    given = (draw.randint(11, 40), draw.randint(2, 7), draw.randint(2, 7), draw.randint(2, 12))
    check.returns(odd, given, expected=truth(*given))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: a tile's corners</summary>
#
# A tile has the queries `top` to `bottom` and the keys `left` to `right`, all of them inside the text.
#
# </details>
# <details><summary>Hint 2: not ahead</summary>
#
# Some key must not be later than the last query: `left <= bottom`.
#
# </details>
# <details><summary>Hint 3: not too far back</summary>
#
# The first query reaches furthest back, to `top - window + 1`; the last key must not be before that.
#
# </details>


# %% wrong="window_tiles" says="look back into the block of keys before" gets=0
def window_tiles(tokens, rows, columns, window):  # noqa: ARG001
    return sum(top // columns * columns == left for top in range(0, tokens, rows) for left in range(0, tokens, columns))


# %% wrong="window_tiles" says="Keys too far back are not seen" gets=1
def window_tiles(tokens, rows, columns, window):  # noqa: ARG001
    tops, lefts = range(0, tokens, rows), range(0, tokens, columns)
    return sum(left < top + rows for top in tops for left in lefts)


# %% wrong="window_tiles" says="A window of 1 is the token itself" gets=1
def window_tiles(tokens, rows, columns, window):
    tops, lefts = range(0, tokens, rows), range(0, tokens, columns)
    return sum(left < top + rows and left + columns > top - window for top in tops for left in lefts)


# %% [markdown]
# ## Exercise 4: how long a text can be
#
# For backward a layer of attention keeps, in each head, numbers of `number_bytes` bytes: plain attention three
# matrices of $n \times d$ and the table, $3 n d + n^2$ numbers; tiles four matrices and a number a row, $4 n d + n$.
#
# | 8 heads, $d = 64$, 4 bytes | 1,000,000 B | 1,000,000,000 B |
# |---|--:|--:|
# | plain | 105 tokens | 5,494 tokens |
# | tiles | 121 tokens | 121,595 tokens |
#
# Write `longest(memory_bytes, heads, width, number_bytes, table)`: the most tokens for which the kept numbers fit.
# `table` says whether the attention is plain. The answer is a whole number, exactly, also where it has ten digits.


# %% answer="longest"
def longest(memory_bytes, heads, width, number_bytes, table):
    """Return the most tokens: longest(1_000_000, 8, 64, 4, True) is 105."""
    ### BEGIN SOLUTION
    numbers = memory_bytes // (heads * number_bytes)
    if not table:
        return numbers // (4 * width + 1)
    return (math.isqrt(9 * width * width + 4 * numbers) - 3 * width) // 2
    ### END SOLUTION


# %% checks="longest" points=3
check = exercises.Checks("Exercise 4, longest", longest)
tiles, plain, exact = "tiles grow with the text", "a table grows with its square", "large answers are exact"
check.returns(tiles, (10**6, 8, 64, 4, False), expected=121, mistakes={122: "Each row keeps one number more"})
check.returns(tiles, (10**9, 8, 64, 2, False), expected=243_190, mistakes={121_595: "A number has number_bytes bytes"})
without = {176: "Plain attention keeps Q, K and V as well", 413: "Each head has its own"}
check.returns(plain, (10**6, 8, 64, 4, True), expected=105, mistakes=without)
check.returns(
    plain, (10**9, 8, 64, 4, True), expected=5494, mistakes={5590: "Plain attention keeps Q, K and V as well"}
)
brim = 2 * (3 * 10**10 * 16 + 10**20)
check.returns(exact, (brim, 1, 16, 2, True), expected=10**10)
check.returns(exact, (brim - 1, 1, 16, 2, True), expected=10**10 - 1, mistakes={10**10: "One byte is missing"})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(18004)


def truth(memory_bytes, heads, width, number_bytes, table):
    """By halving."""
    low, high = 0, 10**12
    while low < high:
        middle = (low + high + 1) // 2
        kept = 3 * middle * width + middle**2 if table else 4 * middle * width + middle
        low, high = (middle, high) if kept * heads * number_bytes <= memory_bytes else (low, middle - 1)
    return low


for _ in range(5):
    sizes = draw.randint(2, 40), draw.choice([32, 64, 128]), draw.choice([2, 4])
    for goal, table in ((tiles, False), (plain, True)):
        given = (draw.randint(10**7, 10**11), *sizes, table)
        check.returns(goal, given, expected=truth(*given))
    tokens = draw.randint(10**9, 10**10)
    brim = sizes[0] * sizes[2] * (3 * tokens * sizes[1] + tokens**2)
    check.returns(exact, (brim - 1, *sizes, True), expected=tokens - 1)
    check.returns(exact, (brim, *sizes, True), expected=tokens)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: numbers, not bytes</summary>
#
# Each head may keep `memory_bytes // (heads * number_bytes)` numbers.
#
# </details>
# <details><summary>Hint 2: a square</summary>
#
# $n^2 + 3 d n \le N$ is $(2n + 3d)^2 \le 4N + 9d^2$.
#
# </details>
# <details><summary>Hint 3: exactly</summary>
#
# `math.isqrt` is the square root of whole numbers, rounded down; `math.sqrt` has 16 digits. Or halve an interval
# again and again.
#
# </details>


# %% wrong="longest" says="Plain attention keeps Q, K and V as well" gets=1
def longest(memory_bytes, heads, width, number_bytes, table):
    numbers = memory_bytes // (heads * number_bytes)
    return math.isqrt(numbers) if table else numbers // (4 * width + 1)


# %% wrong="longest" says="One byte is missing" gets=2
def longest(memory_bytes, heads, width, number_bytes, table):
    numbers = memory_bytes / (heads * number_bytes)
    if not table:
        return int(numbers / (4 * width + 1))
    return int((math.sqrt(9 * width * width + 4 * numbers) - 3 * width) / 2)


# %% wrong="longest" says="Each row keeps one number more" gets=2
def longest(memory_bytes, heads, width, number_bytes, table):
    numbers = memory_bytes // (heads * number_bytes)
    if not table:
        return numbers // (4 * width)
    return (math.isqrt(9 * width * width + 4 * numbers) - 3 * width) // 2


# %% [markdown]
# ## Question 1: cheaper to make than to read
#
# Checkpointing (lesson 11) and attention in tiles both forget something in the forward pass and compute it again in
# the backward pass. The first made the step longer; the second can make it shorter. Say for both what is not stored,
# what computing it again takes, and what storing it would take. Then give a condition under which forgetting saves
# time, and one case in which attention in tiles would not.
#
# Three to six sentences; a person reads them.

# %% [markdown] written="cheaper_to_make" points=2
# A full answer says:
#
# - 1 point: checkpointing forgets a block's activations and pays a whole forward of its products again; attention
#   forgets the table, whose scores cost one product of $2 n^2 d$ FLOP, and saves its passes through memory.
# - 1 point: forgetting saves time where making a number again takes less time than writing and reading it; it does
#   not for short texts, whose table stays in a cache, for a machine whose memory keeps up with its arithmetic, or
#   without a backward pass.

# %% [markdown]
# ## Question 2: an attention of your own
#
# Choose a change to attention that the lesson does not have: a bias by distance, a sliding window, fewer key-value
# heads, a cap on the scores, another softmax. Before you run anything, write down two numbers: how many bytes or FLOP
# it changes against `attention.in_tiles`, and how many times as long it will take. Then write it in tiles, hold it
# against a plain version, and measure with `helpers.compare`. Where time and prediction differ by more than a factor
# of two, find out why.
#
# Give your code's idea, the two predictions, what you counted and measured, and the explanation, in five to ten
# sentences; a person reads them.

# %% [markdown] written="an_attention_of_your_own" points=4
# A full answer says:
#
# - 1 point: a change that is really one, correct in tiles, and the plain version that it was held against, with the
#   difference found (about 1e-6 in float32).
# - 1 point: both predictions, with the reasoning behind them, made before the run.
# - 1 point: bytes or FLOP counted (`profile_ops`, `saved_bytes`, `tiles_of` or by hand) and a time from a stable
#   comparison.
# - 1 point: an explanation of what is off by more than two times, held up by another number and not only said; where
#   both are within two, which part of the prediction it was that carried.

# %% [markdown]
# ## What you have practised
#
# Merging what several devices hold, choosing a tile for a cache, counting the tiles of a window, and saying how long
# a text fits.
