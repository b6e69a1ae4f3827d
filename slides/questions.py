"""Questions and their answers on slides: what is shown of each, and on which slide.

``helpers.predict`` asks and ``reveal`` answers. In a built notebook both say that no prediction was made. On a slide
the question stands alone, so that a room can predict, and the answer keeps its model and its measurement.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from bs4 import BeautifulSoup

from helpers.widgets._answers import NO_PREDICTION
from slides.markdown import plain_text


def question(output: Mapping[str, Any]) -> str | None:
    """Return the question that ``output`` asks, without its unit, or None for another output."""
    asked, _, rest = output.get("data", {}).get("text/plain", "").partition("\n")
    return asked.rpartition(" [")[0] if rest.strip() == NO_PREDICTION else None


def as_text(outputs: Sequence[Mapping[str, Any]]) -> str:
    """Return the questions that ``outputs`` ask as paragraphs of HTML, '' where there is none."""
    asked = [question(output) for output in outputs]
    return "".join(f"<p>{html.escape(one)}</p>" for one in asked if one is not None)


def is_answer(output: Mapping[str, Any]) -> bool:
    """Return whether ``output`` is that of a ``reveal``."""
    lines = output.get("data", {}).get("text/plain", "").splitlines()
    return len(lines) > 2 and lines[1].startswith("predicted  ") and "text/html" in output["data"]


def for_slide(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``output`` as a slide shows it: an answer without the row of a prediction that nobody made.

    Its HTML is marked with the class ``answer`` for the theme. Other outputs come back as they are.
    """
    if not is_answer(output):
        return output
    soup = BeautifulSoup(output["data"]["text/html"], "html.parser")
    soup.find("div")["class"] = "answer"
    for row in soup.find_all("tr"):
        if row.td.get_text() == NO_PREDICTION:
            row.decompose()
    return {**output, "data": {**output["data"], "text/html": str(soup)}}


def asks(texts: Sequence[str]) -> bool:
    """Return whether one of ``texts``, pieces of HTML, asks something."""
    return any("?" in plain_text(text) for text in texts)
