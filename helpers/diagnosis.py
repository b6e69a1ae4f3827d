"""How an examination of an environment is written down: one :class:`Check` a thing, all in a :class:`Diagnosis`.

:func:`check` makes a function that looks at one thing into one that always returns a :class:`Check`: what does not
work comes with a line that mends it, and a check that breaks says so with its exception. Lesson 00.
"""

from __future__ import annotations

import html
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from helpers.hardware import MachineCard
from helpers.results import Result


@dataclass(frozen=True)
class Check(Result):
    """One thing looked at: whether it works, whether a student needs it, and a line that mends it (None: works)."""

    name: str
    works: bool
    needed: bool
    purpose: str
    detail: str
    remedy: str | None = None

    def __str__(self) -> str:
        purpose = self.purpose if self.needed else f"{self.purpose} (optional)"
        line = f"{'ok' if self.works else 'no'}  {self.name:<17}  {purpose}: {self.detail}"
        return line if self.remedy is None else f"{line}\n    mend: {self.remedy}"


@dataclass(frozen=True)
class Diagnosis(Result):
    """The machine (None when it cannot be read), the versions of the packages, and every check. Lesson 00."""

    card: MachineCard | None
    versions: dict[str, str]
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that a student needs and that do not work."""
        return tuple(check.name for check in self.checks if check.needed and not check.works)

    @property
    def healthy(self) -> bool:
        """True when all that a student needs works."""
        return not self.failed

    def __str__(self) -> str:
        versions = "\n".join(f"  {name:<12}  {version}" for name, version in self.versions.items())
        checks = "\n".join(f"  {line}" for check in self.checks for line in str(check).split("\n"))
        card = "Machine card\n  unknown" if self.card is None else str(self.card)
        return f"{card}\n\nVersions\n{versions}\n\nWhat works here\n{checks}\n\n{self._verdict()}"

    def _repr_html_(self) -> str:
        cells = [(check.name, "ok" if check.works else "no", check.purpose, check.detail, check.remedy or "")
                 for check in self.checks]  # fmt: skip
        rows = _html_rows("th", [("", "", "for", "seen", "mend")]) + _html_rows("td", cells)
        card = "" if self.card is None else self.card._repr_html_()
        versions = _html_rows("td", self.versions.items())
        verdict = f"<div>{html.escape(self._verdict())}</div>"
        tables = f"<b>Versions</b><table>{versions}</table><b>What works here</b><table>{rows}</table>"
        return f"<div>{card}{tables}{verdict}</div>"

    def _verdict(self) -> str:
        if self.healthy:
            return "Everything that the course needs works."
        return f"The course needs, and does not get: {', '.join(self.failed)}."


class DoesNotWorkError(Exception):
    """What a check raises: what was seen, and the one line that mends it."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.remedy = remedy


def check(name: str, purpose: str, *, needed: bool = False) -> Callable[[Callable[[], str]], Callable[[], Check]]:
    """Make a function that returns what it saw, or raises, into a check that always returns a :class:`Check`."""

    def decorate(look: Callable[[], str]) -> Callable[[], Check]:
        def examined() -> Check:
            remedy = None
            try:
                works, detail = True, look()
            except DoesNotWorkError as failure:
                works, detail, remedy = False, str(failure), failure.remedy
            except Exception as error:
                works, detail = False, f"the check itself broke: {type(error).__name__}: {error}"
                remedy = "report this line to the authors of the course"
            return Check(name, works, needed, purpose, _public(detail), remedy)

        examined.__name__, examined.__doc__, examined.__module__ = look.__name__, look.__doc__, look.__module__
        return examined

    return decorate


def _public(text: str) -> str:
    """Return ``text`` on one line, without the home folder, this environment's folder and this machine's name."""
    private = {os.path.expanduser("~"): "~", tempfile.gettempdir(): "(temporary folder)"}
    if sys.prefix != sys.base_prefix:
        private[sys.prefix] = "(environment)"
    for path in sorted(private, key=len, reverse=True):
        if len(path) > 1:  # a home of "/" would take every slash
            text = text.replace(path, private[path])
    host = socket.gethostname()
    if len(host) > 2 and host != "localhost":
        text = re.sub(rf"\b{re.escape(host)}\b", "(this machine)", text)
    return " ".join(text.split())


def first_line(text: str) -> str:
    """Return the first line of ``text`` that holds something, without the spaces around it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _html_rows(tag: str, rows: Iterable[Iterable[str]]) -> str:
    cell = f"<{tag} style='text-align:left;padding:0 1em 0 0'>{{}}</{tag}>"
    return "".join(f"<tr>{''.join(cell.format(html.escape(text)) for text in row)}</tr>" for row in rows)
