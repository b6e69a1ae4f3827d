"""The glossary is of its form, and lessons link its words at their first use."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.authoring import lesson
from tools.authoring.lesson import AuthoringError
from tools.authoring.rules import glossary

PAGE = """# Glossary

Some words first.

### all-reduce

A sum over ranks that every rank receives.

From [lesson 04](04_data_parallel.ipynb).

### arithmetic intensity

The operations for each byte moved.

Unit: FLOP/B. Also: intensity. From [lesson 02](02_roofline.ipynb).

### latency

The time from a request to its answer,
however long it is.

Unit: s. From [lesson 01](01_memory.ipynb).

### MAC

One multiplication and one addition.

Unit: MAC. Also: multiply-accumulate, multiply and add. From [lesson 00](00_start.ipynb).
"""
ENTRIES = glossary.parse(PAGE)


def test_entries_are_read_whole():
    assert [entry.term for entry in ENTRIES] == [
        "all-reduce",
        "arithmetic intensity",
        "latency",
        "MAC",
    ]
    assert [entry.unit for entry in ENTRIES] == ["", "FLOP/B", "s", "MAC"]
    assert ENTRIES[3].also == ("multiply-accumulate", "multiply and add")
    assert [entry.anchor for entry in ENTRIES] == [
        "all-reduce",
        "arithmetic-intensity",
        "latency",
        "mac",
    ]
    assert (ENTRIES[2].meaning, ENTRIES[2].lesson, ENTRIES[2].file) == (
        "The time from a request to its answer, however long it is.",
        "01",
        "01_memory.ipynb",
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "One multiplication and one addition.",
            "One multiplication. And one addition.",
            "write one sentence",
        ),
        (
            "One multiplication and one addition.",
            "One multiplication and one addition",
            "write one sentence",
        ),
        ("One multiplication and one addition.\n", "", "has 1 paragraphs"),
        ("Unit: MAC. Also", "Units: MAC. Also", "write 'Unit: ..."),
        ("[lesson 00](00_start.ipynb).", "lesson 00.", "write 'Unit: ..."),
        ("[lesson 00](00_start.ipynb)", "[lesson 00](01_memory.ipynb)", "write 'Unit: ..."),
        ("### latency", "### a latency", "not in the order of the alphabet"),
        ("Also: intensity", "Also: latency", "latency stands in it twice"),
        ("### latency", "### MAC", "mac stands in it twice"),
    ],
)
def test_an_entry_of_another_form_is_refused(old, new, says):
    assert PAGE.count(old) == 1
    with pytest.raises(AuthoringError, match=r"^glossary\.md: ") as caught:
        glossary.parse(PAGE.replace(old, new))
    assert says in str(caught.value)


def test_a_missing_glossary_is_refused(tmp_path):
    with pytest.raises(AuthoringError, match=r"there is no glossary\.md"):
        glossary.read(tmp_path / "glossary.md")


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("a MAC", ["MAC"]),
        ("two macs", ["MAC"]),
        ("Multiply-accumulates", ["MAC"]),
        ("multiply\nand add", ["MAC"]),
        ("latencies and a Latency", ["latency", "latency"]),
        ("arithmetic intensity", ["arithmetic intensity"]),
        ("arithmetic intensities, intensity", ["arithmetic intensity", "arithmetic intensity"]),
        ("all-reduces", ["all-reduce"]),
        ("MACHINE, macro, stomach, mac-like, non-MAC, MAC_1, latencyx", []),
        ("all reduce", []),
    ],
)
def test_terms_are_whole_words_in_any_case_and_number(text, terms):
    assert [entry.term for entry in glossary.Terms(ENTRIES).within(text)] == terms


@pytest.mark.parametrize("text", ["systolic array", "systolic arrays", "Systolic\nArrays"])
def test_a_term_that_ends_in_a_vowel_and_y_has_its_plural(text):
    entry = glossary.Entry("systolic array", "A grid.", "", (), "09", "09_systolic_arrays.ipynb")
    assert glossary.Terms([entry]).within(text) == [entry]


def test_an_empty_glossary_has_no_terms():
    assert glossary.parse("# Glossary\n") == ()
    assert glossary.Terms(()).within("a MAC") == []


def problems(*sources):
    cells = [
        new_code_cell("latency = 1  # MAC"),
        *(new_markdown_cell(source) for source in sources),
    ]
    return [
        (one.cell, one.what)
        for one in glossary.check_lesson("00_start.ipynb", new_notebook(cells=cells), ENTRIES)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "A [MAC](glossary.md#mac). Another MAC.",
        "[Two multiply-accumulates](glossary.md#mac), so two MACs.",
        "# The MAC",
        "`MAC`",
        "```\nMAC\n```",
        "$MAC$ and $$latency$$",
        "[a MAC](https://example.org)",
        "![a MAC](x.png)",
        "A machine.",
    ],
)
def test_a_term_that_is_linked_or_no_text_is_no_problem(text):
    assert problems(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "A MAC.",
        "A MAC, a [MAC](glossary.md#mac).",
        "**MAC**",
        "- a MAC",
        "| MAC |\n|--|\n| 1 |",
        "> MAC",
        "*two* MACs",
        "[a MAC](https://example.org), a MAC",
        "<b>MAC</b>",
        "[MAC](other.md#mac): MAC",
    ],
)
def test_a_term_that_is_not_linked_at_its_first_use_is_one_problem(text):
    found = problems("Nothing here.", text)
    assert [cell for cell, _ in found] == [2]
    assert found[0][1] == "MAC is first used here; link it: [...](glossary.md#mac)"


def test_a_link_in_an_earlier_cell_serves_later_ones():
    assert problems("A [MAC](glossary.md#mac).", "A MAC.") == []
    assert [cell for cell, _ in problems("A MAC.", "A [MAC](glossary.md#mac).")] == [1]


def read_lesson(number, slug):
    header = f'# ---\n# jupyter:\n#   lesson:\n#     number: "{number}"\n#     title: T\n'
    rest = "#     needs: []\n#     objectives: [a|b c]\n# ---\n# %%\n1\n"
    return lesson.parse(header + rest, number=number, slug=slug)


def test_a_back_link_leads_to_a_lesson_that_uses_the_term():
    lessons = [read_lesson("00", "start"), read_lesson("01", "memory"), read_lesson("02", "roof")]
    texts = {
        "00": ["two [MACs](glossary.md#mac)"],
        "01": ["`latency`"],
        "02": ["arithmetic intensity"],
    }
    found = [problem.what for problem in glossary.check_back_links(ENTRIES, lessons, texts)]
    assert found == [
        (
            "all-reduce leads back to 04_data_parallel.ipynb, which is no lesson; name the one "
            "that introduces it"
        ),
        (
            "arithmetic intensity leads back to 02_roofline.ipynb, which is no lesson; name the "
            "one that introduces it"
        ),
        "latency leads back to lesson 01, which does not use it; name the one that does",
    ]


def test_a_link_to_an_entry_uses_it_whatever_words_it_stands_behind():
    lessons = [read_lesson("01", "memory")]
    entry = next(entry for entry in ENTRIES if entry.term == "latency")
    assert (
        glossary.check_back_links(
            [entry], lessons, {"01": ["the [wait](glossary.md#latency) before it"]}
        )
        == []
    )
    elsewhere = glossary.check_back_links(
        [entry], lessons, {"01": ["the [wait](roadmap.md#latency) before it"]}
    )
    assert [problem.what for problem in elsewhere] == [
        "latency leads back to lesson 01, which does not use it; name the one that does"
    ]
