"""The problem that a check hands back: where something is wrong, and what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing to mend: ``where`` is a file, ``cell`` the index of a cell in its notebook, counted
    from 0.
    """

    where: str
    cell: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.where}{'' if self.cell is None else f', cell {self.cell}'}: {self.what}"
