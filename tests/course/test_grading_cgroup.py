"""A group counts what is started in it, for root too, and nothing of it stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.grading import cgroup

MOST = 20
# Forks 60 times at most, since it may be that nothing limits it, and prints how often it could.
FORKS = """
import os, signal
children = []
try:
    while len(children) < 60:
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
except BlockingIOError:
    pass
print(len(children))
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def forked(start):
    """Return how many processes could be started besides the first."""
    ran = subprocess.run([*start, sys.executable, "-I", "-c", FORKS], capture_output=True, text=True, check=True)
    return int(ran.stdout)


def test_a_group_has_no_more_processes_than_it_may():
    with cgroup.limited(MOST) as start:
        if not start:
            pytest.skip("no group can be made here")
        group = cgroup.Path(start[-1]).parent
        assert forked(start) == MOST - 1
        assert forked([]) == 60  # without the group
    assert not group.exists()


def test_who_is_not_root_gets_none(monkeypatch):
    monkeypatch.setattr(cgroup.os, "geteuid", lambda: 1000)
    with cgroup.limited(MOST) as start:
        assert start == []


def test_where_no_group_counts_processes_there_is_none(monkeypatch):
    monkeypatch.setattr(cgroup.os, "geteuid", lambda: 0)
    monkeypatch.setattr(cgroup.psutil, "disk_partitions", lambda all: [])
    with cgroup.limited(MOST) as start:
        assert start == []
