"""Draws what the profilers return: operations, memory and working sets by layer, shares of a step, times by width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from helpers.memory import LayerMemoryProfile, MemoryProfile, WorkingSets
from helpers.operations import LayerOperations, OperationProfile
from helpers.plotting.curves import draw_curves
from helpers.plotting.layers import draw_layers, draw_shares
from helpers.training import TrainingEstimate

_SMALL_SHARE = 0.05
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
    """Return two pies of FLOPs by layer: of the forward alone (inference), and of forward and backward (training).

    Layers below 5 % of both are one part, "others". For the library itself.
    """
    passes: dict[str, Callable[[LayerOperations], int]] = {
        "inference": lambda row: row.forward_flops,
        "training": lambda row: row.forward_flops + row.backward_flops,
    }
    wholes = {name: {row.layer: flops(row) for row in _leaves(profile.layers)} for name, flops in passes.items()}
    return draw_shares(_without_small(wholes), title=f"FLOPs of {profile.model} by layer")


def draw_layer_memory(profile: LayerMemoryProfile, *, training: bool, title: str) -> Figure:
    """Return a bar a layer: its working set of inputs, outputs and parameters; or with ``training`` what a step keeps.

    A layer without a byte of it, and a part that is nothing in every layer, are left out. For the library itself.
    """
    kinds = _KEPT if training else _WORKING_SET
    rows = [row for row in profile.layers if any(size(row) for size in kinds.values())]
    parts = {name: [size(row) for row in rows] for name, size in kinds.items()}
    shown = {name: values for name, values in parts.items() if any(values)}
    return draw_layers([row.layer for row in rows], shown, unit="B", title=title)


def draw_memory(profiles: Mapping[str, MemoryProfile], *, title: str) -> Figure:
    """Return a pie a profile, such as of inference and of training: the largest moment of each category.

    For the library itself.
    """
    wholes = {name: {part.category: part.size_bytes for part in profile.shares} for name, profile in profiles.items()}
    return draw_shares(wholes, title=title)


def draw_working_sets(sets: WorkingSets, *, title: str) -> Figure:
    """Return a bar a layer with parameters: input, output, parameters. For the library itself."""
    parts = {
        "parameters": [row.parameter_bytes for row in sets.layers],
        "inputs": [row.input_bytes for row in sets.layers],
        "outputs": [row.output_bytes for row in sets.layers],
    }
    return draw_layers([row.layer for row in sets.layers], parts, unit="B", title=title)


def draw_epoch_times(estimate: TrainingEstimate) -> Figure:
    """Return the seconds of one epoch over the width of the model: at the median step and at the slowest.

    For the library itself.
    """
    curves = {
        "estimated": [size.estimated_s / estimate.epochs for size in estimate.sizes],
        "at the slowest step": [size.high_s / estimate.epochs for size in estimate.sizes],
    }
    return draw_curves([size.hidden for size in estimate.sizes], curves, unit="s", size_unit="",
                       title=f"One epoch of {estimate.model}, estimated from a few steps", xlabel="hidden units",
                       ylabel="time of an epoch")  # fmt: skip


def _leaves(rows: Sequence[LayerOperations]) -> list[LayerOperations]:
    """Return the layers that hold no other row: each operation is counted in one of them."""
    holders = {"" for row in rows if row.layer} | {row.layer[:dot] for row in rows for dot in _dots(row.layer)}
    return [row for row in rows if row.layer not in holders]


def _dots(path: str) -> list[int]:
    return [place for place, character in enumerate(path) if character == "."]


def _without_small(wholes: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return ``wholes`` with the parts that are small in each of them added up under "others"."""
    large = {part for parts in wholes.values() for part, value in parts.items()
             if value >= _SMALL_SHARE * sum(parts.values())}  # fmt: skip
    kept = {name: {part: value for part, value in parts.items() if part in large} for name, parts in wholes.items()}
    for name, parts in wholes.items():
        rest = sum(parts.values()) - sum(kept[name].values())
        if rest:
            kept[name]["others"] = rest
    return kept
