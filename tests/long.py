"""Tests that take long: `make test` leaves them to CI, so that it ends in ten minutes.

``tests/long.txt`` names them, a line each: a test, or one of its cases. It is written from the
times of a run, of `make ci` or of `make test`, where the names of what did not run stay. Of each
file the shortest test stays for `make test`, whatever it takes::

    PYTEST_ADDOPTS=--junitxml=times.xml make ci
    python -m tests.long times.xml
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "long.txt"
LONG_S = 0.5  # of a process of three on two cores


def names() -> frozenset[str]:
    """Return the node ids of the tests and the cases that take long."""
    return frozenset(LIST.read_text(encoding="utf-8").splitlines())


def mark(items: Iterable[pytest.Item], long: frozenset[str], *, are_whole_files: bool) -> None:
    """Mark those of ``items`` that take long ``ci``, but for those marked ``in_test``.

    Raises pytest.UsageError for a name of no test, where ``items`` are those of whole files; a
    process of pytest-xdist would not pass the sentence on.
    """
    known: set[str] = set()
    files: set[str] = set()
    for item in items:
        node = item.nodeid
        files.add(node.partition("::")[0])
        named = long & {node, node.partition("[")[0]}
        known |= named
        if named and item.get_closest_marker("in_test") is None:
            item.add_marker("ci")
    unknown = {name for name in long - known if is_checked(name, files)} if are_whole_files else {}
    if unknown:
        raise pytest.UsageError(
            f"tests/long.txt names {', '.join(sorted(unknown))}, and there is no such test; take "
            "the line out, or write the list again (tests/long.py)"
        )


def is_checked(name: str, files: Collection[str]) -> bool:
    """Return whether a test's file is among ``files`` or gone."""
    file = name.partition("::")[0]
    return file in files or not (ROOT / file).exists()


def choose(times_s: dict[str, float], *, long_s: float = LONG_S) -> list[str]:
    """Return the names of what takes over ``long_s`` seconds, from the seconds by node id.

    >>> choose({"t.py::a": 1.0, "t.py::b[x]": 2.0, "t.py::b[y]": 0.1, "u.py::c": 9.0})
    ['t.py::a', 't.py::b[x]']
    """
    by_file: dict[str, list[str]] = defaultdict(list)
    cases: dict[str, list[str]] = defaultdict(list)
    for node in times_s:
        by_file[node.partition("::")[0]].append(node)
        cases[node.partition("[")[0]].append(node)
    stay = {min(nodes, key=times_s.__getitem__) for nodes in by_file.values()}
    long: list[str] = []
    for test, nodes in cases.items():
        over = [node for node in nodes if times_s[node] > long_s and node not in stay]
        long += [test] if over == nodes else over
    return sorted(long)


def read_times(report: Path) -> dict[str, float]:
    """Return the seconds of each test below ``tests`` by node id, from a report in JUnit's form."""
    times_s: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        *folders, name = case.get("classname", "").split(".")
        if folders[:1] == ["tests"]:
            path = "/".join([*folders, f"{name}.py"])
            times_s[f"{path}::{case.get('name')}"] = float(case.get("time", 0))
    return times_s


def update(long: Iterable[str], times_s: dict[str, float]) -> list[str]:
    """Return the names for the list: those of a run, and of ``long`` those that did not run.

    >>> update(["t.py::a", "u.py::c"], {"t.py::a": 0.1, "t.py::b": 1.0})
    ['t.py::b', 'u.py::c']
    """
    ran = {*times_s, *(node.partition("[")[0] for node in times_s)}
    return sorted({*choose(times_s), *(name for name in long if name not in ran)})


if __name__ == "__main__":
    lines = update(names(), read_times(Path(sys.argv[1])))
    LIST.write_text("\n".join(lines) + "\n", encoding="utf-8")
