"""The checks of lesson 12: what goes in, what must come out, and what common mistakes would give instead."""

from helpers.exercises import Checks


def after_use(checks: Checks) -> None:
    """Which layers stay"""
    checks.returns("there is room", ([0, 1], 2, 3), expected=[0, 1, 2], kind=list)
    checks.returns(
        "the memory is full",
        ([0, 1, 2], 3, 3),
        expected=[1, 2, 3],
        kind=list,
        mistakes={
            (0, 1, 3): "The layer used longest ago leaves, which is the first of the list.",
            (0, 1, 2, 3): "There is room for three, so one layer has to leave.",
            (2, 3): "Only one layer has to leave.",
        },
    )
    checks.returns(
        "a layer that is in memory is used again",
        ([0, 1, 2], 0, 3),
        expected=[1, 2, 0],
        kind=list,
        mistakes={
            (
                0,
                1,
                2,
            ): "A layer that is in memory was just used as well, so it moves to the end.",
            (1, 2, 0, 0): "The layer is in memory only once.",
            (2, 0): "The layer was in memory already, so no other has to leave.",
        },
    )


def slowdown(checks: Checks) -> None:
    """The time with far bytes"""
    checks.returns(
        "half of the bytes come from a memory that is a tenth as fast",
        (0.5, 100.0, 10.0),
        expected=6.0,
        mistakes={
            5.5: "A far byte is fetched first and then used like the others, so its near time stays.",
            1.05: "The farther memory is the slower one, so divide the near rate by the far rate.",
            5.0: "This is the time of the far bytes alone, besides all other time.",
            0.5: "Divide the near rate by the far rate, and add the time of the near bytes.",
            11.0: "Only a share of the bytes is far.",
        },
    )
    checks.returns("nothing is far", (0.0, 936e9, 32e9), expected=1.0)


def offload_times(checks: Checks) -> None:
    """The times of a step"""
    checks.returns(
        "10 parameters and 3 tokens",
        (10, 3, 2.0, 5.0, 7.0),
        expected=[120.0, 4.0, 40.0, 4.0],
        call=_as_list,
        mistakes={
            (
                90.0,
                4.0,
                40.0,
                4.0,
            ): "Checkpointing repeats the forward pass, which makes 8 operations and not 6.",
            (120.0, 4.0, 20.0, 4.0): "Adam reads 14 bytes and writes 14 per parameter.",
            (120.0, 8.0, 40.0, 8.0): "Only 2 bytes of each parameter go one way.",
            (120.0, 4.0, 40.0): "The new parameters go back to the GPU, so return four times.",
        },
    )
    checks.returns(
        "on a faster GPU only the passes take less time",
        (10, 3, 4.0, 5.0, 7.0),
        expected=[60.0, 4.0, 40.0, 4.0],
        call=_as_list,
    )


def _as_list(function, *arguments):
    return [float(time_s) for time_s in function(*arguments)]


def largest_batch(checks: Checks) -> None:
    """The largest batch that is safe"""
    checks.returns(
        "two workers that keep 3 batches each ready, and items of 10 bytes",
        (1000, 10, 2, 3),
        expected=12,
        kind=int,
        mistakes={
            14: "Leave room for the batch that a fork may keep as well.",
            16: "Leave room for the batch in use and for the one that a fork may keep.",
            25: "Every worker keeps `prefetch_factor` batches ready, so multiply the two.",
            20: "Every worker keeps `prefetch_factor` batches ready, so multiply the two.",
            12.5: "Return an integer, since a batch has no half items.",
        },
    )
    checks.returns("too large for a single item", (50, 10, 2, 3), expected=0, kind=int)
