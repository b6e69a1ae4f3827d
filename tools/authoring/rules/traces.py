"""Find what a notebook must not hold: traces of the machine on which it was built."""

from __future__ import annotations

import getpass
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat

_EMBEDDED = re.compile(r"data:image/\w+;base64,[\w+/=]+")
_ANYWHERE = {
    "a path of a machine": re.compile(
        r"(?<![\w./])/(?:home|root|Users|tmp|work|workspace|var/folders|mnt)/[^\s'\"<>]+"
    ),
    "a path of a Windows machine": re.compile(r"\b[A-Za-z]:\\\\?[\w.]+\\[^\s'\"<>]*"),
    "a memory address": re.compile(r"\bat 0x[0-9a-fA-F]{6,}"),
}

_ORDINARY = ("root", "localhost", "user", "main", "ubuntu", "debian", "runner", "student", "jovyan")


def here(root: Path) -> dict[str, re.Pattern[str]]:
    """Return the patterns that name this machine: the repository's and the home folder, the
    temporary one, host and user.
    """
    folders = {
        "the repository's folder": str(root),
        "the home folder": str(Path.home()),
        "the temporary folder": tempfile.gettempdir(),
    }
    patterns = {
        label: re.compile(re.escape(folder) + r"(?![\w-])")
        for label, folder in folders.items()
        if len(Path(folder).parts) > 1
    }
    for label, word in {
        "the host's name": socket.gethostname(),
        "the user's name": _user(),
    }.items():
        if len(word) >= 4 and word not in _ORDINARY:
            patterns[label] = re.compile(rf"(?<![\w.-]){re.escape(word)}(?![\w-])")
    return patterns


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""


def in_text(text: str, local: dict[str, re.Pattern[str]]) -> list[str]:
    """Return a phrase for each trace in ``text``, such as "the home folder: '/home/ann/x'"."""
    phrases = []
    for label, pattern in {**local, **_ANYWHERE}.items():
        match = pattern.search(text)
        if match:
            phrases.append(f"{label}: {match.group()!r}")
    return phrases


def texts(output: nbformat.NotebookNode) -> Iterator[str]:
    """Yield every text of an output, in data and metadata; pictures in base64 have none."""
    if output.output_type == "stream":
        yield output.text
    elif output.output_type == "error":
        yield from (output.ename, output.evalue, *output.traceback)
    else:
        for mime, value in output.data.items():
            if mime not in ("image/png", "image/jpeg"):
                yield _EMBEDDED.sub("", value if isinstance(value, str) else str(value))
        yield str(dict(output.get("metadata", {})))
