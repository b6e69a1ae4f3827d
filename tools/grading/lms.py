"""Systems for courses: read what Canvas and Moodle pack of an assignment.

Canvas packs files, ``LASTFIRST_LATE_USER_FILE_NAME.ipynb`` (``LATE_`` where it was); Moodle a
folder a student, ``First Last_PARTICIPANT_assignsubmission_file``, or files whose names begin so.
The forms are those of canvas-lms (lib/content_zipper.rb) and of Moodle
(mod/assign/classes/downloader.php). No name in an archive becomes a path, and of no file is more
read than the largest notebook has.
"""

from __future__ import annotations

import functools
import lzma
import os
import re
import shutil
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from tools.grading.gradebook import GradingError
from tools.grading.intake import LARGEST_BYTES, TIMESTAMP

CANVAS, MOODLE = "Canvas", "Moodle"
MOST_FILES, MOST_BYTES = 20_000, 4 * 2**30  # of a download; the second unpacked
_FOLDER = "handed_in"
_LONGEST_NAME = 150
# each packer its own
_UNPACKING = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, RuntimeError, EOFError)
_CANVAS = re.compile(
    r"(?:(?:LATE_)?(?P<anonymous>anon_[A-Za-z0-9]+)|(?P<who>\w+?)_(?:(?P<late>LATE)_)?(?P<id>\d+))_\d+_(?P<name>.+)",
    re.IGNORECASE,
)
_MOODLE = re.compile(r"(?P<who>.+)_(?P<id>\d+)_assignsubmission_[a-z]+")
_MOODLE_FILE = re.compile(rf"{_MOODLE.pattern}_(?P<name>.+)")


@dataclass(frozen=True)
class Person:
    """How a system knows a student: the name as far as it says it, its id, and whether the work
    came late.
    """

    name: str
    lms_id: str
    late: bool = False


@dataclass(frozen=True)
class Download:
    """A folder of submissions by student; of a ``system``'s download also who they are, and what is
    no submission.
    """

    folder: Path
    system: str = ""
    people: dict[str, Person] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Entry:
    """A file of a download, by the parts of its name there."""

    parts: tuple[str, ...]
    open: Callable[[], IO[bytes]]

    def read(self) -> bytes:
        """Return the beginning of the file."""
        with self.open() as file:
            return file.read(LARGEST_BYTES + 1)


def unpack(source: Path, into: Path) -> Download:
    """Return the folder of submissions: ``source`` itself, or what a download holds, written to
    ``into``/handed_in.

    Raises GradingError where it is an archive that cannot be read.
    """
    if source.is_dir() and not any(
        _identify((entry.name, "") if entry.is_dir() else (entry.name,))
        for entry in source.iterdir()
    ):
        return Download(source)
    folder = into / _FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if source.is_dir():
        return _lay_out(list(_folder_entries(source)), folder)
    try:
        with zipfile.ZipFile(source) as archive:
            return _lay_out(list(_archive_entries(archive)), folder)
    except zipfile.BadZipFile as error:
        raise GradingError(
            f"{source} is no whole ZIP file ({error}); download it again, or name a folder"
        ) from None


def _folder_entries(source: Path) -> Iterator[_Entry]:
    for root, folders, names in os.walk(source):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(root, name) for name in sorted(names)):
            if path.is_file() and not path.is_symlink():
                yield _Entry(path.relative_to(source).parts, functools.partial(_open, path))


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


def _archive_entries(archive: zipfile.ZipFile) -> Iterator[_Entry]:
    for member in archive.infolist():
        parts = PurePosixPath(member.filename.replace("\\", "/")).parts
        if parts and not member.is_dir():
            yield _Entry(parts, functools.partial(archive.open, member))


def _identify(parts: Sequence[str]) -> tuple[str, str, Person, str] | None:
    """Return the system, the student's folder, the student, and the own name of a file; None for
    another's.
    """
    if len(parts) > 1 and (match := re.fullmatch(f"{_MOODLE.pattern}_?", parts[0])):
        return MOODLE, *_student(match["who"], match["id"]), parts[-1]
    if len(parts) == 1 and (match := _MOODLE_FILE.fullmatch(parts[0])):
        return MOODLE, *_student(match["who"], match["id"]), match["name"]
    if len(parts) == 1 and (match := _CANVAS.fullmatch(parts[0])):
        if match["anonymous"]:
            return CANVAS, match["anonymous"], Person("", ""), match["name"]
        return CANVAS, *_student(match["who"], match["id"], late=bool(match["late"])), match["name"]
    return None


def _student(who: str, lms_id: str, *, late: bool = False) -> tuple[str, Person]:
    return f"{folded(who) or 'student'}_{lms_id}", Person(who, lms_id, late)


def folded(name: str) -> str:
    """Return the letters and digits of a name without accents and capitals, by which two spellings
    of it agree.
    """
    plain = unicodedata.normalize("NFKD", name.casefold()).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]", "", plain)[:80]


def _lay_out(entries: list[_Entry], folder: Path) -> Download:
    """Write each student's notebooks to a folder of their own; other files are named."""
    entries = [
        entry
        for entry in entries
        if "__MACOSX" not in entry.parts and not entry.parts[-1].startswith(".")
    ]
    if len(entries) > MOST_FILES:
        raise GradingError(
            f"the download holds {len(entries):,} files; {MOST_FILES:,} are read at most: divide it"
        )
    top_names = {entry.parts[0] for entry in entries}
    inner_entries = [
        _Entry(entry.parts[1:], entry.open) for entry in entries if len(entry.parts) > 1
    ]
    is_known = top_names == {"submitted"} or any(_identify(entry.parts) for entry in inner_entries)
    if is_known and len(top_names) == 1 and len(inner_entries) == len(entries):
        entries = inner_entries  # all of it was packed with its folder
    system, written_bytes = "", 0
    people: dict[str, Person] = {}
    skipped: dict[str, str] = {}
    other_files: dict[str, list[str]] = {}
    timestamps: dict[Path, bytes] = {}
    for entry in entries:
        identity = _identify(entry.parts)
        if identity is None and len(entry.parts) > 1:
            identity = "", entry.parts[0], Person("", ""), entry.parts[-1]
        if identity is None:
            skipped[entry.parts[0]] = (
                "is no submission of Canvas or Moodle: its name says no student; put it into a "
                "folder with the student's name"
            )
            continue
        system = identity[0] or system
        _, student, person, name = identity
        students_folder = folder / (_as_folder(student) or "student")
        people[students_folder.name] = person
        students_folder.mkdir(exist_ok=True)
        target = (
            students_folder / _as_folder(entry.parts[-2])
            if not identity[0] and len(entry.parts) > 2
            else students_folder
        )
        is_timestamp = not identity[0] and name == TIMESTAMP
        if not (is_timestamp or name.lower().endswith(".ipynb")):
            other_files.setdefault(students_folder.name, []).append(repr(name)[:140])
            continue
        try:
            content = entry.read()
        except _UNPACKING as error:
            damage = (
                "is encrypted"
                if "encrypted" in str(error)
                else "is damaged, or packed as is not known here"
            )
            reason = (
                f"cannot be read ({strerror})"
                if (strerror := getattr(error, "strerror", ""))
                else damage
            )
            other_files.setdefault(students_folder.name, []).append(
                f"{name!r:.140}, which {reason},"
            )
            continue
        if is_timestamp:
            timestamps[target / TIMESTAMP] = content[:_LONGEST_NAME]
            continue
        written_bytes += len(content)
        if written_bytes > MOST_BYTES:
            raise GradingError(
                f"the download holds more than {MOST_BYTES / 2**30:.0f} GiB; grade it in parts"
            )
        target.mkdir(exist_ok=True)
        _free_name(target, name).write_bytes(content)
    for path, content in timestamps.items():
        if path.parent.is_dir() and any(path.parent.iterdir()):
            path.write_bytes(content)
    for student, names in other_files.items():
        if not any((folder / student).iterdir()):
            skipped[student] = f"handed in {', '.join(names[:3])} and no notebook"
            (folder / student).rmdir()
    return Download(folder, system, people if system else {}, skipped)


def _as_folder(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.@-]+", "_", name).lstrip("_.@-")[:100]


def _free_name(folder: Path, name: str) -> Path:
    """Return a path for a file that is not there yet; a second one of a name stands beside the
    first.
    """
    clean_name = re.sub(r"[\x00-\x1f/\\]", "_", name).lstrip(".")
    stem, suffix = clean_name[: -len(".ipynb")][:_LONGEST_NAME], clean_name[-len(".ipynb") :]
    path, number = folder / f"{stem}{suffix}", 1
    while path.exists():
        path, number = folder / f"{stem} ({number}){suffix}", number + 1
    return path
