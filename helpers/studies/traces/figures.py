"""The figures of lesson 13: they draw what others have traced or modelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from helpers import plotting
from helpers.plotting import COLOURS, Curves, Series, Slider, Span
from helpers.studies.traces._queue import Queue
from helpers.studies.traces._tracing import Call

_MERGED = 0.002  # of the figure's time: bars that are nearer to each other are drawn as one


def draw_timeline(
    bars: Sequence[Call], gaps: Sequence[tuple[float, float]], *, title: str
) -> Figure:
    """Return a timeline of ``bars``, calls of which none lies in another, above the ``gaps``
    between them.

    It has the ``title``. A gap is its start and its end in the trace's microseconds. A bar has the
    colour of the label around its call, and neighbours of one label that are too near to be told
    apart are drawn as one. Lesson 13.
    """

    def seconds(time_us: float) -> float:
        return (time_us - bars[0]["ts"]) / 1e6

    merged_s = _MERGED * seconds(bars[-1]["ts"] + bars[-1]["dur"])
    spans: list[Span] = []
    for bar in bars:
        start, end, kind = seconds(bar["ts"]), seconds(bar["ts"] + bar["dur"]), bar["label"]
        if spans and kind == spans[-1].kind and start - spans[-1].end < merged_s:
            start = spans.pop().start
        spans.append(Span("operators", start, end, kind))
    drawn_gaps = [
        Span("gaps", seconds(start), seconds(end), "waiting, no operator runs")
        for start, end in gaps
    ]
    return plotting.gantt(spans + drawn_gaps, title=title, xlabel="time since the first operator")


def draw_queue(queues: Mapping[str, Queue], *, title: str, until: float | None = None) -> Figure:
    """Return a timeline of ``queues``, by name, under ``title``, with a lane for the CPU and one
    for the GPU of each.

    The axis ends at ``until`` microseconds, or behind the last kernel. Lesson 13.
    """
    spans = []
    for name, queue in queues.items():
        for lane, kind, times_us in (
            (f"CPU, {name}", "sending, a launch", queue.launches_us),
            (f"GPU, {name}", "computing, a kernel", queue.kernels_us),
        ):
            spans += [Span(lane, start / 1e6, end / 1e6, kind) for start, end in times_us]
    return plotting.gantt(spans, title=title, until=None if until is None else until / 1e6)


def explore_launches() -> None:
    """Display the idle share of a GPU as a figure to turn: time of a kernel, time of a launch,
    kernels between waits.

    The formulas are those of :func:`run_queue` for kernels of one length. Lesson 13.
    """
    plotting.explore(
        title="How long is a GPU idle?",
        alt="Two curves of a GPU's idle share over the time of a kernel: without waits, and with a "
        "wait now and then.",
        inputs=[
            Slider(
                "kernel",
                "µs per kernel",
                [1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200],
                2,
            ),
            Slider("launch", "µs per launch", [0.5, 1, 2, 3, 4, 5, 6, 8, 10], 5),
            Slider(
                "kernels", "kernels between waits", [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], 10
            ),
        ],
        formulas={
            "never": "100 * max(0, 1 - kernel / launch)",
            "chunk": "max(launch + kernels * kernel, kernels * launch + kernel)",
            "waiting": "100 * (1 - kernels * kernel / chunk)",
        },
        picture=Curves(
            along="kernel",
            lines=[
                Series("waiting", "the CPU waits now and then", COLOURS["waiting"]),
                Series("never", "the CPU never waits", COLOURS["computing"]),
            ],
            xlabel="time of a kernel, µs",
            ylabel="idle share of the GPU, %",
            log_y=False,
        ),
    )
