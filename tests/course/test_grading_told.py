"""What the lecturer's table and the student's page tell of odd submissions, and what of this
machine they do not.
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import matplotlib
import nbformat
import pytest

from tests.course.grading_samples import (
    ASSIGNMENT,
    FIRST,
    FULL,
    HEAD,
    KERNEL,
    LAST,
    LIMITS,
    hand_in,
    notebook,
)
from tests.course.test_grading_lms import MOODLE, MOODLE_ROWS, MOODLE_SHEET, completed, lines
from tools.authoring.course import HERE
from tools.grading import grade, outputs, sandbox

MODULE = "%%writefile mine.py\ndef time_s(amount, rate):\n    return amount / rate\n"
USES_IT = f"""import mine
{HEAD}    compute_s, memory_s = mine.time_s(flops, peak), mine.time_s(moved_bytes, bandwidth)
    longer_s = max(compute_s, memory_s)
    waits_for = "memory" if memory_s > compute_s else "compute"
    return longer_s + call_s, "overhead" if call_s > longer_s else waits_for
"""
TURNED = "print('\\u202eabc\\u2066')"
PRINTS_PATHS = """import numpy, helpers, pathlib, sys
print(numpy.__file__, helpers.__file__, sys.prefix, sys.base_prefix, list(pathlib.Path(sys.prefix).parents))
for name in ("1/cmdline", "self/mountinfo", "self/maps"):
    print(pathlib.Path("/proc", name).read_text().replace("\\0", " ")[:4000])
"""  # noqa: E501


@pytest.fixture(scope="module")
def told(tmp_path_factory, working_sandbox):
    """A class graded once: by its students the rows, and the folder."""
    root = tmp_path_factory.mktemp("class")
    folder = root / "submitted"
    own = notebook({FIRST: USES_IT}, before=MODULE)
    hand_in(folder, "own_module", own)
    hand_in(folder, "no_python", notebook({LAST: "def smallest_batch(:\n    return 1"}))
    paths = notebook(
        {
            FIRST: (
                f"{HEAD}    import os, sys\n    return os.path.commonpath([sys.prefix]), "
                "'\\u202eno'"
            )
        },
        before=PRINTS_PATHS,
    )
    paths.cells.insert(0, nbformat.v4.new_code_cell(f"{TURNED}  # \u202e"))
    hand_in(folder, "paths", paths)
    without = notebook()
    without.cells = [
        cell for cell in without.cells if not cell.metadata.nbgrader.grade_id.endswith("_checks")
    ]
    del without.cells[next(i for i, cell in enumerate(without.cells) if cell.cell_type == "code")]
    hand_in(folder, "deleted", without)
    done = grade.grade(folder, root, jobs=2, limits=LIMITS)
    assert done.new == 4
    return {
        one["student"]: one
        for one in csv.DictReader(io.StringIO((root / "grades.csv").read_text()))
    }, root


def page(told, student):
    return (told[1] / "feedback" / student / ASSIGNMENT / f"{ASSIGNMENT}.html").read_text()


def test_a_module_that_a_student_writes_works_as_at_home(told):
    row = told[0]["own_module"]
    assert (row["note"], {name: float(row[name]) for name in FULL}) == ("", FULL)


def test_an_answer_that_is_no_python_is_told_in_the_note(told):
    row = told[0]["no_python"]
    assert float(row[LAST]) == 0
    assert row["note"] == f"{LAST}: its cell raised SyntaxError: invalid syntax"


def test_deleted_cells_are_told_in_the_note(told):
    row = told[0]["deleted"]
    assert {name: float(row[name]) for name in FULL} == FULL
    gone = ", ".join(f"the checks of {name}" for name in (FIRST, KERNEL, LAST))
    assert row["note"] == f"deleted: {gone}, 1 cell that was given; the originals counted"


def test_no_folder_of_this_machine_and_no_turned_text_is_on_a_page(told):
    text = page(told, "paths")
    assert ".../" in text
    assert ".../lib/python" in text
    assert "gave ('...', '\\u202eno'), expected" in text.replace("&#39;", "'")
    assert "--ro-bind .../helpers .../helpers" in text
    for folder in (
        Path(sys.prefix),
        Path(sys.base_prefix),
        HERE.root,
        Path(matplotlib.get_cachedir()),
    ):
        assert not [
            up
            for up in (folder, folder.resolve(), *folder.resolve().parents[:-2])
            if f"{up}/" in f"{text}/" and not up.is_relative_to("/usr")
        ]
    assert not {"\u202e", "\u2066"} & set(text)
    assert "\ufffdabc\ufffd" in text


@pytest.mark.parametrize("code", [0x202A, 0x202E, 0x2066, 0x2069, 0x200F, 0x61C, 0x85, 0x9B])
def test_a_character_that_turns_text_or_steers_a_terminal_is_shown_as_a_sign(code):
    assert outputs.printable(f"a{chr(code)}b") == "a\ufffdb"


def test_only_whole_names_of_folders_are_shortened():
    above = sandbox.without_folders(f"{HERE.root.parent}/s")
    assert (
        sandbox.without_folders(f"{HERE.root}/a {HERE.root}s/b")
        == f".../a {above[:-1]}{HERE.root.name}s/b"
    )
    assert sandbox.without_folders("/usr/lib/a") == "/usr/lib/a"


@pytest.mark.parametrize("name", ["=2+2", "@SUM(1)", "-2+3", "+1+1", "\t=1"])
def test_what_moodle_imports_holds_no_formula(tmp_path, name):
    people, rows = completed(tmp_path, MOODLE, MOODLE_SHEET.replace("Jane Doe", name), MOODLE_ROWS)
    people.write_imports(tmp_path, rows, set())
    header, *students = lines(tmp_path / f"grades_for_moodle_{ASSIGNMENT}.csv")
    cells = [one[header.index("Full name")] for one in students]
    assert f"'{name}" in cells
    assert not [
        cell for one in students for cell in one if cell[:1] in tuple("=+-@\t") and cell != "-"
    ]


def test_grading_without_what_it_needs_says_what_is_missing(tmp_path):
    start = (
        "import sys; sys.modules['sqlalchemy'] = None; from tools.grading.__main__ import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", start, str(tmp_path)], capture_output=True, text=True, cwd=HERE.root
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: sqlalchemy")
    assert "make grade SUBMISSIONS=folder" in done.stderr
    assert done.stderr.count("\n") == 1
