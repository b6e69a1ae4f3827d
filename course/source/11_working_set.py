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
#     title: Working set
#     needs: ["00"]
#     objectives:
#       - catch|caught what autograd saves, with a hook of your own
#       - count|counted the bytes of a training step per parameter, per token and per pair of tokens
#       - find|found the moment of a step at which most bytes are alive
#       - trade|traded time for memory, by computing blocks again
#       - decide|decided which recipes train a model of 7 billion parameters in 24 GB
# ---

# %% [markdown] tags=["objectives"]
# # Working set
#
# Why does a model that runs on your GPU refuse to learn there? You download Llama 2 7B. Its 6.74 billion parameters take 2 bytes each in
# bfloat16, which makes 13.5 GB, and they load without trouble onto a GPU with 24 GB. The model answers your questions, and 10 GB are still free.
# Encouraged by this, you train it on a text of your own with Adam, in mixed precision, on one sequence of 4,096 tokens per step. PyTorch answers
# `CUDA out of memory`.
#
# The usual advice is to halve the batch until the error goes away. Here the batch is a single sequence already, so you halve the sequence
# instead, and the error stays. Halving is not a plan, because it shrinks only the bytes that belong to tokens, and the error message does not
# say which bytes have filled the memory.
#
# In the lessons so far memory was slow. In this one it is full. [Lesson 01](01_memory_hierarchy.ipynb) counted the bytes that a program moves,
# whereas this lesson counts the bytes that it has to keep, which are called its [working set](glossary.md#working-set). We keep a ledger. Its lines
# are the bytes that a step keeps for each parameter, for each token and for each pair of tokens. Then we ask at which moment the memory is fullest,
# and last we strike out lines until 24 GB are enough. You count everything from the shapes of the tensors, so a laptop suffices.

# %% tags=["hide-input"]
from functools import partial

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

import helpers
from helpers import exercises, memory, plotting, timing
from helpers.studies import working_set

check = exercises.checks_of("working_set")
device = "cuda" if torch.cuda.is_available() else "cpu"
adam = partial(torch.optim.Adam, fused=True)  # the update in one kernel

# %% [markdown] tags=["slide"] minutes=1 headline="It runs in 24 GB. Does it learn there?"
# ## The bet
#
# How much memory does a model need that not only runs, but learns?
#
# - Llama 2 7B runs on a GPU of 24 GB
# - Adam in mixed precision, 4,096 tokens per step
# - How full is its fullest moment?
#
# Nothing on this page so far decides it, so write down what you believe. The five parts will correct it line by line.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1000000000.0, 1000000000000.0]
bet = helpers.predict(
    "How many bytes does a training step of Llama 2 7B with Adam and 4,096 tokens "
    "need at its fullest moment?",
    "B",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A parameter that learns needs company"
# ## Part 1: the bytes of a parameter
#
# What does a step keep for each parameter? We begin with it, because this share of the bill is the same for every text, long or short.
#
# - The parameter itself
# - Its gradient, until the optimizer has used it
# - Two running averages of Adam
#
# A parameter that only runs takes 2 bytes. A parameter that learns needs company. The backward pass computes a gradient for it, and the gradient
# stays in memory until `zero_grad` frees it, which we call as soon as the optimizer has used it. Adam also keeps two running averages, one of
# the gradient and one of its square, because it needs both again in the next step. They are its [optimizer state](glossary.md#optimizer-state).
# If all four values are float32, a parameter takes 16 bytes.
#
# Mixed precision, in the form that we count, stores the parameter and its gradient in bfloat16, which is half as large.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 32]
per_parameter = helpers.predict(
    "With Adam in mixed precision, how many bytes per parameter does a step keep, "
    "gradient and optimizer state included?",
    "B",
)
per_parameter

# %% tags=["hide-input", "run"]
layer = nn.Linear(64, 64, bias=False).bfloat16()
optimizer = working_set.MixedAdam(layer.parameters())
layer(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
optimizer.step()
tensors = [layer.weight, layer.weight.grad, *optimizer.state[layer.weight].values()]

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Mixed precision saves nothing per parameter"
counted = sum(tensor.nbytes for tensor in tensors) / layer.weight.numel()
per_parameter.reveal(modelled=2 + 2 + 4 + 4 + 4, counted=counted)

# %% [markdown] tags=["explain"]
# You might expect a saving, but there is none. A bfloat16 value has only eight significant bits, so an update that is smaller than 1/512 of its
# parameter vanishes when the result is rounded. Fine-tuning makes such updates all the time, since at a learning rate of 10⁻⁵ Adam moves a
# parameter of 0.02 by about 1/2,000 of its value. The optimizer therefore keeps a float32 copy of every parameter and adds the updates there.
# With the two averages, which stay in float32 as well, the sum is 2 + 2 + 4 + 4 + 4 bytes. `torch.autocast`, the other form of mixed precision,
# leaves all four values in float32, which is 4 × 4 and so 16 bytes again, and during the forward and the backward pass it adds a copy of the
# weights in 16 bits. Mixed precision makes a step faster and its tokens cheaper, but not its parameters.
#
# For Llama 2 7B this first line of the ledger is 6.74·10⁹ × 16 bytes, or 107.8 GB. The GPU would be full four times over before we have counted a
# single token.
#
# **To remember.** Training with Adam in float32 or in mixed precision keeps 16 bytes per parameter, eight times as many as running the model in
# bfloat16. The parameters of a 1.5B model alone fill a GPU of 24 GB.
#
# The gradients among these bytes do not exist before the backward pass. Yet a run can stop with its error before any gradient exists. Which bytes
# pile up in the forward pass?

# %% [markdown] tags=["slide"] minutes=2 headline="The backward pass needs every layer's input again"
# ## Part 2: the bytes of a token
#
# What does a step save for each token? These bytes appear in the forward pass, before any gradient does.
#
# - When a model only runs, a layer's input can be freed at once
# - When it trains, the backward pass needs it again
# - So autograd *saves* it
#
# Take a linear layer that multiplies its input $x$ by its weights. The gradient of the weights is the product of the output's gradient with $x$, so the
# backward pass needs $x$ again, long after the forward pass has moved on. Autograd therefore saves $x$, and it does the same in every layer until the
# backward pass has come back there. Such a tensor is called [saved for backward](glossary.md#saved-for-backward).
#
# **Your turn.** Inside `with torch.autograd.graph.saved_tensors_hooks(note, unpack):` PyTorch calls `note(tensor)` for every tensor that autograd
# saves, and `unpack` when the backward pass asks for it again. Both may return what they are given. Count the bytes. Tensors that share memory have the same
# `tensor.untyped_storage()`, which has `nbytes()` and can be put into a set. Leave out the parameters and the input, which are in memory anyway.


# %% tags=["yours"] yours="saved_bytes" takes=10
def saved_bytes(model, x):
    """Return the bytes that autograd saves in model(x), without parameters and x."""
    saved = set()

    def note(tensor):
        saved.add(tensor.untyped_storage())
        return tensor

    present = {tensor.untyped_storage() for tensor in (*model.parameters(), x)}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x)
    return sum(storage.nbytes() for storage in saved - present)


# %% checks="saved_bytes"
saved_bytes = check(saved_bytes)


# %% wrong="saved_bytes" says="count each storage once"
def saved_bytes(model, x):
    sizes = []
    present = {tensor.untyped_storage() for tensor in (*model.parameters(), x)}

    def note(tensor):
        if tensor.untyped_storage() not in present:
            sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x)
    return sum(sizes)


# %% wrong="saved_bytes" says="`x` is in memory anyway"
def saved_bytes(model, x):
    saved = set()

    def note(tensor):
        saved.add(tensor.untyped_storage())
        return tensor

    present = {tensor.untyped_storage() for tensor in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x)
    return sum(storage.nbytes() for storage in saved - present)


# %% wrong="saved_bytes" says="the cells below need int"
def saved_bytes(model, x):
    saved = set()
    present = {tensor.untyped_storage() for tensor in (*model.parameters(), x)}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: saved.add(tensor.untyped_storage()) or tensor, lambda tensor: tensor
    ):
        model(x)
    return torch.tensor([storage.nbytes() for storage in saved - present]).sum()


# %% right="saved_bytes" style=1
def saved_bytes(model, x):
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        sizes[storage] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    for tensor in [x, *model.parameters()]:
        sizes.pop(tensor.untyped_storage(), None)
    return sum(sizes.values())


# %% right="saved_bytes" style=2
def saved_bytes(model, x):
    seen = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: seen.append(tensor.untyped_storage()) or tensor, lambda tensor: tensor
    )
    with hooks:
        model(x)
    known = [tensor.untyped_storage() for tensor in (x, *model.parameters())]
    return sum(storage.nbytes() for storage in set(seen).difference(known))


# %% [markdown]
# Try it on LeNet, the small network for digits of [lesson 00](00_start_here.ipynb). It has two convolutions with max pooling and three linear layers, and its
# weights take 165,128 bytes. Every image leaves the outputs of its layers behind, whereas the weights are there only once.

# %% tags=["predict"]
times_weights = helpers.predict(
    "When LeNet trains on 64 images, how many times as many bytes as its weights take "
    "does autograd save?",
    "x",
)
times_weights

# %% tags=["run"]
lenet, images = helpers.LeNet().to(device), torch.rand(64, 1, 28, 28, device=device)
weight_bytes = sum(weight.nbytes for weight in lenet.parameters())

# %% tags=["hide-input", "run"]
outputs = (
    6 * 24 * 24,
    6 * 12 * 12,
    16 * 8 * 8,
    16 * 4 * 4,
    120,
    60,
)  # conv, pool, conv, pool, fc, fc
image_bytes = 4 * sum(outputs) + 8 * (
    outputs[1] + outputs[3]
)  # pooling saves 8-byte indices as well

# %% tags=["look"]
modelled = 64 * image_bytes / weight_bytes
times_weights.reveal(modelled=modelled, counted=saved_bytes(lenet, images) / weight_bytes)

# %% [markdown] tags=["explain"]
# The hook counts 2.05 million bytes, 12.4 times the weights (counted). Each image leaves 5,780 values of 4 bytes behind, and max pooling also saves the index
# of each of its 1,120 maxima, an integer of 8 bytes. Together these are 32,080 bytes. The batch multiplies all of it by 64.
#
# Now count a block of Llama 2. This is the block, with the attention of [lesson 22](22_decoding.ipynb) inside. Llama has RMSNorm where we use
# PyTorch's LayerNorm, which makes no difference here, because each saves its input and hardly anything else.


# %% tags=["slide", "slide-code"] minutes=1 headline="A gated block: attention, then three linear layers" lines=[9, 12]
class Block(nn.Module):
    def __init__(self, width, hidden, heads, attend):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attention = working_set.Attention(width, heads, attend)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


# %% [markdown]
# Its width $h$ is 4,096, and its feed-forward layer has a width $f$ of 11,008. For each token, the attention half saves six vectors of width $h$. They are the
# input of its norm, the input of the projections, the query, the key, the value, and the input of the output projection. The feed-forward half saves two more
# of width $h$, before and after its norm. Four vectors of width $f$ follow, because the layer is gated. They are the result of the gate projection, the same after the
# SiLU function, the result of the up projection, and the product of the last two.
#
# **Your turn.** Write this count. In bfloat16 each value takes 2 bytes.


# %% tags=["yours"] yours="saved_per_token" takes=5
def saved_per_token(width, hidden):
    """Return the bytes that a gated block saves for each token in bfloat16."""
    attention = 6 * width  # norm1, projections, query, key, value, out
    feed_forward = 2 * width + 4 * hidden  # norm2, gate and up; gate, silu, up, down
    return 2 * (attention + feed_forward)


# %% checks="saved_per_token"
saved_per_token = check(saved_per_token)


# %% wrong="saved_per_token" says="A bfloat16 value has 2 bytes."
def saved_per_token(width, hidden):
    return 8 * width + 4 * hidden


# %% wrong="saved_per_token" says="two more than you count"
def saved_per_token(width, hidden):
    return 2 * (8 * width + 3 * hidden)


# %% wrong="saved_per_token" says="Query, key and value"
def saved_per_token(width, hidden):
    return 2 * (6 * width + 4 * hidden)


# %% wrong="saved_per_token" says="the cells below need int"
def saved_per_token(width, hidden):
    return torch.tensor(2 * (8 * width + 4 * hidden))


# %% right="saved_per_token" style=1
def saved_per_token(width, hidden):
    vectors = [width] * 8 + [hidden] * 4
    return sum(2 * size for size in vectors)


# %% right="saved_per_token" style=2
def saved_per_token(width, hidden):
    values = 8 * width
    values += 4 * hidden
    return values << 1


# %% [markdown]
# Does your hook agree? We need no GPU and not even the memory for the block, because a tensor on the device *meta* has a shape and no data. The
# attention is a fused one, an operator that computes all of it without saving the attention weights in between. Your `saved_bytes` leaves out
# the model's input, so of a single block it would miss one vector. We therefore count two blocks in a row and subtract one, and what remains is
# the second block with its input.


# %%
def counted_per_token(width, hidden, heads, tokens, attend):
    with torch.device("meta"):
        blocks = [Block(width, hidden, heads, attend).bfloat16() for _ in range(2)]
        x = torch.empty(1, tokens, width, dtype=torch.bfloat16)
    return (saved_bytes(nn.Sequential(*blocks), x) - saved_bytes(blocks[0], x)) / tokens


def fused(queries, keys, values):  # by name, because on meta PyTorch would not choose it
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return attend(queries, keys, values, is_causal=True)[0]


by_hand = saved_per_token(4096, 11_008)
by_hook = counted_per_token(4096, 11_008, 32, 512, fused)
print(f"your count {by_hand:,} (modelled), your hook {by_hook:,.0f} bytes per token (counted)")

# %% [markdown] tags=["explain"]
# Together these are 8 × 4,096 + 4 × 11,008, or 76,800 values, which take 153,600 bytes. The hook finds 144 bytes more, because each of the two norms saves two numbers of 4 bytes
# per token, and the attention saves one in each of its 32 heads. A token passes through 32 such blocks and leaves 4.9 MB behind. For 4,096 tokens that makes 20.1 GB, the second line of the ledger.
#
# All of this was one sequence. A batch of eight saves eight times 20.1 GB, so this is the line that halving a batch shrinks. [Gradient
# accumulation](glossary.md#gradient-accumulation) shrinks it too, because it runs one sequence after the other and adds up their gradients,
# which have to stay in memory meanwhile.
#
# **To remember.** In bfloat16 a gated block saves $2\,(8h + 4f)$ bytes per token. A 7B saves 4.9 MB per token, so 4,096 tokens take 20.1 GB.
#
# The ledger now says 127.9 GB. One tensor is still missing from it, because it belongs to no single token.

# %% [markdown] tags=["slide"] minutes=2 headline="Attention computes a score for every pair"
# ## Part 3: the bytes of a pair
#
# What does a step save for each pair of tokens? The fused attention that we have just counted saves nothing of the kind. Plain attention, as
# older code computes it, does.
#
# - Attention compares each token with each other
# - The softmax turns the scores into attention weights
# - Plain attention saves them all
#
# The attention weights are needed again, because the gradient of the values is a product with them. This is plain attention, as one writes it from the
# formula.


# %%
def plain(queries, keys, values):
    scores = queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5  # (b, heads, n, n)
    later = torch.full_like(scores[0, 0], -torch.inf).triu(1)  # a token sees none after it
    return torch.softmax(scores + later, dim=-1) @ values


# %% [markdown]
# Each token leaves a row of $n$ attention weights in each head, where $n$ is the number of tokens. With 32 heads and 2 bytes per weight, that is $64\,n$ bytes per
# token and block, and everything else that the block saves for the token takes 153,600 bytes.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[100, 100000]
equal = helpers.predict(
    "From how many tokens on do the saved attention weights of a Llama 2 7B block "
    "outweigh everything else that it saves?",
    "tokens",
)
equal

# %% tags=["hide-input", "run"]
lengths = range(512, 4097, 512)
rows = {n: counted_per_token(4096, 11_008, 32, n, plain) for n in lengths}  # bytes per token
slope = (rows[4096] - rows[512]) / (4096 - 512)  # bytes per token and further token

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="In long sequences attention weights outweigh everything else"
equal.reveal(modelled=153_600 / 64, counted=rows[512] / slope - 512)

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Attention weights grow with the square"
matrix = [slope * n * n for n in lengths]
rest = [n * (rows[n] - slope * n) for n in lengths]
alt = "Two curves over the tokens: attention weights quadruple where all else doubles."
plotting.show(working_set.draw_per_pair(lengths, matrix=matrix, rest=rest), alt=alt)

# %% [markdown] tags=["explain"]
# The two are equal at 153,600 / 64, which is 2,400 tokens. At 4,096 tokens the attention weights take 32 × 4,096² × 2 bytes in one block, or 1.07 GB, and 34.4 GB in all 32
# blocks. Twice as many tokens would need four times as much.
#
# Fortunately you do not have to pay this bill. *Fused* attention, such as PyTorch's `scaled_dot_product_attention`, computes the scores in small tiles, uses
# each tile at once, and never writes the whole matrix to memory. The backward pass computes the tiles a second time. Between the two passes only one
# float32 value per head and token stays, so the line shrinks from 34.4 GB to 17 MB. [Lesson 21](21_attention_without_the_matrix.ipynb) shows how a softmax can
# work on tiles.
#
# **To remember.** Plain attention saves $2\,a\,n^2$ bytes per block for $a$ heads, and in a 7B they outweigh everything else from 2,400 tokens on. Fused attention saves
# almost none of them.
#
# The ledger stays at 127.9 GB. But does the step ever hold all of it at once?

# %% [markdown] tags=["slide"] minutes=2 headline="A step fits if its fullest moment fits"
# ## Part 4: the fullest moment
#
# At which moment of a step is memory fullest? The ledger has added up everything that a step keeps, but a step runs if its fullest moment fits.
#
# - A tensor is *alive* from the operator that makes it until nothing refers to it
# - [Peak memory](glossary.md#peak-memory) is the most bytes alive at one moment
# - Saved activations and gradients take turns
#
# After Adam's first update, parameters, copies and averages are alive all the time. Saved activations grow through the forward pass, reach their
# maximum when the backward pass begins, and are freed one block after the other. Gradients do the opposite. When the backward pass begins there
# are none, and when it ends all of them are there. The two never reach their maximum at the same moment, so we may hope for a peak below the
# sum.
#
# **Your turn.** A tensor is alive from moment `born` up to, but not including, moment `gone`. How many bytes are alive at each moment?


# %% tags=["yours"] yours="alive" takes=8
def alive(lives, moments):
    """Return the bytes alive at moments 0 to moments - 1; a life is (born, gone, size)."""
    change = [0] * (moments + 1)
    for born, gone, size in lives:
        change[born] += size
        change[gone] -= size
    total, alive_bytes = 0, []
    for moment in range(moments):
        total += change[moment]
        alive_bytes.append(total)
    return alive_bytes


# %% checks="alive"
alive = check(alive)


# %% wrong="alive" says="no longer alive"
def alive(lives, moments):
    return [
        sum(size for born, gone, size in lives if born <= moment <= gone)
        for moment in range(moments)
    ]


# %% wrong="alive" says="not only at the moment"
def alive(lives, moments):
    return [
        sum(size for born, _, size in lives if born == moment) for moment in range(moments)
    ]


# %% wrong="alive" says="the cells below need list"
def alive(lives, moments):
    return torch.tensor(
        [
            sum(size for born, gone, size in lives if born <= moment < gone)
            for moment in range(moments)
        ]
    )


# %% right="alive" style=1
def alive(lives, moments):
    from itertools import accumulate

    change = [0] * (moments + 1)
    for born, gone, size in lives:
        change[born] += size
        change[gone] -= size
    return list(accumulate(change[:moments]))


# %% right="alive" style=2
def alive(lives, moments):
    import numpy as np

    change = np.zeros(moments + 1, dtype=np.int64)
    for born, gone, size in lives:
        change[born] += size
        change[gone] -= size
    return change.cumsum()[:moments].tolist()


# %% [markdown]
# Test it on a model of the same shape that is 32 times as narrow. It has four blocks of width 128, and it trains on one sequence of 256
# characters in float32 with plain attention. Its 808,064 parameters take 16 bytes each, 12.9 MB. In each block, a character leaves 8 × 128 + 4 ×
# 344 values as before, and a row of 256 attention weights in each of 4 heads. That is 3,424 values of 4 bytes, or 13,696 bytes, and for 256
# characters and four blocks 14.0 MB. The ledger of this model therefore adds up to 27.0 MB. The library follows a step on tensors without data
# and notes when each tensor is made and when it is freed, and your `alive` adds up these lives.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[10000000.0, 40000000.0]
peak = helpers.predict(
    "How many bytes are alive at the peak of the small model's step, "
    "if its ledger adds up to 27.0 MB?",
    "B",
)
peak

# %% tags=["run"]
small = working_set.LanguageModel(
    lambda: Block(128, 344, 4, plain), layers=4, width=128, vocabulary=64
).to(device)
characters = torch.randint(64, (1, 257), device=device)
estimate = memory.estimate_peak_memory(small, characters, optimizer=adam)
measured = memory.measure_peak_memory(small, characters, optimizer=adam)

# %% tags=["hide-input", "run"]
KINDS = {
    "parameter": "parameters",
    "optimizer state": "optimizer state",
    "gradient": "gradients",
    "saved activation": "saved activations",
}


def by_kind(estimate):
    lives = {kind: [] for kind in (*KINDS.values(), "temporary tensors")}
    for tensor in estimate.timeline.tensors:
        life = tensor.start_event, tensor.end_event + 1, tensor.size_bytes
        lives[KINDS.get(tensor.category, "temporary tensors")].append(life)
    moments = len(estimate.timeline.events)
    return {kind: alive(of_kind, moments) for kind, of_kind in lives.items()}


# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="The peak stays below the sum of the ledger"
running_peak = max(map(sum, zip(*by_kind(estimate).values(), strict=True)))
peak.reveal(modelled=running_peak, measured=measured.peak_bytes)
assert abs(running_peak / measured.peak_bytes - 1) < 0.01

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=3 headline="The peak is a moment, and not a sum" untitled=true
ledger = 16 * 808_064 + 4 * 256 * 13_696
drawn = working_set.draw_alive(
    by_kind(estimate),
    phases=[event.phase for event in estimate.timeline.events],
    title="A training step of the small model: which bytes are alive when",
    plain_sum=ledger,
)
alt = "Parameters and state stay; saved activations climb through the forward pass and fall."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# Your running sum and a real step agree within 1 % (measured). The peak stays below the sum of the ledger, because activations are largest when
# the backward pass begins, and gradients when it ends. It consists of 9.7 MB for parameters and averages, of the saved activations, and of about
# 1 MB that an operator needs only for a moment, such as the gradient of an attention matrix, grey in the picture.
#
# Back to the large model, and to your bet. The model has mixed precision and fused attention again, and a loss over 32,000 words. We follow the
# operators of its step in the same way, on tensors without data, once with 4 blocks and once with 6. Every further block adds the same bytes, so
# these two give the peak for all 32. (A step of the whole model gives it to the byte, and takes longer to follow.)


# %% tags=["hide-input", "run"]
def recipe_peak(tokens, optimizer=working_set.MixedAdam, *, checkpointing=False, lora=False):
    """Return the peak of a step of Llama 2 7B on CUDA, from two models with fewer blocks."""
    few = [
        memory.estimate_peak_memory(
            llama(layers, checkpointing=checkpointing, lora=lora),
            torch.empty(1, tokens + 1, dtype=torch.int64, device="meta"),
            optimizer=optimizer,
            target="cuda",
        ).peak_bytes
        for layers in (4, 6)
    ]
    return few[1] + (32 - 6) * (few[1] - few[0]) // 2


def llama(layers, *, checkpointing=False, lora=False):
    with torch.device("meta"):
        model = working_set.LanguageModel(
            lambda: Block(
                4096, 11_008, 32, partial(scaled_dot_product_attention, is_causal=True)
            ),
            layers=layers,
            width=4096,
            vocabulary=32_000,
            checkpointing=checkpointing,
        ).bfloat16()
        return working_set.add_lora(model, rank=16) if lora else model


parameters = sum(weight.numel() for weight in llama(32).parameters())
peaks = {tokens: recipe_peak(tokens) for tokens in (1024, 2048, 4096)}

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A 7B that learns outgrows an H100"
plain_sum = 16 * parameters + 32 * 4096 * saved_per_token(4096, 11_008)
bet.reveal(modelled=plain_sum, counted=peaks[4096])

# %% [markdown] tags=["explain"]
# The ledger's sum of 127.9 GB was too much, and the peak is 116.1 GB (counted). When the backward pass begins, 14 bytes per parameter are alive,
# since only the gradients are missing. That is 94.3 GB. The saved activations add 20.1 GB. The loss adds 1.7 GB, because at the end of the model
# each of the 4,096 tokens has 32,000 logits, and three float32 tensors of that shape are most of it. When the backward pass ends, all 16 bytes
# per parameter are alive, 107.8 GB, but no activations. The peak is the larger of the two moments.
#
# > peak ≈ the larger of (14 bytes × parameters + 5.3 MB × tokens) and (16 bytes × parameters)
#
# The 5.3 MB are the 4.9 MB of the activations and 0.4 MB of the loss. This line explains why halving can fail.

# %% tags=["predict"]
fall = helpers.predict(
    "By how many bytes does the 7B's peak fall "
    "when you shorten the sequence from 2,048 to 1,024 tokens?",
    "B",
)
fall


# %% tags=["run"]
modelled = [max(14 * parameters + 5.3e6 * tokens, 16 * parameters) for tokens in (2048, 1024)]

# %% tags=["look"]
fall.reveal(modelled=modelled[0] - modelled[1], counted=peaks[2048] - peaks[1024])

# %% [markdown] tags=["explain"]
# It falls by 8,192 bytes, which are the 1,024 token ids that are no longer there, and otherwise not at all. For both lengths we counted 108.3
# GB, because the end of the step sets the peak, when all gradients are there and the optimizer runs, and no saved activation is left by then.
#
# If we leave out activations and loss, this end needs 14.0 GB more than the beginning of the backward pass. Of these, 13.5 GB are the gradients,
# 2 bytes per parameter, and 0.5 GB is a float32 copy of one large gradient inside the optimizer, which our line above leaves out. (PyTorch's
# default Adam on a GPU works on all tensors at once and may, by its documentation, need one more copy of all parameters, unless you pass
# `fused=True`.) As long as the gradients are missing, activations may use these 14.0 GB without raising the peak. At 5.3 MB per token, about
# 2,600 tokens fit into it. If a step has fewer, a shorter sequence saves no memory at all. With gradient accumulation this space is gone. From
# its second sequence on, the gradients of the first are there when the backward pass begins, so the two no longer take turns, and the peak is
# the sum of 16 bytes per parameter and 5.3 MB per token.
#
# **To remember.** The peak is a moment and not a sum. For a 7B in mixed precision without gradient accumulation, tokens raise it only above
# about 2,600 per step.
#
# You know now which bytes fill the memory. Which of them can a step do without?

# %% [markdown] tags=["slide"] minutes=2 headline="Tokens and parameters have remedies of their own"
# ## Part 5: which lines to strike out
#
# How can the same model train in less memory? We take the lines of the ledger one by one, because each has a remedy of its own.
#
# - [Activation checkpointing](glossary.md#activation-checkpointing) strikes out tokens
# - Small optimizers strike out averages and copies
# - Frozen parameters need no gradient
#
# Checkpointing saves only the input of each block and discards everything inside it. When the backward pass reaches the block, the block runs forward once
# more, this time with autograd watching, and its gradients are computed at once.
#
# **Your turn.** Write this backward pass. `x.grad` of a tensor with `requires_grad_()` holds its gradient after `backward`, and `y.backward(gradient)` starts from a
# gradient of `y`.


# %% tags=["yours"] yours="backward_by_blocks" takes=12
def backward_by_blocks(blocks, x, loss):
    """Go forward and back through blocks and loss, saving only inputs; return x's gradient."""
    inputs = []
    with torch.no_grad():
        for block in blocks:
            inputs.append(x)
            x = block(x)
    x = x.requires_grad_()
    loss(x).backward()
    for block, saved in zip(reversed(blocks), reversed(inputs), strict=True):
        saved = saved.detach().requires_grad_()
        block(saved).backward(x.grad)
        x = saved
    return x.grad


# %% checks="backward_by_blocks"
backward_by_blocks = check(backward_by_blocks)


# %% wrong="backward_by_blocks" says="autograd saved everything"
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
    for block, saved in zip(reversed(blocks), reversed(inputs), strict=True):
        saved = saved.detach().requires_grad_()
        block(saved).backward(gradient)
    return saved.grad


# %% right="backward_by_blocks" style=1
def backward_by_blocks(blocks, x, loss):
    states = [x]
    for block in blocks:
        with torch.no_grad():
            states.append(block(states[-1]))
    last = states.pop().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(last), last)
    for block in reversed(blocks):
        start = states.pop().detach().requires_grad_()
        torch.autograd.backward(block(start), gradient)
        gradient = start.grad
    return gradient


# %% right="backward_by_blocks" style=2
def backward_by_blocks(blocks, x, loss):
    def back(rest, x):
        if not rest:
            end = x.detach().requires_grad_()
            loss(end).backward()
            return end.grad
        with torch.no_grad():
            following = rest[0](x)
        gradient = back(rest[1:], following)
        start = x.detach().requires_grad_()
        rest[0](start).backward(gradient)
        return start.grad

    return back(list(blocks), x)


# %% [markdown]
# The price is one more forward pass. Since a backward pass costs about two of them, a step costs four instead of three, 1.33 times as much
# arithmetic. In a model as small as ours the time need not follow the arithmetic, because Python's calls take much of it, and every block is
# called once more. We let the small model take steps with and without checkpointing, in turns.

# %% tags=["hide-input", "run"]
checkpointed = working_set.LanguageModel(
    lambda: Block(128, 344, 4, plain), layers=4, width=128, vocabulary=64, checkpointing=True
).to(device)


def take_step(model):
    model.zero_grad()
    model(characters).backward()


steps = timing.compare(
    {"all saved": lambda: take_step(small), "inputs saved": lambda: take_step(checkpointed)},
    budget_s=3,
    precision=0.1,
)

# %% tags=["hide-input", "look"]
ratio = steps.candidate("inputs saved").time_ratio
sentence = "a step that saves only the inputs of blocks takes longer"
timing.claim(sentence, ratio, at_least=1.1, at_most=1.8, evidence=steps)

# %% [markdown] tags=["explain"]
# That is the price, and in the large model we can count what it buys. The 32 saved inputs of 4,096 × 4,096 values take 1.07 GB. So of the 20.1
# GB at the beginning of the backward pass, 19.1 GB are gone.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1000000000.0, 100000000000.0]
saving = helpers.predict(
    "By how many bytes does checkpointing every block lower the 7B's peak of 116.1 GB?", "B"
)
saving

# %% tags=["hide-input", "run"]
recipes = {
    "Adam, mixed precision": peaks[4096],
    "the same, with checkpointing": recipe_peak(4096, checkpointing=True),
    "SGD in bfloat16, with checkpointing": recipe_peak(
        4096, torch.optim.SGD, checkpointing=True
    ),
    "LoRA": recipe_peak(4096, lora=True),
    "LoRA, with checkpointing": recipe_peak(4096, checkpointing=True, lora=True),
}

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Checkpointing moves the peak to another moment"
first, second = list(recipes.values())[:2]
modelled = 14 * parameters + 5.3e6 * 4096 - 16 * parameters
saving.reveal(modelled=modelled, counted=first - second)

# %% [markdown] tags=["explain"]
# It lowers the peak by only 7.8 GB, to 108.3 GB, although the beginning of the backward pass got 19.1 GB lighter. The fullest moment is now the
# end of the step, where checkpointing can change nothing. Choose a recipe in the figure. For which recipes does checkpointing bring its full
# saving? And which GPU is large enough for the step of the bet?

# %% tags=["hide-input"]
working_set.explore_memory()

# %% [markdown]
# So the parameters are the problem, and one division tells how large it is. In 24 GB, each of 6.74 billion parameters may take 3.6 bytes. Adam's
# averages shrink from 8 to 2 bytes if they are stored in 8 bits (Dettmers and others, 2022), but a parameter then still takes 10. Plain SGD in
# bfloat16 has neither averages nor a copy, so it would lose the small updates of Part 1, and it takes 4, which is still too much. To train every
# parameter here, a step must never hold all the gradients at once, or a memory outside of the GPU must hold a part. GaLore (Zhao and others,
# 2024) keeps the averages small by projecting the gradients, and updates layer by layer, so that a gradient is used as soon as it is there. Its
# authors showed that a 7B can be pre-trained in 24 GB this way, with averages in 8 bits (published).
#
# All of these recipes let every parameter learn. The other way is to let only a few parameters learn. A frozen parameter needs no gradient, no
# averages and no copy, so it takes 2 bytes, or half a byte if it is stored in 4 bits (QLoRA, Dettmers and others, 2023). LoRA (Hu and others,
# 2021) freezes the model and adds two thin matrices beside each of many linear layers, in the paper mostly those of attention and here all. The
# thin side is 16. All of them together have 40 million parameters, which take only 0.64 GB at 16 bytes each.

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="One of five recipes fits into 24 GB"
import pandas as pd

per_parameter_bytes = (16, 16, 4, 2, 2)
rows = {
    name: (size, f"{peak_bytes / 1e9:.1f} GB", "yes" if peak_bytes < 24e9 else "no")
    for size, (name, peak_bytes) in zip(per_parameter_bytes, recipes.items(), strict=True)
}
columns = ["bytes per parameter", "peak (counted)", "fits into 24 GB"]
pd.DataFrame(rows, index=columns).T.rename_axis("recipe, 4,096 tokens")

# %% [markdown] tags=["explain"]
# LoRA alone does not fit. A frozen layer does not need its input for a gradient of its weights, but the adapter beside it has the same input and
# learns, so it is saved all the same. The norms, the attention and the gate save theirs as well, because the gradient must pass through them to
# reach the adapters of earlier layers. With checkpointing it fits, and now checkpointing takes its whole 19.1 GB off the peak, since the
# gradients of 7 billion parameters no longer set it.
#
# **To remember.** Divide the memory by the number of parameters first. A 7B has 3.6 bytes per parameter in 24 GB, and any recipe that holds all parameters and all
# gradients in 16 bits needs 4.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. Parameters that learn take most of the memory.
# 2. The peak is a moment, and not a sum.
# 3. Checkpointing helps if activations set the peak.
#
# A training step of Llama 2 7B with Adam and 4,096 tokens needs 116.1 GB at its fullest moment, the beginning of the backward pass, so not even
# an H100 with 80 GB would have been enough. Of these, 94.3 GB are 14 bytes per parameter, 20.1 GB are 4.9 MB per token and 1.7 GB are the loss,
# whereas fused attention has removed 34.4 GB of attention weights. With LoRA and checkpointing the step needs 16.7 GB by our count and fits on
# your GPU, although only 40 million added parameters change. All of these are counts of tensors. `nvidia-smi` shows more, since it adds CUDA's
# own memory and the memory that PyTorch's [caching allocator](glossary.md#caching-allocator) holds in reserve, some of it in pieces too small to
# use, which is called [fragmentation](glossary.md#fragmentation).
#
# The [exercises](exercises/11_working_set_exercises.ipynb) count a convolution, a step with frozen layers and what an allocator reserves, and plan a model of your own. The
# [appendix](appendix/11_working_set.ipynb) profiles time, compares tools that count operations, shows what autocast keeps, and takes AlexNet apart.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $N$ parameters; $L$ layers of width $h$ with a gated feed-forward layer of width $f$ and $a$ heads; $n$ tokens in a sequence; bfloat16.
#
# | quantity | formula |
# |---|---|
# | bytes per parameter, Adam | $16$, of which $14$ are alive when the backward pass begins |
# | saved per token by a gated block | $2\,(8h + 4f)$ bytes |
# | saved by plain attention besides | $2\,a\,n^2$ bytes per block |
# | tokens at which attention weights outweigh all else | $n = \frac{8h + 4f}{a}$ |
# | peak of a step without its loss, about | the larger of $14\,N + 2\,L\,n\,(8h + 4f)$ and $16\,N$ |
# | a step with checkpointing | four thirds of the arithmetic |
