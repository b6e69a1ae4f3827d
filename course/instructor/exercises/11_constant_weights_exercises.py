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
# # Constant weights: exercises
#
# Three functions to write, for [lesson 11](../11_constant_weights.ipynb). Each exercise has a picture or a table, a
# function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. The inputs of each are chosen so that a mistake about another goal does
# not touch it. Everything here is exact, and needs neither a GPU nor a compiler.

# %%
import struct

import pandas as pd

from helpers import exercises, plotting

# %% [markdown]
# ## Exercise 1: what feeds a multiply-add?
#
# The listing of a kernel, in NVIDIA's words. A line has an offset, perhaps a predicate (`@P0`, `@!P1`), an opcode,
# and operands, separated by commas; the first operand is where the result goes, the others are read.

# %%
lines = {
    "0110  LDG.E.CONSTANT R34, desc[UR4][R4.64]": "nothing",
    "02f0  MOV R38, 0x3e39cad1": "nothing",
    "06d0  FFMA R10, R37.reuse, 0.18100865185260772705, R10": "immediate",
    "06e0  @!P1 FFMA R9, R37, c[0x3][0x9c], R9": "constant bank",
    "0ba0  FFMA.FTZ R12, -R37, UR11, R12": "uniform register",
    "0a30  FFMA R69, R54, R18, R69": "register",
    "0a40  FFMA R46, R34, R13, 0.034500002861022949219": "immediate",
}
pd.DataFrame({"what feeds it": list(lines.values())}, index=list(lines))

# %% [markdown]
# Write `fed_by(line)`. For a line whose opcode is `FFMA`, with or without modifiers behind a point, return the first of
# these four that is among the operands that are *read*, wherever it stands among them:
#
# | returned | such an operand |
# |---|---|
# | `"immediate"` | a number: `0.5`, `-3.25e-05` |
# | `"constant bank"` | `c[0x3][0x9c]` |
# | `"uniform register"` | `UR11` |
# | `"register"` | `R37`, `-R37`, `R37.reuse`, `RZ`; what is left |
#
# For every other line return `"nothing"`.


# %% answer="fed_by"
def fed_by(line):
    """Return what feeds the multiply-add of a line: fed_by("06d0  FFMA R1, R2, 0.5, R1") is "immediate"."""
    ### BEGIN SOLUTION
    words = line.split()[1:]
    if words[0].startswith("@"):
        words = words[1:]
    if words[0].partition(".")[0] != "FFMA":
        return "nothing"
    read = [word.strip(" -|,") for word in " ".join(words[1:]).split(",")[1:]]
    if any(word[0].isdigit() for word in read):
        return "immediate"
    if any(word.startswith("c[") for word in read):
        return "constant bank"
    return "uniform register" if any(word.startswith("UR") for word in read) else "register"
    ### END SOLUTION


# %% checks="fed_by" points=3
check = exercises.Checks("Exercise 1, fed_by", fed_by)
four, place, others = "the four kinds are told apart", "wherever the operand stands", "other lines give nothing"
plain = {"register": "An operand that begins with UR is a uniform register, although it has an R in it"}
check.returns(four, ("0ba0  FFMA R12, R37, UR11, R12",), expected="uniform register", mistakes=plain)
check.returns(four, ("06e0  FFMA R9, R37, c[0x3][0x9c], R9",), expected="constant bank")
check.returns(four, ("06d0  FFMA R10, R37, -0.059303503483533859253, R10",), expected="immediate")
check.returns(four, ("0a30  FFMA R69, R54, R18, R69",), expected="register")
last = {"register": "Look at all operands that are read; here the last one, what is added, is a number"}
check.returns(place, ("0a40  FFMA R46, R34, R13, 0.034500002861022949219",), expected="immediate", mistakes=last)
moved = dict.fromkeys(("immediate", "register"), "That line has no multiply-add: its opcode is not FFMA")
check.returns(others, ("02f0  MOV R38, 0x3e39cad1",), expected="nothing", mistakes=moved)
added = dict.fromkeys(("immediate", "register"), "FADD adds and does not multiply; only FFMA counts")
check.returns(others, ("0300  FADD R38, R1, 0.5",), expected="nothing", mistakes=added)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(2011)
for _ in range(12):
    a, b, c = (draw.randint(0, 71) for _ in range(3))
    number, bank = round(draw.uniform(0.001, 2), 6), f"c[0x{draw.randint(2, 4)}][0x{draw.randint(16, 4000):x}]"
    start, sign = f"{draw.randint(256, 4095):04x}  ", draw.choice(("", "-"))
    fed = {"immediate": f"{sign}{number}", "constant bank": f"{sign}{bank}", "uniform register": f"UR{c}"}
    fed["register"] = f"{sign}R{c}"
    for kind, operand in fed.items():
        check.returns(four, (f"{start}FFMA R{a}, R{b}, {operand}, R{a}",), expected=kind)
    check.returns(place, (f"{start}FFMA R{a}, R{b}, R{c}, {sign}{number}",), expected="immediate")
    check.returns(place, (f"{start}FFMA R{a}, R{b}, R{c}, {bank}",), expected="constant bank")
    line = f"{start}@P{draw.randint(0, 6)} FFMA.FTZ R{a}, R{b}, {sign}{number}, R{a}"
    check.returns(others, (line,), expected="immediate")
    kind = draw.choice(("FADD", "FMUL", "MOV", "IADD3", "FSETP.GT.AND"))
    check.returns(others, (f"{start}{kind} R{a}, R{b}, {number}",), expected="nothing")
    check.returns(others, (f"{start}LDG.E.CONSTANT R{a}, desc[UR4][R4.64+0x{c:x}]",), expected="nothing")
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: take the line apart</summary>
#
# `line.split()` gives the words. The first is the offset; a word that begins with `@` is a predicate; the opcode comes
# next.
#
# </details>
# <details><summary>Hint 2: modifiers</summary>
#
# `"FFMA.FTZ".partition(".")[0]` is `"FFMA"`.
#
# </details>
# <details><summary>Hint 3: the operands</summary>
#
# Join what is left of the words, split it at commas, and drop the first. A leading minus does not change what an
# operand is: `operand.strip(" -")`. Then ask in the order of the table whether `any` operand is of the kind.
#
# </details>


# %% wrong="fed_by" says="here the last one, what is added, is a number" gets=2
def fed_by(line):
    if "FFMA" not in line:
        return "nothing"
    weight = line.split(",")[2].strip(" -")
    if weight.startswith("UR"):
        return "uniform register"
    return "constant bank" if weight[0] == "c" else "register" if weight[0] == "R" else "immediate"


# %% wrong="fed_by" says="An operand that begins with UR is a uniform register" gets=2
def fed_by(line):
    if "FFMA" not in line:
        return "nothing"
    read = [operand.strip(" -") for operand in line.split(",")[1:]]
    if any(operand[0].isdigit() for operand in read):
        return "immediate"
    return "constant bank" if any("c[" in operand for operand in read) else "register"


# %% wrong="fed_by" says="its opcode is not FFMA" gets=2
def fed_by(line):
    read = [operand.strip(" -") for operand in line.split(",")[1:]]
    if any(operand[0].isdigit() for operand in read):
        return "immediate"
    if any("c[" in operand for operand in read):
        return "constant bank"
    return "uniform register" if any(operand.startswith("UR") for operand in read) else "register"


# %% [markdown]
# ## Exercise 2: how wide may the network be?
#
# A network of `inputs` numbers, two layers of $w$ units and one output stands in a program as straight-line code. Each
# weight takes `weight_bytes` bytes of code; what the rest takes is left out. The picture shows how the code of a
# network with 23 inputs grows, at 16 bytes a weight.

# %%
code = {f"w = {width}": 16 * (23 * width + width * width + width) for width in (8, 16, 32, 64)}
drawn = plotting.draw_bars(code, unit="B", title="Code of a network 23, w, w, 1")
plotting.show(drawn, alt="Four bars: the code takes 4.1 kB at width 8, 10.2 kB at 16, 28.7 kB at 32 and 90.1 kB at 64.")

# %% [markdown]
# Write `widest(inputs, cache_bytes, weight_bytes)`: the largest $w$ for which the code takes no more than
# `cache_bytes`, or 0 where not even $w = 1$ fits. All numbers are whole, and so is the answer. Biases are not counted.


# %% answer="widest"
def widest(inputs, cache_bytes, weight_bytes):
    """Return the largest width whose code fits: widest(23, 32768, 16) is 34."""
    ### BEGIN SOLUTION
    width = 0
    while weight_bytes * (width + 1) * (inputs + (width + 1) + 1) <= cache_bytes:
        width += 1
    return width
    ### END SOLUTION


# %% checks="widest" points=3
check = exercises.Checks("Exercise 2, widest", widest)
all_layers, limit, none = "all three layers count", "code that just fits does fit", "0 where nothing fits"
forgotten = {
    8: "At w = 9 the code takes 117 bytes, which fits; biases are not counted",
    10: "At w = 10 it is 140 bytes, with the w weights of the last layer, and there are 131",
    14: "That leaves out the layer from w to w",
}
check.returns(all_layers, (3, 131, 1), expected=9, mistakes=forgotten)
around = {
    9: "At w = 10 the code takes exactly the cache's bytes, and that fits",
    11: "At w = 11 the code takes more bytes than there are; the answer is the last width that fits",
}
check.returns(limit, (23, 16 * 10 * 34, 16), expected=10, mistakes=around)
negative = {1: "Even w = 1 takes more than that", -1: "There is no network of negative width; return 0"}
check.returns(none, (23, 100, 16), expected=0, mistakes=negative)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(2017)
for _ in range(8):
    inputs, width, weight_bytes = draw.randint(2, 90), draw.randint(12, 200), draw.randint(2, 40)
    short = weight_bytes * ((width + 1) * (inputs + width + 1) + 1)  # the next width, without its last layer
    check.returns(all_layers, (inputs, short, weight_bytes), expected=width)
    exact = weight_bytes * width * (inputs + width + 1)
    check.returns(limit, (inputs, exact, weight_bytes), expected=width)
    check.returns(none, (inputs, weight_bytes * (inputs + 2) + 1, weight_bytes), expected=1)
    check.returns(none, (inputs, draw.randint(1, weight_bytes * inputs // 2), weight_bytes), expected=0)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: count the weights</summary>
#
# A dense layer has inputs times outputs weights. Here they are `inputs * w`, `w * w` and `w * 1`.
#
# </details>
# <details><summary>Hint 2: no formula needed</summary>
#
# Start with `w = 0` and try whether `w + 1` fits, as long as it does.
#
# </details>
# <details><summary>Hint 3: the comparison</summary>
#
# "No more than" is `<=`.
#
# </details>


# %% wrong="widest" says="with the w weights of the last layer" gets=2
def widest(inputs, cache_bytes, weight_bytes):
    width = 0
    while weight_bytes * (width + 1) * (inputs + width + 1) <= cache_bytes:
        width += 1
    return width


# %% wrong="widest" says="the answer is the last width that fits" gets=0
def widest(inputs, cache_bytes, weight_bytes):
    width = 0
    while weight_bytes * width * (inputs + width + 1) <= cache_bytes:
        width += 1
    return width


# %% wrong="widest" says="biases are not counted" gets=0
def widest(inputs, cache_bytes, weight_bytes):
    width = 0
    while weight_bytes * ((width + 1) * (inputs + width + 4) + 1) <= cache_bytes:
        width += 1
    return width


# %% wrong="widest" says="and that fits" gets=2
def widest(inputs, cache_bytes, weight_bytes):
    width = 0
    while weight_bytes * (width + 1) * (inputs + width + 2) < cache_bytes:
        width += 1
    return width


# %% wrong="widest" says="Even w = 1 takes more than that" gets=2
def widest(inputs, cache_bytes, weight_bytes):
    width = 1
    while weight_bytes * (width + 1) * (inputs + width + 2) <= cache_bytes:
        width += 1
    return width


# %% [markdown]
# ## Exercise 3: the file of the story
#
# The story's draft read its weights from a binary file. For each layer, one after the other:
#
# | bytes | what | type |
# |--:|---|---|
# | 4 | the layer's number, from 1 | u32 |
# | 4 | inputs | u32 |
# | 4 | outputs | u32 |
# | 4 x outputs | the biases | float32 |
# | 4 x inputs x outputs | the weights: for each input a row with a number for each output | float32 |
#
# All of it is little-endian, so that `struct.unpack("<3I", ...)` reads three u32 from 12 bytes and
# `struct.unpack("<5f", ...)` five float32 from 20. Here is a file with two layers:


# %%
def write_layers(layers):
    """Return the bytes of a file. A layer is a list of biases and a list of rows, one an input."""
    parts = []
    for number, (biases, rows) in enumerate(layers, start=1):
        parts.append(struct.pack("<3I", number, len(rows), len(biases)))
        parts += [struct.pack(f"<{len(row)}f", *row) for row in (biases, *rows)]
    return b"".join(parts)


two_layers = [([0.5, -1.0, 2.0], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), ([0.25], [[7.0], [8.0], [9.0]])]
content = write_layers(two_layers)
print(f"{len(content)} bytes; the first 12: {struct.unpack('<3I', content[:12])}")

# %% [markdown]
# Write `read_layers(content)`. Return a list with a pair for each layer, its biases and its rows of weights, as
# `write_layers` takes them. Return the text `"damaged"` for what is no such file: where it ends within a layer, or
# where a layer does not have the number that it should have. An empty file has no layers: return an empty list.


# %% answer="read_layers"
def read_layers(content):
    """Return the layers in `content`, each as (biases, rows), or "damaged" where it is no whole file of layers."""
    ### BEGIN SOLUTION
    layers, begin = [], 0
    while begin < len(content):
        if len(content) - begin < 12:
            return "damaged"
        number, inputs, outputs = struct.unpack_from("<3I", content, begin)
        count = outputs * (inputs + 1)
        if number != len(layers) + 1 or len(content) - begin - 12 < 4 * count:
            return "damaged"
        values = list(struct.unpack_from(f"<{count}f", content, begin + 12))
        rows = [values[start : start + outputs] for start in range(outputs, count, outputs)]
        layers.append((values[:outputs], rows))
        begin += 12 + 4 * count
    return layers
    ### END SOLUTION


# %% checks="read_layers" points=3
check = exercises.Checks("Exercise 3, read_layers", read_layers)
order, rows, whole = "biases come before weights", "a row an input", "what is no whole file is told"
first_weights = {(((0.25,), ((0.5,),)),): "That takes the weights first; in the file the biases come first"}
check.returns(order, (write_layers([([0.5], [[0.25]])]),), expected=[([0.5], [[0.25]])], mistakes=first_weights)
flat = [([1.0, 2.0, 3.0], [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])]
turned = {
    (((1.0, 2.0, 3.0), ((1.0, 2.0), (3.0, 1.0), (2.0, 3.0))),): "That has a row for each output, as nn.Linear has"
}
check.returns(rows, (write_layers(flat),), expected=flat, mistakes=turned)
units = [([1.0], [[1.0]]), ([2.0], [[2.0]])]
one_unit = write_layers(units)
partly = {(((1.0,), ((1.0,),)),): "The second layer is cut off, so the file is not whole"}
check.returns(whole, (one_unit[:-3],), expected="damaged", mistakes=partly)
renumbered = one_unit[:20] + struct.pack("<I", 3) + one_unit[24:]
believed = {(((1.0,), ((1.0,),)), ((2.0,), ((2.0,),))): "After layer 1 comes layer 3 in this file"}
check.returns(whole, (renumbered,), expected="damaged", mistakes=believed)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(2027)
for _ in range(6):
    count = draw.randint(2, 5)
    small = [([draw.randint(-99, 0) / 8], [[draw.randint(1, 99) / 8]]) for _ in range(count)]
    check.returns(order, (write_layers(small),), expected=small)
    inputs, outputs = draw.sample(range(2, 7), 2)
    row = [draw.randint(-99, 99) / 16 for _ in range(outputs)]
    wide = [(row, [row] * inputs)]
    check.returns(rows, (write_layers(wide),), expected=wide)
    same = write_layers([([value], [[value]]) for value in range(1, count + 1)])
    check.returns(whole, (same,), expected=[([float(value)], [[float(value)]]) for value in range(1, count + 1)])
    check.returns(whole, (same[: -draw.randint(1, 19)],), expected="damaged")
    place = 20 * draw.randrange(1, count)
    check.returns(
        whole, (same[:place] + struct.pack("<I", draw.randint(7, 99)) + same[place + 4 :],), expected="damaged"
    )
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: a place that moves</summary>
#
# Keep in a variable where the next layer begins, and go on while that is within the content.
# `struct.unpack_from(format, content, place)` reads from there.
#
# </details>
# <details><summary>Hint 2: how much there must be</summary>
#
# A layer has 12 bytes, and then 4 for each of `outputs + inputs * outputs` numbers. Compare that with what is left
# before you read it.
#
# </details>
# <details><summary>Hint 3: rows</summary>
#
# After the biases, row i is the next `outputs` numbers: slice the list in steps of `outputs`.
#
# </details>


# %% wrong="read_layers" says="in the file the biases come first" gets=2
def read_layers(content):
    layers, begin = [], 0
    while begin < len(content):
        if len(content) - begin < 12:
            return "damaged"
        number, inputs, outputs = struct.unpack_from("<3I", content, begin)
        begin += 12
        if number != len(layers) + 1 or len(content) - begin < 4 * outputs * (inputs + 1):
            return "damaged"
        rows = []
        for _ in range(inputs):
            rows.append(struct.unpack_from(f"<{outputs}f", content, begin))
            begin += 4 * outputs
        layers.append((struct.unpack_from(f"<{outputs}f", content, begin), rows))
        begin += 4 * outputs
    return layers


# %% wrong="read_layers" says="That has a row for each output, as nn.Linear has" gets=2
def read_layers(content):
    layers, begin = [], 0
    while begin < len(content):
        if len(content) - begin < 12:
            return "damaged"
        number, inputs, outputs = struct.unpack_from("<3I", content, begin)
        begin += 12
        if number != len(layers) + 1 or len(content) - begin < 4 * outputs * (inputs + 1):
            return "damaged"
        biases = struct.unpack_from(f"<{outputs}f", content, begin)
        begin += 4 * outputs
        matrix = []
        for _ in range(outputs):
            matrix.append(struct.unpack_from(f"<{inputs}f", content, begin))
            begin += 4 * inputs
        layers.append((biases, matrix))
    return layers


# %% wrong="read_layers" says="After layer 1 comes layer 3 in this file" gets=2
def read_layers(content):
    layers, begin = [], 0
    while begin < len(content):
        if len(content) - begin < 12:
            return "damaged"
        _, inputs, outputs = struct.unpack_from("<3I", content, begin)
        begin += 12
        if len(content) - begin < 4 * outputs * (inputs + 1):
            return "damaged"
        numbers = []
        for _ in range(inputs + 1):
            numbers.append(struct.unpack_from(f"<{outputs}f", content, begin))
            begin += 4 * outputs
        layers.append((numbers[0], numbers[1:]))
    return layers


# %% [markdown]
# ## Question 1: is it free?
#
# A colleague says: "Put small tables into `__constant__` memory, reading them is free." Say for which of the GPUs in
# the lesson's tables such a read takes no instruction of its own and for which it does, what you would look at in the
# machine code of a new GPU, and why neither the census nor a measurement of time is enough by itself.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="constant_memory" points=2
# A full answer says:
#
# - 1 point: no instruction of its own up to sm_80, where the multiply-add has an operand in the constant bank; on sm_90
#   each weight takes a load (ULDC) into a uniform register first. To find out: disassemble, and look at what feeds the
#   multiply-adds, or count loads against multiply-adds.
# - 1 point: no instruction is not no time (the operand comes through a small cache; the story's author measured
#   `const` as faster than `__constant__`), so the census needs a clock; and a time has several causes (memory, cache,
#   registers, instructions), so the clock needs the census.

# %% [markdown]
# ## Question 2: would you compile at start-up?
#
# Name one program for which you would generate and compile code from a file of weights when it starts, and one for
# which you would not, and give the reason for each from what the lesson counted or measured.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="compile_at_start" points=2
# A full answer says:
#
# - 1 point: a small network that is evaluated very often with weights that stay as they are for long (a trigger, a
#   filter in an audio program): the compiler's seconds are paid once, and the saved loads or calls each time.
# - 1 point: a program in which that does not hold: weights that change often, few evaluations, layers so large that the
#   code leaves the instruction cache or takes minutes to compile, a machine without a compiler; or a CPU, when only the
#   constness is hoped for.
