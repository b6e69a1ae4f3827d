"""The room of lesson 02: its programs compute what they say, and its figures show what they are
given.
"""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch

import helpers
from helpers import hardware, native, plotting, timing
from helpers.hardware._devices import read_toml
from helpers.studies import layer_roofline
from helpers.studies.layer_roofline import LayerTimes, _measuring as measuring
from tests.explored import at

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
GPU = LayerTimes("T4", "float16", 1024, 2, 300e9, 60e12, (1, 64), (1e-5, 2e-5), True)


@pytest.fixture(autouse=True)
def _figures_closed():
    yield
    plt.close("all")


@needs_compiler
@pytest.mark.parametrize("streams", measuring.STREAMS)
def test_a_reading_program_adds_up_every_weight(streams):
    weights = torch.randint(0, 100, (3, 128)).float()
    total = torch.zeros(1)
    read = native.compile_cpp(measuring._reading_source(streams)).function(measuring._READS)
    read(weights, weights.numel(), total)
    assert total.item() == weights.sum().item()  # sums of integers are exact in any order
    weights[2, 127] += 1  # the last one
    read(weights, weights.numel(), total)
    assert total.item() == weights.sum().item()


@needs_compiler
def test_the_sum_and_each_number_of_parts_are_programs():
    programs = layer_roofline.reading_programs(torch.ones(8, 128))
    assert list(programs) == ["torch.sum", "1 at once", "4 at once", "8 at once"]
    assert programs["torch.sum"]().item() == 1024
    for program in programs.values():
        program()


def test_without_a_compiler_the_sum_is_left(monkeypatch):
    def refuse(_source):
        raise native.MissingToolError("no compiler", "install one")

    monkeypatch.setattr(native, "compile_cpp", refuse)
    assert list(layer_roofline.reading_programs(torch.ones(128))) == ["torch.sum"]


def test_a_program_that_the_compiler_refuses_is_no_missing_compiler(monkeypatch):
    def refuse(_source):
        raise native.CompilationError("expected a semicolon", "mend the program", "log")

    monkeypatch.setattr(native, "compile_cpp", refuse)
    with pytest.raises(native.CompilationError, match="a semicolon"):
        layer_roofline.reading_programs(torch.ones(128))


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (
            torch.ones(128, dtype=torch.float64),
            r"weights are contiguous float32 on the CPU; these are torch.float64",
        ),
        (torch.ones(128, 2).T, "weights are contiguous float32 on the CPU"),
        (torch.ones(100), r"100 weights must be a multiple of 128"),
    ],
)
def test_weights_that_no_program_reads_are_refused(weights, says):
    with pytest.raises(ValueError, match=says):
        layer_roofline.reading_programs(weights)


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="no MKL")
@pytest.mark.parametrize("tokens", [1, 4, 16])
def test_a_packed_product_is_the_product(tokens):
    torch.manual_seed(tokens)
    weights, inputs = torch.rand(48, 32), torch.rand(32, tokens)
    program = layer_roofline.packed_product(weights, inputs)
    assert torch.allclose(program().T, weights @ inputs, rtol=1e-5)


def test_without_mkl_there_is_no_packed_product(monkeypatch):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert layer_roofline.packed_product(torch.ones(4, 4), torch.ones(4, 1)) is None


def test_the_smallest_inputs_are_accepted_and_hold_next_to_nothing():
    shapes = []
    modules = [module for module in helpers.LeNet().modules() if not list(module.children())]
    for module in modules:
        call, x = measuring._smallest(module)
        assert (
            call(x).numel() <= call.out_channels
            if isinstance(call, torch.nn.Conv2d)
            else call(x).numel() <= 4
        )
        shapes.append(tuple(x.shape))
    assert shapes[0] == (1, 1, 5, 5)  # a patch of the first convolution
    assert (1, 1) in shapes  # a linear layer's single value


def test_each_call_has_the_median_of_its_rounds(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    monkeypatch.setattr(
        timing, "measure", lambda *_, **__: SimpleNamespace(median_s=9.0, stable=True)
    )

    class Sleeping(torch.nn.Module):
        def __init__(self, seconds):
            super().__init__()
            self.seconds, self.calls = seconds, 0

        def forward(self, x):
            self.calls += 1
            now_s[0] += 100 if self.calls == 7 else self.seconds  # one call is disturbed
            return x

    calls = layer_roofline.measure_calls([Sleeping(2.0), Sleeping(5.0)])
    assert calls == layer_roofline.CallTimes((2.0, 5.0), 9.0, stable=True)


def test_the_gpus_layer_is_bounded_by_what_the_probe_measured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert layer_roofline.measure_gpu() is None
    points = [
        SimpleNamespace(working_set_bytes=size, read_bytes_per_s=rate)
        for size, rate in ((1, 9e12), (2, 3e11))
    ]
    limits = SimpleNamespace(bandwidths=points, peak_flops={"float32": 8e12, "float16": 6e13})
    rows = [SimpleNamespace(minimum_s=1e-5), SimpleNamespace(minimum_s=2e-5)]
    compared = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(hardware, "probe", lambda *, device: limits)
    rand = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, device: rand(*shape).to(dtype))

    def compare(calls, **_):
        compared.update({name: tuple(call().shape) for name, call in calls.items()})
        return SimpleNamespace(candidates=rows, stable=True)

    monkeypatch.setattr(timing, "compare", compare)
    monkeypatch.setattr(measuring, "_GPU_SIDE", 1024)
    monkeypatch.setattr(measuring, "_GPU_TOKENS", (1, 64))
    measured = layer_roofline.measure_gpu()
    assert compared == {"1": (1024, 1), "64": (1024, 64)}
    assert measured == LayerTimes("T4", "float16", 1024, 2, 3e11, 6e13, (1, 64), (1e-5, 2e-5), True)


def test_the_layer_is_drawn_under_the_smaller_of_slope_and_peak():
    drawn = layer_roofline.draw_layer(
        {1: 4.0, 16: 4.0}, side=64, bandwidth=8192, peak=16384, own_s={16: 9.0}, title="x"
    )
    roof, _, *points = drawn.axes[0].lines
    assert list(roof.get_xdata())[1] == 2  # FLOP per byte, where 8,192 times it is the peak
    gaps, dots = points[::2], points[1::2]
    intensities = [2 * 64 * tokens / (4 * (64 + 2 * tokens)) for tokens in (1, 16, 16)]
    assert [dot.get_xdata()[0] for dot in dots] == pytest.approx(intensities)
    assert [dot.get_ydata()[0] for dot in dots] == pytest.approx([2048, 32768, 131072 / 9])
    assert [gap.get_ydata()[1] for gap in gaps] == pytest.approx(
        [8192 * intensities[0], 16384, 16384]  # the slope, and the peak
    )
    assert [text.get_text() for text in drawn.axes[0].get_legend().get_texts()] == [
        "PyTorch (measured)",
        "a program for this layer (measured)",
    ]


def test_every_point_is_within_the_frame_also_far_from_the_corner():
    # an H100 has its corner at 295 FLOP per byte, and one token of 2-byte weights at 1
    drawn = layer_roofline.draw_layer(
        {1: 1e-4, 4096: 1e-3}, side=8192, bandwidth=3.35e12, peak=989e12, weight_bytes=2
    )
    [axes] = drawn.axes
    (left, right), (below, above) = axes.get_xlim(), axes.get_ylim()
    for dot in axes.lines[3::2]:
        assert left < dot.get_xdata()[0] < right
        assert below < dot.get_ydata()[0] < above


def _overlaps(texts, renderer):
    boxes = [text.get_window_extent(renderer) for text in texts if text.get_text()]
    return [(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :] if a.overlaps(b)]


@pytest.mark.parametrize("slower", [1.0, 1.3, 2.5])
def test_no_two_labels_of_the_central_figure_collide(slower):
    bandwidth, peak = 17.6e9, 179e9
    library_s = {
        tokens: slower
        * max(4 * (8192**2 + 2 * 8192 * tokens) / bandwidth, 2 * 8192**2 * tokens / peak)
        for tokens in (1, 4, 16, 64)
    }
    own_s = {16: library_s[16] / slower * 1.1}
    drawn = layer_roofline.draw_layer(
        library_s, side=8192, bandwidth=bandwidth, peak=peak, own_s=own_s
    )
    drawn.canvas.draw()
    [axes] = drawn.axes
    assert (
        _overlaps([*axes.texts, *axes.get_legend().get_texts()], drawn.canvas.get_renderer()) == []
    )


def test_a_call_is_drawn_on_top_of_the_least_time():
    drawn = layer_roofline.draw_calls(
        ["conv", "relu"], least_s=[1, 2], call_s=[10, 20], measured_s=[12, 30]
    )
    least, both, measured = drawn.axes[0].collections[1:]
    assert [list(points.get_offsets()[:, 0]) for points in (least, both, measured)] == [
        [1, 2],
        [11, 22],
        [12, 30],
    ]


def explored(monkeypatch, *, gpu=None, **setting):
    figure = {}
    monkeypatch.setattr(plotting, "explore", lambda **given: figure.update(given))
    layer_roofline.explore_roofline(core=(16e9, 160e9), gpu=gpu)
    return at(figure["inputs"], figure["formulas"], **setting)


@pytest.mark.parametrize(
    ("setting", "reaches"),
    [
        # 295.3 tokens without inputs and results, 318 with those of a side of 8,192, and 698 at
        # 1,024
        ({"tokens": 295}, False),
        ({"tokens": 320}, True),
        ({"tokens": 512, "side": 1024}, False),
        ({"tokens": 704, "side": 1024}, True),
        ({"tokens": 256, "bytes": 1}, True),
        ({"tokens": 128, "bytes": 1}, False),
        ({"machine": "this core (measured)", "bytes": 4, "tokens": 32}, True),
        ({"machine": "this core (measured)", "bytes": 4, "tokens": 16}, False),
    ],
)
def test_the_corner_of_the_figure_to_turn_is_where_both_times_are_equal(
    monkeypatch, setting, reaches
):
    values = explored(monkeypatch, **setting)
    assert (values["reached"] == values["peak"]) is reaches


def test_sixteen_tokens_reach_sixteen_times_the_bandwidth_over_the_bytes(monkeypatch):
    values = explored(monkeypatch)
    moved_bytes = 2 * 8192**2 + 2 * 2 * 8192 * 16
    # TFLOP/s
    assert values["reached"] == pytest.approx(2 * 8192**2 * 16 / moved_bytes * 3.35, rel=1e-3)


def test_the_gpu_that_was_measured_is_one_of_the_machines(monkeypatch):
    values = explored(monkeypatch, gpu=GPU, machine="T4 (measured)", tokens=4096)
    assert values["peak"] == 60


def test_the_figure_to_turn_can_be_shown():
    layer_roofline.explore_roofline()


def test_published_tables_are_wrong_by_two():
    errors = layer_roofline.published_errors()
    assert len(errors.claims) >= 5
    assert errors.median_ratio == pytest.approx(2, rel=0.01)
    for claim in errors.claims:
        assert claim.claim_ratio == pytest.approx(
            claim.claimed_flops_per_s / claim.dense_flops_per_s
        )
        assert 1.95 < claim.claim_ratio < 2.25
        assert claim.source.address.startswith("http")


def test_the_file_of_published_errors_has_no_source_that_no_claim_names():
    data = read_toml("helpers.studies.layer_roofline", "published_errors.toml")
    assert set(data["sources"]) == {entry["source"] for entry in data["claim"]}
