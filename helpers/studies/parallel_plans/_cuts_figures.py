"""Figures of the three cuts: who works when in a pipeline, and of what parts the time of a step
consists.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from helpers import plotting
from helpers.checks import named, number
from helpers.parallel.pipeline._schedules import pipeline_schedule
from helpers.plotting import COLOURS, Curves, Menu, Series, Slider

_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved",
    "zero_bubble": "Zero bubble",
}
_KINDS = ("computing", "waiting", "sending")
_GPUS = 4


def draw_schedule(
    schedule: str,
    *,
    microbatches: int,
    chunks: int = 1,
    until_s: float | None = None,
    title: str = "",
) -> Figure:
    """Draw a pipeline's passes over time, one lane per GPU with the microbatches that it saves at
    most.

    A GPU computes for 300 ms per step, a third of it forward, whatever the number of
    ``microbatches``; messages take no time. ``schedule`` is one of those of
    :func:`helpers.parallel.pipeline_schedule`. There are four GPUs, and each has ``chunks`` stages,
    of which each saves its share of a microbatch. The axis ends at ``until_s`` seconds. Without a
    ``title`` the figure names the schedule, its microbatches and its waiting as a share of the
    computing. Raises as :func:`helpers.parallel.pipeline_schedule`.

    >>> draw_schedule("gpipe", microbatches=4).axes[0].get_title(loc="left")
    'GPipe, 4 microbatches: waiting 75% of computing'

    Lesson 06.
    """
    turn_s = 0.1 / microbatches / chunks
    model = pipeline_schedule(
        schedule,
        ranks=_GPUS,
        microbatches=microbatches,
        chunks=chunks,
        forward_s=turn_s,
        backward_s=2 * turn_s,
    )
    noun = "microbatch" if microbatches == 1 else "microbatches"
    default_title = (
        f"{_NAMES[schedule]}, {microbatches} {noun}: waiting {100 * model.bubble_ratio:.4g}% of "
        "computing"
    )
    passes = model.timeline.activities
    spans = [
        plotting.Span(
            activity.lane, activity.start_s, activity.end_s, activity.kind, activity.label
        )
        for activity in passes
    ]
    figure = plotting.gantt(spans, title=title or default_title, until=until_s)
    lanes = [f"GPU {load.rank}, saves {load.live_activations / chunks:g}" for load in model.loads]
    figure.axes[0].set_yticks(range(_GPUS), lanes)
    return figure


def draw_step_times(steps: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the time of a step as a bar of ``computing``, ``waiting`` and ``sending`` for each name
    of ``steps``.

    Each step has the three parts in seconds, one after the other, and its lane says their sum.
    Raises ValueError for a step without exactly these parts or with a part below 0, TypeError for
    what is no mapping.

    >>> figure = draw_step_times({"pipeline": {"computing": 0.8, "waiting": 0.4, "sending": 0.1}})
    >>> figure.axes[0].get_yticklabels()[0].get_text()
    'pipeline: 1.30 s'

    Lesson 06.
    """
    lanes = {}
    for name, parts in named(
        "steps", steps, "dictionaries of computing, waiting and sending"
    ).items():
        if set(named(f"steps[{name!r}]", parts, "seconds")) != set(_KINDS):
            raise ValueError(
                f"steps[{name!r}] has the parts {', '.join(parts)}; give {', '.join(_KINDS)}"
            )
        seconds = {
            kind: number(f"steps[{name!r}][{kind!r}]", parts[kind], at_least=0) for kind in _KINDS
        }
        lanes[f"{name}: {sum(seconds.values()):.2f} s"] = seconds
    spans = [span for span in plotting.spans_in_a_row(lanes) if span.end > span.start]
    return plotting.gantt(spans, title="Modelled: a step of 7 billion parameters on eight H100")


def explore_cuts() -> None:
    """Display the time of a step with three cuts on eight GPUs as a figure to turn, relative to its
    computing.

    A model of 7 billion parameters with 32 layers of width 4,096 trains on sequences of 4,096
    tokens, each one a microbatch, at 400 TFLOP/s per GPU; nothing is hidden. Lesson 06.
    """
    plotting.explore(
        title="A step with three cuts, by the number of sequences",
        alt="Time of a step relative to its computing, falling with the sequences for FSDP and the "
        "pipeline.",
        inputs=[
            Menu(
                "link",
                "link",
                {"NVLink, 450 GB/s": {"B": 450e9}, "InfiniBand, 50 GB/s": {"B": 50e9}},
                "NVLink, 450 GB/s",
            ),
            Slider(
                "sequences",
                "sequences per step",
                [4, 5, 6, 8, 12, 16, 20, 22, 23, 24, 32, 48, 64],
                16,
            ),
        ],
        formulas={
            "tokens": "4096 * sequences",
            "computing": "6 * 7e9 * tokens / 8 / 400e12",
            "fsdp": "1 + 3 * 7 / 8 * 2 * 7e9 / link.B / computing",
            "tensor": "1 + 4 * 32 * 2 * 7 / 8 * 2 * 4096 * tokens / link.B / computing",
            "pipeline": "1 + 7 / sequences + 2 * 2 * 4096 * tokens / link.B / computing",
        },
        picture=Curves(
            along="sequences",
            lines=[
                Series("fsdp", "FSDP", "#332288"),
                Series("tensor", "tensor parallel", COLOURS["sending"]),
                Series("pipeline", "pipeline", COLOURS["waiting"]),
            ],
            xlabel="sequences per step",
            ylabel="time of a step / computing",
            log_x=False,
            log_y=False,
        ),
    )
