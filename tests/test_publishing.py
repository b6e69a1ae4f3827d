"""What a stranger needs: a licence, where things come from, how to cite, one version, an address
once it is known.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml
from packaging.licenses import canonicalize_license_expression

import helpers
from tools.authoring import pages
from tools.authoring.course import HERE, Course
from tools.authoring.lesson import AuthoringError
from tools.exercises import handout
from tools.reach import address, colab

ROOT = HERE.root
NOTICE = (ROOT / "NOTICE").read_text()
KNOWN = "https://github.com/somebody/a-course"
# Ours by their kind: NOTICE says so in one sentence. Everything else is named there file by file.
CODE_AND_TEXT = {".py", ".pyi", ".c", ".cpp", ".h", ".cu", ".js", ".css", ".sh", ".j2", ".md",
                 ".ipynb", ".mplstyle", ".html", ".typed", ".yml", ".yaml", ".cfg", ".service",
                 ".lock", ".cff", ""}  # fmt: skip
SETTINGS = {"pyproject.toml", "ruff.toml", "conf.json", "package.json", "package-lock.json",
            "overrides.txt", "quick.txt", "long.txt", "devcontainer.json"}  # fmt: skip


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    return [name for name in listed.stdout.decode().splitlines() if (ROOT / name).is_file()]


def named_in_notice() -> list[str]:
    part = NOTICE.partition("Where data come from")[2].partition("What is copied into")[0]
    return [line for line in part.splitlines() if re.fullmatch(r"[a-z]\S*/\S+", line)]


def vendored(name: str) -> dict:
    """Return a schema that check-jsonschema carries, so that none is fetched."""
    return json.loads(
        (
            resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / f"{name}.json"
        ).read_text()
    )


def test_licence_texts_are_whole_and_named_everywhere():
    code, text = (ROOT / "LICENSE").read_text(), (ROOT / "LICENSE-TEXT").read_text()
    assert code.startswith(
        "BSD 3-Clause License\n\nCopyright (c) 2026, the authors of this course\n"
    )
    assert "Neither the name of the copyright holder" in code
    assert "[" not in code  # no place left to fill in
    assert text.startswith("Attribution 4.0 International\n")
    assert [f"Section {number} --" in text for number in range(1, 9)] == [True] * 8
    readme = (ROOT / "README.md").read_text().partition("\n## Licence\n")[2]
    assert all(
        f"]({name})" in readme for name in ("LICENSE", "LICENSE-TEXT", "NOTICE", "CITATION.cff")
    )


def test_the_text_of_the_licence_is_the_official_one():
    """Word by word that of another copy, which a package carries, but for that one's words in its
    title.
    """
    other = (
        resources.files("check_jsonschema")
        / "builtin_schemas/vendor/licenses/LICENSE.citation-file-format"
    )
    plain = str.maketrans({"“": '"', "”": '"', "’": "'", "–": "-"})
    ours, theirs = (
        text.translate(plain).split()
        for text in ((ROOT / "LICENSE-TEXT").read_text(), other.read_text())
    )
    ours = " ".join(["Creative", "Commons", *ours[:3], "Public", "License", *ours[3:]])
    assert ours == " ".join(theirs).replace("More_considerations", "More considerations")


def test_the_project_states_its_licence_as_spdx_and_carries_the_texts():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (
        canonicalize_license_expression(project["license"])
        == project["license"]
        == "BSD-3-Clause AND CC-BY-4.0"
    )
    assert all((ROOT / name).is_file() for name in project["license-files"])
    assert project["license-files"] == ["LICENSE", "LICENSE-TEXT", "NOTICE"]


def test_every_file_of_data_is_named_in_the_notice_and_nothing_else_is():
    data = [
        name
        for name in tracked()
        if Path(name).suffix not in CODE_AND_TEXT and Path(name).name not in SETTINGS
    ]
    patterns = named_in_notice()
    assert len(data) > 15
    assert [name for name in data if not any(fnmatch(name, one) for one in patterns)] == []
    assert [one for one in patterns if not any(fnmatch(name, one) for name in data)] == []


def test_a_file_that_the_notice_does_not_name_is_seen():
    assert not any(fnmatch("helpers/hardware/prices.toml", one) for one in named_in_notice())


def test_a_table_under_a_licence_of_others_names_it_in_the_notice():
    sources = tomllib.loads((ROOT / "helpers/studies/history/history.toml").read_text())["sources"]
    assert "CC BY 4.0" in sources["rupp"][0]
    assert [
        words
        for words in (sources["rupp"][1], "Karl Rupp", "BY 4.0", "Epoch AI")
        if words not in NOTICE
    ] == []


def test_the_citation_is_valid_and_invents_nobody():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    jsonschema.validate(cited, vendored("citation-file-format"))
    assert cited["authors"] == [{"name": "the authors of this course"}]
    assert (
        " AND ".join(cited["license"])
        == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    )
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**cited, "authors": []}, vendored("citation-file-format"))


def test_the_version_stands_in_one_place():
    assert helpers.__version__ == "1.0.0"
    stated = re.compile(rf"(?<![\d.]){re.escape(helpers.__version__)}(?![\d.])")
    kinds = {".py", ".md", ".toml", ".yml", ".yaml", ".cff", ""}
    places = [
        name
        for name in tracked()
        if Path(name).suffix in kinds and stated.search((ROOT / name).read_text())
    ]
    assert sorted(places) == ["CHANGELOG.md", "helpers/__init__.py", "tests/test_publishing.py"]


def test_a_release_begins_with_the_owners_word():
    steps = (
        (ROOT / "CONTRIBUTING.md")
        .read_text()
        .partition("### Make a release\n")[2]
        .partition("\n###")[0]
    )
    assert steps.strip().startswith("1. **The owner confirms**")


# -------------------------------------------------------------------------- other people's machines

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps(workflow: Path) -> list[dict]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_valid_and_runs_what_there_is(workflow):
    text = workflow.read_text()
    assert text.startswith("# Not tried yet")
    jsonschema.validate(
        yaml.safe_load(text.replace("\non:", '\n"on":')), vendored("github-workflows")
    )
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert commands
    assert set(re.findall(r"\bmake ([a-z]+)", " ".join(commands))) <= TARGETS
    named = re.findall(r"(?:course|tests)/[\w./]+|\.ci/run|requirements\.lock", " ".join(commands))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_without_make_the_commands_are_those_of_make_check():
    recipe = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    ours = [line.strip().removeprefix("$(BIN)/") for line in recipe.splitlines()[1:]]
    ours = [
        line.replace(" --numprocesses auto --maxprocesses 2", "").replace(
            "@tests/quick.txt", '"@tests/quick.txt"'
        )
        for line in ours
    ]
    theirs = [step["run"] for step in steps(ROOT / ".github/workflows/check.yml") if "run" in step]
    assert ours == theirs[theirs.index("ruff check --quiet") :][: len(ours)]
    assert "course/00_start_here.ipynb course/02_compute_and_roofline.ipynb" in theirs[-1]


def test_the_container_is_not_roots_and_sets_up_for_the_cpu():
    lines = (ROOT / ".binder" / "Dockerfile").read_text().splitlines()
    words = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert [given for word, given in words if word == "FROM"] == ["python:3.11-slim"]
    users = [given for word, given in words if word == "USER"]
    assert users == ["${NB_USER}"]
    made = words.index(["RUN", "make copy CPU=1"])
    assert made > words.index(["USER", "${NB_USER}"])
    assert [given.rpartition(" ")[2] for word, given in words[made + 1 :] if word == "RUN"] == [
        "notebook"
    ]
    kept_out = (ROOT / ".dockerignore").read_text().split()
    assert {".venv", "_build", "my_course"} <= set(kept_out)
    assert (
        json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())["postCreateCommand"]
        == words[made][1]
    )


@pytest.mark.parametrize("makefile", ["Makefile", "tools/exercises/students/Makefile"])
def test_a_small_torch_is_taken_where_it_is_asked_for(makefile, tmp_path):
    shutil.copy(ROOT / makefile, tmp_path / "Makefile")
    for name in ("pyproject.toml", "requirements.lock", "overrides.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def planned(*words: str) -> list[str]:
        done = subprocess.run(
            ["make", "-n", "setup", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return [
            line.partition(" overrides.txt ")[2].strip()
            for line in done.stdout.splitlines()
            if "--override" in line
        ]

    assert planned() == ["--editable '.[course]'"]
    small, tools = planned("CPU=1")
    assert small == "--torch-backend=cpu --editable '.[course]'"
    assert planned("CPU=1", "CUDA_TOOLS=") == [small]
    locked = {
        line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()
    }
    assert {word.strip("'").partition(";")[0] for word in re.findall(r"'[^']+'", tools)} <= locked
    assert not re.search(r"https?:", (tmp_path / "Makefile").read_text())


# -------------------------------------------------------------------------------------- the address


def shown(root: Path) -> list[str]:
    """Return what of a page needs the address: badges, lines that fetch, links to the
    repository.
    """
    pages = [
        root / "README.md",
        root / "CITATION.cff",
        root / "pyproject.toml",
        *(root / "course").glob("*.md"),
    ]
    texts = [page.read_text() for page in pages]
    # what is written in them: a picture's code may hold any letters
    for path in (root / "course").glob("**/*.ipynb"):
        texts += ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
    wanted = r"colab\.research|mybinder\.org|git\+|git clone|repository-code|\[project\.urls\]"
    return [found for text in texts for found in re.findall(wanted, text)]


@pytest.fixture
def copy(tmp_path) -> Course:
    for name in ("README.md", "CITATION.cff", "pyproject.toml", "course"):
        source = ROOT / name
        shutil.copytree(source, tmp_path / name) if source.is_dir() else shutil.copy(
            source, tmp_path
        )
    made = Course(tmp_path)
    address.fill(made, "")
    return made


def test_while_the_address_is_unknown_nothing_shows_one():
    assert HERE.address == ""
    assert shown(ROOT) == []
    with pytest.raises(AuthoringError, match="address is not known yet"):
        colab.write(HERE, ROOT / "_build" / "colab")


def test_one_command_fills_all_in_and_takes_all_out_again(copy):
    before = {
        path: path.read_text()
        for path in copy.root.rglob("*")
        if path.suffix in {".md", ".cff", ".toml"}
    }
    changed = address.fill(copy, KNOWN)
    assert {path.name for path in changed} == {"README.md", "CITATION.cff", "pyproject.toml"}
    assert copy.address == KNOWN
    readme = copy.readme.read_text()
    for lesson in copy.lessons():
        assert f"/github/somebody/a-course/blob/colab/course/{lesson.notebook_name})" in readme
        assert f"urlpath=lab/tree/my_course/{lesson.notebook_name})" in readme
    assert f"git clone {KNOWN}\n" in readme
    cited = yaml.safe_load((copy.root / "CITATION.cff").read_text())
    jsonschema.validate(cited, vendored("citation-file-format"))
    assert cited["repository-code"] == KNOWN
    # as the check of the pages wants it
    assert pages.with_table(readme, copy.lessons(), address=KNOWN) == readme
    assert address.fill(copy, KNOWN) == []
    address.fill(copy, "")
    assert before == {path: path.read_text() for path in before}


@pytest.mark.parametrize(
    "wrong",
    [
        "github.com/a/b",
        "https://example.org/a/b",
        f"{KNOWN}/",
        f"{KNOWN}.git",
        "https://github.com/a",
    ],
)
def test_an_address_that_no_badge_could_open_changes_nothing(copy, wrong):
    before = copy.readme.read_text()
    with pytest.raises(AuthoringError):
        address.fill(copy, wrong)
    assert copy.readme.read_text() == before


# ------------------------------------------------------------------------------------- Colab's cell


def test_in_colab_alone_a_first_cell_stands_in_each_notebook(monkeypatch, tmp_path):
    monkeypatch.setattr(Course, "address", KNOWN)
    # seconds, and tests/exercises tests it
    monkeypatch.setattr(handout, "leaks", lambda tree, known: [])
    tree = colab.write(HERE, tmp_path / "colab")
    notebooks = sorted(tree.glob("course/**/*.ipynb"))
    assert len(notebooks) > 2 * len(HERE.lessons())
    for path in notebooks:
        first = json.loads(path.read_text())["cells"][0]
        assert first["id"] == "in-colab"
        assert f'"{KNOWN}"' in "".join(first["source"])
    assert (tree / "LICENSE-TEXT").is_file()
    everywhere = [path for path in ROOT.glob("course/**/*.ipynb") if "in-colab" in path.read_text()]
    assert everywhere == []


def test_the_first_cell_fetches_once_installs_what_lacks_and_enters_the_course(
    tmp_path, monkeypatch, capsys
):
    """On a real branch, cloned by git; pip is the one thing that is not run."""
    branch = tmp_path / "branch"
    (branch / "course").mkdir(parents=True)
    (branch / "course" / "lesson.txt").write_text("here")
    (branch / "pyproject.toml").write_text(
        '[project]\ndependencies = ["numpy>=99", "Thop2>=0.1"]\n'
        'optional-dependencies = { course = ["jupyterlab>=4", "jupyter-client>=8", "mlx2 >=1"] }\n'
    )
    git = ["git", "-C", str(branch), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (
        ["init", "--quiet", "--initial-branch=colab"],
        ["add", "."],
        ["commit", "--quiet", "--message=a"],
    ):
        subprocess.run([*git, *words], check=True)
    text = colab.first_cell(branch.as_uri()).replace("/content/", f"{tmp_path}/content/")
    really, called = subprocess.run, []

    def run(command, **options):
        called.append(command)
        return really(command, **options) if command[0] == "git" else None

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        exec(text, {})
        assert Path("lesson.txt").read_text() == "here"
    assert [command[0] for command in called] == ["git", sys.executable, sys.executable]
    # numpy is there, whatever its version, and stays: nothing that is installed may bring another
    # one along
    assert called[1][-4:] == [
        "--no-deps",
        str(tmp_path / "content" / "course_files"),
        "Thop2>=0.1",
        "mlx2 >=1",
    ]
    assert capsys.readouterr().out == "installed besides the course: Thop2>=0.1, mlx2 >=1\n" * 2
