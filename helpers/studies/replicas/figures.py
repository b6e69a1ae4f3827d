"""Replicas beside one another: the calls of a loop and of a stack, and where one replica reaches the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.checks import members, named, whole_number
from helpers.studies._paper import COMPUTING, DATA, EMPTY, INK, QUIET, SENDING, arrow, box, paper, tint, write

_NAME_IN, _STAGE_IN, _GAP_IN, _ROW_IN, _TOP_IN, _MOST = 1.05, 0.95, 0.3, 0.42, 0.62, 12


def draw_replicas(stages: Sequence[str], *, replicas: int = 4, title: str) -> Figure:
    """Return a step of ``stages`` for all replicas in a loop, and below it in a stack: each box is a call, numbered.

    ``title`` stands above both.

    Raises TypeError or ValueError for stages that are no texts, and unless ``replicas`` are 2 to 12. Lesson 19.
    """
    stages, replicas = _checked(stages, replicas)
    high = replicas * _ROW_IN
    drawn, axes = paper(_wide(stages), 2 * (_TOP_IN + high) + 0.5, title=title)
    for looped, top in ((True, _TOP_IN), (False, 2 * _TOP_IN + high + 0.3)):
        calls = len(stages) * (replicas if looped else 1)
        write(
            axes, 0.12, top - 0.42, f"{'a loop' if looped else 'a stack'}: {calls} calls", size=13, bold=True, ha="left"
        )
        _names(axes, stages, replicas, top)
        for place in range(len(stages)):
            left = _left(place)
            for replica in range(replicas):
                y = top + replica * _ROW_IN
                if looped:
                    number = str(replica * len(stages) + place + 1)
                    box(axes, left, y + 0.05, _STAGE_IN, _ROW_IN - 0.1, number, colour=tint(COMPUTING, 0.35))
                if place < len(stages) - 1:
                    middle = y + _ROW_IN / 2
                    arrow(axes, (left + _STAGE_IN, middle), (left + _STAGE_IN + _GAP_IN, middle), colour=QUIET, thick=1)
            if not looped:
                box(axes, left, top + 0.02, _STAGE_IN, high - 0.04, str(place + 1), colour=tint(COMPUTING, 0.35))
    return drawn


def draw_couplings(stages: Sequence[str], couplings: Mapping[str, str], *, replicas: int = 4, title: str) -> Figure:
    """Return a stack's step: a lane a replica, and a bar across them at each of ``stages`` that ``couplings`` names.

    A coupling's text, below its bar, says what passes from replica to replica there; ``title`` stands above all. Raises
    TypeError or ValueError for stages that are no texts, couplings of no stage, and unless ``replicas`` are 2 to 12.
    Lesson 19.
    """
    stages, replicas = _checked(stages, replicas)
    named("couplings", couplings, "texts by their stages")
    unknown = next((name for name in couplings if name not in stages), None)
    if unknown is not None:
        raise ValueError(f"couplings has {unknown!r}, which is no stage; the stages are {', '.join(stages)}")
    high = replicas * _ROW_IN
    drawn, axes = paper(_wide(stages), _TOP_IN + high + 0.75, title=title)
    _names(axes, stages, replicas, _TOP_IN)
    for place, stage in enumerate(stages):
        left = _left(place)
        for replica in range(replicas):
            y = _TOP_IN + replica * _ROW_IN
            box(axes, left, y + 0.05, _STAGE_IN, _ROW_IN - 0.1, colour=tint(DATA, 0.45) if place == 0 else EMPTY)
            if place < len(stages) - 1:
                middle = y + _ROW_IN / 2
                arrow(axes, (left + _STAGE_IN, middle), (left + _STAGE_IN + _GAP_IN, middle), colour=QUIET, thick=1)
        if stage in couplings:
            x = left + _STAGE_IN / 2
            box(axes, x - 0.14, _TOP_IN + 0.02, 0.28, high - 0.04, colour=SENDING)
            write(axes, x, _TOP_IN + high + 0.14, couplings[stage], size=10, va="top", colour=INK)
    return drawn


def _checked(stages: Sequence[str], replicas: int) -> tuple[list[str], int]:
    return list(members("stages", stages, "names", kind=str)), whole_number(
        "replicas", replicas, at_least=2, at_most=_MOST
    )


def _wide(stages: Sequence[str]) -> float:
    return _left(len(stages)) - _GAP_IN + 0.15


def _left(place: int) -> float:
    return _NAME_IN + place * (_STAGE_IN + _GAP_IN)


def _names(axes: Axes, stages: Sequence[str], replicas: int, top: float) -> None:
    for place, stage in enumerate(stages):
        write(axes, _left(place) + _STAGE_IN / 2, top - 0.12, stage, size=10, colour=QUIET)
    for replica in range(replicas):
        write(
            axes,
            _NAME_IN - 0.12,
            top + (replica + 0.5) * _ROW_IN,
            f"replica {replica}",
            size=10,
            ha="right",
            colour=QUIET,
        )
