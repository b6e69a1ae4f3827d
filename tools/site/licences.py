"""The page of licences: the course's own, where its data come from, and those of what the site's
pages carry.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from tools.authoring.cells import AuthoringError

OWN = ("LICENSE", "LICENSE-TEXT", "NOTICE")
# What the pages carry, and the package that holds the text of its licence; MathJax's package holds
# none.
CARRIED = {
    "the theme, with Bootstrap and Font Awesome": ("pydata-sphinx-theme", "licen"),
    "the theme of the book": ("sphinx-book-theme", "licen"),
    "the search": ("sphinx", "licen"),
    "the notebooks' style": ("myst-nb", "licen"),
    "MathJax (Apache License 2.0, copyright The MathJax Consortium)": (
        "packaging",
        "license.apache",
    ),
}


def page(root: Path) -> str:
    """Return every licence as Markdown.

    Raises AuthoringError where an installed package has lost its own.
    """
    parts = [
        "# Licences",
        *(_part(name, (root / name).read_text(encoding="utf-8")) for name in OWN),
    ]
    parts += [
        _part(f"{name[0].upper()}{name[1:]}", _read_installed(*source))
        for name, source in CARRIED.items()
    ]
    return "\n\n".join(parts) + "\n"


def _part(title: str, text: str) -> str:
    return f"## {title}\n\n````text\n{text.strip()}\n````"


def _read_installed(package: str, ending: str) -> str:
    files = importlib.metadata.distribution(package).files or ()
    texts = [file.read_text(encoding="utf-8") for file in files if ending in file.name.lower()]
    if not texts:
        raise AuthoringError(f"{package} holds no licence: install it again with make setup")
    return "\n\n".join(texts)
