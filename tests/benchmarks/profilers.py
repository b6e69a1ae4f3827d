"""Our counts beside our peers' on the same models: error against the truth and time
(``make bench NAME=profilers``).

The truth is worked out by hand (multiply-accumulates of convolutions and matrix products). The
peers are thop, fvcore, torchinfo and torch's ``FlopCounterMode``, each used as its manual says, on
the CPU and on a copy of the model, since some of them change it. A peer that fails shows its error
instead of a number.

Then what counting costs: ``profile_ops`` over the bare forward on shapes, and ``count_ops`` over
the step that runs.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from helpers import results
from helpers.models import LeNet
from helpers.operations import count_ops, profile_ops
from tests.helpers.model_zoo import tokens

ROUNDS = 3


@dataclass(frozen=True)
class Row(results.Result):
    """One model counted by one profiler; ``time_ratio`` is its fastest time over that of
    ``profile_ops``.
    """

    model: str
    profiler: str
    forward_macs: int | None
    error: str
    fastest_s: float | None
    time_ratio: float | None


class SelfAttention(nn.MultiheadAttention):
    """Multi-head attention of one sequence to itself, for the peers that take one input."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x, x, x)


IMAGE = (1, 3, 224, 224)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "LeNet": (LeNet, (1, 1, 28, 28), 278_520),
    "AlexNet": (torchvision.models.alexnet, IMAGE, 714_188_480),
    "ResNet-50": (torchvision.models.resnet50, IMAGE, 4_089_184_256),
    "ViT-B/16": (torchvision.models.vit_b_16, IMAGE, 17_563_828_224),
    "MobileNetV2": (torchvision.models.mobilenet_v2, IMAGE, 300_774_272),
    "LSTM": (lambda: nn.LSTM(64, 128, 2, bidirectional=True), (50, 4, 64), 117_964_800),
    "MHA": (lambda: SelfAttention(512, 8, batch_first=True), (2, 196, 512), 489_717_760),
}


def by_us(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Count with this library."""
    return profile_ops(model, shape).forward_macs


def by_thop(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Count with thop."""
    import thop

    return int(thop.profile(model, inputs=(torch.zeros(shape),), verbose=False)[0])


def by_fvcore(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Count with fvcore."""
    from fvcore.nn import FlopCountAnalysis

    logging.getLogger("fvcore").setLevel(logging.ERROR)
    analysis = FlopCountAnalysis(model, torch.zeros(shape)).unsupported_ops_warnings(False)
    return int(analysis.uncalled_modules_warnings(False).total())


def by_torchinfo(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Count with torchinfo."""
    import torchinfo

    return torchinfo.summary(model, input_data=[torch.zeros(shape)], verbose=0).total_mult_adds


def by_flop_counter(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Count with torch's FlopCounterMode."""
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(shape))
    return counter.get_total_flops() // 2


PROFILERS = {"helpers": by_us, "thop": by_thop, "fvcore": by_fvcore, "torchinfo": by_torchinfo,
             "FlopCounterMode": by_flop_counter}  # fmt: skip


def backward_errors() -> dict[str, str]:
    """Return, for a model of grouped convolutions, each counter's backward over the truth."""
    model, shape = torchvision.models.mobilenet_v2(), IMAGE
    profile = profile_ops(model, shape)
    first = next(row.forward_macs for row in profile.layers if row.kind == "Conv2d")
    truth = 2 * MODELS["MobileNetV2"][2] - first
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(shape)).sum().backward()
    theirs = counter.get_total_flops() // 2 - MODELS["MobileNetV2"][2]
    return {
        "helpers": f"{profile.backward_macs / truth:.2f}x",
        "FlopCounterMode": f"{theirs / truth:.2f}x",
    }


def measure() -> list[Row]:
    """Count every model with every profiler, the profilers by turns."""
    rows = []
    for name, (make, shape, truth) in MODELS.items():
        torch.manual_seed(0)
        model = make().eval()
        fastest, counted = dict.fromkeys(PROFILERS, float("inf")), {}
        for _ in range(ROUNDS):
            for profiler, count in PROFILERS.items():
                begin, counted[profiler] = _timed(count, copy.deepcopy(model), shape)
                fastest[profiler] = min(fastest[profiler], begin)
        rows += [_row(name, profiler, counted[profiler], truth, fastest) for profiler in PROFILERS]
    return rows


def _timed(
    count: Callable[..., int], model: nn.Module, shape: tuple[int, ...]
) -> tuple[float, int | Exception]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        begin = time.perf_counter()
        try:
            macs: int | Exception = count(model, shape)
        except Exception as error:
            macs = error
        return time.perf_counter() - begin, macs


def _row(
    model: str, profiler: str, macs: int | Exception, truth: int, fastest: dict[str, float]
) -> Row:
    if isinstance(macs, Exception):
        return Row(model, profiler, None, f"{type(macs).__name__}: {str(macs)[:40]}", None, None)
    error = (
        "0" if macs == truth else "counts 0" if macs == 0 else f"{100 * (macs / truth - 1):+.2g} %"
    )
    return Row(
        model, profiler, macs, error, fastest[profiler], fastest[profiler] / fastest["helpers"]
    )


@dataclass(frozen=True)
class Cost(results.Result):
    """What counting one model takes, over what the model takes itself, both the least of several
    processor times.
    """

    model: str
    profile_ops_ratio: float
    count_ops_ratio: float


def _encoder(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), {
        "src": torch.zeros(2, 16, 64)
    }


def _language_model(name: str, **sizes: int) -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=100, **sizes)
    return transformers.AutoModelForCausalLM.from_config(config), {
        "input_ids": tokens()["input_ids"]
    }


def _timm(name: str, **options: Any) -> tuple[nn.Module, dict[str, Any]]:
    import timm

    return timm.create_model(name, img_size=32, **options), {"x": torch.zeros(2, 3, 32, 32)}


_SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
SMALL_OPERATORS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    **{f"encoder of {layers}": lambda layers=layers: _encoder(layers) for layers in (12, 48, 192)},
    "BERT of 12": lambda: _language_model("Bert", is_decoder=True, **_SMALL),
    "GPT-2 of 12": lambda: _language_model(
        "GPT2", n_embd=32, n_layer=12, n_head=4, bos_token_id=0, eos_token_id=0
    ),
    "Llama of 12": lambda: _language_model("Llama", **_SMALL),
    "ViT-tiny": lambda: _timm("vit_tiny_patch16_224"),
    "Swin-tiny": lambda: _timm("swin_tiny_patch4_window7_224", window_size=2),
    "ResNet-50": lambda: (torchvision.models.resnet50(), {"x": torch.zeros(2, 3, 64, 64)}),
}


def measure_costs() -> list[Cost]:
    """Measure what counting costs for transformers of small operators, and for one network of large
    ones.
    """
    return [_cost(name, *make()) for name, make in SMALL_OPERATORS.items()]


def _cost(name: str, model: nn.Module, given: dict[str, Any]) -> Cost:
    bare = copy.deepcopy(model).to("meta")
    shapes = {key: value.to("meta") for key, value in given.items()}

    def run() -> None:
        outputs = model(**given)
        (outputs if isinstance(outputs, torch.Tensor) else outputs[0]).sum().backward()

    def counted() -> None:
        with count_ops():
            run()

    programs = [lambda: bare(**shapes), lambda: profile_ops(model, given), run, counted]
    fastest = [float("inf")] * len(programs)
    for _ in range(ROUNDS + 1):
        for place, program in enumerate(programs):
            begin = time.process_time()
            program()
            fastest[place] = min(fastest[place], time.process_time() - begin)
    return Cost(name, fastest[1] / fastest[0], fastest[3] / fastest[2])


def main() -> None:
    """Print the tables."""
    frame = pd.DataFrame([row.to_dict() for row in measure()])
    print(results.printed(frame).to_string(index=False))
    print("\nMobileNetV2, backward over the truth:", backward_errors(), "\n")
    torch.set_num_threads(1)  # waiting threads would count as time of the processor
    print(
        pd.DataFrame([cost.to_dict() for cost in measure_costs()]).round(2).to_string(index=False)
    )


if __name__ == "__main__":
    main()
