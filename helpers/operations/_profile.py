"""Count the operations of a model: the forward is followed on shapes, the rest is derived from its record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from helpers import _trees as trees, steps
from helpers._checks import boolean, one_of
from helpers.operations import _backward as backward, _conventions as conventions, _formulas as formulas
from helpers.operations._known import OnShapes
from helpers.operations._optimizer import optimizer_calls
from helpers.operations._report import LayerOperations, LayerOperator, OperationProfile, OperatorOperations
from helpers.operations._specs import META, NOTHING, Call, Work
from helpers.operations._trace import Recurrence, Trace
from helpers.results import derived
from helpers.steps import ForwardError as ForwardError, ModelError as ModelError

_PHASES = ("forward", "backward", "optimizer")
_AMOUNTS = ("macs", "useful_macs", "flops", "read_bytes", "written_bytes", "flops_per_byte")
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
# How torch.library names the function that it makes of the backward of an operator of one's own.
_OF_LIBRARY = "GeneratedBackwardFor_"


def profile_ops(
    model: nn.Module,
    inputs: steps.Inputs = None,
    *,
    shape: steps.Inputs = None,
    optimizer: steps.OptimizerFactory | None = None,
    inputs_need_grad: bool = False,
    values: bool = False,
) -> OperationProfile:
    """Count the operations and bytes of ``model`` for one input: forward, backward and optimizer, layer by layer.

    ``inputs`` (or ``shape``) is as in :mod:`helpers.steps`, nested as the forward wants it:
    ``profile_ops(model, (1, 3, 224, 224))``, ``profile_ops(model, dict(tokenizer(text)))``. ``optimizer`` is a
    ``torch.optim`` class or a function from a list of parameters to an optimizer; without one that phase is 0.

    Nothing is computed: the forward runs on shapes (torch's meta device), with the model's own mode, and the model
    comes back as it was. Integer and boolean inputs of up to 262,144 elements keep their values, and so does what
    follows from them alone: a mask can be asked whether it masks anything, a length can end a loop; an activation that
    is asked whether it is a finite number says yes. Where the forward
    needs other values (detection, routed experts), ``values=True`` runs it once on real tensors, on the model's
    device and under the same rules; from a ``shape`` it draws them from a normal distribution, always the same.

    Two columns, never mixed:

    * MACs are the multiply-accumulates of convolutions and matrix products, padding included, bias not.
    * FLOPs are 2 a MAC (which pays for a bias added by the same operator) plus the element-wise operations:
      additions, activations, normalisation, softmax, pooling, by :func:`convention_table`.

    Backward is the gradient of a loss on all outputs with respect to the parameters that need one; the inputs need
    none unless ``inputs_need_grad`` (a stage of a pipeline, a generator). Frozen parameters and what lies before the
    first trainable one get none, and gradients that meet are added.
    What a checkpoint would compute again is not in it; a reentrant one hides its parameters, so the optimizer is then
    taken to step on all that need a gradient. Bytes: each operator reads its operands and writes its result
    once; views are free; types are those of the model and its inputs, since autocast does not reach shapes. The
    optimizer's step is its second (its state exists), per parameter: SGD 2 FLOP, with momentum 4, Adam 13, AdamW 14,
    counted from the operators that it runs; its MACs are 0.

    An operator without a rule is named in ``not_counted``, and the totals then say "at least"; :func:`register` gives
    it one. A count that depends on a random draw says so.

    Raises TypeError or ValueError for an argument that is not accepted, ModelError for a model that hides its layers
    or has none yet (TorchScript, quantised, lazy), and of its kinds :class:`ForwardError` where the forward cannot be
    followed (a wrong shape, an exception of its own, a step that needs values). Lesson 11.
    """
    boolean("inputs_need_grad", inputs_need_grad)
    boolean("values", values)
    model = _unwrapped(model)
    steps.check_model(model, compiled=True)
    given = steps.arguments_of(model, inputs, shape)
    steps.check_optimizer(optimizer)
    for name, flag in (("values", values), ("inputs_need_grad", inputs_need_grad)):
        one_of(name, flag, bool, "True or False")
    if values:
        _check_values(model)
    with torch.inference_mode(False), nullcontext() if values else steps.nothing_left(model), steps.preserved(model):
        return _counted(model, given, Trace(model) if values else OnShapes(model), optimizer, inputs_need_grad)


def _counted(
    model: nn.Module, given: steps.Arguments, trace: Trace, optimizer: steps.OptimizerFactory | None, need_grad: bool
) -> OperationProfile:
    arguments = _stand_ins(model, given, trace, need_grad=need_grad)
    try:
        with steps.in_one_thread(model), trace.recording():
            outputs = model(*arguments.positional, **arguments.named)
    except Exception as error:
        raise _explained(error, model, trace, arguments, given.is_from_shape) from error
    if not steps.tensors_of(outputs):
        raise steps.ModelError(
            f"the model returned {type(outputs).__name__} without a tensor, so that nothing is known of its backward; "
            "return what it computes, in any container or object"
        )
    reached = backward.reached(outputs, trace)
    trained = [p for p in model.parameters() if reached.trains(p, trace.stand_in(p))]
    tally = _Tally(trace, reached)
    if optimizer is not None:
        places = [trace.parameter_owner[id(p)] for p in trained]
        tally.add_optimizer(optimizer_calls(trained, places, optimizer))
    shown = steps.described((*arguments.positional, arguments.named))
    return _profile(model, shown, _name_of(optimizer), trace, tally)


def _unwrapped(model: Any) -> Any:
    """Return the module inside the wrapper of torch.compile or DataParallel, else ``model`` itself."""
    inside = model.module if isinstance(model, _WRAPPERS) else getattr(model, "_orig_mod", None)
    return _unwrapped(inside) if isinstance(inside, nn.Module) else model


def _check_values(model: nn.Module) -> None:
    """Raise ValueError where a model cannot run on real tensors."""
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError("values=True runs the forward on real tensors, and the model is on meta, which holds none; "
                         "make the model on the CPU, or count it without values=True")  # fmt: skip


def _stand_ins(model: nn.Module, given: steps.Arguments, trace: Trace, *, need_grad: bool) -> steps.Arguments:
    """Return what computes in place of what the caller gave; shapes become tensors of the model's type."""
    is_real = type(trace) is Trace

    def stand_in(leaf: Any) -> torch.Tensor:
        if isinstance(leaf, steps.Shape) and is_real:
            drawn = steps.zeros_of(leaf, torch.float32, "cpu").normal_(generator=torch.Generator().manual_seed(0))
            device = next((parameter.device for parameter in model.parameters()), None)
            leaf = drawn.to(device, steps.dtype_of(model))
        elif isinstance(leaf, steps.Shape):
            leaf = steps.zeros_of(leaf, steps.dtype_of(model), META)
        return trace.stand_in_of_input(leaf, needs_grad=need_grad)

    return given.replaced(stand_in)


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
        for phase in _PHASES:
            work = getattr(other, phase)
            if work is not NOTHING:
                setattr(self, phase, getattr(self, phase) + work)
        self.lecture = None if self.lecture is None or other.lecture is None else self.lecture + other.lecture


class _Cell(NamedTuple):
    """What is summed up by itself: the calls of one operator by one module, in one phase."""

    owner: int
    operator: str
    phase: str
    treatment: str


class _Tally:
    """The sums over a trace, by module and by operator."""

    def __init__(self, trace: Trace, reached: backward.Reached) -> None:
        self.trace, self.reached = trace, reached
        self.cells: dict[_Cell, tuple[int, Work]] = {}
        self.lecture: dict[int, int | None] = defaultdict(int)
        self.may_hold_products: set[str] = set()
        self._known: dict[tuple, tuple[Work, Work, int | None]] = {}
        self._custom = dict(reached.custom)
        for (name, owner), calls in trace.free.items():
            self._note(_Cell(owner, name, "forward", "free"), NOTHING, calls)
        for call in trace.calls:
            self._add_call(call)
        for item in reached.accumulations:
            moved = item.additions * item.elements * item.itemsize
            work = Work(flops=item.additions * item.elements, input_bytes=2 * moved, output_bytes=moved)
            self._note(_Cell(item.owner, "gradient accumulation", "backward", "counted"), work, item.additions)
        harmless = {call.sequence for call in trace.calls if "::" in call.name and not call.may_multiply}
        for sequence, (name, calls) in self._custom.items():
            owner = trace.owner_of.get(sequence, 0)
            for call in calls or ():
                self._add_executed(call, owner, "backward")
            if calls is None:
                self._note(_Cell(owner, name, "backward", "not counted"), NOTHING)
            if calls is None and (sequence not in harmless or not name.startswith(_OF_LIBRARY)):
                self.may_hold_products.add(name)
        for recurrence in trace.recurrences:
            self._add_recurrence(recurrence, reached.recurrences.get(id(recurrence), set()))

    def _add_call(self, call: Call) -> None:
        rule = formulas.rule_for(call.name)
        is_reached = call.needs_grad and (call.sequence is None or call.sequence in self.reached.sequences)
        if rule is None:
            self._add_lecture(call.owner, None)
            for phase in ("forward", "backward")[: 1 + is_reached]:
                self._note(_Cell(call.owner, call.operator, phase, "not counted"), NOTHING)
            if call.may_multiply:
                self.may_hold_products.add(call.operator)
            return
        if call.key not in self._known:
            self._known[call.key] = rule.forward(call), rule.backward(call), _lecture_operations(call)
        ahead, back, lecture = self._known[call.key]
        self._add_lecture(call.owner, lecture)
        self._note(_Cell(call.owner, call.operator, "forward", "counted"), ahead)
        custom = self._custom.get(call.sequence)
        if custom and custom.name.startswith(_OF_LIBRARY) and formulas.is_registered(call.name):
            is_reached = bool(self._custom.pop(call.sequence))
        if is_reached:
            self._note(_Cell(call.owner, call.operator, "backward", "counted"), back)

    def _add_lecture(self, owner: int, operations: int | None) -> None:
        before = self.lecture[owner]
        self.lecture[owner] = None if before is None or operations is None else before + operations

    def _add_recurrence(self, recurrence: Recurrence, used: set[int]) -> None:
        """Add the short sequences as often as they count; ``used`` are the results from which the backward comes."""
        total: dict[_Cell, tuple[int, Work]] = defaultdict(lambda: (0, NOTHING))
        for times, trace, outputs in recurrence.shares:
            short = _Tally(trace, backward.reached([outputs[place] for place in sorted(used)], trace))
            for cell, (calls, work) in short.cells.items():
                before, sums = total[cell]
                total[cell] = before + times * calls, sums + tuple(times * amount for amount in work)
            self.may_hold_products |= short.may_hold_products
        for cell, (calls, work) in total.items():
            self._note(cell._replace(owner=recurrence.owner), work, calls)
        self._add_lecture(recurrence.owner, None)

    def add_optimizer(self, calls: list[Call]) -> None:
        """Add the operators of an optimizer's step."""
        for call in calls:
            self._add_executed(call, call.owner, "optimizer")

    def _add_executed(self, call: Call, owner: int, phase: str) -> None:
        """Add an operator that the backward pass or the optimizer runs itself."""
        rule = formulas.rule_for(call.name)
        cell = _Cell(owner, call.operator, phase, "counted" if rule else "not counted")
        self._note(cell, rule.forward(call) if rule else NOTHING)
        if rule is None and call.may_multiply:
            self.may_hold_products.add(call.operator)

    def _note(self, cell: _Cell, work: Work, calls: int = 1) -> None:
        before, total = self.cells.get(cell, (0, NOTHING))
        self.cells[cell] = before + calls, total + work if work is not NOTHING else total

    def costs(self) -> dict[int, _Costs]:
        """Return the costs of each module itself, without what is inside it."""
        modules: dict[int, _Costs] = defaultdict(_Costs)
        for owner, operations in self.lecture.items():
            modules[owner].lecture = operations
        for cell, (_, work) in self.cells.items():
            modules[cell.owner].add(_Costs(**{cell.phase: work}))
        return modules

    def operators(self) -> list[OperatorOperations]:
        """Return the rows of the operators, the dearest first."""
        sums: dict[tuple[str, str, str], tuple[int, Work]] = defaultdict(lambda: (0, NOTHING))
        for (_, *key), (calls, work) in self.cells.items():
            before, total = sums[tuple(key)]
            sums[tuple(key)] = before + calls, total + work
        rows = [
            derived(OperatorOperations, work, operator=operator, phase=phase, treatment=treatment, calls=calls)
            for (operator, phase, treatment), (calls, work) in sums.items()
        ]
        return sorted(rows, key=lambda row: (-row.flops, row.operator, row.phase))

    def layer_operators(self, names: Mapping[int, str]) -> list[LayerOperator]:
        """Return the rows of the operators of each layer; what is free is left out."""
        order = list(names)
        cells = sorted(self.cells, key=lambda cell: (order.index(cell.owner), cell.operator, cell.phase))
        return [
            derived(LayerOperator, cell, self.cells[cell][1], layer=names[cell.owner], calls=self.cells[cell][0])
            for cell in cells
            if cell.treatment != "free"
        ]


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
    layers, names = _layers(trace, tally.costs())
    operators = tally.operators()
    return derived(
        OperationProfile,
        layers[0],
        model=type(model).__name__,
        input=given,
        training=model.training,
        optimizer=optimizer,
        not_counted=tuple(sorted({row.operator for row in operators if row.treatment == "not counted"})),
        may_hold_products=tuple(sorted(tally.may_hold_products)),
        random_draws=tuple(sorted(trace.draws)),
        layers=layers,
        operators=tuple(operators),
        layer_operators=tuple(tally.layer_operators(names)),
    )


def _layers(trace: Trace, costs: Mapping[int, _Costs]) -> tuple[tuple[LayerOperations, ...], dict[int, str]]:
    """Return the rows in the order of the modules, each followed by its children, and where each module's own stand."""
    children = trees.children_of(trace.paths)
    rows = {path: row for row, path in enumerate(trace.paths)}
    made: list[LayerOperations] = []
    names: dict[int, str] = {}

    def visit(path: str, depth: int) -> _Costs:
        row = rows[path]
        own, total, place = costs.get(row, _Costs()), _Costs(), len(made)
        module, calls = trace.modules[row], trace.module_calls[row]
        made.append(None)
        names[row] = path
        for child in children[path]:
            total.add(visit(child, depth + 1))
        if children[path] and own.is_something:
            names[row] = f"{path}.{trees.FUNCTIONAL}" if path else trees.FUNCTIONAL
            made.append(_layer_row(own, layer=names[row], kind="operators", depth=depth + 1, calls=calls, parameters=0,
                                   output_shape=""))  # fmt: skip
        total.add(own)
        parameters = sum(parameter.numel() for parameter in module.parameters())
        made[place] = _layer_row(total, layer=path, kind=type(module).__name__, depth=depth, calls=calls,
                                 parameters=parameters, output_shape=trace.outputs.get(row, ""))  # fmt: skip
        return total

    visit("", 0)
    return tuple(made), names


def _layer_row(costs: _Costs, **own: Any) -> LayerOperations:
    """Return a module's row: ``own`` are the fields that its costs do not have."""
    phases = {phase: getattr(costs, phase) for phase in _PHASES}
    amounts = {f"{phase}_{name}": getattr(work, name) for phase, work in phases.items() for name in _AMOUNTS}
    return derived(LayerOperations, SimpleNamespace(**amounts), costs.forward, lecture_operations=costs.lecture, **own)


def _explained(
    error: Exception, model: nn.Module, trace: Trace, arguments: steps.Arguments, is_from_shape: bool
) -> steps.ForwardError:
    """Return the error to raise: which layer failed, on what input, and what to do."""
    while isinstance(error.__cause__, steps.ForwardError):
        error = error.__cause__
    path, module, given = _place(error, model, trace, arguments)
    where = f"layer {path!r} ({type(module).__name__})" if path else f"the forward of {type(module).__name__}"
    reason = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    if isinstance(error, steps.ForwardError):
        return steps.ForwardError(f"{where}: {reason}")
    if "meta" in reason and not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return steps.ForwardError(f"{where} takes a step that shapes alone cannot follow ({type(error).__name__}); "
                            "pass values=True to run the forward once on real tensors")  # fmt: skip
    message = f"{where} failed on {given}: {type(error).__name__}: {reason}"
    if is_from_shape and any(word in reason for word in ("indices", "Long", "embedding")):
        message += "; a shape makes floating-point input: pass inputs=torch.zeros(shape, dtype=torch.long)"
    elif isinstance(error, NotImplementedError) and isinstance(trace, OnShapes):
        message += "; pass values=True to run the forward once on real tensors"
    elif is_from_shape and isinstance(error, RuntimeError | IndexError | ValueError):
        message += f"; check the shape: the model was given {steps.described(arguments.positional)}"
    elif is_from_shape and isinstance(error, TypeError):
        message += "; a shape makes one tensor, so pass what the forward takes with inputs="
    return steps.ForwardError(message)


def _place(error: Exception, model: nn.Module, trace: Trace, arguments: steps.Arguments) -> tuple[str, nn.Module, str]:
    """Return the innermost module whose forward raised, with its path, and what it was given."""
    place, traceback = ("", model, steps.described((*arguments.positional, arguments.named))), error.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        if frame.f_code is nn.Module._call_impl.__code__:
            module, given = frame.f_locals["self"], (*frame.f_locals["args"], frame.f_locals["kwargs"])
            place = trace.path_of(module), module, steps.described(given)
    return place
