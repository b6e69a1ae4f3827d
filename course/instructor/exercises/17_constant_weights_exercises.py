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
# Three functions to write, for [lesson 17](../17_constant_weights.ipynb): a compiler's eye for constants, what loads
# bring, and a new training put into a program that is compiled already. Each exercise has a table, a function that
# returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay folded until you
# open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Each goal has inputs of its own, so that you can reach it while you are
# still wrong about another. Everything here is exact, and needs neither a GPU nor a compiler.

# %%
import struct

import pandas as pd

from helpers import exercises

# %% [markdown]
# ## Exercise 1: what does a compiler leave?
#
# A program is a list of steps. Each step has a name, an operation (`"+"` or `"*"`) and two operands: a number, the name
# of an input, or the name of a step before it. What the last step computes is the output.

# %%
program = [
    ("a", "*", 2, 3),
    ("b", "*", "x", "a"),
    ("c", "*", "y", 0),
    ("d", "*", "b", "y"),
    ("e", "+", "b", "c"),
    ("f", "+", "e", "z"),
]
why = ["6, known before it runs", "stays: x * 6", "0, whatever y is", "nobody reads it", "b + 0 is b", "stays: b + z"]
pd.DataFrame({"step": [f"{n} = {a} {op} {b}" for n, op, a, b in program], "the compiler": why})

# %% [markdown]
# Write `remaining(steps)`: the names of the steps that a compiler leaves, in their order; `["b", "f"]` for the program
# above. Three rules, and as often as they apply:
#
# - A step of two numbers is a number.
# - `* 0` is 0, `* 1` and `+ 0` are the other operand, on either side. (For floats that are infinite or not a number the
#   first is not true, and a compiler needs permission. Here it has it.)
# - A step that nobody reads, on the way to the output, goes.


# %% answer="remaining"
def remaining(steps):
    """Return the names of the steps that are left: remaining([("a", "*", "x", 1), ("b", "+", "a", "y")]) is ["b"]."""
    ### BEGIN SOLUTION
    known, left = {}, []
    for name, operation, *operands in steps:
        a, b = (known.get(operand, operand) for operand in operands)
        neutral = 1 if operation == "*" else 0
        if not isinstance(a, str) and not isinstance(b, str):
            known[name] = a * b if operation == "*" else a + b
        elif operation == "*" and 0 in (a, b):
            known[name] = 0
        elif neutral in (a, b):
            known[name] = b if a == neutral else a
        else:
            left.append((name, a, b))
    read, kept = {known.get(steps[-1][0], steps[-1][0])}, []
    for name, a, b in reversed(left):
        if name in read:
            kept.append(name)
            read |= {a, b}
    return kept[::-1]
    ### END SOLUTION


# %% checks="remaining" points=3
check = exercises.Checks("Exercise 1, remaining", remaining)
numbers, simple, dead = "numbers are computed", "0 and 1 are simplified", "what nobody reads goes"
early = {("a", "c", "b"): "a is 6 before the program runs, so it is no step", ("c", "b"): "a is 6, so c is 7"}
check.returns(numbers, ([("a", "*", 2, 3), ("c", "+", "a", 1), ("b", "+", "x", "c")],), expected=["b"], mistakes=early)
zero = {("b",): "a is 0, and y + 0 is y: no step is left", ("a", "b"): "x * 0 is 0", ("a",): "x * 0 is 0"}
check.returns(simple, ([("a", "*", "x", 0), ("b", "+", "y", "a")],), expected=[], mistakes=zero)
one = {("a", "b"): "1 * x is x, so a is no step"}
check.returns(simple, ([("a", "*", 1, "x"), ("b", "*", "a", "y")],), expected=["b"], mistakes=one)
chain = {("a", "c", "b"): "c is not on the way to b", ("a", "b"): "Only c reads a, and c goes: look from the end"}
steps = [("a", "*", "x", "y"), ("c", "+", "a", "x"), ("b", "+", "x", "y")]
check.returns(dead, (steps,), expected=["b"], mistakes=chain)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(2011)
for _ in range(6):
    p, q, r = draw.sample(range(2, 90), 3)
    first, second, third, last = (f"{letter}{draw.randint(1, 99)}" for letter in "stuv")
    folded = [(first, "+", p, q), (second, "*", first, r), (third, "*", second, first), (last, "+", "x", third)]
    check.returns(numbers, (folded,), expected=[last])
    check.returns(simple, ([(first, "*", 0, "x"), (last, "+", first, "y")],), expected=[])
    check.returns(simple, ([(first, "+", "x", 0), (last, "*", first, "y")],), expected=[last])
    check.returns(simple, ([(first, "*", "x", "y"), (last, "*", first, 1)],), expected=[first])
    unread = [(first, "*", "x", p), (second, "+", first, q), (third, "*", second, first), (last, "+", "x", "y")]
    check.returns(dead, (unread,), expected=[last])
    check.returns(dead, ([*unread[:3], (last, "+", first, "y")],), expected=[first, last])
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what a name stands for</summary>
#
# Keep a dictionary from the name of a step that is gone to what stands for it: a number, or another name. Look both
# operands up before you decide about a step.
#
# </details>
# <details><summary>Hint 2: who is read</summary>
#
# Keep the other steps in a list. In the end go through it backwards with a set of names that are read. It begins with
# the output alone.
#
# </details>
# <details><summary>Hint 3: the output may be gone</summary>
#
# Where the last step is `a * 1`, the output is `a`: look the last name up as well.
#
# </details>


# %% wrong="remaining" says="look from the end" gets=2
def remaining(steps):
    known, left = {}, []
    for name, operation, *operands in steps:
        a, b = (known.get(operand, operand) for operand in operands)
        neutral = 1 if operation == "*" else 0
        if not isinstance(a, str) and not isinstance(b, str):
            known[name] = a * b if operation == "*" else a + b
        elif operation == "*" and 0 in (a, b):
            known[name] = 0
        elif neutral in (a, b):
            known[name] = b if a == neutral else a
        else:
            left.append((name, a, b))
    read = {operand for _, a, b in left for operand in (a, b)} | {known.get(steps[-1][0], steps[-1][0])}
    return [name for name, _, _ in left if name in read]


# %% wrong="remaining" says="no step is left" gets=2
def remaining(steps):
    known, left = {}, []
    for name, operation, *operands in steps:
        a, b = (known.get(operand, operand) for operand in operands)
        if not isinstance(a, str) and not isinstance(b, str):
            known[name] = a * b if operation == "*" else a + b
        elif operation == "*" and 0 in (a, b):
            known[name] = 0
        else:
            left.append((name, a, b))
    read, kept = {known.get(steps[-1][0], steps[-1][0])}, []
    for name, a, b in reversed(left):
        if name in read:
            kept.append(name)
            read |= {a, b}
    return kept[::-1]


# %% wrong="remaining" says="so c is 7" gets=2
def remaining(steps):
    known, left = {}, []
    for name, operation, *operands in steps:
        a, b = operands
        neutral = 1 if operation == "*" else 0
        if not isinstance(a, str) and not isinstance(b, str):
            known[name] = a * b if operation == "*" else a + b
            continue
        a, b = ((known.get(each, each) if known.get(each) == 0 or isinstance(known.get(each), str) else each)
                for each in operands)  # fmt: skip
        if operation == "*" and 0 in (a, b):
            known[name] = 0
        elif neutral in (a, b):
            known[name] = b if a == neutral else a
        else:
            left.append((name, a, b))
    read, kept = {known.get(steps[-1][0], steps[-1][0])}, []
    for name, a, b in reversed(left):
        if name in read:
            kept.append(name)
            read |= {a, b}
    return kept[::-1]


# %% [markdown]
# ## Exercise 2: what a load brings
#
# One instruction may load several numbers. The listing of a kernel, in NVIDIA's words; a line has perhaps a predicate
# (`@P0`, `@!P1`), an opcode with its modifiers behind points, and operands.

# %%
lines = {
    "LDG.E.CONSTANT R34, desc[UR4][R4.64]": "global, 4 bytes",
    "LDG.E.128 R8, desc[UR4][R4.64+0x10]": "global, 16 bytes",
    "@!P1 LDS.128 R12, [UR6+0x40]": "shared, 16 bytes",
    "LDS.U16 R12, [R2]": "shared, 2 bytes",
    "ULDC UR11, c[0x3][0x9c]": "constant, 4 bytes",
    "LDC.64 R2, c[0x0][0x210]": "constant, 8 bytes",
    "FFMA R9, R37, c[0x3][0x9c], R9": "no load",
}
pd.DataFrame({"what it loads": list(lines.values())}, index=list(lines))

# %% [markdown]
# Write `loads(listing)` for a list of lines. Return a dictionary from `"global"` (`LDG`), `"shared"` (`LDS`) and
# `"constant"` (`LDC` and `ULDC`) to a pair: how many such loads there are, and how many bytes they bring in all. A
# space without loads is left out. Among the modifiers, `64` and `128` say how many *bits* are loaded, `U16` and `S16`
# that there are 16, `U8` and `S8` that there are 8; without one of these there are 32.


# %%
def rows_of(function, listing):
    """Return what the function finds as (space, instructions, bytes), in order."""
    found = function(listing)
    return sorted((space, *pair) for space, pair in found.items()) if isinstance(found, dict) else found


# %% answer="loads"
def loads(listing):
    """Return {space: (instructions, bytes)}: loads(["LDS.128 R0, [R2]", "NOP"]) is {"shared": (1, 16)}."""
    ### BEGIN SOLUTION
    spaces = {"LDG": "global", "LDS": "shared", "LDC": "constant", "ULDC": "constant"}
    sizes = {"64": 8, "128": 16, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
    found = {}
    for line in listing:
        words = line.split()
        opcode, *modifiers = words[words[0].startswith("@")].split(".")
        if opcode in spaces:
            count, total = found.get(spaces[opcode], (0, 0))
            size = next((sizes[each] for each in modifiers if each in sizes), 4)
            found[spaces[opcode]] = count + 1, total + size
    return found
    ### END SOLUTION


# %% checks="loads" points=3
check = exercises.Checks("Exercise 2, loads", loads)
sized, spaced, others = "modifiers give the bytes", "each space is counted apart", "other lines load nothing"
listing = ["LDS.64 R0, [R2]", "LDS.128 R4, [R2]", "LDS.128 R4, [R2+0x10]"]
told = {
    (("shared", 3, 12),): "That takes 4 bytes for each load, whatever its modifiers say",
    (("shared", 3, 320),): "64 and 128 are bits, and a byte has 8",
}
check.returns(sized, (listing,), call=rows_of, expected=[("shared", 3, 40)], mistakes=told)
short = ["LDG.E.U16.CONSTANT R3, desc[UR4][R2.64]"]
check.returns(sized, (short,), call=rows_of, expected=[("global", 1, 2)])
mixed = ["LDG.E R0, desc[UR4][R4.64]", "LDS R1, [R2]", "LDC R2, c[0x0][0x28]", "ULDC UR4, c[0x3][0x4]"]
apart = [("constant", 2, 8), ("global", 1, 4), ("shared", 1, 4)]
uniform = {(("constant", 1, 4), *apart[1:]): "ULDC loads from constant memory as well"}
check.returns(spaced, (mixed,), call=rows_of, expected=apart, mistakes=uniform)
quiet = ["STS.128 [R2], R4", "FFMA R9, R37, c[0x3][0x9c], R9", "@P0 LDS R1, [R2]", "LDGDEPBAR"]
skipped = {
    (): "@P0 is a predicate; the opcode comes behind it",
    (("global", 1, 4), ("shared", 1, 4)): "LDGDEPBAR loads nothing",
}
check.returns(others, (quiet,), call=rows_of, expected=[("shared", 1, 4)], mistakes=skipped)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(2017)
opcodes = {"LDG.E": "global", "LDS": "shared", "LDC": "constant", "ULDC": "constant"}
for _ in range(8):
    opcode = draw.choice(("LDG.E", "LDS"))
    chosen = draw.choices(list({".64": 8, ".128": 16, ".U16": 2, ".S8": 1, "": 4}.items()), k=draw.randint(2, 6))
    listing = [f"{opcode}{modifier} R{draw.randint(0, 90)}, [R2]" for modifier, _ in chosen]
    total = sum(size for _, size in chosen)
    check.returns(sized, (listing,), call=rows_of, expected=[(opcodes[opcode], len(chosen), total)])
    picked = draw.choices(list(opcodes), k=draw.randint(3, 9))
    wanted = {}
    for each in picked:
        count, size = wanted.get(opcodes[each], (0, 0))
        wanted[opcodes[each]] = count + 1, size + 4
    check.returns(spaced, ([f"{each} R{draw.randint(0, 90)}, [R2]" for each in picked],), call=rows_of,
                  expected=sorted((space, *pair) for space, pair in wanted.items()))  # fmt: skip
    noise = draw.sample(["STG.E.64 desc[UR4][R2.64], R4", "FADD R1, R2, c[0x3][0x8]", "NOP", "LDSM.16 R0, [R2]"], 2)
    check.returns(
        others, ([*noise, f"@!P{draw.randint(0, 6)} LDG.E R1, [R2]"],), call=rows_of, expected=[("global", 1, 4)]
    )
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the opcode</summary>
#
# `line.split()` gives the words. Where the first begins with `@`, the opcode is the second.
#
# </details>
# <details><summary>Hint 2: its parts</summary>
#
# `"LDG.E.128".split(".")` is `["LDG", "E", "128"]`: the operation, then the modifiers. Compare the operation as a
# whole, because `LDGDEPBAR` and `LDSM` begin with the same letters.
#
# </details>
# <details><summary>Hint 3: the bytes</summary>
#
# Keep the modifiers' bytes in a dictionary, and take the first modifier that is in it; without one take 4.
#
# </details>


# %% wrong="loads" says="whatever its modifiers say" gets=2
def loads(listing):
    spaces, found = {"LDG": "global", "LDS": "shared", "LDC": "constant", "ULDC": "constant"}, {}
    for line in listing:
        words = line.split()
        opcode = words[words[0].startswith("@")].split(".")[0]
        if opcode in spaces:
            count, total = found.get(spaces[opcode], (0, 0))
            found[spaces[opcode]] = count + 1, total + 4
    return found


# %% wrong="loads" says="ULDC loads from constant memory as well" gets=2
def loads(listing):
    sizes, found = {"64": 8, "128": 16, "U16": 2, "S16": 2, "U8": 1, "S8": 1}, {}
    for line in listing:
        words = line.split()
        opcode, *modifiers = words[words[0].startswith("@")].split(".")
        space = {"LDG": "global", "LDS": "shared", "LDC": "constant"}.get(opcode)
        if space:
            count, total = found.get(space, (0, 0))
            found[space] = count + 1, total + next((sizes[each] for each in modifiers if each in sizes), 4)
    return found


# %% wrong="loads" says="the opcode comes behind it" gets=2
def loads(listing):
    spaces = {"LDG": "global", "LDS": "shared", "LDC": "constant", "ULDC": "constant"}
    sizes, found = {"64": 8, "128": 16, "U16": 2, "S16": 2, "U8": 1, "S8": 1}, {}
    for line in listing:
        opcode, *modifiers = line.split()[0].split(".")
        if opcode in spaces:
            count, total = found.get(spaces[opcode], (0, 0))
            size = next((sizes[each] for each in modifiers if each in sizes), 4)
            found[spaces[opcode]] = count + 1, total + size
    return found


# %% [markdown]
# ## Exercise 3: a new training, and no compiler
#
# If the weights are inside the instructions, a new training can be written over them. Machine code has 16 bytes an
# instruction, and an immediate is bytes 4 to 7 of these, a float32 (`struct.pack("<f", weight)`). The instruction may
# hold the weight *without its minus*, and subtract. Four instructions:


# %%
def instruction(inside, rest=0x11):
    """Return 16 bytes that hold `inside` at bytes 4 to 7."""
    return bytes([rest] * 4) + inside + bytes([rest] * 8)


code = b"".join(
    (
        instruction(struct.pack("<f", 0.5)),
        instruction(struct.pack("<f", 0.25)),
        instruction(struct.pack("<I", 7), rest=0x22),
        instruction(struct.pack("<f", -0.5), rest=0x33),
    )
)
rows = [code[start : start + 16].hex(" ", 4) for start in range(0, len(code), 16)]
says = [
    "the weight 0.5",
    "the weight -0.25, without its minus",
    "no weight: an address",
    "the weight 0.5, with a minus",
]
pd.DataFrame({"16 bytes": rows, "bytes 4 to 7 are": says})

# %% [markdown]
# Write `patch(code, old, new)`: the same code in which the weights `new` stand in place of `old`, two lists of floats
# of equal length. Where an instruction holds the negative of an old weight, it gets the negative of the new one.
# Return `None` for what cannot be done: an old weight that stands nowhere in the code (with or without its minus), or
# two old weights of the same size that would have to become two different numbers, because nobody can tell which is
# which. No weight is zero.


# %% answer="patch"
def patch(code, old, new):
    """Return the code with new weights: patch(instruction(pack(0.5)), [0.5], [2.0]) is instruction(pack(2.0))."""
    ### BEGIN SOLUTION
    becomes, found, parts = {}, set(), []
    for before, after in zip(old, new, strict=True):
        for sign in (1, -1):
            key, value = (struct.pack("<f", sign * weight) for weight in (before, after))
            if becomes.setdefault(key, value) != value:
                return None
    for start in range(0, len(code), 16):
        inside = code[start + 4 : start + 8]
        if inside in becomes:
            found.add(abs(struct.unpack("<f", inside)[0]))
        parts.append(code[start : start + 4] + becomes.get(inside, inside) + code[start + 8 : start + 16])
    whole = all(abs(struct.unpack("<f", struct.pack("<f", weight))[0]) in found for weight in old)
    return b"".join(parts) if whole else None
    ### END SOLUTION


# %%
def bytes_of(function, code, old, new):
    """Return what `function` gives, a bytearray as bytes."""
    made = function(code, old, new)
    return bytes(made) if isinstance(made, bytearray) else made


def inside_of(function, code, old, new):
    """Return the floats at bytes 4 to 7 of each instruction that `function` gives; None where it gives None."""
    made = bytes_of(function, code, old, new)
    if not isinstance(made, bytes):
        return made if made is None or made is exercises.not_yet else "no bytes"
    return [struct.unpack("<f", made[start + 4 : start + 8])[0] for start in range(0, len(made), 16)]


def holding(*weights):
    """Return code with an instruction for each weight."""
    return b"".join(instruction(struct.pack("<f", weight)) for weight in weights)


# %% checks="patch" points=4
check = exercises.Checks("Exercise 3, patch", patch)
place, minus, once, never = (
    "only bytes 4 to 7 are weights",
    "a minus is kept",
    "each instruction is patched once",
    "None for what cannot be done, and only for that",
)
decoy = bytes(8) + struct.pack("<f", 0.5) + bytes(4)
check.returns(place, (decoy + holding(0.5), [0.5], [2.0]), call=bytes_of, expected=decoy + holding(2.0))
sign = {(2.0, -0.5): "-0.5 is the weight without its minus: it becomes -2.0", (2.0, 2.0): "The minus is lost"}
check.returns(minus, (holding(0.5, -0.5), [0.5], [2.0]), call=inside_of, expected=[2.0, -2.0], mistakes=sign)
twice = {(0.5, 0.5): "0.5 became 0.25, and then 0.5 again", (0.25, 0.25): "0.25 became 0.5, and then 0.25 again"}
check.returns(
    once, (holding(0.5, 0.25), [0.5, 0.25], [0.25, 0.5]), call=inside_of, expected=[0.25, 0.5], mistakes=twice
)
check.returns(never, (holding(0.5), [0.5], [2.0]), call=inside_of, expected=[2.0])
absent = {(2.0,): "3.0 stands nowhere in the code, so the new training would be incomplete"}
check.returns(never, (holding(0.5), [0.5, 3.0], [2.0, 4.0]), call=inside_of, expected=None, mistakes=absent)
unclear = {
    (2.0, 2.0): "Two weights of 0.5 become 2 and 4: which is which?",
    (4.0, 4.0): "Two weights of 0.5 become 2 and 4: which is which?",
}
check.returns(never, (holding(0.5, 0.5), [0.5, 0.5], [2.0, 4.0]), call=inside_of, expected=None, mistakes=unclear)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(2025)
for _ in range(6):
    olds = [value / 64 for value in draw.sample(range(1, 900), 4)]
    news = [value / 32 for value in draw.sample(range(901, 1800), 4)]
    packed = struct.pack("<f", olds[0])
    for decoy in (packed + bytes(12), bytes(2) + packed + bytes(10), bytes(12) + packed):
        check.returns(place, (decoy + holding(*olds), olds, news), call=bytes_of, expected=decoy + holding(*news))
    signs = [draw.choice((-1, 1)) for _ in olds]
    turned = [sign * value for sign, value in zip(signs, olds, strict=True)]
    wanted = [sign * value for sign, value in zip(signs, news, strict=True)]
    check.returns(minus, (holding(*turned), olds, news), call=inside_of, expected=wanted)
    turn = [*olds[1:], olds[0]]
    check.returns(once, (holding(*olds), olds, turn), call=inside_of, expected=turn)
    check.returns(never, (holding(*olds), olds, news), call=inside_of, expected=news)
    check.returns(never, (holding(*olds[:3]), olds, news), call=inside_of, expected=None)
    check.returns(never, (holding(*olds), [*olds, olds[2]], [*news, 99.0]), call=inside_of, expected=None)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: by instruction</summary>
#
# Go through the code 16 bytes at a time, and look at bytes 4 to 7 alone. `code.replace(...)` would also find a weight
# across two instructions.
#
# </details>
# <details><summary>Hint 2: all weights at once</summary>
#
# Make a dictionary first: from the four bytes of each old weight to those of its new one, and from those of its
# negative to those of the new negative. Then each instruction is looked up once.
#
# </details>
# <details><summary>Hint 3: None</summary>
#
# While you fill the dictionary, a key that is there with another value is unclear. While you go through the code,
# keep the weights that you have found, without their signs, and compare in the end.
#
# </details>


# %% wrong="patch" says="it becomes -2.0" gets=3
def patch(code, old, new):
    becomes, found, parts = {}, set(), []
    for before, after in zip(old, new, strict=True):
        key, value = struct.pack("<f", before), struct.pack("<f", after)
        if becomes.setdefault(key, value) != value:
            return None
    for start in range(0, len(code), 16):
        inside = code[start + 4 : start + 8]
        found.add(inside)
        parts.append(code[start : start + 4] + becomes.get(inside, inside) + code[start + 8 : start + 16])
    there = found | {struct.pack("<f", -struct.unpack("<f", each)[0]) for each in found}
    return b"".join(parts) if there >= set(becomes) else None


# %% wrong="patch" says="and then 0.5 again" gets=3
def patch(code, old, new):
    becomes = {}
    for before, after in zip(old, new, strict=True):
        if becomes.setdefault(before, after) != after:
            return None
    for before, after in becomes.items():
        there = False
        for start in range(4, len(code), 16):
            inside = struct.unpack("<f", code[start : start + 4])[0]
            if abs(inside) == before:
                there = True
                code = code[:start] + struct.pack("<f", after if inside > 0 else -after) + code[start + 4 :]
        if not there:
            return None
    return code


# %% wrong="patch" says="which is which?" gets=3
def patch(code, old, new):
    becomes, found, parts = {}, set(), []
    for before, after in zip(old, new, strict=True):
        for sign in (1, -1):
            becomes[struct.pack("<f", sign * before)] = struct.pack("<f", sign * after)
    for start in range(0, len(code), 16):
        inside = code[start + 4 : start + 8]
        if inside in becomes:
            found.add(abs(struct.unpack("<f", inside)[0]))
        parts.append(code[start : start + 4] + becomes.get(inside, inside) + code[start + 8 : start + 16])
    return b"".join(parts) if all(abs(weight) in found for weight in old) else None


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
# ## Question 2: your own constants
#
# Take a small function of your own that is called often with numbers that seldom change: a filter, a polynomial, a
# table of physics, a small network that you have trained. Write it twice in C++, with the numbers as `constexpr` and
# behind a pointer, or in another language with a compiler. `native.compile_cpp` and `helpers.compare` do the rest:
#
# ```
# from helpers import native
# library = native.compile_cpp('extern "C" void run(const float* x, float* y, long long n) { ... }')
# run = library.function("void run(const float* x, float* y, int64_t n)").raw
# ```
#
# Predict the ratio of the two times from the instructions that each has to execute, *before* you measure. Then
# measure, and explain the measurement to within a factor of two: by a count, by the machine code
# (`disassemble` of `helpers.native`), or by a third version that changes one thing.
#
# Five to ten sentences with your numbers and your C++; a person reads them.

# %% [markdown] written="own_constants" points=4
# A full answer says:
#
# - 1 point: a function of the student's own, both versions, and a prediction with its reason in numbers (operations,
#   loads, zeros and ones that fold, known sizes), written before the measurement.
# - 1 point: a measurement that can be trusted: `helpers.compare` or the same care (both in turns, several rounds, the
#   results compared), with its interval.
# - 1 point: an explanation that reaches the measured ratio to within a factor of two.
# - 1 point: the explanation is itself tested: a count of instructions, the disassembly, or a third version. A wrong
#   prediction that is then explained gets both of these points; one that was right and is not explained gets neither.

# %% [markdown]
# ## What you have practised
#
# Removing what is constant, zero or unread as a compiler does, telling what a load brings, and changing weights inside
# machine code.
