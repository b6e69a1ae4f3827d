"""A class as it is: what innocent students do to their files, in three forms at once, and who
attacks, in one run.
"""

from __future__ import annotations

import pytest

from tests.course.grading_class import CLASS, SMALL, hand_in_class, wrong
from tests.course.grading_samples import LIMITS
from tools.grading import grade

pytestmark = [
    pytest.mark.usefixtures("working_sandbox"),
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.filterwarnings("ignore:Object of type:Warning"),
]


@pytest.mark.ci
def test_every_mark_of_a_class_is_right(tmp_path):
    """A small class here; ``python -m tests.course.grading_class`` makes the whole one of sixty,
    and checks it.
    """
    roster = hand_in_class(tmp_path, SMALL)
    done = grade.grade(
        tmp_path / "submissions", tmp_path / "into", jobs=2, limits=LIMITS, listed=roster
    )
    assert wrong(tmp_path / "into", SMALL) == []
    assert done.awaiting_marks == ("02_compute_and_roofline_exercises, no_help: 1 answer waits",)


def test_the_whole_class_has_sixty():
    assert len(CLASS) >= 60  # one is on the roster alone
