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
#     number: "11"
#     title: "Working set: profilers, time, and AlexNet"
# ---

# %% [markdown]
# # Working set: profilers, time, and AlexNet
#
# What a published table of operations adds up, what profilers miss and leave behind, where the time of a step goes, AlexNet
# layer by layer, and the peak of LeNet with what its convolutions take inside.

# %%
from functools import partial

import pandas as pd
import thop
import torch
from torch import nn

import helpers
from helpers import memory, operations, plotting, profiling, recorded, results, timing, units
from helpers.studies import working_set

device = "cuda" if torch.cuda.is_available() else "cpu"
digits = torch.rand(64, 1, 28, 28, device=device)

# %% [markdown]
# ## A published count, taken apart
#
# "Hardware Ecosystem" (a lecture, Cambridge, 2022) printed "FLOPs" of LeNet for one image. `lecture_table` counts by its rules
# and gives its numbers to the digit. Beside them: the multiply-accumulates and the real FLOPs.

# %%
counted = operations.profile_ops(helpers.LeNet(variant="lecture"), (1, 1, 28, 28))
lecture = counted.lecture_table()
rows = {row.layer: row.operations for row in lecture.layers}
side_by_side = pd.DataFrame(
    {
        "printed": rows,
        "macs": {name: counted.layer(name).forward_macs for name in rows},
        "flops": {name: counted.layer(name).forward_flops for name in rows},
    }
)
side_by_side.map("{:,}".format)

# %%
extra = side_by_side["printed"] - side_by_side["macs"]
account = {
    "multiply-accumulates": counted.forward_macs,
    "bias of the convolutions, as one MAC an output": extra[["conv1", "conv2"]].sum(),
    "ReLU, as 2 an element": extra[[name for name in rows if "relu" in name]].sum(),
    "pooling, as 3 an output": extra[["pool1", "pool2"]].sum(),
}
print(pd.Series(account).map("{:,}".format).to_string())
print(f"sum {sum(account.values()):,}, printed {lecture.total_operations:,}")
print(
    f"real FLOPs {counted.forward_flops:,}, {counted.forward_flops / sum(account.values()):.2f} times"
)

# %% [markdown]
# Each rule can be defended alone. (`profile_ops` counts one comparison an input of a pooling, as
# `operations.convention_table()` says; another convention is as good, if it is stated.) A sum of different things under the
# name of a third cannot: a machine's FLOP/s held against it are wrong by almost a half.
#
# `relu5` stands after the last layer and cuts off every negative logit. In the table that costs 20. Push all ten logits below
# zero, as a bad start may do:

# %%
for variant in ("lecture", "standard"):
    model = helpers.LeNet(variant=variant).to(device)
    nn.init.constant_(model.fc3.bias, -100.0)
    labels = torch.arange(8, device=device)
    nn.functional.cross_entropy(model(digits[:8]), labels).backward()
    learning = sum(bool(weight.grad.any()) for weight in model.parameters())
    print(f"{variant}: {learning} of {len(list(model.parameters()))} have a gradient")

# %% [markdown]
# With the ReLU on its logits such a network can never learn again.
#
# ## What a step computes in each layer
#
# Training also goes backward. For a layer $y = Wx$ the gradient of the weights is one product, $\partial y\,x^T$, and the gradient of the input is
# another one, $W^T \partial y$, for which the layer before waits. Each of them has as many multiply-accumulates as the forward pass. The first layer has
# only two products, because nobody asks for the gradient of the digits.

# %%
step = operations.profile_ops(helpers.LeNet(), (64, 1, 28, 28))
layers = [row for row in step.layers if row.forward_macs]
forward = [row.forward_macs for row in layers]
parts = {
    "forward: all of inference": forward,
    "gradient of the weights": forward,
    "gradient of the input": [row.backward_macs - row.forward_macs for row in layers],
}
drawn = plotting.draw_layers(
    [row.layer for row in layers],
    parts,
    unit="MAC",
    title="Inference is at least a third of training",
)
alt = "A bar a layer in three equal parts; conv1 has no gradient of its input."
plotting.show(drawn, alt=alt)

# %% [markdown]
# ## What profilers leave behind, and miss
#
# A profiler should leave a model as it found it. thop counts LeNet to the last MAC. Look at the model afterwards:

# %%
counted_by_thop = helpers.LeNet()
thop.profile(counted_by_thop, inputs=(torch.zeros(1, 1, 28, 28),), verbose=False)
left_behind = sorted(set(counted_by_thop.state_dict()) - set(helpers.LeNet().state_dict()))
print("left in the model:", ", ".join(left_behind))
try:
    helpers.LeNet().load_state_dict(counted_by_thop.state_dict())
except RuntimeError:
    print("its saved weights do not load into a new LeNet")

# %% [markdown]
# They are buffers, so they go into every checkpoint that you save. Where two parts of a network share one ReLU, thop hangs its
# hooks on it twice and takes them off once:


# %%
def two_with_one_relu():
    relu = nn.ReLU()
    halves = (nn.Sequential(nn.Linear(8, 8), relu) for _ in range(2))
    return nn.Sequential(*halves)


shared = two_with_one_relu()
thop.profile(shared, inputs=(torch.zeros(1, 8),), verbose=False)
try:
    shared(torch.zeros(1, 8))
except AttributeError as error:
    print(f"the model no longer runs: {error}")

# %%
shared = two_with_one_relu()
before = set(shared.state_dict())
found = operations.profile_ops(shared, (1, 8))
left = set(shared.state_dict()) - before
print(f"profile_ops: {found.forward_macs} MAC, {len(left)} buffers left", end="; ")
print(f"the model runs and returns {shared(torch.zeros(1, 8)).shape[1]} numbers")

# %% [markdown]
# ### An operator that nobody knows
#
# You can add an operator of your own to PyTorch, and no profiler can know what it computes:


# %%
@torch.library.custom_op("course::scaled_tanh", mutates_args=())
def scaled_tanh(x: torch.Tensor) -> torch.Tensor:
    return 1.7159 * torch.tanh(2 / 3 * x)


@scaled_tanh.register_fake
def _(x):
    return torch.empty_like(x)


class WithOwnOperator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(784, 120), nn.Linear(120, 10)

    def forward(self, x):
        return self.fc2(scaled_tanh(self.fc1(x)))


# %%
thop_macs, _ = thop.profile(WithOwnOperator(), inputs=(torch.zeros(1, 784),), verbose=False)
ours = operations.profile_ops(WithOwnOperator(), (1, 784))
print(f"thop: {thop_macs:,.0f} MAC")
print(f"profile_ops: {ours.forward_macs:,} MAC, not counted:", *ours.not_counted, sep="\n  ")

# %%
ours.table("operator")[["operator", "phase", "treatment", "calls", "macs"]]

# %% [markdown]
# Both report the same number. (Of the two names in the list, one is the backward that PyTorch made for the operator.) One names
# what it did not count: that may be most of the time. Give it a rule, `operations.register(scaled_tanh, rule)`, whose `rule`
# returns `operations.work(call, flops=3 * call.output.numel)`, or measure.
#
# ### Five profilers
#
# Recorded once, since you may not have all of them. The truth was worked out by hand (green: exact, amber: within 2 %). The
# column `torch` is PyTorch's own `FlopCounterMode`.

# %%
recorded.show("11", "peers")

# %% [markdown]
# ## Where the time goes
#
# `pool1` has no multiply-accumulate at all. `profile_time` sets marks around each module, forward and backward, and runs the
# step many times, with the marks and without, so that you see what the marks themselves cost.

# %% tags=["nbval-ignore-output"]
lenet = helpers.LeNet().to(device)
times = profiling.profile_time(lenet, digits, budget_s=1)
times

# %% tags=["nbval-ignore-output"]
whole = operations.profile_ops(lenet, tuple(digits.shape))
flops = {row.layer: row.forward_flops + row.backward_flops for row in whole.layers}
print(f"pool1: {100 * flops['pool1'] / flops['']:.1f} % of the FLOPs")
print(f"pool1: {100 * times.layer('pool1').share:.1f} % of the time here")

# %% [markdown]
# Pooling does few operations and moves many bytes, and its kernel may run on one number at a time where a convolution runs on
# many.
#
# Below the layers are operators, and below those, on a GPU, kernels. `kernel_table` is the classic table of a profiler, for any
# function:


# %%
def training_step():
    lenet.zero_grad()
    lenet(digits).sum().backward()


# %% tags=["nbval-ignore-output"]
kernels = profiling.kernel_table(training_step, runs=20)
results.printed(kernels.table().head(8))

# %% [markdown]
# ### The step from its operators alone
#
# A model of a step's time that needs no run of the step: time each distinct operator alone, multiply by its calls, add up. It
# assumes that operators do not affect each other and that all the time is spent in operators.

# %%
modelled = profiling.estimate_step_time(lenet, digits, budget_s=1)
measured = helpers.measure(training_step, budget_s=1)
ratio = modelled.step_s / measured.median_s
sentence = "the times of the operators add up to that of the step"
timing.claim(sentence, ratio, at_least=0.5, at_most=2, evidence=[modelled, measured])

# %% [markdown]
# Where the model is too low, the time between the operators is missing: Python and autograd. Where it is too high, an operator
# ran slower alone than in the step, where its input was still in a cache.
#
# ## The peak of LeNet, and what its convolutions take inside
#
# The products of the lesson's transformer take nothing inside in float32. A convolution may: `profile_mem` gives each kind of
# tensor at its largest moment, and at the peak.

# %% tags=["nbval-ignore-output"]
shape, adam = (64, 1, 28, 28), torch.optim.Adam
kinds = working_set.profile_mem(lenet, shape, optimizer=adam)
results.printed(kinds.table())

# %% tags=["nbval-ignore-output"]
estimate = memory.estimate_peak_memory(lenet, shape, optimizer=adam)
peak = memory.measure_peak_memory(lenet, shape, optimizer=adam)
print(f"estimated {estimate.peak_bytes:,} bytes, measured {peak.peak_bytes:,} bytes")

# %% [markdown]
# *Workspace* is what an operator takes for itself while it runs. On a CPU most of it is
# [oneDNN](../glossary.md#onednn)'s, which copies 6 channels into 8 or 16 places, as wide as the registers of this processor. On
# another processor, and on a GPU, the workspace is another, and so is the peak. That is why the lesson shows the peak of a
# transformer.
#
# Who is alive when? What is smaller than 250 kB is left out:

# %%
prefix = {
    "activation": "",
    "saved activation": "",
    "activation gradient": "gradient from ",
    "workspace": "inside ",
}
spans = [
    plotting.Span(
        lane=f"{prefix[tensor.category]}{tensor.layer}, {units.text(tensor.size_bytes, 'B')}",
        start=tensor.start_event,
        end=tensor.end_event + 1,
        kind=tensor.category,
    )
    for tensor in estimate.timeline.tensors
    if tensor.category in prefix and tensor.size_bytes > 250_000
]
title, axis = "Who is alive when: one step of LeNet", "operator of the step"
drawn = plotting.gantt(spans, title=title, unit="", xlabel=axis)
plotting.show(
    drawn, alt="Saved tensors live until their layer's backward, early layers' longest."
)

# %% [markdown]
# An estimate without a run also says how large a batch fits, before anything runs out:

# %% tags=["nbval-ignore-output"]
limit = units.parse("16 MiB", "B")
largest = memory.max_batch_size(lenet, (1, 1, 28, 28), limit, optimizer=adam)
assert largest.peak_bytes <= limit < largest.next_peak_bytes
largest

# %% [markdown]
# ## AlexNet, layer by layer
#
# AlexNet (Krizhevsky and others, 2012) was trained on two GPUs of 3 GB, one half of most layers on each; lesson 06 counts
# whether one would have done. The one here is torchvision's, in one piece, with 64 filters in its first layer, where the paper
# has 96. Its convolutions are called `features`, its fully connected layers `classifier`.

# %%
alexnet = working_set.profile_layer_alexnet()
connected = [row for row in alexnet.layers if row.kind == "Linear"]
inside = sum(row.parameter_bytes for row in connected)
print(f"{alexnet.parameter_bytes // 4:,} parameters", end=", ")
print(f"{100 * inside / alexnet.parameter_bytes:.1f} % in three fully connected layers")
shown = alexnet.table().drop(columns=["kind", "working_set_bytes"])
results.printed(shown.set_index("layer").rename_axis(None))


# %%
def draw_alexnet(batch):
    rows = alexnet.layers
    parts = {
        "parameters": [row.parameter_bytes for row in rows],
        "inputs": [batch * row.input_bytes for row in rows],
        "outputs": [batch * row.output_bytes for row in rows],
    }
    names, title = [row.layer for row in rows], f"AlexNet, batch {batch}"
    return plotting.draw_layers(names, parts, unit="B", title=title)


helpers.interactive_figure(
    draw_alexnet,
    {"batch": [2**power for power in range(11)]},
    views=[{"batch": 1}, {"batch": 256}],
    alt=lambda batch: f"Bars of inputs, parameters and outputs of AlexNet, batch {batch}.",
)

# %%
flowing_bytes = sum(row.input_bytes + row.output_bytes for row in alexnet.layers)
print(f"parameters: {alexnet.parameter_bytes:,} bytes")
print(f"inputs and outputs: {flowing_bytes:,} bytes an image")
print(f"they are equal at a batch of {alexnet.parameter_bytes / flowing_bytes:.0f}")

# %% [markdown]
# ## The working set of each layer
#
# The lesson counts a block of a language model. Here is LeNet, layer by layer, when it trains on 64 images with Adam. Early layers save the most, because their outputs are large
# pictures, and a single late layer has most of the weights and of what Adam keeps for them.

# %% tags=["hide-input"]
adam = partial(torch.optim.Adam, fused=True)
trained = memory.profile_layer_mem(helpers.LeNet().to(device), (64, 1, 28, 28), optimizer=adam)
drawn = plotting.draw_layer_memory(
    trained, training=True, title="LeNet, 64 images: what training keeps"
)
alt = "Bars by layer: relu1, pool1, relu2 save most; fc1 has most weights, gradients, state."
plotting.show(drawn, alt=alt)

# %% [markdown]
# ## A tool that counts modules
#
# `thop` is in wide use, and it has a rule for each *module* that it knows. Linear layers are modules, whereas the two products of plain attention, which are written with `@`, belong to
# no module. Which share of the multiply-accumulates does it see?


# %%
def plain(queries, keys, values):
    scores = queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5  # (b, heads, n, n)
    later = torch.full_like(scores[0, 0], -torch.inf).triu(1)
    return torch.softmax(scores + later, dim=-1) @ values


words = torch.zeros(1, 128, 64)
by_hand = 128 * 64 * 4 * 64 + 2 * 128 * 128 * 64
thop_macs, _ = thop.profile(
    working_set.Attention(64, 1, plain), inputs=(words,), verbose=False
)
ours = operations.profile_ops(working_set.Attention(64, 1, plain), words)
print(f"by hand {by_hand:,}, profile_ops {ours.forward_macs:,}, thop {thop_macs:,.0f} MAC")

# %% [markdown]
# Half of the work was not counted, and nothing says so unless you pass `report_missing=True`. Ask every profiler what it did not count.
#
# ## What autocast keeps
#
# Under `torch.autocast` weights, gradients and Adam's state stay float32. Products read bfloat16 copies of the weights, which stay until the backward pass has used them, and what
# the products save is bfloat16. The norms save their float32 input. So you might expect half of the peak, and get more.

# %% tags=["hide-input", "nbval-ignore-output"]
small = working_set.LanguageModel(
    lambda: working_set.Attention(128, 4, plain), layers=4, width=128, vocabulary=64
).to(device)
characters = torch.randint(64, (4, 257), device=device)
wide = memory.estimate_peak_memory(small, characters, optimizer=adam).peak_bytes
cast = memory.estimate_peak_memory(
    small, characters, optimizer=adam, autocast=torch.bfloat16
).peak_bytes
measured = memory.measure_peak_memory(
    small, characters, optimizer=adam, autocast=torch.bfloat16
).peak_bytes
assert 0.5 < cast / wide < 0.95
assert abs(cast / measured - 1) < 0.02
print(
    f"of the float32 peak {cast / wide:.0%} are left (modelled), {measured / wide:.0%} (measured)"
)

# %% [markdown]
# On CUDA the softmax computes in float32 as well, and both its result and a bfloat16 copy for the next product are kept, so even more is left there. Autocast buys speed first.
#
# ## What the allocator says
#
# | on CUDA | counts |
# |---|---|
# | `torch.cuda.max_memory_allocated()` | tensors, at their peak |
# | `torch.cuda.max_memory_reserved()` | what PyTorch took from the driver |
# | `nvidia-smi` | that, and CUDA's own |
#
# Our estimates are of the first (the table is of PyTorch's notes *CUDA semantics*). PyTorch keeps freed memory for later tensors in a caching allocator and may cut one large piece for
# several tensors. It cannot move a tensor that is alive, so it must sometimes ask the driver for more, although enough bytes are free.

# %% tags=["hide-input"]
GB = 10**9
free, data = "waiting, freed and kept by PyTorch", "data, alive"
lanes = {
    "8 GB are freed": [free],
    "four tensors cut from them": [data] * 4,
    "two are freed": [free, data, free, data],
}
spans = [
    plotting.Span(lane, 8 * GB * place // len(kinds), 8 * GB * (place + 1) // len(kinds), kind)
    for lane, kinds in lanes.items()
    for place, kind in enumerate(kinds)
]
spans.append(plotting.Span("3 GB are needed", 8 * GB, 11 * GB, data))
title = "Two gaps of 2 GB have no room for a tensor of 3 GB"
drawn = plotting.gantt(spans, title=title, unit="B", xlabel="address")
plotting.show(drawn, alt="Two free gaps of 2 GB each between tensors; 3 GB fit into neither.")

# %% [markdown]
# If an `OutOfMemoryError` says that much memory is reserved but unallocated, it gives its own advice, `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, which lets segments grow in
# place.
