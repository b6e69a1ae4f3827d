"""A small course of one lesson and a library of four functions."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tools.authoring.build import build
from tools.authoring.course import Course
from tools.grading import sandbox

SMALL = Path(__file__).parent / "fixtures" / "small"


def _forget_toy() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        del sys.modules[name]


def copy_small(folder: Path) -> Course:
    """Return a fresh copy of the small course under ``folder``."""
    shutil.copytree(SMALL, folder / "small", ignore=shutil.ignore_patterns("__pycache__"))
    return Course(folder / "small", package="toy")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The small course, not built; its library is importable here and in kernels."""
    course = copy_small(tmp_path)
    _forget_toy()
    monkeypatch.syspath_prepend(course.root)
    monkeypatch.setenv("PYTHONPATH", str(course.root))
    monkeypatch.delenv("TOY_SEED", raising=False)
    yield course
    _forget_toy()


@pytest.fixture(scope="session")
def built_once(tmp_path_factory):
    """The folder of a small course that was built once, to be copied."""
    course = copy_small(tmp_path_factory.mktemp("built"))
    with pytest.MonkeyPatch.context() as patch:
        _forget_toy()
        patch.syspath_prepend(course.root)
        patch.setenv("PYTHONPATH", str(course.root))
        build(course)
    _forget_toy()
    return course.folder


@pytest.fixture
def built(small, built_once):
    """The small course, built."""
    shutil.copytree(built_once, small.folder, dirs_exist_ok=True)
    shutil.copy(built_once.parent / "README.md", small.readme)
    return small


@pytest.fixture(scope="session")
def working_sandbox():
    """Skip where bubblewrap is absent or the machine's owner forbids it; in CI the first is a
    failure (conftest.py).
    """
    try:
        sandbox.refuse_unless_working()
    except sandbox.SandboxError as error:
        pytest.skip(str(error))
