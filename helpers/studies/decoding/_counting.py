"""Bytes and FLOPs of a step of decoding, counted from a model's shapes. Lesson 22."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from helpers.checks import choice, one_of, whole_number
from helpers.models import Decoder
from helpers.results import Record
from helpers.units import flops_from_macs

_GROUP = 32  # weights of 4 bits that share a scale and a zero
_BITS = (32, 16, 8, 4)
_A_CONFIG = "the shapes of a model, as a Config, such as config_of(model)"


class Config(Record):
    """The shapes of a decoder-only transformer, without biases and with norms of one weight a
    number.

    A ``gated`` feed-forward has three matrices of ``width`` x ``hidden``, a plain one two. The
    input table and the head are matrices of their own. Lesson 22.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    gated: bool = True

    @property
    def head_width(self) -> int:
        """Numbers in a key or a value of one head."""
        return self.width // self.heads

    @property
    def products(self) -> tuple[tuple[int, int, bool], ...]:
        """The matrices of a block: outputs, inputs, and whether tensor parallelism divides the
        outputs.
        """
        keys = self.kv_heads * self.head_width
        return (
            (self.width + 2 * keys, self.width, True),
            (self.width, self.width, False),
            ((1 + self.gated) * self.hidden, self.width, True),
            (self.width, self.hidden, False),
        )

    @property
    def block_weights(self) -> int:
        """Weights in the matrices of one block."""
        return sum(outputs * inputs for outputs, inputs, _ in self.products)

    @property
    def table_weights(self) -> int:
        """Weights of the input table, and of the head."""
        return self.vocabulary * self.width

    @property
    def norm_weights(self) -> int:
        """Weights of all norms: two a block, and the last."""
        return (2 * self.layers + 1) * self.width

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.layers * self.block_weights + 2 * self.table_weights + self.norm_weights

    def cache_bytes(self, tokens: int = 1, *, number_bytes: int = 2) -> int:
        """Return the bytes of keys and values of ``tokens`` tokens, in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_width * number_bytes * tokens


class StepCount(Record):
    """Bytes and FLOPs of one step for a batch of texts, each with as many tokens in its cache.

    Lesson 22.
    """

    batch: int
    tokens: int
    weight_bytes: int
    cache_bytes: int
    flops: int

    @property
    def read_bytes(self) -> int:
        """Weights, read once for all texts, and every text's cache."""
        return self.weight_bytes + self.cache_bytes

    @property
    def intensity_flops_per_byte(self) -> float:
        """FLOPs for each byte that is read."""
        return self.flops / self.read_bytes


def config_of(model: Decoder) -> Config:
    """Return the shapes of a :class:`helpers.models.Decoder`; its table of positions is not among
    them.
    """
    if not isinstance(model, Decoder):
        raise TypeError(f"model is a {type(model).__name__}; give a helpers.models.Decoder")
    vocabulary, width = model.head.weight.shape
    return Config(
        "Decoder",
        len(model.blocks),
        width,
        model.heads,
        model.kv_heads,
        model.hidden,
        vocabulary,
        False,
    )


def stored_bytes(config: Config, *, bits: int = 16, gpus: int = 1) -> int:
    """Return the bytes of all weights of ``config`` on one of ``gpus`` that divide the blocks'
    matrices.

    Dividing them is tensor parallelism. ``bits`` are those of a weight in a matrix: 32, 16, 8 with
    a scale of 2 bytes for each output, or 4 with a scale and a zero of 2 bytes each for every 32.
    Input table and norms have 16 bits (32 with 32), and like the head they are on every GPU. So
    does gpt-fast, quantize.py and tp.py. Lesson 22.
    """
    return read_bytes(config, bits=bits, gpus=gpus) + max(2, bits // 8) * config.table_weights


def read_bytes(config: Config, *, bits: int = 16, gpus: int = 1) -> int:
    """Return the bytes of the weights of ``config`` that a step reads on one of ``gpus``: all but
    the input table.

    Of that table a step reads one row for each text, which is left out. ``bits`` and ``gpus`` as in
    :func:`stored_bytes`. Lesson 22.
    """
    one_of("config", config, Config, _A_CONFIG)
    bits, gpus = choice("bits", bits, _BITS), whole_number("gpus", gpus)
    matrices = [(config.vocabulary, config.width, 1)]
    for outputs, inputs, by_outputs in config.products:
        part = (outputs // gpus, inputs) if by_outputs else (outputs, inputs // gpus)
        if part[0] * part[1] * gpus != outputs * inputs:
            raise ValueError(f"{gpus} GPUs do not divide a matrix of {outputs:,} x {inputs:,}")
        matrices.append((*part, config.layers))
    stored = sum(times * _matrix_bytes(rows, columns, bits) for rows, columns, times in matrices)
    return stored + max(2, bits // 8) * config.norm_weights


def _matrix_bytes(rows: int, columns: int, bits: int) -> int:
    scales = {8: 2 * rows, 4: 4 * (rows * columns // _GROUP)}.get(bits, 0)
    return rows * columns * bits // 8 + scales


def count_step(
    config: Config,
    *,
    batch: int = 1,
    tokens: int = 0,
    bits: int = 16,
    cache_number_bytes: int | None = None,
) -> StepCount:
    """Return the bytes and FLOPs of a step that adds one token to each of ``batch`` texts of
    ``tokens`` tokens.

    The net is ``config``, its weights have ``bits`` as in :func:`stored_bytes`. A number of the
    cache has ``cache_number_bytes``, by default 4 with weights of 32 bits and otherwise 2. FLOPs
    are those of the matrices and of attention's two products. Lesson 22.
    """
    one_of("config", config, Config, _A_CONFIG)
    batch, tokens = whole_number("batch", batch), whole_number("tokens", tokens, at_least=0)
    bits = choice("bits", bits, _BITS)
    number_bytes = max(2, bits // 8)
    if cache_number_bytes is not None:
        number_bytes = whole_number("bytes", cache_number_bytes)
    macs = (
        config.layers * config.block_weights
        + config.table_weights
        + 2 * config.layers * config.width * tokens
    )
    return StepCount(
        batch=batch,
        tokens=tokens,
        weight_bytes=read_bytes(config, bits=bits),
        cache_bytes=config.cache_bytes(batch * tokens, number_bytes=number_bytes),
        flops=flops_from_macs(batch * macs),
    )


# Shapes as the models' config.json files have them (meta-llama on huggingface.co).
_CONFIGS = (
    Config("Llama 2 7B", 32, 4096, 32, 32, 11_008, 32_000),
    Config("Llama 2 13B", 40, 5120, 40, 40, 13_824, 32_000),
    Config("Llama 2 70B", 80, 8192, 64, 8, 28_672, 32_000),
    Config("Llama 3 8B", 32, 4096, 32, 8, 14_336, 128_256),
    Config("Llama 3 70B", 80, 8192, 64, 8, 28_672, 128_256),
)
CONFIGS: Mapping[str, Config] = MappingProxyType({config.name: config for config in _CONFIGS})
