import json
from collections import Counter

import pytest
import torch
from hypothesis import given, strategies as st

from helpers import native, plotting
from helpers.studies import traces
from tests.properties import repeatable

REPAIRED = {"load": traces.load_tensor, "fused": True, "float64": False, "log": False}


def call(name, start, end, **fields):
    return {
        "cat": "cpu_op",
        "name": name,
        "ts": start,
        "dur": end - start,
        "args": {},
        "label": "",
    } | fields


def written(tmp_path, events):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


# --- the step ---


def test_both_loaders_make_the_same_batches():
    for index in (0, 30, 31):  # 31 begins the next epoch
        (slow, slow_labels), (fast, fast_labels) = (
            traces.load_pixels(index),
            traces.load_tensor(index),
        )
        assert torch.equal(slow_labels, fast_labels)
        torch.testing.assert_close(slow, fast)
    assert torch.equal(traces.load_tensor(31)[0], traces.load_tensor(0)[0])


def test_repairs_do_not_change_what_is_learnt():
    faulty, repaired = traces.TrainingStep(), traces.TrainingStep(**REPAIRED)
    losses = torch.tensor([[faulty(index), repaired(index)] for index in range(10)])
    torch.testing.assert_close(losses[:, 0], losses[:, 1], atol=1e-6, rtol=0)
    assert losses[-1, 0] < losses[0, 0] / 2
    assert len(faulty.log) == 10
    assert repaired.log is None


def test_a_step_on_another_device_has_its_network_and_its_batch_there():
    # shapes without data
    step = traces.TrainingStep(load=traces.load_tensor, log=False, device="meta")
    assert step(0).device.type == step.device.type == "meta"
    assert traces.load_tensor(0)[0].device.type == "cpu"


def test_a_step_leaves_the_readers_random_numbers_alone():
    state = torch.random.get_rng_state()
    traces.TrainingStep()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_gelu_is_the_librarys():
    x = torch.linspace(-4, 4, 101)
    torch.testing.assert_close(traces.gelu(x), torch.nn.functional.gelu(x, approximate="tanh"))


def test_products_are_those_that_the_profiler_counts():
    calls = Counter(call["name"] for call in traces.trace_step(traces.TrainingStep(**REPAIRED)))
    shapes = traces.product_shapes()
    assert len(shapes) == calls["aten::mm"] + calls["aten::addmm"] == 29
    assert sum(2 * m * k * n for m, k, n in shapes) == 455_016_448


# --- the trace ---


@pytest.mark.parametrize(
    ("repairs", "calls", "float64"),
    [
        ((), 1663, 172),
        (("load",), 1676, 172),
        (("load", "fused"), 1174, 172),
        (("load", "fused", "float64"), 1234, 0),
        (("load", "fused", "float64", "log"), 1120, 0),
    ],
)
def test_counts_repeat_exactly(repairs, calls, float64):
    step = traces.TrainingStep(**{name: REPAIRED[name] for name in repairs})
    first, second = traces.trace_step(step), traces.trace_step(step)
    assert Counter(call["name"] for call in first) == Counter(call["name"] for call in second)
    assert (len(first), sum(map(traces.takes_float64, first))) == (calls, float64)


def test_every_call_has_the_outermost_label():
    labels = Counter(call["label"] for call in traces.trace_step(traces.TrainingStep()))
    assert set(labels) == {"load", "forward", "backward", "log", "optimizer"}


def test_calls_are_read_in_order_with_their_labels(tmp_path):
    label = {"cat": "user_annotation", "name": "load", "ts": 10, "dur": 20, "args": {}}
    inner = {"cat": "user_annotation", "name": "inner", "ts": 11, "dur": 2, "args": {}}
    events = [
        call("inside", 12, 13),
        call("late", 40, 41),
        inner,
        label,
        call("outside", 12, 15),
        {"ph": "M"},
    ]
    read = traces.read_calls(written(tmp_path, events))
    assert [(each["name"], each["label"]) for each in read] == [
        ("outside", "load"),
        ("inside", "load"),
        ("late", ""),
    ]


def test_own_times_leave_out_the_calls_inside():
    calls = [call("a", 0, 10), call("b", 1, 4), call("c", 2, 3), call("b", 5, 6), call("b", 12, 13)]
    assert traces.own_times(calls) == {"a": 6, "b": 4, "c": 1}


@st.composite
def nested_calls(draw, start=0, end=40, depth=0):
    """Draw calls one after another between two microseconds, each with calls inside, in the order
    of their starts.
    """
    calls = []
    while depth < 4 and start < end and draw(st.booleans()):
        begin = draw(st.integers(start, end - 1))
        start = draw(st.integers(begin + 1, end))
        calls += [
            call(draw(st.sampled_from("abc")), begin, start),
            *draw(nested_calls(begin, start, depth + 1)),
        ]
    return calls


@repeatable(examples=100)
@given(nested_calls())
def test_own_times_are_the_microseconds_in_which_no_call_inside_runs(calls):
    innermost = {
        time: each["name"] for each in calls for time in range(each["ts"], each["ts"] + each["dur"])
    }
    times = traces.own_times(calls)
    assert {name: time for name, time in times.items() if time} == Counter(innermost.values())
    assert list(times.values()) == sorted(times.values(), reverse=True)


def test_a_python_number_is_no_float64_tensor():
    number = call("mul", 0, 1, args={"Input type": ["float", "double"], "Input Dims": [[8], []]})
    tensor = call("mul", 0, 1, args={"Input type": ["float", "double"], "Input Dims": [[8], [8]]})
    assert [traces.takes_float64(each) for each in (number, tensor, call("empty", 0, 1))] == [
        False,
        True,
        False,
    ]


def test_what_a_gpu_ran_is_read_in_order_and_what_the_cpu_did_is_not(tmp_path):
    events = [
        {"cat": kind, "name": kind, "ts": ts, "dur": 2}
        for kind, ts in [
            ("gpu_memset", 9),
            ("kernel", 4),
            ("cuda_runtime", 1),
            ("gpu_memcpy", 2),
            ("cpu_op", 0),
        ]
    ]
    kernels = traces.read_kernels(written(tmp_path, events))
    assert [kernel["name"] for kernel in kernels] == ["gpu_memcpy", "kernel", "gpu_memset"]
    assert traces.idle_share(kernels) == pytest.approx(3 / 9)


@repeatable(examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=8).map(sorted)
)
def test_the_idle_share_is_that_of_the_microseconds_without_a_kernel(spans):
    busy = {time for start, length in spans for time in range(start, start + length)}
    share = 1 - len(busy) / (max(busy) + 1 - min(busy))
    assert traces.idle_share(
        [{"ts": start, "dur": length} for start, length in spans]
    ) == pytest.approx(share)


def test_no_kernels_have_no_idle_share():
    assert (
        traces.trace_step(traces.TrainingStep(**REPAIRED, device="cpu"), read=traces.read_kernels)
        == []
    )
    with pytest.raises(ValueError, match="no kernels; give a trace of a step that ran on a GPU"):
        traces.idle_share([])
    with pytest.raises(ValueError, match="the kernels take no time"):
        traces.idle_share([{"ts": 3, "dur": 0}] * 2)


# --- a GPU's queue ---


def test_short_kernels_wait_for_launches_and_long_ones_do_not():
    assert traces.run_queue([2.0] * 1000, launch_us=5).idle_share == pytest.approx(0.6, abs=0.001)
    assert traces.run_queue([20.0] * 1000, launch_us=5).idle_share == pytest.approx(5 / 20_005)


def test_a_wait_spends_the_head_start():
    kernels = [20.0] * 158 + [2.0] * 252
    assert traces.run_queue(kernels, launch_us=5).idle_share == pytest.approx(5 / 3669)
    waiting = traces.run_queue(kernels, launch_us=5, waits={158})
    assert waiting.kernels_us[-1][1] == 5 + 158 * 20 + 252 * 5 + 2
    assert waiting.launches_us[158][0] == waiting.kernels_us[157][1]


@repeatable(examples=40)
@given(st.integers(1, 60), st.sampled_from([0.5, 1, 2, 5, 20]), st.integers(1, 100))
def test_the_figure_to_turn_computes_the_queue(kernel, launch, between):
    figure = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plotting, "explore", lambda **arguments: figure.update(arguments))
        traces.explore_launches()
    values = {"kernel": kernel, "launch": launch, "kernels": between, "max": max}
    for name, formula in figure["formulas"].items():
        values[name] = eval(formula, values)
    waits = range(0, 50 * between, between)
    shown = traces.run_queue([kernel] * 50 * between, launch_us=launch, waits=waits).idle_share
    assert values["waiting"] == pytest.approx(100 * shown)


@pytest.mark.parametrize(
    ("arguments", "launch", "error", "message"),
    [
        ([], 5, ValueError, "no kernels; give"),
        ([2.0], 0, ValueError, "launch_us=0; give a finite number above 0"),
        ([0.0], 5, ValueError, "above 0"),
        ("2", 5, TypeError, "kernels_us"),
    ],
)
def test_a_queue_refuses(arguments, launch, error, message):
    with pytest.raises(error, match=message):
        traces.run_queue(arguments, launch_us=launch)


# --- figures ---


def test_a_timeline_has_its_bars_and_its_gaps():
    bars = [call("a", 100, 400, label="load"), call("b", 800, 1000, label="forward")]
    drawn = traces.draw_timeline(bars, [(400, 800)], title="A step")
    boxes = {
        (round(box.get_x() * 1e6), round(box.get_width() * 1e6)) for box in drawn.axes[0].patches
    }
    assert boxes == {(0, 300), (700, 200), (300, 400)}
    assert [text.get_text() for text in drawn.axes[0].get_yticklabels()] == ["operators", "gaps"]


def test_neighbours_of_one_label_are_drawn_as_one():
    bars = [
        call("a", 0, 100, label="load"),
        call("b", 101, 200, label="load"),
        call("c", 201, 1000, label="log"),
    ]
    assert len(traces.draw_timeline(bars, [], title="A step").axes[0].patches) == 2


def test_a_queue_has_a_lane_for_each_processor():
    drawn = traces.draw_queue(
        {"short": traces.run_queue([2.0] * 3, launch_us=5)}, title="A queue", until=20
    )
    assert [text.get_text() for text in drawn.axes[0].get_yticklabels()] == [
        "CPU, short",
        "GPU, short",
    ]


# --- programs ---


def test_gelus_passes():
    passes = traces.count_passes(traces.gelu, torch.ones(4, 8))
    assert (passes.operators, passes.reads, passes.writes) == (8, 10, 8)


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent")
    assert traces.missing_compiler().startswith("No C++ compiler: ")


def test_a_processor_without_vectors_is_named(monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert traces.missing_compiler().startswith("No vectors: ")
    assert traces.missing_compiler("cuda") != traces.missing_compiler()


@pytest.mark.skipif(bool(traces.missing_compiler()), reason="no C++ compiler")
def test_inductor_writes_one_loop_for_gelu():
    program = traces.write_program(traces.gelu, torch.ones(128, 512))
    assert (len(program.kernels), program.loops, program.buffers, program.products) == (1, 1, 1, 0)
    assert program.source.startswith('extern "C"')
    assert ".tanh()" in program.source
    assert native.find_compiler()


@pytest.mark.skipif(bool(traces.missing_compiler()), reason="no C++ compiler")
def test_a_function_without_a_kernel_is_refused():
    with pytest.raises(RuntimeError, match="wrote no C"):
        traces.write_program(lambda a: a @ a, torch.ones(64, 64))


def test_the_exercises_fault_is_a_hook_on_each_gradient():
    step = traces.plant_fault(traces.TrainingStep(**REPAIRED))
    calls = Counter(call["name"] for call in traces.trace_step(step))
    assert (calls["aten::isnan"], calls["aten::item"]) == (28, 56)
    next(step.network.parameters()).data.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="holds NaN"):
        step(0)
