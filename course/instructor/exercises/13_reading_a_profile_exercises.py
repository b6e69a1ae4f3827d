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
# # Reading a profile: exercises
#
# Three functions to write and two questions to answer, for [lesson 13](../13_reading_a_profile.ipynb). Each exercise
# has a picture or a table, a function that returns `exercises.not_yet` until you write it, checks that you can read,
# and three hints that stay folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is counted or modelled, so nothing depends on how fast
# your machine is.

# %%
import torch

from helpers import exercises, plotting
from helpers.studies import traces

torch.set_num_threads(1)

# %% [markdown]
# ## Exercise 1: gaps under your own labels
#
# A gap belongs to a part of the script if it lies under that part's label. In the picture, bars are above the labels of
# a step, and times are in microseconds.

# %%
spans = [plotting.Span("operators", start, end, "computing") for start, end in [(6, 10), (14, 26)]]
spans += [
    plotting.Span("labels", start, end, "data, a label", name)
    for name, start, end in [("load", 0, 12), ("forward", 12, 20), ("backward", 20, 30)]
]
drawn = plotting.gantt(spans, title="Bars above their labels", unit="", xlabel="time in µs")
plotting.show(drawn, alt="Bars from 6 to 10 and 14 to 26 above load, forward and backward.")

# %% [markdown]
# | label | from, to | covered by bars | without a bar |
# |---|---|--:|--:|
# | load | 0, 12 | 4 | 8 |
# | forward | 12, 20 | 6 | 2 |
# | backward | 20, 30 | 6 | 4 |
#
# Write `uncovered(labels, bars)`, which returns for each label the time in which no bar runs. `labels` are
# `(name, start, end)`, and a name may come several times. `bars` are `(start, end)`, in order, and none overlaps
# another.


# %% answer="uncovered"
def uncovered(labels, bars):
    """Return {label: time without a bar}, for the picture {"load": 8, "forward": 2, "backward": 4}."""
    ### BEGIN SOLUTION
    times = {}
    for name, start, end in labels:
        covered = sum(max(0, min(end, bar_end) - max(start, bar_start)) for bar_start, bar_end in bars)
        times[name] = times.get(name, 0) + (end - start) - covered
    return times
    ### END SOLUTION


# %% checks="uncovered" points=3
check = exercises.Checks("Exercise 1, uncovered", uncovered)
inside, across, again = "bars inside a label", "bars across the border of labels", "a name that comes again"


def pairs(function, labels, bars):
    times = function(labels, bars)
    return times if isinstance(times, exercises.NotYet) else sorted(times.items())


slips = {(("load", 7),): "Return the time without a bar, and not the time of the bars"}
check.returns(inside, ([("load", 0, 12)], [(2, 5), (6, 10)]), call=pairs, expected=[("load", 5)], mistakes=slips)
slips = {
    (("backward", 6), ("forward", 8)): "A bar that is only partly under a label counts for that part",
    (("backward", 6), ("forward", 2)): "A bar may begin under one label and end under the next",
}
labels = [("forward", 0, 8), ("backward", 8, 14)]
expected = [("backward", 2), ("forward", 2)]
check.returns(across, (labels, [(2, 12)]), call=pairs, expected=expected, mistakes=slips)
slips = {(("load", 6),): "A label that comes again adds to its first time", (("load", 4),): "Both times count"}
check.returns(again, ([("load", 0, 6), ("load", 20, 29)], [(1, 3), (22, 25)]), call=pairs, expected=[("load", 10)],
              mistakes=slips)  # fmt: skip
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(13001)


def truth(labels, bars):
    """Microsecond by microsecond."""
    times = {}
    for name, start, end in labels:
        idle = [now for now in range(start, end) if not any(first <= now < last for first, last in bars)]
        times[name] = times.get(name, 0) + len(idle)
    return sorted(times.items())


for _ in range(5):
    edges = sorted(draw.sample(range(2, 60, 3), 6))
    bars = list(zip(edges[::2], edges[1::2], strict=True))
    given = ([("log", 0, 60)], bars)
    check.returns(inside, given, call=pairs, expected=truth(*given))
    border = draw.randint(bars[1][0] + 1, bars[1][1] - 1)
    given = ([("a", 0, border), ("b", border, 60)], bars)
    check.returns(across, given, call=pairs, expected=truth(*given))
    given = ([("load", 0, 60), ("load", 70, 70 + draw.randint(5, 20))], bars)
    check.returns(again, given, call=pairs, expected=truth(*given))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one label, one bar</summary>
#
# They overlap from the later start to the earlier end.
#
# </details>
# <details><summary>Hint 2: no overlap</summary>
#
# `max(0, min(ends) - max(starts))` is 0 where they do not overlap.
#
# </details>
# <details><summary>Hint 3: a name again</summary>
#
# `times[name] = times.get(name, 0) + ...` adds to what is there.
#
# </details>


# %% wrong="uncovered" says="not the time of the bars" gets=0
def uncovered(labels, bars):
    times = {}
    for name, start, end in labels:
        covered = sum(max(0, min(end, last) - max(start, first)) for first, last in bars)
        times[name] = times.get(name, 0) + covered
    return times


# %% wrong="uncovered" says="counts for that part" gets=2
def uncovered(labels, bars):
    times = {}
    for name, start, end in labels:
        covered = sum(last - first for first, last in bars if start <= first and last <= end)
        times[name] = times.get(name, 0) + (end - start) - covered
    return times


# %% wrong="uncovered" says="adds to its first time" gets=2
def uncovered(labels, bars):
    return {
        name: (end - start) - sum(max(0, min(end, last) - max(start, first)) for first, last in bars)
        for name, start, end in labels
    }


# %% [markdown]
# ## Exercise 2: which bar holds a call?
#
# In the lesson, `what_changed` names operators, but not the place from which they are called. For that you need the bar
# in which a call lies, be it directly or deep inside.
#
# | call | from, to | lies in |
# |---|---|---|
# | linear | 0, 10 | no other, so it is a bar |
# | addmm | 2, 8 | linear |
# | copy | 3, 4 | addmm, and so in the bar linear |
# | copy | 12, 13 | no other, so it is a bar |
#
# Write `holders(calls, name)`, which returns how many calls of `name` lie in the bars of each name. A call that is
# a bar itself counts under its own name. `calls` are in the order of their beginnings, an outer one before the
# inner ones.


# %% answer="holders"
def holders(calls, name):
    """Return {name of a bar: calls in it}; for "copy" in the table {"linear": 1, "copy": 1}."""
    ### BEGIN SOLUTION
    counts, bar, end = {}, None, 0
    for call in calls:
        if bar is None or call["ts"] >= end:
            bar, end = call["name"], call["ts"] + call["dur"]
        if call["name"] == name:
            counts[bar] = counts.get(bar, 0) + 1
    return counts
    ### END SOLUTION


# %% checks="holders" points=3
check = exercises.Checks("Exercise 2, holders", holders)
direct, deep, own = "calls directly inside a bar", "calls deep inside a bar", "a call that is a bar itself"


def call_of(name, start, end):
    return {"name": name, "ts": start, "dur": end - start}


def counted(function, calls, name):
    counts = function(calls, name)
    return counts if isinstance(counts, exercises.NotYet) else sorted(counts.items())


linear = [call_of("linear", 0, 10), call_of("copy", 2, 3), call_of("copy", 4, 5)]
slips = {(("linear", 1),): "Count the calls, and not the bars"}
check.returns(direct, (linear, "copy"), call=counted, expected=[("linear", 2)], mistakes=slips)
nested = [call_of("linear", 0, 10), call_of("addmm", 2, 8), call_of("copy", 3, 4)]
slips = {(("addmm", 1),): "Name the bar, and not the call next to it", (): "A call may lie deep inside a bar"}
check.returns(deep, (nested, "copy"), call=counted, expected=[("linear", 1)], mistakes=slips)
alone = [call_of("linear", 0, 10), call_of("copy", 12, 13)]
slips = {(): "A call that lies in no other is a bar", (("linear", 1),): "The bar before has ended"}
check.returns(own, (alone, "copy"), call=counted, expected=[("copy", 1)], mistakes=slips)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(13002)


def truth(calls, name):
    """For each call, the longest of all calls around it."""
    counts = {}
    for call in calls:
        if call["name"] == name:
            around = [
                outer
                for outer in calls
                if outer["ts"] <= call["ts"] and call["ts"] + call["dur"] <= outer["ts"] + outer["dur"]
            ]
            bar = max(around, key=lambda outer: outer["dur"])["name"]
            counts[bar] = counts.get(bar, 0) + 1
    return sorted(counts.items())


def tree(depth, repeats):
    calls = []
    for bar in range(draw.randint(2, 4)):
        begin = 100 * bar
        name = draw.choice(["linear", "norm"])
        calls.append(call_of(name, begin, begin + 90))
        for level in range(1, depth):
            calls.append(call_of(f"level {level}", begin + level, begin + 90 - level))
        for place in range(repeats):
            calls.append(call_of("copy", begin + 20 + 5 * place, begin + 22 + 5 * place))
    return calls


for _ in range(5):
    given = (tree(1, draw.randint(2, 5)), "copy")
    check.returns(direct, given, call=counted, expected=truth(*given))
    given = (tree(draw.randint(2, 5), 1), "copy")
    check.returns(deep, given, call=counted, expected=truth(*given))
    given = ([*tree(1, 0), call_of("copy", 500, 510), call_of("copy", 520, 521)], "copy")
    check.returns(own, given, call=counted, expected=truth(*given))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: when does a bar begin?</summary>
#
# As in `top_level`: a call begins a bar if the bar before it has ended.
#
# </details>
# <details><summary>Hint 2: remember the bar</summary>
#
# Keep its name and its end while you go through the calls.
#
# </details>
# <details><summary>Hint 3: count</summary>
#
# First update the bar, and then count the call if it has the name. A call that is a bar is then counted under itself.
#
# </details>


# %% wrong="holders" says="not the call next to it" gets=2
def holders(calls, name):
    counts, stack = {}, []
    for call in calls:
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= call["ts"]:
            stack.pop()
        if call["name"] == name:
            parent = stack[-1]["name"] if stack else name
            counts[parent] = counts.get(parent, 0) + 1
        stack.append(call)
    return counts


# %% wrong="holders" says="is a bar" gets=2
def holders(calls, name):
    counts, bar, end = {}, None, 0
    for call in calls:
        if call["ts"] >= end:
            bar, end = call["name"], call["ts"] + call["dur"]
        elif call["name"] == name:
            counts[bar] = counts.get(bar, 0) + 1
    return counts


# %% wrong="holders" says="The bar before has ended" gets=0
def holders(calls, name):
    found = sum(call["name"] == name for call in calls)
    return {calls[0]["name"]: found}


# %% [markdown]
# ## Exercise 3: when does the GPU finish?
#
# The CPU launches kernels one after the other, and each launch takes `launch` microseconds. A kernel starts when it has
# been launched and the kernel before it has ended. Before some launches the CPU waits until the GPU has nothing left to
# do, as `.item()` does. Kernels of 20, 1 and 1 µs with launches of 5 µs, where the CPU waits before kernel 1:

# %%
queue = traces.run_queue([20.0, 1.0, 1.0], launch_us=5, waits=[1])
drawn = traces.draw_queue({"one wait": queue}, title="The CPU waits before kernel 1")
plotting.show(drawn, alt="The GPU ends kernel 0 after 25 µs, and the launch of kernel 1 begins then.")

# %% [markdown]
# | kernel | launched from, to | runs from, to |
# |--:|---|---|
# | 0 | 0, 5 | 5, 25 |
# | 1 | 25, 30 | 30, 31 |
# | 2 | 30, 35 | 35, 36 |
#
# Write `finished(kernels, launch, waits)`, which returns when the last kernel ends. `waits` are the numbers of the
# kernels before whose launch the CPU waits.


# %% answer="finished"
def finished(kernels, launch, waits):
    """Return the end of the last kernel: finished([20, 1, 1], 5, [1]) is 36."""
    ### BEGIN SOLUTION
    cpu = gpu = 0
    for number, kernel in enumerate(kernels):
        if number in waits:
            cpu = max(cpu, gpu)
        cpu += launch
        gpu = max(cpu, gpu) + kernel
    return gpu
    ### END SOLUTION


# %% checks="finished" points=3
check = exercises.Checks("Exercise 3, finished", finished)
short, long, waiting = "short kernels wait for launches", "long kernels wait for each other", "a wait empties the queue"
goes_on = "The CPU goes on while a kernel runs: a launch and a kernel overlap"
slips = {11: "Each kernel waits for a launch of its own", 21: goes_on}
check.returns(short, ([2, 1, 3], 5, []), expected=18, mistakes=slips)
slips = {45: "A kernel starts only when the kernel before it has ended", 75: goes_on}
check.returns(long, ([20, 10, 30], 5, []), expected=65, mistakes=slips)
slips = {
    27: "Before the launch of kernel 1 the CPU waits until the GPU is idle",
    32: "The CPU waits before the launch, and not behind it",
}
check.returns(waiting, ([20, 1, 1], 5, [1]), expected=36, mistakes=slips)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(13003)


def truth(kernels, launch, waits):
    """Microsecond by microsecond: the CPU launches, and the GPU takes what is launched."""
    now, launched, left, queue, done, running = 0, 0, launch, [], 0, 0
    while done < len(kernels):
        if launched < len(kernels):
            is_held = launched in waits and left == launch and done < launched
            if not is_held:
                left -= 1
        now += 1
        if running:
            running -= 1
            done += running == 0
        if launched < len(kernels) and left == 0:
            queue.append(launched)
            launched, left = launched + 1, launch
        if not running and queue:
            running = kernels[queue.pop(0)]
    return now


for _ in range(5):
    launch = draw.randint(6, 12)
    given = ([draw.randint(1, launch - 1) for _ in range(6)], launch, [])
    check.returns(short, given, expected=truth(*given))
    given = ([draw.randint(launch + 1, 40) for _ in range(6)], launch, [])
    check.returns(long, given, expected=truth(*given))
    given = ([60, *[draw.randint(1, launch - 2) for _ in range(5)]], launch, [draw.randint(1, 3)])
    check.returns(waiting, given, expected=truth(*given))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: two clocks</summary>
#
# Keep the time at which the CPU is free, and the time at which the GPU is free.
#
# </details>
# <details><summary>Hint 2: a kernel</summary>
#
# It starts at the later of the two times, after its own launch has been added to the CPU's.
#
# </details>
# <details><summary>Hint 3: a wait</summary>
#
# Before the launch, the CPU's time becomes at least the GPU's.
#
# </details>


# %% wrong="finished" says="Each kernel waits for a launch" gets=1
def finished(kernels, launch, waits):  # noqa: ARG001
    return launch + sum(kernels)


# %% wrong="finished" says="a launch and a kernel overlap" gets=0
def finished(kernels, launch, waits):  # noqa: ARG001
    return sum(kernels) + launch * len(kernels)


# %% wrong="finished" says="the CPU waits until the GPU is idle" gets=2
def finished(kernels, launch, waits):  # noqa: ARG001
    cpu = gpu = 0
    for kernel in kernels:
        cpu += launch
        gpu = max(cpu, gpu) + kernel
    return gpu


# %% wrong="finished" says="not behind it" gets=2
def finished(kernels, launch, waits):
    cpu = gpu = 0
    for number, kernel in enumerate(kernels):
        cpu += launch
        gpu = max(cpu, gpu) + kernel
        if number in waits:
            cpu = gpu
    return gpu


# %% [markdown]
# ## Question 1: a step with a fault
#
# Somebody has planted a fault in the repaired step of the lesson. It is none of the four that you know, and it does
# not change the losses. Find it in the trace, and not in the source of the library.

# %%
repaired = {"load": traces.load_tensor, "fused": True, "float64": False, "log": False}
good_calls = traces.trace_step(traces.TrainingStep(**repaired))
bad_calls = traces.trace_step(traces.plant_fault(traces.TrainingStep(**repaired)))
print(f"calls: {len(good_calls):,} in the good step, {len(bad_calls):,} in the bad one")

# %% [markdown]
# Which operators are called more often, and how many times? In which bars do they lie (`holders`)? What is the fault,
# why does it cost little on a CPU, and what would it cost on a GPU? How would you keep its purpose for less?
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="planted" points=2
# A full answer says:
#
# - 1 point: 28 more calls each of `isnan`, `any` and `item`, and of what these call; they lie in the bars of the
#   backward pass, so a hook on each of the 28 gradients looks for NaN.
# - 1 point: on a CPU nothing waits, so 28 small reads cost little; on a GPU each `.item()` makes the CPU wait for the
#   backward pass so far, so the queue is empty 28 times. Cheaper: look at the loss or at one sum of all gradients,
#   every hundred steps, or let `torch.autograd.set_detect_anomaly` run only when a NaN has been seen.

# %% [markdown]
# ## Question 2: a profile of your own
#
# Take a training script of your own, or one that you find. *Before* you profile it, write down which part takes most of
# the time. Then trace a step, and name the share of the time without a bar, the largest gap with its neighbours, and
# one count that is larger than it should be.
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="own_profile" points=2
# A full answer says:
#
# - 1 point: the guess, the traced step and the three numbers, with the bars beside the largest gap.
# - 1 point: what the numbers say about the guess, and a remedy with the most that it can save, which is the share of
#   the time that it touches. A remedy without such a share does not get the point.

# %% [markdown]
# ## What you have practised
#
# Giving gaps to the parts of a script, finding the bar behind an operator, and modelling a GPU that waits for its CPU.
