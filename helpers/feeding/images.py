"""Image files in a folder, and the dataset that reads, decodes and augments them: real work on a processor.

Lesson 06.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch.utils.data import Dataset

from helpers import storage
from helpers.checks import whole_number
from helpers.feeding.items import refuse_outside

FORMATS = {"jpeg": ".jpg", "png": ".png"}
_JPEG_QUALITY = 90
_COARSE_PIXELS = 8
_NOISE = 12.0
_CLASSES = 10


def write_images(
    folder: str | os.PathLike[str], *, images: int = 32, side: int = 128, file_format: str = "jpeg", seed: int = 0
) -> tuple[Path, ...]:
    """Write ``images`` RGB pictures of ``side`` x ``side`` pixels to ``folder`` and return their paths, in order.

    A picture is smooth patches of colour with noise over them, as compressible as a photograph is; ``seed`` alone
    decides them. ``file_format`` is "jpeg" (quality 90) or "png". Each file is whole or not there.

    Raises ValueError for an unknown format or a side below 8, FileNotFoundError for a folder that is missing,
    ModuleNotFoundError without Pillow. Lesson 06.
    """
    images = whole_number("images", images, at_least=1)
    side = whole_number("side", side, at_least=_COARSE_PIXELS)
    if file_format not in FORMATS:
        raise ValueError(f"file_format={file_format!r} is not known; use {' or '.join(map(repr, FORMATS))}")
    place = Path(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"the folder {str(place)!r} is not there; make it first")
    pillow, random, paths = _pillow(), np.random.default_rng(seed), []
    for number in range(images):
        coarse = random.integers(0, 256, (_COARSE_PIXELS, _COARSE_PIXELS, 3), dtype=np.uint8)
        smooth = pillow.fromarray(coarse).resize((side, side), pillow.Resampling.BICUBIC)
        pixels = np.asarray(smooth, dtype=np.float32) + random.normal(0, _NOISE, (side, side, 3))
        content = io.BytesIO()
        options = {"quality": _JPEG_QUALITY} if file_format == "jpeg" else {}
        pillow.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(content, file_format.upper(), **options)
        path = place / f"image_{number:05d}{FORMATS[file_format]}"
        storage.write_atomically(path, content.getvalue())
        paths.append(path)
    return tuple(paths)


class DecodedImages(Dataset):
    """Image files as training items: item i is (float32 tensor (3, crop, crop) in -1..1, label i modulo 10).

    An item is read, decoded, cut at a random place, mirrored or not, and scaled; with ``augment=False`` it is cut in
    the middle. Place and mirror depend on ``seed`` and the index alone, so that every number of workers gives the same
    items. ``repeats`` lists each file so often: an epoch longer than the folder.

    Raises ValueError for no paths or a crop larger than an image, ModuleNotFoundError without Pillow. Lesson 06.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        crop: int = 96,
        augment: bool = True,
        repeats: int = 1,
        seed: int = 0,
    ) -> None:
        _pillow()
        self.paths = [Path(path) for path in paths] * whole_number("repeats", repeats, at_least=1)
        if not self.paths:
            raise ValueError("paths is empty; give image files, such as those of write_images(folder)")
        self.crop = whole_number("crop", crop, at_least=1)
        self.augment, self.seed = augment, whole_number("seed", seed, at_least=0)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        refuse_outside(index, len(self.paths))
        return self.transformed(self.decoded(self.paths[index].read_bytes()), index), index % _CLASSES

    def decoded(self, content: bytes) -> np.ndarray:
        """Return the pixels, uint8 of shape (height, width, 3), of an image file's bytes. Lesson 06."""
        with _pillow().open(io.BytesIO(content)) as image:
            return np.asarray(image.convert("RGB"))

    def transformed(self, pixels: np.ndarray, index: int) -> torch.Tensor:
        """Return the float32 tensor (3, crop, crop) of item ``index`` from its pixels. Lesson 06."""
        height, width, _ = pixels.shape
        spare = height - self.crop, width - self.crop
        if min(spare) < 0:
            raise ValueError(f"crop={self.crop} is larger than the image of {height} x {width} pixels "
                             f"{self.paths[index].name}; give at most {min(height, width)}")  # fmt: skip
        random = np.random.default_rng((self.seed, index))
        top, left = random.integers(0, np.array(spare) + 1) if self.augment else np.array(spare) // 2
        cut = pixels[top : top + self.crop, left : left + self.crop]
        if self.augment and random.random() < 0.5:
            cut = cut[:, ::-1]
        scaled = np.ascontiguousarray(cut.transpose(2, 0, 1)).astype(np.float32)
        return torch.from_numpy(scaled).div_(127.5).sub_(1)


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "image files need the package Pillow, which comes with torchvision and is not installed here; run make "
            "setup, or: uv pip install pillow",
            name="PIL",
        ) from error
    return Image
