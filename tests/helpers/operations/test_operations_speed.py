"""Counting against the model's own forward on shapes: a ratio inside one run, the two by turns."""

from __future__ import annotations

import time

import pytest
import torch

from helpers.operations import profile_ops

torchvision_models = pytest.importorskip("torchvision.models")


def _cpu_s(function):
    begin = time.process_time()
    function()
    return time.process_time() - begin


def _fastest_ratio(function, reference, *, rounds, enough):
    """Ratio of the least CPU times of two functions run by turns; stops once it is at most ``enough``."""
    ours = theirs = float("inf")
    for _ in range(rounds):
        theirs, ours = min(theirs, _cpu_s(reference)), min(ours, _cpu_s(function))
        if ours / theirs <= enough:
            break
    return ours / theirs


@pytest.mark.timed
@pytest.mark.parametrize("training", [True, False])
def test_at_most_1_3_times_a_forward_on_shapes(training):
    model = torchvision_models.resnet50().train(training)
    with torch.device("meta"):
        bare = torchvision_models.resnet50().train(training)
        image = torch.empty(1, 3, 224, 224)

    def counted():
        profile_ops(model, (1, 3, 224, 224))

    def doubled():
        counted(), bare(image), bare(image)

    assert _fastest_ratio(counted, lambda: bare(image), rounds=10, enough=1.3) <= 1.3
    assert _fastest_ratio(doubled, lambda: bare(image), rounds=3, enough=0) > 1.3  # a slow one would be seen
