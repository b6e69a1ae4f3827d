"""A lesson's new number reaches the names of its files and the texts that say it, and nothing
else.
"""

from __future__ import annotations

import subprocess

import nbformat
import pytest

from tools.authoring import audit, order
from tools.authoring.build import keep
from tools.authoring.lesson import AuthoringError
from tools.authoring.renumber import renumber, renumber_text

NAMES = {
    "03_sources": "04_sources",
    "04_data": "05_data",
    "16_layouts": "08_layouts",
    "08_memory": "12_memory",
}
NUMBERS = {number: number for number in ("00", "01", "02")} | {
    old[:2]: new[:2] for old, new in NAMES.items()
}

CHANGED = {
    "a link": ("[lesson 04](04_data.ipynb)", "[lesson 05](05_data.ipynb)"),
    "a link by its number": ("| [03](../03_sources.ipynb) |", "| [04](../04_sources.ipynb) |"),
    "exercises": ("exercises/04_data_exercises.ipynb", "exercises/05_data_exercises.ipynb"),
    "the end of a docstring": ("    Lesson 08.\n", "    Lesson 12.\n"),
    "a possessive": ("lesson 03's ring", "lesson 04's ring"),
    "a list": ("Lessons 01, 03 and 04 have", "Lessons 01, 04 and 05 have"),
    "a list that rises": ("lessons 08 and 16", "lessons 08 and 12"),
    "a list that does not rise": ("lessons 16 and 03", "lessons 08 and 04"),
    "over the end of a line": ("of lesson\n# 08, and", "of lesson\n# 12, and"),
    "over the end of a line in a list": ("lessons 03,\n04 and 08", "lessons 04,\n05 and 12"),
    "a range": ("lessons 00 to 04, and", "lessons 00 to 05, and"),
    "a range that is parted": ("lessons 03 to 08 and 16:", "lessons 04 to 12:"),
    "a range that is parted by one": ("lessons 00 to 03 and 08", "lessons 00 to 04 and 12"),
    "a range that loses one": ("lessons 02 to 04 and 08", "lessons 02 to 05 and 12"),
    "appendices": ("the appendices of 03, 04 and 08", "the appendices of 04, 05 and 12"),
    "a command": ("run `python -m slides.pdf 03`", "run `python -m slides.pdf 04`"),
    "a command with a verb": (
        "python -m tools.authoring build 03 --keep",
        "python -m tools.authoring build 04 --keep",
    ),
    "make": ('make lessons LESSONS="00 03"', 'make lessons LESSONS="00 04"'),
    "a recording": ('recorded.show("08-cpu", "x")', 'recorded.show("12-cpu", "x")'),
    "a recording's number": ('recorded.load("03").result', 'recorded.load("04").result'),
    "a test's name": (
        "def test_it_is_recorded_for_lesson_03():",
        "def test_it_is_recorded_for_lesson_04():",
    ),
}
UNCHANGED = ("03 s", "16 times", "lesson 160", "04.5", "at 08:16", "column 16",
             "lessons 20 minutes long", "04_dataset", '["16", "08"]', "3.04", "0x16",
             "lessons at 16 %", "exercise 3")  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_a_text_says_the_new_number(case):
    old, new = CHANGED[case]
    assert renumber_text(old, NAMES, NUMBERS) == new


@pytest.mark.parametrize("text", UNCHANGED)
def test_another_number_stays(text):
    assert renumber_text(text, NAMES, NUMBERS) == text


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("course/source/x.py", '#     number: "04"', '#     number: "05"'),
        ("course/source/x.py", '#     needs: ["08", "16"]', '#     needs: ["08", "12"]'),
        ("course/source/x.py", '#     needs: ["16", "a GPU"]', '#     needs: ["08", "a GPU"]'),
        (
            "slides/lecture.toml",
            'cells = [["08", "bet.reveal("], ["16", "max("]]',
            'cells = [["12", "bet.reveal("], ["08", "max("]]',
        ),
        (
            "tools/authoring/mutations.py",
            '        "16",\n        "2, 16",',
            '        "08",\n        "2, 16",',
        ),
        (
            "helpers/studies/sending.py",
            'LESSONS = ("00", "03", "08", "16")',
            'LESSONS = ("00", "04", "08", "12")',
        ),
        (
            "course/recorded/08-cpu.json",
            '"lesson": "08-cpu", "x": "16"',
            '"lesson": "12-cpu", "x": "16"',
        ),
    ],
)
def test_a_string_is_a_lessons_number_in_its_places(file, old, new):
    assert renumber_text(old, NAMES, NUMBERS, file) == new


def test_sections_stand_in_the_order_of_their_numbers():
    head, tail = "# Page\n\n## 00 Start\n\na\n\n### Part\n\n", "## End\n"
    page = f"{head}## 03 Sources\n\nb\n\n## 08 Memory\n\nc\n\n## 16 Layouts\n\nd\n\n{tail}"
    made = f"{head}## 04 Sources\n\nb\n\n## 08 Layouts\n\nd\n\n## 12 Memory\n\nc\n\n{tail}"
    assert renumber_text(page, NAMES, NUMBERS, "course/page.md") == made


@pytest.fixture
def ordered(built):
    """A course of one lesson, built, in git, whose order gives the lesson another number."""
    (built.folder / "order.toml").write_text(
        '[[acts]]\ntitle = "All"\nlessons = ["42_small_counts"]\n'
    )
    subprocess.run(["git", "init", "--quiet", built.root], check=True)
    return built


def test_files_are_renamed_and_outputs_stay(ordered):
    before = nbformat.read(ordered.folder / "90_small_counts.ipynb", as_version=4)
    renamed = renumber(ordered)
    assert "course/source/90_small_counts.py -> 42_small_counts.py" in renamed
    assert not list(ordered.root.rglob("90_*"))
    keep(ordered)
    assert audit.lessons(ordered) + audit.shared_pages(ordered) == []
    after = nbformat.read(ordered.folder / "42_small_counts.ipynb", as_version=4)
    assert after.metadata.lesson.number == "42"
    assert "*Lesson 42, " in after.cells[0].source
    shown = [
        [cell.outputs for cell in made.cells if cell.cell_type == "code"]
        for made in (before, after)
    ]
    assert shown[0] == shown[1]
    assert any(shown[0])
    assert renumber(ordered) == []


def test_a_title_alone_changes_and_every_list_of_numbers_stays(ordered, monkeypatch):
    (ordered.folder / "order.toml").write_text(
        '[[acts]]\ntitle = "All"\nlessons = ["90_few_counts"]\n'
    )
    (ordered.folder / "page.md").write_text(
        "Lessons 01 to 90 and [lesson 90](90_small_counts.ipynb) count.\n"
    )
    monkeypatch.setattr(order, "_RETITLED", {"small_counts": "few_counts"})
    assert "course/source/90_small_counts.py -> 90_few_counts.py" in renumber(ordered)
    text = "Lessons 01 to 90 and [lesson 90](90_few_counts.ipynb) count.\n"
    assert (ordered.folder / "page.md").read_text() == text
    assert not list(ordered.root.rglob("*small_counts*"))
    assert renumber(ordered) == []


def test_a_name_that_is_taken_is_refused_before_anything_is_written(ordered):
    (ordered.folder / "42_small_counts.ipynb").write_text("mine")
    with pytest.raises(AuthoringError, match=r"42_small_counts\.ipynb is there already"):
        renumber(ordered)
    assert (ordered.source_folder / "90_small_counts.py").is_file()
