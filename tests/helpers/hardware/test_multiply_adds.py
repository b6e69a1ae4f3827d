"""The peak of a core: its program counted instruction by instruction, its rate held to clock x
lanes x units.

Wrong programs are planted and must be told from the right one: one chain, which waits for its own
result; vectors of half the width; numbers in the place of vectors; sums that the compiler may leave
out.
"""

import ctypes
import platform
import shutil

import pytest
import torch

from helpers import hardware, native
from helpers.hardware.limits import _multiply_adds as multiply_adds
from tests import cores

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
on_x86 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="a census is of x86-64"
)

CHAINS = 24 if platform.machine().lower() in ("arm64", "aarch64") else 12
# of clock x lanes x units: the clock of a shared core changes between two measurements
LEAST, MOST = 0.8, 1.2
TURNS = 9
# A census runs nothing, so it is of a processor with all forms, whatever this one has.
ALL_FORMS = (
    *(flag for flag in multiply_adds._FLAGS if flag != "-march=native"),
    "-march=sapphirerapids",
)


@pytest.fixture(scope="module")
def forms():
    return multiply_adds.compile_forms()


@pytest.fixture
def planted(monkeypatch):
    """Return a function from a change of the program's text to the forms of what it makes of it."""

    def compile_forms(old, new, count):
        text = multiply_adds.source()
        assert text.count(old) == count
        monkeypatch.setattr(multiply_adds, "source", lambda: text.replace(old, new))
        return multiply_adds.compile_forms()

    return compile_forms


def one_chain(planted):
    return planted(f"CHAINS = {CHAINS};", "CHAINS = 1;", 1)


# --- what the program is


def counted(name, text):
    """Return the packed and the scalar multiply-adds of a form, and what it loads and stores."""
    found = native.census(native.compile_cpp(text, flags=ALL_FORMS), function=name)
    return found.packed_fmas, found.scalar_fmas, found.vector_bits, max(found.loads, found.stores)


@on_x86
@pytest.mark.parametrize("bits", [256, 512])
def test_a_form_is_one_multiply_add_a_chain_on_whole_vectors_and_keeps_its_sums_in_registers(bits):
    for name in (
        f"{kind}_in_{bits}"
        for kind in ("float32", "float64", *(["float16"] if bits == 512 else []))
    ):
        packed, scalar, widest, moved = counted(name, multiply_adds.source())
        assert (packed, scalar, widest) == (CHAINS, 0, bits)
        # what is pushed and the two factors; a sum that is spilled is moved at every step
        assert moved < CHAINS


@on_x86
def test_numbers_in_the_place_of_vectors_and_sums_that_may_be_left_out_are_seen():
    text = multiply_adds.source()
    scalar = text.replace("Vectors<double, 32>", "Numbers<double>")
    assert counted("float64_in_256", scalar)[:2] == (0, CHAINS)
    free = text.replace('asm volatile("" : "+" REGISTER(sum));', "")
    assert counted("float32_in_256", free)[0] == 0


@on_x86
@pytest.mark.parametrize(
    "name", ["bfloat16_in_512", "bfloat16_in_256", "int8_in_512", "int8_in_256"]
)
def test_a_dot_product_is_one_instruction_a_chain(name):
    library = native.compile_cpp(multiply_adds.source(), flags=ALL_FORMS)
    kinds = {row.mnemonic: row.count for row in native.census(library, function=name).kinds}
    assert (
        sum(count for kind, count in kinds.items() if kind in ("vdpbf16ps", "vpdpbusd")) == CHAINS
    )


LANES = {"float32": 32, "float64": 64, "float16": 16, "bfloat16": 16, "int8": 8}  # bits of a number
TILE = {
    "bfloat16_in_tiles": 16 * 16 * 32,
    "float16_in_tiles": 16 * 16 * 32,
    "int8_in_tiles": 16 * 16 * 64,
}


def test_every_form_counts_the_multiply_adds_that_its_instructions_make(forms):
    for name, form in forms.items():
        kind, _, width = name.partition("_in_")
        factors, arrived = torch.zeros(1024, dtype=torch.uint8), torch.zeros(1, dtype=torch.int32)
        times = torch.zeros(2, dtype=torch.int64)
        done = form(factors.data_ptr(), 1000, arrived.data_ptr(), 1, times.data_ptr())
        if name in TILE:
            assert done in (0, 1000 * 6 * TILE[name])  # 0: the system lends no tiles
        elif width.isdigit():
            assert done == 1000 * CHAINS * int(width) // LANES[kind]
        assert arrived.item() == 1
        assert 0 < times[0] <= times[1]


def test_a_form_that_the_system_refuses_has_no_rate_and_the_fastest_of_the_others_counts():
    def form(multiply_adds_a_repeat, repeat_ns):
        def run(_factors, repeats, _arrived, _threads, times):
            written = torch.frombuffer((ctypes.c_int64 * 2).from_address(times), dtype=torch.int64)
            written[:] = torch.tensor([5, 5 + repeats * repeat_ns])
            return repeats * multiply_adds_a_repeat

        return run

    found = {"int8_in_tiles": form(0, 1), "int8_in_512": form(64, 4), "int8_in_256": form(32, 1)}
    assert multiply_adds.core_flops(found, "int8", threads=3) == pytest.approx(3 * 2 * 32e9)
    assert multiply_adds.core_flops({"int8_in_tiles": form(0, 1)}, "int8", threads=1) == 0
    assert multiply_adds.core_flops(found, "float64", threads=1) == 0


def test_a_processor_without_known_multiply_adds_is_refused(planted):
    with pytest.raises(
        native.CompilationError, match="no multiply-adds of this processor are known"
    ):
        planted("#if defined(__x86_64__)", "#if 0", 1)
    assert "defined(__aarch64__)" in multiply_adds.source()


# --- what it reaches


@pytest.mark.timed
def test_many_chains_reach_several_times_what_one_reaches(forms, planted):
    """On every core: a multiply-add takes three cycles or more, and at least one starts in each."""
    alone = one_chain(planted)
    many = max(multiply_adds.core_flops(forms, "float32", threads=1) for _ in range(3))
    assert many > 3 * max(multiply_adds.core_flops(alone, "float32", threads=1) for _ in range(3))


def ratio_to(core, forms):
    """Return the rate over clock x lanes x units x 2, each the fastest of turns, and print them."""
    clock_hz = rate = 0.0
    for _ in range(TURNS):
        clock_hz = max(clock_hz, cores.clock_hz())
        rate = max(rate, multiply_adds.core_flops(forms, "float32", threads=1))
    modelled = clock_hz * core.lanes * core.units * 2
    print(
        f"{core.name}: {rate / 1e9:.0f} GFLOP/s measured, {modelled / 1e9:.0f} = "
        f"{clock_hz / 1e9:.2f} GHz x {core.lanes} lanes x {core.units} units x 2; ratio "
        f"{rate / modelled:.2f}"
    )
    return rate / modelled


@pytest.fixture(scope="module")
def core():
    found = cores.this_core()
    if isinstance(found, str):
        pytest.skip(f"lanes and units of this core are not known: {found}")
    return found


@pytest.mark.timed
def test_the_peak_is_clock_times_lanes_times_units(core, forms):
    assert LEAST < ratio_to(core, forms) < MOST


@pytest.mark.timed
def test_a_chain_that_waits_for_itself_is_told_from_the_peak(core, planted):
    assert ratio_to(core, one_chain(planted)) < LEAST


@pytest.mark.timed
def test_half_the_width_is_told_from_the_peak(core, forms, monkeypatch):
    names = ("float32_in_256", "float32_in_128", "float32_in_32")
    narrow = [
        name for name in names if name in forms and int(name.rpartition("_")[2]) < 32 * core.lanes
    ]
    assert narrow
    monkeypatch.setitem(multiply_adds.FORMS, "float32", narrow)
    assert ratio_to(core, {name: forms[name] for name in narrow}) < LEAST


@pytest.mark.timed
def test_the_peak_is_the_fastest_width_and_vectors_are_faster_than_numbers(forms):
    by_bits = {bits: 0.0 for bits in (32, 128, 256, 512) if f"float32_in_{bits}" in forms}
    peak = 0.0
    for _ in range(5):
        peak = max(peak, multiply_adds.core_flops(forms, "float32", threads=1))
        by_bits = {bits: max(by_bits[bits], rate) for bits, rate in hardware.vector_flops().items()}
    assert peak > 0.8 * max(by_bits.values())
    assert by_bits[128] > 2 * by_bits[32]


# --- what is known of cores


@pytest.mark.parametrize(("vendor", "family", "model", "units_by_lanes"), [
    ("GenuineIntel", 6, 207, 32), ("GenuineIntel", 6, 140, 16), ("AuthenticAMD", 25, 1, 16),
    ("AuthenticAMD", 25, 17, 16), ("AuthenticAMD", 26, 2, 32), ("AuthenticAMD", 23, 1, 8),
])  # fmt: skip
def test_cores_are_known_by_family_and_model(vendor, family, model, units_by_lanes):
    text = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\nprocessor\t: 1\n"
    found = cores.core_of(text)
    assert found.units * found.lanes == units_by_lanes


def test_a_core_with_tiles_is_a_servers_whatever_model_its_virtual_machine_gives():
    text = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 167\nflags\t\t: fpu avx512f"
    assert (cores.core_of(text).units, cores.core_of(text).lanes) == (2, 8)
    with_tiles = cores.core_of(f"{text} amx_tile\n")
    assert (with_tiles.units, with_tiles.lanes) == (2, 16)


def test_an_unknown_core_is_named():
    # Skylake-X: one unit or two
    text = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
    assert cores.core_of(text) == "GenuineIntel, family 6, model 85, part -0x1"
    assert cores.core_of("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n").units == 4
