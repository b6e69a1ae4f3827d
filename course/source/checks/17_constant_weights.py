"""The checks of lesson 17: what goes in, what must come out, and what common mistakes would give instead."""

import struct

import numpy as np

from helpers.exercises import Checks

_LINES = (
    ("a number", "FFMA R10, R37, 0.18100865185260772705, R10", "immediate", {}),
    (
        "constant memory, behind a condition",
        "@!P1 FFMA R9, R37, c[0x3][0x9c], R9",
        "constant",
        {
            "nothing": "A condition such as `@!P1` comes before the instruction, which is an FFMA.",
            "register": "`c[0x3][0x9c]` is in constant memory, and the table has it before the registers.",
        },
    ),
    (
        "a uniform register",
        "FFMA.FTZ R12, -R37, UR11, R12",
        "uniform",
        {
            "register": "UR11 is a uniform register, although there is an R in it.",
            "nothing": "What follows the dot of `FFMA.FTZ` makes no difference.",
        },
    ),
    ("registers alone", "FFMA R69, R54, R18, R69", "register", {}),
    (
        "a number that is added",
        "FFMA R46, R34, R13, -0.034500002861022949219",
        "immediate",
        {"register": "Look at every operand that is read. Here the last one is a number."},
    ),
    (
        "another instruction",
        "FADD R38, R1, 0.5",
        "nothing",
        {"immediate": "`FADD` does not multiply, so it is no multiply-add."},
    ),
)


def operand_kind(checks: Checks) -> None:
    """Kinds of operands"""
    for goal, line, expected, mistakes in _LINES:
        checks.returns(goal, (line,), expected=expected, mistakes=mistakes)


def cycles_per_warp(checks: Checks) -> None:
    """Cycles per warp"""
    checks.returns(
        "few loads are hidden among the other instructions",
        (400, 40),
        expected=100,
        kind=(int, float),
        mistakes={
            140: "Schedulers and load units work at the same time, so the slower of the two sets the time.",
            400: "The schedulers issue four instructions per cycle.",
        },
    )
    checks.returns(
        "many loads set the time",
        (400, 300),
        expected=300,
        kind=(int, float),
        mistakes={
            400: "Schedulers and load units work at the same time, so the slower of the two sets the time.",
            100: "The load units execute only one load per cycle.",
        },
    )


def weights_in_use(checks: Checks) -> None:
    """Weights in use"""
    first, last = np.array([[1, 1, 0], [1, 1, 1]]), np.array([[1], [0], [1]])
    checks.returns(
        "of three units, the output does not read the middle one",
        ([first, last],),
        expected=5,
        kind=(int, np.integer),
        mistakes={
            7: "You count every weight that is not zero, also those that lead to a unit which nobody reads.",
            4: "A unit that is read uses all its weights that are not zero.",
        },
    )
    chain = [np.array([[1.0, 1.0]]), np.array([[1.0], [0.0]]), np.array([[0.0]])]
    checks.returns(
        "nothing leads to the output",
        (chain,),
        expected=0,
        kind=(int, np.integer),
        mistakes={
            3: "The last weight is zero, so nothing before it is in use.",
            1: "Go from the last layer to the first, and pass on which units are still read.",
        },
    )


def read_layers(checks: Checks) -> None:
    """Layers from a file"""
    first = ([1.0, 2.0, 3.0], [[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    last = ([10.0], [[11.0], [12.0], [13.0]])
    content = _layer(1, *first) + _layer(2, *last)
    swapped = ([7.0, 8.0, 9.0], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    turned = ([1.0, 2.0, 3.0], [[4.0, 6.0, 8.0], [5.0, 7.0, 9.0]])
    both_swapped = [swapped, ([13.0], [[10.0], [11.0], [12.0]])]
    order = "The biases come before the weights."
    rows = "The weights come row by row, a row per input, so their shape is (inputs, outputs)."
    end = "A file has more than one layer, so go on behind the first until its end."
    checks.returns(
        "a layer with 2 inputs and 3 outputs",
        (_layer(1, *first),),
        expected=(first,),
        kind=(list, tuple),
        mistakes={_hashable([swapped]): order, _hashable([turned]): rows},
    )
    checks.returns(
        "two layers, one behind the other",
        (content,),
        expected=(first, last),
        kind=(list, tuple),
        mistakes={_hashable([first]): end, _hashable(both_swapped): order},
    )
    for place, name in enumerate(("biases", "weights")):
        checks.returns(
            f"the {name} are an array, from which the cells below make a layer",
            (content,),
            call=lambda function, given, place=place: function(given)[0][place],
            expected=first[place],
            kind=np.ndarray,
        )


def _layer(number, biases, weights):
    """Return a layer as the file has it."""
    values = [*biases, *(value for row in weights for value in row)]
    return struct.pack(f"<III{len(values)}f", number, len(weights), len(biases), *values)


def _hashable(layers):
    return tuple((tuple(biases), tuple(map(tuple, weights))) for biases, weights in layers)
