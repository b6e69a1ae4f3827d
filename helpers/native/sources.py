"""C++ and CUDA C++ that stand in files beside the modules that compile them."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Mapping

_INCLUDE = re.compile(r'#include "(?P<name>.+)"\n')
_ONCE = "#pragma once\n"


def read_source(package: str, name: str, *, generated: Mapping[str, str] | None = None) -> str:
    """Return the program of the file ``name`` of ``package`` as one text, which needs no other file of the course.

    In the place of an ``#include "name"`` stands the file of that name in the same folder, each the first time that it
    is named, or the text that ``generated`` has for it. Raises FileNotFoundError for a file that is not there.
    """
    texts = dict(generated or {})
    folder, _, _ = name.rpartition("/")

    def read(path: str) -> str:
        text = importlib.resources.files(package).joinpath(folder, path).read_text(encoding="utf-8")
        return "".join(included(line) for line in text.splitlines(keepends=True) if line != _ONCE)

    def included(line: str) -> str:
        match = _INCLUDE.fullmatch(line)
        if match is None:
            return line
        text = texts.get(match["name"])
        texts[match["name"]] = ""
        return read(match["name"]) if text is None else text

    return read(name.rpartition("/")[2])
