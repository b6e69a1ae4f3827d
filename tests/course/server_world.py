"""A machine of its own for a class on one server: real local users, whose making touches nothing of
this machine.

Its processes see this machine's files through a mount namespace of their own, in which /etc is a
copy, and /home, /srv, /tmp and /var/log are empty and vanish with it. There root makes users with
useradd, PAM reads their passwords, and the kernel keeps them apart. It takes root, or an ordinary
user who was given further user ids (Debian: package uidmap).

Run as a program in the new namespaces, this file furnishes them:
``python server_world.py VENV BASE REPOSITORY``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LECTURER = "grace"
# where the lecturer has this repository, in a closed home
CLONE = Path("/home", LECTURER, "course")
_READY = "furnished"
_OPEN = (Path("/tmp"), Path("/dev/shm"))
_PRIVATE = (Path("/home"), Path("/srv"), Path("/var/log"), *_OPEN)
_STASH = Path("/media")
_FIRST_PERSON, _NOBODY = 1000, 65534  # user ids of Debian
_FIRST_OF_CLASS = 50_000  # owns no file of this machine


@dataclass(frozen=True)
class World:
    """The namespaces of a running world; ``process`` is the first of its processes, as seen from
    here.
    """

    process: int
    as_user: bool

    def command(self, *command: str, user: str = "root") -> list[str]:
        """Return the command that runs another one in the world as ``user``, in that user's
        home.
        """
        enter = ["nsenter", "--target", str(self.process), "--mount", "--pid"]
        if self.as_user:
            enter += ["--user"]
        return [
            *enter,
            "--",
            "/usr/sbin/runuser",
            "--login",
            user,
            "--command",
            shlex.join(command),
        ]

    def run(
        self, *command: str, user: str = "root", given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the world and return what it said; the exit code is the caller's to
        judge.
        """
        return subprocess.run(
            self.command(*command, user=user),
            input=given,
            capture_output=True,
            text=True,
            timeout=240,
        )

    def done(self, *command: str, user: str = "root") -> str:
        """Run a command that has to succeed; return what it said."""
        ran = self.run(*command, user=user)
        assert ran.returncode == 0, f"{' '.join(command)} as {user}:\n{ran.stdout}{ran.stderr}"
        return ran.stdout + ran.stderr


def refusal() -> str:
    """Return why there can be no such world here, or ""."""
    if sys.platform != "linux":
        return "needs Linux"
    if subprocess.run([*_namespaces(), "true"], capture_output=True).returncode:
        return (
            "no mount and process namespaces with several users here: it takes root, or the "
            "package uidmap"
        )
    return ""


def _namespaces() -> list[str]:
    kinds = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return kinds if _is_root() else [*kinds, "--map-root-user", "--map-auto"]


def _is_root() -> bool:
    """Return True for a root who has the other users' ids too: one alone in a namespace has not."""
    ids = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return os.geteuid() == 0 and ids > 60_000


@contextlib.contextmanager
def world(repository: Path) -> Iterator[World]:
    """Yield a world with the lecturer as its one user; all its processes end with it."""
    arguments = [
        sys.executable,
        str(Path(__file__).resolve()),
        sys.prefix,
        sys.base_prefix,
        str(repository),
    ]
    with tempfile.TemporaryFile("w+") as said:
        outer = subprocess.Popen(
            [*_namespaces(), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
            env=_with_tools(),
        )
        try:
            if outer.stdout.readline().strip() != _READY:
                outer.wait(60)
                said.seek(0)
                raise RuntimeError(f"the world could not be furnished:\n{said.read()}")
            yield World(_child_of(outer.pid), not _is_root())
        finally:
            outer.stdin.close()  # its first process ends then, and the kernel ends the others
            with contextlib.suppress(subprocess.TimeoutExpired):
                outer.wait(60)
            if outer.poll() is None:
                os.killpg(outer.pid, signal.SIGKILL)
                outer.wait(60)


def _with_tools() -> dict[str, str]:
    """Return the environment with useradd and its like on the PATH, where an ordinary user has them
    not.
    """
    return os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


def _child_of(process: int) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.05)
    raise RuntimeError("unshare started nothing")


def furnish(venv: Path, base: Path, repository: Path) -> None:
    """Make the private folders, put what is needed back into them, and make the lecturer.

    Runs in the namespaces.
    """
    _tmpfs(_STASH)
    kept = {venv: _STASH / "venv", base: _STASH / "base", repository: _STASH / "repository"}
    for source, held in kept.items():
        _bound(source, held)
    _tmpfs(_STASH / "etc")
    subprocess.run(
        ["cp", "-a", "--no-preserve=context", "/etc/.", str(_STASH / "etc")],
        stderr=subprocess.DEVNULL,
    )
    for path in dict.fromkeys((*_PRIVATE, *_closed(venv), *_closed(base), repository)):
        if path.exists():  # else it is hidden already
            _tmpfs(path, mode="1777" if path in _OPEN else "755")
    _bound(_STASH / "etc", Path("/etc"))
    _fresh_users()
    for source in (venv, base):
        _bound(kept[source], source)
    subprocess.run(
        ["useradd", "--create-home", "--key", "HOME_MODE=0700", "--shell", "/bin/bash", LECTURER],
        check=True,
    )
    _bound(kept[repository], CLONE)
    subprocess.run(["umount", "--recursive", "--lazy", str(_STASH)], check=True)


def _closed(path: Path) -> list[Path]:
    """Return the first folder above ``path`` that other users may not enter, if there is one: it is
    hidden whole.
    """
    return [one for one in reversed(path.parents) if not one.stat().st_mode & 0o001][:1]


def _bound(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--rbind", str(source), str(target)], check=True)


def _tmpfs(path: Path, *, mode: str = "755") -> None:
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode={mode},size=512m", "tmpfs", str(path)], check=True
    )


def _fresh_users() -> None:
    """Keep the users of the system alone, with no password: the persons of this machine are
    nobody's business here.
    """
    for name, shadow, rest in (
        ("passwd", "shadow", "*:19000:0:99999:7:::"),
        ("group", "gshadow", "*::"),
    ):
        lines = [
            line
            for line in Path("/etc", name).read_text().splitlines()
            if line and _is_of_the_system(line)
        ]
        for path, kept in (
            (name, lines),
            (shadow, [f"{line.split(':')[0]}:{rest}" for line in lines]),
        ):
            Path("/etc", path).unlink(missing_ok=True)
            Path("/etc", path).write_text("".join(f"{line}\n" for line in kept))
        Path("/etc", shadow).chmod(0o600)
    rules = Path("/etc/login.defs")
    rules.write_text(
        re.sub(r"^([UG]ID_MIN).*", rf"\1 {_FIRST_OF_CLASS}", rules.read_text(), flags=re.MULTILINE)
    )
    for path in ("nologin", ".pwd.lock", "subuid", "subgid"):
        Path("/etc", path).unlink(missing_ok=True)


def _is_of_the_system(line: str) -> bool:
    number = int(line.split(":")[2])
    return number < _FIRST_PERSON or number == _NOBODY


if __name__ == "__main__":
    furnish(*map(Path, sys.argv[1:]))
    print(_READY, flush=True)
    sys.stdin.read()
