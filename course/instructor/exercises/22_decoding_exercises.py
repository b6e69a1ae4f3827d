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
# # Decoding: exercises
#
# Two functions to write and two questions to answer, for [lesson 22](../22_decoding.ipynb). Each exercise has a table,
# a function that returns `exercises.not_yet` until you write it, checks that you can read, and three
# hints that stay folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is counted, so nothing depends on how fast your machine
# is; only the last question asks you to measure.

# %%
from helpers import exercises

# %% [markdown]
# ## Exercise 1: how far to guess
#
# [Speculative decoding](../glossary.md#speculative-decoding) with `kept` 0.6: a guess is kept with 60 %, if all before
# it were kept. The model adds a token of its own to each call. The draft takes no time here, and a call of the model on
# more tokens takes longer, in steps of one token:
#
# | guesses | tokens a call | a call takes | tokens in the time of a step |
# |--:|--:|--:|--:|
# | 0 | 1 | 1 | 1 |
# | 1 | 1.6 | 1.25 | 1.28 |
# | 2 | 1.96 | 1.5 | 1.31 |
# | 3 | 2.18 | 1.75 | 1.24 |
#
# So two guesses are best. Write `best_guesses(kept, draft, calls)`: with how many guesses are most tokens written in
# the same time? `calls[n]` is the time of a call with `n` guesses, `draft` that of one guess of the draft, both in
# steps. There are at most `len(calls) - 1` guesses.


# %% answer="best_guesses"
def best_guesses(kept, draft, calls):
    """Return the best number of guesses: best_guesses(0.6, 0, [1, 1.25, 1.5, 1.75]) is 2."""
    ### BEGIN SOLUTION
    rates = []
    for guesses, call in enumerate(calls):
        tokens = sum(kept**place for place in range(guesses + 1))
        rates.append(tokens / (call + guesses * draft))
    return rates.index(max(rates))
    ### END SOLUTION


# %% checks="best_guesses" points=3
check = exercises.Checks("Exercise 1, best_guesses", best_guesses)
longer, guessing, best = "longer calls are paid for", "the draft is paid for", "the best of all is found"
chain = "A guess counts only if all guesses before it were kept"
own = "The model adds a token of its own to every call"
slips = {6: chain, 4: own}
check.returns(longer, (0.7, 0, [1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2]), expected=3, mistakes=slips)
slips = {7: "Each guess takes the draft's time", 5: own}
check.returns(guessing, (0.7, 0.15, [1] * 8), expected=3, mistakes=slips)
slips = {
    0: "One guess is worse than none, and more of them are better again: look at all",
    6: "Compare tokens for the same time: the last calls take long",
}
check.returns(best, (0.8, 0, [1, 2.0, 2.1, 2.2, 2.3, 5.5, 6.0]), expected=4, mistakes=slips)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(15003)


def truth(kept, draft, calls):
    """The best by playing all outcomes: the chance that exactly so many are kept."""
    found, most = None, -1.0
    for guesses, call in enumerate(calls):
        exactly = [kept**n * (1 - kept) for n in range(guesses)] + [kept**guesses]
        rate = sum((n + 1) * chance for n, chance in enumerate(exactly)) / (call + guesses * draft)
        if rate > most * (1 + 1e-9):
            found, most = guesses, rate
    return found


for _ in range(6):
    kept = draw.choice([0.62, 0.66, 0.71, 0.74])
    slope = draw.choice([0.17, 0.21, 0.23])
    calls = [1 + slope * guesses for guesses in range(9)]
    check.returns(longer, (kept, 0, calls), expected=truth(kept, 0, calls))
    cost = draw.choice([0.11, 0.13, 0.17])
    check.returns(guessing, (kept, cost, [1] * 10), expected=truth(kept, cost, [1] * 10))
    jump = draw.randint(2, 7)
    calls = [1] + [2 + guesses / 20 if guesses <= jump else 9 + guesses for guesses in range(1, 10)]
    check.returns(best, (0.8, 0, calls), expected=truth(0.8, 0, calls))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: tokens a call</summary>
#
# With two guesses: `1 + kept + kept**2`.
#
# </details>
# <details><summary>Hint 2: time of a round</summary>
#
# `calls[guesses] + guesses * draft`.
#
# </details>
# <details><summary>Hint 3: the best</summary>
#
# Make a list of tokens over time, one number for each number of guesses; `rates.index(max(rates))` is the answer.
#
# </details>


# %% wrong="best_guesses" says="only if all guesses before it were kept" gets=1
def best_guesses(kept, draft, calls):
    rates = [(1 + n * kept) / (call + n * draft) for n, call in enumerate(calls)]
    return rates.index(max(rates))


# %% wrong="best_guesses" says="adds a token of its own" gets=1
def best_guesses(kept, draft, calls):
    rates = []
    for guesses, call in enumerate(calls):
        tokens = sum(kept**place for place in range(1, guesses + 1))
        rates.append(tokens / (call + guesses * draft))
    return rates.index(max(rates))


# %% wrong="best_guesses" says="Each guess takes the draft's time" gets=2
def best_guesses(kept, draft, calls):  # noqa: ARG001
    rates = [sum(kept**place for place in range(n + 1)) / call for n, call in enumerate(calls)]
    return rates.index(max(rates))


# %% wrong="best_guesses" says="look at all" gets=2
def best_guesses(kept, draft, calls):
    def rate(guesses):
        return sum(kept**place for place in range(guesses + 1)) / (calls[guesses] + guesses * draft)

    guesses = 0
    while guesses + 1 < len(calls) and rate(guesses + 1) > rate(guesses):
        guesses += 1
    return guesses


# %% wrong="best_guesses" says="Compare tokens for the same time" gets=0
def best_guesses(kept, draft, calls):  # noqa: ARG001
    return len(calls) - 1


# %% [markdown]
# ## Exercise 2: how many texts fit?
#
# Every number has 2 bytes. Cards divide the weights evenly, and the heads of keys and values among themselves; a head
# is not cut, so where there are more cards than heads, each card has one. Llama 3 70B (70.55e9 weights, 80 layers, 8
# heads of keys with 128 numbers) on cards of 80 GB, with texts of 8,192 tokens:
#
# | cards | weights on a card | left | a text's cache on a card | texts |
# |--:|--:|--:|--:|--:|
# | 2 | 70.55 GB | 9.45 GB | 4 heads: 1.342 GB | 7 |
# | 8 | 17.64 GB | 62.36 GB | 1 head: 0.336 GB | 185 |
#
# Write `texts_that_fit(memory, weights, layers, kv_heads, head_width, tokens, cards)`. `memory` is a card's bytes.
# Where not even the weights fit, the answer is 0.


# %% answer="texts_that_fit"
def texts_that_fit(memory, weights, layers, kv_heads, head_width, tokens, cards):
    """Return how many texts of so many tokens have room for their caches."""
    ### BEGIN SOLUTION
    left = memory - 2 * weights / cards
    heads = max(1, kv_heads // cards)
    a_text = 2 * layers * heads * head_width * tokens * 2
    return max(0, int(left // a_text))
    ### END SOLUTION


# %% checks="texts_that_fit" points=3
check = exercises.Checks("Exercise 2, texts_that_fit", texts_that_fit)
alone, divided, whole = "one card", "cards divide weights and heads", "a head is not cut"
halves = "Keys and values are kept: two numbers, not one"
slips = {119: halves, 60: "Whole texts: round down", 29: "A number has 2 bytes, not 4"}
check.returns(alone, (80e9, 8.03e9, 32, 8, 128, 8192, 1), expected=59, mistakes=slips)
check.returns(alone, (24e9, 13e9, 40, 40, 128, 2048, 1), expected=0)
slips = {3: "Cards divide the heads as well", 0: "Cards divide the weights", 14: halves}
check.returns(divided, (80e9, 70.55e9, 80, 8, 128, 8192, 2), expected=7, mistakes=slips)
slips = {424: "Sixteen cards, eight heads: each card has a whole head"}
check.returns(whole, (80e9, 70.55e9, 80, 8, 128, 8192, 16), expected=212, mistakes=slips)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(15004)


def truth(memory, weights, layers, kv_heads, head_width, tokens, cards):
    """One text more, as long as the fullest card has room."""
    heads = [0] * cards
    for head in range(max(kv_heads, cards)):
        heads[head % cards] += 1
    used, texts = 2 * weights / cards, 0
    while used + (texts + 1) * max(heads) * 4 * layers * head_width * tokens <= memory:
        texts += 1
    return texts


for _ in range(5):
    layers, width, tokens = draw.randint(20, 60), draw.choice([64, 128]), draw.randint(2000, 9000)
    weights = draw.randint(50, 150) * 1e8
    given = (80e9, weights, layers, draw.choice([8, 16]), width, tokens, 1)
    check.returns(alone, given, expected=truth(*given))
    given = (80e9, 3 * weights, layers, 16, width, tokens, draw.choice([2, 4]))
    check.returns(divided, given, expected=truth(*given))
    given = (80e9, 3 * weights, layers, 2, width, tokens, draw.choice([4, 8]))
    check.returns(whole, given, expected=truth(*given))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: what is left?</summary>
#
# A card has `2 * weights / cards` bytes of weights.
#
# </details>
# <details><summary>Hint 2: heads on a card</summary>
#
# `max(1, kv_heads // cards)`.
#
# </details>
# <details><summary>Hint 3: a text</summary>
#
# A key and a value, in each layer, for each of these heads and each token, `head_width` numbers of 2 bytes.
#
# </details>


# %% wrong="texts_that_fit" says="Keys and values are kept" gets=0
def texts_that_fit(memory, weights, layers, kv_heads, head_width, tokens, cards):
    left = memory - 2 * weights / cards
    return max(0, int(left // (2 * layers * max(1, kv_heads // cards) * head_width * tokens)))


# %% wrong="texts_that_fit" says="Cards divide the heads as well" gets=1
def texts_that_fit(memory, weights, layers, kv_heads, head_width, tokens, cards):
    left = memory - 2 * weights / cards
    return max(0, int(left // (4 * layers * kv_heads * head_width * tokens)))


# %% wrong="texts_that_fit" says="each card has a whole head" gets=2
def texts_that_fit(memory, weights, layers, kv_heads, head_width, tokens, cards):
    left = memory - 2 * weights / cards
    return max(0, int(left // (4 * layers * kv_heads / cards * head_width * tokens)))


# %% [markdown]
# ## Question 1: tokens a second that cannot be
#
# A page of benchmarks (alpha-one-index, *inference-benchmarks*) states for Llama 2 70B "85 to 110 tokens/s" in FP16,
# batch 1, on one H100 of 80 GB. The model has 68.98e9 weights, of which a step reads 68.71e9. NVIDIA's data sheet
# gives the card 3,350 GB/s.
#
# Which two things about this cannot be, with a number each? Name something that was perhaps measured in its place, and
# show that it could reach such a rate.
#
# Three to six sentences with your numbers; a person reads them.

# %% [markdown] written="impossible" points=2
# A full answer says:
#
# - 1 point: weights of 2 bytes take 138 GB and do not fit into 80 GB; and even if they did, 3,350e9 / 137.4e9 = 24.4
#   tokens a second is the most, a quarter of what is stated.
# - 1 point: something else with its own number, such as weights of 4 bits (34 GB, with scales up to 43 GB: at most 97
#   or 78 tokens a second), several cards (four read 4 x 3,350 GB/s: at most 98), a batch counted together (8 texts of
#   13 each), or guessed tokens. A cause without a number does not get the point.

# %% [markdown]
# ## Question 2: a decoder of your own
#
# Choose the sizes of a `helpers.models.Decoder` that is yours: at least 20 million weights, and something unlike the
# lesson's (wide and flat, narrow and deep, one head of keys, a large vocabulary). Or take a model that you run
# elsewhere.
#
# *Before* you measure, write down how long a step takes for 1 text and for 8, with 500 tokens in each cache, and from
# which numbers that follows. Then measure both (`helpers.measure`). Where you are wrong by more than a factor of 2,
# measure a part alone until you know which one it is.
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="own_decoder" points=2
# A full answer says:
#
# - 1 point: sizes, the weights and cache bytes of a step, and a time from a bandwidth of this machine that is named (a
#   product of as many bytes, or `helpers.probe`), for both batches and written as a prediction; whether the weights fit
#   into a cache is said.
# - 1 point: both measured times beside it; within a factor of 2, or else a part measured alone that accounts for the
#   difference (the products of 8 rows, attention, many small layers whose calls take longer than their bytes, the
#   head of a large vocabulary). "The machine was busy" is no explanation without a second measurement.

# %% [markdown]
# ## What you have practised
#
# Choosing how far to guess, and counting how many texts fit beside the weights. What a server does with pages and slots
# is in the exercises of lesson 23.
