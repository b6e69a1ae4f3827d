"""Counting against the model's own forward on shapes: a ratio inside one run, the two by turns."""

from __future__ import annotations

import copy
import gc
import time

import pytest
import torch
from torch import nn

from helpers.operations import ModelError, profile_ops

torchvision_models = pytest.importorskip("torchvision.models")


@pytest.fixture(autouse=True)
def _nothing_frozen():
    """Count as in a process that has frozen nothing, which conftest.py does for the speed of all
    tests.
    """
    gc.unfreeze()


def _cpu_s(function):
    begin = time.process_time()
    function()
    return time.process_time() - begin


def _fastest_ratio(function, reference, *, rounds, enough):
    """Ratio of the least CPU times of two functions run by turns; stops once it is at most
    ``enough``.
    """
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
    # a slow one would be seen
    assert _fastest_ratio(doubled, lambda: bare(image), rounds=3, enough=0) > 1.3


def _encoder():
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), {
        "src": torch.zeros(2, 16, 64)
    }


def _bert():
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=100, **sizes))
    return model, {"input_ids": torch.ones(2, 16, dtype=torch.long)}


def _t5():
    transformers = pytest.importorskip("transformers")
    sizes = {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 12,
        "num_heads": 4,
        "vocab_size": 100,
    }
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0)
    )
    ids = torch.ones(2, 16, dtype=torch.long)
    return model, {"input_ids": ids, "labels": ids}


@pytest.mark.timed
@pytest.mark.parametrize("make", [_encoder, _bert, _t5])
def test_a_transformer_of_small_operators_costs_no_more(make):
    model, given = make()
    bare = copy.deepcopy(model).to("meta")
    shapes = {name: tensor.to("meta") for name, tensor in given.items()}

    def counted():
        profile_ops(model, given)

    def slower():
        counted(), bare(**shapes), bare(**shapes)

    assert _fastest_ratio(counted, lambda: bare(**shapes), rounds=10, enough=1.3) <= 1.3
    # a slow one would be seen
    assert _fastest_ratio(slower, lambda: bare(**shapes), rounds=3, enough=0) > 1.3


def test_the_collector_waits_for_shapes_and_comes_back():
    was_enabled = []

    class Noting(nn.Linear):
        def forward(self, x):
            was_enabled.append(gc.isenabled())
            return super().forward(x)

    for values in (False, True):
        profile_ops(Noting(4, 2), (1, 4), values=values)
        assert gc.isenabled()
    with pytest.raises(ModelError, match="failed on"):
        profile_ops(Noting(4, 2), (1, 5))
    assert gc.isenabled()
    assert was_enabled == [False, True, False]
