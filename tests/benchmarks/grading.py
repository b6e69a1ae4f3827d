"""A class of submissions, graded with the command that a lecturer uses:
``make bench NAME=grading``.

The submissions are the released notebook with the author's right answers and planted wrong ones,
drawn from a seed. Of ten one is handed in empty; the third one ends its own process, and the fifth
one has a loop without end, which costs a minute of a processor (``Limits.step_s``). What each must
get is known beforehand, and is compared with grades.csv. ``--keep FOLDER`` leaves submissions and
grades there, to look at.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from helpers import results
from tools.authoring.course import HERE
from tools.exercises import sheets
from tools.exercises.sheets import Sheet
from tools.grading import marker

GOAL_S = 900.0  # of a hundred submissions on two cores
_SEED = 1
_RIGHT_SHARE = 0.65
_ENDS, _HANGS = 2, 4  # places of the hostile ones, from 0
_HOSTILE = {_ENDS: "import os\n    os._exit(0)", _HANGS: "while True: pass"}


@dataclass(frozen=True)
class Row(results.Result):
    """One class graded; ``as_planned`` counts the submissions that got what was planned for each
    exercise.
    """

    lesson: str
    submissions: int
    as_planned: int
    took_s: float
    per_submission_s: float
    load_before: float
    load_after: float
    cores: int


def submission(
    sheet: Sheet, place: int, blank: nbformat.NotebookNode
) -> tuple[nbformat.NotebookNode, dict[str, int]]:
    """Return the notebook that the student at ``place`` hands in, and the points of each exercise
    that it must get.
    """
    draw, made = random.Random(f"{_SEED}-{place}"), copy.deepcopy(blank)
    cells = {cell.metadata.nbgrader.grade_id: cell for cell in made.cells}
    points = dict.fromkeys(sheet.exercises, 0)
    for name in () if place % 10 == 9 else sheet.exercises:
        wrong = [one for one in sheet.wrong if one.name == name and one.gets is not None]
        if draw.random() < _RIGHT_SHARE or not wrong:
            cells[name].source = sheet.cell("answer", name).source
            points[name] = sheet.cell("checks", name).metadata["points"]
        else:
            chosen = draw.choice(wrong)
            cells[name].source, points[name] = chosen.cell.source, chosen.gets
    if place in _HOSTILE:
        name = sheet.exercises[0]
        called = marker.function_names(sheet.cell("answer", name))[-1]
        cells[name].source, points[name] = f"def {called}(*given):\n    {_HOSTILE[place]}\n", 0
    return made, points


def hand_in(sheet: Sheet, folder: Path, count: int) -> dict[str, dict[str, int]]:
    """Write ``count`` submissions below ``folder``; return the points that each student must
    get.
    """
    blank, planned = sheets.released(sheet), {}
    for place in range(count):
        student = f"student{place:04d}"
        made, planned[student] = submission(sheet, place, blank)
        path = folder / student / sheet.lesson.notebook_name
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(made, path)
    return planned


def as_planned(table: Path, planned: dict[str, dict[str, int]]) -> int:
    """Return how many students have the planned points in grades.csv, and print the others."""
    with table.open(encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    good = 0
    for student, points in planned.items():
        got = {name: float(rows[student][name]) for name in points} if student in rows else {}
        good += got == points
        if got != points:
            print(f"{student}: planned {points}, got {got or 'no row'}")
    return good


def graded(sheet: Sheet, count: int, jobs: int, root: Path) -> Row:
    """Hand in ``count`` submissions below ``root``, grade them in a process of its own, and return
    how it went.
    """
    folder = root / "submitted"
    planned, before, started_s = hand_in(sheet, folder, count), os.getloadavg()[0], time.monotonic()
    command = [
        sys.executable,
        "-m",
        "tools.grading",
        str(folder),
        "--into",
        str(root),
        "--jobs",
        str(jobs),
    ]
    subprocess.run(command, cwd=HERE.root, check=True)
    took_s = time.monotonic() - started_s
    good = as_planned(root / "grades.csv", planned)
    return Row(
        sheet.lesson.name,
        count,
        good,
        took_s,
        took_s / count,
        before,
        os.getloadavg()[0],
        os.cpu_count() or 1,
    )


@contextlib.contextmanager
def folder_for(keep: Path | None) -> Iterator[Path]:
    """Give ``keep``, made where it is absent, or a folder that is gone in the end."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="bench-grading-") as name:
            yield Path(name)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep


def main() -> int:
    """Print the row, and whether the goal is reached; return 1 where a grade is not the planned
    one.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="submissions (default: 100)")
    parser.add_argument("--lesson", default="00", help="the lesson's number (default: 00)")
    parser.add_argument(
        "--jobs", type=int, default=0, help="sandboxes at once (default: one for each processor)"
    )
    parser.add_argument("--keep", type=Path, help="a folder for submissions and grades that stays")
    options = parser.parse_args()
    if options.keep is not None and options.keep.exists() and any(options.keep.iterdir()):
        parser.error(
            f"{options.keep} is not empty; what was graded before would not be graded again"
        )
    (sheet,) = sheets.load(HERE, [options.lesson])
    with folder_for(options.keep) as root:
        row = graded(sheet, options.count, options.jobs, root)
    print(results.printed(row.table()).to_string(index=False))
    verdict = "reached" if row.took_s <= GOAL_S * row.submissions / 100 else "missed"
    print(
        f"goal, {GOAL_S / 100:.3g} s a submission (100 in {GOAL_S / 60:.3g} minutes on two cores): "
        f"{verdict}"
    )
    return 0 if row.as_planned == row.submissions else 1


if __name__ == "__main__":
    sys.exit(main())
