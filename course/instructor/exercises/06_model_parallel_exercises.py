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
# Three functions to write, for [lesson 06](../06_model_parallel.ipynb). Each exercise has a table or a picture, a
# function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. The checks of exercise 3 run your function on four real ranks; nothing
# depends on how fast your machine is.

# %%
import torch
import torch.distributed as dist

from helpers import exercises, plotting
from helpers.ranks import Ranks

ranks = Ranks(4)

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
# ## Exercise 2: when does a pipeline end?
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
check = exercises.Checks("Exercise 2, forward_end", forward_end)
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
# ## Exercise 3: a table of words on four ranks
#
# A language model begins with a table: a row for each token of its vocabulary. Tensor ranks cut it by rows; of eight
# tokens on four [ranks](../glossary.md#rank)
#
# | rank | has the rows of the tokens |
# |--:|---|
# | 0 | 0, 1 |
# | 1 | 2, 3 |
# | 2 | 4, 5 |
# | 3 | 6, 7 |
#
# No rank can look up a sentence alone. So each makes a *term*: for a token whose row it has that row, for any other
# zeros. One [all-reduce](../glossary.md#all-reduce) adds the terms.
#
# Write `own_term(rank, tokens, own_rows)`: the term of `rank`, a list with one row (a list of numbers) for each of
# `tokens`. `own_rows` is the rank's part of the table; all ranks have equally many rows. The checks run it on four real
# ranks and add the terms up.


# %%
def summed(rank, _world_size, function, tokens, parts):
    term = torch.tensor(function(rank, tokens, parts[rank]), dtype=torch.float64)
    dist.all_reduce(term)
    return term.tolist()


def on_ranks(function, tokens, parts):
    if function(0, [0], [[1]]) is exercises.not_yet:
        return exercises.not_yet
    try:
        return ranks.run(summed, function, tokens, parts, timeout_s=20)[0]
    except TypeError:  # where a class is graded: its functions stay in another process, so ask for each rank in turn
        terms = [function(rank, list(tokens), part) for rank, part in enumerate(parts)]
        return torch.tensor(terms, dtype=torch.float64).sum(dim=0).tolist()


# %% answer="own_term"
def own_term(rank, tokens, own_rows):
    """Return this rank's term: own_term(1, [2, 5], [[7, 8], [3, 4]]) is [[7, 8], [0, 0]]."""
    ### BEGIN SOLUTION
    first = rank * len(own_rows)
    zeros = [0] * len(own_rows[0])
    places = [token - first for token in tokens]
    return [own_rows[place] if 0 <= place < len(own_rows) else zeros for place in places]
    ### END SOLUTION


# %% checks="own_term" points=3
check = exercises.Checks("Exercise 3, own_term", own_term)
own, others, together = "own tokens get their row", "others get zeros", "four ranks make the whole table"
table = [[token, 10 * token] for token in range(1, 9)]
parts = [table[first : first + 2] for first in (0, 2, 4, 6)]
offset = "Rank 2's own_rows[0] is the row of token 4: take the first row's token off"
check.returns(own, (2, [5, 4], parts[2]), expected=[table[5], table[4]], mistakes={((0, 0), (0, 0)): offset})
wrapped = {(tuple(table[3]),): "A negative index counts from the end: ask whether the token is in this rank's rows"}
check.returns(others, (1, [1], parts[1]), expected=[[0, 0]], mistakes=wrapped)
check.returns(others, (0, [3, 7], parts[0]), expected=[[0, 0], [0, 0]])
sentence = [6, 0, 3, 3, 5]
check.returns(together, (sentence, parts), expected=[table[token] for token in sentence], call=on_ranks)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(5004)
for _ in range(4):
    size = draw.randint(2, 5)
    table = [[draw.randint(1, 99) for _ in range(3)] for _ in range(4 * size)]
    parts = [table[first : first + size] for first in range(0, 4 * size, size)]
    rank = draw.randint(1, 3)
    mine = [rank * size + draw.randrange(size) for _ in range(4)]
    check.returns(own, (rank, mine, parts[rank]), expected=[table[token] for token in mine])
    before, after = draw.randrange(rank * size), draw.randrange(size, 4 * size)
    check.returns(others, (rank, [before], parts[rank]), expected=[[0, 0, 0]])
    check.returns(others, (0, [after], parts[0]), expected=[[0, 0, 0]])
    sentence = [draw.randrange(4 * size) for _ in range(6)]
    check.returns(
        together,
        (sentence, parts),
        expected=[table[token] for token in sentence],
        call=lambda function, tokens, parts: [
            [sum(column) for column in zip(*rows, strict=True)]
            for rows in zip(*(function(each, list(tokens), parts[each]) for each in range(4)), strict=True)
        ],
    )
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the first token</summary>
#
# Rank `r` begins with the token `r * len(own_rows)`.
#
# </details>
# <details><summary>Hint 2: whose token is it?</summary>
#
# `place = token - first` is the row's place in `own_rows`, if it is at least 0 and below `len(own_rows)`.
#
# </details>
# <details><summary>Hint 3: zeros</summary>
#
# A row has `len(own_rows[0])` numbers, so the zeros are `[0] * len(own_rows[0])`.
#
# </details>


# %% wrong="own_term" says="A negative index counts from the end" gets=1
def own_term(rank, tokens, own_rows):
    first = rank * len(own_rows)
    zeros = [0] * len(own_rows[0])
    term = []
    for token in tokens:
        try:
            term.append(own_rows[token - first])
        except IndexError:
            term.append(zeros)
    return term


# %% wrong="own_term" says="take the first row's token off" gets=0
def own_term(rank, tokens, own_rows):  # noqa: ARG001
    zeros = [0] * len(own_rows[0])
    return [own_rows[token] if token < len(own_rows) else zeros for token in tokens]


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
# ## Question 2: your own model
#
# Take a network that you train, or would like to: its parameters, layers, width, and the tokens (or images, with the
# values between two layers) of a step. Take two links that you could have. Count what tensor parallel and pipeline
# parallel on the same number of devices keep and send, as in Part 4 of the lesson, and say which you would take on
# which link, or that you need neither. Say also which of your numbers you trust least, and how you would measure it.
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="your_own_model" points=2
# A full answer says:
#
# - 1 point: bytes kept and bytes sent for both cuts, from the person's own numbers, with units, and a choice that
#   follows from them (that plain data parallelism is enough may be that choice).
# - 1 point: the weakest number (often the link's real rate, the activations, or the FLOP/s that are reached) and an
#   experiment that would measure it: an all-reduce timed over sizes, the peak memory of a step, one layer timed.

# %% [markdown]
# ## What you have practised
#
# Following what a stage keeps through any schedule, timing a pipeline whose stages are not equal (the slowest sets the
# pace, and all others make up the beginning and the end), and making a rank's term of a table that no rank has whole.
