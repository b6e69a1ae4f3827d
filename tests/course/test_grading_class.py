"""Grading a class: a run that is killed goes on, marks of a person stay, and what cannot be graded
is refused.
"""

from __future__ import annotations

import csv
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import nbformat
import psutil
import pytest
from nbgrader.api import Gradebook
from sqlalchemy.exc import OperationalError

from tests.course.grading_samples import ASSIGNMENT, FULL, LIMITS, SHEET, hand_in, notebook
from tools.authoring.course import HERE
from tools.authoring.lesson import AuthoringError
from tools.exercises import handout, sheets
from tools.grading import __main__ as command, grade, intake, sandbox, table
from tools.grading.gradebook import Book, GradingError
from tools.grading.sandbox import SandboxError

pytestmark = [
    pytest.mark.usefixtures("working_sandbox"),
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:Object of type:Warning"),
]
QUESTION = SHEET.written[0]


def rows(root):
    with (root / "grades.csv").open() as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def answered():
    made = notebook()
    for cell in made.cells:
        if cell.metadata.nbgrader.grade_id == QUESTION:
            cell.source = "It waits for memory, so the time stays. <script>alert('no')</script>"
    return made


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A class whose grading was killed after the first marks, and then run again; with what the
    kill left.
    """
    root = tmp_path_factory.mktemp("class")
    folder = root / "submitted"
    for student in ("ann", "ben", "cleo"):
        hand_in(folder, student, answered())
    environment = {**os.environ, "HELPERS_HEADLESS": "1"}
    log = (root / "log").open("w+")
    run = subprocess.Popen(
        [sys.executable, "-m", "tools.grading", str(folder), "--jobs", "1"],
        cwd=HERE.root,
        env=environment,
        stdout=log,
        stderr=log,
    )
    deadline = time.monotonic() + 900
    while (
        not list((root / "marks").glob("*/*.json"))
        and run.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    family = psutil.Process(run.pid).children(recursive=True)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    _, left = psutil.wait_procs(family, timeout=240)
    working = list(root.glob(".grading-*"))
    kept = [path.parent.name for path in (root / "marks").glob("*/*.json")]
    log.close()
    done = grade.grade(folder, root, jobs=2, limits=LIMITS)
    return root, kept, left, done, working


@pytest.mark.ci
@pytest.mark.slow
def test_a_killed_run_is_finished_and_loses_no_grade(resumed):
    root, kept, _, done, _ = resumed
    assert 1 <= len(kept) < 3
    assert (done.new, done.unchanged) == (3 - len(kept), len(kept))
    assert {name: float(row["score"]) for name, row in rows(root).items()} == dict.fromkeys(
        ("ann", "ben", "cleo"), float(sum(FULL.values()))
    )


@pytest.mark.ci
@pytest.mark.slow
def test_a_killed_run_leaves_no_process(resumed):
    assert resumed[2] == []


@pytest.mark.ci
@pytest.mark.slow
def test_what_a_killed_run_leaves_is_removed_by_the_next(resumed):
    root, *_, working = resumed
    assert len(working) == 1
    assert not list(root.glob(".grading-*"))


@pytest.mark.ci
@pytest.mark.slow
def test_marks_and_comments_of_a_person_survive(resumed):
    root, *_ = resumed
    assert rows(root)["ann"]["answers_to_mark"] == "1"
    assert (rows(root)["ann"][QUESTION], rows(root)["ann"][SHEET.written[1]]) == ("", "0.0")
    most = sum(table.points_of(SHEET).values())
    assert [float(rows(root)["ann"][one]) for one in ("so_far_of", "max_score")] == [most - 2, most]
    with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as book:
        book.find_grade(QUESTION, ASSIGNMENT, ASSIGNMENT, "ann").manual_score = 1.5
        book.find_comment(
            QUESTION, ASSIGNMENT, ASSIGNMENT, "ann"
        ).manual_comment = "The ridge moves, too."
        book.db.commit()
    (root / "submitted" / "ben").rename(root / "ben")
    done = grade.grade(root / "submitted", root, jobs=2, limits=LIMITS, force=True)
    assert done.new == 2
    after = rows(root)["ann"]
    assert (float(after[QUESTION]), after["answers_to_mark"]) == (1.5, "0")
    assert float(after["score"]) == sum(FULL.values()) + 1.5
    page = (root / "feedback" / "ann" / ASSIGNMENT / f"{ASSIGNMENT}.html").read_text()
    assert "The ridge moves, too." in page
    assert "It waits for memory" in page
    assert "<script>alert" not in page
    guide = SHEET.cell("written", QUESTION).source.splitlines()[2][4:60]
    assert guide not in page


def test_the_next_one_runs_while_the_marks_of_one_are_written_down(tmp_path):
    unread, honest = hand_in(tmp_path, "ann", b"no notebook"), hand_in(tmp_path, "ben", notebook())
    todo = [
        intake.Submission("ann", ASSIGNMENT, unread),
        intake.Submission("ben", ASSIGNMENT, honest),
    ]
    marked = grade._mark_in_processes(todo, LIMITS, 1, str(tmp_path))
    one, marks = next(marked)
    running = [process.name for process in multiprocessing.active_children()]
    marked.close()
    assert (one.student, running) == ("ann", ["ben"])
    assert "it holds no JSON" in marks.problem
    assert not multiprocessing.active_children()


def test_a_page_is_written_with_the_marks_and_once(tmp_path, monkeypatch):
    for student in ("ann", "ben"):
        hand_in(tmp_path / "submitted", student, b"no notebook")
    done = []
    keep, page = grade._save_marks, Book.page
    monkeypatch.setattr(
        grade,
        "_save_marks",
        lambda *given: (done.append(("marked", given[1].student)), keep(*given)),
    )
    monkeypatch.setattr(
        Book, "page", lambda book, *which: (done.append(("page", *which)), page(book, *which))
    )
    grade.grade(tmp_path / "submitted", tmp_path, jobs=1, limits=LIMITS)
    pages = [
        ("marked", "ann"),
        ("page", ASSIGNMENT, "ann"),
        ("marked", "ben"),
        ("page", ASSIGNMENT, "ben"),
    ]
    assert done == pages
    done.clear()
    grade.grade(tmp_path / "submitted", tmp_path, jobs=1, limits=LIMITS)
    assert done == [one for one in pages if one[0] == "page"]


def nothing(one, problem="it is none"):
    return grade.Marks(one.student, one.assignment, grade._no_marks(one, "").marks, problem=problem)


def test_a_file_that_changes_while_it_is_marked_is_marked_again(tmp_path, monkeypatch):
    path, other = (
        hand_in(tmp_path / "submitted", student, b"no notebook") for student in ("ann", "ben")
    )
    rounds = []

    def marked(todo, *_):
        for one in todo:
            rounds.append(one.student)
            if one.path == path or rounds.count(one.student) == 1:
                one.path.write_bytes(one.path.read_bytes() + b"\n")
            yield one, nothing(one)

    monkeypatch.setattr(grade, "_mark_in_processes", marked)
    done = grade.grade(tmp_path / "submitted", tmp_path, limits=LIMITS)
    assert rounds == ["ann", "ben"] * 2
    assert (done.new, list(rows(tmp_path))) == (1, ["ben"])
    assert done.skipped == ("'ann' changed while it was marked; grade again",)
    rounds[:] = ["ben"]
    path = other
    assert grade.grade(tmp_path / "submitted", tmp_path, limits=LIMITS).new == 1
    assert list(rows(tmp_path)) == ["ann", "ben"]


def test_a_failure_of_the_checks_process_is_tried_again_in_the_next_run(tmp_path, monkeypatch):
    hand_in(tmp_path / "submitted", "ann", b"no notebook")
    hand_in(tmp_path / "submitted", "ben", b"no notebook")
    sent = []
    monkeypatch.setattr(grade, "_end_with", lambda *_: None)
    monkeypatch.setattr(grade.resource, "setrlimit", lambda *given: sent.append(given))
    monkeypatch.setattr(sandbox, "leave_keys", lambda: sent.append("no keys"))
    monkeypatch.setattr(grade.marker, "mark", lambda *_: sent.append("mark") or 1 / 0)

    def marked(todo, *_):
        for one in todo:
            ours, theirs = multiprocessing.Pipe()
            grade._mark_in_child(theirs, one, LIMITS)
            yield one, nothing(one) if one.student == "ben" else ours.recv()

    monkeypatch.setattr(grade, "_mark_in_processes", marked)
    for new in (2, 1):
        assert grade.grade(tmp_path / "submitted", tmp_path, limits=LIMITS).new == new
    most = (LIMITS.memory_bytes, LIMITS.memory_bytes)
    assert sent[:3] == [(grade.resource.RLIMIT_DATA, most), "no keys", "mark"]
    assert "the checks failed on it (ZeroDivisionError)" in rows(tmp_path)["ann"]["note"]


_KEYS = """
import ctypes, errno
from tools.grading import sandbox
call = ctypes.CDLL(None, use_errno=True).syscall
call.restype = ctypes.c_long
keyctl, add_key = sandbox._KEYCTL[sandbox.platform.machine()], {add}
if call(keyctl, 1, None) < 0 or call(add_key, b"user", b"course-test", b"ticket", 6, -3) < 0:
    raise SystemExit(errno.errorcode[ctypes.get_errno()])
{leave}
print(call(keyctl, 10, -3, b"user", b"course-test", 0) > 0)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"), reason="its add_key"
)
def test_the_keys_of_the_login_are_left_behind():
    add = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
    found = [
        subprocess.run(
            [sys.executable, "-c", _KEYS.format(add=add, leave=leave)],
            cwd=HERE.root,
            text=True,
            capture_output=True,
            check=False,
        )
        for leave in ("", "sandbox.leave_keys()")
    ]
    refused = found[0].stderr.strip()
    if refused in ("EPERM", "EACCES", "ENOSYS"):  # any other is a wrong call of ours
        pytest.skip(f"the kernel of this machine lends no keyring ({refused})")
    assert [one.stdout for one in found] == ["True\n", "False\n"], found


def test_a_notebook_too_large_to_show_is_refused(tmp_path):
    made = notebook()
    made.cells += [nbformat.v4.new_code_cell("x")] * (intake.MOST_CELLS + 1 - len(made.cells))
    many = hand_in(tmp_path, "ann", nbformat.writes(made).encode())
    made = notebook(before="x" * intake.MOST_CHARACTERS)
    long = hand_in(tmp_path, "ben", made)
    for path in (many, long):
        with pytest.raises(
            intake.IntakeError, match="more than 1,000 cells or 1,000,000 characters"
        ):
            intake.clean(SHEET, path)
    del made.cells[0]
    assert intake.clean(SHEET, hand_in(tmp_path, "cleo", made)).cells


def test_what_cannot_be_read_is_said_and_stops_nobody(tmp_path, monkeypatch):
    gone = intake.Submission("ann", ASSIGNMENT, tmp_path / "absent")
    assert grade._fingerprint(SHEET, gone) == grade._fingerprint(SHEET, gone)
    with pytest.raises(intake.IntakeError, match=r"cannot be read \(No such file"):
        intake.clean(SHEET, gone.path)
    for student in ("ann", "ben"):
        hand_in(tmp_path / "submitted", student, notebook())
    own = intake._own_files

    def closed(home, assignment):
        if home.name == "ann":
            raise PermissionError(errno.EACCES, "Permission denied")
        return own(home, assignment)

    monkeypatch.setattr(intake, "_own_files", closed)
    found, strange = intake.find(tmp_path / "submitted", [ASSIGNMENT])
    assert [one.student for one in found] == ["ben"]
    assert strange == {"ann": "cannot be read (Permission denied); mend its rights"}


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "grades.csv"),
        OperationalError("insert", {}, Exception("database or disk is full")),
    ],
)
def test_a_full_disk_is_said_in_a_line(tmp_path, monkeypatch, capsys, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(grade, "grade", full)
    assert command.main([str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "full" in said or "No space left on device" in said
    assert "what was marked is kept" in said


def test_a_notebook_is_put_back_together(tmp_path):
    made = notebook(before="x = 1")
    kept = [
        cell
        for cell in made.cells
        if not cell.metadata.get("nbgrader", {}).get("grade_id", "").endswith("_checks")
    ]
    for cell in kept:
        if cell.metadata.get("nbgrader", {}).get("locked"):
            cell.source = "changed"
    made.cells = [*kept, nbformat.v4.new_code_cell("y = 2"), *kept]
    for number, cell in enumerate(made.cells):
        made.cells[number] = nbformat.from_dict({**cell, "id": f"cell-{number}"})
    clean = intake.clean(SHEET, hand_in(tmp_path, "ann", made))
    ours = [cell for cell in clean.cells if "nbgrader" in cell.metadata]
    expected = {cell.metadata.nbgrader.grade_id: cell.source for cell in notebook().cells}
    assert {cell.metadata.nbgrader.grade_id: cell.source for cell in ours} == expected
    assert len(ours) == len(expected)
    assert next(cell.source for cell in clean.cells if "nbgrader" not in cell.metadata) == "x = 1"
    assert "y = 2" in [cell.source for cell in clean.cells]


def test_without_bubblewrap_nothing_runs(tmp_path, monkeypatch, capsys):
    hand_in(tmp_path / "class", "ann", notebook())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main([str(tmp_path / "class")]) == 1
    said = capsys.readouterr().err
    assert "sudo apt-get install bubblewrap" in said
    assert not (tmp_path / "class_graded").exists()


def test_that_bubblewrap_is_absent_is_said_before_anything_is_loaded(tmp_path):
    code = (
        "import sys\nfrom tools.grading.__main__ import "
        f"main\nmain([{str(tmp_path)!r}])\nprint(*sys.modules)"
    )
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=HERE.root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "sudo apt-get install bubblewrap" in done.stderr
    assert not {"torch", "nbgrader", "sqlalchemy"} & set(done.stdout.split())


def test_a_sandbox_that_does_not_work_is_refused(tmp_path, monkeypatch):
    fake = tmp_path / "bwrap"
    fake.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(
        SandboxError, match=r"No permissions.*apparmor_restrict_unprivileged_userns"
    ):
        sandbox.refuse_unless_working()


def test_a_sandbox_that_shuts_nothing_in_is_refused(tmp_path, monkeypatch):
    fake = tmp_path / "bwrap"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match="does not work here"):
        sandbox.refuse_unless_working()


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("absent", "is not a folder"),
        ("empty", "holds no submission"),
        (None, "which every submission may read"),
    ],
)
def test_what_cannot_be_graded_is_refused_with_what_to_do(tmp_path, folder, said):
    (tmp_path / "empty").mkdir()
    with pytest.raises(GradingError, match=said):
        grade.grade(
            HERE.root / "helpers" if folder is None else tmp_path / folder, tmp_path / "into"
        )


def test_the_command_asks_for_a_folder(capsys):
    with pytest.raises(SystemExit):
        command.main([""])
    assert "make grade SUBMISSIONS=folder" in capsys.readouterr().err


def test_nothing_of_the_lecturers_is_visible():
    for folder in sandbox.visible_folders():
        for secret in (HERE.folder / "instructor", HERE.root / "tests", HERE.root / "_build"):
            assert not secret.is_relative_to(folder)


def test_a_clone_that_submissions_would_see_is_refused_before_anything_runs(tmp_path, monkeypatch):
    """The solutions lie in it; below /usr, as images of containers have it, each submission could
    read them.
    """
    monkeypatch.setattr(sandbox, "refuse_unless_working", lambda: pytest.fail("something was run"))
    (tmp_path / "submitted").mkdir()
    for around in (HERE.root, HERE.folder / "instructor", HERE.root / "tests"):
        monkeypatch.setattr(sandbox, "visible_folders", lambda around=around: [around])
        with pytest.raises(
            GradingError, match=r"lies in .*, which every submission may read; move it elsewhere"
        ):
            grade.grade(tmp_path / "submitted", tmp_path)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        (b"2026-11-22 10:00:00.5 UTC", "2026-11-22 10:00:00.500000"),
        (b"2026-11-22 10:00:00 Europe/Berlin", "2026-11-22 09:00:00"),
        (b"2026-11-22T10:00", "2026-11-22 10:00:00"),
        (b"inf", ""),
        (b"", ""),
        (b"22.11.2026 um 10 Uhr", ""),
        (b"03/04/2026 10:00", ""),
        (b"\0\0\0", ""),
        (b"9" * 40, ""),
        (b"x" * 10**6, ""),
        (b"0001-01-01 00:00:00 Europe/Berlin", ""),
        (b"9999-12-31 23:59:59 -9999", ""),
        (b"2026-99-99 10:00", ""),
        (b"2026-11-22 10:00 \xff", ""),
    ],
)
def test_a_date_is_read_or_missed_and_ends_nothing(tmp_path, text, when):
    path = hand_in(tmp_path, "ann", b"")
    path.with_name("timestamp.txt").write_bytes(text)
    one = intake.Submission("ann", ASSIGNMENT, path)
    dated = grade._with_submission_time(one, nothing(one))
    assert dated.handed_in == when
    assert len(dated.notes) == (not when)
    assert when or "timestamp.txt holds no date" in dated.notes[0]


def test_a_date_that_was_mended_is_read_without_marking_again(tmp_path):
    stamp = hand_in(tmp_path / "submitted", "ann", b"no notebook").with_name("timestamp.txt")
    page = tmp_path / "feedback" / "ann" / ASSIGNMENT / f"{ASSIGNMENT}.html"
    for text, new, shown in (
        ("yesterday", 1, False),
        ("2026-11-22 10:00:00 UTC", 0, True),
        ("then", 0, False),
    ):
        stamp.write_text(text)
        assert grade.grade(tmp_path / "submitted", tmp_path, jobs=1, limits=LIMITS).new == new
        assert ("timestamp.txt holds no date" in rows(tmp_path)["ann"]["note"]) != shown
        assert ("handed in 2026-11-22 10:00 UTC" in page.read_text()) == shown


@pytest.mark.parametrize("begun", ["released", "written"])
def test_a_class_keeps_the_names_with_which_it_began(tmp_path, begun):
    """Its gradebook has one assignment, under its old number, whatever number a student's file has
    now.
    """
    old = f"77_{ASSIGNMENT[3:]}"
    if begun == "released":
        Book(tmp_path).prepare(HERE, SHEET.named(old))
    else:
        handout.release_into(tmp_path, [SHEET.named(old)], HERE)
    hand_in(tmp_path / "submitted", "ann", b"no notebook")
    hand_in(tmp_path / "submitted", "ben", b"no notebook").rename(
        tmp_path / "submitted" / "ben" / f"{old}.ipynb"
    )
    done = grade.grade(tmp_path / "submitted", tmp_path, limits=LIMITS)
    assert (done.new, done.skipped) == (2, ())
    assert {name: row["assignment"] for name, row in rows(tmp_path).items()} == {
        "ann": old,
        "ben": old,
    }
    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as book:
        assert [one.name for one in book.assignments] == [old]
    assert [path.name for path in (tmp_path / "source").iterdir()] == [old]
    assert (
        sorted(path.name for path in (tmp_path / "feedback").rglob("*.html")) == [f"{old}.html"] * 2
    )
    again = handout.nbgrader_folder(HERE, tmp_path, [SHEET.lesson.number])
    assert again == [tmp_path / "source" / old / f"{old}.ipynb"]


def test_a_class_keeps_a_title_that_its_lesson_had_before(tmp_path):
    old, now = "16_layouts_and_long_sequences_exercises", "08_layouts_exercises"
    (tmp_path / "source" / old).mkdir(parents=True)
    assert [
        sheet.lesson.name for sheet in handout.of_class(tmp_path, sheets.load(HERE, ["08"]))
    ] == [old]
    assert grade._sheet(old).lesson.name == old
    assert grade._sheet(old).exercises == grade._sheet(now).exercises
    for student, name in (("ann", old), ("ben", now), ("cleo", f"08{old[2:]} (1)")):
        path = tmp_path / "submitted" / student / f"{name}.ipynb"
        path.parent.mkdir(parents=True)
        path.touch()
    submissions, strange = intake.find(tmp_path / "submitted", [old])
    assert ([(one.student, one.assignment) for one in submissions], strange) == (
        [(student, old) for student in ("ann", "ben", "cleo")],
        {},
    )


def test_what_a_killed_run_left_half_written_is_removed(tmp_path):
    left = [
        tmp_path / ".grading-x" / "one",
        tmp_path / ".0a.tmp",
        tmp_path / "marks" / "ann" / ".0b.tmp",
    ]
    kept = [tmp_path / "submitted" / "ann" / ".mine.tmp", tmp_path / "marks" / "ann" / "a.json"]
    for path in (*left, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    grade._remove_what_was_killed(tmp_path)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)


def test_the_failure_of_one_submission_is_its_own_note(tmp_path, monkeypatch):
    """Whatever nbgrader, its database or the page fails at; a full disk is everybody's and ends the
    run.
    """
    for student in ("ann", "ben", "cleo", "dan"):
        hand_in(tmp_path / "submitted", student, b"no notebook")
    record, page = Book.record, Book.page

    def fails(book, sheet, marks, notebook):
        if marks.student == "ben":
            raise UnicodeEncodeError("utf-8", "\ud83d", 0, 1, "surrogates not allowed")
        record(book, sheet, marks, notebook)

    monkeypatch.setattr(Book, "record", fails)
    monkeypatch.setattr(
        Book, "page", lambda book, which, who: 1 / 0 if who == "cleo" else page(book, which, who)
    )
    for _ in range(2):  # the second run meets what the first left
        done = grade.grade(tmp_path / "submitted", tmp_path, jobs=1, limits=LIMITS)
        assert list(rows(tmp_path)) == ["ann", "ben", "cleo", "dan"]
        notes = {student: row["note"] for student, row in rows(tmp_path).items()}
        assert "no page could be written (UnicodeEncodeError: " in notes["ben"]
        assert "no page could be written (ZeroDivisionError: " in notes["cleo"]
        assert [line.split("'")[1] for line in done.skipped] == ["ben", "cleo"]
    assert "no page" not in notes["ann"] + notes["dan"]
    monkeypatch.setattr(
        Book, "page", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left"))
    )
    with pytest.raises(OSError, match="No space left"):
        grade.grade(tmp_path / "submitted", tmp_path, limits=LIMITS)


def test_marks_are_made_anew_for_a_changed_file_or_changed_exercises(tmp_path):
    path = hand_in(tmp_path, "ann", notebook())
    one = intake.Submission("ann", ASSIGNMENT, path)
    before = grade._fingerprint(SHEET, one)
    assert grade._fingerprint(SHEET, one) == before
    assert grade._fingerprint(sheets.load(HERE, ["04"])[0], one) != before
    path.write_bytes(path.read_bytes() + b"\n")
    assert grade._fingerprint(SHEET, one) != before


@pytest.mark.parametrize(
    "sheet", [pytest.param(one, id=one.lesson.number) for one in sheets.load(HERE)]
)
def test_two_questions_a_lesson_whose_guides_no_student_finds(sheet):
    assert len(sheet.written) == 2
    secret = handout.secrets([sheet])
    shown = {cell.metadata.nbgrader.grade_id: cell.source for cell in sheets.released(sheet).cells}
    for name in sheet.written:
        guide = sheet.cell("written", name).source.splitlines()
        points = sheet.cell("written", name).metadata["points"]
        assert len([line for line in guide if line.startswith("- 1 point:")]) == points
        assert {line.strip() for line in guide if len(line) >= 20} <= secret
        assert shown[name] == sheets.WRITTEN_STUB


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            f'written="{QUESTION}" points=2',
            f'written="{QUESTION}"',
            "a written answer needs points",
        ),
        (f'[markdown] written="{QUESTION}"', f'written="{QUESTION}"', "needs a name of its own"),
        (f'written="{QUESTION}"', f'written="{SHEET.written[1]}"', "needs a name of its own"),
        (f'written="{QUESTION}"', f'written="{SHEET.exercises[0]}"', "needs a name of its own"),
    ],
)
def test_an_ill_formed_question_is_refused(old, new, said):
    name = f"{ASSIGNMENT}.py"
    script = (HERE.folder / "instructor" / "exercises" / name).read_text()
    assert old in script
    with pytest.raises(AuthoringError, match=said):
        sheets.read(HERE, name, script.replace(old, new))


def test_a_lesson_with_one_question_is_found():
    name = f"{ASSIGNMENT}.py"
    script = (HERE.folder / "instructor" / "exercises" / name).read_text()
    less = sheets.read(HERE, name, script.replace(f'written="{QUESTION}" points=2', ""))
    assert [problem.what for problem in sheets.find_rule_problems(less)] == [
        "1 written questions, write 2, each with its guide"
    ]
