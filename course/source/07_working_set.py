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
#       - count|counted what a training step computes, touches and keeps, layer by layer
#       - catch|caught what autograd keeps, with a hook of your own
#       - find|found the moment of a step at which most is alive
#       - trade|traded time for memory, by narrow numbers and by computing blocks again
#       - decide|decided whether a model of 7 billion parameters trains in 24 GB
# ---

# %% [markdown] tags=["objectives"]
# # Working set
#
# `OutOfMemoryError`: sooner or later every training run meets it. Then people halve the batch until it runs, and never learn
# what filled the memory. You will count a small model to the byte, and estimate the large one, on a laptop.
#
# **The bet.** A language model of 7 billion parameters takes 14 GB in bfloat16 (2 bytes a number), and your card has 24 GB. You
# train it with Adam in mixed precision (float32 weights, products in bfloat16) on one text of 4,096 tokens. Its attention is
# *fused*, which keeps less (Part 3). Part 6 has the answer.

# %%
from functools import partial

import thop
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import helpers
from helpers import exercises, hardware, memory, operations, plotting, units

device = "cuda" if torch.cuda.is_available() else "cpu"
adam = partial(torch.optim.Adam, fused=True)  # the update in one kernel

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1000000000.0, 1000000000000.0]
bet = helpers.predict("7 billion parameters, one step: how much memory at its peak?", "B")
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A layer's work is counted from its shapes"
# ## Part 1: what a layer computes and touches
#
# - Convolution: outputs × weights of one output
# - Fully connected: inputs × outputs
# - In [MACs](glossary.md#mac): $y \leftarrow y + w\,x$
# - And training: how many times as many?
#
# Start small. LeNet reads digits of 28 x 28. Six filters of 5 x 5 give 24 x 24 outputs each; pooling halves both sides. Sixteen
# filters of 6 x 5 x 5 give 8 x 8 each; pooling again leaves $16 \cdot 4 \cdot 4 = 256$ numbers. Three fully connected layers
# follow.

# %% tags=["slide", "slide-code"] minutes=1 headline="By hand: outputs times the numbers under a filter"
by_hand = {
    "conv1": (6 * 24 * 24) * (1 * 5 * 5),
    "conv2": (16 * 8 * 8) * (6 * 5 * 5),
    "fc1": 256 * 120,
    "fc2": 120 * 60,
    "fc3": 60 * 10,
}

# %% [markdown]
# `profile_ops` counts the same. It follows the model's operators on shapes and computes nothing:

# %%
lenet = helpers.LeNet().to(device)
step = operations.profile_ops(lenet, (1, 1, 28, 28))
rows = [step.layer(name) for name in by_hand]
assert list(by_hand.values()) == [row.forward_macs for row in rows]
print(f"by hand {sum(by_hand.values()):,} MAC, profile_ops {step.forward_macs:,} MAC")
print(f"and {step.forward_flops:,} FLOP: two a MAC, and those of ReLU and pooling")

# %% [markdown]
# MACs and [FLOPs](glossary.md#flop) are two columns, never mixed.
#
# Training also goes backward. For a layer $y = Wx$ the gradient of its weights is one product, $\partial y\,x^T$. The gradient
# of its input, $W^T \partial y$, is another; the layer before waits for it. Each has as many MACs as the forward. Who needs no
# gradient of its input?

# %% tags=["predict"]
multiple = helpers.predict("LeNet, forward and backward: times the MACs of the forward?", "x")
multiple

# %% tags=["run"]
step_macs = step.forward_macs + step.backward_macs
modelled = (3 * step.forward_macs - by_hand["conv1"]) / step.forward_macs
multiple.reveal(modelled=modelled, counted=step_macs / step.forward_macs)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Inference is at least a third of training"
forward = [row.forward_macs for row in rows]
parts = {
    "forward: all of inference": forward,
    "gradient of the weights": forward,
    "gradient of the input": [row.backward_macs - row.forward_macs for row in rows],
}
drawn = plotting.draw_layers(
    list(by_hand), parts, unit="MAC", title="Inference is at least a third of training"
)
alt = "A bar a layer in three equal parts; conv1 has no gradient of its input."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# Nobody asks for the gradient of the digits, so the first layer has two products, and the step $3M - M_1$ MACs.
#
# ### What it touches
#
# The [working set](glossary.md#working-set) of a layer is what it must have at hand: inputs, parameters, outputs. Parameters do
# not grow with the batch. Press play:


# %% tags=["run"]
def touched(batch):
    return memory.profile_layer_mem(lenet, (batch, 1, 28, 28), training=False)


def drawn_at(batch):
    title = f"LeNet, inference, batch {batch}"
    drawn = plotting.draw_layer_memory(touched(batch), training=False, title=title)
    drawn.axes[0].set_xlim(0, 560e3)
    return drawn


def share(batch):
    found = touched(batch)
    flowing = sum(row.input_bytes + row.output_bytes for row in found.layers)
    return found.parameter_bytes / (found.parameter_bytes + flowing)


batches = 1, 2, 4, 8, 16


# %% tags=["look", "slide", "slide-output"] minutes=2 layout="steps" headline="A batch outgrows the first layers' weights"
plotting.play(
    [drawn_at(batch) for batch in batches],
    title="The working set of each layer",
    alt="Bars of parameters, inputs and outputs by layer; those of the first layers grow.",
    captions=[f"Parameters: {share(batch):.0%} of all bytes." for batch in batches],
)

# %% [markdown] tags=["explain"]
# One image: `fc1` has most, nearly all of it weights. With 16 images all weights together are 10 % of the bytes, and the early
# layers, with their large pictures, need most. What flows between layers is called *activations*. (Here each counts twice: one
# layer's output is the next one's input.)

# %% [markdown] tags=["slide"] minutes=2 headline="What the backward pass needs is kept"
# ## Part 2: what training keeps
#
# - In inference, forget what a layer has read
# - In training, backward needs it again
# - Autograd *saves* it
#
# PyTorch tells a hook each tensor that it saves:


# %% tags=["look"]
def note(tensor):
    print("saved:", tuple(tensor.shape))
    return tensor


small = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    small(torch.zeros(5, 4))

# %% [markdown] tags=["explain"]
# The first layer saves its input, for $\partial y\,x^T$; ReLU its output, where zeros stand; the second layer its weights, for
# $W^T \partial y$, and its input, which is ReLU's output. (The order is PyTorch's.) Training adds one tensor here, ReLU's
# output, which is listed twice. The input and the weights were in memory anyway. What training adds is [saved for
# backward](glossary.md#saved-for-backward).
#
# **Your turn.** Tensors that share memory have the same `tensor.untyped_storage()`, which has `nbytes()` and can be put into a
# set.


# %% tags=["yours"] yours="saved_bytes"
def saved_bytes(model, x):
    """Return the bytes autograd saves in model(x), each storage once, parameters and x not."""
    saved = set()

    def note(tensor):
        saved.add(tensor.untyped_storage())
        return tensor

    there = {tensor.untyped_storage() for tensor in (*model.parameters(), x)}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x)
    return sum(storage.nbytes() for storage in saved - there)


# %% checks="saved_bytes"
asked = exercises.Checks("What autograd keeps", saved_bytes)
three = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
slips = {
    120: "ReLU's output is saved twice and stands in memory once",
    140: "x is there anyway, whoever saves it",
    84: "Parameters are there anyway, whoever saves them",
    164: "x and the parameters are there anyway",
    0: "Nothing was noted: call the model inside the hooks",
}
asked.returns("two layers and a ReLU", (three, torch.zeros(5, 4)), expected=60, mistakes=slips)
asked.returns("one layer", (nn.Linear(4, 3), torch.zeros(5, 4)), expected=0)
saved_bytes = asked.settle()


# %% wrong="saved_bytes" says="stands in memory once"
def saved_bytes(model, x):
    sizes = []
    there = {tensor.untyped_storage() for tensor in (*model.parameters(), x)}

    def note(tensor):
        if tensor.untyped_storage() not in there:
            sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x)
    return sum(sizes)


# %% wrong="saved_bytes" says="x is there anyway"
def saved_bytes(model, x):
    saved = set()

    def note(tensor):
        saved.add(tensor.untyped_storage())
        return tensor

    there = {tensor.untyped_storage() for tensor in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x)
    return sum(storage.nbytes() for storage in saved - there)


# %% [markdown]
# LeNet: of one image `conv1` makes $6 \cdot 24 \cdot 24$ numbers, `pool1` a quarter of them, `conv2` $16 \cdot 8 \cdot 8$,
# `pool2` a quarter; then 120 and 60. ReLU keeps its output, which the next layer needs too. Max pooling keeps besides *where*
# each largest value stood, an integer of 8 bytes. The weights are 165 kB.

# %% tags=["predict"]
times_weights = helpers.predict(
    "LeNet, 64 images: saved bytes over those of the weights?", "x"
)
times_weights

# %% tags=["run"]
digits = torch.rand(64, 1, 28, 28, device=device)
weight_bytes = sum(weight.nbytes for weight in lenet.parameters())
places = 6 * 24 * 24, 6 * 12 * 12, 16 * 8 * 8, 16 * 4 * 4, 120, 60
an_image = 4 * sum(places) + 8 * (places[1] + places[3])
kept = saved_bytes(lenet, digits)
times_weights.reveal(modelled=64 * an_image / weight_bytes, counted=kept / weight_bytes)

# %% [markdown]
# Training keeps more besides: each weight gets a gradient, and Adam two running averages, its [optimizer
# state](glossary.md#optimizer-state). Four numbers a parameter:

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Early layers keep the most; one late layer has most weights"
trained = memory.profile_layer_mem(lenet, tuple(digits.shape), optimizer=adam)
assert trained.saved_bytes == kept
title = "LeNet, 64 images: what training keeps"
drawn = plotting.draw_layer_memory(trained, training=True, title=title)
alt = "Bars by layer: relu1, pool1, relu2 save most; fc1 has most weights, gradients, state."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# A tensor that two layers save counts at the first. `pool1` adds only its places, twice the bytes of its output. (8 bytes of a
# layer's state are Adam's counts of steps: 4 for the weights, 4 for the bias.)

# %% [markdown] tags=["slide"] minutes=2 headline="Each token looks at all before it: a square of scores"
# ## Part 3: a transformer, token by token
#
# - Words become *tokens*, a vector of width $h$ each
# - *Attention* lets each token look at itself and all before it
# - A score for each pair: a square
#
# Each of several *heads* makes a query, a key and a value of $h / \text{heads}$ numbers for each token. A softmax of queries
# times keys says how much of each value a token takes:


# %% tags=["slide", "slide-code"] minutes=1 headline="Attention is two products and a softmax between"
def plain(queries, keys, values):
    scores = queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5
    later = torch.full_like(scores[0, 0], -torch.inf).triu(1)  # a token sees none after it
    return torch.softmax(scores + later, dim=-1) @ values


# %%
class Attention(nn.Module):
    def __init__(self, width, heads, attend=plain):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        split = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(*split).transpose(1, 2).flatten(2))


# %%
class Block(nn.Module):
    def __init__(self, width, heads, attend=plain):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, attend)
        self.norm2, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.gelu, self.down = nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


# %% [markdown]
# This is GPT's block, without its dropout. Count what it keeps of one token. A linear layer keeps its input; the products of
# `plain` keep queries, keys and values; softmax keeps its output; layer norm and GELU keep their input. Sums keep nothing. The
# square is stored whole: also a pair that is masked has its number. (Two numbers that a layer norm keeps of a token we leave
# out.)
#
# **Your turn**:


# %% tags=["yours"] yours="kept_for_token"
def kept_for_token(width, heads, tokens):
    """Return the bytes that a block keeps of one of `tokens` tokens, in bfloat16."""
    attention = width + width + 3 * width + width  # norm1, qkv, the three, out
    feed_forward = width + width + 4 * width + 4 * width  # norm2, up, gelu, down
    scores = heads * tokens
    return 2 * (attention + feed_forward + scores)


# %% checks="kept_for_token"
asked = exercises.Checks("Kept of a token", kept_for_token)
slips = {
    256: "And the scores: softmax keeps one for each of the tokens, in each head",
    276: "Every head has scores of its own",
    148: "bfloat16 has 2 bytes a number",
    592: "bfloat16 has 2 bytes a number",
    200: "GELU and the last layer keep inputs that are four times as wide",
    264: "queries, keys and values are kept as well: 3 times the width",
    248: "queries, keys and values: three, not one or none",
}
asked.returns("width 8, 2 heads, 10 tokens", (8, 2, 10), expected=296, mistakes=slips)
asked.returns("width 16, 4 heads, 5 tokens", (16, 4, 5), expected=552)
kept_for_token = asked.settle()


# %% wrong="kept_for_token" says="And the scores"
def kept_for_token(width, heads, tokens):
    return 32 * width


# %% wrong="kept_for_token" says="Every head has scores of its own"
def kept_for_token(width, heads, tokens):
    return 32 * width + 2 * tokens


# %% [markdown]
# Now let your hook count. A second block adds exactly what one block keeps, its input included:


# %%
def counted(width, heads, tokens, device="meta"):
    with torch.device(device):
        blocks = [Block(width, heads).bfloat16() for _ in range(2)]
        x = torch.empty(1, tokens, width, dtype=torch.bfloat16)
        two = saved_bytes(nn.Sequential(*blocks), x)
        return (two - saved_bytes(blocks[0], x)) / tokens


modelled, found = kept_for_token(128, 4, 256), counted(128, 4, 256, device)
print(f"a token keeps {modelled:,} bytes (modelled), {found:,.0f} bytes (counted)")

# %% [markdown] tags=["explain"]
# The other bytes are two numbers that each layer norm keeps. A tensor on the device *meta* has a shape and no data, so your hook
# can count a block of any size. The bet's model has 32 layers of width 4,096 with 32 heads (the shape of Llama 2 7B: Touvron and
# others, 2023).

# %% tags=["predict"]
half = helpers.predict("From how many tokens on are scores half of what it keeps?", "tokens")
half

# %% tags=["run"]
width, heads = 4096, 32
shares = {n: 2 * heads * n / counted(width, heads, n) for n in range(1024, 4097, 512)}
crossing = min(n for n in shares if shares[n] > 0.499)
half.reveal(modelled=32 * width / (2 * heads), counted=crossing)
near = [f"{shares[n]:.1%} at {n:,}" for n in (1536, 2048, 2560)]
print(f"counted in steps of 512 tokens; the scores' share is {', '.join(near)}")

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Scores grow with the square, all else with the tokens"
tokens = [256, 512, 1024, 2048, 4096, 8192]
scores = [2 * heads * n * n for n in tokens]
rest = [
    n * counted(width, heads, n) - square for n, square in zip(tokens, scores, strict=True)
]
drawn = plotting.draw_curves(
    tokens,
    {"scores": scores, "all else": rest},
    unit="B",
    size_unit="",
    title="Scores overtake all else at 2,048 tokens",
    xlabel="tokens",
    ylabel="kept by one block",
)
alt = "Two lines over the tokens: all else doubles, scores quadruple; they cross at 2,048."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# All grows with the tokens, scores with their square. They are half at $n = 16\,h/a$ tokens for $a$ heads: sixteen times the
# width of one head, however wide the model.
#
# With dropout a block keeps $34\,h$ and five bytes a score (Korthikanti and others, *Reducing Activation Recomputation in Large
# Transformer Models*, 2022; lessons 05 and 16 use the $34\,h$). *Fused* attention never writes the square: it computes scores
# piece by piece, and again in the backward pass (lesson 18). Of each head and token it keeps one more number, the
# logarithm of the sum under the softmax: below, 4,096 bytes. PyTorch has it:


# %%
def fused(queries, keys, values):
    return scaled_dot_product_attention(queries, keys, values, is_causal=True)


x = torch.randn(1, 256, 128, device=device)
for attend in (plain, fused):
    kept = saved_bytes(Attention(128, 4, attend).to(device), x)
    print(f"{attend.__name__} attention keeps {kept:,} bytes of 256 tokens")

# %% [markdown] tags=["slide"] minutes=1 headline="A counter of modules does not see a function"
# ### A tool that counts modules
#
# - `thop`, in wide use, has a rule for each *module* it knows
# - Attention of width 64, one head, 128 tokens
# - What share of the MACs does it count?
#
# Linear layers are modules. The two products in `plain`, written with `@`, stand in none.

# %% tags=["predict"]
seen = helpers.predict("What share of the MACs of attention does thop count?", "%")
seen

# %% tags=["run"]
words = torch.zeros(1, 128, 64)
all_macs = 128 * 64 * (3 * 64 + 64) + 2 * 128 * 128 * 64
thop_macs, _ = thop.profile(Attention(64, 1), inputs=(words,), verbose=False)
ours = operations.profile_ops(Attention(64, 1), words)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Half of attention's work was not counted"
seen.reveal(counted=100 * thop_macs / all_macs)
print(f"by hand {all_macs:,}, profile_ops {ours.forward_macs:,}, thop {thop_macs:,.0f} MAC")

# %% [markdown] tags=["explain"]
# What thop has no rule for counts zero; `report_missing=True` makes it say so. Ask every profiler what it did not count. The
# appendix compares five.

# %% [markdown] tags=["slide"] minutes=2 headline="A step fits if its highest moment does"
# ## Part 4: the peak of a step
#
# - A tensor is *alive* from the operator that makes it until nothing refers to it
# - [Peak memory](glossary.md#peak-memory): the most alive at one moment
# - It decides whether a step fits. When is it?
#
# Four blocks make a small GPT. Its loss: how well each token predicts the next.


# %%
class GPT(nn.Module):
    def __init__(self, width, heads, layers, words, attend=plain, again=False):
        super().__init__()
        self.again, self.embed = again, nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, attend) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, text):
        x = self.embed(text[:, :-1])
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return cross_entropy(self.head(self.norm(x)).flatten(0, 1), text[:, 1:].flatten())


# %% [markdown]
# (`again` waits for Part 5; a real GPT also adds positions.) `estimate_peak_memory` follows a step on tensors without data and
# notes the life of each, as here of three:

# %%
given = [(0, 4, 100), (1, 3, 20), (2, 3, 7)]  # born, gone, bytes
spans = [plotting.Span(f"{size} B", born, gone, "data, alive") for born, gone, size in given]
title = "Three tensors, four moments"
drawn = plotting.gantt(spans, title=title, unit="", xlabel="moments 0 to 3")
drawn.axes[0].set_xticks(range(5))
plotting.show(drawn, alt="Three bars: 100 bytes from 0 to 4, 20 from 1 to 3, 7 from 2 to 3.")

# %% [markdown]
# **Your turn.** A tensor is alive from moment `born` on, and no more at moment `gone`. How many bytes are alive at each moment?


# %% tags=["yours"] yours="alive"
def alive(lives, moments):
    """Return a list: the bytes alive at moments 0 to moments - 1."""
    change = [0] * (moments + 1)
    for born, gone, size in lives:
        change[born] += size
        change[gone] -= size
    running, found = 0, []
    for moment in range(moments):
        running += change[moment]
        found.append(running)
    return found


# %% checks="alive"
asked = exercises.Checks("What is alive when", alive)
slips = {
    (100, 120, 127, 127): "At the moment gone a tensor is no longer alive",
    (100, 20, 7, 0): "A tensor is alive until it is gone, not only when it is born",
    (100, 20, 7, -27): "That is the change at each moment; add the changes up",
    (100, 120, 127): "One number for each moment",
}
asked.returns(
    "three tensors, four moments", (given, 4), expected=[100, 120, 127, 100], mistakes=slips
)
asked.returns("nothing yet", ([(2, 3, 5)], 3), expected=[0, 0, 5])
alive = asked.settle()


# %% wrong="alive" says="no longer alive"
def alive(lives, moments):
    return [
        sum(size for born, gone, size in lives if born <= moment <= gone)
        for moment in range(moments)
    ]


# %% wrong="alive" says="not only when it is born"
def alive(lives, moments):
    return [
        sum(size for born, _, size in lives if born == moment) for moment in range(moments)
    ]


# %%
KINDS = {
    "parameter": "parameters",
    "optimizer state": "optimizer state",
    "gradient": "gradients",
    "saved activation": "saved for backward",
}


def by_kind(estimate):
    lives = {kind: [] for kind in (*KINDS.values(), "all else")}
    for each in estimate.timeline.tensors:
        life = each.start_event, each.end_event + 1, each.size_bytes
        lives[KINDS.get(each.category, "all else")].append(life)
    moments = len(estimate.timeline.events)
    return {kind: alive(found, moments) for kind, found in lives.items()}


# %% [markdown]
# Width 128, four heads, 64 letters, one text of 256 tokens, all in float32: 809,728 parameters of 16 bytes with gradient and
# Adam's state, and four blocks that keep twice the bytes of bfloat16. The rest is small.

# %% tags=["predict"]
peak = helpers.predict("The small GPT, one step with Adam: its peak?", "B")
peak

# %% tags=["run"]
text = torch.randint(64, (1, 257), device=device)
gpt = GPT(128, 4, 4, 64).to(device)
everything = 16 * 809_728 + 4 * 256 * 2 * kept_for_token(128, 4, 256)
estimate = memory.estimate_peak_memory(gpt, text, optimizer=adam)
found = memory.measure_peak_memory(gpt, text, optimizer=adam)

# %% tags=["look", "nbval-ignore-output"]
peak.reveal(modelled=everything, measured=found.peak_bytes)
highest = max(map(sum, zip(*by_kind(estimate).values(), strict=True)))
assert highest == estimate.peak_bytes
assert abs(highest / found.peak_bytes - 1) < 0.01  # the library's own memory may differ
print(f"your running sum: {highest:,} bytes; measured: {found.peak_bytes:,} bytes")

# %% [markdown] tags=["explain"]
# Your running sum and the measurement agree to the byte (on a CPU). How does the estimate know that a tensor is gone? PyTorch drops the
# tensors without data as it drops real ones, and a weak reference on each one's memory notes when. The measurement is a real
# step: on a CPU PyTorch's profiler tells each allocation and release, on CUDA `max_memory_allocated` the peak.
#
# The plain sum of all that the step keeps was too much. Why? Look at it over the step:


# %%
def over_step(estimate, title, top_bytes=28e6):
    drawn, axes = plotting.figure(title=title)
    stack, events = by_kind(estimate), estimate.timeline.events
    colours = ["#0072B2", "#009E73", "#D55E00", "#CC79A7", "#BBBBBB"]
    axes.stackplot(range(len(events)), stack.values(), labels=stack, colors=colours)
    phases = [event.phase for event in events]
    for phase in ("forward", "backward"):
        axes.axvline(phases.index(phase), color="#555555", linewidth=0.8)
        axes.text(phases.index(phase) + 1, 0.95 * top_bytes, phase)
    said = f"peak {units.text(estimate.peak_bytes, 'B')}"
    axes.plot(estimate.peak_event, estimate.peak_bytes, "v", color="#222222", label=said)
    axes.set(ylim=(0, top_bytes), xlabel="operator of the step", ylabel="alive")
    plotting.unit_axis(axes, "y", "B")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=11, frameon=False)
    return drawn


# %% tags=["look", "slide", "slide-output"] minutes=3 headline="The peak comes when the last activation is kept"
drawn = over_step(estimate, "A training step: what is alive when")
drawn.axes[0].axhline(everything, color="#222222", linestyle="--", linewidth=1.2)
drawn.axes[0].text(202, everything, "the plain sum", ha="right", va="bottom")
alt = "Parameters and state stay; what is saved climbs through forward and falls in backward."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# Saved activations are at their most when backward starts. Gradients are at their most when it ends. So the peak is less than
# their sum. On the hill stand grey teeth: what an operator needs for a moment, such as scores before the softmax and, in
# backward, their gradient. One of these has the peak, here in backward. (A convolution also takes
# [workspace](glossary.md#workspace) inside, on a CPU mostly [oneDNN](glossary.md#onednn)'s: see the appendix. The axis counts
# operators, which take different times. The last one is Adam's.)

# %% [markdown] tags=["slide"] minutes=2 headline="There are two ways to a lower peak"
# ## Part 5: the same step in less memory
#
# - Mixed precision: products in bfloat16
# - [Activation checkpointing](glossary.md#activation-checkpointing): forget, and compute again
#
# Under `torch.autocast` weights, gradients and Adam's state stay float32. Products read bfloat16 copies of the weights, which
# stay until backward, and what products and GELU keep is bfloat16. The two norms of a block keep their float32 input. On a CPU
# softmax computes in bfloat16. Four texts, with `plain`:

# %%
texts = torch.randint(64, (4, 257), device=device)
given = {"optimizer": adam}
wide = memory.estimate_peak_memory(gpt, texts, **given)
print(f"float32: {wide.peak_bytes / 1e6:.1f} MB at the peak, in {wide.phase}")

# %% tags=["predict"]
narrow = helpers.predict("Four texts: what share of the peak is left under autocast?", "%")
narrow

# %% tags=["run"]
rule = {  # bytes: of the parameters, and of what 4 blocks keep of 1,024 tokens
    "float32": 12 * 809_728 + 4096 * (64 * 128 + 4 * 4 * 256),
    "cpu": 14 * 809_728 + 4096 * (36 * 128 + 2 * 4 * 256),
    "cuda": 14 * 809_728 + 4096 * (36 * 128 + (4 + 2) * 4 * 256),
}
cast = memory.estimate_peak_memory(gpt, texts, autocast=torch.bfloat16, **given)

# %% tags=["look", "nbval-ignore-output"]
on_device = memory.measure_peak_memory(gpt, texts, autocast=torch.bfloat16, **given)
whole = wide.peak_bytes / 100
assert abs(cast.peak_bytes / on_device.peak_bytes - 1) < 0.02
narrow.reveal(modelled=cast.peak_bytes / whole, measured=on_device.peak_bytes / whole)
for name in ("cpu", "cuda"):
    print(f"{name}: {rule[name] / rule['float32']:.0%} by the rule above (modelled)")

# %% [markdown] tags=["explain"]
# Not half. Weights and state, 12 bytes a parameter, stay; copies of the weights come; norms keep float32. On CUDA softmax computes
# in float32, and both its result and a bfloat16 copy for the next product are kept: there about nine tenths are left
# (modelled).
#
# ### Forget, and compute again
#
# Checkpointing forgets more. Keep the *input* of each block and nothing else. Then go back block by block: run the block again,
# this time with autograd watching, and go back through it alone. (First, what the checks need to count the runs.)


# %%
class Noted(nn.Linear):  # for the checks below: it counts its runs
    runs = 0

    def forward(self, x):
        self.runs += 1
        return super().forward(x).tanh()


def gradients(function, blocks, x):
    for block in blocks:
        block.zero_grad()
        block.runs = 0
    found = [function(blocks, x.clone(), lambda y: (y**2).sum())]
    found += [block.weight.grad for block in blocks]
    return [each.flatten().tolist() for each in found]


def runs(function, blocks, x):
    gradients(function, blocks, x)
    return [block.runs for block in blocks]


# %% [markdown]
# **Your turn.** `x.grad` of a tensor with `requires_grad_()` holds its gradient after `backward`; `y.backward(gradient)` starts
# from a gradient of `y`.


# %% tags=["yours"] yours="backward_by_blocks"
def backward_by_blocks(blocks, x, loss):
    """Go through blocks and loss and back, keeping inputs alone; return x's gradient."""
    inputs = []
    with torch.no_grad():
        for block in blocks:
            inputs.append(x)
            x = block(x)
    x = x.requires_grad_()
    loss(x).backward()
    for block, kept in zip(reversed(blocks), reversed(inputs), strict=True):
        kept = kept.detach().requires_grad_()
        block(kept).backward(x.grad)
        x = kept
    return x.grad


# %% checks="backward_by_blocks"
asked = exercises.Checks("Back, block by block", backward_by_blocks)
torch.manual_seed(0)
chain = [Noted(3, 3).double() for _ in range(3)]
x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
(chain[2](chain[1](chain[0](x))) ** 2).sum().backward()
right = [each.grad.flatten().tolist() for each in (x, *(block.weight for block in chain))]
x = x.detach()
goal = "gradients as in one backward pass"
asked.returns(goal, (chain, x), call=gradients, expected=right)
slips = {(1, 1, 1): "Each block ran once, so autograd kept all of it"}
asked.returns(
    "each block runs twice", (chain, x), call=runs, expected=[2, 2, 2], mistakes=slips
)
backward_by_blocks = asked.settle()


# %% wrong="backward_by_blocks" says="so autograd kept all of it"
def backward_by_blocks(blocks, x, loss):
    x = start = x.requires_grad_()
    for block in blocks:
        x = block(x)
    loss(x).backward()
    return start.grad


# %% wrong="backward_by_blocks" says="gave"
def backward_by_blocks(blocks, x, loss):
    inputs = []
    with torch.no_grad():
        for block in blocks:
            inputs.append(x)
            x = block(x)
    x = x.requires_grad_()
    loss(x).backward()
    gradient = x.grad
    for block, kept in zip(reversed(blocks), reversed(inputs), strict=True):
        kept = kept.detach().requires_grad_()
        block(kept).backward(gradient)
    return kept.grad


# %% [markdown]
# PyTorch's `checkpoint(block, x)` does this inside autograd; `GPT(again=True)` calls it. Still four texts, float32, and the peak
# of 64.0 MB above. What is kept: an input for each block. What is alive in backward: all of *one* block.

# %% tags=["predict"]
forgot = helpers.predict("Four texts, float32: what share of the peak is left with it?", "%")
forgot

# %% tags=["run"]
again = GPT(128, 4, 4, 64, again=True)
versions = {
    "float32": (gpt, None),
    "autocast": (gpt, torch.bfloat16),
    "float32, checkpointing": (again, None),
    "autocast, fused attention": (GPT(128, 4, 4, 64, fused), torch.bfloat16),
    "all three": (GPT(128, 4, 4, 64, fused, again=True), torch.bfloat16),
}
found = {
    name: memory.estimate_peak_memory(model.to(device), texts, autocast=dtype, **given)
    for name, (model, dtype) in versions.items()
}

# %% tags=["look", "nbval-ignore-output"]
estimated = found["float32, checkpointing"].peak_bytes
measured = memory.measure_peak_memory(again, texts, **given).peak_bytes
whole = wide.peak_bytes / 100
assert abs(estimated / measured - 1) < 0.02
assert abs(estimated / whole - 45.6) < 2
forgot.reveal(modelled=estimated / whole, measured=measured / whole)

# %% tags=["look", "slide", "slide-output"] minutes=3 layout="steps" headline="Checkpointing makes one tooth a block out of the hill"
plotting.play(
    [over_step(each, f"Four texts: {name}", 72e6) for name, each in found.items()],
    title="Memory over a step, five ways",
    alt="The hill of what is saved; with checkpointing there is one tooth a block instead.",
    captions=[
        f"Peak: {units.text(each.peak_bytes, 'B')}, in {each.phase}."
        for each in found.values()
    ],
)

# %% [markdown] tags=["explain"]
# With checkpointing the hill is gone. In backward each block's activations come back and go, a tooth a block (grey, because
# backward makes them). With all three, half of what is left, 9.7 of 19.7 MB, are parameters and Adam's state. The price: one
# more forward, so four where there were three.


# %% tags=["look", "nbval-ignore-output"]
def one_step(model):
    model.zero_grad()
    model(texts).backward()


models = {"kept": gpt, "computed again": again}
programs = {name: lambda model=model: one_step(model) for name, model in models.items()}
costs = helpers.compare(programs, budget_s=3, precision=0.1)
costs

# %% tags=["look"]
costs.claim(
    "computing again makes the step longer", "computed again", at_least=1.1, at_most=1.8
)

# %% [markdown] headline="Bytes a parameter and bytes a token decide what fits"
# ## Part 6: does a 7B fit into 24 GB?
#
# - Bytes a parameter: the recipe decides
# - Bytes a token: blocks, width, tokens
#
# Mixed precision has two recipes, both of 16 bytes a parameter at the end of backward. Autocast keeps float32 weights and makes bfloat16 copies during a
# step. The other keeps bfloat16 weights and gradients, and a float32 copy beside Adam's averages.

# %%
with torch.device("meta"):
    large = GPT(4096, 32, 32, 32_000, fused)
    long = torch.empty(1, 4097, dtype=torch.int64)
parameters = sum(weight.numel() for weight in large.parameters())
print(f"{parameters:,} parameters")


# %% tags=["look", "slide", "slide-output"] minutes=2 headline="By parameters alone one recipe stays below the card"
def with_card(drawn):
    drawn.axes[0].axvline(24e9, color="#999999", linestyle="--", zorder=0)
    for label in drawn.axes[0].texts:
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
    return drawn


recipes = {
    "run it in bfloat16": (2, 0, 0, 0),
    "SGD, all bfloat16": (2, 2, 0, 0),
    "Adam, float32": (4, 4, 8, 0),
    "Adam, autocast": (4, 4, 8, 2),
    "Adam, bfloat16 + copy": (2, 2, 12, 0),
}
names = "parameters", "gradients", "optimizer state", "bfloat16 copies"
parts = {n: [parameters * row[i] for row in recipes.values()] for i, n in enumerate(names)}
title = "7B, before any token (line: 24 GB)"
drawn = with_card(plotting.draw_layers(list(recipes), parts, unit="B", title=title))
plotting.show(drawn, alt="Bars by recipe: only running it in bfloat16 stays below 24 GB.")

# %% [markdown] tags=["explain"]
# Now the whole step, on *meta*. `fits` says yes or no:

# %% tags=["run"]
cast = {"optimizer": adam, "autocast": torch.bfloat16}
answer = helpers.fits(large, long, int(24e9), target="cuda", **cast)

# %% tags=["look"]
everything = 16 * parameters + 32 * 4096 * kept_for_token(4096, 0, 4096)  # fused: no scores
bet.reveal(modelled=everything, counted=answer.peak_bytes)
print(f"fits: {'yes' if answer else 'no'}, {-answer.free_bytes / 1e9:.1f} GB too much")
ledger = {
    "16 bytes a parameter, and what the blocks keep": everything,
    "gradients: at the peak there are none yet": -4 * parameters,
    "bfloat16 copies, of all but the table of words": 2 * (parameters - 32_000 * 4096),
    "norms keep float32: 2 bytes more, of 2 h a token": 32 * 4096 * 2 * 2 * 4096,
}
ledger["the rest: logits and the loss"] = answer.peak_bytes - sum(ledger.values())
for name, size in ledger.items():
    print(f"{size / 1e9:6.1f} GB  {name}")
print(f"{answer.peak_bytes / 1e9:6.1f} GB  counted")

# %% [markdown] tags=["explain"]
# Not into 24 GB, and not into 80. The plain sum errs in both directions, and most of it cancels. (Lessons 05 and 16 take that sum,
# and 7 billion: 16 bytes and $34\,h$ make 130 GB.) Without a GPU the estimate casts as autocast does on a CPU, and says so in
# `answer.uncertain`: on CUDA more operators stay in float32.
#
# What would fit? Rows 2 and 3 each change one thing in row 1. Rows 4 to 6 go on from the row above. (In row 5
# Adam trains the first norm of each block.)


# %% tags=["run"]
def whole_step(**how):
    return memory.estimate_peak_memory(large, long, target="cuda", **how)


default = {"optimizer": torch.optim.Adam, "autocast": torch.bfloat16}
rows = {"Adam, one kernel": whole_step(**cast)}
rows["Adam, default kernels"] = whole_step(**default)
large.again = True
rows["checkpointing"] = whole_step(**cast)
large = large.bfloat16()
rows["and SGD, bfloat16"] = whole_step(optimizer=torch.optim.SGD)
large.requires_grad_(False)
for block in large.blocks:
    block.norm1.requires_grad_(True)
rows["and only norm1 learns"] = whole_step(optimizer=adam)
rows["and nothing: run it"] = whole_step(training=False)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="With activations two recipes stay below the card"
kinds = "parameters", "gradients", "optimizer state", "saved for backward", "all else"
stacks = [(by_kind(each), each.peak_event) for each in rows.values()]
parts = {kind: [stack[kind][event] for stack, event in stacks] for kind in kinds}
title = "7B, 4,096 tokens (line: 24 GB)"
drawn = with_card(plotting.draw_layers(list(rows), parts, unit="B", title=title))
plotting.show(drawn, alt="Bars of the peak by recipe and kind; the last two stay below 24 GB.")

# %% [markdown] tags=["explain"]
# Autocast's copies count as saved for backward. PyTorch's default Adam on CUDA updates many weights at once and takes another 4
# bytes for each of them for a moment. Checkpointing stops at 107 GB, because the peak moves to the end of backward: 16 bytes a
# parameter are all there, and nothing is saved any more.
#
# A 7B *runs* in 24 GB, and a few of its weights can learn there, because frozen weights need neither gradient nor state. LoRA
# (Hu and others, 2021) adds small matrices and trains them alone. To train all weights, divide them among devices (lessons 04,
# 05 and 16).
#
# ### How much work, and at which rate?
#
# A weight is one MAC a token, and a step three products: $6\,N$ FLOP a token for $N$ parameters, $6\,N D$ for $D$ tokens.

# %% tags=["look"]
with torch.device("meta"):
    whole = operations.profile_ops(GPT(4096, 32, 32, 32_000), long)
step_flops = units.flops_from_macs(whole.forward_macs + whole.backward_macs)
print(
    f"6 N D: {6 * parameters * 4096 / 1e12:.0f} TFLOP, counted: {step_flops / 1e12:.0f} TFLOP"
)

# %% [markdown] tags=["explain"]
# Attention's products add $12\,l\,h\,n^2$, 26 TFLOP, for $l$ layers and $n$ tokens. The word table is looked up, not multiplied, so
# 3 of the 165 go. That makes 188.
#
# [MFU](glossary.md#model-flops-utilisation) is the share of a machine's peak that these FLOP reach, a whole step long. About 400
# TFLOP/s were published for Llama 3, by each of 16,384 H100 (*The Llama 3 Herd of Models*, 2024, table 4):

# %% tags=["look", "nbval-ignore-output"]
square = torch.rand(1024, 1024, device=device)
alone = helpers.measure(lambda: square @ square, budget_s=0.5)
small_flops = operations.profile_ops(gpt, texts)
flops = units.flops_from_macs(small_flops.forward_macs + small_flops.backward_macs)
rate, best = (
    flops / costs.candidate("kept").median_s,
    units.flops_from_macs(1024**3) / alone.median_s,
)
peak_flops = hardware.device("H100 SXM 80 GB").peak("bfloat16").dense_flops_per_s
print(f"H100 (published): 400 of {peak_flops / 1e12:.0f} TFLOP/s, {4e14 / peak_flops:.0%}")
print(f"the small GPT here: {rate / best:.0%} of the rate of one large product")

# %% [markdown] tags=["slide"] minutes=2 headline="Three tools count three different things"
# ### What the allocator says
#
# | on CUDA | counts |
# |---|---|
# | `torch.cuda.max_memory_allocated()` | tensors, at their peak |
# | `torch.cuda.max_memory_reserved()` | what PyTorch took from the driver |
# | `nvidia-smi` | that, and CUDA's own |
#
# (As PyTorch's notes *CUDA semantics* state.) Our estimate is of the first; `measure_peak_memory` reads it where there is a
# GPU. PyTorch keeps freed memory for later tensors, in a [caching allocator](glossary.md#caching-allocator), and may cut one
# large piece for several. It cannot move a tensor that is alive, so it must ask the driver for more:

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Two free gaps do not make one large place"
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
spans.append(plotting.Span("3 GB are asked for", 8 * GB, 11 * GB, data))
title = "4 GB wait for a tensor, and 3 GB do not fit"
drawn = plotting.gantt(spans, title=title, unit="B", xlabel="address")
plotting.show(
    drawn, alt="Two free gaps of 2 GB each between tensors; 3 GB find no place in either."
)

# %% [markdown] tags=["explain"]
# Memory that is reserved and not allocated may just wait for the next tensor. Where it lies in pieces that are too small, it is [fragmentation](glossary.md#fragmentation). Where an `OutOfMemoryError` says that much is reserved but
# unallocated, it gives its own advice: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, segments that can grow in place.
#
# The [exercises](exercises/07_working_set_exercises.ipynb) have you count a convolution, a step with frozen layers, what an
# allocator reserves, and plan a model of your own. The [appendix](appendix/07_working_set.ipynb) profiles time, compares
# profilers, and takes AlexNet apart.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. A step costs three forwards at most; Adam's training takes 16 bytes a parameter.
# 2. What is saved grows with the tokens, plain attention with their square.
# 3. The peak is a moment: count it before you run.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $P$ parameters; blocks of width $h$ with $a$ heads, $n$ tokens.
#
# | quantity | formula |
# |---|---|
# | MACs of a convolution, an image | $C_{out}\,H_{out}\,W_{out} \cdot C_{in}\,K^2$ for $C$ channels, $H \times W$ outputs, $K \times K$ filters |
# | MACs of a step | $3M - M_1$ for $M$ MACs of the forward, $M_1$ in the first layer; one forward more with checkpointing |
# | kept of a token by a block, bfloat16 | $32\,h + 2\,a\,n$ bytes; fused attention $32\,h$ |
# | parameters, gradients, Adam's state | $4\,P + 4\,P + 8\,P = 16\,P$ bytes |
# | peak | $\max_t \sum_{\text{alive at } t}$ bytes |
# | FLOP of a step | $6\,P\,n$ and for attention $12\,l\,h\,n^2$ with $l$ layers |
# | MFU | FLOP of a step / (time $\cdot$ peak FLOP/s) |
