"""Strict nbval does not compare times and rates, and compares everything else."""

from __future__ import annotations

import re

import pytest
from nbval.plugin import get_sanitize_patterns

from helpers import units
from tools.authoring import mutation
from tools.authoring.rules import shares

FILE = mutation.SANITIZE
RULES = shares.patterns(FILE)

MASKED = {
    "12.3 ms": "<time>",
    "12.3ms": "<time>",
    "3 s": "<time>",
    "-3 s": "<time>",
    "76.0 us": "<time>",
    "7.6 \u00b5s": "<time>",
    "7.6 \u03bcs": "<time>",
    "120 ns": "<time>",
    "2 min": "<time>",
    "1,234.5 s": "<time>",
    "1.2e-05 s": "<time>",
    "1 s.": "<time>.",
    "took 3 seconds, or 1 minute": "took <time>, or <time>",
    "1.2 ms/step": "<time>",
    "1.2 to 3.4 ms": "<time>",
    "1.2 \u00b1 0.1 ms": "<time>",
    "between 1.2 ms and 3 s": "between <time> and <time>",
    "(3 s)": "(<time>)",
    "t=3 s": "t=<time>",
    "34.1 GB/s": "<rate>",
    "34.1 GiB/s": "<rate>",
    "104 GFLOP/s": "<rate>",
    "1,200 examples/s": "<rate>",
    "3.1 it/s": "<rate>",
    "12 MAC/s": "<rate>",
    "<td>12.3 ms</td>": "<td><time></td>",
    "<td>12.3&nbsp;ms</td><td>980 MB/s</td>": "<td><time></td><td><rate></td>",
    "3 layers in 4 s": "3 layers in <time>",
    "median  12.3 ms": "median <time>",
    "43 times (measured)": "<times>",
    "0.87 to 1,024 times (measured)": "<times>",
    "a @ b: 1.2e+03 times (measured), 5 calls": "a @ b: <times>, 5 calls",
    "it is so\nHere it is 43 times (measured), so this holds.\nmore": (
        "it is so\nHere <verdict>\nmore"
    ),
    "Here this was not decided.": "Here <verdict>",
    '<div class="course-player"><script>3 s\n</div></script></div>': "<player>",
}
KEPT = [
    "3 layers",
    "5 samples",
    "5 s5",
    "4 MiB",
    "278,520 MAC",
    "557 kFLOP",
    "1.96x",
    "31.9 %",
    "4.90 GHz",
    "3.14 MB",
    "3 millions",
    "12 minutes_each",
    "x3 s",
    "v1.2.3 s",
    "size 3",
    "3",
    "2 mins",
    "0.5 FLOP/B",
    "12 B/step",
    "five ms",
    "s 3",
    "3 ms_total",
    "43 times",
    "43 times (modelled)",
    "it holds here: 43",
    "it is so (at least 4 times)",
    "[1, 2, 3]",
    '<p>3 MB</p><div class="course-player"></div>',
]


@pytest.mark.parametrize("text", MASKED)
def test_a_number_with_a_unit_of_time_or_rate_is_masked(text):
    assert shares.sanitize(text, RULES) == MASKED[text]


@pytest.mark.parametrize("text", KEPT)
def test_every_other_number_is_compared(text):
    assert shares.sanitize(text, RULES) == text


@pytest.mark.parametrize("value", [7.6e-9, 7.6e-5, 0.0123, 0.9996, 3, 61.5, 3600, 1e6])
@pytest.mark.parametrize(
    ("unit", "mask"),
    [("s", "<time>"), ("B/s", "<rate>"), ("FLOP/s", "<rate>"), ("MAC/s", "<rate>")],
)
def test_what_the_library_prints_as_a_time_or_rate_is_masked(value, unit, mask):
    assert shares.sanitize(units.text(value, unit), RULES) == mask


@pytest.mark.parametrize("value", [0, 1, 999, 12_345, 2**31, 10**13])
@pytest.mark.parametrize("unit", ["B", "FLOP", "MAC", "Hz", "W", "J", ""])
def test_what_the_library_prints_as_anything_else_is_compared(value, unit):
    assert shares.sanitize(units.text(value, unit), RULES) == units.text(value, unit)


def test_columns_compare_whatever_the_width_of_their_times():
    narrow = "  name   median  calls\n     a   1.2 ms     10\n     b    980 s      2  "
    wide = "name     median  calls\n   a  123.4 ms     10\n   b    1.23 s      2"
    assert shares.sanitize(narrow, RULES) == shares.sanitize(wide, RULES)
    assert shares.sanitize(narrow, RULES) != shares.sanitize(narrow.replace("10", "11"), RULES)


def test_nbval_reads_the_file_as_we_do_and_on_every_system():
    text = FILE.read_text(encoding="utf-8")
    assert get_sanitize_patterns(text) == RULES
    assert len(RULES) == 8
    # nbval opens the file in the system's own encoding, so what it reads must be the same in all.
    assert text.isascii()
    assert all(re.compile(regex) for regex, _ in RULES)
