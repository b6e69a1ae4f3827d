"""Bring the reader's copy up to date: what the reader has changed stays, and the course's new version lies beside it.

A hidden file in the copy remembers what the course has written there. A file with any other content is the reader's.
In a notebook the sources of the cells and their outputs count: what JupyterLab notes besides is no change.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path, PurePosixPath

from helpers.storage import write_atomically
from helpers.widgets._store import FILE_NAME as PREDICTIONS
from tools.copies.form import OF_THE_KERNEL

MANIFEST = ".course.json"
_NUMBERED = re.compile(r"(?P<number>\d\d)_(?P<title>[a-z0-9_]+)(?![a-z0-9_]).*")  # and its .new.ipynb, -Copy1.ipynb


@dataclass
class _Known:
    """The ``version`` of a file that the course handed over last, and every content that it has given the file."""

    version: str = ""
    contents: list[str] = field(default_factory=list)


def update(copy: Path, files: Mapping[str, bytes]) -> list[str]:
    """Write ``files``, by their paths, to the folder ``copy``; return a line for each that the reader must know of.

    A file that the reader has changed stays, one that is gone from the course too, and one that the reader has removed
    comes back. Where a lesson has a new number, what the reader has of it takes that number first. Raises OSError, with
    what to do, where the disk refuses.
    """
    copy.mkdir(parents=True, exist_ok=True)
    known, said = _read(copy / MANIFEST)
    try:
        said += _take_new_numbers(copy, files, known)
        for name, content in files.items():
            said += _hand_over(copy, name, content, known.setdefault(name, _Known()))
    finally:
        text = json.dumps({name: asdict(one) for name, one in known.items() if name in files}, indent=1)
        write_atomically(copy / MANIFEST, f"{text}\n")
    gone = [name for name in known if name not in files and (copy / name).exists()]
    return [*said, *(f"{name} is no longer part of the course; it stays as it is" for name in gone)]


def _take_new_numbers(copy: Path, files: Mapping[str, bytes], known: dict[str, _Known]) -> list[str]:
    """Rename what the copy has of a lesson with another number than in ``files``, and what lies beside it.

    Returns a line for each file that the reader has changed. Where both numbers are there, both stay.
    """
    numbers = {(path.parent, found["title"]): found["number"] for path in map(PurePosixPath, files)
               if (found := _NUMBERED.fullmatch(path.name))}  # fmt: skip
    said = []
    for folder in sorted({parent for parent, _ in numbers}):
        for path in sorted((copy / folder).glob("[0-9][0-9]_*")):
            found = _NUMBERED.fullmatch(path.name)
            number = numbers.get((folder, found["title"])) if found else None
            new = path.with_name(f"{number}{path.name[2:]}")
            if number is None or new.exists():
                continue
            old_name, new_name = (one.relative_to(copy).as_posix() for one in (path, new))
            if _is_the_readers(path, known.get(old_name, _Known()).contents):
                said.append(f"{old_name} is {new_name} now: its lesson has another number")
            path.rename(new)
            if old_name in known:
                known[new_name] = known.pop(old_name)
    return said


def take_predictions(course: Path, copy: Path) -> list[str]:
    """Copy the predictions of a reader who worked in ``course`` into a ``copy`` that is yet to be made."""
    source, target = course / PREDICTIONS, copy / PREDICTIONS
    if (copy / MANIFEST).exists() or target.exists() or not source.exists():
        return []
    copy.mkdir(parents=True, exist_ok=True)
    target.touch(mode=0o600)
    write_atomically(target, source.read_bytes())
    return [f"your predictions from {course.name} are taken along"]


def _read(manifest: Path) -> tuple[dict[str, _Known], list[str]]:
    if not manifest.exists():
        return {}, []
    try:
        return {name: _Known(**one) for name, one in json.loads(manifest.read_text(encoding="utf-8")).items()}, []
    except (ValueError, TypeError, AttributeError):
        return {}, [f"{manifest.name} is damaged: every file that differs from the course's is taken for yours"]


def _hand_over(copy: Path, name: str, content: bytes, known: _Known) -> list[str]:
    """Write one file of the course, or its new version beside the reader's; return what to say of it."""
    path = copy / name
    version, said = _digest(_version(path.name, content)), []
    ours = [*known.contents, _content(path.name, content)]
    if _is_the_readers(path, ours):
        if version == known.version:
            return []
        places = (path.with_name(f"{path.stem}.new{number if number > 1 else ''}{path.suffix}") for number in count(1))
        beside = next(place for place in places if not _is_the_readers(place, ours))
        said = [f"{name} is yours and stays; the course has a newer version, see {beside.relative_to(copy).as_posix()}"]
        path = beside
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != content:
        write_atomically(path, content)
    known.version, known.contents = version, list(dict.fromkeys(ours))
    return said


def _is_the_readers(path: Path, ours: Sequence[str]) -> bool:
    return path.exists() and _content(path.name, path.read_bytes()) not in ours


def _content(name: str, data: bytes) -> str:
    """Return a digest of what a reader changes in a file: in a notebook the sources and outputs of its cells."""
    if not name.endswith(".ipynb"):
        return _digest(data)
    try:
        read = json.loads(data)["cells"]
        cells = [[cell["cell_type"], "".join(cell["source"]), cell.get("outputs")] for cell in read]
    except (ValueError, KeyError, TypeError):  # damaged, and not by the course
        return _digest(data)
    return _digest(json.dumps(cells, sort_keys=True).encode())


def _version(name: str, data: bytes) -> bytes:
    """Return what makes a version of a file: of a notebook all but what this machine's kernel adds to it."""
    if not name.endswith(".ipynb"):
        return data
    made = json.loads(data)
    made["metadata"] = {key: value for key, value in made["metadata"].items() if key not in OF_THE_KERNEL}
    return json.dumps(made, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
