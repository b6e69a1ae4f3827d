"""A GPU's instructions counted without a GPU: kernels whose counts are known, held to NVIDIA's own
cuobjdump.
"""

import re
import subprocess
from pathlib import Path

import pytest

from helpers import native
from helpers.native import (
    _cubin as cubin_file,
    _machine_code as machine_code,
    _nvrtc as nvrtc,
    _tools as tools,
)
from helpers.results import from_dict

ARCHITECTURES = ("sm_75", "sm_80", "sm_90")
WEIGHTS = 12
VALUES = ", ".join(f"{0.1 * index + 0.37:.6f}f" for index in range(WEIGHTS))
KERNELS = f"""
__device__ const float fixed[{WEIGHTS}] = {{{VALUES}}};
__constant__ float constant[{WEIGHTS}];
__device__ float plain[{WEIGHTS}];
struct Weights {{ float w[{WEIGHTS}]; }};
template <typename W> __device__ float dot(const W& w, const float* x) {{
    float sum = x[{WEIGHTS}];
    #pragma unroll
    for (int i = 0; i < {WEIGHTS}; ++i) sum = fmaf(w[i], x[i], sum);
    return sum;
}}
extern "C" __global__ void k_const(const float* x, float* y) {{ *y = dot(fixed, x); }}
extern "C" __global__ void k_constant(const float* x, float* y) {{ *y = dot(constant, x); }}
extern "C" __global__ void k_parameter(const float* x, float* y, const __grid_constant__ Weights w) {{
    *y = dot(w.w, x); }}
extern "C" __global__ void k_device(const float* x, float* y) {{ *y = dot(plain, x); }}
extern "C" __global__ void k_pointer(const float* x, float* y, const float* w) {{ *y = dot(w, x); }}
extern "C" __global__ void k_shared(const float* x, float* y, const float* w) {{
    __shared__ float copy[{WEIGHTS}];
    if (threadIdx.x < {WEIGHTS}) copy[threadIdx.x] = w[threadIdx.x];
    __syncthreads();
    *y = dot(copy, x);
}}
extern "C" __global__ void k_widths(const float4* a, const double* b, const short* c, const signed char* d,
                                    float4* e) {{
    __shared__ double room[64];
    e[threadIdx.x] = a[threadIdx.x];
    ((double*)e)[300] = b[1];
    ((short*)e)[4001] = c[2];
    ((signed char*)e)[9001] = d[3];
    room[threadIdx.x] = b[7];
    __syncthreads();
    ((double*)e)[700] = room[threadIdx.x ^ 5];
    atomicAdd((float*)e, 1.0f);
    atomicAdd((double*)e + 1, 1.0);
}}
extern "C" __global__ void k_moves(float* y) {{ y[0] = 1.0f; y[1] = 0.25f; y[2] = 3.0f; y[3] = 5.0f; y[4] = -7.0f; }}
extern "C" __global__ void k_special(const float* x, float* y) {{
    y[0] = fmaf(x[0], __int_as_float(0x7f800000), x[1]);
    y[1] = fmaf(x[2], __int_as_float(1), x[3]);
    y[2] = fmaf(x[4], x[5], -1e30f);
}}
__device__ __noinline__ float outside(float a, int n) {{ for (int i = 0; i < n; ++i) a = a * a + 1.5f; return a; }}
extern "C" __global__ void k_call(const float* x, float* y, int n) {{ *y = outside(x[0], n) + outside(x[1], n + 1); }}
__global__ void mangled(float* y) {{ *y = 1; }}
"""  # noqa: E501
SPILLS = """
extern "C" __global__ void k_spill(const float* x, float* y) {
    float t[64], sum = 0;
    #pragma unroll
    for (int i = 0; i < 64; ++i) t[i] = x[i * 32 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 64; ++i) sum = sum * t[i] + t[63 - i];
    #pragma unroll
    for (int i = 0; i < 64; ++i) y[i * 32 + threadIdx.x] = t[i] * sum;
}"""
HALF = """
__device__ const unsigned short bits[4] = {0x3800, 0x3d00, 0xc200, 0x2e66};
extern "C" __global__ void k_half(const unsigned* x, unsigned* y) {
    unsigned sum = y[1];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        unsigned pair = bits[i] * 0x10001u;
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(x[i]));
    }
    *y = sum;
}"""


def _missing() -> bool:
    try:
        nvrtc.find_nvrtc()
        tools.find_nvdisasm()
    except native.MissingToolError:
        return True
    return False


needs_tools = pytest.mark.skipif(_missing(), reason="no NVRTC or no nvdisasm")


@pytest.fixture(scope="module")
def cubins():
    return {
        name: native.compile_cuda(KERNELS, architecture=name)
        for name in (*ARCHITECTURES, "sm_120")
        if name in native.supported_architectures()
    }


@pytest.fixture(scope="module")
def counted(cubins):
    """Every kernel's census, by architecture and name."""
    functions = {name: machine_code.read_program(cubin).functions for name, cubin in cubins.items()}

    def census_of(architecture, kernel):
        body = functions[architecture][kernel]
        rows = {
            "kinds": machine_code._kinds(body.instructions),
            "accesses": machine_code._access_counts(body),
        }
        return machine_code._counts(body) | rows

    return census_of


def fed(found: dict) -> tuple[int, ...]:
    return tuple(found[kind] for kind in cubin_file.OPERAND_KINDS)


@needs_tools
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_where_the_weights_stand_decides_what_feeds_the_multiply_adds(architecture, counted):
    n, operand = WEIGHTS, architecture != "sm_90"
    names = ("k_const", "k_constant", "k_parameter", "k_device", "k_pointer", "k_shared")
    found = {name: counted(architecture, name) for name in names}
    assert {name: one["multiply_adds"] for name, one in found.items()} == dict.fromkeys(names, n)
    assert fed(found["k_const"]) == (n, 0, 0, 0)
    # On sm_75 and sm_80 the instruction reads constant memory itself; on sm_90 a uniform register,
    # loaded before.
    for name in ("k_constant", "k_parameter"):
        assert fed(found[name]) == ((0, n, 0, 0) if operand else (0, 0, n, 0))
    for name in ("k_device", "k_pointer", "k_shared"):
        assert fed(found[name]) == (0, 0, 0, n)
    inputs = n + 1
    assert [found[name]["global_loads"] for name in names] == [inputs] * 3 + [inputs + n] * 2 + [
        inputs + 1
    ]
    assert found["k_shared"]["shared_stores"] == 1
    widths = {
        row.width_bits: row.count for row in found["k_shared"]["accesses"] if row.space == "shared"
    }
    assert widths == {128: n // 4, 32: 1}
    assert {one["global_stores"] for one in found.values()} == {1}
    assert {one["local_loads"] + one["local_stores"] for one in found.values()} == {0}


@needs_tools
def test_on_sm_90_constant_memory_is_loaded_by_instructions_of_its_own(counted):
    weights = (
        counted("sm_90", "k_constant")["constant_loads"]
        - counted("sm_90", "k_const")["constant_loads"]
    )
    assert weights == WEIGHTS // 2  # ULDC.64 brings two weights
    assert (
        counted("sm_80", "k_constant")["constant_loads"]
        == counted("sm_80", "k_const")["constant_loads"]
    )


@needs_tools
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loads_stores_and_atomics_by_space_and_width(architecture, counted):
    rows = counted(architecture, "k_widths")["accesses"]
    found = {
        (row.access, row.space, row.width_bits): row.count
        for row in rows
        if row.space != "constant"
    }
    assert found == {
        ("load", "global", 128): 1,
        ("load", "global", 64): 2,
        ("load", "global", 16): 1,
        ("load", "global", 8): 1,
        ("store", "global", 128): 1,
        ("store", "global", 64): 2,
        ("store", "global", 16): 1,
        ("store", "global", 8): 1,
        ("load", "shared", 64): 1,
        ("store", "shared", 64): 1,
        ("atomic", "global", 32): 1,
        ("atomic", "global", 64): 1,
    }


@needs_tools
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_a_constant_that_is_moved_by_zero_times_zero_is_no_multiply_add(architecture, counted):
    if architecture not in native.supported_architectures():
        pytest.skip(f"this NVRTC does not know {architecture}")
    found = counted(architecture, "k_moves")
    assert (found["multiply_adds"], found["global_stores"]) == (0, 5)
    kinds = {row.kind: row.count for row in found["kinds"]}
    assert architecture == "sm_75" or kinds["HFMA2"] > 0  # the trap is there to fall into
    assert fed(counted(architecture, "k_special")) == (3, 0, 0, 0)


@needs_tools
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_halves_stand_in_the_instruction_two_by_two(architecture):
    found = native.census(native.compile_cuda(HALF, architecture=architecture))
    assert (found.multiply_adds, found.immediate, found.global_loads) == (4, 4, 5)


@needs_tools
def test_without_a_limit_on_registers_nothing_spills():
    free = native.census(native.compile_cuda(SPILLS))
    assert (free.spill_store_bytes, free.spill_load_bytes, free.stack_bytes) == (0, 0, 0)
    assert (free.local_loads, free.local_stores, free.registers > 64) == (0, 0, True)


@needs_tools
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_spills_are_ptxas_word_and_agree_with_the_loads_and_stores(architecture):
    cubin = native.compile_cuda(SPILLS, architecture=architecture, options=("--maxrregcount=32",))
    tight = native.census(cubin)
    local = [row for row in tight.accesses if row.space == "local"]
    bytes_moved = {row.access: 0 for row in local}
    for row in local:
        bytes_moved[row.access] += row.count * row.width_bits // 8
    assert bytes_moved == {"load": tight.spill_load_bytes, "store": tight.spill_store_bytes}
    assert (tight.registers, tight.spill_load_bytes > 0, tight.stack_bytes > 0) == (32, True, True)
    unknown = native.census(cubin.image)
    assert (unknown.spill_load_bytes, unknown.local_loads) == (None, tight.local_loads)
    assert "spill load        unknown" in str(unknown)


@needs_tools
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_cuobjdump_counts_the_same_instructions_registers_and_stack(architecture, cubins, tmp_path):
    tool = Path(tools.find_nvdisasm()).with_name("cuobjdump")
    if not tool.exists():
        pytest.skip("no cuobjdump beside nvdisasm")
    path = tmp_path / "program.cubin"
    path.write_bytes(cubins[architecture].image)

    def run(option):
        done = subprocess.run([tool, option, path], capture_output=True, text=True, check=True)
        return done.stdout

    listed = re.split(r"\n\s*Function : ", run("-sass"))[1:]
    instructions = {
        part.split()[0]: len(re.findall(r"/\*[0-9a-f]{4,}\*/\s+[^/\s]", part)) for part in listed
    }
    registers = dict(re.findall(r"Function (\S+):\n\s*REG:(\d+)", run("-res-usage")))
    assert len(instructions) == 11
    assert instructions.keys() == registers.keys() == set(cubins[architecture].kernels)
    for name, total in instructions.items():
        found = native.census(cubins[architecture], function=name)
        assert (found.function, found.total, found.registers) == (name, total, int(registers[name]))
        assert sum(row.count for row in found.kinds) == total
        assert from_dict(native.Census, found.to_dict()) == found
        assert found.architecture == architecture


@needs_tools
def test_a_called_function_is_counted_with_its_kernel(cubins):
    text = native.disassemble(cubins["sm_90"], function="k_call")
    assert "outside" in text
    found = native.census(cubins["sm_90"], function="k_call")
    assert found.multiply_adds > 1
    assert (
        found.total - found.padding
        == len(re.findall(r"^  [0-9a-f]{4} ", text, re.MULTILINE)) - found.padding
    )


@needs_tools
def test_the_listing_and_the_ways_to_name_a_function_and_a_program(cubins, tmp_path):
    cubin = cubins["sm_80"]
    text = native.disassemble(cubin, function="k_const")
    assert text.startswith("k_const:\n  0000       MOV R1, c[0x0][0x28]\n")
    assert len(re.findall(r" FFMA ", text)) == WEIGHTS
    assert native.disassemble(cubin).count("EXIT") >= 11
    path = tmp_path / "program.cubin"
    path.write_bytes(cubin.image)
    assert native.disassemble(path, function="k_const") == text
    assert (
        native.census(path, function="k_const").total
        == native.census(cubin, function="k_const").total
    )
    assert native.census(path, function="k_const").architecture == "sm_80"
    assert native.census(cubin, function="mangled").function == "_Z7mangledPf"
    with pytest.raises(ValueError, match=r"no function 'k_cons'; it has .*k_const"):
        native.census(cubin, function="k_cons")
    with pytest.raises(native.NativeError, match="damaged or cut off"):
        native.census(cubin.image[:2000], function="k_const")


@needs_tools
def test_a_listing_that_is_not_understood_is_no_count_of_zero(cubins, monkeypatch):
    machine_code._read_gpu.cache_clear()
    real = machine_code._output
    monkeypatch.setattr(
        machine_code, "_output", lambda command: real(command).replace("FFMA", "%%", 1)
    )
    with pytest.raises(native.NativeError, match=r"k_\w+ has .* bytes of code, in which nvdisasm"):
        native.census(cubins["sm_80"], function="k_const")


def test_without_nvdisasm_it_says_where_it_comes_from(monkeypatch, tmp_path):
    monkeypatch.setattr(tools, "package_folders", lambda name: [])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools.sys, "prefix", str(tmp_path))
    with pytest.raises(
        native.MissingToolError,
        match=r"neither in Triton's wheel nor on the PATH.*CUDA build of torch",
    ):
        tools.find_nvdisasm()


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("FFMA R0, R1, 0.5, R2", "FFMA", "immediate"),
        ("FFMA.FTZ R0, R1, -1.0842021724855044340e-19, R2", "FFMA", "immediate"),
        ("FFMA R0, R1, +INF , R0", "FFMA", "immediate"),
        ("FFMA R0, R1, -QNAN , R0", "FFMA", "immediate"),
        ("FFMA R0, -R1.reuse, R2, 1", "FFMA", "immediate"),
        ("HFMA2 R0, R1.H0_H0, 0.5, 0.5, R2", "HFMA2", "immediate"),
        ("FFMA R0, R1, c[0x3][0x10], R2", "FFMA", "constant_bank"),
        ("FFMA R0, R1, -c[0x3][R4+0x10], R2", "FFMA", "constant_bank"),
        ("FFMA R0, R1, cx[UR4][0x10], R2", "FFMA", "constant_bank"),
        ("FFMA R0, R1, |UR6|, R2", "FFMA", "uniform_register"),
        ("FFMA R0, R1, R3, R2", "FFMA", "register"),
        ("IADD3 R0, R1, R2, URZ", "IADD3", "register"),
        ("FFMA2 R4, R2.F32x2.HI_LO, R6.F32x2.HI_LO, R8.F32x2.HI_LO", "FFMA2", "register"),
        ("IMAD.WIDE.U32 R2, R5, 0x4, R2", "IMAD", "immediate"),
        ("ISETP.GE.AND P0, PT, R4, RZ, PT", "ISETP", "register"),
        ("LDG.E R0, desc[UR4][R2.64+0x8]", "LDG", None),
        ("STG.E desc[UR4][R2.64], R4", "STG", "register"),
        ("ULDC.64 UR4, c[0x0][0x208]", "ULDC", "constant_bank"),
        ("UMOV UR4, 0x400", "UMOV", "immediate"),
        ("BRA `(.L_x_5)", "BRA", None),
        ("EXIT", "EXIT", None),
        ("S2R R0, SR_TID.X", "S2R", None),
        ("BAR.SYNC 0x0", "BAR", "immediate"),
    ],
)
def test_what_feeds_an_instruction(text, kind, expected):
    one = instruction(text)
    assert (one.kind, one.operand_kind) == (kind, expected)
    assert one.multiplies_and_adds == (kind in ("FFMA", "FFMA2", "HFMA2"))


@pytest.mark.parametrize(
    ("text", "accesses"),
    [
        ("LDG.E.128.CONSTANT.SYS R4, [R4]", [("load", "global", 128)]),
        ("LDS.U.128 R4, [R0]", [("load", "shared", 128)]),
        ("LDG.E.LTC128B.64 R4, desc[UR4][R2.64]", [("load", "global", 64)]),
        ("LDC.U16 R1, c[0x0][R2]", [("load", "constant", 16)]),
        ("LDCU.128 UR8, c[0x3][URZ]", [("load", "constant", 128)]),
        ("LD.E.S8 R1, [R2.64]", [("load", "generic", 8)]),
        ("LDSM.16.M88.4 R4, [R8]", [("load", "shared", 128)]),
        ("LDSM.16.M88 R4, [R8]", [("load", "shared", 32)]),
        (
            "LDGSTS.E.BYPASS.LTC128B.128 [R1], desc[UR4][R2.64]",
            [("load", "global", 128), ("store", "shared", 128)],
        ),
        ("REDG.E.ADD.F64.RN.STRONG.GPU desc[UR4][R8.64], R12", [("atomic", "global", 64)]),
        ("TEX.SCR.LL R0, R2", [("load", "texture", None)]),
        ("ATOMS.ADD R1, [R2], R3", [("atomic", "shared", 32)]),
        ("STL.64 [R1+0x8], R2", [("store", "local", 64)]),
        ("LDGDEPBAR", []),
    ],
)
def test_what_an_instruction_does_to_memory(text, accesses):
    assert list(instruction(text).accesses) == accesses


def instruction(text: str) -> cubin_file.GpuInstruction:
    listing = (
        '\t.section\t.text.k,"ax",@progbits\nk:\n.text.k:\n        /*0000*/              @!P0 '
        f"{text} ;\n"
    )
    (one,) = cubin_file.parse(listing)["k"].instructions
    assert one.predicate == "@!P0"
    return one


def test_what_nvdisasm_prints_of_the_scheduling_is_no_operand():
    """As nvdisasm 12.8, which comes with the Triton of torch 2.11, prints it for Blackwell."""
    multiply_add = instruction("FFMA R1, R2, R3, 1.5 &req={2,3} &wr=0x0 ?WAIT5_END_GROUP")
    assert multiply_add.operands == ("R1", "R2", "R3", "1.5")
    assert instruction("EXIT ?trans5").operands == ()


def test_padding_is_the_jump_to_itself_and_what_follows():
    body = ["EXIT ;", "L", "BRA `(.L_x_0);", "NOP;", "NOP;"]
    lines, offset = (
        [
            '\t.section\t.text.k,"ax",@progbits',
            '\t.sectioninfo\t@"SHI_REGISTERS=10"',
            "k:",
            ".text.k:",
        ],
        0,
    )
    for text in body:
        lines.append(
            ".L_x_0:" if text == "L" else f"        /*{offset:04x}*/                   {text}"
        )
        offset += 0 if text == "L" else 16
    function = cubin_file.parse("\n".join(lines))["k"]
    assert (len(function.instructions), function.padding) == (4, 3)
    loop = cubin_file.parse("\n".join([*lines[:4], lines[5], lines[4], lines[6]]))["k"]
    assert loop.padding == 0  # a jump back to an earlier instruction is a loop, not padding
    assert cubin_file.parse("") == {}
