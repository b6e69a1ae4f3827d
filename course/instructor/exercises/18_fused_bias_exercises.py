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
# # Fused bias: exercises
#
# Three functions to write, for [lesson 18](../18_fused_bias.ipynb). Each exercise has a table or a picture, a
# function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is a count or a sum of whole numbers, so your results must
# be exact.

# %%
import itertools
import math

import pandas as pd
import torch

from helpers import exercises, plotting


def line(names):
    """Return kernels in a row, each reading one name and writing the next: a new list for each check."""
    return [([before], after) for before, after in itertools.pairwise(names)]


# %% [markdown]
# ## Exercise 1: what a chain of kernels moves
#
# A program is a list of [kernels](../glossary.md#gpu-kernel). Each reads some tensors and writes one. This one scales
# the result of a convolution by channel, adds a bias and cuts off below zero:

# %%
chain = [(["y", "scale"], "scaled"), (["scaled", "bias"], "sum"), (["sum"], "out")]
shapes = {"y": (2, 3, 4, 4), "scale": (3, 1, 1), "bias": (3, 1, 1)}
shapes |= {"scaled": (2, 3, 4, 4), "sum": (2, 3, 4, 4), "out": (2, 3, 4, 4)}
numbers = [sum(math.prod(shapes[name]) for name in reads) for reads, _ in chain]
pd.DataFrame(
    {
        "reads": [" ".join(reads) for reads, _ in chain],
        "writes": [result for _, result in chain],
        "numbers read": numbers,
    }
)

# %% [markdown]
# Write `moved_bytes(kernels, shapes, size)`. Return two numbers: the bytes that all kernels read, and the bytes that
# they write.
#
# | argument | what it is |
# |---|---|
# | `kernels` | a list with a pair for each kernel: the list of the names that it reads, and the name that it writes |
# | `shapes` | a dictionary from each name to its shape |
# | `size` | the bytes of one number, the same for all tensors |
#
# This is agreed:
#
# | what happens | what it means |
# |---|---|
# | a tensor is smaller than the result (it is broadcast) | it is read as it lies in memory, with its own size |
# | a kernel names a tensor twice, as in `y * y` | the kernel reads it once |
# | two kernels read the same tensor | each of them reads it |
# | the shape is `()` | the tensor has one number |


# %% answer="moved_bytes"
def moved_bytes(kernels, shapes, size):
    """Return the bytes read and written: moved_bytes([(["a"], "b")], {"a": (2, 3), "b": (2, 3)}, 4) is (24, 24)."""
    ### BEGIN SOLUTION
    read = sum(math.prod(shapes[name]) for names, _ in kernels for name in set(names))
    written = sum(math.prod(shapes[result]) for _, result in kernels)
    return read * size, written * size
    ### END SOLUTION


# %% checks="moved_bytes" points=4
check = exercises.Checks("Exercise 1, moved_bytes", moved_bytes)
every, small = "every kernel reads and writes", "a broadcast tensor has its own size"
bytes_goal, twice = "bytes, for any type of number", "a tensor named twice is read once"
plain = {"a": (2, 3), "b": (2, 3), "c": (2, 3)}
two = [(["a"], "b"), (["b"], "c")]
chained = {
    (6, 6): "That is one kernel; there are two, and each reads and writes",
    (6, 12): "The second kernel reads b again: nothing stays at hand between two kernels",
    (12, 6): "b is written as well, though nobody wants it in the end",
    (24, 24): "That is for numbers of 2 bytes; these have 1",
    (48, 48): "That is for numbers of 4 bytes; these have 1, as size says",
    24: "Return two numbers: the bytes read, and the bytes written",
}
check.returns(every, (two, plain, 1), expected=(12, 12), mistakes=chained)
check.returns(every, ([(["a"], "b"), (["a"], "c")], plain, 1), expected=(12, 12))
expanded = {
    (12, 6): "That counts the bias as if it were as large as the result; in memory it has 3 numbers",
    (6, 6): "The kernel reads the bias as well as a",
    (6, 9): "First the bytes read, then the bytes written",
}
check.returns(small, ([(["a", "bias"], "b")], plain | {"bias": (3,)}, 1), expected=(9, 6), mistakes=expanded)
one = {(6, 6): "A shape () is one number, not none"}
check.returns(small, ([(["a", "s"], "b")], plain | {"s": ()}, 1), expected=(7, 6), mistakes=one)
numbers_only = {(6, 6): "Those are numbers; each has 8 bytes", (24, 24): "These numbers have 8 bytes, not 4"}
check.returns(bytes_goal, ([(["a"], "b")], plain, 8), expected=(48, 48), mistakes=numbers_only)
square = {(12, 6): "a * a needs a once: it is in a register when it is needed again"}
check.returns(twice, ([(["a", "a"], "b")], plain, 1), expected=(6, 6), mistakes=square)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(12001)


def large():
    return tuple(draw.randint(2, 9) for _ in range(draw.randint(2, 4)))


for _ in range(6):
    shape = large()
    count, per = math.prod(shape), shape[1]
    names = [f"t{place}" for place in range(draw.randint(3, 7))]
    steps = len(names) - 1
    shapes_drawn = dict.fromkeys(names, shape)
    check.returns(every, (line(names), shapes_drawn, 1), expected=(count * steps, count * steps))
    fan = [([names[0]], after) for after in names[1:]]
    check.returns(every, (fan, shapes_drawn, 1), expected=(count * steps, count * steps))
    broadcast = shapes_drawn | {"v": (per, *[1] * (len(shape) - 2)), "s": ()}
    adds = [([names[0], "v", "s"], after) for after in names[1:]]
    check.returns(small, (adds, broadcast, 1), expected=((count + per + 1) * steps, count * steps))
    size = draw.choice([2, 4, 8])
    check.returns(bytes_goal, (line(names[:2]), shapes_drawn, size), expected=(count * size, count * size))
    squares = [([names[0]] * draw.randint(2, 3), after) for after in names[1:]]
    check.returns(twice, (squares, shapes_drawn, 1), expected=(count * steps, count * steps))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: numbers of a shape</summary>
#
# `math.prod((2, 3))` is 6, and `math.prod(())` is 1.
#
# </details>
# <details><summary>Hint 2: one kernel</summary>
#
# It reads the numbers of each *different* name in its list, `set(names)`, and writes the numbers of its result.
#
# </details>
# <details><summary>Hint 3: put together</summary>
#
# Add up over the kernels, reads and writes apart, and multiply each with `size` at the end.
#
# </details>


# %% wrong="moved_bytes" says="That counts the bias as if it were as large as the result" gets=3
def moved_bytes(kernels, shapes, size):
    read = sum(math.prod(shapes[result]) * len(set(names)) for names, result in kernels)
    return read * size, sum(math.prod(shapes[result]) for _, result in kernels) * size


# %% wrong="moved_bytes" says="The second kernel reads b again" gets=3
def moved_bytes(kernels, shapes, size):
    made, read = set(), 0
    for names, result in kernels:
        read += sum(math.prod(shapes[name]) for name in set(names) - made)
        made.add(result)
    return read * size, sum(math.prod(shapes[result]) for _, result in kernels) * size


# %% wrong="moved_bytes" says="Those are numbers; each has 8 bytes" gets=3
def moved_bytes(kernels, shapes, _size):
    read = sum(math.prod(shapes[name]) for names, _ in kernels for name in set(names))
    return read, sum(math.prod(shapes[result]) for _, result in kernels)


# %% wrong="moved_bytes" says="That is for numbers of 4 bytes; these have 1" gets=0
def moved_bytes(kernels, shapes, _size):
    read = sum(math.prod(shapes[name]) for names, _ in kernels for name in set(names))
    return read * 4, sum(math.prod(shapes[result]) for _, result in kernels) * 4


# %% wrong="moved_bytes" says="a * a needs a once" gets=3
def moved_bytes(kernels, shapes, size):
    read = sum(math.prod(shapes[name]) for names, _ in kernels for name in names)
    return read * size, sum(math.prod(shapes[result]) for _, result in kernels) * size


# %% [markdown]
# ## Exercise 2: the same chain, fused
#
# Now one kernel does the work of all of them. It goes through the same steps for each number, in registers. What one
# step makes and a later one reads is not written for that, and not read. Which tensors are still read and written?
# Below are the chain of exercise 1 and what each tensor is in the fused kernel, if only `out` is wanted in the end.

# %%
roles = {"y": "read", "scale": "read", "bias": "read", "scaled": "inside", "sum": "inside", "out": "written"}
numbers = {"y": 96, "scale": 3, "bias": 3, "scaled": 96, "sum": 96, "out": 96}
spans = [plotting.Span(name, 0, numbers[name], role) for name, role in roles.items()]
drawn = plotting.gantt(spans, title="Tensors of the fused kernel", unit="", xlabel="numbers")
alt = (
    "Six bars: y is read, with 96 numbers, scale and bias with 3 each; scaled and sum stay inside, and out is written."
)
plotting.show(drawn, alt=alt)

# %% [markdown]
# Write `fused_bytes(kernels, shapes, kept, size)`. `kernels`, `shapes` and `size` are as before; `kept` is a list of
# the tensors that are wanted afterwards. Return the bytes that the one kernel reads, and those that it writes.
#
# | what happens | what it means |
# |---|---|
# | a step reads what an earlier step has written | it is at hand, and is not read from memory |
# | several steps read the same tensor from outside | it is read once |
# | a step writes a name that is in `kept` | it is written to memory, once, however often it is made |
# | a name in `kept` is never made | it is there already, and is not written |
# | a step works in place: it reads `y` and writes `y` | what it reads is the `y` of before |


# %% answer="fused_bytes"
def fused_bytes(kernels, shapes, kept, size):
    """Return the bytes read and written by one kernel for all: fused_bytes(chain, shapes, ["out"], 1) is (102, 96)."""
    ### BEGIN SOLUTION
    read, made = set(), set()
    for names, result in kernels:
        read |= set(names) - made
        made.add(result)
    both = (read, made & set(kept))
    return tuple(size * sum(math.prod(shapes[name]) for name in names) for names in both)
    ### END SOLUTION


# %% checks="fused_bytes" points=4
check = exercises.Checks("Exercise 2, fused_bytes", fused_bytes)
inside, once = "what is made inside is not read", "a tensor from outside is read once"
wanted, in_place = "only what is kept is written", "a step in place reads what was there before"
plain = dict.fromkeys("abcdy", (2, 3)) | {"bias": (3,)}
unfused = {
    (18, 18): "That is the chain of three kernels; fused, b and c never leave the registers",
    (18, 6): "b and c are made inside, so nobody reads them from memory",
    (6, 18): "b and c are not wanted afterwards, so nobody writes them",
    (6, 6): "Those are numbers; each has 4 bytes here",
}
check.returns(inside, (line("abcd"), plain, ["d"], 1), expected=(6, 6), mistakes=unfused)
check.returns(inside, (line("abc"), plain, ["c"], 4), expected=(24, 24), mistakes=unfused)
again = {(12, 6): "a is in a register after the first step has read it"}
check.returns(once, ([(["a"], "b"), (["a", "b"], "c")], plain, ["c"], 1), expected=(6, 6), mistakes=again)
late = {(6, 6): "bias comes from outside as well, though only the second step reads it"}
check.returns(once, ([(["a"], "b"), (["b", "bias"], "c")], plain, ["c"], 1), expected=(9, 6), mistakes=late)
few = {(2, 6): "c is wanted as well as d, so both are written", (2, 14): "a is there already; nothing makes it"}
few[2, 18] = "b is not wanted afterwards, so nobody writes it"
check.returns(wanted, (line("abcd"), plain | {"a": (2, 1)}, ["a", "c", "d"], 1), expected=(2, 12), mistakes=few)
lost = {
    (3, 6): "y is read before it is written over, so it comes from memory",
    (9, 12): "y is made twice and written once: the first one stays in a register",
    (3, 12): "y comes from memory, since it is read before it is written over; and it is written once",
    (15, 6): "The second step reads the y that the first has made",
    (15, 12): "That is two kernels in place; one pass reads y once and writes it once",
}
check.returns(in_place, ([(["y", "bias"], "y"), (["y"], "y")], plain, ["y"], 1), expected=(9, 6), mistakes=lost)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(12007)
for _ in range(6):
    shape, size = tuple(draw.randint(2, 7) for _ in range(3)), draw.choice([1, 2, 4])
    count = math.prod(shape)
    names = [f"t{place}" for place in range(draw.randint(4, 8))]
    shapes_drawn = dict.fromkeys([*names, "y"], shape) | {"v": (shape[0], 1, 1)}
    check.returns(inside, (line(names), shapes_drawn, names[-1:], size), expected=(count * size, count * size))
    star = [([names[0], "v"], after) for after in names[1:]]
    check.returns(once, (star, shapes_drawn, names[-1:], size), expected=((count + shape[0]) * size, count * size))
    last = [*line(names), ([names[-1], "v"], "y")]
    check.returns(once, (last, shapes_drawn, ["y"], size), expected=((count + shape[0]) * size, count * size))
    kept = draw.sample(names[1:], 2)
    kept_and_there = [*kept, names[0]]
    check.returns(wanted, (line(names), shapes_drawn, kept_and_there, size), expected=(count * size, 2 * count * size))
    check.returns(wanted, (line(names), shapes_drawn, [], size), expected=(count * size, 0))
    over = [(["y", "v"], "y"), *[(["y"], "y")] * draw.randint(1, 3)]
    check.returns(in_place, (over, shapes_drawn, ["y"], size), expected=((count + shape[0]) * size, count * size))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: two sets</summary>
#
# Keep the names that come from outside in one set, and the names that were made so far in another. A set holds each
# name once.
#
# </details>
# <details><summary>Hint 2: the order matters</summary>
#
# For each step first look which of its names were not made so far; these come from outside. Then add its result to what
# was made. In place, this order decides.
#
# </details>
# <details><summary>Hint 3: what is written</summary>
#
# The names that were made *and* are kept: `made & set(kept)`.
#
# </details>


# %% wrong="fused_bytes" says="That is the chain of three kernels" gets=0
def fused_bytes(kernels, shapes, _kept, size):
    read = sum(math.prod(shapes[name]) for names, _ in kernels for name in set(names))
    return read * size, sum(math.prod(shapes[result]) for _, result in kernels) * size


# %% wrong="fused_bytes" says="y is read before it is written over" gets=3
def fused_bytes(kernels, shapes, kept, size):
    made = {result for _, result in kernels}
    read = {name for names, _ in kernels for name in names} - made
    return tuple(size * sum(math.prod(shapes[name]) for name in names) for names in (read, made & set(kept)))


# %% wrong="fused_bytes" says="a is in a register after the first step has read it" gets=3
def fused_bytes(kernels, shapes, kept, size):
    read, made = [], set()
    for names, result in kernels:
        read += [name for name in names if name not in made]
        made.add(result)
    return tuple(size * sum(math.prod(shapes[name]) for name in names) for names in (read, made & set(kept)))


# %% wrong="fused_bytes" says="bias comes from outside as well" gets=3
def fused_bytes(kernels, shapes, kept, size):
    made = {result for _, result in kernels}
    read = set(kernels[0][0])
    return tuple(size * sum(math.prod(shapes[name]) for name in names) for names in (read, made & set(kept)))


# %% wrong="fused_bytes" says="a is there already; nothing makes it" gets=3
def fused_bytes(kernels, shapes, kept, size):
    read, made = set(), set()
    for names, result in kernels:
        read |= set(names) - made
        made.add(result)
    return tuple(size * sum(math.prod(shapes[name]) for name in names) for names in (read, set(kept)))


# %% [markdown]
# ## Exercise 3: the gradient of any broadcast
#
# PyTorch adds tensors of different shapes. It lines their shapes up at the right; where one has a 1, or nothing, its
# numbers are copied along that dimension. Here is the gradient of a result of shape (2, 3), and what becomes of it for
# operands of four shapes.


# %%
def gradient_of(shape, grad):
    """Return what autograd finds for an operand of `shape` whose broadcast has the gradient `grad`."""
    operand = torch.zeros(shape, requires_grad=True)
    operand.expand(grad.shape).backward(grad)
    return operand.grad


grad = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
pd.DataFrame({str(shape): [str(gradient_of(shape, grad).tolist())] for shape in [(2, 3), (1, 3), (3,), (2, 1)]})

# %% [markdown]
# Write `broadcast_gradient(grad, shape)`. `grad` is a tensor, the gradient of the result; `shape` is the shape of an
# operand that was broadcast to the shape of `grad`. Return the gradient of the operand, a tensor of `shape`.
#
# Use sums. (`expand` with autograd, as above, and `sum_to_size` would do it for you; the point is to know what they
# do.)


# %% answer="broadcast_gradient"
def broadcast_gradient(grad, shape):
    """Return the gradient of an operand of `shape`: broadcast_gradient(torch.ones(2, 3), (3,)) is [2, 2, 2]."""
    ### BEGIN SOLUTION
    while grad.dim() > len(shape):
        grad = grad.sum(0)
    for dimension, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(dimension, keepdim=True)
    return grad
    ### END SOLUTION


# %% checks="broadcast_gradient" points=4
check = exercises.Checks("Exercise 3, broadcast_gradient", broadcast_gradient)
kept, leading = "a dimension of 1 is summed, and stays", "a dimension that is missing is summed away"
channel, scalar = "both at once, as for a bias", "one number for all"
grad = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
flat = {
    ((2.5, 3.5, 4.5),): "That is the mean; each copy adds its share, and nothing divides them",
    (5, 7, 9): "The sum is right, its shape is not: keepdim=True keeps the dimension, with size 1",
    ((1, 2, 3), (4, 5, 6)): "That is the gradient of the result; the operand has another shape",
    21: "That adds up everything, as sum does when it is given no dimension, or an empty list of them",
    (6, 15): "That sums along the other dimension; the 1 in (1, 3) is the first",
    ((6,), (15,)): "That sums along the other dimension; the 1 in (1, 3) is the first",
}
check.returns(kept, (grad, (1, 3)), expected=grad.sum(0, keepdim=True).tolist(), mistakes=flat)
check.returns(kept, (grad, (2, 1)), expected=grad.sum(1, keepdim=True).tolist())
away = {
    ((5, 7, 9),): "The operand has one dimension; the other was added in front and must go",
    ((1, 2, 3), (4, 5, 6)): "That is the gradient of the result; the operand has three numbers",
    (2.5, 3.5, 4.5): "That is the mean; each copy adds its share, and nothing divides them",
    (6, 15): "Shapes are lined up at the right: what is missing stands in front, and is summed",
}
check.returns(leading, (grad, (3,)), expected=grad.sum(0).tolist(), mistakes=away)
cube = torch.arange(24.0).reshape(2, 3, 2, 2)
images_only = ((12, 14), (16, 18)), ((20, 22), (24, 26)), ((28, 30), (32, 34))
bias = {(60, 92, 124): "The sums are right; a bias of shape (3, 1, 1) has a gradient of that shape"}
bias[images_only] = "The images are added up; the pixels are not, and the 1s in (3, 1, 1) ask for it"
check.returns(channel, (cube, (3, 1, 1)), expected=cube.sum((0, 2, 3)).view(3, 1, 1).tolist(), mistakes=bias)
single = {(21,): "A shape () has no dimension at all", ((21,),): "A shape () has no dimension at all"}
check.returns(scalar, (grad, ()), expected=21.0, mistakes=single)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(12013)
torch.manual_seed(12017)


def truth(grad, shape):
    """Add every number of the gradient to the place of the operand that it was copied from, one by one."""
    total = torch.zeros(shape)
    for place in torch.cartesian_prod(*(torch.arange(size) for size in grad.shape)).tolist():
        own = place[len(place) - len(shape) :]
        total[tuple(0 if size == 1 else index for index, size in zip(own, shape, strict=True))] += grad[tuple(place)]
    return total


for _ in range(5):
    sizes = tuple(draw.randint(2, 4) for _ in range(draw.randint(3, 4)))
    grad = torch.randint(-9, 10, sizes).float()
    grad[(0,) * len(sizes)] += 1000  # so that neither a sum nor a mean is zero by chance
    ones = set(draw.sample(range(len(sizes)), 2))
    check.returns(
        kept,
        (grad, shape := tuple(1 if place in ones else size for place, size in enumerate(sizes))),
        expected=truth(grad, shape).tolist(),
    )
    shape = sizes[draw.randint(1, len(sizes) - 1) :]
    check.returns(leading, (grad, shape), expected=truth(grad, shape).tolist())
    shape = (sizes[1], *[1] * (len(sizes) - 2))
    check.returns(channel, (grad, shape), expected=truth(grad, shape).tolist())
    check.returns(scalar, (grad, ()), expected=truth(grad, ()).tolist())
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: which dimensions?</summary>
#
# Shapes are lined up at the right. `grad.dim() - len(shape)` dimensions of `grad` stand in front of what the operand
# has.
#
# </details>
# <details><summary>Hint 2: in front</summary>
#
# `grad.sum(0)` adds up along the first dimension and removes it. Do it as often as there are too many.
#
# </details>
# <details><summary>Hint 3: size 1</summary>
#
# `grad.sum(dimension, keepdim=True)` adds up along a dimension and keeps it, with size 1. Do it where `shape` has a 1.
#
# </details>


# %% wrong="broadcast_gradient" says="That is the mean" gets=0
def broadcast_gradient(grad, shape):
    while grad.dim() > len(shape):
        grad = grad.mean(0)
    for dimension, size in enumerate(shape):
        if size == 1:
            grad = grad.mean(dimension, keepdim=True)
    return grad


# %% wrong="broadcast_gradient" says="keepdim=True keeps the dimension" gets=2
def broadcast_gradient(grad, shape):
    padded = (1,) * (grad.dim() - len(shape)) + tuple(shape)
    summed = [place for place, size in enumerate(padded) if size == 1]
    return grad.sum(summed) if summed else grad


# %% wrong="broadcast_gradient" says="The images are added up; the pixels are not" gets=2
def broadcast_gradient(grad, shape):
    return grad.sum(tuple(range(grad.dim() - len(shape))))


# %% wrong="broadcast_gradient" says="the other was added in front and must go" gets=1
def broadcast_gradient(grad, shape):
    padded = (1,) * (grad.dim() - len(shape)) + tuple(shape)
    for place, size in enumerate(padded):
        if size == 1:
            grad = grad.sum(place, keepdim=True)
    return grad


# %% [markdown]
# ## Question 1: fused and slower?
#
# A colleague replaces convolution, bias and ReLU by one fused call in every layer of a network. The bytes fall as
# counted. One layer becomes faster, one stays as it was, and one becomes slower. Give a reason for each.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="fused_slower" points=2
# A full answer says:
#
# - 1 point: faster where the bytes were much of the time (few input channels, large images, beyond the caches); the
#   same where the convolution's arithmetic takes nearly all of it.
# - 1 point: slower where the fused call has a price of its own, such as its fixed cost on a small batch, or another and
#   worse algorithm for the convolution; the count of bytes does not hold that.

# %% [markdown]
# ## Question 2: two operators of your own
#
# Choose two element-wise operators that stand side by side in a model that you use: a norm's scaling and an activation,
# a residual sum and a dropout, a softmax's subtraction and exponential. Count the bytes that one pass would save at
# your sizes, and predict the time from a bandwidth that you measured. Then write the pass (numba, C++, Triton or
# `torch.compile`), test it against PyTorch, NaN included, and measure both.
#
# Give the three numbers with the sizes, and explain a distance of more than a factor of two between model and
# measurement. Three to six sentences; a person reads them.

# %% [markdown] written="own_pass" points=2
# A full answer says:
#
# - 1 point: bytes before and after for stated shapes (each kernel reads and writes, broadcast operands with their own
#   size), a bandwidth with where it comes from (main memory or a cache), and the ratio that follows, beside the
#   measured one; both programs agree, also on NaN.
# - 1 point: an explanation that fits the numbers: tensors that stay in a cache, the price of a call, arithmetic that is
#   not free (an exponential, a random number), fresh memory for a result, a loop that does not vectorise or uses one
#   thread against several, a second pass that a sum forces. "The model is wrong" is no explanation.

# %% [markdown]
# ## What you have practised
#
# Counting the bytes of a chain of kernels, telling what is left of them when the chain is fused, adding up the
# gradient of a broadcast, and holding a fused pass of your own to its model. `helpers.studies.fused_bias.traffic`
# counts the first two for the programs of the lesson.
