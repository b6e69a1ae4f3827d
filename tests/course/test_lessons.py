"""The lessons of this course: they keep the rules, compare what they show, and notice planted
bugs.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.ci import one_in_test
from tools.authoring import audit, mutation
from tools.authoring.course import HERE
from tools.authoring.mutations import MUTATIONS

SANITIZE = mutation.SANITIZE
LESSONS = HERE.lessons()
# One lesson's bugs cost up to two minutes: CI plants those of lessons whose cells are quick, and a
# release all.
PLANTED_IN_CI = ("start_here", "compute_and_roofline", "how_a_gpu_runs_a_kernel",
                 "sources_of_parallelism", "data_parallel", "working_set", "co_design",
                 "fused_bias", "convolution_time")  # fmt: skip
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


@each_lesson
def test_a_lesson_keeps_the_rules(lesson):
    assert [str(problem) for problem in audit.lessons(HERE, [lesson.number])] == []


def test_no_notebook_is_without_a_source():
    assert audit.strays(HERE) == []


def test_the_pages_that_all_lessons_share_keep_the_rules():
    assert [str(problem) for problem in audit.shared_pages(HERE)] == []


def test_every_lesson_has_mutations():
    counts = Counter(one.lesson for one in MUTATIONS)
    assert {
        lesson.number for lesson in LESSONS if counts[lesson.number] < mutation.LEAST_PER_LESSON
    } == set()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "lesson",
    one_in_test(
        LESSONS, name=lambda lesson: lesson.name, lesson="memory_hierarchy", ci=PLANTED_IN_CI
    ),
)
def test_a_lesson_notices_planted_bugs(lesson, kernels, record_property):
    chosen = [one for one in MUTATIONS if one.lesson == lesson.number]
    caught = mutation.attempt_all(HERE, chosen, sanitize=SANITIZE, kernels=kernels)
    record_property(f"planted bugs of helpers, lesson {lesson.number}", str(caught))
    assert [one.what for one in caught.mutations if one.cell is None] == []
