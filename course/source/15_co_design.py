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
#     number: "15"
#     title: Co-design
#     needs: ["14"]
#     objectives:
#       - count|counted the tiles and the cycles of a block of convolutions on an array
#       - predict|predicted from which number of channels on a depthwise convolution saves time
#       - choose|chose the widths, the rows and the bits of a small network for Google's first TPU
#       - write|wrote the mask of a 2:4 pattern, which says what stays
#       - find|found out which library computes a call on which processor
# ---

# %% [markdown] tags=["objectives"]
# # Co-design
#
# In 2021 Mingxing Tan and Quoc Le changed a network that they had designed to save arithmetic, EfficientNet-B4. In its first three groups
# of blocks they replaced the [depthwise convolution](glossary.md#depthwise-convolution), in which each channel has a small kernel of its own, by an ordinary one. Afterwards
# the network needed 7.5 billion operations per image instead of 4.5 billion. Before the change, one core of a TPU had processed 262 images
# per second (published in Table 3 of [EfficientNetV2](https://arxiv.org/abs/2104.00298), as are all numbers of this change). How many did
# it process afterwards?
#
# So far we took the network as given and counted what it loses. To choose network and machine for each other is called *co-design*. You
# will design a small network that reads handwritten digits, for the array of [lesson 14](14_systolic_arrays.ipynb), the first TPU.
#
# We had no TPU, so cycles are counted by a model here. The accuracies in the text come from the machine on which this page was built, two
# cores of an AMD EPYC. The outputs are your machine's once you have run the page.

# %% tags=["hide-input"]
import copy
import json
import warnings
from pathlib import Path

import pandas as pd
import torch
from torch import nn

import helpers
from helpers import exercises, plotting, results, timing, training
from helpers.studies import co_design, stack
from helpers.studies.simulators import systolic

check = exercises.checks_of("co_design")
warnings.filterwarnings("ignore", "Sparse CSR")  # PyTorch calls its CSR tensors beta

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# What do two thirds more operations cost?
#
# - Three of seven groups change their convolutions
# - 4.5 billion operations become 7.5 billion
# - Images per second before: 262

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 600]
bet = helpers.predict(
    "After the change, how many images per second does the TPU core process instead of 262?",
    "images/s",
)
bet

# %% [markdown]
# If time followed the operations, the answer would be 262 × 4.5 / 7.5, or 157. You have reason to doubt it, because lesson 14 ended with a
# depthwise convolution that occupied 9 of 65,536 multipliers. But is a depthwise convolution always a mistake? If you design a network,
# you decide this for every layer. Papers report the operations, but you pay for the time.
#
# The first TPU has 256 × 256 multipliers at 700 MHz, its weights have 8 bits, and its memory delivers 34 GB/s. One line, which you know in
# pieces from lesson 14, gives the time of each layer.
#
# > cycles of a layer = tiles × the larger of (rows, 1,349) + 766
#
# A tile is a square of 256 × 256 weights. The rows are the inputs that pass through it, one per cycle, and 1,349 cycles are the time in
# which memory delivers its 65,536 bytes. The 766 cycles fill and empty the array, once per layer. Parts 1 and 2 change the tiles, Part 3 the rows and the bytes, and Part 4 asks what a zero saves.
# In Part 5 we ask who else decides.

# %% [markdown] tags=["slide"] minutes=3 headline="A depthwise step fills a tile with zeros"
# ## Part 1: a depthwise convolution
#
# What does a depthwise convolution cost on an array? We begin with the exchange itself, because on
# one small block we can count everything.
#
# - *MBConv*: widen by 1 × 1, depthwise 3 × 3, narrow by 1 × 1
# - *Fused-MBConv*: an ordinary 3 × 3 that widens, narrow by 1 × 1
# - Here from 28 to 256 to 28 channels
#
# Our network cuts a digit of 28 × 28 pixels into 7 × 7 patches of 4 × 4 pixels and turns each patch into 28 channels. Then comes one block, and a last layer with ten
# results. (Part 2 explains why 28.) A block first makes the channels many and then few again. In MBConv, which Tan and Le began with, a
# 1 × 1 convolution widens 28 channels to 256. Then a depthwise 3 × 3 convolution works on each of the 256 alone, and another 1 × 1
# convolution narrows them to 28. In Fused-MBConv an ordinary 3 × 3 convolution does the first two steps at once, and the narrowing stays.


# %%
def mbconv(channels, width):
    return nn.Sequential(
        nn.Conv2d(channels, width, 1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, groups=width),  # depthwise
        nn.ReLU(),
        nn.Conv2d(width, channels, 1),
    )


def fused(channels, width):
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, channels, 1),
    )


# %% [markdown]
# Count the multiply-adds at one position. MBConv takes 28 × 256 to widen, 9 × 256 for the depthwise step, and 256 × 28 to narrow, which
# makes 16,640. The fused block takes 9 × 28 × 256 and then 256 × 28, or 71,680, 4.3 times as many.
#
# Now count tiles. To widen, the array needs a matrix of 28 × 256 weights, which fits in one tile, and to narrow it needs another. The
# fused 3 × 3 convolution has 9 × 28, or 252, inputs per position and 256 results. So it fills one tile almost completely, and its block
# takes two tiles.
#
# **Your turn.** Write the tiles that a matrix of `rows` × `columns` weights takes on an array of side `side`.


# %% tags=["yours"] yours="tiles" takes=5
def tiles(rows, columns, side=256):
    """Return the number of tiles that rows x columns weights occupy."""
    down = -(-rows // side)  # a partly filled tile takes as long as a full one
    across = -(-columns // side)
    return down * across


# %% checks="tiles"
tiles = check(tiles)


# %% wrong="tiles" says="Round up the rows and the columns each"
def tiles(rows, columns, side=256):
    return -(-rows * columns // side**2)


# %% wrong="tiles" says="so round up"
def tiles(rows, columns, side=256):
    return (rows // side) * (columns // side)


# %% wrong="tiles" says="Full tiles need no further tile"
def tiles(rows, columns, side=256):
    return (rows // side + 1) * ((columns + side - 1) // side)


# %% right="tiles" style=1
def tiles(rows, columns, side=256):
    import math

    return math.ceil(rows / side) * math.ceil(columns / side)


# %% right="tiles" style=2
def tiles(rows, columns, side=256):
    return len(range(0, rows, side)) * len(range(0, columns, side))


# %% [markdown]
# What about the depthwise step? A channel has only 9 weights, in one column. If each channel gets a tile of its own, the 256 channels take
# 256 tiles. But a compiler could pack them. It would write the 9 weights of the first channel into the rows 1 to 9 of column 1, those of
# the second channel into the rows 10 to 18 of column 2, and so on down the diagonal.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Even packed, a depthwise tile is nearly empty"
alt = (
    "One tile has 28 short strips on a diagonal and is empty otherwise; the other one is full."
)
plotting.show(co_design.draw_packed_tile(28, side=256), alt=alt)

# %% [markdown]
# After 28 kernels, 252 of the 256 rows are used, and nearly the whole tile is zeros. So the 256 kernels need ten tiles.

# %% tags=["predict"]
block_ratio = helpers.predict(
    "How many times as many tiles as the fused block does the MBConv block need?", "times"
)
block_ratio

# %% tags=["run"]
packed = 256 // 9  # channels on the diagonal of one tile
depthwise_tiles = tiles(256, packed, side=packed)  # 256 channels, 28 in each tile
mbconv_tiles = tiles(28, 256) + depthwise_tiles + tiles(256, 28)
fused_tiles = tiles(9 * 28, 256) + tiles(256, 28)

# %% tags=["look"]
block_ratio.reveal(counted=mbconv_tiles / fused_tiles)

# %% [markdown] tags=["explain"]
# It needs 12 instead of 2, six times as many. With 64 digits at once, 64 × 49, or 3,136 rows pass through each tile. They are more than
# 1,349, so the rows decide, and the array takes 12 × 3,136 cycles for MBConv and 2 × 3,136 for the fused block. In addition each product,
# that is, each convolution, takes the 766 cycles to fill and empty the array.
#
# **Your turn.** Put this into code, for any number of rows. `products` is the number of convolutions in
# the block.


# %% tags=["yours"] yours="block_cycles" takes=5
def block_cycles(tile_count, products, rows, tile_cycles=1349):
    """Return the cycles of a block: a product takes 766 more, to fill and empty the array."""
    return tile_count * max(rows, tile_cycles) + products * 766


# %% checks="block_cycles"
block_cycles = check(block_cycles)


# %% wrong="block_cycles" says="before its bytes have arrived"
def block_cycles(tile_count, products, rows, tile_cycles=1349):
    return tile_count * rows + products * 766


# %% wrong="block_cycles" says="fills and empties the array"
def block_cycles(tile_count, products, rows, tile_cycles=1349):
    return tile_count * max(rows, tile_cycles)


# %% wrong="block_cycles" says="once per product"
def block_cycles(tile_count, products, rows, tile_cycles=1349):
    return tile_count * max(rows, tile_cycles) + 766


# %% right="block_cycles" style=1
def block_cycles(tile_count, products, rows, tile_cycles=1349):
    slower = rows if rows > tile_cycles else tile_cycles
    return slower * tile_count + sum(766 for _ in range(products))


# %% right="block_cycles" style=2
def block_cycles(tile_count, products, rows, tile_cycles=1349):
    import numpy as np

    return tile_count * np.maximum(rows, tile_cycles) + 766 * products


# %% [markdown]
# MBConv has three products and the fused block two, so the sums are 39,930 and 7,804 cycles (modelled), a ratio of 5.1. And what do the two
# blocks learn? We train a network with each of them for three epochs on 4,000 digits, test it on 1,000 others, and do so with two seeds.

# %% tags=["hide-input", "run"]
digits = list(helpers.make_MNIST_loader(batch_size=64))
unseen = list(helpers.make_MNIST_loader(batch_size=500, split="test"))


def trained(block, *, seed=0, channels=28, width=256):
    """Return a trained network: patches of 4 x 4, a block, a layer with ten results."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(1, channels, 4, stride=4),  # (N, 1, 28, 28) to (N, channels, 7, 7)
        nn.ReLU(),
        block(channels, width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(49 * channels, 10),
    ).to(memory_format=torch.channels_last)
    helpers.train(network, digits, epochs=3, seed=seed)
    return network


networks = {"mbconv": [trained(mbconv, seed=seed) for seed in (0, 1)]}

# %% tags=["hide-input", "run"]
networks["fused"] = [trained(fused, seed=seed) for seed in (0, 1)]
accuracies = {
    name: [100 * training.accuracy(network, unseen) for network in seeds]
    for name, seeds in networks.items()
}

# %% tags=["hide-input", "look", "slide", "slide-output", "nbval-ignore-output"] minutes=2 headline="MBConv takes six times the tiles, and is no better"
rows = {}
for name, count, products, macs in (
    ("mbconv", mbconv_tiles, 3, 28 * 256 + 9 * 256 + 256 * 28),
    ("fused", fused_tiles, 2, 9 * 28 * 256 + 256 * 28),
):
    cycles = block_cycles(count, products, 64 * 49)
    both = " and ".join(f"{accuracy:.1f}" for accuracy in accuracies[name])
    rows[name] = (f"{macs:,}", count, f"{cycles:,}", f"{both} % (measured)")
columns = ["multiply-adds per position", "tiles", "cycles, 64 digits", "accuracy, two seeds"]
pd.DataFrame(rows, index=columns).T.rename_axis("block, 28 to 256 to 28")

# %% tags=["hide-input"]
run = systolic.simulate_network(
    fused(28, 256), (64, 28, 7, 7), rows=256, columns=256, double_buffered=True
)
print(f"the fused block in lesson 14's simulator: {run.cycles:,} cycles (simulated)")
assert run.cycles == block_cycles(fused_tiles, 2, 64 * 49)
assert block_cycles(mbconv_tiles, 3, 64 * 49) == 39_930
means = {name: sum(pair) / 2 for name, pair in accuracies.items()}
assert min(means.values()) > 88
assert abs(means["mbconv"] - means["fused"]) < 4

# %% [markdown] tags=["explain"]
# The fused block reads 95.6 and 95.1 % of the unseen digits, and MBConv 93.7 and 93.8 % (measured), so with the same training it is not better
# here. (With 1,000 digits a difference of about a point may be chance.) For the tiles of one MBConv block you could also have six fused ones.
#
# Is the fused block always better, then? Let a block have $c$ channels and widen them to $w$, and count its tiles without rounding. The
# narrowing is the same in both blocks, so we leave it out.
#
# > fused: 9 × c × w / 256² tiles, with depthwise: c × w / 256² + 9 × w / 256 tiles
#
# The last term is the packed diagonal. It needs 9 rows for each of the w kernels, and 256 rows make a tile. The two counts are equal if 8 × c is 9 × 256,
# that is, at 288 channels, and beyond that the depthwise convolution saves tiles. The width has dropped out. For an array of side 128 the
# border lies at 9/8 × 128, or 144 channels.
#
# We can test this border, because Google's TPUs of that time had arrays of side 128, and Tan and Le published more than one change.
# EfficientNet-B4 has seven groups of blocks, with 24, 32, 56, 112, 160, 272 and 448 channels. The first three lie far below 144, and the
# last two far above.

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="With fewer channels, fusing takes fewer tiles"
groups = [24, 32, 56, 112, 160, 272, 448]
alt = (
    "The ratio of tiles rises with the channels; three groups lie far below 1, two far above."
)
plotting.show(co_design.draw_border(groups), alt=alt)

# %% tags=["look", "slide", "slide-output"] minutes=1 headline="The network does more operations in less time"
bet.reveal(published=362, source="Tan and Le, EfficientNetV2, 2021, table 3")

# %% [markdown] tags=["explain"]
# | fused groups (all published) | operations per image | images per second | accuracy on ImageNet |
# |---|--:|--:|--:|
# | none | 4.5 billion | 262 | 82.8 % |
# | the first three, up to 56 channels | 7.5 billion | 362 | 83.1 % |
# | the first five, up to 160 | 21.3 billion | 327 | 83.1 % |
# | all seven, up to 448 | 34.4 billion | 254 | 81.7 % |
#
# So much for the bet. The network with two thirds more operations is 1.38 times as fast. The fastest row fuses only groups that lie far
# below the border, and the last row, which fuses two groups far above it, is the slowest. In between, the groups with 112 and 160 channels
# lie on the two sides of the border, so there our model expects neither a gain nor the fall from 362 to 327.
#
# How far does the model hold? It counts all kernels as 3 × 3, whereas some groups of EfficientNet-B4 have 5 × 5. A real TPU has other units
# too, which may compute a depthwise step without the array. And on a V100, a GPU without a large array, the first exchange helped as well,
# with 216 images per second instead of 155 (the same table). So the agreement supports our model but does not prove it.
#
# **To remember.** On an array, a depthwise convolution saves tiles only in blocks with more than about 9/8 × side channels and whole tiles shift
# this. That is 288 channels for a side of 256 (342 for our width of 256, in whole tiles) and 144 for a side of 128.
#
# The 3 × 3 convolution of our fused block fills its tile almost completely. Was that luck?

# %% [markdown] tags=["slide"] minutes=2 headline="A width counts in whole tiles"
# ## Part 2: the widths
#
# Which widths does the array want? It was design and not luck, and we look at it next because a width is a single number in your code.
#
# - The array counts 9 × channels in a 3 × 3 convolution
# - It rounds up to the next multiple of 256
# - A power of two is no good number by itself
#
# Most people would have written 32 channels and not 28, since 32 is a power of two.

# %% tags=["predict"]
tiles_32 = helpers.predict(
    "If the fused block has 32 channels instead of 28, "
    "how many tiles does its 3 x 3 convolution need?",
    "tiles",
)
tiles_32

# %% tags=["run"]
tiles_of_32 = tiles(9 * 32, 256)

# %% tags=["look"]
tiles_32.reveal(counted=tiles_of_32)

# %% [markdown] tags=["explain"]
# It needs two, because 9 × 32 is 288, and 288 rows do not fit into 256. The second tile holds only the last 32 rows, but it takes as long as a
# full one. So the array counts 9 × channels, and the good widths are those at which 9 × channels are just below a multiple of 256.

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 mark="56" headline="56 channels take no longer than 32"
rows = {}
for channels in (24, 28, 32, 56):
    count = tiles(9 * channels, 256) + tiles(256, channels)
    cycles = block_cycles(count, 2, 64 * 49)
    macs = 9 * channels * 256 + 256 * channels
    rows[channels] = (f"{9 * channels}", count, f"{cycles:,}", f"{macs:,}")
columns = [
    "9 x channels",
    "tiles of the block",
    "cycles, 64 digits",
    "multiply-adds per position",
]
pd.DataFrame(rows, index=columns).T.rename_axis("channels")

# %% [markdown] tags=["explain"]
# From 28 to 32 channels the block needs 1.5 times as many tiles, and with the filling and emptying it takes 10,940 cycles instead of 7,804,
# 1.4 times as many. From 32 to 56 channels it takes no longer at all.
#
# The same rule says what does not help. If you halve the width from 256 to 128, you save half of the multiply-adds and not a single tile,
# because the two tiles are then half empty. If you raise it to 257, you need four tiles instead of two.
#
# Other machines have other good numbers. In 2023 [Andrej Karpathy wrote](https://x.com/karpathy/status/1621578354024677377) that nanoGPT became about 25 % faster when he raised its vocabulary
# from 50,257 to 50,304 tokens (published). The 47 new tokens never occur, but 50,304 is a multiple of 64, and with it the GPU's library
# chose a faster kernel. His comment was "Careful with your Powers of 2". On our array both vocabularies are 197 tiles wide, so nothing would
# be gained.
#
# **To remember.** Choose the width at the edge of a tile. For a 3 × 3 convolution on an array of side 256 these are 28 or 56 channels,
# whereas 32 cost as much as 56.
#
# All of this was for 64 digits at once. What if a single digit comes?

# %% [markdown] tags=["slide"] minutes=2 headline="For a single digit, memory sets the pace"
# ## Part 3: the bytes
#
# When do bytes decide? We ask this now, because a user sends one digit and not 64.
#
# - One digit: 49 rows pass through each tile
# - A tile's bytes take 1,349 cycles to arrive
# - More digits or fewer bytes close the gap
#
# With a single digit the larger number in our line is 1,349. The tiles of the fused block take 2 × 1,349, or 2,698 cycles, and in 2,600
# of them the array waits for memory. With 2 × 766 cycles to fill and empty the array these are 4,230. MBConv takes 12 × 1,349 + 3 × 766,
# or 18,486 cycles, because it reads 12 tiles of 65,536 bytes, nearly all of them zeros. (The queue between memory and
# array has room for four tiles and keeps none of them for the next digit.)
#
# You can send more digits or fewer bytes. If 28 digits share each tile, 1,372 rows pass through it, and memory keeps up. If no second digit
# is there, the weights themselves must shrink. Suppose that the chip stores a weight in 4 bits and unpacks it on arrival.

# %% tags=["predict"]
four_bits = helpers.predict(
    "With weights of 4 bits instead of 8, "
    "how many times as fast is the fused block for a single digit?",
    "times",
)
four_bits

# %% tags=["run"]
single = block_cycles(2, 2, 49)
single_four_bits = block_cycles(2, 2, 49, tile_cycles=675)

# %% tags=["look"]
four_bits.reveal(modelled=single / single_four_bits)

# %% [markdown] tags=["explain"]
# A tile now arrives in 675 cycles, twice as fast. Filling and emptying stay, so the block takes 2 × 675 + 2 × 766, or 2,882 cycles instead
# of 4,230, and is 1.5 times as fast. With 64 digits it would be exactly as fast as before, since 3,136 rows have to pass in both cases.
# Fewer bits shift the border from 28 digits to 14.
#
# What does it cost? We round the weights of the trained fused network, with one scale per filter and without more training.


# %%
def rounded(network, bits):
    """Return a copy whose weights have `bits` bits, with one scale per filter."""
    network = copy.deepcopy(network)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            filters = layer.weight.data.flatten(1)  # (filters, weights of one)
            step = filters.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
            layer.weight.data = (step * (filters / step).round()).view_as(layer.weight)
    return network


# %% tags=["hide-input", "look", "slide", "slide-output", "nbval-ignore-output"] minutes=1 headline="Four bits classify nearly as well as eight" numbers=[["accuracy +[\\d.]+ % \\(measured\\) +([\\d.]+ %)", "accuracy with 8 bits (measured)"], ["accuracy(?: +[\\d.]+ % \\(measured\\)){2} +([\\d.]+ %)", "accuracy with 4 bits (measured)"], [" 2 *\\naccuracy +[\\d.]+ % \\(measured\\) +([\\d.]+ %)", "accuracy with 2 bits (measured)"]]
network = networks["fused"][0]
by_bits = {
    bits: 100 * training.accuracy(rounded(network, bits), unseen) for bits in (8, 4, 3, 2)
}
row = {"32": accuracies["fused"][0], **{str(bits): value for bits, value in by_bits.items()}}
table = {bits: f"{value:.1f} % (measured)" for bits, value in row.items()}
pd.DataFrame(table, index=["accuracy"]).rename_axis("bits of a weight", axis=1)

# %% tags=["hide-input"]
assert abs(by_bits[8] - accuracies["fused"][0]) < 1
assert by_bits[4] > accuracies["fused"][0] - 5
assert by_bits[2] < by_bits[4] - 1

# %% [markdown] tags=["explain"]
# With 8 bits the accuracy stays at 95.6 %, with 4 bits it is 95.2 %, which is four digits of 1,000 and may be chance, and with 2 bits it falls
# to 67.8 % (measured).
#
# Now you can design the block yourself. Turn the channels, the digits that come at once and the bits. Where does the depthwise step pay, and
# which channels are the last ones of a step?

# %% tags=["hide-input"]
co_design.explore_block()

# %% [markdown]
# **To remember.** Fewer bits save time only while you wait for bytes. On our array a single digit waits, and from 28 digits on (1,349 rows)
# it does not.
#
# The smallest weight is none at all. Does a zero save still more?

# %% [markdown] tags=["slide"] minutes=2 headline="Weights can be removed in three patterns"
# ## Part 4: zeros
#
# Which zeros can a machine skip? A trained network has many small weights, and [pruning](glossary.md#pruning) sets them to zero. Nine
# multiplications of ten then seem superfluous.
#
# - *Single weights*, wherever they are
# - *2:4*, two of every four neighbours
# - *Whole channels*, so that the matrix becomes smaller

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0, 10]
pruned_speed = helpers.predict(
    "If nine of ten weights of a 1,024 x 1,024 layer are zero, "
    "how many times as fast is its product with 64 columns?",
    "times",
)
pruned_speed

# %% tags=["run"]
torch.manual_seed(0)
weights, columns = torch.randn(1024, 1024), torch.randn(1024, 64)
sparse = torch.where(torch.rand(1024, 1024) < 0.9, 0.0, weights)
stored = sparse.to_sparse_csr()
ways = {
    "dense": lambda: weights @ columns,
    "nine of ten zero": lambda: sparse @ columns,
    "the same, as CSR": lambda: stored @ columns,
}
with timing.fixed_threads(1):
    products = timing.compare(ways, budget_s=1, precision=0.1)

# %% tags=["look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Zeros that nobody skips save nothing"
pruned_speed.reveal(modelled=1, measured=1 / products.candidate("nine of ten zero").time_ratio)

# %% tags=["hide-input", "look"]
sentence = "nine of ten zeros take as long as none"
ratio = products.candidate("nine of ten zero").time_ratio
timing.claim(sentence, ratio, at_least=0.8, at_most=1.25, evidence=products)

# %% tags=["hide-input", "look", "nbval-ignore-output"]
csr_ratio = products.candidate("the same, as CSR").time_ratio
print(f"as CSR, nine of ten zeros take {csr_ratio:.2f} times the dense time (measured)")

# %% [markdown] tags=["explain"]
# It is as fast as before. The processor multiplies by zero as by any other number, and so does our array. To skip the zeros, a program must
# store where the other weights are. PyTorch's [CSR](glossary.md#compressed-sparse-rows) format stores an index of 8 bytes for each weight of 4
# bytes, so two thirds of a matrix must be zero before it saves a single byte. With nine of ten zero, the product took about three quarters of
# the dense time on one core (measured), although it has only a tenth of the multiplications.
#
# This is a poor bargain, so hardware and network have to agree on a pattern. In [2:4 sparsity](glossary.md#24-sparsity) two of every four
# neighbouring weights are zero. An index of 2 bits then says which inputs are needed, and every column has the same amount of work. On an
# array built for it, a column of 256 multipliers can serve 512 inputs. The [tensor cores](glossary.md#tensor-core) of NVIDIA's GPUs have
# been built for it since 2020.
#
# **Your turn.** Which weights stay? A row of `weights` has all inputs of one filter, and every four neighbours keep the two with the
# largest magnitudes.


# %% tags=["yours"] yours="two_of_four" takes=8
def two_of_four(weights):
    """Return a mask of the two largest magnitudes of every four neighbours in a row."""
    groups = weights.abs().view(-1, 4)
    largest = groups.topk(2).indices
    mask = torch.zeros_like(groups, dtype=torch.bool).scatter(1, largest, True)
    return mask.view_as(weights)


# %% checks="two_of_four"
two_of_four = check(two_of_four)


# %% wrong="two_of_four" says="Compare magnitudes"
def two_of_four(weights):
    groups = weights.view(-1, 4)
    return (groups >= groups.topk(2).values[:, 1:]).view_as(weights)


# %% wrong="two_of_four" says="within each group of four"
def two_of_four(weights):
    return weights.abs() >= weights.abs().topk(weights.shape[1] // 2).values[:, -1:]


# %% right="two_of_four" style=1
def two_of_four(weights):
    order = weights.abs().reshape(-1, 4).argsort(dim=1).argsort(dim=1)
    return (order >= 2).reshape(weights.shape)


# %% right="two_of_four" style=2
def two_of_four(weights):
    keep = torch.zeros(weights.shape, dtype=torch.bool)
    for row, sizes in enumerate(weights.abs().tolist()):
        for start in range(0, len(sizes), 4):
            places = range(start, start + 4)
            for place in sorted(places, key=sizes.__getitem__)[2:]:
                keep[row, place] = True
    return keep


# %% [markdown]
# Which pattern would help us? Let our network be twice as wide, with 512 channels between instead of 256. Its block takes 4 tiles, because
# both of its matrices, 252 × 512 and 512 × 28, now take two. We remove half of it by three patterns and train for one more epoch, in which the
# zeros stay zero. For single weights and for 2:4, a *mask* says what stays, and two lines hold it:


# %%
def hold(layer, mask):
    """Set the weights outside the mask to zero, and keep them there in training."""
    with torch.no_grad():
        layer.weight *= mask
    layer.weight.register_hook(lambda gradient: gradient * mask)


def keep_channels(block, kept):
    """Return a smaller fused block, with the `kept` of its channels between."""
    first, _, second = block
    smaller = fused(second.out_channels, len(kept))
    with torch.no_grad():
        smaller[0].weight[:], smaller[0].bias[:] = first.weight[kept], first.bias[kept]
        smaller[2].weight[:], smaller[2].bias[:] = second.weight[:, kept], second.bias
    return smaller


# %% tags=["predict"]
tiles_left = helpers.predict(
    "If half of the 512 channels are removed, how many of the four tiles are left?", "tiles"
)
tiles_left

# %% tags=["hide-input", "run"]
wide = trained(fused, width=512)


# %% tags=["hide-input", "run"]
def half_of_single(weights):
    """Return a mask of the larger half of all weights."""
    return weights.abs() > weights.abs().median()


pruned = {}
for name, pattern in (("half of the single weights", half_of_single), ("2:4", two_of_four)):
    network = copy.deepcopy(wide)
    for layer in (network[2][0], network[2][2]):
        hold(layer, pattern(layer.weight.detach().flatten(1)).view_as(layer.weight))
    pruned[name] = network
network = copy.deepcopy(wide)
first, _, second = network[2]
sizes = first.weight.flatten(1).norm(dim=1) * second.weight.flatten(1).norm(dim=0)
network[2] = keep_channels(network[2], sizes.topk(256).indices)
pruned["half of the channels"] = network.to(memory_format=torch.channels_last)

# %% tags=["hide-input", "run"]
at_once, later = {}, {}
for name, network in pruned.items():
    at_once[name] = 100 * training.accuracy(network, unseen)
    helpers.train(network, digits, epochs=1)
    later[name] = 100 * training.accuracy(network, unseen)

# %% tags=["look"]
tiles_left.reveal(counted=tiles(252, 256) + tiles(256, 28))

# %% tags=["hide-input", "look", "slide", "slide-output", "nbval-ignore-output"] minutes=3 mark="half of the channels" headline="Only whole channels save tiles"
whole = 100 * training.accuracy(wide, unseen)
rows = {"nothing": (tiles(252, 512) + tiles(512, 28), f"{whole:.1f} %", "")}
left = {
    "half of the single weights": f"{tiles(252, 512) + tiles(512, 28)}",
    "2:4": f"{tiles(252 // 2, 512) + tiles(512 // 2, 28)}, if the array is built for it",
    "half of the channels": f"{tiles(252, 256) + tiles(256, 28)}",
}
for name, count in left.items():
    rows[name] = (count, f"{at_once[name]:.1f} %", f"{later[name]:.1f} %")
columns = ["tiles", "accuracy at once (measured)", "after an epoch (measured)"]
pd.DataFrame(rows, index=columns).T.rename_axis("removed")

# %% tags=["hide-input"]
masked = [pruned[name][2][0].weight for name in ("half of the single weights", "2:4")]
assert all(0.49 < float((weight == 0).double().mean()) < 0.51 for weight in masked)
assert min(later.values()) > whole - 4
assert max(later.values()) - min(later.values()) < 3

# %% [markdown] tags=["explain"]
# If half of the channels go, two tiles are left, because each of the two matrices then fits into one tile, and we are back at our design. Single zeros save nothing.
# With 2:4 a column serves twice as many inputs, so the 512 rows of the narrowing matrix fit into one tile. But the 512 columns of the
# 3 × 3 convolution stay, so its two tiles do too, and three are left. At once none of the three costs more than a point, and one more epoch, which the first row did not
# get, improves them all (measured, one seed). So our network has weights to spare, and the pattern decides only the time.
#
# What does 2:4 bring where the hardware exists? NVIDIA's data sheet promises a factor of 2. On an A100 the PyTorch team measured a product
# 1.39 times as fast, 538 µs against 387. With the time for pruning, the layers were 1.3 times as fast. The whole training of their ViT-L,
# with 2:4 in the first 70 % of the steps, took 6 % less time ([2024](https://pytorch.org/blog/accelerating-neural-network-training/),
# published).
#
# **To remember.** On our array zeros save time only if a tile disappears. Half of 512 channels saves two of four tiles, and scattered zeros save
# none.
#
# You have now made four choices for one array. Does your machine even see them?

# %% [markdown] tags=["slide"] minutes=2 headline="The framework and the library choose as well"
# ## Part 5: the libraries
#
# Who else decides? We ask this last, because a machine sees your choices only if the software lets them through. Between your line of Python
# and the multipliers are a framework, a library and its kernels, and each of them chooses as well.
#
# - PyTorch looks up who computes
# - The library takes the kernel that it has
# - The result is right in every case, and the time is not the same
#
# PyTorch looks up for each of its [ATen operators](glossary.md#aten-operator) who computes it on this device and for this type. For example, call one small 3 × 3 convolution in PyTorch four times, with one image in float32, two in float32, two in float64 and two in
# bfloat16. On x86 processors PyTorch has [oneDNN](glossary.md#onednn), Intel's library, whose kernels are written for convolutions.

# %% tags=["predict"]
onednn_calls = helpers.predict(
    "On a processor with AVX2, "
    "for how many of these four calls does PyTorch use oneDNN's convolution?",
    "of 4",
)
onednn_calls


# %% tags=["hide-input", "run"]
def computed_by(trace):
    """Return the products or convolutions that the libraries log, or PyTorch's name."""
    names = [f"{p.library} {p.name}" for p in trace.primitives if p.name != "reorder"]
    return ", ".join(dict.fromkeys(names)) or "PyTorch alone"


recorded = {}
for name, file in {"AVX2": "avx2", "AVX-512": "avx512"}.items():
    calls = json.loads(Path(f"recorded/stack/{file}.json").read_text(encoding="utf-8"))[
        "calls"
    ]
    traces = {
        call: results.from_dict(stack.StackTrace, calls[call]) for call in list(calls)[2:]
    }
    recorded[name] = {call: computed_by(trace) for call, trace in traces.items()}
images, layer = torch.randn(2, 3, 8, 8), nn.Conv2d(3, 4, 3)
here = {
    call: computed_by(stack.trace_calls(layer.to(dtype), images[:count].to(dtype)))
    for call, count, dtype in (
        ("batch 1", 1, torch.float32),
        ("batch 2", 2, torch.float32),
        ("float64", 2, torch.float64),
        ("bfloat16", 2, torch.bfloat16),
    )
}

# %% tags=["look"]
onednn_calls.reveal(counted=sum("oneDNN" in name for name in recorded["AVX2"].values()))

# %% tags=["hide-input", "look", "slide", "slide-output", "nbval-ignore-output"] minutes=1 mark="bfloat16" headline="The same line calls another library"
names = {
    "batch 1": "one image, float32",
    "batch 2": "two images, float32",
    "float64": "two images, float64",
    "bfloat16": "two images, bfloat16",
}
table = pd.DataFrame(
    {"AVX2, recorded": recorded["AVX2"], "AVX-512, recorded": recorded["AVX-512"]}
)
table.assign(**{"here (counted)": here}).rename(index=names).rename_axis("call")

# %% tags=["hide-input", "look", "nbval-ignore-output"]
numbers = torch.randn(256, 256)
halves = numbers.bfloat16()
with timing.fixed_threads(1):
    types = timing.compare(
        {"float32": lambda: numbers @ numbers, "bfloat16": lambda: halves @ halves},
        budget_s=2,
        precision=0.1,
    )
type_ratio = types.candidate("bfloat16").time_ratio
print(
    f"a 256 x 256 product in bfloat16: {type_ratio:.3g} times the time in float32 (measured)"
)

# %% [markdown] tags=["explain"]
# For only one, the two images in float32 (counted in the libraries' logs, which were recorded on an AMD EPYC limited to AVX2). For a single
# image and for float64, PyTorch copies the patches into a matrix and calls a general matrix product, SGEMM or DGEMM. For bfloat16, no
# library appears in the log at all. There is no warning, because the results are right. But on the core of this page a product of
# two 256 × 256 matrices took 30 times as long in bfloat16 as in float32 (measured). If this were your only machine, you would call bfloat16 a
# bad idea.
#
# That is how ideas win and lose. Sara Hooker named it the [hardware lottery](glossary.md#hardware-lottery), "when a research idea wins because
# it is suited to the available software and hardware" and not because it is superior ([2020](https://hardwarelottery.github.io)). Our depthwise
# step has a part in this story. In 2012 AlexNet was trained on two GPUs with 3 GB each, so three of its five convolutions saw only the half of
# the channels on their own GPU. This saved 36 % of its multiply-adds and only 2.3 % of its parameters (counted). In 2017 the authors of ResNeXt
# took such convolutions in groups from AlexNet, for better accuracy at equal work. With one channel per group they are depthwise, which
# MobileNet used in the same year for less work. What the memory of one machine had once forced was later chosen to save work. On our array it
# saves nothing, as four layers with 64 channels show:

# %% tags=["hide-input", "run"]
layers = {
    "ordinary 3 x 3": nn.Conv2d(64, 64, 3, padding=1),
    "8 groups": nn.Conv2d(64, 64, 3, padding=1, groups=8),
    "depthwise": nn.Conv2d(64, 64, 3, padding=1, groups=64),
    "1 x 1": nn.Conv2d(64, 64, 1),
}
shape = (4, 64, 28, 28)
images = torch.randn(shape)
with torch.inference_mode(), timing.fixed_threads(1):
    calls = {name: lambda layer=layer: layer(images) for name, layer in layers.items()}
    convolutions = timing.compare(calls, budget_s=1, precision=0.1)


def packed_tiles(layer, side=256):
    """Return the tiles of a convolution whose groups are packed down the diagonal."""
    rows = layer.in_channels // layer.groups * layer.kernel_size[0] ** 2
    together = max(1, side // rows)  # groups on the diagonal of one tile
    return -(-layer.groups // together) * tiles(rows, 64, side)


costs = {}
for name, layer in layers.items():
    positions = 4 * 28 * 28
    costs[name] = {
        "multiply-adds": positions * layer.weight.numel(),
        "time on a core (measured)": convolutions.candidate(name).time_ratio,
        "cycles of the array": block_cycles(packed_tiles(layer), 1, positions),
    }

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="The cheapest layer depends on the machine" untitled=true
alt = (
    "By multiply-adds depthwise is a 64th of the ordinary convolution; "
    "on a core it is more, and on the array it is the same."
)
title = "Four convolutions of 64 channels: what do they cost?"
plotting.show(co_design.draw_costs(costs, title=title), alt=alt)

# %% tags=["hide-input", "look"]
on_array = {name: cost["cycles of the array"] for name, cost in costs.items()}
print("cycles of the array:", ", ".join(f"{name} {on_array[name]:,}" for name in on_array))
sentence = "the depthwise layer takes more than 2/64 of the time of the ordinary one"
ratio = convolutions.candidate("depthwise").time_ratio
timing.claim(sentence, ratio, at_least=2 / 64, evidence=convolutions)
towers = {count: helpers.AlexNet(towers=count) for count in (1, 2)}
runs = {
    count: systolic.simulate_network(network, (1, 3, 224, 224), rows=256, columns=256)
    for count, network in towers.items()
}
parameters = {
    count: sum(weight.numel() for weight in network.parameters())
    for count, network in towers.items()
}
fewer_parameters = 100 * (1 - parameters[2] / parameters[1])
fewer_macs = 100 * (1 - runs[2].macs / runs[1].macs)
print(f"AlexNet in two towers: {fewer_parameters:.1f} % fewer parameters,", end=" ")
print(f"{fewer_macs:.0f} % fewer multiply-adds (counted)")
assert on_array["depthwise"] == on_array["ordinary 3 x 3"]

# %% [markdown] tags=["explain"]
# By multiply-adds the depthwise layer is the cheapest of the four. On a core it still saves time, but less than its 64th promises. On the
# array the 64 channels take three packed tiles, as many as the ordinary layer with its 576 rows.
#
# Software draws lots too. Until the mid-1990s the favoured languages of AI research were LISP and Prolog, which are made for logic. Hooker
# counts this among the reasons why symbolic AI stayed ahead of neural networks for so long. And some ideas still wait for their machine. In 2019
# Zuo and others built a network in which light modulators and lenses do the linear operations and laser-cooled atoms the activation
# ([Optica](https://doi.org/10.1364/OPTICA.6.001132)). On such a machine our count of tiles does not apply, so other networks than ours may win.
#
# **To remember.** Before you judge an idea, look which kernel ran it. Of four calls of the same convolution, 1 reached the kernel that was
# written for it with AVX2, and 2 with AVX-512.

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. Count tiles before operations.
# 2. Put each width at the edge of a tile.
# 3. Remove whole channels, not single weights.
#
# With 7.5 instead of 4.5 billion operations the network processed 362 images per second instead of 262, and our model of an array, which charges
# for tiles and not for operations, foresees that. A packed depthwise step uses 28 of 256 columns, so our block takes 12 tiles with it and 2
# without. By our model the exchange pays below 144 channels on an array of side 128, and with all seven groups fused the network fell back to
# 254 images per second.
#
# So design in this order. Count the tiles of each layer, and compare its rows with the number of your machine (1,349 here). Move each width
# to the edge of a tile, remove whole channels instead of single weights, and look which kernel ran. Only then count operations.
#
# One change remained open. With 4 bits our block was 1.5 times as fast for a single digit (modelled), and the network read 95.2 instead of 95.6
# % (measured), but 2 bits ruined it.
#
# The [exercises](exercises/15_co_design_exercises.ipynb) have you multiply by CSR, pack 2:4, choose a [register tile](glossary.md#register-tile), and keep a ledger of
# zeros. [The appendix](appendix/15_co_design.ipynb) follows one convolution down to its instructions, finds an array in the [registers](glossary.md#register) of a
# core, and counts the bytes of zeros.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A block with $c$ channels that widens to $w$, on an array of side $S$. A matrix of
# $m \times n$ numbers of $s$ bytes has a share $z$ of zeros and indices of $i$ bytes.
#
# | quantity | formula |
# |---|---|
# | tiles of a matrix of $m \times n$ weights | $\lceil\frac mS\rceil\lceil\frac nS\rceil$ |
# | tiles of $w$ depthwise $3 \times 3$ kernels, packed | $\lceil w / \lfloor\frac S9\rfloor\rceil$ |
# | cycles of a block | tiles $\cdot \max(\text{rows}, \text{cycles of a tile's bytes})$ + products $\cdot (3S - 2)$ |
# | channels from which a depthwise step saves tiles | $\frac98 S$ |
# | bytes of CSR | $(1 - z)\,m\,n\,(s + i) + (m + 1)\,i$ |
# | share of zeros from which CSR saves bytes, for a large matrix | $\frac{i}{s + i}$ |
# | bytes of 2:4 | $\frac{m\,n}{2}\,s + \frac{m\,n}{8}$ |
