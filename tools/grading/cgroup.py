"""A control group that counts what a sandbox starts, for a grader who is root.

The kernel holds every user to ``RLIMIT_NPROC`` except root, inside of a user namespace too. A
submission that forks without end would then stop the machine before a watch has counted it, so root
needs the kernel's other limit.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

# the users of this namespace: the first inside, the same outside, how many
_UID_MAP = Path("/proc/self/uid_map")
_ENDS_S = 10.0  # a group can be removed when the last of its processes has been forgotten


@contextlib.contextmanager
def limited(tasks: int) -> Iterator[list[str]]:
    """Yield the beginning of a command line that puts what follows into a group of at most
    ``tasks`` threads.

    It is empty for who is not root, since the limit of that user's processes holds, and where the
    machine has no group to write to, as in most containers (see :func:`bounded`).
    """
    parent = _parent() if _is_root() else None
    if parent is None:
        yield []
        return
    group = Path(tempfile.mkdtemp(prefix="course-grading-", dir=parent))
    try:
        (group / "pids.max").write_text(str(tasks))
        yield ["/bin/sh", "-c", 'echo 0 > "$0" && exec "$@"', str(group / "cgroup.procs")]
    finally:
        _remove(group)


def bounded() -> bool:
    """Return whether the kernel bounds the processes of a sandbox that is started here, as it does
    but for root.
    """
    return not _is_root() or _parent() is not None


def _is_root() -> bool:
    """Return whether this is the machine's root; the root of a user namespace is an ordinary user
    to the kernel.
    """
    return os.geteuid() == 0 and _UID_MAP.read_text().split()[:2] == ["0", "0"]


def _parent() -> Path | None:
    """Return the folder in which groups that count processes may be made, or None where there is
    none.
    """
    for partition in psutil.disk_partitions(all=True):
        folder = Path(partition.mountpoint)
        counts = partition.fstype == "cgroup" and "pids" in partition.opts.split(",")
        if partition.fstype == "cgroup2":
            controllers = folder / "cgroup.subtree_control"
            counts = controllers.is_file() and "pids" in controllers.read_text().split()
        if counts and "rw" in partition.opts.split(",") and os.access(folder, os.W_OK):
            return folder
    return None


def _remove(group: Path) -> None:
    deadline = time.monotonic() + _ENDS_S
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
