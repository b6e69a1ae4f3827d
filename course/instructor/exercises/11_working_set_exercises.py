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
# # Working set: exercises
#
# Three functions to write, for [lesson 11](../11_working_set.ipynb). Each exercise has a picture or a table, a function
# that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay folded until
# you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Where it can be done, the inputs of a goal are chosen so that a mistake
# about another goal does not touch it. Everything here is a count, so your numbers must be exact.

# %%
import pandas as pd
from torch import nn

from helpers import exercises, operations, plotting

# %% [markdown]
# ## Exercise 1: a convolution from its shapes
#
# In the lesson a filter moved by one pixel at a time, over an image without padding, and saw all channels. Here it may
# do otherwise. The picture is one row of an image: 8 pixels, with `padding=1` at both ends, so ten are there to read. A
# filter of 3 pixels begins at the left end and moves by `stride=2`.

# %%
spans = [
    plotting.Span("row", 0, 1, "padding"),
    plotting.Span("row", 1, 9, "image"),
    plotting.Span("row", 9, 10, "padding"),
]
spans += [plotting.Span(f"output {place + 1}", 2 * place, 2 * place + 3, "filter") for place in range(4)]
drawn = plotting.gantt(spans, title="A row of an image, and where the filter stands", unit="", xlabel="pixel")
alt = "A row of 10 pixels, the first and last padding; a filter of 3 stands at 0, 2, 4 and 6, and leaves out the last."
plotting.show(drawn, alt=alt)

# %% [markdown]
# Four places fit, so the row gives four outputs. A fifth would begin at pixel 8 and stick out by one; it is left out,
# and the last pixel is never read.
#
# With `groups`, the input's channels are dealt out to that many groups of equal size, and so are the filters. A filter
# sees the channels of its own group and no other.
#
# Write `convolution_macs(input_shape, out_channels, kernel, stride, padding, groups)`. Return the
# [multiply-accumulates](../glossary.md#mac) of the forward of `nn.Conv2d` with these settings:
#
# | argument | what it is | LeNet's `conv1` |
# |---|---|---|
# | `input_shape` | images, channels, height, width | `(1, 1, 28, 28)` |
# | `out_channels` | filters; each makes one channel of the output | `6` |
# | `kernel` | height and width of a filter, in pixels | `5` |
# | `stride` | pixels from one place to the next, down and across | `1` |
# | `padding` | pixels added at each of the four sides | `0` |
# | `groups` | divides both the input's channels and the filters | `1` |
#
# The products with padding count, since the machine computes them. A bias does not: it is an addition alone.
# `operations.profile_ops` knows the answer for any layer that you make; the point here is to know it without the layer.


# %% answer="convolution_macs"
def convolution_macs(input_shape, out_channels, kernel, stride, padding, groups):
    """Return the MACs of a convolution: convolution_macs((1, 1, 28, 28), 6, 5, 1, 0, 1) is 86400."""
    ### BEGIN SOLUTION
    images, channels, height, width = input_shape
    out_height = (height + 2 * padding - kernel) // stride + 1
    out_width = (width + 2 * padding - kernel) // stride + 1
    outputs = images * out_channels * out_height * out_width
    return outputs * (channels // groups) * kernel**2
    ### END SOLUTION


# %% checks="convolution_macs" points=4
check = exercises.Checks("Exercise 1, convolution_macs", convolution_macs)
plain, sized = "each output is a sum over one filter", "stride and padding set the number of outputs"
grouped, together = "a filter sees the channels of its group", "all of it together, for every image"
lenet = {
    117600: "That puts each filter on the input's 28 by 28 pixels; a filter of 5 fits in 24 by 24 places",
    89856: "That counts a bias as a MAC; it is an addition alone",
    172800: "That is FLOP; a MAC is a multiplication and its addition, counted once",
    3456: "That is the number of outputs; each is a sum of 25 products",
}
check.returns(plain, ((1, 1, 28, 28), 6, 5, 1, 0, 1), expected=86400, mistakes=lenet)
thin = {25600: "That is one channel; each output is a sum over all 6"}
check.returns(plain, ((1, 6, 12, 12), 16, 5, 1, 0, 1), expected=153600, mistakes=thin)
moved = {
    8640: "That puts a filter on every pixel of the input; with stride 3 it skips two of three",
    2160: "Round down: a place that sticks out of the padded row is left out",
    2016: "Round down: a place that sticks out of the padded row is left out, and so is a fraction of a move",
    1296: "Padding is added at both ends of a row",
    648: "That is without the padding, which makes each row longer",
    972: "The first place counts as well: one more than the moves that fit",
}
check.returns(sized, ((1, 3, 8, 10), 4, 3, 3, 2, 1), expected=1728, mistakes=moved)
every = {3456: "Each of the 12 filters sees 8 / 4 = 2 channels", 216: "Divide by the groups once, not twice"}
check.returns(grouped, ((1, 8, 6, 6), 12, 1, 1, 0, 4), expected=864, mistakes=every)
one = {3240: "That is one image, and there are 5"}
check.returns(together, ((5, 4, 9, 11), 6, 3, 2, 1, 2), expected=16200, mistakes=one)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(7001)
for goal in (plain, sized, grouped, together) * 4:
    images, groups, stride, padding = 1, 1, 1, 0
    if goal in (sized, together):
        stride, padding = draw.randint(2, 3), draw.randint(1, 2)
    if goal in (grouped, together):
        groups = draw.randint(2, 5)
    if goal == together:
        images = draw.randint(2, 9)
    kernel = 1 if goal == grouped else draw.choice([3, 5])  # with 1 there is an output for each pixel
    channels, filters = groups * draw.randint(2, 4), groups * draw.randint(2, 4)
    # a height at which the last place sticks out, and a width that is not the height
    height = kernel - 2 * padding + stride * draw.randint(4, 6) + stride - 1
    shape = (images, channels, height, height + draw.randint(1, 6))
    layer = nn.Conv2d(channels, filters, kernel, stride=stride, padding=padding, groups=groups)
    counted_macs = operations.profile_ops(layer, shape).forward_macs
    check.returns(goal, (shape, filters, kernel, stride, padding, groups), expected=counted_macs)
for channels in (7, 12):  # depthwise: a group for each channel
    layer = nn.Conv2d(channels, 2 * channels, 1, groups=channels)
    counted_macs = operations.profile_ops(layer, (1, channels, 9, 10)).forward_macs
    check.returns(grouped, ((1, channels, 9, 10), 2 * channels, 1, 1, 0, channels), expected=counted_macs)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: how many places?</summary>
#
# A padded row has `width + 2 * padding` pixels. The filter takes `kernel` of them where it begins; what is left allows
# `// stride` moves. Every move gives one more output than the first place alone. Height goes the same way.
#
# </details>
# <details><summary>Hint 2: how many products?</summary>
#
# One output is a sum over the height, the width and the channels of one filter, and a filter has
# `channels // groups` of them.
#
# </details>
# <details><summary>Hint 3: put together</summary>
#
# Outputs times the products of one output. There is an output for each image, filter, row of places and place in a row.
#
# </details>


# %% wrong="convolution_macs" says="Each of the 12 filters sees 8 / 4 = 2 channels" gets=2
def convolution_macs(input_shape, out_channels, kernel, stride, padding, _groups):
    images, channels, *sides = input_shape
    rows, columns = ((side + 2 * padding - kernel) // stride + 1 for side in sides)
    return images * out_channels * rows * columns * channels * kernel**2


# %% wrong="convolution_macs" says="That puts each filter on the input's 28 by 28 pixels" gets=1
def convolution_macs(input_shape, out_channels, kernel, _stride, _padding, groups):
    images, channels, height, width = input_shape
    return images * out_channels * height * width * channels // groups * kernel**2


# %% wrong="convolution_macs" says="That counts a bias as a MAC" gets=0
def convolution_macs(input_shape, out_channels, kernel, stride, padding, groups):
    images, channels, *sides = input_shape
    rows, columns = ((side + 2 * padding - kernel) // stride + 1 for side in sides)
    return images * out_channels * rows * columns * (channels // groups * kernel**2 + 1)


# %% wrong="convolution_macs" says="That is FLOP" gets=0
def convolution_macs(input_shape, out_channels, kernel, stride, padding, groups):
    images, channels, *sides = input_shape
    rows, columns = ((side + 2 * padding - kernel) // stride + 1 for side in sides)
    return 2 * images * out_channels * rows * columns * channels // groups * kernel**2


# %% wrong="convolution_macs" says="Round down: a place that sticks out" gets=2
def convolution_macs(input_shape, out_channels, kernel, stride, padding, groups):
    images, channels, *sides = input_shape
    rows, columns = (-(-(side + 2 * padding - kernel) // stride) + 1 for side in sides)
    return images * out_channels * rows * columns * channels // groups * kernel**2


# %% wrong="convolution_macs" says="Padding is added at both ends of a row" gets=2
def convolution_macs(input_shape, out_channels, kernel, stride, padding, groups):
    images, channels, *sides = input_shape
    rows, columns = ((side + padding - kernel) // stride + 1 for side in sides)
    return images * out_channels * rows * columns * channels // groups * kernel**2


# %% wrong="convolution_macs" says="That is one image, and there are 5" gets=3
def convolution_macs(input_shape, out_channels, kernel, stride, padding, groups):
    _, channels, *sides = input_shape
    rows, columns = ((side + 2 * padding - kernel) // stride + 1 for side in sides)
    return out_channels * rows * columns * channels // groups * kernel**2


# %% [markdown]
# ## Exercise 2: a step in which some layers are frozen
#
# When a network that was trained on one task learns another, some layers are often *frozen*: their weights stay as they
# are (`requires_grad` is False), the others are trained. What does such a step cost? Here is a row of three layers with
# 1000, 400 and 40 MACs in the forward, counted three times.


# %%
def backward_macs(*frozen):
    """Return the MACs of the backward of each layer when the layers in the places `frozen` (from 0) are frozen."""
    model = nn.Sequential(nn.Linear(20, 50), nn.Linear(50, 8), nn.Linear(8, 5))
    for place in frozen:
        model[place].requires_grad_(False)
    counted = operations.profile_ops(model, (1, 20))
    return [counted.layer(str(place)).backward_macs for place in range(3)]


columns = {
    "forward": [1000, 400, 40],
    "backward, all trained": backward_macs(),
    "backward, layer 2 frozen": backward_macs(1),
    "backward, layer 1 frozen": backward_macs(0),
}
pd.DataFrame(columns, index=["layer 1", "layer 2", "layer 3"])

# %% [markdown]
# Backward, a layer has up to two products, each as large as its forward: the gradient of its weights, and the gradient
# of its input, for a layer before it. Find out from the table who needs which.
#
# Write `step_macs(layers)`, the MACs of a whole training step, forward and backward. `layers` is a list with a pair for
# each layer, in the order of the forward: its MACs in the forward, and True where it is trained, False where it is
# frozen. The layers stand in a row, each reads the output of the one before it, and the first reads the data. A frozen
# layer is frozen with its bias. There is at least one layer, and all may be frozen.


# %% answer="step_macs"
def step_macs(layers):
    """Return the MACs of a training step: step_macs([(1000, True), (400, True), (40, True)]) is 3320."""
    ### BEGIN SOLUTION
    total, waiting = 0, False
    for macs, trained in layers:
        total += macs * (1 + trained + waiting)
        waiting = waiting or trained
    return total
    ### END SOLUTION


# %% checks="step_macs" points=4
check = exercises.Checks("Exercise 2, step_macs", step_macs)
full, passed_on = "a step in which every layer is trained", "a frozen layer passes the gradient on"
front, nothing = "nothing goes back beyond the first trained layer", "without a trained layer there is no backward"
multiples = {
    4320: "That is 3 times everything, but nobody asks for the gradient of the data",
    2880: "That is one product a layer in the backward; a layer may have two",
    1440: "That is the forward alone",
    1880: "That is the backward alone",
}
check.returns(full, ([(1000, True), (400, True), (40, True)],), expected=3320, mistakes=multiples)
alone = {120: "That is 3 times the forward; a single layer reads the data, whose gradient nobody needs"}
check.returns(full, ([(40, True)],), expected=80, mistakes=alone)
middle = {
    3320: "That is the step with all layers trained; a frozen layer needs no gradient of its weights",
    2520: "Layer 1 waits for a gradient, which comes to it through the frozen layer 2",
    2120: "A frozen layer still runs forward",
}
check.returns(passed_on, ([(1000, True), (400, False), (40, True)],), expected=2920, mistakes=middle)
early = {
    2320: "Nobody waits for the gradient of layer 2's input: no layer before it is trained",
    3320: "That is the step with all layers trained; a frozen layer needs no gradient of its weights",
    1320: "The first layer is frozen: neither of its products is computed, so there is nothing to take off",
}
check.returns(front, ([(1000, False), (400, True), (40, True)],), expected=1920, mistakes=early)
check.returns(front, ([(1000, False), (400, False), (40, True)],), expected=1480, mistakes={1880: early[2320]})
idle = {0: "The forward still runs", 1880: "That passes a gradient back that no layer uses"}
check.returns(nothing, ([(1000, False), (400, False), (40, False)],), expected=1440, mistakes=idle)
check.report()
### BEGIN HIDDEN TESTS
import itertools
import random

draw = random.Random(7013)
for count in (1, 2, 3, 5, 8):
    mixed = [draw.random() < 0.5 for _ in range(count)]
    for goal, trained in (
        (full, [True] * count),
        (passed_on, [True, False, *mixed]),
        (front, [False] * draw.randint(1, 3) + [True] * count),
        (nothing, [False] * count),
    ):
        widths = [draw.randint(3, 40) for _ in range(len(trained) + 1)]
        model = nn.Sequential(*(nn.Linear(*sides) for sides in itertools.pairwise(widths)))
        for layer, one in zip(model, trained, strict=True):
            layer.requires_grad_(one)
        counted = operations.profile_ops(model, (draw.randint(1, 9), widths[0]))
        forward_macs = [counted.layer(str(place)).forward_macs for place in range(len(trained))]
        whole_macs = counted.forward_macs + counted.backward_macs
        check.returns(goal, (list(zip(forward_macs, trained, strict=True)),), expected=whole_macs)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: who needs the gradient of the weights?</summary>
#
# A trained layer, and no other. Compare layer 2 in the columns "all trained" and "layer 2 frozen".
#
# </details>
# <details><summary>Hint 2: who needs the gradient of a layer's input?</summary>
#
# Any trained layer before it, however far away. Compare layer 2 in "all trained" and in "layer 1 frozen": when nobody
# before it is trained, the product is not computed, whether layer 2 itself is trained or not.
#
# </details>
# <details><summary>Hint 3: one loop</summary>
#
# Go through the layers in the order of the forward, and keep a variable that says whether a trained layer has come by.
# Each layer counts once, once more if it is trained, and once more if that variable is True; set it afterwards.
#
# </details>


# %% wrong="step_macs" says="That is 3 times everything" gets=0
def step_macs(layers):
    return sum(3 * macs for macs, _ in layers)


# %% wrong="step_macs" says="That is one product a layer in the backward" gets=1
def step_macs(layers):
    return sum(macs * (1 + trained) for macs, trained in layers)


# %% wrong="step_macs" says="That is the step with all layers trained" gets=1
def step_macs(layers):
    return 3 * sum(macs for macs, _ in layers) - layers[0][0]


# %% wrong="step_macs" says="which comes to it through the frozen layer 2" gets=3
def step_macs(layers):
    first = next((place for place, (_, trained) in enumerate(layers) if trained), None)
    return sum(macs * ((3 if place > first else 2) if trained else 1) for place, (macs, trained) in enumerate(layers))


# %% wrong="step_macs" says="A frozen layer still runs forward" gets=1
def step_macs(layers):
    trained_macs = [macs for macs, trained in layers if trained]
    return 3 * sum(trained_macs) - sum(trained_macs[:1])


# %% wrong="step_macs" says="Nobody waits for the gradient of layer 2's input" gets=2
def step_macs(layers):
    return sum(macs * (1 + trained + (place > 0)) for place, (macs, trained) in enumerate(layers))


# %% [markdown]
# ## Exercise 3: what the allocator reserves
#
# On a GPU PyTorch asks the driver for memory in blocks and keeps them. What a tensor frees becomes a *free block*, kept
# for a later tensor. This is such an allocator, simplified: a block is handed out whole, and never split or joined.
#
# | what happens | what the allocator does |
# |---|---|
# | a tensor asks for bytes, and free blocks are large enough | it hands out the smallest of these |
# | a tensor asks for bytes, and no free block is large enough | it takes a new block of this size from the driver |
# | a tensor is freed | its block is free again, whole, even where the tensor was smaller |
#
# A record has a pair for each event: a name, and the bytes that are asked for (more than zero) or freed (less than
# zero). Here is one, with what is [reserved](../glossary.md#caching-allocator) after each event:

# %%
requests = [("a", 500), ("b", 300), ("a", -500), ("b", -300), ("c", 200), ("d", 600)]
does = ["new block of 500", "new block of 300", "free: 500", "free: 500, 300", "takes the 300", "new block of 600"]
reserved = [500, 800, 800, 800, 800, 1400]
table = {"event": [f"{name} {size:+}" for name, size in requests], "allocator": does, "reserved": reserved}
pd.DataFrame(table)

# %% [markdown]
# At the end tensors hold 800 bytes, and 1,400 are reserved: the rest is [fragmentation](../glossary.md#fragmentation).
#
# Write `reserved_bytes(requests)`, which returns the bytes of all blocks at the end of a record. A name is asked for
# again only after it was freed, and only what is held is freed. There may be no event at all.


# %% answer="reserved_bytes"
def reserved_bytes(requests):
    """Return the bytes of all blocks at the end: reserved_bytes([("a", 5), ("a", -5), ("b", 2)]) is 5."""
    ### BEGIN SOLUTION
    free, held, reserved = [], {}, 0
    for name, size in requests:
        if size < 0:
            free.append(held.pop(name))
            continue
        fitting = [block for block in free if block >= size]
        if fitting:
            held[name] = min(fitting)
            free.remove(held[name])
        else:
            held[name] = size
            reserved += size
    return reserved
    ### END SOLUTION


# %% checks="reserved_bytes" points=4
check = exercises.Checks("Exercise 3, reserved_bytes", reserved_bytes)
new, again = "where no free block is large enough, a new one is taken", "a free block is used again"
smallest, whole = "of several that are large enough, the smallest", "a block is freed whole"
pieces = [("a", 200), ("b", 200), ("a", -200), ("b", -200), ("c", 300)]
mistakes = {
    400: "Two free blocks of 200 do not make one of 300: they lie apart",
    300: "Only what is alive at the end; free blocks stay reserved",
}
check.returns(new, (pieces,), expected=700, mistakes=mistakes)
check.returns(new, ([],), expected=0)
once = [("a", 300), ("a", -300), ("b", 300)]
check.returns(again, (once,), expected=300, mistakes={600: "The block of a is free: b takes it"})
less = {500: "A block that is larger than the tensor serves it as well"}
check.returns(again, ([("a", 300), ("a", -300), ("b", 200)],), expected=300, mistakes=less)
chosen = {1300: "c took the block of 500, so d needs a new one: give c the smallest that is large enough"}
both = [("a", 500), ("b", 300), ("a", -500), ("b", -300), ("c", 300), ("d", 500)]
check.returns(smallest, (both,), expected=800, mistakes=chosen)
other = [("a", 500), ("b", 300), ("b", -300), ("a", -500), ("c", 300), ("d", 500)]
check.returns(smallest, (other,), expected=800, mistakes=chosen)
shrunk = {1000: "b held the block of 500: when b is freed, 500 are free, not 200"}
longer = [("a", 500), ("a", -500), ("b", 200), ("b", -200), ("c", 500)]
check.returns(whole, (longer,), expected=500, mistakes=shrunk)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(7027)


def truth(requests, choose):
    """Serve the requests in another way: blocks by number, of which the free ones that fit are chosen from."""
    sizes, holder = [], {}
    for name, size in requests:
        if size < 0:
            del holder[name]
            continue
        idle = [number for number in range(len(sizes)) if number not in holder.values() and sizes[number] >= size]
        if not idle:
            sizes.append(size)
        holder[name] = choose(idle, key=lambda number: sizes[number]) if idle else len(sizes) - 1
    return sum(sizes)


def served_in_order(places):
    """Return what first, last and largest blocks would give in place of the smallest, and that itself."""
    ways = (lambda idle, **_: idle[0], lambda idle, **_: idle[-1], max)
    return [truth(places, way) for way in ways], truth(places, min)


for count in (2, 3, 5, 8):
    growing = sorted(draw.sample(range(10, 90), count))  # each larger than every block before it
    made = [event for place, size in enumerate(growing) for event in ((f"t{place}", size), (f"t{place}", -size))]
    check.returns(new, (made,), expected=sum(growing))
    made = []
    for place, size in enumerate(sorted(draw.sample(range(50, 90), count))):  # one block is free at a time
        made += [(f"t{place}", size), (f"t{place}", -size), (f"u{place}", draw.randint(45, size))]
    check.returns(again, (made,), expected=truth(made, min))
    others, right = [0], 0
    while min(others) <= right:
        sizes = draw.sample(range(10, 90), count + 2)
        names = draw.sample(range(count + 2), count + 2)
        made = [(f"t{place}", size) for place, size in enumerate(sizes)]
        made += [(f"t{place}", -sizes[place]) for place in names]
        made += [(f"u{place}", size) for place, size in enumerate(draw.sample(sizes, len(sizes)))]
        others, right = served_in_order(made)
    check.returns(smallest, (made,), expected=right)
    size, made = draw.randint(60, 90), []
    for place in range(count):
        made += [(f"t{place}", size), (f"t{place}", -size)]
        part = draw.randint(10, 50)
        made += [(f"u{place}", part), (f"u{place}", -part)]
    check.returns(whole, ([*made, ("last", size)],), expected=size)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what to remember</summary>
#
# A list of the sizes of the free blocks, a dictionary from each name to the size of the block that it holds, and what
# is reserved so far.
#
# </details>
# <details><summary>Hint 2: a request</summary>
#
# `fitting = [block for block in free if block >= size]`. If it is empty, reserve a new block; else `min(fitting)`
# leaves the list of free blocks.
#
# </details>
# <details><summary>Hint 3: a free</summary>
#
# The name's block goes back to the free ones with the size that the dictionary has, which is the block's: the event
# says how large the *tensor* was.
#
# </details>


# %% wrong="reserved_bytes" says="The block of a is free: b takes it" gets=1
def reserved_bytes(requests):
    return sum(size for _, size in requests if size > 0)


# %% wrong="reserved_bytes" says="Two free blocks of 200 do not make one of 300" gets=2
def reserved_bytes(requests):
    alive = most = 0
    for _, size in requests:
        alive += size
        most = max(most, alive)
    return most


# %% wrong="reserved_bytes" says="give c the smallest that is large enough" gets=3
def reserved_bytes(requests):
    free, held, reserved = [], {}, 0
    for name, size in requests:
        if size < 0:
            free.append(held.pop(name))
            continue
        block = next((block for block in free if block >= size), None)
        if block is None:
            block, reserved = size, reserved + size
        else:
            free.remove(block)
        held[name] = block
    return reserved


# %% wrong="reserved_bytes" says="when b is freed, 500 are free, not 200" gets=3
def reserved_bytes(requests):
    free, reserved = [], 0
    for _, size in requests:
        if size < 0:
            free.append(-size)
            continue
        fitting = [block for block in free if block >= size]
        if fitting:
            free.remove(min(fitting))
        else:
            reserved += size
    return reserved


# %% wrong="reserved_bytes" says="A block that is larger than the tensor serves it as well" gets=2
def reserved_bytes(requests):
    free, held, reserved = [], {}, 0
    for name, size in requests:
        if size < 0:
            free.append(held.pop(name))
        elif size in free:
            free.remove(size)
            held[name] = size
        else:
            held[name] = size
            reserved += size
    return reserved


# %% [markdown]
# ## Question 1: is checkpointing free?
#
# A colleague turns checkpointing on everywhere, sees the memory of a step fall, and calls it free. Say what it costs
# and where that shows, why the peak does not fall to nothing, and for which layers you would leave it off.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="checkpointing" points=2
# A full answer says:
#
# - 1 point: the forward of the checkpointed part runs again in the backward, so operations and time of the step grow,
#   by about a third for the whole network; the peak keeps the inputs of the parts, and one part's activations while it
#   is repeated, beside weights, gradients and optimizer state.
# - 1 point: layers whose repetition costs much and keeps little (large products, small outputs); it pays where a layer
#   keeps much and computes little.

# %% [markdown]
# ## Question 2: your own model
#
# Take a model that you would like to train, or an operator of your own, and the memory of a device that you could have.
# First by hand: bytes of parameters, gradients and optimizer state, what one example keeps for the backward (with the
# rules of Parts 2 and 3 of the lesson), and from these the peak at a batch of your choice. Then let
# `memory.estimate_peak_memory` find the peak (on `meta` if it is large) or measure it. If the two are more than a
# factor of two apart, find out which tensors you missed. Last, say what you would change first to train with twice the
# batch.
#
# Five to ten sentences with your numbers; a person reads them.

# %% [markdown] written="own_model" points=2
# A full answer says:
#
# - 1 point: both numbers, the one by hand split into what goes with the parameters and what goes with the batch; and
#   where they are more than twice apart, the tensors that make the difference, named from the estimate's `alive` (often
#   logits and loss, attention scores, or outputs that a fused layer does not keep).
# - 1 point: a change that attacks the larger part of the peak (checkpointing, a narrower type or fused attention where
#   activations are most; another optimizer or sharding where parameters and state are), with about what it saves.

# %% [markdown]
# ## What you have practised
#
# Counting a convolution from its shapes, telling which products of a backward are needed and which are not, and finding
# what an allocator reserves beyond what tensors hold. `operations.profile_ops` does the first two for whole networks,
# and on a GPU `torch.cuda.max_memory_reserved` tells the third; now you know what they count.
