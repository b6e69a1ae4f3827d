"""Several processes that train together: ranks in a notebook, scripts under torchrun, and what their work costs.

A name is imported from its module when it is first used: a rank loads only what it runs.

Lesson 03.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "Ranks": "ranks", "RankError": "failures", "RankState": "failures",
    "torchrun": "scripts", "TorchrunError": "scripts", "ScriptRun": "scripts", "RankOutput": "scripts",
    "sources_of_parallelism": "sources", "cost_on_link": "sources",
    "split_product": "within_layer", "model_split": "within_layer", "sweep_threads": "within_layer",
    "count_lanes": "lanes", "lane_calls": "lanes",
    "train_stale": "updates", "sweep_stale": "updates", "stability_limit": "updates", "least_squares": "problems",
    "simulate_server": "servers", "run_server": "servers", "run_hogwild": "servers", "count_lost_updates": "races",
    "train_local": "local", "sweep_local": "local",
    "make_ensemble": "ensembles", "train_in_loop": "ensembles", "train_stacked": "ensembles",
    "train_in_processes": "ensembles", "sweep_crossover": "ensembles",
    "collective": "collectives", "simulate": "collectives", "execute": "execution",
    "measure_message_overhead": "execution", "Link": "links", "Recorder": "links", "joined": "links",
    "SleepingLayer": "devices", "slow_link": "devices", "step_times": "devices", "fastest_step_s": "devices",
    "LayerCost": "costs", "ddp_step": "costs", "schedule": "costs", "count_collectives": "counting",
    "shard": "data_parallel", "average_gradients": "data_parallel", "equal_to_single_process": "data_parallel",
    "available_links": "namespaces", "on_two_machines": "namespaces", "FIRST_MACHINE": "namespaces",
    "pipeline_schedule": "schedules", "PipelineSchedule": "schedules", "PipelineAction": "schedules",
    "bubble_ratio": "schedules", "bubble_share": "schedules", "live_activations": "schedules",
    "execute_schedule": "pipeline_execution", "sleeping_net": "pipeline_execution",
    "compare_with_one_process": "pipeline_execution",
    "Layout": "footprint", "count_footprint": "footprint",
    "estimate_footprint": "footprint_runs", "measure_footprint": "footprint_runs",
    "choose": "choosing", "strategy_step": "strategy_costs", "strategy_traffic": "strategy_costs",
    "LayerWork": "strategy_costs", "layer_work": "strategy_work", "tensor_plan": "strategy_work",
    "execute_strategies": "strategy_execution", "train_alone": "strategy_execution",
    "AlexNetTower": "towers", "model_towers": "towers", "compare_towers": "towers", "gather_towers": "towers",
    "make_mesh": "tensor_parallel", "split_layers": "tensor_parallel", "model_tensor_traffic": "tensor_parallel",
    "compare_tensor_parallel": "tensor_parallel", "FlopCount": "tensor_parallel",
    "ring_attention": "ring", "merge_blocks": "ring", "model_ring_traffic": "ring",
    "compare_ring_attention": "ring", "split_sequence": "ring",
    "Experts": "experts", "route": "experts", "exchange_of": "experts", "model_expert_traffic": "experts",
    "compare_experts": "experts",
}  # fmt: skip

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'helpers.parallel' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"helpers.parallel.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
