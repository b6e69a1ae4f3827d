"""A reader's copy with something odd in it: one sentence, with what to do, and all else is brought
up to date.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import nbformat
import pytest
from hypothesis import given, strategies as st
from nbformat.v4 import new_markdown_cell, new_notebook

from tests.course.test_copies import (
    EXERCISE,
    LESSON,
    PAGE,
    again,
    change,
    everything,
    lesson,
    made,
    read,
    root,
    write,
)
from tests.properties import repeatable
from tools.authoring.course import HERE
from tools.copies import __main__ as command, update

__all__ = ["made", "root"]  # fixtures
COPY = "my_course"


def folder_instead(path):
    path.unlink()
    (path / "mine").mkdir(parents=True)


def file_instead(path):
    shutil.rmtree(path.parent)
    path.parent.write_text("mine")


def link_instead(path):
    path.unlink()
    path.symlink_to("nowhere.ipynb")


def pipe_instead(path):
    path.unlink()
    os.mkfifo(path)


ODD = {
    "a folder": (LESSON, folder_instead, f"because {LESSON} is a folder here; rename it"),
    "a file for its folder": (
        EXERCISE,
        file_instead,
        "because exercises is a file here; rename it",
    ),
    "a link that leads nowhere": (
        LESSON,
        link_instead,
        f"because {LESSON} is no file here; rename it",
    ),
    "a pipe": (LESSON, pipe_instead, f"because {LESSON} is no file here; rename it"),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_in_the_way_is_named_and_the_rest_is_brought_up_to_date(made, capsys, what):
    name, make, said = ODD[what]
    make(made / COPY / name)
    for path, text in ((LESSON, lesson("New text")), (PAGE, "# New\n")):
        write(made / "course" / path, text)
    write(made / "course" / EXERCISE, new_notebook(cells=[new_markdown_cell("New exercise")]))
    for _ in range(2):
        (line,) = again(made, capsys)
        assert line.startswith(f"{name} is not brought up to date, {said}")
    assert (made / COPY / PAGE).read_text() == "# New\n"
    other = EXERCISE if name == LESSON else LESSON
    assert read(made, other).cells[0].source.startswith("New")
    assert not (made / COPY / "nowhere.ipynb").exists()


def test_what_was_renamed_away_is_brought_up_to_date_again(made, capsys):
    folder_instead(made / COPY / LESSON)
    assert len(again(made, capsys)) == 1
    (made / COPY / LESSON).rename(made / COPY / "mine")
    assert again(made, capsys) == []
    assert read(made, LESSON).cells[0].source.startswith("Text")


def test_a_file_that_may_not_be_read_is_named_and_takes_its_lessons_new_number(
    made, monkeypatch, capsys
):
    """Root may read all, so that it may not is played."""
    allowed, unread = os.access, [made / COPY / LESSON, made / COPY / "05_ring.ipynb"]
    monkeypatch.setattr(os, "access", lambda path, mode: path not in unread and allowed(path, mode))
    mine = (made / COPY / LESSON).read_bytes()
    (line,) = again(made, capsys)
    assert line.startswith(
        f"{LESSON} is not brought up to date, because it may not be read; allow that: chmod u+r "
    )
    (made / "course" / LESSON).rename(made / "course" / "05_ring.ipynb")
    said = again(made, capsys)
    assert said[0] == f"{LESSON} is 05_ring.ipynb now: its lesson has another number"
    assert said[1].startswith("05_ring.ipynb is not brought up to date, because it may not be read")
    assert (made / COPY / "05_ring.ipynb").read_bytes() == mine


def test_a_folder_that_may_not_be_used_is_named_and_the_rest_is_brought_up_to_date(
    made, monkeypatch, capsys
):
    allowed, closed = os.access, made / COPY / "exercises"
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and allowed(path, mode))
    mine = (made / COPY / EXERCISE).read_bytes()
    write(made / "course" / EXERCISE, new_notebook(cells=[new_markdown_cell("New exercise")]))
    write(made / "course" / PAGE, "# New\n")
    (made / "course" / EXERCISE).rename(made / "course" / "exercises" / "05_ring_exercises.ipynb")
    (line,) = (one for one in again(made, capsys) if "chmod" in one)
    assert line == (
        "exercises/05_ring_exercises.ipynb is not brought up to date, because exercises may not "
        f"be read and written; allow that: chmod u+rwx {closed}"
    )
    assert ((made / COPY / EXERCISE).read_bytes(), (made / COPY / PAGE).read_text()) == (
        mine,
        "# New\n",
    )


def test_a_memory_that_may_not_be_read_is_named_and_nothing_is_written(made, monkeypatch, capsys):
    allowed, closed = os.access, made / COPY / update.MANIFEST
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and allowed(path, mode))
    before = everything(made)
    write(made / "course" / PAGE, "# New\n")
    assert command.main(made) == 1
    assert (
        capsys.readouterr().err
        == f"error: {closed} may not be read; allow that: chmod u+r {closed}\n"
    )
    assert before == everything(made) != {}


def test_a_folder_in_the_place_of_a_new_version_is_passed_over(made, capsys):
    change(made, LESSON, 0, source="My note")
    (made / COPY / "04_ring.new.ipynb").mkdir()
    write(made / "course" / LESSON, lesson("New text"))
    (line,) = again(made, capsys)
    assert line.endswith("see 04_ring.new2.ipynb")


def test_a_copy_that_is_no_folder_is_refused_with_what_to_do(root, capsys):
    (root / COPY).write_text("mine")
    assert command.main(root) == 1
    assert (
        capsys.readouterr().err
        == f"error: {root / COPY} is no folder; rename it, and start again\n"
    )
    assert (root / COPY).read_text() == "mine"


def test_a_folder_in_the_place_of_the_memory_is_named(made, capsys):
    mine = change(made, LESSON, 0, source="My note")
    folder_instead(made / COPY / update.MANIFEST)
    write(made / "course" / LESSON, lesson("New text"))
    first, second = again(made, capsys)
    assert first.startswith(
        f"{update.MANIFEST} is no file, so every file that differs from the course's is taken for"
    )
    assert second.endswith("see 04_ring.new.ipynb")
    assert (made / COPY / LESSON).read_bytes() == mine
    assert len(again(made, capsys)) == 2
    assert not (made / COPY / "04_ring.new2.ipynb").exists()


KNOWN = {"version": "a", "contents": ["b"]}
DAMAGED = (
    {"contents": 7},
    {"contents": None},
    {"contents": [7]},
    {"version": None},
    {"version": []},
    7,
    None,
    [],
)


@pytest.mark.parametrize("damage", DAMAGED, ids=str)
def test_a_damaged_memory_is_told_and_all_is_brought_up_to_date(made, capsys, damage):
    entry = {**KNOWN, **damage} if isinstance(damage, dict) else damage
    write(made / COPY / update.MANIFEST, json.dumps({LESSON: entry}))
    write(made / "course" / "new.md", "New\n")
    (line,) = again(made, capsys)
    assert line.startswith(f"{update.MANIFEST} is damaged: every file")
    assert (made / COPY / "new.md").read_text() == "New\n"
    assert again(made, capsys) == []


KEYS = st.sampled_from([LESSON, "version", "contents", "cells", "source", "metadata", "cell_type"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@repeatable(examples=60)
@given(JSON, st.sampled_from([LESSON, update.MANIFEST]))
def test_whatever_json_lies_in_the_copy_it_is_kept_or_told_and_the_rest_is_written(
    tmp_path_factory, value, name
):
    copy = tmp_path_factory.mktemp("copy")
    files = {LESSON: nbformat.writes(lesson()).encode(), PAGE: b"page"}
    (copy / name).write_text(json.dumps(value))
    before = (copy / name).read_bytes()
    update.update(copy, files)
    assert (copy / PAGE).read_bytes() == b"page"
    assert (copy / name).read_bytes() == before or name == update.MANIFEST
    assert update.update(copy, {**files, PAGE: b"new"}) == []
    assert (copy / PAGE).read_bytes() == b"new"


def test_a_notebook_of_many_brackets_is_the_readers(made, capsys):
    (made / COPY / LESSON).write_text("[" * 200_000)
    write(made / "course" / LESSON, lesson("New text"))
    (line,) = again(made, capsys)
    assert line.endswith("see 04_ring.new.ipynb")
    assert (made / COPY / LESSON).read_text() == "[" * 200_000


ADDED = {
    "an attachment": {"attachments": {"mine.png": {"image/png": "aGk="}}},
    "a tag": {"metadata": {"tags": ["look again"]}},
    "a note": {"metadata": {"note": "ask about this"}},
    "a slide": {"metadata": {"slideshow": {"slide_type": "slide"}}},
}


@pytest.mark.parametrize("what", ADDED)
def test_what_a_reader_added_beside_sources_and_outputs_is_the_readers(made, capsys, what):
    mine = change(made, LESSON, 0, **ADDED[what])
    write(made / "course" / LESSON, lesson("New text"))
    (line,) = again(made, capsys)
    assert line.endswith("see 04_ring.new.ipynb")
    assert (made / COPY / LESSON).read_bytes() == mine


OF_THE_PROGRAM = {
    "collapsed": True,
    "scrolled": False,
    "trusted": True,
    "jupyter": {"source_hidden": True},
    "execution": {"iopub.execute_input": "2026-11-26T10:00:00Z"},
    "vscode": {"languageId": "python"},
    "jp-MarkdownHeadingCollapsed": True,
    "colab": {"base_uri": "x"},
    "id": "a",
}


def test_what_a_program_notes_of_a_cell_is_no_change_of_the_readers(made, capsys):
    change(made, LESSON, 0, metadata=OF_THE_PROGRAM)
    write(made / "course" / LESSON, lesson("New text"))
    assert again(made, capsys) == []
    assert read(made, LESSON).cells[0].source.startswith("New text")


def test_a_file_that_comes_back_to_the_course_is_the_courses(made, capsys):
    text = (made / "course" / PAGE).read_text()
    (made / "course" / PAGE).unlink()
    assert again(made, capsys) == [f"{PAGE} is no longer part of the course; it stays as it is"]
    assert again(made, capsys) == []
    write(made / "course" / PAGE, f"{text}More.\n")
    assert again(made, capsys) == []
    assert (made / COPY / PAGE).read_text().endswith("More.\n")


KILLED = """import os, signal, sys
from pathlib import Path
from tools.copies import update
from tools.copies.__main__ import main
left, write = int(sys.argv[2]), update.write_atomically
def counted(*given):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    write(*given)
update.write_atomically = counted
sys.exit(main(Path(sys.argv[1])))
"""


def test_what_a_killed_run_has_written_is_the_courses_at_the_next_version_too(made, capsys):
    """Each run is killed before another of its writes, and the course is a newer one each time."""
    mine = change(made, LESSON, 0, source="My note")
    names = [f"{number}_part.md" for number in range(8)]
    for version, writes in enumerate((8, 5, 2, 1, 0)):
        for name in names:
            write(made / "course" / name, f"{name}, version {version}\n")
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(made), str(writes)], cwd=HERE.root, check=False
        )
        assert done.returncode == -signal.SIGKILL
    assert {path.read_text()[-2] for path in (made / COPY).glob("*_part.md")} == {"0", "1", "2"}
    for name in names:
        write(made / "course" / name, f"{name}, the last\n")
    assert again(made, capsys) == []
    assert [(made / COPY / name).read_text() for name in names] == [
        f"{name}, the last\n" for name in names
    ]
    assert (made / COPY / LESSON).read_bytes() == mine
    assert not [path for path in everything(made) if ".new" in path.name]
