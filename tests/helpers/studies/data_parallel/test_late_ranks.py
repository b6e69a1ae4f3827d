"""Steps of ranks that sleep, of which one is late: what is recorded, how long a step is, and who
waits for whom.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from torch import nn

from helpers.links import Activity, Link
from helpers.plotting.explorer import _explore as explorer
from helpers.studies import data_parallel
from helpers.studies.data_parallel import RankSteps, figures

LINK = Link(bandwidth_bytes_per_s=10e6, latency_s=2e-3)
FORWARD_S, BACKWARD_S, PARAMETERS, LATE_S = 0.005, 0.040, 25_000, 0.030
BUCKET_S = 6 * (2e-3 + 0.0025)  # six messages of a quarter of 100 kB, by hand


@pytest.fixture(autouse=True)
def _figures_closed():
    yield
    plt.close("all")


def steps(rank: int, world_size: int, late_s: tuple[float, ...]) -> RankSteps:
    layers = [
        data_parallel.SleepingLayer(FORWARD_S, BACKWARD_S, parameters=PARAMETERS) for _ in range(2)
    ]
    ddp = nn.parallel.DistributedDataParallel(
        nn.Sequential(*layers), bucket_cap_mb=4 * PARAMETERS / 2**20
    )
    return data_parallel.record_steps(ddp, LINK, late_s=late_s[rank], repeats=3)


@pytest.fixture(scope="module")
def recorded(four_ranks) -> dict[str, list[RankSteps]]:
    cases = {"in time": (0, 0, 0, 0), "rank 2 late": (0, 0, LATE_S, 0)}
    return {name: four_ranks.run(steps, late_s, timeout_s=120) for name, late_s in cases.items()}


def test_each_rank_records_its_device_and_its_link_in_lanes_of_its_own(recorded):
    for rank, found in enumerate(recorded["rank 2 late"]):
        assert len(found.step_s) == len(found.activities) == 3
        for activities in found.activities:
            kinds = [
                activity.kind for activity in activities if activity.lane == f"rank {rank} device"
            ]
            assert kinds == ["late"] * (rank == 2) + ["forward"] * 2 + ["backward"] * 2
            sums = [activity for activity in activities if activity.kind == "all-reduce"]
            assert [activity.label for activity in sums] == ["bucket 0", "bucket 1"]
            assert {activity.lane for activity in sums} == {f"rank {rank} link"}


def test_a_step_is_never_shorter_than_its_sleeps_and_every_rank_pays_for_a_late_one(recorded):
    """By hand: the last bucket is full after 2 x (5 + 40) ms, on the late rank 30 ms later, and
    then travels.
    """
    least_s = 2 * (FORWARD_S + BACKWARD_S) + BUCKET_S
    for rank in recorded["in time"]:
        assert min(rank.step_s) >= least_s - 1e-4
    for rank in recorded["rank 2 late"]:
        assert min(rank.step_s) >= least_s + LATE_S - 1e-4
    assert data_parallel.fastest_step(recorded["rank 2 late"]).step_s >= least_s + LATE_S - 1e-4


@pytest.mark.timed
def test_punctual_ranks_wait_for_the_late_one(recorded):
    """By hand 43 ms: the first bucket is full 30 ms early, and the second 13 ms after the link is
    free.
    """
    step = data_parallel.fastest_step(recorded["rank 2 late"])
    starts_s = {
        rank: min(a.start_s for a in step.timeline.activities if a.lane == f"rank {rank} device")
        for rank in range(4)
    }
    # a busy machine lets ranks begin at unlike moments
    apart_s = max(starts_s.values()) - min(starts_s.values())
    for rank in (0, 1, 3):
        assert step.waited_s(rank) >= LATE_S - apart_s - 1e-4
    with pytest.raises(ValueError, match="no lane 'rank 4 link'"):
        step.waited_s(4)


def test_the_fastest_step_is_that_of_the_slowest_rank():
    first, second = (
        tuple(
            (Activity(f"rank {rank} device", step + rank, step + 9.0, "forward"),)
            for step in (0.0, 10.0)
        )
        for rank in (0, 1)
    )
    step = data_parallel.fastest_step([RankSteps((1.0, 4.0), first), RankSteps((5.0, 2.0), second)])
    assert step.step_s == 4.0  # and neither 1, the fastest rank, nor 5, the other step
    assert [(a.lane, a.start_s) for a in step.timeline.activities] == [
        ("rank 0 device", 0.0),
        ("rank 1 device", 1.0),
    ]


@pytest.mark.parametrize(
    "ranks", [[], [RankSteps((), ())], [RankSteps((1.0,), ((),)), RankSteps((1.0, 2.0), ((), ()))]]
)
def test_ranks_without_steps_of_their_own_are_refused(ranks):
    with pytest.raises(ValueError, match="ranks has no steps, or ranks of unlike many"):
        data_parallel.fastest_step(ranks)


def test_a_figure_has_the_lanes_of_its_ranks_and_every_bar(recorded):
    step = data_parallel.fastest_step(recorded["rank 2 late"])
    drawn = data_parallel.draw_step(step, ranks=(1, 2), title="late")
    axes = drawn.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "rank 1 device",
        "rank 1 link",
        "rank 2 device",
        "rank 2 link",
    ]
    bars = [
        activity
        for activity in step.timeline.activities
        if activity.lane[:6] in ("rank 1", "rank 2")
    ]
    drawn_bars = sorted((bar.get_x(), bar.get_width()) for bar in axes.patches)
    assert len(drawn_bars) == len(bars)
    for bar, expected in zip(
        drawn_bars, sorted((a.start_s, a.duration_s) for a in bars), strict=True
    ):
        assert bar == pytest.approx(expected)
    with pytest.raises(ValueError, match="rank 7 is not in this step"):
        data_parallel.draw_step(step, ranks=(7,), title="late")


def test_the_bars_of_sharding_end_at_what_is_kept():
    kept = {"weights": [4e9, 1e9], "gradients": [2e9, 2e9]}
    axes = data_parallel.draw_sharding(kept, ["all", "part"], limit_bytes=5e9).axes[0]
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == 6e9
    assert [line.get_xdata()[0] for line in axes.lines] == [5e9]
    assert "an H100: 5 GB" in [text.get_text() for text in axes.texts]


def test_the_link_to_turn_is_the_model_of_ddp(monkeypatch):
    """At the start, 24.5 GB at 12.5 GB/s under a step of 0.860 s: the same number as the library's
    model of DDP.
    """
    from helpers import parallel

    shown = {}
    monkeypatch.setattr(figures.plotting, "explore", lambda **options: shown.update(options))
    data_parallel.explore_link()
    setting = explorer._start(shown["inputs"])
    for link, tokens, ranks in ((12.5, 8192, 8), (450, 1024, 64), (31.5, 65536, 2)):
        values = explorer.evaluate(
            shown["formulas"], {**setting, "link": link, "tokens": tokens, "ranks": ranks}
        )
        layer_s = 6 * 7e9 * tokens / 400e12 / 32
        layers = [parallel.LayerCost(layer_s / 3, 2 * layer_s / 3, int(14e9 / 32))] * 32
        step = data_parallel.ddp_step(
            layers, world_size=ranks, link=Link(link * 1e9), bucket_bytes=1
        )
        assert values["hidden"] == pytest.approx(ranks * step.compute_s / step.step_s, rel=1e-6)
        unhidden_s = step.compute_s + step.link_s
        assert values["exposed"] == pytest.approx(ranks * step.compute_s / unhidden_s, rel=1e-6)
        assert values["alone"] == 1


def test_a_published_run_is_a_ratio_of_its_two_steps():
    first, longer = data_parallel.TWO_GPUS[:2]
    assert first.exchange_s == pytest.approx(0.1012)
    assert (round(first.times_one, 2), round(longer.times_one, 2)) == (0.65, 1.18)
    # The first rows: 400 steps on one GPU took 19.56 s, 200 steps on two 30.02 s.
    assert 400 * first.one_gpu_s == pytest.approx(19.56, abs=0.02)
    assert 200 * first.two_gpus_s == pytest.approx(30.02, abs=0.02)


def test_a_model_that_cannot_be_recorded_is_refused():
    with pytest.raises(TypeError, match="needs a DistributedDataParallel; got a Linear"):
        data_parallel.record_steps(nn.Linear(1, 1), LINK)
    with pytest.raises(ValueError, match="late_s=-1"):
        data_parallel.record_steps(nn.Linear(1, 1), LINK, late_s=-1)
    with pytest.raises(ValueError, match="repeats=0 is too small"):
        data_parallel.record_steps(nn.Linear(1, 1), LINK, repeats=0)


def without_a_sleeping_layer(rank: int, world_size: int) -> str:
    try:
        data_parallel.record_steps(nn.parallel.DistributedDataParallel(nn.Linear(2, 1)), LINK)
    except ValueError as error:
        return str(error)
    return ""


def test_a_model_without_a_sleeping_layer_is_refused(four_ranks):
    assert all("has no SleepingLayer" in said for said in four_ranks.run(without_a_sleeping_layer))
