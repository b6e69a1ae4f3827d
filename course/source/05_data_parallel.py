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
#     needs: ["00"]
#     objectives:
#       - write|wrote a sum round a ring of real processes
#       - train|trained one model on four processes, equal to one process but for rounding
#       - predict|predicted the time of a data-parallel step from a link's two numbers
#       - say|said from which batch on a link no longer limits a training run, and what each process must keep
#       - watch|watched a training run survive the death of one of its processes
# ---

# %% [markdown] tags=["objectives"]
# # Data parallel
#
# Eight H100 train a language model of 7 billion parameters together. Each gets its own 8,192 tokens in every step. Then they
# average their gradients, and all make the same update. An H100 does about 400 TFLOP/s in training (published for 16,384 of them:
# *The Llama 3 Herd of Models*, 2024, table 4). We take that as its rate while it computes; the waiting of that run is in it, so this
# favours the link. Each of the eight has a port of 100 Gbit/s Ethernet.
#
# **The bet:** how many times as many tokens a second do the eight learn from as one alone? You compute
# the answer in Part 5. (Until then, assume that the model fits into a GPU.)
#
# On the way you build it all, with real processes on your CPU (or on GPUs, where there is one for each). They have no slow network
# between them, so we make one: a link that sleeps as long as a real one would take. Such times are called *simulated*: processes,
# messages and clock are real.

# %%
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

import helpers
from helpers import exercises, parallel, plotting, units
from helpers.links import PUBLISHED_LINKS, Link, Recorder, joined
from helpers.ranks import RankError, Ranks, torchrun
from helpers.studies import data_parallel, parallel_plans

ranks = Ranks(4)
device = ranks.device

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 8]
bet = helpers.predict("Eight H100 on 100 Gbit/s Ethernet: how many times as fast as one?", "x")
bet

# %% [markdown] tags=["slide"] minutes=2 headline="Ranks share nothing, so they make the same calls"
# ## Part 1: processes that agree
#
# - A [rank](glossary.md#rank): a process with a number, 0 to $p - 1$
# - A [collective](glossary.md#collective): a call that all ranks make together
#
# `ranks.run(function)` calls `function(rank, world_size)` on four processes, the [process group](glossary.md#process-group), and
# returns the list of what they returned. No variable is shared: a rank must send whatever another rank needs. The most used is the
# [all-reduce](glossary.md#all-reduce): every rank brings a tensor, and every rank ends with the sum.


# %% tags=["slide-code"] mark="dist.all_reduce"
def share_your_number(rank, _world_size):
    number = torch.tensor([float(rank)], device=device)
    dist.all_reduce(number)
    return number.item()


ranks.run(share_your_number, timeout_s=60)

# %% [markdown]
# Every rank must make the same calls, in the same order, with tensors of the same shape. What happens
# when one rank skips the call?


# %%
def rank_2_forgets(rank, _world_size):
    if rank != 2:
        dist.all_reduce(torch.zeros(1, device=device))


try:
    ranks.run(rank_2_forgets, timeout_s=3)
except RankError as error:
    print("ended", "at the limit of 3 seconds" if error.timed_out else "before the limit")
    print({f"rank {state.rank}": state.status for state in error.states})

# %% [markdown]
# Three ranks wait inside the all-reduce. Their code is right: rank 2 never made the call. It looks like a slow
# network. So where a rank might wait for ever we give a limit, `timeout_s`.

# %% [markdown]
# ## Part 2: the ring
#
# Each rank sends only to its right neighbour: first the sums grow on their way round, then they are handed out.
#
# Cut the tensor into $p$ chunks. In each of $p - 1$ steps every rank sends one chunk to the right, and adds the chunk that comes
# from the left to its own copy; then each chunk is complete on one rank. In $p - 1$ more steps the complete chunks travel round.
# This is the [ring all-reduce](glossary.md#ring-all-reduce) (Patarasuk and Yuan, *Journal of Parallel and Distributed Computing*
# 69, 2009).

# %% tags=["slide", "slide-output"] minutes=2 headline="In a ring each rank sends to its right neighbour alone" layout="steps"
frames = parallel.ring_frames(4)
said = [f"step {step}: the sums grow" for step in range(3)]
said += [f"step {step}: the sums are handed out" for step in range(3, 6)]
plotting.play(
    [parallel_plans.draw_ring(frame.chunks, moves=frame.moves) for frame in frames],
    title="A ring all-reduce on 4 ranks",
    captions=[*said, "after step 5: all ranks hold all sums"],
    stills=(0, 1, 3, 6),
    alt="Four ranks, four chunks: sums grow round the ring for three steps, then go to all.",
)

# %% [markdown]
# A rank needs two things: to send to the right while it receives from the left, and a loop over the steps.


# %%
def exchange_round(rank, world_size):
    def exchange(outgoing, like):
        arrived = torch.empty_like(like)
        send = dist.P2POp(dist.isend, outgoing, (rank + 1) % world_size)
        receive = dist.P2POp(dist.irecv, arrived, (rank - 1) % world_size)
        for request in dist.batch_isend_irecv([send, receive]):
            request.wait()
        return arrived

    return exchange


# %%
def first_half(rank, world_size, step_of_ring, brought):
    chunks = [chunk.clone() for chunk in brought[rank].to(device).tensor_split(world_size)]
    for step in range(world_size - 1):
        step_of_ring(chunks, rank, step, exchange_round(rank, world_size))
    return chunks[rank].tolist()  # where this chunk is complete


# %%
brought = torch.tensor([[place * 10.0**rank for place in (1, 2, 3, 4)] for rank in range(4)])
tens = torch.arange(40.0).reshape(4, 10)  # ten numbers a rank: chunks of 3, 3, 2 and 2


# %% [markdown]
# Now you. Follow chunk 0 in the player: it starts at rank 1 and has all terms when it reaches rank 0. In the first half a rank
# always passes on the chunk that it has just added to.


# %% tags=["yours"] yours="ring_step"
def ring_step(chunks, rank, step, exchange):
    """Do step 0, 1, ... of the first half: send one chunk on, add what comes to another.

    In step 0 rank r sends chunk r - 1. ``exchange(outgoing, like)`` sends ``outgoing`` to the
    right and returns what came from the left; ``like`` is any tensor as long as that.
    """
    outgoing, incoming = (rank - step - 1) % len(chunks), (rank - step - 2) % len(chunks)
    chunks[incoming] += exchange(chunks[outgoing], chunks[incoming])


# %% checks="ring_step"
def sums(function, numbers):
    return ranks.run(first_half, function, numbers, timeout_s=60)


alone, stuck = ((10,), (200,), (3000,), (4,)), ((1,), (20,), (300,), (4000,))
mistakes = {
    alone: "That is what rank r + 1 brought: what arrives must be added",
    stuck: "Your own chunk r was never added to: in step 0 send chunk r - 1, "
    "then each time the chunk that you have just added to",
}
asked = exercises.Checks("One step of the ring", ring_step)
for goal, numbers in (("equal chunks", brought), ("unequal chunks", tens)):
    expected = numbers.sum(0).tensor_split(4)
    asked.returns(goal, (numbers,), expected=expected, call=sums, mistakes=mistakes)
ring_step = asked.settle()


# %% wrong="ring_step" says="what arrives must be added"
def ring_step(chunks, rank, step, exchange):
    outgoing, incoming = (rank - step - 1) % len(chunks), (rank - step - 2) % len(chunks)
    chunks[incoming] = exchange(chunks[outgoing], chunks[incoming])


# %% wrong="ring_step" says="just added to"
def ring_step(chunks, rank, _step, exchange):
    chunks[(rank - 2) % len(chunks)] += exchange(chunks[rank - 1], chunks[rank - 2])


# %% wrong="ring_step" says="in step 0 send chunk r - 1"
def ring_step(chunks, rank, step, exchange):
    outgoing, incoming = (rank - step) % len(chunks), (rank - step - 1) % len(chunks)
    chunks[incoming] += exchange(chunks[outgoing], chunks[incoming])


# %% [markdown]
# The second half is the same walk without the addition. Together:


# %%
def ring_all_reduce(rank, world_size, brought, ring_step):
    chunks = [chunk.clone() for chunk in brought[rank].to(device).tensor_split(world_size)]
    exchange = exchange_round(rank, world_size)
    for step in range(world_size - 1):  # reduce-scatter
        ring_step(chunks, rank, step, exchange)
    for step in range(world_size - 1):  # all-gather
        incoming = (rank - step - 1) % world_size
        chunks[incoming] = exchange(chunks[(incoming + 1) % world_size], chunks[incoming])
    return torch.cat(chunks).tolist()


print("sum of all rows", tens.sum(0).tolist())
for rank, summed in enumerate(ranks.run(ring_all_reduce, tens, ring_step)):
    print(f"rank {rank} ends    ", summed)

# %% [markdown]
# The first half is called [reduce-scatter](glossary.md#reduce-scatter), the second [all-gather](glossary.md#all-gather).
#
# A gradient of 51,200 numbers goes round a ring of 4 ranks, then round one of 64. How does that change what each rank sends?

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 100]
larger_ring = helpers.predict(
    "64 ranks instead of 4: how many times the bytes does each rank send?", "x"
)
larger_ring

# %% tags=["run"]
sent_bytes = {}
for world_size in (4, 64):
    planned = parallel.collective("all_reduce", "ring", world_size=world_size, length=51_200)
    sent_bytes[world_size] = planned.ranks()[0].sent_bytes

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Sixteen times the ranks, hardly more bytes a rank"
larger_ring.reveal(modelled=(63 / 64) / (3 / 4), counted=sent_bytes[64] / sent_bytes[4])

# %% [markdown] tags=["explain"]
# A rank sends $2\,\frac{p-1}{p}\,n$ of a buffer of $n$ bytes: less than $2n$, however many ranks there are. That is why rings
# scale. In the obvious alternative, `gather_broadcast`, every rank sends to rank 0, which answers. Its port carries
# $(p-1)\,n$ bytes each way.
#
# The price is many messages. A message of $n$ bytes takes $\alpha + n/W$: $\alpha$ is the link's [latency](glossary.md#latency),
# $W$ its [bandwidth](glossary.md#bandwidth). A ring has $2(p-1)$ of them, of $n/p$ bytes each, one after the other.


# %%
def ring_s(size_bytes, world_size, link):
    message_s = link.latency_s + size_bytes / world_size / link.bandwidth_bytes_per_s
    return 2 * (world_size - 1) * message_s


slow = Link(bandwidth_bytes_per_s=10e6, latency_s=5e-3)


# %% [markdown]
# Does the clock agree? `execute` sends the real messages of a ring and sleeps until this link would have carried each. Starting
# the ranks makes its times somewhat longer.


# %% tags=["nbval-ignore-output"]
def all_reduce_over(_rank, _world_size, planned, link):
    data_parallel.execute(planned, torch.ones(planned.length, device=device), link=link)


planned = {
    name: parallel.collective("all_reduce", name, world_size=4, length=50_000)
    for name in ("ring", "gather_broadcast")
}
programs = {
    name: lambda plan=plan: ranks.run(all_reduce_over, plan, slow)
    for name, plan in planned.items()
}
both = helpers.compare(programs, budget_s=3, precision=0.1)
modelled_s = {
    "ring": ring_s(200_000, 4, slow),
    "gather_broadcast": 6 * slow.transfer_s(200_000),
}
print("modelled: ", {name: units.text(time_s, "s") for name, time_s in modelled_s.items()})
print("simulated:", {name: units.text(both.candidate(name).median_s, "s") for name in planned})

# %%
sentence = "over this link gathering at rank 0 takes longer than the ring"
both.claim(sentence, "gather_broadcast", at_least=1.5, simulated=True)

# %% [markdown] tags=["slide"] minutes=2 headline="The mean of a batch is a weighted mean of its parts"
# ## Part 3: one batch on four ranks
#
# $$g = \frac1B \sum_{i=1}^{B} g_i = \sum_{r=0}^{p-1} \frac{B_r}{B} \Big( \frac{1}{B_r} \sum_{i \in r} g_i \Big)$$
#
# The gradient of a batch is a mean. The bracket is what rank $r$ computes alone: the mean over its own $B_r$ rows.
#
# If all ranks begin with the same weights and use the same $g$, they make the same update, and the weights stay equal without
# being sent again. Here is a model, a batch of 48 rows, and one process that trains on it.


# %%
def make_model():
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5)).double().to(device)


generator = torch.Generator().manual_seed(0)
inputs, targets = (torch.randn(48, width, generator=generator).double() for width in (20, 5))


def train_alone(rate=0.1, row_weights=1.0):
    torch.manual_seed(0)
    model, x, y = make_model(), inputs.to(device), targets.to(device)
    for _ in range(20):
        model.zero_grad()
        (row_weights * (model(x) - y).square()).mean().backward()
        for weight in model.parameters():
            weight.data -= rate * weight.grad
    return nn.functional.mse_loss(model(x), y).item()


print(f"one process, 20 steps: loss {train_alone():.6f}")

# %% [markdown]
# Shards that you split yourself may be unequal: say 24, 12, 8 and 4 rows. (`DistributedSampler` repeats rows instead, and those
# count twice.) Suppose each rank takes the mean over its own rows, and then the ranks take the mean of their four means.

# %% tags=["predict"]
overcounted = helpers.predict(
    "How many times too much does a row of the rank with 4 rows count?", "x"
)
overcounted

# %% tags=["run"]
uneven = (24, 12, 8, 4)
row_losses = torch.ones(48, requires_grad=True)
torch.stack([shard.mean() for shard in row_losses.split(uneven)]).mean().backward()
counts = row_losses.grad * 48

# %% tags=["look"]
overcounted.reveal(modelled=(1 / 4 / 4) / (1 / 48), counted=counts[-1].item())

# %% [markdown] tags=["explain"]
# A mean of means is not the mean, and no rank notices: all agree with one another. Now write the training loop of a rank. You have
# `dist.broadcast(tensor, src=0)`, which gives every rank rank 0's values, and `dist.all_reduce(tensor)`, which sums.


# %%
def start(rank, sizes):
    torch.manual_seed(rank)  # every rank draws weights of its own
    x, y = (rows.split(sizes)[rank].to(device) for rows in (inputs, targets))
    return make_model(), x, y


# %%
def losses(function, sizes):
    trained = ranks.run(function, sizes, timeout_s=60)
    return [nn.functional.mse_loss(model.cpu()(inputs), targets).item() for model in trained]


def likeness(function, sizes):
    found = losses(function, sizes)
    return (
        "alike" if max(found) - min(found) < 1e-9 else "ranks that end with different losses"
    )


# %% tags=["yours"] yours="train_rank"
def train_rank(rank, world_size, sizes):
    """Return the model after 20 steps of plain SGD, rate 0.1, on the rows of all ranks.

    ``start(rank, sizes)`` gives a model and this rank's ``sizes[rank]`` rows. All ranks
    begin with rank 0's weights, and use the gradient of the mean over all rows.
    """
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
equal, wanted = (12, 12, 12, 12), [train_alone()] * 4
summed = {
    (train_alone(rate=0.4),) * 4: "Four times the step: all_reduce sums, a mean is wanted"
}
of_means = train_alone(row_weights=counts[:, None].double().to(device))
unweighted = {(of_means,) * 4: "A mean of means: a row must count 1/48 on every rank"}
asked = exercises.Checks("Training on four ranks", train_rank)
asked.returns("the ranks stay alike", (equal,), expected="alike", call=likeness)
goal = "equal shards end where one process does"
asked.returns(goal, (equal,), expected=wanted, call=losses, mistakes=summed)
goal = "unequal shards do so too"
asked.returns(goal, (uneven,), expected=wanted, call=losses, mistakes=unweighted)
train_rank = asked.settle()


# %% wrong="train_rank" says="different losses"
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


# %% wrong="train_rank" says="Four times the step"
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


# %% wrong="train_rank" says="A mean of means"
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


# %% [markdown]
# The ranks agree with one another, because they make the same updates. Another split of the rows changes the last digits only,
# because floating-point addition depends on the order.


# %% tags=["nbval-ignore-output"]
def weights(sizes):
    model = ranks.run(train_rank, sizes, timeout_s=60)[0]
    return torch.cat([each.detach().cpu().flatten() for each in model.parameters()])


apart = (weights(uneven) - weights(equal)).abs().max().item()
assert apart < 1e-12
print(f"unequal and equal shards: the largest difference of a weight is about {apart:.0e}")
print(f"(0.1 + 0.2) + 0.3 = {(0.1 + 0.2) + 0.3}, 0.1 + (0.2 + 0.3) = {0.1 + (0.2 + 0.3)}")

# %% [markdown] tags=["slide"] minutes=1 headline="Batch norm sees the rows of one rank alone"
# ### Batch norm: whose batch?
#
# The rank's, so the result depends on the number of ranks; `nn.SyncBatchNorm` takes mean and variance over all ranks' rows, for one
# more collective a layer, forward and backward.
#
# Layer norm looks at one row.

# %% [markdown] tags=["slide"] minutes=2 headline="Send the last layer's gradient first"
# ## Part 4: send while you compute
#
# - The gradient of the last layer is ready first
# - DDP fills [buckets](glossary.md#bucket), last layer first, and sends each as soon as it is full
# - What is sent meanwhile is hidden
#
# [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html) is your
# loop with this in it: it broadcasts rank 0's weights when it wraps the model, and averages buckets while the backward pass still
# runs. It takes the plain mean over the ranks: with unequal shards, scale rank $r$'s loss by $p\,B_r/B$.
#
# Take four layers that need 10 ms forward and 40 ms backward each, with 100 kB of gradient. A bucket is a layer, so the buckets
# are ready after 80, 120, 160 and 200 ms. The link carries one at a time: a bucket waits for the link, or the link for a bucket.


# %% tags=["yours"] yours="bucket_ends"
def bucket_ends(ready_s, all_reduce_s):
    """Return the moments, in seconds, at which the buckets' all-reduces end, as a list.

    ``ready_s`` has the moment at which each bucket is full, in the order of sending,
    ``all_reduce_s`` how long each is on the link.
    """
    ends, free_s = [], 0.0
    for ready, takes in zip(ready_s, all_reduce_s, strict=True):
        free_s = max(free_s, ready) + takes
        ends.append(free_s)
    return ends


# %% checks="bucket_ends"
asked = exercises.Checks("When buckets arrive", bucket_ends)
once = {(2.0, 3.0, 4.0): "The link carries one bucket after the other"}
asked.returns("a bucket waits", ([1, 1, 1], [1, 2, 3]), expected=[2, 4, 7], mistakes=once)
early = {(2.0, 3.0): "The second ends before it is ready: the link waits for it"}
asked.returns("the link waits", ([1, 5], [1, 1]), expected=[2, 6], mistakes=early)
bucket_ends = asked.settle()


# %% wrong="bucket_ends" says="one bucket after the other"
def bucket_ends(ready_s, all_reduce_s):
    return [ready + takes for ready, takes in zip(ready_s, all_reduce_s, strict=True)]


# %% wrong="bucket_ends" says="the link waits for it"
def bucket_ends(ready_s, all_reduce_s):
    ends, now = [], ready_s[0]
    for takes in all_reduce_s:
        now += takes
        ends.append(now)
    return ends


# %% [markdown]
# Four ranks, a link of 10 MB/s with 2 ms of latency. How long is the step, from the first forward to the last gradient?

# %% tags=["predict"]
step_in_buckets = helpers.predict(
    "How long does a step take with four buckets of 100 kB?", "s"
)
step_in_buckets


# %% tags=["run"]
near = Link(bandwidth_bytes_per_s=10e6, latency_s=2e-3)
buckets = {
    4: ([0.08, 0.12, 0.16, 0.2], 100_000),
    2: ([0.12, 0.2], 200_000),
    1: ([0.2], 400_000),
}
modelled = {
    count: bucket_ends(ready_s, [ring_s(size_bytes, 4, near)] * count)[-1]
    for count, (ready_s, size_bytes) in buckets.items()
}

# %% [markdown]
# The check is PyTorch's own DDP. A `SleepingLayer` sleeps instead of computing. `slow_link` makes DDP's real sums and sleeps until
# the link would have carried them; the `Recorder` notes when. `step_times` starts all ranks together, and `fastest_step_s` takes
# the slowest rank's time of the fastest step.


# %% tags=["run"]
def ddp_steps(rank, _world_size, bucket_bytes, link):
    recorder = Recorder()
    how = {"parameters": 25_000, "recorder": recorder, "lane": f"rank {rank} device"}
    layers = (data_parallel.SleepingLayer(10e-3, 40e-3, **how) for _ in range(4))
    model = nn.Sequential(*layers).to(device)
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_bytes / 2**20)
    data_parallel.slow_link(ddp, link, recorder=recorder, lane=f"rank {rank} link")

    def step():
        recorder.activities.clear()
        ddp(torch.ones(2, device=device)).sum().backward()

    return data_parallel.step_times(step, repeats=2, warm_ups=1), recorder.activities


# %% tags=["run"]
slept, simulated = {}, {}
for count, (_, size_bytes) in buckets.items():
    slept[count] = ranks.run(ddp_steps, size_bytes, near)
    simulated[count] = data_parallel.fastest_step_s([times for times, _ in slept[count]])

# %% tags=["look", "nbval-ignore-output"]
step_in_buckets.reveal(modelled=modelled[4], simulated=simulated[4])

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Only the last bucket is exposed"
timeline = joined(each for _, activities in slept[4][:2] for each in activities)
drawn = plotting.gantt(
    timeline.activities, title="Two of the four ranks: only the last bucket is exposed"
)
alt = "Lanes of device and link of two ranks: buckets travel while the device goes backward."
plotting.show(drawn, alt=alt)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Fewer buckets leave more of the sending exposed"
beyond = {
    kind: [times[count] - 0.2 for count in buckets]
    for kind, times in {"modelled": modelled, "simulated": simulated}.items()
}
drawn = plotting.draw_three(
    [str(count) for count in buckets],
    beyond,
    unit="s",
    title="A step beyond its 200 ms of computing",
    xlabel="buckets",
)
alt = "Bars of modelled and simulated time beyond 200 ms for 4, 2 and 1 buckets; it grows."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# Grey: a bucket is ready and the link is free, but the processes are still making the real sum. The model leaves that out.
#
# The last bucket cannot be hidden: it is ready when there is nothing left to compute. Smaller buckets shorten this last wait, but
# every extra bucket costs $2(p-1)$ more latencies. (On a GPU an all-reduce also takes
# [multiprocessors](glossary.md#multiprocessor) and memory bandwidth from the backward pass, so what is hidden is not free.) At 10
# ms of latency two buckets are best, at 20 ms one is:


# %%
def draw_step(bucket_kb, latency_ms):
    link = Link(10e6, latency_ms / 1000)
    layers = [parallel.LayerCost(10e-3, 40e-3, 100_000)] * 4
    step = parallel.ddp_step(layers, world_size=4, link=link, bucket_bytes=bucket_kb * 1000)
    ended = units.text(step.step_s, "s")
    title = f"{bucket_kb} kB a bucket, {latency_ms} ms: {ended} (modelled)"
    return plotting.gantt(step.activities(), title=title, until=0.65)


helpers.interactive_figure(
    draw_step,
    {"bucket_kb": [100, 200, 400], "latency_ms": [0, 2, 5, 10, 20]},
    views=[{"bucket_kb": size_kb, "latency_ms": 10} for size_kb in (100, 200, 400)],
    alt=lambda bucket_kb, latency_ms: (
        f"A modelled step, buckets of {bucket_kb} kB, {latency_ms} ms of latency."
    ),
)

# %% [markdown]
# ### Accumulate, and send once
#
# A batch too large for a rank's memory is cut into micro-batches: several backward passes, one update
# ([gradient accumulation](glossary.md#gradient-accumulation)). One gradient must be sent. What does plain DDP send?

# %% tags=["predict"]
sent_in_vain = helpers.predict(
    "4 micro-batches, plain backward: how many times the bytes needed?", "x"
)
sent_in_vain


# %% tags=["run"]
def accumulate(_rank, _world_size, sends_each_time):
    ddp = nn.parallel.DistributedDataParallel(make_model())
    parts = inputs.to(device).tensor_split(4)
    for _ in range(2):  # DDP arranges its buckets anew in its second step
        ddp(parts[0]).sum().backward()
    with parallel.count_collectives() as counter:
        for place, part in enumerate(parts):
            with nullcontext() if sends_each_time or place == 3 else ddp.no_sync():
                (ddp(part).sum() / 4).backward()  # the four gradients add up
    return counter.counts.size_bytes("all_reduce")


plain, careful = (
    ranks.run(accumulate, sends_each_time)[0] for sends_each_time in (True, False)
)

# %% tags=["look"]
sent_in_vain.reveal(modelled=4, counted=plain / careful)
print(f"plain: {plain:,} bytes; with no_sync round all but the last: {careful:,} bytes")

# %% [markdown] tags=["explain"]
# DDP sends in each backward pass. The result is right: the first gradient is already equal on all ranks, and averaging it again
# leaves it as it is.

# %% [markdown] tags=["slide"] minutes=2 headline="More tokens lengthen the computing, not the sending"
# ## Part 5: when the link is the limit
#
# - A token costs $6P$ [FLOP](glossary.md#flop): $2P$ forward, $4P$ backward, for $P$ parameters (Kaplan and others, 2020)
# - A gradient of $2P$ bytes (bfloat16) goes round the ring in every step
#
# More tokens lengthen the computing, not the sending; we look for the number at which the two are equal.
#
# First a question: the same link and GPUs, and a model ten times as large.

# %% tags=["predict"]
ten_times = helpers.predict(
    "A model ten times as large: how many times as many tokens match the link?", "x"
)
ten_times


# %% tags=["yours"] yours="tokens_to_match"
def tokens_to_match(world_size, flops_per_s, bytes_per_s):
    """Return the tokens a rank needs for its computing to take as long as the all-reduce.

    6 FLOP a token and parameter, 2 bytes of gradient a parameter, a ring without latency.
    """
    sent_bytes = 2 * (world_size - 1) / world_size * 2  # a parameter
    return sent_bytes / bytes_per_s * flops_per_s / 6


# %% checks="tokens_to_match"
asked = exercises.Checks("Tokens that match the link", tokens_to_match)
why = {
    1200.0: "(p - 1) / p is missing: a rank does not send the chunk that it ends with",
    600.0: "All of it once? A ring sends 2 (p - 1) / p of it",
    450.0: "Half of it: a ring has two halves, and a gradient in bfloat16 two bytes",
    1800.0: "A gradient in bfloat16 has 2 bytes, not 4",
    2700.0: "Forward and backward together: 6 FLOP, not 2",
}
asked.returns("four ranks", (4, 18e12, 1e10), expected=900.0, mistakes=why)
asked.returns("two ranks", (2, 6e12, 1e9), expected=2000.0)
tokens_to_match = asked.settle()


# %% wrong="tokens_to_match" says="Forward and backward together"
def tokens_to_match(world_size, flops_per_s, bytes_per_s):
    return 2 * (world_size - 1) / world_size * 2 / bytes_per_s * flops_per_s / 2


# %% wrong="tokens_to_match" says="(p - 1) / p is missing"
def tokens_to_match(world_size, flops_per_s, bytes_per_s):
    return 2 * 2 / bytes_per_s * flops_per_s / 6


# %% wrong="tokens_to_match" says="a ring has two halves"
def tokens_to_match(world_size, flops_per_s, bytes_per_s):
    return 2 * (world_size - 1) / world_size / bytes_per_s * flops_per_s / 6


# %% tags=["run"]
def step_of(parameters, tokens, link, gradient_bytes=2, **how):
    """Return DDP's modelled step on 8 ranks: 32 equal layers, each of them a bucket."""
    layer_s = 6 * parameters * tokens / 400e12 / 32
    layer = parallel.LayerCost(layer_s / 3, 2 * layer_s / 3, gradient_bytes * parameters // 32)
    return parallel.ddp_step([layer] * 32, world_size=8, link=link, bucket_bytes=1, **how)


ethernet = PUBLISHED_LINKS["Ethernet, 100 Gbit/s"].link
tokens = round(tokens_to_match(8, 400e12, ethernet.bandwidth_bytes_per_s))
shares = [
    step.link_s / step.compute_s
    for step in (step_of(P, tokens, ethernet) for P in (7e9, 70e9))
]

# %% tags=["look"]
ten_times.reveal(modelled=shares[1] / shares[0])

# %% [markdown] tags=["explain"]
# $P$ cancels: ten times the parameters are ten times the bytes and ten times the arithmetic. What counts is a rank's tokens, its
# FLOP/s, and the link's bytes a second. Now the bet, with DDP and 32 equal layers.


# %% tags=["look"]
def times_one(tokens, link, passes=1, **how):
    """Return how many times as many tokens a second eight GPUs learn from as one alone."""
    step = step_of(7e9, tokens / passes, link, micro_batches=passes, **how)
    return 8 * step.compute_s / step.step_s


# %% tags=["look", "slide", "slide-output"] minutes=1 headline="On this Ethernet most of the eight wait for the link"
bet.reveal(modelled=times_one(8192, ethernet))

# %% [markdown] tags=["explain"]
# And the links that one can buy, with the same eight GPUs on each. Published rates, one direction; programs reach less.

# %%
rows = {}
for name, published in PUBLISHED_LINKS.items():
    bytes_per_s = published.link.bandwidth_bytes_per_s
    rows[name] = {
        "GB/s": f"{bytes_per_s / 1e9:.1f}",
        "tokens to match": f"{tokens_to_match(8, 400e12, bytes_per_s):,.0f}",
        "all-reduce s": f"{ring_s(14e9, 8, published.link):.2f}",
        "times one GPU, DDP": f"{times_one(8192, published.link):.1f}",
        "source": published.source,
    }
pd.DataFrame(rows).T

# %%
tokens = [2**power for power in range(9, 17)]
at_once, accumulated = times_one(32_768, ethernet), times_one(32_768, ethernet, passes=4)
print(f"32,768 tokens over Ethernet: {at_once:.1f} times one GPU")
print(f"the same in 4 passes of 8,192: {accumulated:.1f} times")
in_float32 = times_one(8192, ethernet, gradient_bytes=4)
print(f"the bet with gradients of 4 bytes: {in_float32:.2f} times")

# %% tags=["slide", "slide-output"] minutes=2 headline="The link decides, until the batch is large enough"
drawn, axes = plotting.figure(title="Eight H100, 7 billion parameters: the link decides")
for name in ("NVLink 4 (of an H100)", "PCI Express 4.0 x16", "Ethernet, 100 Gbit/s"):
    link = PUBLISHED_LINKS[name].link
    axes.plot(tokens, [times_one(count, link) for count in tokens], label=name)
in_passes = [times_one(count, ethernet, passes=count // 8192) for count in tokens[4:]]
colour = axes.lines[-1].get_color()
axes.plot(tokens[4:], in_passes, "o--", color=colour, label="Ethernet, passes of 8,192")
axes.axvline(8192, color="#777777", linestyle=":")
axes.text(7900, 0.15, "the bet", ha="right")
axes.axhline(1, color="#777777", linestyle="--")
axes.text(65_536, 1.15, "one GPU alone", ha="right")
axes.set_xscale("log", base=2)
axes.set_xticks(tokens, [f"{count:,}" for count in tokens])
axes.set(xlabel="tokens a GPU in a step", ylabel="times one GPU", ylim=(0, 8.4))
axes.legend(fontsize=10)
alt = "Times one GPU against tokens: NVLink nears 8 from 1,024 on, Ethernet from 32,768 on."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# In the bet all eight GPUs wait during most of the step; up to 2,048 tokens over Ethernet they are slower than one. On PCI Express
# 4.0 a rank has more tokens than match (8,192 against 7,406), and the eight still lose a fifth: under DDP only the backward pass, two
# thirds of the computing, can hide an all-reduce, so hiding takes about 1.5 times the tokens. (Each GPU has a port of its own.)
#
# Gradients of 2 bytes are one recipe. Under `torch.autocast` they stay float32, 4 bytes, and twice as much is sent.
#
# If the batch grows with the ranks, each rank keeps its tokens ([weak scaling](glossary.md#weak-scaling)). If the batch stays, each
# rank gets fewer ([strong scaling](glossary.md#strong-scaling)). Accumulating (broken line) helps less than more tokens at once:
# only the last backward pass hides its sending.
#
# ### Must every rank keep everything?
#
# Under DDP each rank keeps all weights, all gradients and all [optimizer state](glossary.md#optimizer-state). In this recipe with
# Adam a parameter has 2 bytes of weight, 2 of gradient, and 12 of state: a float32 copy and two moments of 4 bytes each.

# %% tags=["run"]
stages = {"DDP": (1, 1, 1), "ZeRO 1": (1, 1, 8), "ZeRO 2": (1, 8, 8), "ZeRO 3": (8, 8, 8)}
kinds = {"weights": 2, "gradients": 2, "optimizer state": 12}
kept = {
    kind: [7e9 * size / shared[place] for shared in stages.values()]
    for place, (kind, size) in enumerate(kinds.items())
}

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="What each rank keeps can be divided as well"
title = "7 billion parameters on 8 GPUs, before activations"
drawn = plotting.draw_layers(list(stages), kept, unit="B", title=title)
drawn.axes[0].axvline(80e9, color="#555555", linestyle="--")
drawn.axes[0].text(81e9, 2.5, "an H100: 80 GB", fontsize=11)
alt = "Stacked bars of weights, gradients and state for DDP and ZeRO 1 to 3."
plotting.show(drawn, alt=alt)

# %% [markdown] tags=["explain"]
# An H100 has 80 GB, so the bet's eight GPUs cannot even begin. [Sharding](glossary.md#sharding) keeps one copy among all ranks,
# $1/p$ on each. ZeRO (Rajbhandari and others, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, 2020) shards
# the optimizer state first, then the gradients, then the weights; the third is PyTorch's `fully_shard`. What does it cost on the
# link? Count on real ranks:


# %%
def traffic(_rank, world_size, sharded):
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4))).to(device)
    if sharded:
        mesh = dist.device_mesh.init_device_mesh(device, (world_size,))
        for part in [*model, model]:
            dist.fsdp.fully_shard(part, mesh=mesh)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    for _ in range(3):
        with parallel.count_collectives() as counter:
            model(torch.ones(8, 64, device=device)).sum().backward()
    return counter.counts.collectives


# %%
whole_bytes = 4 * 4 * 64 * 64
for name, sharded in {"DDP": False, "fully_shard": True}.items():
    for each in ranks.run(traffic, sharded)[0]:
        halves = each.size_bytes / whole_bytes * (1 + (each.collective == "all_reduce"))
        print(f"{name:11}  {each.calls} x {each.collective:14}  ring halves: {halves:.0f}")

# %% [markdown] tags=["explain"]
# An all-reduce is a reduce-scatter and an all-gather: two halves of the ring. ZeRO 1 and 2 use the halves separately:
# reduce-scatter gives each rank the summed gradient of its part; it updates that part; all-gather hands out the new weights. The
# traffic stays the same, but in our schedule the second half, after the update, hides behind nothing. What becomes of the bet?


# %%
def half_ring_s(world_size, size_bytes, link):
    return ring_s(size_bytes, world_size, link) / 2


for name, published in PUBLISHED_LINKS.items():
    scatter = step_of(7e9, 8192, published.link, all_reduce_s=half_ring_s)
    step_s = scatter.step_s + half_ring_s(8, 14e9, published.link)
    ddp, zero = times_one(8192, published.link), 8 * scatter.compute_s / step_s
    print(f"{name:21} times one GPU: {ddp:.2f} with DDP, {zero:.2f} with ZeRO 1")

# %% [markdown] tags=["explain"]
# On Ethernet the bet's number stands: the link is busy from the first bucket to the end in either case. And now the eight can
# begin, with 38.5 GB each before activations. Where DDP hides its
# sending, ZeRO 1 is slower in this schedule; real systems hide the gather behind the next forward pass.
#
# `fully_shard` gathers the weights for the forward pass, forgets them, gathers them again for the backward pass, and scatters the
# gradients: three halves, 1.5 times the bytes. Activations are not sharded; lesson 11 counts them, and
# [lesson 06](06_model_parallel.ipynb) cuts the model itself.

# %% [markdown] tags=["slide"] minutes=2 headline="With enough machines one always fails"
# ## Part 6: a script, and a rank that is killed
#
# - Start `torchrun` on every machine: there it is the agent
# - Agents number the ranks, start them, and watch them
# - With enough machines one always fails
#
# On 16,384 GPUs Meta counted 419 unexpected interruptions in 54 days (*The Llama 3 Herd of Models*, 2024). This is all that DDP
# asks of a script; [train_data_parallel.py](scripts/train_data_parallel.py) is the same with a checkpoint:
#
# ```python
# dist.init_process_group()
# torch.manual_seed(0)
# model = DistributedDataParallel(make_model())
# optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# sampler = DistributedSampler(dataset)                            # each rank its own rows; repeats some to make shards equal
# for epoch in range(epochs):
#     sampler.set_epoch(epoch)
#     for x, y in DataLoader(dataset, batch_size=32, sampler=sampler):
#         optimizer.zero_grad()
#         loss_function(model(x), y).backward()
#         optimizer.step()
# dist.destroy_process_group()
# ```
#
# ```
# torchrun --nnodes=2 --nproc-per-node=1 --max-restarts=3 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \
#     train_data_parallel.py --checkpoint run.pt
# ```
#
# (With GPUs a rank also calls `torch.cuda.set_device(LOCAL_RANK)`, and moves the model and each batch there.)
#
# When a rank dies, its neighbours stand in a collective that cannot succeed. The agent sees it, ends all ranks and, if restarts are
# allowed, starts them again. Each reads the last checkpoint (two machines: from a folder that both see): the step, the weights, the
# optimizer's momentum. We let rank 1 be killed right after step 6 of 12, with a checkpoint after every fourth.

# %%
script = Path("scripts/train_data_parallel.py")
with tempfile.TemporaryDirectory() as folder:
    whole = torchrun(
        script, nproc_per_node=2, args=["--checkpoint", f"{folder}/whole.pt"], timeout_s=110
    )
    killed = torchrun(
        script,
        nproc_per_node=2,
        max_restarts=1,
        args=["--checkpoint", f"{folder}/killed.pt", "--kill-after", "6"],
        timeout_s=110,
    )
told = {"undisturbed": whole.ranks[0].output, "killed": killed.ranks[0].output}

# %% tags=["slide", "slide-output"] minutes=1 headline="A killed rank costs the steps since the last save" numbers=[["killed +rank 0 of 2: steps (\\d+)", "is the step at which the killed run goes on"], ["at the end: (\\d+)", "set of parameters at the end of both runs"]]
ends = set()
for name, output in told.items():
    did, _, hashed = output.splitlines()[0].rpartition(", parameters ")
    ends.add(hashed)
    print(f"{name:11}  {did}")
print("different sets of parameters at the end:", len(ends))

# %% [markdown]
# Steps 5 and 6 were done twice, and both runs end with the same parameters, bit for bit: we count their hashes. For that a
# checkpoint must hold everything that the next step depends on.
#
# How often should one write? A checkpoint costs time $C$, a failure on average half an interval. If one failure comes every $M$ on
# average, an interval of $\sqrt{2CM}$ loses the least time (Young, *A first order approximation to the optimum checkpoint
# interval*, 1974). For Meta's failures, and a checkpoint that stops training for half a minute:

# %%
between_failures_min = 54 * 24 * 60 / 419
interval_min = (2 * 0.5 * between_failures_min) ** 0.5
print(f"a failure every {between_failures_min:.0f} minutes, a save every {interval_min:.0f}")
print(f"--max-restarts=3 would be spent in {3 * between_failures_min / 60:.1f} hours")
ranks.close()

# %% [markdown]
# [Exercises](exercises/05_data_parallel_exercises.ipynb): a ring's bytes, ZeRO's update on real ranks, your own machine's
# threshold.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. In a ring each rank sends less than twice the gradient.
# 2. Ranks equal one process when they begin alike and every row counts the same.
# 3. About $\frac{p-1}{p}\,\frac{R}{W}$ tokens a rank hide DDP's sending, with 2-byte gradients.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $p$ ranks, a buffer of $n$ bytes, a link of latency $\alpha$ and $W$ bytes a second, $R$ FLOP a second of a rank.
#
# | quantity | formula |
# |---|---|
# | a message | $\alpha + \frac{n}{W}$ |
# | ring all-reduce | $2(p-1)\,\alpha + 2\,\frac{p-1}{p}\,\frac{n}{W}$ |
# | reduce-scatter or all-gather by ring | half of that |
# | `gather_broadcast` at rank 0 | $2(p-1)(\alpha + \frac{n}{W})$ |
# | gradient of the batch | $\sum_r \frac{B_r}{B}\, g_r$, where $B_r$ of $B$ rows are rank $r$'s and $g_r$ is their mean gradient |
# | bucket $k$ starts on the link | the later of: its gradients are ready, bucket $k-1$ has ended |
# | tokens a rank needs to match its link | $\frac{2}{3}\,\frac{p-1}{p}\,\frac{R}{W}$ with 2 bytes of gradient a parameter; under DDP 1.5 times as many hide its all-reduce |
# | bytes a parameter, Adam in mixed precision | $2 + 2 + 12$; ZeRO 1: $4 + \frac{12}p$; ZeRO 2: $2 + \frac{14}p$; ZeRO 3: $\frac{16}p$ |
# | sent a step by a rank | DDP, ZeRO 1, ZeRO 2: $2\,\frac{p-1}{p}\,n$; ZeRO 3: $3\,\frac{p-1}{p}\,n$ |
# | interval of checkpoints | $\sqrt{2CM}$, for a save of $C$ seconds and $M$ seconds from failure to failure |
