"""Names beside points, placed so that no two of them overlap, nor a name and a point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Annotation

_DIRECTIONS = (
    (1, 0),
    (1, 1),
    (1, -1),
    (0, 1),
    (0, -1),
    (-1, 1),
    (-1, -1),
    (-1, 0),
    (1, 0.5),
    (1, -0.5),
    (-1, 0.5),
    (-1, -0.5),
)
_DISTANCES_PT = (8, 16, 26, 38, 52, 68, 86, 106, 128, 152)
_POINT_PT = 7  # half the side of the square that a label keeps off a point
_POINTS_PER_INCH = 72
_WITH_LINE_PT = 10
_DOUBT_SHARE = 0.05  # of a name's area: dearer than crossing a line, cheaper than covering a name
_STEP_PT = 4  # of the samples along the lines that names keep off


def label_points(
    axes: Axes,
    points: Sequence[tuple[float, float, str]],
    *,
    avoid: Sequence[tuple[float, float]] = (),
) -> list[Annotation]:
    """Write a name beside each point (x, y, name), in data units, and return the texts in the order
    given.

    A name goes to the nearest free place around its point that lies inside the axes; one that had
    to go far gets a thin line to its point. ``avoid`` are further points, in data units, that names
    keep off, as they keep off the texts and, where they can, the lines in the axes. Call it last,
    when limits and scales of the axes are set: the places depend on them.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None  # points are named in axes that are drawn
    figure.draw_without_rendering()
    scale = figure.dpi / _POINTS_PER_INCH
    frame = np.array(axes.get_window_extent().extents)
    pixels = _pixels(axes, [(x, y) for x, y, _ in points])
    half = _POINT_PT * scale
    spots = np.concatenate([pixels, _pixels(axes, avoid)])
    written = np.array([text.get_window_extent().extents for text in axes.texts]).reshape(-1, 4)
    occupied = np.concatenate([np.concatenate([spots - half, spots + half], axis=1), written])
    lines = np.concatenate([np.empty((0, 2)), *(_samples(line, scale) for line in axes.lines)])
    texts = []
    for centre, (x, y, name) in zip(pixels, points, strict=True):
        text = axes.annotate(
            name,
            (x, y),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=10,
            color="#222222",
            ha="center",
            va="center",
            annotation_clip=False,
        )
        box = text.get_window_extent()
        boxes = _candidate_boxes(centre, np.array([box.width, box.height]), scale)
        costs = (
            _shared_areas(boxes, occupied)
            + _areas_outside(boxes, frame)
            + _count_crossings(boxes, lines)
            + _doubt(boxes, centre, spots)
        )
        best = int(costs.argmin())
        occupied = np.concatenate([occupied, boxes[best : best + 1]])
        text.set_position(tuple(((boxes[best, :2] + boxes[best, 2:]) / 2 - centre) / scale))
        if _DISTANCES_PT[best // len(_DIRECTIONS)] >= _WITH_LINE_PT:
            line = _line_to_point(axes, centre, boxes[best])
            lines = np.concatenate([lines, _samples(line, scale)])
        texts.append(text)
    return texts


def _pixels(axes: Axes, points: Sequence[tuple[float, float]]) -> np.ndarray:
    return axes.transData.transform(points) if points else np.empty((0, 2))


def _line_to_point(axes: Axes, centre: np.ndarray, box: np.ndarray) -> Line2D:
    ends = axes.transData.inverted().transform([centre, np.clip(centre, box[:2], box[2:])])
    (line,) = axes.plot(
        *ends.T,
        color="#888888",
        linewidth=0.7,
        zorder=1.5,
        scalex=False,
        scaley=False,
        label="_to a name",
    )
    return line


def _candidate_boxes(centre: np.ndarray, size: np.ndarray, scale: float) -> np.ndarray:
    """Return the boxes (n, 4) that a text of ``size`` may take, nearest first: x0, y0, x1, y1 in
    pixels.
    """
    distances = np.repeat(_DISTANCES_PT, len(_DIRECTIONS))
    directions = np.tile(_DIRECTIONS, (len(_DISTANCES_PT), 1))
    middles = centre + directions * (distances[:, None] * scale + size / 2)
    return np.concatenate([middles - size / 2, middles + size / 2], axis=1)


def _samples(line: Line2D, scale: float) -> np.ndarray:
    """Return points (n, 2) in pixels along a line, close enough together for no name to slip
    between them.
    """
    corners = line.get_transform().transform(line.get_xydata())
    corners = corners[np.isfinite(corners).all(axis=1)]
    if len(corners) < 2 or line.get_linestyle() == "None":
        return np.empty((0, 2))
    along = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(corners, axis=0).T))])
    at = np.linspace(0, along[-1], int(along[-1] / (_STEP_PT * scale)) + 2)
    return np.stack([np.interp(at, along, corners[:, axis]) for axis in (0, 1)], axis=1)


def _area(boxes: np.ndarray) -> np.ndarray:
    sides = np.clip(boxes[..., 2:] - boxes[..., :2], 0, None)
    return sides[..., 0] * sides[..., 1]


def _shared_areas(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return for each box (n, 4) the area that it shares with ``others`` (m, 4)."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return _area(np.concatenate([low, high], axis=2)).sum(axis=1)


def _areas_outside(boxes: np.ndarray, frame: np.ndarray) -> np.ndarray:
    return _area(boxes) - _shared_areas(boxes, frame[None])


def _count_crossings(boxes: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Return for each box how many samples of lines lie in it: a little, beside the area of a
    name.
    """
    inside = (lines[None] > boxes[:, None, :2]) & (lines[None] < boxes[:, None, 2:])
    return inside.all(axis=2).sum(axis=1)


def _doubt(boxes: np.ndarray, centre: np.ndarray, spots: np.ndarray) -> np.ndarray:
    """Return a share of a text's area where another point lies nearer to its box than its own point
    does.
    """

    def distances(points: np.ndarray) -> np.ndarray:
        nearest = np.clip(points[None], boxes[:, None, :2], boxes[:, None, 2:])
        return np.hypot(*np.moveaxis(points[None] - nearest, 2, 0))

    nearer = distances(spots) < distances(centre[None]) - 1  # a pixel for rounding
    return _DOUBT_SHARE * _area(boxes) * nearer.any(axis=1)
