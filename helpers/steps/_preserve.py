"""Give a model and the random generators back exactly as they were, whatever a step did to them. Lesson 11."""

from __future__ import annotations

import functools
import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from helpers.timing._runs import collector_off

# OrderedDict stands before dict: the methods of dict would lose the order that it keeps beside.
_CONTAINERS = (list, OrderedDict, dict, set, deque)
_PLAIN = frozenset({int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size})
# What is met here is no state of a model's own, and some of it changes on other threads.
_CLOSED = (Tensor, type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_FOREIGN = frozenset({"torch", "threading", "logging", "weakref", "_weakrefset", "concurrent", "multiprocessing"})


@contextmanager
def preserved(model: nn.Module, given: Any = None) -> Iterator[None]:
    """Restore at the end, also after an exception, the state of ``model``'s modules, of ``given`` and the generators.

    A forward may set attributes (a hidden state, a counter, a buffer), grow a list or a cache among its inputs, or draw
    random numbers. The attributes of modules and of the objects that they hold, and the contents of containers at any
    depth, are restored by identity; the tensors themselves are the caller's to protect, and attributes of classes are
    not seen.
    """
    attributes, containers, generators = _state_of([*model.modules(), given])
    with _generators_kept():
        try:
            yield
        finally:
            for now, before in containers:
                if not _same(now, before):
                    _refill(now, before)
            for owner, before in attributes:
                _reset(owner, before)
            for restore in generators:
                restore()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Give back the random generators as they were, and keep the garbage collector from a moment of its own choice."""
    with collector_off(), _generators_kept():
        yield


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Give the generators of torch, Python and NumPy their states back."""
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _restore_bits(generator: np.random.Generator) -> Callable[[], None]:
    bits = generator.bit_generator
    return functools.partial(setattr, bits, "state", bits.state)


# What gives a random generator, which a model may hold as its own, its state back.
_GENERATORS: dict[type, Callable[[Any], Callable[[], Any]]] = {
    torch.Generator: lambda value: functools.partial(value.set_state, value.get_state()),
    random.Random: lambda value: functools.partial(value.setstate, value.getstate()),
    np.random.RandomState: lambda value: functools.partial(value.set_state, value.get_state()),
    np.random.Generator: _restore_bits,
}


def _state_of(waiting: list[Any]) -> tuple[list, list, list]:
    """Return what these reach, as it is now: slots of objects, containers (attributes too) and generators."""
    attributes: list[tuple[Any, dict[str, Any]]] = []
    containers: list[tuple[Any, Any]] = []
    generators: list[Callable[[], Any]] = []
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if type(value) in _PLAIN or id(value) in seen or isinstance(value, _CLOSED):
            continue
        seen.add(id(value))
        if type(value) in _GENERATORS:
            generators.append(_GENERATORS[type(value)](value))
        elif isinstance(value, tuple | frozenset):
            waiting += value
        elif isinstance(value, _CONTAINERS):
            before = _copied(value)
            containers.append((value, before))
            waiting += before.values() if isinstance(before, dict) else before
        if not isinstance(value, nn.Module) and str(type(value).__module__).partition(".")[0] in _FOREIGN:
            continue
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            waiting.append(own)
        names = _slots(type(value))
        if names:
            slots = {name: getattr(value, name) for name in names if hasattr(value, name)}
            attributes.append((value, slots))
            waiting += slots.values()
    return attributes, containers, generators


@functools.cache
def _slots(kind: type) -> tuple[str, ...]:
    """Return the names of the attributes that objects of ``kind`` keep outside a dictionary."""
    return tuple(
        name
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, value in vars(base).items()
        if isinstance(value, types.MemberDescriptorType)
    )


def _copied(container: Any) -> Any:
    if isinstance(container, dict):
        return dict(container.items())
    return set(container) if isinstance(container, set) else list(container)


def _refill(container: Any, before: Any) -> None:
    """Put the contents back by the methods of the plain type, whatever a subclass makes of them."""
    kind = next(kind for kind in _CONTAINERS if isinstance(container, kind))
    kind.clear(container)
    (kind.extend if kind in (list, deque) else kind.update)(container, before)


def _reset(owner: Any, before: dict[str, Any]) -> None:
    """Give an object with slots its attributes back, and take away those it did not have."""
    for name in _slots(type(owner)):
        if name in before:
            if getattr(owner, name, None) is not before[name] or not hasattr(owner, name):
                object.__setattr__(owner, name, before[name])
        elif hasattr(owner, name):
            object.__delattr__(owner, name)


def _same(now: Any, before: Any) -> bool:
    """Tell whether two containers hold the same objects in the same order, without comparing the objects."""
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        pairs = zip(now.items(), before.items(), strict=True)
        return all(key is old_key and value is old for (key, value), (old_key, old) in pairs)
    if isinstance(now, set):
        return {id(value) for value in now} == {id(value) for value in before}
    return all(value is old for value, old in zip(now, before, strict=True))
