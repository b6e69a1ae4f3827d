"""What is known of values while a step is followed: masks, lengths, positions and what is computed
from them.

Fake tensors have no data. A model may still ask whether a mask is all ones, how long the longest
sequence is, or which places a comparison found, and a real run would tell it. So the values of
small integer tensors that the caller or the model brings, and of whatever is computed from these
and from numbers alone, are kept beside the fake tensors. They are kept by storage: a view sees
them, and a write in place changes them for every view.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from helpers.memory._events import leaves_of, written_values
from helpers.operations._shapes import uniform_value

MOST_ELEMENTS = 2**18  # of a tensor whose values are kept: a mask of 512 by 512


class KnownValues:
    """The values of fake tensors, as real storages under the key of the fake one."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._drawn: set[int] = set()
        self._everywhere: dict[int, bool] = {}
        self.takes_finite = False

    def keep(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """Keep the values of ``fake``, a tensor that has its storage to itself."""
        with _disable_current_modes():
            values = torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype).copy_(
                real.detach()
            )
        if (
            fake.storage_offset() == 0
            and values.untyped_storage().nbytes() == fake.untyped_storage().nbytes()
        ):
            self._storages[key_of_storage(fake)] = values.untyped_storage()

    def learn(self, fake: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Return ``fake``, whose values are known from now on where ``real`` has few and they are
        integers.
        """
        has_values = (
            not (isinstance(real, FakeTensor) or real.is_meta) and real.layout == torch.strided
        )
        is_index = not (real.is_floating_point() or real.is_complex())
        if has_values and is_index and real.numel() <= MOST_ELEMENTS:
            self.keep(fake, real)
        return fake

    def forget(self, key: int) -> None:
        """Forget the values of a storage that is gone, or that was written by what is not known."""
        self._storages.pop(key, None)
        self._drawn.discard(key)
        self._everywhere.pop(key, None)

    def are_drawn(self, args: Any, kwargs: Any) -> bool:
        """Return whether any of these tensors holds what was drawn at random, or what was computed
        from that.
        """
        return any(
            key_of_storage(tensor) in self._drawn
            for tensor in leaves_of(torch.Tensor, (args, kwargs))
        )

    def of(self, fake: torch.Tensor) -> torch.Tensor | None:
        """Return the values of ``fake``, None where they are not known."""
        storage = self._storages.get(key_of_storage(fake))
        if storage is None:
            return None
        with _disable_current_modes():
            view = torch.empty(0, dtype=fake.dtype).set_(
                storage, fake.storage_offset(), fake.size(), fake.stride()
            )
            return read_as(view, is_conj=fake.is_conj(), is_neg=fake.is_neg())

    def content(self, fake: torch.Tensor) -> bytes | None:
        """Return the values of ``fake`` as bytes in the order of its elements, None where they are
        not known.
        """
        values = self.of(fake)
        if values is None:
            return None
        with _disable_current_modes():
            return values.resolve_conj().contiguous().flatten().view(torch.uint8).numpy().tobytes()

    def compute(self, function: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        """Return the result of ``function`` on values, in a tuple; None where a value is not known.

        Numbers are drawn from torch's own generator, which the caller gets back as it was; not from
        another one.
        """
        tensors = leaves_of(torch.Tensor, (args, kwargs))
        is_known = all(self.of(tensor) is not None for tensor in tensors)
        if not is_known or leaves_of(torch.Generator, (args, kwargs)):
            return None
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.of, (args, kwargs))
        args, kwargs = pytree.tree_map_only(
            torch.device, lambda _: torch.device("cpu"), (args, kwargs)
        )
        with _disable_current_modes():
            return (function(*args, **kwargs),)

    def follow(self, function: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        """Keep the values of what ``function`` made or wrote; forget those that it wrote without
        our knowing what.
        """
        results = leaves_of(torch.Tensor, outputs)
        changed_tensors = [
            tensor
            for tensor in written_tensors(function, args, kwargs)
            if key_of_storage(tensor) in self._storages
            or key_of_storage(tensor) in self._everywhere
        ]
        values = None
        is_small = all(tensor.numel() <= MOST_ELEMENTS for tensor in results)
        if is_small and (results or changed_tensors):
            values = self.compute(function, args, kwargs)
        if values is None:
            for tensor in changed_tensors:
                self.forget(key_of_storage(tensor))
            self._take_finite(function, args, results)
            return
        if torch.Tag.nondeterministic_seeded in function.tags or self.are_drawn(args, kwargs):
            self._drawn |= {key_of_storage(tensor) for tensor in (*results, *changed_tensors)}
        for fake, real in zip(results, leaves_of(torch.Tensor, values), strict=True):
            if key_of_storage(fake) not in self._storages:
                self.keep(fake, real)

    def _take_finite(self, function: Any, args: Any, results: list[torch.Tensor]) -> None:
        """Take activations for finite numbers where the model asks whether they are."""
        name = function._schema.name.removeprefix("aten::")
        answer = uniform_value(
            name, args, lambda tensor: self._everywhere.get(key_of_storage(tensor))
        )
        if answer is None or results[0].dtype != torch.bool:
            return
        result = results[0]
        self._everywhere[key_of_storage(result)] = answer
        if result.numel() == 1:
            self.takes_finite = True
            with _disable_current_modes():
                value = torch.full(result.size(), answer)
            self.keep(result, value)


def key_of_storage(tensor: torch.Tensor) -> int:
    """Return a key that tells the tensor's storage from every other that is alive."""
    return tensor.untyped_storage()._cdata


def read_as(tensor: torch.Tensor, *, is_conj: bool, is_neg: bool) -> torch.Tensor:
    """Return a view that conjugates and negates when it is read, where it is to."""
    view = tensor.conj() if is_conj else tensor
    return torch._neg_view(view) if is_neg else view


def written_tensors(function: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors among the arguments that ``function`` writes."""
    return leaves_of(torch.Tensor, written_values(function, args, kwargs))
