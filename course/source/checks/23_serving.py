"""The checks of lesson 23: what goes in, what must come out, and what common mistakes would give instead."""

import math

from helpers.exercises import Checks


def admit(checks: Checks) -> None:
    """Who joins the batch"""
    checks.returns(
        "two slots are free, and three requests wait",
        ([None, 7, None], [8, 9, 10]),
        expected=[8, 7, 9],
        kind=(list, tuple),
        unchanged=True,
        mistakes={
            (None, 7, None): "A request may join even if others are still running.",
            (8, 7, None): "Fill all free slots, and not only one.",
            (8, 9, 10): "A running request keeps its slot.",
            (9, 7, 8): "Nobody overtakes. The first one that waits takes the first free slot.",
            (8, 9, None): "Return all slots, also those in which nothing changes.",
            (8, 9): "Return all slots, also those in which nothing changes.",
        },
    )
    checks.returns(
        "one request waits for three free slots",
        ([None, None, 3, None], [5]),
        expected=[5, None, 3, None],
        kind=(list, tuple),
        mistakes={(5, 5, 3, 5): "A request takes a single slot."},
    )
    checks.returns(
        "no slot is free",
        ([4, 2], [5, 6]),
        expected=[4, 2],
        kind=(list, tuple),
        mistakes={(5, 6): "A running request keeps its slot."},
    )
    checks.returns(
        "request 0 is running, too",
        ([0, None], [1]),
        expected=[0, 1],
        kind=(list, tuple),
        mistakes={(1, None): "A slot is free if it is None. The number 0 is a request."},
    )


def plan(checks: Checks) -> None:
    """The tokens of the next step"""
    checks.returns(
        "requests that write take one token each",
        ([0, 0, 0], 16),
        expected=[1, 1, 1],
        kind=(list, tuple),
        unchanged=True,
        mistakes={
            (0, 0, 0): "A request whose prompt has been read takes one token, its next one."
        },
    )
    checks.returns(
        "a prompt takes what the others leave, wherever they are in the list",
        ([0, 2000, 0], 16),
        expected=[1, 14, 1],
        kind=(list, tuple),
        mistakes={
            (1, 2000, 1): "A step must not have more tokens than its budget.",
            (1, 16, 1): (
                "These are more tokens than the budget, because the requests that write also take one each."
            ),
            (1, 15, 1): (
                "These are more tokens than the budget. All requests that write come first, also those behind."
            ),
            (1, 15, 0): (
                "A prompt must not stop the others, so the requests that write come first, wherever they are."
            ),
            (1, 0, 1): "The rest of the budget goes to the prompt.",
        },
    )
    checks.returns(
        "a short prompt ends, and the next one begins in the same step",
        ([30, 0, 2000], 100),
        expected=[30, 1, 69],
        kind=(list, tuple),
        mistakes={
            (99, 1, 0): "A request cannot take more than is left of its prompt.",
            (30, 1, 0): "When a prompt ends, the rest of the budget goes to the next prompt.",
            (
                30,
                1,
                99,
            ): "Together these are more tokens than the budget, so subtract each piece.",
            (0, 1, 99): "Prompts are read in the order of the list.",
        },
    )
    checks.returns(
        "a prompt that finds no budget waits",
        ([2000, 2000], 64),
        expected=[64, 0],
        kind=(list, tuple),
        mistakes={
            (
                64,
                64,
            ): "Together these are more tokens than the budget, so subtract each piece.",
            (64,): "Give a number for every request, 0 for one that gets no token.",
            (32, 32): "Prompts are read one after the other, in the order of the list.",
        },
    )


def grow(checks: Checks) -> None:
    """A request takes pages"""
    checks.returns(
        "a new request of 20 tokens takes two pages of 16",
        ([], [4, 7, 9], 20, 16),
        call=_grown,
        expected=(True, 2, 1, "all pages are there once"),
        mistakes={
            (True, 1, 2, "all pages are there once"): (
                "The last page is only partly full and is needed all the same, so round up."
            ),
            (True, 2, 3, "a page is free and taken"): "Take the pages away from `free`.",
        },
    )
    checks.returns(
        "with 32 tokens its two pages are just full",
        ([7, 4], [9], 32, 16),
        call=_grown,
        expected=(True, 2, 1, "all pages are there once"),
        mistakes={
            (True, 3, 0, "all pages are there once"): (
                "32 tokens fill two pages of 16, so no third one is needed yet."
            ),
            (False, 2, 1, "all pages are there once"): (
                "The request has pages already, so it needs none. Count only those that it lacks."
            ),
        },
    )
    checks.returns(
        "the 33rd token needs a third page",
        ([7, 4], [9, 1], 33, 16),
        call=_grown,
        expected=(True, 3, 1, "all pages are there once"),
        mistakes={
            (False, 2, 2, "all pages are there once"): (
                "The request has pages already. Count only those that it lacks."
            ),
            (True, 2, 2, "all pages are there once"): (
                "The last page is only partly full and is needed all the same, so round up."
            ),
        },
    )
    checks.returns(
        "too few pages are free",
        ([7], [9], 80, 16),
        call=_grown,
        expected=(False, 1, 1, "all pages are there once"),
        mistakes={
            (False, 2, 0, "all pages are there once"): (
                "If there are too few pages, leave both lists as they were. Another request may need this one."
            ),
            (
                True,
                2,
                0,
                "all pages are there once",
            ): "Return False if there are too few pages.",
        },
    )
    checks.returns(
        "the pages that it has already keep their order",
        ([7, 4], [9], 40, 16),
        call=lambda function, table, *rest: (function(table, *rest), table[:2])[1],
        expected=[7, 4],
        mistakes={(9, 7): "Put new pages behind those that the request has already."},
    )


def _grown(function, table, free, tokens, page_tokens):
    """Return the answer, the pages in both lists, and whether each page is still in exactly one of them."""
    before = sorted(table + free)
    answer = function(table, free, tokens, page_tokens)
    both = sorted(table + free)
    if both == before:
        said = "all pages are there once"
    else:
        said = "a page is free and taken" if len(both) > len(before) else "a page is lost"
    return answer, len(table), len(free), said


def release(checks: Checks) -> None:
    """A request gives its pages back"""
    checks.returns(
        "the pages of the request are free again",
        ([4, 7], [9]),
        call=lambda function, table, free: (function(table, free), sorted(free))[1],
        expected=[4, 7, 9],
        mistakes={
            (9,): "Nobody can use these pages again, because they are not in `free`.",
        },
    )
    checks.returns(
        "and its table is empty",
        ([4, 7], [9]),
        call=lambda function, table, free: (function(table, free), table)[1],
        expected=[],
        mistakes={
            (4, 7): (
                "The table of the caller still names pages that are free now. Empty the list itself, because "
                "`table = []` only puts a new list in place of the table inside your function."
            )
        },
    )


def good_share(checks: Checks) -> None:
    """The share that keeps the promise"""
    checks.returns(
        "of four requests one is late and one is slow",
        ([0.2, 0.9, 0.2, 0.3], [0.010, 0.010, 0.045, 0.020], 0.5, 0.030),
        expected=0.5,
        kind=(int, float),
        mistakes={
            1.0: "A request must keep both limits, and not only one of them.",
            0.75: "A request must keep both limits, and not only one of them.",
            2: "Return the share of the requests, and not their number.",
        },
    )
    checks.returns(
        "a limit is kept if it is just reached",
        ([0.5, 0.9], [0.030, 0.010], 0.5, 0.030),
        expected=0.5,
        kind=(int, float),
    )
    checks.returns(
        "a request that was refused breaks the promise",
        ([0.2, 0.1, math.inf, 0.3], [0.010, 0.020, math.inf, 0.020], 0.5, 0.030),
        expected=0.75,
        kind=(int, float),
        mistakes={
            1.0: "A request that was refused got no answer, so its promise was not kept. Count it, too.",
            3: "Return the share of the requests, and not their number.",
        },
    )
