"""A plugin of pytest: notebooks run in kernels that have the large packages from the start.

Loaded by conftest.py. A kernel that imports PyTorch, pandas and matplotlib by itself spends seconds
on it, in each of thirty notebooks. Here a kernel is forked from a process that has imported them,
and imports the library itself. That a lesson runs in a kernel of its own from the first import on,
see tests/course/test_copies_run.py and tests/helpers/widgets/test_in_the_lab.py.

What a notebook measures is not compared, so each measurement ends early; with ``--whole-budgets``
it takes the time that the notebook gives it, as in a build, and more claims about times are decided
(``make release``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tools.authoring import warm
from tools.authoring.environment import EARLY_END

_STACK = pytest.StashKey[ExitStack]()
_FOLDER = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that ``make release`` gives."""
    parser.addoption(
        "--whole-budgets", action="store_true", help="notebooks measure for as long as they state"
    )


def folder(config: pytest.Config) -> Path:
    """Return the folder of warm kernels of this process, which end with it."""
    if _FOLDER not in config.stash:
        config.stash[_STACK] = ExitStack()
        config.stash[_FOLDER] = config.stash[_STACK].enter_context(warm.kernels())
    return config.stash[_FOLDER]


@pytest.fixture(scope="session")
def kernels(pytestconfig: pytest.Config) -> Path:
    """The folder of kernels that need not import what they all need."""
    return folder(pytestconfig)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Give the kernel that nbval starts before the first cell of a notebook its environment."""
    if item.path.suffix != ".ipynb":
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        if item.config.option.nbval_kernel_name == warm.NAME:
            patch.setenv("JUPYTER_PATH", str(folder(item.config)))
        if not item.config.option.whole_budgets:
            for name, value in EARLY_END.items():
                patch.setenv(name, value)
        return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the kernels."""
    if _STACK in config.stash:
        config.stash[_STACK].close()
