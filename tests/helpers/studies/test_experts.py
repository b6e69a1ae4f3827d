"""Dropped tokens, held to scipy and to all choices, and the small network, held to one that goes
token by token.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import binom

from helpers.studies import experts
from helpers.studies.experts import _training, expect_dropped


@pytest.mark.parametrize(
    ("tokens", "probability", "capacity"),
    [(16, 1 / 4, 4), (4096, 1 / 4, 1024), (10, 0.9, 3), (7, 0.5, 0), (5, 0.2, 5), (0, 0.5, 0)],
)
def test_dropped_tokens_are_the_mean_excess_of_a_binomial(tokens, probability, capacity):
    expected = (
        binom(tokens, probability).expect(lambda choosing: np.maximum(choosing - capacity, 0))
        if tokens
        else 0
    )
    assert expect_dropped(tokens, probability, capacity=capacity) == pytest.approx(
        expected, rel=1e-9, abs=1e-12
    )


def test_dropped_tokens_are_the_mean_over_all_choices():
    choices = list(itertools.product(range(3), repeat=5))
    dropped = [max(chosen.count(0) - 2, 0) for chosen in choices]
    assert expect_dropped(5, 1 / 3, capacity=2) == pytest.approx(sum(dropped) / len(choices))


def test_a_probability_that_is_none_is_refused():
    with pytest.raises(ValueError, match="probability=1 must be below 1"):
        expect_dropped(4, 1, capacity=1)
    with pytest.raises(ValueError, match="probability=0"):
        expect_dropped(4, 0, capacity=1)


def test_the_network_computes_each_token_with_its_own_expert():
    torch.manual_seed(0)
    parameters = _training._initialise([0, 3], 4)
    images = torch.randn(9, 14 * 14)
    logits, probabilities, chosen = _training._forward(parameters, images)
    for network, token in itertools.product(range(2), range(9)):
        own = {name: tensor[network] for name, tensor in parameters.items()}
        hidden = torch.relu(images[token] @ own["inputs"])
        scores = torch.softmax(hidden @ own["router"], dim=0)
        expert = int(scores.argmax())
        output = torch.relu(hidden @ own["up"][expert]) @ own["down"][expert]
        expected = (hidden + scores[expert] * output) @ own["output"]
        assert int(chosen[network, token]) == expert
        torch.testing.assert_close(probabilities[network, token], scores)
        torch.testing.assert_close(logits[network, token], expected, rtol=1e-4, atol=1e-5)


def test_networks_learn_by_themselves_and_from_the_same_start():
    calls = []

    def balance(probabilities, chosen):
        calls.append((tuple(probabilities.shape), tuple(chosen.shape)))
        return probabilities.mean()

    both = experts.train_routers([0, 1], balance, experts=4, seeds=2, steps=3)
    assert calls == [((256, 4), (256,))] * 2 * 3  # none for the weight 0
    alone = experts.train_routers([0], experts=4, seeds=2, steps=3)
    assert [(run.weight, run.seed) for run in both] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for run, same in zip(alone, both, strict=False):
        assert run.shares == pytest.approx(same.shares, abs=0.01)
        assert sum(run.shares) == pytest.approx(1)
    assert alone[0].shares != alone[1].shares


def test_a_loss_for_full_experts_spreads_the_tokens():
    def balance(probabilities, chosen):
        share = torch.nn.functional.one_hot(chosen, probabilities.shape[1]).float().mean(0)
        return probabilities.shape[1] * (share * probabilities.mean(0)).sum()

    alone, balanced = experts.train_routers([0, 1.0], balance, experts=4, seeds=1, steps=60)
    assert alone.fullest > 1.5 * balanced.fullest
    assert min(alone.accuracy, balanced.accuracy) > 0.6


def test_a_run_counts_its_fullest_expert_and_what_it_would_drop():
    run = experts.RouterRun(0.0, 0, (0.5, 0.3, 0.2, 0.0), 0.9)
    assert run.fullest == 2
    assert run.dropped(0.0) == pytest.approx(0.25 + 0.05)
    assert run.dropped(1.0) == 0


def test_a_weight_without_a_loss_is_refused():
    with pytest.raises(ValueError, match=r"weights=\[0.0, 0.1\] are those of a balance loss"):
        experts.train_routers([0, 0.1])
    with pytest.raises(ValueError, match=r"weights\[0\]=-1"):
        experts.train_routers([-1], lambda *_: torch.zeros(()))


def test_bars_are_the_sorted_shares_relative_to_a_fair_one():
    drawn = experts.draw_shares({"alone": [0.1, 0.7, 0.2], "balanced": [0.3, 0.3, 0.4]}, title="t")
    heights = [patch.get_height() for patch in drawn.axes[0].patches]
    assert heights == pytest.approx([2.1, 0.6, 0.3, 1.2, 0.9, 0.9])
    named = {text.get_text() for text in drawn.axes[0].get_legend().get_texts()}
    assert named == {"alone", "balanced", "a fair share"}
    with pytest.raises(ValueError, match=r"2 labels with \[1, 2\] experts cannot be drawn"):
        experts.draw_shares({"a": [1], "b": [0.5, 0.5]}, title="t")
