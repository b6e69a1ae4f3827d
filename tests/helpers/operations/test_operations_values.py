"""What the forward asks of values: those that are known, those of a real run, those drawn at
random; own rules.
"""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from operation_samples import Functional, HiddenGradient, weight
from test_operations_unchanged import _state
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from helpers import operations
from helpers.operations import ForwardError, profile_ops
from helpers.steps import ModelError


def _with_layer(function, **attributes):
    return Functional(function, layer=nn.Linear(4, 4), **attributes)


def _macs_by_torch(model, *inputs):
    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    return counter.get_total_flops() // 2


X, MASK, LENGTHS = torch.zeros(2, 4), torch.tensor([[1, 1, 1], [1, 0, 0]]), torch.tensor([3, 1])
ASKS = {
    "a mask on the activations' device": lambda m, x, n: (
        x if n.to(device=x.device, dtype=torch.bool).all() else m.layer(x)
    ),
    "a length on the activations' device": lambda m, x, n: [
        m.layer(x) for _ in range(int(n.to(x.device).max()))
    ],
    "a mask made there": lambda m, x, n: (
        m.layer(x) if torch.ones(2, 3, device=x.device).bool().all() else x
    ),
    "a comparison": lambda m, x, n: (
        m.layer(x)[(torch.arange(2, device=x.device) < n.max()).nonzero()[:, 0]] @ m.w
    ),
    "a mask that selects": lambda m, x, n: m.layer(x)[n.flatten()[:2] > 1] @ m.w,
    "selected by a mask": lambda m, x, n: (
        m.layer(x.masked_select(n.flatten()[:2, None] > 1).view(-1, 4)) @ m.w
    ),
    "a list": lambda m, x, n: [
        m.layer(part) for part in x.split(n.flatten()[:2].clamp(max=1).tolist())
    ],
    "a sum that indexes": lambda m, x, n: m.layer(x)[: n.sum() - 3] @ m.w,
    "written in place": lambda m, x, n: (
        m.layer(x) if n.clone().fill_(0).any() else m.layer(x) @ m.w
    ),
    "a view written": lambda m, x, n: _zeroed(n).sum().item() * [m.layer(x)],
    "like an activation": lambda m, x, n: (
        m.layer(x) if torch.ones_like(x, dtype=torch.bool).all() else x
    ),
    "numpy": lambda m, x, n: [m.layer(x) for _ in range(n.cpu().numpy().max() + 1)],
    "a constant": lambda m, x, n: [
        m.layer(x) for _ in torch.tensor([1, 0, 1], device=x.device).nonzero()
    ],
    "repeated": lambda m, x, n: m.layer(x.repeat_interleave(n.flatten()[:2], dim=0)),
    "a key in a text": lambda m, x, n: {"3": m.layer, "1": m.layer}.get(
        f"{n.to(x.device)[0].max()}", abs
    )(x),
    "selected by a list": lambda m, x, n: (
        m.layer(x) if 0 in n.flatten()[[-1, 0]] else m.layer(x) @ m.w
    ),
    "selected by a list of each dimension": lambda m, x, n: (
        m.layer(x) if (n.view(1, -1)[:, [1, 0]] < 2).any() else x
    ),
    "a list that is a mask": lambda m, x, n: m.layer(x)[[True, False]] @ m.w,
    "written where a list says": lambda m, x, n: (
        m.layer(x) if _without_first(n).any() else m.layer(x) @ m.w
    ),
    "tensor_split": lambda m, x, n: [m.layer(part) for part in x.tensor_split(n.flatten()[:1])],
}


def _without_first(numbers):
    copy = numbers.flatten()[:1].clone()
    copy[[0]] = 0
    return copy


def _zeroed(numbers):
    copy = numbers.clone()
    copy[0].zero_()
    return copy


@pytest.mark.parametrize("numbers", [MASK, LENGTHS], ids=["mask", "lengths"])
@pytest.mark.parametrize("name", ASKS)
def test_values_that_follow_from_integers_are_known(name, numbers):
    model = _with_layer(ASKS[name], w=weight(4, 2))
    before = numbers.clone()
    profile = profile_ops(model, inputs=(X, numbers))
    assert profile.forward_macs == _macs_by_torch(model, X, numbers)
    assert profile.forward_macs == profile_ops(model, inputs=(X, numbers), values=True).forward_macs
    assert torch.equal(numbers, before)


@pytest.mark.parametrize(
    "ask",
    [
        lambda y: torch.isfinite(y).all(),
        lambda y: not torch.isinf(y).any(),
        lambda y: not y.isnan().any(),
        lambda y: not (torch.isinf(y).any() or torch.isnan(y).any()),
        lambda y: not (y.isinf() | y.isnan()).any(),
    ],
)
@pytest.mark.parametrize("rows", [2, 70_000])
def test_an_activation_is_a_finite_number(ask, rows):
    model = _with_layer(lambda m, x: m.layer(x) if ask(m.layer(x)) else x)
    assert profile_ops(model, (rows, 4)).forward_macs == 2 * rows * 4 * 4


def test_what_the_caller_passes_may_be_infinite():
    with pytest.raises(ForwardError, match="needs the values"):
        profile_ops(_with_layer(lambda m, x: m.layer(x) if x.isinf().any() else x), (2, 4))


def test_a_packed_sequence_is_an_input():
    packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(4, 2, 3), torch.tensor([4, 2]))
    for values in (False, True):
        assert profile_ops(nn.GRU(3, 5), inputs=(packed,), values=values).forward_macs == 6 * 15 * (
            3 + 5
        )


@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: m.layer(x) + torch.from_numpy(np.ones(4, np.float32)),
        lambda m, x: m.layer(x)[torch.LongTensor([1, 0])] + torch.Tensor([1, 2, 3, 4]),
        lambda m, x: m.layer(x) * (torch.arange(4) > 1).type(x.type()),
    ],
)
def test_tensors_made_by_old_constructors(run):
    assert profile_ops(_with_layer(run), (2, 4)).forward_macs == 2 * 4 * 4


def test_a_value_that_an_activation_wrote_is_not_known():
    def run(model, x, n):
        n[0] = model.layer(x).sum().long()
        return model.layer(x) if n.sum() > 0 else x

    with pytest.raises(ForwardError, match=r"needs the values of an activation .*pass values=True"):
        profile_ops(_with_layer(run), inputs=(X, torch.tensor([3, 1])))


def test_code_that_asks_for_the_device_is_told_the_cpu():
    def run(model, x):
        seen.append((x.device, model.layer.weight.device, x.is_meta, x.is_cuda, x.is_cpu))
        return model.layer(x)

    seen = []
    profile_ops(_with_layer(run), (2, 4))
    assert seen == [(torch.device("cpu"), torch.device("cpu"), False, False, True)]


def test_functions_that_compare_devices():
    def run(model, x):
        return torch.stft(model.layer(x), 4, window=torch.hann_window(4), return_complex=True)

    profile = profile_ops(_with_layer(run), (2, 4))
    assert (profile.forward_macs, profile.may_hold_products) == (32, ("aten._fft_r2c.default",))


def test_no_message_names_a_device_that_nobody_chose():
    def run(model, x):
        return torch.func.grad(lambda w: (x @ w).square().sum())(model.w)

    model = Functional(run, w=weight(4, 4))
    with pytest.raises(
        ForwardError, match=r"shapes alone cannot follow \(RuntimeError\); pass values=True"
    ) as caught:
        profile_ops(model, (2, 4))
    assert "meta" not in str(caught.value)
    assert profile_ops(model, (2, 4), values=True).forward_macs == 2 * 2 * 4 * 4


def test_a_real_run_leaves_the_model_as_it_was():
    def run(model, x, n):
        model.calls += 1
        model.last = model.layer(x)
        with torch.no_grad():
            model.layer.weight.mul_(2)
            model.table.weight.data[0] = 7
            n[0] = 5
        kept = model.norm(model.drop(model.layer(x)))
        return kept[kept.sum(1) > -9] + model.table(n).sum() * random.random() * np.random.rand()

    model = Functional(
        run,
        layer=nn.Linear(4, 4),
        norm=nn.BatchNorm1d(4),
        drop=nn.Dropout(),
        last=None,
        table=nn.Embedding(9, 4, max_norm=0.1),
        calls=torch.zeros((), dtype=torch.long),
    )
    x, n = torch.ones(2, 4), torch.tensor([3, 1])
    before, versions = _state(model), (x._version, n._version)
    profile = profile_ops(model, inputs=(x, n), values=True, optimizer=torch.optim.SGD)
    assert _state(model) == before
    assert (n.tolist(), x._version, n._version) == ([3, 1], *versions)
    assert profile.forward_macs == 2 * 2 * 4 * 4
    assert set(profile.random_draws) == {"Functional", "Python's random", "numpy.random"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(4, 4, 2, bidirectional=True),
        lambda: nn.TransformerEncoderLayer(4, 2, 8).eval(),
        lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), nn.GELU()),
        lambda: nn.GRU(4, 4, 2, dropout=0.5),
    ],
)
def test_a_real_run_counts_what_shapes_give(make):
    model = make()
    on_shapes, real = profile_ops(model, (3, 4, 4)), profile_ops(model, (3, 4, 4), values=True)
    for field in (
        "forward_macs",
        "forward_flops",
        "backward_macs",
        "backward_flops",
        "not_counted",
    ):
        assert getattr(on_shapes, field) == getattr(real, field), field


def test_a_model_on_meta_has_no_values():
    with pytest.raises(ValueError, match="the model is on meta, which holds none"):
        profile_ops(nn.Linear(3, 4, device="meta"), (2, 3), values=True)


def test_detection_is_counted_by_a_real_run():
    detection = pytest.importorskip("torchvision.models.detection")
    torch.manual_seed(0)
    model = detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3
    ).eval()
    images = [torch.rand(3, 64, 64)]
    with pytest.raises(ForwardError, match="pass values=True"):
        profile_ops(model, inputs=(images,))
    assert profile_ops(model, inputs=(images,), values=True).forward_macs == _macs_by_torch(
        model, images
    )


@pytest.mark.parametrize(("make", "named"), [
    (lambda: nn.TransformerEncoderLayer(4, 2, 8), ("self_attn",)),
    (lambda: nn.TransformerEncoderLayer(4, 2, 8).eval(), ("self_attn",)),
    (lambda: _with_layer(lambda m, x: F.scaled_dot_product_attention(x, x, x)), ("Functional",)),
    (lambda: _with_layer(lambda m, x: torch.softmax(x @ x.mT, -1) @ x), ()),
    (lambda: _with_layer(lambda m, x: nn.MultiheadAttention(4, 2)(x, x, x)[1]), ()),
])  # fmt: skip
def test_attention_that_a_kernel_may_fuse_is_named(make, named):
    model, x = make(), torch.ones(3, 4, 4)
    with operations.count_ops() as ops, torch.no_grad():
        model(x)
    for profile in (profile_ops(model, x), profile_ops(model, x, values=True), ops.profile()):
        assert [name.rpartition(".")[2] for name in profile.attention_taken_apart] == list(named)
        assert ("attention is taken apart" in str(profile)) == bool(named)


@pytest.mark.parametrize(("run", "named"), [
    (lambda m, x: m.layer(x) if torch.rand([]) < 0.5 else x, ("Functional",)),
    (lambda m, x: m.layer(x) if torch.empty(1).uniform_() < 0.5 else x, ("Functional",)),
    (lambda m, x: m.layer(x) if random.random() < 0.5 else x, ("Python's random",)),
    (lambda m, x: m.layer(x) if np.random.rand() < 0.5 else x, ("numpy.random",)),
    (lambda m, x: F.dropout(m.layer(x)) + torch.rand(4), ()),
    (lambda m, x: m.layer(x)[F.dropout(torch.ones(2), 0.9) > 0] @ m.layer.weight, ("Functional",)),
    (lambda m, x: m.layer(x)[torch.randperm(2)], ()),
])  # fmt: skip
def test_a_count_that_depends_on_a_draw_says_so(run, named):
    profile = profile_ops(_with_layer(run), (2, 4))
    assert profile.random_draws == named
    assert ("depends on a random draw" in str(profile)) == bool(named)


def test_the_headline_says_at_least_where_products_may_be_missing():
    custom = Functional(
        lambda m, x: HiddenGradient.apply(m.a(x), m.w), a=nn.Linear(3, 3), w=weight(3, 3)
    )
    lines = str(profile_ops(custom, (2, 3))).splitlines()
    assert lines[1].startswith("  forward   36 MAC, 72 FLOP")
    assert lines[2].startswith("  backward  at least 18 MAC, at least ")
    assert lines[3] == "  no rule for HiddenGradientBackward: may hold multiply-accumulates"
    lines = str(
        profile_ops(Functional(lambda m, x: m.a(x).sort()[0], a=nn.Linear(3, 3)), (2, 3))
    ).splitlines()
    assert lines[1].startswith("  forward   18 MAC, at least 36 FLOP, at least ")
    assert lines[3] == "  no rule for aten.sort.default: no multiply-accumulates"
    inverted = profile_ops(
        Functional(lambda m, x: torch.linalg.inv(m.a(x)), a=nn.Linear(3, 3)), (3, 3)
    )
    assert inverted.may_hold_products == ("aten.linalg_inv_ex.default",)


@torch.library.custom_op("operation_tests::product", mutates_args=())
def _product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


@_product.register_fake
def _(x, w):
    return x.new_empty(x.shape[0], w.shape[1])


@pytest.mark.parametrize(
    "name",
    [
        _product,
        torch.ops.operation_tests.product,
        "operation_tests::product",
        torch.ops.operation_tests.product.default,
    ],
)
def test_a_rule_of_ones_own(name):
    model = Functional(
        lambda m, x: _product(m.layer(x), m.w), layer=nn.Linear(4, 4), w=weight(4, 2)
    )
    assert "operation_tests.product.default" in profile_ops(model, (3, 4)).may_hold_products

    def rule(call):
        x, w = call.inputs
        return operations.work(call, macs=x.numel * w.shape[1], flops=call.output.numel)

    with operations.register(name, rule, lambda call: operations.work(call, macs=2 * 3 * 4 * 2)):
        profile = profile_ops(model, (3, 4))
    assert profile.forward_macs == 3 * 4 * 4 + 3 * 4 * 2
    assert profile.backward_macs == 3 * 4 * 4 + 2 * 3 * 4 * 2
    assert profile.forward_flops == 2 * profile.forward_macs + 3 * 2
    assert profile.not_counted == ()


def test_a_gradient_without_a_rule_is_not_counted():
    model = Functional(
        lambda m, x: _product(m.layer(x), m.w), layer=nn.Linear(4, 4), w=weight(4, 2)
    )
    with operations.register(_product, lambda call: operations.work(call, macs=3 * 4 * 2)):
        profile = profile_ops(model, (3, 4))
        inference = profile_ops(model.requires_grad_(False), (3, 4))
    assert profile.forward_macs == inference.forward_macs == 3 * 4 * 4 + 3 * 4 * 2
    # of the layer before, since that of the product is not known
    assert profile.backward_macs == 3 * 4 * 4
    assert profile.not_counted == profile.may_hold_products
    assert profile.not_counted == ("operation_tests.product.default",)
    assert inference.not_counted == ()


def test_a_rule_can_be_taken_back_in_any_order():
    model = Functional(
        lambda m, x: _product(m.layer(x), m.w), layer=nn.Linear(4, 4), w=weight(4, 2)
    )
    before = profile_ops(model, (3, 4))
    first, second = (
        operations.register(_product, lambda call, n=n: operations.work(call, macs=n))
        for n in (100, 200)
    )
    assert profile_ops(model, (3, 4)).forward_macs == before.forward_macs + 200
    first.close()
    assert profile_ops(model, (3, 4)).forward_macs == before.forward_macs + 200
    with operations.register("aten::addmm", lambda call: operations.work(call, macs=7)):
        assert profile_ops(model, (3, 4)).forward_macs == 7 + 200
    second.close(), second.close()
    assert profile_ops(model, (3, 4)) == before


def test_one_rule_that_is_given_twice_is_taken_back_in_any_order():
    def twice(call):
        return operations.work(call, macs=100)

    first = operations.register("aten::addmm", twice)
    between = operations.register("aten::addmm", lambda call: operations.work(call, macs=200))
    # counts in place and out of place
    last = operations.register(torch.ops.aten.addmm_.default, twice)
    assert profile_ops(nn.Linear(3, 4), (2, 3)).forward_macs == 100
    last.close()
    assert profile_ops(nn.Linear(3, 4), (2, 3)).forward_macs == 200
    first.close(), between.close()
    assert profile_ops(nn.Linear(3, 4), (2, 3)).forward_macs == 24


@pytest.mark.parametrize(
    ("rule", "error", "said"),
    [
        (
            lambda call: 3,
            TypeError,
            "the rule registered for addmm returned an int; it must return operations.work",
        ),
        (
            lambda call: None,
            TypeError,
            "the rule registered for addmm returned None; it must return",
        ),
        (
            lambda call: call.nosuch,
            RuntimeError,
            "for addmm raised AttributeError: 'Call' object has no attribute",
        ),
    ],
)
def test_a_rule_that_gives_no_work_is_named(rule, error, said):
    for forward, backward in ((rule, None), (operations.work, rule)):
        with (
            operations.register("aten::addmm", forward, backward),
            pytest.raises(error, match=said),
        ):
            profile_ops(nn.Linear(3, 4), (2, 3))


@pytest.mark.parametrize(
    "name",
    [
        "nosuch",
        "aten::nosuch",
        "att::nosuch",
        "aten::sort.stable",
        "aten::name",
        "",
        3,
        torch.addmm,
        torch.ops.aten,
        nn.Linear,
    ],
)
def test_what_names_no_operator(name):
    with pytest.raises(
        TypeError, match=r"the operator [^<>]* cannot be used; pass an operator that is defined"
    ):
        operations.register(name, operations.work)


def test_a_rule_needs_an_operator_and_a_function():
    with pytest.raises(TypeError, match="3 cannot be used; pass an operator"):
        operations.register(3, lambda call: None)
    with pytest.raises(TypeError, match="the rule 6 cannot be used"):
        operations.register("aten::sort", operations.work, 6)
    with pytest.raises(TypeError, match="the rule 5 cannot be used"):
        operations.register("aten::sort", 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)),
        lambda: nn.Conv1d(4, 4, 1),
        lambda: nn.LSTM(4, 4),
    ],
)
@pytest.mark.parametrize("values", [False, True])
def test_gradients_of_the_inputs(make, values):
    with torch.device("meta"):
        model, x = make(), torch.zeros(2, 4, 4, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        outputs = model(x)
        (outputs[0] if isinstance(outputs, tuple) else outputs).sum().backward()
    profile = profile_ops(make(), (2, 4, 4), inputs_need_grad=True, values=values)
    assert 2 * (profile.forward_macs + profile.backward_macs) == counter.get_total_flops()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True, "bias": False}]
)
@pytest.mark.parametrize(
    "part", [lambda y: y[0], lambda y: y[0][-1], lambda y: y[1]], ids=["all", "last", "state"]
)
def test_recurrent_layers_against_every_step_unrolled(kind, length, options, part):
    def run(model, x):
        result = part(model.layer(model.first(x)))
        return result[0] if isinstance(result, tuple) else result

    with torch.device("meta"):
        model = Functional(run, first=nn.Linear(3, 4), layer=kind(4, 5, **options))
    shape = (2, length, 3) if options.get("batch_first") else (length, 2, 3)
    profile = profile_ops(model, shape)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(shape, device="meta")).sum().backward()
    assert 2 * (profile.forward_macs + profile.backward_macs) == counter.get_total_flops()


def test_packed_sequences_padded_again():
    def run(model, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(model.layer(packed)[0])[0] @ model.w

    model = Functional(run, layer=nn.LSTM(3, 4, bidirectional=True), w=weight(8, 2))
    profile = profile_ops(model, inputs=(torch.zeros(6, 3, 3), torch.tensor([2, 5, 4])))
    assert profile.forward_macs == 2 * 11 * 16 * (3 + 4) + 3 * 5 * 8 * 2


@pytest.mark.timed
def test_a_long_sequence_takes_no_longer_than_a_short_one():
    model, fastest = nn.LSTM(64, 128, 2), {10: float("inf"), 100: float("inf")}
    for _ in range(5):
        for length in fastest:
            begin = time.process_time()
            profile_ops(model, (length, 4, 64))
            fastest[length] = min(fastest[length], time.process_time() - begin)
    assert fastest[100] <= 2 * fastest[10]


def test_an_optimizer_that_reads_a_number():
    a, b = (profile_ops(nn.Linear(n, 8), (1, n), optimizer=torch.optim.Adafactor) for n in (16, 32))
    assert b.optimizer_flops > a.optimizer_flops > 5 * 16 * 8
    with pytest.raises(ModelError, match="LBFGS runs the model several times in one step"):
        profile_ops(nn.Linear(3, 4), (2, 3), optimizer=torch.optim.LBFGS)


@pytest.mark.parametrize("option", ["fused", "capturable"])
def test_an_optimizer_with_options_for_a_device(option):
    with pytest.raises(
        ValueError, match=r"options for a device \(fused, capturable\); give it without them"
    ) as caught:
        profile_ops(
            nn.Linear(3, 4), (2, 3), optimizer=lambda p: torch.optim.AdamW(p, **{option: True})
        )
    assert "meta" not in str(caught.value)


def test_a_real_run_that_fails_does_not_point_to_a_real_run():
    def run(model, x):
        raise NotImplementedError("never")

    with pytest.raises(ForwardError, match=r"NotImplementedError: never$"):
        profile_ops(_with_layer(run), inputs=X, values=True)


def test_sizes_of_numpy_are_a_shape():
    assert profile_ops(nn.Linear(3, 4), tuple(np.array([2, 3]))).forward_macs == 24


def test_buffers_on_meta_keep_their_version():
    model = nn.BatchNorm1d(4, device="meta")
    profile_ops(model, (2, 4))
    assert [buffer._version for buffer in model.buffers()] == [
        buffer._version for buffer in nn.BatchNorm1d(4, device="meta").buffers()
    ]
