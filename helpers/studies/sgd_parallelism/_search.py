"""Searches over learning rates: many small networks at once, and the updates until each has
learned.

Lesson 04.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.checks import number, numbers, whole_number
from helpers.results import Record
from helpers.studies.sgd_parallelism import _problems as problems

Descent = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor, int], Iterable[Tensor]]

RATES = tuple(0.05 * 2 ** (place / 2) for place in range(10))
_LOOK_EVERY = 2  # steps
_GOES_ON = 1.4  # times as long as the first rate at which every seed has learned
_PATIENCE = 40  # steps after which a loss is below the first one, or the copy is given up
_EXAMPLES_OF_LOSS = 1000


class RateSearch(Record):
    """Trainings of one network at several ``rates``, by several seeds, until the loss falls below
    ``goal``.

    ``steps[seed][place]`` is the step after which the loss was first seen below the goal at
    ``rates[place]``, infinite where it was not. The first half of the seeds chooses ``best_rate``,
    the other half gives ``mean_steps`` and its ``standard_error``, so that the choice flatters
    nothing. Lesson 04.
    """

    batch_size: int
    goal: float
    rates: tuple[float, ...]
    best_rate: float
    mean_steps: float
    standard_error: float
    steps: tuple[tuple[float, ...], ...]


def search_rates(
    descend: Descent,
    model: nn.Module,
    data: Any,
    *,
    batch_size: int,
    rates: Sequence[float] = RATES,
    seeds: int = 16,
    goal: float = 0.5,
    most_steps: int = 400,
) -> RateSearch:
    """Return the steps that copies of ``model`` need at each of ``rates`` until their loss is below
    ``goal``.

    ``model`` has two linear layers with a ReLU between them, ``data`` is a pair of tensors (images,
    labels) or a loader of such batches. ``descend(gradient, weights, rates, steps)`` yields the
    weights after each step. All copies descend at once, so ``weights`` is (seeds, rates,
    parameters) and the rates are (rates, 1). Every step draws ``batch_size`` images for each of the
    ``seeds``, with replacement. Every second step looks at the mean loss of the first 1,000 images.
    A copy is given up when its loss is three times the first one, or after 40 steps still not below
    it. The search ends a while after the first rate at which all seeds are below
    the goal, at the latest after ``most_steps``.

    Raises TypeError or ValueError for an argument that is not accepted, and ValueError where at no
    rate all seeds of the first half come below the goal, or not all of the second half at the best
    one. Lesson 04.
    """
    rates = numbers("rates", rates, above=0)
    seeds = whole_number("seeds", seeds, at_least=2)
    batch_size = whole_number("batch_size", batch_size)
    most_steps = whole_number("most_steps", most_steps)
    goal = number("goal", goal, above=0)
    images, labels = problems.examples_of(data, torch.device("cpu"))
    networks = _Networks(model, images.flatten(1), labels)
    start = networks.start.expand(seeds, len(rates), -1).contiguous()
    generator = torch.Generator().manual_seed(1)

    first_steps = torch.full((seeds, len(rates)), math.inf)
    active = torch.ones_like(first_steps, dtype=torch.bool)

    def gradient(weights: Tensor) -> Tensor:
        indices = torch.randint(len(labels), (seeds, batch_size), generator=generator)
        active_rates = active.any(0)  # a rate at which no copy goes on gets zeros
        slopes = torch.zeros_like(weights)
        slopes[:, active_rates] = networks.gradient(weights[:, active_rates], indices)
        return slopes

    start_loss = networks.losses(networks.start[None]).item()
    descent = descend(gradient, start, torch.tensor(rates)[:, None], most_steps)
    for step, weights in enumerate(descent, start=1):
        if step % _LOOK_EVERY:
            continue
        losses = torch.full_like(first_steps, math.inf)
        losses[active] = networks.losses(weights[active])
        first_steps[losses < goal] = step
        most_loss = start_loss if step > _PATIENCE else problems.BLOWN_UP * start_loss
        active &= (losses >= goal) & (losses < most_loss)
        is_finished = first_steps.isfinite().all(0)
        if is_finished.any() and step > _GOES_ON * first_steps[:, is_finished].amax(0).min():
            break
    choosing_steps, counting_steps = first_steps[: seeds // 2], first_steps[seeds // 2 :]
    means = choosing_steps.mean(0)
    if not means.isfinite().any():
        raise ValueError(
            f"at none of the rates {rates} do the choosing seeds come below a loss of {goal:g} in "
            f"{most_steps} steps; give more steps, or other rates"
        )
    best = int(means.argmin())
    if not counting_steps[:, best].isfinite().all():
        raise ValueError(
            f"at the best rate, {rates[best]:g}, not all seeds that count came below a loss of "
            f"{goal:g}; give smaller rates, or other seeds"
        )
    counted = counting_steps[:, best]
    return RateSearch(
        batch_size=batch_size,
        goal=goal,
        rates=tuple(rates),
        best_rate=rates[best],
        mean_steps=counted.mean().item(),
        standard_error=counted.std().item() / math.sqrt(len(counted))
        if len(counted) > 1
        else math.nan,
        steps=tuple(map(tuple, first_steps.tolist())),
    )


class _Networks:
    """Copies of a network of two layers, their weights in one tensor, and the gradients of all of
    them at once.
    """

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        parameters = list(problems.copy_for_training(model).parameters())
        shapes = [tuple(parameter.shape) for parameter in parameters]
        if [len(shape) for shape in shapes] != [2, 1, 2, 1] or shapes[0][1] != images.shape[1]:
            raise ValueError(
                f"the parameters have the shapes {shapes}; give a model of two linear layers for "
                f"images of {images.shape[1]} values, such as BasicFCModel(196, 32, 10, 2)"
            )
        self.images, self.labels = images, labels
        self.hidden, self.inputs = shapes[0]
        self.outputs = shapes[2][0]
        self.sizes = [parameter.numel() for parameter in parameters]
        self.start = nn.utils.parameters_to_vector(parameters).detach()

    def _layers(self, weights: Tensor) -> tuple[Tensor, ...]:
        """Return the weights and biases (..., outputs, inputs) and (..., 1, outputs) of both
        layers.
        """
        first, first_bias, second, second_bias = weights.split(self.sizes, dim=-1)
        return (
            first.unflatten(-1, (self.hidden, self.inputs)),
            first_bias[..., None, :],
            second.unflatten(-1, (self.outputs, self.hidden)),
            second_bias[..., None, :],
        )

    def gradient(self, weights: Tensor, indices: Tensor) -> Tensor:
        """Return the gradients (seeds, rates, parameters) of the mean loss of the images at
        ``indices`` (seeds, batch).

        The copies of one seed see the same images, so their first layers are one product.
        """
        seeds, rates, _ = weights.shape
        batch = indices.shape[1]
        first, first_bias, second, second_bias = self._layers(weights)
        # (seeds, batch, inputs), (seeds, batch)
        images, labels = self.images[indices], self.labels[indices]
        # (seeds, rates * hidden, inputs)
        side_by_side = first.reshape(seeds, rates * self.hidden, self.inputs)
        sums = images @ side_by_side.transpose(1, 2)  # (seeds, batch, rates * hidden)
        sums = sums.view(seeds, batch, rates, self.hidden).transpose(1, 2) + first_bias
        hidden = sums.relu()  # (seeds, rates, batch, hidden)
        slopes = (hidden @ second.transpose(-1, -2) + second_bias).softmax(-1)
        # (seeds, rates, batch, 1)
        right = labels[:, None, :, None].expand(seeds, rates, batch, 1)
        slopes.scatter_add_(-1, right, slopes.new_full(right.shape, -1.0))
        slopes /= batch  # of the logits (seeds, rates, batch, outputs)
        # of the sums of the first layer (seeds, rates, batch, hidden)
        below = (slopes @ second) * (sums > 0)
        # (seeds, batch, rates * hidden)
        together = below.transpose(1, 2).reshape(seeds, batch, rates * self.hidden)
        # (seeds, rates, hidden * inputs)
        of_first = (together.transpose(1, 2) @ images).view(seeds, rates, -1)
        # (seeds, rates, outputs * hidden)
        of_second = (slopes.transpose(-1, -2) @ hidden).flatten(-2)
        return torch.cat([of_first, below.sum(-2), of_second, slopes.sum(-2)], dim=-1)

    def losses(self, weights: Tensor) -> Tensor:
        """Return the mean loss (networks,) over the first 1,000 images of networks with ``weights``
        (networks, ...).
        """
        images, labels = self.images[:_EXAMPLES_OF_LOSS], self.labels[:_EXAMPLES_OF_LOSS]
        first, first_bias, second, second_bias = self._layers(weights)
        # (networks, images, hidden)
        sums = (
            (images @ first.reshape(-1, self.inputs).T)
            .view(len(images), -1, self.hidden)
            .transpose(0, 1)
        )
        # (networks, images, outputs)
        logits = (sums + first_bias).relu() @ second.transpose(-1, -2) + second_bias
        # (networks, images)
        right = logits.gather(-1, labels.expand(len(weights), -1)[..., None])[..., 0]
        return (logits.logsumexp(-1) - right).mean(1)


def noise_scale(model: nn.Module, data: Any) -> float:
    """Return the variance of the gradients of single examples over the squared length of their
    mean.

    The variance is summed over the parameters, and the squared length is freed from the part that
    the noise adds to it. A batch of about this size is the critical one. Source: McCandlish and
    others, "An Empirical Model of Large-Batch Training" (2018), its simple noise scale. ``data`` is
    a pair of tensors (inputs, labels) or a loader, of two examples at least.

    It is infinite where the mean of so few examples is not longer than its own noise.
    """
    model_copy = problems.copy_for_training(model)
    examples = problems.examples_of(data, problems.device_of(model_copy))
    weights = {
        name: weight.detach()
        for name, weight in model_copy.named_parameters()
        if weight.requires_grad
    }

    def loss(weights: dict[str, Tensor], image: Tensor, target: Tensor) -> Tensor:
        output = torch.func.functional_call(model_copy, weights, (image[None],))
        return problems.loss_of(output, target[None])

    # (examples, ...) each
    rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, *examples)
    count = len(examples.targets)
    squares = sum(float(row.square().sum(dtype=torch.float64)) for row in rows.values())
    of_mean = sum(float(row.mean(0).double().square().sum()) for row in rows.values())
    variance = (squares - count * of_mean) / (count - 1)
    squared_length = of_mean - variance / count
    return variance / squared_length if squared_length > 0 else math.inf


class NoisePoint(Record):
    """How noisy the gradient is at a moment of a training: the loss there, and its noise scale.

    Lesson 04.
    """

    step: int
    loss: float
    noise_scale: float


def follow_noise(model: nn.Module, data: Any) -> list[NoisePoint]:
    """Return the noise of the gradient after each five updates while a copy of ``model`` learns by
    plain SGD.

    ``data`` is a pair of tensors (inputs, labels) or a loader; the noise is that of all its
    examples, and the loss that of the first 1,000. The copy of ``model`` takes 55 steps at a rate
    of 0.4, and each draws 256 of the examples with replacement. Raises TypeError or ValueError for
    an argument that is not accepted. Lesson 04.
    """
    model_copy = problems.copy_for_training(model)
    examples = problems.examples_of(data, problems.device_of(model_copy))
    first = problems.Examples(*(part[:_EXAMPLES_OF_LOSS] for part in examples))
    generator = torch.Generator().manual_seed(3)
    points = []
    for step in range(56):
        if step % 5 == 0:
            loss, _ = problems.gradient(model_copy, first)
            points.append(NoisePoint(step, loss, noise_scale(model_copy, examples)))
        indices = torch.randint(len(examples.targets), (256,), generator=generator)
        _, slopes = problems.gradient(model_copy, problems.select_examples(examples, indices))
        problems.descend(model_copy, slopes, 0.4)
    return points
