"""The drawing of a systolic array: what stands where follows from the skew, and nothing but that
changes.
"""

from __future__ import annotations

import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from drawing_samples import overlapping, settle
from matplotlib.colors import to_hex
from matplotlib.text import Text

from helpers import plotting
from helpers.studies.simulators import systolic
from helpers.studies.simulators.systolic import figures as array

LABEL = re.compile(r"[abc]\d+,?\d+")
DATAFLOWS = ("weight", "output", "input")


def simulated(m, n, k, rows, columns, dataflow="weight", **options):
    random = np.random.default_rng(m + n + k)
    a, b = random.integers(-9, 10, (m, k)), random.integers(-9, 10, (k, n))
    return systolic.simulate(
        a, b, rows=rows, columns=columns, dataflow=dataflow, frames=True, **options
    )


def texts(drawn) -> list[str]:
    return [text.get_text() for text in drawn.axes[0].texts]


def labels(drawn, view, where: str) -> list[tuple[str, float, float]]:
    """Return the labels inside or at an edge, each with the inches from the edge to its middle, and
    along the edge.
    """
    found = []
    for text in drawn.axes[0].texts:
        x, y = text.get_position()
        inside = view.left <= x <= view.right and view.top <= y <= view.bottom
        at = (
            "inside" if inside else "left" if x < view.left else "top" if y < view.top else "bottom"
        )
        if at == where and LABEL.fullmatch(text.get_text()):
            away = {
                "inside": 0.0,
                "left": view.left - x,
                "top": view.top - y,
                "bottom": y - view.bottom,
            }[at]
            found.append((text.get_text(), away, y if at == "left" else x))
    return found


def colours(drawn) -> list[str]:
    return [to_hex(patch.get_facecolor()).upper() for patch in drawn.axes[0].patches]


@pytest.mark.parametrize("cycle", range(14))
def test_operands_stand_in_the_elements_where_the_skew_puts_them(cycle):
    """Weights loaded in 4 cycles; then row i of a meets element (r, c) in cycle 4 + i + r + c:
    Kung's wavefront.
    """
    run = simulated(4, 4, 4, 4, 4)
    drawn = systolic.draw_array(run, cycle)
    met = [
        (cycle - 4 - r - c, r, c) for r in range(4) for c in range(4) if 0 <= cycle - 4 - r - c < 4
    ]
    written = [label for label, *_ in labels(drawn, array._View(run), "inside")]
    assert sorted(label for label in written if label[0] == "a") == sorted(
        f"a{i}{r}" for i, r, _ in met
    )
    assert sorted(label for label in written if label[0] == "c") == sorted(
        f"c{i}{c}" for i, _, c in met
    )
    assert colours(drawn).count(plotting.COLOURS["computing"]) == len(met) + 1  # and the key's


@pytest.mark.parametrize("dataflow", ["weight", "input"])
def test_a_loaded_tile_stays_until_the_next_is_loaded(dataflow):
    run = simulated(4, 4, 8, 4, 4, dataflow)
    name, across = ("b", run.n) if dataflow == "weight" else ("a", run.m)
    for frame in run.frames:
        if frame.phase == "compute":
            drawn = systolic.draw_array(run, frame.cycle)
            inside = [
                label for label, *_ in labels(drawn, array._View(run), "inside") if label[0] == name
            ]
            tile = [
                (kk, j) for kk in range(4 * frame.fold, 4 * frame.fold + 4) for j in range(across)
            ]
            assert sorted(inside) == sorted(
                f"b{kk}{j}" if name == "b" else f"a{j}{kk}" for kk, j in tile
            )
            plt.close(drawn)


def test_waiting_operands_stand_in_a_staircase():
    run = simulated(3, 3, 3, 3, 3)
    view = array._View(run)
    places = {
        label: round((away - view.room) / view.place[0] + 0.5)
        for label, away, _ in labels(systolic.draw_array(run, 2), view, "left")
    }
    assert places == {f"a{i}{r}": 1 + i + r for i in range(3) for r in range(3)}
    run = simulated(3, 3, 3, 3, 3, "output")
    view = array._View(run)
    places = {
        label: round((away - view.room) / view.place[1] + 0.5)
        for label, away, _ in labels(systolic.draw_array(run, 0), view, "top")
    }
    assert places == {f"b{kk}{c}": kk + c for kk in range(3) for c in range(3) if kk + c}


@pytest.mark.parametrize("dataflow", DATAFLOWS)
@pytest.mark.parametrize("shape", [(4, 4, 4, 4, 4), (3, 5, 7, 4, 4)])
def test_what_is_nearest_to_an_edge_enters_or_has_just_left(shape, dataflow):
    run = simulated(*shape, dataflow)
    view = array._View(run)
    left, nearest = [], {}
    for cycle in range(run.cycles):
        drawn = systolic.draw_array(run, cycle)
        inside = {label for label, *_ in labels(drawn, view, "inside")}
        assert set(nearest) <= inside
        nearest = {}
        for edge, step in (("left", view.place[0]), ("top", view.place[1])):
            found = [
                (label, along)
                for label, away, along in labels(drawn, view, edge)
                if away < view.room + step
            ]
            nearest |= dict(found)
        left += [
            label
            for label, away, _ in labels(drawn, view, "bottom")
            if away < view.room + view.place[1]
        ]
        plt.close(drawn)
    last = [f"c{place // run.n}{place % run.n}" for place in run.frames[-1].sums[-1] if place >= 0]
    folds_of_k = 1 if dataflow == "output" else -(-run.k // run.rows)
    assert sorted(left + last) == sorted(
        f"c{i}{j}" for i in range(run.m) for j in range(run.n) for _ in range(folds_of_k)
    )


@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_every_cycle_has_one_view(dataflow):
    run = simulated(3, 5, 7, 4, 4, dataflow)
    views, elements = set(), set()
    for cycle in range(0, run.cycles, 3):
        drawn = systolic.draw_array(run, cycle)
        axes = drawn.axes[0]
        views.add((*drawn.get_size_inches(), *axes.get_xlim(), *axes.get_ylim()))
        extents = [patch.get_extents().bounds for patch in axes.patches]
        elements.add(tuple(bounds for bounds in extents if bounds[3] > 40))
        plt.close(drawn)
    assert len(views) == 1
    assert len(elements) == 1
    assert len(elements.pop()) == 16


DRAWINGS = {
    **{
        f"{dataflow}, cycle {cycle}": (
            lambda dataflow=dataflow, cycle=cycle: systolic.draw_array(
                simulated(4, 4, 4, 4, 4, dataflow), cycle
            )
        )
        for dataflow in DATAFLOWS
        for cycle in (0, 3, 8, 12)
    },
    **{
        f"partial tiles, {dataflow}": (
            lambda dataflow=dataflow: systolic.draw_array(
                simulated(3, 5, 7, 4, 4, dataflow), 9, title="3 x 7 by 7 x 5"
            )
        )
        for dataflow in DATAFLOWS
    },
    "eight by eight": lambda: systolic.draw_array(simulated(12, 11, 15, 8, 8), 25),
    "eight by eight, outputs stay": lambda: systolic.draw_array(
        simulated(8, 8, 8, 8, 8, "output"), 9
    ),
    "one column": lambda: systolic.draw_array(
        simulated(12, 1, 4, 4, 1), 8, title="a matrix by a vector"
    ),
    "one row": lambda: systolic.draw_array(simulated(1, 4, 4, 4, 4, "output"), 3),
    "one element": lambda: systolic.draw_array(simulated(1, 1, 1, 1, 1), 0),
    "double buffered": lambda: systolic.draw_array(
        simulated(4, 8, 8, 4, 4, double_buffered=True), 12
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_texts_stand_on_the_paper_and_not_on_one_another(name):
    drawn = DRAWINGS[name]()
    settle(drawn)
    written = [
        text for text in drawn.axes[0].get_children() if isinstance(text, Text) and text.get_text()
    ]
    assert overlapping(written) == []
    for text in written:
        extent = text.get_window_extent()
        assert (
            min(extent.x0, extent.y0, drawn.bbox.x1 - extent.x1, drawn.bbox.y1 - extent.y1) >= 0
        ), text.get_text()
    assert min(text.get_fontsize() for text in written) >= 9


@pytest.mark.parametrize(
    ("dataflow", "moved"),
    # loaded row by row; the wavefront's inputs, and the sums but those born in the first row;
    # outputs that drain
    [
        ("weight", {0: 4, 1: 8, 3: 16, 4: 1, 5: 3 + 1, 6: 6 + 3}),
        ("output", {0: 2, 1: 6, 9: 2, 10: 0, 11: 12, 13: 4}),
    ],
)
def test_a_triangle_stands_for_each_move(dataflow, moved):
    run = simulated(4, 4, 4, 4, 4, dataflow)
    orange = {
        cycle: colours(systolic.draw_array(run, cycle)).count(plotting.COLOURS["sending"])
        for cycle in moved
    }
    assert {cycle: count - 1 for cycle, count in orange.items()} == moved  # one is the key's


def test_more_than_fits_is_hinted_at():
    run = simulated(12, 4, 4, 4, 4)
    assert texts(systolic.draw_array(run, 4)).count("...") == 4
    assert "..." not in texts(systolic.draw_array(simulated(3, 4, 4, 4, 4), 4))


def test_the_title_counts_what_is_at_work():
    run = simulated(3, 5, 7, 4, 4)
    drawn = systolic.draw_array(run, 8, title="ours")
    title = drawn.axes[0].get_title(loc="left")
    assert (
        title == f"ours: Cycle 8 of 0 to {run.cycles - 1}, compute: {run.active[8]} of 16 at work"
    )
    assert "tile 1 of 4" in " ".join(texts(drawn))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda run: systolic.draw_array(5, 0), TypeError, "run=5 is an int; give a run"),
        (
            lambda run: systolic.draw_array(simulated(3, 3, 3, 9, 2), 0),
            ValueError,
            "an array of 9 x 2 are too small to write in; give one of at most 8 x 8",
        ),
        (
            lambda run: systolic.draw_array(run, 14),
            ValueError,
            "cycle=14 is too large; give a whole number, 0 to 13",
        ),
        (lambda run: systolic.draw_array(run, -1), ValueError, "cycle=-1 is too small"),
        (lambda run: systolic.draw_array(run, 1.5), TypeError, "cycle=1.5 is a float"),
        (
            lambda run: systolic.draw_array(systolic.simulate([[1]], [[1]], rows=1, columns=1), 0),
            ValueError,
            "simulate it with frames=True",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call(simulated(4, 4, 4, 4, 4))
