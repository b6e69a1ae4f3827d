"""Bring the reader's copy up to date: what the reader has changed stays, and the course's new
version lies beside it.

A hidden file in the copy remembers what the course has written there, before it is written: so a
run that is killed leaves nothing that the next one does not know. A file with any other content is
the reader's. In a notebook the cells' sources, outputs, attachments and metadata count, without
what a program notes there of itself. What lies in the place of a file and is none, such as a
folder, is named, and all else is brought up to date.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path, PurePosixPath

from helpers.storage import write_atomically
from helpers.widgets import PREDICTIONS_FILE as PREDICTIONS
from tools.authoring.order import title_of
from tools.copies.form import OF_THE_KERNEL

MANIFEST = ".course.json"
_USED = os.R_OK | os.W_OK | os.X_OK  # of a folder that files are brought up to date in
# and its .new.ipynb, -Copy1.ipynb
_NUMBERED = re.compile(r"(?P<name>\d\d_[a-z0-9_]+)(?![a-z0-9_])(?P<rest>.*)")

# What JupyterLab, VS Code and Colab write into a cell's metadata by themselves: what is folded, and
# when it ran.
_OF_THE_PROGRAM = ("collapsed", "scrolled", "trusted", "jupyter", "execution", "ExecuteTime",
                   "hidden", "jp-MarkdownHeadingCollapsed", "vscode", "colab", "id",
                   "outputId")  # fmt: skip


@dataclass
class _Known:
    """The ``version`` of a file that the course handed over last, and every content that it has
    given the file.

    A file that has left the course has the version "".
    """

    version: str = ""
    contents: list[str] = field(default_factory=list)


def update(copy: Path, files: Mapping[str, bytes]) -> list[str]:
    """Write ``files``, by their paths, to the folder ``copy``; return a line for each that the
    reader must know of.

    A file that the reader has changed stays, one that is gone from the course too, and one that the
    reader has removed comes back. Where a lesson has a new number or title, what the reader has of
    it takes that name first. Raises OSError, with what to do, where the disk refuses, or ``copy``
    is no folder.
    """
    if os.path.lexists(copy) and not copy.is_dir():
        raise NotADirectoryError(f"{copy} is no folder; rename it, and start again")
    copy.mkdir(parents=True, exist_ok=True)
    known_files, messages = _read(copy / MANIFEST)
    for name, content in files.items():
        known_file = known_files.setdefault(name, _Known())
        known_file.contents = list(
            dict.fromkeys([*known_file.contents, _content(Path(name).name, content)])
        )
    _write(copy / MANIFEST, known_files)
    try:
        messages += _take_new_names(copy, files, known_files)
        for name, content in files.items():
            obstacle = _obstacle(copy, name)
            messages += (
                [obstacle] if obstacle else _hand_over(copy, name, content, known_files[name])
            )
        removed = [
            name
            for name, known_file in known_files.items()
            if name not in files and known_file.version
        ]
        for name in removed:
            known_files[name].version = ""
    finally:
        _write(copy / MANIFEST, known_files)
    remaining = [name for name in removed if os.path.lexists(copy / name)]
    return [
        *messages,
        *(f"{name} is no longer part of the course; it stays as it is" for name in remaining),
    ]


def _take_new_names(
    copy: Path, files: Mapping[str, bytes], known_files: dict[str, _Known]
) -> list[str]:
    """Rename what the copy has of a lesson that has another number or title in ``files``, and what
    lies beside it.

    Returns a line for each file that the reader has changed. Where both names are there, both stay.
    """
    names = {
        (path.parent, title_of(match["name"])): match["name"]
        for path in map(PurePosixPath, files)
        if (match := _NUMBERED.fullmatch(path.name))
    }
    messages = []
    for folder in sorted({parent for parent, _ in names}):
        usable = os.access(copy / folder, _USED)
        for path in sorted((copy / folder).glob("[0-9][0-9]_*")) if usable else ():
            match = _NUMBERED.fullmatch(path.name)
            name = names.get((folder, title_of(match["name"]))) if match else None
            new_path = path.with_name(f"{name}{match['rest']}") if match else path
            if name is None or os.path.lexists(new_path):
                continue
            old_name, new_name = (file.relative_to(copy).as_posix() for file in (path, new_path))
            if _is_the_readers(path, known_files.get(old_name, _Known()).contents):
                kind = "number" if new_path.name[2:] == path.name[2:] else "name"
                messages.append(f"{old_name} is {new_name} now: its lesson has another {kind}")
            if old_name in known_files:
                old, new = known_files.pop(old_name), known_files.setdefault(new_name, _Known())
                new.version = old.version
                new.contents = list(dict.fromkeys([*old.contents, *new.contents]))
                # a killed update finds the file by its new name
                _write(copy / MANIFEST, known_files)
            path.rename(new_path)
    return messages


def take_predictions(course: Path, copy: Path) -> list[str]:
    """Copy the predictions of a reader who worked in ``course`` into a ``copy`` that is yet to be
    made.
    """
    source, target = course / PREDICTIONS, copy / PREDICTIONS
    if os.path.lexists(copy / MANIFEST) or os.path.lexists(target) or not source.is_file():
        return []
    copy.mkdir(parents=True, exist_ok=True)
    target.touch(mode=0o600)
    write_atomically(target, source.read_bytes())
    return [f"your predictions from {course.name} are taken along"]


def _read(manifest: Path) -> tuple[dict[str, _Known], list[str]]:
    if not os.path.lexists(manifest):
        return {}, []
    consequence = "every file that differs from the course's is taken for yours"
    if not manifest.is_file():
        return {}, [f"{manifest.name} is no file, so {consequence}; rename it, and start again"]
    if not os.access(manifest, os.R_OK):
        raise PermissionError(f"{manifest} may not be read; allow that: chmod u+r {manifest}")
    try:
        known_files = {
            name: _Known(**entry)
            for name, entry in json.loads(manifest.read_text(encoding="utf-8")).items()
        }
        if all(
            isinstance(text, str)
            for entry in known_files.values()
            for text in (entry.version, *entry.contents)
        ):
            return known_files, []
    except (ValueError, TypeError, AttributeError, RecursionError):
        # somebody's own, or half of one
        pass
    return {}, [f"{manifest.name} is damaged: {consequence}"]


def _write(manifest: Path, known_files: Mapping[str, _Known]) -> None:
    text = json.dumps({name: asdict(file) for name, file in known_files.items()}, indent=1)
    if manifest.is_file() or not os.path.lexists(manifest):
        write_atomically(manifest, f"{text}\n")


def _obstacle(copy: Path, name: str) -> str:
    """Return a sentence on what is in the way of the course's file ``name``, "" where it can be
    written.
    """
    for path in (*reversed([copy / parent for parent in Path(name).parents][:-1]), copy / name):
        expected = path.is_file() if path == copy / name else path.is_dir()
        if os.path.lexists(path) and not expected:
            kind = "a folder" if path.is_dir() else "a file" if path.is_file() else "no file"
            item = path.relative_to(copy).as_posix()
            return (
                f"{name} is not brought up to date, because {item} is {kind} here; rename it, and "
                "start again"
            )
        if path.is_dir() and not os.access(path, _USED):
            item = path.relative_to(copy).as_posix()
            return (
                f"{name} is not brought up to date, because {item} may not be read and written; "
                f"allow that: chmod u+rwx {path}"
            )
    if os.path.lexists(copy / name) and not os.access(copy / name, os.R_OK):
        return (
            f"{name} is not brought up to date, because it may not be read; allow that: chmod u+r "
            f"{copy / name}"
        )
    return ""


def _hand_over(copy: Path, name: str, content: bytes, known_file: _Known) -> list[str]:
    """Write one file of the course, or its new version beside the reader's; return what to say of
    it.
    """
    path = copy / name
    version, messages = _digest(_version(path.name, content)), []
    if _is_the_readers(path, known_file.contents):
        if version == known_file.version:
            return []
        candidates = (
            path.with_name(f"{path.stem}.new{number if number > 1 else ''}{path.suffix}")
            for number in count(1)
        )
        beside = next(
            candidate
            for candidate in candidates
            if not _is_the_readers(candidate, known_file.contents)
        )
        messages = [
            (
                f"{name} is yours and stays; the course has a newer version, see "
                f"{beside.relative_to(copy).as_posix()}"
            )
        ]
        path = beside
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != content:
        write_atomically(path, content)
    known_file.version = version
    return messages


def _is_the_readers(path: Path, course_contents: Sequence[str]) -> bool:
    if not path.is_file() or not os.access(path, os.R_OK):
        return os.path.lexists(path)
    return _content(path.name, path.read_bytes()) not in course_contents


def _content(name: str, data: bytes) -> str:
    """Return a digest of what a reader changes in a file: in a notebook that of its cells."""
    if not name.endswith(".ipynb"):
        return _digest(data)
    try:
        cells = [
            [
                cell["cell_type"],
                "".join(cell["source"]),
                cell.get("outputs"),
                cell.get("attachments"),
                _metadata(cell),
            ]
            for cell in json.loads(data)["cells"]
        ]
        return _digest(json.dumps(cells, sort_keys=True).encode())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # damaged, and not by the course
        return _digest(data)


def _metadata(cell: dict) -> dict:
    """Return a cell's metadata without those that a program notes there of itself."""
    return {key: value for key, value in cell["metadata"].items() if key not in _OF_THE_PROGRAM}


def _version(name: str, data: bytes) -> bytes:
    """Return the content that makes a version of a file: of a notebook all but what this machine's
    kernel adds to it.
    """
    if not name.endswith(".ipynb"):
        return data
    notebook = json.loads(data)
    notebook["metadata"] = {
        key: value for key, value in notebook["metadata"].items() if key not in OF_THE_KERNEL
    }
    return json.dumps(notebook, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
