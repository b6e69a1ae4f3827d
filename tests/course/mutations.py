"""Bugs that each lesson must notice: at least two a lesson, planted one at a time by tests/course/test_lessons.py.

Choose what an early cell shows exactly (a count, bytes, a share): a bug in a time is masked, and a lesson is run only
up to the cell that catches the bug.
"""

from __future__ import annotations

from course.authoring.mutation import Mutation

MUTATIONS = (
    Mutation("00", "helpers/units.py", "_FLOPS_PER_MAC = 2", "_FLOPS_PER_MAC = 1", "a MAC counted as one FLOP"),
    Mutation("00", "helpers/data.py", 'if split == "test" else', 'if split == "train" else', "splits swapped"),
    Mutation(
        "00",
        "helpers/models.py",
        "nn.Linear(self.hidden // 2, 10)",
        "nn.Linear(self.hidden // 2, 10, bias=False)",
        "a layer without its bias",
    ),
)
