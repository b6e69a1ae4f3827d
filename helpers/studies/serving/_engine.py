"""A real step of the course's decoder over requests of different lengths, and how long it takes.

Lesson 23.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple, cast

import torch
from torch.nn import functional

from helpers.checks import function, members, one_of, whole_number
from helpers.models import Decoder, DecoderBlock, causal_attention
from helpers.studies.serving._server import CacheMemory
from helpers.studies.serving._steps import Batch

_A_DECODER = "a helpers.models.Decoder"
Clock = Callable[[], float]


class MeasuredStep(NamedTuple):
    """A step that was measured: its tokens, its requests, its seconds; :func:`fit_step` takes
    several.

    Lesson 23.
    """

    tokens: int
    requests: int
    seconds: float


class DecoderStep:
    """A step of ``model`` for :func:`serve`, on whatever device the model is: it computes, and
    returns its seconds.

    ``prompts`` has the tokens of each request's prompt, in the order of the requests, and
    ``memory`` is the one that :func:`serve` is given; keys and values of all pages are one tensor
    of zeros, (layers, 2, pages, page_tokens, kv_heads, width / heads). Each request writes its
    likeliest token, ``texts`` has what each has written so far, and these texts are those of the
    model alone, whoever shares a step. ``clock`` is read before and after a step; on a CPU,
    ``time.process_time`` counts no time of other programs.

    Raises TypeError or ValueError for prompts that are no tokens of the model, and, when called,
    for a text longer than the model's context, and for a common beginning that another prompt has
    left in the cache. Lesson 23.

    >>> memory = CacheMemory(pages=8, page_tokens=4)
    >>> step = DecoderStep(Decoder(7, width=8, layers=1, heads=2), [[1, 2, 3]], memory)
    >>> seconds = step(Batch(requests=[0], starts=[0], tokens=[3], tables=[[5]]))
    >>> len(step.texts[0])
    1
    """

    def __init__(
        self,
        model: Decoder,
        prompts: Sequence[Sequence[int]],
        memory: CacheMemory,
        *,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.model = one_of("model", model, Decoder, _A_DECODER)
        one_of("memory", memory, CacheMemory, "the CacheMemory that serve is given")
        self.page_tokens = memory.page_tokens
        self.clock = function("clock", clock, "such as time.perf_counter")
        vocabulary = len(model.head.weight)
        self._words = [
            [
                whole_number(f"prompts[{index}]", token, at_least=0, at_most=vocabulary - 1)
                for token in members(f"prompts[{index}]", prompt, "tokens")
            ]
            for index, prompt in enumerate(
                members("prompts", prompts, "prompts, each a list of tokens")
            )
        ]
        self._prompt_tokens = [len(words) for words in self._words]
        self._cache = _new_cache(model, memory)
        # the token whose key stands in each row of each page
        self._cached_tokens = torch.full((memory.pages, memory.page_tokens), -1)

    @property
    def texts(self) -> list[list[int]]:
        """The tokens that each request has written so far, without its prompt."""
        return [
            words[count:] for words, count in zip(self._words, self._prompt_tokens, strict=True)
        ]

    def __call__(self, batch: Batch) -> float:
        """Run a step, and return its seconds."""
        parts = list(zip(*batch, strict=True))
        for part in parts:
            self._check(*part)
        new_tokens = [
            self._words[number][start : start + count] for number, start, count, _ in parts
        ]
        begin = self.clock()
        next_tokens = ragged_step(self.model, self._cache, batch, new_tokens)
        seconds = self.clock() - begin
        for (number, start, count, pages), tokens, token in zip(
            parts, new_tokens, next_tokens, strict=True
        ):
            self._cached_tokens.flatten()[_rows(pages, start, count, self.page_tokens)] = (
                torch.tensor(tokens)
            )
            if start + count == len(self._words[number]):
                self._words[number].append(token)
        return seconds

    def _check(self, number: int, start: int, count: int, pages: Sequence[int]) -> None:
        words, end, room = self._words[number], start + count, len(pages) * self.page_tokens
        if end > min(self.model.context, room):
            raise ValueError(
                f"request {number} has {end} tokens, the model a context of {self.model.context}, "
                f"and its {len(pages)} pages hold {room}; give shorter requests, and give serve "
                "the same memory as the step"
            )
        if self._cached_tokens[list(pages)].flatten()[:start].tolist() != words[:start]:
            raise ValueError(
                f"the cache of request {number} holds other tokens than the first {start} of its "
                "text; give serve as common= only what all prompts begin with"
            )


@torch.inference_mode()
def ragged_step(
    model: Decoder, cache: torch.Tensor, batch: Batch, tokens: Sequence[Sequence[int]]
) -> list[int]:
    """Return the likeliest next token of each request in ``batch``, and leave its keys and values
    in the ``cache``.

    The ``model`` stays as it is. ``cache`` is (layers, 2, pages, page_tokens, kv_heads, width /
    heads), and ``tokens`` has those of each request. All tokens of the step are rows of one tensor,
    (tokens, width): norms and products with matrices take them together, whosever they are, and
    only attention takes each request alone (selective batching; Yu and others, Orca, OSDI 2022).
    """
    page_tokens, sizes = cache.shape[3], list(batch.tokens)
    tensor = functools.partial(torch.tensor, device=cache.device)
    ends, tables = [], []
    positions: list[int] = []
    rows: list[int] = []
    for start, count, pages in zip(batch.starts, sizes, batch.tables, strict=True):
        end = start + count
        ends.append(end)
        positions += range(start, end)
        rows += _rows(pages, start, count, page_tokens)
        tables.append(tensor(list(pages[: -(-end // page_tokens)])))
    # (tokens, width)
    x = model.tokens(tensor(list(chain.from_iterable(tokens)))) + model.positions(tensor(positions))
    for block, keys_and_values in zip(model.blocks, cache, strict=True):
        x = _block(cast(DecoderBlock, block), x, keys_and_values, tensor(rows), tables, ends, sizes)
    last = tensor(sizes).cumsum(0) - 1  # (requests,), each one's last row
    return model.head(model.norm(x[last])).argmax(-1).tolist()


def _new_cache(model: Decoder, memory: CacheMemory) -> torch.Tensor:
    """Return zeros (layers, 2, pages, page_tokens, kv_heads, width / heads) on the model's
    device.
    """
    shape = len(model.blocks), 2, memory.pages, memory.page_tokens, model.kv_heads, model.head_width
    return model.head.weight.new_zeros(shape)


def _rows(pages: Sequence[int], start: int, count: int, page_tokens: int) -> list[int]:
    """Return the rows of the cache in which ``count`` tokens from ``start`` on have their keys and
    values.
    """
    return [
        pages[position // page_tokens] * page_tokens + position % page_tokens
        for position in range(start, start + count)
    ]


def _block(
    block: DecoderBlock,
    x: torch.Tensor,
    cache: torch.Tensor,
    rows: torch.Tensor,
    tables: Sequence[torch.Tensor],
    ends: Sequence[int],
    sizes: Sequence[int],
) -> torch.Tensor:
    """Return the rows ``x`` (tokens, width) after a block; ``rows`` are their positions in
    ``cache``.
    """
    # (tokens, heads + 2 kv_heads, head_width)
    split = block.qkv(block.norm1(x)).unflatten(-1, (-1, block.head_width))
    # (tokens, heads, head_width), and twice (tokens, kv_heads, head_width)
    queries, keys, values = split.split((block.heads, block.kv_heads, block.kv_heads), dim=1)
    # (2, rows of all pages, kv_heads, head_width)
    cache.flatten(1, 2)[:, rows] = torch.stack((keys, values))
    attended = [
        _attend(request_queries, cache, table, end)
        for request_queries, table, end in zip(
            queries.split(list(sizes)), tables, ends, strict=True
        )
    ]
    x = x + block.out(torch.cat(attended))
    return x + block.down(functional.gelu(block.up(block.norm2(x))))


def _attend(
    queries: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, end: int
) -> torch.Tensor:
    """Return the attention of one request's last queries (tokens, heads, d) to its first ``end``
    keys and values.
    """
    # Pages are copied together; a single page, such as a whole context, is read where it stands.
    pages = cache[:, table[0]] if len(table) == 1 else cache[:, table].flatten(1, 2)
    # (2, 1, kv_heads, end, head_width), of (2, tokens of the pages, kv_heads, head_width)
    keys, values = pages[:, :end].transpose(1, 2).unsqueeze(1)
    # (1, heads, tokens, head_width) in attention, (tokens, heads head_width) out
    return (
        causal_attention(queries.transpose(0, 1).unsqueeze(0), keys, values)[0]
        .transpose(0, 1)
        .flatten(1)
    )


def measure_step(
    model: Decoder,
    *,
    requests: int = 1,
    tokens: int = 1,
    cached: int = 64,
    repeats: int = 5,
    clock: Clock = time.perf_counter,
) -> MeasuredStep:
    """Return the median time of a step of ``model`` that takes ``tokens`` tokens of each of
    ``requests`` requests.

    Each request has ``cached`` tokens in its cache before, with one page for its whole text. The
    first step of ``repeats`` and one is not counted; all take random tokens, and no text is kept.
    ``clock`` is that of :class:`DecoderStep`. Lesson 23.
    """
    one_of("model", model, Decoder, _A_DECODER)
    requests, tokens = whole_number("requests", requests), whole_number("tokens", tokens)
    cached, repeats = whole_number("cached", cached, at_least=0), whole_number("repeats", repeats)
    length = cached + tokens
    if length > model.context:
        raise ValueError(
            f"cached={cached} and tokens={tokens} are {length} tokens; the model has a context of "
            f"{model.context}"
        )
    cache = _new_cache(model, CacheMemory(requests, length))
    batch = Batch(
        range(requests),
        [cached] * requests,
        [tokens] * requests,
        [[page] for page in range(requests)],
    )
    new_tokens = torch.randint(
        len(model.head.weight), (requests, tokens), generator=torch.Generator().manual_seed(0)
    ).tolist()
    function("clock", clock, "such as time.perf_counter")
    times_s = []
    for _ in range(repeats + 1):
        begin = clock()
        ragged_step(model, cache, batch, new_tokens)
        times_s.append(clock() - begin)
    return MeasuredStep(requests * tokens, requests, statistics.median(times_s[1:]))
