"""Kernels on simulated warps: results against NumPy, counts against worked cases and against sets
of lanes.
"""

from __future__ import annotations

import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from gpu_kernels import four_values, numbered, one_line, ones, saxpy, through_tile
from hypothesis import given, strategies as st

from helpers import results
from helpers.studies import simulators
from helpers.studies.gpu_execution import Follower, Launch, ReportedPlace, launch, sectors
from tests.properties import repeatable
from tools.authoring.course import HERE

LANES = range(32)


def test_a_guarded_saxpy_costs_a_warp_with_eight_lanes():
    x, y = numbered(1000), ones(1000)
    run = launch(saxpy, 2.0, x, y, grid=4, block=256)
    np.testing.assert_array_equal(y, 2 * numbered(1000) + 1)
    assert (run.blocks, run.threads, run.warps, run.barriers, run.shared_bytes) == (
        4,
        1024,
        32,
        0,
        0,
    )
    assert (run.loads, len(run.requests), run.sectors, run.passes) == (64, 96, 375, 0)
    loads = run.count("x", "load")
    assert (loads.requests, loads.lanes, loads.sectors, loads.active_share) == (
        32,
        1000,
        125,
        1000 / 1024,
    )
    assert [len(request.lanes) for request in run.requests if request.warp == 31] == [8, 8, 8]
    assert results.from_dict(Launch, run.to_dict()) == run


@pytest.mark.parametrize(
    ("kernel", "block", "expected"),  # sectors of loads, of stores; passes of stores, of loads
    [
        (one_line, (32, 32), (512, 4096, 0, 0)),
        (through_tile(32), (32, 32), (512, 512, 128, 4096)),
        (through_tile(33), (32, 32), (512, 512, 128, 128)),
        (through_tile(34), (32, 32), (512, 512, 128, 256)),
        (four_values, (32, 8), (512, 512, 128, 128)),
    ],
)
def test_transposes_cost_what_the_rules_say(kernel, block, expected):
    source, target = numbered(64, 64), np.zeros((64, 64), np.float32)
    run = launch(kernel, source, target, grid=(2, 2), block=block)
    np.testing.assert_array_equal(target, source.T)
    assert {row.requests for row in run.counts} == {128}
    tile = (
        [run.count("tile", access).passes for access in ("store", "load")]
        if run.barriers
        else [0, 0]
    )
    assert (
        run.count("source", "load").sectors,
        run.count("target", "store").sectors,
        *tile,
    ) == expected
    assert run.shared_bytes == {one_line: 0, four_values: 4224}.get(kernel, run.shared_bytes)


def test_who_neighbours_are_decides_the_sectors_of_a_product():
    """Lesson 02's naive product in a block of 32 x 32: 1 + 4 sectors per step if x is the column,
    else 32 + 1.
    """

    def by_column(thread, a, b, c):
        total = 0.0
        for p in range(a.shape[1]):
            total += a[thread.row, p] * b[p, thread.column]
        c[thread.row, thread.column] = total

    def by_row(thread, a, b, c):
        c[thread.x, thread.y] = sum(a[thread.x, p] * b[p, thread.y] for p in range(a.shape[1]))

    a, b = numbered(32, 8) % 7, numbered(8, 32) % 5
    for kernel, of_a, of_b in ((by_column, 1, 4), (by_row, 32, 1)):
        c = np.zeros((32, 32), np.float32)
        run = launch(kernel, a, b, c, grid=1, block=(32, 32))
        np.testing.assert_array_equal(c, a @ b)
        assert (run.count("a", "load").requests, run.count("b", "load").requests) == (
            8 * 32,
            8 * 32,
        )
        assert run.count("a", "load").sectors_per_request == of_a
        assert run.count("b", "load").sectors_per_request == of_b


def test_the_tiled_kernel_of_lesson_02_runs_unchanged():
    [lesson] = HERE.lessons(["02"])
    [answer] = [cell.source for cell in lesson.cells if cell.metadata.get("yours") == "tiled"]
    scope: dict[str, Any] = {}
    exec(compile(answer, "<lesson 02>", "exec"), scope)
    tiled = scope["tiled"]
    a, b, c = numbered(8, 16) % 7, numbered(16, 8) % 5, np.zeros((8, 8), np.float32)
    run = launch(tiled, a, b, c, grid=(1, 1), block=(8, 8))
    np.testing.assert_array_equal(c, a @ b)
    counted = simulators.count_traffic(tiled, 8, 8, 16, tile=8)
    assert run.barriers == counted.barriers == 4
    assert run.shared_bytes == counted.shared_block_bytes
    lanes = {
        space: sum(row.lanes for row in run.counts if row.space == space)
        for space in ("global", "shared")
    }
    assert lanes["global"] == counted.global_reads + counted.global_writes
    assert lanes["shared"] == counted.shared_reads + counted.shared_writes


# --- lanes that differ ---


def loads_of(kernel, *arrays, block=32):
    """Return the lanes of each load that the kernel's warps request, in their order."""
    run = launch(kernel, *arrays, np.zeros(block, np.float32), grid=1, block=block)
    return [request.lanes for request in run.requests if request.access == "load"]


def test_a_warp_issues_each_side_that_a_lane_takes():
    def odd_and_even(thread, left, right, out):
        if thread.x % 2:  # noqa: SIM108  # as the reader writes it
            value = left[thread.x]
        else:
            value = right[thread.x]
        out[thread.x] = value

    def whole_warps(thread, left, right, out):
        out[thread.x] = left[thread.x] if thread.x // 32 % 2 else right[thread.x]

    odd, even = tuple(range(1, 32, 2)), tuple(range(0, 32, 2))
    assert loads_of(odd_and_even, ones(64), ones(64), block=64) == [odd, even] * 2
    assert loads_of(whole_warps, ones(64), ones(64), block=64) == [tuple(LANES)] * 2
    run = launch(odd_and_even, ones(64), ones(64), np.zeros(64, np.float32), grid=1, block=64)
    assert [len(request.lanes) for request in run.requests if request.access == "store"] == [32, 32]


def test_a_kernel_in_another_process_reports_its_places():
    def kernel(thread, x):
        side = ReportedPlace([thread.x % 2])
        x.store_at(thread.x, x.load_at(thread.x, side), ReportedPlace([2]))

    run = launch(kernel, ones(32), grid=1, block=32)
    assert (run.loads, len(run.requests)) == (2, 3)

    def waits(thread, x):
        yield ReportedPlace([thread.x % 2])

    with pytest.raises(simulators.KernelError, match="wait at different barriers"):
        launch(waits, ones(32), grid=1, block=32)


def test_a_wrapped_kernel_waits_at_its_own_barriers():
    def apart(thread, x):
        if thread.x % 2:
            yield
        else:
            yield

    def together(thread, x):
        for _ in range(2):
            x[thread.x] += 1
            yield

    def wrapped(kernel):
        def wrapper(thread, x):
            yield from kernel(thread, x)

        return wrapper

    assert launch(wrapped(together), ones(32), grid=1, block=32).barriers == 2
    for kernel in (apart, wrapped(apart), wrapped(wrapped(apart))):
        with pytest.raises(simulators.KernelError, match="wait at different barriers"):
            launch(kernel, ones(32), grid=1, block=32)


def test_a_follower_lets_go_of_calls_that_have_returned():
    def looped():
        return [2 * number for number in range(3)]

    def waiting():
        for _ in range(2):
            looped()
            yield

    follower, frames = Follower(), {}
    generator = waiting()
    for _ in range(2):
        with follower.of(frames):
            next(generator)
        assert list(frames) == [generator.gi_frame]


def test_arguments_behind_a_star_are_numbered_and_keywords_name_none():
    def kernel(thread, first, *others, scale=2):
        others[0][thread.x] = scale * first[thread.x]

    run = launch(kernel, ones(32), ones(32), grid=1, block=32)
    assert {row.array for row in run.counts} == {"first", "argument 2"}


def test_one_load_from_two_arrays_is_one_request():
    def either(thread, left, right, out):
        out[thread.x] = (left if thread.x % 2 else right)[thread.x]

    run = launch(either, ones(32), ones(32), np.zeros(32, np.float32), grid=1, block=32)
    assert [
        (row.array, row.requests, row.sectors) for row in run.counts if row.access == "load"
    ] == [("left or right", 1, 8)]


FORMS = {
    "for": """
        for p in range(rounds[lane]):
            if taken[p][lane]:
                x[lane]
        """,
    "while": """
        p = 0
        while p < rounds[lane]:
            if taken[p][lane]:
                x[lane]
            p += 1
        """,
    "continue": """
        for p in range(9):
            if p >= rounds[lane]:
                continue
            if not taken[p][lane]:
                continue
            x[lane]
        """,
    "break": """
        for p in range(9):
            if p >= rounds[lane]:
                break
            if taken[p][lane]:
                x[lane]
        """,
    "one line": """
        for p in range(rounds[lane]): taken[p][lane] and x[lane]
        """,
    "generator": """
        sum(x[lane] for p in range(rounds[lane]) if taken[p][lane])
        """,
    "helper": """
        for p in range(rounds[lane]):
            load(taken[p][lane], x, lane)
        """,
}


def form(name, rounds, taken):
    """Return a kernel that loops ``rounds[lane]`` times, and loads in round p if
    ``taken[p][lane]``.
    """

    def load(wanted, x, lane):
        if wanted:
            x[lane]

    scope = {"rounds": rounds, "taken": taken, "load": load}
    body = textwrap.indent(textwrap.dedent(FORMS[name]), "    ")
    exec(
        compile(
            f"def kernel(thread, x, out):\n    lane = thread.x\n{body}", "<a reader's cell>", "exec"
        ),
        scope,
    )
    return scope["kernel"]


@pytest.mark.parametrize("name", FORMS)
@repeatable(examples=6)
@given(data=st.data())
def test_lanes_go_together_in_the_same_round_and_only_there(name, data):
    rounds = data.draw(st.lists(st.integers(0, 4), min_size=8, max_size=8))
    taken = data.draw(
        st.lists(st.lists(st.booleans(), min_size=8, max_size=8), min_size=9, max_size=9)
    )
    expected = [
        tuple(lane for lane in range(8) if p < rounds[lane] and taken[p][lane]) for p in range(9)
    ]
    assert loads_of(form(name, rounds, taken), ones(8), block=8) == [
        lanes for lanes in expected if lanes
    ]


@repeatable(examples=12)
@given(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=8, max_size=8))
def test_lanes_go_together_in_the_same_round_of_both_loops(rounds):
    def nested(thread, x, out):
        lane = thread.x
        for inner in rounds[lane]:
            for _ in range(inner):
                x[lane]

    expected = [
        tuple(lane for lane in range(8) if p < len(rounds[lane]) and q < rounds[lane][p])
        for p in range(3)
        for q in range(3)
    ]
    assert loads_of(nested, ones(8), block=8) == [lanes for lanes in expected if lanes]


def test_lanes_that_leave_early_meet_the_others_behind_the_loop():
    def kernel(thread, x, out):
        total = 0.0
        for p in range(thread.x + 1):
            total += x[p]
        out[thread.x] = total

    run = launch(kernel, ones(64), out := np.zeros(64, np.float32), grid=1, block=64)
    np.testing.assert_array_equal(out, numbered(64) + 1)
    assert run.count("x", "load").requests == 32 + 64
    assert run.count("out", "store").requests == 2


def test_the_rounds_of_a_loop_go_on_behind_a_barrier():
    def kernel(thread, x, out):
        for p in range(3):
            if (thread.x + p) % 2:
                x[thread.x]
            yield
        out[thread.x] = 0

    assert [len(lanes) for lanes in loads_of(kernel, ones(32))] == [16, 16, 16]


# --- the machine ---


def test_a_block_of_no_whole_warps_has_lanes_without_threads():
    run = launch(saxpy, 1, ones(96), ones(96), grid=2, block=48)
    assert (run.threads, run.warps) == (96, 4)
    assert [len(request.lanes) for request in run.requests if request.array == "x"] == [
        32,
        16,
        32,
        16,
    ]


def test_arrays_begin_in_sectors_of_their_own():
    def kernel(thread, x, y, z):
        z[0, 0] = (x if thread.x else y)[0]

    with pytest.raises(simulators.KernelError, match="race"):
        launch(kernel, ones(1), ones(1), ones(1, 1), grid=1, block=2)

    def reading(thread, x, y):
        (x if thread.x else y)[0]

    [request] = launch(reading, ones(1), ones(1), grid=1, block=2).requests
    assert (request.addresses, request.sectors) == ((256, 0), sectors([0, 256]))


def test_integers_stay_integers_and_index():
    def gather(thread, indices, x, out):
        out[thread.x] = x[indices[thread.x]]

    indices, out = np.array([3, 1, 2, 0], np.int32), np.zeros(4, np.float32)
    launch(gather, indices, numbered(4), out, grid=1, block=4)
    np.testing.assert_array_equal(out, indices)


def test_values_are_rounded_to_float32():
    def third(thread, x):
        x[thread.x] = 1 / 3
        x[thread.x] = 3 * x[thread.x]

    launch(third, x := ones(1), grid=1, block=1)
    assert x[0] == np.float32(3 * np.float32(1 / 3).astype(float))


def test_the_tracer_of_others_comes_back():
    def other(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(other)
    try:
        launch(saxpy, 1, ones(4), ones(4), grid=1, block=4)
        with pytest.raises(ZeroDivisionError):
            launch(lambda thread, x: 1 / 0, ones(4), grid=1, block=4)
        assert sys.gettrace() is other
    finally:
        sys.settrace(before)


# --- refusals ---


def changed(kernel, old, new):
    """Return a copy of a kernel's text with one change, compiled."""
    text = textwrap.dedent(KERNELS[kernel])
    assert old in text
    scope = {}
    exec(compile(text.replace(old, new), "<a reader's cell>", "exec"), scope)
    return scope["kernel"]


KERNELS = {
    "shift": """
        def kernel(thread, x, y):
            tile = thread.shared("tile", 64)
            i = thread.thread_x
            tile[i] = x[thread.x]
            yield
            y[thread.x] = tile[63 - i]
        """,
    "guarded": """
        def kernel(thread, x, y):
            i = thread.x
            if i < len(x):
                y[i] = x[i]
        """,
}
MISTAKES = {
    "no guard": (
        "guarded",
        "i < len(x)",
        "True",
        (
            "thread (36, 0) of block (1, 0) uses x[100], but x has 100 elements; guard the access "
            "with an if"
        ),
    ),
    "negative": (
        "guarded",
        "= x[i]",
        "= x[i - 1]",
        "thread (0, 0) of block (0, 0) uses x[-1], but x has 100 elements",
    ),
    "two indices": ("guarded", "= x[i]", "= x[0, i]", "uses x[(0, 100)]|uses x[(0, 0)]"),
    "a float": (
        "guarded",
        "= x[i]",
        "= x[i / 2]",
        "uses x[0.0], but an element must be written x[i] with one integer",
    ),
    "text": (
        "guarded",
        "= x[i]",
        "= 'x'",
        "stores 'x' into y[0], but an element must be one number",
    ),
    "all": (
        "guarded",
        "= x[i]",
        "= sum(x)",
        "goes through all of x, but a thread must load one element at a time",
    ),
    "one element": (
        "guarded",
        "y[i] =",
        "y[0] =",
        "race: thread (1, 0) of block (0, 0) stores y[0], which thread (0, 0) of block (0, 0) "
        "stores with no barrier in between; let one thread store it, or put a yield between the "
        "two",
    ),
    "two blocks": (
        "guarded",
        "y[i] =",
        "y[i % 64] =",
        "race: thread (0, 0) of block (1, 0) stores y[0], which block (0, 0) stores as well, and "
        "no barrier orders two blocks",
    ),
    "neighbour": (
        "guarded",
        "= x[i]",
        "= y[max(0, i - 1)]",
        (
            "race: thread (1, 0) of block (0, 0) loads y[0], which thread (0, 0) of block (0, 0) "
            "stores"
        ),
    ),
    "no barrier": (
        "shift",
        "yield",
        "pass",
        "loads tile[63], which no thread has stored yet; store it first, with a yield in between",
    ),
    "barrier in an if": (
        "shift",
        "    yield",
        "    if i >= 32:\n        return\n    yield",
        "thread (0, 0) of block (0, 0) waits at a barrier, but thread (32, 0) of block (0, 0) has",
    ),
    "two barriers": (
        "shift",
        "    yield",
        "    if i < 32:\n        yield\n    else:\n        yield",
        (
            "thread (0, 0) of block (0, 0) and thread (32, 0) of block (0, 0) wait at different "
            "barriers"
        ),
    ),
    "two shapes": (
        "shift",
        '"tile", 64',
        '"tile", 64 + thread.thread_x',
        "takes shared array 'tile' with the shape (65,), but another thread took it with (64,)",
    ),
    "no shape": (
        "shift",
        '"tile", 64',
        '"tile"',
        "shared array 'tile' has the shape (), but it must have one or two",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_a_gpu_lets_pass_in_silence_is_refused_and_changes_nothing(name):
    kernel, old, new, words = MISTAKES[name]
    x, y = numbered(100 if kernel == "guarded" else 128), ones(128)
    with pytest.raises(simulators.KernelError) as raised:
        launch(changed(kernel, old, new), x, y, grid=2, block=64)
    assert any(part in str(raised.value) for part in words.split("|"))
    np.testing.assert_array_equal(y, ones(128))


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_kernels_without_a_mistake_pass(kernel):
    x, y = numbered(128), ones(128)
    launch(changed(kernel, "def", "def"), x, y, grid=2, block=64)
    np.testing.assert_array_equal(
        y, x if kernel == "guarded" else x.reshape(2, 64)[:, ::-1].ravel()
    )


def test_a_load_and_a_later_store_of_another_thread_are_a_race():
    def kernel(thread, x):
        x[(thread.x + 1) % 2]
        x[thread.x] = 0

    with pytest.raises(
        simulators.KernelError, match=r"stores x\[0\], which .* loads with no barrier|loads x\[0\]"
    ):
        launch(kernel, ones(2), grid=1, block=2)

    def across(thread, x):
        if thread.block_x:
            x[0] = 1
        else:
            x[0]

    with pytest.raises(
        simulators.KernelError, match=r"stores x\[0\], which block \(0, 0\) loads as well"
    ):
        launch(across, ones(2), grid=2, block=1)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (
            lambda: launch(saxpy, 1, ones(4), ones(4), grid=1, block=1025),
            ValueError,
            "block=1025 has 1,025 threads, but a block has at most 1,024",
        ),
        (
            lambda: launch(saxpy, 1, ones(4), ones(4), grid=2**11, block=1024),
            ValueError,
            "a small grid shows the same",
        ),
        (
            lambda: launch(saxpy, 1, ones(4), ones(4), grid=0, block=32),
            ValueError,
            "grid=0 is too small",
        ),
        (
            lambda: launch(saxpy, 1, ones(4), ones(4), grid=(1, 1, 1), block=32),
            ValueError,
            "grid=(1, 1, 1) must be a whole number, or two as (x, y)",
        ),
        (
            lambda: launch(saxpy, ones(4), ones(4), grid=1, block=32),
            TypeError,
            (
                "saxpy cannot be called with a thread and the 2 arguments given (missing a "
                "required argument: 'y')"
            ),
        ),
        (
            lambda: launch(None, grid=1, block=32),
            TypeError,
            "kernel=None is None; give a function of (thread, ...)",
        ),
        (
            lambda: launch(saxpy, 1, np.ones(4), ones(4), grid=1, block=4),
            TypeError,
            (
                "x has elements of float64, but the simulated memory has words of 4 bytes; give "
                "x.astype(np.float32)"
            ),
        ),
        (
            lambda: launch(saxpy, 1, [1.0, 2.0], ones(2), grid=1, block=4),
            TypeError,
            "x is a list; give a NumPy array",
        ),
        (
            lambda: launch(one_line, ones(4, 8).T, ones(4, 8), grid=1, block=4),
            ValueError,
            (
                "source is not stored row by row, so its addresses would be others; give "
                "np.ascontiguousarray(source)"
            ),
        ),
        (
            lambda: launch(saxpy, 1, (x := ones(4)), x, grid=1, block=4),
            ValueError,
            "y and x share memory",
        ),
        (
            lambda: launch(saxpy, 1, ones(1, 1, 4), ones(4), grid=1, block=4),
            ValueError,
            "x has the shape (1, 1, 4)",
        ),
        (
            lambda: launch(saxpy, 1, ones(4), ones(4), grid=1, block=4).count("z", "load"),
            ValueError,
            "no row of counts with array 'z', access 'load'",
        ),
    ],
)
def test_refused(call, kind, words):
    with pytest.raises(kind) as raised:
        call()
    assert words in str(raised.value)
