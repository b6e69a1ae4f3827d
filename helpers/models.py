"""The networks of the course: LeNet and a fully connected network, right by default, AlexNet, and a
language model.

The first two also have the form in which the lecture used them, ``variant="lecture"``, with the
same parameters and a mistake in the activations: the reader finds the mistake, measures what it
costs, and then uses ``variant="standard"``. Every layer is a module of its own and they stand in
the order in which they run, so a table with a row a layer can name them. Weights start as PyTorch
draws them: call ``torch.manual_seed`` first for the same ones again.

A network of images names the shape of one in ``example_shape``: the profilers take it where no
input is given.

Lesson 00.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import nn

from helpers.checks import choice, whole_number

VARIANTS = ("standard", "lecture")

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class _Chain(nn.Module):
    """Layers that run one after another, in the order in which they were made."""

    _order: tuple[str, ...]

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        for name in self._order:  # not what a caller has added since
            x = getattr(self, name)(x)
        return x


class LeNet(_Chain):
    """LeNet for digits: two convolutions, three fully connected layers; images (N, 1, 28, 28) to
    logits (N, 10).

    ``hidden`` is the width of the first fully connected layer; the second is half as wide
    (``hidden // 2``). With the default, 120, there are 41,282 parameters. ``variant="lecture"`` has
    a ReLU on the logits, as the lecture had: no logit can be negative, and where all ten are zero
    no gradient is left to learn from.

    Layers, in order: conv1, relu1, pool1, conv2, relu2, pool2, flatten, fc1, relu3, fc2, relu4,
    fc3, and relu5 in the lecture's variant. After LeCun et al., "Gradient-based learning applied to
    document recognition" (1998), with ReLU and max pooling in place of its own activations and
    averages.

    Raises TypeError or ValueError for a width or a variant that is not accepted, and, when called,
    for images of another type or shape. Lesson 00.
    """

    example_shape = (1, 1, 28, 28)

    def __init__(self, hidden: int = 120, *, variant: str = "standard") -> None:
        super().__init__()
        self.hidden = whole_number("hidden", hidden, at_least=2)
        self.variant = choice("variant", variant, VARIANTS)
        self.conv1 = nn.Conv2d(1, 6, kernel_size=5)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(16 * 4 * 4, self.hidden)
        self.relu3 = nn.ReLU()
        self.fc2 = nn.Linear(self.hidden, self.hidden // 2)
        self.relu4 = nn.ReLU()
        self.fc3 = nn.Linear(self.hidden // 2, 10)
        if self.variant == "lecture":
            self.relu5 = nn.ReLU()
        self._order = tuple(self._modules)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits, (N, 10), of images (N, 1, 28, 28)."""
        _check_images(images)
        return self._run(images)


class BasicFCModel(_Chain):
    """Fully connected network of ``layers`` linear layers; images of ``inputs`` values to logits
    (N, outputs).

    Takes (N, inputs), or images such as (N, 1, 28, 28), which it flattens. Between the linear
    layers, ``hidden`` wide, stands a ReLU, and none after the last. ``variant="lecture"`` has it
    the other way round, as the lecture had: no ReLU between the layers, which makes them no
    stronger than one linear layer, and one on the logits.

    Layers, in order: flatten, fc1, relu1, fc2, relu2, fc3 (standard); flatten, fc1, fc2, fc3, relu1
    (lecture). With ``layers=1`` there is no hidden layer and ``hidden`` is not used.

    Raises TypeError or ValueError for a size or a variant that is not accepted, and, when called,
    for images of another type or shape. Lesson 00.
    """

    def __init__(
        self,
        inputs: int = 784,
        hidden: int = 128,
        outputs: int = 10,
        layers: int = 3,
        *,
        variant: str = "standard",
    ) -> None:
        super().__init__()
        self.inputs = whole_number("inputs", inputs, at_least=1)
        self.hidden = whole_number("hidden", hidden, at_least=1)
        self.outputs = whole_number("outputs", outputs, at_least=1)
        self.layers = whole_number("layers", layers, at_least=1)
        self.variant = choice("variant", variant, VARIANTS)
        self.flatten = nn.Flatten()
        widths = [self.inputs, *[self.hidden] * (self.layers - 1), self.outputs]
        for number, (width, next_width) in enumerate(itertools.pairwise(widths), start=1):
            self.add_module(f"fc{number}", nn.Linear(width, next_width))
            if self.variant == "standard" and number < self.layers:
                self.add_module(f"relu{number}", nn.ReLU())
        if self.variant == "lecture":
            self.relu1 = nn.ReLU()
        self._order = tuple(self._modules)

    @property
    def example_shape(self) -> tuple[int, int]:
        """The shape of one image: (1, inputs)."""
        return (1, self.inputs)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits, (N, outputs), of images (N, inputs) or (N, ...) with as many
        values.
        """
        _check_values(images, self.inputs)
        return self._run(images)


class AlexNet(_Chain):
    """AlexNet as it was trained in 2012, two towers in one piece: images (N, 3, size, size) to
    logits (N, classes).

    A tower has half of the maps of each layer, and half of the neurons. conv2, conv4 and conv5 read
    the maps of their own tower alone (``groups=towers``), as do the normalisations; conv3 and the
    fully connected layers read all of them. With the default sizes there are 60,965,224 parameters,
    and 62,378,344 with ``towers=1``, where every layer reads everything. ``channels`` are the maps
    of the five convolutions, ``hidden`` is the width of fc6 and fc7. In training, half of the
    values after relu6 and relu7 are dropped.

    Layers, in order: conv1, relu1, norm1, pool1, conv2, relu2, norm2, pool2, conv3, relu3, conv4,
    relu4, conv5, relu5, pool5, flatten, fc6, relu6, drop6, fc7, relu7, drop7, fc8. After
    Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural
    networks" (2012). Images of 224 by 224 are padded by 2 before conv1, without which the 55 by 55
    maps of the paper would need 227.

    Raises TypeError or ValueError for a size that is not accepted, for widths that do not divide by
    the towers, and, when called, for images of another type or shape. Lesson 14.
    """

    def __init__(
        self,
        classes: int = 1000,
        *,
        size: int = 224,
        channels: tuple[int, int, int, int, int] = (96, 256, 384, 384, 256),
        hidden: int = 4096,
        towers: int = 2,
    ) -> None:
        super().__init__()
        self.classes = whole_number("classes", classes, at_least=1)
        self.size = whole_number("size", size, at_least=_ALEXNET_SMALLEST)
        self.towers = whole_number("towers", towers, at_least=1)
        self.hidden = whole_number("hidden", hidden, at_least=1)
        if len(channels) != 5:
            raise ValueError(
                f"channels={channels!r} has {len(channels)} numbers; give the maps of five "
                "convolutions"
            )
        self.channels = tuple(whole_number("channels", maps, at_least=1) for maps in channels)
        for width in (*self.channels, self.hidden):
            if width % self.towers:
                raise ValueError(
                    f"a width of {width} does not divide by {self.towers} towers; choose widths "
                    "that do"
                )
        first, second, third, fourth, fifth = self.channels
        self.conv1 = nn.Conv2d(3, first, kernel_size=11, stride=4, padding=2)
        self.relu1 = nn.ReLU()
        self.norm1 = TowerNorm(self.towers)
        self.pool1 = nn.MaxPool2d(3, stride=2)
        self.conv2 = nn.Conv2d(first, second, kernel_size=5, padding=2, groups=self.towers)
        self.relu2 = nn.ReLU()
        self.norm2 = TowerNorm(self.towers)
        self.pool2 = nn.MaxPool2d(3, stride=2)
        self.conv3 = nn.Conv2d(second, third, kernel_size=3, padding=1)
        self.relu3 = nn.ReLU()
        self.conv4 = nn.Conv2d(third, fourth, kernel_size=3, padding=1, groups=self.towers)
        self.relu4 = nn.ReLU()
        self.conv5 = nn.Conv2d(fourth, fifth, kernel_size=3, padding=1, groups=self.towers)
        self.relu5 = nn.ReLU()
        self.pool5 = nn.MaxPool2d(3, stride=2)
        self.flatten = nn.Flatten()
        self.fc6 = nn.Linear(fifth * _alexnet_side(self.size) ** 2, self.hidden)
        self.relu6 = nn.ReLU()
        self.drop6 = nn.Dropout(0.5)
        self.fc7 = nn.Linear(self.hidden, self.hidden)
        self.relu7 = nn.ReLU()
        self.drop7 = nn.Dropout(0.5)
        self.fc8 = nn.Linear(self.hidden, self.classes)
        self._order = tuple(self._modules)

    @property
    def example_shape(self) -> tuple[int, int, int, int]:
        """The shape of one image: (1, 3, size, size)."""
        return (1, 3, self.size, self.size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits, (N, classes), of images (N, 3, size, size)."""
        _check_colour(images, self.size)
        return self._run(images)


class TowerNorm(nn.Module):
    """AlexNet's local response normalisation, of the maps of each tower by themselves; the shape
    stays.

    b = a / (2 + 1e-4 sum a^2)^0.75 over five neighbouring maps (Krizhevsky et al., 2012, section
    3.3); PyTorch's ``alpha`` is divided by the five. Lesson 14.
    """

    def __init__(self, towers: int = 1) -> None:
        super().__init__()
        self.towers = whole_number("towers", towers, at_least=1)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return ``maps``, (N, channels, height, width), normalised."""
        return _normalised(maps, self.towers)


def causal_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Return the attention of ``queries`` (N, heads, q, d) to ``keys`` and ``values`` (N, kv_heads,
    t, d).

    The result has the queries' shape. The queries are those of the *last* q of the t tokens, and
    each sees its own token and all before it: with one query nothing is masked (``is_causal=True``
    of PyTorch takes the queries for the first q). Query heads that share a head of keys stand as
    rows of one product, so no key is copied.

    >>> equal = torch.zeros(1, 1, 3, 1)
    >>> values = torch.tensor([1.0, 3.0, 5.0]).reshape(1, 1, 3, 1)
    >>> causal_attention(equal, equal, values).round(decimals=3).flatten().tolist()
    [1.0, 2.0, 3.0]

    Lesson 22.
    """
    group, q, t = queries.shape[1] // keys.shape[1], queries.shape[2], keys.shape[2]
    # (N, kv_heads, group * q, d)
    rows = queries.unflatten(1, (-1, group)).flatten(2, 3)
    mask = (
        None
        if q == 1
        else torch.ones(q, t, dtype=torch.bool, device=keys.device).tril(t - q).repeat(group, 1)
    )
    attended = nn.functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
    return attended.unflatten(2, (group, q)).flatten(1, 2)  # (N, heads, q, d)


class Decoder(nn.Module):
    """A transformer that predicts the next token: tokens (N, T) to logits (N, T, vocabulary).

    Tokens and learned positions (``context`` of them) become vectors of ``width``; then come
    ``layers`` blocks of attention and a feed-forward of ``hidden`` numbers (four times the width by
    default), each behind a layer norm and added to its input, as in GPT-2 (Radford et al., 2019)
    but without biases and dropout; then a norm and the ``head``. With fewer ``kv_heads`` than
    ``heads``, several query heads share a head of keys and values (Ainslie et al., 2023).
    ``attend`` computes attention; it is :func:`causal_attention` by default.

    A position that was never trained has a random vector: train on as many tokens as are decoded
    later.

    Raises TypeError or ValueError for sizes that are not accepted, and, when called, for tokens, a
    cache and a start that do not fit. Lesson 22.
    """

    def __init__(
        self,
        vocabulary: int = 256,
        *,
        width: int = 512,
        layers: int = 8,
        heads: int = 8,
        kv_heads: int | None = None,
        hidden: int | None = None,
        context: int = 1024,
        attend: Attend = causal_attention,
    ) -> None:
        super().__init__()
        self.context = whole_number("context", context)
        hidden = 4 * width if hidden is None else hidden
        sizes = {
            "width": width,
            "heads": heads,
            "kv_heads": heads if kv_heads is None else kv_heads,
            "hidden": hidden,
        }
        self.tokens = nn.Embedding(
            whole_number("vocabulary", vocabulary), whole_number("width", width)
        )
        self.positions = nn.Embedding(self.context, width)
        self.blocks = nn.ModuleList(
            DecoderBlock(**sizes, attend=attend) for _ in range(whole_number("layers", layers))
        )
        self.heads, self.kv_heads, self.hidden = heads, sizes["kv_heads"], hidden
        self.head_width = width // heads
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def new_cache(self, batch: int = 1, tokens: int | None = None) -> torch.Tensor:
        """Return room for keys and values of ``tokens`` tokens (``context`` by default) of each of
        ``batch`` texts.

        It is one tensor of zeros, (layers, 2, batch, kv_heads, tokens, width / heads), on the
        model's device.
        """
        tokens = self.context if tokens is None else whole_number("tokens", tokens)
        shape = (
            len(self.blocks),
            2,
            whole_number("batch", batch),
            self.kv_heads,
            tokens,
            self.head_width,
        )
        return self.head.weight.new_zeros(shape)

    def forward(
        self, tokens: torch.Tensor, cache: torch.Tensor | None = None, start: int = 0
    ) -> torch.Tensor:
        """Return the logits of ``tokens``, which stand at the places from ``start`` on.

        With a ``cache`` their keys and values are written there, and they see what it holds of the
        places before; without one they are the whole text.
        """
        _check_tokens(tokens, self.context, cache, start)
        x = self.tokens(tokens) + self.positions.weight[start : start + tokens.shape[1]]
        for index, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[index], start)
        return self.head(self.norm(x))


class DecoderBlock(nn.Module):
    """A block of :class:`Decoder`: vectors (N, T, width) in and out; its cache is (2, N, kv_heads,
    tokens, d).
    """

    def __init__(
        self, width: int, heads: int, kv_heads: int, hidden: int, *, attend: Attend
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = whole_number("heads", heads), whole_number("kv_heads", kv_heads)
        if width % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"width={width}, heads={heads}, kv_heads={kv_heads}; give heads that divide the "
                "width, and kv_heads that divide the heads"
            )
        self.head_width, self.attend = width // self.heads, attend
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, (self.heads + 2 * self.kv_heads) * self.head_width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, whole_number("hidden", hidden), bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(
        self, x: torch.Tensor, cache: torch.Tensor | None = None, start: int = 0
    ) -> torch.Tensor:
        """Return ``x`` after attention and feed-forward; keys and values go into ``cache`` from
        place ``start`` on.
        """
        # (N, heads + 2 kv_heads, T, d)
        projections = self.qkv(self.norm1(x)).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        queries, keys, values = projections.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if cache is not None:
            end = start + x.shape[1]
            cache[0, :, :, start:end], cache[1, :, :, start:end] = keys, values
            keys, values = cache[:, :, :, :end]
        # (N, heads, T, d) to (N, T, width)
        x = x + self.out(self.attend(queries, keys, values).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def _alexnet_side(size: int) -> int:
    """Return the height and width of AlexNet's last maps for images of ``size``: 6 for 224."""
    side = (size + 2 * 2 - 11) // 4 + 1
    for _ in range(3):
        side = (side - 3) // 2 + 1
    return side


_ALEXNET_SMALLEST = next(size for size in range(7, 224) if _alexnet_side(size) > 0)


# torch.fx records a call of a wrapped function as it is: a traced model checks its images too.
@torch.fx.wrap
def _check_images(images: torch.Tensor) -> None:
    _check_floats(images)
    if images.ndim != 4 or tuple(images.shape[1:]) != (1, 28, 28):
        raise ValueError(
            f"images have shape {tuple(images.shape)}; expected (N, 1, 28, 28): {_remedy(images)}"
        )


@torch.fx.wrap
def _check_values(images: torch.Tensor, inputs: int) -> None:
    _check_floats(images)
    if images.ndim < 2 or math.prod(images.shape[1:]) != inputs:
        no_batch = images.ndim < 2
        remedy = (
            "add the batch dimension with images.unsqueeze(0)" if no_batch else "set inputs= to fit"
        )
        raise ValueError(
            f"images have shape {tuple(images.shape)}; expected (N, {inputs}) or (N, ...) with "
            f"{inputs} values an image: {remedy}"
        )


@torch.fx.wrap
def _normalised(maps: torch.Tensor, towers: int) -> torch.Tensor:
    parts = [
        nn.functional.local_response_norm(part, 5, alpha=5e-4, beta=0.75, k=2.0)
        for part in maps.chunk(towers, dim=1)
    ]
    return torch.cat(parts, dim=1) if towers > 1 else parts[0]


@torch.fx.wrap
def _check_colour(images: torch.Tensor, size: int) -> None:
    _check_floats(images)
    if images.ndim != 4 or tuple(images.shape[1:]) != (3, size, size):
        remedy = (
            "add the batch dimension with images.unsqueeze(0)"
            if images.ndim == 3
            else "set size= to fit"
        )
        raise ValueError(
            f"images have shape {tuple(images.shape)}; expected (N, 3, {size}, {size}): {remedy}"
        )


@torch.fx.wrap
def _check_tokens(
    tokens: torch.Tensor, context: int, cache: torch.Tensor | None, start: int
) -> None:
    if not isinstance(tokens, torch.Tensor) or tokens.is_floating_point() or tokens.ndim != 2:
        description = (
            f"{tokens.dtype}, {tuple(tokens.shape)}"
            if isinstance(tokens, torch.Tensor)
            else type(tokens).__name__
        )
        raise ValueError(
            f"tokens are {description}; give whole numbers (N, T), such as "
            "torch.tensor([[5, 7, 2]])"
        )
    end = start + tokens.shape[1]
    if cache is None and start:
        raise ValueError(
            f"start={start} without a cache: nothing is known of the tokens before; give cache= as "
            "well"
        )
    room = context if cache is None else min(context, cache.shape[4])
    if start < 0 or end > room:
        whose, larger = (
            ("model", "context=") if room == context else ("cache", "new_cache(tokens=)")
        )
        raise ValueError(
            f"tokens at the places {start} to {end}; the {whose} has {room}. Choose a larger "
            f"{larger}"
        )
    if cache is not None and cache.shape[2] != len(tokens):
        raise ValueError(
            f"{len(tokens)} texts, and a cache of {cache.shape[2]}; make "
            f"new_cache(batch={len(tokens)})"
        )


def _check_floats(images: torch.Tensor) -> None:
    if not isinstance(images, torch.Tensor):
        raise TypeError(
            f"images are a {type(images).__name__}; give a tensor, such as torch.as_tensor(images)"
        )
    if not images.is_floating_point():
        raise TypeError(
            f"images are {images.dtype}; give floating point values, such as images.float() / 255"
        )


def _remedy(images: torch.Tensor) -> str:
    shape = tuple(images.shape)
    if shape == (1, 28, 28):
        return "add the batch dimension with images.unsqueeze(0)"
    if shape[-2:] == (28, 28) and images.ndim <= 3:
        return "add the missing dimensions with images.reshape(-1, 1, 28, 28)"
    if shape[1:] == (784,):
        return "restore rows and columns with images.reshape(-1, 1, 28, 28)"
    if shape[1:] == (28, 28, 1):
        return "put the channel first with images.permute(0, 3, 1, 2)"
    return "give greyscale images of 28 by 28 pixels, as make_MNIST_loader does"
