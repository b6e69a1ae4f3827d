"""``explore``: a figure whose reader turns the inputs of a model, also where no kernel and no
network is.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from helpers.checks import members, one_of
from helpers.plotting._displaying import display_page, require_sentences, script_of
from helpers.plotting._style import STYLE_FILE, png
from helpers.plotting.explorer._formulas import Value, check_formula, evaluate

_SCRIPT = script_of(Path(__file__).parent, "explorer")
_WIDTH_IN, _CHARACTERS = 8.2, 85


@dataclass(frozen=True)
class Menu:
    """An input that is one of several options, each with the same fields, which formulas read as
    ``name.field``.

    ``start`` is the label of the option with which the figure begins. Lesson 11.
    """

    name: str
    label: str
    options: Mapping[str, Mapping[str, float]]
    start: str


@dataclass(frozen=True)
class Slider:
    """An input that is one of several numbers, which formulas read by ``name``; the figure begins
    with ``start``.

    Lesson 11.
    """

    name: str
    label: str
    values: Sequence[float]
    start: float


@dataclass(frozen=True)
class Series:
    """A quantity to draw: the formula ``name``, its label in the key, and a colour such as
    ``COLOURS["data"]``.

    Lesson 11.
    """

    name: str
    label: str
    colour: str


@dataclass(frozen=True)
class StackedBar:
    """A picture of parts that add up to a total, above bars of the limits to which the total is
    held.

    ``limits`` has a number in ``unit`` for each label. ``verdict`` completes the sentence "It ...
    H100, H200" of the limits that are at least the total, such as "fits into". Lesson 11.
    """

    parts: Sequence[Series]
    unit: str
    limits: Mapping[str, float]
    verdict: str
    total: str = "needed"


@dataclass(frozen=True)
class Curves:
    """A picture of curves along the values of the slider ``along``, with a cursor at its present
    value.

    The axes are logarithmic where ``log_x`` and ``log_y`` say so; ``xlabel`` and ``ylabel`` name
    the quantity and its unit. Lesson 02.
    """

    along: str
    lines: Sequence[Series]
    xlabel: str
    ylabel: str
    log_x: bool = True
    log_y: bool = True


Input = Menu | Slider
Picture = StackedBar | Curves


def explore(
    *, title: str, alt: str, inputs: Sequence[Input], formulas: Mapping[str, str], picture: Picture
) -> None:
    """Display a figure under its ``title`` whose reader turns ``inputs`` and sees the values of
    ``formulas``.

    Each formula is a text that Python and JavaScript read alike, of the inputs and of the formulas
    above it, and ``picture`` draws some of them. The page itself computes the formulas, so that the
    figure also works in a saved notebook; on paper it is a picture of the start. ``alt`` says what
    there is to see, for those who do not see it.

    Raises TypeError for what is no input and no picture. Raises ValueError for an empty text, a
    name that is missing or occurs twice, an option without the fields of the others, a start that
    is none of the values, and a formula that the two languages would compute differently or that
    has no value at the start or at an end of an input. Lesson 11.

    >>> explore(
    ...     title="Work of a matrix product",
    ...     alt="A bar of the operations, above what a core does in a second",
    ...     inputs=[Slider("n", "rows", values=(64, 128), start=64)],
    ...     formulas={"work": "2 * n ** 3 / 1e9"},
    ...     picture=StackedBar(
    ...         [Series("work", "product", "#0072B2")], "GFLOP", {"a core": 50}, "takes a second on"
    ...     ),
    ... )  # doctest: +SKIP
    """
    require_sentences("a figure to turn", "there is to see in it", title=title, alt=alt)
    one_of("picture", picture, Picture, "StackedBar(...) or Curves(...)")
    controls = tuple(members("inputs", inputs, "Menu(...) and Slider(...)", kind=Input))
    _refuse_inputs(controls, formulas)
    _refuse_formulas(controls, formulas)
    _refuse_picture(picture, controls, formulas)
    data = {
        "title": title,
        "alt": alt,
        "inputs": [_as_data(control) for control in controls],
        "formulas": dict(formulas),
        "kind": "bars" if isinstance(picture, StackedBar) else "curves",
        **asdict(picture),
    }
    still, size_in = _still(title, controls, formulas, picture)
    display_page('<div class="course-explorer"', data, _SCRIPT, still, size_in)


def _choices(control: Input) -> Mapping[Any, Value]:
    """Return what formulas read of an input, by what the reader chooses."""
    if isinstance(control, Menu):
        return control.options
    return {value: value for value in control.values}


def _refuse_inputs(inputs: Sequence[Input], formulas: Mapping[str, str]) -> None:
    names = [*(control.name for control in inputs), *formulas]
    if not inputs or not formulas:
        raise ValueError(
            f"{len(inputs)} inputs and {len(formulas)} formulas; give at least one of each"
        )
    for name in names:
        if not name.isidentifier() or names.count(name) > 1:
            raise ValueError(
                f"{name!r} must be a name of its own among inputs and formulas: {', '.join(names)}"
            )
    for control in inputs:
        values = list(_choices(control))
        if len(values) < 2 or control.start not in values:
            raise ValueError(
                f"{control.name}: start={control.start!r} must be one of at least two values, not "
                f"of {values}"
            )
        if isinstance(control, Menu) and (
            not _fields(control)
            or any(set(option) != _fields(control) for option in control.options.values())
        ):
            raise ValueError(
                f"{control.name}: every option must have the same fields, at least one"
            )


def _refuse_formulas(inputs: Sequence[Input], formulas: Mapping[str, str]) -> None:
    known_fields = {control.name: _fields(control) for control in inputs}
    for name, formula in formulas.items():
        check_formula(name, formula, known_fields)
        known_fields[name] = frozenset()
    for setting in _ends(inputs):
        evaluate(formulas, setting)


def _refuse_picture(picture: Picture, inputs: Sequence[Input], formulas: Mapping[str, str]) -> None:
    series = picture.parts if isinstance(picture, StackedBar) else picture.lines
    for curve in members("series", series, "Series(...), a quantity each", kind=Series):
        if curve.name not in formulas:
            raise ValueError(
                f"the picture draws {curve.name}, which must be a formula: {', '.join(formulas)}"
            )
    if not series:
        raise ValueError("the picture draws nothing; give at least one Series(...)")
    sliders = [control.name for control in inputs if isinstance(control, Slider)]
    if isinstance(picture, Curves) and picture.along not in sliders:
        raise ValueError(
            f"along={picture.along!r} must be the name of a slider: "
            f"{', '.join(sliders) or 'there is none'}"
        )


def _fields(control: Input) -> frozenset[str]:
    return frozenset(control.options[control.start] if isinstance(control, Menu) else ())


def _start(inputs: Sequence[Input]) -> dict[str, Value]:
    return {control.name: _choices(control)[control.start] for control in inputs}


def _ends(inputs: Sequence[Input]) -> Iterator[dict[str, Value]]:
    """Yield the start, and the start with one input at an end of its values or at another
    option.
    """
    yield _start(inputs)
    for control in inputs:
        values = list(_choices(control).values())
        ends = values if isinstance(control, Menu) else (values[0], values[-1])
        yield from ({**_start(inputs), control.name: value} for value in ends)


def _as_data(control: Input) -> dict[str, object]:
    values = list(_choices(control))
    return {
        "name": control.name,
        "label": control.label,
        "place": values.index(control.start),
        **({"options": control.options} if isinstance(control, Menu) else {"values": values}),
    }


def short(value: float) -> str:
    """Return a number with three digits, or whole with commas from a thousand on, as the script
    writes it.
    """
    if abs(value) >= 1000:
        return f"{math.floor(value + 0.5):,}"
    return f"{float(f'{value:.3g}'):.10f}".rstrip("0").rstrip(".")


def _still(
    title: str, inputs: Sequence[Input], formulas: Mapping[str, str], picture: Picture
) -> tuple[bytes, Sequence[float]]:
    """Return a PNG of the figure at its start, and its size in inches."""
    setting = ", ".join(
        f"{control.label} {control.start if isinstance(control, Menu) else short(control.start)}"
        for control in inputs
    )
    start_values = evaluate(formulas, _start(inputs))
    with plt.style.context(STYLE_FILE):
        if isinstance(picture, StackedBar):
            fig = _bars(picture, start_values)
        else:
            fig = _curves(picture, inputs, formulas, start_values)
        [axes] = fig.axes
        lines = textwrap.wrap(f"at the start: {setting}", _CHARACTERS)
        axes.set_title("\n".join(lines), loc="left", fontsize="small", fontweight="normal")
        fig.suptitle(
            "\n".join(textwrap.wrap(title, _CHARACTERS)), x=0.01, ha="left", fontweight="bold"
        )
        fig.legend(loc="outside lower left", ncols=2, fontsize="small", frameon=False)
        still = png(fig)
        plt.close(fig)
    return still, tuple(fig.get_size_inches())


def _bars(picture: StackedBar, values: Mapping[str, float]) -> Figure:
    total = sum(values[part.name] for part in picture.parts)
    fig, axes = plt.subplots(figsize=(_WIDTH_IN, 2.4 + 0.34 * len(picture.limits)))
    left = 0.0
    for part in picture.parts:
        label = f"{part.label} {short(values[part.name])} {picture.unit}"
        axes.barh(
            picture.total, values[part.name], left=left, color=part.colour, label=label, height=0.8
        )
        left += values[part.name]
    rows = {picture.total: total, **picture.limits}
    for label, limit in picture.limits.items():
        axes.barh(label, limit, color="#b9d8c8" if limit >= total else "#dddddd", height=0.6)
    for row, value in enumerate(rows.values()):
        axes.text(value, row, f" {short(value)} {picture.unit}", va="center", fontsize="small")
    axes.axvline(total, color="black", linestyle=":", linewidth=1)
    axes.set_xlim(0, 1.18 * max(rows.values()))
    axes.set_xlabel(picture.unit)
    axes.invert_yaxis()
    return fig


def _curves(
    picture: Curves,
    inputs: Sequence[Input],
    formulas: Mapping[str, str],
    start_values: Mapping[str, float],
) -> Figure:
    slider = next(control for control in inputs if control.name == picture.along)
    assert isinstance(slider, Slider)  # another has been refused
    points = [evaluate(formulas, {**_start(inputs), slider.name: value}) for value in slider.values]
    fig, axes = plt.subplots(figsize=(_WIDTH_IN, 4.4))
    for line in picture.lines:
        label = f"{line.label} {short(start_values[line.name])}"
        axes.plot(
            slider.values, [point[line.name] for point in points], color=line.colour, label=label
        )
        axes.plot(slider.start, start_values[line.name], "o", color=line.colour)
    axes.axvline(slider.start, color="black", linestyle=":", linewidth=1)
    axes.set(
        xlabel=picture.xlabel,
        ylabel=picture.ylabel,
        xscale="log" if picture.log_x else "linear",
        yscale="log" if picture.log_y else "linear",
    )
    return fig
