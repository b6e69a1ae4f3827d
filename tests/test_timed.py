"""A test marked ``timed`` fails when it failed four times, and no other test is given a second run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
    import pytest

    RUNS = {}

    def failing(name, runs, error=AssertionError):
        RUNS[name] = RUNS.get(name, 0) + 1
        if RUNS[name] <= runs:
            raise error(f"run {RUNS[name]}")

    @pytest.fixture(scope="session")
    def costly():
        print("costly made")
        yield object()
        print("costly ended")

    @pytest.mark.timed
    def test_disturbed(costly, tmp_path):
        assert not list(tmp_path.iterdir())
        (tmp_path / "left").touch()
        failing("disturbed", 3)

    @pytest.mark.timed
    def test_wrong(costly): failing("wrong", 4)

    @pytest.mark.timed
    def test_error(costly): failing("error", 1, ValueError)

    def test_unmarked(costly): failing("unmarked", 1)

    def test_after(costly): assert RUNS == {"disturbed": 4, "wrong": 4, "error": 1, "unmarked": 1}
"""


@pytest.mark.parametrize("processes", [0, 1])
def test_a_timed_test_has_failed_when_four_runs_have_and_others_at_once(tmp_path: Path, processes: int) -> None:
    conftest = (ROOT / "conftest.py").read_text(encoding="utf-8")
    assert conftest.count("reruns_delay=1") == 1
    (tmp_path / "conftest.py").write_text(conftest.replace("reruns_delay=1", "reruns_delay=0.01"), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    timed\n    slow\n")
    (tmp_path / "test_some.py").write_text(textwrap.dedent(TESTS))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-s", "-p", "no:cacheprovider", "-n", str(processes), "."],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    summary = done.stdout.rpartition("short test summary info")[2]
    assert re.findall(r"^(FAILED|PASSED) \S+::test_(\w+)", summary, flags=re.MULTILINE) == [
        ("PASSED", "disturbed"), ("PASSED", "after"), ("FAILED", "wrong"), ("FAILED", "error"), ("FAILED", "unmarked"),
    ], done.stdout  # fmt: skip
    assert "3 failed, 2 passed, 6 rerun" in summary
    if not processes:
        assert done.stdout.count("costly made") == done.stdout.count("costly ended") == 1
