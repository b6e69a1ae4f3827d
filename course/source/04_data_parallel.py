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
#     number: "04"
#     title: Data parallel
#     minutes: 90
#     needs: ["00"]
#     objectives:
#       - follow|followed an all-reduce round a ring of processes, step by step, with every byte counted
#       - predict|predicted the time of a data-parallel step from a link's two numbers
#       - see|saw how closely four ranks match one process, and four bugs that break the match
#       - count|counted what DDP, `fully_shard` and accumulated gradients send and keep
#       - watch|watched a training run go on after one of its processes was killed, with the same result
# ---

# %% [markdown] tags=["objectives"]
# # Data parallel
#
# Four devices share one batch: each, a [rank](glossary.md#rank), computes the gradient of a quarter of it, and then all must
# agree on the mean, by an [all-reduce](glossary.md#all-reduce). The arithmetic is a fourth for each. What is new is the agreement:
# bytes on a link, in every step. This lesson runs it with real processes that talk through `torch.distributed`, on your CPU; the
# same cells use a GPU for each process where there are four.
#
# Your machine has no slow network between its processes, so we make one: a link that takes as long as we say. Then a model of
# two numbers, [latency](glossary.md#latency) and [bandwidth](glossary.md#bandwidth), must predict what the clock shows. Such times
# are called *simulated*: processes, messages and clock are real, but the link (and from Part 6 on the device) sleeps. Clear the
# outputs before you begin (Edit, Clear Outputs of All Cells).

# %%
import re
import sys
import tempfile
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

import helpers
from helpers import parallel, plotting, results, units

ranks = parallel.Ranks(4)
device = ranks.device

# %% [markdown] tags=["slide"] minutes=2
# ## Part 1: ranks and collectives
#
# - A [rank](glossary.md#rank): a process with a number, 0 to $p - 1$
# - A [collective](glossary.md#collective): a call that all ranks make together
#
# `ranks.run(function)` calls `function(rank, world_size)` on each of four processes, the [process
# group](glossary.md#process-group), and returns a list: what rank 0 returned, what rank 1 returned, and so on. (An argument that a
# function does not use begins with an underscore.) The processes stay for the next cell. Each has memory of its own: no variable
# is shared, and what one is to know must be sent to it.
#
# The most used collective is the [all-reduce](glossary.md#all-reduce): every rank brings a tensor, and every rank ends with the
# sum. Here rank $r$ brings the number $r$.

# %% tags=["predict"]
held_after = helpers.predict("Which number does rank 3 hold after an all-reduce of the ranks' numbers?", "")
held_after


# %% tags=["run", "slide-code"]
def share_your_number(rank, _world_size):
    number = torch.tensor([float(rank)], device=device)
    dist.all_reduce(number)
    return number.item()


held = ranks.run(share_your_number, timeout_s=60)

# %% tags=["look"]
held_after.reveal(modelled=sum(range(4)), counted=held[3])
print(held)

# %% [markdown] tags=["explain"]
# All ranks hold the same. That takes all of them: a collective is a promise that every rank calls it, in the same order, with the
# same shapes. What happens when one does not? Every run here has a limit, `timeout_s`, so that no cell can hang.


# %% tags=["look"]
def rank_2_forgets(rank, _world_size):
    number = torch.tensor([float(rank)], device=device)
    if rank != 2:
        dist.all_reduce(number)
    return number.item()


try:
    ranks.run(rank_2_forgets, timeout_s=3)
except parallel.RankError as error:
    print("ended", "at the limit of 3 seconds" if error.timed_out else "before the limit")
    print({f"rank {state.rank}": state.status for state in error.states})

# %% [markdown] tags=["explain"]
# Three ranks wait for the fourth, which has gone home. The traceback points at the all-reduce where the three wait. That line is
# fine: the bug is that rank 2 never called it. It looks like a slow network. The pool has ended the ranks, and the next run starts
# them afresh.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 2: the ring
#
# Each rank sends only to its right neighbour. Round one adds up, round two hands out.
#
# Cut the tensor into $p$ chunks. In each of $p - 1$ steps every rank sends one chunk to the right and adds the one that comes
# from the left; then each chunk is complete on one rank. In another $p - 1$ steps the complete chunks travel round. This is the
# [ring all-reduce](glossary.md#ring-all-reduce) (Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of
# workstations*, 2009). You can write it with nothing but send and receive:


# %% tags=["run"]
def ring_all_reduce(rank, world_size, brought):
    chunks = [chunk.clone() for chunk in brought[rank].to(device).tensor_split(world_size)]
    right, left = (rank + 1) % world_size, (rank - 1) % world_size

    def send_and_receive(outgoing, incoming):
        arrived = torch.empty_like(chunks[incoming])
        both = [dist.P2POp(dist.isend, chunks[outgoing], right), dist.P2POp(dist.irecv, arrived, left)]
        for request in dist.batch_isend_irecv(both):
            request.wait()
        return arrived

    for step in range(world_size - 1):  # reduce-scatter: each chunk collects its sum on the way
        incoming = (rank - step - 1) % world_size
        chunks[incoming] += send_and_receive((rank - step) % world_size, incoming)
    for step in range(world_size - 1):  # all-gather: each finished chunk goes round
        incoming = (rank - step) % world_size
        chunks[incoming] = send_and_receive((rank - step + 1) % world_size, incoming)
    return torch.cat(chunks)


# %% tags=["look"]
brought = torch.arange(40.0).reshape(4, 10)
print("rank 1 brings      ", brought.tolist()[1])
print("the sum of all     ", brought.sum(0).tolist())
for rank, summed in enumerate(ranks.run(ring_all_reduce, brought)):
    print(f"rank {rank} ends with  ", summed.tolist())

# %% [markdown] tags=["explain"]
# Ten numbers do not divide by four; `tensor_split` makes two chunks of three and two of two, and nothing is lost. The obvious
# alternative is a star: send everything to rank 0, which adds and answers. Count both for 200 kB, the gradient of a network of
# 50,000 parameters. A rank's port carries one message at a time in each direction; what matters is the most bytes that any port
# has to carry in one direction, because all wait for it.

# %% tags=["predict"]
port_ratio = helpers.predict(
    "Gather to rank 0 and answer: how many times the bytes of the ring, at the busiest port?", "x"
)
port_ratio

# %% tags=["run"]
length = 50_000
planned = {
    name: parallel.collective("all_reduce", name, world_size=4, length=length) for name in ("ring", "gather_broadcast")
}
# %% tags=["look"]
ring_bytes, star_bytes = (each.busiest_port_bytes for each in planned.values())
port_ratio.reveal(modelled=(4 - 1) / (2 * (4 - 1) / 4), counted=star_bytes / ring_bytes)

# %% tags=["look"]
counted = {
    name: {"steps": each.steps, "busiest_port_bytes": each.busiest_port_bytes, "all_bytes": each.total_bytes}
    for name, each in planned.items()
}
pd.DataFrame(counted).T.map("{:,}".format)

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.gantt(planned["ring"].activities(), title="Ring all-reduce on 4 ranks", unit="", xlabel="step")
plotting.show(drawn, alt="Four lanes, one a rank: three steps that reduce, then three that copy; no rank is ever idle.")

# %% [markdown] tags=["explain"]
# Both move the same bytes in all. But in the ring the work is spread: in every step every rank sends and receives. A port
# sends $2 \frac{p-1}{p} n$ bytes of a buffer of $n$, less than $2n$ however many ranks there are. In the star the port of rank 0
# receives $(p-1)\,n$ and sends as much: it gets worse with every rank. In time it is worse still, for it first only receives and
# then only sends, so that each of its two directions is idle half of the time.
#
# Now the time. A message of $n$ bytes takes $\alpha + n\beta$: $\alpha$ is the link's latency, $\beta$ one over its bandwidth.
# With $\alpha$ = 5 ms and 10 MB/s, work out both from the steps above before you go on.

# %% tags=["predict"]
ring_time = helpers.predict("How long does the ring all-reduce of 200 kB take, 4 ranks, 5 ms and 10 MB/s?", "s")
ring_time

# %% tags=["run"]
slow = parallel.Link(bandwidth_bytes_per_s=10e6, latency_s=5e-3)
modelled_s = {
    "ring": 2 * (4 - 1) * (slow.latency_s + 4 * length / 4 / slow.bandwidth_bytes_per_s),
    "gather_broadcast": 2 * (4 - 1) * (slow.latency_s + 4 * length / slow.bandwidth_bytes_per_s),
}


def all_reduce_over(_rank, _world_size, planned, link):
    recorder = parallel.Recorder()
    parallel.execute(planned, torch.ones(planned.length, device=device), link=link, recorder=recorder)
    return recorder.activities


# %% tags=["run", "nbval-ignore-output"]
programs = {name: lambda plan=plan: ranks.run(all_reduce_over, plan, slow) for name, plan in planned.items()}
both = helpers.compare(programs, budget_s=4, precision=0.1)
found_s = {name: both.candidate(name).median_s for name in planned}
ring_time.reveal(modelled=modelled_s["ring"], simulated=found_s["ring"])

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_three(
    list(planned),
    {"modelled": list(modelled_s.values()), "simulated": list(found_s.values())},
    unit="s",
    title="All-reduce of 200 kB over 4 ranks, 5 ms and 10 MB/s",
    xlabel="algorithm",
)
plotting.show(drawn, alt="Bars of modelled and simulated time: the ring is the faster of the two.")

# %% tags=["explain"]
sentence = "over this link gathering at rank 0 takes longer than the ring"
both.claim(sentence, "gather_broadcast", at_least=1.5, simulated=True)

# %% [markdown] tags=["explain"]
# The messages are real: `execute` sends the bytes between the processes and then sleeps until the link would have carried them.
# The simulated times lie above the model, because a message also costs your machine something. Where other programs run, a
# process that should go on has to wait for a core, and they lie far above it.
#
# And the ring has a price: its latency, $2(p-1)\,\alpha$, grows with $p$. Two other algorithms have fewer steps (Thakur,
# Rabenseifner and Gropp, *Optimization of Collective Communication Operations in MPICH*, 2005). In a *tree* every second rank
# sends all that it has to a neighbour and is done, then every second one of the rest, until rank 0 has the sum, which goes back
# the same way. In *halving and doubling* ranks exchange in pairs: half of the buffer with one partner, a quarter with the next,
# and so on, and then back. All four on 16 ranks, if each pair of ranks has such a link:

# %%
for name in ("ring", "tree", "halving_doubling", "gather_broadcast"):
    small = parallel.collective("all_reduce", name, world_size=16, length=1000)
    large = parallel.collective("all_reduce", name, world_size=16, length=1_000_000)
    times_s = [parallel.schedule(each, slow).duration_s for each in (small, large)]
    print(f"{name:16}  {small.steps} steps   4 kB: {units.text(times_s[0], 's')}   4 MB: {units.text(times_s[1], 's')}")

# %% [markdown] tags=["explain"]
# With 4 kB the steps decide, and the ring has nothing to win. With 4 MB the bytes decide, and the tree sends all of them in each
# step. Halving and doubling sends the ring's bytes in the tree's steps, but to partners all over the network, where the ring needs
# links between neighbours alone. So libraries choose: NCCL, which PyTorch uses between GPUs, has a model of the time of each way,
# and takes for each size the one with the least ([a developer's answer](https://github.com/NVIDIA/nccl/issues/457)).

# %% [markdown] tags=["slide"] minutes=2
# ## Part 3: the gradient of a batch is a mean
#
# $$g = \frac1B \sum_{i=1}^{B} g_i = \frac1p \sum_{r=1}^{p} \Big( \frac{p}{B} \sum_{i \in r} g_i \Big)$$
#
# The inner bracket is the mean gradient of one rank's shard, its part of the batch: $B/p$ examples.
#
# So each rank needs the same weights, computes the mean gradient of its shard, and the ranks average: then each makes the same
# update, and the weights stay equal without ever being sent. On paper this equals one process on the whole batch. On a machine?


# %%
def make_model():
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))


generator = torch.Generator().manual_seed(0)
inputs, targets = (torch.randn(48, width, generator=generator) for width in (20, 5))


def train_on_ranks(make_model=make_model, inputs=inputs, targets=targets, **how):
    return parallel.equal_to_single_process(
        ranks, make_model, inputs=inputs, targets=targets, loss=nn.functional.mse_loss, **how
    )


# %% [markdown]
# `equal_to_single_process` trains three steps of SGD here and on the ranks, and compares all parameters. `way="ring"` averages
# with the messages of Part 2; `"ddp"` is PyTorch's
# [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html).

# %% tags=["predict"]
digits_apart = helpers.predict(
    "By how much does a parameter on the ranks differ at most from one process (float32)?", ""
)
digits_apart

# %% tags=["run", "nbval-ignore-output"]
by_way = {way: train_on_ranks(way=way, timeout_s=110) for way in ("ring", "ddp")}
doubled = train_on_ranks(lambda: make_model().double(), inputs.double(), targets.double(), way="ring")
digits_apart.reveal(modelled=torch.finfo(torch.float32).eps / 8, measured=by_way["ddp"].largest_difference)

# %% tags=["look", "nbval-ignore-output"]
table = {**by_way, "ring in float64": doubled}
pd.DataFrame(
    {name: {"largest_difference": each.largest_difference, "largest_update": each.largest_update}
     for name, each in table.items()}
).T  # fmt: skip

# %% tags=["explain"]
assert all(each.equal for each in by_way.values())
assert doubled.largest_difference < 1e-14
print("between two ranks, at most:", {name: each.between_ranks for name, each in by_way.items()})
print(f"(0.1 + 0.2) + 0.3 = {(0.1 + 0.2) + 0.3}, 0.1 + (0.2 + 0.3) = {0.1 + (0.2 + 0.3)}")

# %% [markdown] tags=["explain"]
# The ranks agree with one another in every bit, because all of them make the same update with the same mean. With one process they
# agree to the last digit or two of the number format: sums are added in another order, and floating-point addition is not
# associative. The model is one step from a float32 to its neighbour: the largest weights begin just below $1/\sqrt{20}$, and
# between 1/8 and 1/4 neighbours are an eighth of `eps` apart. In float64 the difference shrinks with the format. That is the test
# of a correct program: a real error would not shrink.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 4: what went wrong here?
#
# - Unequal shards, each rank with the mean of its own
# - Ranks that begin with weights of their own
# - A layer that takes no part in some step
# - Batch norm over each rank's shard
#
# Four programs that look right, and are not the program that you wrote for one process. Three of them run to the end and report
# nothing, and one of these does not train at all; the fourth stops.
#
# The first: 48 examples in shards of 24, 12, 8 and 4, as happens at the end of a data set, each rank with the mean of its shard.


# %% tags=["slide", "slide-output"] minutes=2
def apart(name, run):
    shares = [f"{distance / run.largest_update:.0%}" for distance in (run.largest_difference, run.between_ranks)]
    print(f"{name}: {shares[0]} of the largest update from one process, {shares[1]} between ranks")


uneven = (24, 12, 8, 4)
apart("shards of 24, 12, 8 and 4", train_on_ranks(sizes=uneven))

# %% [markdown] tags=["explain"]
# No rank notices: they agree with one another. A mean of means is not the mean. The 4 examples of rank 3 count together as much as
# the 24 of rank 0. Each of the 4 counts 1/16 where 1/48 is right, three times too much; each of the 24 counts half of what it
# should. The repair follows from the formula: rank $r$ multiplies its loss by $p\,B_r / B$.

# %% tags=["explain"]
weights = [4 * size / 48 for size in uneven]
apart(f"weighted by {[round(weight, 2) for weight in weights]}", train_on_ranks(sizes=uneven, weighted=True))

# %% [markdown]
# The second: ranks that are seeded differently, so that each begins with weights of its own, and gradients that are averaged by
# hand. Seeded alike, 300 steps bring the loss from 1.0 to 0.2. A network that always answers 0 has 0.9.

# %% tags=["predict"]
seeded_apart = helpers.predict("Which loss do four ranks with four seeds reach in 300 steps (the worst of them)?", "")
seeded_apart


# %% tags=["run"]
def train_300_steps(rank, world_size, seed_of_rank):
    torch.manual_seed(seed_of_rank[rank])
    model, steps = make_model().to(device), 300
    mine = [parallel.shard(each, rank, world_size=world_size).to(device) for each in (inputs, targets)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(mine[0]), mine[1]).backward()
        parallel.average_gradients(model, by="all_reduce")
        optimizer.step()
    return nn.functional.mse_loss(model(inputs.to(device)), targets.to(device)).item()


losses = {seeds: ranks.run(train_300_steps, seeds, timeout_s=110) for seeds in ((0, 0, 0, 0), (0, 1, 2, 3))}

# %% tags=["look", "nbval-ignore-output"]
seeded_apart.reveal(measured=max(losses[0, 1, 2, 3]))

# %% tags=["look", "slide", "slide-output"] minutes=1
for seeds, of_ranks in losses.items():
    print(f"seeds {seeds}: losses {', '.join(f'{loss:.1f}' for loss in of_ranks)}")
apart("four seeds, DDP", train_on_ranks(way="ddp", seeds_differ=True))

# %% [markdown] tags=["explain"]
# Equal gradients keep equal weights equal, and unequal ones unequal: the four networks stay as far apart as they began, and the
# mean of their gradients is the gradient of none of them. None trains, and nothing fails. DDP broadcasts rank 0's weights when it
# wraps the model; by hand you must do it yourself.
#
# Two more that look dangerous are not: a weight that two layers share ([tied](glossary.md#tied-weights)) and a frozen one.
# Autograd adds up the gradient of both uses of a tied weight before it is sent, and a frozen weight sends nothing.


# %%
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(20, 20), nn.Linear(20, 20)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))[:, :5]


def with_frozen():
    model = make_model()
    model[0].weight.requires_grad_(False)
    return model


for name, maker in {"tied": Tied, "frozen": with_frozen}.items():
    apart(name, train_on_ranks(maker))


# %% [markdown]
# The third: a layer that takes no part in some step, such as an unused head. DDP counts the gradients that arrive in the backward
# pass and waits for all of them.


# %% tags=["slide-output"]
def unused_head(_rank, _world_size, find):
    model = nn.ModuleDict({"body": nn.Linear(20, 5), "head": nn.Linear(20, 5)}).to(device)
    model.forward = lambda x: model["body"](x)
    ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=find)
    try:
        for _ in range(2):
            ddp(torch.ones(4, 20, device=device)).sum().backward()
    except RuntimeError as error:
        advised = re.search("find_unused_parameters=True", str(error))
        return f"an error that advises {advised[0]}"
    return "two steps done"


for find in (False, True):
    print(f"find_unused_parameters={find}: {ranks.run(unused_head, find)[0]}")

# %% [markdown] tags=["explain"]
# The second step finds the first one unfinished. With `find_unused_parameters=True` DDP walks the graph in every step to see which
# gradients will not come: it costs time, so it is off unless you ask.

# %% [markdown] tags=["slide"] minutes=2
# ### The fourth: batch norm
#
# Batch norm takes mean and variance over the batch. Which batch: the rank's, or everyone's?


# %% tags=["look", "slide", "slide-output"] minutes=1
def with_batch_norm():
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 5))


apart("batch norm", train_on_ranks(with_batch_norm))

# %% [markdown] tags=["explain"]
# The formula of Part 3 asks that the loss be a mean over examples. With batch norm each example's output depends on the others of
# its shard, and twelve examples have another variance than forty-eight: what each rank misses is the distance between the ranks'
# means. The repair is one more all-reduce, of three numbers a channel: sum, sum of squares, count. They are sums, so they add up.


# %% tags=["look"]
def statistics_of_all(rank, world_size, batch):
    mine = parallel.shard(batch, rank, world_size=world_size).to(device)
    sums = torch.stack([mine.sum(0), mine.square().sum(0), torch.full_like(mine[0], len(mine))])
    dist.all_reduce(sums)
    mean = sums[0] / sums[2]
    return sums[1] / sums[2] - mean**2, mine.var(0, correction=0)


together, alone = zip(*ranks.run(statistics_of_all, inputs), strict=True)
whole = inputs.var(0, correction=0)
print(f"variance of 48 examples, mean of the channels: {whole.mean():.3f}")
print(f"from the sums of all, on each rank: {', '.join(f'{each.mean():.3f}' for each in together)}")
print(f"of its own 12 examples, on each rank: {', '.join(f'{each.mean():.3f}' for each in alone)}")

# %% [markdown] tags=["explain"]
# `nn.SyncBatchNorm` does this on GPUs (it refuses a CPU), in the forward pass and again in the backward pass: two waits for every
# layer, before the next can begin. If you leave batch norm to each rank instead, your result depends on the number of ranks: say
# so. Layer norm has no such question: it looks at one example.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 5: accumulate, and send once
#
# - [Gradient accumulation](glossary.md#gradient-accumulation): several backward passes, one update: a large batch on a small memory
# - Gradients add up in `.grad` anyway
# - Under DDP each backward pass also sends: it need not
#
# The batch of a rank is cut into micro-batches that fit its memory. Each goes forward and backward, and only then comes the
# update. What must be sent is one gradient. What is sent?

# %% tags=["predict"]
sent_in_vain = helpers.predict(
    "4 micro-batches of plain backward under DDP: how many times the bytes that are needed?", "x"
)
sent_in_vain


# %% tags=["run"]
def accumulate(rank, world_size, micro_batches, careful):
    ddp = nn.parallel.DistributedDataParallel(make_model().to(device))
    mine = parallel.shard(inputs, rank, world_size=world_size).to(device)
    for _ in range(2):  # in its second step DDP tells its ranks how it has arranged its buckets anew
        ddp(mine).sum().backward()
    with parallel.count_collectives() as counter:
        for place, part in enumerate(mine.tensor_split(micro_batches)):
            ddp.require_backward_grad_sync = not careful or place == micro_batches - 1
            (ddp(part).sum() / micro_batches).backward()
    return counter.counts.calls("all_reduce"), counter.counts.size_bytes("all_reduce")


sent = {careful: ranks.run(accumulate, 4, careful)[0] for careful in (False, True)}

# %% tags=["look"]
sent_in_vain.reveal(modelled=4, counted=sent[False][1] / sent[True][1])

# %% tags=["look", "slide", "slide-output"] minutes=1
for careful, (calls, size_bytes) in sent.items():
    print(f"{'only the last sends' if careful else 'plain'}: {calls} all-reduces, {size_bytes:,} bytes")

# %% [markdown] tags=["explain"]
# `with ddp.no_sync():` round all but the last backward pass sets that switch for you. Plain accumulation is worse than slow: it
# averages again what was averaged before. That leaves the mean right, since the mean of equal numbers is the number, and so nobody
# notices what it costs.

# %%
apart("accumulated over 3 with no_sync", train_on_ranks(micro_batches=3))

# %% [markdown] tags=["slide"] minutes=2
# ### What went wrong here? The lecture's two GPUs
#
# A lecture timed a CPU, one GPU and two GPUs. Two were slower than one. Why?
#
# | device | batch | 2 epochs |
# |---|--:|--:|
# | CPU | 128 | 5.22 s |
# | one GPU | 512 | 4.37 s |
# | two GPUs | 1024 | 4.72 s |
#
# (From "Hardware Ecosystem", Cambridge, 2022.) The two GPUs ran through `nn.DataParallel`. But the batch grew as well, and loading
# the digits is inside the clock. How many updates did each row make of 60,000 digits?

# %% tags=["slide", "slide-output"] minutes=1
updates = {batch: 2 * -(-60_000 // batch) for batch in (128, 512, 1024)}
print("\n".join(f"batch {batch}: {count} updates" for batch, count in updates.items()))

# %% [markdown] tags=["explain"]
# Three rows, three experiments: the network of the last has learned from an eighth of the updates. Decide what is held fixed.
# [Strong scaling](glossary.md#strong-scaling) keeps the whole batch and divides it; [weak scaling](glossary.md#weak-scaling) keeps
# the batch of each rank. Both leave the data loader outside the clock, or inside it in every row.
#
# The module has a problem of its own. `nn.DataParallel` is one process with a thread for each GPU. On a machine without a GPU it
# does nothing at all, and does not say so:

# %%
quiet = nn.DataParallel(helpers.LeNet())
print(f"GPUs: {torch.cuda.device_count()}, replicas: {len(quiet.device_ids)}")

# %% [markdown] tags=["explain"]
# On GPUs it copies all weights from GPU 0 to the others in every forward pass, scatters the inputs, gathers the outputs on GPU 0,
# and sums the gradients there ([its documentation](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html)
# recommends DDP instead). That is the star of Part 2. For LeNet, a step moves through GPU 0, in and out, and through a port of
# DDP's ring:

# %%
lenet_elements = sum(weight.numel() for weight in helpers.LeNet().parameters())
moved = {}
for count in (2, 4, 8):
    traffic = {}
    for name, algorithm in (("DataParallel, GPU 0", "gather_broadcast"), ("DDP, each rank", "ring")):
        plan = parallel.collective("all_reduce", algorithm, world_size=count, length=lenet_elements)
        traffic[name] = plan.ranks()[0].sent_bytes + plan.ranks()[0].received_bytes
    moved[f"{count} GPUs"] = traffic
pd.DataFrame(moved).T.map("{:,} bytes".format)

# %% [markdown] tags=["slide"] minutes=2
# ## Part 6: send while you compute
#
# - The gradient of the last layer is ready first
# - DDP fills [buckets](glossary.md#bucket), last layer first, and sends each as soon as it is full
# - What is sent meanwhile is hidden
#
# So DDP puts gradients into buckets and starts the all-reduce of each while the backward pass goes on. To see it with the right clock on
# any machine we use devices that sleep: a layer that takes 10 ms forward and 40 ms backward on every rank, whatever your processor
# is. (A sleeping device has nothing to share. On a GPU the all-reduce takes [multiprocessors](glossary.md#multiprocessor) and memory bandwidth from the backward
# pass, so what is hidden is not free.) Four of them, with 100 kB of gradient each:

# %%
forward_s, backward_s, layer_elements, layer_count = 10e-3, 40e-3, 25_000, 4
cost = parallel.LayerCost(forward_s, backward_s, 4 * layer_elements)
nearer = parallel.Link(bandwidth_bytes_per_s=10e6, latency_s=2e-3)
modelled = {}
for bucket_bytes in (100_000, 200_000, 400_000):
    modelled[bucket_bytes] = parallel.ddp_step(
        [cost] * layer_count, world_size=4, link=nearer, bucket_bytes=bucket_bytes
    )
alone_s = modelled[400_000].compute_s
print(f"computing alone takes {units.text(alone_s, 's')}")
print(f"one all-reduce of everything takes {units.text(modelled[400_000].link_s, 's')}")

# %% tags=["predict"]
four_buckets = helpers.predict("How long does a step take in four buckets, one a layer?", "s")
four_buckets


# %% tags=["run"]
def sleeping_steps(rank, _world_size, bucket_bytes, link, wire_dtype=None):
    recorder = parallel.Recorder()
    layers = [
        parallel.SleepingLayer(
            forward_s, backward_s, parameters=layer_elements, recorder=recorder, lane=f"rank {rank} device"
        )
        for _ in range(layer_count)
    ]
    model = nn.Sequential(*layers).to(device)
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_bytes / 2**20)
    reducer = parallel.slow_link(ddp, link, wire_dtype=wire_dtype, recorder=recorder, lane=f"rank {rank} link")

    def step():
        recorder.activities.clear()
        reducer.bucket_bytes.clear()
        ddp(torch.ones(2, device=device)).sum().backward()

    return parallel.step_times(step, repeats=2, warm_ups=1), reducer.bucket_bytes, recorder.activities


slept = {bucket_bytes: ranks.run(sleeping_steps, bucket_bytes, nearer) for bucket_bytes in modelled}

# %% tags=["look", "nbval-ignore-output"]
fastest_s = {name: parallel.fastest_step_s([rank[0] for rank in found]) for name, found in slept.items()}
four_buckets.reveal(modelled=modelled[100_000].step_s, simulated=fastest_s[100_000])

# %% tags=["look", "slide", "slide-output"] minutes=1
drawn = plotting.draw_three(
    [f"{400_000 // bucket_bytes}" for bucket_bytes in modelled],
    {"modelled": [each.step_s for each in modelled.values()], "simulated": list(fastest_s.values())},
    unit="s",
    title="A step of 4 sleeping ranks by the number of buckets",
    xlabel="buckets",
)
plotting.show(
    drawn, alt="Bars of modelled and simulated step time for four, two and one bucket; the modelled time grows."
)

# %% tags=["look", "slide", "slide-output"] minutes=1
timeline = parallel.joined(each for rank in slept[100_000][:2] for each in rank[2])
drawn = plotting.gantt(timeline.activities, title="Simulated: two of the four ranks, a bucket a layer")
plotting.show(
    drawn, alt="Lanes of device and link of two ranks: the link carries a bucket while the device goes backward."
)

# %% tags=["explain"]
for bucket_bytes, found in slept.items():
    planned_buckets = [bucket.size_bytes for bucket in modelled[bucket_bytes].buckets]
    print(f"buckets modelled: {planned_buckets}, made by DDP on rank 0: {found[0][1]}")

# %% [markdown] tags=["explain"]
# The last bucket cannot be hidden: it is ready when there is nothing left to compute. Smaller buckets make it smaller, but
# each pays the latency of $2(p-1)$ messages. Move the sliders: with 20 ms of latency small buckets are the worst choice. Which
# size would you take for your link?


# %%
def draw_step(bucket_kb, latency_ms):
    link = parallel.Link(10e6, latency_ms / 1000)
    step = parallel.ddp_step([cost] * layer_count, world_size=4, link=link, bucket_bytes=bucket_kb * 1000)
    buckets = "one bucket" if len(step.buckets) == 1 else f"{len(step.buckets)} buckets"
    title = f"Modelled: {buckets}, {latency_ms} ms of latency, {1000 * step.step_s:.0f} ms a step"
    return plotting.gantt(step.activities(), title=title)


helpers.interactive_figure(
    draw_step,
    {"bucket_kb": [100, 200, 300, 400], "latency_ms": [0, 1, 2, 5, 10, 20]},
    views=[
        {"bucket_kb": 400, "latency_ms": 2},
        {"bucket_kb": 100, "latency_ms": 2},
        {"bucket_kb": 100, "latency_ms": 20},
    ],
    alt=lambda bucket_kb, latency_ms: (
        f"Lanes of device and link of a modelled step, buckets of {bucket_kb} kB, {latency_ms} ms of latency."
    ),
)

# %% [markdown] tags=["slide"] minutes=2
# ## Part 7: slow links and smaller bytes
#
# - Where the link is the limit, send less often: accumulate
# - Or send less: compress; but then something else arrives
# - On a fast link nothing helps: only the last bucket is exposed
#
# The same four layers over four links, and three remedies, modelled: float16 on the wire, four accumulated micro-batches (the time
# for each of them), both. The last column is what a step would take if the link cost nothing.

# %% tags=["slide-output"]
rows = {}
for megabits in (10_000, 1000, 100, 20):
    link = parallel.Link(megabits * 1e6 / 8, latency_s=1e-4)
    remedies = {"float32": {}, "float16": {"wire_share": 0.5}, "accumulated": {"micro_batches": 4}}
    remedies["both"] = {"wire_share": 0.5, "micro_batches": 4}
    steps = {name: parallel.ddp_step([cost] * layer_count, world_size=4, link=link, bucket_bytes=100_000, **how)
             for name, how in remedies.items()}  # fmt: skip
    rows[f"{megabits} Mbit/s"] = {
        name: f"{1000 * step.step_s / remedies[name].get('micro_batches', 1):.0f} ms" for name, step in steps.items()
    } | {"no link": f"{1000 * alone_s:.0f} ms"}
pd.DataFrame(rows).T

# %% [markdown] tags=["explain"]
# In the first row only the last bucket is exposed: there is next to nothing for float16 to save, and converting costs time that the
# model leaves out. Check one remedy against the clock:

# %% tags=["run", "nbval-ignore-output"]
weak = parallel.Link(bandwidth_bytes_per_s=2.5e6, latency_s=2e-3)
halved = {}
for wire_dtype in (None, torch.float16):
    found = ranks.run(sleeping_steps, 100_000, weak, wire_dtype)
    model = parallel.ddp_step(
        [cost] * layer_count, world_size=4, link=weak, bucket_bytes=100_000, wire_share=0.5 if wire_dtype else 1.0
    )
    halved[str(wire_dtype)] = (model.step_s, parallel.fastest_step_s([rank[0] for rank in found]), sum(found[0][1]))

# %% tags=["look"]
results.printed(pd.DataFrame(halved, index=["modelled_s", "simulated_s", "sent_bytes"]).T)

# %% tags=["explain"]
tiny = torch.tensor(1e-8)
print(f"a gradient of 1e-8 in float16 is {tiny.half().item()}, in bfloat16 it is {tiny.bfloat16().item():.3g}")

# %% [markdown] tags=["explain"]
# The price is in the numbers. The smallest number of float16 is $2^{-24}$: what is below half of it arrives as zero. bfloat16
# keeps the range and gives up digits. This is the difference between compression and everything before it: bucket, ring and
# accumulation change when bytes travel, compression changes what arrives.

# %% [markdown] tags=["slide"] minutes=1
# ## Part 8: must every rank keep everything?
#
# Under DDP four ranks keep four copies of weights, gradients and [optimizer state](glossary.md#optimizer-state).
#
# [Sharding](glossary.md#sharding) keeps one copy among all: each rank holds $1/p$, gathers a layer's weights just before it needs
# them, and forgets them after. ZeRO (Rajbhandari and others, *ZeRO: Memory Optimizations Toward Training Trillion Parameter
# Models*, 2020) names three stages: sharding the optimizer state, then the gradients, then the weights; the third is PyTorch's
# `fully_shard` (FSDP2). With Adam in float32 a parameter has 4 bytes of weight, 4 of gradient and 8 of state:

# %% tags=["predict", "slide-output"]
kept_bytes = helpers.predict("Bytes a parameter that each of 4 ranks keeps between steps, all sharded?", "B")
kept_bytes


# %% tags=["run"]
def bytes_kept(_rank, world_size, sharded):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to(device)
    if sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device, (world_size,))
        for part in [*model, model]:
            fully_shard(part, mesh=mesh)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.ones(8, 64, device=device)
    for _ in range(3):
        optimizer.zero_grad()
        with parallel.count_collectives() as counter:
            model(batch).sum().backward()
        optimizer.step()
    local = [getattr(each, "_local_tensor", each) for each in model.parameters()]
    grads = [getattr(each.grad, "_local_tensor", each.grad) for each in model.parameters()]
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    kept = [local, grads, [getattr(each, "_local_tensor", each) for each in moments]]
    return [sum(each.nbytes for each in part) for part in kept], counter.counts


kept = {name: ranks.run(bytes_kept, sharded)[0] for name, sharded in (("DDP", False), ("FSDP2", True))}

# %% tags=["look"]
parameters = 4 * (64 * 64 + 64)
kept_bytes.reveal(modelled=(4 + 4 + 8) / 4, counted=sum(kept["FSDP2"][0]) / parameters)

# %% tags=["look", "slide", "slide-output"] minutes=1
columns = ["weights", "gradients", "Adam's state"]
pd.DataFrame({name: sizes for name, (sizes, _) in kept.items()}, index=columns).T.map("{:,} bytes".format)

# %% [markdown] tags=["explain"]
# Nothing is free. Count what they send in a step, in whole buffers:

# %% tags=["explain"]
for name, (_, counts) in kept.items():
    for each in counts.collectives:
        print(f"{name}: {each.calls} x {each.collective}, {each.size_bytes / (4 * parameters):.0f} times the weights")

# %% [markdown] tags=["explain"]
# A [reduce-scatter](glossary.md#reduce-scatter) is the first half of the ring and an [all-gather](glossary.md#all-gather) the
# second: each sends $\frac{p-1}{p} n$. DDP does both, so
# $2\frac{p-1}{p} n$. FSDP2 gathers the weights for the forward pass, forgets them, gathers them for the backward pass and scatters
# the gradients: three halves instead of two. It sends 1.5 times the bytes, and keeps a $p$-th of all this. Activations are not
# sharded; lesson 07 counts them. For a network of $10^9$ parameters, a rank keeps:

# %%
stages = {"DDP": (4, 4, 8), "ZeRO 1": (4, 4, 8 / 8), "ZeRO 2": (4, 4 / 8, 8 / 8), "ZeRO 3": (4 / 8, 4 / 8, 8 / 8)}
parts = {name: [1e9 * stages[stage][place] for stage in stages] for place, name in enumerate(columns)}
drawn = plotting.draw_layers(
    list(stages), parts, unit="B", title="10⁹ parameters on 8 ranks, Adam, float32: bytes a rank"
)
plotting.show(drawn, alt="Stacked bars of weights, gradients and Adam's state for DDP and ZeRO 1 to 3: each smaller.")

# %% [markdown] tags=["slide"] minutes=2
# ## Part 9: two machines
#
# - On each machine `torchrun` starts an agent
# - The agents meet, number the ranks, start them, and watch them
# - The script is the same on one machine and on many
#
# A training job is not a notebook. The same code as a script, [train_data_parallel.py](scripts/train_data_parallel.py), runs
# under torchrun as it stands. On two machines you give on each:
#
# ```
# torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 train_data_parallel.py --checkpoint run.pt
# ```
#
# HOST is the name of one of the two. Where the system allows it, the kernel can make two machines of yours: two *network
# namespaces*, each with a network of its own, and a cable between them that passes 10 MB/s in each direction. Then real packets
# wait, and nothing sleeps:

# %% tags=["run", "nbval-ignore-output"]
cable = parallel.Link(bandwidth_bytes_per_s=10e6)
allowed = parallel.available_links()
allowed

# %% [markdown]
# On both we give the command above, with Python's own name for torchrun. Where namespaces are not allowed (the table says why),
# `parallel.torchrun` starts both agents on the loopback, this machine's network to itself, which is not slow. Either way each agent has one rank, and the script is
# the same.

# %% tags=["run", "slide-output"]
script = Path("scripts/train_data_parallel.py")
folder = tempfile.TemporaryDirectory()
checkpoints = Path(folder.name)
given = ["--checkpoint", checkpoints / "undisturbed.pt"]
on_a_cable = allowed.used == "two network namespaces"
if on_a_cable:
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    command += [f"--rdzv-endpoint={parallel.FIRST_MACHINE}:29500", f"--log-dir={folder.name}", script, *given]
    output = parallel.on_two_machines(command, cable, timeout_s=110)
else:
    both_agents = parallel.torchrun(script, nproc_per_node=1, nnodes=2, args=given, timeout_s=110)
    output = "\n".join(rank.output for rank in both_agents.ranks)
# Both ranks write to one output at the same time, and may share a line of it.
undisturbed = sorted(re.findall(r"(rank \d of \d: steps \d+ to \d+), parameters ([0-9a-f]{16})", output))
print("\n".join(steps for steps, _ in undisturbed))

# %% [markdown]
# The script times its all-reduce of the gradient, in one buffer. In a ring of two each rank sends the whole buffer, half in each
# round, and both directions of the cable are busy at once:

# %% tags=["look", "nbval-ignore-output"]
gradient_elements = 256 * 512 + 512 + 512 * 256 + 256
ring_of_two = parallel.collective("all_reduce", "ring", world_size=2, length=gradient_elements)
modelled_s = parallel.schedule(ring_of_two, cable).duration_s
measured_s = min(float(milliseconds) / 1000 for milliseconds in re.findall(r"fastest all-reduce ([\d.]+) ms", output))
where = "cable" if on_a_cable else "loopback, not slowed"
print(f"modelled: {units.text(modelled_s, 's')}, measured ({where}): {units.text(measured_s, 's')}")

assert not on_a_cable or measured_s > 0.95 * modelled_s

# %% [markdown] tags=["explain"]
# On the cable the measured time lies a little above the model: each packet of 1,500 bytes carries headers as well as your gradient.
# (A little below would be no contradiction: the kernel lets 2 ms of bytes pass unslowed after each pause, which is 4 ms of 105 in
# two rounds.) A sleeping link and a limited cable tell the same story, from two sides: the first needs no rights and works
# everywhere, the second holds up real bytes, of any program, unchanged.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 10: a rank is killed
#
# - With enough machines one always fails
# - A run must go on without a person
# - A rank is killed after step 6, a checkpoint is written at every fourth: how many steps are computed twice?
#
# On 16,384 GPUs Meta counted 419 unexpected interruptions in 54 days (*The Llama 3 Herd of Models*, 2024).
#
# When a rank dies, its neighbours stand in a collective that can never end. The agent sees it, ends all ranks and starts them
# again; each reads the last checkpoint. In the script rank 0 writes one after every fourth step, into another file that it then
# renames, so that the checkpoint is whole at every moment. It holds the step, the weights and the optimizer's momentum. Batches are
# made from the number of the step, so the data go on where they were.
#
# We let rank 1 be killed (SIGKILL: it can do nothing about it) right after step 6 of 12. This time both ranks are on one machine,
# under one agent, which may restart them once.

# %% tags=["predict"]
redone = helpers.predict(
    "Killed after step 6 with a checkpoint at every 4th: how many steps are computed twice?", "steps"
)
redone

# %% tags=["run"]
killed = parallel.torchrun(
    script,
    nproc_per_node=2,
    max_restarts=1,
    args=["--checkpoint", checkpoints / "killed.pt", "--kill-after", "6"],
    timeout_s=110,
)
# %% tags=["look"]
resumed_at = int(killed.ranks[0].output.split("steps ")[1].split()[0])
redone.reveal(modelled=6 % 4, counted=6 - (resumed_at - 1))

# %% tags=["look", "slide", "slide-output"] minutes=1
print(f"restarts: {killed.restarts}")
print("\n".join(rank.output.splitlines()[0].partition(",")[0] for rank in killed.ranks))

# %% tags=["explain"]
digests = [digest for _, digest in undisturbed]
digests += [rank.output.splitlines()[0].split()[-1] for rank in killed.ranks]
print(f"{len(digests)} ranks of two runs end with {len(set(digests))} set of parameters, bit for bit")
folder.cleanup()
ranks.close()

# %% [markdown] tags=["explain"]
# We repeated two steps, and the result is identical, whether the two ranks stand on one machine or on two. For that the checkpoint
# must hold everything that the next step depends on: leave the momentum out, and the run goes on, and ends elsewhere.
#
# How often should one write? Each checkpoint costs time $C$, and a failure costs on average half an interval. With one failure in
# a time $M$, the total is least for an interval of
# $\sqrt{2CM}$ (Young, *A first order approximation to the optimum checkpoint interval*, 1974). For Meta's failures, and a
# checkpoint that stops training for half a minute:

# %%
between_failures_min = 54 * 24 * 60 / 419
interval_min = (2 * 0.5 * between_failures_min) ** 0.5
print(f"a failure every {between_failures_min:.0f} minutes: write a checkpoint every {interval_min:.0f} minutes")

# %% [markdown] tags=["explain"]
# The [exercises](exercises/04_data_parallel_exercises.ipynb) ask you to count a ring's bytes, to weigh uneven shards, and to find
# when buckets are sent.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. In a ring each rank sends about twice the gradient, however many ranks there are.
# 2. Ranks match one process only where they average what it would.
# 3. Send while you compute.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $p$ ranks, a buffer of $n$ bytes, $\alpha$ a message's latency, $\beta$ one over the bandwidth.
#
# | quantity | formula |
# |---|---|
# | a message | $\alpha + n\beta$ |
# | ring all-reduce | $2(p-1)\,\alpha + 2\frac{p-1}{p}\,n\beta$ |
# | reduce-scatter or all-gather by ring | half of that |
# | gather and broadcast at rank 0 | $2(p-1)(\alpha + n\beta)$ |
# | mean gradient of the batch | $\frac1p \sum_r \frac{p\,B_r}{B}\, g_r$, where $B_r$ of $B$ examples are rank $r$'s and $g_r$ is their mean gradient |
# | step without overlap | $t_{compute} + t_{all-reduce}$ |
# | bucket $k$ starts on the link | the later of: its gradients are ready, bucket $k-1$ has ended |
# | bytes a parameter, Adam in float32 | $4 + 4 + 8$; ZeRO 1: $4 + 4 + \frac8p$; ZeRO 2: $4 + \frac{12}p$; ZeRO 3: $\frac{16}p$ |
# | sent a step by a rank | DDP $2\frac{p-1}{p}n$, FSDP2 $3\frac{p-1}{p}n$ |
# | interval of checkpoints | $\sqrt{2CM}$, for a save of $C$ seconds and $M$ seconds from failure to failure |
