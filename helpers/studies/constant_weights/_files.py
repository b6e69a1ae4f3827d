"""Networks in binary files: read whole and checked, or refused with the reason. Lesson 11.

A file of this library is, in little-endian order: the eight bytes of :data:`MAGIC`, the version and the number of
layers; for each layer its inputs, its outputs and its activation's number; for each layer its weights, a row an input,
and its biases; the SHA-256 of all that stands before. Numbers are u32, weights float32.

The other format that is read is that of the program of the story: for each layer its number from 1, its inputs and its
outputs (u32), its biases, its weights, a row an input (float32). It knows no activations and has no checksum.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from helpers import storage
from helpers.studies.constant_weights._network import ACTIVATIONS, Dense, Network, network_of

MAGIC = b"\x89DENSE\r\n"  # not text, and changed by whoever converts line ends
VERSION = 1
MOST_BYTES = 2**28

_START = struct.Struct("<8sII")
_LAYER = struct.Struct("<III")
_MOST_LAYERS = 1_024
_FLOAT_BYTES = 4
_CHECKSUM_BYTES = hashlib.sha256().digest_size


def save(model: nn.Module | Network, path: str | os.PathLike[str]) -> None:
    """Write ``model`` to ``path`` in one step; :func:`load` reads it back, every float as it was.

    Raises TypeError or ValueError for a model that is no chain of dense layers or too large, OSError when it cannot be
    written. Lesson 11.
    """
    network = network_of(model)
    parts = [_START.pack(MAGIC, VERSION, len(network.layers))]
    parts += [_LAYER.pack(layer.inputs, layer.outputs, ACTIVATIONS.index(layer.activation)) for layer in network.layers]
    parts += [part.astype("<f4").tobytes() for layer in network.layers for part in (layer.weights, layer.bias)]
    content = b"".join(parts)
    if len(network.layers) > _MOST_LAYERS or len(content) + _CHECKSUM_BYTES > MOST_BYTES:
        raise ValueError(f"the network has {len(network.layers):,} layers and {len(content):,} bytes; a file holds up "
                         f"to {_MOST_LAYERS:,} layers and {MOST_BYTES:,} bytes")  # fmt: skip
    storage.write_atomically(path, content + hashlib.sha256(content).digest())


def load(path: str | os.PathLike[str], *, activations: Sequence[str] | None = None) -> Network:
    """Return the network in the file ``path``: of this library's format, or of the layer format of the story.

    The layer format says nothing of activations: ``activations`` names one for each layer then, and only then. In it
    a damaged weight cannot be seen; in a file of this library any changed bit is.

    Raises ValueError, saying what is wrong, for a file that is cut off, too long, damaged, of another version or of
    another kind, OSError for one that cannot be read. Lesson 11.
    """
    name = Path(path).name
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise ValueError(f"{name} has {size:,} bytes; a file of a network has at most {MOST_BYTES:,}")
        content = file.read(MOST_BYTES + 1)
    if content[: len(MAGIC)] == MAGIC:
        if activations is not None:
            raise ValueError(f"{name} says itself which activations its layers have; call load without activations")
        return _read(name, content)
    if len(content) < len(MAGIC) and MAGIC.startswith(content):
        raise ValueError(f"{name} is cut off: it has {len(content)} bytes, not even the start of a network's file")
    return _read_layers(name, content, activations)


def _read(name: str, content: bytes) -> Network:
    """Read this library's format. The sizes in the header are held against the file's size before they are used."""
    _require(name, content, _START.size, "the header")
    _, version, count = _START.unpack_from(content)
    if version != VERSION:
        raise ValueError(f"{name} is of version {version:,} of this format, or damaged; this library reads version "
                         f"{VERSION}")  # fmt: skip
    if not 1 <= count <= _MOST_LAYERS:
        raise ValueError(f"{name} is damaged: its header tells of {count:,} layers; 1 to {_MOST_LAYERS:,} are possible")
    begin = _START.size + count * _LAYER.size
    _require(name, content, begin, "the table of layers")
    table = [_LAYER.unpack_from(content, _START.size + index * _LAYER.size) for index in range(count)]
    wanted = begin + sum(_numbers(inputs, outputs) * _FLOAT_BYTES for inputs, outputs, _ in table) + _CHECKSUM_BYTES
    if len(content) != wanted:
        what = "cut off or damaged" if len(content) < wanted else "too long or damaged"
        raise ValueError(f"{name} is {what}: its header tells of {wanted:,} bytes, and it has {len(content):,}")
    if hashlib.sha256(content[:-_CHECKSUM_BYTES]).digest() != content[-_CHECKSUM_BYTES:]:
        raise ValueError(f"{name} is damaged: its checksum does not fit; copy it again from where it was made")
    layers = []
    for number, (inputs, outputs, activation) in enumerate(table, start=1):
        if activation >= len(ACTIVATIONS) or not inputs or not outputs:
            raise ValueError(f"{name}: layer {number} has {inputs} inputs, {outputs} outputs and activation number "
                             f"{activation}; there are {len(ACTIVATIONS)} activations, from 0")  # fmt: skip
        weights = np.frombuffer(content, "<f4", inputs * outputs, begin).reshape(inputs, outputs)
        begin += weights.nbytes
        bias = np.frombuffer(content, "<f4", outputs, begin)
        begin += bias.nbytes
        layers.append((weights, bias, ACTIVATIONS[activation]))
    return _network(name, layers)


def _read_layers(name: str, content: bytes, activations: Sequence[str] | None) -> Network:
    """Read the story's layer format, whose only marks are the layers' numbers and sizes."""
    head, begin, found = struct.Struct("<III"), 0, []
    while begin < len(content) or not found:
        rest = len(content) - begin
        number, inputs, outputs = head.unpack_from(content, begin) if rest >= head.size else (0, 0, 0)
        if not found and (number != 1 or not inputs or not outputs):
            raise ValueError(f"{name} is no network's file: it begins with neither this library's mark nor layer 1")
        if len(found) == _MOST_LAYERS:
            raise ValueError(f"{name} goes on after {_MOST_LAYERS:,} layers; no network has more")
        if rest < head.size or number != len(found) + 1 or not inputs or not outputs:
            raise ValueError(f"{name} is damaged or cut off: after layer {len(found)} come {rest:,} bytes that do not "
                             f"begin layer {len(found) + 1}")  # fmt: skip
        size = _numbers(inputs, outputs) * _FLOAT_BYTES
        if rest - head.size < size:
            raise ValueError(f"{name} is cut off, or no network's file: layer {number} of {inputs:,} inputs and "
                             f"{outputs:,} outputs has {size:,} bytes, and {rest - head.size:,} are left")  # fmt: skip
        bias = np.frombuffer(content, "<f4", outputs, begin + head.size)
        weights = np.frombuffer(content, "<f4", inputs * outputs, begin + head.size + bias.nbytes)
        found.append((weights.reshape(inputs, outputs), bias))
        begin += head.size + size
    if activations is None:
        example = repr((*["relu"] * (len(found) - 1), "sigmoid"))
        raise ValueError(f"{name} has {len(found)} layers and does not say which activations they have; name one for "
                         f"each: activations={example}")  # fmt: skip
    if isinstance(activations, str) or len(activations) != len(found):
        raise ValueError(f"{name} has {len(found)} layers; activations names one for each, not {activations!r:.60}")
    return _network(name, [(weights, bias, kind) for (weights, bias), kind in zip(found, activations, strict=True)])


def _network(name: str, layers: Sequence[tuple[np.ndarray, np.ndarray, str]]) -> Network:
    try:
        return Network(tuple(Dense(w.astype(np.float32), b.astype(np.float32), kind) for w, b, kind in layers))
    except ValueError as error:
        raise ValueError(f"{name} holds no network: {error}") from error


def _numbers(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _require(name: str, content: bytes, size: int, what: str) -> None:
    if len(content) < size:
        raise ValueError(f"{name} is cut off: {what} takes {size:,} bytes, and the file has {len(content):,}")
