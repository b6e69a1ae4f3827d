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
#     number: "05"
#     title: Data parallel
#     needs: ["00", "04"]
#     objectives:
#       - write|wrote the sum of gradients round a ring of real processes
#       - train|trained one model on four processes, equal to one process but for rounding
#       - compute|computed the time of a step from its traffic, and whom a late GPU keeps waiting
#       - say|said from how many tokens on a link no longer limits a training
#       - explain|explained which waste each stage of ZeRO removes, and what it costs on the link
# ---

# %% [markdown] tags=["objectives"]
# # Data parallel
#
# In January 2021 a user fine-tuned GPT-2 on an RTX 3090, and 400 steps took 19.6 s. Then the same user took two such GPUs, which exchanged data over the
# bus of their machine. Each step now learned from twice as many sequences, so 200 steps did the same work. They took 30.0 s
# ([transformers, issue 9371](https://github.com/huggingface/transformers/issues/9371), published). Each GPU had half the work, and the training took half
# as long again.
#
# The two GPUs exchanged little but their gradients. So this exchange can cost more than all the computing, and before you rent GPUs you will
# want to know when it does. Suppose that you plan a language model of 7 billion parameters and 140 billion tokens. A token costs about six
# operations per parameter ([lesson 00](00_start_here.ipynb)), which makes 5.9·10²¹ [FLOP](glossary.md#flop). An H100 did about 400 TFLOP/s in
# the training of Llama 3 405B ([Llama Team](https://arxiv.org/abs/2407.21783), 2024, Table 4, published), and at this rate a single H100 needs
# 170 days. You rent eight, each in a machine of its own with a port of 100 Gbit/s Ethernet. In every step each GPU gets 8,192 tokens of its own,
# and then the eight average their gradients and make the same update. At best they need 21 days.
#
# [Lesson 04](04_sources_of_parallelism.ipynb) found that the gradients of a batch's examples do not wait for each other, so that many GPUs can share a
# batch. Here we ask how many times as fast they then are, and we build the training to find out. Four real processes on your CPU play the GPUs. They have
# no slow network between them, so we make one that sleeps as long as a real one would take, and we call its times *simulated*. One thing we leave aside
# until Part 5, namely that the training needs 112 GB and an H100 has 80.

# %% tags=["hide-input"]
from contextlib import nullcontext
from functools import partial

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import helpers
from helpers import exercises, parallel, plotting, units
from helpers.links import Link
from helpers.ranks import Ranks
from helpers.studies import data_parallel, parallel_plans

check = exercises.checks_of("data_parallel")
ranks = Ranks(4)  # processes, which start with the first cell that uses them
device = ranks.device

# %% tags=["hide-input"]
alone_days = 6 * 7e9 * 140e9 / 400e12 / (24 * 60 * 60)
print(f"one H100: {alone_days:.0f} days, eight at best: {alone_days / 8:.0f}")

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# What do eight GPUs bring, if they have to exchange their gradients?
#
# - 7 billion parameters, gradients of 2 bytes
# - 8,192 tokens per GPU and step
# - A 100-gigabit Ethernet port for each GPU
#
# Write down a number before you go on.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 200]
bet = helpers.predict(
    "If one H100 needs 170 days, how many days do eight H100s on 100 Gbit/s Ethernet need?",
    "days",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Start equal, and use the same gradient"
# ## Part 1: the training that all GPUs share
#
# What must the GPUs agree on? We begin with the result, because a fast training of something else is worth nothing.
#
# - A [rank](glossary.md#rank) is a process with a GPU and a number
# - Each rank computes the gradient of its own rows
# - An [all-reduce](glossary.md#all-reduce) gives every rank the sum
#
# Data parallel training promises the weights that one GPU would get from the whole batch. When does it keep this promise?
#
# A *rank* is a process with a GPU and a number of its own. Before the first step rank 0 sends its weights to all others. In every step each rank computes
# the gradient of its own rows, and then all ranks call an *all-reduce*. Each brings a tensor, and each receives the sum. Since all ranks started equal and
# use the same gradient, they make the same update, and the weights stay equal without being sent again. In the cell below, `start` gives a rank its model
# and its rows of a batch of 48.


# %%
def make_model():
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5)).double().to(device)


def start(rank, sizes):
    torch.manual_seed(rank)  # every rank draws weights of its own
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(48, 25, generator=generator).double()
    rows = batch.split(sizes)[rank].to(device)  # (sizes[rank], 25)
    return make_model(), rows[:, :20], rows[:, 20:]  # a model, inputs and targets


# %% [markdown]
# The danger is in the word average. The gradient of a batch is a mean over its rows. Take 48 rows, of which four ranks have 24, 12, 8 and 4. Suppose that
# each rank takes the mean over its own rows, and that the ranks then take the mean of their four means. In the whole batch a row counts 1/48.

# %% tags=["predict"]
overcounted = helpers.predict(
    "How many times as much as in the whole batch does a row of the rank with 4 rows count?",
    "x",
)
overcounted

# %% tags=["run"]
uneven = (24, 12, 8, 4)
row_losses = torch.ones(48, requires_grad=True)
torch.stack([shard.mean() for shard in row_losses.split(uneven)]).mean().backward()
counts = 48 * row_losses.grad

# %% tags=["look"]
overcounted.reveal(modelled=(1 / 4 / 4) / (1 / 48), counted=counts[-1].item())
print(f"a row of the rank with 24 rows counts {counts[0].item():.1f} times")

# %% [markdown] tags=["explain"]
# It counts a quarter of a quarter, or 1/16, which is three times as much. A row of the largest rank counts 1/96, only half as much. Nothing crashes, and no
# rank notices, because they all agree with one another. Language models meet this mistake whenever ranks have different numbers of tokens. A close relative
# of it was found in the Transformers library in October 2024 ([Hugging Face](https://huggingface.co/blog/gradient_accumulation)). The remedy is to weigh
# each rank's mean by its share of the rows.
#
# **Your turn.** Write the training of a rank, 20 steps of plain gradient descent with the learning rate 0.1. You have `dist.broadcast(tensor, src=0)`, which
# gives every rank the values of rank 0, and `dist.all_reduce(tensor)`, which replaces a tensor by the sum over all ranks. `sizes` has the number of rows of
# each rank, and every row must count the same.


# %% tags=["yours"] yours="train_rank" takes=12
def train_rank(rank, world_size, sizes):
    """Return the model after 20 steps on the mean squared error of all 48 rows."""
    model, x, y = start(rank, sizes)
    for weight in model.parameters():
        dist.broadcast(weight.data, src=0)
    for _ in range(20):
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for weight in model.parameters():
            weight.grad *= sizes[rank] / sum(sizes)
            dist.all_reduce(weight.grad)
            weight.data -= 0.1 * weight.grad
    return model


# %% checks="train_rank"
train_rank = check(train_rank, ranks=ranks, start=start)


# %% wrong="train_rank" says="begin with weights of their own"
def train_rank(rank, world_size, sizes):
    model, x, y = start(rank, sizes)
    for _ in range(20):
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for weight in model.parameters():
            weight.grad *= sizes[rank] / sum(sizes)
            dist.all_reduce(weight.grad)
            weight.data -= 0.1 * weight.grad
    return model


# %% wrong="train_rank" says="You take four times the step"
def train_rank(rank, world_size, sizes):
    model, x, y = start(rank, sizes)
    for weight in model.parameters():
        dist.broadcast(weight.data, src=0)
    for _ in range(20):
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.data -= 0.1 * weight.grad
    return model


# %% wrong="train_rank" says="You take the mean of four means"
def train_rank(rank, world_size, sizes):
    model, x, y = start(rank, sizes)
    for weight in model.parameters():
        dist.broadcast(weight.data, src=0)
    for _ in range(20):
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.data -= 0.1 * weight.grad / world_size
    return model


# %% wrong="train_rank" says="the cells below need the model"
def train_rank(rank, world_size, sizes):
    model, x, y = start(rank, sizes)
    for weight in model.parameters():
        dist.broadcast(weight.data, src=0)
    for _ in range(20):
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for weight in model.parameters():
            weight.grad *= sizes[rank] / sum(sizes)
            dist.all_reduce(weight.grad)
            weight.data -= 0.1 * weight.grad
    return model.state_dict()


# %% right="train_rank" style=1
def train_rank(rank, world_size, sizes):
    model, x, y = start(rank, sizes)
    weights = list(model.parameters())
    with torch.no_grad():
        for weight in weights:
            dist.broadcast(weight, 0)
    optimizer = torch.optim.SGD(weights, lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        errors = (model(x) - y).square().mean(dim=1)
        (errors.sum() / sum(sizes)).backward()  # each row counts 1/48
        for weight in weights:
            dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM)
        optimizer.step()
    return model


# %% right="train_rank" style=2
def train_rank(rank, world_size, sizes):
    model, x, y = start(rank, sizes)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.broadcast(weights, src=0)
    for _ in range(20):
        nn.utils.vector_to_parameters(weights, model.parameters())
        loss = nn.functional.mse_loss(model(x), y) * len(x)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        gradient = torch.cat([part.flatten() for part in gradients])
        dist.all_reduce(gradient)
        weights = weights - 0.1 * gradient / sum(sizes)
    nn.utils.vector_to_parameters(weights, model.parameters())
    return model


# %% tags=["hide-input", "nbval-ignore-output"]
def weights_of(sizes):
    model = ranks.run(train_rank, sizes, timeout_s=60)[0]
    return nn.utils.parameters_to_vector(model.parameters()).detach()


difference = (weights_of(uneven) - weights_of((12, 12, 12, 12))).abs().max().item()
assert difference < 1e-12
print(f"24, 12, 8 and 4 rows against 12 each: weights differ by at most {difference:.0e}")

# %% [markdown] tags=["explain"]
# Our four ranks ended with the weights of an equal split, up to a difference of 6·10⁻¹⁷ (measured), which comes from adding in another order.
#
# A rank also has a device of its own, and its model and its batch must both be there. `model.to(device)` moves the model, whereas `x.to(device)` returns a
# copy and leaves `x` where it was. If you forget to keep the copy, PyTorch stops with an error that names two devices, such as `cuda:0` and `cpu`. The cell
# makes this error. Without a GPU it takes PyTorch's `meta` device, whose tensors have a shape but no data.

# %% tags=["nbval-ignore-output"]
elsewhere = "cuda" if torch.cuda.is_available() else "meta"
model, x = nn.Linear(20, 5), torch.ones(4, 20)
model.to(elsewhere)
x.to(elsewhere)  # a copy that is forgotten
try:
    model(x)
except RuntimeError as error:
    print(str(error).splitlines()[0])

# %% [markdown]
# **To remember.** Start equal, use the same gradient, and let each of 48 rows count 1/48, whichever rank it is on.
#
# So the ranks need nothing from each other but a sum. Who adds it up?

# %% [markdown] tags=["slide"] minutes=2 headline="The sum is all that travels, and it is as large as the model"
# ## Part 2: a sum without a centre
#
# Who adds up the gradients? We ask this next, because the sum is all that has to travel, and it is as large as the model.
#
# - 7 billion parameters have a gradient of 14 GB
# - Each GPU has one port
# - One rank adds for all, or each a piece
#
# In bfloat16 our gradient has 2 × 7 billion bytes, or 14 GB, and a port of 100 Gbit/s moves 12.5 GB/s in each direction.
#
# The obvious way is to let rank 0 do it. The other seven send it their gradients, and it sends the sum back to each. Its port carries 7 × 14, or 98 GB,
# first inwards and then as many outwards, which takes 15.7 s. The computing of a step, 6 × 7·10⁹ × 8,192 FLOP at 400 TFLOP/s, takes 0.86 s. So the eight
# would need 16.5 s for 65,536 tokens, and a single GPU, which computes 8,192 of them in 0.86 s, needs only 6.9 s for the same tokens.
#
# PyTorch began in nearly this way. In `nn.DataParallel` a single process copies the model from GPU 0 to the others in every step and collects the
# gradients on GPU 0. Its successor, `DistributedDataParallel` or DDP, has a process for each GPU. When the two RTX 3090 exchanged data over NVLink, a faster
# link, the run of the first paragraph took 16.6 s with `nn.DataParallel` and 13.5 s with DDP (published, same issue). On a CPU `nn.DataParallel` does
# nothing at all, because it finds no GPU and simply calls your model.

# %% tags=["nbval-ignore-output"]
replicated = nn.DataParallel(nn.Linear(20, 5))
print("GPUs that nn.DataParallel uses:", replicated.device_ids)

# %% [markdown]
# The better way uses all ports at once. Let the ranks form a ring, in which each sends only to its right neighbour, and cut the gradient into eight pieces.
# In each of seven rounds every rank sends one piece to the right and adds the piece that arrives from the left to its own. These rounds are called
# [reduce-scatter](glossary.md#reduce-scatter), and after them each piece is complete on one rank. In seven more rounds, the
# [all-gather](glossary.md#all-gather), the complete pieces travel on round the ring
# ([Patarasuk and Yuan](https://doi.org/10.1016/j.jpdc.2008.09.002), 2009). Together they are a [ring all-reduce](glossary.md#ring-all-reduce). The player
# shows it with four ranks, whose pieces are called chunks.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="In a ring each rank sends to its right neighbour alone" layout="steps"
frames = data_parallel.ring_frames(4)
captions = [f"Step {step}: each rank sends a chunk, and the sums grow." for step in range(3)]
captions += [f"Step {step}: complete sums travel on round the ring." for step in range(3, 6)]
plotting.play(
    [parallel_plans.draw_ring(frame.chunks, moves=frame.moves) for frame in frames],
    title="A ring all-reduce on 4 ranks",
    captions=[*captions, "After step 5 every rank has all sums."],
    stills=(0, 1, 3, 6),
    alt="Four ranks, four chunks: sums grow round the ring for three steps, then go to all.",
)

# %% [markdown]
# A rank needs an exchange with its neighbours, and a loop over the rounds.


# %%
def exchange(rank, world_size, outgoing):
    incoming = torch.empty_like(outgoing)
    send = dist.P2POp(dist.isend, outgoing, (rank + 1) % world_size)
    receive = dist.P2POp(dist.irecv, incoming, (rank - 1) % world_size)
    for request in dist.batch_isend_irecv([send, receive]):
        request.wait()
    return incoming


def reduce_scatter(rank, world_size, ring_step, gradients):
    chunks = list(gradients[rank].to(device).chunk(world_size))
    for step in range(world_size - 1):
        ring_step(chunks, rank, step, partial(exchange, rank, world_size))
    return chunks


# %% [markdown]
# **Your turn.** Write one step of the reduce-scatter, which sends one chunk on and adds what arrives to another. Follow chunk 0 in the player. It starts at
# rank 1 and has all terms when it reaches rank 0, so in step 0 rank $r$ sends chunk $r - 1$. In each later step a rank passes on the chunk that it has just
# added to. `exchange(outgoing)` sends a tensor to the right and returns what has come from the left.


# %% tags=["yours"] yours="ring_step" takes=8
def ring_step(chunks, rank, step, exchange):
    """Send a chunk to the right and add what comes from the left to another, in place."""
    outgoing, incoming = (rank - step - 1) % len(chunks), (rank - step - 2) % len(chunks)
    chunks[incoming] += exchange(chunks[outgoing])


# %% checks="ring_step"
ring_step = check(ring_step, ranks=ranks, reduce_scatter=reduce_scatter)


# %% wrong="ring_step" says="must be added to your own"
def ring_step(chunks, rank, step, exchange):
    outgoing, incoming = (rank - step - 1) % len(chunks), (rank - step - 2) % len(chunks)
    chunks[incoming] = exchange(chunks[outgoing])


# %% wrong="ring_step" says="the chunk that you have just added to"
def ring_step(chunks, rank, _step, exchange):
    chunks[(rank - 2) % len(chunks)] += exchange(chunks[rank - 1])


# %% wrong="ring_step" says="In step 0 rank r sends chunk r - 1"
def ring_step(chunks, rank, step, exchange):
    outgoing, incoming = (rank - step) % len(chunks), (rank - step - 1) % len(chunks)
    chunks[incoming] += exchange(chunks[outgoing])


# %% wrong="ring_step" says="must stay a tensor"
def ring_step(chunks, rank, step, exchange):
    outgoing, incoming = (rank - step - 1) % len(chunks), (rank - step - 2) % len(chunks)
    chunks[incoming] = (chunks[incoming] + exchange(chunks[outgoing])).tolist()


# %% wrong="ring_step" says="Change the list `chunks` itself"
def ring_step(chunks, rank, step, exchange):
    outgoing, incoming = (rank - step - 1) % len(chunks), (rank - step - 2) % len(chunks)
    arrived = exchange(chunks[outgoing])
    return [chunk + arrived if k == incoming else chunk for k, chunk in enumerate(chunks)]


# %% right="ring_step" style=1
def ring_step(chunks, rank, step, exchange):
    count = len(chunks)
    arrived = exchange(chunks[(rank + count - 1 - step) % count])
    mine = (rank + count - 2 - step) % count
    chunks[mine] = torch.add(chunks[mine], arrived)
    return chunks


# %% right="ring_step" style=2
def ring_step(chunks, rank, step, exchange):
    chunks[rank - step - 2].add_(exchange(chunks[rank - step - 1]))


# %% [markdown]
# The all-gather is the same walk without the addition:


# %%
def ring_all_reduce(rank, world_size, ring_step, gradients):
    chunks = reduce_scatter(rank, world_size, ring_step, gradients)
    for step in range(world_size - 1):  # all-gather
        outgoing, incoming = (rank - step) % world_size, (rank - step - 1) % world_size
        chunks[incoming] = exchange(rank, world_size, chunks[outgoing])
    return torch.cat(chunks)


# %% tags=["hide-input"]
gradients = torch.arange(32.0).reshape(4, 8)  # a row per rank
print("sum of all rows", gradients.sum(0).tolist())
for rank, total in enumerate(ranks.run(ring_all_reduce, ring_step, gradients)):
    print(f"rank {rank} ends    ", total.tolist())

# %% [markdown]
# A rank of our eight sends 14 pieces, each an eighth of 14 GB. That makes 24.5 GB, and at 12.5 GB/s it takes 1.96 s, an eighth of the time of the obvious
# way.

# %% tags=["predict"]
larger_ring = helpers.predict(
    "If 64 ranks share a gradient instead of 4, "
    "how many times as many bytes does each rank send?",
    "x",
)
larger_ring

# %% tags=["hide-input", "run"]
sent_bytes = {}
for world_size in (4, 64):
    planned = parallel.collective("all_reduce", "ring", world_size=world_size, length=51_200)
    sent_bytes[world_size] = planned.ranks()[0].sent_bytes

# %% tags=["look"]
larger_ring.reveal(modelled=(63 / 64) / (3 / 4), counted=sent_bytes[64] / sent_bytes[4])

# %% [markdown] tags=["explain"]
# With 4 ranks each sends 6 quarters of the gradient, and with 64 it sends 126 pieces of a 64th. That is 1.5 and 1.97 times the gradient, so the answer is
# 1.31.
#
# What the ring does not save is the number of messages, each of which pays the [latency](glossary.md#latency) of the link again, the time before
# its first byte arrives. For 200 kB on four ranks the ring sends six messages of 50 kB, one after the other. With 10 MB/s and 5 ms of latency
# they take 6 × (5 + 5), or 60 ms (modelled).
#
# **Your turn.** How long does any ring take? The [bandwidth](glossary.md#bandwidth) is in bytes per second.


# %% tags=["yours"] yours="ring_s" takes=5
def ring_s(size_bytes, world_size, bandwidth, latency_s=0.0):
    """Return the seconds of a ring all-reduce of a tensor of size_bytes."""
    return 2 * (world_size - 1) * (latency_s + size_bytes / world_size / bandwidth)


# %% checks="ring_s"
ring_s = check(ring_s)


# %% wrong="ring_s" says="each message pays the latency"
def ring_s(size_bytes, world_size, bandwidth, latency_s=0.0):
    return latency_s + 2 * (world_size - 1) * size_bytes / world_size / bandwidth


# %% wrong="ring_s" says="two halves"
def ring_s(size_bytes, world_size, bandwidth, latency_s=0.0):
    return (world_size - 1) * (latency_s + size_bytes / world_size / bandwidth)


# %% wrong="ring_s" says="A message has a piece of the tensor"
def ring_s(size_bytes, world_size, bandwidth, latency_s=0.0):
    return 2 * (world_size - 1) * (latency_s + size_bytes / bandwidth)


# %% wrong="ring_s" says="the cells below need int or float"
def ring_s(size_bytes, world_size, bandwidth, latency_s=0.0):
    message_s = torch.tensor(latency_s + size_bytes / world_size / bandwidth).double()
    return 2 * (world_size - 1) * message_s


# %% right="ring_s" style=1
def ring_s(size_bytes, world_size, bandwidth, latency_s=0.0):
    steps = world_size - 1
    half_s = sum(latency_s + size_bytes / (world_size * bandwidth) for _ in range(steps))
    return half_s + half_s


# %% right="ring_s" style=2
def ring_s(size_bytes, world_size, bandwidth, latency_s=0.0):
    sent_bytes = 2 * size_bytes * (world_size - 1) / world_size
    return sent_bytes / bandwidth + 2 * latency_s * (world_size - 1)


# %% tags=["hide-input", "nbval-ignore-output"]
def all_reduce_over(_rank, _world_size, planned, link):
    data_parallel.execute(planned, torch.ones(planned.length, device=device), link=link)


slow = Link(bandwidth_bytes_per_s=10e6, latency_s=5e-3)
programs = {}
for name in ("ring", "gather_broadcast"):
    plan = parallel.collective("all_reduce", name, world_size=4, length=50_000)
    programs[name] = partial(ranks.run, all_reduce_over, plan, slow)
both = helpers.compare(programs, budget_s=4, precision=0.1)
modelled_s = {"ring": ring_s(200e3, 4, 10e6, 5e-3), "gather_broadcast": 6 * (5e-3 + 0.02)}
for name, label in {"ring": "the ring", "gather_broadcast": "rank 0 alone"}.items():
    simulated_s = both.candidate(name).minimum_s
    modelled = units.text(modelled_s[name], "s")
    print(f"{label}: {modelled} (modelled), {units.text(simulated_s, 's')} (simulated)")

# %% tags=["hide-input"]
sentence = "if rank 0 adds up alone, it takes longer than the ring"
both.claim(sentence, "gather_broadcast", at_least=1.3, simulated=True)

# %% [markdown] tags=["explain"]
# At their best our processes took 73 ms, and 161 ms when rank 0 did it alone (simulated).
#
# **To remember.** In a ring each rank sends less than twice the gradient, however many ranks there are. For 14 GB and eight ranks on 100 Gbit/s this takes
# 1.96 s.
#
# A step computes for 0.86 s and sends for 1.96 s. Must the GPUs wait for all of that?

# %% [markdown] tags=["slide"] minutes=2 headline="The last layer's gradient can leave first"
# ## Part 3: buckets, and a rank that is late
#
# Who waits for whom? We ask now, because the gradient is not finished all at once, so the GPUs need not wait for all of the sending.
#
# - The backward pass starts at the last layer
# - DDP collects gradients in [buckets](glossary.md#bucket)
# - A full bucket travels while other layers compute
#
# The gradient of the last layer can travel while the other layers are still computing. A bucket has 25 MiB by default, and DDP sends each as
# soon as it is full.
#
# Take a model that is small enough to follow by hand. Each of its four layers needs 10 ms in the forward pass and 40 ms in the backward pass, and has a
# gradient of 100 kB, which is one bucket. The forward pass ends after 40 ms, and the buckets are full after 80, 120, 160 and 200 ms. A link of 10 MB/s with 2
# ms of latency sends each in six messages of 25 kB, so 6 × (2 + 2.5), or 27 ms.
#
# **Your turn.** When does each bucket arrive? The link carries one bucket after the other, so a bucket waits until it is full, and until the link is free.


# %% tags=["yours"] yours="bucket_ends" takes=7
def bucket_ends(full_s, sending_s):
    """Return when each bucket has arrived; it is full at full_s and travels for sending_s."""
    ends_s, free_s = [], 0.0
    for full, sending in zip(full_s, sending_s, strict=True):
        free_s = max(free_s, full) + sending
        ends_s.append(free_s)
    return ends_s


# %% checks="bucket_ends"
bucket_ends = check(bucket_ends)


# %% wrong="bucket_ends" says="The link carries one bucket after the other"
def bucket_ends(full_s, sending_s):
    return [full + sending for full, sending in zip(full_s, sending_s, strict=True)]


# %% wrong="bucket_ends" says="A bucket cannot leave before it is full"
def bucket_ends(full_s, sending_s):
    ends_s, free_s = [], full_s[0]
    for sending in sending_s:
        free_s += sending
        ends_s.append(free_s)
    return ends_s


# %% wrong="bucket_ends" says="the cells below need list"
def bucket_ends(full_s, sending_s):
    ends_s, free_s = [], 0.0
    for full, sending in zip(full_s, sending_s, strict=True):
        free_s = max(free_s, full) + sending
        ends_s.append(free_s)
    return torch.tensor(ends_s, dtype=torch.float64)


# %% right="bucket_ends" style=1
def bucket_ends(full_s, sending_s):
    ends_s = []
    for bucket in range(len(full_s)):
        start = full_s[bucket] if bucket == 0 else max(full_s[bucket], ends_s[-1])
        ends_s.append(start + sending_s[bucket])
    return ends_s


# %% right="bucket_ends" style=2
def bucket_ends(full_s, sending_s):
    from itertools import accumulate

    pairs = zip(full_s, sending_s, strict=True)
    return list(accumulate(pairs, lambda free, pair: max(free, pair[0]) + pair[1], initial=0))[
        1:
    ]


# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 0.5]
step_time = helpers.predict(
    "With four buckets of 27 ms each, how long does the whole step take?", "s"
)
step_time

# %% [markdown]
# The real DDP can follow this model. On four processes we let layers sleep instead of computing, and `record_steps` lets a sum arrive when our link would
# have carried it.


# %%
near = Link(bandwidth_bytes_per_s=10e6, latency_s=2e-3)


def sleeping_steps(rank, world_size, bucket_bytes, late_s):
    layers = [data_parallel.SleepingLayer(10e-3, 40e-3, parameters=25_000) for _ in range(4)]
    model = nn.Sequential(*layers).to(device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_bytes / 2**20)
    return data_parallel.record_steps(ddp, near, late_s=late_s[rank])


# %% tags=["run"]
full_s, bucket_s = [0.08, 0.12, 0.16, 0.20], ring_s(100e3, 4, 10e6, 2e-3)
modelled_s = bucket_ends(full_s, [bucket_s] * 4)[-1]
in_time = (0, 0, 0, 0)  # no rank is late
four_buckets = data_parallel.fastest_step(ranks.run(sleeping_steps, 100_000, in_time))

# %% tags=["hide-input", "run"]
one_bucket = data_parallel.fastest_step(ranks.run(sleeping_steps, 400_000, in_time))
one_bucket_s = bucket_ends([0.2], [ring_s(400e3, 4, 10e6, 2e-3)])[-1]
assert four_buckets.step_s >= 0.99 * modelled_s  # a sleep never ends early
assert one_bucket.step_s >= 0.99 * one_bucket_s

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Only the last bucket is left over"
step_time.reveal(modelled=modelled_s, simulated=four_buckets.step_s)
print(f"one bucket of 400 kB: {1e3 * one_bucket_s:.0f} ms (modelled)")

# %% [markdown] tags=["explain"]
# Each of the first three buckets has arrived before the next is full. The last one becomes full when nothing is left to compute, so the step takes 227 ms
# (modelled). The real DDP took 239 ms (simulated), since its processes also make the real sums. A single bucket of 400 kB would start only
# after 200 ms and take 6 × (2 + 10), which makes 272 ms.

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=1 headline="Each bucket leaves as soon as it is full"
title = "Buckets travel under the backward pass, and only the last one sticks out"
figure = data_parallel.draw_step(four_buckets, ranks=(0, 1), title=title)
alt = "Device and link of two ranks: three buckets travel while the device computes backward."
plotting.show(figure, alt=alt)

# %% [markdown] tags=["explain"]
# So far all ranks were equally fast. Now let rank 2 begin every step 20 ms late.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 50]
longer = helpers.predict(
    "If one of four ranks is 20 ms late, "
    "how many milliseconds longer is an average rank's step?",
    "ms",
)
longer

# %% tags=["run"]
late_s = (0, 0, 0.02, 0)
late = data_parallel.fastest_step(ranks.run(sleeping_steps, 100_000, late_s))

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Every rank pays the whole delay"
longer.reveal(modelled=20, simulated=1e3 * (late.step_s - four_buckets.step_s))

# %% tags=["hide-input", "look", "nbval-ignore-output"]
late_full_s = [full + 0.02 for full in full_s]
late_ends_s = bucket_ends(late_full_s, [bucket_s] * 4)
assert late.step_s >= 0.99 * late_ends_s[-1]
free_s = [0.0, *late_ends_s[:-1]]
waits_s = [
    max(0, late_full - max(full, free))
    for full, late_full, free in zip(full_s, late_full_s, free_s, strict=True)
]
waits_ms = ", ".join(f"{1e3 * wait_s:.0f}" for wait_s in waits_s)
print(f"step with rank 2 late: {1e3 * late.step_s:.0f} ms (simulated)")
print(f"full buckets of a punctual rank wait {waits_ms} ms (modelled)")
total_s = {"rank 1": late.waited_s(1), "rank 2": late.waited_s(2)}
simulated = ", ".join(f"{rank} {1e3 * wait_s:.0f} ms" for rank, wait_s in total_s.items())
print(f"in all {1e3 * sum(waits_s):.0f} ms (modelled); {simulated} (simulated)")

# %% [markdown] tags=["explain"]
# If you said 5, you shared the delay fairly, but a sum needs all of its terms. The step went from 239 to 259 ms (simulated), and each rank
# paid for the delay, because all need the last sum. Who waited? A punctual rank has its first bucket full after 80 ms and must wait until 100. The next bucket would be full at 120 and
# can start only at 140, when rank 2 has filled it, while the link is free from 127. So the first bucket costs 20 ms of waiting with a free link and each
# later one 13, which makes 59 ms per step (modelled).

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Full buckets of a punctual rank wait for rank 2"
title = "Rank 2 is late, and the full buckets of rank 1 wait for it"
figure = data_parallel.draw_step(late, ranks=(1, 2), title=title)
alt = "Rank 2 begins late, and rank 1's link is grey for longer than rank 2's."
plotting.show(figure, alt=alt)

# %% [markdown] tags=["explain"]
# Grey is a full bucket that waits for a slower rank and then for the real sum. Rank 2 waits for the sums, 19 ms, so 64 − 19, or 45 ms, of rank 1's grey are
# due to rank 2 (simulated), fewer than 59, because late sums leave the link less free time. If you profile such a training, the punctual ranks show
# a long all-reduce, which looks like a slow network. The culprit is the rank with the *shortest* all-reduce.
#
# A delay that you would never notice on one GPU becomes common on many. Suppose that each rank is late in one step of a hundred, independently of
# the others. With 4 ranks, 1 − 0.99⁴ or 4 % of all steps have a late rank. With 256 ranks, 92 % have one. In the worst case a rank never arrives, and all
# others wait until a time limit ends them. On 16,384 GPUs Meta counted 419 unexpected interruptions in 54 days, one in three hours
# ([Llama Team](https://arxiv.org/abs/2407.21783), 2024, published).

# %% tags=["hide-input"]
for count in (4, 256):
    print(f"{count} ranks: {1 - 0.99**count:.0%} of the steps have a late rank")
print(f"one interruption in {54 * 24 / 419:.1f} hours")

# %% [markdown]
# **To remember.** If the link keeps up, only the last bucket sticks out, here 27 of 227 ms. The slowest rank decides, and if each is late in one
# step of a hundred, one of 256 is late nearly always.
#
# The link of the small model kept up. The one between your eight H100s will not.

# %% [markdown] tags=["slide"] minutes=2 headline="A longer computation hides the same traffic"
# ## Part 4: the link as the limit
#
# When is the link the limit? Now we can work out the bet, because every part of it is known.
#
# - More tokens lengthen the computing
# - They do not lengthen the sending
# - Only the backward pass can hide traffic
#
# Each GPU computes for 0.860 s per step. The forward pass takes a third of that, 0.287 s, and the backward pass two thirds, 0.573 s. Let the model have 32
# layers, each of them a bucket. Your own `ring_s` and `bucket_ends` compute the rest.


# %%
def step_s(tokens, bandwidth, parameters=7e9, gradient_bytes=2, ranks=8, rate=400e12):
    """Return the seconds of a step of DDP, and those of its computing alone."""
    layers, compute_s = 32, 6 * parameters * tokens / rate
    layer_s = 2 / 3 * compute_s / layers  # of the backward pass
    full_s = [compute_s / 3 + layer_s * (done + 1) for done in range(layers)]
    sending_s = ring_s(gradient_bytes * parameters / layers, ranks, bandwidth)
    return bucket_ends(full_s, [sending_s] * layers)[-1], compute_s


def times_one(tokens, bandwidth, **options):
    ddp_s, compute_s = step_s(tokens, bandwidth, **options)
    return 8 * compute_s / ddp_s


# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Eight times the hardware, and a third of the time"
bet.reveal(modelled=alone_days / times_one(8192, 12.5e9))
ddp_s, compute_s = step_s(8192, 12.5e9)
print(f"a step takes {ddp_s:.3f} s, so eight are {8 * compute_s / ddp_s:.3g} times as fast")

# %% tags=["hide-input"]
traffic_s = ring_s(14e9, 8, 12.5e9)
options = {
    "gradients in float32": alone_days / times_one(8192, 12.5e9, gradient_bytes=4),
    "nothing hidden": alone_days * (compute_s + traffic_s) / compute_s / 8,
    "GPUs of twice the rate": alone_days
    * step_s(8192, 12.5e9, rate=800e12)[0]
    / compute_s
    / 8,
}
for what, days in options.items():
    print(f"{what}: {days:.0f} days")

# %% [markdown] tags=["explain"]
# No schedule can make the step shorter than its traffic of 1.96 s. DDP comes close to this bound. The last layer has its gradient after 0.287 +
# 0.573 / 32, or 0.305 s, and from then on the port is never idle. The traffic ends after 2.265 s, and the step with it. In that time the eight
# GPUs have learned from 65,536 tokens, whereas a single one would have managed 21,570. They are 3.04 times as fast (modelled).
#
# Eight times the hardware still needs 56 of the 170 days. With a float32 model under `torch.autocast` it even needs 104, because the gradients are float32
# as well, and the traffic doubles.
#
# Would a smaller model help, because it has less to send?

# %% tags=["predict"]
smaller = helpers.predict(
    "If the model has a tenth of the parameters, "
    "how many times as fast as one GPU are the eight?",
    "x",
)
smaller

# %% tags=["run"]
of_a_tenth = times_one(8192, 12.5e9, parameters=0.7e9)

# %% tags=["look"]
smaller.reveal(modelled=of_a_tenth)

# %% [markdown] tags=["explain"]
# It is 3.04 again. The traffic shrinks to a tenth, but so does the arithmetic. Only three quantities are left in their ratio, namely the tokens per GPU, its
# rate and that of the link. For each parameter a GPU sends almost 4 bytes per step, since the 2 bytes of its gradient travel nearly twice. The backward
# pass, which has to hide this traffic, computes four operations per token for each parameter. The two fours cancel, and what remains is short.
#
# > tokens per GPU that hide the traffic = (rate of the GPU / rate of the link) × (R − 1) / R, for R ranks and 2-byte gradients
#
# **Your turn.** Write it for gradients of any size. A GPU does `rate` FLOP per second and sends `bandwidth` bytes per second.


# %% tags=["yours"] yours="tokens_to_hide" takes=5
def tokens_to_hide(world_size, rate, bandwidth, gradient_bytes=2):
    """Return the tokens per GPU whose backward pass takes as long as the ring."""
    sent_bytes = 2 * (world_size - 1) / world_size * gradient_bytes  # per parameter
    return sent_bytes / bandwidth * rate / 4


# %% checks="tokens_to_hide"
tokens_to_hide = check(tokens_to_hide)


# %% wrong="tokens_to_hide" says="Only the backward pass"
def tokens_to_hide(world_size, rate, bandwidth, gradient_bytes=2):
    sent_bytes = 2 * (world_size - 1) / world_size * gradient_bytes
    return sent_bytes / bandwidth * rate / 6


# %% wrong="tokens_to_hide" says="does not send the piece that it ends with"
def tokens_to_hide(world_size, rate, bandwidth, gradient_bytes=2):
    return 2 * gradient_bytes / bandwidth * rate / 4


# %% wrong="tokens_to_hide" says="gradient_bytes need not be 2"
def tokens_to_hide(world_size, rate, bandwidth, gradient_bytes=2):
    return rate / bandwidth * (world_size - 1) / world_size


# %% wrong="tokens_to_hide" says="the cells below need int or float"
def tokens_to_hide(world_size, rate, bandwidth, gradient_bytes=2):
    sent_bytes = 2 * (world_size - 1) / world_size * gradient_bytes
    return torch.tensor(sent_bytes / bandwidth * rate / 4, dtype=torch.float64)


# %% right="tokens_to_hide" style=1
def tokens_to_hide(world_size, rate, bandwidth, gradient_bytes=2):
    return rate / bandwidth * (1 - 1 / world_size) * gradient_bytes / 2


# %% right="tokens_to_hide" style=2
def tokens_to_hide(world_size, rate, bandwidth, gradient_bytes=2):
    sending_s = ring_s(gradient_bytes, world_size, bandwidth)  # of one parameter
    token_s = 4 / rate
    return sending_s / token_s


# %% [markdown]
# For your eight this is 400·10¹² / 12.5·10⁹ × 7/8, or 28,000 tokens. In [lesson 02](02_compute_and_roofline.ipynb) the rate of a GPU divided by the
# bandwidth of its memory told how many tokens keep it busy. This is the [roofline](glossary.md#roofline) again, with the network in place of the memory.
# The table has the same eight GPUs on four links (published rates, one direction).

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="The link decides how many tokens hide the traffic"
names = (
    "Ethernet, 100 Gbit/s",
    "PCI Express 4.0 x16",
    "InfiniBand NDR",
    "NVLink 4 (of an H100)",
)
rows = {}
for name in names:
    bandwidth = data_parallel.PUBLISHED_LINKS[name].link.bandwidth_bytes_per_s
    times = times_one(8192, bandwidth)
    rows[name] = {
        "GB/s": f"{bandwidth / 1e9:.3g}",
        "tokens that hide the traffic": f"{tokens_to_hide(8, 400e12, bandwidth):,.0f}",
        "times one GPU (modelled)": f"{times:.3g}",
        "days": f"{alone_days / times:.0f}",
    }
pd.DataFrame(rows).T

# %% [markdown] tags=["explain"]
# NVLink joins only GPUs in one machine, and a slower network joins the machines ([lesson 07](07_links_in_two_levels.ipynb)).
#
# Turn it yourself. The figure begins with the bet. Move the tokens until more of them bring nothing, compare with the division, and then ask what more GPUs
# change.

# %% tags=["hide-input"]
data_parallel.explore_link()

# %% [markdown]
# Is this true outside our model? Test it on the two RTX 3090 without NVLink. In the run of the first paragraph each GPU had 4 sequences of 128
# tokens in a step, or 512 tokens. A step took 19.56 s / 400, or 48.9 ms, on one GPU, and 150.1 ms on two, so the exchange added 101 ms.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 2]
two_gpus = helpers.predict(
    "If one GPU needs 145 ms for 2,048 tokens, how many times as fast as one GPU are two?",
    "x",
)
two_gpus

# %% tags=["run"]
short, long = data_parallel.TWO_GPUS[:2]  # 512 and 2,048 tokens per GPU
same_exchange = 2 * long.one_gpu_s / (long.one_gpu_s + short.exchange_s)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="More tokens, and the same traffic"
source = data_parallel.TWO_GPUS_SOURCE
two_gpus.reveal(modelled=same_exchange, published=long.times_one, source=source)

# %% [markdown] tags=["explain"]
# The traffic does not depend on the tokens, so the step should take 145 + 101 ms, and two GPUs should be 2 × 145 / 246, or 1.18 times as fast as one. It was
# 1.18. Here are more runs of the same issue (published).

# %% tags=["hide-input"]
rows = {}
for index, run in enumerate(data_parallel.TWO_GPUS):
    rows[index] = {
        "GPT-2, parameters": f"{run.parameters / 1e6:.0f} million",
        "tokens per GPU": f"{run.tokens:,}",
        "step, one GPU": f"{1e3 * run.one_gpu_s:.1f} ms",
        "step, two GPUs": f"{1e3 * run.two_gpus_s:.1f} ms",
        "added": f"{1e3 * run.exchange_s:.0f} ms",
        "times one GPU": f"{run.times_one:.2f}",
    }
pd.DataFrame(rows).T.set_index("GPT-2, parameters")

# %% [markdown] tags=["explain"]
# The rows of 512 tokens confirm that the size of the model cancels, since the speed-up is 0.65 or 0.66 with up to six times the parameters. But
# one thing contradicts our model. A longer backward pass should hide more of the traffic, and yet 101 ms stay 101 ms, as if nothing were hidden.
# We do not know why. A rate is worth checking too. If the gradient is float32, its 124 million numbers have 0.5 GB, so in 101 ms the two
# exchanged about 5 GB/s, a sixth of what the table says for PCI Express. So measure your own link before you trust a data sheet, and treat
# hiding as the best case. Without it your step takes 0.86 + 1.96 s, and the training takes 70 days.
#
# If 28,000 tokens do not fit into a GPU at once, you can *accumulate*, that is, add the gradients of several passes before one update
# ([gradient accumulation](glossary.md#gradient-accumulation)). Of four passes of 8,192 tokens only the last one sends, so they take 3 × 0.860 + 2.265, or
# 4.85 s. A single GPU needs 32 × 0.860 s for the same tokens, so the eight are 5.7 times as fast and not 8, because only the last pass can hide the traffic. But DDP by default sends in every pass, unless you put
# `no_sync()` around all passes but the last.


# %%
def accumulate(rank, world_size, sends_each_time):
    ddp = DistributedDataParallel(make_model())
    parts = torch.ones(48, 20, device=device).double().chunk(4)
    for _ in range(2):  # DDP arranges its buckets anew in its second step
        ddp(parts[0]).sum().backward()
    with parallel.count_collectives() as counter:
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            with nullcontext() if sends_each_time or last else ddp.no_sync():
                ddp(part).sum().backward()  # the four gradients add up
    return counter.counts.size_bytes("all_reduce")


# %% tags=["hide-input"]
each, once = (ranks.run(accumulate, sends_each_time)[0] for sends_each_time in (True, False))
print(f"summed over the ranks in four passes: {each:,} bytes by default")
print(f"with no_sync around the first three: {once:,} bytes, {each / once:.0f} times fewer")

# %% [markdown] tags=["explain"]
# By default it sends four times the bytes (counted), and nothing in the result tells you so.
#
# **To remember.** Divide the GPU's rate by the link's. To hide its traffic, an H100 on 100 Gbit/s needs about 28,000 tokens per pass, and on 400
# Gbit/s a quarter of that.
#
# All of this assumed that the training fits into each GPU, but it does not.

# %% [markdown] tags=["slide"] minutes=2 headline="A ring has two halves, and they can be used apart"
# ## Part 5: what every GPU keeps
#
# Must every GPU keep everything? We come to this last, because the answer needs the two halves of the ring.
#
# - 2 bytes of weight, 2 of gradient, 12 for Adam
# - 7 billion parameters make 112 GB
# - All eight GPUs keep the same bytes
#
# In our recipe a parameter has 2 bytes of weight, 2 of gradient and 12 for Adam (a float32 copy and two moments, 4 bytes each). That is 16
# bytes, and 7 billion parameters make 112 GB. Where is the waste?
#
# After the all-reduce, all eight GPUs compute the same update from the same 12 bytes per parameter. That is the first waste. Instead, let each GPU own an
# eighth of the parameters, and keep Adam's 12 bytes only for these ([sharding](glossary.md#sharding)). The reduce-scatter gives it the summed gradient of its
# eighth, it updates that eighth, and the all-gather then distributes new weights instead of gradients. This is *ZeRO 1*
# ([Rajbhandari and others](https://arxiv.org/abs/1910.02054), 2020). A GPU keeps 4 + 12/8 bytes per parameter and sends as many bytes as before. On your
# Ethernet the eight stay 3.04 times as fast as one (modelled), because the bytes are the same and the port is busy to the end. And with 38.5 GB per GPU
# your eight can finally begin.

# %% tags=["hide-input"]
half_s = ring_s(14e9, 8, 12.5e9) / 2  # a reduce-scatter or an all-gather
scattered_s = bucket_ends(
    [compute_s / 3 + 2 / 3 * compute_s * (done + 1) / 32 for done in range(32)],
    [half_s / 32] * 32,
)[-1]
print(
    f"ZeRO 1: {8 * compute_s / (scattered_s + half_s):.3g} times as fast as one GPU (modelled)"
)

# %% [markdown]
# Now the gradient is the waste, because a GPU uses only an eighth of the sum. *ZeRO 2* discards the rest as soon as a bucket has been sent, which leaves
# 2 + 14/8 bytes. Then the weights are the waste, because only one layer computes at a time. *ZeRO 3*, which is FSDP or `fully_shard` in PyTorch, also keeps only an
# eighth of the weights, and beside it the layer in use. It gathers each layer for the forward pass, discards it, gathers it again for the backward pass,
# and scatters the gradients. We count the [collectives](glossary.md#collective) of both on four real ranks.


# %%
def count_traffic(rank, world_size, sharded):
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4))).to(device)
    if sharded:
        mesh = dist.device_mesh.init_device_mesh(device, (world_size,))
        for part in [*model, model]:
            dist.fsdp.fully_shard(part, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    for _ in range(3):
        with parallel.count_collectives() as counter:
            model(torch.ones(8, 64, device=device)).sum().backward()
    return counter.counts.collectives


# %% tags=["hide-input"]
whole_bytes = 4 * 4 * 64 * 64  # four layers of 64 x 64 float32 values
for name, sharded in {"DDP": False, "fully_shard": True}.items():
    for calls in ranks.run(count_traffic, sharded)[0]:
        halves = calls.size_bytes / whole_bytes * (1 + (calls.collective == "all_reduce"))
        print(
            f"{name:11}  {calls.calls} x {calls.collective:14}  halves of a ring: {halves:.0f}"
        )
ranks.close()

# %% [markdown] tags=["explain"]
# An all-reduce was two halves of a ring. ZeRO 3 needs three, two to gather and one to scatter, so it sends 1.5 times as much. For four layers we
# counted 8 all-gathers and 4 reduce-scatters.

# %% tags=["hide-input"]
bytes_of = {"weights": 2, "gradients": 2, "optimizer state": 12}
shares = {"DDP": (1, 1, 1), "ZeRO 1": (1, 1, 8), "ZeRO 2": (1, 8, 8), "ZeRO 3": (8, 8, 8)}
kept = {
    kind: [7e9 * bytes_of[kind] / shares[stage][index] for stage in shares]
    for index, kind in enumerate(bytes_of)
}
per_parameter = ("16", "4 + 12/8", "2 + 14/8", "16/8")
sent_bytes = [halves * 7 / 8 * 14e9 for halves in (2, 2, 2, 3)]
rows = {
    stage: {
        "bytes kept per parameter": per_parameter[index],
        "7 billion on 8 GPUs": f"{sum(kept[kind][index] for kind in kept) / 1e9:.4g} GB",
        "sent per GPU and step": f"{sent_bytes[index] / 1e9:.1f} GB",
    }
    for index, stage in enumerate(shares)
}
pd.DataFrame(rows).T

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Each stage divides what the one before left whole"
figure = data_parallel.draw_sharding(kept, list(shares), limit_bytes=80e9)
alt = "Stacked bars of weights, gradients and optimizer state for DDP and ZeRO 1 to 3."
plotting.show(figure, alt=alt)

# %% [markdown] tags=["explain"]
# The activations come on top, and no stage divides them.
#
# **To remember.** ZeRO 1 and 2 bring 112 GB down to 38.5 and 26.25 GB, and without accumulation they send no extra byte. ZeRO 3 brings it down
# to 14 GB for 1.5 times the traffic.
#
# The [appendix](appendix/05_data_parallel.ipynb) has a script for `torchrun`, a rank that is killed, one that forgets a call, and other buckets. In the
# [exercises](exercises/05_data_parallel_exercises.ipynb) you count a ring of unequal chunks, weigh micro-batches, and write the update of ZeRO 1.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. In a ring each rank sends less than twice the gradient.
# 2. The slowest rank decides, because a sum needs all terms.
# 3. Divide the GPU's rate by the link's before you rent.
#
# Eight H100s on 100 Gbit/s Ethernet need 56 days and not 21, because each step sends for 1.96 s and has only 0.57 s of backward pass to hide it,
# and where nothing is hidden they need 70. On InfiniBand NDR they would need 22 with DDP, if its 112 GB had room, because 8,192 tokens are more
# than the 7,000 that hide the traffic there. And the two RTX 3090 were slower than one, because they computed for 49 ms per step and lost 101 to
# the exchange.
#
# So do one division before you rent, the GPU's rate by the link's. If you have fewer tokens per GPU than that, get a faster link or give each GPU more
# tokens. Faster GPUs would hardly help. With twice the rate your eight would still need 52 days.
#
# If each new GPU brings tokens of its own, which is called [weak scaling](glossary.md#weak-scaling), the division stays as it is. If more GPUs divide the same
# batch, which is called [strong scaling](glossary.md#strong-scaling), each of them has fewer tokens, and sooner or later the link decides.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $R$ is the number of ranks, $s$ the bytes of a gradient, $B$ the bandwidth of a link in bytes per second, $\alpha$ its latency, $P$ the rate of a GPU in
# FLOP per second.
#
# | quantity | formula | for |
# |---|---|---|
# | gradient of the batch | $\sum_r \frac{b_r}{b}\, g_r$ | $b_r$ of the $b$ rows of the batch are rank $r$'s, and $g_r$ is their mean gradient |
# | sent by a rank in a ring | $2\frac{R-1}{R}\,s$ | all-reduce; a reduce-scatter or an all-gather sends half |
# | ring all-reduce | $2(R-1)(\alpha + \frac{s}{R\,B})$ | a link of bandwidth $B$ |
# | rank 0 adds up alone | $2(R-1)(\alpha + \frac{s}{B})$ | a link of bandwidth $B$ |
# | bucket arrives | $\max(\text{full},\ \text{link is free}) + \text{sending}$ | buckets in the order of sending |
# | tokens that hide the traffic | $\frac{P}{B}\frac{R-1}{R}$ | a GPU of rate $P$, gradients of 2 bytes |
# | steps with a late rank | $1 - (1-q)^R$ | each of the $R$ ranks is late with probability $q$ |
# | bytes kept per parameter | $16$; $4 + \frac{12}{R}$; $2 + \frac{14}{R}$; $\frac{16}{R}$ | DDP and ZeRO 1, 2, 3 on $R$ ranks, Adam in mixed precision |
# | sent by a rank per step | $2\,\frac{R-1}{R}\,s$; ZeRO 3: $3\,\frac{R-1}{R}\,s$ | DDP, ZeRO 1 and ZeRO 2; ZeRO 3 on $R$ ranks |
