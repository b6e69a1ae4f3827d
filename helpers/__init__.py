"""Helpers of the course on the hardware under deep learning: profiling, memory and timing on CPU and CUDA.

``import helpers`` loads nothing heavy: a name is imported from its module when it is first used.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_HOMES = {
    "units": "", "results": "", "storage": "", "isolation": "", "timing": "", "hardware": "", "data": "",
    "models": "", "training": "", "recorded": "", "plotting": "", "widgets": "", "operations": "", "memory": "",
    "profiling": "", "doctor": "", "native": "", "exercises": "", "roofline": "", "simulators": "", "studies": "",
    "measure": "timing", "compare": "timing", "steady_allocator": "timing",
    "machine_card": "hardware", "probe": "hardware",
    "make_MNIST_loader": "data",
    "LeNet": "models", "BasicFCModel": "models", "AlexNet": "models",
    "train": "training", "gpu_train": "training", "estimate_training_for": "training",
    "predict": "widgets", "progress": "widgets", "interactive_figure": "widgets",
    "run_limited": "isolation",
    "parallel": "", "Ranks": "parallel", "feeding": "",
    "profile_ops": "operations",
    "profile_layer_mem": "memory", "profile_mem": "memory", "profile_layer_alexnet": "memory",
    "estimate_peak_memory": "memory", "measure_peak_memory": "memory", "fits": "memory", "max_batch_size": "memory",
    "profile_time": "profiling", "kernel_table": "profiling", "estimate_step_time": "profiling",
}  # fmt: skip

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'helpers' has no attribute {name!r}; it has {', '.join(__all__)}")
    home = _HOMES[name]
    module = importlib.import_module(f"helpers.{home or name}")
    return getattr(module, name) if home else module


def __dir__() -> list[str]:
    return __all__
