"""A small network whose weights stand in the program: from the source to the machine instruction, and back to a file.

``generate`` writes the program, ``build`` compiles it, ``census`` counts what became of the weights; ``save`` and
``load`` keep networks in files, and ``Specialised`` serves one from a file at the speed of constants.

A name is imported from its module when it is first used. Lesson 11.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "ACTIVATIONS": "network", "Dense": "network", "Network": "network", "network_of": "network", "pruned": "network",
    "random_network": "network", "standard_network": "network", "error_bound": "accuracy",
    "exact_outputs": "accuracy", "generate": "generating", "build": "building", "CudaProgram": "building",
    "census": "counting", "count_placements": "counting", "count_widths": "counting",
    "recorded_counts": "counting", "PlacementCount": "counting",
    "PlacementCounts": "counting", "WeightCensus": "counting", "save": "files", "load": "files",
    "CUDA_PLACEMENTS": "cuda_sources", "CPP_PLACEMENTS": "cpp_sources", "CppProgram": "cpp_building",
    "cpp_program": "cpp_building", "CudaFunction": "cuda_running", "cuda_function": "cuda_running",
    "CudaTime": "cuda_timing", "CudaTimes": "cuda_timing", "measure_cuda": "cuda_timing",
    "measure_growth": "cuda_timing", "Serving": "specialised", "Specialised": "specialised",
    "PeerTimes": "peers", "measure_peers": "peers", "best_placement": "specialised", "CppCensus": "counting",
}  # fmt: skip

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        known = ", ".join(__all__)
        raise AttributeError(f"module 'helpers.studies.constant_weights' has no attribute {name!r}; it has {known}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
