"""Grade a folder of submissions: ``python -m course.grading --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from course.authoring.lesson import AuthoringError
from course.grading.grade import grade
from course.grading.gradebook import GradingError
from course.grading.sandbox import SandboxError


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade; returns the exit code, 1 where nothing could be graded."""
    parser = argparse.ArgumentParser(prog="python -m course.grading", description=__doc__.partition(":")[0])
    parser.add_argument("submissions", type=_folder, help="the folder with STUDENT/ASSIGNMENT.ipynb in it")
    parser.add_argument("--into", type=_folder, help="where grades and pages go (default: beside the submissions)")
    parser.add_argument("--jobs", type=int, default=0, help="sandboxes at once (default: one for each processor)")
    parser.add_argument("--force", action="store_true", help="mark again what was marked before")
    options = parser.parse_args(arguments)
    into = options.into or _beside(options.submissions)
    try:
        done = grade(options.submissions, into, jobs=options.jobs, force=options.force)
    except (GradingError, SandboxError, AuthoringError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (OSError, SQLAlchemyError) as error:  # a disk that is full, a folder that is closed
        print(f"error: {error}; what was marked is kept: mend this and start again", file=sys.stderr)
        return 1
    for line in done.strange:
        print(f"left out: {line}")
    print(f"{done.new} marked, {done.kept} marked before, in {done.took_s:.0f} s: {done.table}")
    print(f"pages for the students: {into / 'feedback'}")
    return 0


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("name the folder of the submissions: make grade SUBMISSIONS=folder")
    return Path(text).expanduser()


def _beside(submissions: Path) -> Path:
    """Return the class's folder: nbgrader's own where the submissions lie in its ``submitted``."""
    folder = submissions.resolve()
    return folder.parent if folder.name == "submitted" else folder.with_name(f"{folder.name}_graded")


if __name__ == "__main__":
    sys.exit(main())
