"""The checks of lesson 07: what goes in, what must come out, and what common mistakes would give instead."""

from helpers.exercises import Checks
from helpers.studies import two_levels


def hierarchical_all_reduce(checks: Checks, ranks) -> None:
    """A sum in two levels on four processes"""

    def sums(function, elements):
        return [
            (row.elements, row.smallest, row.largest)
            for row in two_levels.sum_on_ranks(ranks, function, elements)
        ]

    def sent(function, elements):
        return [
            (row.inside_bytes, row.outside_bytes)
            for row in two_levels.sum_on_ranks(ranks, function, elements)
        ]

    checks.returns(
        "all four have 1,111 in each of 8 elements",
        (8,),
        call=sums,
        expected=[(8, 1111.0, 1111.0)] * 4,
        mistakes={
            ((8, 11.0, 11.0),) * 2
            + ((8, 1100.0, 1100.0),) * 2: "Only the sum of its own node "
            "is there. Add up the shares of all nodes with outside.all_reduce.",
            ((4, 1111.0, 1111.0),)
            * 4: "Each has only its share. Let inside.all_gather put the shares together.",
        },
    )
    checks.returns(
        "32 bytes are sent inside the node, and 16 outside",
        (8,),
        call=sent,
        expected=[(32, 16)] * 4,
        mistakes={
            ((32, 32),)
            * 4: "The sum is right, but the whole tensor leaves the node. Begin with "
            "inside.reduce_scatter, so that each carries only its share out.",
            ((16, 32),)
            * 4: "The sum is right, but most bytes leave the node. Exchange the two rings.",
        },
    )


def inside_s(checks: Checks) -> None:
    """The seconds inside a node"""
    checks.returns(
        "8 GB on eight GPUs at 700 GB/s take 20 ms",
        (8e9, 8, 700e9),
        expected=0.02,
        kind=(int, float),
        mistakes={
            0.01: "That is the reduce-scatter. There is an all-gather as well.",
            2 * 8e9 / 700e9: "A GPU keeps its own share, so it sends only 7 of 8.",
        },
    )
    checks.returns(
        "on one GPU there is nothing to send", (8e9, 1, 700e9), expected=0, kind=(int, float)
    )


def outside_s(checks: Checks) -> None:
    """The seconds of a port"""
    checks.returns(
        "8 GB on four nodes of eight GPUs take 30 ms at 50 GB/s",
        (8e9, 8, 4, 50e9),
        expected=0.03,
        kind=(int, float),
        mistakes={
            0.24: "A GPU carries only its own share out, an eighth of the tensor.",
            0.03875: "The ring outside has as many members as there are nodes.",
            0.015: "An all-reduce sends twice, for the sum and for the copies.",
        },
    )
    checks.returns(
        "on one node there is nothing to send",
        (8e9, 8, 1, 50e9),
        expected=0,
        kind=(int, float),
    )


def port_rate(checks: Checks) -> None:
    """The rate of a port from a bus bandwidth"""
    checks.returns(
        "two nodes of eight GPUs with 300 GB/s have 20 GB/s per port",
        (300e9, 8, 2),
        expected=20e9,
        kind=(int, float),
        mistakes={
            37.5e9: "This is the rate if as many rings ran as a node has GPUs.",
            18.75e9: "One less than all GPUs is below the line, because a ring of R sends R − 1.",
        },
    )
    checks.returns(
        "four nodes of eight GPUs with 310 GB/s have 30 GB/s per port",
        (310e9, 8, 4),
        expected=30e9,
        kind=(int, float),
    )


def all_to_all_s(checks: Checks) -> None:
    """The seconds of an all-to-all"""
    checks.returns(
        "32 GB on four nodes of eight GPUs take 0.4 s at 60 GB/s per port",
        (32e9, 8, 4, 700e9, 60e9),
        expected=0.4,
        kind=(int, float),
        mistakes={
            0.41: "Both links work at the same time, so the slower one decides.",
            0.05: "Nothing is added up, so a port carries the pieces for all GPUs of the others.",
        },
    )
    checks.returns(
        "in one node the link inside decides",
        (8e9, 8, 1, 700e9, 60e9),
        expected=0.01,
        kind=(int, float),
        mistakes={0.0: "In one node the pieces still go through the link inside."},
    )
    checks.returns(
        "on four nodes a slow link inside decides",
        (32e9, 8, 4, 10e9, 60e9),
        expected=0.7,
        kind=(int, float),
        mistakes={2.8: "A piece is the bytes over all GPUs, and not over those of a node."},
    )
