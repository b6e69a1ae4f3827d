"""The timeline of one step: at every change of hands a mark says when, and which module works from then on.

In the forward pass a hook before and one after each module set the marks; they touch no tensor, so an operator in
place or a module used twice runs as without them. In the backward pass a hook before a node of autograd's graph does.
Autograd numbers its nodes as the forward makes them, which tells the module that each belongs to, and visits them in
falling order, so a hook is needed only where the module changes. Every moment of the step belongs to one owner.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from helpers.timing._runs import Clock

OUTSIDE = -1
"""Owner of what no module of the model does: the loss, and what Python and autograd do around it."""
_PAUSED = -2
_PHASES = ("forward", "backward")

_sequence_number = torch._C._autograd._get_sequence_nr


@dataclass
class StepTimes:
    """Seconds of one step by phase and owner; ``hooks_s`` went into setting the hooks of the backward pass."""

    forward_s: dict[int, float] = field(default_factory=dict)
    backward_s: dict[int, float] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    hooks_s: float = 0.0

    def phase_s(self, phase: str) -> dict[int, float]:
        """Return the seconds by owner of "forward" or "backward"."""
        return self.forward_s if phase == "forward" else self.backward_s

    @property
    def whole_s(self) -> float:
        """Return the seconds from the step's first mark to its last."""
        return sum(self.forward_s.values()) + sum(self.backward_s.values()) + self.hooks_s


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


class Marks:
    """Collects the marks of one step; ``modules`` are the owners, by their place in the list."""

    def __init__(self, modules: Sequence[nn.Module], stamps: Stamps) -> None:
        self._modules, self._stamps = modules, stamps
        self._marks: list[tuple[Any, int]] = []
        self._sequences: list[int] = []
        self._stack = [OUTSIDE]
        self._backward_at: int | None = None
        self._calls: dict[int, int] = {}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Set the hooks of every module, and take them off at the end, also after an exception."""
        with ExitStack() as stack:
            for row, module in enumerate(self._modules):
                before, after = self._hooks(row)
                stack.callback(module.register_forward_pre_hook(before).remove)
                stack.callback(module.register_forward_hook(after, always_call=True).remove)
            yield

    def _hooks(self, row: int) -> tuple[Callable, Callable]:
        now, note, sequence, numbers = self._stamps.now, self._marks.append, _sequence_number, self._sequences.append
        stack, calls = self._stack, self._calls

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
        self._marks.append((self._stamps.now(), OUTSIDE))

    def begin_backward(self, root: Any) -> None:
        """Hook the graph that ends in ``root`` and mark the beginning of the backward pass."""
        self._marks.append((self._stamps.now(), _PAUSED))
        self._calls = dict(self._calls)  # what a checkpoint computes again is no call of the step
        if root is not None:
            self._hook_graph(root)
        self._backward_at = len(self._marks)
        self._marks.append((self._stamps.now(), OUTSIDE))

    def end(self) -> None:
        """Mark the end of the step."""
        self._marks.append((self._stamps.now(), OUTSIDE))

    def _hook_graph(self, root: Any) -> None:
        owners = [row for _, row in self._marks[:-1]]  # one for each number in self._sequences
        previous = OUTSIDE
        for number, node in sorted(_nodes(root), key=lambda pair: -pair[0]):
            row = owners[max(0, bisect.bisect_right(self._sequences, number) - 1)]
            if row != previous:
                node.register_prehook(self._starts(row))
                previous = row

    def _starts(self, row: int) -> Callable[[Any], None]:
        now, note, stack = self._stamps.now, self._marks.append, self._stack

        def starts(_gradients: Any) -> None:
            stack[:] = [row]
            note((now(), row))

        return starts

    def times(self) -> StepTimes:
        """Return the seconds of each owner."""
        times = StepTimes(calls=self._calls)
        moments = self._stamps.seconds([stamp for stamp, _ in self._marks])
        for position, (_, owner) in enumerate(self._marks[:-1]):
            elapsed_s = moments[position + 1] - moments[position]
            if owner == _PAUSED:
                times.hooks_s += elapsed_s
                continue
            is_backward = self._backward_at is not None and position >= self._backward_at
            seconds = times.phase_s(_PHASES[is_backward])
            seconds[owner] = seconds.get(owner, 0.0) + elapsed_s
        return times


def _nodes(root: Any) -> Iterator[tuple[int, Any]]:
    """Yield each node of the graph with its number, but for those that only store a parameter's gradient.

    Those run right after the node that made the gradient, and their time stays with it.
    """
    seen, waiting = {root}, [root]
    while waiting:
        node = waiting.pop()
        yield node._sequence_nr(), node
        for following, _ in node.next_functions:
            if following is not None and following not in seen and type(following).__name__ != "AccumulateGrad":
                seen.add(following)
                waiting.append(following)
