"""A class of sixty, in all the ways in which files come: folders, Canvas, Moodle; innocent oddities
and attacks.

``python -m tests.course.grading_class FOLDER`` writes it with its roster;
``make grade SUBMISSIONS=FOLDER/submissions ROSTER=FOLDER/roster.csv`` grades it, and
``python -m tests.course.grading_class FOLDER check`` says what is wrong.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tests.course.grading_samples import (
    ASSIGNMENT,
    FIRST,
    FULL,
    HEAD,
    KERNEL,
    SHEET,
    first,
    notebook,
    solution,
)
from tools.exercises import sheets

PLAIN, CANVAS, MOODLE = "plain", "canvas", "moodle"
NAME = f"{ASSIGNMENT}.ipynb"
NOT_FIRST = FULL | {FIRST: 0}
NOTHING = dict.fromkeys(FULL, 0)
STUBS = {cell.metadata.nbgrader.grade_id: cell.source for cell in sheets.released(SHEET).cells}
WRONG = next(one for one in SHEET.wrong if one.name == FIRST and one.gets == 2)
_FORMS = (PLAIN, CANVAS, MOODLE)


@dataclass(frozen=True)
class Case:
    """What one student hands in: ``made`` the file, its ``name``, the marks due (None: no file of
    ours), the note.
    """

    made: Callable[[], nbformat.NotebookNode | bytes]
    due: dict[str, float] | None = None
    note: str = ""
    name: str = NAME
    beside: bytes | None = None  # timestamp.txt


def _at(made: nbformat.NotebookNode, name: str) -> int:
    return next(
        i
        for i, cell in enumerate(made.cells)
        if cell.metadata.get("nbgrader", {}).get("grade_id") == name
    )


def _cells(*sources: str, name: str = FIRST) -> Callable[[], nbformat.NotebookNode]:
    def make() -> nbformat.NotebookNode:
        made = notebook()
        at = _at(made, name)
        made.cells[at : at + 1] = [
            nbformat.from_dict({**made.cells[at], "source": one, "id": f"copy-{number}"})
            for number, one in enumerate(sources)
        ]
        return made

    return make


def _changed(
    change: Callable[[nbformat.NotebookNode], object], **given: object
) -> Callable[[], nbformat.NotebookNode]:
    def make() -> nbformat.NotebookNode:
        made = notebook(**given)  # type: ignore[arg-type]
        change(made)
        return made

    return make


def _no_marks(made: nbformat.NotebookNode) -> None:
    for cell in made.cells:
        cell.metadata = nbformat.from_dict({})


def _no_ids(made: nbformat.NotebookNode) -> None:
    _no_marks(made)
    for number, cell in enumerate(made.cells):
        cell.id = f"new-{number}"


def _raw(
    change: Callable[[dict], object] = lambda _: None,
    *,
    text: Callable[[str], str] = str,
    **given: object,
):
    def make() -> bytes:
        content = json.loads(nbformat.writes(notebook(**given)))  # type: ignore[arg-type]
        change(content)
        return text(json.dumps(content)).encode()

    return make


def _colab(content: dict) -> None:
    content["nbformat_minor"] = 0
    for cell in content["cells"]:
        cell["metadata"]["id"] = cell.pop("id")


def _before(source: str) -> Callable[[], nbformat.NotebookNode]:
    return lambda: notebook(before=source)


def _with(answers: dict[str, str], before: str = "") -> Callable[[], nbformat.NotebookNode]:
    return lambda: notebook(answers, before=before)


def _float32() -> str:
    return (
        f"import numpy as np\nimport torch\n{solution(FIRST)}\n_right = roofline_time\n{HEAD}"
        "    seconds, regime = _right(flops, moved_bytes, peak, bandwidth, call_s)\n"
        "    return torch.tensor(seconds).item(), regime\n"
    )


_own = nbformat.v4.new_code_cell
_CHECKS = f"{FIRST}_checks"
_LOOK = "import matplotlib.pyplot as plt, pandas as pd\nplt.plot([1, 2])\npd.DataFrame({'a': [1]})"
_PNG_BOMB = """
import base64, struct, sys
big = b"\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\rIHDR" + struct.pack(">II", 65000, 65000) + b"\\x08\\2\\0\\0\\0"
from IPython.display import display
for _ in range(500): display({"image/png": base64.b64encode(big).decode(), "text/html": "<script>1</script>"}, raw=True)
"""  # noqa: E501
_FORGES = """
import wire
original = wire.send
def more(channel, message):
    if "ran" in message:
        junk = [{"printed": 5}, {"png": [1]}, 7, {"html": "<table>" * 9000}, {"text": "\\ud83d"}]
        message = {"ran": "", "shown": junk * 100}
    original(channel, message)
wire.send = more
"""
_RAW_BYTES = first(
    'import gc, socket, struct\ntext = b\'{"raised": "E", "said": "\\xed\\xa0\\xbd"}\'\n'
    "for one in gc.get_objects():\n    if isinstance(one, socket.socket):\n"
    "        one.sendall(struct.pack('>I', len(text)) + text)\nimport os\nos._exit(0)"
)
_STDOUT = """
import sys, builtins
class No:
    def write(self, _): raise SystemExit
sys.stdout = No()
builtins.print = None
"""
_FIGURE = """
import matplotlib.pyplot as plt
class F(plt.Figure):
    def savefig(self, *a, **k): raise OSError
plt.figure(FigureClass=F)
"""
_TOLIST = first(
    "class Slow:\n    dtype = shape = 1\n    def tolist(self):\n        while True: pass\nreturn "
    "Slow()"
)

INNOCENT: dict[str, Case] = {
    "honest": Case(notebook, FULL),
    "below": Case(_cells(STUBS[FIRST], solution(FIRST)), FULL),
    "above": Case(_cells(solution(FIRST), STUBS[FIRST]), FULL),
    "attempt": Case(_cells(f"{HEAD}    return 1", solution(FIRST)), FULL, "came in 2 cells"),
    "split": Case(_cells("import math", solution(FIRST)), FULL, "came in 2 cells"),
    "thrice": Case(
        _cells("import os", "x = 1", solution(KERNEL), name=KERNEL), FULL, "came in 3 cells"
    ),
    "no_marks": Case(_changed(_no_marks), FULL, "found by their ids"),
    "no_ids": Case(_changed(_no_ids), FULL, "found by what stands in them"),
    "blank_id": Case(
        _changed(
            lambda made: made.cells[_at(made, FIRST)].metadata.nbgrader.update(grade_id=f"{FIRST} ")
        ),
        FULL,
    ),
    "browser": Case(notebook, FULL, "handed in as", f"{ASSIGNMENT} (1).ipynb"),
    "canvas_again": Case(notebook, FULL, "handed in as", f"{ASSIGNMENT}-1.ipynb"),
    "windows": Case(notebook, FULL, "handed in as", f"{ASSIGNMENT}.IPYNB"),
    "copy": Case(notebook, FULL, "handed in as", f"{ASSIGNMENT} - Copy.ipynb"),
    "float32": Case(_with({FIRST: _float32()}), FULL),
    "reversed": Case(_changed(lambda made: made.cells.reverse()), FULL),
    "no_checks": Case(_changed(lambda made: made.cells.pop(_at(made, _CHECKS))), FULL),
    "crlf": Case(_raw(text=lambda text: text.replace("\\n", "\\r\\n")), FULL),
    "bom": Case(_raw(text=lambda text: "\ufeff" + text), FULL),
    "colab": Case(_raw(_colab), FULL),
    "vscode": Case(
        _raw(lambda content: content["metadata"].update(vscode={"x": 1}, widgets={"y": {}})), FULL
    ),
    "plots": Case(_before(_LOOK), FULL),
    "prints": Case(_before("for n in range(10**5): print('line', n)"), FULL),
    "magics": Case(_before("%matplotlib inline\n!ls /\n%time x = 1"), FULL),
    "asks": Case(_before("name = input()"), FULL),
    "lines": Case(_before("\n    " * 3_000 + "\nx = 1"), FULL),
    "emoji": Case(_with({FIRST: f"# \U0001f600 läuft\n{solution(FIRST)}"}), FULL),
    "markdown": Case(
        _changed(lambda made: made.cells[_at(made, FIRST)].update(cell_type="markdown")), FULL
    ),
    "german": Case(notebook, FULL, "timestamp.txt holds no date", beside=b"22.11.2026 um 10 Uhr"),
    "dated": Case(notebook, FULL, beside=b"2026-11-22 10:00:00 UTC"),
    "wrote": Case(
        _changed(lambda made: made.cells[_at(made, SHEET.written[0])].update(source="Memory.")),
        FULL,
    ),
    "half_right": Case(_with({FIRST: WRONG.cell.source}), FULL | {FIRST: WRONG.gets}),
    "nothing": Case(lambda: sheets.released(SHEET), NOTHING),
    "syntax": Case(_with({FIRST: f"{HEAD}    return (1"}), NOT_FIRST),
    "undefined": Case(_with({FIRST: f"{HEAD}    return answer"}), NOT_FIRST),
    "half_emoji": Case(
        _with(first("import json\nraise ValueError(json.loads('\"\\\\ud83d\"'))")), NOT_FIRST
    ),
    "homework": Case(notebook, None, "holds 'homework.ipynb'", "homework.ipynb"),
    "essay": Case(lambda: b"%PDF", None, "", "essay.pdf"),
    "two": Case(notebook, None, "of which one may be meant", f"{ASSIGNMENT} (1).ipynb"),
}
HOSTILE: dict[str, Case] = {
    "checks": Case(
        _changed(
            lambda made: made.cells[_at(made, _CHECKS)].update(source="99"),
            answers=first("return 9"),
        ),
        NOT_FIRST,
        f"the checks of {FIRST} were changed",
    ),
    "hangs": Case(_with(first("while True: pass")), NOT_FIRST, "it ran for more than"),
    "leaves": Case(_with(first("import os\nos._exit(0)")), NOT_FIRST, "ended its own process"),
    "blanks": Case(_before("\n " * 400_000 + "\nx = 1"), FULL),
    "indents": Case(_before(("\n" * 390 + "y = 2") * 1500), FULL),
    "quotes": Case(_before("x = 1 #" + "'\"'" * 200_000), FULL),
    "parentheses": Case(_before("x = '''" + "(" * 300_000 + "'''"), FULL),
    "pictures": Case(_before(_PNG_BOMB), FULL),
    "forges": Case(_before(_FORGES), FULL),
    "drowns": Case(
        _before(_FORGES.replace("junk * 100", "junk * 1000")),
        NOTHING,
        "a cell was stopped: it ended its",
    ),
    "raw_bytes": Case(_with(_RAW_BYTES), NOT_FIRST),
    "no_stdout": Case(_before(_STDOUT), FULL),
    "tolist": Case(_with(_TOLIST), NOT_FIRST),
    "copies": Case(
        _cells(*[f"x{n} = {n}" for n in range(900)], solution(FIRST)), FULL, "came in 901 cells"
    ),
    "many": Case(
        _changed(lambda made: made.cells.extend(_own("x") for _ in range(2000))), NOTHING, "1,000"
    ),
    "odd_ids": Case(
        _raw(lambda content: [cell.update(id={"a": [1]}) for cell in content["cells"]]), FULL
    ),
    "odd_marks": Case(
        _raw(lambda content: content["cells"][0].update(metadata={"nbgrader": [1] * 9})), FULL
    ),
    "long_id": Case(
        _raw(
            lambda content: content["cells"][0]["metadata"].update(
                nbgrader={"grade_id": "x" * 10**6}
            )
        ),
        FULL,
    ),
    "stamp": Case(notebook, FULL, "timestamp.txt holds no date", beside=b"\xff" * 10**7),
    "year_one": Case(
        notebook, FULL, "timestamp.txt holds no date", beside=b"0001-01-01 00:00:00 Europe/Berlin"
    ),
    "deep": Case(lambda: b"[" * 10**6, NOTHING, "holds no JSON"),
    "figure": Case(_before(_FIGURE), FULL),
}
CLASS = INNOCENT | HOSTILE
SMALL = (
    "below",
    "split",
    "no_ids",
    "browser",
    "float32",
    "half_emoji",
    "wrote",
    "homework",
    "checks",
    "forges",
)


def key(student: str) -> str:
    """Return the name of a student's folder, as the form in which the file comes makes it."""
    number = list(CLASS).index(student)
    plain = "".join(letter for letter in student if letter.isalnum())
    return student if _form(student) == PLAIN else f"{plain}_{1000 + number}"


def _form(student: str) -> str:
    return PLAIN if CLASS[student].beside is not None else _FORMS[list(CLASS).index(student) % 3]


def hand_in_class(folder: Path, students: tuple[str, ...] = tuple(CLASS)) -> Path:
    """Write the submissions to ``folder``/submissions, and the roster, which it returns."""
    rows = []
    for student in students:
        case, number = CLASS[student], 1000 + list(CLASS).index(student)
        made = case.made()
        content = made if isinstance(made, bytes) else nbformat.writes(made).encode()
        home = folder / "submissions"
        plain = "".join(letter for letter in student if letter.isalnum())
        paths = {
            PLAIN: home / student / case.name,
            CANVAS: home / f"{plain}_{number}_77{number}_{case.name}",
            MOODLE: home / f"{plain}_{number}_assignsubmission_file" / case.name,
        }
        path = paths[_form(student)]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if student == "two":
            path.with_name(path.name.replace("(1)", "(2)")).write_bytes(content)
        if case.beside is not None:
            path.with_name("timestamp.txt").write_bytes(case.beside)
        rows.append((f"Name of {student}", student if _form(student) == PLAIN else str(number)))
    rows.append(("Absent", "nobody"))
    roster = folder / "roster.csv"
    with roster.open("w", newline="") as file:
        csv.writer(file).writerows([("name", "id"), *rows])
    return roster


def wrong(into: Path, students: tuple[str, ...] = tuple(CLASS)) -> list[str]:
    """Return what is not as it is due in the grades.csv of the class."""
    with (into / "grades.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    found = [] if rows["Absent"]["note"] == "not marked: handed nothing in" else ["Absent"]
    for student in students:
        case, row = CLASS[student], rows.get(f"Name of {student}")
        if row is None:
            found.append(f"{student}: no row")
        elif case.due is None:
            found += (
                []
                if row["score"] == "" and row["note"].startswith("not marked: ")
                else [f"{student}: {row}"]
            )
        elif {name: float(row[name]) for name in FULL} != case.due or case.note not in row["note"]:
            found.append(f"{student}: {row}")
        elif not (into / "feedback" / row["student"] / ASSIGNMENT / f"{ASSIGNMENT}.html").is_file():
            found.append(f"{student}: no page")
    return found


if __name__ == "__main__":
    if "check" in sys.argv:
        sys.exit(os.linesep.join(wrong(Path(sys.argv[1], "submissions_graded"))) or None)
    hand_in_class(Path(sys.argv[1]))
    print(f"{len(CLASS)} students")
