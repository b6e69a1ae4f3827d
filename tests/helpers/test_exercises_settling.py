"""A cell that the reader writes in a lesson: what its checks say, and with which version the lesson
goes on.
"""

from __future__ import annotations

import base64
import inspect
import json
import linecache
import os
import subprocess
import sys
import zlib

import cloudpickle
import pytest

from helpers.exercises import Checks, not_yet

WORKED = '''def twice(n):
    """Return n < n & two times."""
    return factor * n
'''
STUB = '''def twice(n):
    """Return n < n & two times."""
    ...
'''
WRONG = WORKED.replace("factor *", "factor +")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with the reader's copy of a lesson, live: somebody watches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HELPERS_HEADLESS", "0")
    write(tmp_path / "04_lesson.ipynb", "twice", WORKED)
    return tmp_path


def write(path, name, worked):
    packed = base64.b64encode(zlib.compress(worked.encode())).decode()
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": []},
        {"cell_type": "code", "metadata": {"yours": name, "worked": packed}, "source": []},
    ]
    path.write_text(json.dumps({"cells": cells}))


def run(source, names=None, title="cell"):
    """Run a cell of the reader's and return the names that stand then."""
    names = {"__name__": "__main__", "factor": 2} if names is None else names
    linecache.cache[f"<{title}>"] = (
        len(source),
        None,
        source.splitlines(keepends=True),
        f"<{title}>",
    )
    exec(compile(source, f"<{title}>", "exec"), names)
    return names


def settled(function):
    checks = Checks("Twice", function)
    checks.returns("doubles", (3,), expected=6, mistakes={5: "That is a sum"})
    checks.returns("doubles nothing", (0,), expected=0)
    return checks.settle()


@pytest.fixture
def shown(monkeypatch):
    """What is displayed besides text."""
    found = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, raw: found.append(data) if raw else None
    )
    return found


def test_the_readers_own_version_is_used_where_all_goals_are_reached(folder, capsys, shown):
    twice = run(WORKED)["twice"]
    assert settled(twice) is twice
    assert capsys.readouterr().out.splitlines() == [
        "Twice",
        "  reached      doubles",
        "  reached      doubles nothing",
        "Below, your twice is used.",
    ]
    assert len(shown) == 1


def test_else_the_courses_is_used_and_the_readers_is_told_why(folder, capsys, shown):
    names = run(WRONG)
    before = dict(names)
    course = settled(names["twice"])
    assert names == before
    assert course(3) == 6
    names["factor"] = 3
    assert course(3) == 9
    said = capsys.readouterr().out
    assert (
        "  not reached  doubles\n               twice(3) gave 5, expected 6\n               That "
        "is a sum\n" in said
    )
    assert said.endswith("Below, the course's twice is used.\n")
    [folded] = shown
    assert "<details><summary>Show me</summary><pre>def twice(n):\n" in folded["text/html"]
    assert "n &lt; n &amp; two" in folded["text/html"]
    assert "open" not in folded["text/html"]


@pytest.mark.parametrize(
    "stub",
    [
        STUB,
        STUB.replace("...", "# first\n    ..."),
        "def twice(n):\n    ...\n",
        STUB.replace("    ...\n", ""),
        "import functools\n@functools.cache\n" + STUB,
    ],
)
def test_a_stub_is_not_written_yet_and_not_called(folder, capsys, shown, stub):
    assert settled(run(stub)["twice"])(4) == 8
    assert capsys.readouterr().out == "Twice: not written yet\nBelow, the course's twice is used.\n"


@pytest.mark.parametrize("body", ["return None", "pass", "return ...", "x = ...", "'...'; n"])
def test_what_does_little_is_written(folder, capsys, shown, body):
    settled(run(STUB.replace("...", body))["twice"])
    assert "not reached  doubles" in capsys.readouterr().out


def test_nothing_is_displayed_where_nobody_watches(folder, capsys, shown, monkeypatch):
    monkeypatch.setenv("HELPERS_HEADLESS", "1")
    settled(run(WRONG)["twice"])
    assert shown == []


def test_the_courses_version_is_not_checked_by_itself(folder, capsys, shown):
    course = settled(run(STUB)["twice"])
    capsys.readouterr()
    assert settled(course) is course
    assert [one["text/html"] for one in shown] == [shown[0]["text/html"]] * 2
    said = capsys.readouterr().out
    assert (
        said
        == "Twice: this is the course's version already; to check yours, run the cell above first\n"
    )


def test_the_courses_version_has_lines_for_tracebacks_and_readers(folder, shown):
    course = settled(run(STUB)["twice"])
    assert inspect.getsource(course) == WORKED
    assert str(folder) not in course.__code__.co_filename


def test_another_process_gets_the_courses_version_by_value(folder, shown):
    names = run(STUB)
    sent = cloudpickle.dumps(settled(names["twice"]))
    program = f"import pickle; print(pickle.loads({sent!r})(21))"
    done = subprocess.run([sys.executable, "-c", program], cwd="/", capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("42\n", "")


def test_a_decorated_function_is_made_from_the_names_of_its_cell(folder, shown):
    decorated = "import torch\n@torch.no_grad()\n"
    write(folder / "04_lesson.ipynb", "twice", decorated + WORKED)
    assert settled(run(decorated + STUB)["twice"])(4) == 8


def test_a_function_of_another_name_is_found_by_the_name_that_it_is_bound_to(folder, shown):
    assert settled(run("twice = lambda n: n")["twice"])(4) == 8


def test_the_notebook_that_runs_comes_before_an_older_copy(folder, shown, monkeypatch):
    write(folder / "04_lesson (old).ipynb", "twice", WORKED.replace("factor", "7"))
    monkeypatch.setenv("JPY_SESSION_NAME", os.fspath(folder / "04_lesson.ipynb"))
    assert settled(run(STUB)["twice"])(4) == 8
    monkeypatch.setenv("JPY_SESSION_NAME", "my_course/04_lesson (old).ipynb")
    assert settled(run(STUB)["twice"])(4) == 28


@pytest.mark.parametrize("notebook", ["other", "none"])
def test_without_the_courses_version_the_reader_is_told_what_to_do(folder, capsys, shown, notebook):
    (folder / "04_lesson.ipynb").unlink()
    if notebook == "other":
        write(folder / "05_lesson.ipynb", "thrice", WORKED)
    with pytest.raises(
        LookupError, match=r"do not hold the course's twice: open your copy of the lesson"
    ):
        settled(run(WRONG)["twice"])
    assert "twice(3) gave 5, expected 6" in capsys.readouterr().out
    twice = run(WORKED)["twice"]
    assert settled(twice) is twice
    assert shown == []


@pytest.mark.parametrize("text", [b'{"worked"', b'"worked" \xff', b'{"worked": 1}', b'["worked"]'])
def test_what_is_no_notebook_is_in_nobodys_way(folder, shown, text):
    (folder / "00_broken.ipynb").write_bytes(text)
    assert settled(run(STUB)["twice"])(4) == 8


def test_a_stub_is_not_written_whatever_holds_before_it_is_called(folder, capsys, shown):
    checks = Checks("Twice", run(STUB)["twice"])
    checks.holds("is short", False, otherwise="too long")
    checks.returns("doubles", (3,), expected=6)
    checks.settle()
    assert capsys.readouterr().out.startswith("Twice: not written yet\n")


def test_a_call_may_go_another_way(folder, capsys, shown):
    checks = Checks("Twice", run(WORKED)["twice"])
    checks.returns(
        "on three ranks", (3,), expected=[6, 6, 6], call=lambda f, *given: [f(*given)] * 3
    )
    checks.settle()
    assert "reached      on three ranks" in capsys.readouterr().out


def test_an_error_of_another_way_is_a_failed_check(folder, capsys, shown):
    checks = Checks("Twice", run(WORKED)["twice"])
    checks.returns("on ranks", (3,), expected=6, call=lambda f: f())
    checks.settle()
    assert "twice(3) raised TypeError: " in capsys.readouterr().out


def test_not_yet_is_not_written_either(folder, capsys, shown):
    names = {"__name__": "__main__", "factor": 2, "not_yet": not_yet}
    settled(run("def twice(n):\n    return not_yet", names)["twice"])
    assert capsys.readouterr().out.startswith("Twice: not written yet\n")


def test_importing_the_checks_loads_nothing_heavy():
    program = (
        "import sys; from helpers import exercises; exercises.Checks; print({*sys.modules} & "
        "{*sys.argv[1:]})"
    )
    heavy = ["torch", "numpy", "nbformat", "IPython", "pandas"]
    assert (
        subprocess.run(
            [sys.executable, "-c", program, *heavy], capture_output=True, text=True
        ).stdout
        == "set()\n"
    )
