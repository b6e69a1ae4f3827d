"""The figures of lesson 00: they draw what others have modelled or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from helpers import plotting, units
from helpers.plotting import COLOURS, MEASURED, MODELLED, Menu, Series, Slider, StackedBar

_LATER = "#D55E00"
# FLOP/s of dense products in bfloat16, from NVIDIA's data sheets
_PEAKS = {"A100": 312e12, "H100": 989e12}


def draw_model(programs: Mapping[str, Sequence[float]], *, title: str) -> Figure:
    """Return a group of bars for each of ``programs``: the time of its bytes, that of its
    operations, and its own.

    ``programs`` has these three times in seconds, the first two modelled and the last one measured,
    by the name of a program. The bars are shares of the measured time, and their labels the times.
    Lesson 00.
    """
    kinds = {
        "bytes, modelled": COLOURS["data"],
        "operations, modelled": COLOURS["computing"],
        "measured": MEASURED,
    }
    figure, axes = plotting.figure(title=title)
    for index, (kind, colour) in enumerate(kinds.items()):
        times_s = [times[index] for times in programs.values()]
        shares = [times[index] / times[-1] for times in programs.values()]
        bars = axes.bar(
            [group + 0.3 * (index - 1) for group in range(len(programs))],
            shares,
            0.27,
            color=colour,
        )
        bars.set_label(kind)
        axes.bar_label(
            bars, [units.text(time_s, "s") for time_s in times_s], padding=2, fontsize=11
        )
    highest = max(max(times) / times[-1] for times in programs.values())
    axes.set_xticks(range(len(programs)), list(programs))
    axes.set(ylabel="share of the measured time", ylim=(0, 1.3 * highest))
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper center", ncols=3, fontsize=11)
    return figure


def draw_pauses(rates: Mapping[float, float], *, product: tuple[float, float]) -> Figure:
    """Return a plot of the rate of a copy in bytes per second over the pause before it in seconds.

    ``rates`` has a rate for each pause, and ``product`` the time of a matrix product with the rate
    of a copy that comes after it. Lesson 00.
    """
    figure, axes = plotting.figure(title="Rate of a copy, by the time since the copy before it")
    axes.plot(
        list(rates), list(rates.values()), "o-", color=MEASURED, label="measured, after a pause"
    )
    axes.plot(*product, "*", color=_LATER, markersize=18, label="measured, after a @ b")
    axes.set(xlabel="time between two copies", ylabel="rate of the copy")
    axes.set_ylim(0, 1.3 * max(*rates.values(), product[1]))
    plotting.unit_axis(axes, "x", "s")
    plotting.unit_axis(axes, "y", "B/s")
    axes.legend(loc="upper right", ncols=2)
    return figure


def draw_runs(taken_s: Mapping[int, float], *, modelled_s: Mapping[int, float]) -> Figure:
    """Return a plot of the seconds of training runs over their epochs, above the line of their
    model.

    ``taken_s`` are the measured runs, of which the model knows all but the longest; ``modelled_s``
    has the two ends of the line, the first of which is the start of a run. Lesson 00.
    """
    figure, axes = plotting.figure(title="Two runs give the line, and the third one tests it")
    *short_runs, longest = sorted(taken_s)
    start_s = modelled_s[min(modelled_s)]
    axes.plot(list(modelled_s), list(modelled_s.values()), color=MODELLED, label="modelled")
    axes.plot(
        short_runs,
        [taken_s[epochs] for epochs in short_runs],
        "o",
        color=MEASURED,
        markersize=9,
        label="measured",
    )
    axes.plot(
        longest,
        taken_s[longest],
        "*",
        color=_LATER,
        markersize=18,
        label="measured, after the model",
    )
    axes.plot(min(modelled_s), start_s, "x", color=MODELLED, markersize=10, markeredgewidth=2)
    axes.annotate(
        f"the start, {units.text(start_s, 's')} (modelled)",
        (min(modelled_s), start_s),
        xytext=(10, -22),  # below the line, which rises
        textcoords="offset points",
    )
    highest = 1.15 * max(*taken_s.values(), *modelled_s.values())
    axes.set(
        xlabel="epochs", ylabel="time of the run", xlim=(-0.3, 1.05 * longest), ylim=(0, highest)
    )
    plotting.unit_axis(axes, "y", "s")
    axes.legend(loc="lower right")
    return figure


def explore_training() -> None:
    """Display the days of a training run as a figure to turn: parameters, tokens, GPUs and what
    they reach.

    The work is six operations per parameter and token, and a GPU's peak is that of its data sheet.
    It begins with LLaMA 65B, which took about 21 days on 2,048 A100s (Touvron and others, 2023,
    section 2.4). Lesson 00.
    """
    plotting.explore(
        title="How many days does a training run take?",
        alt="A bar of the days of a training run, above a week, a month and a quarter of a year.",
        inputs=[
            Slider(
                "billions", "parameters (billions)", [0.1, 1, 3, 7, 13, 34, 65, 69, 180, 405], 65
            ),
            Slider("tokens", "tokens (trillions)", [0.02, 0.1, 0.5, 1, 1.4, 2, 5, 15], 1.4),
            Menu("gpu", "GPU", {name: {"P": peak} for name, peak in _PEAKS.items()}, "A100"),
            Slider("gpus", "number of GPUs", [1, 8, 64, 512, 1024, 2048, 2400, 4096, 16384], 2048),
            Slider("reached", "reached of the peak (%)", [10, 20, 30, 40, 44, 50, 60], 44),
        ],
        formulas={
            "operations": "6 * billions * 1e9 * tokens * 1e12",
            "rate": "gpus * gpu.P * reached / 100",
            "days": "operations / rate / 86400",
        },
        picture=StackedBar(
            parts=[Series("days", "operations / rate", COLOURS["computing"])],
            unit="days",
            limits={"a week": 7, "a month": 30, "three months": 90},
            verdict="is over within",
        ),
    )
