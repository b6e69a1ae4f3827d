"""Make README, Makefile and pyproject.toml of the students' tree true there: nothing in them names what it lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.authoring import links
from tools.authoring.lesson import AuthoringError

TARGETS = ("help", "setup", "lab")
SECTIONS = ("build-system", "project", "tool.hatch")

_RULE = re.compile(r"([\w./-]+):(?!=)")
_VARIABLE = re.compile(r"(\w+) *[?:]?=")
_SECTION = re.compile(r"\[+([\w.-]+)\]+")
_COMMAND = re.compile(r"\bmake\s+([a-z]+)\b")
_CODE = re.compile(r"`[^`]+`")
_SENTENCE_END = re.compile(r"(?<=\.)\s+(?=[A-Z`*\[])")
_STAMPS = (".venv/uv.stamp", ".venv/student.stamp")


def adapt(tree: Path) -> None:
    """Rewrite the three files in ``tree``, where the course's own stand so far; one that is absent stays absent.

    Raises AuthoringError when what is left names a target that the Makefile lacks, or leads to no file.
    """
    makefile, project, readme = (tree / name for name in ("Makefile", "pyproject.toml", "README.md"))
    if makefile.exists():
        makefile.write_text(makefile_for_students(makefile.read_text(encoding="utf-8")), encoding="utf-8")
    if project.exists():
        project.write_text(project_for_students(project.read_text(encoding="utf-8")), encoding="utf-8")
    if readme.exists():
        text = readme_for_students(readme.read_text(encoding="utf-8"), tree)
        wrong = [f"`make {name}`" for name in commands(text) if name not in TARGETS]
        wrong += links.dead(text, page=readme, root=tree)
        if wrong:
            raise AuthoringError(f"the students' README.md names what their tree lacks: {', '.join(wrong)}; reword it")
        readme.write_text(text, encoding="utf-8")


def makefile_for_students(text: str) -> str:
    """Return a Makefile with the targets in TARGETS, the files that they need, and the variables that these use."""
    kept = [block for block in text.strip().split("\n\n") if _is_kept(block)]
    missing = {*TARGETS, *_STAMPS} - {rule[1] for rule in map(_RULE.match, kept) if rule}
    if missing:
        raise AuthoringError(f"Makefile: the students' tree needs {', '.join(sorted(missing))}, a paragraph each")
    whole = re.sub(r"^\.PHONY:.*$", f".PHONY: {' '.join(TARGETS)}", "\n\n".join(kept), flags=re.MULTILINE)
    return "\n".join(line for line in whole.splitlines() if _is_used(line, whole)) + "\n"


def _is_kept(block: str) -> bool:
    rule = _RULE.match(block)
    return rule is None or rule[1] in (*TARGETS, *_STAMPS, ".PHONY")


def _is_used(line: str, whole: str) -> bool:
    variable = _VARIABLE.match(line)
    return variable is None or f"$({variable[1]})" in whole


def project_for_students(text: str) -> str:
    """Return a pyproject.toml with the sections that install ``helpers``, and none of the course's own tools."""
    lines, keep = [], True
    for line in text.splitlines():
        section = _SECTION.fullmatch(line)
        if section:
            keep = section[1].startswith(SECTIONS)
        if keep:
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n"


def readme_for_students(text: str, tree: Path) -> str:
    """Return a README without the commands, and the sentences, that name a target or a file which ``tree`` lacks.

    Tables and lists are left as they are; a heading under which nothing is left goes too.
    """
    kept: list[str] = []  # from the last paragraph to the first
    for paragraph in reversed([_paragraph(paragraph, tree) for paragraph in text.split("\n\n")]):
        empty = bool(_level(paragraph)) and (not kept or 0 < _level(kept[-1]) <= _level(paragraph))
        if paragraph.strip() and not empty:
            kept.append(paragraph)
    return "\n\n".join(reversed(kept)).replace("## Two commands\n", "## One command\n").rstrip() + "\n"


def _paragraph(paragraph: str, tree: Path) -> str:
    if paragraph.startswith("```"):
        lines = paragraph.splitlines()
        kept = [line for line in lines if set(_COMMAND.findall(line)) <= set(TARGETS)]
        return "\n".join(kept) if len(kept) > 2 else ""
    if paragraph.startswith(("#", "|", "<", "-")) or not _lacks(paragraph, tree):
        return paragraph
    return "\n".join(sentence for sentence in _SENTENCE_END.split(paragraph) if not _lacks(sentence, tree))


def _level(paragraph: str) -> float:
    """Return how deep a heading stands, the title 1; 0 for a paragraph that is none."""
    return len(paragraph) - len(paragraph.lstrip("#"))


def _lacks(text: str, tree: Path) -> bool:
    return not set(commands(text)) <= set(TARGETS) or bool(links.dead(text, page=tree / "README.md", root=tree))


def commands(text: str) -> Iterator[str]:
    """Yield the target of each ``make`` command in the code of a Markdown text."""
    for index, part in enumerate(text.split("```")):
        for code in part.splitlines() if index % 2 else _CODE.findall(part):
            yield from _COMMAND.findall(code)
