"""The page: a lesson that begins as a story, shows the code that is the idea, and asks in whole
sentences.

It holds for each lesson that is built from its story, and so has
``course/source/checks/NN_title.py``. A story may wait in ``course/source/stories`` until it is
built. Each rule is a function that returns what breaks it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import nbformat

from helpers.results import Result
from tools.authoring import minutes, yours
from tools.authoring.lesson import Cell, Lesson
from tools.authoring.problem import Problem
from tools.authoring.rules import form

WORDS = 3000
PARTS = (3, 5)
YOURS = (3, 5)
PREDICTIONS = (4, 7)
MINUTES = 100
VISIBLE_LINES = 200
MECHANISM_LINES = 15
LEAST_MECHANISM = 0.4
ROW = 3  # visible code cells with no sentence between them
WIDTH = 95
QUESTION_WORDS = 25
REMEMBER = "**To remember.**"

Notebook = nbformat.NotebookNode

_PART = re.compile(r"(?m)^## Part \d")
_LIST = re.compile(r"[-*] |\d+\. ")
_SIZE = re.compile(r"\d[\d,.]*(?: x \d[\d,.]*)+")
_SHOWS = re.compile(r"\bplotting\.|\baxes\.|DataFrame|\.reveal\(|print\(|\.claim\(")
_CHECKS = re.compile(r"\bcheck\(|\bexercises\.")

# Finite verbs with which questions ask; a question that is refused although it has one extends this
# list.
_FINITE = """
is are was were be do does did has have had can could will would must should may might shall take
takes took need needs cost costs fit fits move moves read reads write writes give gives gain gains
keep keeps save saves send sends receive receives hold holds fall falls rise rises grow grows run
runs make makes use uses remain remains reach reaches change changes shrink shrinks wait waits lose
loses bring brings get gets count counts lie lies pass passes stay stays hide hides last lasts
happen happens differ differs become becomes matter matters outweigh outweighs exceed exceeds
contain contains compute computes train trains share shares
"""
_VERBS = frozenset(_FINITE.split())


@dataclass(frozen=True)
class Code(Result):
    """The visible lines of a lesson's code, by what they are there for.

    ``yours`` are lines that the reader writes, ``mechanism`` the idea itself, ``shows`` what
    prints, draws or reveals, ``checks`` the calls that check the reader's functions.
    """

    yours: int
    mechanism: int
    shows: int
    checks: int

    @property
    def visible(self) -> int:
        """All lines that a reader sees."""
        return self.yours + self.mechanism + self.shows + self.checks


def role(cell: Cell) -> str:
    """Return what a visible code cell is there for, a field of :class:`Code`."""
    if "yours" in cell.metadata:
        return "yours"
    if "checks" in cell.metadata or _CHECKS.search(cell.source):
        return "checks"
    return "shows" if _SHOWS.search(cell.source) else "mechanism"


def code(cells: Sequence[Cell]) -> Code:
    """Return the visible lines of the cells of a lesson by their role."""
    counted = dict.fromkeys(Code.__dataclass_fields__, 0)
    for cell in cells:
        if cell.kind == "code":
            counted[role(cell)] += minutes.lines(cell)
    return Code(**counted)


def sizes(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A lesson is read in one sitting, and most of the code that it shows is the idea."""
    shown = code(lesson.cells)
    written = sum("yours" in cell.metadata for cell in lesson.cells)
    parts = sum(len(_PART.findall(cell.source)) for cell in lesson.cells if cell.kind == "markdown")
    counted = (
        ("words of prose", minutes.words(lesson.cells), (0, WORDS)),
        ("parts", parts, PARTS),
        ("functions that the reader writes", written, YOURS),
        ("predictions", minutes.predictions(lesson.cells), PREDICTIONS),
        ("minutes", lesson.minutes, (0, MINUTES)),
        ("visible lines of code", shown.visible, (0, VISIBLE_LINES)),
    )
    problems = [
        Problem(
            lesson.notebook_name,
            None,
            f"{count} {what}, {f'{least} to' if least else 'at most'} {most}",
        )
        for what, count, (least, most) in counted
        if not least <= count <= most
    ]
    idea = shown.yours + shown.mechanism
    if idea < LEAST_MECHANISM * shown.visible:
        what = (
            f"{idea} of {shown.visible} visible lines of code are the mechanism, at least "
            f"{LEAST_MECHANISM:.0%}"
        )
        problems.append(Problem(lesson.notebook_name, None, what))
    return problems + _cells(lesson, built)


def _cells(lesson: Lesson, built: Notebook) -> list[Problem]:
    problems, row = [], 0
    for index, (cell, made) in enumerate(zip(lesson.cells, built.cells, strict=True)):
        if cell.kind == "markdown":
            row = 0
            continue
        lines = minutes.lines(cell)
        row += bool(lines)
        if row > ROW:
            what = (
                f"the {row}th visible code cell in a row; fold one, or say between them why the "
                "next one comes"
            )
            problems.append(Problem(lesson.notebook_name, index, what))
        if lines > MECHANISM_LINES and "yours" not in cell.metadata:
            what = (
                f"{lines} visible lines of code, at most {MECHANISM_LINES}; move what is not the "
                "idea to helpers"
            )
            problems.append(Problem(lesson.notebook_name, index, what))
        wide = max(map(len, made.source.splitlines()), default=0)
        if wide > WIDTH:
            problems.append(
                Problem(
                    lesson.notebook_name, index, f"a line of {wide} characters, at most {WIDTH}"
                )
            )
    return problems


def questions(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A prediction is one sentence that asks: no colon, a finite verb, at most 25 words."""
    problems = []
    for question in form.questions(built):
        words = re.findall(r"[^\W\d_][\w'-]*|\d[\d,.]*", _SIZE.sub("1", question.text))
        said = {word.lower() for word in words}
        faults = [
            ("has a colon; ask in one sentence", ": " in question.text),
            (
                "does not end with a question mark",
                question.text and not question.text.endswith("?"),
            ),
            (f"has {len(words)} words, at most {QUESTION_WORDS}", len(words) > QUESTION_WORDS),
            (
                "has no finite verb (tools/authoring/rules/page.py lists those known)",
                question.text and not said & _VERBS,
            ),
        ]
        problems += [
            Problem(
                lesson.notebook_name, question.asked, f"the prediction {question.text!r} {what}"
            )
            for what, is_fault in faults
            if is_fault
        ]
    return problems


def parts(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A part begins with its question, before any list, and ends with a rule of thumb that carries
    a number.
    """
    problems = []
    texts = [
        (index, cell.source)
        for index, cell in enumerate(built.cells)
        if cell.cell_type == "markdown"
    ]
    starts = [place for place, (_, text) in enumerate(texts) if _PART.search(text)]
    ends = [place for place, (_, text) in enumerate(texts) if re.search(r"(?m)^## ", text)]
    for start in starts:
        index, text = texts[start]
        first = next((block for block in re.split(r"\n\s*\n", text.partition("\n")[2].strip())), "")
        if _LIST.match(first) or "?" not in first:
            what = (
                "a part that does not begin with its question; ask it, and why it comes now, above "
                "the list"
            )
            problems.append(Problem(lesson.notebook_name, index, what))
        end = min((place for place in ends if place > start), default=len(texts))
        rules = [rule for _, part in texts[start:end] for rule in rules_of_thumb(part)]
        if len(rules) != 1 or not re.search(r"\d", "".join(rules)):
            what = (
                f"a part with {len(rules)} rules of thumb; end it with one that carries a number: "
                f"{REMEMBER} ..."
            )
            problems.append(Problem(lesson.notebook_name, index, what))
        elif "?" in rules[0]:
            what = (
                "a rule of thumb that asks; put the question of the next part into a paragraph of "
                "its own"
            )
            problems.append(Problem(lesson.notebook_name, index, what))
    return problems


def rules_of_thumb(text: str) -> list[str]:
    """Return the rules of thumb of a markdown text, without their mark."""
    blocks = (block.strip() for block in re.split(r"\n\s*\n", text))
    return [block.removeprefix(REMEMBER).strip() for block in blocks if block.startswith(REMEMBER)]


def gates(lesson: Lesson, built: Notebook) -> list[Problem]:
    """No text gives a prediction's answer away: not the title, not the first screen, not what is
    below the question.
    """
    problems = []
    for question in form.questions(built):
        cell, place = form.revealed(built, question)
        if cell is None:
            continue  # a rule of form.answers
        answer = form.answer_of(built.cells[cell].outputs[place])
        before = itertools.chain([0], range(question.asked + 1, cell))
        for index in before:
            text = built.cells[index].source if built.cells[index].cell_type == "markdown" else ""
            given = answer and form.given_away(text, answer)
            if given:
                what = (
                    f"says {given!r}, which is the answer to {question.name}; say it below the "
                    "reveal"
                )
                problems.append(Problem(lesson.notebook_name, index, what))
    return problems


def answers_in_other_styles(lesson: Lesson, _: Notebook) -> list[Problem]:
    """Each function that the reader writes has a right answer in two other styles, and says how
    long it takes.
    """
    problems = []
    for index, cell in enumerate(lesson.cells):
        name = cell.metadata.get("yours")
        styles = {answer.style for answer in lesson.right if answer.name == name}
        takes = cell.metadata.get("takes")
        if name and styles != set(yours.STYLES):
            what = (
                f"{name} has right answers in {len(styles)} other styles; write # %% "
                f'right="{name}" style=1, and 2'
            )
            problems.append(Problem(lesson.notebook_name, index, what))
        if name and not (isinstance(takes, int) and minutes.YOURS[0] <= takes <= minutes.YOURS[1]):
            what = (
                f"{name} has takes={takes!r}; state the minutes that writing it takes, "
                f"{minutes.YOURS}"
            )
            problems.append(Problem(lesson.notebook_name, index, what))
    return problems


CHECKS = (sizes, questions, parts, gates, answers_in_other_styles, form.booleans, form.answers)


def check(lesson: Lesson, built: Notebook) -> list[Problem]:
    """Return every problem of a lesson in the page; none of a notebook that is older than its
    source.
    """
    if len(lesson.cells) != len(built.cells):  # the rule that compares the two says so
        return []
    return [problem for rule in CHECKS for problem in rule(lesson, built)]
