"""Walks through memory: the lines counted exactly, the loops against NumPy, the times as ratios
inside one run.
"""

from __future__ import annotations

import functools
import sys
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, strategies as st

from helpers import native
from helpers.hardware._card import Cache, MachineCard
from helpers.studies.data_movement import _order as access_kernels, _order as order
from helpers.timing import compare
from tests.properties import repeatable

SMALL = 16 * 2**10  # in the first cache of every processor


@pytest.fixture(scope="module", params=["C++", "numba"])
def loops(request):
    if request.param == "numba":
        pytest.importorskip("numba")
        return access_kernels.numba_kernels()
    return access_kernels.kernels()


@repeatable(examples=150)
@given(
    st.integers(1, 100),
    st.integers(-40, 40).filter(bool),
    st.integers(1, 96),
    st.integers(1, 64),
    st.integers(0, 200),
)
def test_lines_are_counted_as_the_set_of_the_bytes_lines(count, stride, size, line, offset):
    starts = [offset + step * abs(stride) * size for step in range(count)]
    lines = {place // line for start in starts for place in range(start, start + size)}
    touched = order.lines_touched(
        count, stride=stride, element_bytes=size, line_bytes=line, offset_bytes=offset
    )
    assert touched == len(lines)


def test_lines_of_a_hundred_million_elements_are_counted_without_a_list_of_them():
    tracemalloc.start()
    try:
        assert (
            order.lines_touched(10**8, stride=3, offset_bytes=4) == (4 + 12 * (10**8 - 1)) // 64 + 1
        )
        assert order.lines_touched(10**8, stride=-17) == 10**8
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "wrong", [{"elements": 0}, {"stride": 0}, {"line_bytes": 0}, {"offset_bytes": -1}]
)
def test_what_no_line_can_be_counted_for_is_refused(wrong):
    arguments = {"elements": 4} | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        order.lines_touched(arguments.pop("elements"), **arguments)


@repeatable(examples=60)
@given(st.integers(-40, 40).filter(bool), st.integers(0, 4095), st.data())
def test_a_walk_sums_what_numpy_slices(loops, stride, first, data):
    numbers = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32)
    slice_ = numbers[first::stride]
    count = data.draw(
        st.integers(1, 9).filter(lambda count: count <= len(slice_)) | st.just(len(slice_))
    )
    assert (
        loops.walk(numbers, first, stride, count)
        == int(slice_[:count].sum(dtype=np.uint64)) % 2**32
    )


@pytest.mark.parametrize("step", [order._IN_SEQUENCE, order._SHUFFLE])
@pytest.mark.parametrize("power", [2, 10, 13])
def test_a_hop_comes_to_every_place_once(loops, step, power):
    for seed in range(3):
        data = np.random.default_rng(seed).integers(0, 2**32, 2**power, dtype=np.uint32)
        assert loops.hop(data, 2**power - 1, *step) == int(data.sum(dtype=np.uint64)) % 2**32


def test_the_random_hops_do_not_stay_on_a_line():
    factor, addend = order._SHUFFLE
    mask, place, near = 2**16 - 1, 0, 0
    for _ in range(mask + 1):
        following = (place * factor + addend) & mask
        near += following // 16 == place // 16 or following // 16 == place // 16 + 1
        place = following
    assert near < 0.01 * mask


def test_chunks_sum_what_numpy_reshapes(loops):
    data = np.random.default_rng(1).integers(0, 2**32, 64 * 16, dtype=np.uint32)
    wanted = data.reshape(64, 16)[3::5][:10].sum(dtype=np.uint64)
    assert loops.read_chunks(data, 16, 3, 5, 10) == int(wanted) % 2**32


def test_four_loads_read_the_words_at_their_places():
    data = np.random.default_rng(2).integers(0, 256, 4096, dtype=np.uint8)
    words = [int.from_bytes(data[60 + k * 64 : 68 + k * 64].tobytes(), "little") for k in range(4)]
    assert access_kernels.kernels().load_four(data, 60, 64, 3) == 3 * sum(words) % 2**64


@pytest.fixture
def processor_time(monkeypatch):
    """Time this thread's processor time: waiting for memory counts, waiting for other programs does
    not.
    """
    monkeypatch.setattr(order, "compare", functools.partial(compare, clock=time.thread_time))


class WalksThatTake:
    """A machine on which only walks take time: ``seconds`` of a walk's stride and count, on a clock
    of its own.
    """

    def __init__(self, monkeypatch, seconds):
        self.now_s = 0.0
        self.seconds = seconds
        monkeypatch.setattr(order, "kernels", fake_kernels(walk=self.walk))
        monkeypatch.setattr(order, "compare", functools.partial(compare, clock=lambda: self.now_s))

    def walk(self, data, first, stride, count):
        self.now_s += self.seconds(stride, count)


def fake_kernels(**loops):
    nothing = {"walk": None, "hop": None, "read_chunks": None, "load_four": None}
    return lambda: access_kernels.Kernels("fake", **(nothing | loops))


def test_the_loads_stand_where_their_names_say(monkeypatch):
    seen = []
    monkeypatch.setattr(order, "line_size_bytes", lambda: 64)
    monkeypatch.setattr(
        order,
        "kernels",
        fake_kernels(load_four=lambda data, at, step, rounds: seen.append((data, at, step))),
    )
    monkeypatch.setattr(
        order, "compare", lambda runs, **_: {name: run() for name, run in runs.items()}
    )
    names = list(order.compare_alignment())
    for name, (data, offset, step) in zip(names, seen, strict=True):
        starts = [data.ctypes.data + offset + k * step for k in range(4)]
        assert offset + 3 * step + 8 <= data.nbytes
        assert all(
            (start % 8 == 0) == (name in ("aligned", "end of a page")) for start in starts
        ), name
        assert all(
            (start % 64 > 56) == (name in ("across lines", "across pages")) for start in starts
        ), name
        assert all((start % 4096 > 4088) == (name == "across pages") for start in starts), name
        assert name != "end of a page" or all(start % 4096 == 4088 for start in starts)


@pytest.mark.timed
@pytest.mark.usefixtures("processor_time")
def test_a_load_within_a_line_costs_what_an_aligned_one_costs():
    timed = order.compare_alignment(budget_s=0.5)
    aligned = timed.candidate("aligned").minimum_s
    assert timed.candidate("misaligned").minimum_s < 1.5 * aligned
    assert timed.candidate("across lines").minimum_s > 0.9 * aligned
    assert timed.candidate("across pages").minimum_s > 0.9 * aligned


def ratio(timed, name):
    return timed.candidate(name).minimum_s / timed.candidate(timed.baseline).minimum_s


@pytest.mark.timed
@pytest.mark.usefixtures("processor_time")
def test_random_order_is_slow_beyond_the_caches_and_not_within_the_first():
    far = ratio(order.compare_order(budget_s=0.5), "random")
    near = ratio(order.compare_order(buffer_bytes=4 * SMALL, budget_s=0.3), "random")
    assert far > 1.7
    assert near < 1.5
    assert far > 1.5 * near


@pytest.mark.timed
@pytest.mark.usefixtures("processor_time")
def test_pytorch_sees_the_same_order():
    far = order.compare_order(engine="torch", buffer_bytes=2**26, budget_s=0.2)
    assert ratio(far, "random") > 1.5


@pytest.mark.timed
@pytest.mark.usefixtures("processor_time")
def test_backwards_is_about_forwards():
    assert 0.4 < ratio(order.compare_direction(buffer_bytes=2**24, budget_s=0.4), "backwards") < 2.5


def test_a_slow_way_back_is_seen(monkeypatch):
    WalksThatTake(monkeypatch, lambda stride, count: 1e-3 if stride > 0 else 3e-3)
    assert ratio(
        order.compare_direction(buffer_bytes=SMALL, budget_s=0.3), "backwards"
    ) == pytest.approx(3)


def test_the_lines_that_a_stride_moves_and_the_rates_follow_from_the_times(monkeypatch):
    WalksThatTake(monkeypatch, lambda stride, count: 1e-2)
    card = MachineCard(caches=(Cache(1, "data", 2**15, line_bytes=64),))
    swept = order.sweep_stride((1, 4, 16, 32), buffer_bytes=2**25, budget_s=0.5, card=card)
    rows = {row.stride: row for row in swept.rows}
    assert [rows[stride].moved_bytes for stride in (1, 4, 16, 32)] == [2**25, 2**25, 2**25, 2**24]
    assert [rows[stride].read_bytes for stride in (1, 4, 16, 32)] == [2**25, 2**23, 2**21, 2**20]
    assert rows[16].used_share == 1 / 16
    assert [row.pass_s for row in swept.rows] == pytest.approx([1e-2] * 4)
    assert rows[4].element_s == rows[4].pass_s / 2**21
    assert rows[32].moved_bytes_per_s == 2**24 / rows[32].pass_s
    assert rows[32].read_bytes_per_s == 2**20 / rows[32].pass_s


@pytest.mark.timed
@pytest.mark.usefixtures("processor_time")
def test_an_elements_time_grows_with_the_stride_up_to_the_line():
    first, _, line, _ = order.sweep_stride((1, 4, 16, 32), buffer_bytes=2**25, budget_s=0.5).rows
    assert line.element_s > 3 * first.element_s


def test_a_machine_without_lines_would_show_the_same_time_at_every_stride(monkeypatch):
    WalksThatTake(monkeypatch, lambda stride, count: 2e-8 * count)
    flat = order.sweep_stride((1, 16), buffer_bytes=2**22, budget_s=0.3)
    assert [row.element_s for row in flat.rows] == pytest.approx([2e-8, 2e-8])
    assert flat.engine == "fake"


def test_the_buffer_is_twice_the_largest_cache_between_two_bounds():
    def card(*sizes):
        return MachineCard(
            caches=tuple(Cache(level, "unified", size) for level, size in enumerate(sizes, 1))
        )

    assert order.beyond_caches_bytes(card(2**15, 2**20)) == 2**26
    assert order.beyond_caches_bytes(card(2**15, 50 * 2**20)) == 2**27
    assert order.beyond_caches_bytes(card(2**30)) == 2**28
    assert order.beyond_caches_bytes(MachineCard(caches=None)) == 2**26
    assert order.line_size_bytes(MachineCard(caches=None)) == 64
    assert (
        order.line_size_bytes(MachineCard(caches=(Cache(1, "data", None, line_bytes=128),))) == 128
    )


def test_bad_arguments_are_told_what_is_accepted():
    with pytest.raises(ValueError, match="'native', 'torch'"):
        order.compare_order(engine="numpy")
    with pytest.raises(
        ValueError, match="buffer_bytes=100 is too small; give a whole number, 4,096 or more"
    ):
        order.compare_direction(buffer_bytes=100)
    with pytest.raises(ValueError, match="two or more different"):
        order.sweep_stride((4, 4))
    with pytest.raises(ValueError, match="different whole numbers"):
        order.sweep_stride((1, 2.5))


MISSING = native.MissingToolError("there is no C++ compiler", "install g++")
BROKEN = native.CompilationError("fatal error: cstdint: No such file\nmore", "install g++", "")


@pytest.mark.parametrize("error", [MISSING, BROKEN])
def test_without_a_compiler_that_works_numba_walks_and_without_both_one_line_says_so(
    monkeypatch, error
):
    pytest.importorskip("numba")

    def compile_cpp(source):
        raise error

    monkeypatch.setattr(access_kernels, "compile_cpp", compile_cpp)
    assert access_kernels.kernels().engine == "numba"
    assert access_kernels.kernels() is access_kernels.kernels()  # numba compiles once
    assert order.sweep_stride((1, 16), buffer_bytes=SMALL, budget_s=0.1).engine == "numba"
    with pytest.raises(native.MissingToolError, match=r"need C\+\+.*install g\+\+"):
        order.compare_alignment()
    access_kernels.numba_kernels.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(
        native.MissingToolError, match=r"neither a C\+\+ compiler.*nor numba.*g\+\+; or install"
    ) as raised:
        access_kernels.kernels()
    assert error.problem.splitlines()[0] in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
