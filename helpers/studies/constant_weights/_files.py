"""Networks in binary files, read whole and checked or refused with the reason, and served at the
speed of constants.

A file of this library is, in little-endian order: the eight bytes of :data:`MAGIC`, the version and
the number of layers; for each layer its inputs, its outputs and its activation's number; for each
layer its weights, a row an input, and its biases; the SHA-256 of all that stands before. Numbers
are u32, weights float32.

The other format that is read is that of the program of the story: for each layer its number from 1,
its inputs and its outputs (u32), its biases, its weights, a row an input (float32). It knows no
activations and has no checksum.

Weights in a file and weights in the program exclude each other only as long as the compiler is not
there at start-up. Here it is: on a CPU the C++ compiler, on CUDA NVRTC. Lesson 17.
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from helpers import console, native, storage, units
from helpers.checks import cpu_or_cuda
from helpers.results import Record
from helpers.studies.constant_weights._cpp_sources import cpp_source
from helpers.studies.constant_weights._cuda_sources import cuda_source
from helpers.studies.constant_weights._network import ACTIVATIONS, Dense, Network, network_of
from helpers.studies.constant_weights._programs import (
    CppProgram,
    CudaFunction,
    cpp_program,
    cuda_function,
)

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

    Raises TypeError or ValueError for a model that is no chain of dense layers or too large,
    OSError when it cannot be written. Lesson 17.
    """
    network = network_of(model)
    parts = [_START.pack(MAGIC, VERSION, len(network.layers))]
    parts += [
        _LAYER.pack(layer.inputs, layer.outputs, ACTIVATIONS.index(layer.activation))
        for layer in network.layers
    ]
    parts += [array.astype("<f4").tobytes() for array in network.arrays]
    content = b"".join(parts)
    if len(network.layers) > _MOST_LAYERS or len(content) + _CHECKSUM_BYTES > MOST_BYTES:
        raise ValueError(
            f"the network has {len(network.layers):,} layers and {len(content):,} bytes; a file "
            f"holds up to {_MOST_LAYERS:,} layers and {MOST_BYTES:,} bytes"
        )
    storage.write_atomically(path, content + hashlib.sha256(content).digest())


def load(path: str | os.PathLike[str], *, activations: Sequence[str] | None = None) -> Network:
    """Return the network in the file ``path``: of this library's format, or of the layer format of
    the story.

    The layer format says nothing of activations: ``activations`` names one for each layer then, and
    only then. In it a damaged weight cannot be seen; in a file of this library any changed bit is.

    Raises ValueError, saying what is wrong, for a file that is cut off, too long, damaged, of
    another version or of another kind, OSError for one that cannot be read. Lesson 17.
    """
    name = Path(path).name
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise ValueError(
                f"{name} has {size:,} bytes; a file of a network has at most {MOST_BYTES:,}"
            )
        content = file.read(MOST_BYTES + 1)
    if content[: len(MAGIC)] == MAGIC:
        if activations is not None:
            raise ValueError(
                f"{name} says itself which activations its layers have; call load without "
                "activations"
            )
        return _read(name, content)
    if len(content) < len(MAGIC) and MAGIC.startswith(content):
        raise ValueError(
            f"{name} is cut off: it has {len(content)} bytes, not even the start of a network's "
            "file"
        )
    return _read_layers(name, content, activations)


def layer_format(model: nn.Module | Network) -> bytes:
    """Return the bytes of a file in the layer format of the story, without the activations.

    For each layer these are its number from 1, its inputs and its outputs (u32, 4 bytes each), its
    biases, and its weights, a row an input (float32), all little-endian. :func:`load` reads such a
    file. Raises TypeError or ValueError for a model that is no chain of dense layers.

    Source of the format: the draft SegmentLinking/cmssw 143. Lesson 17.
    """
    parts = []
    for number, layer in enumerate(network_of(model).layers, start=1):
        parts += [
            _LAYER.pack(number, layer.inputs, layer.outputs),
            layer.bias.astype("<f4").tobytes(),
            layer.weights.astype("<f4").tobytes(),
        ]
    return b"".join(parts)


def _read(name: str, content: bytes) -> Network:
    """Read this library's format.

    The sizes in the header are held against the file's size before they are used.
    """
    _require(name, content, _START.size, "the header")
    _, version, count = _START.unpack_from(content)
    if version != VERSION:
        raise ValueError(
            f"{name} is of version {version:,} of this format, or damaged; this library reads "
            f"version {VERSION}"
        )
    if not 1 <= count <= _MOST_LAYERS:
        raise ValueError(
            f"{name} is damaged: its header tells of {count:,} layers; 1 to {_MOST_LAYERS:,} are "
            "possible"
        )
    begin = _START.size + count * _LAYER.size
    _require(name, content, begin, "the table of layers")
    table = list(_LAYER.iter_unpack(content[_START.size : begin]))
    floats = sum((inputs + 1) * outputs for inputs, outputs, _ in table)
    expected_bytes = begin + floats * _FLOAT_BYTES + _CHECKSUM_BYTES
    if len(content) != expected_bytes:
        fault = "cut off or damaged" if len(content) < expected_bytes else "too long or damaged"
        raise ValueError(
            f"{name} is {fault}: its header tells of {expected_bytes:,} bytes, and it has "
            f"{len(content):,}"
        )
    if hashlib.sha256(content[:-_CHECKSUM_BYTES]).digest() != content[-_CHECKSUM_BYTES:]:
        raise ValueError(
            f"{name} is damaged: its checksum does not fit; copy it again from where it was made"
        )
    numbers, layers = np.frombuffer(content, "<f4", floats, begin).astype(np.float32), []
    for number, (inputs, outputs, activation) in enumerate(table, start=1):
        if activation >= len(ACTIVATIONS) or not inputs or not outputs:
            raise ValueError(
                f"{name}: layer {number} has {inputs} inputs, {outputs} outputs and activation "
                f"number {activation}; there are {len(ACTIVATIONS)} activations, from 0"
            )
        weights, bias, numbers = np.split(numbers, (inputs * outputs, (inputs + 1) * outputs))
        layers.append((weights.reshape(inputs, outputs), bias, ACTIVATIONS[activation]))
    return _network(name, layers)


def _read_layers(name: str, content: bytes, activations: Sequence[str] | None) -> Network:
    """Read the story's layer format, whose only marks are the layers' numbers and sizes."""
    begin = 0
    layers: list[tuple[np.ndarray, np.ndarray]] = []
    while begin < len(content) or not layers:
        remaining = len(content) - begin
        number, inputs, outputs = (
            _LAYER.unpack_from(content, begin) if remaining >= _LAYER.size else (0, 0, 0)
        )
        if not layers and (number != 1 or not inputs or not outputs):
            raise ValueError(
                f"{name} is no network's file: it begins with neither this library's mark nor "
                "layer 1"
            )
        if len(layers) == _MOST_LAYERS:
            raise ValueError(f"{name} goes on after {_MOST_LAYERS:,} layers; no network has more")
        if remaining < _LAYER.size or number != len(layers) + 1 or not inputs or not outputs:
            raise ValueError(
                f"{name} is damaged or cut off: after layer {len(layers)} come {remaining:,} bytes "
                f"that do not begin layer {len(layers) + 1}"
            )
        size = (inputs + 1) * outputs * _FLOAT_BYTES
        if remaining - _LAYER.size < size:
            raise ValueError(
                f"{name} is cut off, or no network's file: layer {number} of {inputs:,} inputs and "
                f"{outputs:,} outputs has {size:,} bytes, and {remaining - _LAYER.size:,} are left"
            )
        bias = np.frombuffer(content, "<f4", outputs, begin + _LAYER.size)
        weights = np.frombuffer(content, "<f4", inputs * outputs, begin + _LAYER.size + bias.nbytes)
        layers.append((weights.reshape(inputs, outputs), bias))
        begin += _LAYER.size + size
    if activations is None:
        example = repr((*["relu"] * (len(layers) - 1), "sigmoid"))
        raise ValueError(
            f"{name} has {len(layers)} layers and does not say which activations they have; name "
            f"one for each: activations={example}"
        )
    if isinstance(activations, str) or len(activations) != len(layers):
        raise ValueError(
            f"{name} has {len(layers)} layers; activations names one for each, not "
            f"{activations!r:.60}"
        )
    return _network(
        name,
        [(weights, bias, kind) for (weights, bias), kind in zip(layers, activations, strict=True)],
    )


def _network(name: str, layers: Sequence[tuple[np.ndarray, np.ndarray, str]]) -> Network:
    try:
        return Network(
            tuple(Dense(w.astype(np.float32), b.astype(np.float32), kind) for w, b, kind in layers)
        )
    except ValueError as error:
        raise ValueError(f"{name} holds no network: {error}") from error


def _require(name: str, content: bytes, size: int, part: str) -> None:
    if len(content) < size:
        raise ValueError(
            f"{name} is cut off: {part} takes {size:,} bytes, and the file has {len(content):,}"
        )


# of the weights; up to here straight-line code is shorter than the loops take
STRAIGHT_LINE_SHARE = 0.4


class Serving(Record):
    """The program with which a :class:`Specialised` computes at the moment.

    ``weights_are`` is "behind a pointer" while the compiler runs, "constants" afterwards.
    ``compile_s`` is what the compiler took for the constants, 0 when the program was in the cache,
    None while it runs. Lesson 17.
    """

    device: str
    weights_are: str
    placement: str
    macs: int
    nonzero_weights: int
    was_cached: bool | None
    compile_s: float | None


class Specialised:
    """A dense network that is compiled, with its weights as constants, while it already serves.

    ``specialised(x)`` or ``specialised(x, out=y)`` with float32 (N, inputs) on its device gives (N,
    outputs). Until the compiler is done, a program that reads the weights through a pointer answers
    (on a CPU the one for any sizes, which is compiled once a machine); the results of the two agree
    to rounding, not to the bit. Threads may call it at once. ``serving`` is the :class:`Serving` of
    the program that answers at the moment.

    ``device`` is "cpu" or a CUDA device. For a network with few weights left
    (:data:`STRAIGHT_LINE_SHARE`) a CPU gets straight-line code.

    Raises TypeError or ValueError for a model that is no dense network or is too large,
    MissingToolError without a compiler, and NativeError where CUDA is asked for and there is none.
    Lesson 17.
    """

    def __init__(self, model: nn.Module | Network, *, device: str | torch.device = "cpu") -> None:
        self.network = network_of(model)
        self.device = cpu_or_cuda(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise native.NativeError(f"there is no CUDA device for {device!r}", "take device='cpu'")
        self._program: CppProgram | CudaFunction
        constants: Callable[[], CppProgram | CudaFunction]
        # what is too large for constants is refused here and now, not in the background
        if self.device.type == "cpu":
            placement = best_placement(self.network)
            cpp_source(self.network, placement)
            self._program = cpp_program(self.network, "runtime_sizes")
            constants = functools.partial(cpp_program, self.network, placement)
        else:
            cuda_source(self.network)
            self._program = cuda_function(self.network, placement="pointer", device=device)
            self.device = self._program.device
            constants = functools.partial(cuda_function, self.network, device=self.device)
        self._quick = self._program.quick
        self.serving = self._state("behind a pointer", None, None)
        self._error: Exception | None = None
        self._thread = threading.Thread(
            target=self._specialise, args=(constants,), name="specialise", daemon=True
        )
        self._thread.start()

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        activations: Sequence[str] | None = None,
        device: str | torch.device = "cpu",
    ) -> Specialised:
        """Return the network of the file ``path`` (:func:`load`, which takes ``activations``),
        being compiled.

        Raises as :func:`load` for the file and as the class for the network. Lesson 17.
        """
        return cls(load(path, activations=activations), device=device)

    def wait(self, timeout_s: float | None = None) -> Serving:
        """Wait until the constants are compiled and serve; return the program that serves then.

        Raises TimeoutError when that takes longer than ``timeout_s`` (it goes on in the
        background), and what the compiler raised when it failed (then the pointer program goes on
        serving). Lesson 17.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(
                f"the compiler is still at work after {timeout_s:g} s; the network serves from "
                "behind a pointer meanwhile, and wait() may be called again"
            )
        if self._error is not None:
            raise self._error
        return self.serving

    def __repr__(self) -> str:
        now = self.serving
        layers = " -> ".join(map(str, self.network.widths))
        took = "" if now.compile_s is None else f", compiled in {units.text(now.compile_s, 's')}"
        return f"Specialised({layers} on {self.device}, weights {now.weights_are}{took})"

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is not None:
            result = self._quick(x, out)
            if result is not None:
                return result
        return self._program(x, out=out)

    def _specialise(self, constants: Callable[[], CppProgram | CudaFunction]) -> None:
        try:
            program = constants()
        except Exception as error:  # kept for wait(), and said now: a thread has nobody to raise to
            self._error = error
            console.notice(
                "The network is not specialised, and goes on with its weights behind a pointer: "
                f"{error}"
            )
            return
        # Each is one assignment; a call that runs meanwhile uses the old program or the new one,
        # never half of each.
        self._program = program
        self._quick = program.quick
        built = program.library if isinstance(program, CppProgram) else program.program.cubin
        self.serving = self._state("constants", built.was_cached, built.compile_s)

    def _state(self, weights_are: str, was_cached: bool | None, compile_s: float | None) -> Serving:
        return Serving(
            device=str(self.device),
            weights_are=weights_are,
            placement=self._program.placement,
            macs=self.network.macs,
            nonzero_weights=self.network.nonzero_weights,
            was_cached=was_cached,
            compile_s=compile_s,
        )


def through_a_file(network: Network, *, device: str = "cpu") -> Specialised:
    """Return ``network`` being compiled on ``device``, after it was saved to a file and loaded
    again.
    """
    with storage.temporary_folder("network-") as folder:
        save(network, folder / "network.bin")
        return Specialised.from_file(folder / "network.bin", device=device)


def best_placement(network: Network) -> str:
    """Return the C++ placement that is fastest for ``network``: "pruned" with few weights left,
    else "lanes".
    """
    return "pruned" if network.nonzero_weights <= STRAIGHT_LINE_SHARE * network.macs else "lanes"
