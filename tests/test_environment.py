"""The two roads in agree: environment.yml, pyproject.toml, requirements.lock and what is
installed.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import rattler
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
CONDA_NAMES = {"torch": "pytorch", "jupyter-client": "jupyter_client"}
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
# torch brings Triton where it runs; the next two are looked for and done without; the last is
# written on the server.
NOT_DECLARED = {"triton", "deepspeed", "pynvml", "course_exchange"}
STUDENT_PACKAGES = {"jupyterlab", "torch", "torchvision", "matplotlib", "ipywidgets", "thop"}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def student_requirements() -> list[Requirement]:
    core, extras = (project()["project"][key] for key in ("dependencies", "optional-dependencies"))
    return [Requirement(line) for line in (*core, *extras["course"])]


def environment() -> tuple[dict[str, str], dict[str, str]]:
    """Return conda's and pip's packages of environment.yml, each a map from name to range."""
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    conda = [entry for entry in entries if isinstance(entry, str)]
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    return _ranges(conda), _ranges([line for line in pip if not line.startswith("--")])


def _ranges(lines: list[str]) -> dict[str, str]:
    split = [re.fullmatch(r"([A-Za-z0-9_.-]+?)\s*([<>=].*)", line) for line in lines]
    return {match[1]: match[2] for match in split}


def locked() -> dict[str, list[Requirement]]:
    """Return the lock's lines by canonical name; a package may stand there once a platform."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pinned: dict[str, list[Requirement]] = {}
    for line in lines:
        if line and not line.lstrip().startswith("#"):
            requirement = Requirement(line)
            pinned.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return pinned


def declared(*groups: str) -> set[str]:
    """Return what the library, its extra and some groups declare, groups within groups included."""
    known = project()["dependency-groups"]

    def of(group: str) -> set[str]:
        lines = known[group]
        names = {
            canonicalize_name(Requirement(line).name) for line in lines if isinstance(line, str)
        }
        return names.union(*(of(line["include-group"]) for line in lines if isinstance(line, dict)))

    return {canonicalize_name(requirement.name) for requirement in student_requirements()}.union(
        *map(of, groups)
    )


def imported_by(folder: str) -> set[str]:
    """Return the top-level names that the modules of a folder import, its own left out."""
    found, own = set(), {"helpers", "slides", "tools", "tests"}
    for path in (ROOT / folder).rglob("*.py"):
        own |= {path.stem, path.parent.name}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.partition(".")[0])
    return found - own - sys.stdlib_module_names


@pytest.mark.parametrize(
    ("folder", "groups"),
    [
        ("helpers", ["peers"]),
        ("slides", ["teach"]),
        ("tools", ["test"]),
        ("tests", ["test", "peers"]),
    ],
)
def test_what_is_imported_is_declared_by_itself(folder, groups):
    """And does not merely come along with something else, which may let it go."""
    # a peer need not be here
    bringing = {"cpuinfo": ["py-cpuinfo"], **importlib.metadata.packages_distributions()}
    known = declared(*groups)
    undeclared = [
        name
        for name in imported_by(folder) - NOT_DECLARED
        if known.isdisjoint(map(canonicalize_name, bringing.get(name, [name])))
    ]
    assert undeclared == []


def test_conda_environment_has_the_projects_names_and_ranges():
    conda, pip = environment()
    wanted = {r.name: ",".join(sorted(map(str, r.specifier))) for r in student_requirements()}
    given = {
        name: ",".join(sorted(spec.split(",")))
        for name, spec in (conda | pip).items()
        if name not in ("python", "pip")
    }
    assert given == {CONDA_NAMES.get(name, name): spec for name, spec in wanted.items()}
    assert conda["python"] == project()["project"]["requires-python"]


def test_student_packages_are_all_there():
    assert {r.name for r in student_requirements()} >= STUDENT_PACKAGES


def test_conda_channels_are_conda_forge_alone():
    channels = yaml.safe_load((ROOT / "environment.yml").read_text())["channels"]
    assert [name for name in channels if name != "nodefaults"] == ["conda-forge"]


def test_conda_reads_every_line():
    conda, _ = environment()
    for name, spec in conda.items():
        parsed = rattler.MatchSpec(f"{name}{spec}")
        assert parsed.name.normalized == name
        assert parsed.version is not None


def test_both_roads_install_the_helpers_editable():
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert "--editable .[course]" in next(
        entry["pip"] for entry in entries if isinstance(entry, dict)
    )
    assert "--editable '.[course]'" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("requirement", student_requirements(), ids=lambda r: r.name)
def test_installed_version_is_in_range_and_is_the_locked_one(requirement: Requirement):
    installed = importlib.metadata.version(requirement.name)
    public = installed.split("+")[0]
    assert requirement.specifier.contains(public, prereleases=True)
    pins = [
        pin
        for pin in locked()[canonicalize_name(requirement.name)]
        if pin.marker is None or pin.marker.evaluate()
    ]
    assert [Version(public)] == [Version(str(pin.specifier).removeprefix("==")) for pin in pins]


def test_everything_installed_is_what_the_lock_says():
    pins = {
        name: pin
        for name, options in locked().items()
        for pin in options
        if pin.marker is None or pin.marker.evaluate(default_environment())
    }
    wrong = []
    # Only what stands in the environment itself: setuptools, once imported, puts its vendored
    # packages on the path.
    for distribution in importlib.metadata.distributions(path=[sysconfig.get_path("purelib")]):
        name = canonicalize_name(distribution.metadata["Name"])
        if name in pins and not pins[name].specifier.contains(
            distribution.version.split("+")[0], prereleases=True
        ):
            wrong.append(f"{name} {distribution.version}, locked {pins[name].specifier}")
    assert not wrong


def test_what_is_left_out_is_not_locked():
    """And what asks for it does without: else a notebook could not be read."""
    lines = (ROOT / "overrides.txt").read_text().splitlines()
    left_out = [Requirement(line) for line in lines if not line.startswith("#")]
    assert left_out
    assert not [
        one for one in left_out if one.marker.evaluate() or canonicalize_name(one.name) in locked()
    ]


def test_lock_names_no_host():
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert "index" not in re.sub(r"#.*", "", text)


def test_helpers_are_this_trees_from_any_folder(tmp_path):
    show = "import helpers; print(helpers.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", show], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()) == ROOT / "helpers" / "__init__.py"


def test_an_interrupted_setup_is_taken_up_again(tmp_path):
    """A `python` that is there without its stamp, as after a set-up that failed half-way, does not
    stop make.
    """
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "overrides.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    planned = subprocess.run(
        ["make", "-n", "setup"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert "-m venv .venv" in planned
    assert "pip install" in planned


def test_make_help_lists_every_public_target_on_a_line():
    text = (ROOT / "Makefile").read_text()
    printed = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    phony = set(re.search(r"^\.PHONY:(.*)$", text, re.M)[1].split())
    assert {line.split()[1] for line in printed.splitlines()} == phony


def test_the_map_shows_the_rooms_in_the_enforced_order():
    contracts = project()["tool"]["importlinter"]["contracts"]
    layers = {
        contract["containers"][0]: contract["layers"]
        for contract in contracts
        if "containers" in contract
    }
    for top, enforced in layers.items():
        part = re.search(rf"^{top}/.*?(?=^[a-z]+/)", CONTRIBUTING, re.M | re.S).group()
        rooms = [room for line in part.splitlines() for room in line[10:33].split()]
        assert rooms == [layer.strip("()") for layer in enforced]


def test_contributing_names_what_there_is():
    code = re.findall(r"`([^`\n]+)`", CONTRIBUTING)
    paths = [
        text
        for text in code
        if re.fullmatch(r"(?:[a-z_]+/)+[\w./]*|\w+\.(?:md|toml)", text) and "NN" not in text
    ]
    assert len(paths) > 25
    assert [path for path in paths if not (ROOT / path).exists()] == []
    targets = set(re.findall(r"[`(]make ([a-z]+)", CONTRIBUTING))
    assert targets <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def test_imports_keep_the_order():
    result = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.ci
def test_types_agree():
    result = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_code_is_clean_and_formatted():
    check = subprocess.run(
        [sys.executable, "-m", "ruff", "check"], cwd=ROOT, capture_output=True, text=True
    )
    layout = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stdout
    assert layout.returncode == 0, layout.stdout
