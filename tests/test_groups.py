"""Among the processes a file stays in one, or several do, unless it is ``BY_LESSON``; slow groups
come first.
"""

from __future__ import annotations

import os
import re

import nbformat
import pytest

from tests import groups, planted
from tests.groups import BY_LESSON, TOGETHER

SHARED = """
    import pytest

    @pytest.mark.parametrize("number", range(6))
    def test_shared(number): pass
"""
GROUPED = """
    import pytest

    @pytest.mark.slow
    @pytest.mark.parametrize("name", [f"{lesson}-{number}" for number in range(4) for lesson in ("00", "appendix/01")])
    def test_slow(name): pass

    def test_other(): pass
"""  # noqa: E501
ALONE = "def test_alone(): pass"


QUICK = (planted.ROOT / "tests" / "quick.txt").read_text().splitlines()


@pytest.mark.parametrize(
    "names", [BY_LESSON, QUICK, *TOGETHER.values()], ids=["by lesson", "quick", *TOGETHER]
)
def test_the_files_that_are_named_exist(names):
    assert names
    assert [name for name in names if not (planted.ROOT / name).is_file()] == []


def test_the_files_that_use_the_ranks_are_together():
    folder = planted.ROOT / "tests" / "helpers"
    texts = {
        path.relative_to(planted.ROOT).as_posix(): path.read_text()
        for path in folder.rglob("test_*.py")
    }
    assert {path for path, text in texts.items() if re.search("two_ranks|four_ranks", text)} == set(
        TOGETHER["the ranks of conftest.py"]
    )


def test_the_quick_tests_start_no_ranks():
    starts = re.compile(r"two_ranks|four_ranks|\bRanks\(|\branks\.run\(|\btorchrun\(")
    assert starts.search((planted.ROOT / TOGETHER["the ranks of conftest.py"][0]).read_text())
    assert [name for name in QUICK if starts.search((planted.ROOT / name).read_text())] == []


def test_there_is_a_process_more_than_usable_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 7}, raising=False)
    assert groups.pytest_xdist_auto_num_workers() == 3


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> list[tuple[str, str]]:
    """The process that ran each planted test, in the order in which the tests ended."""
    folder = tmp_path_factory.mktemp("planted")
    together = TOGETHER["transformers"]
    planted.plant(
        folder,
        {"test_shared.py": SHARED, min(BY_LESSON): GROUPED, **dict.fromkeys(together, ALONE)},
    )
    cells = [
        nbformat.v4.new_code_cell(source)
        for source in ("state = 1", "state += 1", "assert state == 2")
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "notebook.ipynb")
    text = planted.run(
        folder,
        "-v",
        "--numprocesses=2",
        "--nbval-lax",
        "--nbval-current-env",
        plugins=("xdist", "nbval.plugin"),
    )
    return re.findall(r"^\[(gw\d)\].*PASSED (.+?) *$", text, flags=re.MULTILINE)


def processes(ran: list[tuple[str, str]], words: str) -> set[str]:
    found = [process for process, test in ran if re.search(words, test)]
    assert found
    return set(found)


GROUPS = [r"\[00", r"/01", "notebook", "test_shared", "test_other", "test_alone"]


@pytest.mark.parametrize("words", GROUPS)
def test_a_group_stays_in_one_process_in_its_order(ran, words):
    assert len(ran) == 8 + 3 + 6 + 1 + 2
    assert len(processes(ran, words)) == 1
    tests = [test for _, test in ran if re.search(words, test)]
    assert tests == sorted(tests)


def test_the_lessons_of_a_file_by_lesson_are_shared_and_slow_ones_come_first(ran):
    assert processes(ran, GROUPS[0]) | processes(ran, GROUPS[1]) == {"gw0", "gw1"}
    first = dict(reversed(ran))
    assert set(first.values()) == {
        f"{min(BY_LESSON)}::test_slow[{lesson}-0]" for lesson in ("00", "appendix/01")
    }
