"""Build the lessons, check them, and show what they compare: ``python -m tools.authoring
--help``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.authoring import audit, mutation, mutations, pages, renumber, warm
from tools.authoring.build import build, keep, refresh
from tools.authoring.course import HERE
from tools.authoring.lesson import AuthoringError
from tools.authoring.problem import Problem
from tools.authoring.rules import shares


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, 1 where something is to be mended."""
    options = _options().parse_args(arguments)
    try:
        return options.command(options)
    except AuthoringError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.authoring", description=__doc__.partition(":")[0]
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, command, help_text in (
        (
            "build",
            _build,
            (
                "run the sources and write the notebooks, the README's table and the index of "
                "functions"
            ),
        ),
        ("check", _check, "say what in the notebooks breaks a rule, without running them"),
        ("table", _table, "show for each lesson which share of what it shows is compared"),
        (
            "mutate",
            _mutate,
            "plant the bugs of tools/authoring/mutations.py and say which cell catches each",
        ),
        (
            "rehearse",
            _rehearse,
            "run the notebooks as on other processors, and say which output changes",
        ),
        (
            "renumber",
            _renumber,
            "give the lessons the numbers of course/order.toml, in names of files and in texts",
        ),
        (
            "student",
            _student,
            "build course/exercises, and a clean tree for students in _build/student",
        ),
        (
            "solutions",
            _solutions,
            "write the exercises with their solutions to _build/solutions, for who learns alone",
        ),
        (
            "nbgrader",
            _nbgrader,
            "write nbgrader's folder of assignments, with their solutions, for grading",
        ),
    ):
        command_parser = commands.add_parser(name, help=help_text)
        command_parser.set_defaults(command=command)
        if name != "renumber":
            command_parser.add_argument(
                "lessons",
                nargs="*",
                metavar="NN",
                help="numbers of lessons; all when none is given",
            )
        if name == "build":
            command_parser.add_argument(
                "--appendix", action="store_true", help="the appendices of these lessons instead"
            )
            command_parser.add_argument(
                "--keep", action="store_true", help="run nothing: new texts, the outputs of before"
            )
            command_parser.add_argument(
                "--draft",
                action="store_true",
                help="one run, also where what it measures is not decided",
            )
        if name == "student":
            command_parser.add_argument(
                "--keep", action="store_true", help="run nothing: new texts, the outputs of before"
            )
        if name == "table":
            command_parser.add_argument(
                "--readme", action="store_true", help="show the README's table of lessons instead"
            )
            command_parser.add_argument(
                "--write",
                action="store_true",
                help="write it and the other pages made from lessons",
            )
        if name == "rehearse":
            command_parser.add_argument(
                "--setting",
                help="one or several, such as avx2+one-core; all that there are by default",
            )
        if name == "nbgrader":
            command_parser.add_argument(
                "--folder",
                type=Path,
                default=HERE.root / "_build" / "nbgrader",
                help="where to write it",
            )
    return parser


def _build(options: argparse.Namespace) -> int:
    if options.keep:
        paths = keep(HERE, options.lessons, appendices=options.appendix)
    else:
        paths = build(HERE, options.lessons, appendices=options.appendix, draft=options.draft)
    for path in paths:
        print(f"wrote {path.relative_to(HERE.root).as_posix()}")
    return _report(audit.lessons(HERE, options.lessons), options.lessons)


def _check(options: argparse.Namespace) -> int:
    problems = audit.lessons(HERE, options.lessons)
    return _report(
        problems if options.lessons else problems + audit.shared_pages(HERE), options.lessons
    )


def _report(problems: Sequence[Problem], lessons: Sequence[str]) -> int:
    for problem in problems:
        print(problem)
    for resting in audit.origins_of(HERE, lessons, mutation.SANITIZE):
        if resting.cells:
            print(resting)
    print(f"{len(problems)} problem(s)")
    return 1 if problems else 0


def _table(options: argparse.Namespace) -> int:
    if options.write:
        refresh(HERE)
    if options.readme or options.write:
        print(pages.table(HERE.lessons(options.lessons), address=HERE.address))
        return 0
    rules = shares.patterns(mutation.SANITIZE)
    lessons_and_appendices = (*HERE.lessons(options.lessons), *HERE.appendices(options.lessons))
    lesson_shares = [
        shares.share(lesson.name, HERE.built(lesson), rules) for lesson in lessons_and_appendices
    ]
    print(shares.shares(lesson_shares))
    return 0


def _mutate(options: argparse.Namespace) -> int:
    HERE.lessons(options.lessons)
    chosen_mutations = [
        bug for bug in mutations.MUTATIONS if not options.lessons or bug.lesson in options.lessons
    ]
    with warm.kernels() as kernels:
        table = mutation.attempt_all(
            HERE, chosen_mutations, sanitize=mutation.SANITIZE, kernels=kernels
        )
    print(table)
    return 1 if any(caught.cell is None for caught in table.mutations) else 0


def _rehearse(options: argparse.Namespace) -> int:
    from tools.authoring.rehearsal import notebooks, rehearse, settings

    names = [options.setting] if options.setting else settings.WHOLE
    chosen_settings = [settings.parse(name) for name in names]
    rehearsal = rehearse(
        HERE, chosen_settings, notebooks(HERE, options.lessons), sanitize=mutation.SANITIZE
    )
    print(rehearsal)
    return 0 if rehearsal.is_clean else 1


def _student(options: argparse.Namespace) -> int:
    from tools.exercises import handout, sheets  # they load nbgrader, which no other command needs

    for path in (sheets.update_keeping_outputs if options.keep else sheets.build)(
        HERE, options.lessons
    ):
        print(f"wrote {path.relative_to(HERE.root).as_posix()}")
    tree = handout.student(HERE, HERE.root / "_build" / "student")
    print(
        f"wrote {tree.relative_to(HERE.root).as_posix()}, which holds no solution and no hidden "
        "test"
    )
    return 0


def _renumber(_: argparse.Namespace) -> int:
    from tools.exercises import sheets

    renamings = renumber.renumber(HERE)
    print("\n".join(renamings) or "every lesson has its number")
    if renamings:
        keep(HERE)
        keep(HERE, appendices=True)
        sheets.update_keeping_outputs(HERE)
    return _report(audit.lessons(HERE) + audit.shared_pages(HERE), ()) if renamings else 0


def _solutions(options: argparse.Namespace) -> int:
    from tools.exercises import handout

    folder = handout.solutions(HERE, HERE.root / "_build" / "solutions", options.lessons)
    print(
        f"wrote {folder.relative_to(HERE.root).as_posix()}: read them after you have tried; keep "
        "them from a class"
    )
    return 0


def _nbgrader(options: argparse.Namespace) -> int:
    from tools.exercises import handout

    for path in handout.nbgrader_folder(HERE, options.folder, options.lessons):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
