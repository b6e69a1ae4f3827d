"""Set a class up on this server, and add students: ``python -m tools.server --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.server import install
from tools.server.install import Place, ServerError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, 1 where something is to be mended."""
    options = _options().parse_args(arguments)
    try:
        options.command(options)
    except ServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.server", description=__doc__.partition(":")[0]
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    command = commands.add_parser("install", help="set this server up for a class")
    command.add_argument(
        "--lecturer", required=True, help="the local user who hands out and grades"
    )
    command.add_argument(
        "--place", type=Path, default=Path("/srv/course"), help="what students use (%(default)s)"
    )
    command.add_argument(
        "--exchange",
        type=Path,
        default=Path("/srv/nbgrader/exchange"),
        help="where work changes hands",
    )
    command.add_argument(
        "--tree", type=Path, default=install.ROOT / "_build" / "student", help="the students' tree"
    )
    command.add_argument(
        "--python", default="/usr/bin/python3", help="the Python of the environment that is made"
    )
    command.add_argument(
        "--environment", type=Path, help="an environment that is there already, with all packages"
    )
    command.set_defaults(command=_install)
    command = commands.add_parser(
        "add", help="make local users for students and print their passwords"
    )
    command.add_argument("names", nargs="+", metavar="NAME")
    command.add_argument(
        "--homes", type=Path, help="the folder of their homes (default: the system's)"
    )
    command.set_defaults(command=_add)
    command = commands.add_parser(
        "exchange", help="make the exchange alone, for a hub that is there already"
    )
    command.add_argument(
        "--lecturer", required=True, help="the local user who hands out and grades"
    )
    command.add_argument(
        "--exchange",
        type=Path,
        default=Path("/srv/nbgrader/exchange"),
        help="where work changes hands",
    )
    command.add_argument(
        "--prefix", default="", help="what stands before a student's name in the local user's"
    )
    command.set_defaults(command=_exchange)
    command = commands.add_parser("proxy", help="put the hub's proxy into an environment")
    command.add_argument("environment", type=Path)
    command.set_defaults(command=lambda options: install.proxy(options.environment))
    return parser


def _install(options: argparse.Namespace) -> None:
    place = Place(
        folder=options.place,
        exchange=options.exchange,
        environment=options.environment or options.place / "environment",
    )
    if options.environment is None:
        install.refuse(place, options.lecturer, options.tree)  # before gigabytes are fetched
        install.packages(place.environment, options.python)
    for path in install.install(place, options.lecturer, options.tree):
        print(f"wrote {path}")
    print("start it: systemctl daemon-reload; systemctl enable --now jupyterhub")


def _exchange(options: argparse.Namespace) -> None:
    for path in install.exchange(options.exchange, options.lecturer, prefix=options.prefix):
        print(f"wrote {path}")


def _add(options: argparse.Namespace) -> None:
    for name, password in install.add(options.names, homes=options.homes):
        print(f"{name},{password or '(keeps the password)'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
