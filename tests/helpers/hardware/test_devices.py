"""The table of devices against itself and against physics: sources, ladders, buses, names; wrong
figures planted.
"""

import dataclasses
import itertools
import json
import math

import pytest
import torch

from helpers.hardware import Gpu, MachineCard, _devices as devices
from helpers.hardware._devices import (
    DTYPES,
    FIGURES,
    UNITS,
    Device,
    Peak,
    Source,
    amount,
    device,
    known_device,
    ridge_flops_per_byte,
)
from helpers.results import from_dict

ALL = devices.devices()
SOURCE = Source("a test", "https://example.org", "reference", "2026-11-22")
READ_LATER = {
    "Jouppi et al., In-Datacenter Performance Analysis of a Tensor Processing Unit, ISCA 2017, "
    "section 2 and table 2": "2026-11-23"
}
# What each rung may not be faster than: the rung after it. Formats that one device does not have
# are left out.
LADDERS = (
    ("float64", "float32", "tfloat32", "bfloat16", "float8", "float4"),
    ("float32", "tfloat32", "float16", "float8", "float4"),
    ("float16", "int8", "int4"),
)


def data_file():
    return devices.read_toml("helpers.hardware", "devices.toml")


def named(name: str) -> Device:
    return next(one for one in ALL if one.name == name)


def ladder_breaks(one: Device) -> list[tuple[str, str]]:
    """Return the pairs of formats of which the wider is faster than the narrower, in dense rates of
    the faster unit.
    """
    breaks = []
    for ladder in LADDERS:
        rates = [
            (dtype, peak.dense_flops_per_s)
            for dtype in ladder
            if (peak := one.peak(dtype)) is not None
        ]
        breaks += [
            (wide, narrow)
            for (wide, slow), (narrow, fast) in itertools.pairwise(rates)
            if slow > 1.001 * fast
        ]
    return breaks


def bus_error(one: Device) -> float | None:
    """Return how far bus width x data rate is from the bandwidth, as a share; None where one of
    them is unknown.
    """
    bus = (one.memory_bus_bits, one.memory_rate_per_s)
    if None in (*bus, one.memory_bandwidth_bytes_per_s):
        return None
    return abs(math.prod(bus) / 8 / one.memory_bandwidth_bytes_per_s - 1)


def test_the_table_has_the_devices_of_the_course_once_each():
    names = [one.name for one in ALL]
    assert len(names) == len(set(names)) >= 25
    for word in (
        "5950X",
        "3090",
        "580",
        "V100",
        "A100",
        "H100",
        "H200",
        "B200",
        "MI300X",
        "v1",
        "v5p",
        "M1",
        "T4",
        "P100",
        "4090",
        "Xeon",
        "EPYC",
        "Raspberry",
    ):
        assert any(word in name for name in names), word
    resolved = [devices._normal(alias) for one in ALL for alias in {one.name, *one.aliases}]
    doubles = {name for name in resolved if resolved.count(name) > 1}
    for double in doubles:
        assert (
            len(
                {
                    one.name
                    for one in ALL
                    if double in map(devices._normal, (one.name, *one.aliases))
                }
            )
            == 1
        )


def test_every_figure_has_a_source_with_an_address_a_kind_and_a_date():
    for one in ALL:
        known = {name for name in FIGURES if getattr(one, name) is not None}
        assert known == {fact.name for fact in one.facts}, one.name
        for source in (*(fact.source for fact in one.facts), *(peak.source for peak in one.peaks)):
            assert source.title
            assert source.address.startswith(("https://", "http://")), source
            assert source.kind in ("vendor", "paper", "reference", "community")
            assert source.read == READ_LATER.get(source.title, "2026-11-22")
        for peak in one.peaks:
            assert peak.dtype in DTYPES
            assert peak.unit in UNITS
    used = {fact.source.title for one in ALL for fact in (*one.facts, *one.peaks)}
    listed = {source.title for source in devices.device_sources(data_file()).values()}
    assert listed == used


def test_the_data_file_has_no_key_that_nobody_reads():
    allowed = {"name", "kind", "aliases", "peaks", *FIGURES}
    for entry in data_file()["device"]:
        assert set(entry) <= allowed, entry["name"]
        for peak in entry["peaks"]:
            assert set(peak) <= {"dtype", "unit", "dense", "sparse", "source", "note"}


def test_unknown_is_none_and_is_shown_so():
    ryzen = device("Ryzen 9 5950X")
    assert ryzen.memory_bytes is None
    assert "unknown" in str(ryzen)
    table = ryzen.sources().set_index("figure")
    assert table.loc["memory", "value"] == "unknown"
    assert table.loc["memory", "address"] == ""
    assert table.loc["l3", "value"] == "67.1 MB"
    assert "AMD" in table.loc["l3", "source"]


@pytest.mark.parametrize(
    ("torch_name", "name"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("H200", "H200 SXM"),
        ("h200", "H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80 GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80 GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40 GB"),
        ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        ("RTX 4090", "GeForce RTX 4090"),
        ("AMD Instinct MI300X", "Instinct MI300X"),
        ("AMD Ryzen 9 5950X 16-Core Processor", "Ryzen 9 5950X"),
        ("AMD EPYC 9654 96-Core Processor", "EPYC 9654"),
        ("Google TPU v5p", None),
        ("TPU v5p", "TPU v5p"),
        ("Intel(R) Xeon(R) Platinum 8480+", "Xeon Platinum 8480+"),
    ],
)
def test_a_name_resolves_to_its_device(torch_name, name):
    if name is None:
        with pytest.raises(ValueError, match="near it: TPU v5p"):
            device(torch_name)
    else:
        assert device(torch_name).name == name


def test_every_name_and_alias_resolves_to_its_own_device():
    for one in ALL:
        for alias in (one.name, *one.aliases, one.name.upper(), f" {one.name} "):
            assert device(alias) is one


@pytest.mark.parametrize(
    "other",
    [
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GH200 480GB",
        "H20",
        "H2000",
        "NVIDIA H200 NVL",
        "NVIDIA H100 NVL",
        "Tesla P100-PCIE-16GB",
        "NVIDIA A100 80GB PCIe",
        "T400",
        "Apple M1 Max",
        "AMD EPYC 9654P 96-Core Processor",
    ],
)
def test_a_neighbour_is_never_taken_for_a_device(other):
    with pytest.raises(ValueError, match="is not in the table"):
        device(other)
    known = known_device(other)
    assert known.device is None
    assert "is not in the table" in known.reason


def test_no_spelling_of_an_h200_gives_an_h100():
    for before, after in itertools.product(
        ("", "NVIDIA ", "nvidia-", "Tesla "), ("", " SXM", " 141GB", " HBM3e", "-NVL", " (TM)")
    ):
        known = known_device(f"{before}H200{after}")
        assert known.device is None or known.device.name == "H200 SXM"


def test_an_ambiguous_name_says_which_devices_it_may_be():
    for name, both in (
        ("H100", ("H100 SXM 80 GB", "H100 PCIe 80 GB")),
        ("A100", ("A100 SXM 40 GB", "A100 SXM 80 GB")),
    ):
        with pytest.raises(ValueError, match="say which") as caught:
            device(name)
        assert all(member in str(caught.value) for member in both)
    with pytest.raises(ValueError, match="is not in the table"):
        device("")
    with pytest.raises(TypeError, match="not 200"):
        device(200)


def test_a_machine_card_is_looked_up_by_its_gpu_and_else_by_its_processor():
    card = MachineCard(model="AMD Ryzen 9 5950X 16-Core Processor")
    assert known_device(card).device.name == "Ryzen 9 5950X"
    gpus = (Gpu("NVIDIA H200", "CUDA"),)
    assert known_device(dataclasses.replace(card, gpus=gpus)).device.name == "H200 SXM"
    nothing = known_device(MachineCard())
    assert nothing.device is None
    assert "does not say" in nothing.reason


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="asks a CUDA device for its name and its memory"
)
def test_a_cuda_device_that_is_known_has_the_memory_of_the_table():
    known = known_device(torch.cuda.get_device_name()).device
    if known is not None and known.memory_bytes is not None:
        properties = torch.cuda.get_device_properties(0)
        assert properties.multi_processor_count == known.cores
        assert known.memory_bytes * 0.9 < properties.total_memory <= known.memory_bytes


# Bytes of device memory that deviceQuery (T4, A100) and nvidia-smi printed for these cards, from
# public logs of runs.
REPORTED_BYTES = {
    "T4": 15_655_829_504,
    "A100 SXM 40 GB": 42_405_855_232,
    "GeForce RTX 3090": 24_576 * 2**20,
    "H100 SXM 80 GB": 81_559 * 2**20,
    "H200 SXM": 143_771 * 2**20,
    "B200 SXM": 183_359 * 2**20,
}


@pytest.mark.parametrize("name", REPORTED_BYTES)
def test_a_card_reports_no_more_memory_than_the_table_has(name):
    assert 0.9 * named(name).memory_bytes < REPORTED_BYTES[name] <= named(name).memory_bytes


def test_device_memory_is_a_number_of_binary_gigabytes():
    sizes = {one.name: one.memory_bytes for one in ALL if one.memory_bytes is not None}
    assert len(sizes) >= 20
    assert {name: size for name, size in sizes.items() if size % 2**29} == {}


@pytest.mark.parametrize(
    "name",
    [
        "T4",
        "A100 SXM 40 GB",
        "A100 SXM 80 GB",
        "H100 SXM 80 GB",
        "H100 PCIe 80 GB",
        "GeForce RTX 3090",
        "Ryzen 9 5950X",
    ],
)
def test_the_devices_that_lessons_name_rest_on_their_makers_pages(name):
    sources = {origin.source for origin in (*named(name).facts, *named(name).peaks)}
    others = {source.title for source in sources if source.kind != "vendor"}
    assert others <= {
        "deviceQuery of a Tesla T4 (gist)",
        "CUDA programming guide on compute capability 8.6, as quoted",
    }


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_narrower_format_is_never_slower(one):
    assert ladder_breaks(one) == []


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_bandwidth_is_bus_width_times_data_rate(one):
    error = bus_error(one)
    assert error is None or error < 0.02


def test_enough_devices_have_a_bus_to_check_the_bandwidth_by():
    assert sum(bus_error(one) is not None for one in ALL) >= 8


def test_sparse_is_twice_dense_where_both_are_known():
    both = [
        peak
        for one in ALL
        for peak in one.peaks
        if peak.sparse_flops_per_s and peak.dense_flops_per_s
    ]
    assert len(both) >= 20
    for peak in both:
        assert peak.sparse_flops_per_s == pytest.approx(2 * peak.dense_flops_per_s, rel=1e-3), peak


def test_a_planted_sparse_rate_a_planted_bus_and_a_planted_ladder_are_seen():
    h100 = named("H100 SXM 80 GB")
    planted = Peak("float16", "matrix", 1978.9e12, None, SOURCE)
    kept = tuple(peak for peak in h100.peaks if peak.dtype not in ("float16", "float8"))
    wrong = dataclasses.replace(
        h100, peaks=(*kept, planted, Peak("float8", "matrix", 1000e12, None, SOURCE))
    )
    assert ladder_breaks(wrong) == [("float16", "float8")]
    a100 = named("A100 SXM 40 GB")
    assert bus_error(
        dataclasses.replace(a100, memory_rate_per_s=a100.memory_rate_per_s / 2)
    ) == pytest.approx(0.5, rel=1e-2)


def test_ridge_points_lie_in_their_bands():
    for name, dtype, low, high in [
        ("V100 SXM2", "float16", 130, 150),
        ("A100 SXM 40 GB", "float16", 195, 205),
        ("H100 SXM 80 GB", "bfloat16", 290, 300),
        ("H200 SXM", "bfloat16", 200, 210),
        ("TPU v5e", "bfloat16", 235, 245),
        ("GeForce GTX 580", "float32", 7, 10),
    ]:
        assert low < ridge_flops_per_byte(device(name), dtype) < high
    for one in ALL:
        for peak in one.peaks:
            ridge = ridge_flops_per_byte(one, peak.dtype, unit=peak.unit)
            assert ridge is None or 0.5 < ridge < 3000
    ryzen = device("Ryzen 9 5950X")
    assert ridge_flops_per_byte(ryzen, "float32") == pytest.approx(16 * 2 * 8 * 2 * 3.4 / 51.2)
    assert (
        ridge_flops_per_byte(
            dataclasses.replace(ryzen, memory_bandwidth_bytes_per_s=None), "float32"
        )
        is None
    )
    assert ridge_flops_per_byte(device("T4"), "bfloat16") is None
    with pytest.raises(ValueError, match="use one of float64"):
        ridge_flops_per_byte(device("T4"), "fp32")
    with pytest.raises(ValueError, match="use one of vector, matrix"):
        ridge_flops_per_byte(device("T4"), "float32", unit="tensor")
    with pytest.raises(
        TypeError, match=r"a device of the table, such as device\('NVIDIA H200'\), not 'T4'"
    ):
        ridge_flops_per_byte("T4", "float32")


def test_an_array_at_its_clock_gives_the_peak():
    """Two operations a multiply-add: one array in TPU v1, as its paper has it, and four in v5e, as
    the book has it.
    """
    for name, dtype, arrays in (("TPU v1", "int8", 1), ("TPU v5e", "bfloat16", 4)):
        one = device(name)
        peak = one.peak(dtype).dense_flops_per_s
        assert 2 * arrays * one.array_rows * one.array_columns * one.clock_hz == pytest.approx(
            peak, rel=0.01
        )
    sides = {
        one.name: (one.array_rows, one.array_columns) for one in ALL if one.array_rows is not None
    }
    assert [name for name, side in sides.items() if side == (256, 256)] == ["TPU v1", "TPU v6e"]
    assert set(sides.values()) == {(128, 128), (256, 256)}
    assert set(sides) == {one.name for one in ALL if one.kind == "tpu"}


def test_the_first_tpu_rests_on_its_paper_alone():
    v1 = device("TPU v1")
    assert {origin.source.address for origin in (*v1.facts, *v1.peaks)} == {
        "https://arxiv.org/abs/1704.04760"
    }
    assert (v1.memory_bandwidth_bytes_per_s, v1.tdp_w) == (34e9, 75)
    assert "40 W busy" in v1.fact("tdp_w").note


def test_power_is_the_default_not_the_most_that_can_be_set():
    assert named("EPYC 7713").tdp_w == 225
    assert "240 W" in named("EPYC 7713").fact("tdp_w").note


def test_what_is_no_name_is_refused():
    with pytest.raises(TypeError, match="a name or a machine card, not None"):
        known_device(None)


def test_the_faster_unit_is_taken_unless_one_is_named():
    v100 = device("V100")
    assert v100.peak("float16").unit == "matrix"
    assert v100.peak("float16", unit="vector").dense_flops_per_s == 31.4e12
    assert v100.peak("int4") is None
    with pytest.raises(ValueError, match="no figure 'memory'"):
        v100.fact("memory")


def test_totals_agree_with_the_totals_that_the_makers_print():
    """NVIDIA's own tables give the register file of a whole GPU: P100, V100, A100, H100, and GA102
    in the 3090.
    """
    kib = {
        "P100 SXM2 16 GB": 14336,
        "V100 SXM2": 20480,
        "A100 SXM 40 GB": 27648,
        "H100 SXM 80 GB": 33792,
        "H100 PCIe 80 GB": 29184,
        "GeForce RTX 3090": 20992,
        "GeForce RTX 4090": 32768,
    }
    assert {name: named(name).register_bytes // 1024 for name in kib} == kib
    assert named("GeForce RTX 3090").l1_bytes == 10496 * 1024
    assert named("GeForce RTX 4090").l1_bytes == 16384 * 1024
    assert named("Ryzen 9 5950X").register_bytes == 16 * (192 * 8 + 160 * 32)
    h200 = named("H200 SXM")
    assert (h200.memory_bus_bits, h200.memory_rate_per_s) == (6144, 6.2e9)
    assert named("TPU v1").register_bytes is None


def test_a_figure_is_a_number_a_product_or_a_sum_of_products():
    assert amount(7) == 7
    assert amount([6144, 1024]) == 6144 * 1024
    assert amount([[192, 8], [160, 32]]) == 6656
    assert amount([2, 877.5e6]) == 1_755_000_000
    assert isinstance(amount(16e9), int)
    assert math.isclose(amount(0.2544), 0.2544)
    assert amount("2023") == "2023"


def test_a_device_goes_through_json_and_comes_back():
    for one in ALL:
        assert from_dict(Device, json.loads(one.to_json())) == one
