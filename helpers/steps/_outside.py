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

_CACHE_TYPE = type(functools.lru_cache(len))
# names from the model's code on, and entries of a container
_MAX_DEPTH, _NEAR_DEPTH, _MAX_ENTRIES = 3, 2, 50
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

    >>> class Caching(nn.Module):
    ...     table = {}
    ...     forward = lambda self, x: self.table.setdefault("twice", 2 * x).shape
    >>> with nothing_left(Caching()):
    ...     shape = Caching()(torch.ones(2, device="meta"))
    >>> Caching.table
    {}
    """
    global _is_open
    with ONE_AT_A_TIME:
        if _is_open:  # a run within a run
            yield
            return
        _is_open = True
        try:
            tables = _find_tables(model)
            earlier_objects = _set_aside()
            try:
                yield
            except BaseException:
                _take_back(tables, earlier_objects)
                raise
            holder_names = _take_back(tables, earlier_objects)
        finally:
            _is_open = False
    if holder_names:
        raise ModelError(
            f"the forward keeps a tensor that it computes in {', '.join(sorted(holder_names))}, "
            "outside of the model, and one without data would stay there; run the model once on "
            "real data first, so that the tensor is a real one"
        )


def _find_tables(model: nn.Module) -> dict[int, tuple[Any, Any]]:
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
    level_values: Iterable[Any] = [*kinds, *files, *functions]
    seen: set[int] = set()
    for depth in range(_MAX_DEPTH + 1):
        named_values: list[Any] = []
        for value in level_values:
            if id(value) in seen:
                continue
            seen.add(id(value))
            for owner, holder in _find_holders(value, depth):
                if id(holder) not in tables:
                    contents_before = _contents_of(holder)
                    tables[id(holder)] = owner, contents_before
                    named_values += (
                        contents_before.values()
                        if isinstance(contents_before, dict)
                        else contents_before
                    )
        holder_kinds = {kind for kind in set(map(type, named_values)) if _may_hold(kind)}
        level_values = itertools.compress(
            named_values, map(holder_kinds.__contains__, map(type, named_values))
        )
    return tables


@functools.cache
def _may_hold(kind: type) -> bool:
    if issubclass(kind, (types.FunctionType, types.ModuleType, type, *CONTAINERS)):
        return True
    if is_closed(kind):  # type: ignore[arg-type]  # mypy's own fault
        return False
    return bool(kind.__dictoffset__ or slots(kind))  # type: ignore[arg-type]  # mypy's own fault


def _find_holders(value: Any, depth: int) -> list[tuple[Any, Any]]:
    """Return the places where code may keep a tensor, where it has a name for ``value``: each with
    its owner.

    A function names its closure, its attributes and its file's globals, a class or a module what it
    holds. These and long containers are followed only near the model (classes one step further),
    and not into other installed packages than its own: the names of names are thousands.
    """
    is_near = depth < _NEAR_DEPTH
    if isinstance(value, types.FunctionType):
        closure = [(cell, cell) for cell in value.__closure__] if value.__closure__ else []
        if is_near and not (depth and _is_installed(value.__globals__.get("__name__"))):
            return [*closure, (value.__globals__, value.__globals__), (vars(value), vars(value))]
        return closure
    if isinstance(value, type):
        is_followed = depth < _MAX_DEPTH and not (depth and _is_installed(value.__module__))
        return [(value, gc.get_referents(vars(value))[0])] if is_followed else []
    if isinstance(value, types.ModuleType):
        return [(vars(value), vars(value))] if is_near and not _is_installed(value.__name__) else []
    if isinstance(value, CONTAINERS):
        return [(value, value)] if is_near or len(value) <= _MAX_ENTRIES else []
    attribute_dict = getattr(value, "__dict__", None)
    attributes = [(attribute_dict, attribute_dict)] if isinstance(attribute_dict, dict) else []
    return [*attributes, (value, value)] if slots(type(value)) else attributes  # type: ignore[arg-type]  # mypy's own fault


@functools.cache
def _is_installed(module: object) -> bool:
    name = str(module)
    file = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None) or ""
    return _is_of_library(name) or name.startswith("helpers.") or "site-packages" in file


@functools.cache
def _is_of_library(module: object) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _contents_of(holder: Any) -> Any:
    if isinstance(holder, CONTAINERS):
        return contents(holder)
    names = ("cell_contents",) if isinstance(holder, types.CellType) else slots(type(holder))  # type: ignore[arg-type]  # mypy's own fault
    # an empty cell has no contents
    return {name: getattr(holder, name) for name in names if hasattr(holder, name)}


def _set_aside() -> list[Any] | None:
    """Part the objects that live now from those that the run will make: freeze them, and what is
    not frozen at the end is new.

    Where the caller has frozen objects, only these may stay frozen, because what is frozen never
    counts as garbage. So the others are returned in a list, which keeps their addresses from being
    given to a new object.

    Python counts frozen objects one by one, a tenth of a second for a million, so that they are
    counted once: they have been set free only where the others are as many, and the list of the
    count, which may have been frozen with all else, is among them.
    """
    earlier_objects = gc.get_objects() if _FROZEN else []
    if not _FROZEN or (
        len(earlier_objects) >= _FROZEN[0] and id(_FROZEN) in map(id, earlier_objects)
    ):
        _FROZEN[:] = filter(None, [gc.get_freeze_count()])
        earlier_objects = gc.get_objects() if _FROZEN else []
    if _FROZEN:
        return earlier_objects
    gc.freeze()
    return None


def _take_back(tables: dict[int, tuple[Any, Any]], earlier_objects: list[Any] | None) -> set[str]:
    """Undo the references to new tensors without data; return the classes of the holders where that
    cannot be done.

    Where the caller had frozen objects (``earlier_objects`` is a list) they stay frozen. If a
    tensor is left, so does all else that lives then, since a holder among the frozen objects is
    found only while nothing is frozen.
    """
    known_ids: set[int] = set()
    leaked = _without_data(known_ids)
    if leaked and earlier_objects is not None:
        known_ids = set(map(id, earlier_objects))
        leaked = [tensor for tensor in leaked if id(tensor) not in known_ids]
    if leaked:
        del leaked
        torch.clear_autocast_cache()  # it keeps casts of the weights
        gc.collect()
        _take_apart(_without_data(known_ids))
        leaked = _without_data(known_ids)
    references = list(map(weakref.ref, leaked))
    run_holders = _climb(leaked, tables, known_ids)
    was_frozen = bool(leaked) and earlier_objects is not None and gc.get_freeze_count() > 0
    if leaked or earlier_objects is None:
        gc.unfreeze()
    holder_names = _undo(leaked, run_holders, tables) if leaked else set()
    del leaked, run_holders
    if was_frozen:
        gc.freeze()
    is_leaked = any(reference() is not None for reference in references)
    return holder_names or ({"a place that Python does not show"} if is_leaked else set())


def _take_apart(tensors: list[Tensor]) -> None:
    """Take tensors out of autograd's graph: one that was written in place and saved keeps the graph
    that it is in.

    A view cannot be detached, but its base can, and a view whose version has changed asks its base
    for its own graph. A base that is older than the run and a leaf, such as a parameter on the meta
    device, stays as it is.
    """
    ids = set(map(id, tensors))
    graphed = [tensor for tensor in tensors if tensor.grad_fn is not None]
    views = []
    owners = [tensor for tensor in graphed if tensor._base is None]
    for tensor in graphed:
        base = tensor._base
        if base is not None and (id(base) in ids or base.grad_fn is not None):
            views.append(tensor)
            owners.append(base)
    for tensor in owners:
        tensor.detach_()
    for view in views:
        # one of the several views that one operator gives keeps its graph
        with suppress(RuntimeError):
            increment_version([view])
            _ = view.grad_fn


def _without_data(known_ids: set[int]) -> list[Tensor]:
    """Return the tensors without data that are neither frozen nor in ``known_ids``."""
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, Tensor)}
    tensors = itertools.compress(objects, map(kinds.__contains__, map(type, objects)))
    return [
        tensor
        for tensor in tensors
        if (isinstance(tensor, FakeTensor) or tensor.is_meta) and id(tensor) not in known_ids
    ]


def _climb(
    items: list[Any], tables: dict[int, tuple[Any, Any]], known_ids: set[int]
) -> dict[int, tuple[Any, set[int]]]:
    """Go from tensors to their holders, as far as the run has made them: neither frozen nor in
    ``known_ids``.

    Returns, by id, each such holder and the ids of what it holds for the run.
    """
    run_holders: dict[int, tuple[Any, set[int]]] = {}
    ignored_ids = {id(tables), id(run_holders), *known_ids, *tables}
    while items:
        ids = set(map(id, items))
        holders: list[Any] = []
        ignored_ids |= {id(items), id(holders)}
        for holder in gc.get_referrers(*items):
            # frames let go when they end, and a cache of functools is emptied as a whole
            is_passed_over = isinstance(holder, (types.FrameType, _CACHE_TYPE))
            if not is_passed_over and id(holder) not in ignored_ids:
                holders.append(holder)
                ids_inside = set(map(id, gc.get_referents(holder))) & ids
                run_holders[id(holder)] = (holder, ids_inside)
        ignored_ids |= {*run_holders, *map(id, run_holders.values())}
        items = holders
    return run_holders


def _undo(
    leaked: list[Any],
    run_holders: dict[int, tuple[Any, set[int]]],
    tables: dict[int, tuple[Any, Any]],
) -> set[str]:
    """Take the run's objects out of the first holders that are older; return the classes where that
    fails.

    A dictionary may only look new, since Python does not track one of plain values: it is emptied
    where what holds it is older, and held it already if that is known.
    """
    holder_names: set[str] = set()
    ids_inside = {key: ids for key, (_, ids) in run_holders.items()}
    items = [*leaked, *(holder for holder, _ in run_holders.values())]
    ids = set(map(id, items))
    ignored_ids = set(map(id, (leaked, items, run_holders, tables, *run_holders.values())))
    ignored_ids |= {id(part) for entry in tables.values() for part in (entry, entry[1])}
    ignored_ids |= run_holders.keys()
    for holder in gc.get_referrers(*items):
        if id(holder) in ignored_ids or isinstance(holder, types.FrameType):
            continue
        if isinstance(holder, _CACHE_TYPE):
            holder.cache_clear()
        elif id(holder) in tables:
            _reset(holder, *tables[id(holder)], ids, ids_inside)
        else:
            failed_class = _remove(holder, ids)
            parts = gc.get_referents(holder) if failed_class else []
            for part in [part for part in parts if id(part) in ids]:
                failed_class = _remove(part, ids_inside.get(id(part), set())) and failed_class
            if failed_class:
                holder_names.add(f"a {failed_class.__module__}.{failed_class.__qualname__}")
    return holder_names


def _reset(
    holder: Any, owner: Any, before: Any, ids: set[int], ids_inside: dict[int, set[int]]
) -> None:
    """Give a holder of one of ``ids`` its old content back; a value in it that is older loses its
    own new content.
    """
    current = _contents_of(holder)
    older_ids = set(map(id, before.values() if isinstance(before, dict) else before))
    for value in current.values() if isinstance(current, dict) else current:
        if id(value) in ids & older_ids:
            _remove(value, ids_inside[id(value)])
    if not isinstance(current, dict):
        put_back(owner, before)
        return
    for name in [name for name, value in current.items() if id(value) in ids - older_ids]:
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
