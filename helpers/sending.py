"""A GPU recorded by a reader's hand: one file, without a name of who recorded it, and the checks of a file of others.

``python -m helpers.sending`` records on this machine's GPU what the lessons measure on one, shows the whole file, and
says how to send it; ``python -m helpers.sending take FILE`` checks a file that was sent, and puts it where the course
finds it.
"""

from __future__ import annotations

import argparse
import getpass
import json
import platform
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers import recorded, results, storage
from helpers._checks import one_of

LESSONS = ("00", "01", "02", "10", "17", "18")
FOLDER = "recorded/gpu"
TERMS = "Sent in by a reader of the course, to be shown in it under CC BY 4.0."

_MOST_BYTES = 2**20
_SCHEMA = Path(__file__).with_name("sending.schema.json")
_REMOVED = "(removed)"
# What tells who or where somebody is, whatever it is called: folders, serial numbers, addresses.
_REST = r"[^\s'\",;:)]*"
_PRIVATE = re.compile(
    rf"(?<![\w/])(?:/|~/)(?:home|root|Users|tmp|mnt|media|content|workspaces?|work|data|scratch|opt|srv|var|usr)\b{_REST}"
    r"|(?<!\w)[A-Za-z]:\\[^'\",;:)\n]*"
    r"|(?:GPU|MIG)-[0-9a-fA-F-]{6,}"
    r"|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
    r"|\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"
    r"|\b(?:\d{1,3}\.){3}\d{1,3}\b"
    r"|\b[\w.+-]+@[\w-]+\.[\w.]+\b"
)
_OURS = {"type", "lesson", "date", "terms"}  # fields whose text the library writes and reads by itself


class GpuRecords(results.Record):
    """What one GPU measured for several lessons; ``missing`` says what could not be recorded, and why."""

    terms: str
    recordings: tuple[recorded.Recording, ...]
    missing: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """The GPU's name."""
        return self.recordings[0].device


def record_gpu(lessons: Sequence[str] = LESSONS) -> GpuRecords:
    """Record ``lessons`` on this machine's GPU; what fails is named in ``missing``, and the rest is recorded.

    Raises RuntimeError where there is no CUDA device, and where nothing could be recorded.
    """
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("there is no CUDA device here; in Colab choose Runtime, Change runtime type, T4 GPU")
    recordings, missing = [], []
    for lesson in lessons:
        try:
            recordings.append(recorded.record(lesson))
        except Exception as error:  # the GPU may be lent for minutes: the other lessons are still recorded
            traceback.print_exc()
            missing.append(f"lesson {lesson}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}")
    if not recordings:
        raise RuntimeError(f"nothing could be recorded: {'; '.join(missing)}")
    return without_names(GpuRecords(TERMS, tuple(recordings), tuple(missing)))


def without_names(records: GpuRecords) -> GpuRecords:
    """Return the records without names of host, user and folder, serial numbers and addresses in their texts."""
    return results.from_dict(GpuRecords, _cleaned(records.to_dict(), _names()))


def private(text: str) -> list[str]:
    """Return what in ``text`` tells where it was recorded or by whom: names of this machine, folders, numbers."""
    return [found[0] for found in re.finditer(_pattern(_names()), text)]


def check(text: str) -> GpuRecords:
    """Return the records of a file that somebody sent, read from its ``text``.

    Raises ValueError, saying why, where the file is not of the form (``helpers/sending.schema.json``), holds a number
    that is none, a result that the library does not have, no GPU, or a name of folder, machine or address.
    """
    if len(text.encode()) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES:,} bytes, which no recording is")
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from error
    _require_schema(values)
    found = private(_texts(values))
    if found:
        raise ValueError(f"it holds {found[0]!r}, which tells where it was recorded or by whom; ask for another file")
    try:
        records = results.from_dict(GpuRecords, values)
        for one in records.recordings:
            if set(one.entries) != set(recorded.RECORDERS[one.lesson]):
                raise ValueError(f"lesson {one.lesson} records {', '.join(recorded.RECORDERS[one.lesson])}")
            for name in one.entries:
                one.result(name)
    except (ValueError, KeyError, TypeError, AttributeError, ImportError, RecursionError) as error:
        raise ValueError(f"it is not what this library records ({error})") from error
    lessons = [one.lesson for one in records.recordings]
    if len(set(lessons)) != len(lessons) or len({one.device for one in records.recordings}) != 1:
        raise ValueError("each lesson is recorded once, on one GPU")
    if not all(one.card.gpus for one in records.recordings):
        raise ValueError("it names no GPU")
    return records


def save(records: GpuRecords, folder: Path) -> Path:
    """Write the records to ``folder`` under their GPU's name and their date; return the path."""
    one_of("folder", folder, Path, "a pathlib.Path")
    name = re.sub(r"[^a-z0-9]+", "_", records.device.lower()).strip("_")
    path = folder / f"{name}_{records.recordings[0].date}.json"
    folder.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(path, records.to_json() + "\n")
    return path


def gpus(*, folder: Path | None = None) -> tuple[GpuRecords, ...]:
    """Return the records of every GPU that was sent in, by name; () where none was yet."""
    place = storage.course_file(FOLDER) if folder is None else folder
    return tuple(check(path.read_text(encoding="utf-8")) for path in sorted(place.glob("*.json")))


def _names() -> list[str]:
    """Return this machine's and its user's names, where they would tell something."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no name for this user's number
        user = ""
    names = [platform.node(), platform.node().partition(".")[0], user, Path.home().as_posix(), Path.cwd().as_posix()]
    return [name for name in dict.fromkeys(names) if len(name) > 2 and name not in ("localhost", "root")]


def _pattern(names: Sequence[str]) -> str:
    return "|".join([_PRIVATE.pattern, *(rf"(?<!\w){re.escape(name)}(?!\w)(?:/{_REST})?" for name in names)])


def _cleaned(value: Any, names: Sequence[str], field: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _cleaned(item, names, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item, names, field) for item in value]
    return re.sub(_pattern(names), _REMOVED, value) if isinstance(value, str) and field not in _OURS else value


def _texts(value: Any, field: str = "") -> str:
    """Return all texts in JSON that a person may have written, keys included, one a line."""
    if isinstance(value, dict):
        return "\n".join([*value, *(_texts(item, key) for key, item in value.items())])
    if isinstance(value, list):
        return "\n".join(_texts(item, field) for item in value)
    return value if isinstance(value, str) and field not in _OURS else ""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _require_schema(values: Any) -> None:
    import jsonschema

    schema = jsonschema.Draft202012Validator(json.loads(_SCHEMA.read_text(encoding="utf-8")))
    first = next(schema.iter_errors(values), None)
    if first is not None:
        where = "/".join(map(str, first.absolute_path)) or "the file"
        raise ValueError(f"{where}: {first.message[:200]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Record this machine's GPU, or take a file that was sent, by ``arguments``; return 1 where it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m helpers.sending", description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("record", "take"), default="record")
    parser.add_argument("file", nargs="?", type=Path, help="what was sent (take)")
    chosen = parser.parse_args(arguments)
    if (chosen.what == "take") != (chosen.file is not None):
        parser.error("name the file that was sent: python -m helpers.sending take FILE")
    try:
        if chosen.what == "take":
            path = save(check(chosen.file.read_text(encoding="utf-8")), storage.course_file(FOLDER))
            print(f"it is sound; it is in course/{FOLDER}/{path.name}. Look at its numbers before you commit it.")
        else:
            path = save(record_gpu(), Path.cwd())
            print(path.read_text(encoding="utf-8"))
            print(f"This is all that {path.name} holds. Read it; then send it as course/record_a_gpu.md says.")
    except (OSError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
