"""Models of one structure in one stack: every parameter has the models as its first dimension.

Lesson 19.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.func import stack_module_state

from helpers.checks import members


def stack_weights(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return every parameter of the models stacked, (models, ...) each, detached from them.

    Raises ValueError for models that differ in structure, that hold buffers, or of which a part is
    frozen.
    """
    models = members("models", models, "models, each a torch.nn.Module", kind=nn.Module)
    if not models:
        raise ValueError("models is empty; give at least one to stack")
    layers = {
        (type(model), *((name, weight.shape) for name, weight in model.named_parameters()))
        for model in models
    }
    if len(layers) > 1:
        raise ValueError(
            "the models differ in their layers; give models of one class and one size to stack them"
        )
    if any(list(model.buffers()) for model in models):
        raise ValueError(
            f"{type(models[0]).__name__} holds buffers (batch normalisation has some), which a "
            "step changes one network at a time; give models without, or train them in a loop"
        )
    if any(not weight.requires_grad for model in models for weight in model.parameters()):
        raise ValueError(
            "a part of the models is frozen; give models of which every parameter is trained"
        )
    weights, _ = stack_module_state(models)
    return {name: weight.detach() for name, weight in weights.items()}
