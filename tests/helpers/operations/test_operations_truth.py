"""Multiply-accumulates against counts made by hand, one line of arithmetic each."""

from __future__ import annotations

import resource

import pytest
import torch
import torch.nn.functional as F
from operation_samples import (
    Functional,
    HiddenGradient,
    Llama,
    OwnGradient,
    SkippingGradient,
    weight,
)
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from helpers.models import LeNet
from helpers.operations import _formulas as formulas, profile_ops

torchvision_models = pytest.importorskip("torchvision.models")

IMAGE = (1, 3, 224, 224)
KNOWN = {
    "lenet": (LeNet, (1, 1, 28, 28), 278_520),
    "alexnet": (torchvision_models.alexnet, IMAGE, 714_188_480),
    "resnet50": (torchvision_models.resnet50, IMAGE, 4_089_184_256),
    "vit_b_16": (torchvision_models.vit_b_16, IMAGE, 17_563_828_224),
    "mobilenet_v2": (torchvision_models.mobilenet_v2, IMAGE, 300_774_272),
    "efficientnet_b0": (torchvision_models.efficientnet_b0, IMAGE, 385_814_752),
}


def on_meta(make, **options):
    with torch.device("meta"):
        return make(**options)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("training", [True, False])
def test_known_networks(name, training):
    make, shape, macs = KNOWN[name]
    model = on_meta(make).train(training)
    with torch.no_grad():
        profile = profile_ops(model, shape)
    first = next(row.forward_macs for row in profile.layers if row.kind == "Conv2d")
    assert profile.forward_macs == profile.forward_useful_macs == macs
    # the class token joins after the first convolution, whose input alone needs no gradient
    if name == "vit_b_16":
        assert profile.layer("conv_proj").forward_macs == first
    assert profile.forward_macs + profile.backward_macs == 3 * macs - first
    assert profile.not_counted == ()
    assert profile.parameters == sum(p.numel() for p in model.parameters())


def test_lenet_forward_and_backward_of_the_lecture():
    profile = profile_ops(LeNet(variant="lecture"), (1, 1, 28, 28))
    assert profile.forward_macs + profile.backward_macs == 749_160
    products = [row for row in profile.layers if row.kind in ("Conv2d", "Linear")]
    assert sum(row.forward_flops for row in products) == 557_040


def test_a_wrong_rule_would_be_seen(monkeypatch):
    right = formulas._convolution_macs
    wrong = formulas._product_rule(lambda call, data, weight: right(call, data, weight) + 1)
    monkeypatch.setitem(formulas._RULES, "convolution", wrong)
    assert profile_ops(LeNet(), (1, 1, 28, 28)).forward_macs == 278_520 + 2


@pytest.mark.parametrize("training", [True, False])
def test_lstm_two_layers_both_directions(training):
    batch, length, inputs, hidden = 4, 50, 64, 128
    profile = profile_ops(
        nn.LSTM(inputs, hidden, 2, bidirectional=True).train(training), (length, batch, inputs)
    )
    first_input = batch * length * 2 * 4 * hidden * inputs
    initial_state = 4 * batch * 4 * hidden * hidden  # zeros: no gradient goes into them
    assert profile.forward_macs == 117_964_800
    assert profile.backward_macs == 2 * 117_964_800 - first_input - initial_state


@pytest.mark.parametrize(("kind", "gates"), [(nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers(kind, gates):
    profile = profile_ops(kind(64, 128), (50, 4, 64))
    assert profile.forward_macs == 4 * 50 * gates * 128 * (64 + 128)
    assert profile.backward_macs == 2 * profile.forward_macs - 4 * gates * 128 * (50 * 64 + 128)


def test_packed_sequences_count_their_own_lengths():
    def run(model, x, lengths):
        return model.layer(nn.utils.rnn.pack_padded_sequence(x, lengths))[0].data

    lengths = torch.tensor([5, 3, 2])
    profile = profile_ops(
        Functional(run, layer=nn.LSTM(8, 4)), inputs=(torch.zeros(5, 3, 8), lengths)
    )
    assert profile.forward_macs == 10 * 4 * 4 * (8 + 4)


@pytest.mark.parametrize("options", [{}, {"need_weights": False}])
@pytest.mark.parametrize("state", ["training", "eval", "frozen"])
def test_multi_head_attention(options, state):
    x = torch.zeros(2, 196, 512)
    model = nn.MultiheadAttention(512, 8, batch_first=True).train(state == "training")
    model.requires_grad_(state != "frozen")
    profile = profile_ops(model, inputs={"query": x, "key": x, "value": x, **options})
    scores, projections = 2 * 2 * 196 * 196 * 512, 4 * 2 * 196 * 512 * 512
    assert profile.forward_macs == scores + projections == 489_717_760
    trained = 2 * scores + 2 * projections - 3 * projections // 4  # the inputs need no gradient
    assert profile.backward_macs == (0 if state == "frozen" else trained)


def test_causal_attention_executes_all_and_uses_half():
    def run(model, x):
        return F.scaled_dot_product_attention(x * model.scale, x, x, is_causal=True)

    profile = profile_ops(Functional(run, scale=weight(1)), (2, 3, 7, 8))
    assert profile.forward_macs == 2 * (2 * 3) * 7 * 7 * 8
    assert profile.forward_useful_macs == 2 * (2 * 3) * (7 * 8 // 2) * 8
    assert (profile.backward_macs, profile.backward_useful_macs) == (4704, 2688)


def test_causal_attention_of_fewer_keys_than_queries():
    def run(model, x, y):
        return F.scaled_dot_product_attention(x * model.scale, y, y, is_causal=True)

    model = Functional(run, scale=weight(1))
    profile = profile_ops(model, inputs=(torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 3, 8)))
    assert profile.forward_useful_macs == 2 * 2 * (1 + 2 + 3 + 3 + 3) * 8


@pytest.mark.parametrize("need_weights", [True, False])
def test_causal_multi_head_attention(need_weights):
    x, mask = torch.zeros(2, 6, 8), torch.ones(6, 6, dtype=torch.bool).triu(1)
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    arguments = {
        "query": x,
        "key": x,
        "value": x,
        "attn_mask": mask,
        "is_causal": True,
        "need_weights": need_weights,
    }
    profile = profile_ops(model, inputs=arguments)
    assert profile.forward_macs - profile.forward_useful_macs == 2 * 2 * 8 * (6 * 6 - 6 * 7 // 2)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolutions(dimensions, groups):
    plain = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dimensions - 1]
    places, taps, batch = 8**dimensions, 3**dimensions, 2
    model = nn.Sequential(plain(4, 4, 1, bias=False), plain(4, 8, 3, padding=1, groups=groups))
    profile = profile_ops(model, (batch, 4, *[8] * dimensions))
    one, two = batch * places * 4 * 4, batch * places * 8 * (4 // groups) * taps
    assert profile.forward_macs == one + two
    assert profile.backward_macs == one + 2 * two


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions(dimensions, groups):
    kind = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d][dimensions - 1]
    profile = profile_ops(kind(4, 6, 3, stride=2, groups=groups), (2, 4, *[8] * dimensions))
    assert (
        profile.forward_macs
        == profile.backward_macs
        == 2 * 4 * 8**dimensions * (6 // groups) * 3**dimensions
    )


@pytest.mark.parametrize(
    ("function", "shape", "macs"),
    [
        (lambda m, x: F.conv2d(x, m.w), ((6, 4, 3, 3), (1, 4, 8, 8)), 6 * 36 * 36),
        (lambda m, x: x @ m.w, ((4, 5), (2, 3, 4)), 120),
        (lambda m, x: F.linear(x, m.w), ((5, 4), (3, 4)), 60),
        (lambda m, x: torch.einsum("bi,ij->bj", x, m.w), ((4, 5), (3, 4)), 60),
        (
            lambda m, x: torch.einsum("bhqd,bhkd->bhqk", x, m.w),
            ((2, 3, 7, 4), (2, 3, 5, 4)),
            2 * 3 * 5 * 7 * 4,
        ),
        (lambda m, x: torch.bmm(x, m.w), ((2, 4, 5), (2, 3, 4)), 120),
        (lambda m, x: torch.baddbmm(x.new_zeros(5), x, m.w), ((2, 4, 5), (2, 3, 4)), 120),
        (lambda m, x: torch.addmm(x.new_zeros(5), x, m.w), ((4, 5), (3, 4)), 60),
        (lambda m, x: torch.mv(m.w, x), ((5, 4), (4,)), 20),
        (lambda m, x: x @ m.w, ((4, 5), (4,)), 20),
        (lambda m, x: x @ m.w, ((4,), (4,)), 4),
        (lambda m, x: torch.tensordot(x, m.w, 2), ((4, 5, 6), (3, 4, 5)), 3 * 20 * 6),
        (lambda m, x: x * m.w, ((4,), (3, 4)), 0),
    ],
)
def test_products_outside_modules(function, shape, macs):
    model_shape, input_shape = shape
    profile = profile_ops(Functional(function, w=weight(*model_shape)), input_shape)
    assert profile.forward_macs == profile.backward_macs == macs
    assert profile.not_counted == ()


def test_bilinear():
    profile = profile_ops(nn.Bilinear(3, 4, 5), ((2, 3), (2, 4)))
    assert profile.forward_macs == profile.backward_macs == 2 * 5 * 3 * 4

    def run(model, x):
        return F.bilinear(model.first(x), x, model.w)

    profile = profile_ops(Functional(run, w=weight(5, 3, 3), first=nn.Linear(3, 3)), (2, 3))
    assert profile.forward_macs == 2 * 3 * 3 + 2 * 5 * 9
    assert profile.backward_macs == 2 * 3 * 3 + 2 * (2 * 5 * 9) + 2 * 9


def test_embedding_multiplies_nothing():
    profile = profile_ops(nn.Embedding(10, 4), inputs=torch.zeros(2, 3, dtype=torch.long))
    assert (profile.forward_macs, profile.backward_macs) == (0, 0)
    assert profile.backward_flops == 24  # the gradients of rows are added up
    assert profile.layer("").weight_bytes == 2 * 3 * 4 * 4  # only the rows taken are read


def test_shared_reused_tied_and_unused_modules():
    layer = nn.Linear(4, 4)
    shared = profile_ops(nn.Sequential(layer, nn.ReLU(), layer), (2, 4))
    assert (shared.forward_macs, shared.backward_macs, shared.parameters) == (64, 96, 20)
    assert shared.layer("0").calls == 2

    tokens, head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    head.weight = tokens.weight
    tied = profile_ops(nn.Sequential(tokens, head), inputs=torch.zeros(2, 3, dtype=torch.long))
    assert (tied.forward_macs, tied.backward_macs, tied.parameters) == (240, 480, 40)

    unused = profile_ops(
        Functional(lambda m, x: m.a(x), a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (2, 4)
    )
    assert (unused.forward_macs, unused.layer("b").calls, unused.parameters) == (32, 0, 40)


def test_the_backward_goes_only_where_gradients_go():
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    dead = profile_ops(Functional(lambda m, x: (m.b(x), m.a(x))[1], a=one, b=two), (2, 4))
    assert (dead.forward_macs, dead.backward_macs) == (64, 32)
    detached = profile_ops(Functional(lambda m, x: m.a(m.b(x).detach()), a=one, b=two), (2, 4))
    assert (detached.forward_macs, detached.backward_macs) == (64, 32)

    def half(model, x):
        with torch.no_grad():
            x = model.b(x)
        return model.a(x)

    assert profile_ops(Functional(half, a=one, b=two), (2, 4)).backward_macs == 32
    through_slice = Functional(lambda m, x: _written(m.a(x)) @ m.w, a=one, w=weight(4, 4))
    assert profile_ops(through_slice, (2, 4)).backward_macs == 32 + 2 * 5 * 4 * 4


def _written(part):
    whole = torch.zeros(5, 4)
    whole[:2] = part
    return whole


def test_frozen_layers():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    assert profile_ops(model, (2, 4)).backward_macs == 32 + 64
    model[0].requires_grad_(True)
    model[1].requires_grad_(False)
    assert profile_ops(model, (2, 4)).backward_macs == 32 + 32 + 64
    model.requires_grad_(False)
    assert profile_ops(model, (2, 4), optimizer=torch.optim.SGD).backward_flops == 0


IN_PLACE = [
    nn.ReLU,
    nn.ReLU6,
    nn.SiLU,
    nn.Hardswish,
    nn.ELU,
    nn.LeakyReLU,
    nn.Mish,
    nn.Hardsigmoid,
    nn.CELU,
    nn.SELU,
]


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("kind", IN_PLACE)
def test_an_activation_in_place_has_the_gradient_of_the_plain_one(kind, values):
    plain, in_place = (
        profile_ops(
            nn.Sequential(nn.Linear(8, 8), kind(inplace=inplace), nn.Linear(8, 2)),
            (5, 8),
            values=values,
        )
        for inplace in (False, True)
    )
    assert in_place.layer("1").backward_flops == plain.layer("1").backward_flops > 0
    assert in_place.backward_flops == plain.backward_flops


@pytest.mark.parametrize("values", [False, True])
def test_a_gradient_that_is_code_is_followed(values):
    custom = Functional(
        lambda m, x: OwnGradient.apply(m.a(x), m.w).relu(), a=nn.Linear(3, 3), w=weight(3, 3)
    )
    plain = Functional(lambda m, x: (m.a(x) @ m.w).relu(), a=nn.Linear(3, 3), w=weight(3, 3))
    ours, known = (
        profile_ops(custom, (2, 3), values=values),
        profile_ops(plain, (2, 3), values=values),
    )
    for name in ("forward_macs", "forward_flops", "backward_macs", "backward_flops"):
        assert getattr(ours, name) == getattr(known, name)
    assert ours.not_counted == ()
    assert ours.layers[-1].backward_macs == 2 * 18


def test_a_gradient_that_is_code_is_followed_on_one_that_is_not_zero():
    custom = Functional(
        lambda m, x: SkippingGradient.apply(m.a(x), m.w), a=nn.Linear(3, 3), w=weight(3, 3)
    )
    profile = profile_ops(custom, (2, 3), values=True)
    assert (profile.forward_macs, profile.backward_macs, profile.not_counted) == (36, 36 + 18, ())


def test_what_is_not_counted_is_named():
    custom = Functional(
        lambda m, x: HiddenGradient.apply(m.a(x), m.w), a=nn.Linear(3, 3), w=weight(3, 3)
    )
    profile = profile_ops(custom, (2, 3))
    assert (profile.forward_macs, profile.backward_macs) == (36, 18)
    assert profile.not_counted == ("HiddenGradientBackward",)
    sorting = profile_ops(Functional(lambda m, x: m.a(x).sort()[0], a=nn.Linear(3, 3)), (2, 3))
    assert sorting.not_counted == ("aten.sort.default",)
    assert sorting.may_hold_products == ()


CONTROLS = {
    "lenet": (LeNet, (2, 1, 28, 28)),
    "resnet18": (torchvision_models.resnet18, (1, 3, 64, 64)),
    "lstm": (lambda: nn.LSTM(8, 16, 2, bidirectional=True), (5, 3, 8)),
    "lstm projected": (lambda: nn.LSTM(8, 16, proj_size=4), (5, 3, 8)),
    "gru": (lambda: nn.GRU(8, 16, 2), (5, 3, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (2, 5, 16)),
    "encoder, sequence first": (lambda: nn.TransformerEncoderLayer(16, 4, 32), (5, 2, 16)),
    "swin": (torchvision_models.swin_t, (1, 3, 64, 64)),
    "transposed": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 5, 3, stride=2)),
        (1, 3, 9, 9),
    ),
}


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize("training", [True, False])
def test_backward_against_a_real_backward_counted_by_torch(name, training):
    """Without groups torch's own counter is right on the meta device; ours must say the same
    without running it.
    """
    make, shape = CONTROLS[name]
    model = on_meta(make).train(training)
    profile = profile_ops(model, shape)
    with FlopCounterMode(display=False) as counter:
        outputs = model(torch.zeros(shape, device="meta"))
        (outputs[0] if isinstance(outputs, tuple) else outputs).sum().backward()
    assert 2 * (profile.forward_macs + profile.backward_macs) == counter.get_total_flops()


def test_a_transformer_of_seven_billion_parameters():
    model = on_meta(Llama)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    profile = profile_ops(model, inputs=torch.zeros(1, 2048, dtype=torch.long))
    grown_bytes = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert profile.parameters == 6_738_415_616
    assert profile.forward_macs == 14_630_806_093_824
    # an embedding stands before every product
    assert profile.backward_macs == 2 * profile.forward_macs
    attention = 32 * 2 * 2048 * 2048 * 4096
    assert profile.forward_macs - profile.forward_useful_macs == attention // 2048 * (
        2048 - 2049 / 2
    )
    assert profile.not_counted == ()
    assert grown_bytes < 500e6
