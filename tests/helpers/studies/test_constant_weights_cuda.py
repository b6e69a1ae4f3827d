"""The generated CUDA C++: run as C++ on this CPU, through a header of CUDA's words, against PyTorch
in float64.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from helpers import hardware, native, results, timing
from helpers.native import _cubin as cubin_file, _tools as tools
from helpers.studies.constant_weights import _cuda_timing as cuda_timing
from helpers.studies.constant_weights._counting import WeightCensus
from helpers.studies.constant_weights._cuda_sources import (
    CUDA_PLACEMENTS,
    LAYOUTS,
    PRECISIONS,
    candidates_per_thread,
    cuda_source,
    float_literal,
    half_bits,
    packed_weights,
)
from helpers.studies.constant_weights._network import (
    ACTIVATIONS,
    Dense,
    Network,
    error_bound,
    exact_outputs,
    pruned,
    random_network,
)
from helpers.studies.constant_weights._programs import build, cuda_function, generate


def _has_nvrtc() -> bool:
    try:
        native.nvrtc_version()
        tools.find_nvdisasm()
    except native.MissingToolError:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not _has_nvrtc(), reason="no NVRTC, or no nvdisasm")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

# CUDA's words for a CPU. A block's threads run one after another; each block runs twice, so that in
# the second run its shared memory holds what all of them copied in the first. The halves are the
# compiler's own 16-bit floats.
CUDA_ON_A_CPU = """
#include <cmath>
#include <cstring>
#define __device__
#define __global__
#define __constant__ static
#define __shared__ static
#define __grid_constant__
#define __restrict__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __syncthreads()
struct Index { int x; };
static Index threadIdx, blockIdx, blockDim;
static inline float __fdividef(float a, float b) { return a / b; }
struct __half { _Float16 value; };
struct __half2 { _Float16 x, y; };
static inline __half __ushort_as_half(unsigned short bits) { __half h; std::memcpy(&h, &bits, 2); return h; }
static inline __half2 __half2half2(__half h) { return {h.value, h.value}; }
static inline __half2 __floats2half2_rn(float a, float b) { return {(_Float16)a, (_Float16)b}; }
static inline float __low2float(__half2 a) { return (float)a.x; }
static inline float __high2float(__half2 a) { return (float)a.y; }
static inline _Float16 fused(_Float16 a, _Float16 b, _Float16 c) { return (_Float16)((double)a * b + c); }
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {fused(a.x, b.x, c.x), fused(a.y, b.y, c.y)}; }
static inline _Float16 larger(_Float16 a, _Float16 b) { return a > b || a != a ? a : b; }
static inline __half2 __hmax2_nan(__half2 a, __half2 b) { return {larger(a.x, b.x), larger(a.y, b.y)}; }
"""  # noqa: E501
LAUNCHER = """
extern "C" void {name}(const float* inputs, float* outputs, long long candidates, const void* weights, int grid) {{
    blockDim = {{4}};
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
        for (int run = 0; run < 2; ++run)
            for (threadIdx.x = 0; threadIdx.x < 4; ++threadIdx.x)
                {name}_space::evaluate(inputs, outputs, candidates{argument});
}}
"""  # noqa: E501
ARGUMENTS = {
    "parameter": ", *(const {0}::Weights*)weights",
    "pointer": ", (const {0}::Weights*)weights",
    "shared": ", (const {0}::Weights*)weights",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One generated program and the numbers that go into it."""

    network: Network
    placement: str
    precision: str
    layout: str = "rows"
    candidates: int = 7
    scale: float = 1.0


def on_a_cpu(cases: list[Case]) -> list:
    """Compile the cases' sources, each in a namespace of its own, and return a function of inputs
    for each.
    """
    parts = [CUDA_ON_A_CPU]
    for index, case in enumerate(cases):
        source = cuda_source(
            case.network, placement=case.placement, precision=case.precision, layout=case.layout
        )
        plain = (
            source.replace('extern "C" ', "")
            .replace("#include <cuda_fp16.h>", "")
            .replace("#pragma unroll", "")
        )
        assert "evaluate" in plain
        space = f"case_{index}_space"
        argument = ARGUMENTS.get(case.placement, "").format(space)
        parts += [
            f"namespace {space} {{\n{plain}}}",
            LAUNCHER.format(name=f"case_{index}", argument=argument),
        ]
    library = native.compile_cpp(
        "\n".join(parts), flags=("-O0", "-std=c++17", "-ffp-contract=off", "-w")
    )
    declaration = (
        "void case_{}(const float* inputs, float* outputs, int64_t candidates, const void* "
        "weights, int grid)"
    )
    return [library.function(declaration.format(index)) for index in range(len(cases))]


def run(case: Case, function, inputs: torch.Tensor) -> torch.Tensor:
    rows = case.layout == "rows"
    given = inputs if rows else inputs.T.contiguous()
    outputs = torch.full((len(inputs), case.network.outputs), torch.nan)
    outputs = outputs if rows else outputs.T.contiguous()
    weights = np.frombuffer(packed_weights(case.network, precision=case.precision), np.uint8).copy()
    grid = -(-len(inputs) // (4 * candidates_per_thread(case.precision)))
    function(given, outputs, len(inputs), weights, grid)
    return outputs if rows else outputs.T


def worst(case: Case, function) -> float:
    """Return the largest error over its bound, for random inputs."""
    generator = torch.Generator().manual_seed(case.candidates)
    inputs = torch.randn(case.candidates, case.network.inputs, generator=generator) * case.scale
    errors = (run(case, function, inputs).double() - exact_outputs(case.network, inputs)).abs()
    assert not errors.isnan().any()
    return float((errors / error_bound(case.network, inputs, precision=case.precision)).max())


@st.composite
def some_cases(draw) -> list[Case]:
    """Draw a case of every placement, precision and layout: random sizes, activations, weights,
    pruning, inputs.
    """
    cases = []
    for placement, precision, layout in itertools.product(CUDA_PLACEMENTS, PRECISIONS, LAYOUTS):
        widths = tuple(draw(st.lists(st.integers(1, 11), min_size=2, max_size=4)))
        activations = tuple(draw(st.sampled_from(ACTIVATIONS)) for _ in widths[1:])
        network = random_network(widths, activations, seed=draw(st.integers(0, 2**32)))
        network = pruned(network, draw(st.sampled_from([0.0, 0.5, 1.0])))
        scale = draw(st.sampled_from([0.1, 1.0, 30.0]))
        cases.append(Case(network, placement, precision, layout, draw(st.integers(1, 11)), scale))
    return cases


@needs_compiler
@settings(
    max_examples=3,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(cases=some_cases())
def test_every_placement_precision_and_layout_equals_float64_within_the_bound(cases):
    for case, function in zip(cases, on_a_cpu(cases), strict=True):
        assert worst(case, function) <= 1, case


@needs_compiler
def test_the_bound_sees_one_wrong_weight_and_a_missing_activation(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    network = random_network((9, 8, 3), ("relu", "tanh"), seed=1)
    first, last = network.layers
    weights = first.weights.copy()
    weights[4, 5] *= 1.01
    wrong_weight = Network((Dense(weights, first.bias, "relu"), last))
    no_activation = Network((first, Dense(last.weights, last.bias, "identity")))
    cases = [Case(wrong, "const", "fp32", candidates=20) for wrong in (wrong_weight, no_activation)]
    for case, function in zip(cases, on_a_cpu(cases), strict=True):
        assert worst(case, function) <= 1
        inputs = torch.randn(20, 9, generator=torch.Generator().manual_seed(0))
        errors = (run(case, function, inputs).double() - exact_outputs(network, inputs)).abs()
        assert (errors / error_bound(network, inputs)).max() > 10


@needs_compiler
def test_extreme_weights_and_inputs_come_through(tmp_path, monkeypatch):
    """Denormal and huge weights exactly; NaN stays NaN through a ReLU; saturated activations are 0
    and 1.
    """
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    smallest, largest = np.float32(1e-45), np.finfo(np.float32).max
    values = np.array(
        [smallest, -smallest, np.float32(1.1754942e-38), largest, -largest, 1 / 3, -0.0], np.float32
    )
    exact = Network((Dense(np.diag(values), np.zeros(len(values), np.float32)),))
    one = Dense(np.ones((1, 1), np.float32), np.zeros(1, np.float32), "relu")
    two = Network((Dense(np.array([[1, -1]], np.float32), np.zeros(2, np.float32), "softmax"),))
    sigmoid = Network((Dense(one.weights, one.bias, "sigmoid"),))
    cases = [
        Case(exact, "constexpr", "fp32"),
        Case(Network((one,)), "const", "fp32"),
        Case(two, "const", "fp32"),
        Case(sigmoid, "const", "fp32"),
        Case(Network((one,)), "const", "fp16"),
    ]
    functions = on_a_cpu(cases)
    for column, value in enumerate(values):
        unit = torch.zeros(1, len(values))
        unit[0, column] = 1
        assert run(cases[0], functions[0], unit)[0, column].item() == value
    special = torch.tensor(
        [[float("nan")], [float("inf")], [float("-inf")], [-3.0], [1000.0], [-1000.0]]
    )
    for index in (1, 2, 3, 4):
        expected = exact_outputs(cases[index].network, special)
        found = run(cases[index], functions[index], special).double()
        assert torch.allclose(found, expected, rtol=1e-6, atol=1e-30, equal_nan=True), cases[index]


def test_every_float_is_written_exactly():
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 20_000, dtype=np.uint32)
    numbers = np.concatenate(
        [bits.view(np.float32), np.float32([0, -0.0, 1, 1e-45, -1e-45, 3.4028235e38])]
    )
    for number in numbers[np.isfinite(numbers)]:
        text = float_literal(number)
        assert text.endswith("f")
        back = np.float32(float.fromhex(text[:-1]))
        assert back.tobytes() == np.float32(number).tobytes()


def test_halves_are_rounded_to_nearest_or_refused():
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 100
    assert (half_bits(values.numpy()) == values.half().numpy().view(np.uint16)).all()
    with pytest.raises(ValueError, match=r"1e\+06 .* too large for float16.*fp32"):
        half_bits(np.float32([1e6]))


@needs_nvrtc
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_parameters_bytes_are_as_many_as_the_kernel_reads(precision, monkeypatch, tmp_path):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    network = random_network((3, 5, 1), ("relu", "sigmoid"))
    built = build(cuda_source(network, placement="parameter", precision=precision))
    expected = cubin_file.resources(cubin_file.read(built.cubin.image), "evaluate").parameter_bytes
    assert 24 + len(packed_weights(network, precision=precision)) == expected


def test_what_cannot_be_generated_is_refused_with_what_can():
    small = random_network((4, 3), ("relu",))
    for arguments, words in (
        ({"placement": "texture"}, "one of 'const', "),
        ({"precision": "fp8"}, "'fp32', 'fp16'"),
        ({"layout": "tiles"}, "'rows', 'columns'"),
    ):
        with pytest.raises(ValueError, match=words):
            cuda_source(small, **arguments)
    with pytest.raises(ValueError, match="give one of 'cpp', 'cuda'"):
        generate(small, "fortran")
    with pytest.raises(ValueError, match=r'target="cuda"'):
        generate(small, "cpp", precision="fp16")
    wide = random_network((150, 150), ("relu",))
    for placement, limit in (("constant", "65,536"), ("parameter", "32,764"), ("shared", "49,152")):
        with pytest.raises(ValueError, match=f"90,600 bytes; .*{limit}.*pointer"):
            generate(wide, "cuda", placement=placement)
    with pytest.raises(ValueError, match=r"90,000 weights.*torch"):
        generate(random_network((300, 300), ("relu",)), "cuda")


def test_a_model_is_generated_as_its_network_is():
    network = random_network((4, 3), ("tanh",))
    assert generate(network.module(), "cuda") == cuda_source(network)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_running_says_so():
    with pytest.raises(native.NativeError, match="no CUDA device"):
        cuda_function(random_network((4, 3), ("relu",)))


def test_the_models_count_cycles_of_the_busiest_part_of_a_multiprocessor():
    """132 multiprocessors of sm_90 at 1 GHz: by hand, from the rates of NVIDIA's tables."""
    numbers = dict.fromkeys((field.name for field in dataclasses.fields(WeightCensus)), 0)
    found = WeightCensus(
        **{
            **numbers,
            "total": 4000,
            "multiply_adds": 1900,
            "fp16_multiply_adds": 100,
            "global_loads": 1800,
            "shared_loads": 80,
        }
    )
    network = random_network((23, 1), ("relu",))
    gpu = hardware.Gpu("a GPU", "CUDA", multiprocessors=132, clock_hz=1e9, capability="9.0")
    function = SimpleNamespace(precision="fp32", network=network)
    candidates = 32 * 132 * 10**6  # a million warps for each multiprocessor
    found_s = cuda_timing._models(found, function, gpu, candidates, 1e12)
    assert found_s == pytest.approx(
        (1000 * 1e-3, (1800 / 4 + 100 / 4) * 1e-3, 1880 * 1e-3, 24 * 4 * candidates / 1e12)
    )
    unknown = dataclasses.replace(gpu, capability="99.0")
    assert cuda_timing._models(found, function, unknown, candidates, None) == pytest.approx(
        (1.0, None, 1.88, None)
    )
    halves = SimpleNamespace(precision="fp16", network=network)
    assert cuda_timing._models(found, halves, gpu, candidates, None)[0] == pytest.approx(0.5)
    blind = dataclasses.replace(gpu, clock_hz=None)
    assert cuda_timing._models(found, function, blind, candidates, None) == (None,) * 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("measure", [cuda_timing.measure_cuda, cuda_timing.measure_growth])
def test_without_a_gpu_a_recording_has_no_rows_and_says_so(measure):
    found = measure()
    assert found.rows == ()
    assert "nothing was run" in str(found)
    assert results.from_dict(cuda_timing.CudaTimes, json.loads(found.to_json())) == found
    with pytest.raises(ValueError, match="there are none"):
        found.time("const")


class StandIn:
    """What stands for a kernel on a GPU: PyTorch on this CPU, with a real program's census."""

    wrong = ""

    def __init__(self, network, *, placement="const", precision="fp32", layout="rows"):
        self.network, self.placement, self.precision, self.layout = (
            network,
            placement,
            precision,
            layout,
        )
        self.program = build(cuda_source(random_network((2, 1), ("relu",))))

    def __call__(self, inputs, *, out=None):
        rows = inputs if self.layout == "rows" else inputs.T
        with torch.no_grad():
            found = self.network.module()(rows) + (0.1 if self.placement == self.wrong else 0.0)
        return found if self.layout == "rows" else found.T


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """A machine whose GPU is this CPU: what the recorders do around the kernels runs as it would
    there.
    """
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    gpu = hardware.Gpu("NVIDIA H200", "CUDA", multiprocessors=132, clock_hz=2e9, capability="9.0")
    card = SimpleNamespace(gpus=(gpu,))
    compare = timing.compare
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**20, 2**21))
    monkeypatch.setattr(cuda_timing, "cuda_function", StandIn)
    monkeypatch.setattr(
        cuda_timing, "_from_a_file", lambda network, rows: lambda: StandIn(network)(rows)
    )
    monkeypatch.setattr(cuda_timing, "_random_rows", torch.randn)
    monkeypatch.setattr(cuda_timing, "_bandwidth", lambda card: 4.8e12)
    monkeypatch.setattr(
        cuda_timing,
        "_make_compiled",
        lambda module, rows: (_ for _ in ()).throw(OSError("no compiler")),
    )
    monkeypatch.setattr(hardware, "machine_card", lambda: card, raising=False)
    monkeypatch.setattr(
        timing, "compare", lambda *given, **named: compare(*given, **{**named, "device": "cpu"})
    )


@needs_nvrtc
def test_a_recording_has_every_program_with_its_model_and_says_what_did_not_run(stand_in):
    found = cuda_timing.measure_cuda(candidates=10**7, budget_s=0.2)
    names = {f"{name}{end}" for name in CUDA_PLACEMENTS for end in ("", " fp16")}
    assert {row.name for row in found.rows} == names | {
        "const, rows",
        "pointer, rows",
        "from a file, rows",
        "torch eager",
    }
    assert found.candidates == 2**20 // 2 // (4 * (2 * 23 + 4 * 32))
    assert "memory holds" in found.notes[0]
    assert found.notes[1] == "torch.compile did not run: OSError: no compiler"
    assert found.notes[2].startswith("torch CUDA graph did not run: ")
    const, eager = found.time("const"), found.time("torch eager")
    assert const.modelled_s == max(
        const.issue_s, const.multiply_add_s, const.load_s, const.memory_s
    )
    assert const.candidate_ns == pytest.approx(const.median_s * 1e9 / found.candidates)
    assert (eager.instructions, eager.issue_s, eager.modelled_s) == (None, None, None)
    assert found.time("pointer").speedup == 1
    assert results.from_dict(cuda_timing.CudaTimes, json.loads(found.to_json())) == found
    grown = cuda_timing.measure_growth(budget_s=0.2)
    assert [row.name for row in grown.rows] == [
        f"width {width}" for width in cuda_timing.GROWING_WIDTHS
    ]


@needs_nvrtc
def test_a_wrong_program_is_not_timed(stand_in, monkeypatch):
    monkeypatch.setattr(StandIn, "wrong", "shared")
    with pytest.raises(
        RuntimeError,
        match=r"wrong outputs: shared \(.* times its bound\), shared fp16 .*nothing was timed",
    ):
        cuda_timing.measure_cuda(candidates=100, budget_s=0.2)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_a_short_run_measures_every_program():
    found = cuda_timing.measure_cuda(candidates=100_000, budget_s=1)
    assert {"const", "const fp16", "pointer", "from a file, rows", "torch eager"} <= {
        row.name for row in found.rows
    }
    assert all(0 <= row.error_share <= 1 and row.median_s > 0 for row in found.rows)
    assert found.time("const").instructions < found.time("pointer").instructions


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("placement", "precision", "layout"), [*itertools.product(CUDA_PLACEMENTS, PRECISIONS, LAYOUTS)]
)
def test_on_a_gpu_every_placement_equals_float64_within_the_bound(placement, precision, layout):
    network = random_network((23, 9, 3), ("relu", "softmax"))
    function = cuda_function(network, placement=placement, precision=precision, layout=layout)
    inputs = torch.randn(1001, 23, generator=torch.Generator().manual_seed(0))
    given = inputs if layout == "rows" else inputs.T.contiguous()
    outputs = function(given.to(function.device)).cpu()
    errors = (
        (outputs if layout == "rows" else outputs.T).double() - exact_outputs(network, inputs)
    ).abs()
    assert (errors <= error_bound(network, inputs, precision=precision)).all()
