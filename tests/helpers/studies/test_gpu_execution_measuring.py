"""The transposes on a GPU: none where there is none, and on one a wrong result is refused before it
is timed.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from helpers import native, timing
from helpers.studies import gpu_execution
from helpers.studies.gpu_execution import (
    MeasuredTranspose,
    MeasuredTransposes,
    _measuring as measuring,
)

KERNELS = ("one_line", "tiled", "padded", "four_values")


def module(broken=""):
    """A program whose kernels transpose on the CPU, all but one that stores nothing."""

    def function(declaration):
        name = declaration.partition("(")[0].removeprefix("void ")

        def call(source, target, n, *, grid, block):
            assert grid == (2, 2)
            assert block == gpu_execution.TRANSPOSES_THREADS[name]
            if name != broken:
                target[:n, :n] = source.T

        return call

    return SimpleNamespace(function=function)


@pytest.fixture
def gpu(monkeypatch):
    def install(broken=""):
        rand, empty_like = torch.rand, torch.empty_like
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "T4")
        monkeypatch.setattr(torch, "rand", lambda *shape, device: rand(*shape))
        monkeypatch.setattr(torch, "empty_like", lambda tensor: empty_like(tensor).fill_(torch.nan))
        monkeypatch.setattr(native, "gpu_architecture", lambda: "sm_75")
        cubin = SimpleNamespace(load=lambda: module(broken))
        monkeypatch.setattr(native, "compile_cuda", lambda source, *, architecture: cubin)
        monkeypatch.setattr(measuring, "_SIDE", 40)

    return install


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_execution.measure_transposes() is None


def test_a_gpus_transposes_are_timed(gpu, monkeypatch):
    gpu()

    def compare(calls, *, device, **_):
        assert device == "cuda"
        for call in calls.values():
            call()
        rows = [
            SimpleNamespace(name=name, minimum_s=1e-6 * place)
            for place, name in enumerate(calls, start=1)
        ]
        return SimpleNamespace(candidates=rows, stable=True)

    monkeypatch.setattr(timing, "compare", compare)
    rows = tuple(
        MeasuredTranspose(name, 1e-6 * place)
        for place, name in enumerate((*KERNELS, "torch"), start=1)
    )
    assert gpu_execution.measure_transposes() == MeasuredTransposes("T4", 40, rows, stable=True)


@pytest.mark.parametrize("broken", KERNELS)
def test_a_kernel_that_does_not_transpose_is_refused(gpu, broken):
    gpu(broken)
    with pytest.raises(RuntimeError, match=f"the kernel {broken} did not transpose"):
        gpu_execution.measure_transposes()
