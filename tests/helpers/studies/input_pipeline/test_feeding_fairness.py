"""Setups that differ in one thing, their model, and sleeping devices that keep it."""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch import nn

from helpers.studies import input_pipeline
from helpers.studies.input_pipeline import Setup, SetupCosts, _fairness as fairness

CLOSE = 0.25
# what a busy machine adds to a sleep does not grow with the sleep
LONGER = (1, 1, 1, 2, 2, 2, 4, 4, 4)


def costs_of(longer: int = 1) -> SetupCosts:
    """Return the costs of a device and a link that take so many times as long."""
    return SetupCosts(
        longer * 0.01,
        longer * 0.0005,
        load_example_s=longer * 0.0003,
        gradient_bytes=40_000,
        link_bandwidth_bytes_per_s=4e6 / longer,
    )


COSTS = costs_of()


def test_the_lectures_table_changes_two_things_in_every_row() -> None:
    table = input_pipeline.compare_setups(input_pipeline.LECTURE_SETUPS)
    assert not table.fair
    assert [row.changed for row in table.rows] == [
        "(the first)",
        "device, batch size",
        "devices, batch size",
    ]
    assert [row.fair for row in table.rows] == [True, False, False]
    assert [row.updates for row in table.rows] == [2 * 469, 2 * 118, 2 * 59]
    assert [row.local_batch for row in table.rows] == [128, 512, 512]
    assert table.rows[1].speedup == pytest.approx(5.22 / 4.37)
    assert table.rows[0].examples_per_s == pytest.approx(120_000 / 5.22)
    assert all(row.loading_in_clock for row in table.rows)


def test_a_repaired_comparison_changes_one_thing_a_row() -> None:
    path = [
        Setup("CPU", 1, 512),
        Setup("GPU", 1, 512),
        Setup("GPU", 2, 512),
        Setup("GPU", 2, 512, False),
    ]
    table = input_pipeline.compare_setups(
        [(setup, 1.0 + number) for number, setup in enumerate(path)]
    )
    assert table.fair
    assert [row.changed for row in table.rows[1:]] == ["device", "devices", "loading in clock"]
    assert len({row.updates for row in table.rows}) == 1
    # nothing changed: nothing compared
    assert not input_pipeline.compare_setups([(path[0], 1.0), (path[0], 1.0)]).fair
    assert input_pipeline.vary(path[0], batch_size=(128, 256))[1] == Setup("CPU", 1, 256)


def test_the_model_by_hand() -> None:
    """500 examples in batches of 200: 200, 200, 100 an epoch, two epochs."""
    one = Setup("GPU", 1, 200, True, 500, 2)
    assert input_pipeline.model_setup(one, COSTS) == pytest.approx(
        6 * 0.01 + 1000 * (0.0005 + 0.0003)
    )
    out = Setup("GPU", 1, 200, False, 500, 2)
    assert input_pipeline.model_setup(out, COSTS) == pytest.approx(6 * 0.01 + 1000 * 0.0005)
    two = Setup("GPU", 2, 200, False, 500, 2)
    reduce_s = 40_000 / 4e6  # a ring of two sends every byte once
    assert input_pipeline.model_setup(two, COSTS) == pytest.approx(
        6 * (0.01 + reduce_s) + 500 * 0.0005
    )


@pytest.mark.timed
@pytest.mark.parametrize(
    "setup",
    [
        Setup("GPU", 1, 64, True, 256, 1),
        Setup("GPU", 2, 64, True, 256, 1),
        Setup("GPU", 2, 128, False, 256, 1),
    ],
)
def test_sleeping_devices_take_the_modelled_time(two_ranks, setup) -> None:
    for longer in LONGER:
        costs = costs_of(longer)
        modelled = input_pipeline.model_setup(setup, costs)
        taken_s = input_pipeline.run_sleeping_setup(setup, costs, ranks=two_ranks)
        if taken_s < (1 + CLOSE) * modelled:
            break
    assert modelled <= taken_s < (1 + CLOSE) * modelled
    other = input_pipeline.model_setup(Setup("GPU", 3 - setup.devices, 64, True, 256, 1), costs)
    assert not other <= taken_s < (1 + CLOSE) * other


def test_real_ranks_train_on_all_examples(two_ranks, tmp_path) -> None:
    """Each process notes the examples of each batch, which the first pixel names; two warm-up
    batches come first.
    """
    images, labels = torch.rand(48, 1, 4, 4), torch.arange(48) % 10
    images[:, 0, 0, 0] = torch.arange(48.0)

    class Noting(nn.Flatten):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            with open(tmp_path / str(os.getpid()), "a", encoding="utf-8") as file:
                print(*batch[:, 0, 0, 0].int().tolist(), file=file)
            return super().forward(batch)

    def small() -> nn.Module:
        return nn.Sequential(Noting(), nn.Linear(16, 10))

    for devices in (1, 2):
        for loading in (True, False):
            setup = Setup("CPU", devices, 16, loading, 40, 2)
            assert 0 < input_pipeline.run_setup(setup, small, images, labels, ranks=two_ranks) < 60
            seen = []
            for file in tmp_path.iterdir():
                batches = [
                    line.split() for line in file.read_text(encoding="utf-8").splitlines()[2:]
                ]
                assert [len(each) for each in batches] == 2 * [
                    16 // devices,
                    16 // devices,
                    8 // devices,
                ]
                seen += [int(each) for batch in batches for each in batch]
                file.unlink()
            assert sorted(seen) == sorted(2 * list(range(40)))
    with pytest.raises(ValueError, match="not the 64 examples"):
        input_pipeline.run_setup(Setup("CPU", 1, 16, True, 64), small, images, labels)
    with pytest.raises(ValueError, match="'CPU', 'GPU'"):
        input_pipeline.run_setup(Setup("TPU", 1, 16, True, 16), small, images, labels)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch, two_ranks) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="torch sees none here; run it with device='CPU'"):
        input_pipeline.run_setup(
            Setup("GPU", 1, 4, True, 4), nn.Identity, torch.rand(4, 1), torch.zeros(4)
        )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="the ranks are on 'cpu', and the setup is of GPUs"):
        input_pipeline.run_setup(
            Setup("GPU", 2, 4, True, 4),
            nn.Identity,
            torch.rand(4, 1),
            torch.zeros(4),
            ranks=two_ranks,
        )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Setup("GPU", 3, 64), "batch_size=64 cannot be shared by 3 devices"),
        (lambda: Setup("GPU", 2, 64, True, 101), "examples=101 cannot be shared by 2 devices"),
        (lambda: Setup(epochs=0), "epochs=0 is too small"),
        (lambda: SetupCosts(-1, 0), "step_s=-1; give a finite number, 0 or more"),
        (lambda: SetupCosts(0, 0, gradient_bytes=1), "gradient_bytes=1 is too small"),
        (lambda: SetupCosts(0, 0, link_bandwidth_bytes_per_s=0), "must be a number above 0"),
        (
            lambda: input_pipeline.compare_setups([(Setup(), 1.0)]),
            "1 setups are nothing to compare",
        ),
        (
            lambda: input_pipeline.compare_setups([(Setup(), 1.0), (Setup(), math.nan)]),
            "1 x CPU=nan; give a finite number",
        ),
        (
            lambda: input_pipeline.run_sleeping_setup(Setup("GPU", 2, 64), COSTS),
            "2 devices need as many ranks, and none",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(call, said) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_a_rank_more_than_devices_is_refused(two_ranks) -> None:
    with pytest.raises(ValueError, match="4 devices need as many ranks, and 2 were given"):
        fairness.run_sleeping_setup(Setup("GPU", 4, 64), COSTS, ranks=two_ranks)
