"""Bugs that each lesson must notice: at least two a lesson, planted one at a time by tests/course/test_lessons.py."""

from __future__ import annotations

from course.authoring.mutation import Mutation

MUTATIONS = (
    Mutation("00", "helpers/units.py", "_FLOPS_PER_MAC = 2", "_FLOPS_PER_MAC = 1", "a MAC counted as one FLOP"),
)
