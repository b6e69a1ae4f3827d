"""count_ops: what really runs is counted as profile_ops counts it, and runs as it would without."""

from __future__ import annotations

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import model_zoo
import pytest
import torch
import torch.nn.functional as F
from operation_samples import Functional, HiddenGradient, OwnGradient, weight
from torch import nn
from torch.utils import _python_dispatch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import helpers
from helpers import operations, steps
from helpers.operations import count_ops, profile_ops

SUMS = ("forward_macs", "forward_flops", "backward_macs", "backward_flops")


def _counted(model, given):
    """Return the profile of one forward and backward pass that really ran, of a loss on all
    outputs.
    """
    with count_ops() as ops:
        outputs = model(**given) if isinstance(given, dict) else model(given)
    trained = [tensor for tensor in steps.tensors_of(outputs) if tensor.grad_fn is not None]
    gradients = [torch.ones_like(tensor) for tensor in trained]
    if trained:
        with ops:
            torch.autograd.backward(trained, gradients)
    return ops.profile()


def _sums(profile):
    return {name: getattr(profile, name) for name in (*SUMS, "not_counted", "may_hold_products")}


class Recurrent(nn.Module):
    """A recurrent layer and a layer over its outputs."""

    def __init__(self, kind, **options):
        super().__init__()
        self.recurrent = kind(6, 5, **options)
        self.head = nn.LazyLinear(2)

    def forward(self, x):
        return self.head(self.recurrent(x)[0])


def _recurrent(kind, **options):
    model = Recurrent(kind, **options)
    model(torch.zeros(7, 3, 6))
    return model


def _attends(is_causal):
    return Functional(
        lambda m, x: F.scaled_dot_product_attention(m.q(x), m.k(x), x, is_causal=is_causal),
        q=nn.Linear(8, 8),
        k=nn.Linear(8, 8),
    )


MODELS = {
    "layers": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (5, 8)),
    "convolutions": (helpers.LeNet, (2, 1, 28, 28)),
    "in place": (
        lambda: nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.SiLU(True), nn.Linear(16, 4)
        ),
        (5, 8),
    ),
    "attention": (lambda: _attends(False), (2, 2, 6, 8)),
    "causal attention": (lambda: _attends(True), (2, 2, 6, 8)),
    "an encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (3, 5, 8)),
    "an encoder, evaluated": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
        (3, 5, 8),
    ),
    "LSTM": (lambda: _recurrent(nn.LSTM, num_layers=2, bidirectional=True), (7, 3, 6)),
    "GRU": (lambda: _recurrent(nn.GRU, batch_first=True), (3, 7, 6)),
    "RNN": (lambda: _recurrent(nn.RNN, num_layers=2), (7, 3, 6)),
    "a gradient of its own": (
        lambda: Functional(
            lambda m, x: OwnGradient.apply(m.a(x), m.w).relu(), a=nn.Linear(3, 3), w=weight(3, 3)
        ),
        (2, 3),
    ),
    "a shared layer": (lambda: Functional(lambda m, x: m.a(m.a(x)) + x, a=nn.Linear(3, 3)), (2, 3)),
    "frozen": (
        lambda: nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)),
        (3, 4),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_runs_is_counted_as_on_shapes(name):
    make, shape = MODELS[name]
    model, x = make(), torch.ones(shape)
    counted, known = _counted(model, x), profile_ops(model, x)
    assert _sums(counted) == _sums(known)
    assert known.forward_macs > 0
    inside = {
        row.layer.partition(".")[2]: row.forward_macs for row in counted.layers if "." in row.layer
    }
    expected = {row.layer: row.forward_macs for row in known.layers if row.layer}
    assert inside == expected or not expected


@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "llama",
        "bart",
        "mixtral",
        "longformer",
        "vit",
        "swin",
        "resnet, grouped",
        "convnext",
    ],
)
def test_models_of_transformers_and_timm(name):
    pytest.importorskip(
        "timm" if name in ("vit", "swin", "resnet, grouped", "convnext") else "transformers"
    )
    model, given = model_zoo.CASES[name]()
    assert _sums(_counted(model, given)) == _sums(profile_ops(model, given))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_training_loop(optimizer, foreach):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def make(parameters):
        return optimizer(parameters, lr=0.1, foreach=foreach)

    running = make(model.parameters())
    with count_ops() as ops:
        for _ in range(3):
            F.mse_loss(model(torch.ones(5, 8)), torch.zeros(5, 4)).backward()
            running.step()
            running.zero_grad()
    known, counted = profile_ops(model, (5, 8), optimizer=make), ops.profile()
    assert counted.forward_macs == 3 * known.forward_macs
    assert counted.backward_macs == 3 * known.backward_macs
    assert counted.optimizer == optimizer.__name__
    assert counted.optimizer_flops == 3 * known.optimizer_flops
    row = counted.layer("Sequential")
    assert (row.calls, row.forward_flops, row.optimizer_flops) == (
        3,
        3 * known.forward_flops,
        counted.optimizer_flops,
    )
    assert row.backward_flops == 3 * known.backward_flops
    for layer in ("0", "1", "2"):
        for name in ("forward_flops", "backward_flops", "optimizer_flops"):
            assert getattr(counted.layer(f"Sequential.{layer}"), name) == 3 * getattr(
                known.layer(layer), name
            )
    assert counted.forward_flops > row.forward_flops  # the loss, outside of the model


def test_several_models_and_code_without_any():
    first, second, third = nn.Linear(4, 8), nn.Linear(8, 2), nn.Sequential(nn.Linear(2, 2))
    matrix = torch.ones(2, 3, requires_grad=True)
    with count_ops() as ops:
        loss = (third(second(first(torch.ones(5, 4)))) @ matrix).sum()
        loss.backward()
    profile = ops.profile()
    assert [row.layer for row in profile.layers] == [
        "",
        "Linear",
        "Linear 2",
        "Sequential",
        "Sequential.0",
        "(functional)",
    ]
    assert [row.forward_macs for row in profile.layers] == [
        5 * (4 * 8 + 8 * 2 + 2 * 2 + 2 * 3),
        160,
        80,
        20,
        20,
        30,
    ]
    assert [row.backward_macs for row in profile.layers][1:] == [160, 160, 40, 40, 60]
    assert ops.macs == profile.forward_macs + profile.backward_macs
    assert ops.flops == profile.forward_flops + profile.backward_flops


def test_what_code_computes_in_a_backward_is_counted():
    hidden = Functional(
        lambda m, x: HiddenGradient.apply(m.a(x), m.w), a=nn.Linear(3, 3), w=weight(3, 3)
    )
    counted = _counted(hidden, torch.ones(2, 3))
    assert (counted.forward_macs, counted.backward_macs, counted.not_counted) == (36, 18 + 36, ())
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    again = Functional(lambda m, x: checkpoint(m.layers, x, use_reentrant=False), layers=layers)
    # what the second layer makes is not needed, and not made again
    counted = _counted(again, torch.ones(2, 3))
    assert (counted.forward_macs, counted.backward_macs) == (36, 18 + 36 + 18)
    assert counted.layer("Functional.layers.0").calls == 2
    assert counted.layer("Functional.layers.0").backward_macs == 18 + 18
    reentrant = Functional(
        lambda m, x: checkpoint(m.a, m.first(x), use_reentrant=True),
        a=nn.Linear(3, 3),
        first=nn.Linear(3, 3),
    )
    counted = _counted(reentrant, torch.ones(2, 3))
    assert (counted.forward_macs, counted.backward_macs) == (36, 18 + 36 + 18)


def test_a_hook_and_a_gradient_of_a_gradient_are_counted():
    layer, x = nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)
    with count_ops() as ops:
        y = layer(x)
        y.register_hook(lambda gradient: gradient @ torch.ones(3, 3))
        y.sum().backward()
    assert (ops.profile().forward_macs, ops.profile().backward_macs) == (18, 18 + 36)
    with count_ops() as ops:
        (gradient,) = torch.autograd.grad(
            (x @ torch.ones(3, 3)).square().sum(), x, create_graph=True
        )
        assert ops.profile().backward_macs == 18
        gradient.sum().backward()
    assert ops.profile().backward_macs == 18 + 2 * 18


def test_a_backward_of_what_ran_before():
    layer = nn.Linear(3, 3)
    loss = layer(torch.ones(2, 3)).sum()
    with count_ops() as ops:
        loss.backward()
    assert (ops.profile().forward_macs, ops.profile().backward_macs) == (0, 18)


def test_a_rule_of_ones_own_counts_here_too():
    model = nn.Linear(4, 4)
    with operations.register(
        "aten::addmm",
        lambda call: operations.work(call, macs=7),
        lambda call: operations.work(call, macs=5),
    ):
        counted = _counted(model, torch.ones(2, 4))
    assert (counted.forward_macs, counted.backward_macs) == (7, 5)
    assert _counted(model, torch.ones(2, 4)).forward_macs == 32


def test_it_answers_at_any_time_and_says_the_total():
    layer, x = nn.Linear(3, 4), torch.ones(2, 3)
    with count_ops() as ops:
        assert ops.macs == 0
        layer(x)
        assert ops.macs == 24
        assert ops.table()["forward_macs"].tolist() == [24, 24]
        layer(x)
        assert ops.table()["layer"].tolist() == ["", "Linear"]
    layer(x)
    assert (ops.macs, ops.table().loc[1, "calls"]) == (48, 2)
    with ops:
        layer(x)
    assert ops.macs == 72
    assert ops.table("operator").set_index("operator").loc["aten.addmm.default", "macs"] == 72
    lines = str(ops).splitlines()
    assert lines[0] == "count_ops: 16 parameters"
    assert lines[1] == "  total     72 MAC, 144 FLOP"
    assert "72 MAC" in ops._repr_html_()
    with count_ops() as ops:
        torch.linalg.inv(torch.eye(3))
    assert "total     at least 0 MAC" in str(ops)


def _trained(model, x, how):
    torch.manual_seed(0)
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())
    with how:
        for _ in range(2):
            optimizer.zero_grad()
            out = model(x)
            out.square().sum().backward()
            optimizer.step()
    return [
        out,
        *model.parameters(),
        *(parameter.grad for parameter in model.parameters()),
        torch.rand(3),
    ]


@pytest.mark.parametrize(
    "name", ["convolutions", "in place", "an encoder", "LSTM", "GRU", "a gradient of its own"]
)
def test_nothing_else_changes(name):
    make, shape = MODELS[name]
    torch.manual_seed(1)
    model, x = make(), torch.rand(shape)
    plain = _trained(model, x, torch.enable_grad())
    assert all(map(torch.equal, plain, _trained(model, x, count_ops())))


def test_an_exception_passes_and_counting_ends():
    layer, hooks = nn.Linear(3, 4), nn.modules.module._global_forward_pre_hooks
    before, fast = len(hooks), torch.backends.mha.get_fastpath_enabled()
    ops = count_ops()
    with pytest.raises(RuntimeError, match="mat1 and mat2"), ops:
        layer(torch.ones(2, 5))
    layer(torch.ones(2, 3))
    assert ops.macs == 0
    assert (len(hooks), torch.backends.mha.get_fastpath_enabled()) == (before, fast)


def test_inference_is_counted_in_every_mode():
    layer = nn.Linear(3, 4)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), count_ops() as ops:
            layer(torch.ones(2, 3))
        assert ops.macs == 24


def _blocks_open(layer, x):
    """Count within a block that stays open between the steps of a generator."""
    with count_ops() as ops:
        layer(x)
        yield ops
        layer(x)
        yield ops


def test_blocks_end_in_any_order():
    layer, x = nn.Linear(3, 4), torch.ones(2, 3)
    fast, flag = (
        torch.backends.mha.get_fastpath_enabled(),
        _python_dispatch._is_in_torch_dispatch_mode,
    )
    first, second = _blocks_open(layer, x), _blocks_open(layer, x)
    ops, other = next(first), next(second)
    assert (ops.macs, other.macs) == (48, 24)
    first.close()
    assert not torch.backends.mha.get_fastpath_enabled()
    next(second)
    assert (ops.macs, other.macs) == (48, 48)
    second.close()
    layer(x)
    assert (ops.macs, other.macs) == (48, 48)
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
    assert (
        torch.backends.mha.get_fastpath_enabled(),
        _python_dispatch._is_in_torch_dispatch_mode,
    ) == (fast, flag)


def test_blocks_of_two_threads():
    layer, x, fast = nn.Linear(3, 4), torch.ones(2, 3), torch.backends.mha.get_fastpath_enabled()
    flag = _python_dispatch._is_in_torch_dispatch_mode
    counter, optimizer = count_ops(), torch.optim.SGD(layer.parameters())
    layer.weight.grad = torch.ones(4, 3)
    with ThreadPoolExecutor(1) as thread:
        with count_ops() as ops:
            thread.submit(counter.__enter__).result()
            layer(x)
            optimizer.step()
        thread.submit(layer, x).result()
        assert not torch.backends.mha.get_fastpath_enabled()
        thread.submit(counter.__exit__).result()
    assert (ops.macs, counter.macs) == (24, 24)
    assert counter.profile().layer("Linear").forward_macs == 24
    assert (ops.profile().optimizer, counter.profile().optimizer) == ("SGD", None)
    assert (
        torch.backends.mha.get_fastpath_enabled(),
        _python_dispatch._is_in_torch_dispatch_mode,
    ) == (fast, flag)


def test_a_block_ends_where_it_began_and_is_open_once():
    with count_ops() as ops, pytest.raises(RuntimeError, match="this count is open already"), ops:
        pass
    with ThreadPoolExecutor(1) as thread:
        thread.submit(ops.__enter__).result()
        with pytest.raises(RuntimeError, match="must end in the thread that began it"):
            ops.__exit__()
    assert torch.backends.mha.get_fastpath_enabled()


_X, _W = torch.ones(8, 64), torch.ones(64, 64)
TRANSFORMATIONS = {
    "vjp": (lambda: torch.func.vjp(lambda w: _X @ w, _W)[1](torch.ones(8, 64)), 2 * 32768),
    "jacrev": (lambda: torch.func.jacrev(lambda v: v @ _W)(_X), (8 * 64 + 1) * 32768),
    "vmap of grad": (
        lambda: torch.func.vmap(torch.func.grad(lambda w, a: (a @ w).pow(2).sum()), (None, 0))(
            _W, _X
        ),
        2 * 32768,
    ),
    "grad of a parameter": (
        lambda: torch.func.grad(lambda w: (_X @ w).sum())(_W.clone().requires_grad_()),
        2 * 32768,
    ),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_what_transformations_compute_is_counted(name):
    run, macs = TRANSFORMATIONS[name]
    with FlopCounterMode(display=False) as counter:
        run()
    with count_ops() as ops:
        run()
    assert ops.macs == macs == counter.get_total_flops() // 2


@pytest.mark.parametrize("how", ["is_grads_batched", "vmap"])
def test_batched_gradients_are_counted(how):
    layer, x = nn.Linear(64, 64).requires_grad_(False), _X.clone().requires_grad_()
    with count_ops() as ops:
        y = layer(x).sum(0)
        if how == "vmap":
            torch.vmap(lambda gradient: torch.autograd.grad(y, x, gradient, retain_graph=True))(
                torch.eye(64)
            )
        else:
            torch.autograd.grad(y, x, torch.eye(64), is_grads_batched=True)
    assert (ops.profile().forward_macs, ops.profile().backward_macs) == (32768, 64 * 32768)
    assert ops.profile().may_hold_products == ()


def test_a_transformed_gradient_without_a_rule_is_named():
    with count_ops() as ops:
        torch.func.grad(lambda a: F.scaled_dot_product_attention(a, a, a).sum())(
            torch.ones(1, 2, 3, 4)
        )
    assert "at least" in str(ops)
    assert "_backward" in ops.profile().may_hold_products[0]


def _functional_call():
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    torch.func.grad(lambda given: torch.func.functional_call(layer, given, x).sum())(
        dict(layer.named_parameters())
    )


def _recurrent_gradient():
    layer = nn.LSTM(4, 4)
    torch.func.grad(lambda x: layer(x)[0].sum())(torch.ones(3, 2, 4))


def _sparse_gradient(optimizer):
    layer = nn.Embedding(10, 4, sparse=True)
    running = optimizer(layer.parameters(), lr=0.1)
    for _ in range(2):
        running.zero_grad()
        (layer(torch.tensor([1, 2])) + layer(torch.tensor([2, 3]))).sum().backward()
        running.step()


def _nested(layout):
    parts = [torch.ones(3, 4), torch.ones(5, 4)]
    given = torch.nested.nested_tensor(parts, layout=layout, requires_grad=True)
    y = nn.Linear(4, 4)(given) * 2
    (y.values() if layout == torch.jagged else y.to_padded_tensor(0.0)).sum().backward()


RUNNING = {
    "functional_call": (_functional_call, 2 * 32, False),
    "an LSTM that is transformed": (_recurrent_gradient, None, True),
    "a lazy layer": (lambda: nn.Sequential(nn.LazyLinear(4))(torch.ones(2, 4)), 32, False),
    "SGD, sparse": (lambda: _sparse_gradient(torch.optim.SGD), 0, False),
    "SparseAdam": (lambda: _sparse_gradient(torch.optim.SparseAdam), 0, True),
    "a sparse product": (
        lambda: torch.sparse.mm(torch.eye(4).to_sparse(), torch.ones(4, 2)),
        0,
        True,
    ),
    "jagged": (lambda: _nested(torch.jagged), None, True),
    "nested": (lambda: _nested(torch.strided), None, True),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", RUNNING)
def test_a_program_runs_and_what_is_not_counted_is_named(name):
    run, macs, is_named = RUNNING[name]
    with count_ops() as ops:
        run()
    assert macs is None or ops.macs == macs
    assert ("  total     at least" in str(ops)) == bool(ops.profile().may_hold_products) == is_named


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_frozen_script_runs_and_is_counted():
    frozen = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(4, 4)).eval()))
    with count_ops() as ops:
        frozen(torch.ones(2, 4))
    assert ops.macs == 32


def test_a_lazy_layer_is_known_after_its_first_call():
    layer = nn.LazyLinear(4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with count_ops() as ops:
        layer(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert ops.profile().layer("LazyLinear").optimizer_flops == 2 * (16 + 4)


def test_a_model_is_not_kept():
    with count_ops() as ops:
        for _ in range(2):
            unregistered = Functional(
                lambda m, x: m.hidden[0](x), hidden=[nn.Linear(4, 4, bias=False)]
            )
            model = nn.Sequential(nn.Linear(3, 4), nn.LazyBatchNorm1d(), unregistered)
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            left = [
                weakref.ref(thing)
                for thing in (
                    model,
                    *unregistered.hidden,
                    model[0],
                    *model.parameters(),
                    *model.buffers(),
                )
            ]
            del model, unregistered, optimizer
            gc.collect()
            assert [ref() for ref in left] == [None] * len(left)
    profile = ops.profile()
    assert [row.layer for row in profile.layers if row.depth == 1] == [
        "Sequential",
        "Sequential 2",
        "(functional)",
    ]
    assert (
        profile.layer("Sequential").forward_macs,
        profile.layer("Sequential 2").forward_macs,
    ) == (24 + 32,) * 2
    assert (profile.parameters, profile.layer("Sequential.0").parameters) == (2 * 24, 16)
    assert (
        profile.layer("Sequential 2").optimizer_flops
        == profile.layer("Sequential").optimizer_flops
        > 0
    )
