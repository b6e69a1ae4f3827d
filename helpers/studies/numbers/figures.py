"""Formats of few bits: which bits do what, and which numbers there are beside those that a network
needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from helpers.checks import members, named, one_of
from helpers.plotting._style import COLOURS, OTHERS, STYLE_FILE, figure, mix_colours
from helpers.studies.numbers import Format

_FORMAT = OTHERS[1]
_PARTS = {"sign": COLOURS["waiting"], "exponent": _FORMAT, "mantissa": OTHERS[2]}
_TENSORS = ((OTHERS[0], "-"), (OTHERS[3], "--"), (COLOURS["backward"], "-."), (OTHERS[4], ":"))
_LEAST, _MOST = -40, 18  # powers of two on the axis
_LISTED = 512  # numbers drawn one by one; more are a strip


def draw_bits(formats: Sequence[Format], *, title: str = "What each bit is for") -> Figure:
    """Return a row a format with a box a bit: sign, exponent and mantissa, the highest bit first.

    Raises TypeError for what is no format, ValueError for none. Lesson 16.
    """
    given = members("formats", formats, "formats, such as numbers.FORMATS['bf16']", kind=Format)
    if not given:
        raise ValueError(
            "nothing to draw: give at least one format, such as numbers.FORMATS['bf16']"
        )
    drawn, axes = figure(title=title, height_in=1.3 + 0.36 * len(given))
    for row, each in enumerate(given):
        colours = [_PARTS["sign"]] + [_PARTS["exponent"]] * each.exponent_bits
        colours += [_PARTS["mantissa"]] * each.mantissa_bits
        for place, colour in enumerate(colours):
            axes.add_patch(Rectangle((place + 0.05, row - 0.36), 0.9, 0.72, facecolor=colour))
    axes.set(
        xlim=(0, max(each.bits for each in given) + 0.5),
        ylim=(len(given) - 0.5, -0.5),
        xlabel="bits",
    )
    axes.set_yticks(range(len(given)), [each.key for each in given])
    axes.grid(visible=False)
    for part, colour in _PARTS.items():
        axes.add_patch(Rectangle((0, 0), 0, 0, facecolor=colour, label=part))
    drawn.legend(loc="outside lower left", ncols=3, fontsize=11, frameon=False)
    return drawn


def draw_format(chosen: Format, tensors: Mapping[str, Tensor]) -> Figure:
    """Return three panels over the magnitude of a number, in powers of two.

    Above the positive numbers of the format, each a line (a strip where there are more than 512);
    in the middle the step to the next number, over the number; below the share of each tensor's
    numbers, zeros left out, in each power of two, for up to four named tensors. What the format
    cannot hold is grey. Raises TypeError for what is no format or no tensor, ValueError for more
    than four tensors. Lesson 16.
    """
    one_of("chosen", chosen, Format, "a format, such as numbers.FORMATS['e4m3']")
    given = {
        name: one_of(f"tensors[{name!r}]", each, Tensor, "a tensor")
        for name, each in named("tensors", tensors, "tensors").items()
    }
    if len(given) > len(_TENSORS):
        raise ValueError(
            f"there is room for {len(_TENSORS)} tensors, not {len(given)}; leave some out"
        )
    with plt.style.context(STYLE_FILE):
        drawn, panels = plt.subplots(
            3, figsize=(7.2, 4.0), sharex=True, height_ratios=(0.6, 1, 1.4)
        )
        panels[0].set_title(f"{chosen.key}: its numbers, its steps, and what a network needs")
    codes, steps, shares = panels
    _draw_codes(codes, chosen)
    places = torch.arange(8 * _LEAST, 8 * _MOST + 1).double() / 8
    steps.plot(places, chosen.spacing(2.0**places) / 2.0**places, color=_FORMAT)
    steps.set(yscale="log", ylim=(2.0**-26, 4), ylabel="step / number")
    steps.set_yticks([2.0**-20, 2.0**-10, 1], ["$2^{-20}$", "$2^{-10}$", "1"])
    steps.minorticks_off()
    for (name, each), (colour, line) in zip(given.items(), _TENSORS, strict=False):
        magnitudes = each.detach().double().flatten().abs()
        exponents = torch.frexp(magnitudes[magnitudes > 0]).exponent - 1
        counts = torch.bincount(
            (exponents.clamp(_LEAST, _MOST) - _LEAST).long(), minlength=_MOST - _LEAST + 1
        )
        shares.step(
            range(_LEAST, _MOST + 1),
            counts / counts.sum(),
            line,
            where="post",
            color=colour,
            label=name,
        )
    shares.set(xlim=(_LEAST, _MOST), ylabel="share", xlabel="magnitude, as a power of two")
    shares.legend(loc="upper left", fontsize=11, frameon=False)
    low, high = (
        torch.tensor([chosen.smallest_subnormal, chosen.largest]).log2().clamp(_LEAST, _MOST)
    ).tolist()
    for panel in panels:
        for beyond in ((_LEAST, low), (high, _MOST)):
            panel.axvspan(
                *beyond, color=mix_colours(COLOURS["waiting"], "#FFFFFF", 0.5), zorder=0.5
            )
    return drawn


def _draw_codes(axes: plt.Axes, chosen: Format) -> None:
    axes.set(ylim=(0, 1), yticks=[])
    axes.set_ylabel("numbers", fontsize=11)
    axes.grid(visible=False)
    if chosen.bits <= 16 and len(values := chosen.values()) <= _LISTED:
        axes.vlines(values[values > 0].log2(), 0.1, 0.9, color=_FORMAT, linewidth=0.9)
        return
    span = (
        torch.tensor([chosen.smallest_subnormal, chosen.largest])
        .double()
        .log2()
        .clamp(_LEAST, _MOST)
        .tolist()
    )
    axes.barh(0.5, span[1] - span[0], left=span[0], height=0.8, color=_FORMAT)
