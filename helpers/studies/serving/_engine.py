"""A real step of the course's decoder over requests of different lengths, and how long it takes. Lesson 23."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from helpers.checks import function, members, one_of, whole_number
from helpers.models import Decoder, DecoderBlock, causal_attention
from helpers.studies.serving._server import CacheMemory
from helpers.studies.serving._steps import Piece

_A_DECODER = "a helpers.models.Decoder"
Clock = Callable[[], float]


class MeasuredStep(NamedTuple):
    """A step that was measured: its tokens, its requests, and its seconds; :func:`fit_step` takes several. Lesson 23."""

    tokens: int
    requests: int
    seconds: float


class DecoderStep:
    """A step of ``model`` for :func:`serve`, on whatever device the model is: it computes, and returns its seconds.

    ``prompts`` has the tokens of each request's prompt, in the order of the requests, and ``memory`` is the one that
    :func:`serve` is given; keys and values of all pages are one tensor of zeros, (layers, 2, pages, page_tokens,
    kv_heads, width / heads). Each request writes its likeliest token, ``texts`` has what each has written so far, and
    these texts are those of the model alone, whoever shares a step. ``clock`` is read before and after a step; on a
    CPU, ``time.process_time`` counts no time of other programs.

    Raises TypeError or ValueError for prompts that are no tokens of the model, and, when called, for a text longer than
    the model's context, and for a common beginning that another prompt has left in the cache. Lesson 23.

    >>> memory = CacheMemory(pages=8, page_tokens=4)
    >>> step = DecoderStep(Decoder(7, width=8, layers=1, heads=2), [[1, 2, 3]], memory)
    >>> seconds = step([Piece(request=0, start=0, tokens=3, table=(5,))])
    >>> len(step.texts[0])
    1
    """

    def __init__(
        self, model: Decoder, prompts: Sequence[Sequence[int]], memory: CacheMemory, *,
        clock: Clock = time.perf_counter,
    ) -> None:  # fmt: skip
        self.model = one_of("model", model, Decoder, _A_DECODER)
        one_of("memory", memory, CacheMemory, "the CacheMemory that serve is given")
        self.page_tokens, self.clock = memory.page_tokens, function("clock", clock, "such as time.perf_counter")
        vocabulary = len(model.head.weight)
        self._words = [
            [
                whole_number(f"prompts[{place}]", token, at_least=0, at_most=vocabulary - 1)
                for token in members(f"prompts[{place}]", prompt, "tokens")
            ]
            for place, prompt in enumerate(members("prompts", prompts, "prompts, each a list of tokens"))
        ]
        self._prompt_tokens = [len(words) for words in self._words]
        block = model.blocks[0]
        shape = (len(model.blocks), 2, memory.pages, memory.page_tokens, block.kv_heads, block.head_width)
        self._cache = model.head.weight.new_zeros(shape)
        self._held = torch.full((memory.pages, memory.page_tokens), -1)  # the token whose key stands in each place

    @property
    def texts(self) -> list[list[int]]:
        """The tokens that each request has written so far, without its prompt."""
        return [words[count:] for words, count in zip(self._words, self._prompt_tokens, strict=True)]

    def __call__(self, pieces: Sequence[Piece]) -> float:
        """Run a step with ``pieces``, and return its seconds."""
        for piece in pieces:
            self._check(piece)
        new = [self._words[piece.request][piece.start : piece.start + piece.tokens] for piece in pieces]
        begin = self.clock()
        following = ragged_step(self.model, self._cache, pieces, new)
        seconds = self.clock() - begin
        for piece, tokens, token in zip(pieces, new, following, strict=True):
            held = self._held[list(piece.table)].flatten()
            held[piece.start : piece.start + piece.tokens] = torch.tensor(tokens)
            self._held[list(piece.table)] = held.unflatten(0, (-1, self.page_tokens))
            if piece.start + piece.tokens == len(self._words[piece.request]):
                self._words[piece.request].append(token)
        return seconds

    def _check(self, piece: Piece) -> None:
        words, end = self._words[piece.request], piece.start + piece.tokens
        if end > self.model.context or end > len(piece.table) * self.page_tokens:
            raise ValueError(f"request {piece.request} has {end} tokens, the model a context of {self.model.context}, and "
                             f"its {len(piece.table)} pages hold {len(piece.table) * self.page_tokens}; give shorter "
                             "requests, and give serve the memory that the step has")  # fmt: skip
        if self._held[list(piece.table)].flatten()[: piece.start].tolist() != words[: piece.start]:
            raise ValueError(f"the cache of request {piece.request} holds other tokens than the first {piece.start} of "
                             "its text; give serve as common= only what all prompts begin with")  # fmt: skip


@torch.inference_mode()
def ragged_step(
    model: Decoder, cache: torch.Tensor, pieces: Sequence[Piece], tokens: Sequence[Sequence[int]]
) -> list[int]:
    """Return the likeliest next token of each of ``pieces``, and leave keys and values of their tokens in the ``cache``.

    ``cache`` is (layers, 2, pages, page_tokens, kv_heads, width / heads), and ``tokens`` has the tokens of each piece.
    All tokens of the step are rows of one tensor, (tokens, width): norms and products with matrices take them together,
    whosever they are, and only attention takes each request alone (selective batching; Yu and others, Orca, OSDI 2022).
    Lesson 23.
    """
    device, page = cache.device, cache.shape[3]
    places = [range(piece.start, piece.start + piece.tokens) for piece in pieces]
    rows = [piece.table[at // page] * page + at % page for piece, span in zip(pieces, places, strict=True) for at in span]
    row = torch.tensor(rows, device=device)
    tables = [
        torch.tensor(piece.table[: -(-span.stop // page)], device=device)
        for piece, span in zip(pieces, places, strict=True)
    ]
    flat = torch.tensor([token for each in tokens for token in each], device=device)
    x = model.tokens(flat) + model.positions(torch.tensor([at for span in places for at in span], device=device))
    ends = [span.stop for span in places]
    for block, keys_and_values in zip(model.blocks, cache, strict=True):
        x = _block(block, x, keys_and_values, row, tables, ends, [len(span) for span in places])
    last = torch.tensor([len(span) for span in places], device=device).cumsum(0) - 1
    return model.head(model.norm(x[last])).argmax(-1).tolist()


def _block(
    block: DecoderBlock, x: torch.Tensor, cache: torch.Tensor, row: torch.Tensor, tables: Sequence[torch.Tensor],
    ends: Sequence[int], sizes: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """Return the rows ``x`` (tokens, width) after a block; ``row`` says where their keys go in ``cache``."""
    split = block.qkv(block.norm1(x)).unflatten(-1, (-1, block.head_width))
    queries, keys, values = split.split((block.heads, block.kv_heads, block.kv_heads), dim=1)
    cache[0].flatten(0, 1)[row], cache[1].flatten(0, 1)[row] = keys, values
    attended = [
        _attended(own, cache, table, end)
        for own, table, end in zip(queries.split(list(sizes)), tables, ends, strict=True)
    ]
    x = x + block.out(torch.cat(attended))
    return x + block.down(functional.gelu(block.up(block.norm2(x))))


def _attended(queries: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, end: int) -> torch.Tensor:
    """Return the attention of one request's last queries (tokens, heads, d) to its first ``end`` keys and values."""
    # Pages are copied together; a single page, such as a whole context, is read where it stands.
    held = cache[:, table[0]] if len(table) == 1 else cache[:, table].flatten(1, 2)
    keys, values = held[:, :end].transpose(1, 2).unsqueeze(1)
    return causal_attention(queries.transpose(0, 1).unsqueeze(0), keys, values)[0].transpose(0, 1).flatten(1)


def measure_step(
    model: Decoder, *, requests: int = 1, tokens: int = 1, cached: int = 64, repeats: int = 5,
    clock: Clock = time.perf_counter,
) -> MeasuredStep:  # fmt: skip
    """Return the median time of a step that takes ``tokens`` tokens of each of ``requests`` requests.

    Each request has ``cached`` tokens in its cache before, with one page for its whole text. The first of ``repeats + 1``
    steps is not counted; all of them take random tokens, and no text is kept. Lesson 23.
    """
    one_of("model", model, Decoder, _A_DECODER)
    requests, tokens = whole_number("requests", requests), whole_number("tokens", tokens)
    cached, repeats = whole_number("cached", cached, at_least=0), whole_number("repeats", repeats)
    length = cached + tokens
    if length > model.context:
        raise ValueError(f"cached={cached} and tokens={tokens} are {length} tokens; the model has a context of "
                         f"{model.context}")  # fmt: skip
    block = model.blocks[0]
    cache = model.head.weight.new_zeros((len(model.blocks), 2, requests, length, block.kv_heads, block.head_width))
    pieces = [Piece(number, cached, tokens, (number,)) for number in range(requests)]
    new = torch.randint(len(model.head.weight), (requests, tokens), generator=torch.Generator().manual_seed(0)).tolist()
    taken = []
    for _ in range(repeats + 1):
        begin = function("clock", clock, "such as time.perf_counter")()
        ragged_step(model, cache, pieces, new)
        taken.append(clock() - begin)
    return MeasuredStep(requests * tokens, requests, statistics.median(taken[1:]))
