"""kernel_table: exact calls, shares that add up, time in Python told from time in operators, no
profiler left on.
"""

from __future__ import annotations

import json
import math
import time

import pytest
import torch
from torch import nn
from torch.profiler import record_function

from helpers.profiling import KernelTable, kernel_table
from helpers.profiling._kernels import table_rows
from helpers.results import from_dict
from tests.helpers import turns


def spin(seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


def calls(table: KernelTable) -> dict[str, int]:
    return {row.name: row.calls for row in table.kernels}


@pytest.mark.parametrize("runs", [1, 3])
def test_calls_are_exact(runs):
    a, called = torch.rand(8, 8), []

    def work() -> None:
        called.append(1)
        for _ in range(4):
            (a @ a).relu()
        a.sum()

    table = kernel_table(work, runs=runs)
    found = calls(table)
    assert (found["aten::mm"], found["aten::relu"], found["aten::sum"]) == (
        4 * runs,
        4 * runs,
        runs,
    )
    assert len(called) == 1 + runs
    assert table.runs == runs


def test_threads_take_turns():
    was_taken = []
    kernel_table(lambda: was_taken.append(turns.is_taken()), runs=1)
    assert was_taken[-1]  # in the call that is recorded


def test_calls_of_a_training_step_are_exact():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.rand(2, 4)
    found = calls(kernel_table(lambda: model(x).sum().backward()))
    assert (found["aten::addmm"], found["aten::threshold_backward"], found["AddmmBackward0"]) == (
        2,
        1,
        2,
    )
    assert found["aten::mm"] == 3  # two for the weights, one for the first layer's output


def test_shares_and_times_add_up():
    a = torch.rand(64, 64)
    table = kernel_table(lambda: (a @ a).relu().sum(), runs=5)
    assert math.fsum(row.share for row in table.kernels) == pytest.approx(1, abs=1e-12)
    assert math.fsum(row.total_s for row in table.kernels) == pytest.approx(
        table.whole_s, rel=1e-12
    )
    *rows, rest = table.kernels
    assert rest.name == "(unaccounted)"
    assert rest.total_s >= -1e-9
    assert [row.total_s for row in rows] == sorted((row.total_s for row in rows), reverse=True)
    for row in rows:
        assert 0 <= row.minimum_s <= row.average_s <= row.maximum_s
        assert row.average_s * row.calls == pytest.approx(row.total_s)


def test_the_table_of_known_calls():
    rows = table_rows({"short": [1.0, 3.0], "long": [4.0]}, 10.0)
    assert [tuple(row.to_dict().values()) for row in rows] == [
        (0.4, 4, 1, 4, 4, 4, "long"),
        (0.4, 4, 2, 2, 1, 3, "short"),
        (0.2, 2, 0, 0, 0, 0, "(unaccounted)"),
    ]
    assert table_rows({}, 0.0)[0].share == 0
    assert table_rows({"at the same time": [3.0, 3.0]}, 4.0)[-1].total_s == -2


@pytest.mark.timed
def test_time_in_a_region_and_time_in_python_are_told_apart():
    a = torch.rand(4, 4)

    def work() -> None:
        with record_function("slow"):
            spin(0.0015)
            a.relu()
        spin(0.0005)

    def is_told() -> bool:
        rows = {row.name: row for row in kernel_table(work).kernels}
        total_s, share = rows["slow"].total_s, rows["slow"].share
        assert total_s >= 0.0015
        assert rows["(unaccounted)"].total_s >= 0.0005
        return total_s == pytest.approx(0.0015, rel=0.15) and share == pytest.approx(0.75, rel=0.15)

    assert any(is_told() for _ in range(50))  # until no other program gets in between


def test_a_function_without_operators_is_all_unaccounted():
    (row,) = kernel_table(lambda: spin(0.001)).kernels
    assert (row.name, row.share, row.calls) == ("(unaccounted)", 1, 0)
    assert len(kernel_table(lambda: None).kernels) == 1


def test_an_exception_passes_and_the_profiler_is_off_afterwards():
    raised = iter([None, KeyError("mine")])

    def work() -> None:
        error = next(raised)
        if error:
            raise error

    with pytest.raises(KeyError, match="mine"):
        kernel_table(work)
    assert not torch.autograd._profiler_enabled()
    assert len(kernel_table(lambda: torch.ones(2)).kernels) > 1


def test_a_running_profiler_is_refused_and_left_running():
    with torch.profiler.profile() as outer:
        with pytest.raises(RuntimeError, match="already running"):
            kernel_table(lambda: torch.ones(2))
        torch.ones(3).exp()
    assert "aten::exp" in {event.name for event in outer.events()}


@pytest.mark.parametrize(
    ("fn", "options", "error", "message"),
    [
        (torch.ones(2), {}, TypeError, "write lambda"),
        (print, {"runs": 0}, ValueError, "runs=0 is too small; give a whole number, 1 or more"),
        (print, {"runs": True}, TypeError, "runs=True is a bool"),
        (print, {"runs": 1.5}, TypeError, "runs=1.5 is a float"),
        (print, {"device": "meta"}, ValueError, "'cpu' or 'cuda'"),
    ],
)
def test_bad_arguments(fn, options, error, message):
    with pytest.raises(error, match=message):
        kernel_table(fn, **options)


def test_cuda_that_is_not_here_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError, match="0 CUDA devices"):
        kernel_table(print, device="cuda")


def test_it_prints_and_turns_into_html_a_table_and_json():
    def work() -> None:
        with record_function("<b>mine</b>"):
            torch.ones(2)

    table = kernel_table(work)
    lines = str(table).splitlines()
    assert lines[0].startswith("operators, time of their own, 1 run on cpu: ")
    assert lines[1].split() == ["name", "share", "time", "calls", "average", "minimum", "maximum"]
    assert len(lines) == 2 + len(table.kernels)
    page = table._repr_html_()
    assert page.count("<tr>") == 1 + len(table.kernels)
    assert "&lt;b&gt;mine" in page
    assert "<b>mine" not in page
    assert list(table.table().columns) == [
        "share",
        "total_s",
        "calls",
        "average_s",
        "minimum_s",
        "maximum_s",
        "name",
    ]
    assert from_dict(KernelTable, json.loads(table.to_json())) == table


@pytest.mark.cuda
def test_on_cuda_the_rows_are_kernels():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    a = torch.rand(512, 512, device="cuda")
    table = kernel_table(lambda: a @ a, runs=4)
    assert table.device.startswith("cuda")
    assert not any(row.name.startswith("aten::") for row in table.kernels)
    assert table.kernels[0].calls % 4 == 0
    assert math.fsum(row.share for row in table.kernels) == pytest.approx(1)
