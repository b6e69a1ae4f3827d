"""Dead links: into the repository to files and sections, and addresses that cannot be right.

Nothing is fetched.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tools.authoring.problem import Problem
from tools.authoring.rules import markdown

_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}(?::\d+)?", re.IGNORECASE)


def dead_links(
    text: str, *, page: Path, root: Path, own_anchors: set[str] | None = None
) -> list[str]:
    """Return a phrase for each dead link in the Markdown ``text`` of the file ``page``, which lies
    under ``root``.

    ``own_anchors`` are the page's sections where ``text`` is only a part of it.
    """
    anchors = own_anchors if own_anchors is not None else markdown_anchors(text)
    phrases = []
    for span in markdown.spans(text):
        if span.kind in ("link", "image"):
            reason = _reason(span.target, page, root, anchors)
            if reason:
                phrases.append(f"the {span.kind} to {span.target!r} {reason}")
    return phrases


def _reason(target: str, page: Path, root: Path, anchors: set[str]) -> str:
    try:
        parts = urlsplit(target)
    except ValueError:
        return "is no address"
    if parts.scheme in ("http", "https"):
        return "" if _HOST.fullmatch(parts.netloc) else "names no host"
    if parts.scheme == "mailto":
        return ""
    if parts.scheme or parts.netloc:
        return f"has the scheme {parts.scheme or '//'}; use https, or a path within the repository"
    if parts.path.startswith("/"):
        return "is an absolute path; write it relative to this file"
    if not parts.path:
        return (
            ""
            if unquote(parts.fragment) in anchors and parts.fragment
            else "names no section of this page"
        )
    return _missing(page.parent / unquote(parts.path), unquote(parts.fragment), root)


def _missing(path: Path, fragment: str, root: Path) -> str:
    target = path.resolve()
    if not target.is_relative_to(root.resolve()):
        return "leaves the repository"
    if not target.exists():
        return "leads to no file"
    if not fragment:
        return ""
    if target.suffix == ".md":
        known = markdown_anchors(target.read_text(encoding="utf-8"))
    elif target.suffix == ".ipynb":
        known = notebook_anchors(json.loads(target.read_text(encoding="utf-8")))
    else:
        known = {fragment} if re.fullmatch(r"L\d+(-L\d+)?", fragment) else set()
    return "" if fragment in known else f"leads to a file without the section #{fragment}"


def markdown_anchors(text: str) -> set[str]:
    """Return the anchors of a Markdown page's headings, as repository pages name them."""
    anchors: set[str] = set()
    for heading in _headings(text):
        slug = anchor(heading)
        repeat = sum(1 for known in anchors if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", known))
        anchors.add(f"{slug}-{repeat}" if repeat else slug)
    return anchors


def anchor(heading: str) -> str:
    """Return the anchor of one heading: lower case, letters and digits, a hyphen for each space."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def notebook_anchors(built: dict) -> set[str]:
    """Return the anchors of a notebook's headings, as JupyterLab names them: the words, with
    hyphens for spaces.
    """
    texts = ["".join(cell["source"]) for cell in built["cells"] if cell["cell_type"] == "markdown"]
    return {heading.replace(" ", "-") for text in texts for heading in _headings(text)}


def _headings(text: str) -> list[str]:
    return [span.text for span in markdown.spans(text) if span.kind == "heading"]


def check_notebook(name: str, built: dict, *, page: Path, root: Path) -> list[Problem]:
    """Return a problem for each dead link in a notebook's Markdown cells."""
    anchors = notebook_anchors(built)
    return [
        Problem(name, index, f"{phrase}; mend it")
        for index, cell in enumerate(built["cells"])
        if cell["cell_type"] == "markdown"
        for phrase in dead_links("".join(cell["source"]), page=page, root=root, own_anchors=anchors)
    ]


def check_page(page: Path, *, root: Path) -> list[Problem]:
    """Return a problem for each dead link in a Markdown page."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(root).as_posix()
    return [
        Problem(name, None, f"{phrase}; mend it")
        for phrase in dead_links(text, page=page, root=root)
    ]
