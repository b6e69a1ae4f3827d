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
# Three functions to write, for [lesson 07](../07_working_set.ipynb). Each exercise has a picture or a table, a function
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
# ## Exercise 3: the peak, and who is alive there
#
# This is a training step of a small network as its allocator saw it, one event at a time: which tensor, and how many
# bytes were taken (more than zero) or given back (less than zero). (The sizes are made up, so that you can add them up
# by hand.)

# %%
events = [("weights", 400), ("batch", 300), ("hidden", 600), ("output", 100), ("d_output", 100), ("output", -100)]
events += [("d_hidden", 600), ("d_output", -100), ("hidden", -600), ("d_weights", 400), ("d_hidden", -600)]
pd.DataFrame(events, columns=["tensor", "bytes"]).rename_axis("event").transpose()

# %%
lives = {"weights": (0, 11), "batch": (1, 11), "hidden": (2, 8), "output": (3, 5)}
gradients = {"d_output": (4, 7), "d_hidden": (6, 10), "d_weights": (9, 11)}
spans = [plotting.Span(name, *life, "forward") for name, life in lives.items()]
spans += [plotting.Span(name, *life, "backward") for name, life in gradients.items()]
drawn = plotting.gantt(spans, title="Who is alive when", unit="", xlabel="event")
alt = "Seven bars: weights and batch live to the end; hidden lives from event 2 to 8, and d_hidden from 6 to 10."
plotting.show(drawn, alt=alt)

# %% [markdown]
# `hidden` is [saved for backward](../glossary.md#saved-for-backward), and lives until the gradient `d_hidden` is there.
# At that event the step has its [peak](../glossary.md#peak-memory).
#
# Write `peak_bytes(events)`, which returns two things:
#
# 1. the most bytes that are alive at one moment: after one of the events;
# 2. the list of the names of what is alive at that moment, in the order in which it was allocated. If the peak is
#    reached more than once, take the first time.
#
# Real records are not tidy, so this is agreed:
#
# | what happens | what it means |
# |---|---|
# | a tensor is never freed | it is alive until the end |
# | a name is freed that is not alive: freed before, or allocated before the record began | nothing changes |
# | a name is allocated again, after it was freed | it is a new tensor, and may have another size |
# | there is no event at all | the peak is 0, and the list is empty |
#
# A name is never allocated while it is alive, and a tensor that is alive is freed with the size that it has.


# %% answer="peak_bytes"
def peak_bytes(events):
    """Return the peak of the live bytes and the names alive there: peak_bytes([("a", 4)]) is (4, ["a"])."""
    ### BEGIN SOLUTION
    alive, highest, names = {}, 0, []
    for name, size in events:
        if size > 0:
            alive[name] = size
        else:
            alive.pop(name, None)
        if sum(alive.values()) > highest:
            highest, names = sum(alive.values()), list(alive)
    return highest, names
    ### END SOLUTION


# %% checks="peak_bytes" points=4
check = exercises.Checks("Exercise 3, peak_bytes", peak_bytes)
most, ghosts = "the peak is the most that is alive at one moment", "a free of what is not alive changes nothing"
then, earliest = "the names are those alive at the peak", "of equal peaks the first counts"
short = [("a", 300), ("b", 500), ("a", -300), ("c", 100)]
mistakes = {
    (900, ("a", "b", "c")): "That is the sum of everything; a was freed before c was allocated",
    (500, ("b",)): "That is the largest tensor; others are alive beside it",
    (600, ("b", "c")): "That is what is alive at the end",
    (800, ("b", "c")): "Those names are alive at the end; keep a copy of them, list(...), at the peak",
    **dict.fromkeys((800, 900), "Return two things: the bytes, and the list of the names"),
}
check.returns(most, (short,), expected=(800, ["a", "b"]), mistakes=mistakes)
check.returns(
    most, ([("a", 300), ("b", 200)],), expected=(500, ["a", "b"]), mistakes={(0, ()): "Neither is ever freed"}
)
check.returns(most, (events,), expected=(2000, ["weights", "batch", "hidden", "d_output", "d_hidden"]))
check.returns(most, ([],), expected=(0, []))
again = {(300, ("a",)): "The second free of a took 300 bytes away from the others"}
check.returns(ghosts, ([("a", 300), ("a", -300), ("a", -300), ("b", 500)],), expected=(500, ["b"]), mistakes=again)
check.returns(
    ghosts, ([("old", -200), ("a", 300)],), expected=(300, ["a"]), mistakes={(100, ("a",)): "old was not alive"}
)
went_on = {(800, ("a",)): "b was alive at the peak and freed later; keep a copy of the names, list(...), at the peak"}
check.returns(then, ([("a", 300), ("b", 500), ("b", -500)],), expected=(800, ["a", "b"]), mistakes=went_on)
order = {(800, ("a", "b")): "That a was allocated after b; it is another tensor than the first a"}
reused = [("a", 100), ("b", 500), ("a", -100), ("a", 300), ("b", -500), ("c", 200)]
check.returns(then, (reused,), expected=(800, ["b", "a"]), mistakes=order)
later = {(400, ("b",)): "400 bytes are alive twice; the first time counts"}
check.returns(earliest, ([("a", 400), ("a", -400), ("b", 400), ("b", -400)],), expected=(400, ["a"]), mistakes=later)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(7019)


def truth(events):
    """Look at every moment on its own: alive is what was last allocated, not freed."""
    moments = [(0, [])]
    for end in range(1, len(events) + 1):
        last = {name: (place, size) for place, (name, size) in enumerate(events[:end])}
        alive = sorted((place, size, name) for name, (place, size) in last.items() if size > 0)
        moments.append((sum(size for _, size, _ in alive), [name for _, _, name in alive]))
    return max(moments, key=lambda moment: moment[0]), moments


def record(length, *, sizes, ghosts, reuse):
    """Return random events: tensors that come and go, names that may come back, frees of what is not alive."""
    made, alive, dead = [], {}, {"before": 7 * max(sizes)} if ghosts else {}
    for place in range(length):
        choice = draw.random()
        if ghosts and dead and choice < 0.25:
            name = draw.choice(sorted(dead))
            made.append((name, -dead[name]))
        elif alive and choice < 0.55:
            name = draw.choice(sorted(alive))
            dead[name] = alive.pop(name)
            made.append((name, -dead[name]))
        else:
            free_names = sorted(set(dead) - {"before"}) if reuse else []
            name = draw.choice(free_names) if free_names and draw.random() < 0.5 else f"t{place}"
            dead.pop(name, None)
            alive[name] = draw.choice(sizes)
            made.append((name, alive[name]))
    return made


for length in (9, 16, 30, 60):
    for goal in (most, ghosts, then, earliest):
        sizes = [1, 2, 3] if goal == earliest else [2**power for power in range(3, 16)]
        wanted = False
        while not wanted:
            made = record(length, sizes=sizes, ghosts=goal == ghosts, reuse=goal == then)
            (peak, names), moments = truth(made)
            reached = [alive for size, alive in moments if size == peak]
            tie = any(alive != names for alive in reached)
            wanted = tie == (goal == earliest) and moments[-1][0] < peak and len(names) > 1
            if wanted and goal == ghosts:  # end at the peak, so that this goal asks for nothing else
                made = [*made[: moments.index((peak, names))], ("before", -7)]
                wanted = ("before", -7 * max(sizes)) in made
        check.returns(goal, (made,), expected=(peak, names))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what to remember</summary>
#
# A dictionary from the name to the bytes of what is alive. It keeps the order in which its keys came.
#
# </details>
# <details><summary>Hint 2: an event</summary>
#
# Bytes above zero put a name into the dictionary. Otherwise the name goes: `alive.pop(name, None)` takes it out, and
# does not mind if it is not there.
#
# </details>
# <details><summary>Hint 3: the peak</summary>
#
# After each event compare `sum(alive.values())` with the highest so far. If it is higher, and not merely equal, keep
# it, with `list(alive)`: a copy, which later events do not change.
#
# </details>


# %% wrong="peak_bytes" says="That is the sum of everything" gets=0
def peak_bytes(events):
    allocated = {name: size for name, size in events if size > 0}
    return sum(allocated.values()), list(allocated)


# %% wrong="peak_bytes" says="That is the largest tensor" gets=0
def peak_bytes(events):
    name, size = max(events, key=lambda event: event[1])
    return size, [name]


# %% wrong="peak_bytes" says="That is what is alive at the end" gets=0
def peak_bytes(events):
    alive = {}
    for name, size in events:
        alive[name] = alive.get(name, 0) + size
    return sum(alive.values()), [name for name, size in alive.items() if size > 0]


# %% wrong="peak_bytes" says="The second free of a took 300 bytes away" gets=3
def peak_bytes(events):
    live = highest = 0
    alive, names = {}, []
    for name, size in events:
        live += size
        if size > 0:
            alive[name] = size
        else:
            alive.pop(name, None)
        if live > highest:
            highest, names = live, list(alive)
    return highest, names


# %% wrong="peak_bytes" says="b was alive at the peak and freed later" gets=1
def peak_bytes(events):
    alive, highest, names = [], 0, []
    sizes = {}
    for name, size in events:
        if size > 0:
            alive.append(name)
            sizes[name] = size
        elif name in alive:
            alive.remove(name)
        if sum(sizes[one] for one in alive) > highest:
            highest, names = sum(sizes[one] for one in alive), alive
    return highest, names


# %% wrong="peak_bytes" says="400 bytes are alive twice" gets=3
def peak_bytes(events):
    alive, highest, names = {}, 0, []
    for name, size in events:
        if size > 0:
            alive[name] = size
        else:
            alive.pop(name, None)
        if sum(alive.values()) >= highest:
            highest, names = sum(alive.values()), list(alive)
    return highest, names


# %% wrong="peak_bytes" says="That a was allocated after b" gets=3
def peak_bytes(events):
    alive, highest, names = {}, 0, []
    for name, size in events:
        alive[name] = max(size, 0)
        if sum(alive.values()) > highest:
            highest, names = sum(alive.values()), [one for one in alive if alive[one]]
    return highest, names


# %% [markdown]
# ## Question 1: where does the memory go?
#
# Training a network needs several times the memory of running it. Name the parts that are added, say which of them
# grow with the batch and which do not, and which one you would attack first for a small network on large images.
#
# Two to five sentences; a person reads them.

# %% [markdown] written="memory_goes" points=2
# A full answer says:
#
# - 1 point: gradients and the optimizer's state, which go with the weights, and the activations that are kept for the
#   backward, which grow with the batch; both groups named and told apart. Gradients of activations and the workspace
#   belong to the second group; nobody loses the point for leaving them out.
# - 1 point: the kept activations, since on large images they outweigh the weights: a smaller batch, checkpointing, or
#   a narrower type.

# %% [markdown]
# ## Question 2: is checkpointing free?
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
# ## What you have practised
#
# Counting a convolution from its shapes, telling which products of a backward are needed and which are not, and finding
# the peak of a step from the lives of its tensors. `operations.profile_ops` and `memory.estimate_peak_memory` do these
# for whole networks; now you know what they count.
