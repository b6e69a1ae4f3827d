"""Say where the repository is, and write what Colab opens: ``python -m tools.reach --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tools.authoring.course import HERE
from tools.authoring.lesson import AuthoringError
from tools.reach import address, colab


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, 1 where something is to be mended."""
    options = _options().parse_args(arguments)
    try:
        if options.command == "address":
            for path in address.fill(HERE, options.address):
                print(f"wrote {path.relative_to(HERE.root).as_posix()}")
        else:
            folder = colab.write(HERE, HERE.root / "_build" / "colab")
            print(f"wrote {folder.relative_to(HERE.root).as_posix()}")
    except AuthoringError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.reach", description=__doc__.partition(":")[0]
    )
    commands = parser.add_subparsers(required=True, dest="command", metavar="command")
    command = commands.add_parser(
        "address", help="write the repository's address to all that names it ('' takes it out)"
    )
    command.add_argument("address", metavar="https://github.com/OWNER/NAME")
    commands.add_parser("colab", help="write _build/colab, the branch that Colab opens")
    return parser


if __name__ == "__main__":
    sys.exit(main())
