"""Buffers in pages of a stated size, and lines thrown out of every cache: what lesson 01 tests a
chase with.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers import hardware, native
from helpers.hardware.limits import _chase as chase

KIB, MIB = 2**10, 2**20
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
compiles = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.mark.skipif(
    not SETTING.exists() or "[never]" in SETTING.read_text(), reason="no huge pages on demand"
)
def test_a_buffer_has_the_pages_that_it_asks_for():
    large, small = hardware.chase_buffer(8 * MIB), hardware.chase_buffer(8 * MIB, huge=False)
    assert (hardware.huge_pages(large), hardware.huge_pages(small)) == (True, False)


def test_either_buffer_is_zeros_of_the_size():
    for huge in (True, False):
        buffer = hardware.chase_buffer(3 * KIB, huge=huge)
        assert (buffer.dtype, buffer.nbytes, buffer.any()) == (np.uint64, 3 * KIB, False)


@compiles
def test_a_flush_changes_no_value():
    buffer = np.random.default_rng(0).integers(2**60, size=(100, 8), dtype=np.uint64)
    before = buffer.copy()
    hardware.flush_caches(buffer)
    assert np.array_equal(buffer, before)


def test_a_buffer_with_gaps_is_refused():
    with pytest.raises(
        ValueError, match=r"strides \(128,\) has gaps, but it must be contiguous: give a copy"
    ):
        hardware.flush_caches(np.zeros(64)[::16])


def test_without_a_compiler_a_flush_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    with pytest.raises(native.NativeError, match="/nonexistent/c"):
        hardware.flush_caches(np.zeros(8))


def flushed_over_held(flush) -> float:
    """Return the time of a walk through 256 KiB after ``flush``, over the time of the same walk
    without it.
    """
    buffer, walk = chase.chase_buffer(256 * KIB), chase.find_walker().walk
    chase.link(buffer, buffer.nbytes)
    held_s, flushed_s = [], []
    for _ in range(30):
        walk(buffer, 0, 4096)
        held_s.append(chase._run(walk, buffer, 0, 4096)[1])
        flush(buffer)
        flushed_s.append(chase._run(walk, buffer, 0, 4096)[1])
    return min(flushed_s) / min(held_s)


@compiles
@pytest.mark.timed
def test_a_flushed_line_comes_from_main_memory():
    assert flushed_over_held(hardware.flush_caches) > 3


@compiles
@pytest.mark.timed
def test_a_flush_that_does_nothing_is_seen():
    assert flushed_over_held(lambda buffer: None) < 1.5
