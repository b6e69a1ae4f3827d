"""An oracle we did not write: the operations and parameters that torchvision publishes for its
weights.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.overrides import TorchFunctionMode

from helpers.operations import profile_ops

torchvision_models = pytest.importorskip("torchvision.models")


# The published weights are without the helper outputs that this model is trained with.
_OPTIONS = {
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"init_weights": False},
}


def _published():
    for name in torchvision_models.list_models(module=torchvision_models):
        weights = torchvision_models.get_model_weights(name).DEFAULT
        yield (
            name,
            weights.meta["_ops"],
            weights.meta["num_params"],
            weights.transforms.keywords["crop_size"],
        )


_FILL = {torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.fill_, torch.Tensor.zero_}


class _WeightsWithoutData(TorchFunctionMode):
    """Put what ``torch.empty`` makes (the weights) on the meta device, and leave the rest: RegNets
    compute sizes.

    Nothing is drawn for a weight without data: on the meta device that takes as long as the rest of
    making a model.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in _FILL and args[0].is_meta:
            return args[0]
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


@pytest.mark.slow
def test_every_classification_model():
    """Published to a thousandth of a GMAC, and the parameters exactly."""
    wrong, counted = [], 0
    for name, published_gmacs, parameters, size in _published():
        options = {"image_size": size} if name.startswith("vit") else _OPTIONS.get(name, {})
        with warnings.catch_warnings(), _WeightsWithoutData():
            warnings.simplefilter("ignore")
            model = torchvision_models.get_model(name, **options).eval()
        profile = profile_ops(model, (1, 3, size, size))
        counted += 1
        if (
            profile.parameters != parameters
            or abs(profile.forward_macs / 1e9 - published_gmacs) > 0.001
        ):
            wrong.append(
                (name, profile.forward_macs, published_gmacs, profile.parameters, parameters)
            )
        if profile.not_counted:
            wrong.append((name, profile.not_counted))
    assert wrong == []
    assert counted >= 76
