"""The checks of a lesson: a file beside the notebook, with a function for each that the reader
writes.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from helpers.exercises._checks import Checks
from helpers.exercises._worked import names_of

# in the reader's copy of the course, and in the course itself
FOLDERS = ("checks", "source/checks")


def checks_of(title: str) -> Callable[..., Callable[..., Any]]:
    """Return ``check`` of the lesson ``title``, such as "decoding", whatever its number is.

    ``attend = check(attend)`` checks what the reader wrote, says which goals it reaches, and
    returns the version with which the lesson goes on: the reader's own if all goals are reached,
    otherwise the course's. What a check needs from the notebook, for example ranks that run
    already, is given by name: ``check(attend, ranks=ranks)``.

    The file ``NN_title.py`` in the folder ``checks`` has a function of the same name, which takes
    the :class:`Checks` and calls them; its docstring heads the report. Raises LookupError where the
    working folder has no such file. ``check`` raises LookupError for a function that the file does
    not know.

    >>> check = checks_of("decoding")  # doctest: +SKIP
    >>> attend_new = check(attend_new)  # doctest: +SKIP

    Lesson 00.
    """
    module = _load(title)

    def check(function: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
        checks_by_name = {
            name: member
            for name, member in vars(module).items()
            if inspect.isfunction(member)
            and member.__module__ == module.__name__
            and not member.__name__.startswith("_")
        }
        name = next(filter(checks_by_name.get, names_of(function)), "")
        if not name:
            raise LookupError(
                f"no check of this lesson is for {function!r}; it checks "
                f"{', '.join(checks_by_name)}: run the cell above again"
            )
        checks = Checks(inspect.cleandoc(checks_by_name[name].__doc__ or name), function)
        checks_by_name[name](checks, **arguments)
        return checks.settle()

    return check


def _load(title: str) -> ModuleType:
    """Return the file of checks of a lesson as a module, read again at each call."""
    paths = [
        path for folder in FOLDERS for path in sorted(Path(folder).glob(f"[0-9][0-9]_{title}.py"))
    ]
    if not paths:
        raise LookupError(
            f"no checks of the lesson {title!r} are in the folder {FOLDERS[0]} beside this "
            "notebook; open your copy of the lesson in its own folder (make lab)"
        )
    spec = importlib.util.spec_from_file_location(f"checks_{title}", paths[0])
    assert spec is not None
    assert spec.loader is not None  # as the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look a module up by its name
    spec.loader.exec_module(module)
    return module
