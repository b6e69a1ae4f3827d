"""Every test and every notebook under test runs in the environment in which the lessons were built.

``COURSE_TEST_CUDA=1`` leaves a GPU visible, for the tests that are marked ``cuda``. With ``CI``
set, a test that skips for another reason than those of ``MAY_SKIP_IN_CI`` has failed.
"""

import atexit
import gc
import os
import re
import shutil
import signal
import tempfile

import pytest

from tests.ci import in_ci
from tools.authoring.environment import headless

pytest_plugins = ("tests.groups", "tests.kernels", "tests.timed")

# What a machine of CI may lack, and words of the reason for which a test then skips.
MAY_SKIP_IN_CI = {
    "a GPU, or a machine without one": r"\b(CUDA|GPU)\b",
    "another operating system": r"\b(Linux|POSIX|Unix|macOS|Windows)\b",
    "a user who is not root": r"^root may write everywhere$",
    "a processor that lets a program withhold its answers": r"\bcpuid_fault\b",
    "a processor whose vector units are published": (
        r"^lanes and units of this core are not known\b"
    ),
    "what the machine's owner forbids": (
        r"\bnamespaces?\b|\bunshare\b|\bkeyring\b|\bcontrol group\b"
    ),
}

# The processes of one run share a cache: what one has compiled or measured no other does again.
_cache = os.environ.get("HELPERS_CACHE", "") if "PYTEST_XDIST_WORKER" in os.environ else ""
if not _cache:
    _cache = tempfile.mkdtemp(prefix="helpers-test-cache-")
    atexit.register(shutil.rmtree, _cache, ignore_errors=True)
_switch = headless(cache_folder=_cache)
if os.environ.get("COURSE_TEST_CUDA"):
    del _switch["CUDA_VISIBLE_DEVICES"]
os.environ.update(_switch)
# The processes of one run share the cores: threads that wait for others sleep, and do not spin at
# their expense.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(_cache, "hypothesis")

# A shell that starts a command with `&` has it ignore Ctrl-C, and what the command starts ignores
# it too: here tests interrupt what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Under `make test`, a test that calls make is not a part of that make: it would print the folders
# it enters and leaves.
for _name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
    os.environ.pop(_name, None)


def _fail_unless_permitted(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail") or not in_ci():
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not any(re.search(words, reason) for words in MAY_SKIP_IN_CI.values()):
        report.outcome = "failed"
        report.longrepr = (
            f"in CI a test skips for want of {', '.join(MAY_SKIP_IN_CI)} (conftest.py), not of: "
            f"{reason}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Fail a test in CI that skips for a reason that CI does not accept."""
    report = yield
    _fail_unless_permitted(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """The same for a whole file that skips while it is read."""
    report = yield
    _fail_unless_permitted(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let the garbage collector pass over a million objects that stay: the tests, and what their
    modules import.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """The same for what earlier tests have imported or keep: a test's own collections are of its
    own objects.
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print at the end of the session what tests recorded with ``record_property(title, text)``."""
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for title, text in report.user_properties if report.when == "call" else ():
            terminalreporter.section(title)
            terminalreporter.write_line(text)
