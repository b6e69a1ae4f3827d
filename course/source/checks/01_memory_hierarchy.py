"""The checks of lesson 01: what goes in, what must come out, and what common mistakes would give instead."""

import numba
import numpy as np
import torch

from helpers.exercises import Checks

SIGNATURE = "u8(u8[:, ::1], u8, i8)"  # with which the lesson compiles the chase


def one_cycle(checks: Checks) -> None:
    """One random cycle"""
    checks.returns(
        "a walk comes by all 64 lines",
        (64,),
        call=_visited,
        expected=64,
        mistakes={
            1: "Nothing was written into the buffer. Assign to `buffer[:, 0]` instead of returning a new array.",
            _visited(_permuted, 64): (
                "A random permutation falls apart into several cycles, and a walk stays in one of them. "
                "Let each line of the order lead to the next one of the order."
            ),
        },
    )
    checks.returns(
        "hardly a line leads to its neighbour",
        (64,),
        call=_neighbours,
        expected="fewer than 8 of 64",
        mistakes={
            "at least 8 of 64": "A core can guess the next line, so put the lines into a random order."
        },
    )


def _linked(link, lines):
    """Return which line comes next, (lines,), in a buffer of zeros that ``link`` has joined."""
    buffer = np.zeros((lines, 8), np.uint64)
    link(buffer, np.random.default_rng(0))
    return buffer[:, 0].astype(int)


def _visited(link, lines):
    following, visited, line = _linked(link, lines), set(), 0
    while line not in visited and line < lines:
        visited.add(line)
        line = int(following[line])
    return len(visited)


def _neighbours(link, lines):
    neighbours = int((_linked(link, lines) == np.arange(1, lines + 1)).sum())
    return f"{'fewer than' if neighbours < 8 else 'at least'} 8 of {lines}"


def _permuted(buffer, random):
    buffer[:, 0] = random.permutation(len(buffer))


def chase(checks: Checks) -> None:
    """The chase"""
    buffer = np.zeros((4, 8), np.uint64)
    buffer[:, 0] = [3, 0, 1, 2]
    checks.returns(
        "six loads in four lines end at line 2",
        (buffer, 0, 6),
        expected=2,
        mistakes={
            0: "The next line must come from the load before. Use the line that you have just read.",
            3: "Each load says where the next one looks, so give its result to the next load.",
        },
    )
    checks.returns("no load stays at its line", (buffer, 1, 0), expected=1)
    checks.returns(
        "numba can compile it, as the cells below need",
        (buffer, 0, 6),
        call=_compiled,
        expected=2,
        mistakes={
            "not compiled": "numba cannot compile this. Use only indexing, numbers and a loop, so that one load follows another."
        },
    )


def _compiled(function, buffer, line, loads):
    try:
        walk = numba.njit(SIGNATURE)(function)
    except numba.core.errors.NumbaError:
        return "not compiled"
    return walk(buffer, line, loads)


def lines_touched(checks: Checks) -> None:
    """Lines touched"""
    square = torch.arange(1024.0).view(32, 32)
    checks.returns(
        "a row of 32 float32 values",
        (square[0],),
        expected=2,
        kind=int,
        mistakes={32: "Neighbours share a line, so count each line once."},
    )
    checks.returns(
        "a column of 32 float32 values",
        (square[:, 0],),
        expected=32,
        kind=int,
        mistakes={
            2: "You divide the bytes by 64, but a column has only one value in each line."
        },
    )
    checks.returns(
        "16 values that begin in the middle of a line",
        (square[0, 8:24],),
        expected=2,
        kind=int,
        mistakes={
            1: "The view begins in the middle of a line, so add its `storage_offset()`."
        },
    )
    checks.returns(
        "every 16th of 1,024 float16 values", (square.half()[:, ::16],), expected=32, kind=int
    )
