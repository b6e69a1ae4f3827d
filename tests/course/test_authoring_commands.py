"""The command line says in one line what is wrong, and its exit code tells make."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tools.authoring import __main__ as commands
from tools.authoring.rules import origins
from tools.exercises import handout, sheets


@pytest.fixture
def here(built, monkeypatch):
    monkeypatch.setattr(commands, "HERE", built)
    return built


def test_a_good_course_has_no_problem(here, capsys):
    assert commands.main(["check"]) == 0
    assert capsys.readouterr().out == "0 problem(s)\n"


def test_a_problem_is_printed_and_fails_the_command(here, capsys):
    here.glossary.write_text(here.glossary.read_text().replace("### pair", "### pairing"))
    assert commands.main(["check", "90"]) == 1
    assert capsys.readouterr().out.startswith(
        "90_small_counts.ipynb, cell 0: the link to 'glossary.md#pair' leads to"
    )


def test_functions_behind_compared_values_that_another_processor_may_change_are_named(here, capsys):
    module = here.root / "toy" / "counting.py"
    module.write_text(
        module.read_text().replace("return number // 2,", "return os.cpu_count() and number // 2,")
    )
    origins._library.cache_clear()
    assert commands.main(["check", "90"]) == 0
    origins._library.cache_clear()
    said = (
        r"lesson 90: compared values rest on probes: counting\.halves \(cell [\d, ]+\)\n0 "
        r"problem\(s\)\n"
    )
    assert re.fullmatch(said, capsys.readouterr().out)


def test_an_unknown_lesson_is_one_line_on_stderr(here, capsys):
    assert commands.main(["build", "05"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: no lesson 05; there are 90\n")


def test_a_build_names_what_it_wrote(here, capsys):
    assert commands.main(["build", "90"]) == 0
    assert capsys.readouterr().out == "wrote course/90_small_counts.ipynb\n0 problem(s)\n"


def test_tables_are_printed_and_written(here, capsys):
    here.functions.unlink()
    assert commands.main(["table"]) == 0
    assert "90_small_counts" in capsys.readouterr().out
    assert commands.main(["table", "--readme"]) == 0
    assert (
        "| 90 | [Small counts](course/90_small_counts.ipynb) |  | 5 | nothing |"
        in capsys.readouterr().out
    )
    assert not here.functions.exists()
    assert commands.main(["table", "--write"]) == 0
    assert here.functions.read_text().startswith("# Index of functions")


def test_no_command_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        commands.main([])
    assert caught.value.code == 2
    assert "required: command" in capsys.readouterr().err


def test_solutions_are_written_and_nobody_is_given_them(monkeypatch, tmp_path, capsys):
    """Each is what the course answers, without nbgrader's marks, and runs; the students' tree knows
    no such command.
    """
    monkeypatch.setattr(
        handout, "write", lambda path, text: (tmp_path / path.name).write_text(text)
    )
    assert commands.main(["solutions", "02"]) == 0
    assert "_build/solutions" in capsys.readouterr().out
    (sheet,) = sheets.load(commands.HERE, ["02"])
    cells = json.loads((tmp_path / sheet.lesson.notebook_name).read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells)
    assert "SOLUTION" not in text
    assert "HIDDEN" not in text
    assert text.count("**A good answer:**") == len(sheet.written)
    names: dict = {}
    for cell in cells:
        if cell["metadata"]["nbgrader"]["grade_id"] in (*sheet.exercises, "given_2"):
            exec("".join(cell["source"]), names)
    assert names["roofline_time"](2_000, 1_000, 1_000, 2_000, 0.25) == (2.25, "compute")
    assert "solutions" not in (Path(handout.__file__).parent / "students" / "Makefile").read_text()


def test_students_get_exercises_and_a_tree(here, capsys, monkeypatch):
    monkeypatch.setattr(
        sheets, "build", lambda course, numbers: [course.root / f"made-{'-'.join(numbers)}"]
    )
    monkeypatch.setattr(handout, "student", lambda course, folder: folder)
    assert commands.main(["student", "90"]) == 0
    assert capsys.readouterr().out.startswith(
        "wrote made-90\nwrote _build/student, which holds no solution"
    )


def test_a_new_number_reaches_files_and_notebooks_and_a_second_run_finds_nothing(here, capsys):
    (here.folder / "order.toml").write_text(
        '[[acts]]\ntitle = "All"\nlessons = ["42_small_counts"]\n'
    )
    subprocess.run(["git", "init", "--quiet", here.root], check=True)
    assert commands.main(["renumber"]) == 0
    assert "course/source/90_small_counts.py -> 42_small_counts.py" in capsys.readouterr().out
    assert commands.main(["renumber"]) == 0
    assert capsys.readouterr().out == "every lesson has its number\n"
