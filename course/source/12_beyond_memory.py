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
#     number: "12"
#     title: Beyond memory
#     needs: ["02", "11"]
#     objectives:
#       - predict|predicted which layers a memory has to fetch again if one is too many
#       - work|worked out from one factor what a byte costs that has no room
#       - choose|chose the bytes that may live in a farther memory
#       - compute|computed from how many tokens on fetching all weights costs nothing
#       - count|counted the batches that a data loader keeps ready
# ---

# %% [markdown] tags=["objectives"]
# # Beyond memory
#
# In April 2023 a user of llama.cpp ran a language model of 30 billion parameters on a laptop ([his comment](https://github.com/ggml-org/llama.cpp/pull/711)).
# The file with the weights has 20 GB. The laptop has 16 GB of memory, about 14 GB of which can hold weights, and its disk reads 1 GB/s (his figures). The
# program went through the layers in order, used every weight once for each token, and ran without an error. How long did a token take?
#
# [Lesson 11](11_working_set.ipynb) counted the bytes that a program has to keep. This lesson asks what happens when they are slightly more than a memory
# holds. It happens to a model on a GPU, to a layer in a [cache](glossary.md#cache) and to the batches of a loader. One program becomes a little slower, another one many times
# as slow, and a third one dies. To foresee the outcome, we ask which bytes have to leave, what each of them costs on its way back, and which may just as
# well stay away. Then we take the farther memory away.
#
# The measured times in the text come from the machine on which this page was built, a shared virtual server with two cores of an AMD EPYC. The outputs are
# your machine's once you have run the page.

# %% tags=["hide-input"]
import textwrap

import pandas as pd
from torch.utils.data import DataLoader

import helpers
from helpers import exercises, plotting, units
from helpers.studies import beyond_memory, data_movement

check = exercises.checks_of("beyond_memory")
MIB = 2**20

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# How slow is a program that is slightly too large?
#
# - The weights take 20 GB, and the memory has room for 14
# - The disk delivers a gigabyte per second
# - Each token uses every weight once, in order
#
# If you divide the 6 GB that are missing by the rate of the disk, you get 6 seconds. Would you bet on that?

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 100]
bet = helpers.predict(
    "If each token uses 20 GB of weights and 14 GB have room, "
    "how many seconds does a token take?",
    "s",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="The bytes used longest ago leave first"
# ## Part 1: which bytes have to leave
#
# Which bytes leave when a memory is full? We begin with this question, because the rate of a disk is given, whereas the choice of the bytes is not.
#
# - A file can be [mapped](glossary.md#memory-mapping), so that its bytes have addresses
# - They come from the disk when the program touches them
# - If memory is full, the bytes [used longest ago](glossary.md#least-recently-used) leave
#
# The program on the laptop maps its file. When memory is full, the system has to drop some of the bytes. It cannot know which will be needed next, so it
# looks at the past and drops those that were used longest ago (least recently used, LRU). Linux follows this rule only approximately, also when it
# [swaps](glossary.md#swap) memory that no file holds.
#
# **Your turn.** Write the rule for whole layers. `resident` lists the layers in memory, the one used longest ago first.


# %% tags=["yours"] yours="after_use" takes=6
def after_use(resident, layer, room):
    """Return the layers in memory after `layer` was used; at most `room` of them stay."""
    others = [number for number in resident if number != layer]
    if len(others) == room:
        others = others[1:]
    return [*others, layer]


# %% checks="after_use"
after_use = check(after_use)


# %% wrong="after_use" says="so it moves to the end"
def after_use(resident, layer, room):
    if layer in resident:
        return resident
    return [*resident[1:], layer] if len(resident) == room else [*resident, layer]


# %% wrong="after_use" says="The layer used longest ago leaves"
def after_use(resident, layer, room):
    others = [number for number in resident if number != layer]
    return [*others[:-1], layer] if len(others) == room else [*others, layer]


# %% wrong="after_use" says="no other has to leave"
def after_use(resident, layer, room):
    others = [number for number in resident if number != layer]
    return [*others[1:], layer] if len(resident) == room else [*others, layer]


# %% wrong="after_use" says="the cells below need list"
def after_use(resident, layer, room):
    others = [number for number in resident if number != layer]
    return (*others[-room + 1 :], layer)


# %% right="after_use" style=1
def after_use(resident, layer, room):
    resident = list(resident)
    if layer in resident:
        resident.remove(layer)
    resident.append(layer)
    while len(resident) > room:
        resident.pop(0)
    return resident


# %% right="after_use" style=2
def after_use(resident, layer, room):
    from collections import OrderedDict

    order = OrderedDict.fromkeys(resident)
    order[layer] = None
    order.move_to_end(layer)
    return list(order)[-room:]


# %% [markdown]
# We build the laptop again, but smaller. A file holds nine layers, each a matrix of 1,024 × 1,024 float32 weights, or 4 MiB. The network multiplies a
# vector by one layer after the other, and then it begins again with the first. There is room for eight layers.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 9]
nine_layers = helpers.predict(
    "With nine layers in order and room for eight, "
    "how many layers does each pass read from the disk?",
    "layers",
)
nine_layers


# %% tags=["run"]
def use_layers(order, room):
    resident, history = [], []
    for layer in order:
        read = layer not in resident
        resident = after_use(resident, layer, room)
        history.append((layer, resident, read))
    return history


history = use_layers([*range(9)] * 3, room=8)
reads = [sum(read for *_, read in history[start : start + 9]) for start in (0, 9, 18)]

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Each layer was dropped just before its turn"
nine_layers.reveal(counted=reads[-1])

# %% [markdown] tags=["explain"]
# Each pass reads all nine (counted). To see why, follow the layers in the drawing. When the ninth layer comes, the first one was used longest ago, so it
# leaves. But the first layer is needed next. When it comes back, the second one has to leave, which is needed after that. Each layer is dropped just
# before its turn, and the other eight, which are in memory, do not help.

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 layout="steps" frames=[1, 2, 3, 4, 5, 11] headline="Eight of nine layers are there, and none helps"
twelve_uses = history[6:18]
frames = [
    data_movement.draw_window(9, resident, used=layer, read=read)
    for layer, resident, read in twelve_uses
]
captions = [
    f"layer {layer} {'comes from the disk' if read else 'is there'}"
    for layer, _, read in twelve_uses
]
alt = "Each layer was dropped just before its turn, so each is read from the disk again."
plotting.play(
    frames,
    title="Nine layers, room for eight",
    captions=captions,
    stills=(1, 2, 3, 11),
    alt=alt,
)

# %% [markdown]
# It makes no difference how much is missing, because sixteen layers in room for eight are all read again as well. Now you can judge the laptop. If it
# behaves like our program, it reads not only the missing 6 GB but the whole file for each token.

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The laptop reads the whole file for each token" source="a user's comment of April 2023, llama.cpp, pull request 711 (github.com/ggml-org/llama.cpp)"
bet.reveal(modelled=20 / 1, published=20, source="the user's comment, April 2023")

# %% [markdown] tags=["explain"]
# 20 GB at 1 GB/s take 20 s. The user reported 20 s per token (published), and he guessed the same cause. More memory would help, but another
# order is cheaper. Let seven of the nine layers always stay, and let the other two take turns in the eighth place. Then a pass reads two layers
# instead of nine. The user proposed this too, because if 14 GB are locked in memory, only the other 6 GB have to be read, and the first estimate
# comes true, with 6 s for the disk.
#
# Training has a better order by nature, because it goes forward through the layers and then backward.

# %% tags=["predict"]
there_and_back = helpers.predict(
    "If training goes forward and then backward through nine layers, "
    "how many of the 18 uses need the disk with room for eight?",
    "uses",
)
there_and_back

# %% tags=["run"]
one_step = [*range(9), *reversed(range(9))]
turned = use_layers(one_step * 2, room=8)[18:]

# %% tags=["look"]
there_and_back.reveal(modelled=2 * (9 - 8), counted=sum(read for *_, read in turned))

# %% [markdown] tags=["explain"]
# Only two do (counted, without the optimizer's update). At the turn, the layers that were used last are needed first, and eight of the nine are
# there. One layer is read on the way back, and one on the next way forward.
#
# Now come the same orders with a real file, and eight layers for comparison. Our program maps it and drops layers by the rule above, and the
# system counts the bytes that it then reads from the disk. The model adds two times, that of a layer in memory and that of reading a layer from
# the disk, which we measure first.

# %% tags=["hide-input", "run", "nbval-ignore-output"]
ways = {
    "eight layers, forward only": (8, {}),
    "forward and backward by turns": (9, {"by_turns": True}),
    "forward only, seven layers stay": (9, {"staying": 7}),
    "forward only": (9, {}),
}
mapped = {}
try:
    for name, (layers, options) in ways.items():
        size = [layers * 4 * MIB]
        mapped[name] = data_movement.measure_mapped_weights(
            size, limit_bytes=32 * MIB, passes=4, **options
        )
except (OSError, RuntimeError, ValueError) as why:  # no Linux, no room, no disk
    print(f"not measured here: {textwrap.fill(str(why), 80)}")

# %% tags=["hide-input", "look", "slide", "slide-output", "nbval-ignore-output"] minutes=2 headline="The order decides, and not the missing bytes"
resident_s = min((run.resident_layer_s for run in mapped.values()), default=float("nan"))
disk_rates = sorted(run.disk_bytes_per_s for run in mapped.values())
disk_rate = disk_rates[len(disk_rates) // 2] if disk_rates else float("nan")
rows, reads_per_pass = {}, {}
for name, (layers, _) in ways.items():
    if name not in mapped:
        continue
    (row,) = mapped[name].rows
    reads_per_pass[name] = read_per_pass = round(row.missed_share * layers, 6)
    pass_s = layers * resident_s + read_per_pass * 4 * MIB / disk_rate
    disk = "" if row.read_bytes is None else f"{row.read_bytes / 4 / MIB:.1f}"
    rows[name] = (
        f"{read_per_pass:.0f}",
        disk,
        units.text(pass_s, "s"),
        units.text(layers * row.layer_s, "s"),
    )
assert list(reads_per_pass.values()) == [0, 1, 2, 9][: len(mapped)]
columns = [
    "reads per pass (counted)",
    "layers from disk (counted by Linux)",
    "a pass (modelled)",
    "a pass (measured)",
]
pd.DataFrame(rows, index=columns).T.rename_axis("order, with room for eight layers")

# %% tags=["hide-input", "look", "nbval-ignore-output"]
for source, layer_s in {"memory": resident_s, "the disk": 4 * MIB / disk_rate}.items():
    rate = 4 * MIB / layer_s / 1e9
    print(f"a layer from {source}: {units.text(layer_s, 's')}, {rate:.2f} GB/s (measured)")

# %% [markdown] tags=["explain"]
# A layer in memory takes 0.32 ms here, because main memory delivers 13.0 GB/s to our core, and reading a layer from the disk takes 4.8 ms at
# 0.87 GB/s (measured). So nine layers that are all read take 9 × 0.32 + 9 × 4.84 ms, or 46.5 ms (modelled). We measured 28.9 ms, which is less.
# Computing takes only 2.9 ms of it, so the disk has read faster in this run, at 1.3 GB/s or more. It is still 8 times as long as the 3.59 ms of
# eight layers, although there is only an eighth more to do. If seven layers stay, a pass takes 12.8 ms, and with turns 9.35 ms. The counts are
# exact. The times are not, because the disk of a shared server is not always equally fast.
#
# **To remember.** A loop in one direction that is too large for an LRU memory reads everything in every round. Nine layers in room for eight cost 9
# reads per pass, but only 2 if seven layers stay, and 1 if the direction changes.
#
# Even with two reads, a pass takes more than three times as long as eight layers in memory. Why are two reads so expensive?

# %% [markdown] tags=["slide"] minutes=2 headline="One factor says what a far byte costs"
# ## Part 2: what a missing byte costs
#
# What does a byte cost that has no room? The answer is a single number, and we need it before we move any bytes on purpose.
#
# - A farther memory is slower by a factor $r$
# - A share $s$ of the bytes comes from there
# - Fetching and computing do not overlap
#
# If all bytes are near, a pass takes a certain time. If a share $s$ of them first has to come from the farther memory, each of these bytes takes $r$ times
# as long as a near one, and then it is used like the others.
#
# **Your turn.** Write by which factor the time grows.


# %% tags=["yours"] yours="slowdown" takes=5
def slowdown(share, near_rate, far_rate):
    """Return the time as a multiple of that with all bytes near, if `share` of them is far."""
    return 1 + share * near_rate / far_rate


# %% checks="slowdown"
slowdown = check(slowdown)


# %% wrong="slowdown" says="fetched first and then used"
def slowdown(share, near_rate, far_rate):
    return (1 - share) + share * near_rate / far_rate


# %% wrong="slowdown" says="The farther memory is the slower one"
def slowdown(share, near_rate, far_rate):
    return 1 + share * far_rate / near_rate


# %% wrong="slowdown" says="besides all other time"
def slowdown(share, near_rate, far_rate):
    return share * near_rate / far_rate


# %% right="slowdown" style=1
def slowdown(share, near_rate, far_rate):
    near_s, far_s = 1 / near_rate, share / far_rate  # of one byte
    return (near_s + far_s) / near_s


# %% right="slowdown" style=2
def slowdown(share, near_rate, far_rate):
    import numpy as np

    return np.add(1.0, np.multiply(share, near_rate) / far_rate)


# %% [markdown]
# So the time is $1 + r \times s$ times as long, and it doubles as soon as one byte in $r$ is far away. Take a GPU. An RTX 3090 has 24 GiB of
# memory, or 25.8 GB, with 936 GB/s. Its bus to the main memory of the computer, PCIe 4.0, delivers 32 GB/s at best (published).

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 100]
doubling = helpers.predict(
    "Which percentage of the weights must cross the bus for each token "
    "until a token takes twice as long?",
    "%",
)
doubling

# %% tags=["run"]
far_share = 32e9 / 936e9

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="A small share across the bus doubles the time"
doubling.reveal(modelled=100 * far_share)
print(f"with this share far away: {slowdown(far_share, 936e9, 32e9):.1f} times the time")

# %% [markdown] tags=["explain"]
# It is 32 / 936, or 3.4 %, because here $r$ is 29. Llama 2 13B, for example, has 40 layers. Each has 4 × 5,120² + 3 × 5,120 × 13,824 weights, which take
# 634 MB in bfloat16. All 40 take 25.4 GB, and reading them from the GPU's own memory would take 27 ms per token. But the cache and the embeddings need room as well, and
# suppose that 37 layers are left. If 36 of them stay, the other four take turns in the last place, so a tenth of the bytes crosses the bus.

# %% tags=["look"]
layer_bytes = 2 * (4 * 5120**2 + 3 * 5120 * 13_824)
token_s = 40 * layer_bytes / 936e9
factor = slowdown(4 / 40, 936e9, 32e9)
print(f"all 40 layers on the GPU:  {1e3 * token_s:.1f} ms per token (modelled)")
print(f"four of them in main memory: {1e3 * factor * token_s:.1f} ms, {factor:.1f} times")

# %% [markdown] tags=["explain"]
# Four layers need 4 × 634 MB / 32 GB/s, or 79 ms, besides the 27 ms. A model of which three layers in forty have no room is thus four times as
# slow, because a fourth takes turns with them, and all four cross the bus for each token. Hugging Face's Accelerate places a model in this way
# if you say `device_map="auto"`. It fills the GPU first, and the layers that are left over are fetched just before their turn and removed
# afterwards ([its documentation](https://huggingface.co/docs/accelerate/concept_guides/big_model_inference)). Its order is already the good one,
# so you feel only the factor of 29.
#
# Caches drop bytes in the same way. We take layers so small that the L2 cache of a core holds eight of them, and a C++ loop of a few lines multiplies a vector
# by the layers in turn. A byte that has left L2 comes back from the larger L3 cache. If nothing overlapped, it would cost at least twice as much.

# %% tags=["run"]
sweep = beyond_memory.sweep_layers()

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="A cache has a slope, and not a cliff"
alt = "The time of a layer rises once the layers of the loop are more than L2 holds."
plotting.show(beyond_memory.draw_turns(sweep), alt=alt)

# %% tags=["hide-input", "look", "nbval-ignore-output"]
few, over, many = (sweep.row(count) for count in (4, 9, 16))
print(f"a layer of {sweep.layer_bytes // 1024} KiB, forward only and by turns:")
for row in (few, over, many):
    forward_us, by_turns_us = 1e6 * row.forward_s, 1e6 * row.by_turns_s
    print(f"{row.layers:>3} layers: {forward_us:.2f} us and {by_turns_us:.2f} us")
print(
    f"16 layers take {many.forward_s / few.forward_s:.1f} times as long as 4 each (measured)"
)

# %% [markdown] tags=["explain"]
# The curves rise when the layers no longer fit, but only a little, and as at the disk it helps to turn round. With 16 layers all bytes should
# come from L3, but on this machine a layer takes only 1.1 times as long as with 4. A core that notices how a loop reads line after line fetches
# the next lines ahead of time. This hides most of the way, so the law above is only an upper limit.
#
# **To remember.** If the farther memory is $r$ times as slow, one byte in $r$ from there doubles the time, unless it is fetched ahead. Between an RTX 3090's
# memory and its bus $r$ is 29.
#
# One byte in 29 is not much. Must every byte from far away cost time?

# %% [markdown] tags=["slide"] minutes=2 headline="Bytes that are rarely used may live far away"
# ## Part 3: which bytes may live far away
#
# Which bytes cost little if they live in a farther memory? There are two kinds, and both are large in a neural network.
#
# - Bytes that are used once per step, as Adam's averages
# - Bytes that travel while the GPU computes, as the next layer's weights
#
# We begin with the rare ones and take up the case with which [lesson 11](11_working_set.ipynb) ended. Llama 2 7B does not learn on a GPU of 24 GB, because
# Adam in mixed precision keeps 16 bytes for each of its 6.74 billion parameters. Of these, 12 bytes are the float32 copy and the two averages. The forward
# and the backward pass never touch them. They are used once per step, when the optimizer updates the weights. So let them live in the main memory of the
# computer, 80.9 GB of them, and let its processor do the update there. This is the idea of ZeRO-Offload
# ([Ren and others, 2021](https://arxiv.org/abs/2101.06840)).
#
# On the GPU stay 13.5 GB of parameters, 1.7 GB of activations with checkpointing for one sequence of 4,096 tokens, and 1.7 GB for the loss, as
# lesson 11 counted. Each gradient leaves as soon as it is computed. Together these are 16.9 GB, and they fit. The 1.7 GB of activations are the
# best of several choices. Checkpointing saves the input of each *segment* of blocks, and in the backward pass all activations inside one segment
# are alive at once. Move the number of segments in the figure. At which number is their sum smallest?

# %% tags=["hide-input"]
beyond_memory.explore_segments()

# %% [markdown] tags=["explain"]
# With 32 segments of one block, the inputs take 1.07 GB and the inside of one block 0.63 GB. Fewer segments save inputs, but their insides grow
# faster. With 4 segments the step needs 5.2 GB. The inputs and the inside would be equal near 25 segments. Of the numbers that divide the 32
# blocks evenly, 32 gives the smallest sum, whatever the number of tokens.
#
# What does a step cost now? The passes take 8 [operations](glossary.md#flop) per parameter and token instead of 6, because checkpointing repeats the forward pass. Each gradient goes
# to main memory and each new parameter comes back, 2 bytes either way. For Adam the processor reads 14 bytes per parameter and writes 14, namely the copy, the
# two averages, the gradient and the new parameter.
#
# **Your turn.** Write these times. The GPU computes `flops` operations per second, the bus and the main memory move so many bytes per second.


# %% tags=["yours"] yours="offload_times" takes=7
def offload_times(parameters, tokens, flops, bus_rate, memory_rate):
    """Return the seconds of passes, gradients out, Adam's update and parameters in."""
    passes_s = 8 * parameters * tokens / flops
    across_s = 2 * parameters / bus_rate
    adam_s = 28 * parameters / memory_rate
    return passes_s, across_s, adam_s, across_s


# %% checks="offload_times"
offload_times = check(offload_times)


# %% wrong="offload_times" says="repeats the forward pass"
def offload_times(parameters, tokens, flops, bus_rate, memory_rate):
    across_s = 2 * parameters / bus_rate
    return 6 * parameters * tokens / flops, across_s, 28 * parameters / memory_rate, across_s


# %% wrong="offload_times" says="reads 14 bytes and writes 14"
def offload_times(parameters, tokens, flops, bus_rate, memory_rate):
    across_s = 2 * parameters / bus_rate
    return 8 * parameters * tokens / flops, across_s, 14 * parameters / memory_rate, across_s


# %% wrong="offload_times" says="2 bytes of each parameter"
def offload_times(parameters, tokens, flops, bus_rate, memory_rate):
    across_s = 4 * parameters / bus_rate
    return 8 * parameters * tokens / flops, across_s, 28 * parameters / memory_rate, across_s


# %% right="offload_times" style=1
def offload_times(parameters, tokens, flops, bus_rate, memory_rate):
    moved = {"out": 2, "update": 14 + 14, "in": 2}
    return [
        parameters * (2 + 2 + 4) * tokens / flops,
        parameters * moved["out"] / bus_rate,
        parameters * moved["update"] / memory_rate,
        parameters * moved["in"] / bus_rate,
    ]


# %% right="offload_times" style=2
def offload_times(parameters, tokens, flops, bus_rate, memory_rate):
    import numpy as np

    work = np.array([8.0 * tokens, 2.0, 28.0, 2.0]) * parameters
    return work / np.array([flops, bus_rate, memory_rate, bus_rate])


# %% [markdown]
# The RTX 3090's peak for bfloat16 is 71 TFLOP/s (published), its bus carries 32 GB/s, and two channels of DDR5-5600 deliver 2 × 8 bytes × 5.6·10⁹ per second,
# or 89.6 GB/s.

# %% tags=["look"]
names = [
    "passes with checkpointing",
    "gradients out",
    "Adam on the processor",
    "parameters in",
]
times_s = [
    float(time_s) for time_s in offload_times(6.738e9, 4096, 71e12, 32e9, 2 * 8 * 5.6e9)
]
for name, time_s in zip([*names, "one step"], [*times_s, sum(times_s)], strict=True):
    print(f"{name:<27}{time_s:4.1f} s (modelled)")

# %% [markdown] tags=["explain"]
# The passes are 8 × 6.74·10⁹ × 4,096 operations, or 221·10¹², and at 71·10¹² per second they take 3.1 s. The gradients are 13.5 GB, which need 0.4 s over the
# bus, and the update moves 189 GB, which needs 2.1 s. In all a step takes 6.1 s, about twice the time of the passes if these run at the peak, and less than
# twice if they are slower. But now every parameter learns. The authors of ZeRO-Offload trained a model of 10 billion parameters on a single V100 at
# 40 TFLOP/s, whereas 1.4 billion was the limit of PyTorch alone (published).
#
# The second kind of bytes travels in the meantime. Suppose that all weights are in main memory, and that the GPU fetches the next layer while it computes with
# the present one. Then only the longer of the two times counts. It is the [roofline](glossary.md#roofline) of [lesson 02](02_compute_and_roofline.ipynb), with the bus instead of the
# memory. A bfloat16 weight has 2 bytes, and each token uses it for two operations.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[10, 100000]
hidden_fetch = helpers.predict(
    "From how many tokens per pass on does the RTX 3090's arithmetic take longer "
    "than fetching all weights over the bus?",
    "tokens",
)
hidden_fetch

# %% tags=["run"]
weight_fetch_s = 2 / 32e9  # of one weight
token_compute_s = 2 / 71e12  # of one weight and one token

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Thousands of tokens per pass hide the fetching"
hidden_fetch.reveal(modelled=weight_fetch_s / token_compute_s)

# %% [markdown] tags=["explain"]
# The 2 bytes and the two operations cancel, so it is 71·10¹² / 32·10⁹, about 2,200 tokens. At these rates a prompt of that length loses nothing,
# although not a single weight stays on the GPU. A single user has one token per pass and waits 29 times as long as with the weights in the GPU's
# memory. The way out is to serve many at once. On one GPU with 16 GB, FlexGen ([Sheng and others, 2023](https://arxiv.org/abs/2303.06865)) ran a
# model of 175 billion parameters, packed into 4 bits each, for 144 sequences at once. Its [throughput](glossary.md#throughput) was one token per
# second in all (published). Each sequence thus gets a token every 144 s, which is useless for a conversation but fine for a job that runs
# overnight.
#
# **To remember.** Put bytes that are used once per step into the farther memory, and fetch the others ahead of time. On an RTX 3090 even weights that all
# cross the bus cost nothing from about 2,200 tokens per pass on.
#
# So far a farther memory has always taken the bytes that had to leave. What if there is none?

# %% [markdown] tags=["slide"] minutes=2 headline="Here a bus error meant that /dev/shm was full"
# ## Part 4: no other memory
#
# What happens if a memory is full and there is no other? Then the program ends, and we look at this case last, because its error hides which memory was full.
#
# - Batches of 6,000 digits, and one worker
# - Epoch 1 went through, epoch 2 did not
# - The error was called out of memory
#
# In a course of 2022 a training died in its second epoch with the words `Bus error`
# ([its output](https://github.com/mlatcl/deepnn/blob/38fad41/_lamd/hardware-notes.md)). A digit takes 28 × 28 × 4 bytes and its label 8, so a batch of 6,000
# takes only 18 MiB. Which memory can that fill? It is the [shared memory](glossary.md#shm) that [lesson 10](10_feeding_the_accelerator.ipynb) mentioned. A worker of a `DataLoader`
# is a process of its own. To hand over a batch without a copy, it writes the batch into a file in [`/dev/shm`](glossary.md#shm), which both processes map. This
# folder is in memory and has a fixed size, which is 64 MiB in a Docker container unless you ask for more
# ([moby issue 29492](https://github.com/moby/moby/issues/29492)).

# %% tags=["hide-input", "slide", "slide-output"] minutes=1 headline="A worker and the trainer share one batch" untitled=true
figure = beyond_memory.draw_shared_batches(
    [("a batch", True, True), ("ready", False, True), ("ready", False, True)],
    room=3.5,
    title="A worker writes, a trainer reads, nobody copies",
)
plotting.show(figure, alt="A worker and the trainer hold the same batch in /dev/shm.")

# %% [markdown]
# The trainer holds one batch, and every worker keeps two more ready, by the default [prefetch factor](glossary.md#prefetch-factor).

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 10]
shared = helpers.predict(
    "With two workers and a prefetch factor of 2, how many batches are in /dev/shm at once?",
    "batches",
)
shared

# %% tags=["hide-input", "run", "nbval-ignore-output"]
own_shm, counted = {"shared_memory_bytes": 64 * MIB, "timeout_s": 180}, None
try:
    outcome = helpers.run_limited(beyond_memory.count_batches, 2, 2, **own_shm)
except RuntimeError as why:  # Linux may refuse a process a /dev/shm of its own
    print(f"not measured here: {textwrap.fill(str(why), 80)}")
else:
    counted = outcome.unwrap()
assert counted is None or 5 <= counted < 5.5  # pages that are not full, the queues' locks

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Each worker holds two batches, and the trainer holds one"
shared.reveal(modelled=2 * 2 + 1, counted=counted)

# %% [markdown] tags=["explain"]
# There are 2 × 2 + 1, or five. The course used a single worker, so it had three batches of 18 MiB, or 54 MiB, which fit into 64. Does such a loop go through?
# We run two epochs of it in a `/dev/shm` of 64 MiB, once as one usually writes it and once with a line that lets go of each batch.


# %%
def two_epochs(lets_go):
    loader = DataLoader(
        beyond_memory.SlowDigits(18),  # thousands of digits
        batch_size=6,
        num_workers=1,
        multiprocessing_context="fork",
    )
    for epoch in (1, 2):
        for images, labels in loader:
            beyond_memory.wait_for_workers()  # a step that lasts until the worker is ahead
            if lets_go:
                del images, labels
        print(f"epoch {epoch} went through", flush=True)


# %% tags=["hide-input", "look", "nbval-ignore-output"]
endings = {}
for name, lets_go in {"as usual": False, "with del": True}.items():
    try:
        ended = helpers.run_limited(two_epochs, lets_go, **own_shm)
    except RuntimeError as why:
        print(f"{name}: not measured here: {textwrap.fill(str(why), 80)}")
        continue
    endings[name] = ended.status
    print(f"{name}:", ", ".join(ended.output.splitlines()))
    if ended.status != "returned":
        print(textwrap.fill(ended.message.strip().splitlines()[-1], 80))
assert endings in ({}, {"as usual": "raised", "with del": "returned"}), endings

# %% [markdown] tags=["explain"]
# The usual loop fails in epoch 2 (measured). How can the second epoch need more than the first? Look at what a loop leaves behind. When epoch 1 ends, your
# variables `images` and `labels` still hold its last batch. Now epoch 2 starts a new worker as a *fork*, an exact copy of your process (on Linux up to Python
# 3.13). The copy holds that last batch as well and never lets go of it. So there are four batches, 72 MiB, and 64 MiB have room for three. With
# `del images, labels` both epochs go through (measured).

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 layout="steps" headline="The new worker keeps a batch of the old epoch"
moments = {
    "Epoch 1 has ended, and your variables still hold its last batch.": (
        [("last of epoch 1", True, False)],
        "",
    ),
    "Epoch 2 starts its worker as a copy of your process with all it holds.": (
        [("last of epoch 1", True, True)],
        "new worker",
    ),
    "The trainer went on, but the worker keeps the old batch, so one has no room.": (
        [
            ("last of epoch 1", False, True),
            ("1st of epoch 2", True, False),
            ("2nd, ready", False, True),
            ("3rd", False, True),
        ],
        "new worker",
    ),
}
frames = [
    beyond_memory.draw_shared_batches(batches, room=3.5, worker=worker)
    for batches, worker in moments.values()
]
plotting.play(
    frames,
    title="Four batches of 18 MiB in 64 MiB",
    captions=list(moments),
    stills=(0, 1, 2),
    alt="A forked worker keeps the last batch of the epoch before, one too many.",
)

# %% [markdown] tags=["explain"]
# It may be what happened in the course, but we do not know how large its `/dev/shm` was. And why a bus error? If a program gives a file a size, Linux reserves
# nothing. It looks for a page only when the program touches it. If there is none, it sends a signal, SIGBUS, which ends the process before Python can raise an
# exception. Since 2025 PyTorch reserves the pages first ([pull request 161910](https://github.com/pytorch/pytorch/pull/161910)), so today you read
# `No space left on device`. Main memory works in the same way. Linux may promise more of it than there is, and when it runs out, Linux ends a process, not
# always the guilty one.
#
# **Your turn.** Which batch is the largest that is safe? Count the batch in use, those that are ready, and the one that a fork may keep.


# %% tags=["yours"] yours="largest_batch" takes=5
def largest_batch(room_bytes, item_bytes, workers, prefetch_factor=2):
    """Return how many items a batch may have if all batches must fit into room_bytes."""
    batches = workers * prefetch_factor + 2
    return room_bytes // (batches * item_bytes)


# %% checks="largest_batch"
largest_batch = check(largest_batch)


# %% wrong="largest_batch" says="that a fork may keep"
def largest_batch(room_bytes, item_bytes, workers, prefetch_factor=2):
    return room_bytes // ((workers * prefetch_factor + 1) * item_bytes)


# %% wrong="largest_batch" says="Every worker keeps"
def largest_batch(room_bytes, item_bytes, workers, prefetch_factor=2):
    return room_bytes // ((workers + 2) * item_bytes)


# %% wrong="largest_batch" says="Return an integer"
def largest_batch(room_bytes, item_bytes, workers, prefetch_factor=2):
    return room_bytes / ((workers * prefetch_factor + 2) * item_bytes)


# %% right="largest_batch" style=1
def largest_batch(room_bytes, item_bytes, workers, prefetch_factor=2):
    ready = workers * prefetch_factor
    in_use = kept_by_a_fork = 1
    per_batch = room_bytes // (ready + in_use + kept_by_a_fork)
    return per_batch // item_bytes


# %% right="largest_batch" style=2
def largest_batch(room_bytes, item_bytes, workers, prefetch_factor=2):
    items = 0
    step = 1 << 40
    while step:
        if (items + step) * item_bytes * (2 + workers * prefetch_factor) <= room_bytes:
            items += step
        step >>= 1
    return items


# %% tags=["look"]
digit_bytes, photo_bytes = 28 * 28 * 4 + 8, 3 * 224 * 224 * 4 + 8
for workers in (1, 2, 8):
    digits, photos = (
        largest_batch(64 * MIB, size, workers) for size in (digit_bytes, photo_bytes)
    )
    print(f"workers {workers}: batches of up to {digits:>5,} digits, or {photos:>2} photos")

# %% [markdown] tags=["explain"]
# If more is needed, give the container more with `--shm-size`, use fewer workers, or hand over bytes and convert them to float32 on the device, which needs a
# quarter.
#
# **To remember.** A loader needs room for workers × prefetch factor + 2 batches in `/dev/shm`, one of them in use and one left over from the
# epoch before. Files fill whole pages, so stay a percent below. Into 64 MiB go batches of about 5,300 digits with one worker, but only 6 photos
# of 224 × 224 in float32 with eight.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. A loop that is too large drops each layer just before its turn.
# 2. A few hundredths of the bytes, far away, can double the time.
# 3. Bytes that are used rarely may live far away.
#
# The laptop needed 20 s per token and not 6. A loop over 20 GB with room for 14 drops every byte just before its turn, so that all 20 GB come
# from the disk, and 20 GB at 1 GB/s are the 20 s that its user saw. If 14 GB always stay in memory, 6 s are possible. Our own program, which
# drops the layer that was used longest ago, showed the same with nine layers in room for eight, where a pass took 28.9 ms instead of 3.59
# (measured).
#
# So when something is slightly too large, ask three questions. Does the rule that drops bytes fit the order in which they are used? How many times as slow is the
# next memory? And can the bytes be fetched ahead, or are they used only once per step? If there is no next memory, count the bytes before you start.
#
# The [exercises](exercises/12_beyond_memory_exercises.ipynb) ask for the knee in a row of times, a better rule for the layer that leaves, and a loader's bytes. The
# [appendix](appendix/12_beyond_memory.ipynb) has a published curve that was blamed on full memory, a function that runs out of memory safely, and the batch that
# is worth its bytes.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $s$ share of the bytes that is far; $r$ the near rate over the far rate; $N$ parameters; $n$ tokens per pass.
#
# | quantity | formula | for |
# |---|---|---|
# | layers read again per pass | 0 if all have room, else all of them | in order, the one used longest ago leaves |
# | the same, forward and backward | layers $-$ room, each way | room for less than all |
# | time with far bytes | $1 + r\,s$ times that with all bytes near | nothing overlapped |
# | a step with Adam on the processor | $\frac{8\,N n}{\text{FLOP/s}} + \frac{4\,N}{\text{bus}} + \frac{28\,N}{\text{memory}}$ | mixed precision, checkpointing |
# | tokens from which fetching all weights is free | peak FLOP/s over bus bytes/s | bfloat16, fetched ahead |
# | batches in /dev/shm, at most | workers $\cdot$ prefetch $+\,2$ | one in use, one kept by a fork |
