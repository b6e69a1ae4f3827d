"""Grade a folder of submissions: ``python -m tools.grading --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.grading import cgroup, sandbox
from tools.grading.sandbox import SandboxError

_UNBOUNDED = (
    "warning: you are root, and this machine has no control group to write to, so the kernel does "
    "not limit how many processes a submission starts, and one that forks without end may stop the "
    "machine before it is stopped; grade as an ordinary user, or on a virtual machine"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade; returns the exit code, 1 where nothing could be graded."""
    options = _options().parse_args(arguments)
    try:
        sandbox.bubblewrap()  # said at once: what grades takes seconds to load
    except SandboxError as error:
        return _error(str(error))
    if not cgroup.bounded():
        print(_UNBOUNDED, file=sys.stderr)
    return _grade(options, options.into or _beside(options.submissions))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.grading", description=__doc__.partition(":")[0]
    )
    parser.add_argument(
        "submissions",
        type=_folder,
        help="the folder with STUDENT/ASSIGNMENT.ipynb in it, or what "
        "Canvas or Moodle packs, as a ZIP file or unpacked",
    )
    parser.add_argument(
        "--into", type=_folder, help="where grades and pages go (default: beside the submissions)"
    )
    parser.add_argument(
        "--roster",
        type=_folder,
        help="the class as CSV: Canvas's gradebook, Moodle's grading "
        "worksheet, or a table with the columns name and id",
    )
    parser.add_argument(
        "--jobs", type=int, default=0, help="sandboxes at once (default: one for each processor)"
    )
    parser.add_argument("--force", action="store_true", help="mark again what was marked before")
    return parser


def _grade(options: argparse.Namespace, into: Path) -> int:
    try:
        from sqlalchemy.exc import SQLAlchemyError

        from tools.authoring.lesson import AuthoringError
        from tools.grading import grade
        from tools.grading.gradebook import GradingError
    except ModuleNotFoundError as error:
        return _error(
            f"{error.name} is not installed, since make setup installs what readers need and no "
            "more; start with make grade SUBMISSIONS=folder, which installs what grades, too"
        )
    try:
        graded = grade.grade(
            options.submissions, into, jobs=options.jobs, force=options.force, listed=options.roster
        )
    except (GradingError, SandboxError, AuthoringError) as error:
        return _error(str(error))
    except (OSError, SQLAlchemyError) as error:  # a disk that is full, a folder that is closed
        return _error(f"{error}; what was marked is kept: mend this and start again")
    for line in graded.skipped:
        print(f"left out: {line}")
    print(
        f"{graded.new} marked, {graded.unchanged} marked before, in {graded.took_s:.0f} s: "
        f"{graded.grades}"
    )
    for line in (
        *graded.files,
        *(f"{answers} for a person's marks" for answers in graded.awaiting_marks),
    ):
        print(line)
    print(f"pages for the students: {into / 'feedback'}")
    return 0


def _error(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return 1


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError(
            "name the folder of the submissions: make grade SUBMISSIONS=folder"
        )
    return Path(text).expanduser()


def _beside(submissions: Path) -> Path:
    """Return the class's folder: nbgrader's own where the submissions lie in its ``submitted``."""
    folder = submissions.resolve()
    name = folder.stem if folder.suffix.lower() == ".zip" else folder.name
    return folder.parent if folder.name == "submitted" else folder.with_name(f"{name}_graded")


if __name__ == "__main__":
    sys.exit(main())
