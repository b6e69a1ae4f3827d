"""A dense network as plain arrays: what the generators write into source and the files hold.

Lesson 17.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from helpers.checks import choice, members, one_of, random_seed, whole_number

ACTIVATIONS = ("identity", "relu", "tanh", "sigmoid", "softmax")

_MODULES: dict[type[nn.Module], str] = dict(
    zip((nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softmax), ACTIVATIONS[1:], strict=True)
)
# a function, or the name of a tensor's method
_FUNCTIONS: dict[Any, str] = {name: name for name in ACTIVATIONS[1:]}
for _library in (torch, functional):
    _FUNCTIONS |= {getattr(_library, name): name for name in ACTIVATIONS[1:]}
_NOTHING_AT_INFERENCE = (nn.Identity, nn.Dropout, nn.Flatten)
_ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11}
# the largest error of rounding a denormal number
_HALF_SMALLEST = {"fp32": 2.0**-150, "fp16": 2.0**-25}
_EVALUATION = 16  # roundings allowed to an activation: exp, a division, what is between
_STEEPEST = {"identity": 1.0, "relu": 1.0, "tanh": 1.0, "sigmoid": 0.25}
_A_NETWORK = "a network of constants, such as standard_network()"
_ACCEPTED = (
    "a chain of nn.Linear, each followed by nothing or by one of ReLU, Tanh, Sigmoid and Softmax "
    "over dim=-1"
)


@dataclass(frozen=True, eq=False)
class Dense:
    """One dense layer: ``activation(inputs @ weights + bias)``.

    ``weights`` is an (inputs, outputs) array, input-major: row i holds what every output takes from
    input i (nn.Linear keeps the transpose). ``bias`` is (outputs,). Both are kept as float32 copies
    that cannot be written to; float64 is accepted where float32 holds every value exactly.
    ``activation`` is one of :data:`ACTIVATIONS`.

    Raises TypeError or ValueError for other types, shapes, activations, and for infinities and NaN.
    Lesson 17.
    """

    weights: np.ndarray
    bias: np.ndarray
    activation: str = "identity"

    def __post_init__(self) -> None:
        weights, bias = _float32(self.weights, "weights", 2), _float32(self.bias, "bias", 1)
        if 0 in weights.shape:
            raise ValueError(
                f"weights has the shape {weights.shape}; a layer has at least one input and one "
                "output"
            )
        if bias.shape != weights.shape[1:]:
            raise ValueError(
                f"bias has {bias.size} numbers, and weights {weights.shape} has {weights.shape[1]} "
                "outputs; weights is (inputs, outputs), the transpose of nn.Linear's"
            )
        choice("activation", self.activation, ACTIVATIONS)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "bias", bias)

    @property
    def inputs(self) -> int:
        """Numbers that go in."""
        return int(self.weights.shape[0])

    @property
    def outputs(self) -> int:
        """Numbers that come out."""
        return int(self.weights.shape[1])


@dataclass(frozen=True, eq=False)
class Network:
    """Dense layers, one after the other.

    Raises ValueError when they do not fit together, TypeError for others.

    Lesson 17.
    """

    layers: tuple[Dense, ...]

    def __post_init__(self) -> None:
        layers = tuple(self.layers)
        if not layers or not all(isinstance(layer, Dense) for layer in layers):
            raise TypeError("layers is at least one Dense")
        for number, (first, second) in enumerate(itertools.pairwise(layers), start=1):
            if first.outputs != second.inputs:
                raise ValueError(
                    f"layer {number} gives {first.outputs} numbers and layer {number + 1} takes "
                    f"{second.inputs}; they must be equal"
                )
        object.__setattr__(self, "layers", layers)

    @property
    def inputs(self) -> int:
        """Numbers of a candidate."""
        return self.layers[0].inputs

    @property
    def outputs(self) -> int:
        """Numbers that come out for a candidate."""
        return self.layers[-1].outputs

    @property
    def widths(self) -> tuple[int, ...]:
        """The inputs, then every layer's outputs: (23, 32, 32, 1)."""
        return (self.inputs, *(layer.outputs for layer in self.layers))

    @property
    def macs(self) -> int:
        """Multiply-adds of one evaluation, the bias not counted: the number of weights."""
        return sum(layer.weights.size for layer in self.layers)

    @property
    def nonzero_weights(self) -> int:
        """Weights that are not zero, biases apart: the multiply-adds that cannot be left out."""
        return sum(int(np.count_nonzero(layer.weights)) for layer in self.layers)

    @property
    def arrays(self) -> list[np.ndarray]:
        """Each layer's weights, and then its bias."""
        return [array for layer in self.layers for array in (layer.weights, layer.bias)]

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return sum(array.size for array in self.arrays)

    def module(self) -> nn.Sequential:
        """Return the same network as PyTorch modules in evaluation mode, float32, on the CPU, its
        weights copied.
        """
        modules: list[nn.Module] = []
        for layer in self.layers:
            # draws no random numbers
            linear = nn.utils.skip_init(nn.Linear, layer.inputs, layer.outputs)
            with torch.no_grad():
                linear.weight.copy_(torch.tensor(layer.weights.T))
                linear.bias.copy_(torch.tensor(layer.bias))
            modules.append(linear)
            modules += [
                kind(dim=-1) if kind is nn.Softmax else kind()
                for kind, name in _MODULES.items()
                if name == layer.activation
            ]
        return nn.Sequential(*modules).eval()


def _float32(values: Any, name: str, dimensions: int) -> np.ndarray:
    if not isinstance(values, np.ndarray) or values.dtype not in (np.float32, np.float64):
        type_name = (
            f"{values.dtype} array" if isinstance(values, np.ndarray) else type(values).__name__
        )
        raise TypeError(f"{name} is a NumPy array of float32 or float64, not {type_name}")
    if values.ndim != dimensions:
        expected_shape = {1: "(outputs,)", 2: "(inputs, outputs)"}[dimensions]
        raise ValueError(f"{name} has the shape {expected_shape}, not {values.shape}")
    with np.errstate(over="ignore", under="ignore"):
        array = np.array(values, dtype=np.float32, order="C")
    for is_wrong, reason in (
        (~np.isfinite(values), "; every number of a network must be finite"),
        (
            array != values,
            ", which float32 does not hold; round it yourself if you mean it: .astype(np.float32)",
        ),
    ):
        if is_wrong.any():
            position = np.argwhere(is_wrong)[0].tolist()
            raise ValueError(f"{name}{position} is {values[tuple(position)]}{reason}")
    array.setflags(write=False)
    return array


def network_of(model: nn.Module | Network) -> Network:
    """Return the dense network that ``model`` computes at inference; a Network is returned as it
    is.

    The model is traced (torch.fx), so layers in nested modules and functions such as ``torch.relu``
    count as well; nn.Identity, nn.Dropout and nn.Flatten do nothing to (N, inputs) at inference and
    are left out. The weights are copied; the model stays as it is.

    Raises TypeError for what is neither, ValueError for a model that is anything else than a chain
    of nn.Linear with ReLU, tanh, sigmoid or softmax, saying at what, and for weights that float32
    does not hold.
    """
    if isinstance(model, Network):
        return model
    if not isinstance(model, nn.Module):
        raise TypeError(f"a model is a torch.nn.Module or a Network, not {type(model).__name__}")
    layers: list[Dense] = []
    activated = True
    for name, step in _steps(model):
        if isinstance(step, nn.Linear):
            layers.append(_dense(step))
            activated = False
        elif activated:
            reason = "follows another activation" if layers else "comes before the first nn.Linear"
            raise ValueError(f"{name} ({step}) {reason}; accepted is {_ACCEPTED}")
        else:
            layers[-1] = replace(layers[-1], activation=step)
            activated = True
    if not layers:
        raise ValueError(f"the model has no nn.Linear; accepted is {_ACCEPTED}")
    return Network(tuple(layers))


def _dense(linear: nn.Linear) -> Dense:
    if nn.parameter.is_lazy(linear.weight):
        raise ValueError(
            "an nn.LazyLinear of the model has no weights yet; run the model once on a real input "
            "first"
        )
    if linear.weight.is_meta:
        raise ValueError(
            "the model's weights are on the meta device and have no values; load them first"
        )
    bias = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
    weights, biases = (
        tensor.detach().to("cpu", torch.float64).numpy() for tensor in (linear.weight, bias)
    )
    return Dense(weights.T, biases)


def _steps(model: nn.Module) -> Iterator[tuple[str, nn.Linear | str]]:
    """Yield the model's steps in the order in which they run: a Linear, or an activation's name."""
    tracer = _Tracer()
    root = nn.Sequential(model) if tracer.is_leaf_module(model, "") else model
    try:
        graph = tracer.trace(root)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{type(model).__name__} cannot be traced ({reason}); accepted is {_ACCEPTED}, for "
            "example in an nn.Sequential"
        ) from error
    modules, before = dict(root.named_modules()), None
    for node in graph.nodes:
        if _is_check(node):
            continue
        if node.op == "placeholder":
            if before is not None:
                raise ValueError(
                    f"the model takes a second input, {node.target!r}; accepted is {_ACCEPTED}"
                )
        elif node.op == "output":
            if node.args[0] is not before:
                raise ValueError(
                    f"the model does not return its last layer's output; accepted is {_ACCEPTED}"
                )
        else:
            if list(node.all_input_nodes) != [before]:
                raise ValueError(
                    f"{_words(node)} does not take the step before it alone; accepted is "
                    f"{_ACCEPTED}"
                )
            operation = _step(node, modules)
            if operation is not None:
                yield _words(node), operation
        before = node


def _is_check(node: torch.fx.Node) -> bool:
    """Return True for a call of a function outside torch whose result nothing uses, such as a check
    of the shape.
    """
    target = node.target
    plain = inspect.isfunction(target) and not target.__module__.startswith("torch")
    return node.op == "call_function" and plain and not node.users


def _words(node: torch.fx.Node) -> str:
    return (
        f"the model's module {node.target!r}"
        if node.op == "call_module"
        else f"the model's step {node.name!r}"
    )


class _Tracer(torch.fx.Tracer):
    """Follow calls into every module but the ones that are known here, whoever defined them."""

    def is_leaf_module(self, module: nn.Module, module_qualified_name: str) -> bool:
        known: tuple[type[nn.Module], ...] = (nn.Linear, *_MODULES, *_NOTHING_AT_INFERENCE)
        return isinstance(module, known) or super().is_leaf_module(module, module_qualified_name)


def _step(node: torch.fx.Node, modules: dict[str, nn.Module]) -> nn.Linear | str | None:
    dimension: object
    if node.op == "call_module":
        module = modules[str(node.target)]
        if isinstance(module, nn.Linear):
            return module
        if isinstance(module, nn.Flatten) and module.start_dim != 1:
            raise ValueError(
                f"{_words(node)} flattens from dimension {module.start_dim}, and with it the "
                "candidates; nn.Flatten() leaves dimension 0 as it is"
            )
        if isinstance(module, _NOTHING_AT_INFERENCE):
            return None
        kind = _MODULES.get(type(module))
        dimension = getattr(module, "dim", None)
        operation = type(module).__name__
    else:
        kind = _FUNCTIONS.get(node.target)
        dimension = node.kwargs.get("dim") if len(node.args) < 2 else node.args[1]
        operation = getattr(node.target, "__name__", str(node.target))
    if kind is None:
        raise ValueError(f"{_words(node)} is {operation}; accepted is {_ACCEPTED}")
    if kind == "softmax" and dimension not in (-1, 1):
        raise ValueError(
            f"{_words(node)} is a softmax over dim={dimension}; over each candidate's outputs it "
            "is dim=-1"
        )
    return kind


def pruned(network: Network, share: float) -> Network:
    """Return the network with the ``share`` of every layer's weights that are nearest to zero set
    to zero.

    ``share`` is from 0 to 1; a layer of n weights loses round(share n), zeros among them counted,
    and keeps its biases. Of equal weights the earlier ones go. Raises ValueError for another share.
    Lesson 17.
    """
    one_of("network", network, Network, _A_NETWORK)
    try:
        removed = float(share)
    except (TypeError, ValueError, OverflowError):
        removed = float("nan")
    if not 0 <= removed <= 1:
        raise ValueError(
            "the share of weights to prune is a number from 0 to 1 (0.9 keeps one in ten), not "
            f"{share!r:.40}"
        )
    return (
        Network(tuple(_prune_layer(layer, removed) for layer in network.layers))
        if removed
        else network
    )


def _prune_layer(layer: Dense, share: float) -> Dense:
    weights = layer.weights.copy()
    order = np.argsort(np.abs(weights), axis=None, kind="stable")
    weights.reshape(-1)[order[: round(share * weights.size)]] = 0.0
    return replace(layer, weights=weights)


def standard_network(seed: int = 0) -> Network:
    """Return the story's network with weights of ``seed``: 23 -> 32 -> 32 -> 1, ReLU, ReLU,
    sigmoid; 1,857 parameters.

    It is of the size of the line-segment network of CMS (SegmentLinking/cmssw, pull request 143),
    its weights drawn as PyTorch draws nn.Linear's; torch's own random state stays as it is. Lesson
    17.
    """
    return random_network((23, 32, 32, 1), ("relu", "relu", "sigmoid"), seed=seed)


def random_network(
    widths: tuple[int, ...], activations: tuple[str, ...], *, seed: int = 0
) -> Network:
    """Return a network of ``widths`` (the inputs, then every layer's outputs) with one of
    ``activations`` a layer.

    Weights and biases are drawn with ``seed``, uniform within 1 / sqrt(inputs) of zero, as
    nn.Linear's are at first. Raises ValueError for widths and activations that do not fit together.
    Lesson 17.
    """
    members("activations", activations, ", ".join(ACTIVATIONS), kind=str)
    for index, width in enumerate(members("widths", widths, "whole numbers")):
        whole_number(f"widths[{index}]", width)
    if len(widths) != len(activations) + 1:
        raise ValueError(
            f"{len(activations)} activations need {len(activations) + 1} widths of at least 1, not "
            f"{widths}"
        )
    random = np.random.default_rng(random_seed(seed))
    layers = []
    for (inputs, outputs), activation in zip(itertools.pairwise(widths), activations, strict=True):
        bound = inputs**-0.5
        weights, bias = (
            random.uniform(-bound, bound, shape).astype(np.float32)
            for shape in ((inputs, outputs), outputs)
        )
        layers.append(Dense(weights, bias, activation))
    return Network(tuple(layers))


def exact_outputs(network: Network, inputs: torch.Tensor) -> torch.Tensor:
    """Return the outputs of PyTorch in float64 for ``inputs`` (N, inputs): float64 (N, outputs).

    Raises ValueError for inputs of another shape. Lesson 17.
    """
    _require_rows(network, inputs)
    with torch.no_grad():
        return network.module().double()(inputs.detach().cpu().double())


def error_bound(network: Network, inputs: torch.Tensor, *, precision: str = "fp32") -> torch.Tensor:
    """Return the distance that a right program's outputs may have from :func:`exact_outputs`,
    float64 (N, outputs).

    A sum of k products of numbers of unit roundoff u is off by at most k u / (1 - k u) times the
    sum of their absolute values, in any order (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd edition, 3.1). What comes from the layer before is passed on by the sizes of the
    weights, then by the steepest slope of the activation (a softmax changes no output by more than
    the largest change of an input). ``inputs`` are (N, inputs) of ``network``; with
    ``precision="fp16"`` they, the weights and the activations are rounded as well. It holds while
    nothing overflows, for float16 at 65,504. Raises ValueError for another precision and for inputs
    of another shape. Lesson 17.
    """
    _require_rows(network, inputs)
    choice("precision", precision, _ROUNDOFF)
    roundoff, smallest = _ROUNDOFF[precision], _HALF_SMALLEST[precision]
    values = inputs.detach().cpu().double()
    errors = torch.zeros_like(values) if precision == "fp32" else values.abs() * roundoff + smallest
    for layer in network.layers:
        values, errors = _propagate(layer, values, errors, roundoff, smallest)
    return errors


def _require_rows(network: Network, inputs: torch.Tensor) -> None:
    one_of("network", network, Network, _A_NETWORK)
    one_of("inputs", inputs, torch.Tensor, "a tensor of shape (N, inputs)")
    if inputs.dim() != 2 or inputs.shape[1] != network.inputs:
        raise ValueError(
            f"inputs has the shape {tuple(inputs.shape)}; the network takes (N, {network.inputs:,})"
        )


def _propagate(
    layer: Dense, values: torch.Tensor, errors: torch.Tensor, roundoff: float, smallest: float
) -> tuple[torch.Tensor, torch.Tensor]:
    weights, bias = (torch.tensor(array).double() for array in (layer.weights, layer.bias))
    largest = values.abs() + errors
    # the products, the bias, and a weight rounded to float16
    rounded = (layer.inputs + 3) * roundoff
    errors = errors @ weights.abs() + rounded / (1 - rounded) * (
        largest @ weights.abs() + bias.abs()
    )
    errors = errors + smallest * (largest.sum(1, keepdim=True) + layer.inputs + 1)
    values = values @ weights + bias
    if layer.activation == "softmax":
        values = values.softmax(1)
        passed = errors.amax(1, keepdim=True).expand_as(errors)
        return values, passed + (layer.outputs + _EVALUATION) * roundoff
    if layer.activation != "identity":
        values = getattr(torch, layer.activation)(values)
    evaluation = 0.0 if layer.activation in ("identity", "relu") else _EVALUATION
    return values, errors * _STEEPEST[
        layer.activation
    ] + evaluation * roundoff * values.abs() + smallest
