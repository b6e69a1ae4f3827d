"""Every test and every notebook under test runs in the environment in which the lessons were built.

``COURSE_TEST_CUDA=1`` leaves a GPU visible, for the tests that are marked ``cuda``.
"""

import atexit
import os
import shutil
import signal
import tempfile

import pytest

from course.authoring.environment import headless

_cache = tempfile.mkdtemp(prefix="helpers-test-cache-")
atexit.register(shutil.rmtree, _cache, ignore_errors=True)
_switch = headless(cache_folder=_cache)
if os.environ.get("COURSE_TEST_CUDA"):
    del _switch["CUDA_VISIBLE_DEVICES"]
os.environ.update(_switch)

# A shell that starts a command with `&` has it ignore Ctrl-C, and what the command starts ignores it too: here tests
# interrupt what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Under `make test`, a test that calls make is not a part of that make: it would print the folders it enters and leaves.
for _name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
    os.environ.pop(_name, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print at the end of the session what tests recorded with ``record_property(title, text)``."""
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for title, text in report.user_properties if report.when == "call" else ():
            terminalreporter.section(title)
            terminalreporter.write_line(text)
