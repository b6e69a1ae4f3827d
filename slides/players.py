"""Players of ``plotting.play`` on slides: the library's script runs, and the frames are looked at
as all HTML is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from helpers.plotting.player import BEGINS, SCRIPT

# On a slide and on the site a frame takes the colours of drawings.css, through the shadow tree:
# white becomes the page.
_ON_A_SLIDE = SCRIPT.replace("background: white", "background: var(--figure-page, white)").replace(
    ".stage > svg {",
    ".stage > svg { filter: var(--figure-filter, none); mix-blend-mode: var(--figure-blend, "
    "normal);",
)

_ANY_SCRIPT = re.compile(r"<script>.*?</script>", re.DOTALL)
_DATA = re.compile(r'<script type="application/json">(.*?)</script>', re.DOTALL)


def read_player(output: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the title, alt text, frames and captions of a player, or None for another output."""
    html = output.get("data", {}).get("text/html", "")
    if not html.startswith(BEGINS):
        return None
    match = _DATA.search(html)
    if match is None:
        raise ValueError("a player's output holds no frames; build its lesson again")
    return json.loads(match[1])


def open_frames(html: str) -> str:
    """Return the HTML of a player with its frames in the open and without its script; other HTML as
    it is.
    """
    if not html.startswith(BEGINS):
        return html
    return _DATA.sub(
        lambda match: "".join(json.loads(match[1])["frames"]), _ANY_SCRIPT.sub("", html)
    )


def for_slide(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``output`` as a slide or the site shows it: a player in the page's colours; other
    outputs as they are.
    """
    html = output.get("data", {}).get("text/html", "")
    if not html.startswith(BEGINS):
        return output
    page = _ANY_SCRIPT.sub(lambda _: f"<script>{_ON_A_SLIDE}</script>", html)
    return {**output, "data": {**output["data"], "text/html": page}}
