"""Logs of real runs read into records that were written down by hand, and forms that are refused.

The logs are of oneDNN 3.12 and MKL 2024 on an AMD EPYC with AVX-512, with oneDNN free, and told to
use less (``ONEDNN_MAX_CPU_ISA``). The run: convolutions at batch 2 and 1, GELU, an FFT, and a
product of bfloat16 matrices.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.studies.stack import CalledLibrary, Primitive, _logs as logs, read_log

FOLDER = Path(__file__).parent
CONVOLUTION = "mb2_ic6oc16_ih12oh8kh5sh1dh0ph0_iw12ow8kw5sw1dw0pw0"
FFT = "srfo64,input_strides:{0,1},output_strides:{0,1},input_distance:64,output_distance:64,tLim:1"
MKL = CalledLibrary(
    "MKL", "oneMKL 2024.0 Update 2 Product build 20240605", "Intel(R) Architecture", 2
)


def read(name: str) -> tuple[tuple[CalledLibrary, ...], tuple[Primitive, ...]]:
    return read_log((FOLDER / f"verbose_{name}.txt").read_text(encoding="utf-8"))


def onednn(name, implementation, problem, tensors, elapsed_ms):
    return Primitive(
        "oneDNN",
        name,
        implementation,
        problem,
        tensors,
        pytest.approx(elapsed_ms / 1000, rel=1e-12),
    )


def mkl(name, problem, elapsed_us):
    return Primitive("MKL", name, "", problem, "", pytest.approx(elapsed_us / 1e6, rel=1e-12))


def test_the_log_of_avx_512():
    libraries, primitives = read("avx512")
    assert libraries == (
        CalledLibrary(
            "oneDNN", "v3.12.0", "Intel AVX-512 with Intel DL Boost and bfloat16 support", 5
        ),
        MKL,
    )
    assert primitives == (
        onednn("reorder", "jit:uni", "16x6x5x5", "src f32 abcd, dst f32 Acdb16a", 0.0109863),
        onednn(
            "convolution",
            "jit:avx512_core",
            CONVOLUTION,
            "src f32 abcd, wei f32 Acdb16a, bia f32 a, dst f32 aBcd16b",
            0.0290527,
        ),
        onednn("reorder", "jit:blk", "2x16x8x8", "src f32 aBcd16b, dst f32 abcd", 0.00219727),
        mkl("SGEMM", "N,N,36,4,27,36,27,36", 128.65),
        onednn("eltwise", "jit:avx512_core_bf16", "100", "data f32 a", 0.00415039),
        mkl("FFT", FFT, 9.43),
        onednn(
            "matmul",
            "brg_matmul:avx512_core_bf16",
            "64x64:64x64",
            "src bf16 ab, wei bf16 ab, dst bf16 ab",
            0.0480957,
        ),
    )


def test_the_log_of_avx2():
    libraries, primitives = read("avx2")
    assert libraries == (CalledLibrary("oneDNN", "v3.12.0", "Intel AVX2", 4), MKL)
    assert primitives == (
        onednn("reorder", "jit:uni", "16x6x5x5", "src f32 abcd, dst f32 Acdb8a", 0.00610352),
        onednn(
            "convolution",
            "jit:avx2",
            CONVOLUTION,
            "src f32 abcd, wei f32 Acdb8a, bia f32 a, dst f32 aBcd8b",
            0.0200195,
        ),
        onednn("reorder", "jit:blk", "2x16x8x8", "src f32 aBcd8b, dst f32 abcd", 0.00317383),
        mkl("SGEMM", "N,N,36,4,27,36,27,36", 198.33),
        onednn("eltwise", "jit:avx2", "100", "data f32 a", 0.00415039),
        mkl("FFT", FFT, 8.11),
    )


def test_the_log_without_avx_has_a_product_and_no_blocked_layout():
    libraries, primitives = read("sse41")
    assert libraries[0] == CalledLibrary("oneDNN", "v3.12.0", "Intel SSE4.1", 3)
    assert primitives[0] == onednn(
        "convolution",
        "x64:gemm:jit",
        CONVOLUTION,
        "src f32 abcd, wei f32 abcd, bia f32 a, dst f32 abcd",
        1.23999,
    )
    assert [primitive.name for primitive in primitives] == [
        "convolution",
        "reorder",
        "SGEMM",
        "eltwise",
        "FFT",
    ]


@pytest.mark.parametrize(
    "log",
    [
        "",
        "what the program says\nexec,cpu,convolution\nMKL is installed\n",
        (
            "onednn_verbose,v1,info,oneDNN v3.12.0 (commit "
            "80afa)\nonednn_verbose,v1,info,cpu,isa:Intel AVX2\n"
        ),
        "onednn_verbose,v1,graph,exec,cpu,100002,misc,op,data,tensors,fpmath,implementation,backend,0.1\n",
        "MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture "
        "Intel(R) Architecture processors, Lnx 2.60GHz lp64 gnu_thread\n",
    ],
    ids=["empty", "other lines", "only oneDNN's start", "a graph", "only MKL's start"],
)
def test_a_log_without_a_call_names_no_library(log):
    assert read_log(log) == ((), ())


@pytest.mark.parametrize(
    ("descriptor", "text"),
    [
        ("src:f32:a:blocked:abcd::f0", "src f32 abcd"),
        ("src_f32::blocked:abcd:f0", "src f32 abcd"),
        ("diff_src_layer:f32:a:blocked:abc::f0", "diff_src_layer f32 abc"),
        ("wei:f8_e4m3::blocked:ab::f0", "wei f8_e4m3 ab"),
        ("dst:bf16:ap:blocked:AcdB16a2b::f0", "dst bf16 AcdB16a2b"),
        ("bia:undef::undef:::", ""),
        ("bia_undef::undef::", ""),
        ("wei:s8:ap:rnn_packed:x::f0", "wei:s8:ap:rnn_packed:x::f0"),
        ("wei:f32:a:blocked", "wei:f32:a:blocked"),
    ],
)
def test_a_tensor_is_named_by_its_role_its_format_and_its_layout(descriptor, text):
    assert logs._tensor(descriptor) == text


@pytest.mark.parametrize(
    ("header", "instructions"),
    [
        (
            (
                "Intel(R) Advanced Vector Extensions 512 (Intel(R) AVX-512) enabled processors, "
                "Lnx 2.70GHz lp64 intel_thread"
            ),
            "Intel(R) Advanced Vector Extensions 512 (Intel(R) AVX-512)",
        ),
        (
            (
                "Intel(R) Advanced Vector Extensions (Intel(R) AVX) Enabled Processor, Win 3.10GHz "
                "lp64 intel_thread"
            ),
            "Intel(R) Advanced Vector Extensions (Intel(R) AVX)",
        ),
    ],
)
def test_mkl_names_its_instructions(header, instructions):
    log = (
        f"MKL_VERBOSE oneMKL 2023.1 Product build 20230303 for Intel(R) 64 architecture {header}\n"
    )
    (library,), (primitive,) = read_log(
        f"{log}MKL_VERBOSE DDOT(4,(nil),1,0x7f,1) 1.25ms CNR:OFF Dyn:1 FastMM:1 TID:0\n"
    )
    assert library == CalledLibrary("MKL", "oneMKL 2023.1 Product build 20230303", instructions, 1)
    assert (primitive.problem, primitive.elapsed_s) == ("4,1,1", pytest.approx(1.25e-3))


def test_a_library_that_does_not_state_itself_is_unknown_and_counted():
    (library,), _ = read_log("MKL_VERBOSE DDOT(4,0x1,1,0x7f,1) 12ns CNR:OFF Dyn:1 FastMM:1 TID:0\n")
    assert library == CalledLibrary("MKL", "unknown", "unknown", 1)


TEMPLATE = "onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,exec_time\n"  # noqa: E501


@pytest.mark.parametrize(
    "log",
    [
        "onednn_verbose,exec,cpu,convolution,jit:avx2,forward,src_f32::blocked:abcd:f0,,alg:direct,mb2,0.1",
        "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward,src:f32:a:blocked:abcd::f0,,,mb2,0.1",
        f"{TEMPLATE}onednn_verbose,v2,primitive,exec,cpu,convolution,jit:avx2,new,0.1",
        "MKL_VERBOSE SGEMM(N,N,36,4,27) took 3 us",
    ],
    ids=["oneDNN 2", "no template", "a field more", "MKL"],
)
def test_a_call_in_another_form_is_refused_and_not_left_out(log):
    with pytest.raises(
        ValueError,
        match=r"not the form of (oneDNN|MKL)'s log that is known here: .*give a whole log",
    ):
        read_log(log)
