"""Make the reader's own copy of the course, or bring it up to date: ``python -m tools.copies``."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.authoring.cells import AuthoringError
from tools.copies import form, update

ROOT = Path(__file__).resolve().parents[2]


def main(root: Path = ROOT) -> int:
    """Write my_course beside the folder course, say what the reader must know, and return the exit code."""
    course, copy = root / "course", root / "my_course"
    try:
        said = update.take_predictions(course, copy)
        said += update.update(copy, form.files(course))
    except (AuthoringError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join([*said, "my_course is up to date"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
