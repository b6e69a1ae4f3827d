"""Page faults, counted exactly on memory of known pages."""

from __future__ import annotations

import mmap
import sys

import pytest

from helpers.studies.data_movement import _pages as access_pages

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="counts are getrusage's")


@pytest.mark.skipif(
    not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="pages of one size are asked for as Linux does"
)
@pytest.mark.parametrize("pages", [1, 64, 1000])
def test_each_fresh_page_is_one_minor_fault_and_only_once(pages):
    def counted():
        with mmap.mmap(-1, pages * mmap.PAGESIZE) as fresh:
            fresh.madvise(mmap.MADV_NOHUGEPAGE)

            def touch():
                for page in range(pages):
                    fresh[page * mmap.PAGESIZE] = 1

            return access_pages.count_faults(touch), access_pages.count_faults(touch)

    # A machine that is short of memory takes pages from this process and brings them back: more
    # faults, never fewer.
    runs = [counted() for _ in range(5)]
    first, again = ([run[which].minor for run in runs] for which in (0, 1))
    assert pages <= min(first) <= pages + 16
    assert min(again) <= 16
    assert min(touched.major + retouched.major for touched, retouched in runs) == 0
