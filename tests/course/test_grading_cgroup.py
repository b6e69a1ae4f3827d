"""A group counts what is started in it, for root too, and nothing of it stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.grading import __main__ as command, cgroup

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
    ran = subprocess.run(
        [*start, sys.executable, "-I", "-c", FORKS], capture_output=True, text=True, check=True
    )
    return int(ran.stdout)


def mounted():
    """Return whether this machine's root may make groups that count processes, as its table of
    mounts says.
    """
    for row in Path("/proc/self/mounts").read_text().splitlines():
        _, folder, kind, options, *_ = row.split()
        handed_down = Path(folder, "cgroup.subtree_control")
        counts = "pids" in (
            handed_down.read_text() if kind == "cgroup2" and handed_down.is_file() else options
        )
        if kind.startswith("cgroup") and counts and options.startswith("rw"):
            return True
    return False


@pytest.mark.skipif(not cgroup._is_root() or not mounted(), reason="no control group for root")
def test_a_group_has_no_more_processes_than_it_may():
    with cgroup.limited(MOST) as start:
        group = Path(start[-1]).parent
        assert forked(start) == MOST - 1
        assert forked([]) == 60  # without the group
    assert not group.exists()
    assert cgroup.bounded()


def as_root(monkeypatch, folder, *, inside="0", outside="0", partitions=()):
    """Let this be root, whose user outside of the namespace is ``outside``, on a machine with these
    mounts.
    """
    uid_map = folder / "uid_map"
    uid_map.write_text(f"{inside:>10} {outside:>10} 4294967295\n")
    monkeypatch.setattr(cgroup, "_UID_MAP", uid_map)
    monkeypatch.setattr(cgroup.os, "geteuid", lambda: 0)
    rows = [
        SimpleNamespace(mountpoint=str(place), fstype=kind, opts=options)
        for place, kind, options in partitions
    ]
    monkeypatch.setattr(cgroup.psutil, "disk_partitions", lambda all: rows)


def test_who_is_not_root_gets_none_and_is_bounded(monkeypatch, tmp_path):
    for user, outside in ((1000, "0"), (0, "1000")):  # the root of a namespace is an ordinary user
        as_root(monkeypatch, tmp_path, outside=outside)
        monkeypatch.setattr(cgroup.os, "geteuid", lambda user=user: user)
        assert cgroup.bounded()
        with cgroup.limited(MOST) as start:
            assert start == []


@pytest.mark.parametrize(
    ("kind", "options", "handed_down", "counts"),
    [
        ("cgroup", "rw,relatime,pids", None, True),
        ("cgroup", "rw,relatime,cpu", None, False),
        ("cgroup", "ro,relatime,pids", None, False),
        ("cgroup2", "rw,relatime", "cpu memory pids\n", True),
        ("cgroup2", "rw,relatime", "cpu memory\n", False),
        ("cgroup2", "rw,relatime", None, False),
        ("tmpfs", "rw,pids", "pids\n", False),
    ],
)
def test_a_group_is_made_where_one_counts_processes(
    monkeypatch, tmp_path, kind, options, handed_down, counts
):
    mount = tmp_path / "mount"
    mount.mkdir()
    if handed_down is not None:
        (mount / "cgroup.subtree_control").write_text(handed_down)
    as_root(monkeypatch, tmp_path, partitions=[("/", "ext4", "rw"), (mount, kind, options)])
    monkeypatch.setattr(cgroup, "_remove", lambda group: None)
    assert cgroup.bounded() is counts
    with cgroup.limited(MOST) as start:
        groups = list(mount.glob("course-grading-*"))
        assert len(groups) == counts
        if counts:
            assert (groups[0] / "pids.max").read_text() == str(MOST)
            assert start[-1] == str(groups[0] / "cgroup.procs")
        else:
            assert start == []


def test_a_group_that_is_not_forgotten_is_told(monkeypatch, tmp_path):
    group = tmp_path / "group"
    (group / "busy").mkdir(parents=True)
    monkeypatch.setattr(cgroup, "_ENDS_S", 0.0)
    with pytest.raises(OSError, match="not empty"):
        cgroup._remove(group)


@pytest.mark.parametrize("bounded", [True, False])
def test_a_lecturer_hears_that_nothing_bounds_the_processes(monkeypatch, capsys, tmp_path, bounded):
    monkeypatch.setattr(cgroup, "bounded", lambda: bounded)
    monkeypatch.setattr(command.sandbox, "bubblewrap", lambda: "bwrap")
    monkeypatch.setattr(command, "_grade", lambda options, into: 0)
    assert command.main([str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert ("grade as an ordinary user" in said) is not bounded
