"""An extension of Sphinx: its search shows the sentences around a word also where the site is
opened from files.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

TEXTS = "texts.js"

# an excerpt is of sentences
_UNSHOWN = (nodes.literal_block, nodes.math_block, nodes.Invisible, nodes.raw)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", _add_search_scripts)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def text(node: nodes.Element) -> str:
    """Return the sentences below ``node`` as HTML, in which a section keeps the names that a link
    leads to.
    """
    return " ".join(_parts(node))


def _parts(node: nodes.Element) -> Iterator[str]:
    for child in node.children:
        if isinstance(child, nodes.section):
            anchors = "".join(f'<section id="{html.escape(name)}">' for name in child["ids"])
            yield f"{anchors}{text(child)}{'</section>' * len(child['ids'])}"
        elif not isinstance(child, _UNSHOWN):
            yield html.escape(" ".join(child.astext().split()), quote=False)


def _add_search_scripts(app: Sphinx, page: str, *_: object) -> None:
    if page == "search":
        app.add_js_file(TEXTS)
        app.add_js_file("excerpts.js")


def _write(app: Sphinx, failure: Exception | None) -> None:
    if failure is None:
        texts = {page: text(app.env.get_doctree(page)) for page in sorted(app.env.found_docs)}
        file = Path(app.outdir) / "_static" / TEXTS
        file.write_text(f"window.pageTexts = {json.dumps(texts)};\n", encoding="utf-8")
