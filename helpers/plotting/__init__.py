"""Draws the library's results; measures nothing. One style for all, and no figure without an alt text."""

from helpers.plotting.bars import draw_bars, draw_three
from helpers.plotting.curves import draw_bandwidths, draw_curves, draw_latencies
from helpers.plotting.gantt import Span, gantt
from helpers.plotting.hierarchy import draw_hierarchy, draw_inversion, draw_links
from helpers.plotting.history import Doubling, doubling_line, draw_energy, draw_growth, draw_trends
from helpers.plotting.images import draw_images
from helpers.plotting.layers import (
    draw_epoch_times,
    draw_layer_memory,
    draw_layers,
    draw_memory,
    draw_operations,
    draw_shares,
    draw_working_sets,
)
from helpers.plotting.parallel import draw_crossover, draw_limits, draw_losses, draw_speedup, draw_split, draw_stale
from helpers.plotting.processors import (
    MEMORY_SPACES,
    SCHEMATIC_DIES,
    Die,
    MemorySpace,
    draw_dies,
    draw_memory_spaces,
)
from helpers.plotting.roofline import draw_roofline, roofline_alt
from helpers.plotting.style import MEASURED, MODELLED, PREDICTED, figure, png, show, unit_axis

__all__ = [
    "MEASURED", "MEMORY_SPACES", "MODELLED", "PREDICTED", "SCHEMATIC_DIES", "Die", "Doubling", "MemorySpace", "Span",
    "doubling_line", "draw_crossover", "draw_limits", "draw_losses", "draw_speedup", "draw_split", "draw_stale",
    "draw_curves",
    "draw_bandwidths", "draw_bars", "draw_dies", "draw_energy", "draw_growth", "draw_hierarchy", "draw_images",
    "draw_inversion", "draw_latencies", "draw_layers", "draw_links", "draw_memory_spaces", "draw_roofline",
    "draw_epoch_times", "draw_layer_memory", "draw_memory", "draw_operations", "draw_shares", "draw_three",
    "draw_working_sets", "draw_trends", "figure", "gantt", "png", "roofline_alt", "show", "unit_axis",
]  # fmt: skip
