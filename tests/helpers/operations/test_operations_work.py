"""FLOPs, bytes, the optimizer, the lecture's table and the shape rules: exact figures, worked out
by hand.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from operation_samples import Functional, weight
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from helpers.models import LeNet
from helpers.operations import convention_table, profile_ops
from helpers.operations._shapes import result_of

torchvision_models = pytest.importorskip("torchvision.models")


def test_bytes_of_lenet_by_layer():
    profile = profile_ops(LeNet(variant="lecture"), (1, 1, 28, 28))
    rows = {
        row.layer: (row.input_bytes, row.weight_bytes, row.output_bytes) for row in profile.layers
    }
    assert rows["conv1"] == (3136, 624, 13824)
    assert rows["relu1"] == (13824, 0, 13824)
    assert rows["pool1"] == (13824, 0, 3456)
    assert rows["conv2"] == (3456, 9664, 4096)
    assert rows["pool2"] == (4096, 0, 1024)
    assert rows["flatten"] == (0, 0, 0)
    assert rows["fc1"] == (1024, 123360, 480)
    assert rows["fc2"] == (480, 29040, 240)
    assert rows["fc3"] == (240, 2440, 40)


def test_bytes_of_alexnet_by_layer():
    profile = profile_ops(torchvision_models.alexnet(), (1, 3, 224, 224))
    rows = [row for row in profile.layers if row.kind in ("Conv2d", "Linear")]
    megabytes = [
        round((row.input_bytes + row.weight_bytes + row.output_bytes) / 1e6, 2) for row in rows
    ]
    assert megabytes == [1.47, 1.98, 3.05, 3.97, 2.71, 151.06, 67.16, 16.41]


def test_the_lectures_table_to_the_digit():
    table = profile_ops(LeNet(variant="lecture"), (1, 1, 28, 28)).lecture_table()
    assert table.total_operations == 295_700
    assert {row.layer: row.operations for row in table.layers} == {
        "conv1": 89_856,
        "relu1": 6_912,
        "pool1": 2_592,
        "conv2": 154_624,
        "relu2": 2_048,
        "pool2": 768,
        "fc1": 30_720,
        "relu3": 240,
        "fc2": 7_200,
        "relu4": 120,
        "fc3": 600,
        "relu5": 20,
    }
    assert table.not_covered == ()


def test_the_lectures_table_says_what_it_does_not_cover():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    assert profile_ops(model, (1, 1, 8, 8)).lecture_table().not_covered == ("1",)


# Forward and backward FLOPs of one operator on a (2, 3, 4, 4) activation that needs a gradient: n =
# 96.
@pytest.mark.parametrize(
    ("function", "forward", "backward"),
    [
        (F.relu, 96, 96),
        (torch.sigmoid, 4 * 96, 3 * 96),
        (F.gelu, 5 * 96, 11 * 96),
        (lambda x: F.gelu(x, approximate="tanh"), 9 * 96, 16 * 96),
        (F.glu, 5 * 48, 8 * 48),
        (lambda x: F.fold(x.view(2, 4, 12)[..., :9], 4, 2), 72, 0),
        (lambda x: F.unfold(x, 2), 0, 2 * 12 * 9),
        (lambda x: torch.polar(x, x.detach()), 4 * 96, 4 * 96),
        (lambda x: torch.polar(x.detach(), x), 4 * 96, 3 * 96),
        (lambda x: x + 1, 96, 0),
        (lambda x: torch.add(x, x.detach(), alpha=2), 2 * 96, 0),
        (lambda x: x * 2, 96, 96),
        (lambda x: x * x, 96, 3 * 96),  # two gradients of the same tensor, which are added
        (lambda x: F.softmax(x, -1), 5 * 96, 4 * 96),
        (lambda x: x.sum(), 96, 0),
        (lambda x: x.mean((2, 3)), 96, 96),
        (lambda x: F.max_pool2d(x, 2), 4 * 24, 24),
        (lambda x: F.avg_pool2d(x, 2), 4 * 24, 4 * 24),
        (lambda x: F.adaptive_avg_pool2d(x, 1), 96, 96),
        (lambda x: F.batch_norm(x, None, None, training=True), 5 * 96, 9 * 96),
        (lambda x: F.layer_norm(x, (4,)), 5 * 96, 9 * 96),
        (lambda x: x.transpose(0, 1).reshape(-1), 0, 0),
        (lambda x: torch.cat([x, x]), 0, 96),
        (lambda x: x > 0, 96, 0),
    ],
)
def test_element_wise_operations(function, forward, backward):
    base = profile_ops(Functional(lambda m, x: m.w.view(2, 3, 4, 4), w=weight(96)), (1,))
    profile = profile_ops(
        Functional(lambda m, x: function(m.w.view(2, 3, 4, 4)), w=weight(96)), (1,)
    )
    assert base.forward_flops == base.backward_flops == 0
    assert (profile.forward_flops, profile.backward_flops) == (forward, backward)
    assert profile.not_counted == ()


def test_bytes_of_glu_by_hand():
    profile = profile_ops(Functional(lambda m, x: F.glu(m.w), w=weight(6, 8)), (1,))
    assert (profile.forward_read_bytes, profile.forward_written_bytes) == (4 * 48, 4 * 24)
    assert (profile.backward_read_bytes, profile.backward_written_bytes) == (4 * (24 + 48), 4 * 48)


def test_a_bias_of_its_own_operator_is_free_and_a_separate_one_is_not():
    fused = profile_ops(nn.Linear(4, 5), (3, 4))
    separate = profile_ops(
        Functional(lambda m, x: x @ m.w + m.b, w=weight(4, 5), b=weight(5)), (3, 4)
    )
    assert fused.forward_flops == 2 * 60
    assert separate.forward_flops == 2 * 60 + 15
    # the bias's gradient is a sum either way
    assert fused.backward_flops == separate.backward_flops == 2 * 60 + 15


def test_batch_normalisation_by_mode():
    model = nn.BatchNorm2d(3)
    assert profile_ops(model, (2, 3, 4, 4)).forward_flops == 7 * 96
    assert profile_ops(model.eval(), (2, 3, 4, 4)).forward_flops == 4 * 96


def test_integers_are_not_floating_point_operations():
    profile = profile_ops(
        Functional(lambda m, x: x * 2 + 1), inputs=torch.zeros(5, dtype=torch.long)
    )
    assert (profile.forward_flops, profile.forward_read_bytes) == (0, 80)


def test_a_complex_product_is_four_real_ones():
    model = nn.Linear(3, 4, dtype=torch.cfloat)
    assert profile_ops(model, inputs=torch.zeros(2, 3, dtype=torch.cfloat)).forward_macs == 4 * 24


@pytest.mark.parametrize("values", [False, True])
def test_products_with_weights_of_eight_and_four_bits(values):
    data, scales = torch.ones(3, 64).bfloat16(), torch.ones(32).bfloat16()
    groups = torch.ones(2, 32, 2).bfloat16()
    int4 = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
        torch.ones(32, 64, dtype=torch.int32), 1
    )
    products = {
        lambda m, x: torch.ops.aten._weight_int8pack_mm(x, m.w, scales): torch.ones(
            32, 64, dtype=torch.int8
        ),
        lambda m, x: torch.ops.aten._weight_int4pack_mm_for_cpu(x, m.w, 32, groups): int4,
    }
    for run, w in products.items():
        profile = profile_ops(Functional(run, w=w), data, values=values)
        assert profile.forward_macs == 3 * 64 * 32
        assert profile.not_counted == ()


@pytest.mark.parametrize("left", [True, False])
def test_a_triangular_solve_and_its_gradient(left):
    def run(model, b):
        return torch.linalg.solve_triangular(model.a, b, upper=False, left=left)

    shape = (5, 4, 3) if left else (5, 3, 4)
    model = Functional(run, a=nn.Parameter(torch.eye(4)))
    profile = profile_ops(model, inputs=torch.ones(shape))
    assert (profile.forward_macs, profile.forward_flops) == (0, 4 * 60)
    assert profile.backward_macs == 4 * 60  # the product of a real step, as torch counts it
    with FlopCounterMode(display=False) as counter:
        run(model, torch.ones(shape)).sum().backward()
    assert counter.get_total_flops() == 2 * profile.backward_macs
    # product, solve, 5 matrices negated, added
    assert profile.backward_flops == (2 + 1) * 4 * 60 + 2 * 5 * 16
    model.a.requires_grad_(False)
    assert profile_ops(model, inputs=torch.ones(shape), inputs_need_grad=True).backward_macs == 0
    assert profile.not_counted == ()


def test_expanded_tensors_are_read_once():
    profile = profile_ops(Functional(lambda m, x: x.expand(10, 4) * 2), (1, 4))
    assert (profile.forward_read_bytes, profile.forward_written_bytes) == (16, 160)


@pytest.mark.parametrize(
    ("optimizer", "flops", "reads", "writes"),
    [
        (torch.optim.SGD, 2, 2, 1),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 4, 5, 3),
        (torch.optim.Adam, 13, 12, 7),
        (lambda p: torch.optim.Adam(p, foreach=True), 13, 12, 7),
        (torch.optim.AdamW, 14, 13, 8),
    ],
)
def test_optimizers(optimizer, flops, reads, writes):
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 5))
    model[0].bias.requires_grad_(False)
    profile = profile_ops(model, (2, 30), optimizer=optimizer)
    trained = 1200 + 205
    assert profile.optimizer_flops == flops * trained
    assert profile.optimizer_read_bytes == 4 * reads * trained
    assert profile.optimizer_written_bytes == 4 * writes * trained
    assert profile.layer("1").optimizer_flops == flops * 205
    assert profile.not_counted == ()


def test_an_optimizer_skips_what_receives_no_gradient():
    model = Functional(lambda m, x: m.a(x), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    assert profile_ops(model, (2, 4), optimizer=torch.optim.SGD).optimizer_flops == 2 * 20


def test_every_convention_has_its_steps():
    table = convention_table()
    assert (table["steps"].str.len() > 0).all()
    assert not table["operator"].duplicated().any()


LAYOUTS = {
    "plain": torch.empty(2, 3, 4, 5, device="meta"),
    "channels last": torch.empty(2, 3, 4, 5, device="meta").to(memory_format=torch.channels_last),
    "transposed": torch.empty(4, 3, 2, 5, device="meta").transpose(0, 2),
    "cut": torch.empty(2, 3, 4, 9, device="meta")[..., :5],
    "half": torch.empty(2, 3, 4, 5, device="meta", dtype=torch.bfloat16),
    "empty": torch.empty(0, 3, 4, 5, device="meta"),
}


def _like(result):
    return [
        (item.shape, item.stride(), item.dtype)
        for item in (result if isinstance(result, tuple) else (result,))
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name",
    ["relu", "sigmoid", "gelu", "exp", "add", "mul", "native_layer_norm", "native_batch_norm"],
)
def test_shape_rules_against_torch(name, layout):
    data, aten = LAYOUTS[layout], torch.ops.aten
    if name in ("add", "mul"):
        args = (data, data)
    elif name == "native_layer_norm":
        args = (data, [5], None, None, 1e-5)
    elif name == "native_batch_norm":
        args = (data, None, None, None, None, True, 0.1, 1e-5)
    else:
        args = (data,)
    ours, theirs = result_of(name, args, {}, in_place=False), getattr(aten, name)(*args)
    # the statistics beside the result are not looked at
    count = 1 if name.startswith("native") else None
    assert _like(ours)[:count] == _like(theirs)[:count]


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("stride", "padding", "dilation", "added", "groups"), [
    (1, 0, 1, 0, 1), (2, 1, 1, 1, 1), (3, 2, 2, 0, 2), (1, 1, 3, 0, 4),
])  # fmt: skip
def test_shape_rules_of_convolution_against_torch(
    dimensions, transposed, stride, padding, dilation, added, groups
):
    data = torch.empty(2, 4, *range(9, 9 + dimensions), device="meta")
    weight_shape = (4, 8 // groups) if transposed else (8, 4 // groups)
    kernel = torch.empty(*weight_shape, *range(2, 2 + dimensions), device="meta")
    lists = [[value] * dimensions for value in (stride, padding, dilation)]
    args = (
        data,
        kernel,
        torch.empty(8, device="meta"),
        *lists,
        transposed,
        [added] * dimensions,
        groups,
    )
    assert _like(result_of("convolution", args, {}, in_place=False)) == _like(
        torch.ops.aten.convolution(*args)
    )


def _laid_out(draw, shape, dtype=torch.float32):
    """Return a tensor whose dimensions lie in memory in any order, one of them cut, or spread over
    the first.
    """
    order = draw.sample(range(len(shape)), len(shape))
    sizes = [shape[place] + draw.choice((0, 0, 0, 2)) for place in order]
    whole = torch.empty(sizes, dtype=dtype, device="meta").permute(
        [order.index(place) for place in range(len(shape))]
    )
    whole = whole[tuple(slice(size) for size in shape)]
    return whole[:1].expand(shape) if draw.random() < 0.1 else whole


def _strides_that_matter(result):
    return [step for size, step in zip(result.shape, result.stride(), strict=True) if size != 1]


@pytest.mark.parametrize("seed", range(300))
def test_shape_rules_of_operands_in_any_layout_against_torch(seed):
    draw, aten = random.Random(seed), torch.ops.aten
    shape = [draw.choice((1, 2, 3, 4)) for _ in range(draw.randint(1, 4))]
    first, second = (
        _laid_out(
            draw,
            [1 if draw.random() < 0.25 else size for size in shape][
                draw.choice((0, 0, len(shape) // 2)) :
            ],
        )
        for _ in range(2)
    )
    mask = _laid_out(draw, [1 if draw.random() < 0.25 else size for size in shape], torch.bool)
    dim = draw.randrange(-first.dim(), first.dim())
    more = _laid_out(
        draw, [3 if place == dim % first.dim() else size for place, size in enumerate(first.shape)]
    )
    calls = {
        "mul.Tensor": (first, second),
        "add.Tensor": (second, first),
        "where.self": (mask, first, second),
        "sub.Tensor": (second, 2.5),
        "pow.Tensor_Scalar": (first, 2),
        "mean.dim": (first, [dim], draw.random() < 0.5),
        "cat.default": ([first, more, first], dim),
        "_safe_softmax.default": (first, dim),
        "tril.default": (more, 0),
        "roll.default": (first, [1], [dim]),
        "neg.default": (second,),
        "empty_like.default": (first,),
        "_unsafe_view.default": (mask, mask.shape),
    }
    covered = 0
    for name, args in calls.items():
        plain, _, overload = name.partition(".")
        if plain == "tril" and more.dim() < 2:
            continue
        ours, theirs = (
            result_of(plain, args, {}, in_place=False),
            getattr(getattr(aten, plain), overload)(*args),
        )
        if ours is not None:
            covered += 1
            assert (ours.shape, ours.dtype, ours.device) == (
                theirs.shape,
                theirs.dtype,
                theirs.device,
            ), name
            assert _strides_that_matter(ours) == _strides_that_matter(theirs), name
    assert covered >= 5


def test_shape_rules_of_matrix_products_against_torch():
    left, right = (
        torch.empty(2, 3, 4, device="meta").transpose(0, 1),
        torch.empty(3, 4, 5, device="meta"),
    )
    for name, args in (
        ("bmm", (left, right)),
        ("mm", (left[0], right[0])),
        ("addmm", (right[0, 0], left[0], right[0])),
    ):
        assert _like(result_of(name, args, {}, in_place=False)) == _like(
            getattr(torch.ops.aten, name)(*args)
        )
        assert result_of(name, (args[1], *args), {}, in_place=False) is None


def test_shape_rules_leave_what_is_not_plain_to_torch():
    data, whole = (
        torch.empty(2, 3, device="meta"),
        torch.empty(2, 3, device="meta", dtype=torch.long),
    )
    assert result_of("mul", (whole, 2.5), {}, in_place=False) is None
    assert result_of("add", (data, data.double()), {}, in_place=False) is None
    assert result_of("add", (data, torch.empty(4, device="meta")), {}, in_place=False) is None
    assert result_of("add", (data[:1], data), {}, in_place=True) is None
    assert result_of("add", (data, data[:1]), {}, in_place=True) is data
    assert result_of("addmm", (torch.empty(2, 3), data, data), {}, in_place=False) is None
    assert result_of("mm", (data, data), {}, in_place=False) is None
    assert result_of("cat", ([data, data.double()],), {}, in_place=False) is None
    assert result_of("mean", (data, [0, 0]), {}, in_place=False) is None
    assert result_of("mean", (data, [0]), {"dtype": torch.float64}, in_place=False) is None
    assert result_of("relu", (data,), {"out": data}, in_place=False) is None
