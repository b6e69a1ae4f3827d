"""Sums over recorded operators, by module and by operator, and the profile that is made of them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from torch import nn

from helpers import trees
from helpers.operations import (
    _backward as backward,
    _conventions as conventions,
    _formulas as formulas,
)
from helpers.operations._report import (
    PHASES,
    LayerOperations,
    LayerOperator,
    OperationProfile,
    OperatorOperations,
)
from helpers.operations._specs import NOTHING, Call, Operator, Work
from helpers.operations._trace import OperatorTrace
from helpers.results import derived

_get_work_amounts = attrgetter("macs", "flops", "read_bytes", "written_bytes", "flops_per_byte")
# The fields of a module's row that are amounts of one phase, and how its costs tell them.
_AMOUNT_GETTERS = {
    field.name: attrgetter(field.name.replace("_", ".", 1))
    for field in dataclasses.fields(LayerOperations)
    if field.name.startswith(PHASES)
}
# How torch.library names the function that it makes of the backward of an operator of one's own.
_LIBRARY_BACKWARD_PREFIX = "GeneratedBackwardFor_"
GroupSums = dict["CallGroup", tuple[int, Work]]


@dataclasses.dataclass
class _Costs:
    """Work of the three phases, and the lecture's count (None: it has no rule)."""

    forward: Work = NOTHING
    backward: Work = NOTHING
    optimizer: Work = NOTHING
    lecture: int | None = 0

    @property
    def is_nonzero(self) -> bool:
        return self.lecture is None or any((*self.forward, *self.backward, *self.optimizer))

    def add(self, costs: _Costs) -> None:
        for phase in PHASES:
            self.add_work(phase, getattr(costs, phase))
        self.lecture = _sum_or_none(self.lecture, costs.lecture)

    def add_work(self, phase: str, work: Work) -> None:
        if work is not NOTHING:
            setattr(self, phase, getattr(self, phase) + work)


def _sum_or_none(first: int | None, second: int | None) -> int | None:
    """Return the sum of two counts, None where one of them is not known."""
    return None if first is None or second is None else first + second


class CallGroup(NamedTuple):
    """The key of a sum: the calls of one operator by one module, in one phase."""

    owner: int
    operator: str
    phase: str
    treatment: str


class PricedCall(NamedTuple):
    """The cost of one call, as of every call of its kind: its work and that of its gradient, None
    without a rule.
    """

    operator: str
    may_multiply: bool
    forward: Work | None
    gradient: Work | None
    lecture: int | None
    is_registered: bool


class Tally:
    """The sums, by module and by operator: ``sums_by_group`` has calls and work of each."""

    def __init__(self) -> None:
        self.sums_by_group: GroupSums = {}
        self.lecture: dict[int, int | None] = defaultdict(int)
        self.may_hold_products: set[str] = set()
        self._priced: dict[tuple, PricedCall] = {}

    def price(self, call: Call) -> PricedCall:
        """Return the cost of a call, the same object for each of its kind."""
        key, rule = call.key, formulas.rule_for(call.name)
        priced_call = self._priced.get((key, rule))
        if priced_call is None:
            forward = rule.forward(call) if rule else None
            gradient = rule.backward(call) if rule else None
            lecture = _lecture_operations(call, rule) if rule else None
            priced_call = self._priced[key, rule] = PricedCall(
                call.operator,
                call.may_multiply,
                forward,
                gradient,
                lecture,
                formulas.is_registered(call.name),
            )
        return priced_call

    def add_gradient(self, call: PricedCall, owner: int) -> None:
        """Add the gradient of an operator."""
        self._add(call, owner, "backward", call.gradient)

    def add_executed(self, call: PricedCall, owner: int, phase: str) -> None:
        """Add an operator that a phase runs itself, in the module ``owner``."""
        if phase == "forward":
            self._add_lecture(owner, call.lecture)
        self._add(call, owner, phase, call.forward)

    def add_unknown(self, operator: Operator, owner: int, phase: str) -> None:
        """Add a call of which nothing is known but its operator."""
        if operator.may_multiply:
            self.may_hold_products.add(operator.text)
        self.add_to_group(CallGroup(owner, operator.text, phase, "not counted"), NOTHING)

    def add_accumulation(self, owner: int, additions: int, elements: int, itemsize: int) -> None:
        """Add gradients that meet."""
        moved_bytes = additions * elements * itemsize
        work = Work(
            flops=additions * elements, input_bytes=2 * moved_bytes, output_bytes=moved_bytes
        )
        self.add_to_group(
            CallGroup(owner, "gradient accumulation", "backward", "counted"), work, additions
        )

    def add_function(
        self, function_tally: Tally, owner: int, times: int = 1, phases: tuple[str, ...] = PHASES
    ) -> None:
        """Add the sums over a function that ``owner`` calls so many times, as if it did it all
        itself.
        """
        for group, (calls, work) in function_tally.sums_by_group.items():
            if group.phase in phases:
                total = work if times == 1 else Work(*(times * amount for amount in work))
                self.add_to_group(group._replace(owner=owner), total, times * calls)
        self.may_hold_products |= function_tally.may_hold_products
        self._add_lecture(owner, None)

    def _add(self, call: PricedCall, owner: int, phase: str, work: Work | None) -> None:
        if work is None and call.may_multiply:
            self.may_hold_products.add(call.operator)
        self.add_to_group(
            CallGroup(owner, call.operator, phase, "not counted" if work is None else "counted"),
            work or NOTHING,
        )

    def _add_lecture(self, owner: int, operations: int | None) -> None:
        self.lecture[owner] = _sum_or_none(self.lecture[owner], operations)

    def add_to_group(self, group: CallGroup, work: Work, calls: int = 1) -> None:
        """Add calls and work to a group."""
        calls_before, total = self.sums_by_group.get(group, (0, NOTHING))
        self.sums_by_group[group] = (
            calls_before + calls,
            total + work if work is not NOTHING else total,
        )

    def costs(self) -> dict[int, _Costs]:
        """Return the costs of each module itself, without those of the modules inside it."""
        modules: dict[int, _Costs] = defaultdict(_Costs)
        for owner, operations in self.lecture.items():
            modules[owner].lecture = operations
        for group, (_, work) in self.sums_by_group.items():
            modules[group.owner].add_work(group.phase, work)
        return modules

    def operators(self) -> list[OperatorOperations]:
        """Return the rows of the operators, the dearest first."""
        sums: dict[tuple[str, str, str], tuple[int, Work]] = defaultdict(lambda: (0, NOTHING))
        for group, (calls, work) in self.sums_by_group.items():
            key = group[1:]  # without the owner
            calls_before, total = sums[key]
            sums[key] = calls_before + calls, total + work
        rows = [
            OperatorOperations(*key, calls, *_get_work_amounts(work))
            for key, (calls, work) in sums.items()
        ]
        return sorted(rows, key=lambda row: (-row.flops, row.operator, row.phase))

    def layer_operators(self, names: Mapping[int, str]) -> list[LayerOperator]:
        """Return the rows of the operators of each layer, without the free ones."""
        order = {owner: position for position, owner in enumerate(names)}
        sums = sorted(
            self.sums_by_group.items(),
            key=lambda item: (order[item[0].owner], item[0].operator, item[0].phase),
        )
        return [
            LayerOperator(names[group.owner], *group[1:], calls, *_get_work_amounts(work))
            for group, (calls, work) in sums
            if group.treatment != "free"
        ]


def sum_trace(trace: OperatorTrace, backward_pass: backward.BackwardPass) -> Tally:
    """Return the sums over a forward pass, and over the gradients that ``backward_pass`` visits."""
    tally, custom_nodes = Tally(), dict(backward_pass.custom)
    library_node_ids = {
        node_id
        for node_id, (name, _) in custom_nodes.items()
        if name.startswith(_LIBRARY_BACKWARD_PREFIX)
    }
    for (name, owner), count in trace.zero_cost_calls.items():
        tally.add_to_group(CallGroup(owner, name, "forward", "free"), NOTHING, count)
    for call in trace.calls:
        priced_call = tally.price(call)
        tally.add_executed(priced_call, call.owner, "forward")
        node_id = call.node_id
        if node_id is not None and node_id in library_node_ids and priced_call.is_registered:
            library_node_ids.remove(node_id)
            del custom_nodes[node_id]
            tally.add_gradient(priced_call, call.owner)
        elif call.needs_grad and (node_id is None or node_id in backward_pass.visited_node_ids):
            tally.add_gradient(priced_call, call.owner)
    for accumulation in backward_pass.accumulations:
        tally.add_accumulation(*accumulation)
    harmless_node_ids = {
        call.node_id for call in trace.calls if "::" in call.name and not call.may_multiply
    }
    for node_id, (name, calls) in custom_nodes.items():
        owner = trace.owner_of.get(node_id, 0)
        for call in calls or ():
            tally.add_executed(tally.price(call), owner, "backward")
        if calls is None:
            tally.add_to_group(CallGroup(owner, name, "backward", "not counted"), NOTHING)
            if node_id not in harmless_node_ids & library_node_ids:
                tally.may_hold_products.add(name)
    for recurrence in trace.recurrences:
        used_results = sorted(backward_pass.recurrences.get(id(recurrence), set()))
        for times, short_trace, outputs in recurrence.shares:
            function_tally = sum_trace(
                short_trace,
                backward.walk_graph(
                    [outputs[result_index] for result_index in used_results], short_trace
                ),
            )
            tally.add_function(function_tally, recurrence.owner, times)
    return tally


def _lecture_operations(call: Call, rule: formulas.Rule) -> int | None:
    """Count one operator by the lecture's rules; None where it has none (it counts no element-wise
    addition).
    """
    if call.name == "convolution":
        return rule.forward(call).macs + call.output.numel
    if call.name in ("addmm", "mm"):
        return rule.forward(call).macs
    if call.name == "relu":
        return 2 * call.output.numel
    if "pool" in call.name:
        return 3 * call.output.numel
    is_only_moved = call.name in conventions.FILL or call.name in conventions.COPY
    return 0 if is_only_moved or all(spec.kind == "i" for spec in call.outputs) else None


def build_profile(
    trace: OperatorTrace, tally: Tally, input_text: str, optimizer: str | None
) -> OperationProfile:
    """Return the profile of a trace and its sums, for inputs that ``input_text`` describes."""
    layers, names = _layers(trace, tally.costs())
    operators = tally.operators()
    return derived(
        OperationProfile,
        layers[0],
        model=type(trace.modules[0]).__name__,
        input=input_text,
        training=trace.modules[0].training,
        optimizer=optimizer,
        not_counted=tuple(
            sorted({row.operator for row in operators if row.treatment == "not counted"})
        ),
        may_hold_products=tuple(sorted(tally.may_hold_products)),
        random_draws=tuple(sorted(trace.draws)),
        attention_taken_apart=tuple(sorted(trace.attention)),
        layers=layers,
        operators=tuple(operators),
        layer_operators=tuple(tally.layer_operators(names)),
    )


def _layers(
    trace: OperatorTrace, costs: Mapping[int, _Costs]
) -> tuple[tuple[LayerOperations, ...], dict[int, str]]:
    """Return the rows in the order of the modules, each followed by its children, and where each
    module's own stand.
    """
    children = trees.children_of(trace.paths)
    row_of_path = {path: row for row, path in enumerate(trace.paths)}
    layer_rows: list[
        LayerOperations | None
    ] = []  # a module stands before its children, whose sum it is
    names: dict[int, str] = {}
    parameters_of = _parameters_by_module(trace.modules)

    def visit(path: str, depth: int) -> _Costs:
        row = row_of_path[path]
        own_costs, total, position = costs.get(row, _Costs()), _Costs(), len(layer_rows)
        module, calls = trace.modules[row], trace.module_calls[row]
        layer_rows.append(None)
        names[row] = path
        for child in children[path]:
            total.add(visit(child, depth + 1))
        if children[path] and own_costs.is_nonzero:
            names[row] = f"{path}.{trees.FUNCTIONAL}" if path else trees.FUNCTIONAL
            layer_rows.append(
                _layer_row(
                    own_costs,
                    layer=names[row],
                    kind="operators",
                    depth=depth + 1,
                    calls=calls,
                    parameters=0,
                    output_shape="",
                )
            )
        total.add(own_costs)
        parameters = sum(parameters_of[id(module)].values())
        layer_rows[position] = _layer_row(
            total,
            layer=path,
            kind=type(module).__name__,
            depth=depth,
            calls=calls,
            parameters=parameters,
            output_shape=trace.outputs.get(row, ""),
        )
        return total

    visit("", 0)
    return tuple(row for row in layer_rows if row is not None), names


def _parameters_by_module(modules: Sequence[nn.Module]) -> dict[int, dict[int, int]]:
    """Return, by a module's id, the sizes of the parameters in it, each once, by their ids.

    A module asked for its parameters goes through all that is inside it: for each of them that is
    the depth times over.
    """
    sizes: dict[int, dict[int, int]] = {}

    def visit(module: nn.Module) -> dict[int, int]:
        if id(module) not in sizes:
            module_sizes = sizes[id(module)] = {
                id(value): value.numel()
                for value in module._parameters.values()
                if value is not None
            }
            for child in module._modules.values():
                if child is not None:
                    module_sizes |= visit(child)
        return sizes[id(module)]

    for module in modules:
        visit(module)
    return sizes


def _layer_row(costs: _Costs, **fields: Any) -> LayerOperations:
    """Return a module's row: ``fields`` are those that its costs do not have."""
    fields |= {name: amount(costs) for name, amount in _AMOUNT_GETTERS.items()}
    return derived(LayerOperations, costs.forward, lecture_operations=costs.lecture, **fields)
