"""The drawings of lesson 04 show the numbers of their results, at the places where these belong."""

from __future__ import annotations

import pytest
from drawing_samples import overlapping, settle
from matplotlib.colors import to_hex

from helpers.studies import sgd_parallelism
from helpers.studies.sgd_parallelism._ensembles import Crossover, CrossoverPoint
from helpers.studies.sgd_parallelism._within_layer import ThreadPoint, ThreadSweep
from helpers.studies.sgd_parallelism.figures._results import (
    draw_crossover,
    draw_limits,
    draw_speedup,
    draw_split,
)

GREY = "#dddddd"


def areas(axes) -> dict[str, float]:
    """Return the drawn area of each colour."""
    found: dict[str, float] = {}
    for patch in axes.patches:
        colour = to_hex(patch.get_facecolor())
        found[colour] = found.get(colour, 0.0) + patch.get_width() * patch.get_height()
    return found


@pytest.mark.parametrize("by", ["rows", "columns", "inner"])
def test_areas_of_a_split_are_the_bytes_of_its_parts(by):
    split = sgd_parallelism.model_split(4, 6, 8, by=by, parts=2)
    drawn = draw_split(split)
    settle(drawn)
    shown = areas(drawn.axes[0])
    shared = {"rows": split.k * split.n, "columns": split.m * split.k, "inner": 0}[by]
    assert shown.get(GREY, 0.0) * 64 == pytest.approx(shared)
    for part, colour in enumerate(("#0072b2", "#e69f00")):
        work = split.work[part]
        own = (work.a_bytes + work.b_bytes + work.output_bytes) / 4 - shared
        assert shown[colour] * 64 == pytest.approx(own)
    assert overlapping([*drawn.axes[0].texts, drawn.axes[0]._left_title]) == []


def test_inner_split_draws_a_whole_term_for_each_part():
    split = sgd_parallelism.model_split(4, 6, 8, by="inner", parts=3)
    words = [text.get_text() for text in draw_split(split).axes[0].texts]
    assert [word for word in words if word.startswith("term")] == ["term 0", "term 1", "term 2"]
    assert words.count("+") == 2
    whole = [
        text.get_text()
        for text in draw_split(sgd_parallelism.model_split(4, 6, 8, by="rows", parts=3))
        .axes[0]
        .texts
    ]
    assert "output" in whole
    assert "+" not in whole
    with pytest.raises(ValueError, match="at most 6"):
        draw_split(sgd_parallelism.model_split(8, 8, 8, by="rows", parts=7))


def test_limits_stand_at_delay_plus_one():
    drawn = draw_limits([0, 1, 4], [2, 1, 0.35], [1.9, 1, 0.34])
    settle(drawn)
    axes = drawn.axes[0]
    assert [list(line.get_xdata()) for line in axes.lines] == [[1, 2, 5]] * 2
    assert list(axes.lines[1].get_ydata()) == [1.9, 1, 0.34]
    # a made-up descent, no clock
    assert [line.get_label() for line in axes.lines] == ["modelled", "simulated"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "4"]
    with pytest.raises(ValueError, match="give equally many"):
        draw_limits([0, 1], [2, 1], [1.9])


def point(
    hidden: int, stacked: float, modelled: float | None, processes: float | None
) -> CrossoverPoint:
    return CrossoverPoint(
        8,
        hidden,
        32,
        1.0,
        stacked,
        stacked,
        stacked,
        stacked,
        "faster",
        True,
        modelled,
        processes,
        processes,
    )


def test_crossover_draws_what_there_is():
    points = (point(16, 0.2, 0.1, 0.9), point(256, 1.2, 0.9, 0.6))
    axes = draw_crossover(Crossover("cpu", 1, points)).axes[0]
    curves = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert curves == {
        "stacked, modelled": [0.1, 0.9],
        "stacked, measured": [0.2, 1.2],
        "processes, measured": [0.9, 0.6],
        "the loop": [1, 1],
    }
    bare = draw_crossover(Crossover("cpu", 1, (point(16, 0.2, None, None),))).axes[0]
    assert [line.get_label() for line in bare.lines] == ["stacked, measured", "the loop"]
    with pytest.raises(ValueError, match="no sizes"):
        draw_crossover(Crossover("cpu", 1, ()))


def test_speedup_has_the_perfect_line():
    points = tuple(
        ThreadPoint(threads, 1.0, 1.0, speedup, 1.0, True, "")
        for threads, speedup in ((1, 1), (2, 1.7))
    )
    drawn = draw_speedup([ThreadSweep("64 rows", 2, True, points)])
    settle(drawn)
    axes = drawn.axes[0]
    assert {line.get_label(): list(line.get_ydata()) for line in axes.lines} == {
        "perfect": [1, 2],
        "64 rows": [1, 1.7],
    }
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2"]
    with pytest.raises(ValueError, match="at least one sweep"):
        draw_speedup([])
