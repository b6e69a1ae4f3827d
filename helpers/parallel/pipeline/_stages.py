"""A network cut into the stages of a pipeline."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def layers_of(net: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """Return the layers of ``net`` with their names.

    Raises ValueError for one that stands in two places. PyTorch names such a layer once, so that it
    would be left out where it stands again.
    """
    names: dict[nn.Module, str] = {}
    for name, layer in net._modules.items():
        if layer in names:
            raise ValueError(
                f"layers {names[layer]!r} and {name!r} are one {type(layer).__name__}; make one "
                "for each place, so that every layer has a stage and a cost of its own"
            )
        names[layer] = name
    return [(name, layer) for layer, name in names.items()]


def split_stages(net: nn.Sequential, stages: int) -> tuple[nn.Sequential, ...]:
    """Return the layers of ``net`` as ``stages`` nets of equally many layers; names and parameters
    stay the same.

    Raises TypeError for a net that is not an nn.Sequential, and ValueError for layers that do not
    divide, for a layer that stands in two places, and for a parameter in two stages, which would be
    trained apart. Lesson 06.
    """
    if not isinstance(net, nn.Sequential):
        raise TypeError(f"a pipeline is cut out of an nn.Sequential; got a {type(net).__name__}")
    layers = layers_of(net)
    layers_per_stage = len(layers) // stages
    if not layers or layers_per_stage * stages != len(layers):
        raise ValueError(
            f"{len(layers)} layers do not divide into {stages} stages of equally many; join layers "
            "in an nn.Sequential of their own, or take other ranks or chunks"
        )
    parts = tuple(
        nn.Sequential(OrderedDict(layers[start : start + layers_per_stage]))
        for start in range(0, len(layers), layers_per_stage)
    )
    stage_of_parameter: dict[int, int] = {}
    for stage, part in enumerate(parts):
        for name, parameter in part.named_parameters():
            if stage_of_parameter.setdefault(id(parameter), stage) != stage:
                raise ValueError(
                    f"stages {stage_of_parameter[id(parameter)]} and {stage} share the parameter "
                    f"{name!r}, and "
                    "each would train a copy of its own: untie it, or put both layers into one"
                )
    return parts


# What runs on a rank.
