"""Result files of real machines: a lesson shows them, under their machine's name, where that
hardware is absent.

One JSON file a lesson in course/recorded/ holds what :data:`RECORDERS` names for it, with the
machine, the versions, the date, the commit and the command that made it.
``python -m helpers.recorded 00`` writes lesson 00's on the machine at hand; it needs what the
library itself does, no Jupyter. Lesson 11's needs torchvision too.

Lesson 00.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import html
import importlib
import json
import platform
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers import console, hardware, results, storage, units
from helpers.checks import one_of, short

# What each lesson records: a name, and the function without arguments that measures it. To register
# a measurement, add its line here; the function returns a results.Result.
RECORDERS: dict[str, dict[str, str]] = {
    "00": {
        "products": "helpers.recorded:measure_products",
        "first calls": "helpers.recorded:measure_first_call",
    },
    "01": {
        "limits": "helpers.hardware:probe",
        "links": "helpers.studies.data_movement:measure_links",
    },
    "02": {"matrix products": "helpers.studies.matrix_product:measure_products"},
    "10": {"copying": "helpers.studies.input_pipeline:measure_copying"},
    "11": {"peers": "helpers.studies.peers:count_with_peers"},
    "18": {"story": "helpers.studies.fused_bias:measure_story"},
    "18-cpu": {"compilers": "helpers.studies.fused_bias:measure_compilers"},
    "17": {
        "placements on CUDA": "helpers.studies.constant_weights:measure_cuda",
        "growing networks on CUDA": "helpers.studies.constant_weights:measure_growth",
    },
    "17-cpu": {"peers": "helpers.studies.constant_weights:measure_peers"},
    "20-cpu": {"convolutions": "helpers.studies.convolution_time:measure_networks"},
}
_SIDE = 1024
_BUDGET_S = 5.0


class Recording(results.Record):
    """The measurements of one machine for one lesson.

    ``entries`` maps a name to its result's type and values.
    """

    lesson: str
    device: str
    date: str
    commit: str
    command: str
    versions: Mapping[str, str]
    card: hardware.MachineCard = dataclasses.field(repr=False)
    entries: Mapping[str, Any] = dataclasses.field(repr=False)

    @property
    def source(self) -> str:
        """The line that stands beside anything shown from this recording."""
        return f"recorded on {self.device}, {self.date}, torch {self.versions['torch']}"

    def result(self, name: str) -> results.Result:
        """Return the result that was recorded as ``name``, in the type that measured it."""
        if name not in self.entries:
            raise ValueError(
                f"lesson {self.lesson} recorded {', '.join(self.entries)}; there is no {name!r}"
            )
        return results.from_dict(
            _result_type(self.entries[name]["type"]), self.entries[name]["values"]
        )


def record(lesson: str, *, command: str = "") -> Recording:
    """Run the :data:`RECORDERS` of ``lesson`` on this machine and return the recording; nothing is
    written.

    Raises ValueError for a lesson that records nothing.
    """
    _require_recorders(lesson)
    entries = {}
    for name, location in console.track(
        list(RECORDERS[lesson].items()), f"recording lesson {lesson}"
    ):
        module, function = location.split(":")
        result = getattr(importlib.import_module(module), function)()
        entries[name] = {"type": _public_name(type(result)), "values": result.to_dict()}
    return Recording(
        lesson=lesson,
        device=_device_name(),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit=_commit(),
        command=command or f"python -m helpers.recorded {lesson}",
        versions=_versions(),
        card=hardware.machine_card(),
        entries=entries,
    )


def save(recording: Recording, *, folder: Path | None = None) -> Path:
    """Write the recording to ``folder`` under its lesson's number, through a temporary name; return
    the path.

    Without a folder it goes to the course's; raises FileNotFoundError outside a course.
    """
    folder = _folder(folder)
    path = folder / f"{recording.lesson}.json"
    folder.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(path, recording.to_json() + "\n")
    return path


def load(lesson: str, *, folder: Path | None = None) -> Recording:
    """Return the recording of ``lesson``.

    Raises FileNotFoundError with the command that makes one, and ValueError for a lesson that
    records nothing, or when the file is not a recording.

    >>> list(load("00").entries)  # doctest: +SKIP
    ['products', 'first calls']
    """
    _require_recorders(lesson)
    path = _folder(folder) / f"{lesson}.json"
    remedy = f"on the machine to show, run: python -m helpers.recorded {lesson}"
    if not path.exists():
        raise FileNotFoundError(f"no run is recorded for lesson {lesson} yet; {remedy}")
    try:
        recording = results.from_dict(Recording, json.loads(path.read_text(encoding="utf-8")))
        for name in recording.entries:
            recording.result(name)
        if "torch" not in recording.versions:
            raise ValueError("it names no version of torch")
    except (ValueError, KeyError, TypeError, AttributeError, ImportError, RecursionError) as error:
        raise ValueError(
            f"{path.name} is not a recording of this library ({error}); {remedy}"
        ) from error
    return recording


def machines_html(recordings: Sequence[Recording]) -> str:
    """Return one line of HTML with a table of the machines, a column each; every text of a card is
    escaped in it.

    Raises ValueError for no recordings.

    >>> from IPython.display import HTML  # doctest: +SKIP
    >>> HTML(machines_html([load("00"), load("01")]))  # doctest: +SKIP
    """
    if not recordings:
        raise ValueError("recordings is empty; give at least one, such as load('00')")
    by_device: dict[str, list[Recording]] = {}
    for recording in recordings:
        by_device.setdefault(recording.device, []).append(recording)
    columns = [_machine(of_device) for of_device in by_device.values()]
    rows = [_html_row("th", ["", *by_device])]
    rows += [_html_row("td", [name, *(column[name] for column in columns)]) for name in columns[0]]
    return _one_line(f'<div class="recorded"><table>{"".join(rows)}</table></div>')


def results_html(recording: Recording) -> str:
    """Return one line of HTML with a machine's results for a lesson, below its name; every text is
    escaped.

    Raises ValueError where an entry is no result of this library.

    >>> from IPython.display import HTML  # doctest: +SKIP
    >>> HTML(results_html(load("01")))  # doctest: +SKIP
    """
    blocks = [
        html.escape(recording.source),
        *(recording.result(name)._repr_html_() for name in recording.entries),
    ]
    return _one_line(" ".join(f'<div class="recorded">{block}</div>' for block in blocks))


def _machine(recordings: Sequence[Recording]) -> dict[str, str]:
    latest = recordings[-1]
    card = latest.card
    kinds = {"data": "L{} data", "instruction": "L{} instructions", "unified": "L{}"}
    caches = (
        f"{kinds[cache.kind].format(cache.level)} {units.text(cache.size_bytes, 'B', binary=True)}"
        for cache in card.caches or ()
    )
    return {
        "recorded for lessons": ", ".join(recording.lesson[:2] for recording in recordings),
        "last run": max(recording.date for recording in recordings),
        "cores": f"{card.usable_cores}",
        "caches": ", ".join(caches),
        "vector extensions": ", ".join(card.extensions or ()),
        "GPU": ", ".join(gpu.name for gpu in card.gpus or ()) or "none",
        "torch": latest.versions["torch"],
    }


def _one_line(text: str) -> str:
    """Return HTML in one line: in a page of Markdown a blank one ends it, and what follows is read
    as Markdown.
    """
    return " ".join(text.splitlines())


def _html_row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{html.escape(cell)}</{kind}>' for cell in cells)}</tr>"


def show(lesson: str, name: str, *, folder: Path | None = None) -> None:
    """Display the result ``name`` of ``lesson`` from ``folder`` (by default the course's), under
    its machine's name.

    Raises FileNotFoundError where no run is recorded, and ValueError for a name that was not
    recorded.

    >>> show("00", "products")  # doctest: +SKIP

    Lesson 11.
    """
    from IPython.display import display

    recording = load(lesson, folder=folder)
    result = recording.result(name)
    print(recording.source)
    display(result)


def measure_products() -> results.Result:
    """Compare ``a * b`` with ``a @ b`` on two square float32 matrices of side 1,024, on CUDA if
    there is one.
    """
    import torch

    from helpers import timing

    a, b = _matrices()
    return timing.compare(
        {"a * b": lambda: torch.mul(a, b), "a @ b": lambda: torch.matmul(a, b)}, budget_s=_BUDGET_S
    )


def measure_first_call() -> results.Result:
    """Time ``a @ b`` as :func:`measure_products` does, alone, with its first call apart."""
    from helpers import timing

    a, b = _matrices()
    return timing.measure(lambda: a @ b, budget_s=_BUDGET_S)


def _matrices() -> Sequence[Any]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [torch.rand(_SIDE, _SIDE, device=device) for _ in range(2)]


def _result_type(location: str) -> type[results.Result]:
    """Return the class at 'module:Class'; raise ValueError for anything but a result of this
    library.
    """
    module, _, type_name = location.partition(":")
    modules = {
        recorder.partition(":")[0]
        for recorders in RECORDERS.values()
        for recorder in recorders.values()
    }
    if module.startswith("helpers.") or module in modules:
        result_type = getattr(importlib.import_module(module), type_name, None)
        if isinstance(result_type, type) and issubclass(result_type, results.Result):
            return result_type
    raise ValueError(f"{location!r} is no result of this library")


def _public_name(kind: type) -> str:
    """Return 'package:Class' by the package whose face has the class, so that it may move its parts
    about.
    """
    package = kind.__module__
    while "." in package:
        package = package.rpartition(".")[0]
        if getattr(importlib.import_module(package), kind.__name__, None) is kind:
            return f"{package}:{kind.__name__}"
    return f"{kind.__module__}:{kind.__name__}"


def _device_name() -> str:
    card = hardware.machine_card()
    return card.gpus[0].name if card.gpus else card.model or "an unnamed processor"


def _versions() -> dict[str, str]:
    import numpy
    import torch

    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    # it is None where PyTorch is built for ROCm
    if torch.cuda.is_available() and torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    return versions


def _commit() -> str:
    """Return the commit of the code that measured, with '+' where files were changed since;
    'unknown' outside git.
    """
    file = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _folder(folder: Path | None) -> Path:
    if folder is None:
        return storage.course_file("recorded")
    return one_of("folder", folder, Path, "a pathlib.Path, or leave it out")


def _require_recorders(lesson: str) -> None:
    if not isinstance(lesson, str) or lesson not in RECORDERS:
        raise ValueError(
            f"lesson {short(lesson)} records nothing; these do: {', '.join(sorted(RECORDERS))}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the lessons named on the command line; exit status 2 for a lesson that records
    nothing.

    A lesson whose measuring fails is named, with its traceback, and the rest are recorded; the exit
    status is then 1.
    """
    parser = argparse.ArgumentParser(
        prog="python -m helpers.recorded", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "lessons", nargs="+", metavar="NN", help=f"lesson numbers: {', '.join(sorted(RECORDERS))}"
    )
    parser.add_argument("--folder", type=Path, help="where to write (default: course/recorded)")
    chosen = parser.parse_args(arguments)
    try:
        for lesson in chosen.lessons:
            _require_recorders(lesson)
        folder = _folder(chosen.folder)
    except ValueError as error:
        parser.error(str(error))
    except FileNotFoundError as error:
        parser.error(f"{error}; or give --folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        parser.error(f"nothing can be written to {folder} ({error}); give another with --folder")
    problems = []
    for lesson in chosen.lessons:
        try:
            recording = record(lesson)
        except Exception as error:
            # a machine with a GPU may be lent for minutes: the other lessons are still recorded
            traceback.print_exc()
            problems.append(f"lesson {lesson} is not recorded: {error or type(error).__name__}")
            continue
        path = save(recording, folder=folder)
        print(
            f"lesson {lesson}: {', '.join(recording.entries)} on {recording.device} -> {path.name}"
        )
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
