"""Planted tests, run by pytest in a process of its own under the course's own conftest.py."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def plant(folder: Path, files: Mapping[str, str]) -> None:
    """Write the course's conftest.py into ``folder``, and the text of each of ``files``, named by
    their paths.
    """
    (folder / "conftest.py").write_text(
        (ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    timed\n    slow\n")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")


def run(folder: Path, *options: str, plugins: tuple[str, ...] = (), **environment: str) -> str:
    """Return what pytest prints of the tests in ``folder``, with these plugins alone; it ends with
    0 or 1.
    """
    named = [part for plugin in plugins for part in ("-p", plugin)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *named, "-p", "no:cacheprovider", *options, "."],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout
