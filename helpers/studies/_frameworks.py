"""PyTorch's compiler and ONNX Runtime, as the studies time them beside our own programs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch


def freeze(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function that takes the weights as constants, which lets the compiler lay
    them out once.
    """
    from torch._inductor import config

    first = True

    def run(*tensors: torch.Tensor) -> Any:
        nonlocal first
        if not first:
            return compiled(*tensors)
        first = False
        # it is read when the first call compiles
        with config.patch(freezing=True), torch.no_grad():
            return compiled(*tensors)

    return run


def onnx_runtime(make_model: Callable[[], bytes]) -> Callable[[str, torch.Tensor], np.ndarray]:
    """Return a function of an input's name and value that runs an ONNX model on one thread.

    Raises ModuleNotFoundError without the packages onnx and onnxruntime (group peers).
    """
    missing = [name for name in ("onnxruntime", "onnx") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"{' and '.join(missing)} not installed; `make bench` installs the group peers"
        )
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        make_model(), options, providers=["CPUExecutionProvider"]
    )
    return lambda name, value: session.run(None, {name: value.numpy()})[0]


def onnx_model(
    name: str, nodes: Sequence[Any], constants: Sequence[Any], shapes: dict[str, list[str | int]]
) -> bytes:
    """Return a serialised ONNX model of float32; ``shapes`` has those of its input and its
    output, by their names.

    Needs the package onnx (group peers).
    """
    from onnx import TensorProto, helper

    input_info, output_info = (
        helper.make_tensor_value_info(end, TensorProto.FLOAT, shape)
        for end, shape in shapes.items()
    )
    graph = helper.make_graph(nodes, name, [input_info], [output_info], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    return model.SerializeToString()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters; its type's name where it
    has none.
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
