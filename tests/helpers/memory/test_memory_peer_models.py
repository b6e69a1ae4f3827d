"""Models that we did not write, called as their users call them: transformers with masks and
labels, timm.
"""

from __future__ import annotations

import pytest
import torch
from memory_models import Adam
from torch import nn

from helpers.memory import estimate_peak_memory, measure_peak_memory

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 100}
GATED = SIZES | {"intermediate_size": 64, "num_key_value_heads": 2, "use_cache": False}
SEQ2SEQ = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "use_cache": False,
}
TOKENS = torch.arange(2 * 48).reshape(2, 48) % 100
ONES = torch.ones_like(TOKENS)
PADDED = ONES.clone()
PADDED[0, -5:] = 0


def made(name, config, **sizes):
    # here: every process of the tests reads this file
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, name)(getattr(transformers, config)(**sizes))


def bert():
    return made(
        "BertForMaskedLM", "BertConfig", intermediate_size=64, max_position_embeddings=512, **SIZES
    )


def llama():
    return made("LlamaForCausalLM", "LlamaConfig", **GATED)


def mixtral():
    return made("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, **GATED)


def qwen_moe():
    own = {"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
    return made("Qwen2MoeForCausalLM", "Qwen2MoeConfig", **own, **GATED)


def longformer():
    return made(
        "LongformerModel", "LongformerConfig", attention_window=8, intermediate_size=64, **SIZES
    )


def bart():
    return made("BartModel", "BartConfig", **SEQ2SEQ)


def swin():
    return made(
        "SwinModel",
        "SwinConfig",
        image_size=32,
        embed_dim=24,
        depths=[2],
        num_heads=[2],
        window_size=4,
    )


def of_timm(name, **options):
    return pytest.importorskip("timm").create_model(name, **options)


def with_mask(mask):
    return {"input_ids": TOKENS, "attention_mask": mask}


CASES = {
    "BERT": (bert, with_mask(ONES)),
    "BERT, padded": (bert, with_mask(PADDED)),
    "Llama": (llama, with_mask(ONES)),
    "Llama, padded": (llama, with_mask(PADDED)),
    "Llama, labels": (llama, with_mask(PADDED) | {"labels": TOKENS}),
    "BART": (bart, with_mask(PADDED)),
    "Longformer": (longformer, with_mask(ONES)),
    "Mixtral": (mixtral, with_mask(ONES)),
    "Qwen2-MoE": (qwen_moe, with_mask(PADDED)),
    "Swin": (swin, torch.zeros(2, 3, 32, 32)),
    "timm EfficientNet": (lambda: of_timm("efficientnet_b0", num_classes=4), (2, 3, 32, 32)),
    "timm ConvNeXt": (lambda: of_timm("convnext_atto", num_classes=4), (2, 3, 32, 32)),
    "timm ViT": (lambda: of_timm("vit_tiny_patch16_224", depth=1, img_size=32), (2, 3, 32, 32)),
}
TRAINED = ("BERT", "Llama, labels", "Mixtral", "Swin", "timm ViT")


@pytest.mark.parametrize("name", CASES)
def test_inference_is_exact(name):
    make, inputs = CASES[name]
    estimate = estimate_peak_memory(make(), inputs, training=False)
    assert estimate.peak_bytes == measure_peak_memory(make(), inputs, training=False).peak_bytes
    assert estimate.uncertain == ()


@pytest.mark.parametrize("name", TRAINED)
def test_training_is_exact(name):
    make, inputs = CASES[name]
    how = {"optimizer": Adam, "loss": lambda outputs: outputs[0].sum()}
    estimate = estimate_peak_memory(make(), inputs, **how)
    assert estimate.peak_bytes == measure_peak_memory(make(), inputs, **how).peak_bytes
    assert estimate.uncertain == ()


def test_experts_that_are_chosen_one_by_one_are_refused_with_what_measures_them():
    model = made(
        "MixtralForCausalLM",
        "MixtralConfig",
        num_local_experts=4,
        experts_implementation="eager",
        **GATED,
    )
    with pytest.raises(
        RuntimeError, match=r"looks at the values of a tensor .*measure_peak_memory"
    ):
        estimate_peak_memory(model, with_mask(ONES), training=False)
    assert measure_peak_memory(model, with_mask(ONES), training=False).peak_bytes > 0


class AsksWhetherItIsTraced(nn.Linear):
    """Makes a large mask where its input is a fake tensor, as transformers does."""

    def forward(self, x):
        if isinstance(x, torch._subclasses.FakeTensor):
            return super().forward(x) * torch.ones(1000, *x.shape)
        return super().forward(x)


def test_a_model_that_asks_whether_it_is_traced_is_told_no():
    inputs = (8, 16)
    estimate = estimate_peak_memory(AsksWhetherItIsTraced(16, 16), inputs)
    assert (
        estimate.peak_bytes == measure_peak_memory(AsksWhetherItIsTraced(16, 16), inputs).peak_bytes
    )
