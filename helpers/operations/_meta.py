"""Run a forward on shapes alone, and keep the values that are known without the data.

Every tensor of the forward lives on the meta device: parameters, buffers and inputs are replaced by
stand-ins, and what the forward makes is made there. The values of some are known all the same: of
small integer tensors that the caller passes, of the model's own small tensors, of constants, and of
what is computed from these alone. They are kept beside the memory of the stand-in, so that a view
shows them too, and so that a mask can be asked whether it masks anything. Code that asks for a
device is told "cpu".
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from helpers.operations._shapes import batch_sizes, result_of, uniform_value
from helpers.operations._specs import (
    META,
    Operator,
    map_tensors,
    not_dense_error,
    shape_only,
    tensors_in,
    written_tensors,
)
from helpers.operations._trace import OperatorTrace, is_drawn, is_recurrence
from helpers.steps import ForwardError

# Values are kept of so many elements at most: the masks of 512 sequences of 512, and 2 MB.
LIMIT = 2**18
_MAX_TABLE_ELEMENTS = 2**12  # of a model's own floating-point tensors: a constant, a table
# of a parameter: the scale of a loss, the weights of a choice; what a larger one makes is an
# activation
_MAX_PARAMETER_ELEMENTS = 2**9

_CPU = torch.device("cpu")
_DEVICE_ATTRIBUTES = {"device": _CPU, "is_meta": False, "is_cpu": True, "is_cuda": False}
_ANSWERS = {
    getattr(torch.Tensor, name).__get__: answer for name, answer in _DEVICE_ATTRIBUTES.items()
}
_EXPORTING = frozenset({"numpy", "tolist", "__array__"})
_INDEXING = frozenset({"__getitem__", "__setitem__"})
_MOVING = frozenset({"cpu", "cuda", "pin_memory"})
_FROM_NUMBERS = frozenset({"tensor", "as_tensor", "asarray", "new_tensor"})
_READING_LENGTHS = frozenset(
    {"_pad_packed_sequence", "ctc_loss", "tensor_split", "lstm", "gru", "rnn_tanh", "rnn_relu"}
)
"""Functions that reach into the memory of lengths, without an operator."""
_IGNORING_VALUES = frozenset({"zeros_like", "ones_like", "full_like", "empty_like", "rand_like",
                       "randn_like", "randint_like", "new_zeros", "new_ones", "new_full",
                       "new_empty", "new_empty_strided"})  # fmt: skip
"""Operators that use the shape and type of their operand, and not its values."""
_SEALED = frozenset({"dropout", "scaled_dot_product_attention"})
"""Functions that show the caller their result alone.

Nothing is known of it where nothing is known of their first operand.
"""


class MetaTrace(OperatorTrace):
    """The record of one forward pass on shapes: nothing is computed but values that are known."""

    _has_memory = False
    _is_sealed = False

    def _stand_in_of_weight(self, tensor: Tensor) -> Tensor:
        _check_dense(tensor)
        is_parameter = isinstance(tensor, nn.Parameter)
        max_elements = _MAX_PARAMETER_ELEMENTS if is_parameter else _MAX_TABLE_ELEMENTS
        return _make_stand_in(tensor, max_elements, needs_grad=tensor.requires_grad)

    def stand_in_of_input(self, tensor: Tensor, *, needs_grad: bool) -> Tensor:
        """Return the shape of a tensor that the caller passes, with its values if it is small and
        of integers.
        """
        _check_dense(tensor)
        return _make_stand_in(tensor, 0, needs_grad=needs_grad and tensor.is_floating_point())

    # The functions of torch, above autograd.

    def function(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        """Call ``func`` with stand-ins for the tensors, and on one device."""
        if name == "__get__":
            if func in _ANSWERS:
                return _ANSWERS[func]
            result = func(self._to_meta(args[0]))
            return self._to_meta(result) if isinstance(result, Tensor) else result
        args = self._to_meta(args)
        if kwargs:
            kwargs = {key: self._to_meta(value) for key, value in kwargs.items()}
            if kwargs.get("device") is not None:
                kwargs["device"] = META
        if name in _INDEXING and not isinstance(args[1], Tensor | int | slice):
            args = (args[0], self._convert_index(args[1]), *args[2:])
        if name in _FROM_NUMBERS and not _has_tensor(args[-1:]):
            kwargs = {**kwargs, "device": _CPU}
        if name in _MOVING and args and isinstance(args[0], Tensor):
            return args[0]
        if name in _EXPORTING:
            values = self._read(args[0], f"Tensor.{name}")
            with _disable_current_modes():
                return func(values.clone(), *args[1:], **kwargs)
        # a number in a text: the key of an expert, a message
        if name == "__format__" and args[0].dim() == 0:
            values = self._read(args[0], "Tensor.item")
            with _disable_current_modes():
                return format(values.item(), *args[1:])
        if name == "type" and len(args) == 1 and not kwargs:
            with _disable_current_modes():
                return torch.empty(0, dtype=args[0].dtype).type()
        if name == "to":
            args = tuple(
                [META if isinstance(value, str | torch.device) else value for value in args]
            )
        if name in _READING_LENGTHS and not is_recurrence(name, args):
            return self._call_on_lengths(func, args, kwargs)
        self._is_sealed = name in _SEALED and bool(args) and not _is_known(args[0])
        try:
            result = super().function(func, name, args, kwargs)
        finally:
            self._is_sealed = False
        return self._to_meta(result) if isinstance(result, Tensor) else result

    def _call_on_lengths(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Call a function that reads and writes lengths in memory, with those that are known on the
        CPU.
        """
        known_args = [_read_if_known(value) for value in args]
        # as lists: with tensors torch asks for the operator that reads them
        if func.__name__ == "ctc_loss":
            known_args[2:4] = [
                value.tolist() if isinstance(value, Tensor) else value for value in known_args[2:4]
            ]
        with mock.patch.object(self, "_has_memory", True):
            return func(*known_args, **kwargs)

    def _to_meta(self, value: Any) -> Any:
        """Return the stand-in of a tensor, or of each in a list (a recurrent layer's weights)."""
        if type(value) in (list, tuple):
            return type(value)([self._to_meta(item) for item in value])
        if not isinstance(value, Tensor):
            return value
        known_stand_in = self._stand_ins.get(id(value))
        if known_stand_in is not None:
            return known_stand_in
        if (
            value.is_meta
            or value.layout != torch.strided
            or torch._C._functorch.is_functorch_wrapped_tensor(value)
        ):
            return value
        with _disable_current_modes():
            stand_in = _make_stand_in(value, _MAX_TABLE_ELEMENTS, needs_grad=value.requires_grad)
        self._stand_ins[id(value)] = stand_in
        self._alive_tensors.append(value)
        return stand_in

    def _convert_index(self, index: Any) -> tuple:
        """Return an index with a tensor for each list of numbers: torch would make one on shapes,
        without values.
        """
        parts = index if isinstance(index, tuple) else (index,)
        return tuple(
            [
                self._convert_positions(part) if isinstance(part, list | tuple) else part
                for part in parts
            ]
        )

    def _convert_positions(self, numbers: list | tuple) -> Any:
        if not numbers or not all(isinstance(number, int) for number in numbers):
            return numbers
        with _disable_current_modes():
            positions = torch.tensor(numbers)
        return self._to_meta(positions)

    def _read(self, tensor: Tensor, operation: str) -> Tensor:
        values = _values_of(tensor)
        if values is None:
            raise ForwardError(data_dependence_message(operation))
        if is_drawn(tensor):
            self.draws.add(self.current_path())
        return values

    def _recurrent_results(self, recurrence: Any) -> Any:
        return recurrence.shapes()

    # The operators, below autograd.

    def _run(self, func: Any, operator: Operator, args: tuple, kwargs: dict) -> Any:
        """Run on the meta device, and on values where all that is read is known."""
        meta_args, kwargs, operands = self._substitute(args, kwargs)
        if operator.takes_device and (
            kwargs.get("device") is not None or not _has_tensor(meta_args)
        ):
            if self._has_memory and kwargs.get("device") == _CPU:
                return func(*args, **kwargs)
            kwargs["device"] = META
        if operator.name == "index":
            meta_args = (meta_args[0], self._convert_masks(meta_args[1]), *meta_args[2:])
            operands = list(tensors_in((*meta_args, *kwargs.values())))
        if operator.name == "_pack_padded_sequence":
            sizes = batch_sizes(
                meta_args[0], self._read(meta_args[1], operator.text).tolist(), meta_args[2]
            )
            return meta_args[0].new_empty((sum(sizes), *meta_args[0].shape[2:])), self._to_meta(
                torch.tensor(sizes)
            )
        is_known = operator.name in _IGNORING_VALUES or all(
            _is_known(tensor) for tensor in operands
        )
        if operator.reads_values and operator.name != "index":
            return self._run_data_dependent(
                func, operator, meta_args, kwargs, operands if is_known else None
            )
        result = self._run_on_meta(func, operator, meta_args, kwargs)
        results = list(tensors_in((result,)))
        for tensor in results:
            _check_dense(tensor)
        if is_known and not self._is_sealed and all(tensor.numel() <= LIMIT for tensor in results):
            self._run_on_values(func, operator, meta_args, kwargs, results)
            self._note_draws(operator, operands, results)
        else:
            for tensor in written_tensors(operator, meta_args):
                _forget(tensor)
            answer = uniform_value(operator.name, meta_args, _uniform_value_of)
            if answer is not None and results[0].dtype == torch.bool:
                _keep_uniform_value(results[0], answer=answer)
        return self._hand_back(result, operator, args, meta_args)

    def _substitute(self, args: tuple, kwargs: dict) -> tuple[tuple, dict, list[Tensor]]:
        """Return the arguments with stand-ins in place of their tensors, and the stand-ins.

        Most tensors are stand-ins already.
        """
        operands = list(tensors_in((*args, *kwargs.values())))
        for tensor in operands:
            if not tensor.is_meta or id(tensor) in self._stand_ins:
                args, kwargs = map_tensors(args, self._to_meta), map_tensors(kwargs, self._to_meta)
                return args, kwargs, list(tensors_in((*args, *kwargs.values())))
        return args, dict(kwargs), operands

    def _hand_back(self, result: Any, operator: Operator, args: tuple, meta_args: tuple) -> Any:
        """Hand back the tensor that was given where an operator wrote into its stand-in."""
        for index in operator.writes:
            if index < len(args) and result is meta_args[index]:
                return args[index]
        return result

    def _convert_masks(self, indices: Any) -> list:
        """Replace masks by the positions that they select, which must be known."""
        positions: list = []
        for index in indices:
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                mask = self._read(index, "aten.index.Tensor with a mask")
                # (selected, dims), taken apart by dimension
                positions += map(_make_stand_in, mask.nonzero().unbind(1))
            else:
                positions.append(index)
        return positions

    def _run_data_dependent(
        self,
        func: Any,
        operator: Operator,
        args: tuple,
        kwargs: dict,
        known_operands: list[Tensor] | None,
    ) -> Any:
        """Run an operator whose result, or the shape of it, depends on the values that it reads."""
        if operator.name == "masked_select" and known_operands is None:
            mask = self._read(args[1], operator.text)
            return args[0].new_empty(
                int(mask.expand(torch.broadcast_shapes(mask.shape, args[0].shape)).sum())
            )
        if (
            operator.name == "repeat_interleave"
            and kwargs.get("output_size") is not None
            and known_operands is None
        ):
            return self._run_on_meta(func, operator, args, kwargs)
        if known_operands is None:
            raise ForwardError(data_dependence_message(operator.text))
        args, kwargs = map_tensors((args, kwargs), _values_of)
        values = func(*args, **kwargs)
        result = map_tensors(values, _make_stand_in)
        self._note_draws(operator, known_operands, list(tensors_in((result,))))
        return result

    def _run_on_meta(self, func: Any, operator: Operator, args: tuple, kwargs: dict) -> Any:
        result = result_of(operator.name, args, kwargs, in_place=0 in operator.writes)
        if result is not None:
            return result
        try:
            return func(*args, **kwargs)
        except NotImplementedError as error:
            if "sparse" in operator.name:  # a real run makes a tensor that is not dense
                raise ForwardError(
                    f"{operator.text} is met; only dense tensors are counted, as tensor.to_dense() "
                    "makes them"
                ) from error
            raise ForwardError(
                f"operator {operator.text} has no rule that gives the shape of its result without "
                "its data; pass values=True to run the forward once on real tensors, or count the "
                "model without that part"
            ) from error

    def _run_on_values(
        self, func: Any, operator: Operator, args: tuple, kwargs: dict, results: list[Tensor]
    ) -> None:
        """Work out the values of a result that is known, and keep them with it."""
        if (
            not operator.writes
            and results
            and all(hasattr(tensor.untyped_storage(), "values") for tensor in results)
        ):
            return  # a view
        for tensor in written_tensors(operator, args):
            _unshare_values(tensor)
        read_values = _empty_of if operator.name in _IGNORING_VALUES else _values_of
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _CPU}
        args, kwargs = map_tensors((args, kwargs), read_values)
        values = func(*args, **kwargs)
        for tensor, value in zip(results, tensors_in((values,)), strict=True):
            if not hasattr(tensor.untyped_storage(), "values"):
                _keep(tensor, value)


def data_dependence_message(operation: str) -> str:
    """Return the one sentence for a forward that needs values which are not known."""
    return (
        f"the forward needs the values of an activation ({operation}), and counting knows only "
        "shapes, and what integer and boolean inputs hold; pass values=True to run it once on real "
        "tensors, or replace that step by one of fixed shape"
    )


# The values of a stand-in, kept as an attribute of its memory: the views of a tensor share them, as
# they share it.


def _is_known(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and hasattr(tensor.untyped_storage(), "values")
        and not tensor.is_complex()
        and tensor.numel() <= LIMIT
    )


def _values_of(tensor: Tensor) -> Tensor | None:
    if not _is_known(tensor):
        return None
    values = tensor.untyped_storage().values  # type: ignore[attr-defined]  # an attribute of ours
    with _disable_current_modes():
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(values, tensor.storage_offset(), tensor.size(), tensor.stride())


def _read_if_known(value: Any) -> Any:
    values = _values_of(value) if isinstance(value, Tensor) else None
    return value if values is None else values


def _empty_of(tensor: Tensor) -> Tensor:
    """Return a tensor of the shape and type of ``tensor``, for an operator that asks for no
    more.
    """
    size = tensor.size() if tensor.numel() <= LIMIT else (0,)
    return torch.empty_strided(size, tensor.stride()[: len(size)], dtype=tensor.dtype)


def _keep(stand_in: Tensor, values: Tensor) -> None:
    """Keep ``values`` with the memory of ``stand_in``, whose shape they have."""
    if values.is_complex() or (values.stride() != stand_in.stride() and 0 in stand_in.stride()):
        return
    if values.stride() != stand_in.stride():
        values = torch.empty_strided(stand_in.size(), stand_in.stride(), dtype=values.dtype).copy_(
            values
        )
    storage = values.untyped_storage()[values.storage_offset() * values.itemsize :]
    stand_in.untyped_storage().values = storage  # type: ignore[attr-defined]  # an attribute of ours


def _make_stand_in(
    tensor: Tensor, max_float_elements: int = LIMIT, *, needs_grad: bool = False
) -> Tensor:
    """Return the shape of a tensor that is not ours, with its values if it is small; one of
    floating-point numbers has ``max_float_elements`` at most.
    """
    max_elements = max_float_elements if tensor.is_floating_point() else LIMIT
    stand_in = shape_only(tensor, requires_grad=needs_grad)
    if not tensor.is_meta and tensor.numel() <= max_elements:
        with _disable_current_modes():
            _keep(stand_in, tensor.detach().cpu())
        stand_in.untyped_storage().is_lent = True  # type: ignore[attr-defined]  # an attribute of ours
    return stand_in


def _unshare_values(tensor: Tensor) -> None:
    """Copy values that are lent before they are written."""
    storage = tensor.untyped_storage()
    if hasattr(storage, "is_lent"):
        storage.values = storage.values.clone()  # type: ignore[attr-defined]  # an attribute of ours
        del storage.is_lent


def _forget(tensor: Tensor) -> None:
    storage = tensor.untyped_storage()
    for name in ("values", "everywhere"):
        if hasattr(storage, name):
            delattr(storage, name)


def _uniform_value_of(tensor: Tensor) -> bool | None:
    return getattr(tensor.untyped_storage(), "everywhere", None)


def _keep_uniform_value(tensor: Tensor, *, answer: bool) -> None:
    """Keep that every element of ``tensor`` is ``answer``, whatever its size, and the values of a
    single one.
    """
    tensor.untyped_storage().everywhere = answer  # type: ignore[attr-defined]  # an attribute of ours
    if tensor.numel() == 1:
        _keep(tensor, torch.full(tensor.shape, answer))


def _has_tensor(values: Any) -> bool:
    return next(tensors_in(values), None) is not None


def _check_dense(tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise not_dense_error(tensor)
