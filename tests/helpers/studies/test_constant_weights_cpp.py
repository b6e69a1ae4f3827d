"""The generated C++: every placement against float64 PyTorch, within the bound, on any sizes; its
calls.
"""

from __future__ import annotations

import itertools
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from helpers import native, timing
from helpers.studies.constant_weights import _cpp_sources as cpp_sources
from helpers.studies.constant_weights._cpp_sources import (
    CPP_PLACEMENTS,
    PADDING,
    context_of,
    cpp_source,
    pack,
)
from helpers.studies.constant_weights._network import (
    ACTIVATIONS,
    Dense,
    Network,
    error_bound,
    exact_outputs,
    pruned,
    random_network,
    standard_network,
)
from helpers.studies.constant_weights._programs import CppProgram, build, cpp_program

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
TINY = 2.0**-149  # the smallest float32
BATCHES = (0, 1, 3, 4, 5, 8, 16, 17, 37, 100)
# the others differ in where a number stands, which one network shows
FEWER = ("runtime_sizes", "lanes")
NETWORKS = {
    "narrow and odd": random_network(
        (1, 3, 1, 17, 2), ("tanh", "relu", "sigmoid", "softmax"), seed=1
    ),
    "wide and odd": random_network((9, 33, 6), ("softmax", "tanh"), seed=2),
}
COMBINED = [("narrow and odd", place) for place in CPP_PLACEMENTS] + [
    ("wide and odd", place) for place in FEWER
]


@pytest.fixture(scope="module")
def programs() -> dict[tuple[str, str], CppProgram]:
    """Every placement of two networks, and the story's on lanes and pruned; two compilers at a
    time.
    """
    wanted = [
        (name, place, NETWORKS[name], 0.3 if place == "pruned" else 0.0) for name, place in COMBINED
    ]
    wanted += [
        ("story", "lanes", standard_network(), 0.0),
        ("story", "pruned", standard_network(), 0.9),
    ]
    wanted += [("story", "runtime_sizes", standard_network(), 0.0)]
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda one: cpp_program(one[2], one[1], prune=one[3]), wanted)
        return {
            (name, place): program
            for (name, place, _, _), program in zip(wanted, made, strict=True)
        }


def inputs_of(network: Network, batch: int, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(
        batch, network.inputs, generator=torch.Generator().manual_seed(batch)
    )


def share_of_bound(program: CppProgram, x: torch.Tensor, out: torch.Tensor) -> float:
    """Return the largest error over what rounding can cause."""
    error = (out.double() - exact_outputs(program.network, x)).abs()
    return float((error / error_bound(program.network, x)).max()) if out.numel() else 0.0


@pytest.mark.parametrize(("name", "place"), COMBINED)
def test_every_placement_is_float64_pytorch_within_the_bound_for_any_batch(programs, name, place):
    program = programs[name, place]
    for batch in BATCHES:
        for scale in (0.1, 30.0):
            x = inputs_of(program.network, batch, scale)
            assert share_of_bound(program, x, program(x)) <= 1, batch


@st.composite
def any_network(draw, widest: int = 35) -> Network:
    """Draw a network of one to three layers of up to ``widest``, with any activations, zeros and
    sizes of weights.
    """
    widths = draw(st.lists(st.integers(1, widest), min_size=2, max_size=4))
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        random = np.random.default_rng(draw(st.integers(0, 2**32)))
        scale, kept = (
            draw(st.sampled_from([1e-30, 0.01, 1.0, 20.0])),
            draw(st.sampled_from([0.0, 0.1, 1.0])),
        )
        numbers = (random.normal(0, scale, (inputs + 1, outputs))).astype(np.float32)
        numbers[random.random(numbers.shape) > kept] = 0.0
        layers.append(Dense(numbers[1:], numbers[0], draw(st.sampled_from(ACTIVATIONS))))
    return Network(tuple(layers))


IN_THE_PROGRAM = [place for place in CPP_PLACEMENTS if place != "runtime_sizes"]
WIDEST = {"pruned": 12}  # a line for each weight takes long to compile
inputs_drawn = st.tuples(st.integers(0, 70), st.sampled_from([1e-42, 1e-3, 1.0, 100.0]))
FEW_EXAMPLES = {"deadline": None, "database": None, "derandomize": True}


def in_one_library(networks: dict[str, Network]) -> native.Library:
    """Compile a program for each placement, not optimised, as one: most of the time goes into the
    system's headers.
    """
    parts = [
        "#include <cstdint>\n#include <cstring>\n#include <utility>",
        "#if defined(__AVX__)",
        "#include <immintrin.h>",
        "#endif",
    ]
    for place, network in networks.items():
        source = cpp_source(network, place)
        assert source.count('extern "C" void evaluate(') == 1
        parts.append(
            f"namespace {place}_space "
            f"{{\n{source.replace('void evaluate(', f'void evaluate_{place}(')}}}"
        )
    return native.compile_cpp("\n".join(parts), flags=("-O0", "-march=native", "-std=c++17"))


@settings(
    max_examples=3, suppress_health_check=list(HealthCheck), phases=[Phase.generate], **FEW_EXAMPLES
)
@given(
    networks=st.fixed_dictionaries(
        {place: any_network(WIDEST.get(place, 40)) for place in IN_THE_PROGRAM}
    ),
    drawn=inputs_drawn,
)
def test_any_network_is_float64_pytorch_with_its_sizes_in_the_program(networks, drawn):
    library = in_one_library(networks)
    for place, network in networks.items():
        declaration = cpp_sources.EVALUATE.replace("evaluate", f"evaluate_{place}")
        evaluate, context = library.function(declaration).raw, context_of(network, place)
        x = inputs_of(network, *drawn)
        out = torch.empty(len(x), network.outputs)
        evaluate(x.data_ptr(), out.data_ptr(), len(x), cpp_sources.address_of(context))
        error = (out.double() - exact_outputs(network, x)).abs()
        assert (error <= error_bound(network, x)).all(), place


def test_the_bound_tells_a_weight_that_is_off_by_a_fiftieth(programs):
    program = programs["story", "lanes"]
    layer = program.network.layers[1]
    weights = layer.weights.copy()
    first, _, last = program.network.layers
    most = np.unravel_index(np.abs(weights * last.weights.T).argmax(), weights.shape)
    weights[most] *= 1.02
    changed = Network((first, Dense(weights, layer.bias, layer.activation), last))
    x = inputs_of(program.network, 4096)
    error = (program(x).double() - exact_outputs(changed, x)).abs()
    assert (error > error_bound(changed, x)).any()


@pytest.mark.parametrize(("name", "place"), COMBINED)
def test_nothing_outside_out_is_written_and_nothing_of_out_is_left(programs, name, place):
    program = programs[name, place]
    for batch in BATCHES:
        whole = torch.full((batch + 2, program.network.outputs), torch.nan)
        x = inputs_of(program.network, batch)
        assert program(x, out=whole[1:-1]).data_ptr() == whole[1:-1].data_ptr()
        assert whole[0].isnan().all()
        assert whole[-1].isnan().all()
        assert not whole[1:-1].isnan().any()


@pytest.mark.parametrize("place", ["lanes", "pointer", "runtime_sizes"])
def test_a_nan_reaches_its_own_candidate_and_no_other(programs, place):
    program = programs["narrow and odd", place]
    x = inputs_of(program.network, 37)
    clean = program(x).clone()
    x[20] = torch.nan
    touched = program(x)
    assert touched[20].isnan().all()
    others = [row for row in range(37) if row != 20]
    assert torch.equal(touched[others], clean[others])


def test_activations_are_exact_to_sixteen_roundings_over_all_sizes_of_numbers():
    values = np.arange(0, 2**32, 400_009, dtype=np.uint32).view(np.float32)
    values = np.concatenate(
        [values[np.isfinite(values)], np.linspace(-110, 110, 50_001, dtype=np.float32)]
    )
    one, none = np.ones((1, 1), np.float32), np.zeros(1, np.float32)
    for activation in ("tanh", "sigmoid"):
        program = cpp_program(Network((Dense(one, none, activation),)), "pointer")
        x = torch.from_numpy(values)[:, None].contiguous()
        exact = exact_outputs(program.network, x)
        assert (
            (program(x).double() - exact).abs() <= 16 * 2.0**-24 * exact.abs() + 2.0**-149
        ).all(), activation


def test_every_float_stands_in_the_source_bit_for_bit():
    awkward = [
        TINY,
        -TINY,
        2.0**-126,
        3.4028234663852886e38,
        -0.0,
        1 / 3,
        0.1,
        16777217 / 16777216,
        1.0,
    ]
    weights = np.array(awkward, np.float32)[None, :]
    network = Network((Dense(weights, weights[0][::-1].copy()),))
    source = cpp_source(network, "constexpr")
    array = source[source.index("constants[]") :].partition("};")[0]
    found = [float.fromhex(text) for text in re.findall(r"-?0x[0-9a-f.]+p[+-]?\d+", array)]
    assert np.array(found, np.float32).tobytes() == pack(network).tobytes()


def test_denormal_weights_count():
    network = Network((Dense(np.array([[TINY, 3 * TINY]], np.float32), np.zeros(2, np.float32)),))
    assert cpp_program(network, "pointer")(torch.tensor([[2.0]])).tolist() == [[2 * TINY, 6 * TINY]]


def test_a_straight_line_has_a_line_for_each_weight_that_reaches_an_output():
    network = pruned(standard_network(), 0.5)
    source = cpp_source(network, "pruned")
    first, second, last = (layer.weights for layer in network.layers)
    alive_2 = last[:, 0] != 0
    alive_1 = (second[:, alive_2] != 0).any(axis=1)
    wanted = (
        np.count_nonzero(last)
        + np.count_nonzero(second[:, alive_2])
        + np.count_nonzero(first[:, alive_1])
    )
    assert source.count(" add(sum, ") == wanted
    assert wanted < network.macs / 2
    emptied = Network(
        (*network.layers[:2], Dense(np.zeros((32, 1), np.float32), np.ones(1, np.float32)))
    )
    assert cpp_source(emptied, "pruned").count(" add(sum, ") == 0


def test_one_layer_in_two_places_is_a_layer_in_each():
    """A unit that only the softmax's sum needs is computed, also where the same object is the first
    layer.
    """
    random = np.random.default_rng(0)
    weights = random.normal(size=(4, 4)).astype(np.float32)
    weights[2] = 0  # of the second layer: nothing reads unit 2 but the sum
    layer = Dense(weights, np.zeros(4, np.float32), "softmax")
    program = cpp_program(Network((layer, layer)), "pruned")
    x = inputs_of(program.network, 40)
    assert share_of_bound(program, x, program(x)) <= 1


def test_a_bound_of_another_precision_is_refused():
    network = standard_network()
    with pytest.raises(
        ValueError, match="precision='bf16' is not known; give one of 'fp32', 'fp16'"
    ):
        error_bound(network, inputs_of(network, 1), precision="bf16")


def test_the_source_with_sizes_at_run_time_is_the_same_for_all_networks():
    assert cpp_source(standard_network(), "runtime_sizes") == cpp_source(
        NETWORKS["wide and odd"], "runtime_sizes"
    )


def test_by_pointer_only_the_sizes_are_in_the_source():
    assert cpp_source(standard_network(0), "lanes_pointer") == cpp_source(
        standard_network(1), "lanes_pointer"
    )
    assert cpp_source(standard_network(0), "lanes") != cpp_source(standard_network(1), "lanes")
    assert pack(standard_network()).size == standard_network().parameters + PADDING


def test_unknown_placements_and_networks_that_are_too_large_are_refused():
    with pytest.raises(
        ValueError, match="placement='const' is not known; give one of 'runtime_sizes', "
    ):
        cpp_source(standard_network(), "const")
    with pytest.raises(ValueError, match="straight-line code of"):
        cpp_source(random_network((200, 200), ("relu",)), "pruned")
    with pytest.raises(ValueError, match="do not fit a thread's stack"):
        cpp_source(random_network((5000, 1), ("relu",)), "lanes")


def test_the_quick_call_is_taken_for_plain_tensors_and_declined_for_all_others(programs):
    program = programs["story", "lanes"]
    x, out = inputs_of(program.network, 5), torch.empty(5, 1)
    if cpp_sources._view_address() is None:
        pytest.skip("this torch has no exchange table")
    assert program.quick(x, out) is out
    assert share_of_bound(program, x, out) <= 1
    refused = [
        (x.double(), out),
        (x, out.double()),
        (x[:, :22].contiguous(), out),
        (x, torch.empty(4, 1)),
        (x, torch.empty(5)),
        (x[:, None], out),
        (x.T.contiguous().T, out),
        (x.clone().requires_grad_(), out),
        (x, out.clone().requires_grad_()),
        (x.to("meta"), out),
        (x.numpy(), out),
        (None, out),
        (x, x.view(-1)[:5, None]),
    ]
    for pair in refused:
        assert program.quick(*pair) is None
        with pytest.raises((TypeError, ValueError), match=r"^(x|out) "):
            program(pair[0], out=pair[1])
    assert program.quick(x) is None
    assert program.quick(torch.nn.Parameter(x, requires_grad=False), out) is None
    assert program(torch.nn.Parameter(x, requires_grad=False)).shape == (5, 1)


def test_without_the_exchange_table_the_same_comes_out(programs, monkeypatch):
    monkeypatch.setattr(cpp_sources, "_view_address", lambda: None)
    slow, quick = cpp_program(standard_network(), "lanes"), programs["story", "lanes"]
    x = inputs_of(slow.network, 37)
    out, other = torch.empty(37, 1), torch.empty(37, 1)
    assert slow.quick(x, out) is None
    assert torch.equal(slow(x, out=out), quick(x, out=other))


def test_the_quick_call_neither_loses_nor_keeps_references(programs):
    import sys

    program = programs["story", "lanes"]
    x, out = inputs_of(program.network, 2), torch.empty(2, 1)
    before = [sys.getrefcount(thing) for thing in (x, out)]
    for _ in range(1000):
        program(x, out=out)
        program.quick(x, None)
    assert [sys.getrefcount(thing) for thing in (x, out)] == before


def test_threads_may_call_one_program_at_once(programs):
    program = programs["story", "lanes"]
    wrong = []

    def work(seed: int) -> None:
        x = inputs_of(program.network, 500 + seed)
        wanted, out = program(x).clone(), torch.empty(500 + seed, 1)
        for _ in range(200):
            if not torch.equal(program(x, out=out), wanted):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.timed
def test_known_sizes_and_removed_weights_are_faster(programs):
    x, out = inputs_of(standard_network(), 4096), torch.empty(4096, 1)
    places = ("lanes", "runtime_sizes", "pruned")
    calls = {
        place: lambda program=programs["story", place]: program(x, out=out) for place in places
    }
    compared = timing.compare(calls, budget_s=0.4, device="cpu", clock=time.thread_time)
    slower, faster = (compared.candidate(place).time_ratio for place in places[1:])
    assert slower > 2
    assert faster < 0.4


def test_build_cpp_keeps_what_it_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    source = 'extern "C" int two() { return 2; }'
    assert [build(source).was_cached for _ in range(2)] == [False, True]
    with pytest.raises(native.CompilationError):
        build("int broken(")


def test_packed_numbers_begin_at_a_multiple_of_64_bytes() -> None:
    for width in range(1, 20):  # sizes whose arrays the allocator puts at different places
        network = random_network((width, 3), ("relu",))
        numbers = pack(network)
        layer = network.layers[0]
        expected = [*layer.bias, *layer.weights.reshape(-1), *[0.0] * PADDING]
        assert numbers.ctypes.data % 64 == 0
        assert numbers.tolist() == [float(value) for value in expected]
