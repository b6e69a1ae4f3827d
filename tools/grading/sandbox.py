"""A submission shut in: bubblewrap with nothing but Python and the library, no network, and limits
that are watched.

The file system is built up from nothing: what is not listed is not there. So neither the answer key
nor another submission has a name inside. The limits of one process are set inside
(``student.runner``); how many there may be is counted by the kernel, for root too (``cgroup``); a
watch outside sums up what they take together and kills the whole sandbox, since a process cannot
leave it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from helpers.results import Result
from tools.authoring.course import HERE
from tools.authoring.environment import headless
from tools.grading import cgroup

PRIVATE_BYTES = 256 * 2**20  # of _TEMPORARY, and of /dev/shm
# names inside the sandbox, where this is an empty file system of its own on every machine
_TEMPORARY = "/tmp"
_HOME = f"{_TEMPORARY}/work"
_OF_THE_SYSTEM = tuple(Path("/", name) for name in ("bin", "lib", "lib32", "lib64", "sbin"))
_POLL_S = 0.05
_OF_BUBBLEWRAP = 2  # processes that it keeps beside the submission's
_STUDENT = Path(__file__).with_name("student")
_MACHINE_MUST_KEEP = 0.04  # the share of the machine's memory below which a sandbox is killed
_JOIN_SESSION_KEYRING = 1  # linux/keyctl.h
# the number of the system call
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
# '': where it works, as in Jupyter
_START = "import sys; sys.path[:0] = ['/grader', '']; import runner; runner.main()"


class SandboxError(Exception):
    """There is no working sandbox here; the text says what to do."""


@dataclass(frozen=True)
class Limits(Result):
    """What one submission may take: ``step_s`` a cell, or the checks of an exercise; ``total_s``
    all of them.

    ``step_s`` is time of the processor, so that a loaded machine stops nobody; a step that waits is
    stopped after ``patience`` times as long on the clock. ``total_s`` is on the clock.
    ``memory_bytes`` and ``processes`` (threads of the interpreter included) are those of all its
    processes together.
    """

    step_s: float = 60.0
    patience: float = 5.0
    total_s: float = 900.0
    memory_bytes: int = 3 * 2**30
    processes: int = 64


class Sandbox:
    """A running sandbox; ``channel`` is the socket to the submission."""

    def __init__(
        self, process: subprocess.Popen[bytes], channel: socket.socket, limits: Limits
    ) -> None:
        self.channel = channel
        self.why = ""  # why the watch killed it, "" where it did not
        self._process, self._limits = process, limits
        self._used_s, self._allowed_s = 0.0, float("inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def allow(self, processor_s: float) -> None:
        """Let its processes use the processor for ``processor_s`` seconds from now on, all
        together.
        """
        self._allowed_s = self._used_s + processor_s

    def ended(self) -> str:
        """Return why it has ended; "" while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=5)
            return self.why or f"it ended its own process (exit code {code})"
        return ""

    def kill(self) -> None:
        """End every process in the sandbox, and wait until they have ended."""
        self._over.set()
        self.channel.close()
        family = _family(self._process.pid)
        # --die-with-parent: the first process inside dies with it, and then all
        self._process.kill()
        self._process.wait()
        psutil.wait_procs(family, timeout=10)
        self._thread.join(timeout=10)

    def _watch(self) -> None:
        while not self._over.wait(_POLL_S):
            family = _family(self._process.pid)
            self._used_s = max(self._used_s, sum(_processor_s(process) for process in family))
            self.why = _exceeded_limit(family, self._limits)
            if self._used_s > self._allowed_s:
                self.why = f"it ran for more than {self._limits.step_s:.3g} s"
            if self.why:
                self._process.kill()
                return


def _processor_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _exceeded_limit(family: Sequence[psutil.Process], limits: Limits) -> str:
    if len(family) > limits.processes:
        return f"it ran more than {limits.processes} processes at once"
    resident_bytes = sum(_resident_bytes(process) for process in family)
    if (
        resident_bytes > limits.memory_bytes
        and sum(_proportional_bytes(process) for process in family) > limits.memory_bytes
    ):
        return f"it took more than {limits.memory_bytes / 2**30:.3g} GiB of memory"
    memory = psutil.virtual_memory()
    return (
        "the machine ran out of memory"
        if memory.available < _MACHINE_MUST_KEEP * memory.total
        else ""
    )


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def _proportional_bytes(process: psutil.Process) -> int:
    """Return the bytes of a process, pages that several share divided among them; without leave to
    look, all.
    """
    try:
        return process.memory_full_info().pss
    except (psutil.Error, AttributeError):
        return _resident_bytes(process)


@contextlib.contextmanager
def start(limits: Limits) -> Iterator[Sandbox]:
    """Start a sandbox with the student's side in it; at the end all its processes are gone."""
    with cgroup.limited(limits.processes + _OF_BUBBLEWRAP) as in_group:
        grader_end, student_end = socket.socketpair()
        with student_end:
            os.set_inheritable(student_end.fileno(), True)
            student_command = [
                sys.executable,
                "-I",
                "-c",
                _START,
                str(student_end.fileno()),
                str(limits.memory_bytes),
                str(limits.processes),
            ]
            process = subprocess.Popen(
                [*in_group, *command(), *student_command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[student_end.fileno()],
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
        sandbox = Sandbox(process, grader_end, limits)
        try:
            yield sandbox
        finally:
            sandbox.kill()


def leave_keys() -> None:
    """Give this process, and a sandbox that it starts, an empty keyring of the kernel in place of
    the login's.

    That may hold the lecturer's keys, such as Kerberos tickets, and no namespace parts it from what
    runs inside. Raises SandboxError where it cannot be done.
    """
    machine = platform.machine()
    if machine not in _KEYCTL:
        raise SandboxError(
            f"add the number of the system call keyctl on {machine} to tools/grading/sandbox.py"
        )
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    status = call(
        ctypes.c_long(_KEYCTL[machine]), ctypes.c_long(_JOIN_SESSION_KEYRING), ctypes.c_void_p()
    )
    # there are none, or nobody may ask for one
    if status < 0 and ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
        raise SandboxError(
            f"no keyring could be made for a submission: {os.strerror(ctypes.get_errno())}"
        )


def bubblewrap() -> str:
    """Return the path of bubblewrap. Raises SandboxError where it is not installed."""
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxError(
            "bubblewrap is not installed, and without it submissions would run with your rights; "
            "install it: sudo apt-get install bubblewrap"
        )
    return path


def command() -> list[str]:
    """Return bubblewrap's command line, up to what runs inside.

    Raises SandboxError where it is not installed.
    """
    options = [
        bubblewrap(),
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--hostname",
        "sandbox",
        "--cap-drop",
        "ALL",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--size",
        str(PRIVATE_BYTES),
        "--tmpfs",
        "/dev/shm",
        "--remount-ro",
        "/dev",
        "--size",
        str(PRIVATE_BYTES),
        "--tmpfs",
        _TEMPORARY,
    ]
    for path in _OF_THE_SYSTEM:
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
    for folder in visible_folders():
        options += ["--ro-bind", str(folder), str(folder)]
    options += [
        "--ro-bind-try",
        "/etc/ld.so.cache",
        "/etc/ld.so.cache",
        "--ro-bind-try",
        "/etc/alternatives",
        "/etc/alternatives",
        "--ro-bind",
        str(_STUDENT),
        "/grader",
        "--ro-bind",
        str(_fonts()),
        "/fonts",
        "--ro-bind",
        str(HERE.folder / "recorded"),
        f"{_HOME}/course/recorded",
        "--chdir",
        _HOME,
        "--remount-ro",
        "/",
        "--",
    ]
    return options


def visible_folders() -> list[Path]:
    """Return the folders of this machine that a submission may read, under their own names: Python
    and the library.
    """
    paths = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), "/usr"}
    paths |= {str(path) for path in _OF_THE_SYSTEM if not path.is_symlink()}
    folders = {Path(os.path.realpath(path)) for path in paths} | {Path(path) for path in paths}
    folders |= {HERE.root / "helpers", HERE.folder / "scripts"}
    outermost = [
        folder
        for folder in folders
        if folder.is_dir()
        and not any(folder != parent and folder.is_relative_to(parent) for parent in folders)
    ]
    return sorted(outermost)


@functools.cache
def _folders() -> re.Pattern[str]:
    """Return a pattern of, also in JSON, the folders a sandbox sees and those above, whose names
    are this machine's.

    A folder right below the root, such as /home, tells nothing.
    """
    folders = {Path(sys.prefix), Path(sys.base_prefix), HERE.root, _fonts()}
    folders |= {folder.resolve() for folder in folders}
    names = {
        str(parent)
        for folder in folders
        if not folder.is_relative_to("/usr")
        for parent in (folder, *folder.parents[:-2])
    }
    names |= {json.dumps(name)[1:-1] for name in names}
    return re.compile(
        rf"(?:{'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})(?![\w.-])"
    )


def without_folders(text: str) -> str:
    """Return the text of a submission with "..." in place of the folders in which Python and the
    course lie here.
    """
    return _folders().sub("...", text)


def _environment() -> dict[str, str]:
    return headless(cache_folder=f"{_TEMPORARY}/cache") | {
        "HOME": _HOME,
        "USER": "student",
        "PATH": f"{sys.prefix}/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TMPDIR": _TEMPORARY,
        "MPLCONFIGDIR": f"{_TEMPORARY}/matplotlib",
    }


def _fonts() -> Path:
    """Return matplotlib's folder of caches, which takes seconds to make and is copied inside."""
    import matplotlib
    from matplotlib import font_manager  # makes the cache

    del font_manager
    return Path(matplotlib.get_cachedir())


def refuse_unless_working() -> None:
    """Try the sandbox.

    Raises SandboxError, saying what to do, where it does not start or lets out what it must not.
    """
    probe = (
        "import os, socket, sys; print(sorted(os.listdir('/'))); "
        "socket.create_connection(('127.0.0.1', 9), 1)"
    )
    with tempfile.TemporaryFile() as output:
        completed = subprocess.run(
            [*command(), sys.executable, "-I", "-c", probe],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(),
            cwd="/",
            check=False,
            timeout=60,
        )
        output.seek(0)
        printed = output.read().decode(errors="replace")
    if "'grader'" not in printed or (
        "ConnectionRefusedError" not in printed and "Network is unreachable" not in printed
    ):
        last = printed.strip().splitlines()[-1:] or [f"exit code {completed.returncode}"]
        raise SandboxError(
            f"bubblewrap is installed but does not work here ({last[0]}); it needs unprivileged "
            "user namespaces: on Ubuntu 24.04 run sudo sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0; in a container start it with "
            "--security-opt seccomp=unconfined --security-opt systempaths=unconfined; or use a "
            "virtual machine"
        )
