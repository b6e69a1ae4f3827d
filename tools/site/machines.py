"""The page of the machines whose runs are recorded in the repository: side by side, then run by run."""

from __future__ import annotations

from helpers import recorded, sending, units
from helpers.recorded import Recording
from tools.authoring.course import Course


def page(course: Course) -> str:
    """Return the recorded machines as Markdown: a column a machine, and below each lesson's recorded results."""
    folder = course.folder / "recorded"
    there = [lesson for lesson in sorted(recorded.RECORDERS) if (folder / f"{lesson}.json").is_file()]
    runs = [recorded.load(lesson, folder=folder) for lesson in there]
    runs += [run for sent in sending.gpus(folder=folder / "gpu") for run in sent.recordings]
    by_device: dict[str, list[Recording]] = {}
    for run in runs:
        by_device.setdefault(run.device, []).append(run)
    columns = [_machine(of_device) for of_device in by_device.values()]
    lines = [f"| | {' | '.join(by_device)} |", f"|--|{'--|' * len(by_device)}"]
    lines += [f"| {name} | {' | '.join(column[name] for column in columns)} |" for name in columns[0]]
    command = "`python -m helpers.recorded 00` records yours; [a GPU](record_a_gpu.md) is recorded for all to see."
    return "\n".join(["# Recorded machines", "", f"Lessons show these runs under their machine's name. {command}", "",
                      *lines, *map(_results, runs)]) + "\n"  # fmt: skip


def _machine(runs: list[Recording]) -> dict[str, str]:
    card = runs[-1].card
    kinds = {"data": "L{} data", "instruction": "L{} instructions", "unified": "L{}"}
    caches = (
        f"{kinds[cache.kind].format(cache.level)} {units.text(cache.size_bytes, 'B', binary=True)}"
        for cache in card.caches or ()
    )
    return {
        "recorded for lessons": ", ".join(run.lesson[:2] for run in runs),
        "last run": max(run.date for run in runs),
        "cores": f"{card.usable_cores}",
        "caches": ", ".join(caches),
        "vector extensions": ", ".join(card.extensions or ()),
        "GPU": ", ".join(gpu.name for gpu in card.gpus or ()) or "none",
        "torch": runs[-1].versions["torch"],
    }


def _results(run: Recording) -> str:
    lines = [f"\n## Lesson {run.lesson[:2]}: {', '.join(run.entries)}\n", f"{run.device}, {run.date}."]
    for name in run.entries:
        lines.append(f'\n<div class="recorded">{run.result(name)._repr_html_()}</div>')
    return "\n".join(lines)
