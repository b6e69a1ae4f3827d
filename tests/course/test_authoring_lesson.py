"""A source is read as it is meant, and an ill-formed one is refused in a sentence that says what to
write.
"""

from __future__ import annotations

import pytest

from tools.authoring import lesson
from tools.authoring.lesson import AuthoringError

HEADER = """# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3, language: python}
#   lesson:
#     number: "07"
#     title: Working set
#     needs: ["00", "a CUDA device (optional)"]
#     objectives:
#       - predict|predicted the peak
#       - tell apart|told apart bytes and counts.
# ---
"""
CELLS = """
# %% [markdown] tags=["objectives"]
# # Working set
# text

# %% tags=["run", "nbval-ignore-output"] minutes=2
1 + 1
# %%
%matplotlib inline
print("# %%")
"""


def parse(script, number="07", slug="working_set"):
    return lesson.parse(script, number=number, slug=slug)


def test_a_source_is_read_whole():
    read = parse(HEADER + CELLS)
    assert (read.number, read.slug, read.title) == ("07", "working_set", "Working set")
    assert read.needs == ("00", "a CUDA device (optional)")
    assert [(one.future, one.done) for one in read.objectives] == [
        ("predict the peak", "predicted the peak"),
        ("tell apart bytes and counts", "told apart bytes and counts"),
    ]
    assert [(cell.kind, cell.tags, dict(cell.metadata), cell.line) for cell in read.cells] == [
        ("markdown", ("objectives",), {}, 13),
        ("code", ("run", "nbval-ignore-output"), {"minutes": 2}, 17),
        ("code", (), {}, 19),
    ]
    assert read.cells[0].source == "# Working set\ntext"
    assert read.cells[2].source == '%matplotlib inline\nprint("# %%")'
    assert (read.name, read.notebook_name) == ("07_working_set", "07_working_set.ipynb")


@pytest.mark.parametrize(
    "change", [lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text]
)
def test_line_ends_and_byte_order_mark_of_other_systems_change_nothing(tmp_path, change):
    path = tmp_path / "07_working_set.py"
    path.write_bytes(change(HEADER + CELLS).encode())
    assert lesson.read(path) == parse(HEADER + CELLS)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("# ---\n# jupyter", "# jupyter", "begin it with a header"),
        ("#   lesson:", "#   lessons:", "no 'jupyter: lesson:'"),
        ("# jupyter:", "# jupyter: 3", "not YAML"),
        ("    title:", "    minutes: 45\n#     name:", "missing: title; unknown: minutes, name"),
        ('number: "07"', "number: 07", "two digits of the file name in quotes"),
        ('number: "07"', 'number: "08"', "the file name says '07'"),
        ("title: Working set", "title:", "title is None; write a few words"),
        ('needs: ["00", "a CUDA device (optional)"]', "needs: [00]", "needs is [0]"),
        ('needs: ["00", "a CUDA device (optional)"]', "needs:", "needs is None"),
        (
            "predict|predicted the peak",
            "predict|predicted: the peak",
            "a text with a colon in it stands in quotes",
        ),
        ("predict|predicted the peak", "predict the peak", "is not 'verb|past tense rest'"),
        ("predict|predicted the peak", "predict|predicted", "is not 'verb|past tense rest'"),
        ("predict|predicted the peak", "'|predicted the peak'", "is not 'verb|past tense rest'"),
        (
            "predict|predicted the peak",
            "predict|predicted the peak|twice",
            "is not 'verb|past tense rest'",
        ),
        ("# text", "", None),
        ("1 + 1\n", "", "line 17: an empty cell"),
        ("[markdown]", "[raw]", "a raw cell; use markdown or code"),
        ('["run", "nbval-ignore-output"]', '"run"', "'run' is not of type 'array'"),
        ("# ---\n\n# %%", "# ---\nimport torch\n\n# %%", "put no text between the header"),
    ],
)
def test_each_fault_of_a_source_has_its_own_sentence(old, new, says):
    script = HEADER + CELLS
    assert old in script
    if says is None:
        parse(script.replace(old, new))
        return
    with pytest.raises(AuthoringError) as caught:
        parse(script.replace(old, new, 1))
    assert says in str(caught.value)
    assert "07_working_set.py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_source_without_cells_is_refused():
    with pytest.raises(AuthoringError, match="has no cells"):
        parse(HEADER)


def test_an_empty_file_is_refused():
    with pytest.raises(AuthoringError, match="begin it with a header"):
        parse("")


@pytest.mark.parametrize(
    "name", ["7_working_set.py", "07-working-set.py", "07_Working.py", "notes.py"]
)
def test_a_file_name_that_is_no_lessons_is_refused(tmp_path, name):
    (tmp_path / name).write_text(HEADER + CELLS)
    with pytest.raises(AuthoringError, match=r"name a source NN_title\.py"):
        lesson.read(tmp_path / name)


def test_a_source_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "07_working_set.py"
    path.write_bytes(b"# \xff\n")
    with pytest.raises(AuthoringError, match="cannot be read as UTF-8"):
        lesson.read(path)
