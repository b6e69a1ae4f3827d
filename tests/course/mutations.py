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
    Mutation(
        "07",
        "helpers/operations/profile.py",
        "return formulas.rule_for(call.name).forward(call).macs + call.output.numel",
        "return formulas.rule_for(call.name).forward(call).macs",
        "the lecture's bias forgotten",
    ),
    Mutation(
        "07",
        "helpers/operations/formulas.py",
        "if wanted.needs_grad:\n                total += _product(call, macs(call)) + traffic([call.output, other]",
        "if True:\n                total += _product(call, macs(call)) + traffic([call.output, other]",
        "the gradient of the input counted, which nobody asks for",
    ),
    Mutation(
        "07",
        "helpers/memory/layers.py",
        "saved[layer] += 0 if storage in trace.carried else sizes[storage]",
        "saved[layer] += sizes[storage]",
        "parameters counted as saved for backward",
    ),
    Mutation(
        "07",
        "helpers/memory/timeline.py",
        "last if life.end is None else life.end",
        "last",
        "no tensor is released before the end of the step",
    ),
)
