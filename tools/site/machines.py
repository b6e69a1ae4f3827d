"""The page of the machines whose runs are recorded in the repository: side by side, then run by
run.
"""

from __future__ import annotations

from helpers import recorded
from helpers.studies import sending
from tools.authoring.course import Course
from tools.authoring.lesson import AuthoringError


def page(course: Course) -> str:
    """Return the recorded machines as Markdown: a column a machine, and below each lesson's
    recorded results.

    What a recording says stands in lines of HTML, in which no Markdown is read. Raises
    AuthoringError for a GPU's file that is not sound, as it may be a stranger's.
    """
    folder = course.folder / "recorded"
    recorded_lessons = [
        lesson for lesson in sorted(recorded.RECORDERS) if (folder / f"{lesson}.json").is_file()
    ]
    runs = [recorded.load(lesson, folder=folder) for lesson in recorded_lessons]
    try:
        runs += [run for gpu in sending.gpus(folder=folder / "gpu") for run in gpu.recordings]
    except ValueError as error:
        raise AuthoringError(str(error)) from error
    command = (
        "`python -m helpers.recorded 00` records yours; [a GPU](record_a_gpu.md) is recorded for "
        "all to see."
    )
    blocks = [
        "# Recorded machines",
        f"Lessons show these runs under their machine's name. {command}",
        recorded.machines_html(runs),
    ]
    for run in runs:
        names = ", ".join(recorded.RECORDERS[run.lesson])
        blocks += [f"## Lesson {run.lesson[:2]}: {names}", recorded.results_html(run)]
    return "\n\n".join(blocks) + "\n"
