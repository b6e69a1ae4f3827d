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
            self._storages[_key(fake)] = values.untyped_storage()

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
            _key(leaf) in self._drawn
            for leaf in pytree.tree_leaves((args, kwargs))
            if _is_tensor(leaf)
        )

    def of(self, fake: torch.Tensor) -> torch.Tensor | None:
        """Return the values of ``fake``, None where they are not known."""
        storage = self._storages.get(_key(fake))
        if storage is None:
            return None
        with _disable_current_modes():
            view = torch.empty(0, dtype=fake.dtype).set_(
                storage, fake.storage_offset(), fake.size(), fake.stride()
            )
            view = view.conj() if fake.is_conj() else view
            return torch._neg_view(view) if fake.is_neg() else view

    def compute(self, function: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        """Return the result of ``function`` on values, in a tuple; None where a value is not known.

        Numbers are drawn from torch's own generator, which the caller gets back as it was; not from
        another one.
        """
        if kwargs.get("generator") is not None or any(
            isinstance(value, torch.Generator) for value in args
        ):
            return None
        known_values = {
            id(leaf): self.of(leaf)
            for leaf in pytree.tree_leaves((args, kwargs))
            if _is_tensor(leaf)
        }
        if any(value is None for value in known_values.values()):
            return None
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda leaf: known_values[id(leaf)], (args, kwargs)
        )
        args, kwargs = pytree.tree_map_only(
            torch.device, lambda _: torch.device("cpu"), (args, kwargs)
        )
        with _disable_current_modes():
            return (function(*args, **kwargs),)

    def follow(self, function: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        """Keep the values of what ``function`` made or wrote; forget those that it wrote without
        our knowing what.
        """
        results = [leaf for leaf in pytree.tree_leaves(outputs) if _is_tensor(leaf)]
        written = written_tensors(function, args, kwargs)
        changed_tensors = [
            tensor
            for tensor in written
            if _key(tensor) in self._storages or _key(tensor) in self._everywhere
        ]
        is_small = all(tensor.numel() <= MOST_ELEMENTS for tensor in results)
        values = (
            self.compute(function, args, kwargs)
            if is_small and (results or changed_tensors)
            else None
        )
        if values is None:
            for tensor in changed_tensors:
                self.forget(_key(tensor))
            self._take_finite(function, args, results)
            return
        if torch.Tag.nondeterministic_seeded in function.tags or self.are_drawn(args, kwargs):
            self._drawn |= {_key(tensor) for tensor in (*results, *changed_tensors)}
        real_results = [leaf for leaf in pytree.tree_leaves(values) if _is_tensor(leaf)]
        for fake, real in zip(results, real_results, strict=True):
            if _key(fake) not in self._storages:
                self.keep(fake, real)

    def _take_finite(self, function: Any, args: Any, results: list[torch.Tensor]) -> None:
        """Take activations for finite numbers where the model asks whether they are."""
        name = function._schema.name.removeprefix("aten::")
        answer = uniform_value(name, args, lambda tensor: self._everywhere.get(_key(tensor)))
        if answer is None or results[0].dtype != torch.bool:
            return
        self._everywhere[_key(results[0])] = answer
        if results[0].numel() == 1:
            self.takes_finite = True
            with _disable_current_modes():
                value = torch.full(results[0].size(), answer)
            self.keep(results[0], value)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def written_tensors(function: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors among the arguments that ``function`` writes."""
    if not function._schema.is_mutable:
        return []
    named_values = [
        (argument, value) for argument, value in zip(function._schema.arguments, args, strict=False)
    ]
    named_values += [
        (argument, kwargs[argument.name])
        for argument in function._schema.arguments
        if argument.name in kwargs
    ]
    written_values = [
        value
        for argument, value in named_values
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [leaf for leaf in pytree.tree_leaves(written_values) if _is_tensor(leaf)]
