"""Models of transformers and timm with random weights, called as their users call them; nothing is
downloaded.

Each entry makes a model and the keyword arguments of one call, with masks, labels and lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from helpers.steps import tensors_of

Case = tuple[nn.Module, dict[str, Any]]

_SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}
_SHORT = {**_SMALL, "max_position_embeddings": 64}
_ENCODER_DECODER = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}


def tokens(length: int = 16, *, padded: bool = True, labels: bool = True) -> dict[str, Tensor]:
    """Return what a tokenizer gives for two sentences, the second one shorter, and labels."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 100, (2, length), generator=generator)
    mask = torch.ones(2, length, dtype=torch.long)
    if padded:
        mask[1, length // 2 :] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    return {**given, "labels": ids} if labels else given


def _made(name: str, config: str, **options: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, config)(**options))


def _timm(name: str, size: int = 32, **options: Any) -> Callable[[], Case]:
    def make() -> Case:
        import timm

        torch.manual_seed(0)
        return timm.create_model(name, **options), {"x": torch.zeros(2, 3, size, size)}

    return make


CASES: dict[str, Callable[[], Case]] = {
    "bert": lambda: (_made("BertForMaskedLM", "BertConfig", **_SHORT), tokens()),
    "bert, nothing masked": lambda: (
        _made("BertForMaskedLM", "BertConfig", **_SHORT),
        tokens(padded=False),
    ),
    "llama": lambda: (
        _made("LlamaForCausalLM", "LlamaConfig", **_SHORT, num_key_value_heads=2),
        tokens(),
    ),
    "llama, nothing masked": lambda: (
        _made("LlamaForCausalLM", "LlamaConfig", **_SHORT, num_key_value_heads=2),
        tokens(padded=False),
    ),
    "bart": lambda: (
        _made("BartForConditionalGeneration", "BartConfig", **_ENCODER_DECODER),
        tokens(),
    ),
    "t5": lambda: (
        _made(
            "T5ForConditionalGeneration",
            "T5Config",
            vocab_size=100,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        ),
        tokens(),
    ),
    "longformer": lambda: (
        _made(
            "LongformerForMaskedLM",
            "LongformerConfig",
            **{**_SHORT, "max_position_embeddings": 80},
            attention_window=8,
        ),
        tokens(),
    ),
    "detr": lambda: (
        _made(
            "DetrForObjectDetection",
            "DetrConfig",
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_queries=5,
            use_pretrained_backbone=False,
            backbone="resnet18",
            use_timm_backbone=True,
        ),
        {
            "pixel_values": torch.zeros(2, 3, 32, 32),
            "pixel_mask": torch.ones(2, 32, 32, dtype=torch.long),
        },
    ),
    "mixtral": lambda: (
        _made(
            "MixtralForCausalLM",
            "MixtralConfig",
            **_SHORT,
            num_key_value_heads=2,
            num_local_experts=4,
        ),
        tokens(),
    ),
    "qwen2-moe": lambda: (
        _made(
            "Qwen2MoeForCausalLM",
            "Qwen2MoeConfig",
            **_SHORT,
            num_key_value_heads=2,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
        ),
        tokens(),
    ),
    "switch": lambda: (
        _made(
            "SwitchTransformersForConditionalGeneration",
            "SwitchTransformersConfig",
            vocab_size=100,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=4,
            num_experts=4,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
            decoder_start_token_id=0,
        ),
        tokens(),
    ),
    "resnet, grouped": _timm("resnext26ts"),
    "convnext": _timm("convnext_atto"),
    "vit": _timm("vit_tiny_patch16_224", img_size=32, depth=2),
    "swin": _timm(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=2, depths=(2, 2), num_heads=(3, 6)
    ),
}


def _flops_of_convolution_backward(
    grad: Any,
    x: Any,
    w: Any,
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _added: Any,
    _groups: int,
    wanted: Any,
    out_shape: Any = None,
) -> int:
    """Torch's own rule takes no heed of groups; one product of the forward's size for each gradient
    is right.
    """
    return 2 * prod(x if transposed else grad) * prod(w[1:]) * sum(map(bool, wanted[:2]))


def counted_by_torch(
    model: nn.Module, inputs: dict[str, Any], *, backward: bool = True
) -> tuple[int, int]:
    """Return the FLOPs of products, forward and backward, of a real step with attention taken
    apart.
    """
    rules = {torch.ops.aten.convolution_backward: _flops_of_convolution_backward}
    with (
        FlopCounterMode(display=False, custom_mapping=rules) as counter,
        sdpa_kernel(SDPBackend.MATH),
    ):
        outputs = model(**inputs)
        forward = counter.get_total_flops()
        if backward:
            sum(
                tensor.float().sum() for tensor in tensors_of(outputs) if tensor.requires_grad
            ).backward()
    return forward, counter.get_total_flops() - forward
