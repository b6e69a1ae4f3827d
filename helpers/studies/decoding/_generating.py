"""Writing with a model: one token a call, or several that a draft has guessed. Lesson 22."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import torch

from helpers import checks
from helpers.checks import boolean, members, number, one_of, random_seed, whole_number
from helpers.models import Decoder
from helpers.results import Record

Draft = Callable[[Sequence[int]], torch.Tensor]
Verify = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class Generated(Record):
    """A text that was written: its ``tokens`` without the prompt, and how many of them each call of
    the model wrote.

    ``through`` counts the tokens that went through the model, the prompt's included; ``guessed``
    those that a draft proposed, and ``kept`` those of them that stand in the text. Lesson 22.
    """

    tokens: tuple[int, ...]
    through: int
    written: tuple[int, ...]
    guessed: int = 0
    kept: int = 0

    @property
    def calls(self) -> int:
        """Calls of the model."""
        return len(self.written)


def generate(
    model: Decoder,
    prompt: Sequence[int],
    count: int,
    *,
    cached: bool = True,
    temperature: float = 0,
    seed: int = 0,
) -> Generated:
    """Return ``count`` tokens that ``model`` writes after ``prompt``, one a call.

    ``cached``: keys and values stay, and a call takes the new token alone; otherwise each call
    takes the whole text. ``temperature`` 0 takes the likeliest token, above 0 it draws from
    softmax(logits / temperature), by ``seed``.
    """
    boolean("cached", cached)
    one_of("model", model, Decoder, "a helpers.models.Decoder")
    count, temperature = (
        whole_number("count", count),
        number("temperature", temperature, at_least=0),
    )
    generator = torch.Generator().manual_seed(random_seed(seed))
    text, cache, through = _text("prompt", prompt), model.new_cache() if cached else None, 0
    with torch.inference_mode():
        for step in range(count):
            start = len(text) - 1 if cached and step else 0
            new_tokens = torch.tensor([text[start:]], device=model.head.weight.device)
            # (vocabulary,), the last position of (1, tokens, vocabulary)
            logits = model(new_tokens, cache, start)[0, -1] if cached else model(new_tokens)[0, -1]
            through += new_tokens.shape[1]
            text.append(_draw(_distribution(logits, temperature), generator))
    return Generated(tuple(text[-count:]), through, (1,) * count)


def verify(target: torch.Tensor, draft: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the probability with which each guessed token is kept, and the distribution that
    replaces one that is not.

    Both are distributions over the vocabulary (Leviathan and others, Fast Inference from
    Transformers via Speculative Decoding, 2023, algorithm 1): keep with min(1, target / draft),
    else draw from max(0, target - draft), normalised. What comes out is distributed as ``target``.
    Raises ValueError for distributions of unlike lengths and for NaN.
    """
    for name, distribution in (("target", target), ("draft", draft)):
        one_of(name, distribution, torch.Tensor, "a tensor with a probability for each token")
    if target.shape != draft.shape or target.dim() != 1:
        raise ValueError(
            f"target and draft have the shapes {tuple(target.shape)} and {tuple(draft.shape)}; "
            "give one probability for each token of one vocabulary"
        )
    if target.isnan().any() or draft.isnan().any():
        raise ValueError(
            "target or draft holds NaN; give probabilities, such as logits.softmax(-1)"
        )
    residual = (target - draft).clamp(min=0)
    return (target / draft).clamp(max=1), residual / residual.sum()


def speculate(
    model: Decoder,
    draft: Draft,
    prompt: Sequence[int],
    count: int,
    *,
    ahead: int = 4,
    verify: Verify = verify,
    temperature: float = 0,
    seed: int = 0,
) -> Generated:
    """Return ``count`` tokens that ``model`` writes after ``prompt``, with ``ahead`` tokens guessed
    before each call.

    ``draft`` takes the text so far and returns a distribution of the next token. The model looks at
    all guesses in one call; ``verify`` says which are kept, in their order up to the first that is
    not. One more token comes from the model itself: in place of that one, or after the last. At
    ``temperature`` 0 the target is sure of one token; ``seed`` decides what is drawn. At the end of
    the text fewer tokens are guessed. Lesson 22.
    """
    one_of("model", model, Decoder, "a helpers.models.Decoder")
    for name, argument in (("draft", draft), ("verify", verify)):
        checks.function(
            name, argument, "a function of distributions, as the lesson's NGram and verify are"
        )
    count, ahead = whole_number("count", count), whole_number("ahead", ahead, at_least=0)
    temperature = number("temperature", temperature, at_least=0)
    generator = torch.Generator().manual_seed(random_seed(seed))
    # known: tokens whose keys are in the cache
    text, cache, known = _text("prompt", prompt), model.new_cache(), 0
    end, through, written, guessed_count, accepted_count = len(text) + count, 0, [], 0, 0
    with torch.inference_mode():
        while len(text) < end:
            guesses: list[int] = []
            drafts: list[torch.Tensor] = []
            for _ in range(min(ahead, end - len(text) - 1)):
                drafts.append(draft([*text, *guesses]).double())
                guesses.append(_draw(drafts[-1], generator))
            new_tokens = torch.tensor([[*text[known:], *guesses]], device=model.head.weight.device)
            # (guesses + 1, vocabulary)
            logits = model(new_tokens, cache, known)[0, -len(guesses) - 1 :]
            through += new_tokens.shape[1]
            targets = [_distribution(row, temperature) for row in logits]
            accepted, following = _accept_guesses(targets, drafts, guesses, verify, generator)
            known = len(text) + accepted
            text += [*guesses[:accepted], following]
            written.append(accepted + 1)
            guessed_count, accepted_count = guessed_count + len(guesses), accepted_count + accepted
    return Generated(tuple(text[-count:]), through, tuple(written), guessed_count, accepted_count)


def _accept_guesses(
    targets: list[torch.Tensor],
    drafts: list[torch.Tensor],
    guesses: list[int],
    verify: Verify,
    generator: torch.Generator,
) -> tuple[int, int]:
    """Return the number of guesses that are kept, and the token that the model adds."""
    for index, (target, draft, guess) in enumerate(zip(targets, drafts, guesses, strict=False)):
        accept_probability, residual = verify(target, draft)
        if torch.rand((), generator=generator, dtype=torch.float64) >= accept_probability[guess]:
            return index, _draw(residual, generator)
    return len(guesses), _draw(targets[-1], generator)


class NGram:
    """A draft that has counted which token followed the last ``order - 1`` in ``text``; where it
    saw none, fewer.

    Called with a text it returns the distribution of the next of ``vocabulary`` tokens. Lesson 22.
    """

    def __init__(self, text: Sequence[int], order: int, *, vocabulary: int) -> None:
        self.order, self.vocabulary = (
            whole_number("order", order),
            whole_number("vocabulary", vocabulary),
        )
        self._counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        text = _text("text", text)
        for last, token in enumerate(text):
            for length in range(min(self.order, last + 1)):
                self._counts[tuple(text[last - length : last])][token] += 1

    def __call__(self, text: Sequence[int]) -> torch.Tensor:
        """Return the distribution (vocabulary,) of the token after ``text``, in float64."""
        past = tuple(text)[max(0, len(text) - self.order + 1) :]
        while past and past not in self._counts:
            past = past[1:]
        counts = torch.zeros(self.vocabulary, dtype=torch.float64)
        for token, count in self._counts[past].items():
            counts[token] = count
        return counts / counts.sum()


def _text(name: str, tokens: Sequence[int]) -> list[int]:
    text = [
        whole_number("token", token, at_least=0)
        for token in members(name, tokens, "tokens, as whole numbers")
    ]
    if not text:
        raise ValueError(f"{name} is empty; give at least one token, such as [0]")
    return text


def _distribution(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = logits.double().cpu()  # (vocabulary,)
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    return (logits / temperature).softmax(0)


def _draw(distribution: torch.Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(distribution, 1, generator=generator))
