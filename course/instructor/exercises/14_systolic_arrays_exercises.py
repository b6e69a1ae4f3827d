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
# # Systolic arrays: exercises
#
# Five functions to write, for [lesson 14](../14_systolic_arrays.ipynb). Each exercise has a table or a picture, a
# function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints that stay
# folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is counted or simulated, so nothing depends on how fast
# your machine is.

# %%
import numpy as np
import pandas as pd

from helpers import exercises, hardware, plotting
from helpers.studies.simulators import systolic

# %% [markdown]
# ## Exercise 1: which dataflow is fastest?
#
# A product of an m x k matrix `a` with a k x n matrix `b`, on a [systolic array](../glossary.md#systolic-array) of
# `rows` x `columns` elements. Each [dataflow](../glossary.md#dataflow) cuts the product into tiles, and works through
# them one after another:
#
# | dataflow | along the rows | along the columns | passes through | a tile takes |
# |---|:-:|:-:|:-:|---|
# | `"weight"` | k | n | m | `rows` cycles to load its filters, then the lesson's m + rows + columns - 2 |
# | `"output"` | m | n | k | k + rows + columns - 2 cycles to compute, then `rows` to drain its results |
# | `"input"` | k | m | n | as `"weight"`, for the transposed product |
#
# A tile that fills only a part of the array takes as long as a full one.
#
# Write `best_dataflow(m, n, k, rows, columns)`. Return the name of the dataflow that needs the fewest cycles, and these
# cycles. Where several need as few, return the one that stands first in the table. `systolic.model_cycles` knows the
# cycles of a dataflow; the point here is to know them without it.


# %% answer="best_dataflow"
def best_dataflow(m, n, k, rows, columns):
    """Return the fastest dataflow and its cycles: best_dataflow(32, 4, 20, 4, 4) is ("weight", 210)."""
    ### BEGIN SOLUTION
    placed = {"weight": (k, n, m), "output": (m, n, k), "input": (k, m, n)}
    cycles = {
        name: -(-along_rows // rows) * -(-along_columns // columns) * (passing + 2 * rows + columns - 2)
        for name, (along_rows, along_columns, passing) in placed.items()
    }
    best = min(cycles, key=cycles.get)
    return best, cycles[best]
    ### END SOLUTION


# %% checks="best_dataflow" points=3
check = exercises.Checks("Exercise 1, best_dataflow", best_dataflow)
full, partial, equal = "full tiles are counted", "partial tiles are counted", "equal cycles: the table's first"
corner = "The first element is one of the row and one of the column: each tile takes 2 cycles less"
filters = "Before the first input enters, the filters are loaded: rows cycles more a tile"
results = "The results are still in the elements: they drain in rows cycles more a tile"
inputs = "Before the first filter enters, the inputs are loaded: rows cycles more a tile"
told = {("weight", 74): filters, ("weight", 84): corner}
check.returns(full, (64, 4, 8, 8, 4), expected=("weight", 82), mistakes=told)
told = {("output", 336): results, ("output", 416): corner}
check.returns(full, (16, 16, 32, 8, 4), expected=("output", 400), mistakes=told)
told = {("input", 148): inputs, ("input", 168): corner}
check.returns(full, (8, 64, 8, 8, 4), expected=("input", 164), mistakes=told)
told = {
    ("weight", 76): "What is left over after the full tiles needs a tile as well: round up",
    ("output", 118.125): "There is no half of a tile: round up",
    ("output", 126): "Rows and columns are cut one by one: round each of the two up, then multiply",
}
check.returns(partial, (9, 10, 11, 4, 4), expected=("weight", 171), mistakes=told)
told = {("input", 164): "Input-stationary has k along the rows and m along the columns, not the other way round"}
check.returns(partial, (4, 64, 8, 8, 4), expected=("input", 82), mistakes=told)
others = "As fast as that are others too: the table's first is wanted, not the alphabet's"
told = {("input", 52): others, ("output", 52): "Weight-stationary is as fast, and stands first in the table"}
check.returns(equal, (8, 8, 8, 8, 4), expected=("weight", 52), mistakes=told)
check.returns(equal, (4, 16, 16, 4, 4), expected=("output", 104), mistakes={("input", 104): others})
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(9001)


def ranked(*asked):
    """Return cycles and names of the three dataflows, the fastest first, from the library's formulas."""
    m, n, k, rows, columns = asked
    names = ("weight", "output", "input")
    return sorted((systolic.model_cycles(m, n, k, rows=rows, columns=columns, dataflow=name), name) for name in names)


def ask(goal, *asked):
    """Check one shape, where one dataflow alone is the fastest; return its name."""
    (cycles, name), (second, _), _ = ranked(*asked)
    if cycles == second:
        return ""
    check.returns(goal, asked, expected=(name, cycles))
    return name


won = {full: [], partial: []}
for _ in range(40):
    rows, columns = draw.sample(range(3, 99), 2)
    sizes = draw.sample(range(1, 9), 3)
    won[full].append(ask(full, *(rows * columns * size for size in sizes), rows, columns))
    sizes = (draw.randint(2, 900) for _ in range(3))
    won[partial].append(ask(partial, *sizes, rows, columns))
assert all({"weight", "output", "input"} <= set(names) for names in won.values())
for _ in range(4):
    side, few = draw.randint(3, 9), draw.randint(1, 2)
    check.returns(equal, (6 * side, side, 6 * side, side, side), expected=("weight", 6 * (9 * side - 2)))
    many = draw.randint(5, 9) * side
    cycles = few * many // side * (many + 3 * side - 2)
    check.returns(equal, (few * side, many, many, side, side), expected=("output", cycles))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: how many tiles?</summary>
#
# Weight-stationary: k is cut into pieces of `rows`, n into pieces of `columns`. `-(-k // rows)` rounds up.
#
# </details>
# <details><summary>Hint 2: one formula</summary>
#
# In all three a tile takes `passing + 2 * rows + columns - 2` cycles. Only what lies along the rows, what along the
# columns and what passes are changed about.
#
# </details>
# <details><summary>Hint 3: the first of the fastest</summary>
#
# A dictionary keeps its order, and `min(cycles, key=cycles.get)` returns the first of its smallest.
#
# </details>


# %% wrong="best_dataflow" says="they drain in rows cycles more" gets=0
def best_dataflow(m, n, k, rows, columns):
    placed = {"weight": (k, n, m), "output": (m, n, k), "input": (k, m, n)}
    cycles = {name: -(-r // rows) * -(-c // columns) * (t + rows + columns - 2) for name, (r, c, t) in placed.items()}
    for name in ("weight", "input"):
        cycles[name] += -(-placed[name][0] // rows) * -(-placed[name][1] // columns) * rows
    best = min(cycles, key=cycles.get)
    return best, cycles[best]


# %% wrong="best_dataflow" says="the filters are loaded: rows cycles more" gets=0
def best_dataflow(m, n, k, rows, columns):
    placed = {"weight": (k, n, m), "output": (m, n, k), "input": (k, m, n)}
    cycles = {name: -(-r // rows) * -(-c // columns) * (t + rows + columns - 2) for name, (r, c, t) in placed.items()}
    cycles["output"] += -(-m // rows) * -(-n // columns) * rows
    best = min(cycles, key=cycles.get)
    return best, cycles[best]


# %% wrong="best_dataflow" says="each tile takes 2 cycles less" gets=0
def best_dataflow(m, n, k, rows, columns):
    placed = {"weight": (k, n, m), "output": (m, n, k), "input": (k, m, n)}
    cycles = {name: -(-r // rows) * -(-c // columns) * (t + 2 * rows + columns) for name, (r, c, t) in placed.items()}
    best = min(cycles, key=cycles.get)
    return best, cycles[best]


# %% wrong="best_dataflow" says="not the other way round" gets=2
def best_dataflow(m, n, k, rows, columns):
    placed = {"weight": (k, n, m), "output": (m, n, k), "input": (m, k, n)}
    cycles = {
        name: -(-r // rows) * -(-c // columns) * (t + 2 * rows + columns - 2) for name, (r, c, t) in placed.items()
    }
    best = min(cycles, key=cycles.get)
    return best, cycles[best]


# %% wrong="best_dataflow" says="What is left over after the full tiles" gets=2
def best_dataflow(m, n, k, rows, columns):
    placed = {"weight": (k, n, m), "output": (m, n, k), "input": (k, m, n)}
    cycles = {name: (r // rows) * (c // columns) * (t + 2 * rows + columns - 2) for name, (r, c, t) in placed.items()}
    best = min(cycles, key=cycles.get)
    return best, cycles[best]


# %% wrong="best_dataflow" says="There is no half of a tile" gets=2
def best_dataflow(m, n, k, rows, columns):
    placed = {"weight": (k, n, m), "output": (m, n, k), "input": (k, m, n)}
    cycles = {name: r / rows * c / columns * (t + 2 * rows + columns - 2) for name, (r, c, t) in placed.items()}
    best = min(cycles, key=cycles.get)
    return best, cycles[best]


# %% wrong="best_dataflow" says="not the alphabet's" gets=2
def best_dataflow(m, n, k, rows, columns):
    how = {"rows": rows, "columns": columns}
    named = [(systolic.model_cycles(m, n, k, dataflow=name, **how), name) for name in ("weight", "output", "input")]
    cycles, name = min(named)
    return name, cycles


# %% [markdown]
# ## Exercise 2: an element that loads, then multiplies
#
# The weight-stationary array of three rows and two columns, loading the filters b and then at work. A triangle shows
# what moved:

# %%
small = systolic.simulate([[1, 2, 3], [4, 5, 6]], [[1, 0], [2, 3], [0, 4]], rows=3, columns=2, frames=True)
for cycle, what in {1: "two rows of filters have come down", 5: "inputs pass to the right, sums down"}.items():
    plotting.show(systolic.draw_array(small, cycle), alt=f"3 x 2 elements in cycle {cycle}: {what}.")

# %% [markdown]
# An element keeps one filter. In each cycle it takes what its left and its upper neighbour passed in the cycle before,
# and passes on to its right and lower one:
#
# | the array is | from above comes | the element keeps | it passes right | it passes below |
# |---|---|---|---|---|
# | loading | a filter | that filter | what came from the left | that filter |
# | multiplying | a sum | the filter that it held | what came from the left | the sum, with one product more |
#
# Where no input has come, what came from the left is `None`: then there is no product, and the sum goes on as it is.
#
# Write `stationary_step(held, from_left, from_above, loading)`, one cycle of one element. Return three values: the
# filter that it keeps, what it passes right, what it passes below. The checks build an array of your elements:


# %%
def one_cycle(step, array, left, top, *, loading):
    """Let each element do a step with what its neighbours passed in the cycle before; left and top are the edges."""
    return [
        [
            step(held, array[r][c - 1][1] if c else left[r], array[r - 1][c][2] if r else top[c], loading)
            for c, (held, _, _) in enumerate(line)
        ]
        for r, line in enumerate(array)
    ]


def loaded(step, tile):
    """Return the array after loading: the last row of the tile enters first. An element: held, to right, to below."""
    array = [[(None, None, None)] * len(line) for line in tile]
    for line in reversed(tile):
        array = one_cycle(step, array, [None] * len(tile), line, loading=True)
    return array


# %%
def filters_of(step, tile):
    """Return what the elements hold after loading."""
    if step(1, 1, 1, False) is exercises.not_yet:
        return exercises.not_yet
    return [[held for held, _, _ in line] for line in loaded(step, tile)]


def product_of(step, inputs, tile):
    """Return inputs @ tile, from an array as large as the tile; each row of it begins a cycle after the one above."""
    if step(1, 1, 1, False) is exercises.not_yet:
        return exercises.not_yet
    rows, columns, product = len(tile), len(tile[0]), [[None] * len(tile[0]) for _ in inputs]
    array = [[(held, None, 0) for held, _, _ in line] for line in loaded(step, tile)]
    for cycle in range(len(inputs) + rows + columns - 2):
        left = [inputs[cycle - r][r] if 0 <= cycle - r < len(inputs) else None for r in range(rows)]
        array = one_cycle(step, array, left, [0] * columns, loading=False)
        for c, (_, _, below) in enumerate(array[-1]):
            if 0 <= cycle - c - rows + 1 < len(inputs):
                product[cycle - c - rows + 1][c] = below
    return product


# %% answer="stationary_step"
def stationary_step(held, from_left, from_above, loading):
    """Return filter, to right, to below: stationary_step(3, 2, 10, False) is (3, 2, 16)."""
    ### BEGIN SOLUTION
    if loading:
        return from_above, from_left, from_above
    if from_left is None:
        return held, None, from_above
    return held, from_left, from_above + from_left * held
    ### END SOLUTION


# %% checks="stationary_step" points=3
check = exercises.Checks("Exercise 2, stationary_step", stationary_step)
loads, adds, whole = "the filters come to rest in their rows", "an element multiplies and adds", "the product comes out"
told = {
    ((1, 0), (0, 4), (None, None)): "Pass the filter that has just come: else it takes two cycles for each row",
    ((None, None),) * 3: "While the array is loading, an element takes the filter from above",
}
check.returns(loads, ([[1, 0], [2, 3], [0, 4]],), expected=[[1, 0], [2, 3], [0, 4]], mistakes=told, call=filters_of)
told = {
    (3, 2, 6): "The sum from above is lost: the product is added to it",
    (10, 2, 16): "While the array multiplies, the filter stays: from above comes a sum",
    (10, 2, 30): "While the array multiplies, the filter stays: from above comes a sum",
    (3, 6, 16): "The next element to the right needs the input itself, not the product",
    (3, 3, 16): "Right goes the input; the filter stays where it is",
}
check.returns(adds, (3, 2, 10, False), expected=(3, 2, 16), mistakes=told)
told = {
    (3, 0, 10): "A 0 would be an input: pass on that none has come, None",
    (3, None, 0): "No input has come, but a sum has: pass it on as it is",
}
check.returns(adds, (3, None, 10, False), expected=(3, None, 10), mistakes=told)
check.returns(whole, ([[1, 2, 3], [4, 5, 6]], [[1, 0], [2, 3], [0, 4]]), expected=[[5, 18], [14, 39]], call=product_of)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(9002)


def some(rows, columns):
    return [[draw.randint(1, 9) * draw.choice((-1, 1)) for _ in range(columns)] for _ in range(rows)]


for _ in range(4):
    rows, columns, m = draw.randint(2, 4), draw.randint(2, 4), draw.randint(1, 5)
    tile, inputs = some(rows, columns), some(m, rows)
    check.returns(loads, (tile,), expected=tile, call=filters_of)
    check.returns(whole, (inputs, tile), expected=(np.array(inputs) @ np.array(tile)).tolist(), call=product_of)
    ((held, value, total),) = some(1, 3)
    check.returns(adds, (held, value, total, False), expected=(held, value, value * held + total))
    check.returns(adds, (held, None, total, False), expected=(held, None, total))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: loading</summary>
#
# The filter from above is kept and passed below in the same cycle; the lower neighbour takes it in the next. After
# `rows` cycles the first filter of a column is in the last row.
#
# </details>
# <details><summary>Hint 2: multiplying</summary>
#
# Below goes `from_above + from_left * held`. Nothing is changed in the element.
#
# </details>
# <details><summary>Hint 3: no input</summary>
#
# `if from_left is None` comes before the product. Test for `None` alone: 0 is an input.
#
# </details>


# %% wrong="stationary_step" says="The sum from above is lost" gets=1
def stationary_step(held, from_left, from_above, loading):
    if loading:
        return from_above, from_left, from_above
    return held, from_left, from_above if from_left is None else from_left * held


# %% wrong="stationary_step" says="it takes two cycles for each row" gets=1
def stationary_step(held, from_left, from_above, loading):
    if loading:
        return from_above, from_left, held
    return held, from_left, from_above if from_left is None else from_above + from_left * held


# %% wrong="stationary_step" says="the filter stays: from above comes a sum" gets=1
def stationary_step(held, from_left, from_above, loading):
    if from_left is None or loading:
        return from_above, from_left, from_above
    return from_above, from_left, from_above + from_left * held


# %% wrong="stationary_step" says="an element takes the filter from above" gets=1
def stationary_step(held, from_left, from_above, loading):
    if from_left is None or loading:
        return held, from_left, from_above
    return held, from_left, from_above + from_left * held


# %% wrong="stationary_step" says="A 0 would be an input" gets=2
def stationary_step(held, from_left, from_above, loading):
    if loading:
        return from_above, from_left, from_above
    return held, from_left or 0, from_above + (from_left or 0) * held


# %% [markdown]
# ## Exercise 3: mend what is fed
#
# An output-stationary program: `a` comes from the left, `b` from the top, and each element multiplies what it holds and
# adds it to its own sum. The array itself is right:


# %%
def on_array(feed, a, b):
    """Return the sums of an array with an element for each result; feed gives what enters at the left and the top."""
    if feed([[1]], [[1]], 0) is exercises.not_yet:
        return exercises.not_yet
    inputs = filters = sums = np.zeros((len(a), len(b[0])), dtype=int)
    for cycle in range(len(a) + len(b[0]) + len(b) - 2):
        left, top = feed([*map(list, a)], [*map(list, b)], cycle)
        inputs = np.column_stack((left, inputs[:, :-1]))
        filters = np.vstack((top, filters[:-1]))
        sums = sums + inputs * filters
    return sums.tolist()


def broken_feed(a, b, cycle):
    """Return what enters in a cycle: a list with a number for each row of a, one with a number for each column of b."""
    last = len(b) - 1
    left = [line[min(max(cycle - row, 0), last)] for row, line in enumerate(a)]
    top = [b[min(cycle, last)][column] for column in range(len(b[0]))]
    return left, top


a, b = [[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 1, 0], [0, 1, 1], [2, 0, 1], [1, 1, 2]]
print("broken:", on_array(broken_feed, a, b))
print("right: ", (np.array(a) @ np.array(b)).tolist())

# %% [markdown]
# `broken_feed` has two faults. The element in row $r$ and column $c$ must get `a[r][p]` and `b[p][c]` together, in
# cycle $p + r + c$; and an edge that has nothing to bring carries 0:
#
# | cycle | 0 | 1 | 2 | 3 | 4 | 5 | 6 |
# |---|--:|--:|--:|--:|--:|--:|--:|
# | enters row 0, mended | 1 | 2 | 3 | 4 | 0 | 0 | 0 |
# | enters row 1, broken | 5 | 5 | 6 | 7 | 8 | 8 | 8 |
# | enters column 2, broken | 0 | 1 | 1 | 2 | 2 | 2 | 2 |
#
# Write `feed(a, b, cycle)`, the same without the faults.


# %% answer="feed"
def feed(a, b, cycle):
    """Return what enters at the left and at the top: feed([[2]], [[3]], 0) is ([2], [3])."""
    ### BEGIN SOLUTION
    k = len(b)
    left = [line[cycle - row] if 0 <= cycle - row < k else 0 for row, line in enumerate(a)]
    top = [b[cycle - column][column] if 0 <= cycle - column < k else 0 for column in range(len(b[0]))]
    return left, top
    ### END SOLUTION


# %% checks="feed" points=3
check = exercises.Checks("Exercise 3, feed", feed)
skewed, silent, right = "the columns wait", "an edge with nothing to bring carries 0", "the product is right"
long_a, long_b = [[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 5, 9], [2, 6, 10], [3, 7, 11], [4, 8, 12]]
told = {
    ((3, 6), (3, 7, 11)): "The columns do not wait yet: column 1 begins one cycle after column 0",
    ((3, 6), (3, 8, 0)): "That begins column 1 earlier than column 0: it must wait",
    ((3, 7), (3, 6, 9)): "Now the rows wait no longer: they did, and must",
}
check.returns(skewed, (long_a, long_b, 2), expected=([3, 6], [3, 6, 9]), mistakes=told)
tall_a, tall_b = [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1], [2], [3]]
told = {
    ((2, 4, 7), (2,)): "Row 2 begins in cycle 2, and here it brings its first number before that",
    ((2, 4, None), (2,)): "An edge with nothing to bring carries 0 in this program, not None",
    ((2, 4, 9), (2,)): "Row 2 begins in cycle 2; before that line[-1] is no error in Python, but the last number",
}
check.returns(silent, (tall_a, tall_b, 1), expected=([2, 4, 0], [2]), mistakes=told)
told = {((3, 6, 9), (3,)): "Rows 0 and 1 are through; they bring their last number again"}
check.returns(silent, (tall_a, tall_b, 4), expected=([0, 0, 9], [0]), mistakes=told)
check.returns(right, (a, b), expected=[[11, 7, 13], [27, 19, 29]], call=on_array)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(9003)


def matrix(rows, columns):
    """Return a matrix of numbers all different, none of them 0."""
    numbers = iter(draw.sample(range(1, 200), rows * columns))
    return [[next(numbers) for _ in range(columns)] for _ in range(rows)]


def entering(a, b, cycle):
    """Return what stands at each edge when a diagonal of each matrix, with zeros around it, is cut out."""
    m, k, n = len(a), len(b), len(b[0])
    left, top = np.zeros((m, cycle + k + m), int), np.zeros((cycle + k + n, n), int)
    for row in range(m):
        left[row, row : row + k] = a[row]
    for column in range(n):
        top[column : column + k, column] = [line[column] for line in b]
    return left[:, cycle].tolist(), top[cycle].tolist()


for _ in range(5):
    m, n = draw.randint(2, 4), draw.randint(2, 4)
    k = m + n + draw.randint(0, 3)
    given = matrix(m, k), matrix(k, n)
    for cycle in (max(m, n) - 1, k - 1):
        check.returns(skewed, (*given, cycle), expected=entering(*given, cycle))
    given = matrix(m + 1, k), matrix(k, 1)
    for cycle in (0, m - 1, k, k + m):
        check.returns(silent, (*given, cycle), expected=entering(*given, cycle))
    k = draw.randint(1, 5)
    given = matrix(m, k), matrix(k, n)
    check.returns(right, given, expected=(np.array(given[0]) @ np.array(given[1])).tolist(), call=on_array)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the first fault</summary>
#
# Row `r` begins in cycle `r`. Nothing of the kind stands in the line that makes `top`.
#
# </details>
# <details><summary>Hint 2: the second fault</summary>
#
# `min(max(...))` keeps the number on the edge before its row begins and after it has ended. The products with it are
# added like any other.
#
# </details>
# <details><summary>Hint 3: one row</summary>
#
# `line[cycle - row] if 0 <= cycle - row < len(b) else 0`. Columns go the same way.
#
# </details>


# %% wrong="feed" says="The columns do not wait yet" gets=1
def feed(a, b, cycle):
    left = [line[cycle - row] if 0 <= cycle - row < len(b) else 0 for row, line in enumerate(a)]
    return left, b[cycle] if cycle < len(b) else [0] * len(b[0])


# %% wrong="feed" says="here it brings its first number before that" gets=1
def feed(a, b, cycle):
    last = len(b) - 1
    left = [line[min(max(cycle - row, 0), last)] for row, line in enumerate(a)]
    return left, [b[min(max(cycle - column, 0), last)][column] for column in range(len(b[0]))]


# %% wrong="feed" says="but the last number" gets=1
def feed(a, b, cycle):
    left = [line[cycle - row] if cycle - row < len(b) else 0 for row, line in enumerate(a)]
    return left, [b[cycle - column][column] if cycle - column < len(b) else 0 for column in range(len(b[0]))]


# %% wrong="feed" says="they bring their last number again" gets=1
def feed(a, b, cycle):
    last = len(b) - 1
    left = [line[min(cycle - row, last)] if cycle >= row else 0 for row, line in enumerate(a)]
    return left, [b[min(cycle - column, last)][column] if cycle >= column else 0 for column in range(len(b[0]))]


# %% wrong="feed" says="it must wait" gets=1
def feed(a, b, cycle):
    left = [line[cycle - row] if 0 <= cycle - row < len(b) else 0 for row, line in enumerate(a)]
    return left, [b[cycle + column][column] if cycle + column < len(b) else 0 for column in range(len(b[0]))]


# %% [markdown]
# ## Exercise 4: the smallest batch
#
# Weight-stationary, one tile after another as in exercise 1: with m inputs (rows of `a`) each takes
# m + 2 rows + columns - 2 cycles. Of these only m bring work, so a larger batch uses the array better. The
# *utilisation* is the [multiply-accumulates](../glossary.md#mac) over all cycles of all elements. With k = n = 100 on
# 128 x 128 elements:

# %%
batches = [1, 10, 100, 1000, 10_000]
cycles = [systolic.model_cycles(m, 100, 100, rows=128, columns=128) for m in batches]
shares = [f"{100 * m * 100 * 100 / (each * 128 * 128):.1f} %" for m, each in zip(batches, cycles, strict=True)]
pd.DataFrame({"inputs": batches, "cycles": cycles, "utilisation": shares})

# %% [markdown]
# Write `smallest_batch(percent, k, n, rows, columns)`: the fewest inputs m with which a k x n matrix of filters reaches
# a utilisation of at least `percent` percent, or `None` where no batch does. All are whole numbers, `percent` from 1 to
# 99.


# %% answer="smallest_batch"
def smallest_batch(percent, k, n, rows, columns):
    """Return the fewest inputs for a utilisation of percent: smallest_batch(50, 4, 4, 4, 4) is 10."""
    ### BEGIN SOLUTION
    wanted = percent * -(-k // rows) * rows * -(-n // columns) * columns
    gained = 100 * k * n - wanted
    return -(-wanted * (2 * rows + columns - 2) // gained) if gained > 0 else None
    ### END SOLUTION


# %% checks="smallest_batch" points=3
check = exercises.Checks("Exercise 4, smallest_batch", smallest_batch)
full, partial, never = "a full tile reaches it", "filters that do not fill their tiles", "the limit is seen"
told = {
    510: "The filters are loaded first: rows cycles more",
    767: "With 766 it is half exactly, and that is enough",
    768: "The last result leaves after m + 2 rows + columns - 2 cycles, not two later",
}
check.returns(full, (50, 256, 256, 256, 256), expected=766, mistakes=told)
told = {6895: "With 6,894 it is 90 % exactly, and that is enough; whole numbers have no error of rounding"}
check.returns(full, (90, 256, 256, 256, 256), expected=6894, mistakes=told)
told = {4: "With 4 inputs it is 28.6 %, less than 30 %: round up", 30 / 7: "There is no part of an input: round up"}
check.returns(full, (30, 4, 4, 4, 4), expected=5, mistakes=told)
told = {
    67: "The array has 128 x 128 elements, also where the filters are fewer",
    68: "The array has 128 x 128 elements, also where the filters are fewer",
}
check.returns(partial, (15, 100, 100, 128, 128), expected=125, mistakes=told)
told = {
    571: "A matrix of 300 rows takes two tiles, one after the other, and the second is partly empty",
    570: "A matrix of 300 rows takes two tiles, one after the other, and the second is partly empty",
}
check.returns(partial, (50, 300, 256, 256, 256), expected=4457, mistakes=told)
check.returns(never, (49, 128, 256, 256, 256), expected=37534)
below = {-4596: "A batch below 0 is none: return None"}
check.returns(never, (60, 128, 256, 256, 256), expected=None, mistakes=below)
check.returns(never, (50, 128, 256, 256, 256), expected=None)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(9004)
MOST = 10**7


def reaches(m, percent, k, n, rows, columns):
    cycles = systolic.model_cycles(m, n, k, rows=rows, columns=columns)
    return 100 * m * n * k >= percent * cycles * rows * columns


def truth(*asked):
    """Halve the range until the first batch that reaches it is left; None where ten million inputs do not."""
    few, many = 0, MOST
    if not reaches(many, *asked):
        return None
    while many - few > 1:
        half = (few + many) // 2
        few, many = (few, half) if reaches(half, *asked) else (half, many)
    return many


for _ in range(8):
    rows, columns = draw.sample((8, 16, 24, 32, 64, 128), 2)
    asked = (draw.randint(11, 89), rows, columns, rows, columns)
    check.returns(full, asked, expected=truth(*asked))
    k, n = rows * draw.randint(1, 3) + draw.randint(2, 5), columns * draw.randint(1, 3) - draw.randint(1, 3)
    limit = 100 * k * n // (-(-k // rows) * -(-n // columns) * rows * columns)
    asked = (draw.randint(limit // 3, limit - 2), k, n, rows, columns)
    check.returns(partial, asked, expected=truth(*asked))
    for percent, part in ((49, 2), (50, 2), (24, 4), (26, 4), (draw.randint(51, 99), 2)):
        asked = (percent, rows // part, columns, rows, columns)
        check.returns(never, asked, expected=truth(*asked))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: the condition</summary>
#
# With t tiles: `100 * m * k * n >= percent * t * (m + 2 * rows + columns - 2) * rows * columns`.
#
# </details>
# <details><summary>Hint 2: solve for m</summary>
#
# Bring all terms with m to one side: m times `100 * k * n - percent * t * rows * columns`. If that is 0 or less, no m
# is large enough.
#
# </details>
# <details><summary>Hint 3: whole numbers</summary>
#
# `-(-x // y)` rounds x / y up, without a fraction that could be a little too large.
#
# </details>


# %% wrong="smallest_batch" says="The filters are loaded first" gets=0
def smallest_batch(percent, k, n, rows, columns):
    wanted = percent * -(-k // rows) * rows * -(-n // columns) * columns
    gained = 100 * k * n - wanted
    return -(-wanted * (rows + columns - 2) // gained) if gained > 0 else None


# %% wrong="smallest_batch" says="With 766 it is half exactly" gets=1
def smallest_batch(percent, k, n, rows, columns):
    wanted = percent * -(-k // rows) * rows * -(-n // columns) * columns
    gained = 100 * k * n - wanted
    return wanted * (2 * rows + columns - 2) // gained + 1 if gained > 0 else None


# %% wrong="smallest_batch" says="whole numbers have no error of rounding" gets=2
def smallest_batch(percent, k, n, rows, columns):
    import math

    share = percent / 100
    filled = k * n / (-(-k // rows) * rows * -(-n // columns) * columns)
    return math.ceil(share * (2 * rows + columns - 2) / (filled - share)) if filled > share else None


# %% wrong="smallest_batch" says="With 4 inputs it is 28.6 %" gets=1
def smallest_batch(percent, k, n, rows, columns):
    wanted = percent * -(-k // rows) * rows * -(-n // columns) * columns
    gained = 100 * k * n - wanted
    return wanted * (2 * rows + columns - 2) // gained if gained > 0 else None


# %% wrong="smallest_batch" says="also where the filters are fewer" gets=1
def smallest_batch(percent, k, n, rows, columns):  # noqa: ARG001
    return -(-percent * (2 * rows + columns - 2) // (100 - percent))


# %% wrong="smallest_batch" says="takes two tiles, one after the other" gets=2
def smallest_batch(percent, k, n, rows, columns):
    wanted = percent * rows * columns
    gained = 100 * k * n - wanted
    return -(-wanted * (2 * rows + columns - 2) // gained) if gained > 0 else None


# %% wrong="smallest_batch" says="A batch below 0 is none" gets=2
def smallest_batch(percent, k, n, rows, columns):
    wanted = percent * -(-k // rows) * rows * -(-n // columns) * columns
    return -(-wanted * (2 * rows + columns - 2) // (100 * k * n - wanted))


# %% [markdown]
# ## Exercise 5: another memory for TPU v1
#
# Four of the counters that Google published of its first TPU, as parts of all cycles (Jouppi and others, 2017, table
# 3):

# %%
counted = systolic.tpu_applications().applications
columns = {"active": "active_share", "shift": "shift_share", "stall": "stall_share", "other": "non_matrix_share"}
rows = {app.name: [getattr(app, share) for share in columns.values()] for app in counted}
pd.DataFrame(rows, index=list(columns)).T.map("{:.1%}".format)

# %% [markdown]
# The array is *active*, takes the next tile of weights (*shift*) or waits for it (*stall*); *other* is all other work.
# In our model the memory reads the next tile while the array shifts, works and waits. So where there is stall, the
# three together are the time of reading.
#
# Now the chip gets a memory that reads `times` as fast, 68 GB/s in place of 34 with `times = 2`:
#
# | | with the new memory |
# |---|---|
# | active, shift, other | as long as before |
# | reading | 1 / `times` of before |
# | stall | what reading takes longer than shift and active together, or nothing |
#
# Write `with_memory(active, shift, stall, other, times)`. Return a list of the four shares again, in the same order, of
# the *new* time. They add up to 1.


# %% answer="with_memory"
def with_memory(active, shift, stall, other, times):
    """Return the four shares with a new memory: with_memory(0.2, 0.1, 0.5, 0.2, 4) is [0.4, 0.2, 0.0, 0.4]."""
    ### BEGIN SOLUTION
    reading = (active + shift + stall) / times
    waiting = max(reading - active - shift, 0)
    return [part / (active + shift + waiting + other) for part in (active, shift, waiting, other)]
    ### END SOLUTION


# %% checks="with_memory" points=3
check = exercises.Checks("Exercise 5, with_memory", with_memory)


def rounded(function, *given):
    """Return the function's shares with six decimals, so that the order in which they were computed does not count."""
    found = function(*given)
    return np.round(found, 6) if isinstance(found, list | tuple | np.ndarray) else found


waits, in_time, slower = "a memory that is waited for", "a memory that is in time", "a slower memory"
told = {
    (0.266667, 0.133333, 0.333333, 0.266667): "Reading takes half as long, and that is all three, not the stall alone",
    (0.2, 0.1, 0.1, 0.2): "Those are parts of the old time; the new one is shorter",
    (0.2, 0.1, 0.5, 0.2): "Only reading gets faster: active, shift and other take as long as before",
    (0.166667, 0.083333, 0.416667, 0.333333): "The array works no faster: active and shift take as long as before",
}
check.returns(
    waits, (0.2, 0.1, 0.5, 0.2, 2), expected=[0.333333, 0.166667, 0.166667, 0.333333], mistakes=told, call=rounded
)
told = {
    (0.5, 0.25, -0.25, 0.5): "Nobody waits for less than no time: a memory that is early is stalled for 0",
    (0.32, 0.16, 0.2, 0.32): "Reading takes a quarter as long, and that is all three, not the stall alone",
}
check.returns(in_time, (0.2, 0.1, 0.5, 0.2, 4), expected=[0.4, 0.2, 0.0, 0.4], mistakes=told, call=rounded)
told = {(0.133333, 0.066667, 0.666667, 0.133333): "All of the reading takes twice as long, also what nobody waited for"}
check.returns(
    slower, (0.2, 0.1, 0.5, 0.2, 0.5), expected=[0.111111, 0.055556, 0.722222, 0.111111], mistakes=told, call=rounded
)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(9005)


def tiles(active, shift, stall, other, times):
    """Return the shares of cycles counted one by one, in thousandths of the old time, of reading in whole cycles."""
    period = (active + shift + stall) // times if times >= 1 else (active + shift + stall) * round(1 / times)
    cycles = ["active"] * active + ["shift"] * shift
    cycles += ["stall"] * (period - len(cycles)) + ["other"] * other
    return [round(cycles.count(kind) / len(cycles), 6) for kind in ("active", "shift", "stall", "other")]


for _ in range(6):
    for goal, busy, times in ((waits, 20, 2), (waits, 15, 3), (in_time, 60, 2), (in_time, 40, 4), (slower, 40, 0.5)):
        active = draw.randint(2, busy - 2)
        reading = 12 * draw.randint(max(6, busy // 10), 8)
        asked = (active, busy - active, reading - busy, draw.randint(10, 30))
        shares = [part / sum(asked) for part in asked]
        check.returns(goal, (*shares, times), expected=tiles(*asked, times), call=rounded)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: reading</summary>
#
# `active + shift + stall` is the time that a tile takes to be read, in parts of the old time. Divide that by `times`.
#
# </details>
# <details><summary>Hint 2: what is waited for</summary>
#
# Take active and shift off the time of reading; `max(..., 0)`.
#
# </details>
# <details><summary>Hint 3: the new time</summary>
#
# Add up the four times, and divide each by their sum.
#
# </details>


# %% wrong="with_memory" says="and that is all three, not the stall alone" gets=0
def with_memory(active, shift, stall, other, times):
    parts = [active, shift, stall / times, other]
    return [part / sum(parts) for part in parts]


# %% wrong="with_memory" says="Those are parts of the old time" gets=0
def with_memory(active, shift, stall, other, times):
    return [active, shift, max((active + shift + stall) / times - active - shift, 0), other]


# %% wrong="with_memory" says="Nobody waits for less than no time" gets=2
def with_memory(active, shift, stall, other, times):
    parts = [active, shift, (active + shift + stall) / times - active - shift, other]
    return [part / sum(parts) for part in parts]


# %% wrong="with_memory" says="The array works no faster" gets=0
def with_memory(active, shift, stall, other, times):
    parts = [active / times, shift / times, stall / times, other]
    return [part / sum(parts) for part in parts]


# %% [markdown]
# ## The six applications with your function
#
# Twice the bandwidth, and 5.4 times: the paper's authors also considered a memory that moves the [ridge
# point](../glossary.md#ridge-point) from 1,350 to 250 multiply-accumulates a byte. How many times as fast is each
# application, by your shares?

# %%
speedups = {}
for app in counted if "with_memory" in dir() else ():
    before = [getattr(app, share) for share in columns.values()]
    after = [with_memory(*before, times) for times in (2, 1350 / 250)]
    if not any(shares is exercises.not_yet for shares in after):
        speedups[app.name] = [f"{shares[0] / before[0]:.2f}" for shares in after]
pd.DataFrame(speedups, index=["2 times", "5.4 times"]).T if speedups else print("not yet")

# %% [markdown]
# None gains as much as its memory: shifting, multiplying and all other work take as long as before.
#
# ## Question 1: does the guess hold?
#
# The lesson guesses that LSTM0 takes activations of 16 bits, which the array does at half its speed: then a row of
# inputs keeps it active for two cycles. Here are both LSTMs *without* that guess, of the array's own time, and the
# operations a second that the counter of useful multiply-adds promises:

# %%
chip, found = hardware.device("TPU v1"), {}
elements = chip.array_rows * chip.array_columns  # each keeps a weight of one byte
tile_cycles = elements / chip.memory_bandwidth_bytes_per_s * chip.clock_hz
for app in counted[2:4]:
    active = app.active_share / (1 - app.non_matrix_share)
    promised = app.useful_share * 2 * elements * chip.clock_hz / 1e12
    found[app.name] = [f"{app.batch / tile_cycles:.1%}", f"{active:.1%}", f"{promised:.1f}", app.measured_tops]
names = ["active, modelled", "active, counted", "TOPS, by the counter", "TOPS, measured"]
pd.DataFrame(found, index=names).transpose()

# %% [markdown]
# The guess fits the active share of LSTM0, and not that of LSTM1. Compute with it: by how much does it miss, and does
# it explain the TOPS of the two? Find another explanation of LSTM0's active share, and hold it against the TOPS. Then
# say what you would run or count on the chip, and which result would refute the guess. (The paper says only that its
# two measurements are not perfectly consistent.)
#
# Three to six sentences with numbers; a person reads them.

# %% [markdown] written="guess" points=2
# Nobody outside Google knows the answer; the reasoning counts. A full answer says:
#
# - 1 point: with two cycles a row LSTM0 has 128 / 1,349 = 9.5 % (10.0 % counted) and 7.5 / 2 = 3.8 TOPS (3.7 measured);
#   LSTM1 has 14.2 % (11.7 % counted), which does not fit, and 2.9 TOPS (2.8 measured), which does. So the guess stays
#   one. A batch twice as large, for example, explains LSTM0's active share, but then its TOPS
#   would be those of the counter, and they are half of that.
# - 1 point: an experiment and the result that would refute the guess: LSTM0 with activations of 8 bits (if the active
#   share does not fall to about 4.7 %, the guess is wrong; the TOPS hardly change, since the weights' memory decides);
#   or reading the instructions' number of bits; or counting the rows that enter in an active cycle.

# %% [markdown]
# ## Question 2: a layer of your own
#
# Take a layer of a network that you use or would like to use, and the batch that you run it with. Give its product
# (`systolic.gemm_of`), and its cycles and utilisation on arrays of 128 x 128 and 256 x 256, for the three dataflows and
# for a batch of 1 as well. Which array would you build for it, and what would you change about the layer so that it
# fills the array?
#
# Three to six sentences with your numbers; a person reads them.

# %% [markdown] written="own_layer" points=2
# A full answer says:
#
# - 1 point: m, n and k of a named layer, with where each comes from (batch and positions, channels out, channels in and
#   kernel), and the cycles and utilisations of the arrays, dataflows and batches, side by side.
# - 1 point: a choice that follows from these numbers and not from cycles alone (four times the elements for how many
#   times the speed?), and a change that fits: sizes that are multiples of the side, more inputs at once, another
#   dataflow; for a depthwise convolution that n = 1 leaves all but one column idle.

# %% [markdown]
# ## What you have practised
#
# Finding the fastest dataflow for a shape, writing an element that keeps a filter, mending a feed whose operands missed
# one another, and saying from which batch an array is used, and what a faster memory would change.
