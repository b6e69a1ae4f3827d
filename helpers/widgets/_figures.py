"""Figures with sliders, which leave fixed views of themselves in the saved notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from helpers import checks, console, plotting
from helpers.checks import members, named


def interactive_figure(
    draw: Callable[..., Figure],
    choices: Mapping[str, Sequence[Any]],
    *,
    views: Sequence[Mapping[str, Any]],
    alt: Callable[..., str],
) -> None:
    """Show ``draw(**setting)`` with one slider a parameter, above fixed views of it.

    ``choices`` maps each parameter of ``draw`` to the values its slider steps through; ``views``
    holds the two or three settings whose figures stand in the notebook for good, also where no
    kernel runs; ``alt(**setting)`` gives each figure's alt text. Headless, only the fixed views are
    shown.

    Raises ValueError for a parameter without choices, for a view that is not one of them, and for
    fewer than two or more than three views.

    >>> interactive_figure(
    ...     lambda n: plotting.draw_bars({"product": 2 * n**3}, unit="FLOP", title=f"n = {n}"),
    ...     {"n": [256, 512, 1024]},
    ...     views=[{"n": 256}, {"n": 1024}],
    ...     alt=lambda n: f"A bar of {2 * n**3:,} operations.",
    ... )  # doctest: +SKIP

    Lesson 01.
    """
    for name, function in {"draw": draw, "alt": alt}.items():
        checks.function(name, function, "a function of the parameters")
    _check(choices, views)

    def show(**setting: Any) -> None:
        plotting.show(draw(**setting), alt=alt(**setting))

    if not console.is_headless():
        _show_sliders(show, choices, views[0])
    for setting in views:
        show(**setting)


def _check(choices: Mapping[str, Sequence[Any]], views: Sequence[Mapping[str, Any]]) -> None:
    members("views", views, "settings, each a dictionary", kind=Mapping)
    named("choices", choices, "lists of values")
    empty = [name for name, values in choices.items() if len(values) == 0]
    if not choices or empty:
        raise ValueError(
            "a slider needs values to step through; none given for "
            f"{', '.join(empty) or 'any parameter'}"
        )
    if not 2 <= len(views) <= 3:
        raise ValueError(f"give two or three fixed views, not {len(views)}")
    for setting in views:
        if set(setting) != set(choices):
            raise ValueError(f"the view {dict(setting)} must set exactly {', '.join(choices)}")
        invalid_names = [
            name for name, value in setting.items() if value not in list(choices[name])
        ]
        if invalid_names:
            raise ValueError(
                f"the view {dict(setting)} sets {', '.join(invalid_names)} to a value that its "
                "slider does not have"
            )


def _show_sliders(
    show: Callable[..., None], choices: Mapping[str, Sequence[Any]], start: Mapping[str, Any]
) -> None:
    import ipywidgets
    from IPython.display import display

    sliders = {
        name: ipywidgets.SelectionSlider(
            options=list(values),
            value=start[name],
            description=name.replace("_", " "),
            continuous_update=False,
        )
        for name, values in choices.items()
    }
    display(ipywidgets.VBox(list(sliders.values())), ipywidgets.interactive_output(show, sliders))
