"""Run a notebook by strict nbval within this process: which of its cells raise, and which show
something else.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tools.authoring import warm
from tools.authoring.environment import EARLY_END, headless
from tools.authoring.lesson import AuthoringError
from tools.authoring.rules import shares

CELL_TIMEOUT_S = 120
OUT_OF_TIME = "ran out of time"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"(?m)^([A-Za-z_][\w.]*): ?(.*)$")


@dataclass(frozen=True)
class Failure:
    """A code cell (counted from 0) that failed: ``why`` in a few words, and the first line that
    differs, in two forms.

    ``stored`` is the line of the saved notebook, ``here`` that of this run; of an exception
    ``here`` is the message.
    """

    cell: int
    why: str
    stored: str = ""
    here: str = ""


def failures(
    notebook: Path,
    root: Path,
    *,
    sanitize: Path,
    kernels: Path,
    first_only: bool = False,
    variables: Mapping[str, str] | None = None,
    cell_timeout_s: int = CELL_TIMEOUT_S,
) -> list[Failure]:
    """Run a notebook by strict nbval with ``root`` first on the path, and return the failures of
    its cells.

    The environment is headless, and then has ``variables``. With ``first_only`` the run ends with
    the first failure. Raises AuthoringError when nbval itself, and not a cell, failed: no kernel,
    nothing collected.
    """
    # nbval runs within this process, as starting pytest anew takes longer than many a lesson; the
    # kernel is its own.
    disabled_plugins = (
        f"no:{name}"
        for name in ("cacheprovider", "faulthandler", "threadexception", "unraisableexception")
    )
    plugins = [part for name in ("nbval.plugin", *disabled_plugins) for part in ("-p", name)]
    recorder = _CellRecorder(shares.patterns(sanitize))
    output = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="course-strict-", ignore_cleanup_errors=True) as folder:
        settings = Path(folder, "pytest.ini")
        settings.write_text("[pytest]\n")
        arguments = [
            "-c",
            str(settings),
            f"--rootdir={root}",
            "--noconftest",
            *plugins,
            "-q",
            "--color=no",
            "--capture=no",
            "--assert=plain",
            "--nbval",
            f"--nbval-kernel-name={warm.NAME}",
            f"--nbval-sanitize-with={sanitize}",
            *(["-x"] if first_only else []),
            f"--nbval-cell-timeout={cell_timeout_s}",
            str(notebook),
        ]
        with (
            _environment(root, kernels, Path(folder), variables or {}),
            contextlib.redirect_stdout(output),
        ):
            code = pytest.main(arguments, plugins=[recorder])
    if (code == pytest.ExitCode.OK and recorder.passed) or (
        code == pytest.ExitCode.TESTS_FAILED and recorder.failures
    ):
        return recorder.failures
    tail = " / ".join(output.getvalue().strip().splitlines()[-4:])
    raise AuthoringError(f"{notebook.name} could not be compared: {tail or 'no cell ran'}")


@contextmanager
def _environment(
    root: Path, kernels: Path, cache: Path, variables: Mapping[str, str]
) -> Iterator[None]:
    """Give kernels that start within it a headless environment in which the package of ``root`` is
    the first.
    """
    before = dict(os.environ)
    path = os.pathsep.join(part for part in (str(root), before.get("PYTHONPATH", "")) if part)
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.update(
        headless(cache_folder=str(cache)),
        **EARLY_END,
        PYTHONPATH=path,
        JUPYTER_PATH=str(kernels),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class _CellRecorder:
    """A plugin of pytest that keeps how many cells passed, and which failed in being run or
    compared.
    """

    def __init__(self, rules: shares.Patterns) -> None:
        self.rules = rules
        self.passed = 0
        self.failures: list[Failure] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: Any
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call":
            self.passed += report.passed
            if report.failed:
                self.failures.append(
                    _failure(item, _COLOURS.sub("", report.longreprtext), self.rules)
                )
        return report


def _failure(item: Any, text: str, rules: shares.Patterns) -> Failure:
    """Return in a few words why a cell failed: out of time, an exception, or outputs that
    differ.
    """
    if "Timeout of" in text:
        return Failure(item.cell_num, OUT_OF_TIME)
    if "caused an exception" in text:
        exceptions = _RAISED.findall(text)
        kind, message = exceptions[-1] if exceptions else ("an exception", "")
        return Failure(item.cell_num, f"raised {kind}", here=message)
    stored, here = (
        [
            line
            for output in outputs
            for compared_text in shares.compared_texts(output)
            for line in shares.sanitize(compared_text, rules).splitlines()
        ]
        for outputs in (item.cell.outputs, item.test_outputs or [])
    )
    differences = (
        (stored_line, here_line)
        for stored_line, here_line in zip_longest(stored, here, fillvalue="")
        if stored_line != here_line
    )
    return Failure(item.cell_num, "its output differs", *next(differences, ("", "")))
