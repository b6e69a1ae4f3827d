"""A processor's instructions counted: of a function in assembler, whose counts are known, and of
compiled ones.
"""

import platform
import shutil

import pytest

from helpers import native
from helpers.native import _machine_code as machine_code, _x86 as x86
from helpers.results import from_dict

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None
    or shutil.which("objdump") is None
    or platform.machine() not in ("x86_64", "AMD64"),
    reason="needs g++, objdump and an x86-64 processor",
)

ASSEMBLER = r"""
asm(R"(
.intel_syntax noprefix
.text
.p2align 5
.globl known
.type known, @function
known:
    vmovups ymm0, [rdi]
    vfmadd231ps ymm0, ymm1, [rsi]
    vfmadd213ss xmm0, xmm1, xmm2
    vfnmadd132sd xmm0, xmm1, [rip + constant]
    mulps xmm0, xmm1
    vmulss xmm0, xmm1, [rip + constant]
    addsd xmm0, [rsi + rcx*8 + 16]
    vsubps ymm0, ymm0, ymm1
    vmovups [rdx], ymm0
    add dword ptr [rdx], 3
    inc dword ptr [rdx]
    cmp dword ptr [rdx], 5
    lea rax, [rdx + 4]
    je 2f
    prefetcht0 [rdi]
    lock xadd [rdx], eax
    mov byte ptr [rdx], 1
    mov eax, [rdx]
    push rax
    pop rax
    rep stosd
2:  ret
.size known, .-known
.p2align 5
.globl after
after:
    ret
constant: .quad 0
.att_syntax
)");
extern "C" int after();
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return native.compile_cpp(ASSEMBLER, folder=tmp_path_factory.mktemp("library"))


def test_a_function_written_in_assembler_has_the_counts_that_were_written(library):
    found = native.census(library, function="known")
    assert (found.architecture, found.total - found.padding) == ("x86-64", 22)
    assert (found.scalar_fmas, found.packed_fmas, found.multiply_adds) == (2, 1, 3)
    assert (found.scalar_multiplies, found.packed_multiplies) == (1, 1)
    assert (found.scalar_adds, found.packed_adds, found.vector_bits) == (1, 1, 256)
    # vmovups, two FMAs, vmulss, addsd, add, inc, cmp, xadd, mov
    assert (found.loads, found.constant_loads) == (10, 2)
    # vmovups, add, inc, xadd, mov, stosd
    assert (found.stores, found.branches) == (6, 2)
    assert sum(row.count for row in found.kinds) == found.total
    assert from_dict(native.HostCensus, found.to_dict()) == found
    assert "packed fmas" in str(found)


def test_the_listing_starts_at_the_function_and_names_each_instruction(library):
    lines = native.disassemble(library, function="known").splitlines()
    assert lines[:2] == ["known:", "  0000  vmovups ymm0, YMMWORD PTR [rdi]"]
    assert "lock" not in "".join(lines)
    assert "known:" in native.disassemble(library)
    assert "after:" in native.disassemble(library)
    assert "frame_dummy" not in native.disassemble(library)


def test_a_path_and_bytes_give_what_the_library_gives(library):
    expected = native.census(library, function="known")
    assert native.census(library.path, function="known") == expected
    assert native.census(str(library.path), function="known") == expected
    assert native.census(library.path.read_bytes(), function="known") == expected


def test_what_the_compiler_makes_of_a_constant_and_of_a_pointer(tmp_path):
    source = """
    static const float weights[4] = {0.5f, 1.25f, -3.0f, 0.1f};
    static inline float dot(const float* w, const float* x) {
        return w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3]; }
    extern "C" float fixed(const float* x) { return dot(weights, x); }
    extern "C" float pointer(const float* w, const float* x) { return dot(w, x); }
    extern "C" void scale(float* __restrict__ y, const float* __restrict__ x, int n) {
        for (int i = 0; i < n; ++i) y[i] = 3.0f * x[i]; }
    float plain(float x) { return x; }
    """
    scalar = ("-O2", "-mfma", "-fno-tree-vectorize", "-fno-tree-slp-vectorize")
    library = native.compile_cpp(source, flags=scalar, folder=tmp_path)
    fixed, pointer = (native.census(library, function=name) for name in ("fixed", "pointer"))
    # four products summed in order; the first may be a product alone
    for found in (fixed, pointer):
        assert found.multiply_adds + found.scalar_multiplies == 4
        assert found.loads == 8
    # x86 has no fp32 immediate: a weight is a load
    assert (fixed.constant_loads, pointer.constant_loads) == (4, 0)
    vectors = native.compile_cpp(source, flags=("-O3", "-mavx2"), folder=tmp_path)
    scale = native.census(vectors, function="scale")
    assert (scale.packed_multiplies > 0, scale.vector_bits) == (True, 256)
    assert native.census(library, function="plain").function == "_Z5plainf"
    with pytest.raises(ValueError, match=r"no function 'missing'; it has .*fixed"):
        native.census(library, function="missing")
    with pytest.raises(ValueError, match="say which function"):
        native.census(library)


@pytest.mark.parametrize(
    ("text", "loads", "stores", "branch"),
    [
        ("vmovss DWORD PTR [rdi],xmm1", 0, 1, False),
        ("vmovss xmm1,DWORD PTR [rdi]", 1, 0, False),
        ("vfmadd231ps zmm0,zmm1,DWORD BCST [rip+0x10]", 1, 0, False),
        ("vaddps zmm0{k1}{z},zmm1,DWORD PTR [rax]{1to16}", 1, 0, False),
        ("vmovups zmmword ptr [rax], zmm0", 0, 1, False),
        ("vgatherdps ymm0,DWORD PTR [rax+ymm1*4],ymm2", 1, 0, False),
        ("vpmovdb XMMWORD PTR [rax],zmm0", 0, 1, False),
        ("vextractf128 XMMWORD PTR [rax],ymm0,0x1", 0, 1, False),
        ("sete BYTE PTR [rax]", 0, 1, False),
        ("jmp    QWORD PTR [rip+0x2f92]        # 3fc8 <f>", 1, 0, True),
        ("call   1030 <f@plt>", 0, 0, True),
        ("notrack jmp rax", 0, 0, True),
        ("imul eax,DWORD PTR [rdx],0x3", 1, 0, False),
        ("mul QWORD PTR [rdx]", 1, 0, False),
        ("kmovw WORD PTR [rsp],k6", 0, 1, False),
        ("fadd DWORD PTR [rax]", 1, 0, False),
        ("fnstcw WORD PTR [rsp]", 0, 1, False),
        ("fistp QWORD PTR [rsp]", 0, 1, False),
        ("fild DWORD PTR [rsp]", 1, 0, False),
        ("xchg DWORD PTR [rax],ecx", 1, 1, False),
        ("data16 cs nop WORD PTR [rax+rax*1+0x0]", 0, 0, False),
        ("mov rax,QWORD PTR fs:0x28", 1, 0, False),
        ("cmpxchg DWORD PTR [rdx],ecx", 1, 1, False),
        ("lea rax,[rip+0x2]", 0, 0, False),
        ("vmovups\txmm0, xmmword ptr [rdi]", 1, 0, False),
        ("vucomiss xmm0,DWORD PTR [rdi]", 1, 0, False),
        ("neg DWORD PTR [rdi]", 1, 1, False),
        ("ret", 0, 0, True),
    ],
)
def test_what_an_instruction_does_to_memory(text, loads, stores, branch):
    one = x86._instruction(0, text)
    assert (int(one.loads), int(one.stores), one.is_branch) == (loads, stores, branch)


def test_padding_is_what_stands_behind_the_last_instruction():
    listing = (
        "0000 <f>:\n   0:\tnop\n   1:\tret\n   2:\txchg   ax,ax\n   4:\tcs nop WORD PTR [rax]\n   "
        "8:\tint3\n"
    )
    function = x86.parse(listing)["f"]
    assert (len(function.instructions), function.padding) == (5, 3)
    assert machine_code.host_census(function).branches == 1
    assert x86.parse("") == {}


CODE = "c5fc1007 c4e275b806 7404 c5fc1102 c3"  # vmovups, vfmadd231ps, je to ret, vmovups, ret
CONSTANTS = "c4e275b806" * 3  # they read as instructions


@pytest.mark.parametrize(
    ("code", "total"),
    [
        (CODE, 5),
        (CODE + CONSTANTS, 5),
        (CODE + "cc" * 5, 5),
        (f"7401 c3 {CODE}{CONSTANTS}", 7),
        (f"ffe0 {CODE}{CONSTANTS}", 9),
    ],
    ids=[
        "alone",
        "constants behind",
        "filler behind",
        "a return before the last",
        "a computed jump",
    ],
)
def test_machine_code_without_a_file_ends_with_the_last_instruction_that_is_reached(code, total):
    program = native.MachineCode("generated", bytes.fromhex(code))
    found = native.census(program)
    assert (found.function, found.total, found.vector_bits) == ("generated", total, 256)
    assert found.multiply_adds == 1 + 3 * ("ffe0" in code)
    assert native.disassemble(program).splitlines()[-1].split()[1] == (
        "vfmadd231ps" if "ffe0" in code else "ret"
    )
    # the wrong version: all that can be read
    whole = machine_code._objdump(machine_code.object_file(program))
    assert len(x86.parse(whole)["generated"].instructions) >= total


# What llvm-objdump 14 printed of CODE.
LLVM = """
generated.o:\tfile format elf64-x86-64

Disassembly of section .text:

0000000000000000 <generated>:
       0:      \tvmovups\tymm0, ymmword ptr [rdi]
       4:      \tvfmadd231ps\tymm0, ymm1, ymmword ptr [rsi] # ymm0 = (ymm1 * mem) + ymm0
       9:      \tje\t0xf <generated+0xf>
       b:      \tvmovups\tymmword ptr [rdx], ymm0
       f:      \tret
"""


def test_llvm_s_listing_counts_as_gnu_s(monkeypatch):
    program = native.MachineCode("generated", bytes.fromhex(CODE))
    gnu = native.census(program)
    monkeypatch.setattr(machine_code, "_objdump", lambda program: LLVM)
    machine_code._read_code.cache_clear()
    assert native.census(program) == gnu
    assert (gnu.loads, gnu.stores, gnu.branches) == (2, 1, 2)


def test_what_is_not_a_program_or_not_x86_is_refused(tmp_path, monkeypatch):
    for content in (b"", b"text", b"\x7fELF"):
        with pytest.raises(native.NativeError, match="objdump cannot read the program"):
            native.census(content, function="f")
    with pytest.raises(TypeError, match="is read, not int"):
        native.census(3)
    with pytest.raises(native.NativeError, match="cannot be read"):
        native.disassemble(tmp_path / "missing.so")
    arm = (
        "f.o:     file format elf64-littleaarch64\n\nDisassembly of section .text:\n\n0000 <f>:\n  "
        " 0:\tret\n"
    )
    monkeypatch.setattr(machine_code, "_objdump", lambda program: arm)
    with pytest.raises(native.NativeError, match="counted for x86-64, not for elf64-littleaarch64"):
        native.census(b"", function="f")
    assert native.disassemble(b"").endswith("ret")


def test_without_objdump_it_says_what_to_install(monkeypatch, library, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(native.MissingToolError, match=r"objdump is not on the PATH.*binutils"):
        native.census(library, function="known")
