"""Networks in files: every bit kept or missed, every wrong file refused with its reason."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from helpers.studies.constant_weights import _files as files
from helpers.studies.constant_weights._files import MAGIC, load, save
from helpers.studies.constant_weights._network import (
    Dense,
    Network,
    random_network,
    standard_network,
)

SMALL = random_network((2, 3, 1), ("tanh", "sigmoid"), seed=3)


def same(one: Network, other: Network) -> bool:
    return len(one.layers) == len(other.layers) and all(
        a.weights.tobytes() == b.weights.tobytes()
        and a.weights.shape == b.weights.shape
        and a.bias.tobytes() == b.bias.tobytes()
        and a.activation == b.activation
        for a, b in zip(one.layers, other.layers, strict=True)
    )


def layer_format(network: Network) -> bytes:
    """The story's format, written with struct alone."""
    parts = []
    for number, layer in enumerate(network.layers, start=1):
        parts.append(struct.pack("<III", number, *layer.weights.shape))
        parts += [struct.pack("<f", value) for value in (*layer.bias, *layer.weights.reshape(-1))]
    return b"".join(parts)


def with_checksum(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.bin"


def test_every_bit_comes_back(path):
    extremes = np.float32([[1e-45, -1e-45, 3.4028235e38], [-0.0, 0.0, 1 / 3]])
    for network in (
        standard_network(5),
        SMALL,
        Network((Dense(extremes, np.float32([0, -0.0, 1e-40]), "softmax"),)),
    ):
        save(network, path)
        assert same(load(path), network)
    save(SMALL.module(), path)
    assert same(load(path), SMALL)


def test_the_file_is_as_it_is_described(path):
    save(SMALL, path)
    content = path.read_bytes()
    assert content[:16] == MAGIC + struct.pack("<II", 1, 2)
    assert struct.unpack("<6I", content[16:40]) == (2, 3, 2, 3, 1, 3)
    assert content[40:64] == SMALL.layers[0].weights.astype("<f4").tobytes()
    assert len(content) == 40 + 4 * SMALL.parameters + 32


def test_every_flipped_bit_is_seen(path):
    save(SMALL, path)
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"net\.bin is"):
            load(path)


def test_every_length_but_the_right_one_is_refused(path):
    save(SMALL, path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="cut off"):
            load(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match=f"too long or damaged.*{len(content):,} bytes"):
        load(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"#!/bin/sh\necho hello\n", "no network's file"),
        (b"PK\x03\x04" + bytes(100), "no network's file"),
        (bytes(1000), "no network's file"),
        (MAGIC + struct.pack("<II", 2, 1), "version 2"),
        (MAGIC + struct.pack("<II", 1, 0), "0 layers"),
        (MAGIC + struct.pack("<II", 1, 2**32 - 1), "4,294,967,295 layers"),
        (
            with_checksum(MAGIC + struct.pack("<IIIII", 1, 1, 2**32 - 1, 2**32 - 1, 0)),
            "cut off or damaged",
        ),
        (
            with_checksum(MAGIC + struct.pack("<IIIII2f", 1, 1, 1, 1, 9, 1, 1)),
            "activation number 9",
        ),
        (with_checksum(MAGIC + struct.pack("<IIIII", 1, 1, 5, 0, 0)), "5 inputs, 0 outputs"),
        (
            with_checksum(MAGIC + struct.pack("<IIIII2f", 1, 1, 1, 1, 0, float("nan"), 1)),
            r"weights\[0, 0\] is nan",
        ),
        (
            with_checksum(MAGIC + struct.pack("<IIIIIIII", 1, 2, 1, 1, 0, 2, 1, 0) + bytes(20)),
            "layer 1 gives 1 numbers",
        ),
    ],
)
def test_foreign_and_impossible_files_are_refused_with_the_reason(path, content, words):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        load(path)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(path, monkeypatch):
    save(SMALL, path)
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="at most 100"):
        load(path)
    with pytest.raises(ValueError, match=r"a file holds up to .* 100 bytes"):
        save(SMALL, path)


def test_the_layer_format_is_read_when_the_activations_are_named(path):
    network = standard_network(2)
    path.write_bytes(layer_format(network))
    assert same(load(path, activations=("relu", "relu", "sigmoid")), network)
    with pytest.raises(ValueError, match=r"activations=\('relu', 'relu', 'sigmoid'\)"):
        load(path)
    with pytest.raises(ValueError, match="one for each"):
        load(path, activations=("relu",))
    with pytest.raises(ValueError, match="activation='swish' is not known"):
        load(path, activations=("relu", "relu", "swish"))
    save(network, path)
    with pytest.raises(ValueError, match="says itself"):
        load(path, activations=("relu", "relu", "sigmoid"))


def test_a_wrong_layer_file_is_refused(path):
    content, names = layer_format(SMALL), ("tanh", "sigmoid")
    whole_layer = 12 + 4 * (2 * 3 + 3)
    for length in range(len(content)):
        # one whole layer is a network of one layer: the activations' number tells
        if length == whole_layer:
            continue
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"cut off|no network's file"):
            load(path, activations=names)
    path.write_bytes(content[:whole_layer])
    with pytest.raises(ValueError, match="has 1 layers; activations names one for each"):
        load(path, activations=names)
    second = content[:whole_layer] + struct.pack("<I", 3) + content[whole_layer + 4 :]
    for wrong in (content + b"\0\0\0\0", second, struct.pack("<III", 1, 2**32 - 1, 2**32 - 1)):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"damaged or cut off|is cut off"):
            load(path, activations=names)


def test_a_missing_file_is_an_os_error(path):
    with pytest.raises(FileNotFoundError):
        load(path)
