"""What the compiler makes of the weights, counted for every architecture; no GPU is needed."""

from __future__ import annotations

import functools
import platform
import shutil

import pytest

from helpers import native
from helpers.native import _tools as tools
from helpers.studies.constant_weights import _counting as counting
from helpers.studies.constant_weights._counting import (
    PlacementCounts,
    WeightCensus,
    census,
    recorded_counts,
)
from helpers.studies.constant_weights._cuda_sources import CUDA_PLACEMENTS, cuda_source
from helpers.studies.constant_weights._network import (
    Network,
    pruned,
    random_network,
    standard_network,
)
from helpers.studies.constant_weights._programs import CudaProgram, build, generate

NETWORK = standard_network()
# a few hundred instructions: compiled in a tenth of a second
SMALL = random_network((8, 12, 1), ("relu", "sigmoid"))
PINNED_COMPILER = "NVRTC 13.0"  # of the locked torch: totals are exact beside it alone


def _missing() -> str:
    try:
        native.nvrtc_version()
        tools.find_nvdisasm()
    except native.MissingToolError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(
    bool(_missing()), reason=_missing() or "NVRTC and nvdisasm are here"
)


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    """What is compiled here is compiled once for all tests, and kept nowhere else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELPERS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def _architectures() -> list[str]:
    wanted = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
    return (
        [name for name in wanted if name in native.supported_architectures()]
        if not _missing()
        else []
    )


KERNELS = {placement: (placement, "fp32") for placement in CUDA_PLACEMENTS} | {
    "half": ("const", "fp16")
}


def _together(sources: dict[str, str], architecture: str) -> native.Cubin:
    """Return one program with a kernel for each source: a disassembler takes half a second for
    every program.
    """
    parts = ["#include <cuda_fp16.h>"]
    for name, source in sources.items():
        assert "void evaluate(" in source
        plain = source.replace("#include <cuda_fp16.h>", "").replace(
            "void evaluate(", f"void evaluate_{name}("
        )
        parts.append(f"namespace {name}_space {{\n{plain}}}")
    return native.compile_cuda("\n".join(parts), architecture=architecture)


@functools.cache
def _program(architecture: str) -> native.Cubin:
    sources = {
        name: cuda_source(SMALL, placement=placement, precision=precision)
        for name, (placement, precision) in KERNELS.items()
    }
    return _together(sources, architecture)


def _counted(cubin: native.Cubin, kernel: str) -> WeightCensus:
    return counting.cuda_census(cubin, function=f"evaluate_{kernel}")


def _count(kernel: str, architecture: str) -> WeightCensus:
    return _counted(_program(architecture), kernel)


def _assert_constants(found: WeightCensus, network: Network) -> None:
    assert found.multiply_adds >= network.macs
    assert found.immediate >= 0.99 * network.macs
    assert found.register + found.constant_bank + found.uniform_register <= 0.01 * network.macs
    assert found.global_loads == network.inputs
    assert found.shared_loads == 0
    assert found.constant_load_bytes < 4 * network.macs / 4
    assert found.spill_load_bytes == 0


@pytest.mark.parametrize("architecture", _architectures())
@pytest.mark.parametrize("placement", ["const", "constexpr"])
def test_constants_stand_in_the_multiply_adds_and_only_inputs_are_loaded(placement, architecture):
    _assert_constants(_count(placement, architecture), SMALL)


def test_so_do_those_of_the_storys_network():
    newest = _architectures()[-1]
    for architecture in ("sm_75", newest):
        _assert_constants(census(build(cuda_source(NETWORK), architecture=architecture)), NETWORK)


@pytest.mark.parametrize("architecture", _architectures())
@pytest.mark.parametrize("placement", ["constant", "parameter"])
def test_constant_memory_is_an_operand_up_to_sm_89_and_loaded_first_from_sm_90_on(
    placement, architecture
):
    found = _count(placement, architecture)
    assert found.global_loads == SMALL.inputs
    assert found.immediate < 0.1 * SMALL.macs
    if int(architecture.removeprefix("sm_")) < 90:
        assert found.constant_bank == SMALL.macs
        assert found.constant_load_bytes < 4 * SMALL.macs / 4
    else:
        assert found.constant_bank == 0
        assert found.uniform_register + found.register >= 0.99 * SMALL.macs
        assert 4 * SMALL.macs <= found.constant_load_bytes  # each weight is brought into a register


@pytest.mark.parametrize("architecture", _architectures())
@pytest.mark.parametrize("placement", ["device", "pointer"])
def test_a_weight_behind_a_pointer_costs_a_load(placement, architecture):
    found = _count(placement, architecture)
    assert found.global_loads == SMALL.parameters + SMALL.inputs
    assert found.register >= SMALL.macs
    assert found.immediate < 0.1 * SMALL.macs


@pytest.mark.parametrize("architecture", _architectures())
def test_shared_memory_takes_fewer_loads_than_weights(architecture):
    found = _count("shared", architecture)
    assert SMALL.parameters / 4 <= found.shared_loads < SMALL.parameters
    assert found.register >= SMALL.macs


@pytest.mark.parametrize("architecture", _architectures())
def test_halves_are_immediates_too_and_one_instruction_serves_two_candidates(architecture):
    found = _count("half", architecture)
    assert found.fp16_multiply_adds >= SMALL.macs
    assert found.fp16_immediate == found.fp16_multiply_adds
    assert found.global_loads == 2 * SMALL.inputs


def test_pruned_programs_shrink_with_the_weights_kept():
    network = random_network((16, 24, 1), ("relu", "sigmoid"))
    sources = {
        f"kept_{percent}": generate(pruned(network, 1 - percent / 100), "cuda")
        for percent in (100, 50, 10, 0)
    }
    sources["pointer"] = generate(pruned(SMALL, 0.9), "cuda", placement="pointer")
    program = _together(sources, "sm_90")
    totals = {percent: _counted(program, f"kept_{percent}") for percent in (100, 50, 10, 0)}
    for percent, found in totals.items():
        assert found.multiply_adds <= percent / 100 * network.macs + 20
    assert totals[100].total > 1.6 * totals[50].total > 1.6 * 2 * totals[10].total
    assert totals[0].global_loads == 0
    assert totals[0].total < 40
    assert _counted(program, "pointer").multiply_adds >= SMALL.macs


def test_the_totals_of_the_story_beside_the_locked_compiler():
    found = census(build(cuda_source(NETWORK)))
    if found.compiler != PINNED_COMPILER:
        pytest.skip(f"totals are pinned for {PINNED_COMPILER}, and this is {found.compiler}")
    assert (found.multiply_adds, found.immediate, found.total) == (1797, 1797, 1980)


def test_a_table_of_placements_prints_and_finds_its_rows():
    found = recorded_counts(current=True)
    assert found.widths == (23, 32, 32, 1)
    assert found.nonzero_weights == 1_792
    assert list(found.table()["placement"]) == list(CUDA_PLACEMENTS) * 4
    row = found.count("pointer", architecture="sm_80", precision="fp16")
    assert (row.placement, row.architecture, row.candidates) == ("pointer", "sm_80", 2)
    with pytest.raises(
        ValueError,
        match="no count with placement 'shared', precision 'fp32', architecture 'sm_60'; there "
        r"are \('const', 'fp32', 'sm_80'\), ",
    ):
        found.count("shared", architecture="sm_60")


def test_what_was_recorded_for_the_oldest_architectures_tells_where_the_rule_changed():
    found = recorded_counts()
    assert isinstance(found, PlacementCounts)
    assert "nvdisasm" in found.note
    assert "12.8" in found.compiler
    pascal, volta = (found.count("const", architecture=name) for name in ("sm_60", "sm_70"))
    assert pascal.constant_bank > 0.99 * found.weights > 0.99 * pascal.immediate
    assert volta.immediate >= found.weights
    assert (
        found.count("pointer", architecture="sm_60").global_loads
        == NETWORK.parameters + NETWORK.inputs
    )
    assert all(
        row.immediate + row.constant_bank + row.uniform_register + row.register == row.multiply_adds
        for row in found.counts
    )


FIELDS = ("multiply_adds", "immediate", "constant_bank", "uniform_register", "register",
          "global_loads", "shared_loads", "total")  # fmt: skip


@pytest.mark.parametrize(
    ("target", "placement"), [("cuda", "const"), ("cpp", "pointer"), ("cpp", "constexpr")]
)
def test_every_census_has_the_fields_in_whole_numbers_and_each_multiply_add_is_fed_once(
    target, placement
):
    if target == "cpp" and (
        not shutil.which("objdump") or platform.machine() not in ("x86_64", "AMD64")
    ):
        pytest.skip("a C++ census needs objdump and an x86-64 processor")
    found = census(build(generate(SMALL, target, placement=placement)))
    assert all(type(getattr(found, name)) is int for name in FIELDS)
    assert (
        found.multiply_adds
        == found.immediate + found.constant_bank + found.uniform_register + found.register
    )
    if target == "cpp":
        assert found.immediate == found.uniform_register == found.shared_loads == 0
        assert found.global_loads + found.constant_loads == found.loads > 0
        assert found.constant_loads > 0
        assert found.multiply_adds == found.scalar_fmas + found.packed_fmas


def test_what_is_built_can_be_read_and_what_is_not_is_refused(monkeypatch, tmp_path):
    built = build(cuda_source(SMALL))
    assert isinstance(built, CudaProgram)
    assert native.disassemble(built.cubin).count("FFMA") >= SMALL.macs
    with pytest.raises(TypeError, match=r"what build\(\) returns, not of str"):
        census("FFMA")
    with pytest.raises(TypeError, match=r"generate\(\) returns, not Network"):
        build(SMALL)
    with pytest.raises(ValueError, match="sm_60"):
        build(cuda_source(SMALL), architecture="sm_60")
    monkeypatch.setattr(counting, "OLD_ARCHITECTURES", ("sm_10",))
    with pytest.raises(FileNotFoundError, match="course's repository"):
        recorded_counts()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError, match="in the course's folder, and this notebook is in none"
    ):
        recorded_counts()
