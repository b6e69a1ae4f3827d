"""What transformers keeps outside of its models, in caches of functools, is as it was after a
profile.
"""

from __future__ import annotations

import copy
import functools
import gc
import importlib.util
import sys
from contextlib import nullcontext

import pytest
import table_zoo
import torch
from torch._subclasses.fake_tensor import FakeTensor

from helpers import memory, operations, steps

CACHE = type(functools.lru_cache(len))
# These could not run any more after a profile, before what it leaves was taken back; the others are
# like them.
HELD = ("dinov3_vit", "eomt_dinov3", "rt_detr", "sapiens2")
# Of the others, those for CI are the quick ones; `make release` runs all.
IN_CI = ("detr", "efficientloftr")
# Its inputs are audio at another rate than the model's, which transformers asks torchaudio to
# change.
WITHOUT_TORCHAUDIO = frozenset(
    {"higgs_audio_v2_tokenizer"} if importlib.util.find_spec("torchaudio") is None else ()
)
FUNCTIONS = {
    "profile_ops": operations.profile_ops,
    "estimate_peak_memory": functools.partial(memory.estimate_peak_memory, training=False),
}
# Their forward goes by values of activations, or of a buffer, and is refused; what was left by then
# is taken back too.
NEEDS_VALUES = {
    "eomt_dinov3": ["estimate_peak_memory"],
    "oneformer": [*FUNCTIONS],
    "pp_doclayout_v2": [*FUNCTIONS],
}


def test_every_file_with_a_table_has_a_model():
    assert sorted(table_zoo.CASES) == table_zoo.files_with_tables()


def _outputs(model, given):
    torch.manual_seed(0)
    with torch.no_grad():
        return [tensor.clone() for tensor in steps.tensors_of(model(**copy.deepcopy(given)))]


def _tables():
    """The caches of functools that modelling files of transformers have, on functions and methods,
    wrapped or not.
    """
    files = [
        vars(module)
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.models.")
    ]
    named = [value for space in files for value in space.values()]
    methods = [value for kind in named if isinstance(kind, type) for value in vars(kind).values()]
    named += [getattr(value, "__func__", value) for value in methods]
    named += [
        cell.cell_contents for value in named for cell in getattr(value, "__closure__", None) or ()
    ]
    caches = {id(value): value for value in named if isinstance(value, CACHE)}
    return [
        cache
        for cache in caches.values()
        if str(cache.__module__).startswith("transformers.models.")
    ]


def _without_data():
    tensors = [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor)]
    return {id(tensor) for tensor in tensors if isinstance(tensor, FakeTensor) or tensor.is_meta}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=() if name in HELD else pytest.mark.ci if name in IN_CI else pytest.mark.release,
        )
        for name in table_zoo.CASES
        if name not in WITHOUT_TORCHAUDIO
    ],
)
def test_a_model_with_a_table_runs_as_before(name):
    model, given = table_zoo.CASES[name]()
    before, there = _outputs(model, given), _without_data()
    assert sum(cache.cache_info().currsize for cache in _tables()) > 0
    for label, function in FUNCTIONS.items():
        for cache in _tables():
            cache.cache_clear()
        with (
            pytest.raises(steps.ModelError, match="values")
            if label in NEEDS_VALUES.get(name, ())
            else nullcontext()
        ):
            function(model, given)
        gc.collect()
        assert _without_data() <= there
        torch.testing.assert_close(_outputs(model, given), before, rtol=0, atol=0, equal_nan=True)
