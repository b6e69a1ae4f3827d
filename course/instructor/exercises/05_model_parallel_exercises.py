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
# # Model parallel: exercises
#
# Three functions to write, for [lesson 05](../05_model_parallel.ipynb). Each exercise has a table or a picture, a
# function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. No process is started here, and nothing depends on how fast your machine
# is.

# %%
from helpers import exercises, plotting

# %% [markdown]
# ## Exercise 1: what a stage keeps
#
# A stage of a [pipeline](../glossary.md#pipeline-parallelism) works through a list of passes, such as
#
# | pass | 1 | 2 | 3 | 4 | 5 | 6 |
# |---|---|---|---|---|---|---|
# | kind | forward | forward | backward | forward | backward | backward |
# | [microbatch](../glossary.md#microbatch) | 0 | 1 | 0 | 2 | 1 | 2 |
#
# A forward pass leaves its microbatch's activations in memory; its backward pass is the last that needs them. In a
# zero-bubble schedule the backward pass is cut in two, and only `"backward-weight"` is the last: a list in which that
# kind occurs keeps the activations of every microbatch until then.
#
# Write `peak_bytes(passes, sizes)`. `passes` is a list of `(kind, microbatch)`, `sizes[microbatch]` are the bytes of
# its activations. Return the most bytes that are kept at one moment.


# %% answer="peak_bytes"
def peak_bytes(passes, sizes):
    """Return the peak: peak_bytes([("forward", 0), ("backward", 0)], [100]) is 100."""
    ### BEGIN SOLUTION
    last = "backward-weight" if any(kind == "backward-weight" for kind, _ in passes) else "backward"
    kept = peak = 0
    for kind, microbatch in passes:
        if kind == "forward":
            kept += sizes[microbatch]
        elif kind == last:
            kept -= sizes[microbatch]
        peak = max(peak, kept)
    return peak
    ### END SOLUTION


# %% checks="peak_bytes" points=3
check = exercises.Checks("Exercise 1, peak_bytes", peak_bytes)
plain, unequal = "passes of equal microbatches are followed", "microbatches of unequal size are followed"
cut = "backward passes in two parts are followed"
taking_turns = [("forward", 0), ("forward", 1), ("backward", 0), ("forward", 2), ("backward", 1), ("backward", 2)]
everything = {30: "That is the sum of all microbatches; a backward pass frees what it was the last to need"}
first = {10: "Two microbatches are alive after the second pass, and none is freed before the third"}
number = {2: "Bytes, please, not microbatches"}
check.returns(plain, (taking_turns, [10, 10, 10]), expected=20, mistakes=everything | first | number)
largest = {2 * 9: "Take sizes[microbatch] of each: microbatches may be of different sizes"}
all_of_them = {17: "That is the sum of all"}
check.returns(unequal, (taking_turns, [1, 9, 7]), expected=16, mistakes=largest | number | all_of_them)
in_parts = [
    ("forward", 0),
    ("backward", 0),
    ("forward", 1),
    ("backward", 1),
    ("backward-weight", 0),
    ("backward-weight", 1),
]
early = {5: "backward-weight still needs the activations; here backward frees nothing"}
check.returns(cut, (in_parts, [5, 5]), expected=10, mistakes=early)
check.report()
### BEGIN HIDDEN TESTS
import random

from helpers.parallel import pipeline_schedule

draw = random.Random(5001)


def truth(passes, sizes, last):
    """The largest sum, over moments, of what has gone forward and not yet through its last pass."""
    ends = {microbatch: place for place, (kind, microbatch) in enumerate(passes) if kind == last}
    starts = {microbatch: place for place, (kind, microbatch) in enumerate(passes) if kind == "forward"}
    return max(sum(sizes[m] for m in starts if starts[m] <= now < ends[m]) for now in range(len(passes)))


for name, goal in (("gpipe", plain), ("1f1b", plain), ("1f1b", unequal), ("zero_bubble", cut)) * 2:
    ranks = draw.randint(3, 6)
    microbatches, rank = ranks + draw.randint(2, 6), draw.randrange(1, ranks - 1)
    modelled = pipeline_schedule(name, ranks=ranks, microbatches=microbatches)
    passes = [(kind, microbatch) for kind, _, microbatch in modelled.order(rank)]
    sizes = [draw.randint(3, 99) for _ in range(microbatches)]
    sizes = sizes if goal == unequal else [sizes[0]] * microbatches
    last = "backward-weight" if name == "zero_bubble" else "backward"
    check.returns(goal, (passes, sizes), expected=truth(passes, sizes, last))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: two numbers</summary>
#
# Go through the passes with two numbers: what is kept now, and the most so far.
#
# </details>
# <details><summary>Hint 2: which pass frees</summary>
#
# Find out before the loop whether `"backward-weight"` occurs in the list at all.
#
# </details>
# <details><summary>Hint 3: the loop</summary>
#
# A forward pass adds `sizes[microbatch]`, the last pass takes it away, any other changes nothing.
#
# </details>


# %% wrong="peak_bytes" says="That is the sum of all microbatches" gets=0
def peak_bytes(passes, sizes):  # noqa: ARG001
    return sum(sizes)


# %% wrong="peak_bytes" says="backward-weight still needs the activations" gets=2
def peak_bytes(passes, sizes):
    kept = peak = 0
    for kind, microbatch in passes:
        kept += {"forward": 1, "backward": -1}.get(kind, 0) * sizes[microbatch]
        peak = max(peak, kept)
    return peak


# %% wrong="peak_bytes" says="microbatches may be of different sizes" gets=2
def peak_bytes(passes, sizes):
    last = "backward-weight" if any(kind == "backward-weight" for kind, _ in passes) else "backward"
    kept = peak = 0
    for kind, _ in passes:
        kept += (kind == "forward") - (kind == last)
        peak = max(peak, kept)
    return peak * max(sizes)


# %% [markdown]
# ## Exercise 2: neighbours in a mesh
#
# Ranks stand in a [mesh](../glossary.md#mesh) of pipeline x data x tensor. Tensor ranks are next to each other, stages
# furthest apart. Twelve ranks as 3 stages x 2 data x 2 tensor:
#
# | stage | data 0, tensor 0 | data 0, tensor 1 | data 1, tensor 0 | data 1, tensor 1 |
# |--:|--:|--:|--:|--:|
# | 0 | 0 | 1 | 2 | 3 |
# | 1 | 4 | 5 | 6 | 7 |
# | 2 | 8 | 9 | 10 | 11 |
#
# A rank's neighbours along one dimension are the ranks whose other two numbers are its own: so it is one of them.
# Write `neighbours(rank, along, pipeline, data, tensor)`, where `along` is `"pipeline"`, `"data"` or `"tensor"`, and
# return the sorted list of them.


# %% answer="neighbours"
def neighbours(rank, along, pipeline, data, tensor):
    """Return the ranks along one dimension: neighbours(5, "data", 3, 2, 2) is [5, 7]."""
    ### BEGIN SOLUTION
    stage, data_rank, tensor_rank = rank // (tensor * data), rank // tensor % data, rank % tensor
    if along == "tensor":
        places = [(stage, data_rank, each) for each in range(tensor)]
    elif along == "data":
        places = [(stage, each, tensor_rank) for each in range(data)]
    else:
        places = [(each, data_rank, tensor_rank) for each in range(pipeline)]
    return [(s * data + d) * tensor + t for s, d, t in places]
    ### END SOLUTION


# %% checks="neighbours" points=3
check = exercises.Checks("Exercise 2, neighbours", neighbours)
goals = {kind: f"neighbours along {kind} are found" for kind in ("tensor", "data", "pipeline")}
expected = {"tensor": [6, 7], "data": [5, 7], "pipeline": [3, 7, 11]}
mistakes = {
    "tensor": {(5, 7): "Those are two apart, and tensor ranks stand next to each other"},
    "data": {(6, 7): "Those stand next to each other, and that place is the tensor ranks'"},
    "pipeline": {(6, 7, 8): "Stages are furthest apart: data x tensor ranks lie between two of them"},
}
from_here = {"tensor": (7, 8), "data": (7, 9), "pipeline": (7, 11, 15)}
for kind, goal in goals.items():
    others = tuple(rank for rank in expected[kind] if rank != 7)
    mistakes[kind] |= {
        others: "Rank 7 is one of them as well",
        from_here[kind]: "Begin with the rank whose number along this dimension is 0, not with rank 7",
    }
    check.returns(goal, (7, kind, 3, 2, 2), expected=expected[kind], mistakes=mistakes[kind])
check.report()
### BEGIN HIDDEN TESTS
import random

from helpers.parallel import Layout

draw = random.Random(5002)


def truth(rank, kind, pipeline, data, tensor):
    """All ranks whose places differ from this one's in one number alone, or in none."""
    layout = Layout(data=data, tensor=tensor, pipeline=pipeline)
    here, varied = layout.place(rank), ("pipeline", "data", "tensor").index(kind)
    fixed = [axis for axis in range(3) if axis != varied]
    return [each for each in range(layout.ranks) if all(layout.place(each)[axis] == here[axis] for axis in fixed)]


for _ in range(5):
    sizes = draw.sample([2, 3, 4, 5], 3)
    rank = draw.randrange(sizes[0] * sizes[1] * sizes[2])
    for kind, goal in goals.items():
        check.returns(goal, (rank, kind, *sizes), expected=truth(rank, kind, *sizes))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: a number with three digits</summary>
#
# A rank is like a number whose last digit counts tensor ranks, the one before it data ranks, the first stages.
#
# </details>
# <details><summary>Hint 2: take it apart</summary>
#
# `rank % tensor` is the last digit, `rank // tensor % data` the next, `rank // (tensor * data)` the first.
#
# </details>
# <details><summary>Hint 3: put it together</summary>
#
# The rank at (s, d, t) is `(s * data + d) * tensor + t`. Along one dimension let that digit run through its range.
#
# </details>


# %% wrong="neighbours" says="that place is the tensor ranks'" gets=1
def neighbours(rank, along, pipeline, data, tensor):
    stage, tensor_rank, data_rank = rank // (tensor * data), rank // data % tensor, rank % data
    places = {
        "tensor": [(stage, each, data_rank) for each in range(tensor)],
        "data": [(stage, tensor_rank, each) for each in range(data)],
        "pipeline": [(each, tensor_rank, data_rank) for each in range(pipeline)],
    }
    return [(s * tensor + t) * data + d for s, t, d in places[along]]


# %% wrong="neighbours" says="Rank 7 is one of them as well" gets=0
def neighbours(rank, along, pipeline, data, tensor):
    apart, ranks = {"tensor": (1, tensor), "data": (tensor, data), "pipeline": (tensor * data, pipeline)}[along]
    first = rank - rank // apart % ranks * apart
    return [first + each * apart for each in range(ranks) if first + each * apart != rank]


# %% wrong="neighbours" says="Begin with the rank whose number along this dimension is 0" gets=0
def neighbours(rank, along, pipeline, data, tensor):
    if along == "tensor":
        return [rank + each for each in range(tensor)]
    if along == "data":
        return [rank + each * tensor for each in range(data)]
    return [rank + each * tensor * data for each in range(pipeline)]


# %% wrong="neighbours" says="Stages are furthest apart" gets=2
def neighbours(rank, along, pipeline, data, tensor):
    if along == "pipeline":
        return [rank // pipeline * pipeline + each for each in range(pipeline)]
    block = rank // (tensor * data) * data * tensor
    if along == "data":
        return [block + each * tensor + rank % tensor for each in range(data)]
    return [rank // tensor * tensor + each for each in range(tensor)]


# %% [markdown]
# ## Exercise 3: when does a pipeline end?
#
# GPipe with three stages and two microbatches; the second stage takes twice as long as the others, and a message takes
# one unit of time:

# %%
rows = [("stage 0", 0), ("stage 0", 1), ("stage 1", 2), ("stage 1", 4), ("stage 2", 5), ("stage 2", 7)]
spans = [
    plotting.Span(lane, start, start + (2 if lane == "stage 1" else 1), "forward", str(place % 2))
    for place, (lane, start) in enumerate(rows)
]
drawn = plotting.gantt(
    spans, title="Forward passes: stage 2 waits for stage 1, which is never idle", unit="", xlabel="time"
)
plotting.show(drawn, alt="Three lanes of two forward passes each; those of stage 1 are twice as long and adjoin.")

# %% [markdown]
# Write `forward_end(times, microbatches, message)`: when has the last microbatch left the last stage? `times[s]` is
# how long stage `s` takes for a microbatch, `message` how long its result is on the way to the next stage. A stage
# does one microbatch after the other, in order, each as soon as it has arrived and the stage is free.


# %% answer="forward_end"
def forward_end(times, microbatches, message):
    """Return the end of the last forward pass: forward_end([1, 2, 1], 2, 1) is 8."""
    ### BEGIN SOLUTION
    arrived = [0] * microbatches
    for stage, time in enumerate(times):
        free = 0
        ended = []
        for microbatch in range(microbatches):
            free = max(free, arrived[microbatch]) + time
            ended.append(free)
        arrived = [each + message for each in ended] if stage < len(times) - 1 else ended
    return arrived[-1]
    ### END SOLUTION


# %% checks="forward_end" points=3
check = exercises.Checks("Exercise 3, forward_end", forward_end)
equal, slow, travelling = "equal stages are timed", "a slow stage is timed", "messages are timed"
serial = {24: "That has one stage at work at a time; stage 0 goes on while stage 1 works"}
no_bubble = {8: "That is one stage's own work; the last stage begins after all others have had the first microbatch"}
check.returns(equal, ([2, 2, 2], 4, 0), expected=12, mistakes=serial | no_bubble)
by_first = {6: "Every stage can be the slowest: let each microbatch wait until its stage is free"}
by_worst = {12: "That takes every stage for as slow as the slowest"}
check.returns(slow, ([1, 3, 1], 2, 0), expected=8, mistakes=by_first | by_worst)
none = {7: "Each result is `message` long on the way to the next stage"}
after = {22: "There is no stage after the last: its result need not travel"}
each_time = {37: "Messages of different microbatches travel while the stages work"}
check.returns(travelling, ([1, 1, 1], 5, 5), expected=17, mistakes=none | after | each_time)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(5003)


def truth(times, microbatches, message):
    """The longest path: through all stages, repeating passes at one stage, for several that is the slowest."""
    return sum(times) + (microbatches - 1) * max(times) + (len(times) - 1) * message


for _ in range(5):
    stages, microbatches = draw.randint(3, 6), draw.randint(4, 9)
    time = draw.randint(2, 9)
    check.returns(equal, ([time] * stages, microbatches, 0), expected=truth([time] * stages, microbatches, 0))
    times = [draw.randint(1, 9) for _ in range(stages)]
    times[draw.randrange(1, stages)] = 12
    check.returns(slow, (times, microbatches, 0), expected=truth(times, microbatches, 0))
    message = draw.randint(2, 9)
    check.returns(
        travelling, ([time] * stages, microbatches, message), expected=truth([time] * stages, microbatches, message)
    )
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one stage</summary>
#
# A stage begins a microbatch at the later of two times: when it has arrived, and when the one before it has ended.
#
# </details>
# <details><summary>Hint 2: the next stage</summary>
#
# Keep a list of when each microbatch arrives. For stage 0 it is all zeros; a stage turns it into the next one's.
#
# </details>
# <details><summary>Hint 3: the last stage</summary>
#
# What leaves it travels no further: no message is added there.
#
# </details>


# %% wrong="forward_end" says="one stage at work at a time" gets=0
def forward_end(times, microbatches, message):
    return microbatches * sum(times) + (len(times) - 1) * message * microbatches


# %% wrong="forward_end" says="Every stage can be the slowest" gets=2
def forward_end(times, microbatches, message):
    return sum(times) + (microbatches - 1) * times[0] + (len(times) - 1) * message


# %% wrong="forward_end" says="There is no stage after the last" gets=2
def forward_end(times, microbatches, message):
    return sum(times) + (microbatches - 1) * max(times) + len(times) * message


# %% wrong="forward_end" says="as slow as the slowest" gets=2
def forward_end(times, microbatches, message):
    return (len(times) + microbatches - 1) * max(times) + (len(times) - 1) * message


# %% [markdown]
# ## Question 1: more and more microbatches?
#
# A friend trains on a pipeline of four stages with GPipe and 8 microbatches. The bubble is a good third of the busy
# time, so she cuts the same batch into 64 microbatches: her step gets slower. Then she takes 64 of the old size, eight
# times the batch: the memory is full. The formula of the bubble is right. Name one thing that makes the first step
# slower, and say why the memory is full in the second case and not in the first; then say what you would change first.
#
# Three to six sentences; a person reads them.

# %% [markdown] written="more_microbatches" points=2
# A full answer says:
#
# - 1 point: smaller microbatches use a device worse, or each of the many more messages has its own latency; the formula
#   counts neither. "Overhead", with no thing named, is not enough.
# - 1 point: under GPipe the activations of all microbatches live until the backward passes begin: of the same batch
#   they are as many bytes however it is cut, of 64 of the old size eight times as many; and a change that fits: 1F1B or
#   zero bubble, whose stages keep at most four, interleaved stages, or a number of microbatches in between.

# %% [markdown]
# ## Question 2: which ranks go where?
#
# Two machines with four GPUs each; within a machine the link is ten times as fast as between the two. A network is to
# be trained with 4 tensor ranks and 2 data ranks. Say which ranks share a machine, and why: how often does each kind
# speak in a step, and what can it do while it waits? Then say for which network or batch you would put it the other
# way round, or that you never would, and why.
#
# Three to six sentences; a person reads them.

# %% [markdown] written="which_ranks_where" points=2
# A full answer says:
#
# - 1 point: the tensor ranks share a machine: they all-reduce activations in every block, forward and back, and the
#   next layer waits; data ranks average gradients once a step, mostly behind the backward pass.
# - 1 point: a case that is weighed by bytes: a very small batch with very large weights, where activations are few and
#   gradients many; or a reason why the latency of many waited-for messages decides against it even there.

# %% [markdown]
# ## What you have practised
#
# Following what a stage keeps through any schedule, finding whom a rank of a mesh speaks to, and timing a pipeline
# whose stages are not equal: the slowest sets the pace, and all others make up the beginning and the end.
