"""The updates and the rounds that a training needs, by the images of a batch or of each worker."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

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
    axes.plot(
        along,
        [stays + shrinks / batch for batch in along],
        color=MODELLED,
        label="both parts (modelled)",
    )
    axes.plot(along, [stays for _ in along], ":", color=MODELLED, label="the part that stays")
    axes.plot(
        along,
        [shrinks / batch for batch in along],
        "--",
        linewidth=1.2,
        color=MODELLED,
        label="the part that shrinks",
    )
    critical = shrinks / stays
    axes.plot([critical], [stays], "D", color="white", markeredgecolor=MODELLED, markersize=9)
    axes.annotate(
        f"critical batch, {critical:.0f} images",
        (critical, stays),
        xytext=(-8, -18),
        textcoords="offset points",
        ha="right",
    )
    means = {batch: search.mean_steps for batch, search in measured.items()}
    errors = {batch: search.standard_error for batch, search in measured.items()}
    _points(axes, means, errors, "measured", "o", MEASURED)
    _batch_axes(axes, batches)
    axes.set(
        xlabel="images in a batch", ylabel="updates until the loss is below 0.5", ylim=(10, None)
    )
    axes.legend(loc="upper right")
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
        _points(
            axes,
            {images: mean for images, (mean, _) in rounds.items()},
            {images: error for images, (_, error) in rounds.items()},
            name,
            style,
            colour,
        )
    _batch_axes(axes, sorted({images for rounds in ways.values() for images in rounds}))
    axes.set(
        xlabel="images of each worker in a round",
        ylabel="rounds until the loss is below 0.5",
        ylim=(10, None),
    )
    axes.legend(loc="upper right")
    return drawn


def _points(
    axes: Axes,
    means: Mapping[int, float],
    errors: Mapping[int, float],
    name: str,
    style: str,
    colour: str,
) -> None:
    axes.errorbar(
        list(means),
        list(means.values()),
        yerr=[errors[batch] for batch in means],
        fmt=style,
        color=colour,
        capsize=3,
        markersize=7,
        label=name,
    )


def _batch_axes(axes: Axes, batches: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(batches))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda batch, _: f"{batch:,.0f}"))
    axes.yaxis.set_major_locator(FixedLocator([10, 20, 50, 100, 200]))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rounds, _: f"{rounds:g}"))
