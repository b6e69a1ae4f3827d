"""Read a lesson's one source: a percent script whose header holds the lesson's metadata."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jupytext
import nbformat
import yaml

STAGES = ("predict", "run", "look", "explain")
FILE_NAME = re.compile(r"(?P<number>\d\d)_(?P<slug>[a-z][a-z0-9_]*)\.py")

_FIELDS = {
    "number": 'the two digits of the file name in quotes: "00"',
    "title": "a few words",
    "minutes": "a whole number, 1 to 600",
    "needs": 'a list of lesson numbers in quotes ("00") and of words; [] for nothing',
    "objectives": "a list, each written 'predict|predicted the time of ...'",
}
_MARKER = re.compile(r"^\s*#\s*%%(\s|$)")
_JUPYTEXT_KEYS = ("lines_to_next_cell",)


class AuthoringError(Exception):
    """A lesson cannot be read, built or checked; the text says which, where, and what to do."""


@dataclass(frozen=True)
class Objective:
    """What a reader can do after a lesson, in the two tenses in which the lesson says it."""

    verb: str
    past: str
    rest: str

    @property
    def future(self) -> str:
        return f"{self.verb} {self.rest}"

    @property
    def done(self) -> str:
        return f"{self.past} {self.rest}"


@dataclass(frozen=True)
class Cell:
    """One cell of a source: ``kind`` is markdown or code, ``line`` the line of its ``# %%`` marker."""

    kind: str
    source: str
    tags: tuple[str, ...]
    metadata: Mapping[str, Any]
    line: int


@dataclass(frozen=True)
class Lesson:
    """A lesson as its source states it."""

    number: str
    slug: str
    title: str
    minutes: int
    needs: tuple[str, ...]
    objectives: tuple[Objective, ...]
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        return f"{self.number}_{self.slug}"

    @property
    def notebook_name(self) -> str:
        return f"{self.name}.ipynb"


def read(path: Path) -> Lesson:
    """Return the lesson whose source is ``path``.

    Raises AuthoringError when the file's name, its header or one of its cells is not as CONTRIBUTING.md has it.
    """
    name = FILE_NAME.fullmatch(path.name)
    if name is None:
        raise AuthoringError(f"{path.name}: name a source NN_title.py, in lower case, such as 07_working_set.py")
    try:
        script = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise AuthoringError(f"{path.name} cannot be read as UTF-8 text: {error}") from error
    return parse(script, number=name["number"], slug=name["slug"])


def parse(script: str, *, number: str, slug: str) -> Lesson:
    """Return the lesson that the text ``script`` describes; ``number`` and ``slug`` are those of its file name."""
    where = f"{number}_{slug}.py"
    fields = _fields(_header(script, where), where)
    if fields["number"] != number:
        raise AuthoringError(f"{where}: number is {fields['number']!r} but the file name says {number!r}")
    return Lesson(
        number=number,
        slug=slug,
        title=fields["title"].strip(),
        minutes=fields["minutes"],
        needs=tuple(fields["needs"]),
        objectives=tuple(_objective(text, where) for text in fields["objectives"]),
        cells=cells_of(script, where),
    )


def _header(script: str, where: str) -> Any:
    lines = script.splitlines()
    fences = [index for index, line in enumerate(lines) if line.strip() == "# ---"]
    if not lines or lines[0].strip() != "# ---" or len(fences) < 2:
        raise AuthoringError(f"{where}: begin it with a header between two lines '# ---' (see CONTRIBUTING.md)")
    try:
        header = yaml.safe_load("\n".join(line[1:].removeprefix(" ") for line in lines[1 : fences[1]]))
    except yaml.YAMLError as error:
        raise AuthoringError(f"{where}: its header is not YAML: {' '.join(str(error).split())}") from error
    jupyter = header.get("jupyter") if isinstance(header, dict) else None
    fields = jupyter.get("lesson") if isinstance(jupyter, dict) else None
    if not isinstance(fields, dict):
        raise AuthoringError(f"{where}: its header has no 'jupyter: lesson:' with {', '.join(_FIELDS)}")
    return fields


def _fields(fields: dict[str, Any], where: str) -> dict[str, Any]:
    missing = [name for name in _FIELDS if name not in fields]
    unknown = [str(name) for name in fields if name not in _FIELDS]
    if missing or unknown:
        raise AuthoringError(
            f"{where}: lesson metadata missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        )
    fits = {
        "number": lambda value: isinstance(value, str) and re.fullmatch(r"\d\d", value) is not None,
        "title": _is_text,
        "minutes": lambda value: type(value) is int and 1 <= value <= 600,
        "needs": lambda value: isinstance(value, list) and all(_is_text(item) for item in value),
        "objectives": lambda value: isinstance(value, list) and value != [] and all(_is_text(item) for item in value),
    }
    for name, fit in fits.items():
        if not fit(fields[name]):
            raise AuthoringError(f"{where}: {name} is {fields[name]!r}; write {_FIELDS[name]}{_quotes(fields[name])}")
    return fields


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != "" and "\n" not in value.strip()


def _quotes(value: Any) -> str:
    """Name the mistake behind a list with a dictionary in it: YAML reads ``a: b`` as one."""
    holds_mapping = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    return " (a text with a colon in it stands in quotes)" if holds_mapping else ""


def _objective(text: str, where: str) -> Objective:
    verb, bar, after = (part.strip() for part in text.partition("|"))
    words, count = after.split(), len(verb.split())
    if not bar or count == 0 or len(words) <= count or "|" in after:
        raise AuthoringError(
            f"{where}: objective {text!r} is not 'verb|past tense rest', such as 'predict|predicted the time of a copy'"
        )
    return Objective(verb=verb, past=" ".join(words[:count]), rest=" ".join(words[count:]).removesuffix("."))


@functools.lru_cache(maxsize=128)  # a second a lesson, and every check of one lesson reads them all
def cells_of(script: str, where: str) -> tuple[Cell, ...]:
    """Return the cells of a percent script; ``where`` names the file in the AuthoringError for an ill-formed one."""
    try:
        read_cells = jupytext.reads(script, fmt="py:percent").cells
    except nbformat.ValidationError as error:
        example = 'write it as # %% tags=["run"] minutes=2'
        raise AuthoringError(f"{where}: a cell's metadata is ill-formed ({error.message}); {example}") from error
    lines = [number for number, line in enumerate(script.splitlines(), start=1) if _MARKER.match(line)]
    if len(lines) != len(read_cells):
        raise AuthoringError(
            f"{where}: {len(lines)} lines begin a cell with '# %%' but {len(read_cells)} cells are read; put no text "
            "between the header and the first '# %%', and no '# %%' within a cell"
        )
    if not read_cells:
        raise AuthoringError(f"{where} has no cells; begin one with '# %%' or '# %% [markdown]'")
    return tuple(_cell(cell, line, where) for cell, line in zip(read_cells, lines, strict=True))


def _cell(cell: Any, line: int, where: str) -> Cell:
    if cell.cell_type not in ("markdown", "code"):
        raise AuthoringError(f"{where}, line {line}: a {cell.cell_type} cell; use markdown or code")
    if not cell.source.strip():
        raise AuthoringError(f"{where}, line {line}: an empty cell; write it or remove its '# %%'")
    metadata = {key: value for key, value in cell.metadata.items() if key not in _JUPYTEXT_KEYS}
    tags = metadata.pop("tags", [])
    return Cell(cell.cell_type, cell.source, tuple(tags), MappingProxyType(metadata), line)
