"""CUDA C++ of a single layer of 4 inputs and 4 outputs: small enough to follow one weight through
it.

Lesson 17.
"""

from __future__ import annotations

import numpy as np

from helpers.checks import choice
from helpers.studies.constant_weights._cuda_sources import fill

WORDS = {
    "const": "__device__ const float",
    "device": "__device__ float",
    "constant": "__constant__ float",
}
REFERENCES = (
    "const array",
    "const array of arrays",
    "const array, not inlined",
    "two const arrays, not inlined",
    "array without const",
    "array filled later",
    "array filled later, __restrict__",
)
_FLOAT_DIGITS = 9  # enough to tell every float32 from its neighbours
_FILLED_LATER = ", const float (*{}memory)[4][4]"


def layer_weights() -> np.ndarray:
    """Return the weights of the small layer, a float32 (4 inputs, 4 outputs); the last one is
    -0.324.

    Lesson 17.

    >>> layer_weights()[3, 3]
    np.float32(-0.32434437)
    """
    return np.random.default_rng(0).uniform(-0.5, 0.5, (4, 4)).astype(np.float32)


def layer_source(placement: str) -> str:
    """Return the CUDA C++ source of the small layer, a kernel in which one thread computes it for
    one candidate.

    ``placement`` says where the 16 weights are, "const", "device" (the same array without const) or
    "constant". Raises ValueError for another one. Lesson 17.
    """
    words = WORDS[choice("placement", placement, WORDS)]
    return fill("cuda/one_layer.cu", weights=_array(f"{words} weights[4][4]", layer_weights()))


def reference_source(array: str) -> str:
    """Return the source of the small layer computed by a function that takes its weights by
    reference.

    ``array`` is what the reference means, one of :data:`REFERENCES`: an array whose values are in
    the source, with or without const, plain or an array of arrays like std::array; the same with a
    function that is not inlined, called for one array or for two; or an array behind a pointer,
    which somebody has filled before the kernel starts. Raises ValueError for another one. Lesson
    17.
    """
    choice("array", array, REFERENCES)
    weights, parameter = layer_weights(), ""
    words = WORDS["device" if array == "array without const" else "const"]
    declared = {"weights": _array(f"{words} weights[4][4]", weights)}
    if array == "const array of arrays":
        words = "__device__ const array<array<float, 4>, 4>"
        declared = {"weights": _array(f"{words} weights", weights, braces=2)}
    elif array.startswith("two"):
        declared["others"] = _array(f"{words} others[4][4]", -weights)
    elif array.startswith("array filled later"):
        declared = {"*memory": ""}
        parameter = _FILLED_LATER.format("__restrict__ " if array.endswith("__restrict__") else "")
    calls = [f"add_up({name}, inputs + 4 * threadIdx.x, h);" for name in declared]
    return fill(
        "cuda/by_reference.cu",
        weights="\n".join(declared.values()),
        calls=" ".join(calls),
        parameter=parameter,
        inline="__noinline__" if array.endswith("not inlined") else "__forceinline__",
    )


def _array(declaration: str, values: np.ndarray, *, braces: int = 1) -> str:
    rows = (", ".join(f"{value:.{_FLOAT_DIGITS}g}f" for value in row) for row in values)
    lines = ",\n    ".join(f"{{{row}}}" for row in rows)
    return f"{declaration} = {'{' * braces}\n    {lines}{'}' * braces};"
