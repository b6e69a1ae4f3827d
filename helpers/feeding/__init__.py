"""Keeping an accelerator fed: input pipelines, starvation, copies that overlap, fair comparisons, checkpoints.

A name is imported from its module when it is first used: a loader's worker loads only what its items need.

Lesson 06.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "FreeItems": "items", "WaitingItems": "items", "FilesOnOneDisk": "items", "ItemCost": "items", "item_cost": "items",
    "DecodedImages": "images", "write_images": "images",
    "LoaderSettings": "loading", "make_loader": "loading", "vary": "loading", "changed": "loading",
    "end_workers": "loading", "workers_end": "loading",
    "simulate_feeding": "pipeline", "SimulatedFeeding": "pipeline", "model_feeding": "pipeline",
    "FeedingModel": "pipeline",
    "SleepingAccelerator": "accelerators", "TrainingAccelerator": "accelerators", "training_step": "accelerators",
    "feed": "starvation", "FeedingRun": "starvation", "EpochFeeding": "starvation", "sweep_feeding": "starvation",
    "FeedingSweep": "starvation", "measure_handover": "starvation",
    "copy_ahead": "copying", "copied_ahead": "copying",
    "Setup": "fairness", "SetupCosts": "fairness", "compare_setups": "fairness", "FairTable": "fairness",
    "model_setup": "fairness", "run_sleeping_setup": "fairness", "run_setup": "fairness", "LECTURE_SETUPS": "fairness",
    "Checkpointer": "checkpoints", "training_state": "checkpoints", "snapshot": "checkpoints",
    "state_bytes": "checkpoints", "measure_save": "stalls", "SaveCost": "stalls", "measure_stalls": "stalls",
    "StallTable": "stalls", "modelled_stall_s": "stalls",
    "young_interval_s": "intervals", "daly_interval_s": "intervals", "optimal_interval_s": "intervals",
    "expected_run_s": "intervals", "simulate_run_s": "intervals",
}  # fmt: skip

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'helpers.feeding' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"helpers.feeding.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
