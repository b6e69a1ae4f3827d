"""``python -m helpers``: print this machine's card, its versions and the checks of this
environment.

Lesson 00.
"""

from __future__ import annotations

import argparse
import sys

from helpers import doctor


def main(arguments: list[str] | None = None) -> int:
    """Print the diagnosis; return 0 when all that a student needs works, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers", description="See what of the course works here."
    )
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    as_json = parser.parse_args(arguments).json
    diagnosis = doctor.examine()
    print(diagnosis.to_json() if as_json else diagnosis)
    return 0 if diagnosis.healthy else 1


if __name__ == "__main__":
    sys.exit(main())
