"""Drawings of a server: what they show is what was served."""

from __future__ import annotations

from collections import Counter

import pytest
from drawing_samples import overlapping, settle
from matplotlib.patches import Rectangle

from helpers import plotting
from helpers.studies import decoding, serving
from helpers.studies.serving import Batch, Request
from tests.explored import at

H100 = serving.gpu_step(
    decoding.CONFIGS["Llama 3 8B"], bandwidth_bytes_per_s=3.35e12, flops_per_s=400e12
)


def a_second_a_token(batch: Batch) -> float:
    return float(sum(batch.tokens))


def reports():
    requests = [Request(0, 4, 6), Request(0, 4, 2), Request(1, 4, 3), Request(60, 4, 3)]
    static = serving.serve(
        requests, a_second_a_token, slots=2, admit=serving.admit_static, plan=serving.read_together
    )
    return {"static": static, "continuous": serving.serve(requests, a_second_a_token, slots=2)}


def bars(figure):
    return [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in figure.axes[0].patches]


def fields(figure):
    return [patch for patch in figure.axes[0].patches if type(patch) is Rectangle]


def test_slots_are_drawn_as_they_were_used_and_frames_grow():
    given = reports()
    figure = serving.draw_slots(given, title="Slots")
    lanes = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert lanes == [f"{name}, slot {slot}" for name in given for slot in (1, 2)]
    expected = sorted(
        part
        for report in given.values()
        for served in report.requests
        for _, begin, end in served.stays
        for part in ((begin, served.token_s[0]), (served.token_s[0], end))
    )
    assert sorted(bars(figure)) == [pytest.approx(part) for part in expected]
    frames = serving.slot_frames(given, title="Slots", count=4)
    assert len({tuple(frame.get_size_inches()) for frame in frames}) == 1
    drawn = [sum(end - begin for begin, end in bars(frame)) for frame in frames]
    assert drawn == sorted(drawn)
    assert drawn[-1] == pytest.approx(sum(end - begin for begin, end in bars(figure)))
    assert drawn[0] < drawn[-1]


def test_the_load_is_drawn_from_the_reports():
    report = reports()["continuous"]
    figure = serving.draw_load(
        {"all": {1.0: report, 2.0: report}}, ttft_limit_s=5, tpot_limit_s=3, title="Load"
    )
    share = serving.good_share(report.ttfts_s, report.tpots_s, 5, 3)
    written, first, kept = (axes.lines[0].get_ydata().tolist() for axes in figure.axes)
    assert written == [report.tokens_per_s] * 2
    assert first == [report.median_ttft_s] * 2
    assert kept == [share, 2 * share]


@pytest.mark.parametrize(
    "drawn",
    [
        lambda: serving.draw_pages(
            {
                "request A": [3, 7, 0, 5],
                "request B": [3, 7, 11],
                "request C": [3, 7, 2, 9, 10],
                "request D": [23],
            },
            {"request A": 58, "request B": 41, "request C": 79, "request D": 16},
            pages=24,
            page_tokens=16,
            common=[3, 7],
        ),
        lambda: serving.draw_ragged_step(
            Batch([0, 1, 2, 3], [23, 0, 15, 7], [1, 9, 1, 1], [()] * 4)
        ),
    ],
)
def test_texts_of_the_largest_drawings_do_not_meet(drawn):
    figure = drawn()
    settle(figure)
    assert overlapping(figure.axes[0].texts) == []
    paper = figure.bbox
    assert all(
        paper.contains(*corner)
        for text in figure.axes[0].texts
        for corner in text.get_window_extent().corners()
    )


def test_pages_are_filled_as_far_as_there_are_tokens():
    figure = serving.draw_pages(
        {"A": [2, 0], "B": [2, 3]}, {"A": 7, "B": 5}, pages=4, page_tokens=4, common=[2]
    )
    coloured = Counter(field.get_facecolor() for field in fields(figure))
    assert sorted(coloured.values()) == [1, 3, 4, 4, 8]  # B's, A's, common, frames of pages, empty


def test_a_step_is_drawn_with_a_row_a_token():
    figure = serving.draw_ragged_step(Batch([4, 9], [3, 0], [1, 4], [(), ()]))
    assert len(fields(figure)) == 5 + 4 + 4  # tokens, and the fields of both caches
    # the second has nothing in its cache yet
    assert len({field.get_facecolor() for field in fields(figure)}) == 4 - 1


def test_the_figure_to_turn_is_what_a_request_costs(monkeypatch):
    explored = {}
    monkeypatch.setattr(plotting, "explore", lambda **given: explored.update(given))
    serving.explore_request()
    inputs, formulas = explored["inputs"], explored["formulas"]
    for setting, expected in (
        ({}, H100.request_s(2000, 250, batch=64, spread=True)),
        (
            {"kept": 0.75, "batch": 256},
            H100.request_s(2000, 250, kept=1500, batch=256, spread=True),
        ),
        (
            {"prompt": 100, "answer": 1000, "batch": 1},
            H100.request_s(100, 1000, batch=1, spread=True),
        ),
    ):
        values = at(inputs, formulas, **setting)
        assert values["reading"] + values["weights"] + values["caches"] == pytest.approx(
            1e3 * expected
        )
