"""A plugin of pytest: how many processes, which tests stay together in one, and which are taken
first.

Loaded by conftest.py.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest
from xdist.scheduler import LoadScopeScheduling

# Long files whose tests of one lesson need nothing of those of another: several processes share
# them.
BY_LESSON = {
    "tests/course/test_copies_run.py",
    "tests/course/test_lessons.py",
    "tests/slides/test_slide_decks.py",
}

# Files that use what takes a process seconds to start, and then all tests in it share.
TOGETHER = {
    "the ranks of conftest.py": (
        "tests/helpers/studies/input_pipeline/test_feeding_fairness.py",
        "tests/helpers/studies/parallel_plans/test_choosing.py",
        "tests/helpers/studies/parallel_plans/test_footprint.py",
        "tests/helpers/studies/parallel_plans/test_strategy_costs.py",
        "tests/helpers/parallel/test_collectives.py",
        "tests/helpers/parallel/test_costs_on_ranks.py",
        "tests/helpers/studies/data_parallel/test_late_ranks.py",
        "tests/helpers/studies/data_parallel/test_sleeping_devices.py",
        "tests/helpers/studies/sgd_parallelism/test_ensembles.py",
        "tests/helpers/studies/sgd_parallelism/test_sharing.py",
        "tests/helpers/studies/test_two_levels.py",
    ),
    "the process from which those that mark are forked": (
        "tests/course/test_grading_class.py",
        "tests/course/test_grading_hostile.py",
        "tests/course/test_grading_oddities.py",
    ),
    "transformers": (
        "tests/helpers/memory/test_memory_peer_models.py",
        "tests/helpers/operations/test_operations_zoo.py",
    ),
}
_GROUP = {path: group for group, paths in TOGETHER.items() for path in paths}


def group_of(nodeid: str) -> str:
    """Return what of the tests stays in one process, in its order: a file, a lesson's tests of it,
    or several files.

    Not ``xdist_group``: pytest-xdist 3.8 loses these marks under pytest 9.2 (its issue 1386), and
    then scatters a notebook's cells.
    """
    path, _, test = nodeid.partition("::")
    lesson = re.search(r"[\[/-](\d\d)[-_]", test) if path in BY_LESSON else None
    return f"{path}, lesson {lesson[1]}" if lesson else _GROUP.get(path, path)


class ByGroup(LoadScopeScheduling):
    """Hands whole groups to the processes of pytest-xdist, in the order in which they stand."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByGroup:
    """Group the tests whatever ``--dist`` says."""
    return ByGroup(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one process more than there are processors: tests wait for sleeping links, for disks
    and for children.
    """
    return 1 + (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes of pytest-xdist take the groups in the order below, and not those with most
    tests first.
    """
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put groups with a test marked ``slow`` first, then notebooks: else one process ends with
    them, alone.
    """
    groups = {item: group_of(item.nodeid) for item in items}
    tests = Counter(groups.values())
    slow = {groups[item] for item in items if item.get_closest_marker("slow")}
    items.sort(
        key=lambda item: (
            groups[item] not in slow,
            item.path.suffix != ".ipynb",
            -tests[groups[item]],
        )
    )
