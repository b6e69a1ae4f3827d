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
# # Co-design: exercises
#
# Five exercises for [lesson 15](../15_co_design.ipynb): two of them have two short functions, the others one. Each has
# a table, a function that returns `exercises.not_yet` until you write it, checks that you can read, and three hints
# that stay folded until you open them.
#
# Run the checks as often as you like. A line that says *not reached* also says why. "Public checks passed, hidden not
# run" means that your function is right for the inputs that you see here; when it is graded, the same goals are
# checked on other inputs. A goal is a point. Everything here is counted, so nothing depends on how fast your machine
# is.

# %%
import pandas as pd
import torch

import helpers
from helpers import exercises
from helpers.studies import sparsity
from helpers.studies.simulators import systolic

# %% [markdown]
# ## Exercise 1: a product by CSR
#
# [CSR](../glossary.md#compressed-sparse-rows) (compressed sparse rows) keeps a matrix without its zeros, in three
# lists. `starts` says where in the other two each row begins, and ends with one number more, where the last row is
# over. A matrix of three rows:
#
# | row | the matrix | its values | their columns | starts at |
# |---|:-:|---|---|--:|
# | 0 | 0 5 0 0 | 5 | 1 | 0 |
# | 1 | 0 0 0 0 | | | 1 |
# | 2 | 6 0 7 0 | 6, 7 | 0, 2 | 1 |
# | *end* | | | | 3 |
#
# **First the lists.** Write `to_csr(matrix)`, where `matrix` is a list of rows. Return three lists: `values`, `columns`
# and `starts`.


# %%
def stored(function, matrix):
    """Return the values and the columns alone."""
    found = function(matrix)
    return found[:2] if isinstance(found, tuple | list) and len(found) == 3 else found


def starts_of(function, matrix):
    """Return the starts alone."""
    found = function(matrix)
    return found[2] if isinstance(found, tuple | list) and len(found) == 3 else found


# %% answer="to_csr"
def to_csr(matrix):
    """Return three lists: to_csr([[0, 5, 0, 0], [0, 0, 0, 0], [6, 0, 7, 0]]) is [5, 6, 7], [1, 0, 2], [0, 1, 1, 3]."""
    ### BEGIN SOLUTION
    values, columns, starts = [], [], [0]
    for numbers in matrix:
        for column, number in enumerate(numbers):
            if number:
                values.append(number)
                columns.append(column)
        starts.append(len(values))
    return values, columns, starts
    ### END SOLUTION


# %% checks="to_csr" points=3
check = exercises.Checks("Exercise 1, to_csr", to_csr)
kept, begins, empty = "values and columns, row by row", "where each row begins", "a row without numbers has a start"

told = {
    ((6, 5, 7, 8), (0, 1, 1, 2)): "That goes down the columns: take row by row",
    ((6, 5, 7, 8), (1, 0, 1, 1)): "That goes down the columns: take row by row",
    ((5, 6, 7, 8), (0, 1, 1, 1)): "Those are the rows of the values: their columns are wanted",
    ((0, 5, 0, 6, 0, 0, 7, 0, 8), (0, 1, 2) * 3): "The zeros are what is left out",
}
check.returns(kept, ([[0, 5, 0], [6, 7, 8]],), expected=([5, 6, 7, 8], [1, 0, 1, 2]), mistakes=told, call=stored)
told = {
    (1, 3): "Those are the numbers of each row: add up those of all rows before it",
    (0, 1): "One number more: where the last row is over",
    (1, 4): "Row 0 begins at 0; these are the ends alone",
    (0, 1, 3, 4): "Those are the starts of the columns",
}
check.returns(begins, ([[0, 5, 0], [6, 7, 8]],), expected=[0, 1, 4], mistakes=told, call=starts_of)
told = {(0, 1, 3): "A row without numbers has a start as well: that of the row after it"}
check.returns(empty, ([[0, 5], [0, 0], [6, 7]],), expected=[0, 1, 1, 3], mistakes=told, call=starts_of)
check.returns(empty, ([[5, 6], [0, 0]],), expected=[0, 2, 2], mistakes={(0, 2): told[0, 1, 3]}, call=starts_of)
check.report()
### BEGIN HIDDEN TESTS
import random

import numpy as np

draw = random.Random(10001)


def some(rows, columns, *, filled):
    """Return a matrix with about half of its numbers 0; each row that is filled has a number, the others none."""
    matrix = [[draw.choice((0, draw.randint(1, 9), -draw.randint(1, 9))) for _ in range(columns)] for _ in range(rows)]
    for row, numbers in enumerate(matrix):
        numbers[draw.randrange(columns)] = draw.randint(1, 9)
        matrix[row] = numbers if row in filled else [0] * columns
    return matrix


for _ in range(5):
    rows, columns = draw.randint(3, 6), draw.randint(2, 6)
    matrix = some(rows, columns, filled=range(rows))
    dense = np.array(matrix)
    check.returns(kept, (matrix,), expected=(dense[dense != 0].tolist(), dense.nonzero()[1].tolist()), call=stored)
    check.returns(begins, (matrix,), expected=[0, *np.cumsum((dense != 0).sum(1)).tolist()], call=starts_of)
    matrix = some(rows, columns, filled=draw.sample(range(rows), draw.randint(0, rows - 1)))
    ends = np.cumsum((np.array(matrix) != 0).sum(1)).tolist()
    check.returns(empty, (matrix,), expected=[0, *ends], call=starts_of)
check.returns(empty, ([[0]],), expected=[0, 0], call=starts_of)
check.score()
### END HIDDEN TESTS


# %% [markdown]
# <details><summary>Hint 1: the lists</summary>
#
# Go through the rows. After each, append the number of values so far to `starts`, whether the row had any or not.
#
# </details>


# %% wrong="to_csr" says="That goes down the columns" gets=0
def to_csr(matrix):
    values, rows, starts = [], [], [0]
    for column in range(len(matrix[0])):
        values += [numbers[column] for numbers in matrix if numbers[column]]
        rows += [row for row, numbers in enumerate(matrix) if numbers[column]]
        starts.append(len(values))
    return values, rows, starts


# %% wrong="to_csr" says="Those are the rows of the values" gets=2
def to_csr(matrix):
    values, rows, starts = [], [], [0]
    for row, numbers in enumerate(matrix):
        values += [number for number in numbers if number]
        rows += [row for number in numbers if number]
        starts.append(len(values))
    return values, rows, starts


# %% wrong="to_csr" says="One number more: where the last row is over" gets=1
def to_csr(matrix):
    values, columns, starts = [], [], []
    for numbers in matrix:
        starts.append(len(values))
        values += [number for number in numbers if number]
        columns += [column for column, number in enumerate(numbers) if number]
    return values, columns, starts


# %% wrong="to_csr" says="A row without numbers has a start as well" gets=2
def to_csr(matrix):
    values, columns, starts = [], [], [0]
    for numbers in matrix:
        values += [number for number in numbers if number]
        columns += [column for column, number in enumerate(numbers) if number]
        if len(values) > starts[-1]:
            starts.append(len(values))
    return values, columns, starts


# %% [markdown]
# **Then the product.** Write `csr_product(rows, starts, columns, values, x)`, which returns $A x$ as a list. The last
# four arguments are functions that read: `values(2)` is the value at place 2, `x(0)` the first number of the vector.
# Their reads are counted. Read every value once, every column once, and for each value one number of `x`; how often
# you read `starts` does not count.


# %%
def reader(name, numbers, reads):
    """Return a function that reads the number at a place, and counts it in reads."""

    def read(place):
        if not 0 <= place < len(numbers):
            raise IndexError(f"{name}({place}) is outside: {name} has {len(numbers)} numbers, the first at place 0")
        reads[place] += 1
        return numbers[place]

    read.__name__ = name
    return read


def on_readers(function, matrix, x):
    """Return what the function gives, and how often it read each value, each column and each number of x."""
    csr = sparsity.to_csr(torch.tensor(matrix))
    lists = {"starts": csr.row_starts, "columns": csr.column_indices, "values": csr.values, "x": torch.tensor(x)}
    reads = {name: [0] * len(numbers) for name, numbers in lists.items()}
    readers = [reader(name, numbers.tolist(), reads[name]) for name, numbers in lists.items()]
    return function(len(matrix), *readers), [reads[name] for name in ("values", "columns", "x")]


# %%
def product_of(function, matrix, x):
    """Return the product."""
    return on_readers(function, matrix, x)[0]


def reads_of(function, matrix, x):
    """Return how often each value, each column and each number of x was read."""
    product, reads = on_readers(function, matrix, x)
    return product if product is exercises.not_yet else reads


# %% answer="csr_product"
def csr_product(rows, starts, columns, values, x):
    """Return A x as a list of rows numbers: for the matrix above and x = 1, 2, 3, 4 it is [10, 0, 27]."""
    ### BEGIN SOLUTION
    y, end = [], starts(0)
    for row in range(rows):
        start, end = end, starts(row + 1)
        y.append(sum(values(place) * x(columns(place)) for place in range(start, end)))
    return y
    ### END SOLUTION


# %% checks="csr_product" points=3
check = exercises.Checks("Exercise 1, csr_product", csr_product)
right, empty, once = "the product is right", "rows without numbers give 0", "each value is read once"
told = {
    (5, 33): "The number of x is that at the value's column, not at its place: x(columns(place))",
    (10,): "The last row is missing",
    (10, 6, 21): "Add up the products of a row: one number a row",
}
check.returns(right, ([[0, 5, 0], [6, 0, 7]], [1, 2, 3]), expected=[10, 27], mistakes=told, call=product_of)
said = "A row without numbers gives a 0: its start is also its end"
told = {(10, 12): said, (10, 10, 12): "Each row begins its sum anew, with 0"}
check.returns(empty, ([[0, 5], [0, 0], [4, 0]], [3, 2]), expected=[10, 0, 12], mistakes=told, call=product_of)
check.returns(empty, ([[0, 0], [1, 1], [0, 0]], [3, 2]), expected=[0, 5, 0], mistakes={(5,): said}, call=product_of)
told = {
    ((2, 2, 2), (1, 1, 1), (1, 1, 1, 0)): "Each value is read twice: nothing has to be tested, for no 0 is stored",
    ((1, 1, 1), (2, 2, 2), (1, 1, 1, 0)): "Each column is read twice: keep it in a variable",
    ((2, 2, 2), (2, 2, 2), (2, 2, 2, 0)): "Each row goes through all values: its own lie between two starts",
}
given = ([[0, 5, 0, 0], [6, 0, 7, 0]], [1, 2, 3, 4])
check.returns(once, given, expected=([1, 1, 1], [1, 1, 1], [1, 1, 1, 0]), mistakes=told, call=reads_of)
check.report()
### BEGIN HIDDEN TESTS
import random

import numpy as np

draw = random.Random(10002)


def some(rows, columns, *, filled):
    matrix = [[draw.choice((0, draw.randint(1, 9), -draw.randint(1, 9))) for _ in range(columns)] for _ in range(rows)]
    for row, numbers in enumerate(matrix):
        numbers[draw.randrange(columns)] = draw.randint(1, 9)
        matrix[row] = numbers if row in filled else [0] * columns
    return matrix


def vector(columns):
    return [draw.randint(2, 9) for _ in range(columns)]


for _ in range(5):
    rows, columns = draw.randint(2, 5), draw.randint(2, 7)
    matrix, x = some(rows, columns, filled=range(rows)), vector(columns)
    check.returns(right, (matrix, x), expected=(np.array(matrix) @ x).tolist(), call=product_of)
    counts = (np.array(matrix) != 0).sum(0).tolist()
    check.returns(once, (matrix, x), expected=([1] * sum(counts), [1] * sum(counts), counts), call=reads_of)
    last = draw.randint(1, rows)
    matrix = some(rows + 2, columns, filled=(last,))
    check.returns(empty, (matrix, x), expected=(np.array(matrix) @ x).tolist(), call=product_of)
check.returns(empty, ([[0, 0, 0], [0, 0, 0]], vector(3)), expected=[0, 0], call=product_of)
check.returns(empty, ([[0]], [4]), expected=[0], call=product_of)
check.returns(right, ([[3]], [4]), expected=[12], call=product_of)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 2: the places of a row</summary>
#
# Row `i` has the places `range(starts(i), starts(i + 1))`. Where both are the same there are none.
#
# </details>
# <details><summary>Hint 3: one row's number</summary>
#
# Add up `values(place) * x(columns(place))` over these places, beginning with 0.
#
# </details>


# %% wrong="csr_product" says="not at its place: x(columns(place))" gets=0
def csr_product(rows, starts, columns, values, x):  # noqa: ARG001
    y = []
    for row in range(rows):
        places = range(starts(row), starts(row + 1))
        y.append(sum(values(place) * x(place) for place in places))
    return y


# %% wrong="csr_product" says="its start is also its end" gets=2
def csr_product(rows, starts, columns, values, x):
    places = [range(starts(row), starts(row + 1)) for row in range(rows)]
    return [sum(values(place) * x(columns(place)) for place in own) for own in places if own]


# %% wrong="csr_product" says="The last row is missing" gets=0
def csr_product(rows, starts, columns, values, x):
    places = [range(starts(row), starts(row + 1)) for row in range(rows - 1)]
    return [sum(values(place) * x(columns(place)) for place in own) for own in places]


# %% wrong="csr_product" says="nothing has to be tested" gets=2
def csr_product(rows, starts, columns, values, x):
    places = [range(starts(row), starts(row + 1)) for row in range(rows)]
    return [sum(values(place) * x(columns(place)) for place in own if values(place)) for own in places]


# %% wrong="csr_product" says="Each row goes through all values" gets=2
def csr_product(rows, starts, columns, values, x):
    y = []
    for row in range(rows):
        products = [values(place) * x(columns(place)) for place in range(starts(rows))]
        y.append(sum(products[starts(row) : starts(row + 1)]))
    return y


# %% [markdown]
# ## Exercise 2: 2:4, packed
#
# Of every four neighbours in a row at most two are not 0: that is [2:4](../glossary.md#24-sparsity). So a GPU keeps
# two values of each four, and where they stood: a position from 0 to 3, two bits. The positions of two fours fill a
# byte:
#
# | | first four | second four |
# |---|---|---|
# | the row | 0 5 0 6 | 7 0 0 8 |
# | two values | 5, 6 | 7, 8 |
# | their positions, the smaller first | 1, 3 | 0, 3 |
# | bits of the byte | 1 in bits 0 and 1, 3 in bits 2 and 3 | 0 in bits 4 and 5, 3 in bits 6 and 7 |
# | the byte | 1 + 4 x 3 | + 16 x 0 + 64 x 3 = 205 |
#
# In float16 these eight numbers take 16 bytes, and packed 4 x 2 + 1 = 9.
#
# Write `pack(row)`. Return a list of the values and a list of the bytes.
#
# - A four with one number, or none, keeps two values all the same: zeros of its own, at positions of their own.
# - Of an odd number of fours, the last byte has zeros in its upper half.
# - Raise `ValueError` for a four with three or four numbers, and for a row whose length 4 does not divide.


# %%
def unpack(values, packed):
    """Return the row again; raises ValueError where the positions of a four are not two, the smaller first."""
    row = []
    for four in range(len(values) // 2):
        half = packed[four // 2] >> 4 * (four % 2) & 15
        first, second = half & 3, half >> 2
        if first >= second:
            raise ValueError(f"four {four} has the positions {first} and {second}; the smaller one stands first")
        numbers = [0] * 4
        numbers[first], numbers[second] = values[2 * four : 2 * four + 2]
        row += numbers
    return row


unpack([5, 6, 7, 8], [205])


# %%
def there_and_back(function, row):
    """Return what unpack makes of what the function packed."""
    found = function(list(row))
    if found is exercises.not_yet:
        return found
    if not isinstance(found, tuple | list) or len(found) != 2:
        return "no pair of values and bytes"
    return unpack(*found) if len(found[0]) == len(row) // 2 else found


def refusal(function, right, wrong):
    """Return what the function raises for the wrong row, once it has packed the right one."""
    if function(right) is exercises.not_yet:
        return exercises.not_yet
    try:
        function(wrong)
    except Exception as error:
        return type(error).__name__
    return "nothing raised"


# %% answer="pack"
def pack(row):
    """Return values and bytes: pack([0, 5, 0, 6, 7, 0, 0, 8]) is [5, 6, 7, 8], [205]."""
    ### BEGIN SOLUTION
    if len(row) % 4:
        raise ValueError(f"4 does not divide {len(row)} numbers")
    values, packed = [], []
    for start in range(0, len(row), 4):
        four = row[start : start + 4]
        places = [place for place in range(4) if four[place] != 0]
        if len(places) > 2:
            raise ValueError(f"{len(places)} of the four numbers from {start} on are not 0")
        zeros = [place for place in range(4) if four[place] == 0]
        first, second = sorted((places + zeros)[:2])
        values += [four[first], four[second]]
        half = first | second << 2
        if start % 8:
            packed[-1] |= half << 4
        else:
            packed.append(half)
    return values, packed
    ### END SOLUTION


# %% checks="pack" points=3
check = exercises.Checks("Exercise 2, pack", pack)
full, fewer, refused = "two values and their positions", "fours with fewer numbers", "what is not 2:4 is refused"
told = {
    ((5, 6, 7, 8), (220,)): "The halves are the wrong way round: the first four has bits 0 to 3",
    ((5, 6, 7, 8), (115,)): "Bits 0 and 1 are the lowest: the first position is the one that is not shifted",
    ((5, 6, 7, 8), (55,)): "The smaller position comes first, in the lower two bits",
    ((6, 5, 8, 7), (55,)): "The smaller position comes first, in the lower two bits, and so does its value",
    ((5, 6, 7, 8), (13, 12)): "Two fours share a byte: shift the positions of the second by 4 bits",
    ((5, 6, 7, 8), (1, 3, 0, 3)): "Four positions of two bits fill one byte: shift them by 0, 2, 4 and 6 bits, and add",
    ((5, 6, 7, 8), (1, 3, 4, 7)): "A position counts from the beginning of its four",
}
check.returns(full, ([0, 5, 0, 6, 7, 0, 0, 8],), expected=([5, 6, 7, 8], [205]), mistakes=told)
told = {
    ((9, 3), (192,)): "One four alone has the lower half of its byte",
    ((9, 3), (12, 0)): "One four takes half a byte: one byte is enough",
}
check.returns(full, ([9, 0, 0, 3],), expected=([9, 3], [12]), mistakes=told)
few = {((7,), (2,)): "Two values for each four: keep a 0 beside the 7"}
check.returns(fewer, ([0, 0, 7, 0],), expected=[0, 0, 7, 0], mistakes=few, call=there_and_back)
check.returns(fewer, ([0, 0, 0, 4, 0, 0, 0, 0],), expected=[0, 0, 0, 4, 0, 0, 0, 0], call=there_and_back)
told = {"AssertionError": "Raise ValueError: Python can be told to skip what an assert says"}
told["nothing raised"] = "Three numbers of the second row's four are not 0: one would be lost, so raise ValueError"
check.returns(refused, ([1, 0, 3, 0], [1, 2, 3, 0]), expected="ValueError", mistakes=told, call=refusal)
told = {
    "nothing raised": "The second row has six numbers, and 4 does not divide six: raise ValueError",
    "IndexError": "The second row has six numbers: say so with ValueError before you look into the last four",
}
check.returns(refused, ([1, 0, 3, 0], [1, 0, 3, 0, 0, 2]), expected="ValueError", mistakes=told, call=refusal)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(10003)


def four(count):
    """Return four numbers, count of which are not 0."""
    numbers = [draw.randint(1, 9) * draw.choice((-1, 1)) for _ in range(count)] + [0] * (4 - count)
    draw.shuffle(numbers)
    return numbers


def truth(row):
    """Return the values and bytes of a row with two numbers in each four, by arithmetic instead of bits."""
    places = [place for place, number in enumerate(row) if number]
    digits = [place % 4 for place in places]
    digits += [0] * (-len(digits) % 4)
    values = [row[place] for place in places]
    return values, [sum(4**at * digits[byte + at] for at in range(4)) for byte in range(0, len(digits), 4)]


for fours in (1, 2, 3, 4, 7):
    row = [number for _ in range(fours) for number in four(2)]
    check.returns(full, (row,), expected=truth(row))
    row = [number for _ in range(fours) for number in four(draw.choice((0, 1)))]
    check.returns(fewer, (row,), expected=row, call=there_and_back)
    bad = four(draw.choice((3, 4)))
    check.returns(refused, (four(2) + row, row + bad), expected="ValueError", call=refusal)
    short = row + [0] * draw.randint(1, 3)
    check.returns(refused, (four(2) + row, short), expected="ValueError", call=refusal)
for place in range(4):
    alone = [0] * place + [5] + [0] * (3 - place)
    check.returns(fewer, (alone,), expected=alone, call=there_and_back)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one four</summary>
#
# `[place for place in range(4) if four[place] != 0]` are its positions. More than two: refuse.
#
# </details>
# <details><summary>Hint 2: fewer than two</summary>
#
# Put the places of zeros behind them, take the first two of all, and sort these.
#
# </details>
# <details><summary>Hint 3: the byte</summary>
#
# A four's half is `first | second << 2`. The first of two fours begins a byte, the second is added to it:
# `packed[-1] |= half << 4`.
#
# </details>


# %% wrong="pack" says="The halves are the wrong way round" gets=1
def pack(row):
    if len(row) % 4:
        raise ValueError("not 2:4")
    values, packed = [], []
    for start in range(0, len(row), 4):
        four = row[start : start + 4]
        places = [place for place in range(4) if four[place]]
        if len(places) > 2:
            raise ValueError("not 2:4")
        first, second = sorted((places + [place for place in range(4) if not four[place]])[:2])
        values += [four[first], four[second]]
        half = first | second << 2
        packed = [*packed[:-1], packed[-1] | half] if start % 8 else [*packed, half << 4]
    return values, packed


# %% wrong="pack" says="Two fours share a byte" gets=1
def pack(row):
    if len(row) % 4:
        raise ValueError("4 does not divide it")
    values, packed = [], []
    for start in range(0, len(row), 4):
        four = row[start : start + 4]
        places = [place for place in range(4) if four[place]]
        if len(places) > 2:
            raise ValueError("not 2:4")
        first, second = sorted((places + [place for place in range(4) if not four[place]])[:2])
        values += [four[first], four[second]]
        packed.append(first | second << 2)
    return values, packed


# %% wrong="pack" says="the smaller one stands first" gets=2
def pack(row):
    if len(row) % 4:
        raise ValueError("not 2:4")
    values, packed = [], []
    for start in range(0, len(row), 4):
        places = [place for place in range(4) if row[start + place]]
        if len(places) > 2:
            raise ValueError("not 2:4")
        first, second = [*places, 0, 0][:2]
        values += [row[start + first] if places else 0, row[start + second] if len(places) == 2 else 0]
        if start % 8:
            packed[-1] |= (first | second << 2) << 4
        else:
            packed.append(first | second << 2)
    return values, packed


# %% wrong="pack" says="keep a 0 beside the 7" gets=2
def pack(row):
    if len(row) % 4:
        raise ValueError("4 does not divide it")
    values, packed = [], []
    for start in range(0, len(row), 4):
        four = row[start : start + 4]
        places = [place for place in range(4) if four[place]]
        if len(places) > 2:
            raise ValueError("not 2:4")
        values += [four[place] for place in places]
        half = sum(place << 2 * at for at, place in enumerate(places))
        packed = [*packed[:-1], packed[-1] | half << 4] if start % 8 else [*packed, half]
    return values, packed


# %% wrong="pack" says="one would be lost" gets=2
def pack(row):
    if len(row) % 4:
        raise ValueError("4 does not divide it")
    values, packed = [], []
    for start in range(0, len(row), 4):
        four = row[start : start + 4]
        order = sorted(range(4), key=lambda place: four[place] == 0)
        first, second = sorted(order[:2])
        values += [four[first], four[second]]
        half = first | second << 2
        packed = [*packed[:-1], packed[-1] | half << 4] if start % 8 else [*packed, half]
    return values, packed


# %% wrong="pack" says="and 4 does not divide six" gets=2
def pack(row):
    values, packed = [], []
    for start in range(0, len(row), 4):
        four = [*row[start : start + 4], 0, 0, 0][:4]
        places = [place for place in range(4) if four[place]]
        if len(places) > 2:
            raise ValueError("not 2:4")
        first, second = sorted((places + [place for place in range(4) if not four[place]])[:2])
        values += [four[first], four[second]]
        half = first | second << 2
        packed = [*packed[:-1], packed[-1] | half << 4] if start % 8 else [*packed, half]
    return values, packed


# %% [markdown]
# ## Exercise 3: choose a register tile
#
# The inner loop of a convolution keeps a [tile](../glossary.md#register-tile) of sums in
# [registers](../glossary.md#register): those of p pixels and v vectors of filters. A step loads p inputs, each copied
# to all lanes of a register, then v vectors of filters, one at a time; each vector makes p multiply-adds (FMAs).
#
# | p x v | sums, and FMAs a step: p v | registers: p v + p + 1 | loads a step: p + v | loads an FMA |
# |:-:|--:|--:|--:|--:|
# | 1 x 1 | 1 | 3 | 2 | 2.00 |
# | 3 x 2 | 6 | 10 | 5 | 0.83 |
# | 6 x 2 | 12 | 19 | 8 | 0.67 |
#
# A tile is allowed where all of this holds:
#
# - It needs at most as many registers as there are.
# - v is at most the number of vectors that the filters take; the last vector may be partly filled.
# - The next FMA on a sum waits `latency` cycles for the one before. So there are at least `latency` times `fmas` sums:
#   enough to begin `fmas` of them in every cycle.
# - The loads of a step, `loads` in a cycle, take no longer than its FMAs, `fmas` in a cycle.
#
# Write `register_tile(filters, registers, lanes, latency, fmas, loads)`: p and v of the allowed tile with the fewest
# loads an FMA (any of them, where several have as few), or `None` where none is allowed. Some cores, in float32 (from
# Agner Fog's instruction tables and Arm's optimization guide for the Neoverse N1):

# %%
cores = {
    "Intel Haswell, AVX2": (16, 8, 5, 2, 2),
    "AMD Zen 3, AVX2": (16, 8, 4, 2, 2),
    "Intel Skylake-SP, AVX-512": (32, 16, 4, 2, 2),
    "Arm Neoverse N1, NEON": (32, 4, 4, 2, 2),
}
pd.DataFrame(cores, index=["registers", "lanes", "latency", "fmas", "loads"]).transpose()


# %% answer="register_tile"
def register_tile(filters, registers, lanes, latency, fmas, loads):
    """Return (p, v), or None: register_tile(64, 16, 8, 5, 2, 2) is (3, 4)."""
    ### BEGIN SOLUTION
    allowed = [
        ((p + v) / (p * v), p, v)
        for p in range(1, registers)
        for v in range(1, -(-filters // lanes) + 1)
        if p * v + p + 1 <= registers and p * v >= latency * fmas and (p + v) * fmas <= loads * p * v
    ]
    return min(allowed)[1:] if allowed else None
    ### END SOLUTION


# %% checks="register_tile" points=4
check = exercises.Checks("Exercise 3, register_tile", register_tile)
most, sums = "the fewest loads that the registers allow", "enough sums to begin an FMA at once"
vectors, fed = "no more vectors than the filters take", "loads that keep up"
told = {
    (4, 3): "4 x 3 needs 12 + 4 + 1 = 17 registers: p pixels first, then v vectors",
    (4, 4): "The inputs and the filters need registers too: p + 1 of them",
    (2, 6): "2 x 6 has as many sums as 3 x 4, and 8 loads for its 12 FMAs in place of 7",
}
check.returns(most, (64, 16, 8, 5, 2, 2), expected=(3, 4), mistakes=told)
told = {
    (4, 6): "4 x 6 has 10 loads for 24 FMAs (0.417), and 5 x 5 has 10 for 25 (0.400)",
    (2, 14): "2 x 14 has the most sums, and 16 loads for 28 FMAs (0.571): 5 x 5 has 10 for 25 (0.400)",
}
check.returns(most, (128, 32, 4, 4, 2, 2), expected=(5, 5), mistakes=told)
told = {
    (2, 2): "With 4 sums there are 4 FMAs in 5 cycles: it takes 5 sums for one in every cycle",
    (1, 5): "1 x 6 needs 1 x 6 + 1 + 1 = 8 registers, and there are 8",
}
check.returns(sums, (64, 8, 4, 5, 1, 2), expected=(1, 6), mistakes=told)
told = dict.fromkeys([(2, 2), (1, 6)], "Two FMAs a cycle, each 4 cycles long, take 8 sums, and 6 fit: return None")
check.returns(sums, (64, 8, 4, 4, 2, 2), expected=None, mistakes=told)
check.returns(vectors, (16, 16, 8, 4, 2, 2), expected=(5, 2), mistakes={(3, 4): "16 filters fill two vectors of 8"})
told = {(5, 2): "20 filters take three vectors of 8, the last one half filled: round up"}
check.returns(vectors, (20, 16, 8, 4, 2, 2), expected=(3, 3), mistakes=told)
check.returns(fed, (64, 32, 16, 4, 2, 1), expected=(6, 4))
told = {(3, 4): "3 x 4 has 7 cycles of loads and 6 of FMAs in a step: no tile keeps up, return None"}
check.returns(fed, (64, 16, 8, 4, 2, 1), expected=None, mistakes=told)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(10004)


def found_by_trying(filters, registers, lanes, latency, fmas, loads):
    """Return every allowed tile with the fewest loads an FMA."""
    allowed = []
    for p in range(1, registers):
        for v in range(1, (registers - 1) // p):
            keeps_up = p * v >= latency * fmas and p * v * loads >= (p + v) * fmas
            if keeps_up and (v - 1) * lanes < filters:
                allowed.append(((p + v) / (p * v), (p, v)))
    return [tile for each, tile in allowed if each == min(allowed)[0]]


def ask(goal, *core):
    """Check one core, with any of the best tiles."""
    tiles = found_by_trying(*core)

    def as_good(function, *given):
        found = function(*given)
        return tiles[0] if isinstance(found, tuple | list) and tuple(found) in tiles else found

    check.returns(goal, core, expected=tiles[0] if tiles else None, call=as_good)


for registers in (10, 12, 16, 20, 24, 32, 40, 64):
    lanes = draw.choice((2, 4, 8, 16, 32))
    ask(most, 64 * lanes, registers, lanes, 1, 1, 4)
    few = draw.choice((1, 2))
    ask(vectors, few * lanes, registers, lanes, 3, 1, 3)
    ask(vectors, (few + 1) * lanes - draw.randint(1, lanes - 1), registers, lanes, 3, 1, 3)
for core in ((16, 8, 5, 2, 2), (16, 8, 4, 2, 2), (32, 16, 4, 2, 2), (32, 4, 4, 2, 2)):
    ask(most, 64 * core[1] + draw.randint(1, 9), *core)
    ask(vectors, 2 * core[1], *core)
for registers in (6, 7, 8, 9, 10, 11, 12):
    for latency in (registers - 4, registers - 3, registers - 2, registers - 1):
        ask(sums, 640, registers, 4, latency, 1, 2)
for registers, fmas, loads in ((16, 2, 1), (20, 2, 1), (21, 2, 1), (24, 3, 1), (43, 3, 1), (32, 2, 2), (32, 3, 2)):
    ask(fed, 640, registers, 8, 2, fmas, loads)
    ask(fed, draw.randint(1, 8), registers, 8, 2, fmas, loads)
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: try them all</summary>
#
# There are few tiles: p and v are both below `registers`. Two loops and a condition are enough.
#
# </details>
# <details><summary>Hint 2: how many vectors</summary>
#
# `-(-filters // lanes)` rounds up.
#
# </details>
# <details><summary>Hint 3: do the loads keep up?</summary>
#
# `(p + v) / loads <= p * v / fmas`; both sides times `loads * fmas`, and all numbers are whole.
#
# </details>


# %% wrong="register_tile" says="p pixels first, then v vectors" gets=0
def register_tile(filters, registers, lanes, latency, fmas, loads):
    tiles = [(p, v) for v in range(1, -(-filters // lanes) + 1) for p in range(1, registers)]
    tiles = [(p, v) for p, v in tiles if p * v + p + 1 <= registers and p * v >= latency * fmas]
    best = min(((p + v) / (p * v), v, p) for p, v in tiles) if tiles else None
    return best[1:] if best and best[0] <= loads / fmas else None


# %% wrong="register_tile" says="2 x 14 has the most sums"
def register_tile(filters, registers, lanes, latency, fmas, loads):
    tiles = [(p, v) for v in range(1, -(-filters // lanes) + 1) for p in range(1, registers)]
    tiles = [(p, v) for p, v in tiles if p * v + p + 1 <= registers and p * v >= latency * fmas]
    tiles = [(p, v) for p, v in tiles if (p + v) * fmas <= loads * p * v]
    return max(tiles, key=lambda tile: tile[0] * tile[1]) if tiles else None


# %% wrong="register_tile" says="The inputs and the filters need registers too" gets=0
def register_tile(filters, registers, lanes, latency, fmas, loads):
    tiles = [(p, v) for v in range(1, -(-filters // lanes) + 1) for p in range(1, registers + 1)]
    tiles = [(p, v) for p, v in tiles if p * v <= registers and p * v >= latency * fmas]
    tiles = [(p, v) for p, v in tiles if (p + v) * fmas <= loads * p * v]
    return min(tiles, key=lambda tile: 1 / tile[0] + 1 / tile[1]) if tiles else None


# %% wrong="register_tile" says="With 4 sums there are 4 FMAs in 5 cycles" gets=3
def register_tile(filters, registers, lanes, latency, fmas, loads):  # noqa: ARG001
    tiles = [(p, v) for v in range(1, -(-filters // lanes) + 1) for p in range(1, registers)]
    tiles = [(p, v) for p, v in tiles if p * v + p + 1 <= registers and (p + v) * fmas <= loads * p * v]
    return min(tiles, key=lambda tile: 1 / tile[0] + 1 / tile[1]) if tiles else None


# %% wrong="register_tile" says="16 filters fill two vectors of 8" gets=2
def register_tile(filters, registers, lanes, latency, fmas, loads):  # noqa: ARG001
    tiles = [(p, v) for v in range(1, registers) for p in range(1, registers)]
    tiles = [(p, v) for p, v in tiles if p * v + p + 1 <= registers and p * v >= latency * fmas]
    tiles = [(p, v) for p, v in tiles if (p + v) * fmas <= loads * p * v]
    return min(tiles, key=lambda tile: 1 / tile[0] + 1 / tile[1]) if tiles else None


# %% wrong="register_tile" says="the last one half filled: round up"
def register_tile(filters, registers, lanes, latency, fmas, loads):
    tiles = [(p, v) for v in range(1, filters // lanes + 1) for p in range(1, registers)]
    tiles = [(p, v) for p, v in tiles if p * v + p + 1 <= registers and p * v >= latency * fmas]
    tiles = [(p, v) for p, v in tiles if (p + v) * fmas <= loads * p * v]
    return min(tiles, key=lambda tile: 1 / tile[0] + 1 / tile[1]) if tiles else None


# %% wrong="register_tile" says="no tile keeps up" gets=3
def register_tile(filters, registers, lanes, latency, fmas, loads):  # noqa: ARG001
    tiles = [(p, v) for v in range(1, -(-filters // lanes) + 1) for p in range(1, registers)]
    tiles = [(p, v) for p, v in tiles if p * v + p + 1 <= registers and p * v >= latency * fmas]
    return min(tiles, key=lambda tile: 1 / tile[0] + 1 / tile[1]) if tiles else None


# %% [markdown]
# ## Exercise 4: does it pay?
#
# Zeros can save bytes, and they can save time. A ledger of each.
#
# **Bytes.** A matrix of `rows` x `columns` numbers, its values and its indices (the columns and the starts) as wide as
# you like:
#
# | | bytes |
# |---|---|
# | dense | `rows` x `columns` x `value_bytes` |
# | CSR | values x (`value_bytes` + `index_bytes`) + (`rows` + 1) x `index_bytes` |
#
# Write `break_even(rows, columns, value_bytes, index_bytes)`: the share of zeros with which both take as many bytes,
# from 0 to 1 and not rounded, or `None` where CSR takes more even if all are zeros.


# %% answer="break_even"
def break_even(rows, columns, value_bytes, index_bytes):
    """Return the share of zeros, or None: break_even(10, 10, 8, 8) is 0.555."""
    ### BEGIN SOLUTION
    saved = rows * columns * value_bytes - (rows + 1) * index_bytes
    if saved < 0:
        return None
    return 1 - saved / (rows * columns * (value_bytes + index_bytes))
    ### END SOLUTION


# %% checks="break_even" points=2
check = exercises.Checks("Exercise 4, break_even", break_even)
even, never = "the share of zeros is found", "None where CSR never takes less"
told = {
    0.5: "The starts take bytes as well: rows + 1 of them",
    0.445: "That is the share of the values: zeros are the rest",
    0.55: "There are rows + 1 starts: one more says where the last row is over",
}
check.returns(even, (10, 10, 8, 8), expected=0.555, mistakes=told)
told = {
    2 / 3: told[0.5],
    188 / 756: told[0.445],
    1 - 15 / 63: "Do not round: the share is where the two lines meet, also between two whole numbers of values",
    0.751: "Do not round the share",
}
check.returns(even, (7, 9, 4, 8), expected=1 - 188 / 756, mistakes=told)
told = {
    1.25: "More than all of them cannot be zeros: there is no break-even, return None",
    1: "With nothing but zeros CSR has 16 bytes here, and the dense matrix 4: return None",
}
check.returns(never, (1, 1, 4, 8), expected=None, mistakes={2.0: told[1.25], 1: told[1]})
check.returns(never, (1, 4, 4, 8), expected=1.0)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(10005)


def by_counting(rows, columns, value_bytes, index_bytes):
    """Return where the line through two counts of CSR's bytes meets the dense matrix's."""
    empty, one = (
        sparsity.model_bytes("csr", rows, columns, kept=kept, value_bytes=value_bytes, index_bytes=index_bytes)
        for kept in (0, 1)
    )
    kept = (rows * columns * value_bytes - empty) / (one - empty)
    return None if kept < 0 else 1 - kept / (rows * columns)


for value_bytes in (1, 2, 4, 8):
    for index_bytes in (1, 2, 4, 8):
        size = draw.randint(3, 200), draw.randint(20, 300)
        check.returns(even, (*size, value_bytes, index_bytes), expected=by_counting(*size, value_bytes, index_bytes))
    for rows, columns in ((draw.randint(1, 9), 1), (draw.randint(2, 9), 2)):
        asked = (rows, columns, value_bytes, 4 * value_bytes)
        check.returns(never, asked, expected=by_counting(*asked))
for rows in (1, 3, 7):
    check.returns(never, (rows, rows + 1, 2, 2 * rows), expected=1)
check.score()
### END HIDDEN TESTS


# %% [markdown]
# <details><summary>Hint 1: bytes</summary>
#
# Write the two rows of the table as an equation, and solve it for the number of values. Fewer than 0: `None`.
#
# </details>


# %% wrong="break_even" says="The starts take bytes as well" gets=0
def break_even(rows, columns, value_bytes, index_bytes):  # noqa: ARG001
    return index_bytes / (value_bytes + index_bytes)


# %% wrong="break_even" says="That is the share of the values" gets=0
def break_even(rows, columns, value_bytes, index_bytes):
    saved = rows * columns * value_bytes - (rows + 1) * index_bytes
    return saved / (rows * columns * (value_bytes + index_bytes)) if saved >= 0 else None


# %% wrong="break_even" says="one more says where the last row is over" gets=0
def break_even(rows, columns, value_bytes, index_bytes):
    saved = rows * columns * value_bytes - rows * index_bytes
    return 1 - saved / (rows * columns * (value_bytes + index_bytes)) if saved >= 0 else None


# %% wrong="break_even" says="More than all of them cannot be zeros" gets=1
def break_even(rows, columns, value_bytes, index_bytes):
    saved = rows * columns * value_bytes - (rows + 1) * index_bytes
    return 1 - saved / (rows * columns * (value_bytes + index_bytes))


# %% wrong="break_even" says="With nothing but zeros CSR has 16 bytes here" gets=1
def break_even(rows, columns, value_bytes, index_bytes):
    saved = rows * columns * value_bytes - (rows + 1) * index_bytes
    return min(1, 1 - saved / (rows * columns * (value_bytes + index_bytes)))


# %% [markdown]
# **Time.** A layer takes a share of the step, and its zeros are of a kind that this hardware makes faster, or slower,
# or does not use. For example:
#
# | layer | share of the step | its zeros | speedup of such zeros here |
# |---|--:|---|--:|
# | attention | 0.3 | 2:4 | 1.25 |
# | feed-forward | 0.4 | none | |
# | embedding | 0.1 | CSR | 0.5 |
# | *all else, not in the list* | 0.2 | | |
#
# Write `end_to_end(layers, speedups)`, with `layers` a list of pairs (share, kind) and `speedups` a dictionary from
# kind to speedup: how many times as fast is the whole step? A kind that is not in `speedups`, and what the list leaves
# out, takes as long as before.


# %% answer="end_to_end"
def end_to_end(layers, speedups):
    """Return how many times as fast: end_to_end([(0.5, "2:4"), (0.25, "none")], {"2:4": 2}) is 1 / 0.75."""
    ### BEGIN SOLUTION
    saved = sum(share - share / speedups.get(kind, 1) for share, kind in layers)
    return 1 / (1 - saved)
    ### END SOLUTION


# %% checks="end_to_end" points=3
check = exercises.Checks("Exercise 4, end_to_end", end_to_end)
listed, rest, unused = "all of the step is listed", "the rest takes as long as before", "zeros that nothing uses"
told = {
    1.76: "Speedups do not average: add up the times, share / speedup, and divide 1 by their sum",
    1 / 0.75 / 1.05 / 0.85: "Amdahl's law for each layer alone does not multiply: add up what all of them take",
    0.65: "That is the new time, in parts of the old one: how many times as fast is 1 over it?",
    0.35: "That is the share of the time that is saved: what is left is 1 less that",
}
check.returns(listed, ([(0.5, "2:4"), (0.2, "CSR"), (0.3, "2:4")], {"2:4": 2, "CSR": 0.8}), expected=1 / 0.65,
              mistakes=told)  # fmt: skip
told = {
    2.0: "The list has half of the step, and the other half does not get faster",
    4.0: "The list has half of the step: the other half still takes 0.5",
}
check.returns(rest, ([(0.5, "2:4")], {"2:4": 2}), expected=1 / 0.75, mistakes=told)
told = {
    4.0: "The layer without a speedup still takes its half of the step",
    2.0: "The layer without a speedup still takes its half of the step",
}
check.returns(unused, ([(0.5, "2:4"), (0.5, "none")], {"2:4": 2}), expected=1 / 0.75, mistakes=told)
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(10006)
kinds = ["2:4", "CSR", "blocks", "neurons"]


def step(parts, speedups):
    """Return the speedup of a step whose parts are thousandths, none of them left out."""
    new = sum(part / speedups[kind] if kind in speedups else part for part, kind in parts)
    return 1000 / new


for _ in range(5):
    speedups = {kind: draw.randint(2, 40) / draw.choice((4, 8, 10)) for kind in kinds[:3]}
    cuts = sorted(draw.sample(range(100, 900, 10), 3))
    parts = [after - before for before, after in zip([0, *cuts], [*cuts, 1000], strict=True)]
    whole = [(part, draw.choice(kinds[:3])) for part in parts]
    asked = [(part / 1000, kind) for part, kind in whole]
    check.returns(listed, (asked, speedups), expected=step(whole, speedups))
    check.returns(rest, (asked[1:], speedups), expected=step([(parts[0], "not listed"), *whole[1:]], speedups))
    mixed = [(parts[0], "neurons"), *whole[1:]]
    asked = [(part / 1000, kind) for part, kind in mixed]
    check.returns(unused, (asked, speedups), expected=step(mixed, speedups))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 2: time</summary>
#
# A layer's new time is share / speedup. Amdahl's law is the same sum with two parts.
#
# </details>
# <details><summary>Hint 3: what stays</summary>
#
# `speedups.get(kind, 1)` is 1 where the kind is not there. Begin with 1, and take off what each layer saves.
#
# </details>


# %% wrong="end_to_end" says="Speedups do not average" gets=0
def end_to_end(layers, speedups):
    rest = 1 - sum(share for share, _ in layers)
    return rest + sum(share * speedups.get(kind, 1) for share, kind in layers)


# %% wrong="end_to_end" says="That is the new time" gets=0
def end_to_end(layers, speedups):
    return 1 - sum(share - share / speedups.get(kind, 1) for share, kind in layers)


# %% wrong="end_to_end" says="still takes 0.5" gets=2
def end_to_end(layers, speedups):
    return 1 / sum(share / speedups.get(kind, 1) for share, kind in layers)


# %% wrong="end_to_end" says="and the other half does not get faster" gets=2
def end_to_end(layers, speedups):
    listed = sum(share for share, _ in layers)
    return listed / sum(share / speedups.get(kind, 1) for share, kind in layers)


# %% wrong="end_to_end" says="The layer without a speedup still takes its half" gets=2
def end_to_end(layers, speedups):
    new = 1 - sum(share for share, _ in layers)
    return 1 / (new + sum(share / speedups[kind] for share, kind in layers if kind in speedups))


# %% [markdown]
# ## Exercise 5: three ideas for one layer
#
# The second convolution of AlexNet makes 256 maps of 96, with a kernel of 5 x 5. In *groups* each filter reads only the
# maps of its own group: that is how the network was split over two GPUs. As many groups as maps is a
# [depthwise convolution](../glossary.md#depthwise-convolution), and a 1 x 1 convolution after it mixes the maps:

# %%
ideas = {
    "one piece": [(96, 256, 5, 27, 1)],
    "two towers": [(96, 256, 5, 27, 2)],
    "depthwise, then 1 x 1": [(96, 96, 5, 27, 96), (96, 256, 1, 27, 1)],
}
names = ["channels", "filters", "kernel", "side", "groups"]
pd.DataFrame([(idea, *one) for idea, layers in ideas.items() for one in layers], columns=["idea", *names])

# %% [markdown]
# `side` is that of the maps that come out. Of one convolution, for one image and without a bias:
#
# | measure | |
# |---|---|
# | weights | each filter has kernel x kernel for every channel of its group |
# | [multiply-accumulates](../glossary.md#mac) | each weight is used once for every point of a map |
# | cycles on a [systolic array](../glossary.md#systolic-array) | the groups' tiles, one after another |
#
# The array is weight-stationary, as in lesson 14: a tile has up to `rows` x `columns` weights, and takes
# m + 2 rows + columns - 2 cycles, also where it is partly empty. In each group m is the points of a map; the k weights
# of a filter lie along the rows, the n filters of the group along the columns.
#
# Write `ranked(ideas, rows, columns)`. An idea's convolutions run one after another: add them up. Return three lists,
# by weights, by multiply-accumulates and by cycles, each of pairs (number, name of the idea), the smallest first (as
# `sorted` does it).


# %%
def list_of(place):
    """Return a way to call the function and look at one of its three lists alone."""

    def call(function, *given):
        found = function(*given)
        return found[place] if isinstance(found, tuple | list) and len(found) == 3 else found

    return call


# %% answer="ranked"
def ranked(ideas, rows, columns):
    """Return three sorted lists of pairs: for one idea of 2 -> 4 maps, ranked({"a": [(2, 4, 3, 5, 2)]}, 8, 8) is
    [(36, "a")], [(900, "a")], [(188, "a")].
    """
    ### BEGIN SOLUTION
    weights, macs, cycles = dict.fromkeys(ideas, 0), dict.fromkeys(ideas, 0), dict.fromkeys(ideas, 0)
    for name, layers in ideas.items():
        for channels, filters, kernel, side, groups in layers:
            m, n, k = side**2, filters // groups, channels // groups * kernel**2
            weights[name] += groups * n * k
            macs[name] += groups * n * k * m
            cycles[name] += groups * -(-k // rows) * -(-n // columns) * (m + 2 * rows + columns - 2)
    return tuple(sorted((number, name) for name, number in each.items()) for each in (weights, macs, cycles))
    ### END SOLUTION


# %% checks="ranked" points=3
check = exercises.Checks("Exercise 5, ranked", ranked)
by_weights, by_macs, by_cycles = "weights", "multiply-accumulates", "cycles on the array"
pair = {"whole": [(4, 8, 3, 5, 1)], "halves": [(4, 8, 3, 5, 2)]}
two = {"whole": [(4, 8, 3, 5, 1)], "apart": [(4, 4, 3, 5, 4), (4, 8, 1, 5, 1)]}
told = {
    ((288, "halves"), (288, "whole")): "A filter reads the channels of its own group alone: channels / groups",
    ((72, "halves"), (288, "whole")): "That is one group: both have weights",
}
check.returns(by_weights, (pair, 8, 8), expected=[(144, "halves"), (288, "whole")], mistakes=told, call=list_of(0))
said = "The two convolutions of an idea both have weights: add them up"
told = {((36, "apart"), (288, "whole")): said, ((32, "apart"), (288, "whole")): said}
check.returns(by_weights, (two, 8, 8), expected=[(68, "apart"), (288, "whole")], mistakes=told, call=list_of(0))
told = {
    ((7200, "halves"), (7200, "whole")): "A filter reads the channels of its own group alone: channels / groups",
    ((720, "halves"), (1440, "whole")): "A map of side 5 has 25 points",
    ((144, "halves"), (288, "whole")): "Those are the weights: each is used at every point of a map",
}
check.returns(by_macs, (pair, 8, 8), expected=[(3600, "halves"), (7200, "whole")], mistakes=told, call=list_of(1))
told = {
    ((141, "halves"), (235, "whole")): "Two groups are two products: one after the other goes through the array",
    (
        (235, "whole"),
        (470, "halves"),
    ): "A filter of a group has fewer weights: k is channels / groups x kernel x kernel",
    ((105.75, "halves"), (211.5, "whole")): "There is no part of a tile: round up along the rows and along the columns",
    ((195, "whole"), (234, "halves")): "The weights of a tile are loaded first: rows cycles more",
}
check.returns(by_cycles, (pair, 8, 8), expected=[(235, "whole"), (282, "halves")], mistakes=told, call=list_of(2))
check.returns(by_cycles, (pair, 16, 4), expected=[(236, "halves"), (354, "whole")], call=list_of(2))
check.report()
### BEGIN HIDDEN TESTS
import random

draw = random.Random(10007)


def convolution(channels, filters, kernel, side, groups):
    """Return PyTorch's layer, and its product for an image whose maps come out with this side."""
    layer = torch.nn.Conv2d(channels, filters, kernel, groups=groups, bias=False, device="meta")
    return layer, systolic.gemm_of(layer, (1, channels, side + kernel - 1, side + kernel - 1))


def truth(ideas, rows, columns):
    """Return the three lists by PyTorch's own count and the library's models."""
    lists = [], [], []
    for name, layers in ideas.items():
        found = [convolution(*layer) for layer in layers]
        lists[0].append((sum(layer.weight.numel() for layer, _ in found), name))
        lists[1].append((sum(gemm.macs for _, gemm in found), name))
        cycles = (
            gemm.products * systolic.model_cycles(gemm.m, gemm.n, gemm.k, rows=rows, columns=columns)
            for _, gemm in found
        )
        lists[2].append((sum(cycles), name))
    return [sorted(each) for each in lists]


for _ in range(6):
    rows, columns = draw.sample((4, 6, 8, 12, 16, 32, 128), 2)
    made = {}
    for name in draw.sample(["a", "b", "c", "d", "e"], 4):
        groups = draw.choice((1, 2, 3, 4))
        channels, filters = groups * draw.randint(2, 9), groups * draw.randint(2, 9)
        made[name] = [(channels, filters, draw.choice((1, 3, 5)), draw.randint(3, 14), groups)]
    channels, side = draw.randint(6, 40), draw.randint(3, 14)
    made["deep"] = [(channels, channels, 3, side, channels), (channels, draw.randint(6, 60), 1, side, 1)]
    for goal, place in ((by_weights, 0), (by_macs, 1), (by_cycles, 2)):
        check.returns(goal, (made, rows, columns), expected=truth(made, rows, columns)[place], call=list_of(place))
check.score()
### END HIDDEN TESTS

# %% [markdown]
# <details><summary>Hint 1: one group</summary>
#
# `m, n, k = side**2, filters // groups, channels // groups * kernel**2`. All three measures follow from them.
#
# </details>
# <details><summary>Hint 2: all groups</summary>
#
# Weights are `groups * n * k`, and multiply-accumulates m times that.
#
# </details>
# <details><summary>Hint 3: cycles</summary>
#
# A group has `-(-k // rows) * -(-n // columns)` tiles; the groups come one after another.
#
# </details>


# %% wrong="ranked" says="That is one group: both have weights" gets=0
def ranked(ideas, rows, columns):
    found = {name: [0, 0, 0] for name in ideas}
    for name, layers in ideas.items():
        for channels, filters, kernel, side, groups in layers:
            m, n, k = side**2, filters // groups, channels // groups * kernel**2
            cycles = -(-k // rows) * -(-n // columns) * (m + 2 * rows + columns - 2)
            found[name] = [before + more for before, more in zip(found[name], (n * k, n * k * m, cycles), strict=True)]
    return [sorted((numbers[place], name) for name, numbers in found.items()) for place in range(3)]


# %% wrong="ranked" says="A filter reads the channels of its own group alone" gets=0
def ranked(ideas, rows, columns):
    found = {name: [0, 0, 0] for name in ideas}
    for name, layers in ideas.items():
        for channels, filters, kernel, side, groups in layers:
            m, n, k = side**2, filters // groups, channels * kernel**2
            cycles = groups * -(-k // rows) * -(-n // columns) * (m + 2 * rows + columns - 2)
            more = groups * n * k, groups * n * k * m, cycles
            found[name] = [before + one for before, one in zip(found[name], more, strict=True)]
    return [sorted((numbers[place], name) for name, numbers in found.items()) for place in range(3)]


# %% wrong="ranked" says="Two groups are two products" gets=2
def ranked(ideas, rows, columns):
    found = {name: [0, 0, 0] for name in ideas}
    for name, layers in ideas.items():
        for channels, filters, kernel, side, groups in layers:
            m, n, k = side**2, filters // groups, channels // groups * kernel**2
            cycles = -(-k // rows) * -(-filters // columns) * (m + 2 * rows + columns - 2)
            more = groups * n * k, groups * n * k * m, cycles
            found[name] = [before + one for before, one in zip(found[name], more, strict=True)]
    return [sorted((numbers[place], name) for name, numbers in found.items()) for place in range(3)]


# %% wrong="ranked" says="There is no part of a tile" gets=2
def ranked(ideas, rows, columns):
    found = {name: [0, 0, 0] for name in ideas}
    for name, layers in ideas.items():
        for channels, filters, kernel, side, groups in layers:
            m, n, k = side**2, filters // groups, channels // groups * kernel**2
            cycles = groups * k / rows * n / columns * (m + 2 * rows + columns - 2)
            more = groups * n * k, groups * n * k * m, cycles
            found[name] = [before + one for before, one in zip(found[name], more, strict=True)]
    return [sorted((numbers[place], name) for name, numbers in found.items()) for place in range(3)]


# %% wrong="ranked" says="are loaded first: rows cycles more" gets=2
def ranked(ideas, rows, columns):
    found = {name: [0, 0, 0] for name in ideas}
    for name, layers in ideas.items():
        for channels, filters, kernel, side, groups in layers:
            m, n, k = side**2, filters // groups, channels // groups * kernel**2
            cycles = groups * -(-k // rows) * -(-n // columns) * (m + rows + columns - 2)
            more = groups * n * k, groups * n * k * m, cycles
            found[name] = [before + one for before, one in zip(found[name], more, strict=True)]
    return [sorted((numbers[place], name) for name, numbers in found.items()) for place in range(3)]


# %% wrong="ranked" says="The two convolutions of an idea both have weights" gets=0
def ranked(ideas, rows, columns):
    found = {}
    for name, layers in ideas.items():
        channels, filters, kernel, side, groups = layers[0]
        m, n, k = side**2, filters // groups, channels // groups * kernel**2
        cycles = groups * -(-k // rows) * -(-n // columns) * (m + 2 * rows + columns - 2)
        found[name] = [groups * n * k, groups * n * k * m, cycles]
    return [sorted((numbers[place], name) for name, numbers in found.items()) for place in range(3)]


# %% [markdown]
# ## Your functions at work
#
# The best tiles, p x v, for layers of 16, 64 and 256 filters:

# %%
tiles = {}
for name, core in cores.items() if "register_tile" in dir() else ():
    found = [register_tile(filters, *core) for filters in (16, 64, 256)]
    if not any(tile is exercises.not_yet for tile in found):
        tiles[name] = [" x ".join(map(str, tile)) if tile else "none" for tile in found]
pd.DataFrame(tiles, index=["16 filters", "64", "256"]).transpose() if tiles else print("not yet")

# %% [markdown]
# With AVX2 and 64 filters it is the tile that the lesson reads from oneDNN's machine code. 16 filters are one vector of
# AVX-512: each multiply-add needs an input of its own, the filters are one load more, and no tile keeps up.
#
# The three ideas on two arrays, with how many of all multiplier cycles are work:

# %%
table = {}
for side in (128, 256) if "ranked" in dir() and ranked(ideas, 8, 8) is not exercises.not_yet else ():
    weights, macs, cycles = ({name: number for number, name in each} for each in ranked(ideas, side, side))
    table["weights"], table["MACs"], table[f"cycles, {side} x {side}"] = weights, macs, cycles
    table[f"work, {side} x {side}"] = {name: f"{macs[name] / cycles[name] / side**2:.1%}" for name in ideas}
pd.DataFrame(table).loc[list(ideas)] if table else print("not yet")

# %% [markdown]
# The idea with the fewest operations takes the most cycles: a depthwise filter has 25 weights, and fills a part of one
# column. Two towers gain on the smaller array, and nothing on the larger one.
#
# The first linear layer of LeNet, packed by your `pack`, in parts of its dense bytes:

# %%
pruned, _ = helpers.studies.sparsity.prune(helpers.LeNet(), 0.5, pattern="2:4", layers=["fc1"])
dense = pruned.fc1.weight.tolist()
if "pack" in dir() and pack(dense[0]) is not exercises.not_yet:
    packed = [pack(row) for row in dense]
    values, indices = (sum(len(row[part]) for row in packed) for part in (0, 1))
    numbers = sum(len(row) for row in dense)
    for bits in (16, 32):
        print(f"float{bits}: {(values * bits // 8 + indices) / (numbers * bits // 8)}")
else:
    print("not yet")

# %% [markdown]
# That is 9/16 and 17/32: the wider the values, the less the positions weigh.
#
# ## Question 1: twice, 1.3 times, 6 %
#
# NVIDIA's tensor cores multiply a 2:4 matrix at twice the rate of a dense one. PyTorch's developers trained a vision
# transformer with it ([2024](https://pytorch.org/blog/accelerating-neural-network-training/)): the linear layers of its
# MLP blocks became 1.3 times as fast, and the training took 6 % less time.
#
# Which share of the time had these layers, by Amdahl's law? What would the training gain if they did reach the promised
# two times, and at most, if they took no time at all? Name two things that may stand between the factor of two and the
# 1.3, and say how you would measure which of them it is. (The training was sparse for the first 70 % of its steps.)
#
# Three to six sentences with your numbers; a person reads them.

# %% [markdown] written="promise" points=2
# A full answer says:
#
# - 1 point: the share f from 0.06 = f (1 - 1 / 1.3), so f = 0.26 of the whole training (0.37 of the steps that were
#   sparse, for 0.7 of the training; both readings count, as does 1.06 times as fast, 0.245); with two times 13 % less
#   time, and 26 % less with none at all (1.15 and 1.35 times as fast).
# - 1 point: two reasons with a measurement that tells them apart, such as pruning and packing the activations or
#   weights in every step (profile the kernels: time outside of the product), products that wait for memory and not for
#   arithmetic (their intensity against the ridge point; larger batches), the shapes or the backward pass, in which
#   another matrix has to be 2:4 (time each product by itself).

# %% [markdown]
# ## Question 2: an idea that fits its machine
#
# Sara Hooker calls it the [hardware lottery](../glossary.md#hardware-lottery) when "a research idea wins because it is
# suited to the available software and hardware", and not because it is better than others. Take an idea of deep
# learning that you know: one that won, or one that did not. Count something of it that a machine of its time cares
# about (operations, bytes, shapes of products, the share of an array that works), beside the same count of a rival.
# Then say which change in the hardware, and by how much, would turn the order, and what speaks against the lottery as
# the explanation.
#
# Four to eight sentences with your numbers; a person reads them.

# %% [markdown] written="lottery" points=2
# A full answer says:
#
# - 1 point: two ideas counted by the same measure on a named machine, with where each number comes from (exercise 5's
#   convolutions, a recurrent network beside a transformer, unstructured zeros beside removed neurons).
# - 1 point: a change of the hardware with a number (the side of the array, registers, bytes a second, a unit that
#   skips zeros) after which the count favours the other, and an honest word against it: the winner may also be more
#   accurate, easier to train or simpler to write.

# %% [markdown]
# ## What you have practised
#
# Multiplying by a matrix without its zeros, packing two of every four, choosing the sums that a processor keeps in its
# registers, and telling what zeros and groups save from what they promise.
