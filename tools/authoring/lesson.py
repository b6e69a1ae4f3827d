"""Read a lesson's one source: a percent script whose header holds the lesson's metadata."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.authoring import minutes, yours
from tools.authoring.cells import AuthoringError, Cell, cells_of
from tools.authoring.order import Way
from tools.authoring.yours import Right, Wrong

STAGES = ("predict", "run", "look", "explain")
# the folder of what belongs to a lesson and is not taught with it, beside sources and notebooks
APPENDIX = "appendix"
FILE_NAME = re.compile(r"(?P<number>\d\d)_(?P<slug>[a-z][a-z0-9_]*)\.py")

_FIELDS = {
    "number": 'the two digits of the file name in quotes: "00"',
    "title": "a few words",
    "needs": 'a list of lesson numbers in quotes ("00") and of words; [] for nothing',
    "objectives": "a list, each written 'predict|predicted the time of ...'",
}
_FIELDS_OF_AN_APPENDIX = ("number", "title")


@dataclass(frozen=True)
class Objective:
    """A skill that a reader has after a lesson, in the two tenses in which the lesson says it."""

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
class Lesson:
    """A lesson as its source states it: ``wrong`` are planted versions of what its reader writes,
    for the tests, and ``right`` are right ones in other styles.

    ``run_s`` are the seconds that its cells took to run when its notebook was built, 0 before that.
    ``act`` is the part of the course that has it, as course/order.toml says, "" in a course without
    acts. A lesson's appendix has its number and slug, and neither needs, objectives nor an act.
    """

    number: str
    slug: str
    title: str
    needs: tuple[str, ...]
    objectives: tuple[Objective, ...]
    cells: tuple[Cell, ...]
    wrong: tuple[Wrong, ...] = ()
    right: tuple[Right, ...] = ()
    run_s: int = 0
    is_appendix: bool = False
    way: Way | None = None
    act: str = ""

    @property
    def minutes(self) -> int:
        return minutes.minutes(self.cells, run_s=self.run_s)

    @property
    def name(self) -> str:
        """The path of its source and of its notebook in their folders, without a suffix."""
        return (
            f"{APPENDIX}/{self.number}_{self.slug}"
            if self.is_appendix
            else f"{self.number}_{self.slug}"
        )

    @property
    def label(self) -> str:
        return f"appendix {self.number}" if self.is_appendix else f"lesson {self.number}"

    @property
    def notebook_name(self) -> str:
        return f"{self.name}.ipynb"


def read(path: Path) -> Lesson:
    """Return the lesson whose source is ``path``, or the appendix where its folder is that of
    appendices.

    Raises AuthoringError when the file's name, its header or one of its cells is not as
    CONTRIBUTING.md has it.
    """
    name = FILE_NAME.fullmatch(path.name)
    if name is None:
        raise AuthoringError(
            f"{path.name}: name a source NN_title.py, in lower case, such as 11_working_set.py"
        )
    try:
        script = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise AuthoringError(f"{path.name} cannot be read as UTF-8 text: {error}") from error
    return parse(
        script, number=name["number"], slug=name["slug"], is_appendix=path.parent.name == APPENDIX
    )


@functools.lru_cache(maxsize=128)  # a command reads all lessons for each of its questions
def parse(script: str, *, number: str, slug: str, is_appendix: bool = False) -> Lesson:
    """Return the lesson that the text ``script`` describes; ``number`` and ``slug`` are those of
    its file name.
    """
    where = f"{APPENDIX}/{number}_{slug}.py" if is_appendix else f"{number}_{slug}.py"
    fields = _fields(
        _header(script, where), where, _FIELDS_OF_AN_APPENDIX if is_appendix else tuple(_FIELDS)
    )
    if fields["number"] != number:
        raise AuthoringError(
            f"{where}: number is {fields['number']!r} but the file name says {number!r}"
        )
    all_cells = cells_of(script, where)
    cells, wrong = yours.split_notebook_cells(all_cells, where)
    yours.refuse_ill_formed(cells, wrong, where)
    return Lesson(
        number=number,
        slug=slug,
        title=fields["title"].strip(),
        needs=tuple(fields.get("needs", ())),
        objectives=tuple(_objective(text, where) for text in fields.get("objectives", ())),
        cells=cells,
        wrong=wrong,
        right=yours.right_answers(all_cells, where),
        is_appendix=is_appendix,
    )


def _header(script: str, where: str) -> Any:
    lines = script.splitlines()
    fences = [index for index, line in enumerate(lines) if line.strip() == "# ---"]
    if not lines or lines[0].strip() != "# ---" or len(fences) < 2:
        raise AuthoringError(
            f"{where}: begin it with a header between two lines '# ---' (see CONTRIBUTING.md)"
        )
    try:
        header = yaml.safe_load(
            "\n".join(line[1:].removeprefix(" ") for line in lines[1 : fences[1]])
        )
    except yaml.YAMLError as error:
        raise AuthoringError(
            f"{where}: its header is not YAML: {' '.join(str(error).split())}"
        ) from error
    jupyter = header.get("jupyter") if isinstance(header, dict) else None
    fields = jupyter.get("lesson") if isinstance(jupyter, dict) else None
    if not isinstance(fields, dict):
        raise AuthoringError(
            f"{where}: its header has no 'jupyter: lesson:' with {', '.join(_FIELDS)}"
        )
    return fields


def _fields(fields: dict[str, Any], where: str, names: Sequence[str]) -> dict[str, Any]:
    missing = [name for name in names if name not in fields]
    unknown = [str(name) for name in fields if name not in names]
    if missing or unknown:
        raise AuthoringError(
            f"{where}: lesson metadata missing: {', '.join(missing) or 'none'}; unknown: "
            f"{', '.join(unknown) or 'none'}"
        )
    validators = {
        "number": lambda value: isinstance(value, str) and re.fullmatch(r"\d\d", value) is not None,
        "title": _is_text,
        "needs": lambda value: isinstance(value, list) and all(_is_text(item) for item in value),
        "objectives": lambda value: (
            isinstance(value, list) and value != [] and all(_is_text(item) for item in value)
        ),
    }
    for name in names:
        if not validators[name](fields[name]):
            raise AuthoringError(
                f"{where}: {name} is {fields[name]!r}; write {_FIELDS[name]}{_quotes(fields[name])}"
            )
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
            f"{where}: objective {text!r} is not 'verb|past tense rest', such as "
            "'predict|predicted the time of a copy'"
        )
    return Objective(
        verb=verb, past=" ".join(words[:count]), rest=" ".join(words[count:]).removesuffix(".")
    )
