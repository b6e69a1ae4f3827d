"""The map of the machine, from a core to a cluster, with the place that a lesson is about."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools.authoring.cells import AuthoringError
from tools.authoring.order import Act

WIDTH, HEIGHT = 860, 236
GREY, HERE = "#777777", "#D55E00"  # the grey is read on white and on black alike
# one an act, seen on white and on black
ACTS = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#999933", "#CC6677")
COURSE = (
    "Map of the course: the machine, from a core to a cluster, with the acts, their lessons and "
    "their questions."
)
_CARDS_A_ROW, _CARD_WIDTH, _CARD_HEIGHT, _CARD_GAP, _LETTERS = 3, 276, 84, 12, 38


@dataclass(frozen=True)
class MapPlace:
    """A part of the machine: what the map writes into it, and its box (left, top, width,
    height).
    """

    label: str
    box: tuple[int, int, int, int]
    is_inside: bool = True  # whether the label is in the middle of the box, or at its upper edge


PLACES: Mapping[str, MapPlace] = {
    "cluster": MapPlace("cluster", (4, 4, 852, 228), False),
    "node": MapPlace("node", (16, 26, 650, 196), False),
    "processor": MapPlace("processor", (30, 50, 226, 160), False),
    "core": MapPlace("arithmetic", (44, 76, 92, 40)),
    "registers": MapPlace("registers", (44, 124, 92, 32)),
    "caches": MapPlace("caches", (44, 164, 92, 34)),
    "memory": MapPlace("memory", (150, 76, 92, 76)),
    "disk": MapPlace("disk", (150, 164, 92, 34)),
    "bus": MapPlace("bus", (264, 112, 56, 34)),
    "gpu": MapPlace("GPU", (328, 50, 146, 160), False),
    "multiprocessors": MapPlace("multiprocessors", (340, 76, 122, 40)),
    "gpu_caches": MapPlace("caches", (340, 124, 122, 32)),
    "gpu_memory": MapPlace("memory", (340, 164, 122, 34)),
    "link": MapPlace("link", (482, 112, 56, 34)),
    "gpus": MapPlace("other GPUs", (546, 50, 108, 160)),
    "network": MapPlace("network", (676, 112, 74, 34)),
    "nodes": MapPlace("other nodes", (760, 50, 86, 160)),
}


def svg(here: Collection[str]) -> str:
    """Return the map as SVG with the places ``here``, keys of :data:`PLACES`, marked.

    Raises AuthoringError for a place that the map does not have.
    """
    _refuse_unknown(here)
    lines = _head(HEIGHT, description(here))
    for name, place in PLACES.items():
        lines += _draw_place(place, HERE if name in here else None, is_bold=name in here)
    return "\n".join([*lines, "</svg>", ""])


def course_svg(acts: Sequence[Act]) -> str:
    """Return the map of the course as SVG: the map of the machine with the acts, and a card for
    each act below.

    Raises AuthoringError for more acts than there are colours, for a place that the map does not
    have, and for one that two acts have.
    """
    places = [place for act in acts for place in act.places]
    _refuse_unknown(places)
    duplicates = sorted({place for place in places if places.count(place) > 1})
    if duplicates or len(acts) > len(ACTS):
        conflict = (
            f"two acts have {', '.join(duplicates)}"
            if duplicates
            else f"{len(acts)} acts, and colours for {len(ACTS)}"
        )
        raise AuthoringError(
            f"the map of the course: {conflict}; give each act places and a colour of its own"
        )
    colours = {
        place: colour for act, colour in zip(acts, ACTS, strict=False) for place in act.places
    }
    numbers = {place: number for number, act in enumerate(acts, start=1) for place in act.places}
    rows = -(-len(acts) // _CARDS_A_ROW)
    lines = _head(HEIGHT + rows * (_CARD_HEIGHT + _CARD_GAP), COURSE)
    for name, place in PLACES.items():
        lines += _draw_place(place, colours.get(name))
    for name, number in numbers.items():
        left, top, width, _ = PLACES[name].box
        lines += _badge(left + width, top, number, colours[name])
    for position, (act, colour) in enumerate(zip(acts, ACTS, strict=False)):
        lines += _card(act, position, colour)
    return "\n".join([*lines, "</svg>", ""])


def _refuse_unknown(places: Collection[str]) -> None:
    unknown = [place for place in places if place not in PLACES]
    if unknown:
        raise AuthoringError(
            f"the map has no place {', '.join(unknown)}; it has {', '.join(PLACES)}"
        )


def _head(height: int, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'font-family="\'DejaVu Sans\', Verdana, sans-serif" font-size="13" role="img">',
        f"<title>{title}</title>",
    ]


def _badge(x: float, y: float, number: int, colour: str) -> list[str]:
    return [
        f'<circle cx="{x:g}" cy="{y:g}" r="11" fill="{colour}"/>',
        (
            f'<text x="{x:g}" y="{y + 4.5:g}" text-anchor="middle" font-weight="bold" '
            f'fill="#ffffff">{number}</text>'
        ),
    ]


def _card(act: Act, position: int, colour: str) -> Iterator[str]:
    """Yield the lines of an act's card: its number, title, lessons and question."""
    row, column = divmod(position, _CARDS_A_ROW)
    left = 4 + column * (_CARD_WIDTH + _CARD_GAP)
    top = HEIGHT + _CARD_GAP - 4 + row * (_CARD_HEIGHT + _CARD_GAP)
    yield (
        f'<rect x="{left}" y="{top}" width="{_CARD_WIDTH}" height="{_CARD_HEIGHT}" rx="6" '
        f'fill="{colour}" fill-opacity="0.12" stroke="{colour}" stroke-width="1.6"/>'
    )
    yield from _badge(left + 20, top + 22, position + 1, colour)
    yield (
        f'<text x="{left + 38}" y="{top + 27}" font-weight="bold" '
        f'fill="{GREY}">{html.escape(act.title)}</text>'
    )
    right = left + _CARD_WIDTH - 10
    yield (
        f'<text x="{right}" y="{top + 27}" text-anchor="end" font-size="12" '
        f'fill="{GREY}">{act.numbers}</text>'
    )
    for line, text in enumerate(map(html.escape, textwrap.wrap(act.question, _LETTERS))):
        yield (
            f'<text x="{left + 12}" y="{top + 52 + 17 * line}" font-size="12" '
            f'fill="{GREY}">{text}</text>'
        )


def _draw_place(place: MapPlace, mark_colour: str | None, *, is_bold: bool = False) -> list[str]:
    """Return the lines of a place, in the colour that marks it if one does."""
    left, top, width, height = place.box
    is_here, colour = mark_colour is not None, mark_colour or GREY
    fill = f'fill="{colour}" fill-opacity="0.22"' if is_here else 'fill="none"'
    x, y = (left + width / 2, top + height / 2 + 4) if place.is_inside else (left + 10, top + 17)
    anchor, weight = "middle" if place.is_inside else "start", "bold" if is_bold else "normal"
    return [
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="6" {fill} '
        f'stroke="{colour}" stroke-width="{2.4 if is_here else 1.2}"/>',
        (
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{colour}">{place.label}</text>'
        ),
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
    place_names = [owners.get(name, f"the {PLACES[name].label}") for name in PLACES if name in here]
    place_list = " and ".join(
        [", ".join(place_names[:-1]), place_names[-1]] if len(place_names) > 1 else place_names
    )
    return f"Map of the machine, from a core to a cluster. You are here: {place_list}."
