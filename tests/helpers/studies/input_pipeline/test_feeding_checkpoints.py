"""Checkpoints hold the step they are of, stall as the model says, and are taken as often as
pays.
"""

from __future__ import annotations

import math
import statistics
import threading
from typing import NamedTuple

import pytest
import torch
from scipy import optimize, special
from torch import nn

from helpers import storage
from helpers.links import Link
from helpers.studies import input_pipeline
from helpers.studies.input_pipeline import _checkpoints as checkpoints

SLOW = Link(math.inf, 0.1)  # each write lasts at least 0.1 s


class Pair(NamedTuple):
    """What a state may hold besides lists and dictionaries."""

    values: torch.Tensor
    name: str


def training(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    inputs = torch.randn(16, 20, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def weights(state: dict) -> torch.Tensor:
    return state["model"]["0.weight"]


@pytest.fixture
def writes(monkeypatch) -> threading.Semaphore:
    """Writes to a slow disk, each of which begins when it is released, and not after a time."""
    allowed = threading.Semaphore(0)
    monkeypatch.setattr(checkpoints, "sleep_until", lambda _: allowed.acquire(timeout=60))
    return allowed


# What is saved.


def test_an_asynchronous_checkpoint_is_the_step_it_was_taken_at(tmp_path, writes) -> None:
    model, optimizer = training()
    expected = {}
    with input_pipeline.Checkpointer(tmp_path, disk=SLOW) as checkpointer:
        for number in range(1, 4):
            step(model, optimizer, number)
            expected[number] = model[0].weight.detach().clone()
            checkpointer.save(input_pipeline.training_state(model, optimizer, step=number), number)
            for extra in range(3):  # before the thread writes
                step(model, optimizer, 100 + extra)
            writes.release()
    for number, weight in expected.items():
        assert torch.equal(weights(checkpointer.load(number)), weight)
    assert checkpointer.load()["step"] == 3


def test_without_a_snapshot_a_later_state_is_saved(tmp_path, writes) -> None:
    """The trap: the file says step 1, and holds what the optimizer made of the weights
    afterwards.
    """
    model, optimizer = training()
    step(model, optimizer, 1)
    at_save = model[0].weight.detach().clone()
    with input_pipeline.Checkpointer(tmp_path, takes_snapshot=False, disk=SLOW) as checkpointer:
        checkpointer.save(input_pipeline.training_state(model, optimizer, step=1), 1)
        step(model, optimizer, 2)
        writes.release()
    saved = checkpointer.load(1)
    assert saved["step"] == 1
    assert not torch.equal(weights(saved), at_save)
    assert torch.equal(weights(saved), model[0].weight)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path, asynchronous) -> None:
    model, optimizer = training()
    with input_pipeline.Checkpointer(tmp_path, asynchronous=asynchronous) as checkpointer:
        for number in range(3):
            step(model, optimizer, number)
        checkpointer.save(input_pipeline.training_state(model, optimizer, step=3), 3)
        through = [step(model, optimizer, number) for number in range(3, 8)]
    again, its_optimizer = training(seed=1)
    state = checkpointer.load()
    again.load_state_dict(state["model"])
    its_optimizer.load_state_dict(state["optimizer"])
    assert [step(again, its_optimizer, number) for number in range(state["step"], 8)] == through


def test_a_snapshot_shares_what_was_shared_and_nothing_with_the_training() -> None:
    tied = nn.Linear(6, 6)
    holder = nn.ModuleList([tied, nn.Linear(6, 6)])
    holder[1].weight = tied.weight
    half = torch.arange(10.0)[2:8:2]
    pair = Pair(torch.ones(2), "named")
    state = {"model": holder.state_dict(), "list": [half, (3, "text")], "none": None, "pair": pair}
    copy = input_pipeline.snapshot(state)
    assert torch.equal(copy["model"]["0.weight"], tied.weight)
    assert (
        copy["model"]["0.weight"].data_ptr()
        == copy["model"]["1.weight"].data_ptr()
        != tied.weight.data_ptr()
    )
    assert copy["list"][0].tolist() == [2, 4, 6]
    assert (copy["list"][1], copy["none"]) == ((3, "text"), None)
    assert (type(copy["pair"]), copy["pair"].name, copy["pair"].values.tolist()) == (
        Pair,
        "named",
        [1, 1],
    )
    assert copy["pair"].values.data_ptr() != pair.values.data_ptr()
    with torch.no_grad():
        tied.weight.zero_()
        half.zero_()
    assert copy["model"]["0.weight"].abs().sum() > 0
    assert copy["list"][0].tolist() == [2, 4, 6]


def test_bytes_of_a_training_state_are_exact() -> None:
    model, optimizer = training()
    parameters = sum(each.numel() for each in model.parameters())
    buffers = 4 * (30 + 30) + 8  # running mean and variance, and the number of batches
    assert (
        input_pipeline.state_bytes(input_pipeline.training_state(model, optimizer))
        == 4 * parameters + buffers
    )
    step(model, optimizer, 0)  # now Adam has two moments a parameter and a step a tensor
    state = input_pipeline.training_state(model, optimizer)
    assert input_pipeline.state_bytes(state) == 3 * 4 * parameters + buffers + 4 * len(
        list(model.parameters())
    )
    assert (
        input_pipeline.state_bytes({"twice": [model[0].weight, model[0].weight.t()]})
        == 4 * model[0].weight.numel()
    )
    # torch.save writes all of it
    assert input_pipeline.state_bytes({"part": torch.zeros(10)[2:4]}) == 40
    assert input_pipeline.state_bytes(model.to("meta").state_dict()) == 4 * parameters + buffers


def test_what_goes_wrong_in_the_thread_is_raised(tmp_path, monkeypatch) -> None:
    def full(path, data) -> None:
        raise OSError("the disk is full")

    model, optimizer = training()
    state = input_pipeline.training_state(model, optimizer)
    monkeypatch.setattr(storage, "write_atomically", full)
    with (
        pytest.raises(OSError, match="disk is full"),
        input_pipeline.Checkpointer(tmp_path) as checkpointer,
    ):
        checkpointer.save(state, 1)
    checkpointer.close()  # it is told once
    checkpointer = input_pipeline.Checkpointer(tmp_path)
    checkpointer.save(state, 1)
    with pytest.raises(OSError, match="disk is full"):
        checkpointer.save(state, 2)
    with (
        pytest.raises(KeyError, match="mine"),
        input_pipeline.Checkpointer(tmp_path) as checkpointer,
    ):
        {}[f"mine {checkpointer.save(state, 3)}"]


def test_checkpoints_that_are_not_there(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="make it first"):
        input_pipeline.Checkpointer(tmp_path / "no")
    checkpointer = input_pipeline.Checkpointer(tmp_path, asynchronous=False)
    with pytest.raises(FileNotFoundError, match=r"any step.*none"):
        checkpointer.load()
    checkpointer.save({"x": torch.ones(1)}, 7)
    with pytest.raises(FileNotFoundError, match=r"step 8 in .*those of: 7"):
        checkpointer.load(8)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step_00000007.pt"]
    (tmp_path / "step_final.pt").touch()  # somebody else's
    assert checkpointer.load()["x"] == 1
    with pytest.raises(TypeError, match=r"disk is a helpers\.links\.Link"):
        input_pipeline.Checkpointer(tmp_path, disk=1e6)


# What it costs.


def test_a_save_is_measured_part_by_part(tmp_path) -> None:
    state = {"weights": torch.rand(1 << 20)}
    cost = input_pipeline.measure_save(state, tmp_path)
    assert cost.state_bytes == 1 << 22
    assert cost.file_bytes == len(checkpoints.serialise(state).getbuffer()) >= 1 << 22
    assert cost.save_s == pytest.approx(cost.serialise_s + cost.write_s + cost.sync_s)
    assert cost.saved_bytes_per_s == pytest.approx((1 << 22) / cost.save_s)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="holds no tensors"):
        input_pipeline.measure_save({"step": 1})


@pytest.mark.timed
def test_a_snapshot_costs_less_than_a_save(tmp_path) -> None:
    cost = input_pipeline.measure_save({"weights": torch.rand(1 << 20)}, tmp_path)
    assert 0 < cost.snapshot_s < cost.save_s


SMALL = {
    "make_model": lambda: nn.Linear(50, 50),
    "saves": 4,
    "disk": SLOW,
    "device": "cpu",
    "step_s": 0.05,
}


def test_a_save_stalls_a_synchronous_training_and_writes_follow_one_another() -> None:
    """A write lasts 0.1 s; these bounds hold however busy the machine."""
    rare = input_pipeline.measure_stalls(every=3, **SMALL)
    assert [row.way for row in rare.rows] == ["none", "synchronous", "asynchronous"]
    assert (rare.row("none").saves, rare.row("synchronous").saves) == (0, 4)
    assert rare.row("synchronous").stall_s >= 0.1
    assert rare.row("synchronous").elapsed_s >= 4 * (0.15 + 0.1)
    assert rare.row("none").stalled_share == 0
    often = input_pipeline.measure_stalls(ways=("asynchronous",), every=1, **SMALL).row(
        "asynchronous"
    )
    assert often.elapsed_s >= 0.05 + 4 * 0.1


@pytest.mark.timed
def test_an_asynchronous_save_that_the_interval_hides_does_not_wait_for_the_disk() -> None:
    for _ in range(4):
        row = input_pipeline.measure_stalls(ways=("asynchronous",), every=3, **SMALL).row(
            "asynchronous"
        )
        if row.stall_s < 0.05:
            break
    assert row.stall_s < 0.05  # a save that waited for the disk would stall 0.1 s


def test_the_modelled_stall_is_the_snapshot_and_what_the_interval_does_not_hide() -> None:
    hidden = input_pipeline.modelled_stall_s(
        "asynchronous", save_s=0.1, snapshot_s=0.0, interval_s=0.05
    )
    assert hidden == pytest.approx(0.05)
    assert (
        input_pipeline.modelled_stall_s("synchronous", save_s=0.1, snapshot_s=0.01, interval_s=1)
        == 0.1
    )
    assert (
        input_pipeline.modelled_stall_s("asynchronous", save_s=0.1, snapshot_s=0.01, interval_s=1)
        == 0.01
    )
    assert input_pipeline.modelled_stall_s("none", save_s=0.1, snapshot_s=0.01, interval_s=1) == 0
    with pytest.raises(ValueError, match="'none', 'synchronous'"):
        input_pipeline.modelled_stall_s("often", save_s=1, snapshot_s=1, interval_s=1)
    with pytest.raises(ValueError, match="save_s=-1; give a finite number, 0 or more"):
        input_pipeline.modelled_stall_s("asynchronous", save_s=-1, snapshot_s=1, interval_s=1)


def test_stalls_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing to measure"):
        input_pipeline.measure_stalls(lambda: nn.Linear(1, 1), ways=())
    with pytest.raises(ValueError, match="cannot be given a disk"):
        input_pipeline.measure_stalls(lambda: nn.Linear(1, 1), ways=checkpoints.WAYS, disk=SLOW)


def test_torchs_own_asynchronous_save_holds_its_step_too(tmp_path, recwarn) -> None:
    import torch.distributed.checkpoint as dcp

    table = input_pipeline.measure_stalls(
        lambda: nn.Linear(30, 30), ways=("torch async_save",), saves=2, every=1, step_s=0.0
    )
    assert table.row("torch async_save").saves == 2
    assert not [each for each in recwarn if "torch.distributed is disabled" in str(each.message)]
    model, optimizer = training()
    step(model, optimizer, 1)
    expected = model[0].weight.detach().clone()
    save, finish = checkpoints._torch_saver(tmp_path)
    save(input_pipeline.training_state(model, optimizer), 1)
    step(model, optimizer, 2)
    finish()
    loaded = {"model": {"0.weight": torch.zeros(30, 20)}}
    dcp.load(loaded, checkpoint_id=str(tmp_path / "step_00000001"), no_dist=True)
    assert torch.equal(weights(loaded), expected)


# How often.


def test_the_best_interval_is_where_scipy_finds_it() -> None:
    """Setting the derivative to 0 gives M (1 + W(-exp(-d / M - 1))) with Lambert's W."""
    for save_s, mtbf_s in ((60, 86_400), (5, 600), (300, 600), (1e-3, 1e6), (1000, 100)):
        exact = mtbf_s * (1 + special.lambertw(-math.exp(-save_s / mtbf_s - 1)).real)
        assert input_pipeline.optimal_interval_s(save_s, mtbf_s) == pytest.approx(exact, rel=1e-5)
        run = {"save_s": save_s, "mtbf_s": mtbf_s}
        found = optimize.minimize_scalar(
            lambda t, run=run: input_pipeline.expected_run_s(1.0, t, **run),
            bounds=(exact / 3, exact * 3),
            method="bounded",
        )
        assert input_pipeline.expected_run_s(
            1.0, input_pipeline.optimal_interval_s(save_s, mtbf_s), **run
        ) <= found.fun * (1 + 1e-9)


def test_the_best_interval_is_young_s_where_a_save_takes_next_to_nothing() -> None:
    for save_s, mtbf_s in ((1e-6, 1e6), (1e-12, 1e6), (1e-9, 1e9)):
        young_s = input_pipeline.young_interval_s(save_s, mtbf_s)
        assert input_pipeline.optimal_interval_s(save_s, mtbf_s) == pytest.approx(young_s, rel=1e-6)


def test_young_is_good_for_short_saves_and_daly_for_longer_ones() -> None:
    assert input_pipeline.young_interval_s(2, 100) == 20
    for save_s, young_off, daly_off in ((0.001, 2e-3, 1e-5), (1, 0.05, 1e-3), (20, 0.25, 0.01)):
        best = input_pipeline.optimal_interval_s(save_s, 100)
        assert input_pipeline.young_interval_s(save_s, 100) == pytest.approx(best, rel=young_off)
        assert input_pipeline.daly_interval_s(save_s, 100) == pytest.approx(best, rel=daly_off)
        assert abs(input_pipeline.young_interval_s(save_s, 100) - best) > abs(
            input_pipeline.daly_interval_s(save_s, 100) - best
        )
    assert (
        input_pipeline.daly_interval_s(200, 100) == input_pipeline.daly_interval_s(1000, 100) == 100
    )
    just_below = input_pipeline.daly_interval_s(199.999, 100)
    assert just_below == pytest.approx(200 * (1 + 1 / 3 + 1 / 9) - 200, rel=1e-4)


def test_simulated_failures_cost_what_the_formula_expects() -> None:
    for restart_s in (0, 150):
        run = {"save_s": 30, "mtbf_s": 1000, "restart_s": restart_s}
        simulated = [
            input_pipeline.simulate_run_s(20_000, 250, seed=seed, **run) for seed in range(600)
        ]
        expected = input_pipeline.expected_run_s(20_000, 250, **run)
        spread = statistics.stdev(simulated) / math.sqrt(len(simulated))
        assert statistics.mean(simulated) == pytest.approx(expected, abs=4 * spread)
        assert spread < 0.01 * expected
        without_restart = input_pipeline.expected_run_s(20_000, 250, save_s=30, mtbf_s=1000)
        assert (abs(statistics.mean(simulated) - without_restart) > 4 * spread) == (restart_s > 0)
    never_failing = input_pipeline.simulate_run_s(1000, 300, save_s=1, mtbf_s=1e12)
    assert never_failing == pytest.approx(1000 + 4)  # four pieces, the last of 100 s
    assert input_pipeline.expected_run_s(1.0, 1e6, save_s=1, mtbf_s=1) == math.inf
    for hopeless in ({"interval_s": 1e5, "mtbf_s": 100}, {"interval_s": 1e-6, "mtbf_s": 1e9}):
        with pytest.raises(ValueError, match="more than 10,000,000 pieces"):
            input_pipeline.simulate_run_s(1e6, save_s=1, **hopeless)


@pytest.mark.parametrize("wrong", [0, -1, math.inf, math.nan])
def test_times_that_are_none_are_refused(wrong) -> None:
    for call in (
        input_pipeline.young_interval_s,
        input_pipeline.daly_interval_s,
        input_pipeline.optimal_interval_s,
    ):
        with pytest.raises(ValueError, match=r"save_s=.*; give a finite number above 0"):
            call(wrong, 1)
    with pytest.raises(ValueError, match=r"mtbf_s=.*; give a finite number above 0"):
        input_pipeline.expected_run_s(1, 1, save_s=1, mtbf_s=wrong)
    with pytest.raises(ValueError, match="restart_s=-1; give a finite number, 0 or more"):
        input_pipeline.simulate_run_s(1, 1, save_s=1, mtbf_s=1, restart_s=-1)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_snapshot_of_cuda_tensors_is_exact_and_on_the_cpu() -> None:
    source = torch.rand(1 << 22, device="cuda")
    expected = source.cpu()
    copy = input_pipeline.snapshot({"x": source})["x"]
    source.zero_()
    torch.cuda.synchronize()
    assert copy.device.type == "cpu"
    assert torch.equal(copy, expected)
