"""Take back what a run on shapes has put outside the model: in caches of functools, classes,
globals, closures.

Code keeps tables there (positions, anchors, masks), to compute them once. A table that a run on
shapes has filled holds a tensor without data, and every later run that meets it fails or, on fake
tensors, gives a fake result. Lesson 11.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import increment_version

from helpers.steps._inputs import ModelError
from helpers.steps._objects import CONTAINERS, contents, is_closed, put_back, slots
from helpers.steps._turns import ONE_AT_A_TIME

_CACHE = type(functools.lru_cache(len))
_DEPTH, _NEAR, _SHORT = 3, 2, 50  # names from the model's code on, and entries of a container
_LIBRARIES = frozenset({*sys.stdlib_module_names, "builtins", "torch"})
_MISSING = object()
_FROZEN: list[int] = []  # how many objects had been frozen, where a run found some
_is_open = False


@contextmanager
def nothing_left(model: nn.Module) -> Iterator[None]:
    """Take back at the end each tensor without data that a run on shapes has put where ``model``'s
    code keeps tables.

    The body must hold none of its tensors when it ends. A cache of functools that holds one is
    emptied. Attributes of the model's classes, globals of their files, and variables of the
    closures that it holds get their old values; other dictionaries, lists and sets lose the tensor.
    This happens after an exception too.

    Raises ModelError for a tensor in another place, which it names.
    """
    global _is_open
    with ONE_AT_A_TIME:
        if _is_open:  # a run within a run
            yield
            return
        _is_open = True
        try:
            tables = _tables(model)
            older = _set_aside()
            try:
                yield
            except BaseException:
                _take_back(tables, older)
                raise
            places = _take_back(tables, older)
        finally:
            _is_open = False
    if places:
        raise ModelError(
            f"the forward keeps a tensor that it computes in {', '.join(sorted(places))}, outside "
            "of the model, and one without data would stay there; run the model once on real data "
            "first, so that the tensor is a real one"
        )


def _tables(model: nn.Module) -> dict[int, tuple[Any, Any]]:
    """Return, by id, the dictionaries, lists and cells that code reaches by name: their owners and
    their contents.
    """
    modules = list(model.modules())
    kinds = {
        base
        for kind in set(map(type, modules))
        for base in kind.__mro__
        if not _is_of_library(base.__module__)
    }
    values = [*itertools.chain.from_iterable(vars(module).values() for module in modules)]
    dicts = [value for value in values if isinstance(value, dict) and value]
    values += itertools.chain.from_iterable(value.values() for value in dicts)
    functions = {value for value in values if type(value) is types.FunctionType}
    files: list[Any] = [
        vars(sys.modules[kind.__module__]) for kind in kinds if kind.__module__ in sys.modules
    ]
    tables: dict[int, tuple[Any, Any]] = {}
    level: Iterable[Any] = [*kinds, *files, *functions]
    seen: set[int] = set()
    for depth in range(_DEPTH + 1):
        held: list[Any] = []
        for value in level:
            if id(value) in seen:
                continue
            seen.add(id(value))
            for owner, holder in _holders(value, depth):
                if id(holder) not in tables:
                    before = _held(holder)
                    tables[id(holder)] = owner, before
                    held += before.values() if isinstance(before, dict) else before
        sorts = {kind for kind in set(map(type, held)) if _may_hold(kind)}
        level = itertools.compress(held, map(sorts.__contains__, map(type, held)))
    return tables


@functools.cache
def _may_hold(kind: type) -> bool:
    if issubclass(kind, (types.FunctionType, types.ModuleType, type, *CONTAINERS)):
        return True
    if is_closed(kind):  # type: ignore[arg-type]  # mypy's own fault
        return False
    return bool(kind.__dictoffset__ or slots(kind))  # type: ignore[arg-type]  # mypy's own fault


def _holders(value: Any, depth: int) -> list[tuple[Any, Any]]:
    """Return what code may keep a tensor in, where it has a name for ``value``: each with its
    owner.

    A function names its closure, its attributes and its file's globals, a class or a module what it
    holds. These and long containers are followed only near the model (classes one step further),
    and not into other installed packages than its own: the names of names are thousands.
    """
    is_near = depth < _NEAR
    if isinstance(value, types.FunctionType):
        closure = [(cell, cell) for cell in value.__closure__] if value.__closure__ else []
        if is_near and not (depth and _is_installed(value.__globals__.get("__name__"))):
            return [*closure, (value.__globals__, value.__globals__), (vars(value), vars(value))]
        return closure
    if isinstance(value, type):
        is_followed = depth < _DEPTH and not (depth and _is_installed(value.__module__))
        return [(value, gc.get_referents(vars(value))[0])] if is_followed else []
    if isinstance(value, types.ModuleType):
        return [(vars(value), vars(value))] if is_near and not _is_installed(value.__name__) else []
    if isinstance(value, CONTAINERS):
        return [(value, value)] if is_near or len(value) <= _SHORT else []
    own = getattr(value, "__dict__", None)
    attributes = [(own, own)] if isinstance(own, dict) else []
    return [*attributes, (value, value)] if slots(type(value)) else attributes  # type: ignore[arg-type]  # mypy's own fault


@functools.cache
def _is_installed(module: object) -> bool:
    name = str(module)
    file = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None) or ""
    return _is_of_library(name) or name.startswith("helpers.") or "site-packages" in file


@functools.cache
def _is_of_library(module: object) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _held(holder: Any) -> Any:
    if isinstance(holder, CONTAINERS):
        return contents(holder)
    names = ("cell_contents",) if isinstance(holder, types.CellType) else slots(type(holder))  # type: ignore[arg-type]  # mypy's own fault
    # an empty cell has no contents
    return {name: getattr(holder, name) for name in names if hasattr(holder, name)}


def _set_aside() -> list[Any] | None:
    """Part what lives now from what the run will make: freeze it, and what is not frozen at the end
    is new.

    Where the caller has frozen objects, only these may stay frozen, because what is frozen never
    counts as garbage. So the others are returned in a list, which keeps their addresses from being
    given to a new object.

    Python counts frozen objects one by one, a tenth of a second for a million, so that they are
    counted once: they have been set free only where the others are as many, and the list of the
    count, which may have been frozen with all else, is among them.
    """
    older = gc.get_objects() if _FROZEN else []
    if not _FROZEN or (len(older) >= _FROZEN[0] and id(_FROZEN) in map(id, older)):
        _FROZEN[:] = filter(None, [gc.get_freeze_count()])
        older = gc.get_objects() if _FROZEN else []
    if _FROZEN:
        return older
    gc.freeze()
    return None


def _take_back(tables: dict[int, tuple[Any, Any]], older: list[Any] | None) -> set[str]:
    """Undo what holds a new tensor without data; return the classes of the holders where that
    cannot be done.

    Where the caller had frozen objects (``older`` is a list) they stay frozen. If a tensor is left,
    so does all else that lives then, since a holder among the frozen objects is found only while
    nothing is frozen.
    """
    left, known = _without_data(), set()
    if left and older is not None:
        known = set(map(id, older))
        left = [tensor for tensor in left if id(tensor) not in known]
    if left:
        del left
        torch.clear_autocast_cache()  # it keeps casts of the weights
        gc.collect()
        _take_apart([tensor for tensor in _without_data() if id(tensor) not in known])
        left = [tensor for tensor in _without_data() if id(tensor) not in known]
    references = list(map(weakref.ref, left))
    inside = _climb(left, tables, known)
    was_frozen = bool(left) and older is not None and gc.get_freeze_count() > 0
    if left or older is None:
        gc.unfreeze()
    places = _undo(left, inside, tables) if left else set()
    del left, inside
    if was_frozen:
        gc.freeze()
    is_left = any(reference() is not None for reference in references)
    return places or ({"a place that Python does not show"} if is_left else set())


def _take_apart(tensors: list[Tensor]) -> None:
    """Take tensors out of autograd's graph: one that was written in place and saved keeps the graph
    that it is in.

    A view cannot be detached, but its base can, and a view whose version has changed asks its base
    for its own graph. A base that is older than the run and a leaf, such as a parameter on the meta
    device, stays as it is.
    """
    ids = set(map(id, tensors))
    graphed = [tensor for tensor in tensors if tensor.grad_fn is not None]
    bases = [(tensor, tensor._base) for tensor in graphed]
    views = [
        (view, base)
        for view, base in bases
        if base is not None and (id(base) in ids or base.grad_fn is not None)
    ]
    for tensor in (
        *(tensor for tensor, base in bases if base is None),
        *(base for _, base in views),
    ):
        tensor.detach_()
    for view, _ in views:
        # one of the several views that one operator gives keeps its graph
        with suppress(RuntimeError):
            increment_version([view])
            _ = view.grad_fn


def _without_data() -> list[Tensor]:
    """Return the tensors without data that are not frozen."""
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, Tensor)}
    tensors = itertools.compress(objects, map(kinds.__contains__, map(type, objects)))
    return [tensor for tensor in tensors if isinstance(tensor, FakeTensor) or tensor.is_meta]


def _climb(
    items: list[Any], tables: dict[int, tuple[Any, Any]], known: set[int]
) -> dict[int, tuple[Any, set[int]]]:
    """Go from tensors to what holds them, as far as the run has made it: neither frozen nor
    ``known``.

    Returns, by id, each such holder and the ids of what it holds for the run.
    """
    inside: dict[int, tuple[Any, set[int]]] = {}
    ours = {id(tables), id(inside), *known}
    while items:
        ids = set(map(id, items))
        above: list[Any] = []
        ours |= {id(items), id(above)}
        for holder in gc.get_referrers(*items):
            if (
                id(holder) in ours
                or id(holder) in inside
                or id(holder) in tables
                or _is_passed_over(holder)
            ):
                continue
            above.append(holder)
            inside[id(holder)] = holder, {id(held) for held in gc.get_referents(holder)} & ids
        ours |= set(map(id, inside.values()))
        items = above
    return inside


def _is_passed_over(holder: Any) -> bool:
    """Frames let go when they end, and a cache of functools is emptied as a whole."""
    return isinstance(holder, (types.FrameType, _CACHE))


def _undo(
    left: list[Any], climbed: dict[int, tuple[Any, set[int]]], tables: dict[int, tuple[Any, Any]]
) -> set[str]:
    """Take what the run has made out of the first holders that are older; return the classes where
    that fails.

    A dictionary may only look new, since Python does not track one of plain values: it is emptied
    where what holds it is older, and held it already if that is known.
    """
    places: set[str] = set()
    inside = {key: ids for key, (_, ids) in climbed.items()}
    items = [*left, *(holder for holder, _ in climbed.values())]
    ids = set(map(id, items))
    ours = {id(left), id(items), id(climbed), id(tables), *map(id, climbed.values())}
    ours |= {id(part) for entry in tables.values() for part in (entry, entry[1])}
    for holder in gc.get_referrers(*items):
        if id(holder) in ours or id(holder) in inside or isinstance(holder, types.FrameType):
            continue
        if isinstance(holder, _CACHE):
            holder.cache_clear()
        elif id(holder) in tables:
            _reset(holder, *tables[id(holder)], ids, inside)
        else:
            stuck = _remove(holder, ids)
            for part in [part for part in gc.get_referents(holder) if stuck and id(part) in ids]:
                stuck = _remove(part, inside.get(id(part), set())) and stuck
            places |= {f"a {stuck.__module__}.{stuck.__qualname__}"} if stuck else set()
    return places


def _reset(
    holder: Any, owner: Any, before: Any, ids: set[int], inside: dict[int, set[int]]
) -> None:
    """Give what holds one of ``ids`` its old content back; what it held before already loses its
    own new content.
    """
    now = _held(holder)
    older = set(map(id, before.values() if isinstance(before, dict) else before))
    for value in now.values() if isinstance(now, dict) else now:
        if id(value) in ids & older:
            _remove(value, inside[id(value)])
    if not isinstance(now, dict):
        put_back(owner, before)
        return
    for name in [name for name, value in now.items() if id(value) in ids - older]:
        value = before.get(name, _MISSING)
        if not isinstance(owner, dict):
            delattr(owner, name) if value is _MISSING else setattr(owner, name, value)
        elif value is _MISSING:
            del holder[name]
        else:
            holder[name] = value


_ORDINARY = (*CONTAINERS, tuple, types.FrameType, types.CellType, types.GeneratorType)


def _remove(holder: Any, ids: Iterable[int]) -> type | None:
    """Take the objects with these ids out of a container; return the class of the object whose
    inside it is, if any.

    Its attributes of which nobody knows what they were become None, so that no run meets the
    tensor.
    """
    if not isinstance(holder, CONTAINERS):
        return type(holder)
    ids = set(ids)
    for owner in gc.get_referrers(holder):
        if isinstance(owner, type) and gc.get_referents(vars(owner))[0] is holder:
            _forget(owner, ids)
            return owner
        if (
            not isinstance(owner, (type, *_ORDINARY))
            and getattr(owner, "__dict__", holder) is holder
        ):
            if hasattr(owner, "__dict__"):
                _forget(owner, ids)
            return type(owner)
    if isinstance(holder, dict):
        for key in [key for key, value in holder.items() if {id(key), id(value)} & ids]:
            dict.pop(holder, key)
    else:
        put_back(holder, type(contents(holder))(value for value in holder if id(value) not in ids))
    return None


def _forget(owner: Any, ids: set[int]) -> None:
    for name, value in list(vars(owner).items()):
        if id(value) in ids and not isinstance(value, CONTAINERS):  # these lose what they hold
            setattr(owner, name, None)
