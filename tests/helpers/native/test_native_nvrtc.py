"""CUDA C++ to a cubin without a GPU: every architecture, every way in which NVRTC may be installed
or missing.
"""

import os
import sys
from pathlib import Path

import pytest
import torch

from helpers import native
from helpers.native import _cubin as cubin_file, _nvrtc as nvrtc

ADD = (
    'extern "C" __global__ void add(const float* x, float* y, int n) { if (threadIdx.x < n) '
    "y[threadIdx.x] += *x; }"
)


def has_nvrtc() -> bool:
    try:
        nvrtc.find_nvrtc()
    except native.MissingToolError:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "native"


@needs_nvrtc
def test_a_kernel_compiles_for_every_architecture_that_nvrtc_knows():
    known = native.supported_architectures()
    assert {"sm_80", "sm_90"} <= set(known)
    for architecture in known:
        cubin = native.compile_cuda(ADD, architecture=architecture)
        assert (cubin.kernels, cubin.architecture) == (("add",), architecture)
        assert cubin_file.architecture(cubin.image) == architecture
        assert cubin_file.resources(cubin_file.read(cubin.image), "add").parameter_bytes == 20
    assert cubin.compiler == f"NVRTC {native.nvrtc_version()}"


@needs_nvrtc
def test_a_program_is_compiled_once_and_a_damaged_one_again(own_cache, monkeypatch):
    first = native.compile_cuda(ADD)
    again = native.compile_cuda(ADD)
    assert (first.was_cached, again.was_cached, first == again) == (False, True, True)
    assert (first.compile_s > 0, again.compile_s) == (True, 0.0)
    assert (again.image, again.log, again.architecture) == (first.image, first.log, "sm_90")
    (path,) = own_cache.iterdir()
    path.write_bytes(path.read_bytes()[:-8])
    assert native.compile_cuda(ADD).image == first.image
    assert [kept.name for kept in own_cache.iterdir()] == [path.name]
    others = [
        native.compile_cuda(ADD, options=("--maxrregcount=32",)),
        native.compile_cuda(ADD, architecture="sm_80"),
        native.compile_cuda(ADD + " "),
    ]
    assert not any(other.was_cached for other in others)


@needs_nvrtc
def test_cudas_headers_are_found_where_they_are_installed():
    if not nvrtc._include_options(nvrtc.find_nvrtc()):
        pytest.skip("no cuda_fp16.h beside NVRTC")
    source = (
        '#include <cuda_fp16.h>\nextern "C" __global__ void f(__half2* x) { *x = __hfma2(*x, *x, '
        "*x); }"
    )
    assert native.compile_cuda(source).kernels == ("f",)


@needs_nvrtc
@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        (
            'extern "C" __global__ void f(float* x) {\n  *x = missing;\n}',
            2,
            'identifier "missing" is undefined',
        ),
        ("\n\n#include <no_such_header.h>\n", 3, "cannot open source file"),
        ("__device__ int a = ;\n__device__ int b = ;", 1, "expected an expression"),
    ],
)
def test_a_refused_program_shows_the_first_error_and_its_line(source, line, words, own_cache):
    with pytest.raises(
        native.CompilationError, match=f"NVRTC refuses line {line}: .*{words}"
    ) as caught:
        native.compile_cuda(source)
    assert f"\n    {line} | {source.splitlines()[line - 1]}\n" in str(caught.value)
    assert words in caught.value.log
    assert str(own_cache) not in caught.value.log
    assert not list(own_cache.iterdir())


@needs_nvrtc
def test_errors_without_a_line_are_told_too():
    with pytest.raises(native.CompilationError, match="--no-such-option"):
        native.compile_cuda(ADD, options=("--no-such-option",))
    too_large = 'extern "C" __global__ void f() { __shared__ volatile float x[20000]; x[0] = 1; }'
    with pytest.raises(native.CompilationError, match="too much shared data"):
        native.compile_cuda(too_large)


@needs_nvrtc
@pytest.mark.parametrize(
    "architecture", ["sm_20", "sm_999", "compute_90", "90", "", None, 90, "sm_90 "]
)
def test_an_unknown_architecture_is_told_the_known_ones(architecture):
    with pytest.raises(ValueError, match=r"is not known to NVRTC \d+\.\d+; it knows .*sm_90"):
        native.compile_cuda(ADD, architecture=architecture)


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="source is the text"):
        native.compile_cuda(b"")
    with pytest.raises(TypeError, match="options is a tuple"):
        native.compile_cuda("", options="--use_fast_math")
    with pytest.raises(ValueError, match="NUL"):
        native.compile_cuda("a\0b")


@needs_nvrtc
def test_a_program_without_kernels_and_one_of_cpp_names():
    assert native.compile_cuda("").kernels == ()
    with pytest.raises(ValueError, match="say which function"):
        native.census(native.compile_cuda(""))
    source = ADD.replace('extern "C" ', "")
    assert native.compile_cuda(source).kernels == ("_Z3addPKfPfi",)


def lay(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


@pytest.mark.parametrize(
    ("release", "files", "expected"),
    [
        (
            "13.0",
            ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cu13/lib/libnvrtc.alt.so.13"),
            "nvidia/cu13/lib/libnvrtc.so.13",
        ),
        ("12.8", ("nvidia/cuda_nvrtc/lib/libnvrtc.so.12",), "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"),
        (
            "12.8",
            ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"),
            "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        ),
        (
            "13.0",
            ("torch/lib/nvrtc64_130_0.dll", "torch/lib/nvrtc64_130_0.alt.dll"),
            "torch/lib/nvrtc64_130_0.dll",
        ),
        (
            "12.9",
            ("prefix/lib/libnvrtc.so.12", "prefix/lib/libnvrtc-builtins.so.12.9"),
            "prefix/lib/libnvrtc.so.12",
        ),
        (None, ("prefix/lib/libnvrtc.so.12",), "prefix/lib/libnvrtc.so.12"),
        (
            "12.9",
            ("home/lib64/libnvrtc.so.12", "prefix/lib/libnvrtc.so.12"),
            "prefix/lib/libnvrtc.so.12",
        ),
        ("12.9", ("home/lib64/libnvrtc.so.12",), "home/lib64/libnvrtc.so.12"),
        ("13.0", (), None),
    ],
)
def test_nvrtc_is_found_in_wheels_conda_and_toolkits(
    release, files, expected, tmp_path, monkeypatch
):
    lay(tmp_path, *files)
    monkeypatch.setattr(nvrtc, "package_folders", lambda name: [tmp_path / name])
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(torch.version, "cuda", release)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    if expected is None:
        with pytest.raises(
            native.MissingToolError, match=r"no NVRTC beside torch.*a CUDA build of torch"
        ):
            native.compile_cuda(ADD)
    else:
        assert nvrtc.find_nvrtc() == tmp_path / expected


@pytest.mark.skipif(os.name != "posix", reason="the file is named as on Linux")
def test_an_nvrtc_that_does_not_load_is_named(tmp_path, monkeypatch):
    lay(tmp_path, "nvidia/cu13/lib/libnvrtc.so.13")
    monkeypatch.setattr(nvrtc, "package_folders", lambda name: [tmp_path / name])
    with pytest.raises(native.MissingToolError, match=r"libnvrtc\.so\.13 does not load"):
        native.compile_cuda(ADD)


@needs_nvrtc
def test_bytes_that_are_no_whole_cubin_are_refused():
    image = native.compile_cuda(ADD).image
    for content in (b"", b"//\n.version 9.0", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(80)):
        with pytest.raises(native.NativeError, match=r"no cubin|not for an NVIDIA GPU"):
            cubin_file.read(content)
    for size in (64, len(image) // 2, len(image) - 600):
        with pytest.raises(native.NativeError, match="damaged or cut off"):
            cubin_file.kernels(cubin_file.read(image[:size]))
