"""The figures of lesson 22: they draw what others have measured or counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from helpers import plotting
from helpers.plotting import COLOURS, Menu, Series, Slider, StackedBar
from helpers.studies.decoding._counting import CONFIGS, Config, read_bytes

_GREY = "#222222"
# B/s, FLOP/s
_GPUS = {"A100": (2.039e12, 312e12), "H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12)}


def cache_frames(words: Sequence[str], *, prompt: int) -> list[Figure]:
    """Return a frame for each pass over ``words``: which tokens go in, which keys and values the
    cache holds.

    The first pass takes the ``prompt`` tokens, and each later one the token that the pass before it
    wrote. Lesson 22.
    """
    frames = []
    for end in range(prompt, len(words)):
        # tokens whose keys and values are in the cache already
        old = end - 1 if end > prompt else 0
        spans = [
            plotting.Span("goes in", at, at + 1, "computing", words[at]) for at in range(old, end)
        ]
        for lane in ("keys", "values"):
            kinds = ["data, in the cache"] * old + ["computing"] * (end - old)
            spans += [
                plotting.Span(lane, at, at + 1, kind, f"{lane[0]}{at + 1}")
                for at, kind in enumerate(kinds)
            ]
        spans.append(plotting.Span("comes out", end, end + 1, "computing, comes out", words[end]))
        frames.append(
            plotting.gantt(
                spans,
                title="One pass of the loop",
                unit="",
                xlabel="position in the text",
                until=len(words),
            )
        )
    return frames


def draw_batches(
    sequences: Sequence[int], *, modelled: Sequence[float], measured: Sequence[float]
) -> Figure:
    """Return a plot of the time of a step over the ``sequences`` in it, relative to a step for one
    sequence.

    ``modelled`` and ``measured`` have a ratio for each number of sequences. Lesson 22.
    """
    figure, axes = plotting.figure(title="Time of a step, relative to a step for one sequence")
    axes.plot(sequences, modelled, color=plotting.MODELLED, label="modelled: bytes / bandwidth")
    axes.plot(sequences, measured, "o", color=plotting.MEASURED, label="measured")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sequences, [f"{count}" for count in sequences])
    axes.set(xlabel="sequences in the step", ylabel="time relative to one sequence", ylim=(0, None))
    axes.legend()
    return figure


def draw_rows(rows: Sequence[int], *, measured: Sequence[float]) -> Figure:
    """Return a plot of the time of one matrix product over the rows that it multiplies, relative to
    one row.

    Lesson 22.
    """
    figure, axes = plotting.figure(title="Time of one matrix product, relative to a single row")
    axes.axhline(1, color=plotting.MODELLED, label="modelled: the bytes of the matrix, read once")
    axes.plot(rows, measured, "o", color=plotting.MEASURED, label="measured")
    axes.set(
        xlabel="rows, one for each sequence",
        ylabel="time relative to one row",
        ylim=(0, 1.3 * max(measured)),
    )
    axes.legend(loc="upper left")
    return figure


def draw_acceptance(
    model: torch.Tensor, draft: torch.Tensor, accept: torch.Tensor, resample: torch.Tensor
) -> Figure:
    """Return bars of the tokens that a draft proposes and of those written, each a distribution
    over the same few tokens.

    ``model`` and ``draft`` (tokens,) are the two distributions, ``accept`` and ``resample`` what a
    rule makes of them. Lesson 22.
    """
    accepted = draft * accept
    resampled = (1 - accepted.sum()) * resample
    tokens = np.arange(len(model))
    left, right = tokens - 0.2, tokens + 0.2
    figure, axes = plotting.figure(
        title="What the draft proposes (left), and what is written (right)"
    )
    axes.bar(left, accepted, 0.36, color="#882255", label="proposed and accepted")
    axes.bar(right, accepted, 0.36, color="#882255")
    axes.bar(
        left,
        draft - accepted,
        0.36,
        accepted,
        color=COLOURS["waiting"],
        label="proposed and rejected",
    )
    axes.bar(right, resampled, 0.36, accepted, color=COLOURS["computing"], label="resampled")
    axes.hlines(model, left - 0.2, right + 0.2, color=_GREY, label="the model's own probability, p")
    axes.set_xticks(tokens, [f"token {chr(97 + token)}" for token in tokens])
    axes.set(ylabel="probability", ylim=(0, 0.68))
    axes.legend(ncols=2)
    return figure


def explore_step() -> None:
    """Display the step of a model on a GPU as a figure to turn: weights, caches, and arithmetic
    beyond both.

    The shapes are the models' own (``CONFIGS``), the bandwidths and peaks in bfloat16 those of
    NVIDIA's data sheets. Lesson 22.
    """
    models = {
        config.name: _shape(config) for config in CONFIGS.values() if config.name != "Llama 2 13B"
    }
    plotting.explore(
        title="A decoding step: which bytes take the time?",
        alt="A stacked bar of the milliseconds that a step reads weights and caches, above the "
        "steps of three paces.",
        inputs=[
            Menu("model", "model", models, "Llama 3 8B"),
            Menu(
                "gpu",
                "GPU",
                {name: {"B": rate, "P": peak} for name, (rate, peak) in _GPUS.items()},
                "H100",
            ),
            Menu(
                "weight",
                "weights in",
                {"16 bits": {"size": 2}, "8 bits": {"size": 1}, "4 bits": {"size": 0.5}},
                "16 bits",
            ),
            Menu("entry", "caches in", {"16 bits": {"size": 2}, "8 bits": {"size": 1}}, "16 bits"),
            Slider("sequences", "sequences", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], 64),
            Slider(
                "tokens", "tokens in each", [250, 500, 1000, 2000, 4000, 8000, 16000, 32000], 2000
            ),
        ],
        formulas={
            "weights": "model.weights * weight.size / gpu.B * 1e3",
            "caches": "sequences * tokens * model.elements * entry.size / gpu.B * 1e3",
            "arithmetic": "2 * model.weights * sequences / gpu.P * 1e3",
            "beyond": "max(0, arithmetic - weights)",
        },
        picture=StackedBar(
            parts=[
                Series("weights", "weights, shared", "#332288"),
                Series("caches", "caches, one per sequence", COLOURS["data"]),
                Series("beyond", "arithmetic that the weights do not hide", COLOURS["computing"]),
            ],
            unit="ms",
            limits={"20 per second": 50, "50 per second": 20, "100 per second": 10},
            verdict="gives each user at least",
            total="a step",
        ),
    )


def _shape(config: Config) -> dict[str, float]:
    """Return the numbers that decide a model's step: the weights that it reads, and the cached
    elements per token.
    """
    return {"weights": read_bytes(config) / 2, "elements": config.cache_bytes() / 2}
