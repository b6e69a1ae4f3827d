"""Run a notebook's cells in a kernel of this Python, headless, and say clearly where one fails."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import ipykernel.kernelspec
import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from helpers import console
from tools.authoring.environment import headless
from tools.authoring.lesson import AuthoringError, Lesson

CELL_TIMEOUT_S = 120
STARTUP_TIMEOUT_S = 120
_CELL_LINE = re.compile(r"Cell In\[\d+\], line (\d+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class _ThisPython(KernelSpecManager):
    """Starts the kernel of the Python that runs the build, whatever kernels are installed on the
    machine.
    """

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        del kernel_name
        return KernelSpec(resource_dir="", **ipykernel.kernelspec.get_kernel_dict())


def run(
    notebook: nbformat.NotebookNode,
    lesson: Lesson,
    *,
    folder: Path,
    cell_timeout_s: int = CELL_TIMEOUT_S,
) -> nbformat.NotebookNode:
    """Run every code cell of ``notebook`` in a fresh kernel that works in ``folder``, and return
    the notebook.

    The library's cache is a temporary folder. Raises AuthoringError, naming the lesson, the line of
    the source and the exception, when a cell raises, takes longer than ``cell_timeout_s`` seconds,
    or kills the kernel.
    """
    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_name="python3", kernel_spec_manager=_ThisPython()),
        timeout=cell_timeout_s,
        startup_timeout=STARTUP_TIMEOUT_S,
        record_timing=False,
        store_widget_state=False,
    )
    with tempfile.TemporaryDirectory(prefix="course-build-", ignore_cleanup_errors=True) as cache:
        environment = {**os.environ, **headless(cache_folder=cache)}
        log = Path(cache, "kernel.log")
        with (
            log.open("wb") as stderr,
            client.setup_kernel(env=environment, cwd=str(folder), stderr=stderr, cleanup_kc=True),
        ):
            for index in console.track(range(len(notebook.cells)), lesson.label, unit="cell"):
                _execute(client, index, lesson, cell_timeout_s)
    return client.nb


def _execute(client: NotebookClient, index: int, lesson: Lesson, cell_timeout_s: int) -> None:
    where = f"{lesson.label}: the cell at line {lesson.cells[index].line} of {lesson.name}.py"
    try:
        client.execute_cell(client.nb.cells[index], index)
    except CellTimeoutError as error:
        advice = "make it smaller, or look for a wait that never ends"
        raise AuthoringError(f"{where} ran longer than {cell_timeout_s} s; {advice}") from error
    except CellExecutionError as error:
        line = _CELL_LINE.findall(_COLOURS.sub("", str(error)))
        within = f", its line {line[-1]}," if line else ""
        raise AuthoringError(
            f"{where}{within} raised {error.ename}: {_COLOURS.sub('', error.evalue)}"
        ) from error
    except DeadKernelError as error:
        advice = "out of memory, or a crash in compiled code; run it under helpers.isolation"
        raise AuthoringError(f"{where} killed its kernel ({advice})") from error
