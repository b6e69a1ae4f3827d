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
#     title: Links in two levels
#     needs: ["05", "06"]
#     objectives:
#       - count|counted the bytes of an exchange that must leave a node
#       - write|wrote an all-reduce in two levels that runs on real processes
#       - bound|bounded the time of an all-reduce on several nodes by two rates
#       - judge|judged the rate that a benchmark prints by the rate of a port
#       - decide|decided which exchanges may leave a node and which should stay inside
# ---

# %% [markdown] tags=["objectives"]
# # Links in two levels
#
# Eight B200 GPUs in one machine add up a tensor of 4 GiB, and each of them ends with the sum. This [all-reduce](glossary.md#all-reduce) takes 10.15 ms
# (Stas Bekman, [Machine Learning Engineering](https://github.com/stas00/ml-engineering/blob/master/network/README.md), 2026, published). Now three more
# such machines join, so that 32 GPUs add up a tensor of the same size. Inside its machine each GPU sends 900 GB/s through NVLink. To the other machines it
# has a port of 50 GB/s, which is an eighteenth.
#
# A ring is as fast as its slowest link, so if everything has to pass through the ports, you would expect about 18 times the time. But does everything have to pass?
# With this question [lesson 06](06_model_parallel.ipynb) ended, when it cut a layer over sixteen GPUs in two machines.
#
# You meet the border between the two speeds as soon as one machine is too small. A *node* is a machine whose GPUs share the fast link, here eight of them.
# For a model that does not fit into one node, the documentation of vLLM gives a simple rule. Set the
# [tensor-parallel](glossary.md#tensor-parallelism) size to the number of GPUs in a node, and the [pipeline-parallel](glossary.md#pipeline-parallelism)
# size to the number of nodes ([vLLM](https://docs.vllm.ai/en/v0.8.3/serving/distributed_serving.html)). Is the rule right, and what does it cost to
# break it?
#
# We had no cluster. Our own experiments run on four real processes in two groups, with links that sleep as long as slow ones would take, and we call their
# times *simulated*. Times of GPUs are modelled from the rates on data sheets, or they are published measurements with their source. Those of the B200 are
# Bekman's, and his page also holds them against the two models that we follow in Parts 1 and 2.

# %% tags=["hide-input"]
import pandas as pd
import torch

import helpers
from helpers import exercises, parallel, plotting, timing
from helpers.links import Link
from helpers.ranks import Ranks
from helpers.studies import two_levels

check = exercises.checks_of("links_in_two_levels")
ranks = Ranks(4, device="cpu")  # four processes, two in each node
GIB, MIB, KIB = 2**30, 2**20, 2**10


def as_ms(seconds):
    return f"{1e3 * seconds:.3g} ms"


# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# What do slow links between machines cost?
#
# - Eight B200 in one machine sum a tensor of 4 GiB
# - Now four machines sum a tensor of this size
# - A port has an eighteenth of NVLink's rate
#
# Write down a number before you go on.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 50]
bet = helpers.predict(
    "How many times as long as on one machine does the all-reduce of 4 GiB "
    "take on four machines?",
    "x",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A sum of sums is the sum of everything"
# ## Part 1: the bytes that leave a node
#
# What has to leave a node? We begin with the bytes, because the time follows from them.
#
# - Two nodes with two GPUs each
# - The other node needs only the node's sum
# - Each GPU carries a share of it out
#
# Take two nodes with two GPUs each. In the first node GPU 0 has a vector full of ones and GPU 1 a vector full of tens. In the second node GPU 2 has hundreds
# and GPU 3 has thousands. The sum that all four want is a vector full of 1,111.
#
# What must the second node learn from the first? It needs neither the ones nor the tens, but only their sum, which is 11 everywhere. So a node does not
# have to send one tensor per GPU. A single one is enough, because a sum of sums is the sum of everything.
#
# Which GPU should send it? If GPU 0 did it alone, the port of GPU 1 would be idle. A [reduce-scatter](glossary.md#reduce-scatter) inside the node, the
# first half of a ring ([lesson 05](05_data_parallel.ipynb)), solves this. After it GPU 0 has the first half of the node's sum, and GPU 1 has the second
# half. Now GPU 0 and GPU 2 make an all-reduce of their two halves, 11 and 1,100, and both get 1,111. At the same time GPU 1 and GPU 3 do the same with the
# second half, through ports of their own. Finally, an [all-gather](glossary.md#all-gather) inside each node puts the halves together. This is called a
# *[hierarchical](glossary.md#hierarchical-all-reduce)* or two-level all-reduce.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Only a share of the node's sum leaves it"
alt = "Four GPUs in two nodes: a half of each node's sum crosses, and then all have 1,111."
plotting.show(two_levels.draw_steps(), alt=alt)

# %% [markdown]
# **Your turn.** Write it for one process. `inside` is the ring of its node, and `outside` is the ring of the processes that have the same share in the
# other nodes. Both have the methods `reduce_scatter`, `all_reduce` and `all_gather`. Each takes a vector and returns one. (PyTorch makes such a process
# group with `dist.new_group`.)


# %% tags=["yours"] yours="hierarchical_all_reduce" takes=8
def hierarchical_all_reduce(tensor, inside, outside):
    """Return the sum of the tensors of all processes, and send only a share outside."""
    share = inside.reduce_scatter(tensor)
    share = outside.all_reduce(share)
    return inside.all_gather(share)


# %% checks="hierarchical_all_reduce"
hierarchical_all_reduce = check(hierarchical_all_reduce, ranks=ranks)


# %% wrong="hierarchical_all_reduce" says="Only the sum of its own node"
def hierarchical_all_reduce(tensor, inside, outside):
    return inside.all_gather(inside.reduce_scatter(tensor))


# %% wrong="hierarchical_all_reduce" says="put the shares together"
def hierarchical_all_reduce(tensor, inside, outside):
    return outside.all_reduce(inside.reduce_scatter(tensor))


# %% wrong="hierarchical_all_reduce" says="the whole tensor leaves the node"
def hierarchical_all_reduce(tensor, inside, outside):
    return outside.all_reduce(inside.all_reduce(tensor))


# %% wrong="hierarchical_all_reduce" says="Exchange the two rings"
def hierarchical_all_reduce(tensor, inside, outside):
    return outside.all_gather(inside.all_reduce(outside.reduce_scatter(tensor)))


# %% wrong="hierarchical_all_reduce" says="must return a 1-D tensor"
def hierarchical_all_reduce(tensor, inside, outside):
    return inside.all_gather(outside.all_reduce(inside.reduce_scatter(tensor))).tolist()


# %% right="hierarchical_all_reduce" style=1
def hierarchical_all_reduce(tensor, inside, outside):
    return inside.all_gather(outside.all_reduce(inside.reduce_scatter(tensor)))


# %% right="hierarchical_all_reduce" style=2
def hierarchical_all_reduce(tensor, inside, outside):
    share = inside.reduce_scatter(tensor.clone())
    piece = outside.reduce_scatter(share)
    return torch.cat([inside.all_gather(outside.all_gather(piece))])


# %%
sums = two_levels.sum_on_ranks(ranks, hierarchical_all_reduce, elements=100_000)

# %% tags=["hide-input"]
for row in sums:
    assert row.smallest == row.largest
    sent = f"sent {row.inside_bytes:,} B inside and {row.outside_bytes:,} B outside"
    print(f"GPU {row.rank}: {row.elements:,} elements of {row.largest:,.0f}, {sent}")

# %% [markdown]
# Now count the bytes for 32 GPUs in four nodes. A GiB has 2³⁰ bytes, so each GPU holds 4.29 GB. The reduce-scatter sends 7/8 of them inside the node, and so
# does the all-gather. In between, a GPU sums an eighth of the tensor with its three partners in the other nodes. In a ring of four it sends 2 × 3/4 of this
# eighth.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 100]
leaving = helpers.predict(
    "In a two-level all-reduce over four nodes of eight GPUs, "
    "which percentage of the bytes that a GPU sends leaves its node?",
    "%",
)
leaving


# %% tags=["run"]
def sent_bytes(operation, ranks, elements):
    """Return the bytes that each of so many ranks sends in a ring, counted by its messages."""
    planned = parallel.collective(operation, "ring", world_size=ranks, length=elements)
    return planned.ranks()[0].sent_bytes


elements = 4 * GIB // 4  # float32
inside = sent_bytes("reduce_scatter", 8, elements) + sent_bytes("all_gather", 8, elements)
outside = sent_bytes("all_reduce", 4, elements // 8)
one_ring = sent_bytes("all_reduce", 32, elements)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A tenth of the bytes leaves the node"
modelled = 1.5 / 8 / (2 * 7 / 8 + 1.5 / 8)
leaving.reveal(modelled=100 * modelled, counted=100 * outside / (inside + outside))
print(f"two levels: {inside / 1e9:.2f} GB inside and {outside / 1e9:.2f} GB outside")
print(f"one ring: {one_ring / 1e9:.2f} GB through one port of each node")

# %% [markdown] tags=["explain"]
# Inside it sends 2 × 7/8 of 4.29 GB, which is 7.52 GB. Outside it sends 2 × 3/4 of 0.54 GB, which is 0.81 GB. So 9.7 % of its bytes leave the node. With
# more nodes the 2 × 3/4 grows, but it stays below 2, so a port never carries more than 2/8 of the tensor.
#
# Compare this with a single ring through all 32 GPUs. There each GPU sends 2 × 31/32 of the tensor to its right neighbour, 8.32 GB. The last GPU of a node
# has its neighbour in the next node, so these 8.32 GB pass through one port while seven ports are idle. Two levels send 0.81 GB through each of the eight
# ports instead. The load of the busiest port falls by a factor of 10.3, or 8 × 1.29. The 8 comes from using all the ports, and only the 1.29 comes from
# sending less.
#
# Does it work? Let the four processes sum 400 kB. Their links have 200 MB/s and a [latency](glossary.md#latency) of 0.2 ms inside a node, and 10 MB/s and
# 5 ms between the nodes. A single ring of four sends six messages of 100 kB, one after the other. In each round some message has to cross the slow link and
# the others wait for it, so the ring takes 6 × (5 + 10), or 90 ms.
#
# With two levels a process sends 200 kB inside, then twice 100 kB outside, and then again 200 kB inside. That takes (0.2 + 1) + 2 × (5 + 10) + (0.2 + 1), or
# 32.4 ms.

# %%
fast, slow = Link(200e6, latency_s=0.2e-3), Link(10e6, latency_s=5e-3)


def modelled_s(size_bytes):
    """Return the seconds of a ring of four, and of two levels with two nodes of two."""
    half, quarter = size_bytes / 2, size_bytes / 4
    ring_s = 6 * slow.transfer_s(quarter)
    return ring_s, 2 * fast.transfer_s(half) + 2 * slow.transfer_s(quarter)


sizes = (400_000, 4_000)
simulated = two_levels.compare_all_reduces(
    ranks, hierarchical_all_reduce, sizes, fast=fast, slow=slow
)

# %% tags=["hide-input", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Two levels beat one ring on four real processes"
rows = {}
for size, row in zip(sizes, simulated, strict=True):
    ring_s, two_levels_s = modelled_s(size)
    rows[f"{size:,} B, modelled"] = as_ms(ring_s), as_ms(two_levels_s), ring_s / two_levels_s
    rows[f"{size:,} B, simulated"] = as_ms(row.ring_s), as_ms(row.two_levels_s), row.ratio
table = pd.DataFrame(rows, index=["one ring", "two levels", "ratio"]).T
table["ratio"] = table["ratio"].map("{:.2f}".format)
table

# %% tags=["hide-input"]
sentence = "one ring takes longer than two levels for 400 kB"
ratio = simulated[0].ratio
timing.claim(sentence, ratio, at_least=1.3, evidence=simulated[0], simulated=True)

# %% [markdown]
# The simulated times are longer because real messages also take time to send and to receive. This matters more for 4 kB, where the links need less time
# for each message.
#
# **To remember.** Sum inside the node first, and let each GPU carry its own share out. With 8 GPUs per node, a port never carries more than 2/8 of the tensor,
# however many nodes there are.
#
# So few bytes pass through the slow ports. How long does that take on real GPUs?

# %% [markdown] tags=["slide"] minutes=2 headline="Two times, and two ways to combine them"
# ## Part 2: the time on a real cluster
#
# Does a real cluster do this? We can now work out the bet, because we know which bytes take which link.
#
# - Inside: both halves of a ring, by NVLink
# - Outside: a share of the tensor, by each port
# - The time is between the longer one and their sum
#
# Inside the node, 7.52 GB at 900 GB/s take 8.4 ms. Outside, 0.81 GB at 50 GB/s take 16.1 ms. One after the other these are 24.5 ms. But a library can cut the
# tensor into pieces, and while one piece is outside, the next one is summed inside. At best the shorter time is hidden completely, and 16.1 ms are left. So
# the model gives two bounds, the longer of the two times and their sum. (A switch that adds up by itself would send less; we leave it out.) For $g$ GPUs per node and $k$ nodes the two times are
#
# > inside = 2 (g − 1)/g × bytes / (rate of NVLink), outside = 2 (k − 1)/k × (bytes / g) / (rate of a port)
#
# **Your turn.** Write both, each in one line, and begin with the time inside. `bandwidth` is the rate of the link in bytes per second.


# %% tags=["yours"] yours="inside_s" takes=5
def inside_s(size_bytes, gpus, bandwidth):
    """Return the seconds that a two-level all-reduce sends inside a node of so many GPUs."""
    return 2 * (gpus - 1) / gpus * size_bytes / bandwidth


# %% checks="inside_s"
inside_s = check(inside_s)


# %% wrong="inside_s" says="an all-gather as well"
def inside_s(size_bytes, gpus, bandwidth):
    return (gpus - 1) / gpus * size_bytes / bandwidth


# %% wrong="inside_s" says="keeps its own share"
def inside_s(size_bytes, gpus, bandwidth):
    return 2 * size_bytes / bandwidth


# %% wrong="inside_s" says="the cells below need int or float"
def inside_s(size_bytes, gpus, bandwidth):
    return torch.tensor(2 * (gpus - 1) / gpus * size_bytes / bandwidth, dtype=torch.float64)


# %% right="inside_s" style=1
def inside_s(size_bytes, gpus, bandwidth):
    share_s = size_bytes / gpus / bandwidth
    return sum(share_s for _ in range(2 * (gpus - 1)))


# %% right="inside_s" style=2
def inside_s(size_bytes, gpus, bandwidth):
    return 2 * Link(bandwidth).transfer_s(size_bytes - size_bytes / gpus)


# %% [markdown]
# The time outside is that of a ring with one member in each node, because each GPU has a port of its own and carries its own share.


# %% tags=["yours"] yours="outside_s" takes=5
def outside_s(size_bytes, gpus, nodes, bandwidth):
    """Return the seconds that a two-level all-reduce over the nodes keeps each port busy."""
    return 2 * (nodes - 1) / nodes * (size_bytes / gpus) / bandwidth


# %% checks="outside_s"
outside_s = check(outside_s)


# %% wrong="outside_s" says="carries only its own share"
def outside_s(size_bytes, gpus, nodes, bandwidth):
    return 2 * (nodes - 1) / nodes * size_bytes / bandwidth


# %% wrong="outside_s" says="as many members as there are nodes"
def outside_s(size_bytes, gpus, nodes, bandwidth):
    ranks = gpus * nodes
    return 2 * (ranks - 1) / ranks * (size_bytes / gpus) / bandwidth


# %% wrong="outside_s" says="the cells below need int or float"
def outside_s(size_bytes, gpus, nodes, bandwidth):
    seconds = 2 * (nodes - 1) / nodes * (size_bytes / gpus) / bandwidth
    return torch.tensor(seconds, dtype=torch.float64)


# %% right="outside_s" style=1
def outside_s(size_bytes, gpus, nodes, bandwidth):
    piece_s = size_bytes / (gpus * nodes) / bandwidth
    return sum(piece_s for _ in range(2 * (nodes - 1)))


# %% right="outside_s" style=2
def outside_s(size_bytes, gpus, nodes, bandwidth):
    share = size_bytes / gpus
    return 2 * Link(bandwidth).transfer_s(share - share / nodes)


# %% [markdown]
# Now put in the 4 GiB of the bet, on four nodes of eight.

# %%
near_s = inside_s(4 * GIB, gpus=8, bandwidth=900e9)
far_s = outside_s(4 * GIB, gpus=8, nodes=4, bandwidth=50e9)

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Four nodes take about twice as long as one" source="Stas Bekman, Machine Learning Engineering (github.com/stas00/ml-engineering): B200 of AWS"
one_node, four_nodes = two_levels.B200_ONE_NODE.times_s, two_levels.B200_FOUR_NODES.times_s
ratio = four_nodes[4 * GIB] / one_node[4 * GIB]
bet.reveal(published=ratio, source="Bekman, B200, times from bus bandwidths")
in_ms = [1e3 * time_s for time_s in (four_nodes[4 * GIB], max(near_s, far_s), near_s + far_s)]
print(f"ms on four nodes: {in_ms[0]:.2f} (published)")
print(f"the longer of the two times {in_ms[1]:.1f}, their sum {in_ms[2]:.1f} (modelled)")

# %% [markdown] tags=["explain"]
# Bekman measured 22.05 ms on four nodes. That is between the bounds, and it is 2.17 times the 10.15 ms of one node. One ring through a single port would take
# 8.32 GB / 50 GB/s, or 166 ms.
#
# Did the library really use two levels? The time alone does not tell. NCCL, NVIDIA's library of [collectives](glossary.md#collective), can also lay eight
# rings at once through all 32 GPUs, each for an eighth of the tensor and each through another port. A port then carries 8.32 / 8, or 1.04 GB, which takes
# 20.8 ms. This is also close to 22.05 ms, because most of the gain comes from using all the ports.
#
# Sometimes a benchmark gives the answer, if you read it with care. NCCL's own benchmark reports a *[bus bandwidth](glossary.md#bus-bandwidth)*.
# It takes the bytes that each of $R$ GPUs would send in a single ring, 2 (R − 1)/R times the tensor, and divides them by the measured time.
# (Bekman's table has only bus bandwidths, and we computed the times back from them.) Now look at a user's
# [report](https://github.com/lessizzmore/create-a3mega-ztan-fork) from two nodes of Google's A3 Mega, with eight H100 each. An all-reduce of 8
# GiB took 47.5 ms, and its bus bandwidth is printed as 339 GB/s (published). But a port has 25 GB/s there, so all eight ports of a node together
# send only 200.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 400]
carried = helpers.predict(
    "If two levels sum 8 GiB over two nodes of eight GPUs in 47.5 ms, "
    "how many GB/s does each port carry?",
    "GB/s",
)
carried

# %% tags=["run"]
report = two_levels.A3_MEGA
port_bytes = 2 * (2 - 1) / 2 * 8 * GIB / 8
carried_per_s = port_bytes / report.times_s[8 * GIB]

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="A bus bandwidth is not the rate of any port"
carried.reveal(modelled=carried_per_s / 1e9)
printed, stated = report.bus_bandwidth(8 * GIB) / 1e9, report.port_bytes_per_s / 1e9
print(f"GB/s: bus bandwidth {printed:.0f} (published), of a port {stated:.0f} (stated)")

# %% [markdown] tags=["explain"]
# The 8 GiB are 8.59 GB. Over two nodes 2 × 1/2 of an eighth passes each port, which is 1.07 GB. In 47.5 ms these are 22.6 GB/s, or 90 % of what the port can
# do. So the 339 GB/s are not the rate of any port. The report even rules out eight rings, because each port would have carried 2.01 GB, for which it needs
# 80 ms. The library must have summed inside the nodes first.
#
# A single ring sends 2 (R − 1)/R of the tensor, and a port in two levels 2 (k − 1)/k of a $g$-th of it. Since $R$ is $g$ times $k$, the second divided by
# the first is (k − 1)/(R − 1), here 1/15, so multiply a bus bandwidth by that to get the rate of a port (as Bekman's page does). If $g$ rings ran
# instead, divide it by $g$.
#
# **Your turn.** Write the first of the two, again in one line.


# %% tags=["yours"] yours="port_rate" takes=5
def port_rate(bus_bandwidth, gpus, nodes):
    """Return the rate of a port, if a two-level all-reduce had this bus bandwidth."""
    return bus_bandwidth * (nodes - 1) / (gpus * nodes - 1)


# %% checks="port_rate"
port_rate = check(port_rate)


# %% wrong="port_rate" says="This is the rate if as many rings ran"
def port_rate(bus_bandwidth, gpus, nodes):
    return bus_bandwidth / gpus


# %% wrong="port_rate" says="One less than all GPUs"
def port_rate(bus_bandwidth, gpus, nodes):
    return bus_bandwidth * (nodes - 1) / (gpus * nodes)


# %% wrong="port_rate" says="the cells below need int or float"
def port_rate(bus_bandwidth, gpus, nodes):
    rate = bus_bandwidth * (nodes - 1) / (gpus * nodes - 1)
    return torch.tensor(rate, dtype=torch.float64)


# %% right="port_rate" style=1
def port_rate(bus_bandwidth, gpus, nodes):
    ranks = gpus * nodes
    size_over_time = bus_bandwidth / (2 * (ranks - 1) / ranks)
    return size_over_time / gpus * 2 * (nodes - 1) / nodes


# %% right="port_rate" style=2
def port_rate(bus_bandwidth, gpus, nodes):
    ranks = gpus * nodes
    one_ring_s = inside_s(1.0, ranks, bus_bandwidth)
    return 2 * (1 - 1 / nodes) / gpus / one_ring_s


# %%
b200 = two_levels.B200_FOUR_NODES.bus_bandwidth(4 * GIB)
in_two_levels = port_rate(b200, gpus=8, nodes=4)

# %% tags=["hide-input"]
print(f"GB/s of the B200: bus bandwidth {b200 / 1e9:.0f} (published)")
print(f"per port {in_two_levels / 1e9:.1f} in two levels, {b200 / 8e9:.1f} in eight rings")

# %% [markdown]
# The B200 had a bus bandwidth of 377 GB/s, which makes 36.5 or 47.2 GB/s per port. Both are possible, so only NCCL's log could tell which one ran.
#
# Does the model hold for smaller tensors as well?


# %% tags=["hide-input"]
def bounds(size_bytes):
    near_s = inside_s(size_bytes, gpus=8, bandwidth=900e9)
    far_s = outside_s(size_bytes, gpus=8, nodes=4, bandwidth=50e9)
    return max(near_s, far_s), near_s + far_s


named = {"4 GiB": 4 * GIB, "1 GiB": GIB, "256 MiB": 256 * MIB, "16 MiB": 16 * MIB}
rows = {
    name: [
        f"{1e3 * time_s:.2f}" for time_s in (one_node[size], four_nodes[size], *bounds(size))
    ]
    for name, size in named.items()
}
headings = [
    "ms on one node (published)",
    "ms on four nodes (published)",
    "longer of the two times, ms (modelled)",
    "their sum, ms (modelled)",
]
pd.DataFrame(rows, index=headings).T

# %% [markdown]
# For 1 and 4 GiB the four nodes are between the bounds. At 256 MiB they are above both, and at 16 MiB they need five times the upper bound.
#
# **To remember.** An all-reduce of 1 to 4 GiB takes 2.2 times as long on four B200 nodes as on one. A bus bandwidth is not the rate of a port. With two
# levels, multiply it by (k − 1)/(R − 1) before you compare it with a port.
#
# Large tensors leave the node at a moderate price. What is missing in the model for small ones?

# %% [markdown] tags=["slide"] minutes=2 headline="Each message pays a latency first"
# ## Part 3: the wait of a small tensor
#
# What does a small tensor wait for? We ask this next, because most tensors are smaller than 1 GiB.
#
# - Each message pays a latency before its first byte
# - A ring over $k$ nodes sends 2 (k − 1) messages in a row
# - For a tiny tensor only this waiting is left
#
# The model has counted bytes and nothing else, but each message also pays a latency before its first byte arrives (lesson 05). In a ring over $k$ nodes at
# least 2 (k − 1) messages cross the network one after the other. If the tensor is tiny, only this waiting is left, and each further node should add the same
# time.
#
# In 2019 Jacob Kahn measured almost the smallest case, an all-reduce of two float32 values on nodes with eight V100
# ([two](https://gist.github.com/jacobkahn/a92f4425abf831ac0799fabe9079263d), [four](https://gist.github.com/jacobkahn/1fb3977e99056b7935a6c63dda1e145f) and
# [eight nodes](https://gist.github.com/jacobkahn/3150a1a38abba40f58d8263d9c55969f), published). Two nodes took 163.4 µs, and four nodes took 319.4 µs.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[100, 2000]
eight = helpers.predict(
    "If two nodes need 163.4 µs for 8 bytes and four need 319.4 µs, "
    "how many microseconds do eight nodes need?",
    "µs",
)
eight

# %% tags=["run"]
two_us, four_us, eight_us = (1e6 * row.times_s[8] for row in two_levels.V100)
per_node_us = (four_us - two_us) / 2

# %% tags=["look", "slide", "slide-output"] minutes=2 headline="Each further node adds the same wait"
eight.reveal(
    modelled=four_us + 4 * per_node_us, published=eight_us, source="Kahn, eight V100 per node"
)
print(f"µs: each further node {per_node_us:.0f}, so eight nodes", end=" ")
print(f"{four_us + 4 * per_node_us:.1f} (modelled) and {eight_us:.1f} (published)")

# %% [markdown] tags=["explain"]
# Two further nodes added 156 µs, so each added 78. Four more should add 312, and 319.4 + 312 is 631.4 µs. He measured 631.3. That it fits so
# closely is luck, because his row for 32 bytes is 4 µs lower. (NCCL can also sum along a tree, where the waiting grows only with the logarithm
# of the nodes.)
#
# To find out how small is small, take two B200 times from Bekman's table, 0.378 ms for 1 MiB and 87.2 ms for 16 GiB, which are 17.2 GB. A straight line
# through both says that an all-reduce first waits and then sends its bytes at some rate. Waiting and sending take equally long if the bytes are the wait times
# the rate.

# %%
small, large = MIB, 16 * GIB
slope = (large - small) / (four_nodes[large] - four_nodes[small])  # bytes per second
wait_s = four_nodes[small] - small / slope
line = {size: wait_s + size / slope for size in four_nodes}

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="On four nodes small tensors mostly wait" source="Stas Bekman, Machine Learning Engineering (github.com/stas00/ml-engineering): B200 of AWS" untitled=true
figure = two_levels.draw_sizes(
    {"one node": one_node, "four nodes": four_nodes},
    bounds={size: bounds(size) for size in four_nodes},
    line=line,
)
alt = "Times over bytes: above 512 MiB inside the bounds, below they stop falling."
plotting.show(figure, alt=alt)

# %% tags=["hide-input"]
print(f"a wait in ms of {1e3 * wait_s:.3f}, and a rate in GB/s of {slope / 1e9:.0f}")
print(f"both terms are equal at {wait_s * slope / 1e6:.0f} MB")
for name, size in {"256 MiB": 256 * MIB, "64 KiB": 64 * KIB}.items():
    published = f"{1e3 * four_nodes[size]:.2f} (published)"
    share = line[size] / four_nodes[size]
    print(f"ms for {name}: {published}, and the line says {share:.2f} of that")

# %% [markdown]
# The line is 0.373 ms + bytes / (198 GB/s), and 0.373 ms × 198 GB/s is 74 MB. Below that size, an all-reduce over these four nodes mostly waits. PyTorch's
# DDP sends its gradients in [buckets](glossary.md#bucket) of 25 MiB (lesson 05), so between nodes it may be worth trying larger ones.
#
# The line is a rough tool, because it is 24 % too low at 256 MiB. Below 128 KiB it fails completely. For 64 KiB the cluster took about 3.2 ms, eight times as
# long as for 1 MiB, and we do not know why.
#
# Now take the layer of lesson 06. Each token has a vector of 8,192 bytes, so for one sequence of 4,096 tokens it sums exactly 32 MiB. On the two
# A3 Mega nodes this size took 1.06 ms (published). Its bytes need only 0.13 ms inside and 0.17 ms outside (modelled), so even 32 MiB are a small
# tensor. (Latency explains 0.14 ms, the time of 8 bytes. We do not know the rest.)
#
# A server has smaller ones. When Llama 2 70B writes a token for one user, each of its 80 layers sums two vectors of 8,192 elements, 16 KiB each. If you cut
# the layers over two nodes, all these 160 sums cross the network, and on the A3 Mega nodes one of them takes 139 µs (published). Together they take 22 ms per
# token. To read its share of the weights, 140 GB / 16, an H100 with 3,350 GB/s needs 2.6 ms. So the sixteen GPUs would spend more than eight times as long
# on sums as on weights.

# %% tags=["hide-input"]
nvlink, port = report.inside_bytes_per_s, report.port_bytes_per_s
layer_s = inside_s(32 * MIB, 8, nvlink), outside_s(32 * MIB, 8, 2, port)
names = {"32 MiB": 32 * MIB, "16 KiB": 16 * KIB, "8 B": 8}
for name, size in names.items():
    print(f"ms for {name} on two A3 Mega nodes: {1e3 * report.times_s[size]:.3f} (published)")
near_ms, far_ms = (1e3 * time_s for time_s in layer_s)
print(f"ms for the bytes of 32 MiB: {near_ms:.2f} inside, {far_ms:.2f} outside (modelled)")
print(f"ms per token for 160 sums of 16 KiB: {160e3 * report.times_s[16 * KIB]:.1f}")
print(f"ms per token for the weights: {1e3 * 140e9 / 16 / 3350e9:.1f} (modelled)")
print(f"ms for 32 KiB on one B200 node: {1e3 * one_node[32 * KIB]:.3f} (published)")

# %% [markdown]
# If you cut between the layers instead, as vLLM's rule says for models that are too large for one node, the two nodes work one after the other,
# and reading takes 5.2 ms, as on one node. The 160 sums then stay inside a node. They are not free there, since even 32 KiB took 48 µs on one
# B200 node (published), which makes 8 ms for 160 of them. But together this is about half of the 25 ms of before, and each token crosses the
# network once and not 160 times.
#
# **To remember.** Each further node adds the same wait, 78 µs on those V100 nodes. On four B200 nodes an all-reduce of less than 74 MB mostly waits, so send few
# large tensors across nodes and not many small ones.
#
# So a large all-reduce may leave the node. Is this true for every large exchange?

# %% [markdown] tags=["slide"] minutes=2 headline="Some exchanges have nothing to add"
# ## Part 4: an exchange without a sum
#
# What if there is nothing to add? It was the sum that made one tensor out of eight, so the last question is about exchanges without a sum.
#
# - In an [all-to-all](glossary.md#all-to-all) each piece has one receiver
# - Nothing can be added up on the way
# - [Experts](glossary.md#mixture-of-experts) receive their tokens in this way
#
# In an *all-to-all* each GPU has a different piece for every other GPU. A mixture of experts needs this exchange, because each token has to travel to the
# GPU that holds its expert ([lesson 09](09_long_sequences_and_experts.ipynb)). Nothing can be added up on the way, since each piece has a receiver of its own. (Only a token that two experts of
# the same node want can be sent once and copied there.)
#
# Suppose that 32 GPUs in four nodes again hold 4.29 GB each, cut into 32 pieces. One piece stays, 7 go to GPUs of the same node, and 24 leave the node. So a
# port carries 24/32, or three quarters of the tensor.
#
# **Your turn.** Write the time. The pieces inside and the pieces outside travel at the same time, because they use different links. `nvlink` and `port` are
# the two rates in bytes per second.


# %% tags=["yours"] yours="all_to_all_s" takes=6
def all_to_all_s(size_bytes, gpus, nodes, nvlink, port):
    """Return the seconds of an all-to-all in which each GPU holds so many bytes."""
    piece = size_bytes / (gpus * nodes)
    return max((gpus - 1) * piece / nvlink, (nodes - 1) * gpus * piece / port)


# %% checks="all_to_all_s"
all_to_all_s = check(all_to_all_s)


# %% wrong="all_to_all_s" says="at the same time"
def all_to_all_s(size_bytes, gpus, nodes, nvlink, port):
    piece = size_bytes / (gpus * nodes)
    return (gpus - 1) * piece / nvlink + (nodes - 1) * gpus * piece / port


# %% wrong="all_to_all_s" says="Nothing is added up"
def all_to_all_s(size_bytes, gpus, nodes, nvlink, port):
    piece = size_bytes / (gpus * nodes)
    return max((gpus - 1) * piece / nvlink, (nodes - 1) * piece / port)


# %% wrong="all_to_all_s" says="the cells below need int or float"
def all_to_all_s(size_bytes, gpus, nodes, nvlink, port):
    pieces = torch.tensor([gpus - 1, (nodes - 1) * gpus], dtype=torch.float64)
    rates = torch.tensor([nvlink, port], dtype=torch.float64)
    return (pieces * size_bytes / (gpus * nodes) / rates).max()


# %% right="all_to_all_s" style=1
def all_to_all_s(size_bytes, gpus, nodes, nvlink, port):
    near_s = (gpus - 1) / (gpus * nodes) * size_bytes / nvlink
    far_s = (1 - 1 / nodes) * size_bytes / port
    return near_s if near_s > far_s else far_s


# %% right="all_to_all_s" style=2
def all_to_all_s(size_bytes, gpus, nodes, nvlink, port):
    ranks = gpus * nodes
    seconds = {True: 0.0, False: 0.0}
    for other in range(1, ranks):  # the pieces of GPU 0
        stays = other < gpus
        seconds[stays] += size_bytes / ranks / (nvlink if stays else port)
    return max(seconds.values())


# %% [markdown]
# For an estimate, remember which part of the tensor each port carries in an all-reduce over the same four nodes.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 50]
more = helpers.predict(
    "On four nodes of eight GPUs, how many times as many bytes as an all-reduce "
    "does an equal all-to-all send through each port?",
    "x",
)
more

# %% tags=["run"]
exchange_s = all_to_all_s(4 * GIB, gpus=8, nodes=4, nvlink=900e9, port=50e9)  # of the ports
sum_s = outside_s(4 * GIB, gpus=8, nodes=4, bandwidth=50e9)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="Without a sum nothing shrinks on the way"
more.reveal(modelled=exchange_s / sum_s)

# %% [markdown] tags=["explain"]
# In the all-reduce a port carries 2 × 3/4 of an eighth, which is 3/16. In the all-to-all it carries 3/4, four times as much. For $g$ GPUs per node the factor
# is $g/2$. All ports are already busy, so no clever order of the messages can help.
#
# Inside one node the roles are reversed, because there the all-reduce sends its bytes twice and the all-to-all only once. So the all-to-all pays much more
# for leaving the node.
#
# Take the H100 of lesson 06 again, with 450 GB/s inside and ports of 50 GB/s, and 1 GB on each GPU. In one node an all-to-all sends 7/8 GB at 450 GB/s, which
# takes 1.94 ms. On two nodes half of the tensor goes through the port and takes 10 ms, and the pieces inside go at the same time through the other link.
# That is 5.1 times as long. The all-reduce goes from 3.89 ms to 3.89 + 2.5, which is 1.64 times as long.

# %%
h100 = {"nvlink": 450e9, "port": 50e9}
alone_s = inside_s(1e9, 8, h100["nvlink"]), all_to_all_s(1e9, 8, 1, **h100)
several_s = {
    nodes: (
        alone_s[0] + outside_s(1e9, 8, nodes, h100["port"]),
        all_to_all_s(1e9, 8, nodes, **h100),
    )
    for nodes in (2, 4, 16)
}

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Times as long as on one node: an all-to-all pays far more"
names = ["all-reduce", "all-to-all"]
rows = {
    f"{nodes} nodes": [f"{new / old:.3g}" for new, old in zip(times, alone_s, strict=True)]
    for nodes, times in several_s.items()
}
pd.DataFrame(rows, index=names)

# %% [markdown]
# These are the times relative to one node (modelled), for an all-reduce whose two times follow each other. The figure begins with the same two H100 nodes.
# Give each node 72 GPUs instead of 8, as in the machines that connect 72 GPUs by NVLink, and see what becomes of the two curves.

# %% tags=["hide-input"]
two_levels.explore_leaving()

# %% [markdown]
# Only the curve of the all-reduce falls close to 1, because 72 ports share the sum of their node. In an all-to-all each GPU has as many bytes for the other
# node as before.
#
# Does a measurement fit the bytes of the ports? DeepSeek's library [DeepEP](https://github.com/deepseek-ai/DeepEP) exchanges tokens between
# experts, and its authors publish rates per GPU. Their rates count all exchanged bytes, also those that stay in the node. Only (k − 1)/k of the
# bytes leave it, so ports of 50 GB/s allow 100 GB/s on two nodes and 67 on four, if every copy of a token is sent separately. On GPUs of the
# H100's generation they measured 90 and 61, about nine tenths of both limits.

# %% tags=["hide-input"]
for row in two_levels.DEEP_EP:
    most = row.port_bytes_per_s * row.nodes / (row.nodes - 1)
    bound = f"{most / 1e9:.0f} (modelled)"
    print(f"GB/s on {row.nodes} nodes: {bound}, {row.bytes_per_s / 1e9:.0f} (published)")

# %% [markdown]
# **To remember.** In an all-to-all a port carries $g/2$ times as many bytes as in an all-reduce, with eight GPUs four times. On two H100 nodes it takes 5.1
# times as long as on one, and an all-reduce, of which nothing is hidden, only 1.64 times.
#
# Is vLLM's rule right for the layer of lesson 06?

# %% [markdown]
# ## Back to the bet
#
# The all-reduce of 4 GiB takes only 2.17 times as long on four nodes as on one, because each of eight ports carries about 1 GB, instead of a
# single one carrying 8. For a small tensor many ports are of little use, since it does not wait for bytes, and on the V100 nodes each further
# node added 78 µs. In an all-to-all there is nothing to add up, because each piece has a receiver of its own, and on two H100 nodes it takes 5.1
# times as long as on one.
#
# And the layer of lesson 06, cut over sixteen H100 in two nodes? For 32 layers and 16 sequences a step makes 4 × 32 × 16, or 2,048 sums of 32 MiB, together
# 68.7 GB. Inside its node a GPU sends 2 × 7/8 of them, and its port carries an eighth. With ports of 50 GB/s this gives the second row of the table, for a step of
# Llama 2 7B in which nothing is hidden (modelled). The first row is that of lesson 06.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Twice the GPUs, and still the sums should stay inside"
summed = 2048 * 32 * MIB  # bytes of one step
computing_s = 6 * 7e9 * 16 * 4096 / (8 * 400e12)  # of eight GPUs
gradients = 2 * 7e9
rows = {
    "eight GPUs": (computing_s, inside_s(summed, 8, 450e9), 0),
    "sixteen, layers cut over both": (
        computing_s / 2,
        inside_s(summed, 8, 450e9),
        outside_s(summed, 8, 2, 50e9),
    ),
    "sixteen, a copy in each node": (
        computing_s / 2,
        inside_s(summed / 2, 8, 450e9),
        outside_s(gradients, 8, 2, 50e9),
    ),
}
rows = {name: [*times, sum(times)] for name, times in rows.items()}
headings = ["s of computing", "s inside", "s in ports", "s in all"]
table = pd.DataFrame(rows, index=headings).T
table.map(lambda time_s: f"{time_s:.2f}" if time_s else "")

# %% [markdown]
# Even if a sum cost only its bytes, twice as many GPUs would be only 1.3 times as fast. Now suppose that each of the 2,048 sums takes 1.06 ms,
# as on the A3 Mega, where a port has half the rate. Then the sums alone take 2.17 s, nearly twice the whole step of eight GPUs (modelled, with
# nothing but bytes). So not all bytes have to leave the node, but these sums should still stay inside, as vLLM's rule says.
#
# The last row shows another way to use the second node. Each node holds the whole model, cut over its own eight GPUs, and takes half of the sequences. Only
# gradients leave the node, an eighth of 14 GB per GPU, and they leave once per step and not 2,048 times.

# %% tags=["hide-input"]
ranks.close()

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## What to take home
#
# 1. Sum inside the node, then send shares out.
# 2. Small tensors wait, and not for bytes.
# 3. An all-to-all pays far more for leaving the node.
#
# So before an exchange leaves the node, ask whether something is added up, and how large the tensor is. In the
# [exercises](exercises/07_links_in_two_levels_exercises.ipynb) you find the size at which a cluster stops waiting, read other people's benchmarks, and sum in
# three levels.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A tensor of $S$ bytes on each of $R$ GPUs, in $k$ nodes of $g$; the [bandwidth](glossary.md#bandwidth) $B$ of a GPU's link inside the node and $B_p$ of
# its port.
#
# | quantity | formula | for |
# |---|---|---|
# | all-reduce, inside | $2\,\frac{g - 1}{g} \cdot \frac{S}{B}$ | two levels |
# | all-reduce, outside | $2\,\frac{k - 1}{k} \cdot \frac{S}{g\,B_p}$ | two levels, all ports busy |
# | time of an all-reduce | between the larger of the two and their sum | large tensors |
# | bus bandwidth | $2\,\frac{R - 1}{R} \cdot \frac{S}{\text{time}}$ | an all-reduce |
# | rate of a port | bus bandwidth $\cdot \frac{k - 1}{R - 1}$ | two levels |
# | all-to-all | $\max\left(\frac{g - 1}{R} \cdot \frac{S}{B},\; \frac{k - 1}{k} \cdot \frac{S}{B_p}\right)$ | equal pieces |
# | size below which nodes mostly wait | wait × rate | a straight line through two times |
