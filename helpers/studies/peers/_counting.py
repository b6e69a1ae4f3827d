"""Other counters of operations on the same models: their counts, beside the truth worked out by
hand.

Lesson 11.
"""

from __future__ import annotations

import contextlib
import copy
import html
import io
import logging
import math
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from helpers.models import LeNet
from helpers.operations._profile import profile_ops
from helpers.results import Record

_IMAGE = (1, 3, 224, 224)
_CLOSE = 0.02  # an error below it is amber, above it red
_COLOURS = {"exact": "#009E73", "close": "#E69F00", "wrong": "#D55E00"}


class PeerCount(Record):
    """The count of one profiler for one model; ``counted_macs`` is None where it failed, and
    ``problem`` says how.
    """

    model: str
    profiler: str
    true_macs: int
    counted_macs: int | None
    problem: str = ""

    @property
    def error(self) -> str:
        """The error as a reader sees it: '0', 'counts 0', '+1.4 %', or the kind of exception."""
        if self.counted_macs is None:
            return self.problem
        if self.counted_macs == self.true_macs:
            return "0"
        if self.counted_macs == 0:
            return "counts 0"
        percent = 100 * (self.counted_macs / self.true_macs - 1)
        return f"{percent:+,.0f} %" if abs(percent) >= 10 else f"{percent:+.2g} %"

    @property
    def verdict(self) -> str:
        """'exact', 'close' (within 2 %) or 'wrong'."""
        if self.counted_macs == self.true_macs:
            return "exact"
        off = math.inf if self.counted_macs is None else abs(self.counted_macs / self.true_macs - 1)
        return "close" if off < _CLOSE else "wrong"


class PeerTable(Record):
    """The forward MACs of several models by several profilers; shown as a table of errors, coloured
    by their size.

    ``not_installed`` names the profilers that this machine did not have. Lesson 11.
    """

    not_installed: tuple[str, ...]
    counts: tuple[PeerCount, ...]

    def __str__(self) -> str:
        return (
            "error of the forward MACs against the "
            f"truth\n{self.errors().to_string()}\n{self._missing_text()}"
        )

    def _repr_html_(self) -> str:
        errors = self.errors()
        verdicts = {(count.profiler, count.model): count.verdict for count in self.counts}
        head = "".join(
            f"<th style='text-align:right'>{html.escape(str(name))}</th>" for name in errors.columns
        )
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(str(model))}</th>"
            + "".join(
                _colour_cell(errors.loc[model, name], verdicts[name, model])
                for name in errors.columns
            )
            + "</tr>"
            for model in errors.index
        )
        return (
            f"<div><table><thead><tr><th style='text-align:left'>MACs</th>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table><div>{html.escape(self._missing_text())}</div></div>"
        )

    def errors(self) -> pd.DataFrame:
        """Return the errors as text, one row a model, one column a profiler."""
        errors: dict[str, dict[str, str]] = {}
        for count in self.counts:
            errors.setdefault(count.profiler, {})[count.model] = count.error
        return pd.DataFrame(errors)

    def _missing_text(self) -> str:
        return f"not installed where this was recorded: {', '.join(self.not_installed) or 'none'}"


def _colour_cell(text: str, verdict: str) -> str:
    colour = f"color-mix(in srgb,{_COLOURS[verdict]} 35%,transparent)"
    return (
        "<td "
        f"style='text-align:right;white-space:nowrap;background:{colour}'>{html.escape(text)}</td>"
    )


class _SelfAttention(nn.MultiheadAttention):
    """Multi-head attention of one sequence to itself, for the peers that take one input."""

    def forward(self, x: torch.Tensor) -> Any:  # type: ignore[override]  # query, key and value are one
        return super().forward(x, x, x)


def _torchvision() -> ModuleType:
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        # RuntimeError: a torchvision built for another torch
        raise ModuleNotFoundError(
            f"four of the models come with torchvision, which does not import here ({error}); "
            f"install the torchvision that belongs to torch {torch.__version__}",
            name="torchvision",
        ) from error
    return torchvision


def _vision(name: str) -> Callable[[], nn.Module]:
    return lambda: _torchvision().models.get_model(name)


# A model, its input, and its MACs by hand: multiply-accumulates of convolutions and matrix
# products, without bias.
_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "LeNet": (LeNet, (1, 1, 28, 28), 278_520),
    "AlexNet": (_vision("alexnet"), _IMAGE, 714_188_480),
    "ResNet-50": (_vision("resnet50"), _IMAGE, 4_089_184_256),
    "MobileNetV2": (_vision("mobilenet_v2"), _IMAGE, 300_774_272),
    "ViT-B/16": (_vision("vit_b_16"), _IMAGE, 17_563_828_224),
    "LSTM": (lambda: nn.LSTM(64, 128, 2, bidirectional=True), (50, 4, 64), 117_964_800),
    "attention": (lambda: _SelfAttention(512, 8, batch_first=True), (2, 196, 512), 489_717_760),
}


def count_with_peers() -> PeerTable:
    """Count each model with this library and with every peer that is installed, on the CPU, for
    lesson 11's record.

    The peers are thop, fvcore, torchinfo, DeepSpeed's profiler and torch's ``FlopCounterMode``,
    each on a copy of the model, since some change it. Raises ModuleNotFoundError without
    torchvision, before anything is counted.
    """
    _torchvision()
    counts, missing = [], []
    for model_name, (make, shape, truth) in _MODELS.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = make().eval()
        for profiler, count in _PROFILERS.items():
            if profiler not in missing:
                try:
                    counts.append(
                        _count(model_name, profiler, truth, count, copy.deepcopy(model), shape)
                    )
                except ModuleNotFoundError:
                    missing.append(profiler)
    return PeerTable(not_installed=tuple(missing), counts=tuple(counts))


def _count(
    model_name: str,
    profiler: str,
    truth: int,
    count: Callable[..., int],
    model: nn.Module,
    shape: tuple[int, ...],
) -> PeerCount:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return PeerCount(model_name, profiler, truth, count(model, shape))
        except ModuleNotFoundError:
            raise
        except Exception as error:  # whatever a peer raises is what the table says of it
            return PeerCount(model_name, profiler, truth, None, type(error).__name__)


def _by_thop(model: nn.Module, shape: tuple[int, ...]) -> int:
    import thop

    return int(thop.profile(model, inputs=(torch.zeros(shape),), verbose=False)[0])


def _by_fvcore(model: nn.Module, shape: tuple[int, ...]) -> int:
    from fvcore.nn import FlopCountAnalysis

    logging.getLogger("fvcore").setLevel(logging.ERROR)
    analysis = FlopCountAnalysis(model, torch.zeros(shape)).unsupported_ops_warnings(False)
    return int(analysis.uncalled_modules_warnings(False).total())


def _by_torchinfo(model: nn.Module, shape: tuple[int, ...]) -> int:
    import torchinfo

    return torchinfo.summary(model, input_data=[torch.zeros(shape)], verbose=0).total_mult_adds


def _by_deepspeed(model: nn.Module, shape: tuple[int, ...]) -> int:
    from deepspeed.profiling.flops_profiler import get_model_profile

    return int(
        get_model_profile(model, args=[torch.zeros(shape)], print_profile=False, as_string=False)[1]
    )


def _by_flop_counter(model: nn.Module, shape: tuple[int, ...]) -> int:
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(shape))
    return counter.get_total_flops() // 2


_PROFILERS: dict[str, Callable[[nn.Module, tuple[int, ...]], int]] = {
    "helpers": lambda model, shape: profile_ops(model, shape).forward_macs,
    "thop": _by_thop,
    "fvcore": _by_fvcore,
    "torchinfo": _by_torchinfo,
    "DeepSpeed": _by_deepspeed,
    "torch": _by_flop_counter,
}
