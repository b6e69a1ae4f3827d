"""flex_attention: counted as PyTorch computes it without its compiler, in every function, and it
runs afterwards.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from helpers import memory, operations, profiling
from helpers.steps import ModelError

BATCH, LENGTH, HEADS, WIDTH = 2, 64, 4, 8


class Attention(nn.Module):
    """Attention of all heads to the keys of half of them, under a causal mask by blocks and a score
    of its own.
    """

    def __init__(self):
        super().__init__()
        self.query, self.key = (
            nn.Linear(32, HEADS * WIDTH, bias=False),
            nn.Linear(32, HEADS // 2 * WIDTH, bias=False),
        )
        self.slopes = nn.Parameter(torch.ones(HEADS))
        self.mask = create_block_mask(
            lambda _b, _h, i, j: i >= j, None, None, LENGTH, LENGTH, "cpu", BLOCK_SIZE=32
        )

    def forward(self, x):
        query = self.query(x).view(BATCH, LENGTH, HEADS, WIDTH).transpose(1, 2)
        key = self.key(x).view(BATCH, LENGTH, HEADS // 2, WIDTH).transpose(1, 2)
        return flex_attention(
            query,
            key,
            key,
            score_mod=lambda score, _b, h, i, j: score + self.slopes[h] * (i - j),
            block_mask=self.mask,
            enable_gqa=True,
        )


@pytest.mark.filterwarnings("ignore")
def test_every_function_takes_it_and_it_runs_afterwards():
    model, x = Attention(), torch.ones(BATCH, LENGTH, 32)
    scores = BATCH * HEADS * LENGTH * LENGTH * WIDTH
    projections = BATCH * LENGTH * 32 * (HEADS + HEADS // 2) * WIDTH
    for values in (False, True):
        profile = operations.profile_ops(model, x, values=values)
        assert profile.forward_macs == projections + 2 * scores
        assert profile.backward_macs == projections + 4 * scores
        assert profile.may_hold_products == ()
    model.requires_grad_(False)
    how = {"training": False}
    estimate = memory.estimate_peak_memory(model, x, **how)
    assert estimate.peak_bytes == pytest.approx(
        memory.measure_peak_memory(model, x, **how).peak_bytes, rel=0.1
    )
    assert estimate.uncertain == (
        "flex_attention is followed operator by operator: compiled it may keep others alive",
    )
    assert profiling.estimate_step_time(model, x, budget_s=1e-6, **how).not_timed == ()
    assert profiling.profile_time(model, x, budget_s=1e-6, **how).step_s > 0
    with warnings.catch_warnings(), torch.no_grad():
        assert model(x).isfinite().all()


@pytest.mark.filterwarnings("ignore")
def test_training_it_on_a_cpu_is_refused_as_torch_refuses_it():
    for function in (memory.estimate_peak_memory, memory.measure_peak_memory):
        with pytest.raises(
            ModelError, match="FlexAttention does not support backward on CPU"
        ) as raised:
            function(Attention(), torch.ones(BATCH, LENGTH, 32))
        assert "0x" not in str(raised.value)
