"""Cells that the reader writes: what a source states of them, and the stub that the reader's copy
holds in their place.

A code cell of a lesson with ``yours="name"`` in its metadata holds one function of that name with a
docstring, and nothing else. The built notebook shows this worked version; in the reader's copy the
body is the docstring and ``...``, and the worked version lies in the cell's metadata, where
:meth:`helpers.exercises.Checks.settle` finds it.

The code cell ``checks="name"`` follows. Cells ``wrong="name" says="..."`` are plausible wrong
versions, with a part of what the checks say to them; cells ``right="name" style=1`` (and 2) are
right answers in another style, with which the lesson must run to its end. Both are for the tests
alone, as those of exercises are.
"""

from __future__ import annotations

import ast
import base64
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import nbformat

from tools.authoring.cells import AuthoringError, Cell

TAG = "yours"
FEWEST_WRONG = 2
STYLES = (1, 2)  # in which a lesson's functions change together, so that two runs prove them


@dataclass(frozen=True)
class Wrong:
    """A plausible wrong answer: to the exercise, or of the function in a lesson, that is called
    ``name``.

    ``says`` is a part of what the visible checks answer to it, ``gets`` the points that all checks
    leave it: None where the source does not state them, and in a lesson, which gives no points.
    """

    name: str
    says: str
    gets: int | None
    cell: Cell


@dataclass(frozen=True)
class Right:
    """A right answer of the function ``name`` of a lesson in another idiom or another type, the
    ``style`` 1 or 2.
    """

    name: str
    style: int | None
    cell: Cell


def split_notebook_cells(
    cells: Sequence[Cell], where: str
) -> tuple[tuple[Cell, ...], tuple[Wrong, ...]]:
    """Return the cells of the source ``where`` that its notebook holds, and the wrong answers,
    which it does not.
    """
    notebook_cells = tuple(cell for cell in cells if not {"wrong", "right"} & set(cell.metadata))
    return notebook_cells, tuple(_wrong(cell, where) for cell in cells if "wrong" in cell.metadata)


def right_answers(cells: Sequence[Cell], where: str) -> tuple[Right, ...]:
    """Return the right answers in another style that a source states.

    Raises AuthoringError for one that is not in a style of :data:`STYLES`, or is of no function of
    the lesson.
    """
    function_names = {cell.metadata["yours"] for cell in cells if "yours" in cell.metadata}
    answers = tuple(
        Right(str(cell.metadata["right"]), cell.metadata.get("style"), cell)
        for cell in cells
        if "right" in cell.metadata
    )
    for answer in answers:
        here = f"{where}, line {answer.cell.line}: right={answer.name!r}"
        if answer.name not in function_names:
            raise AuthoringError(f"{here}; no cell has this yours=...")
        if answer.style not in STYLES:
            raise AuthoringError(
                f"{here} has style={answer.style!r}; it is one of {', '.join(map(str, STYLES))}"
            )
    return answers


def _wrong(cell: Cell, where: str) -> Wrong:
    here, says = f"{where}, line {cell.line}", cell.metadata.get("says")
    if cell.kind != "code" or not isinstance(says, str) or not says.strip():
        example = '# %% wrong="units" says="a part of the message"'
        raise AuthoringError(f"{here}: a wrong answer is a code cell, {example}")
    gets = cell.metadata.get("gets")
    if gets is not None and (type(gets) is not int or gets < 0):
        raise AuthoringError(
            f"{here}: gets={gets!r}; state the points that are left, such as gets=2"
        )
    return Wrong(str(cell.metadata["wrong"]), says, gets, cell)


def refuse_ill_formed(cells: Sequence[Cell], wrong: Sequence[Wrong], where: str) -> None:
    """Raise AuthoringError for cells of a lesson that its reader cannot write, or whose checks are
    not there.
    """
    function_names: set[str] = set()
    for index, cell in enumerate(cells):
        here = f"{where}, line {cell.line}"
        if (TAG in cell.tags) != ("yours" in cell.metadata):
            example = '# %% tags=["yours"] yours="the_name_of_its_function"'
            raise AuthoringError(f"{here}: a cell that the reader writes begins {example}")
        if "yours" in cell.metadata:
            function_names.add(_name(cell, function_names, here))
            _refuse_without_checks(cell, cells[index + 1 : index + 3], wrong, here)
        elif "checks" in cell.metadata and cell.metadata["checks"] not in function_names:
            raise AuthoringError(
                f"{here}: checks={cell.metadata['checks']!r}; no cell above has this yours=..."
            )
    checked_names = [cell.metadata["checks"] for cell in cells if "checks" in cell.metadata]
    for name in function_names:
        if checked_names.count(name) > 1:
            raise AuthoringError(
                f"{where}: {checked_names.count(name)} cells have checks={name!r}; put the checks "
                "into one"
            )
    for wrong_answer in wrong:
        here = f"{where}, line {wrong_answer.cell.line}"
        if wrong_answer.name not in function_names:
            raise AuthoringError(f"{here}: wrong={wrong_answer.name!r}; no cell has this yours=...")
        if wrong_answer.gets is not None:
            raise AuthoringError(
                f"{here}: gets={wrong_answer.gets}; a lesson gives no points, remove it"
            )


def _name(cell: Cell, function_names: set[str], here: str) -> str:
    name = cell.metadata["yours"]
    if cell.kind != "code":
        raise AuthoringError(
            f"{here}: yours={name!r} on a {cell.kind} cell; it belongs to a code cell"
        )
    try:
        function_name = function(cell.source).name
    except AuthoringError as error:
        raise AuthoringError(f"{here}: {error}") from error
    if function_name != name:
        raise AuthoringError(
            f"{here}: yours={name!r}, but its function is {function_name}; give both one name"
        )
    if name in function_names:
        raise AuthoringError(
            f"{here}: yours={name!r} stands twice; give each function a name of its own"
        )
    return name


def _refuse_without_checks(
    cell: Cell, after: Sequence[Cell], wrong: Sequence[Wrong], here: str
) -> None:
    name = cell.metadata["yours"]
    next_cells = after[1:] if after and after[0].kind == "markdown" else after
    if (
        not next_cells
        or next_cells[0].kind != "code"
        or next_cells[0].metadata.get("checks") != name
    ):
        message = f'let the cell # %% checks="{name}" follow, after one markdown cell at most'
        raise AuthoringError(f"{here}: no checks of {name}; {message}")
    if not re.search(
        rf"(?m)^{name} = (?:\w+\.settle\(\)|check\({name}\b[^()]*\))$", next_cells[0].source
    ):
        message = f"write {name} = check({name}), where check = exercises.checks_of(...)"
        raise AuthoringError(
            f"{here}: its checks do not say which {name} the cells below use; {message}"
        )
    count = sum(wrong_answer.name == name for wrong_answer in wrong)
    if count < FEWEST_WRONG:
        message = f'write at least {FEWEST_WRONG}, each # %% wrong="{name}" says="..."'
        raise AuthoringError(f"{here}: {count} wrong versions of {name}; {message}")


def function(source: str) -> ast.FunctionDef:
    """Return the function of a cell that the reader writes.

    Raises AuthoringError where the cell holds anything but one function with a docstring on lines
    of its own.
    """
    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise AuthoringError(f"it is not Python: {error.msg}") from error
    definition = statements[0] if len(statements) == 1 else None
    if not isinstance(definition, ast.FunctionDef):
        function_count = sum(isinstance(statement, ast.FunctionDef) for statement in statements)
        raise AuthoringError(
            f"it holds {function_count} functions and {len(statements) - function_count} other "
            "statements; write one function, and the rest into the cells above"
        )
    if ast.get_docstring(definition) is None or definition.body[0].lineno == definition.lineno:
        raise AuthoringError(
            f"{definition.name} has no docstring on a line of its own; say there what it returns"
        )
    return definition


def stub(source: str) -> str:
    """Return a cell's text up to the end of the docstring, and then ``...``: what stands above the
    body stays as it is.

    Raises AuthoringError as :func:`function` does.
    """
    docstring = function(source).body[0]
    lines = source.splitlines()[: docstring.end_lineno]
    lines[-1] = lines[-1].encode()[: docstring.end_col_offset].decode()  # ast counts bytes
    return "\n".join([*lines, f"{' ' * docstring.col_offset}..."])


def pack(source: str) -> str:
    """Return a text as the metadata of the reader's copy holds it: nothing to read by accident."""
    return base64.b64encode(zlib.compress(source.encode())).decode()


def as_copy(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a built notebook as its reader gets it: not run, with a stub in each cell that the
    reader writes.
    """
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if "yours" in cell.metadata:
            cell.metadata["worked"] = pack(cell.source)
            cell.source = stub(cell.source)
    return copy
