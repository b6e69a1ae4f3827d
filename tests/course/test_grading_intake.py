"""What innocent students hand in counts: copied, split and unmarked cells, and files that were
downloaded twice.
"""

from __future__ import annotations

import nbformat
import pytest

from tests.course.grading_samples import ASSIGNMENT, FIRST, HEAD, SHEET, hand_in, notebook, solution
from tools.authoring.course import HERE
from tools.copies import form
from tools.exercises import sheets
from tools.exercises.sheets import WRITTEN_STUB
from tools.grading import intake

QUESTION = SHEET.written[0]
OTHER_EDITION = f"77_{ASSIGNMENT[3:]}.ipynb"
STUBS = {cell.metadata.nbgrader.grade_id: cell.source for cell in sheets.released(SHEET).cells}


def place(made, name):
    return next(
        i
        for i, cell in enumerate(made.cells)
        if cell.metadata.get("nbgrader", {}).get("grade_id") == name
    )


def copied(made, name, *sources):
    """Put cells with these sources, and the metadata of ``name``, in its place, as JupyterLab
    copies and splits.
    """
    at = place(made, name)
    cells = [
        nbformat.from_dict({**made.cells[at], "source": one, "id": f"copy-{i}"})
        for i, one in enumerate(sources)
    ]
    made.cells[at : at + 1] = cells
    return made


def without_marks(made, *, ids):
    for number, cell in enumerate(made.cells):
        cell.metadata = nbformat.from_dict({})
        cell.id = cell.id if ids else f"other-{number}"
    return made


def read(tmp_path, made):
    """Return the sources that run up to the checks of the first exercise from its answer on, and
    the notes.
    """
    found = intake.restore(SHEET, hand_in(tmp_path, "ann", made))
    names = [
        cell.metadata.get("nbgrader", {}).get("grade_id", "own") for cell in found.notebook.cells
    ]
    assert sorted(set(names) - {"own"}) == sorted(STUBS)
    ran = [
        cell.source
        for cell, name in zip(found.notebook.cells, names, strict=True)
        if name in (FIRST, "own")
    ]
    return ran, found.notes


STUB, RIGHT = STUBS[FIRST], solution(FIRST)
LOST = "answers without nbgrader's marks were found by what stands in them"
SEVERAL = f"the answer to {FIRST} came in 2 cells, which ran in their order"
INNOCENT = {
    "as it was": (lambda: notebook(), [RIGHT], ()),
    "in the reader's form": (lambda: with_pictures(notebook()), [RIGHT], ()),
    "copied, the answer below": (lambda: copied(notebook(), FIRST, STUB, RIGHT), [RIGHT], ()),
    "copied, the answer above": (lambda: copied(notebook(), FIRST, RIGHT, STUB), [RIGHT], ()),
    "copied and left so": (lambda: copied(notebook(), FIRST, RIGHT, RIGHT), [RIGHT], ()),
    "an attempt above": (
        lambda: copied(notebook(), FIRST, f"{HEAD}    return 1", RIGHT),
        [f"{HEAD}    return 1", RIGHT],
        (SEVERAL,),
    ),
    "split": (
        lambda: copied(notebook(), FIRST, "import math", RIGHT),
        ["import math", RIGHT],
        (SEVERAL,),
    ),
    "a blank in the mark": (lambda: renamed(notebook(), f" {FIRST} "), [RIGHT], ()),
    "marks lost": (
        lambda: without_marks(notebook(), ids=True),
        [RIGHT],
        ("cells without nbgrader's marks were found by their ids",),
    ),
    "marks and ids lost": (lambda: without_marks(notebook(), ids=False), [RIGHT], (LOST,)),
    "an own cell in the answer's place": (lambda: rewritten(notebook()), [RIGHT], (LOST,)),
    "a formatter": (lambda: formatted(notebook()), [RIGHT], ()),
}


def with_pictures(made):
    """As a student gets it: what is given is drawn already, as pictures attached to cells of their
    own.
    """
    drawn = nbformat.v4.new_output("display_data", {"image/png": "aGk=", "text/plain": "Bars"})
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.outputs = [drawn]
    readers = form.notebook(made)
    assert sum("attachments" in cell for cell in readers.cells) > len(SHEET.exercises)
    return readers


def renamed(made, name):
    made.cells[place(made, FIRST)].metadata.nbgrader.grade_id = name
    return made


def rewritten(made):
    made.cells[place(made, FIRST)] = nbformat.v4.new_code_cell(RIGHT)
    return made


def formatted(made):
    for cell in made.cells:
        if cell.cell_type == "code" and cell.metadata.nbgrader.locked:
            cell.source = (
                cell.source.replace('"', "'").replace(", ", ",\n    ").replace("\n", "\r\n")
            )
    return made


@pytest.mark.parametrize("case", INNOCENT)
def test_a_right_answer_is_found_and_what_was_odd_is_said(tmp_path, case):
    make, ran, notes = INNOCENT[case]
    assert read(tmp_path, make()) == (ran, notes)


@pytest.mark.parametrize("ids", [True, False])
def test_a_written_answer_is_found_without_its_mark(tmp_path, ids):
    made = notebook()
    made.cells[place(made, QUESTION)].source = "Memory."
    found = intake.clean(SHEET, hand_in(tmp_path, "ann", without_marks(made, ids=ids)))
    assert found.cells[place(found, QUESTION)].source == "Memory."


def test_a_written_answer_in_two_cells_is_read_whole_and_once(tmp_path):
    made = copied(notebook(), QUESTION, "Memory.", WRITTEN_STUB, "Then calls.", "Memory.")
    found = intake.restore(SHEET, hand_in(tmp_path, "ann", made))
    assert found.notebook.cells[place(found.notebook, QUESTION)].source == "Then calls.\n\nMemory."
    assert found.notes == (f"the answer to {QUESTION} came in 2 cells, which ran in their order",)


@pytest.mark.parametrize(
    ("name", "said"),
    [(f"{FIRST}_checks", f"the checks of {FIRST} were"), ("given_2", "a cell that was given was")],
)
def test_a_cell_that_was_given_and_changed_is_noted_and_put_back(tmp_path, name, said):
    made = notebook()
    made.cells[place(made, name)].source = "print('all reached')"
    found = intake.restore(SHEET, hand_in(tmp_path, "ann", made))
    assert found.notes == (f"{said} changed; the original counted",)
    assert found.notebook.cells[place(found.notebook, name)].source == STUBS[name]


FILES = {
    "a browser": ([f"{ASSIGNMENT} (1).ipynb"], f"{ASSIGNMENT} (1).ipynb", ""),
    "Canvas": ([f"{ASSIGNMENT}-1.ipynb"], f"{ASSIGNMENT}-1.ipynb", ""),
    "Canvas of a browser's": ([f"{ASSIGNMENT} (2)-1.ipynb"], f"{ASSIGNMENT} (2)-1.ipynb", ""),
    "Windows": ([f"{ASSIGNMENT}.IPYNB"], f"{ASSIGNMENT}.IPYNB", ""),
    "JupyterLab": ([f"{ASSIGNMENT}-Copy1.ipynb"], f"{ASSIGNMENT}-Copy1.ipynb", ""),
    "another edition's number": ([OTHER_EDITION], OTHER_EDITION, ""),
    "two editions": (
        [f"{ASSIGNMENT}.ipynb", OTHER_EDITION],
        f"{ASSIGNMENT}.ipynb",
        f"holds '{OTHER_EDITION}', of which one may be meant",
    ),
    "the name itself": ([f"{ASSIGNMENT}.ipynb", "notes.ipynb"], f"{ASSIGNMENT}.ipynb", ""),
    "a copy besides": (
        [f"{ASSIGNMENT}.ipynb", f"{ASSIGNMENT} (1).ipynb"],
        f"{ASSIGNMENT}.ipynb",
        f"holds '{ASSIGNMENT} (1).ipynb', of which one may be meant",
    ),
    "two copies": (
        [f"{ASSIGNMENT} (1).ipynb", f"{ASSIGNMENT} (2).ipynb"],
        None,
        "of which one may be meant; keep",
    ),
    "another name": (
        ["homework.ipynb"],
        None,
        "holds 'homework.ipynb', which has no name of the exercises; rename",
    ),
    "a longer name": ([f"my {ASSIGNMENT}.ipynb"], None, "rename it"),
    "nothing": ([], None, "holds no notebook"),
    "a backup": ([f".{ASSIGNMENT}.ipynb"], None, "holds no notebook"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_of_a_name_that_was_changed_is_taken_where_it_can_be_no_other(tmp_path, case):
    names, taken, said = FILES[case]
    (tmp_path / "ann").mkdir()
    for name in names:
        (tmp_path / "ann" / name).write_text("")
    found, strange = intake.find(tmp_path, [ASSIGNMENT])
    assert [one.path.name for one in found] == ([taken] if taken else [])
    assert [one.came_as for one in found] == (
        [taken.removeprefix(f"{ASSIGNMENT}.ipynb")] if taken else []
    )
    assert said in strange.get("ann", "")
    assert bool(said) == bool(strange)


def test_the_notebook_of_another_lesson_is_named(tmp_path):
    """Its cells share names with ours, and the place for an answer its text."""
    (other,) = sheets.load(HERE, ["01"])
    made = sheets.released(other)
    made.cells[place(made, other.written[0])].source = "Memory."
    with pytest.raises(
        intake.IntakeError,
        match=r"this is no notebook of Compute .*: none of its exercises is there",
    ):
        intake.restore(SHEET, hand_in(tmp_path, "ann", made))
