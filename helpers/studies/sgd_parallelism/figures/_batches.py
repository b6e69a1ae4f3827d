"""The updates and the rounds that a training needs, by the images of a batch or of each worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from helpers import plotting
from helpers.checks import named, number
from helpers.plotting import COLOURS, MEASURED, MODELLED
from helpers.studies.sgd_parallelism._search import RateSearch

_STYLES = (("o-", MEASURED), ("s-", COLOURS["sending"]), ("D--", COLOURS["backward"]))


def draw_updates(measured: Mapping[int, RateSearch], *, stays: float, shrinks: float) -> Figure:
    """Return the updates that a training needs over the images of its batch, measured and modelled.

    ``measured`` has a search for each batch, drawn with its standard error. The model is ``stays``
    + ``shrinks`` / batch, with its two parts drawn as thin lines; they cross at the critical batch,
    ``shrinks`` / ``stays`` images. Lesson 04.
    """
    stays, shrinks = number("stays", stays, above=0), number("shrinks", shrinks, above=0)
    batches = sorted(measured)
    drawn, axes = plotting.figure(title="", height_in=4.2)
    along = [batches[0] * (batches[-1] / batches[0]) ** (index / 60) for index in range(61)]
    both = [stays + shrinks / batch for batch in along]
    axes.plot(along, both, color=MODELLED, label="both parts (modelled)")
    axes.plot(along, [stays] * len(along), ":", color=MODELLED, label="the part that stays")
    shrinking, label = [shrinks / batch for batch in along], "the part that shrinks"
    axes.plot(along, shrinking, "--", linewidth=1.2, color=MODELLED, label=label)
    critical = shrinks / stays
    axes.plot([critical], [stays], "D", color="white", markeredgecolor=MODELLED, markersize=9)
    axes.annotate(
        f"critical batch, {critical:.0f} images",
        (critical, stays),
        xytext=(-8, -18),
        textcoords="offset points",
        ha="right",
    )
    means = {batch: (each.mean_steps, each.standard_error) for batch, each in measured.items()}
    _points(axes, means, "measured", "o", MEASURED)
    _finish(axes, batches, xlabel="images in a batch", counted="updates")
    return drawn


def draw_rounds(ways: Mapping[str, Mapping[int, tuple[float, float]]]) -> Figure:
    """Return the rounds that each way of working needs over the images of each worker.

    ``ways`` maps the name of a way to its rounds and their standard error, by the images of a
    worker. In a round each worker computes one gradient. Raises ValueError for no way, or more than
    three. Lesson 04.
    """
    ways = named("ways", ways, "mappings from images to rounds and their standard error")
    if not 0 < len(ways) <= len(_STYLES):
        raise ValueError(f"{len(ways)} ways of working; give one to {len(_STYLES)}")
    drawn, axes = plotting.figure(title="", height_in=4.2)
    for (name, rounds), (style, colour) in zip(ways.items(), _STYLES, strict=False):
        _points(axes, rounds, name, style, colour)
    batches = sorted({images for rounds in ways.values() for images in rounds})
    _finish(axes, batches, xlabel="images of each worker in a round", counted="rounds")
    return drawn


def _points(
    axes: Axes, means: Mapping[int, tuple[float, float]], name: str, style: str, colour: str
) -> None:
    """Draw the means and their standard errors by images."""
    heights, errors = zip(*means.values(), strict=True)
    look: dict[str, Any] = {"fmt": style, "color": colour, "capsize": 3, "markersize": 7}
    axes.errorbar(list(means), heights, yerr=errors, label=name, **look)


def _finish(axes: Axes, batches: list[int], *, xlabel: str, counted: str) -> None:
    """Make both axes logarithmic: images, and the updates or rounds that they need."""
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel=xlabel, ylabel=f"{counted} until the loss is below 0.5")
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.set_xticks([], minor=True)
    axes.set_yticks([10, 20, 50, 100, 200], ["10", "20", "50", "100", "200"])
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(10, None)
    axes.legend(loc="upper right")
