"""A Llama-like language model without positions, a mixed-precision Adam, and LoRA, as lesson 11
takes them apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from helpers.checks import boolean

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Attention(nn.Module):
    """Self-attention with ``heads`` heads: (batch, tokens, width) in and out.

    ``attend`` takes queries, keys and values (batch, heads, tokens, width / heads) and returns what
    each token attends to, in the same shape. Lesson 11.
    """

    def __init__(self, width: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the attention of each token of ``x``, (b, n, width)."""
        projected = (layer(x) for layer in (self.query, self.key, self.value))
        # (b, heads, n, d)
        heads = [
            projection.unflatten(-1, (self.heads, -1)).transpose(1, 2) for projection in projected
        ]
        return self.out(self.attend(*heads).transpose(1, 2).flatten(2))  # (b, n, width)


class LanguageModel(nn.Module):
    """Token ids (batch, tokens + 1) to the mean loss of predicting each next token.

    Its ``layers`` blocks come from ``make_block()`` and map (batch, tokens, width) to the same
    shape. Positions are left out, because they save next to nothing. With ``checkpointing`` only
    the input of each block is saved. The logits are float32, whatever the parameters are. Lesson
    11.
    """

    def __init__(
        self,
        make_block: Callable[[], nn.Module],
        *,
        layers: int,
        width: int,
        vocabulary: int,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.checkpointing = boolean("checkpointing", checkpointing)
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(make_block() for _ in range(layers))
        self.norm, self.head = (
            nn.LayerNorm(width, bias=False),
            nn.Linear(width, vocabulary, bias=False),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the next tokens."""
        x = self.embedding(tokens[:, :-1])  # (batch, tokens, width)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        logits = self.head(self.norm(x)).flatten(0, 1).float()  # (batch * tokens, vocabulary)
        return cross_entropy(logits, tokens[:, 1:].flatten())


class MixedAdam(torch.optim.Optimizer):
    """Adam for parameters and gradients in bfloat16: a float32 copy of each parameter and two
    float32 averages.

    The update is made on the copy and then rounded into the parameter, because a small update would
    vanish in bfloat16 (Micikevicius and others, Mixed Precision Training, 2018). Adam's correction
    of the first averages is left out, since it takes no memory. Lesson 11.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 1e-4) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # it takes no closure
        """Update each parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group["lr"])

    def _update(self, parameter: nn.Parameter, raw_gradient: torch.Tensor, lr: float) -> None:
        state = self.state[parameter]
        if not state:
            copy = parameter.float()
            state.update(copy=copy, mean=torch.zeros_like(copy), square=torch.zeros_like(copy))
        gradient = raw_gradient.float()
        state["mean"].lerp_(gradient, 0.1)
        state["square"].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        del gradient  # before the next float32 tensor of this size
        root = state["square"].sqrt().add_(1e-8)
        state["copy"].addcdiv_(state["mean"], root, value=-lr)
        parameter.copy_(state["copy"])


class _LowRank(nn.Module):
    """A frozen linear layer plus the product of two thin matrices that learn."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        linear = functools.partial(
            nn.Linear, bias=False, dtype=frozen.weight.dtype, device=frozen.weight.device
        )
        self.down, self.up = linear(frozen.in_features, rank), linear(rank, frozen.out_features)
        nn.init.zeros_(self.up.weight)  # at first the layer computes what it did

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))


def add_lora(model: LanguageModel, rank: int) -> LanguageModel:
    """Freeze ``model`` and add two thin matrices of ``rank`` to each linear layer of its blocks;
    return the model.

    Hu and others, LoRA, 2021. The model is changed. Lesson 11.
    """
    model.requires_grad_(False)
    for module in list(model.blocks.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, _LowRank(child, rank))
    return model
