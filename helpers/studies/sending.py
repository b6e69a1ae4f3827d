"""A GPU recorded by a reader's hand: one file, without a name of who recorded it, and the checks of
a file of others.

``python -m helpers.studies.sending`` records on this machine's GPU what the lessons measure on one,
shows the whole file, and says how to send it; ``python -m helpers.studies.sending take FILE``
checks a file that was sent, and puts it where the course finds it.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import getpass
import json
import math
import platform
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers import recorded, results, storage
from helpers.checks import one_of, short

# What is recorded for each lesson, and the result that it is.
RESULTS: dict[str, dict[str, str]] = {
    "00": {"products": "helpers.timing:Comparison", "first calls": "helpers.timing:CudaTiming"},
    "01": {
        "limits": "helpers.hardware:MachineLimits",
        "links": "helpers.studies.data_movement._copies:SystemLinks",
    },
    "02": {"matrix products": "helpers.studies.matrix_product:ProductTimes"},
    "10": {"copying": "helpers.studies.input_pipeline._starvation:CopyingTable"},
    "17": {
        "placements on CUDA": "helpers.studies.constant_weights:CudaTimes",
        "growing networks on CUDA": "helpers.studies.constant_weights:CudaTimes",
    },
    "18": {"story": "helpers.studies.fused_bias:StoryFigures"},
}
LESSONS = tuple(RESULTS)
FOLDER = "recorded/gpu"
TERMS = "Sent in by a reader of the course, to be shown in it under CC BY 4.0."

_MOST_BYTES, _MOST_LISTS = 2**20, 20_000
_SCHEMA = Path(__file__).with_name("sending.schema.json")
_REMOVED = "(removed)"
_LONGEST_TEXT = 300
# what the schema takes in no text: lines, tags, Markdown
_NO_TEXT = re.compile(r"[^A-Za-z0-9 .,:;()'/+*@%=?!_-]+")
_FIRST_DAY = datetime.date(2020, 1, 1)
_MOST = 1e15
# By the end of a field's name, the least and the most that a machine is or measures; the first that
# fits counts. Of a comparison of few rounds the interval has no upper end.
_RANGES: dict[str, tuple[float, float]] = {
    "bytes_per_s": (0, 1e15),
    "flops_per_s": (0, 1e18),
    "flops": (0, 1e18),
    "macs": (0, 1e18),
    "bytes": (0, 1e16),
    "hz": (0, 1e12),
    "total_s": (-1e6, 1e6),
    "s": (0, 1e6),
    "ns": (0, 1e15),
    "error_share": (0, 1e9),
    "confidence_share": (0, 1),
    "share": (-1e3, 1e3),
    "high_ratio": (0, math.inf),
    "ratio": (0, 1e9),
    "speedup": (0, 1e9),
    "cores": (0, 1e5),
    "threads": (1, 1e5),
    "level": (1, 9),
    "ways": (0, 1e6),
    "bits": (0, 1e5),
}
# What tells who or where somebody is, whatever it is called: folders, serial numbers, addresses.
_REST = r"[^\s'\",;:)]*"
_PRIVATE = re.compile(
    rf"(?<![\w/])(?:/|~/)(?:home|root|Users|tmp|mnt|media|content|workspaces?|work|data|scratch|opt|srv|var|usr)\b{_REST}"
    rf"|(?<![\w/.])~?/(?!proc\b|sys\b|dev\b)[\w.-]+/{_REST}"
    rf"|\.\./{_REST}"
    r"|(?<!\w)[A-Za-z]:\\[^'\",;:)\n]*"
    r"|(?:GPU|MIG)-[0-9a-fA-F-]{6,}"
    r"|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
    r"|\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"
    r"|\b(?:\d{1,3}\.){3}\d{1,3}\b"
    r"|\b[\w.+-]+(?:@| at )(?:[\w-]+\.)+[A-Za-z]\w+\b"
)
# fields whose text the library writes and reads by itself
_OURS = {"type", "lesson", "date", "terms"}


class GpuRecords(results.Record):
    """The measurements of one GPU for several lessons; ``missing`` names those that failed, and
    why.
    """

    terms: str
    recordings: tuple[recorded.Recording, ...]
    missing: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """The GPU's name."""
        return self.recordings[0].device


def record_gpu(lessons: Sequence[str] = LESSONS) -> GpuRecords:
    """Record ``lessons`` on this machine's GPU; ``missing`` names those that fail, the others are
    recorded.

    Raises RuntimeError where there is no CUDA device, and where nothing could be recorded.

    >>> records = record_gpu(["00", "01"])  # doctest: +SKIP
    >>> records.device, [recording.lesson for recording in records.recordings]  # doctest: +SKIP
    ('Tesla T4', ['00', '01'])
    """
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(
            "there is no CUDA device here; in Colab choose Runtime, Change runtime type, T4 GPU"
        )
    recordings, missing = [], []
    for lesson in lessons:
        try:
            recordings.append(recorded.record(lesson))
        except Exception as error:
            # the GPU may be lent for minutes: the other lessons are still recorded
            traceback.print_exc()
            missing.append(
                f"lesson {lesson}: {type(error).__name__}: "
                f"{(str(error).splitlines() or [''])[0][:200]}"
            )
    if not recordings:
        raise RuntimeError(f"nothing could be recorded: {'; '.join(missing)}")
    return remove_names(GpuRecords(TERMS, tuple(recordings), tuple(missing)))


def remove_names(records: GpuRecords) -> GpuRecords:
    """Return the records without names of host, user and folder, serial numbers and addresses in
    their texts.
    """
    return results.from_dict(GpuRecords, _clean(records.to_dict(), _names()))


def find_private_texts(text: str) -> list[str]:
    """Return the parts of ``text`` that tell where or by whom it was recorded: names, folders,
    numbers.
    """
    return [match[0] for match in re.finditer(_pattern(_names()), text)]


def check(text: str) -> GpuRecords:
    """Return the records of a file that somebody sent, read from its ``text``.

    Raises ValueError, saying why, where the file is not of the form
    (``helpers/studies/sending.schema.json``), holds a number that no machine has, a result that the
    library does not have, no GPU, or a name of folder, machine or address. A text in it has one
    line of plain characters, without a sign of HTML or Markdown.

    >>> check("a GPU of 8 TFLOP/s")
    Traceback (most recent call last):
    ValueError: it is no JSON (Expecting value: line 1 column 1 (char 0))
    """
    if len(text.encode("utf-8", "replace")) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES:,} bytes, which no recording is")
    # each is held against the schema, which would take minutes
    if text.count("[") + text.count("{") > _MOST_LISTS:
        raise ValueError(
            f"it holds more than {_MOST_LISTS:,} lists and objects, which no recording does"
        )
    try:
        values = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from error
    try:
        _require_schema(values)
        private_texts = find_private_texts(_texts(values))
        if private_texts:
            raise ValueError(
                f"it holds {private_texts[0]!r}, which tells where it was recorded or by whom; ask "
                "for another"
            )
        records = _parse_records(values)
    except RecursionError:
        raise ValueError("its lists lie too deep in one another") from None
    lessons = [recording.lesson for recording in records.recordings]
    if (
        len(set(lessons)) != len(lessons)
        or len({recording.device for recording in records.recordings}) != 1
    ):
        raise ValueError("each lesson is recorded once, on one GPU")
    return records


def _parse_records(values: Mapping[str, Any]) -> GpuRecords:
    """Return the records of values that are of the form.

    Raises ValueError unless each is what its lesson records.
    """
    try:
        records = results.from_dict(GpuRecords, values)
        for recording in records.recordings:
            types = {name: entry["type"] for name, entry in recording.entries.items()}
            if types != RESULTS[recording.lesson]:
                raise ValueError(
                    f"lesson {recording.lesson} records {RESULTS[recording.lesson]}, not {types}"
                )
            if recording.card.gpus is None or recording.device != recording.card.gpus[0].name:
                raise ValueError(
                    f"its device, {recording.device}, is not the first GPU of its card"
                )
            if recording.command != f"python -m helpers.recorded {recording.lesson}":
                raise ValueError(
                    f"lesson {recording.lesson} is not recorded by {recording.command}"
                )
            _require_ranges(recording)
            for name in recording.entries:
                _require_ranges(recording.result(name))
    except (ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ValueError(f"it is not what this library records ({error})") from error
    return records


def _require_ranges(value: Any, field: str = "") -> None:
    """Raise ValueError for a number or a date within ``value``, or its ``field``, that none is or
    measures.
    """
    if isinstance(value, results.Result):
        for name in (
            data_field.name
            for data_field in dataclasses.fields(value)
            if data_field.name != "entries"
        ):
            _require_ranges(getattr(value, name), name)
    elif isinstance(value, Mapping | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            _require_ranges(item, field)
    elif field == "date":
        if (
            not _FIRST_DAY
            <= datetime.date.fromisoformat(value)
            <= datetime.date.today() + datetime.timedelta(days=1)
        ):
            raise ValueError(f"date={value} is not a day between {_FIRST_DAY} and tomorrow")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        ends = (end for end in _RANGES if field == end or field.endswith(f"_{end}"))
        least, most = _RANGES.get(next(ends, ""), (0, _MOST))
        if not least <= value <= most:
            raise ValueError(f"{field}={short(value)} is not within {least:g} and {most:g}")


def save(records: GpuRecords, folder: Path) -> Path:
    """Write the records to ``folder`` under their GPU's name and their date; return the path.

    Other records of the same GPU and day stay: the second file of a day ends in ``_2``.

    >>> save(record_gpu(), Path.cwd()).name  # doctest: +SKIP
    'tesla_t4_2026-11-29.json'
    """
    one_of("folder", folder, Path, "a pathlib.Path")
    name = re.sub(r"[^a-z0-9]+", "_", records.device.lower()).strip("_")
    text = records.to_json() + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    ends = ("", *(f"_{number}" for number in range(2, 1000)))
    paths = (folder / f"{name}_{records.recordings[0].date}{end}.json" for end in ends)
    path = next(
        path for path in paths if not path.exists() or path.read_text(encoding="utf-8") == text
    )
    storage.write_atomically(path, text)
    return path


def take(file: Path, folder: Path) -> Path:
    """Check a ``file`` that was sent, build the site's view of it, and write it to ``folder``;
    return the path.

    Raises ValueError, saying why, for a file that is not sound, and OSError for one that cannot be
    read.

    >>> take(Path("tesla_t4_2026-11-29.json"), storage.course_file(FOLDER)).name  # doctest: +SKIP
    'tesla_t4_2026-11-29.json'
    """
    with file.open("rb") as stream:
        content = stream.read(_MOST_BYTES + 1)
    records = check(check(content.decode("utf-8")).to_json())  # as it is read from now on
    recorded.machines_html(records.recordings)
    for recording in records.recordings:
        recorded.results_html(recording)
    return save(records, folder)


def gpus(*, folder: Path | None = None) -> tuple[GpuRecords, ...]:
    """Return the records of every GPU that was sent in, by name; () where none was yet.

    Raises ValueError, naming it, for a file that is not sound.

    >>> [records.device for records in gpus()]  # doctest: +SKIP
    ['Tesla T4']

    Lesson 18.
    """
    directory = storage.course_file(FOLDER) if folder is None else folder
    return tuple(_read(path) for path in sorted(directory.glob("*.json")))


def _read(path: Path) -> GpuRecords:
    try:
        return check(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{FOLDER}/{path.name} is not sound ({error}); delete it, or take another file"
        ) from error


def _names() -> list[str]:
    """Return this machine's and its user's names, where they would tell something."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no name for this user's number
        user = ""
    names = [
        platform.node(),
        platform.node().partition(".")[0],
        user,
        Path.home().as_posix(),
        Path.cwd().as_posix(),
    ]
    return [
        name for name in dict.fromkeys(names) if len(name) > 2 and name not in ("localhost", "root")
    ]


def _pattern(names: Sequence[str]) -> str:
    return "|".join(
        [_PRIVATE.pattern, *(rf"(?<!\w){re.escape(name)}(?!\w)(?:/{_REST})?" for name in names)]
    )


def _clean(value: Any, names: Sequence[str], field: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _clean(item, names, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, names, field) for item in value]
    if not isinstance(value, str) or field in _OURS:
        return value
    plain = " ".join(_NO_TEXT.sub(" ", re.sub(_pattern(names), _REMOVED, value)).split())
    return plain if len(plain) <= _LONGEST_TEXT else f"{plain[: _LONGEST_TEXT - 3]}..."


def _texts(value: Any, field: str = "") -> str:
    """Return all texts in JSON that a person may have written, keys included, one a line."""
    if isinstance(value, dict):
        return "\n".join([*value, *(_texts(item, key) for key, item in value.items())])
    if isinstance(value, list):
        return "\n".join(_texts(item, field) for item in value)
    return value if isinstance(value, str) and field not in _OURS else ""


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is no number")
    return number


@functools.cache
def _schema() -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(json.loads(_SCHEMA.read_text(encoding="utf-8")))


def _require_schema(values: Any) -> None:
    violation = next(_schema().iter_errors(values), None)
    if violation is not None:
        location = (
            "/".join(short(step).strip("'") for step in violation.absolute_path) or "the file"
        )
        raise ValueError(f"{location}: {violation.message[:200]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Record this machine's GPU, or take a file that was sent, by ``arguments``; return 1 where it
    cannot be done.
    """
    parser = argparse.ArgumentParser(
        prog="python -m helpers.studies.sending", description=__doc__.splitlines()[0]
    )
    parser.add_argument("what", nargs="?", choices=("record", "take"), default="record")
    parser.add_argument("file", nargs="?", type=Path, help="what was sent (take)")
    chosen = parser.parse_args(arguments)
    if (chosen.what == "take") != (chosen.file is not None):
        parser.error("name the file that was sent: python -m helpers.studies.sending take FILE")
    try:
        if chosen.what == "take":
            path = take(chosen.file, storage.course_file(FOLDER))
            print(
                f"it is sound; it is in course/{FOLDER}/{path.name}. Look at its numbers before "
                "you commit it."
            )
        else:
            path = save(record_gpu(), Path.cwd())
            print(path.read_text(encoding="utf-8"))
            print(
                f"This is all that {path.name} holds. Read it; then send it as "
                "course/record_a_gpu.md says."
            )
    except (OSError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
