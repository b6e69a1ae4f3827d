"""Give each lesson the name that course/order.toml states, in every file's name and in every text
that says it.

A name is a number and a title. A title that changes stands first with its former one in
``tools/authoring/order.py``.

Which numbers change is read from the names of the sources, so that a second run finds nothing to
do. A text says a number in one of three ways: a file's name (``11_working_set``), words
(``lessons 02, 11 and 12``), or a string of two digits, which is a lesson in the places of
:data:`_STRINGS` alone.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import nbformat

from tools.authoring.course import Course
from tools.authoring.lesson import AuthoringError
from tools.authoring.order import renumbered

# Tests whose lessons are made up: no number in them is of a lesson of this course.
_MADE_UP = (
    "tests/course/fixtures/*",
    "tests/course/test_authoring_*",
    "tests/course/test_copies.py",
    "tests/slides/slide_samples.py",
    "tests/slides/test_slide_*",
    "tests/helpers/widgets/test_predictions.py",
    "tests/helpers/test_exercises_settling.py",
)
_MEANT = ("tests/course/test_authoring_formulas.py",)  # among these by its name, and of this course

# Where a quoted string of two digits, or a list of them, is of lessons, and the pattern of it
# there.
_QUOTED = r'"\d\d"(?:, "\d\d")*'
_STRINGS = {
    "course/source/*.py": r'(?<=^#     number: )"\d\d"$|(?<=^#     needs: \[)"\d\d".*(?=\]$)',
    "course/recorded/*.json": r'(?<="lesson": )"\d\d(?=[-"])',
    "slides/lecture.toml": r'(?<=\[)"\d\d"(?=, "[^"]{3})',
    "*/mutations.py": r'(?<=^        )"\d\d"(?=,$)',
    **dict.fromkeys(
        (
            "helpers/recorded.py",
            "helpers/sending.py",
            "helpers/sending.schema.json",
            "tests/fake_cuda.py",
            "tests/helpers/test_recorded.py",
            "tests/helpers/test_sending.py",
            "tests/helpers/test_gpu_rehearsal.py",
            "tests/slides/test_lecture.py",
            "tests/site/test_site.py",
            "tests/course/test_authoring_formulas.py",
            "tests/course/test_copies_run.py",
        ),
        _QUOTED,
    ),
}
_CALLS = (
    r'(?<=recorded\.(?:show|load)\()"\d\d"',
    r'(?<=RECORDERS\[)"\d\d"',
    r'(?<=sheets\.load\(HERE, \[)"\d\d"',
)

# a space, or the end of a line and what begins the next one in a comment
_BREAK = r"(?:\s+(?:[#>|*]\s+)?)"
_NUMBER = r"\d\d(?![\d%]|[.,]\d)"
_BETWEEN = rf"(?:,{_BREAK}(?:(?:and|or){_BREAK})?|{_BREAK}(?:and|or|to){_BREAK})"
_PROSE = (
    rf"(?<![\w`])(?i:lessons?|exercises|appendix|appendices{_BREAK}of){_BREAK}{_NUMBER}(?:{_BETWEEN}{_NUMBER})*",
    r'LESSONS="?\d\d(?: \d\d)*',
    r"(?<=python -m )[\w.]+ (?:build |check |mutate |student )?\d\d(?![\w.])",
    r"\b\d\d(?=-(?:cpu|cuda)\b)",
    r"(?<=_lesson_)\d\d\b",
    r"(?<=\[)\d\d(?=\]\([./a-z]*\d\d_)",
    r"(?<=^#) \d\d (?=[A-Z])|(?<=^##) \d\d (?=[A-Z])|(?<=^###) \d\d (?=[A-Z])",
)


def renumber(course: Course) -> list[str]:
    """Rename and rewrite what names a lesson by a number that course/order.toml has changed.

    Returns a line a file renamed, [] where nothing is to be done. The notebooks keep their outputs;
    bring them to their sources afterwards (``build --keep``), because the ids of their cells follow
    their texts. Raises AuthoringError where the order lacks a lesson, or a new name is taken.
    """
    names = renumbered(course.acts, [lesson.name for lesson in course.lessons()])
    if not names:
        return []
    everything = [lesson.name[:2] for lesson in course.lessons()]
    numbers = {number: number for number in everything} | {
        old[:2]: new[:2] for old, new in names.items()
    }
    files = _files(course.root)
    moves = {
        path: path.with_name(new)
        for path in files
        if (new := _renamed(path.name, names, numbers)) != path.name
    }
    taken = sorted(path.name for path in moves.values() if path.exists() and path not in moves)
    if taken:
        raise AuthoringError(f"{', '.join(taken)} is there already; remove it, and start again")
    for path in files:
        _rewrite(path, path.relative_to(course.root).as_posix(), names, numbers)
    for path in moves:
        # first out of the way: one's new name is another's old
        path.rename(path.with_name(f"renumbered-{path.name}"))
    for path, target in moves.items():
        path.with_name(f"renumbered-{path.name}").rename(target)
    return [
        f"{path.relative_to(course.root).as_posix()} -> {new.name}" for path, new in moves.items()
    ]


def _files(root: Path) -> list[Path]:
    """Return the files that git has or would take in."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = (root / name for name in listed.stdout.split("\0") if name)
    return sorted({path for path in paths if path.is_file() and path.name != "order.toml"})


def _renamed(name: str, names: Mapping[str, str], numbers: Mapping[str, str]) -> str:
    """Return the new name of a file: NN_title and what follows it, or a recording's NN.json or
    NN-device.json.
    """
    recording = re.fullmatch(r"(\d\d)((?:-\w+)?\.json)", name)
    if recording:
        return numbers.get(recording[1], recording[1]) + recording[2]
    return _with_names(name, names)


def _rewrite(path: Path, name: str, names: Mapping[str, str], numbers: Mapping[str, str]) -> None:
    """Rewrite one file in place, where a text in it names a lesson by its old number."""
    if any(fnmatch(name, made_up) for made_up in _MADE_UP) and name not in _MEANT:
        return

    def mend(text: str) -> str:
        return mended(text, names, numbers, name)

    if path.suffix == ".ipynb":
        built = nbformat.read(path, as_version=4)
        made = nbformat.from_dict(_strings(built, mend))
        stated = made.metadata.get("lesson", {})
        if "number" in stated:
            stated.number = numbers[stated.number]
            stated.needs = [numbers.get(need, need) for need in stated.get("needs", [])]
        if made != built:
            nbformat.write(made, path)
        return
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # a picture
        return
    new = mend(text)
    if new != text:
        path.write_text(new, encoding="utf-8")


def _strings(value: Any, mend: Callable[[str], str]) -> Any:
    """Return a notebook's values with every text mended."""
    if isinstance(value, str):
        return mend(value)
    if isinstance(value, dict):
        return {key: _strings(item, mend) for key, item in value.items()}
    return [_strings(item, mend) for item in value] if isinstance(value, list) else value


def mended(text: str, names: Mapping[str, str], numbers: Mapping[str, str], file: str = "") -> str:
    """Return a text with the lessons' new names and numbers; ``file`` is its path, which says what
    its strings are.

    ``names`` are the names that change (old to new), ``numbers`` the number of every lesson.
    """
    own = [pattern for glob, pattern in _STRINGS.items() if fnmatch(file, glob)]
    whole = "|".join(rf"(?<![\w]){re.escape(name)}(?=_exercises|\b|_)" for name in names)
    rule = re.compile(
        "|".join([whole, *(f"(?:{one})" for one in (*_PROSE, *_CALLS, *own))]), re.MULTILINE
    )
    made = rule.sub(lambda found: names.get(found[0]) or _listed(found[0], numbers), text)
    return _sections_sorted(made) if file.endswith(".md") else made


def _listed(text: str, numbers: Mapping[str, str]) -> str:
    """Return a list of numbers in words or quotes with the new ones; a list that rose rises again.

    A range ("00 to 14") is of the lessons between, and is one again where the new numbers are.
    Where lessons change their titles alone, every list stays.
    """
    if all(number == new for number, new in numbers.items()):
        return text
    old = re.findall(r"\d\d", text)
    if re.search(r"\bto\b", text):
        return _ranged(text, old, numbers)
    new = [numbers.get(number, number) for number in old]
    if old == sorted(old):
        new.sort()
    rest = iter(new)
    return re.sub(r"\d\d", lambda _: next(rest), text)


def _ranged(text: str, old: Sequence[str], numbers: Mapping[str, str]) -> str:
    chosen: list[str] = []
    for before, number in re.findall(r"(\bto\s+)?(\d\d)", text):
        span = (
            [known for known in sorted(numbers) if chosen[-1] < known <= number]
            if before
            else [number]
        )
        chosen += span
    new, all_new = sorted(numbers[number] for number in chosen), sorted(numbers.values())
    runs: list[list[str]] = []
    for number in new:
        follows = runs and all_new.index(number) == all_new.index(runs[-1][-1]) + 1
        runs[-1].append(number) if follows else runs.append([number])
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)]
    head = text[: text.index(old[0])]
    return head + (parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}")


def _with_names(text: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if text.startswith(old):
            return new + text.removeprefix(old)
    return text


def _sections_sorted(page: str) -> str:
    """Return a page with sections ``## NN title`` in the order of their numbers, where some follow
    each other.
    """
    parts = re.split(r"^(?=#{1,3} )", page, flags=re.MULTILINE)
    made: list[str] = []
    run: list[str] = []
    for part in [*parts, ""]:
        if re.match(r"#{1,3} \d\d [A-Z]", part) and (
            not run or part.split()[0] == run[0].split()[0]
        ):
            run.append(part)
            continue
        if run:
            tail = run[-1][len(run[-1].rstrip("\n")) :]
            made.append("\n\n".join(section.rstrip("\n") for section in sorted(run)) + tail)
            run = []
        made.append(part)
    return "".join(made)
