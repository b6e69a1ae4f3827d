"""The map of the machine, from a core to a cluster, with the place that a lesson is about."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tools.authoring.cells import AuthoringError

WIDTH, HEIGHT = 860, 236
GREY, HERE = "#777777", "#D55E00"  # the grey is read on white and on black alike


@dataclass(frozen=True)
class Place:
    """A part of the machine: what the map writes into it, and its box (left, top, width, height)."""

    label: str
    box: tuple[int, int, int, int]
    is_inside: bool = True  # whether the label is in the middle of the box, or at its upper edge


PLACES: Mapping[str, Place] = {
    "cluster": Place("cluster", (4, 4, 852, 228), False),
    "node": Place("node", (16, 26, 650, 196), False),
    "processor": Place("processor", (30, 50, 226, 160), False),
    "core": Place("arithmetic", (44, 76, 92, 40)),
    "registers": Place("registers", (44, 124, 92, 32)),
    "caches": Place("caches", (44, 164, 92, 34)),
    "memory": Place("memory", (150, 76, 92, 76)),
    "disk": Place("disk", (150, 164, 92, 34)),
    "bus": Place("bus", (264, 112, 56, 34)),
    "gpu": Place("GPU", (328, 50, 146, 160), False),
    "multiprocessors": Place("multiprocessors", (340, 76, 122, 40)),
    "gpu_caches": Place("caches", (340, 124, 122, 32)),
    "gpu_memory": Place("memory", (340, 164, 122, 34)),
    "link": Place("link", (482, 112, 56, 34)),
    "gpus": Place("other GPUs", (546, 50, 108, 160)),
    "network": Place("network", (676, 112, 74, 34)),
    "nodes": Place("other nodes", (760, 50, 86, 160)),
}


def svg(here: Collection[str]) -> str:
    """Return the map as SVG with the places ``here``, keys of :data:`PLACES`, marked.

    Raises AuthoringError for a place that the map does not have.
    """
    unknown = [place for place in here if place not in PLACES]
    if unknown:
        raise AuthoringError(f"the map has no place {', '.join(unknown)}; it has {', '.join(PLACES)}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'font-family="\'DejaVu Sans\', Verdana, sans-serif" font-size="13" role="img">',
        f"<title>{description(here)}</title>",
    ]
    for name, place in PLACES.items():
        lines += _drawn(place, is_here=name in here)
    return "\n".join([*lines, "</svg>", ""])


def _drawn(place: Place, *, is_here: bool) -> list[str]:
    left, top, width, height = place.box
    colour = HERE if is_here else GREY
    fill = f'fill="{HERE}" fill-opacity="0.22"' if is_here else 'fill="none"'
    x, y = (left + width / 2, top + height / 2 + 4) if place.is_inside else (left + 10, top + 17)
    anchor, weight = "middle" if place.is_inside else "start", "bold" if is_here else "normal"
    return [
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="6" {fill} stroke="{colour}" '
        f'stroke-width="{2.4 if is_here else 1.2}"/>',
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}">{place.label}</text>',
    ]


def description(here: Collection[str]) -> str:
    """Return the alt text of the map."""
    owners = {
        "core": "the arithmetic of a core",
        "caches": "the caches of a core",
        "memory": "the processor's memory",
        "gpu_caches": "the caches of a GPU",
        "gpu_memory": "the memory of a GPU",
    }
    named = [owners.get(name, f"the {PLACES[name].label}") for name in PLACES if name in here]
    listed = " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
    return f"Map of the machine, from a core to a cluster. You are here: {listed}."
