"""Machine code as lines, of a layer small enough to follow, compiled here or as it was recorded."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from helpers import native
from helpers.studies import constant_weights as cw
from helpers.studies.constant_weights import _listings as listings, _recording as recording
from helpers.studies.constant_weights._layer_sources import WORDS

MISSING = listings.missing_gpu_tools()
needs_tools = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
NETWORK = cw.standard_network()


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELPERS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def without_tools(monkeypatch):
    error = native.MissingToolError("there is no nvdisasm", "install it")
    monkeypatch.setattr(listings, "missing_gpu_tools", lambda: error)


def kinds(lines):
    return [sum(line.startswith(opcode) for line in lines) for opcode in ("LDG", "FFMA")]


@pytest.mark.parametrize("placement", WORDS)
def test_the_source_of_the_layer_has_every_weight_exactly(placement):
    source = cw.layer_source(placement)
    assert source.startswith(f"{WORDS[placement]} weights[4][4] = {{")
    values = np.array(re.findall(r"(-?[\d.]+(?:e-\d+)?)f", source.partition(";")[0]), np.float32)
    assert values.reshape(4, 4).tobytes() == cw.layer_weights().tobytes()


def test_another_place_of_the_weights_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"placement='nowhere'.*'const', 'device', 'constant'"):
        cw.layer_source("nowhere")
    with pytest.raises(ValueError, match=r"array='list'.*'const array', 'const array of arrays'"):
        cw.reference_source("list")


def test_each_reference_has_a_program_of_its_own():
    sources = {array: cw.reference_source(array) for array in cw.REFERENCES}
    assert len(set(sources.values())) == len(cw.REFERENCES)
    assert "const float weights[4][4]" in sources["const array"]
    assert "memory" in sources["array filled later"]
    assert "__restrict__" in sources["array filled later, __restrict__"]


@needs_tools
def test_without_const_each_weight_of_the_layer_is_loaded():
    assert kinds(cw.listing(cw.layer_source("const"))) == [4, 16]
    assert kinds(cw.listing(cw.layer_source("device"))) == [20, 16]


@needs_tools
def test_a_reference_costs_loads_only_where_the_compiler_cannot_know_the_array():
    loaded = {
        array: kinds(cw.listing(cw.reference_source(array)))[0] - 4 for array in cw.REFERENCES
    }
    assert loaded == {
        "const array": 0,
        "const array of arrays": 0,
        "const array, not inlined": 0,
        "two const arrays, not inlined": 16,
        "array without const": 16,
        "array filled later": 16,
        "array filled later, __restrict__": 16,
    }


@needs_tools
def test_an_instruction_has_the_weight_in_its_bytes_4_to_7():
    weight = cw.layer_weights()[3, 3]
    code = cw.instruction_with(weight, cw.layer_source("const"))
    assert len(code) == 16
    assert struct.unpack("<f", code[4:8])[0] == weight
    with pytest.raises(ValueError, match="no instruction for sm_90 carries 123"):
        cw.instruction_with(123, cw.layer_source("const"))


@needs_tools
def test_the_parameters_of_a_network_are_in_its_own_program_and_in_no_other():
    small, other = (
        cw.random_network((6, 5, 1), ("relu", "identity"), seed=seed) for seed in (1, 2)
    )
    lines = cw.listing(cw.generate(small, "cuda"))
    assert cw.parameters_in(lines, small) == small.parameters
    assert cw.parameters_in(lines, other) == 0
    assert cw.parameters_in(cw.listing(cw.generate(small, "cuda", placement="device")), small) == 0


def test_a_number_counts_in_an_ffma_or_a_mov_with_either_sign():
    network = cw.Network((cw.Dense(np.array([[0.5], [-3.0]]), np.array([1e-5], np.float32)),))
    lines = [
        "@!P0 FFMA R1, R2, -0.5, R3",
        "MOV R4, 0x40400000",
        "FFMA.FTZ R1, R2, R3, 9.9999997473787516356e-06",
    ]
    assert [cw.parameters_in(lines[:count], network) for count in range(4)] == [0, 1, 2, 3]
    assert cw.parameters_in(["FADD R1, R2, 0.5", "MOV R4, R3", "FFMA R1, R2, R3, R5"], network) == 0
    with pytest.raises(TypeError, match="network='x'"):
        cw.parameters_in(lines, "x")


def test_the_layer_format_has_numbers_sizes_biases_and_rows(tmp_path):
    first = cw.Dense(
        np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), np.array([7.0, 8.0, 9.0]), "relu"
    )
    network = cw.Network((first, cw.Dense(np.array([[1.0], [2.0], [3.0]]), np.array([4.0]))))
    content = cw.layer_format(network)
    assert content == struct.pack(
        "<III9fIII4f", 1, 2, 3, 7, 8, 9, 1, 2, 3, 4, 5, 6, 2, 3, 1, 4, 1, 2, 3
    )
    path = tmp_path / "weights.bin"
    path.write_bytes(cw.layer_format(NETWORK))
    read = cw.load(path, activations=("relu", "relu", "sigmoid"))
    assert cw.generate(read, "cuda") == cw.generate(NETWORK, "cuda")


@pytest.mark.slow
@pytest.mark.release
@needs_tools
def test_what_is_recorded_is_what_the_compiler_makes():
    made = recording.record_programs()["programs"]
    assert made == dict(listings._programs(listings.record_path()))


def test_without_the_tools_the_lessons_programs_are_read_from_the_record(without_tools):
    lines = cw.listing(cw.layer_source("const"))
    assert kinds(lines) == [4, 16]
    weight = cw.layer_weights()[3, 3]
    assert cw.instruction_with(weight, cw.layer_source("const"))[4:8] == weight.tobytes()
    totals = [
        cw.count_instructions(cw.generate(NETWORK, "cuda", placement=name)).total
        for name in ("const", "device")
    ]
    assert totals == [1980, 3783]


def test_with_another_compiler_the_lessons_programs_are_read_from_the_record(monkeypatch):
    monkeypatch.setattr(native, "nvrtc_version", lambda: "12.8")
    monkeypatch.setattr(native, "find_nvdisasm", lambda: "nvdisasm")
    assert "12.8" in cw.missing_gpu_tools().problem
    assert "CUDA 13.0" in cw.missing_gpu_tools().remedy
    assert cw.count_instructions(cw.generate(NETWORK, "cuda")).compiler == "NVRTC 13.0"


def test_every_width_of_the_appendix_is_recorded(without_tools):
    networks = (
        cw.random_network((23, width, width, 1), ("relu", "relu", "sigmoid"))
        for width in (8, 16, 32, 64)
    )
    totals = [cw.count_instructions(cw.generate(network, "cuda")).total for network in networks]
    assert totals == [348, 764, 1980, 5948]


def test_without_the_tools_another_program_says_what_to_install(without_tools):
    with pytest.raises(
        native.MissingToolError,
        match=r"none of those .* recorded.*there is no nvdisasm.*install it",
    ):
        cw.listing(cw.layer_source("const") + "\n")
    with pytest.raises(native.MissingToolError, match="cannot be compiled here"):
        # its lines are recorded, and not its census
        cw.count_instructions(cw.layer_source("const"))
