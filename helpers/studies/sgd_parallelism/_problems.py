"""What the experiments of lesson 04 train: examples, batches in a fixed order, a loss, a gradient,
a known optimum.

Lesson 04.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from helpers.checks import number, random_seed, whole_number
from helpers.training._loop import check_iterable, seed_generators

_MOST_NUMBERS = 2**27  # of a problem's inputs, in float64 a gigabyte
BLOWN_UP = 3  # times the first loss
_DATA_ACCEPTED = (
    "give a pair of tensors (inputs, targets) of equal length, or a loader of such batches"
)


class Examples(NamedTuple):
    """All examples of a problem: inputs (N, ...) and targets, whole numbers (N,) or values (N,
    outputs).

    Lesson 04.
    """

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class LeastSquares:
    """A least-squares problem whose answer is known: ``loss(w) = |inputs w - targets|^2 / (2 N)``.

    ``examples`` are float64, inputs (N, features) and targets (N, 1); ``optimum`` (features,) is
    where the loss is ``optimum_loss``, its least. ``curvatures`` are the eigenvalues of the Hessian
    ``inputs^T inputs / N``, the largest first. Lesson 04.
    """

    examples: Examples
    optimum: Tensor
    optimum_loss: float
    curvatures: tuple[float, ...]

    def model(self) -> nn.Module:
        """Return the linear model (float64, no bias) with all weights 0, to be trained on
        ``examples``.
        """
        with torch.random.fork_rng(devices=[]):
            linear = nn.Linear(len(self.curvatures), 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(linear.weight)
        return linear


def least_squares(
    examples: int = 256,
    features: int = 16,
    *,
    condition: float = 10.0,
    noise: float = 0.0,
    seed: int = 0,
) -> LeastSquares:
    """Return a least-squares problem whose largest curvature is 1 and whose smallest is
    ``1 / condition``.

    The inputs, N ``examples`` of ``features`` each, are ``sqrt(N) U diag(s) V^T`` with orthonormal
    U and V drawn by ``seed`` and s^2 evenly spaced, so the curvatures s^2 are known by
    construction. The targets are ``inputs @ w`` for a drawn w, plus ``noise`` times standard normal
    values, whose part outside the span of U is what no weights can explain: the optimum's loss.

    Raises TypeError or ValueError for an argument that is not accepted. Lesson 04.
    """
    features = whole_number("features", features, at_most=math.isqrt(_MOST_NUMBERS))
    examples = whole_number(
        "examples", examples, at_least=features, at_most=_MOST_NUMBERS // features
    )
    condition = number("condition", condition, at_least=1)
    noise = number("noise", noise, at_least=0)
    if features == 1 and condition != 1:
        raise ValueError(
            f"condition={condition:g}: give 1 for one feature (it is largest over smallest)"
        )
    generator = torch.Generator().manual_seed(random_seed(seed))
    draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
    left, _ = torch.linalg.qr(draw(examples, features))
    right, _ = torch.linalg.qr(draw(features, features))
    curvatures = torch.linspace(1.0, 1 / condition, features, dtype=torch.float64)
    inputs = math.sqrt(examples) * left @ torch.diag(curvatures.sqrt()) @ right.T
    weights = draw(features)
    disturbance = noise * draw(examples)
    inside = left.T @ disturbance
    # The optimum explains the disturbance's part within the span of the inputs.
    optimum = weights + right @ (inside / (math.sqrt(examples) * curvatures.sqrt()))
    residual = disturbance - left @ inside
    return LeastSquares(
        examples=Examples(inputs, (inputs @ weights + disturbance)[:, None]),
        optimum=optimum,
        optimum_loss=float(residual @ residual) / (2 * examples),
        curvatures=tuple(curvatures.tolist()),
    )


def examples_of(data: Any, device: torch.device) -> Examples:
    """Return all examples of ``data``, a pair of tensors or a loader, on ``device``.

    A loader is read once, in the order of its seed 0, and its generator is as it was afterwards.
    Raises TypeError or ValueError for data that is not accepted.
    """
    if _is_pair(data):
        examples = Examples(*data)
    else:
        with seed_generators(data, torch.device("cpu"), 0):
            batches = list(check_iterable(data))
        if not batches or not all(_is_pair(batch) for batch in batches):
            raise TypeError(f"data holds no batches (inputs, targets); {_DATA_ACCEPTED}")
        examples = Examples(*(torch.cat(part) for part in zip(*batches, strict=True)))
    shapes = [tuple(part.shape) for part in examples]
    if () in shapes or shapes[0][0] != shapes[1][0]:
        raise ValueError(
            f"inputs and targets have shapes {shapes[0]} and {shapes[1]}; {_DATA_ACCEPTED}"
        )
    if not shapes[0][0]:
        raise ValueError(f"data holds no example; {_DATA_ACCEPTED}")
    return Examples(*(part.to(device) for part in examples))


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(item, Tensor) for item in value)
    )


def batches_of(examples: Examples, batch_size: int | None, *, seed: int = 0) -> Iterator[Examples]:
    """Yield one batch after another without end, each epoch in a new order that ``seed`` decides.

    The rest of an epoch that fills no batch is left out. None for ``batch_size`` yields every
    example, always.

    Raises ValueError for a batch larger than the data.
    """
    if batch_size is None:
        yield from itertools.repeat(examples)
    count, batch_size = len(examples.inputs), whole_number("batch_size", batch_size)
    if batch_size > count:
        raise ValueError(
            f"batch_size={batch_size} is above the {count} examples; give at most {count}, or None"
        )
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(count, generator=generator)
        for indices in order[: count - count % batch_size].split(batch_size):
            yield select_examples(examples, indices)


def select_examples(examples: Examples, indices: Tensor) -> Examples:
    """Return the examples at ``indices``."""
    indices = indices.to(examples.inputs.device)
    return Examples(examples.inputs[indices], examples.targets[indices])


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of a batch: cross-entropy for whole-number targets, else half the
    squared error.

    Half the squared error is summed over the outputs of an example, ``|outputs - targets|^2 / 2``.

    Raises ValueError where outputs and targets do not fit.
    """
    if not targets.is_floating_point():
        return nn.functional.cross_entropy(outputs, targets)
    if outputs.shape != targets.shape:
        raise ValueError(
            f"the model gives outputs of shape {tuple(outputs.shape)} for targets of "
            f"{tuple(targets.shape)}; give targets of the outputs' shape, or whole-number labels"
        )
    return (outputs - targets).square().flatten(1).sum(1).mean() / 2


def copy_for_training(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` in training mode for an experiment: the model itself stays as it
    is.

    Raises TypeError for what is no module, ValueError for one without a trainable parameter.
    """
    if not isinstance(model, nn.Module):
        is_class = isinstance(model, type)
        found = f"the class {model.__name__}" if is_class else f"a {type(model).__name__}"
        raise TypeError(f"model is {found}; give a model, such as BasicFCModel()")
    model_copy = copy.deepcopy(model).train()
    if not trainable_parameters(model_copy):
        raise ValueError(
            f"{type(model).__name__} has no trainable parameter; set requires_grad_(True) on some"
        )
    return model_copy


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are not frozen, each once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first trainable parameter."""
    return trainable_parameters(model)[0].device


def gradient(model: nn.Module, batch: Examples) -> tuple[float, tuple[Tensor, ...]]:
    """Return the loss on ``batch`` and its gradient, one tensor a trainable parameter."""
    with torch.enable_grad():
        loss = loss_of(model(batch.inputs), batch.targets)
        gradients = torch.autograd.grad(loss, trainable_parameters(model))
    return loss.item(), gradients


def descend(model: nn.Module, gradients: Sequence[Tensor], rate: float) -> None:
    """Apply one update of plain SGD in place: ``w -= rate * gradient``."""
    with torch.no_grad():
        for parameter, slope in zip(trainable_parameters(model), gradients, strict=True):
            parameter.add_(slope, alpha=-rate)


def weights_digest(model: nn.Module) -> str:
    """Return a hash of the bytes of all trainable parameters: two models with one digest are equal
    bit for bit.
    """
    digest = hashlib.sha256()
    for parameter in trainable_parameters(model):
        as_bytes = parameter.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(as_bytes.numpy().tobytes())
    return digest.hexdigest()[:16]


class Training:
    """A training of lesson 04: a copy of the model, all examples, a stream of batches, and the
    losses so far.

    Raises TypeError or ValueError for an argument that is not accepted.
    """

    def __init__(
        self, model: nn.Module, data: Any, *, rate: float, batch_size: int | None = 64
    ) -> None:
        self.rate = number("rate", rate, above=0)
        self.model = copy_for_training(model)
        self.examples = examples_of(data, device_of(self.model))
        self.batches = batches_of(self.examples, batch_size)
        self.first_loss = self.whole_loss()
        self.losses: list[float] = []

    def whole_loss(self) -> float:
        """Return the model's loss over all examples."""
        with torch.no_grad():
            return loss_of(self.model(self.examples.inputs), self.examples.targets).item()

    def note(self, loss: float) -> bool:
        """Note a batch's loss; return whether it is finite, so that the training goes on."""
        self.losses.append(loss)
        return math.isfinite(loss)

    def summary(self) -> dict[str, Any]:
        """Return the fields that the result of every training has."""
        final_loss = self.whole_loss()
        return {"rate": self.rate, "first_loss": self.first_loss, "final_loss": final_loss,
                "diverged": has_diverged(self.losses, self.first_loss, final_loss),
                "weights": weights_digest(self.model), "losses": tuple(self.losses)}  # fmt: skip


def has_diverged(losses: Sequence[float], first_loss: float, final_loss: float) -> bool:
    """Return True when a training blew up: a loss not finite or above 3 times the first, or the
    final above the first.

    A network that blew up may come back to the loss of guessing and stay there, so the end alone
    does not tell.
    """
    if not all(math.isfinite(loss) for loss in (*losses, final_loss)):
        return True
    return max(losses) > BLOWN_UP * first_loss or final_loss > first_loss
