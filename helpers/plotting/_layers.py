"""A model's layers as bars of stacked parts, and the shares of a whole as a pie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from helpers import units
from helpers.checks import boolean, members, named, number, numbers
from helpers.memory import LayerMemoryProfile
from helpers.operations import LayerOperations, OperationProfile
from helpers.plotting._style import STYLE_FILE, figure, ink_on, legible_colour, unit_axis

_SMALL_SHARE = 0.05


def draw_layers(
    layers: Sequence[str], parts: Mapping[str, Sequence[float]], *, unit: str, title: str
) -> Figure:
    """Return one horizontal bar for each of ``layers``, from the top, with ``parts`` stacked in it;
    values in ``unit``.

    ``title`` stands above them.

    Raises TypeError or ValueError when a part has not one finite number a layer, at least 0.

    >>> parts = {"parameters": [600, 192120], "outputs": [4704, 480]}
    >>> fig = draw_layers(["conv1", "fc1"], parts, unit="B", title="Bytes of two layers")
    >>> [text.get_text() for text in fig.axes[0].texts]
    ['5,304 B', '193 kB']

    Lesson 11.
    """
    layers = members("layers", layers, "names")
    parts = {
        name: numbers(f"parts[{name!r}]", values, at_least=0)
        for name, values in named("parts", parts, "lists of numbers").items()
    }
    _check_parts(layers, parts)
    fig, axes = figure(title=title, height_in=1.3 + 0.21 * len(layers))
    ends = [0.0] * len(layers)
    for colour, (name, values) in zip(_palette(len(parts)), parts.items(), strict=True):
        axes.barh(range(len(layers)), values, left=ends, height=0.74, label=name, color=colour)
        ends = [start + value for start, value in zip(ends, values, strict=True)]
    for row, total in enumerate(ends):
        axes.annotate(
            units.text(total, unit),
            (total, row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=11,
        )
    axes.set_yticks(range(len(layers)), layers)
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.margins(x=0.22)
    axes.grid(axis="y", visible=False)
    unit_axis(axes, "x", unit)
    axes.locator_params(axis="x", nbins=5)
    if len(parts) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=11)
    return fig


def draw_shares(wholes: Mapping[str, Mapping[str, float]], *, title: str) -> Figure:
    """Return one pie a whole, such as inference and training, with a colour a part that is the same
    in each.

    Parts below 5 % of their whole are drawn without a number. Raises TypeError or ValueError for no
    whole, an empty one, or a part that is no number of at least 0.

    >>> fig = draw_shares({"inference": {"conv": 3, "fc": 1}}, title="FLOPs by layer")
    >>> [text.get_text() for text in fig.axes[0].texts if text.get_text()]
    ['75 %', '25 %']
    """
    wholes = {
        name: {
            part: number(f"wholes[{name!r}][{part!r}]", value, at_least=0)
            for part, value in named(f"wholes[{name!r}]", parts, "numbers").items()
        }
        for name, parts in named("wholes", wholes, "parts and their numbers").items()
    }
    if not wholes:
        raise ValueError("nothing to draw: give at least one whole and its parts")
    for name, parts in wholes.items():
        if not sum(parts.values()) > 0:
            raise ValueError(
                f"{name!r} has nothing to share: parts must be at least 0, and one above it"
            )
    names = list(dict.fromkeys(part for parts in wholes.values() for part in parts))
    colours = dict(zip(names, map(legible_colour, _palette(len(names))), strict=True))
    with plt.style.context(STYLE_FILE):
        fig, panels = plt.subplots(
            1, len(wholes), figsize=(3.0 * len(wholes) + 1.8, 3.4), squeeze=False
        )
        fig.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    for axes, (name, parts) in zip(panels[0], wholes.items(), strict=True):
        pie = axes.pie(
            parts.values(),
            colors=[colours[part] for part in parts],
            autopct=lambda percent: f"{percent:.0f} %" if percent >= 100 * _SMALL_SHARE else "",
            pctdistance=0.72,
            startangle=90,
            counterclock=False,
            wedgeprops={"edgecolor": "white", "linewidth": 1, "width": 0.6},
            textprops={"fontsize": 11},
        )
        for part, percentage in zip(parts, pie[2], strict=True):
            percentage.set_color(ink_on(colours[part]))
        axes.set_title(name, fontsize=12)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colours[name]) for name in names]
    fig.legend(handles, names, loc="outside right center", frameon=False, fontsize=11)
    return fig


def _palette(count: int) -> list[str]:
    """Return ``count`` colours that can be told apart: Okabe and Ito's, then lighter ones of the
    same hues.
    """
    with plt.style.context(STYLE_FILE):
        base = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    lighter = ["#7FB8D8", "#EAAE7F", "#7FCEB9", "#E5BCD3", "#F2CF7F", "#AAD9F4", "#7F7F7F"]
    shades = [*(f"#{colour.lstrip('#')}" for colour in base), *lighter]
    return [shades[index % len(shades)] for index in range(count)]


def _check_parts(layers: Sequence[str], parts: Mapping[str, Sequence[float]]) -> None:
    if not layers or not parts:
        raise ValueError("nothing to draw: give at least one layer and one part")
    uneven = [name for name, values in parts.items() if len(values) != len(layers)]
    if uneven:
        raise ValueError(
            f"{len(layers)} layers need as many numbers; {', '.join(uneven)} has another length"
        )


_WORKING_SET = {
    "parameters": lambda row: row.weight_bytes + row.bias_bytes,
    "inputs": lambda row: row.input_bytes,
    "outputs": lambda row: row.output_bytes,
}
_KEPT = {
    "parameters": _WORKING_SET["parameters"],
    "gradients": lambda row: row.gradient_bytes,
    "optimizer state": lambda row: row.optimizer_state_bytes,
    "saved for backward": lambda row: row.saved_bytes,
}


def draw_operations(profile: OperationProfile) -> Figure:
    """Return two pies of FLOPs by layer: of the forward alone (inference), and of forward and
    backward (training).

    Layers below 5 % of both are one part, "others".

    >>> from helpers import LeNet, operations
    >>> fig = draw_operations(operations.profile_ops(LeNet()))
    >>> [axes.get_title() for axes in fig.axes]
    ['inference', 'training']
    >>> [text.get_text() for text in fig.legends[0].get_texts()]
    ['conv1', 'conv2', 'fc1', 'others']
    """
    passes: dict[str, Callable[[LayerOperations], int]] = {
        "inference": lambda row: row.forward_flops,
        "training": lambda row: row.forward_flops + row.backward_flops,
    }
    wholes = {
        name: {row.layer: flops(row) for row in _leaves(profile.layers)}
        for name, flops in passes.items()
    }
    return draw_shares(_without_small(wholes), title=f"FLOPs of {profile.model} by layer")


def draw_layer_memory(profile: LayerMemoryProfile, *, training: bool, title: str) -> Figure:
    """Return a bar a layer of ``profile``: its working set, or with ``training`` the bytes that a
    step keeps.

    The working set is inputs, outputs and parameters; ``title`` stands above the bars. A layer
    without a byte, and a part that is nothing in every layer, are left out.

    >>> from helpers import LeNet, memory
    >>> profile = memory.profile_layer_mem(LeNet(), training=False)
    >>> fig = draw_layer_memory(profile, training=False, title="Working sets of LeNet")
    >>> [text.get_text() for text in fig.axes[0].get_legend().get_texts()]
    ['parameters', 'inputs', 'outputs']

    Lesson 11.
    """
    boolean("training", training)
    kinds = _KEPT if training else _WORKING_SET
    rows = [row for row in profile.layers if any(size(row) for size in kinds.values())]
    parts = {name: [size(row) for row in rows] for name, size in kinds.items()}
    nonzero_parts = {name: values for name, values in parts.items() if any(values)}
    return draw_layers([row.layer for row in rows], nonzero_parts, unit="B", title=title)


def _leaves(rows: Sequence[LayerOperations]) -> list[LayerOperations]:
    """Return the layers that hold no other row: each operation is counted in one of them."""
    holders = {"" for row in rows if row.layer} | {
        row.layer[:dot] for row in rows for dot in _dots(row.layer)
    }
    return [row for row in rows if row.layer not in holders]


def _dots(path: str) -> list[int]:
    return [index for index, character in enumerate(path) if character == "."]


def _without_small(wholes: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return ``wholes`` with the parts that are small in each of them added up under "others"."""
    large = {
        part
        for parts in wholes.values()
        for part, value in parts.items()
        if value >= _SMALL_SHARE * sum(parts.values())
    }
    large_parts = {
        name: {part: value for part, value in parts.items() if part in large}
        for name, parts in wholes.items()
    }
    for name, parts in wholes.items():
        remainder = sum(parts.values()) - sum(large_parts[name].values())
        if remainder:
            large_parts[name]["others"] = remainder
    return large_parts
