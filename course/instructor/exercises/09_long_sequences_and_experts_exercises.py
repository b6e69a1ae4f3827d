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
# ---

# %% [markdown]
# # Long sequences and experts: exercises
#
# Three functions to write and two questions to answer, for [lesson 09](../09_long_sequences_and_experts.ipynb). Each
# exercise has a table or a picture, a function that returns `exercises.not_yet` until you write it, checks that you can
# read, and three hints that stay folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is counted or modelled, so you need no GPU.

# %%
from helpers import exercises, plotting

# %% [markdown]
# ## Exercise 1: back to the tokens
#
# In Ulysses a first all-to-all gave each rank all tokens with some of the heads. After the attention, a second one
# brings the outputs back, so that each rank has all heads of its own tokens. Two ranks share four tokens, `a` to `d`,
# and four heads:
#
# | | rank 0 has | rank 1 has |
# |---|---|---|
# | after the attention | heads 0, 1 of a, b, c, d | heads 2, 3 of a, b, c, d |
# | after the second all-to-all | heads 0 to 3 of a, b | heads 0 to 3 of c, d |
#
# Write `back_to_tokens(by_heads)`. The outputs that a rank has after the attention are `by_heads[rank][token]`, a list
# with an item for each of the rank's heads, in order. Return `by_tokens[rank][token]`, a list with an item for every
# head, for the rank's own tokens. The tokens divide by the ranks.


# %% answer="back_to_tokens"
def back_to_tokens(by_heads):
    """Return, for each rank, its tokens with all heads: [[["a0"], ["b0"]], [["a1"], ["b1"]]] has two ranks."""
    ### BEGIN SOLUTION
    ranks, tokens = len(by_heads), len(by_heads[0])
    own = tokens // ranks
    return [
        [[output for rank in range(ranks) for output in by_heads[rank][token]] for token in range(first, first + own)]
        for first in range(0, tokens, own)
    ]
    ### END SOLUTION


# %%
def first_token(function, by_heads):
    answer = function(by_heads)
    return answer if answer is exercises.not_yet else answer[0][0]


def tokens_of_ranks(function, by_heads):
    answer = function(by_heads)
    return answer if answer is exercises.not_yet else [[token[0] for token in rank] for rank in answer]


# %% checks="back_to_tokens" points=3
check = exercises.Checks("Exercise 1, back_to_tokens", back_to_tokens)
heads, whole, several = "a token has all its heads", "each rank has its own tokens", "a rank has several heads"

two_ranks = [[["a0"], ["b0"], ["c0"], ["d0"]], [["a1"], ["b1"], ["c1"], ["d1"]]]
mistakes = {
    ("a0",): "The heads of the other ranks are missing",
    ("a1", "a0"): "The heads stand in the order of the ranks that computed them",
}
check.returns(heads, (two_ranks,), expected=["a0", "a1"], mistakes=mistakes, call=first_token)
mistakes = {
    (("a0", "b0", "c0", "d0"), ("a0", "b0", "c0", "d0")): "A rank has its own tokens alone, and not all of them",
    (("a0", "c0"), ("b0", "d0")): "The tokens of a rank are neighbours, so the first rank has the first ones",
}
check.returns(whole, (two_ranks,), expected=[["a0", "b0"], ["c0", "d0"]], mistakes=mistakes, call=tokens_of_ranks)
four_heads = [[["a0", "a1"], ["b0", "b1"]], [["a2", "a3"], ["b2", "b3"]]]
mistakes = {
    ((("a0", "a2"),), (("b0", "b2"),)): "A rank may have several heads of a token: take all of them",
    (((("a0", "a1"), ("a2", "a3")),), ((("b0", "b1"), ("b2", "b3")),)): "Put the heads of all ranks into one list",
}
check.returns(
    several, (four_heads,), expected=[[["a0", "a1", "a2", "a3"]], [["b0", "b1", "b2", "b3"]]], mistakes=mistakes
)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(9001)
for _ in range(4):
    ranks, own, per_rank = draw.randint(2, 5), draw.randint(1, 4), draw.randint(2, 3)
    numbers = [[draw.randint(0, 999) for _ in range(ranks * per_rank)] for _ in range(ranks * own)]
    single = [[[token[rank * per_rank]] for token in numbers] for rank in range(ranks)]
    check.returns(heads, (single,), expected=numbers[0][::per_rank], call=first_token)
    firsts = [[token[0] for token in numbers[rank * own : (rank + 1) * own]] for rank in range(ranks)]
    check.returns(whole, (single,), expected=firsts, call=tokens_of_ranks)
    grouped = [[token[rank * per_rank : (rank + 1) * per_rank] for token in numbers] for rank in range(ranks)]
    expected = [numbers[rank * own : (rank + 1) * own] for rank in range(ranks)]
    check.returns(several, (grouped,), expected=expected)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: which tokens?</summary>
#
# With `own = tokens // ranks`, rank `r` has the tokens from `r * own` to `(r + 1) * own`.
#
# </details>
# <details><summary>Hint 2: which heads?</summary>
#
# The heads of one token lie in `by_heads[0][token]`, `by_heads[1][token]` and so on, one list for each rank.
#
# </details>
# <details><summary>Hint 3: one list</summary>
#
# `[item for part in parts for item in part]` joins lists to one.
#
# </details>


# %% wrong="back_to_tokens" says="and not all of them" gets=1
def back_to_tokens(by_heads):
    everything = [[output for part in parts for output in part] for parts in zip(*by_heads, strict=True)]
    return [everything for _ in by_heads]


# %% wrong="back_to_tokens" says="take all of them" gets=2
def back_to_tokens(by_heads):
    own = len(by_heads[0]) // len(by_heads)
    joined = [[part[0] for part in parts] for parts in zip(*by_heads, strict=True)]
    return [joined[rank * own : (rank + 1) * own] for rank in range(len(by_heads))]


# %% wrong="back_to_tokens" says="so the first rank has the first ones" gets=1
def back_to_tokens(by_heads):
    joined = [[output for part in parts for output in part] for parts in zip(*by_heads, strict=True)]
    return [joined[rank :: len(by_heads)] for rank in range(len(by_heads))]


# %% [markdown]
# ## Exercise 2: when does the ring hide its traffic?
#
# A rank computes one block of scores after the other. It begins with its own keys, and those of step $i$ have been on
# the way for $i$ messages. Each message takes 3 units of time, and the blocks take 2, 5 and 2:

# %%
spans = [
    plotting.Span("arriving", 0, 3, "sending", "1"),
    plotting.Span("arriving", 3, 6, "sending", "2"),
    *(plotting.Span("computing", start, end, "computing", str(step))
      for step, (start, end) in enumerate([(0, 2), (3, 8), (8, 10)])),
]  # fmt: skip
drawn = plotting.gantt(spans, title="Step 1 waits for its keys, step 2 for the device", unit="", xlabel="time")
plotting.show(drawn, alt="Two lanes: keys arrive at 3 and 6; blocks are computed from 0 to 2, 3 to 8 and 8 to 10.")

# %% [markdown]
# Write `ring_end(blocks, message)`: when has the rank computed all its blocks? `blocks[i]` is how long block `i` takes;
# with a causal mask some are 0, and their keys are passed on all the same. Keys travel on as soon as they have arrived,
# whatever the rank computes.


# %% answer="ring_end"
def ring_end(blocks, message):
    """Return the end of the last block: ring_end([2, 5, 2], 3) is 10."""
    ### BEGIN SOLUTION
    end = 0
    for step, block in enumerate(blocks):
        end = max(end, step * message) + block
    return end
    ### END SOLUTION


# %% checks="ring_end" points=3
check = exercises.Checks("Exercise 2, ring_end", ring_end)
hidden, exposed, unequal = "long blocks hide their traffic", "a slow link is waited for", "unequal blocks are timed"
serial = {19: "Keys travel while a block is computed: do not add both"}
check.returns(hidden, ([4, 4, 4, 4], 1), expected=16, mistakes=serial)
short = {19: "The first block is shorter than a message, so the second waits for 1"}
check.returns(hidden, ([1, 9, 9], 2), expected=20, mistakes=short)
forgotten = {8: "Block 3 cannot begin before its keys have come a way of 3 messages"}
check.returns(
    exposed, ([2, 2, 2, 2], 5), expected=17, mistakes=forgotten | {23: "Keys travel while a block is computed"}
)
lockstep = {13: "Keys travel on while the rank computes: those of step 2 are there at 6, those of step 3 at 9"}
check.returns(unequal, ([5, 1, 1, 2], 3), expected=11, mistakes=lockstep)
check.returns(unequal, ([1, 0, 0, 6], 2), expected=12)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(16003)


def truth(blocks, message):
    """The longest chain: some messages in a row, and then all blocks that are left."""
    return max(step * message + sum(blocks[step:]) for step in range(len(blocks)))


for _ in range(5):
    steps, block = draw.randint(3, 7), draw.randint(4, 9)
    message = draw.randint(1, block - 1)
    blocks = [message - 1, *[block] * steps]
    check.returns(hidden, (blocks, message), expected=truth(blocks, message))
    message = block + draw.randint(1, 9)
    check.returns(exposed, ([block] * steps, message), expected=truth([block] * steps, message))
    blocks, message = [draw.randint(2, 12) for _ in range(steps)], draw.randint(3, 9)
    blocks[1] = 2 * message + 1
    check.returns(unequal, (blocks, message), expected=truth(blocks, message))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one block</summary>
#
# A block begins at the later of two times: when its keys are there, and when the block before it has ended.
#
# </details>
# <details><summary>Hint 2: when are the keys there?</summary>
#
# Nobody holds them up: those of step `i` arrive at `i * message`.
#
# </details>
# <details><summary>Hint 3: one number</summary>
#
# Keep the end of the block before, and start from 0.
#
# </details>


# %% wrong="ring_end" says="do not add both" gets=0
def ring_end(blocks, message):
    return sum(blocks) + (len(blocks) - 1) * message


# %% wrong="ring_end" says="before its keys have come" gets=0
def ring_end(blocks, message):  # noqa: ARG001
    return sum(blocks)


# %% wrong="ring_end" says="Keys travel on while the rank computes" gets=2
def ring_end(blocks, message):
    return sum(max(block, message) for block in blocks[:-1]) + blocks[-1]


# %% [markdown]
# ## Exercise 3: the vectors that leave a node
#
# Experts are numbered, and each node holds `per_node` consecutive ones. A token that visits several experts of another
# node sends its vector there once, because the node can distribute it inside. To its own node it sends nothing through
# the port. Here are three tokens of node 0, with two experts per node:
#
# | experts of the token | nodes | vectors through the port |
# |---|---|--:|
# | 2, 3, 5 | 1, 1, 2 | 2 |
# | 0, 1 | 0, 0 | 0 |
# | 1, 6, 7 | 0, 3, 3 | 1 |
#
# Write `vectors_out(chosen, per_node, own)`, which returns how many vectors leave node `own` through its port.
# `chosen[token]` are the experts that a token of this node visits.


# %% answer="vectors_out"
def vectors_out(chosen, per_node, own):
    """Return the vectors through the port: vectors_out([[2, 3, 5], [0, 1]], 2, 0) is 2."""
    ### BEGIN SOLUTION
    return sum(len({expert // per_node for expert in experts} - {own}) for experts in chosen)
    ### END SOLUTION


# %% checks="vectors_out" points=3
check = exercises.Checks("Exercise 3, vectors_out", vectors_out)
once, inside, tokens = "a node gets a vector once", "the own node gets none", "every token sends its own"
visits = "Several experts of one node share a vector, so count nodes and not experts"
check.returns(once, ([[2, 3, 5]], 2, 0), expected=2, mistakes={3: visits})
check.returns(
    inside, ([[1, 6]], 2, 0), expected=1, mistakes={2: "To its own node a token sends nothing through the port"}
)
check.returns(
    inside, ([[4, 1], [5, 4]], 2, 2), expected=1, mistakes={2: "The own node is `own`, which need not be node 0"}
)
check.returns(tokens, ([[2], [2], [2, 4]], 2, 0), expected=4, mistakes={2: "Each token has a vector of its own"})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(9003)
for _ in range(5):
    per_node, nodes = draw.randint(2, 6), draw.randint(3, 6)
    own = draw.randrange(1, nodes)
    other, third = draw.sample([node for node in range(nodes) if node != own], 2)
    pair = draw.sample(range(other * per_node, (other + 1) * per_node), 2)
    check.returns(once, ([pair], per_node, own), expected=1)
    home = draw.randrange(own * per_node, (own + 1) * per_node)
    count = draw.randint(2, 9)
    check.returns(inside, ([[home, pair[0]]] * count + [[home]], per_node, own), expected=count)
    far = [pair[0], third * per_node]
    check.returns(tokens, ([[pair[0]]] * count + [far], per_node, own), expected=count + 2)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the node of an expert</summary>
#
# Expert `e` is on node `e // per_node`.
#
# </details>
# <details><summary>Hint 2: once</summary>
#
# A set holds each node once, `{... for expert in experts}`.
#
# </details>
# <details><summary>Hint 3: without the own node</summary>
#
# `nodes - {own}` is a set without the own node, and `len` counts what is left. Add this up over the tokens.
#
# </details>


# %% wrong="vectors_out" says="so count nodes and not experts" gets=2
def vectors_out(chosen, per_node, own):
    return sum(expert // per_node != own for experts in chosen for expert in experts)


# %% wrong="vectors_out" says="sends nothing through the port" gets=2
def vectors_out(chosen, per_node, own):  # noqa: ARG001
    return sum(len({expert // per_node for expert in experts}) for experts in chosen)


# %% wrong="vectors_out" says="Each token has a vector of its own" gets=1
def vectors_out(chosen, per_node, own):
    return len({expert // per_node for experts in chosen for expert in experts} - {own})


# %% [markdown]
# ## Question 1: a slow network?
#
# A colleague trains on sequences of 32,768 tokens with a ring of four GPUs. The profile shows that GPU 0 spends 80 % of
# each attention in `recv`, whereas GPU 3 spends 4 % there. The colleague wants to buy faster links. What do you say,
# which two numbers would you ask for, and what would you change first? By what factor can the attention become faster?
#
# Three to six sentences; a person reads them.

# %% [markdown] written="slow_network" points=2
# A full answer says:
#
# - 1 point: GPU 0 has the beginning of the sequence and waits for GPU 3, not for bytes; the sign is that GPU 3 hardly
#   waits. Useful numbers are the tokens per GPU against 2 P / B divided by the query heads per key, and the busy
#   share of the last GPU.
# - 1 point: zigzag pieces first, which bring at most 3.5 / 2, or 1.75 times the speed; faster links bring nothing.

# %% [markdown]
# ## Question 2: an expert of your own
#
# Look up a mixture of experts whose shape is published (Mixtral, OLMoE, Qwen, DeepSeek or another). Give its hidden
# width per expert, its experts per layer and per token. For links that you could have, inside a node and between nodes,
# say how many times as long as its arithmetic its sending takes, and which of the two levels its experts may cross.
# Then say how you would find out in a training whether its router is balanced.
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="own_expert" points=2
# A full answer says:
#
# - 1 point: the published shape with its source, and the ratio P / (2.25 f B) computed for two links, with a conclusion
#   (for example within a node only, or with a limit on nodes).
# - 1 point: the share of the fullest expert, or the dropped share, logged per layer, and what an even router would
#   give.

# %% [markdown]
# ## What you have practised
#
# Bringing heads back to their tokens, saying when the traffic of a ring hides behind its computing, and counting what
# leaves a node on its way to the experts.
