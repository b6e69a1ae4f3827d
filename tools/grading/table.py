"""grades.csv and its like: a row a student, by the lecturer's list of the class, and what Canvas
and Moodle import.

Canvas takes a gradebook (Student, ID, ..., Section, an assignment a column), Moodle a grading
worksheet (Identifier, ..., Grade, ...), as canvas-lms (lib/gradebook_importer.rb) and Moodle
(mod/assign/feedback/offline) read them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import storage
from tools.exercises.sheets import Sheet
from tools.grading.gradebook import GradingError, points_of
from tools.grading.lms import CANVAS, MOODLE, Download, Person, folded

FIXED = (
    "student",
    "name",
    "assignment",
    "score",
    "so_far_of",
    "max_score",
    "answers_to_mark",
    "note",
)
_CANVAS_HEADER = ("Student", "ID", "SIS Login ID", "Section")
_CANVAS_POINTS = "    Points Possible"
_MOODLE_HEADER = ("Identifier", "Full name", "Email address", "Status", "Grade", "Maximum Grade",
                  "Grade can be changed", "Last modified (submission)", "Last modified (grade)",
                  "Feedback comments")  # fmt: skip
_PARTICIPANT = "Participant "
_FORMULA = re.compile(r"[=+\-@\t\r]")
_PLAIN = re.compile(r"-|[+-]?\d+(?:[.,]\d+)?", re.ASCII)
_NO_STUDENT = ("points possible", "student, test")  # rows of Canvas's gradebook
_LARGEST_ROSTER_BYTES = 20 * 2**20


@dataclass(frozen=True)
class Roster:
    """The lecturer's list of a class: Canvas's gradebook, Moodle's grading worksheet, or a table
    with name and id.
    """

    path: Path
    system: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def read(cls, path: Path) -> Roster:
        """Return the list in a CSV file.

        Raises GradingError, saying what it must have, where it is none.
        """
        try:
            with path.open("rb") as file:
                lines = _lines(file.read(_LARGEST_ROSTER_BYTES).decode("utf-8-sig"))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise GradingError(
                f"ROSTER={path} cannot be read ({error}); save it as CSV in UTF-8"
            ) from None
        header = tuple(cell.strip() for cell in lines[0]) if lines else ()
        lower_names = [cell.casefold() for cell in header]
        if header[:1] == ("Student",) and "ID" in header and "Section" in header:
            system = CANVAS
        elif {"Identifier", "Full name", "Grade"} <= set(header):
            system = MOODLE
        elif "name" in lower_names and "id" in lower_names:
            system = ""
        else:
            raise GradingError(
                f"ROSTER={path} has the columns {', '.join(header)[:200]!r}; give Canvas's "
                "gradebook (Student, ID, ..., Section), Moodle's grading worksheet in English "
                "(Identifier, Full name, ..., Grade), or a table with the columns name and id"
            )
        rows = [tuple((*row, *[""] * len(header))[: len(header)]) for row in lines[1:]]
        if system == CANVAS:
            rows = [
                row for row in rows if any(row[:2]) and row[0].strip().casefold() not in _NO_STUDENT
            ]
        roster = cls(path, system, header, tuple(dict.fromkeys(rows)))
        roster._refuse_doubles()
        return roster

    def _refuse_doubles(self) -> None:
        """Raise GradingError where there is no student, or where nobody knows whose row is
        whose.
        """
        if not self.rows:
            raise GradingError(
                f"ROSTER={self.path} lists no student below its columns; add a row for each"
            )
        names: dict[str, str] = {}
        for row in self.rows:
            key = self.key(row).casefold()
            if key in names:
                raise GradingError(
                    f"ROSTER={self.path} has {self.key(row)!r} for {names[key]!r} and for "
                    f"{self.name(row)!r}; give each student an id of their own"
                )
            names[key] = self.name(row)

    def name(self, row: Sequence[str]) -> str:
        return self._cell(row, "student", "full name", "name")

    def key(self, row: Sequence[str]) -> str:
        """Return the name in grades.csv of a student who handed nothing in."""
        return self._cell(row, "sis login id", "username", "id", "identifier") or self.name(row)

    def _cell(self, row: Sequence[str], *columns: str) -> str:
        by_column = {
            name.casefold(): cell.strip() for name, cell in zip(self.header, row, strict=True)
        }
        return next((by_column[column] for column in columns if by_column.get(column)), "")

    def identity(self) -> range:
        """Return the columns that say who a student is; the others may hold any number."""
        last = {CANVAS: "Section", MOODLE: "Status"}.get(self.system, "")
        return range(self.header.index(last) if last in self.header else len(self.header))

    def find(self, student: str, person: Person | None) -> int | None:
        """Return the number of a student's row, None where there is not exactly one."""
        ids = {student.casefold()} | ({person.lms_id} if person and person.lms_id else set())
        names = {folded(student)} | ({folded(person.name)} if person else set())
        matches = [index for index, row in enumerate(self.rows) if ids & self._ids(row)]
        matches = matches or [
            index for index, row in enumerate(self.rows) if names & self._spellings(row)
        ]
        return matches[0] if len(matches) == 1 else None

    def _ids(self, row: Sequence[str]) -> set[str]:
        cells = {row[column].strip().casefold() for column in self.identity()} - {""}
        participants = {cell.removeprefix(_PARTICIPANT.casefold()) for cell in cells}
        return cells | participants | {cell.partition("@")[0] for cell in cells if "@" in cell}

    def _spellings(self, row: Sequence[str]) -> set[str]:
        last, _, first = self.name(row).partition(",")
        return {folded(last + first), folded(first + last)} - {""}


def _lines(text: str) -> list[list[str]]:
    """Return the rows of a CSV file in which something stands, whatever parts its cells.

    Raises csv.Error.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\n")
    text = re.sub(r"\Asep=.\n", "", text)  # Excel's own line
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    rows = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    return [row for row in rows if any(cell.strip() for cell in row)]


class People:
    """Who handed in: by the download's names and the lecturer's list, where there are such."""

    def __init__(self, download: Download, roster: Roster | None, students: Iterable[str]) -> None:
        self._download, self._roster = download, roster
        self.system = (roster.system if roster else "") or download.system
        self._row = (
            {student: roster.find(student, download.people.get(student)) for student in students}
            if roster
            else {}
        )

    def names(self) -> dict[str, str]:
        """Return the names that are known, by student."""
        names_in_download = {
            student: person.name for student, person in self._download.people.items() if person.name
        }
        names_on_roster = {
            student: self._roster.name(self._roster.rows[row])
            for student, row in self._row.items()
            if row is not None and self._roster
        }
        return names_in_download | names_on_roster

    def complete(
        self,
        rows: Sequence[dict[str, Any]],
        skipped: Mapping[str, str],
        sheets: Mapping[str, Sheet],
    ) -> list[dict[str, Any]]:
        """Return the rows with names and, by assignment and place on the list, one for each who
        handed nothing in.
        """
        names = self.names()
        late_students = {
            student for student, person in self._download.people.items() if person.late
        }
        completed_rows = [
            {
                **row,
                "name": names.get(row["student"], ""),
                "note": self._note(row, row["student"] in late_students),
            }
            for row in rows
        ]
        if self._roster is None:
            return completed_rows
        reasons = {
            row: skipped[student]
            for student, row in self._row.items()
            if student in skipped and row is not None
        }
        for assignment in sorted({str(row["assignment"]) for row in rows}):
            indices = {
                self._row.get(str(row["student"]))
                for row in rows
                if row["assignment"] == assignment
            }
            for index, row in enumerate(self._roster.rows):
                if index not in indices:
                    completed_rows.append(
                        {
                            "student": self._roster.key(row),
                            "name": self._roster.name(row),
                            "assignment": assignment,
                            "max_score": float(sum(points_of(sheets[assignment]).values())),
                            "note": f"not marked: {reasons.get(index, 'handed nothing in')}",
                        }
                    )
        return completed_rows

    def _note(self, row: Mapping[str, Any], is_late: bool) -> str:
        is_missing = self._roster is not None and self._row.get(row["student"]) is None
        notes = (
            "not on the roster" if is_missing else "",
            f"late, says {self.system}" if is_late else "",
            row["note"],
        )
        return "; ".join(note for note in notes if note)

    def write_imports(
        self, folder: Path, rows: Sequence[Mapping[str, Any]], unread: set[tuple[str, str]]
    ) -> list[str]:
        """Write what Canvas or Moodle imports, where the class is of one; return a line on each
        file.

        A grade that is not final is left out: one that waits for a person, or of a file that could
        not be read.
        """
        final = {
            (str(row["student"]), str(row["assignment"])): float(row["score"])
            for row in rows
            if row.get("answers_to_mark") == 0 and (row["student"], row["assignment"]) not in unread
        }
        max_scores = {str(row["assignment"]): float(row["max_score"]) for row in rows}
        if self.system == CANVAS:
            return [self._canvas(folder / "grades_for_canvas.csv", max_scores, final)]
        if self.system == MOODLE:
            return [
                self._moodle(
                    folder / f"grades_for_moodle_{assignment}.csv", assignment, max_scores, final
                )
                for assignment in max_scores
            ]
        return []

    def _listed_students(self, system: str) -> list[tuple[tuple[str, ...] | None, str]]:
        """Return each student's row of the system's own list, if that was given, and folder."""
        if self._roster and self._roster.system == system:
            folders = {row: student for student, row in self._row.items() if row is not None}
            return [(row, folders.get(index, "")) for index, row in enumerate(self._roster.rows)]
        return [
            (None, student) for student, person in self._download.people.items() if person.lms_id
        ]

    def _canvas(
        self, path: Path, max_scores: Mapping[str, float], final: Mapping[tuple[str, str], float]
    ) -> str:
        roster = self._roster if self._roster and self._roster.system == CANVAS else None
        header = roster.header if roster else _CANVAS_HEADER
        identity = header[: header.index("Section") + 1]
        columns = {
            assignment: next(
                (name for name in header[len(identity) :] if assignment in name), assignment
            )
            for assignment in max_scores
        }
        points = [
            _CANVAS_POINTS,
            *[""] * (len(identity) - 1),
            *(f"{max_scores[assignment]:g}" for assignment in columns),
        ]
        lines, filled = [[*identity, *columns.values()], points], 0
        for row, student in self._listed_students(CANVAS):
            person = self._download.people.get(student)
            identity_cells = (
                row[: len(identity)]
                if row
                else (person.name, person.lms_id, "", "")
                if person
                else ()
            )
            old_cells = [
                row[header.index(name)] if row and name in header else ""
                for name in columns.values()
            ]
            grades = [final.get((student, assignment)) for assignment in columns]
            filled += sum(grade is not None for grade in grades)
            lines.append(
                [
                    *identity_cells,
                    *(
                        old_cell if grade is None else f"{grade:g}"
                        for old_cell, grade in zip(old_cells, grades, strict=True)
                    ),
                ]
            )
        _write(path, lines)
        return (
            f"{path}: {filled} grades for Canvas (Grades, Import); one that is not final is left "
            "as it is there"
        )

    def _moodle(
        self,
        path: Path,
        assignment: str,
        max_scores: Mapping[str, float],
        final: Mapping[tuple[str, str], float],
    ) -> str:
        roster = self._roster if self._roster and self._roster.system == MOODLE else None
        if roster and len(max_scores) > 1:
            return (
                "no file for Moodle: a worksheet is of one assignment, and these are "
                f"{len(max_scores)}; grade each alone"
            )
        header = roster.header if roster else _MOODLE_HEADER
        lines, filled = [[*header]], 0
        for row, student in self._listed_students(MOODLE):
            grade, person = final.get((student, assignment)), self._download.people.get(student)
            values = dict(zip(header, row, strict=True)) if row else dict.fromkeys(header, "")
            if not row and person:
                values |= {
                    "Identifier": f"{_PARTICIPANT}{person.lms_id}",
                    "Full name": person.name,
                    "Maximum Grade": f"{max_scores[assignment]:.2f}",
                    "Grade can be changed": "Yes",
                    "Last modified (submission)": "-",
                    "Last modified (grade)": "-",
                }
            max_grade = _number(values.get("Maximum Grade", ""))
            if max_grade is not None and max_grade != max_scores[assignment]:
                return (
                    f"no file for Moodle: there the maximum grade is {max_grade:g}, and "
                    f"{assignment} has {max_scores[assignment]:g} points; set it in the "
                    "assignment's settings, and download the worksheet again"
                )
            if grade is not None:
                values["Grade"], filled = f"{grade:.2f}", filled + 1
            lines.append([values[name] for name in header])
        _write(path, lines)
        return (
            f"{path}: {filled} grades for Moodle (Upload grading worksheet); one that is not final "
            "is left as it is"
        )


def awaiting_marks(
    rows: Sequence[Mapping[str, Any]], sheets: Mapping[str, Sheet]
) -> tuple[str, ...]:
    """Return a line on each written answer that some students gave and no person has marked."""
    lines = []
    for assignment in sorted({str(row["assignment"]) for row in rows}):
        rows_awaiting = [
            row for row in rows if row["assignment"] == assignment and row.get("answers_to_mark")
        ]
        for question in sheets[assignment].written:
            count = sum(row[question] == "" for row in rows_awaiting)
            if count:
                lines.append(
                    f"{assignment}, {question}: {count} "
                    f"{'answer waits' if count == 1 else 'answers wait'}"
                )
    return tuple(lines)


def _number(text: str) -> float | None:
    match = re.fullmatch(r"\s*(\d+)(?:[.,](\d+))?\s*", text)
    return float(f"{match[1]}.{match[2] or 0}") if match else None


def _write(path: Path, lines: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_disarm, line) for line in lines)
    storage.write_atomically(path, text.getvalue())


def as_csv(rows: Sequence[Mapping[str, Any]], sheets: Mapping[str, Sheet]) -> str:
    """Return grades.csv; a column an exercise, in the order of the notebooks, and ``name`` where
    one is known.
    """
    fixed = [name for name in FIXED if name != "name" or any(row.get("name") for row in rows)]
    assignments = sorted({str(row["assignment"]) for row in rows})
    columns = [
        *fixed,
        *dict.fromkeys(
            name for assignment in assignments for name in points_of(sheets[assignment])
        ),
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({name: _disarm(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _disarm(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula; a number, and Moodle's "-" for none,
    stay as they are.
    """
    return (
        f"'{value}"
        if isinstance(value, str) and _FORMULA.match(value) and not _PLAIN.fullmatch(value)
        else value
    )
