"""The settings of a DataLoader as one value, loaders made from it, one factor changed at a time, workers that end.

**Fork or spawn.** Linux forks a worker up to Python 3.13: it has the notebook's objects at once, also a dataset
of a cell, but a fork after CUDA was used must not touch CUDA. From 3.14 on Linux has forkserver, macOS and Windows have
spawn: the worker is a fresh Python that imports the dataset's module, so the dataset must stand in a file and be
picklable. ``start_method`` chooses; :func:`make_loader` refuses what would die in a worker, before one starts.

Lesson 06.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import pickle
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from helpers._checks import whole_number
from helpers.results import Result

Settings = TypeVar("Settings", bound=Result)


@dataclass(frozen=True)
class LoaderSettings(Result):
    """How a DataLoader loads: ``batch_size`` items a batch by ``workers`` processes (0: the training process itself).

    ``prefetch_factor`` is how many batches each worker has under way, ready or not; ``persistent_workers`` keeps them
    from one epoch to the next. Both are without meaning, and without effect, for 0 workers. ``pin_memory`` puts
    batches into page-locked memory, which only CUDA can use. ``start_method`` is "fork", "forkserver" or "spawn", None
    for the system's own. Raises TypeError or ValueError for what is not accepted. Lesson 06.
    """

    batch_size: int = 32
    workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool = False
    persistent_workers: bool = False
    start_method: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("workers", 0), ("prefetch_factor", 1)):
            whole_number(name, getattr(self, name), at_least=least)
        for name in ("pin_memory", "persistent_workers"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r} is not accepted; give True or False")
        methods = multiprocessing.get_all_start_methods()
        if self.start_method is not None and self.start_method not in methods:
            raise ValueError(f"start_method={self.start_method!r} is not one of this system's: {', '.join(methods)}; "
                             "None is its own choice")  # fmt: skip


def make_loader(dataset: Dataset, settings: LoaderSettings, *, shuffle: bool = False, seed: int = 0) -> DataLoader:
    """Return a DataLoader over ``dataset`` with ``settings``; ``seed`` alone decides the order where ``shuffle``.

    Use it in ``with workers_end(loader):`` so that its workers end with the block. The last batch holds what is left.

    Raises ValueError for pinned memory without a CUDA device, TypeError for a dataset that workers cannot import: one
    that was defined in a notebook's cell, where workers are not forked. Lesson 06.
    """
    if settings.pin_memory and not torch.cuda.is_available():
        raise ValueError(
            "pin_memory=True needs a CUDA device, and torch sees none here; pinned memory is for the copy to one. "
            "A SleepingAccelerator has a pinned link of its own: leave pin_memory at False"
        )
    working = settings.workers > 0
    if working:
        _refuse_cell_dataset(dataset, settings.start_method or multiprocessing.get_start_method())
    with _more_workers_than_cores_are_meant():
        return DataLoader(
            dataset,
            batch_size=settings.batch_size,
            shuffle=shuffle,
            num_workers=settings.workers,
            prefetch_factor=settings.prefetch_factor if working else None,
            persistent_workers=settings.persistent_workers and working,
            pin_memory=settings.pin_memory,
            multiprocessing_context=settings.start_method if working else None,
            generator=torch.Generator().manual_seed(whole_number("seed", seed, at_least=0)),
        )


@contextlib.contextmanager
def _more_workers_than_cores_are_meant() -> Iterator[None]:
    """Keep torch from warning of more workers than cores: whether they help is what a sweep is there to show."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def loader_iterator(loader: Iterable) -> Iterator:
    """Return ``iter(loader)``; a dataset that cannot go to a worker is one error, before a batch is asked for.

    Raises TypeError for it, and for what gives no batches.
    """
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader is a {type(loader).__name__}, which gives no batches; give a DataLoader or a list")
    try:
        with _more_workers_than_cores_are_meant():
            return iter(loader)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if getattr(loader, "num_workers", 0) == 0 or "pickle" not in str(error):
            raise
        raise TypeError(
            f"{type(loader.dataset).__name__} cannot be sent to a worker ({error}); a worker that is not forked gets "
            "the dataset pickled: no lambdas, open files or classes inside functions. Or give workers=0"
        ) from error


def _refuse_cell_dataset(dataset: Dataset, method: str) -> None:
    main = sys.modules["__main__"]
    if method != "fork" and type(dataset).__module__ == "__main__" and not hasattr(main, "__file__"):
        raise TypeError(
            f"{type(dataset).__name__} is defined in a notebook, and a worker started by {method} is a fresh Python "
            "that cannot import it from there; write the class to a file beside the notebook and import it, or give "
            "workers=0" + (" or start_method='fork'" if "fork" in multiprocessing.get_all_start_methods() else "")
        )


def vary(base: Settings, **factor: Sequence[Any]) -> tuple[Settings, ...]:
    """Return copies of ``base`` that differ in one factor: ``vary(LoaderSettings(), workers=(0, 1, 2, 4))``.

    An experiment that changes two factors at once cannot say which of them did it, so two are refused. Raises
    ValueError for no factor or two, a name that ``base`` does not have, no values, or a value twice. Lesson 06.
    """
    names = [field.name for field in dataclasses.fields(base)]
    if len(factor) != 1:
        given = " and ".join(factor) or "none"
        raise ValueError(
            f"vary changes one factor, and was given {given}; an effect has one cause only where one thing changed. "
            f"Give one of {', '.join(names)}, and vary the next in a run of its own"
        )
    ((name, values),) = factor.items()
    if name not in names:
        raise ValueError(f"{type(base).__name__} has no factor {name!r}; it has {', '.join(names)}")
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name}={values!r} is one value; give all that it takes, as in {name}=({values!r}, ...)")
    values = tuple(values)
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{name}={values} are no values to vary; give at least one, and each once")
    return tuple(dataclasses.replace(base, **{name: value}) for value in values)


def changed(first: Result, second: Result) -> tuple[str, ...]:
    """Return the names of the factors in which two settings of one type differ: more than one, and no cause is known.

    Raises TypeError for settings of two types. Lesson 06.
    """
    if type(first) is not type(second):
        raise TypeError(f"a {type(first).__name__} and a {type(second).__name__} have no factors in common; "
                        "give two of one type")  # fmt: skip
    names = [field.name for field in dataclasses.fields(first)]
    return tuple(name for name in names if getattr(first, name) != getattr(second, name))


@contextlib.contextmanager
def workers_end(loader: Iterable) -> Iterator[Iterable]:
    """Give ``loader`` to the block, and end its persistent workers afterwards, also after an exception. Lesson 06."""
    try:
        yield loader
    finally:
        end_workers(loader)


def end_workers(loader: object) -> None:
    """End the workers that ``loader``, or an iterator over one, still has; nothing happens where there are none.

    A loader's workers live as long as its iterator, and in a notebook the last exception's traceback, or Out[n], keeps
    that alive.
    """
    iterator = getattr(loader, "_iterator", None) if isinstance(loader, DataLoader) else loader
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()
    if isinstance(loader, DataLoader):
        loader._iterator = None
