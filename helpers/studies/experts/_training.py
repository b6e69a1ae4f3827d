"""A small network with a layer of experts, trained several times at once on handwritten digits.

Lesson 09.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from helpers.checks import numbers, whole_number
from helpers.data import make_MNIST_loader
from helpers.results import Record

_WIDTH, _HIDDEN, _CLASSES = 32, 32, 10
_ROUTER_STD = 0.02  # as language models initialise their matrices
_BATCH, _LEARNING_RATE = 256, 6e-3
_SIDE = 14  # pixels of an image, after a mean over 2 x 2 of them

BalanceLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class RouterRun(Record):
    """A trained network: ``shares`` are those of the test digits that chose each expert, and add up
    to 1.

    ``weight`` is that of the balance loss in training, ``accuracy`` the share of the test digits
    that are recognised. Lesson 09.
    """

    weight: float
    seed: int
    shares: tuple[float, ...]
    accuracy: float

    @property
    def fullest(self) -> float:
        """Tokens of the fullest expert, relative to a fair share. Lesson 09."""
        return max(self.shares) * len(self.shares)

    def dropped(self, spare: float) -> float:
        """Return the share of tokens dropped if each expert has places for ``1 + spare`` fair
        shares.

        Lesson 09.
        """
        capacity = (1 + spare) / len(self.shares)
        return sum(max(0.0, share - capacity) for share in self.shares)


def train_routers(
    weights: Sequence[float],
    balance_loss: BalanceLoss | None = None,
    *,
    experts: int = 8,
    seeds: int = 5,
    steps: int = 300,
) -> tuple[RouterRun, ...]:
    """Return a trained network for each of ``weights`` and ``seeds``, the seeds of a weight
    together.

    Each network has a linear layer, one layer of ``experts`` with a learned router (top-1), and a
    linear output. It learns the 4,000 packaged training digits, of 14 x 14 pixels, with Adam in
    ``steps`` steps of 256. Its loss is the cross entropy plus a weight times
    ``balance_loss(probabilities, chosen)``, of the router's probabilities of a batch, (256,
    experts), and the index of the expert that each digit chose, (256,). Networks with the same seed
    begin with the same parameters and see the same batches. No digit is dropped. Raises ValueError
    for a weight below 0, and for one above 0 without a ``balance_loss``. Lesson 09.
    """
    balance_weights = numbers("weights", weights, at_least=0)
    if balance_loss is None and any(balance_weights):
        raise ValueError(
            f"weights={balance_weights} are those of a balance loss, and there is none; give "
            "balance_loss as well"
        )
    experts = whole_number("experts", experts, at_least=2)
    seeds, steps = whole_number("seeds", seeds), whole_number("steps", steps)
    networks = [(weight, seed) for weight in balance_weights for seed in range(seeds)]
    digits = {split: _digits(split) for split in ("train", "test")}
    parameters = _initialise([seed for _, seed in networks], experts)
    adam = torch.optim.Adam(parameters.values(), lr=_LEARNING_RATE, fused=True)
    order = torch.Generator().manual_seed(0)
    images, labels = digits["train"]
    for _ in range(steps):
        batch = torch.randint(len(images), (_BATCH,), generator=order)
        logits, probabilities, chosen = _forward(parameters, images[batch])
        loss = cross_entropy(logits.flatten(0, 1), labels[batch].repeat(len(networks))) * len(
            networks
        )
        for index, (weight, _) in enumerate(networks):
            if weight and balance_loss:
                loss = loss + weight * balance_loss(probabilities[index], chosen[index])
        adam.zero_grad()
        loss.backward()
        adam.step()
    images, labels = digits["test"]
    with torch.no_grad():
        logits, _, chosen = _forward(parameters, images)
    return tuple(
        RouterRun(
            weight,
            seed,
            tuple((torch.bincount(chosen[index], minlength=experts) / len(images)).tolist()),
            float((logits[index].argmax(-1) == labels).float().mean()),
        )
        for index, (weight, seed) in enumerate(networks)
    )


def _digits(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all packaged digits of a split, flat (N, 196), and their labels (N,)."""
    images, labels = zip(*make_MNIST_loader(1000, split=split), strict=True)
    return adaptive_avg_pool2d(torch.cat(images), _SIDE).flatten(1), torch.cat(labels)


def _initialise(seeds: Sequence[int], experts: int) -> dict[str, torch.Tensor]:
    """Return the parameters of a network for each seed, stacked along the first dimension."""
    pixels = _SIDE**2
    shapes = {
        "inputs": ((pixels, _WIDTH), pixels**-0.5),
        "router": ((_WIDTH, experts), _ROUTER_STD),
        "up": ((experts, _WIDTH, _HIDDEN), _WIDTH**-0.5),
        "down": ((experts, _HIDDEN, _WIDTH), _HIDDEN**-0.5),
        "output": ((_WIDTH, _CLASSES), _WIDTH**-0.5),
    }
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return {
        name: torch.stack(
            [std * torch.randn(shape, generator=generator) for generator in generators]
        ).requires_grad_()
        for name, (shape, std) in shapes.items()
    }


def _forward(
    parameters: dict[str, torch.Tensor], images: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits (networks, N, 10), probabilities (networks, N, experts) and chosen (networks,
    N).
    """
    hidden = torch.relu(images @ parameters["inputs"])  # (networks, N, width)
    probabilities = (hidden @ parameters["router"]).softmax(-1)  # (networks, N, experts)
    gate, chosen = probabilities.max(-1)  # (networks, N) each
    # (networks, experts, N, width)
    every = torch.relu(hidden[:, None] @ parameters["up"]) @ parameters["down"]
    # (networks, 1, N, width)
    index = chosen[:, None, :, None].expand(-1, 1, -1, every.shape[-1])
    of_chosen = every.gather(1, index)[:, 0]  # (networks, N, width)
    return (hidden + gate[..., None] * of_chosen) @ parameters["output"], probabilities, chosen
