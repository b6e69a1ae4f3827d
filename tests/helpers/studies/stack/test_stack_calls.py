"""One call's levels: what is dispatched is known by construction; what computes depends on the
machine: either/or.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import re
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers import _processes as processes, native
from helpers.results import from_dict
from helpers.studies import stack
from helpers.studies.stack import _calls as calls, _following as following

FOLDER = Path(__file__).parent
CALL = "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward,src:f32:a:blocked:abcd::f0,,,mb2,0.1"  # noqa: E501
can_read = pytest.mark.skipif(
    shutil.which("objdump") is None or platform.machine() not in ("x86_64", "AMD64"),
    reason="needs objdump and an x86-64 processor",
)


def names(operators):
    return [operator.name for operator in operators]


def convolved(images, weights):
    print(CALL)
    return torch.relu(torch.conv2d(images, weights))


@pytest.fixture(scope="module")
def convolution():
    before = torch.get_rng_state()
    found = stack.trace_calls(convolved, torch.randn(2, 6, 12, 12), torch.randn(16, 6, 5, 5))
    torch.set_rng_state(before)
    return found


def test_the_dispatched_operators_depend_on_the_mode_and_not_on_the_machine(convolution):
    assert names(convolution.with_autograd) == ["aten::convolution", "aten::relu"]
    assert names(convolution.without_autograd) == ["aten::convolution", "aten::relu"]
    # nothing takes it apart above
    assert names(convolution.in_inference_mode) == ["aten::conv2d", "aten::relu"]
    assert convolution.with_autograd[0].inputs == "(2, 6, 12, 12) float32, (16, 6, 5, 5) float32"
    counts = {
        row.operator: (row.with_autograd, row.without_autograd, row.in_inference_mode)
        for row in convolution.operators
    }
    assert counts == {
        "aten::convolution": (1, 1, 0),
        "aten::relu": (1, 1, 1),
        "aten::conv2d": (0, 0, 1),
    }


def test_the_profiler_s_operators_stand_under_those_that_call_them(convolution):
    top = [operator.name for operator in convolution.nested if operator.depth == 0]
    assert top == ["aten::conv2d", "aten::relu"]
    assert [(row.name, row.depth) for row in convolution.nested[:2]] == [
        ("aten::conv2d", 0),
        ("aten::convolution", 1),
    ]
    assert convolution.nested[0].inputs == "(2, 6, 12, 12), (16, 6, 5, 5)"


def test_it_says_which_library_computed_or_that_none_was_called(convolution):
    called = {primitive.library for primitive in convolution.primitives}
    assert called == {library.name for library in convolution.libraries} <= {"oneDNN", "MKL"}
    assert sum(library.calls for library in convolution.libraries) == len(convolution.primitives)
    if called:
        assert all(f"{name} (" in convolution.computed_by for name in called)
        computed = [p.name for p in convolution.primitives]
        assert "convolution" in computed or any("GEMM" in name for name in computed)
    else:
        assert (
            convolution.computed_by
            == "no library that keeps a log: neither oneDNN nor MKL was called"
        )
    assert CALL not in convolution.log  # a print is no library's log


def test_each_generated_kernel_is_listed_and_counted(convolution):
    unread = any(gap.level == "oneDNN's instructions" for gap in convolution.not_followed)
    assert unread == (bool(convolution.kernels) and calls._obstacle() != "")
    for kernel in convolution.kernels:
        assert kernel.code_bytes > 0
        assert (kernel.listing is None) == (kernel.census is None) == unread
        if kernel.census:
            assert (
                kernel.instructions == len(kernel.listing.splitlines()) - 1 == kernel.census.total
            )
            assert kernel.multiply_adds + kernel.dot_products <= kernel.instructions


def test_it_prints_its_levels_and_comes_back_from_json(convolution):
    assert from_dict(stack.StackTrace, json.loads(convolution.to_json())) == convolution
    text = str(convolution)
    assert text.splitlines()[1].split() == ["function", "convolved"]
    assert "(2, 6, 12, 12) float32, (16, 6, 5, 5) float32" in text
    assert "in inference mode" in text
    for kernel in convolution.kernels:
        assert kernel.name in text
        assert "multiply adds" in text


# Calls that do less, more or other than they should.


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        raise ValueError(f"too many rows: {len(x)}")


def test_a_call_that_raises_is_told_with_its_lines_and_the_module_stays_as_it_was():
    model = Failing()
    with pytest.raises(RuntimeError, match="ValueError: too many rows: 3") as raised:
        stack.trace_calls(model, torch.ones(3))
    assert "in forward" in str(raised.value)
    assert model.calls == 0


def test_a_lambda_that_only_trains_is_followed_where_it_runs():
    weight = torch.ones(3, requires_grad=True)
    found = stack.trace_calls(lambda x: (weight * x).sum().backward(), torch.ones(3))
    assert weight.grad is None
    assert found.function.endswith("<lambda>")
    assert {"aten::mul", "aten::sum", "aten::expand"} <= set(names(found.with_autograd))
    assert (found.without_autograd, found.in_inference_mode) == ((), ())
    assert {row.without_autograd for row in found.operators} == {None}
    levels = {gap.level: gap.reason for gap in found.not_followed}
    for mode in ("without autograd", "in inference mode"):
        assert (
            "RuntimeError: element 0 of tensors does not require grad"
            in levels[f"operators {mode}"]
        )


def test_a_call_that_takes_too_long_is_ended():
    with pytest.raises(TimeoutError, match=r"longer than its limit of 0\.5 s"):
        stack.trace_calls(time.sleep, 60, timeout_s=0.5)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Follow a call in this process, where the libraries keep no log."""
    monkeypatch.chdir(tmp_path)

    def run(function, *inputs):
        packed = processes.pack_call(function, inputs, caller="a test")
        return following.follow(packed, str(tmp_path), torch.get_num_threads())

    return run


def test_a_call_without_an_operator_says_so(here, capfd):
    seen = here(lambda: print("something"))
    assert (seen.log, seen.kernels, seen.nested, seen.devices) == ("", (), (), ())
    assert set(seen.operators.values()) == {()}
    assert calls._computed_by(seen, ()) == "nothing: no operator of PyTorch ran"
    assert calls._count_operators(seen) == ()
    assert "something" not in capfd.readouterr().out


def test_every_call_begins_with_copies(here):
    held = []
    seen = here(lambda values: (values.append(len(values)), torch.zeros(len(values)).relu_()), held)
    assert held == []
    assert {
        call.inputs
        for mode in seen.operators.values()
        for call in mode
        if call.name == "aten::relu_"
    } == {"(1,) float32"}


def test_what_c_code_prints_is_the_log_and_output_goes_on_afterwards(here, capfd):
    seen = here(lambda: os.write(1, b"from C\n") and print("from Python"))
    assert seen.log == "from C\n"
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "after\n"


def followed(**changes):
    fields = {
        "log": "",
        "kernels": (),
        "operators": dict.fromkeys(following.MODES, ()),
        "nested": (),
        "devices": (),
        "has_onednn": True,
        "has_mkl": True,
    }
    return following.Followed(**{**fields, **changes})


def test_levels_that_are_not_followed_are_named():
    seen = followed(devices=("cpu", "cuda", "meta"), has_mkl=False)
    on_gpu, mkl = calls._gaps(seen, (), "")[::-1]
    assert (mkl.level, mkl.reason) == ("MKL", "this PyTorch is built without it")
    assert on_gpu.level == "libraries and kernels on cuda"
    assert "helpers.kernel_table names the kernels of a GPU" in on_gpu.reason
    (own,) = calls._gaps(followed(), (stack.CalledLibrary("MKL", "2024", "AVX2", 3),), "")
    assert (own.level, own.reason) == ("MKL's instructions", "it does not write them out")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_call_on_a_gpu_shows_its_operators_and_says_what_is_not_followed():
    found = stack.trace_calls(
        torch.matmul, torch.ones(8, 8, device="cuda"), torch.ones(8, 8, device="cuda")
    )
    assert names(found.with_autograd) == ["aten::mm"]
    assert "libraries and kernels on cuda" in [gap.level for gap in found.not_followed]


@pytest.mark.parametrize(
    ("function", "inputs", "words"),
    [
        (5, (), "trace_calls takes a function and its arguments, not 5"),
        (None, (torch.ones(2),), "trace_calls takes a function and its arguments, not None"),
        (
            len,
            (threading.Lock(),),
            "make open files, locks, generators and the like inside the function",
        ),
        (sum, ((i for i in range(3)),), "cannot be sent to another process"),
    ],
    ids=["no function", "None", "a lock", "a generator"],
)
def test_what_cannot_travel_is_refused(function, inputs, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        stack.trace_calls(function, *inputs)


# The kernels that oneDNN wrote on an AVX2 machine: LeNet's second convolution at batch 2, and GELU
# with its constants.


def kernel(name):
    (found,), why = calls._read_kernels(
        (native.MachineCode(name, (FOLDER / f"{name}.bin").read_bytes()),)
    )
    assert why == ""
    return found


@can_read
def test_the_second_convolution_of_lenet_has_six_accumulators():
    found = kernel("convolution_avx2")
    assert (found.code_bytes, found.multiply_adds, found.dot_products, found.vector_bits) == (
        1143,
        60,
        0,
        256,
    )
    sums = re.findall(r"vfmadd231ps (ymm\d+)", found.listing)
    assert (len(sums), sorted(set(sums))) == (60, [f"ymm{place}" for place in range(6)])


@can_read
def test_the_constants_behind_a_kernel_are_not_counted():
    found = kernel("gelu_avx2")
    assert (found.instructions, "(bad)" in found.listing) == (132, False)
    assert found.listing.splitlines()[-1].split()[1] == "ret"


@can_read
def test_sums_of_short_products_are_counted_apart():
    words = bytes.fromhex("62f27608 52c2c4e26d50c1c5f5f5c2c4e27504c2c3")  # vdpbf16ps ... ret
    (found,), _ = calls._read_kernels((native.MachineCode("short", words),))
    mnemonics = [line.split()[1] for line in found.listing.splitlines()[1:]]
    assert mnemonics == ["vdpbf16ps", "vpdpbusd", "vpmaddwd", "vpmaddubsw", "ret"]
    assert (found.dot_products, found.multiply_adds) == (4, 0)


def test_without_a_disassembler_a_kernel_has_its_size_and_the_trace_says_what_to_install(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(calls.platform, "machine", lambda: "x86_64")
    (found,), why = calls._read_kernels((native.MachineCode("jit", b"\xc3"),))
    assert (found.code_bytes, found.instructions, found.dot_products, found.vector_bits) == (
        1,
        None,
        None,
        None,
    )
    assert "unknown" in str(found)
    assert re.search("objdump is not on the PATH.*binutils", why)
    monkeypatch.setattr(calls.platform, "machine", lambda: "arm64")
    _, why = calls._read_kernels((native.MachineCode("jit", b"\xc3"),))
    assert why == "they are read for x86-64, and this processor is arm64"
    assert calls._read_kernels(()) == ((), "")


def test_kernels_come_in_the_order_in_which_they_were_made(tmp_path):
    for name in (
        "dnnl_dump_cpu_b.2.bin",
        "dnnl_dump_cpu_a.10.bin",
        "dnnl_dump_cpu_c.1.bin",
        "other.3.bin",
        "log.txt",
    ):
        (tmp_path / name).write_bytes(name.encode())
    found = following._kernels(tmp_path)
    assert [code.name for code in found] == ["c", "b", "a"]
    assert found[0].code == b"dnnl_dump_cpu_c.1.bin"
    assert pickle.loads(pickle.dumps(found)) == found
