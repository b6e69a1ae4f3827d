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
    checked_formats = members(
        "formats", formats, "formats, such as numbers.FORMATS['bf16']", kind=Format
    )
    if not checked_formats:
        raise ValueError(
            "nothing to draw: give at least one format, such as numbers.FORMATS['bf16']"
        )
    chart, axes = figure(title=title, height_in=1.3 + 0.36 * len(checked_formats))
    for row, number_format in enumerate(checked_formats):
        colours = [_PARTS["sign"]] + [_PARTS["exponent"]] * number_format.exponent_bits
        colours += [_PARTS["mantissa"]] * number_format.mantissa_bits
        for bit, colour in enumerate(colours):
            axes.add_patch(Rectangle((bit + 0.05, row - 0.36), 0.9, 0.72, facecolor=colour))
    widest = max(each.bits for each in checked_formats)
    axes.set(xlim=(0, widest + 0.5), ylim=(len(checked_formats) - 0.5, -0.5), xlabel="bits")
    axes.set_yticks(range(len(checked_formats)), [each.key for each in checked_formats])
    axes.grid(visible=False)
    for part, colour in _PARTS.items():
        axes.add_patch(Rectangle((0, 0), 0, 0, facecolor=colour, label=part))
    chart.legend(loc="outside lower left", ncols=3, fontsize=11, frameon=False)
    return chart


def draw_format(chosen: Format, tensors: Mapping[str, Tensor]) -> Figure:
    """Return three panels over the magnitude of a number, in powers of two.

    Above the positive numbers of the format, each a line (a strip where there are more than 512);
    in the middle the step to the next number, over the number; below the share of each tensor's
    numbers, zeros left out, in each power of two, for up to four named tensors. What the format
    cannot hold is grey. Raises TypeError for what is no format or no tensor, ValueError for more
    than four tensors. Lesson 16.
    """
    one_of("chosen", chosen, Format, "a format, such as numbers.FORMATS['e4m3']")
    checked_tensors = {
        name: one_of(f"tensors[{name!r}]", tensor, Tensor, "a tensor")
        for name, tensor in named("tensors", tensors, "tensors").items()
    }
    if len(checked_tensors) > len(_TENSORS):
        raise ValueError(
            f"there is room for {len(_TENSORS)} tensors, not {len(checked_tensors)}; leave some out"
        )
    with plt.style.context(STYLE_FILE):
        chart, panels = plt.subplots(
            3, figsize=(7.2, 4.0), sharex=True, height_ratios=(0.6, 1, 1.4)
        )
        panels[0].set_title(f"{chosen.key}: its numbers, its steps, and what a network needs")
    codes, steps, shares = panels
    reach = torch.tensor([chosen.smallest_subnormal, chosen.largest]).double().log2()
    low, high = reach.clamp(_LEAST, _MOST).tolist()
    _draw_codes(codes, chosen, low, high)
    exponents_of_two = torch.arange(8 * _LEAST, 8 * _MOST + 1).double() / 8
    magnitudes = 2.0**exponents_of_two
    steps.plot(exponents_of_two, chosen.spacing(magnitudes) / magnitudes, color=_FORMAT)
    steps.set(yscale="log", ylim=(2.0**-26, 4), ylabel="step / number")
    steps.set_yticks([2.0**-20, 2.0**-10, 1], ["$2^{-20}$", "$2^{-10}$", "1"])
    steps.minorticks_off()
    for (name, tensor), (colour, line) in zip(checked_tensors.items(), _TENSORS, strict=False):
        magnitudes = tensor.detach().double().flatten().abs()
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
    grey = mix_colours(COLOURS["waiting"], "#FFFFFF", 0.5)
    for panel in panels:
        for outside in ((_LEAST, low), (high, _MOST)):
            panel.axvspan(*outside, color=grey, zorder=0.5)
    return chart


def _draw_codes(axes: plt.Axes, chosen: Format, low: float, high: float) -> None:
    axes.set(ylim=(0, 1), yticks=[])
    axes.set_ylabel("numbers", fontsize=11)
    axes.grid(visible=False)
    if chosen.bits <= 16 and len(values := chosen.values()) <= _LISTED:
        axes.vlines(values[values > 0].log2(), 0.1, 0.9, color=_FORMAT, linewidth=0.9)
        return
    axes.barh(0.5, high - low, left=low, height=0.8, color=_FORMAT)
