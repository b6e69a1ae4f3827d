"""Build the site: ``python -m tools.site`` writes _build/site and says where it lies."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from sphinx.cmd.build import build_main

from slides import build, lecture
from slides.rules import SlideError
from tools.authoring.cells import AuthoringError
from tools.authoring.course import Course
from tools.site import staging

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def main(
    arguments: Sequence[str] | None = None, *, root: Path = ROOT, site: Path | None = None
) -> int:
    """Write the site and return the exit code: 1 when a lesson cannot be read or Sphinx warns of
    something.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tools.site", description="Build the course as a site."
    )
    parser.add_argument(
        "lessons", nargs="*", metavar="NN", help="numbers of lessons, such as 00 (default: all)"
    )
    numbers: list[str] = parser.parse_args(arguments).lessons
    site = site or root / "_build" / "site"
    pages = site.with_name(f"{site.name}_pages")
    for folder in (site, pages):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        staging.write(Course(root), pages, numbers=numbers)
        exit_code = _run_sphinx(pages, site)
        for notebook in build.find_lessons(numbers, course=root / "course"):
            build.build(notebook, folder=site / staging.DECKS)
        if not numbers:
            lecture.build(course=root / "course", folder=site / staging.DECKS)
    except (AuthoringError, SlideError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"the site: {site / 'index.html'}")
    return exit_code


def _run_sphinx(pages: Path, site: Path) -> int:
    static_path = f"html_static_path={pages / staging.OWN}"
    return build_main(
        [
            "-q",
            "-W",
            "--keep-going",
            "-j",
            "2",
            "-b",
            "html",
            "-c",
            str(HERE),
            "-D",
            static_path,
            "-d",
            str(pages / ".doctrees"),
            str(pages),
            str(site),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
