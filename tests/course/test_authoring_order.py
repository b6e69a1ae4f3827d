"""One file states the order of the lessons: what is ill-formed in it, and what it says of sources
and pages.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tools.authoring import audit, made, order, pages
from tools.authoring.course import HERE
from tools.authoring.lesson import AuthoringError
from tools.authoring.order import Act

ACTS = (Act("Start", ("00_start", "01_memory"), ("02_kernel",)), Act("Many", ("04_data",)))
TOML = """
[[acts]]
title = "Start"
lessons = ["00_start", "01_memory"]
planned = ["02_kernel"]

[[acts]]
title = "Many"
lessons = ["04_data"]
"""


def write(folder, text):
    path = folder / "order.toml"
    path.write_text(text)
    return path


def test_the_acts_are_read_and_a_course_without_the_file_has_none(tmp_path):
    assert order.read(write(tmp_path, TOML)) == ACTS
    assert order.read(tmp_path / "none.toml") == ()
    assert order.act_of(ACTS, "04_data") == "Many"
    assert order.act_of(ACTS, "02_kernel") == ""
    assert [act.numbers for act in ACTS] == ["00 to 02", "04"]


def test_an_act_has_its_question_and_its_places_on_the_map(tmp_path):
    text = TOML.replace(
        'title = "Many"', 'title = "Many"\nquestion = "How many?"\nplaces = ["link", "gpus"]'
    )
    assert order.read(write(tmp_path, text))[1] == replace(
        ACTS[1], question="How many?", places=("link", "gpus")
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"04_data"]', '"01_data"]', "01_data follows 02_kernel; let the numbers rise"),
        ('"04_data"]', '"02_data"]', "02_data follows 02_kernel"),
        ('"04_data"]', '"04_kernel"]', "kernel has two numbers"),
        ('"04_data"]', '"4_data"]', "'4_data'; name a lesson NN_title"),
        ('"04_data"]', '"04_Data"]', "'04_Data'; name a lesson"),
        ('["04_data"]', '"04_data"', "an act has title, lessons; write a title"),
        ("planned", "later", "an act has title, lessons, later; write"),
        ('title = "Many"\n', "", "an act has lessons; write"),
        (
            'title = "Many"',
            'title = "Many"\nquestion = 4',
            "an act has title, question, lessons; write",
        ),
        (
            'title = "Many"',
            'title = "Many"\nplaces = "link"',
            "an act has title, places, lessons; write",
        ),
        (TOML, "", "states nothing; write"),
        (TOML, f"first = 1\n{TOML}", "states first, acts; write"),
        (TOML, "[[acts]", "is not TOML"),
    ],
)
def test_what_is_ill_formed_is_refused(tmp_path, old, new, said):
    assert old in TOML
    with pytest.raises(AuthoringError, match=said.replace("[", r"\[")):
        order.read(write(tmp_path, TOML.replace(old, new)))


def test_a_lesson_takes_its_number_from_its_title():
    names = ["00_start", "03_data", "01_memory"]
    assert order.new_names(ACTS, names) == {"03_data": "04_data"}
    with pytest.raises(
        AuthoringError, match=r"order\.toml does not have 05_other; write each into"
    ):
        order.new_names(ACTS, ["05_other"])


def test_a_former_title_is_known_by_the_new_one(monkeypatch):
    monkeypatch.setattr(order, "_RETITLED", {"information": "data", "many_data": "data"})
    assert order.new_names(ACTS, ["03_information", "00_start"]) == {"03_information": "04_data"}
    assert (
        order.title_of("09_many_data_exercises")
        == order.title_of("04_data_exercises")
        == "data_exercises"
    )
    assert order.title_of("04_information_exercise") == "information_exercise"
    assert order.titles_of("04_data_exercises") == (
        "data_exercises",
        "information_exercises",
        "many_data_exercises",
    )
    assert order.titles_of("09_many_data") == ("data", "information", "many_data")
    assert order.titles_of("00_start") == ("start",)


def test_no_former_title_is_a_lessons_of_now():
    planned_and_written = {name for act in HERE.acts for name in (*act.lessons, *act.planned)}
    titles = {name.partition("_")[2] for name in planned_and_written}
    assert set(order._RETITLED.values()) <= titles
    assert not set(order._RETITLED) & titles


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["00_start", "01_memory", "04_data"], []),
        (["00_start", "01_memory", "03_data"], ["03_data.py: order.toml has 04_data; run"]),
        (["00_start", "01_memory"], ["order.toml: 04_data has no source"]),
        (["00_start", "01_memory", "04_data", "02_kernel"], ["order.toml: 02_kernel is written"]),
        (
            ["00_start", "01_memory", "04_data", "05_other"],
            ["05_other.py: order.toml does not have it"],
        ),
    ],
)
def test_sources_and_order_agree(names, said):
    problems = [str(problem) for problem in order.problems(ACTS, names)]
    assert len(problems) == len(said)
    assert all(problem.startswith(start) for problem, start in zip(problems, said, strict=True))
    assert order.problems((), names) == []


def test_the_audit_reads_the_order(built):
    write(built.folder, TOML)
    found = [str(problem) for problem in audit.shared_pages(built)]
    assert (
        "90_small_counts.py: order.toml does not have it; write it into the lessons of an act"
        in found
    )


def test_an_act_heads_its_lessons_in_a_table():
    lessons = HERE.lessons()
    acts = [act.title for act in HERE.acts]
    rows = pages.table(lessons).splitlines()[2:]
    assert [row.split("**")[1] for row in rows if "**" in row] == acts
    assert len(rows) == len(lessons) + len(acts)
    heads = [place for place, row in enumerate(rows) if "**" in row]
    first = [f"| {min(act.lessons)[:2]} |" for act in HERE.acts]
    assert [rows[place + 1][:6] for place in heads] == first
    assert {row.count("|") for row in rows} == {6}


def test_a_row_of_the_table_has_the_lessons_question_and_short_links_to_what_it_needs():
    [lesson] = HERE.lessons(["02"])
    row = pages.table([lesson]).splitlines()[-1]
    assert f"| {lesson.way.question} | {lesson.minutes} | 00, 01 |" in row
    [row] = [row for row in pages.table(HERE.lessons()).splitlines() if row.startswith("| 02 |")]
    assert row.endswith(
        "| [00](course/00_start_here.ipynb), [01](course/01_memory_hierarchy.ipynb) |"
    )


def test_the_sum_below_the_table_is_that_of_the_minutes_in_it():
    lessons = HERE.lessons()
    column = [
        int(row.split("|")[4])
        for row in pages.table(lessons).splitlines()
        if re.match(r"\| \d\d ", row)
    ]
    assert len(column) == len(lessons)
    said = re.search(
        r"take ([\d,]+) minutes, which is ([\d.]+) hours", HERE.readme.read_text(encoding="utf-8")
    )
    assert (int(said[1].replace(",", "")), float(said[2])) == (
        sum(column),
        round(sum(column) / 60, 1),
    )


def test_the_readme_says_first_how_many_lessons_there_are_and_how_long_they_take():
    lessons, readme = HERE.lessons(), HERE.readme.read_text(encoding="utf-8")
    first = readme.partition("\n## ")[0]
    assert f"in {len(lessons)} Jupyter notebooks" in first
    hours, of_exercises = (
        f"{minutes / 60:.0f}"
        for minutes in (
            sum(lesson.minutes for lesson in lessons),
            sum(made.exercise_minutes(HERE).values()),
        )
    )
    assert (
        f"about {hours} hours for all {len(lessons)} lessons and {of_exercises} for their exercises"
        in first
    )


def test_the_lessons_of_a_weekend_need_no_other_and_take_the_hours_that_the_readme_says():
    readme = HERE.readme.read_text(encoding="utf-8")
    [weekend] = re.findall(r"If you have only a weekend, .*?\n\n", readme, re.DOTALL)
    numbers = re.findall(r"\[(\d\d)\]\(course/\1_", weekend)
    chosen = HERE.lessons(numbers)
    written = {lesson.number for lesson in HERE.lessons()}
    assert len(chosen) == len(numbers) == 5
    assert {need for lesson in chosen for need in lesson.needs} & written <= set(numbers)
    hours = f"{sum(lesson.minutes for lesson in chosen) / 60:.1f} hours"
    assert f"take {hours}." in " ".join(weekend.split())
    assert f"[{hours} for the core of it](#where-to-begin)" in readme


def test_a_month_goes_step_by_step_from_what_a_lesson_needs_to_the_lesson_in_the_hours_that_the_readme_says():  # noqa: E501
    readme = HERE.readme.read_text(encoding="utf-8")
    month = readme.partition("If you have a month, ")[2].partition("If you are here")[0]
    steps = [
        re.findall(r"\b\d\d\b", line)
        for line in re.findall(r"^\d\. ([\d, and]+):", month, re.MULTILINE)
    ]
    chosen = HERE.lessons([number for step in steps for number in step])
    assert len(steps) == 4
    for place, lesson in enumerate(chosen):
        assert set(lesson.needs) <= {one.number for one in chosen[:place]}
    assert "about five hours of lessons and as many of exercises" in month
    exercises = made.exercise_minutes(HERE)
    for minutes in (
        sum(one.minutes for one in chosen),
        sum(exercises[one.number] for one in chosen),
    ):
        assert 4.5 <= minutes / 60 / len(steps) <= 5.5


def test_the_acts_of_the_readme_are_those_of_the_course():
    said = re.findall(
        r"^\d\. \*\*(.+?)\*\* \((\d\d to \d\d)\)",
        HERE.readme.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert said == [(act.title, act.numbers) for act in HERE.acts]


def test_each_lesson_of_this_course_has_a_question_of_its_own():
    questions = [lesson.way.question for lesson in HERE.lessons()]
    assert len(set(questions)) == len(questions)


WAY = """
[ways.start]
question = "How long does a load take?"
places = ["memory"]
leads_on = "More loads come next."
"""


def test_the_way_of_a_lesson_is_read(tmp_path):
    way = order.Way("How long does a load take?", ("memory",), "More loads come next.")
    assert order.ways(write(tmp_path, TOML + WAY)) == {"start": way}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'question = "How long does a load take?"\n',
            "",
            "has places, leads_on; write question, places, leads_on",
        ),
        ('["memory"]', "[]", "has question, places, leads_on; write"),
        ('["memory"]', '"memory"', "places a list"),
        ("take?", "take", "must end in ? and have at most 14 words"),
        ("take?", "take" + " now" * 9 + "?", "must end in ? and have at most 14 words"),
    ],
)
def test_a_way_that_is_ill_formed_is_refused(tmp_path, old, new, said):
    assert old in WAY
    with pytest.raises(AuthoringError, match=re.escape(said)):
        order.ways(write(tmp_path, TOML + WAY.replace(old, new)))
