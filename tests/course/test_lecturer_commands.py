"""Every command that README, support.md and the instructor's page print is there: tool, target,
options and files.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from nbgrader.apps import NbGraderApp

from tools.authoring import __main__ as authoring
from tools.authoring.course import HERE
from tools.exercises import sheets
from tools.grading import __main__ as grading
from tools.server import __main__ as server

PAGES = (
    HERE.root / "README.md",
    HERE.folder / "support.md",
    HERE.folder / "instructor" / "instructor.md",
)
MAKEFILE = (HERE.root / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([\w./-]+):(?!=)", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"\$\((\w+)\)", MAKEFILE))
NUMBERS = {lesson.number for lesson in HERE.lessons()}
NOTEBOOKS = {sheet.lesson.notebook_name for sheet in sheets.load(HERE)}
# nbgrader lists it, and all that it does is to say that it is no command any more
GONE = {"formgrade"}
# others' tools, whose own manuals hold for them; of what they are given the repository's files are
# still looked up
OTHERS = {"apt-get", "cd", "chmod", "conda", "cp", "echo", "git", "mkdir", "passwd", "source",
          "ssh", "systemctl", "tljh-config", "uv", "wsl"}  # fmt: skip
PYTHONS = {"python", "python3", ".venv/bin/python", "/opt/tljh/user/bin/python"}
# what is built, and what the reader adds
LATER = ("_build/", ".venv")

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:make|nbgrader|jupyter|python3?|sudo|\.venv/bin/python) [^`]+)`")
_OURS = re.compile(
    r"(?:\./)?((?:course|tools|tests|slides|helpers|_build|\.venv)/[\w./-]+|requirements\.lock|environment\.yml)"
)


def commands(text: str) -> list[str]:
    """Return the lines of the blocks of code on a page, and the commands within its sentences."""
    lines = [
        line
        for language, block in _BLOCK.findall(text)
        if not language
        for line in block.splitlines()
    ]
    return [line for line in [*lines, *_INLINE.findall(_BLOCK.sub("", text))] if line.strip()]


def fault(command: str) -> str:
    """Return why a command cannot be run as it stands, or ""."""
    words = shlex.split(command, comments=True)
    while words and (words[0] == "sudo" or re.fullmatch(r"[A-Z_]+=\S*", words[0])):
        words = words[1:]
    tool, given = words[0], words[1:]
    if not given and tool.endswith(".ipynb"):
        return "" if Path(tool).name in NOTEBOOKS else f"no lesson has {Path(tool).name}"
    missing = [
        path
        for path in map(_ours, given)
        if path and not path.startswith(LATER) and not _exists(path)
    ]
    if missing:
        return f"there is no {missing[0]}"
    if tool == "make":
        return _fault_of_make(given)
    if tool == "nbgrader":
        return _fault_of_nbgrader(given)
    if tool in PYTHONS:
        return _fault_of_python(given)
    if tool == "jupyter":
        return "" if given[0] == "lab" else f"jupyter {given[0]} is not what opens the course"
    return "" if Path(tool).name in OTHERS else f"{tool} is no tool that this test knows"


def _ours(word: str) -> str:
    found = _OURS.fullmatch(word)
    return found[1] if found else ""


def _exists(path: str) -> bool:
    return (HERE.root / path).exists()


def _fault_of_make(given: list[str]) -> str:
    if given[0] == "-C":
        given = given[2:]
    target, *rest = given
    if target not in TARGETS:
        return f"the Makefile has no target {target}"
    unread = [word for word in rest if word.partition("=")[0] not in VARIABLES]
    return f"the Makefile reads no {unread[0]}" if unread else ""


def _fault_of_nbgrader(given: list[str]) -> str:
    name, *rest = given
    app, described = NbGraderApp.subcommands.get(name, (None, ""))
    if app is None or name in GONE or "DEPRECATED" in described:
        return f"nbgrader has no command {name}"
    options = {*app.flags, *app().aliases}
    unknown = [
        word for word in rest if word.startswith("--") and word[2:].partition("=")[0] not in options
    ]
    strange = [word for word in rest if word[:1].isdigit() and f"{word}.ipynb" not in NOTEBOOKS]
    return " ".join([*unknown, *strange] and [f"nbgrader {name} knows no", *unknown, *strange])


def _fault_of_python(given: list[str]) -> str:
    if given[0] != "-m":
        return f"python {given[0]} is not how the course is run"
    module, rest = given[1], given[2:]
    # an environment made by uv has none
    if module != "pip" and importlib.util.find_spec(module) is None:
        return f"there is no module {module}"
    try:
        if module == "tools.authoring":
            authoring._options().parse_args(rest)
        elif module == "tools.server":
            server._options().parse_args(rest)
        elif module == "tools.grading":
            grading._options().parse_args(rest)
    except SystemExit as stop:
        return f"python -m {module} refuses {rest}" if stop.code else ""
    strange = [word for word in rest if re.fullmatch(r"\d\d", word) and word not in NUMBERS]
    return f"there is no lesson {strange[0]}" if strange else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_the_page_is_there(page):
    found = commands(page.read_text(encoding="utf-8"))
    assert len(found) > (1 if page.name == "support.md" else 8)
    assert {command: why for command in found if (why := fault(command))} == {}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("nbgrader formgrader", "no command formgrader"),
        ("nbgrader formgrade", "no command formgrade"),
        ("nbgrader collect --newest 00_start_here_exercises", "--newest"),
        ("nbgrader collect 00_begin_exercises", "00_begin_exercises"),
        ("make marks SUBMISSIONS=a", "no target marks"),
        ("make -C ~/course grade SUBMISSION=a", "reads no SUBMISSION=a"),
        ("python -m tools.authoring nbgrader --dir ~/class", "refuses"),
        ("sudo .venv/bin/python -m tools.server ad ada", "refuses"),
        ("python -m tools.grading --again ~/class/submitted", "refuses"),
        ("python -m tools.grader ~/class", "no module"),
        ("python -m slides.pdf 99", "no lesson 99"),
        ("python -m pytest tests/exercise", "no tests/exercise"),
        ("sudo cp tools/server/small/config.yaml /opt", "no tools/server/small/config.yaml"),
        ("~/class/submitted/STUDENT/00_begin_exercises.ipynb", "no lesson has"),
        ("jupyter formgrader", "not what opens"),
        ("nbgraders collect", "no tool"),
    ],
)
def test_a_command_that_is_not_there_is_seen(command, said, capsys):
    assert said in fault(command)
    capsys.readouterr()


def test_the_commands_of_a_page_are_all_found():
    page = "Run `make a` or `sudo make b` in `folder`.\n\n```\nmake c  # d\n\nmake e\n```\n"
    assert commands(page) == ["make c  # d", "make e", "make a", "sudo make b"]


def test_a_lecturer_finds_the_five_commands_in_the_readme():
    section = (
        PAGES[0]
        .read_text(encoding="utf-8")
        .partition("\n## For lecturers\n")[2]
        .partition("\n## ")[0]
    )
    [(_, block)] = _BLOCK.findall(section)
    assert [line.split()[1] for line in block.splitlines()] == [
        "student",
        "grade",
        "slides",
        "lecture",
        "site",
    ]
