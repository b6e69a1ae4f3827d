"""Record every operator of a model's forward pass on shapes alone: no data, no arithmetic, no trace left behind.

Two interception layers of torch work together. A function mode replaces each parameter and buffer by a stand-in
on the meta device, before torch looks at devices; a dispatch mode below autograd sees every operator that is left,
inside modules and outside, and notes its shapes. The model itself is never moved, copied or written.

Small integer tensors that the caller passes or the model makes keep their values, so that a loop bound or an
index can be read; floating-point activations have shapes only.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from helpers.operations.shapes import check_positions, packed, result_of
from helpers.operations.specs import (
    META,
    SMALL,
    Call,
    ForwardError,
    Operator,
    mapped,
    operator_of,
    shape_only,
    spec_of,
    stand_in_for,
    storage_of,
    tensors_in,
)

_DATA_DEPENDENT = frozenset({"_local_scalar_dense", "nonzero", "nonzero_static", "masked_select", "equal", "_unique",
                             "_unique2", "unique_dim", "unique_consecutive", "bincount", "is_nonzero"})  # fmt: skip
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell",
                        "rnn_relu_cell"})  # fmt: skip
_ATTENTION = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})
_READING = frozenset({"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"})
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_EXPORTING = frozenset({"numpy", "tolist", "__array__"})
_MATRIX_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"})


class Trace:
    """The record of one forward pass: calls, free calls, the modules that made them, the stand-ins they saw."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[Call] = []
        self.free: Counter[tuple[str, int]] = Counter()
        self.owner_of: dict[int, int] = {}
        self.causal: tuple[int, int, bool] | None = None
        self.failure: tuple[BaseException, int, str] | None = None
        self.paths: list[str] = []
        self.modules: list[nn.Module] = []
        self.module_calls: list[int] = []
        self.parameter_owner: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._stack: list[int] = [0]
        self._thread = threading.get_ident()
        self._stand_ins: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []
        self._made: dict[int, Tensor] = {}
        self._weights: set[int] = set()
        self._written: set[int] = set()
        self._unknown: set[int] = set()
        self._recorder = _DispatchRecorder(self)
        for path, module in model.named_modules():
            row = self._add_row(path, module)
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
        stand_in = stand_in_for(tensor)
        if tensor.requires_grad:
            stand_in = stand_in.requires_grad_()
        self._stand_ins[id(tensor)] = stand_in
        self._kept.append(tensor)
        self._weights |= {storage_of(stand_in), storage_of(tensor)}
        self.parameter_owner[id(stand_in)] = self.parameter_owner[id(tensor)] = row

    def stand_in(self, tensor: Tensor) -> Tensor:
        """Return the stand-in of a parameter or buffer of the model."""
        return self._stand_ins[id(tensor)]

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs inside, with autograd on, whatever the caller's modes are."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            if "torch._dynamo" in sys.modules:  # else nothing was compiled, and importing it takes seconds
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            for handle in (
                module_hooks.register_module_forward_pre_hook(self._enter),
                module_hooks.register_module_forward_hook(self._leave, always_call=True),
            ):
                stack.callback(handle.remove)
            stack.enter_context(self._recorder)
            stack.enter_context(_FunctionRecorder(self))
            yield

    # The modules.

    def _enter(self, module: nn.Module, _: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        row = self._rows.get(id(module))
        if row is None:
            parent = self.paths[self._stack[-1]]
            name = f"({type(module).__name__} {len(self.paths)})"
            row = self._add_row(f"{parent}.{name}" if parent else name, module)
        self._stack.append(row)
        self.module_calls[row] += 1

    def _leave(self, module: nn.Module, inputs: Any, _: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        row = self._rows[id(module)]
        error = sys.exc_info()[1]
        if error is not None and (self.failure is None or self.failure[0] is not error):
            self.failure = (error, row, described(inputs))
        while len(self._stack) > 1 and self._stack.pop() != row:
            pass

    # The functions of torch, above autograd.

    def function(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Call ``func`` with stand-ins for the model's tensors and no device but this trace's."""
        name = getattr(func, "__name__", "")
        if name in _READING and args and self._is_readable(args[0]):
            with _disable_current_modes():
                return func(*args, **kwargs)
        args = tuple([self._known(value) for value in args])
        if name in _EXPORTING and args and isinstance(args[0], Tensor) and args[0].is_meta:
            raise ForwardError(data_dependent(f"Tensor.{name}"))
        if kwargs:
            kwargs = {key: self._known(value) for key, value in kwargs.items()}
        if name == "cuda" and isinstance(args[0], Tensor):
            return args[0].to(META)
        if name == "to":
            args = tuple(_here(a) if isinstance(a, str | torch.device) else a for a in args)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _here(kwargs["device"])}
        if name == "_nested_tensor_from_mask_left_aligned":
            return False  # a padding mask may hold anything: the whole of every sequence is counted
        if name in _RECURRENT:
            args = _without_values(args)
        elif name in _ATTENTION:
            return self._attention(func, name, _without_values(args), kwargs)
        return func(*args, **kwargs)

    def _known(self, value: Any) -> Any:
        """Return the stand-in of a tensor of the model, or of each in a list (a recurrent layer's weights)."""
        if type(value) in (list, tuple):
            return type(value)([self._stand_ins.get(id(item), item) for item in value])
        return self._stand_ins.get(id(value), value)

    def _is_readable(self, tensor: Any) -> bool:
        stand_in = self._stand_ins.get(id(tensor))
        return (stand_in is not None and stand_in.is_meta and not tensor.is_meta
                and storage_of(stand_in) not in self._written)  # fmt: skip

    def _attention(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        """Call an attention function; under a causal mask note the shape of its scores, to tell useful work apart."""
        is_multi_head = name == "multi_head_attention_forward"
        is_causal = kwargs.get("is_causal", args[5] if len(args) > 5 and not is_multi_head else False)
        if not is_causal:
            return func(*args, **kwargs)
        query = args[0] if args else kwargs["query"]
        key = args[1] if len(args) > 1 else kwargs["key"]
        before = self.causal
        place = 0 if is_multi_head else -2
        self.causal = (query.shape[place], key.shape[place], is_multi_head)
        try:
            return func(*args, **kwargs)
        finally:
            self.causal = before

    # The operators, below autograd.

    def operator(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run one operator on stand-ins and note it."""
        if torch.is_inference_mode_enabled() and _is_composite(func):
            with self._recorder:  # outside of inference mode autograd takes it apart before it comes here
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        operator = operator_of(func)
        sequence = torch._C._autograd._get_sequence_nr() - 1
        grad = torch.is_grad_enabled()
        owner = self._stack[-1]
        if grad:
            self.owner_of[sequence] = owner
        if operator.is_free:
            self.free[operator.text, owner] += 1
            return self._run(func, operator, args, kwargs)
        noted = functools.partial(spec_of, weights=self._weights, grad=grad)
        specs = [mapped(value, noted) for value in args]
        keyword_specs = {key: mapped(value, noted) for key, value in kwargs.items()}
        if operator.name in _MATRIX_PRODUCTS:
            _check_types(operator, args)
        if operator.name == "embedding":
            check_positions(args[1])
        if operator.writes and grad and isinstance(args[0], Tensor) and args[0]._is_view():
            sequence = None  # autograd wraps it in another node: taken to be reached
        result = self._run(func, operator, args, kwargs)
        outputs = [spec_of(tensor, self._weights) for tensor in tensors_in((result,))]
        self.calls.append(Call(operator.text, operator.name, tuple(specs), keyword_specs, outputs, owner, sequence,
                               self._scores(operator.name, specs)))  # fmt: skip
        return result

    def _scores(self, name: str, specs: list) -> tuple[int, int] | None:
        """Return the shape of causal attention's scores where this product makes them or uses them."""
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
        """Run on the meta device, or on values where every tensor keeps them."""
        has_meta = has_real = False
        for tensor in tensors_in((*args, *kwargs.values())):
            if tensor.is_meta:
                has_meta = True
            else:
                has_real = True
        if not has_meta and not has_real:
            return self._run_factory(func, operator, args, kwargs)
        if not has_real:
            if operator.takes_device and kwargs.get("device") is not None:
                kwargs = {**kwargs, "device": META}
            return self._run_meta(func, operator, args, kwargs)
        originals = [args[place] for place in operator.writes if place < len(args)]
        args = tuple(mapped(value, self._placed) for value in args)
        kwargs = {key: mapped(value, self._placed) for key, value in kwargs.items()}
        if operator.name == "index":
            args = (args[0], _positions(args[1]), *args[2:])
        if operator.name == "_pack_padded_sequence" and not args[1].is_meta:
            result = packed(*args)
            self._made[id(result[1])] = result[1]
            return result
        values = [not tensor.is_meta for tensor in tensors_in((*args, *kwargs.values()))]
        if all(values):
            if kwargs.get("device") is not None and kwargs["device"].type != "cpu":
                kwargs = {**kwargs, "device": META}
            result = func(*args, **kwargs)
            for tensor in tensors_in((result,)):
                self._made[id(tensor)] = tensor
        else:
            args = tuple(mapped(value, _valueless) for value in args)
            kwargs = {key: mapped(value, _valueless) for key, value in kwargs.items()}
            if kwargs.get("device") is not None:
                kwargs["device"] = META
            result = self._run_meta(func, operator, args, kwargs)
            for original, place in zip(originals, operator.writes, strict=False):
                if isinstance(original, Tensor) and not original.is_meta:  # its values are unknown from here on
                    self._unknown.add(storage_of(original))
                    self._stand_ins[id(original)] = args[place]
                    self._kept.append(original)
        return self._as_given(result, args, originals, operator)

    def _as_given(self, result: Any, args: tuple, originals: list, operator: Operator) -> Any:
        """Hand back the tensor that was given where an operator wrote into its stand-in."""
        for original, place in zip(originals, operator.writes, strict=False):
            if result is args[place]:
                return original
        return result

    def _run_meta(self, func: Any, operator: Operator, args: tuple, kwargs: dict) -> Any:
        if operator.name in _DATA_DEPENDENT or (operator.name == "index" and _has_mask(args[1])):
            raise ForwardError(data_dependent(operator.text))
        for place in operator.writes:
            if place < len(args) and isinstance(args[place], Tensor):
                self._written.add(storage_of(args[place]))
        result = result_of(operator.name, args, kwargs, in_place=bool(operator.writes))
        if result is not None:
            return result
        try:
            return func(*args, **kwargs)
        except NotImplementedError as error:
            raise ForwardError(
                f"operator {operator.text} has no rule that gives the shape of its result without its data, so what "
                "follows it cannot be counted; count the model without that part"
            ) from error

    def _run_factory(self, func: Any, operator: Operator, args: tuple, kwargs: dict) -> Any:
        """Make a new tensor: on the meta device, or with its values where it is small and wanted on the CPU."""
        if not operator.takes_device:
            return func(*args, **kwargs)
        wanted = kwargs.get("device")
        result = func(*args, **{**kwargs, "device": META})
        if (wanted is None or wanted.type == "cpu") and result.numel() <= SMALL:
            result = func(*args, **kwargs)
            self._made[id(result)] = result
        return result

    def _placed(self, tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return tensor
        known = self._stand_ins.get(id(tensor))
        if known is not None:
            return known
        has_values = tensor.layout != torch.strided or storage_of(tensor) not in self._unknown
        if id(tensor) in self._made and tensor.numel() <= SMALL and has_values:
            return tensor
        is_dense = tensor.device.type == "cpu" and tensor.layout == torch.strided
        is_small = has_values and is_dense and tensor.numel() <= SMALL
        stand_in = tensor.detach().clone() if is_small else shape_only(tensor)
        self._stand_ins[id(tensor)] = stand_in
        self._kept.append(tensor)
        self._made[id(stand_in)] = stand_in
        return stand_in


@functools.cache
def _is_composite(func: Any) -> bool:
    """Tell whether torch makes ``func`` of other operators; its own kernel is meant, not a decomposition in Python."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE)


class _DispatchRecorder(TorchDispatchMode):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say that nothing in here is compiled: torch would import its compiler to make sure."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return self._trace.operator(func, args, kwargs or {})


class _FunctionRecorder(TorchFunctionMode):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return self._trace.function(func, args, kwargs or {})


def data_dependent(what: str) -> str:
    """Return the one sentence for a forward that needs the values of its activations."""
    return (
        f"the forward needs the values of an activation ({what}), and counting knows only shapes; "
        "count the parts before and after it one by one, or replace that step by one of fixed shape"
    )


def described(values: Any) -> str:
    """Return the shapes and types of a call's arguments, as a student would write them."""
    if isinstance(values, Tensor):
        return f"{tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"
    if isinstance(values, Mapping):
        return ", ".join(f"{key}={described(value)}" for key, value in values.items())
    if isinstance(values, list | tuple):
        return ", ".join(described(value) for value in values) or "nothing"
    return type(values).__name__


def _valueless(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_meta else shape_only(tensor)


def _without_values(args: tuple) -> tuple:
    """Leave only the shapes of floating-point tensors: some functions compare devices before they dispatch."""

    def placed(tensor: Tensor) -> Tensor:
        if tensor.is_meta or not tensor.is_floating_point():
            return tensor
        return shape_only(tensor, requires_grad=tensor.requires_grad)

    return tuple(mapped(value, placed) for value in args)


def _here(device: Any) -> Any:
    """Return the meta device in place of an accelerator."""
    if device is None:
        return None
    return device if torch.device(device).type in ("cpu", "meta") else META


def _has_mask(indices: Any) -> bool:
    return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors_in((indices,)))


def _positions(indices: Any) -> list:
    """Replace a mask whose values are known by the positions it selects."""
    positions: list = []
    for index in indices:
        if isinstance(index, Tensor) and not index.is_meta and index.dtype in (torch.bool, torch.uint8):
            positions += list(index.nonzero().unbind(1))
        else:
            positions.append(index)
    return positions


def _check_types(operator: Operator, args: tuple) -> None:
    """Raise where a real run would: the meta device multiplies float32 by float64 without a word."""
    types = {tensor.dtype for tensor in tensors_in(args)}
    if len(types) > 1:
        names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in types))
        raise RuntimeError(f"{operator.text} is given {names}; a matrix product needs one type")
