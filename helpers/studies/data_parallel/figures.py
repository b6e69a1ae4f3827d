"""The figures of lesson 05: a step of ranks that sleep, the memory of ZeRO's stages, and a link to
turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from helpers import plotting
from helpers.plotting import COLOURS, MODELLED, Curves, Menu, Series, Slider, Span
from helpers.results import derived
from helpers.studies.data_parallel._sleeping_steps import SimulatedStep

_KINDS = {"all-reduce": "sending, a bucket", "waiting": "waiting, a full bucket", "late": "late"}
_TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384, 28_000, 32_768, 65_536, 131_072)
# the bet: a bucket per layer, FLOP per second of an H100
_LAYERS, _PARAMETERS, _RATE = 32, 7e9, 400e12


def draw_step(step: SimulatedStep, *, ranks: Sequence[int], title: str) -> Figure:
    """Draw device and link of some ``ranks`` over one ``step``, a lane each.

    A grey bar is a full bucket that waits although the link is free, because a slower rank has not
    filled its own, or the processes still make the real sum. ``title`` stands above. Raises
    ValueError for a rank that is not in the step. Lesson 05.
    """
    spans = []
    for rank in ranks:
        lanes = [f"rank {rank} device", f"rank {rank} link"]
        activities = [activity for activity in step.timeline.activities if activity.lane in lanes]
        if not activities:
            raise ValueError(f"rank {rank} is not in this step; give ranks that were recorded")
        activities.sort(key=lambda activity: (activity.lane, activity.start_s))
        spans += [
            derived(Span, activity, kind=_KINDS.get(activity.kind, activity.kind))
            for activity in activities
        ]
    return plotting.gantt(spans, title=title)


def draw_sharding(
    kept_bytes: Mapping[str, Sequence[float]], stages: Sequence[str], *, limit_bytes: float
) -> Figure:
    """Return stacked bars of the bytes that each GPU keeps in each of ``stages``, before
    activations.

    ``kept_bytes`` has for each kind, such as "weights", a number of bytes per stage; a line marks
    ``limit_bytes``, the memory of a GPU. Lesson 05.
    """
    title = "7 billion parameters on 8 GPUs, before activations"
    drawn = plotting.draw_layers(list(stages), kept_bytes, unit="B", title=title)
    axes = drawn.axes[0]
    axes.axvline(limit_bytes, color="#222222", linestyle="--", zorder=3)
    axes.text(
        1.01 * limit_bytes,
        len(stages) - 1.5,
        f"an H100: {limit_bytes / 1e9:.0f} GB",
        fontsize=11,
        va="center",
    )
    return drawn


def explore_link() -> None:
    """Display the speed of data parallel training as a figure to turn: link, tokens per GPU and
    number of ranks.

    It begins with the bet of the lesson, 7 billion parameters in 32 layers, a bucket each, on eight
    GPUs that compute 400 TFLOP/s. The curves follow DDP, whose buckets travel under the backward
    pass, and a training that hides nothing. Latency is left out. Lesson 05.
    """
    gradients = {"bfloat16": {"size": 2}, "float32": {"size": 4}}
    plotting.explore(
        title="How many times as fast as one GPU?",
        alt="Curves over the tokens per GPU rise from below one to the number of GPUs, with DDP "
        "earlier than without.",
        inputs=[
            Slider(
                "link",
                "link, in GB/s",
                [1.25, 3.125, 6.25, 12.5, 25, 31.5, 50, 100, 225, 450],
                12.5,
            ),
            Slider("tokens", "tokens per GPU", _TOKENS, 8192),
            Slider("ranks", "GPUs", [2, 4, 8, 16, 64, 256, 1024], 8),
            Menu("gradient", "gradients in", gradients, "bfloat16"),
        ],
        formulas={
            "compute": f"6 * {_PARAMETERS:.0f} * tokens / {_RATE:.0f}",
            "traffic": (
                f"2 * (ranks - 1) / ranks * gradient.size * {_PARAMETERS:.0f} / (link * 1e9)"
            ),
            "first": f"compute / 3 + 2 * compute / 3 / {_LAYERS} + traffic",
            "last": f"compute + traffic / {_LAYERS}",
            "hidden": "ranks * compute / max(first, last)",
            "exposed": "ranks * compute / (compute + traffic)",
            "alone": "compute / compute",
        },
        picture=Curves(
            along="tokens",
            lines=[
                Series("hidden", "DDP, buckets under the backward pass", MODELLED),
                Series("exposed", "nothing hidden", COLOURS["sending"]),
                Series("alone", "one GPU", COLOURS["waiting"]),
            ],
            xlabel="tokens per GPU in a step",
            ylabel="times one GPU (modelled)",
        ),
    )
