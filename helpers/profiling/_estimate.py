"""The time of a step as the sum of its operators, each distinct one timed alone.

A model of a step, not a measurement of it: it holds that operators do not disturb one another and
that nothing but them takes time. Where the estimate and the measured step differ, one of the two is
wrong there, and that is the lesson.
"""

from __future__ import annotations

import functools
import html
import math
import statistics
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import results, steps, trees
from helpers.checks import boolean, number
from helpers.results import Record
from helpers.timing._runs import Clock, rounds, run, watch_waiting, why_disturbed

_NOT_OPERATORS = ("prim", "profiler")  # namespaces that only ask or annotate
_CALLS_PER_RUN = {"cpu": 1, "cuda": 20}  # on CUDA one call is shorter than the wait for it
_TITLES = ("operator", "phase", "on", "calls", "one call", "all calls", "share")
_PHASES = ("forward", "backward", "optimizer")
_SHOWN, _WIDTH = 20, 56  # rows printed, and characters of an operator's arguments


class OperatorEstimate(Record):
    """One distinct operator of a step: its name, what it is called on, and how often in that phase.

    ``median_s`` is one call, timed alone; ``total_s`` is that times ``calls``. Lesson 11.
    """

    operator: str
    phase: str
    arguments: str
    calls: int
    median_s: float
    total_s: float
    share: float


class StepTimeEstimate(Record):
    """The modelled time of a step: the sum over its operators, the longest first; ``step_s`` is the
    three phases' sum.

    ``distinct`` operators were timed, ``calls`` are made in the step. ``not_timed`` names operators
    that could not run alone: they count for nothing, so the estimate is then too low.
    ``waiting_share`` is the part of the timing in which a thread of this process had no processor;
    None if unknown. Lesson 11.
    """

    model: str
    input: str
    device: str
    threads: int
    training: bool
    rounds: int
    distinct: int
    calls: int
    not_timed: tuple[str, ...]
    forward_s: float
    backward_s: float
    optimizer_s: float
    step_s: float
    waiting_share: float | None
    operators: tuple[OperatorEstimate, ...]

    @property
    def stable(self) -> bool:
        """False where a thread waited for a processor over a tenth of the time: no evidence against
        a claim.
        """
        return not why_disturbed(self.waiting_share)

    def __str__(self) -> str:
        return "\n".join([*self._summary(), *trees.rows_text(_TITLES, self._cells())])

    def _repr_html_(self) -> str:
        summary = "".join(f"<div>{html.escape(line)}</div>" for line in self._summary())
        return (
            "<div "
            f"style='font-size:.9em;overflow-x:auto'>{summary}"
            f"{trees.rows_html(_TITLES, self._cells())}</div>"
        )

    def _summary(self) -> list[str]:
        parts = ", ".join(
            f"{phase} {results.cell('time_s', getattr(self, f'{phase}_s'))}" for phase in _PHASES
        )
        missing = f"; not timed: {', '.join(self.not_timed)}" if self.not_timed else ""
        disturbed = why_disturbed(self.waiting_share)
        return [
            (
                f"{self.model} for {self.input} on {self.device}: "
                f"{results.cell('time_s', self.step_s)} ({parts})"
            ),
            (
                f"  {self.calls:,} calls of {self.distinct:,} distinct operators, each timed "
                f"alone{missing}"
            ),
            *([f"  {disturbed}"] if disturbed else []),
        ]

    def _cells(self) -> list[tuple[tuple[str, ...], float]]:
        shown_rows, other_rows = self.operators[:_SHOWN], self.operators[_SHOWN:]
        rows = [
            _cells_and_share(
                (
                    row.operator,
                    row.phase,
                    textwrap.shorten(row.arguments, _WIDTH, placeholder=" ..."),
                ),
                row.calls,
                results.cell("time_s", row.median_s),
                row.total_s,
                row.share,
            )
            for row in shown_rows
        ]
        if other_rows:
            rows.append(
                _cells_and_share(
                    (f"{len(other_rows):,} others, in table()", "", ""),
                    sum(row.calls for row in other_rows),
                    "",
                    math.fsum(row.total_s for row in other_rows),
                    math.fsum(row.share for row in other_rows),
                )
            )
        return rows

    def table(self) -> pd.DataFrame:
        """Return a DataFrame of plain numbers, one row a distinct operator and phase."""
        return pd.DataFrame([row.to_dict() for row in self.operators])


def _cells_and_share(
    texts: tuple[str, str, str], calls: int, one_call: str, total_s: float, share: float
) -> tuple[tuple[str, ...], float]:
    total = results.cell("time_s", total_s)
    return (*texts, f"{calls:,}", one_call, total, results.cell("share", share)), share


def estimate_step_time(
    model: nn.Module,
    inputs: steps.Inputs = None,
    *,
    shape: steps.Inputs = None,
    training: bool = True,
    loss: steps.Loss | None = None,
    optimizer: steps.OptimizerFactory | None = None,
    budget_s: float = 2.0,
    clock: Clock = time.perf_counter,
) -> StepTimeEstimate:
    """Return the modelled time of a step: each distinct operator timed alone, times its calls, all
    added up.

    A step of ``model`` on ``inputs`` or ``shape``, with ``training`` and ``loss``, is as in
    :func:`profile_time`, and with an ``optimizer`` (a torch.optim class, or a callable from
    parameters to an optimizer) its step as well. It is run on a copy of the model, and its
    operators are noted below autograd. Two calls are the same operator when name, shapes, strides,
    types and all other arguments agree. Each is then called by itself on the tensors that it was
    first called on; all take turns, so that each finds the caches as full of others' data as in a
    step, for ``budget_s`` (5 rounds in any case, 500 at most), and the median counts. On CUDA 20
    calls are launched one after another and waited for together.

    Not in the model: what Python and autograd do between operators, which a model of many small
    operators shows. ``clock`` is as in :func:`profile_time`. It needs the memory of a step, all of
    whose tensors it keeps.

    Raises as :func:`profile_time` does.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    >>> estimate = estimate_step_time(model, (4, 8), training=False, budget_s=0.01)
    >>> {row.operator: row.calls for row in estimate.operators}["aten.addmm.default"]
    2
    >>> estimate.distinct, estimate.calls
    (3, 5)

    Lesson 11.
    """
    boolean("training", training)
    number("budget_s", budget_s, above=0)
    with steps.warm_step(
        model, inputs, shape, training=training, loss=loss, optimizer=optimizer
    ) as step:
        recorder = record_step(step)
        repeaters = [call if _runs_alone(call) else None for call in recorder.calls]
        not_timed = {
            str(call.func)
            for call, repeater in zip(recorder.calls, repeaters, strict=True)
            if repeater is None
        }
        read_waiting_share = watch_waiting(clock)
        medians_s, round_count = _medians(repeaters, step.device, budget_s, clock)
        waiting_share = read_waiting_share()
        rows = _rows(recorder, medians_s)
        phases_s = [
            math.fsum(row.total_s for row in rows if row.phase == phase) for phase in _PHASES
        ]
        return StepTimeEstimate(
            model=type(model).__name__,
            input=step.input_text,
            device=str(step.device),
            threads=torch.get_num_threads(),
            training=training,
            rounds=round_count,
            distinct=len(recorder.calls),
            calls=sum(recorder.counts.values()),
            not_timed=tuple(sorted(not_timed)),
            forward_s=phases_s[0],
            backward_s=phases_s[1],
            optimizer_s=phases_s[2],
            step_s=sum(phases_s),
            waiting_share=waiting_share,
            operators=rows,
        )


class StepRecorder(TorchDispatchMode):
    """Notes the distinct operators of a step in the order in which they first come, and counts them
    by phase: ``calls`` are as they were first made, on the tensors themselves.

    It keeps arguments and no results: a gradient that somebody else holds is copied by autograd,
    not taken over.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[functools.partial] = []
        self.counts: Counter[tuple[int, str]] = Counter()
        self.phase = "forward"
        self._call_indices: dict[Any, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):  # it is run operator by operator
            with self:
                return func.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](
                    *args, **kwargs
                )
        if func.namespace not in _NOT_OPERATORS:
            key = _key(func, args, kwargs)
            if key not in self._call_indices:
                self._call_indices[key] = len(self.calls)
                self.calls.append(_keep_call(func, args, kwargs))
            self.counts[self._call_indices[key], self.phase] += 1
        return func(*args, **kwargs)

    def enter(self, phase: str) -> None:
        """Begin a phase of the step; the loss belongs to the forward pass."""
        self.phase = "forward" if phase == "loss" else phase


def record_step(step: steps.Step) -> StepRecorder:
    """Run one step and return its operators."""
    recorder = StepRecorder()
    steps.drop_gradients(step)
    with steps.uncompiled(), recorder:
        steps.run(step, recorder.enter)
    return recorder


def _keep_call(function: Any, args: tuple, kwargs: dict) -> functools.partial:
    """Return the call; one that writes gets whole numbers of its own, which may be another's
    index.
    """

    def copy_integers(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.clone()

    if function._schema.is_mutable:
        args, kwargs = pytree.tree_map_only(torch.Tensor, copy_integers, (args, kwargs))
    return functools.partial(function, *args, **kwargs)


def _key(function: Any, args: tuple, kwargs: dict) -> Any:
    leaves, shape = pytree.tree_flatten((args, kwargs))
    return function, str(shape), tuple(_leaf_key(leaf) for leaf in leaves)


def _leaf_key(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return type(leaf), repr(leaf)
    if leaf.layout != torch.strided:
        return leaf.layout, tuple(leaf.shape), leaf.dtype, leaf.device
    return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device


def _runs_alone(call: Callable[[], Any]) -> bool:
    """Tell whether a call, made by itself and without autograd, does not raise."""
    try:
        with torch.no_grad():
            call()
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
        return False
    return True


def _medians(
    repeaters: Sequence[Callable[[], Any] | None],
    device: torch.device,
    budget_s: float,
    clock: Clock,
) -> tuple[list[float], int]:
    """Return the median seconds of a call of each, taking turns, and the rounds; 0 for one that
    cannot run alone.
    """
    calls = _CALLS_PER_RUN[device.type]
    seconds: list[list[float]] = [[] for _ in repeaters]
    round_count = 0
    with torch.no_grad():
        for _ in rounds(budget_s, clock):
            round_count += 1
            for repeat, spent_s in zip(repeaters, seconds, strict=True):
                if repeat is not None:
                    spent_s.append(run(repeat, calls, device, clock).host_s / calls)
    return [statistics.median(spent_s) if spent_s else 0.0 for spent_s in seconds], round_count


def _rows(recorder: StepRecorder, medians_s: Sequence[float]) -> tuple[OperatorEstimate, ...]:
    step_s = math.fsum(count * medians_s[index] for (index, _), count in recorder.counts.items())
    rows = []
    for (index, phase), count in recorder.counts.items():
        call, total_s = recorder.calls[index], count * medians_s[index]
        leaves = pytree.tree_leaves((call.args, call.keywords))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        rows.append(
            OperatorEstimate(
                operator=str(call.func),
                phase=phase,
                arguments=steps.described(tensors),
                calls=count,
                median_s=medians_s[index],
                total_s=total_s,
                share=total_s / step_s if step_s else 0.0,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_s, row.operator, row.phase)))
