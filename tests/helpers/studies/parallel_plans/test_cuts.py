"""Three cuts of a model: the blocks that are cut, a pipeline drawn over time, and the times of a
step.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from helpers import plotting
from helpers.studies import parallel_plans


def test_blocks_compute_what_their_matrices_say():
    torch.manual_seed(0)
    blocks = parallel_plans.make_blocks(2, 3, 5)
    x = torch.randn(4, 3)
    expected = x
    for block in blocks:
        hidden = (expected @ block.up.weight.T + block.up.bias).clamp(min=0)  # (4, 5)
        expected = hidden @ block.down.weight.T + block.down.bias
    assert torch.allclose(blocks(x), expected, atol=1e-6)


def test_blocks_have_a_plan_and_may_be_without_values():
    with torch.device("meta"):
        blocks = parallel_plans.make_blocks(8, 4096, 16_384)
    assert sum(parameter.numel() for parameter in blocks.parameters()) == 8 * (
        2 * 4096 * 16_384 + 4096 + 16_384
    )
    assert set(parallel_plans.tensor_plan(blocks)) == {
        f"{n}.{name}" for n in range(8) for name in ("up", "down")
    }
    assert all(
        isinstance(block, nn.Sequential) and parameter.is_meta
        for block in blocks
        for parameter in block.parameters()
    )


@pytest.mark.parametrize("microbatches", [1, 2, 4, 16])
def test_a_drawn_pipeline_waits_as_long_as_the_paper_says(microbatches):
    """GPipe (Huang and others, 2019): K - 1 of M + K - 1 turns pass in the bubble of K stages and M
    microbatches.
    """
    [axes] = parallel_plans.draw_schedule("gpipe", microbatches=microbatches).axes
    bars = [patch for patch in axes.patches if patch.get_width() > 0]
    end = max(bar.get_x() + bar.get_width() for bar in bars)
    busy = sum(bar.get_width() for bar in bars) / 4
    assert busy == pytest.approx(0.3)
    assert 1 - busy / end == pytest.approx(3 / (microbatches + 3))
    assert axes.get_title(loc="left").endswith(f"waiting {300 / microbatches:.4g}% of computing")


def test_lanes_say_how_many_microbatches_are_saved():
    """1F1B: as many as stages are left, counted from the stage itself (Narayanan and others,
    2021).
    """

    def lanes(schedule):
        [axes] = parallel_plans.draw_schedule(schedule, microbatches=8).axes
        return [label.get_text() for label in axes.get_yticklabels()]

    assert lanes("1f1b") == ["GPU 0, saves 4", "GPU 1, saves 3", "GPU 2, saves 2", "GPU 3, saves 1"]
    assert lanes("gpipe") == [f"GPU {gpu}, saves 8" for gpu in range(4)]


def test_an_interleaved_gpu_has_two_stages_and_half_of_the_waiting():
    [axes] = parallel_plans.draw_schedule(
        "interleaved", microbatches=4, chunks=2, until_s=0.55, title="t"
    ).axes
    bars = [patch for patch in axes.patches if patch.get_width() > 0]
    assert max(bar.get_x() + bar.get_width() for bar in bars) == pytest.approx(0.3 * (1 + 3 / 8))
    assert (len(bars), axes.get_xlim()[1], axes.get_title(loc="left")) == (4 * 4 * 2 * 2, 0.55, "t")


STEP = {"computing": 0.86, "waiting": 0.38, "sending": 0.02}


def test_the_bars_of_a_step_follow_one_another():
    [axes] = parallel_plans.draw_step_times(
        {"pipeline": STEP, "FSDP": STEP | {"waiting": 0.0}}
    ).axes
    bars = [
        (round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width())
        for bar in axes.patches
        if bar.get_width() > 0
    ]
    expected = [(0, 0.0, 0.86), (0, 0.86, 0.38), (0, 1.24, 0.02), (1, 0.0, 0.86), (1, 0.86, 0.02)]
    assert bars == [
        (lane, pytest.approx(start), pytest.approx(width)) for lane, start, width in expected
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "pipeline: 1.26 s",
        "FSDP: 0.88 s",
    ]


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ({"pipeline": {"computing": 1.0}}, "give computing, waiting, sending"),
        ({"pipeline": STEP | {"waiting": -1.0}}, "waiting"),
    ],
)
def test_a_step_without_its_parts_is_refused(steps, problem):
    with pytest.raises(ValueError, match=problem):
        parallel_plans.draw_step_times(steps)


def turned(monkeypatch):
    figure: dict = {}
    monkeypatch.setattr(plotting, "explore", lambda **arguments: figure.update(arguments))
    parallel_plans.explore_cuts()
    menu, slider = figure["inputs"]

    def at(link: str, sequences: int) -> dict[str, float]:
        values = {"link": type("Link", (), dict(menu.options[link])), "sequences": sequences}
        for name, formula in figure["formulas"].items():
            values[name] = eval(formula, values)
        return values

    return list(menu.options), slider.values, at


def test_the_figure_to_turn_has_the_crossings_of_the_lesson(monkeypatch):
    """By hand: tensor parallel sends 4 sums of 8,192 bytes per layer, 2 x 7/8 of each, and FSDP 3 x
    7/8 of 14 GB.
    """
    (fast, slow), sequences, at = turned(monkeypatch)
    sums = 4 * 32 * 8192 * 14 / 8
    for link, bandwidth in ((fast, 450e9), (slow, 50e9)):
        for number in sequences:
            tokens, values = 4096 * number, at(link, number)
            computing = 6 * 7e9 * tokens / 8 / 400e12
            assert values["tensor"] == pytest.approx(1 + sums * tokens / bandwidth / computing)
            assert values["fsdp"] == pytest.approx(1 + 36.75e9 / bandwidth / computing)
            assert values["pipeline"] == pytest.approx(
                1 + 7 / number + 16_384 * tokens / bandwidth / computing
            )
            assert (values["fsdp"] < values["tensor"]) == (tokens > math.floor(36.75e9 / sums))
    wins = [
        number for number in sequences if at(fast, number)["pipeline"] < at(fast, number)["tensor"]
    ]
    assert wins == [number for number in sequences if number >= 23]  # 7 / 23 is less than 31 %


def test_the_figure_to_turn_is_displayed(capsys):
    parallel_plans.explore_cuts()
    assert "Time of a step relative to its computing" in capsys.readouterr().out
