"""A notebook is filled from the metadata, and the same outputs give the same bytes."""

from __future__ import annotations

import io
from base64 import b64encode

import matplotlib.image
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools.authoring import lesson, notebook

SOURCE = """# ---
# jupyter:
#   lesson:
#     number: "07"
#     title: Working set
#     needs: ["00", "patience"]
#     objectives:
#       - predict|predicted the peak
#       - count|counted `bytes`
# ---

# %% [markdown] tags=["objectives"]
# How much?

# %%
1 + 1

# %%
1 + 1

# %% [markdown] tags=["recap"]
# ## Recap
"""


def read(script=SOURCE):
    return lesson.parse(script, number="07", slug="working_set")


def picture(**metadata):
    figure = plt.figure(figsize=(1, 1))
    figure.add_subplot().plot([1, 2])
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata=metadata)
    plt.close(figure)
    return buffer.getvalue()


def run_notebook(*outputs):
    return new_notebook(
        cells=[new_code_cell("1", id="a", outputs=list(outputs), execution_count=7)]
    )


def test_objectives_stand_in_the_future_and_in_the_past():
    built = notebook.unexecuted(read())
    assert built.cells[0].source == (
        "# Working set\n\n*Lesson 07, about 5 minutes. Needs: 00, patience.*\n\nHow much?\n\n"
        "After this lesson you will be able to:\n\n- predict the peak\n- count `bytes`"
    )
    assert (
        built.cells[-1].source
        == "## Recap\n\nIn this lesson you:\n\n- predicted the peak\n- counted `bytes`"
    )


def test_a_lesson_that_is_needed_becomes_a_link():
    first = lesson.parse(SOURCE.replace('"07"', '"00"'), number="00", slug="start_here")
    assert (
        "Needs: [lesson 00](00_start_here.ipynb), patience."
        in notebook.unexecuted(read(), [first]).cells[0].source
    )


def test_a_title_in_the_source_is_kept_and_needs_may_be_nothing():
    script = SOURCE.replace("# How much?", "# # Working set\n#\n# How much?").replace(
        '["00", "patience"]', "[]"
    )
    assert (
        notebook.unexecuted(read(script))
        .cells[0]
        .source.startswith(
            "# Working set\n\n*Lesson 07, about 5 minutes. Needs: nothing beyond this "
            "machine.*\n\nHow much?\n\n"
        )
    )


def test_ids_come_from_the_content_and_equal_cells_have_their_own():
    ids = [cell.id for cell in notebook.unexecuted(read()).cells]
    assert ids[2] == f"{ids[1]}-2"
    longer = SOURCE.replace(
        '# %% [markdown] tags=["recap"]', '# %%\n2 + 2\n\n# %% [markdown] tags=["recap"]'
    )
    after = [cell.id for cell in notebook.unexecuted(read(longer)).cells]
    assert after[:3] + after[4:] == ids
    nbformat.validate(notebook.unexecuted(read()))


def test_metadata_is_the_lessons_and_names_no_version_of_python():
    metadata = notebook.unexecuted(read()).metadata
    assert metadata.lesson == {
        "number": "07",
        "title": "Working set",
        "minutes": 5,
        "run_s": 0,
        "needs": ["00", "patience"],
        "objectives": ["predict|predicted the peak", "count|counted `bytes`"],
    }
    assert "version" not in metadata.language_info
    assert set(metadata) == {"kernelspec", "language_info", "lesson"}


def test_outputs_are_kept_where_only_text_and_tags_have_changed():
    old = notebook.unexecuted(read())
    for count, cell in enumerate(cell for cell in old.cells if cell.cell_type == "code"):
        cell.outputs = [new_output("stream", text=str(count))]
    changed = SOURCE.replace("How much?", "How many?").replace(
        "# %%\n1 + 1", '# %%  tags=["run"]\n1 + 1', 1
    )
    kept = notebook.with_outputs(read(changed), (), old)
    assert [cell.outputs[0].text for cell in kept.cells if cell.cell_type == "code"] == ["0", "1"]
    assert "How many?" in kept.cells[0].source
    assert kept.cells[1].metadata.tags == ["run"]


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        (
            "1 + 1\n\n# %% [markdown]",
            "1 + 2\n\n# %% [markdown]",
            "from line 18 of 07_working_set.py on",
        ),
        ("# %%\n1 + 1\n\n# %% [markdown]", "# %% [markdown]", "at the end"),
        (
            "# %%\n1 + 1\n\n# %% [markdown]",
            "# %%\n1 + 1\n\n# %%\n2\n\n# %% [markdown]",
            "from line 21 of 07_working",
        ),
    ],
)
def test_outputs_of_other_code_are_not_kept(old, new, where):
    assert SOURCE.count(old) == 1
    with pytest.raises(lesson.AuthoringError, match=f"{where}.* run make lessons LESSONS=07"):
        notebook.with_outputs(read(SOURCE.replace(old, new)), (), notebook.unexecuted(read()))


def test_execution_is_counted_from_one():
    text = notebook.canonical(
        run_notebook(new_output("execute_result", {"text/plain": "1"}, execution_count=7))
    )
    cell = nbformat.reads(text, as_version=4).cells[0]
    assert cell.execution_count == cell.outputs[0].execution_count == 1


def test_streams_that_touch_are_one_and_order_is_kept():
    outputs = [new_output("stream", name="stdout", text=text) for text in ("a\n", "b\n")]
    shown = new_output("display_data", {"text/plain": "figure"})
    last = new_output("stream", name="stdout", text="c\n")
    cell = nbformat.reads(
        notebook.canonical(run_notebook(*outputs, shown, last)), as_version=4
    ).cells[0]
    assert [output.get("text") for output in cell.outputs] == ["a\nb\n", None, "c\n"]


def test_a_live_widget_leaves_its_text():
    shown = new_output(
        "display_data", {"text/plain": "slider", notebook.WIDGET_VIEW: {"model_id": "6f0a"}}
    )
    text = notebook.canonical(run_notebook(shown))
    assert "6f0a" not in text
    assert nbformat.reads(text, as_version=4).cells[0].outputs[0].data == {"text/plain": "slider"}


def test_an_error_keeps_its_last_line():
    error = new_output(
        "error",
        ename="ValueError",
        evalue="no",
        traceback=["File /home/ann/x.py", "ValueError: no"],
    )
    assert nbformat.reads(notebook.canonical(run_notebook(error)), as_version=4).cells[0].outputs[
        0
    ].traceback == ["ValueError: no"]


def test_a_picture_keeps_its_pixels_and_not_its_program():
    one, other = picture(Software="a"), picture(Software="b", Author="c")
    assert one != other
    assert (
        notebook.plain_png(one)
        == notebook.plain_png(other)
        == notebook.plain_png(notebook.plain_png(one))
    )
    before, after = (
        matplotlib.image.imread(io.BytesIO(data)) for data in (one, notebook.plain_png(one))
    )
    assert np.array_equal(before, after)


def test_the_same_pixels_give_the_same_notebook():
    texts = {
        notebook.canonical(
            run_notebook(new_output("display_data", {"image/png": b64encode(data).decode() + "\n"}))
        )
        for data in (picture(Software="a"), picture(Software="b"))
    }
    assert len(texts) == 1


@pytest.mark.parametrize("data", [b"GIF89a", b"", picture()[:-6], picture()[:45]])
def test_what_is_no_whole_png_is_refused(data):
    with pytest.raises(ValueError, match="PNG"):
        notebook.plain_png(data)


def test_canonical_text_is_its_own_canonical_text_and_leaves_its_argument_alone():
    given = run_notebook(
        new_output("stream", name="stdout", text="b"), new_output("stream", name="stdout", text="a")
    )
    before = nbformat.from_dict(given)
    text = notebook.canonical(given)
    assert notebook.canonical(nbformat.reads(text, as_version=4)) == text
    assert text.endswith("}\n")
    assert given == before
