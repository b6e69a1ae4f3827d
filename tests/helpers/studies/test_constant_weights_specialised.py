"""A network from a file: served at once, specialised in the background, right before, while and
after.
"""

from __future__ import annotations

import shutil
import threading

import pytest
import torch
from process_watch import wait_until

from helpers import native
from helpers.studies.constant_weights import _files as files
from helpers.studies.constant_weights._files import Specialised, best_placement, save
from helpers.studies.constant_weights._network import (
    error_bound,
    exact_outputs,
    pruned,
    random_network,
    standard_network,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
NETWORK = random_network((6, 8, 2), ("relu", "sigmoid"), seed=3)


def right(network, x, out) -> bool:
    return bool(((out.double() - exact_outputs(network, x)).abs() <= error_bound(network, x)).all())


def held_back(monkeypatch, gate: threading.Event, failure: Exception | None = None) -> None:
    """Let the constants wait for ``gate``, and then fail with ``failure`` if there is one."""
    made = files.cpp_program

    def waiting(network, placement, **kwargs):
        if placement != "runtime_sizes":
            assert gate.wait(60)
            if failure is not None:
                raise failure
        return made(network, placement, **kwargs)

    monkeypatch.setattr(files, "cpp_program", waiting)


def test_a_file_is_served_at_once_and_from_constants_later(tmp_path, monkeypatch):
    gate = threading.Event()
    held_back(monkeypatch, gate)
    save(NETWORK, tmp_path / "network.bin")
    served = Specialised.from_file(tmp_path / "network.bin")
    x, out = torch.randn(50, 6), torch.empty(50, 2)
    assert (served.serving.weights_are, served.serving.placement) == (
        "behind a pointer",
        "runtime_sizes",
    )
    assert served.serving.compile_s is None
    assert served(x, out=out) is out
    assert right(NETWORK, x, out)
    with pytest.raises(TimeoutError, match=r"still at work after 0\.01 s"):
        served.wait(0.01)
    gate.set()
    done = served.wait(120)
    assert (done.weights_are, done.placement) == ("constants", "lanes")
    assert "6 -> 8 -> 2 on cpu, weights constants, compiled in" in repr(served)
    assert done.was_cached == (done.compile_s == 0)
    assert right(NETWORK, x, served(x))
    assert Specialised.from_file(tmp_path / "network.bin").wait(120).was_cached


def test_threads_get_right_results_while_the_program_changes(monkeypatch):
    gate, stop, wrong, calls = threading.Event(), threading.Event(), [], []
    held_back(monkeypatch, gate)
    served = Specialised(NETWORK)

    def work(seed: int) -> None:
        x = torch.randn(20 + seed, 6, generator=torch.Generator().manual_seed(seed))
        out, exact, bound = (
            torch.empty(20 + seed, 2),
            exact_outputs(NETWORK, x),
            error_bound(NETWORK, x),
        )
        while not stop.is_set():
            calls.append(served.serving.weights_are)
            if not ((served(x, out=out.fill_(9)) - exact).abs() <= bound).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    before = wait_until(lambda: "behind a pointer" in calls, limit_s=60)
    gate.set()
    served.wait(120)
    after = wait_until(lambda: "constants" in calls, limit_s=60)
    stop.set()
    for thread in threads:
        thread.join()
    assert before
    assert after
    assert set(calls) == {"behind a pointer", "constants"}
    assert not wrong


def test_a_compiler_that_fails_is_told_of_and_the_pointer_goes_on(monkeypatch, capsys):
    gate = threading.Event()
    gate.set()
    monkeypatch.delenv("HELPERS_HEADLESS", raising=False)
    held_back(monkeypatch, gate, native.NativeError("the disk is full", "free some space"))
    served = Specialised(NETWORK)
    with pytest.raises(native.NativeError, match="the disk is full"):
        served.wait(60)
    assert served.serving.weights_are == "behind a pointer"
    x = torch.randn(3, 6)
    assert right(NETWORK, x, served(x))
    printed = capsys.readouterr()
    assert "is not specialised" in printed.out + printed.err


def test_few_weights_left_are_straight_line_code():
    served = Specialised(pruned(NETWORK, 0.9))
    assert served.wait(120).placement == "pruned"
    x = torch.randn(9, 6)
    assert right(served.network, x, served(x))
    assert [best_placement(standard_network()), best_placement(served.network)] == [
        "lanes",
        "pruned",
    ]


def test_what_does_not_fit_is_refused_in_words(tmp_path):
    served = Specialised(NETWORK)
    with pytest.raises(ValueError, match=r"x has the shape \(3, 5\); it is \(candidates, 6\)"):
        served(torch.randn(3, 5))
    with pytest.raises(ValueError, match="x has 3 candidates and out 4"):
        served(torch.randn(3, 6), out=torch.empty(4, 2))
    with pytest.raises(TypeError, match=r"x is a torch\.Tensor, not list"):
        served([[1.0] * 6])
    with pytest.raises(ValueError, match="do not fit a thread's stack"):
        Specialised(random_network((5000, 1), ("relu",)))
    with pytest.raises(ValueError, match="device='meta' is neither a CPU nor a CUDA device"):
        Specialised(NETWORK, device="meta")
    (tmp_path / "foreign.bin").write_bytes(b"no network at all")
    with pytest.raises(ValueError, match=r"foreign\.bin"):
        Specialised.from_file(tmp_path / "foreign.bin")
    served.wait(120)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_says_so():
    with pytest.raises(native.NativeError, match="no CUDA device"):
        Specialised(NETWORK, device="cuda")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_cuda_the_same_network_serves():
    served = Specialised(NETWORK, device="cuda")
    x = torch.randn(1000, 6, device="cuda")
    before = served(x).cpu()
    assert served.wait(120).placement == "const"
    for out in (before, served(x).cpu()):
        assert right(NETWORK, x.cpu(), out)
