"""A bare machine (the core dependencies alone) imports everything, also from a wheel;
`import helpers` is light.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.metadata
import io
import json
import re
import subprocess
import sys
import textwrap
import tomllib
import warnings
import zipfile
from pathlib import Path

import pytest

import helpers

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [re.match(r"[\w.-]+", line).group() for line in PROJECT["dependencies"]]
IMPORTED_AS = {"pillow": "PIL", "lazy-loader": "lazy_loader"}
ABSENT = ("torchvision", "tqdm", "psutil", "IPython", "ipywidgets", "ipykernel", "mlxtend",
          "sklearn", "scipy", "thop", "numba", "jupyter_core", "jupyterlab", "nbformat",
          "nbconvert", "cloudpickle", "joblib", "pytest", "yaml", "platformdirs", "torchinfo",
          "fvcore", "cpuinfo")  # fmt: skip

# Finders for which nothing is installed but what is needed and what that needs.
BARE = """
    import json, sys
    absent = set(json.loads(sys.argv[1]))

    class Bare:
        def __init__(self, finder):
            self.finder = finder

        def find_spec(self, name, path=None, target=None):
            return None if name.partition(".")[0] in absent else self.finder.find_spec(name, path, target)

        def __getattr__(self, name):
            return getattr(self.finder, name)

    sys.meta_path[:] = [Bare(finder) for finder in sys.meta_path]
"""  # noqa: E501


@functools.cache
def installed() -> dict[str, list[str]]:
    """Return the installed distributions by their import names; to read them all takes longer than
    most tests here.
    """
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
        waiting += [
            canonical(re.match(r"[\w.-]+", line).group())
            for line in required
            if "extra ==" not in line
        ]
    return set().union(*(by_distribution[name] for name in known))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def run(program: str, *, bare: bool, folder: Path = ROOT) -> dict:
    """Run ``program`` in a fresh Python that works in ``folder``, and return the JSON that it
    prints last.
    """
    text = (textwrap.dedent(BARE) if bare else "import json, sys\n") + textwrap.dedent(program)
    absent = set(installed()) | set(ABSENT)
    command = [
        sys.executable,
        "-c",
        text,
        json.dumps(sorted(absent - bare_packages() - {"helpers"})),
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_bare_machine_has_what_is_needed_and_not_the_rest():
    packages = bare_packages()
    assert {IMPORTED_AS.get(name, name) for name in NEEDED} <= packages
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
    assert {
        "helpers.units",
        "helpers.storage",
        "helpers.isolation",
        "helpers.isolation._child",
    } <= set(found["names"])


def test_the_core_dependencies_are_what_modules_import_outside_of_functions():
    imported = set()
    for path in (ROOT / "helpers").rglob("*.py"):
        body = ast.parse(path.read_text()).body
        tried = (node for block in body if isinstance(block, ast.Try) for node in block.body)
        for node in (*body, *tried):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.partition(".")[0])
    foreign = imported - sys.stdlib_module_names - {"helpers"}
    assert foreign == {IMPORTED_AS.get(name, name) for name in NEEDED}


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
        f"import helpers.{module}; print(json.dumps(sorted({{'torch', 'pandas', 'matplotlib'}} & "
        "set(sys.modules))))"
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


MOVED = {
    "parallel.Ranks": "ranks.Ranks",
    "parallel.Link": "links.Link",
    "parallel.execute": "studies.data_parallel.execute",
    "operations.count_with_peers": "studies.peers.count_with_peers",
    "memory.sum_of_outputs": "steps.sum_of_outputs",
    "profile_mem": "studies.working_set.profile_mem",
    "training.estimate_training_for": "studies.beyond_memory.estimate_training_for",
    "sources": "studies.sgd_parallelism",
    "access": "studies.data_movement",
}


@pytest.mark.parametrize("old", MOVED)
def test_a_name_that_has_moved_is_found_and_says_so_once(old):
    program = f"""
        import json, operator, warnings
        import helpers, helpers.links, helpers.ranks, helpers.studies
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = [operator.attrgetter({old!r})(helpers) for _ in range(2)]
        same = all(one is operator.attrgetter({MOVED[old]!r})(helpers) for one in found)
        print(json.dumps([same, [str(one.message) for one in said]]))
    """
    same, said = run(program, bare=False)
    assert same
    assert said == [f"helpers.{old} is helpers.{MOVED[old]} now; write helpers.{MOVED[old]}"]


def test_what_has_moved_is_on_no_face():
    assert {"sources", "access"}.isdisjoint(dir(helpers))
    assert {"Ranks", "execute"}.isdisjoint(dir(helpers.parallel))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel that hatchling builds from this tree, as `uv build --wheel` does, without the
    network.
    """
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(folder),
    ]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_holds_every_file_of_the_library_and_its_version(wheel):
    tracked = subprocess.run(
        ["git", "ls-files", "helpers"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = set(wheel.namelist())
    assert {name for name in tracked.stdout.split() if (ROOT / name).exists()} <= names
    assert "helpers/py.typed" in names
    assert not [
        name
        for name in names
        if not name.startswith(("helpers/", "deep_learning_hardware_course-"))
    ]
    assert wheel.filename.endswith(f"-{helpers.__version__}-py3-none-any.whl")
    assert f"## {helpers.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_the_readmes_lines_run_from_the_wheel_in_an_empty_folder_on_a_bare_machine(wheel, tmp_path):
    [lines] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(re.findall(r"helpers\.\w+\(", lines)) == 5
    wheel.extractall(tmp_path / "installed")
    (tmp_path / "empty").mkdir()
    program = f"""
        sys.path[:] = [{str(tmp_path / "installed")!r}, *(path for path in sys.path if path != {str(ROOT)!r})]
        exec({lines!r})
        print(json.dumps(helpers.__file__))
    """  # noqa: E501
    assert run(program, bare=True, folder=tmp_path / "empty") == str(
        tmp_path / "installed" / "helpers" / "__init__.py"
    )
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_readme_shows_what_its_lines_print():
    """But for the lines that it leaves out, each block of its lines stands so in the output, in the
    same order.
    """
    readme = (ROOT / "README.md").read_text()
    [shown] = re.findall(r"```text\n(.*?)```", readme, re.S)
    [lines] = re.findall(r"```python\n(.*?)```", readme, re.S)
    # times differ
    counted = "\n".join(line for line in lines.splitlines() if "profile_time" not in line)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(counted, {})
    output, blocks = printed.getvalue(), [block for block in shown.split("...\n") if block]
    places = [output.find(block) for block in blocks]
    assert len(blocks) == 3
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize(
    "package",
    [
        "helpers",
        "helpers.hardware",
        "helpers.memory",
        "helpers.operations",
        "helpers.parallel",
        "helpers.plotting",
        "helpers.training",
    ],
)
def test_a_name_that_moved_is_found_and_warns_once_of_the_new_one(package, monkeypatch):
    face = importlib.import_module(package)
    assert face._MOVED
    for name, new in face._MOVED.items():
        monkeypatch.delitem(vars(face), name, raising=False)
        with pytest.warns(
            FutureWarning, match=re.escape(f"{package}.{name} is {new.replace(':', '.')} now")
        ):
            found = getattr(face, name)
        module, _, attribute = new.partition(":")
        there = importlib.import_module(module)
        assert found is (getattr(there, attribute) if attribute else there)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert getattr(face, name) is found
        monkeypatch.delitem(vars(face), name)
