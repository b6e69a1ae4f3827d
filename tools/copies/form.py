"""The form in which readers and students get the course: lessons to write in, appendices,
exercises, pages, and more.

Made from the built notebooks with what the course's own environment brings: no tool that builds a
lesson is imported.
"""

from __future__ import annotations

import posixpath
import re
from functools import lru_cache
from pathlib import Path, PurePosixPath

import nbformat
from ipykernel.ipkernel import IPythonKernel
from jupyter_client.kernelspec import KernelSpecManager
from nbformat.v4 import new_markdown_cell

from tools.authoring import yours
from tools.authoring.cells import AuthoringError

LESSONS = "[0-9][0-9]_*.ipynb"
PARTS = (LESSONS, "appendix/*.ipynb", "exercises/*.ipynb", "*.md", "recorded/**/*.json",
         "scripts/*.py", "map/*.svg", "source/checks/[0-9][0-9]_*.py")  # fmt: skip
KERNEL = "python3"
# the keys of a notebook's metadata that JupyterLab writes itself
OF_THE_KERNEL = ("kernelspec", "language_info")

_BRACKET, _ESCAPED = re.compile(r"([\\\[\]])"), r"\\\1"
_LINK = re.compile(r"\[((?:[^\[\]\\]|\\.)*)\]\(([^()\s]+)\)")


def files(course: Path) -> dict[str, bytes]:
    """Return the files of the reader's form of the folder ``course``, by their paths in it.

    Raises AuthoringError where a notebook cannot be read.
    """
    paths = sorted({path for part in PARTS for path in course.glob(part)})
    names = {path: path.relative_to(course).as_posix() for path in paths}
    return {name.removeprefix("source/"): _file(path, Path(name)) for path, name in names.items()}


def _file(path: Path, name: Path) -> bytes:
    if path.suffix == ".md":
        return _without_outside_links(path.read_text(encoding="utf-8"), name).encode()
    if path.suffix != ".ipynb":
        return path.read_bytes()
    try:
        copy = notebook(nbformat.read(path, as_version=4))
    except (ValueError, nbformat.ValidationError, nbformat.reader.NotJSONError) as error:
        raise AuthoringError(
            f"{path.name} is not a notebook ({error}); take it from the course again"
        ) from error
    for cell in copy.cells:
        if cell.cell_type == "markdown":
            cell.source = _without_outside_links(cell.source, name)
    copy.metadata.update(_kernel())
    return f"{nbformat.writes(copy)}\n".encode()


def notebook(built: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a built notebook in the reader's form: without outputs, and with stubs where the
    reader writes.

    The pictures of an exercise are given: each is attached to a cell below the code that draws it,
    which is folded.
    """
    copy = yours.as_copy(built)
    cells = []
    for built_cell, cell in zip(built.cells, copy.cells, strict=True):
        pictures = _pictures(built_cell) if "nbgrader" in built_cell.metadata else []
        if pictures:
            cell.metadata["jupyter"] = {"source_hidden": True, "outputs_hidden": True}
        cells += [cell, *pictures]
    copy.cells = cells
    return copy


def _pictures(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return a cell for each picture that a cell shows."""
    shown_data = [
        output.data for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    return [
        new_markdown_cell(
            f"![{_BRACKET.sub(_ESCAPED, data['text/plain'])}](attachment:picture.png)",
            id=f"{cell.id}-picture-{number}",
            attachments={"picture.png": {"image/png": data["image/png"]}},
            metadata={"deletable": False, "editable": False},
        )
        for number, data in enumerate(shown_data, start=1)
    ]


def _without_outside_links(text: str, name: Path) -> str:
    """Return a page's text, its links out of the course's folder as words: JupyterLab opens nothing
    above its root.
    """

    def link_or_words(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(PurePosixPath(name).parent, link[2]))
        return link[1] if target.startswith("../") else link[0]

    return _LINK.sub(link_or_words, text)


@lru_cache(maxsize=1)
def _kernel() -> dict[str, dict]:
    """Return the metadata that JupyterLab writes into a notebook when this machine's kernel has
    started.

    With other metadata a notebook that was only opened would count as changed.
    """
    spec = KernelSpecManager().get_kernel_spec(KERNEL)
    kernel = {"name": KERNEL, "display_name": spec.display_name, "language": spec.language}
    return dict(zip(OF_THE_KERNEL, (kernel, dict(IPythonKernel.language_info)), strict=True))
