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
    """Return the purpose of a visible code cell, a field of :class:`Code`."""
    if "yours" in cell.metadata:
        return "yours"
    if "checks" in cell.metadata or _CHECKS.search(cell.source):
        return "checks"
    return "shows" if _SHOWS.search(cell.source) else "mechanism"


def code(cells: Sequence[Cell]) -> Code:
    """Return the visible lines of the cells of a lesson by their role."""
    line_counts = dict.fromkeys(Code.__dataclass_fields__, 0)
    for cell in cells:
        if cell.kind == "code":
            line_counts[role(cell)] += minutes.lines(cell)
    return Code(**line_counts)


def sizes(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A lesson is read in one sitting, and most of the code that it shows is the idea."""
    line_counts = code(lesson.cells)
    function_count = sum("yours" in cell.metadata for cell in lesson.cells)
    part_count = sum(
        len(_PART.findall(cell.source)) for cell in lesson.cells if cell.kind == "markdown"
    )
    limits = (
        ("words of prose", minutes.words(lesson.cells), (0, WORDS)),
        ("parts", part_count, PARTS),
        ("functions that the reader writes", function_count, YOURS),
        ("predictions", minutes.predictions(lesson.cells), PREDICTIONS),
        ("minutes", lesson.minutes, (0, MINUTES)),
        ("visible lines of code", line_counts.visible, (0, VISIBLE_LINES)),
    )
    problems = [
        Problem(
            lesson.notebook_name,
            None,
            f"{count} {quantity}, {f'{least} to' if least else 'at most'} {most}",
        )
        for quantity, count, (least, most) in limits
        if not least <= count <= most
    ]
    idea = line_counts.yours + line_counts.mechanism
    if idea < LEAST_MECHANISM * line_counts.visible:
        message = (
            f"{idea} of {line_counts.visible} visible lines of code are the mechanism, at least "
            f"{LEAST_MECHANISM:.0%}"
        )
        problems.append(Problem(lesson.notebook_name, None, message))
    return problems + _cells(lesson, built)


def _cells(lesson: Lesson, built: Notebook) -> list[Problem]:
    problems, row = [], 0
    for index, (cell, built_cell) in enumerate(zip(lesson.cells, built.cells, strict=True)):
        if cell.kind == "markdown":
            row = 0
            continue
        lines = minutes.lines(cell)
        row += bool(lines)
        if row > ROW:
            message = (
                f"the {row}th visible code cell in a row; fold one, or say between them why the "
                "next one comes"
            )
            problems.append(Problem(lesson.notebook_name, index, message))
        if lines > MECHANISM_LINES and "yours" not in cell.metadata:
            message = (
                f"{lines} visible lines of code, at most {MECHANISM_LINES}; move what is not the "
                "idea to helpers"
            )
            problems.append(Problem(lesson.notebook_name, index, message))
        longest = max(map(len, built_cell.source.splitlines()), default=0)
        if longest > WIDTH:
            problems.append(
                Problem(
                    lesson.notebook_name, index, f"a line of {longest} characters, at most {WIDTH}"
                )
            )
    return problems


def questions(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A prediction is one sentence that asks: no colon, a finite verb, at most 25 words."""
    problems = []
    for question in form.questions(built):
        words = re.findall(r"[^\W\d_][\w'-]*|\d[\d,.]*", _SIZE.sub("1", question.text))
        lower_words = {word.lower() for word in words}
        faults = [
            ("has a colon; ask in one sentence", ": " in question.text),
            (
                "does not end with a question mark",
                question.text and not question.text.endswith("?"),
            ),
            (f"has {len(words)} words, at most {QUESTION_WORDS}", len(words) > QUESTION_WORDS),
            (
                "has no finite verb (tools/authoring/rules/page.py lists those known)",
                question.text and not lower_words & _VERBS,
            ),
        ]
        problems += [
            Problem(
                lesson.notebook_name,
                question.cell_index,
                f"the prediction {question.text!r} {fault}",
            )
            for fault, is_fault in faults
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
    starts = [position for position, (_, text) in enumerate(texts) if _PART.search(text)]
    ends = [position for position, (_, text) in enumerate(texts) if re.search(r"(?m)^## ", text)]
    for start in starts:
        index, text = texts[start]
        first = next((block for block in re.split(r"\n\s*\n", text.partition("\n")[2].strip())), "")
        if _LIST.match(first) or "?" not in first:
            message = (
                "a part that does not begin with its question; ask it, and why it comes now, above "
                "the list"
            )
            problems.append(Problem(lesson.notebook_name, index, message))
        end = min((position for position in ends if position > start), default=len(texts))
        rules = [rule for _, part in texts[start:end] for rule in rules_of_thumb(part)]
        if len(rules) != 1 or not re.search(r"\d", "".join(rules)):
            message = (
                f"a part with {len(rules)} rules of thumb; end it with one that carries a number: "
                f"{REMEMBER} ..."
            )
            problems.append(Problem(lesson.notebook_name, index, message))
        elif "?" in rules[0]:
            message = (
                "a rule of thumb that asks; put the question of the next part into a paragraph of "
                "its own"
            )
            problems.append(Problem(lesson.notebook_name, index, message))
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
        cell_index, output_index = form.find_reveal(built, question)
        if cell_index is None:
            continue  # a rule of form.answers
        answer = form.answer_of(built.cells[cell_index].outputs[output_index])
        before = itertools.chain([0], range(question.cell_index + 1, cell_index))
        for index in before:
            text = built.cells[index].source if built.cells[index].cell_type == "markdown" else ""
            phrase = answer and form.find_answer(text, answer)
            if phrase:
                message = (
                    f"says {phrase!r}, which is the answer to {question.name}; say it below the "
                    "reveal"
                )
                problems.append(Problem(lesson.notebook_name, index, message))
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
            message = (
                f"{name} has right answers in {len(styles)} other styles; write # %% "
                f'right="{name}" style=1, and 2'
            )
            problems.append(Problem(lesson.notebook_name, index, message))
        if name and not (isinstance(takes, int) and minutes.YOURS[0] <= takes <= minutes.YOURS[1]):
            message = (
                f"{name} has takes={takes!r}; state the minutes that writing it takes, "
                f"{minutes.YOURS}"
            )
            problems.append(Problem(lesson.notebook_name, index, message))
    return problems


CHECKS = (sizes, questions, parts, gates, answers_in_other_styles, form.booleans, form.answers)


def check(lesson: Lesson, built: Notebook) -> list[Problem]:
    """Return every problem of a lesson in the page; none of a notebook that is older than its
    source.
    """
    if len(lesson.cells) != len(built.cells):  # the rule that compares the two says so
        return []
    return [problem for rule in CHECKS for problem in rule(lesson, built)]
