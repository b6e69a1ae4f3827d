"""A bare machine (torch, numpy, pandas, matplotlib) imports everything, and `import helpers` loads nothing heavy."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import helpers

ROOT = Path(__file__).parents[2]
NEEDED = ("lazy-loader", "torch", "numpy", "pandas", "matplotlib")
ABSENT = ("torchvision", "tqdm", "psutil", "IPython", "ipywidgets", "ipykernel", "mlxtend", "sklearn", "scipy", "thop",
          "numba", "jupyter_core", "jupyterlab", "nbformat", "nbconvert", "cloudpickle", "joblib", "pytest", "yaml",
          "platformdirs", "torchinfo", "fvcore", "cpuinfo")  # fmt: skip

# A finder in front of all others, for which nothing is installed but what is needed and what that needs.
BARE = """
    import json, sys
    absent = set(json.loads(sys.argv[1]))

    class Bare:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in absent:
                raise ModuleNotFoundError(f"No module named {name!r} on a bare machine", name=name)

    sys.meta_path.insert(0, Bare())
"""


@functools.cache
def installed() -> dict[str, list[str]]:
    """Return the installed distributions by their import names; to read them all takes longer than most tests here."""
    return importlib.metadata.packages_distributions()


@functools.cache
def bare_packages() -> set[str]:
    """Return the import names of the needed distributions and of all that they require."""
    by_distribution: dict[str, set[str]] = {}
    for module, distributions in installed().items():
        for distribution in distributions:
            by_distribution.setdefault(canonical(distribution), set()).add(module)
    known, waiting = set(), [canonical(name) for name in NEEDED]
    while waiting:
        name = waiting.pop()
        if name in known or name not in by_distribution:
            continue
        known.add(name)
        required = importlib.metadata.requires(name) or []
        waiting += [canonical(re.match(r"[\w.-]+", line).group()) for line in required if "extra ==" not in line]
    return set().union(*(by_distribution[name] for name in known))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def run(program: str, *, bare: bool) -> dict:
    """Run ``program`` in a fresh Python and return the JSON that it prints last."""
    text = (textwrap.dedent(BARE) if bare else "import json, sys\n") + textwrap.dedent(program)
    absent = set(installed()) | set(ABSENT)
    command = [sys.executable, "-c", text, json.dumps(sorted(absent - bare_packages() - {"helpers"}))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_bare_machine_has_what_is_needed_and_not_the_rest():
    packages = bare_packages()
    assert {name.replace("-", "_") for name in NEEDED} <= packages
    assert packages.isdisjoint(ABSENT)


def test_every_module_imports_on_a_bare_machine():
    found = run(
        """
        import importlib, pkgutil, helpers
        problems, names = {}, []
        for entry in pkgutil.walk_packages(helpers.__path__, "helpers.", onerror=lambda name: None):
            if entry.name.endswith(".__main__"):
                continue
            names.append(entry.name)
            try:
                importlib.import_module(entry.name)
            except BaseException as error:
                problems[entry.name] = f"{type(error).__name__}: {error}"
        print(json.dumps({"names": names, "problems": problems}))
        """,
        bare=True,
    )
    assert found["problems"] == {}
    assert {"helpers.units", "helpers.storage", "helpers.isolation", "helpers.isolation.child"} <= set(found["names"])


@pytest.mark.parametrize("name", ["tqdm", "torchvision.transforms", "psutil", "IPython.display"])
def test_the_bare_machine_refuses_what_it_lacks(name):
    program = f"""
        try:
            import {name}
            print(json.dumps({{"refused": False}}))
        except ModuleNotFoundError:
            print(json.dumps({{"refused": True}}))
    """
    assert run(program, bare=True)["refused"]


def test_import_helpers_loads_nothing_heavy():
    loaded = run(
        """
        before = set(sys.modules)
        import helpers
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(json.dumps(sorted(new - set(sys.stdlib_module_names))))
        """,
        bare=False,
    )
    assert loaded == ["helpers", "lazy_loader"]


@pytest.mark.timed
def test_import_helpers_takes_a_moment():
    spent_s = run(
        """
        import time
        begun = time.process_time()
        import helpers
        print(json.dumps(time.process_time() - begun))
        """,
        bare=False,
    )
    assert spent_s < 0.2


@pytest.mark.parametrize("module", ["units", "console", "storage", "isolation"])
def test_the_ground_floor_loads_neither_torch_nor_pandas(module):
    program = (
        f"import helpers.{module}; print(json.dumps(sorted({{'torch', 'pandas', 'matplotlib'}} & set(sys.modules))))"
    )
    assert run(program, bare=False) == []


@pytest.mark.parametrize("name", helpers.__all__)
def test_every_public_name_resolves(name):
    assert getattr(helpers, name) is not None
    assert name in dir(helpers)


def test_a_wrong_name_is_told_the_right_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'mesure'; it has .*measure"):
        helpers.mesure  # noqa: B018
    with pytest.raises(ImportError):
        from helpers import mesure  # noqa: F401
