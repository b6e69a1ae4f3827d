"""The language model of characters: what it reads, that it learns, and what a planted outlier
changes.
"""

from __future__ import annotations

import pytest
import torch

from helpers.studies import numbers
from helpers.studies.numbers import _characters


@pytest.fixture(scope="module")
def text():
    return numbers.character_text()


def test_a_target_follows_its_context_and_unseen_contexts_are_new(text):
    assert text.contexts.shape[1] == text.unseen_contexts.shape[1] == 8
    assert torch.equal(text.contexts[1, -1], text.targets[0])
    assert torch.equal(text.unseen_contexts[8], text.unseen_targets[:8])
    assert len(text.unseen_targets) == 20_000
    assert "The " in "".join(text.characters[code] for code in text.contexts[:, 0].tolist())


def test_a_short_training_beats_the_frequencies_and_leaves_the_callers_chance(text, monkeypatch):
    monkeypatch.setattr(_characters, "_STEPS", 30)
    shares = torch.bincount(text.targets, minlength=len(text.characters)) / len(text.targets)
    guess = -shares[text.unseen_targets].clamp_min(1e-9).log().mean()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = numbers.train_characters(text)
    assert torch.equal(torch.rand(3), expected)
    loss = torch.nn.functional.cross_entropy(model(text.unseen_contexts), text.unseen_targets)
    assert loss < guess - 0.2
    assert not any(each.requires_grad for each in model.parameters())


def test_an_outlier_makes_one_channel_larger_and_leaves_the_outputs():
    torch.manual_seed(0)
    model = numbers.CharacterModel(20).requires_grad_(False)
    contexts = torch.randint(20, (50, 8))
    planted = numbers.plant_outlier(model, channel=3, factor=128.0)
    assert torch.allclose(planted(contexts), model(contexts), atol=1e-5)
    stored, theirs = [], []
    model(contexts, lambda activations: stored.append(activations) or activations)
    planted(contexts, lambda activations: theirs.append(activations) or activations)
    assert [each.shape[1] for each in stored] == [128, 256]
    assert torch.equal(theirs[0], stored[0])
    assert torch.equal(theirs[1][:, 3], 128 * stored[1][:, 3])
    assert torch.equal(theirs[1][:, 4:], stored[1][:, 4:])


def test_nvfp4_stores_the_lessons_weights():
    values = torch.tensor([0.70, -0.33, 0.12, 0.04] + 12 * [0.0]).double()
    expected = torch.tensor([6, -3, 1, 0.5] + 12 * [0.0]).double() * 15 / 128
    assert torch.equal(numbers.round_nvfp4(values), expected)
    both = torch.stack([values, 1000 * values]).flatten()
    # a large block leaves its neighbour
    assert torch.equal(numbers.round_nvfp4(both)[:16], expected)
    assert not numbers.round_nvfp4(torch.zeros(2, 32)).any()
    assert numbers.round_nvfp4(values.float()).dtype == torch.float32


def test_nvfp4_needs_whole_blocks():
    with pytest.raises(ValueError, match=r"shape \(3, 20\).*multiple of 16"):
        numbers.round_nvfp4(torch.zeros(3, 20))
