"""Count the operations of a model: the forward is followed on shapes, the rest is derived from its record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from helpers.operations import backward, conventions, formulas
from helpers.operations import optimizer as optimizers
from helpers.operations.inputs import as_arguments, checked_model, explained
from helpers.operations.preserve import preserved
from helpers.operations.report import LayerOperations, OperationProfile, OperatorOperations
from helpers.operations.specs import Call
from helpers.operations.trace import Trace, described
from helpers.operations.work import NOTHING, Work

FUNCTIONAL = "(functional)"


def profile_ops(
    model: nn.Module, shape: Any = None, *, inputs: Any = None, optimizer: optimizers.Factory | None = None
) -> OperationProfile:
    """Count the operations and bytes of ``model`` for one input: forward, backward and optimizer, layer by layer.

    ``shape`` is the shape of one tensor, of the type of the model's floating-point parameters (float32 where it has
    none), or the inputs themselves; ``inputs`` is a tensor, a tuple of positional arguments or a mapping of
    keyword arguments, nested as the forward wants them; without either, the shape is the model's own
    ``example_shape``. ``optimizer`` is a ``torch.optim`` class or a function from a
    list of parameters to an optimizer; without one that phase is 0.

    Nothing is computed: the forward runs on shapes (torch's meta device), with the model's own mode, and the model
    comes back as it was. Two columns, never mixed:

    * MACs are the multiply-accumulates of convolutions and matrix products, padding included, bias not.
    * FLOPs are 2 a MAC (which pays for a bias added by the same operator) plus the element-wise operations:
      additions, activations, normalisation, softmax, pooling, by :func:`convention_table`.

    Backward is the gradient of a loss on all outputs with respect to the parameters that need one: the input needs
    none, frozen parameters and what lies before the first trainable one get none, and gradients that meet are added.
    What a checkpoint would compute again is not in it; a reentrant one hides its parameters, so the optimizer is then
    taken to step on all that need a gradient. Bytes: each operator reads its operands and writes its result
    once; views are free; types are those of the model and its inputs, since autocast does not reach shapes. The
    optimizer's step is its second (its state exists), per parameter: SGD 2 FLOP, with momentum 4, Adam 13, AdamW 14,
    counted from the operators that it runs; its MACs are 0.

    Raises TypeError for a model or optimizer of the wrong kind, ValueError for inputs that are none, and
    :class:`ForwardError` where the forward cannot be followed (a wrong shape, an exception of its own, a step that
    needs values). Lesson 07.
    """
    model = checked_model(model)
    if optimizer is not None:
        optimizers.check_optimizer(optimizer)
    with torch.inference_mode(False), preserved(model):
        arguments = as_arguments(model, shape, inputs)
        trace = Trace(model)
        try:
            with trace.recording():
                outputs = model(*arguments.positional, **arguments.named)
        except Exception as error:
            raise explained(error, model, trace, arguments) from error
        reached = backward.reached(outputs, trace)
        trained = [p for p in model.parameters() if reached.trains(p, trace.stand_in(p))]
        tally = _Tally(trace, reached)
        if optimizer is not None:
            places = [trace.parameter_owner[id(p)] for p in trained]
            tally.add_optimizer(optimizers.optimizer_calls(trained, places, optimizer))
    given = described((*arguments.positional, *arguments.named.values()))
    return _profile(model, given, _name_of(optimizer), trace, tally)


def _name_of(optimizer: Any) -> str | None:
    if optimizer is None:
        return None
    return optimizer.__name__ if isinstance(optimizer, type) else "given by a function"


@dataclass
class _Costs:
    """Work of the three phases, and what the lecture would have counted (None: it has no rule)."""

    forward: Work = NOTHING
    backward: Work = NOTHING
    optimizer: Work = NOTHING
    lecture: int | None = 0

    @property
    def is_something(self) -> bool:
        return self.lecture is None or any((*self.forward, *self.backward, *self.optimizer))

    def add(self, other: _Costs) -> None:
        for phase in ("forward", "backward", "optimizer"):
            work = getattr(other, phase)
            if work is not NOTHING:
                setattr(self, phase, getattr(self, phase) + work)
        self.lecture = None if self.lecture is None or other.lecture is None else self.lecture + other.lecture


@dataclass
class _Tally:
    """The sums over a trace, by module and by operator."""

    trace: Trace
    reached: backward.Reached
    modules: dict[int, _Costs] = field(default_factory=lambda: defaultdict(_Costs))
    operators: dict[tuple[str, str, str], tuple[int, Work]] = field(default_factory=dict)
    known: dict[tuple, _Costs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for (name, _), calls in self.trace.free.items():
            self._note(name, "forward", "free", NOTHING, calls)
        for call in self.trace.calls:
            self._add_call(call)
        for item in self.reached.accumulations:
            moved = item.additions * item.elements * item.itemsize
            work = Work(flops=item.additions * item.elements, input_bytes=2 * moved, output_bytes=moved)
            self.modules[item.owner].add(_Costs(backward=work))
            self._note("gradient accumulation", "backward", "counted", work, item.additions)
        for name, calls in self.reached.custom.items():
            self._note(name, "backward", "not counted", NOTHING, calls)

    def _add_call(self, call: Call) -> None:
        costs = self._costs(call)
        if costs is None:
            self.modules[call.owner].add(_Costs(lecture=None))
            self._note(call.operator, "forward", "not counted", NOTHING)
            return
        self._note(call.operator, "forward", "counted", costs.forward)
        if call.needs_grad and (call.sequence is None or call.sequence in self.reached.sequences):
            self._note(call.operator, "backward", "counted", costs.backward)
        elif costs.backward != NOTHING:
            costs = replace(costs, backward=NOTHING)
        self.modules[call.owner].add(costs)

    def _costs(self, call: Call) -> _Costs | None:
        """Return the work of a call, worked out once for all calls of this profile with the same shapes."""
        rule = formulas.rule_for(call.name)
        if rule is None:
            return None
        costs = self.known.get(call.key)
        if costs is None:
            costs = self.known[call.key] = _Costs(rule.forward(call), rule.backward(call), NOTHING,
                                                  _lecture_operations(call))  # fmt: skip
        return costs

    def add_optimizer(self, calls: list[Call]) -> None:
        """Add the operators of an optimizer's step."""
        for call in calls:
            rule = formulas.rule_for(call.name)
            work = rule.forward(call) if rule else NOTHING
            self.modules[call.owner].add(_Costs(optimizer=work))
            self._note(call.operator, "optimizer", "counted" if rule else "not counted", work)

    def _note(self, name: str, phase: str, treatment: str, work: Work, calls: int = 1) -> None:
        before, total = self.operators.get((name, phase, treatment), (0, NOTHING))
        self.operators[name, phase, treatment] = (before + calls, total + work)

    @property
    def coverage(self) -> float:
        every = sum(calls for calls, _ in self.operators.values())
        missing = sum(calls for (*_, treatment), (calls, _) in self.operators.items() if treatment == "not counted")
        return 1 - missing / every if every else 1.0


def _lecture_operations(call: Call) -> int | None:
    """Count one operator by the lecture's rules; None where it has none (it counts no element-wise addition)."""
    if call.name == "convolution":
        return formulas.rule_for(call.name).forward(call).macs + call.output.numel
    if call.name in ("addmm", "mm"):
        return formulas.rule_for(call.name).forward(call).macs
    if call.name == "relu":
        return 2 * call.output.numel
    if "pool" in call.name:
        return 3 * call.output.numel
    is_only_moved = call.name in conventions.FILL or call.name in conventions.COPY
    return 0 if is_only_moved or all(spec.kind == "i" for spec in call.outputs) else None


def _profile(model: nn.Module, given: str, optimizer: str | None, trace: Trace, tally: _Tally) -> OperationProfile:
    layers = _layers(trace, tally)
    operators = [_operator_row(*key, *counted) for key, counted in tally.operators.items()]
    whole = layers[0]
    return OperationProfile(
        model=type(model).__name__,
        input=given,
        training=model.training,
        parameters=whole.parameters,
        forward_macs=whole.forward_macs,
        forward_useful_macs=whole.forward_useful_macs,
        forward_flops=whole.forward_flops,
        forward_read_bytes=whole.forward_read_bytes,
        forward_written_bytes=whole.forward_written_bytes,
        forward_flops_per_byte=whole.forward_flops_per_byte,
        backward_macs=whole.backward_macs,
        backward_useful_macs=whole.backward_useful_macs,
        backward_flops=whole.backward_flops,
        backward_read_bytes=whole.backward_read_bytes,
        backward_written_bytes=whole.backward_written_bytes,
        backward_flops_per_byte=whole.backward_flops_per_byte,
        optimizer=optimizer,
        optimizer_flops=whole.optimizer_flops,
        optimizer_read_bytes=whole.optimizer_read_bytes,
        optimizer_written_bytes=whole.optimizer_written_bytes,
        coverage=tally.coverage,
        not_counted=tuple(sorted(name for name, _, treatment in tally.operators if treatment == "not counted")),
        layers=layers,
        operators=tuple(sorted(operators, key=lambda row: (-row.flops, row.operator, row.phase))),
    )


def _operator_row(name: str, phase: str, treatment: str, calls: int, work: Work) -> OperatorOperations:
    return OperatorOperations(
        operator=name,
        phase=phase,
        treatment=treatment,
        calls=calls,
        macs=work.macs,
        flops=work.flops,
        read_bytes=work.input_bytes + work.weight_bytes,
        written_bytes=work.output_bytes,
        flops_per_byte=_intensity(work),
    )


def _layers(trace: Trace, tally: _Tally) -> tuple[LayerOperations, ...]:
    """Return the rows in the order of the modules, each followed by its children."""
    children: dict[str, list[str]] = defaultdict(list)
    rows = {path: row for row, path in enumerate(trace.paths)}
    for path in trace.paths:
        if path:
            children[_parent(path, rows)].append(path)
    made: list[LayerOperations] = []

    def visit(path: str, depth: int) -> _Costs:
        row = rows[path]
        own, total, place = tally.modules.get(row, _Costs()), _Costs(), len(made)
        made.append(None)
        for child in children[path]:
            total.add(visit(child, depth + 1))
        if children[path] and own.is_something:
            name = f"{path}.{FUNCTIONAL}" if path else FUNCTIONAL
            made.append(_layer_row(name, "operators", depth + 1, trace.module_calls[row], 0, own))
        total.add(own)
        module = trace.modules[row]
        parameters = sum(p.numel() for p in module.parameters())
        made[place] = _layer_row(path, type(module).__name__, depth, trace.module_calls[row], parameters, total)
        return total

    visit("", 0)
    return tuple(made)


def _parent(path: str, rows: Mapping[str, int]) -> str:
    parent = path.rpartition(".")[0]
    while parent and parent not in rows:
        parent = parent.rpartition(".")[0]
    return parent


def _layer_row(path: str, kind: str, depth: int, calls: int, parameters: int, costs: _Costs) -> LayerOperations:
    ahead, back, step = costs.forward, costs.backward, costs.optimizer
    return LayerOperations(
        layer=path,
        kind=kind,
        depth=depth,
        calls=calls,
        parameters=parameters,
        forward_macs=ahead.macs,
        forward_useful_macs=ahead.useful_macs,
        forward_flops=ahead.flops,
        input_bytes=ahead.input_bytes,
        weight_bytes=ahead.weight_bytes,
        output_bytes=ahead.output_bytes,
        forward_flops_per_byte=_intensity(ahead),
        backward_macs=back.macs,
        backward_useful_macs=back.useful_macs,
        backward_flops=back.flops,
        backward_read_bytes=back.input_bytes + back.weight_bytes,
        backward_written_bytes=back.output_bytes,
        backward_flops_per_byte=_intensity(back),
        optimizer_flops=step.flops,
        optimizer_read_bytes=step.input_bytes + step.weight_bytes,
        optimizer_written_bytes=step.output_bytes,
        lecture_operations=costs.lecture,
    )


def _intensity(work: Work) -> float | None:
    """Return the arithmetic intensity in FLOP a byte, None where nothing is moved."""
    moved = work.input_bytes + work.weight_bytes + work.output_bytes
    return work.flops / moved if moved else None
