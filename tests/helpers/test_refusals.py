"""What a reader gives by mistake, one table a package: each is refused with one sentence of the
library's own.

A case is the call, the exception's type, and words that say what was given or what is accepted.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import helpers
from helpers import (
    exercises,
    links,
    memory,
    models,
    native,
    parallel,
    plotting,
    profiling,
    recorded,
    results,
    steps,
    timing,
    units,
    widgets,
)
from helpers.studies import (
    attention,
    constant_weights,
    convolution_time,
    data_movement,
    data_parallel,
    decoding,
    fused_bias,
    history,
    input_pipeline,
    matrix_product,
    numbers,
    parallel_plans,
    replicas,
    sgd_parallelism,
    simulators,
    sparsity,
    traces,
)
from helpers.studies.matrix_product import error_share

HUGE = 10**400


def refused(call, kind, words):
    with pytest.raises(kind) as raised:
        call()
    # the library's own sentence
    assert raised.traceback[-1].path.is_relative_to(Path(helpers.__file__).parent)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def table(*cases):
    return pytest.mark.parametrize(("call", "kind", "words"), cases)


@table(
    (lambda: units.flops_from_macs("3"), TypeError, "macs='3' is text"),
    (
        lambda: units.flops_from_macs(None),
        TypeError,
        "macs=None is None; give a whole number, 0 or more",
    ),
    (lambda: units.flops_from_macs(-1), ValueError, "macs=-1 is too small"),
    (lambda: units.flops_from_macs(math.nan), TypeError, "macs=nan is a float"),
    (lambda: units.flops_from_macs(1.5), TypeError, "macs=1.5 is a float; give a whole number"),
    (
        lambda: units.parse("24G", "B"),
        ValueError,
        "'24G' is not in B; write it as, for example, '3.5 B' or '3.5 GB'",
    ),
    (
        lambda: units.parse("24 gib", "B"),
        ValueError,
        "write it as, for example, '3.5 B' or '3.5 GiB'",
    ),
    (
        lambda: units.parse("3 flop", "FLOP"),
        ValueError,
        "write it as, for example, '3.5 FLOP' or '3.5 MFLOP'",
    ),
    (lambda: units.parse("5", "s"), ValueError, "'5' has no unit; write it as, for example, '5 s'"),
    (lambda: units.parse("1,024", "B"), ValueError, "'1024 B'"),
    (lambda: units.text("5", "s"), TypeError, "value='5' is text, as str; give a number"),
    (lambda: units.text([5], "s"), TypeError, "value=[5] is a list"),
    (lambda: units.text(1j, "s"), TypeError, "value=1j is a complex"),
    (lambda: units.text(torch.ones(3), "s"), TypeError, "is a Tensor; give a number"),
    (lambda: units.text(HUGE, "s"), ValueError, "is too large; give a number"),
)
def test_units(call, kind, words):
    refused(call, kind, words)


def nothing():
    return None


def entered(context):
    with context:
        pass


@table(
    (lambda: timing.measure(nothing, clock=None), TypeError, "clock=None is no function"),
    (lambda: timing.measure(nothing, clock=5), TypeError, "such as time.perf_counter"),
    (
        lambda: timing.measure(nothing, clock=lambda: "1"),
        TypeError,
        "a reading of clock='1' is text",
    ),
    (lambda: timing.measure(nothing, clock=lambda: math.nan), ValueError, "clock gave nan"),
    (
        lambda: timing.measure(nothing, clock=iter(range(99, 0, -1)).__next__),
        ValueError,
        "never goes back",
    ),
    (
        lambda: timing.compare({"a": nothing, "b": nothing}, clock=5),
        TypeError,
        "clock=5 is no function",
    ),
    (lambda: timing.compare({"a": nothing, "b": nothing}, seed="x"), TypeError, "seed='x' is text"),
    (
        lambda: timing.compare({"a": nothing, "b": nothing}, seed=1.5),
        TypeError,
        "seed=1.5 is a float",
    ),
    (lambda: timing.claim("it is slower", 2.0, at_least=1, evidence=None), TypeError, "got None"),
    (lambda: timing.claim("it is slower", 2.0, at_least=1, evidence=5), TypeError, "got 5"),
    (
        lambda: entered(timing.fixed_threads(10**9)),
        ValueError,
        "too large; give a whole number, 1 to 4,096",
    ),
    (lambda: entered(timing.fixed_threads("2")), TypeError, "threads='2' is text"),
    (lambda: entered(timing.fixed_threads(0)), ValueError, "threads=0 is too small"),
)
def test_timing(call, kind, words):
    refused(call, kind, words)


def curves(sizes, values, **options):
    return plotting.draw_curves(
        sizes, values, unit="s", title="t", xlabel="x", ylabel="y", **options
    )


def bars(values):
    return plotting.draw_bars(values, unit="s", title="t")


def three(settings, numbers):
    return plotting.draw_three(settings, numbers, unit="s", title="t", xlabel="x")


@table(
    (
        lambda: bars([1, 2]),
        TypeError,
        "values=[1, 2] is a list; give a dictionary from names to numbers",
    ),
    (lambda: bars({"a": None}), TypeError, "values['a']=None is None; give a finite number"),
    (lambda: bars({"a": "x"}), TypeError, "values['a']='x' is text"),
    (lambda: bars({"a": math.nan}), ValueError, "values['a']=nan; give a finite number"),
    (lambda: bars({"a": HUGE}), ValueError, "is too large"),
    (lambda: bars({}), ValueError, "at least one name and value"),
    (lambda: three([], {}), ValueError, "at least one setting"),
    (lambda: three(["a"], [1]), TypeError, "numbers=[1] is a list"),
    (lambda: three(["a"], {"modelled": 5}), TypeError, "numbers['modelled']=5 is an int"),
    (lambda: three(["a"], {"modelled": [math.nan]}), ValueError, "numbers['modelled'][0]=nan"),
    (lambda: three(5, {"modelled": [1]}), TypeError, "settings=5"),
    (lambda: curves([0, 1], {"a": [1, 2]}), ValueError, "sizes[0]=0; give a finite number above 0"),
    (lambda: curves([math.nan], {"a": [1]}), ValueError, "sizes[0]=nan"),
    (lambda: curves(["one"], {"a": [1]}), TypeError, "sizes[0]='one' is text"),
    (lambda: curves(None, {"a": [1]}), TypeError, "sizes=None is None"),
    (lambda: curves([1], None), TypeError, "curves=None is None; give a dictionary"),
    (lambda: curves([1], {"a": "1"}), TypeError, "curves['a']='1' is text"),
    (lambda: curves([1], {"a": [[1]]}), TypeError, "curves['a'][0]=[1] is a list"),
    (lambda: curves([1], {"a": ["1"]}), TypeError, "curves['a'][0]='1' is text"),
    (lambda: curves([1], {"a": [1]}, marks={"L1": 0}), ValueError, "marks['L1']=0"),
    (
        lambda: plotting.draw_layers(["a"], {"x": [math.nan]}, unit="B", title="t"),
        ValueError,
        "parts['x'][0]=nan",
    ),
    (
        lambda: plotting.draw_layers(["a"], {"x": [-1]}, unit="B", title="t"),
        ValueError,
        "0 or more",
    ),
    (lambda: plotting.draw_layers(None, {"x": [1]}, unit="B", title="t"), TypeError, "layers=None"),
    (lambda: plotting.draw_shares({}, title="t"), ValueError, "at least one whole"),
    (
        lambda: plotting.draw_shares(None, title="t"),
        TypeError,
        "wholes=None is None; give a dictionary",
    ),
    (lambda: plotting.draw_shares({"a": [1]}, title="t"), TypeError, "wholes['a']=[1] is a list"),
    (lambda: plotting.draw_shares({"a": {"x": -1}}, title="t"), ValueError, "wholes['a']['x']=-1"),
    (lambda: sgd_parallelism.draw_limits([0], [math.nan], [1]), ValueError, "modelled[0]=nan"),
    (
        lambda: sgd_parallelism.draw_limits([-1], [1], [1]),
        ValueError,
        "delays[0]=-1; give a finite number, 0 or more",
    ),
    (
        lambda: plotting.spans_in_a_row([1]),
        TypeError,
        "give a dictionary from names to dictionaries from kinds",
    ),
    (lambda: plotting.spans_in_a_row({"a": {"k": -1}}), ValueError, "lanes['a']['k']=-1"),
    (lambda: plotting.gantt([5], title="t"), TypeError, "spans holds 5, which has no"),
    (
        lambda: plotting.gantt([plotting.Span("a", 1, 2, "k")], title="t", until=1),
        ValueError,
        "number above 1",
    ),
    (
        lambda: plotting.gantt([plotting.Span("a", "0", 1, "k")], title="t"),
        TypeError,
        "spans[0].start='0' is text",
    ),
    (
        lambda: plotting.gantt([plotting.Span("a", 0, math.nan, "k")], title="t"),
        ValueError,
        "spans[0].end=nan",
    ),
    (lambda: plotting.show(None, alt="a curve"), TypeError, "drawn=None is None; give a figure"),
    (lambda: plotting.show(Figure(), alt=None), TypeError, "alt=None is None; give a sentence"),
    (lambda: plotting.show(Figure(), alt=5), TypeError, "alt=5 is an int"),
    *(
        (lambda draw=draw: draw([5]), TypeError, "[0]=5 is an int; give a list of")
        for draw in (
            data_movement.draw_hierarchy,
            data_movement.draw_links,
            data_movement.draw_inversion,
            data_movement.draw_latencies,
            data_movement.draw_bandwidths,
            history.draw_energy,
            sgd_parallelism.draw_speedup,
        )
    ),
    *(
        (lambda draw=draw: draw(None), TypeError, "=None is None; give")
        for draw in (
            data_movement.draw_inversion,
            sgd_parallelism.draw_crossover,
            sgd_parallelism.draw_split,
        )
    ),
    (lambda: history.draw_trends([5], title="t"), TypeError, "all_series[0]=5 is an int"),
    (lambda: parallel_plans.draw_ring([]), ValueError, "the same number of chunks, at least one"),
    (
        lambda: parallel_plans.draw_ring([[{0}]] * 9),
        ValueError,
        "9 ranks are too many to read; draw at most 8",
    ),
    (lambda: parallel_plans.draw_ring([[{0}, {2}]] * 2), ValueError, "chunks[0][1]=2 is too large"),
    (
        lambda: parallel_plans.draw_ring([[{0}]] * 2, moves=[(0, 1)]),
        ValueError,
        "such as (0, 1, 3)",
    ),
    (
        lambda: parallel_plans.draw_ring([[{0}]] * 2, moves=[(0, 2, 0)]),
        ValueError,
        "moves[0], target=2 is too large",
    ),
    (lambda: parallel_plans.draw_mesh(8), TypeError, "layout=8 is an int; give a layout"),
    (
        lambda: parallel_plans.draw_mesh(parallel_plans.Layout(data=2), along="rows"),
        ValueError,
        "along='rows'",
    ),
    (
        lambda: parallel_plans.draw_mesh(parallel_plans.Layout(data=65)),
        ValueError,
        "65 ranks are too many to read",
    ),
    (lambda: parallel_plans.draw_column_row(5), ValueError, "parts=5 is too large"),
    (lambda: parallel_plans.draw_blocks(4, 4), ValueError, "step=4 is too large"),
    (
        lambda: parallel_plans.draw_all_to_all([[1, 2, 3]] * 2),
        ValueError,
        "3 experts on 2 ranks cannot be drawn",
    ),
    (lambda: parallel_plans.draw_all_to_all([[0, 0]] * 2), ValueError, "and a token"),
    (lambda: matrix_product.draw_products(1), ValueError, "n=1 is too small"),
    (
        lambda: matrix_product.draw_tiles(6, 8, 8, tile=4),
        ValueError,
        "m=6 is cut into no whole tiles of 4",
    ),
    (lambda: matrix_product.draw_tiles(8, 8, 28, tile=4), ValueError, "k=28 is too large"),
    (
        lambda: matrix_product.draw_tiles(8, 8, 8, tile=4, block=(2, 0)),
        ValueError,
        "block[0]=2 is too large",
    ),
    (lambda: matrix_product.draw_tiles(8, 8, 8, tile=4, step=2), ValueError, "step=2 is too large"),
    (
        lambda: fused_bias.draw_kernels({}),
        ValueError,
        "at least one program, and each at least one Kernel",
    ),
    (
        lambda: fused_bias.draw_kernels({"a": [5]}),
        TypeError,
        "programs['a'][0]=5 is an int; give a list of Kernels",
    ),
    (
        lambda: input_pipeline.draw_loader([], [], 0, places=2),
        ValueError,
        "0 workers cannot be drawn",
    ),
    (
        lambda: input_pipeline.draw_loader([1], [1, 2, 3], 0, places=2),
        ValueError,
        "3 batches are ready in 2 places",
    ),
    (
        lambda: data_movement.draw_window(3, [3], used=3, read=True),
        ValueError,
        "kept[0]=3 is too large",
    ),
    (
        lambda: data_movement.draw_window(3, [0, 0], used=0, read=True),
        ValueError,
        "kept is [0, 0] and used is 0",
    ),
    (
        lambda: data_movement.draw_window(3, [0], used=1, read=True),
        ValueError,
        "kept is [0] and used is 1",
    ),
    (lambda: attention.draw_score_tiles([], 0), ValueError, "order is tiles"),
    (
        lambda: attention.draw_score_tiles([(0, 0), (0, 0)], 0),
        ValueError,
        "each once and as (row, column)",
    ),
    (lambda: attention.draw_score_tiles([(0, 12)], 0), ValueError, "order[0]=12 is too large"),
    (lambda: attention.draw_score_tiles([(0, 0)], 1), ValueError, "step=1 is too large"),
)
def test_plotting(call, kind, words):
    refused(call, kind, words)


@table(
    (lambda: results.from_dict(None, {}), TypeError, "result_type=None is no class of results"),
    (
        lambda: results.from_dict(timing.Timing, None),
        ValueError,
        "a mapping of field names is needed, not None",
    ),
    (lambda: results.printed(None), TypeError, "frame=None is None; give a DataFrame"),
    (lambda: results.label(5), TypeError, "name=5 is an int"),
    (lambda: results.cell(None, 5), TypeError, "name=None is None; give a field's name as text"),
)
def test_results(call, kind, words):
    refused(call, kind, words)


@table(
    *(
        (
            lambda lesson=lesson: recorded.show(lesson, "products"),
            ValueError,
            f"lesson {lesson!r} records nothing",
        )
        for lesson in ("99", "", None, "../../etc", 0, [])
    ),
    (lambda: recorded.show("00", None), ValueError, "there is no None"),
    (
        lambda: recorded.show("00", "products", folder=5),
        TypeError,
        "folder=5 is an int; give a pathlib.Path",
    ),
    (
        lambda: recorded.show("00", "products", folder=Path("nowhere")),
        FileNotFoundError,
        "no run is recorded",
    ),
)
def test_recorded(call, kind, words):
    refused(call, kind, words)


def test_a_recording_nested_too_deep_is_no_recording(tmp_path):
    (tmp_path / "00.json").write_text("[" * 100_000 + "]" * 100_000)
    refused(
        lambda: recorded.show("00", "products", folder=tmp_path),
        ValueError,
        "00.json is not a recording",
    )


PROGRAM = 'extern "C" int one() { return 1; }'


@table(
    (lambda: native.compile_cpp(""), ValueError, "source='' holds no program"),
    (
        lambda: native.compile_cpp(b"int x;"),
        TypeError,
        "source is the text of a C++ program, not bytes",
    ),
    (lambda: native.compile_cpp(PROGRAM, flags="-O3 -g"), TypeError, "flags='-O3 -g' is text"),
    (
        lambda: native.compile_cpp(PROGRAM, flags=None),
        TypeError,
        "flags=None is None; give a list of texts",
    ),
    (lambda: native.compile_cpp(PROGRAM, flags=[5]), TypeError, "flags[0]=5 is an int"),
    (
        lambda: native.compile_cpp(PROGRAM, flags=["-o"]),
        ValueError,
        "names the output with -o; leave it out",
    ),
    (lambda: native.compile_cpp(PROGRAM, folder=5), TypeError, "folder=5 is an int; give a path"),
    (
        lambda: native.compile_cpp(PROGRAM, folder=Path("/proc")),
        FileNotFoundError,
        "could not be kept",
    ),
    (lambda: native.disassemble("nowhere.o"), native.NativeError, "'nowhere.o' cannot be read"),
    (
        lambda: native.disassemble(b"\x7fELF", function=5),
        TypeError,
        "function=5 is an int; give a function's name",
    ),
)
def test_native(call, kind, words):
    refused(call, kind, words)


def test_a_disk_that_fills_while_linking_is_called_full(tmp_path, monkeypatch):
    compiler = tmp_path / "g++"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo fake; exit 0;; esac\necho "ld: final link '
        'failed: No space left on device" >&2; exit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    refused(
        lambda: native.compile_cpp(PROGRAM, folder=tmp_path),
        OSError,
        "No space left on device); free some space",
    )


@table(
    (lambda: widgets.predict(None, "s"), TypeError, "question=None is None"),
    (lambda: widgets.predict(5, "s"), TypeError, "question=5 is an int; give the question as text"),
    (lambda: widgets.predict("How long?", None), TypeError, "unit=None is None"),
    (lambda: widgets.progress(course=5), TypeError, "course=5 is an int; give the folder"),
    (
        lambda: widgets.interactive_figure(None, None, views=None, alt=None),
        TypeError,
        "draw=None is None",
    ),
    (
        lambda: widgets.interactive_figure(print, None, views=[], alt=print),
        TypeError,
        "choices=None is None",
    ),
    (
        lambda: widgets.interactive_figure(print, {}, views=None, alt=print),
        TypeError,
        "views=None is None",
    ),
)
def test_widgets(call, kind, words):
    refused(call, kind, words)


@table(
    (lambda: simulators.sequential(10**10), ValueError, "is too large; give a whole number, 1 to"),
    (lambda: simulators.sequential("a"), TypeError, "count='a' is text"),
    (
        lambda: simulators.strided(9, stride_bytes=10**18),
        ValueError,
        "stride_bytes=1000000000000000000 is too large",
    ),
    (
        lambda: simulators.simulate_latency([simulators.CacheLevel(1024)], [1e-9, 1e-8], [10**15]),
        ValueError,
        "accesses, and at most",
    ),
)
def test_simulators(call, kind, words):
    refused(call, kind, words)


def on_array(a=((1, 2),), b=((3,), (4,)), rows=2, columns=2, **how):
    return lambda: simulators.systolic.simulate(a, b, rows=rows, columns=columns, **how)


def ones(*shape):
    """Return an array of ones that takes 8 bytes, since every process reads this table."""
    return np.broadcast_to(1.0, shape)


LONG = np.ones((10**6, 2), np.int8)


@table(
    (on_array(rows=2.0), TypeError, "rows=2.0 is a float; give a whole number, 1 to 1,024"),
    (on_array(columns=0), ValueError, "columns=0 is too small; give a whole number, 1 to 1,024"),
    (on_array(rows=2000), ValueError, "rows=2000 is too large"),
    (on_array(a=()), ValueError, "a has the shape (0,); give two sizes, both 1 or more"),
    (
        on_array(a=((1, 2), (3,))),
        TypeError,
        "numpy cannot read a, a tuple (setting an array element with a sequence)",
    ),
    (
        on_array(b=(("x",), ("y",))),
        TypeError,
        "b holds values of type <U1; give a matrix of numbers",
    ),
    (on_array(a=None), TypeError, "a holds values of type object"),
    (
        on_array(a=torch.ones(1, 2, dtype=torch.bfloat16)),
        TypeError,
        "numpy cannot read a, a Tensor (Got unsupported",
    ),
    (
        on_array(a=((1, 2, 3),)),
        ValueError,
        "a has the shape (1, 3) and b (2, 1); give a as many columns as b has rows",
    ),
    (
        on_array(a=np.full((1, 2), 2**64 - 1, np.uint64)),
        ValueError,
        "a holds 18446744073709551615; whole numbers",
    ),
    (
        on_array(dataflow="row"),
        ValueError,
        "dataflow='row' is not known; give one of 'weight', 'output', 'input'",
    ),
    (
        on_array(dataflow="output", double_buffered=True),
        ValueError,
        "double_buffered=True has no meaning",
    ),
    (
        on_array(a=LONG, frames=True),
        ValueError,
        "frames of about 1,000,004 cycles of 2 x 2 elements are too many",
    ),
    (on_array(frames="yes"), TypeError, "frames='yes' is text, as str; give True or False"),
    (
        lambda: simulators.systolic.model_cycles(0, 1, 1, rows=1, columns=1),
        ValueError,
        "m=0 is too small",
    ),
    (
        lambda: simulators.systolic.model_accesses(1, 1, 1.5, rows=1, columns=1),
        TypeError,
        "k=1.5 is a float",
    ),
    (
        lambda: simulators.systolic.gemm_of(nn.ReLU(), (1, 2)),
        TypeError,
        "a ReLU is not one product",
    ),
    (
        lambda: simulators.systolic.gemm_of(nn.Linear(3, 4), (1, 2)),
        ValueError,
        "does not take an input of shape (1, 2)",
    ),
    (
        lambda: simulators.systolic.simulate_network(nn.ReLU(), (1, 2), rows=1, columns=1),
        ValueError,
        "ReLU calls no convolution and no linear layer; give a model that does",
    ),
)
def test_systolic(call, kind, words):
    refused(call, kind, words)


def encoded(values, key="int8", **how):
    return lambda: numbers.FORMATS[key].encode(values, **how)


ONES = torch.ones(2, 2)
BYTES = torch.ones(2, 2, dtype=torch.uint8)


@table(
    (
        lambda: numbers.FORMATS["fp8"],
        KeyError,
        "there is no format 'fp8'; there are fp32, tf32, bf16, fp16, e4m3",
    ),
    (lambda: numbers.FORMATS[8], KeyError, "there is no format 8"),
    (
        lambda: numbers.FORMATS["fp32"].values(),
        ValueError,
        "fp32 has 4,294,967,296 codes, too many to list",
    ),
    (
        lambda: numbers.FORMATS["int8"].decode([1, 2]),
        TypeError,
        "codes=[1, 2] is a list; give a tensor",
    ),
    (
        lambda: numbers.FORMATS["int8"].decode(ONES),
        TypeError,
        "codes is a tensor of float32; give codes of int8",
    ),
    (lambda: numbers.FORMATS["int8"].decode(ONES > 0), TypeError, "codes is a tensor of bool"),
    (
        lambda: numbers.FORMATS["e2m1"].decode(torch.tensor([3, 16])),
        ValueError,
        "codes holds 16; give codes of e2m1, whole numbers from 0 to 15",
    ),
    (lambda: numbers.FORMATS["int8"].decode(torch.tensor([-1])), ValueError, "codes holds -1"),
    (
        lambda: numbers.FORMATS["fp16"].spacing("1"),
        TypeError,
        "values='1' is text, as str; give a number or a tensor",
    ),
    (
        lambda: numbers.FORMATS["fp16"].spacing(ONES * 1j),
        TypeError,
        "values is a tensor of complex64",
    ),
    (encoded(1.0), TypeError, "values=1.0 is a float; give a tensor"),
    (encoded(np.ones(2)), TypeError, "is a ndarray; give a tensor"),
    (
        encoded(ONES > 0),
        TypeError,
        "values is a tensor of bool; give a dense tensor of floats or whole numbers",
    ),
    (encoded(ONES.to_sparse()), TypeError, "values is a tensor of sparse_coo"),
    (
        encoded(ONES, rounding="up"),
        ValueError,
        "rounding='up' is not known; give one of 'nearest', 'stochastic'",
    ),
    (encoded(ONES, saturate=1), TypeError, "saturate=1 is an int; give True or False"),
    (
        encoded(ONES, rounding="stochastic", generator=7),
        TypeError,
        "generator=7 is an int; give a torch.Generator",
    ),
    (
        encoded(ONES * math.nan),
        ValueError,
        "values holds NaN, and int8 has no code for it; replace it",
    ),
    (encoded(ONES * math.nan, "e2m1"), ValueError, "values holds NaN, and e2m1 has no code for it"),
    (
        encoded(ONES * -129, saturate=False),
        ValueError,
        "values holds -129, and int8 goes from -128 to 127 without",
    ),
    (
        encoded(ONES * 7, "e2m1", saturate=False),
        ValueError,
        "values holds 7, and e2m1 goes from -6 to 6",
    ),
    (encoded(ONES * math.inf, "e2m1", saturate=False), ValueError, "values holds inf"),
    (lambda: numbers.encode_blocks([1.0], "e2m1"), TypeError, "values=[1.0] is a list"),
    (
        lambda: numbers.encode_blocks(ONES, "int4"),
        ValueError,
        "element='int4' is not known; give one of 'e4m3'",
    ),
    (
        lambda: numbers.encode_blocks(ONES, "e2m1", axis=2),
        ValueError,
        "axis=2 is too large; give a whole number",
    ),
    (lambda: numbers.encode_blocks(ONES, "e2m1", axis=None), TypeError, "axis=None is None"),
    (
        lambda: numbers.encode_blocks(torch.tensor(1.0), "e2m1"),
        ValueError,
        "a tensor of one number has no axis",
    ),
    (
        lambda: numbers.encode_blocks(ONES, "e2m1", rounding="up"),
        ValueError,
        "rounding='up' is not known",
    ),
    (lambda: numbers.quantise([1.0], 8), TypeError, "tensor=[1.0] is a list; give a tensor"),
    (
        lambda: numbers.quantise(ONES, 1),
        ValueError,
        "bits=1 is too small; give a whole number, 2 to 32",
    ),
    (lambda: numbers.quantise(ONES, 8.0), TypeError, "bits=8.0 is a float"),
    (
        lambda: numbers.quantise(ONES, 8, -3),
        ValueError,
        "axis=-3 is too small; give a whole number, -2 to 1",
    ),
    (lambda: numbers.quantise(ONES, 8, "rows"), TypeError, "axis='rows' is text"),
    (lambda: numbers.quantise(ONES * math.inf, 8), ValueError, "tensor holds NaN or an infinity"),
    (
        lambda: numbers.saturating_product(ONES, BYTES),
        TypeError,
        "activations is a tensor of float32; give bytes",
    ),
    (
        lambda: numbers.saturating_product(BYTES, BYTES.tolist()),
        TypeError,
        "weights=[[1, 1], [1, 1]] is a list",
    ),
    (
        lambda: numbers.saturating_product(BYTES.int() - 2, BYTES),
        ValueError,
        "activations holds -1; give bytes",
    ),
    (
        lambda: numbers.saturating_product(BYTES, BYTES + 127),
        ValueError,
        "weights holds 128; give bytes with a sign",
    ),
    (
        lambda: numbers.saturating_product(BYTES[0], BYTES),
        ValueError,
        "activations has the shape (2,); give a matrix",
    ),
    (
        lambda: numbers.saturating_product(BYTES, BYTES[:1]),
        ValueError,
        "(2, 2) and weights (1, 2); give",
    ),
)
def test_numbers(call, kind, words):
    refused(call, kind, words)


def pruning(share=0.5, model=None, **how):
    return lambda: sparsity.prune(model or helpers.LeNet(), share, **how)


def product(right):
    return lambda: sparsity.to_csr(torch.ones(2, 3)) @ right


@table(
    (pruning(1.5), ValueError, "share=1.5; give a number from 0 to 1"),
    (pruning(-0.1), ValueError, "share=-0.1; give a number from 0 to 1"),
    (pruning("half"), TypeError, "share='half' is text"),
    (pruning(math.nan), ValueError, "share=nan; give a finite number"),
    (pruning(None), TypeError, "share=None is None"),
    (
        pruning(pattern="4:8"),
        ValueError,
        "pattern='4:8' is not known; give one of 'unstructured', '2:4'",
    ),
    (
        pruning(scope="global"),
        ValueError,
        "scope='global' is not known; give one of 'layer', 'model'",
    ),
    (
        pruning(0.9, pattern="2:4"),
        ValueError,
        "removes two of every four weights, in each layer: give share=0.5",
    ),
    (
        pruning(pattern="2:4", scope="model"),
        ValueError,
        "in each layer: give share=0.5 and no scope",
    ),
    (
        pruning(pattern="2:4"),
        ValueError,
        "the 6 x 1 of conv1; give layers=['fc1', 'fc2', 'fc3'], where it does",
    ),
    (
        pruning(pattern="2:4", layers=["conv2"]),
        ValueError,
        "the 16 x 6 of conv2; it does so in none of these layers",
    ),
    (pruning(pattern="blocks"), ValueError, "such as block=(4, 4); give it there, and only there"),
    (pruning(block=(4, 4)), ValueError, "and only there: pattern='unstructured', block=(4, 4)"),
    (pruning(pattern="blocks", block=4), TypeError, "block=4 is an int; give a list of two sizes"),
    (
        pruning(pattern="blocks", block=(4,)),
        ValueError,
        "block=(4,) has 1 sizes; give two, such as (4, 4)",
    ),
    (pruning(pattern="blocks", block=(4, 0)), ValueError, "block[1]=0 is too small"),
    (
        pruning(pattern="neurons"),
        ValueError,
        "pattern='neurons' needs layers, because a neuron of the last one is",
    ),
    (
        pruning(layers="fc1"),
        TypeError,
        "layers='fc1' is text, as str; give a list of names of layers",
    ),
    (
        pruning(layers=["fc9"]),
        ValueError,
        "layers names 'fc9', which is no layer to prune; give some of ['conv1'",
    ),
    (pruning(layers=[]), ValueError, "layers names none; give some of ['conv1'"),
    (pruning(layers=[5]), TypeError, "layers[0]=5 is an int"),
    (
        pruning(model=nn.ReLU()),
        ValueError,
        "ReLU has no convolution and no linear layer; give a model that has one",
    ),
    (pruning(model=nn.LSTM(2, 2)), ValueError, "LSTM has no convolution and no linear layer"),
    (
        pruning(model=nn.LazyLinear(3)),
        steps.ModelError,
        "weight has no shape yet (a lazy module); run the model once",
    ),
    (
        pruning(model=nn.Linear(3, 3, device="meta")),
        steps.ModelError,
        "the weight of Linear has no values ((3, 3) on",
    ),
    (pruning(model=nn.Linear), TypeError, "Linear is a class; give a model made of it"),
    (pruning(model="LeNet"), TypeError, "model='LeNet' is text, as str; give a torch.nn.Module"),
    (
        lambda: sparsity.weight_matrix(nn.ReLU()),
        TypeError,
        "a ReLU has no matrix of weights; give a convolution or",
    ),
    (
        lambda: sparsity.to_csr([[1, 2]]),
        TypeError,
        "matrix=[[1, 2]] is a list; give a matrix as a torch.Tensor",
    ),
    (
        lambda: sparsity.to_csr(torch.ones(2, 1, 3, 3)),
        TypeError,
        "of 4 dimensions (torch.float32, torch.strided,",
    ),
    (
        lambda: sparsity.to_csr(torch.eye(2).to_sparse()),
        TypeError,
        "torch.sparse_coo, on cpu); give a dense one of 2",
    ),
    (
        lambda: sparsity.to_csr(torch.eye(2) > 0),
        TypeError,
        "(torch.bool, torch.strided, on cpu); give a dense one",
    ),
    (
        lambda: sparsity.to_csr(torch.eye(6), block=(2, 4)),
        ValueError,
        "blocks of 2 x 4 do not divide a matrix of 6 x 6",
    ),
    (
        lambda: sparsity.to_csr(torch.eye(2), index_dtype=torch.int8),
        TypeError,
        "give torch.int32 or torch.int64",
    ),
    (product([1, 2, 3]), TypeError, "the right side=[1, 2, 3] is a list"),
    (
        product(torch.ones(2)),
        ValueError,
        "has the shape (2,); give (3,) or (3, n), because the matrix is 2 x 3",
    ),
    (
        product(torch.ones(3).double()),
        TypeError,
        "is torch.float64 on cpu; give torch.float32 on cpu",
    ),
    (
        lambda: sparsity.pack_2_4(torch.ones(2, 6)),
        ValueError,
        "the matrix is 2 x 6; 2:4 needs a number of columns",
    ),
    (
        lambda: sparsity.pack_2_4(torch.eye(4) + torch.eye(4).flip(0) + 1),
        ValueError,
        "4 of the four numbers from [0, 0]",
    ),
    (
        lambda: sparsity.model_bytes("coo", 2, 2),
        ValueError,
        "storage='coo' is not known; give one of 'dense', 'csr'",
    ),
    (
        lambda: sparsity.model_bytes("csr", 2, 2),
        TypeError,
        "kept=None is None; give a whole number, 0 to 4",
    ),
    (
        lambda: sparsity.model_bytes("csr", 2, 2, kept=5),
        ValueError,
        "kept=5 is too large; give a whole number, 0 to 4",
    ),
    (
        lambda: sparsity.model_bytes("csr", 2, 2, kept=5, block=(2, 3)),
        ValueError,
        "blocks of 2 x 3 do not divide",
    ),
    (lambda: sparsity.model_bytes("2:4", 2, 6), ValueError, "the matrix is 2 x 6; 2:4 needs"),
    (lambda: sparsity.model_bytes("dense", 2.5, 6), TypeError, "rows=2.5 is a float"),
)
def test_sparse(call, kind, words):
    refused(call, kind, words)


@table(
    (
        lambda: memory.estimate_peak_memory(nn.Linear(8, 8), (2, 8), training=None),
        TypeError,
        "training=None is None",
    ),
    (
        lambda: memory.estimate_peak_memory(nn.Linear(8, 8), (2, 8), training="no"),
        TypeError,
        "training='no' is text",
    ),
    (
        lambda: profiling.profile_time(nn.Linear(8, 8), (10**12, 8)),
        ValueError,
        "does not fit into memory",
    ),
    (
        lambda: profiling.profile_time(nn.Linear(8, 8), (2, 8), training=1),
        TypeError,
        "training=1 is an int; give True",
    ),
)
def test_memory_and_profiling(call, kind, words):
    refused(call, kind, words)


def heads(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


SHAPE = convolution_time.ConvolutionShape(2, 3, 6, 5, 4, kernel=3, stride=1, padding=1)


NET = constant_weights.random_network((23, 4, 1), ("relu", "sigmoid"))


@table(
    (
        on_array([[2**62]], [[4]], rows=1, columns=1),
        ValueError,
        "up to 1.84e+19, and whole numbers",
    ),
    (
        on_array([[2**31, 2**31]], [[2**31], [2**31]], rows=1, columns=1),
        ValueError,
        "give floats, or smaller numbers",
    ),
    (
        on_array(ones(2000, 2000), ones(2000, 2000), rows=1, columns=1),
        ValueError,
        "would take minutes",
    ),
    (
        on_array(ones(9000, 9000), ones(9000, 1000), rows=256, columns=256),
        ValueError,
        "or a larger array",
    ),
    (
        lambda: attention.in_tiles(*[heads(2, 4, dtype=torch.int64)] * 3),
        TypeError,
        "these are int64, int64, int64",
    ),
    (
        lambda: attention.in_tiles(heads(2, 4), heads(2, 4, dtype=torch.float64), heads(2, 4)),
        TypeError,
        (
            "query, key and value hold floats of one type; these are float32, float64, float32: "
            "convert them"
        ),
    ),
    (
        lambda: constant_weights.error_bound(NET, heads(2, 99)),
        ValueError,
        "shape (2, 99); the network takes (N, 23)",
    ),
    (
        lambda: constant_weights.error_bound(NET, [1.0]),
        TypeError,
        "inputs=[1.0] is a list; give a tensor",
    ),
    (
        lambda: constant_weights.exact_outputs(NET, heads(23)),
        ValueError,
        "the network takes (N, 23)",
    ),
    (lambda: decoding.verify(heads(3), heads(4)), ValueError, "the shapes (3,) and (4,); give one"),
    (
        lambda: decoding.verify(heads(2) * math.nan, heads(2)),
        ValueError,
        "target or draft holds NaN",
    ),
    (
        lambda: error_share(heads(2, 2), heads(2, 3), heads(2, 2)),
        ValueError,
        "(2, 2), (2, 3) and (2, 2)",
    ),
    (
        lambda: error_share(heads(2), heads(2, 3), heads(3, 2)),
        ValueError,
        "give (m, n), (m, k) and (k, n)",
    ),
    (
        lambda: error_share(None, None, None),
        TypeError,
        "c=None is None; give a matrix, as a tensor",
    ),
    (lambda: decoding.verify(None, heads(2)), TypeError, "target=None is None; give a tensor"),
    (
        lambda: attention.tiles_of(10**9, rows=1, columns=1),
        ValueError,
        "give fewer tokens or larger tiles",
    ),
    (
        lambda: attention.tiles_of(HUGE, rows=1, columns=1),
        ValueError,
        "give fewer tokens or larger tiles",
    ),
    (
        lambda: attention.saved_bytes(None),
        TypeError,
        "function=None is None; give a function of tensors",
    ),
    (
        lambda: constant_weights.error_bound(None, heads(2, 23)),
        TypeError,
        "network=None is None; give a network",
    ),
    (
        lambda: constant_weights.random_network((3, "a"), ("relu",)),
        TypeError,
        "widths[1]='a' is text",
    ),
    (
        lambda: constant_weights.random_network(3, ("relu",)),
        TypeError,
        "give a list of whole numbers",
    ),
    (
        lambda: constant_weights.random_network((3, 1), "relu"),
        TypeError,
        "give a list of identity, relu, tanh",
    ),
    (lambda: constant_weights.random_network((3, 1), ("relu",), seed=-1), ValueError, "seed=-1"),
    (
        lambda: decoding.read_bytes(None),
        TypeError,
        "config=None is None; give the shapes of a model",
    ),
    (
        lambda: decoding.count_step(None),
        TypeError,
        "config=None is None; give the shapes of a model",
    ),
    (
        lambda: decoding.count_pages(None, 16),
        TypeError,
        "lengths=None is None; give a list of whole numbers",
    ),
    (lambda: decoding.schedule([1], places=HUGE, policy="static"), ValueError, "1 to 1,000,000"),
    (
        lambda: fused_bias.bandwidth_at(None, 1.0, by="read"),
        TypeError,
        "limits=None is None; give a machine's limits",
    ),
    (
        lambda: parallel_plans.layer_work(None, (4, 8)),
        TypeError,
        "model=None is None; give an nn.Sequential",
    ),
    (
        lambda: parallel_plans.tensor_plan("net"),
        TypeError,
        "model='net' is text, as str; give an nn.Sequential",
    ),
    (lambda: convolution_time.hold_out_networks([SHAPE], {}), ValueError, "networks is empty"),
    (
        lambda: exercises.Checks("a", print).returns("b", 5, expected=1),
        TypeError,
        "arguments=5 is an int; give",
    ),
)
def test_shapes_types_and_runs_without_end(call, kind, words):
    refused(call, kind, words)


WRITER = models.Decoder(8, width=8, heads=2, layers=1)
LINK = links.Link(1e9, 1e-6)
ROWS = nn.Sequential(nn.Linear(8, 8))
WORK = parallel_plans.layer_work(ROWS, (4, 8), flops_per_s=1e9)
LAYOUT = parallel_plans.Layout()


def strategy(layers=WORK, layout=LAYOUT, link=LINK, **how):
    return lambda: parallel_plans.strategy_step(layers, layout, link=link, **how)


LAYERS = (parallel.LayerCost(1.0, 1.0, 8),)


def ddp(layers=LAYERS, world_size=2, link=LINK, **how):
    return lambda: data_parallel.ddp_step(layers, world_size=world_size, link=link, **how)


def waves(**how):
    given = {"threads": 256, "registers": 32, "shared_bytes": 1024} | how
    return lambda: convolution_time.count_waves(SHAPE, **given)


def channels(starts=(0,), **how):
    given = {"bytes_each": 1024, "channels": 2, "interleave_bytes": 256, "units_in_flight": 2} | how
    return lambda: data_movement.model_channels(starts, **given)


@table(
    (
        lambda: LINK.transfer_s(None),
        TypeError,
        "size_bytes=None is None; give a finite number, 0 or more",
    ),
    (lambda: links.Link(HUGE), ValueError, "bandwidth_bytes_per_s must be a number above 0"),
    (
        lambda: parallel.pipeline_schedule("1f1b", ranks=2, microbatches=HUGE),
        ValueError,
        "forward passes; give fewer",
    ),
    (lambda: parallel.shard(None, 0, world_size=2), TypeError, "batch=None is None; give a tensor"),
    (
        lambda: parallel.shard(ONES, 0, world_size=None),
        TypeError,
        "world_size=None is None; give a whole number",
    ),
    (ddp("no"), TypeError, "layers='no' is text, as str; give a list of LayerCost"),
    (ddp([1.0]), TypeError, "layers[0]=1.0 is a float; give a list of LayerCost"),
    (ddp(world_size=HUGE), ValueError, "is too large; give a whole number, 1 to 1,000,000,000"),
    (
        ddp(link=1e9),
        TypeError,
        "link is a helpers.links.Link(bandwidth_bytes_per_s, latency_s), not 1000000000.0",
    ),
    (
        strategy(None),
        TypeError,
        "layers=None is None; give a list of LayerWork, as layer_work() returns it",
    ),
    (strategy(layout=2), TypeError, "layout=2 is an int; give a Layout, such as Layout(data=2)"),
    (
        strategy(link=None),
        TypeError,
        "link is a helpers.links.Link(bandwidth_bytes_per_s, latency_s), not None",
    ),
    (strategy(microbatches=HUGE), ValueError, "forward passes; give fewer"),
    (
        lambda: parallel_plans.strategy_traffic(WORK, None),
        TypeError,
        "layout=None is None; give a Layout",
    ),
    (
        lambda: parallel_plans.count_footprint(ROWS, "dp"),
        TypeError,
        "layout='dp' is text, as str; give a Layout",
    ),
    (
        lambda: parallel_plans.count_footprint(None, LAYOUT),
        TypeError,
        "net=None is None; give an nn.Sequential",
    ),
    (
        lambda: parallel_plans.estimate_footprint(ROWS, 1, inputs=(4, 8)),
        TypeError,
        "layout=1 is an int; give a Layout",
    ),
    (
        lambda: parallel_plans.choose(ROWS, HUGE, LINK, 10**6, inputs=(4, 8), flops_per_s=1e9),
        ValueError,
        "is too large; give a whole number, 1 to 1,000,000",
    ),
    (
        lambda: timing.claim("a", 2.0, at_least="1"),
        TypeError,
        "at_least='1' is text, as str; give a number",
    ),
    (lambda: timing.claim("a", HUGE, at_least=1), ValueError, "is too large; give a number"),
    (
        lambda: decoding.stored_bytes(decoding.CONFIGS["Llama 2 7B"], bits=ONES),
        ValueError,
        "is not known; give one of",
    ),
    (
        lambda: decoding.count_step(decoding.CONFIGS["Llama 2 7B"], bits="8"),
        ValueError,
        "bits='8' is not known",
    ),
    (
        lambda: decoding.NGram(None, 2, vocabulary=4),
        TypeError,
        "text=None is None; give a list of tokens",
    ),
    (
        lambda: decoding.speculate(None, print, [0], 1),
        TypeError,
        "model=None is None; give a helpers.models.Decoder",
    ),
    (
        lambda: decoding.speculate(WRITER, None, [0], 1),
        TypeError,
        "draft=None is None; give a function",
    ),
    (
        lambda: decoding.generate(WRITER, [0], 1, seed="x"),
        TypeError,
        "seed='x' is text, as str; give a whole number",
    ),
    (
        lambda: fused_bias.traffic("separate", None),
        TypeError,
        "shape=None is None; give a list of sizes, (N, C, ...)",
    ),
    (lambda: fused_bias.traffic("separate", (1, "2")), TypeError, "shape[1]='2' is text"),
    (lambda: fused_bias.traffic("separate", (4,)), ValueError, "of two sizes or more; got (4,)"),
    (
        lambda: constant_weights.error_bound(NET, heads(2, 23), precision=[]),
        ValueError,
        "precision=[] is not known",
    ),
    (
        lambda: constant_weights.pruned(None, 0.5),
        TypeError,
        "network=None is None; give a network of constants",
    ),
    (lambda: constant_weights.pruned(NET, HUGE), ValueError, "is a number from 0 to 1"),
    (
        lambda: convolution_time.random_split([SHAPE] * 8, seed=[]),
        TypeError,
        "seed=[] is a list; give a whole number",
    ),
    (waves(threads=HUGE), ValueError, "is too large; give a whole number, 1 to 1,024"),
    (
        waves(threads=1024, registers=65),
        ValueError,
        "a block needs more registers than a multiprocessor",
    ),
    (
        lambda: history.doubling_time(None),
        TypeError,
        "series=None is None; give a series, such as training_compute()",
    ),
    (
        lambda: history.doubling_time(history.training_compute(), confidence="95 %"),
        TypeError,
        "confidence='95 %' is text",
    ),
    (
        lambda: next(input_pipeline.copy_ahead([], None)),
        ValueError,
        "device='None' is neither a CPU nor",
    ),
    (
        lambda: next(input_pipeline.copy_ahead(None, "cpu")),
        TypeError,
        "loader=None is None; give batches",
    ),
    (
        lambda: input_pipeline.simulate_run_s(9.0, 1.0, save_s=1.0, mtbf_s=9.0, seed=[1, "a"]),
        TypeError,
        "seed=[1, 'a'] is a list",
    ),
    (
        lambda: input_pipeline.simulate_feeding(None, 1.0),
        TypeError,
        "produce_s=None is None; give a list of numbers",
    ),
    (lambda: input_pipeline.simulate_feeding(1.0, 1.0, steps=HUGE), ValueError, "1 to 1,000,000"),
    (
        lambda: input_pipeline.simulate_feeding(1.0, 1.0, steps=3, workers=HUGE),
        ValueError,
        "0 to 1,000,000",
    ),
    (lambda: replicas.make_problem(HUGE), ValueError, "is too large; give a whole number, 0 to"),
    (lambda: replicas.train(None, replicas=1, steps=HUGE), ValueError, "1 to 1,000,000"),
    (lambda: sgd_parallelism.stability_limit(HUGE), ValueError, "0 to 10,000,000"),
    (lambda: sgd_parallelism.growth_factor(0.1, delay=10**6), ValueError, "0 to 1,000"),
    (
        lambda: sgd_parallelism.descend_quadratic(1.0, rate=0.1, delay=0, steps=HUGE),
        ValueError,
        "1 to 10,000,000",
    ),
    (
        lambda: sgd_parallelism.stack_weights([1, 2]),
        TypeError,
        "models[0]=1 is an int; give a list of models",
    ),
    (lambda: sgd_parallelism.stack_weights([]), ValueError, "models is empty"),
    (
        lambda: sgd_parallelism.largest_difference(None, []),
        TypeError,
        "models=None is None; give a list of models",
    ),
    (
        lambda: sgd_parallelism.largest_difference([ROWS], []),
        ValueError,
        "the two lists do not correspond",
    ),
    (
        lambda: sgd_parallelism.largest_difference([nn.ReLU()], [nn.ReLU()]),
        ValueError,
        "no weights to compare",
    ),
    (lambda: sgd_parallelism.least_squares(HUGE), ValueError, "is too large"),
    (lambda: simulators.sequential(HUGE), ValueError, "is too large"),
    (lambda: simulators.pointer_chase(1024, seed="x"), TypeError, "seed='x' is text"),
    (
        lambda: simulators.simulate_latency([simulators.CacheLevel(1024)], [1e-9, "a"], [512]),
        TypeError,
        "latencies_s[1]='a' is text",
    ),
    (
        lambda: data_movement.revolution_s("fast"),
        TypeError,
        "revolutions_per_minute='fast' is text",
    ),
    (
        lambda: data_movement.ring_bytes(None, 1e12),
        TypeError,
        "radius_m=None is None; give a finite number above 0",
    ),
    (lambda: data_movement.shortest_round_trip_s(None), TypeError, "distance_m=None is None"),
    (
        lambda: data_movement.shortest_round_trip_s(1.0, refractive_index=0.5),
        ValueError,
        "refractive_index=0.5",
    ),
    (
        lambda: data_movement.count_faults(None),
        TypeError,
        "function=None is None; give a function without arguments",
    ),
    (channels(None), TypeError, "starts=None is None; give a list of addresses"),
    (channels(channels="2"), TypeError, "channels='2' is text"),
    (channels(bytes_each=HUGE), ValueError, "give fewer bytes, or larger units"),
    (
        lambda: data_movement.packet_overhead(100, []),
        ValueError,
        "protocol=[] is not known; give one of 'UDP', 'TCP'",
    ),
    (lambda: data_movement.lines_touched("8"), TypeError, "elements='8' is text"),
    (
        lambda: data_movement.lines_touched(8, stride=2**40),
        ValueError,
        "stride=1099511627776 is too large",
    ),
    (
        lambda: traces.run_queue([1.0], launch_us=1.0, waits=None),
        TypeError,
        "waits=None is None; give a list",
    ),
    (
        lambda: traces.idle_share("trace"),
        TypeError,
        "kernels='trace' is text, as str; give a list of kernels",
    ),
    (
        lambda: attention.stream(HUGE * 16, 16, order="row by row", rows=16, columns=16),
        ValueError,
        "give at most",
    ),
    (
        lambda: attention.saved_bytes(torch.relu, [1.0]),
        TypeError,
        "tensors[0]=[1.0] is a list; give a tensor",
    ),
    (
        lambda: attention.saved_bytes(torch.relu, BYTES),
        TypeError,
        "holds torch.uint8, which has no gradient",
    ),
    (
        lambda: data_parallel.fastest_step_s(None),
        TypeError,
        "times_s=None is None; give a list of lists of seconds",
    ),
    (
        lambda: data_parallel.fastest_step_s([[1.0], [1.0, 2.0]]),
        ValueError,
        "one list a rank, all of the same steps",
    ),
)
def test_what_lessons_call(call, kind, words):
    refused(call, kind, words)


def test_sums_that_just_fit_are_computed():
    found = simulators.systolic.simulate([[2**31]], [[2**31 - 1]], rows=1, columns=1).product
    assert found.tolist() == [[2**31 * (2**31 - 1)]]
