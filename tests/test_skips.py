"""In CI a test skips only for what conftest.py permits; on a desk it skips for any reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import planted

TESTS = """
    import pytest

    @pytest.mark.skipif(True, reason="needs a CUDA device")
    def test_cuda(): pass

    @pytest.mark.skipif(True, reason="signals are POSIX's")
    def test_system(): pass

    @pytest.mark.skipif(True, reason="no NVRTC")
    def test_marked(): pass

    def test_unstable(): pytest.skip("unstable: L1 latency")

    @pytest.fixture
    def absent(): pytest.importorskip("no_such_module")
    def test_absent(absent): pass

    @pytest.mark.xfail(reason="known")
    def test_known(): assert False
"""
FILE = """
    import pytest
    pytest.importorskip("no_such_module")
"""


def outcomes(folder: Path, ci: str) -> tuple[dict[str, str], list[str]]:
    """Return the reasons for which tests and files failed, by name, and the reasons of skips that
    the end lists.
    """
    planted.plant(folder, {"test_some.py": TESTS, "test_file.py": FILE})
    text = planted.run(folder, "-rfEs", "-q", "--continue-on-collection-errors", CI=ci)
    failed = [
        line.split(maxsplit=2)
        for line in text.splitlines()
        if line.startswith(("FAILED", "ERROR "))
    ]
    skipped = re.findall(r"^SKIPPED \[\d+\] \S+: (.*)", text, flags=re.MULTILINE)
    return {name.rpartition("::")[2]: reason for _, name, reason in failed}, skipped


def test_in_ci_a_test_skips_only_for_what_is_permitted(tmp_path):
    failed, _ = outcomes(tmp_path, "true")
    assert set(failed) == {"test_marked", "test_unstable", "test_absent", "test_file.py"}
    assert failed["test_unstable"].endswith("(conftest.py), not of: unstable: L1 latency")


@pytest.mark.parametrize("ci", ["", "false"])
def test_on_a_desk_a_test_skips_for_any_reason_and_the_end_lists_them(tmp_path, ci):
    failed, skipped = outcomes(tmp_path, ci)
    assert failed == {}
    absent = "could not import 'no_such_module': No module named 'no_such_module'"
    assert sorted(skipped) == sorted(
        [
            "needs a CUDA device",
            "signals are POSIX's",
            "no NVRTC",
            "unstable: L1 latency",
            absent,
            absent,
        ]
    )


def test_the_end_of_a_run_lists_skips_and_the_ten_slowest_tests(pytestconfig):
    assert {"-rfEs", "--durations=10"} <= set(pytestconfig.getini("addopts"))
