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

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from helpers.operations._shapes import batch_sizes, everywhere, result_of
from helpers.operations._specs import (
    META,
    Operator,
    mapped,
    not_dense,
    shape_only,
    tensors_in,
    written,
)
from helpers.operations._trace import OperatorTrace, is_recurrence
from helpers.steps import ForwardError

# Values are kept of so many elements at most: the masks of 512 sequences of 512, and 2 MB.
LIMIT = 2**18
_SMALL = 2**12  # of a model's own floating-point tensors: a constant, a table
# of a parameter: the scale of a loss, the weights of a choice; what a larger one makes is an
# activation
_FEW = 2**9

_HERE = torch.device("cpu")
_PLACE = {"device": _HERE, "is_meta": False, "is_cpu": True, "is_cuda": False}
_ANSWERS = {getattr(torch.Tensor, name).__get__: answer for name, answer in _PLACE.items()}
_EXPORTING = frozenset({"numpy", "tolist", "__array__"})
_INDEXING = frozenset({"__getitem__", "__setitem__"})
_MOVING = frozenset({"cpu", "cuda", "pin_memory"})
_OF_NUMBERS = frozenset({"tensor", "as_tensor", "asarray", "new_tensor"})
_IN_MEMORY = frozenset(
    {"_pad_packed_sequence", "ctc_loss", "tensor_split", "lstm", "gru", "rnn_tanh", "rnn_relu"}
)
"""Functions that reach into the memory of lengths, without an operator."""
_IGNORING = frozenset({"zeros_like", "ones_like", "full_like", "empty_like", "rand_like",
                       "randn_like", "randint_like", "new_zeros", "new_ones", "new_full",
                       "new_empty", "new_empty_strided"})  # fmt: skip
"""Operators that use the shape and type of their operand, and not its values."""
_SEALED = frozenset({"dropout", "scaled_dot_product_attention"})
"""Functions that show the caller their result alone.

Nothing is known of it where nothing is known of their first operand.
"""


class OnShapes(OperatorTrace):
    """The record of one forward pass on shapes: nothing is computed but values that are known."""

    _has_memory = False
    _is_sealed = False

    def _stand_in_of_weight(self, tensor: Tensor) -> Tensor:
        _check_dense(tensor)
        stand_in = shape_only(tensor, requires_grad=tensor.requires_grad)
        return _lend(stand_in, tensor, _FEW if isinstance(tensor, nn.Parameter) else _SMALL)

    def stand_in_of_input(self, tensor: Tensor, *, needs_grad: bool) -> Tensor:
        """Return the shape of a tensor that the caller passes, with its values if it is small and
        of integers.
        """
        _check_dense(tensor)
        return _lend(
            shape_only(tensor, requires_grad=needs_grad and tensor.is_floating_point()), tensor, 0
        )

    # The functions of torch, above autograd.

    def function(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        """Call ``func`` with stand-ins for the tensors, and on one device."""
        if name == "__get__":
            if func in _ANSWERS:
                return _ANSWERS[func]
            result = func(self._here(args[0]))
            return self._here(result) if isinstance(result, Tensor) else result
        args = tuple([self._here(value) for value in args])
        if kwargs:
            kwargs = {key: self._here(value) for key, value in kwargs.items()}
            if kwargs.get("device") is not None:
                kwargs["device"] = META
        if name in _INDEXING and not isinstance(args[1], Tensor | int | slice):
            args = (args[0], self._with_positions(args[1]), *args[2:])
        if name in _OF_NUMBERS and not _has_tensor(args[-1:]):
            kwargs = {**kwargs, "device": _HERE}
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
        if name in _IN_MEMORY and not is_recurrence(name, args):
            return self._with_memory(func, args, kwargs)
        self._is_sealed = name in _SEALED and bool(args) and not _is_known(args[0])
        try:
            result = super().function(func, name, args, kwargs)
        finally:
            self._is_sealed = False
        return self._here(result) if isinstance(result, Tensor) else result

    def _with_memory(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Call a function that reads and writes lengths in memory, with those that are known on the
        CPU.
        """
        self._has_memory = True
        known = [_read_if_known(value) for value in args]
        # as lists: with tensors torch asks for the operator that reads them
        if func.__name__ == "ctc_loss":
            known[2:4] = [
                value.tolist() if isinstance(value, Tensor) else value for value in known[2:4]
            ]
        try:
            return func(*known, **kwargs)
        finally:
            self._has_memory = False

    def _here(self, value: Any) -> Any:
        """Return the stand-in of a tensor, or of each in a list (a recurrent layer's weights)."""
        if type(value) in (list, tuple):
            return type(value)([self._here(item) for item in value])
        if not isinstance(value, Tensor):
            return value
        known = self._stand_ins.get(id(value))
        if known is not None:
            return known
        if (
            value.is_meta
            or value.layout != torch.strided
            or torch._C._functorch.is_functorch_wrapped_tensor(value)
        ):
            return value
        with _disable_current_modes():
            stand_in = shape_only(value, requires_grad=value.requires_grad)
        self._stand_ins[id(value)] = _lend(stand_in, value, _SMALL)
        self._kept.append(value)
        return stand_in

    def _with_positions(self, index: Any) -> tuple:
        """Return an index with a tensor for each list of numbers: torch would make one on shapes,
        without values.
        """
        parts = index if isinstance(index, tuple) else (index,)
        return tuple(
            [self._positions_of(part) if isinstance(part, list | tuple) else part for part in parts]
        )

    def _positions_of(self, numbers: list | tuple) -> Any:
        if not numbers or not all(isinstance(number, int) for number in numbers):
            return numbers
        with _disable_current_modes():
            positions = torch.tensor(numbers)
        return self._here(positions)

    def _read(self, tensor: Tensor, what: str) -> Tensor:
        values = _values_of(tensor)
        if values is None:
            raise ForwardError(data_dependent(what))
        if hasattr(tensor.untyped_storage(), "drawn"):
            self.draws.add(self.here())
        return values

    def _recurrent_results(self, record: Any) -> Any:
        return record.shapes()

    # The operators, below autograd.

    def _run(self, func: Any, operator: Operator, args: tuple, kwargs: dict) -> Any:
        """Run on the meta device, and on values where all that is read is known."""
        given = tuple([mapped(value, self._here) for value in args])
        if kwargs:
            kwargs = {key: mapped(value, self._here) for key, value in kwargs.items()}
        if operator.takes_device and (kwargs.get("device") is not None or not _has_tensor(given)):
            if self._has_memory and kwargs.get("device") == _HERE:
                return func(*args, **kwargs)
            kwargs["device"] = META
        if operator.name == "index":
            given = (given[0], self._positions(given[1]), *given[2:])
        if operator.name == "_pack_padded_sequence":
            sizes = batch_sizes(given[0], self._read(given[1], operator.text).tolist(), given[2])
            return given[0].new_empty((sum(sizes), *given[0].shape[2:])), self._here(
                torch.tensor(sizes)
            )
        tensors = list(tensors_in((*given, *kwargs.values())))
        is_known = operator.name in _IGNORING or all(_is_known(tensor) for tensor in tensors)
        if operator.reads_values and operator.name != "index":
            return self._of_values(func, operator, given, kwargs, tensors if is_known else None)
        result = self._on_meta(func, operator, given, kwargs)
        made = list(tensors_in((result,)))
        for tensor in made:
            _check_dense(tensor)
        if is_known and not self._is_sealed and all(tensor.numel() <= LIMIT for tensor in made):
            self._on_values(func, operator, given, kwargs, made)
            self._note_draws(operator, tensors, made)
        else:
            for tensor in written(operator, given):
                _forget(tensor)
            answer = everywhere(operator.name, given, _everywhere)
            if answer is not None and made[0].dtype == torch.bool:
                _keep_everywhere(made[0], answer=answer)
        return self._as_given(result, operator, args, given)

    def _as_given(self, result: Any, operator: Operator, args: tuple, given: tuple) -> Any:
        """Hand back the tensor that was given where an operator wrote into its stand-in."""
        return next(
            (
                args[place]
                for place in operator.writes
                if place < len(args) and result is given[place]
            ),
            result,
        )

    def _positions(self, indices: Any) -> list:
        """Replace masks by the positions that they select, which must be known."""
        positions: list = []
        for index in indices:
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                found = self._read(index, "aten.index.Tensor with a mask").nonzero().unbind(1)
                positions += [
                    _lend(shape_only(place), place.contiguous(), LIMIT) for place in found
                ]
            else:
                positions.append(index)
        return positions

    def _of_values(
        self, func: Any, operator: Operator, args: tuple, kwargs: dict, known: list[Tensor] | None
    ) -> Any:
        """Run an operator whose result, or the shape of it, depends on the values that it reads."""
        if operator.name == "masked_select" and known is None:
            mask = self._read(args[1], operator.text)
            return args[0].new_empty(
                int(mask.expand(torch.broadcast_shapes(mask.shape, args[0].shape)).sum())
            )
        if (
            operator.name == "repeat_interleave"
            and kwargs.get("output_size") is not None
            and known is None
        ):
            return self._on_meta(func, operator, args, kwargs)
        if known is None:
            raise ForwardError(data_dependent(operator.text))
        values = func(
            *mapped(args, _values_of),
            **{key: mapped(value, _values_of) for key, value in kwargs.items()},
        )
        result = mapped(values, lambda tensor: _lend(shape_only(tensor), tensor, LIMIT))
        self._note_draws(operator, known, list(tensors_in((result,))))
        return result

    def _on_meta(self, func: Any, operator: Operator, args: tuple, kwargs: dict) -> Any:
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

    def _on_values(
        self, func: Any, operator: Operator, args: tuple, kwargs: dict, made: list[Tensor]
    ) -> None:
        """Work out the values of a result that is known, and keep them with it."""
        if (
            not operator.writes
            and made
            and all(hasattr(tensor.untyped_storage(), "values") for tensor in made)
        ):
            return  # a view
        for tensor in written(operator, args):
            _own(tensor)
        reading = _empty_of if operator.name in _IGNORING else _values_of
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _HERE}
        values = func(
            *mapped(args, reading), **{key: mapped(value, reading) for key, value in kwargs.items()}
        )
        for tensor, value in zip(made, tensors_in((values,)), strict=True):
            if not hasattr(tensor.untyped_storage(), "values"):
                _keep(tensor, value)


def data_dependent(what: str) -> str:
    """Return the one sentence for a forward that needs values which are not known."""
    return (
        f"the forward needs the values of an activation ({what}), and counting knows only shapes, "
        "and what integer and boolean inputs hold; pass values=True to run it once on real "
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
    own = values.untyped_storage()[values.storage_offset() * values.itemsize :]
    stand_in.untyped_storage().values = own  # type: ignore[attr-defined]  # an attribute of ours


def _lend(stand_in: Tensor, tensor: Tensor, floats: int) -> Tensor:
    """Let ``stand_in`` show the values of a tensor that is not ours, if it is small; ``floats`` for
    floating point.
    """
    limit = floats if tensor.is_floating_point() else LIMIT
    if not tensor.is_meta and tensor.numel() <= limit:
        with _disable_current_modes():
            _keep(stand_in, tensor.detach().cpu())
        stand_in.untyped_storage().is_lent = True  # type: ignore[attr-defined]  # an attribute of ours
    return stand_in


def _own(tensor: Tensor) -> None:
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


def _everywhere(tensor: Tensor) -> bool | None:
    return getattr(tensor.untyped_storage(), "everywhere", None)


def _keep_everywhere(tensor: Tensor, *, answer: bool) -> None:
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
        raise not_dense(tensor)
