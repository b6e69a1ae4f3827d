"""The figures of lesson 09 about experts: they draw what others have counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from helpers import plotting
from helpers.checks import named, numbers
from helpers.plotting import COLOURS

_SHADES = (COLOURS["waiting"], COLOURS["computing"], "#332288")


def draw_shares(shares: Mapping[str, Sequence[float]], *, title: str) -> Figure:
    """Return bars of the tokens of each expert, the fullest first, relative to a fair share.

    ``shares`` has, for each label, the share of the tokens that chose each expert, equally many
    experts for each. A line marks a fair share. Raises ValueError for no shares, more than 3
    labels, or experts whose number differs. Lesson 09.
    """
    rows = {
        label: numbers(f"shares[{label!r}]", row, at_least=0)
        for label, row in named("shares", shares, "shares").items()
    }
    sizes = {len(row) for row in rows.values()}
    if len(sizes) != 1 or 0 in sizes or len(rows) > len(_SHADES):
        raise ValueError(
            f"{len(rows)} labels with {sorted(sizes)} experts cannot be drawn; give 1 to "
            f"{len(_SHADES)} labels, each with the same number of experts"
        )
    [experts] = sizes
    width = 0.8 / len(rows)
    drawn, axes = plotting.figure(title=title)
    positions = np.arange(experts)
    for index, ((label, row), colour) in enumerate(zip(rows.items(), _SHADES, strict=False)):
        heights = experts * np.sort(row)[::-1]
        axes.bar(
            positions + (index - (len(rows) - 1) / 2) * width,
            heights,
            width,
            color=colour,
            label=label,
        )
    axes.axhline(1, color="#222222", linewidth=1.2, linestyle="--", label="a fair share")
    axes.set_xticks(positions, [f"{index + 1}" for index in positions])
    axes.set(xlabel="experts, the fullest first", ylabel="tokens / fair share", ylim=(0, None))
    axes.legend()
    return drawn
