"""Each rule of the form is broken alone, in a lesson that keeps all the others; other lessons need
not keep them.
"""

from __future__ import annotations

from dataclasses import replace

import nbformat
import pytest
from nbformat.v4 import new_output

from helpers.widgets import Answer, Prediction
from tools.authoring import audit, lesson, notebook
from tools.authoring.course import Course
from tools.authoring.rules import form

HEADER = """# ---
# jupyter:
#   lesson:
#     number: "90"
#     title: Sums
#     needs: []
#     objectives: ["write|wrote a sum"]
# ---

# %% [markdown] tags=["objectives"]
# ## Part 1. Sums

"""
WRITTEN = """# %% tags=["yours"] yours="{name}"
def {name}(n):
    \"\"\"Return n.\"\"\"
    return n

# %% checks="{name}"
{name} = asked.settle()

# %% wrong="{name}" says="one"
1

# %% wrong="{name}" says="two"
2

"""
ASKED = """# %%
{name} = helpers.predict("How much is {name}?", "{unit}")
{name}

# %%
print("between")

# %%
print("above")
{name}.reveal(counted=1)

"""
UNITS = {"time": "s", "ratio": "x", "count": "messages", "share": "%"}
ANSWERS = {"time": 0.0413, "ratio": 32.34, "count": 1024, "share": 9}
SOURCE = (
    HEADER
    + "".join(WRITTEN.format(name=name) for name in ("one", "two", "three"))
    + "".join(ASKED.format(name=name, unit=unit) for name, unit in UNITS.items())
)


def parse(source=SOURCE):
    return lesson.parse(source, number="90", slug="sums")


def printed(text):
    return new_output("stream", text=text)


def displayed(text, **data):
    return new_output("display_data", {"text/plain": text, **data})


def run(read):
    """Return the notebook of a lesson with the outputs that its predictions, reveals and prints
    have.
    """
    built = notebook.unexecuted(read)
    for cell in built.cells:
        for name, unit in UNITS.items():
            question = f"How much is {name}?"
            if f'predict("{question}"' in cell.source:
                cell.outputs = [displayed(f"{question} [{unit}]\nno prediction made")]
            if f"{name}.reveal" in cell.source:
                answer = Answer(question, unit, None, 2.5 * ANSWERS[name], ANSWERS[name], "counted")
                cell.outputs = [printed("above\n"), displayed(str(answer))]
        if "between" in cell.source:
            cell.outputs = [
                printed(
                    "between 41 and 42 ms, 32.35x, 11,024 messages, 9 messages: 1,024.5 or 99 %\n"
                )
            ]
    return built


READ = parse()
BUILT = run(READ)


@pytest.fixture
def built():
    return nbformat.from_dict(BUILT)


def place(built, text, nth=0):
    return [index for index, cell in enumerate(built.cells) if text in cell.source][nth]


def test_a_good_lesson_breaks_no_rule(built):
    assert form.check(READ, built) == []
    assert [one.text for one in form.questions(built)] == [f"How much is {name}?" for name in UNITS]


def test_a_prediction_shows_as_the_rule_reads_it(monkeypatch):
    """Headless, so that the question is text."""
    shown = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, raw: shown.append(data["text/plain"])
    )
    Prediction("How much is time?", "s")._ipython_display_()
    assert shown == ["How much is time? [s]\nno prediction made"]


def test_a_lesson_without_cells_to_write_need_not_keep_the_form(built):
    plain = parse(HEADER + "# %%\n" + "x = 1\n" * 25)
    made = notebook.unexecuted(plain)
    assert form.sizes(plain, made) != []
    assert form.check(plain, made) == []


MORE = "# %%\n1\n\n"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (MORE * 43, "61 code cells, at most 60"),
        (f"# %% [markdown]\n# {'word ' * 2600}\n", "250. words, at most 2600"),
        ("# %% [markdown]\n" + "# ## Part 2\n# text\n" * 6, "7 parts, at most 6"),
        (("# %%\n" + "1\n" * 7 + "\n") * 30, "7 lines in the median code cell, at most 6"),
        (
            "".join(WRITTEN.format(name=f"f{n}") for n in range(4)),
            "7 functions that the reader writes, 3 to 6",
        ),
        ("# %%\n" + 'a = predict("?", "s")\n' * 5, "9 predictions, 4 to 8"),
        ("# %%\n" + "1\n" * 21, "21 lines of code, at most 20"),
        (f"# %%\n{'1' * 96}\n", "a line of 96 characters, at most 95"),
    ],
)
def test_a_lesson_that_is_too_large_is_told_how_much(more, says):
    read = parse(SOURCE + more)
    made = notebook.unexecuted(read)
    found = [problem.what for problem in form.sizes(read, made)]
    assert [what for what in found if says.replace("250.", str(form.words(made))) in what], found


def test_the_words_of_the_objectives_count():
    read = parse()
    more = replace(read, objectives=read.objectives * 2)
    assert form.words(notebook.unexecuted(more)) > form.words(notebook.unexecuted(read))


def test_a_lesson_as_large_as_may_be_is_not_told(built):
    fits = MORE * 42 + f"# %%\n{'1' * 95}\n" + ""
    read = parse(SOURCE + fits.replace(MORE, "# %%\n" + "1\n" * 20 + "\n", 1))
    assert sum(cell.kind == "code" for cell in read.cells) == 61
    read = replace(read, cells=read.cells[:-2])
    assert form.sizes(read, notebook.unexecuted(read)) == []


def test_too_few_cells_to_write_and_too_few_predictions():
    read = parse(HEADER + WRITTEN.format(name="one"))
    assert [problem.what for problem in form.sizes(read, notebook.unexecuted(read))] == [
        "1 functions that the reader writes, 3 to 6",
        "0 predictions, 4 to 8",
    ]


@pytest.mark.parametrize(
    "line", ["it is larger: True", "the order holds: False", "    all equal: True"]
)
@pytest.mark.parametrize("make", [printed, displayed])
def test_a_line_that_ends_in_a_boolean(built, line, make):
    index = place(built, "between")
    built.cells[index].outputs = [make(f"first\n{line}\nlast")]
    [problem] = form.check(READ, built)
    assert (problem.cell, problem.what) == (
        index,
        f"shows {line.strip()!r}; show the two numbers and a sentence, and assert what must hold",
    )


def test_a_boolean_in_a_line_or_of_a_table_is_none(built):
    built.cells[place(built, "between")].outputs = [
        printed("True\nis it so: True, it is\n{'a': True}\n")
    ]
    assert form.check(READ, built) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("time", "it took 41.3 ms"),
        ("time", "rows 41.3, 7"),
        ("ratio", "32.3x"),
        ("ratio", "(32.3 times)"),
        ("count", "1024"),
        ("count", "sent 1,024."),
        ("share", "9%"),
    ],
)
@pytest.mark.parametrize("where", ["predict", "between", "reveal"])
def test_an_answer_that_is_given_away(built, name, text, where):
    cells = {
        "predict": place(built, f'predict("How much is {name}'),
        "reveal": place(built, f"{name}.reveal"),
    }
    cells["between"] = cells["predict"] + 1
    built.cells[cells[where]].outputs.insert(0, printed(f"{text}\n"))
    [problem] = form.check(READ, built)
    assert problem.cell == cells[where]
    assert f"before {name} is revealed as " in problem.what


@pytest.mark.parametrize("text", ["memory 32.3 GiB", "32.3 us", "32.3 GFLOP/s"])
def test_the_number_of_a_ratio_before_a_unit_tells_nothing_of_it(built, text):
    built.cells[place(built, 'predict("How much is ratio') + 1].outputs.insert(
        0, printed(f"{text}\n")
    )
    assert form.check(READ, built) == []


def test_an_answer_in_a_table_of_html_is_given_away_and_its_style_is_none(built):
    table = displayed(
        "a table", **{"text/html": "<table style='width:1024px'><tr><td>7</td></tr></table>"}
    )
    index = place(built, 'predict("How much is count') + 1
    built.cells[index].outputs = [table]
    assert form.check(READ, built) == []
    table.data["text/html"] = table.data["text/html"].replace("<td>7", "<td>1024")
    assert [one.what[:37] for one in form.check(READ, built)] == [
        "shows '1024' before count is revealed"
    ]


def test_after_the_reveal_and_before_the_question_an_answer_is_no_secret(built):
    built.cells[place(built, "time.reveal")].outputs.append(printed("41.3 ms, 32.3x, 1024, 9%"))
    built.cells[0].outputs = built.cells[place(built, "asked.settle")].outputs = [
        printed("41.3 ms")
    ]
    assert form.check(READ, built) == []


def test_a_model_is_the_answer_where_nothing_else_is(built):
    index = place(built, "time.reveal")
    built.cells[index].outputs[1] = displayed(
        str(Answer("How much is time?", "s", None, 0.0413, None))
    )
    built.cells[index].outputs[0] = printed("41.3 ms")
    assert "'41.3 ms' before time is revealed" in str(form.check(READ, built)[0])


@pytest.mark.parametrize("fault", ["reveal", "question"])
def test_a_prediction_that_is_not_shown_or_not_revealed(built, fault):
    if fault == "reveal":
        built.cells[place(built, "time.reveal")].source = "1"
        says = "time is predicted and never revealed"
    else:
        built.cells[place(built, 'predict("How much is time')].outputs = []
        says = "time is not shown; let it be the cell's last line"
    [problem] = form.check(READ, built)
    assert says in problem.what


def test_a_prediction_that_no_rule_can_follow():
    read = parse(SOURCE + '# %%\nasked = [helpers.predict("How much?", "s")]\n')
    assert [problem.what[:38] for problem in form.answers(read, run(read))] == [
        "a prediction is not a line name = help"
    ]


def test_two_lessons_do_not_share_the_name_of_a_function(tmp_path):
    course = Course(tmp_path)
    course.source_folder.mkdir(parents=True)
    for number, names in (("90", ("one", "two")), ("91", ("three", "two"))):
        text = HEADER.replace("90", number) + "".join(WRITTEN.format(name=name) for name in names)
        (course.source_folder / f"{number}_sums.py").write_text(text)
    assert [str(problem) for problem in audit.owners(course)] == [
        "91_sums.py: yours='two' stands in lesson 90 too; give each function a name of its own"
    ]
