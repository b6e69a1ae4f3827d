"""A test marked ``timed`` has failed where nothing else ran; beside other programs it runs again,
alone, after all.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import planted, timed

FAKE_LOAD = """
    import os
    from tests import timed

    timed.elsewhere = lambda begin, end: float(os.environ["ALONE" if timed.REPORTS in os.environ else "BESIDE"])
    timed.PAUSE_S = timed.LEAST_S = 0
"""  # noqa: E501
TESTS = """
    import os
    import pytest
    from pathlib import Path

    def failing(name, runs, error=AssertionError):
        before = Path("runs").read_text().split() if Path("runs").exists() else []
        with Path("runs").open("a") as file:
            file.write(name + "\\n")
        if before.count(name) < runs:
            raise error(f"run {before.count(name) + 1}")

    @pytest.mark.timed
    def test_disturbed(): failing("disturbed", 1)

    @pytest.mark.timed
    @pytest.mark.parametrize("name", ["a b"])
    def test_wrong(name): failing("wrong", 9)

    @pytest.mark.timed
    def test_error(): failing("error", 9, ValueError)

    def test_unmarked(): failing("unmarked", 9)

    @pytest.fixture
    def measured(): failing("fixture", 9)

    @pytest.mark.timed
    def test_fixture(measured): pass

    def test_last(): failing("last", 0)
"""
ENDS = """
    import os
    import pytest
    from tests import timed

    @pytest.mark.timed
    def test_ends():
        if timed.REPORTS in os.environ:
            os._exit(3)
        assert False
"""
ONCE = ["disturbed", "wrong", "error", "unmarked", "fixture", "last"]
FAILED, PASSED = "failed", "passed"


def ran(
    folder: Path, *options: str, tests: str = TESTS, **environment: str
) -> tuple[dict[str, str], list[str], str]:
    """Return what became of each planted test, the names of all runs in their order, and what
    pytest printed.
    """
    planted.plant(folder, {"test_some.py": tests, "fake_load.py": FAKE_LOAD})
    text = planted.run(folder, "-rA", *options, PYTEST_PLUGINS="xdist,fake_load", **environment)
    summary = text.rpartition("short test summary info")[2]
    became = re.findall(r"^(FAILED|PASSED|ERROR) \S+::test_(\w+)", summary, flags=re.MULTILINE)
    runs = folder / "runs"
    return (
        {name: word.lower() for word, name in became},
        runs.read_text().split() if runs.exists() else [],
        text,
    )


@pytest.mark.parametrize("processes", [0, 2])
def test_beside_other_programs_it_is_run_again_alone_after_all_others(tmp_path, processes):
    became, runs, text = ran(tmp_path, f"-n{processes}", BESIDE="0.9", ALONE="0.02", CI="")
    assert became == {
        "disturbed": PASSED,
        "wrong": FAILED,
        "error": FAILED,
        "unmarked": FAILED,
        "fixture": "error",
        "last": PASSED,
    }
    assert runs == [*ONCE, "disturbed", "wrong", "fixture"]
    assert (
        "test_some.py::test_wrong[a b]: failed (90% elsewhere); alone: failed (2% elsewhere)"
        in text
    )
    assert "test_some.py::test_disturbed: failed (90% elsewhere); alone: passed" in text
    assert "3 failed, 2 passed" in text


def test_a_test_that_only_ci_runs_is_run_again_as_well(tmp_path):
    became, runs, _ = ran(
        tmp_path,
        "-m",
        "",
        "-k",
        "disturbed",
        PYTEST_ADDOPTS="-m 'not timed'",
        BESIDE="0.9",
        ALONE="0.02",
        CI="",
    )
    assert became == {"disturbed": PASSED}
    assert runs == ["disturbed"] * 2


def test_where_nothing_else_runs_it_has_failed_at_once(tmp_path):
    became, runs, text = ran(tmp_path, BESIDE="0.1", ALONE="0", CI="")
    assert {name for name, word in became.items() if word == PASSED} == {"last"}
    assert runs == ONCE
    assert "took 10% of the processors' time" in text


@pytest.mark.parametrize("ci", ["", "true"])
def test_where_other_programs_stay_it_is_undecided_on_a_desk_and_has_failed_in_ci(tmp_path, ci):
    became, runs, text = ran(tmp_path, "-k", "wrong", BESIDE="0.9", ALONE="0.5", CI=ci)
    assert runs == ["wrong"] * 3
    if ci:
        assert became == {"wrong": FAILED}
        assert "AssertionError: run 3" in text
    else:
        reason = (
            "failed (90% elsewhere); alone: failed (50% elsewhere); alone: failed (50% elsewhere)"
        )
        line = re.search(r"^SKIPPED \[1\] test_some\.py:\d+: (.*)", text, flags=re.MULTILINE)[1]
        assert line.startswith(f"undecided beside other programs: {reason}; ")
        assert line.endswith("AssertionError: run 3")
        assert "1 skipped" in text


def test_a_run_alone_that_does_not_end_has_failed(tmp_path):
    became, _, text = ran(tmp_path, tests=ENDS, BESIDE="0.9", ALONE="0", CI="")
    assert became == {"ends": FAILED}
    assert "it was run again, alone, and did not end" in text


def test_own_processes_are_told_from_others():
    """A child's time is this process's own, also when it has ended; that of a program that init
    adopted is not.
    """
    burn = "import time\nbegin = time.process_time()\nwhile time.process_time() < begin + 0.5: pass"
    begin = timed.moment()
    subprocess.run([sys.executable, "-c", burn], check=True)
    middle = timed.moment()
    adopted = (
        f"import os, sys\nif os.fork() == 0:\n    os.setsid()\n    exec({burn!r})\n    "
        "print('burnt', flush=True)"
    )
    # until both have closed it
    subprocess.run([sys.executable, "-c", adopted], check=True, stdout=subprocess.PIPE)
    end = timed.moment()
    assert middle.own_s - begin.own_s >= 0.45
    assert middle.busy_s - begin.busy_s >= 0.45
    assert end.busy_s - middle.busy_s >= 0.45
    assert end.own_s - middle.own_s < 0.45


def test_the_share_elsewhere():
    def after(busy_s, own_s):
        return timed.elsewhere(timed.Moment(5, 1, 1, 4), timed.Moment(7, 1 + busy_s, 1 + own_s, 4))

    assert after(8, 2) == 0.75
    assert after(2, 2.5) == 0
    assert after(9, 0) == 1
