"""Count what really runs: a training loop, several models, code without any, by the rules of
:func:`profile_ops`.

The operators of the forward pass are seen as they run, and so are those of an optimizer's step. Of
the backward pass each node of autograd's graph is seen, and counted by the rule of the operator
that made it; where code stands in it (a custom gradient, a hook, a checkpoint that computes again),
or where the node was made before, the operators that it runs are counted themselves. A fused
attention and a recurrent layer are followed on shapes, for what they stand for.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest import mock

import pandas as pd
import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch.nn import functional
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from helpers.operations import _backward as backward, _tally as tally
from helpers.operations._meta import MetaTrace
from helpers.operations._optimizer import OptimizerRecorder, owners_of_storages, split_foreach
from helpers.operations._report import OperationProfile
from helpers.operations._specs import (
    NOTHING,
    Call,
    Operator,
    are_dense,
    is_dense,
    map_tensors,
    operator_of,
    spec_of,
    storage_of,
    tensors_in,
)
from helpers.operations._trace import OperatorTrace, is_recurrence

_ENGINE = torch.autograd.graph._engine_run_backward.__code__
_NOT_OPERATORS = ("prim", "profiler")  # namespaces that only ask or annotate
_FREE = "free"  # the cost of a node whose operator costs nothing


class OperationCounter:
    """The operations that run inside ``with helpers.count_ops() as ops``, up to now."""

    def __init__(self) -> None:
        self._run = RunningTrace()
        self._open = ExitStack()
        self._is_open = False

    def __enter__(self) -> OperationCounter:
        if self._is_open:
            raise RuntimeError(
                "this count is open already, so its operators would be counted twice; "
                "end that block first, or begin another helpers.count_ops()"
            )
        self._open.enter_context(self._run.recording())
        self._is_open = True
        return self

    def __exit__(self, *error: object) -> None:
        self._is_open = False
        self._open.close()

    def profile(self) -> OperationProfile:
        """Return the sums as a profile: the models that ran are rows, and what ran outside of them
        is its own.
        """
        run = self._run
        for (name, owner), calls in run.zero_cost_calls.items():
            run.tally.sums_by_group[tally.CallGroup(owner, name, "forward", "free")] = (
                calls,
                NOTHING,
            )
        return tally.build_profile(run, run.tally, "", run.optimizer)

    def table(self, by: str = "layer") -> pd.DataFrame:
        """Return a DataFrame of plain numbers, one row a layer (``by="layer"``) or an operator
        (``by="operator"``).
        """
        return self.profile().table(by)

    @property
    def macs(self) -> int:
        """The multiply-accumulates of the forward and the backward passes."""
        return sum(work.macs for _, work in self._run.tally.sums_by_group.values())

    @property
    def flops(self) -> int:
        """The floating-point operations of all phases."""
        return sum(work.flops for _, work in self._run.tally.sums_by_group.values())

    def __str__(self) -> str:
        first, *lines = str(self.profile()).splitlines()
        at_least = "at least " if self._run.tally.may_hold_products else ""
        return "\n".join(
            [first, f"  total     {at_least}{self.macs:,} MAC, {self.flops:,} FLOP", *lines]
        )

    def _repr_html_(self) -> str:
        return self.profile()._repr_html_()


def count_ops() -> OperationCounter:
    """Count the operations and bytes of whatever runs inside a ``with`` block, by the rules of
    :func:`profile_ops`.

    ::

        with helpers.count_ops() as ops:
            for x, y in loader:
                loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        print(ops)

    ``ops.table()``, ``ops.profile()``, ``ops.macs`` and ``print(ops)`` answer at any time, inside
    the block and after it; a second block of the same ``ops`` adds to it. A row is a module that
    ran, by the path in the outermost model that was called; what runs outside of modules is the
    first row's own. Everything runs as it would without, but that what torch.compile has made runs
    as it was written, and attention of modules in evaluation mode takes its plain path: their
    operators could not be seen. What is computed again (a checkpoint) is counted again, in
    "backward". Gradients that are only views move no bytes here, which is where the bytes of a
    backward pass differ from those of :func:`profile_ops`; and what ``torch.autograd.grad``
    computes for some inputs counts as for all that need a gradient. Of torch.func's transformations
    and of batched gradients the operators that run are counted themselves. An operator on a sparse
    or nested tensor runs, and is named in ``not_counted``.

    Seen is the thread of the block, and autograd's. Blocks may overlap, in one thread or in
    several, and end in any order; each counts what runs in its thread until it ends.

    >>> with count_ops() as ops:
    ...     logits = nn.Linear(784, 10)(torch.ones(64, 784))
    >>> ops.macs  # 64 x 784 x 10
    501760
    """
    return OperationCounter()


class _Size:
    """Stands for a parameter in a module that only shows how many parameters there are."""

    def __init__(self, parameter: Tensor) -> None:
        self._elements = parameter.numel()

    def numel(self) -> int:
        return self._elements


@functools.cache
def _empty_class(name: str) -> type[nn.Module]:
    return type(name, (nn.Module,), {})


class RunningTrace(OperatorTrace):
    """The sums over all operators that run, made while they run."""

    def __init__(self) -> None:
        # above the models that run, in the place of the one that profile_ops is given
        super().__init__(_empty_class("count_ops")())
        self.tally = tally.Tally()
        self.optimizer: str | None = None
        self._phase: str | None = "forward"
        self._step: OptimizerRecorder | None = None
        self._is_muted = False
        self._is_executed = False
        self._lazy_rows: set[int] = set()
        # The models are not kept: what is known of them by their ids goes with them.
        self._shadows: dict[int, nn.Module] = {}
        self._sizes: dict[int, _Size] = {}
        self._references: list[weakref.ref] = []
        self._function_tallies: dict[Any, tally.Tally] = {}
        # What is known of the nodes of autograd's graph, by their numbers: a chain of (the one
        # before, cost, owner).
        self._first = torch._C._autograd._get_sequence_nr()
        self._links_of_nodes = array("I")
        self._links: list[tuple[int, Any, int]] = [(0, None, 0)]
        self._link_numbers: dict[tuple[int, int, int], int] = {}
        self._visited: set[tuple[int, int]] = set()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Count the operators that run inside, and change nothing of them."""
        self._thread = threading.get_ident()
        with ExitStack() as stack:
            stack.enter_context(self._record_all())
            stack.callback(register_optimizer_step_pre_hook(self._begin_step).remove)
            stack.callback(register_optimizer_step_post_hook(self._end_step).remove)
            yield

    # The modules and the optimizer.

    def _add_row(self, path: str, module: nn.Module) -> int:
        row = super()._add_row(path, module)
        if row:
            self.modules[row] = self._shadow(module)
        return row

    def _shadow(self, module: nn.Module) -> nn.Module:
        """Return an empty module of the same name, with the sizes of the parameters, which does not
        keep ``module``.
        """
        key = id(module)
        if key not in self._shadows:
            shadow = self._shadows[key] = _empty_class(type(module).__name__)()
            self._forget_with(module, self._shadows, self._rows)
            for name, child in module._modules.items():
                shadow._modules[name] = None if child is None else self._shadow(child)
            self._add_sizes(module)
        return self._shadows[key]

    def _add_sizes(self, module: nn.Module) -> None:
        for name, parameter in module._parameters.items():
            if parameter is None or nn.parameter.is_lazy(parameter):
                continue
            if id(parameter) not in self._sizes:
                self._sizes[id(parameter)] = _Size(parameter)
                self._forget_with(parameter, self._sizes)
            self._shadows[id(module)]._parameters[name] = cast(
                "nn.Parameter", self._sizes[id(parameter)]
            )

    def _add_weight(self, tensor: Tensor, row: int) -> None:
        if not _has_memory(tensor):
            self._lazy_rows.add(row)
        elif id(tensor) not in self.parameter_owner:
            self.parameter_owner[id(tensor)] = row
            storage, weights = storage_of(tensor), self._weights
            weights.add(storage)
            self._forget_with(tensor, self.parameter_owner)
            self._references.append(weakref.ref(tensor, lambda _: weights.discard(storage)))

    def _forget_with(self, referent: Any, *tables: dict[int, Any]) -> None:
        """Let ``referent`` be forgotten at its end: another one may get its id."""
        key = id(referent)

        def forget(_: weakref.ref) -> None:
            for table in tables:
                table.pop(key, None)

        self._references.append(weakref.ref(referent, forget))

    def _adopt(self, module: nn.Module, row: int) -> None:
        self._add_weights(module, row)

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        super()._leave(module, inputs, outputs)
        row = self._rows.get(id(module), 0)
        if row in self._lazy_rows:  # its first call has made its weights
            self._lazy_rows.discard(row)
            self._add_weights(module, row)
            self._add_sizes(module)

    def _new_row(self, module: nn.Module) -> int:
        if len(self._stack) > 1:
            return super()._new_row(module)
        kind, top = type(module).__name__, self.modules[0]
        name = kind if kind not in top._modules else f"{kind} {len(top._modules) + 1}"
        top.add_module(name, self._shadow(module))
        top.training = getattr(module, "training", top.training)  # a frozen script does not say
        for path, inner in module.named_modules():
            if id(inner) not in self._rows:
                self._add_module(f"{name}.{path}".rstrip("."), inner)
        return self._rows[id(module)]

    def _begin_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._is_of_another_thread():
            return
        self.optimizer = type(optimizer).__name__
        self._step = OptimizerRecorder(owners_of_storages(optimizer, self.parameter_owner))

    def _end_step(self, *_: Any) -> None:
        if not self._is_of_another_thread():
            self._step = None

    # The functions of torch, above autograd.

    def function(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        """Call ``func``; a recurrent layer and flex_attention are followed on shapes and not looked
        into.
        """
        if self._is_muted:
            return func(*args, **kwargs)
        self._note_attention(name, kwargs)
        if func is torch.autograd.grad and (
            kwargs.get("is_grads_batched") or _functorch.maybe_current_level()
        ):
            # The operators are counted themselves, of several backward passes at once (torch.vmap)
            # or of a transformation: the nodes of torch.func have no rule of an operator, whose
            # tensors need no gradient outside of it.
            with mock.patch.object(self, "_is_executed", True):
                return func(*args, **kwargs)
        is_followed = is_recurrence(name, args) or name == "flex_attention"
        if not is_followed or not all(map(_has_memory, tensors_in((args, kwargs)))):
            return func(*args, **kwargs)
        function_tally = self._follow(func, args, kwargs)
        first_node_id = torch._C._autograd._get_sequence_nr()
        with mock.patch.object(self, "_is_muted", True):
            result = func(*args, **kwargs)
        self._add_function(
            function_tally, range(first_node_id, torch._C._autograd._get_sequence_nr())
        )
        return result

    def _follow(self, func: Callable[..., Any], args: tuple, kwargs: dict) -> tally.Tally:
        """Return the sums over ``func`` on shapes, and over the gradient of its first result."""
        has_grad = torch.is_grad_enabled()
        key = func, *map_tensors((args, tuple(kwargs.items())), self._spec)
        if key in self._function_tallies:
            return self._function_tallies[key]

        def follow_function() -> tally.Tally:
            trace = MetaTrace(nn.Module())

            def stand_in(tensor: Tensor) -> Tensor:
                meta_tensor = trace.stand_in_of_input(
                    tensor, needs_grad=has_grad and tensor.requires_grad
                )
                if storage_of(tensor) in self._weights:
                    trace._weights.add(storage_of(meta_tensor))
                return meta_tensor

            with trace.recording():
                meta_args, meta_kwargs = map_tensors((args, kwargs), stand_in)
                result = func(*meta_args, **meta_kwargs)
            first_result = result if isinstance(result, Tensor) else result[0]
            return tally.sum_trace(trace, backward.walk_graph(first_result, trace))

        with ThreadPoolExecutor(1) as executor:  # a thread without modes, and with autograd
            self._function_tallies[key] = executor.submit(follow_function).result()
        return self._function_tallies[key]

    def _spec(self, tensor: Tensor) -> Any:
        return spec_of(tensor, self._weights, grad=torch.is_grad_enabled())

    def _add_function(self, function_tally: tally.Tally, node_ids: range) -> None:
        owner = self._stack[-1]
        phases = ("forward",) if self._phase == "forward" else ()
        self.tally.add_function(function_tally, owner, phases=phases)
        cost = function_tally, node_ids.start  # one gradient, whichever of its nodes are met
        for node_id in node_ids if torch.is_grad_enabled() else ():
            self._remember(node_id, cost, owner)

    # The operators, below autograd.

    def operator(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run one operator, and add it, or the gradient that it belongs to."""
        if self._is_muted or func.namespace in _NOT_OPERATORS:
            return func(*args, **kwargs)
        if any(tensor.layout == torch.jagged for tensor in tensors_in((args, kwargs))):
            # it takes the operator apart, into those on its values, which come here
            return NotImplemented
        if torch._C._current_graph_task_id() != -1:
            return self._run_in_backward(func, args, kwargs)
        self._visited.clear()
        if self._step is not None and not torch.is_grad_enabled():
            return self._run_in_step(self._step, func, args, kwargs)
        return self._run_in_forward(func, args, kwargs)

    def _run_in_step(self, step: OptimizerRecorder, func: Any, args: tuple, kwargs: dict) -> Any:
        if not are_dense(args, kwargs):
            return self._add_uncounted(operator_of(func), func(*args, **kwargs), "optimizer")
        result = step.__torch_dispatch__(func, (), args, kwargs)
        for call in step.calls:
            self.tally.add_executed(self.tally.price(call), call.owner, "optimizer")
        step.calls.clear()
        if are_dense(result):
            return result
        return self._add_uncounted(operator_of(func), result, "optimizer")

    def _run_in_forward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        operator = operator_of(func)
        if not are_dense(args, kwargs):
            return self._add_uncounted(operator, func(*args, **kwargs), self._phase)
        if not operator.name.startswith("_scaled_dot_product") or operator.name.endswith(
            "_backward"
        ):
            try:
                return super().operator(func, args, kwargs)
            except _NotDenseError as error:
                return self._add_uncounted(operator, error.result, self._phase)
        names = (argument.name for argument in func._schema.arguments)
        arguments = dict(zip(names, args, strict=False)) | kwargs
        query, key, value = args[:3]
        mask = arguments.get("attn_mask", arguments.get("attn_bias"))
        options = {
            name: arguments[name]
            for name in ("dropout_p", "is_causal", "scale")
            if name in arguments
        }
        options["enable_gqa"] = query.shape[-3] != key.shape[-3]
        function_tally = self._follow(
            functional.scaled_dot_product_attention, (query, key, value, mask), options
        )
        next_node_id = torch._C._autograd._get_sequence_nr()
        has_node = any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
        first_node_id = next_node_id - 1 if has_node else next_node_id
        self._add_function(function_tally, range(first_node_id, next_node_id))
        return func(*args, **kwargs)

    def _run(self, func: Any, _: Operator, args: tuple, kwargs: dict) -> Any:
        result = func(*args, **kwargs)
        if not are_dense(result):
            raise _NotDenseError(result)
        return result

    def _add_uncounted(self, operator: Operator, result: Any, phase: str | None) -> Any:
        """Return the result of an operator on tensors that are not dense; it is named, as one
        without a rule is.
        """
        if phase is not None and not operator.is_free:
            self.tally.add_unknown(operator, self._stack[-1], phase)
        return result

    def _add_call(self, call: Call, operator: Operator) -> None:
        for single_call in split_foreach(call, operator, ()):
            priced_call = self.tally.price(single_call)
            if self._phase is not None:
                self.tally.add_executed(priced_call, call.owner, self._phase)
        if call.needs_grad and call.node_id is not None:
            self._remember(call.node_id, priced_call, call.owner)

    def _add_zero_cost_call(
        self, operator: Operator, args: tuple, owner: int, node_id: int
    ) -> None:
        if self._phase == "forward":
            super()._add_zero_cost_call(operator, args, owner, node_id)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(args)):
            self._remember(node_id, _FREE, owner)

    # What is known of the nodes of autograd's graph: of each one number, which leads to a chain of
    # links.

    def _set_owner(self, node_id: int, owner: int) -> None:
        """Remember who calls a torch.autograd.Function: its forward runs without gradients, after
        its node is made.
        """
        if not torch.is_grad_enabled() and not self._link(node_id):
            self._remember(node_id, None, owner)

    def _link(self, node_id: int) -> int:
        index = node_id - self._first
        return self._links_of_nodes[index] if 0 <= index < len(self._links_of_nodes) else 0

    def _remember(self, node_id: int, cost: Any, owner: int) -> None:
        index, previous_link = node_id - self._first, self._link(node_id)
        if index < 0:
            return
        self._links_of_nodes.extend([0] * (index + 1 - len(self._links_of_nodes)))
        key = (previous_link, id(cost), owner)
        if key not in self._link_numbers:
            self._link_numbers[key] = len(self._links)
            self._links.append((previous_link, cost, owner))
        self._links_of_nodes[index] = self._link_numbers[key]

    def _chain(self, node: Any) -> list[tuple[Any, int]]:
        """Return the costs that are known of a node, by the operators that made it, with their
        owners.
        """
        link, chain = self._link(node._sequence_nr()) if node is not None else 0, []
        while link:
            link, cost, owner = self._links[link]
            chain.append((cost, owner))
        return chain

    def _run_in_backward(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run one operator of a backward pass; add the gradient that it is a part of, or itself
        where code runs it.
        """
        caller, node = sys._getframe(2).f_back, torch._C._current_autograd_node()
        is_engine = caller is None or caller.f_code is _ENGINE
        if is_engine and _is_accumulation(operator_of(func).name, args, kwargs):
            self._add_accumulation(node, args[0])
            return func(*args, **kwargs)
        # what storing a gradient does
        if is_engine and (node is None or hasattr(node, "variable")):
            return func(*args, **kwargs)
        chain = self._chain(node)
        is_known = any(cost is not None for cost, _ in chain)
        is_registered = any(
            isinstance(cost, tally.PricedCall) and cost.is_registered for cost, _ in chain
        )
        is_gradient = is_known and (is_engine or is_registered) and not self._is_executed
        if is_gradient:
            self._add_gradients(node._sequence_nr(), chain)
            if not torch.is_grad_enabled():
                return func(*args, **kwargs)
        is_outside = len(self._stack) == 1
        phase_before, self._phase = self._phase, None if is_gradient else "backward"
        self._stack += [owner for _, owner in chain[:1] if is_outside]
        try:
            return self._run_in_forward(func, args, kwargs)
        finally:
            self._phase = phase_before
            del self._stack[1 if is_outside else len(self._stack) :]

    def _add_accumulation(self, node: Any, gradient: Tensor) -> None:
        """Add a gradient that ``node`` sends and that meets another, but for two within a function
        that is followed.
        """
        function_costs = {id(cost) for cost, _ in self._chain(node) if type(cost) is tuple}
        owner = self.parameter_owner.get(id(node.variable), 0) if hasattr(node, "variable") else 0
        for target, result_index in node.next_functions if node is not None else ():
            if hasattr(target, "variable") and target.variable.shape == gradient.shape:
                owner, chain = self.parameter_owner.get(id(target.variable), 0), self._chain(node)
            elif (
                target is not None
                and tuple(target._input_metadata[result_index].shape) == gradient.shape
            ):
                chain = self._chain(target)
                owner = next((owner for _, owner in chain), 0)
            else:
                continue
            if function_costs & {id(cost) for cost, _ in chain}:
                return
            break
        self.tally.add_accumulation(owner, 1, gradient.numel(), gradient.dtype.itemsize)

    def _add_gradients(self, node_id: int, chain: list[tuple[Any, int]]) -> None:
        task = torch._C._current_graph_task_id()
        for cost, owner in chain:
            key = task, cost[1] if type(cost) is tuple else node_id
            if key in self._visited:
                continue
            if type(cost) is tuple:
                self._visited.add(key)
                self.tally.add_function(cost[0], owner, phases=("backward",))
            elif isinstance(cost, tally.PricedCall):
                self.tally.add_gradient(cost, owner)
        self._visited.add((task, node_id))


def _is_accumulation(name: str, args: tuple, kwargs: dict) -> bool:
    """Tell whether the engine adds two gradients that meet; the formula of a gradient adds no two
    tensors so.
    """
    if (
        name != "add"
        or kwargs
        or not all(isinstance(value, Tensor) and is_dense(value) for value in args)
    ):
        return False
    return args[0].shape == args[1].shape


class _NotDenseError(Exception):
    """The end of counting an operator that made a tensor which is not dense."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def _has_memory(tensor: Tensor) -> bool:
    """Tell whether a tensor is dense and shows its memory; the tensors of torch.func and of lazy
    layers do not.
    """
    if nn.parameter.is_lazy(tensor) or _functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return is_dense(tensor)
