"""Cells that the reader writes: what a lesson's source may say of them, and what is handed to the
reader.
"""

from __future__ import annotations

import ast
import base64
import zlib

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.authoring import lesson, notebook, yours
from tools.authoring.lesson import AuthoringError
from tools.authoring.rules import checks

WORKED = '''# the ring
@torch.no_grad()
@functools.cache  # once
def ring_step(
    chunks,  # of all ranks
    rank=":",
):  # not the body
    """Return é "chunks";

    def of the ring.
    """  # told
    # a spoiler
    def inner():
        """Not this one."""
    return chunks[rank]
'''
STUB = '''# the ring
@torch.no_grad()
@functools.cache  # once
def ring_step(
    chunks,  # of all ranks
    rank=":",
):  # not the body
    """Return é "chunks";

    def of the ring.
    """
    ...'''


def test_a_stub_keeps_all_that_stands_above_the_body_and_nothing_of_it():
    assert yours.stub(WORKED) == STUB
    assert yours.stub(STUB) == STUB
    assert ast.dump(ast.parse(STUB).body[0].args) == ast.dump(ast.parse(WORKED).body[0].args)


def test_a_docstring_that_code_follows_on_its_line_ends_the_stub():
    assert yours.stub('def f(a):\n  "é two"; return a\n') == 'def f(a):\n  "é two"\n  ...'


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("x = 1", "it holds 0 functions and 1 other statements; write one function"),
        ("# nothing", "it holds 0 functions and 0 other"),
        ('def f():\n    """One."""\ndef g():\n    """Two."""', "it holds 2 functions and 0 other"),
        ('import os\ndef f():\n    """One."""', "it holds 1 functions and 1 other"),
        ('class F:\n    def f(self):\n        """One."""', "it holds 0 functions and 1 other"),
        ("def f():\n    return 1", "f has no docstring on a line of its own"),
        ('def f(): "One."', "f has no docstring on a line of its own"),
        ("def f(:", "it is not Python: "),
    ],
)
def test_a_cell_without_one_function_with_a_docstring_is_refused(source, says):
    with pytest.raises(AuthoringError, match=says):
        yours.stub(source)


def built():
    shown = new_output("execute_result", {"text/plain": "1"}, execution_count=2)
    return new_notebook(
        cells=[
            new_markdown_cell("Text"),
            new_code_cell(
                WORKED, metadata={"yours": "ring_step", "tags": ["yours"]}, execution_count=1
            ),
            new_code_cell(
                "ring_step()", outputs=[shown], execution_count=2, metadata={"checks": "ring_step"}
            ),
        ]
    )


def test_a_copy_holds_stubs_and_no_outputs_and_the_worked_version_out_of_sight():
    before = built()
    copy = yours.as_copy(before)
    assert copy.cells[1].source == STUB
    assert copy.cells[1].metadata["yours"] == "ring_step"
    assert zlib.decompress(base64.b64decode(copy.cells[1].metadata["worked"])).decode() == WORKED
    assert [(cell.execution_count, cell.outputs) for cell in copy.cells[1:]] == [(None, [])] * 2
    assert copy.cells[2].source == "ring_step()"
    assert "worked" not in copy.cells[2].metadata
    assert "a spoiler" not in nbformat.writes(copy)
    assert before.cells[1].source == WORKED
    assert "worked" not in before.cells[1].metadata
    assert before.cells[2].outputs != []
    nbformat.validate(copy)


HEADER = """# ---
# jupyter:
#   lesson:
#     number: "07"
#     title: Working set
#     needs: []
#     objectives: ["predict|predicted the peak"]
# ---

"""
SOURCE = """# %% tags=["yours"] yours="twice"
def twice(n):
    \"\"\"Return two times n.\"\"\"
    return 2 * n

# %% [markdown]
# Check it.

# %% checks="twice"
asked = exercises.Checks("Twice", twice)
asked.returns("doubles", (3,), expected=6)
twice = asked.settle()

# %% wrong="twice" says="gave 5"
def twice(n):
    return 2 + n

# %% wrong="twice" says="gave 9"
def twice(n):
    return n * n

# %%
twice(4)
"""


def parse(source=SOURCE):
    return lesson.parse(HEADER + source, number="07", slug="working_set")


def test_wrong_versions_stay_out_of_the_notebook_and_what_is_written_says_so():
    read = parse()
    built = notebook.unexecuted(read)
    assert len(built.cells) == len(read.cells) == 4
    assert [dict(cell.metadata) for cell in built.cells] == [
        {"yours": "twice", "tags": ["yours"]},
        {},
        {"checks": "twice"},
        {},
    ]
    assert [(one.name, one.says, one.gets) for one in read.wrong] == [
        ("twice", "gave 5", None),
        ("twice", "gave 9", None),
    ]
    assert "2 + n" in read.wrong[0].cell.source
    assert checks.tags(read, built) == []


WRONG = SOURCE[
    SOURCE.index('# %% wrong="twice" says="gave 5"') : SOURCE.index(
        '# %% wrong="twice" says="gave 9"'
    )
]
CHECKS = SOURCE[SOURCE.index("# %% checks") : SOURCE.index(WRONG)]
TEXT = "# %% [markdown]\n# Check it.\n\n"
WRITTEN = SOURCE[: SOURCE.index(TEXT)]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            'tags=["yours"] yours',
            "yours",
            "line 10: a cell that the reader writes begins # %% tags=",
        ),
        (' yours="twice"', "", "line 10: a cell that the reader writes begins # %% tags="),
        (
            WRITTEN,
            WRITTEN.replace("twice(n)", "double(n)"),
            "line 10: yours='twice', but its function is double",
        ),
        ('    """Return two times n."""\n', "", "line 10: twice has no docstring"),
        (
            WRITTEN,
            WRITTEN.replace("def", "factor = 2\ndef"),
            "line 10: it holds 1 functions and 1 other",
        ),
        (
            WRITTEN,
            '# %% [markdown] tags=["yours"] yours="twice"\n# Text.\n',
            "line 10: yours='twice' on a markdown",
        ),
        (CHECKS, "", 'line 10: no checks of twice; let the cell # %% checks="twice" follow'),
        (TEXT, TEXT + TEXT, "line 10: no checks of twice"),
        (TEXT, TEXT + "# %%\n1\n\n", "line 10: no checks of twice"),
        (CHECKS, '# %% [markdown] checks="twice"\n# Text.\n\n', "line 10: no checks of twice"),
        (CHECKS, CHECKS + CHECKS, "2 cells have checks='twice'; put the checks into one"),
        (
            "twice = asked.settle()",
            "asked.settle()",
            "line 10: its checks do not say which twice the cells below use",
        ),
        (
            "# %%\ntwice(4)",
            '# %% checks="thrice"\ntwice(4)',
            "checks='thrice'; no cell above has this yours",
        ),
        (WRONG, "", "line 10: 1 wrong versions of twice; write at least 2"),
        (WRONG, WRONG.replace("twice", "thrice") + WRONG, "wrong='thrice'; no cell has this yours"),
        (WRONG, WRONG.replace('says="gave 5"', ""), "a wrong answer is a code cell"),
        (WRONG, WRONG.replace('5"', '5" gets=1'), "gets=1; a lesson gives no points, remove it"),
        (
            "# %%\ntwice(4)",
            SOURCE[: SOURCE.index(WRONG)],
            "yours='twice' stands twice; give each function a name",
        ),
    ],
)
def test_an_ill_formed_source_is_refused_with_its_line_and_cure(old, new, says):
    assert SOURCE.count(old) == 1
    with pytest.raises(AuthoringError, match=says) as caught:
        parse(SOURCE.replace(old, new))
    assert str(caught.value).startswith("07_working_set.py")
