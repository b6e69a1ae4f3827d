"""The rules of the page, each broken alone in a lesson that keeps all the others."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from nbformat.v4 import new_output

from helpers.widgets import Answer
from tools.authoring import lesson, machine_map, notebook
from tools.authoring.cells import AuthoringError
from tools.authoring.order import Act, Way
from tools.authoring.rules import page, symbols

HEADER = """# ---
# jupyter:
#   lesson:
#     number: "90"
#     title: Sums
#     needs: []
#     objectives: ["write|wrote a sum"]
# ---

# %% [markdown] tags=["objectives"]
# A sum of a thousand numbers takes a microsecond. Where does it go?

"""
PART = """# %% [markdown]
# ## Part {number}: sums
#
# How long does a sum take? We ask it now, because the parts below need it.
#
# - A list comes after the question
#
# Each number is read once.

# %% tags=["yours"] yours="{name}" takes=8
def {name}(n):
    \"\"\"Return n.\"\"\"
    return n

# %% checks="{name}"
{name} = check({name})

# %% wrong="{name}" says="one"
1

# %% wrong="{name}" says="two"
2

# %% right="{name}" style=1
3

# %% right="{name}" style=2
4

# %% [markdown]
# The next cell asks.

# %%
q_{name} = helpers.predict("How many times as long as one do 32 x 20 numbers take?", "x")
q_{name}

# %% [markdown]
# Between.

# %%
q_{name}.reveal(counted=1)

# %% [markdown]
# It took 7 times as long, because of the reads.
#
# **To remember.** A sum takes 1 ns per number.
#
# What comes next?

"""
ASKS = "# How long does a sum take? We ask it now, because the parts below need it.\n#\n"
NAMES = ("first", "second", "third", "fourth")
SOURCE = HEADER + "".join(
    PART.format(number=number + 1, name=name) for number, name in enumerate(NAMES)
)


WAY = Way(
    "How large is a sum?", ("memory",), "Sums of sums come next, because a sum is not enough."
)


def parse(source=SOURCE):
    return replace(lesson.parse(source, number="90", slug="sums"), way=WAY)


def made(source=SOURCE):
    """Return the lesson and its notebook, with the outputs that questions and reveals show."""
    read = parse(source)
    built = notebook.unexecuted(read)
    for count, cell in enumerate(built.cells):
        asked = re.search(r'(\w+) = helpers\.predict\("(.*)", "x"\)', cell.source)
        if asked:
            cell.outputs = [shown(f"{asked[2]} [x]\n{page.form.NO_PREDICTION}")]
            question = asked[2]
        if ".reveal(" in cell.source:
            answer = Answer(question, "x", None, None, 640.0, "counted", "")
            cell.outputs = [
                new_output(
                    "display_data", {"text/plain": str(answer), "text/html": answer._repr_html_()}
                )
            ]
        cell.metadata["place"] = count
    return read, built


def shown(text):
    return new_output("display_data", {"text/plain": text})


def problems(source):
    return [problem.what for problem in page.check(*made(source))]


def test_a_lesson_that_keeps_the_page_has_no_problem():
    assert problems(SOURCE) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("How many times as long as one do", "A sum: how many times do", "has a colon"),
        ("32 x 20 numbers take?", "32 x 20 numbers take", "does not end with a question mark"),
        (
            "How many times as long as one do 32 x 20 numbers take?",
            "How many times the bytes?",
            "no finite verb",
        ),
        ("as one do 32", f"as one {'of sums ' * 8}do 32", "words, at most 25"),
        (ASKS, "", "does not begin with its question"),
        ("How long does a sum take? We", "We", "does not begin with its question"),
        ("**To remember.** A sum", "A sum", "0 rules of thumb"),
        ("per number.\n#\n#", "per number.", "a rule of thumb that asks"),
        ("takes 1 ns per number", "takes long", "end it with one that carries a number"),
        (
            "# Between.",
            "# It takes 640 times as long.",
            "says '640', which is the answer to q_first",
        ),
        ("takes a microsecond", "takes 640 steps", "says '640', which is the answer to q_first"),
        ('# %% right="first" style=2\n4\n\n', "", "first has right answers in 1 other styles"),
        (" takes=8", "", "first has takes=None"),
        (
            "# %% [markdown]\n# The next cell asks.\n",
            "# %%\n1\n\n# %%\n1\n",
            "the 4th visible code cell in a row",
        ),
        (
            "# The next cell asks.\n",
            "# Next.\n\n# %%\n" + "1\n" * 16,
            "16 visible lines of code, at most 15",
        ),
        (
            "# The next cell asks.\n",
            "# The next cell asks.\n\n# %%\n" + "print(1)\n" * 160,
            "at least 40%",
        ),
        ("# Each number is read once.", f"# {'word ' * 3000}", "words of prose, at most 3000"),
        ("# Between.", f"# Between.\n\n# %%\n{'1' * 96}", "a line of 96 characters, at most 95"),
    ],
)
def test_each_rule_is_told_where_it_is_broken(old, new, says):
    assert old in SOURCE
    assert any(says in what for what in problems(SOURCE.replace(old, new, 1))), problems(
        SOURCE.replace(old, new, 1)
    )


def test_a_folded_cell_is_no_visible_code():
    many = '# The next cell asks.\n\n# %% tags=["hide-input"]\n' + "print(1)\n" * 190
    assert problems(SOURCE.replace("# The next cell asks.\n", many, 1)) == []
    read, built = made(SOURCE.replace("# The next cell asks.\n", many, 1))
    [folded] = [cell for cell in built.cells if cell.metadata.get("jupyter")]
    assert folded.metadata["jupyter"] == {"source_hidden": True}
    assert page.code(read.cells) == page.code(parse().cells)


def test_too_long_a_lesson_is_told():
    read, built = made()
    long = replace(read, run_s=5000)
    assert [problem.what for problem in page.sizes(long, built)] == [
        f"{long.minutes} minutes, at most 100"
    ]


def test_rules_of_thumb_are_taken_whole():
    text = "Why.\n\n**To remember.** A sum takes 1 ns,\nand no more.\n\nNext."
    assert page.rules_of_thumb(text) == ["A sum takes 1 ns,\nand no more."]


def test_the_first_screen_has_the_map_and_the_last_the_way_on():
    source = SOURCE + '# %% [markdown] tags=["recap"]\n# ## Back\n'
    read = parse(source)
    following = replace(read, number="91", slug="more", title="More sums")
    built = notebook.unexecuted(read, [read, following])
    assert "You are here: the processor's memory.](map/90_sums.svg)" in built.cells[0].source
    last = built.cells[-1].source.splitlines()[-1]
    assert last == f"**Next: [lesson 91, More sums](91_more.ipynb).** {WAY.leads_on}"


@pytest.mark.parametrize(
    "here", [[], ["memory"], ["core", "gpu_memory", "network"], list(machine_map.PLACES)]
)
def test_the_map_marks_what_it_is_told(here):
    drawn = machine_map.svg(here)
    assert drawn.count(f'stroke="{machine_map.HERE}"') == len(here)
    assert drawn.count("<rect") == len(machine_map.PLACES)


def test_an_unknown_place_is_refused():
    with pytest.raises(AuthoringError, match="no place moon; it has cluster, node"):
        machine_map.svg(["moon"])


ACTS = (
    Act("One", ("00_start", "02_roof"), ("03_gpu",), "Why wait for R&D?", ("processor", "memory")),
    Act(
        "Many",
        ("04_data",),
        (),
        "What can many do that a single one cannot, however long it computes?",
        ("link",),
    ),
)


def test_the_map_of_the_course_has_the_acts_with_their_lessons_and_questions():
    drawn = machine_map.course_svg(ACTS)
    parsed = ElementTree.fromstring(drawn)
    texts = [text.text for text in parsed.iter("{http://www.w3.org/2000/svg}text")]
    assert {"One", "00 to 03", "Why wait for R&D?", "Many", "04"} <= set(texts)
    assert {"What can many do that a single one", "cannot, however long it computes?"} <= set(texts)
    # on each of its places, and on its card
    assert [texts.count(number) for number in "12"] == [3, 2]
    assert drawn.count("<rect") == len(machine_map.PLACES) + len(ACTS)


@pytest.mark.parametrize(
    ("acts", "said"),
    [
        ((replace(ACTS[0], places=("moon",)),), "no place moon"),
        ((ACTS[0], replace(ACTS[1], places=("memory",))), "two acts have memory"),
        (7 * (replace(ACTS[0], places=()),), "7 acts, and colours for 6"),
    ],
)
def test_a_map_of_the_course_that_cannot_be_drawn_is_refused(acts, said):
    with pytest.raises(AuthoringError, match=said):
        machine_map.course_svg(acts)


SYMBOLS = (
    symbols.Symbol("B", "bandwidth", ("bandwidth",)),
    symbols.Symbol("n", "tokens", ("token", "tokens")),
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("A link of bandwidth $B$ moves $n$ tokens.", []),
        ("A batch of $B$ sequences.", ["$B$ is bandwidth in every lesson"]),
        ("A bandwidth $B$ is a rate. Later $B$ is small.", []),
        ("There are $n$ matrices.\n\n- $B$ for the batch", ["$n$ is tokens", "$B$ is bandwidth"]),
        ("A letter $q$ of its own.", []),
    ],
)
def test_a_symbol_of_the_course_has_its_meaning_where_it_comes_first(text, told):
    commented = "\n".join(f"# {line}".rstrip() for line in text.splitlines())
    found = symbols.check(parse(SOURCE + f"# %% [markdown]\n{commented}\n"), SYMBOLS)
    assert len(found) == len(told)
    assert all(problem.what.startswith(start) for problem, start in zip(found, told, strict=True))
