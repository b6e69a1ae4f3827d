"""The reader's own copy: what it holds, and that it never loses what the reader did in it."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers import storage
from tools.authoring import order
from tools.authoring.course import HERE
from tools.copies import __main__ as command, form, update

WORKED = '''def twice(n):
    """Return two times n."""
    return n + n
'''
PIXEL = base64.b64encode(b"a picture").decode()
LINK = re.compile(r"\]\(([^)#\s]+)")
LESSON, EXERCISE, PAGE = "04_ring.ipynb", "exercises/04_ring_exercises.ipynb", "glossary.md"
APPENDIX = "appendix/04_ring.ipynb"


def lesson(text="Text", shown="42"):
    output = new_output("execute_result", {"text/plain": shown}, execution_count=1)
    return new_notebook(
        cells=[
            new_markdown_cell(
                f"{text}, [a word](glossary.md#word), [a helper](../helpers/links.py)"
            ),
            new_code_cell(WORKED, id="yours", metadata={"yours": "twice"}, execution_count=1),
            new_code_cell("twice(21)", id="run", outputs=[output], execution_count=2),
        ]
    )


def exercise():
    figure = new_output("display_data", {"image/png": PIXEL, "text/plain": "Bars, [0] to [3]"})
    cell = {
        "metadata": {"nbgrader": {"grade_id": "given_1"}},
        "execution_count": 1,
        "outputs": [figure],
    }
    return new_notebook(
        cells=[new_code_cell("draw()", id="drawn", **cell), new_code_cell("1", id="last")]
    )


def write(path, made):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made if isinstance(made, str) else nbformat.writes(made))
    return path


@pytest.fixture
def root(tmp_path):
    """The folder of a course of one lesson."""
    write(tmp_path / "course" / LESSON, lesson())
    write(
        tmp_path / "course" / APPENDIX,
        new_notebook(cells=[new_markdown_cell("[word](../glossary.md#word)")]),
    )
    write(tmp_path / "course" / EXERCISE, exercise())
    write(
        tmp_path / "course" / PAGE,
        "# Glossary\n\nFrom [lesson 04](04_ring.ipynb), [how](../CONTRIBUTING.md).\n",
    )
    write(tmp_path / "course" / "recorded" / "00.json", "{}\n")
    write(tmp_path / "course" / "scripts" / "train.py", "print(1)\n")
    write(tmp_path / "course" / "source" / "04_ring.py", WORKED)
    write(tmp_path / "course" / "instructor" / "exercises" / "04_ring_exercises.py", WORKED)
    return tmp_path


@pytest.fixture
def made(root, capsys):
    """The folder of a course, and its reader's copy."""
    assert command.main(root) == 0
    assert capsys.readouterr().out == f"my_course is made: 1 lesson; open {LESSON}\n"
    return root


def again(root, capsys):
    """Bring the copy up to date and return what the reader is told of it."""
    assert command.main(root) == 0
    *said, last = capsys.readouterr().out.splitlines()
    assert last == "my_course is up to date"
    return said


def read(root, name):
    return nbformat.read(root / "my_course" / name, as_version=4)


def change(root, name, cell, **parts):
    """Do what a reader does in JupyterLab: change a cell and save."""
    notebook = read(root, name)
    notebook.cells[cell].update(parts)
    write(root / "my_course" / name, notebook)
    return (root / "my_course" / name).read_bytes()


def everything(root):
    return {
        path: path.read_bytes()
        for path in sorted((root / "my_course").rglob("*"))
        if path.is_file()
    }


def test_a_new_copy_is_counted_and_says_where_to_begin(root, capsys):
    write(root / "course" / "11_spring.ipynb", lesson())
    assert command.main(root) == 0
    assert capsys.readouterr().out == f"my_course is made: 2 lessons; open {LESSON}\n"
    assert again(root, capsys) == []


# What it holds.


def test_a_copy_holds_the_readers_files_and_nothing_of_who_makes_the_course(made):
    found = {path.relative_to(made / "my_course").as_posix() for path in everything(made)}
    assert found == {
        LESSON,
        APPENDIX,
        EXERCISE,
        PAGE,
        "recorded/00.json",
        "scripts/train.py",
        update.MANIFEST,
    }


def test_the_reader_writes_in_a_stub_and_the_courses_version_is_out_of_sight(made):
    cell = read(made, LESSON).cells[1]
    assert cell.source == 'def twice(n):\n    """Return two times n."""\n    ...'
    assert zlib.decompress(base64.b64decode(cell.metadata.worked)).decode() == WORKED
    assert "n + n" not in (made / "my_course" / LESSON).read_text()


def test_an_appendix_keeps_its_place_and_its_links(made, capsys):
    assert read(made, APPENDIX).cells[0].source == "[word](../glossary.md#word)"
    change(made, APPENDIX, 0, source="A note")
    write(made / "course" / APPENDIX, new_notebook(cells=[new_markdown_cell("Second")]))
    said = (
        f"{APPENDIX} is yours and stays; the course has a newer version, see "
        "appendix/04_ring.new.ipynb"
    )
    assert again(made, capsys) == [said]


def test_links_out_of_the_course_are_words(made):
    assert read(made, LESSON).cells[0].source == "Text, [a word](glossary.md#word), a helper"
    page = (made / "my_course" / PAGE).read_text()
    assert page == "# Glossary\n\nFrom [lesson 04](04_ring.ipynb), how.\n"


def test_a_given_picture_is_attached_below_its_code_which_is_folded(made):
    drawn, picture, last = read(made, EXERCISE).cells
    assert (drawn.outputs, drawn.metadata.jupyter.source_hidden, last.metadata) == ([], True, {})
    assert picture.source == r"![Bars, \[0\] to \[3\]](attachment:picture.png)"
    assert picture.attachments == {"picture.png": {"image/png": PIXEL}}


def test_a_notebook_states_the_kernel_that_jupyterlab_would_write_into_it(made):
    metadata = read(made, LESSON).metadata
    assert metadata.kernelspec == {
        "name": "python3",
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
    }
    assert metadata.language_info.version == ".".join(map(str, sys.version_info[:3]))


def test_a_notebook_that_cannot_be_read_is_named(root, capsys):
    write(root / "course" / LESSON, "no notebook")
    assert command.main(root) == 1
    assert capsys.readouterr().err.startswith(f"error: {LESSON} is not a notebook (")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """The reader's copy of this course."""
    folder = tmp_path_factory.mktemp("ours") / "my_course"
    assert update.update(folder, form.files(HERE.folder)) == []
    return folder


def test_this_courses_copy_has_all_its_lessons_and_exercises_and_no_output(ours):
    notebooks = {
        path.relative_to(ours).as_posix(): json.loads(path.read_text())
        for path in ours.rglob("*.ipynb")
    }
    numbers = [one.number for one in HERE.lessons()]
    assert sorted(name[:2] for name in notebooks if "/" not in name) == numbers
    assert (
        sorted(Path(name).name[:2] for name in notebooks if name.startswith("exercises/"))
        == numbers
    )
    for name, notebook in notebooks.items():
        nbformat.validate(notebook)
        cells = notebook["cells"]
        assert [
            cell for cell in cells if cell.get("outputs") or cell.get("execution_count")
        ] == [], name
    assert sorted(name for name in notebooks if name.startswith("appendix/")) == [
        one.notebook_name for one in HERE.appendices()
    ]
    folders = {"appendix"} if HERE.appendices() else set()
    assert {path.name for path in ours.iterdir() if path.is_dir()} == {
        "checks",
        "exercises",
        "map",
        "recorded",
        "scripts",
        *folders,
    }


def test_all_links_of_this_courses_copy_lead_to_a_file_in_it(ours):
    texts = {page: page.read_text() for page in ours.rglob("*.md")}
    for page in ours.rglob("*.ipynb"):
        cells = json.loads(page.read_text())["cells"]
        texts[page] = "\n".join(
            "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
        )
    paths = [
        (page, target)
        for page, text in texts.items()
        for target in LINK.findall(text)
        if ":" not in target
    ]
    assert len(paths) > 100
    lost = [
        (page.name, target)
        for page, target in paths
        if not (page.parent / target).resolve().is_file()
    ]
    away = [
        (page.name, target)
        for page, target in paths
        if not (page.parent / target).resolve().is_relative_to(ours)
    ]
    assert (lost, away) == ([], [])


def pictures(path):
    """Return the PNG files, as base64, that a notebook's code cells show and that its text cells
    have attached.
    """
    cells = json.loads(path.read_text())["cells"]
    shown = [
        output["data"] for cell in cells for output in cell.get("outputs", []) if "data" in output
    ]
    given = [cell["attachments"]["picture.png"] for cell in cells if "attachments" in cell]
    return ["".join(one["image/png"]).strip() for one in [*shown, *given] if "image/png" in one]


def test_every_picture_of_an_exercise_of_this_course_is_attached_with_its_words(ours):
    counts = []
    for path in sorted((HERE.folder / "exercises").glob("*.ipynb")):
        copy = ours / "exercises" / path.name
        assert pictures(copy) == pictures(path)
        sources = [
            cell.source for cell in nbformat.read(copy, as_version=4).cells if "attachments" in cell
        ]
        assert all(
            len(source.partition("](attachment:picture.png)")[0]) > 20 for source in sources
        ), path.name
        counts.append(len(sources))
    assert sum(counts) > 8


@pytest.mark.parametrize("folder", ["", "exercises"])
def test_recorded_runs_and_predictions_are_found_in_the_copy(made, monkeypatch, folder):
    monkeypatch.chdir(made / "my_course" / folder)
    assert storage.course_folder() == made / "my_course"
    assert storage.course_file("scripts", "train.py").read_text() == "print(1)\n"


# What happens to it when the course moves on.


def test_a_second_time_nothing_is_written(made, capsys):
    before = {path: path.stat().st_ino for path in everything(made)}
    del before[made / "my_course" / update.MANIFEST]
    assert again(made, capsys) == []
    assert {path: path.stat().st_ino for path in before} == before


def test_what_the_reader_left_alone_is_brought_up_to_date(made, capsys):
    write(made / "course" / LESSON, lesson("New text"))
    write(made / "course" / PAGE, "# New\n")
    assert again(made, capsys) == []
    assert read(made, LESSON).cells[0].source.startswith("New text")
    assert (made / "my_course" / PAGE).read_text() == "# New\n"
    assert len(everything(made)) == 7


CHANGES = {
    "a source": (1, {"source": WORKED.replace("n + n", "2 * n")}),
    "a note": (0, {"source": "My note"}),
    "an output": (2, {"outputs": [new_output("stream", text="42\n")]}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_the_reader_changed_stays_and_the_new_version_lies_beside_it(made, capsys, what):
    place, parts = CHANGES[what]
    mine = change(made, LESSON, place, **parts)
    assert again(made, capsys) == []
    assert len(everything(made)) == 7
    write(made / "course" / LESSON, lesson("New text"))
    said = [
        "04_ring.ipynb is yours and stays; the course has a newer version, see 04_ring.new.ipynb"
    ]
    assert again(made, capsys) == said
    assert (made / "my_course" / LESSON).read_bytes() == mine
    assert read(made, "04_ring.new.ipynb").cells[0].source.startswith("New text")
    assert again(made, capsys) == []


def test_a_new_version_gives_way_to_a_newer_one_unless_the_reader_wrote_in_it(made, capsys):
    change(made, LESSON, 0, source="My note")
    for text, said in (("Second", "04_ring.new.ipynb"), ("Third", "04_ring.new.ipynb")):
        write(made / "course" / LESSON, lesson(text))
        assert again(made, capsys)[0].endswith(said)
        assert read(made, "04_ring.new.ipynb").cells[0].source.startswith(text)
    mine = change(made, "04_ring.new.ipynb", 0, source="Another note")
    write(made / "course" / LESSON, lesson("Fourth"))
    assert again(made, capsys)[0].endswith("see 04_ring.new2.ipynb")
    assert (made / "my_course" / "04_ring.new.ipynb").read_bytes() == mine
    assert read(made, "04_ring.new2.ipynb").cells[0].source.startswith("Fourth")


def test_what_jupyterlab_notes_besides_is_no_change_of_the_readers(made, capsys):
    notebook = read(made, LESSON)
    notebook.metadata.language_info.version = "3.99"
    notebook.cells[2].update(execution_count=7, metadata={"collapsed": True})
    write(made / "my_course" / LESSON, notebook)
    write(made / "course" / LESSON, lesson("New text"))
    assert again(made, capsys) == []
    assert read(made, LESSON).cells[0].source.startswith("New text")


def test_another_python_makes_no_new_version(made, capsys, monkeypatch):
    mine = change(made, LESSON, 0, source="My note")
    monkeypatch.setattr(
        form, "_kernel", lambda: {"language_info": {"name": "python", "version": "3.99"}}
    )
    assert again(made, capsys) == []
    assert (made / "my_course" / LESSON).read_bytes() == mine
    assert not (made / "my_course" / "04_ring.new.ipynb").exists()


def test_a_page_and_a_damaged_notebook_of_the_readers_stay_too(made, capsys):
    for name, text in ((PAGE, "Mine\n"), (LESSON, "{")):
        write(made / "my_course" / name, text)
    write(made / "course" / LESSON, lesson("New text"))
    write(made / "course" / PAGE, "# New\n")
    assert [line.rpartition(" ")[2] for line in again(made, capsys)] == [
        "04_ring.new.ipynb",
        "glossary.new.md",
    ]
    assert [(made / "my_course" / name).read_text() for name in (PAGE, LESSON)] == ["Mine\n", "{"]


def test_what_is_gone_from_the_course_stays_and_what_the_reader_removed_comes_back(made, capsys):
    (made / "course" / PAGE).unlink()
    (made / "my_course" / LESSON).unlink()
    assert again(made, capsys) == [f"{PAGE} is no longer part of the course; it stays as it is"]
    assert (made / "my_course" / PAGE).exists()
    assert (made / "my_course" / LESSON).exists()
    assert again(made, capsys) == []


def renumber(root):
    """Give the course's one lesson the number 05, as an update of the course does."""
    for path in list((root / "course").rglob("04_*.ipynb")):
        path.rename(path.with_name(path.name.replace("04_", "05_")))
    text = "# Glossary\n\nFrom [lesson 05](05_ring.ipynb), [how](../CONTRIBUTING.md).\n"
    write(root / "course" / PAGE, text)


def names(root):
    return {path.relative_to(root / "my_course").as_posix() for path in everything(root)}


def test_a_lesson_with_a_new_number_takes_its_files_along_and_nothing_is_said(made, capsys):
    before = names(made)
    renumber(made)
    write(made / "course" / "05_ring.ipynb", lesson("New text"))
    assert again(made, capsys) == []
    assert names(made) == {name.replace("04_", "05_") for name in before}
    assert read(made, "05_ring.ipynb").cells[0].source.startswith("New text")
    assert again(made, capsys) == []


def test_what_the_reader_wrote_is_found_under_the_new_number(made, capsys):
    """Cells, a new version beside, a copy of the reader's own, and the predictions: each to the
    byte.
    """
    write(made / "my_course" / update.PREDICTIONS, '[{"question": "How long?", "value": 3}]\n')
    change(made, LESSON, 0, source="My note")
    write(made / "course" / LESSON, lesson("Second"))
    again(made, capsys)
    write(made / "my_course" / "04_ring-Copy1.ipynb", lesson("Mine too"))
    change(made, EXERCISE, 1, source="2")
    theirs = {
        path.name: path.read_bytes() for path in everything(made) if path.name != update.MANIFEST
    }
    renumber(made)
    write(made / "course" / "05_ring.ipynb", lesson("Third"))
    said = again(made, capsys)
    assert "04_ring.ipynb is 05_ring.ipynb now: its lesson has another number" in said
    assert (
        "exercises/04_ring_exercises.ipynb is exercises/05_ring_exercises.ipynb now: its lesson "
        "has another number" in said
    )
    assert (
        "05_ring.ipynb is yours and stays; the course has a newer version, see 05_ring.new.ipynb"
        in said
    )
    kept = {path.name: path.read_bytes() for path in everything(made)}
    for name in (
        "04_ring.ipynb",
        "04_ring-Copy1.ipynb",
        "04_ring_exercises.ipynb",
        update.PREDICTIONS,
    ):
        assert kept[name.replace("04_", "05_")] == theirs[name]
    assert not [name for name in kept if name.startswith("04_")]
    assert read(made, "05_ring.new.ipynb").cells[0].source.startswith("Third")
    assert again(made, capsys) == []


def test_what_the_reader_wrote_is_found_under_the_new_title(made, capsys, monkeypatch):
    change(made, LESSON, 0, source="My note")
    write(made / "my_course" / "04_ring-Copy1.ipynb", lesson("Mine too"))
    theirs = {
        path.name: path.read_bytes() for path in everything(made) if path.name != update.MANIFEST
    }
    for path in list((made / "course").rglob("04_*.ipynb")):
        path.rename(path.with_name(path.name.replace("04_ring", "04_line")))
    write(
        made / "course" / PAGE,
        "# Glossary\n\nFrom [lesson 04](04_line.ipynb), [how](../CONTRIBUTING.md).\n",
    )
    write(made / "course" / "04_line.ipynb", lesson("Second"))
    monkeypatch.setattr(order, "_RETITLED", {"ring": "line"})
    said = again(made, capsys)
    assert said == [
        "04_ring-Copy1.ipynb is 04_line-Copy1.ipynb now: its lesson has another name",
        "04_ring.ipynb is 04_line.ipynb now: its lesson has another name",
        "04_line.ipynb is yours and stays; the course has a newer version, see 04_line.new.ipynb",
    ]
    kept = {path.name: path.read_bytes() for path in everything(made)}
    for name in ("04_ring.ipynb", "04_ring-Copy1.ipynb", "04_ring_exercises.ipynb"):
        assert kept[name.replace("04_ring", "04_line")] == theirs[name]
    assert not [name for name in kept if name.startswith("04_ring")]
    assert again(made, capsys) == []


def test_a_file_under_the_new_number_is_not_written_over(made, capsys):
    mine = change(made, LESSON, 0, source="My note")
    write(made / "my_course" / "05_ring.ipynb", lesson("Mine too"))
    renumber(made)
    said = again(made, capsys)
    assert f"{LESSON} is no longer part of the course; it stays as it is" in said
    assert (made / "my_course" / LESSON).read_bytes() == mine
    assert read(made, "05_ring.ipynb").cells[0].source.startswith("Mine too")


@pytest.mark.parametrize("damaged", ["{", "[]", '{"04_ring.ipynb": {"what": 1}}'])
def test_without_its_memory_all_that_differs_is_the_readers(made, capsys, damaged):
    mine = change(made, LESSON, 0, source="My note")
    write(made / "my_course" / update.MANIFEST, damaged)
    write(made / "course" / PAGE, "# New\n")
    said = again(made, capsys)
    assert "is damaged: every file that differs" in said[0]
    assert [line.rpartition(" ")[2] for line in said[1:]] == [
        "04_ring.new.ipynb",
        "glossary.new.md",
    ]
    assert (made / "my_course" / LESSON).read_bytes() == mine
    assert again(made, capsys) == []


def test_when_the_disk_refuses_nothing_is_lost_and_it_is_taken_up_again(root, capsys, monkeypatch):
    def full(path, data):
        if Path(path).name == PAGE:
            raise OSError("the disk is full")
        storage.write_atomically(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(update, "write_atomically", full)
        assert command.main(root) == 1
    assert capsys.readouterr().err == "error: the disk is full\n"
    mine = change(root, LESSON, 0, source="My note")
    write(root / "course" / LESSON, lesson("New text"))
    assert again(root, capsys) == [
        "04_ring.ipynb is yours and stays; the course has a newer version, see 04_ring.new.ipynb"
    ]
    assert (root / "my_course" / LESSON).read_bytes() == mine
    assert (root / "my_course" / PAGE).exists()


def test_earlier_predictions_are_taken_along_once_and_later_ones_stay(root, capsys):
    theirs = root / "my_course" / "my_predictions.json"
    write(root / "course" / "my_predictions.json", "[1]")
    assert command.main(root) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "your predictions from course are taken along"
    ]
    assert theirs.read_text() == "[1]"
    assert theirs.stat().st_mode & 0o777 == 0o600
    theirs.write_text("[1, 2]")
    assert again(root, capsys) == []
    assert theirs.read_text() == "[1, 2]"
    theirs.unlink()
    assert again(root, capsys) == []
    assert not theirs.exists()


# only `make test` installs them
ABSENT = ("jupytext", "nbgrader", "playwright", "pytest", "sphinx_revealjs")
WITHOUT = f"""import sys
from pathlib import Path
sys.modules.update(dict.fromkeys({ABSENT!r}))
from tools.copies.__main__ import main
sys.exit(main(Path(sys.argv[1])))
"""


def test_it_is_made_where_the_courses_own_tools_are_not_installed(root):
    words = [sys.executable, "-c", WITHOUT, str(root)]
    done = subprocess.run(words, cwd=HERE.root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (root / "my_course" / LESSON).exists()
