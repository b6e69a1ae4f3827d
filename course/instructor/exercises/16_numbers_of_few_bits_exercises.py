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
# # Numbers of few bits: exercises
#
# Eight short functions in five exercises, for [lesson 16](../16_numbers_of_few_bits.ipynb). Each exercise has a table
# or a picture, functions that return `exercises.not_yet` until you write them, checks that you can read, and three
# hints that stay folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is counted, so nothing depends on how fast your machine
# is.

# %%
import math

import pandas as pd
import torch

from helpers import exercises, run_limited
from helpers.studies import numbers

# %% [markdown]
# ## Exercise 1: decode a byte
#
# In a floating-point [format](../glossary.md#format-of-numbers) a code is a sign, then an exponent, then a mantissa,
# the highest bit first. With 4 bits of exponent, 3 of mantissa and a bias of 7:
#
# ```
#   code 77  =   0     1 0 0 1      1 0 1
#              sign    exponent    mantissa
#                +       9            5        (1 + 5/8) * 2^(9 - 7) = 6.5
# ```
#
# | the exponent is | the code means, but for its sign |
# |---|---|
# | 0 | (mantissa / 2^mantissa_bits) * 2^(1 - bias): a subnormal number, or a zero of either sign |
# | larger | (1 + mantissa / 2^mantissa_bits) * 2^(exponent - bias) |
# | the largest (all bits 1) | what `top` says |
#
# | `top` | with the largest exponent | as in |
# |---|---|---|
# | `"numbers"` | all mantissas are numbers, as above | e2m1 |
# | `"nan"` | the largest mantissa (all bits 1) is NaN; the others are numbers, as above | e4m3 |
# | `"ieee"` | mantissa 0 is an infinity of the code's sign; all others are NaN | e5m2, bf16 |
#
# Write `decode(code, exponent_bits, mantissa_bits, bias, top)`; return the value of the code, a float. A code has
# 1 + exponent_bits + mantissa_bits bits, and the bias may be any whole number.


# %% answer="decode"
def decode(code, exponent_bits, mantissa_bits, bias, top):
    """Return the value of a code as a float: decode(77, 4, 3, 7, "nan") is 6.5."""
    ### BEGIN SOLUTION
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = code >> mantissa_bits & (2**exponent_bits - 1)
    mantissa = code & (2**mantissa_bits - 1)
    highest = exponent == 2**exponent_bits - 1
    if highest and top == "ieee":
        return math.nan if mantissa else sign * math.inf
    if highest and top == "nan" and mantissa == 2**mantissa_bits - 1:
        return math.nan
    fraction = mantissa / 2**mantissa_bits
    return sign * (fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias))
    ### END SOLUTION


# %%
def shown(function, *given):
    """Return the value; infinities, NaN and -0.0 as text: two NaN are never equal, and -0.0 equals 0.0."""
    found = function(*given)
    found = found.item() if hasattr(found, "item") else found
    if isinstance(found, str):
        return f"the text {found}"
    if isinstance(found, float) and (not math.isfinite(found) or str(found) == "-0.0"):
        return {"nan": "NaN", "inf": "infinity", "-inf": "-infinity"}.get(str(float(found)), "-0.0")
    return found


# %%
one, largest = "Exponent 0 has no 1 before its mantissa", "The exponent is the largest"
decode_mistakes = {  # what a common mistake gives, and what the checks say to it
    (77, 2.5): "A normal number has a 1 before its mantissa, which no bit says",
    (77, 832.0): "The exponent is too large by the bias: subtract it",
    (77, 24.0): "The mantissa counts eighths here: divide it by 2**mantissa_bits",
    (77, 96.0): "The exponent stands before the mantissa, not after it",
    (179, 0.6875): "The highest bit is the sign, and it is set",
    (179, -45056.0): "The highest bit is the sign: mask it off before you read the exponent",
    (14, 1.5): "The bias is given, and need not be 2**(exponent_bits - 1) - 1; here it is -1",
    (3, 0.0107421875): one,
    (3, 0.021484375): one,
    (3, 0.0029296875): "A subnormal number has the exponent of the smallest normal ones, 1 - bias, not -bias",
    (128, 0.0): "The sign counts for a zero as well: -0.0, and -1 * 0.0 gives it where -1 * 0 does not",
    (128, -0.0078125): one + ", so a mantissa of 0 is zero",
    (128, -0.015625): one + ", so a mantissa of 0 is zero",
    (126, "NaN"): 'With top="nan" the largest mantissa alone is NaN: 126 is the largest number',
    (126, "infinity"): 'With top="nan" there is no infinity: 126 is the largest number',
    (127, 480.0): largest + " and all bits of the mantissa are 1: this code is NaN",
    (127, "infinity"): 'With top="nan" there is no infinity: this code is NaN',
    (252, "infinity"): "An infinity has a sign, and here it is set",
    (252, -65536.0): largest + ': with top="ieee" it holds no numbers, and mantissa 0 is an infinity',
    (252, "NaN"): largest + ': with top="ieee" mantissa 0 is an infinity, and the others are NaN',
    (125, "infinity"): largest + ': with top="ieee" mantissa 0 alone is an infinity',
    (7, "NaN"): 'With top="numbers" all codes are numbers, up to the last one',
    (7, "infinity"): 'With top="numbers" all codes are numbers, up to the last one',
}

# %% checks="decode" points=4
check = exercises.Checks("Exercise 1, decode", decode)
normal, subnormal, zeros = "normal numbers", "subnormal numbers", "both zeros"
beyond = "the largest exponent: numbers, infinities, NaN"
for goal, expected, *asked in (
    (normal, 6.5, 77, 4, 3, 7, "nan"),
    (normal, -0.6875, 179, 4, 3, 7, "nan"),
    (normal, 24.0, 14, 3, 2, -1, "numbers"),
    (subnormal, 0.005859375, 3, 4, 3, 7, "nan"),
    (subnormal, -0.5, 9, 2, 1, 1, "numbers"),
    (zeros, "-0.0", 128, 4, 3, 7, "nan"),
    (zeros, 0.0, 0, 4, 3, 7, "nan"),
    (beyond, 448.0, 126, 4, 3, 7, "nan"),
    (beyond, "NaN", 127, 4, 3, 7, "nan"),
    (beyond, "-infinity", 252, 5, 2, 15, "ieee"),
    (beyond, "NaN", 125, 5, 2, 15, "ieee"),
    (beyond, 6.0, 7, 2, 1, 1, "numbers"),
):
    told = {found: why for (code, found), why in decode_mistakes.items() if code == asked[0]}
    check.returns(goal, asked, expected=expected, mistakes=told, call=shown)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(17001)


def ladder(exponent_bits, mantissa_bits, bias, top):
    """Return what the codes mean, walking up from 0: the step doubles at every power of two but the first."""
    row, step, found = 2**mantissa_bits, 2.0 ** (1 - bias - mantissa_bits), [0.0]
    while len(found) < 2**exponent_bits * row:
        found.append(found[-1] + step)
        if len(found) % row == 1 % row and len(found) > 2 * row:
            step *= 2
    if top == "nan":
        found[-1] = "NaN"
    if top == "ieee":
        found[-row:] = ["infinity"] + ["NaN"] * (row - 1)
    return found


def negative(value):
    return {"NaN": "NaN", "infinity": "-infinity", 0.0: "-0.0"}.get(value) or -value


def all_of(function, codes, *about):
    """Return what all codes mean; not_yet as soon as one is."""
    found = [shown(function, code, *about) for code in codes]
    return exercises.not_yet if any(one is exercises.not_yet for one in found) else found


made_up = [(4, 2, draw.randint(9, 14), "nan"), (3, 4, -draw.randint(2, 5), "ieee")]
known = {"e4m3": (4, 3, 7, "nan"), "e5m2": (5, 2, 15, "ieee"), "e2m1": (2, 1, 1, "numbers")}
for about in [*known.values(), *made_up]:
    exponent_bits, mantissa_bits, _, _ = about
    row, sign = 2**mantissa_bits, 2 ** (exponent_bits + mantissa_bits)
    meant = ladder(*about)
    meant += [negative(value) for value in meant]
    highest = sign - row
    kinds = {zeros: [], subnormal: [], normal: [], beyond: []}
    for code in range(2 * sign):
        magnitude = code % sign
        kind = zeros if magnitude == 0 else subnormal if magnitude < row else normal if magnitude < highest else beyond
        kinds[kind].append(code)
    for goal, codes in kinds.items():
        draw.shuffle(codes)
        check.returns(goal, (codes, *about), expected=[meant[code] for code in codes], call=all_of)
for key, about in known.items():
    finite = [value for value in ladder(*about) if not isinstance(value, str)]
    assert [-value for value in finite[:0:-1]] + finite == numbers.FORMATS[key].values().tolist()
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: take the code apart</summary>
#
# `code & (2**mantissa_bits - 1)` is the mantissa. `code >> mantissa_bits` brings the exponent to the lowest bits, with
# the sign above it; mask it in the same way.
#
# </details>
# <details><summary>Hint 2: the order of the cases</summary>
#
# First what `top` takes out of the largest exponent, then exponent 0, then all others.
#
# </details>
# <details><summary>Hint 3: the sign</summary>
#
# Let the sign be the float 1.0 or -1.0, and multiply in the end: then zeros and infinities get theirs as well.
#
# </details>


# %% wrong="decode" says="has a 1 before its mantissa, which no bit says" gets=2
def decode(code, exponent_bits, mantissa_bits, bias, top):
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent, mantissa = code >> mantissa_bits & (2**exponent_bits - 1), code & (2**mantissa_bits - 1)
    if exponent == 2**exponent_bits - 1 and (top == "ieee" or (top == "nan" and mantissa == 2**mantissa_bits - 1)):
        return math.nan if mantissa else sign * math.inf
    return sign * mantissa / 2**mantissa_bits * 2.0 ** (max(exponent, 1) - bias)


# %% wrong="decode" says="mask it off before you read the exponent" gets=0
def decode(code, exponent_bits, mantissa_bits, bias, top):
    exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    if exponent == 2**exponent_bits - 1 and (top == "ieee" or (top == "nan" and mantissa == 2**mantissa_bits - 1)):
        return math.nan if mantissa else sign * math.inf
    return sign * (mantissa / 2**mantissa_bits + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)


# %% wrong="decode" says="need not be 2**(exponent_bits - 1) - 1" gets=1
def decode(code, exponent_bits, mantissa_bits, bias, top):
    bias = (1 << exponent_bits - 1) - 1
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent, mantissa = code >> mantissa_bits & (2**exponent_bits - 1), code & (2**mantissa_bits - 1)
    if exponent == 2**exponent_bits - 1 and (top == "ieee" or (top == "nan" and mantissa == 2**mantissa_bits - 1)):
        return math.nan if mantissa else sign * math.inf
    return sign * (mantissa / 2**mantissa_bits + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)


# %% wrong="decode" says="1 - bias, not -bias" gets=3
def decode(code, exponent_bits, mantissa_bits, bias, top):
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent, mantissa = code >> mantissa_bits & (2**exponent_bits - 1), code & (2**mantissa_bits - 1)
    if exponent == 2**exponent_bits - 1 and (top == "ieee" or (top == "nan" and mantissa == 2**mantissa_bits - 1)):
        return math.nan if mantissa else sign * math.inf
    return sign * (mantissa / 2**mantissa_bits + (exponent > 0)) * 2.0 ** (exponent - bias)


# %% wrong="decode" says="Exponent 0 has no 1 before its mantissa" gets=2
def decode(code, exponent_bits, mantissa_bits, bias, top):
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent, mantissa = code >> mantissa_bits & (2**exponent_bits - 1), code & (2**mantissa_bits - 1)
    if exponent == 2**exponent_bits - 1 and (top == "ieee" or (top == "nan" and mantissa == 2**mantissa_bits - 1)):
        return math.nan if mantissa else sign * math.inf
    return sign * (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)


# %% wrong="decode" says="-1 * 0.0 gives it where -1 * 0 does not" gets=3
def decode(code, exponent_bits, mantissa_bits, bias, top):
    sign = -1 if code >> (exponent_bits + mantissa_bits) else 1
    exponent, mantissa = code >> mantissa_bits & (2**exponent_bits - 1), code & (2**mantissa_bits - 1)
    if exponent == 2**exponent_bits - 1 and (top == "ieee" or (top == "nan" and mantissa == 2**mantissa_bits - 1)):
        return math.nan if mantissa else sign * math.inf
    whole = sign * (mantissa + (2**mantissa_bits if exponent else 0))
    return whole * 2.0 ** (max(exponent, 1) - bias - mantissa_bits)


# %% wrong="decode" says="126 is the largest number" gets=3
def decode(code, exponent_bits, mantissa_bits, bias, top):  # noqa: ARG001
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent, mantissa = code >> mantissa_bits & (2**exponent_bits - 1), code & (2**mantissa_bits - 1)
    if exponent == 2**exponent_bits - 1:
        return math.nan if mantissa else sign * math.inf
    return sign * (mantissa / 2**mantissa_bits + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)


# %% wrong="decode" says="An infinity has a sign" gets=3
def decode(code, exponent_bits, mantissa_bits, bias, top):
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent, mantissa = code >> mantissa_bits & (2**exponent_bits - 1), code & (2**mantissa_bits - 1)
    if exponent == 2**exponent_bits - 1 and (top == "ieee" or (top == "nan" and mantissa == 2**mantissa_bits - 1)):
        return math.nan if mantissa else math.inf
    return sign * (mantissa / 2**mantissa_bits + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)


# %% [markdown]
# ## Exercise 2: a coin for the last bit
#
# bf16 is the upper half of float32. [Stochastic rounding](../glossary.md#stochastic-rounding) cuts off the lower 16
# bits of a number and lets a draw decide between its two neighbours in bf16:
#
# ```
#   0.1 in float32    0 01111011 1001100 | 1100110011001101
#                     stays: 0.0996094   | cut off: 52,429 of 65,536 steps on the way to the next, 0.100098
# ```
#
# | a value that | becomes |
# |---|---|
# | bf16 holds, a zero or an infinity too | itself, whatever the draw |
# | lies between two of its numbers | with as many draws as steps were cut off the one further from zero |
# | is finite, and beyond its largest | that largest, with its sign: a coin makes no infinity |
# | is NaN | NaN |
#
# So 0.1 becomes 0.100098 with 52,429 of the 65,536 draws, whichever these are, and 0.0996094 with all others: in the
# mean it stays 0.1.
#
# Write `stochastic_bf16(values, draws)`. `values` is a float32 tensor, `draws` an int32 tensor of its shape: a whole
# number from 0 to 65,535 for each value, all equally likely. Use these draws and no others, so that the same draws give
# the same result. Return a float32 tensor of that shape whose numbers bf16 holds. `values.view(torch.int32)` is the
# bits as whole numbers, and `.view(torch.float32)` leads back; `torch.finfo(torch.bfloat16).max` is bf16's largest.
#
# The checks round one value 65,536 times, with each draw once, and list which values came out how often.


# %% answer="stochastic_bf16"
def stochastic_bf16(values, draws):
    """Return values rounded to bf16, up or down as draws (0 to 65,535) decide, as a float32 tensor."""
    ### BEGIN SOLUTION
    bits = values.view(torch.int32)
    cut = bits & 0xFFFF
    up = (draws < cut).to(torch.int32) * 2**16
    largest = torch.finfo(torch.bfloat16).max
    rounded = (bits - cut + up).view(torch.float32).clamp(-largest, largest)
    return torch.where(values.isfinite(), rounded, values)
    ### END SOLUTION


# %%
NEIGHBOURS, DOUBLED = "nothing but neighbours", "a tensor of twice as many numbers"


def results(function, value):
    """Return the results of all draws as float64, or a text or not_yet where they are no such tensor."""
    for draws in (torch.arange(4, dtype=torch.int32), torch.arange(2**16, dtype=torch.int32)):  # a few, then all
        bits = torch.full(draws.shape, value, dtype=torch.int32 if isinstance(value, int) else torch.float32)
        found = function(bits.view(torch.float32), draws)
        if found is exercises.not_yet or found is None:
            return found
        if not isinstance(found, torch.Tensor) or found.dtype not in (torch.float32, torch.bfloat16):
            return f"{getattr(found, 'dtype', type(found).__name__)}, no tensor of float32"
        if found.shape == (2 * len(bits),):
            return DOUBLED
        if found.shape != bits.shape:
            return f"a tensor of the shape {tuple(found.shape)}, not of that of values, {tuple(bits.shape)}"
    return found.to(torch.float64)


# %%
def tally(function, value):
    """Return which values came out, from the smallest, and how often; NaN comes last."""
    found = results(function, value)
    if not isinstance(found, torch.Tensor):
        return found
    if not torch.equal(found.nan_to_num(nan=1e300), results(function, value).nan_to_num(nan=1e300)):
        return "another result for the same draws"
    kept, counts = found[~found.isnan()].unique(return_counts=True)
    if len(kept) > 3:
        return f"{len(kept):,} different values"
    none = found.isnan().sum().item()
    return [*map(list, zip(kept.tolist(), counts.tolist(), strict=True)), *([["NaN", none]] if none else [])]


def between(lower, upper):
    """Return a way to call the function that says whether anything but these two came out."""

    def strangers(function, value):
        found = results(function, value)
        if not isinstance(found, torch.Tensor):
            return found
        others = found[(found != lower) & (found != upper)]
        return f"also {others[0].item():.9g}, {len(others):,} times" if len(others) else NEIGHBOURS

    return strangers


# %%
low, high, only = 0.099609375, 0.10009765625, 2**16
bf16_largest = torch.finfo(torch.bfloat16).max
doubled = {DOUBLED: ".view(torch.float32) makes two numbers of an int64: bring it to int32 before"}
below = "For a number below 0, too, it is the neighbour further from zero that is near"
lost = "NaN has become an infinity: what makes it NaN may stand in the bits that are cut off. Treat NaN by itself"
bf16_mistakes = {  # what a common mistake gives, and what the checks say to it
    0.1: {
        ((low, only),): "That is the value cut off at its lower half: the draws decide nothing",
        ((high, only),): "That is rounding to nearest: the draws decide nothing",
        ((low, 52429), (high, 13107)): "The other way round: much was cut off, so the upper neighbour is near",
        ((low, 13106), (high, 52430)): "One draw too many goes up: they begin with 0, so 52,429 of them are below that",
        ((low, 13108), (high, 52428)): "One draw too few goes up: 52,429 of them must",
        ((low, 32768), (high, 32768)): "A fair coin does not know which neighbour is near: ask how much was cut off",
        "another result for the same draws": "Take no random numbers of your own: draws has one for each value",
    },
    -0.1: {((-high, 13107), (-low, 52429)): below, ((-high, 13106), (-low, 52430)): below},
    3.4e38: {
        ((bf16_largest, 13922), (math.inf, 51614)): "A coin has made an infinity of a finite number",
        ((math.inf, only),): "Rounding has made an infinity of a finite number: bf16's largest is the limit",
        ((3.4e38, only),): "bf16 does not hold that number",
    },
    0x7F800001: {((math.inf, only - 1), ("NaN", 1)): lost, ((math.inf, only),): lost},
}

# %% checks="stochastic_bf16" points=3
check = exercises.Checks("Exercise 2, stochastic_bf16", stochastic_bf16)
often, survives = "each neighbour as often as it is near", "NaN and the largest numbers survive"
stays = "what bf16 holds stays, and nothing but neighbours comes out"
for goal, value, expected in (
    (often, 0.1, [[low, 13107], [high, 52429]]),
    (often, -0.1, [[-high, 52429], [-low, 13107]]),
    (often, 1.998046875, [[1.9921875, 16384], [2.0, 49152]]),
    (survives, 3.4e38, [[bf16_largest, only]]),
    (survives, 0x7F800001, [["NaN", only]]),  # the bits of a NaN
):
    told = doubled | bf16_mistakes.get(value, {})
    check.returns(goal, (value,), expected=expected, mistakes=told, call=tally)
for value, lower, upper in ((1.0, 1.0, 1.0), (math.inf, math.inf, math.inf), (-0.1, -high, -low)):
    check.returns(stays, (value,), expected=NEIGHBOURS, mistakes=doubled, call=between(lower, upper))
check.report()
### BEGIN HIDDEN TESTS
import random
from fractions import Fraction

draw = random.Random(17002)


def value_of(bits):
    return torch.tensor([bits - 2**32 if bits >= 2**31 else bits], dtype=torch.int32).view(torch.float32).item()


def truth(value):
    """Return both neighbours and how often each must come, from where the value lies between them."""
    step = Fraction(numbers.FORMATS["bf16"].spacing(value).item())
    nearer = abs(Fraction(value)) // step * step
    further = round((abs(Fraction(value)) - nearer) / step * 2**16)
    sign = -1 if value < 0 else 1
    pairs = [[sign * float(nearer), 2**16 - further], [sign * float(nearer + step), further]]
    return sorted(pair for pair in pairs if pair[1])


asked = {often: [], stays: [], survives: []}
for sign in (0, 2**31):
    for exponent in (0, draw.randint(1, 120), draw.randint(121, 253)):
        upper = sign + exponent * 2**23 + draw.randint(1, 127) * 2**16
        value, held = value_of(upper + draw.randint(1, 2**16 - 1)), value_of(upper)
        asked[often].append((value, truth(value)))
        asked[stays] += [(value, truth(value)), (held, [[held, 0]])]
    value = value_of(sign + draw.randint(2, 250) * 2**23 + 127 * 2**16 + draw.randint(1, 2**16 - 1))
    asked[often].append((value, truth(value)))
    asked[stays] += [(held, [[held, 0]]) for held in (value_of(sign), value_of(sign + 255 * 2**23))]
    for cut in (draw.randint(1, 2**15), 2**16 - 1):
        asked[survives].append((value_of(sign + 0x7F7F0000 + cut), [[-bf16_largest if sign else bf16_largest, 2**16]]))
        asked[survives].append((0x7F800000 + cut - sign, [["NaN", 2**16]]))
    asked[survives].append((0x7FFFFFFF - sign, [["NaN", 2**16]]))


def all_of(function, values, ways):
    """Return what comes of each value, and as soon as one is no tensor, that."""
    found = []
    for value, way in zip(values, ways, strict=True):
        found.append(way(function, value))
        if found[-1] is exercises.not_yet or (isinstance(found[-1], str) and found[-1] != NEIGHBOURS):
            return found[-1]
    return found


for goal, cases in asked.items():
    values, outcomes = map(list, zip(*cases, strict=True))
    ways = [between(pair[0][0], pair[-1][0]) if goal == stays else tally for pair in outcomes]
    expected = [NEIGHBOURS] * len(values) if goal == stays else outcomes
    check.returns(
        goal, (values,), expected=expected, call=lambda function, values, ways=ways: all_of(function, values, ways)
    )
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: cut</summary>
#
# `bits & 0xFFFF` is the lower half, also for a negative number; `bits` without it is the neighbour nearer to zero.
#
# </details>
# <details><summary>Hint 2: one step further from zero</summary>
#
# The next number of bf16 is the next code: 2**16 more in the bits. That holds at a power of two and below 0 as well,
# because the sign is a bit of its own. Go there where the draw is less than what was cut off.
#
# </details>
# <details><summary>Hint 3: the rest</summary>
#
# `.clamp(-largest, largest)` brings back what went too far, and `torch.where(values.isfinite(), rounded, values)`
# leaves infinities and NaN alone. Multiply a mask by 2**16 as int32: with int64 `.view(torch.float32)` gives twice as
# many numbers.
#
# </details>


# %% wrong="stochastic_bf16" says="That is rounding to nearest" gets=1
def stochastic_bf16(values, draws):  # noqa: ARG001
    return values.to(torch.bfloat16).float()


# %% wrong="stochastic_bf16" says="cut off at its lower half" gets=1
def stochastic_bf16(values, draws):  # noqa: ARG001
    return (values.view(torch.int32) & -(2**16)).view(torch.float32)


# %% wrong="stochastic_bf16" says="what makes it NaN may stand in the bits" gets=2
def stochastic_bf16(values, draws):
    rounded = (values.view(torch.int32) + draws & -(2**16)).view(torch.float32)
    largest = torch.finfo(torch.bfloat16).max
    return torch.where(values.isfinite(), rounded.clamp(-largest, largest), rounded)


# %% wrong="stochastic_bf16" says="A coin has made an infinity" gets=2
def stochastic_bf16(values, draws):
    rounded = (values.view(torch.int32) + draws & -(2**16)).view(torch.float32)
    return torch.where(values.isnan(), values, rounded)


# %% wrong="stochastic_bf16" says="One draw too many goes up" gets=1
def stochastic_bf16(values, draws):
    bits = values.view(torch.int32)
    cut = bits & 0xFFFF
    largest = torch.finfo(torch.bfloat16).max
    rounded = (bits - cut + (draws <= cut).int() * 2**16).view(torch.float32).clamp(-largest, largest)
    return torch.where(values.isfinite(), rounded, values)


# %% wrong="stochastic_bf16" says="A fair coin does not know" gets=2
def stochastic_bf16(values, draws):
    bits = values.view(torch.int32)
    cut = bits & 0xFFFF
    largest = torch.finfo(torch.bfloat16).max
    up = ((draws < 2**15) & (cut > 0)).int() * 2**16
    return torch.where(values.isfinite(), (bits - cut + up).view(torch.float32).clamp(-largest, largest), values)


# %% wrong="stochastic_bf16" says="Take no random numbers of your own" gets=2
def stochastic_bf16(values, draws):
    bits = values.view(torch.int32)
    cut = bits & 0xFFFF
    largest = torch.finfo(torch.bfloat16).max
    up = (torch.randint(2**16, draws.shape) < cut).int() * 2**16
    return torch.where(values.isfinite(), (bits - cut + up).view(torch.float32).clamp(-largest, largest), values)


# %% wrong="stochastic_bf16" says="the neighbour further from zero that is near" gets=2
def stochastic_bf16(values, draws):
    bits = values.view(torch.int32)
    cut = bits & 0xFFFF
    largest = torch.finfo(torch.bfloat16).max
    up = torch.where(values < 0, draws >= cut, draws < cut) & (cut > 0)
    return torch.where(
        values.isfinite(), (bits - cut + up.int() * 2**16).view(torch.float32).clamp(-largest, largest), values
    )


# %% [markdown]
# ## Your coin at work
#
# A sum in bf16 to which 0.1 is added 4,096 times, 409.6 in all, in 2,000 runs with draws of their own. Rounding to
# nearest stops where 0.1 is less than half a step; by chance a single run ends beside 409.6, and their mean is close:

# %%
generator = torch.Generator().manual_seed(17)
nearest, by_chance = torch.zeros((), dtype=torch.bfloat16), torch.zeros(2000)
for _ in range(4096 if "stochastic_bf16" in dir() else 0):
    draws = torch.randint(2**16, (2000,), dtype=torch.int32, generator=generator)
    found = stochastic_bf16(by_chance + 0.1, draws)
    if not isinstance(found, torch.Tensor):
        break
    nearest, by_chance = nearest + 0.1, found.float()
if nearest:
    print(f"to nearest {nearest.item():g}; by chance {by_chance.min():g} to {by_chance.max():g}")
    print(f"their mean {by_chance.mean():.1f}, give or take {by_chance.std() / 2000**0.5:.1f}")
else:
    print("not yet")

# %% [markdown]
# ## Exercise 3: the product that saturates
#
# An instruction of many x86 processors multiplies bytes without a sign (activations) by bytes with one (weights),
# adds the products of two neighbours, and keeps that sum in 16 bits by [saturation](../glossary.md#saturation): what is
# beyond -32,768 to 32,767 becomes that bound. The sums of pairs are then added exactly:
#
# ```
#   place           0        1        2        3        4
#   activations    200      255       10       20        7
#   weights        127      100       -3        5       -9
#   products     25400    25500      -30      100      -63
#                   \      /           \      /          |
#   pairs            50900                70            -63     (the last one is alone)
#   in 16 bits       32767                70            -63     sum: 32774, and exact would be 50907
# ```
#
# | what | from | to |
# |---|--:|--:|
# | activations | 0 | 255 |
# | weights | -128 | 127 |
# | the sum of a pair | -32,768 | 32,767 |
#
# Write `saturated(activations, weights)`: `activations @ weights` as this processor computes it. Both are int64
# tensors, m x k and k x n; return an int64 tensor, m x n. `numbers.saturating_product` does it; the point is to write
# it.


# %% answer="saturated"
def saturated(activations, weights):
    """Return activations @ weights where the sum of each pair of products stays within 16 bits."""
    ### BEGIN SOLUTION
    odd = activations.shape[1] % 2
    activations = torch.nn.functional.pad(activations, (0, odd))
    weights = torch.nn.functional.pad(weights, (0, 0, 0, odd))
    products = activations[:, :, None] * weights
    return (products[:, 0::2] + products[:, 1::2]).clamp(-(2**15), 2**15 - 1).sum(1)
    ### END SOLUTION


# %%
def row_by_column(function, row, column):
    """Return the product of a row of activations with a column of weights."""
    return function(torch.tensor([row]), torch.tensor(column)[:, None])


exact, each = "That is the exact product: ", "Each pair is clamped by itself, before they are added"
saturated_mistakes = {  # what a common mistake gives, and what the checks say to it
    ((69000,),): exact + "the pair 25,400 + 25,500 does not fit into 16 bits",
    ((32767,),): each + "; the sum of all pairs is exact",
    ((3464,),): "That has overflowed, so it became negative; this instruction stops at the bound",
    ((58367,),): "A pair is places 0 and 1, 2 and 3: not those half of the length apart",
    ((-32567,),): "The lower bound of 16 bits is -32,768",
    ((-65080,),): "A pair stops at -32,768 as well",
    ((200,),): "A pair stops at -32,768, not at 0",
    ((32837,),): "The last product has no neighbour, and is added all the same",
    ((50907,),): exact + "a pair does not fit into 16 bits",
    ((64840, 23560), (32662, 820)): exact + "64,770 does not fit into 16 bits",
    ((32767, 23560), (32662, 820)): each,
}

# %% checks="saturated" points=3
check = exercises.Checks("Exercise 3, saturated", saturated)
pairs, odd, whole = "the sum of a pair stays in 16 bits", "an odd length: the last is alone", "whole matrices"
for goal, row, column, expected in (
    (pairs, [200, 255, 200, 20], [127, 100, 90, 5], 50867),
    (pairs, [255, 255, 100, 100], [-128, -128, 1, 1], -32568),
    (odd, [200, 255, 10, 20, 7], [127, 100, -3, 5, -9], 32774),
    (odd, [9], [-9], -81),
):
    told = saturated_mistakes
    check.returns(goal, (row, column), expected=[[expected]], mistakes=told, call=row_by_column)
left = torch.tensor([[255, 255, 1, 2], [255, 1, 3, 4]])
right = torch.tensor([[127, 2], [127, 90], [10, 20], [30, 40]])
check.returns(whole, (left, right), expected=[[32837, 23560], [32662, 820]], mistakes=saturated_mistakes)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(17003)


def activations_of(count):
    """Return activations of which two of three are large, the first two always."""
    some = [draw.randint(200, 255) if draw.random() < 0.67 else draw.randint(0, 60) for _ in range(count)]
    return [255, 250, *some[2:]]


def weights_of(count, lowest):
    """Return weights of which two of three are large and positive, the first two always."""
    some = [draw.randint(90, 127) if draw.random() < 0.67 else draw.randint(lowest, -1) for _ in range(count)]
    return [draw.randint(90, 127), 127, *some[2:]]


def by_hand(row, column):
    products = [a * b for a, b in zip(row, column, strict=True)]
    return sum(max(-32768, min(32767, sum(products[at : at + 2]))) for at in range(0, len(products), 2))


for _ in range(6):
    length = 2 * draw.randint(8, 20)
    for goal, count, lowest in ((pairs, length, -128), (odd, length + 1, -60)):
        row, column = activations_of(count), weights_of(count, lowest)
        check.returns(goal, (row, column), expected=[[by_hand(row, column)]], call=row_by_column)
    m, n = draw.sample(range(2, 7), 2)
    left = torch.tensor([activations_of(length) for _ in range(m)])
    right = torch.tensor([weights_of(length, -60) for _ in range(n)]).T
    check.returns(whole, (left, right), expected=numbers.saturating_product(left, right).tolist())
check.returns(pairs, ([255, 255], [-128, -128]), expected=[[-32768]], call=row_by_column)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# Which weights can never saturate? All activations may be the largest and all weights equal. Write
# `safe_weight(activation_bits, added, sum_bits)`: the largest whole number w so that no sum of `added` products of an
# activation (without a sign, of `activation_bits` bits) and a weight from -w to w leaves the range of `sum_bits` bits
# with a sign. A weight is a byte, so w is at most 127. The instruction above has `added = 2` and `sum_bits = 16`.


# %% answer="safe_weight"
def safe_weight(activation_bits, added, sum_bits):
    """Return the largest weight that never saturates: safe_weight(9, 2, 16) is 32."""
    ### BEGIN SOLUTION
    return min(127, (2 ** (sum_bits - 1) - 1) // (added * (2**activation_bits - 1)))
    ### END SOLUTION


# %% checks="safe_weight" points=2
check = exercises.Checks("Exercise 3, safe_weight", safe_weight)
two, others = "two products in 16 bits", "other sums"
told = {
    63: "8 bits without a sign reach 255, not 256",
    64.25098039215686: "A weight is a whole number: round down",
    128: "Two products are added before the clamp",
    127: "Two products are added before the clamp",
    65: "65 already saturates: 2 * 255 * 65 = 33,150",
}
check.returns(two, (8, 2, 16), expected=64, mistakes=told)
told = {129: "A weight is a byte with a sign: at most 127", 128: "A weight is a byte with a sign: at most 127"}
check.returns(two, (7, 2, 16), expected=127, mistakes=told)
told = {64: "Four products are added here, not two", 129: "Half of the range is below 0: 2**(sum_bits - 1) - 1"}
check.returns(others, (8, 4, 16), expected=32, mistakes=told)
check.returns(others, (8, 4, 17), expected=64)
check.returns(others, (4, 8, 14), expected=68, mistakes={136: "Half of the range is below 0: 2**(sum_bits - 1) - 1"})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(17103)


def truth(activation_bits, added, sum_bits):
    """Try the weights one by one."""
    most, bound = 2**activation_bits - 1, 2 ** (sum_bits - 1)
    return max(w for w in range(128) if added * most * w < bound and -added * most * w >= -bound)


for activation_bits in (5, 6, 9, 10, 11, 12):
    check.returns(two, (activation_bits, 2, 16), expected=truth(activation_bits, 2, 16))
for _ in range(12):
    asked = (draw.randint(4, 8), draw.randint(3, 9), draw.randint(14, 18))
    check.returns(others, asked, expected=truth(*asked))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: all products, then pairs</summary>
#
# `activations[:, :, None] * weights` has all products, m x k x n. `[:, 0::2]` and `[:, 1::2]` are the even and the odd
# places.
#
# </details>
# <details><summary>Hint 2: an odd length</summary>
#
# A product of zeros changes nothing: put a column of zeros behind the activations and a row of zeros below the weights,
# for example with `torch.nn.functional.pad`.
#
# </details>
# <details><summary>Hint 3: the safe weight</summary>
#
# The largest sum is `added * (2**activation_bits - 1) * w`, and the largest number with a sign `2**(sum_bits - 1) - 1`.
#
# </details>


# %% wrong="saturated" says="the pair 25,400 + 25,500 does not fit" gets=0
def saturated(activations, weights):
    return activations @ weights


# %% wrong="saturated" says="before they are added; the sum of all pairs is exact" gets=0
def saturated(activations, weights):
    return (activations @ weights).clamp(-(2**15), 2**15 - 1)


# %% wrong="saturated" says="this instruction stops at the bound" gets=0
def saturated(activations, weights):
    odd = activations.shape[1] % 2
    activations = torch.nn.functional.pad(activations, (0, odd))
    products = activations[:, :, None] * torch.nn.functional.pad(weights, (0, 0, 0, odd))
    return (products[:, 0::2] + products[:, 1::2]).to(torch.int16).sum(1)


# %% wrong="saturated" says="The lower bound of 16 bits is -32,768" gets=2
def saturated(activations, weights):
    odd = activations.shape[1] % 2
    activations = torch.nn.functional.pad(activations, (0, odd))
    products = activations[:, :, None] * torch.nn.functional.pad(weights, (0, 0, 0, odd))
    return (products[:, 0::2] + products[:, 1::2]).clamp(-(2**15) + 1, 2**15 - 1).sum(1)


# %% wrong="saturated" says="not those half of the length apart" gets=0
def saturated(activations, weights):
    odd = activations.shape[1] % 2
    activations = torch.nn.functional.pad(activations, (0, odd))
    products = activations[:, :, None] * torch.nn.functional.pad(weights, (0, 0, 0, odd))
    first, second = products.chunk(2, 1)
    return (first + second).clamp(-(2**15), 2**15 - 1).sum(1)


# %% wrong="saturated" says="The last product has no neighbour" gets=2
def saturated(activations, weights):
    even = activations.shape[1] // 2 * 2
    products = activations[:, :even, None] * weights[:even]
    return (products[:, 0::2] + products[:, 1::2]).clamp(-(2**15), 2**15 - 1).sum(1)


# %% wrong="safe_weight" says="8 bits without a sign reach 255" gets=0
def safe_weight(activation_bits, added, sum_bits):
    return min(127, (2 ** (sum_bits - 1) - 1) // (added * 2**activation_bits))


# %% wrong="safe_weight" says="A weight is a byte with a sign" gets=0
def safe_weight(activation_bits, added, sum_bits):
    return (2 ** (sum_bits - 1) - 1) // (added * (2**activation_bits - 1))


# %% wrong="safe_weight" says="Two products are added before the clamp" gets=0
def safe_weight(activation_bits, added, sum_bits):  # noqa: ARG001
    return min(127, (2 ** (sum_bits - 1) - 1) // (2**activation_bits - 1))


# %% wrong="safe_weight" says="Four products are added here" gets=1
def safe_weight(activation_bits, added, sum_bits):  # noqa: ARG001
    return min(127, (2 ** (sum_bits - 1) - 1) // (2 * (2**activation_bits - 1)))


# %% [markdown]
# ## Your product and the kernel's
#
# PyTorch's product of bytes, with all instructions of your processor, and once more without those after AVX2: of 5,120
# integers, how many are yours, and how many are exact?


# %%
def kernels(activations, weights):
    """Return PyTorch's product of bytes, or None where it has no kernel of FBGEMM."""
    import torch

    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return None
    torch.backends.quantized.engine = "fbgemm"
    columns = torch._make_per_tensor_quantized_tensor(weights.T.contiguous().to(torch.int8), 1.0, 0)
    packed = torch.ops.quantized.linear_prepack(columns, None)
    rows = activations.float()
    return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(rows, 1.0, 0, packed).long()


# %%
generator = torch.Generator().manual_seed(3)
left = torch.randint(0, 256, (64, 256), generator=generator)
right = torch.randint(-128, 128, (256, 80), generator=generator)
yours = saturated(left, right) if "saturated" in dir() else exercises.not_yet
equal, ways = {}, {"all": {}, "AVX2": {"FBGEMM_ENABLE_INSTRUCTIONS": "AVX2"}}
for name, variables in ways.items() if yours is not exercises.not_yet else ():
    found = run_limited(kernels, left, right, variables=variables).value
    if found is not None:
        equal[name] = [(found == torch.as_tensor(each)).sum().item() for each in (yours, left @ right)]
none = "not yet" if yours is exercises.not_yet else "PyTorch has no kernel of FBGEMM on this machine"
pd.DataFrame(equal, index=["equal to yours", "equal to the exact product"]) if equal else print(none)

# %% [markdown]
# ## Exercise 4: a format's thresholds
#
# | of e5m2: 5 bits of exponent, 2 of mantissa, bias 15, `top="ieee"` | |
# |---|--:|
# | the largest finite number | 57,344 |
# | the smallest normal number | 2^-14 |
# | the smallest subnormal number | 2^-16 |
# | where 1 + 1 + 1 + ... stops growing, each sum rounded to nearest, of two equally near ones to the even | 8 |
#
# Write `thresholds(exponent_bits, mantissa_bits, bias, top)`, with `top` as in exercise 1, and return these four as a
# list, in this order. The formats that we ask about have at least one bit of mantissa, and their largest number is
# large enough for the sum.


# %% answer="thresholds"
def thresholds(exponent_bits, mantissa_bits, bias, top):
    """Return four floats: thresholds(5, 2, 15, "ieee") is [57344.0, 2.0**-14, 2.0**-16, 8.0]."""
    ### BEGIN SOLUTION
    highest = 2**exponent_bits - 1 - (top == "ieee")
    mantissa = 2 ** (mantissa_bits + 1) - 1 - (top == "nan")
    largest = mantissa * 2.0 ** (highest - bias - mantissa_bits)
    return [largest, 2.0 ** (1 - bias), 2.0 ** (1 - bias - mantissa_bits), 2.0 ** (mantissa_bits + 1)]
    ### END SOLUTION


# %%
def threshold(place):
    """Return a way to call the function that looks at one of its four numbers."""

    def only(function, *about):
        found = function(*about)
        return found[place] if isinstance(found, list | tuple) and len(found) == 4 else found

    return only


taken = "no code is taken: the largest is that of all ones"
threshold_mistakes = {  # what a common mistake gives, and what the checks say to it
    (0, 480.0): "The largest mantissa of the largest exponent is NaN: the number below it is the largest",
    (0, 240.0): 'With top="nan" the largest exponent still holds numbers; one mantissa is taken',
    (0, 57344.0): "Subtract the bias",
    (0, 131008.0): 'With top="ieee" the largest exponent holds no numbers',
    (0, 32768.0): "The mantissa may be all ones",
    (0, 4.0): f'With top="numbers" {taken}',
    (0, 3.0): f'With top="numbers" {taken}',
    (1, 2.0**-7): "The exponent code 0 is that of the subnormal numbers: normal ones begin with 1",
    (2, 2.0**-10): "Subnormal numbers have the exponent of the smallest normal ones, 1 - bias",
    (2, 2.0**-6): "That is the smallest normal number: a subnormal one has no 1 before its mantissa",
    (2, 2.0**-7): "The lowest bit of the mantissa alone: 2**-mantissa_bits of the smallest normal number",
    (3, 8.0): "At 8 the step of this format is 1, so 8 + 1 = 9 is one of its numbers",
    (3, 17.0): "17 is not in this format: above 16 the step is 2",
    (3, 18.0): "17 lies in the middle between 16 and 18, and of these two 16 is the even one",
    (3, 32.0): "At 16 the step is 2 already: 17 lies in the middle, and goes back to the even 16",
}

# %% checks="thresholds" points=4
check = exercises.Checks("Exercise 4, thresholds", thresholds)
goals = ["the largest number", "the smallest normal number", "the smallest subnormal number", "where ones stop"]
for place, expected, *about in (
    (0, 448.0, 4, 3, 7, "nan"),
    (0, 65504.0, 5, 10, 15, "ieee"),
    (0, 6.0, 2, 1, 1, "numbers"),
    (1, 2.0**-6, 4, 3, 7, "nan"),
    (1, 2.0**5, 3, 2, -4, "ieee"),
    (2, 2.0**-9, 4, 3, 7, "nan"),
    (3, 16.0, 4, 3, 7, "nan"),
    (3, 256.0, 8, 7, 127, "ieee"),
):
    told = {found: why for (which, found), why in threshold_mistakes.items() if which == place}
    check.returns(goals[place], about, expected=expected, mistakes=told, call=threshold(place))
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(17004)


def ladder(exponent_bits, mantissa_bits, bias, top):
    """Return all numbers from 0 up, ascending, from step to step."""
    row, step, found = 2**mantissa_bits, 2.0 ** (1 - bias - mantissa_bits), [0.0]
    while len(found) < 2**exponent_bits * row:
        found.append(found[-1] + step)
        if len(found) % row == 1 % row and len(found) > 2 * row:
            step *= 2
    return found[: len(found) - {"numbers": 0, "nan": 1, "ieee": row}[top]]


def truth(*about):
    """Return the thresholds as one finds them among all numbers, adding ones until the sum stays."""
    found, row = ladder(*about), 2 ** about[1]
    total = 0
    while True:
        above = next(place for place, value in enumerate(found) if value > found[total])
        wanted = found[total] + 1
        while above + 1 < len(found) and found[above] < wanted:
            above += 1
        below = above - 1 if found[above] > wanted else above
        nearest = min((below, above), key=lambda place: (abs(found[place] - wanted), place % 2))
        if nearest == total:
            return [found[-1], found[row], found[1], found[total]]
        total = nearest


for top in ("numbers", "nan", "ieee") * 4:
    exponent_bits, mantissa_bits = draw.randint(4, 6), draw.randint(1, 5)
    bias = 2 ** (exponent_bits - 1) - 1 + draw.choice((-2, -1, 1))
    about = (exponent_bits, mantissa_bits, bias, top)
    if 2 ** (mantissa_bits + 2) > ladder(*about)[-1]:
        continue
    for place, (goal, expected) in enumerate(zip(goals, truth(*about), strict=True)):
        check.returns(goal, about, expected=expected, call=threshold(place))
for key in ("fp16", "bf16", "fp32"):
    of = numbers.FORMATS[key]
    expected = [of.largest, of.smallest_normal, of.smallest_subnormal, 2.0 ** (of.mantissa_bits + 1)]
    about = (of.exponent_bits, of.mantissa_bits, of.bias, "ieee")
    for place, goal in enumerate(goals):
        check.returns(goal, about, expected=expected[place], call=threshold(place))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# An update w - lr g is *lost* when it rounds to w again. Where that happens depends on w, and on the side to which it
# moves. Here are the numbers around 1 of a format with 2 bits of mantissa:
#
# ```
#   0.75      0.875       1                   1.25                1.5
#    |----------|---------|--------------------|-------------------|
#                    ^ 0.9375: the middle        ^ 1.375: the middle
# ```
#
# A result in the middle between two numbers goes to the one whose mantissa is even: 1.375 to 1.5, whose mantissa is
# 2 quarters, and not to 1.25 with 1 quarter. So w = 1.5 loses an update by 0.125, and w = 1.25 does not.
#
# Write `smallest_rate(weights, gradients, mantissa_bits, bias)`: the smallest *power of two* lr (1/4, 1/2, 1, 2, ...)
# with which no weight loses its update. `weights` and `gradients` are lists of equally many floats. The weights are
# numbers of the format, subnormal ones and 0 too, and not its largest; w - lr g is exact before it is rounded. Where
# the gradient is 0 there is no update to lose.


# %% answer="smallest_rate"
def smallest_rate(weights, gradients, mantissa_bits, bias):
    """Return the smallest power of two that loses no update: smallest_rate([1.5], [0.3], 3, 7) is 0.25."""
    ### BEGIN SOLUTION
    rates = []
    for weight, slope in zip(weights, gradients, strict=True):
        if slope == 0:
            continue
        exponent = max(math.frexp(weight)[1] - 1, 1 - bias) if weight else 1 - bias
        step = 2.0 ** (exponent - mantissa_bits)
        mantissa = int(abs(weight) / step)
        if weight * slope > 0 and mantissa == 2**mantissa_bits and exponent > 1 - bias:
            step /= 2  # below a power of two the numbers are twice as close
        needed, power = math.frexp(step / 2 / abs(slope))
        tie_is_enough = needed == 0.5 and mantissa % 2 == 1
        rates.append(2.0 ** (power - 1 if tie_is_enough else power))
    return max(rates)
    ### END SOLUTION


# %%
half = "Half a step is enough, because rounding goes to the nearest"
rate_mistakes = {  # what a common mistake gives, and what the checks say to it
    (12.0, 0.25): "With that the second weight loses its update, by 0.175 at a step of 1: no weight may",
    (
        12.0,
        0.5,
    ): "With that the second weight loses its update, by 0.35 at a step of 1: more than half a step is needed",
    (12.0, 2.0): half,
    (12.0, 0.5 / 0.7): "The rate is to be a power of two: take the next larger one",
    (1.0, 0.25): "The update leads from 1 towards 0, where the numbers are 1/16 apart, not 1/8",
    (-1.0, 0.125): "The update leads from -1 away from 0, where the numbers are 1/8 apart",
    (-2.0, 0.5): "The update leads from -2 towards 0, where the numbers are 1/8 apart, not 1/4",
    (1.5, 0.25): "At 0.25 the result lies in the middle, and goes back to 1.5, whose mantissa is even (4 eighths)",
    (1.625, 0.5): "At 0.25 the result lies in the middle, and leaves 1.625, whose mantissa is odd (5 eighths)",
    (2.0**-6, 2.0**-9): "The smallest normal number is a power of two, but the step below it is as large as above",
    (3 * 2.0**-9, 2.0**-9): "All subnormal numbers have one step, 2**(1 - bias - mantissa_bits)",
    (3 * 2.0**-9, 2.0**-10): "All subnormal numbers have one step, 2**(1 - bias - mantissa_bits)",
}

# %% checks="smallest_rate" points=4
check = exercises.Checks("Exercise 4, smallest_rate", smallest_rate)
every, closer = "every update counts", "below a power of two the numbers are closer"
even, small = "a tie goes to the even mantissa", "zeros and subnormal numbers"
for goal, weights, gradients, expected in (
    (every, [1.5, 12.0], [0.3, -0.7], 1.0),
    (every, [1.75], [0.3], 0.25),
    (closer, [1.0], [0.3], 0.125),
    (closer, [-1.0], [0.3], 0.25),
    (closer, [-2.0], [-0.3], 0.25),
    (even, [1.5], [0.25], 0.5),
    (even, [1.625], [0.25], 0.25),
    (small, [0.0], [0.3], 2.0**-8),
    (small, [1.5, 0.0], [0.0, 0.3], 2.0**-8),
    (small, [2.0**-6], [0.3], 2.0**-8),
    (small, [3 * 2.0**-9], [-0.3], 2.0**-8),
):
    told = {found: why for (weight, found), why in rate_mistakes.items() if weight == weights[-1]}
    check.returns(goal, (weights, gradients, 3, 7), expected=expected, mistakes=told)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(17104)


def ask(goal, key, weights, gradients):
    """Check one call against all rates from 2**-140 to 2**20, each with an update that is rounded."""
    of, rates = numbers.FORMATS[key], 2.0 ** torch.arange(-140, 21, dtype=torch.float64)
    before, slopes = (torch.tensor(each, dtype=torch.float64) for each in (weights, gradients))
    after = of.decode(of.encode(before - rates[:, None] * slopes))
    lost = ((after == before) & (slopes != 0)).any(1)
    expected = rates[(~lost).nonzero()[0]].item()
    check.returns(goal, (weights, gradients, of.mantissa_bits, of.bias), expected=expected)


def gradient():
    """Return a number with no power of two near, so that no update lies in the middle."""
    return draw.choice((-1, 1)) * draw.choice((3, 5, 7, 11, 13)) / draw.choice((32, 64, 128))


for key in ("e4m3", "e5m2", "bf16", "fp16") * 2:
    of = numbers.FORMATS[key]
    units = 2**of.mantissa_bits
    some = [
        draw.choice((-1, 1)) * (units + draw.randint(1, units - 1)) / units * 2.0 ** draw.randint(-3, 3)
        for _ in range(5)
    ]
    ask(every, key, some, [gradient() for _ in some])
    ask(closer, key, [draw.choice((-1, 1)) * 2.0 ** draw.randint(-4, 4)], [gradient()])
    powers = [2.0 ** draw.randint(-2, 2) for _ in range(2)]
    slopes = [abs(gradient()) for _ in powers]
    ask(closer, key, powers, slopes)
    ask(closer, key, powers, [-slope for slope in slopes])
    for mantissa in (draw.randrange(1, units, 2), 2 * draw.randint(1, units // 2 - 1)):
        weight = draw.choice((-1, 1)) * (1 + mantissa / units) * 2.0 ** draw.randint(-3, 3)
        ask(even, key, [weight], [draw.choice((-1, 1)) * 2.0 ** draw.randint(-6, 0)])
    tiny = of.smallest_subnormal
    ask(small, key, [0.0, draw.randint(2, units) * tiny], [gradient(), 0.0])
    ask(small, key, [draw.choice((-1, 1)) * draw.randint(1, units - 1) * tiny], [gradient()])
    ask(small, key, [of.smallest_normal], [abs(gradient())])
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: four thresholds from powers of two</summary>
#
# The largest exponent that holds numbers is $2^{e} - 1$ or one less, without the bias; its mantissa all ones, or for
# `"nan"` one less. From $2^{m}$ to $2^{m+1}$ the step is 1.
#
# </details>
# <details><summary>Hint 2: the step at a weight</summary>
#
# `math.frexp(w)[1] - 1` is the exponent of w, exactly; it is never less than `1 - bias`. The step is 2 to this
# exponent, over `2**mantissa_bits`. An update goes towards zero where w and g have the same sign.
#
# </details>
# <details><summary>Hint 3: the next power of two</summary>
#
# Half a step over abs(g) is what lr has to exceed. `fraction, power = math.frexp(x)` gives x = fraction * 2**power with
# a fraction from 1/2 to 1: at exactly 1/2 it is a tie. A tie loses the update where abs(w) is an even number of steps.
#
# </details>


# %% wrong="thresholds" says="the number below it is the largest" gets=3
def thresholds(exponent_bits, mantissa_bits, bias, top):
    highest = 2**exponent_bits - 1 - (top == "ieee")
    largest = (2 - 2.0**-mantissa_bits) * 2.0 ** (highest - bias)
    return [largest, 2.0 ** (1 - bias), 2.0 ** (1 - bias - mantissa_bits), 2.0 ** (mantissa_bits + 1)]


# %% wrong="thresholds" says="the largest exponent still holds numbers" gets=3
def thresholds(exponent_bits, mantissa_bits, bias, top):
    largest = (2 - 2.0**-mantissa_bits) * 2.0 ** (2**exponent_bits - 1 - (top != "numbers") - bias)
    return [largest, 2.0 ** (1 - bias), 2.0 ** (1 - bias - mantissa_bits), 2.0 ** (mantissa_bits + 1)]


# %% wrong="thresholds" says="normal ones begin with 1" gets=2
def thresholds(exponent_bits, mantissa_bits, bias, top):
    highest = 2**exponent_bits - 1 - (top == "ieee")
    largest = (2 - 2.0**-mantissa_bits * (2 if top == "nan" else 1)) * 2.0 ** (highest - bias)
    return [largest, 2.0**-bias, 2.0 ** (-bias - mantissa_bits), 2.0 ** (mantissa_bits + 1)]


# %% wrong="thresholds" says="At 8 the step of this format is 1" gets=3
def thresholds(exponent_bits, mantissa_bits, bias, top):
    highest = 2**exponent_bits - 1 - (top == "ieee")
    largest = (2 - 2.0**-mantissa_bits * (2 if top == "nan" else 1)) * 2.0 ** (highest - bias)
    return [largest, 2.0 ** (1 - bias), 2.0 ** (1 - bias - mantissa_bits), 2.0**mantissa_bits]


# %% wrong="smallest_rate" says="by 0.175 at a step of 1: no weight may" gets=2
def smallest_rate(weights, gradients, mantissa_bits, bias):
    rates = []
    for weight, slope in zip(weights, gradients, strict=True):
        if slope:
            exponent = max(math.frexp(weight)[1] - 1, 1 - bias) if weight else 1 - bias
            step = 2.0 ** (exponent - mantissa_bits)
            mantissa = int(abs(weight) / step)
            if mantissa == 2**mantissa_bits and exponent > 1 - bias and weight * slope > 0:
                step /= 2
            needed, power = math.frexp(step / 2 / abs(slope))
            rates.append(2.0 ** (power - 1 if needed == 0.5 and mantissa % 2 == 1 else power))
    return min(rates)


# %% wrong="smallest_rate" says="where the numbers are 1/16 apart, not 1/8" gets=3
def smallest_rate(weights, gradients, mantissa_bits, bias):
    rates = []
    for weight, slope in zip(weights, gradients, strict=True):
        if slope:
            exponent = max(math.frexp(weight)[1] - 1, 1 - bias) if weight else 1 - bias
            step = 2.0 ** (exponent - mantissa_bits)
            needed, power = math.frexp(step / 2 / abs(slope))
            rates.append(2.0 ** (power - 1 if needed == 0.5 and abs(weight) / step % 2 == 1 else power))
    return max(rates)


# %% wrong="smallest_rate" says="from -1 away from 0, where" gets=3
def smallest_rate(weights, gradients, mantissa_bits, bias):
    rates = []
    for weight, slope in zip(weights, gradients, strict=True):
        if slope:
            exponent = max(math.frexp(weight)[1] - 1, 1 - bias) if weight else 1 - bias
            step = 2.0 ** (exponent - mantissa_bits)
            mantissa = int(abs(weight) / step)
            if mantissa == 2**mantissa_bits and exponent > 1 - bias:
                step /= 2
            needed, power = math.frexp(step / 2 / abs(slope))
            rates.append(2.0 ** (power - 1 if needed == 0.5 and mantissa % 2 == 1 else power))
    return max(rates)


# %% wrong="smallest_rate" says="goes back to 1.5, whose mantissa is even" gets=3
def smallest_rate(weights, gradients, mantissa_bits, bias):
    rates = []
    for weight, slope in zip(weights, gradients, strict=True):
        if slope:
            exponent = max(math.frexp(weight)[1] - 1, 1 - bias) if weight else 1 - bias
            step = 2.0 ** (exponent - mantissa_bits)
            if abs(weight) == step * 2**mantissa_bits and exponent > 1 - bias and weight * slope > 0:
                step /= 2
            needed, power = math.frexp(step / 2 / abs(slope))
            rates.append(2.0 ** (power - 1 if needed == 0.5 else power))
    return max(rates)


# %% wrong="smallest_rate" says="Half a step is enough" gets=0
def smallest_rate(weights, gradients, mantissa_bits, bias):
    rates = []
    for weight, slope in zip(weights, gradients, strict=True):
        if slope:
            exponent = max(math.frexp(weight)[1] - 1, 1 - bias) if weight else 1 - bias
            step = 2.0 ** (exponent - mantissa_bits)
            if abs(weight) == step * 2**mantissa_bits and exponent > 1 - bias and weight * slope > 0:
                step /= 2
            needed, power = math.frexp(step / abs(slope))
            rates.append(2.0 ** (power - 1 if needed == 0.5 else power))
    return max(rates)


# %% wrong="smallest_rate" says="All subnormal numbers have one step" gets=3
def smallest_rate(weights, gradients, mantissa_bits, bias):
    rates = []
    for weight, slope in zip(weights, gradients, strict=True):
        if slope:
            exponent = math.frexp(weight)[1] - 1 if weight else 1 - bias
            step = 2.0 ** (exponent - mantissa_bits)
            mantissa = int(abs(weight) / step)
            if mantissa == 2**mantissa_bits and exponent > 1 - bias and weight * slope > 0:
                step /= 2
            needed, power = math.frexp(step / 2 / abs(slope))
            rates.append(2.0 ** (power - 1 if needed == 0.5 and mantissa % 2 == 1 else power))
    return max(rates)


# %% [markdown]
# ## Exercise 5: four bits in a byte
#
# Weights [quantised](../glossary.md#quantisation) to int4: whole numbers from -7 to 7, with one scale for every 32
# neighbours in a row. Two codes share a byte, each in two's complement, the even column in the lower half:
#
# ```
#   column      0      1        2      3        4
#   code        3     -2        7      0       -7
#   bits      0011   1110     0111   0000     1001
#   bytes      1110 0011       0000 0111       0000 1001      (no column 5: its half is 0)
#                 227              7               9
# ```
#
# | in each row | |
# |---|---|
# | a block | 32 values; the last block is shorter where 32 does not divide |
# | its scale | the largest magnitude in it, over 7, then rounded to fp16; 1 where all its values are 0 |
# | a code | the value over the scale *as stored*, in fp16, rounded to the nearest whole number, from -7 to 7 |
#
# Write `pack_blocks(matrix)` for a float32 matrix. Return three things: packed codes, a uint8 tensor of
# rows x half the columns (rounded up); the scales, a float16 tensor of rows x blocks; and how many bits a weight takes
# in all, codes, scales and empty halves together, over the number of weights.


# %% answer="pack_blocks"
def pack_blocks(matrix):
    """Return packed codes (uint8), scales (float16) and bits a weight, for a float32 matrix."""
    ### BEGIN SOLUTION
    columns = matrix.shape[1]
    blocks = torch.nn.functional.pad(matrix, (0, -columns % 32)).unflatten(1, (-1, 32))
    largest = blocks.abs().amax(2, keepdim=True)
    scales = torch.where(largest > 0, largest / 7, 1.0).to(torch.float16)
    codes = (blocks / scales.float()).round().clamp(-7, 7).to(torch.int64).flatten(1)[:, :columns]
    codes = torch.nn.functional.pad(codes, (0, columns % 2)) & 15
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    return packed, scales[:, :, 0], (8 * packed.numel() + 16 * scales.numel()) / matrix.numel()
    ### END SOLUTION


# %%
def packing(place, dtype=None):
    """Return a way to call the function that looks at one of its three results, which has this type."""

    def only(function, rows):
        found = function(torch.as_tensor(rows))
        if not isinstance(found, list | tuple) or len(found) != 3:
            return found
        if dtype and getattr(found[place], "dtype", None) != dtype:
            return f"{getattr(found[place], 'dtype', type(found[place]).__name__)}, not {dtype}"
        return found[place]

    return only


codes_of, scales_of, bits_of = packing(0, torch.uint8), packing(1, torch.float16), packing(2)

# %%
cover = "The bits of -7 above its four cover the other code: code & 15 cuts them off"
complement = "Codes are in two's complement: nothing is added to them"
own_scale = "That is one scale for the row: each block of 32 has its own"
full = "33 weights: the last block and the last byte are not full, and take as much as full ones"
pack_mistakes = {  # what a common mistake gives, and what the checks say to it
    ((62, 112),): "The even column belongs into the lower half of the byte, the odd one into the upper",
    ((227, 7, *[0] * 14),): "Four columns are two bytes: zeros that fill up the block do not belong into them",
    ((3, 254, 7, 0),): "Each code has a byte of its own: two belong into one",
    ((163, 7),): "-2 in two's complement is 1110: code & 15 gives it",
    ((107, 143),): complement,
    ((90, 126),): complement,
    ((57,), (64,)): "Each row has blocks of its own, and so scales of its own",
    ((249,), (113,)): cover,
    ((1.0,),): own_scale,
    (1.0,): own_scale,
    ((7.0, 0.875),): "The scale is the largest magnitude over 7, so that this one gets the code 7",
    ((0.875, 0.109375),): "Codes go from -7 to 7, so divide by 7 and not by 8",
    ((1.0, 0.0),): "A block of zeros has the scale 1: nothing can be divided by 0",
    ((103,),): "6.501 over 7.003 / 7 is less than 6.5, but the scale is stored as 1 in fp16: divide by that",
    4.0: "The scales take room as well: 16 bits for each block",
    8.5: "Two codes share a byte: 4 bits a weight",
    5.0: "A scale in fp16 has 16 bits, not 32",
    0.5625: "That is bytes a weight: a byte has 8 bits",
    144: "That is how many bits 32 weights take in all: divide by their number",
    4.484848484848485: full,
    4.5: full,
}

# %% checks="pack_blocks" points=5
check = exercises.Checks("Exercise 5, pack_blocks", pack_blocks)
halves, scaled = "two codes in each byte", "a scale for each 32 values"
stored, rest, counted = "codes belong to the scale as stored", "odd and short rows", "bits a weight, scales included"
for goal, rows, expected, call in (
    (halves, [[1.5, -1.0, 3.5, 0.0]], [[227, 7]], codes_of),
    (halves, [[-7.0, 3.0], [0.5, 3.5]], [[57], [113]], codes_of),
    (scaled, torch.tensor([[7.0] + [1.0] * 31 + [0.875] * 32]), [[1.0, 0.125]], scales_of),
    (scaled, torch.tensor([[-7.0] * 32 + [0.0] * 32]), [[1.0, 1.0]], scales_of),
    (stored, [[7.003, 6.501]], [[119]], codes_of),
    (rest, [[1.5, -1.0, 3.5, 0.0, -3.5]], [[227, 7, 9]], codes_of),
    (rest, torch.tensor([[7.0] * 32 + [0.5, -3.5]]), [[119] * 16 + [145]], codes_of),
    (counted, torch.ones(1, 32), 4.5, bits_of),
    (counted, torch.ones(1, 33), (17 * 8 + 2 * 16) / 33, bits_of),
):
    check.returns(goal, (rows,), expected=expected, mistakes=pack_mistakes, call=call)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(17005)


def row_of(codes, scales):
    """Return values whose codes and scales these are: up to 0.4 steps away from them, the largest exactly."""
    values = []
    for at, scale in zip(range(0, len(codes), 32), scales, strict=True):
        block = codes[at : at + 32]
        values += [scale * (code if abs(code) == 7 else code + draw.choice((-0.375, 0, 0.25))) for code in block]
    return values


def some(columns):
    """Return codes with a 7 or -7 in each block, and a scale for each that fp16 holds."""
    codes = [draw.randint(-6, 6) for _ in range(columns)]
    for at in range(0, columns, 32):
        codes[draw.randrange(at, min(at + 32, columns))] = draw.choice((-7, 7))
    return codes, [draw.randint(9, 90) / 2.0 ** draw.randint(3, 8) for _ in range(-(-columns // 32))]


def bytes_of(codes):
    digits = [f"{code % 16:x}" for code in codes] + ["0"] * (len(codes) % 2)
    return list(bytes.fromhex("".join(high + low for low, high in zip(digits[::2], digits[1::2], strict=True))))


for _ in range(4):
    given = [some(2 * draw.randint(2, 16)) for _ in range(2)]
    for codes, scales in given:
        check.returns(halves, ([row_of(codes, scales)],), expected=[bytes_of(codes)], call=codes_of)
    columns = 32 * draw.randint(2, 4)
    given = [some(columns) for _ in range(draw.randint(2, 4))]
    expected = [scales for _, scales in given]
    values = [row_of(*each) for each in given]
    gap = draw.randrange(columns // 32)
    values[0][32 * gap : 32 * gap + 32] = [0.0] * 32
    expected[0][gap] = 1.0
    check.returns(scaled, (values,), expected=expected, call=scales_of)
    for columns in (2 * draw.randint(1, 15) + 1, 32 * draw.randint(1, 3) + draw.randint(1, 31)):
        given = [some(columns) for _ in range(2)]
        rows = [row_of(*each) for each in given]
        check.returns(rest, (rows,), expected=[bytes_of(codes) for codes, _ in given], call=codes_of)
    scale = draw.randint(1030, 1600) / 1024  # fp16 holds it; a little more is rounded back to it
    code = draw.randint(3, 6)
    values = [7 * scale * (1 + 3e-4), scale * (code + 0.5) * (1 + 1e-4)]
    check.returns(stored, ([values],), expected=[bytes_of([7, code + 1])], call=codes_of)
    for columns in (draw.randint(40, 200), 32 * draw.randint(2, 6), 2 * draw.randint(2, 15)):
        rows = draw.randint(2, 5)
        expected = 8 * (-(-columns // 2) + 2 * -(-columns // 32)) / columns
        check.returns(counted, ([[1.0] * columns] * rows,), expected=expected, call=bits_of)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# The product with a vector works from the packed form alone. Write `packed_product(packed, scales, vector)` for what
# `pack_blocks` returned first and second, and a float32 vector with a number for each column. Return a float32 vector:
# for each row the sum of code times scale times the vector's number.


# %% answer="packed_product"
def packed_product(packed, scales, vector):
    """Return the product of the packed matrix with vector, a float32 tensor with a number for each row."""
    ### BEGIN SOLUTION
    codes = torch.stack([packed & 15, packed >> 4], 2).flatten(1)[:, : len(vector)].to(torch.int64)
    codes = torch.where(codes > 7, codes - 16, codes)
    weights = codes * scales.float().repeat_interleave(32, 1)[:, : len(vector)]
    return weights @ vector
    ### END SOLUTION


# %% checks="packed_product" points=3
check = exercises.Checks("Exercise 5, packed_product", packed_product)
halves, scaled, rest = "both halves, with their signs", "each block has its scale", "odd and short rows"


def product_of(function, packed, scales, vector):
    """Return the product of rows of bytes, with rows of scales, and a vector."""
    packed, scales = torch.as_tensor(packed, dtype=torch.uint8), torch.tensor(scales, dtype=torch.float16)
    return function(packed, scales, torch.as_tensor(vector))


told = {
    (3503.0,): "A code above 7 stands for a number below 0: 1110 is -2, not 14",
    (27503.0,): "uint8 has no numbers below 0: make the codes int64 before you take 16 off",
    (7298.0,): "The lower half is the even column, the upper half the odd one",
}
check.returns(
    halves, ([[227, 7]], [[1.0]], [1.0, 100.0, 300.0, 1000.0]), expected=[3.0 - 200 + 2100], mistakes=told,
    call=product_of,
)  # fmt: skip
check.returns(halves, ([[33], [151]], [[1.0], [2.0]], [1.0, 10.0]), expected=[21.0, -126.0], call=product_of)
told = {
    (96.0,): "Each block of 32 columns has its scale, one after the other in the row",
    (240.0,): "The first scale is that of the first 32 columns: repeat_interleave, not repeat",
}
ones, vector = torch.full((1, 32), 17), torch.tensor([1.0] * 32 + [2.0] * 32)  # 17 is 1 and 1
check.returns(scaled, (ones, [[1.0, 4.0]], vector), expected=[288.0], mistakes=told, call=product_of)
check.returns(rest, ([[35, 7, 5]], [[0.5]], [2.0, 1.0, 0.0, 5.0, 1.0]), expected=[6.5], call=product_of)
check.returns(rest, (ones[:, :17], [[1.0, 8.0]], torch.ones(33)), expected=[40.0], call=product_of)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(17105)


def bytes_of(codes):
    digits = [f"{code % 16:x}" for code in codes] + ["0"] * (len(codes) % 2)
    return list(bytes.fromhex("".join(high + low for low, high in zip(digits[::2], digits[1::2], strict=True))))


def ask(goal, rows, columns):
    """Check a matrix of small whole numbers and powers of two, whose product float32 holds in any order."""
    lowest = -7 if goal == halves else 0
    codes = [[draw.randint(lowest, 7) for _ in range(columns)] for _ in range(rows)]
    scales = [[2.0 ** draw.randint(-2, 3) for _ in range(-(-columns // 32))] for _ in range(rows)]
    vector = [float(draw.choice((-3, -2, -1, 1, 2, 3))) for _ in range(columns)]
    exact = [
        sum(code * line[at // 32] * vector[at] for at, code in enumerate(row))
        for row, line in zip(codes, scales, strict=True)
    ]
    check.returns(goal, ([bytes_of(row) for row in codes], scales, vector), expected=exact, call=product_of)


for _ in range(5):
    ask(halves, draw.randint(3, 5), 2 * draw.randint(4, 16))
    ask(scaled, draw.randint(3, 5), 32 * draw.randint(2, 5))
    ask(rest, draw.randint(3, 5), 2 * draw.randint(3, 15) + 1)
    ask(rest, draw.randint(3, 5), 32 * draw.randint(1, 3) + draw.randint(1, 31))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: blocks</summary>
#
# Fill the rows up with zeros to a multiple of 32 (`torch.nn.functional.pad(matrix, (0, -columns % 32))`), and make
# `.unflatten(1, (-1, 32))` of them: rows x blocks x 32. `.amax(2, keepdim=True)` is the largest of each block.
#
# </details>
# <details><summary>Hint 2: two in a byte</summary>
#
# Cut the codes to `columns` again, add a zero where that is odd, and as int64: `codes[:, 0::2] & 15` is the lower half,
# `(codes[:, 1::2] & 15) << 4` the upper one. `|` joins them.
#
# </details>
# <details><summary>Hint 3: out of the byte</summary>
#
# `packed & 15` and `packed >> 4`; `torch.stack([low, high], 2).flatten(1)` puts them next to each other. Then int64,
# and 16 less where a code is above 7. `scales.float().repeat_interleave(32, 1)` has a scale for each column.
#
# </details>


# %% wrong="pack_blocks" says="The even column belongs into the lower half" gets=2
def pack_blocks(matrix):
    columns = matrix.shape[1]
    blocks = torch.nn.functional.pad(matrix, (0, -columns % 32)).unflatten(1, (-1, 32))
    largest = blocks.abs().amax(2, keepdim=True)
    scales = torch.where(largest > 0, largest / 7, 1.0).to(torch.float16)
    codes = (blocks / scales.float()).round().clamp(-7, 7).to(torch.int64).flatten(1)[:, :columns]
    codes = torch.nn.functional.pad(codes, (0, columns % 2)) & 15
    packed = (codes[:, 0::2] << 4 | codes[:, 1::2]).to(torch.uint8)
    return packed, scales[:, :, 0], (8 * packed.numel() + 16 * scales.numel()) / matrix.numel()


# %% wrong="pack_blocks" says="above its four cover the other code" gets=3
def pack_blocks(matrix):
    columns = matrix.shape[1]
    blocks = torch.nn.functional.pad(matrix, (0, -columns % 32)).unflatten(1, (-1, 32))
    largest = blocks.abs().amax(2, keepdim=True)
    scales = torch.where(largest > 0, largest / 7, 1.0).to(torch.float16)
    codes = (blocks / scales.float()).round().clamp(-7, 7).to(torch.int64).flatten(1)[:, :columns]
    codes = torch.nn.functional.pad(codes, (0, columns % 2))
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    return packed, scales[:, :, 0], (8 * packed.numel() + 16 * scales.numel()) / matrix.numel()


# %% wrong="pack_blocks" says="That is one scale for the row" gets=2
def pack_blocks(matrix):
    columns = matrix.shape[1]
    largest = matrix.abs().amax(1, keepdim=True)
    scales = torch.where(largest > 0, largest / 7, 1.0).to(torch.float16)
    codes = (matrix / scales.float()).round().clamp(-7, 7).to(torch.int64)
    codes = torch.nn.functional.pad(codes, (0, columns % 2)) & 15
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    return packed, scales, (8 * packed.numel() + 16 * scales.numel()) / matrix.numel()


# %% wrong="pack_blocks" says="A block of zeros has the scale 1" gets=4
def pack_blocks(matrix):
    columns = matrix.shape[1]
    blocks = torch.nn.functional.pad(matrix, (0, -columns % 32)).unflatten(1, (-1, 32))
    scales = (blocks.abs().amax(2, keepdim=True) / 7).to(torch.float16)
    codes = (blocks / scales.float()).nan_to_num().round().clamp(-7, 7).to(torch.int64).flatten(1)[:, :columns]
    codes = torch.nn.functional.pad(codes, (0, columns % 2)) & 15
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    return packed, scales[:, :, 0], (8 * packed.numel() + 16 * scales.numel()) / matrix.numel()


# %% wrong="pack_blocks" says="but the scale is stored as 1 in fp16" gets=4
def pack_blocks(matrix):
    columns = matrix.shape[1]
    blocks = torch.nn.functional.pad(matrix, (0, -columns % 32)).unflatten(1, (-1, 32))
    largest = blocks.abs().amax(2, keepdim=True)
    scales = torch.where(largest > 0, largest / 7, 1.0)
    codes = (blocks / scales).round().to(torch.int64).flatten(1)[:, :columns]
    codes = torch.nn.functional.pad(codes, (0, columns % 2)) & 15
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    scales = scales.to(torch.float16)
    return packed, scales[:, :, 0], (8 * packed.numel() + 16 * scales.numel()) / matrix.numel()


# %% wrong="pack_blocks" says="The scales take room as well" gets=4
def pack_blocks(matrix):
    columns = matrix.shape[1]
    blocks = torch.nn.functional.pad(matrix, (0, -columns % 32)).unflatten(1, (-1, 32))
    largest = blocks.abs().amax(2, keepdim=True)
    scales = torch.where(largest > 0, largest / 7, 1.0).to(torch.float16)
    codes = (blocks / scales.float()).round().clamp(-7, 7).to(torch.int64).flatten(1)[:, :columns]
    codes = torch.nn.functional.pad(codes, (0, columns % 2)) & 15
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    return packed, scales[:, :, 0], 8 * packed.numel() / matrix.numel()


# %% wrong="pack_blocks" says="33 weights: the last block and the last byte" gets=4
def pack_blocks(matrix):
    columns = matrix.shape[1]
    blocks = torch.nn.functional.pad(matrix, (0, -columns % 32)).unflatten(1, (-1, 32))
    largest = blocks.abs().amax(2, keepdim=True)
    scales = torch.where(largest > 0, largest / 7, 1.0).to(torch.float16)
    codes = (blocks / scales.float()).round().clamp(-7, 7).to(torch.int64).flatten(1)[:, :columns]
    codes = torch.nn.functional.pad(codes, (0, columns % 2)) & 15
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8), scales[:, :, 0], 4.5


# %% wrong="packed_product" says="A code above 7 stands for a number below 0" gets=2
def packed_product(packed, scales, vector):
    codes = torch.stack([packed & 15, packed >> 4], 2).flatten(1)[:, : len(vector)]
    return codes * scales.float().repeat_interleave(32, 1)[:, : len(vector)] @ vector


# %% wrong="packed_product" says="uint8 has no numbers below 0" gets=2
def packed_product(packed, scales, vector):
    codes = torch.stack([packed & 15, packed >> 4], 2).flatten(1)[:, : len(vector)]
    codes = torch.where(codes > 7, codes - 16, codes)
    return codes * scales.float().repeat_interleave(32, 1)[:, : len(vector)] @ vector


# %% wrong="packed_product" says="The lower half is the even column" gets=0
def packed_product(packed, scales, vector):
    codes = torch.stack([packed >> 4, packed & 15], 2).flatten(1)[:, : len(vector)].to(torch.int64)
    codes = torch.where(codes > 7, codes - 16, codes)
    return codes * scales.float().repeat_interleave(32, 1)[:, : len(vector)] @ vector


# %% wrong="packed_product" says="Each block of 32 columns has its scale" gets=1
def packed_product(packed, scales, vector):
    codes = torch.stack([packed & 15, packed >> 4], 2).flatten(1)[:, : len(vector)].to(torch.int64)
    codes = torch.where(codes > 7, codes - 16, codes)
    return codes * scales[:, :1].float() @ vector


# %% [markdown]
# ## Your four bits at work
#
# A matrix of weights from a bell curve, packed by your function, and its product with a vector by your other one. A
# weight is off by at most half a scale, so a row's sum by at most the sum of half a scale times each number of the
# vector. How much of that bound do 256 rows use?

# %%
torch.manual_seed(5)
matrix, vector = 0.05 * torch.randn(256, 1000), torch.randn(1000)
made = pack_blocks(matrix) if "pack_blocks" in dir() else exercises.not_yet
product = packed_product(*made[:2], vector) if isinstance(made, list | tuple) else exercises.not_yet
if product is not exercises.not_yet:
    product = torch.as_tensor(product)
    widths = made[1].float().repeat_interleave(32, 1)[:, :1000]
    shares = (product - matrix @ vector).abs() / (widths / 2 @ vector.abs())
    most, mean = shares.max(), shares.mean()
    print(f"{made[2]:.3f} bits a weight; of the bound {most:.1%} at most, {mean:.1%} in the mean")
else:
    print("not yet")

# %% [markdown]
# The errors have both signs and mostly cancel, so a row of 1,000 stays far below its bound.
#
# ## Question 1: eight bits, or seven?
#
# A layer with activations from 0 to 1, all equally frequent, and weights from -1 to 1, also equally frequent, as
# PyTorch initialises a layer. Here is the error of its product, over the product's own size, on a processor that
# saturates as in exercise 3, and on one that adds exactly:

# %%
torch.manual_seed(7)
inputs, layer = torch.rand(64, 512), 2 * torch.rand(512, 128) - 1
right = inputs.double() @ layer.double()
found = {}
for activation_bits, weight_bits in ((8, 8), (7, 8), (8, 7), (7, 7)):
    activations, w = (inputs * (2**activation_bits - 1)).round().long(), numbers.quantise(layer, weight_bits)
    size = w.scale / (2**activation_bits - 1)
    products = [product(activations, w.integers) for product in (numbers.saturating_product, torch.matmul)]
    errors = [f"{((each * size - right).norm() / right.norm()).item():.2%}" for each in products]
    found[f"{activation_bits} and {weight_bits}"] = errors
pd.DataFrame(found, index=["saturating", "exact sums"]).T.rename_axis("bits of activations and weights")

# %% [markdown]
# Explain the two columns: where does an error come from in each, and why does each change with the bits as it does?
# What do you choose for a processor that saturates, and what for one that does not? Then think of a layer for which
# your choice would be the wrong one, or of a test that would not have shown the difference.
#
# Three to six sentences with numbers; a person reads them.

# %% [markdown] written="eight_or_seven" points=2
# A full answer says:
#
# - 1 point: with exact sums the error is that of rounding (0.4 %), larger with fewer bits, and more so for the weights,
#   whose codes have a sign and so half as many steps. Saturating, 8 and 8 bits have another error on top (8.4 % in
#   all): a pair may reach 2 x 255 x 127 = 64,770 and stops at 32,767. With 7 bits on either side it reaches 32,258
#   (2 x 127 x 127) or 32,130 (2 x 255 x 63) at most, so both columns agree. So: activations of 7 bits where it
#   saturates (0.51 %; the weights lose more, 0.82 %), 8 and 8 where it does not.
# - 1 point: a case in which the choice is wrong, with its reason: large products are rare (weights from a bell curve,
#   1.05 instead of 0.95 %; an outlier that sets the scale, so that the other codes are small), and 8 bits may be as
#   exact; or a test on small inputs, on such weights, or on another processor (VNNI, ARM), where nothing saturates.

# %% [markdown]
# ## Question 2: a format for a network of yours
#
# Take a network that you use or would like to use, with its number of weights. Choose a format for its weights where
# it is trained and one where it only answers, and say what each costs in bytes, scales included. Which values do you
# have to look at before you choose (the largest, the smallest, what an update changes), and by which thresholds of this
# notebook do you judge them? What would you run to see that the choice is good?
#
# Three to six sentences with your numbers; a person reads them.

# %% [markdown] written="own_format" points=2
# A full answer says:
#
# - 1 point: bytes of a named network in two formats, right, with what comes on top (a scale of 16 bits for 32 weights
#   of int4 makes 4.5 bits a weight; in training a float32 copy of the weights, or a coin for the last bit, and the
#   optimizer's state), and not for weights alone where activations or gradients decide.
# - 1 point: a threshold held against a value that was or would be measured: lr g against half the step at w (else the
#   update is lost), gradients against the smallest subnormal number (a loss scale), the largest activation against
#   the format's largest, outliers against a block's scale; and a check that could refute the choice, such as the
#   accuracy of both on the same held-out examples, with how large a difference chance makes.

# %% [markdown]
# ## What you have practised
#
# Reading a code bit by bit, rounding with a coin whose mean is right, computing the product that a saturating
# instruction gives, finding where a format loses a sum or an update, and keeping weights in four bits and a scale.
