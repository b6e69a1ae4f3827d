"""From a model to the source of a program that evaluates it. Lesson 11."""

from __future__ import annotations

from torch import nn

from helpers.studies.constant_weights.cpp_sources import cpp_source
from helpers.studies.constant_weights.cuda_sources import cuda_source
from helpers.studies.constant_weights.network import Network, network_of, pruned

TARGETS = ("cpp", "cuda")


def generate(
    model: nn.Module | Network,
    target: str = "cpp",
    *,
    placement: str | None = None,
    precision: str = "fp32",
    prune: float = 0.0,
    layout: str = "rows",
) -> str:
    """Return the source text of a program that evaluates ``model``: C++ or CUDA C++.

    ``placement`` says where the weights are: one of :data:`CPP_PLACEMENTS` (by default "lanes") or of
    :data:`CUDA_PLACEMENTS` ("const"). ``prune`` sets that share of every layer's weights, those nearest to zero, to
    zero first; where the values are known to the compiler (and in C++ with "pruned") a zero costs no instruction.
    ``precision="fp16"`` and ``layout="columns"`` are CUDA's alone: :func:`cuda_source` says what they are.

    Raises TypeError or ValueError for a model that is no chain of dense layers, an unknown name, and what a placement
    cannot hold. Lesson 11.
    """
    network = network_of(model)
    if target == "cuda":
        where = "const" if placement is None else placement
        return cuda_source(pruned(network, prune), placement=where, precision=precision, layout=layout)
    if target != "cpp":
        raise ValueError(f"target is one of {', '.join(TARGETS)}, not {target!r:.40}")
    if precision != "fp32" or layout != "rows":
        raise ValueError(
            f'in C++ the precision is "fp32" and the layout "rows", not {precision!r:.40} and {layout!r:.40}; '
            'precision="fp16" (HFMA2) and layout="columns" are generated with target="cuda"'
        )
    return cpp_source(network, "lanes" if placement is None else placement, prune)
