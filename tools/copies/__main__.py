"""Make the reader's own copy of the course, or bring it up to date: ``python -m tools.copies``."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

from tools.authoring.cells import AuthoringError
from tools.copies import form, update

ROOT = Path(__file__).resolve().parents[2]


def main(root: Path = ROOT) -> int:
    """Write my_course beside the folder course, say what the reader must know, and return the exit
    code.
    """
    course, copy = root / "course", root / "my_course"
    try:
        is_new = not os.path.lexists(copy)
        messages = update.take_predictions(course, copy)
        files = form.files(course)
        messages += update.update(copy, files)
    except (AuthoringError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        "\n".join([*messages, _describe_new_copy(files) if is_new else "my_course is up to date"])
    )
    return 0


def _describe_new_copy(files: Collection[str]) -> str:
    """Return the last line about a new copy of ``files``: how many lessons it has, and which one to
    open.
    """
    lessons = sorted(name for name in files if fnmatchcase(name, form.LESSONS) and "/" not in name)
    count_text = "1 lesson" if len(lessons) == 1 else f"{len(lessons)} lessons"
    return f"my_course is made: {count_text}" + (f"; open {lessons[0]}" if lessons else "")


if __name__ == "__main__":
    sys.exit(main())
