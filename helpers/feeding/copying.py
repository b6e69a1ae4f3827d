"""Copies that run ahead: a thread receives batches and starts their copies while the device computes with others.

Lesson 06.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from helpers.checks import whole_number
from helpers.feeding.accelerators import CudaCopies, cpu_or_cuda

_END = object()


@contextlib.contextmanager
def copied_ahead(batches: Iterable, copy: Callable[[Any], Any], *, depth: int = 2) -> Iterator[Iterator[Any]]:
    """Give what ``copy(batch)`` returns of each batch, in order; a thread runs up to ``depth`` copies ahead.

    Neither a slow loader nor a host that waits for its device keeps the next copy from starting. The device holds up
    to ``depth`` batches beside the one it computes with. An exception of the loader or of the copy is raised where the
    loop asks for its next batch. The thread ends with the block: it finishes the batch at hand, no more.

    Raises ValueError for a depth below 1. For the library itself.
    """
    room = threading.Semaphore(whole_number("depth", depth, at_least=1))
    filled: queue.SimpleQueue = queue.SimpleQueue()
    stopped = threading.Event()
    iterator = iter(batches)

    def fetch() -> None:
        try:
            while True:
                room.acquire()
                if stopped.is_set():
                    return
                try:
                    batch = next(iterator)
                except StopIteration:
                    filled.put((_END, None))
                    return
                filled.put((None, copy(batch)))
        except BaseException as error:  # the loop that asks for the next batch must hear of everything
            filled.put((_END, error))

    def given() -> Iterator[Any]:
        while True:
            end, value = filled.get()
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
        yield given()
    finally:
        stopped.set()
        room.release()
        thread.join()


def copy_ahead(loader: Iterable, device: str | torch.device, *, depth: int = 2) -> Iterator[Any]:
    """Yield the loader's batches on a CUDA ``device``, each copied on a stream of its own while the last is computed.

        for images, labels in copy_ahead(make_loader(digits, LoaderSettings(pin_memory=True)), "cuda"):

    A batch is a tensor, or a tuple, list or dictionary of them, in pinned memory (``pin_memory=True``). The current
    stream waits for the copy, the host does not; memory is not handed on before that stream is done with it. A loop
    that breaks off ends the thread when it drops the generator. On a CPU there is nothing to copy: batches pass.

    Raises ValueError for batches in pageable memory (their copies would wait), and as :func:`cpu_or_cuda`. Lesson 06.
    """
    device = cpu_or_cuda(device)
    if device.type == "cpu":
        yield from loader
        return
    copies = CudaCopies(device)
    with copied_ahead(loader, lambda batch: copies.start(batch, copying="ahead")[0], depth=depth) as ready:
        for copied in ready:
            yield copies.received(copied)
