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
#     number: "07"
#     title: Working set
#     needs: ["00"]
#     objectives:
#       - count|counted the operations and the bytes of each layer of a network
#       - find|found what a published table of operations got wrong, and the size of each error
#       - predict|predicted where the memory of a training step goes, and its peak
#       - trade|traded time for memory by checkpointing, estimated and measured
#       - judge|judged a profiler by what it says it did not count
# ---

# %% [markdown] tags=["objectives"]
# # Working set
#
# A network of 41,282 parameters needs more than ten times the memory of its parameters to train on 64 digits. Where does it
# go? And what does one step of training cost, in operations and in time? This lesson counts both, layer by layer, and then holds
# the counts to what the machine did.
#
# Most numbers of this lesson are exact: they are counts, and on a CPU yours must be the same. Times, and the memory that a
# convolution takes for itself, are those of one machine. Clear the outputs before you begin (Edit, Clear Outputs of All Cells).

# %%
import pandas as pd
import thop
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import helpers
from helpers import memory, operations, plotting, profiling, recorded, results, timing, units

device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown] tags=["slide"] minutes=2
# ## Part 1: count by hand
#
# - Convolution: outputs × weights of one output
# - Fully connected layer: inputs × outputs
# - Both in [multiply-accumulates](glossary.md#mac): $y \leftarrow y + w\,x$
# - LeNet, one image: how many?
#
# LeNet reads images of 28 by 28 pixels. Its first convolution slides six filters of 5 by 5 over them, without padding, so each
# filter gives 24 by 24 outputs, and each output is a sum of 25 products. The pooling halves both sides; the second convolution
# sees 6 channels of 12 by 12 and gives 16 of 8 by 8, each output a sum of $6 \cdot 25$ products. After the second pooling
# $16 \cdot 4 \cdot 4 = 256$ numbers go through three fully connected layers, of 120, 60 and 10 outputs.

# %% tags=["predict"]
macs_of_lenet = helpers.predict("How many multiply-accumulates does LeNet need for one image?", "MAC")
macs_of_lenet

# %% tags=["slide", "slide-code"] minutes=2
by_hand = {
    "conv1": (6 * 24 * 24) * (1 * 5 * 5),
    "conv2": (16 * 8 * 8) * (6 * 5 * 5),
    "fc1": 256 * 120,
    "fc2": 120 * 60,
    "fc3": 60 * 10,
}
# %% [markdown]
# `profile_ops` counts the same without your hand. It follows the model's operators on shapes alone, computes nothing, and
# returns a row a layer: a number found so is *counted*, and not measured. The variant `"lecture"` has the same convolutions and
# fully connected layers; Part 2 shows what is different in it.

# %% tags=["run"]
lenet = helpers.LeNet(variant="lecture").to(device)
counted = operations.profile_ops(lenet, (1, 1, 28, 28))
assert all(by_hand[name] == counted.layer(name).forward_macs for name in by_hand)
macs_of_lenet.reveal(modelled=sum(by_hand.values()), counted=counted.forward_macs)

# %% tags=["look"]
counted

# %% [markdown] tags=["explain"]
# The two counts agree in every layer. Two columns, never mixed. A MAC is one multiplication and one addition. A [FLOP](glossary.md#flop) is one operation of any
# kind: two for each MAC, and one for each comparison of a ReLU. So FLOPs are not simply twice the MACs:

# %% tags=["explain", "slide"] minutes=2
from_macs = units.flops_from_macs(counted.forward_macs)
print(f"{from_macs:,} FLOP in multiply-accumulates")
print(f"{counted.forward_flops - from_macs:,} FLOP element by element: ReLU and pooling")
print(f"{counted.forward_flops:,} FLOP together")

# %% [markdown] tags=["slide"] minutes=2
# ## Part 2: what went wrong here?
#
# A lecture printed these "FLOPs" of LeNet for one image.
#
# It is the same LeNet as ours. The lecture is "Hardware Ecosystem" (Cambridge, 2022). `lecture_table` counts by its rules and
# gives its numbers to the digit.

# %%
lecture = counted.lecture_table()
print(f"the lecture's total: {lecture.total_operations:,}")
results.printed(lecture.table())

# %% tags=["slide-output"]
layers = [row.layer for row in lecture.layers]
operations_of_lecture = [row.operations for row in lecture.layers]
drawn = plotting.draw_layers(
    layers, {"lecture": operations_of_lecture}, unit="", title="The lecture's count, one image"
)
alt = "Bars of the lecture's operations by layer of LeNet: conv2 has most, then conv1 and fc1; the ReLUs have some too."
plotting.show(drawn, alt=alt)

# %% [markdown]
# Compare it with your count, layer by layer, before you read on. Which rows agree with the MACs, and which do not?

# %% tags=["predict"]
flops_each = helpers.predict('How many real FLOPs stand behind one of the lecture\'s "FLOPs"?', "x")
flops_each

# %% tags=["run"]
side_by_side = pd.DataFrame(
    {
        "lecture": operations_of_lecture,
        "macs": [counted.layer(name).forward_macs for name in layers],
        "flops": [counted.layer(name).forward_flops for name in layers],
    },
    index=layers,
)
flops_each.reveal(
    modelled=units.flops_from_macs(counted.forward_macs) / lecture.total_operations,
    counted=counted.forward_flops / lecture.total_operations,
)

# %% tags=["look"]
side_by_side.map("{:,}".format)

# %% [markdown] tags=["explain"]
# The total is neither the MACs nor the FLOPs. Take it apart. The difference of each convolution is one an output: its bias,
# counted as a whole multiply-accumulate, though it is an addition alone. The fully connected layers have a bias too, and there it
# is left out. ReLU counts 2 an element, pooling 3 an output, and both are added to multiply-adds as if they were the same thing.

# %% tags=["explain", "slide", "slide-output"] minutes=3
extra = side_by_side["lecture"] - side_by_side["macs"]
account = {
    "multiply-accumulates": counted.forward_macs,
    "bias of the convolutions, as one MAC an output": extra[["conv1", "conv2"]].sum(),
    "ReLU, as 2 an element": extra[[name for name in layers if "relu" in name]].sum(),
    "pooling, as 3 an output": extra[["pool1", "pool2"]].sum(),
}
print(pd.Series(account).map("{:,}".format).to_string())
print(f"sum: {sum(account.values()):,}, the lecture's total: {lecture.total_operations:,}")

# %% [markdown] tags=["explain"]
# Each rule can be defended alone: the largest of four values does take three comparisons. (`profile_ops` counts one an input, as
# `operations.convention_table()` says; another convention is as good, if it is stated.) What cannot be defended is a sum of
# different things under the name of a third. As FLOPs it is too low by almost a half; a machine's FLOP/s held against it would be
# wrong by as much.
#
# One more row is suspect: `relu5` stands after the last layer, so it cuts off every negative logit. That costs 20 in the table.
# What does it cost in training? Push all ten logits below zero, as a bad start may do, and look at the gradients.

# %% tags=["look"]
for variant in ("lecture", "standard"):
    model = helpers.LeNet(variant=variant).to(device)
    nn.init.constant_(model.fc3.bias, -100.0)
    loss = nn.functional.cross_entropy(model(torch.rand(8, 1, 28, 28, device=device)), torch.arange(8, device=device))
    loss.backward()
    learning = sum(bool(weight.grad.any()) for weight in model.parameters())
    print(
        f"{variant}: {learning} of {len(list(model.parameters()))} weights and biases have a gradient that is not zero"
    )

# %% [markdown] tags=["explain"]
# With the ReLU on its logits such a network can never learn again: every gradient is zero. From here on we use LeNet without it.
# The last thing that the table leaves out is the larger part of the work: training also goes backward.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 3: a training step in multiples of the forward
#
# Forward and backward together: how many times the multiply-accumulates of the forward?
#
# Backward, a layer $y = Wx$ needs two products: the gradient of the weights, $\partial y\,x^T$, and the gradient of its input,
# $W^T \partial y$, which the layer before it waits for.

# %% tags=["predict"]
step_multiple = helpers.predict("Forward and backward together: how many times the MACs of the forward?", "x")
step_multiple

# %% [markdown]
# Each of the two products has as many multiply-accumulates as the forward, which makes 3 in all. But nothing stands before the
# first layer, so nobody asks for the gradient of its input. The model is $3M - M_{first}$.

# %% tags=["run"]
lenet = helpers.LeNet().to(device)
step = operations.profile_ops(lenet, (1, 1, 28, 28))
step_macs = step.forward_macs + step.backward_macs
modelled_macs = 3 * step.forward_macs - step.layer("conv1").forward_macs
step_multiple.reveal(modelled=modelled_macs / step.forward_macs, counted=step_macs / step.forward_macs)

# %% tags=["look", "slide", "slide-output"] minutes=2
print(f"modelled: {modelled_macs:,} MAC, counted: {step_macs:,} MAC")

# %% tags=["look"]
rows = [step.layer(name) for name in by_hand]
drawn = plotting.draw_shares(
    {
        "inference": {row.layer: row.forward_macs for row in rows},
        "training step": {row.layer: row.forward_macs + row.backward_macs for row in rows},
    },
    title="Multiply-accumulates of LeNet by layer",
)
alt = "Two pies of the MACs by layer: the two convolutions take most of both, conv1 a smaller share of training."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# The share of conv1 is smaller in training, because its backward pass needs one product instead of two. Is the ratio of the times
# that of the MACs as well?

# %% tags=["look", "nbval-ignore-output"]
digits = torch.rand(64, 1, 28, 28, device=device)


def training_step(model):
    model.zero_grad()
    model(digits).sum().backward()


programs = {"forward": lambda: lenet(digits), "step": lambda: training_step(lenet)}
passes = helpers.compare(programs, budget_s=2, precision=0.1)
passes

# %% tags=["explain"]
passes.claim("a training step takes longer than its forward", "step", at_least=1.5)

# %% [markdown] tags=["explain"]
# Set the time ratio beside the multiple that you predicted. They need not agree: pooling and ReLU have no MAC and take time, and
# a convolution's backward runs at another rate than its forward. Part 8 finds out which layers these are.
#
# And then the optimizer changes the weights. It does so once a step, however many images the step has read:

# %%
per_image = {}
for batch in (1, 8, 64):
    whole = operations.profile_ops(lenet, (batch, 1, 28, 28), optimizer=torch.optim.Adam)
    phases = {"forward": whole.forward_flops, "backward": whole.backward_flops, "Adam": whole.optimizer_flops}
    per_image[f"batch {batch}"] = {phase: flops / batch for phase, flops in phases.items()}
parts = {phase: [shares[phase] for shares in per_image.values()] for phase in phases}
drawn = plotting.draw_layers(list(per_image), parts, unit="FLOP", title="FLOPs of a training step for each image")
alt = "Stacked bars: forward and backward cost the same for each image, Adam's share shrinks as the batch grows."
plotting.show(drawn, alt=alt)

# %%
print(f"Adam: {whole.optimizer_flops:,} FLOP for {whole.parameters:,} parameters")
for batch, flops in per_image.items():
    print(f"{batch}: Adam does {flops['Adam'] / flops['forward']:.2f} FLOP for each FLOP of the forward")

# %% [markdown] tags=["slide"] minutes=1
# ## Part 4: the working set of a layer
#
# The [working set](glossary.md#working-set) of a layer: its input, its weights, its output, in bytes.
#
# It is what must be at hand while the layer runs.
#
# In bytes, a float32 number has four. Which are more for one image in LeNet, the weights or the numbers that flow between the
# layers (the activations)? Both convolutions together have few weights and are used many times; a fully connected layer
# uses each of its weights once.

# %% tags=["predict", "slide-output"]
weight_share = helpers.predict("One image: what share of the bytes that LeNet's layers touch are weights?", "%")
weight_share

# %% tags=["run"]
touched = step.table().set_index("layer")[["input_bytes", "weight_bytes", "output_bytes"]].drop("flatten")
total = touched.loc[""]
weight_share.reveal(counted=float(100 * total["weight_bytes"] / total.sum()))

# %% tags=["look", "slide", "slide-output"] minutes=2
results.printed(touched.iloc[1:].rename_axis(None))


# %% tags=["look"]
def layer_bytes(batch):
    rows = operations.profile_ops(lenet, (batch, 1, 28, 28)).table()
    return rows[(rows.layer != "") & (rows.output_bytes > 0)]


def draw_inference(batch):
    rows = layer_bytes(batch)
    parts = {part: rows[f"{part}_bytes"].tolist() for part in ("input", "weight", "output")}
    return plotting.draw_layers(rows.layer.tolist(), parts, unit="B", title=f"LeNet, inference, batch {batch}")


helpers.interactive_figure(
    draw_inference,
    {"batch": [2**power for power in range(11)]},
    views=[{"batch": 1}, {"batch": 64}],
    alt=lambda batch: f"Bars of input, weight and output bytes of each layer of LeNet for a batch of {batch}.",
)

# %% [markdown] tags=["explain"]
# For one image the weights of `fc1` tower over everything. For 64 images they are the same, and inputs and outputs are 64 times as large: now
# the largest working set is that of the first layers. A batch divides the cost of reading the weights among its images.
#
# ### What training adds
#
# In inference, what a layer has read may be forgotten. In training it may not: backward needs the input of each
# product again. What is kept for that is [saved for backward](glossary.md#saved-for-backward). Each weight
# also gets a gradient, and Adam keeps two more numbers for it, its [optimizer state](glossary.md#optimizer-state).

# %% tags=["run"]
trained = memory.profile_layer_mem(lenet, (64, 1, 28, 28), optimizer=torch.optim.Adam)
table = trained.table().set_index("layer")
kept = table[["input_bytes", "output_bytes", "saved_bytes", "gradient_bytes", "optimizer_state_bytes"]]
results.printed(kept)

# %% tags=["look", "slide", "slide-output"] minutes=2
parts = {
    "weight and bias": (table["weight_bytes"] + table["bias_bytes"]).tolist(),
    "gradient": table["gradient_bytes"].tolist(),
    "Adam's state": table["optimizer_state_bytes"].tolist(),
    "saved for backward": table["saved_bytes"].tolist(),
}
drawn = plotting.draw_layers(table.index.tolist(), parts, unit="B", title="LeNet, training with Adam, batch 64")
alt = "Stacked bars by layer: relu1, pool1, relu2 and conv2 save most for backward; fc1 has most weights and state."
plotting.show(drawn, alt=alt)

# %% tags=["explain"]
per_parameter = trained.parameter_bytes + trained.gradient_bytes + trained.optimizer_state_bytes
print(f"weights, gradients and Adam's state: {per_parameter / trained.parameter_bytes:.2f} times the weights")
print(f"saved for backward: {trained.saved_bytes / trained.parameter_bytes:.1f} times the weights")

# %% [markdown] tags=["explain"]
# Three rows are worth a second look; a tensor that two layers save is counted at the first. `conv1` saves nothing of its own: its
# input is the batch, which is there anyway. `pool1` needs its input too, but that is what `relu1` has saved; what it adds
# is the place where each largest value stood, an integer of eight bytes, so twice its output. `fc2` and `fc3` save nothing new:
# their inputs are the outputs of the ReLUs before them.
#
# ### AlexNet: one image through each layer
#
# AlexNet (Krizhevsky and others, 2012) was trained on two GPUs of 3 GB, one half of most layers on each; lesson 05 counts whether
# one would have done. It has the same two kinds of layers. The one here is torchvision's, which is in one piece and has 64 filters
# in its first layer, where the paper has 96. Its convolutions are called `features`, its fully connected layers `classifier`.

# %% tags=["predict"]
connected_share = helpers.predict("What share of AlexNet's parameters is in its three fully connected layers?", "%")
connected_share

# %% tags=["run"]
alexnet = memory.profile_layer_alexnet()
connected = [row for row in alexnet.layers if row.kind == "Linear"]
connected_share.reveal(counted=100 * sum(row.parameter_bytes for row in connected) / alexnet.parameter_bytes)
print(f"{alexnet.parameter_bytes // 4:,} parameters")

# %% tags=["look", "slide", "slide-output"] minutes=3
results.printed(alexnet.table().drop(columns=["kind", "working_set_bytes"]).set_index("layer").rename_axis(None))


# %% tags=["look"]
def draw_alexnet(batch):
    rows = alexnet.layers
    parts = {
        "input": [batch * row.input_bytes for row in rows],
        "parameters": [row.parameter_bytes for row in rows],
        "output": [batch * row.output_bytes for row in rows],
    }
    return plotting.draw_layers([row.layer for row in rows], parts, unit="B", title=f"AlexNet, batch {batch}")


helpers.interactive_figure(
    draw_alexnet,
    {"batch": [2**power for power in range(11)]},
    views=[{"batch": 1}, {"batch": 256}],
    alt=lambda batch: f"Bars of input, parameters and output of each layer of AlexNet for a batch of {batch}.",
)

# %% [markdown] tags=["explain"]
# The figure multiplies inputs and outputs by the batch; parameters do not grow. So there is a batch from which on the activations
# are more than the parameters. Move the slider until you see it, then compute it:

# %% tags=["explain"]
flowing_bytes = sum(row.input_bytes + row.output_bytes for row in alexnet.layers)
print(f"parameters: {alexnet.parameter_bytes:,} bytes; input and output: {flowing_bytes:,} bytes an image")
print(f"they are equal at a batch of {alexnet.parameter_bytes / flowing_bytes:.0f}")

# %% [markdown] tags=["slide"] minutes=2
# ## Part 5: the peak of a training step
#
# [Peak memory](glossary.md#peak-memory) is the most that is alive at one moment. It decides whether a step fits.
#
# You have seen the parts: weights, gradients and Adam's state; the batch; what is saved for backward. Make your own prediction
# from them. The next cell adds them up, which is the count that textbooks do.

# %% tags=["predict", "slide-output"]
peak_of_step = helpers.predict("What is the peak memory of a step of LeNet with Adam, batch 64?", "B")
peak_of_step

# %%
textbook_bytes = per_parameter + digits.nbytes + trained.saved_bytes
print(f"weights, gradients, Adam's state, batch, saved for backward: {textbook_bytes:,} bytes")

# %% [markdown]
# `estimate_peak_memory` does not run the step. It follows the life of each tensor and finds the moment at which most bytes are
# alive; each distinct operator it runs once, alone, to see what that takes inside itself. `measure_peak_memory` runs two steps
# and reads every allocation of the second. Both must say the same.

# %% tags=["run"]
estimate = memory.estimate_peak_memory(lenet, (64, 1, 28, 28), optimizer=torch.optim.Adam)
peak = memory.measure_peak_memory(lenet, (64, 1, 28, 28), optimizer=torch.optim.Adam)
# %% tags=["look", "nbval-ignore-output"]
peak_of_step.reveal(modelled=estimate.peak_bytes, measured=peak.peak_bytes)

# %% tags=["look"]
print(f"estimate over measurement: {estimate.peak_bytes / peak.peak_bytes:.2f}; the peak comes in: {estimate.phase}")

# %% [markdown] tags=["explain"]
# The textbook's sum is wrong twice. It adds up what is never alive together: at the end of backward most of what was saved is gone.
# And it leaves out two things, which the next figures show: the gradients of the activations, and the
# [workspace](glossary.md#workspace) that an operator takes for itself while it runs. Most of the workspace is that of [oneDNN](glossary.md#onednn)'s
# convolutions: the library may copy 6 channels into 8 or 16 places, as wide as the [registers](glossary.md#register) of this processor. On another
# processor, and on a GPU, the workspace is another, and so is the peak.

# %% tags=["look", "nbval-ignore-output"]
shares = memory.profile_mem(lenet, (64, 1, 28, 28), optimizer=torch.optim.Adam)
names = {"size_bytes": "most_at_any_moment_bytes", "at_peak_bytes": "alive_at_the_peak_bytes"}
kinds = shares.table().set_index("category")[list(names)].rename(columns=names)
results.printed(pd.concat([kinds, kinds.sum().rename("sum").to_frame().T]))

# %% [markdown] tags=["look"]
# `profile_mem` gives the most that each kind of tensor takes at any moment. These moments differ, so their sum is more than the
# step ever needs. What is alive at the peak adds up to it, and may stand in a pie:

# %% tags=["look", "slide", "slide-output"] minutes=2
at_peak = kinds["alive_at_the_peak_bytes"].sort_values(ascending=False)
parts = {kind: int(at_peak[kind]) for kind in at_peak.index[:3]} | {"all other kinds": int(at_peak[3:].sum())}
parts = {f"{kind}: oneDNN, this CPU" if kind == "workspace" else kind: size for kind, size in parts.items()}
drawn = plotting.draw_shares({"training step": parts}, title="LeNet, batch 64: alive at the peak")
alt = (
    "A pie of what is alive at the peak of a training step, by kind; the workspace is that of oneDNN on this processor."
)
plotting.show(drawn, alt=alt)

# %% tags=["look", "slide", "slide-output"] minutes=3
line = estimate.timeline
prefix = {"activation": "", "saved activation": "", "activation gradient": "gradient from ", "workspace": "inside "}
spans = [
    plotting.Span(
        lane=f"{prefix[tensor.category]}{tensor.layer}, {units.text(tensor.size_bytes, 'B')}",
        start=tensor.start_event,
        end=tensor.end_event + 1,
        kind=tensor.category,
    )
    for tensor in line.tensors
    if tensor.category in prefix and tensor.size_bytes > units.parse("250 kB", "B")
]
drawn = plotting.gantt(spans, title="Who is alive when: one step of LeNet", unit="", xlabel="operator of the step")
alt = "A Gantt chart of large tensors: each saved one lives until its layer's backward, those of early layers longest."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# Read it from left to right; what is smaller than 250 kB is left out. The forward makes one saved tensor after another; the
# backward uses them in reverse order, and each is freed as soon as it was used. The first layer's tensors live longest.
#
# With an estimate that needs no run you can ask how large a batch fits, before anything runs out. `max_batch_size` looks for it
# by bisection; `fits` answers for one batch.

# %% tags=["explain", "nbval-ignore-output"]
limit = units.parse("16 MiB", "B")
largest = memory.max_batch_size(lenet, (1, 1, 28, 28), limit, optimizer=torch.optim.Adam)
one_more = helpers.fits(lenet, (largest.batch_size + 1, 1, 28, 28), limit, optimizer=torch.optim.Adam)
assert largest.peak_bytes <= limit
assert not one_more
largest

# %% [markdown] tags=["slide"] minutes=2
# ## Part 6: time for memory
#
# [Activation checkpointing](glossary.md#activation-checkpointing) keeps the input of a block only. Backward computes the block
# again. What share of the peak is left?
#
# It pays where the activations are most of the memory: a deep network and a large batch. Here are four blocks, each of
# four layers of 256, and 2,048 examples:


# %%
class Blocks(nn.Module):
    def __init__(self, again):
        super().__init__()
        self.again = again
        self.blocks = nn.ModuleList(self.block() for _ in range(4))

    def block(self):
        return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


rows = torch.rand(2048, 256, device=device)
models = {"plain": Blocks(again=False).to(device), "checkpointed": Blocks(again=True).to(device)}

# %% tags=["predict"]
kept_share = helpers.predict("What share of the peak memory is left with checkpointing?", "%")
kept_share

# %% tags=["run", "nbval-ignore-output"]
peaks = {
    name: (memory.estimate_peak_memory(model, rows).peak_bytes, memory.measure_peak_memory(model, rows).peak_bytes)
    for name, model in models.items()
}
estimated_share, measured_share = (
    100 * after / before for before, after in zip(peaks["plain"], peaks["checkpointed"], strict=True)
)
kept_share.reveal(modelled=estimated_share, measured=measured_share)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=2
results.printed(pd.DataFrame(peaks, index=["estimated", "measured"]).T.add_suffix("_bytes"))

# %% tags=["explain"]
for name, (estimated, measured) in peaks.items():
    print(f"{name}: estimate over measurement {estimated / measured:.2f}")

# %% [markdown] tags=["explain"]
# What does it cost? Each block is computed once more: the step has one forward more. In units of the forward that is 4 in place
# of 3, less the input gradient that the first layer never needs.

# %% tags=["explain"]
work = operations.profile_ops(models["plain"], tuple(rows.shape))
plain_macs = work.forward_macs + work.backward_macs
extra_ratio = (plain_macs + work.forward_macs) / plain_macs
print(f"with checkpointing: {extra_ratio:.2f} times the multiply-accumulates")


# %% tags=["look", "nbval-ignore-output"]
def run_step(model):
    model.zero_grad()
    model(rows).sum().backward()


programs = {name: lambda model=model: run_step(model) for name, model in models.items()}
costs = helpers.compare(programs, budget_s=5, precision=0.05)
costs

# %% tags=["explain"]
costs.claim("computing every block again makes the step longer", "checkpointed", at_least=1.1, at_most=1.8)

# %% [markdown] tags=["slide"] minutes=1
# ## Part 7: other profilers
#
# A profiler is a model too. Whom do you believe?
#
# `thop` is in wide use. It hangs a rule on each module that it knows. On LeNet it is right to the last MAC:

# %%
thop_model = helpers.LeNet()
thop_macs, _ = thop.profile(thop_model, inputs=(torch.zeros(1, 1, 28, 28),), verbose=False)
print(f"thop: {thop_macs:,.0f} MAC, by hand: {sum(by_hand.values()):,} MAC")

# %% [markdown] tags=["slide"] minutes=2
# ### A small attention layer
#
# 128 words of 64 numbers, each compared with each other one. Two of the matrix products are written as `@`, outside every
# module. What share of the multiply-accumulates does thop count?


# %%
class Attention(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, words):
        queries, keys, values = self.queries_keys_values(words).chunk(3, dim=-1)
        weights = torch.softmax(queries @ keys.transpose(-1, -2) / 8, dim=-1)
        return self.out(weights @ values)


# %% tags=["predict"]
seen_share = helpers.predict("What share of this layer's multiply-accumulates does thop count?", "%")
seen_share

# %% tags=["run"]
words = torch.zeros(1, 128, 64)
attention_macs = 128 * 64 * (3 * 64) + 2 * 128 * 128 * 64 + 128 * 64 * 64
thop_macs, _ = thop.profile(Attention(), inputs=(words,), verbose=False)
ours = operations.profile_ops(Attention(), words)
seen_share.reveal(counted=100 * thop_macs / attention_macs)

# %% tags=["look", "slide", "slide-output"] minutes=2
print(f"by hand      {attention_macs:,} MAC")
print(f"thop         {thop_macs:,.0f} MAC")
print(f"profile_ops  {ours.forward_macs:,} MAC")

# %% [markdown] tags=["explain"]
# What thop has no rule for counts zero, and unless you ask it does not say so: a number that looks finished. With
# `report_missing=True` it warns that it has no rule for `Attention` and takes it for zero. fvcore lists the operators that it does
# not know (`unsupported_ops`). Ask every profiler for its list.
#
# And a profiler should leave a model as it found it. Look at the LeNet that thop has counted:

# %%
left_behind = sorted(set(thop_model.state_dict()) - set(helpers.LeNet().state_dict()))
print("left in the model:", ", ".join(left_behind))
try:
    helpers.LeNet().load_state_dict(thop_model.state_dict())
except RuntimeError:
    print("its saved weights do not load into a new LeNet")

# %% [markdown] tags=["explain"]
# They are buffers, so they go into every checkpoint that you save. It can be worse: where two parts of a network share one ReLU,
# thop hangs its hooks on it twice and takes them off once.

# %% tags=["look"]
relu = nn.ReLU()
shared = nn.Sequential(nn.Sequential(nn.Linear(8, 8), relu), nn.Sequential(nn.Linear(8, 8), relu))
thop.profile(shared, inputs=(torch.zeros(1, 8),), verbose=False)
try:
    shared(torch.zeros(1, 8))
except AttributeError as error:
    print(f"the model no longer runs: {error}")

# %% [markdown] tags=["explain"]
# `profile_ops` gives the same model back as it was, and counts both uses:

# %%
shared = nn.Sequential(nn.Sequential(nn.Linear(8, 8), relu := nn.ReLU()), nn.Sequential(nn.Linear(8, 8), relu))
before = set(shared.state_dict())
print(f"{operations.profile_ops(shared, (1, 8)).forward_macs} MAC")
left, outputs = set(shared.state_dict()) - before, shared(torch.zeros(1, 8)).shape[1]
print(f"left in the model: {len(left)} buffers; it runs, and returns {outputs} numbers")

# %% [markdown]
# ### More models, more profilers
#
# These counts were recorded once, since you may not have all of the profilers. The truth was worked out by hand; the colour
# says how far each is from it (green: exact, amber: within 2 %). The column `torch` is PyTorch's own `FlopCounterMode`.

# %% tags=["slide", "slide-output"] minutes=2
recorded.show("07", "peers")

# %% [markdown] tags=["slide"] minutes=2
# ## Part 8: where the time goes
#
# `pool1` has no multiply-accumulate at all. What share of the time of a training step does it take?
#
# A profile of time answers it. `profile_time` sets marks around each module, forward and backward, and runs the step many times,
# with the marks and without, so that you see what the marks themselves cost.

# %% tags=["predict"]
pool_share = helpers.predict("What share of the time of LeNet's training step, batch 64, does pool1 take?", "%")
pool_share

# %% tags=["run", "nbval-ignore-output", "slide", "slide-output"] minutes=2
times = profiling.profile_time(lenet, digits, budget_s=1)
whole = operations.profile_ops(lenet, tuple(digits.shape))
flops = {row.layer: row.forward_flops + row.backward_flops for row in whole.layers}
pool_share.reveal(modelled=100 * flops["pool1"] / flops[""], measured=100 * times.layer("pool1").share)

# %% tags=["look", "nbval-ignore-output"]
times

# %% tags=["explain"]
assert abs(sum(row.total_s for row in times.parts()) / times.step_s - 1) < 1e-6
pool1_s = times.layer("pool1").total_s
print(f"pool1: {whole.layer('pool1').forward_macs} MAC in the forward, {units.text(pool1_s, 's')} in a step")

# %% [markdown] tags=["explain"]
# The model in the reveal counts FLOPs as if each took the same time. Pooling does few operations and moves many bytes, and its
# kernel may run on one number at a time where a convolution runs on many.
#
# Below the layers are operators, and below those, on a GPU, kernels. `kernel_table` is the classic table of a profiler, for any
# function:

# %% tags=["look", "nbval-ignore-output"]
kernels = profiling.kernel_table(lambda: training_step(lenet), runs=20)
results.printed(kernels.table().head(8))

# %% tags=["explain"]
shares_sum = kernels.table()["share"].sum()
print(f"with the row of what is not accounted for the shares add up to {shares_sum:.3f}")

# %% [markdown] tags=["explain"]
# ### The step from its operators alone
#
# Here is a model of a step's time that needs no run of the step: time each distinct operator alone, multiply by its calls, add up.
# It assumes that operators do not affect each other and that all the time is spent in operators.

# %% tags=["predict"]
step_time = helpers.predict("How long does one training step of LeNet, batch 64, take?", "s")
step_time

# %% tags=["run"]
modelled = profiling.estimate_step_time(lenet, digits, budget_s=1)
measured = helpers.measure(lambda: training_step(lenet), budget_s=1)
print(f"operators that could not be timed alone: {len(modelled.not_timed)}")

# %% tags=["look", "nbval-ignore-output"]
step_time.reveal(modelled=modelled.step_s, measured=measured.median_s)

# %% tags=["explain"]
ratio = modelled.step_s / measured.median_s
timing.claim("the times of the operators add up to that of the step", ratio, at_least=0.5, at_most=2,
             evidence=[modelled, measured])  # fmt: skip

# %% [markdown] tags=["explain"]
# Where it is too low, the time between the operators is missing: Python and autograd. Where it is too high, an operator ran slower
# alone than in the step, where its input was still in a [cache](glossary.md#cache).

# %% [markdown] tags=["slide"] minutes=2
# ## Part 9: what was not counted
#
# - Every operator is counted, declared free, or listed.
# - Never a silent zero.
#
# You can add an operator of your own to PyTorch, and no profiler can know what it computes. Here is one, in the middle of a small
# network.


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


# %% tags=["run", "slide-output"]
own = WithOwnOperator()
thop_macs, _ = thop.profile(WithOwnOperator(), inputs=(torch.zeros(1, 784),), verbose=False)
ours = operations.profile_ops(own, (1, 784))
print(f"thop: {thop_macs:,.0f} MAC")
print(f"profile_ops: {ours.forward_macs:,} MAC, not counted:", *ours.not_counted, sep="\n  ")

# %% tags=["look"]
listed = ours.table("operator")[["operator", "phase", "treatment", "calls", "macs"]]
listed

# %% tags=["explain"]
print(ours.to_depth(0))

# %% [markdown] tags=["explain"]
# Both report the same number of MACs. (Of the two names in the list, one is the backward that PyTorch made for the operator.)
# One says "at least", because an operator that nobody knows may multiply too, and names it: one operator that is not counted
# may be most of the time. Give it a rule, `operations.register(scaled_tanh, rule)`, whose `rule` returns
# `operations.work(call, flops=3 * call.output.numel)`, or ask `profile_time`.

# %% [markdown]
# The [exercises](exercises/07_working_set_exercises.ipynb) of this lesson let you count without `profile_ops`: a convolution, a
# training step, a peak.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. A training step does about three times the operations of its forward pass.
# 2. What backward needs stays in memory until then.
# 3. Count by hand first, then trust a profiler.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# | quantity | formula | for |
# |---|---|---|
# | convolution | $N\,C_{out}\,H_{out}\,W_{out} \cdot C_{in}\,K^2$ MAC | $N$ images, $C$ channels, $K \times K$ filters |
# | fully connected layer | $N \cdot \text{inputs} \cdot \text{outputs}$ MAC | $N$ examples |
# | FLOPs | $2 \cdot \text{MAC} + \text{element-wise operations}$ | any layer |
# | training step | $3M - M_{first}$ MAC | $M$ MAC in the forward, every layer trained |
# | with every block computed again | $4M - M_{first}$ MAC | checkpointing |
# | working set of a layer | input + weights + output | bytes |
# | weights and what training keeps for them | $4\,P \cdot 4$ bytes | $P$ parameters, float32, Adam |
# | peak memory | $\max_t \sum_{\text{alive at } t} \text{bytes}$ | a step |
# | time of a step from its operators | $\sum_i \text{calls}_i\, t_i$ | each operator timed alone |
