"""What a loop feeds: an accelerator that sleeps (its clock is known), or a training step on this
CPU or on CUDA.

Both have the same five methods, so that one loop serves both: ``begin()``,
``copy(batch, copying=...)``, which starts the way of a batch to the device, ``step(copied)``,
``wait()`` until all is done, and ``activities()``, what device and copy engine did, in seconds of
``time.perf_counter``. A thread can start copies ahead of the computing (:func:`copied_ahead`,
:func:`copy_ahead`).

Lesson 10.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from helpers.checks import choice, cpu_or_cuda, function, number, one_of, whole_number
from helpers.links import Activity, Link, require_link, sleep_until
from helpers.steps import tensors_of
from helpers.studies.input_pipeline._pipeline import COPYING

DEVICE, COPIES = "device", "copies"
_END = object()


@dataclass(frozen=True)
class BatchCopy:
    """A batch on its way to a device: ``ready`` is when it is there (seconds, or a CUDA event;
    None: it is).
    """

    batch: Any
    ready: Any


class SleepingAccelerator:
    """A device whose step takes ``step_s`` seconds and whose copies take ``pinned`` or ``pageable``
    link's time.

    It has one stream for computing and one engine for copies, as a GPU has: work is queued, starts
    when its stream is free and what it needs is there, and takes its time, while the host goes on;
    only waiting sleeps. So many of them run on one core, with the clock of real ones. A batch's
    bytes are those of its tensors. ``copying="blocking"`` goes over ``pageable`` (by default
    ``pinned``), the others over ``pinned``; the default link takes no time.

    Raises ValueError for a negative time, TypeError for a link that is none. Lesson 10.
    """

    def __init__(
        self, step_s: float, *, pinned: Link | None = None, pageable: Link | None = None
    ) -> None:
        self.step_s = number("step_s", step_s, at_least=0)
        self.pinned = Link(math.inf) if pinned is None else require_link("pinned", pinned)
        self.pageable = self.pinned if pageable is None else require_link("pageable", pageable)
        self._lock = threading.Lock()
        self.begin()

    def __repr__(self) -> str:
        return f"SleepingAccelerator(step_s={self.step_s:g})"

    def begin(self) -> None:
        """Forget what was done before."""
        self._done: list[Activity] = []
        self._counts = {DEVICE: 0, COPIES: 0}
        self._computing_until_s = self._copying_until_s = -math.inf

    def copy_s(self, batch: object, *, copying: str = "blocking") -> float:
        """Return the seconds that the copy of ``batch`` takes. Lesson 10."""
        choice("copying", copying, COPYING)
        link = self.pageable if copying == "blocking" else self.pinned
        return link.transfer_s(sum(tensor.nbytes for tensor in tensors_of(batch)))

    def copy(self, batch: Any, *, copying: str) -> BatchCopy:
        """Start the copy of ``batch``; with "blocking" come back when it has ended."""
        duration_s = self.copy_s(batch, copying=copying)
        with self._lock:
            start_s = max(time.perf_counter(), self._copying_until_s)
            if copying != "ahead":  # on the stream of the computing, so after what was queued there
                start_s = max(start_s, self._computing_until_s)
            self._copying_until_s = end_s = start_s + duration_s
            if copying != "ahead":
                self._computing_until_s = end_s
            if duration_s:
                self._note(COPIES, start_s, end_s, "copying")
        if copying == "blocking":
            sleep_until(end_s)
        return BatchCopy(batch, end_s)

    def step(self, copied: BatchCopy) -> None:
        """Queue one training step with a batch."""
        with self._lock:
            start_s = max(time.perf_counter(), self._computing_until_s, copied.ready)
            self._computing_until_s = start_s + self.step_s
            self._note(DEVICE, start_s, self._computing_until_s, "computing")

    def wait(self) -> None:
        """Sleep until the device has done what was queued."""
        sleep_until(self._computing_until_s)

    def activities(self) -> list[Activity]:
        """Return the activities of the device and its copy engine."""
        return list(self._done)

    def _note(self, lane: str, start_s: float, end_s: float, kind: str) -> None:
        self._done.append(Activity(lane, start_s, end_s, kind, str(self._counts[lane])))
        self._counts[lane] += 1


class TrainingAccelerator:
    """The device of a real training step: ``train(batch)`` is called with each batch, on
    ``device``.

    ``device`` is by default CUDA where there is one. On a CPU the step's time is the host's clock
    around it, and there is nothing to copy: only ``copying="blocking"`` is accepted. On CUDA two
    events around each step give its time: the device is counted busy from the step's first kernel
    to its last, gaps between small kernels included.

    Raises TypeError for what cannot be called, and as :func:`device_here`. Lesson 10.
    """

    def __init__(
        self, train: Callable[[Any], object], *, device: str | torch.device | None = None
    ) -> None:
        self.train = function(
            "train", train, "a function of a batch, such as training_step(LeNet())"
        )
        self.device = device_here(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.begin()

    def __repr__(self) -> str:
        return f"TrainingAccelerator(device='{self.device}')"

    def begin(self) -> None:
        """Forget what was done before, and set the zero of the device's clock."""
        self._spans: list[tuple[str, str, Any, Any]] = []
        self._zero: tuple[Any, float] = (None, 0.0)
        if self.device.type == "cuda":
            self._copies = CudaCopies(self.device)
            torch.cuda.synchronize(self.device)
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            event.synchronize()
            self._zero = (event, time.perf_counter())

    def copy(self, batch: Any, *, copying: str) -> BatchCopy:
        """Start the copy of ``batch`` to the device."""
        choice("copying", copying, COPYING)
        if self.device.type == "cpu":
            if copying != "blocking":
                raise ValueError(
                    f"copying={copying!r} needs a device with a memory of its own; on a CPU a "
                    "batch is there already. Use copying='blocking', or a SleepingAccelerator with "
                    "a link"
                )
            return BatchCopy(batch, None)
        batch_copy, start, end = self._copies.start(batch, copying=copying)
        self._spans.append((COPIES, "copying", start, end))
        return batch_copy

    def step(self, copied: BatchCopy) -> None:
        """Train on a batch."""
        if self.device.type == "cpu":
            start_s = time.perf_counter()
            self.train(copied.batch)
            self._spans.append((DEVICE, "computing", start_s, time.perf_counter()))
            return
        batch = self._copies.receive(copied)
        stream = torch.cuda.current_stream(self.device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        self.train(batch)
        end.record(stream)
        self._spans.append((DEVICE, "computing", start, end))

    def wait(self) -> None:
        """Wait until the device has done what was queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def activities(self) -> list[Activity]:
        """Return the activities of the device and its copy engine; on CUDA after :meth:`wait`."""
        counts: dict[str, int] = {}
        activities = []
        for lane, kind, start, end in self._spans:
            number = counts[lane] = counts.get(lane, -1) + 1
            activities.append(
                Activity(lane, self._host_s(start), self._host_s(end), kind, str(number))
            )
        return activities

    def _host_s(self, moment: Any) -> float:
        event, zero_s = self._zero
        return moment if event is None else zero_s + event.elapsed_time(moment) / 1e3


def device_here(device: str | torch.device) -> torch.device:
    """Return ``device``; raise as :func:`helpers.checks.cpu_or_cuda`, and RuntimeError for CUDA
    where there is none.
    """
    chosen = cpu_or_cuda(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f"device={str(device)!r} needs a CUDA device, and torch sees none here; give 'cpu'"
        )
    return chosen


class CudaCopies:
    """Copies of batches to a CUDA device, on the current stream or on one of their own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def start(
        self, batch: Any, *, copying: str
    ) -> tuple[BatchCopy, torch.cuda.Event, torch.cuda.Event]:
        """Start a copy; return the batch on the device and the events around the copy."""
        if copying != "blocking":
            _refuse_pageable(batch, copying)
        stream = self.stream if copying == "ahead" else torch.cuda.current_stream(self.device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            start.record(stream)
            device_batch = pytree.tree_map_only(
                torch.Tensor,
                lambda tensor: tensor.to(self.device, non_blocking=copying != "blocking"),
                batch,
            )
            end.record(stream)
        return BatchCopy(device_batch, end), start, end

    def receive(self, batch_copy: BatchCopy) -> Any:
        """Return the batch for the current stream, which waits for the copy; the host does not."""
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(batch_copy.ready)
        for tensor in tensors_of(batch_copy.batch):
            # Else the allocator hands the memory to the next copy while this stream still reads it.
            tensor.record_stream(stream)
        return batch_copy.batch


def training_step(model: nn.Module, *, learning_rate: float = 0.01) -> Callable[[Any], None]:
    """Return a function that trains ``model`` in place on a batch (inputs, labels): SGD on
    cross-entropy.

    It does not wait for the device. For a :class:`TrainingAccelerator` on the model's device.
    Lesson 10.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)

    def train(batch: Any) -> None:
        inputs, labels = batch
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return train


def _refuse_pageable(batch: Any, copying: str) -> None:
    if not all(tensor.is_pinned() or tensor.is_cuda for tensor in tensors_of(batch)):
        raise ValueError(
            f"copying={copying!r} needs batches in pinned memory, else the host waits for each "
            "copy all the same; make the loader with LoaderSettings(pin_memory=True)"
        )


# Copies that run ahead of the computing.


@contextlib.contextmanager
def copied_ahead(
    batches: Iterable, copy: Callable[[Any], Any], *, depth: int = 2
) -> Iterator[Iterator[Any]]:
    """Give the results of ``copy(batch)`` for each of ``batches``, in order; a thread runs up to
    ``depth`` copies ahead.

    Neither a slow loader nor a host that waits for its device keeps the next copy from starting.
    The device holds up to ``depth`` batches beside the one it computes with. An exception of the
    loader or of the copy is raised where the loop asks for its next batch. The thread ends with the
    block: it finishes the batch at hand, no more.

    Raises ValueError for a depth below 1.
    """
    room = threading.Semaphore(whole_number("depth", depth, at_least=1))
    ready: queue.SimpleQueue = queue.SimpleQueue()
    stop = threading.Event()
    iterator = iter(batches)

    def fetch() -> None:
        try:
            while True:
                room.acquire()
                if stop.is_set():
                    return
                try:
                    batch = next(iterator)
                except StopIteration:
                    ready.put((_END, None))
                    return
                ready.put((None, copy(batch)))
        except BaseException as error:
            # the loop that asks for the next batch must hear of everything
            ready.put((_END, error))

    def receive() -> Iterator[Any]:
        while True:
            end, value = ready.get()
            if end is not _END:
                room.release()
                yield value
            elif value is None:
                return
            else:
                raise value

    thread = threading.Thread(target=fetch, name="copies ahead", daemon=True)
    thread.start()
    try:
        yield receive()
    finally:
        stop.set()
        room.release()
        thread.join()


def copy_ahead(loader: Iterable, device: str | torch.device, *, depth: int = 2) -> Iterator[Any]:
    """Yield the batches of ``loader`` on a CUDA ``device``, each copied on its own stream while the
    last is computed.

        for images, labels in copy_ahead(make_loader(digits, LoaderSettings(pin_memory=True)),
        "cuda"):

    A batch is a tensor, or a tuple, list or dictionary of them, in pinned memory
    (``pin_memory=True``). Up to ``depth`` copies run ahead. The current stream waits for the copy,
    the host does not; memory is not handed on before that stream is done with it. A loop that
    breaks off ends the thread when it drops the generator. On a CPU there is nothing to copy:
    batches pass.

    Raises ValueError for batches in pageable memory (their copies would wait), and as
    :func:`device_here`. Lesson 10.
    """
    device = device_here(device)
    one_of("loader", loader, Iterable, "batches to go through, such as a DataLoader")
    if device.type == "cpu":
        yield from loader
        return
    copies = CudaCopies(device)
    with copied_ahead(
        loader, lambda batch: copies.start(batch, copying="ahead")[0], depth=depth
    ) as ready:
        for batch_copy in ready:
            yield copies.receive(batch_copy)
