"""The figures of lesson 11: they draw what others have estimated or counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from helpers import plotting, units
from helpers.plotting import COLOURS, Menu, Series, Slider, StackedBar
from helpers.studies.working_set._profiles import MemoryProfile, WorkingSets

_INK = "#222222"
_STACK = ("#332288", "#8C510A", "#999933", COLOURS["data"], COLOURS["waiting"])


def draw_alive(
    alive_bytes: Mapping[str, Sequence[int]],
    *,
    phases: Sequence[str],
    title: str,
    plain_sum: float | None = None,
) -> Figure:
    """Return a stack of the bytes alive over the operators of a step, a layer for each kind of
    tensor, under ``title``.

    ``alive_bytes`` has, for each kind, the bytes at each operator, and ``phases`` the phase of each
    operator ("forward", "backward", ...). ``plain_sum`` is a level to compare the peak with. Lesson
    11.
    """
    figure, axes = plotting.figure(title=title)
    totals = [sum(at_once) for at_once in zip(*alive_bytes.values(), strict=True)]
    peak = max(totals)
    top = 1.15 * max(peak, plain_sum or 0)
    axes.stackplot(range(len(totals)), *alive_bytes.values(), labels=alive_bytes, colors=_STACK)
    for phase in ("forward", "backward"):
        start = list(phases).index(phase)
        axes.axvline(start, color="#555555", linewidth=0.8)
        axes.text(start + 1, 0.95 * top, f"{phase} pass")
    axes.plot(totals.index(peak), peak, "v", color=_INK, label=f"peak {units.text(peak, 'B')}")
    if plain_sum is not None:
        axes.axhline(
            plain_sum, color=_INK, linestyle="--", linewidth=1.2, label="the sum of the ledger"
        )
    axes.set(ylim=(0, top), xlabel="operator of the step", ylabel="bytes alive")
    plotting.unit_axis(axes, "y", "B")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=11, frameon=False)
    return figure


def draw_per_pair(
    tokens: Sequence[int], *, matrix: Sequence[float], rest: Sequence[float]
) -> Figure:
    """Return two curves over the ``tokens`` of a sequence, in bytes that a block saves.

    ``matrix`` has those of its score matrices, and ``rest`` those of all else. Lesson 11.
    """
    figure = plotting.draw_curves(
        tokens,
        {"score matrix": matrix, "everything else": rest},
        unit="B",
        size_unit="",
        title="Bytes that one block of Llama 2 7B saves",
        xlabel="tokens",
        ylabel="saved by one block",
    )
    # all would run into each other
    figure.axes[0].set_xticks([size for size in tokens if not math.log2(size) % 1])
    return figure


def draw_memory(profiles: Mapping[str, MemoryProfile], *, title: str) -> Figure:
    """Return a pie a profile, such as of inference and of training: the largest moment of each
    category.

    >>> from helpers import LeNet
    >>> from helpers.studies.working_set import profile_mem
    >>> profile = profile_mem(LeNet(), training=False)
    >>> fig = draw_memory({"inference": profile}, title="Memory of LeNet by kind")
    >>> [text.get_text() for text in fig.legends[0].get_texts()][:3]
    ['parameter', 'input', 'activation']
    """
    wholes = {
        name: {part.category: part.size_bytes for part in profile.shares}
        for name, profile in profiles.items()
    }
    return plotting.draw_shares(wholes, title=title)


def draw_working_sets(sets: WorkingSets, *, title: str) -> Figure:
    """Return a bar a layer with parameters: input, output, parameters.

    >>> from helpers.studies.working_set import LayerWorkingSet
    >>> row = LayerWorkingSet("fc8", "Linear", 16384, 16388000, 4000, 16408384)
    >>> fig = draw_working_sets(WorkingSets(602112, 16388000, (row,)), title="AlexNet's last layer")
    >>> [text.get_text() for text in fig.axes[0].get_legend().get_texts()]
    ['parameters', 'inputs', 'outputs']
    """
    parts = {
        "parameters": [row.parameter_bytes for row in sets.layers],
        "inputs": [row.input_bytes for row in sets.layers],
        "outputs": [row.output_bytes for row in sets.layers],
    }
    return plotting.draw_layers([row.layer for row in sets.layers], parts, unit="B", title=title)


def explore_memory() -> None:
    """Display the peak of a training step as a figure to turn, against the memory of five GPUs.

    The peak is the larger of two moments. When the backward pass begins, the saved activations are
    alive, and when it ends, all gradients are. Shapes are those of the published models. Lesson 11.
    """
    plotting.explore(
        title="The peak of a training step: which moment is fullest?",
        alt="A stacked bar of what is alive at the peak, above the memory of five GPUs.",
        inputs=[
            Menu(
                "model",
                "model",
                {
                    "Llama 2 7B": {
                        "N": 6.738e9,
                        "L": 32,
                        "h": 4096,
                        "f": 11008,
                        "a": 32,
                        "kv": 4096,
                        "V": 32000,
                    },
                    "Llama 3 8B": {
                        "N": 8.03e9,
                        "L": 32,
                        "h": 4096,
                        "f": 14336,
                        "a": 32,
                        "kv": 1024,
                        "V": 128256,
                    },
                    "Llama 2 13B": {
                        "N": 13.016e9,
                        "L": 40,
                        "h": 5120,
                        "f": 13824,
                        "a": 40,
                        "kv": 5120,
                        "V": 32000,
                    },
                    "Llama 2 70B": {
                        "N": 68.977e9,
                        "L": 80,
                        "h": 8192,
                        "f": 28672,
                        "a": 64,
                        "kv": 1024,
                        "V": 32000,
                    },
                },
                "Llama 2 7B",
            ),
            Menu(
                "recipe",
                "recipe",
                {
                    "Adam, mixed precision": {"kept": 14, "gradients": 2},
                    "Adam, 8-bit averages": {"kept": 8, "gradients": 2},
                    "SGD, all in bfloat16": {"kept": 2, "gradients": 2},
                    "LoRA, 0.6 % of it learns": {"kept": 2 + 14 * 0.006, "gradients": 2 * 0.006},
                },
                "Adam, mixed precision",
            ),
            Menu(
                "saved",
                "saved",
                {"all activations": {"all": 1}, "inputs of blocks": {"all": 0}},
                "all activations",
            ),
            Menu(
                "attention", "attention", {"fused": {"matrix": 0}, "plain": {"matrix": 1}}, "fused"
            ),
            Slider("tokens", "tokens", [256, 512, 1024, 2048, 4096, 8192, 16384, 32768], 4096),
            Slider("sequences", "sequences", [1, 2, 4, 8, 16], 1),
        ],
        formulas={
            "n": "tokens * sequences",
            "block": (
                "2 * (6 * model.h + 2 * model.kv + 4 * model.f + attention.matrix * model.a * "
                "tokens)"
            ),
            "activations": (
                "n * model.L * (block * saved.all + 2 * model.h * (1 - saved.all)) / 1e9"
            ),
            "loss": "12 * model.V * n / 1e9",
            "kept": "model.N * recipe.kept / 1e9",
            "gradients": "model.N * recipe.gradients / 1e9",
            "ends": "gradients > activations + loss",
            "all_gradients": "gradients * ends",
            "all_activations": "activations * (1 - ends)",
            "all_loss": "loss * (1 - ends)",
        },
        picture=StackedBar(
            parts=[
                Series("kept", "parameters, copies, averages", "#332288"),
                Series("all_gradients", "gradients, when the backward pass ends", "#999933"),
                Series("all_activations", "activations, when it begins", COLOURS["data"]),
                Series("all_loss", "logits and loss", COLOURS["waiting"]),
            ],
            unit="GB",
            limits={"RTX 4090": 24, "A100": 40, "H100": 80, "H200": 141, "B200": 192},
            verdict="fits into",
            total="peak",
        ),
    )
