"""Small images in a row, with their labels."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from helpers._checks import members, one_of
from helpers.plotting._style import STYLE_FILE

_INCHES_PER_IMAGE = 0.75


def draw_images(images: torch.Tensor, labels: Sequence[object], *, title: str) -> Figure:
    """Return the grey images, a tensor (N, 1, H, W) or (N, H, W), in one row with ``labels`` below.

    Raises TypeError for what is no tensor, ValueError for another shape, NaN, or not one label an image. Lesson 00.
    """
    one_of("images", images, torch.Tensor, "a tensor (torch.from_numpy makes one of an array)")
    labels = members("labels", labels, "labels, one an image")
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[1] != 1):
        raise ValueError(f"images has the shape {tuple(images.shape)}; give grey images, (N, 1, H, W) or (N, H, W)")
    if not torch.isfinite(images).all():
        raise ValueError("images holds NaN or infinity; give finite numbers")
    pictures = images.detach().cpu().reshape(len(images), *images.shape[-2:])
    if len(pictures) == 0 or len(pictures) != len(labels):
        raise ValueError(f"give at least one image and a label for each; got {len(pictures)} and {len(labels)}")
    with plt.style.context(STYLE_FILE):
        drawn, places = plt.subplots(
            1, len(pictures), figsize=(max(3.0, _INCHES_PER_IMAGE * len(pictures)), 1.5), squeeze=False
        )
        drawn.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    for axes, picture, label in zip(places[0], pictures, labels, strict=True):
        axes.imshow(picture, cmap="gray_r")
        axes.set_xlabel(str(label))
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
    return drawn
