"""How far a generated program may be from the exact network: a bound for any order of its sums. Lesson 11."""

from __future__ import annotations

import torch

from helpers.studies.constant_weights.network import Dense, Network

_ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11}
_HALF_SMALLEST = {"fp32": 2.0**-150, "fp16": 2.0**-25}  # the largest error of rounding a denormal number
_EVALUATION = 16  # roundings allowed to an activation: exp, a division, what is between
_STEEPEST = {"identity": 1.0, "relu": 1.0, "tanh": 1.0, "sigmoid": 0.25}


def exact_outputs(network: Network, inputs: torch.Tensor) -> torch.Tensor:
    """Return what PyTorch computes in float64 for ``inputs`` (N, inputs): float64 (N, outputs). Lesson 11."""
    with torch.no_grad():
        return network.module().double()(inputs.detach().cpu().double())


def error_bound(network: Network, inputs: torch.Tensor, *, precision: str = "fp32") -> torch.Tensor:
    """Return, float64 (N, outputs), how far the outputs of a right program may be from :func:`exact_outputs`.

    A sum of k products of numbers of unit roundoff u is off by at most k u / (1 - k u) times the sum of their absolute
    values, in any order (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, 3.1). What comes from the
    layer before is passed on by the sizes of the weights, then by the steepest slope of the activation (a softmax
    changes no output by more than the largest change of an input). With "fp16" the inputs, weights and activations are
    rounded as well. It holds while nothing overflows, for float16 at 65,504. Raises ValueError for another precision.
    Lesson 11.
    """
    if precision not in _ROUNDOFF:
        raise ValueError(f"precision is one of {', '.join(_ROUNDOFF)}, not {precision!r:.40}")
    roundoff, smallest = _ROUNDOFF[precision], _HALF_SMALLEST[precision]
    values = inputs.detach().cpu().double()
    errors = torch.zeros_like(values) if precision == "fp32" else values.abs() * roundoff + smallest
    for layer in network.layers:
        values, errors = _through(layer, values, errors, roundoff, smallest)
    return errors


def _through(
    layer: Dense, values: torch.Tensor, errors: torch.Tensor, roundoff: float, smallest: float
) -> tuple[torch.Tensor, torch.Tensor]:
    weights, bias = torch.from_numpy(layer.weights.copy()).double(), torch.from_numpy(layer.bias.copy()).double()
    largest = values.abs() + errors
    rounded = (layer.inputs + 3) * roundoff  # the products, the bias, and a weight rounded to float16
    errors = errors @ weights.abs() + rounded / (1 - rounded) * (largest @ weights.abs() + bias.abs())
    errors = errors + smallest * (largest.sum(1, keepdim=True) + layer.inputs + 1)
    values = values @ weights + bias
    if layer.activation == "softmax":
        values = values.softmax(1)
        passed = errors.amax(1, keepdim=True).expand_as(errors)
        return values, passed + (layer.outputs + _EVALUATION) * roundoff
    if layer.activation != "identity":
        values = getattr(torch, layer.activation)(values)
    evaluation = 0.0 if layer.activation in ("identity", "relu") else _EVALUATION
    return values, errors * _STEEPEST[layer.activation] + evaluation * roundoff * values.abs() + smallest
