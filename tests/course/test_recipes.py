"""The three recipes of the instructor's page, followed to the letter: its commands, with files
where it puts them.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.course.grading_samples import ASSIGNMENT, SHEET, notebook
from tests.course.test_grading_lms import CANVAS_BOOK, MOODLE_SHEET, packed
from tools.authoring import __main__ as authoring
from tools.authoring.course import HERE
from tools.grading import __main__ as grading, table

PAGE = (HERE.folder / "instructor" / "instructor.md").read_text(encoding="utf-8")
POINTS = table.points_of(SHEET)
CODE = sum(points for name, points in POINTS.items() if name not in SHEET.written)
WORK = nbformat.writes(notebook()).encode()

pytestmark = [
    pytest.mark.usefixtures("working_sandbox"),
    pytest.mark.filterwarnings("ignore:Object of type:Warning"),
]


def recipe(title: str) -> list[list[str]]:
    """Return the five lines of a recipe, each as what stands in it as code."""
    section = PAGE.partition(f"\n### {title}\n")[2].partition("\n###")[0]
    lines = [line for line in section.splitlines() if re.match(r"\d\. ", line)]
    assert [line[:2] for line in lines] == ["1.", "2.", "3.", "4.", "5."]
    return [re.findall(r"`([^`]+)`", line) for line in lines]


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """The lecturer's home, with the clone and the class in it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "class").mkdir()
    (tmp_path / "course").symlink_to(HERE.root)
    return tmp_path


def follow(command: str) -> None:
    """Run a line `make grade ...`: what make would run, in this process, which has loaded what
    grades.
    """
    words = [
        str(Path(word).expanduser()) if word.startswith("~") else word
        for word in shlex.split(command)
    ]
    words = [re.sub("=~", f"={Path.home()}", word) for word in words]
    done = subprocess.run(
        [words[0], "-n", *words[1:]], cwd=HERE.root, capture_output=True, text=True, check=True
    )
    [line] = [line for line in done.stdout.splitlines() if " -m tools.grading " in line]
    assert grading.main(shlex.split(line.partition(" -m tools.grading ")[2])) == 0


@pytest.mark.parametrize(
    ("system", "files", "roster", "column"),
    [
        (
            "Canvas",
            {f"doejane_1201_88001_{ASSIGNMENT}.ipynb": WORK},
            CANVAS_BOOK,
            f"{ASSIGNMENT} (4711)",
        ),
        pytest.param(
            "Moodle",
            {f"Jane Doe_501_assignsubmission_file/{ASSIGNMENT}.ipynb": WORK},
            MOODLE_SHEET,
            "Grade",
            marks=pytest.mark.ci,
        ),
    ],
)
def test_what_a_system_packs_comes_back_as_what_it_imports(
    home, capsys, system, files, roster, column
):
    first, second, third, fourth, last = recipe(system)
    assert first[0] == "make student"
    assert f"_build/student/course/exercises/{SHEET.lesson.notebook_name}" in first
    archive, listed = (Path(name).expanduser() for name in second)
    packed(archive, files)
    listed.write_text(roster)
    [command] = third
    follow(command)
    [folder] = {
        Path(word.removeprefix("cd ")).expanduser() for word in fourth if word.startswith("cd ")
    }
    assert (folder / "gradebook.db").is_file()
    imported, pages = (Path(name).expanduser() for name in last)
    with imported.open(encoding="utf-8") as file:
        jane = next(row for row in csv.DictReader(file) if "Jane" in str(row.values()))
    # empty: written answers wait for line 4, and only final grades are imported
    assert column in jane
    assert len(list(pages.glob("*/*/*.html"))) == 1
    with (folder / "grades.csv").open(encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["name"].find("Jane") >= 0)
    assert float(row["score"]) == CODE
    assert "max_score" in row
    capsys.readouterr()


@pytest.mark.ci
def test_a_class_on_an_exchange_gets_its_pages_back(home, monkeypatch, capsys):
    exchange = home / "exchange"
    exchange.mkdir(mode=0o777)
    exchange.chmod(0o777)
    (home / ".jupyter").mkdir()  # as `make server` sets a machine up
    shutil.copy(
        HERE.root / "tools" / "server" / "exchange.py", home / ".jupyter" / "course_exchange.py"
    )
    settings = (HERE.root / "tools" / "server" / "nbgrader_config.py").read_text(encoding="utf-8")
    settings = settings.replace("@EXCHANGE@", str(exchange)).replace("@PREFIX@", "")
    (home / ".jupyter" / "nbgrader_config.py").write_text(settings, encoding="utf-8")
    # activated
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    for name in [name for name in os.environ if name.startswith("JUPYTER_")]:
        monkeypatch.delenv(name)

    def nbgrader(command: str, folder: Path) -> None:
        words = shlex.split(command)
        assert words[0] == "nbgrader"
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr[-2000:]

    first, second, third, fourth, last = recipe("nbgrader's exchange")
    make_source, enter, generate = first
    assert make_source.startswith("python -m tools.authoring ")
    given = shlex.split(make_source.replace("~", str(home)))[3:]
    assert authoring.main([*given, "02"]) == 0  # every lesson's: the same, and longer
    folder = Path(enter.removeprefix("cd ")).expanduser()
    nbgrader(generate, folder)
    nbgrader(second[0], folder)
    student = home / "student"
    student.mkdir()
    nbgrader(f"nbgrader fetch_assignment {ASSIGNMENT}", student)
    (student / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").write_bytes(WORK)
    nbgrader(f"nbgrader submit {ASSIGNMENT}", student)
    nbgrader(third[0], folder)
    follow(fourth[0])
    nbgrader(last[0], folder)
    nbgrader(f"nbgrader fetch_feedback {ASSIGNMENT}", student)
    [page] = student.glob(f"{ASSIGNMENT}/feedback/*/*.html")
    assert "roofline_time" in page.read_text()
    capsys.readouterr()
