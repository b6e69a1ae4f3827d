"""Look into objects of any class: the tensors they hold, a copy of them, and their state, to be put
back.

Lesson 11.
"""

from __future__ import annotations

import copy
import functools
import gc
import operator
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

# OrderedDict stands before dict: the methods of dict would lose the order that it keeps beside.
CONTAINERS = (list, OrderedDict, dict, set, deque)
_BARE = frozenset({list, OrderedDict, dict, set})
_HOLDERS, _ORDERED = (tuple, frozenset, *CONTAINERS), (list, tuple)
_PLAIN = frozenset(
    {int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size}
)
# Code is no state of an object, and of what stands in these packages some changes on other threads.
CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_ENDS = (Tensor, *CODE)
_CLOSED = frozenset(
    {"torch", "threading", "logging", "weakref", "_weakrefset", "concurrent", "multiprocessing"}
)
_OPEN = ("torch.nn.", "torch.distributions.")
_TRUSTED = frozenset({*sys.stdlib_module_names, "numpy", "torch"})
_HAS_REFERENCES = 1 << 14  # Py_TPFLAGS_HAVE_GC: objects of the class tell what they refer to


def reachable(*roots: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield these objects and all that they hold, at any depth, each once and in order.

    Objects whose ids are in ``seen`` are passed over, and the others are added to it. Followed are
    containers, tuples, attributes, and the references of classes written in C. Tensors, code and
    objects of PyTorch's own classes (but modules and distributions) are yielded and not looked
    into.
    """
    seen = set() if seen is None else seen
    waiting = list(reversed(roots))
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind in _PLAIN or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if kind in _BARE and not value and (kind is not OrderedDict or not vars(value)):
            continue  # a module holds a dozen that are empty
        if _is_followed(kind):  # type: ignore[arg-type]  # mypy's own fault
            referents = gc.get_referents(value)
            attributes = getattr(value, "__dict__", None)
            if kind is OrderedDict and not attributes:  # their attributes would be most of all
                referents = [part for part in referents if part is not attributes]
            elif isinstance(attributes, dict):
                referents.append(attributes)
            if isinstance(value, _ORDERED):
                items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
                referents = [*items, *referents]
            waiting += reversed(referents)


@functools.cache
def _is_followed(kind: type) -> bool:
    return not issubclass(kind, _ENDS) and (issubclass(kind, _HOLDERS) or not is_closed(kind))  # type: ignore[arg-type]  # mypy's own fault


@functools.cache
def is_closed(kind: type) -> bool:
    """Tell whether objects of ``kind`` are PyTorch's or Python's own business."""
    module = str(kind.__module__)
    return (
        module.partition(".")[0] in _CLOSED
        and not module.startswith(_OPEN)
        and not issubclass(kind, nn.Module)
    )


def tensors_of(*roots: Any) -> list[Tensor]:
    """Return the tensors that objects of any class hold at any depth, each once and in order.

    >>> x, y = torch.ones(2), torch.zeros(3)
    >>> [tuple(tensor.shape) for tensor in tensors_of({"x": x, "rest": [y, (x, "text")]})]
    [(2,), (3,)]
    """
    return [value for value in reachable(*roots) if isinstance(value, Tensor)]


def opaque_classes(*roots: Any) -> list[str]:
    """Return the classes, by name, of objects that cannot be looked into: written in C, they tell
    no references.

    >>> opaque_classes([torch.ones(2), np.ones(2), "text"])
    []
    >>> opaque_classes([np.array([print, len])])
    ['numpy.ndarray']
    """
    kinds = {type(value) for value in reachable(*roots) if _is_opaque(value)}
    return sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)


def _is_opaque(value: Any) -> bool:
    kind = type(value)
    package = str(kind.__module__).partition(".")[0]
    if package in _TRUSTED:
        return isinstance(value, torch.ScriptObject) or (
            isinstance(value, np.ndarray) and value.dtype.hasobject
        )
    is_silent = type(kind).__name__ == "pybind11_type" or not kind.__flags__ & _HAS_REFERENCES
    return is_silent and kind.__basicsize__ > object.__basicsize__


def duplicate(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of ``value`` at every depth; ``memo`` has the replacements of objects, by their
    ids.

    What cannot be looked into is shared. Raises what :func:`copy.deepcopy` raises.
    """
    for member in reachable(value):
        if isinstance(member, types.ModuleType) or _is_opaque(member):
            memo[id(member)] = member
        elif isinstance(member, PackedSequence):
            # its constructor refuses lengths that have no values
            memo[id(member)] = tuple.__new__(
                PackedSequence, [memo.get(id(part), part) for part in member]
            )
    return copy.deepcopy(value, memo)


def _restore_bits(generator: np.random.Generator) -> Callable[[], None]:
    bits = generator.bit_generator
    return functools.partial(setattr, bits, "state", bits.state)


def _restore_array(array: np.ndarray) -> Callable[[], None]:
    return (
        functools.partial(np.copyto, array, array.copy()) if array.flags.writeable else lambda: None
    )


# What gives a random generator its state back, and what is no tensor its values, where a model
# holds them as its own.
_KEEPERS: dict[type, Callable[[Any], Callable[[], Any]]] = {
    np.ndarray: _restore_array,
    bytearray: lambda value: functools.partial(value.__setitem__, slice(None), bytes(value)),
    torch.Generator: lambda value: functools.partial(value.set_state, value.get_state()),
    random.Random: lambda value: functools.partial(value.setstate, value.getstate()),
    np.random.RandomState: lambda value: functools.partial(value.set_state, value.get_state()),
    np.random.Generator: _restore_bits,
}


class State:
    """The state of objects, at any depth: attributes, contents of containers, random generators;
    tensors by identity.

    A tensor among the keys of ``originals`` gets its values back as well, where they were written,
    from the tensor that it is a copy of, by ``refill``.
    """

    def __init__(
        self,
        *roots: Any,
        originals: Mapping[Tensor, Tensor],
        refill: Callable[..., Any] = Tensor.copy_,
    ) -> None:
        self._undo: list[Callable[[], Any]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._refill, self.originals = refill, dict(originals)
        self._versions = {tensor: tensor._version for tensor in originals}
        self._leaves = {tensor for tensor in originals if tensor.is_leaf}
        self._empty: list[Any] = []
        for value in reachable(*roots):
            kind = type(value)
            # attributes that it has not are not reached
            if kind is OrderedDict and not vars(value):
                self._empty.append(vars(value))
            if kind in _BARE:
                if value:
                    self._containers.append((value, contents(value)))
                else:
                    self._empty.append(value)
                continue
            if kind in _KEEPERS:
                self._undo.append(_KEEPERS[kind](value))
            elif isinstance(value, CONTAINERS):
                self._containers.append((value, contents(value)))
            names = slots(type(value))  # type: ignore[arg-type]  # mypy takes its objects' __hash__ for the class's own
            if names:
                slot_values = {name: getattr(value, name) for name in names if hasattr(value, name)}
                self._undo.append(functools.partial(_reset, value, slot_values))

    def restore(self) -> None:
        """Put everything back."""
        for undo in self._undo:
            undo()
        for container, before in self._containers:
            put_back(container, before)
        for container in filter(None, self._empty):
            container.clear()
        for tensor, version in self._versions.items():
            if tensor._version != version:
                self._refill_one(tensor)
                self._versions[tensor] = tensor._version

    def _refill_one(self, tensor: Tensor) -> None:
        """Give a tensor its size and its values back, and take it out of the graph that wrote
        it.
        """
        original = self.originals[tensor]
        with torch.no_grad():
            if tensor.shape != original.shape:
                tensor.resize_(original.shape)
            self._refill(tensor, original)
        if tensor in self._leaves and tensor.grad_fn is not None and not tensor._is_view():
            tensor.detach_()


@functools.cache
def slots(kind: type) -> tuple[str, ...]:
    """Return the names of the attributes that objects of ``kind`` keep outside a dictionary."""
    return tuple(
        name
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, value in vars(base).items()
        if isinstance(value, types.MemberDescriptorType)
    )


def contents(container: Any) -> Any:
    """Return the contents of a container, in a plain one."""
    if type(container) is dict:
        return container.copy()
    if isinstance(container, dict):  # a subclass may make its items as they are asked for
        kind = OrderedDict if isinstance(container, OrderedDict) else dict
        return dict(kind.items(container))
    return set(container) if isinstance(container, set) else list(container)


def put_back(container: Any, before: Any) -> None:
    """Put the contents back by the methods of the plain type, whatever a subclass makes of them, if
    they changed.
    """
    if _is_unchanged(container, before):
        return
    kind: type[Any] = next(kind for kind in CONTAINERS if isinstance(container, kind))
    kind.clear(container)
    (kind.extend if kind in (list, deque) else kind.update)(container, before)


def _reset(owner: Any, before: dict[str, Any]) -> None:
    """Give an object with slots its attributes back, and take away those it did not have."""
    for name in slots(type(owner)):  # type: ignore[arg-type]  # as above
        if name in before:
            if getattr(owner, name, None) is not before[name] or not hasattr(owner, name):
                object.__setattr__(owner, name, before[name])
        elif hasattr(owner, name):
            object.__delattr__(owner, name)


def _is_unchanged(current: Any, before: Any) -> bool:
    """Tell whether two containers hold the same objects in the same order, without comparing the
    objects.
    """
    if len(current) != len(before):
        return False
    if not current:
        return True
    if isinstance(current, dict):
        current = current if type(current) is dict else contents(current)
        return all(map(operator.is_, current, before)) and all(
            map(operator.is_, current.values(), before.values())
        )
    if isinstance(current, set):
        return set(map(id, current)) == set(map(id, before))
    return all(map(operator.is_, current, before))
