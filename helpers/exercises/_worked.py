"""The course's version of a function that the reader writes in a lesson: found, made and shown.

It lies in the notebook that the reader runs, in the metadata of the cell that the reader writes:
its name under ``yours``, and its source, packed, under ``worked``.

Lesson 00.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import html
import inspect
import json
import linecache
import os
import textwrap
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from helpers import console

_MARK = "_is_the_courses_version"


def is_stub(function: Callable[..., object]) -> bool:
    """Return True when nothing is written yet: the body is no more than a docstring and ``...``."""
    try:
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        # no Python, or no cell in which it stands
        return False
    if not isinstance(definition, ast.FunctionDef):
        return False
    body = definition.body[1:] if ast.get_docstring(definition) is not None else definition.body
    return all(ast.unparse(statement) == "..." for statement in body)


def is_from_course(function: Callable[..., object]) -> bool:
    """Return True when :func:`compile_source` has made it."""
    return getattr(function, _MARK, False)


def source_of(function: Callable[..., object]) -> tuple[str, str] | None:
    """Return the name under which the notebooks of the working folder hold the function, and the
    course's source.

    A function goes by its own name, or by one that it is bound to where it stands. The notebook
    that the reader runs comes before others, such as an older copy. None where no notebook holds
    it.
    """
    names = names_of(function)
    for cell in _cells(Path.cwd()):
        if "worked" in cell and cell.get("yours") in names:
            return cell["yours"], zlib.decompress(base64.b64decode(cell["worked"])).decode()
    return None


def names_of(function: Callable[..., object]) -> list[str]:
    """Return the names of a function: its own, and those to which it is bound where it was
    written.
    """
    inner = inspect.unwrap(function)
    bound = [name for name, value in _namespace(inner).items() if value is function]
    return list(dict.fromkeys([getattr(inner, "__name__", ""), *bound]))


def _cells(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the metadata of all cells of the notebooks in a folder."""
    # JupyterLab tells the kernel which notebook is its
    running = Path(os.environ.get("JPY_SESSION_NAME", "")).name
    for path in sorted(folder.glob("*.ipynb"), key=lambda path: (path.name != running, path.name)):
        # it is no notebook, or half of one
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = path.read_text(encoding="utf-8")
            cells = json.loads(text)["cells"] if '"worked"' in text else []
            yield from (cell["metadata"] for cell in cells)


def _namespace(function: Callable[..., object]) -> dict[str, Any]:
    return getattr(function, "__globals__", {})


def compile_source(
    name: str, source: str, function: Callable[..., object]
) -> Callable[..., object]:
    """Return the course's version, which takes the names that the reader's ``function`` takes; none
    is bound anew.
    """
    file = f"<the course's {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    bound: dict[str, Any] = {}
    exec(compile(source, file, "exec"), _namespace(inspect.unwrap(function)), bound)
    setattr(bound[name], _MARK, True)
    return bound[name]


def own_source(function: Callable[..., object]) -> str:
    """Return the text from which :func:`compile_source` has made a function."""
    return "".join(linecache.getlines(inspect.unwrap(function).__code__.co_filename))


def show(source: str) -> None:
    """Display a folded "Show me" with the source; nothing where nobody watches."""
    if not console.is_headless():
        from IPython.display import display

        details = f"<details><summary>Show me</summary><pre>{html.escape(source)}</pre></details>"
        display({"text/plain": "Show me", "text/html": details}, raw=True)
