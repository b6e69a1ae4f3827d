"""What the instructor's page says of a lesson is asked in that lesson, and what it tells to run is
there.
"""

from __future__ import annotations

import ast
import re

import pytest

from tools.authoring.course import HERE
from tools.authoring.rules import links

PAGE = HERE.folder / "instructor" / "instructor.md"
TEXT = PAGE.read_text(encoding="utf-8")
LESSONS = HERE.lessons()


def questions(lesson) -> set[str]:
    """Return what the lesson asks its readers to predict."""
    found = set()
    for cell in lesson.cells:
        if cell.kind == "code" and "helpers.predict(" in cell.source:
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "helpers.predict":
                    found.add(ast.literal_eval(node.args[0]))
    return found


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.number)
def test_a_lesson_has_its_questions_what_readers_say_and_what_to_say(lesson):
    section = TEXT.partition(f"\n### {lesson.number} {lesson.title}\n")[2].partition("\n##")[0]
    rows = [
        [cell.strip() for cell in row.strip("|").split(" | ")]
        for row in section.splitlines()
        if row[:2] == "| "
    ]
    rows = [row for row in rows if row[0] != "the question"]
    assert len(rows) >= 3
    assert all(len(row) == 3 and all(row) for row in rows)
    assert {row[0] for row in rows} <= questions(lesson)


def test_the_commands_of_make_are_there():
    defined = set(
        re.findall(
            r"^([a-z]+):", (HERE.root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    named = set(re.findall(r"`make ([a-z]+)", TEXT)) | set(
        re.findall(r"^make ([a-z]+)", TEXT, re.MULTILINE)
    )
    assert {"student", "grade", "slides", "lecture"} <= named <= defined


def test_its_links_lead_somewhere():
    assert links.check_page(PAGE, root=HERE.root) == []
