"""Models of transformers whose code keeps tensors outside of the model, in caches of functools;
nothing is downloaded.

Each entry is a modelling file that has such a cache, and makes a small model of it with random
weights and the keyword arguments of one call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Case = tuple[nn.Module, dict[str, Any]]

_CACHES = re.compile(r"@(?:functools\.)?(?:lru_cache|cache|compile_compatible_method_lru_cache)\b")
_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 16],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage4"],
}
_PYRAMID = {**_RESNET, "out_features": ["stage2", "stage3", "stage4"]}
_RT_RESNET = {
    **_PYRAMID,
    "model_type": "rt_detr_resnet",
    "hidden_sizes": [8, 16, 24, 32],
    "layer_type": "basic",
}
_HGNET = {
    "model_type": "hgnet_v2",
    "stem_channels": [3, 8, 8],
    "stage_in_channels": [8, 8, 16, 24],
    "stage_mid_channels": [8, 8, 8, 8],
    "stage_out_channels": [8, 16, 24, 32],
    "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [1, 1, 1, 1],
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 16, 24, 32],
    "embedding_size": 8,
    "out_features": ["stage2", "stage3", "stage4"],
    "return_idx": [1, 2, 3],
}
_SWIN = {
    "model_type": "swin",
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 1, 2, 2],
    "window_size": 2,
    "image_size": 64,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
_DETR = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": 5,
}
_RT = {
    "encoder_hidden_dim": 16,
    "encoder_in_channels": [16, 24, 32],
    "encoder_layers": 1,
    "encoder_ffn_dim": 32,
    "encoder_attention_heads": 2,
    "d_model": 16,
    "num_queries": 5,
    "decoder_in_channels": [16, 16, 16],
    "decoder_ffn_dim": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "num_denoising": 0,
    "backbone_config": _RT_RESNET,
}
_RT_HGNET = {**_RT, "backbone_config": _HGNET}
_HGNET_4 = {
    **_HGNET,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "return_idx": [0, 1, 2, 3],
}
_VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}


def _made(name: str, **options: Any) -> nn.Module:
    """Return a model of the class ``name`` of transformers, in evaluation mode, its weights always
    the same.
    """
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**options)).eval()


def _image(size: int = 64, batch: int = 1) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))


_TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "projection_dim": 16,
    "max_position_embeddings": 16,
}
_IDS = {
    "input_ids": torch.arange(3, 11)[None],
    "attention_mask": torch.ones(1, 8, dtype=torch.long),
}
_AUDIO = {
    "acoustic_model_config": {
        "model_type": "dac",
        "encoder_hidden_size": 8,
        "decoder_hidden_size": 32,
        "hidden_size": 32,
        "downsampling_ratios": [8, 5, 4, 2],
        "upsampling_ratios": [8, 5, 4, 2],
    },
    "semantic_model_config": {
        "model_type": "hubert",
        **_TEXT,
        "conv_dim": [16] * 7,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
    },
    "codebook_size": 16,
}
_RATIOS = [8, 5, 4, 2, 3]
_AUDIO_24 = {
    **_AUDIO,
    "acoustic_model_config": {
        **_AUDIO["acoustic_model_config"],
        "downsampling_ratios": _RATIOS,
        "upsampling_ratios": _RATIOS,
    },
}
_READING = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
_REPVIT = {"model_type": "timm_wrapper", "architecture": "repvit_m1", "num_classes": 2,
           "model_args": {"in_chans": 3, "features_only": True, "out_indices": [0, 1, 2, 3]}}  # fmt: skip  # noqa: E501
_EDGE = {"model_type": "edgetam_vision_model", "backbone_config": _REPVIT, "fpn_hidden_size": 32,
         "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}  # fmt: skip
# The SAMs: an image encoder, an encoder of prompts, and a decoder of masks.
_PARTS = {"hidden_size": 32, "num_attention_heads": 2, "num_layers": 1, "intermediate_size": 32}
_HIERA = {"hidden_size": 8, "image_size": [64, 64], "blocks_per_stage": [1, 1, 2, 1],
          "embed_dim_per_stage": [8, 16, 32, 64], "num_attention_heads_per_stage": [1, 1, 2, 2],
          "window_size_per_stage": [4, 2, 2, 2], "global_attention_blocks": [3]}  # fmt: skip
_SAM2 = {
    "model_type": "sam2_vision_model",
    "backbone_config": {"model_type": "sam2_hiera_det_model", **_HIERA},
    "backbone_channel_list": [64, 32, 16, 8],
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    "fpn_hidden_size": 32,
}
_SAM3_VIT = {
    "model_type": "sam3_vit_model",
    **_VIT,
    "image_size": 56,
    "patch_size": 14,
    "window_size": 2,
    "global_attn_indexes": [1],
    "pretrain_image_size": 56,
}
_SAM3 = {"model_type": "sam3_vision_model", "backbone_config": _SAM3_VIT, "fpn_hidden_size": 32,
         "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}  # fmt: skip
_SAM3_PARTS = {"geometry_encoder_config": _PARTS, "detr_encoder_config": _PARTS,
               "detr_decoder_config": {**_PARTS, "num_queries": 5},
               "mask_decoder_config": {"hidden_size": 32, "num_attention_heads": 2}}  # fmt: skip
_WIDE = 128  # the memory of a video has 64 channels, and an image more
_MEMORY = {"memory_attention_hidden_size": _WIDE, "memory_attention_num_layers": 1,
           "memory_attention_rope_feat_sizes": [4, 4], "memory_encoder_hidden_size": _WIDE,
           "mask_downsampler_embed_dim": _WIDE, "memory_fuser_embed_dim": _WIDE,
           "memory_fuser_intermediate_dim": 32}  # fmt: skip
_POINTS = {
    "input_points": torch.tensor([[[[20.0, 30.0]]]]),
    "input_labels": torch.ones(1, 1, 1, dtype=torch.long),
}


def _prompts(width: int, patch_size: int = 16) -> dict[str, Any]:
    return {
        "prompt_encoder_config": {
            "hidden_size": width,
            "image_size": 4 * patch_size,
            "patch_size": patch_size,
        },
        "mask_decoder_config": {
            "hidden_size": width,
            "mlp_dim": 32,
            "num_attention_heads": 2,
            "iou_head_hidden_dim": 32,
        },
    }


def _video(name: str, vision: dict[str, Any], patch_size: int = 16, **options: Any) -> Case:
    """Return a model that follows an object through a video, and its second frame, whose memory has
    the first.
    """
    import transformers

    size = 4 * patch_size
    model = _made(
        f"{name}Model",
        vision_config={**vision, "fpn_hidden_size": _WIDE},
        **_prompts(_WIDE, patch_size),
        **_MEMORY,
        image_size=size,
        **options,
    )
    begin = getattr(transformers, f"{name}InferenceSession")
    session = begin(video=_image(size, 2), video_height=size, video_width=size, dtype=torch.float32)
    place = session.obj_id_to_idx(1)
    points = {"point_coords": _POINTS["input_points"], "point_labels": _POINTS["input_labels"]}
    session.add_point_inputs(place, 0, points)
    session.obj_with_new_inputs = [1]
    with torch.no_grad():
        model(inference_session=session, frame_idx=0)
    return model, {"inference_session": session, "frame_idx": 1}


def _of_image(name: str, size: int = 64, **options: Any) -> Callable[[], Case]:
    return lambda: (_made(name, **options), {"pixel_values": _image(size)})


CASES: dict[str, Callable[[], Case]] = {
    "beit": _of_image("BeitModel", 32, **_VIT, use_relative_position_bias=True),
    "conditional_detr": _of_image(
        "ConditionalDetrForObjectDetection", backbone_config=_RESNET, **_DETR
    ),
    "d_fine": _of_image("DFineForObjectDetection", **_RT_HGNET),
    "data2vec": _of_image("Data2VecVisionModel", 32, **_VIT, use_relative_position_bias=True),
    "deformable_detr": _of_image(
        "DeformableDetrForObjectDetection", 96, backbone_config=_PYRAMID, **{**_DETR, "d_model": 32}
    ),
    "deimv2": _of_image("Deimv2ForObjectDetection", **_RT_HGNET),
    "detr": _of_image("DetrForObjectDetection", backbone_config=_RESNET, **_DETR),
    "dinov3_vit": _of_image("DINOv3ViTModel", 32, **_VIT),
    "edgetam": lambda: (
        _made("EdgeTamModel", vision_config=_EDGE, **_prompts(32)),
        {"pixel_values": _image(), **_POINTS},
    ),
    "edgetam_video": lambda: _video(
        "EdgeTamVideo",
        _EDGE,
        memory_attention_rope_k_sizes=[2, 2],
        memory_attention_mlp_hidden_size=32,
        perceiver_resampler_num_latents=4,
        perceiver_resampler_num_latents_2d=4,
    ),
    "efficientloftr": lambda: (
        _made(
            "EfficientLoFTRForKeypointMatching",
            stage_num_blocks=[1, 1, 1, 1],
            out_features=[8, 8, 16, 32],
            hidden_size=32,
            num_attention_layers=1,
            fine_matching_slice_dim=4,
        ),
        {"pixel_values": _image(64, 2)[None]},
    ),
    "eomt_dinov3": _of_image(
        "EomtDinov3ForUniversalSegmentation", 32, **_VIT, num_blocks=1, num_queries=5
    ),
    "higgs_audio_v2_tokenizer": lambda: (
        _made("HiggsAudioV2TokenizerModel", **_AUDIO_24),
        {"input_values": torch.randn(1, 1, 4800)},
    ),
    "mask2former": _of_image("Mask2FormerForUniversalSegmentation", backbone_config=_SWIN),
    "maskformer": _of_image("MaskFormerForInstanceSegmentation", backbone_config=_SWIN),
    "omdet_turbo": lambda: (
        _made(
            "OmDetTurboForObjectDetection",
            backbone_config={**_SWIN, "out_features": ["stage2", "stage3", "stage4"]},
            text_config={"model_type": "clip_text_model", **_TEXT, "hidden_size": 24},
            text_projection_in_dim=24,
            text_projection_out_dim=24,
            task_encoder_hidden_dim=16,
            class_embed_dim=24,
            num_queries=5,
            encoder_hidden_dim=16,
            vision_features_channels=[16, 16, 16],
            encoder_in_channels=[16, 32, 64],
            encoder_attention_heads=2,
            encoder_dim_feedforward=32,
            decoder_hidden_dim=16,
            decoder_num_heads=2,
            decoder_num_layers=1,
            decoder_dim_feedforward=32,
            disable_custom_kernels=True,
            apply_layernorm_after_vision_backbone=False,
        ),
        {
            "pixel_values": _image(),
            "classes_input_ids": _IDS["input_ids"].repeat(2, 1),
            "classes_attention_mask": _IDS["attention_mask"].repeat(2, 1),
            "tasks_input_ids": _IDS["input_ids"],
            "tasks_attention_mask": _IDS["attention_mask"],
            "classes_structure": torch.tensor([2]),
        },
    ),
    "oneformer": lambda: (
        _made(
            "OneFormerForUniversalSegmentation",
            backbone_config=_SWIN,
            num_queries=5,
            task_seq_len=8,
            text_encoder_width=16,
            text_encoder_num_layers=1,
            text_encoder_vocab_size=100,
            conv_dim=32,
            mask_dim=32,
            hidden_dim=32,
            encoder_feedforward_dim=32,
            encoder_layers=1,
            decoder_layers=2,
            num_attention_heads=2,
            dim_feedforward=32,
        ),
        {"pixel_values": _image(), "task_inputs": _IDS["input_ids"].float()},
    ),
    "pp_doclayout_v2": _of_image(
        "PPDocLayoutV2ForObjectDetection",
        **_RT_HGNET,
        reading_order_config=_READING,
        class_thresholds=[0.5, 0.5],
        class_order=[0, 1],
    ),
    "pp_doclayout_v3": _of_image(
        "PPDocLayoutV3ForObjectDetection", x4_feat_dim=8, **{**_RT, "backbone_config": _HGNET_4}
    ),
    "pp_doclayout_v4": _of_image("PPDocLayoutV4ForObjectDetection", **_RT_HGNET),
    "rt_detr": _of_image("RTDetrForObjectDetection", **_RT),
    "rt_detr_v2": _of_image("RTDetrV2ForObjectDetection", **_RT),
    "sam2": lambda: (
        _made("Sam2Model", vision_config=_SAM2, **_prompts(32)),
        {"pixel_values": _image(), **_POINTS},
    ),
    "sam2_video": lambda: _video("Sam2Video", _SAM2),
    "sam3": lambda: (
        _made(
            "Sam3Model",
            vision_config=_SAM3,
            text_config={"model_type": "clip_text_model", **_TEXT},
            **_SAM3_PARTS,
        ),
        {"pixel_values": _image(56), **_IDS},
    ),
    "sam3_lite_text": lambda: (
        _made("Sam3LiteTextModel", vision_config=_SAM3, text_config=_TEXT, **_SAM3_PARTS),
        {"pixel_values": _image(56), **_IDS},
    ),
    "sam3_tracker_video": lambda: _video("Sam3TrackerVideo", _SAM3, 14),
    "sapiens2": _of_image("Sapiens2Model", 32, **_VIT),
    "xcodec": lambda: (_made("XcodecModel", **_AUDIO), {"input_values": torch.randn(1, 1, 3200)}),
}


def files_with_tables() -> list[str]:
    """Return the folders of transformers whose modelling files have a cache of functools."""
    import transformers

    models = Path(transformers.__file__).parent / "models"
    return sorted(
        {
            path.parent.name
            for path in models.glob("*/modeling_*.py")
            if _CACHES.search(path.read_text())
        }
    )
