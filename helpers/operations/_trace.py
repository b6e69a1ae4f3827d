"""Record every operator of a model's forward pass, with the module that called it.

Two interception layers of torch work together. A function mode sees the functions of torch, above
autograd; a dispatch mode below autograd sees every operator that is left, inside modules and
outside, and notes its shapes.

:class:`OperatorTrace` runs the forward on real tensors and puts back what it writes;
:class:`~helpers.operations._meta.MetaTrace` runs it on shapes alone.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import _disable_current_modes

from helpers.operations import _blocks as blocks
from helpers.operations._shapes import MATRIX_PRODUCTS, check_positions, check_types
from helpers.operations._specs import (
    META,
    Call,
    Operator,
    map_tensors,
    operator_of,
    shape_only,
    spec_of,
    storage_of,
    tensors_in,
    written_tensors,
)
from helpers.steps import tensors_of

_ATTENTION = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class OperatorTrace:
    """The record of one forward pass on real tensors: calls, free calls, and the modules that made
    them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[Call] = []
        self.zero_cost_calls: Counter[tuple[str, int]] = Counter()
        self.recurrences: list[Recurrence] = []
        self.draws: set[str] = set()
        self.attention: set[str] = set()
        self.owner_of: dict[int, int] = {}
        self.causal: tuple[int, int, bool] | None = None
        self.paths: list[str] = []
        self.modules: list[nn.Module] = []
        self.module_calls: list[int] = []
        self.outputs: dict[int, str] = {}
        self.parameter_owner: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._stack: list[int] = [0]
        self._thread = threading.get_ident()
        self._stand_ins: dict[int, Tensor] = {}
        self._alive_tensors: list[Any] = []
        self._leaves: list[Tensor] = []
        self._weights: set[int] = set()
        self._cloned = -1
        self._recorder: _DispatchRecorder | None = None
        self._restoring = ExitStack()
        self._forward_storages: set[int] = set()
        self._protected_storages: set[int] = set()
        for path, module in model.named_modules():
            self._add_module(path, module)

    def _add_module(self, path: str, module: nn.Module) -> None:
        self._add_weights(module, self._add_row(path, module))

    def _add_weights(self, module: nn.Module, row: int) -> None:
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and id(tensor) not in self._stand_ins:
                self._add_weight(tensor, row)

    def _add_row(self, path: str, module: nn.Module) -> int:
        row = self._rows[id(module)] = len(self.paths)
        self.paths.append(path)
        self.modules.append(module)
        self.module_calls.append(0)
        return row

    def _add_weight(self, tensor: Tensor, row: int) -> None:
        stand_in = self._stand_ins[id(tensor)] = self._stand_in_of_weight(tensor)
        self._alive_tensors.append(tensor)
        if stand_in.grad_fn is None:
            self._leaves.append(stand_in)
        self._weights.add(storage_of(stand_in))
        self.parameter_owner[id(stand_in)] = self.parameter_owner[id(tensor)] = row

    def _stand_in_of_weight(self, tensor: Tensor) -> Tensor:
        return tensor

    def stand_in(self, tensor: Tensor) -> Tensor:
        """Return the tensor that computes in place of a parameter or buffer: itself if the forward
        has made it.
        """
        return self._stand_ins.get(id(tensor), tensor)

    def stand_in_of_input(self, tensor: Tensor, *, needs_grad: bool) -> Tensor:
        """Return the tensor that computes in place of one that the caller passes."""
        return tensor.detach().requires_grad_(needs_grad and tensor.is_floating_point())

    def release(self, arguments: Any) -> None:
        """Take what was written in place out of autograd's graph, which has saved it: the two would
        keep each other.
        """
        for tensor in (*self._leaves, *tensors_of(arguments)):
            base = tensor if tensor._base is None else tensor._base
            if base.grad_fn is not None:
                base.detach_()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs inside, with autograd on, whatever the caller's modes are; then put back
        what it wrote.
        """
        states_before = _generator_states()
        with ExitStack() as stack:
            stack.push(self._restoring)
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(torch.autocast("cpu", enabled=False))
            if torch.cuda.is_available():
                stack.enter_context(torch.autocast("cuda", enabled=False))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            flex = sys.modules.get("torch.nn.attention.flex_attention")
            if flex is not None:  # it refuses to train on a CPU, and nothing is trained
                stack.enter_context(mock.patch.object(flex, "_validate_device"))
            stack.enter_context(self._record_all())
            yield
        self.draws |= {
            name for name, state in _generator_states().items() if state != states_before[name]
        }

    @contextmanager
    def _record_all(self) -> Iterator[None]:
        """Record modules, functions and operators."""
        with ExitStack() as stack:
            stack.enter_context(blocks.visible_operators())
            for handle in (
                module_hooks.register_module_forward_pre_hook(self._enter),
                module_hooks.register_module_forward_hook(self._leave, always_call=True),
            ):
                stack.callback(handle.remove)
            stack.enter_context(self._record_operators())
            stack.enter_context(FunctionRecorder(self))
            yield

    @contextmanager
    def _record_operators(self) -> Iterator[None]:
        with _DispatchRecorder(self) as self._recorder:
            try:
                yield
            finally:
                self._recorder = None  # else the two would keep each other, and the tensors, alive

    # The modules.

    def _is_of_another_thread(self) -> bool:
        """Tell whether a hook is called for what another thread runs: torch's hooks are those of
        all threads.
        """
        return threading.get_ident() != self._thread

    def _enter(self, module: nn.Module, _: Any) -> None:
        if self._is_of_another_thread():
            return
        row = self._rows.get(id(module))
        self._stack.append(self._new_row(module) if row is None else row)
        self.module_calls[self._stack[-1]] += 1

    def _new_row(self, module: nn.Module) -> int:
        """Return the row of a module that the model does not know."""
        parent = self.paths[self._stack[-1]]
        name = f"({type(module).__name__} {len(self.paths)})"
        row = self._add_row(f"{parent}.{name}" if parent else name, module)
        self._adopt(module, row)
        return row

    def _adopt(self, module: nn.Module, row: int) -> None:
        """Note whose the parameters of such a module are."""
        for parameter in module._parameters.values():
            if parameter is not None:
                self.parameter_owner.setdefault(id(parameter), row)

    def _leave(self, module: nn.Module, _: Any, outputs: Any) -> None:
        if self._is_of_another_thread():
            return
        row = self._rows[id(module)]
        with torch._C.DisableTorchFunction():  # what is asked here is not the forward's
            self.outputs[row] = shapes_in(outputs)
        while len(self._stack) > 1 and self._stack.pop() != row:
            pass

    def path_of(self, module: nn.Module) -> str:
        """Return the module's path, "" for one that did not run."""
        return self.paths[self._rows.get(id(module), 0)]

    def current_path(self) -> str:
        """Return the path of the module whose forward runs now, as a report names it."""
        row = self._stack[-1]
        return self.paths[row] or type(self.modules[row]).__name__

    # The functions of torch, above autograd.

    def function(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        """Call ``func``; note where attention is causal, and take a recurrent layer for one
        operator.
        """
        if name == "_nested_tensor_from_mask_left_aligned":
            return False  # a padding mask may hold anything: the whole of every sequence is counted
        if is_recurrence(name, args):
            return self._call_recurrence(func, args)
        self._note_attention(name, kwargs)
        # as torch computes it without its compiler, and with a gradient on every device
        if name == "flex_attention":
            with FunctionRecorder(self):
                return sys.modules[type(func).__module__].math_attention(*args, **kwargs)
        if name in _ATTENTION:
            return self._call_attention(func, name, args, kwargs)
        return func(*args, **kwargs)

    def _note_attention(self, name: str, kwargs: dict) -> None:
        """Note who calls an attention that a kernel may fuse: not one that returns its weights, and
        so writes them.
        """
        gives_weights = name == "multi_head_attention_forward" and kwargs.get("need_weights", True)
        if name == "flex_attention" or (name in _ATTENTION and not gives_weights):
            self.attention.add(self.current_path())

    def _call_recurrence(self, func: Any, args: tuple) -> Any:
        recurrence = Recurrence(func, args, self._stack[-1])
        with _disable_current_modes():
            recurrence.follow(self._weights)
        self.recurrences.append(recurrence)
        return _Node.apply(recurrence, self._recurrent_results, *tensors_in(args))

    def _recurrent_results(self, recurrence: Recurrence) -> Any:
        return recurrence.func(*recurrence.args)

    def _call_attention(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        """Call an attention function; under a causal mask note the shape of its scores, to tell
        useful work apart.
        """
        is_multi_head = name == "multi_head_attention_forward"
        is_causal = kwargs.get(
            "is_causal", args[5] if len(args) > 5 and not is_multi_head else False
        )
        if not is_causal:
            return func(*args, **kwargs)
        query = args[0] if args else kwargs["query"]
        key = args[1] if len(args) > 1 else kwargs["key"]
        length_dim = 0 if is_multi_head else -2
        causal = query.shape[length_dim], key.shape[length_dim], is_multi_head
        with mock.patch.object(self, "causal", causal):
            return func(*args, **kwargs)

    # The operators, below autograd.

    def operator(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run one operator and note it."""
        if torch.is_inference_mode_enabled() and _is_composite(func):
            assert self._recorder is not None  # it is what calls
            # outside of inference mode autograd takes it apart before it comes here
            with self._recorder:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        operator = operator_of(func)
        node_id = torch._C._autograd._get_sequence_nr() - 1
        grad = torch.is_grad_enabled()
        owner = self._stack[-1]
        if operator.name == "clone":
            self._cloned = node_id
        elif (
            0 in operator.writes
            and node_id == self._cloned
            and grad
            and getattr(args[0], "requires_grad", False)
        ):
            # autograd has cloned what is overwritten and its gradient reads, after making the node
            node_id -= 1
        self._set_owner(node_id, owner)
        if operator.is_free:
            self._add_zero_cost_call(operator, args, owner, node_id)
            return self._run(func, operator, args, kwargs)
        make_spec = functools.partial(spec_of, weights=self._weights, grad=grad)
        specs, keyword_specs = map_tensors(args, make_spec), map_tensors(kwargs, make_spec)
        if operator.name in MATRIX_PRODUCTS:
            check_types(operator.text, tensors_in(args))
        if operator.name == "embedding":
            check_positions(args[1])
        # Autograd wraps it in another node: taken to be reached.
        is_wrapped = (
            0 in operator.writes and grad and isinstance(args[0], Tensor) and args[0]._is_view()
        )
        result = self._run(func, operator, args, kwargs)
        outputs = [spec_of(tensor, self._weights) for tensor in tensors_in((result,))]
        node, scores = None if is_wrapped else node_id, self._scores(operator.name, specs)
        call = Call(operator, specs, keyword_specs, outputs, owner, node, scores)
        self._add_call(call, operator)
        return result

    def _set_owner(self, node_id: int, owner: int) -> None:
        if torch.is_grad_enabled():
            self.owner_of[node_id] = owner
        else:  # within the forward of a torch.autograd.Function, whose node comes first
            self.owner_of.setdefault(node_id, owner)

    def _add_call(self, call: Call, _: Operator) -> None:
        self.calls.append(call)

    def _add_zero_cost_call(
        self, operator: Operator, _args: tuple, owner: int, _node_id: int
    ) -> None:
        self.zero_cost_calls[operator.text, owner] += 1

    def _scores(self, name: str, specs: tuple) -> tuple[int, int] | None:
        """Return the shape of causal attention's scores where this product makes them or uses
        them.
        """
        if self.causal is None or name not in ("mm", "bmm", "baddbmm"):
            return None
        rows, columns, is_multi_head = self.causal
        left, right = specs[-2:]
        if is_multi_head and name == "mm":
            return None
        makes = left.shape[-2] == rows and right.shape[-1] == columns
        uses = left.shape[-2] == rows and left.shape[-1] == columns
        return (rows, columns) if makes or uses else None

    def _run(self, func: Any, operator: Operator, args: tuple, kwargs: dict) -> Any:
        """Run on real tensors; a storage that was there before is put back at the end, if this
        operator writes it.
        """
        for tensor in written_tensors(operator, args):
            if storage_of(tensor) not in self._forward_storages:
                self._protect(tensor)
        operands = list(tensors_in((args, kwargs)))
        result = func(*args, **kwargs)
        results = list(tensors_in((result,)))
        self._forward_storages |= {storage_of(tensor) for tensor in results} - {
            storage_of(tensor) for tensor in operands
        }
        self._note_draws(operator, operands, results)
        return result

    def _protect(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._restoring.callback(_lay_out_again, tensor, tensor.size(), tensor.stride())
        if storage._cdata not in self._protected_storages:
            self._protected_storages.add(storage._cdata)
            self._restoring.callback(_fill_again, storage, storage.clone())
        # Each time: tensors that share memory need not share a counter.
        self._restoring.enter_context(torch.autograd._unsafe_preserve_version_counter(tensor))

    def _note_draws(
        self, operator: Operator, operands: list[Tensor], results: list[Tensor]
    ) -> None:
        """Follow what was drawn at random through what is computed of it, until a value or a shape
        depends on it.
        """
        drawn_operands = [tensor for tensor in operands if is_drawn(tensor)]
        if not operator.is_random and not drawn_operands:
            return
        if operator.name == "index":  # positions select as many whatever they are, a mask does not
            drawn_operands = [
                tensor for tensor in drawn_operands if tensor.dtype in (torch.bool, torch.uint8)
            ]
        if operator.reads_values and drawn_operands:
            self.draws.add(self.current_path())
        for tensor in results:
            tensor.untyped_storage().drawn = True  # type: ignore[attr-defined]  # an attribute of ours


def is_drawn(tensor: Tensor) -> bool:
    """Tell whether the values of ``tensor`` were drawn at random, or follow from such."""
    return hasattr(tensor.untyped_storage(), "drawn")


def _fill_again(storage: torch.UntypedStorage, before: torch.UntypedStorage) -> None:
    if storage.nbytes() != before.nbytes():
        storage.resize_(before.nbytes())
    storage.copy_(before)


def _lay_out_again(tensor: Tensor, size: torch.Size, stride: tuple[int, ...]) -> None:
    """Give a tensor that was resized its old size; its storage keeps what it holds."""
    if tensor.size() != size:
        with torch.no_grad():
            tensor.set_(tensor.untyped_storage(), tensor.storage_offset(), size, stride)


def _generator_states() -> dict[str, Any]:
    """Return the states of the generators that a random draw of another library than torch would
    change.
    """
    state = np.random.get_state()
    assert isinstance(state, tuple)  # as it is where no dictionary is asked for
    kind, words, *rest = state
    return {"Python's random": random.getstate(), "numpy.random": (kind, words.tobytes(), *rest)}


@functools.cache
def _is_composite(func: Any) -> bool:
    """Tell whether torch makes ``func`` of other operators; its own kernel is meant, not a
    decomposition in Python.
    """
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE)


class _DispatchRecorder(blocks.DispatchMode):
    supports_higher_order_operators = True

    def __init__(self, trace: OperatorTrace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if isinstance(func, torch._ops.HigherOrderOperator):  # it is run operator by operator
            with self:
                return func.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](
                    *args, **(kwargs or {})
                )
        # torch.from_numpy and torch.LongTensor come here by themselves
        with torch._C.DisableTorchFunction():
            return self._trace.operator(func, args, kwargs or {})


class FunctionRecorder(blocks.FunctionMode):
    def __init__(self, trace: OperatorTrace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return self._trace.function(func, getattr(func, "__name__", ""), args, kwargs or {})


def shapes_in(values: Any) -> str:
    """Return the shapes of the tensors that a module returned, as a report shows them."""
    if isinstance(values, Tensor):
        return "nested" if values.is_nested else str(tuple(values.shape))
    items = (
        values.values()
        if isinstance(values, Mapping)
        else values
        if isinstance(values, list | tuple)
        else ()
    )
    return ", ".join(filter(None, map(shapes_in, items)))


# A recurrent layer is one operator: every further step costs the same, so a few steps tell the cost
# of all.

_FUNCTIONS = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
# from here on a further step adds the same; the first and the last differ from those between them
_SHORT_STEPS = 2


class ShortSequence(NamedTuple):
    """The record of a short sequence, and how many times it counts in the whole."""

    times: int
    trace: OperatorTrace
    outputs: tuple[Tensor, ...]


def is_recurrence(name: str, args: tuple) -> bool:
    """Tell whether this is a call of ``torch.lstm`` or its kind on sequences of one length (not on
    packed ones).
    """
    return name in _FUNCTIONS and len(args) == 9 and isinstance(args[3], bool)


class Recurrence:
    """One call of a recurrent layer, followed step by step for two short sequences only.

    A sequence of n steps costs (short) + (n - 2) ((short with one step more) - (short)), exactly.
    """

    def __init__(self, func: Callable[..., Any], args: tuple, owner: int) -> None:
        self.func, self.args, self.owner = func, args, owner
        self.shares: list[ShortSequence] = []
        # (steps, batch, features), or (batch, steps, features)
        self._steps_dim, self._batch_dim = (1, 0) if args[8] else (0, 1)

    def follow(self, weights: set[int]) -> None:
        """Run the short sequences; ``weights`` are the storages of parameters and buffers."""
        length = self.args[0].shape[self._steps_dim]
        repetitions = max(0, length - _SHORT_STEPS)
        for times, steps in (
            (1 - repetitions, min(length, _SHORT_STEPS)),
            (repetitions, _SHORT_STEPS + 1),
        ):
            if times:
                self.shares.append(ShortSequence(times, *self._record(steps, weights)))

    def _record(self, steps: int, weights: set[int]) -> tuple[OperatorTrace, tuple[Tensor, ...]]:
        args = self._shorten(steps)
        trace = OperatorTrace(nn.Module())
        trace._weights = {
            storage_of(short_tensor)
            for tensor, short_tensor in zip(tensors_in(self.args), tensors_in(args), strict=True)
            if storage_of(tensor) in weights
        }
        with trace._record_operators():
            return trace, tuple(self.func(*args))

    def _shorten(self, steps: int) -> tuple:
        """Return the arguments on shapes for so many steps, each tensor a leaf of its own graph."""
        grad = torch.is_grad_enabled()
        leaves: dict[int, Tensor] = {}

        def make_leaf(tensor: Tensor) -> Tensor:
            return leaves.setdefault(
                id(tensor), shape_only(tensor, requires_grad=grad and tensor.requires_grad)
            )

        data, shape = self.args[0], list(self.args[0].shape)
        shape[self._steps_dim] = steps
        short_data = torch.empty(
            shape, dtype=data.dtype, device=META, requires_grad=grad and data.requires_grad
        )
        return (short_data, *map_tensors(self.args[1:], make_leaf))

    def shapes(self) -> tuple[Tensor, ...]:
        """Return the results on shapes: the output of every step, and the last hidden state (and
        cell).
        """
        data, hidden = self.args[0], list(tensors_in((self.args[1],)))
        directions = 2 if self.args[7] else 1
        steps, batch = data.shape[self._steps_dim], data.shape[self._batch_dim]
        # the steps are computed one after another: (steps, batch, directions x hidden)
        outputs = data.new_empty((steps, batch, directions * hidden[0].shape[-1]))
        outputs = outputs.transpose(0, self._steps_dim)
        return (outputs, *[torch.empty_like(tensor) for tensor in hidden])


class _Node(torch.autograd.Function):
    """The results of ``compute`` as those of one node of autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any,
        recurrence: Recurrence,
        compute: Callable[[Recurrence], Sequence[Tensor]],
        *_: Tensor,
    ) -> Any:
        ctx.recurrence = recurrence
        with _disable_current_modes():
            return tuple(compute(recurrence))
