"""No profiler leaves anything behind: inputs of any class, tables outside models, and what a timing
begins with.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import gc
import queue
import types
import weakref

import model_zoo
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from helpers import memory, operations, profiling
from helpers.steps import ModelError, _outside as outside
from helpers.studies import working_set

FUNCTIONS = {
    "profile_ops": operations.profile_ops,
    "profile_ops values": functools.partial(operations.profile_ops, values=True),
    "estimate_peak_memory": memory.estimate_peak_memory,
    "measure_peak_memory": memory.measure_peak_memory,
    "profile_layer_mem": memory.profile_layer_mem,
    "profile_mem": working_set.profile_mem,
    "fits": functools.partial(memory.fits, memory_bytes=10**9),
    "profile_time": functools.partial(profiling.profile_time, budget_s=1e-6),
    "estimate_step_time": functools.partial(profiling.estimate_step_time, budget_s=1e-6),
}
ON_SHAPES = ("profile_ops", "estimate_peak_memory", "profile_layer_mem", "profile_mem", "fits")
each_function = pytest.mark.parametrize("name", FUNCTIONS)


# Holders of a tensor "x" and of a history "seen", which a forward makes longer.


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    seen: list


@dataclasses.dataclass(slots=True)
class SlottedBatch:
    x: torch.Tensor
    seen: list


class Plain:
    def __init__(self, x, seen):
        self.x, self.seen = x, seen


class Graph(collections.UserDict):
    """As a batch of graphs keeps its tensors: in a dictionary within, shown as attributes."""

    def __init__(self, x, seen):
        super().__init__(store=[{"x": x, "seen": seen}])

    x = property(lambda self: self["store"][0]["x"], lambda self, x: self["store"][0].update(x=x))
    seen = property(lambda self: self["store"][0]["seen"])


class Flattened:
    __slots__ = ("parts",)

    def __init__(self, x, seen):
        self.parts = (x, seen)

    x = property(
        lambda self: self.parts[0], lambda self, x: setattr(self, "parts", (x, self.parts[1]))
    )
    seen = property(lambda self: self.parts[1])


pytree.register_pytree_node(
    Flattened, lambda held: (list(held.parts), None), lambda parts, _: Flattened(*parts)
)


class Inner(collections.namedtuple("Inner", "batch")):
    x = property(lambda self: self.batch.x, lambda self, x: setattr(self.batch, "x", x))
    seen = property(lambda self: self.batch.seen)


class Partial(functools.partial):
    x = property(lambda self: self.args[0].x, lambda self, x: setattr(self.args[0], "x", x))
    seen = property(lambda self: self.args[0].seen)


HOLDERS = {
    "a dataclass": Batch,
    "a dataclass with slots": SlottedBatch,
    "an object": Plain,
    "a namespace": lambda x, seen: types.SimpleNamespace(x=x, seen=seen),
    "a batch of graphs": Graph,
    "a class known to pytree": Flattened,
    "a named tuple": lambda x, seen: Inner(Plain(x, seen)),
    "a partial function": lambda x, seen: Partial(len, Plain(x, seen)),
}


class Grows(nn.Module):
    """Reads a holder's tensor, makes the tensor longer and the history too."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 4)
        self.lengths = []

    def forward(self, held):
        self.lengths.append(len(held.x))
        y = self.layer(held.x)
        held.x = torch.cat([held.x, held.x[:1].detach()])
        held.seen.append(y)
        return y.sum()


@each_function
@pytest.mark.parametrize("holder", HOLDERS)
def test_inputs_of_any_class_come_back_as_they_were(name, holder):
    x, seen = torch.ones(8, 256), []
    held = HOLDERS[holder](x, seen)
    model = Grows()
    FUNCTIONS[name](model, {"held": held})
    assert held.x is x
    assert held.seen is seen
    assert (seen, model.lengths, x._version) == ([], [], 0)
    assert torch.equal(x, torch.ones(8, 256))


@pytest.mark.parametrize("holder", HOLDERS)
def test_bytes_within_an_object_are_counted(holder):
    model, x = nn.Sequential(), torch.ones(4000, 256)
    model.forward = lambda held: layer(held.x)
    layer = model.layer = nn.Linear(256, 4)
    plain = Taken(layer)
    known = memory.estimate_peak_memory(layer, x)
    for function in (memory.estimate_peak_memory, memory.measure_peak_memory):
        assert (
            function(plain, {"held": HOLDERS[holder](x, [])}).peak_bytes
            == known.peak_bytes
            > x.nbytes
        )
    assert (
        operations.profile_ops(plain, {"held": HOLDERS[holder](x, [])}).backward_macs
        == 4000 * 256 * 4
    )


class Taken(nn.Module):
    """Calls its layer on a holder's tensor."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, held):
        return self.layer(held.x)


# Tables that a model keeps outside itself, each filled by its first forward.

TABLE: dict[int, torch.Tensor] = {}
LIST: list[torch.Tensor] = []
TENSOR = None
OBJECT = types.SimpleNamespace(table=None)
EMPTY = types.SimpleNamespace()
PRESET: dict[str, list] = {"tables": [None]}
ELSEWHERE = types.ModuleType("elsewhere")
exec("TABLE = {}\ndef cosines(n, make):\n    return TABLE.setdefault(n, make(n))", vars(ELSEWHERE))
exec("class Tables:\n    table = None\n    class Inner:\n        table = None", vars(ELSEWHERE))


def cosines(length):
    return torch.arange(length).float().cos()


@functools.lru_cache
def cached(length):
    return cosines(length)


@functools.lru_cache(maxsize=1)
def cached_pair(length):
    return [cosines(length)], {"sine": cosines(length)[None]}


class Net(nn.Module):
    """Multiplies by a table; how it comes by the table is ``find``."""

    table = None
    tables: dict[int, torch.Tensor] = {}  # noqa: RUF012

    def __init__(self, find):
        super().__init__()
        self.layer, self.find = nn.Linear(8, 8), find

    def forward(self, x):
        return self.layer(x) * self.find(self, x.shape[-1])

    @functools.lru_cache  # noqa: B019
    def of_method(self, length):
        return cosines(length)


def in_global_dict(_, length):
    if length not in TABLE:
        TABLE[length] = cosines(length)
    return TABLE[length]


def in_global_list(_, length):
    if not LIST:
        LIST.append(cosines(length))
    return LIST[0]


def in_global_name(_, length):
    global TENSOR
    if TENSOR is None:
        TENSOR = cosines(length)
    return TENSOR


def in_global_object(_, length):
    if OBJECT.table is None:
        OBJECT.table = cosines(length)
    return OBJECT.table


class Tables:
    """A class that is not the model's, with a table of its own and one of the only object of it."""

    table = None
    only = None

    @classmethod
    def of(cls, length):
        if cls.only is None:
            cls.only = cls()
            cls.only.table = cosines(length)
        return cls.only.table


@dataclasses.dataclass(slots=True)
class Slots:
    table: torch.Tensor | None = None


SLOTS = Slots()


def in_a_missing_attribute(_, length):
    if not hasattr(EMPTY, "table"):
        EMPTY.table = cosines(length)
    return EMPTY.table


def in_a_class_of_another_module(_, length):
    if ELSEWHERE.Tables.table is None:
        ELSEWHERE.Tables.table = cosines(length)
    return ELSEWHERE.Tables.table


def in_another_class(_, length):
    if Tables.table is None:
        Tables.table = cosines(length)
    return Tables.table


def in_an_entry(_, length):
    if PRESET["tables"][0] is None:
        PRESET["tables"][0] = cosines(length)
    return PRESET["tables"][0]


def in_a_slot(_, length):
    if SLOTS.table is None:
        SLOTS.table = cosines(length)
    return SLOTS.table


def in_class(net, length):
    if Net.table is None:
        Net.table = cosines(length)
    return net.table


def in_class_dict(net, length):
    return net.tables.setdefault(length, cosines(length))


def in_default(_, length, table={}):  # noqa: B006
    return table.setdefault(length, cosines(length))


def in_closure():
    table = None

    def find(_, length):
        nonlocal table
        if table is None:
            table = cosines(length)
        return table

    return find


def in_attribute_of_function(_, length):
    if not hasattr(in_attribute_of_function, "table"):
        in_attribute_of_function.table = cosines(length)
    return in_attribute_of_function.table


TABLES = {
    "lru_cache": lambda _, length: cached(length),
    "lru_cache of a pair": lambda _, length: (
        cached_pair(length)[1]["sine"][0] + cached_pair(length)[0][0]
    ),
    "lru_cache of a method": lambda net, length: net.of_method(length),
    "a global dict": in_global_dict,
    "a global list": in_global_list,
    "a global name": in_global_name,
    "a global object": in_global_object,
    "an attribute that was missing": in_a_missing_attribute,
    "a class of another module": in_a_class_of_another_module,
    "another class": in_another_class,
    "the only object of a class": lambda _, length: Tables.of(length),
    "an entry that was None": in_an_entry,
    "a slot": in_a_slot,
    "another module": lambda _, length: ELSEWHERE.cosines(length, cosines),
    "the class": in_class,
    "a dict of the class": in_class_dict,
    "a default argument": in_default,
    "a closure": in_closure(),
    "an attribute of a function": in_attribute_of_function,
}


@pytest.fixture(autouse=True)
def _empty_tables():
    """Let every test begin before anything has filled a table."""
    global TENSOR
    TENSOR = OBJECT.table = Net.table = Tables.table = Tables.only = SLOTS.table = PRESET["tables"][
        0
    ] = None
    vars(EMPTY).clear()
    ELSEWHERE.Tables.table = ELSEWHERE.Tables.Inner.table = None
    cached.cache_clear(), cached_pair.cache_clear(), Net.of_method.cache_clear()
    TABLE.clear(), LIST.clear(), Net.tables.clear(), in_default.__defaults__[0].clear()
    ELSEWHERE.TABLE.clear(), vars(in_attribute_of_function).clear()
    TABLES["a closure"] = in_closure()


@each_function
@pytest.mark.parametrize("table", TABLES)
def test_a_table_outside_the_model_holds_nothing_of_a_run_on_shapes(name, table):
    net, x = Net(TABLES[table]), torch.ones(2, 8)
    first = FUNCTIONS[name](net, x)
    if name in ON_SHAPES:
        assert FUNCTIONS[name](net, x) == first
    out = net(x)
    assert type(out) is torch.Tensor
    assert out.device.type == "cpu"


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_was_there_stays(table):
    net, x = Net(TABLES[table]), torch.ones(2, 8)
    before = (
        net(x),
        cached(8),
        dict(TABLE),
        list(LIST),
        TENSOR,
        OBJECT.table,
        Net.table,
        dict(Net.tables),
    )
    for name in ("profile_ops", "estimate_peak_memory"):
        FUNCTIONS[name](net, x)
        FUNCTIONS[name](net, torch.ones(2, 1, 8))
    after = (
        net(x),
        cached(8),
        dict(TABLE),
        list(LIST),
        TENSOR,
        OBJECT.table,
        Net.table,
        dict(Net.tables),
    )
    assert all(map(torch.equal, before[:2], after[:2]))
    assert all(map(_same, before[2:], after[2:]))


def _same(before, after):
    if isinstance(before, dict | list):
        return len(before) == len(after) and all(
            a is b for a, b in zip(_values(before), _values(after), strict=True)
        )
    return before is after


def _values(container):
    return container.values() if isinstance(container, dict) else container


def test_what_a_hook_has_kept_is_as_it_was():
    kept, model = {"out": 1}, nn.Linear(8, 8)
    model.register_forward_hook(
        lambda _module, _inputs, output: kept.update(out=output, other=output)
    )
    for name in ("profile_ops", "estimate_peak_memory"):
        FUNCTIONS[name](model, (2, 8))
        assert kept == {"out": 1}


def test_a_table_that_cannot_be_undone_is_refused():
    hidden = queue.SimpleQueue()

    def find(_, length):
        hidden.put(cosines(length))
        return hidden.get() if hidden.qsize() > 1 else 1

    for name in ON_SHAPES:
        with pytest.raises(
            ModelError, match=r"keeps a tensor that it computes in a _queue\.SimpleQueue, outside"
        ):
            FUNCTIONS[name](Net(find), torch.ones(2, 8))
        hidden.get()


@pytest.mark.parametrize("name", ON_SHAPES)
def test_an_attribute_too_far_away_loses_the_tensor_and_the_model_is_refused(name):
    def find(_, length):
        if ELSEWHERE.Tables.Inner.table is None:
            ELSEWHERE.Tables.Inner.table = cosines(length)
        return ELSEWHERE.Tables.Inner.table

    net, x = Net(find), torch.ones(2, 8)
    with pytest.raises(
        ModelError, match=r"a tensor that it computes in a elsewhere\.Tables\.Inner, outside"
    ):
        FUNCTIONS[name](net, x)
    net(x)  # as the sentence says
    FUNCTIONS[name](net, x)
    assert type(net(x)) is torch.Tensor


@pytest.mark.parametrize("name", ON_SHAPES)
def test_what_the_caller_has_frozen_stays_frozen_and_nothing_else_does(name):
    was_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    held = gc.get_freeze_count()
    cycle = nn.Identity()
    cycle.itself = [cycle]
    reference = weakref.ref(cycle)
    FUNCTIONS[name](nn.Linear(2, 2), torch.zeros(1, 2))
    assert 0.9 * held < gc.get_freeze_count() <= held
    del cycle
    gc.collect()
    assert reference() is None
    if not was_frozen:
        gc.unfreeze()


def test_frozen_objects_are_counted_once_and_not_at_each_call(monkeypatch):
    was_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    FUNCTIONS["profile_ops"](nn.Linear(2, 2), torch.zeros(1, 2))
    monkeypatch.setattr(outside, "_FROZEN", [*outside._FROZEN])  # a list that is not frozen
    count, counts = gc.get_freeze_count, []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(count()) or counts[-1])
    FUNCTIONS["profile_ops"](nn.Linear(2, 2), torch.zeros(1, 2))
    assert counts == []
    if not was_frozen:
        gc.unfreeze()
        FUNCTIONS["profile_ops"](nn.Linear(2, 2), torch.zeros(1, 2))
        assert counts == [0]


def test_after_an_error_nothing_is_left_either():
    def find(net, length):
        return in_class_dict(net, length) * cached(length) @ torch.ones(3)

    net, x = Net(find), torch.ones(2, 8)
    for name in ("profile_ops", "estimate_peak_memory"):
        with pytest.raises(ModelError):
            FUNCTIONS[name](net, x)
        assert Net.tables == {}
        assert cached(8).device.type == "cpu"
        assert type(cached(8)) is torch.Tensor
        cached.cache_clear()


# Models of transformers.


def _tiny_llama():
    model, inputs = model_zoo.CASES["llama"]()
    return model.eval(), inputs["input_ids"]


def _cache(model, ids, kind):
    import transformers

    cache = (
        transformers.DynamicCache()
        if kind == "dynamic"
        else transformers.StaticCache(model.config, 64)
    )
    with torch.no_grad():
        return model(input_ids=ids, past_key_values=cache, use_cache=True).past_key_values


@each_function
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_of_transformers_comes_back_as_it_was(name, kind):
    model, ids = _tiny_llama()
    cache = _cache(model, ids, kind)
    before = copy.deepcopy(cache)
    tensors = [(layer.keys, layer.values) for layer in cache.layers]
    how = {} if name.startswith("profile_ops") else {"training": False}
    given = {"input_ids": ids[:, :1], "past_key_values": cache}
    first = FUNCTIONS[name](model, given, **how)
    assert cache.get_seq_length() == before.get_seq_length() == 16
    for layer, other, (keys, values) in zip(cache.layers, before.layers, tensors, strict=True):
        assert (layer.keys is keys, layer.values is values) == (True, True)
        assert torch.equal(layer.keys, other.keys)
        assert torch.equal(layer.values, other.values)
    if "time" not in name:
        assert FUNCTIONS[name](model, given, **how) == first


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_peak_has_the_bytes_of_a_cache(kind):
    model, ids = _tiny_llama()
    cache = _cache(model, ids, kind)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    given = {"input_ids": ids[:, :1], "past_key_values": cache}
    estimate = memory.estimate_peak_memory(model, given, training=False)
    assert (
        estimate.peak_bytes == memory.measure_peak_memory(model, given, training=False).peak_bytes
    )
    counters = 2 * 8 if kind == "static" else 0
    assert estimate.category_bytes["input"] == held + counters + 2 * 8
    assert estimate.uncertain == ()


class Recurs(nn.Module):
    """Writes a state that it was given, and its own, from what it computes of them: such a graph
    keeps itself alive.
    """

    def __init__(self):
        super().__init__()
        self.layer, self.decay = nn.Linear(8, 8), nn.Parameter(torch.ones(8))
        self.register_buffer("last", torch.zeros(4, 8))

    def forward(self, x, held):
        held.x.copy_(held.x * self.decay + self.layer(x))
        self.last.copy_(self.last * self.decay + held.x)
        self.made = torch.zeros_like(x)
        self.made.copy_(self.made * self.decay + self.last)
        return self.made.sum()


@each_function
def test_a_state_that_is_written_in_place_holds_nothing(name):
    model, state = Recurs(), torch.zeros(4, 8)
    how = {} if name.startswith("profile_ops") else {"training": False}
    FUNCTIONS[name](model, {"x": torch.ones(4, 8), "held": Plain(state, [])}, **how)
    assert (state.grad_fn, model.last.grad_fn, float(state.sum()), float(model.last.sum())) == (
        None,
        None,
        0,
        0,
    )


class RecursByHead(nn.Module):
    """Writes views of a state that it was given, one for each head, as Zamba's layers of Mamba
    do.
    """

    def __init__(self):
        super().__init__()
        self.layer, self.decay = nn.Linear(8, 8), nn.Parameter(torch.ones(8))

    def forward(self, x, held):
        total = 0
        for head in range(2):
            state = held.x[head]
            new = self.layer(state * self.decay + x)
            state.copy_(new)
            total = total + new.sum()
        return total


@each_function
def test_views_of_a_state_that_are_written_in_place_hold_nothing(name):
    model, state = RecursByHead(), torch.zeros(2, 4, 8)
    how = {} if name.startswith("profile_ops") else {"training": False}
    FUNCTIONS[name](model, {"x": torch.ones(4, 8), "held": Plain(state, [])}, **how)
    assert (state.grad_fn, state._version, float(state.sum())) == (None, 0, 0)


def test_a_tensor_of_the_caller_that_a_view_was_made_of_stays_in_its_graph():
    model, scale = RecursByHead().to("meta"), torch.ones(8, 8, device="meta", requires_grad=True)
    model.layer.forward = lambda x: x @ scale.t()
    operations.profile_ops(model, {"x": torch.ones(4, 8), "held": Plain(torch.zeros(2, 4, 8), [])})
    assert (scale.requires_grad, scale._version) == (True, 0)


class Writes(nn.Module):
    """Writes what it computes into a buffer that it is given, and returns the sum of it: a step
    that can be trained.
    """

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, buffer):
        buffer[:4].copy_(self.layer(x))
        return buffer.sum()


@each_function
def test_a_repetition_of_a_step_that_writes_its_input_begins_without_a_graph(name):
    model, buffer = Writes(), torch.zeros(8, 8)
    FUNCTIONS[name](model, {"x": torch.ones(4, 8), "buffer": buffer})
    assert (buffer.grad_fn, buffer._version) == (None, 0)


class Recomputes(torch.autograd.Function):
    """A layer that is computed again for its gradients, which it gives to its parameters by
    itself.
    """

    @staticmethod
    def forward(ctx, x, layer):
        ctx.save_for_backward(x)
        ctx.layer = layer
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out = ctx.layer(x)
        torch.autograd.backward(out, gradient)
        return x.grad, None


class KeepsAccount(nn.Module):
    """Counts its calls in what is no tensor, freezes a bias, and has gradients that autograd is not
    asked for.
    """

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.calls, self.bits = np.zeros(1), bytearray(1)

    def forward(self, x):
        self.calls += 1
        self.bits[0] += 1
        self.bits.append(1)
        self.first.bias.requires_grad_(False)
        return Recomputes.apply(self.first(x), self.second)


@pytest.mark.parametrize("values", [False, True])
def test_arrays_and_gradients_of_the_model_come_back(values):
    model = KeepsAccount()
    operations.profile_ops(model, torch.ones(2, 8), values=values)
    assert (model.calls[0], bytes(model.bits)) == (0, b"\0")
    assert [(weight.grad, weight.requires_grad) for weight in model.parameters()] == [
        (None, True)
    ] * 4


class Resizes(nn.Module):
    """Keeps a buffer that each forward makes as large as it needs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("room", torch.empty(0))

    def forward(self, x):
        return self.layer(x) * self.room.resize_(x.shape).fill_(1)


@each_function
def test_a_buffer_that_the_forward_grows_has_its_size_again(name):
    model = Resizes()
    FUNCTIONS[name](model, torch.ones(4, 8))
    assert model.room.shape == (0,)


@pytest.mark.parametrize("name", ON_SHAPES)
def test_the_callers_own_autocast_is_no_reason_to_refuse(name):
    with torch.autocast("cpu", torch.bfloat16):
        FUNCTIONS[name](nn.Linear(8, 8), torch.ones(2, 8))


def test_every_repetition_of_a_timing_starts_from_the_same_state():
    x, seen = torch.ones(8, 256), []
    model = Grows()
    lengths = []
    model.layer.register_forward_pre_hook(lambda _module, inputs: lengths.append(len(inputs[0])))
    for function in (
        profiling.profile_time,
        profiling.estimate_step_time,
        memory.measure_peak_memory,
    ):
        function(model, {"held": Plain(x, seen)})
    assert len(lengths) > 20
    assert set(lengths) == {8}
