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
#     title: Four sources of parallelism
#     needs: ["00"]
#     objectives:
#       - count|counted how much of a training can run at the same time
#       - cut|cut a layer among workers so that they sum few bytes
#       - predict|predicted how many updates a larger batch saves
#       - simulate|simulated four workers that never wait
#       - choose|chose the source of parallelism that fits a link
# ---

# %% [markdown] tags=["objectives"]
# # Four sources of parallelism
#
# A worker teaches a small network to read handwritten digits. It draws 64 images, computes their gradient and updates the weights. After 36 such updates
# the loss has fallen to 0.5 (measured, the mean of eight runs). Now three equal workers join it. Each of the four draws 64 images of its own, computes a
# gradient and adds its update to the weights, which all of them share. No worker ever waits for another, and sending takes no time, so four times as many
# updates arrive per second. Does the loss fall four times as fast?
#
# You make such a bet whenever you rent a second GPU, and some people rent more. The training of Llama 3 405B took 3.8·10²⁵ operations
# ([Llama Team](https://arxiv.org/abs/2407.21783), 2024, published). At 400 TFLOP/s, which each of its H100s reached, a single GPU would have needed 3,010
# years. Meta used 16,384 of them, for which the same work is 67 days. But in each step the model learned from 2,048 sequences at most (Table 4 there), so
# there were eight GPUs for every sequence. Where did all of them find work at the same time?
#
# The question of this lesson is what a further worker is worth. A worker can be a core, a GPU or a whole machine, and it helps only if it finds work that
# does not have to wait. A training has four places to look for such work. Some of them leave the training exactly as it was, and we begin with these.
# Others change what the model learns, and then only a training can tell what they are worth.

# %% tags=["hide-input"]
import functools
import itertools

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

import helpers
from helpers import exercises, parallel, plotting, timing
from helpers.studies import sgd_parallelism

check = exercises.checks_of("sources_of_parallelism")
torch.set_num_threads(1)  # one core

# %% [markdown] tags=["slide"] minutes=1
# ## The bet
#
# What are three further workers worth?
#
# - Four workers share the weights of a network
# - Each computes gradients of 64 images and adds its updates
# - None of them waits, so four times as many updates arrive
#
# Sending takes no time, and one worker and four each use the learning rate that is best for them. Write down a number before you go on.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10]
bet = helpers.predict(
    "How many times as fast as one worker do four workers that never wait "
    "reach a loss of 0.5?",
    "x",
)
bet

# %% [markdown] tags=["slide"] minutes=2 headline="A chain of tasks takes its time"
# ## Part 1: tasks that wait
#
# What has to wait? We begin with waiting, because it sets a limit that no hardware can lift.
#
# - A layer waits for the layer before it
# - An update waits for the gradients of all examples
# - The next step waits for the update
#
# Write a whole training down as a list of tasks. A task is the forward pass of one layer for one example, or its backward pass, or the update of the
# weights. In the forward pass each layer waits for the layer before it, and in the backward pass for the layer after it. An update waits for the gradients
# of all examples, and the next step waits for the update.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="The longest chain passes through one example of each step"
alt = "Two steps of three examples and two layers. An orange chain runs through the middle."
plotting.show(sgd_parallelism.draw_tasks(), alt=alt)

# %% [markdown]
# If each of several tasks waits for the one before, they form a *chain*. Even unlimited workers have to go through a chain link by link, so a
# training takes at least as long as its longest chain. This function returns the tasks that each task waits for. With `delay`, a step need not
# wait for the latest update.


# %%
def training(steps=10, examples=8, layers=3, models=1, delay=0):
    needs = {}
    for model, step in itertools.product(range(models), range(steps)):
        for example in range(examples):
            waits_for = [(model, step - 1 - delay)] if step > delay else []
            for layer in [*range(layers), *range(-layers, 0)]:  # forward, then backward
                task = model, step, example, layer
                needs[task], waits_for = waits_for, [task]
        gradients = [(model, step, example, -1) for example in range(examples)]
        needs[model, step] = gradients + ([(model, step - 1)] if step else [])
    return needs


# %% [markdown]
# **Your turn.** How many tasks does the longest chain have? The longest chain that ends at a task has one task more than the longest that ends
# at any task it waits for.


# %% tags=["yours"] yours="longest_chain" takes=7
def longest_chain(needs):
    """Return how many tasks the longest chain has.

    `needs[task]` is a list of the tasks that a task waits for, all of which come earlier.
    """
    chain = {}
    for task, waits_for in needs.items():
        chain[task] = 1 + max((chain[other] for other in waits_for), default=0)
    return max(chain.values())


# %% checks="longest_chain"
longest_chain = check(longest_chain)


# %% wrong="longest_chain" says="take the longest of them, not their sum"
def longest_chain(needs):
    chain = {}
    for task, waits_for in needs.items():
        chain[task] = 1 + sum(chain[other] for other in waits_for)
    return max(chain.values())


# %% wrong="longest_chain" says="so take the longest of all"
def longest_chain(needs):
    chain = {}
    for task, waits_for in needs.items():
        chain[task] = 1 + max((chain[other] for other in waits_for), default=0)
    return chain[task]


# %% wrong="longest_chain" says="You count the waits between the tasks"
def longest_chain(needs):
    chain = {}
    for task, waits_for in needs.items():
        chain[task] = max((1 + chain[other] for other in waits_for), default=0)
    return max(chain.values())


# %% wrong="longest_chain" says="the cells below need int"
def longest_chain(needs):
    chain = {}
    for task, waits_for in needs.items():
        chain[task] = 1 + max((chain[other] for other in waits_for), default=0)
    return torch.tensor(list(chain.values())).max()


# %% right="longest_chain" style=1
def longest_chain(needs):
    @functools.cache
    def links(task):
        return 1 + max(map(links, needs[task]), default=0)

    longest = 0
    for task in needs:  # from the first on, so that no call goes deep
        longest = max(longest, links(task))
    return longest


# %% right="longest_chain" style=2
def longest_chain(needs):
    waiting, finished, rounds = dict(needs), set(), 0
    while waiting:  # unlimited workers do all tasks that are ready in one round
        ready = [task for task, others in waiting.items() if finished.issuperset(others)]
        finished.update(ready)
        for task in ready:
            del waiting[task]
        rounds += 1
    return rounds


# %% [markdown]
# Take a training with 10 steps, 8 examples per step and 3 layers, and let each task take the same time.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[1, 1000]
at_best = helpers.predict(
    "With unlimited workers, how many times as fast as one worker is this training "
    "of 10 steps, 8 examples and 3 layers?",
    "x",
)
at_best

# %% tags=["hide-input", "run"]
cases = {
    "8 examples, 3 layers": {},
    "with 20 steps": {"steps": 20},
    "with 6 layers": {"layers": 6},
    "with 16 examples": {"examples": 16},
    "two such models": {"models": 2},
    "with old gradients": {"delay": 1},
}
rows = {}
for name, change in cases.items():
    needs = training(**change)
    links = longest_chain(needs)
    rows[name] = {"tasks": len(needs), "longest chain": links, "at best": len(needs) / links}

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Examples and models lengthen no chain"
at_best.reveal(counted=rows["8 examples, 3 layers"]["at best"])
table = pd.DataFrame(rows).T.astype({"tasks": int, "longest chain": int})
table["at best"] = [f"{times:.1f} times" for times in table["at best"]]
table

# %% [markdown] tags=["explain"]
# In each step an example has six tasks, three forward and three back, and there is one update. A step therefore has 8 × 6 + 1, or 49 tasks, and the
# training has 490. The longest chain passes through only one example of each step, so it has 6 + 1, or 7 links per step, and 70 in all. Unlimited workers
# are 490 / 70, or 7 times as fast as one (counted). Eight workers already reach this limit, and a ninth is worth nothing.
#
# More steps and more layers bring more work, but they also make the chain longer. More examples and more models add tasks beside the chain. Old gradients (here one update old)
# make the chain shorter, because a step that does not wait for the latest update can run together with the step before it. Ten steps then make five pairs
# of 7 links, and one more update at the end waits for the one before. The fourth place is not in the table, because it is inside a task, where several
# workers can share one layer. These are the four sources of parallelism, within a layer, over examples, over updates and over models. Two workers, A and B,
# use each of them in the figure. An orange bar is a [synchronisation](glossary.md#synchronisation), at which both wait.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="Two workers share a training in four ways" layout="steps" frames=[1, 3, 5, 7] smallest=11.5
plotting.play(
    [sgd_parallelism.draw_sources(until=until, title="") for until in range(1, 9)],
    title="Two workers share a training, four ways",
    stills=(7,),
    alt="Four schedules of two workers, with waits in the first two and none in the others.",
)

# %% tags=["hide-input"]
layers, sequences = 126, 2048  # Llama 3 405B
step = training(steps=1, examples=16, layers=layers)
assert (len(step), longest_chain(step)) == (16 * 252 + 1, 253)
links, tasks = 2 * layers + 1, sequences * 2 * layers + 1
print(f"Llama 3 405B: {tasks:,} tasks per step, {links} links, {tasks / links:,.0f} times")

# %% [markdown] tags=["explain"]
# Now count Llama 3 405B. It has 126 layers, so the chain of a step has 2 × 126 + 1, or 253 links. Its 2,048 sequences bring 2,048 × 252 + 1 tasks, and
# divided by 253 these make 2,040, so it can be at most 2,040 times as fast as on one worker (counted).
#
# **To remember.** Divide the tasks by the longest chain. The examples of a step make a training at most as many times as fast as there are examples, and
# slightly less because all wait for the update, namely 7 times for 8 examples and 2,040 times for 2,048.
#
# The other 14,000 GPUs must have shared layers or used old gradients. We look at sharing first, because it does not change the result.

# %% [markdown] tags=["slide"] minutes=2 headline="Each side is summed over in exactly one product"
# ## Part 2: the price of a shared step
#
# What does it cost to share a step? We ask this now, because workers that share a step have to exchange what they computed, and how much they exchange
# depends on where you cut.
#
# - A layer in training takes part in three products
# - They have only three different sides
# - A product that sums over the cut side needs a sum
#
# A layer multiplies the inputs of all tokens by its weights. When it is trained, it takes part in three matrix products, but these have only three
# different sides, namely the tokens, the inputs and the outputs of the layer.
#
# | product | has the sides | and sums over |
# |---|---|---|
# | outputs | tokens × outputs | the inputs |
# | gradient of the inputs | tokens × inputs | the outputs |
# | gradient of the weights | inputs × outputs | the tokens |
#
# You can cut any of the three sides and give each worker one piece. If the result of a product has this side, each worker computes a piece of the result,
# and nothing has to be added. But if a product sums over this side, each worker has only some terms of every element, and the workers must add up what
# they have.

# %% tags=["hide-input", "slide", "slide-output"] minutes=2 headline="With the inputs cut, one product of three needs a sum"
alt = "Three products with the inputs cut in four. Only the outputs are a sum of four terms."
plotting.show(sgd_parallelism.draw_cut("inputs"), alt=alt)

# %% [markdown]
# **Your turn.** Compute a product with one side cut. In `torch.einsum` a letter is a side, so `"ti,io->to"` multiplies tokens × inputs by
# inputs × outputs and sums over the inputs. The method `chunk(workers, dim)` cuts a matrix into pieces, and the position of `side` among the letters of a matrix is its `dim`. Return the
# whole result, and the bytes of the sum, which are the bytes of one term, or 0 if the pieces only have to be put together.


# %% tags=["yours"] yours="share" takes=12
def share(product, a, b, side, workers):
    """Return a product of a and b by workers with a piece of one side, and the summed bytes.

    `product` is a string such as "ti,io->to", and `side` is one of its letters.
    """
    of_a, of_b, of_result = product.replace("->", ",").split(",")
    a_pieces = a.chunk(workers, of_a.index(side)) if side in of_a else [a] * workers
    b_pieces = b.chunk(workers, of_b.index(side)) if side in of_b else [b] * workers
    computed = [torch.einsum(product, *pair) for pair in zip(a_pieces, b_pieces, strict=True)]
    if side in of_result:
        return torch.cat(computed, dim=of_result.index(side)), 0
    return sum(computed), computed[0].nbytes


# %% checks="share"
share = check(share)


# %% wrong="share" says="The sum is as large as one term"
def share(product, a, b, side, workers):
    of_a, of_b, of_result = product.replace("->", ",").split(",")
    a_pieces = a.chunk(workers, of_a.index(side)) if side in of_a else [a] * workers
    b_pieces = b.chunk(workers, of_b.index(side)) if side in of_b else [b] * workers
    computed = [torch.einsum(product, *pair) for pair in zip(a_pieces, b_pieces, strict=True)]
    if side in of_result:
        return torch.cat(computed, dim=of_result.index(side)), 0
    return sum(computed), sum(term.nbytes for term in computed)


# %% wrong="share" says="but each worker has only a term of every element"
def share(product, a, b, side, workers):
    of_a, of_b, of_result = product.replace("->", ",").split(",")
    a_pieces = a.chunk(workers, of_a.index(side)) if side in of_a else [a] * workers
    b_pieces = b.chunk(workers, of_b.index(side)) if side in of_b else [b] * workers
    computed = [torch.einsum(product, *pair) for pair in zip(a_pieces, b_pieces, strict=True)]
    if side in of_result:
        return torch.cat(computed, dim=of_result.index(side)), 0
    return computed[0], computed[0].nbytes


# %% wrong="share" says="so nothing is added"
def share(product, a, b, side, workers):
    of_a, of_b, of_result = product.replace("->", ",").split(",")
    a_pieces = a.chunk(workers, of_a.index(side)) if side in of_a else [a] * workers
    b_pieces = b.chunk(workers, of_b.index(side)) if side in of_b else [b] * workers
    computed = [torch.einsum(product, *pair) for pair in zip(a_pieces, b_pieces, strict=True)]
    if side in of_result:
        return torch.cat(computed, dim=of_result.index(side)), computed[0].nbytes
    return sum(computed), computed[0].nbytes


# %% wrong="share" says="the cells below need torch.Tensor"
def share(product, a, b, side, workers):
    of_a, of_b, of_result = product.replace("->", ",").split(",")
    a_pieces = a.chunk(workers, of_a.index(side)) if side in of_a else [a] * workers
    b_pieces = b.chunk(workers, of_b.index(side)) if side in of_b else [b] * workers
    computed = [torch.einsum(product, *pair) for pair in zip(a_pieces, b_pieces, strict=True)]
    if side in of_result:
        return torch.cat(computed, dim=of_result.index(side)).numpy(), 0
    return sum(computed).numpy(), computed[0].nbytes


# %% right="share" style=1
def share(product, a, b, side, workers):
    given, of_result = product.split("->")
    matrices, pieces = dict(zip(given.split(","), (a, b), strict=True)), []
    for worker in range(workers):
        own = []
        for sides, matrix in matrices.items():
            if side in sides:
                matrix = matrix.tensor_split(workers, dim=sides.index(side))[worker]
            own.append(matrix)
        pieces.append(torch.einsum(product, own))
    if side not in of_result:
        total = torch.stack(pieces).sum(dim=0)
        return total, float(total.numel() * total.element_size())
    return torch.concatenate(pieces, dim=of_result.index(side)), 0.0


# %% right="share" style=2
def share(product, a, b, side, workers):
    first, second, result = product[:2], product[3:5], product[7:]
    total = torch.zeros_like(torch.einsum(product, a, b))
    length = a.shape[first.index(side)] if side in first else b.shape[second.index(side)]
    bounds = [length * worker // workers for worker in range(workers + 1)]
    for start, stop in itertools.pairwise(bounds):
        own_a = a.narrow(first.index(side), start, stop - start) if side in first else a
        own_b = b.narrow(second.index(side), start, stop - start) if side in second else b
        term = torch.einsum(product, own_a, own_b)
        if side in result:
            total.narrow(result.index(side), start, stop - start).copy_(term)
        else:
            total += term
    return total, 0 if side in result else total.nbytes


# %% [markdown]
# We let it cut each side of each product, in a layer with 4 inputs and 12 outputs that is trained on 8 tokens. The elements are small integers, so
# every sum is exact.

# %% tags=["run"]
shapes = {"inputs": (8, 4), "weights": (4, 12), "slopes": (8, 12)}
torch.manual_seed(0)
x, w, g = (torch.randint(-9, 10, shape).float() for shape in shapes.values())
products = {
    "outputs": ("ti,io->to", x, w),
    "gradient of the inputs": ("to,io->ti", g, w),
    "gradient of the weights": ("ti,to->io", x, g),
}

# %% tags=["hide-input", "run"]
summed = {}
for side in ("tokens", "inputs", "outputs"):
    summed[f"{side} cut"] = column = {}
    for name, product in products.items():
        result, summed_bytes = share(*product, side[0], workers=4)
        assert torch.equal(result, torch.einsum(*product))
        column[name] = int(summed_bytes) // 4

# %% tags=["hide-input", "look"]
print("elements to be summed")
pd.DataFrame(summed)

# %% [markdown] tags=["explain"]
# Exactly one product in each column needs a sum, because under "and sums over" each side appears exactly once. Whichever side you cut, two
# of the products need no sum and one does. The size of this sum is the product of the other two sides.
#
# If you cut the tokens, the workers share the examples, and the sum is the gradient of the weights. If you cut the inputs or the outputs, they share the
# layer. Let a layer have 4,096 inputs and 4,096 outputs, with 2 bytes per element.

# %% tags=["predict"] axis=[1, 100000]
even = helpers.predict(
    "In a layer with 4,096 inputs and outputs, from how many tokens on does cutting tokens "
    "sum fewer bytes than cutting inputs?",
    "tokens",
)
even

# %% tags=["hide-input", "run"]
per_token_bytes, weight_gradient_bytes = 2 * 4096, 2 * 4096 * 4096
ring = parallel.collective("all_reduce", "ring", world_size=4, length=4096**2, element_bytes=2)
received_bytes = ring.ranks()[0].received_bytes

# %% tags=["hide-input", "look"]
even.reveal(modelled=weight_gradient_bytes / per_token_bytes)
print(f"sum with the tokens cut: {weight_gradient_bytes / 1e6:.1f} MB")
print(f"each of four GPUs receives {received_bytes / 1e6:.1f} MB to add it up")

# %% [markdown] tags=["explain"]
# If you cut the tokens, the sum has 4,096 × 4,096 elements, or 33.6 MB, however many tokens there are. If you cut the inputs, the sum has 4,096 elements
# per token. The two are equal at 4,096 tokens. In general, cut the longest side, because the size of the sum is then the product of the two shorter ones.
#
# To turn bytes into time, let four H100s train this layer. Each of them adds up a quarter of the sum, so it receives this quarter from each of the three
# others. When all quarters are added up, it receives the three finished ones that it does not have. Together these are six quarters, or 1.5 times the bytes
# of the sum. Within a server an H100 has NVLink with 450 GB/s in each direction ([data sheet](https://www.nvidia.com/en-us/data-center/h100/)). Between servers
# we assume a port of 100 Gbit/s, which is 12.5 GB/s. The arithmetic takes 6 operations per weight and token, at the 400 TFLOP/s from above. For 16,384 tokens a single GPU needs
# 6 × 4,096² × 16,384 / 400·10¹², or 4.12 ms.


# %%
def times_as_fast(tokens, cut, bandwidth, gpus=4, width=4096, flops_per_s=400e12):
    compute_s = 6 * width**2 * tokens / flops_per_s
    summed_bytes = 2 * width * (width if cut == "tokens" else tokens)
    sending_s = 2 * (gpus - 1) / gpus * summed_bytes / bandwidth
    return compute_s / (compute_s / gpus + sending_s)


# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.1, 10]
shared = helpers.predict(
    "Over 100 Gbit/s, how many times as fast as one H100 do four train a 4,096 x 4,096 layer "
    "on 16,384 tokens?",
    "x",
)
shared

# %% tags=["hide-input", "run"]
bandwidths = {"NVLink": 450e9, "100 Gbit/s": 12.5e9}
rows = {
    f"{cut} cut, {link}": {
        f"{tokens:,} tokens": f"{times_as_fast(tokens, cut, bandwidth):.2g}"
        for tokens in (1024, 4096, 16384, 131072)
    }
    for (link, bandwidth), cut in itertools.product(bandwidths.items(), ("inputs", "tokens"))
}

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="Three further GPUs have made the training slower"
shared.reveal(modelled=times_as_fast(16384, "tokens", bandwidths["100 Gbit/s"]))
pd.DataFrame(rows).T

# %% [markdown] tags=["explain"]
# The arithmetic of each GPU shrinks to 1.03 ms. But 1.5 × 33.55 MB are 50.3 MB, which take 4.03 ms at 12.5 GB/s. Together this is 5.06 ms, so the four are
# only 0.815 times as fast as one (modelled). Three additional GPUs have made the training slower. Even if all the arithmetic were hidden behind the sending,
# 4.03 ms would remain, and four GPUs would be about as fast as one.
#
# If you cut the inputs, more tokens do not help, because they bring arithmetic and bytes in the same proportion. Within a server this is acceptable even
# for few tokens, whereas between servers it is bad for any number of them. If you cut the tokens, each further token brings arithmetic but no bytes, so
# that in the end even a slow link is good enough. From how many tokens on are four GPUs better than one?

# %% tags=["hide-input"]
sgd_parallelism.explore_sharing()

# %% [markdown]
# The cores of a CPU can share work in the same two forms. You may have heard that the parallelism of a CPU is negligible, but even one core of our Xeon starts 32 multiply-adds per cycle ([lesson 02](02_compute_and_roofline.ipynb)), because one
# instruction serves all [lanes](glossary.md#lane) of a vector [register](glossary.md#register) ([SIMD](glossary.md#simd)). With two threads PyTorch
# shares each layer by itself. With two processes each one takes every second image, and they add up their terms of the gradient.


# %% tags=["run"]
def train(rank, world_size, model, images, labels, steps):
    own_images, own_labels = images[rank::world_size], labels[rank::world_size]
    weights = list(model.parameters())
    sizes = [weight.numel() for weight in weights]
    for _ in range(steps):
        loss = cross_entropy(model(own_images), own_labels, reduction="sum") / len(images)
        terms = parameters_to_vector(torch.autograd.grad(loss, weights))
        if world_size > 1:
            torch.distributed.all_reduce(terms)  # the sum over the processes
        with torch.no_grad():
            for weight, gradient in zip(weights, terms.split(sizes), strict=True):
                weight -= 0.1 * gradient.view_as(weight)


# %% tags=["hide-input", "run"]
loader = helpers.make_MNIST_loader(batch_size=64)
digits = [torch.cat(part) for part in zip(*loader, strict=True)]
shared_steps = []
with helpers.Ranks(2, device="cpu", threads=1) as ranks:
    for images in (256, 2048):
        torch.manual_seed(0)
        model = helpers.BasicFCModel(784, 1024, 10, 3)
        shared_steps.append(
            sgd_parallelism.measure_sharing(
                train, ranks, model, digits, batch_size=images, steps=3, rounds=4
            )
        )

# %% tags=["hide-input", "look", "nbval-ignore-output"]
for times in shared_steps:
    print(f"{times.batch_size:,} images per step, relative to one core:")
    print(f"    two threads {times.gain_of_layers:.2f} times as fast")
    print(f"    two processes {times.gain_of_examples:.2f} times as fast")
    print(f"    largest difference of two weights {times.largest_difference:.0e}")

# %% tags=["hide-input"]
# Sums in another order differ in their last bits, and a ReLU may then switch for an example.
assert all(times.largest_difference < 1e-4 for times in shared_steps)

# %% [markdown] tags=["explain"]
# On our two cores, threads that shared each layer of a network of width 1,024 were 1.60 times as fast as one core with 256 images per step, and 1.96 times
# with 2,048 (measured). Two processes that shared the images reached 0.94 and 1.78 times, and their weights agreed with those of one to 10⁻⁸ (measured), because only the order of the sums differs.
# They add up the same 7.5 MB in every step, so there must be enough images in it.
#
# **To remember.** Cut the longest side, because exactly one of a layer's three products then needs a sum, and it is the smallest one. Over 100
# Gbit/s, sharing tokens among four H100s saves time only above 21,300 tokens per step if the sending is not hidden, where three quarters of the
# arithmetic take longer than 4.03 ms.
#
# So the slower the link, the more examples a step must have. But does a step with more examples also teach the model more?

# %% [markdown] tags=["slide"] minutes=2 headline="A larger batch means fewer and better updates"
# ## Part 3: the worth of a larger batch
#
# What is a larger batch worth? This question comes now, because the easiest way to get more examples is to give each worker a full batch of its own.
#
# - Four workers that wait make one update of four batches
# - A larger batch averages noise out
# - But even an exact gradient is right only near its weights
#
# Four workers that each have a full batch, and then wait for each other, make a single update from 256 images in the time in which one worker makes an update from 64. The step is shared well,
# but it is another training now, with fewer and better updates.
#
# An update follows the mean gradient of its batch. The gradients of single images scatter, so the mean of a few of them points partly in a random
# direction, and many small steps are needed to average this noise out. The variance of a mean falls as 1 / batch. A second limit does not depend on the
# batch. Even the exact gradient is right only near the weights for which it was computed, so a step that is too long overshoots. The number of updates
# should therefore have two parts ([McCandlish and others](https://arxiv.org/abs/1812.06162), 2018).
#
# > updates = a part that stays + a part that shrinks as 1 / batch


# %%
def descend(gradient, w, rate, steps):
    for _ in range(steps):
        w = w - rate * gradient(w)
        yield w


# %% [markdown]
# We train our network at ten learning rates with 16 seeds each, and count the updates until the loss falls below 0.5. With eight of the seeds we choose
# the best rate, and the result is the mean of the other eight at this rate. The tensor `w` has the weights of all 160 networks.

# %% tags=["hide-input"]
images = nn.functional.avg_pool2d(digits[0], 2)  # (images, 1, 14, 14)
small_digits = images, digits[1]
torch.manual_seed(2)
network = helpers.BasicFCModel(196, 32, 10, 2)
search = functools.partial(sgd_parallelism.search_rates, model=network, data=small_digits)

# %%
alone = {batch: search(descend, batch_size=batch) for batch in (8, 32, 64, 128, 256, 1024)}

# %% tags=["hide-input", "nbval-ignore-output"]
for batch in (8, 1024):
    print(f"{batch:,} images: {alone[batch].mean_steps:.1f} updates")

# %% [markdown]
# With a batch of 8 images the network needed 130.5 updates, and with 1,024 images 26.2 (measured). These two numbers and the formula give a
# rough prediction for other batches.

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[10, 1000]
in_between = helpers.predict(
    "If a training needs 130.5 updates with 8 images and 26.2 with 1,024, "
    "how many does it need with 32?",
    "updates",
)
in_between

# %% tags=["hide-input", "run"]
updates = {batch: found.mean_steps for batch, found in alone.items()}
shrinks = (updates[8] - updates[1024]) / (1 / 8 - 1 / 1024)
stays = updates[8] - shrinks / 8
modelled = {batch: stays + shrinks / batch for batch in alone}
assert updates[8] > 2.5 * updates[64]
assert updates[64] > updates[256] > 0.7 * updates[1024]

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Two measurements predict a third"
in_between.reveal(modelled=modelled[32], measured=updates[32])
for batch in alone:
    print(
        f"{batch:5,} images: {modelled[batch]:5.1f} modelled, {updates[batch]:5.1f} measured"
    )
print(f"with 256 images the best of the ten rates was {alone[256].best_rate:.2f}")

# %% [markdown] tags=["explain"]
# Call the second part $c$ / batch. From 8 to 1,024 images the updates fall by 104.3, and this must be $c$ / 8 − $c$ / 1,024. Therefore $c$ is 841, and the
# part that stays is 130.5 − 841 / 8, or 25.4 updates. With 32 images this makes 25.4 + 841 / 32, or 51.7 updates (modelled), and 55.2 were measured. With 8
# and 1,024 images it must be right, because $c$ comes from there. In between it is rough. With 128 images it says 32.0 and 27.2 were measured, so from 32
# to 128 images it promises a factor of 1.6 where 2.0 came out.

# %% tags=["hide-input", "look", "nbval-ignore-output"]
figure = sgd_parallelism.draw_updates(alone, stays=stays, shrinks=shrinks)
alt = "The updates fall with the batch and then stay. Two lines cross at the critical batch."
plotting.show(figure, alt=alt)

# %% [markdown] tags=["explain"]
# Now you can say what four workers are worth if they wait. They use 256 images instead of 64, for which the model says 28.7 updates
# instead of 38.6. This makes them 1.34 times as fast as one worker (modelled). They took 27.0 updates instead of 36.0, which is 1.33 times as
# fast (measured).
#
# The two parts are equal at 841 / 25.4, or 33 images, and this is called the [critical batch](glossary.md#critical-batch). Far below it, twice the images
# mean almost half the updates, so a further worker is worth nearly a whole one. Far above it, more images only confirm what the gradient already says, and
# four workers with 256 images each were 1.03 times as fast as one (measured).
#
# You need no search to estimate the critical batch. It is about as large as the variance of the single images' gradients, divided by the squared length of
# their mean (McCandlish and others, 2018). We compute this ratio while one network learns.

# %% tags=["hide-input", "look", "nbval-ignore-output"]
noise = sgd_parallelism.follow_noise(network, [part[:2000] for part in small_digits])
print("variance / squared length of the mean")
for point in noise:
    print(f"loss {point.loss:.2f}: {point.noise_scale:4.0f} images")
early, late = ([p.noise_scale for p in half] for half in (noise[:5], noise[-5:]))
assert 10 < np.median(early) < np.median(late)

# %% [markdown] tags=["explain"]
# While our loss fell from 2.3 to 0.6, this ratio was 32 to 83 images, and below 0.45 it was more than 120 (measured). Here the critical batch
# was larger late in the training. For harder tasks it is much larger, for example tens of thousands of images for ImageNet (the same authors,
# published). Llama 3 405B began with 4 million tokens per step and later used 16 million for efficiency (published).
#
# Our runs also used the fourth source. The 160 networks of a search, ten rates times 16 seeds, need nothing of each other, and can run on as many workers
# as you have. Even a single core gains, because networks that share each call of PyTorch share its overhead.

# %% tags=["hide-input", "run"]
crossing = sgd_parallelism.sweep_crossover(
    small_digits, nets=18, sizes=((32, 64),), budget_s=1, device="cpu"
).points[0]

# %% tags=["hide-input", "look"]
sentence = "18 small networks that share each call take less time than 18 in a loop"
timing.claim(sentence, crossing.stacked_ratio, at_most=0.6, evidence=crossing)

# %% [markdown] tags=["explain"]
# **To remember.** Add up the batches of all workers. Up to the critical batch, here 33 images, a further worker pays, and far beyond it none does, even if
# sending takes no time.
#
# The workers of our bet have 64 images each, so a single one of them is beyond 33 already. But they do not wait. Does this save them?

# %% [markdown] tags=["slide"] minutes=2 headline="An old gradient corrects what has changed already"
# ## Part 4: the worth of an old gradient
#
# What is an old gradient worth? We can ask this only now, because we first had to know what four workers are worth if they wait.
#
# - Four workers that never wait make four updates in the time of one
# - Each gradient is three updates old when it arrives
# - A correction that comes late must be small
#
# If four workers do not wait, they make four updates in the time of one. But while a worker computes, each of the other three adds an update to the
# weights, so its gradient is three updates old when it arrives. It is a [stale gradient](glossary.md#stale-gradient).
#
# **Your turn.** A queue makes the delay. In each step, compute the gradient at the weights of now and put it into the queue. As soon as more than `delay`
# gradients wait there, apply the oldest. `descend` above shows the form.


# %% tags=["yours"] yours="delayed" takes=8
def delayed(gradient, w, rate, delay, steps):
    """Yield w after each step of descent with gradients that are `delay` updates old."""
    waiting = []
    for _ in range(steps):
        waiting.append(gradient(w))
        if len(waiting) > delay:
            w = w - rate * waiting.pop(0)
        yield w


# %% checks="delayed"
delayed = check(delayed)


# %% wrong="delayed" says="Apply the oldest gradient that waits, not the newest"
def delayed(gradient, w, rate, delay, steps):
    waiting = []
    for _ in range(steps):
        waiting.append(gradient(w))
        if len(waiting) > delay:
            w = w - rate * waiting.pop()
        yield w


# %% wrong="delayed" says="so let it wait"
def delayed(gradient, w, rate, delay, steps):
    for _ in range(steps):
        w = w - rate * gradient(w)
        yield w


# %% wrong="delayed" says="also while no gradient arrives"
def delayed(gradient, w, rate, delay, steps):
    waiting = []
    for _ in range(steps):
        waiting.append(gradient(w))
        if len(waiting) > delay:
            w = w - rate * waiting.pop(0)
            yield w


# %% wrong="delayed" says="would take 1.7 GB"
def delayed(gradient, w, rate, delay, steps):
    waiting, path = [], []
    for _ in range(steps):
        waiting.append(gradient(w))
        if len(waiting) > delay:
            w = w - rate * waiting.pop(0)
        path.append(w)
    return path


# %% right="delayed" style=1
def delayed(gradient, w, rate, delay, steps):
    import collections

    waiting = collections.deque()
    for step in range(steps):
        waiting.append(gradient(w))
        if step >= delay:
            w = w - waiting.popleft() * rate
        yield w


# %% right="delayed" style=2
def delayed(gradient, w, rate, delay, steps):
    def step(state, _):
        now, *waiting = state
        waiting.append(gradient(now))
        arrived = waiting[:-delay] if delay else waiting
        return (now - rate * sum(arrived) if arrived else now, *waiting[len(arrived) :])

    states = itertools.accumulate(range(steps), step, initial=(w,))
    return (state[0] for state in itertools.islice(states, 1, None))


# %% [markdown]
# You know the effect from a shower with a long pipe. If the water answers late, you must turn the tap a little at a time, because you correct a temperature
# that may have changed already. The simplest loss for which this can be computed is a parabola. With fresh gradients, a step multiplies the distance to its
# minimum by 1 minus the rate times the curvature, so the weight settles if the rate times the curvature is below 2. With gradients that are one update old
# the limit is 1. For gradients that are $s$ updates old it is $2 \sin \frac{\pi}{2\,(2s+1)}$ (Levin and May, 1976), and for three updates this is 0.445. We
# test the formula with your `delayed`, on a parabola of curvature 1, and halve again and again the gap between a rate that settles and one that grows.


# %% tags=["run"]
def largest_rate(delay):
    settles, grows = 0.0, 2.5
    for _ in range(14):
        rate = (settles + grows) / 2
        path = [abs(w) for w in delayed(lambda w: w, 1.0, rate, delay, 600)]
        is_stable = max(path[400:]) < max(path[200:400])
        settles, grows = (rate, grows) if is_stable else (settles, rate)
    return settles


# %% tags=["hide-input", "run"]
delays = [0, 1, 2, 3, 4, 8, 16]
limits = {delay: sgd_parallelism.stability_limit(delay) for delay in delays}
tried = {delay: largest_rate(delay) for delay in delays}

# %% tags=["hide-input", "look"]
for delay in (0, 1, 3):
    print(f"{delay} updates old: {limits[delay]:.3f} modelled, {tried[delay]:.3f} simulated")

# %% tags=["hide-input", "look", "slide", "slide-output"] minutes=2 headline="The largest rate shrinks with the delay"
alt = "Rate times curvature at the limit: 2 without delay, 0.1 at delay 16; both agree."
figure = sgd_parallelism.draw_limits(delays, list(limits.values()), list(tried.values()))
plotting.show(figure, alt=alt)

# %% tags=["hide-input"]
assert np.allclose(list(tried.values()), list(limits.values()), rtol=0.01)

# %% [markdown] tags=["explain"]
# At a delay of three updates the largest rate is 0.445 / 2 of what it was, whereas the updates are four times as many. A network has steep
# directions, in which a small step already overshoots, and flat ones. The steepest sets the limit of the rate. In a flat direction every update
# advances by a distance that is proportional to the rate, so there the four workers are 4 × 0.445 / 2, or 0.89 times as fast as one (modelled).
#
# It is no accident that the result is so close to 1. The four gradients that arrive one after the other were computed at almost the same weights. So their
# four updates add up to a single update with four times the rate, which follows the mean gradient of 256 images. But this is just the update that four
# workers make if they wait. If the argument is right, it predicts their learning rates. With 256 images, 0.57 was the best of our ten rates (printed in Part 3).

# %% tags=["predict", "slide", "slide-output"] minutes=1 axis=[0.01, 10]
best_rate = helpers.predict(
    "If four workers that wait learn best at a rate of 0.57, "
    "which rate is best for four that never wait?",
    "",
)
best_rate


# %% tags=["run"]
def never_wait(gradient, w, rate, steps):
    return delayed(gradient, w, rate, 3, steps)


simulated = {batch: search(never_wait, batch_size=batch) for batch in (8, 32, 64, 256)}

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=1 headline="Four that never wait need a quarter of the rate"
best_rate.reveal(modelled=alone[256].best_rate / 4, simulated=simulated[64].best_rate)
for batch, found in simulated.items():
    waiting = alone[4 * batch].best_rate
    print(
        f"{batch:3} images: {waiting:.2f} if they wait, {found.best_rate:.2f} if they do not"
    )
    assert 2.5 < waiting / found.best_rate < 6

# %% [markdown] tags=["explain"]
# It should be a quarter of it, 0.14. We simulated the four with your queue, so the learning is real and only the clock is computed. Among our ten rates,
# each of which is 1.41 times the one before, the best was indeed 0.14. In the other three rows above the two best rates also differed by a
# factor of four.
#
# The table counts rounds, in each of which every worker computes one gradient. The four that wait make one update per round, like one worker with four
# times the batch. The four that never wait make four updates per round.

# %% tags=["hide-input", "run"]
ways = {
    "one worker": {batch: (alone[batch], 1) for batch in simulated},
    "four that wait": {batch: (alone[4 * batch], 1) for batch in simulated},
    "four that never wait (simulated)": {
        batch: (found, 4) for batch, found in simulated.items()
    },
}
rounds = {
    way: {
        batch: (found.mean_steps / per_round, found.standard_error / per_round)
        for batch, (found, per_round) in searches.items()
    }
    for way, searches in ways.items()
}
one, waiting, never = rounds.values()
for batch in simulated:
    assert 0.7 < never[batch][0] / waiting[batch][0] < 1.4
worth = one[64][0] / never[64][0]
assert 1 < worth < 2

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Four times as many updates are not four times the progress" rows=["8 ", "64 ", "256 "]
bet.reveal(modelled=4 * limits[3] / limits[0], simulated=worth)
cells = {}
for way, means in rounds.items():
    cells[way] = [f"{mean:.1f} rounds" for mean, _ in means.values()]
    if way != "one worker":
        gains = [one[batch][0] / mean for batch, (mean, _) in means.items()]
        pairs = zip(cells[way], gains, strict=True)
        cells[way] = [f"{text}, or {gain:.2f} times as fast" for text, gain in pairs]
pd.DataFrame(cells, index=pd.Index(list(simulated), name="images per worker"))

# %% tags=["hide-input", "look", "nbval-ignore-output", "slide", "slide-output"] minutes=2 headline="Waiting or not, four workers average equally many images"
figure = sgd_parallelism.draw_rounds(rounds)
alt = "Four workers need fewer rounds up to 64 images each, but hardly fewer or more with 256."
plotting.show(figure, alt=alt)

# %% [markdown] tags=["explain"]
# In every row the two methods differ by at most 16 %, because both follow the mean of equally many images. (The bars are standard errors.) With
# few images per worker both are worth a good deal, because noise is then the limit, and four times the images reduce it. With many images both
# are worth almost nothing, because longer steps would overshoot. The parabola has no noise, so the model's 0.89 is close with 256 images (0.94),
# but misses the gain from averaging noise with 64 (1.32).
#
# Not waiting pays when the workers are unequal. If two workers need 1 s per gradient and a third needs 3 s, waiting brings three gradients in 3 s, and not
# waiting brings seven. But there is another remedy. [Chen and others](https://arxiv.org/abs/1604.00981) (2016) let all workers wait, but not for the last
# few gradients of a step, and found this faster and more accurate than never waiting (published). [The
# appendix](appendix/04_sources_of_parallelism.ipynb) runs workers that are unequal, threads that share weights without a lock
# ([Hogwild](glossary.md#hogwild)), and workers that only average their weights now and then ([local SGD](glossary.md#local-sgd)). In the
# [exercises](exercises/04_sources_of_parallelism_exercises.ipynb) you cut a product and run a [parameter server](glossary.md#parameter-server) by hand.
#
# **To remember.** With four workers each gradient is three updates old and needs a quarter of the learning rate. Among equal workers it therefore hardly
# matters whether they wait. With 64 images each, four of them are 1.3 times as fast as one either way.
#
# What does all this say about the bet, and about 16,384 GPUs?

# %% [markdown] tags=["recap", "slide"] minutes=1
# ## Back to the bet
#
# 1. The longest chain limits what unlimited workers can gain.
# 2. The longest side is the one to cut, and the link decides whether sharing pays.
# 3. Beyond the critical batch, further examples and old gradients are worth little.
#
# Four workers that never wait reached the loss 1.3 times as fast as one, although they made four times as many updates. Four updates at a quarter of the
# rate are one update from 256 images, and with 64 images a worker is already beyond the critical batch of 33. A harder task, with a larger critical batch,
# would make these workers worth more, but a faster link would not, because here sending took no time at all.
#
# Llama 3 405B was a harder task, and now you can say where its 16,384 GPUs found their work. They were arranged as 8 × 16 × 128
# ([Llama Team](https://arxiv.org/abs/2407.21783), 2024, Table 4, published). Eight GPUs, as many as a server has, share every layer over NVLink. Sixteen such
# groups hold different layers, and the sequences pass from one group to the next, which has a waiting time of its own
# ([lesson 06](06_model_parallel.ipynb)). There are 128 copies of this arrangement, which makes 16 × 128, or 2,048 groups of eight GPUs, as many as there are sequences in the
# step. All of them wait for the update, and none uses old gradients. A further GPU was not worth a whole one, though. With 8,192 GPUs and as many tokens
# per step, each GPU reached 430 TFLOP/s instead of 400 (published), so twice the GPUs were 2 × 400 / 430, or 1.86 times as fast.
#
# Which source you should use first depends on the link.
#
# | your workers are | let them share | because |
# |---|---|---|
# | the cores of a CPU or the [multiprocessors](glossary.md#multiprocessor) of a GPU | layers | they have a common memory |
# | GPUs in one server | layers for few tokens, examples for many | NVLink brings 450 GB/s |
# | servers with 100 Gbit/s | examples, from tens of thousands of tokens per step on | the sum takes the same time for any number of tokens |
# | machines without a fast link | as little as possible, best each its own model | models exchange nothing |

# %% [markdown] tags=["formulas"]
# ## Formulas
#
# $R$ workers.
#
# | quantity | formula | for |
# |---|---|---|
# | time of a training | at least the larger of tasks / $R$ and the longest chain | tasks of equal length |
# | bytes of a layer's sum, tokens cut | $w\,h^2$ | a layer of width $h$, elements of $w$ bytes |
# | bytes of a layer's sum, inputs or outputs cut | $w\,h\,n$ | the same layer, $n$ tokens |
# | bytes that each worker receives | $2\,\frac{R-1}{R}\,x$ | a sum of $x$ bytes, of which each worker adds up a part |
# | updates until a loss | $u + c / b$ | a batch of $b$ images, with $u$ and $c$ measured |
# | critical batch | $c / u$ | the same training |
# | largest stable rate times curvature | $2 \sin \frac{\pi}{2\,(2s+1)}$ | gradients that are $s$ updates old, a parabola |
# | learning rate of $R$ workers that never wait | $\eta / R$ | $\eta$ is the best learning rate of the same workers if they wait |
