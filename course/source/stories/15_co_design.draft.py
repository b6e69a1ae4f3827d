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
#     needs: ["11", "14"]
#     objectives:
#       - follow|followed one convolution from Python down to its multiply-adds
#       - write|wrote the tile of sums that a processor keeps in its registers
#       - predict|predicted which library computes a call, and from where on zeros save bytes
#       - measure|measured what zeros cost in time and accuracy, by their pattern
#       - order|ordered four convolutions by operations, by time and by cycles of an array
# ---

# %% [markdown]
# # Co-design

# %% [markdown] tags=["slide"] minutes=2
# ## Two thirds more operations
#
# In 2021 Mingxing Tan and Quoc Le changed a network that they had designed to save arithmetic, EfficientNet-B4. In its first three groups
# of blocks they replaced the *depthwise* convolution, in which each channel has a small kernel of its own, by an ordinary one. Afterwards
# the network needed 7.5 billion operations per image instead of 4.5 billion. Before the change, one core of a TPU had processed 262 images
# per second (published in Table 3 of [EfficientNetV2](https://arxiv.org/abs/2104.00298), as are all numbers of this change).

# %% tags=["predict"]
bet = helpers.predict(
    "After the change, how many images per second does the TPU core process instead of 262?",
    "images/s",
)
bet

# %% tags=["hide-input"]
# TODO bet.reveal(measured_published=362)

# %% [markdown]
# If time followed the operations, the answer would be 262 × 4.5 / 7.5, or 157. You have reason to doubt it, because lesson 14 ended with a
# depthwise convolution that occupied 9 of 65,536 multipliers. But is a depthwise convolution always a mistake? If you design a network, you
# decide this for every layer. Papers report the operations, but you pay for the time.
#
# So far we took the network as given and counted what it loses. To choose network and machine for each other is called *co-design*. You
# will design a small network that reads handwritten digits, for the array of lesson 14, the first TPU. It has 256 × 256 multipliers at 700
# MHz, its weights have 8 bits, and its memory delivers 34 GB/s. One line, which you know in pieces from lesson 14, gives the time of each
# layer.
#
# > cycles of a layer = tiles × the larger of (rows, 1,349)
#
# A tile is a square of 256 × 256 weights. The rows are the inputs that pass through it, one per cycle, and 1,349 cycles are the time in
# which memory delivers its 65,536 bytes. Parts 1 and 2 change the tiles, part 3 the rows and the bytes, and part 4 asks what a zero saves.
# In part 5 we ask who else decides.

# %% tags=["hide-input"]
# TODO figure: The map of the machine, with the multipliers of one chip and the libraries above them marked.

# %% [markdown] tags=["slide"] minutes=2
# ## Part 1: What does a depthwise convolution cost?
#
# We begin with the exchange itself, because on one small block we can count everything. Our network cuts a digit into 7 × 7 patches and
# turns each patch into 28 channels. Then come two equal blocks, and a last layer with ten results. (Part 2 explains why 28.)
#
# A block first makes the channels many and then few again. In *MBConv*, which Tan and Le began with, a 1 × 1 convolution widens 28 channels
# to 256. Then a depthwise 3 × 3 convolution works on each of the 256 alone, and another 1 × 1 convolution narrows them to 28. In
# *Fused-MBConv* an ordinary 3 × 3 convolution does the first two steps at once, and the narrowing stays.
#
# Count the multiply-adds at one position. MBConv takes 28 × 256 to widen, 9 × 256 for the depthwise step, and 256 × 28 to narrow, which
# makes 16,640. The fused block takes 9 × 28 × 256 and then 256 × 28, or 71,680, 4.3 times as many.
#
# Now count tiles. To widen, the array needs a matrix of 28 × 256 weights, which fits in one tile, and to narrow it needs another. The fused
# 3 × 3 convolution has 9 × 28, or 252, inputs per position and 256 results. So it fills one tile almost completely, and its block takes two
# tiles.
#
# What about the depthwise step? A channel has only 9 weights, in one column. If each channel gets a tile of its own, the 256 channels take
# 256 tiles. But a compiler could pack them. It would write the 9 weights of the first channel into the rows 1 to 9 of column 1, those of
# the second channel into the rows 10 to 18 of column 2, and so on down the diagonal.

# %% tags=["hide-input"]
# TODO figure: Figure: a tile with 28 short strips on its diagonal, beside the full tile of the fused block.

# %% [markdown]
# After 28 channels, 252 of the 256 rows are used, and nearly the whole tile is zeros. So 256 channels need ten tiles.

# %% [markdown]
# **Your turn.** TODO one sentence: inputs and result.


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


# %% wrong="tiles" says="Full tiles need no further tile"
def tiles(rows, columns, side=256):
    return (rows // side + 1) * (columns + side - 1) // side


# %% [markdown]
# **Your turn.** Put the line from the beginning into code, with the 766 cycles in which each product fills and empties the array.


# %% tags=["yours"] yours="block_cycles" takes=5
def block_cycles(tiles, products, rows, tile_cycles=1349):
    """Return the cycles of a block: each product also takes 766 to fill and empty the array."""
    return tiles * max(rows, tile_cycles) + products * 766


# %% checks="block_cycles"
block_cycles = check(block_cycles)


# %% wrong="block_cycles" says="before its bytes have arrived"
def block_cycles(tiles, products, rows, tile_cycles=1349):
    return tiles * rows + products * 766

# %% tags=["hide-input"]
strips = 256 // 9  # channels of a packed diagonal tile, 28
mbconv_tiles = tiles(28, 256) + -(-256 // strips) + tiles(256, 28)
fused_tiles = tiles(9 * 28, 256) + tiles(256, 28)
for name, count, products in (("MBConv", mbconv_tiles, 3), ("Fused-MBConv", fused_tiles, 2)):
    print(f"{name}: {count} tiles, {block_cycles(count, products, 64 * 49):,} cycles (modelled)")
assert (mbconv_tiles, fused_tiles) == (12, 2)

# %% tags=["predict"]
block_ratio = helpers.predict(
    "How many times as many tiles as the fused block does the MBConv block need?",
    "times",
)
block_ratio

# %% tags=["hide-input"]
# TODO block_ratio.reveal(modelled=6, counted=mbconv_tiles / fused_tiles)

# %% [markdown]
# It needs 12 instead of 2, six times as many. With 64 digits at once, 64 × 49, or 3,136 rows pass through each tile. They are more than
# 1,349, so the rows decide, and the array takes 12 × 3,136 cycles for MBConv and 2 × 3,136 for the fused block. In addition each product
# takes 766 cycles to fill and empty the array (lesson 14). MBConv has three products and the fused block two, so the sums are 39,930 and
# 7,804 cycles (modelled), a ratio of 5.1.
#
# | block, 28 to 256 to 28 channels | multiply-adds per position | tiles | cycles, 64 digits | accuracy, two seeds |
# |---|--:|--:|--:|--:|
# | MBConv, with depthwise | 16,640 | 12 | 39,930 | 95.0 and 95.7 % |
# | Fused-MBConv | 71,680 | 2 | 7,804 | 93.2 and 95.4 % |
#
# The accuracies are measured. We trained a network with two such blocks for four epochs on 4,000 digits and tested it on 1,000 others. On
# average MBConv is better by one point, but two seeds of the fused network differ by two. For the tiles of one MBConv block you could also
# have six fused ones.
#
# Is the fused block always better, then? Let a block have $c$ channels and widen them to $w$, and count its tiles without rounding. The
# narrowing is the same in both blocks, so we leave it out.
#
# > fused: 9 × c × w / 256² tiles, with depthwise: c × w / 256² + 9 × w / 256 tiles
#
# The last term is the packed diagonal, which needs 9 × w rows, and 256 rows make a tile. The two counts are equal if 8 × c is 9 × 256, that
# is, at 288 channels, and beyond that the depthwise convolution saves tiles. The width has dropped out. For an array of side 128 the border
# lies at 9/8 × 128, or 144 channels.
#
# We can test this border, because Google's TPUs of that time had arrays of side 128, and Tan and Le published more than one change.
# EfficientNet-B4 has seven groups of blocks, with 24, 32, 56, 112, 160, 272 and 448 channels. The first three lie far below 144, and the
# last two far above.

# %% tags=["hide-input"]
# TODO figure: Figure: tiles of both blocks over the channels, for sides 128 and 256, with the seven groups marked.

# %% [markdown]
# | fused groups (all published) | operations per image | images per second | accuracy on ImageNet |
# |---|--:|--:|--:|
# | none | 4.5 billion | 262 | 82.8 % |
# | the first three, up to 56 channels | 7.5 billion | 362 | 83.1 % |
# | the first five, up to 160 | 21.3 billion | 327 | 83.1 % |
# | all seven, up to 448 | 34.4 billion | 254 | 81.7 % |
#
# So much for the bet. The network with two thirds more operations is 1.38 times as fast. The fastest row fuses only groups that lie far
# below the border, and the last row, which fuses two groups far above it, is the slowest. In between, the groups with 112 and 160 channels
# lie on its two sides, and for them we count 166 tiles against 161. That explains a small loss, but not all of the fall from 362 to 327. (A
# real TPU also has other units, which may compute a depthwise step without the array, so the agreement supports our model but does not
# prove it.)
#
# **To remember.** On an array, a depthwise convolution saves tiles only in blocks with more than about 9/8 × side channels (rounding can
# shift this). That is 288 channels for a side of 256 and 144 for a side of 128.
#
# The fused block fills its tile almost completely. Was that luck?

# %% [markdown] tags=["slide"] minutes=2
# ## Part 2: Which widths does the array want?
#
# It was design, and we look at it next because a width is a single number in your code. Most people would have written 32 channels and not
# 28, since 32 is a power of two.

# %% tags=["predict"]
tiles_32 = helpers.predict(
    "If the fused block has 32 channels instead of 28, how many tiles does its 3 × 3 convolution need?",
    "tiles",
)
tiles_32

# %% tags=["hide-input"]
# TODO tiles_32.reveal(counted=tiles(9 * 32, 256))

# %% [markdown]
# It needs two, because 9 × 32 is 288, and 288 rows do not fit into 256. The second tile holds only the last 32 rows, but it takes as long
# as a full one. So the array counts 9 × channels, and the good widths are those just below a multiple of 256.
#
# | channels | 9 × channels | tiles of the block | multiply-adds per position |
# |--:|--:|--:|--:|
# | 24 | 216 | 2 | 61,440 |
# | 28 | 252 | 2 | 71,680 |
# | 32 | 288 | 3 | 81,920 |
# | 56 | 504 | 3 | 143,360 |
#
# From 28 to 32 channels the block needs 1.5 times as many tiles, and with the filling and emptying it takes 10,940 cycles instead of 7,804,
# 1.4 times as many. From 32 to 56 channels it takes no longer at all. Did the four additional channels help? With 32 the network read 91.8
# % right, and with 28 and the same seed 93.2 % (measured), so we see no gain.
#
# The same rule says what does not help. If you halve the width from 256 to 128, you save half of the multiply-adds and not a single tile,
# because the two tiles are then half empty. If you raise it to 257, you need four tiles instead of two.
#
# Other machines have other good numbers. In 2023 Andrej Karpathy wrote that nanoGPT became about 25 % faster when he raised its vocabulary
# from 50,257 to 50,304 tokens. The 47 new tokens never occur, but 50,304 is a multiple of 64, and with it the GPU's library chose a faster
# kernel. His comment was "Careful with your Powers of 2". On our array both vocabularies are 197 tiles wide, so nothing would be gained.
#
# **To remember.** Choose the width at the edge of a tile. For a 3 × 3 convolution on an array of side 256 these are 28 or 56 channels,
# whereas 32 cost as much as 56.
#
# All of this was for 64 digits at once. What if a single digit comes?

# %% [markdown] tags=["slide"] minutes=2
# ## Part 3: When do bytes decide?
#
# We ask this now, because a user sends one digit and not 64. Then only 49 rows pass through each tile, and the larger number in our line is
# 1,349. The tiles of the fused block take 2 × 1,349, or 2,698 cycles, and in 2,600 of them the array waits for memory. With 2 × 766 cycles
# to fill and empty the array these are 4,230. MBConv takes 12 × 1,349 + 3 × 766, or 18,486 cycles, because it reads 12 tiles of 65,536
# bytes, nearly all of them zeros. (The chip has room for only four tiles of weights, so it cannot keep a whole network and reads its
# weights again for each digit.)
#
# You can send more digits or fewer bytes. If 28 digits share each tile, 1,372 rows pass through it, and memory keeps up. If no second digit
# is there, the weights themselves must shrink. Suppose that the chip stores a weight in 4 bits and unpacks it on arrival.

# %% tags=["predict"]
four_bits = helpers.predict(
    "With weights of 4 bits instead of 8, how many times as fast is the fused block for a single digit?",
    "times",
)
four_bits

# %% tags=["hide-input"]
# TODO four_bits.reveal(modelled=block_cycles(2, 2, 49) / block_cycles(2, 2, 49, 675))

# %% [markdown]
# A tile now arrives in 675 cycles, twice as fast. Filling and emptying stay, so the block takes 2 × 675 + 2 × 766, or 2,882 cycles instead
# of 4,230, and is 1.5 times as fast. With 64 digits it would be exactly as fast as before, since 3,136 rows have to pass in both cases.
# Fewer bits shift the border from 28 digits to 14.
#
# What does it cost? We rounded the weights of the trained fused network, with one scale per filter and without more training. The accuracy
# of 93.2 % became 93.0 % with 8 bits, 91.7 % with 4 and 37.3 % with 2 (measured).
#
# **To remember.** Fewer bits save time only while you wait for bytes. On our array a single digit waits, and from 28 digits on (1,349 rows)
# it does not.
#
# The smallest weight is none at all. Does a zero save still more?

# %% [markdown] tags=["slide"] minutes=2
# ## Part 4: Which zeros can a machine skip?
#
# A trained network has many small weights, and *pruning* sets them to zero. Nine multiplications of ten then seem superfluous.

# %% tags=["predict"]
pruned_speed = helpers.predict(
    "If nine of ten weights of a 1,024 × 1,024 layer are zero, how many times as fast is its product with 64 columns?",
    "times",
)
pruned_speed

# %% tags=["hide-input"]
# TODO pruned_speed.reveal(modelled=1, measured=TODO)

# %% [markdown]
# It is 1.01 times as fast, that is, not at all (measured on a server's processor). The processor multiplies by zero as by any other number,
# and so does our array. To skip the zeros, a program must store where the other weights are. PyTorch's CSR format stores an index of 8
# bytes for each weight of 4 bytes, so two thirds of a matrix must be zero before it saves a single byte.
#
# This is a poor bargain, so hardware and network have to agree on a pattern. In *2:4 sparsity* two of every four neighbouring weights are
# zero. An index of 2 bits then says which inputs are needed, and every column has the same amount of work. On an array built for it, a
# column of 256 multipliers can serve 512 inputs. The tensor cores of NVIDIA's GPUs have been built for it since 2020.
#
# Which pattern would help us? Let our network be twice as wide, with 512 channels instead of 256. Its block takes 4 tiles, because both of
# its matrices, 252 × 512 and 512 × 28, now take two. We remove half of it in three ways and train for one more epoch, in which the zeros
# stay zero.

# %% [markdown]
# **Your turn.** TODO one sentence: inputs and result.


# %% tags=["yours"] yours="two_of_four" takes=8
def two_of_four(weights):
    """Return a mask of the two largest magnitudes of every four neighbours in a row."""
    groups = weights.abs().view(-1, 4)
    largest = groups.topk(2).indices
    return (
        torch.zeros_like(groups, dtype=torch.bool).scatter(1, largest, True).view_as(weights)
    )


# %% checks="two_of_four"
two_of_four = check(two_of_four)

# %% tags=["predict"]
tiles_left = helpers.predict(
    "If half of the 512 channels are removed, how many of the four tiles are left?",
    "tiles",
)
tiles_left

# %% tags=["hide-input"]
# TODO tiles_left.reveal(counted=tiles(252, 256) + tiles(256, 28))

# %% [markdown]
# | removed | tiles | accuracy at once | after an epoch |
# |---|--:|--:|--:|
# | nothing | 4 | 93.5 % | |
# | half of the single weights | 4 | 89.8 % | 94.9 % |
# | two of every four (2:4) | 3, if the array is built for it | 79.8 % | 94.0 % |
# | half of the channels | 2 | 23.3 % | 93.3 % |
#
# Removing channels leaves two tiles, because 256 channels fill whole tiles again, and we are back at our design. Single zeros save nothing.
# With 2:4 a column serves twice as many inputs, so the 512 rows of the narrowing matrix fit into one tile. But the 512 columns of the 3 × 3
# convolution stay, so its two tiles do too, and three are left. At first the patterns differ widely in accuracy (measured, one seed), but
# after one more epoch, which the first row did not get, they are as close as two seeds. So here the pattern decided the time and hardly the
# accuracy.
#
# What does 2:4 bring where the hardware exists? NVIDIA's data sheet promises a factor of 2. On an A100 the PyTorch team measured a product
# 1.39 times as fast, 538 µs against 387. With the time for pruning, the layers were 1.3 times as fast. The whole training of their ViT-L,
# with 2:4 in the first 70 % of the steps, took 6 % less time ([2024](https://pytorch.org/blog/accelerating-neural-network-training/),
# published).
#
# **To remember.** A zero saves time only if a whole row, column or tile is left out. Half of 512 channels saves two of four tiles, and half
# of the weights saves none.
#
# You have now made four choices for one array. Does your machine even see them?

# %% [markdown] tags=["slide"] minutes=2
# ## Part 5: Who else decides?
#
# Only if the software lets it, because between your line of Python and the multipliers are a framework, a library and its kernels, and each
# of them chooses as well. For example, call one small 3 × 3 convolution in PyTorch four times, with one image in float32, two in float32,
# two in float64 and two in bfloat16. On x86 processors PyTorch has oneDNN, Intel's library, whose kernels are written for convolutions.

# %% tags=["predict"]
onednn_calls = helpers.predict(
    "On a processor with AVX2, for how many of these four calls does PyTorch use oneDNN's convolution?",
    "calls",
)
onednn_calls

# %% tags=["hide-input"]
# TODO onednn_calls.reveal(counted=1)

# %% [markdown]
# For only one, the two images in float32 (counted in the libraries' logs, which were recorded on an AMD EPYC limited to AVX2). For a single
# image and for float64, PyTorch copies the patches into a matrix and calls a general matrix product. For bfloat16, no library appears in
# the log at all. There is no warning, because the results are right. But on such a processor a product of two 1,024 × 1,024 matrices took
# 94 times as long in bfloat16 as in float32 (measured on an AMD Zen 3 core). If this were your only machine, you would call bfloat16 a bad
# idea.
#
# That is how ideas win and lose. Sara Hooker named it the *hardware lottery*, "when a research idea wins because it is suited to the
# available software and hardware" and not because it is superior ([2020](https://hardwarelottery.github.io)). Our depthwise step has a part
# in this story. In 2012 AlexNet was trained on two GPUs with 3 GB each, so three of its five convolutions saw only the half of the channels
# on their own GPU. This saved 36 % of its multiply-adds and only 2.3 % of its parameters (counted). In 2017 others took up such
# convolutions, for better accuracy at equal work (ResNeXt) or for less work (MobileNet). With one channel per group they are depthwise. So
# what the memory of one machine had forced became a way to save work, and on our machine it takes six times as many tiles.

# %% tags=["hide-input"]
# TODO figure: Figure: the hardware lottery. Four convolutions ranked by operations, by time on a core and by cycles of the array, whose orders differ.

# %% [markdown]
# Software draws lots too. Until the mid-1990s the favoured languages of AI research were LISP and Prolog, which are made for logic. Hooker
# counts this among the reasons why symbolic AI stayed ahead of neural networks for so long. And some ideas still wait for their machine. In
# 2019 Zuo and others built a network in which light modulators and lenses do the linear operations and laser-cooled atoms the activation
# ([Optica](https://doi.org/10.1364/OPTICA.6.001132)). Such a machine charges for other things than tiles, so other networks than ours may
# win on it.
#
# **To remember.** Before you judge an idea, look which kernel ran it. Of four calls of the same convolution, one reached the kernel that
# was written for it.

# %% [markdown] tags=["slide"] minutes=2
# ## Back to the bet
#
# With 7.5 instead of 4.5 billion operations the network processed 362 images per second instead of 262, because an array charges for tiles
# and not for operations. A packed depthwise step uses 28 of 256 columns, so our block takes 12 tiles with it and 2 without. The exchange
# pays below 144 channels on an array of side 128, and with all seven groups fused the network fell back to 254 images per second.
#
# So design in this order. Count the tiles of each layer, and compare its rows with the number of your machine (1,349 here). Move each width
# to the edge of a tile, remove whole channels instead of single weights, and look which kernel ran. Only then count operations.
#
# One change remained open. With 4 bits a single digit was 1.5 times as fast and read 91.7 % right, but 2 bits ruined it. How can so few
# bits be enough, and what breaks first when they are not? Lesson 16, Numbers of few bits, begins there.

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# A matrix of $m \times n$ numbers of $b$ bytes, a share $z$ of them zero; indices of $i$ bytes. A register tile of $p$ inputs and $v$
# vectors of filters.
#
# | quantity | formula |
# |---|---|
# | registers of a tile (AVX2) | $p\,v + p + 1$ |
# | multiply-adds for a load | $\frac{p\,v}{p + v}$ |
# | sums that keep the multipliers busy | latency of a multiply-add $\cdot$ those that start in a cycle |
# | bytes of CSR | $(1 - z)\,m\,n\,(b + i) + (m + 1)\,i$ |
# | share of zeros from which CSR saves bytes, large $n$ | $\frac{i}{b + i}$ |
# | bytes of 2:4 | $\frac{m\,n}{2}\,b + \frac{m\,n}{8}$ |
