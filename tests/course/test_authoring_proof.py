"""What a lesson's reader writes is proved: by the lessons of this course, and by one in which
checks are too weak.
"""

from __future__ import annotations

import os
import re

import pytest
import torch

from tools.authoring import lesson, proof
from tools.authoring.course import HERE, Course

LESSONS = (*HERE.lessons(), *HERE.appendices())
# ranks and a compiler
IN_CI = ("data_parallel", "links_in_two_levels", "long_sequences_and_experts", "fused_bias")

SOURCE = '''# ---
# jupyter:
#   lesson:
#     number: "90"
#     title: Sums
#     needs: []
#     objectives: ["write|wrote a sum"]
# ---

# %%
import torch.distributed as dist

from helpers import exercises, ranks

# %%
raise RuntimeError("no check needs this cell")

# %%
factor, seen = 2, []

# %% tags=["yours"] yours="twice"
def twice(n):
    """Return two times n."""
    return factor * n

# %% checks="twice"
asked = exercises.Checks("Twice", twice)
asked.returns("doubles", (3,), expected=6, mistakes={5: "That is a sum"})
seen.append(twice(0))
asked.holds("comes first", len(seen) == 1, otherwise="others were seen")
twice = asked.settle()

# %% wrong="twice" says="That is a sum"
def twice(n):
    return factor + n

# %% wrong="twice" says="gave 9, expected 6"
def twice(n):
    return n * n

# %%
team = ranks.Ranks(4, device="cpu", threads=1)

# %% tags=["yours"] yours="total"
def total(rank, world_size, values):
    """Return twice the sum of all ranks' values, on each rank."""
    mine = twice(torch.tensor(values[rank]))
    dist.all_reduce(mine)
    return mine.item()

# %% [markdown]
# Four ranks add up.

# %% checks="total"
asked = exercises.Checks("Total", total)
asked.returns("adds", ([1, 2, 3, 4],), expected=[20] * 4, call=lambda f, *given: team.run(f, *given, timeout_s=60))
total = asked.settle()
assert team.run(total, [1, 0, 0, 0]) == [2] * 4

# %% wrong="total" says="ZeroDivisionError"
def total(rank, world_size, values):
    return values[rank] / 0

# %% wrong="total" says="gave [2, 4, 6, 8], expected [20, 20, 20, 20]"
def total(rank, world_size, values):
    return twice(values[rank])

# %%
import torch
'''.replace("import torch.distributed", "import torch\nimport torch.distributed")  # noqa: E501


def parse(source=SOURCE):
    return lesson.parse(source, number="90", slug="sums")


@pytest.fixture
def course(tmp_path):
    folder = tmp_path / "course"
    (folder / "recorded").mkdir(parents=True)
    return Course(tmp_path)


def test_each_version_hears_what_it_should_also_on_ranks(course):
    before = os.getcwd()
    tried = proof.attempts(course, parse())
    assert os.getcwd() == before
    assert [(one.name, one.version) for one in tried] == [
        ("twice", "stub"),
        ("twice", "That is a sum"),
        ("twice", "gave 9, expected 6"),
        ("twice", "worked"),
        ("total", "stub"),
        ("total", "ZeroDivisionError"),
        ("total", "gave [2, 4, 6, 8], expected [20, 20, 20, 20]"),
        ("total", "worked"),
    ]
    assert proof.faults(parse(), tried) == []
    assert tried[4].said == "Total: not written yet\nBelow, the course's total is used.\n"
    raised, line = tried[5].said.splitlines()[2:4]
    first = re.search(r"rank [0-3] of 4", raised)[0]  # each of them raises it
    assert (
        raised.strip()
        == f"total([1, 2, 3, 4]) raised RankError: {first} raised ZeroDivisionError: division by "
        "zero"
    )
    assert line.strip() == "in your line: return values[rank] / 0"


ALONE = SOURCE[: SOURCE.index("# %%\nteam")]


@pytest.mark.parametrize(
    ("old", "new", "version"),
    [
        ("return factor * n", "return 3 * n", "worked"),
        ('says="That is a sum"', 'says="That is a product"', "That is a product"),
        ("return n * n", "return n + n", "gave 9, expected 6"),
        (
            'asked.returns("doubles", (3,)',
            'factor and asked.returns("doubles", (0 * factor,)',
            "worked",
        ),
        ("twice = asked.settle()", "kept = twice\ntwice = asked.settle()\ntwice = kept", "stub"),
    ],
)
def test_checks_that_say_something_else_are_found(course, old, new, version):
    """The wrong versions, planted: of the worked function, of a wrong one, of what is said, and of
    the checks.
    """
    assert ALONE.count(old) == 1
    read = parse(ALONE.replace(old, new).replace("seen.append(twice(0))", "seen.append(0)"))
    found = proof.faults(read, proof.attempts(course, read))
    assert any(f"the checks of twice say to the version {version!r}" in fault for fault in found)
    assert all(fault.startswith("90_sums.py: ") for fault in found)


def test_what_a_lesson_sets_for_its_process_does_not_stay(course):
    sets = (
        "torch.set_grad_enabled(False)\ntorch.set_num_threads(torch.get_num_threads() + "
        "1)\nfactor, seen = 2, []"
    )
    threads = torch.get_num_threads()
    assert proof.attempts(course, parse(ALONE.replace("factor, seen = 2, []", sets)))
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    "lesson",
    [
        pytest.param(
            lesson, id=lesson.name, marks=pytest.mark.ci if lesson.name[3:] in IN_CI else ()
        )
        for lesson in LESSONS
    ],
)
def test_what_the_reader_of_a_lesson_writes_is_proved(lesson):
    tried = proof.attempts(HERE, lesson)
    assert proof.faults(lesson, tried) == []
    for name in {one.name for one in tried}:
        hears = [one.version for one in tried if one.name == name]
        assert len(hears) == len(set(hears)) >= 4
        assert not any(one in other for one in hears for other in hears if one is not other)
