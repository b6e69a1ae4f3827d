"""Three ways to teach the course, with the minutes of its lessons: two hours, a day, a term."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slides.lecture import MINUTES as LECTURE_MINUTES, TITLE as LECTURE_TITLE
from tools.authoring import pages
from tools.authoring.lesson import AuthoringError, Lesson

LECTURE = "lecture"


@dataclass(frozen=True)
class Item:
    """A part of a session: a lesson by its title in its file's name, :data:`LECTURE`, or words with
    ``minutes``.

    A lesson is its notebook, or with ``talk`` its deck held as a lecture, whose notebook is left
    for home. With ``told`` the lecturer only tells these words of it, in so many ``minutes``,
    because a later lesson needs them.
    """

    what: str
    minutes: int | None = None
    talk: bool = False
    told: str = ""


@dataclass(frozen=True)
class TeachingSession:
    """A part of a plan that is done in one go. The exercises of its lessons follow it, at home."""

    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class TeachingPlan:
    """A way to teach the course: its sessions in order, and for whom."""

    title: str
    text: str
    sessions: tuple[TeachingSession, ...]


PAUSE = Item("break", 10)

PLANS = (
    TeachingPlan(
        "Two hours",
        "A guest lecture comes first. In the laboratory after it, everybody who has the course "
        "runs lesson 00.",
        (
            TeachingSession(
                "Two hours",
                (
                    Item(LECTURE),
                    PAUSE,
                    Item("start_here"),
                    Item("questions, and where to go on", 10),
                ),
            ),
        ),
    ),
    TeachingPlan(
        "One day",
        "The day follows the acts: one machine in the morning, parallel training after lunch, and "
        "then the memory of\na training step and a case study. Some lessons are held as talks, so "
        "that every session stays short enough\nto follow, and their notebooks are for home. Each "
        "lesson comes after the lessons that it needs, or the\nlecturer tells what it needs of "
        "them. Lunch and the pause in the afternoon are not counted.",
        (
            TeachingSession(
                "Morning", (Item("start_here"), Item("break", 15), Item("memory_hierarchy"))
            ),
            TeachingSession(
                "After lunch",
                (Item("sources_of_parallelism"), PAUSE, Item("data_parallel", talk=True)),
            ),
            TeachingSession(
                "Late afternoon",
                (
                    Item("working_set", talk=True),
                    PAUSE,
                    Item(
                        "reading_a_profile",
                        10,
                        told="a launch costs time before its kernel runs, and a remedy saves at "
                        "most the share of the "
                        "time that it touches",
                    ),
                    Item("replicas", talk=True),
                    Item("questions, and where to go on", 10),
                ),
            ),
        ),
    ),
    TeachingPlan(
        "A term",
        "The term holds all lessons in the order of their acts, with one session per week. If a "
        "week has two lessons,\nthe class runs the notebook of one of them, and the lecturer holds "
        "the other as a talk, with its notebook\nfor home. If you have more time, run both "
        "notebooks in class. The table at the end has their minutes.",
        (
            TeachingSession(
                "Week 1: measuring, and the whole picture",
                (Item("start_here"), PAUSE, Item(LECTURE)),
            ),
            TeachingSession(
                "Week 2: one machine",
                (Item("memory_hierarchy"), PAUSE, Item("compute_and_roofline", talk=True)),
            ),
            TeachingSession("Week 3: a GPU from inside", (Item("how_a_gpu_runs_a_kernel"),)),
            TeachingSession(
                "Week 4: where parallelism is",
                (Item("sources_of_parallelism"), PAUSE, Item("data_parallel", talk=True)),
            ),
            TeachingSession(
                "Week 5: parts of a model",
                (Item("model_parallel"), PAUSE, Item("links_in_two_levels", talk=True)),
            ),
            TeachingSession(
                "Week 6: layouts, and a long sequence",
                (Item("layouts"), PAUSE, Item("long_sequences_and_experts", talk=True)),
            ),
            TeachingSession(
                "Week 7: data in time, and what fits",
                (Item("feeding_the_accelerator", talk=True), PAUSE, Item("working_set")),
            ),
            TeachingSession(
                "Week 8: full memory, and a profile",
                (Item("beyond_memory", talk=True), PAUSE, Item("reading_a_profile")),
            ),
            TeachingSession(
                "Week 9: an array, and networks for it",
                (Item("systolic_arrays"), PAUSE, Item("co_design", talk=True)),
            ),
            TeachingSession(
                "Week 10: fewer bits, constants",
                (Item("numbers_of_few_bits"), PAUSE, Item("constant_weights", talk=True)),
            ),
            TeachingSession(
                "Week 11: one kernel, a hundred fits",
                (Item("fused_bias"), PAUSE, Item("replicas", talk=True)),
            ),
            TeachingSession("Week 12: predicted times", (Item("convolution_time"),)),
            TeachingSession(
                "Week 13: language models",
                (Item("attention_without_the_matrix", talk=True), PAUSE, Item("decoding")),
            ),
            TeachingSession("Week 14: a server with many users", (Item("serving"),)),
        ),
    ),
)


def talk_minutes(lesson: Lesson) -> float:
    """Return the minutes of the lesson's own deck: those of all cells that open a slide."""
    return sum(cell.metadata.get("minutes", 0) for cell in lesson.cells if "slide" in cell.tags)


def minutes_of(item: Item, lessons: Mapping[str, Lesson]) -> int:
    """Return an item's minutes: a lesson's as they are computed, a talk's and the lecture's by its
    deck, else its own.

    ``lessons`` are all, by their titles. Raises AuthoringError for a lesson that is not there, for
    words without minutes.
    """
    if item.what == LECTURE:
        return LECTURE_MINUTES
    if item.talk:
        return math.ceil(talk_minutes(lessons[item.what]))
    if item.what in lessons and not item.told:
        return lessons[item.what].minutes
    if item.minutes is None:
        raise AuthoringError(
            f"the syllabus has {item.what!r}, no lesson and without minutes; mend PLANS in "
            "syllabus.py"
        )
    return item.minutes


def page(lessons: Sequence[Lesson], exercises: Mapping[str, int]) -> str:
    """Return the syllabus as Markdown: the plans, each with a clock, and the minutes of every
    lesson.

    ``exercises`` are the minutes of each lesson's exercises, by its number, where it has some.
    """
    lessons_by_slug = {lesson.slug: lesson for lesson in lessons}
    lines = [
        "# Syllabus",
        "",
        pages.made_from("the lessons"),
        "",
        (
            "There are three ways through the course. The minutes of a lesson are for reading it "
            "and running it, with its"
        ),
        (
            "predictions and the functions that its reader writes. Its exercises take more time, "
            "which the last table has."
        ),
    ]
    for plan in PLANS:
        lines += ["", f"## {plan.title}", "", plan.text]
        for session in plan.sessions:
            lines += ["", *_session(session, lessons_by_slug, alone=len(plan.sessions) == 1)]
        totals = [
            sum(minutes_of(item, lessons_by_slug) for item in session.items)
            for session in plan.sessions
        ]
        lines += [
            "",
            f"In all {_hours(sum(totals))}; the longest session takes {_hours(max(totals))}.",
        ]
    lines += [
        "",
        "## Minutes of each lesson",
        "",
        (
            "A *talk* is the lesson held as a lecture, with the slides of its own deck (`make "
            "slides`)."
        ),
        "",
        "| lesson | minutes | exercises | talk | needs |",
        "|---|--:|--:|--:|---|",
    ]
    rows = []
    for lesson in lessons:
        needs = ", ".join(lesson.needs) or "nothing"
        home = exercises.get(lesson.number, "")
        rows.append(
            f"| {_link(lesson)} | {lesson.minutes} | {home} | {talk_minutes(lesson):g} | {needs} |"
        )
    lines += pages.with_acts(lessons, rows, "| **{}** | | | | |")
    total, talk = (
        sum(lesson.minutes for lesson in lessons),
        sum(talk_minutes(lesson) for lesson in lessons),
    )
    return "\n".join([*lines, f"| all | {total} | {sum(exercises.values())} | {talk:g} | |"]) + "\n"


def _session(session: TeachingSession, lessons: Mapping[str, Lesson], *, alone: bool) -> list[str]:
    lines = [] if alone else [f"### {session.title}", ""]
    lines += ["| from | minutes | what |", "|--:|--:|---|"]
    clock = 0
    for item in session.items:
        minutes = minutes_of(item, lessons)
        lines.append(f"| {clock // 60}:{clock % 60:02d} | {minutes} | {_describe(item, lessons)} |")
        clock += minutes
    lines.append(f"| {clock // 60}:{clock % 60:02d} | | end |")
    taught_items = [item for item in session.items if item.what in lessons and not item.told]
    talks = [lessons[item.what] for item in taught_items if item.talk]
    notebooks = [f"the notebook of [{lesson.number}]({lesson.notebook_name})" for lesson in talks]
    links = [
        f"[{lesson.number}](exercises/{lesson.name}_exercises.ipynb)"
        for lesson in _by_number(taught_items, lessons)
    ]
    lines += [
        "",
        f"At home: {_join_words([*notebooks, f'the exercises of {_join_words(links)}'])}.",
    ]
    return lines


def _by_number(items: Sequence[Item], lessons: Mapping[str, Lesson]) -> list[Lesson]:
    return sorted((lessons[item.what] for item in items), key=lambda lesson: lesson.number)


def _describe(item: Item, lessons: Mapping[str, Lesson]) -> str:
    if item.what == LECTURE:
        return f'the lecture "{LECTURE_TITLE}" (`make lecture`)'
    if item.what not in lessons:
        return item.what
    link = _link(lessons[item.what])
    if item.told:
        return f"told by the lecturer, from {link}: {item.told}"
    return f"talk: {link}" if item.talk else link


def _link(lesson: Lesson) -> str:
    return f"[{lesson.number} {lesson.title}]({lesson.notebook_name})"


def _join_words(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _hours(minutes: int) -> str:
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
