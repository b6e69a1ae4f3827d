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
        restored = intake.restore(sheet, submission.path)
    except intake.IntakeError as error:
        no_marks = tuple(Mark(name, 0.0, _points(sheet, name), "", ()) for name in sheet.exercises)
        return Marks(submission.student, submission.assignment, no_marks, problem=str(error))
    steps = list(_steps(sheet, restored.notebook))
    outputs: dict[str, list[dict[str, Any]]] = {}
    lost: dict[int, str] = {}
    marks_by_step: dict[int, Mark] = {}
    deadline = time.monotonic() + limits.total_s
    while len(marks_by_step) < len(sheet.exercises):
        last_index = _run_steps(sheet, steps, marks_by_step, lost, outputs, limits, deadline)
        if last_index is None:
            break
    marks = tuple(marks_by_step[index] for index in sorted(marks_by_step))
    disturbed = any(_MACHINE in reason for reason in lost.values())
    stopped_cells = [
        f"a cell was stopped: {reason}"
        for index, reason in lost.items()
        if index >= 0 and not steps[index].exercise
    ]
    name_notes = [f"handed in as {submission.came_as!r}"] if submission.came_as else []
    notes = (*name_notes, *restored.notes, *dict.fromkeys(stopped_cells))
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


def _run_steps(
    sheet: Sheet,
    steps: list[_Step],
    marks_by_step: dict[int, Mark],
    lost: dict[int, str],
    outputs: dict[str, list[dict[str, Any]]],
    limits: Limits,
    deadline: float,
) -> int | None:
    """Run the steps in a fresh sandbox, without those that ended an earlier one; return the step
    that ends this one.

    Marks are written to ``marks_by_step``, why a step was lost to ``lost``, what cells showed to
    ``outputs``. None when the last step is done.
    """
    checks_to_run = [
        index for index, step in enumerate(steps) if step.exercise and index not in marks_by_step
    ]
    index = -1
    raised: list[str] = []
    raised_in_answers: dict[str, str] = {}
    try:
        with sandbox.start(limits) as fresh_sandbox:
            session = Session(fresh_sandbox, limits, deadline)
            for index in range(checks_to_run[-1] + 1):
                step = steps[index]
                if index in marks_by_step:
                    raised = []  # the mark that is given says so
                elif index in lost:
                    raised.append(f"was stopped: {lost[index]}")
                if index in lost or index in marks_by_step:
                    continue
                if step.exercise:
                    marks_by_step[index] = _run_checks(
                        sheet,
                        step.exercise,
                        session,
                        raised,
                        raised_in_answers.get(step.exercise, ""),
                    )
                    raised = []
                    continue
                if error := session.run(step.source):
                    raised.append(f"raised {error}")
                    raised_in_answers[step.answers] = (
                        f"its cell raised {error.partition(chr(10))[0]}"
                    )
                if step.shows:
                    outputs[step.shows] = session.shown
    except Lost as error:
        reason = str(error)
        is_over = time.monotonic() >= deadline
        lost[index] = reason
        for checks_index in checks_to_run:
            if checks_index not in marks_by_step and (
                checks_index == index or is_over or index < 0
            ):
                marks_by_step[checks_index] = _no_points(
                    sheet, steps[checks_index].exercise, reason
                )
        return index
    return None


def _no_points(sheet: Sheet, exercise: str, reason: str) -> Mark:
    message = f"Your notebook was stopped here: {reason}."
    return Mark(exercise, 0.0, _points(sheet, exercise), message, (), note=message)


def _points(sheet: Sheet, exercise: str) -> int:
    return sheet.cell("checks", exercise).metadata["points"]


def _run_checks(
    sheet: Sheet,
    exercise: str,
    session: Session,
    raised: Sequence[str] = (),
    raised_in_answer: str = "",
) -> Mark:
    """Return the mark of an exercise, whose checks run here; ``raised`` says what the student's
    cells above it did.

    ``raised_in_answer`` says so of the answer's own cell. Raises Lost when the submission ends
    meanwhile.
    """
    session.step()
    source, points = sheet.cell("checks", exercise).source, _points(sheet, exercise)
    with redirect_stdout(io.StringIO()):
        names = names_for(sheet, exercise, session.function)
    with redirect_stdout(report := io.StringIO()):
        errors = scoring.run(source, names)
    missed = _missed_goals(sheet, exercise, names["check"]) if errors else set()
    problems = names["check"]._problems()
    goals = [*problems, *sorted(missed - set(problems))]
    reached = tuple((goal, goal not in missed and not problems[goal]) for goal in goals)
    events = "".join(f"A cell above {event}\n" for event in raised)
    abort_note = (
        f"the checks ended with {type(errors[0]).__name__[:60]} at what your function gave"
        if missed
        else ""
    )
    unchecked = "".join(
        f"Not all of {goal!r} was checked: {abort_note}.\n" for goal in sorted(missed)
    )
    text = events + unchecked + _ON_ITS_OWN_LINE.sub("\n" + " " * 15, report.getvalue())
    score = float(sum(is_reached for _, is_reached in reached))
    return Mark(
        exercise,
        score,
        points,
        text[:_MOST_SAID],
        reached,
        note=printable(raised_in_answer or abort_note),
    )


def _missed_goals(sheet: Sheet, exercise: str, checks: Checks) -> set[str]:
    """Return the goals of which fewer checks were made than of the course's own answer."""
    with redirect_stdout(io.StringIO()):
        solved_names = proof.run_answer(sheet, exercise, sheet.cell("answer", exercise).source)
        scoring.run(sheet.cell("checks", exercise).source, solved_names)
    return set(scoring.count_checks(solved_names["check"]) - scoring.count_checks(checks))


def names_for(
    sheet: Sheet, exercise: str, function: Callable[[str], Callable[..., Any]]
) -> dict[str, Any]:
    """Return the names with which an exercise's checks run: those of the given cells, and the
    answer's functions.

    ``function`` gives, by its name, what stands for a function of the answer.
    """
    introduction, *sections = sections_of(sheet.lesson.cells)
    section = next(
        cells
        for cells in sections
        if any(cell.metadata.get("answer") == exercise for cell in cells)
    )
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in (*introduction, *section):
        if cell.metadata.get("answer") == exercise:
            names.update((name, function(name)) for name in function_names(cell))
        elif cell.kind == "code" and not {"checks", "answer"} & set(cell.metadata):
            exec(compile(cell.source, "<given>", "exec"), names)
    return names


def function_names(cell: Cell) -> list[str]:
    """Return the names of the functions that an answer's cell defines."""
    return [
        statement.name
        for statement in ast.parse(cell.source).body
        if isinstance(statement, ast.FunctionDef)
    ]
