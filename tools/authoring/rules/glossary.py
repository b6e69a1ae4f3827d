"""The glossary, and whether the lessons use its words as it says.

An entry of course/glossary.md is a heading and two paragraphs: one sentence that says what the word
means, then its unit where it has one, the other words for it that lessons may write, and the lesson
that introduces it::

    ### working set

    The bytes that a piece of work comes back to while it runs.

    Unit: B. Also: resident set. From [lesson 11](11_working_set.ipynb).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import nbformat

from tools.authoring.lesson import AuthoringError, Lesson
from tools.authoring.problem import Problem
from tools.authoring.rules import markdown
from tools.authoring.rules.links import anchor

_FACTS = re.compile(
    r"(?:Unit: (?P<unit>\S(?:.*?\S)??)\. )?(?:Also: (?P<also>.+?)\. )?"
    r"From \[lesson (?P<number>\d\d)\]\((?P<file>\S+)\)\."
)
_FORM = (
    "'Unit: ... . Also: ..., ... . From [lesson NN](NN_title.ipynb).' (unit and also where there "
    "are any)"
)


@dataclass(frozen=True)
class Entry:
    """One term: ``also`` are the other ways to write it, ``lesson`` the number of the lesson that
    introduces it.
    """

    term: str
    meaning: str
    unit: str
    also: tuple[str, ...]
    lesson: str
    file: str

    @property
    def anchor(self) -> str:
        return anchor(self.term)

    @property
    def words(self) -> tuple[str, ...]:
        return (self.term, *self.also)


def read(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a glossary; raises AuthoringError, naming the entry, where one is not
    of the form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise AuthoringError(f"there is no {path.name} beside the lessons; write one") from error
    return parse(text, path.name)


def parse(text: str, name: str = "glossary.md") -> tuple[Entry, ...]:
    """Return the entries of the text of a glossary, which stand in the order of the alphabet, no
    word twice.
    """
    blocks = re.split(r"(?m)^### +", text)[1:]
    entries = tuple(_entry(block, name) for block in blocks)
    order = [entry.term.lower() for entry in entries]
    misplaced_terms = [after for before, after in pairwise(order) if after < before]
    if misplaced_terms:
        raise AuthoringError(
            f"{name}: {misplaced_terms[0]!r} is not in the order of the alphabet; move it up"
        )
    words = [word.lower() for entry in entries for word in entry.words]
    duplicates = sorted({word for word in words if words.count(word) > 1})
    if duplicates:
        raise AuthoringError(f"{name}: {', '.join(duplicates)} stands in it twice; keep one entry")
    return entries


def _entry(block: str, name: str) -> Entry:
    term, _, body = block.partition("\n")
    where = f"{name}: {term.strip()!r}"
    paragraphs = [
        " ".join(part.split()) for part in re.split(r"\n\s*\n", body.strip()) if part.strip()
    ]
    if len(paragraphs) != 2:
        raise AuthoringError(
            f"{where} has {len(paragraphs)} paragraphs; write one sentence, then {_FORM}"
        )
    meaning, facts = paragraphs
    if not meaning.endswith(".") or re.search(r"[.!?] +[A-Z]", meaning):
        raise AuthoringError(
            f"{where} is explained by {meaning!r}; write one sentence, with its full stop"
        )
    match = _FACTS.fullmatch(facts)
    if match is None or Path(match["file"]).name[:3] != f"{match['number']}_":
        raise AuthoringError(f"{where} ends with {facts!r}; write {_FORM}")
    also = tuple(word.strip() for word in (match["also"] or "").split(",") if word.strip())
    return Entry(term.strip(), meaning, match["unit"] or "", also, match["number"], match["file"])


class Terms:
    """Finds the glossary's words in a text: whole words, any case, singular or plural, the longest
    word first.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._by_word = {word.lower(): entry for entry in entries for word in entry.words}
        forms = sorted(self._by_word, key=len, reverse=True)
        alternatives = "|".join(_form(word) for word in forms)
        self._pattern = (
            re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w-])", re.IGNORECASE) if forms else None
        )

    def within(self, text: str) -> list[Entry]:
        """Return the entry of each term in ``text``, in order."""
        if self._pattern is None:
            return []
        words = [" ".join(match.group().lower().split()) for match in self._pattern.finditer(text)]
        return [self._entry(word) for word in words]

    def _entry(self, word: str) -> Entry:
        singulars = (
            word,
            word.removesuffix("s"),
            word.removesuffix("es"),
            f"{word.removesuffix('ies')}y",
        )
        return next(self._by_word[form] for form in singulars if form in self._by_word)


def _form(word: str) -> str:
    """Return a pattern for a term and its plural; its words may stand on two lines."""
    pattern = r"\s+".join(re.escape(part) for part in word.split())
    return rf"{pattern[:-1]}(?:ys?|ies)" if word.endswith("y") else rf"{pattern}(?:e?s)?"


def uses(lesson_text: Sequence[str], entries: Sequence[Entry]) -> set[str]:
    """Return the terms that a lesson's Markdown cells use: in text, as the words of a link, or
    behind a link.
    """
    terms, used_terms = Terms(entries), set()
    for span in (span for text in lesson_text for span in markdown.spans(text)):
        if span.kind in ("text", "link"):
            used_terms |= {entry.term for entry in terms.within(span.text)}
        if span.kind == "link":
            used_terms |= _linked_terms(span.target, entries)
    return used_terms


def check_lesson(
    name: str, built: nbformat.NotebookNode, entries: Sequence[Entry]
) -> list[Problem]:
    """Return a problem for each term that a lesson uses without a link at the first use."""
    terms, seen, problems = Terms(entries), set(), []
    for index, cell in enumerate(built.cells):
        if cell.cell_type != "markdown":
            continue
        for span in markdown.spans(cell.source):
            if span.kind == "link":
                seen |= _linked_terms(span.target, entries)
            elif span.kind == "text":
                for entry in terms.within(span.text):
                    if entry.term not in seen:
                        seen.add(entry.term)
                        message = (
                            f"{entry.term} is first used here; link it: "
                            f"[...](glossary.md#{entry.anchor})"
                        )
                        problems.append(Problem(name, index, message))
    return problems


def _linked_terms(link: str, entries: Sequence[Entry]) -> set[str]:
    """Return the term that a link leads to, whatever words it stands behind; none for a link to
    another page.
    """
    page, _, fragment = link.partition("#")
    return {
        entry.term
        for entry in entries
        if page == "glossary.md" and unquote(fragment) == entry.anchor
    }


def check_back_links(
    entries: Sequence[Entry], lessons: Sequence[Lesson], texts: dict[str, list[str]]
) -> list[Problem]:
    """Return a problem for each entry whose lesson does not exist or does not use the term.

    ``texts`` are the Markdown cells of each lesson, by its number.
    """
    files = {lesson.number: lesson.notebook_name for lesson in lessons}
    used_terms = {number: uses(cells, entries) for number, cells in texts.items()}
    problems = []
    for entry in entries:
        if files.get(entry.lesson) != entry.file:
            message = (
                f"{entry.term} leads back to {entry.file}, which is no lesson; name the one that "
                "introduces it"
            )
            problems.append(Problem("glossary.md", None, message))
        elif entry.term not in used_terms[entry.lesson]:
            message = (
                f"{entry.term} leads back to lesson {entry.lesson}, which does not use it; name "
                "the one that does"
            )
            problems.append(Problem("glossary.md", None, message))
    return problems
