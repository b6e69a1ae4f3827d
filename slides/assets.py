"""Where the code of others that a deck carries comes from: reveal.js and MathJax, out of installed
packages.

Both are files inside Python packages of the group ``teach``, pinned in requirements.lock. They are
inlined into a deck as they are; nothing of them stands in this repository.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

# tex-svg-full holds every TeX extension, so that no macro makes MathJax load a file at run time.
ASSETS = {
    "reveal.css": ("sphinx-revealjs", "static/revealjs/dist/reveal.css"),
    "reveal.js": ("sphinx-revealjs", "static/revealjs/dist/reveal.js"),
    "notes.js": ("sphinx-revealjs", "static/revealjs/plugin/notes/notes.js"),
    "mathjax.js": ("sphinx-mathjax-offline", "static/mathjax/tex-svg-full.js"),
    # Their licences want to go along. MathJax's package holds none: it is the Apache License 2.0,
    # as packaging's is.
    "reveal.js's licence": ("sphinx-revealjs", "static/revealjs/LICENSE"),
    "MathJax's licence": ("packaging", "LICENSE.APACHE"),
}


class AssetError(FileNotFoundError):
    """A file that every deck needs is not installed."""


def asset(name: str) -> str:
    """Return the text of the file ``name``, one of :data:`ASSETS`.

    Raises AssetError, with the command that mends it, when its package or the file in it is
    missing, and when the text cannot stand inside an HTML page as it is.
    """
    package, ending = ASSETS[name]
    text = _installed_file(name, package, ending).read_text(encoding="utf-8")
    closing = {".js": "</script", ".css": "</style"}.get(Path(name).suffix, "--")
    if closing in text.lower():
        raise AssetError(
            f"{name} of {package} holds {closing}>, so it cannot be inlined; pin another version"
        )
    return text


def _installed_file(name: str, package: str, ending: str) -> Path:
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise AssetError(
            f"{name} not found: the package {package} is not installed; {_remedy()}"
        ) from None
    files = [file for file in distribution.files or () if file.as_posix().endswith(ending)]
    paths = [Path(str(file.locate())) for file in files]
    if len(paths) != 1 or not paths[0].is_file():
        raise AssetError(
            f"{name} not found: {package} {distribution.version} holds no file {ending}; "
            f"{_remedy()}"
        )
    return paths[0]


def _remedy() -> str:
    return "run `make setup`, or `uv pip install --group teach`"
