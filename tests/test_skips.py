"""In CI a test skips only for what conftest.py permits; on a desk it skips for any reason."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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


def outcomes(folder: Path, ci: str) -> dict[str, str]:
    """Return what pytest says of each test and file of ``folder``, whose conftest.py is the course's own."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-q", "--continue-on-collection-errors", "-p", "no:cacheprovider", "."],
        cwd=folder, env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    words = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR "))]
    assert done.returncode == bool(words), done.stdout + done.stderr
    return {name.rpartition("::")[2]: text for _, name, text in words}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_some.py").write_text(textwrap.dedent(TESTS))
    (tmp_path / "test_file.py").write_text(textwrap.dedent(FILE))
    return tmp_path


def test_in_ci_a_test_skips_only_for_what_is_permitted(folder):
    failed = outcomes(folder, "true")
    assert set(failed) == {"test_marked", "test_unstable", "test_absent", "test_file.py"}
    assert failed["test_unstable"].endswith("(conftest.py), not of: unstable: L1 latency")


@pytest.mark.parametrize("ci", ["", "false"])
def test_on_a_desk_a_test_skips_for_any_reason(folder, ci):
    assert outcomes(folder, ci) == {}
