"""The repository's address: it stands in pyproject.toml, and from there in all that names it."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.storage import write_atomically
from tools.authoring import pages
from tools.authoring.course import Course
from tools.authoring.lesson import AuthoringError

BEGIN, END = "<!-- address -->", "<!-- /address -->"

_ACCEPTED = re.compile(r"https://github\.com/[\w-]+/[\w.-]+(?<!\.git)")
_FIELD = re.compile(r"^\[project\.urls\]\nRepository = .*\n\n", re.MULTILINE)
_BEFORE = "[project.optional-dependencies]\n"
_CITED = re.compile(r"^repository-code: .*\n", re.MULTILINE)
_BLOCK = re.compile(f"{BEGIN}\n.*{END}", re.DOTALL)
_KNOWN = """
The course without installing anything: the table below opens each lesson in Colab or in Binder. To have it here:

```
git clone {address}
```

The library alone: `pip install 'deep-learning-hardware-course[course] @ git+{address}'`.

"""  # noqa: E501


def fill(course: Course, address: str) -> list[Path]:
    """Write ``address`` to all that names it, or take it out of all with ''; return the files that
    changed.

    Raises AuthoringError, and changes nothing, for an address that Colab and Binder could not open.
    """
    if address and not _ACCEPTED.fullmatch(address):
        raise AuthoringError(
            f"{address} is not https://github.com/OWNER/NAME, without .git or a / at the end"
        )
    project, citation, readme = (
        course.root / "pyproject.toml",
        course.root / "CITATION.cff",
        course.readme,
    )
    page = _with_block(readme.read_text(encoding="utf-8"), address)
    texts = {
        project: _with_field(project.read_text(encoding="utf-8"), address),
        citation: _CITED.sub("", citation.read_text(encoding="utf-8"))
        + (f"repository-code: {address}\n" if address else ""),
        readme: pages.with_table(page, course.lessons(), address=address),
    }
    changed = [path for path, text in texts.items() if text != path.read_text(encoding="utf-8")]
    for path in changed:
        write_atomically(path, texts[path])
    return changed


def _with_field(project: str, address: str) -> str:
    field = f'[project.urls]\nRepository = "{address}"\n\n' if address else ""
    return _FIELD.sub("", project).replace(_BEFORE, field + _BEFORE, 1)


def _with_block(readme: str, address: str) -> str:
    if len(_BLOCK.findall(readme)) != 1:
        raise AuthoringError(
            f"README.md must hold {BEGIN} and then {END}, once each, where the address is to stand"
        )
    text = _KNOWN.format(address=address) if address else ""
    return _BLOCK.sub(lambda _: f"{BEGIN}\n{text}{END}", readme)
