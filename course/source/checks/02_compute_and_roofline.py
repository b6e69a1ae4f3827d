"""The checks of lesson 02: what goes in, what must come out, and what common mistakes would give instead."""

from helpers.exercises import Checks
from helpers.studies import simulators


def least_time(checks: Checks) -> None:
    """The larger of two times"""
    alone = "Inputs and results move as well, (rows + columns) elements per token."
    added = "The two times overlap, so they need not be added. Return the larger one."
    half = "Each weight takes part in a multiplication and an addition, so it costs two FLOP per token."
    smaller = "You return the smaller time, but the layer needs at least the larger one."
    per_element = "An element has element_bytes bytes, which need not be 4."
    checks.returns(
        "one token of an 8 x 4 layer waits for 176 bytes at 11 per second",
        (1, 8, 4, 11, 64),
        expected=16.0,
        kind=(int, float),
        mistakes={128 / 11: alone, 17.0: added, 1.0: smaller, 0.5: smaller},
    )
    checks.returns(
        "sixteen tokens of an 8 x 4 layer wait for 1,024 operations at 8 per second",
        (16, 8, 4, 56, 8),
        expected=128.0,
        kind=(int, float),
        mistakes={144.0: added, 64.0: half, 16.0: smaller},
    )
    checks.returns(
        "one token of an 8 x 4 layer waits for 88 bytes at 11 per second, with 2 bytes per element",
        (1, 8, 4, 11, 64, 2),
        expected=8.0,
        kind=(int, float),
        mistakes={16.0: per_element, 64 / 11: alone, 9.0: added},
    )


def tiled(checks: Checks) -> None:
    """A product in tiles"""
    naively = {(1024, 0): "That is the naive kernel: read the factors from shared memory"}
    checks.returns(
        "8 x 8 x 8",
        (8, 8, 8, 4),
        call=_reads,
        expected=(256, 1024),
        mistakes=naively,
    )
    checks.returns("sides that differ", (4, 8, 12, 4), call=_reads, expected=(192, 768))


def _reads(kernel, m, n, k, tile):
    run = simulators.count_traffic(kernel, m, n, k, tile=tile)
    return run.global_reads, run.shared_reads


def network_time(checks: Checks) -> None:
    """Least times and calls"""
    # flops, bytes, bandwidth, call: 2 s of arithmetic and 4 s of bytes; 6 s and 1 s
    operations = ((20, 8, 2, 0.5), (60, 5, 5, 0.25))
    one_call = "You add one call for all, but each operation has a call of its own."
    overlapped = "A call comes before its work, so add the two times."
    sums = "Take the larger time for each operation alone, because one must end before the next begins."
    checks.returns(
        "two operations with two calls, 4 s and 6 s at a peak of 10",
        (operations, 10),
        expected=10.75,
        kind=(int, float),
        mistakes={
            10.5: one_call,
            10.25: one_call,
            10.0: "You leave out the calls, which come before the work.",
            8.75: sums,
            13.75: "Bytes and operations of one operation overlap. Take the larger of the two times.",
        },
    )
    checks.returns(
        "a call that is longer than its work",
        (((20, 4, 4, 5.0),), 10),
        expected=7.0,
        kind=(int, float),
        mistakes={5.0: overlapped},
    )
