"""Submissions to grade: honest ones, and ones that try everything.

Lesson 02's exercises, which start soonest.
"""

from __future__ import annotations

from pathlib import Path

import nbformat

from tools.authoring.course import HERE
from tools.exercises import sheets
from tools.grading.sandbox import Limits

(SHEET,) = sheets.load(HERE, ["02"])
ASSIGNMENT = SHEET.lesson.name
FIRST, KERNEL, LAST = SHEET.exercises
POINTS = {name: SHEET.cell("checks", name).metadata["points"] for name in SHEET.exercises}
FULL = dict(POINTS)
# The clock has patience, since a machine that runs all tests at once may stand still for minutes.
LIMITS = Limits(step_s=8.0, patience=60.0, total_s=1200.0, memory_bytes=3 * 2**29, processes=40)
HEAD = "def roofline_time(flops, moved_bytes, peak, bandwidth, call_s):\n"


def solution(name: str) -> str:
    return SHEET.cell("answer", name).source


def notebook(answers: dict[str, str] | None = None, *, before: str = "") -> nbformat.NotebookNode:
    """Return a notebook with the right answers, ``answers`` in place of some; ``before`` is a first
    cell.
    """
    made = sheets.released(SHEET)
    given = {name: solution(name) for name in SHEET.exercises} | (answers or {})
    for cell in made.cells:
        cell.source = given.get(cell.metadata.nbgrader.grade_id, cell.source)
    if before:
        made.cells.insert(0, nbformat.v4.new_code_cell(before))
    return made


def hand_in(folder: Path, student: str, content: nbformat.NotebookNode | bytes) -> Path:
    path = folder / student / f"{ASSIGNMENT}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_bytes(content if isinstance(content, bytes) else nbformat.writes(content).encode())
    return path


def first(body: str) -> dict[str, str]:
    """Return the first answer with ``body`` in its function."""
    return {FIRST: HEAD + "".join(f"    {line}\n" for line in body.splitlines())}


# What the first answer does, and what its student reads of it; the others are right.
STOPPED = {
    "hangs": (first("while True: pass"), "it ran for more than "),
    "ends": (first("import os\nos._exit(0)"), "it ended its own process (exit code 0)"),
    "crashes": (first("import ctypes\nctypes.string_at(0)"), "it ended its own process"),
    "fills": (
        first(
            "import os, time\nfor _ in range(4): os.fork()\nheld = b'x' * "
            "400_000_000\ntime.sleep(30)"
        ),
        "GiB of memory",
    ),
    "floods": (
        first(
            "import gc, socket\nfor one in gc.get_objects():\n    if isinstance(one, "
            "socket.socket):\n        one.sendall(b'\\xff' * 100_000)"
        ),
        "a message of 4294967295 bytes",
    ),
}
GUARDED = {
    "takes": (first("held = bytearray(10**11)"), "raised MemoryError"),
    "deletes": (
        first(
            "import os, shutil, tempfile, helpers\nfolder = "
            "os.path.dirname(helpers.__file__)\nscratch = tempfile.gettempdir()\nown = [] if "
            "folder.startswith(scratch + os.sep) else [scratch]  # else the whole course lies "
            "there\nfor one in (folder, '/usr/bin', '/grader', *own, '/dev'): shutil.rmtree(one, "
            "ignore_errors=True)\nreturn [len(os.listdir(one)) > 3 for one in (folder, '/usr/bin')]"
        ),
        "gave [True, True], expected",
    ),
    "prints": (
        first(
            "import os, sys\nfor _ in range(1000): os.write(1, b'spam' * 250_000)\nreturn 'printed'"
        ),
        "gave 'printed', expected",
    ),
    "huge": (first("return 'x' * 10**6"), "gave 'xxxxx"),
    "deep": (
        first("deep = []\nfor _ in range(10**5): deep = [deep]\nreturn deep"),
        "raised RecursionError",
    ),
    "claims": (
        first(
            "class Yes(float):\n    def __eq__(self, other): return True\n    __hash__ = "
            "None\nreturn Yes(1)"
        ),
        "gave 1, expected",
    ),
}
# The second answer: what it asks for would be made on the checks' side.
LAVISH = {
    KERNEL: "def shared_vector(thread, a, b, c):\n"
    "    for n in range(3):\n        thread.shared(str(n), 10**4, 10**4)\n    yield\n"
}
FORKS = first("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")

PATCH = """
import sys
from helpers import exercises
from helpers.exercises import Checks
Checks.score = lambda self: 99.0
Checks.report = lambda self: print("all goals reached")
Checks.returns = lambda *a, **k: None
exercises.agree = lambda got, expected: True
import helpers.exercises
helpers.exercises.agree = lambda got, expected: True
import runner, wire
original = wire.send
def more(channel, message):
    if "value" in message:
        message = {"value": message["value"], "score": 99, "ran": "", "changed": {"l": [2, 4, 6, 8, 10]}}
    original(channel, message)
wire.send = more
"""  # noqa: E501

SEARCH = """
import builtins, os, socket
starts = ("", "/proc/1/root", "/proc/self/root")
seen = [path for path in {paths!r} for start in starts if os.path.lexists(start + path)]
try:
    socket.create_connection(("127.0.0.1", {port}), 2)
    seen.append("network")
except OSError:
    pass
seen += [name for name in os.environ if name == "COURSE_SECRET"]
seen += [name for name in os.listdir("/proc") if name.isdigit() and int(name) > 20]
builtins.seen = seen
"""
