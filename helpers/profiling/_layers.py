"""The time of a step by layer and by operator: many warm steps, with hooks and without, one after
the other.

A step is a timeline: at every change of hands a mark says when, and which module works from then
on. In the forward pass a hook before and one after each module set the marks; they touch no tensor,
so an operator in place or a module used twice runs as without them. In the backward pass a hook
before a node of autograd's graph does. Autograd numbers its nodes as the forward makes them, which
tells the module that each belongs to, and visits them in falling order, so a hook is needed only
where the module changes. Every moment of the step belongs to one owner.
"""

from __future__ import annotations

import bisect
import html
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from helpers import results, steps, trees
from helpers.checks import boolean, number
from helpers.profiling import _kernels as kernels
from helpers.results import Record
from helpers.steps import ModelError as ModelError
from helpers.timing._runs import Clock, rounds, watch_waiting, why_disturbed

OUTSIDE = -1
"""Owner of what no module of the model does: the loss, and what Python and autograd do around."""
_PAUSED = -2
_PHASES = ("forward", "backward")

_sequence_number = torch._C._autograd._get_sequence_nr


@dataclass
class StepTimes:
    """Seconds of one step by phase and owner; ``hooks_s`` went into setting the hooks of the
    backward pass.
    """

    calls: dict[int, int]
    phases_s: dict[str, dict[int, float]] = field(
        default_factory=lambda: {phase: defaultdict(float) for phase in _PHASES}
    )
    hooks_s: float = 0.0

    @property
    def whole_s(self) -> float:
        """Return the seconds from the step's first mark to its last."""
        return sum(sum(seconds.values()) for seconds in self.phases_s.values()) + self.hooks_s


class Stamps:
    """Moments: readings of the host's clock, or events on the current stream of a CUDA device."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self._device = device
        self.now: Callable[[], Any] = clock if device.type == "cpu" else self._event

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        """Wait until the device has nothing left to do."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def seconds(self, stamps: Sequence[Any]) -> list[float]:
        """Return the seconds of each moment since the first one."""
        self.settle()
        first = stamps[0]
        if self._device.type == "cpu":
            return [stamp - first for stamp in stamps]
        return [first.elapsed_time(stamp) / 1e3 for stamp in stamps]


class StepMarks:
    """Collects the marks of one step; ``modules`` are the owners, by their place in the list."""

    def __init__(self, modules: Sequence[nn.Module], stamps: Stamps) -> None:
        self._modules, self._stamps = modules, stamps
        self._marks: list[tuple[Any, int]] = []
        self._sequences: list[int] = []
        self._stack = [OUTSIDE]
        self._backward_at: int | None = None
        self._calls: dict[int, int] = {}

    @contextmanager
    def hook_modules(self) -> Iterator[None]:
        """Set the hooks of every module, and take them off at the end, also after an exception."""
        with ExitStack() as stack:
            for row, module in enumerate(self._modules):
                before, after = self._hooks(row)
                stack.callback(module.register_forward_pre_hook(before).remove)
                stack.callback(module.register_forward_hook(after, always_call=True).remove)
            yield

    def _hooks(self, row: int) -> tuple[Callable, Callable]:
        now, note, numbers = self._stamps.now, self._marks.append, self._sequences.append
        sequence, stack, calls = _sequence_number, self._stack, self._calls

        def before(_module: nn.Module, _inputs: Any) -> None:
            stack.append(row)
            calls[row] = calls.get(row, 0) + 1
            numbers(sequence())
            note((now(), row))

        def after(_module: nn.Module, _inputs: Any, _outputs: Any) -> None:
            stack.pop()
            numbers(sequence())
            note((now(), stack[-1]))

        return before, after

    def begin(self) -> None:
        """Mark the beginning of the step."""
        self._sequences.append(_sequence_number())
        self._mark(OUTSIDE)

    def _mark(self, owner: int) -> None:
        self._marks.append((self._stamps.now(), owner))

    def begin_backward(self, root: Any) -> None:
        """Hook the graph that ends in ``root`` and mark the beginning of the backward pass."""
        self._mark(_PAUSED)
        self._calls = dict(self._calls)  # what a checkpoint computes again is no call of the step
        if root is not None:
            self._hook_graph(root)
        self._backward_at = len(self._marks)
        self._mark(OUTSIDE)

    def end(self) -> None:
        """Mark the end of the step."""
        self._mark(OUTSIDE)

    def _hook_graph(self, root: Any) -> None:
        owners = [row for _, row in self._marks[:-1]]  # one for each number in self._sequences
        previous = OUTSIDE
        for sequence, node in sorted(_nodes(root), key=lambda pair: -pair[0]):
            row = owners[max(0, bisect.bisect_right(self._sequences, sequence) - 1)]
            if row != previous:
                node.register_prehook(self._make_prehook(row))
                previous = row

    def _make_prehook(self, row: int) -> Callable[[Any], None]:
        now, note, stack = self._stamps.now, self._marks.append, self._stack

        def prehook(_gradients: Any) -> None:
            stack[:] = [row]
            note((now(), row))

        return prehook

    def times(self) -> StepTimes:
        """Return the seconds of each owner."""
        times = StepTimes(self._calls)
        moments = self._stamps.seconds([stamp for stamp, _ in self._marks])
        for position, (_, owner) in enumerate(self._marks[:-1]):
            elapsed_s = moments[position + 1] - moments[position]
            if owner == _PAUSED:
                times.hooks_s += elapsed_s
            else:
                is_backward = self._backward_at is not None and position >= self._backward_at
                times.phases_s[_PHASES[is_backward]][owner] += elapsed_s
        return times


def _nodes(root: Any) -> Iterator[tuple[int, Any]]:
    """Yield each node of the graph with its number, but for those that only store a parameter's
    gradient.

    Those run right after the node that made the gradient, and their time stays with it.
    """
    seen, pending = {root}, [root]
    while pending:
        node = pending.pop()
        yield node._sequence_nr(), node
        for next_node, _ in node.next_functions:
            is_new = next_node is not None and next_node not in seen
            if is_new and type(next_node).__name__ != "AccumulateGrad":
                seen.add(next_node)
                pending.append(next_node)


FUNCTIONAL_KIND = "operators, Python"
OUTSIDE_KIND = "loss, Python, autograd"
_PROFILED_STEPS = 5

_TIMES = {"forward": "forward_s", "backward": "backward_s", "total": "total_s", "share": "share"}
_LAYOUT = trees.ColumnLayout(
    columns=(trees.Column("calls", 5), *(trees.Column(title, 9) for title in _TIMES)),
    bar_title="of the step",
    share_of="the whole",
    bar_letters=20,
    grid="display:grid;grid-template-columns:minmax(14em,1fr) 3em repeat(3,6em) 4.5em 10em;gap:0 "
    ".6em;"
    "align-items:center",
    width="54em",
)


class LayerTime(Record):
    """The time of one module in a step, everything inside it included.

    ``layer`` is the module's path ("" is the model itself). A path that ends in "(functional)" is
    what a module with children does itself: the operators it calls as functions, and its own
    Python. The row "(unaccounted)", the last one, is what no module does: the loss, and Python and
    autograd around it. ``share`` is of the whole step. Lesson 11.
    """

    layer: str
    kind: str
    depth: int
    calls: int
    forward_s: float
    backward_s: float
    total_s: float
    share: float


class OperatorTime(Record):
    """The time that one of torch's operators spends itself, in one phase of a step, in all its
    calls.

    ``phase`` is "forward", "backward" or, in the last row, "(unaccounted)", "both". ``share`` is of
    the step that the profiler saw. Lesson 11.
    """

    operator: str
    phase: str
    calls: int
    median_s: float
    share: float


class TimeProfile(trees.LayerProfile):
    """Where the time of a model's step goes; the rows of ``layers`` add up to ``step_s``.

    Every moment of a step belongs to one row. The times of the layers are medians over ``rounds``
    steps, and ``forward_s``, ``backward_s`` and ``step_s`` are sums of them; ``hooked_step_s`` is
    the median of the same steps as wholes, which a busy machine moves away from ``step_s``. In each
    round the step also ran without any hook: ``plain_step_s`` is the median of those, and
    ``overhead_ratio`` the median of what the hooks made of a step, the setting of backward hooks
    included. ``waiting_share`` is the part of these rounds in which a thread of this process had no
    processor; None if unknown. The operators come from other steps, under torch's profiler, which
    costs more: their rows add up to ``profiled_step_s``. Lesson 11.
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
    waiting_share: float | None
    layers: tuple[LayerTime, ...]
    operators: tuple[OperatorTime, ...]

    @property
    def stable(self) -> bool:
        """False where a thread waited for a processor over a tenth of the time, so that the rows
        are too long.
        """
        return not why_disturbed(self.waiting_share)

    def __str__(self) -> str:
        return "\n".join([*_summary(self), *trees.text_lines(_LAYOUT, self._rows())])

    def _repr_html_(self) -> str:
        rows = [
            (
                (
                    row.operator,
                    row.phase,
                    f"{row.calls:,}" if row.calls else "",
                    results.cell("time_s", row.median_s),
                    results.cell("share", row.share),
                ),
                row.share,
            )
            for row in self.operators
        ]
        operators = trees.rows_html(("operator", "phase", "calls", "time", "share"), rows)
        step = html.escape(results.cell("time_s", self.profiled_step_s))
        below = (
            "<details style='margin-top:.5em'><summary style='cursor:pointer'>operators (under "
            f"torch's profiler a step takes {step})</summary>{operators}</details>"
        )
        return trees.html_tree(_LAYOUT, self._rows(), map(str.strip, _summary(self)), below)

    def _rows(self) -> list[trees.Row]:
        return [
            trees.Row(
                name=trees.last_name(row.layer, row.kind),
                kind=row.kind,
                depth=row.depth,
                cells=(
                    str(row.calls or ""),
                    *(results.cell(name, getattr(row, name)) for name in _TIMES.values()),
                ),
                share=row.share,
            )
            for row in self.layers
        ]

    def parts(self) -> tuple[LayerTime, ...]:
        """Return the rows that hold no other row: their times add up to ``step_s`` and their shares
        to 1.
        """
        following = (*self.layers[1:], None)
        return tuple(
            row
            for row, after in zip(self.layers, following, strict=True)
            if after is None or after.depth <= row.depth
        )

    def slowest(self) -> LayerTime:
        """Return the module without children in which the step spends most of its time."""
        modules = [row for row in self.parts() if row.kind not in (FUNCTIONAL_KIND, OUTSIDE_KIND)]
        return max(modules, key=lambda row: row.total_s)


def _summary(profile: TimeProfile) -> list[str]:
    """Return the lines of the summary: the times of the step, and the cost of measuring them."""
    step, forward, backward, hooked, plain = (
        results.cell("time_s", getattr(profile, name))
        for name in ("step_s", "forward_s", "backward_s", "hooked_step_s", "plain_step_s")
    )
    step_name = (
        f"a training step (forward {forward}, backward {backward})"
        if profile.training
        else "a forward pass"
    )
    threads = "1 thread" if profile.threads == 1 else f"{profile.threads} threads"
    disturbed = why_disturbed(profile.waiting_share)
    return [
        f"{profile.model} for {profile.input} on {profile.device}, {threads}",
        f"  {step_name}: {step}, from medians of {profile.rounds} steps",
        (
            f"  whole steps: {hooked} with the hooks, {plain} without; the hooks make one "
            f"{profile.overhead_ratio:.2f}x"
        ),
        *([f"  {disturbed}"] if disturbed else []),
    ]


def profile_time(
    model: nn.Module,
    inputs: steps.Inputs = None,
    *,
    shape: steps.Inputs = None,
    training: bool = True,
    loss: steps.Loss | None = None,
    budget_s: float = 2.0,
    clock: Clock = time.perf_counter,
) -> TimeProfile:
    """Return the time of one step of ``model``: layer by layer and operator by operator, there and
    back.

    A step is forward, loss and backward in training mode; with ``training=False`` the forward
    alone, in evaluation mode and without gradients. ``inputs`` (or ``shape``, of zeros) is as in
    :mod:`helpers.steps`; ``loss`` goes from the model's outputs to one number, by default their
    sum. The gradients are None when a step begins, and the optimizer is no part of it.

    Everything runs on a copy, on the model's device: the model itself is never touched. Two warm-up
    steps come first. Then rounds of one step with hooks and one without, in alternating order, for
    ``budget_s`` (5 rounds in any case, 500 at most), and five steps under torch's profiler for the
    operators. The hooks set marks and touch no tensor, so operators in place, modules used several
    times and checkpointing run as they always do. On CUDA the marks are events on the current
    stream, on a CPU readings of ``clock``: on a machine that others use too, ``time.thread_time``
    leaves out the waiting (right for one thread only).

    Every moment between two marks belongs to one module: the innermost one that runs, or in the
    backward pass the one whose forward made the node of autograd's graph. Storing a parameter's
    gradient belongs to the layer that made it; the backward pass inside a reentrant checkpoint
    belongs to the module that called it.

    Raises TypeError or ValueError for an argument that is not accepted and ModelError for a model
    that cannot be copied, raises, or hides its layers (compiled, TorchScript, quantised, lazy).

    >>> profile = profile_time(nn.Sequential(nn.Linear(100, 10), nn.ReLU()), (8, 100), budget_s=0.1)
    >>> profile.layer("0").kind, profile.layer("0").calls
    ('Linear', 1)

    Lesson 11.
    """
    boolean("training", training)
    number("budget_s", budget_s, above=0)
    with steps.warm_step(model, inputs, shape, training=training, loss=loss) as step:
        stamps = Stamps(step.device, clock)
        modules = dict(step.model.named_modules())
        read_waiting_share = watch_waiting(clock)
        plain_s, hooked_times = _run_rounds(step, list(modules.values()), stamps, budget_s, clock)
        waiting_share = read_waiting_share()
        operators = kernels.profile_operators(
            lambda: _run_fresh_step(step), step.device, _PROFILED_STEPS
        )
        own_s = {phase: _own_medians(hooked_times, phase, len(modules)) for phase in _PHASES}
        forward_s, backward_s = (math.fsum(own_s[phase].values()) for phase in _PHASES)
        return TimeProfile(
            model=type(model).__name__,
            input=step.input_text,
            device=str(step.device),
            threads=torch.get_num_threads(),
            training=training,
            rounds=len(hooked_times),
            step_s=forward_s + backward_s,
            forward_s=forward_s,
            backward_s=backward_s,
            hooked_step_s=statistics.median(times.whole_s for times in hooked_times),
            plain_step_s=statistics.median(plain_s),
            overhead_ratio=_overhead(hooked_times, plain_s),
            profiled_step_s=math.fsum(median_s for _, median_s in operators.values()),
            waiting_share=waiting_share,
            layers=_layers(modules, own_s, hooked_times[-1].calls),
            operators=_operators(operators),
        )


def _run_rounds(
    step: steps.Step, modules: Sequence[nn.Module], stamps: Stamps, budget_s: float, clock: Clock
) -> tuple[list[float], list[StepTimes]]:
    """Run rounds for the budget; return the seconds of the steps without hooks, and the times of
    those with.
    """
    plain_s: list[float] = []
    hooked_times: list[StepTimes] = []
    run_steps: list[Callable[[], None]] = [
        lambda: plain_s.append(_plain_step(step, stamps)),
        lambda: hooked_times.append(_hooked_step(step, modules, stamps)),
    ]
    for run_step in run_steps:  # what the hooks themselves do for the first time is over
        run_step()
    plain_s.clear()
    hooked_times.clear()
    for _ in rounds(budget_s, clock):
        for run_step in run_steps:
            run_step()
        run_steps.reverse()
    return plain_s, hooked_times


def _run_fresh_step(step: steps.Step) -> None:
    steps.drop_gradients(step)
    steps.run(step)


def _plain_step(step: steps.Step, stamps: Stamps) -> float:
    steps.drop_gradients(step)
    stamps.settle()
    begin = stamps.now()
    steps.run(step)
    return stamps.seconds([begin, stamps.now()])[1]


def _hooked_step(step: steps.Step, modules: Sequence[nn.Module], stamps: Stamps) -> StepTimes:
    marks = StepMarks(modules, stamps)
    losses: list[torch.Tensor] = []

    def note_loss(outputs: Any) -> torch.Tensor:
        losses.append(step.loss(outputs))
        return losses[-1]

    def enter(phase: str) -> None:
        if phase == "backward":
            marks.begin_backward(losses.pop().grad_fn)

    steps.drop_gradients(step)
    watched_step = replace(step, loss=note_loss)
    with marks.hook_modules():
        stamps.settle()
        marks.begin()
        steps.run(watched_step, enter)
        marks.end()
        return marks.times()


def _overhead(hooked_times: Sequence[StepTimes], plain_s: Sequence[float]) -> float:
    ratios = [
        times.whole_s / plain
        for times, plain in zip(hooked_times, plain_s, strict=True)
        if plain > 0
    ]
    return statistics.median(ratios) if ratios else math.nan


def _own_medians(hooked_times: Sequence[StepTimes], phase: str, rows: int) -> dict[int, float]:
    """Return each owner's median seconds in a phase, without what the modules inside it take."""
    return {
        row: statistics.median(times.phases_s[phase].get(row, 0.0) for times in hooked_times)
        for row in (*range(rows), OUTSIDE)
    }


def _layers(
    modules: dict[str, nn.Module], own_s: dict[str, dict[int, float]], calls: dict[int, int]
) -> tuple[LayerTime, ...]:
    """Return the rows in the order of the modules, each followed by its children, and what is
    unaccounted for.
    """
    step_s = math.fsum(seconds for phase in own_s.values() for seconds in phase.values())
    children = trees.children_of(modules)
    rows = {path: row for row, path in enumerate(modules)}
    layer_times: list[LayerTime] = []

    def add(
        layer: str, kind: str, depth: int, count: int, forward_s: float, backward_s: float
    ) -> LayerTime:
        total_s = forward_s + backward_s
        share = total_s / step_s if step_s else 0.0
        layer_times.append(
            LayerTime(layer, kind, depth, count, forward_s, backward_s, total_s, share)
        )
        return layer_times[-1]

    def own_times_of(row: int) -> tuple[float, float]:
        return own_s["forward"][row], own_s["backward"][row]

    def visit(path: str, depth: int) -> LayerTime:
        row, position = rows[path], len(layer_times)
        own_times_s = own_times_of(row)
        count, kind = calls.get(row, 0), type(modules[path]).__name__
        if not children[path]:
            return add(path, kind, depth, count, *own_times_s)
        parts = [visit(child, depth + 1) for child in children[path]]
        if count or any(own_times_s):
            name = f"{path}.{trees.FUNCTIONAL}" if path else trees.FUNCTIONAL
            parts.append(add(name, FUNCTIONAL_KIND, depth + 1, count, *own_times_s))
        forward_s = math.fsum(part.forward_s for part in parts)
        backward_s = math.fsum(part.backward_s for part in parts)
        total = add(path, kind, depth, count, forward_s, backward_s)
        layer_times.insert(position, layer_times.pop())
        return total

    visit("", 0)
    add(kernels.UNACCOUNTED, OUTSIDE_KIND, 0, 0, *own_times_of(OUTSIDE))
    return tuple(layer_times)


def _operators(medians: dict[tuple[str, str], tuple[int, float]]) -> tuple[OperatorTime, ...]:
    """Return the rows, the longest first and what is unaccounted for last."""
    step_s = math.fsum(median_s for _, median_s in medians.values())
    rows = [
        OperatorTime(operator, phase, calls, median_s, median_s / step_s if step_s else 0.0)
        for (operator, phase), (calls, median_s) in medians.items()
    ]
    rows.sort(
        key=lambda row: (
            row.operator == kernels.UNACCOUNTED,
            -row.median_s,
            row.operator,
            row.phase,
        )
    )
    return tuple(rows)
