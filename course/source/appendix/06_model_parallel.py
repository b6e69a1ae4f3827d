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
#     number: "06"
#     title: "Pipelines that wait less"
# ---

# %% [markdown]
# # Pipelines that wait less
#
# The lesson ends its third part with one sentence on interleaving. Here you see it, and a schedule that leaves almost no gap. Both wait less than 1F1B
# without a larger batch, and each pays in another coin.

# %% tags=["hide-input"]
import pandas as pd

import helpers
from helpers import parallel, plotting
from helpers.studies import parallel_plans

# %% [markdown]
# ## Two stages per GPU
#
# Give GPU 0 the first and the fifth eighth of the layers, GPU 1 the second and the sixth, and so on. This *interleaving* (Narayanan and others, *Efficient
# Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, 2021) keeps all GPUs and all layers, but each pass through a stage takes half as
# long. A pipeline of $R$ ranks fills and drains in $R - 1$ turns whatever a turn is, so with $v$ stages per GPU it waits $(R - 1)/(v\,m)$ of its computing
# time. With four GPUs, four microbatches and two stages per GPU, that is 3/8 instead of 3/4.

# %% tags=["hide-input"]
one_stage = parallel_plans.draw_schedule("1f1b", microbatches=4, until_s=0.55)
two_stages = parallel_plans.draw_schedule(
    "interleaved", microbatches=4, chunks=2, until_s=0.55
)
one_stage.set_figheight(two_stages.get_figheight())  # frames of a player have one size
plotting.play(
    [one_stage, two_stages],
    title="Four microbatches: one stage per GPU, then two",
    captions=["1F1B: each GPU has one stage.", "The second stage of each GPU is darker."],
    alt="Four lanes of passes, then the same with passes half as long and less waiting.",
)

# %% [markdown]
# The price is traffic and memory. Activations cross seven boundaries instead of three, and GPU 0 goes further ahead, because it must send its second stage
# forward as well before the first gradient comes back. With many microbatches it saves $1 + (R - 1)/(R\,v)$ times as much as in 1F1B.
#
# ## No gap at all
#
# A stage waits for the gradient of its input, but nobody waits for the gradient of its weights. So a *zero-bubble* schedule (Qi and others, 2024) cuts the
# backward pass in two. It hands the first half on at once and puts the second half into the gaps, as you hid the weights' gradients behind a sum in Part 2
# of the lesson.

# %% tags=["predict"]
zero = helpers.predict(
    "With four stages and eight microbatches, how many per cent of its computing time does "
    "the zero-bubble schedule wait?",
    "%",
)
zero

# %% tags=["hide-input", "run"]
rows = {}
for name, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)):
    model = parallel.pipeline_schedule(name, ranks=4, microbatches=8, chunks=chunks)
    rows[name] = model.bubble_ratio, [load.live_activations for load in model.loads]

# %% tags=["look"]
zero.reveal(modelled=100 * rows["zero_bubble"][0])

# %% tags=["hide-input", "look"]
columns = ["waiting / computing", "microbatches saved by GPU 0 to 3"]
table = {
    name: (f"{ratio:.1%}", ", ".join(map(str, live))) for name, (ratio, live) in rows.items()
}
pd.DataFrame(table, index=columns).T.rename_axis("eight microbatches (modelled)")

# %% tags=["hide-input", "look"]
plotting.show(
    parallel_plans.draw_schedule("zero_bubble", microbatches=8),
    alt="Four lanes with three kinds of passes and hardly a gap between them.",
)

# %% [markdown] tags=["explain"]
# An interleaved GPU has two thin stages, and the table counts each by itself. GPU 0 saves 11 of them, as much as 5.5 microbatches, which is 1.375 times the
# 4 of 1F1B.
#
# The zero-bubble schedule waits for a third of what 1F1B waits for (modelled), because by its authors' formula a turn of waiting is the forward pass plus
# the first half of the backward pass minus the second half. Here all three take the same time, so one part remains of three. In return every GPU saves as
# much as the first one of 1F1B.
#
# Others state waiting as a share of the whole step, which is $(R - 1)/(m + R - 1)$ for GPipe and 1F1B. PyTorch has all four schedules in
# `torch.distributed.pipelining`.
