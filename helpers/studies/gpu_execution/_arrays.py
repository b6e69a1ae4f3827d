"""The arrays that a simulated kernel uses: each access is noted for its warp, and what a GPU lets
pass is refused.
"""

from __future__ import annotations

import math
import operator
import sys
from array import array as words
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from helpers.studies.gpu_execution._places import Follower, Place
from helpers.studies.gpu_execution._requests import WORD_BYTES
from helpers.studies.simulators import KernelError

ThreadNumber = tuple[int, int, int, int]  # block x, block y, thread x, thread y

_SEVERAL: ThreadNumber = (-1, -1, -1, -1)


def thread_name(thread: ThreadNumber) -> str:
    """Return a thread in words."""
    return (
        "more than one thread"
        if thread == _SEVERAL
        else f"thread {thread[2:]} of block {thread[:2]}"
    )


class Access(NamedTuple):
    """One access of one thread: where in the kernel, to which array, and to which byte."""

    place: Place
    array: DeviceArray
    stores: bool
    address: int


@dataclass(eq=False)
class LaunchedThread:
    """The thread that runs now, its accesses since the last barrier, and the barriers that any
    block has passed.
    """

    follower: Follower = field(default_factory=Follower)
    thread: ThreadNumber = (0, 0, 0, 0)
    interval: int = 0
    accesses: list[Access] = field(default_factory=list)


class DeviceArray:
    """An array of words of 4 bytes in a GPU's memory or in a block's shared memory, row by row.

    A kernel uses ``x[i]`` or ``x[row, column]``, ``x.shape``, and ``len(x)`` for the elements or
    the rows. Lesson 03.
    """

    space: str

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        running: LaunchedThread,
        values: words[float],
        address: int = 0,
    ) -> None:
        self.name, self.shape, self.values = name, shape, values
        self._running, self._address = running, address
        # interval, thread, whether it stored
        self._last: dict[int, tuple[int, ThreadNumber, bool]] = {}

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[float]:
        raise KernelError(
            f"{thread_name(self._running.thread)} goes through all of {self.name}, but a thread "
            f"must load one element at a time; use {self._element(0)} with its own index"
        )

    def __getitem__(self, index: object) -> float:
        return self.load_at(index, self._running.follower.place(sys._getframe(1)))

    def __setitem__(self, index: object, value: float) -> None:
        self.store_at(index, value, self._running.follower.place(sys._getframe(1)))

    def load_at(self, index: object, place: Place) -> float:
        """Return an element, loaded by the running thread at ``place``, which ``x[index]`` finds by
        itself.

        For a kernel that runs in another process, which reports its places. Raises KernelError as
        ``x[index]``.
        """
        element = self._access(index, place, stores=False)
        self._check_load(element)
        return self.values[element]

    def store_at(self, index: object, value: float, place: Place) -> None:
        """Store an element as :meth:`load_at` loads one."""
        element = self._access(index, place, stores=True)
        self._note_store(element)
        try:
            self.values[element] = value
        except (TypeError, OverflowError):
            raise KernelError(
                f"{thread_name(self._running.thread)} stores {value!r:.40} into "
                f"{self._element(element)}, but an element must be one number of its array's type"
            ) from None

    def _access(self, index: object, place: Place, *, stores: bool) -> int:
        """Note an access of the running thread at ``place``, and return the number of the
        element.
        """
        element, running = self._number(index), self._running
        interval, thread, stored = self._last.get(element, (-1, running.thread, False))
        if interval != running.interval:
            thread, stored = running.thread, False
        elif thread != running.thread:
            if stores or stored:
                raise self._race(element, thread, stores=stores, stored=stored)
            thread = _SEVERAL
        stored = stored or stores
        self._last[element] = (running.interval, thread, stored)
        running.accesses.append(Access(place, self, stores, self._address + WORD_BYTES * element))
        return element

    def _number(self, index: object) -> int:
        if type(index) is int and len(self.shape) == 1 and 0 <= index < self.shape[0]:
            return index
        indices = index if isinstance(index, tuple) else (index,)
        try:
            integers = tuple(map(operator.index, indices))
        except TypeError:
            integers = ()
        if len(integers) != len(self.shape):
            form = (
                "x[i] with one integer"
                if len(self.shape) == 1
                else "x[row, column] with two integers"
            )
            raise KernelError(
                f"{thread_name(self._running.thread)} uses {self.name}[{index!r}], but an element "
                f"must be written {form.replace('x', self.name, 1)}"
            )
        element = 0
        for number, size in zip(integers, self.shape, strict=True):
            if not 0 <= number < size:
                raise KernelError(
                    f"{thread_name(self._running.thread)} uses "
                    f"{self.name}[{', '.join(map(str, integers))}], but {self.name} has "
                    f"{self._sizes()}; guard the access with an if"
                )
            element = element * size + number
        return element

    def _sizes(self) -> str:
        names = ("elements",) if len(self.shape) == 1 else ("rows", "columns")
        return " and ".join(
            f"{size:,} {name}" for size, name in zip(self.shape, names, strict=True)
        )

    def _element(self, element: int) -> str:
        indices = (element,) if len(self.shape) == 1 else divmod(element, self.shape[1])
        return f"{self.name}[{', '.join(map(str, indices))}]"

    def _race(
        self, element: int, other_thread: ThreadNumber, *, stores: bool, stored: bool
    ) -> KernelError:
        remedy = (
            "let one thread store it, or put a yield between the two"
            if stores and stored
            else "put a yield between the two, as the barrier"
        )
        return KernelError(
            f"race: {thread_name(self._running.thread)} {_verb(stores)} {self._element(element)}, "
            f"which {thread_name(other_thread)} {_verb(stored)} with no barrier in between; "
            f"{remedy}"
        )

    def _check_load(self, element: int) -> None:
        """Raise KernelError if the running thread may not load the element."""

    def _note_store(self, element: int) -> None:
        """Raise KernelError if the running thread may not store the element."""


def _verb(stores: bool) -> str:
    return "stores" if stores else "loads"


class GlobalArray(DeviceArray):
    """An array in the GPU's memory, which all blocks see; no barrier orders two blocks."""

    space = "global"

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        running: LaunchedThread,
        values: words[float],
        address: int,
    ) -> None:
        super().__init__(name, shape, running, values, address)
        self._loaded_by: dict[int, tuple[int, int]] = {}
        self._stored_by: dict[int, tuple[int, int]] = {}

    @property
    def is_stored(self) -> bool:
        """Whether a thread has stored an element."""
        return bool(self._stored_by)

    def _check_load(self, element: int) -> None:
        block = self._running.thread[:2]
        self._check_blocks(element, self._stored_by.get(element, block), stores=False, stored=True)
        if self._loaded_by.setdefault(element, block) != block:
            self._loaded_by[element] = _SEVERAL[:2]

    def _note_store(self, element: int) -> None:
        block = self._running.thread[:2]
        self._check_blocks(
            element, self._stored_by.setdefault(element, block), stores=True, stored=True
        )
        self._check_blocks(element, self._loaded_by.get(element, block), stores=True, stored=False)

    def _check_blocks(
        self, element: int, other_block: tuple[int, int], *, stores: bool, stored: bool
    ) -> None:
        if other_block != self._running.thread[:2]:
            whom = "another block" if other_block == _SEVERAL[:2] else f"block {other_block}"
            raise KernelError(
                f"race: {thread_name(self._running.thread)} {_verb(stores)} "
                f"{self._element(element)}, which {whom} {_verb(stored)} as well, and no barrier "
                "orders two blocks; let one block use every element that is stored"
            )


class SharedArray(DeviceArray):
    """An array in a block's shared memory, empty at first."""

    space = "shared"

    def __init__(self, name: str, shape: tuple[int, ...], running: LaunchedThread) -> None:
        size = math.prod(shape)
        super().__init__(name, shape, running, words("f", [math.nan]) * size)
        self._filled = bytearray(size)

    def _check_load(self, element: int) -> None:
        if not self._filled[element]:
            raise KernelError(
                f"{thread_name(self._running.thread)} loads {self._element(element)}, which no "
                "thread has stored yet; store it first, with a yield in between if another thread "
                "does"
            )

    def _note_store(self, element: int) -> None:
        self._filled[element] = True
