"""A model comes back as it was, and counting reaches neither data nor devices."""

from __future__ import annotations

import dataclasses
import random
import types
from collections import OrderedDict, deque

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from operation_samples import Functional, weight
from torch import nn
from torch.nn.modules import module as hooks

from helpers.operations import ForwardError, profile_ops


def _state(model):
    """Everything that must not change, as values that compare."""
    tensors = {
        name: (id(t), t._version, t.detach().clone())
        for name, t in model.state_dict(keep_vars=True).items()
    }
    return {
        "tensors": {
            name: (*start, value.numpy().tobytes()) for name, (*start, value) in tensors.items()
        },
        "attributes": [
            {key: id(value) for key, value in vars(module).items()} for module in model.modules()
        ],
        "lists": [
            [list(v) for v in vars(module).values() if isinstance(v, list | dict)]
            for module in model.modules()
        ],
        "modes": [module.training for module in model.modules()],
        "gradients": [
            None if p.grad is None else p.grad.numpy().tobytes() for p in model.parameters()
        ],
        "flags": [p.requires_grad for p in model.parameters()],
        "random": (
            torch.get_rng_state().numpy().tobytes(),
            random.getstate(),
            str(np.random.get_state()),
        ),
        "hooks": [list(d) for d in (hooks._global_forward_hooks, hooks._global_forward_pre_hooks)],
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }


def _restless(model, x):
    model.calls += 1
    model.last = model.layer(x)
    model.log.append(model.last)
    model.average = 0.9 * model.average + 0.1 * model.last.mean()
    model.table["new"] = x
    model.gain.requires_grad_(False)
    torch.rand(3), random.random(), np.random.rand()
    torch.rand(3, generator=model.generator)
    if model.fails:
        raise KeyError("the forward's own error")
    return model.last * model.gain


def _restless_model(*, fails):
    attributes = {
        "log": [1],
        "last": None,
        "table": {},
        "fails": fails,
        "generator": torch.Generator(),
    }
    return Functional(
        _restless,
        layer=nn.Linear(3, 4),
        gain=weight(1),
        average=torch.zeros(1),
        calls=torch.zeros((), dtype=torch.long),
        **attributes,
    )


def test_a_model_with_state_comes_back_as_it_was():
    model = _restless_model(fails=False)
    generator = model.generator.get_state()
    before = _state(model)
    profile_ops(model, (2, 3), optimizer=torch.optim.Adam)
    assert _state(model) == before
    assert torch.equal(model.generator.get_state(), generator)


def test_also_after_an_exception():
    model = _restless_model(fails=True)
    before = _state(model)
    with pytest.raises(ForwardError, match="the forward's own error") as caught:
        profile_ops(model, (2, 3))
    assert isinstance(caught.value.__cause__, KeyError)
    assert _state(model) == before
    assert profile_ops(nn.Linear(3, 4), (2, 3)).forward_macs == 24


class _Plain:
    k = None


class _Mirror(dict):
    """A dictionary whose items are its attributes."""

    def __init__(self):
        super().__init__(k=None)
        self.__dict__ = self


@dataclasses.dataclass(slots=True)
class _Slotted:
    k: object = None


def _grow(holder, y):
    before = holder["k"] if type(holder) is dict else holder.k
    after = y.detach() if before is None else torch.cat([before, y.detach()])
    if type(holder) is dict:
        holder["k"] = after
    else:
        holder.k = after


@pytest.mark.parametrize(
    "reach",
    [
        lambda c: c,
        lambda c: [c],
        lambda c: ({"a": [c]},),
        lambda c: OrderedDict(a=deque([c])),
        lambda c: types.SimpleNamespace(inner=[types.SimpleNamespace(c=c)]),
        lambda c: {c} if c.__hash__ else [[c]],
    ],
)
@pytest.mark.parametrize("kind", [_Plain, _Mirror, _Slotted, lambda: {"k": None}])
def test_state_in_objects_and_containers_at_any_depth(kind, reach):
    holder = kind()

    def run(model, x):
        y = model.layer(x)
        _grow(holder, y)
        return y

    model = Functional(run, layer=nn.Linear(4, 4), held=reach(holder))
    profile_ops(model, (2, 4))
    assert (holder["k"] if type(holder) is dict else holder.k) is None
    model(torch.zeros(2, 4))
    kept = holder["k"] if type(holder) is dict else holder.k
    profile_ops(model, (2, 4))
    assert (holder["k"] if type(holder) is dict else holder.k) is kept
    assert model(torch.zeros(2, 4)).device.type == "cpu"


def test_nested_containers_keep_their_contents_and_their_order():
    def run(model, x):
        y = model.layer(x)
        model.cache["k"].append(y)
        model.deep[0][1].add(y)
        model.recent.extend([y] * 3)
        model.order.move_to_end("a")
        model.order.late = y
        model.cycle[0].late = y
        return y

    cycle = [_Plain()]
    cycle.append(cycle)
    cycle[0].cycle = cycle
    model = Functional(
        run,
        layer=nn.Linear(4, 4),
        cache={"k": []},
        deep=[(0, {1})],
        recent=deque([1, 2], maxlen=2),
        order=OrderedDict(a=1, b=2),
        cycle=cycle,
    )
    profile_ops(model, (2, 4))
    assert (model.cache, model.deep, model.recent.maxlen) == ({"k": []}, [(0, {1})], 2)
    assert (list(model.recent), list(model.order.items())) == ([1, 2], [("a", 1), ("b", 2)])
    assert vars(model.order) == {}
    assert not hasattr(cycle[0], "late")


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_dropout_gradients_and_a_backward_that_waits(training):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).train(training)
    model(torch.zeros(2, 3, 8, 8)).sum().backward()
    waiting = model(torch.ones(2, 3, 8, 8)).sum()
    before = _state(model)
    profile_ops(model, (2, 3, 8, 8))
    assert _state(model) == before
    waiting.backward()


def test_inputs_and_plain_tensors_are_not_written():
    def run(model, x, tokens):
        model.plain.add_(1)
        tokens[0] = 7
        x.mul_(2)
        return model.layer(x) @ model.plain

    model = Functional(run, layer=nn.Linear(3, 4))
    object.__setattr__(model, "plain", torch.zeros(4, 2))
    x, tokens = torch.ones(2, 3), torch.zeros(3, dtype=torch.long)
    assert profile_ops(model, inputs=(x, tokens)).forward_macs == 24 + 16
    assert model.plain.sum() == 0
    assert tokens.sum() == 0
    assert x.sum() == 6


def test_hooks_of_the_model_run_and_stay():
    model, seen = nn.Sequential(nn.Linear(3, 4)), []
    model[0].register_forward_hook(lambda *_: seen.append("forward"))
    profile_ops(model, (2, 3))
    assert seen == ["forward"]
    assert len(model[0]._forward_hooks) == 1


def test_the_callers_modes_do_not_change_the_count():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    free = profile_ops(model, (2, 3))
    for mode in (
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        with mode:
            assert profile_ops(model, (2, 3)) == free


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_forward_without_gradients_counts_the_same(mode):
    layers = {
        "conv": nn.Conv2d(3, 4, 3, padding=1),
        "norm": nn.BatchNorm2d(4).eval(),
        "head": nn.Linear(64, 8),
        "attention": nn.MultiheadAttention(8, 2, batch_first=True),
        "rnn": nn.LSTM(8, 8),
    }

    def run(model, x):
        x = x + (x.transpose(0, 1) @ x.transpose(0, 1).mT).transpose(0, 1)
        y = model.head(model.norm(model.conv(x)).transpose(1, 2).flatten(1)).unsqueeze(0)
        y = model.rnn(model.attention(y, y, y)[0])[0]
        return F.scaled_dot_product_attention(y, y, y, is_causal=True) @ y.mT

    def without(model, x):
        with mode():
            return run(model, x)

    free = profile_ops(Functional(run, **layers), (2, 3, 4, 4))
    profile = profile_ops(Functional(without, **layers), (2, 3, 4, 4))
    assert profile.not_counted == free.not_counted == ()
    for name in ("macs", "useful_macs", "flops", "read_bytes", "written_bytes"):
        assert getattr(profile, f"forward_{name}") == getattr(free, f"forward_{name}") > 0
    assert profile.backward_macs == profile.backward_flops == 0


def test_devices_named_in_the_forward_are_not_reached():
    def run(model, x):
        y = (
            model.layer(x.to("cuda")).cuda(0)
            + torch.zeros(4, device="cuda")
            + torch.zeros(4, device="cpu")
        )
        return (
            y + torch.arange(4, device=model.layer.weight.device) + torch.ones(4, device=x.device)
        )

    assert profile_ops(Functional(run, layer=nn.Linear(3, 4)), (2, 3)).forward_macs == 24


def test_values_that_are_known_can_be_read():
    def run(model, x, tokens):
        steps = int(tokens.max()) * int(model.calls) if model.temperature.item() > 0 else 0
        for _ in range(steps):
            x = model.layer(x)
        return x[:, model.mask] if torch.rand(1).item() < 2 else x

    model = Functional(
        run,
        layer=nn.Linear(3, 3),
        temperature=nn.Parameter(torch.ones(1)),
        calls=torch.tensor(2),
        mask=torch.tensor([True, False, True]),
    )
    profile = profile_ops(model, inputs=(torch.zeros(2, 3), torch.tensor([1, 3])))
    assert profile.layer("layer").calls == 6


def test_batch_norm_with_a_cumulative_average():
    assert profile_ops(nn.BatchNorm2d(3, momentum=None), (2, 3, 4, 4)).forward_flops == 7 * 96


@pytest.mark.parametrize("values", [False, True])
def test_a_layer_that_the_forward_makes_is_counted(values):
    def forward(model, x):
        if not hasattr(model, "made"):
            model.made = nn.Linear(3, 4)
        return model.made(x)

    model = Functional(forward)
    profile = profile_ops(model, (2, 3), values=values, optimizer=torch.optim.SGD)
    known = profile_ops(nn.Linear(3, 4), (2, 3), values=values, optimizer=torch.optim.SGD)
    for name in ("forward_macs", "backward_macs", "optimizer_flops", "parameters"):
        assert getattr(profile, name) == getattr(known, name) > 0
    assert not hasattr(model, "made")


def test_a_module_that_is_not_registered_is_followed():
    hidden = [nn.Linear(3, 3)]
    profile = profile_ops(
        Functional(lambda m, x: hidden[0](m.layer(x)), layer=nn.Linear(3, 3)), (2, 3)
    )
    assert profile.forward_macs == 36
    assert profile.backward_macs == 54
    assert any(row.kind == "Linear" and row.layer.startswith("(Linear") for row in profile.layers)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    def run(model, x):
        return torch.utils.checkpoint.checkpoint(model.b, model.a(x), use_reentrant=reentrant)

    model = Functional(run, a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    model.b.bias.requires_grad_(False)
    profile = profile_ops(model, (2, 3), optimizer=torch.optim.Adam)
    assert profile.forward_macs == 36
    assert profile.optimizer_flops == 13 * (12 + 9)
    if reentrant:
        assert profile.not_counted == ("CheckpointFunctionBackward",)
    else:
        assert profile.backward_macs == 54


def test_random_generators_of_its_own_come_back():
    def run(model, x):
        draws.append(
            (
                model.a.random(),
                model.b.random(),
                model.c.random(),
                float(torch.rand((), generator=model.d)),
            )
        )
        return x

    draws = []
    generator = torch.Generator().manual_seed(0)
    model = Functional(
        run, a=random.Random(0), b=np.random.default_rng(0), c=np.random.RandomState(0), d=generator
    )
    for _ in range(2):
        profile_ops(model, (2, 3))
    assert draws[0] == draws[1]
