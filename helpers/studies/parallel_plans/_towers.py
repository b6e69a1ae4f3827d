"""AlexNet's two towers on two ranks: what each keeps, what they exchange, and that together they are the whole net.

A rank has one tower: its rows of every weight. Where a layer reads all towers (``AlexNet.CROSSING``), and for the
logits, the ranks gather what each has; everywhere else they do not hear of each other (Krizhevsky et al., 2012,
section 3.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch import nn

from helpers.checks import whole_number
from helpers.models import AlexNet, TowerNorm
from helpers.parallel._collectives import chunk
from helpers.results import Record
from helpers.studies.parallel_plans._footprint import OptimizerFactory, number_type, state_bytes, without_values

# "A single GTX 580 GPU has only 3GB of memory" (section 3.2); the optimizer and batches of 128 are those of section 5.
CARD_BYTES = 3 * 2**30
LOGITS = "logits"

Gather = Callable[[torch.Tensor, str], torch.Tensor]


def sgd_with_momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer with which AlexNet was trained: one state of the parameters' size. Lesson 06."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


class TowerLayer(Record):
    """A layer whole and as one of the towers on a rank.

    ``reads`` is "own tower" or "all towers"; ``saved`` is what autograd keeps for the backward pass where this layer is
    the first to save it; ``moved_bytes`` is what all ranks together receive in a forward pass before the
    layer, and at fc8 also after it, the logits. Lesson 06.
    """

    layer: str
    reads: str
    whole_parameter_bytes: int
    rank_parameter_bytes: int
    whole_saved_bytes: int
    rank_saved_bytes: int
    moved_bytes: int


class TowerModel(Record):
    """AlexNet whole against split by towers, counted from shapes for one batch.

    ``whole_bytes`` and ``rank_bytes`` are parameters, gradients, the optimizer's state and what autograd saves: a step
    needs more at its peak, and its convolutions a workspace. ``..._largest_batch`` is how many images ``card_bytes``
    hold so (0 where the parameters alone are too large). ``moved_bytes`` is the forward pass's, ``returned_bytes`` the
    backward pass's, of the whole batch and all ranks together. Lesson 06.
    """

    towers: int
    batch: int
    parameters: int
    rank_parameters: int
    whole_bytes: int
    rank_bytes: int
    card_bytes: int
    whole_largest_batch: int
    rank_largest_batch: int
    moved_bytes: int
    returned_bytes: int
    layers: tuple[TowerLayer, ...]


class AlexNetTower(nn.Module):
    """The tower of ``model`` that rank ``rank`` has: its rows of every weight, copied, with the layers' names.

    ``gather(values, place)`` returns the values of all towers side by side, (N, ...) to (N, towers x ...) in dimension
    1; ``place`` is the layer that reads them, or ``LOGITS``.

    Raises ValueError for a rank that is not there, a net of one tower, and classes that do not divide.
    """

    def __init__(self, model: AlexNet, rank: int, *, gather: Gather) -> None:
        super().__init__()
        _check(model)
        if not 0 <= rank < model.towers:
            raise ValueError(f"rank {rank} has no tower: this net has {model.towers}, counted from 0")
        self.crossing, self.gather = model.CROSSING, gather
        for name, layer in model.named_children():
            self.add_module(name, _own_rows(layer, rank, model.towers))
        self._order = tuple(self._modules)
        self.train(model.training)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of all classes, (N, classes), of images (N, 3, size, size), on every rank."""
        x = images
        for name in self._order:
            if name in self.crossing:
                x = self.gather(x, name)
            x = getattr(self, name)(x)
        return self.gather(x, LOGITS)


def model_towers(
    model: AlexNet,
    *,
    batch: int = 128,
    optimizer: OptimizerFactory | None = sgd_with_momentum,
    card_bytes: int = CARD_BYTES,
) -> TowerModel:
    """Return what each layer of ``model`` keeps whole, and as one tower on a rank, and what the towers move.

    Nothing is run: both go through autograd on meta tensors for a batch of ``batch`` images of the parameters' type.
    ``model`` may be on the meta device itself; what its mode (training or not) saves is counted. ``optimizer`` (a
    callable from parameters to one) says what state a parameter has; ``card_bytes`` (by default the 3 GiB of the
    paper's card) limits the largest batch.

    Raises ValueError for a net of one tower, for classes that do not divide, and where nothing learns. Lesson 06.
    """
    _check(model)
    whole_number("batch", batch)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("no parameter of this net requires a gradient: a step saves nothing, and any batch would fit")
    moved: dict[str, int] = {}

    def gather(values: torch.Tensor, place: str) -> torch.Tensor:
        gathered = torch.cat([values] * model.towers, dim=1)
        moved[place] = (model.towers - 1) * gathered.nbytes
        return gathered

    model = without_values(model)
    tower = AlexNetTower(model, 0, gather=gather)
    saved = {name: _saved_by_layer(net, model, batch) for name, net in (("whole", model), ("rank", tower))}
    owned = {name: _owned_by_layer(net) for name, net in (("whole", model), ("rank", tower))}
    kept = {name: _kept_bytes(net, optimizer) for name, net in (("whole", model), ("rank", tower))}
    last = tuple(model._modules)[-1]
    layers = tuple(
        TowerLayer(name, "all towers" if name in model.CROSSING else "own tower", owned["whole"][name],
                   owned["rank"][name], saved["whole"][name], saved["rank"][name],
                   moved.get(name, 0) + (moved[LOGITS] if name == last else 0))
        for name in model._modules
    )  # fmt: skip
    activations = {name: sum(by_layer.values()) for name, by_layer in saved.items()}
    return TowerModel(
        towers=model.towers,
        batch=batch,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        rank_parameters=sum(parameter.numel() for parameter in tower.parameters()),
        whole_bytes=kept["whole"] + activations["whole"],
        rank_bytes=kept["rank"] + activations["rank"],
        card_bytes=card_bytes,
        whole_largest_batch=max(0, (card_bytes - kept["whole"]) * batch // activations["whole"]),
        rank_largest_batch=max(0, (card_bytes - kept["rank"]) * batch // activations["rank"]),
        moved_bytes=sum(moved.values()),
        returned_bytes=sum(moved.values()) - moved[LOGITS],
        layers=layers,
    )


def _check(model: AlexNet) -> None:
    if not isinstance(model, AlexNet):
        raise TypeError(f"towers are those of helpers.models.AlexNet; got a {type(model).__name__}")
    if model.towers < 2:
        raise ValueError("this AlexNet is one tower, and there is nothing to split; make it with towers=2")
    if model.classes % model.towers:
        raise ValueError(f"{model.classes} classes do not divide among {model.towers} towers; add classes that do not "
                         "occur until they do")  # fmt: skip


def _own_rows(layer: nn.Module, rank: int, towers: int) -> nn.Module:
    """Return a tower's part of ``layer``: the rows of a grouped convolution read the tower's own maps alone."""
    if isinstance(layer, TowerNorm):
        return TowerNorm()
    if not isinstance(layer, nn.Conv2d | nn.Linear):
        return layer
    rows = slice(*chunk(rank, towers, length=len(layer.weight)))
    outputs, inputs = len(layer.weight) // towers, layer.weight.shape[1]
    own: nn.Module
    if isinstance(layer, nn.Conv2d):
        padding = layer.padding if isinstance(layer.padding, str) else _pair(layer.padding)
        own = nn.Conv2d(inputs, outputs, _pair(layer.kernel_size), _pair(layer.stride), padding, device="meta")
    else:
        own = nn.Linear(inputs, outputs, device="meta")
    for name, parameter in layer.named_parameters():
        setattr(own, name, nn.Parameter(parameter.detach()[rows].clone(), requires_grad=parameter.requires_grad))
    return own


def _pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    height, width = sizes
    return height, width


# What a rank keeps, on meta tensors.


def _owned_by_layer(model: nn.Module) -> Counter[str]:
    return Counter({name: sum(parameter.nbytes for parameter in layer.parameters())
                    for name, layer in model.named_children()})  # fmt: skip


def _kept_bytes(model: nn.Module, optimizer: OptimizerFactory | None) -> int:
    """Return the bytes of parameters, gradients and the optimizer's state."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    state = state_bytes(tuple((tuple(parameter.shape), parameter.dtype) for parameter in learning), optimizer)
    return sum(parameter.nbytes for parameter in (*model.parameters(), *learning)) + state


def _saved_by_layer(model: nn.Module, whole: AlexNet, batch: int) -> Counter[str]:
    """Return the bytes that autograd saves in each layer of ``model``, besides parameters, and no storage twice."""
    running = [""]
    saved: Counter[str] = Counter()
    seen = {parameter.untyped_storage()._cdata: parameter.untyped_storage() for parameter in model.parameters()}
    hooks = [layer.register_forward_pre_hook(lambda *_, name=name: running.append(name))
             for name, layer in model.named_children()]  # fmt: skip

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen[storage._cdata] = storage  # kept, so that no other storage comes to lie at this address
            saved[running[-1]] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.empty((batch, 3, whole.size, whole.size), dtype=number_type(whole), device="meta"))
    for hook in hooks:
        hook.remove()
    return saved
