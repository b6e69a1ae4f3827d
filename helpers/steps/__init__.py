"""One grammar for what is counted, measured and timed: a model, its inputs, and one step of it.

``inputs`` is a shape (batch first; a tensor of the model's type), a tuple of shapes, a tensor, a tuple of positional
arguments with a tensor among them, or a dict of keyword arguments; without any it is the shape that the model names
itself, ``model.example_shape``. It may be given as ``shape=`` as well. What cannot be handled raises TypeError or
ValueError where the argument is wrong, and :class:`ModelError` where the model is.

Lesson 07.
"""

from helpers.steps.inputs import (
    Arguments,
    ForwardError,
    Inputs,
    ModelError,
    Shape,
    arguments_of,
    check_model,
    described,
    device_of,
    dtype_of,
    tensors_of,
)
from helpers.steps.preserve import preserved, undisturbed
from helpers.steps.running import (
    PARTS,
    Loss,
    OptimizerFactory,
    Options,
    Step,
    check_optimizer,
    copied,
    drop_gradients,
    first_line,
    kept_tensors,
    made_optimizer,
    run,
    step,
    sum_of_outputs,
    warm_step,
    with_optimizer,
)

__all__ = [
    "PARTS", "Arguments", "ForwardError", "Inputs", "Loss", "ModelError", "OptimizerFactory", "Options", "Shape",
    "Step", "arguments_of", "check_model", "check_optimizer", "copied", "described", "device_of", "drop_gradients",
    "dtype_of", "first_line", "kept_tensors", "made_optimizer", "preserved", "run", "step", "sum_of_outputs",
    "tensors_of", "undisturbed", "warm_step", "with_optimizer",
]  # fmt: skip
