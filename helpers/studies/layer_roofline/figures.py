"""The figures of lesson 02: a layer under its roof, the calls of a network, and a roof to turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from helpers import hardware, plotting, roofline
from helpers.plotting import COLOURS, MEASURED, MODELLED, Curves, Menu, Series, Slider
from helpers.studies.layer_roofline._measuring import LayerTimes

_GREY, _OWN_COLOUR, _OWN_LABEL = "#666666", "#D55E00", "a program for this layer (measured)"
_BELOW: dict[str, Any] = {"xytext": (9, -5), "ha": "left", "va": "top"}
_ABOVE: dict[str, Any] = {"xytext": (-11, 7), "ha": "right", "va": "bottom"}
_MACHINES = {  # the device, the type of its products, its name in the menu
    "H100": ("H100 SXM 80 GB", "bfloat16"),
    "A100": ("A100 SXM 80 GB", "bfloat16"),
    "T4": ("T4", "float16"),
}
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 295, 320, 512, 704, 1024, 2048, 4096)
_SIDES = (1024, 2048, 4096, 8192, 16384)


def draw_layer(
    library_s: Mapping[int, float],
    *,
    side: int,
    bandwidth: float,
    peak: float,
    own_s: Mapping[int, float] | None = None,
    weight_bytes: int = 4,
    title: str = "",
) -> Figure:
    """Return a square layer under the roof of a machine: the rate of its products over their
    arithmetic intensity.

    ``library_s`` has the measured seconds by the number of tokens, ``own_s`` those of a program
    written for this layer of ``side`` x ``side`` weights, each of ``weight_bytes``. A thin line
    goes from each point to the roof above it, so its length is what there is to win. ``bandwidth``
    is in bytes per second, ``peak`` in FLOP per second, ``title`` stands above. Lesson 02.
    """
    figure, axes = plotting.figure(title=title, height_in=4.6)
    corner = peak / bandwidth
    kinds = {
        "o": (library_s, MEASURED, "PyTorch (measured)"),
        "D": (own_s or {}, _OWN_COLOUR, _OWN_LABEL),
    }
    points = [
        (marker, tokens, *_roofline_point(tokens, time_s, side=side, weight_bytes=weight_bytes))
        for marker, (times_s, _, _) in kinds.items()
        for tokens, time_s in times_s.items()
    ]
    left = min(corner / 100, *(intensity / 2 for *_, intensity, _ in points))
    bottom = min(peak / 250, *(rate / 3 for *_, rate in points))
    right, top = 30 * corner, 4 * peak
    axes.plot([left, corner, right], [left * bandwidth, peak, peak], color="black", zorder=2)
    axes.plot([corner, corner], [bottom, peak], ":", color=_GREY, linewidth=1)
    axes.text(corner / 1.15, 1.25 * bottom, "bytes decide", color=_GREY, ha="right")
    axes.text(corner * 1.15, 1.25 * bottom, "arithmetic decides", color=_GREY, ha="left")
    axes.text(
        right / 1.15, 1.1 * peak, f"corner at {corner:.3g} FLOP per byte", ha="right", va="bottom"
    )
    for marker, tokens, intensity, rate in points:
        times_s, colour, label = kinds[marker]
        roof = min(peak, intensity * bandwidth)
        legend_label = label if tokens == next(iter(times_s)) else None
        axes.plot([intensity, intensity], [rate, roof], color=colour, linewidth=1, zorder=1)
        axes.plot(intensity, rate, marker, color=colour, markersize=8, zorder=3, label=legend_label)
        # hides the line at the corner
        text_box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        name = f"{tokens:,} token{'s' if tokens > 1 else ''}"
        # a program that is close to the roof has no room below it
        where = _BELOW if marker == "o" else _ABOVE
        options: dict[str, Any] = {
            "textcoords": "offset points",
            "color": colour,
            "bbox": text_box,
            **where,
        }
        axes.annotate(name, (intensity, rate), **options)
    axes.set(
        xscale="log", yscale="log", xlabel="arithmetic intensity", ylabel="rate of the arithmetic"
    )
    axes.set(xlim=(left, right), ylim=(bottom, top))
    plotting.unit_axis(axes, "x", "FLOP/B")
    plotting.unit_axis(axes, "y", "FLOP/s")
    axes.legend(loc="upper left")
    return figure


def _roofline_point(
    tokens: int, time_s: float, *, side: int, weight_bytes: int
) -> tuple[float, float]:
    """Return the arithmetic intensity in FLOP per byte and the rate in FLOP per second of a square
    layer.
    """
    flops = 2 * side**2 * tokens
    return flops / (weight_bytes * (side**2 + 2 * side * tokens)), flops / time_s


def draw_calls(
    names: Sequence[str],
    *,
    least_s: Sequence[float],
    call_s: Sequence[float],
    measured_s: Sequence[float],
) -> Figure:
    """Return the time of each operation of a network: its least time, that and a call, and the
    measured one.

    Of the operations ``names``, ``least_s`` has the modelled least seconds, ``call_s`` those of a
    call with almost nothing to compute, and ``measured_s`` what each took. Lesson 02.
    """
    figure, axes = plotting.figure(
        title="LeNet with one image: the time of each operation", height_in=4.4
    )
    rows = range(len(names))
    both_s = [least + call for least, call in zip(least_s, call_s, strict=True)]
    axes.hlines(rows, least_s, measured_s, color="#BBBBBB", zorder=1)
    axes.scatter(
        least_s, rows, marker="D", color="white", edgecolor=MODELLED, label="least time (modelled)"
    )
    axes.scatter(
        both_s, rows, marker="|", s=200, linewidth=3, color=MODELLED, label="least time and call"
    )
    axes.scatter(measured_s, rows, color=MEASURED, label="measured")
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="time")
    plotting.unit_axis(axes, "x", "s")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    return figure


def explore_roofline(
    *, core: tuple[float, float] | None = None, gpu: LayerTimes | None = None
) -> None:
    """Display the roofline of a square layer as a figure to turn: machine, bytes per weight, side
    and tokens.

    ``core`` has the measured bandwidth in bytes per second and peak in FLOP per second of the
    reader's core, ``gpu`` those of the reader's GPU; the others are of data sheets. Inputs and
    results have 2 bytes per element, on the core
    4. It begins with the H100 and bfloat16. Lesson 02.
    """
    machines = {}
    for label, (name, dtype) in _MACHINES.items():
        roof = roofline.datasheet_roof(hardware.device(name), dtype)
        machines[label] = _fields(roof.bandwidth_bytes_per_s, roof.peak_flops_per_s, 2)
    if gpu is not None:
        machines[f"{gpu.device} (measured)"] = _fields(
            gpu.bandwidth_bytes_per_s, gpu.peak_flops_per_s, 2
        )
    if core is not None:
        machines["this core (measured)"] = _fields(*core, 4)
    plotting.explore(
        title="How fast can a layer be, by the number of its tokens?",
        alt="The rate that a layer can reach rises with the tokens and stays flat from the peak of "
        "the machine on.",
        inputs=[
            Menu("machine", "machine", machines, "H100"),
            Slider("bytes", "bytes per weight", [0.5, 1, 2, 4], 2),
            Slider("side", "rows and columns of the layer", list(_SIDES), 8192),
            Slider("tokens", "tokens", list(_TOKENS), 16),
        ],
        formulas={
            "work": "2 * side * side * tokens / 1e12",
            "moved": "(bytes * side * side + machine.size * 2 * side * tokens) / 1e12",
            "peak": "machine.P * 1",
            "reached": "min(machine.P, work / moved * machine.B)",
        },
        picture=Curves(
            along="tokens",
            lines=[
                Series("peak", "peak", COLOURS["waiting"]),
                Series("reached", "reached at most", MODELLED),
            ],
            xlabel="tokens",
            ylabel="operations per second, in TFLOP/s",
        ),
    )


def _fields(bandwidth: float, peak: float, size: int) -> dict[str, float]:
    return {"B": bandwidth / 1e12, "P": peak / 1e12, "size": size}
