"""The checks of lesson 00: what goes in, what must come out, and what common mistakes would give instead."""

import statistics

from helpers.exercises import Checks, FakeMachine

_CALLS_S = (1.0, 0.002, 0.003, 0.004, 0.5, 0.006, 0.007, 0.008, 0.009, 0.01, 0.011)


def cold_and_warm(checks: Checks) -> None:
    """Cold and warm"""
    mistakes = {
        (1.0, statistics.mean(_CALLS_S[1:10])): (
            "That is the mean of the later calls, which one disturbed call moves. Take their median."
        ),
        (
            1.0,
            statistics.median(_CALLS_S[:10]),
        ): "The first call is among the later ones. Leave it out of the median.",
        (1.0, 0.002): "That is the fastest of the later calls. Take their median.",
        (0.002, 0.008): "The first call is lost, because nothing times it. Time it too.",
    }
    for count, expected in ((9, 0.007), (3, 0.003)):
        machine = _machine()
        checks.returns(
            f"{count} later calls",
            (machine.function("product"), machine.clock, count),
            expected=(1.0, expected),
            kind=(tuple, list),
            mistakes=mistakes,
        )
    checks.holds(
        "each call is timed alone",
        len(machine.timed) == 4,
        otherwise="Read the clock just before each call and just after it, so that nothing else is timed.",
    )
    for place, what in enumerate(("first", "median")):
        machine = _machine()
        checks.returns(
            f"the {what} is a number, which the cells below print",
            (machine.function("product"), machine.clock, 3),
            call=lambda function, *given, place=place: function(*given)[place],
            expected=(1.0, 0.003)[place],
            kind=(int, float),
        )


def _machine() -> FakeMachine:
    return FakeMachine(lambda _name, nth, _total: _CALLS_S[min(nth, 10)])


def modelled_s(checks: Checks) -> None:
    """The longer of two times"""
    upside_down = "Time is work divided by rate, and you divide the rate by the work."
    mistakes = {
        5.0: "You add the two times, but data and arithmetic go on at the same time.",
        2.0: "The longer one decides, and you return the shorter one.",
        0.5: upside_down,
        1 / 3: upside_down,
    }
    for sentence, given in (
        (
            "300 bytes at 100 per second take longer than 40 operations at 20",
            (300, 40, 100, 20),
        ),
        (
            "600 operations at 200 per second take longer than 30 bytes at 15",
            (30, 600, 15, 200),
        ),
    ):
        checks.returns(sentence, given, expected=3.0, kind=(int, float), mistakes=mistakes)


def estimate_s(checks: Checks) -> None:
    """From two runs a third"""
    checks.returns(
        "six epochs, from runs of one epoch in 5 s and three in 9 s",
        ((1, 5.0), (3, 9.0), 6),
        expected=15.0,
        kind=(int, float),
        mistakes={
            30.0: "That is six times the run of one epoch, which pays its start six times.",
            18.0: "That is twice the run of three epochs, which pays its start twice.",
            12.0: "Those are the epochs alone, but the start is paid once.",
        },
    )
    checks.returns(
        "five epochs, from runs of two epochs in 10 s and four in 18 s",
        ((2, 10.0), (4, 18.0), 5),
        expected=22.0,
        kind=(int, float),
        mistakes={
            26.0: "Subtract all epochs of the short run, because it may have more than one."
        },
    )
