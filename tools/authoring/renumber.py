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
from tools.authoring.order import new_names

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
            "helpers/studies/sending.py",
            "helpers/studies/sending.schema.json",
            "tests/fake_cuda.py",
            "tests/helpers/test_recorded.py",
            "tests/helpers/studies/test_sending.py",
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
    names = new_names(course.acts, [lesson.name for lesson in course.lessons()])
    if not names:
        return []
    old_numbers = [lesson.name[:2] for lesson in course.lessons()]
    numbers = {number: number for number in old_numbers} | {
        old_name[:2]: new_name[:2] for old_name, new_name in names.items()
    }
    files = _files(course.root)
    moves = {
        path: path.with_name(file_name)
        for path in files
        if (file_name := _new_name(path.name, names, numbers)) != path.name
    }
    taken_names = sorted(
        path.name for path in moves.values() if path.exists() and path not in moves
    )
    if taken_names:
        raise AuthoringError(
            f"{', '.join(taken_names)} is there already; remove it, and start again"
        )
    for path in files:
        _rewrite(path, path.relative_to(course.root).as_posix(), names, numbers)
    for path in moves:
        # first out of the way: one's new name is another's old
        path.rename(path.with_name(f"renumbered-{path.name}"))
    for path, target in moves.items():
        path.with_name(f"renumbered-{path.name}").rename(target)
    return [
        f"{path.relative_to(course.root).as_posix()} -> {target.name}"
        for path, target in moves.items()
    ]


def _files(root: Path) -> list[Path]:
    """Return the files that git has or would take in."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = (root / name for name in listing.stdout.split("\0") if name)
    return sorted({path for path in paths if path.is_file() and path.name != "order.toml"})


def _new_name(name: str, names: Mapping[str, str], numbers: Mapping[str, str]) -> str:
    """Return the new name of a file: NN_title and what follows it, or a recording's NN.json or
    NN-device.json.
    """
    recording = re.fullmatch(r"(\d\d)((?:-\w+)?\.json)", name)
    if recording:
        return numbers.get(recording[1], recording[1]) + recording[2]
    return _replace_name(name, names)


def _rewrite(path: Path, name: str, names: Mapping[str, str], numbers: Mapping[str, str]) -> None:
    """Rewrite one file in place, where a text in it names a lesson by its old number."""
    if any(fnmatch(name, pattern) for pattern in _MADE_UP) and name not in _MEANT:
        return

    def mend(text: str) -> str:
        return renumber_text(text, names, numbers, name)

    if path.suffix == ".ipynb":
        built = nbformat.read(path, as_version=4)
        renumbered_notebook = nbformat.from_dict(_strings(built, mend))
        lesson_metadata = renumbered_notebook.metadata.get("lesson", {})
        if "number" in lesson_metadata:
            lesson_metadata.number = numbers[lesson_metadata.number]
            lesson_metadata.needs = [
                numbers.get(need, need) for need in lesson_metadata.get("needs", [])
            ]
        if renumbered_notebook != built:
            nbformat.write(renumbered_notebook, path)
        return
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # a picture
        return
    new_text = mend(text)
    if new_text != text:
        path.write_text(new_text, encoding="utf-8")


def _strings(value: Any, mend: Callable[[str], str]) -> Any:
    """Return a notebook's values with every text mended."""
    if isinstance(value, str):
        return mend(value)
    if isinstance(value, dict):
        return {key: _strings(item, mend) for key, item in value.items()}
    return [_strings(item, mend) for item in value] if isinstance(value, list) else value


def renumber_text(
    text: str, names: Mapping[str, str], numbers: Mapping[str, str], file: str = ""
) -> str:
    """Return a text with the lessons' new names and numbers; ``file`` is its path, which says what
    its strings are.

    ``names`` are the names that change (old to new), ``numbers`` the number of every lesson.
    """
    string_patterns = [pattern for glob, pattern in _STRINGS.items() if fnmatch(file, glob)]
    names_pattern = "|".join(rf"(?<![\w]){re.escape(name)}(?=_exercises|\b|_)" for name in names)
    rule = re.compile(
        "|".join(
            [names_pattern, *(f"(?:{pattern})" for pattern in (*_PROSE, *_CALLS, *string_patterns))]
        ),
        re.MULTILINE,
    )
    new_text = rule.sub(
        lambda match: names.get(match[0]) or _renumber_list(match[0], numbers), text
    )
    return _sort_sections(new_text) if file.endswith(".md") else new_text


def _renumber_list(text: str, numbers: Mapping[str, str]) -> str:
    """Return a list of numbers in words or quotes with the new ones; a list that rose rises again.

    A range ("00 to 14") is of the lessons between, and is one again where the new numbers are.
    Where lessons change their titles alone, every list stays.
    """
    if all(number == new_number for number, new_number in numbers.items()):
        return text
    old_numbers = re.findall(r"\d\d", text)
    if re.search(r"\bto\b", text):
        return _renumber_range(text, old_numbers, numbers)
    new_numbers = [numbers.get(number, number) for number in old_numbers]
    if old_numbers == sorted(old_numbers):
        new_numbers.sort()
    replacements = iter(new_numbers)
    return re.sub(r"\d\d", lambda _: next(replacements), text)


def _renumber_range(text: str, old_numbers: Sequence[str], numbers: Mapping[str, str]) -> str:
    chosen_numbers: list[str] = []
    for before, number in re.findall(r"(\bto\s+)?(\d\d)", text):
        span = (
            [known for known in sorted(numbers) if chosen_numbers[-1] < known <= number]
            if before
            else [number]
        )
        chosen_numbers += span
    new_numbers, all_new_numbers = (
        sorted(numbers[number] for number in chosen_numbers),
        sorted(numbers.values()),
    )
    runs: list[list[str]] = []
    for number in new_numbers:
        follows = runs and all_new_numbers.index(number) == all_new_numbers.index(runs[-1][-1]) + 1
        runs[-1].append(number) if follows else runs.append([number])
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)]
    head = text[: text.index(old_numbers[0])]
    return head + (parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}")


def _replace_name(text: str, names: Mapping[str, str]) -> str:
    for old_name, new_name in names.items():
        if text.startswith(old_name):
            return new_name + text.removeprefix(old_name)
    return text


def _sort_sections(page: str) -> str:
    """Return a page with sections ``## NN title`` in the order of their numbers, where some follow
    each other.
    """
    parts = re.split(r"^(?=#{1,3} )", page, flags=re.MULTILINE)
    new_parts: list[str] = []
    run: list[str] = []
    for part in [*parts, ""]:
        if re.match(r"#{1,3} \d\d [A-Z]", part) and (
            not run or part.split()[0] == run[0].split()[0]
        ):
            run.append(part)
            continue
        if run:
            tail = run[-1][len(run[-1].rstrip("\n")) :]
            new_parts.append("\n\n".join(section.rstrip("\n") for section in sorted(run)) + tail)
            run = []
        new_parts.append(part)
    return "".join(new_parts)
