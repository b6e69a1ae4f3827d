"""What timing a model gives: one row a layer, one an operator, and the whole step that they add up to."""

from __future__ import annotations

import html
from dataclasses import dataclass

from helpers import results, trees
from helpers.results import Result

FUNCTIONAL_KIND = "operators, Python"
OUTSIDE_KIND = "loss, Python, autograd"

_TIMES = {"forward": "forward_s", "backward": "backward_s", "total": "total_s", "share": "share"}
_LAYOUT = trees.Layout(
    columns=(trees.Column("calls", 5), *(trees.Column(title, 9) for title in _TIMES)),
    bar_title="of the step",
    share_of="the whole",
    bar_letters=20,
    grid="display:grid;grid-template-columns:minmax(14em,1fr) 3em repeat(3,6em) 4.5em 10em;gap:0 .6em;"
    "align-items:center",
    width="54em",
)


@dataclass(frozen=True)
class LayerTime(Result):
    """The time of one module in a step, everything inside it included.

    ``layer`` is the module's path ("" is the model itself). A path that ends in "(functional)" is what a module with
    children does itself: the operators it calls as functions, and its own Python. The row "(unaccounted)", the last
    one, is what no module does: the loss, and Python and autograd around it. ``share`` is of the whole step.
    Lesson 07.
    """

    layer: str
    kind: str
    depth: int
    calls: int
    forward_s: float
    backward_s: float
    total_s: float
    share: float


@dataclass(frozen=True)
class OperatorTime(Result):
    """The time that one of torch's operators spends itself, in one phase of a step, in all its calls.

    ``phase`` is "forward", "backward" or, in the last row, "(unaccounted)", "both". ``share`` is of the step that the
    profiler saw. Lesson 07.
    """

    operator: str
    phase: str
    calls: int
    median_s: float
    share: float


@dataclass(frozen=True)
class TimeProfile(trees.LayerProfile):
    """Where the time of a model's step goes; the rows of ``layers`` add up to ``step_s``.

    Every moment of a step belongs to one row. The times of the layers are medians over ``rounds`` steps, and
    ``forward_s``, ``backward_s`` and ``step_s`` are sums of them; ``hooked_step_s`` is the median of the same steps as
    wholes, which a busy machine moves away from ``step_s``. In each round the step also ran without any hook:
    ``plain_step_s`` is the median of those, and ``overhead_ratio`` the median of what the hooks made of a step, the
    setting of backward hooks included. The operators come from other steps, under torch's profiler, which costs more:
    their rows add up to ``profiled_step_s``. Lesson 07.
    """

    model: str
    input: str
    device: str
    threads: int
    training: bool
    rounds: int
    step_s: float
    forward_s: float
    backward_s: float
    hooked_step_s: float
    plain_step_s: float
    overhead_ratio: float
    profiled_step_s: float
    layers: tuple[LayerTime, ...]
    operators: tuple[OperatorTime, ...]

    def __str__(self) -> str:
        return "\n".join([*_summary(self), *trees.text_lines(_LAYOUT, self._rows())])

    def _repr_html_(self) -> str:
        operators = trees.rows_html(
            ("operator", "phase", "calls", "time", "share"),
            [((row.operator, row.phase, f"{row.calls:,}" if row.calls else "", results.cell("time_s", row.median_s),
               results.cell("share", row.share)), row.share) for row in self.operators],
        )  # fmt: skip
        step = html.escape(results.cell("time_s", self.profiled_step_s))
        below = ("<details style='margin-top:.5em'><summary style='cursor:pointer'>operators (under torch's profiler a "
                 f"step takes {step})</summary>{operators}</details>")  # fmt: skip
        return trees.html_tree(_LAYOUT, self._rows(), map(str.strip, _summary(self)), below)

    def _rows(self) -> list[trees.Row]:
        return [
            trees.Row(
                name=trees.last_name(row.layer, row.kind),
                kind=row.kind,
                depth=row.depth,
                cells=(str(row.calls or ""), *(results.cell(name, getattr(row, name)) for name in _TIMES.values())),
                share=row.share,
            )
            for row in self.layers
        ]

    def parts(self) -> tuple[LayerTime, ...]:
        """Return the rows that hold no other row: their times add up to ``step_s`` and their shares to 1."""
        following = (*self.layers[1:], None)
        return tuple(row for row, after in zip(self.layers, following, strict=True)
                     if after is None or after.depth <= row.depth)  # fmt: skip

    def slowest(self) -> LayerTime:
        """Return the module without children in which the step spends most of its time."""
        modules = [row for row in self.parts() if row.kind not in (FUNCTIONAL_KIND, OUTSIDE_KIND)]
        return max(modules, key=lambda row: row.total_s)


def _summary(profile: TimeProfile) -> list[str]:
    """Return what the step took, and what it cost to know, a line each."""
    step, ahead, back, hooked, plain = (
        results.cell("time_s", getattr(profile, name))
        for name in ("step_s", "forward_s", "backward_s", "hooked_step_s", "plain_step_s")
    )
    what = f"a training step (forward {ahead}, backward {back})" if profile.training else "a forward pass"
    threads = "1 thread" if profile.threads == 1 else f"{profile.threads} threads"
    return [
        f"{profile.model} for {profile.input} on {profile.device}, {threads}",
        f"  {what}: {step}, from medians of {profile.rounds} steps",
        f"  whole steps: {hooked} with the hooks, {plain} without; the hooks make one {profile.overhead_ratio:.2f}x",
    ]
