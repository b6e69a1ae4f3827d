"""Checkpoints: what a save costs, and saves that go on beside the training without saving a later state.

An asynchronous save has two parts. The *snapshot* copies every tensor, which stalls the training for a copy in memory;
the *write* serialises the copies and brings them to the disk in a thread. Without the snapshot the thread would read
tensors that the optimizer changes meanwhile: the file then holds a state that no step ever had.

Lesson 06.
"""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from helpers import storage
from helpers.checks import whole_number
from helpers.feeding.accelerators import mapped, tensors
from helpers.links import Link, checked_link, sleep_until

_NAME, _STEP = "step_{:08d}.pt", re.compile(r"step_(\d{8,})\.pt")


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer, *, step: int = 0) -> dict[str, Any]:
    """Return what a training needs to go on: the model's and the optimizer's states and the step, by reference.

    Nothing is copied: a later step changes the tensors in it. Lesson 06.
    """
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


def state_bytes(state: object) -> int:
    """Return the bytes of all tensors in ``state``; one that is there twice (tied weights) counts once.

    They may be on the meta device. A view counts with all that it is a view of, which ``torch.save`` writes. Lesson 06.
    """
    storages = (each.untyped_storage() for each in tensors(state))
    return sum({each._cdata: each.nbytes() for each in storages}.values())


def snapshot(state: Any) -> Any:
    """Return a copy of ``state`` on the CPU that no later step changes; tensors of one storage share one again.

    From CUDA the copies go through pinned memory, queued one after the other and waited for once.
    For the library itself.
    """
    copies: dict[int, torch.Tensor] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()._cdata  # its address in PyTorch
        if storage not in copies:
            copies[storage] = _copied_storage(tensor)
        size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        return torch.empty(0, dtype=tensor.dtype).set_(copies[storage].untyped_storage(), offset, size, stride)

    kept = mapped(state, copied)
    for device in {each.device for each in tensors(state) if each.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return kept


def _copied_storage(tensor: torch.Tensor) -> torch.Tensor:
    source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.detach().untyped_storage())
    copy = torch.empty(len(source), dtype=torch.uint8, pin_memory=tensor.is_cuda)
    return copy.copy_(source, non_blocking=tensor.is_cuda)


class Checkpointer:
    """Saves training states to ``folder``, each file whole or not there; to be used in a ``with``, or closed.

    ``asynchronous`` saves take a :func:`snapshot`, return, and write in a thread, one at a time: a save that comes
    before the last one is written waits for it. What goes wrong in the thread is raised by the next save or by
    ``close``. ``takes_snapshot=False`` is the trap that the lesson shows: the thread reads the training's own tensors.
    ``disk`` makes the write last at least as long as a disk of that rate would need, by sleeping first.

    Raises FileNotFoundError for a folder that is missing, TypeError for a disk that is no link. Lesson 06.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        asynchronous: bool = True,
        takes_snapshot: bool = True,
        disk: Link | None = None,
    ) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"the folder {str(folder)!r} is not there; make it first")
        self.asynchronous, self.takes_snapshot = asynchronous, takes_snapshot
        self.disk = None if disk is None else checked_link("disk", disk)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
        elif self._thread is not None:  # the block's own exception goes first
            self._thread.join()

    def save(self, state: Mapping[str, Any], step: int) -> float:
        """Save ``state`` as that of ``step``; return the seconds that this call kept the training waiting.

        Raises OSError, for this save or (asynchronously) for the one before, when the disk is full. Lesson 06.
        """
        start_s = time.perf_counter()
        path = self.path(step)
        if not self.asynchronous:
            self._write(state, path)
            return time.perf_counter() - start_s
        self.close()
        kept = snapshot(state) if self.takes_snapshot else state
        self._thread = threading.Thread(target=self._write_or_keep_error, args=(kept, path), name="checkpoint")
        self._thread.start()
        return time.perf_counter() - start_s

    def close(self) -> None:
        """Wait until the last save is on the disk; raise what went wrong in it. Lesson 06."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def path(self, step: int) -> Path:
        """Return the file of ``step``. Lesson 06."""
        return self.folder / _NAME.format(whole_number("step", step, at_least=0))

    def load(self, step: int | None = None) -> dict[str, Any]:
        """Return the state saved at ``step`` (None: the last one), its tensors on the CPU.

        Raises FileNotFoundError, naming the steps that there are. Lesson 06.
        """
        found = (_STEP.fullmatch(each.name) for each in self.folder.iterdir())
        there = sorted(int(each[1]) for each in found if each is not None)
        if not there or (step is not None and step not in there):
            steps = ", ".join(map(str, there)) or "none"
            raise FileNotFoundError(f"no checkpoint of {'any step' if step is None else f'step {step}'} in "
                                    f"{str(self.folder)!r}; there are those of: {steps}")  # fmt: skip
        return torch.load(self.path(there[-1] if step is None else step), map_location="cpu", weights_only=True)

    def _write_or_keep_error(self, state: Mapping[str, Any], path: Path) -> None:
        try:
            self._write(state, path)
        except Exception as error:  # raised by the next save or by close
            self._error = error

    def _write(self, state: Mapping[str, Any], path: Path) -> None:
        if self.disk is not None:
            sleep_until(time.perf_counter() + self.disk.transfer_s(state_bytes(state)))
        storage.write_atomically(path, serialised(state).getbuffer())


def serialised(state: Mapping[str, Any]) -> io.BytesIO:
    """Return what ``torch.save`` makes of ``state``, in memory. For the library itself."""
    content = io.BytesIO()
    torch.save(state, content)
    return content
