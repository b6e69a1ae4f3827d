"""The syllabus adds up what the lessons' metadata say, in an order in which every lesson finds what
it needs.
"""

from __future__ import annotations

import re

import pytest

from slides.cells import read_deck
from tools.authoring import made
from tools.authoring.course import HERE
from tools.authoring.lesson import AuthoringError
from tools.authoring.rules import syllabus

LESSONS = {lesson.slug: lesson for lesson in HERE.lessons()}
PLANS = {plan.title: plan for plan in syllabus.PLANS}


def minutes(plan: syllabus.TeachingPlan) -> list[int]:
    return [
        sum(syllabus.minutes_of(item, LESSONS) for item in session.items)
        for session in plan.sessions
    ]


def taught(plan: syllabus.TeachingPlan) -> list[str]:
    """Return the lessons that the class gets, each as a notebook or as a talk, and not those that
    are only told.
    """
    items = [item for session in plan.sessions for item in session.items]
    return [item.what for item in items if item.what in LESSONS and not item.told]


def test_the_page_is_what_the_lessons_make_of_it_now():
    text = HERE.syllabus.read_text(encoding="utf-8")
    assert text == syllabus.page(tuple(LESSONS.values()), made.exercise_minutes(HERE)), (
        "run python -m tools.authoring table --write"
    )


def test_two_hours_are_two_hours():
    assert minutes(PLANS["Two hours"]) == [120]


def test_a_day_is_a_working_day():
    assert 5 * 60 <= sum(minutes(PLANS["One day"])) <= 7 * 60


def test_a_day_goes_from_memory_over_parallel_training_and_the_working_set_to_a_case_study():
    numbers = [LESSONS[slug].number for slug in taught(PLANS["One day"])]
    assert {"01", "04", "05", "11"} <= set(numbers)
    assert set(numbers) & {"17", "18", "19", "20"}


@pytest.mark.parametrize("plan", syllabus.PLANS, ids=lambda plan: plan.title)
def test_a_plan_follows_the_acts_in_sessions_that_a_class_can_follow(plan):
    assert taught(plan) == [slug for slug in LESSONS if slug in taught(plan)]
    assert max(minutes(plan)) <= 150


def test_a_term_holds_every_lesson_once_in_the_order_of_the_acts_and_the_lecture():
    plan = PLANS["A term"]
    assert len(plan.sessions) <= 14
    assert taught(plan) == list(LESSONS)
    assert [item.what for session in plan.sessions for item in session.items].count(
        syllabus.LECTURE
    ) == 1


@pytest.mark.parametrize("plan", syllabus.PLANS, ids=lambda plan: plan.title)
def test_a_lesson_comes_after_those_that_it_needs(plan):
    before: set[str] = set()
    for session in plan.sessions:
        for item in session.items:
            if item.told:
                assert item.minutes
                before.add(LESSONS[item.what].number)
            elif item.what in LESSONS:
                assert {need for need in LESSONS[item.what].needs if need.isdigit()} <= before
                before.add(LESSONS[item.what].number)


def test_the_exercises_of_a_sessions_lessons_follow_it_in_the_order_of_their_numbers():
    page = HERE.syllabus.read_text(encoding="utf-8")
    followed = [
        re.findall(r"\((exercises/\w+\.ipynb)\)", line)
        for line in page.splitlines()
        if line.startswith("At home")
    ]
    sessions = [session for plan in syllabus.PLANS for session in plan.sessions]
    names = [
        [
            LESSONS[item.what].name
            for item in session.items
            if item.what in LESSONS and not item.told
        ]
        for session in sessions
    ]
    assert followed == [
        [f"exercises/{name}_exercises.ipynb" for name in sorted(one)] for one in names
    ]


def test_the_notebook_of_a_talk_is_for_home():
    page = HERE.syllabus.read_text(encoding="utf-8")
    homes = [line for line in page.splitlines() if line.startswith("At home")]
    sessions = [session for plan in syllabus.PLANS for session in plan.sessions]
    for line, session in zip(homes, sessions, strict=True):
        talks = [LESSONS[item.what].notebook_name for item in session.items if item.talk]
        assert re.findall(r"the notebook of \[\d\d\]\((\w+\.ipynb)\)", line) == talks


def test_a_talk_takes_the_minutes_of_its_deck_and_what_is_told_its_own():
    talk = syllabus.Item("working_set", talk=True)
    assert syllabus.minutes_of(talk, LESSONS) == syllabus.talk_minutes(LESSONS["working_set"])
    assert syllabus.minutes_of(syllabus.Item("working_set", 10, told="a sentence"), LESSONS) == 10


def test_no_reader_sees_the_note_to_authors():
    for made_page in (HERE.syllabus, HERE.formulas, HERE.folder / "index_of_functions.md"):
        text = made_page.read_text(encoding="utf-8")
        assert "do not edit" in text
        assert "do not edit" not in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("lesson", LESSONS.values(), ids=lambda lesson: lesson.number)
def test_the_talk_is_as_long_as_the_lessons_deck(lesson):
    deck = read_deck(HERE.built(lesson), name=lesson.name, folder=HERE.folder)
    assert syllabus.talk_minutes(lesson) == deck.minutes
    home = made.exercise_minutes(HERE)[lesson.number]
    assert f"| {lesson.minutes} | {home} | {deck.minutes:g} |" in HERE.syllabus.read_text(
        encoding="utf-8"
    )


def test_the_clock_adds_up():
    page = HERE.syllabus.read_text(encoding="utf-8")
    for table in re.findall(r"\| from \| minutes \| what \|\n\|[-:|]+\|\n((?:\|.*\|\n)+)", page):
        rows = [row.split(" | ") for row in table.splitlines()]
        clock = 0
        for begins, taken, *_ in rows:
            assert begins.strip("| ") == f"{clock // 60}:{clock % 60:02d}"
            clock += int(taken) if taken.strip("| ").isdigit() else 0


def test_a_lesson_that_is_not_there_is_refused():
    with pytest.raises(
        AuthoringError, match="the syllabus has 'lunch', no lesson and without minutes"
    ):
        syllabus.minutes_of(syllabus.Item("lunch"), LESSONS)


def test_a_course_without_these_pages_gets_none(small):
    assert made.pages(small, small.lessons()) == {}
