"""Three ways to teach the course, with the minutes of its lessons: two hours, a day, a term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slides.lecture import MINUTES as LECTURE_MINUTES, TITLE as LECTURE_TITLE
from tools.authoring import pages
from tools.authoring.lesson import AuthoringError, Lesson

LECTURE = "lecture"


@dataclass(frozen=True)
class Item:
    """A part of a session: a lesson by its title in its file's name, :data:`LECTURE`, or words with ``minutes``."""

    what: str
    minutes: int | None = None


@dataclass(frozen=True)
class TeachingSession:
    """What is done in one go. The exercises of its lessons follow it, at home."""

    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class TeachingPlan:
    """A way to teach the course: its sessions in order, and for whom."""

    title: str
    text: str
    sessions: tuple[TeachingSession, ...]


PLANS = (
    TeachingPlan(
        "Two hours",
        "A guest lecture with a laboratory: who has the course installed runs lesson 00.",
        (
            TeachingSession(
                "Two hours",
                (Item(LECTURE), Item("break", 10), Item("start_here"), Item("questions, and where to go on", 5)),
            ),
        ),
    ),
    TeachingPlan(
        "One day",
        "After the start: where the memory goes, where parallelism comes from, and what many devices gain.\n"
        "None of these lessons needs one that is not in the plan.",
        (
            TeachingSession("Morning", (Item("start_here"), Item("break", 15), Item("working_set"))),
            TeachingSession("Afternoon", (Item("sources_of_parallelism"), Item("break", 20), Item("data_parallel"))),
        ),
    ),
    TeachingPlan(
        "A term",
        "All lessons in the order of their acts, one session a week, exercises at home. Where a session must be\n"
        "shorter, hold a lesson's talk (the table at the end) and leave its notebook for home.",
        (
            TeachingSession("Week 1: measuring, and the whole picture", (Item("start_here"), Item(LECTURE))),
            TeachingSession("Week 2: one machine", (Item("memory_hierarchy"), Item("compute_and_roofline"))),
            TeachingSession("Week 3: a GPU from inside", (Item("how_a_gpu_runs_a_kernel"),)),
            TeachingSession("Week 4: where parallelism is", (Item("sources_of_parallelism"), Item("data_parallel"))),
            TeachingSession("Week 5: parts of a model", (Item("model_parallel"), Item("links_in_two_levels"))),
            TeachingSession(
                "Week 6: layouts, and a long sequence", (Item("layouts"), Item("long_sequences_and_experts"))
            ),
            TeachingSession(
                "Week 7: data in time, and what fits", (Item("feeding_the_accelerator"), Item("working_set"))
            ),
            TeachingSession("Week 8: full memory, and a profile", (Item("beyond_memory"), Item("reading_a_profile"))),
            TeachingSession("Week 9: an array, and networks for it", (Item("systolic_arrays"), Item("co_design"))),
            TeachingSession("Week 10: fewer bits, constants", (Item("numbers_of_few_bits"), Item("constant_weights"))),
            TeachingSession("Week 11: one kernel, a hundred fits", (Item("fused_bias"), Item("replicas"))),
            TeachingSession("Week 12: predicted times", (Item("convolution_time"),)),
            TeachingSession("Week 13: language models", (Item("attention_without_the_matrix"), Item("decoding"))),
            TeachingSession("Week 14: a server with many users", (Item("serving"),)),
        ),
    ),
)


def talk_minutes(lesson: Lesson) -> float:
    """Return the minutes of the lesson's own deck: those of all cells that open a slide."""
    return sum(cell.metadata.get("minutes", 0) for cell in lesson.cells if "slide" in cell.tags)


def minutes_of(item: Item, lessons: Mapping[str, Lesson]) -> int:
    """Return an item's minutes: a lesson's as they are computed, the lecture's by its deck, else its own.

    ``lessons`` are all, by their titles. Raises AuthoringError for a lesson that is not there, for words
    without minutes.
    """
    if item.what == LECTURE:
        return LECTURE_MINUTES
    if item.what in lessons:
        return lessons[item.what].minutes
    if item.minutes is None:
        raise AuthoringError(
            f"the syllabus has {item.what!r}, no lesson and without minutes; mend PLANS in syllabus.py"
        )
    return item.minutes


def page(lessons: Sequence[Lesson], exercises: Mapping[str, int]) -> str:
    """Return the syllabus as Markdown: the plans, each with a clock, and the minutes of every lesson.

    ``exercises`` are the minutes of each lesson's exercises, by its number, where it has some.
    """
    known = {lesson.slug: lesson for lesson in lessons}
    lines = [
        "# Syllabus",
        "",
        "Built by `make lessons` from the lessons; do not edit. The minutes of a lesson are for reading and running,",
        "for its predictions and what its reader writes; its exercises come on top.",
    ]
    for plan in PLANS:
        lines += ["", f"## {plan.title}", "", plan.text]
        for session in plan.sessions:
            lines += ["", *_session(session, known, alone=len(plan.sessions) == 1)]
        totals = [sum(minutes_of(item, known) for item in session.items) for session in plan.sessions]
        lines += ["", f"In all {_hours(sum(totals))}; the longest session takes {_hours(max(totals))}."]
    lines += ["", "## Minutes of each lesson", "",
              "*Talk* is for the slides of the lesson's own deck (`make slides`), where it is held as a lecture.", "",
              "| lesson | minutes | exercises | talk | needs |", "|---|--:|--:|--:|---|"]  # fmt: skip
    rows = []
    for lesson in lessons:
        needs = ", ".join(lesson.needs) or "nothing"
        home = exercises.get(lesson.number, "")
        rows.append(f"| {_link(lesson)} | {lesson.minutes} | {home} | {talk_minutes(lesson):g} | {needs} |")
    lines += pages.with_acts(lessons, rows, "| **{}** | | | | |")
    total, talk = sum(lesson.minutes for lesson in lessons), sum(talk_minutes(lesson) for lesson in lessons)
    return "\n".join([*lines, f"| all | {total} | {sum(exercises.values())} | {talk:g} | |"]) + "\n"


def _session(session: TeachingSession, lessons: Mapping[str, Lesson], *, alone: bool) -> list[str]:
    lines = [] if alone else [f"### {session.title}", ""]
    lines += ["| from | minutes | what |", "|--:|--:|---|"]
    clock = 0
    for item in session.items:
        minutes = minutes_of(item, lessons)
        lines.append(f"| {clock // 60}:{clock % 60:02d} | {minutes} | {_what(item, lessons)} |")
        clock += minutes
    lines.append(f"| {clock // 60}:{clock % 60:02d} | | end |")
    taught = sorted((lessons[item.what] for item in session.items if item.what in lessons), key=lambda one: one.number)
    if taught:
        links = [f"[{lesson.number}](exercises/{lesson.name}_exercises.ipynb)" for lesson in taught]
        lines += ["", f"At home: the exercises of {_listed(links)}."]
    return lines


def _what(item: Item, lessons: Mapping[str, Lesson]) -> str:
    if item.what == LECTURE:
        return f'the lecture "{LECTURE_TITLE}" (`make lecture`)'
    return _link(lessons[item.what]) if item.what in lessons else item.what


def _link(lesson: Lesson) -> str:
    return f"[{lesson.number} {lesson.title}]({lesson.notebook_name})"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _hours(minutes: int) -> str:
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
