"""A language model of characters that trains in seconds, and an outlier that is planted into it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pydoc_data import topics

import torch
from torch import Tensor, nn

from helpers.checks import whole_number
from helpers.results import Record

# characters read, elements of each, elements of the hidden layer
CONTEXT, EMBEDDING, HIDDEN = 8, 16, 256
_STEPS, _BATCH, _RATE = 800, 512, 0.01
_UNSEEN = 20_000  # characters at the end of the text that are not trained on


class CharacterModel(nn.Module):
    """A model that reads 8 characters and predicts the next of ``characters``.

    Each character becomes 16 numbers, a layer with a ReLU makes 256 hidden elements of these 128,
    and a second layer the logits. Lesson 16.
    """

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(whole_number("characters", characters, at_least=2), EMBEDDING)
        self.hidden = nn.Linear(CONTEXT * EMBEDDING, HIDDEN)
        self.output = nn.Linear(HIDDEN, characters)

    def forward(
        self, contexts: Tensor, store: Callable[[Tensor], Tensor] = lambda activations: activations
    ) -> Tensor:
        """Return logits (N, characters) of ``contexts`` (N, 8); ``store`` rounds what enters each
        layer.

        Lesson 16.
        """
        inputs = store(self.embedding(contexts).flatten(1))  # (N, 128)
        return self.output(store(self.hidden(inputs).relu()))


class CharacterText(Record):
    """The text that Python's ``help()`` prints about its topics, as numbers of its ``characters``.

    ``contexts`` (N, 8) and ``targets`` (N) are of the part that is trained on, ``unseen_contexts``
    and ``unseen_targets`` of its end. The text differs a little from one version of Python to the
    next. Lesson 16.
    """

    characters: str
    contexts: Tensor
    targets: Tensor
    unseen_contexts: Tensor
    unseen_targets: Tensor


def character_text() -> CharacterText:
    """Return the text of Python's help topics, in alphabetical order, ready for
    :class:`CharacterModel`.

    Lesson 16.
    """
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    characters = "".join(sorted(set(text)))
    code_of = {character: index for index, character in enumerate(characters)}
    codes = torch.tensor([code_of[character] for character in text])
    windows = codes.unfold(0, CONTEXT + 1, 1)  # (N, 9)
    training, unseen = windows[: -_UNSEEN - CONTEXT], windows[-_UNSEEN:]
    return CharacterText(
        characters, training[:, :-1], training[:, -1], unseen[:, :-1], unseen[:, -1]
    )


def train_characters(text: CharacterText, *, seed: int = 0) -> CharacterModel:
    """Return a :class:`CharacterModel` that has learned ``text``, without gradients; ``seed`` draws
    all chances.

    It trains 800 steps of 512 contexts with Adam, and leaves torch's own generator as it was.
    Lesson 16.
    """
    with torch.random.fork_rng(devices=()), torch.enable_grad():
        torch.manual_seed(seed)
        model = CharacterModel(len(text.characters))
        adam = torch.optim.Adam(model.parameters(), fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(adam, _RATE, total_steps=_STEPS)
        for _ in range(_STEPS):
            batch = torch.randint(len(text.targets), (_BATCH,))
            loss = nn.functional.cross_entropy(model(text.contexts[batch]), text.targets[batch])
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
    return model.requires_grad_(False)


def plant_outlier(model: CharacterModel, *, channel: int, factor: float = 100.0) -> CharacterModel:
    """Return a copy of ``model`` whose hidden element ``channel`` is ``factor`` times as large.

    The weights that read it are divided by ``factor``, so that in exact arithmetic the outputs
    stay. Lesson 16.
    """
    planted = copy.deepcopy(model)
    planted.hidden.weight[channel] *= factor
    planted.hidden.bias[channel] *= factor
    planted.output.weight[:, channel] /= factor
    return planted
