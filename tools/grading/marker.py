"""Marks one submission: its cells run in a sandbox, and each exercise's checks run here, on what it
sends back.
"""

from __future__ import annotations

import ast
import io
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from helpers.exercises import Checks
from helpers.results import Result
from tools.authoring.lesson import Cell
from tools.exercises import proof
from tools.exercises.sheets import Sheet, sections_of
from tools.grading import intake, sandbox, scoring
from tools.grading.outputs import printable
from tools.grading.sandbox import Limits
from tools.grading.session import YOUR_LINE, Lost, Session

_MOST_SAID = 6000  # characters of what the checks say, which show the submission's own values
_MACHINE = "the machine ran out of memory"
# the report of the checks writes an exception as one line
_ON_ITS_OWN_LINE = re.compile(rf"(?<=\S) (?={YOUR_LINE})")


@dataclass(frozen=True)
class Mark(Result):
    """What an exercise got of ``points``; ``said`` is what the visible checks say, and ``goals``
    what all say.

    ``goals`` names each goal with True where every check, hidden ones included, found it reached.
    ``note`` is for the lecturer: why the exercise was stopped, what its cell raised, what ended its
    checks; "" where all is well.
    """

    exercise: str
    score: float
    points: int
    said: str
    goals: tuple[tuple[str, bool], ...]
    note: str = ""


@dataclass(frozen=True)
class Marks(Result):
    """The marks of one submission; ``problem`` says why none of it could be read, "" where it could
    be.

    ``disturbed`` is True when the machine, not the submission, may be what stopped it. ``notes``
    are for the lecturer; ``outputs`` holds what the student's cells showed, by the cell's id;
    ``handed_in`` is when, in UTC, "" where nobody says.
    """

    student: str
    assignment: str
    marks: tuple[Mark, ...]
    problem: str = ""
    disturbed: bool = False
    notes: tuple[str, ...] = ()
    outputs: dict[str, list[dict[str, Any]]] = field(default_factory=dict, repr=False)
    handed_in: str = ""

    @property
    def score(self) -> float:
        return sum(mark.score for mark in self.marks)


def mark(sheet: Sheet, submission: intake.Submission, limits: Limits) -> Marks:
    """Return the marks of a submission; whatever is in it, it gets some.

    Raises SandboxError where none can start.
    """
    try:
        given_in = intake.handed(sheet, submission.path)
    except intake.IntakeError as error:
        nothing = tuple(Mark(name, 0.0, _points(sheet, name), "", ()) for name in sheet.exercises)
        return Marks(submission.student, submission.assignment, nothing, problem=str(error))
    steps = list(_steps(sheet, given_in.notebook))
    outputs: dict[str, list[dict[str, Any]]] = {}
    lost: dict[int, str] = {}
    given: dict[int, Mark] = {}
    deadline = time.monotonic() + limits.total_s
    while len(given) < len(sheet.exercises):
        at = _go_through(sheet, steps, given, lost, outputs, limits, deadline)
        if at is None:
            break
    marks = tuple(given[place] for place in sorted(given))
    disturbed = any(_MACHINE in why for why in lost.values())
    ended = [
        f"a cell was stopped: {why}"
        for place, why in lost.items()
        if place >= 0 and not steps[place].exercise
    ]
    named = [f"handed in as {submission.came_as!r}"] if submission.came_as else []
    notes = (*named, *given_in.notes, *dict.fromkeys(ended))
    return Marks(submission.student, submission.assignment, marks, "", disturbed, notes, outputs)


@dataclass(frozen=True)
class _Step:
    """A cell to run, or the checks of ``exercise`` to make at its place; ``shows`` is the id of a
    student's cell.

    ``answers`` is the exercise to which the cell is the answer.
    """

    exercise: str
    source: str
    shows: str = ""
    answers: str = ""


def _steps(sheet: Sheet, notebook: Any) -> Iterator[_Step]:
    checks = {f"{name}_checks": name for name in sheet.exercises}
    for cell in notebook.cells:
        mark = cell.metadata.get("nbgrader", {})
        name = checks.get(mark.get("grade_id", ""), "")
        answers = mark["grade_id"] if mark.get("solution") else ""
        if cell.cell_type == "code":
            yield _Step(
                name, "" if name else cell.source, "" if mark.get("locked") else cell.id, answers
            )


def _go_through(
    sheet: Sheet,
    steps: list[_Step],
    given: dict[int, Mark],
    lost: dict[int, str],
    outputs: dict[str, list[dict[str, Any]]],
    limits: Limits,
    deadline: float,
) -> int | None:
    """Run the steps in a fresh sandbox, without those that ended an earlier one; return the step
    that ends this one.

    Marks are written to ``given``, why a step was lost to ``lost``, what cells showed to
    ``outputs``. None when the last step is done.
    """
    remaining = [place for place, step in enumerate(steps) if step.exercise and place not in given]
    place = -1
    raised: list[str] = []
    broken: dict[str, str] = {}
    try:
        with sandbox.started(limits) as shut:
            session = Session(shut, limits, deadline)
            for place in range(remaining[-1] + 1):
                step = steps[place]
                if place in given:
                    raised = []  # the mark that is given says so
                elif place in lost:
                    raised.append(f"was stopped: {lost[place]}")
                if place in lost or place in given:
                    continue
                if step.exercise:
                    given[place] = _checked(
                        sheet, step.exercise, session, raised, broken.get(step.exercise, "")
                    )
                    raised = []
                    continue
                if error := session.run(step.source):
                    raised.append(f"raised {error}")
                    broken[step.answers] = f"its cell raised {error.partition(chr(10))[0]}"
                if step.shows:
                    outputs[step.shows] = session.shown
    except Lost as error:
        why = str(error)
        over = time.monotonic() >= deadline
        lost[place] = why
        for other in remaining:
            if other not in given and (other == place or over or place < 0):
                given[other] = _nothing(sheet, steps[other].exercise, why)
        return place
    return None


def _nothing(sheet: Sheet, exercise: str, why: str) -> Mark:
    said = f"Your notebook was stopped here: {why}."
    return Mark(exercise, 0.0, _points(sheet, exercise), said, (), note=said)


def _points(sheet: Sheet, exercise: str) -> int:
    return sheet.cell("checks", exercise).metadata["points"]


def _checked(
    sheet: Sheet, exercise: str, session: Session, raised: Sequence[str] = (), broken: str = ""
) -> Mark:
    """Return the mark of an exercise, whose checks run here; ``raised`` says what the student's
    cells above it did.

    ``broken`` says so of the answer's own cell. Raises Lost when the submission ends meanwhile.
    """
    session.step()
    source, points = sheet.cell("checks", exercise).source, _points(sheet, exercise)
    with redirect_stdout(io.StringIO()):
        names = names_for(sheet, exercise, session.function)
    with redirect_stdout(said := io.StringIO()):
        errors = scoring.run(source, names)
    missed = _left_out(sheet, exercise, names["check"]) if errors else set()
    problems = names["check"]._problems()
    goals = [*problems, *sorted(missed - set(problems))]
    reached = tuple((goal, goal not in missed and not problems[goal]) for goal in goals)
    cells = "".join(f"A cell above {one}\n" for one in raised)
    ended = (
        f"the checks ended with {type(errors[0]).__name__[:60]} at what your function gave"
        if missed
        else ""
    )
    left_out = "".join(f"Not all of {goal!r} was checked: {ended}.\n" for goal in sorted(missed))
    text = cells + left_out + _ON_ITS_OWN_LINE.sub("\n" + " " * 15, said.getvalue())
    score = float(sum(is_reached for _, is_reached in reached))
    return Mark(
        exercise, score, points, text[:_MOST_SAID], reached, note=printable(broken or ended)
    )


def _left_out(sheet: Sheet, exercise: str, checks: Checks) -> set[str]:
    """Return the goals of which fewer checks were made than of the course's own answer."""
    with redirect_stdout(io.StringIO()):
        own = proof.answered(sheet, exercise, sheet.cell("answer", exercise).source)
        scoring.run(sheet.cell("checks", exercise).source, own)
    return set(scoring.checked(own["check"]) - scoring.checked(checks))


def names_for(
    sheet: Sheet, exercise: str, function: Callable[[str], Callable[..., Any]]
) -> dict[str, Any]:
    """Return the names with which an exercise's checks run: those of the given cells, and the
    answer's functions.

    ``function`` gives, by its name, what stands for a function of the answer.
    """
    beginning, *sections = sections_of(sheet.lesson.cells)
    own = next(
        cells
        for cells in sections
        if any(cell.metadata.get("answer") == exercise for cell in cells)
    )
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in (*beginning, *own):
        if cell.metadata.get("answer") == exercise:
            names.update((name, function(name)) for name in defined(cell))
        elif cell.kind == "code" and not {"checks", "answer"} & set(cell.metadata):
            exec(compile(cell.source, "<given>", "exec"), names)
    return names


def defined(cell: Cell) -> list[str]:
    """Return the names of the functions that an answer's cell defines."""
    return [one.name for one in ast.parse(cell.source).body if isinstance(one, ast.FunctionDef)]
