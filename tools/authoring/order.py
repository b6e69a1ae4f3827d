"""The order in which the lessons are read: course/order.toml, which no other module reads."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.authoring.cells import AuthoringError
from tools.authoring.problem import Problem

_NAME = re.compile(r"\d\d_[a-z][a-z0-9_]*")
_KEYS = ("title", "question", "places", "lessons", "planned")
_WAY_KEYS = ("question", "places", "leads_on")
_MOST_WORDS = 14  # of a lesson's question, which has a column in the table of lessons
_LISTS = ("places", "lessons", "planned")
_EXERCISES = "_exercises"

# A title that a lesson had before, and its title now: readers and classes have files under the
# former one.
_RETITLED = {"layouts_and_long_sequences": "layouts"}


@dataclass(frozen=True)
class Way:
    """The question that a lesson answers, its places on the map of the machine, and why the next
    lesson follows.
    """

    question: str
    places: tuple[str, ...]
    leads_on: str


def ways(path: Path) -> dict[str, Way]:
    """Return the way of each lesson that the file states, by its title, such as ``working_set``.

    Raises AuthoringError where a key is missing or unknown, or where the question is none or is too
    long.
    """
    tables = (
        tomllib.loads(path.read_text(encoding="utf-8")).get("ways", {}) if path.is_file() else {}
    )
    return {title: _way(table, f"{path.name}: [ways.{title}]") for title, table in tables.items()}


def _way(table: Mapping[str, object], where: str) -> Way:
    if set(table) != set(_WAY_KEYS) or not all(table.values()):
        raise AuthoringError(f"{where} has {', '.join(table)}; write {', '.join(_WAY_KEYS)}")
    question, places, leads_on = (table[key] for key in _WAY_KEYS)
    if not (isinstance(question, str) and isinstance(leads_on, str) and isinstance(places, list)):
        raise AuthoringError(
            f"{where}: question and leads_on must be texts and places a list; write them so"
        )
    if not question.endswith("?") or len(question.split()) > _MOST_WORDS:
        message = f"must end in ? and have at most {_MOST_WORDS} words"
        raise AuthoringError(f"{where}: the question {question!r} {message}; write one that does")
    return Way(question, tuple(places), leads_on.strip())


@dataclass(frozen=True)
class Act:
    """A part of the course: its lessons, and those that are ``planned`` and not written yet, as
    NN_title.

    ``question`` is what it asks, and ``places`` are where it is on the map of the course.
    """

    title: str
    lessons: tuple[str, ...]
    planned: tuple[str, ...] = ()
    question: str = ""
    places: tuple[str, ...] = ()

    @property
    def numbers(self) -> str:
        """The numbers of its lessons, also of those that are planned: "00 to 03"."""
        numbers = sorted(name[:2] for name in (*self.lessons, *self.planned))
        return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else "".join(numbers)


def read(path: Path) -> tuple[Act, ...]:
    """Return the acts that the file states; () where there is no file, as in a course of one
    lesson.

    Raises AuthoringError where a key or a name is ill-formed, a title is used twice or the numbers
    do not rise.
    """
    if not path.is_file():
        return ()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AuthoringError(f"{path.name} is not TOML: {error}") from error
    acts = tuple(_act(table, path.name) for table in document.get("acts", ()))
    if not acts or not set(document) <= {"acts", "ways"}:
        raise AuthoringError(
            f"{path.name} states {', '.join(document) or 'nothing'}; write [[acts]] and "
            "[ways.title]"
        )
    names = [name for act in acts for name in sorted((*act.lessons, *act.planned))]
    for before, after in itertools.pairwise(names):
        if before[:2] >= after[:2]:
            raise AuthoringError(
                f"{path.name}: {after} follows {before}; let the numbers rise from act to act"
            )
    titles = [title_of(name) for name in names]
    duplicates = sorted({title for title in titles if titles.count(title) > 1})
    if duplicates:
        raise AuthoringError(
            f"{path.name}: {', '.join(duplicates)} has two numbers; give each lesson "
            "a title of its own"
        )
    return acts


def _act(table: Mapping[str, object], where: str) -> Act:
    unknown = [key for key in table if key not in _KEYS]
    texts = [table.get("title"), table.get("question", "")]
    raw_lists = [table.get(key, []) for key in _LISTS]
    lists = [tuple(names) for names in raw_lists if isinstance(names, list)]
    if unknown or not all(isinstance(text, str) for text in texts) or len(lists) < len(raw_lists):
        message = "write a title, a question and the lists places, lessons and planned"
        raise AuthoringError(f"{where}: an act has {', '.join(table)}; {message}")
    places, lessons, planned = lists
    names = (*lessons, *planned)
    wrong = [repr(name) for name in names if not (isinstance(name, str) and _NAME.fullmatch(name))]
    if wrong:
        raise AuthoringError(
            f"{where}: {', '.join(wrong)}; name a lesson NN_title, such as 11_working_set"
        )
    return Act(str(texts[0]), lessons, planned, str(texts[1]), places)


def title_of(name: str) -> str:
    """Return the title of a lesson, without its number: ``working_set`` of ``11_working_set``.

    The name of a lesson's exercises has their title; a title that a lesson had before gives the one
    that it has now.
    """
    title = name.partition("_")[2]
    exercises = _EXERCISES if title.endswith(_EXERCISES) else ""
    title = title.removesuffix(_EXERCISES)
    return _RETITLED.get(title, title) + exercises


def titles_of(name: str) -> tuple[str, ...]:
    """Return every title under which files of ``name``, a lesson or its exercises, may be: that of
    now comes first.
    """
    title = title_of(name)
    exercises = _EXERCISES if title.endswith(_EXERCISES) else ""
    former_titles = (
        old_title
        for old_title, new_title in _RETITLED.items()
        if new_title == title.removesuffix(_EXERCISES)
    )
    return (title, *(f"{old}{exercises}" for old in former_titles))


def act_of(acts: Sequence[Act], name: str) -> str:
    """Return the title of the act that has the lesson ``name``, "" where none has."""
    return next((act.title for act in acts if name in act.lessons), "")


def new_names(acts: Sequence[Act], names: Sequence[str]) -> dict[str, str]:
    """Return the new name of each of ``names`` to which the order gives another number, by its old
    name.

    Raises AuthoringError for a lesson that the order does not have.
    """
    names_by_title = {title_of(name): name for act in acts for name in act.lessons}
    missing = [name for name in names if title_of(name) not in names_by_title]
    if missing:
        raise AuthoringError(
            f"order.toml does not have {', '.join(missing)}; write each into the lessons of an act"
        )
    return {
        name: names_by_title[title_of(name)]
        for name in names
        if names_by_title[title_of(name)] != name
    }


def problems(acts: Sequence[Act], names: Sequence[str]) -> list[Problem]:
    """Return a problem for each source that the order does not have so, and for each lesson without
    a source.
    """
    order_problems = []
    unmatched_sources = {title_of(name): name for name in names}
    for act in acts:
        for name in act.lessons:
            source = unmatched_sources.pop(title_of(name), None)
            if source is None:
                order_problems.append(
                    Problem(
                        "order.toml", None, f"{name} has no source; move it to planned, or write it"
                    )
                )
            elif source != name:
                message = f"order.toml has {name}; run python -m tools.authoring renumber"
                order_problems.append(Problem(f"{source}.py", None, message))
        for name in act.planned:
            if unmatched_sources.pop(title_of(name), None) is not None:
                order_problems.append(
                    Problem(
                        "order.toml", None, f"{name} is written; move it from planned to lessons"
                    )
                )
    message = "order.toml does not have it; write it into the lessons of an act"
    return order_problems + [
        Problem(f"{name}.py", None, message) for name in unmatched_sources.values() if acts
    ]
