"""Profilers held to a model of each family of timm and transformers (``make bench NAME=sweep``).

``python -m tests.benchmarks.sweep timm 1/4`` takes a quarter of one library,
``... transformers 2/4 llama`` what has "llama" in its name. For each model the multiply-accumulates
of a forward and a backward pass on shapes are compared with what ``FlopCounterMode`` counts in a
real run, and so are those that ``count_ops`` sees in it; for a language model those of a decoding
step with a cache as well, which must come back as it was. Afterwards the model runs again, and must
give what it gave before it was profiled.

Nothing is downloaded: weights are random, and configurations of transformers are made small.
"""

from __future__ import annotations

import copy
import functools
import random
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from helpers import results
from helpers.memory import estimate_peak_memory
from helpers.operations import count_ops, profile_ops
from helpers.steps import ModelError, tensors_of
from tests.helpers.model_zoo import counted_by_torch, tokens

LARGEST = 30e6  # parameters
TOO_LARGE = 300e6
TRIES = 6
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "d_model": 32,
    "n_layer": 2,
    "n_embd": 32,
    "n_head": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "rotary_dim": 8,
    "n_group": 1,
    "topk_group": 1,
}
# Tried in turn until a model trains: hybrid models have attention in every fourth layer or so, and
# some configurations work sizes out themselves.
CHANGES: tuple[dict[str, Any], ...] = (
    {}, {"num_key_value_heads": 4}, {"num_hidden_layers": 4}, {"num_hidden_layers": 8},
    {"head_dim": None}, {"head_dim": None, "num_key_value_heads": None, "num_hidden_layers": 4},
    {"head_dim": None, "hidden_size": 64, "num_hidden_layers": None},
)  # fmt: skip
YES, NO = "equal", "differs"
Given = dict[str, Any]
Maker = Callable[[], tuple[nn.Module, Given]]


@dataclass(frozen=True)
class Row(results.Result):
    """One model: whether counts equal those of a real run, whether it runs as before, and what was
    said instead.
    """

    model: str
    forward: str = ""
    backward: str = ""
    count_ops: str = ""
    cache: str = ""
    again: str = ""
    refused: str = ""


def timm_models() -> Iterator[tuple[str, list[Maker]]]:
    """Yield a model of each module of timm, of at most 30 million parameters where one of six tries
    is.
    """
    import timm

    for module in sorted(timm.list_modules()):
        names = timm.list_models(module=module)
        if not names:
            continue

        def make(names: list[str] = names, module: str = module) -> tuple[nn.Module, Given]:
            chosen = random.Random(module).sample(names, min(TRIES, len(names)))
            sizes = {name: _parameters(name) for name in chosen}
            name = next(
                (name for name, size in sizes.items() if size <= LARGEST), min(sizes, key=sizes.get)
            )
            if sizes[name] > TOO_LARGE:
                raise ValueError(
                    f"{name} has {sizes[name]:,} parameters: a real step takes more memory than is "
                    "here"
                )
            model = timm.create_model(name)
            return model, {"x": torch.randn(1, *model.pretrained_cfg["input_size"])}

        yield module, [make]


def _parameters(name: str) -> int:
    import timm

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in timm.create_model(name).parameters())


def transformers_models() -> Iterator[tuple[str, list[Maker]]]:
    """Yield the language model of each family of transformers in several sizes, with a padded batch
    and labels.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as known

    for config in sorted(known.keys(), key=lambda kind: kind.__name__):

        def make(changes: dict[str, Any], config: type = config) -> tuple[nn.Module, Given]:
            default, sizes = config(), SMALL | changes
            options = {
                name: size
                for name, size in sizes.items()
                if size is not None and hasattr(default, name)
            }
            with torch.device("meta"):
                size = sum(
                    parameter.numel() for parameter in known[config](config(**options)).parameters()
                )
            if size > LARGEST:
                raise ValueError(f"{size:,} parameters: it has parts that these sizes do not reach")
            return known[config](config(**options)), tokens()

        yield (
            config.__name__.removesuffix("Config"),
            [functools.partial(make, changes) for changes in CHANGES],
        )


LIBRARIES = {"timm": timm_models, "transformers": transformers_models}


def _loss(outputs: Any) -> Tensor:
    return sum(tensor.float().sum() for tensor in tensors_of(outputs) if tensor.requires_grad)


def _outputs(model: nn.Module, given: Given) -> list[Tensor]:
    with torch.no_grad():
        return tensors_of(model(**given))


def _answer(ours: Any, theirs: Any) -> str:
    return YES if ours == theirs else f"{NO}: {ours} {theirs}"


def held(name: str, makers: list[Maker]) -> Row:
    """Return the row of the first model that trains; where none does without us, it is "not
    made".
    """
    problems = []
    for make in makers:
        torch.manual_seed(0)
        try:
            model, given = make()
            model.eval()
            before = _outputs(model, copy.deepcopy(given))
            _loss(model(**copy.deepcopy(given))).backward()
            break
        except Exception as error:  # whatever a configuration of ours makes a model raise
            problems.append(f"{type(error).__name__}: {str(error)[:60]}".replace("\n", " "))
    else:
        return Row(name, refused=f"not made: {problems[0]}")
    said = ""
    try:
        profile = profile_ops(model, given)
    except ModelError as error:
        said = str(error)
        try:
            profile = profile_ops(model, given, values=True)
        except ModelError as second:
            return Row(name, refused=f"{said}; {second}")
    try:
        estimate_peak_memory(model, given, training=False)
    except ModelError as error:
        said = f"{said}; {error}".lstrip("; ")
    cache, cache_is_kept = _with_cache(model, given)
    after = _outputs(model, copy.deepcopy(given))
    is_again = len(before) == len(after) and all(map(_same, before, after)) and cache_is_kept
    if profile.may_hold_products:
        said = f"{said}; no rule for {', '.join(profile.may_hold_products)}".lstrip("; ")
    with count_ops() as ops:
        _loss(model(**copy.deepcopy(given))).backward()
    counted = ops.profile()
    # torch counts no grouped product, and every other one
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    has_recurrence = any(isinstance(module, nn.RNNBase) for module in model.modules())
    # torch counts no oneDNN LSTM
    with torch.backends.mkldnn.flags(enabled=False) if has_recurrence else nullcontext():
        forward, backward = counted_by_torch(model, copy.deepcopy(given))
    return Row(
        model=name,
        forward=_answer(2 * profile.forward_macs, forward),
        backward=_answer(2 * profile.backward_macs, backward),
        count_ops=_answer(
            (counted.forward_macs, counted.backward_macs),
            (profile.forward_macs, profile.backward_macs),
        ),
        cache=cache,
        again=YES if is_again else NO,
        refused=said,
    )


def _same(first: Tensor, second: Tensor) -> bool:
    return (
        torch.equal(first.nan_to_num(), second.nan_to_num())
        if first.is_floating_point()
        else first.equal(second)
    )


def _with_cache(model: nn.Module, given: Given) -> tuple[str, bool]:
    """Count one decoding step; tell whether the count is torch's, and whether the cache came back
    as it was.
    """
    if "input_ids" not in given:
        return "", True
    with torch.no_grad():
        cache = getattr(
            model(input_ids=given["input_ids"], use_cache=True), "past_key_values", None
        )
    if cache is None:
        return "none", True
    step = {"input_ids": given["input_ids"][:, :1], "past_key_values": cache, "use_cache": True}
    before = tensors_of(cache), [tensor.clone() for tensor in tensors_of(cache)]
    try:
        ours = profile_ops(model, step).forward_macs
        estimate_peak_memory(model, step, training=False)
    except ModelError as error:
        return f"refused: {error}", True
    held_now = tensors_of(cache)
    is_kept = len(held_now) == len(before[0]) and all(
        a is b for a, b in zip(held_now, before[0], strict=True)
    )
    is_kept = is_kept and all(map(_same, held_now, before[1]))
    reference = copy.deepcopy(model)
    if hasattr(reference, "set_experts_implementation"):
        reference.set_experts_implementation("eager")
    with torch.no_grad():
        theirs, _ = counted_by_torch(reference, copy.deepcopy(step), backward=False)
    return _answer(2 * ours, theirs), is_kept


def counts(rows: list[Row]) -> pd.DataFrame:
    """Return for each column how many models have each answer."""
    table: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for column in ("forward", "backward", "count_ops", "cache", "again"):
            answer = getattr(row, column).partition(":")[0]
            table[column][
                answer or ("not made" if row.refused.startswith("not made") else "-")
            ] += 1
    return pd.DataFrame(table).T.fillna(0).astype(int)


def _line(row: Row) -> str:
    answers = [
        f"{column} {getattr(row, column)}"
        for column in ("forward", "backward", "count_ops", "cache", "again")
    ]
    shown = ", ".join(answer for answer in answers if not answer.endswith(" "))
    return f"{row.model:<24} {shown}" + (f" ({row.refused})" if row.refused else "")


def main(library: str = "", part: str = "1/1", only: str = "") -> None:
    """Print a line for each model, and the counts of all."""
    warnings.simplefilter("ignore")
    place, parts = map(int, re.fullmatch(r"(\d+)/(\d+)", part).groups())
    for name in [library] if library else LIBRARIES:
        models = [pair for pair in LIBRARIES[name]() if only.lower() in pair[0].lower()][
            place - 1 :: parts
        ]
        rows = []
        for model, makers in models:
            rows.append(held(model, makers))
            print(_line(rows[-1]), flush=True)
        print(f"{name}, {len(rows)} models\n{counts(rows).to_string()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
