"""Players of ``plotting.play`` on slides: the library's script runs, and the frames are looked at as all HTML is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from helpers.plotting.player._play import BEGINS, SCRIPT

_RUN = re.compile(r"<script>.*?</script>", re.DOTALL)
_HELD = re.compile(r'<script type="application/json">(.*?)</script>', re.DOTALL)


def opened(html: str) -> str:
    """Return the HTML of a player with its frames in the open and without its script; other HTML as it is."""
    if not html.startswith(BEGINS):
        return html
    return _HELD.sub(lambda held: "".join(json.loads(held[1])["frames"]), _RUN.sub("", html))


def for_slide(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``output`` as a slide shows it: a player with the library's script; other outputs as they are."""
    html = output.get("data", {}).get("text/html", "")
    if not html.startswith(BEGINS):
        return output
    shown = _RUN.sub(lambda _: f"<script>{SCRIPT}</script>", html)
    return {**output, "data": {**output["data"], "text/html": shown}}
