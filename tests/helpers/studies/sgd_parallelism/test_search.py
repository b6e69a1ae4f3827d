"""Searches over learning rates: held to torch's own SGD, and the noise of a gradient to its single
examples.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from helpers.models import BasicFCModel
from helpers.studies.sgd_parallelism import _search as search

RATES = (0.05, 0.4, 50.0)


def plain(gradient, weights, rates, steps):
    for _ in range(steps):
        weights = weights - rates * gradient(weights)
        yield weights


@pytest.fixture(scope="module")
def points():
    """Three clouds in twelve dimensions, which overlap a little."""
    chance = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (500,), generator=chance)
    centres = 1.5 * torch.randn(3, 12, generator=chance)
    return centres[labels] + torch.randn(500, 12, generator=chance), labels


@pytest.fixture
def model():
    torch.manual_seed(4)
    return BasicFCModel(12, 8, 3, 2)


def first_below(model, points, *, place, rate, batch_size, seeds, goal, most_steps):
    """The oracle: one training by torch.optim.SGD on the images that the search draws for the seed
    of this place.
    """
    images, labels = points
    trained = BasicFCModel(12, 8, 3, 2)
    trained.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(trained.parameters(), lr=rate)
    chance = torch.Generator().manual_seed(1)
    for step in range(1, most_steps + 1):
        drawn = torch.randint(len(labels), (seeds, batch_size), generator=chance)[place]
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(images[drawn]), labels[drawn]).backward()
        optimizer.step()
        with torch.no_grad():
            if step % 2 == 0 and nn.functional.cross_entropy(trained(images), labels) < goal:
                return step
    return math.inf


def test_each_copy_learns_as_one_network_by_torch_does(model, points):
    settings = {"batch_size": 16, "seeds": 4, "goal": 0.45, "most_steps": 60}
    found = search.search_rates(plain, model, points, rates=RATES, **settings)
    for place in range(4):
        expected = [
            first_below(model, points, place=place, rate=rate, **settings) for rate in RATES[:2]
        ]
        for steps, wanted in zip(found.steps[place], expected, strict=False):
            # After the rate that is done first, the search goes on for a while only.
            assert steps == pytest.approx(wanted, abs=2) or (steps == math.inf and wanted > 20)
    assert [row[2] for row in found.steps] == [math.inf] * 4  # a rate of 50 blows up
    assert max(row[1] for row in found.steps) < math.inf


@pytest.fixture(scope="module")
def learned(points):
    network = BasicFCModel(12, 8, 3, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.4)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(points[0]), points[1]).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def search_of(table, learned, model, points):
    """Search with copies that have learned from the steps of ``table`` on, (seeds, rates)."""

    def jump(gradient, weights, rates, steps):
        for step in range(1, steps + 1):
            yield torch.where((torch.tensor(table) <= step)[..., None], learned, weights)

    return search.search_rates(
        jump, model, points, batch_size=4, rates=(0.1, 0.2), seeds=4, goal=0.6
    )


def test_one_half_of_the_seeds_chooses_and_the_other_counts(model, points, learned):
    # the first two seeds prefer the first rate, the others the second
    table = [[4, 6], [6, 6], [8, 2], [4, 2]]
    found = search_of(table, learned, model, points)
    assert found.steps == tuple(tuple(map(float, row)) for row in table)
    assert (found.best_rate, found.mean_steps, found.standard_error) == (0.1, 6.0, pytest.approx(2))


def test_a_best_rate_at_which_a_seed_that_counts_never_learns_is_refused(model, points, learned):
    with pytest.raises(
        ValueError, match=r"at the best rate, 0\.1, not all seeds that count came below"
    ):
        search_of([[4, 6], [6, 6], [10**6, 2], [4, 2]], learned, model, points)


def test_the_gradients_of_all_copies_are_those_of_autograd(model, points):
    networks = search._Networks(model, *points)
    chance = torch.Generator().manual_seed(2)
    weights = torch.randn(3, 2, len(networks.start), generator=chance)
    drawn = torch.randint(len(points[1]), (3, 5), generator=chance)
    found = networks.gradient(weights, drawn)
    assert torch.equal(networks.start, nn.utils.parameters_to_vector(model.parameters()))
    for seed in range(3):
        for rate in range(2):
            nn.utils.vector_to_parameters(weights[seed, rate], model.parameters())
            loss = nn.functional.cross_entropy(
                model(points[0][drawn[seed]]), points[1][drawn[seed]]
            )
            expected = torch.cat(
                [part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))]
            )
            assert torch.allclose(found[seed, rate], expected, atol=1e-5)
            alone = networks.losses(weights[seed, rate][None])
            with torch.no_grad():
                whole = nn.functional.cross_entropy(model(points[0]), points[1])
            assert alone.item() == pytest.approx(whole.item(), rel=1e-5)


def test_the_model_stays_and_the_same_call_gives_the_same(model, points):
    before = [weight.clone() for weight in model.parameters()]
    first, second = (
        search.search_rates(plain, model, points, batch_size=8, rates=(0.2, 0.4), goal=0.6)
        for _ in range(2)
    )
    assert first == second
    assert all(torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))


def test_what_no_rate_reaches_and_other_models_are_refused(model, points):
    with pytest.raises(
        ValueError,
        match=r"do the choosing seeds come below a loss of 0\.001 in 10 steps; give more steps",
    ):
        search.search_rates(plain, model, points, batch_size=8, goal=0.001, most_steps=10)
    with pytest.raises(
        ValueError, match="give a model of two linear layers for images of 12 values"
    ):
        search.search_rates(plain, BasicFCModel(12, 8, 3, 3), points, batch_size=8)
    with pytest.raises(
        ValueError, match="give a model of two linear layers for images of 12 values"
    ):
        search.search_rates(plain, BasicFCModel(11, 8, 3, 2), points, batch_size=8)


def test_the_noise_is_that_of_single_gradients(model, points):
    images, labels = (part[:40] for part in points)
    rows = []
    for image, label in zip(images, labels, strict=True):
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([part.flatten() for part in slopes]).double().numpy())
    variance = np.var(rows, axis=0, ddof=1).sum()
    squared_length = np.square(np.mean(rows, axis=0)).sum() - variance / 40
    assert search.noise_scale(model, (images, labels)) == pytest.approx(
        variance / squared_length, rel=1e-4
    )


def test_the_noise_is_freed_from_what_few_examples_add_to_the_mean():
    """Gradients of a single weight with a variance of 4 around a mean of 1."""
    chance = torch.Generator().manual_seed(7)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    # of the loss (w - target)^2 / 2 at w = 0
    targets = -(1 + 2 * torch.randn(20_000, 1, generator=chance))
    assert search.noise_scale(model, (torch.ones(20_000, 1), targets)) == pytest.approx(4, rel=0.1)
    opposite = torch.tensor([[1.0], [-1.0]])
    assert search.noise_scale(model, (torch.ones(2, 1), opposite)) == math.inf


def test_the_noise_is_followed_while_a_copy_learns(model, points):
    before = [weight.clone() for weight in model.parameters()]
    trace = search.follow_noise(model, points)
    assert [point.step for point in trace] == list(range(0, 56, 5))
    assert trace[0].loss > trace[2].loss > trace[4].loss > trace[-1].loss
    assert trace[0].noise_scale == pytest.approx(search.noise_scale(model, points))
    assert all(torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))
