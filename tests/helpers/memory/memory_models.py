"""The models of the memory tests, the bytes of LeNet, and the configurations that the benchmark and
the tests share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.models import LeNet

Adam = torch.optim.Adam

# in, weights and biases, out of one image: worked out by hand
LENET_BYTES = {
    "conv1": (3136, 624, 13824),
    "relu1": (13824, 0, 13824),
    "pool1": (13824, 0, 3456),
    "conv2": (3456, 9664, 4096),
    "pool2": (4096, 0, 1024),
    "fc1": (1024, 123360, 480),
    "fc2": (480, 29040, 240),
    "fc3": (240, 2440, 40),
}
# the first that saves a tensor counts it; a pool keeps its places as 8-byte integers
LENET_SAVED = {
    "conv1": 0,
    "relu1": 13824,
    "pool1": 2 * 3456,
    "conv2": 3456,
    "relu2": 4096,
    "pool2": 2 * 1024,
    "flatten": 0,
    "fc1": 1024,
    "relu3": 480,
    "fc2": 0,
    "relu4": 240,
    "fc3": 0,
}


class SelfAttention(nn.Module):
    """One multi-head attention over its own input; with weights it returns them as well."""

    def __init__(self, width: int, heads: int, *, weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.weights = weights

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.weights)


class Residual(nn.Module):
    """Blocks that add to what they are given, each recomputed in backward where
    ``checkpointed``.
    """

    def __init__(self, *, checkpointed: bool = False, blocks: int = 4, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
            )
            for _ in range(blocks)
        )
        self.checkpointed = checkpointed

    def forward(self, x):
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x))
        return x


class TinyLanguageModel(nn.Module):
    """An embedding, two encoder layers and an output layer tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.position = nn.Parameter(torch.zeros(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens) + self.position))


class Picks(nn.Module):
    """Operators whose backward writes into zeros: indexing, gathering, a maximum, a masked fill."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.register_buffer("which", torch.tensor([0, 2, 1, 1]))

    def forward(self, x):
        h = self.linear(x)
        gathered = h.gather(1, torch.zeros(4, 3, 32, dtype=torch.long))
        return (
            h[:, self.which] * 2
            + gathered.sum()
            + h.max(1).values.sum()
            + h.masked_fill(h > 0, 1.0).sum()
        )


class Branches(nn.Module):
    """Ends on the values of its activations: its memory depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        h = self.linear(x)
        return h if h.sum() > 0 else h * 2


class Raises(nn.Module):
    """Raises in its forward pass, after having run a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        self.linear(x)
        raise KeyError("no such expert")


@dataclass(frozen=True)
class Configuration:
    """A model and an input shape of the project's table of peaks; a lighter stand-in for tests
    where it is heavy.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    light: tuple[Callable[[], nn.Module], tuple[int, ...]] | None = None


def _vision(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision.models import get_model

        return get_model(name)

    return make


def _two_vision_layers() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(64, 16, num_layers=2, num_heads=12, hidden_dim=192, mlp_dim=768)


def _narrow_alexnet() -> nn.Module:
    """Return AlexNet with its two large layers narrow: the weights of the others are 16 times
    fewer.
    """
    network = _vision("alexnet")()
    network.classifier = nn.Sequential(
        nn.Dropout(), nn.Linear(9216, 64), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(64, 10)
    )
    return network


CONFIGURATIONS = (
    Configuration("LeNet b64", LeNet, (64, 1, 28, 28)),
    Configuration("LeNet b512", LeNet, (512, 1, 28, 28)),
    Configuration(
        "AlexNet b16", _vision("alexnet"), (16, 3, 224, 224), (_narrow_alexnet, (4, 3, 224, 224))
    ),
    Configuration(
        "AlexNet b128", _vision("alexnet"), (128, 3, 224, 224), (_narrow_alexnet, (16, 3, 64, 64))
    ),
    Configuration(
        "ResNet-50 b8", _vision("resnet50"), (8, 3, 224, 224), (_vision("resnet18"), (2, 3, 96, 96))
    ),
    Configuration(
        "ViT-B/16 b4", _vision("vit_b_16"), (4, 3, 224, 224), (_two_vision_layers, (4, 3, 64, 64))
    ),
    Configuration(
        "LSTM b32", lambda: nn.LSTM(64, 128, 2, bidirectional=True, batch_first=True), (32, 50, 64)
    ),
    Configuration("MHA b8", lambda: SelfAttention(512, 8, weights=False), (8, 196, 512)),
    Configuration(
        "MHA with weights b8", lambda: SelfAttention(512, 8, weights=True), (8, 196, 512)
    ),
)
