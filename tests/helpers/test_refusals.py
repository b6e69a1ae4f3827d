"""What a reader gives by mistake, one table a package: each is refused with one sentence of the library's own.

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
from helpers import memory, native, plotting, profiling, recorded, results, simulators, timing, units, widgets

HUGE = 10**400


def refused(call, kind, words):
    with pytest.raises(kind) as raised:
        call()
    assert raised.traceback[-1].path.is_relative_to(Path(helpers.__file__).parent)  # the library's own sentence
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def table(*cases):
    return pytest.mark.parametrize(("call", "kind", "words"), cases)


@table(
    (lambda: units.flops_from_macs("3"), TypeError, "macs='3' is text"),
    (lambda: units.flops_from_macs(None), TypeError, "macs=None is None; give a whole number, 0 or more"),
    (lambda: units.flops_from_macs(-1), ValueError, "macs=-1 is too small"),
    (lambda: units.flops_from_macs(math.nan), TypeError, "macs=nan is a float"),
    (lambda: units.flops_from_macs(1.5), TypeError, "macs=1.5 is a float; give a whole number"),
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
    (lambda: timing.measure(nothing, clock=lambda: "1"), TypeError, "a reading of clock='1' is text"),
    (lambda: timing.measure(nothing, clock=lambda: math.nan), ValueError, "clock gave nan"),
    (lambda: timing.measure(nothing, clock=iter(range(99, 0, -1)).__next__), ValueError, "never goes back"),
    (lambda: timing.compare({"a": nothing, "b": nothing}, clock=5), TypeError, "clock=5 is no function"),
    (lambda: timing.compare({"a": nothing, "b": nothing}, seed="x"), TypeError, "seed='x' is text"),
    (lambda: timing.compare({"a": nothing, "b": nothing}, seed=1.5), TypeError, "seed=1.5 is a float"),
    (lambda: timing.claim("it is slower", 2.0, at_least=1, evidence=None), TypeError, "got None"),
    (lambda: timing.claim("it is slower", 2.0, at_least=1, evidence=5), TypeError, "got 5"),
    (lambda: entered(timing.fixed_threads(10**9)), ValueError, "too large; give a whole number, 1 to 4,096"),
    (lambda: entered(timing.fixed_threads("2")), TypeError, "threads='2' is text"),
    (lambda: entered(timing.fixed_threads(0)), ValueError, "threads=0 is too small"),
)  # fmt: skip
def test_timing(call, kind, words):
    refused(call, kind, words)


def curves(sizes, values, **options):
    return plotting.draw_curves(sizes, values, unit="s", title="t", xlabel="x", ylabel="y", **options)


def bars(values):
    return plotting.draw_bars(values, unit="s", title="t")


def three(settings, numbers):
    return plotting.draw_three(settings, numbers, unit="s", title="t", xlabel="x")


def losses(values, **options):
    return plotting.draw_losses(values, title="t", **options)


def images(values, labels=("a", "b")):
    return plotting.draw_images(values, labels, title="t")


@table(
    (lambda: bars([1, 2]), TypeError, "values=[1, 2] is a list; give a dictionary from names to numbers"),
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
    (lambda: images(np.zeros((2, 28, 28))), TypeError, "is a ndarray; give a tensor (torch.from_numpy"),
    (lambda: images(torch.zeros(2, 28)), ValueError, "has the shape (2, 28); give grey images"),
    (lambda: images(torch.zeros(2, 3, 28, 28)), ValueError, "has the shape (2, 3, 28, 28)"),
    (lambda: images(torch.full((2, 8, 8), math.nan)), ValueError, "images holds NaN"),
    (lambda: images(torch.zeros(2, 8, 8), None), TypeError, "labels=None"),
    (lambda: losses({"a": [1.0]}, smooth=0), ValueError, "smooth=0 is too small"),
    (lambda: losses({"a": [1.0]}, smooth=-1), ValueError, "smooth=-1 is too small"),
    (lambda: losses({"a": [1.0]}, smooth=1.5), TypeError, "smooth=1.5 is a float"),
    (lambda: losses({"a": [1.0]}, smooth="2"), TypeError, "smooth='2' is text"),
    (lambda: losses({"a": ["1"]}), TypeError, "curves['a'][0]='1' is text"),
    (lambda: losses([1.0]), TypeError, "curves=[1.0] is a list"),
    (lambda: losses({"a": [1.0]}, guessing=0), ValueError, "guessing=0"),
    (lambda: plotting.draw_layers(["a"], {"x": [math.nan]}, unit="B", title="t"), ValueError, "parts['x'][0]=nan"),
    (lambda: plotting.draw_layers(["a"], {"x": [-1]}, unit="B", title="t"), ValueError, "0 or more"),
    (lambda: plotting.draw_layers(None, {"x": [1]}, unit="B", title="t"), TypeError, "layers=None"),
    (lambda: plotting.draw_shares({}, title="t"), ValueError, "at least one whole"),
    (lambda: plotting.draw_shares(None, title="t"), TypeError, "wholes=None is None; give a dictionary"),
    (lambda: plotting.draw_shares({"a": [1]}, title="t"), TypeError, "wholes['a']=[1] is a list"),
    (lambda: plotting.draw_shares({"a": {"x": -1}}, title="t"), ValueError, "wholes['a']['x']=-1"),
    (lambda: plotting.draw_limits([0], [math.nan], [1]), ValueError, "modelled[0]=nan"),
    (lambda: plotting.draw_limits([-1], [1], [1]), ValueError, "delays[0]=-1; give a finite number, 0 or more"),
    (lambda: plotting.gantt([5], title="t"), TypeError, "spans holds 5, which has no"),
    (lambda: plotting.gantt([plotting.Span("a", "0", 1, "k")], title="t"), TypeError, "spans[0].start='0' is text"),
    (lambda: plotting.gantt([plotting.Span("a", 0, math.nan, "k")], title="t"), ValueError, "spans[0].end=nan"),
    (lambda: plotting.show(None, alt="a curve"), TypeError, "drawn=None is None; give a figure"),
    (lambda: plotting.show(Figure(), alt=None), TypeError, "alt=None is None; give a sentence"),
    (lambda: plotting.show(Figure(), alt=5), TypeError, "alt=5 is an int"),
    *((lambda name=name: getattr(plotting, name)([5]), TypeError, "[0]=5 is an int; give a list of")
      for name in ("draw_hierarchy", "draw_links", "draw_inversion", "draw_latencies", "draw_bandwidths", "draw_energy",
                   "draw_speedup", "draw_dies", "draw_memory_spaces")),
    *((lambda name=name: getattr(plotting, name)(None), TypeError, "=None is None; give")
      for name in ("draw_inversion", "draw_memory_spaces", "draw_crossover", "draw_split", "draw_stale",
                   "draw_roofline")),
    (lambda: plotting.draw_trends([5], title="t"), TypeError, "all_series[0]=5 is an int"),
)  # fmt: skip
def test_plotting(call, kind, words):
    refused(call, kind, words)


@table(
    (lambda: results.from_dict(None, {}), TypeError, "result_type=None is no class of results"),
    (lambda: results.from_dict(timing.Timing, None), ValueError, "a mapping of field names is needed, not None"),
    (lambda: results.printed(None), TypeError, "frame=None is None; give a DataFrame"),
    (lambda: results.label(5), TypeError, "name=5 is an int"),
    (lambda: results.cell(None, 5), TypeError, "name=None is None; give a field's name as text"),
)
def test_results(call, kind, words):
    refused(call, kind, words)


@table(
    *((lambda lesson=lesson: recorded.show(lesson, "products"), ValueError, f"lesson {lesson!r} records nothing")
      for lesson in ("99", "", None, "../../etc", 0, [])),
    (lambda: recorded.show("00", None), ValueError, "there is no None"),
    (lambda: recorded.show("00", "products", folder=5), TypeError, "folder=5 is an int; give a pathlib.Path"),
    (lambda: recorded.show("00", "products", folder=Path("nowhere")), FileNotFoundError, "no run is recorded"),
)  # fmt: skip
def test_recorded(call, kind, words):
    refused(call, kind, words)


def test_a_recording_nested_too_deep_is_no_recording(tmp_path):
    (tmp_path / "00.json").write_text("[" * 100_000 + "]" * 100_000)
    refused(lambda: recorded.show("00", "products", folder=tmp_path), ValueError, "00.json is not a recording")


PROGRAM = 'extern "C" int one() { return 1; }'


@table(
    (lambda: native.compile_cpp(""), ValueError, "source='' holds no program"),
    (lambda: native.compile_cpp(b"int x;"), TypeError, "source is the text of a C++ program, not bytes"),
    (lambda: native.compile_cpp(PROGRAM, flags="-O3 -g"), TypeError, "flags='-O3 -g' is text"),
    (lambda: native.compile_cpp(PROGRAM, flags=None), TypeError, "flags=None is None; give a list of texts"),
    (lambda: native.compile_cpp(PROGRAM, flags=[5]), TypeError, "flags[0]=5 is an int"),
    (lambda: native.compile_cpp(PROGRAM, flags=["-o"]), ValueError, "names the output with -o; leave it out"),
    (lambda: native.compile_cpp(PROGRAM, folder=5), TypeError, "folder=5 is an int; give a path"),
    (lambda: native.compile_cpp(PROGRAM, folder=Path("/proc")), FileNotFoundError, "could not be kept"),
    (lambda: native.disassemble("nowhere.o"), native.NativeError, "'nowhere.o' cannot be read"),
    (lambda: native.disassemble(b"\x7fELF", function=5), TypeError, "function=5 is an int; give a function's name"),
)
def test_native(call, kind, words):
    refused(call, kind, words)


def test_a_disk_that_fills_while_linking_is_called_full(tmp_path, monkeypatch):
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *--version*) echo fake; exit 0;; esac\n'
                        'echo "ld: final link failed: No space left on device" >&2; exit 1\n')  # fmt: skip
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    refused(lambda: native.compile_cpp(PROGRAM, folder=tmp_path), OSError, "No space left on device); free some space")


@table(
    (lambda: widgets.predict(None, "s"), TypeError, "question=None is None"),
    (lambda: widgets.predict(5, "s"), TypeError, "question=5 is an int; give the question as text"),
    (lambda: widgets.predict("How long?", None), TypeError, "unit=None is None"),
    (lambda: widgets.progress(course=5), TypeError, "course=5 is an int; give the folder"),
    (lambda: widgets.interactive_figure(None, None, views=None, alt=None), TypeError, "draw=None is None"),
    (lambda: widgets.interactive_figure(print, None, views=[], alt=print), TypeError, "choices=None is None"),
    (lambda: widgets.interactive_figure(print, {}, views=None, alt=print), TypeError, "views=None is None"),
)
def test_widgets(call, kind, words):
    refused(call, kind, words)


@table(
    (lambda: simulators.sequential(10**10), ValueError, "is too large; give a whole number, 1 to"),
    (lambda: simulators.sequential(9, start="a"), TypeError, "start='a' is text"),
    (lambda: simulators.sequential(9, start=-1), ValueError, "start=-1 is too small"),
    (lambda: simulators.strided(9, stride_bytes=10**18), ValueError, "stride_bytes=1000000000000000000 is too large"),
    (
        lambda: simulators.simulate_latency([simulators.CacheLevel(1024)], [1e-9, 1e-8], [10**15]),
        ValueError,
        "accesses, and at most",
    ),
)
def test_simulators(call, kind, words):
    refused(call, kind, words)


@table(
    (lambda: memory.estimate_peak_memory(nn.Linear(8, 8), (2, 8), training=None), TypeError, "training is None; give"),
    (lambda: memory.estimate_peak_memory(nn.Linear(8, 8), (2, 8), training="no"), TypeError, "training is 'no'"),
    (lambda: profiling.profile_time(nn.Linear(8, 8), (10**12, 8)), ValueError, "does not fit into memory"),
    (lambda: profiling.profile_time(nn.Linear(8, 8), (2, 8), training=1), TypeError, "training is 1; give True"),
)
def test_memory_and_profiling(call, kind, words):
    refused(call, kind, words)
