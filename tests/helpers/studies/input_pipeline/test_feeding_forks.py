"""The memory of a program whose forked workers read a dataset of paths, held to psutil and to
CPython's own sizes.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from helpers.studies import input_pipeline
from helpers.studies.input_pipeline import _forks as forks

SAYS = Path("/proc/self/smaps_rollup").is_file()
ITEMS = 1_000_000


def test_both_datasets_hold_the_same_paths() -> None:
    strings, array = (input_pipeline.PathItems(5, as_array=as_array) for as_array in (False, True))
    assert [str(path, "ascii") for path in array.paths] == strings.paths
    assert len(set(strings.paths)) == len(strings) == len(array) == 5
    assert [strings[item] for item in range(5)] == [array[item] for item in range(5)] == [48] * 5


def test_an_array_stores_a_byte_a_character_and_a_string_what_its_allocator_gives() -> None:
    assert input_pipeline.PathItems(1000, as_array=True).stored_bytes == 48_000
    of_one = input_pipeline.PathItems(1000).stored_bytes / 1000
    assert of_one % 16 == 0
    assert 0 <= of_one - sys.getsizeof("x" * 48) < 16


GROWN = """
import json, psutil
from helpers.studies import input_pipeline
input_pipeline.PathItems(1)  # what it imports is no growth
before = psutil.Process().memory_full_info().uss
strings = input_pipeline.PathItems(1_000_000)
print(json.dumps([psutil.Process().memory_full_info().uss - before, strings.stored_bytes]))
"""


def test_the_strings_take_the_memory_that_is_said() -> None:
    """In a fresh process, because strings take what earlier tests have freed."""
    if not SAYS:
        pytest.skip("this system does not say what a process keeps")
    printed = subprocess.run(
        [sys.executable, "-c", GROWN], check=True, capture_output=True, text=True
    ).stdout
    grown, stored_bytes = json.loads(printed)
    assert grown == pytest.approx(stored_bytes + 8_000_000, rel=0.1)  # and a pointer to each


@pytest.mark.skipif(not SAYS, reason="this system does not say what a process keeps")
def test_the_shared_bytes_of_a_process_are_those_of_psutil() -> None:
    assert forks._shared_bytes(os.getpid()) == pytest.approx(
        psutil.Process().memory_full_info().pss, rel=0.02
    )


MEASURED = """
import json, multiprocessing
from helpers.studies import input_pipeline
strings, array = (input_pipeline.PathItems(1_000_000, as_array=as_array) for as_array in (False, True))
grown = [input_pipeline.measure_growth(paths, workers=2).grown_bytes for paths in (strings, array)]
print(json.dumps([*grown, strings.stored_bytes, len(multiprocessing.active_children())]))
"""  # noqa: E501


@pytest.mark.skipif(not SAYS, reason="this system does not say what a process keeps")
def test_workers_copy_strings_and_no_array() -> None:
    """In a fresh process, because the strings lie in whole pages of their own only where no heap is
    there yet.
    """
    printed = subprocess.run(
        [sys.executable, "-c", MEASURED], check=True, capture_output=True, text=True
    ).stdout
    with_strings, with_array, stored_bytes, children = json.loads(printed)
    early, late = (own - without for own, without in zip(with_strings, with_array, strict=True))
    assert late == pytest.approx(2 * stored_bytes, rel=0.25)
    strings_per_page = mmap.PAGESIZE * ITEMS // stored_bytes
    # by a worker that has read one of twenty: 84 % of pages of 4,096 bytes
    touched = 1 - 0.95**strings_per_page
    assert early / late == pytest.approx(touched, abs=0.13)
    assert children == 0


def test_where_the_system_does_not_say_nothing_is_measured(monkeypatch) -> None:
    monkeypatch.setattr(forks.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert input_pipeline.measure_growth(input_pipeline.PathItems(ITEMS), workers=2) is None


@pytest.mark.parametrize(
    ("items", "how", "message"),
    [
        (ITEMS, {"workers": 0}, "workers=0"),
        (ITEMS, {"workers": 2, "shares": (0.0, 1)}, "above 0"),
        (ITEMS, {"workers": 2, "shares": (1.5,)}, "at most 1"),
        (ITEMS, {"workers": 2, "shares": ()}, "at most 1"),
        (20_000, {"workers": 2}, "per worker or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(items: int, how: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        input_pipeline.measure_growth(input_pipeline.PathItems(items), **how)
