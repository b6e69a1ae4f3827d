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
# # A hundred replicas: exercises
#
# Four functions to write and two questions, for [lesson 19](../19_replicas.ipynb). Each function returns
# `exercises.not_yet` until you write it, has checks that you can read, and three hints that stay folded until you open
# them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is counted, so nothing depends on how fast your machine
# is.

# %%
import pandas as pd

from helpers import exercises
from helpers.studies import replicas


def part(place, of):
    """Return a way to call a function that gives ``of`` answers, and to look at one of them alone."""

    def call(function, *given):
        found = function(*given)
        return found[place] if isinstance(found, tuple | list) and len(found) == of else found

    return call


# %% [markdown]
# ## Exercise 1: from how many on?
#
# Three times of a training step, in microseconds: one net by itself, a stack of one, a stack of ten.
#
# | program | one net | a stack of one | a stack of ten |
# |---|--:|--:|--:|
# | small nets | 500 | 400 | 580 |
# | the same by `vmap` | 500 | 1,100 | 1,280 |
# | large nets | 9,000 | 9,300 | 93,300 |
#
# A loop over $R$ nets takes $R$ times one net, a stack $o' + R\,w$. Write `stack_model(one, stack_of_one,
# stack_of_ten)` and return three numbers: the work $w$, the overhead $o'$, and the smallest number of nets for which
# the stack takes less time than the loop, or `None` where no number does.


# %% answer="stack_model"
def stack_model(one, stack_of_one, stack_of_ten):
    """Return w, o' and the first number of nets: stack_model(500, 1100, 1280) is 20.0, 1080.0, 3."""
    ### BEGIN SOLUTION
    work = (stack_of_ten - stack_of_one) / 9
    overhead = stack_of_one - work
    if work >= one:
        return work, overhead, 1 if stack_of_one < one else None
    nets = 1
    while overhead + nets * work >= nets * one:
        nets += 1
    return work, overhead, nets
    ### END SOLUTION


# %% checks="stack_model" points=3
check = exercises.Checks("Exercise 1, stack_model", stack_model)
of_work, of_overhead, of_first = "the work of a net", "the stack's overhead", "the first number of nets"
told = {
    18.0: "From one net to ten there are nine more, not ten",
    58.0: "A tenth of the stack of ten has a tenth of the overhead in it: take the difference of the two stacks",
}
check.returns(of_work, (500, 400, 580), expected=20, mistakes=told, call=part(0, 3))
told = {
    400: "A stack of one does the work of one net as well",
    -100: "The overhead is the stack's: the loop's net has no part in it",
}
check.returns(of_overhead, (500, 400, 580), expected=380, mistakes=told, call=part(1, 3))
told = {
    2: "With two nets the stack takes 1120 and the loop 1000",
    2.25: "There is no quarter of a net: which whole number is the first?",
    10: "Ten do; but a smaller number does as well",
}
check.returns(of_first, (500, 1100, 1280), expected=3, mistakes=told, call=part(2, 3))
told = {3: "With three nets both take 1200: the stack must take less"}
check.returns(of_first, (400, 1050, 1725), expected=4, mistakes=told, call=part(2, 3))
check.returns(of_first, (500, 400, 580), expected=1, call=part(2, 3))
check.returns(of_first, (9000, 9300, 93300), expected=None, call=part(2, 3))
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(13001)
for _ in range(8):
    one, work, overhead = draw.randint(200, 900), draw.randint(5, 190), draw.randint(100, 5000)
    given = one, overhead + work, overhead + 10 * work
    first = next(nets for nets in range(1, 10**4) if overhead + nets * work < nets * one)
    for place, (goal, right) in enumerate({of_work: work, of_overhead: overhead, of_first: first}.items()):
        check.returns(goal, given, expected=right, call=part(place, 3))
check.returns(of_first, (50, 130, 1030), expected=None, call=part(2, 3))
check.returns(of_first, (100, 130, 1030), expected=None, call=part(2, 3))
check.returns(of_first, (60, 90, 540), expected=5, call=part(2, 3))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the line</summary>
#
# The stack's time is a straight line in the number of nets, and you know it at 1 and at 10: nine nets apart.
#
# </details>
# <details><summary>Hint 2: the overhead</summary>
#
# What is left of the stack of one when the work of one net is taken away.
#
# </details>
# <details><summary>Hint 3: the first number</summary>
#
# Try 1, 2, 3, and so on. It ends only if the work of a net in the stack is less than the loop's time for a net.
#
# </details>


# %% wrong="stack_model" says="there are nine more, not ten" gets=0
def stack_model(one, stack_of_one, stack_of_ten):
    work = (stack_of_ten - stack_of_one) / 10
    overhead = stack_of_one - work
    nets = max(1, int(overhead / (one - work))) if work < one else None
    return work, overhead, nets


# %% wrong="stack_model" says="does the work of one net as well" gets=1
def stack_model(one, stack_of_one, stack_of_ten):
    work = (stack_of_ten - stack_of_one) / 9
    nets = 1
    while stack_of_one + nets * work >= nets * one and nets < 10**4:
        nets += 1
    return work, stack_of_one, nets if nets < 10**4 else None


# %% wrong="stack_model" says="There is no quarter of a net" gets=2
def stack_model(one, stack_of_one, stack_of_ten):
    work = (stack_of_ten - stack_of_one) / 9
    overhead = stack_of_one - work
    return work, overhead, overhead / (one - work) if work < one else None


# %% wrong="stack_model" says="the stack must take less" gets=2
def stack_model(one, stack_of_one, stack_of_ten):
    work = (stack_of_ten - stack_of_one) / 9
    overhead = stack_of_one - work
    if work >= one:
        return work, overhead, None
    return work, overhead, max(1, -int(-overhead // (one - work)))


# %% [markdown]
# ## Exercise 2: a way for each data set
#
# A data set has $n$ numbers and needs $F$ pairs of flavours on $x$ points. The outer product makes $F\,x^2$ numbers a
# replica, the pair product $n\,F\,x$. A padded table would go through all 14 x 14 pairs. On 30 points:
#
# | n | F | outer product | pair product |
# |--:|--:|--:|--:|
# | 10 | 24 | 21,600 | 7,200 |
# | 40 | 24 | 21,600 | 28,800 |
#
# Write `choose(sets, points)`, where `sets` is a list of pairs `(n, F)`. Return two things: a list that has `"outer"`
# or `"pairs"` for each data set, whichever makes fewer numbers (`"outer"` where both make as many), and how many
# numbers are then made in all, for one replica.


# %% answer="choose"
def choose(sets, points):
    """Return the ways and the numbers made: choose([(10, 24), (40, 24)], 30) is ["pairs", "outer"], 28800."""
    ### BEGIN SOLUTION
    ways, made = [], 0
    for data, channels in sets:
        outer, pairs = channels * points**2, data * channels * points
        ways.append("pairs" if pairs < outer else "outer")
        made += min(outer, pairs)
    return ways, made
    ### END SOLUTION


# %% checks="choose" points=2
check = exercises.Checks("Exercise 2, choose", choose)
of_ways, of_made = "each data set has its way", "the numbers made in all"
told = {
    ("outer", "pairs", "pairs"): "That is the dearer one of each",
    ("pairs", "outer", "pairs"): "Where both make as many, it is outer",
    ("pairs", "pairs", "pairs"): "Compare n with x: with 40 numbers on 30 points pairs make more",
}
sets = [(10, 24), (40, 24), (30, 5)]
check.returns(of_ways, (sets, 30), expected=["pairs", "outer", "outer"], mistakes=told, call=part(0, 2))
told = {
    28800 + 28800: "Add up what is made by the way that you have chosen",
    32: "Every pair of flavours has a product of its own: F times",
    36000: "The pair product of the first data set makes 10 x 24 x 30 numbers",
}
check.returns(of_made, ([(10, 24), (40, 24)], 30), expected=28800, mistakes=told, call=part(1, 2))
check.returns(of_made, ([(7, 3)], 5), expected=75, mistakes={105: "Outer makes fewer here: 3 x 25"}, call=part(1, 2))
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(13002)
for _ in range(6):
    points = draw.randint(4, 50)
    sets = [(draw.randint(1, 2 * points), draw.randint(2, 100)) for _ in range(draw.randint(3, 8))] + [(points, 9)]
    counts = [replicas.cheapest_contraction(data, channels, points) for data, channels in sets]
    made = [(count.way("gather").made_numbers, count.way("pair_product").made_numbers) for count in counts]
    ways = ["outer" if outer <= pairs else "pairs" for outer, pairs in made]
    check.returns(of_ways, (sets, points), expected=ways, call=part(0, 2))
    check.returns(of_made, (sets, points), expected=sum(map(min, made)), call=part(1, 2))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: compare</summary>
#
# Both counts have $F\,x$ in them. What is left to compare?
#
# </details>
# <details><summary>Hint 2: the way</summary>
#
# `"pairs"` if n is less than x, else `"outer"`.
#
# </details>
# <details><summary>Hint 3: the sum</summary>
#
# For each data set add `min(F * x**2, n * F * x)`.
#
# </details>


# %% wrong="choose" says="That is the dearer one of each" gets=0
def choose(sets, points):
    ways = ["outer" if data < points else "pairs" for data, _ in sets]
    return ways, sum(max(channels * points**2, data * channels * points) for data, channels in sets)


# %% wrong="choose" says="Where both make as many, it is outer" gets=1
def choose(sets, points):
    ways = ["pairs" if data <= points else "outer" for data, _ in sets]
    return ways, sum(min(channels * points**2, data * channels * points) for data, channels in sets)


# %% wrong="choose" says="by the way that you have chosen" gets=1
def choose(sets, points):
    ways = ["pairs" if data < points else "outer" for data, _ in sets]
    made = sum(data * channels * points for data, channels in sets)
    return ways, made + sum(channels * points**2 for data, channels in sets if data < points)


# %% [markdown]
# ## Exercise 3: who stops when?
#
# Four replicas in one stack, with their validation losses in each step. A replica waits `patience` losses for a new
# lowest; when that many in a row were none, it stops before this step's update.
#
# | step | replica 0 | replica 1 | replica 2 | replica 3 |
# |--:|--:|--:|--:|--:|
# | 1 | 9 | 9 | 9 | 9 |
# | 2 | 8 | 9 | 7 | 8 |
# | 3 | 7 | 9 | 8 | 9 |
# | 4 | 6 | 8 | 7 | 7 |
# | 5 | 5 | 7 | 6 | 8 |
#
# With a patience of 2, replica 1 stops in step 3 after two updates, and replica 2 in step 4 after three: 7 is no *new*
# lowest. What comes later does not count. The other two make all five updates.
#
# Write `stops(losses, patience)`, where `losses` is a list of steps, each a list with a number a replica. Return
# three things: the list of updates of each replica; the replica-steps of a stack that masks, in which all replicas
# are computed until the last one stops; and those of a stack that takes stopped replicas out. Count updates only.


# %% answer="stops"
def stops(losses, patience):
    """Return updates, masked and compacted replica-steps: for the table and 2 it is [5, 2, 3, 5], 20, 15."""
    ### BEGIN SOLUTION
    taken = []
    for own in zip(*losses, strict=True):
        lowest, waited, updates = float("inf"), 0, 0
        for loss in own:
            waited = 0 if loss < lowest else waited + 1
            lowest = min(lowest, loss)
            if waited == patience:
                break
            updates += 1
        taken.append(updates)
    return taken, len(taken) * max(taken), sum(taken)
    ### END SOLUTION


# %% checks="stops" points=3
check = exercises.Checks("Exercise 3, stops", stops)
of_updates, of_masked, of_compacted = "the updates of each replica", "replica-steps, masked", "replica-steps, compacted"
table = [[9, 9, 9, 9], [8, 9, 7, 8], [7, 9, 8, 9], [6, 8, 7, 7], [5, 7, 6, 8]]
told = {
    (5, 3, 4, 5): "A replica stops before the update of the step in which its patience ends",
    (5, 5, 5, 5): "Count the losses in a row that were no new lowest; as many as the lowest is none",
    (5, 2, 5, 5): "Compare with the lowest loss so far: 7 again is no new lowest",
    (5, 2, 2, 2): "A new lowest loss sets the count back to 0: they must be in a row",
}
check.returns(of_updates, (table, 2), expected=[5, 2, 3, 5], mistakes=told, call=part(0, 3))
check.returns(of_updates, ([[3], [2], [2], [1]], 1), expected=[2], mistakes={(3,): told[5, 3, 4, 5]}, call=part(0, 3))
told = {
    15: "In a masked stack those that have stopped are computed all the same",
    24: "The stack ends with the last update of the last replica",
}
check.returns(of_masked, (table, 2), expected=20, mistakes=told, call=part(1, 3))
early = [[5, 5], [5, 4], [6, 4], [6, 6], [1, 1]]
said = "When all have stopped nothing is computed any more"
check.returns(of_masked, (early, 2), expected=6, mistakes={10: said, 8: said}, call=part(1, 3))
told = {20: "Only replicas that have not stopped are computed there"}
check.returns(of_compacted, (table, 2), expected=15, mistakes=told, call=part(2, 3))
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(13003)


def truth(losses, patience):
    """Return the updates of each: the first step whose last losses are all no lower than the lowest before them."""
    taken = []
    for own in zip(*losses, strict=True):
        last = len(own)
        for step in range(patience, len(own)):
            if all(loss >= min(own[: step - patience + 1]) for loss in own[step - patience + 1 : step + 1]):
                last = step
                break
        taken.append(last)
    return taken, len(taken) * max(taken), sum(taken)


for _ in range(8):
    replicas_drawn, steps, patience = draw.randint(2, 6), draw.randint(6, 15), draw.randint(1, 4)
    drawn = [[draw.randint(1, 30) - step for _ in range(replicas_drawn)] for step in range(steps)]
    for place, goal in enumerate((of_updates, of_masked, of_compacted)):
        check.returns(goal, (drawn, patience), expected=truth(drawn, patience)[place], call=part(place, 3))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one replica</summary>
#
# `zip(*losses)` gives each replica's losses in order. Keep the lowest so far, how many were no new lowest, and the
# updates.
#
# </details>
# <details><summary>Hint 2: the order in a step</summary>
#
# Look at the loss; if the wait has reached the patience, stop; else make the update and count it.
#
# </details>
# <details><summary>Hint 3: replica-steps</summary>
#
# Masked: the number of replicas times the most updates of any. Compacted: the sum of the updates.
#
# </details>


# %% wrong="stops" says="before the update of the step" gets=0
def stops(losses, patience):
    taken = []
    for own in zip(*losses, strict=True):
        lowest, waited, updates = float("inf"), 0, 0
        for loss in own:
            updates += 1
            waited = 0 if loss < lowest else waited + 1
            lowest = min(lowest, loss)
            if waited == patience:
                break
        taken.append(updates)
    return taken, len(taken) * max(taken), sum(taken)


# %% wrong="stops" says="Compare with the lowest loss so far" gets=0
def stops(losses, patience):
    taken = []
    for own in zip(*losses, strict=True):
        before, waited, updates = float("inf"), 0, 0
        for loss in own:
            waited = 0 if loss < before else waited + 1
            before = loss
            if waited == patience:
                break
            updates += 1
        taken.append(updates)
    return taken, len(taken) * max(taken), sum(taken)


# %% wrong="stops" says="those that have stopped are computed all the same" gets=2
def stops(losses, patience):
    taken = []
    for own in zip(*losses, strict=True):
        lowest, waited, updates = float("inf"), 0, 0
        for loss in own:
            waited = 0 if loss < lowest else waited + 1
            lowest = min(lowest, loss)
            if waited == patience:
                break
            updates += 1
        taken.append(updates)
    return taken, sum(taken), sum(taken)


# %% [markdown]
# ## Exercise 4: its own inverse
#
# Three data with the covariance $C$ below, and a replica that trains on the first two only. Its $\chi^2$ is
# $r^\top C_2^{-1} r$ over the number of its data, where $C_2$ is the part of $C$ that belongs to them.
#
# | C | 0 | 1 | 2 |
# |---|--:|--:|--:|
# | 0 | 2 | 0 | 1 |
# | 1 | 0 | 1 | 0 |
# | 2 | 1 | 0 | 1 |
#
# For residuals 2, 1, 5 it is $(2^2/2 + 1^2/1)/2 = 1.5$. The third datum is left out, and so is what it would have said
# about the first.
#
# Write `chi2(residuals, covariance, mask)` for lists; `mask` has `True` for the data that count. NumPy is allowed.


# %% answer="chi2"
def chi2(residuals, covariance, mask):
    """Return chi2 a datum: chi2([2, 1, 5], [[2, 0, 1], [0, 1, 0], [1, 0, 1]], [True, True, False]) is 1.5."""
    ### BEGIN SOLUTION
    import numpy as np

    kept = [place for place, counts in enumerate(mask) if counts]
    own = np.array(residuals, float)[kept]
    return float(own @ np.linalg.solve(np.array(covariance, float)[np.ix_(kept, kept)], own)) / len(kept)
    ### END SOLUTION


# %% checks="chi2" points=2
check = exercises.Checks("Exercise 4, chi2", chi2)
independent, correlated = "independent data", "correlated data"
diagonal = [[2, 0, 0], [0, 4, 0], [0, 0, 5]]
said = "Divide by the number of data that count, not by all of them"
told = {
    3.0: "Divide by the number of data that count",
    1.0: said,
    12.0: "The covariance is inverted: divide by it",
    4.0: "The third datum does not count",
}
check.returns(independent, ([2, 2, 5], diagonal, [True, True, False]), expected=1.5, mistakes=told)
check.returns(independent, ([2, 2, 5], diagonal, [False, True, True]), expected=3, mistakes={2.0: said})
told = {2.5: "That is a part of the whole inverse: take the part of the matrix first, then invert"}
matrix = [[2, 0, 1], [0, 1, 0], [1, 0, 1]]
check.returns(correlated, ([2, 1, 5], matrix, [True, True, False]), expected=1.5, mistakes=told)
check.report()
### BEGIN HIDDEN TESTS
import random

import numpy as np

draw = random.Random(13004)
for _ in range(6):
    size = draw.randint(3, 7)
    roots = np.array([[draw.randint(-3, 3) for _ in range(size)] for _ in range(size)])
    for goal, given in (
        (independent, np.diag([draw.randint(1, 9) for _ in range(size)])),
        (correlated, roots @ roots.T + np.eye(size)),
    ):
        residuals = [draw.randint(1, 9) for _ in range(size)]
        mask = [True, False, *(draw.random() < 0.6 for _ in range(size - 2))]
        draw.shuffle(mask)
        chosen = np.flatnonzero(mask)
        inverse = np.linalg.inv(given[chosen][:, chosen])
        value = sum(
            residuals[i] * residuals[j] * inverse[a, b] for a, i in enumerate(chosen) for b, j in enumerate(chosen)
        )
        check.returns(goal, (residuals, given.tolist(), mask), expected=float(value) / len(chosen))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the part</summary>
#
# `kept = np.flatnonzero(mask)`; then `covariance[np.ix_(kept, kept)]` of an array is the matrix of these data.
#
# </details>
# <details><summary>Hint 2: the inverse</summary>
#
# `np.linalg.inv(part)`, or `np.linalg.solve(part, residuals)` for its product with the residuals.
#
# </details>
# <details><summary>Hint 3: all of it</summary>
#
# `own @ np.linalg.solve(part, own) / len(kept)`, with `own = np.array(residuals)[kept]`.
#
# </details>


# %% wrong="chi2" says="take the part of the matrix first" gets=1
def chi2(residuals, covariance, mask):
    import numpy as np

    kept = np.flatnonzero(mask)
    own = np.array(residuals, float)[kept]
    return float(own @ np.linalg.inv(np.array(covariance, float))[np.ix_(kept, kept)] @ own) / len(kept)


# %% wrong="chi2" says="not by all of them" gets=0
def chi2(residuals, covariance, mask):
    import numpy as np

    kept = np.flatnonzero(mask)
    own = np.array(residuals, float)[kept]
    return float(own @ np.linalg.solve(np.array(covariance, float)[np.ix_(kept, kept)], own)) / len(mask)


# %% wrong="chi2" says="The covariance is inverted" gets=0
def chi2(residuals, covariance, mask):
    import numpy as np

    own = np.array(residuals, float) * mask
    return float(own @ np.array(covariance, float) @ own) / sum(mask)


# %% [markdown]
# ## Your functions at work
#
# The three programs of exercise 1:

# %%
programs = {"small nets": (500, 400, 580), "vmap": (500, 1100, 1280), "large nets": (9000, 9300, 93300)}
found = {name: stack_model(*times) for name, times in programs.items()} if "stack_model" in dir() else {}
if found and not any(each is exercises.not_yet for each in found.values()):
    print(pd.DataFrame(found, index=["work", "overhead", "stack from"]).T.to_string())
else:
    print("not yet")

# %% [markdown]
# Small nets gain at once. `vmap` has the same work and more overhead: three nets pay for it. Large nets are nearly all
# work, and a stack does it no faster.
#
# ## Question 1: would you trust it?
#
# A colleague shows you a program that trains 200 models in one stack, 30 times as fast as one after another. The mean
# loss of the 200 is as before, to two digits. Batch normalisation, dropout, clipping and early stopping are in it.
#
# Name two of the four and say for each how it could couple the models or change a single one, although the mean loss
# stays. Then describe the test after which you would trust the program: on how many models, for how many steps, in
# which number type, with what compared, and why you would not ask for equal losses after 10,000 steps.
#
# Four to six sentences; a person reads them.

# %% [markdown] written="trust" points=2
# A full answer says:
#
# - 1 point: two couplings with their mechanism: statistics of a batch taken over all models or buffers shared between
#   them; one mask of dropout for all, or random numbers drawn in another order than alone; one norm for the stack; a
#   loss of weight 0 that momentum carries on, or the best weights of another step kept.
# - 1 point: a test with single models as the reference: a few models with different data and one of them loud, a few
#   tens of steps in float64, each loss and weight compared to rounding; after thousands of steps roundings have grown,
#   and only statistics can be compared.

# %% [markdown]
# ## Question 2: a stack of your own
#
# Take many small models that you could train at once: a search over learning rates, an ensemble, a cross-validation.
# Predict from three times (one model; a stack of one; a stack of ten) how long the whole takes as a stack, and how
# many times as fast that is as a loop. Then run it (`helpers.studies.sgd_parallelism.stack_weights` makes the stack,
# and `torch.func.functional_call` in `torch.func.vmap` computes with it), and compare. Explain what is left between
# prediction and measurement where it is more than a factor of two.
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="own_stack" points=2
# A full answer says:
#
# - 1 point: the three times, w and o' from them, and the predicted time and speedup, written before the run.
# - 1 point: the measured time beside it, and for what is left a reason that was tested (caches: a smaller stack; work
#   that is not linear: another number of models; the loop's own overhead).

# %% [markdown]
# ## What you have practised
#
# Telling when a stack pays, choosing a contraction by count, stopping replicas one at a time, and giving each replica
# the inverse of its own data.
