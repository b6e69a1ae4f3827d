"""Attention over a sequence on four ranks is PyTorch's attention over the whole of it; traps are seen to differ."""

from __future__ import annotations

import pkgutil

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from helpers import parallel
from helpers.parallel import compare_ring_attention, merge_blocks, model_ring_traffic, ring_attention
from helpers.parallel._ring import split_sequence

TOLERANCE, WRONG = 1e-12, 1e-3


def given(tokens: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return [scale * torch.randn(2, 3, tokens, 8, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


def on_a_rank(rank: int, world_size: int, whole: list[torch.Tensor], causal: bool, cotangent: torch.Tensor):
    own = [each.chunk(world_size, dim=2)[rank].clone().requires_grad_() for each in whole]
    outputs = ring_attention(*own, causal=causal)
    outputs.backward(cotangent.chunk(world_size, dim=2)[rank])
    return [outputs.detach(), *(each.grad for each in own)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("tokens", "scale"), [(4, 1.0), (20, 1.0), (20, 30.0)])  # at 30 exp alone would overflow
def test_output_and_gradients_are_those_of_pytorch(four_ranks, causal, tokens, scale) -> None:
    whole = [each.requires_grad_() for each in given(tokens, scale=scale)]
    cotangent = given(tokens + 1)[0][:, :, :tokens]
    expected = scaled_dot_product_attention(*whole, is_causal=causal)
    expected.backward(cotangent)
    told = four_ranks.run(on_a_rank, [each.detach() for each in whole], causal, cotangent)
    for place, oracle in enumerate([expected, *(each.grad for each in whole)]):
        found = torch.cat([each[place] for each in told], dim=2)
        close = TOLERANCE if scale == 1 else 1e-8  # scores in the thousands are themselves rounded at 1e-13
        assert (found - oracle).abs().max() <= close * oracle.abs().max().clamp(min=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_the_comparison_says_so_and_every_rank_sends_what_was_modelled(four_ranks, causal) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, TOLERANCE), (torch.bfloat16, 0.05)):
        whole = given(24, dtype)
        run = compare_ring_attention(four_ranks, *whole, causal=causal, tolerance=tolerance)
        assert run.agreement.equal
        assert run.sent == model_ring_traffic(whole[0].shape, ranks=4, itemsize=dtype.itemsize)
    block = 2 * 3 * 6 * 8  # numbers: batch x heads x tokens / p x d
    assert model_ring_traffic((2, 3, 24, 8), ranks=4).forward_bytes == 2 * 3 * block * 4
    assert model_ring_traffic((2, 3, 24, 8), ranks=4).backward_bytes == 2 * 3 * block * 4 + 2 * 4 * block * 4
    assert run.blocks == ((1, 2, 3, 4) if causal else (4, 4, 4, 4))


def averaged(output, log_sum, more, more_log_sum):
    """The trap: every block's softmax is taken for a softmax over all keys, and the mean of them for the whole."""
    both = torch.logaddexp(log_sum, more_log_sum)
    return torch.where(log_sum.isinf(), more, (output + more) / 2), both


def not_rescaled(output, log_sum, more, more_log_sum):
    """The trap: what came before keeps the weight that it had before the new keys were known."""
    both = torch.logaddexp(log_sum, more_log_sum)
    return output + more * (more_log_sum - both).exp(), both


@pytest.mark.parametrize("merge", [averaged, not_rescaled])
def test_a_wrong_merge_is_seen(four_ranks, merge) -> None:
    run = compare_ring_attention(four_ranks, *given(24), merge=merge, tolerance=TOLERANCE)
    assert not run.agreement.equal
    assert run.agreement.output_difference > WRONG


def test_blocks_merge_in_any_grouping_and_with_none() -> None:
    query, key, value = given(12)
    scores = query @ key.transpose(-2, -1) / 8**0.5

    def attended(keys: slice) -> tuple[torch.Tensor, torch.Tensor]:
        part = scores[..., keys]
        return part.softmax(-1) @ value[..., keys, :], part.logsumexp(-1, keepdim=True)

    expected = scaled_dot_product_attention(query, key, value)
    for cut in (1, 5, 11):  # unequal blocks too
        both, log_sum = merge_blocks(*attended(slice(0, cut)), *attended(slice(cut, 12)))
        torch.testing.assert_close(both, expected)
        torch.testing.assert_close(log_sum, scores.logsumexp(-1, keepdim=True))
    nothing = torch.zeros_like(expected), torch.full_like(log_sum, -torch.inf)
    torch.testing.assert_close(merge_blocks(*nothing, *attended(slice(0, 12)))[0], expected)


def unequal(rank: int, world_size: int) -> str:
    block = torch.zeros(1, 1, 2 + (rank == world_size - 1), 4)
    with pytest.raises(ValueError, match="pad the sequence") as refused:
        ring_attention(block, block, block)
    return str(refused.value)


def test_what_cannot_be_is_refused_in_words(four_ranks) -> None:
    with pytest.raises(ValueError, match="a sequence of 10 tokens does not divide among 4 ranks; pad it to 12"):
        compare_ring_attention(four_ranks, *given(10))
    with pytest.raises(ValueError, match="all of one shape"):
        compare_ring_attention(four_ranks, *given(12)[:2], given(8)[0])
    with pytest.raises(ValueError, match="rank=4 is too large; give a whole number, 0 to 3"):
        split_sequence(given(8)[0], 4, ranks=4)
    with pytest.raises(ValueError, match=r"tokens of shape \(8, 4\) have no dimension 2"):
        split_sequence(torch.zeros(8, 4), 0, ranks=2)
    with pytest.raises(ValueError, match=r"\(batch, heads, tokens, d\), four sizes; got \(3, 24, 8\)"):
        model_ring_traffic((3, 24, 8), ranks=4)
    with pytest.raises(ValueError, match="itemsize=0 is too small"):
        model_ring_traffic((2, 3, 24, 8), ranks=4, itemsize=0)
    with pytest.raises(RuntimeError, match="call it in a function"):
        ring_attention(*given(8))


def test_unequal_parts_are_refused_on_every_rank(four_ranks) -> None:
    assert all("(1, 1, 2, 4), (1, 1, 3, 4);" in each for each in four_ranks.run(unequal))


def test_no_public_name_is_hidden_by_a_module_of_that_name() -> None:
    assert not {module.name for module in pkgutil.iter_modules(parallel.__path__)} & set(parallel.__all__)
