"""The roofline's drawing: roofs come from the limits alone, names never overlap, the alt text is every machine's."""

from __future__ import annotations

import dataclasses

import pytest
from drawing_samples import limits, overlapping, settle

from helpers.hardware.limits._results import MemoryLevel
from helpers.plotting._labels import label_points
from helpers.plotting._roofline import draw_roofline, roofline_alt
from helpers.plotting._style import MEASURED, figure, png
from helpers.roofline import DatasheetRoof, Placement, Workload, model
from helpers.timing import Timing

TIMING = Timing(1.0, 1.0, 1.0, 0.0, 9, 1, 1, "cpu", None, True, "")


def point(name="w", flops=1e9, moved=1e9, **more):
    return model(Workload(name, flops, moved, **more), limits())


def placed(name: str, modelled, measured_s: float) -> Placement:
    return Placement(name, modelled.regime, modelled.modelled_s, measured_s, measured_s / modelled.modelled_s,
                     modelled.flops / measured_s, modelled.attainable_flops_per_s, True, "",
                     dataclasses.replace(modelled, name=name), TIMING)  # fmt: skip


def roofs(drawn) -> dict[str, list[tuple[float, float]]]:
    """The measured roofs without their outer ends, which follow the axes' range: only corners and heights."""
    lines = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in drawn.axes[0].lines}
    return {name: ends for name, ends in lines.items() if name.startswith(("L", "memory", "peak"))}


def test_slopes_are_bandwidths_and_end_at_their_ridge_points():
    found = roofs(draw_roofline(limits()))
    for name, slope, ridge in (
        ("L1: 200 GB/s", 200e9, 0.5),
        ("L2: 100 GB/s", 100e9, 1),
        ("memory: 25.0 GB/s", 25e9, 4),
    ):
        (low, start), (end, top) = found[name]
        assert start / low == pytest.approx(slope)
        assert (end, top) == (pytest.approx(ridge), pytest.approx(100e9))
    (begin, height), (_, same) = found["peak, float32: 100 GFLOP/s"]
    assert (begin, height, same) == (0.5, 100e9, 100e9)


def products(drawn) -> dict[str, list[tuple[float, float]]]:
    lines = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in drawn.axes[0].lines}
    return {name: ends for name, ends in lines.items() if name.startswith("product")}


def test_the_librarys_product_is_a_line_below_the_peak_from_the_steepest_slope_on():
    drawn = draw_roofline(limits())
    (((begin, height), (end, same)),) = products(drawn).values()
    assert list(products(drawn)) == ["product, float32: 80.0 GFLOP/s"]
    assert (begin, height, same) == (pytest.approx(80e9 / 200e9), 80e9, 80e9)
    assert end == drawn.axes[0].get_xlim()[1]
    assert roofs(drawn)["peak, float32: 100 GFLOP/s"][0][1] == 100e9


@pytest.mark.parametrize("product_flops", [{"float32": 100e9}, {}])
def test_a_product_that_is_the_peak_or_was_not_measured_has_no_line(product_flops):
    assert products(draw_roofline(limits(product_flops=product_flops))) == {}


def test_no_point_moves_a_roof_not_even_one_above_it():
    impossible = placed("too good", point(flops=1e9), 1e-6)
    rate = impossible.measured_flops_per_s
    assert rate > 1000 * limits().peak_flops["float32"]
    alone, together = roofs(draw_roofline(limits())), roofs(draw_roofline(limits(), [impossible]))
    assert alone.keys() == together.keys()
    for name in alone:
        assert together[name][0][1] / together[name][0][0] == pytest.approx(alone[name][0][1] / alone[name][0][0]) or (
            name.startswith("peak") and together[name][0] == alone[name][0]
        )
        assert together[name][1][1] == alone[name][1][1]
    axes = draw_roofline(limits(), [impossible]).axes[0]
    assert axes.get_ylim()[1] > rate


def test_measured_is_solid_at_its_rate_and_modelled_hollow_at_its_own():
    one = placed("w", point(flops=4e9, moved=1e9), 0.1)
    axes = draw_roofline(limits(), [one]).axes[0]
    dots = {line.get_marker(): line for line in axes.lines if line.get_marker() in ("o", "D") and len(line.get_xdata())}
    assert list(dots["o"].get_ydata()) == [pytest.approx(4e10)]
    assert dots["o"].get_color() == MEASURED
    assert list(dots["D"].get_ydata()) == [pytest.approx(4e9 / one.modelled_s)]
    assert dots["D"].get_markerfacecolor() == "white"
    assert list(dots["o"].get_xdata()) == list(dots["D"].get_xdata()) == [4.0]


def test_datasheet_roofs_are_dashed_and_measured_ones_solid():
    drawn = draw_roofline(limits(), datasheet=DatasheetRoof("card", "float32", 200e9, 50e9))
    styles = {line.get_label(): line.get_linestyle() for line in drawn.axes[0].lines}
    dashed = [name for name, style in styles.items() if style == "--"]
    assert dashed == ["datasheet, card, float32: 50.0 GB/s, 200 GFLOP/s"]
    line = next(line for line in drawn.axes[0].lines if line.get_label() == dashed[0])
    assert (line.get_xdata()[1], line.get_ydata()[1]) == (4, 200e9)


def test_shading_parts_at_the_ridge_of_main_memory():
    axes = draw_roofline(limits()).axes[0]
    left, right = axes.patches
    assert left.get_x() + left.get_width() == pytest.approx(4)
    assert right.get_x() == pytest.approx(4)
    assert [text.get_text() for text in axes.texts][:2] == ["memory-bound", "compute-bound"]


def test_axes_are_logarithmic_and_carry_units():
    drawn = draw_roofline(limits(), [point()])
    drawn.canvas.draw()
    axes = drawn.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert "1 FLOP/B" in [tick.get_text() for tick in axes.get_xticklabels()]
    assert "10 GFLOP/s" in [tick.get_text() for tick in axes.get_yticklabels()]


def test_names_of_points_that_crowd_do_not_overlap():
    crowd = [point(f"layer number {place}", flops=1e9 * (1 + place / 40)) for place in range(12)]
    drawn = draw_roofline(limits(), crowd)
    settle(drawn)
    names = [text for text in drawn.axes[0].texts if text.get_text().startswith("layer")]
    assert len(names) == 12
    assert overlapping(names) == []


def test_names_keep_off_the_words_above_the_two_sides():
    crowd = [point(f"linear number {place}", flops=(8 + place / 4) * 1e9, moved=3e8) for place in range(8)]
    drawn = draw_roofline(limits(), crowd)
    settle(drawn)
    assert {text.get_text() for text in drawn.axes[0].texts} >= {"memory-bound", "compute-bound"}
    assert overlapping(drawn.axes[0].texts) == []


def test_a_long_name_on_the_datasheet_stays_inside_the_figure():
    promised = DatasheetRoof("A processor with a very long name indeed 1234X", "float32", 200e9, 50e9)
    drawn = draw_roofline(limits(), [point(), point(dtype="float64")], datasheet=promised)
    settle(drawn)
    assert drawn.legends[0].get_window_extent().x1 <= drawn.bbox.x1


def test_the_overlap_test_sees_names_written_straight_at_their_points():
    drawn, axes = figure(title="t")
    texts = [axes.text(0.5 + place / 40, 0.5, f"layer number {place}") for place in range(12)]
    settle(drawn)
    assert len(overlapping(texts)) > 10


def test_many_points_are_numbered_and_named_below():
    many = [point(f"block{place}", flops=1e9 * 1.3**place) for place in range(20)]
    drawn = draw_roofline(limits(), many)
    settle(drawn)
    numbers = [text for text in drawn.axes[0].texts if text.get_text().isdigit()]
    assert [text.get_text() for text in numbers] == [str(place) for place in range(1, 21)]
    assert overlapping(numbers) == []
    note = drawn.legends[0].get_title().get_text()
    assert "1 block0, 2 block1," in note.replace("\n", " ")
    assert "20 block19" in note.replace("\n", " ")


def test_what_a_logarithmic_axis_cannot_show_is_named():
    drawn = draw_roofline(limits(), [point("copy", flops=0), point()])
    assert drawn.legends[0].get_title().get_text() == "no FLOP, so not drawn: copy"


def test_dtypes_of_the_points_are_the_flat_roofs():
    drawn = draw_roofline(limits(), [point(dtype="float64"), point()])
    assert {name for name in roofs(drawn) if name.startswith("peak")} == {
        "peak, float64: 50.0 GFLOP/s",
        "peak, float32: 100 GFLOP/s",
    }
    with pytest.raises(ValueError, match="no peak was measured for 'int8'"):
        draw_roofline(limits(), dtypes=["int8"])


def test_without_a_bandwidth_there_is_no_roof_and_a_level_without_one_is_left_out():
    blind = limits(memory_levels=(MemoryLevel("memory", None, None, None),), notes=("too little memory",))
    with pytest.raises(ValueError, match=r"no memory bandwidth was measured on this machine \(too little memory\)"):
        draw_roofline(blind)
    half = limits(memory_levels=(MemoryLevel("L1", 1024, None, None), *limits().memory_levels[1:]))
    assert not [name for name in roofs(draw_roofline(half)) if name.startswith("L1")]


def test_alt_text_is_the_same_on_every_machine_and_names_the_points():
    slow = limits(peak_flops={"float32": 1e9}, memory_levels=(MemoryLevel("memory", None, None, 1e9),))
    work = Workload("a @ b", 1e9, 1e6)
    assert roofline_alt([model(work, limits())]) == roofline_alt([model(work, slow)])
    assert roofline_alt([model(work, slow)]).endswith("Points: a @ b.")
    assert "dashed" in roofline_alt(datasheet=True)
    assert not any(character.isdigit() for character in roofline_alt([model(work, slow)]))


def test_same_drawing_gives_the_same_bytes():
    assert png(draw_roofline(limits(), [point()])) == png(draw_roofline(limits(), [point()]))


def test_names_stay_inside_the_axes_and_reach_their_point_by_a_line():
    drawn, axes = figure(title="t")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    texts = label_points(axes, [(1.0, 1.0, "in the corner"), (0.5, 0.5, "a"), (0.5, 0.5, "b"), (0.5, 0.5, "c")])
    settle(drawn)
    inside = axes.get_window_extent().padded(1)
    assert all(inside.contains(*corner) for text in texts for corner in text.get_window_extent().corners())
    assert overlapping(texts) == []
