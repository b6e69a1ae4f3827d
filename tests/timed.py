"""A plugin of pytest: what becomes of a test marked ``timed`` whose assertion fails.

Loaded by conftest.py. Such a test rests on a time that was measured, and other programs change it.
So the failure comes with a share: how much of the processors' time went elsewhere, to anything but
the process that ran the test and what this one had started.

- At most a tenth went elsewhere: the test has failed. Nothing is run twice.
- More did: the test is postponed. After all others it runs again in a process of its own, with no
  test beside it.
- It fails there as well while other programs take the processors: after a pause it runs alone once
  more.
- It still fails, still beside other programs: on a desk it is undecided (a skip that tells the
  share), in CI it failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.ci import in_ci

MOST_ELSEWHERE = 0.1
ALONE_RUNS, PAUSE_S = 2, 10
LEAST_S = 0.5  # the system counts its processors' time in hundredths of a second

POSTPONED = "postponed"
# set for tests that run alone: the file into which their reports go
REPORTS = "COURSE_TEST_REPORTS"

_RUN_BEGAN = pytest.StashKey["Moment"]()
_FILES_BEGAN = pytest.StashKey[dict[Path, "Moment | None"]]()


@dataclass(frozen=True)
class Moment:
    """A time, and until then the busy time of the processors that this process may use, and this
    process's own.
    """

    clock_s: float
    busy_s: float
    own_s: float
    processors: int


def moment() -> Moment:
    """Return the present one.

    A process's own time includes that of the processes below it, also of ended ones.
    """
    each = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        each = [each[number] for number in os.sched_getaffinity(0) if number < len(each)]
    busy = sum(
        getattr(times, name, 0.0)
        for times in each
        for name in ("user", "nice", "system", "irq", "softirq", "steal")
    )
    here, own = psutil.Process(), 0.0
    for process in [here, *here.children(recursive=True)]:
        try:
            own += sum(process.cpu_times()[:4])
        except psutil.Error:  # it has ended since the listing
            continue
    return Moment(time.perf_counter(), busy, own, len(each))


def elsewhere(begin: Moment, end: Moment) -> float:
    """Return the share of the processors' time between two moments that went to other programs."""
    away_s = (end.busy_s - begin.busy_s) - (end.own_s - begin.own_s)
    return min(1.0, max(0.0, away_s / ((end.clock_s - begin.clock_s) * end.processors)))


def _is_timed(item: pytest.Item) -> bool:
    return item.get_closest_marker("timed") is not None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note which files hold a test marked ``timed``."""
    config.stash[_FILES_BEGAN] = {item.path: None for item in items if _is_timed(item)}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when the run begins, and when its file did: what a test asserts may have been measured
    for all of them.
    """
    files = item.config.stash[_FILES_BEGAN]
    if _is_timed(item) or (item.path in files and files[item.path] is None):
        item.stash[_RUN_BEGAN] = moment()
        files[item.path] = files[item.path] or item.stash[_RUN_BEGAN]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Postpone a test whose assertion failed beside other programs."""
    report = yield
    if not (
        _is_timed(item)
        and report.failed
        and report.when != "teardown"
        and isinstance(call.excinfo.value, AssertionError)
    ):
        return report
    began, file_began = item.stash[_RUN_BEGAN], item.config.stash[_FILES_BEGAN][item.path]
    time.sleep(max(0.0, began.clock_s + LEAST_S - time.perf_counter()))
    end = moment()
    report.elsewhere = max(elsewhere(began, end), elsewhere(file_began, end))
    report.sections.append(
        ("other programs", f"took {report.elsewhere:.0%} of the processors' time")
    )
    if report.elsewhere > MOST_ELSEWHERE:
        report.outcome = POSTPONED
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Count and name what was postponed."""
    return (POSTPONED, "P", POSTPONED.upper()) if report.outcome == POSTPONED else None


def pytest_configure(config: pytest.Config) -> None:
    """Have the process that reports to the reader run again what was postponed, and one of its
    tests tell it.
    """
    if os.environ.get(REPORTS):
        config.pluginmanager.register(Teller(config, Path(os.environ[REPORTS])))
    elif not hasattr(config, "workerinput"):
        config.pluginmanager.register(Decider(config))


class Teller:
    """Writes the reports of tests that run alone, a line each."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self.config, self.path = config, path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(data, default=str) + "\n")


class Decider:
    """Runs postponed tests again, alone, after all others, and says what became of each."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.postponed: dict[str, pytest.TestReport] = {}
        self.runs: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == POSTPONED:
            self.postponed[report.nodeid] = report
            self.runs[report.nodeid] = [_run("failed", report)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        result = yield
        waiting = dict(self.postponed)
        for number in range(ALONE_RUNS):
            if waiting:
                time.sleep(PAUSE_S if number else 0)
                waiting = self._run_alone(waiting)
        for report in waiting.values():
            self._log(_decided(report, self.runs[report.nodeid]))
        return result

    def _log(self, report: pytest.TestReport) -> None:
        self.config.hook.pytest_runtest_logreport(report=report)

    def _run_alone(self, waiting: dict[str, pytest.TestReport]) -> dict[str, pytest.TestReport]:
        """Run these tests, log what is decided, and return the reports of those that wait on."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "reports")
            path.touch()
            how = [
                "-m",
                "",
                *(["--numprocesses=0"] if self.config.pluginmanager.hasplugin("xdist") else []),
            ]
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *how, *waiting],
                cwd=self.config.rootpath,
                check=False,
                env={**os.environ, REPORTS: str(path)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            lines = path.read_text(encoding="utf-8").splitlines()
        told = [
            self.config.hook.pytest_report_from_serializable(
                config=self.config, data=json.loads(line)
            )
            for line in lines
        ]
        for report in told:
            if report.when == "call" or not report.passed:
                self.runs[report.nodeid].append(
                    _run(report.outcome.replace(POSTPONED, "failed"), report)
                )
            if report.outcome != POSTPONED:
                self._log(report)
        for name in waiting.keys() - {
            report.nodeid for report in told if report.when == "teardown"
        }:
            self.runs[name].append("did not end")
            self._log(
                _failed(
                    waiting[name],
                    f"it was run again, alone, and did not end:\n{done.stdout[-3000:]}",
                )
            )
        return {report.nodeid: report for report in told if report.outcome == POSTPONED}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the runs of every test that was postponed."""
        if self.runs:
            terminalreporter.section(
                "failed while the processors' time went elsewhere, and run again alone"
            )
        for name, runs in self.runs.items():
            terminalreporter.write_line(f"{name}: {'; alone: '.join(runs)}")


def _run(outcome: str, report: pytest.TestReport) -> str:
    share = getattr(report, "elsewhere", None)
    return outcome if share is None else f"{outcome} ({share:.0%} elsewhere)"


def _failed(report: pytest.TestReport, why: str) -> pytest.TestReport:
    report.outcome = "failed"
    report.sections.append(("run again", why))
    return report


def _decided(report: pytest.TestReport, runs: list[str]) -> pytest.TestReport:
    if in_ci():
        return _failed(
            report, "it failed alone as well, and CI decides nothing in favour of a test"
        )
    path, line, _ = report.location
    says = str(getattr(report.longrepr, "reprcrash", report.longrepr)).splitlines()[0]
    report.outcome = "skipped"
    report.longrepr = (
        path,
        (line or 0) + 1,
        f"Skipped: undecided beside other programs: {'; alone: '.join(runs)}; {says}",
    )
    return report
