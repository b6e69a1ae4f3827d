import pickle

import numpy as np
import pytest
import torch
from torch import nn

from helpers.memory import estimate_peak_memory, profile_layer_mem
from helpers.models import (
    VARIANTS,
    AlexNet,
    BasicFCModel,
    Decoder,
    LeNet,
    TowerNorm,
    causal_attention,
)
from helpers.operations import profile_ops
from helpers.profiling import profile_time
from helpers.studies.working_set import profile_mem

LENET_LAYERS = [
    "conv1",
    "relu1",
    "pool1",
    "conv2",
    "relu2",
    "pool2",
    "flatten",
    "fc1",
    "relu3",
    "fc2",
    "relu4",
    "fc3",
]

# Weights and biases by hand, layer by layer.
LENET_PARAMETERS = (
    (6 * 25 + 6) + (16 * 6 * 25 + 16) + (256 * 120 + 120) + (120 * 60 + 60) + (60 * 10 + 10)
)


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def run_order(model: nn.Module, images: torch.Tensor) -> list[str]:
    """Names of the layers in the order in which they really run."""
    order = []
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda *_, name=name: order.append(name))
    model(images)
    return order


@pytest.mark.parametrize("variant", VARIANTS)
def test_lenet_has_the_lectures_parameters(variant):
    assert parameters_of(LeNet(variant=variant)) == LENET_PARAMETERS == 41_282


def test_lenet_variants_share_parameter_names_and_shapes():
    standard, lecture = LeNet().state_dict(), LeNet(variant="lecture").state_dict()
    assert {name: value.shape for name, value in standard.items()} == {
        name: value.shape for name, value in lecture.items()
    }


def test_lenet_is_the_same_function_as_layers_written_out():
    model = LeNet(50)
    images = torch.randn(4, 1, 28, 28)
    w = model.state_dict()
    x = nn.functional.max_pool2d(
        nn.functional.conv2d(images, w["conv1.weight"], w["conv1.bias"]).relu(), 2
    )
    x = nn.functional.max_pool2d(
        nn.functional.conv2d(x, w["conv2.weight"], w["conv2.bias"]).relu(), 2
    ).flatten(1)
    for name in ("fc1", "fc2"):
        x = (x @ w[f"{name}.weight"].T + w[f"{name}.bias"]).relu()
    expected = x @ w["fc3.weight"].T + w["fc3.bias"]
    torch.testing.assert_close(model(images), expected)
    lecture = LeNet(50, variant="lecture")
    lecture.load_state_dict(w)
    torch.testing.assert_close(lecture(images), expected.relu())


@pytest.mark.parametrize("model_class", [LeNet, BasicFCModel])
def test_only_the_lectures_logits_are_never_negative(model_class):
    torch.manual_seed(0)
    images = torch.randn(64, 1, 28, 28)
    assert (model_class()(images) < 0).any()
    assert (model_class(variant="lecture")(images) >= 0).all()


@pytest.mark.parametrize(("variant", "last"), [("standard", []), ("lecture", ["relu5"])])
def test_lenet_layers_stand_in_the_order_in_which_they_run(variant, last):
    model = LeNet(variant=variant)
    assert [name for name, _ in model.named_children()] == LENET_LAYERS + last
    assert run_order(model, torch.zeros(1, 1, 28, 28)) == LENET_LAYERS + last


@pytest.mark.parametrize("hidden", [2, 3, 128])
def test_lenet_second_width_is_half_the_first(hidden):
    model = LeNet(hidden)
    assert (model.fc1.out_features, model.fc2.out_features) == (hidden, hidden // 2)
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize(
    ("variant", "order"),
    [
        ("standard", ["flatten", "fc1", "relu1", "fc2", "relu2", "fc3"]),
        ("lecture", ["flatten", "fc1", "fc2", "fc3", "relu1"]),
    ],
)
def test_basic_model_layers_and_parameters(variant, order):
    model = BasicFCModel(variant=variant)
    assert [name for name, _ in model.named_children()] == order
    assert run_order(model, torch.zeros(2, 784)) == order
    assert parameters_of(model) == (784 * 128 + 128) + (128 * 128 + 128) + (128 * 10 + 10)


def test_basic_model_without_relu_between_the_layers_is_one_linear_layer():
    torch.manual_seed(0)  # where every output is negative, both variants give zeros
    model = BasicFCModel(12, 9, 4, 3, variant="lecture").double()
    weight, bias = torch.eye(12, dtype=torch.double), torch.zeros(12, dtype=torch.double)
    for layer in (model.fc1, model.fc2, model.fc3):
        weight, bias = layer.weight @ weight, layer.weight @ bias + layer.bias
    images = torch.randn(5, 12, dtype=torch.double)
    torch.testing.assert_close(model(images), (images @ weight.T + bias).relu())
    standard = BasicFCModel(12, 9, 4, 3).double()
    standard.load_state_dict(model.state_dict())
    assert not torch.allclose(standard(images).relu(), model(images))


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_basic_model_counts_linear_layers(layers):
    model = BasicFCModel(6, 7, 3, layers)
    assert sum(isinstance(layer, nn.Linear) for layer in model.modules()) == layers
    assert sum(isinstance(layer, nn.ReLU) for layer in model.modules()) == layers - 1
    assert model(torch.zeros(2, 2, 3)).shape == (2, 3)


@pytest.mark.parametrize("model_class", [LeNet, BasicFCModel])
@pytest.mark.parametrize("variant", VARIANTS)
def test_models_trace_export_compile_and_run_on_meta(model_class, variant):
    model, images = model_class(variant=variant), torch.randn(3, 1, 28, 28)
    expected = model(images)
    traced = torch.fx.symbolic_trace(model)
    assert torch.equal(traced(images), expected)
    with pytest.raises(ValueError, match="images have shape"):
        traced(torch.zeros(3, 1, 27, 28))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(images), expected)
    exported = torch.export.export(model, (images,)).module()
    assert torch.equal(exported(images), expected)
    with torch.device("meta"):
        on_meta = model_class(variant=variant)
        assert on_meta(torch.empty(5, 1, 28, 28)).shape == (5, 10)
        with pytest.raises(ValueError, match="images have shape"):
            on_meta(torch.empty(5, 3, 32, 32))


@pytest.mark.parametrize("model_class", [LeNet, BasicFCModel])
def test_models_take_no_images_and_survive_pickling(model_class):
    model = model_class()
    assert model(torch.zeros(0, 1, 28, 28)).shape == (0, 10)
    copy = pickle.loads(pickle.dumps(model))
    images = torch.randn(2, 1, 28, 28)
    assert torch.equal(copy(images), model(images))


@pytest.mark.parametrize("model_class", [LeNet, BasicFCModel])
@pytest.mark.parametrize(
    ("hidden", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), (64.0, TypeError)]
)
def test_models_refuse_a_wrong_width(model_class, hidden, error):
    with pytest.raises(error, match=r"hidden=.*give a whole number"):
        model_class(hidden=hidden)


def test_lenet_refuses_a_width_whose_half_is_nothing():
    with pytest.raises(ValueError, match="hidden=1 is too small; give a whole number, 2 or more"):
        LeNet(1)


@pytest.mark.parametrize("name", ["inputs", "outputs", "layers"])
def test_basic_model_refuses_zero(name):
    with pytest.raises(ValueError, match=f"{name}=0 is too small"):
        BasicFCModel(**{name: 0})


@pytest.mark.parametrize("model_class", [LeNet, BasicFCModel])
@pytest.mark.parametrize("variant", ["Lecture", None, ["lecture"]])
def test_models_name_the_variants_they_know(model_class, variant):
    with pytest.raises(ValueError, match="give one of 'standard', 'lecture'"):
        model_class(variant=variant)


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((1, 28, 28), "unsqueeze"),
        ((64, 28, 28), r"reshape\(-1, 1, 28, 28\)"),
        ((28, 28), r"reshape\(-1, 1, 28, 28\)"),
        ((64, 784), r"reshape\(-1, 1, 28, 28\)"),
        ((64, 28, 28, 1), "permute"),
        ((64, 3, 32, 32), "28 by 28"),
        ((), "28 by 28"),
    ],
)
def test_lenet_tells_what_to_do_about_a_shape(shape, remedy):
    with pytest.raises(ValueError, match=rf"expected \(N, 1, 28, 28\).*{remedy}"):
        LeNet()(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(784,), (3, 783), (3, 3, 32, 32), ()])
def test_basic_model_tells_what_to_do_about_a_shape(shape):
    with pytest.raises(ValueError, match=r"expected \(N, 784\)"):
        BasicFCModel()(torch.zeros(shape))


@pytest.mark.parametrize("model", [LeNet(), BasicFCModel()])
def test_models_refuse_what_is_not_a_tensor_of_floats(model):
    with pytest.raises(TypeError, match=r"torch\.uint8.*float\(\) / 255"):
        model(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"ndarray.*as_tensor"):
        model(np.zeros((2, 1, 28, 28), dtype=np.float32))


SMALL_ALEXNET = {"classes": 10, "size": 63, "channels": (8, 16, 24, 24, 16), "hidden": 32}
ALEXNET_LAYERS = [ "conv1", "relu1", "norm1", "pool1", "conv2", "relu2", "norm2", "pool2", "conv3",
    "relu3", "conv4", "relu4", "conv5", "relu5", "pool5", "flatten", "fc6", "relu6", "drop6", "fc7",
    "relu7", "drop7", "fc8"]  # fmt: skip

# Weights and biases by hand: maps x (maps that one reads x kernel + 1); conv2, 4 and 5 read one
# tower's.
ALEXNET_PARAMETERS = {
    "conv1": 96 * (3 * 121 + 1),
    "conv2": 256 * (48 * 25 + 1),
    "conv3": 384 * (256 * 9 + 1),
    "conv4": 384 * (192 * 9 + 1),
    "conv5": 256 * (192 * 9 + 1),
    "fc6": 4096 * (256 * 36 + 1),
    "fc7": 4096 * 4097,
    "fc8": 1000 * 4097,
}


def test_alexnet_has_the_parameters_of_the_paper():
    with torch.device("meta"):
        model, one_tower = AlexNet(), AlexNet(towers=1)
        shapes = [model.pool2, model.pool5]
        seen = []
        for layer in shapes:
            layer.register_forward_hook(lambda _, __, output: seen.append(tuple(output.shape)))
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    found = {
        name: parameters_of(layer) for name, layer in model.named_children() if parameters_of(layer)
    }
    assert found == ALEXNET_PARAMETERS
    assert sum(found.values()) == 60_965_224
    assert parameters_of(one_tower) == 62_378_344
    assert seen == [(2, 256, 13, 13), (2, 256, 6, 6)]


def test_alexnet_layers_stand_in_the_order_in_which_they_run():
    model = AlexNet(**SMALL_ALEXNET)
    assert [name for name, _ in model.named_children()] == ALEXNET_LAYERS
    assert run_order(model, torch.zeros(1, 3, 63, 63)) == ALEXNET_LAYERS


def test_alexnet_towers_meet_in_the_crossing_layers_alone():
    model = AlexNet(**SMALL_ALEXNET).eval()
    for name, layer in model.named_children():
        if name in ("flatten", "fc6", "fc7", "fc8") or name[:4] in ("relu", "drop"):
            continue
        parameters = next(layer.parameters(), None)
        maps = parameters.shape[1] * layer.groups if parameters is not None else 16
        given = torch.randn(1, maps, 15, 15, requires_grad=True)
        output = layer(given)
        (gradient,) = torch.autograd.grad(output[:, : output.shape[1] // 2].sum(), given)
        assert (gradient[:, maps // 2 :].abs().max() > 0) == (name in ("conv1", "conv3")), name


def test_tower_norm_is_the_paper_s_formula_in_each_tower():
    maps = 10 * torch.randn(2, 12, 3, 4, dtype=torch.double)
    expected = torch.empty_like(maps)
    for i in range(12):
        tower = range(6) if i < 6 else range(6, 12)
        squares = sum(maps[:, j] ** 2 for j in tower if abs(i - j) <= 2)
        expected[:, i] = maps[:, i] / (2 + 1e-4 * squares) ** 0.75
    torch.testing.assert_close(TowerNorm(2)(maps), expected)
    assert not torch.allclose(TowerNorm(1)(maps), expected, rtol=1e-4)


def test_alexnet_traces_exports_compiles_and_pickles():
    model, images = AlexNet(**SMALL_ALEXNET).eval(), torch.randn(2, 3, 63, 63)
    expected = model(images)
    traced = torch.fx.symbolic_trace(model)
    assert torch.equal(traced(images), expected)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(images), expected)
    assert torch.equal(torch.export.export(model, (images,)).module()(images), expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(images), expected)
    assert model(torch.zeros(0, 3, 63, 63)).shape == (0, 10)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 62}, "size=62 is too small; give a whole number, 63 or more"),
        ({"channels": (8, 16, 24)}, "give the maps of five convolutions"),
        ({"channels": (8, 16, 25, 24, 16)}, "a width of 25 does not divide by 2 towers"),
        ({"hidden": 33}, "a width of 33 does not divide by 2 towers"),
        ({"classes": 0}, "classes=0 is too small"),
        ({"towers": 0}, "towers=0 is too small"),
    ],
)
def test_alexnet_refuses_sizes_that_cannot_be(given, message):
    with pytest.raises(ValueError, match=message):
        AlexNet(**SMALL_ALEXNET | given)


def test_alexnet_tells_what_to_do_about_images():
    model = AlexNet(**SMALL_ALEXNET)
    with pytest.raises(ValueError, match=r"expected \(N, 3, 63, 63\): set size= to fit"):
        model(torch.zeros(2, 3, 64, 64))
    with pytest.raises(ValueError, match="unsqueeze"):
        model(torch.zeros(3, 63, 63))
    with pytest.raises(TypeError, match=r"torch\.uint8"):
        model(torch.zeros(2, 3, 63, 63, dtype=torch.uint8))


@pytest.mark.parametrize(
    "model", [LeNet(), BasicFCModel(inputs=12), AlexNet(size=63)], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize(
    "profile", [profile_ops, profile_layer_mem, profile_mem, estimate_peak_memory]
)
def test_the_profilers_take_a_models_own_example(profile, model):
    assert profile(model) == profile(model, model.example_shape)


@pytest.mark.parametrize("profile", [profile_ops, profile_layer_mem, profile_mem, profile_time])
def test_a_model_without_an_example_needs_inputs(profile):
    with pytest.raises(
        TypeError,
        match=r"^neither a shape nor inputs are given, and Linear has no example_shape; give a "
        r"shape "
        r"such as",
    ):
        profile(nn.Linear(2, 3))


SMALL_DECODER = {
    "vocabulary": 11,
    "width": 12,
    "layers": 3,
    "heads": 6,
    "hidden": 20,
    "context": 10,
}


def make_decoder(**sizes) -> Decoder:
    torch.manual_seed(0)
    return Decoder(**SMALL_DECODER | sizes).double()


def first_heads_first(queries, keys, values):
    """Attention by PyTorch's own causal mask, each query head with a copy of its keys."""
    copies = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(copies, dim=1), values.repeat_interleave(copies, dim=1)
    return nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)


@pytest.mark.parametrize("kv_heads", [6, 3, 1])
def test_decoder_is_the_same_function_as_layers_written_out(kv_heads):
    model, tokens = make_decoder(kv_heads=kv_heads), torch.randint(11, (2, 7))
    w = model.state_dict()

    def norm(x, name):
        return nn.functional.layer_norm(x, (12,)) * w[f"{name}.weight"]

    x = w["tokens.weight"][tokens] + w["positions.weight"][:7]
    for block in ("blocks.0", "blocks.1", "blocks.2"):
        mixed = norm(x, f"{block}.norm1") @ w[f"{block}.qkv.weight"].T
        heads = [
            part.transpose(1, 2)
            for part in mixed.view(2, 7, -1, 2).split([6, kv_heads, kv_heads], dim=2)
        ]
        x = (
            x
            + first_heads_first(*heads).transpose(1, 2).reshape(2, 7, 12)
            @ w[f"{block}.out.weight"].T
        )
        hidden = nn.functional.gelu(norm(x, f"{block}.norm2") @ w[f"{block}.up.weight"].T)
        x = x + hidden @ w[f"{block}.down.weight"].T
    torch.testing.assert_close(model(tokens), norm(x, "norm") @ w["head.weight"].T)


@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("pieces", [[9], [4, 5], [1] * 9, [3, 1, 1, 4]])
def test_decoder_with_a_cache_has_the_logits_of_the_whole_text(kv_heads, pieces):
    model, tokens = make_decoder(kv_heads=kv_heads), torch.randint(11, (2, 9))
    cache, logits, start = model.new_cache(2), [], 0
    for piece in pieces:
        logits.append(model(tokens[:, start : start + piece], cache, start))
        start += piece
    torch.testing.assert_close(torch.cat(logits, dim=1), model(tokens))
    assert not cache[:, :, :, :, 9:].any()
    assert cache[:, :, :, :, :9].all()


def test_greedy_tokens_are_the_same_with_and_without_a_cache():
    torch.manual_seed(1)
    model = Decoder(50, width=32, layers=2, heads=4, context=40)
    tokens = torch.randint(50, (3, 4))
    cache, new, text = model.new_cache(3), tokens, tokens
    with torch.inference_mode():
        for _ in range(36):
            following = model(new, cache, text.shape[1] - new.shape[1])[:, -1].argmax(
                -1, keepdim=True
            )
            assert torch.equal(following, model(text)[:, -1].argmax(-1, keepdim=True))
            new, text = following, torch.cat((text, following), dim=1)


@pytest.mark.parametrize("wrong", ["mask of the first", "place 0", "one place late"])
def test_a_wrong_cache_changes_the_logits(wrong):
    given = {"attend": first_heads_first} if wrong == "mask of the first" else {}
    model, tokens = make_decoder(**given), torch.randint(11, (1, 6))
    cache = model.new_cache()
    model(tokens[:, :5], cache)
    start = {"place 0": 0, "one place late": 6}.get(wrong, 5)
    last = model(tokens[:, 5:], cache, start)[0, -1]
    assert not torch.allclose(last, model(tokens)[0, -1], atol=1e-3)


@pytest.mark.parametrize("model", [LeNet(), BasicFCModel()], ids=lambda model: type(model).__name__)
def test_what_a_caller_adds_to_a_model_is_none_of_its_layers(model):
    images = torch.ones(2, *model.example_shape[1:])
    before = model(images)
    model.criterion = nn.CrossEntropyLoss()
    model.negate = nn.Threshold(1e9, -1.0)
    assert torch.equal(model(images), before)


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("q", [1, 3, 5])
def test_causal_attention_is_pytorchs_on_the_last_queries(kv_heads, q):
    queries, keys, values = (
        torch.randn(2, heads, 5, 4, dtype=torch.double) for heads in (6, kv_heads, kv_heads)
    )
    expected = first_heads_first(queries, keys, values)[:, :, 5 - q :]
    torch.testing.assert_close(causal_attention(queries[:, :, 5 - q :], keys, values), expected)


def test_decoders_parameters_cache_and_multiply_adds_by_hand():
    model = Decoder(256, width=64, layers=4, heads=8, kv_heads=2, hidden=96, context=50)
    block = 64 * (64 + 2 * 16) + 64 * 64 + 2 * 64 * 96
    assert parameters_of(model) == 4 * (block + 2 * 64) + 64 + (256 + 50 + 256) * 64
    assert model.new_cache(3).shape == (4, 2, 3, 2, 50, 8)
    assert model.new_cache(3, 7).nbytes == 4 * 2 * 3 * 2 * 7 * 8 * 4
    tokens = torch.randint(256, (2, 10))
    attention = 2 * 8 * 10 * 10 * 8  # scores and their sums of values, for each head
    assert profile_ops(model, tokens).forward_macs == 2 * (
        10 * (4 * block + 64 * 256) + 4 * attention
    )


def test_decoder_runs_on_meta_trains_and_pickles():
    model, tokens = make_decoder(kv_heads=2), torch.randint(11, (2, 5))
    model(tokens).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert torch.equal(pickle.loads(pickle.dumps(model))(tokens), model(tokens))
    with torch.device("meta"):
        large = Decoder(32_000, width=4096, layers=32, heads=32, hidden=11_008, context=4096)
        cache = large.new_cache(4, 100)
    assert large(torch.zeros(4, 1, dtype=torch.int64, device="meta"), cache, 99).shape == (
        4,
        1,
        32_000,
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"heads": 5}, "heads=5, kv_heads=5; give heads that divide the width"),
        ({"kv_heads": 4}, "kv_heads that divide the heads"),
        ({"layers": 0}, "layers=0 is too small"),
        ({"vocabulary": 0}, "vocabulary=0 is too small"),
        ({"context": 0}, "context=0 is too small"),
    ],
)
def test_decoder_refuses_sizes_that_cannot_be(given, message):
    with pytest.raises(ValueError, match=message):
        make_decoder(**given)


def test_decoder_tells_what_to_do_about_tokens_and_caches():
    model, tokens = make_decoder(), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"give whole numbers \(N, T\)"):
        model(tokens.double())
    with pytest.raises(ValueError, match=r"give whole numbers \(N, T\)"):
        model(tokens[0])
    with pytest.raises(ValueError, match="start=3 without a cache"):
        model(tokens, start=3)
    with pytest.raises(
        ValueError, match=r"the places 7 to 11; the model has 10. Choose a larger context="
    ):
        model(tokens, model.new_cache(2), 7)
    with pytest.raises(ValueError, match=r"the cache has 6. Choose a larger new_cache"):
        model(tokens, model.new_cache(2, 6), 3)
    with pytest.raises(ValueError, match=r"2 texts, and a cache of 1; make new_cache\(batch=2\)"):
        model(tokens, model.new_cache(), 3)
