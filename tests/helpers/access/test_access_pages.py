"""Fresh pages: faults counted exactly on memory of known pages, the allocator's trap in processes of its own."""

from __future__ import annotations

import mmap
import sys

import pytest
import torch

from helpers.access import _pages as access_pages

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="counts are getrusage's")


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="pages of one size are asked for as Linux does")
@pytest.mark.parametrize("pages", [1, 64, 1000])
def test_each_fresh_page_is_one_minor_fault_and_only_once(pages):
    def counted():
        with mmap.mmap(-1, pages * mmap.PAGESIZE) as fresh:
            fresh.madvise(mmap.MADV_NOHUGEPAGE)

            def touch():
                for page in range(pages):
                    fresh[page * mmap.PAGESIZE] = 1

            return access_pages.count_faults(touch), access_pages.count_faults(touch)

    # A machine that is short of memory takes pages from this process and brings them back: more faults, never fewer.
    runs = [counted() for _ in range(5)]
    first, again = ([run[which].minor for run in runs] for which in (0, 1))
    assert pages <= min(first) <= pages + 16
    assert min(again) <= 16
    assert min(touched.major + retouched.major for touched, retouched in runs) == 0


@pytest.fixture(scope="module")
def fresh():
    steady, access_pages.steady_allocator = access_pages.steady_allocator, None  # calling it in this process would fail
    try:
        return access_pages.measure_fresh_pages(tensor_bytes=40 * 2**20, budget_s=0.4)
    finally:
        access_pages.steady_allocator = steady


def test_new_memory_faults_once_a_page_and_reused_memory_does_not(fresh):
    assert fresh.pages == fresh.tensor_bytes // mmap.PAGESIZE
    new = fresh.row("new", "default")
    if fresh.huge_pages != "always":
        assert fresh.pages <= new.faults_per_call <= 1.02 * fresh.pages
        assert new.fault_bytes == pytest.approx(mmap.PAGESIZE, rel=0.02)
    for memory, allocator in (("reused", "default"), ("reused", "keeps memory"), ("new", "keeps memory")):
        assert fresh.row(memory, allocator).faults_per_call < 0.02 * fresh.pages


@pytest.mark.timed
def test_the_faults_take_the_time_and_an_allocator_that_keeps_memory_ends_them(fresh):
    default, kept = (fresh.row("new", how).call_s / fresh.row("reused", how).call_s
                     for how in ("default", "keeps memory"))  # fmt: skip
    if fresh.huge_pages != "always":
        assert default > 1.8
        assert default > 1.4 * kept
        assert fresh.fault_s > 0
    assert kept < 1.8


def test_the_faults_seconds_are_the_added_time_over_the_added_faults():
    def row(call_s, faults):
        return access_pages.PagesRow("new", "default", call_s, 1.0, faults, None)

    assert access_pages._fault_seconds(row(5.0, 101.0), row(1.0, 1.0)) == 4 / 100
    assert access_pages._fault_seconds(row(5.0, 1.0), row(1.0, 1.0)) is None
    assert access_pages._fault_seconds(row(5.0, None), row(1.0, None)) is None


def test_bad_sizes_and_rows_are_refused(fresh):
    for wrong in (2**10, 2**40, 1e8, True):
        with pytest.raises(ValueError, match="give a whole number of bytes from 1,048,576"):
            access_pages.measure_fresh_pages(tensor_bytes=wrong)
    with pytest.raises(ValueError, match="there is no row"):
        fresh.row("old", "default")


def test_this_process_computes_with_as_many_threads_as_before(fresh):
    assert fresh.rows[0].allocator == "default"
    assert torch.get_num_threads() >= 1
