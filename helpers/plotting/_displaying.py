"""A picture in a notebook's output, and the page whose script replaces it where scripts run."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from helpers.checks import one_of

CSS_PIXELS_PER_INCH = 100


def script_of(folder: Path, name: str) -> str:
    """Return the script ``name`` of ``folder``, with the style sheet of that name in its place."""
    script, style = (
        folder.joinpath(f"{name}.{ending}").read_text(encoding="utf-8") for ending in ("js", "css")
    )
    return script.replace(f"{name.upper()}_STYLE", json.dumps(style))


def require_sentences(what: str, to_say: str, **texts: object) -> None:
    """Raise TypeError or ValueError unless each of ``texts`` is a text that is not empty.

    The error says that ``what`` needs it, and ``to_say`` what it is to say.
    """
    for name, text in texts.items():
        if not one_of(name, text, str, "a sentence").strip():
            raise ValueError(f"{what} needs {name}: say in a sentence what {to_say}")


def display_picture(picture: bytes, size_in: Iterable[float], alt: str, *, page: str = "") -> None:
    """Display the PNG ``picture``, ``size_in`` inches wide and high, and ``page`` instead of it
    where HTML is shown.
    """
    from IPython.display import display

    width, height = (round(CSS_PIXELS_PER_INCH * inches) for inches in size_in)
    display(
        {**({"text/html": page} if page else {}), "image/png": picture, "text/plain": alt},
        raw=True,
        metadata={"image/png": {"alt": alt, "width": width, "height": height}},
    )


def display_page(
    opening: str, data: Mapping[str, object], script: str, picture: bytes, size_in: Iterable[float]
) -> None:
    """Display ``picture`` on a page whose ``script`` replaces it by a figure of ``data`` where it
    runs.

    ``data["alt"]`` is its alt text, and ``opening`` the page's first tag.
    """
    alt = str(data["alt"])
    json_text = (
        json.dumps(data, ensure_ascii=False).replace("</", "<\\/").replace("<!--", "\\u003c!--")
    )
    source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    page = (
        f'{opening}><img src="{source}" alt="{html.escape(alt)}" style="max-width: 100%">'
        f'<script type="application/json">{json_text}</script><script>{script}</script></div>'
    )
    display_picture(picture, size_in, alt, page=page)
